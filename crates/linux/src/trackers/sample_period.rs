//! How often to sample: the control that keeps hardware sampling within a share of one CPU.
//!
//! In: how much CPU time the reading of samples took. Out: the periods to sample with. Must not: read a clock.
//!
//! The rule and the lists are MEMTIS' (SOSP'23, constants of its published kernel): every 15 s the share is
//! compared with a quota of 3 %; above it by 0.5 points both periods go up one step, below it by as much they go down one.

use std::time::Duration;

use terrace_core::policy::SamplePeriods;
use terrace_core::units::Time;

/// Periods of loads that missed the last-level cache. Primes, so that loops do not beat with them.
pub const LOAD_PERIODS: [u32; 30] = [
    199, 293, 401, 499, 599, 701, 797, 907, 997, 1201, 1399, 1601, 1801, 1999, 2503, 3001, 3499, 4001, 4507, 4999,
    6007, 7001, 7993, 9001, 10007, 12007, 13999, 16001, 17989, 19997,
];

/// Periods of retired stores, cache hits included.
pub const STORE_PERIODS: [u32; 5] = [100_003, 300_007, 600_011, 1_000_003, 1_500_003];

/// The period stores start with, below the list's first.
pub const FIRST_STORE_PERIOD: u32 = 100_007;

/// The control.
#[derive(Clone, Debug)]
pub struct PeriodControl {
    quota: f64,
    load_step: usize,
    store_step: usize,
    started: bool,
    /// The finest steps allowed: what the policy asked for.
    floor: (usize, usize),
    window_start: Option<Time>,
    cpu_in_window: Duration,
}

impl PeriodControl {
    /// The share of one CPU that sampling may take.
    pub const DEFAULT_QUOTA: f64 = 0.03;
    /// How far from the quota the share may be without a step.
    pub const SLACK: f64 = 0.005;
    /// Time between steps.
    pub const INTERVAL: Duration = Duration::from_secs(15);

    /// Starts at the finest periods, 199 loads and 100,007 stores, with a quota as a share of one CPU.
    pub fn new(quota: f64) -> PeriodControl {
        PeriodControl {
            quota,
            load_step: 0,
            store_step: 0,
            started: false,
            floor: (0, 0),
            window_start: None,
            cpu_in_window: Duration::ZERO,
        }
    }

    /// The periods now.
    pub fn periods(&self) -> SamplePeriods {
        let stores = if self.started { STORE_PERIODS[self.store_step] } else { FIRST_STORE_PERIOD };
        SamplePeriods { loads: LOAD_PERIODS[self.load_step], stores }
    }

    /// Goes no finer than these periods from now on.
    pub fn set_floor(&mut self, wanted: SamplePeriods) {
        let step =
            |list: &[u32], wanted: u32| list.iter().position(|&period| period >= wanted).unwrap_or(list.len() - 1);
        // The first store period is not in the list, but it is practically 100,003.
        let stores = if wanted.stores <= FIRST_STORE_PERIOD { 0 } else { step(&STORE_PERIODS, wanted.stores) };
        self.floor = (step(&LOAD_PERIODS, wanted.loads), stores);
        (self.load_step, self.store_step) = (self.load_step.max(self.floor.0), self.store_step.max(self.floor.1));
        self.started |= self.store_step > 0;
    }

    /// Counts CPU time that sampling took until `now`. Returns new periods when they change.
    pub fn spent(&mut self, now: Time, cpu: Duration) -> Option<SamplePeriods> {
        self.cpu_in_window += cpu;
        let start = *self.window_start.get_or_insert(now);
        let window = now.since(start);
        if window < PeriodControl::INTERVAL {
            return None;
        }
        let share = self.cpu_in_window.as_secs_f64() / window.as_secs_f64();
        self.window_start = Some(now);
        self.cpu_in_window = Duration::ZERO;
        let before = self.periods();
        if share > self.quota + PeriodControl::SLACK {
            self.load_step = (self.load_step + 1).min(LOAD_PERIODS.len() - 1);
            self.store_step = (self.store_step + 1).min(STORE_PERIODS.len() - 1);
            self.started = true;
        } else if share < self.quota - PeriodControl::SLACK && self.started {
            self.load_step = self.load_step.saturating_sub(1).max(self.floor.0);
            self.store_step = self.store_step.saturating_sub(1).max(self.floor.1);
        }
        (self.periods() != before).then(|| self.periods())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs windows in which sampling takes `cpu(periods)` of a CPU; returns the shares of the last 30.
    fn run(control: &mut PeriodControl, windows: usize, cpu: impl Fn(SamplePeriods) -> f64) -> Vec<f64> {
        let mut now = control.window_start.unwrap_or_default();
        control.spent(now, Duration::ZERO);
        let mut shares = Vec::new();
        for _ in 0..windows {
            let share = cpu(control.periods());
            now = now + PeriodControl::INTERVAL;
            control.spent(now, PeriodControl::INTERVAL.mul_f64(share));
            shares.push(share);
        }
        shares.split_off(windows - 30)
    }

    #[test]
    fn the_first_periods_are_the_finest() {
        let control = PeriodControl::new(PeriodControl::DEFAULT_QUOTA);
        assert_eq!(control.periods(), SamplePeriods { loads: 199, stores: 100_007 });
    }

    #[test]
    fn the_share_settles_at_the_quota() {
        let mut control = PeriodControl::new(0.03);
        // 10 M missed loads a second, 100 ns of reading each: 0.5 of a CPU at a period of 2.
        let shares = run(&mut control, 200, |periods| 1e7 / f64::from(periods.loads) * 1e-6);
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!((0.02..0.04).contains(&mean), "{mean}: {:?}", control.periods());
    }

    #[test]
    fn steps_are_taken_only_every_15_s_and_only_outside_the_slack() {
        let mut control = PeriodControl::new(0.03);
        let second = |s: u64| Time::from_nanos(s * 1_000_000_000);
        assert_eq!(control.spent(second(0), Duration::ZERO), None);
        assert_eq!(control.spent(second(14), Duration::from_secs(9)), None);
        assert_eq!(control.spent(second(15), Duration::ZERO), Some(SamplePeriods { loads: 293, stores: 300_007 }));
        for (at, permille) in [(30, 34), (45, 26)] {
            let cpu = Duration::from_millis(15 * permille);
            assert_eq!(control.spent(second(at), cpu), None, "{permille} permille is within the slack");
        }
        assert_eq!(
            control.spent(second(60), Duration::from_millis(15 * 24)),
            Some(SamplePeriods { loads: 199, stores: 100_003 })
        );
    }

    #[test]
    fn idle_sampling_goes_no_finer_than_the_policy_asked() {
        let mut control = PeriodControl::new(0.03);
        control.set_floor(SamplePeriods { loads: 10_000, stores: 200_000 });
        run(&mut control, 100, |_| 0.0);
        assert_eq!(control.periods(), SamplePeriods { loads: 10_007, stores: 300_007 });
        run(&mut control, 100, |_| 1.0);
        assert_eq!(control.periods(), SamplePeriods { loads: 19_997, stores: 1_500_003 });
    }
}
