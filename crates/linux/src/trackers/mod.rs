//! Trackers: how Terrace sees which pages a process uses.
//!
//! In: processes and their memory ranges. Out: PTE states and events by address, through a [`Sink`]. Must not:
//! decide, know a policy, or be trusted before it has proven itself on a private mapping (`prove`).

pub mod accessed_bits;
pub mod damon;
pub mod emulated;
pub mod emulated_ring;
pub mod hint_faults;
pub mod idle_pages;
pub mod page_faults;
pub mod pair;
pub mod places;
pub mod prove;
pub(crate) mod rotation;
pub mod sample_period;
pub mod samples;
pub mod walker;
pub mod write_tracking;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use terrace_core::observation::{Access, PteState};
use terrace_core::policy::{HintScan, SamplePeriods};
use terrace_core::units::{Bytes, PAGE_BYTES, SpaceId, Time, Vpn};
use terrace_core::watching::WatchPrices;

use crate::process::{MemoryRange, Process};
use crate::topology::TierMap;

/// What a tracker can observe, and at what price; shown by `terrace doctor` and used to choose the best one.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Grade {
    /// The smallest piece of memory it distinguishes.
    pub granularity_bytes: Bytes,
    /// Whether it sees reads.
    pub reads: bool,
    /// Whether it sees writes.
    pub writes: bool,
    /// Measured cost of one observation of one 4 KiB page, reading and clearing, in nanoseconds; `None` if not measured.
    pub cost_ns_per_page: Option<f64>,
}

impl Grade {
    /// Reads and writes of single pages, at a cost that nobody measured.
    pub const PAGES: Grade =
        Grade { granularity_bytes: Bytes::new(PAGE_BYTES), reads: true, writes: true, cost_ns_per_page: None };
}

/// A process as a tracker is given it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The space its observations belong to.
    pub space: SpaceId,
    /// The process.
    pub process: &'a Process,
    /// The memory that may be managed, by address, without overlaps.
    pub ranges: &'a [MemoryRange],
}

/// One look at all processes.
#[derive(Clone, Copy)]
pub struct Round<'a> {
    /// When it begins.
    pub now: Time,
    /// The processes.
    pub targets: &'a [Target<'a>],
    /// The tiers of the machine.
    pub tiers: &'a TierMap,
    /// The share of each process's blocks whose accessed bits are read and cleared, from 0 to 1.
    pub share: f64,
}

impl<'a> Round<'a> {
    /// One in which it is the turn of all blocks.
    pub fn of_all(now: Time, targets: &'a [Target<'a>], tiers: &'a TierMap) -> Round<'a> {
        Round { now, targets, tiers, share: 1.0 }
    }
}

/// An event by address.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A hardware sample standing for `period` accesses.
    Sampled {
        /// Load or store.
        access: Access,
        /// Accesses it stands for.
        period: u32,
    },
    /// A minor fault while the kernel marks pages of slow nodes: on a page with memory there it says that the program
    /// touched it. The kernel does not report whether it was written, or when it was made inaccessible.
    HintFault,
    /// First touch.
    Allocated,
    /// A page came back from swap because the program touched it.
    Refault,
}

/// Takes what a tracker sees.
pub trait Sink {
    /// Consecutive pages from `first` on, all of one 2 MiB block.
    fn scan(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, cleared: bool);
    /// One event.
    fn event(&mut self, space: SpaceId, vpn: Vpn, event: Event);
}

/// Why a tracker cannot work, or stopped working. The text says what is missing and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// The kernel, the machine or the rights do not allow it.
    #[error("{tracker}: {reason}")]
    Unavailable {
        /// Which tracker.
        tracker: &'static str,
        /// What is missing and what to do about it, in one line.
        reason: String,
    },
    /// The process is gone.
    #[error("process {pid} is gone")]
    Gone {
        /// Its pid.
        pid: u32,
    },
    /// A system call failed.
    #[error("{tracker}: {call}: {source}")]
    Call {
        /// Which tracker.
        tracker: &'static str,
        /// The call, with the path or arguments that matter.
        call: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl TrackError {
    /// A call of a tracker failed.
    pub(crate) fn call(tracker: &'static str, call: impl Into<String>, source: std::io::Error) -> TrackError {
        TrackError::Call { tracker, call: call.into(), source }
    }

    /// Whether it says that a process, or its memory, is no longer there. Then it tells of a target's end, and nothing of the tracker.
    pub fn is_no_such_process(&self) -> bool {
        match self {
            TrackError::Gone { .. } => true,
            TrackError::Call { source, .. } => source.raw_os_error() == Some(libc::ESRCH),
            TrackError::Unavailable { .. } => false,
        }
    }
}

/// What a tracker is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofKind {
    /// It reads marks: pages touched after a clearing round must show in the next, and no others.
    Marks {
        /// How long the pages must be touched over and over for it to see them.
        dwell: Duration,
    },
    /// It sees first touches: pages of a fresh mapping must be reported as allocated when touched, and no others.
    FirstTouches,
    /// It samples: what it reports must be pages that were touched, and it must report some.
    Samples,
    /// It reports use of pages that the kernel marked: those touched again and again on this node, and no others there.
    HintFaults {
        /// A node whose pages are marked.
        slow_node: u32,
    },
}

/// A way to see accesses.
pub trait Tracker {
    /// Its name, as `--tracker` takes it.
    fn name(&self) -> &'static str;

    /// What it can observe, and the cost.
    fn grade(&self) -> Grade {
        Grade::PAGES
    }

    /// Reads the accessed bits of a share of each target's blocks, in rotation, hands them to `sink`, and clears them.
    /// Blocks whose turn it is not are reported with `window: None`, so that their places stay known.
    ///
    /// # Errors
    /// When a call failed that has nothing to do with a target exiting; a target that is gone is skipped.
    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError>;

    /// Hands over the events that arrived since the last call.
    ///
    /// # Errors
    /// When the source of events broke.
    fn events(&mut self, _now: Time, _targets: &[Target<'_>], _sink: &mut dyn Sink) -> Result<(), TrackError> {
        Ok(())
    }

    /// A descriptor that becomes readable when events wait, if there is one.
    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Events lost because they came faster than they were read.
    fn lost(&self) -> u64 {
        0
    }

    /// From now on only this share of the blocks takes turns at being cleared, chosen by a hash of their address, so that they stand for
    /// all: 1.0 at first. Trackers that clear nothing by blocks have no use for it.
    fn watch_within(&mut self, _within: f64) {}

    /// What its rounds cost a page; `None` where rounds clear no bits, so that a program pays nothing for being watched.
    fn prices(&self) -> Option<WatchPrices> {
        None
    }

    /// Forgets all it keeps of a space (its rotation, its descriptors).
    fn forget(&mut self, _space: SpaceId) {}

    /// What disturbs what it sees, as found when it was opened; one line each.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether what it sees lies in the page tables until a round reads it, so that a round may leave out a program that did not run since the last.
    fn reads_page_tables(&self) -> bool {
        false
    }

    /// Whether it sees what a virtual machine under KVM uses of its process's memory: that is marked in tables of the processor's own.
    fn sees_virtual_machines(&self) -> bool {
        false
    }

    /// What it is tried on before it is trusted.
    fn proof_kind(&self) -> ProofKind {
        ProofKind::Marks { dwell: Duration::from_millis(2) }
    }

    /// Takes in a private mapping of this very process, before it is tried on it. For trackers that see only memory
    /// which was registered with them.
    ///
    /// # Errors
    /// When the registration is refused.
    fn admit(&mut self, _range: MemoryRange) -> Result<(), TrackError> {
        Ok(())
    }

    /// The periods a policy wants hardware samples at. Trackers without samples have no use for it.
    fn set_sample_periods(&mut self, _wanted: SamplePeriods) {}

    /// How fast a policy wants pages to be marked. Trackers without hint faults have no use for it.
    fn set_hint_scan(&mut self, _wanted: HintScan) {}
}
