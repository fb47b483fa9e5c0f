//! The books of a run: events by kind, and what management cost.
//!
//! In: what the simulation counts. Out: sums. Must not: know what they are for.

use std::collections::BTreeMap;

use terrace_core::units::TierId;

/// Events by kind, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) accesses: u64,
    pub(crate) cache_hits: u64,
    pub(crate) tier_accesses: [u64; TierId::MAX],
    pub(crate) tier_read: [u64; TierId::MAX],
    pub(crate) tier_written: [u64; TierId::MAX],
    pub(crate) promoted: u64,
    pub(crate) demoted: u64,
    pub(crate) kernel_demoted: u64,
    pub(crate) failed_promotions: u64,
    pub(crate) migrated_pages: u64,
    pub(crate) hint_faults: u64,
    pub(crate) refaults: u64,
    pub(crate) direct_reclaims: u64,
    pub(crate) splits: u64,
    pub(crate) collapses: u64,
    pub(crate) bandwidth_bound_ns: f64,
    pub(crate) peak_pages: u64,
}

/// What management cost so far, in nanoseconds. Names as in the report.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) hint_fault_stall: f64,
    pub(crate) hint_mark_stall: f64,
    pub(crate) scan: f64,
    pub(crate) scan_reset_stall: f64,
    pub(crate) sampling: f64,
    pub(crate) migration: f64,
    pub(crate) promotion_stall: f64,
    pub(crate) shootdown_stall: f64,
    pub(crate) blocked_stall: f64,
    pub(crate) reclaim: f64,
    pub(crate) direct_reclaim_stall: f64,
    pub(crate) refault_stall: f64,
}

impl Costs {
    /// What the program's threads paid.
    pub(crate) fn program_stall(&self) -> f64 {
        self.hint_fault_stall
            + self.hint_mark_stall
            + self.scan_reset_stall
            + self.promotion_stall
            + self.shootdown_stall
            + self.blocked_stall
            + self.direct_reclaim_stall
            + self.refault_stall
    }

    pub(crate) fn seconds(&self) -> BTreeMap<&'static str, f64> {
        [
            ("hint_fault_stall", self.hint_fault_stall),
            ("hint_mark_stall", self.hint_mark_stall),
            ("scan", self.scan),
            ("scan_reset_stall", self.scan_reset_stall),
            ("sampling", self.sampling),
            ("migration", self.migration),
            ("promotion_stall", self.promotion_stall),
            ("shootdown_stall", self.shootdown_stall),
            ("blocked_stall", self.blocked_stall),
            ("reclaim", self.reclaim),
            ("direct_reclaim_stall", self.direct_reclaim_stall),
            ("refault_stall", self.refault_stall),
        ]
        .map(|(name, nanos)| (name, nanos / 1e9))
        .into()
    }
}
