//! MEMTIS's control of the sampling periods: the sampler may use so much of one processor, and its periods follow.
//!
//! In: processor time the sampler used. Out: the periods. Must not: guess the time; while nobody reports it the periods stay.
//!
//! Source: MEMTIS code (specification section 6): every 15 s the sampler's share of a processor is compared with a quota of 30
//! permil; more than 5 above steps both periods up one entry of their lists, more than 5 below steps them down. The
//! exponential mean of that code never takes effect there, and is left out here.

use std::time::Duration;

use terrace_core::policy::SamplePeriods;
use terrace_core::units::Time;

/// Load periods, primes all.
pub const LOAD_PERIODS: [u32; 30] = [
    199, 293, 401, 499, 599, 701, 797, 907, 997, 1201, 1399, 1601, 1801, 1999, 2503, 3001, 3499, 4001, 4507, 4999,
    6007, 7001, 7993, 9001, 10007, 12007, 13999, 16001, 17989, 19997,
];
/// Store periods.
pub const STORE_PERIODS: [u32; 5] = [100_003, 300_007, 600_011, 1_000_003, 1_500_003];
/// The store period before the first step.
pub const FIRST_STORE_PERIOD: u32 = 100_007;
/// How far from the quota the share may be, in permil.
const SLACK_PERMIL: u64 = 5;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct PeriodControl {
    quota_permil: u64,
    window: Duration,
    loads_at: usize,
    /// `None` until the first step.
    stores_at: Option<usize>,
    spent: Duration,
    began: Option<Time>,
}

impl PeriodControl {
    /// A control that holds the sampler to `quota_permil` thousandths of a processor; 0 holds it to nothing.
    pub fn new(quota_permil: u64, window: Duration) -> PeriodControl {
        PeriodControl { quota_permil, window, loads_at: 0, stores_at: None, spent: Duration::ZERO, began: None }
    }

    /// The sampler used so much processor time.
    pub fn spend(&mut self, now: Time, spent: Duration) {
        self.spent += spent;
        let began = *self.began.get_or_insert(now);
        let elapsed = now.since(began);
        if elapsed < self.window || self.quota_permil == 0 {
            return;
        }
        let permil = (self.spent.as_nanos() * 1000 / elapsed.as_nanos().max(1)) as u64;
        if permil > self.quota_permil + SLACK_PERMIL {
            self.loads_at = (self.loads_at + 1).min(LOAD_PERIODS.len() - 1);
            self.stores_at = Some((self.stores_at.unwrap_or(0) + 1).min(STORE_PERIODS.len() - 1));
        } else if permil + SLACK_PERMIL < self.quota_permil {
            self.loads_at = self.loads_at.saturating_sub(1);
            self.stores_at = self.stores_at.map(|at| at.saturating_sub(1));
        }
        (self.began, self.spent) = (Some(now), Duration::ZERO);
    }

    /// The periods now.
    pub fn periods(&self) -> SamplePeriods {
        SamplePeriods {
            loads: LOAD_PERIODS[self.loads_at],
            stores: self.stores_at.map_or(FIRST_STORE_PERIOD, |at| STORE_PERIODS[at]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_step_up_above_the_quota_down_below_it_and_rest_near_it() {
        let check = |permils: &[u64], loads: u32, stores: u32| {
            let mut control = PeriodControl::new(30, Duration::from_secs(15));
            let mut now = Time::ZERO;
            control.spend(now, Duration::ZERO);
            for permil in permils {
                now = now + Duration::from_secs(15);
                control.spend(now, Duration::from_millis(15 * permil));
            }
            assert_eq!(control.periods(), SamplePeriods { loads, stores }, "{permils:?}");
        };
        check(&[], 199, 100_007);
        check(&[30, 35, 25], 199, 100_007);
        check(&[36], 293, 300_007);
        check(&[100, 100, 10], 293, 300_007);
        check(&[100; 40], 19997, 1_500_003);
        check(&[10; 3], 199, 100_007);
    }
}
