//! What a run amounted to, in the figures that rows ask for: what is kept of it.
//!
//! In: the simulator's report, and what watched the run. Out: [`Outcome`], and [`RunFigures`], which are written down. Must not: compare runs.
//!
//! Series and maps are not kept: what rows ask of them is computed here, once. A figure that only some rows want ([`Asked`]) is kept for the
//! runs of these.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use terrace_core::units::Bytes;
use terrace_sim::Report;
use terrace_tuning::Interval;

use crate::case::{Case, Limit};
use crate::experiments::Row;
use crate::measure::{Figure, Measure};

/// Significant digits that are kept: more than any verdict looks at.
pub(crate) const DIGITS: usize = 9;

/// The same of parts of a run, of which there are forty.
const DIGITS_OF_PARTS: usize = 6;

/// A run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The factor by which it was shrunk.
    pub scale: u32,
    /// What is kept of it.
    pub figures: RunFigures,
    /// What is not: empty for a run that was read.
    pub(crate) shown: Shown,
}

/// Of a run that was just made, what only pictures and JSON show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    /// The tuner's decisions.
    pub intervals: Vec<Interval>,
    /// Accesses by address and time, where they drift.
    pub heat_map: Option<Value>,
    /// The policy's figures at the end.
    pub policy_metrics: BTreeMap<&'static str, f64>,
}

/// The figures of a run. Sizes, counts and seconds are those of the scaled machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFigures {
    /// Run time.
    pub seconds: f64,
    /// Seconds by the name of the program's parts; what recurs (Graph500's searches) is added up.
    pub phase_seconds: BTreeMap<String, f64>,
    /// The most memory the program had at one time.
    pub footprint_bytes: u64,
    /// Accesses the program made.
    pub accesses: u64,
    /// Of these, those that each tier served.
    pub tier_accesses: Vec<u64>,
    /// Of these, the loads that counters of cache misses see: those that no prefetcher had served in time.
    #[serde(default)]
    pub counted_loads: Vec<u64>,
    /// Share of memory accesses that fast memory served.
    pub fast_hit_share: f64,
    /// Pages moved to fast memory.
    pub promoted_pages: u64,
    /// Pages moved to slow memory.
    pub demoted_pages: u64,
    /// Of these, those that the kernel's reclaim moved.
    pub kernel_demoted_pages: u64,
    /// Pages whose promotion failed.
    pub failed_promotions: u64,
    /// Bytes that changed tier.
    pub migrated_bytes: u64,
    /// What management cost, in CPU seconds.
    pub management_seconds: f64,
    /// The same by kind.
    pub overhead_seconds: BTreeMap<String, f64>,
    /// Share of the run in which bandwidth set the pace.
    pub bandwidth_bound_share: f64,
    /// Hardware samples taken, and lost.
    pub samples: [u64; 2],
    /// Hint faults taken.
    pub hint_faults: u64,
    /// Bytes of metadata a page.
    pub metadata_bytes_per_page: f64,
    /// Run time over that with everything fast, where that was run as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowdown_vs_all_fast: Option<f64>,
    /// Pages in the bins from the hot threshold up, over fast memory, where the policy has bins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hot_set: Option<f64>,
    /// What each core did in the measured parts, where cores are modelled: accesses, page walks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<[f64; 2]>,
    /// The furthest that a core ran ahead of the slowest, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skew_ns: f64,
    /// How quickly heat moves: the share that is no longer hot, and the seconds after which that is looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<[f64; 2]>,
    /// Metrics of the policy over the run, of those that rows ask for; null where the policy has none of that name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, Option<OverTime>>,
    /// Seconds and mean resident pages of parts of equal work, where rows ask for bounds; empty for a run that was too short to be cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<(f64, f64)>>,
    /// Share of the peak and forecast loss of each size, where pages were watched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forecast: Vec<(f64, f64)>,
    /// What the tuner came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuned: Option<Tuned>,
    /// What the performance database says of it, where rows ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// A metric over a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverTime {
    /// The lowest.
    pub least: f64,
    /// The highest.
    pub most: f64,
    /// The mean.
    pub mean: f64,
    /// The median over the later two thirds.
    pub median: f64,
}

/// What a tuner came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// Mean share of the peak that was saved.
    pub saved_share_mean: f64,
    /// The most.
    pub saved_share_max: f64,
    /// Decisions.
    pub decisions: usize,
}

/// The database's answer for a run with everything fast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Predicted {
    /// Whether the run was long enough for a profile; without one, nothing is predicted.
    pub profiled: bool,
    /// Whether the database covers the profile.
    pub covered: bool,
    /// At shares of the peak.
    pub at: Vec<PredictedAt>,
}

/// One size of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PredictedAt {
    /// Fast memory as a share of the peak.
    pub share: f64,
    /// The loss.
    pub loss: f64,
    /// The share of accesses that slow memory serves.
    pub slow: f64,
}

/// What only some rows want of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    /// Metrics of the policy over the run.
    pub metrics: BTreeSet<String>,
    /// Its parts of equal work.
    pub parts: bool,
    /// Shares of the peak for which the database is asked.
    pub shares: Vec<f64>,
}

impl Asked {
    /// What these rows want, by run.
    pub(crate) fn of<'r>(rows: impl Iterator<Item = &'r Row>) -> BTreeMap<String, Asked> {
        let mut all: BTreeMap<String, Asked> = BTreeMap::new();
        for row in rows {
            use Measure::{Change, Larger, Mean, Most, Swing};
            let metric = match &row.measure {
                Mean(figure) | Most(figure) | Change(figure) | Larger(figure) => match figure {
                    Figure::Median(metric) | Figure::MeanOf(metric) => Some(metric),
                    _ => None,
                },
                Swing { metric, .. } => Some(metric),
                _ => None,
            };
            for (case, metric) in row.cases.iter().filter_map(|case| Some((case, metric?))) {
                all.entry(case.to_string()).or_default().metrics.insert(metric.clone());
            }
            if let Measure::SavingBounds { .. } = row.measure {
                for case in row.cases.iter().flat_map(|case| [case.clone(), case.baseline()]) {
                    all.entry(case.to_string()).or_default().parts = true;
                }
            }
            if let (Measure::PredictionErrors(_) | Measure::PredictionTerms, Some(first)) =
                (&row.measure, row.cases.first())
            {
                let asked = all.entry(first.baseline().to_string()).or_default();
                asked.shares.extend(row.cases.iter().filter_map(Case::fixed_share));
                asked.shares.sort_by(f64::total_cmp);
                asked.shares.dedup();
            }
        }
        all
    }

    /// Whether these figures answer it.
    pub(crate) fn is_answered_by(&self, figures: &RunFigures) -> bool {
        let predicted = |share: &f64| figures.predicted_at(*share).is_some();
        let profiled = figures.predicted.as_ref().is_none_or(|predicted| predicted.profiled);
        self.metrics.iter().all(|metric| figures.metrics.contains_key(metric))
            && (!self.parts || figures.parts.is_some())
            && (!profiled || self.shares.iter().all(predicted))
    }
}

impl Case {
    /// The share of the peak that is fast, where a case fixes it.
    pub(crate) fn fixed_share(&self) -> Option<f64> {
        if let Some(Limit::Share(share)) = self.at { Some(share) } else { None }
    }
}

impl Outcome {
    /// A run that was kept.
    pub(crate) fn read(scale: u32, figures: RunFigures) -> Outcome {
        Outcome { scale, figures, shown: Shown::default() }
    }

    /// That of a report.
    pub(crate) fn of(report: &Report) -> Outcome {
        let drift = drift(report);
        let overhead = report.overhead_seconds.iter().map(|(kind, seconds)| ((*kind).to_owned(), *seconds)).collect();
        let figures = RunFigures {
            seconds: report.seconds,
            phase_seconds: phase_seconds(report),
            footprint_bytes: report.footprint_bytes,
            accesses: report.accesses,
            tier_accesses: report.tier_accesses.clone(),
            counted_loads: report.counted_loads.clone(),
            fast_hit_share: report.fast_hit_share,
            promoted_pages: report.promoted_pages,
            demoted_pages: report.demoted_pages,
            kernel_demoted_pages: report.kernel_demoted_pages,
            failed_promotions: report.failed_promotions,
            migrated_bytes: report.migrated_bytes,
            management_seconds: report.management_seconds,
            overhead_seconds: overhead,
            bandwidth_bound_share: report.bandwidth_bound_share,
            samples: report.samples,
            hint_faults: report.hint_faults,
            metadata_bytes_per_page: report.metadata_bytes_per_page,
            slowdown_vs_all_fast: report.slowdown_vs_all_fast,
            hot_set: hot_set(report),
            cores: cores(report),
            skew_ns: report.mmu.as_ref().map_or(0.0, |mmu| mmu.skew_ns),
            drift: drift.as_ref().map(|(share, row_seconds)| [*share, *row_seconds]),
            metrics: metrics(report),
            parts: None,
            forecast: Vec::new(),
            tuned: None,
            predicted: None,
        };
        let heat_map = drift.map(|_| json!(report.heat_map));
        let policy_metrics = report.policy_metrics.clone();
        Outcome { scale: report.scale, figures, shown: Shown { heat_map, policy_metrics, ..Shown::default() } }
    }
}

impl RunFigures {
    /// Pages of the program at its peak.
    pub(crate) fn peak_pages(&self) -> u64 {
        Bytes::new(self.footprint_bytes).pages()
    }

    /// What the database says of a size.
    pub(crate) fn predicted_at(&self, share: f64) -> Option<&PredictedAt> {
        self.predicted.as_ref()?.at.iter().find(|at| (at.share - share).abs() < 1e-9)
    }

    /// With a place for every metric that is asked for: a policy that has none of that name is asked once.
    pub(crate) fn complete(mut self, asked: &Asked) -> RunFigures {
        for metric in &asked.metrics {
            self.metrics.entry(metric.clone()).or_insert(None);
        }
        self
    }

    /// Full-size seconds.
    pub(crate) fn full_size_seconds(&self, scale: u32) -> f64 {
        self.seconds * f64::from(scale)
    }

    /// What is written down: numbers to nine digits, and of what only some rows want no more than they do.
    pub(crate) fn kept(mut self, asked: &Asked) -> RunFigures {
        let asked_for = |metric: &String| (metric.clone(), self.metrics.get(metric).copied().flatten());
        self.metrics = asked.metrics.iter().map(asked_for).collect();
        self.parts = self.parts.take().filter(|_| asked.parts);
        let RunFigures { seconds, fast_hit_share, management_seconds, bandwidth_bound_share, .. } = &mut self;
        [seconds, fast_hit_share, management_seconds, bandwidth_bound_share].into_iter().for_each(round);
        [&mut self.metadata_bytes_per_page, &mut self.skew_ns].into_iter().for_each(round);
        self.phase_seconds.values_mut().chain(self.overhead_seconds.values_mut()).for_each(round);
        [&mut self.slowdown_vs_all_fast, &mut self.hot_set].into_iter().flatten().for_each(round);
        self.cores.iter_mut().flatten().chain(self.drift.iter_mut().flatten()).for_each(round);
        for OverTime { least, most, mean, median } in self.metrics.values_mut().flatten() {
            [least, most, mean, median].into_iter().for_each(round);
        }
        for (first, second) in self.parts.iter_mut().flatten().chain(&mut self.forecast) {
            [first, second].into_iter().for_each(|value| round_to(value, DIGITS_OF_PARTS));
        }
        if let Some(Tuned { saved_share_mean, saved_share_max, .. }) = &mut self.tuned {
            [saved_share_mean, saved_share_max].into_iter().for_each(round);
        }
        for PredictedAt { loss, slow, .. } in self.predicted.iter_mut().flat_map(|predicted| &mut predicted.at) {
            [loss, slow].into_iter().for_each(round);
        }
        self
    }
}

/// To the digits that are kept.
pub(crate) fn round(value: &mut f64) {
    round_to(value, DIGITS);
}

pub(crate) fn round_to(value: &mut f64, digits: usize) {
    if value.is_finite() {
        *value = format!("{value:.*e}", digits - 1).parse().expect("it was a number");
    }
}

/// The median over the later two thirds.
fn median_of_later(mut values: Vec<f64>) -> Option<f64> {
    let mut later = values.split_off(values.len() / 3);
    later.sort_by(f64::total_cmp);
    later.get(later.len() / 2).copied()
}

/// Every metric of the policy over the run.
fn metrics(report: &Report) -> BTreeMap<String, Option<OverTime>> {
    let of = |column: usize| {
        let values: Vec<f64> = report.series.rows.iter().filter_map(|row| row.metrics.get(column).copied()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let least = values.iter().copied().reduce(f64::min)?;
        let most = values.iter().copied().reduce(f64::max)?;
        Some(OverTime { least, most, mean, median: median_of_later(values)? })
    };
    let names = report.series.metrics.iter().enumerate();
    names.map(|(column, name)| ((*name).to_owned(), of(column))).collect()
}

/// Pages in the bins from the hot threshold up, over fast memory.
fn hot_set(report: &Report) -> Option<f64> {
    let names = &report.series.metrics;
    let threshold = names.iter().position(|name| *name == "hot_threshold_bin")?;
    let first = names.iter().position(|name| name.starts_with("bin_"))?;
    let bins = names[first..].iter().take_while(|name| name.starts_with("bin_")).count();
    let hot = report.series.rows.iter().filter_map(|row| {
        let threshold = *row.metrics.get(threshold)? as usize;
        row.metrics.get(first..first + bins)?.get(threshold..)
    });
    let fast_pages = report.fast_bytes as f64 / 4096.0;
    median_of_later(hot.map(|bins| bins.iter().sum::<f64>()).collect()).map(|pages| pages / fast_pages)
}

fn phase_seconds(report: &Report) -> BTreeMap<String, f64> {
    let scale = f64::from(report.scale);
    let ends = report.phases.iter().skip(1).map(|(_, at)| *at).chain([report.seconds * scale]);
    let mut sums = BTreeMap::new();
    for ((name, begin), end) in report.phases.iter().zip(ends) {
        *sums.entry(name.clone()).or_insert(0.0) += (end - begin) / scale;
    }
    sums
}

/// The parts of a program that papers measure, without input and check.
pub(crate) fn is_measured(phase: &str) -> bool {
    matches!(phase, "run" | "simplex")
}

/// What each core did in the measured parts: accesses, page walks.
fn cores(report: &Report) -> Vec<[f64; 2]> {
    let Some(mmu) = &report.mmu else { return Vec::new() };
    let counts = |core: &terrace_sim::mmu::CoreReport| {
        let accesses = core.accesses as f64;
        (accesses, core.walk_share * accesses)
    };
    let ends = mmu.phases.iter().skip(1).map(|mark| &mark.cores).chain([&mmu.cores]);
    let mut work: Vec<[f64; 2]> = vec![[0.0; 2]; mmu.cores.len()];
    for (mark, end) in mmu.phases.iter().zip(ends).filter(|(mark, _)| is_measured(&mark.name)) {
        for ((core, begin), end) in work.iter_mut().zip(&mark.cores).zip(end) {
            let ((a, w), (b, v)) = (counts(begin), counts(end));
            core[0] += b - a;
            core[1] += v - w;
        }
    }
    work
}

/// How quickly heat moves: rows of the heat map within the measured parts, and the seconds of one.
fn drift(report: &Report) -> Option<(f64, f64)> {
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
    (of > 0).then(|| (lost as f64 / of as f64, row_seconds))
}

/// The hottest tenth of the ranges that were used.
fn hottest(row: &[u32]) -> Vec<usize> {
    let mut used: Vec<usize> = (0..row.len()).filter(|at| row[*at] > 0).collect();
    used.sort_by_key(|at| std::cmp::Reverse(row[*at]));
    used.truncate(used.len().div_ceil(10));
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_rows_ask_for_and_comes_back_as_it_was() {
        let over = OverTime { least: 1.0 / 3.0, most: 2.0 / 3.0, mean: 0.5, median: 0.5 };
        let figures = RunFigures {
            seconds: 0.1 + 0.2,
            metrics: [("alpha".to_owned(), Some(over)), ("beta".to_owned(), None)].into(),
            parts: Some(vec![(1.0 / 7.0, 2.0)]),
            ..RunFigures::default()
        };
        let asked = |metrics: &[&str], parts| Asked {
            metrics: metrics.iter().map(|name| (*name).to_owned()).collect(),
            parts,
            shares: Vec::new(),
        };
        let kept = figures.clone().kept(&asked(&["alpha", "none"], false));
        assert_eq!((kept.seconds, kept.parts.is_none(), kept.metrics.len()), (0.3, true, 2));
        assert_eq!(kept.metrics["none"], None);
        let again: RunFigures = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
        assert_eq!(again, kept);
        assert!(asked(&["alpha"], false).is_answered_by(&kept) && asked(&["none"], false).is_answered_by(&kept));
        assert!(!asked(&["beta"], false).is_answered_by(&kept) && !asked(&[], true).is_answered_by(&kept));
        assert!(asked(&[], true).is_answered_by(&figures));
        let predicts = Asked { shares: vec![0.9], ..Asked::default() };
        assert!(!predicts.is_answered_by(&kept));
        let at = vec![PredictedAt { share: 0.9, ..PredictedAt::default() }];
        let answered =
            |profiled, at| RunFigures { predicted: Some(Predicted { profiled, covered: true, at }), ..kept.clone() };
        assert!(predicts.is_answered_by(&answered(true, at)));
        assert!(
            !predicts.is_answered_by(&answered(true, Vec::new()))
                && predicts.is_answered_by(&answered(false, Vec::new()))
        );
    }
}
