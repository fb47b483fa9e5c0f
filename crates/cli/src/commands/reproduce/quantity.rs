//! From the reports of a row's runs to the row's value and its verdict.
//!
//! In: a row and its reports, in the order of its cases. Out: value, text, verdict. Must not: know a paper's figure but to
//! compare with it.

use terrace_sim::Report;

use super::experiments::{Case, Quantity, Row};
use super::facts::phase_seconds;

/// What we have to say of a row.
#[derive(Debug)]
pub(super) struct Ours {
    pub value: Option<f64>,
    /// Figures beside the value, where there are any.
    pub detail: Option<serde_json::Value>,
    pub text: String,
    pub verdict: String,
}

/// Gains closer to nothing than this have no direction: the spread over seeds is of this order.
const NO_DIRECTION: f64 = 0.01;

pub(super) fn ours(row: &Row, reports: &[&Report]) -> Ours {
    match row.kind {
        Quantity::Gain => {
            let factor = pairs(reports);
            let apart = pairs_of(reports, without_setup);
            let text = format!("{:+.1} % ({:+.1} % without set-up)", (factor - 1.0) * 100.0, (apart - 1.0) * 100.0);
            Ours {
                value: Some(factor - 1.0),
                detail: Some(serde_json::json!({ "without_setup": apart - 1.0 })),
                text,
                verdict: gain_verdict(factor, row.value.map(|gain| 1.0 + gain)),
            }
        }
        Quantity::Factor | Quantity::FactorIn(..) => {
            let factor = pairs(reports);
            Ours {
                value: Some(factor),
                detail: None,
                text: format!("{factor:.2}x"),
                verdict: range_verdict(row, factor).unwrap_or_else(|| gain_verdict(factor, row.value)),
            }
        }
        Quantity::FailureRatio => failures(row, reports),
        Quantity::FastShare => share(row, mean(reports.iter().map(|report| report.fast_hit_share))),
        Quantity::PartOfAllFast | Quantity::PartOfAllFastIn(..) => {
            share(row, mean(reports.iter().filter_map(|report| report.slowdown_vs_all_fast).map(f64::recip)))
        }
        Quantity::FastShareGain => {
            let of = |which: usize| mean(reports.iter().skip(which).step_by(2).map(|report| report.fast_hit_share));
            let factor = of(0) / of(1);
            Ours {
                value: Some(factor - 1.0),
                detail: None,
                text: format!("{:+.1} %", (factor - 1.0) * 100.0),
                verdict: gain_verdict(factor, row.value.map(|more| 1.0 + more)),
            }
        }
        Quantity::ProcessorShare(kind) => {
            let of = |report: &&Report| report.overhead_seconds.get(kind).copied().unwrap_or(0.0) / report.seconds;
            share(row, reports.iter().map(of).fold(0.0, f64::max))
        }
        Quantity::ManagementShare => {
            let runs = row.cases.iter().zip(reports);
            let of = |(case, report): (&Case, &&Report)| {
                report.management_seconds / (report.seconds * case.setting.threads as f64)
            };
            share(row, mean(runs.map(of)))
        }
        Quantity::HotSet => share(row, mean(reports.iter().filter_map(|report| hot_set(report)))),
        Quantity::Metadata => {
            let most = reports.iter().map(|report| report.metadata_bytes_per_page).fold(0.0, f64::max);
            let verdict = ratio_verdict(most, row.value);
            Ours { value: Some(most), detail: None, text: format!("{most:.1}"), verdict }
        }
        Quantity::FastSlowRatio => {
            let fast: u64 = reports.iter().map(|report| report.tier_accesses[0]).sum();
            let all: u64 = reports.iter().flat_map(|report| &report.tier_accesses).sum();
            let value = fast as f64 / all.saturating_sub(fast).max(1) as f64;
            Ours {
                value: Some(value),
                detail: None,
                text: format!("{value:.2}"),
                verdict: ratio_verdict(value, row.value),
            }
        }
        Quantity::Volume => {
            let of = |which: usize| {
                reports.iter().skip(which).step_by(2).map(|report| report.migrated_bytes as f64).sum::<f64>()
            };
            let factor = of(0) / of(1).max(1.0);
            let text = format!("{:+.1} %", (factor - 1.0) * 100.0);
            Ours {
                value: Some(factor - 1.0),
                detail: None,
                text,
                verdict: gain_verdict(factor, row.value.map(|more| 1.0 + more)),
            }
        }
        Quantity::Winners { first } => winners(reports, first),
        Quantity::Fastest { expected } => {
            let best =
                (0..reports.len()).min_by(|a, b| reports[*a].seconds.total_cmp(&reports[*b].seconds)).unwrap_or(0);
            let least = reports[best].seconds;
            let list: Vec<String> = row
                .cases
                .iter()
                .zip(reports)
                .map(|(case, report)| format!("{} {:.3}", case.short(), report.seconds / least))
                .collect();
            let most = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
            let verdict = if most <= least * (1.0 + NO_DIRECTION) {
                "no difference between them here".to_owned()
            } else if best == expected {
                "same best".to_owned()
            } else if reports[expected].seconds <= least * (1.0 + NO_DIRECTION) {
                "a draw for the best".to_owned()
            } else {
                "another is best".to_owned()
            };
            Ours { value: None, detail: None, text: format!("run time over the best: {}", list.join(", ")), verdict }
        }
        Quantity::RelativeCpi => {
            let ratio = measured(reports[1]) / measured(reports[0]);
            Ours {
                value: Some(ratio),
                detail: None,
                text: format!("{ratio:.3}"),
                verdict: gain_verdict(ratio, row.value),
            }
        }
        Quantity::Overhead => {
            let more = measured(reports[1]) / measured(reports[0]) - 1.0;
            let verdict = match row.value {
                Some(paper) => gain_verdict(1.0 + more, Some(1.0 + paper)),
                None => "the paper states no single number".to_owned(),
            };
            Ours { value: Some(more), detail: None, text: format!("{:+.2} %", more * 100.0), verdict }
        }
        Quantity::WalkShare => {
            let share = cores(reports[0]).first().map_or(0.0, |core| core.walks / core.accesses.max(1.0));
            Ours {
                value: Some(share),
                detail: None,
                text: format!("{share:.2e}"),
                verdict: ratio_verdict(share, row.value),
            }
        }
        Quantity::Imbalance => {
            let (value, accesses) = imbalance(reports[0]);
            let list: Vec<String> = accesses.iter().map(|count| format!("{:.2}", count / 1e6)).collect();
            let text = format!("{:.1} % (millions of accesses a core: {})", value * 100.0, list.join(", "));
            let detail = Some(serde_json::json!({ "accesses": accesses }));
            Ours { value: Some(value), detail, text, verdict: ratio_verdict(value, row.value) }
        }
        Quantity::Cores => over_cores(reports),
        Quantity::Drift => drift(reports[0]),
        Quantity::Best => {
            let factor = reports.chunks_exact(2).map(pairs).fold(0.0, f64::max);
            Ours {
                value: Some(factor),
                detail: None,
                text: format!("{factor:.2}x"),
                verdict: gain_verdict(factor, row.value),
            }
        }
        Quantity::Failures => {
            let of = |which: usize| {
                reports.iter().skip(which).step_by(2).map(|report| report.failed_promotions).sum::<u64>()
            };
            let (ours, theirs) = (of(0), of(1));
            let factor = ours as f64 / theirs.max(1) as f64;
            let text = format!("{:+.1} % ({ours} pages against {theirs})", (factor - 1.0) * 100.0);
            Ours {
                value: Some(factor - 1.0),
                detail: None,
                text,
                verdict: gain_verdict(factor, row.value.map(|more| 1.0 + more)),
            }
        }
        Quantity::Median(metric) => {
            let mut values = inside(reports[0], metric);
            let mut later = values.split_off(values.len() / 3);
            later.sort_by(f64::total_cmp);
            match later.get(later.len() / 2) {
                Some(&value) => Ours {
                    value: Some(value),
                    detail: None,
                    text: format!("{value}"),
                    verdict: ratio_verdict(value, row.value),
                },
                None => unknown(),
            }
        }
        Quantity::Swing(metric) => {
            let values = inside(reports[0], metric);
            let (low, high) = values
                .iter()
                .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (value.min(low), value.max(high)));
            let verdict = if low <= 0.1 && high >= 0.9 { "same shape" } else { "other shape: it swings less" };
            Ours { value: None, detail: None, text: format!("{low:.2} to {high:.2}"), verdict: verdict.to_owned() }
        }
        Quantity::Larger(metric) => {
            let means: Vec<f64> = reports.iter().map(|report| mean(inside(report, metric).into_iter())).collect();
            let more = means.chunks_exact(2).all(|pair| pair[0] > pair[1]);
            let text = means.chunks_exact(2).map(|pair| format!("{:.0} against {:.0}", pair[0], pair[1]));
            let text = text.collect::<Vec<_>>().join(", ") + " pages on average";
            let verdict = if more { "same direction" } else { "other direction" };
            Ours { value: None, detail: None, text, verdict: verdict.to_owned() }
        }
        Quantity::Shrinks => {
            let gains: Vec<f64> = reports.chunks(2).map(pairs).map(|factor| factor - 1.0).collect();
            let text = gains.iter().map(|gain| format!("{:+.1} %", gain * 100.0)).collect::<Vec<_>>().join(", ");
            let shrinks = gains.last() < gains.first();
            let verdict = match (gains.iter().all(|gain| *gain > 0.0), shrinks) {
                (false, _) => "other direction: not ahead everywhere",
                (true, true) => "same direction",
                (true, false) => "other direction: ahead, but not by less",
            };
            Ours { value: None, detail: None, text, verdict: verdict.to_owned() }
        }
    }
}

/// One statement for all seeds: where each gives a number, the mean and its 95 % interval; otherwise each in its turn.
pub(super) fn over_seeds(row: &Row, mut all: Vec<Ours>) -> Ours {
    if all.len() < 2 {
        return all.pop().unwrap_or_else(unknown);
    }
    let Some(values) = all.iter().map(|ours| ours.value).collect::<Option<Vec<f64>>>() else {
        let join =
            |part: fn(&Ours) -> &String| all.iter().map(|ours| part(ours).as_str()).collect::<Vec<_>>().join(" | ");
        return Ours { value: None, detail: None, text: join(|ours| &ours.text), verdict: join(|ours| &ours.verdict) };
    };
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = student(values.len() - 1) * (variance / count).sqrt();
    let percent = matches!(
        row.kind,
        Quantity::Gain
            | Quantity::Volume
            | Quantity::Failures
            | Quantity::FailureRatio
            | Quantity::FastShare
            | Quantity::FastShareGain
            | Quantity::ProcessorShare(_)
            | Quantity::ManagementShare
            | Quantity::HotSet
            | Quantity::PartOfAllFast
            | Quantity::PartOfAllFastIn(..)
    );
    let (factor, unit) = if percent { (100.0, " %") } else { (1.0, "") };
    let text = format!(
        "{:.2}{unit} ({:.2} to {:.2} over {} seeds)",
        mean * factor,
        (mean - half) * factor,
        (mean + half) * factor,
        values.len()
    );
    // Ratios of gains are those of the factors behind them.
    let of_gains = matches!(row.kind, Quantity::Gain | Quantity::Volume | Quantity::Failures | Quantity::FastShareGain);
    let one = if of_gains { 1.0 } else { 0.0 };
    let directed = one > 0.0 || matches!(row.kind, Quantity::Factor | Quantity::Best);
    let paper = row.value.map(|value| one + value);
    let mut verdict = range_verdict(row, mean)
        .unwrap_or_else(|| if directed { gain_verdict(one + mean, paper) } else { ratio_verdict(mean, paper) });
    let even = 1.0 - one;
    if directed && mean - half < even && even < mean + half {
        verdict += ", not told apart from no difference";
    }
    Ours { value: Some(mean), detail: None, text, verdict }
}

/// The 97.5 % point of Student's distribution: the table to ten degrees of freedom, beyond that the value for eleven, which is a little wide.
fn student(freedom: usize) -> f64 {
    const POINTS: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    POINTS.get(freedom.max(1) - 1).copied().unwrap_or(2.201)
}

/// A policy's figure over the run; empty where it has none of that name.
fn inside(report: &Report, metric: &str) -> Vec<f64> {
    let Some(column) = report.series.metrics.iter().position(|name| *name == metric) else { return Vec::new() };
    report.series.rows.iter().filter_map(|row| row.metrics.get(column).copied()).collect()
}

/// Pages in the bins from the hot threshold up, over fast memory: the median over the later two thirds of the run.
fn hot_set(report: &Report) -> Option<f64> {
    let thresholds = inside(report, "hot_threshold_bin");
    let first = report.series.metrics.iter().position(|name| name.starts_with("bin_"))?;
    let bins = report.series.metrics[first..].iter().take_while(|name| name.starts_with("bin_")).count();
    let rows = report.series.rows.iter().zip(thresholds);
    let hot = rows.filter_map(|(row, threshold)| row.metrics.get(first..first + bins)?.get(threshold as usize..));
    let mut sizes: Vec<f64> = hot.map(|bins| bins.iter().sum::<f64>()).collect();
    let mut later = sizes.split_off(sizes.len() / 3);
    later.sort_by(f64::total_cmp);
    let fast_pages = report.fast_bytes as f64 / 4096.0;
    later.get(later.len() / 2).map(|pages| pages / fast_pages)
}

fn unknown() -> Ours {
    Ours {
        value: None,
        detail: None,
        text: "the policy shows no such figure".to_owned(),
        verdict: "not known".to_owned(),
    }
}

/// A run that promoted nothing has no ratio; it is named, not averaged.
fn failures(row: &Row, reports: &[&Report]) -> Ours {
    let promoting: Vec<&&Report> = reports.iter().filter(|report| report.promoted_pages > 0).collect();
    let without = reports.len() - promoting.len();
    let note =
        if without > 0 { format!(" ({without} of {} runs promoted nothing)", reports.len()) } else { String::new() };
    if promoting.is_empty() {
        let failed: u64 = reports.iter().map(|report| report.failed_promotions).sum();
        let text = format!("no promotion succeeded, {failed} pages failed");
        return Ours { value: None, detail: None, text, verdict: "no ratio".to_owned() };
    }
    let ratios = promoting.iter().map(|report| report.failed_promotions as f64 / report.promoted_pages as f64);
    let ours = share(row, mean(ratios));
    Ours { text: ours.text + &note, ..ours }
}

/// Cases stand in pairs: of whom, over whom. Geometric mean of the second's run time over the first's.
fn pairs(reports: &[&Report]) -> f64 {
    pairs_of(reports, |report| report.seconds)
}

/// The same of another time than the whole run's.
fn pairs_of(reports: &[&Report], seconds: impl Fn(&Report) -> f64) -> f64 {
    mean(reports.chunks_exact(2).map(|pair| (seconds(pair[1]) / seconds(pair[0])).ln())).exp()
}

/// Seconds without the parts in which a program makes or loads its data. NPB, Silo and the B-tree program do not time those;
/// the papers do not say which time they show.
fn without_setup(report: &Report) -> f64 {
    let phases = phase_seconds(report);
    let setup = ["init", "load", "generate", "read", "build"].iter().filter_map(|name| phases.get(name)).sum::<f64>();
    report.seconds - setup
}

/// The parts of a program that the papers measure, without input and check.
fn is_measured(phase: &str) -> bool {
    matches!(phase, "run" | "simplex")
}

/// Seconds of the measured parts; of the whole where the program names none.
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
fn imbalance(report: &Report) -> (f64, Vec<f64>) {
    let accesses: Vec<f64> = cores(report).iter().map(|core| core.accesses).collect();
    let most = accesses.iter().copied().fold(0.0, f64::max);
    (most / mean(accesses.iter().copied()) - 1.0, accesses)
}

/// Each run beside the first, which has the fewest cores.
fn over_cores(reports: &[&Report]) -> Ours {
    let alone = measured(reports[0]);
    let (mut list, mut detail) = (Vec::new(), Vec::new());
    for report in reports {
        let (uneven, accesses) = imbalance(report);
        let (count, speed) = (accesses.len(), alone / measured(report));
        let skew_ns = report.mmu.as_ref().map_or(0.0, |mmu| mmu.skew_ns);
        list.push(format!("{count} cores {speed:.2}x, {:.1} %", uneven * 100.0));
        detail.push(serde_json::json!({
            "cores": count, "speed": speed, "imbalance": uneven, "accesses": accesses, "skew_ns": skew_ns
        }));
    }
    let verdict = "the paper states no number".to_owned();
    Ours { value: None, detail: Some(serde_json::Value::Array(detail)), text: list.join("; "), verdict }
}

/// How quickly heat moves: rows of the heat map within the measured parts.
fn drift(report: &Report) -> Ours {
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
    if of == 0 {
        let text = "the run is shorter than two rows of its heat map".to_owned();
        return Ours { value: None, detail: None, text, verdict: "no value".to_owned() };
    }
    let share = lost as f64 / of as f64;
    let text = format!("{:.0} % after {:.1} ms of the full size", share * 100.0, row_seconds * 1e3);
    let detail = Some(serde_json::json!({ "row_seconds": row_seconds, "heat_map": map }));
    Ours { value: Some(share), detail, text, verdict: "the paper states no number".to_owned() }
}

/// The hottest tenth of the ranges that were used at all.
fn hottest(row: &[u32]) -> Vec<usize> {
    let mut used: Vec<usize> = (0..row.len()).filter(|at| row[*at] > 0).collect();
    used.sort_by_key(|at| std::cmp::Reverse(row[*at]));
    used.truncate(used.len().div_ceil(10));
    used
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / count
}

fn share(row: &Row, value: f64) -> Ours {
    Ours {
        value: Some(value),
        detail: None,
        text: format!("{:.1} %", value * 100.0),
        verdict: range_verdict(row, value).unwrap_or_else(|| ratio_verdict(value, row.value)),
    }
}

/// Where ours lies, for a row whose paper states a range.
fn range_verdict(row: &Row, ours: f64) -> Option<String> {
    let (Quantity::FactorIn(low, high) | Quantity::PartOfAllFastIn(low, high)) = row.kind else { return None };
    Some(if ours < low {
        format!("below what the paper states, ratio ours/paper {:.2}", ours / low)
    } else if ours > high {
        format!("above what the paper states, ratio ours/paper {:.2}", ours / high)
    } else {
        "within what the paper states".to_owned()
    })
}

fn gain_verdict(ours: f64, paper: Option<f64>) -> String {
    let Some(paper) = paper else { return "the paper states no number".to_owned() };
    let direction = if (ours - 1.0).abs() < NO_DIRECTION {
        "no difference here"
    } else if (ours > 1.0) == (paper > 1.0) {
        "same direction"
    } else {
        "other direction"
    };
    format!("{direction}, ratio ours/paper {:.2}", ours / paper)
}

fn ratio_verdict(ours: f64, paper: Option<f64>) -> String {
    paper.map_or_else(
        || "the paper states no number".to_owned(),
        |paper| format!("ratio ours/paper {:.2}", ours / paper),
    )
}

/// Pairs of runs; in the first `first` pairs the paper has the first ahead, in the others the second.
fn winners(reports: &[&Report], first: usize) -> Ours {
    let mut same = 0;
    let mut list = Vec::new();
    for (number, pair) in reports.chunks_exact(2).enumerate() {
        let ratio = pair[1].seconds / pair[0].seconds;
        let winner = if ratio > 1.0 { pair[0] } else { pair[1] };
        let agrees = (ratio > 1.0) == (number < first);
        same += usize::from(agrees && (ratio - 1.0).abs() >= NO_DIRECTION);
        let by = (ratio.max(1.0 / ratio) - 1.0) * 100.0;
        list.push(format!("{} {} by {by:.1} %", winner.workload, winner.policy));
    }
    let verdict = format!("same order in {same} of {}, differences under 1 % not counted", list.len());
    Ours { value: None, detail: None, text: list.join(", "), verdict }
}
