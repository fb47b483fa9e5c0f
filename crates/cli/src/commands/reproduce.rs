//! `terrace reproduce`: the papers' figures beside what the simulator computes for the same experiment.
//!
//! In: ids. Out: rows of paper, ours and verdict. Must not: know a row; `terrace_reproduce` and `experiments/*.toml` do.

use std::process::ExitCode;

use serde_json::Value;
use terrace_machine::preset::Machine;
use terrace_reproduce::{Case, Document, Error, Experiments, Options, Plan, Row, Runs};

use super::size::store;
use crate::args::ReproduceArguments;
use crate::options::Misuse;
use crate::provenance::{self, Provenance};

pub(super) fn run(arguments: &ReproduceArguments) -> anyhow::Result<ExitCode> {
    let experiments = experiments(arguments)?;
    if arguments.ids.iter().any(|id| id == "list") {
        match arguments.json {
            true => super::print_json(&experiments.list())?,
            false => super::print_text(&experiments.list_text())?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let rows = experiments.select(&arguments.ids).map_err(told)?;
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
    Ok(ExitCode::SUCCESS)
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

fn options(arguments: &ReproduceArguments) -> Options {
    Options {
        scale: scale(arguments),
        seeds: (0..arguments.seeds).map(|more| arguments.seed.wrapping_add(more)).collect(),
        set: arguments.settings.clone(),
    }
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
    rows.iter().zip(&document.rows).map(|(row, result)| Ok(made(arguments, row).stamp(result)?)).collect()
}

/// What makes a row: where its runs agree on machine, program and policy, these too.
fn made(arguments: &ReproduceArguments, row: &Row) -> Provenance {
    let mut words = vec!["reproduce".to_owned(), row.id.clone()];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    option("scale", scale(arguments).to_string());
    option("seed", arguments.seed.to_string());
    option("seeds", arguments.seeds.to_string());
    arguments.settings.iter().for_each(|text| option("set", text.clone()));
    if let Some(path) = &arguments.experiments {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        option("experiments", path.to_string_lossy().into_owned());
    }
    words.push("--json".to_owned());
    let mut made = Provenance::of(&provenance::command(words));
    made.seed = Some(arguments.seed);
    made.machine = only(row, |case| case.setting.machine.clone());
    if let Some(machine) = made.machine.as_deref().and_then(|name| Machine::preset(name).ok()) {
        made = made.on(&machine);
    }
    made.workload = only(row, |case| case.setting.workload.clone());
    made.threads = only(row, |case| case.setting.threads);
    made.size_bytes = only(row, |case| case.setting.size.get());
    made.workload_settings = only(row, |case| case.setting.options.clone()).unwrap_or_default();
    made.pages = only(row, |case| if case.setting.huge { "huge" } else { "small" }.to_owned());
    made.policy = only(row, |case| case.policy.clone());
    for case in &row.cases {
        let mut given = case.policy_settings.clone();
        let others = arguments.settings.iter().filter_map(|text| text.split_once('='));
        given.extend(others.filter_map(|(key, value)| {
            let key = key.trim().strip_prefix(&case.policy)?.strip_prefix('.')?;
            Some((key.to_owned(), value.trim().to_owned()))
        }));
        made.settings.extend(provenance::settings(&case.policy, &given));
    }
    made
}

/// What all runs of a row have in common, if they have.
fn only<T: PartialEq>(row: &Row, of: impl Fn(&Case) -> T) -> Option<T> {
    let first = of(row.cases.first()?);
    row.cases.iter().all(|case| of(case) == first).then_some(first)
}

/// What was asked for and does not exist is misuse, exit code 2.
fn told(error: Error) -> anyhow::Error {
    if error.is_misuse() { Misuse(error.to_string()).into() } else { error.into() }
}
