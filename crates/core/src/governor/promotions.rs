//! How much comes back: promotions of a program in a minute, as a share of the pages it uses.
//!
//! In: returns of a program, and how many pages it uses. Out: the rate of each minute, whether its page-outs are stopped for it, by what its idle
//! times should be longer; the rate that 98 of 100 minutes stay within. Must not: count a minute in which the program slept.
//!
//! Source: Lagar-Cavilla et al., Software-Defined Far Memory in Warehouse-Scale Computers, ASPLOS 2019, section 4.2: the promotion rate, pages that are
//! brought back in a minute over the working set, whose 98th percentile is held at 0.2 % a minute. The paper looks for the cold age that would have
//! held it in the past; here the minute is over as soon as it has had its share, and the idle time doubles for it and shrinks slowly.

use std::time::Duration;

use crate::units::Time;

const MINUTE: Duration = Duration::from_secs(60);
/// Idle times grow by no more, as with returns that cost too much.
const PATIENCE_MAX: f64 = 32.0;
/// What a minute within half of the bound leaves of the patience.
const EASES: f64 = 0.9;
/// Bins of rates: none, and eight to each doubling from a millionth on.
const BINS: usize = 162;
const LEAST: f64 = 1e-6;
const BINS_OF_DOUBLING: f64 = 8.0;
/// The percentile that is held.
const PERCENTILE: f64 = 0.98;

/// One program's promotions.
#[derive(Clone, Debug)]
pub(super) struct Promotions {
    minute: Option<Time>,
    returns: u64,
    stopped: bool,
    patience: f64,
}

impl Promotions {
    pub(super) fn new() -> Promotions {
        Promotions { minute: None, returns: 0, stopped: false, patience: 1.0 }
    }

    /// A page came back.
    pub(super) fn on_return(&mut self) {
        self.returns += 1;
    }

    /// The program uses this number of pages now. Returns the rate of the minute that is over, if one is.
    pub(super) fn judge(&mut self, now: Time, used: u64, most: Option<f64>) -> Option<f64> {
        let minute = *self.minute.get_or_insert(now);
        let rate = self.returns as f64 / used.max(1) as f64;
        self.stopped |= most.is_some_and(|most| rate > most);
        let over = now.since(minute);
        if over < MINUTE {
            return None;
        }
        if let Some(most) = most {
            match () {
                () if rate > most => self.patience = (self.patience * 2.0).min(PATIENCE_MAX),
                () if rate < most / 2.0 => self.patience = (self.patience * EASES).max(1.0),
                () => {}
            }
        }
        (self.minute, self.returns, self.stopped) = (Some(now), 0, false);
        Some(rate)
    }

    /// Whether the minute has had its share.
    pub(super) fn stops(&self) -> bool {
        self.stopped
    }

    /// The factor by which idle times should be longer.
    pub(super) fn patience(&self) -> f64 {
        self.patience
    }
}

/// The rates of all minutes of all programs.
#[derive(Clone, Debug)]
pub(super) struct Rates {
    counts: [u64; BINS],
}

impl Default for Rates {
    fn default() -> Rates {
        Rates { counts: [0; BINS] }
    }
}

impl Rates {
    pub(super) fn add(&mut self, rate: f64) {
        let bin = if rate < LEAST { 0 } else { 1 + ((rate / LEAST).log2() * BINS_OF_DOUBLING) as usize };
        self.counts[bin.min(BINS - 1)] += 1;
    }

    /// The rate that 98 of 100 minutes stayed within, to a tenth of it; `None` before the first minute.
    pub(super) fn percentile(&self) -> Option<f64> {
        let all: u64 = self.counts.iter().sum();
        let within = (all as f64 * PERCENTILE).ceil() as u64;
        let mut sum = 0;
        let bin = self.counts.iter().position(|count| {
            sum += count;
            all > 0 && sum >= within
        })?;
        Some(if bin == 0 { 0.0 } else { LEAST * (bin as f64 / BINS_OF_DOUBLING).exp2() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::ZERO + Duration::from_secs(100 + second)
    }

    #[test]
    fn a_minute_is_over_when_it_has_had_its_share_and_patience_grows() {
        let mut promotions = Promotions::new();
        let most = Some(0.002);
        assert_eq!(promotions.judge(at(0), 10_000, most), None);
        (0..20).for_each(|_| promotions.on_return());
        assert_eq!(promotions.judge(at(1), 10_000, most), None);
        assert!(!promotions.stops(), "20 of 10,000 are what is allowed");
        promotions.on_return();
        promotions.judge(at(2), 10_000, most);
        assert!(promotions.stops());
        assert_eq!(promotions.judge(at(60), 10_000, most), Some(0.0021));
        assert_eq!((promotions.stops(), promotions.patience()), (false, 2.0));
        assert_eq!(promotions.judge(at(120), 10_000, most), Some(0.0));
        assert_eq!(promotions.patience(), 1.8);
        // Without a bound it is only told.
        (0..5000).for_each(|_| promotions.on_return());
        assert_eq!(promotions.judge(at(180), 10_000, None), Some(0.5));
        assert_eq!((promotions.stops(), promotions.patience()), (false, 1.8));
    }

    #[test]
    fn the_percentile_is_that_of_a_sorted_list_to_a_tenth() {
        let mut rates = Rates::default();
        assert_eq!(rates.percentile(), None);
        (0..97).for_each(|_| rates.add(0.0));
        (0..3).for_each(|_| rates.add(0.001));
        let found = rates.percentile().unwrap();
        assert!((0.001..0.0011).contains(&found), "{found}");
        (0..100).for_each(|_| rates.add(0.0));
        assert_eq!(rates.percentile(), Some(0.0), "three of 200 lie above");
        let mut full = Rates::default();
        full.add(1.0);
        full.add(1e9);
        assert!(full.percentile().unwrap() >= 1.0);
    }
}
