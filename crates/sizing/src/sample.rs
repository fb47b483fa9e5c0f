//! Which pages stand for all of them: spatial sampling by a hash of the page's number.
//!
//! In: a page number. Out: whether the page is in the sample, and its number there. Must not: depend on when or how often a page is used.
//!
//! A sample that is chosen by a hash of the page keeps every access to the pages it has, so that reuse, ages and phases stay as they are while
//! everything else shrinks in proportion: SHARDS (Waldspurger et al., Efficient MRC Construction with SHARDS, USENIX FAST 2015, section 3). What
//! is played on such a sample is a miniature of the whole (Waldspurger et al., Cache Modeling and Optimization using Miniature Simulations,
//! USENIX ATC 2017).
//!
//! Here of each `one_in` neighbours exactly one is chosen, by the hash of their common number. The sample is then as even over address space as the
//! pages are, and a page's number in it is its number divided by `one_in`: neighbours stay neighbours, and a scan over addresses keeps its order.
//! Samples of different `group`s have no page in common, and together all groups have every page.

use terrace_core::random::mix;

/// Pages of a group, one of each `one_in`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sample {
    one_in: u32,
    group: u32,
}

impl Sample {
    /// Every page.
    pub const WHOLE: Sample = Sample { one_in: 1, group: 0 };

    /// The sample of a group; `None` unless `one_in` is a power of two and `group` is below it.
    pub const fn new(one_in: u32, group: u32) -> Option<Sample> {
        if one_in.is_power_of_two() && group < one_in { Some(Sample { one_in, group }) } else { None }
    }

    /// How many pages each page of the sample stands for.
    pub const fn one_in(self) -> u32 {
        self.one_in
    }

    /// The page that is chosen of the neighbours that have this number in the sample.
    const fn chosen(self, place: u64) -> u64 {
        let ways = self.one_in as u64;
        place * ways + ((mix(place) + self.group as u64) & (ways - 1))
    }

    /// The page's number in the sample; `None` if it is not in it.
    #[inline]
    pub const fn place(self, page: u64) -> Option<u64> {
        let place = page / self.one_in as u64;
        if self.chosen(place) == page { Some(place) } else { None }
    }

    /// The group whose sample has the page, if there are `one_in` groups, and its number there.
    #[inline]
    pub const fn group_of(page: u64, one_in: u32) -> (u64, u64) {
        let ways = one_in as u64;
        let place = page / ways;
        ((page.wrapping_sub(mix(place))) & (ways - 1), place)
    }

    /// The pages of the sample among `count` pages from `first` on: the first of them, and how many. They are neighbours in the sample.
    pub const fn range(self, first: u64, count: u64) -> (u64, u64) {
        let ways = self.one_in as u64;
        let mut from = first / ways;
        if self.chosen(from) < first {
            from += 1;
        }
        let end = first + count;
        let mut until = end / ways;
        if self.chosen(until) < end {
            until += 1;
        }
        (from, until.saturating_sub(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_share_no_page_and_have_all_of_them_together() {
        let groups: Vec<Sample> = (0..8).map(|group| Sample::new(8, group).unwrap()).collect();
        for page in 1 << 20..(1 << 20) + 4000 {
            let within: Vec<usize> = (0..8).filter(|&group| groups[group].place(page).is_some()).collect();
            let (group, place) = Sample::group_of(page, 8);
            assert_eq!(within, [group as usize], "{page}");
            assert_eq!(groups[within[0]].place(page), Some(place));
        }
        assert!((0..100).all(|page| Sample::WHOLE.place(page) == Some(page)));
        assert!(Sample::new(3, 0).is_none() && Sample::new(4, 4).is_none());
    }

    #[test]
    fn the_choice_among_neighbours_follows_no_pattern() {
        let sample = Sample::new(4, 0).unwrap();
        let mut offsets = [0u32; 4];
        (0..8000u64).for_each(|place| offsets[(sample.chosen(place) & 3) as usize] += 1);
        assert!(offsets.iter().all(|&count| (1850..2150).contains(&count)), "{offsets:?}");
    }

    #[test]
    fn a_range_has_the_pages_that_are_in_the_sample_and_no_others() {
        for group in 0..4 {
            let sample = Sample::new(4, group).unwrap();
            for first in 96..104 {
                for count in 0..40 {
                    let places: Vec<u64> = (first..first + count).filter_map(|page| sample.place(page)).collect();
                    let (from, many) = sample.range(first, count);
                    assert_eq!(places, (from..from + many).collect::<Vec<_>>(), "{count} from {first}");
                }
            }
        }
    }
}
