//! What a reproduction says: rows with verdicts, as JSON and as text.
//!
//! In: a plan and its runs. Out: [`Document`]. Must not: run anything.

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::Error;
use crate::evaluate::{self, Found, show};
use crate::experiments::{Experiments, Row};
use crate::figure;
use crate::run::{Plan, Runs};
use crate::tuned::{self, OfSeed};
use crate::verdict::{Judgement, Verdict, judge};

/// The version of the document's form.
pub const SCHEMA_VERSION: u32 = 1;

/// A row as it came out.
#[derive(Clone, Debug, Serialize)]
pub struct RowResult {
    /// The row.
    pub id: String,
    /// What it is, in words.
    pub quantity: String,
    /// Unit of the numbers of the paper and of ours.
    pub unit: String,
    /// The paper's number; null where it states a range, an order or nothing of the kind.
    pub paper: Option<f64>,
    /// The lower end of the paper's range.
    pub paper_at_least: Option<f64>,
    /// Its upper end.
    pub paper_at_most: Option<f64>,
    /// The paper's numbers, one for each size.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paper_each: Vec<f64>,
    /// The loss that the paper states beside a saving.
    pub paper_loss: Option<f64>,
    /// What the paper states, in words.
    pub paper_stated: String,
    /// Where.
    pub paper_source: String,
    /// Our number, the mean over seeds.
    pub ours: Option<f64>,
    /// Lower end of its 95 % interval over seeds; null with one seed.
    pub ours_low: Option<f64>,
    /// Upper end of that.
    pub ours_high: Option<f64>,
    /// What our runs came to, in words.
    pub ours_text: String,
    /// Figures behind it, a list of them with several seeds.
    pub ours_detail: Option<Value>,
    /// The verdict.
    pub verdict: Verdict,
    /// The reason for it.
    pub verdict_why: String,
    /// How far ours may be off, as a share of the paper's number.
    pub agree: f64,
    /// The factor by which its runs were shrunk.
    pub scale: u32,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// What was run.
    pub config: Value,
    /// Decisions of tuned runs over time, of the first seed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub courses: Vec<Value>,
}

/// All of it.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Terrace's version.
    pub version: &'static str,
    /// The command that prints it.
    pub command: &'static str,
    /// The rows, in the order of the files.
    pub rows: Vec<RowResult>,
    /// Every run behind them: its time by part of the program, what was moved and what that cost.
    pub runs: Vec<Value>,
}

impl Document {
    /// Evaluates the rows of a plan.
    ///
    /// # Errors
    /// When the runs of a row do not give its value.
    pub fn new(plan: &Plan<'_>, runs: &Runs) -> Result<Document, Error> {
        let rows = plan.rows.iter().map(|row| result(row, plan, runs)).collect::<Result<_, _>>()?;
        Ok(Document {
            schema_version: SCHEMA_VERSION,
            version: env!("CARGO_PKG_VERSION"),
            command: "reproduce",
            rows,
            runs: runs.all(plan).map(|(run, seed, outcome)| figure::facts(run, seed, outcome.scale, outcome)).collect(),
        })
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        let seeds = self.rows.first().map_or(&[][..], |row| row.seeds.as_slice());
        let seeds = match seeds {
            [only] => format!("seed {only}"),
            _ => format!("seeds {}", seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")),
        };
        let mut text = format!("Simulated, {seeds}; nothing here was measured but the time of database queries.\n");
        let mut counts = std::collections::BTreeMap::new();
        for row in &self.rows {
            *counts.entry(row.verdict.name()).or_insert(0) += 1;
            text += &format!(
                "{} (1:{}) {}\n    paper {}; ours {}; {}: {}\n",
                row.id,
                row.scale,
                row.quantity,
                row.paper_stated,
                row.ours_text,
                row.verdict.name(),
                row.verdict_why
            );
        }
        let counts: Vec<String> = counts.into_iter().map(|(verdict, count)| format!("{count} {verdict}")).collect();
        text + &format!("{} rows: {}\n", self.rows.len(), counts.join(", "))
    }
}

impl Experiments {
    /// The rows and what has none, as JSON.
    pub fn list(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                json!({
                    "id": row.id, "quantity": row.quantity, "unit": row.unit, "paper": row.paper.number,
                    "paper_stated": row.paper.words, "paper_source": row.source, "runs": row.cases.len(),
                })
            })
            .collect();
        json!({
            "schema_version": SCHEMA_VERSION, "version": env!("CARGO_PKG_VERSION"), "command": "reproduce list",
            "rows": rows, "not_built": self.not_built,
        })
    }

    /// The same as text.
    pub fn list_text(&self) -> String {
        let rows = self.rows.iter();
        let mut text: String = rows
            .map(|row| format!("{:24} {}; paper: {} ({})\n", row.id, row.quantity, row.paper.words, row.source))
            .collect();
        text += "\nNot built\n";
        text.extend(self.not_built.iter().map(|row| format!("{:24} {}\n", row.id, row.why)));
        text
    }
}

/// What the runs of one seed say of a row.
fn of_seed(row: &Row, runs: &Runs, seed: u64) -> Result<Found, Error> {
    let failed = |why: String| Error::Measure { id: row.id.clone(), why };
    let outcomes: Option<Vec<_>> = row.cases.iter().map(|case| runs.of(case, seed)).collect();
    let outcomes = outcomes.ok_or_else(|| failed("a case was not run".to_owned()))?;
    if let Some(judgement) = evaluate::is_refused(row, &outcomes) {
        return Ok(Found { text: "no value".to_owned(), judgement: Some(judgement), ..Found::default() });
    }
    match row.measure.limits_runs() || row.measure.runs_nothing() {
        true => tuned::found(row, OfSeed { runs, seed }).map_err(|error| failed(error.to_string())),
        false => Ok(evaluate::found(row, &outcomes)),
    }
}

fn result(row: &Row, plan: &Plan<'_>, runs: &Runs) -> Result<RowResult, Error> {
    let seeds = &plan.options.seeds;
    let all = seeds.iter().map(|&seed| of_seed(row, runs, seed)).collect::<Result<Vec<_>, _>>()?;
    let (found, interval, judgement) = over_seeds(row, all);
    let case_texts: Vec<String> = row.cases.iter().map(ToString::to_string).collect();
    let courses = row.cases.iter().filter_map(|case| {
        let run = runs.of(case, *seeds.first()?)?;
        let intervals = &run.shown.intervals;
        (!intervals.is_empty()).then(|| json!({ "run": case.to_string(), "intervals": intervals }))
    });
    Ok(RowResult {
        id: row.id.clone(),
        quantity: row.quantity.clone(),
        unit: row.unit.clone(),
        paper: row.paper.number,
        paper_at_least: row.paper.at_least,
        paper_at_most: row.paper.at_most,
        paper_each: row.paper.each.clone(),
        paper_loss: row.paper.loss,
        paper_stated: row.paper.words.clone(),
        paper_source: row.source.clone(),
        ours: found.value,
        ours_low: interval.map(|(low, _)| low),
        ours_high: interval.map(|(_, high)| high),
        ours_text: found.text,
        ours_detail: found.detail,
        verdict: judgement.verdict,
        verdict_why: judgement.why,
        agree: row.agree,
        scale: plan.scale_of(row),
        seeds: seeds.clone(),
        config: json!({ "runs": case_texts, "set": plan.options.set }),
        courses: courses.collect(),
    })
}

/// One statement for all seeds: the mean and its 95 % interval where each gives a number, and otherwise each text; one judgement where
/// they agree in it.
fn over_seeds(row: &Row, mut all: Vec<Found>) -> (Found, Option<(f64, f64)>, Judgement) {
    if all.len() == 1 {
        let mut found = all.remove(0);
        let own = found.judgement.take();
        let judgement = match (own, found.value) {
            (Some(own), _) => own,
            (None, Some(value)) => judge(row, value, None),
            (None, None) => Judgement::new(Verdict::NoValue, "the run gives none"),
        };
        return (found, None, judgement);
    }
    let join = |parts: Vec<String>| parts.join(" | ");
    let own: Option<Vec<Judgement>> = all.iter().map(|found| found.judgement.clone()).collect();
    let values: Option<Vec<f64>> = all.iter().map(|found| found.value).collect();
    let details: Vec<Value> = all.iter().filter_map(|found| found.detail.clone()).collect();
    let mut found = Found {
        text: join(all.iter().map(|found| found.text.clone()).collect()),
        detail: (!details.is_empty()).then_some(Value::Array(details)),
        ..Found::default()
    };
    let mut spread = None;
    if let Some(values) = &values {
        let (mean, half) = interval(values);
        found.value = Some(mean);
        spread = Some((mean - half, mean + half));
        if row.measure.is_numeric() {
            found.text = format!(
                "{} ({} to {} over {} seeds)",
                show(row, mean),
                show(row, mean - half),
                show(row, mean + half),
                values.len()
            );
        }
    }
    let judgement = match (own, found.value, spread) {
        (Some(own), ..) => {
            let same = own.iter().all(|one| one.verdict == own[0].verdict);
            let why = join(own.iter().map(|one| one.why.clone()).collect());
            Judgement::new(if same { own[0].verdict } else { Verdict::Undecided }, why)
        }
        (None, Some(mean), Some((low, high))) => judge(row, mean, Some((high - low) / 2.0)),
        _ => Judgement::new(Verdict::NoValue, "not every seed gives a value"),
    };
    (found, spread, judgement)
}

/// The mean, and half of its 95 % interval.
fn interval(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean, student(values.len() - 1) * (variance / count).sqrt())
}

/// The 97.5 % point of Student's distribution: the table to ten degrees of freedom, beyond that the value for eleven, which is a
/// little wide.
fn student(freedom: usize) -> f64 {
    const POINTS: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    POINTS.get(freedom.max(1) - 1).copied().unwrap_or(2.201)
}
