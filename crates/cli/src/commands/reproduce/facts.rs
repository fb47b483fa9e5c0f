//! What each run of an experiment amounted to, beside the rows it serves: where its time went, and what was moved.
//!
//! In: a case, a seed and the report. Out: one JSON object. Must not: compare runs; `quantity` does.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use terrace_sim::Report;

/// One object a run; sizes, counts and seconds are those of the scaled machine.
pub(super) fn of(run: &str, seed: u64, report: &Report) -> Value {
    json!({
        "run": run,
        "seed": seed,
        "seconds": report.seconds,
        "full_size_seconds": report.full_size_seconds,
        "phase_seconds": phase_seconds(report),
        "fast_hit_share": report.fast_hit_share,
        "accesses": report.accesses,
        "tier_accesses": report.tier_accesses,
        "promoted_pages": report.promoted_pages,
        "demoted_pages": report.demoted_pages,
        "kernel_demoted_pages": report.kernel_demoted_pages,
        "failed_promotions": report.failed_promotions,
        "migrated_bytes": report.migrated_bytes,
        "management_seconds": report.management_seconds,
        "overhead_seconds": report.overhead_seconds,
        "bandwidth_bound_share": report.bandwidth_bound_share,
        "samples": report.samples,
        "hint_faults": report.hint_faults,
        "slowdown_vs_all_fast": report.slowdown_vs_all_fast,
        "policy_metrics": report.policy_metrics,
    })
}

/// Seconds by the name of the program's parts; what recurs (Graph500's searches) is added up.
pub(super) fn phase_seconds(report: &Report) -> BTreeMap<&str, f64> {
    let scale = f64::from(report.scale);
    let ends = report.phases.iter().skip(1).map(|(_, at)| *at).chain([report.seconds * scale]);
    let mut sums = BTreeMap::new();
    for ((name, begin), end) in report.phases.iter().zip(ends) {
        *sums.entry(name.as_str()).or_insert(0.0) += (end - begin) / scale;
    }
    sums
}
