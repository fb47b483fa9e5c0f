//! The micro-benchmark: a program with the same accesses, migrations and arithmetic as an interval of another (section 3.2).
//!
//! In: a configuration vector, and how large fast memory is. Out: how many pages of which array are accessed how often, how
//! many move, and how much is computed: the one definition that all executors carry out. Must not: run or cost anything.
//!
//! Equations 1 to 4, literally:
//!
//! - (1) `pacc_f' = pacc_f - pm_de * 1`: each demoted page is accessed once.
//! - (2) `pacc_s' = pacc_s - pm_pr * hot_thr`: each promoted page is accessed up to the threshold.
//! - (3) `NP_fast = pacc_f' / hot_thr`, (4) `NP_slow = pacc_s' / (hot_thr - 1)`: pages accessed too seldom to be promoted.
//!
//! Where the paper leaves open what to do, this is done:
//!
//! - Equation 3 divides by `hot_thr`, the prose says that its pages are accessed `hot_thr - 1` times. [`FastDivisor`]
//!   chooses; the equation is the default, with `hot_thr` accesses a page.
//! - A program makes more accesses in 2.5 s than its memory has pages times the threshold, so the pages of (1) to (4) are often
//!   more than the resident size holds. The pages that are accessed over and over are then shrunk to what those that move leave
//!   of it, and each is visited so much more often: the accesses stay what they were. Pages that move take up to half of it; a
//!   page that was promoted can be demoted and the other way round, so that there may be more moves than pages, but no more
//!   promotions than there are pages to promote and demotions that make more, nor more demotions than the other way round.
//! - With a share `s` of the resident size `R` fast, the slow array is `(1-s)*R` pages, for both arrays together are `R`. It
//!   holds the pages that are accessed slow and are promoted, as far as it has room; if it has more room than they need,
//!   first what nobody accesses, then pages of the fast array, whose accesses become slow ones. With everything
//!   fast there is no slow array and nothing moves, as the paper's baseline has it.

use crate::vector::{ConfigVector, VectorError};

/// What equation 3 divides by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FastDivisor {
    /// `hot_thr`, as the equation has it.
    #[default]
    Threshold,
    /// `hot_thr - 1`, as the prose has it.
    BelowThreshold,
}

/// What a benchmark with a fast memory of a given size does. Counts are of the whole program, pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Benchmark {
    /// Resident pages: both arrays, and what is touched once and never again.
    pub resident_pages: u64,
    /// Pages accessed in fast memory over and over.
    pub fast_pages: u64,
    /// Accesses of each visit to one of them.
    pub fast_accesses_a_visit: u32,
    /// Accesses to them.
    pub fast_accesses: u64,
    /// Pages accessed in slow memory over and over, too seldom to be promoted.
    pub slow_pages: u64,
    /// Accesses of each visit to one of them.
    pub slow_accesses_a_visit: u32,
    /// Accesses to them.
    pub slow_accesses: u64,
    /// Pages of the fast array that had to lie in slow memory.
    pub overflow_pages: u64,
    /// Accesses to them, by visits like those of the fast pages.
    pub overflow_accesses: u64,
    /// Pages that are promoted: distinct ones, and how often one of them is.
    pub promoted_pages: u64,
    /// Promotions.
    pub promotions: u64,
    /// Accesses that precede a promotion, each one in slow memory.
    pub accesses_a_promotion: u32,
    /// Pages that are demoted.
    pub demoted_pages: u64,
    /// Demotions, each after one access in fast memory.
    pub demotions: u64,
    /// Accesses in fast memory of pages that would be promoted, or slow, if there were slow memory.
    pub spared_accesses: u64,
    /// Arithmetic operations, evenly over the accesses.
    pub operations: u64,
    /// Threads, each with the same part of everything.
    pub threads: u32,
}

impl Benchmark {
    /// The benchmark of a vector with the share `fast_share` of its resident size in fast memory, above 0 and at most 1.
    ///
    /// # Errors
    /// When the vector cannot be that of a program.
    pub fn new(vector: &ConfigVector, fast_share: f64, divisor: FastDivisor) -> Result<Benchmark, VectorError> {
        vector.check()?;
        if !(fast_share > 0.0 && fast_share <= 1.0) {
            let wanted = "a share above 0% and at most 100%";
            return Err(VectorError { name: "fast", value: fast_share.to_string(), wanted });
        }
        let threshold = vector.hot_threshold.round();
        let visit_fast = if divisor == FastDivisor::Threshold { threshold } else { threshold - 1.0 };
        let visit_slow = threshold - 1.0;
        // Equations 1 and 2. A program may demote more than it accesses; then nothing of the accesses is left over.
        let steady_fast = (vector.fast_accesses - vector.demotions).max(0.0);
        let steady_slow = (vector.slow_accesses - vector.promotions * threshold).max(0.0);
        // Equations 3 and 4, shrunk to what is resident.
        let resident = vector.resident_pages().floor();
        // A kind that is asked for has at least a page, however small its part.
        let pages = |wanted: f64, fit: f64| if wanted > 0.0 { (wanted.ceil() * fit).floor().max(1.0) } else { 0.0 };
        let fit = (0.5 * resident / (vector.promotions + vector.demotions).max(1.0)).min(1.0);
        let (promoted, demoted) = (pages(vector.promotions, fit), pages(vector.demotions, fit));
        let steady = (steady_fast / visit_fast).ceil() + (steady_slow / visit_slow).ceil();
        let fit = ((resident - promoted - demoted).max(1.0) / steady.max(1.0)).min(1.0);
        let (fast, slow) = (pages(steady_fast / visit_fast, fit), pages(steady_slow / visit_slow, fit));
        // The slow array, what it takes of each kind, and what is left to hold.
        let room = resident - (resident * fast_share).round();
        let taken = if slow + promoted > 0.0 { (room / (slow + promoted)).min(1.0) } else { 1.0 };
        let idle = (resident - fast - slow - promoted - demoted).max(0.0);
        let overflow = (room - (slow + promoted) - idle).clamp(0.0, fast);
        let all_fast = fast_share >= 1.0 || room < 1.0;
        let taken = if all_fast { 0.0 } else { taken };
        let moved = if all_fast { 0.0 } else { taken.max(if promoted > 0.0 { 0.0 } else { 1.0 }) };
        let whole = |amount: f64| amount.round() as u64;
        let slow_accesses = whole(steady_slow * taken);
        let pages_of = |pages: f64, moves: f64| if moves > 0.0 { whole((pages * moved).max(1.0)) } else { 0 };
        let (promoted_pages, demoted_pages) = match all_fast {
            true => (0, 0),
            false => (pages_of(promoted, vector.promotions), pages_of(demoted, vector.demotions)),
        };
        let promotions = whole(vector.promotions * moved).min(promoted_pages + whole(vector.demotions * moved));
        let demotions = whole(vector.demotions * moved).min(demoted_pages + promotions);
        let promotions = promotions.min(promoted_pages + demotions);
        let overflow_accesses = if fast > 0.0 { whole(steady_fast * overflow / fast) } else { 0 };
        let total = whole(steady_fast)
            + whole(steady_slow)
            + whole(vector.promotions) * threshold as u64
            + whole(vector.demotions);
        let fast_accesses = whole(steady_fast).saturating_sub(overflow_accesses);
        let done = fast_accesses + overflow_accesses + slow_accesses + promotions * threshold as u64 + demotions;
        Ok(Benchmark {
            resident_pages: resident as u64,
            fast_pages: whole(fast - overflow),
            fast_accesses_a_visit: visit_fast as u32,
            fast_accesses,
            slow_pages: if slow_accesses > 0 { whole((slow * taken).max(1.0)) } else { 0 },
            slow_accesses_a_visit: visit_slow as u32,
            slow_accesses,
            overflow_pages: whole(overflow),
            overflow_accesses,
            promoted_pages,
            promotions,
            accesses_a_promotion: threshold as u32,
            demoted_pages,
            demotions,
            // Work is the same at every size: what is not slow here is fast.
            spared_accesses: total.saturating_sub(done),
            operations: whole(vector.intensity * (vector.fast_accesses + vector.slow_accesses)),
            threads: vector.threads.round() as u32,
        })
    }

    /// Accesses that fast memory serves.
    pub const fn accesses_in_fast(&self) -> u64 {
        self.fast_accesses + self.demotions + self.spared_accesses
    }

    /// Accesses that slow memory serves.
    pub const fn accesses_in_slow(&self) -> u64 {
        self.slow_accesses + self.overflow_accesses + self.promotions * self.accesses_a_promotion as u64
    }

    /// All accesses.
    pub const fn accesses(&self) -> u64 {
        self.accesses_in_fast() + self.accesses_in_slow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn benchmark(values: [f64; 8], share: f64) -> Benchmark {
        Benchmark::new(&ConfigVector::from_array(values), share, FastDivisor::Threshold).unwrap()
    }

    #[test]
    fn the_equations_hold_where_memory_is_large_enough() {
        // 4 GiB: 1,048,576 pages. Half of it fast.
        let b = benchmark([200_000.0, 30_000.0, 1000.0, 2000.0, 3.0, 4.0 * 1024.0 * 1024.0 * 1024.0, 3.0, 4.0], 0.5);
        // (1) 199,000 (3) 66,334 rounded up; (2) 24,000 (4) 12,000.
        assert_eq!((b.fast_accesses, b.fast_pages, b.fast_accesses_a_visit), (199_000, 66_334, 3));
        assert_eq!((b.slow_accesses, b.slow_pages, b.slow_accesses_a_visit), (24_000, 12_000, 2));
        assert_eq!((b.promotions, b.demotions, b.overflow_pages, b.spared_accesses), (2000, 1000, 0, 0));
        assert_eq!((b.accesses_in_fast(), b.accesses_in_slow()), (200_000, 30_000));
        assert_eq!((b.operations, b.threads), (690_000, 4));
    }

    #[test]
    fn with_everything_fast_nothing_is_slow_and_nothing_moves_but_the_work_is_the_same() {
        let values = [2e8, 3e6, 1000.0, 2000.0, 3.0, 1e9, 2.0, 4.0];
        let full = benchmark(values, 1.0);
        assert_eq!((full.accesses_in_slow(), full.promotions, full.demotions), (0, 0, 0));
        for percent in 1..=100 {
            let b = benchmark(values, f64::from(percent) / 100.0);
            assert!(b.accesses().abs_diff(203_000_000) <= 4, "{percent}: {}", b.accesses());
            assert_eq!(b.operations, full.operations);
            let pages = b.fast_pages + b.slow_pages + b.overflow_pages + b.promoted_pages + b.demoted_pages;
            assert!(pages <= b.resident_pages + 4, "{percent}: {pages} of {}", b.resident_pages);
        }
    }

    #[test]
    fn less_fast_memory_never_means_fewer_slow_accesses() {
        for values in [
            [2e8, 0.0, 0.0, 0.0, 3.0, 1e9, 2.0, 4.0],
            [1e5, 5e4, 100.0, 100.0, 3.0, 1e9, 4.0, 4.0],
            [2e8, 1e8, 1e5, 1e5, 3.0, 1e9, 2.0, 24.0],
        ] {
            let slow = |percent: u32| benchmark(values, f64::from(percent) / 100.0).accesses_in_slow();
            for percent in 1..100 {
                assert!(slow(percent) + 2 >= slow(percent + 1), "{values:?} at {percent} %");
            }
        }
        // Uniform accesses over all of it: a tenth less fast memory serves a tenth less.
        let b = benchmark([2e8, 0.0, 0.0, 0.0, 3.0, 1e9, 2.0, 4.0], 0.9);
        assert!((b.accesses_in_slow() as f64 / 2e8 - 0.1).abs() < 1e-3);
    }

    #[test]
    fn idle_memory_leaves_first() {
        // 20,000 pages used of 262,144: with a tenth of it fast, everything used still is.
        let b = benchmark([40_000.0, 0.0, 0.0, 0.0, 3.0, f64::from(1 << 30), 2.0, 1.0], 0.1);
        assert_eq!((b.accesses_in_slow(), b.fast_pages), (0, 20_000));
        let b = benchmark([40_000.0, 0.0, 0.0, 0.0, 3.0, f64::from(1 << 30), 2.0, 1.0], 0.05);
        assert!(b.overflow_pages > 6000 && b.accesses_in_slow() > 12_000);
    }
}
