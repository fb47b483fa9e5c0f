//! Sweeps: a program touches most of its memory, again and again, as crawlers, collectors of garbage and backups do.
//!
//! In: how much left and came back, and what the latter costs, in each stretch of time. Out: for how long a page must be idle at least. Must not:
//! act on a sweep that was the first, or on one that the bound pays for.
//!
//! What a sweep alone touches is idle until the next one. It leaves, and comes back all at once: the program pays for both, and nothing is saved. One
//! sweep says nothing of the future, since a program may read everything once. With the second the period is known. If a sweep costs more than half of what
//! the bound affords in a period, pages stay that are idle for less than [`LONGER`] periods; what no sweep touches still leaves. Sweeps cannot be seen while
//! what they touch stays. So after some periods it may leave once more; each sweep that then comes doubles the wait.

use std::time::Duration;

use super::{GovernorConfig, Pressure};

/// A sweep is over when for so long what came back cost less than the bound.
const QUIET: Duration = Duration::from_secs(5);
/// A sweep brings back this part of what was out at least.
const MOST: f64 = 0.5;
/// What comes back in a sweep costs more than the bound affords in so long; less is a busy moment.
const LEAST: Duration = Duration::from_secs(20);
/// Sweeps farther apart are taken for unrelated.
const LONGEST_PERIOD: Duration = Duration::from_secs(900);
/// Periods for which a page must be idle: sweeps do not come on the second.
const LONGER: f64 = 1.25;
/// Periods until what sweeps touch may leave once more, and how often that doubles.
const WAIT: u32 = 8;
const DOUBLINGS: u32 = 6;

/// What came back since it began to cost more than the bound. Times are since the program is managed.
#[derive(Clone, Copy, Debug)]
struct Burst {
    began: Duration,
    out: f64,
    back: f64,
    cost: f64,
    quiet: Duration,
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Sweeps {
    managed: Duration,
    /// Pages that left and did not come back.
    out: u64,
    burst: Option<Burst>,
    last: Option<Duration>,
    period: Option<Duration>,
    until: Duration,
    times: u32,
}

impl Sweeps {
    /// A page left.
    pub(super) fn on_demoted(&mut self) {
        self.out += 1;
    }

    /// A page came back.
    pub(super) fn on_returned(&mut self) {
        self.out = self.out.saturating_sub(1);
    }

    /// Takes the cost of a stretch of time, at whose end `on_returned` was called for what came back in it.
    pub(super) fn on_pressure(&mut self, pressure: &Pressure, config: &GovernorConfig) {
        let began = self.managed;
        self.managed += pressure.window;
        let affordable = |span: Duration| config.max_slowdown * span.as_secs_f64() * pressure.cores.max(1.0);
        let back = pressure.refaults as f64;
        let cost = back * (config.refault_cost + pressure.page_out_cost).as_secs_f64();
        let dear = cost > affordable(pressure.window);
        match &mut self.burst {
            None if dear => {
                self.burst = Some(Burst { began, out: self.out as f64 + back, back, cost, quiet: Duration::ZERO });
            }
            None => {}
            Some(burst) => {
                burst.back += back;
                burst.cost += cost;
                burst.quiet = if dear { Duration::ZERO } else { burst.quiet + pressure.window };
            }
        }
        let Some(burst) = self.burst.take_if(|burst| burst.quiet >= QUIET) else { return };
        if burst.back < MOST * burst.out || burst.cost < affordable(LEAST) {
            return;
        }
        let apart = self.last.replace(burst.began).map(|last| burst.began - last);
        let period = apart.into_iter().chain(self.period).min().filter(|period| *period <= LONGEST_PERIOD);
        if let Some(period) = period.filter(|period| burst.cost > affordable(*period) / 2.0) {
            self.period = Some(period);
            self.until = self.managed + period * (WAIT << self.times.min(DOUBLINGS));
            self.times += 1;
        }
    }

    /// The time between sweeps that the bound does not pay for, once it is known.
    pub(super) fn period(&self) -> Option<Duration> {
        self.period
    }

    /// For how long a page must be idle before it leaves; zero where no sweep forbids it.
    pub(super) fn least_idle(&self) -> Duration {
        let period = self.period.filter(|_| self.managed < self.until);
        period.map_or(Duration::ZERO, |period| period.mul_f64(LONGER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 100_000;

    fn second(sweeps: &mut Sweeps, refaults: u64) {
        (0..refaults).for_each(|_| sweeps.on_returned());
        let pressure = Pressure {
            window: Duration::from_secs(1),
            refaults,
            page_out_cost: Duration::from_micros(8),
            ..Pressure::default()
        };
        sweeps.on_pressure(&pressure, &GovernorConfig::default());
    }

    /// A period in which everything leaves, and this many pages come back at its end within two seconds.
    fn period(sweeps: &mut Sweeps, seconds: u64, back: u64) {
        (0..back).for_each(|_| sweeps.on_demoted());
        (2..seconds).for_each(|_| second(sweeps, 0));
        (0..2).for_each(|_| second(sweeps, back / 2));
    }

    #[test]
    fn a_program_that_sweeps_keeps_what_is_idle_for_less_than_a_period() {
        let mut sweeps = Sweeps::default();
        period(&mut sweeps, 60, PAGES);
        (0..6).for_each(|_| second(&mut sweeps, 0));
        assert_eq!(sweeps.least_idle(), Duration::ZERO, "once is no habit");
        period(&mut sweeps, 54, PAGES);
        (0..6).for_each(|_| second(&mut sweeps, 0));
        assert_eq!((sweeps.least_idle(), sweeps.period()), (Duration::from_secs(75), Some(Duration::from_secs(60))));
        // After eight periods it is tried once more, and the next sweep doubles the wait.
        (0..8 * 60).for_each(|_| second(&mut sweeps, 0));
        assert_eq!(sweeps.least_idle(), Duration::ZERO);
        period(&mut sweeps, 60, PAGES);
        (0..6).for_each(|_| second(&mut sweeps, 0));
        (0..15 * 60).for_each(|_| second(&mut sweeps, 0));
        assert_eq!(sweeps.least_idle(), Duration::from_secs(75));
        (0..60).for_each(|_| second(&mut sweeps, 0));
        assert_eq!(sweeps.least_idle(), Duration::ZERO);
    }

    #[test]
    fn what_the_bound_pays_for_and_what_is_a_small_part_is_no_sweep() {
        let mut rare = Sweeps::default();
        // 1.3 s of cost in 10 minutes are 0.2 %.
        (0..3).for_each(|_| period(&mut rare, 600, PAGES));
        (0..6).for_each(|_| second(&mut rare, 0));
        assert_eq!(rare.least_idle(), Duration::ZERO);
        let mut part = Sweeps::default();
        (0..4 * PAGES).for_each(|_| part.on_demoted());
        (0..3).for_each(|_| period(&mut part, 60, PAGES));
        (0..6).for_each(|_| second(&mut part, 0));
        assert_eq!(part.least_idle(), Duration::ZERO, "a fourth of what is out");
    }
}
