//! The adaptive scan interval, shared by policies that read accessed bits.
//!
//! In: what a round amounted to. Out: how long to wait until the next. Must not: know what the marks are used for.
//!
//! An accessed bit is one bit, so a round tells most when neither none nor all of the bits are set. With zipf 1.2 and
//! 1 s nearly half of all pages are touched and the mark saturates; between 5 % and 40 % it tells hot from cold (measured,
//! docs/performance.md). Clearing costs both sides time, so where nothing changes the interval grows.

use std::time::Duration;

use terrace_core::policy::ScanReport;

/// Accessed share below which the interval grows.
pub const ACCESSED_LOW: f64 = 0.05;
/// Accessed share above which the interval shrinks.
pub const ACCESSED_HIGH: f64 = 0.40;

/// How long to wait between rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveInterval {
    current: Duration,
    least: Duration,
    most: Duration,
    fixed: bool,
}

impl AdaptiveInterval {
    /// Starts at `start` and stays within `least` and `most`.
    pub fn new(start: Duration, least: Duration, most: Duration) -> AdaptiveInterval {
        AdaptiveInterval { current: start.clamp(least, most), least, most, fixed: false }
    }

    /// Never changes.
    pub fn fixed(interval: Duration) -> AdaptiveInterval {
        AdaptiveInterval { current: interval, least: interval, most: interval, fixed: true }
    }

    /// The interval now.
    pub fn current(&self) -> Duration {
        self.current
    }

    /// Takes in a round of pages in memory that can be marked. `footprint` is what the accessed share is taken of:
    /// pages that left fast memory count as not accessed, or a well-managed program would look saturated.
    pub fn adapt(&mut self, round: &ScanReport, footprint: u64) {
        if self.fixed || round.pages == 0 || footprint == 0 {
            return;
        }
        let accessed = round.accessed as f64 / (footprint as f64 * round.share).max(1.0);
        let factor = if accessed > ACCESSED_HIGH {
            0.8
        } else if accessed < ACCESSED_LOW {
            1.25
        } else {
            1.0
        };
        // A walk may not take more than a fiftieth of the time between two.
        let floor = (round.walk * 50).min(self.most);
        self.current = self.current.mul_f64(factor).max(floor).clamp(self.least, self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(accessed: u64) -> ScanReport {
        ScanReport { pages: 1000, accessed, walk: Duration::from_millis(1), share: 1.0 }
    }

    #[test]
    fn the_interval_follows_the_accessed_share_into_its_band() {
        // Pages touched grow with the interval, as under zipf; the interval settles where the share is in the band.
        let mut interval =
            AdaptiveInterval::new(Duration::from_secs(8), Duration::from_millis(250), Duration::from_secs(60));
        let touched = |interval: Duration| (1000.0 * (1.0 - (-interval.as_secs_f64() / 4.0).exp())) as u64;
        for _ in 0..50 {
            interval.adapt(&round(touched(interval.current())), 1000);
        }
        let share = touched(interval.current()) as f64 / 1000.0;
        assert!((ACCESSED_LOW..=ACCESSED_HIGH).contains(&share), "settled at {share}");
    }

    #[test]
    fn an_idle_program_is_looked_at_ever_more_rarely_up_to_the_bound() {
        let mut interval =
            AdaptiveInterval::new(Duration::from_secs(1), Duration::from_millis(250), Duration::from_secs(10));
        for _ in 0..50 {
            interval.adapt(&round(0), 1000);
        }
        assert_eq!(interval.current(), Duration::from_secs(10));
    }

    #[test]
    fn a_long_walk_stretches_the_interval() {
        let mut interval =
            AdaptiveInterval::new(Duration::from_millis(250), Duration::from_millis(250), Duration::from_secs(60));
        interval.adapt(&ScanReport { pages: 1000, accessed: 200, walk: Duration::from_millis(100), share: 1.0 }, 1000);
        assert_eq!(interval.current(), Duration::from_secs(5));
    }
}
