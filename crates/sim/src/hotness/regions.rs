//! Region trackers: one sampled entry stands for a whole region; regions split at random and grow together where they agree.
//!
//! In: when each page and each block was last used. Out: an estimate for every page: its region's. Must not: look at more entries
//! than it has regions at a time.
//!
//! Sources: DAMON (kernel documentation): 10 to 1,000 regions, a check each 5 ms, 100 ms to an aggregation, neighbours join
//! whose counts differ by at most a tenth of the checks. Telescope (2023): the same with accessed bits of upper levels, of a
//! 1 GiB entry where the region covers it and of a 2 MiB entry otherwise.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT};

use super::uses::Uses;
use terrace_core::random::mix;

const LEAST: usize = 10;
const MOST: usize = 1000;
/// Checks to an aggregation: 100 ms over 5 ms.
const CHECKS: u32 = 20;
const REGION_SHIFT: u32 = 18;

#[derive(Clone, Copy, Debug)]
struct Region {
    from: u32,
    to: u32,
    count: u32,
    /// The page to check next.
    sampled: u32,
}

/// The regions of one tracker.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    /// Whether upper levels' bits are read.
    upper: bool,
    regions: Vec<Region>,
    prepared: u32,
    checks: u32,
    random: u64,
    estimate: Vec<(u32, u32, f32)>,
    /// Entries read and cleared so far.
    pub(crate) checked: u64,
}

impl Regions {
    pub(crate) fn new(upper: bool) -> Regions {
        Regions { upper, regions: Vec::new(), prepared: 0, checks: 0, random: 11, estimate: Vec::new(), checked: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.regions.len()
    }

    fn grain(&self) -> u32 {
        if self.upper { BLOCK_PAGES } else { 1 }
    }

    fn draw(&mut self, bound: u32) -> u32 {
        self.random = mix(self.random);
        (((self.random >> 32) * u64::from(bound.max(1))) >> 32) as u32
    }

    /// A check: what was sampled at the last one is looked at, and new pages are sampled. `now` is the tick.
    pub(crate) fn check(&mut self, uses: &Uses, now: u32) {
        let pages = uses.pages();
        self.cover(pages);
        for region in &mut self.regions {
            let used = if self.upper && region.to - region.from >= 1 << REGION_SHIFT {
                uses.used_region(region.sampled >> REGION_SHIFT, self.prepared)
            } else if self.upper || uses.is_huge(region.sampled) {
                uses.used_block(region.sampled >> BLOCK_SHIFT, self.prepared)
            } else {
                uses.used_page(region.sampled, self.prepared)
            };
            region.count += u32::from(used);
        }
        self.checked += self.regions.len() as u64;
        self.prepared = now;
        for index in 0..self.regions.len() {
            let Region { from, to, .. } = self.regions[index];
            self.regions[index].sampled = from + self.draw(to - from);
        }
        self.checks += 1;
        if self.checks == CHECKS {
            self.checks = 0;
            self.aggregate();
        }
    }

    /// Regions cover what is mapped now.
    fn cover(&mut self, pages: u32) {
        let end = self.regions.last().map_or(0, |region| region.to);
        if end < pages {
            let step = ((pages - end) / LEAST as u32).max(self.grain()).next_multiple_of(self.grain());
            let mut from = end;
            while from < pages {
                let to = (from + step).min(pages);
                self.regions.push(Region { from, to, count: 0, sampled: from });
                from = to;
            }
        }
    }

    fn aggregate(&mut self) {
        self.estimate = self.regions.iter().map(|region| (region.from, region.to, region.count as f32)).collect();
        let threshold = CHECKS / 10;
        let all: u32 = self.regions.last().map_or(0, |region| region.to);
        let largest = all / LEAST as u32;
        let mut joined: Vec<Region> = Vec::with_capacity(self.regions.len());
        for region in std::mem::take(&mut self.regions) {
            match joined.last_mut() {
                Some(last) if last.count.abs_diff(region.count) <= threshold && region.to - last.from <= largest => {
                    let (one, other) = (u64::from(last.to - last.from), u64::from(region.to - region.from));
                    last.count =
                        ((u64::from(last.count) * one + u64::from(region.count) * other) / (one + other)) as u32;
                    last.to = region.to;
                }
                _ => joined.push(region),
            }
        }
        // Each region is cut in two at random while there are less than half of the most.
        let cut = joined.len() < MOST / 2;
        let grain = self.grain();
        for region in joined {
            let grains = (region.to - region.from) / grain;
            let fresh = |from, to| Region { from, to, count: 0, sampled: from };
            if cut && grains >= 2 {
                let at = region.from + (1 + self.draw(grains - 1)) * grain;
                self.regions.push(fresh(region.from, at));
                self.regions.push(fresh(at, region.to));
            } else {
                self.regions.push(fresh(region.from, region.to));
            }
        }
    }

    /// The latest aggregation, page by page.
    pub(crate) fn estimate(&self, out: &mut [f32]) {
        for &(from, to, count) in &self.estimate {
            let to = (to as usize).min(out.len());
            out[(from as usize).min(to)..to].fill(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_find_a_hot_stretch_and_stay_within_their_number() {
        for upper in [false, true] {
            let mut uses = Uses::default();
            uses.fit(64 << 9);
            let mut regions = Regions::new(upper);
            for tick in 1..=2000u32 {
                // Blocks 16 to 23 are in use all the time.
                for page in 16 << 9..24 << 9 {
                    uses.see(page, tick, false);
                }
                regions.check(&uses, tick + 1);
            }
            assert!((LEAST..=MOST).contains(&regions.len()), "{}", regions.len());
            let mut estimate = vec![0.0; 64 << 9];
            regions.estimate(&mut estimate);
            let mean = |blocks: std::ops::Range<usize>| {
                estimate[blocks.start << 9..blocks.end << 9].iter().sum::<f32>() / (blocks.len() << 9) as f32
            };
            assert!(mean(17..23) > 15.0 && mean(30..60) < 3.0, "{} {}", mean(17..23), mean(30..60));
        }
    }
}
