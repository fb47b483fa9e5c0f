//! A driver for tests: an engine, its pages, and a mover that carries out its plans unless the test says otherwise.
//!
//! In: births, samples, faults, time. Out: the moves that were carried out. Must not: model hardware; the simulator does.
#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "shared by several test crates, none of which uses all of it"
)]

use std::time::Duration;

use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::GovernorConfig;
use terrace_core::observation::{Access, Observation, Observations, PteState, ScanBatch};
use terrace_core::plan::{Action, Failure, Move, Outcome};
use terrace_core::policy::{Cadence, FastGoal, Policy, Setup};
use terrace_core::units::{PageId, SpaceId, TierId, Time, Vpn};

pub const SPACE: SpaceId = SpaceId(0);
pub const SLOW: TierId = TierId(1);

pub struct Rig {
    pub engine: Engine,
    pub now: Time,
    pub cadence: Cadence,
    pub moves: Vec<Move>,
    pub promotions: u64,
    pub demotions: u64,
    /// Free fast pages below which promotions fail for lack of room, as the kernel's watermark has it.
    pub watermark: u64,
    /// Free fast pages that the kernel beneath restores as time passes; 0 where it demotes nothing.
    pub kernel_goal: u64,
    blocks: u64,
    /// The block from which the kernel demotes next.
    hand: u64,
    pub failed_promotions: u64,
    /// Free fast pages at their least since the test last looked.
    pub least_free: u64,
}

/// What the simulator tells of a model smaller by `factor`.
pub fn scaled(factor: u32) -> Setup {
    Setup { scale: Some(factor), ..Setup::default() }
}

/// What the simulator tells where a page stands for a huge one.
pub fn folded(parts: u32) -> Setup {
    Setup { sample_parts: Some(parts), ..Setup::default() }
}

impl Rig {
    pub fn new(policy: Box<dyn Policy>, tiers: &[u64]) -> Rig {
        let governor = GovernorConfig { cooldown: Duration::ZERO, ..GovernorConfig::default() };
        let goal = FastGoal::Pages(tiers[0]);
        let mut rig = Rig {
            engine: Engine::new(EngineConfig { tiers: tiers.to_vec(), goal, governor }, policy),
            now: Time::ZERO,
            cadence: Cadence::default(),
            moves: Vec::new(),
            promotions: 0,
            demotions: 0,
            watermark: 0,
            kernel_goal: 0,
            blocks: 0,
            hand: 0,
            failed_promotions: 0,
            least_free: u64::MAX,
        };
        rig.settle();
        rig
    }

    pub fn map(&mut self, pages: u64) {
        self.blocks = pages.div_ceil(512);
        self.engine.handle(self.now, Input::Mapped(SPACE, Vpn(0)..Vpn(pages)));
        self.settle();
    }

    pub fn page(&self, vpn: u64) -> PageId {
        self.engine.pages().find(SPACE, Vpn(vpn)).unwrap()
    }

    pub fn tier(&self, vpn: u64) -> Option<TierId> {
        self.engine.pages()[self.page(vpn)].tier()
    }

    pub fn fast_used(&self) -> u64 {
        self.engine.tier_use()[0].used
    }

    pub fn fast_free(&self) -> u64 {
        self.engine.tier_use()[0].free()
    }

    /// First touch of pages, each where the policy places it.
    pub fn touch_first(&mut self, vpns: impl IntoIterator<Item = u64>) {
        for vpn in vpns {
            let page = self.page(vpn);
            let tier = self.engine.place(self.now, page);
            self.events(&[Observation::Allocated { page, tier }]);
        }
    }

    pub fn born(&mut self, vpns: impl IntoIterator<Item = u64>, tier: TierId) {
        let events: Vec<_> =
            vpns.into_iter().map(|vpn| Observation::Allocated { page: self.page(vpn), tier }).collect();
        self.events(&events);
    }

    /// A walk that finds a whole block mapped by one entry, its marks not read.
    pub fn born_huge(&mut self, block: u64, tier: TierId) {
        let ptes = vec![PteState::placed(tier).with_huge(true); 512];
        let scan = ScanBatch { first: self.page(block * 512), ptes: &ptes, window: None, cleared: false };
        self.engine.handle(self.now, Input::Observed(Observations::Scan(scan)));
        self.settle();
    }

    /// A walk over one block that read the accessed bits.
    pub fn scan(&mut self, block: u64, accessed: impl Fn(u64) -> bool) {
        let first = self.page(block * 512);
        let ptes: Vec<PteState> = (0..512u32)
            .map(|offset| match self.engine.pages()[first.plus(offset)].tier() {
                Some(tier) => PteState::placed(tier).with_accessed(accessed(block * 512 + u64::from(offset))),
                None => PteState::ABSENT,
            })
            .collect();
        let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
        self.engine.handle(self.now, Input::Observed(Observations::Scan(scan)));
        self.settle();
    }

    pub fn sample(&mut self, vpns: impl IntoIterator<Item = u64>) {
        for vpn in vpns {
            let page = self.page(vpn);
            self.events(&[Observation::Sampled { page, access: Access::Load, period: 199 }]);
        }
    }

    /// Hint faults now, on pages marked so long ago.
    pub fn fault(&mut self, vpns: impl IntoIterator<Item = u64>, ago: Duration, write: bool) {
        let marked = Time::from_nanos(self.now.as_nanos().saturating_sub(ago.as_nanos() as u64));
        for vpn in vpns {
            let page = self.page(vpn);
            self.events(&[Observation::HintFault { page, write, marked }]);
        }
    }

    pub fn events(&mut self, events: &[Observation]) {
        self.engine.handle(self.now, Input::Observed(Observations::Events(events)));
        self.settle();
    }

    /// Lets time pass, waking the engine when it asked for it.
    pub fn pass(&mut self, span: Duration) {
        self.kernel_demotes();
        let end = self.now + span;
        loop {
            let wake = self.settle();
            if wake > end {
                break;
            }
            self.now = wake.max(self.now + Duration::from_nanos(1));
            self.engine.handle(self.now, Input::Tick);
        }
        self.now = end;
        self.engine.handle(self.now, Input::Tick);
        self.settle();
    }

    /// The kernel demotes block by block, and walks show where its pages are now.
    fn kernel_demotes(&mut self) {
        for _ in 0..self.blocks {
            let mut wanted = self.kernel_goal.saturating_sub(self.fast_free());
            if wanted == 0 {
                return;
            }
            let first = self.page(self.hand * 512);
            let ptes: Vec<PteState> = (0..512)
                .map(|offset| match self.engine.pages()[first.plus(offset)].tier() {
                    Some(TierId::FAST) if wanted > 0 => {
                        wanted -= 1;
                        PteState::placed(SLOW)
                    }
                    Some(tier) => PteState::placed(tier),
                    None => PteState::ABSENT,
                })
                .collect();
            let scan = ScanBatch { first, ptes: &ptes, window: None, cleared: false };
            self.engine.handle(self.now, Input::Observed(Observations::Scan(scan)));
            self.settle();
            self.hand = (self.hand + 1) % self.blocks;
        }
    }

    /// Carries out every plan until the engine wants to be woken, and returns when.
    pub fn settle(&mut self) -> Time {
        loop {
            match self.engine.poll(self.now) {
                Output::Move(plan) => {
                    let mut free = self.fast_free();
                    let outcomes: Vec<Outcome> =
                        plan.moves.iter().map(|&item| self.carry_out(item, &mut free)).collect();
                    self.moves.extend(plan.moves);
                    self.engine.handle(self.now, Input::Moved(&outcomes));
                    self.least_free = self.least_free.min(self.fast_free());
                }
                Output::Track(cadence) => self.cadence = cadence,
                Output::Wake(at) => return at,
            }
        }
    }

    fn carry_out(&mut self, item: Move, free: &mut u64) -> Outcome {
        let pages = u64::from(item.pages);
        match item.action {
            Action::MoveTo(TierId::FAST) if *free < self.watermark + pages => {
                self.failed_promotions += pages;
                return Outcome { item, done: 0, failure: Some(Failure::NoRoom) };
            }
            Action::MoveTo(TierId::FAST) => {
                self.promotions += pages;
                *free -= pages;
            }
            Action::MoveTo(_) if item.from == TierId::FAST => {
                self.demotions += pages;
                *free += pages;
            }
            _ => {}
        }
        Outcome { item, done: item.pages, failure: None }
    }

    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.engine.policy_metrics();
        metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no metric {name}")).value
    }
}
