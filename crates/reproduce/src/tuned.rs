//! Measures of runs whose fast memory is limited while they run: losses, predictions, the tuner, bounds.
//!
//! In: a row, all runs, a seed. Out: what `evaluate` gives of the others. Must not: run anything.

use std::collections::BTreeMap;

use serde_json::json;
use terrace_core::units::parse_share;

use crate::bounds::{self, Bounds, Run, most_saving};
use crate::case::{Case, Limit};
use crate::error::MeasureError;
use crate::evaluate::Found;
use crate::experiments::{Kind, Row};
use crate::measure::{Measure, Prediction};
use crate::outcome::{Outcome, Predicted, PredictedAt};
use crate::run::Runs;
use crate::verdict::{Judgement, Verdict, is_near};

type Result<T> = std::result::Result<T, MeasureError>;

fn bad(case: &impl ToString, why: &'static str) -> MeasureError {
    MeasureError::Case { case: case.to_string(), why }
}

fn value(error: impl ToString) -> MeasureError {
    MeasureError::Value(error.to_string())
}

/// A loss below the spread of seeds has no error that says anything.
const NO_LOSS: f64 = 0.001;

/// The runs of one seed, by case.
#[derive(Clone, Copy)]
pub(crate) struct OfSeed<'a> {
    pub runs: &'a Runs,
    pub seed: u64,
}

impl<'a> OfSeed<'a> {
    fn of(&self, case: &Case) -> Result<&'a Outcome> {
        self.runs.of(case, self.seed).ok_or_else(|| bad(case, "was not run"))
    }

    fn full(&self, case: &Case) -> Result<&'a Outcome> {
        self.of(&case.baseline())
    }

    /// How much longer a case took than with everything fast.
    fn loss(&self, case: &Case) -> Result<f64> {
        Ok(self.of(case)?.figures.seconds / self.full(case)?.figures.seconds - 1.0)
    }

    /// What the database says of the run with everything fast.
    fn predicted(&self, case: &Case) -> Result<&'a Predicted> {
        let predicted = self.full(case)?.figures.predicted.as_ref();
        let predicted = predicted.ok_or_else(|| MeasureError::NoDatabase(case.setting.machine.clone()))?;
        let too_short = MeasureError::Lacks("the run with everything fast was too short for a profile");
        if predicted.profiled { Ok(predicted) } else { Err(too_short) }
    }

    /// What it says of one size.
    fn predicted_at(&self, case: &Case, share: f64) -> Result<PredictedAt> {
        let found = self.full(case)?.figures.predicted_at(share);
        found.copied().ok_or_else(|| bad(case, "the database was not asked for its size"))
    }
}

/// Evaluates one of these measures.
///
/// # Errors
/// When a run is missing or too short for the measure; in words.
pub(crate) fn found(row: &Row, of: OfSeed<'_>) -> Result<Found> {
    match &row.measure {
        Measure::Loss => Ok(Found::number(row, of.loss(&row.cases[0])?)),
        Measure::Tuned => tuned(row, of),
        Measure::MostSaving { target, error } => savings(row, *target, *error, of),
        Measure::PredictionErrors(by) => errors(row, *by, of),
        Measure::PredictionTerms => terms(&row.cases[0], of),
        Measure::SavingBounds { target } => at_best(row, *target, of),
        Measure::DatabaseQuery => query(row, of.runs),
        _ => Err(MeasureError::Lacks("the measure is none of limited runs")),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Mean saving of tuned runs, or the most at any time where the paper states that, and the loss of a single one. The paper's target is that
/// of the runs; where the paper itself missed it, as much as it did is no miss here. A smaller loss than the paper's is another figure than
/// the paper's, and good enough for a row that is no figure of it.
fn tuned(row: &Row, of: OfSeed<'_>) -> Result<Found> {
    let (mut saved, mut most, mut within, mut losses, mut decisions) = (0.0, 0.0f64, 0, Vec::new(), 0);
    for case in &row.cases {
        let outcome = of.of(case)?;
        let (Some(summary), Some(Limit::Tuned { target, .. })) = (&outcome.figures.tuned, &case.at) else {
            return Err(bad(case, "was not tuned"));
        };
        let loss = of.loss(case)?;
        let allowed = row.paper.loss.map_or(*target, |paper| target.max(paper / row.factor()));
        saved += summary.saved_share_mean / row.cases.len() as f64;
        most = most.max(summary.saved_share_max);
        within += usize::from(loss <= allowed);
        losses.push(loss);
        decisions += summary.decisions;
    }
    let all = row.cases.len();
    let text = match losses[..] {
        [loss] => {
            format!("saves {} (up to {}), loss {}; {decisions} decisions", percent(saved), percent(most), percent(loss))
        }
        _ => format!("{} on average, up to {}, {within} of {all} within", percent(saved), percent(most)),
    };
    let states_saving = row.paper.is_numeric();
    let saving = row.paper.most.map_or(saved, |_| most) * row.factor();
    let mut parts = vec![if within == all { "within the target" } else { "target missed" }.to_owned()];
    let mut agrees = within == all;
    if let Some(paper) = row.paper.number.or(row.paper.most) {
        agrees &= is_near(saving, paper, row.agree);
        parts.push(format!("saving ours/paper {:.2}", saving / paper));
    }
    if let Some(least) = row.paper.at_least {
        agrees &= saving >= least;
        parts.push(format!("saving ours/wanted {:.2}", saving / least));
    }
    let loss = losses[0] * row.factor();
    if let Some(paper) = row.paper.loss {
        agrees &= is_near(loss, paper, row.agree) || (row.kind != Kind::Figure && loss < paper);
        parts.push(format!("loss ours/paper {:.2}", loss / paper));
    }
    let judgement = match (states_saving, row.paper.loss) {
        (false, None) => Judgement::new(Verdict::NoNumber, "the paper states no number"),
        _ => Judgement::of(agrees, parts.join(", ")),
    };
    let value = Some(if row.paper.loss.is_some() && !states_saving { loss } else { saving });
    Ok(Found { value, text, detail: Some(json!({ "loss_of_each_run": losses })), judgement: Some(judgement) })
}

/// The largest saving of the first policy, beside that of others.
fn savings(row: &Row, target: f64, error: Option<f64>, of: OfSeed<'_>) -> Result<Found> {
    let mut by_policy: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for case in &row.cases {
        let saving = match (case.fixed_share(), case.policy_settings.get("untouched")) {
            (Some(share), _) => 1.0 - share,
            (None, Some(slow)) => parse_share(slow).map_err(value)?,
            (None, None) => return Err(bad(case, "says neither its size nor how much is slow")),
        };
        let point = (saving, of.loss(case)?);
        match by_policy.iter_mut().find(|(policy, _)| *policy == case.policy) {
            Some((_, points)) => points.push(point),
            None => by_policy.push((&case.policy, vec![point])),
        }
    }
    let all: Vec<(&str, f64)> =
        by_policy.iter().map(|(policy, points)| (*policy, most_saving(points, target))).collect();
    let mut found = Found::number(row, all[0].1);
    found.text = all.iter().map(|(policy, most)| format!("{policy} {}", percent(*most))).collect::<Vec<_>>().join(", ");
    if let Some(error) = error {
        // A predictor that is wrong by so much either way must leave as much as it may be wrong by, to stay within.
        let careful = all[0].1 * (1.0 - error);
        found.text += &format!(", {} with a prediction that may be {} off", percent(careful), percent(error));
    }
    let points: BTreeMap<&str, &Vec<(f64, f64)>> = by_policy.iter().map(|(policy, points)| (*policy, points)).collect();
    found.detail = Some(json!({ "saving_and_loss": points }));
    if let Some((other, most)) = all.iter().skip(1).find(|(_, most)| *most >= all[0].1) {
        let why = format!("other direction: {other} saves {}", percent(*most));
        found.judgement = Some(Judgement::new(Verdict::Opposite, why));
    }
    Ok(found)
}

/// Losses at fixed sizes beside their prediction.
fn errors(row: &Row, by: Prediction, of: OfSeed<'_>) -> Result<Found> {
    let answer = of.predicted(&row.cases[0])?;
    let watched = row.cases.iter().find(|case| matches!(case.at, Some(Limit::Watched(_))));
    let watched = watched.map(|case| of.of(case)).transpose()?.map_or(&[][..], |run| run.figures.forecast.as_slice());
    let (mut errors, mut details, mut points) = (Vec::new(), Vec::new(), Vec::new());
    let mut correction = 1.0;
    for (case, share) in row.cases.iter().filter_map(|case| case.fixed_share().map(|share| (case, share))) {
        let (seen, uncorrected) = (of.loss(case)?, of.predicted_at(&row.cases[0], share)?.loss);
        let predicted = match by {
            Prediction::Database => uncorrected,
            Prediction::Corrected => uncorrected * correction,
            Prediction::Forecast => {
                let of_size = watched.iter().find(|(of, _)| (of - share).abs() < 1e-9);
                of_size.ok_or(MeasureError::Lacks("the run whose pages were watched has no such size"))?.1
            }
        };
        errors.push(if seen.abs() > NO_LOSS { (predicted - seen).abs() / seen.abs() } else { f64::NAN });
        details.push(format!("{}/{}", percent(predicted), percent(seen)));
        points.push(format!("{:.1}", (predicted - seen).abs() * 100.0));
        if seen > 0.0 && uncorrected > 0.0 {
            correction = seen / uncorrected;
        }
    }
    if errors.len() != row.paper.each.len() {
        return Err(MeasureError::Sizes { runs: errors.len(), paper: row.paper.each.len() });
    }
    let show = |error: &f64| if error.is_nan() { "-".to_owned() } else { format!("{:.0}", error * 100.0) };
    let shown: Vec<String> = errors.iter().map(show).collect();
    let no_worse =
        errors.iter().zip(&row.paper.each).filter(|(error, paper)| **error * row.factor() <= **paper).count();
    let most = errors.iter().copied().filter(|error| error.is_finite()).fold(0.0, f64::max);
    let covered = if answer.covered { "" } else { "; the database does not cover the profile" };
    let text = format!(
        "{} % (predicted/run {}; differences {} points{covered})",
        shown.join(", "),
        details.join(", "),
        points.join(", ")
    );
    let judgement =
        Judgement::of(no_worse == errors.len(), format!("no more than the paper's at {no_worse} of {}", errors.len()));
    Ok(Found { value: Some(most * row.factor()), text, detail: None, judgement: Some(judgement) })
}

/// The prediction as a product: the share of accesses that slow memory serves, and the loss for each hundredth of it.
fn terms(case: &Case, of: OfSeed<'_>) -> Result<Found> {
    let share = case.fixed_share().ok_or_else(|| bad(case, "is not of a fixed size"))?;
    let (full, run) = (of.full(case)?, of.of(case)?);
    of.predicted(case)?;
    let at = of.predicted_at(case, share)?;
    let predicted = [at.slow, at.loss];
    let slow = |outcome: &Outcome| {
        let all = outcome.figures.tier_accesses.iter().sum::<u64>().max(1);
        outcome.figures.tier_accesses[1..].iter().sum::<u64>() as f64 / all as f64
    };
    // What is slow with everything fast is there in both.
    let seen = [slow(run) - slow(full), of.loss(case)?];
    let each = |[slow, loss]: [f64; 2]| if slow > 0.0 { loss / slow } else { f64::NAN };
    let management = run.figures.management_seconds - full.figures.management_seconds;
    let managing = management / full.figures.seconds / case.setting.threads as f64;
    let text = format!(
        "predicted {} slow at {:.2} % each, {}; run {} slow at {:.2} % each, {}; of that management {} of the threads' time",
        percent(predicted[0]),
        each(predicted),
        percent(predicted[1]),
        percent(seen[0]),
        each(seen),
        percent(seen[1]),
        percent(managing)
    );
    let why = format!(
        "the paper states no number; slow accesses predicted/run {:.2}, cost of each {:.2}",
        predicted[0] / seen[0],
        each(predicted) / each(seen)
    );
    let judgement = Some(Judgement::new(Verdict::NoNumber, why));
    Ok(Found { value: Some(predicted[0] / seen[0]), text, detail: None, judgement })
}

/// What could be saved at best: see [`bounds`].
fn at_best(row: &Row, target: f64, of: OfSeed<'_>) -> Result<Found> {
    fn run(outcome: &Outcome) -> Run<'_> {
        let parts = outcome.figures.parts.as_deref().unwrap_or_default();
        Run { seconds: outcome.figures.full_size_seconds(outcome.scale), parts }
    }
    let mut names: Vec<&str> = row.cases.iter().map(|case| case.setting_name.as_str()).collect();
    names.dedup();
    let (mut list, mut mean, mut detail) = (Vec::new(), [0.0; 5], serde_json::Map::new());
    for name in &names {
        let of_program: Vec<&Case> = row.cases.iter().filter(|case| case.setting_name == *name).collect();
        let full_run = of.full(of_program[0])?;
        let full = run(full_run);
        let (mut sizes, mut parts) = (Vec::new(), serde_json::Map::new());
        for &case in &of_program {
            let Some(size) = case.fixed_share() else { continue };
            let run = run(of.of(case)?);
            let losses = bounds::part_losses(&full, &run).unwrap_or_default();
            let rounded: Vec<f64> = losses.iter().map(|loss| (loss * 1e4).round() / 1e4).collect();
            parts.insert(size.to_string(), rounded.into());
            sizes.push((size, run));
        }
        let found = bounds::bounds(full_run.figures.peak_pages(), &full, &sizes, target);
        let Bounds { untouched, steady, one_size, and_untouched, each_part } =
            found.ok_or_else(|| bad(&name, "the run with everything fast is too short to be cut into parts"))?;
        let all = [untouched, steady, one_size, and_untouched, each_part];
        (0..5).for_each(|place| mean[place] += all[place] / names.len() as f64);
        list.push(format!("{name} {}", all.map(percent).join(", ")));
        detail.insert((*name).to_owned(), json!({ "bounds": all, "loss_by_part": parts }));
    }
    let mut found = Found::number(row, mean[4]);
    let wanted = row.paper.at_least.map_or(f64::INFINITY, |least| least / row.factor());
    let reach = match mean {
        [_, steady, ..] if steady >= wanted => "within reach of one size, steadily",
        [_, _, one, ..] if one >= wanted => "within reach of one size",
        [.., untouched, _] if untouched >= wanted => "within reach of one size that follows the program's growth",
        [.., parts] if parts >= wanted => "beyond one size, and below the bound of changing ones",
        _ => "beyond every choice of sizes",
    };
    found.text =
        format!("{} on average ({}): what is wanted is {reach}", mean.map(percent).join(", "), list.join("; "));
    found.detail = Some(detail.into());
    Ok(found)
}

/// How long the database takes to index its records and to answer: measured.
fn query(row: &Row, runs: &Runs) -> Result<Found> {
    let machine = row.machines.first().ok_or(MeasureError::Lacks("the row names no machine"))?;
    let query = runs.query(machine).ok_or_else(|| MeasureError::NoDatabase(machine.clone()))?;
    let mut found = Found::number(row, query.query_micros);
    found.text = format!(
        "{} records, indexed in {:.1} ms, queried in {:.1} us (measured, exact; docs/performance.md has more records)",
        query.records, query.index_millis, query.query_micros
    );
    Ok(found)
}
