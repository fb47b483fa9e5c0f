//! The page docs/fidelity.md: for each paper how many of its figures agree, and every row beside ours with the reason where it differs.
//!
//! What counts as a figure of a paper is a number that it states or draws, once and under its own conditions; goals, variants, repeats and rivals are
//! counted beside them.
//!
//! In: rows and the store of results. Out: Markdown. Must not: run anything, or say of a row what neither its runs nor its record say.
//!
//! A row has its value at the finest scale at which all its runs are kept, over the seeds for which they are. Its digest is that of what
//! computed these; where this program would compute otherwise, or a setting was changed, the row is stale, and says what is another.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::digest::digest_of;
use crate::error::Error;
use crate::experiments::{Experiments, Kind, Row};
use crate::measure::Measure;
use crate::origin::Origin;
use crate::results::{Document, RowResult};
use crate::run::{Options, Plan, Runs};
use crate::store::{Store, query_key};
use crate::verdict::Verdict;
use crate::{LEAST_SCALE, QUICK_SCALE};

/// Digits of a row's digest.
const DIGITS: usize = 8;

/// What the store says of a row.
struct Kept {
    result: RowResult,
    digest: String,
    /// What is another than this program computes.
    stale: BTreeSet<&'static str>,
}

/// By row.
type Results<'r> = BTreeMap<&'r str, Kept>;

/// The verdicts in the order of the columns, and as the page calls them.
const VERDICTS: [(Verdict, &str); 7] = [
    (Verdict::Agrees, "agrees"),
    (Verdict::Differs, "differs"),
    (Verdict::Opposite, "other way"),
    (Verdict::Undecided, "undecided"),
    (Verdict::NoNumber, "no number"),
    (Verdict::NoValue, "no value"),
    (Verdict::Refused, "refused"),
];

/// The page of these rows.
///
/// # Errors
/// When the runs of a row do not give its value.
pub fn page(experiments: &Experiments, rows: &[&Row], store: &Store) -> Result<String, Error> {
    let mut results = Results::new();
    prepare(experiments, rows, store)?;
    for row in rows {
        if let Some(kept) = kept(experiments, row, store)? {
            results.insert(&row.id, kept);
        }
    }
    let mut out = "# Fidelity: the papers' figures beside ours\n\n\
        For researchers and planners. After it you know how far to trust a simulated figure: which figures of the papers agree with ours, which do not, and\n\
        why, as far as it is known. One section a paper; on the site the rows can be filtered by paper, verdict and words.\n\n"
        .to_owned();
    findings(&mut out, experiments, rows, &results);
    out.push_str(
        "Every figure that a row of `experiments/*.toml` states, beside what the simulator computes for it. Nothing here was measured but the time\n\
         of database queries. The page is made by\n\n    terrace reproduce page >docs/fidelity.md\n\n\
         of the runs that are kept in `experiments/results`, and a test holds it to that. [Experiments](experiments.md) says what the verdicts mean,\n\
         how to repeat a row, and how runs are kept. A row's digest stands for the settings, machines and fingerprints of what computed its runs; `stale`\n\
         says which of them are others in the program that printed this page.\n",
    );
    summary(&mut out, experiments, rows, &results);
    for paper in &experiments.papers {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| begins(row, &paper.prefix)).collect();
        if own.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "\n## {}\n\n| row | what | paper | ours | verdict | scale, seeds | why | digest |\n|---|---|---|---|---|---|---|---|\n",
            paper.title
        );
        own.iter().for_each(|row| line(&mut out, row, &results));
        let missing = experiments.not_built.iter().filter(|row| row.id.starts_with(&format!("{}.", paper.prefix)));
        for row in missing {
            let _ = writeln!(out, "| {} | | | | not built | | {} | |", row.id, cell(&row.why));
        }
    }
    Ok(out)
}

/// A row by its kept runs, at the finest scale at which all are there.
fn kept(experiments: &Experiments, row: &Row, store: &Store) -> Result<Option<Kept>, Error> {
    let scales =
        std::iter::successors(Some(LEAST_SCALE), |scale| Some(scale * 2)).take_while(|scale| *scale <= QUICK_SCALE);
    for scale in scales {
        if let Some(kept) = kept_at(experiments, row, store, scale)? {
            return Ok(Some(kept));
        }
    }
    Ok(None)
}

/// Runs the canaries of all kept runs at once.
fn prepare(experiments: &Experiments, rows: &[&Row], store: &Store) -> Result<(), Error> {
    let mut plan = Plan::new(rows.to_vec(), Options { scale: QUICK_SCALE, seeds: vec![0], set: Vec::new() })?;
    plan.ask_also(&experiments.rows);
    let known = store.words();
    let cases = plan.first.iter().chain(&plan.second).map(|(case, _)| case);
    store.prints.prepare(plan.canaries(cases.filter(|case| known.contains(case.to_string().as_str()))))
}

fn kept_at(experiments: &Experiments, row: &Row, store: &Store, scale: u32) -> Result<Option<Kept>, Error> {
    let planned = |seeds| {
        let mut plan = Plan::new(vec![row], Options { scale, seeds, set: Vec::new() })?;
        plan.ask_also(&experiments.rows);
        Ok::<_, Error>(plan)
    };
    let mut runs = Runs::default();
    let (mut origins, mut stale) = (Vec::new(), BTreeSet::new());
    let mut seeds = Vec::new();
    if row.measure == Measure::DatabaseQuery {
        for machine in &row.machines {
            let Some(record) = store.get(&query_key(machine)) else { return Ok(None) };
            let Some(query) = record.query.clone() else { return Ok(None) };
            runs.take_query(machine, query);
            stale.extend(record.of.changed(&Origin::of_query(machine, &store.prints)?));
            origins.push(record.of.text());
        }
        seeds.push(1);
    }
    let all = planned(store.seeds().into_iter().collect())?;
    for seed in store.seeds() {
        let own: Vec<_> = all.first.iter().chain(&all.second).filter(|(_, other)| *other == seed).collect();
        let found: Option<Vec<_>> = own.iter().map(|(case, seed)| store.usable(&all, case, *seed)).collect();
        let Some(found) = found.filter(|found| !found.is_empty()) else { continue };
        seeds.push(seed);
        for ((case, _), record) in own.into_iter().zip(found) {
            if let Some(outcome) = record.outcome() {
                runs.take(case, seed, outcome);
            }
            stale.extend(record.of.changed(&Origin::of(&all, case, &store.prints)?));
            origins.push(record.of.text());
        }
    }
    if seeds.is_empty() {
        return Ok(None);
    }
    let document = Document::new(&planned(seeds)?, &runs)?;
    let digest = digest_of(origins.join("\n"))[..DIGITS].to_owned();
    Ok(document.rows.into_iter().next().map(|result| Kept { result, digest, stale }))
}

fn begins(row: &Row, prefix: &str) -> bool {
    row.id.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

/// The verdict on a row; `None` where it was not run.
fn verdict(results: &Results<'_>, row: &Row) -> Option<Verdict> {
    results.get(row.id.as_str()).map(|kept| kept.result.verdict)
}

/// Rows that are figures of their paper and have a number of it: of the value, one for each size, or a loss alone.
fn is_figure(row: &Row) -> bool {
    row.kind == Kind::Figure && row.paper.has_number()
}

/// The first paragraph: how many figures agree, and what each paper's rows come to.
fn findings(out: &mut String, experiments: &Experiments, rows: &[&Row], results: &Results<'_>) {
    let figures: Vec<&Row> = rows.iter().copied().filter(|row| is_figure(row)).collect();
    let of_papers = experiments.papers.iter().filter(|paper| figures.iter().any(|row| begins(row, &paper.prefix)));
    let count = |rows: &[&Row], wanted: fn(&Row, Verdict) -> bool| {
        rows.iter().filter(|row| verdict(results, row).is_some_and(|verdict| wanted(row, verdict))).count()
    };
    let is_opposite = |_: &Row, verdict| verdict == Verdict::Opposite;
    let _ = write!(
        out,
        "Of the {} distinct figures that {} papers state in numbers, or draw so that they can be read off, {} agree, within the paper's own bound \
         where it states one; {} point the other way, {} of these with a cause that another row tests. Beside them stand {} rows of orders, \
         repeats, variants, goals and other systems, of which {} agree.",
        figures.len(),
        of_papers.count(),
        count(&figures, |_, verdict| verdict == Verdict::Agrees),
        count(&figures, is_opposite),
        count(&figures, |row, verdict| verdict == Verdict::Opposite && row.cause_row.is_some()),
        rows.len() - figures.len(),
        count(rows, |row, verdict| verdict == Verdict::Agrees && !is_figure(row)),
    );
    for finding in experiments.papers.iter().filter_map(|paper| paper.finding.as_ref()) {
        let _ = write!(out, "\n{finding}");
    }
    out.push_str("\n\n");
}

fn summary(out: &mut String, experiments: &Experiments, rows: &[&Row], results: &Results<'_>) {
    out.push_str("\n## How many agree\n\n| paper | rows |");
    VERDICTS.iter().for_each(|(_, name)| {
        let _ = write!(out, " {name} |");
    });
    out.push_str(" not run | figures that agree | others with a cause | of these tested |\n|---|---|");
    out.push_str(&"---|".repeat(VERDICTS.len() + 4));
    out.push('\n');
    let mut line = |name: &str, own: &[&Row]| {
        let count = |wanted| own.iter().filter(|row| verdict(results, row) == wanted).count();
        let _ = write!(out, "| {name} | {} |", own.len());
        for (key, _) in VERDICTS {
            let _ = write!(out, " {} |", count(Some(key)));
        }
        let figures: Vec<&&Row> = own.iter().filter(|row| is_figure(row)).collect();
        let agree = figures.iter().filter(|row| verdict(results, row) == Some(Verdict::Agrees)).count();
        let others: Vec<&&Row> = own
            .iter()
            .filter(|row| !matches!(verdict(results, row), None | Some(Verdict::Agrees | Verdict::NoNumber)))
            .collect();
        let with_cause = others.iter().filter(|row| row.cause.is_some()).count();
        let tested = others.iter().filter(|row| row.cause_row.is_some()).count();
        let _ = writeln!(
            out,
            " {} | {agree} of {} | {with_cause} of {} | {tested} |",
            count(None),
            figures.len(),
            others.len()
        );
    };
    for paper in &experiments.papers {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| begins(row, &paper.prefix)).collect();
        if !own.is_empty() {
            line(&paper.title, &own);
        }
    }
    line("all", rows);
    out.push_str(
        "\nA cause is tested where another row has that one thing changed; its value then stands behind the cause. What has no cause there is not\n\
         explained.\n",
    );
}

fn line(out: &mut String, row: &Row, results: &Results<'_>) {
    let Some(Kept { result, digest, stale }) = results.get(row.id.as_str()) else {
        let _ =
            writeln!(out, "| {} | {} | {} | | not run | | | |", row.id, cell(&row.quantity), cell(&row.paper.words));
        return;
    };
    let name = VERDICTS.iter().find(|(key, _)| *key == result.verdict).map_or("", |(_, name)| name);
    let mut why = once(&result.verdict_why, result.seeds.len()).to_owned();
    if result.verdict != Verdict::Agrees {
        if let Some(cause) = &row.cause {
            let _ = write!(why, ". Cause: {cause}");
        }
        if let Some(other) = &row.cause_row {
            let changed = results.get(other.as_str());
            let ours = changed.map_or_else(|| "not run".to_owned(), of_first);
            let _ = write!(why, ". With that changed ({other}): {ours}");
        }
    }
    let stale = match stale.iter().copied().collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => none,
        parts => format!(" stale: {parts}"),
    };
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} | {name} | 1:{}, {} | {} | {digest}{stale} |",
        row.id,
        cell(&row.quantity),
        cell(&row.paper.words),
        cell(once(&result.ours_text, result.seeds.len())),
        result.scale,
        result.seeds.len(),
        cell(&why)
    );
}

/// What each seed gave, between bars; only once where all gave the same.
fn once(text: &str, seeds: usize) -> &str {
    let parts: Vec<&str> = text.split(" | ").collect();
    if parts.len() == seeds && parts.iter().all(|part| *part == parts[0]) { parts[0] } else { text }
}

/// The value of a row that is named in another; where each seed has its own, the first of them: all stand in the row itself.
fn of_first(kept: &Kept) -> String {
    let seeds = kept.result.seeds.len();
    let text = once(&kept.result.ours_text, seeds);
    let parts: Vec<&str> = text.split(" | ").collect();
    if seeds > 1 && parts.len() == seeds {
        format!("{} in the first of {seeds} seeds", parts[0])
    } else {
        text.to_owned()
    }
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
