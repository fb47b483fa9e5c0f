//! Several processes in a run: each a space of its own to engine and page tables; one of them may be played along with another.
//!
//! In: where each begins, a [`Recorded`] process. Out: its regions and accesses, behind the boundary; what each of them had. Must not: tell
//! the engine more of one process than of another.

use terrace_core::units::{PAGE_BYTES, SpaceId, TierId};
use terrace_workloads::{AccessSink, Region};

use super::Simulation;
use crate::colocate::{BOUNDARY, Recorded};
use crate::processes::{Process, ProcessReport, Served, place};

/// The processes of a run.
#[derive(Default)]
pub(super) struct Spaces {
    /// Those there are several of, and the first page of each.
    processes: Vec<Process>,
    starts: Vec<u32>,
    /// A second process, played along.
    beside: Option<Box<Recorded>>,
}

impl Spaces {
    /// The first page of each process where there are several.
    pub(super) fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// Whether a second process is played along.
    pub(super) fn has_another(&self) -> bool {
        self.beside.is_some()
    }
}

impl Simulation {
    /// Announces several processes. Call it before feeding any.
    pub(crate) fn apart(&mut self, processes: &[Process]) {
        self.spaces.processes = processes.to_vec();
        self.spaces.starts = processes.iter().map(|process| process.first_page).collect();
        if let Some(run) = &mut self.hot.mmu {
            run.served = Some(Box::new(Served::new(self.spaces.starts.clone())));
        }
    }

    /// The process that a page belongs to.
    pub(super) fn space_of(&self, page: u32) -> SpaceId {
        SpaceId(place(&self.spaces.starts, page) as u32)
    }

    /// Records accesses, and the memory of each process meanwhile.
    pub(super) fn count_processes(&mut self, accesses: usize) {
        let Some(served) = self.hot.mmu.as_mut().and_then(|run| run.served.as_deref_mut()) else { return };
        let pages = self.link.engine().pages();
        served.held(accesses as u64, |space| [pages.footprint(space), pages.used(space, TierId::FAST)]);
    }

    /// What each of several processes got; empty where there is one, or no MMU that sees whose accesses are whose.
    pub(super) fn served(&self) -> Vec<ProcessReport> {
        let served = self.hot.mmu.as_ref().and_then(|run| run.served.as_deref());
        served.map_or_else(Vec::new, |served| served.reports(&self.spaces.processes, self.config.machine.tiers.len()))
    }

    /// Plays a recorded process along with whatever is fed. To be asked for before anything is.
    pub(crate) fn play_beside(&mut self, first: &str, recorded: Recorded) {
        self.apart(&recorded.beside(first));
        self.spaces.beside = Some(Box::new(recorded));
    }

    /// The second process's share of what the first has just done.
    pub(super) fn feed_beside(&mut self, accesses: usize) {
        let Some(mut other) = self.spaces.beside.take() else { return };
        let shift = (u64::from(BOUNDARY) + self.base()) * PAGE_BYTES;
        let moved = |address: u64| address - terrace_workloads::traced::FIRST_ADDRESS + shift;
        for region in other.begin() {
            self.mapped(&Region { start: moved(region.start), ..region });
        }
        let mut batch = other.go_on(accesses);
        batch.iter_mut().for_each(|access| access.address = moved(access.address));
        self.feed_alone(&batch);
        self.spaces.beside = Some(other);
    }
}
