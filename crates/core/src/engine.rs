//! The engine: where observations, policy, governor and outcomes meet. It performs no I/O and reads no clock.
//!
//! In: [`Input`], with the time it happened. Out: [`Output`]: a plan to carry out, a new cadence, or when to be
//! woken. Must not: hand out a second plan before the first is answered.
//!
//! Rule of use: call [`Engine::handle`] once, then [`Engine::poll`] until it answers [`Output::Wake`]. A plan is
//! answered by one [`Input::Moved`] with one outcome a move. A refused move is news, not an error.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use crate::governor::{Governor, GovernorConfig, Pressure, SpaceLimits};
use crate::ledger::Ledger;
use crate::observation::{Observation, Observations, ScanBatch};
use crate::pages::Pages;
use crate::plan::{Action, Failure, MoveRequest, MoveRequests, Outcome, Plan, Reason};
use crate::policy::{
    Cadence, CapacityView, Facet, FastGoal, Feedback, Metric, Needs, Oracle, Policy, Remap, ScanReport, Schedule,
    Setup, TierUse,
};
use crate::prices::{Prices, ProcessorCounts};
use crate::units::{BLOCK_PAGES, Bytes, SpaceId, TierId, Time, Vpn};

/// What the engine is told.
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Pages of a space may be managed from now on.
    Mapped(SpaceId, Range<Vpn>),
    /// Pages of a space are gone.
    Unmapped(SpaceId, Range<Vpn>),
    /// A whole space is gone.
    Exited(SpaceId),
    /// A tracker saw something.
    Observed(Observations<'a>),
    /// The round of accessed bits that the cadence asked for is complete.
    ScanDone(ScanReport),
    /// What the processor counted since the last such input; before [`Input::ScanDone`] or a [`Input::Tick`], where anybody counts.
    Processor(ProcessorCounts),
    /// What changes of place cost from now on.
    Prices(Prices),
    /// The moves of the latest plan were carried out, or failed.
    Moved(&'a [Outcome]),
    /// What the moves so far turned out to cost.
    Pressure(Pressure),
    /// A tier can now hold so many 4 KiB pages of the spaces under management.
    Capacity(TierId, u64),
    /// The goal for fast memory changed.
    Goal(FastGoal),
    /// The sampler used this much processor time since the last such input.
    SamplerTime(Duration),
    /// The blocks of this range of a space hold pages of files, not anonymous memory. Follows [`Input::Mapped`].
    FileBacked(SpaceId, Range<Vpn>),
    /// The promise to a space changed.
    Limits(SpaceId, SpaceLimits),
    /// The promise to all spaces together changed.
    TotalLimits(SpaceLimits),
    /// Most bytes a second that may change tier, from now on.
    Rate(Option<Bytes>),
    /// While true, what Terrace moved to slower memory is brought back and nothing else is planned.
    Drain(bool),
    /// Time passed, nothing else.
    Tick,
}

/// What the engine answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Carry this out and answer with [`Input::Moved`].
    Move(Plan),
    /// Look this often from now on.
    Track(Cadence),
    /// Nothing more until then, or until there is news. [`Time::FAR_FUTURE`] means news only.
    Wake(Time),
}

/// What an engine is made with.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Capacity of each tier for the spaces under management, from fast to slow, in 4 KiB pages.
    pub tiers: Vec<u64>,
    /// How much fast memory to keep.
    pub goal: FastGoal,
    /// Bounds and budgets.
    pub governor: GovernorConfig,
}

/// Most requests taken from a policy at a time: 64 Ki, 768 KiB of list, 256 MiB of base pages.
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
    /// Whether the policy should be asked again, and whether its last list was cut at the limit.
    ask: bool,
    cut: bool,
    granted_of_list: bool,
    /// Until when the rate lets nothing through.
    rate_wait: Option<Time>,
    in_flight: Option<Plan>,
    plans: u64,
    cadence: Option<Cadence>,
    refaulted: Vec<Observation>,
    draining: bool,
}

impl Engine {
    /// An engine that follows `policy`.
    ///
    /// # Panics
    /// When there is no tier, or more than [`TierId::MAX`].
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
        }
    }

    /// Takes in one input. Follow with [`Engine::poll`] until it answers [`Output::Wake`].
    pub fn handle(&mut self, now: Time, input: Input<'_>) {
        match input {
            Input::Mapped(space, range) => {
                let blocks = self.pages.map(space, range);
                self.policy.remap(now, Remap::Mapped(&blocks), &mut self.pages);
            }
            Input::Unmapped(space, range) => {
                self.policy.remap(now, Remap::Unmapping(space, range.clone()), &mut self.pages);
                self.pages.unmap(space, range);
            }
            Input::Exited(space) => {
                self.policy.remap(now, Remap::Unmapping(space, Vpn(0)..Vpn(u64::MAX)), &mut self.pages);
                self.pages.remove_space(space);
            }
            Input::Observed(Observations::Scan(scan)) => {
                self.apply_scan(now, &scan);
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
            Input::Pressure(pressure) => self.governor.on_pressure(&pressure),
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
                self.rate_wait = None;
                self.ask = true;
            }
            Input::Tick => {}
        }
        if self.policy.schedule().wake_at.is_some_and(|wake| wake <= now) {
            self.ask = true;
        }
    }

    /// What to do next; [`Output::Wake`] means nothing more until the time it names.
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
        // A policy that wakes at `now` was asked just above; it must not be able to spin the driver.
        let policy = wake_at.filter(|wake| *wake > now);
        let rate = self.rate_wait.filter(|wait| *wait > now && !self.requests.is_empty());
        Output::Wake([policy, rate].into_iter().flatten().min().unwrap_or(Time::FAR_FUTURE))
    }

    /// All that is known of the pages.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// What was done so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The bounds, and what they have rejected.
    pub fn governor(&self) -> &Governor {
        &self.governor
    }

    /// The policy's name.
    pub fn policy_name(&self) -> &'static str {
        self.policy.profile().name
    }

    /// The policy's figures.
    pub fn policy_metrics(&self) -> Vec<Metric> {
        self.policy.report().metrics
    }

    /// Hands the policy an oracle. Returns whether it has a use for one.
    pub fn foresee(&mut self, oracle: Box<dyn Oracle>) -> bool {
        let wanted = self.policy_needs().future;
        if wanted {
            self.policy.configure(Setup { oracle: Some(oracle), ..Setup::default() });
        }
        wanted
    }

    /// The pages whose every use should be reported as a hint fault from now on, if they changed since the last call.
    /// A driver that offers hint faults asks after every [`Output::Wake`].
    pub fn watch(&mut self) -> Option<Vec<crate::units::PageId>> {
        match self.policy.facet()? {
            Facet::Watch(pages) => pages.watch(),
            Facet::Lists(_) => None,
        }
    }

    /// What the policy said of the kernel's own lists since the last call, moved to the end of `into`. A driver that serves
    /// [`Kernel::lists`](crate::policy::Kernel::lists) asks after every batch of observations.
    pub fn list_marks(&mut self, into: &mut Vec<crate::policy::ListMark>) {
        if let Some(Facet::Lists(lists)) = self.policy.facet() {
            lists.marks(into);
        }
    }

    /// Which observations the policy lives on.
    pub fn policy_needs(&self) -> Needs {
        self.policy.profile().needs()
    }

    /// Bytes the policy keeps beside the pages.
    pub fn policy_memory_bytes(&self) -> usize {
        self.policy.report().memory_bytes
    }

    /// Where a page that is touched for the first time should go, where the driver can choose.
    pub fn place(&mut self, now: Time, page: crate::units::PageId) -> TierId {
        let tiers = self.tier_use();
        let capacity = capacity(&tiers, self.goal, &self.pages, &self.governor);
        self.policy.place(now, page, &capacity)
    }

    /// Whether a drain has still pages to bring back: those that Terrace moved to slower memory.
    pub fn has_pages_to_bring_back(&self) -> bool {
        let mut requests = MoveRequests::with_limit(1);
        request_back(&self.pages, &mut requests);
        requests.left() == 0
    }

    /// Requests that wait for the rate: what a larger share of the bandwidth would be used for. In 4 KiB pages or huge blocks.
    pub fn waiting(&self) -> usize {
        if self.rate_wait.is_some() { self.requests.len() } else { 0 }
    }

    /// How full the tiers are.
    pub fn tier_use(&self) -> Vec<TierUse> {
        let used = |tier| self.pages.used_in_all(TierId(tier as u8));
        self.capacity.iter().enumerate().map(|(tier, &capacity)| TierUse { used: used(tier), capacity }).collect()
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>) {
        self.policy.feedback(now, feedback, &mut self.pages);
    }

    fn next_plan(&mut self, now: Time) -> Option<Plan> {
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
            for (request, rejection) in &granted.rejected {
                self.policy.feedback(now, Feedback::Rejected(request, *rejection), &mut self.pages);
            }
            self.rate_wait = granted.wait_until;
            self.granted_of_list |= !granted.moves.is_empty();
            // A list that was cut has a continuation; asking for it makes sense only if this one led to anything.
            if self.requests.is_empty() && self.cut && self.granted_of_list {
                self.ask = true;
            }
            if !granted.moves.is_empty() {
                self.plans += 1;
                let plan = Plan { number: self.plans, moves: granted.moves };
                self.in_flight = Some(plan.clone());
                return Some(plan);
            }
            if granted.consumed == 0 {
                return None;
            }
        }
    }

    fn ask_policy(&mut self, now: Time) {
        let tiers = self.tier_use();
        let capacity = capacity(&tiers, self.goal, &self.pages, &self.governor);
        let mut requests = MoveRequests::with_limit(REQUESTS_AT_A_TIME);
        if self.draining {
            request_back(&self.pages, &mut requests);
        } else {
            self.policy.plan(now, &capacity, &mut self.pages, &mut requests);
        }
        self.cut = requests.left() == 0;
        self.granted_of_list = false;
        self.requests = requests.into_vec().into();
    }

    /// Brings the pages' places up to date with a walk, and finds the pages that came back by themselves.
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
                // Its memory was given back: what the old contents were does not matter to the new ones.
                (_, None) => self.pages[page].set_demoted(false),
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
                    self.pages[page].set_demoted(false);
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
        let ping_pong = self.governor.on_returned(now, &mut self.pages[page]);
        self.ledger.returned(ping_pong);
        self.refaulted.push(Observation::Refault { page });
    }

    /// Enters what became of a plan. Returns the pages of which the kernel said that there are none, as gone: they are forgotten until
    /// they are seen again, or the policy would ask for them over and over.
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
                // Of a block that went in part the next walk tells which pages; its counts are in the ledger already.
                Action::MoveTo(to) if outcome.done == item.pages => self.apply_move(now, outcome, to),
                Action::Split if outcome.done > 0 => self.pages.set_huge(item.page.block(), false),
                Action::Collapse if outcome.done > 0 => self.pages.set_huge(item.page.block(), true),
                _ => {}
            }
            match outcome.failure {
                Some(failure) if failure.is_permanent() => self.pages[item.page].set_pinned(true),
                Some(Failure::Stayed) => self.governor.on_stayed(now, &mut self.pages[item.page]),
                Some(failure) if failure.is_absence() && outcome.done == 0 => {
                    for page in (0..item.pages).map(|offset| item.page.plus(offset)) {
                        self.pages.set_tier(page, None);
                        self.pages[page].set_demoted(false);
                        missing.push(Observation::Freed { page });
                    }
                }
                _ => {}
            }
        }
        // A move without an outcome is a defect of the driver; its pages must not stay marked for ever.
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
                self.governor.on_demoted(now, &mut self.pages[page]);
            } else if item.reason == Reason::Drain {
                self.governor.on_drained(now, &mut self.pages[page]);
            } else if self.governor.on_returned(now, &mut self.pages[page]) {
                self.ledger.ping_pong();
            }
        }
    }
}

/// Requests everything back that Terrace moved to slower memory, by address: the way it is read fastest.
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

fn capacity<'a>(tiers: &'a [TierUse], goal: FastGoal, pages: &Pages, governor: &Governor) -> CapacityView<'a> {
    let footprint = pages.footprint_of_all();
    CapacityView { tiers, fast_limit: goal.limit(footprint), footprint, backoff: governor.backoff() }
}

#[cfg(test)]
mod tests;
