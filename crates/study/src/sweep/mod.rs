//! A sweep: many machines, programs, policies, settings, sizes and seeds, through interruptions, into one table.
//!
//! In: a specification. Out: the bytes of a table with a row a cell, and on the way a journal of what is finished. Must not: compute a
//! finished cell twice, or give other bytes after an interruption or by how its cells were dealt out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;
use terrace_sim::compare::{Cell, Job};
use terrace_sim::run::{Bounds, RunRequest, bounding, machines_at_once, parts, run_together};
use terrace_sim::{Report, SimError};

mod journal;
mod specification;
mod table;

pub use journal::Journal;
use specification::{CellPlan, Plan, Specification};
pub use table::Form;

use crate::compare::Settled;
use crate::error::{Error, Result, misuse};
use crate::options::failed;
use crate::{Progress, unless_stopped};

/// See the module's header.
pub struct Sweep {
    plan: Plan,
    fingerprint: Value,
}

impl Sweep {
    /// Reads a specification's text, which is called `named` in errors. Paths of traces are relative to `folder`.
    ///
    /// # Errors
    /// What is wrong with it: misuse.
    pub fn new(text: &str, named: &str, folder: &Path) -> Result<Sweep> {
        let specification = Specification::parse(text, folder).map_err(|why| misuse("FILE", named, why))?;
        let plan = Plan::new(&specification)?;
        let fingerprint = plan.fingerprint(text);
        Ok(Sweep { plan, fingerprint })
    }

    /// How many cells it has.
    pub fn cells(&self) -> usize {
        self.plan.cells.len()
    }

    /// How many groups (machine, program, seed) share bounds.
    pub fn groups(&self) -> usize {
        self.plan.groups.len()
    }

    /// The group of a cell.
    pub fn group_of(&self, cell: usize) -> usize {
        self.plan.cells[cell].group
    }

    /// What a journal must be of, and a process that computes a part of the sweep: this specification, these traces and machines, this build.
    pub fn fingerprint(&self) -> &Value {
        &self.fingerprint
    }

    /// The journal of the table `output`, with what an earlier run had finished.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn journal(&self, output: &Path) -> Result<Journal> {
        Journal::open(&partial(output), &self.fingerprint)
    }

    /// The cells that are not finished.
    pub fn missing_cells(&self, journal: &Journal) -> Vec<usize> {
        (0..self.cells()).filter(|cell| !journal.has(*cell)).collect()
    }

    /// What is missing, as groups with cells of theirs to hand to [`Sweep::rows_of`]: few, so that a program runs once for many cells, and enough for
    /// `cores`.
    pub fn batches(&self, journal: &Journal, cores: usize) -> Vec<(usize, Vec<usize>)> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for cell in self.missing_cells(journal) {
            groups.entry(self.group_of(cell)).or_default().push(cell);
        }
        let parts = parts(groups.len(), cores.max(1));
        let mut batches = Vec::new();
        for (group, cells) in groups {
            // A batch whose group has no bounds yet runs them along.
            let most = machines_at_once(self.plan.groups[group].run.config.footprint).saturating_sub(2).max(1);
            let size = cells.len().div_ceil(parts).min(most);
            batches.extend(cells.chunks(size).map(|cells| (group, cells.to_vec())));
        }
        batches
    }

    /// The rows of some cells of a group, for which its program runs once, and the group's bounds, which are run along where they are not
    /// `known`.
    ///
    /// # Errors
    /// [`Error::Cell`] when a simulation fails, with the first cell that did.
    pub fn rows_of(&self, group: usize, cells: &[usize], known: Option<Bounds>) -> Result<(Bounds, Vec<Value>)> {
        let run = &self.plan.groups[group].run;
        let mut requests = match known {
            Some(_) => Vec::new(),
            None => Vec::from(bounding(&run.config).map_err(failed)?),
        };
        let own = requests.len();
        let of_cell = |number: usize, source| Error::Cell { number: number + 1, source: Box::new(source) };
        for &number in cells {
            let (group, cell, _) = job_of(&self.plan, number);
            let policy = cell.settings.build(&cell.policy).map_err(|error| of_cell(number, error))?;
            requests.push(RunRequest::new(group.config(cell.fast), policy));
        }
        let mut reports = run_together(requests, run.source.as_ref());
        let of_cells = reports.split_off(own);
        let bounds = match known {
            Some(bounds) => bounds,
            None => {
                let reports = reports.into_iter().collect::<std::result::Result<Vec<_>, _>>().map_err(failed)?;
                Bounds::of([&reports[0], &reports[1]])
            }
        };
        let row = |(&number, report): (&usize, std::result::Result<Report, SimError>)| {
            let (group, cell, job) = job_of(&self.plan, number);
            let mut report = report.map_err(|error| of_cell(number, failed(error)))?;
            report.compare_with(&bounds);
            group
                .made(&job, &cell.settings)
                .stamp(&Cell::new(&job, &report))
                .map_err(|error| of_cell(number, error.into()))
        };
        let rows = cells.iter().zip(of_cells).map(row).collect::<Result<_>>()?;
        Ok((bounds, rows))
    }

    /// Runs what is missing, on all cores.
    ///
    /// # Errors
    /// As [`Sweep::rows_of`], when the journal cannot be written, and when `progress` asked to stop. What was finished is in the journal.
    pub fn run(&self, journal: &Journal, progress: &dyn Progress) -> Result<()> {
        progress.begin(self.cells() + self.groups(), journal.cells() + journal.all_bounds());
        let batches = self.batches(journal, rayon::current_num_threads());
        batches.into_par_iter().try_for_each(|(group, cells)| {
            unless_stopped(progress)?;
            let known = journal.bounds(group);
            let (bounds, rows) = self.rows_of(group, &cells, known)?;
            if known.is_none() && journal.add_bounds(group, bounds)? {
                progress.step();
            }
            for (cell, row) in cells.into_iter().zip(rows) {
                journal.add_cell(cell, &row)?;
                progress.step();
            }
            Ok(())
        })
    }

    /// The rows, in their order, each compared with first touch where that is part of the sweep.
    ///
    /// # Errors
    /// When one is missing.
    pub fn rows(&self, journal: &Journal) -> Result<Vec<Value>> {
        journal.rows(self.cells()).map(table::compared_with_first_touch)
    }

    /// Writes the table, whole, and removes the journal; how many bytes it has.
    ///
    /// # Errors
    /// When a cell is missing, or the file cannot be written.
    pub fn finish(&self, journal: Journal, output: &Path) -> Result<usize> {
        let bytes = Form::of(output)?.bytes(self.rows(&journal)?)?;
        terrace_files::write(output, &bytes).map_err(|source| Error::File {
            what: format!("{}: the table could not be written", output.display()),
            source,
        })?;
        journal.remove()?;
        Ok(bytes.len())
    }
}

/// The journal of an output.
pub fn partial(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// A cell as the job that a comparison would have of it.
fn job_of(plan: &Plan, number: usize) -> (&Settled, &CellPlan, Job) {
    let cell = &plan.cells[number];
    let group = &plan.groups[cell.group];
    let job = Job {
        workload: group.name.clone(),
        policy: cell.policy.clone(),
        fast_text: cell.fast_text.clone(),
        fast: cell.fast,
        seed: group.raw.seed,
    };
    (group, cell, job)
}
