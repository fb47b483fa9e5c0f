//! The engine in a run: its inputs, its wake-ups, and how its ids, the simulation's pages and the source's addresses go
//! together.
//!
//! In: observations, places that changed, time. Out: inputs to the engine in the order a live manager would see them, its answers. Must
//! not: move or map anything, or call `poll` more often than the rule of use allows: one `handle`, then `poll` until it answers `Wake`.

use std::time::Duration;

use terrace_core::engine::{Engine, Input, Output};
use terrace_core::observation::{Observation, Observations, PteState, ScanBatch};
use terrace_core::policy::Oracle;
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, BlockId, PageId, SpaceId, TierId, Time, Vpn};
use terrace_machine::memory::PageWord;
use terrace_machine::mmu::tables::REGION_SHIFT;

use super::Simulation;
use super::pressure::Reported;
use crate::error::SimError;

/// A block the engine does not know.
const NO_BLOCK: u32 = u32::MAX;

/// See the module's header.
pub(super) struct EngineLink {
    engine: Engine,
    wake: Time,
    /// Whether it is known where the source's pages begin.
    based: bool,
    /// The engine's first page of each block, and back.
    ids: Vec<u32>,
    blocks: Vec<u32>,
    /// The next input of the engine.
    events: Vec<Observation>,
    born: Vec<Observation>,
    /// Units whose tier or mapping changed behind the engine's back.
    relocated: Vec<u32>,
    /// Kept for its memory.
    ptes: Vec<PteState>,
    /// What the engine knows of the processor's counters.
    told: ProcessorCounts,
    reported: Reported,
}

impl EngineLink {
    pub(super) fn new(engine: Engine) -> EngineLink {
        EngineLink {
            engine,
            wake: Time::ZERO,
            based: false,
            ids: Vec::new(),
            blocks: Vec::new(),
            events: Vec::new(),
            born: Vec::new(),
            relocated: Vec::new(),
            ptes: Vec::new(),
            told: ProcessorCounts::default(),
            reported: Reported::default(),
        }
    }

    /// The engine, to look at.
    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Passes an input to the engine at once.
    pub(super) fn handle(&mut self, now: Time, input: Input<'_>) {
        self.engine.handle(now, input);
    }

    /// Passes the processor's counters to the engine. Returns the previous ones.
    pub(super) fn told(&mut self, counts: ProcessorCounts) -> ProcessorCounts {
        std::mem::replace(&mut self.told, counts)
    }

    /// What of the costs of compressed memory was reported.
    pub(super) fn reported(&self) -> Reported {
        self.reported
    }

    /// They were reported up to here.
    pub(super) fn set_reported(&mut self, reported: Reported) {
        self.reported = reported;
    }

    /// Gives the policy an oracle. Returns whether it has a use for it.
    pub(super) fn foresee(&mut self, oracle: Box<dyn Oracle>) -> bool {
        self.engine.foresee(oracle)
    }

    /// Records an observation; the engine receives it at the end of the stretch.
    pub(super) fn saw(&mut self, event: Observation) {
        self.events.push(event);
    }

    /// A page received memory.
    pub(super) fn born(&mut self, event: Observation) {
        self.born.push(event);
    }

    /// A unit's tier or mapping changed, and the engine did not ask for it.
    pub(super) fn relocated(&mut self, unit: u32) {
        self.relocated.push(unit);
    }

    /// Where the policy wants a new page.
    pub(super) fn place(&mut self, now: Time, page: u32) -> TierId {
        let id = self.id(page);
        self.engine.place(now, id)
    }

    /// The engine's id of a page.
    pub(super) fn id(&self, page: u32) -> PageId {
        PageId(self.ids[(page >> BLOCK_SHIFT) as usize] + (page & (BLOCK_PAGES - 1)))
    }

    /// The page behind an id of the engine.
    pub(super) fn page(&self, id: PageId) -> Option<u32> {
        let block = *self.blocks.get(id.block().0 as usize)?;
        (block != NO_BLOCK).then(|| (block << BLOCK_SHIFT) + id.offset())
    }

    /// Whether the engine knows the page's block.
    pub(super) fn known(&self, page: u32) -> bool {
        self.ids.get((page >> BLOCK_SHIFT) as usize).is_some_and(|&id| id != NO_BLOCK)
    }

    /// The blocks that the engine knows, in order.
    pub(super) fn known_blocks(&self) -> Vec<u32> {
        (0..self.ids.len() as u32).filter(|&block| self.ids[block as usize] != NO_BLOCK).collect()
    }

    /// Blocks there are, known or not.
    pub(super) fn blocks(&self) -> usize {
        self.ids.len()
    }

    pub(super) fn grow(&mut self, pages: usize) {
        self.ids.resize(pages >> BLOCK_SHIFT, NO_BLOCK);
    }

    /// Blocks of a region that the engine knows: their ids from now on.
    pub(super) fn learn(&mut self, space: SpaceId, block: u32, start: Vpn) {
        if self.ids[block as usize] != NO_BLOCK {
            return;
        }
        if let Some(id) = self.engine.pages().find_block(space, start) {
            self.ids[block as usize] = id.first_page().0;
            let known = id.0 as usize;
            if self.blocks.len() <= known {
                self.blocks.resize(known + 1, NO_BLOCK);
            }
            self.blocks[known] = block;
        }
    }

    /// Pages of a block are gone. The engine gives an empty block's ids to the next: it is forgotten when no page of it is left.
    pub(super) fn forget(&mut self, block: u32, start: Vpn) {
        let id = self.ids[block as usize];
        if id == NO_BLOCK {
            return;
        }
        let known: BlockId = PageId(id).block();
        if self.engine.pages().block(known).is_none_or(|info| info.start != start) {
            self.ids[block as usize] = NO_BLOCK;
            self.blocks[known.0 as usize] = NO_BLOCK;
        }
    }
}

impl Simulation {
    /// The source's number of page 0.
    pub(crate) fn base(&self) -> u64 {
        self.hot.base()
    }

    /// The first page of the source, if none was known.
    pub(crate) fn begin_at(&mut self, first: Vpn) {
        if self.link.based {
            return;
        }
        self.link.based = true;
        // Dense numbering, as traces have it, begins with zero.
        let mut base = if first.block_start().0 < 1 << 32 { 0 } else { first.block_start().0 };
        if let Some(run) = &mut self.hot.mmu {
            // Page tables are aligned to what they cover.
            base &= !((1 << REGION_SHIFT) - 1);
            run.add_space(SpaceId(0), 0, base);
            for (space, first) in (0..).zip(self.spaces.starts()).skip(1) {
                run.add_space(SpaceId(space), *first, base + u64::from(*first));
            }
        }
        self.hot.set_base(base);
    }

    pub(super) fn page_of(&mut self, vpn: Vpn) -> Result<u32, SimError> {
        self.begin_at(vpn);
        let page = vpn.0.wrapping_sub(self.base());
        if page < 1 << 31 {
            Ok(page as u32)
        } else {
            Err(SimError::Address { address: vpn.address(), base: Vpn(self.base()).address() })
        }
    }

    pub(super) fn vpn(&self, page: u32) -> Vpn {
        Vpn(self.base() + u64::from(page))
    }

    /// Passes the observations since the last call to the engine. Returns whether there were any.
    pub(super) fn deliver(&mut self) -> bool {
        let now = self.now();
        let mut news = false;
        if let Some(spent) = self.trackers.take_sampler_time() {
            let spent = spent * f64::from(self.config.scale.factor());
            self.link.handle(now, Input::SamplerTime(Duration::from_nanos(spent as u64)));
        }
        let link = &mut self.link;
        if !link.born.is_empty() {
            link.engine.handle(now, Input::Observed(Observations::Events(&link.born)));
            link.born.clear();
            news = true;
        }
        if !link.relocated.is_empty() {
            let mut relocated = std::mem::take(&mut link.relocated);
            relocated.sort_unstable();
            relocated.dedup();
            for &page in &relocated {
                self.tell_place(now, page);
            }
            relocated.clear();
            self.link.relocated = relocated;
            news = true;
        }
        let link = &mut self.link;
        if !link.events.is_empty() {
            link.engine.handle(now, Input::Observed(Observations::Events(&link.events)));
            link.events.clear();
            news = true;
        }
        news
    }

    /// Passes the tier of a unit to the engine, and a block's pages all at once if it is or was huge.
    fn tell_place(&mut self, now: Time, page: u32) {
        let (link, memory) = (&mut self.link, &self.hot.memory);
        if !link.known(page) {
            return;
        }
        let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
        let known_huge = link.engine.pages().block(link.id(first).block()).is_some_and(|block| block.huge);
        let whole = known_huge || memory.word(page).has(PageWord::HUGE);
        let range = if whole { first..first + BLOCK_PAGES } else { page..page + 1 };
        link.ptes.clear();
        link.ptes.extend(range.clone().map(|page| {
            let word = memory.word(page);
            word.tier().map_or(PteState::ABSENT, |tier| PteState::placed(tier).with_huge(word.has(PageWord::HUGE)))
        }));
        let scan = ScanBatch { first: link.id(range.start), ptes: &link.ptes, window: None, cleared: false };
        link.engine.handle(now, Input::Observed(Observations::Scan(scan)));
    }

    /// Wakes the engine if it is due, and passes the processor's counts to it; policies of the MMU's counters get these
    /// with each round alone. Returns whether the engine has to be polled.
    pub(super) fn wake_if_due(&mut self, news: bool) -> bool {
        let now = self.now();
        if now < self.link.wake {
            return news;
        }
        let input = match self.link.engine.policy_needs().counters {
            true => Input::Tick,
            false => Input::Processor(self.processor_counts()),
        };
        self.link.handle(now, input);
        true
    }

    /// Polls until the engine wants to be woken, carrying out what it asks for.
    pub(super) fn poll(&mut self) {
        let now = self.now();
        loop {
            match self.link.engine.poll(now) {
                Output::Move(plan) => self.carry_out(&plan),
                Output::Track(cadence) => self.set_cadence(cadence),
                Output::Wake(at) => {
                    self.link.wake = at;
                    if self.trackers.serves_hint_faults()
                        && let Some(pages) = self.link.engine.watch()
                    {
                        self.watch(&pages);
                    }
                    return;
                }
            }
            // A plan that cost the mover nothing (all failed, or paid by the program) is answered at once.
            self.answer_plan();
        }
    }
}
