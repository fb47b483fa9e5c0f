//! The program's accesses, cut into stretches.
//!
//! In: batches, as a source or a workload delivers them. Out: runs of the inner loop, and faults where it stops. Must not: let time pass.

use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, Vpn};
use terrace_machine::load::ThreadWork;
use terrace_workloads::{Access as WorkloadAccess, AccessSink, Region};

use super::{HEAT_EVERY, NEVER, Simulation};
use crate::config::Pages;
use crate::hot::{Countdown, Stop};
use crate::record::Record;

impl Simulation {
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

    pub(super) fn feed_in_order<R: Record>(&mut self, batch: &[R]) {
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
