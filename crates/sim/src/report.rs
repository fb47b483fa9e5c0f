//! What a run amounted to.
//!
//! In: nothing. Out: the types that `terrace sim run --json` prints; units stand in the names. Must not: compute: the
//! simulation fills it in.

use std::collections::BTreeMap;

use crate::config::Pages;
use crate::heat::HeatMap;
use crate::history::History;
use crate::mmu::MmuReport;
use crate::processes::ProcessReport;
use crate::series::Series;

/// One run. Sizes, counts and seconds are those of the scaled machine unless the name says `full_size`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    /// The workload or trace.
    pub workload: String,
    /// The policy.
    pub policy: String,
    /// The machine.
    pub machine: String,
    /// The seed.
    pub seed: u64,
    /// The factor by which footprint, fast memory, time, caches and sample counts were shrunk.
    pub scale: u32,
    /// Page size.
    pub pages: Pages,
    /// Capacity of the fastest tier.
    pub fast_bytes: u64,
    /// The most memory the program had at one time.
    pub footprint_bytes: u64,
    /// Run time.
    pub seconds: f64,
    /// Run time times the scale: what the model says the full-size program would take.
    pub full_size_seconds: f64,
    /// Run time over that with everything in the fastest tier; `None` if that was not run.
    pub slowdown_vs_all_fast: Option<f64>,
    /// Run time with everything in the slowest memory tier over this run time; `None` if that was not run.
    pub gain_over_all_slow: Option<f64>,
    /// Share of memory accesses that the fastest tier served.
    pub fast_hit_share: f64,
    /// Pages moved to a faster tier, by the policy or by faults from compressed memory.
    pub promoted_pages: u64,
    /// Pages moved to a slower tier, by the policy or by the kernel.
    pub demoted_pages: u64,
    /// Pages whose promotion failed: refused by the machine, or given up by a policy that saw no room and counts that
    /// (figures named `promotion_failures...`), whichever is more.
    pub failed_promotions: u64,
    /// All that management cost, in CPU seconds, the program's and its own: the sum of `overhead_seconds`.
    pub management_seconds: f64,
    /// Of that, what threads of the kernel worked beside the program: reclaim, migration, walks, samples. Each reclaim thread works no longer
    /// than the run.
    pub kernel_seconds: f64,
    /// Bytes a page: the shared page states, and what the policy keeps or says it keeps.
    pub metadata_bytes_per_page: f64,
    /// Accesses the program made.
    pub accesses: u64,
    /// Accesses served by the last-level cache.
    pub cache_hits: u64,
    /// Accesses served by each tier.
    pub tier_accesses: Vec<u64>,
    /// Of these, the loads that counters of misses of the last-level cache count and sample: those of lines that no prefetcher had brought
    /// by then.
    pub counted_loads: Vec<u64>,
    /// Names of the tiers.
    pub tier_names: Vec<String>,
    /// Bytes each tier moved, migrations included: read, written.
    pub tier_bytes: Vec<[u64; 2]>,
    /// Share of the run in which bandwidth, not latency, set the pace.
    pub bandwidth_bound_share: f64,
    /// Translations that needed a page walk, over accesses.
    pub walk_share: f64,
    /// Bytes that changed tier.
    pub migrated_bytes: u64,
    /// Failures and rejections of moves, in pages, by cause. Rejections of the governor start with `veto_`.
    pub failures: BTreeMap<String, u64>,
    /// What management cost, in CPU seconds, by kind. Kinds that end in `_stall` were paid by the program's threads.
    pub overhead_seconds: BTreeMap<&'static str, f64>,
    /// Hardware samples taken, and lost.
    pub samples: [u64; 2],
    /// Hint faults taken.
    pub hint_faults: u64,
    /// Faults from compressed memory.
    pub refaults: u64,
    /// Pages demoted by the kernel's reclaim, of those in `demoted_pages`.
    pub kernel_demoted_pages: u64,
    /// Direct reclaim: times the program had to make room itself.
    pub direct_reclaims: u64,
    /// Huge pages split, and collapsed.
    pub splits_and_collapses: [u64; 2],
    /// The policy's figures at the end.
    pub policy_metrics: BTreeMap<&'static str, f64>,
    /// What each process got, where there are several; empty otherwise.
    pub processes: Vec<ProcessReport>,
    /// What the MMU and its counters did, core by core; `None` where it is not modelled.
    pub mmu: Option<MmuReport>,
    /// Named parts of the program, with the full-size second at which each began.
    pub phases: Vec<(String, f64)>,
    /// Figures over time.
    pub series: Series,
    /// Accesses by address and time.
    pub heat_map: HeatMap,
    /// History of the watched pages.
    pub history: History,
}
