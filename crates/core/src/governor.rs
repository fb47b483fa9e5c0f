//! The governor: admits or rejects the requests of a policy.
//!
//! In: requests, the capacity view, and the cost of earlier moves. Out: the moves of the next plan, and a count of every rejection. Must
//! not: rank pages, or admit a request that breaks a limit.
//!
//! Bounds: capacity of the destination, the limit of fast memory, a rate (token bucket), floors and ceilings per space, and a cooldown for
//! ping-ponging pages. Feedback: page-outs are paced so that refaults, moves and tracking together cost the program no more than its budget, and they
//! begin with a probe (`pace.rs`). They stop while pages come back and that and tracking alone cost more, and when the slow tier is nearly full or
//! does not compress (`strain.rs`). The idle time that a policy should wait for grows while ping-pongs cost more than half the budget, and shrinks
//! again below a quarter of it; where a program sweeps through its memory it is longer than the time between two sweeps (`sweeps.rs`). Where a
//! driver names each program, each has such books of its own (`programs.rs`).

mod pace;
mod programs;
mod promotions;
mod strain;
mod sweeps;

use std::collections::BTreeMap;
use std::time::Duration;

use self::pace::Pace;
use self::programs::Programs;
use self::strain::Strain;
use self::sweeps::Sweeps;

use crate::pages::{Page, Pages};
use crate::plan::{Action, Move, MoveRequest, Reason, Rejection};
use crate::policy::{SwapCosts, TierUse};
use crate::sleep::Terms;
use crate::units::{BLOCK_PAGES, Bytes, SpaceId, TierId, Time};

/// Bounds and budgets.
#[derive(Clone, Debug, PartialEq)]
pub struct GovernorConfig {
    /// Most bytes per second that may change tier; `None` for no limit.
    pub rate: Option<Bytes>,
    /// Most pages of one plan: after these the mover returns to the loop.
    pub batch_pages: u64,
    /// How long a page stays where it is after a move; four times longer after each ping-pong.
    pub cooldown: Duration,
    /// The ping-pong window: a page that comes back sooner than this was demoted wrongly, because it was away no longer than it had been
    /// idle before.
    pub ping_pong_window: Duration,
    /// Share of the program's time that refaults, moves and tracking may cost together before page-outs wait or stop, 0 to 1.
    pub max_slowdown: f64,
    /// Share of the program's time that page-outs may cost until what is cold at the start has left, instead of `max_slowdown`.
    pub invest: Option<f64>,
    /// Share of the pages in use that may come back in a minute, at the 98th percentile of minutes; `None` for no bound but `max_slowdown`.
    pub max_promotions: Option<f64>,
    /// The cost of one refault to the program. 5 us is a random 4 KiB fault on lz4 zram, as measured (docs/performance.md).
    pub refault_cost: Duration,
    /// The tier that is swap, if there is one: the program must wait for its pages when it wants them back. Cold pages leave for it as a
    /// probe first, where prices are known ([`Pressure::single_out_cost`]).
    pub swap: Option<TierId>,
    /// Page-outs stop while the slow tier stores data in more than 1/this of its size: compression then saves little.
    pub least_compression: f64,
}

impl Default for GovernorConfig {
    fn default() -> GovernorConfig {
        GovernorConfig {
            rate: None,
            batch_pages: 4096,
            cooldown: Duration::from_secs(10),
            ping_pong_window: Duration::from_secs(20),
            max_slowdown: 0.02,
            invest: None,
            max_promotions: None,
            refault_cost: Duration::from_micros(5),
            swap: None,
            least_compression: 1.2,
        }
    }
}

impl GovernorConfig {
    /// The longest cooldown: 64 times as long, after repeated ping-pongs, must fit 16 bits of seconds.
    pub const LONGEST_COOLDOWN: Duration = Duration::from_secs(600);

    /// The same with another cooldown, and with the ping-pong window scaled in proportion: both follow how fast the program is assumed to
    /// change its behaviour.
    pub fn with_cooldown(self, cooldown: Duration) -> GovernorConfig {
        let factor = cooldown.as_secs_f64() / self.cooldown.as_secs_f64();
        let ping_pong_window =
            if factor.is_finite() { self.ping_pong_window.mul_f64(factor) } else { self.ping_pong_window };
        GovernorConfig { cooldown, ping_pong_window, ..self }
    }
}

/// The fast memory that a space keeps, and the most it may have, in 4 KiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceLimits {
    /// Demotion stops when the space has only this many fast pages.
    pub floor: u64,
    /// Promotion stops when the space has this many.
    pub ceiling: u64,
}

/// The cost of the moves up to now, over the last interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// Length of the interval.
    pub window: Duration,
    /// Pages the program waited for because they had left fast memory.
    pub refaults: u64,
    /// Other costs of the interval's moves to the program: interrupts, and processors that the mover used.
    pub moving: Duration,
    /// The current cost of a page-out, charged for refaulted pages.
    pub page_out_cost: Duration,
    /// What one more page costs that leaves alone, and a whole block; zero where that is unknown: then page-outs are not paced.
    pub single_out_cost: Duration,
    /// See `single_out_cost`.
    pub block_out_cost: Duration,
    /// What one more split of a huge page costs, and one more collapse into one; zero where that is unknown: then they are not paced.
    pub split_cost: Duration,
    /// See `split_cost`.
    pub collapse_cost: Duration,
    /// What the program lost in the interval to translations of the pages of blocks that were split, where counters tell.
    pub translating: Duration,
    /// The cost of tracking in the interval.
    pub watching: Duration,
    /// Cores that the program uses; less than one counts as one.
    pub cores: f64,
    /// Share of the interval in which tasks waited for memory, from pressure-stall information, 0 to 1; `None` if unknown.
    pub stall_share: Option<f64>,
    /// The compression ratio: how many bytes one byte of the slow tier holds; `None` if it does not compress.
    pub compression: Option<f64>,
}

/// Why page-outs are stopped, or limited to the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Throttle {
    /// Refaults cost the program more than its budget.
    Refaults,
    /// The slow tier hardly compresses its data.
    Compression,
    /// Page-outs wait until the program can afford the next: their own price used the budget up.
    Moves,
    /// The same, used up by being watched.
    Watching,
    /// As much came back in this minute as may ([`GovernorConfig::max_promotions`]).
    Promotions,
}

/// The state of page-outs that nothing limits, as fields and series have it.
pub const FREE: &str = "free";

/// The state of page-outs in words, from its name in fields and series; a name that is not known stands for itself.
pub fn state_in_words(state: &str) -> &str {
    match Throttle::ALL.into_iter().find(|throttle| throttle.state() == state) {
        Some(throttle) => throttle.in_words(),
        None if state == FREE => "not limited",
        None => state,
    }
}

impl Throttle {
    /// All of them.
    pub const ALL: [Throttle; 5] =
        [Throttle::Refaults, Throttle::Compression, Throttle::Moves, Throttle::Watching, Throttle::Promotions];

    /// The state of page-outs in fields and series. Where the budget is used up, pages go on leaving as it refills; only the other states stop them.
    pub const fn state(self) -> &'static str {
        match self {
            Throttle::Moves | Throttle::Watching => "limited_to_bound",
            Throttle::Refaults => "stopped_came_back",
            Throttle::Compression => "stopped_compression",
            Throttle::Promotions => "stopped_promotions",
        }
    }

    /// The same in words.
    pub const fn in_words(self) -> &'static str {
        match self {
            Throttle::Moves | Throttle::Watching => "limited to the bound",
            Throttle::Refaults => "stopped because pages came back",
            Throttle::Compression => "stopped because data hardly compress",
            Throttle::Promotions => "stopped at max_promotions",
        }
    }

    /// The cause in fields that stay for one release: `throttle`, `throttled_seconds`.
    pub const fn name(self) -> &'static str {
        match self {
            Throttle::Refaults => "refaults",
            Throttle::Compression => "compression",
            Throttle::Moves => "price_of_moves",
            Throttle::Watching => "watching",
            Throttle::Promotions => "promotions",
        }
    }

    /// Whether requests are refused meanwhile; otherwise they wait for the budget.
    pub const fn refuses(self) -> bool {
        matches!(self, Throttle::Refaults | Throttle::Compression | Throttle::Promotions)
    }
}

/// The result of one admission.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// The moves granted, in the order of the requests.
    pub moves: Vec<Move>,
    /// The rejected requests with the reason, in their order.
    pub rejected: Vec<(MoveRequest, Rejection)>,
    /// How many requests from the front were handled, granted or rejected; the rest waits for the rate.
    pub consumed: usize,
    /// When the rate allows the next one, if the rate stopped the admission.
    pub wait_until: Option<Time>,
    /// Handled requests whose program cannot afford them yet: they come after all others, in their order.
    pub deferred: Vec<MoveRequest>,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Governor {
    config: GovernorConfig,
    /// Time unit of the 16 bits in which a page stores its last move.
    tick: Duration,
    limits: BTreeMap<SpaceId, SpaceLimits>,
    total_limits: Option<SpaceLimits>,
    bucket: TokenBucket,
    pace: Pace,
    strain: Strain,
    sweeps: Sweeps,
    programs: Programs,
    /// Processors that the program used lately, at least one.
    cores: f64,
    rejections: BTreeMap<Rejection, u64>,
}

/// How long page-outs wait until they ask again whether the program can afford them: prices and costs are read twice a second.
const PATIENCE: Duration = Duration::from_millis(250);

impl Governor {
    /// A governor with these bounds.
    pub fn new(config: GovernorConfig) -> Governor {
        let bucket = TokenBucket::new(config.rate);
        Governor {
            tick: tick_for(config.cooldown),
            pace: Pace::new(config.swap.is_some(), config.invest),
            strain: Strain::new(),
            sweeps: Sweeps::default(),
            programs: Programs::default(),
            cores: 1.0,
            config,
            limits: BTreeMap::new(),
            total_limits: None,
            bucket,
            rejections: BTreeMap::new(),
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

    /// Sets the most bytes per second that may change tier, `None` for no limit.
    pub fn set_rate(&mut self, rate: Option<Bytes>) {
        self.config.rate = rate;
        self.bucket.rate = rate.map(|rate| rate.get() as f64);
    }

    /// Admits what is allowed of `requests`, from the front, up to one plan's worth.
    pub fn admit(
        &mut self,
        now: Time,
        requests: &[MoveRequest],
        pages: &mut Pages,
        tiers: &[TierUse],
        fast_limit: Option<u64>,
    ) -> Admission {
        let mut granted = Admission::default();
        let mut budget = Budget::new(tiers, fast_limit);
        let mut batch = 0;
        let mut items = Vec::new();
        let mut whole_until = 0;
        let mut broke = false;
        while let Some(together) = exchange(&requests[granted.consumed..]) {
            // Whole blocks are the cheapest to move, so neither batch nor rate cuts one.
            let along = granted.consumed < whole_until;
            if !along && batch >= self.config.batch_pages {
                broke = true;
                break;
            }
            let space = pages.block(together[0].page.block()).map(|block| block.space);
            let asleep = together[0].reason == Reason::Asleep;
            if !along && !asleep && self.programs.len() > 1 && is_page_out(&together[0]) && !self.affords(space) {
                granted.deferred.extend_from_slice(together);
                granted.consumed += together.len();
                continue;
            }
            if !along
                && is_whole_block(&requests[granted.consumed..])
                && self.bucket.affords(Bytes::of_pages(u64::from(BLOCK_PAGES)))
            {
                whole_until = granted.consumed + BLOCK_PAGES as usize;
            }
            items.clear();
            let rejected = together.iter().find_map(|request| match self.judge(now, request, pages, &mut budget) {
                Ok(item) => {
                    items.push(item);
                    None
                }
                Err(rejection) => Some((*request, rejection)),
            });
            let size: u64 = items.iter().map(|item| u64::from(item.pages)).sum();
            // A split copies nothing, so that no rate of bytes holds it.
            let copied: u64 =
                items.iter().filter(|item| item.action != Action::Split).map(|item| u64::from(item.pages)).sum();
            let remaps = items.iter().find(|item| item.action.remaps()).map(|item| item.action);
            let leaving: u64 = items.iter().filter(|item| leaves(item)).map(|item| u64::from(item.pages)).sum();
            let charged = leaving > 0 || remaps.is_some();
            if rejected.is_none() && charged && !along && !asleep && !self.affords(space) {
                items.iter().rev().for_each(|item| budget.give_back(item, pages));
                granted.wait_until = Some(now + PATIENCE);
                broke = true;
                break;
            }
            if let Some((request, rejection)) = rejected {
                items.iter().rev().for_each(|item| budget.give_back(item, pages));
                *self.rejections.entry(rejection).or_default() += 1;
                granted.rejected.push((request, rejection));
            } else if let Err(ready) = self.bucket.take(now, Bytes::of_pages(copied), along) {
                granted.wait_until = Some(ready);
                broke = true;
                break;
            } else {
                // What leaves because its program sleeps is paid for by its sleep.
                if leaving > 0 && !asleep {
                    self.pace_of(space).promise(leaving, along || granted.consumed < whole_until);
                }
                if let Some(action) = remaps {
                    self.pace_of(space).promise_remap(action);
                }
                for item in items.drain(..) {
                    for offset in 0..item.pages {
                        pages[item.page.plus(offset)].set_moving(true);
                    }
                    granted.moves.push(item);
                }
                batch += size;
            }
            granted.consumed += together.len();
        }
        if !broke && !granted.deferred.is_empty() {
            granted.wait_until = Some(now + PATIENCE);
        }
        granted
    }

    /// The budget that a program's page-outs come off.
    fn pace_of(&mut self, space: Option<SpaceId>) -> &mut Pace {
        match space.and_then(|space| self.programs.get_mut(space)) {
            Some(books) => &mut books.pace,
            None => &mut self.pace,
        }
    }

    /// Whether a program can afford another page-out. One whose books have not begun waits for them.
    fn affords(&mut self, space: Option<SpaceId>) -> bool {
        let known = self.programs.is_empty() || space.is_some_and(|space| self.programs.get(space).is_some());
        known && self.pace_of(space).affords()
    }

    /// Why page-outs of a program are stopped, if they are.
    fn throttle_of(&self, space: SpaceId) -> Option<Throttle> {
        self.programs.get(space).map_or_else(|| self.strain.throttle(), |books| books.throttle())
    }

    /// Checks one request against all bounds but the rate. Records a granted move in `budget`.
    fn judge(&self, now: Time, request: &MoveRequest, pages: &Pages, budget: &mut Budget) -> Result<Move, Rejection> {
        if pages.block(request.page.block()).is_none() {
            return Err(Rejection::Stale);
        }
        let unit = pages.unit(request.page);
        let page = &pages[unit.start];
        let Some(from) = page.tier() else { return Err(Rejection::Stale) };
        if page.moving() || !page.managed() {
            return Err(Rejection::Stale);
        }
        if page.pinned() {
            return Err(Rejection::Pinned);
        }
        let count = unit.end.0 - unit.start.0;
        let item = Move { page: unit.start, pages: count, from, action: request.action, reason: request.reason };
        let Action::MoveTo(to) = request.action else {
            // What is cold inside could not leave: a look would be in vain.
            let in_vain = request.reason == Reason::Inside && self.throttle().is_some_and(Throttle::refuses);
            return if in_vain { Err(Rejection::Throttled) } else { Ok(item) };
        };
        if to == from {
            return Err(Rejection::Stale);
        }
        let (space, _) = pages.locate(unit.start);
        let limits = self.limits.get(&space);
        if request.reason == Reason::Drain {
            // Terrace is leaving: its moves are undone wherever there is room, without cooldown or limits.
            budget.enter(space, from, to, u64::from(count))?;
            return Ok(item);
        }
        if to > from {
            // Pages of a sleeping program do not come back while it sleeps, whatever came back before.
            let stopped = self.throttle_of(space).filter(|throttle| throttle.refuses());
            if stopped.is_some_and(|cause| request.reason != Reason::Asleep || cause == Throttle::Compression) {
                return Err(Rejection::Throttled);
            }
            if self.is_cooling_down(now, page) {
                return Err(Rejection::Cooldown);
            }
            if from == TierId::FAST {
                let left = pages.used(space, from).saturating_sub(budget.left_fast(space));
                if limits.is_some_and(|limits| left < limits.floor.saturating_add(u64::from(count))) {
                    return Err(Rejection::Floor);
                }
                let left = budget.fast_used.saturating_sub(u64::from(count));
                if self.total_limits.is_some_and(|limits| left < limits.floor) {
                    return Err(Rejection::Floor);
                }
            }
        } else {
            // A wrongly demoted page should come back at once the first time; after that it is in cooldown.
            if page.ping_pong() > 0 && self.is_cooling_down(now, page) {
                return Err(Rejection::Cooldown);
            }
            let own = budget.fast_of(space, pages) + u64::from(count);
            if to == TierId::FAST && limits.is_some_and(|limits| own > limits.ceiling) {
                return Err(Rejection::Ceiling);
            }
            let after = budget.fast_used + u64::from(count);
            if to == TierId::FAST && self.total_limits.is_some_and(|limits| after > limits.ceiling) {
                return Err(Rejection::Ceiling);
            }
        }
        budget.enter(space, from, to, u64::from(count))?;
        Ok(item)
    }

    fn is_cooling_down(&self, now: Time, page: &Page) -> bool {
        if page.moved_at == 0 {
            return false;
        }
        let cooldown = self.in_ticks(self.config.cooldown) << (2 * page.ping_pong());
        u64::from(self.tick_of(now).wrapping_sub(page.moved_at)) < cooldown
    }

    /// A time as the pages store it: 16 bits, never 0, which stands for "never". They wrap (in seconds after 18 hours), so a page untouched
    /// for that long may be in cooldown a little too long.
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
        self.strain.on_demoted();
        self.sweeps.on_demoted();
    }

    /// A page came back to faster memory, by a promotion or by a refault. Returns whether it was a ping-pong.
    pub fn on_returned(&mut self, now: Time, page: &mut Page) -> bool {
        let away = u64::from(self.tick_of(now).wrapping_sub(page.moved_at));
        let ping_pong = page.demoted() && away < self.in_ticks(self.config.ping_pong_window);
        page.set_ping_pong(if ping_pong { page.ping_pong() + 1 } else { 0 });
        page.set_demoted(false);
        page.moved_at = self.tick_of(now);
        self.sweeps.on_returned();
        if ping_pong {
            self.strain.on_ping_pong();
        }
        ping_pong
    }

    /// A page was promoted because Terrace leaves: this does not count as a ping-pong.
    pub fn on_drained(&mut self, now: Time, page: &mut Page) {
        page.set_demoted(false);
        page.moved_at = self.tick_of(now);
    }

    /// A demoted page was found where it had been: it was in use again at once. It counts as a ping-pong.
    pub fn on_stayed(&mut self, now: Time, page: &mut Page) {
        page.set_ping_pong(page.ping_pong() + 1);
        page.moved_at = self.tick_of(now);
    }

    /// Takes the cost of the moves up to now. Returns whether the policy should be asked again, for pages that a probe left out.
    pub fn on_pressure(&mut self, pressure: &Pressure) -> bool {
        self.cores = pressure.cores.max(1.0);
        if pressure.window.is_zero() {
            return false;
        }
        let short = self.pace.short();
        let renewed = self.pace.on_pressure(pressure, self.config.refault_cost, self.config.max_slowdown);
        self.strain.on_pressure(pressure, &self.config, short);
        self.sweeps.on_pressure(pressure, &self.config);
        renewed
    }

    /// Takes the cost of the moves of one program, which has books of its own from now on. Returns whether the policy should be asked again.
    pub fn on_program(&mut self, now: Time, space: SpaceId, pressure: &Pressure) -> bool {
        !pressure.window.is_zero() && self.programs.on_pressure(now, space, pressure, &self.config)
    }

    /// A program is gone.
    pub(crate) fn forget(&mut self, space: SpaceId) {
        self.programs.forget(space);
        self.limits.remove(&space);
    }

    /// A page of a program came back; too soon, where its sleep had not paid for it, or not.
    pub(crate) fn note_return(&mut self, space: SpaceId, ping_pong: bool) {
        if let Some(books) = self.programs.get_mut(space) {
            books.promotions.on_return();
            books.sweeps.on_returned();
            if ping_pong {
                books.strain.on_ping_pong();
            }
        }
    }

    /// A program that runs uses this number of pages now: what came back of it in a minute is judged by it.
    pub(crate) fn on_use(&mut self, now: Time, space: SpaceId, used: u64) {
        let most = self.config.max_promotions;
        if let Some(rate) = self.programs.get_mut(space).and_then(|books| books.promotions.judge(now, used, most)) {
            self.programs.rates.add(rate);
        }
    }

    /// Promotions a minute as a share of the pages in use, which 98 of 100 minutes of the programs stayed within; `None` while it is not known.
    pub fn promotions(&self) -> Option<f64> {
        self.programs.rates.percentile()
    }

    /// A page of a program was demoted.
    pub(crate) fn note_demoted(&mut self, space: SpaceId) {
        if let Some(books) = self.programs.get_mut(space) {
            books.strain.on_demoted();
            books.sweeps.on_demoted();
        }
    }

    /// On what terms pages of sleeping programs leave; `None` where they cannot, as the next tier is no swap.
    pub fn terms(&self) -> Option<Terms> {
        let costs = self.swap_costs().filter(|costs| costs.tier == TierId::FAST.below())?;
        Some(Terms {
            max_slowdown: self.config.max_slowdown,
            single: costs.back + costs.single,
            of_block: costs.back + costs.of_block,
            max_promotions: self.config.max_promotions,
        })
    }

    /// Whether the move at the start is under way, which may cost what is invested.
    pub fn invests(&self) -> bool {
        if self.programs.is_empty() { self.pace.invests() } else { self.programs.invest() }
    }

    /// What pages in swap cost the program now, where a tier is swap.
    pub fn swap_costs(&self) -> Option<SwapCosts> {
        let [single, of_block] = self.pace.prices();
        let [split, collapse] = self.pace.prices_of_remaps();
        let back = self.config.refault_cost.as_secs_f64();
        let budget = self.config.max_slowdown * self.cores;
        self.config.swap.map(|tier| SwapCosts { tier, back, single, of_block, split, collapse, budget })
    }

    /// Leaves of a policy's requests what the probe allows.
    pub fn probe(&mut self, requests: Vec<MoveRequest>, pages: &Pages) -> Vec<MoveRequest> {
        let size = |request: &MoveRequest| {
            if pages.block(request.page.block()).is_none() {
                return 1;
            }
            let unit = pages.unit(request.page);
            u64::from(unit.end.0 - unit.start.0)
        };
        if self.programs.is_empty() {
            return self.pace.thin(requests, pages.footprint_of_all(), size);
        }
        self.programs.thin(requests, pages, size)
    }

    /// Share of ping-pongs among the demotions of the last minute or so, 0 to 1.
    pub fn ping_pong_ratio(&self) -> f64 {
        self.strain.ping_pong_ratio()
    }

    /// The factor by which a policy should lengthen its idle threshold.
    pub fn backoff(&self) -> f64 {
        self.strain.backoff()
    }

    /// The same of one program.
    pub fn backoff_of(&self, space: SpaceId) -> f64 {
        self.programs.get(space).map_or_else(|| self.strain.backoff(), |books| books.backoff())
    }

    /// For how long a page must be idle at least, as less is undone by the next sweep of the program through its memory; zero where none is known.
    pub fn least_idle(&self) -> Duration {
        if self.programs.is_empty() { self.sweeps.least_idle() } else { self.programs.least_idle() }
    }

    /// The time between two sweeps that the bound does not pay for: the longest of all programs.
    pub fn sweep_period(&self) -> Option<Duration> {
        if self.programs.is_empty() { self.sweeps.period() } else { self.programs.sweep_period() }
    }

    /// What [`Governor::least_idle`] is of one program.
    pub fn least_idle_of(&self, space: SpaceId) -> Duration {
        self.programs.get(space).map_or_else(|| self.sweeps.least_idle(), |books| books.sweeps.least_idle())
    }

    /// Why page-outs of all programs that run are stopped or limited, if they are.
    pub fn throttle(&self) -> Option<Throttle> {
        if self.programs.is_empty() { self.strain.throttle() } else { self.programs.throttle() }
    }

    /// Estimated share of the program's time that refaults, moves and tracking cost together, 0 to 1.
    pub fn stall_share(&self) -> f64 {
        self.strain.share()
    }

    /// Rejected requests, by reason.
    pub fn rejections(&self) -> &BTreeMap<Rejection, u64> {
        &self.rejections
    }
}

/// The time unit of a cooldown: seconds if it is a whole number of seconds; else a sixteenth of it, which is precise to 6 %, and at least a
/// millisecond. The longest cooldown, 64 times the first, is then far below the point where 16 bits wrap.
fn tick_for(cooldown: Duration) -> Duration {
    match cooldown.subsec_nanos() {
        0 => Duration::from_secs(1),
        _ => (cooldown / 16).clamp(Duration::from_millis(1), Duration::from_secs(1)),
    }
}

/// Whether the requests at the front are all pages of one block, in their order.
fn is_whole_block(requests: &[MoveRequest]) -> bool {
    let whole = requests.get(..BLOCK_PAGES as usize);
    whole.is_some_and(|block| {
        let first = block[0].page;
        first.offset() == 0 && block.iter().zip(0..).all(|(request, offset)| request.page == first.plus(offset))
    })
}

/// Whether a request is for a page to leave fast memory.
fn is_page_out(request: &MoveRequest) -> bool {
    matches!(request.action, Action::MoveTo(tier) if tier > TierId::FAST)
}

/// Whether this takes a page to slower memory.
fn leaves(item: &Move) -> bool {
    matches!(item.action, Action::MoveTo(to) if to > item.from)
}

/// The requests at the front that are granted together or not at all; `None` if none are left.
fn exchange(requests: &[MoveRequest]) -> Option<&[MoveRequest]> {
    let first = requests.first()?;
    let leaving = match first.instead_of {
        None => 0,
        Some(coming) => requests.iter().take_while(|request| request.instead_of == Some(coming)).count(),
    };
    Some(&requests[..(leaving + 1).min(requests.len())])
}

/// The capacity left while one plan is built.
struct Budget {
    free: [u64; TierId::MAX],
    fast_left: u64,
    fast_used: u64,
    /// Fast pages of each space that leave with this plan, and pages that arrive.
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

    /// Fast pages of a space after the plan as built up to now.
    fn fast_of(&self, space: SpaceId, pages: &Pages) -> u64 {
        let coming = self.coming.get(&space).copied().unwrap_or(0);
        (pages.used(space, TierId::FAST) + coming).saturating_sub(self.left_fast(space))
    }

    fn left_fast(&self, space: SpaceId) -> u64 {
        self.leaving.get(&space).copied().unwrap_or(0)
    }

    fn enter(&mut self, space: SpaceId, from: TierId, to: TierId, pages: u64) -> Result<(), Rejection> {
        if self.free[to.index()] < pages || (to == TierId::FAST && self.fast_left < pages) {
            return Err(Rejection::NoRoom);
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
            // Demotions make room for promotions within the same plan: they precede them.
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
            self.fast_used -= count;
            *self.coming.entry(space).or_default() -= count;
            if self.fast_left != u64::MAX {
                self.fast_left += count;
            }
        }
        if item.from == TierId::FAST {
            self.fast_used += count;
            *self.leaving.entry(space).or_default() -= count;
            if self.fast_left != u64::MAX {
                self.fast_left -= count;
            }
        }
    }
}

/// A token bucket in bytes. It refills at the rate, holds a twentieth of a second's worth, and may go into debt once per take, so that an
/// item larger than the bucket passes and the long-run rate still holds.
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

    /// Whether a second's worth suffices for `amount`.
    fn affords(&self, amount: Bytes) -> bool {
        self.rate.is_none_or(|rate| rate >= amount.get() as f64)
    }

    /// Takes `amount`, or returns when to try again. What goes `along` with the last is taken in any case, and repaid before the next.
    fn take(&mut self, now: Time, amount: Bytes, along: bool) -> Result<(), Time> {
        let Some(rate) = self.rate else { return Ok(()) };
        let depth = rate / 20.0;
        let elapsed = self.filled_at.map_or(1.0, |then| now.since(then).as_secs_f64());
        self.tokens = (self.tokens + elapsed * rate).min(depth);
        self.filled_at = Some(now);
        if along || self.tokens > 0.0 {
            self.tokens -= amount.get() as f64;
            Ok(())
        } else {
            // Wait for half a bucket, not for one token: waking for every page would cost more than the move.
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

    fn demotions(count: u32) -> Vec<MoveRequest> {
        (0..count).map(|page| MoveRequest::new(PageId(page), Action::MoveTo(SLOW), Reason::Cold)).collect()
    }

    fn tiers(pages: &Pages, slow_capacity: u64) -> [TierUse; 2] {
        [
            TierUse { used: pages.used_in_all(TierId::FAST), capacity: 1 << 20 },
            TierUse { used: pages.used_in_all(SLOW), capacity: slow_capacity },
        ]
    }

    #[test]
    fn a_rejected_demotion_takes_its_promotion_with_it_and_counts_once() {
        let mut pages = fast_pages(4);
        pages.set_tier(PageId(3), Some(SLOW));
        let tiers = [TierUse { used: 3, capacity: 3 }, TierUse { used: 1, capacity: 100 }];
        let leave = |page| MoveRequest::new(PageId(page), Action::MoveTo(SLOW), Reason::MakeRoom).instead_of(PageId(3));
        let come = MoveRequest::new(PageId(3), Action::MoveTo(TierId::FAST), Reason::Hot);
        let admit = |pages: &mut Pages, requests: &[MoveRequest]| {
            let mut governor = Governor::new(GovernorConfig::default());
            let granted = governor.admit(Time::ZERO, requests, pages, &tiers, None);
            (granted.moves.len(), granted.consumed, governor.rejections().clone())
        };
        let both = admit(&mut pages.clone(), &[leave(0), come]);
        assert_eq!(both, (2, 2, BTreeMap::new()));
        // The page that would leave cannot: neither moves. The next requests are judged separately, with the room as it was.
        let mut stuck = pages.clone();
        stuck[PageId(0)].set_pinned(true);
        let lone = MoveRequest::new(PageId(1), Action::MoveTo(SLOW), Reason::Cold);
        let rejected = admit(&mut stuck, &[leave(0), come, lone]);
        assert_eq!(rejected, (1, 3, BTreeMap::from([(Rejection::Pinned, 1)])));
        // The page that would arrive cannot: the others stay where they are.
        let mut gone = pages.clone();
        gone[PageId(3)].set_pinned(true);
        assert_eq!(admit(&mut gone, &[leave(0), leave(1), come]), (0, 3, BTreeMap::from([(Rejection::Pinned, 1)])));
        assert!((0..4).all(|page| !gone[PageId(page)].moving()));
        // The room that a rejected exchange would have freed does not exist.
        assert_eq!(
            admit(&mut gone, &[leave(0), come, MoveRequest::new(PageId(3), Action::MoveTo(TierId::FAST), Reason::Hot)])
                .0,
            0
        );
    }

    #[test]
    fn an_exchange_that_is_rejected_leaves_the_limits_as_they_were() {
        let mut pages = fast_pages(6);
        for page in 3..6 {
            pages.set_tier(PageId(page), Some(SLOW));
        }
        pages[PageId(3)].set_pinned(true);
        let tiers = [TierUse { used: 3, capacity: 100 }, TierUse { used: 3, capacity: 100 }];
        let mut governor = Governor::new(GovernorConfig::default());
        governor.set_limits(SPACE, SpaceLimits { floor: 3, ceiling: 3 });
        let leave = MoveRequest::new(PageId(0), Action::MoveTo(SLOW), Reason::MakeRoom).instead_of(PageId(3));
        let come = |page| MoveRequest::new(PageId(page), Action::MoveTo(TierId::FAST), Reason::Hot);
        governor.set_limits(SPACE, SpaceLimits { floor: 0, ceiling: 3 });
        let granted = governor.admit(Time::ZERO, &[leave, come(3), come(4)], &mut pages, &tiers, Some(3));
        assert_eq!((granted.moves.len(), granted.rejected.len()), (0, 2), "nobody left, so nobody may come");
        let leave = MoveRequest::new(PageId(0), Action::MoveTo(SLOW), Reason::MakeRoom).instead_of(PageId(4));
        let granted = governor.admit(Time::ZERO, &[leave, come(4)], &mut pages, &tiers, Some(3));
        assert_eq!(granted.moves.len(), 2);
    }

    #[test]
    fn the_slow_tier_never_overflows() {
        let mut pages = fast_pages(100);
        let mut governor = Governor::new(GovernorConfig::default());
        let tiers = tiers(&pages, 30);
        let granted = governor.admit(Time::ZERO, &demotions(100), &mut pages, &tiers, None);
        assert_eq!(granted.moves.len(), 30);
        assert_eq!(governor.rejections()[&Rejection::NoRoom], 70);
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
        let promotions: Vec<MoveRequest> =
            (0..60).map(|page| MoveRequest::new(PageId(page), Action::MoveTo(TierId::FAST), Reason::Hot)).collect();
        let mut governor = Governor::new(GovernorConfig::default());
        governor.set_limits(SPACE, SpaceLimits { floor: 0, ceiling: 50 });
        let room = tiers(&pages, 1000);
        // 40 are fast and 50 may be: ten arrive. Five demotions before them make room for five more.
        let alone = governor.admit(Time::ZERO, &promotions, &mut pages.clone(), &room, None);
        assert_eq!(alone.moves.len(), 10);
        let leaving = (95..100).map(|page| MoveRequest::new(PageId(page), Action::MoveTo(SLOW), Reason::Cold));
        let both: Vec<MoveRequest> = leaving.chain(promotions).collect();
        let granted = governor.admit(Time::ZERO, &both, &mut pages, &room, None);
        assert_eq!(granted.moves.len(), 5 + 15);
        assert_eq!(governor.rejections()[&Rejection::Ceiling], 50 + 45);
    }

    #[test]
    fn the_rate_holds_within_five_percent() {
        let mut pages = fast_pages(200_000);
        let rate = Bytes::mib(64);
        let config = GovernorConfig { rate: Some(rate), batch_pages: 512, ..GovernorConfig::default() };
        let mut governor = Governor::new(config);
        let requests = demotions(200_000);
        let tiers = tiers(&pages, 1 << 20);
        let (mut now, mut at, mut moved) = (Time::ZERO, 0, 0u64);
        while now < Time::ZERO + Duration::from_secs(10) && at < requests.len() {
            let granted = governor.admit(now, &requests[at..], &mut pages, &tiers, None);
            at += granted.consumed;
            moved += granted.moves.len() as u64;
            now = granted.wait_until.unwrap_or(now + Duration::from_micros(100));
        }
        let ratio = Bytes::of_pages(moved).get() as f64 / (rate.get() as f64 * 10.0);
        assert!((0.95..=1.05).contains(&ratio), "moved {ratio:.3} of what the rate allows");
    }

    #[test]
    fn neither_batch_nor_rate_cuts_a_whole_block() {
        let config = GovernorConfig { rate: Some(Bytes::mib(16)), batch_pages: 700, ..GovernorConfig::default() };
        let mut governor = Governor::new(config);
        let mut pages = fast_pages(2048);
        let requests = demotions(2048);
        let tiers = tiers(&pages, 1 << 20);
        let (mut now, mut at, mut batches) = (Time::ZERO, 0, Vec::new());
        while at < requests.len() {
            let granted = governor.admit(now, &requests[at..], &mut pages, &tiers, None);
            at += granted.consumed;
            batches.extend((granted.consumed > 0).then_some(granted.consumed));
            now = granted.wait_until.unwrap_or(now + Duration::from_millis(1));
        }
        assert!(batches.iter().all(|batch| batch % 512 == 0), "{batches:?}");
        // 8 MiB at 16 MiB/s, but for the bucket's content at the start and the debt at the end.
        assert!((350..650).contains(&now.since(Time::ZERO).as_millis()), "{now:?}");
        // What is not a whole block is cut as before.
        let mut governor = Governor::new(GovernorConfig { batch_pages: 100, ..GovernorConfig::default() });
        let mut pages = fast_pages(2048);
        assert_eq!(governor.admit(Time::ZERO, &requests[1..], &mut pages, &tiers, None).moves.len(), 100);
    }

    #[test]
    fn a_rest_below_a_second_is_kept_and_what_counts_as_a_mistake_shrinks_with_it() {
        let config = GovernorConfig::default().with_cooldown(Duration::from_millis(20));
        assert_eq!(config.ping_pong_window, Duration::from_millis(40));
        let mut governor = Governor::new(config);
        let mut pages = fast_pages(1);
        let page = &mut pages[PageId(0)];
        let step = Duration::from_micros(500);
        let cooldown_from = |governor: &Governor, page: &Page, from: Time| {
            let mut now = from;
            while governor.is_cooling_down(now, page) {
                now = now + step;
            }
            now.since(from)
        };
        // A bit more than an hour: far beyond the point where the ticks wrap.
        let mut now = Time::ZERO + Duration::from_micros(3_600_012_300);
        governor.on_demoted(now, page);
        let cooldown = cooldown_from(&governor, page, now);
        assert!((Duration::from_millis(18)..=Duration::from_millis(21)).contains(&cooldown), "{cooldown:?}");
        now = now + Duration::from_millis(50);
        assert!(!governor.on_returned(now, page), "away for longer than it had been idle");
        governor.on_demoted(now, page);
        now = now + Duration::from_millis(30);
        assert!(governor.on_returned(now, page), "straight back");
        let cooldown = cooldown_from(&governor, page, now);
        assert!(
            (Duration::from_millis(76)..=Duration::from_millis(81)).contains(&cooldown),
            "four times longer: {cooldown:?}"
        );
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
            assert!(governor.on_returned(now, &mut pages[PageId(0)]), "back after a second: a ping_pong");
            let back = now;
            while governor.is_cooling_down(now, &pages[PageId(0)]) {
                now = now + Duration::from_secs(1);
            }
            rests.push(now.since(back).as_secs());
        }
        assert_eq!(rests, [40, 160, 640]);
        governor.on_demoted(now, &mut pages[PageId(0)]);
        assert!(
            !governor.on_returned(now + Duration::from_secs(600), &mut pages[PageId(0)]),
            "away for long: no ping_pong"
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
        assert_eq!(governor.throttle(), Some(Throttle::Refaults));
        assert!(governor.admit(Time::ZERO, &demotions(10), &mut pages, &tiers, None).moves.is_empty());
        for _ in 0..10 {
            governor.on_pressure(&Pressure { window: second, ..Pressure::default() });
        }
        assert_eq!(governor.throttle(), None);
        assert_eq!(governor.admit(Time::ZERO, &demotions(10), &mut pages, &tiers, None).moves.len(), 10);
    }

    #[test]
    fn the_budget_covers_refaults_moves_and_watching_on_all_cores() {
        let second = Duration::from_secs(1);
        let settled = |pressure: Pressure| {
            let mut governor = Governor::new(GovernorConfig::default());
            (0..60).for_each(|_| _ = governor.on_pressure(&pressure));
            (governor.stall_share(), governor.throttle())
        };
        // 1 % of refaults, 0.9 % of tracking: within 2 %.
        let within =
            Pressure { window: second, refaults: 2000, watching: Duration::from_millis(9), ..Pressure::default() };
        let (share, throttle) = settled(within);
        assert!((share - 0.019).abs() < 1e-3 && throttle.is_none(), "{share}");
        // The page-out of each refaulted page was wasted: 2,000 times 10 us more.
        let moving = Duration::from_millis(20);
        let trips = Pressure { moving, page_out_cost: Duration::from_micros(10), ..within };
        let (share, throttle) = settled(trips);
        assert!((share - 0.039).abs() < 1e-3 && throttle == Some(Throttle::Refaults), "{share}");
        let (share, throttle) = settled(Pressure { cores: 4.0, ..trips });
        assert!(
            (share - 0.039 / 4.0).abs() < 1e-3 && throttle.is_none(),
            "four cores have four times as much time: {share}"
        );
    }

    #[test]
    fn page_outs_are_limited_while_they_wait_and_stopped_while_they_are_refused() {
        for throttle in Throttle::ALL {
            let limited = throttle.state() == "limited_to_bound";
            assert_eq!((limited, throttle.state().starts_with("stopped_")), (!throttle.refuses(), throttle.refuses()));
            assert_eq!(state_in_words(throttle.state()), throttle.in_words());
        }
        assert_eq!([FREE, "of a later release"].map(state_in_words), ["not limited", "of a later release"]);
        assert_eq!(Throttle::Refaults.in_words(), "stopped because pages came back");
    }

    #[test]
    fn nobody_looks_inside_huge_pages_while_nothing_may_leave() {
        let mut pages = fast_pages(512);
        let block = pages.find_block(SPACE, Vpn(0)).unwrap();
        pages.set_huge(block, true);
        let mut governor = Governor::new(GovernorConfig::default());
        let tiers = tiers(&pages, 1 << 20);
        let split = |reason| [MoveRequest::new(block.first_page(), Action::Split, reason)];
        let hardly = Pressure { window: Duration::from_secs(1), compression: Some(1.05), ..Pressure::default() };
        (0..60).for_each(|_| _ = governor.on_pressure(&hardly));
        assert_eq!(governor.throttle(), Some(Throttle::Compression));
        let looked = governor.admit(Time::ZERO, &split(Reason::Inside), &mut pages, &tiers, None);
        assert_eq!((looked.moves.len(), looked.rejected[0].1), (0, Rejection::Throttled));
        // Between nodes a policy's own reasons stand.
        assert_eq!(governor.admit(Time::ZERO, &split(Reason::PageSize), &mut pages, &tiers, None).moves.len(), 1);
    }

    #[test]
    fn page_outs_wait_for_the_budget_and_are_not_refused() {
        let mut pages = fast_pages(4096);
        let mut governor = Governor::new(GovernorConfig::default());
        let tiers = tiers(&pages, 1 << 20);
        let priced = Pressure {
            window: Duration::from_secs(1),
            single_out_cost: Duration::from_micros(10),
            block_out_cost: Duration::from_micros(50),
            ..Pressure::default()
        };
        governor.on_pressure(&priced);
        // Every second page, so that no block is whole: 20 ms at 10 us.
        let apart: Vec<MoveRequest> = demotions(4096).into_iter().step_by(2).collect();
        let granted = governor.admit(Time::ZERO, &apart, &mut pages, &tiers, None);
        assert_eq!((granted.moves.len(), granted.rejected.len()), (2001, 0));
        assert!(granted.wait_until.is_some());
        governor.on_pressure(&Pressure { moving: Duration::from_millis(20), ..priced });
        assert_eq!(governor.throttle(), Some(Throttle::Moves), "the reason is the true one");
        // Whole blocks cost a hundredth: all of them go.
        let mut pages = fast_pages(4096);
        let mut governor = Governor::new(GovernorConfig::default());
        governor.on_pressure(&priced);
        assert_eq!(governor.admit(Time::ZERO, &demotions(4096), &mut pages, &tiers, None).moves.len(), 4096);
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
        let patient = governor.backoff();
        assert!((1.5..=2.0).contains(&patient), "a minute doubles it at most: {patient}");
        for _ in 0..600 {
            governor.on_pressure(&Pressure { window: Duration::from_secs(1), ..Pressure::default() });
        }
        assert_eq!(governor.backoff(), 1.0);
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
        while governor.throttle().is_none() {
            governor.on_pressure(&costly);
        }
        let backoff = governor.backoff();
        for _ in 0..60 {
            governor.on_pressure(&costly);
        }
        assert_eq!(governor.throttle(), Some(Throttle::Refaults));
        assert_eq!(governor.backoff(), backoff);
    }

    #[test]
    fn data_that_does_not_compress_stops_page_outs() {
        let mut governor = Governor::new(GovernorConfig::default());
        governor.on_pressure(&Pressure {
            window: Duration::from_secs(1),
            compression: Some(1.02),
            ..Pressure::default()
        });
        assert_eq!(governor.throttle(), Some(Throttle::Compression));
    }
}
