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
mod counters;
mod faults;
mod feed;
mod limit;
mod manage;
mod mover;
mod numbers;
mod outcome;
mod regions;
mod setup;
mod spaces;
mod sweep;
mod watched;

use std::collections::BTreeSet;
use std::sync::Arc;

use terrace_core::engine::Engine;
use terrace_core::observation::{Observation, Sight};
use terrace_core::plan::Outcome;
use terrace_core::policy::{Cadence, Kernel};
use terrace_core::random::{mix, unit};
use terrace_core::units::{TierId, Time};
use terrace_machine::load::Rates;
use terrace_machine::memory::Memory;
use terrace_machine::preset::{Tier, TierKind};
use terrace_machine::reclaim::Reclaim;
use terrace_machine::sampler::Sampler;
use terrace_machine::scanner::HintScanner;

use crate::account::{Costs, Counts};
use crate::colocate::Recorded;
use crate::config::SimConfig;
use crate::copies::Copies;
use crate::error::SimError;
use crate::heat::HeatMap;
use crate::history::History;
use crate::hot::Hot;
use crate::mmu::interleave::Queued;
use crate::oracle::{Future, Progress, Seer};
use crate::processes::Process;
use crate::report::Report;
use crate::series::Series;
use crate::tuning::{Tuning, Waited};

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
        unit(self.random)
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
}
