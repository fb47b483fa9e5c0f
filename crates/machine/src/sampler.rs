//! Event sampling as a performance-monitoring unit does it: one record per period of events, and its cost.
//!
//! In: events, counted down by the driver's inner loop. Out: periods, and how many records were lost. Must not: know
//! what a record is used for.
//!
//! Facts: loads count only when they miss the last-level cache, one counter for each tier (0x01D3 local DRAM, 0x80D1 local
//! persistent memory); stores count when they retire, cache hits included (0x82D0), hence their 500 times longer period.
//! Linux holds a CPU to kernel.perf_event_max_sample_rate (100,000 a second) and drops what is above. MEMTIS holds its
//! sampling thread to 3 % of a core: every 15 s it steps both periods up one entry of its lists when it was more than
//! half a point above, down when as much below.
//!
//! On a scaled-down machine whose small pages stand for huge ones ("folded"), a page has the 512th of the accesses of what
//! it stands for. A policy's bins are made for the samples of a huge page, so each sample is taken in parts: the
//! counters run that many times faster, each record costs and weighs that much less. The counters' period is then the
//! largest whole number not above the asked one divided by the parts, and records are thinned evenly to make up the rest.

use std::time::Duration;

use terrace_core::policy::SamplePeriods;
use terrace_core::units::Time;

/// MEMTIS's load periods, from its public code.
const LOAD_PERIODS: [u32; 30] = [
    199, 293, 401, 499, 599, 701, 797, 907, 997, 1201, 1399, 1601, 1801, 1999, 2503, 3001, 3499, 4001, 4507, 4999,
    6007, 7001, 7993, 9001, 10_007, 12_007, 13_999, 16_001, 17_989, 19_997,
];
/// MEMTIS's store periods, from its public code.
const STORE_PERIODS: [u32; 5] = [100_003, 300_007, 600_011, 1_000_003, 1_500_003];
/// How often the quota is looked at.
const QUOTA_INTERVAL: Duration = Duration::from_secs(15);
/// How far from the quota the share of a core may be before the period steps, both ways.
const QUOTA_SLACK: f64 = 0.005;
/// Records a second that Linux lets one CPU take.
const MOST_RECORDS_A_SECOND: f64 = 100_000.0;

/// The sampler.
#[derive(Clone, Debug)]
pub struct Sampler {
    asked: SamplePeriods,
    steps: usize,
    quota: Option<f64>,
    record_ns: f64,
    /// Records in place of one sample.
    parts: u32,
    /// What thinning owes: parts of a sample times the period, for loads and stores.
    owed: [u64; 2],
    window_start: Time,
    window_records: u64,
    /// Records taken so far.
    pub records: u64,
    /// Records lost so far: above the rate the kernel allows.
    pub lost: u64,
}

impl Sampler {
    /// A sampler with these periods, held to `quota` of a core (MEMTIS: 0.03), at this many nanoseconds per record.
    pub fn new(periods: SamplePeriods, quota: Option<f64>, record_ns: f64, now: Time) -> Sampler {
        let asked = SamplePeriods { loads: periods.loads.max(1), stores: periods.stores.max(1) };
        Sampler {
            asked,
            steps: 0,
            quota,
            record_ns,
            parts: 1,
            owed: [0; 2],
            window_start: now,
            window_records: 0,
            records: 0,
            lost: 0,
        }
    }

    /// Splits each sample into this many parts.
    #[must_use]
    pub fn in_parts(self, parts: u32) -> Sampler {
        Sampler { parts: parts.max(1), ..self }
    }

    /// The most parts, a power of two up to 512, in which samples of this many loads can be taken.
    pub fn most_parts(loads: u32) -> u32 {
        1 << loads.clamp(1, 512).ilog2()
    }

    /// How many events the counters count to a record.
    pub fn counter_periods(&self) -> SamplePeriods {
        let periods = self.periods();
        let part = |period: u32| (period / self.parts).max(1);
        SamplePeriods { loads: part(periods.loads), stores: part(periods.stores) }
    }

    /// Whether the next record is one of those that thinning leaves.
    pub fn keeps(&mut self, store: bool) -> bool {
        let (periods, counters) = (self.periods(), self.counter_periods());
        let (period, counter) = if store { (periods.stores, counters.stores) } else { (periods.loads, counters.loads) };
        let owed = &mut self.owed[usize::from(store)];
        *owed += u64::from(counter) * u64::from(self.parts);
        let keeps = *owed >= u64::from(period);
        if keeps {
            *owed -= u64::from(period);
        }
        keeps
    }

    /// Nanoseconds a record takes.
    pub fn record_nanos(&self) -> f64 {
        self.record_ns / f64::from(self.parts)
    }

    /// The periods in force: those asked for, stepped up as the quota demands.
    pub fn periods(&self) -> SamplePeriods {
        SamplePeriods {
            loads: stepped(self.asked.loads, &LOAD_PERIODS, self.steps),
            stores: stepped(self.asked.stores, &STORE_PERIODS, self.steps),
        }
    }

    /// Asks for other periods. Steps taken so far stay.
    pub fn ask(&mut self, periods: SamplePeriods) {
        self.asked = SamplePeriods { loads: periods.loads.max(1), stores: periods.stores.max(1) };
    }

    /// How many of `records` that all cores together took within `span` nanoseconds are kept; the rest is lost.
    pub fn admit(&mut self, records: u64, cores: u32, span_ns: f64) -> u64 {
        // A stretch shorter than a tick of the kernel's accounting is held to the tick's allowance.
        let most =
            (MOST_RECORDS_A_SECOND * f64::from(self.parts) * f64::from(cores) * (span_ns / 1e9).max(0.001)) as u64;
        let kept = records.min(most.max(1));
        self.records += kept;
        self.window_records += kept;
        self.lost += records - kept;
        kept
    }

    /// Looks at the quota if its interval is over. `scale` is how many times faster than the clock of `now` real time
    /// runs in the model. Returns whether the periods changed.
    pub fn adapt(&mut self, now: Time, scale: u32) -> bool {
        let Some(quota) = self.quota else { return false };
        let span = now.since(self.window_start);
        if span < QUOTA_INTERVAL {
            return false;
        }
        let nanos = span.as_nanos() as f64 / f64::from(scale);
        let share = self.window_records as f64 * self.record_nanos() / nanos;
        (self.window_start, self.window_records) = (now, 0);
        let before = self.steps;
        if share > quota + QUOTA_SLACK {
            self.steps = (self.steps + 1).min(LOAD_PERIODS.len() - 1);
        } else if share < quota - QUOTA_SLACK {
            self.steps = self.steps.saturating_sub(1);
        }
        self.steps != before
    }
}

/// The period `steps` entries up the list from `asked`.
fn stepped(asked: u32, list: &[u32], steps: usize) -> u32 {
    if steps == 0 {
        return asked;
    }
    let at = list.partition_point(|&period| period <= asked);
    list[(at + steps - 1).min(list.len() - 1)].max(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMTIS: SamplePeriods = SamplePeriods { loads: 199, stores: 100_007 };

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn the_period_steps_until_the_quota_holds_and_back() {
        let mut sampler = Sampler::new(MEMTIS, Some(0.03), 200.0, at(0));
        assert_eq!(sampler.periods(), MEMTIS);
        // 1 % of a core is 50,000 records a second of 200 ns: 6 % at period 199, and half at double the period.
        let mut now = 0;
        for _ in 0..20 {
            let rate = 300_000.0 * 199.0 / f64::from(sampler.periods().loads);
            sampler.admit((rate * 15.0) as u64, 24, 15e9);
            now += 15;
            sampler.adapt(at(now), 1);
        }
        let loads = sampler.periods().loads;
        assert!((293..=499).contains(&loads), "{loads}");
        for _ in 0..20 {
            now += 15;
            sampler.adapt(at(now), 1);
        }
        assert_eq!(sampler.periods(), MEMTIS, "idle: back to what was asked");
    }

    #[test]
    fn parts_keep_the_rate_of_samples_to_the_record() {
        let check = |periods: SamplePeriods, parts: u32| {
            let mut sampler = Sampler::new(periods, None, 200.0, at(0)).in_parts(parts);
            let counter = sampler.counter_periods();
            let kept = |sampler: &mut Sampler, store, events: u64, counter: u32| {
                (0..events / u64::from(counter)).filter(|_| sampler.keeps(store)).count() as u64
            };
            let events = u64::from(periods.stores) * 10;
            for (store, period, counter) in
                [(false, periods.loads, counter.loads), (true, periods.stores, counter.stores)]
            {
                let records = kept(&mut sampler, store, events, counter);
                let wanted = events / u64::from(period) * u64::from(parts);
                assert!(records.abs_diff(wanted) <= u64::from(parts), "{periods:?} in {parts}: {records} of {wanted}");
            }
            assert!((sampler.record_nanos() * f64::from(parts) - 200.0).abs() < 1e-9);
        };
        assert_eq!([199, 5000, 1, 300].map(Sampler::most_parts), [128, 512, 1, 256]);
        check(MEMTIS, 128);
        check(SamplePeriods { loads: 5000, stores: 5000 }, 512);
        check(SamplePeriods { loads: 293, stores: 300_007 }, 128);
        check(MEMTIS, 1);
    }

    #[test]
    fn records_above_the_kernels_rate_are_lost_and_counted() {
        let mut sampler = Sampler::new(MEMTIS, None, 200.0, at(0));
        assert_eq!(sampler.admit(5_000_000, 24, 1e9), 2_400_000);
        assert_eq!((sampler.records, sampler.lost), (2_400_000, 2_600_000));
        assert!(!sampler.adapt(at(1000), 1), "no quota, no stepping");
    }
}
