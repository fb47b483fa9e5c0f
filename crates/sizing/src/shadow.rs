//! What a policy would move with less fast memory, played on the pages of a run that has all of it.
//!
//! In: look by look, which pages have memory and how often each was accessed. Out: for each size, what would have moved, faulted and been
//! slow. Must not: cost anything; [`crate::forecast`] does.
//!
//! The eight figures of a vector do not say how unevenly memory is used, so a prediction from them must assume that it is even. Pages
//! seen one by one say it. Each size has a shadow: the pages that would be slow there. It follows the policies that kernels have (TPP and
//! its like), by their own constants and no others:
//!
//! - where the program has more than the size holds, the pages leave that were not accessed for longest, to the grain of a look; of those
//!   of one age, some at random;
//! - a page that has left is inaccessible, so that its first access is a hint fault. The scanner makes it inaccessible again
//!   at some moment of its next pass, and the first access after that is the next fault;
//! - the fault that the threshold names (`hot_thr`; TPP's second) promotes;
//! - accesses to a page that is slow are slow; in the look in which it comes up, half of them.
//!
//! That many small caches can be played beside a program and tell its whole curve is from Waldspurger et al., Cache Modeling and Optimization using
//! Miniature Simulations (USENIX ATC 2017). What differs from the policy itself: reclaim knows an age only from one scan of its lists to the
//! next, and pages born while fast memory is full are fast here.

use terrace_core::random::{SplitMix64, unit};

/// Ages beyond this many scans count as one.
const MOST_LOOKS: usize = 4096;
/// The age of a page without memory.
const NONE: u32 = u32::MAX;
/// A page that is fast, in the place of its faults.
const FAST: u8 = u8::MAX;

/// What a size would have cost so far, in pages, faults and accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Toll {
    /// Pages promoted.
    pub promotions: f64,
    /// Pages demoted.
    pub demotions: f64,
    /// Hint faults.
    pub faults: f64,
    /// Accesses that slow memory would have served.
    pub slow_accesses: f64,
}

impl Toll {
    /// What was added since `before`, for each page, fault and access `factor` of them.
    pub fn since(&self, before: &Toll, factor: f64) -> Toll {
        Toll {
            promotions: (self.promotions - before.promotions) * factor,
            demotions: (self.demotions - before.demotions) * factor,
            faults: (self.faults - before.faults) * factor,
            slow_accesses: (self.slow_accesses - before.slow_accesses) * factor,
        }
    }
}

/// A page of one size.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Faults since it left, or [`FAST`].
    faults: u8,
    /// From which look on its next access is a fault.
    armed: f32,
}

/// One size.
#[derive(Clone, Debug)]
struct Shadow {
    fast_pages: u64,
    pass_looks: f64,
    places: Vec<Place>,
    toll: Toll,
}

/// A size to be played.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    /// Pages that are fast.
    pub fast_pages: u64,
    /// Looks that the scanner takes for one pass over what is slow.
    pub pass_looks: f64,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Shadows {
    threshold: u8,
    looks: u32,
    /// Looks since the last access of each page.
    ages: Vec<u32>,
    shadows: Vec<Shadow>,
    random: SplitMix64,
}

impl Shadows {
    /// Shadows of these sizes, under a policy whose fault number `threshold` promotes, from 1 to 254.
    pub fn new(sizes: impl IntoIterator<Item = Size>, threshold: u8) -> Shadows {
        let shadow = |Size { fast_pages, pass_looks }| Shadow {
            fast_pages,
            pass_looks,
            places: Vec::new(),
            toll: Toll::default(),
        };
        Shadows {
            threshold: threshold.clamp(1, FAST - 1),
            looks: 0,
            ages: Vec::new(),
            shadows: sizes.into_iter().map(shadow).collect(),
            random: SplitMix64::new(1),
        }
    }

    /// What each size would have cost so far, in the order they were given.
    pub fn tolls(&self) -> impl Iterator<Item = Toll> {
        self.shadows.iter().map(|shadow| shadow.toll)
    }

    /// One look. Of each page: how often it was accessed since the look before, and nothing where it has no memory.
    pub fn look(&mut self, pages: &[Option<u32>]) {
        let more = pages.len().saturating_sub(self.ages.len());
        self.ages.resize(self.ages.len() + more, NONE);
        let mut resident = 0;
        for (age, page) in self.ages.iter_mut().zip(pages) {
            *age = match (page, *age) {
                (None, _) => NONE,
                // A page is born by its first access.
                (Some(_), NONE) | (Some(1..), _) => 0,
                (Some(0), age) => age + 1,
            };
            resident += u64::from(*age != NONE);
        }
        for shadow in &mut self.shadows {
            shadow.places.resize(self.ages.len(), Place { faults: FAST, armed: 0.0 });
            let slow = shadow.serve(pages, &self.ages, self.looks, self.threshold, &mut self.random);
            let wanted = resident.saturating_sub(shadow.fast_pages);
            shadow.demote(wanted.saturating_sub(slow), &self.ages, &mut self.random);
        }
        self.looks += 1;
    }
}

impl Shadow {
    /// The accesses of a look: faults, promotions. Returns how many pages are slow after them.
    fn serve(&mut self, pages: &[Option<u32>], ages: &[u32], look: u32, threshold: u8, random: &mut SplitMix64) -> u64 {
        let mut slow = 0;
        for ((place, page), age) in self.places.iter_mut().zip(pages).zip(ages) {
            if place.faults == FAST {
                continue;
            }
            if *age == NONE {
                place.faults = FAST;
                continue;
            }
            let accesses = f64::from(page.unwrap_or(0));
            if accesses > 0.0 && place.armed <= look as f32 {
                place.faults += 1;
                place.armed = look as f32 + (unit(random.next()) * self.pass_looks) as f32;
                self.toll.faults += 1.0;
            }
            if place.faults >= threshold {
                place.faults = FAST;
                self.toll.promotions += 1.0;
                self.toll.slow_accesses += 0.5 * accesses;
            } else {
                self.toll.slow_accesses += accesses;
                slow += 1;
            }
        }
        slow
    }

    /// Removes pages, the oldest first.
    fn demote(&mut self, count: u64, ages: &[u32], random: &mut SplitMix64) {
        if count == 0 {
            return;
        }
        let capped = |age: u32| (age as usize).min(MOST_LOOKS);
        let mut by_age = vec![0u64; MOST_LOOKS + 1];
        let fast = |place: &Place, age: u32| place.faults == FAST && age != NONE;
        for (place, &age) in self.places.iter().zip(ages) {
            by_age[capped(age)] += u64::from(fast(place, age));
        }
        // All that are older than `oldest` leave, and of those of that age `some`.
        let (mut oldest, mut some) = (0, count);
        for age in (0..=MOST_LOOKS).rev() {
            oldest = age;
            if by_age[age] >= some {
                break;
            }
            some -= by_age[age];
        }
        let mut left = by_age[oldest];
        for (place, &age) in self.places.iter_mut().zip(ages) {
            if !fast(place, age) || capped(age) < oldest {
                continue;
            }
            if capped(age) == oldest {
                let chosen = random.below(left) < some;
                left -= 1;
                if !chosen {
                    continue;
                }
                some -= 1;
            }
            *place = Place { faults: 0, armed: 0.0 };
            self.toll.demotions += 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOT: usize = 60;
    const ALL: usize = 100;

    /// A program that uses its first pages in each look, eight times each, and one of the rest, any.
    fn play(fast_pages: u64, threshold: u8, looks: usize) -> Toll {
        let mut shadows = Shadows::new([Size { fast_pages, pass_looks: 2.0 }], threshold);
        let mut random = SplitMix64::new(7);
        for _ in 0..looks {
            let other = HOT + random.below((ALL - HOT) as u64) as usize;
            let accesses = |page: usize| match page {
                0..HOT => 8,
                page if page == other => 1,
                _ => 0,
            };
            shadows.look(&(0..ALL).map(|page| Some(accesses(page))).collect::<Vec<_>>());
        }
        shadows.tolls().next().unwrap()
    }

    #[test]
    fn what_is_idle_leaves_and_what_is_hot_stays() {
        assert_eq!(play(ALL as u64, 2, 100), Toll::default(), "with everything fast nothing happens");
        // Half of what is used now and then is slow, so that each second look hits a slow page, which faults then.
        let toll = play(80, 2, 4000);
        let returns = 4000.0 * 20.0 / 40.0;
        assert!((toll.faults / returns - 1.0).abs() < 0.1, "{toll:?}");
        assert!((toll.promotions / toll.faults - 0.5).abs() < 0.05, "each second fault promotes: {toll:?}");
        assert!((toll.demotions - toll.promotions - 20.0).abs() <= 1.0, "as many leave as come: {toll:?}");
        // One for the first fault and half for the second; and at the start, when all are of one age, hot pages left with the others.
        assert!((0.75..0.9).contains(&(toll.slow_accesses / toll.faults)), "{toll:?}");
    }

    #[test]
    fn a_higher_threshold_promotes_less_and_leaves_more_accesses_slow() {
        let (second, fourth) = (play(70, 2, 4000), play(70, 4, 4000));
        assert!(fourth.promotions < 0.7 * second.promotions, "{second:?} {fourth:?}");
        assert!(fourth.slow_accesses > second.slow_accesses, "{second:?} {fourth:?}");
    }

    #[test]
    fn less_fast_memory_never_costs_less() {
        let tolls: Vec<Toll> = [90, 80, 70, 60, 50, 40].map(|fast| play(fast, 2, 2000)).to_vec();
        for pair in tolls.windows(2) {
            assert!(pair[1].slow_accesses >= pair[0].slow_accesses, "{pair:?}");
        }
        assert!(tolls[4].slow_accesses > 10.0 * tolls[3].slow_accesses, "below the hot set: {tolls:?}");
    }

    #[test]
    fn a_page_that_is_freed_is_slow_no_longer() {
        let mut shadows = Shadows::new([Size { fast_pages: 1, pass_looks: 1.0 }], 2);
        shadows.look(&[Some(1), Some(1)]);
        shadows.look(&[Some(0), Some(1)]);
        shadows.look(&[None, Some(1)]);
        let before = shadows.tolls().next().unwrap();
        shadows.look(&[None, Some(1)]);
        assert_eq!(shadows.tolls().next().unwrap(), before);
        assert_eq!(before.since(&Toll { demotions: 1.0, ..before }, 2.0), Toll::default());
    }
}
