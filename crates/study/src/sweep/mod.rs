//! A sweep: many machines, programs, policies, settings, sizes and seeds, through interruptions, into one table.
//!
//! In: a specification. Out: the bytes of a table with a row a cell, and on the way a journal of what is finished. Must not: compute a
//! finished cell twice, or give other bytes after an interruption or by how its cells were dealt out.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde_json::Value;
use terrace_sim::compare::{Cell, Job};
use terrace_sim::run::{Bounds, bounds, run_alone};

mod journal;
mod specification;
mod table;

pub use journal::Journal;
use specification::{Plan, Specification};
pub use table::Form;

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

    /// The groups whose bounds are still needed.
    pub fn missing_bounds(&self, journal: &Journal) -> Vec<usize> {
        let wanted = (0..self.groups()).filter(|group| journal.bounds(*group).is_none());
        wanted.filter(|group| self.plan.cells_of(*group).any(|cell| !journal.has(cell))).collect()
    }

    /// The cells that are not finished.
    pub fn missing_cells(&self, journal: &Journal) -> Vec<usize> {
        (0..self.cells()).filter(|cell| !journal.has(*cell)).collect()
    }

    /// Everything fast and everything slow, of a group: they depend on neither policy nor size.
    ///
    /// # Errors
    /// When the simulation fails.
    pub fn bounds_of(&self, group: usize) -> Result<Bounds> {
        let run = &self.plan.groups[group].run;
        bounds(&run.config, run.source.as_ref()).map_err(failed)
    }

    /// The row of a cell, from its group's bounds.
    ///
    /// # Errors
    /// [`Error::Cell`] when the simulation fails.
    pub fn row(&self, cell: usize, known: &Bounds) -> Result<Value> {
        one(&self.plan, cell, known).map_err(|source| Error::Cell { number: cell + 1, source: Box::new(source) })
    }

    /// Runs what is missing, on all cores.
    ///
    /// # Errors
    /// As [`Sweep::row`], when the journal cannot be written, and when `progress` asked to stop. What was finished is in the journal.
    pub fn run(&self, journal: &Journal, progress: &dyn Progress) -> Result<()> {
        progress.begin(self.cells() + self.groups(), journal.cells() + journal.all_bounds());
        self.missing_bounds(journal).into_par_iter().try_for_each(|group| {
            unless_stopped(progress)?;
            journal.add_bounds(group, self.bounds_of(group)?)?;
            progress.step();
            Ok::<_, Error>(())
        })?;
        self.missing_cells(journal).into_par_iter().try_for_each(|cell| {
            unless_stopped(progress)?;
            let known = journal.bounds(self.group_of(cell)).ok_or(Error::NotRun(cell + 1))?;
            journal.add_cell(cell, &self.row(cell, &known)?)?;
            progress.step();
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

fn one(plan: &Plan, number: usize, known: &Bounds) -> Result<Value> {
    let cell = &plan.cells[number];
    let group = &plan.groups[cell.group];
    let job = Job {
        workload: group.name.clone(),
        policy: cell.policy.clone(),
        fast_text: cell.fast_text.clone(),
        fast: cell.fast,
        seed: group.raw.seed,
    };
    let policy = cell.settings.build(&cell.policy)?;
    let mut report = run_alone(&group.config(cell.fast), group.run.source.as_ref(), policy).map_err(failed)?;
    report.compare_with(known);
    group.made(&job, &cell.settings).stamp(&Cell::new(&job, &report))
}
