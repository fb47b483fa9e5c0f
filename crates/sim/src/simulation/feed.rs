//! The program's accesses, cut into stretches.
//!
//! In: batches, as a source or a workload delivers them. Out: runs of the inner loop, and faults where it stops. Must not: let time pass.

use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, Vpn};
use terrace_machine::cache::{Cache, Missed};
use terrace_workloads::{Access as WorkloadAccess, AccessSink, Region};

use super::Simulation;
use crate::config::Pages;
use crate::hot::Stop;
use crate::record::Record;

impl Simulation {
    /// Accesses, in order.
    pub fn feed<R: Record>(&mut self, batch: &[R]) {
        if !self.goes_on() {
            return;
        }
        if let Some(first) = batch.first() {
            self.begin_at(Vpn(first.page()));
        }
        self.feed_alone(batch);
        self.feed_beside(batch.len());
        self.count_processes(batch.len());
    }

    /// The same, of which a cache outside this machine let through those in `missed`.
    pub(crate) fn feed_filtered<R: Record>(&mut self, batch: &[R], missed: &[Missed]) {
        self.hot.give_misses(missed);
        self.feed(batch);
    }

    /// What cache the machine has, if it can be shared with machines under the same program: with a modelled MMU page walks
    /// go through the cache as well, and a second process has accesses of its own.
    pub(crate) fn shareable_cache(&self) -> Option<(Bytes, u32)> {
        let cache = self.config.machine.processor.cache;
        let alone = self.hot.mmu.is_none() && !self.spaces.has_another();
        (self.config.cache && alone).then(|| (self.config.scale.cache(cache.capacity), cache.ways))
    }

    /// See [`Hot::give_up_cache`](crate::hot::Hot::give_up_cache).
    pub(crate) fn give_up_cache(&mut self) -> Option<Cache> {
        self.hot.give_up_cache()
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
            let take = rest.len().min(self.clock.left_in_stretch());
            let (now, later) = rest.split_at(take);
            self.feed_some(now);
            if !self.goes_on() {
                return;
            }
            self.clock.ran(take);
            if self.clock.left_in_stretch() == 0 {
                self.close_stretch(false);
            }
            rest = later;
        }
    }

    fn feed_some<R: Record>(&mut self, batch: &[R]) {
        let mut from = 0;
        while let Stop::At(index) = self.hot.run(batch, from) {
            let access = &batch[index];
            while self.hot.threads() <= access.thread() {
                let countdown = self.fresh_countdown();
                self.hot.add_thread(countdown);
                self.clock.add_thread();
            }
            if let Err(error) = self.fault(access) {
                self.fail(error);
                return;
            }
            from = index;
        }
        let (now, base) = (self.now(), self.base());
        self.books.accessed(batch.len(), now, |at| batch[at].page().wrapping_sub(base) as u32);
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
