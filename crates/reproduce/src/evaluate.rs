//! From the runs of a row to its value, seed by seed.
//!
//! In: a row and its runs of one seed, in the order of its cases. Out: value in the row's unit, text, what stands behind it, and for
//! orders a judgement. Must not: run anything, or know a number of a paper but by the row.

use serde_json::{Value, json};

use crate::case::Case;
use crate::experiments::Row;
use crate::figure::{self, imbalance, mean, seconds, without_setup};
use crate::measure::{Figure, Measure, Part};
use crate::outcome::{Outcome, OverTime, RunFigures, round};
use crate::verdict::{Judgement, NO_DIRECTION, Verdict};

/// What the runs of one seed say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// In the row's unit.
    pub value: Option<f64>,
    pub text: String,
    pub detail: Option<Value>,
    /// Of measures that end in no single number.
    pub judgement: Option<Judgement>,
}

impl Found {
    pub(crate) fn number(row: &Row, plain: f64) -> Found {
        let value = plain * row.factor();
        Found { value: Some(value), text: show(row, value), ..Found::default() }
    }
    fn nothing(why: &str) -> Found {
        let judgement = Some(Judgement::new(Verdict::NoValue, why));
        Found { text: "no value".to_owned(), judgement, ..Found::default() }
    }
    fn order(text: String, judgement: Judgement) -> Found {
        Found { text, judgement: Some(judgement), ..Found::default() }
    }
    fn with(self, detail: Value) -> Found {
        Found { detail: Some(detail), ..self }
    }
}

/// A value in the row's unit, as texts have it.
pub(crate) fn show(row: &Row, value: f64) -> String {
    match row.unit.as_str() {
        "%" if row.measure.even().is_some() => format!("{value:+.1} %"),
        "%" => format!("{value:.1} %"),
        "x" => format!("{value:.2}x"),
        unit if value != 0.0 && value.abs() < 0.01 => format!("{value:.2e} {unit}"),
        unit => format!("{value:.2} {unit}"),
    }
}

/// A row whose runs of different settings came out the same cannot say what these settings do.
pub(crate) fn is_refused(row: &Row, runs: &[&Outcome]) -> Option<Judgement> {
    let what = |run: &Outcome| {
        let RunFigures { promoted_pages, demoted_pages, migrated_bytes, failed_promotions, .. } = run.figures;
        let mut seconds = run.figures.seconds;
        // As it is kept: a run that was read is compared with one that was not.
        round(&mut seconds);
        let moved = (promoted_pages, demoted_pages, migrated_bytes, failed_promotions);
        (seconds.to_bits(), run.figures.tier_accesses.clone(), moved)
    };
    for (place, case) in row.cases.iter().enumerate() {
        let is_other =
            |other: &Case| other.policy == case.policy && other.setting == case.setting && other.at == case.at;
        let varied: Vec<usize> = (0..row.cases.len()).filter(|other| is_other(&row.cases[*other])).collect();
        if varied.len() < 2 || varied[0] != place {
            continue;
        }
        let first = what(runs[place]);
        if varied.iter().all(|other| what(runs[*other]) == first) {
            let texts: Vec<String> = varied.iter().map(|other| row.cases[*other].policy_text()).collect();
            let why = format!(
                "the runs of {} are identical at this scale: what is varied changes nothing, and the row can show nothing",
                texts.join(", ")
            );
            return Some(Judgement::new(Verdict::Refused, why));
        }
    }
    None
}

/// Evaluates the measures that need reports alone.
pub(crate) fn found(row: &Row, runs: &[&Outcome]) -> Found {
    let reports: Vec<&RunFigures> = runs.iter().map(|run| &run.figures).collect();
    match &row.measure {
        Measure::Mean(of) => over_cases(row, of, runs, |values| mean(values.iter().copied())),
        Measure::Most(of) => over_cases(row, of, runs, |values| values.iter().copied().reduce(f64::max)),
        Measure::Speedup(part) | Measure::Gain(part) if row.rivals_tried > 1 => {
            let (pairs, which) = best_rivals(row, &reports, *part);
            let even = if matches!(row.measure, Measure::Gain(_)) { 1.0 } else { 0.0 };
            let found = Found::number(row, factor(&pairs, |report| seconds(report, *part)) - even);
            Found { text: found.text.clone() + &which, ..found }.with(json!({ "rivals": which }))
        }
        Measure::Speedup(part) => Found::number(row, factor(&reports, |report| seconds(report, *part))),
        Measure::Gain(part) => {
            let found = Found::number(row, factor(&reports, |report| seconds(report, *part)) - 1.0);
            if *part == Part::Measured {
                return found;
            }
            let apart = (factor(&reports, without_setup) - 1.0) * row.factor();
            let text = format!("{} ({} without set-up)", found.text, show(row, apart));
            Found { text, ..found }.with(json!({ "without_setup": apart }))
        }
        Measure::Best => {
            let all = reports.chunks_exact(2).map(|pair| factor(pair, |report| report.seconds));
            let all: Vec<f64> = all.collect();
            Found::number(row, all.iter().copied().fold(0.0, f64::max)).with(json!({ "of_each_pair": all }))
        }
        Measure::Change(of) => change(row, of, runs, 1.0),
        Measure::Ratio(of) => change(row, of, runs, 0.0),
        Measure::Winners { first } => winners(row, &reports, *first),
        Measure::Fastest { expected } => fastest(row, &reports, *expected),
        Measure::Larger(of) => larger(row, of, runs),
        Measure::Shrinks => shrinks(&reports),
        Measure::Swing { metric, low, high } => {
            let Some(OverTime { least, most, .. }) = reports[0].metrics.get(metric).copied().flatten() else {
                return Found::nothing("the policy shows no such metric");
            };
            let wide = least <= *low && most >= *high;
            let why = format!("agreement is a lowest of at most {low} and a highest of at least {high}");
            Found::order(format!("{least:.2} to {most:.2}"), Judgement::of(wide, why))
        }
        Measure::Cores => over_cores(&reports),
        _ => Found::nothing("the measure needs more than reports"),
    }
}

/// One number of the figures of the cases that have it; the others are counted, not averaged.
fn over_cases(row: &Row, of: &Figure, runs: &[&Outcome], join: fn(&[f64]) -> Option<f64>) -> Found {
    let all: Vec<_> = row.cases.iter().zip(runs).map(|(case, run)| figure::of(of, case, run)).collect();
    let values: Vec<f64> = all.iter().flatten().map(|(value, _)| *value).collect();
    let Some(plain) = join(&values) else { return Found::nothing("no run has this figure") };
    let mut found = Found::number(row, plain);
    let without = all.len() - values.len();
    if without > 0 {
        found.text += &format!(" ({without} of {} runs have no such figure)", all.len());
    }
    found.detail = match &all[..] {
        [Some((_, detail))] => detail.clone(),
        _ => {
            let each = all.iter().map(|one| one.as_ref().map(|(value, _)| value * row.factor()));
            Some(json!({ "of_each_run": each.collect::<Vec<_>>() }))
        }
    };
    found
}

/// Pairs of each first run and the fastest of its rivals, and which that was, where several were tried.
fn best_rivals<'r>(row: &Row, reports: &[&'r RunFigures], part: Part) -> (Vec<&'r RunFigures>, String) {
    let (mut pairs, mut names) = (Vec::new(), Vec::new());
    let groups = row.cases.chunks_exact(1 + row.rivals_tried).zip(reports.chunks_exact(1 + row.rivals_tried));
    for (cases, reports) in groups {
        let place = |place: &usize| seconds(reports[*place], part);
        let best = (1..reports.len()).min_by(|a, b| place(a).total_cmp(&place(b))).unwrap_or(1);
        pairs.extend([reports[0], reports[best]]);
        names.push(format!("{} {}", cases[best].setting.workload, cases[best].policy_text()));
    }
    let which = format!(" (best of {}: {})", row.rivals_tried, names.join(", "));
    (pairs, which)
}

/// Pairs: geometric mean of the second's time over the first's.
fn factor(reports: &[&RunFigures], seconds: impl Fn(&RunFigures) -> f64) -> f64 {
    let logarithms = reports.chunks_exact(2).map(|pair| (seconds(pair[1]) / seconds(pair[0])).ln());
    mean(logarithms).map_or(f64::NAN, f64::exp)
}

/// Pairs: a figure's sum over the firsts over that of the seconds, less `even`.
fn change(row: &Row, of: &Figure, runs: &[&Outcome], even: f64) -> Found {
    let sum = |which: usize| {
        let runs = row.cases.iter().zip(runs).skip(which).step_by(2);
        runs.filter_map(|(case, run)| figure::of(of, case, run)).map(|(value, _)| value).sum::<f64>()
    };
    let (ours, theirs) = (sum(0), sum(1));
    if theirs <= 0.0 {
        return Found::nothing("the second of the pairs has none to compare with")
            .with(json!({ "firsts": ours, "seconds": theirs }));
    }
    let found = Found::number(row, ours / theirs - even);
    let plain = |sum: f64| if sum.abs() < 1.0 { format!("{sum:.2e}") } else { format!("{sum}") };
    let text = format!("{} ({} against {})", found.text, plain(ours), plain(theirs));
    Found { text, ..found }
}

/// Pairs of runs; in the first `first` pairs the first is said to be ahead, in the others the second.
fn winners(row: &Row, reports: &[&RunFigures], first: usize) -> Found {
    let (mut same, mut turned, mut list) = (0, 0, Vec::new());
    for (number, (pair, cases)) in reports.chunks_exact(2).zip(row.cases.chunks_exact(2)).enumerate() {
        let ratio = pair[1].seconds / pair[0].seconds;
        let winner = if ratio > 1.0 { &cases[0] } else { &cases[1] };
        let counts = (ratio - 1.0).abs() >= NO_DIRECTION;
        let agrees = (ratio > 1.0) == (number < first);
        same += usize::from(counts && agrees);
        turned += usize::from(counts && !agrees);
        let by = (ratio.max(1.0 / ratio) - 1.0) * 100.0;
        list.push(format!("{} {} by {by:.1} %", winner.setting.workload, winner.policy));
    }
    let why = format!("same order in {same} of {}, differences under 1 % not counted", list.len());
    let verdict = match (same == list.len(), turned == list.len()) {
        (true, _) => Verdict::Agrees,
        (_, true) => Verdict::Opposite,
        _ => Verdict::Differs,
    };
    Found::order(list.join(", "), Judgement::new(verdict, why))
}

fn fastest(row: &Row, reports: &[&RunFigures], expected: usize) -> Found {
    let best = (0..reports.len()).min_by(|a, b| reports[*a].seconds.total_cmp(&reports[*b].seconds)).unwrap_or(0);
    let least = reports[best].seconds;
    let most = reports.iter().map(|report| report.seconds).fold(0.0, f64::max);
    let list: Vec<String> = row
        .cases
        .iter()
        .zip(reports)
        .map(|(case, report)| format!("{} {:.3}", case.policy_text(), report.seconds / least))
        .collect();
    let judgement = if most <= least * (1.0 + NO_DIRECTION) {
        Judgement::new(Verdict::Differs, "no difference between them here")
    } else if best == expected {
        Judgement::new(Verdict::Agrees, "same best")
    } else if reports[expected].seconds <= least * (1.0 + NO_DIRECTION) {
        Judgement::new(Verdict::Undecided, "a draw for the best")
    } else {
        Judgement::new(Verdict::Opposite, "another is best")
    };
    Found::order(format!("run time over the best: {}", list.join(", ")), judgement)
}

fn larger(row: &Row, of: &Figure, runs: &[&Outcome]) -> Found {
    let runs = row.cases.iter().zip(runs).map(|(case, run)| figure::of(of, case, run).map(|(value, _)| value));
    let Some(values) = runs.collect::<Option<Vec<f64>>>() else { return Found::nothing("a run lacks this figure") };
    let pairs = values.chunks_exact(2);
    let more = pairs.clone().filter(|pair| pair[0] > pair[1]).count();
    let list: Vec<String> = pairs.map(|pair| format!("{:.0} against {:.0}", pair[0], pair[1])).collect();
    let why = format!("larger in {more} of {}", list.len());
    let verdict = match more {
        0 => Verdict::Opposite,
        all if all == list.len() => Verdict::Agrees,
        _ => Verdict::Differs,
    };
    Found::order(list.join(", "), Judgement::new(verdict, why))
}

fn shrinks(reports: &[&RunFigures]) -> Found {
    let gains: Vec<f64> = reports.chunks_exact(2).map(|pair| factor(pair, |report| report.seconds) - 1.0).collect();
    let text = gains.iter().map(|gain| format!("{:+.1} %", gain * 100.0)).collect::<Vec<_>>().join(", ");
    let less = gains.last() < gains.first();
    let judgement = match (gains.iter().all(|gain| *gain > 0.0), less) {
        (false, _) => Judgement::new(Verdict::Opposite, "not ahead everywhere"),
        (true, true) => Judgement::new(Verdict::Agrees, "ahead everywhere, and by less at the end"),
        (true, false) => Judgement::new(Verdict::Differs, "ahead, but not by less at the end"),
    };
    Found::order(text, judgement)
}

/// Each run beside the first, which has the fewest cores.
fn over_cores(reports: &[&RunFigures]) -> Found {
    let alone = seconds(reports[0], Part::Measured);
    let (mut list, mut detail) = (Vec::new(), Vec::new());
    for report in reports {
        let Some((uneven, accesses)) = imbalance(report) else { return Found::nothing("a run has no modelled cores") };
        let (count, speed) = (accesses.len(), alone / seconds(report, Part::Measured));
        let skew_ns = report.skew_ns;
        list.push(format!("{count} cores {speed:.2}x, {:.1} %", uneven * 100.0));
        detail.push(json!({
            "cores": count, "speed": speed, "imbalance": uneven, "accesses": accesses, "skew_ns": skew_ns
        }));
    }
    let judgement = Judgement::new(Verdict::NoNumber, "the paper states no number");
    Found::order(list.join("; "), judgement).with(Value::Array(detail))
}
