//! The arbiter: divides one budget among classes that together want more than it holds.
//!
//! In: a budget (pages of fast memory, bytes per second of moves, microseconds of processor time per second) and the claim of each class.
//! Out: one grant per claim, in sum at most the budget. Must not: know what the budget consists of, read a clock, or keep anything but the
//! smoothed activity that a caller asks for.
//!
//! The rule is weighted max-min fairness (Bertsekas and Gallager, Data Networks, 2nd ed. 1992, section 6.5.2), in three steps: floors
//! first; then what each class uses, by weight; then what it wants beyond that, by weight. Use comes before wishes, so an idle class gives
//! back what it does not use as soon as another needs it. The level rises for all at once, so no class can be starved: a class always gets
//! its share by weight of what the floors leave, whatever the others claim.

use std::time::Duration;

use crate::units::Time;

/// The claim of one class on a budget. All amounts are in the budget's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its weight against the others, 1 to [`Claim::MAX_WEIGHT`].
    pub weight: u32,
    /// It gets this much before anything else is divided.
    pub floor: u64,
    /// It never gets more than this. If the ceiling is below the floor, the ceiling holds and the floor is cut to it.
    pub ceiling: u64,
    /// What it uses: its active pages, its recent traffic.
    pub using: u64,
    /// What it would take if it could: its footprint.
    pub wanted: u64,
}

impl Claim {
    /// The largest weight. One class may count 10,000 times as much as another, as with cgroup v2's weights.
    pub const MAX_WEIGHT: u32 = 10_000;

    fn weight(&self) -> u128 {
        u128::from(self.weight.clamp(1, Claim::MAX_WEIGHT))
    }
}

/// Divides `budget`: one grant per claim, in their order.
///
/// The grants never exceed the budget in sum; no grant exceeds its claim's ceiling; floors are met where the budget covers them all, and
/// otherwise divided by weight; nothing of the budget stays unused while a class wants more.
pub fn share_out(budget: u64, claims: &[Claim]) -> Vec<u64> {
    let zero = vec![0; claims.len()];
    let floors: Vec<u64> = claims.iter().map(|claim| claim.floor.min(claim.ceiling)).collect();
    if floors.iter().map(|floor| u128::from(*floor)).sum::<u128>() > u128::from(budget) {
        return raise(budget, claims, &zero, &floors);
    }
    let up_to = |amount: fn(&Claim) -> u64, at_least: &[u64]| -> Vec<u64> {
        claims.iter().zip(at_least).map(|(claim, least)| amount(claim).min(claim.ceiling).max(*least)).collect()
    };
    let using = up_to(|claim| claim.using, &floors);
    let granted = raise(budget, claims, &floors, &using);
    let wanted = up_to(|claim| claim.wanted, &granted);
    raise(budget, claims, &granted, &wanted)
}

/// Fractional bits of the level, so that it is fine enough for the smallest weight.
const LEVEL_BITS: u32 = 16;

/// Raises one level for all until the budget is used up: each gets the level times its weight, but no less than `low` and
/// no more than `high`.
fn raise(budget: u64, claims: &[Claim], low: &[u64], high: &[u64]) -> Vec<u64> {
    let at = |level: u128| -> Vec<u64> {
        let each = claims.iter().zip(low.iter().zip(high));
        each.map(|(claim, (&low, &high))| {
            let share = (level * claim.weight()) >> LEVEL_BITS;
            u64::try_from(share).unwrap_or(u64::MAX).clamp(low, high.max(low))
        })
        .collect()
    };
    let fits = |grants: &[u64]| grants.iter().map(|grant| u128::from(*grant)).sum::<u128>() <= u128::from(budget);
    // At this level even a weight of one has reached the largest amount.
    let (mut reached, mut beyond) = (0u128, 1u128 << (64 + LEVEL_BITS));
    if fits(&at(beyond)) {
        return at(beyond);
    }
    while beyond - reached > 1 {
        let middle = reached + (beyond - reached) / 2;
        if fits(&at(middle)) {
            reached = middle;
        } else {
            beyond = middle;
        }
    }
    // Between the two levels no grant grows by more than one, since a weight is less than one step: the rest goes in order.
    let (mut grants, next) = (at(reached), at(beyond));
    let mut left = u128::from(budget).saturating_sub(grants.iter().map(|grant| u128::from(*grant)).sum());
    for (grant, next) in grants.iter_mut().zip(next) {
        if left > 0 && next > *grant {
            *grant += 1;
            left -= 1;
        }
    }
    grants
}

/// The smoothed use of a class: it rises at once and halves in [`Activity::HALF_LIFE`], so that a class does not lose its memory in a short
/// pause.
#[derive(Clone, Copy, Debug, Default)]
pub struct Activity {
    level: f64,
    at: Option<Time>,
}

impl Activity {
    /// Long enough for pauses of a service between requests, short enough that an idle class has given back nine tenths after two minutes.
    /// Chosen, not measured: docs/operations.md describes its effect.
    pub const HALF_LIFE: Duration = Duration::from_secs(35);

    /// Adds a reading, and returns what counts as in use now.
    pub fn update(&mut self, now: Time, seen: u64) -> u64 {
        let elapsed = self.at.map_or(Duration::ZERO, |then| now.since(then));
        self.level *= 0.5f64.powf(elapsed.as_secs_f64() / Activity::HALF_LIFE.as_secs_f64());
        self.level = self.level.max(seen as f64);
        self.at = Some(now);
        self.level.ceil() as u64
    }
}

/// A budget that can be saved up, to a limit. It bounds Terrace's own processor time: an idle period pays for a later burst, and the mean
/// still holds.
#[derive(Clone, Debug)]
pub struct Allowance {
    share: f64,
    depth: Duration,
    /// Seconds saved up; negative in debt.
    saved: f64,
    at: Option<Time>,
}

impl Allowance {
    /// `share` seconds per second, with at most `depth` saved up. It starts full.
    pub fn new(share: f64, depth: Duration) -> Allowance {
        Allowance { share, depth, saved: share * depth.as_secs_f64(), at: None }
    }

    /// Changes the share. The savings stay, as far as the depth allows.
    pub fn set_share(&mut self, now: Time, share: f64) {
        self.fill(now);
        self.share = share;
        self.saved = self.saved.min(share * self.depth.as_secs_f64());
    }

    /// The share.
    pub fn share(&self) -> f64 {
        self.share
    }

    /// Records time spent, even beyond the savings.
    pub fn spend(&mut self, now: Time, spent: Duration) {
        self.fill(now);
        self.saved -= spent.as_secs_f64();
    }

    /// When work may go on: `now`, or when the debt is paid.
    pub fn ready(&mut self, now: Time) -> Time {
        self.fill(now);
        if self.saved >= 0.0 {
            return now;
        }
        // A share of zero never pays the debt: ask again later, since the share may change.
        let wait = if self.share > 0.0 { (-self.saved / self.share).min(3600.0) } else { 3600.0 };
        now + Duration::from_secs_f64(wait.max(0.001))
    }

    fn fill(&mut self, now: Time) {
        let elapsed = self.at.map_or(Duration::ZERO, |then| now.since(then));
        self.at = Some(now);
        self.saved = (self.saved + elapsed.as_secs_f64() * self.share).min(self.share * self.depth.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(weight: u32, floor: u64, using: u64, wanted: u64) -> Claim {
        Claim { weight, floor, ceiling: u64::MAX, using, wanted }
    }

    #[test]
    fn plenty_gives_everyone_what_it_wants() {
        assert_eq!(share_out(1000, &[claim(1, 0, 10, 100), claim(9, 50, 0, 300)]), [100, 300]);
    }

    #[test]
    fn want_is_shared_by_weight_and_what_one_leaves_goes_to_the_others() {
        assert_eq!(share_out(900, &[claim(1, 0, 1000, 1000), claim(2, 0, 1000, 1000)]), [300, 600]);
        assert_eq!(share_out(900, &[claim(1, 0, 1000, 1000), claim(2, 0, 100, 100)]), [800, 100]);
    }

    #[test]
    fn floors_come_first_and_are_shared_by_weight_when_they_do_not_fit() {
        assert_eq!(share_out(1000, &[claim(1, 700, 800, 900), claim(1, 0, 900, 900)]), [700, 300]);
        assert_eq!(share_out(300, &[claim(1, 700, 0, 0), claim(2, 700, 0, 0)]), [100, 200]);
    }

    #[test]
    fn an_idle_class_gives_back_what_an_active_one_needs() {
        let idle = claim(100, 50, 0, 1000);
        assert_eq!(share_out(1000, &[idle, claim(100, 0, 900, 900)]), [100, 900]);
        assert_eq!(share_out(1000, &[idle, claim(100, 0, 2000, 2000)]), [50, 950], "to its floor, not below");
    }

    #[test]
    fn a_ceiling_holds_against_a_floor() {
        let both = Claim { weight: 1, floor: 500, ceiling: 200, using: 900, wanted: 900 };
        assert_eq!(share_out(1000, &[both, claim(1, 0, 0, 300)]), [200, 300]);
    }

    #[test]
    fn activity_rises_at_once_and_falls_by_half() {
        let mut activity = Activity::default();
        let start = Time::ZERO + Duration::from_secs(10);
        assert_eq!(activity.update(start, 1000), 1000);
        assert_eq!(activity.update(start + Activity::HALF_LIFE, 0), 500);
        assert_eq!(activity.update(start + Activity::HALF_LIFE, 700), 700);
    }

    #[test]
    fn the_mean_of_what_is_spent_holds_whatever_the_bursts() {
        let mut allowance = Allowance::new(0.02, Duration::from_secs(60));
        let (mut now, mut spent) = (Time::ZERO, Duration::ZERO);
        let end = now + Duration::from_secs(6000);
        let mut turn = 0u64;
        while now < end {
            let cost = Duration::from_millis(1 + turn * 37 % 400);
            allowance.spend(now, cost);
            spent += cost;
            now = allowance.ready(now).max(now + cost);
            turn += 1;
        }
        let share = spent.as_secs_f64() / 6000.0;
        // The 60 s saved up at the start allow 1.2 s extra, and one item of at most 0.4 s goes into debt.
        assert!((0.0195..=0.0203).contains(&share), "{share} of a core");
    }
}
