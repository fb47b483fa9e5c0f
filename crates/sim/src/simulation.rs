//! One run: the order of events between a program's accesses, modelled hardware and kernel, and the engine.
//!
//! In: batches of accesses and the events between them (regions, barriers, phases). Out: a [`Report`]. Must not: let
//! the engine see anything that a tracker would not, or any time but the scaled machine's times the scale.
//!
//! Time advances in stretches of some thousand accesses, cut at barriers. Within a stretch the inner loop only counts;
//! at its end the load model says how long it took. Then the observations go to the engine, due work is done
//! (scans, marks, reclaim, moves), and the engine is polled until it wants to be woken.

mod books;
mod clock;
mod cores;
mod counters;
mod faults;
mod feed;
mod foresight;
mod kernel;
mod limit;
mod link;
mod manage;
mod mover;
mod outcome;
mod pressure;
mod regions;
mod setup;
mod shadows;
mod spaces;
mod sweep;
mod trackers;
mod watched;

use terrace_core::engine::Engine;
use terrace_core::random::{mix, unit};
use terrace_core::units::{TierId, Time};
use terrace_machine::memory::Memory;
use terrace_machine::preset::TierKind;

use crate::config::SimConfig;
use crate::error::SimError;
use crate::hot::Hot;
use crate::report::Report;
use books::Books;
use clock::{Clock, STRETCH_ACCESSES};
use cores::Cores;
use foresight::Foresight;
use kernel::KernelModel;
use limit::Limit;
use link::EngineLink;
use mover::Mover;
use shadows::Shadows;
use spaces::Spaces;
use trackers::Trackers;

/// Most accesses that one of a sampled trace may stand for: with more, the counters of a stretch would overflow.
const MOST_STOOD_FOR: u32 = u32::MAX / (2 * STRETCH_ACCESSES as u32);

/// See the module's header. Each part owns its state; its file alone writes it.
pub struct Simulation {
    config: SimConfig,
    /// Page words, caches and memory: what every access goes through.
    hot: Hot,
    clock: Clock,
    link: EngineLink,
    trackers: Trackers,
    kernel: KernelModel,
    mover: Mover,
    shadows: Shadows,
    books: Books,
    limit: Limit,
    spaces: Spaces,
    cores: Cores,
    foresight: Foresight,
    random: u64,
    failure: Option<SimError>,
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
        self.clock.begin_region(true);
    }

    /// From here on each access of the source stands for `accesses` of its kind, as in a trace of samples: the program's time and
    /// traffic are those of all of them, and the sampler counts them all.
    pub fn each_stands_for(&mut self, accesses: u64) {
        self.drain_cores(false);
        self.close_stretch(false);
        self.hot.set_weight(u32::try_from(accesses).unwrap_or(u32::MAX).clamp(1, MOST_STOOD_FOR));
        self.set_periods();
    }

    /// A named part of the program begins.
    pub fn begin(&mut self, phase: &str) {
        self.drain_cores(false);
        self.close_stretch(false);
        if let Some(run) = &mut self.hot.mmu {
            run.begin(phase);
        }
        self.books.begin_phase(phase, self.now());
    }

    /// Whether no move is under way.
    pub fn is_settled(&self) -> bool {
        self.mover.is_idle()
    }

    /// Whether the run goes on: false after an error.
    pub fn goes_on(&self) -> bool {
        self.failure.is_none()
    }

    /// Full-size time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// The most pages that had memory at one time.
    pub fn peak_pages(&self) -> u64 {
        self.books.peak_pages()
    }

    /// The engine, to look at.
    pub fn engine(&self) -> &Engine {
        self.link.engine()
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
        self.meet();
        match self.failure.take() {
            Some(error) => Err(error),
            None => Ok(self.report(workload)),
        }
    }

    /// The run stops here.
    fn fail(&mut self, error: SimError) {
        self.failure = Some(error);
    }

    /// The error that stopped the run, if one did; it goes on where the caller reports it.
    fn check(&mut self) -> Result<(), SimError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// A number below 1, the same every time.
    fn draw(&mut self) -> f64 {
        self.random = mix(self.random);
        unit(self.random)
    }

    /// The slowest tier that loads and stores reach.
    fn slowest_memory(&self) -> TierId {
        let slow = self.config.machine.tiers.iter().rposition(|tier| tier.kind == TierKind::Memory);
        TierId(slow.unwrap_or(0) as u8)
    }
}
