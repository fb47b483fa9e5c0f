//! FlexMem's bins as page lists: for every bin the units in it, fast and slow apart.
//!
//! In: changes of units' spots, coolings. Out: the units of a bin, the longest in it first. Must not: walk a list to keep it
//! right; every change is O(1), and a cooling renames lists instead of moving their units.
//!
//! Source: FlexMem (USENIX ATC 2024), section 5: "embed page addresses into the histogram". Links take 8 bytes a page,
//! 0.195 % of memory.

use terrace_core::units::PageId;

use crate::parts::bins::{BINS, FINE_BINS};
use crate::parts::heat::{Change, Class, Spot};
use crate::parts::lists::Lists;

/// The page lists of the bins, by side, class and fine bin. Cooling renames the settled lists instead of walking them.
#[derive(Clone, Debug)]
pub struct BinLists {
    lists: Lists,
    coolings: usize,
}

impl Default for BinLists {
    fn default() -> BinLists {
        BinLists { lists: Lists::new(2 * 3 * FINE_BINS), coolings: 0 }
    }
}

impl BinLists {
    /// Makes room for the ids 0 to `length - 1`.
    pub fn fit(&mut self, length: usize) {
        self.lists.fit(length);
    }

    /// Bytes this structure occupies.
    pub fn memory_bytes(&self) -> usize {
        self.lists.memory_bytes()
    }

    fn list(&self, slow: bool, class: Class, fine: usize) -> usize {
        let place = match class {
            Class::Settled => (fine + self.coolings) % FINE_BINS,
            Class::Fresh | Class::Unseen => fine,
        };
        (usize::from(slow) * 3 + class as usize) * FINE_BINS + place
    }

    /// A unit changed its spot.
    pub fn apply(&mut self, change: &Change) {
        if change.before.is_some() {
            self.lists.remove(change.unit.0);
        }
        if let Some(Spot { slow, class, fine }) = change.after {
            self.lists.push_front(self.list(slow, class, fine), change.unit.0);
        }
    }

    /// Every settled page is one bin lower, those of the lowest bin stay behind them; the others settle where they are.
    pub fn cool(&mut self) {
        for slow in [false, true] {
            let (lowest, second) = (self.list(slow, Class::Settled, 0), self.list(slow, Class::Settled, 1));
            self.lists.splice_back(lowest, second);
        }
        self.coolings = (self.coolings + 1) % FINE_BINS;
        for slow in [false, true] {
            for fine in 0..FINE_BINS {
                for class in [Class::Fresh, Class::Unseen] {
                    self.lists.splice_back(self.list(slow, class, fine), self.list(slow, Class::Settled, fine));
                }
            }
        }
    }

    /// The units of one fine bin, the longest in it first.
    pub fn fine_back_to_front(&self, slow: bool, class: Class, fine: usize) -> impl Iterator<Item = PageId> + '_ {
        self.lists.back_to_front(self.list(slow, class, fine)).map(PageId)
    }

    /// The units of one visible bin below the highest.
    pub fn back_to_front(&self, slow: bool, class: Class, bin: usize) -> impl Iterator<Item = PageId> + '_ {
        debug_assert!(bin < BINS - 1, "the highest bin is never demoted");
        self.fine_back_to_front(slow, class, bin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cooling_lowers_settled_units_by_a_bin_and_settles_the_others_where_they_are() {
        let mut bins = BinLists::default();
        bins.fit(8);
        let spots = [
            (0, Class::Settled, 0),
            (1, Class::Settled, 1),
            (2, Class::Settled, 9),
            (3, Class::Fresh, 9),
            (4, Class::Unseen, 1),
        ];
        for (id, class, fine) in spots {
            let after = Some(Spot { slow: false, class, fine });
            bins.apply(&Change { unit: PageId(id), pages: 1, before: None, after });
        }
        let check = |bins: &BinLists, fine: usize, units: &[u32]| {
            let found: Vec<u32> = bins.fine_back_to_front(false, Class::Settled, fine).map(|unit| unit.0).collect();
            assert_eq!(found, units, "bin {fine}");
        };
        bins.cool();
        check(&bins, 0, &[0, 1]);
        check(&bins, 1, &[4]);
        check(&bins, 8, &[2]);
        check(&bins, 9, &[3]);
        for _ in 0..40 {
            bins.cool();
        }
        assert_eq!(bins.fine_back_to_front(false, Class::Settled, 0).count(), 5);
    }
}
