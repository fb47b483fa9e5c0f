//! The governor: between what a policy wishes and what is done stands what is allowed.
//!
//! In: wishes, the room there is, and what earlier moves turned out to cost. Out: the moves of the next plan, and
//! a count of every veto. Must not: rank pages, or let a wish through that breaks a limit.
//!
//! Bounds: capacity of the destination, the limit of fast memory, a rate (token bucket), floors and ceilings per
//! space, rest for pages that went out and came straight back. Feedback: page-outs stop while refaults cost the
//! program more than its budget, and when the slow tier is nearly full or stores nothing in less; the idle time a
//! policy should wait for grows while mistakes cost more than half the budget, and shrinks again below a quarter of it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::pages::{Page, Pages};
use crate::plan::{Action, Move, Reason, Veto, Wish};
use crate::policy::TierUse;
use crate::units::{Bytes, SpaceId, TierId, Time};

/// Bounds and budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct GovernorConfig {
    /// Most bytes a second that may change tier; `None` for no bound.
    pub rate: Option<Bytes>,
    /// Most pages of one plan: the mover returns to the loop after so many.
    pub batch_pages: u64,
    /// How long a page stays where it is after a move; four times longer for each time it came straight back.
    pub rest: Duration,
    /// A page that comes back sooner than this after it was demoted was demoted by mistake: it was away for no longer than it
    /// had been idle before.
    pub mistake_window: Duration,
    /// Share of the program's time that refaults may cost before page-outs stop, 0 to 1.
    pub stall_budget: f64,
    /// What one refault costs the program. 5 us is a random 4 KiB fault on lz4 zram, as measured (docs/performance.md).
    pub refault_cost: Duration,
    /// Page-outs stop while the slow tier stores data in more than 1/this of its size: compression that saves little.
    pub least_compression: f64,
}

impl Default for GovernorConfig {
    fn default() -> GovernorConfig {
        GovernorConfig {
            rate: None,
            batch_pages: 4096,
            rest: Duration::from_secs(10),
            mistake_window: Duration::from_secs(20),
            stall_budget: 0.02,
            refault_cost: Duration::from_micros(5),
            least_compression: 1.2,
        }
    }
}

impl GovernorConfig {
    /// The longest rest: 64 times as long, which a page that keeps coming back gets, must fit 16 bits of seconds.
    pub const LONGEST_REST: Duration = Duration::from_secs(600);

    /// The same with another rest, and with the time within which a return shows a mistake longer or shorter in proportion: both
    /// say how fast the program is taken to change its mind.
    pub fn with_rest(self, rest: Duration) -> GovernorConfig {
        let factor = rest.as_secs_f64() / self.rest.as_secs_f64();
        let mistake_window = if factor.is_finite() { self.mistake_window.mul_f64(factor) } else { self.mistake_window };
        GovernorConfig { rest, mistake_window, ..self }
    }
}

/// How much fast memory a space is promised, and how much it may have, in 4 KiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceLimits {
    /// Demotion stops when the space has only so many fast pages.
    pub floor: u64,
    /// Promotion stops when the space has so many.
    pub ceiling: u64,
}

/// What the surroundings say of the moves so far, over the last stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// How long the stretch was.
    pub window: Duration,
    /// Pages the program waited for because they had left fast memory.
    pub refaults: u64,
    /// Share of the stretch in which tasks waited for memory, from pressure-stall information, 0 to 1; `None` if unknown.
    pub stall_share: Option<f64>,
    /// Stored size over original size inverted: how many bytes one byte of the slow tier holds; `None` if it does not compress.
    pub compression: Option<f64>,
}

/// Why page-outs are stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Brake {
    /// Refaults cost the program more than its budget.
    Refaults,
    /// The slow tier hardly compresses what it is given.
    Compression,
}

impl Brake {
    /// The cause as reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            Brake::Refaults => "refaults",
            Brake::Compression => "compression",
        }
    }
}

/// What the governor lets through at one call.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// The moves granted, in the order of the wishes.
    pub moves: Vec<Move>,
    /// The wishes that were not granted, with the reason, in their order.
    pub vetoed: Vec<(Wish, Veto)>,
    /// How many wishes from the front were dealt with, granted or vetoed; the rest waits for the rate.
    pub consumed: usize,
    /// When the rate allows the next one, if it is the rate that stopped the admission.
    pub wait_until: Option<Time>,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Governor {
    config: GovernorConfig,
    /// The unit of the 16 bits in which a page keeps when it moved.
    tick: Duration,
    limits: BTreeMap<SpaceId, SpaceLimits>,
    total_limits: Option<SpaceLimits>,
    bucket: TokenBucket,
    brake: Option<Brake>,
    stall: f64,
    patience: f64,
    demoted: f64,
    mistakes: f64,
    vetoes: BTreeMap<Veto, u64>,
}

/// Half-life of the stall estimate: long enough to ride out one burst, short enough to stop a wrong decision.
const STALL_HALF_LIFE: Duration = Duration::from_secs(2);
/// Half-life of the mistake ratio.
const MISTAKE_HALF_LIFE: Duration = Duration::from_secs(30);
/// Below this share of mistakes among the demotions, refaults are the program's change of mind and not impatience.
const MISTAKES_WANTED: f64 = 0.05;
const PATIENCE_MAX: f64 = 32.0;
/// Patience doubles and halves in this time, and no faster: what left tells its cost over the next minute, and whoever acts
/// sooner on it acts on old news. (With a tenth of it a load that reads even its coldest pages once a minute drove patience to its
/// limit within half a minute of the first wave of page-outs, and half of the memory that could be saved stayed in.)
const PATIENCE_DOUBLES: Duration = Duration::from_secs(60);

impl Governor {
    /// A governor with these bounds.
    pub fn new(config: GovernorConfig) -> Governor {
        let bucket = TokenBucket::new(config.rate);
        Governor {
            tick: tick_for(config.rest),
            config,
            limits: BTreeMap::new(),
            total_limits: None,
            bucket,
            brake: None,
            stall: 0.0,
            patience: 1.0,
            demoted: 0.0,
            mistakes: 0.0,
            vetoes: BTreeMap::new(),
        }
    }

    /// Sets the floor and ceiling of a space.
    pub fn set_limits(&mut self, space: SpaceId, limits: SpaceLimits) {
        self.limits.insert(space, limits);
    }

    /// Sets the floor and ceiling of all spaces together.
    pub fn set_total_limits(&mut self, limits: SpaceLimits) {
        self.total_limits = Some(limits);
    }

    /// Sets the most bytes a second that may change tier, `None` for no bound.
    pub fn set_rate(&mut self, rate: Option<Bytes>) {
        self.config.rate = rate;
        self.bucket.rate = rate.map(|rate| rate.get() as f64);
    }

    /// Lets through what is allowed of `wishes`, from the front, up to one plan's worth.
    pub fn admit(
        &mut self,
        now: Time,
        wishes: &[Wish],
        pages: &mut Pages,
        tiers: &[TierUse],
        fast_limit: Option<u64>,
    ) -> Admission {
        let mut granted = Admission::default();
        let mut budget = Budget::new(tiers, fast_limit);
        let mut batch = 0;
        for wish in wishes {
            if batch >= self.config.batch_pages {
                break;
            }
            match self.judge(now, wish, pages, &mut budget) {
                Err(veto) => {
                    *self.vetoes.entry(veto).or_default() += 1;
                    granted.vetoed.push((*wish, veto));
                }
                Ok(item) => {
                    if let Err(ready) = self.bucket.take(now, Bytes::of_pages(u64::from(item.pages))) {
                        granted.wait_until = Some(ready);
                        budget.give_back(&item, pages);
                        break;
                    }
                    for offset in 0..item.pages {
                        pages[item.page.plus(offset)].set_moving(true);
                    }
                    batch += u64::from(item.pages);
                    granted.moves.push(item);
                }
            }
            granted.consumed += 1;
        }
        granted
    }

    /// One wish against all bounds but the rate. A granted move is entered into `budget`.
    fn judge(&self, now: Time, wish: &Wish, pages: &Pages, budget: &mut Budget) -> Result<Move, Veto> {
        if pages.block(wish.page.block()).is_none() {
            return Err(Veto::Stale);
        }
        let unit = pages.unit(wish.page);
        let page = &pages[unit.start];
        let Some(from) = page.tier() else { return Err(Veto::Stale) };
        if page.moving() || !page.managed() {
            return Err(Veto::Stale);
        }
        if page.pinned() {
            return Err(Veto::Pinned);
        }
        let count = unit.end.0 - unit.start.0;
        let item = Move { page: unit.start, pages: count, from, action: wish.action, reason: wish.reason };
        let Action::MoveTo(to) = wish.action else { return Ok(item) };
        if to == from {
            return Err(Veto::Stale);
        }
        let (space, _) = pages.locate(unit.start);
        let limits = self.limits.get(&space);
        if wish.reason == Reason::Drain {
            // Terrace is leaving: what it moved goes back wherever there is room, and no rest or promise stands against that.
            budget.enter(space, from, to, u64::from(count))?;
            return Ok(item);
        }
        if to > from {
            if self.brake.is_some() {
                return Err(Veto::Braked);
            }
            if self.is_resting(now, page) {
                return Err(Veto::Resting);
            }
            if from == TierId::FAST {
                let left = pages.used(space, from).saturating_sub(budget.left_fast(space));
                if limits.is_some_and(|limits| left < limits.floor.saturating_add(u64::from(count))) {
                    return Err(Veto::Floor);
                }
                let left = budget.fast_used.saturating_sub(u64::from(count));
                if self.total_limits.is_some_and(|limits| left < limits.floor) {
                    return Err(Veto::Floor);
                }
            }
        } else {
            // A page that was demoted by mistake should come back at once, the first time; after that it rests.
            if page.ping_pong() > 0 && self.is_resting(now, page) {
                return Err(Veto::Resting);
            }
            let own = budget.fast_of(space, pages) + u64::from(count);
            if to == TierId::FAST && limits.is_some_and(|limits| own > limits.ceiling) {
                return Err(Veto::Ceiling);
            }
            let after = budget.fast_used + u64::from(count);
            if to == TierId::FAST && self.total_limits.is_some_and(|limits| after > limits.ceiling) {
                return Err(Veto::Ceiling);
            }
        }
        budget.enter(space, from, to, u64::from(count))?;
        Ok(item)
    }

    fn is_resting(&self, now: Time, page: &Page) -> bool {
        if page.moved_at == 0 {
            return false;
        }
        let rest = self.in_ticks(self.config.rest) << (2 * page.ping_pong());
        u64::from(self.tick_of(now).wrapping_sub(page.moved_at)) < rest
    }

    /// A time as the pages store it: 16 bits, never 0, which stands for "never". They wrap (in seconds after 18 hours), so a page
    /// that nothing touched for that long may rest a little too long.
    fn tick_of(&self, now: Time) -> u16 {
        (self.in_ticks(Duration::from_nanos(now.as_nanos())) as u16).max(1)
    }

    fn in_ticks(&self, span: Duration) -> u64 {
        u64::try_from(span.as_nanos() / self.tick.as_nanos()).unwrap_or(u64::MAX)
    }

    /// A page was demoted.
    pub fn on_demoted(&mut self, now: Time, page: &mut Page) {
        page.moved_at = self.tick_of(now);
        page.set_demoted(true);
        self.demoted += 1.0;
    }

    /// A page came back to faster memory, by a promotion or by itself. Returns whether its demotion was a mistake.
    pub fn on_returned(&mut self, now: Time, page: &mut Page) -> bool {
        let away = u64::from(self.tick_of(now).wrapping_sub(page.moved_at));
        let mistake = page.demoted() && away < self.in_ticks(self.config.mistake_window);
        page.set_ping_pong(if mistake { page.ping_pong() + 1 } else { 0 });
        page.set_demoted(false);
        page.moved_at = self.tick_of(now);
        if mistake {
            self.mistakes += 1.0;
        }
        mistake
    }

    /// A page was brought back because Terrace leaves: that says nothing of whether its demotion was right.
    pub fn on_drained(&mut self, now: Time, page: &mut Page) {
        page.set_demoted(false);
        page.moved_at = self.tick_of(now);
    }

    /// A page was sent away and was found where it had been: in use again before it was even looked for. It counts as one
    /// that came straight back.
    pub fn on_stayed(&mut self, now: Time, page: &mut Page) {
        page.set_ping_pong(page.ping_pong() + 1);
        page.moved_at = self.tick_of(now);
    }

    /// Takes in what the moves so far turned out to cost.
    pub fn on_pressure(&mut self, pressure: &Pressure) {
        if pressure.window.is_zero() {
            return;
        }
        let seconds = pressure.window.as_secs_f64();
        let cost = pressure.refaults as f64 * self.config.refault_cost.as_secs_f64() / seconds;
        let keep = 0.5f64.powf(seconds / STALL_HALF_LIFE.as_secs_f64());
        // Pressure-stall information counts waits of any cause, so it can only raise the estimate while pages come back.
        let seen = match pressure.stall_share {
            Some(share) if pressure.refaults > 0 => cost.max(share.min(2.0 * cost)),
            _ => cost,
        };
        self.stall = self.stall * keep + seen * (1.0 - keep);

        let keep = 0.5f64.powf(seconds / MISTAKE_HALF_LIFE.as_secs_f64());
        // The budget is there to be used: waiting longer than it takes to stay within half of it would keep cold pages for nothing.
        // While page-outs are stopped, what comes back was decided before, and tells nothing of how patient one is now.
        let step = seconds / PATIENCE_DOUBLES.as_secs_f64();
        let acting = self.brake != Some(Brake::Refaults);
        if acting && self.mistake_ratio() > MISTAKES_WANTED && self.stall > self.config.stall_budget / 2.0 {
            self.patience = (self.patience * 2f64.powf(step)).min(PATIENCE_MAX);
        } else if self.stall < self.config.stall_budget / 4.0 {
            self.patience = (self.patience * 0.5f64.powf(step)).max(1.0);
        }
        self.demoted *= keep;
        self.mistakes *= keep;

        let incompressible = pressure.compression.is_some_and(|ratio| ratio < self.config.least_compression);
        self.brake = if self.stall > self.config.stall_budget {
            Some(Brake::Refaults)
        } else if incompressible {
            Some(Brake::Compression)
        } else if self.brake == Some(Brake::Refaults) && self.stall > self.config.stall_budget / 2.0 {
            Some(Brake::Refaults)
        } else {
            None
        };
    }

    /// Share of the demotions of the last minute or so that were mistakes, 0 to 1.
    pub fn mistake_ratio(&self) -> f64 {
        // A handful of demotions says nothing yet: 64 imaginary good ones stand against the first mistakes.
        self.mistakes / (self.demoted + 64.0)
    }

    /// The factor by which a policy should lengthen its idle threshold.
    pub fn patience(&self) -> f64 {
        self.patience
    }

    /// Why page-outs are stopped, if they are.
    pub fn brake(&self) -> Option<Brake> {
        self.brake
    }

    /// Estimated share of the program's time that refaults cost, 0 to 1.
    pub fn stall_share(&self) -> f64 {
        self.stall
    }

    /// Wishes refused so far, by reason.
    pub fn vetoes(&self) -> &BTreeMap<Veto, u64> {
        &self.vetoes
    }
}

/// The unit that a rest is counted in: seconds where it is whole seconds; else a sixteenth of it, so that it is kept to 6 %, and no less
/// than a millisecond. The longest rest, 64 times the first, is then far below where 16 bits wrap.
fn tick_for(rest: Duration) -> Duration {
    match rest.subsec_nanos() {
        0 => Duration::from_secs(1),
        _ => (rest / 16).clamp(Duration::from_millis(1), Duration::from_secs(1)),
    }
}

/// Room as it shrinks while one plan is put together.
struct Budget {
    free: [u64; TierId::MAX],
    fast_left: u64,
    fast_used: u64,
    /// Fast pages of each space that leave with this plan, and pages that come.
    leaving: BTreeMap<SpaceId, u64>,
    coming: BTreeMap<SpaceId, u64>,
}

impl Budget {
    fn new(tiers: &[TierUse], fast_limit: Option<u64>) -> Budget {
        let mut free = [0; TierId::MAX];
        for (slot, tier) in free.iter_mut().zip(tiers) {
            *slot = tier.free();
        }
        let fast = tiers.first().copied().unwrap_or_default();
        let fast_left = fast_limit.map_or(u64::MAX, |limit| limit.saturating_sub(fast.used));
        Budget { free, fast_left, fast_used: fast.used, leaving: BTreeMap::new(), coming: BTreeMap::new() }
    }

    /// Fast pages of a space once the plan so far is carried out.
    fn fast_of(&self, space: SpaceId, pages: &Pages) -> u64 {
        let coming = self.coming.get(&space).copied().unwrap_or(0);
        (pages.used(space, TierId::FAST) + coming).saturating_sub(self.left_fast(space))
    }

    fn left_fast(&self, space: SpaceId) -> u64 {
        self.leaving.get(&space).copied().unwrap_or(0)
    }

    fn enter(&mut self, space: SpaceId, from: TierId, to: TierId, pages: u64) -> Result<(), Veto> {
        if self.free[to.index()] < pages || (to == TierId::FAST && self.fast_left < pages) {
            return Err(Veto::NoRoom);
        }
        self.free[to.index()] -= pages;
        self.free[from.index()] += pages;
        if to == TierId::FAST {
            self.fast_used += pages;
            *self.coming.entry(space).or_default() += pages;
            if self.fast_left != u64::MAX {
                self.fast_left -= pages;
            }
        }
        if from == TierId::FAST {
            self.fast_used = self.fast_used.saturating_sub(pages);
            *self.leaving.entry(space).or_default() += pages;
            // What leaves makes room for what comes, within the same plan: demotions precede their promotions.
            if self.fast_left != u64::MAX {
                self.fast_left += pages;
            }
        }
        Ok(())
    }

    fn give_back(&mut self, item: &Move, pages: &Pages) {
        let Action::MoveTo(to) = item.action else { return };
        let count = u64::from(item.pages);
        self.free[to.index()] += count;
        self.free[item.from.index()] -= count;
        let (space, _) = pages.locate(item.page);
        if to == TierId::FAST {
            *self.coming.entry(space).or_default() -= count;
        }
        if item.from == TierId::FAST {
            *self.leaving.entry(space).or_default() -= count;
        }
    }
}

/// A token bucket in bytes: refills at the rate, holds a twentieth of a second's worth, and may go into debt once per
/// take, so that an item larger than the bucket passes and the long-run rate still holds.
#[derive(Clone, Debug)]
struct TokenBucket {
    rate: Option<f64>,
    tokens: f64,
    filled_at: Option<Time>,
}

impl TokenBucket {
    fn new(rate: Option<Bytes>) -> TokenBucket {
        TokenBucket { rate: rate.map(|rate| rate.get() as f64), tokens: 0.0, filled_at: None }
    }

    /// Takes `amount`, or says when it may be asked for again.
    fn take(&mut self, now: Time, amount: Bytes) -> Result<(), Time> {
        let Some(rate) = self.rate else { return Ok(()) };
        let depth = rate / 20.0;
        let elapsed = self.filled_at.map_or(1.0, |then| now.since(then).as_secs_f64());
        self.tokens = (self.tokens + elapsed * rate).min(depth);
        self.filled_at = Some(now);
        if self.tokens > 0.0 {
            self.tokens -= amount.get() as f64;
            Ok(())
        } else {
            // Wait for half a bucket, not for one token: waking for every page would cost more than moving it.
            Err(now + Duration::from_secs_f64(((depth / 2.0 - self.tokens) / rate).max(0.001)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Reason;
    use crate::units::{PageId, Vpn};

    const SPACE: SpaceId = SpaceId(0);
    const SLOW: TierId = TierId(1);

    fn fast_pages(count: u64) -> Pages {
        let mut pages = Pages::new();
        pages.map(SPACE, Vpn(0)..Vpn(count));
        for vpn in 0..count {
            let page = pages.find(SPACE, Vpn(vpn)).unwrap();
            pages.set_tier(page, Some(TierId::FAST));
        }
        pages
    }

    fn demotions(count: u32) -> Vec<Wish> {
        (0..count).map(|page| Wish { page: PageId(page), action: Action::MoveTo(SLOW), reason: Reason::Cold }).collect()
    }

    fn tiers(pages: &Pages, slow_capacity: u64) -> [TierUse; 2] {
        [
            TierUse { used: pages.used_in_all(TierId::FAST), capacity: 1 << 20 },
            TierUse { used: pages.used_in_all(SLOW), capacity: slow_capacity },
        ]
    }

    #[test]
    fn the_slow_tier_never_overflows() {
        let mut pages = fast_pages(100);
        let mut governor = Governor::new(GovernorConfig::default());
        let tiers = tiers(&pages, 30);
        let granted = governor.admit(Time::ZERO, &demotions(100), &mut pages, &tiers, None);
        assert_eq!(granted.moves.len(), 30);
        assert_eq!(governor.vetoes()[&Veto::NoRoom], 70);
    }

    #[test]
    fn a_floor_keeps_the_last_fast_pages() {
        let mut pages = fast_pages(100);
        let mut governor = Governor::new(GovernorConfig::default());
        governor.set_limits(SPACE, SpaceLimits { floor: 40, ceiling: u64::MAX });
        let tiers = tiers(&pages, 1000);
        let granted = governor.admit(Time::ZERO, &demotions(100), &mut pages, &tiers, None);
        assert_eq!(granted.moves.len(), 60);
    }

    #[test]
    fn a_ceiling_counts_what_the_same_plan_brings_in_and_takes_out() {
        let mut pages = fast_pages(100);
        for page in 0..60 {
            pages.set_tier(PageId(page), Some(SLOW));
        }
        let promotions: Vec<Wish> = (0..60)
            .map(|page| Wish { page: PageId(page), action: Action::MoveTo(TierId::FAST), reason: Reason::Hot })
            .collect();
        let mut governor = Governor::new(GovernorConfig::default());
        governor.set_limits(SPACE, SpaceLimits { floor: 0, ceiling: 50 });
        let room = tiers(&pages, 1000);
        // 40 are fast and 50 may be: ten come. Five that leave before them make room for five more.
        let alone = governor.admit(Time::ZERO, &promotions, &mut pages.clone(), &room, None);
        assert_eq!(alone.moves.len(), 10);
        let leaving =
            (95..100).map(|page| Wish { page: PageId(page), action: Action::MoveTo(SLOW), reason: Reason::Cold });
        let both: Vec<Wish> = leaving.chain(promotions).collect();
        let granted = governor.admit(Time::ZERO, &both, &mut pages, &room, None);
        assert_eq!(granted.moves.len(), 5 + 15);
        assert_eq!(governor.vetoes()[&Veto::Ceiling], 50 + 45);
    }

    #[test]
    fn the_rate_holds_within_five_percent() {
        let mut pages = fast_pages(200_000);
        let rate = Bytes::mib(64);
        let config = GovernorConfig { rate: Some(rate), batch_pages: 512, ..GovernorConfig::default() };
        let mut governor = Governor::new(config);
        let wishes = demotions(200_000);
        let tiers = tiers(&pages, 1 << 20);
        let (mut now, mut at, mut moved) = (Time::ZERO, 0, 0u64);
        while now < Time::ZERO + Duration::from_secs(10) && at < wishes.len() {
            let granted = governor.admit(now, &wishes[at..], &mut pages, &tiers, None);
            at += granted.consumed;
            moved += granted.moves.len() as u64;
            now = granted.wait_until.unwrap_or(now + Duration::from_micros(100));
        }
        let ratio = Bytes::of_pages(moved).get() as f64 / (rate.get() as f64 * 10.0);
        assert!((0.95..=1.05).contains(&ratio), "moved {ratio:.3} of what the rate allows");
    }

    #[test]
    fn a_rest_below_a_second_is_kept_and_what_counts_as_a_mistake_shrinks_with_it() {
        let config = GovernorConfig::default().with_rest(Duration::from_millis(20));
        assert_eq!(config.mistake_window, Duration::from_millis(40));
        let mut governor = Governor::new(config);
        let mut pages = fast_pages(1);
        let page = &mut pages[PageId(0)];
        let step = Duration::from_micros(500);
        let rest_from = |governor: &Governor, page: &Page, from: Time| {
            let mut now = from;
            while governor.is_resting(now, page) {
                now = now + step;
            }
            now.since(from)
        };
        // An hour and a bit: far beyond where the ticks wrap.
        let mut now = Time::ZERO + Duration::from_micros(3_600_012_300);
        governor.on_demoted(now, page);
        let rest = rest_from(&governor, page, now);
        assert!((Duration::from_millis(18)..=Duration::from_millis(21)).contains(&rest), "{rest:?}");
        now = now + Duration::from_millis(50);
        assert!(!governor.on_returned(now, page), "away for longer than it had been idle");
        governor.on_demoted(now, page);
        now = now + Duration::from_millis(30);
        assert!(governor.on_returned(now, page), "straight back");
        let rest = rest_from(&governor, page, now);
        assert!((Duration::from_millis(76)..=Duration::from_millis(81)).contains(&rest), "four times longer: {rest:?}");
    }

    #[test]
    fn a_page_that_comes_straight_back_rests_longer_each_time() {
        let mut pages = fast_pages(1);
        let mut governor = Governor::new(GovernorConfig::default());
        let mut now = Time::ZERO + Duration::from_secs(100);
        let mut rests = Vec::new();
        for _ in 0..3 {
            governor.on_demoted(now, &mut pages[PageId(0)]);
            now = now + Duration::from_secs(1);
            assert!(governor.on_returned(now, &mut pages[PageId(0)]), "back after a second: a mistake");
            let back = now;
            while governor.is_resting(now, &pages[PageId(0)]) {
                now = now + Duration::from_secs(1);
            }
            rests.push(now.since(back).as_secs());
        }
        assert_eq!(rests, [40, 160, 640]);
        governor.on_demoted(now, &mut pages[PageId(0)]);
        assert!(
            !governor.on_returned(now + Duration::from_secs(600), &mut pages[PageId(0)]),
            "away for long: no mistake"
        );
        assert_eq!(pages[PageId(0)].ping_pong(), 0);
    }

    #[test]
    fn costly_refaults_stop_page_outs_and_quiet_lets_them_go_on() {
        let mut pages = fast_pages(10);
        let mut governor = Governor::new(GovernorConfig::default());
        let tiers = tiers(&pages, 1000);
        let second = Duration::from_secs(1);
        // 20,000 refaults of 5 us a second are 10 % of the time, five times the budget.
        governor.on_pressure(&Pressure { window: second, refaults: 20_000, ..Pressure::default() });
        assert_eq!(governor.brake(), Some(Brake::Refaults));
        assert!(governor.admit(Time::ZERO, &demotions(10), &mut pages, &tiers, None).moves.is_empty());
        for _ in 0..10 {
            governor.on_pressure(&Pressure { window: second, ..Pressure::default() });
        }
        assert_eq!(governor.brake(), None);
        assert_eq!(governor.admit(Time::ZERO, &demotions(10), &mut pages, &tiers, None).moves.len(), 10);
    }

    #[test]
    fn mistakes_make_policies_patient_and_their_absence_impatient() {
        let mut pages = fast_pages(4000);
        let mut governor = Governor::new(GovernorConfig::default());
        let now = Time::ZERO + Duration::from_secs(50);
        for page in 0..4000 {
            governor.on_demoted(now, &mut pages[PageId(page)]);
            governor.on_returned(now + Duration::from_secs(2), &mut pages[PageId(page)]);
        }
        for _ in 0..60 {
            governor.on_pressure(&Pressure { window: Duration::from_secs(1), refaults: 4000, ..Pressure::default() });
        }
        let patient = governor.patience();
        assert!((1.5..=2.0).contains(&patient), "a minute doubles it at most: {patient}");
        for _ in 0..600 {
            governor.on_pressure(&Pressure { window: Duration::from_secs(1), ..Pressure::default() });
        }
        assert_eq!(governor.patience(), 1.0);
    }

    #[test]
    fn while_page_outs_are_stopped_nothing_is_learned_about_patience() {
        let mut pages = fast_pages(4000);
        let mut governor = Governor::new(GovernorConfig::default());
        let now = Time::ZERO + Duration::from_secs(50);
        for page in 0..4000 {
            governor.on_demoted(now, &mut pages[PageId(page)]);
            governor.on_returned(now + Duration::from_secs(2), &mut pages[PageId(page)]);
        }
        // 4 % of the time: twice the budget.
        let costly = Pressure { window: Duration::from_secs(1), refaults: 8000, ..Pressure::default() };
        while governor.brake().is_none() {
            governor.on_pressure(&costly);
        }
        let patience = governor.patience();
        for _ in 0..60 {
            governor.on_pressure(&costly);
        }
        assert_eq!(governor.brake(), Some(Brake::Refaults));
        assert_eq!(governor.patience(), patience);
    }

    #[test]
    fn data_that_does_not_compress_stops_page_outs() {
        let mut governor = Governor::new(GovernorConfig::default());
        governor.on_pressure(&Pressure {
            window: Duration::from_secs(1),
            compression: Some(1.02),
            ..Pressure::default()
        });
        assert_eq!(governor.brake(), Some(Brake::Compression));
    }
}
