//! The books of a run: what happened by kind, what management cost, and the course of it.
//!
//! In: what the other parts count and pay. Out: sums, rows of the series, the figures of the tuner's counters. Must not: know what they are
//! for, or let a part write a sum by itself.

use std::collections::BTreeMap;

use terrace_core::units::{TierId, Time, Vpn};
use terrace_machine::load::Wait;

use super::Simulation;
use crate::heat::HeatMap;
use crate::history::{History, What};
use crate::hot::Hot;
use crate::series::{Series, Totals};
use crate::tuning::Waited;

/// Full-size nanoseconds of a row of series and heat map, at first.
const ROW_NANOS: u64 = 10_000_000;
/// One access in this many goes into the heat map.
const HEAT_EVERY: usize = 61;

/// What is counted. Pages, unless it says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Promoted,
    Demoted,
    KernelDemoted,
    FailedPromotions,
    MigratedPages,
    /// Faults.
    HintFaults,
    /// Faults.
    Refaults,
    /// Times.
    DirectReclaims,
    /// Blocks.
    Splits,
    /// Blocks.
    Collapses,
}

impl Event {
    const COUNT: usize = Event::Collapses as usize + 1;
}

/// What management cost, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    HintFaultStall,
    HintMarkStall,
    Scan,
    ScanResetStall,
    Sampling,
    Migration,
    PromotionStall,
    ShootdownStall,
    BlockedStall,
    Reclaim,
    DirectReclaimStall,
    RefaultStall,
}

impl Cost {
    /// All of them, with their names in the report.
    const ALL: [(Cost, &'static str); 12] = [
        (Cost::HintFaultStall, "hint_fault_stall"),
        (Cost::HintMarkStall, "hint_mark_stall"),
        (Cost::Scan, "scan"),
        (Cost::ScanResetStall, "scan_reset_stall"),
        (Cost::Sampling, "sampling"),
        (Cost::Migration, "migration"),
        (Cost::PromotionStall, "promotion_stall"),
        (Cost::ShootdownStall, "shootdown_stall"),
        (Cost::BlockedStall, "blocked_stall"),
        (Cost::Reclaim, "reclaim"),
        (Cost::DirectReclaimStall, "direct_reclaim_stall"),
        (Cost::RefaultStall, "refault_stall"),
    ];
    /// What the program's threads pay.
    const STALLS: [Cost; 8] = [
        Cost::HintFaultStall,
        Cost::HintMarkStall,
        Cost::ScanResetStall,
        Cost::PromotionStall,
        Cost::ShootdownStall,
        Cost::BlockedStall,
        Cost::DirectReclaimStall,
        Cost::RefaultStall,
    ];
}

/// Sums since the start.
pub(super) struct Books {
    accesses: u64,
    cache_hits: u64,
    tier_accesses: [u64; TierId::MAX],
    counted_loads: [u64; TierId::MAX],
    streamed_loads: u64,
    tier_read: [u64; TierId::MAX],
    tier_written: [u64; TierId::MAX],
    bandwidth_bound_ns: f64,
    peak_pages: u64,
    events: [u64; Event::COUNT],
    costs: [f64; Cost::ALL.len()],
    waited: Waited,
    history: History,
    series: Series,
    heat: HeatMap,
    heat_phase: usize,
    phases: Vec<(String, f64)>,
}

/// What a report is made of at the end.
pub(super) struct Course {
    pub(super) history: History,
    pub(super) series: Series,
    pub(super) heat: HeatMap,
    pub(super) phases: Vec<(String, f64)>,
}

impl Books {
    pub(super) fn new(history: History) -> Books {
        Books {
            accesses: 0,
            cache_hits: 0,
            tier_accesses: [0; TierId::MAX],
            counted_loads: [0; TierId::MAX],
            streamed_loads: 0,
            tier_read: [0; TierId::MAX],
            tier_written: [0; TierId::MAX],
            bandwidth_bound_ns: 0.0,
            peak_pages: 0,
            events: [0; Event::COUNT],
            costs: [0.0; Cost::ALL.len()],
            waited: Waited::default(),
            history,
            series: Series::new(ROW_NANOS),
            heat: HeatMap::new(ROW_NANOS),
            heat_phase: 0,
            phases: Vec::new(),
        }
    }

    pub(super) fn count(&mut self, event: Event, number: u64) {
        self.events[event as usize] += number;
    }

    pub(super) fn counted(&self, event: Event) -> u64 {
        self.events[event as usize]
    }

    pub(super) fn pay(&mut self, cost: Cost, nanos: f64) {
        self.costs[cost as usize] += nanos;
    }

    pub(super) fn cost(&self, cost: Cost) -> f64 {
        self.costs[cost as usize]
    }

    /// What the program's threads paid.
    pub(super) fn program_stall(&self) -> f64 {
        Cost::STALLS.into_iter().fold(0.0, |sum, cost| sum + self.cost(cost))
    }

    /// What the kernel's threads worked: reclaim, migration, walks, samples.
    pub(super) fn kernel_nanos(&self) -> f64 {
        [Cost::Reclaim, Cost::Migration, Cost::Scan, Cost::Sampling].map(|cost| self.cost(cost)).iter().sum()
    }

    /// What each kind of management cost, in seconds, by its name in the report.
    pub(super) fn cost_seconds(&self) -> BTreeMap<&'static str, f64> {
        Cost::ALL.into_iter().map(|(cost, name)| (name, self.cost(cost) / 1e9)).collect()
    }

    pub(super) fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Accesses that each tier served.
    pub(super) fn tier_accesses(&self) -> &[u64; TierId::MAX] {
        &self.tier_accesses
    }

    /// Loads of each tier that missed every cache.
    pub(super) fn counted_loads(&self) -> &[u64; TierId::MAX] {
        &self.counted_loads
    }

    /// Loads of lines that a prefetcher had brought in time.
    pub(super) fn streamed_loads(&self) -> u64 {
        self.streamed_loads
    }

    /// Bytes read from a tier and written to it.
    pub(super) fn tier_bytes(&self, tier: usize) -> [u64; 2] {
        [self.tier_read[tier], self.tier_written[tier]]
    }

    pub(super) fn cache_hits(&self) -> u64 {
        self.cache_hits
    }

    pub(super) fn peak_pages(&self) -> u64 {
        self.peak_pages
    }

    pub(super) fn bandwidth_bound_ns(&self) -> f64 {
        self.bandwidth_bound_ns
    }

    /// Records nanoseconds whose length bandwidth, not latency, determined.
    pub(super) fn bound_by_bandwidth(&mut self, nanos: f64) {
        self.bandwidth_bound_ns += nanos;
    }

    pub(super) fn waited(&self) -> &Waited {
        &self.waited
    }

    pub(super) fn waited_mut(&mut self) -> &mut Waited {
        &mut self.waited
    }

    /// Records bytes of fast memory that moves read and wrote.
    pub(super) fn moved_fast(&mut self, [read, written]: [u64; 2]) {
        self.waited.moved_fast[0] += read;
        self.waited.moved_fast[1] += written;
    }

    /// What happened to a page, if it is watched.
    pub(super) fn note(&mut self, now: Time, vpn: Vpn, what: impl FnOnce() -> What) {
        self.history.add(now, vpn, what);
    }

    /// A named part of the program begins.
    pub(super) fn begin_phase(&mut self, name: &str, now: Time) {
        self.phases.push((name.to_owned(), now.as_secs_f64()));
    }

    /// Records accesses; `page` returns the page of one of them.
    pub(super) fn accessed(&mut self, accesses: usize, now: Time, page: impl Fn(usize) -> u32) {
        self.accesses += accesses as u64;
        let mut at = self.heat_phase;
        while at < accesses {
            self.heat.add(now, page(at));
            at += HEAT_EVERY;
        }
        self.heat_phase = at - accesses;
    }

    /// Adds what the inner loop counted, and clears it there.
    pub(super) fn total_up(&mut self, hot: &mut Hot, tiers: usize) {
        let memory_mode = hot.memory_mode.is_some();
        for work in hot.work() {
            self.cache_hits += work.cache_hits;
            for (tier, by_wait) in work.misses.iter().enumerate() {
                let misses: u64 = by_wait.iter().map(|&n| u64::from(n)).sum();
                let counted = Wait::ALL.iter().filter(|wait| wait.is_counted_load());
                let loads: u64 = counted.map(|&wait| u64::from(by_wait[wait as usize])).sum();
                self.tier_accesses[tier] += misses;
                self.counted_loads[tier] += loads;
                // In Memory Mode each access is one of the fast tier first.
                let streamed = u64::from(by_wait[Wait::Streamed as usize]);
                self.streamed_loads += if memory_mode && tier > 0 { 0 } else { streamed };
                if memory_mode && tier > 0 {
                    // A miss of Memory Mode probed the fast tier first; it was served by the slow one.
                    self.tier_accesses[0] -= misses;
                    self.counted_loads[0] -= loads;
                }
            }
        }
        hot.clear_work();
        for tier in 0..tiers {
            let [read, written] = hot.take_bytes(tier);
            self.tier_read[tier] += read;
            self.tier_written[tier] += written;
        }
        self.peak_pages = self.peak_pages.max(hot.memory.resident());
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            fast: self.tier_accesses[0],
            memory: self.tier_accesses.iter().sum(),
            promoted: self.counted(Event::Promoted),
            demoted: self.counted(Event::Demoted),
            failed: self.counted(Event::FailedPromotions),
        }
    }

    pub(super) fn row_is_due(&self, now: Time) -> bool {
        self.series.is_due(now)
    }

    /// What happened in what order: at the end.
    pub(super) fn into_course(self) -> Course {
        Course { history: self.history, series: self.series, heat: self.heat, phases: self.phases }
    }
}

impl Simulation {
    pub(super) fn add_row(&mut self, now: Time) {
        let metrics = self.link.engine().policy_metrics();
        let (totals, fast) = (self.books.totals(), self.hot.memory.used(TierId::FAST));
        self.books.series.add(now, totals, fast, &metrics);
    }
}
