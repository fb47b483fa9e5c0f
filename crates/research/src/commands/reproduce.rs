//! `terrace reproduce`: the papers' figures beside what the simulator computes for the same experiment.
//!
//! In: ids. Out: rows of paper, ours and verdict. Must not: know a row; `terrace_reproduce` and `experiments/*.toml` do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use terrace_common::say;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use terrace_reproduce::{
    Again, Budget, Document, Error, Experiments, Fingerprints, Options, Plan, Row, Runs, SCHEMA_VERSION, Sample, Store,
};
use terrace_study::journal::Journal;
use terrace_study::reproduction::Reproduction;

use super::size::store;
use crate::args::ReproduceArguments;
use crate::options::{Misuse, duration};
use crate::provenance::{self, Provenance};
use crate::report::units;

/// Runs that are computed between two looks at which rows are whole: enough that those of one program stand together.
const BATCH_RUNS: usize = 24;

pub(super) fn run(arguments: &ReproduceArguments) -> anyhow::Result<()> {
    let experiments = experiments(arguments)?;
    if arguments.ids.iter().any(|id| id == "list") {
        return super::print(arguments.json, &experiments.list(), |_| experiments.list_text());
    }
    if arguments.ids.iter().any(|id| id == "page") {
        if arguments.ids.len() > 1 || arguments.budget.is_some() || arguments.json {
            return Err(Misuse(
                "page: it is of all rows, and Markdown: expected no other id, --budget or --json".to_owned(),
            )
            .into());
        }
        let store = Store::read(&arguments.store).map_err(told)?.with(fingerprints());
        let rows: Vec<&Row> = experiments.rows.iter().collect();
        return super::print_text(&terrace_reproduce::page(&experiments, &rows, &store).map_err(told)?);
    }
    let rows = experiments.select(&arguments.ids).map_err(told)?;
    let budget = arguments.budget.as_ref().map(|budget| duration("--budget", budget)).transpose()?;
    if let Some(one_in) = arguments.sample {
        return sample(arguments, &experiments, &rows, one_in, budget);
    }
    if let Some(budget) = budget {
        return fill(arguments, &experiments, rows, budget);
    }
    if let Some(path) = &arguments.output {
        if arguments.json {
            return Err(Misuse("--json: --output has the rows already, as --json prints them".to_owned()).into());
        }
        return into_file(arguments, &experiments, &rows, path);
    }
    let began = Instant::now();
    let plan = Plan::new(rows.clone(), options(arguments)).map_err(told)?;
    if let Some(path) = arguments.svg.as_ref().filter(|_| !plan.has_tuned()) {
        let why = "the chosen rows have no tuned run: only those are drawn (TU.fig3, TU.save)";
        return Err(Misuse(format!("--svg {}: {why}", path.display())).into());
    }
    let runs = runs(&plan)?;
    if let Some(path) = &arguments.svg {
        crate::report::sim::write_tuned(path, &plan, &runs)?;
    }
    let document = Document::new(&plan, &runs).map_err(told)?;
    match arguments.json {
        true => super::print_json(&stamped(arguments, &rows, &document)?)?,
        false => super::print_text(&document.text())?,
    }
    tell_time(rows.len(), plan.runs(), began);
    Ok(())
}

/// How long it took, on stderr: a result is the same whenever it is made.
fn tell_time(rows: usize, runs: usize, began: Instant) {
    let took = units::seconds(began.elapsed().as_secs_f64());
    say!("terrace: {} rows, {} runs computed in {took}\n", units::count(rows as u64), units::count(runs as u64));
}

/// Rows one after the other, with those in the journal taken from there; then one file of all.
fn into_file(
    arguments: &ReproduceArguments,
    experiments: &Experiments,
    rows: &[&Row],
    path: &Path,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let ids: Vec<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let fingerprint = json!({
        "terrace_reproduce": SCHEMA_VERSION, "version": env!("CARGO_PKG_VERSION"), "commit": Provenance::here().commit,
        "scale": scale(arguments), "seed": arguments.seed, "seeds": arguments.seeds, "set": arguments.settings,
        "rows": provenance::text_hash(&format!("{rows:?}")), "ids": ids,
    });
    let foreign = "it is the journal of another sweep, or of another build of Terrace";
    let journal = Journal::open("--output", path, &fingerprint, "sweep", foreign)?;
    let finished = journal.finished();
    if finished > 0 {
        say!("terrace: {}: goes on after {} rows\n", journal.path().display(), units::count(finished as u64));
    }
    let left = journal.missing(rows.len());
    let all = Plan::new(left.iter().map(|place| rows[*place]).collect(), options(arguments)).map_err(told)?;
    let bar = super::sim::compare::progress(all.runs());
    let database = |machine: &_| store::in_memory(machine).and_then(store::ready).map_err(Into::into);
    let mut runs = Runs::default();
    let mut batch: Vec<usize> = Vec::new();
    for place in &left {
        batch.push(*place);
        let mut plan = Plan::new(batch.iter().map(|place| rows[*place]).collect(), options(arguments)).map_err(told)?;
        plan.ask_also(&experiments.rows);
        // Enough runs for all cores, unless it is the last row.
        if plan.lacks(&runs) < BATCH_RUNS && Some(place) != left.last() {
            continue;
        }
        plan.run_on(&mut runs, &database, &|| bar.inc(1)).map_err(told)?;
        for place in batch.drain(..) {
            let row = rows[place];
            let alone = Plan::new(vec![row], options(arguments)).map_err(told)?;
            let document = Document::new(&alone, &runs).map_err(told)?;
            let stamped = stamped_rows(arguments, &[row], &document)?;
            journal.put_cell(place, &json!({ "row": stamped[0], "runs": document.runs }))?;
        }
    }
    bar.finish_and_clear();
    let cells: Vec<Value> = journal.cells(rows.len())?;
    let mut by_run = BTreeMap::new();
    for run in cells.iter().filter_map(|cell| cell["runs"].as_array()).flatten() {
        by_run.insert((run["run"].to_string(), run["seed"].as_u64()), run.clone());
    }
    let document = json!({
        "schema_version": SCHEMA_VERSION, "version": env!("CARGO_PKG_VERSION"),
        "rows": cells.iter().map(|cell| cell["row"].clone()).collect::<Vec<_>>(),
        "runs": by_run.into_values().collect::<Vec<_>>(),
    });
    let mut made = Provenance::here();
    (made.seed, made.scale) = (Some(arguments.seed), Some(scale(arguments)));
    let bytes = format!("{}\n", made.stamp(&document)?).into_bytes();
    journal.finish(path, &bytes, "the results could not be written")?;
    tell_time(rows.len(), all.runs(), began);
    Ok(())
}

/// Runs what the store lacks, within a time.
fn fill(
    arguments: &ReproduceArguments,
    experiments: &Experiments,
    rows: Vec<&Row>,
    time: Duration,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut plan = Plan::new(rows, options(arguments)).map_err(told)?;
    plan.ask_also(&experiments.rows);
    let mut store = Store::open(&arguments.store).map_err(told)?.with(fingerprints());
    let bar = super::sim::compare::progress(plan.runs());
    let database = |machine: &_| store::in_memory(machine).and_then(store::ready).map_err(Into::into);
    let budget = Budget { time: Some(time), cores: rayon::current_num_threads() };
    let filled = plan.fill(&mut store, budget, &database, &|count| bar.inc(count as u64));
    bar.finish_and_clear();
    let filled = filled.map_err(told)?;
    if arguments.json {
        return super::print_json(&json!({
            "schema_version": SCHEMA_VERSION, "version": env!("CARGO_PKG_VERSION"), "command": "reproduce --budget",
            "store": arguments.store, "runs": filled.runs, "kept": filled.kept, "made": filled.made, "missing": filled.missing,
            "missing_core_seconds": filled.missing_seconds, "seconds": began.elapsed().as_secs_f64(),
        }));
    }
    let [runs, kept, made, missing] =
        [filled.runs, filled.kept, filled.made, filled.missing].map(|n| units::count(n as u64));
    let expected = match filled.missing {
        0 => String::new(),
        _ => format!(", which take some {} of one core", units::seconds(filled.missing_seconds)),
    };
    let took = units::seconds(began.elapsed().as_secs_f64());
    let shown = arguments.store.display();
    super::print_text(&format!(
        "{runs} runs: {kept} were in {shown}, {made} were run in {took}, {missing} are missing{expected}\n"
    ))
}

/// Those of this build, kept below the user's cache; where there is no such place they last as long as this command, which says so.
fn fingerprints() -> Fingerprints {
    let folder = |name| std::env::var_os(name).map(std::path::PathBuf::from).filter(|path| path.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let opened = match cache {
        Some(cache) => Fingerprints::open(&cache.join("terrace/fingerprints")).map_err(|error| error.to_string()),
        None => Err("neither XDG_CACHE_HOME nor HOME is set".to_owned()),
    };
    opened.unwrap_or_else(|why| {
        say!("terrace: {why}: fingerprints are computed again each time\n");
        Fingerprints::default()
    })
}

/// Makes kept runs again, and fails if one came to something else.
fn sample(
    arguments: &ReproduceArguments,
    experiments: &Experiments,
    rows: &[&Row],
    one_in: u64,
    time: Option<Duration>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let store = Store::read(&arguments.store).map_err(told)?.with(fingerprints());
    let before = arguments.output.as_deref().map_or(Ok(Vec::new()), read_again)?;
    let now: Mutex<(Vec<Again>, std::io::Result<()>)> = Mutex::new((Vec::new(), Ok(())));
    let tell = |again: &Again| {
        let mut guard = now.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, written) = &mut *guard;
        now.push(again.clone());
        if let Some(path) = &arguments.output {
            let text: String = before.iter().chain(&*now).map(|one| format!("{}\n", json!(one))).collect();
            *written = terrace_files::write(path, text);
        }
    };
    let database = |machine: &_| store::in_memory(machine).and_then(store::ready).map_err(Into::into);
    let asked = Sample { one_in, before: &before, time };
    let sampled = asked.run(experiments, rows, &store, &database, &tell).map_err(told)?;
    let (now, written) = now.into_inner().unwrap_or_else(PoisonError::into_inner);
    let shown = arguments.output.as_deref().unwrap_or(Path::new("")).display();
    written.with_context(|| format!("{shown}: the runs could not be written"))?;
    let others: Vec<&Again> = now.iter().filter(|again| !again.equal).collect();
    if let Some(Again { run, scale, seed, differs, .. }) = others.first() {
        let (count, of, store) = (others.len(), now.len(), arguments.store.display());
        let differs = differs.as_deref().unwrap_or_default();
        bail!(
            "{count} of {of} runs came to something else than what {store} keeps, though no fingerprint is another. The first: {run}, \
             1:{scale}, seed {seed}: {differs}. Let a canary see what changed (crates/reproduce/src/canary.rs), and run what is stale then"
        );
    }
    if arguments.json {
        return super::print_json(&json!({
            "schema_version": SCHEMA_VERSION, "version": env!("CARGO_PKG_VERSION"), "command": "reproduce --sample",
            "store": arguments.store, "runs": sampled.runs, "made": sampled.made, "left": sampled.left,
            "seconds": began.elapsed().as_secs_f64(),
        }));
    }
    let [runs, made, left] = [sampled.runs, sampled.made, sampled.left].map(|n| units::count(n as u64));
    let took = units::seconds(began.elapsed().as_secs_f64());
    let earlier = units::count((sampled.runs - sampled.made - sampled.left) as u64);
    super::print_text(&format!(
        "{runs} kept runs of one in {one_in}: {made} were made again in {took} and are equal, {earlier} were before, {left} are left\n"
    ))
}

/// What an earlier command of the kind wrote.
fn read_again(path: &Path) -> anyhow::Result<Vec<Again>> {
    const LONGEST: u64 = 67_108_864;
    let text = match terrace_files::read_to_string(path, LONGEST) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("{}: it cannot be read", path.display()))?,
    };
    let line = |(number, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| {
            Misuse(format!("--output {}:{}: no line of a sample: {error}; remove the file", path.display(), number + 1))
                .into()
        })
    };
    text.lines().enumerate().map(line).collect()
}

/// The rows again, each with what made it.
pub(super) fn rows_again(arguments: &ReproduceArguments) -> anyhow::Result<Vec<Value>> {
    let experiments = experiments(arguments)?;
    let rows = experiments.select(&arguments.ids).map_err(told)?;
    let plan = Plan::new(rows.clone(), options(arguments)).map_err(told)?;
    let runs = runs(&plan)?;
    stamped_rows(arguments, &rows, &Document::new(&plan, &runs).map_err(told)?)
}

fn experiments(arguments: &ReproduceArguments) -> anyhow::Result<Experiments> {
    let read = arguments.experiments.as_ref().map_or_else(Experiments::built_in, |path| Experiments::read(path));
    read.map_err(told)
}

fn scale(arguments: &ReproduceArguments) -> u32 {
    if arguments.quick { terrace_reproduce::QUICK_SCALE } else { arguments.scale }
}

fn reproduction(arguments: &ReproduceArguments) -> Reproduction {
    let experiments = arguments.experiments.as_deref();
    Reproduction::new(scale(arguments), arguments.seed, arguments.seeds, arguments.settings.clone(), experiments)
}

fn options(arguments: &ReproduceArguments) -> Options {
    reproduction(arguments).options
}

fn runs(plan: &Plan<'_>) -> anyhow::Result<Runs> {
    let bar = super::sim::compare::progress(plan.runs());
    let database = |machine: &_| store::in_memory(machine).and_then(store::ready).map_err(Into::into);
    let runs = plan.run(&database, &|| bar.inc(1));
    bar.finish_and_clear();
    runs.map_err(told)
}

fn stamped(arguments: &ReproduceArguments, rows: &[&Row], document: &Document) -> anyhow::Result<Value> {
    let mut made = Provenance::here();
    (made.seed, made.scale) = (Some(arguments.seed), Some(scale(arguments)));
    let command = made.command.clone();
    let mut all = made.stamp(document)?;
    all["rows"] = stamped_rows(arguments, rows, document)?.into();
    all["command"] = command.into();
    Ok(all)
}

fn stamped_rows(arguments: &ReproduceArguments, rows: &[&Row], document: &Document) -> anyhow::Result<Vec<Value>> {
    Ok(reproduction(arguments).stamped_rows(rows, document)?)
}

/// What was asked for and does not exist is misuse, exit code 2.
fn told(error: Error) -> anyhow::Error {
    if error.is_misuse() { Misuse(error.to_string()).into() } else { error.into() }
}
