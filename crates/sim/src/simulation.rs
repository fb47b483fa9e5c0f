//! One run: virtual time, the program's accesses, and the engine driven as the live manager drives it.
//!
//! In: batches of accesses and the events between them (regions, barriers, phases). Out: a [`Report`]. Must not: let
//! the engine see anything that a tracker would not, or any time but the scaled machine's times the scale.
//!
//! Time advances in stretches of some thousand accesses, cut at barriers. Within a stretch the inner loop only counts;
//! at its end the load model says how long it took. Then what was seen is told to the engine, what is due is done
//! (scans, marks, reclaim, moves), and the engine is polled until it wants to be woken.

mod clock;
mod cores;

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_core::engine::{Engine, EngineConfig};
use terrace_core::observation::{Observation, Sight};
use terrace_core::plan::Outcome;
use terrace_core::policy::{Cadence, Kernel, Policy};
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PAGE_BYTES, PageId, SpaceId, TierId, Time, Vpn};
use terrace_machine::cache::Cache;
use terrace_machine::load::{Rates, ThreadWork};
use terrace_machine::media::Media;
use terrace_machine::memory::{Memory, PageWord};
use terrace_machine::memory_mode::MemoryMode;
use terrace_machine::mmu::tables::REGION_SHIFT;
use terrace_machine::preset::{Tier, TierKind};
use terrace_machine::reclaim::Reclaim;
use terrace_machine::sampler::Sampler;
use terrace_machine::scanner::HintScanner;
use terrace_machine::tlb::Tlb;
use terrace_workloads::{Access as WorkloadAccess, AccessSink, Region};

use crate::account::{Costs, Counts};
use crate::colocate::Recorded;
use crate::config::{Pages, SimConfig, SimError};
use crate::copies::Copies;
use crate::heat::HeatMap;
use crate::history::{History, What};
use crate::hot::{Countdown, Hot, Stop, Workspace};
use crate::mmu::interleave::Queued;
use crate::mmu::{MmuConfig, MmuRun};
use crate::oracle::{Future, Progress, Seer};
use crate::prices;
use crate::processes::Process;
use crate::record::Record;
use crate::report::Report;
use crate::series::Series;
use crate::tuning::{Tuning, Waited};

pub(crate) const SPACE: SpaceId = SpaceId(0);
/// A block the engine does not know.
pub(crate) const NO_BLOCK: u32 = u32::MAX;
/// Most accesses of a stretch.
const STRETCH_ACCESSES: usize = 16_384;
/// Least accesses of a stretch, barriers aside: below it the load model costs more than the accesses.
const STRETCH_LEAST: usize = 512;
/// Full-size nanoseconds a stretch should not exceed: half of the shortest interval at which any policy acts (10 ms).
const STRETCH_NANOS: f64 = 5e6;
/// A thread not seen for so many accesses is not taken to run: longer than a round of turns of all threads.
const ROUND_ACCESSES: u64 = 1 << 16;
const NEVER: u64 = u64::MAX;
/// Most accesses that one of a sampled trace may stand for: with more, the counters of a stretch would overflow.
const MOST_STOOD_FOR: u32 = u32::MAX / (2 * STRETCH_ACCESSES as u32);
/// One access in so many goes into the heat map.
const HEAT_EVERY: usize = 61;

/// See the module's header.
pub struct Simulation {
    pub(crate) config: SimConfig,
    pub(crate) tiers: Vec<Tier>,
    pub(crate) rates: Rates,
    pub(crate) hot: Hot,
    pub(crate) engine: Engine,
    pub(crate) kernel: Kernel,
    pub(crate) reclaim: Reclaim,
    /// Whether lists are kept: only where something reclaims.
    pub(crate) lists: bool,
    /// Small nanoseconds since the start.
    pub(crate) now_ns: f64,
    based: bool,
    /// Accesses that one of the source stands for.
    pub(crate) weight: u32,
    /// The engine's first page of each block, and back.
    pub(crate) ids: Vec<u32>,
    pub(crate) blocks: Vec<u32>,
    stretch_accesses: usize,
    stretch_limit: usize,
    /// Since the latest fork or barrier: when it was, how long each thread has run, and when it was last seen, counted
    /// in accesses.
    region_start_ns: f64,
    clocks: Vec<f64>,
    seen_at: Vec<u64>,
    region_accesses: u64,
    /// Whether a fork began the region, and how many threads the one before it had.
    forked: bool,
    last_region_threads: usize,
    /// Threads that did anything in the latest stretch, and how long it took.
    pub(crate) active: u32,
    pub(crate) span_ns: f64,
    pending_stall: f64,
    pub(crate) events: Vec<Observation>,
    pub(crate) born: Vec<Observation>,
    /// Units whose tier or mapping changed behind the engine's back.
    pub(crate) relocated: Vec<u32>,
    pub(crate) sights: Vec<Sight>,
    pub(crate) cadence: Cadence,
    pub(crate) wake: Time,
    pub(crate) sampler: Option<Sampler>,
    /// Records in place of one sample: more than one where small pages stand for huge ones.
    pub(crate) sample_parts: u32,
    /// What a fault on a page costs whose every use is watched: it comes with each use, not with each page.
    pub(crate) watched_fault_ns: f64,
    pub(crate) hint_scanner: HintScanner,
    pub(crate) next_hint: Time,
    /// Full-size milliseconds at which a page was marked; empty until something marks.
    pub(crate) marked_at: Vec<u32>,
    pub(crate) scan_cursor: u32,
    pub(crate) scan_not_before: Time,
    pub(crate) cleared_at: Vec<u64>,
    pub(crate) mover_free_ns: f64,
    pub(crate) outcomes: Option<Vec<Outcome>>,
    /// What the mover's threads are copying.
    pub(crate) copies: Copies,
    /// Units that moved in this stretch, whether they had been accessed, and for how long each was blocked.
    pub(crate) moving: Vec<(u32, bool, f64)>,
    pub(crate) random: u64,
    pub(crate) counts: Counts,
    pub(crate) costs: Costs,
    pub(crate) history: History,
    pub(crate) series: Series,
    pub(crate) heat: HeatMap,
    heat_phase: usize,
    pub(crate) phases: Vec<(String, f64)>,
    pub(crate) failure: Option<SimError>,
    /// Time the sampler spent that the engine was not told of, in small nanoseconds.
    pub(crate) sampler_spent: f64,
    /// Pages whose every use faults, and those that wait for being marked again.
    pub(crate) watched: Vec<u32>,
    pub(crate) rearm: Vec<u32>,
    pub(crate) hint_faults_wanted: bool,
    future: Option<Future>,
    told_accesses: u64,
    progress: Option<Arc<Progress>>,
    /// A run of one core's accesses, kept for its memory.
    queued: Vec<Queued>,
    /// Whether one is under way.
    in_run: bool,
    /// First pages of the blocks that the trace has as huge.
    traced_huge: BTreeSet<u32>,
    /// A second process, played along.
    pub(crate) beside: Option<Box<Recorded>>,
    /// The processes where there are several, and the first page of each.
    pub(crate) processes: Vec<Process>,
    pub(crate) starts: Vec<u32>,
    pub(crate) tuning: Option<Box<dyn Tuning>>,
    pub(crate) waited: Waited,
    /// Pages the fast tier has, and those of them that may be used.
    pub(crate) fast_capacity: u64,
    pub(crate) fast_limit: u64,
}

impl Simulation {
    /// A machine at rest under `policy`.
    ///
    /// # Errors
    /// When the configuration is out of range.
    pub fn new(config: SimConfig, policy: Box<dyn Policy>) -> Result<Simulation, SimError> {
        let capacity = config.capacities()?;
        Simulation::with_capacity(config, policy, capacity)
    }

    /// As [`Simulation::new`], but every tier has room for twice the footprint: for the bounds.
    pub(crate) fn unlimited(config: SimConfig, policy: Box<dyn Policy>) -> Result<Simulation, SimError> {
        let mut capacity = config.capacities()?;
        let enough = 2 * config.footprint.pages() + (1 << 16);
        capacity.iter_mut().for_each(|pages| *pages = (*pages).max(enough));
        Simulation::with_capacity(config, policy, capacity)
    }

    fn with_capacity(
        config: SimConfig,
        mut policy: Box<dyn Policy>,
        mut capacity: Vec<u64>,
    ) -> Result<Simulation, SimError> {
        if policy.list_plan().is_some() {
            return Err(SimError::Parameter {
                name: "lists",
                value: "kernel".to_owned(),
                wanted: "own: a simulator has no kernel whose lists could be ordered".to_owned(),
            });
        }
        let watched_fault_ns = config.machine.management.hint_fault_ns;
        let mut config = SimConfig { machine: config.acting(), ..config };
        if policy.needs().counters && config.mmu.is_none() {
            config.mmu = Some(MmuConfig::new(config.machine.processor.cores as usize));
        }
        policy.set_prices(&prices::of(&config.machine, config.pages_a_flush()));
        policy.set_scale(config.scale.factor());
        let mut sample_parts = 1;
        if config.pages == Pages::Folded {
            sample_parts = policy.cadence().sampling.map_or(1, |periods| Sampler::most_parts(periods.loads));
            policy.set_folded(sample_parts);
        }
        let (kernel, hint_faults_wanted) = (policy.kernel(), policy.needs().hint_faults);
        let machine = &config.machine;
        let memory_mode =
            kernel.memory_mode.then(|| MemoryMode::new(capacity[0], capacity[1], config.placement, mix(config.seed)));
        if kernel.memory_mode {
            // The operating system sees only the slow memory.
            capacity[0] = 0;
        }
        let fast_capacity = capacity[0];
        let compressed = config.compressed();
        let lists = kernel.demotion || compressed.contains(&true);
        let reclaim = Reclaim::new(&capacity, config.scale, &kernel);
        let engine = Engine::new(
            EngineConfig { tiers: capacity.clone(), goal: config.goal, governor: config.governor.clone() },
            policy,
        );
        let cores = machine.processor.cores as usize;
        let tlb = &machine.processor.tlb;
        let cache = machine.processor.cache;
        let hot = Hot {
            workspace: Workspace::new(),
            memory: Memory::new(capacity, compressed),
            work: Vec::new(),
            countdown: Vec::new(),
            tlbs: if config.tlb { vec![Tlb::new(tlb, config.scale); cores] } else { Vec::new() },
            tlb_spec: *tlb,
            cache: config.cache.then(|| Cache::new(config.scale.cache(cache.capacity), cache.ways)),
            memory_mode,
            media: machine.tiers.iter().map(Media::new).collect(),
            read: [0; TierId::MAX],
            written: [0; TierId::MAX],
            samples: Vec::new(),
            load_period: 0,
            store_period: 0,
            extra_cycles: config.cycles_per_access,
            base: 0,
            record_misses: false,
            missed: Vec::new(),
            second_hits: 0,
            walks: 0,
            mmu: config.mmu.as_ref().map(|mmu| {
                let parallelism = config.memory_parallelism.unwrap_or(machine.processor.memory_parallelism);
                Box::new(MmuRun::new(mmu, machine, config.scale, config.cache, parallelism))
            }),
        };
        let rates = Rates {
            frequency_hertz: machine.processor.frequency_hertz,
            parallelism: config.memory_parallelism.unwrap_or(machine.processor.memory_parallelism),
            cache_hit_ns: cache.hit_ns,
        };
        let mut simulation = Simulation {
            tiers: machine.tiers.clone(),
            rates,
            hot,
            engine,
            kernel,
            reclaim,
            lists,
            now_ns: 0.0,
            based: false,
            weight: 1,
            ids: Vec::new(),
            blocks: Vec::new(),
            stretch_accesses: 0,
            stretch_limit: STRETCH_LEAST,
            region_start_ns: 0.0,
            clocks: Vec::new(),
            seen_at: Vec::new(),
            region_accesses: 0,
            forked: false,
            last_region_threads: 1,
            active: 1,
            span_ns: 0.0,
            pending_stall: 0.0,
            events: Vec::new(),
            born: Vec::new(),
            relocated: Vec::new(),
            sights: Vec::new(),
            cadence: Cadence::default(),
            wake: Time::ZERO,
            sampler: None,
            sample_parts,
            watched_fault_ns,
            hint_scanner: HintScanner::default(),
            next_hint: Time::ZERO,
            marked_at: Vec::new(),
            scan_cursor: 0,
            scan_not_before: Time::ZERO,
            cleared_at: Vec::new(),
            mover_free_ns: 0.0,
            copies: Copies::default(),
            outcomes: None,
            moving: Vec::new(),
            random: mix(config.seed ^ 0x5eed),
            counts: Counts::default(),
            costs: Costs::default(),
            history: History::new(config.watch.clone()),
            series: Series::new(10_000_000),
            heat: HeatMap::new(10_000_000),
            heat_phase: 0,
            phases: Vec::new(),
            failure: None,
            sampler_spent: 0.0,
            watched: Vec::new(),
            rearm: Vec::new(),
            hint_faults_wanted,
            future: None,
            told_accesses: 0,
            progress: None,
            queued: Vec::new(),
            in_run: false,
            traced_huge: BTreeSet::new(),
            beside: None,
            processes: Vec::new(),
            starts: Vec::new(),
            tuning: None,
            waited: Waited::default(),
            fast_capacity,
            fast_limit: fast_capacity,
            config,
        };
        simulation.poll();
        Ok(simulation)
    }

    /// Pages from this one on may be touched: a region of the program. `file` pages are page cache and exist at once.
    pub fn map(&mut self, start: Vpn, pages: u64, file: bool) {
        if self.failure.is_some() || pages == 0 {
            return;
        }
        self.drain_cores(false);
        self.close_stretch(false);
        let (first, last) = match (self.page_of(start), self.page_of(Vpn(start.0 + pages - 1))) {
            (Ok(first), Ok(last)) => (first, last),
            (Err(error), _) | (_, Err(error)) => {
                self.failure = Some(error);
                return;
            }
        };
        self.grow(last as usize + 1);
        for page in first..=last {
            self.hot.memory.set(page, PageWord::MAPPED | if file { PageWord::FILE } else { 0 });
        }
        let now = self.now();
        let space = self.space_of(first);
        self.engine.handle(now, terrace_core::engine::Input::Mapped(space, start..Vpn(start.0 + pages)));
        for block in first >> BLOCK_SHIFT..=last >> BLOCK_SHIFT {
            if self.ids[block as usize] == NO_BLOCK
                && let Some(id) = self.engine.pages().find_block(space, self.vpn(block << BLOCK_SHIFT))
            {
                self.ids[block as usize] = id.first_page().0;
                let known = id.0 as usize;
                if self.blocks.len() <= known {
                    self.blocks.resize(known + 1, NO_BLOCK);
                }
                self.blocks[known] = block;
            }
        }
        if file {
            for page in first..=last {
                self.first_touch(page, None);
            }
        }
        self.deliver();
        self.poll();
    }

    /// Pages that were mapped are given back.
    pub fn unmap(&mut self, start: Vpn, pages: u64) {
        if self.failure.is_some() || pages == 0 {
            return;
        }
        self.drain_cores(false);
        self.close_stretch(false);
        self.deliver();
        let (Ok(first), Ok(last)) = (self.page_of(start), self.page_of(Vpn(start.0 + pages - 1))) else { return };
        let Some(end) = (self.hot.memory.len() as u32).checked_sub(1).filter(|end| *end >= first) else { return };
        let last = last.min(end);
        let now = self.now();
        if let Some(outcomes) = self.outcomes.take() {
            // A move that is under way is answered before its page can go and another take its number.
            self.engine.handle(now, terrace_core::engine::Input::Moved(&outcomes));
        }
        // A huge page that loses only some of its pages comes apart first, as the kernel does it.
        for page in [first, last] {
            let unit = self.hot.memory.unit(page);
            if unit.start < first || unit.end > last + 1 {
                self.break_up(unit.start);
                self.relocated.push(unit.start);
            }
        }
        self.deliver();
        for page in first..=last {
            if self.hot.memory.word(page).tier().is_none() {
                continue;
            }
            if self.lists && self.hot.memory.unit(page).start == page {
                self.reclaim.leaving(&self.hot.memory, page);
            }
            let vpn = self.vpn(page);
            self.history.add(now, vpn, || What::Gone);
        }
        for page in first..=last {
            self.hot.memory.remove(page);
        }
        for tlb in &mut self.hot.tlbs {
            tlb.flush();
        }
        if let Some(run) = &mut self.hot.mmu {
            run.mmu.unmap(first..last + 1);
        }
        let space = self.space_of(first);
        self.engine.handle(now, terrace_core::engine::Input::Unmapped(space, start..Vpn(start.0 + pages)));
        for block in first >> BLOCK_SHIFT..=last >> BLOCK_SHIFT {
            let id = self.ids[block as usize];
            if id != NO_BLOCK {
                let known = PageId(id).block();
                // The engine gives an empty block's ids to the next: forget it when no page of it is left.
                let gone =
                    self.engine.pages().block(known).is_none_or(|info| info.start != self.vpn(block << BLOCK_SHIFT));
                if gone {
                    self.ids[block as usize] = NO_BLOCK;
                    self.blocks[known.0 as usize] = NO_BLOCK;
                }
            }
        }
        self.poll();
    }

    /// Accesses, in order.
    pub fn feed<R: Record>(&mut self, batch: &[R]) {
        if self.failure.is_some() {
            return;
        }
        if let Some(first) = batch.first().filter(|_| !self.based) {
            self.set_base(Vpn(first.page()));
        }
        self.feed_alone(batch);
        if self.beside.is_some() {
            self.feed_beside(batch.len());
        }
        self.count_processes(batch.len());
    }

    /// Accesses of one process, however the machine orders them.
    pub(crate) fn feed_alone<R: Record>(&mut self, batch: &[R]) {
        if self.hot.mmu.is_some() {
            self.feed_cores(batch);
        } else {
            self.feed_in_order(batch);
        }
    }

    /// The source's number of page 0.
    pub(crate) fn base(&self) -> u64 {
        self.hot.base
    }

    fn feed_in_order<R: Record>(&mut self, batch: &[R]) {
        let mut rest = batch;
        while !rest.is_empty() {
            let take = rest.len().min(self.stretch_limit - self.stretch_accesses);
            let (now, later) = rest.split_at(take);
            self.feed_some(now);
            if self.failure.is_some() {
                return;
            }
            self.stretch_accesses += take;
            if self.stretch_accesses >= self.stretch_limit {
                self.close_stretch(false);
            }
            rest = later;
        }
    }

    fn feed_some<R: Record>(&mut self, batch: &[R]) {
        let mut from = 0;
        while let Stop::At(index) = self.run_hot(batch, from) {
            let access = &batch[index];
            if self.hot.work.len() <= access.thread() {
                self.add_threads(access.thread() + 1);
            }
            if let Err(error) = self.fault(access) {
                self.failure = Some(error);
                return;
            }
            from = index;
        }
        self.counts.accesses += batch.len() as u64;
        let now = self.now();
        let mut at = self.heat_phase;
        while let Some(access) = batch.get(at) {
            self.heat.add(now, access.page().wrapping_sub(self.hot.base) as u32);
            at += HEAT_EVERY;
        }
        self.heat_phase = at - batch.len();
    }

    /// All threads wait for each other.
    pub fn meet(&mut self) {
        self.drain_cores(true);
        self.close_stretch(true);
    }

    /// A parallel region begins: what one thread did before is over, and from here on the threads run side by side.
    pub fn fork(&mut self) {
        self.drain_cores(true);
        self.close_stretch(true);
        self.begin_region(true);
    }

    /// From here on each access of the source stands for so many of its kind, as in a trace of samples: the program's time and
    /// traffic are those of all of them, and the sampler counts them all.
    pub fn each_stands_for(&mut self, accesses: u64) {
        self.drain_cores(false);
        self.close_stretch(false);
        self.weight = u32::try_from(accesses).unwrap_or(u32::MAX).clamp(1, MOST_STOOD_FOR);
        self.set_periods();
    }

    /// The program's own system mapped these pages by 2 MiB entries, or no longer does. Followed where the run has real huge
    /// pages ([`Pages::Huge`], [`Pages::Traced`]); elsewhere the run was told how large pages are.
    pub fn remap(&mut self, start: Vpn, pages: u64, huge: bool) {
        if self.failure.is_some() || pages == 0 || !matches!(self.config.pages, Pages::Huge | Pages::Traced) {
            return;
        }
        self.drain_cores(false);
        self.close_stretch(false);
        let (Ok(first), Ok(last)) = (self.page_of(start), self.page_of(Vpn(start.0 + pages - 1))) else { return };
        let known = (self.hot.memory.len() >> BLOCK_SHIFT) as u32;
        // One entry maps a whole block or none of it; a split of any part is one of the block.
        let blocks = match huge {
            true => first.div_ceil(BLOCK_PAGES)..(last + 1) >> BLOCK_SHIFT,
            false => first >> BLOCK_SHIFT..(last >> BLOCK_SHIFT) + 1,
        };
        for block in blocks {
            let first = block << BLOCK_SHIFT;
            // What is born later is born as the trace had it.
            if self.config.pages == Pages::Traced && huge {
                self.traced_huge.insert(first);
            } else {
                self.traced_huge.remove(&first);
            }
            if block < known {
                self.follow_mapping(first, huge);
            }
        }
        self.deliver();
        self.poll();
    }

    /// A named part of the program begins.
    pub fn begin(&mut self, phase: &str) {
        self.drain_cores(false);
        self.close_stretch(false);
        if let Some(run) = &mut self.hot.mmu {
            run.begin(phase);
        }
        self.phases.push((phase.to_owned(), self.now().as_secs_f64()));
    }

    /// Lets the moves that are under way come to their end, and starts no others: engine and machine then agree.
    pub fn settle(&mut self) {
        self.deliver();
        if let Some(outcomes) = self.outcomes.take() {
            self.now_ns = self.now_ns.max(self.mover_free_ns);
            let now = self.now();
            self.engine.handle(now, terrace_core::engine::Input::Moved(&outcomes));
        }
    }

    /// Whether no move is under way.
    pub fn is_settled(&self) -> bool {
        self.outcomes.is_none()
    }

    /// Whether the run goes on: false after an error.
    pub fn goes_on(&self) -> bool {
        self.failure.is_none()
    }

    /// Full-size time.
    pub fn now(&self) -> Time {
        self.config.scale.full_time(self.now_ns as u64)
    }

    /// The most pages that had memory at one time.
    pub fn peak_pages(&self) -> u64 {
        self.counts.peak_pages
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Physical memory, to look at.
    pub fn memory(&self) -> &Memory {
        &self.hot.memory
    }

    /// Ends the run.
    ///
    /// # Errors
    /// When it failed on the way.
    pub fn finish(mut self, workload: &str) -> Result<Report, SimError> {
        self.drain_cores(true);
        self.close_stretch(true);
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(self.report(workload)),
        }
    }

    pub(crate) fn vpn(&self, page: u32) -> Vpn {
        Vpn(self.hot.base + u64::from(page))
    }

    /// The engine's id of a page.
    pub(crate) fn id(&self, page: u32) -> PageId {
        PageId(self.ids[(page >> BLOCK_SHIFT) as usize] + (page & (BLOCK_PAGES - 1)))
    }

    /// The page behind an id of the engine.
    pub(crate) fn page(&self, id: PageId) -> Option<u32> {
        let block = *self.blocks.get(id.block().0 as usize)?;
        (block != NO_BLOCK).then(|| (block << BLOCK_SHIFT) + id.offset())
    }

    /// Makes every thread that runs in the stretch wait so long.
    pub(crate) fn stall_each(&mut self, nanos: f64) {
        self.pending_stall += nanos;
    }

    /// Spreads so many nanoseconds over the threads that run.
    pub(crate) fn stall_shared(&mut self, nanos: f64) {
        self.pending_stall += nanos / f64::from(self.active.max(1));
    }

    /// A number below 1, the same every time.
    pub(crate) fn draw(&mut self) -> f64 {
        self.random = mix(self.random);
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Pages that a region of a workload takes.
    fn pages_of(&self, region: &Region) -> u64 {
        let boundary = if region.file_backed { PAGE_BYTES } else { self.boundary() };
        region.bytes.max(1).next_multiple_of(boundary) / PAGE_BYTES
    }

    fn set_base(&mut self, first: Vpn) {
        self.based = true;
        self.hot.base = first.block_start().0;
        if self.hot.base < 1 << 32 {
            // Dense numbering, as traces have it: from zero.
            self.hot.base = 0;
        }
        if let Some(run) = &mut self.hot.mmu {
            self.hot.base &= !((1 << REGION_SHIFT) - 1); // Page tables are aligned to what they cover.
            run.add_space(SPACE, 0, self.hot.base);
            for (space, first) in (0..).zip(&self.starts).skip(1) {
                run.add_space(SpaceId(space), *first, self.hot.base + u64::from(*first));
            }
        }
    }

    pub(crate) fn page_of(&mut self, vpn: Vpn) -> Result<u32, SimError> {
        if !self.based {
            self.set_base(vpn);
        }
        let page = vpn.0.wrapping_sub(self.hot.base);
        if page < 1 << 31 {
            Ok(page as u32)
        } else {
            Err(SimError::Address { address: vpn.address(), base: Vpn(self.hot.base).address() })
        }
    }

    pub(crate) fn grow(&mut self, pages: usize) {
        self.hot.memory.grow(pages);
        let pages = self.hot.memory.len();
        if self.lists {
            self.reclaim.grow(pages);
        }
        self.ids.resize(pages >> BLOCK_SHIFT, NO_BLOCK);
        self.cleared_at.resize(pages >> BLOCK_SHIFT, 0);
        if !self.marked_at.is_empty() {
            self.marked_at.resize(pages, 0);
        }
    }

    fn add_threads(&mut self, threads: usize) {
        while self.hot.work.len() < threads {
            self.hot.work.push(ThreadWork::default());
            self.clocks.push(0.0);
            self.seen_at.push(NEVER);
            let countdown = self.fresh_countdown();
            self.hot.countdown.push(countdown);
        }
    }

    /// Counters that start anywhere in their period, as those of cores that were switched on at different times.
    pub(crate) fn fresh_countdown(&mut self) -> Countdown {
        let (loads, stores) = (self.hot.load_period.max(1), self.hot.store_period.max(1));
        let mut start = |period: u32| 1 + (self.draw() * f64::from(period)) as u32;
        Countdown { loads: std::array::from_fn(|_| start(loads)), stores: start(stores) }
    }

    /// The inner loop; the program's bytes are those of all accesses that its own stand for.
    fn run_hot<R: Record>(&mut self, batch: &[R], from: usize) -> Stop {
        if self.weight == 1 {
            return self.hot.run(batch, from);
        }
        let (read, written) = (self.hot.read, self.hot.written);
        let stop = self.hot.run(batch, from);
        let weigh = |now: &mut u64, before: u64| *now = before + (*now - before) * u64::from(self.weight);
        self.hot.read.iter_mut().zip(read).for_each(|(now, before)| weigh(now, before));
        self.hot.written.iter_mut().zip(written).for_each(|(now, before)| weigh(now, before));
        stop
    }

    /// From now on, what reaches memory is written down.
    pub(crate) fn record_future(&mut self) {
        self.hot.record_misses = true;
        self.future = Some(Future::new());
    }

    /// What was written down.
    pub(crate) fn take_future(mut self) -> Result<Future, SimError> {
        self.drain_cores(true);
        self.close_stretch(true);
        match (self.failure, self.future) {
            (Some(error), _) => Err(error),
            (None, future) => Ok(future.unwrap_or_else(Future::new).of_spaces(self.starts.len())),
        }
    }

    /// Gives the policy the future, if it has a use for it.
    pub(crate) fn foresee(&mut self, future: Future) {
        let progress = Arc::new(Progress::default());
        if self.engine.foresee(Box::new(Seer::new(future, progress.clone()))) {
            self.progress = Some(progress);
        }
    }

    /// The slowest tier that loads and stores reach.
    pub(crate) fn slowest_memory(&self) -> TierId {
        let slow = self.tiers.iter().rposition(|tier| tier.kind == TierKind::Memory);
        TierId(slow.unwrap_or(0) as u8)
    }

    pub(crate) fn huge_wanted(&self, first: u32) -> bool {
        match self.config.pages {
            Pages::Huge | Pages::Whole => true,
            Pages::Traced => self.traced_huge.contains(&first),
            Pages::Small | Pages::Folded => false,
        }
    }
}

impl AccessSink for Simulation {
    fn accesses(&mut self, batch: &[WorkloadAccess]) {
        self.feed(batch);
    }
    fn boundary(&self) -> u64 {
        let pages = if self.config.pages == Pages::Whole { u64::from(BLOCK_PAGES) } else { 1 };
        pages * PAGE_BYTES
    }
    fn mapped(&mut self, region: &Region) {
        self.map(Vpn::of_address(region.start), self.pages_of(region), region.file_backed);
    }
    fn unmapped(&mut self, region: &Region) {
        self.unmap(Vpn::of_address(region.start), self.pages_of(region));
    }
    fn fork(&mut self) {
        Simulation::fork(self);
    }
    fn barrier(&mut self) {
        self.meet();
    }
    fn phase(&mut self, name: &'static str) {
        self.begin(name);
    }
    fn wants_more(&self) -> bool {
        self.goes_on()
    }
}

/// A finaliser that spreads every bit of its input over the output (splitmix64).
pub(crate) const fn mix(mut value: u64) -> u64 {
    value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
