//! Numbers of single runs.
//!
//! In: a report. Out: a figure, with what stands behind it. Must not: compare runs; `evaluate` does.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use terrace_sim::Report;

use crate::case::Case;
use crate::measure::{Figure, Part};
use crate::run::Outcome;

/// The figure of a run, and what stands behind it; `None` where the run has none.
pub(crate) fn of(figure: &Figure, case: &Case, report: &Report) -> Option<(f64, Option<Value>)> {
    let plain = |value: f64| Some((value, None));
    match figure {
        Figure::FailedOverPromoted => {
            let promoted = Some(report.promoted_pages).filter(|pages| *pages > 0)?;
            plain(report.failed_promotions as f64 / promoted as f64)
        }
        Figure::FastHits => plain(report.fast_hit_share),
        Figure::FastOverSlow => {
            let fast = *report.tier_accesses.first()?;
            let slow = report.tier_accesses.iter().sum::<u64>() - fast;
            plain(fast as f64 / slow.max(1) as f64)
        }
        Figure::SpeedOfAllFast => plain(report.slowdown_vs_all_fast?.recip()),
        Figure::ManagementOfAllThreads => {
            plain(report.management_seconds / (report.seconds * case.setting.threads as f64))
        }
        Figure::ManagementOfOneProcessor => plain(report.management_seconds / report.seconds),
        Figure::Overhead(kind) => plain(report.overhead_seconds.get(kind.as_str())? / report.seconds),
        Figure::HotSet => plain(hot_set(report)?),
        Figure::MetadataBytesAPage => plain(report.metadata_bytes_per_page),
        Figure::WalkShare => {
            let cores = cores(report);
            let core = cores.first()?;
            plain(core.walks / core.accesses.max(1.0))
        }
        Figure::Imbalance => {
            let (value, accesses) = imbalance(report)?;
            Some((value, Some(json!({ "accesses": accesses }))))
        }
        Figure::Drift => drift(report),
        Figure::MigratedBytes => plain(report.migrated_bytes as f64),
        Figure::FailedPromotions => plain(report.failed_promotions as f64),
        Figure::Median(metric) => plain(median_of_later(metric_over_time(report, metric))?),
        Figure::MeanOf(metric) => plain(mean(metric_over_time(report, metric).into_iter())?),
    }
}

/// The mean; `None` of no numbers.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// The median over the later two thirds.
fn median_of_later(mut values: Vec<f64>) -> Option<f64> {
    let mut later = values.split_off(values.len() / 3);
    later.sort_by(f64::total_cmp);
    later.get(later.len() / 2).copied()
}

/// A metric of the policy over the run; empty where it has none of that name.
pub(crate) fn metric_over_time(report: &Report, metric: &str) -> Vec<f64> {
    let Some(column) = report.series.metrics.iter().position(|name| *name == metric) else { return Vec::new() };
    report.series.rows.iter().filter_map(|row| row.metrics.get(column).copied()).collect()
}

/// Pages in the bins from the hot threshold up, over fast memory.
fn hot_set(report: &Report) -> Option<f64> {
    let thresholds = metric_over_time(report, "hot_threshold_bin");
    let first = report.series.metrics.iter().position(|name| name.starts_with("bin_"))?;
    let bins = report.series.metrics[first..].iter().take_while(|name| name.starts_with("bin_")).count();
    let rows = report.series.rows.iter().zip(thresholds);
    let hot = rows.filter_map(|(row, threshold)| row.metrics.get(first..first + bins)?.get(threshold as usize..));
    let fast_pages = report.fast_bytes as f64 / 4096.0;
    median_of_later(hot.map(|bins| bins.iter().sum::<f64>()).collect()).map(|pages| pages / fast_pages)
}

/// The time of a part of a run, in seconds of the scaled machine or, measured parts, of the full size.
pub(crate) fn seconds(report: &Report, part: Part) -> f64 {
    match part {
        Part::Whole => report.seconds,
        Part::Measured => measured(report),
    }
}

/// Seconds by the name of the program's parts; what recurs (Graph500's searches) is added up.
pub(crate) fn phase_seconds(report: &Report) -> BTreeMap<&str, f64> {
    let scale = f64::from(report.scale);
    let ends = report.phases.iter().skip(1).map(|(_, at)| *at).chain([report.seconds * scale]);
    let mut sums = BTreeMap::new();
    for ((name, begin), end) in report.phases.iter().zip(ends) {
        *sums.entry(name.as_str()).or_insert(0.0) += (end - begin) / scale;
    }
    sums
}

/// Seconds without the parts in which a program makes or loads its data. NPB, Silo and the B-tree program do not time those;
/// the papers do not say which time they show.
pub(crate) fn without_setup(report: &Report) -> f64 {
    let phases = phase_seconds(report);
    let setup = ["init", "load", "generate", "read", "build"].iter().filter_map(|name| phases.get(name)).sum::<f64>();
    report.seconds - setup
}

/// The parts of a program that papers measure, without input and check.
fn is_measured(phase: &str) -> bool {
    matches!(phase, "run" | "simplex")
}

/// Full-size seconds of the measured parts; of the whole where the program names none.
fn measured(report: &Report) -> f64 {
    let end = report.seconds * f64::from(report.scale);
    let ends = report.phases.iter().skip(1).map(|(_, at)| *at).chain([end]);
    let sum: f64 =
        report.phases.iter().zip(ends).filter(|((name, _), _)| is_measured(name)).map(|((_, at), end)| end - at).sum();
    if sum > 0.0 { sum } else { end }
}

/// What a core did in the measured parts.
struct CoreWork {
    accesses: f64,
    walks: f64,
}

fn cores(report: &Report) -> Vec<CoreWork> {
    let Some(mmu) = &report.mmu else { return Vec::new() };
    let counts = |core: &terrace_sim::mmu::CoreReport| {
        let accesses = core.accesses as f64;
        (accesses, core.walk_share * accesses)
    };
    let ends = mmu.phases.iter().skip(1).map(|mark| &mark.cores).chain([&mmu.cores]);
    let mut work: Vec<CoreWork> = mmu.cores.iter().map(|_| CoreWork { accesses: 0.0, walks: 0.0 }).collect();
    for (mark, end) in mmu.phases.iter().zip(ends).filter(|(mark, _)| is_measured(&mark.name)) {
        for ((core, begin), end) in work.iter_mut().zip(&mark.cores).zip(end) {
            let ((a, w), (b, v)) = (counts(begin), counts(end));
            core.accesses += b - a;
            core.walks += v - w;
        }
    }
    work
}

/// The most accesses of a core over the mean, less one, and the accesses of each.
pub(crate) fn imbalance(report: &Report) -> Option<(f64, Vec<f64>)> {
    let accesses: Vec<f64> = cores(report).iter().map(|core| core.accesses).collect();
    let most = accesses.iter().copied().fold(0.0, f64::max);
    mean(accesses.iter().copied()).map(|mean| (most / mean - 1.0, accesses))
}

/// How quickly heat moves: rows of the heat map within the measured parts.
fn drift(report: &Report) -> Option<(f64, Option<Value>)> {
    let map = &report.heat_map;
    let row_seconds = map.nanos_per_row as f64 / 1e9;
    let end = report.seconds * f64::from(report.scale);
    let ends = report.phases.iter().skip(1).map(|(_, at)| *at).chain([end]);
    let (mut lost, mut of) = (0usize, 0usize);
    for ((name, begin), end) in report.phases.iter().zip(ends) {
        if !is_measured(name) {
            continue;
        }
        let first = (begin / row_seconds).ceil() as usize;
        let last = ((end / row_seconds) as usize).min(map.rows.len());
        let rows = map.rows.get(first..last).unwrap_or_default();
        for pair in rows.windows(2) {
            let (now, later) = (hottest(&pair[0]), hottest(&pair[1]));
            of += now.len();
            lost += now.iter().filter(|range| !later.contains(range)).count();
        }
    }
    (of > 0).then(|| (lost as f64 / of as f64, Some(json!({ "row_seconds": row_seconds, "heat_map": map }))))
}

/// The hottest tenth of the ranges that were used.
fn hottest(row: &[u32]) -> Vec<usize> {
    let mut used: Vec<usize> = (0..row.len()).filter(|at| row[*at] > 0).collect();
    used.sort_by_key(|at| std::cmp::Reverse(row[*at]));
    used.truncate(used.len().div_ceil(10));
    used
}

/// What a run amounted to, beside the rows it serves: where its time went, and what was moved. Sizes, counts and seconds are those
/// of the scaled machine.
pub(crate) fn facts(run: &str, seed: u64, outcome: &Outcome) -> Value {
    let report = &outcome.report;
    json!({
        "run": run,
        "seed": seed,
        "scale": report.scale,
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
