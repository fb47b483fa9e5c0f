//! Fast memory that changes its size while a program runs, and the counters by which someone decides that.
//!
//! In: a [`Tuning`] that is shown the counters at the times it asks for. Out: the limit it answers, held by the modelled machine. Must
//! not: decide, or show what no counter of real hardware or kernel could.
//!
//! How a limit is held depends on who manages fast memory. Where the policy's kernel reclaims, the watermarks rise by what is
//! withheld ([`terrace_machine::reclaim::Reclaim::withhold`]), as Tuna has it (section 4). Elsewhere the fast tier simply
//! holds this many pages, as under a control group, and the policy learns it and demotes.

use terrace_core::units::{TierId, Time};

/// What has been counted since the start. Of the scaled machine but for `now`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Full-size time.
    pub now: Time,
    /// Accesses served by the fastest tier.
    pub fast_accesses: u64,
    /// Accesses served by the others.
    pub slow_accesses: u64,
    /// Cycles in which the threads computed, cache hits included at what they cost.
    pub operations: f64,
    /// Pages promoted.
    pub promoted: u64,
    /// Pages demoted.
    pub demoted: u64,
    /// Pages whose promotion failed.
    pub failed_promotions: u64,
    /// Pages with memory now.
    pub resident_pages: u64,
    /// Pages in the fastest tier now.
    pub fast_pages: u64,
    /// The limit of fast pages now.
    pub fast_limit: u64,
    /// Pages that the kernel's reclaim keeps free of the fastest tier when nothing is withheld, by its watermarks; `None` where the policy demotes
    /// by itself.
    pub kernel_keeps_free: Option<u64>,
    /// Accesses to a page that make it hot, by the policy's own threshold; `None` where it has none that changes.
    pub hot_threshold: Option<f64>,
    /// Threads that ran lately.
    pub threads: u32,
    /// Time the threads ran, summed over them, in nanoseconds.
    pub thread_nanos: f64,
    /// Of that, what they waited for slow memory beyond what fast memory would have taken: what counters of stalled cycles show,
    /// split by the tier that was waited for.
    pub slow_nanos: f64,
    /// Of that, what management cost them: faults, marks, moves in faults, shootdowns, direct reclaim.
    pub management_nanos: f64,
    /// How long the program ran: time that passed, whatever the number of threads, in nanoseconds.
    pub ran_nanos: f64,
    /// Of that, what it would not have taken with everything fast and unmanaged. It is less than what the threads waited: while some
    /// wait, the others find memory less loaded. On hardware it is worked out from the counters of stalled cycles, the bytes that
    /// memory controllers count by tier, and the tiers' latency under load, which is measured once; here from the same, by the same
    /// equations that time runs by. `ran_nanos` and this are counted while a [`Tuning`] looks on.
    pub lost_nanos: f64,
    /// How long threads waited for memory of any tier, summed over them, in nanoseconds.
    pub memory_nanos: f64,
    /// Bytes that the fastest tier read and wrote, moves included.
    pub fast_bytes: [u64; 2],
}

/// Decides about the size of fast memory.
pub trait Tuning: Send {
    /// When it wants to be asked next, in full-size time.
    fn due(&self) -> Time;
    /// Looks at the counters. Returns the limit in pages from now on, or `None` to leave it.
    fn tune(&mut self, counters: &Counters) -> Option<u64>;
    /// Whether it wants to see the pages as well, just before it is asked.
    fn watches_pages(&self) -> bool {
        false
    }
    /// Of each page: how many accesses to it reached memory since the look before, and nothing where it has no memory. On hardware samples say
    /// so; an access of the scaled machine stands for as many as there are between two samples.
    fn watch(&mut self, _pages: &[Option<u32>], _counters: &Counters) {}
}

/// A limit that is set once, at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedLimit {
    /// The limit in pages.
    pub pages: u64,
    done: bool,
}

impl FixedLimit {
    /// This limit from the start.
    pub const fn new(pages: u64) -> FixedLimit {
        FixedLimit { pages, done: false }
    }
}

impl Tuning for FixedLimit {
    fn due(&self) -> Time {
        if self.done { Time::FAR_FUTURE } else { Time::ZERO }
    }
    fn tune(&mut self, _counters: &Counters) -> Option<u64> {
        self.done = true;
        Some(self.pages)
    }
}

/// Waiting as the counters sum it up, in nanoseconds over all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waited {
    pub(crate) threads: f64,
    pub(crate) slow: f64,
    pub(crate) memory: f64,
    pub(crate) cycles: u64,
    /// Of the time that passed.
    pub(crate) ran: f64,
    pub(crate) lost: f64,
    /// What the threads had paid themselves, in their faults, up to the end of the stretch before.
    pub(crate) paid: f64,
    /// Bytes that moves read and wrote in the fastest tier in this stretch.
    pub(crate) moved_fast: [u64; 2],
    /// Since the processor's counts were last told: nanoseconds of a load from each tier as loaded, times the time it was so; and that time.
    pub(crate) latency: [f64; TierId::MAX],
    pub(crate) latency_ns: f64,
}
