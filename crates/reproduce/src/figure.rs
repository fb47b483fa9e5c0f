//! Numbers of single runs.
//!
//! In: what is kept of a run. Out: a figure, with what stands behind it. Must not: compare runs; `evaluate` does.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::case::Case;
use crate::measure::{Figure, Part};
use crate::outcome::{Outcome, RunFigures, is_measured};

/// The figure of a run, and what stands behind it; `None` where the run has none.
pub(crate) fn of(figure: &Figure, case: &Case, run: &Outcome) -> Option<(f64, Option<Value>)> {
    let plain = |value: f64| Some((value, None));
    let figures = &run.figures;
    match figure {
        Figure::FailedOverPromoted => {
            let promoted = Some(figures.promoted_pages).filter(|pages| *pages > 0)?;
            plain(figures.failed_promotions as f64 / promoted as f64)
        }
        Figure::FailedOverAttempts => {
            let tried = Some(figures.promoted_pages + figures.failed_promotions).filter(|pages| *pages > 0)?;
            plain(figures.failed_promotions as f64 / tried as f64)
        }
        Figure::FastHits => plain(figures.fast_hit_share),
        Figure::FastOverSlow => plain(fast_over_slow(&figures.tier_accesses)?),
        Figure::CountedFastOverSlow => plain(fast_over_slow(&figures.counted_loads)?),
        Figure::CountedFastHits => {
            let all = figures.counted_loads.iter().sum::<u64>();
            plain(*figures.counted_loads.first()? as f64 / all.max(1) as f64)
        }
        Figure::SpeedOfAllFast => plain(figures.slowdown_vs_all_fast?.recip()),
        Figure::ManagementOfAllThreads => {
            plain(figures.management_seconds / (figures.seconds * case.setting.threads as f64))
        }
        Figure::ManagementOfOneProcessor => plain(figures.management_seconds / figures.seconds),
        Figure::ManagementThreads => {
            let own = figures.overhead_seconds.iter().filter(|(kind, _)| !kind.ends_with("_stall"));
            plain(own.map(|(_, seconds)| seconds).sum::<f64>() / figures.seconds)
        }
        Figure::Overhead(kind) => plain(figures.overhead_seconds.get(kind)? / figures.seconds),
        Figure::HotSet => plain(figures.hot_set?),
        Figure::MetadataBytesAPage => plain(figures.metadata_bytes_per_page),
        Figure::WalkShare => {
            let [accesses, walks] = figures.cores.first()?;
            plain(walks / accesses.max(1.0))
        }
        Figure::Imbalance => {
            let (value, accesses) = imbalance(figures)?;
            Some((value, Some(json!({ "accesses": accesses }))))
        }
        Figure::Drift => {
            let [share, row_seconds] = figures.drift?;
            Some((share, Some(json!({ "row_seconds": row_seconds, "heat_map": run.shown.heat_map }))))
        }
        Figure::MigratedBytes => plain(figures.migrated_bytes as f64),
        Figure::FailedPromotions => plain(figures.failed_promotions as f64),
        Figure::Median(metric) => plain(figures.metrics.get(metric).copied()??.median),
        Figure::MeanOf(metric) => plain(figures.metrics.get(metric).copied()??.mean),
    }
}

/// What the first tier has over what the others have.
fn fast_over_slow(by_tier: &[u64]) -> Option<f64> {
    let fast = *by_tier.first()?;
    let slow = by_tier.iter().sum::<u64>() - fast;
    Some(fast as f64 / slow.max(1) as f64)
}

/// The mean; `None` of no numbers.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// The time of a part of a run, in seconds of the scaled machine; of the whole where the program names no measured part.
pub(crate) fn seconds(figures: &RunFigures, part: Part) -> f64 {
    let measured = || figures.phase_seconds.iter().filter(|(name, _)| is_measured(name)).map(|(_, seconds)| seconds);
    match part {
        Part::Measured if measured().sum::<f64>() > 0.0 => measured().sum(),
        _ => figures.seconds,
    }
}

/// Seconds without the parts in which a program makes or loads its data. NPB, Silo and the B-tree program do not time those;
/// the papers do not say which time they show.
pub(crate) fn without_setup(figures: &RunFigures) -> f64 {
    let phases = &figures.phase_seconds;
    let setup = ["init", "load", "generate", "read", "build"].iter().filter_map(|name| phases.get(*name)).sum::<f64>();
    figures.seconds - setup
}

/// The most accesses of a core over the mean, less one, and the accesses of each.
pub(crate) fn imbalance(figures: &RunFigures) -> Option<(f64, Vec<f64>)> {
    let accesses: Vec<f64> = figures.cores.iter().map(|[accesses, _]| *accesses).collect();
    let most = accesses.iter().copied().fold(0.0, f64::max);
    mean(accesses.iter().copied()).map(|mean| (most / mean - 1.0, accesses))
}

/// What a run amounted to, beside the rows it serves: where its time went, and what was moved. Sizes, counts and seconds are those
/// of the scaled machine.
pub(crate) fn facts(run: &str, seed: u64, scale: u32, outcome: &Outcome) -> Value {
    let figures = &outcome.figures;
    let policy_metrics: &BTreeMap<_, _> = &outcome.shown.policy_metrics;
    json!({
        "run": run,
        "seed": seed,
        "scale": scale,
        "seconds": figures.seconds,
        "full_size_seconds": figures.full_size_seconds(scale),
        "phase_seconds": figures.phase_seconds,
        "fast_hit_share": figures.fast_hit_share,
        "accesses": figures.accesses,
        "tier_accesses": figures.tier_accesses,
        "counted_loads": figures.counted_loads,
        "promoted_pages": figures.promoted_pages,
        "demoted_pages": figures.demoted_pages,
        "kernel_demoted_pages": figures.kernel_demoted_pages,
        "failed_promotions": figures.failed_promotions,
        "migrated_bytes": figures.migrated_bytes,
        "management_seconds": figures.management_seconds,
        "overhead_seconds": figures.overhead_seconds,
        "bandwidth_bound_share": figures.bandwidth_bound_share,
        "samples": figures.samples,
        "hint_faults": figures.hint_faults,
        "slowdown_vs_all_fast": figures.slowdown_vs_all_fast,
        "policy_metrics": policy_metrics,
    })
}
