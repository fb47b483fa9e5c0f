//! A program that stops when its time is over.
//!
//! In: a source, and until when it may run. Out: the same source. Must not: hide that a run was cut.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use terrace_sim::lockstep::Lockstep;
use terrace_sim::{SimError, Source, WorkloadSource};
use terrace_workloads::{Access, AccessSink, Region};

/// Until when runs may go on.
pub(crate) struct Stop(Option<Instant>);

impl Stop {
    /// They may go on to their end.
    pub(crate) fn never() -> Stop {
        Stop(None)
    }

    /// Until then.
    pub(crate) fn at(when: Option<Instant>) -> Stop {
        Stop(when)
    }

    fn is_over(&self) -> bool {
        self.0.is_some_and(|when| Instant::now() >= when)
    }
}

/// See the module's header.
pub(crate) struct Stoppable<'s> {
    source: WorkloadSource,
    stop: &'s Stop,
    stopped: AtomicBool,
}

impl<'s> Stoppable<'s> {
    pub(crate) fn new(source: WorkloadSource, stop: &'s Stop) -> Stoppable<'s> {
        Stoppable { source, stop, stopped: AtomicBool::new(false) }
    }

    /// Whether it was cut.
    pub(crate) fn was_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }
}

impl Source for Stoppable<'_> {
    fn name(&self) -> String {
        self.source.name()
    }
    fn footprint(&self) -> terrace_core::units::Bytes {
        self.source.footprint()
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        let WorkloadSource { name, parameters } = &self.source;
        let mut sink = Until { into, stop: self.stop, stopped: &self.stopped };
        let played = terrace_workloads::run_traced(name, parameters, &mut sink);
        played.map(drop).map_err(|error| SimError::Source(error.to_string()))
    }
}

/// Machines that hear nothing more once the time is over. A program with an end of its own goes on to it, quickly.
struct Until<'u> {
    into: &'u mut Lockstep,
    stop: &'u Stop,
    stopped: &'u AtomicBool,
}

impl Until<'_> {
    fn goes_on(&self) -> bool {
        !self.stopped.load(Ordering::Relaxed)
    }
}

impl AccessSink for Until<'_> {
    fn accesses(&mut self, batch: &[Access]) {
        if self.goes_on() && self.stop.is_over() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        if self.goes_on() {
            self.into.accesses(batch);
        }
    }
    fn boundary(&self) -> u64 {
        AccessSink::boundary(self.into)
    }
    fn mapped(&mut self, region: &Region) {
        if self.goes_on() {
            self.into.mapped(region);
        }
    }
    fn unmapped(&mut self, region: &Region) {
        if self.goes_on() {
            self.into.unmapped(region);
        }
    }
    fn fork(&mut self) {
        if self.goes_on() {
            self.into.fork();
        }
    }
    fn barrier(&mut self) {
        if self.goes_on() {
            self.into.barrier();
        }
    }
    fn phase(&mut self, name: &'static str) {
        if self.goes_on() {
            self.into.phase(name);
        }
    }
    fn wants_more(&self) -> bool {
        self.goes_on() && self.into.wants_more()
    }
}
