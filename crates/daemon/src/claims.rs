//! The claims that a class makes on the arbiter, and how it applies a grant.
//!
//! In: a class's configuration and current use, and a grant. Out: its claims, and the inputs of its engine. Must not: read a clock, hold a
//! manager, or know the other classes. The same code runs in the daemon and, in virtual time, in its tests.

use terrace_core::arbiter::Claim;
use terrace_core::governor::SpaceLimits;
use terrace_core::policy::FastGoal;
use terrace_core::units::{Bytes, Quantity};
use terrace_run::spec::Goal;

use crate::config::Class;

/// A grant of the arbiter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Grant {
    /// Fast memory, in pages.
    pub fast: u64,
    /// Bytes per second that may change tier; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Share of one core.
    pub cpu: f64,
}

/// The claims of a class on each budget.
#[derive(Clone, Copy, Debug)]
pub struct Claims {
    /// Fast memory, in pages.
    pub fast: Claim,
    /// Bytes a second.
    pub bandwidth: Claim,
    /// Millionths of a core.
    pub cpu: Claim,
}

/// The current use of a class.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Pages with memory behind them, in all tiers.
    pub footprint: u64,
    /// Of these, pages in fast memory.
    pub fast: u64,
    /// Pages in the working set.
    pub active: u64,
    /// The share of its pages that the tuner keeps in fast memory, if the class is tuned.
    pub tuned: Option<f64>,
    /// Whether it is managed now. A paused class needs neither bandwidth nor processor time.
    pub works: bool,
    /// Bytes per second that changed tier recently.
    pub bandwidth_used: u64,
    /// Share of one core that it used recently.
    pub cpu_used: f64,
}

/// The inputs of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Orders {
    /// How much fast memory to keep.
    pub goal: FastGoal,
    /// The promised and the highest fast memory of the whole class.
    pub limits: SpaceLimits,
    /// Bytes per second that may change tier.
    pub rate: Option<Bytes>,
}

/// The current floor, in pages.
pub fn floor(class: &Class, footprint: u64) -> u64 {
    match (class.spec.goal, class.floor) {
        (Goal::NeverSlow, _) => footprint,
        (_, floor) => floor.of(Bytes::of_pages(footprint)).pages(),
    }
}

/// The most fast memory it may have, in pages.
fn ceiling(class: &Class) -> u64 {
    match class.spec.goal {
        Goal::NeverFast => 0,
        _ => class.ceiling.map_or(u64::MAX, Bytes::pages),
    }
}

/// A share of a footprint in whole pages, rounded up so that the class never gets less than the tuner found.
fn share_of(footprint: u64, share: f64) -> u64 {
    ((footprint as f64 * share).ceil() as u64).min(footprint)
}

/// The claims of a class: at most `bandwidth` bytes per second and `cpu` millionths of a core.
pub fn of_class(class: &Class, standing: &Standing, bandwidth: u64, cpu: u64) -> Claims {
    let weight = class.weight;
    let footprint = standing.footprint;
    let active = standing.active.min(footprint);
    let (using, wanted) = match (class.spec.goal, standing.tuned) {
        // A class with a target claims what it uses: less would break the target, and it needs no more.
        (Goal::Tuned, share) => {
            let needed = share_of(footprint, share.unwrap_or(1.0));
            (needed, needed)
        }
        (Goal::Least, _) => (active, active.max(standing.fast)),
        (Goal::Best | Goal::NeverSlow, _) => (active, footprint),
        (Goal::Fixed(amount), _) => {
            let wanted = amount.of(Bytes::of_pages(footprint)).pages().min(footprint);
            (active.min(wanted), wanted)
        }
        (Goal::NeverFast, _) => (0, 0),
    };
    let rate = |using: u64, all: u64| Claim {
        weight,
        floor: 0,
        ceiling: u64::MAX,
        using: if standing.works { using } else { 0 },
        wanted: if standing.works { all } else { 0 },
    };
    Claims {
        fast: Claim { weight, floor: floor(class, footprint).min(footprint), ceiling: ceiling(class), using, wanted },
        bandwidth: rate(standing.bandwidth_used, bandwidth),
        cpu: rate((standing.cpu_used * 1e6) as u64, cpu),
    }
}

/// The inputs of its engine for a grant.
pub fn orders(class: &Class, standing: &Standing, grant: &Grant) -> Orders {
    let footprint = standing.footprint;
    let granted = grant.fast;
    let goal = match class.spec.goal {
        Goal::Tuned => FastGoal::Pages(share_of(footprint, standing.tuned.unwrap_or(1.0)).min(granted)),
        Goal::Least if standing.fast <= granted => FastGoal::Least,
        Goal::Least => FastGoal::Pages(granted),
        Goal::Best => FastGoal::Pages(granted),
        Goal::Fixed(Quantity::Share(share)) if (footprint as f64 * share) as u64 <= granted => FastGoal::Share(share),
        Goal::Fixed(amount) => FastGoal::Pages(amount.of(Bytes::of_pages(footprint)).pages().min(granted)),
        Goal::NeverSlow => FastGoal::Pages(u64::MAX),
        Goal::NeverFast => FastGoal::Pages(0),
    };
    let floor = match class.spec.goal {
        Goal::NeverSlow => u64::MAX,
        _ => floor(class, footprint),
    };
    let rate = grant.bandwidth.map(|rate| Bytes::new(rate.max(1)));
    Orders { goal, limits: SpaceLimits { floor, ceiling: ceiling(class) }, rate }
}

/// Whether two goals differ by more than a hundredth and one MiB. A new goal makes the policy plan again. A tuner takes steps of one
/// hundredth and waits for each to take effect: for these a quarter of the difference is enough.
pub fn differs(old: FastGoal, new: FastGoal, tuned: bool) -> bool {
    match (old, new) {
        // The tuner paces page-outs by small steps. Many at once would cause the loss that it avoids.
        (FastGoal::Pages(old), FastGoal::Pages(new)) if tuned => {
            old.abs_diff(new) > (old / 400).min(Bytes::mib(4).pages())
        }
        (FastGoal::Pages(old), FastGoal::Pages(new)) => old.abs_diff(new) > (old / 100).max(Bytes::mib(1).pages()),
        (old, new) => old != new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Source};

    fn class(keys: &str) -> Class {
        let text = format!("[class.a]\nmatch = [{{ pid = 1 }}]\n{keys}\n");
        Config::of(&[Source { name: "test".to_owned(), text }]).unwrap().classes.remove(0)
    }

    const STANDING: Standing = Standing {
        footprint: 10_000,
        fast: 6_000,
        active: 2_000,
        tuned: None,
        works: true,
        bandwidth_used: 0,
        cpu_used: 0.0,
    };

    #[test]
    fn each_goal_asks_for_what_it_says() {
        let fast = |keys: &str, standing: &Standing| {
            let fast = of_class(&class(keys), standing, 0, 0).fast;
            (fast.floor, fast.using, fast.wanted, fast.ceiling)
        };
        assert_eq!(fast("goal = \"least\"", &STANDING), (0, 2_000, 6_000, u64::MAX));
        assert_eq!(fast("goal = \"best\"\nfloor = \"10%\"", &STANDING), (1_000, 2_000, 10_000, u64::MAX));
        assert_eq!(fast("goal = \"10%\"", &STANDING), (0, 1_000, 1_000, u64::MAX));
        assert_eq!(fast("goal = \"never-slow\"", &STANDING), (10_000, 2_000, 10_000, u64::MAX));
        assert_eq!(fast("goal = \"never-fast\"", &STANDING), (0, 0, 0, 0));
        let tuned = Standing { tuned: Some(0.35), ..STANDING };
        assert_eq!(fast("goal = \"tuned\"", &tuned), (0, 3_500, 3_500, u64::MAX));
    }

    #[test]
    fn a_grant_bounds_every_goal_but_a_promise() {
        let goal = |keys: &str, standing: &Standing, fast: u64| {
            orders(&class(keys), standing, &Grant { fast, ..Grant::default() }).goal
        };
        let tuned = Standing { tuned: Some(0.35), ..STANDING };
        assert_eq!(goal("goal = \"least\"", &STANDING, 7_000), FastGoal::Least);
        assert_eq!(goal("goal = \"least\"", &STANDING, 5_000), FastGoal::Pages(5_000));
        assert_eq!(goal("goal = \"tuned\"", &tuned, 9_000), FastGoal::Pages(3_500));
        assert_eq!(goal("goal = \"tuned\"", &tuned, 3_000), FastGoal::Pages(3_000));
        assert_eq!(goal("goal = \"50%\"", &STANDING, 7_000), FastGoal::Share(0.5));
        assert_eq!(goal("goal = \"50%\"", &STANDING, 4_000), FastGoal::Pages(4_000));
        assert_eq!(goal("goal = \"never-slow\"", &STANDING, 10), FastGoal::Pages(u64::MAX));
        assert_eq!(goal("goal = \"never-fast\"", &STANDING, 9_000), FastGoal::Pages(0));
    }

    #[test]
    fn what_is_paused_asks_for_memory_only() {
        let paused = Standing { works: false, bandwidth_used: 1 << 20, cpu_used: 0.01, ..STANDING };
        let claims = of_class(&class("goal = \"best\""), &paused, 1 << 30, 20_000);
        assert_eq!((claims.bandwidth.wanted, claims.cpu.wanted, claims.fast.wanted), (0, 0, 10_000));
    }
}
