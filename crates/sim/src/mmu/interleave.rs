//! The order in which cores make their accesses: each has a clock, and none runs ahead of the slowest by more than a bound.
//!
//! In: accesses in the order a source delivers them (a turn of one thread after another), and how long what was run took.
//! Out: short runs of one core's accesses, always of the core that is furthest behind. Must not: invent work for a core that
//! has none, or read a clock: time is what the model says the accesses took.
//!
//! A core whose next accesses have not been delivered yet must be waited for, or it would be overtaken. A source delivers in
//! turns, so they come soon; a thread that is through with the region delivers nothing until the barrier. So a core that has
//! nothing while the others have piled up [`MOST_QUEUED`] accesses is taken to wait at the barrier. If it delivers after all, it
//! catches up, and the skew it caused is in the figures.

use crate::record::{Record, Stored};

/// Accesses queued at which the cores begin to run.
const LEAST_QUEUED: usize = 1 << 14;
/// Accesses queued at which a core without any is no longer waited for.
const MOST_QUEUED: usize = 1 << 20;
/// Most accesses of one run, where cores do not meet in it.
pub(crate) const RUN: usize = 32;

/// An access in the queue of its core, which is its thread from here on.
pub(crate) fn queued<R: Record>(access: &R, cores: usize) -> Stored {
    let thread = access.thread();
    let core = (if thread < cores { thread } else { thread % cores }) as u16;
    Stored::new(access.page(), access.line() as u8, access.wait(), core, access.cycles())
}

/// A core's clock and what it did.
#[derive(Clone, Debug, Default)]
pub(crate) struct CoreState {
    queue: Vec<Stored>,
    head: usize,
    /// Whether it delivered anything since the last barrier.
    runs: bool,
    /// Nanoseconds since the start.
    pub(crate) clock_ns: f64,
    pub(crate) accesses: u64,
    pub(crate) busy_ns: f64,
    pub(crate) waited_ns: f64,
}

impl CoreState {
    fn is_empty(&self) -> bool {
        self.head == self.queue.len()
    }
}

/// See the module's header.
#[derive(Clone, Debug)]
pub(crate) struct Interleaver {
    cores: Vec<CoreState>,
    queued: usize,
    skew_ns: f64,
    most_skew_ns: f64,
    /// Most accesses of one run.
    run: usize,
}

impl Interleaver {
    /// `run`: most accesses that one core makes before it is looked again which is furthest behind.
    pub(crate) fn new(cores: usize, skew_ns: f64, run: usize) -> Interleaver {
        Interleaver {
            cores: vec![CoreState::default(); cores.max(1)],
            queued: 0,
            skew_ns,
            most_skew_ns: 0.0,
            run: run.max(1),
        }
    }

    pub(crate) fn cores(&self) -> &[CoreState] {
        &self.cores
    }

    pub(crate) fn core_mut(&mut self, core: usize) -> &mut CoreState {
        &mut self.cores[core]
    }

    pub(crate) fn most_skew_ns(&self) -> f64 {
        self.most_skew_ns
    }

    pub(crate) fn push<R: Record>(&mut self, batch: &[R]) {
        let cores = self.cores.len();
        for access in batch {
            let access = queued(access, cores);
            let core = &mut self.cores[access.thread()];
            core.runs = true;
            core.queue.push(access);
        }
        self.queued += batch.len();
    }

    /// The next run into `out`: accesses of the core furthest behind. `None` if that core must first be heard of, unless
    /// `all` says that nothing more comes before the next barrier or event.
    pub(crate) fn next(&mut self, all: bool, out: &mut Vec<Stored>) -> Option<usize> {
        out.clear();
        if self.queued == 0 || (!all && self.queued < LEAST_QUEUED) {
            return None;
        }
        let impatient = all || self.queued >= MOST_QUEUED;
        let mut first: Option<usize> = None;
        let mut second = f64::INFINITY;
        for (number, core) in self.cores.iter().enumerate().filter(|(_, core)| core.runs) {
            if core.is_empty() && impatient {
                continue;
            }
            match first {
                Some(least) if core.clock_ns >= self.cores[least].clock_ns => second = second.min(core.clock_ns),
                _ => {
                    second = first.map_or(second, |least| second.min(self.cores[least].clock_ns));
                    first = Some(number);
                }
            }
        }
        let chosen = first?;
        let core = &mut self.cores[chosen];
        if core.is_empty() {
            return None;
        }
        // A run is short next to the skew, so it is looked at between runs only: one that begins at or behind the others ends
        // by no more than its own time ahead of them.
        let ahead = core.clock_ns - second;
        let length = if ahead > self.skew_ns { 1 } else { self.run }.min(core.queue.len() - core.head);
        out.extend_from_slice(&core.queue[core.head..core.head + length]);
        core.head += length;
        self.queued -= length;
        if core.is_empty() {
            core.queue.clear();
            core.head = 0;
        }
        Some(chosen)
    }

    /// A core's run took so long. Notes how far it is ahead of the slowest that has work.
    pub(crate) fn ran(&mut self, core: usize, accesses: u64) {
        let state = &mut self.cores[core];
        state.accesses += accesses;
        let clock = state.clock_ns;
        let others = self.cores.iter().enumerate().filter(|(number, other)| *number != core && !other.is_empty());
        let slowest = others.map(|(_, other)| other.clock_ns).fold(f64::INFINITY, f64::min);
        if slowest.is_finite() {
            self.most_skew_ns = self.most_skew_ns.max(clock - slowest);
        }
    }

    /// Everyone waits for the last: a barrier, or the end of a serial part.
    pub(crate) fn meet(&mut self) {
        let latest = self.cores.iter().map(|core| core.clock_ns).fold(0.0, f64::max);
        for core in &mut self.cores {
            if core.runs {
                core.waited_ns += latest - core.clock_ns;
            }
            core.clock_ns = latest;
            core.runs = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_machine::load::Wait;

    use super::*;

    fn by(thread: u16, page: u64) -> Stored {
        Stored::new(page, 0, Wait::Load, thread, 0)
    }

    /// Runs everything; an access of core `c` takes `nanos[c]`. Returns the order of the cores' runs.
    fn drain(interleaver: &mut Interleaver, nanos: &[f64]) -> Vec<(usize, u64)> {
        let (mut out, mut order) = (Vec::new(), Vec::new());
        while let Some(core) = interleaver.next(true, &mut out) {
            interleaver.core_mut(core).clock_ns += nanos[core] * out.len() as f64;
            interleaver.ran(core, out.len() as u64);
            order.extend(out.iter().map(|access| (core, access.page())));
        }
        order
    }

    #[test]
    fn cores_keep_within_the_skew_and_each_keeps_its_order() {
        let mut interleaver = Interleaver::new(3, 100.0, RUN);
        // Whole threads one after another, as a source with long turns delivers them.
        for thread in 0..3 {
            let batch: Vec<Stored> = (0..3000).map(|page| by(thread, page)).collect();
            interleaver.push(&batch);
        }
        let nanos = [10.0, 20.0, 5.0];
        let order = drain(&mut interleaver, &nanos);
        for core in 0..3 {
            let own: Vec<u64> = order.iter().filter(|(of, _)| *of == core).map(|(_, page)| *page).collect();
            assert_eq!(own, (0..3000).collect::<Vec<_>>());
        }
        assert!(interleaver.most_skew_ns() <= 100.0 + RUN as f64 * 20.0, "{}", interleaver.most_skew_ns());
        // The fast core is through while the slow one is a quarter through.
        let fast_end = order.iter().rposition(|(core, _)| *core == 2).unwrap();
        let slow_done = order[..fast_end].iter().filter(|(core, _)| *core == 1).count();
        assert!((700..800).contains(&slow_done), "{slow_done}");
        interleaver.meet();
        let waited: Vec<f64> = interleaver.cores().iter().map(|core| core.waited_ns).collect();
        assert_eq!(waited, [30_000.0, 0.0, 45_000.0], "everyone waits for the core that took 60 us");
    }

    #[test]
    fn a_core_that_has_delivered_nothing_yet_is_waited_for_but_not_for_ever() {
        let mut interleaver = Interleaver::new(2, 100.0, RUN);
        let mut out = Vec::new();
        interleaver.push(&[by(0, 1), by(1, 1)]);
        let long: Vec<Stored> = (0..2 * LEAST_QUEUED as u64).map(|page| by(0, page)).collect();
        interleaver.push(&long);
        // Core 0 runs until it is ahead of core 1, which then runs its one access and must be heard of again.
        let mut ran = [0usize; 2];
        while let Some(core) = interleaver.next(false, &mut out) {
            ran[core] += out.len();
            interleaver.core_mut(core).clock_ns += 10.0 * out.len() as f64;
        }
        assert!(ran[1] == 1 && ran[0] <= 2 * RUN, "{ran:?}");
        let more: Vec<Stored> = (0..MOST_QUEUED as u64).map(|page| by(0, page)).collect();
        interleaver.push(&more);
        assert_eq!(interleaver.next(false, &mut out), Some(0), "it is taken to wait at the barrier");
    }
}
