//! How the accesses of several cores become one sequence, where the run models its MMU.
//!
//! In: batches as the program makes them. Out: runs of one core's accesses at a time, in the order of the cores' clocks. Must not:
//! simulate an access; that is the common path's.

use super::Simulation;
use crate::mmu::interleave::queued;
use crate::record::{Record, Stored};

/// What the cores have queued.
#[derive(Default)]
pub(super) struct Cores {
    /// A run of one core's accesses, kept for its memory.
    queued: Vec<Stored>,
    /// Whether one is under way.
    in_run: bool,
}

impl Simulation {
    /// Accesses as each core would make them: queued by core, and run in the order of the cores' clocks.
    pub(super) fn feed_cores<R: Record>(&mut self, batch: &[R]) {
        let Some(run) = &mut self.hot.mmu else { return };
        if let [_] = run.interleaver.cores() {
            // One core makes its accesses in the order they come.
            let mut run = std::mem::take(&mut self.cores.queued);
            run.clear();
            run.extend(batch.iter().map(|access| queued(access, 1)));
            self.run_core(0, &run);
            self.cores.queued = run;
            return;
        }
        run.interleaver.push(batch);
        self.run_cores(false);
    }

    /// Runs what the cores have queued, as far as it is known who is next; `all` of it before an event.
    fn run_cores(&mut self, all: bool) {
        let mut queued = std::mem::take(&mut self.cores.queued);
        while let Some(core) = self.hot.mmu.as_mut().and_then(|run| run.interleaver.next(all, &mut queued)) {
            self.run_core(core, &queued);
            if !self.goes_on() {
                break;
            }
        }
        self.cores.queued = queued;
    }

    fn run_core(&mut self, core: usize, queued: &[Stored]) {
        let before = self.hot.mmu.as_ref().map_or(0.0, |run| run.interleaver.cores()[core].clock_ns);
        self.cores.in_run = true;
        self.feed_in_order(queued);
        self.cores.in_run = false;
        if let Some(run) = &mut self.hot.mmu {
            let state = run.interleaver.core_mut(core);
            state.busy_ns += state.clock_ns - before;
            run.interleaver.ran(core, queued.len() as u64);
        }
    }

    /// Everything queued is run: an event follows, which comes after it. At a barrier the cores wait for the last.
    pub(super) fn drain_cores(&mut self, barrier: bool) {
        // A fault can make memory known in the middle of a run; what is queued comes after it.
        if self.hot.mmu.is_none() || self.cores.in_run {
            return;
        }
        self.run_cores(true);
        if let Some(run) = self.hot.mmu.as_mut().filter(|_| barrier) {
            run.interleaver.meet();
        }
    }
}
