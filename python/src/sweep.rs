//! A sweep by its parts, so that Python can deal them out to processes: bounds by group, rows by cell, the journal, the table.
//!
//! In: a specification. Out: rows as JSON texts, and a table. Must not: hand out a part of one specification, trace or build for another's.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde_json::Value;
use terrace_sim::run::Bounds;
use terrace_study::sweep::{Form, Journal, Sweep as Whole};

use crate::watch::{raised, work};

/// Everything fast and everything slow, in seconds.
type Seconds = (f64, f64);

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
        let finished = journal.cells();
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

    fn group_of(&self, cell: usize) -> usize {
        self.whole.group_of(cell)
    }

    fn missing_bounds(&self) -> PyResult<Vec<usize>> {
        Ok(self.whole.missing_bounds(self.journal()?))
    }

    fn missing_cells(&self) -> PyResult<Vec<usize>> {
        Ok(self.whole.missing_cells(self.journal()?))
    }

    /// The bounds of a group that the journal has.
    fn bounds(&self, group: usize) -> PyResult<Option<Seconds>> {
        Ok(self.journal()?.bounds(group).map(|found| (found.all_fast_seconds, found.all_slow_seconds)))
    }

    /// Computes the bounds of a group.
    fn bounds_of(&self, py: Python<'_>, group: usize) -> PyResult<Seconds> {
        let found = py.detach(|| self.whole.bounds_of(group)).map_err(|error| raised(&error))?;
        Ok((found.all_fast_seconds, found.all_slow_seconds))
    }

    /// Computes the row of a cell.
    fn row(&self, py: Python<'_>, cell: usize, bounds: Seconds) -> PyResult<String> {
        let row = py.detach(|| self.whole.row(cell, &known(bounds)));
        row.map(|row| row.to_string()).map_err(|error| raised(&error))
    }

    fn add_bounds(&self, group: usize, bounds: Seconds) -> PyResult<()> {
        self.journal()?.add_bounds(group, known(bounds)).map(drop).map_err(|error| raised(&error))
    }

    fn add_row(&self, cell: usize, row: String) -> PyResult<()> {
        self.journal()?.add_row(cell, row).map_err(|error| raised(&error))
    }

    /// Runs what is missing, in this process on all cores.
    #[pyo3(signature = (progress=None))]
    fn run(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> PyResult<()> {
        let journal = self.journal()?;
        work(py, progress.as_ref(), |watch| self.whole.run(journal, watch))
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

fn known((all_fast_seconds, all_slow_seconds): Seconds) -> Bounds {
    Bounds { all_fast_seconds, all_slow_seconds }
}
