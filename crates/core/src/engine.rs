//! The engine: where observations, policy, governor and outcomes meet. It performs no I/O and reads no clock.
//!
//! In: [`Input`], with the time it happened. Out: [`Output`]: a plan to carry out, a new cadence, or the next wake-up time. Must not: issue
//! a second plan before the first is answered.
//!
//! Usage: call [`Engine::handle`] once, then [`Engine::poll`] until it returns [`Output::Wake`]. Answer a plan by one [`Input::Moved`] with
//! one outcome per move. A refused move is an outcome, not an error.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::governor::{Governor, GovernorConfig, Pressure, SpaceLimits};
use crate::ledger::Ledger;
use crate::observation::{Observation, Observations, ScanBatch};
use crate::pages::Pages;
use crate::plan::{Action, Failure, MoveRequest, MoveRequests, Outcome, Plan, Reason};
use crate::policy::{
    Cadence, CapacityView, Facet, FastGoal, Feedback, Metric, Needs, Oracle, Policy, ProgramState, Remap, ScanReport,
    Schedule, Setup, TierUse,
};
use crate::prices::{Prices, ProcessorCounts};
use crate::sleep::{Fetch, Sleepers};
use crate::units::{BLOCK_PAGES, Bytes, SpaceId, TierId, Time, Vpn};

/// An input of the engine.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Pages of a space may be managed from now on.
    Mapped(SpaceId, Range<Vpn>),
    /// Pages of a space are gone.
    Unmapped(SpaceId, Range<Vpn>),
    /// This many pages of a space are no longer there, but go on in another space that shares them, from this page on. Their state and
    /// history go along. Precedes the [`Input::Unmapped`] or [`Input::Exited`] of the first.
    Handed {
        /// The space that loses them, and the first page there.
        from: (SpaceId, Vpn),
        /// The space that keeps them, and the first page there.
        to: (SpaceId, Vpn),
        /// How many.
        pages: u64,
    },
    /// Terrace had moved these pages of a space, which a tracker found in slower memory: at another address, before their mapping moved, or
    /// in the space that this one was forked from. Follows the [`Input::Observed`] that found them.
    MovedBefore(SpaceId, Range<Vpn>),
    /// A whole space is gone.
    Exited(SpaceId),
    /// A tracker's observations.
    Observed(Observations<'a>),
    /// The scan of accessed bits that the cadence asked for is complete.
    ScanDone(ScanReport),
    /// Processor counts since the last such input. Pass it before [`Input::ScanDone`] or an [`Input::Tick`], where counts are available.
    Processor(ProcessorCounts),
    /// The prices of moves from now on.
    Prices(Prices),
    /// The moves of the latest plan were carried out, or failed.
    Moved(&'a [Outcome]),
    /// The cost of the moves up to now.
    Pressure(Pressure),
    /// The same of one program, which is judged by it alone from now on. Pass those of all programs before [`Input::Pressure`], the sum.
    ProgramPressure(SpaceId, Pressure),
    /// The program ran since the last such input.
    Ran(SpaceId),
    /// The program has not run since then, and its pages were looked at after it had stopped.
    Slept(SpaceId, Time),
    /// Free memory is short by this many pages; 0 is plenty.
    ShortBy(u64),
    /// The program is about to wake: what it used last is to come back. See [`Engine::fetches`].
    Wake(SpaceId),
    /// Of what was to be fetched, these pages of a space are in memory now, and were not used yet.
    Fetched(SpaceId, Range<Vpn>),
    /// The new capacity of a tier for managed spaces, in 4 KiB pages.
    Capacity(TierId, u64),
    /// The goal for fast memory changed.
    Goal(FastGoal),
    /// The sampler used this much processor time since the last such input.
    SamplerTime(Duration),
    /// The blocks of this range of a space hold file pages, not anonymous memory. Follows [`Input::Mapped`].
    FileBacked(SpaceId, Range<Vpn>),
    /// The limits of a space changed.
    Limits(SpaceId, SpaceLimits),
    /// The limits of all spaces together changed.
    TotalLimits(SpaceLimits),
    /// Most bytes per second that may change tier, from now on.
    Rate(Option<Bytes>),
    /// While true, the engine promotes what Terrace demoted and plans nothing else.
    Drain(bool),
    /// Time passed, nothing else.
    Tick,
}

/// An output of the engine.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Carry this out and answer with [`Input::Moved`].
    Move(Plan),
    /// Scan this often from now on.
    Track(Cadence),
    /// Nothing more until then, or until the next input. [`Time::FAR_FUTURE`] means until the next input.
    Wake(Time),
}

/// The configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Capacity of each tier for the spaces under management, from fast to slow, in 4 KiB pages.
    pub tiers: Vec<u64>,
    /// How much fast memory to keep.
    pub goal: FastGoal,
    /// Bounds and budgets.
    pub governor: GovernorConfig,
}

/// Most requests taken from a policy per call: 64 Ki, a list of 768 KiB, 256 MiB of base pages.
const REQUESTS_AT_A_TIME: usize = 1 << 16;

/// See the module's header.
pub struct Engine {
    pages: Pages,
    policy: Box<dyn Policy>,
    governor: Governor,
    ledger: Ledger,
    goal: FastGoal,
    capacity: Vec<u64>,
    requests: VecDeque<MoveRequest>,
    /// Whether to ask the policy again, and whether its last list was cut at the limit.
    ask: bool,
    cut: bool,
    granted_of_list: bool,
    /// Until when the rate admits nothing.
    rate_wait: Option<Time>,
    in_flight: Option<Plan>,
    plans: u64,
    cadence: Option<Cadence>,
    refaulted: Vec<Observation>,
    draining: bool,
    sleepers: Sleepers,
    /// Requests for pages of sleeping programs, which go before all others, and until when the rate admits none of them.
    asleep_requests: VecDeque<MoveRequest>,
    asleep_wait: Option<Time>,
    /// Returns since the last pressure that were paid for.
    paid_returns: u64,
    states: Vec<ProgramState>,
}

impl Engine {
    /// An engine that follows `policy`.
    ///
    /// # Panics
    /// There is no tier, or more than [`TierId::MAX`].
    pub fn new(config: EngineConfig, policy: Box<dyn Policy>) -> Engine {
        assert!((1..=TierId::MAX).contains(&config.tiers.len()), "a machine has 1 to {} tiers", TierId::MAX);
        Engine {
            pages: Pages::new(),
            policy,
            governor: Governor::new(config.governor),
            ledger: Ledger::default(),
            goal: config.goal,
            capacity: config.tiers,
            requests: VecDeque::new(),
            ask: true,
            cut: false,
            granted_of_list: false,
            rate_wait: None,
            in_flight: None,
            plans: 0,
            cadence: None,
            refaulted: Vec::new(),
            draining: false,
            sleepers: Sleepers::default(),
            asleep_requests: VecDeque::new(),
            asleep_wait: None,
            paid_returns: 0,
            states: Vec::new(),
        }
    }

    /// Handles one input. Follow with [`Engine::poll`] until it returns [`Output::Wake`].
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Mapped(space, range) => {
                let blocks = self.pages.map(space, range);
                self.policy.remap(now, Remap::Mapped(&blocks), &mut self.pages);
            }
            Input::Unmapped(space, range) => {
                self.policy.remap(now, Remap::Unmapping(space, range.clone()), &mut self.pages);
                self.sleepers.forget(space, &range);
                self.pages.unmap(space, range);
            }
            Input::Handed { from, to, pages } => self.hand_over(now, from, to, pages),
            Input::MovedBefore(space, range) => self.claim(space, range),
            Input::Exited(space) => {
                self.policy.remap(now, Remap::Unmapping(space, Vpn(0)..Vpn(u64::MAX)), &mut self.pages);
                self.pages.remove_space(space);
                self.sleepers.exited(space);
                self.governor.forget(space);
            }
            Input::Observed(Observations::Scan(scan)) => {
                self.apply_scan(now, &scan);
                if !self.sleepers.is_unknown() {
                    let (space, first) = self.pages.locate(scan.first);
                    self.sleepers.observe(now, space, first, &scan);
                }
                self.policy.observe(now, Observations::Scan(scan), &mut self.pages);
            }
            Input::Observed(Observations::Events(events)) => {
                self.apply_events(now, events);
                self.policy.observe(now, Observations::Events(events), &mut self.pages);
            }
            Input::ScanDone(round) => {
                self.feedback(now, Feedback::ScanDone(&round));
                self.ask = true;
            }
            Input::Processor(counts) => self.feedback(now, Feedback::Processor(&counts)),
            Input::Prices(prices) => self.policy.configure(Setup { prices: Some(prices), ..Setup::default() }),
            Input::Moved(outcomes) => {
                let missing = self.apply_outcomes(now, outcomes);
                self.feedback(now, Feedback::Moved(outcomes));
                if !missing.is_empty() {
                    self.policy.observe(now, Observations::Events(&missing), &mut self.pages);
                }
            }
            Input::ProgramPressure(space, pressure) => {
                let refaults = self.sleepers.unpaid(space, pressure.refaults, &self.pages);
                self.paid_returns += pressure.refaults - refaults;
                self.ask |= self.governor.on_program(now, space, &Pressure { refaults, ..pressure });
                if let Some(recent) = self.sleepers.recent(space) {
                    self.governor.on_use(now, space, recent.count());
                }
            }
            Input::Pressure(pressure) => {
                let refaults = pressure.refaults.saturating_sub(std::mem::take(&mut self.paid_returns));
                self.ask |= self.governor.on_pressure(&Pressure { refaults, ..pressure });
            }
            Input::Ran(space) => {
                self.sleepers.ran(now, space);
                self.asleep_requests.retain(|request| space_of(&self.pages, request) != Some(space));
            }
            Input::Slept(space, since) => self.sleepers.slept(space, since),
            Input::ShortBy(pages) => self.sleepers.short_by(pages),
            Input::Wake(space) => self.sleepers.wake(space, &self.pages),
            Input::Fetched(space, range) => self.fetched(now, space, range),
            Input::Capacity(tier, pages) => self.capacity[tier.index()] = pages,
            Input::Goal(goal) => {
                self.goal = goal;
                self.ask = true;
            }
            Input::SamplerTime(spent) => self.feedback(now, Feedback::SamplerTime(spent)),
            Input::FileBacked(space, range) => self.pages.set_file(space, range),
            Input::Limits(space, limits) => self.governor.set_limits(space, limits),
            Input::TotalLimits(limits) => self.governor.set_total_limits(limits),
            Input::Rate(rate) => {
                self.governor.set_rate(rate);
                self.rate_wait = None;
            }
            Input::Drain(draining) => {
                self.draining = draining;
                self.requests.clear();
                self.asleep_requests.clear();
                self.rate_wait = None;
                self.ask = true;
            }
            Input::Tick => {}
        }
        if self.policy.schedule().wake_at.is_some_and(|wake| wake <= now) {
            self.ask = true;
        }
    }

    /// The next output. [`Output::Wake`] means nothing more until the time it names.
    pub fn poll(&mut self, now: Time) -> Output {
        if self.in_flight.is_none()
            && let Some(plan) = self.next_plan(now)
        {
            return Output::Move(plan);
        }
        let Schedule { cadence, wake_at } = self.policy.schedule();
        if self.cadence != Some(cadence) {
            self.cadence = Some(cadence);
            return Output::Track(cadence);
        }
        // A policy that wakes at `now` was asked just above; it must not make the driver spin.
        let policy = wake_at.filter(|wake| *wake > now);
        let rate = self.rate_wait.filter(|wait| *wait > now && !self.requests.is_empty());
        let asleep = match self.asleep_requests.is_empty() {
            true => Some(self.sleepers.look_at()).filter(|at| *at > now),
            false => self.asleep_wait.filter(|wait| *wait > now),
        };
        Output::Wake([policy, rate, asleep].into_iter().flatten().min().unwrap_or(Time::FAR_FUTURE))
    }

    /// Which programs sleep, and what was learned of them.
    pub fn sleepers(&self) -> &Sleepers {
        &self.sleepers
    }

    /// Whether rounds may leave out programs that sleep: the policy knows of it, and their pages leave by themselves.
    pub fn knows_sleep(&self) -> bool {
        self.policy.knows_sleep() && self.goal.limit(0).is_none() && self.governor.terms().is_some()
    }

    /// What is to be fetched ahead of its use since the last call. A driver that says which programs run calls this after every input of a
    /// [`Output::Wake`]. It needs no answer: what came back is seen as any return is.
    pub fn fetches(&mut self) -> Vec<Fetch> {
        self.sleepers.take_fetches()
    }

    /// The page state.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// The ledger of moves.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The governor and its counts of rejections.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.profile().name
    }

    /// The policy's metrics.
    pub fn policy_metrics(&self) -> Vec<Metric> {
        self.policy.report().metrics
    }

    /// Passes an oracle to the policy. Returns whether it uses one.
    pub fn foresee(&mut self, oracle: Box<dyn Oracle>) -> bool {
        let wanted = self.policy_needs().future;
        if wanted {
            self.policy.configure(Setup { oracle: Some(oracle), ..Setup::default() });
        }
        wanted
    }

    /// The pages whose every use should be reported as a hint fault from now on, if they changed since the last call.
    /// A driver with hint faults calls this after every [`Output::Wake`].
    pub fn watch(&mut self) -> Option<Vec<crate::units::PageId>> {
        match self.policy.facet()? {
            Facet::Watch(pages) => pages.watch(),
            Facet::Lists(_) => None,
        }
    }

    /// Moves the policy's marks for the kernel's own lists since the last call to the end of `into`. A driver that supports
    /// [`Kernel::lists`](crate::policy::Kernel::lists) calls this after every batch of observations.
    pub fn list_marks(&mut self, into: &mut Vec<crate::policy::ListMark>) {
        if let Some(Facet::Lists(lists)) = self.policy.facet() {
            lists.marks(into);
        }
    }

    /// The observations that the policy needs.
    pub fn policy_needs(&self) -> Needs {
        self.policy.profile().needs()
    }

    /// Bytes the policy keeps besides the pages.
    pub fn policy_memory_bytes(&self) -> usize {
        self.policy.report().memory_bytes
    }

    /// The tier for a page that is touched for the first time, if the driver can choose.
    pub fn place(&mut self, now: Time, page: crate::units::PageId) -> TierId {
        let tiers = self.tier_use();
        let capacity = capacity(&tiers, self.goal, &self.pages, &self.governor);
        self.policy.place(now, page, &capacity)
    }

    /// Whether a drain still has pages to promote: those that Terrace moved to slower memory.
    pub fn has_pages_to_bring_back(&self) -> bool {
        let mut requests = MoveRequests::with_limit(1);
        request_back(&self.pages, &mut requests);
        requests.left() == 0
    }

    /// Requests that wait for the rate, which more bandwidth would serve. In 4 KiB pages or huge blocks.
    pub fn waiting(&self) -> usize {
        if self.rate_wait.is_some() { self.requests.len() } else { 0 }
    }

    /// The capacity view.
    pub fn tier_use(&self) -> Vec<TierUse> {
        let used = |tier| self.pages.used_in_all(TierId(tier as u8));
        self.capacity.iter().enumerate().map(|(tier, &capacity)| TierUse { used: used(tier), capacity }).collect()
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>) {
        self.policy.feedback(now, feedback, &mut self.pages);
    }

    fn next_plan(&mut self, now: Time) -> Option<Plan> {
        if let Some(plan) = self.plan_of_sleepers(now) {
            return Some(plan);
        }
        loop {
            if self.ask {
                self.ask = false;
                self.ask_policy(now);
            }
            if self.requests.is_empty() || self.rate_wait.is_some_and(|wait| wait > now) {
                return None;
            }
            self.rate_wait = None;
            let tiers = self.tier_use();
            let limit = match self.draining {
                true => None,
                false => self.goal.limit(self.pages.footprint_of_all()),
            };
            let requests = self.requests.make_contiguous();
            let granted = self.governor.admit(now, requests, &mut self.pages, &tiers, limit);
            self.requests.drain(..granted.consumed);
            self.requests.extend(granted.deferred);
            for (request, rejection) in &granted.rejected {
                self.policy.feedback(now, Feedback::Rejected(request, *rejection), &mut self.pages);
            }
            self.rate_wait = granted.wait_until;
            self.granted_of_list |= !granted.moves.is_empty();
            // A cut list has a continuation; ask for it only if this part led to moves.
            if self.requests.is_empty() && self.cut && self.granted_of_list {
                self.ask = true;
            }
            if !granted.moves.is_empty() {
                return Some(self.begin(granted.moves));
            }
            if granted.consumed == 0 {
                return None;
            }
        }
    }

    fn begin(&mut self, moves: Vec<crate::plan::Move>) -> Plan {
        self.plans += 1;
        let plan = Plan { number: self.plans, moves };
        self.in_flight = Some(plan.clone());
        plan
    }

    /// What leaves because its program sleeps. Where a number is the goal the policy alone says who leaves, and what leaves goes to swap, from which
    /// it comes back by itself.
    fn plan_of_sleepers(&mut self, now: Time) -> Option<Plan> {
        if self.draining || self.sleepers.is_unknown() || !self.knows_sleep() {
            return None;
        }
        let terms = self.governor.terms()?;
        if self.asleep_requests.is_empty() && self.sleepers.look_at() <= now {
            self.asleep_requests = self.sleepers.leave(now, &terms, &self.pages, REQUESTS_AT_A_TIME).into();
        }
        while !self.asleep_requests.is_empty() && self.asleep_wait.is_none_or(|wait| wait <= now) {
            let tiers = self.tier_use();
            let requests = self.asleep_requests.make_contiguous();
            let granted = self.governor.admit(now, requests, &mut self.pages, &tiers, None);
            self.asleep_requests.drain(..granted.consumed);
            self.asleep_wait = granted.wait_until;
            if !granted.moves.is_empty() {
                return Some(self.begin(granted.moves));
            }
            if granted.consumed == 0 {
                break;
            }
        }
        None
    }

    fn ask_policy(&mut self, now: Time) {
        let tiers = self.tier_use();
        let capacity = capacity(&tiers, self.goal, &self.pages, &self.governor);
        let mut requests = MoveRequests::with_limit(REQUESTS_AT_A_TIME);
        if self.draining {
            request_back(&self.pages, &mut requests);
        } else {
            if !self.sleepers.is_unknown() && self.policy.knows_sleep() {
                self.states.clear();
                let (sleepers, governor, knows) = (&self.sleepers, &self.governor, self.knows_sleep());
                self.states.extend(self.pages.spaces().map(|space| ProgramState {
                    space,
                    awake_since: if knows { sleepers.awake_since(space) } else { Some(Time::ZERO) },
                    backoff: governor.backoff_of(space),
                    least_idle: governor.least_idle_of(space),
                }));
                self.policy.feedback(now, Feedback::Programs(&self.states), &mut self.pages);
            }
            self.policy.plan(now, &capacity, &mut self.pages, &mut requests);
        }
        self.cut = requests.left() == 0;
        self.granted_of_list = false;
        self.requests = self.governor.probe(requests.into_vec(), &self.pages).into();
    }

    fn hand_over(&mut self, now: Time, from: (SpaceId, Vpn), to: (SpaceId, Vpn), pages: u64) {
        let blocks = self.pages.map(to.0, to.1..Vpn(to.1.0 + pages));
        self.policy.remap(now, Remap::Mapped(&blocks), &mut self.pages);
        for offset in 0..pages {
            let found = self.pages.find(from.0, Vpn(from.1.0 + offset));
            if let (Some(old), Some(new)) = (found, self.pages.find(to.0, Vpn(to.1.0 + offset))) {
                self.pages.hand(old, new);
            }
        }
    }

    /// Pages that were fetched were promoted, and are no return by use.
    fn fetched(&mut self, now: Time, space: SpaceId, range: Range<Vpn>) {
        let mut outcomes = Vec::new();
        for vpn in (range.start.0..range.end.0).map(Vpn) {
            let Some(page) = self.pages.find(space, vpn) else { continue };
            let known = self.pages[page];
            let Some(from) = known.tier().filter(|tier| *tier > TierId::FAST && !known.moving()) else { continue };
            let action = Action::MoveTo(TierId::FAST);
            let item = crate::plan::Move { page, pages: 1, from, action, reason: Reason::Prefetch };
            let outcome = Outcome { item, done: 1, failure: None };
            self.ledger.enter(now, self.plans, space, vpn, &outcome);
            self.pages.set_tier(page, Some(TierId::FAST));
            self.pages.change(page, |page| self.governor.on_drained(now, page));
            self.governor.note_return(space, false);
            outcomes.push(outcome);
        }
        self.feedback(now, Feedback::Moved(&outcomes));
    }

    /// When they were moved is not known any more: they are past every cooldown, and no return of theirs is a ping-pong.
    fn claim(&mut self, space: SpaceId, range: Range<Vpn>) {
        for vpn in range.start.0..range.end.0 {
            let Some(page) = self.pages.find(space, Vpn(vpn)) else { continue };
            if self.pages[page].tier().is_some_and(|tier| tier > TierId::FAST) {
                self.pages.change(page, |page| page.set_demoted(true));
            }
        }
    }

    /// Updates the pages' tiers from a scan, and finds refaulted pages.
    fn apply_scan(&mut self, now: Time, scan: &ScanBatch<'_>) {
        self.refaulted.clear();
        for (offset, pte) in scan.ptes.iter().enumerate() {
            let page = scan.first.plus(offset as u32);
            let tier = pte.tier();
            let known = self.pages[page];
            if known.tier() == tier || known.moving() || !known.managed() {
                continue;
            }
            let before = self.pages.set_tier(page, tier);
            match (before, tier) {
                (Some(before), Some(after)) if after < before && known.demoted() => self.refaulted(now, page),
                // Its memory was freed: the history of the old contents does not apply to the new.
                (_, None) => self.pages.change(page, |page| page.set_demoted(false)),
                _ => {}
            }
        }
        let whole = scan.first.offset() == 0 && scan.ptes.len() == BLOCK_PAGES as usize;
        let huge = whole && scan.ptes.iter().all(|pte| pte.huge());
        if self.pages.block(scan.first.block()).is_some_and(|block| block.huge != huge) {
            self.pages.set_huge(scan.first.block(), huge);
        }
        if !self.refaulted.is_empty() {
            let events = std::mem::take(&mut self.refaulted);
            self.policy.observe(now, Observations::Events(&events), &mut self.pages);
            self.refaulted = events;
        }
    }

    fn apply_events(&mut self, now: Time, events: &[Observation]) {
        self.refaulted.clear();
        for event in events {
            match *event {
                Observation::Allocated { page, tier } => {
                    self.pages.set_tier(page, Some(tier));
                }
                Observation::Freed { page } => {
                    self.pages.set_tier(page, None);
                    self.pages.change(page, |page| page.set_demoted(false));
                }
                Observation::Refault { page } if self.pages[page].demoted() => {
                    self.pages.set_tier(page, Some(TierId::FAST));
                    self.refaulted(now, page);
                }
                _ => {}
            }
        }
    }

    fn refaulted(&mut self, now: Time, page: crate::units::PageId) {
        let ping_pong = self.pages.change(page, |page| self.governor.on_returned(now, page));
        self.ledger.returned(ping_pong);
        if !self.sleepers.is_unknown() {
            let (space, vpn) = self.pages.locate(page);
            let paid = self.sleepers.came_back(now, space, vpn, &self.pages);
            self.governor.note_return(space, ping_pong && !paid);
            if paid {
                // Its program has slept for as long as that is worth: the page needs no rest for having left too soon.
                self.pages.change(page, |page| page.set_ping_pong(0));
            }
        }
        self.refaulted.push(Observation::Refault { page });
    }

    /// Records the outcomes of a plan. Returns the pages that do not exist according to the kernel, as gone: they are forgotten until they
    /// are seen again, or the policy would request them over and over.
    fn apply_outcomes(&mut self, now: Time, outcomes: &[Outcome]) -> Vec<Observation> {
        let mut missing = Vec::new();
        let Some(plan) = self.in_flight.take() else { return missing };
        for outcome in outcomes {
            let item = outcome.item;
            if self.pages.block(item.page.block()).is_none() {
                continue;
            }
            let (space, first) = self.pages.locate(item.page);
            self.ledger.enter(now, plan.number, space, first, outcome);
            for offset in 0..item.pages {
                self.pages[item.page.plus(offset)].set_moving(false);
            }
            match item.action {
                // The next scan shows which pages of a partly moved block went; the ledger has the counts already.
                Action::MoveTo(to) if outcome.done == item.pages => {
                    self.apply_move(now, outcome, to);
                    if item.reason == Reason::Asleep {
                        self.sleepers.sent(space, u64::from(item.pages));
                    }
                }
                // No round reads where the pages of a sleeping program lie: the kernel has been there before.
                Action::MoveTo(to) if item.reason == Reason::Asleep && outcome.failure == Some(Failure::ByOthers) => {
                    (0..item.pages).for_each(|offset| _ = self.pages.set_tier(item.page.plus(offset), Some(to)));
                }
                Action::Split if outcome.done > 0 => self.pages.set_split(item.page.block()),
                Action::Collapse if outcome.done > 0 => self.pages.set_huge(item.page.block(), true),
                _ => {}
            }
            match outcome.failure {
                // A block that cannot be split may still move.
                _ if item.action.remaps() => {}
                Some(failure) if failure.is_permanent() => self.pages[item.page].set_pinned(true),
                // What is better left where it is is not asked for again at once.
                Some(Failure::Stayed | Failure::Incompressible | Failure::ByOthers) => {
                    self.governor.on_stayed(now, &mut self.pages[item.page])
                }
                Some(failure) if failure.is_absence() && outcome.done == 0 => {
                    for page in (0..item.pages).map(|offset| item.page.plus(offset)) {
                        self.pages.set_tier(page, None);
                        self.pages.change(page, |page| page.set_demoted(false));
                        missing.push(Observation::Freed { page });
                    }
                }
                _ => {}
            }
        }
        // A move without an outcome is a defect of the driver; its pages must not stay marked forever.
        for item in plan.moves.iter().skip(outcomes.len()) {
            if self.pages.block(item.page.block()).is_some() {
                for offset in 0..item.pages {
                    self.pages[item.page.plus(offset)].set_moving(false);
                }
            }
        }
        missing
    }

    fn apply_move(&mut self, now: Time, outcome: &Outcome, to: TierId) {
        let item = outcome.item;
        for offset in 0..item.pages {
            let page = item.page.plus(offset);
            self.pages.set_tier(page, Some(to));
            if to > item.from {
                self.pages.change(page, |page| self.governor.on_demoted(now, page));
                if item.reason != Reason::Asleep
                    && let Some(block) = self.pages.block(page.block())
                {
                    self.governor.note_demoted(block.space);
                }
            } else if item.reason == Reason::Drain {
                self.pages.change(page, |page| self.governor.on_drained(now, page));
            } else {
                let ping_pong = self.pages.change(page, |page| self.governor.on_returned(now, page));
                if ping_pong {
                    self.ledger.ping_pong();
                }
                if let Some(block) = self.pages.block(page.block()) {
                    self.governor.note_return(block.space, ping_pong);
                }
            }
        }
    }
}

/// Requests all pages that Terrace demoted, in address order, which reads fastest.
fn request_back(pages: &Pages, requests: &mut MoveRequests) {
    for (block, info) in pages.blocks() {
        let step = if info.huge { BLOCK_PAGES as usize } else { 1 };
        for (offset, page) in pages.block_pages(block).iter().enumerate().step_by(step) {
            let away = page.demoted() && !page.pinned() && page.tier().is_some_and(|tier| tier > TierId::FAST);
            if away && !requests.move_to(block.first_page().plus(offset as u32), TierId::FAST, Reason::Drain) {
                return;
            }
        }
    }
}

fn space_of(pages: &Pages, request: &MoveRequest) -> Option<SpaceId> {
    pages.block(request.page.block()).map(|block| block.space)
}

fn capacity<'a>(tiers: &'a [TierUse], goal: FastGoal, pages: &Pages, governor: &Governor) -> CapacityView<'a> {
    let footprint = pages.footprint_of_all();
    CapacityView {
        tiers,
        fast_limit: goal.limit(footprint),
        footprint,
        backoff: governor.backoff(),
        least_idle: governor.least_idle(),
        swap: governor.swap_costs(),
    }
}

#[cfg(test)]
mod tests;
