//! Room for new pages, made before they come.
//!
//! In: allocations as they happen. Out: how many fast pages should be free, and what a new page is worth. Must not: choose who leaves.
//!
//! `headroom = allocations a second * the time it takes to make as much room`, at least two batches of the mover and at most an eighth of
//! fast memory. The rate is the larger of a mean with a half-life of 1 s and half the largest of the last 10 s. After 5 s without an
//! allocation nothing is kept free.

use std::time::Duration;

use terrace_core::units::Time;

use super::Terrace;
use super::exchange::Market;
use super::settings::Signal;
use super::state::State;

/// Half-life of the mean rate.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// How long the largest rate is remembered: its half-life.
const PEAK_HALF_LIFE: Duration = Duration::from_secs(10);
/// Without an allocation for so long no room is kept.
const QUIET: Duration = Duration::from_secs(5);
/// Time over which allocations are counted before they enter the rate.
const STEP: Duration = Duration::from_millis(50);
/// At most one part in this many of fast memory is kept free.
const MOST: u64 = 8;
/// Lines of 64 bytes in a page.
const LINES: f64 = 64.0;

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocations {
    counted: u64,
    since: Option<Time>,
    latest: Option<Time>,
    /// Pages a second.
    rate: f64,
    peak: f64,
}

impl Allocations {
    /// Takes in the number of pages allocated now.
    pub(super) fn note(&mut self, now: Time, pages: u64) {
        self.step(now);
        self.counted += pages;
        self.latest = Some(now);
        self.since.get_or_insert(now);
    }

    fn step(&mut self, now: Time) {
        let Some(since) = self.since else { return };
        let span = now.since(since);
        if span < STEP {
            return;
        }
        let seconds = span.as_secs_f64();
        let seen = std::mem::take(&mut self.counted) as f64 / seconds;
        let keep = 0.5f64.powf(seconds / HALF_LIFE.as_secs_f64());
        self.rate = self.rate * keep + seen * (1.0 - keep);
        self.peak = (self.peak * 0.5f64.powf(seconds / PEAK_HALF_LIFE.as_secs_f64())).max(self.rate);
        self.since = Some(now);
    }

    /// Fast pages to keep free, where the mover takes `page_ns` of the machine's time to make room for one, acts `lag` after it is asked,
    /// and moves batches of `batch` pages.
    pub(super) fn headroom(&mut self, now: Time, page_ns: f64, lag: Duration, batch: u64, fast: u64) -> u64 {
        self.step(now);
        match self.latest {
            Some(latest) if now.since(latest) < QUIET => {}
            _ => return 0,
        }
        let rate = self.rate.max(self.peak / 2.0);
        // While room is made for one page, others come: the sum of that series, where the mover is the faster one.
        let busy = (rate * page_ns / 1e9).min(0.9);
        let wanted = rate * lag.as_secs_f64() / (1.0 - busy);
        (wanted.ceil() as u64).max(2 * batch).min(fast / MOST)
    }
}

impl Terrace {
    /// What a new page is worth. Where pages are sampled and nobody counts what stores reach, samples do not tell that it is written: each line of
    /// it once, by the kernel before it gives the page out, or by the program.
    pub(super) fn newborn_value(&self, market: &Market) -> f64 {
        let unseen = !self.counted && self.pace.signal() == Signal::Samples && market.rate > 0.0;
        let written = if unseen { LINES / market.rate } else { 0.0 };
        f64::from(self.table.value(State::newborn(false))) + written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_follows_the_rate_is_bounded_and_goes_when_nothing_is_allocated() {
        let mut allocations = Allocations::default();
        let at = |millis: u64| Time::ZERO + Duration::from_millis(millis);
        let lag = Duration::from_millis(100);
        assert_eq!(allocations.headroom(at(0), 1000.0, lag, 4, 100_000), 0, "nothing was allocated yet");
        for millis in 0..5000 {
            allocations.note(at(millis), 1);
        }
        // 1000 a second for 100 ms.
        let wanted = allocations.headroom(at(5000), 1000.0, lag, 4, 100_000);
        assert!((90..130).contains(&wanted), "{wanted}");
        assert_eq!(allocations.headroom(at(5000), 1000.0, lag, 4, 80), 10, "an eighth of fast memory");
        assert_eq!(allocations.headroom(at(9000), 1000.0, Duration::ZERO, 4, 100_000), 8, "two batches");
        assert_eq!(allocations.headroom(at(10_001), 1000.0, lag, 4, 100_000), 0, "quiet");
    }
}
