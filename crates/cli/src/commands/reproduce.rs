//! `terrace reproduce`: the papers' figures beside what the simulator computes for the same experiment.
//!
//! In: ids. Out: rows of paper, ours and verdict. Must not: know a row; `terrace_reproduce` and `experiments/*.toml` do.

use std::process::ExitCode;

use terrace_reproduce::{Document, Error, Experiments, Options, Plan};

use super::size::store;
use crate::args::ReproduceArguments;
use crate::options::Misuse;

pub(super) fn run(arguments: &ReproduceArguments) -> anyhow::Result<ExitCode> {
    let experiments = arguments.experiments.as_ref().map_or_else(Experiments::built_in, |path| Experiments::read(path));
    let experiments = experiments.map_err(told)?;
    if arguments.ids.iter().any(|id| id == "list") {
        match arguments.json {
            true => super::print_json(&experiments.list())?,
            false => super::print_text(&experiments.list_text())?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options {
        scale: if arguments.quick { terrace_reproduce::QUICK_SCALE } else { arguments.scale },
        seeds: (0..arguments.seeds).map(|more| arguments.seed.wrapping_add(more)).collect(),
        set: arguments.settings.clone(),
    };
    let plan = experiments.select(&arguments.ids).and_then(|rows| Plan::new(rows, options)).map_err(told)?;
    if let Some(path) = arguments.svg.as_ref().filter(|_| !plan.has_tuned()) {
        let why = "the chosen rows have no tuned run: only those are drawn (TU.fig3, TU.save)";
        return Err(Misuse(format!("--svg {}: {why}", path.display())).into());
    }
    let bar = super::sim::compare::progress(plan.runs());
    let database = |machine: &_| store::in_memory(machine).and_then(store::ready).map_err(Into::into);
    let runs = plan.run(&database, &|| bar.inc(1));
    bar.finish_and_clear();
    let runs = runs.map_err(told)?;
    if let Some(path) = &arguments.svg {
        crate::report::sim::write_tuned(path, &plan, &runs)?;
    }
    let document = Document::new(&plan, &runs).map_err(told)?;
    match arguments.json {
        true => super::print_json(&document)?,
        false => super::print_text(&document.text())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// What was asked for and does not exist is misuse, exit code 2.
fn told(error: Error) -> anyhow::Error {
    if error.is_misuse() { Misuse(error.to_string()).into() } else { error.into() }
}
