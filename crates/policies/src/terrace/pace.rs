//! How long an interval is, and how densely it is watched.
//!
//! In: observations, time that watching took. Out: when the interval ends, and a [`Cadence`]. Must not: look at a page.
//!
//! An interval ends when an eighth of an observation a unit is in, after 100 ms at least, and after 10 s if it is a sixteenth; a program of
//! which less is seen ages nothing. An allocation is an observation: a program that loads its data has intervals too. Watching takes its
//! share of a processor and no more: the sampling period is steered by the time the sampler says it took, when an interval ends and where none does for ten
//! seconds; the period of walks by the time they took.
//!
//! Pages are walked every 100 ms, where that share allows it, and an interval ends with a walk. A bit says once what an access did, and
//! nothing of those after it: a second after the last walk a busy program has used nearly all its pages, and all look the same.

use std::time::Duration;

use terrace_core::policy::{Cadence, HintScan, SamplePeriods};
use terrace_core::units::Time;

use super::settings::{Options, Signal};

const SHORTEST: Duration = Duration::from_millis(100);
/// The shortest where it goes by time.
const BY_TIME: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(10);
/// Observations a unit and interval, and after the longest interval.
const WANTED: f64 = 0.125;
const LEAST: f64 = 1.0 / 16.0;
/// Longest interval whose moves are planned for: a mover busy for longer would act on old news.
const LONGEST_PLAN: Duration = Duration::from_secs(2);
/// Accesses a sample, at first and at the limits. Below 512 a scaled-down machine could not take a sample in as many parts.
const FIRST_PERIOD: u32 = 2503;
const LEAST_PERIOD: u32 = 512;
const MOST_PERIOD: u32 = 1 << 20;
/// How many times rarer stores are sampled than loads: most retired stores hit a cache.
const STORES_RARER: u32 = 8;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    signal: Signal,
    fixed: Option<Duration>,
    fixed_period: bool,
    share: f64,
    with_stores: bool,
    interval: Duration,
    began: Time,
    /// When it is next looked whether the interval is over.
    look: Time,
    observations: u64,
    period: u32,
    sampled: Duration,
    /// When the period was last steered.
    steered: Time,
    walk: Duration,
    walked: bool,
    pages: u64,
    by_time: bool,
}

impl Pace {
    /// A pace for this signal.
    pub(super) fn new(signal: Signal, options: &Options) -> Pace {
        Pace {
            signal,
            fixed: options.interval,
            fixed_period: options.period.is_some(),
            share: options.cpu,
            with_stores: options.stores,
            interval: options.interval.unwrap_or(SHORTEST),
            began: Time::ZERO,
            look: Time::ZERO,
            observations: 0,
            period: options.period.unwrap_or(FIRST_PERIOD),
            sampled: Duration::ZERO,
            steered: Time::ZERO,
            walk: Duration::ZERO,
            walked: false,
            pages: 0,
            by_time: false,
        }
    }

    /// Whether intervals end after a second, whatever was seen: where pages only leave, that nobody uses them is what counts.
    pub(super) fn go_by_time(&mut self, by_time: bool) {
        self.by_time = by_time;
    }

    /// What the trackers serve.
    pub(super) fn signal(&self) -> Signal {
        self.signal
    }

    /// A unit was observed.
    pub(super) fn observe(&mut self) {
        self.observations += 1;
    }

    /// The sampler took so long.
    pub(super) fn sampler_took(&mut self, spent: Duration) {
        self.sampled += spent;
    }

    /// A walk of all pages is done, and took so long.
    pub(super) fn walk_took(&mut self, spent: Duration) {
        self.walk = spent;
        self.walked = true;
    }

    /// When the interval may end.
    pub(super) fn ends(&self) -> Time {
        self.look
    }

    /// Whether the interval is over. Where pages are walked, it ends with a walk.
    pub(super) fn is_over(&mut self, now: Time, units: u64) -> bool {
        let looked = match self.signal {
            Signal::AccessedBits => std::mem::take(&mut self.walked),
            Signal::Samples | Signal::HintFaults => now >= self.look,
        };
        if !looked {
            return false;
        }
        let (elapsed, seen) = (now.since(self.began), self.observations as f64 / units.max(1) as f64);
        let enough = seen >= WANTED || elapsed >= LONGEST && seen >= LEAST;
        let over = self.fixed.is_some() || self.by_time || enough && elapsed >= SHORTEST;
        if !over {
            // Where a sampler sees too little of a program to end an interval, it would otherwise stay so.
            if now.since(self.steered) >= LONGEST {
                self.steer_period(now);
            }
            self.look = now + self.apart();
        }
        over
    }

    /// How long an interval is taken to be when moves are planned.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// How long the interval that ends now was.
    pub(super) fn elapsed(&self, now: Time) -> Duration {
        now.since(self.began).max(Duration::from_millis(1))
    }

    /// The next interval begins.
    pub(super) fn begin(&mut self, now: Time, units: u64) {
        let elapsed = self.elapsed(now);
        self.steer_period(now);
        self.interval =
            self.fixed.unwrap_or(elapsed.clamp(SHORTEST, if self.by_time { LONGEST } else { LONGEST_PLAN }));
        (self.began, self.observations, self.pages) = (now, 0, units);
        self.look = now + self.apart();
    }

    /// From one look to the next: whether the interval is over, or at accessed bits.
    fn apart(&self) -> Duration {
        let share = match self.signal {
            Signal::AccessedBits => Duration::from_secs_f64((self.walk.as_secs_f64() / self.share).min(600.0)),
            Signal::Samples | Signal::HintFaults => Duration::ZERO,
        };
        self.fixed.unwrap_or(share.max(if self.by_time { BY_TIME } else { SHORTEST }))
    }

    fn steer_period(&mut self, now: Time) {
        let elapsed = now.since(self.steered).max(Duration::from_millis(1));
        self.steered = now;
        if self.sampled.is_zero() || self.signal != Signal::Samples {
            return;
        }
        let over = self.sampled.as_secs_f64() / elapsed.as_secs_f64() / self.share;
        // Within a quarter of the budget it stays.
        if !self.fixed_period && !(0.75..=1.25).contains(&over) {
            let period = f64::from(self.period) * over.clamp(0.5, 2.0);
            self.period = (period as u32).clamp(LEAST_PERIOD, MOST_PERIOD);
        }
        self.sampled = Duration::ZERO;
    }

    fn stores(&self) -> u32 {
        if self.with_stores { self.period * STORES_RARER } else { u32::MAX }
    }

    /// When and how to look.
    pub(super) fn cadence(&self) -> Cadence {
        match self.signal {
            Signal::Samples => Cadence {
                sampling: Some(SamplePeriods { loads: self.period, stores: self.stores() }),
                ..Cadence::default()
            },
            Signal::AccessedBits => Cadence { scan_at: Some(self.ends()), share: 1.0, ..Cadence::default() },
            Signal::HintFaults => {
                // All pages once in ten intervals: a fault costs the program about a microsecond.
                let step = Duration::from_millis(100);
                let steps = (10.0 * self.interval.as_secs_f64() / step.as_secs_f64()).max(1.0);
                let window_pages = ((self.pages as f64 / steps).ceil() as u64).max(1);
                Cadence {
                    hint_scan: Some(HintScan { window_pages, period: step, tiers: u8::MAX }),
                    ..Cadence::default()
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;

    fn pace(signal: Signal) -> Pace {
        Pace::new(signal, &Options::new(&mut Settings::default().for_policy(&crate::terrace::INFO)).unwrap())
    }

    #[test]
    fn an_interval_follows_the_observations() {
        let mut pace = pace(Signal::Samples);
        let mut now = Time::ZERO;
        // How long until 1000 units are seen an eighth of a time each, with a given number of observations each 100 ms.
        let mut pass = |pace: &mut Pace, observations: u64| {
            let began = now;
            while now.since(began) < Duration::from_secs(60) {
                now = pace.ends().max(now + Duration::from_millis(1));
                (0..observations).for_each(|_| pace.observe());
                if pace.is_over(now, 1000) {
                    pace.begin(now, 1000);
                    break;
                }
            }
            now.since(began).as_millis()
        };
        pass(&mut pace, 1000);
        assert_eq!([1000, 125, 62, 12].map(|seen| pass(&mut pace, seen)), [100, 100, 300, 1100]);
        assert_eq!(pass(&mut pace, 1), 10_000, "a tenth of an observation each, and no more waiting");
        assert!(pass(&mut pace, 0) >= 60_000, "what is not seen at all does not age");
    }

    #[test]
    fn sampling_takes_its_share_of_a_processor() {
        let mut pace = pace(Signal::Samples);
        let mut now = Time::ZERO;
        // A sampler of which each sample takes 200 ns, at 1.2 billion accesses a second.
        for _ in 0..40 {
            let span = pace.interval();
            now = now + span;
            let samples = 12e8 * span.as_secs_f64() / f64::from(pace.period);
            pace.sampler_took(Duration::from_secs_f64(samples * 200e-9));
            pace.begin(now, 1);
        }
        let share = 12e8 / f64::from(pace.period) * 200e-9;
        assert!((0.021..0.0393).contains(&share), "{share}");
    }

    #[test]
    fn a_sampler_that_sees_too_little_to_end_an_interval_looks_closer_all_the_same() {
        let mut pace = pace(Signal::Samples);
        pace.begin(Time::ZERO, 1 << 20);
        for second in 1..=40 {
            pace.sampler_took(Duration::from_micros(100));
            assert!(!pace.is_over(Time::ZERO + Duration::from_secs(second), 1 << 20));
        }
        assert_eq!(pace.period, LEAST_PERIOD);
    }

    #[test]
    fn walks_are_as_far_apart_as_their_share_demands() {
        let mut pace = pace(Signal::AccessedBits);
        let at = |millis: u64| Time::ZERO + Duration::from_millis(millis);
        let walked = |pace: &mut Pace, millis: u64, seen: u64, took: u64| {
            (0..seen).for_each(|_| pace.observe());
            pace.walk_took(Duration::from_millis(took));
            let over = pace.is_over(at(millis), 1000);
            if over {
                pace.begin(at(millis), 1000);
            }
            (over, pace.ends())
        };
        (0..1000).for_each(|_| pace.observe());
        assert!(!pace.is_over(at(5000), 1000), "until a walk is done");
        pace.begin(at(5000), 1000);
        assert_eq!(walked(&mut pace, 5100, 1000, 1), (true, at(5200)), "100 ms apart at least");
        assert_eq!(walked(&mut pace, 5200, 1000, 150), (true, at(10_200)), "3 % of a processor");
        assert_eq!(walked(&mut pace, 10_200, 100, 1), (false, at(10_300)), "a tenth of an observation a page");
        assert_eq!(walked(&mut pace, 10_300, 25, 1), (true, at(10_400)), "both walks together");
        assert_eq!(walked(&mut pace, 40_000, 1, 1), (false, at(40_100)), "an idle program ages nothing");
    }
}
