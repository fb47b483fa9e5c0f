//! A sweep by its parts, so that Python can deal them out to processes: rows by group, the journal, the table.
//!
//! In: a specification. Out: rows as JSON texts, and a table. Must not: hand out a part of one specification, trace or build for another's.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;
use terrace_sim::run::Bounds;
use terrace_study::journal::Journal;
use terrace_study::sweep::{Form, Sweep as Whole};

use crate::watch::{raised, work};

/// Everything fast and everything slow, in seconds.
type Seconds = (f64, f64);
/// A group and cells of it.
type Batch = (usize, Vec<usize>);

/// A dict, given as JSON, as the TOML that a sweep's file would be.
#[pyfunction]
pub(crate) fn specification(json: &str) -> PyResult<String> {
    let value: Value = serde_json::from_str(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
    toml::to_string(&value).map_err(|error| PyValueError::new_err(format!("FILE: {error}")))
}

/// See the module's header.
#[pyclass]
pub(crate) struct Sweep {
    whole: Whole,
    output: Option<PathBuf>,
    journal: Option<Journal>,
}

impl Sweep {
    fn journal(&self) -> PyResult<&Journal> {
        self.journal.as_ref().ok_or_else(|| PyRuntimeError::new_err("the sweep has no journal: open() comes first"))
    }
}

#[pymethods]
impl Sweep {
    /// Reads and checks a specification.
    #[new]
    fn new(py: Python<'_>, text: &str, named: &str, folder: PathBuf) -> PyResult<Sweep> {
        let whole = py.detach(|| Whole::new(text, named, &folder)).map_err(|error| raised(&error))?;
        Ok(Sweep { whole, output: None, journal: None })
    }

    /// Opens the journal of a table; how many cells an earlier run had finished.
    fn open(&mut self, output: PathBuf) -> PyResult<usize> {
        Form::of(&output).map_err(|error| raised(&error))?;
        let journal = self.whole.journal(&output).map_err(|error| raised(&error))?;
        let finished = journal.finished();
        (self.output, self.journal) = (Some(output), Some(journal));
        Ok(finished)
    }

    #[getter]
    fn cells(&self) -> usize {
        self.whole.cells()
    }

    #[getter]
    fn groups(&self) -> usize {
        self.whole.groups()
    }

    #[getter]
    fn fingerprint(&self) -> String {
        self.whole.fingerprint().to_string()
    }

    /// How many cells and bounds the journal has.
    fn done(&self) -> PyResult<usize> {
        Ok(self.journal()?.results())
    }

    /// What is missing, as groups with cells of theirs, for `cores` cores.
    fn batches(&self, cores: usize) -> PyResult<Vec<Batch>> {
        Ok(self.whole.batches(self.journal()?, cores))
    }

    /// The bounds of a group that the journal has.
    fn bounds(&self, group: usize) -> PyResult<Option<Seconds>> {
        let found = self.whole.bounds(self.journal()?, group).map_err(|error| raised(&error))?;
        Ok(found.map(seconds))
    }

    /// Computes rows of cells of a group, and its bounds where they are not known.
    #[pyo3(signature = (group, cells, bounds))]
    fn rows_of(
        &self,
        py: Python<'_>,
        group: usize,
        cells: Vec<usize>,
        bounds: Option<Seconds>,
    ) -> PyResult<(Seconds, Vec<String>)> {
        let found = py.detach(|| self.whole.rows_of(group, &cells, bounds.map(known)));
        let (bounds, rows) = found.map_err(|error| raised(&error))?;
        Ok((seconds(bounds), rows.iter().map(Value::to_string).collect()))
    }

    fn add_bounds(&self, group: usize, bounds: Seconds) -> PyResult<()> {
        self.whole.add_bounds(self.journal()?, group, known(bounds)).map(drop).map_err(|error| raised(&error))
    }

    fn add_row(&self, cell: usize, row: &str) -> PyResult<()> {
        let row: Value = serde_json::from_str(row).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.journal()?.put_cell(cell, &row).map_err(|error| raised(&error))
    }

    /// Runs what is missing, in this process on all cores.
    #[pyo3(signature = (progress=None))]
    fn run(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let journal = self.journal()?;
        work(py, progress.as_ref(), |watch| self.whole.run(journal, watch))
    }

    /// Lets go of the journal, which stays in its file: an exception that is kept would otherwise keep its lock.
    fn close(&mut self) {
        self.journal = None;
    }

    /// Writes the table and removes the journal; the rows as JSON.
    fn finish(&mut self) -> PyResult<String> {
        let rows = self.whole.rows(self.journal()?).map_err(|error| raised(&error))?;
        let journal = self.journal.take().ok_or_else(|| PyRuntimeError::new_err("the sweep has no journal"))?;
        let output = self.output.take().unwrap_or_default();
        self.whole.finish(journal, Path::new(&output)).map_err(|error| raised(&error))?;
        Ok(Value::from(rows).to_string())
    }
}

fn seconds(bounds: Bounds) -> Seconds {
    (bounds.all_fast_seconds, bounds.all_slow_seconds)
}

fn known((all_fast_seconds, all_slow_seconds): Seconds) -> Bounds {
    Bounds { all_fast_seconds, all_slow_seconds }
}
