//! Shared memory of the managed processes, as the manager follows it.
//!
//! In: the mappings of each process. Out: the ranges that may be managed of them, and pages handed from one process to another. Must
//! not: manage shared memory whose pages in swap cannot be found: what leaves would be lost to the account.

use terrace_core::engine::Input;
use terrace_core::units::SpaceId;

use super::Manager;
use crate::process::{Backing, MemoryRange};
use crate::shared_memory::{self, Handover};

impl Manager {
    /// Finds out whether shared memory can be accounted for. If it cannot, it is left alone, and the report says why.
    pub(super) fn try_shared_memory(&mut self) {
        if !self.parts.ranges.shared || self.parts.tiers.swap_tier().is_none() {
            return;
        }
        if let Err(reason) = shared_memory::try_on_self() {
            tracing::warn!("shared memory is left alone, since its pages in swap cannot be found: {reason}");
            self.stats.shared_refused = Some(reason.to_string());
            self.parts.ranges.shared = false;
        }
    }

    /// Brings what a process shares up to date, and takes out of `mapped` what of it is left alone.
    pub(super) fn follow_shared(&mut self, id: SpaceId, mapped: &mut Vec<MemoryRange>) {
        let Some(space) = self.spaces.get(&id) else { return };
        // A process that has just ended shares nothing.
        let mappings = if mapped.is_empty() { Ok(Vec::new()) } else { space.process.shared_mappings() };
        let (left, handed) = self.shared.follow(id, space.process.pid(), mappings.unwrap_or_default());
        // Between nodes, pages of files move as all others do.
        if self.nodes.is_empty() {
            mapped.retain(|range| range.backing != Backing::Shared || !left.contains(&range.start));
        }
        self.hand_over(id, handed);
    }

    /// A process no longer has what it shared with others.
    pub(super) fn forget_shared(&mut self, id: SpaceId) {
        let handed = self.shared.forget(id);
        self.hand_over(id, handed);
    }

    fn hand_over(&mut self, from: SpaceId, handed: Vec<Handover>) {
        for Handover { from: first, to, pages } in handed {
            self.drain_engine(Input::Handed { from: (from, first), to, pages });
        }
    }
}
