//! Observations of pages: the interface between trackers and policies.
//!
//! In: nothing. Out: [`Observations`], a batch of observations in one of two shapes. A [`ScanBatch`] is the result of a page-table scan,
//! one byte for each of many consecutive pages; an [`Observation`] is a single event (a hardware sample, a hint fault, an allocation). Must
//! not: interpret. The policy decides what an access is worth.

use std::time::Duration;

use crate::units::{PageId, TierId, Time};

/// The state of one page as a scan of the page tables found it, packed into a byte: accessed, dirty, placed, huge in the low bits, the tier
/// in the high four.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct PteState(u8);

impl PteState {
    /// The page has no memory behind it: never touched, or freed.
    pub const ABSENT: PteState = PteState(0);
    const ACCESSED: u8 = 1;
    const DIRTY: u8 = 2;
    const PLACED: u8 = 4;
    const HUGE: u8 = 8;

    /// A page with memory behind it in `tier`.
    pub const fn placed(tier: TierId) -> PteState {
        PteState(PteState::PLACED | (tier.0 << 4))
    }

    /// The same state with the accessed bit set to `accessed`.
    pub const fn with_accessed(self, accessed: bool) -> PteState {
        if accessed { PteState(self.0 | PteState::ACCESSED) } else { PteState(self.0 & !PteState::ACCESSED) }
    }

    /// The same state with the dirty bit set to `dirty`.
    pub const fn with_dirty(self, dirty: bool) -> PteState {
        if dirty { PteState(self.0 | PteState::DIRTY) } else { PteState(self.0 & !PteState::DIRTY) }
    }

    /// The same state with the huge bit set to `huge`.
    pub const fn with_huge(self, huge: bool) -> PteState {
        if huge { PteState(self.0 | PteState::HUGE) } else { PteState(self.0 & !PteState::HUGE) }
    }

    /// Whether the page was read or written since its accessed bit was last cleared.
    pub const fn accessed(self) -> bool {
        self.0 & PteState::ACCESSED != 0
    }

    /// Whether the page was written since it was last clean.
    pub const fn dirty(self) -> bool {
        self.0 & PteState::DIRTY != 0
    }

    /// Whether the page is part of a 2 MiB mapping.
    pub const fn huge(self) -> bool {
        self.0 & PteState::HUGE != 0
    }

    /// The page's tier, or `None` if it has no memory behind it.
    pub const fn tier(self) -> Option<TierId> {
        if self.0 & PteState::PLACED != 0 { Some(TierId(self.0 >> 4)) } else { None }
    }
}

impl std::fmt::Debug for PteState {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mark = |set: bool, letter: char| if set { letter } else { '-' };
        match self.tier() {
            None => out.write_str("absent"),
            Some(tier) => write!(
                out,
                "{}{}{}@{}",
                mark(self.accessed(), 'a'),
                mark(self.dirty(), 'd'),
                mark(self.huge(), 'h'),
                tier.0
            ),
        }
    }
}

/// Consecutive pages of one block, or of several adjacent block ids, from one scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanBatch<'a> {
    /// The page that `PTE states[0]` describes; `PTE states[k]` describes the page `k` further on, in the same block.
    pub first: PageId,
    /// One state per page; at most a block's worth from `first` on.
    pub ptes: &'a [PteState],
    /// How long the accessed bits could be set: the time since they were last cleared. `None` means that the bits are not valid in this
    /// batch, only the tiers are.
    pub window: Option<Duration>,
    /// Whether the scan also cleared the accessed bits, so that the next window starts now.
    pub cleared: bool,
}

/// The kind of access of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// A load that missed the last-level cache.
    Load,
    /// A retired store, whether or not it missed.
    Store,
}

/// A single event on one page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Observation {
    /// A hardware sample: it stands for `period` accesses of its kind.
    Sampled {
        /// The page touched.
        page: PageId,
        /// Load or store.
        access: Access,
        /// How many such accesses one sample stands for.
        period: u32,
    },
    /// A hint fault: the program touched a page that had been made inaccessible to detect its next use.
    HintFault {
        /// The page touched.
        page: PageId,
        /// Whether it is known to have been written.
        write: bool,
        /// When the page was made inaccessible; the time of the fault itself if that is unknown ([`Needs::own_marks`]).
        ///
        /// [`Needs::own_marks`]: crate::policy::Needs::own_marks
        marked: Time,
    },
    /// The program touched a page that had left fast memory, and waited for its return.
    Refault {
        /// The refaulted page.
        page: PageId,
    },
    /// A count from hardware or from a device: accesses since it was last read.
    Counted {
        /// The page counted.
        page: PageId,
        /// Accesses.
        accesses: u32,
    },
    /// First touch: the page received memory in `tier`.
    Allocated {
        /// The new page.
        page: PageId,
        /// The tier it was placed in.
        tier: TierId,
    },
    /// The page's memory was freed.
    Freed {
        /// The freed page.
        page: PageId,
    },
}

impl Observation {
    /// The page the event is about.
    pub const fn page(&self) -> PageId {
        match *self {
            Observation::Sampled { page, .. }
            | Observation::HintFault { page, .. }
            | Observation::Refault { page }
            | Observation::Counted { page, .. }
            | Observation::Allocated { page, .. }
            | Observation::Freed { page } => page,
        }
    }
}

/// A batch of a tracker's observations.
#[derive(Clone, Copy, Debug)]
pub enum Observations<'a> {
    /// Part of a page-table scan.
    Scan(ScanBatch<'a>),
    /// Single events, in the order they happened.
    Events(&'a [Observation]),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sight_keeps_tier_and_marks_apart() {
        for tier in 0..TierId::MAX as u8 {
            let pte = PteState::placed(TierId(tier)).with_accessed(true).with_huge(true);
            assert_eq!(pte.tier(), Some(TierId(tier)));
            assert!(pte.accessed() && pte.huge() && !pte.dirty());
            assert_eq!(pte.with_accessed(false).with_huge(false), PteState::placed(TierId(tier)));
        }
        assert_eq!(PteState::ABSENT.tier(), None);
    }
}
