//! A second process in a run: a space of its own to engine and page tables, whose accesses come in between the first's.
//!
//! In: a [`Recorded`] process. Out: its regions and accesses, behind the boundary; what each of the two had. Must not: tell the engine more
//! of one process than of the other.

use terrace_core::units::{PAGE_BYTES, SpaceId, TierId};
use terrace_workloads::Region;

use super::Simulation;
use crate::colocate::{BOUNDARY, OTHER_SPACE, ProcessReport, Recorded, SPACE, Served};

impl Simulation {
    /// Plays a recorded process along with whatever is fed. To be asked for before anything is.
    pub(crate) fn play_beside(&mut self, recorded: Recorded) {
        self.second_from = Some(BOUNDARY);
        if let Some(run) = &mut self.hot.mmu {
            run.served = Some(Box::new(Served::new()));
        }
        self.beside = Some(Box::new(recorded));
    }

    /// The process that a page belongs to.
    pub(super) fn space_of(&self, page: u32) -> SpaceId {
        if self.second_from.is_some_and(|boundary| page >= boundary) { OTHER_SPACE } else { SPACE }
    }

    /// What each of two processes got; empty where there is one, or no MMU that sees whose accesses are whose.
    pub(super) fn processes(&self, workload: &str) -> Vec<ProcessReport> {
        let served = self.hot.mmu.as_ref().and_then(|run| run.served.as_deref());
        let (Some(served), Some(other)) = (served, &self.beside) else { return Vec::new() };
        served.reports([workload, &other.name], self.tiers.len())
    }

    /// The second process's share of what the first has just done.
    pub(super) fn feed_beside(&mut self, accesses: usize) {
        let Some(mut other) = self.beside.take() else { return };
        let shift = (u64::from(BOUNDARY) + self.base()) * PAGE_BYTES;
        let moved = |address: u64| address - terrace_workloads::traced::FIRST_ADDRESS + shift;
        for region in other.begin() {
            terrace_workloads::AccessSink::mapped(self, &Region { start: moved(region.start), ..region });
        }
        let mut batch = other.go_on(accesses);
        batch.iter_mut().for_each(|access| access.address = moved(access.address));
        self.feed_alone(&batch);
        let pages = self.engine.pages();
        let held = [SPACE, OTHER_SPACE].map(|space| [pages.footprint(space), pages.used(space, TierId::FAST)]);
        if let Some(served) = self.hot.mmu.as_mut().and_then(|run| run.served.as_deref_mut()) {
            served.held(accesses as u64, held);
        }
        self.beside = Some(other);
    }
}
