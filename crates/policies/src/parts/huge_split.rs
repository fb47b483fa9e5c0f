//! MEMTIS's decision which huge pages to split: when splitting would pay, how many, and the most skewed first.
//!
//! In: samples with their hit or miss of fast memory, the counts of huge pages at a cooling. Out: blocks to split. Must not:
//! split them itself.
//!
//! Source: MEMTIS code (specification section 6). rH counts samples that hit fast memory; eH counts samples that would
//! have if every page were a base page placed by its own heat: those that find the page marked as probably hot. Both keep
//! half of their value from one decision to the next.
//!
//! | constant | value | source |
//! |---|---|---|
//! | gain a split round must bring | 3 % more real hits, or splitting ends for good | MEMTIS code |
//! | discount of eH | 0.95 | MEMTIS code |
//! | factor of the number to split | 0.4 | MEMTIS code |
//! | latencies | 80 ns fast, 270 ns slow (170 CXL) | MEMTIS code |
//! | divisor of the skew | 11 | MEMTIS code |
//! | splits a pass | 50 | MEMTIS code |
//!
//! Our reading where the specification is terse: counts of pages are in samples; the mean utilisation is taken over huge
//! pages with at least one hot page; `hot_utils` of the skew is the number of hot pages.

use terrace_core::pages::Pages;
use terrace_core::units::{BLOCK_PAGES, BlockId};

use crate::parts::bins::{fine_bin, visible_bin};
use crate::parts::heat::{Heat, SAMPLE_WEIGHT};

/// Huge pages split at one pass of the migration thread at most.
pub const SPLITS_A_PASS: usize = 50;
/// Skew indices: 0 for none, 1 to 10 by bit length, up to 20 by steps of 1024.
const SKEWS: usize = 21;
const EXPECTED_DISCOUNT: f64 = 0.95;
const SPLIT_FACTOR: f64 = 0.4;
const SKEW_DIVISOR: u64 = 11;
const GAIN_WANTED: f64 = 1.03;
/// A huge page in this bin or above is hot all over, and left alone.
const TOO_HOT_BIN: usize = 13;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct SplitDecision {
    enabled: bool,
    fast_ns: f64,
    slow_ns: f64,
    cool_samples: u64,
    expected_hits: f64,
    real_hits: f64,
    /// Since the last decision, without what was carried over.
    samples: u64,
    fresh_hits: u64,
    /// Share of real hits before the last round of splits, while it has not been judged.
    judged_against: Option<f64>,
}

impl SplitDecision {
    /// Latencies in nanoseconds; `cool_samples` between two coolings.
    pub fn new(enabled: bool, fast_ns: f64, slow_ns: f64, cool_samples: u64) -> SplitDecision {
        SplitDecision {
            enabled,
            fast_ns,
            slow_ns,
            cool_samples,
            expected_hits: 0.0,
            real_hits: 0.0,
            samples: 0,
            fresh_hits: 0,
            judged_against: None,
        }
    }

    /// Sets the samples between two coolings.
    pub fn set_cool_samples(&mut self, samples: u64) {
        self.cool_samples = samples;
    }

    /// A sample: whether it hit fast memory, and whether the page was marked as probably hot already.
    pub fn sample(&mut self, fast: bool, marked_hot: bool) {
        self.samples += 1;
        self.fresh_hits += u64::from(fast);
        self.real_hits += f64::from(u8::from(fast));
        self.expected_hits += f64::from(u8::from(marked_hot));
    }

    /// At a cooling: the blocks to split, best first. `hot_bin` is the threshold of base pages.
    pub fn decide(
        &mut self,
        heat: &Heat,
        pages: &Pages,
        hot_bin: usize,
        fast_pages: u64,
        coolings: u64,
    ) -> Vec<BlockId> {
        if !self.enabled || self.samples <= (pages.footprint_of_all() >> 2).max(fast_pages) {
            return Vec::new();
        }
        let share = self.fresh_hits as f64 / self.samples as f64;
        if self.judged_against.take().is_some_and(|before| share < before * GAIN_WANTED) {
            self.enabled = false;
            return Vec::new();
        }
        let missed = EXPECTED_DISCOUNT * self.expected_hits - self.real_hits;
        (self.samples, self.fresh_hits) = (0, 0);
        self.expected_hits /= 2.0;
        self.real_hits /= 2.0;
        if missed <= 0.0 {
            return Vec::new();
        }
        let mut by_skew: Vec<Vec<BlockId>> = vec![Vec::new(); SKEWS];
        let (mut sum_utilisation, mut huge_pages) = (0.0, 0u64);
        for (block, _) in pages.blocks().filter(|(_, info)| info.huge) {
            let unit = block.first_page();
            let Some(spot) = heat.spot(unit, pages) else { continue };
            let (mut hot_pages, mut hot_samples, mut squares) = (0u64, 0u64, 0u64);
            for page in (0..BLOCK_PAGES).map(|offset| unit.plus(offset)) {
                let value = heat.value(page, pages).max(1);
                if visible_bin(fine_bin(value)) >= hot_bin {
                    let samples = u64::from((value - 1) / SAMPLE_WEIGHT);
                    hot_pages += 1;
                    hot_samples += samples;
                    squares += samples * samples;
                }
            }
            if hot_pages == 0 {
                continue;
            }
            huge_pages += 1;
            sum_utilisation += hot_samples as f64 / f64::from(BLOCK_PAGES);
            let skew = squares / SKEW_DIVISOR / (hot_pages * hot_pages);
            if visible_bin(spot.fine) < TOO_HOT_BIN {
                by_skew[skew_index(skew)].push(block);
            }
        }
        if huge_pages == 0 || sum_utilisation <= 0.0 {
            return Vec::new();
        }
        let mean = sum_utilisation / huge_pages as f64;
        let cooled = self.cool_samples.checked_shr(coolings.saturating_sub(1).min(63) as u32).unwrap_or(0);
        let records = (2 * self.cool_samples - cooled).max(1) as f64;
        let split_pages = missed * sum_utilisation / records / mean * (self.slow_ns - self.fast_ns) / self.fast_ns
            * f64::from(BLOCK_PAGES)
            * SPLIT_FACTOR;
        let wanted = (split_pages / f64::from(BLOCK_PAGES)).ceil().max(0.0) as usize;
        let chosen: Vec<BlockId> = by_skew[1..].iter().rev().flatten().copied().take(wanted).collect();
        if !chosen.is_empty() {
            self.judged_against = Some(share);
        }
        chosen
    }

    /// Whether splitting is still on.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }
}

/// 0 for no skew, 1 to 10 by bit length below 1024, above that 11 and one more for each further 1024, up to 20.
fn skew_index(skew: u64) -> usize {
    if skew < 1024 { (u64::BITS - skew.leading_zeros()) as usize } else { 11 + ((skew / 1024 - 1) as usize).min(9) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::{SpaceId, TierId, Vpn};

    #[test]
    fn skew_indices() {
        let check = |skew, index| assert_eq!(skew_index(skew), index, "skew {skew}");
        [(0, 0), (1, 1), (2, 2), (1023, 10), (1024, 11), (2047, 11), (2048, 12), (1 << 30, 20)]
            .into_iter()
            .for_each(|(skew, index)| check(skew, index));
    }

    /// Two huge slow pages: one with 40 samples on a single page, one with 40 spread over 40.
    fn two_huge_pages() -> (Heat, Pages) {
        let mut pages = Pages::new();
        let blocks = pages.map(SpaceId(0), Vpn(0)..Vpn(1024));
        let mut heat = Heat::new(true);
        heat.fit(&pages);
        for block in blocks {
            pages.set_huge(block, true);
            for offset in 0..512 {
                pages.set_tier(block.first_page().plus(offset), Some(TierId(1)));
            }
            for sample in 0..40 {
                let page = if block == BlockId(0) { 3 } else { sample * 7 };
                heat.sample(block.first_page().plus(page), &mut pages);
            }
        }
        (heat, pages)
    }

    #[test]
    fn the_most_skewed_page_is_split_and_only_while_that_pays() {
        let (heat, pages) = two_huge_pages();
        let mut decision = SplitDecision::new(true, 80.0, 270.0, 100);
        (0..400).for_each(|sample| decision.sample(sample % 40 == 0, true));
        let chosen = decision.decide(&heat, &pages, 9, 300, 1);
        assert_eq!(chosen.first(), Some(&BlockId(0)));
        (0..400).for_each(|sample| decision.sample(sample % 40 == 0, true));
        assert!(
            decision.decide(&heat, &pages, 9, 300, 2).is_empty() && !decision.is_enabled(),
            "no more hits than before"
        );
    }

    #[test]
    fn nothing_is_split_while_fast_memory_serves_what_base_pages_would() {
        let (heat, pages) = two_huge_pages();
        let mut decision = SplitDecision::new(true, 80.0, 270.0, 100);
        for _ in 0..400 {
            decision.sample(true, true);
        }
        assert!(decision.decide(&heat, &pages, 9, 300, 1).is_empty());
    }
}
