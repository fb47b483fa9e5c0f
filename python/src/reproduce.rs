//! The papers' figures, run and judged as `terrace reproduce` does.
//!
//! In: ids, or an experiments file of one's own. Out: JSON rows of paper, ours and verdict. Must not: know a row.

use std::path::PathBuf;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;
use terrace_reproduce::{Document, Error, Experiments, Plan, Runs};
use terrace_study::Progress;
use terrace_study::reproduction::Reproduction;

use crate::watch::{beside, causes, raised};

/// Runs between two looks at whether to go on: enough that those of one program stand together.
const BATCH_RUNS: usize = 24;

fn told(error: &Error) -> PyErr {
    let text = causes(error);
    if error.is_misuse() { PyValueError::new_err(text) } else { PyRuntimeError::new_err(text) }
}

fn open(path: Option<&PathBuf>) -> PyResult<Experiments> {
    path.map_or_else(Experiments::built_in, |path| Experiments::read(path)).map_err(|error| told(&error))
}

/// The rows there are, as `terrace reproduce list --json` has them.
#[pyfunction]
#[pyo3(signature = (experiments))]
pub(crate) fn experiments(experiments: Option<PathBuf>) -> PyResult<String> {
    Ok(open(experiments.as_ref())?.list().to_string())
}

/// Runs rows; what came out, as `terrace reproduce --json` has them.
#[pyfunction]
#[pyo3(signature = (ids, scale, seed, seeds, settings, experiments, progress))]
#[expect(clippy::too_many_arguments, reason = "the package's own function has them by name")]
pub(crate) fn reproduce(
    py: Python<'_>,
    ids: Vec<String>,
    scale: u32,
    seed: u64,
    seeds: u64,
    settings: Vec<String>,
    experiments: Option<PathBuf>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    if seeds == 0 {
        return Err(PyValueError::new_err("--seeds 0: expected at least 1"));
    }
    let known = open(experiments.as_ref())?;
    let rows = known.select(&ids).map_err(|error| told(&error))?;
    if let Some(row) = rows.iter().find(|row| !row.machines.is_empty()) {
        let why =
            "it needs a performance database, which the Python package does not build; `terrace reproduce` runs it";
        return Err(PyValueError::new_err(format!("{}: {why}", row.id)));
    }
    let asked = Reproduction::new(scale, seed, seeds, settings, experiments.as_deref());
    let plan = |rows| Plan::new(rows, asked.options.clone()).map_err(|error| told(&error));
    let whole = plan(rows.clone())?;
    let document = beside(py, progress.as_ref(), |watch| {
        watch.begin(whole.runs(), 0);
        // The rows that ask for one were refused.
        let none = |_: &_| Err("there is no performance database".into());
        let mut runs = Runs::default();
        let mut batch = Vec::new();
        for (place, row) in rows.iter().enumerate() {
            batch.push(*row);
            let mut part = plan(batch.clone())?;
            part.ask_also(&known.rows);
            if part.lacks(&runs) < BATCH_RUNS && place + 1 < rows.len() {
                continue;
            }
            if !watch.goes_on() {
                return Err(PyKeyboardInterrupt::new_err("stopped before all runs were done"));
            }
            part.run_on(&mut runs, &none, &|| watch.step()).map_err(|error| told(&error))?;
            batch.clear();
        }
        Document::new(&whole, &runs).map_err(|error| told(&error))
    })??;
    let rows = asked.stamped_rows(&rows, &document).map_err(|error| raised(&error))?;
    Ok(Value::from(rows).to_string())
}
