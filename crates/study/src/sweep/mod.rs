//! A sweep: many machines, programs, policies, settings, sizes and seeds, through interruptions, into one table.
//!
//! In: a specification. Out: the bytes of a table with a row a cell, and on the way a journal of what is finished. Must not: compute a
//! finished cell twice, or give other bytes after an interruption or by how its cells were dealt out.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use terrace_sim::compare::{Cell, Job};
use terrace_sim::run::{Bounds, RunRequest, batches, bounding, machines_at_once, run_together};
use terrace_sim::{Report, SimError};

mod specification;
mod table;

use specification::{CellPlan, Plan, Specification};
pub use table::Form;

use crate::Progress;
use crate::compare::Settled;
use crate::error::{Error, Result, misuse};
use crate::journal::{Journal, on_all_cores};
use crate::options::failed;

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
        let foreign = "it is the journal of another sweep, or of another build of Terrace";
        Journal::open("--output", output, &self.fingerprint, "sweep", foreign)
    }

    /// The bounds of a group that the journal has.
    ///
    /// # Errors
    /// As [`Journal::get`].
    pub fn bounds(&self, journal: &Journal, group: usize) -> Result<Option<Bounds>> {
        let found = journal.get::<[f64; 2]>(&format!("bounds {group}"))?;
        Ok(found.map(|[all_fast_seconds, all_slow_seconds]| Bounds { all_fast_seconds, all_slow_seconds }))
    }

    /// Adds the bounds of a group. Returns false where another part of the group has: they are the same.
    ///
    /// # Errors
    /// As [`Journal::put`].
    pub fn add_bounds(&self, journal: &Journal, group: usize, bounds: Bounds) -> Result<bool> {
        journal.put(format!("bounds {group}"), &[bounds.all_fast_seconds, bounds.all_slow_seconds])
    }

    /// What is missing, as groups with cells of theirs to hand to [`Sweep::rows_of`]: few, so that a program runs once for many cells, and enough for
    /// `cores`.
    pub fn batches(&self, journal: &Journal, cores: usize) -> Vec<(usize, Vec<usize>)> {
        let mut groups: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for cell in journal.missing(self.cells()) {
            groups.entry(self.group_of(cell)).or_default().push(cell);
        }
        // A batch whose group has no bounds yet runs them along.
        let most =
            |group: usize| machines_at_once(self.plan.groups[group].run.config.footprint).saturating_sub(2).max(1);
        let programs = groups.into_iter().map(|(group, cells)| (most(group), cells));
        batches(programs, cores).into_iter().map(|cells| (self.group_of(cells[0]), cells)).collect()
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
        progress.begin(self.cells() + self.groups(), journal.results());
        on_all_cores(self.batches(journal, rayon::current_num_threads()), progress, |(group, cells)| {
            let known = self.bounds(journal, group)?;
            let (bounds, rows) = self.rows_of(group, &cells, known)?;
            if known.is_none() && self.add_bounds(journal, group, bounds)? {
                progress.step();
            }
            for (cell, row) in cells.into_iter().zip(rows) {
                journal.put_cell(cell, &row)?;
                progress.step();
            }
            Ok(())
        })
        .map(drop)
    }

    /// The rows, in their order, each compared with first touch where that is part of the sweep.
    ///
    /// # Errors
    /// When one is missing.
    pub fn rows(&self, journal: &Journal) -> Result<Vec<Value>> {
        journal.cells(self.cells()).map(table::compared_with_first_touch)
    }

    /// Writes the table, whole, and removes the journal; how many bytes it has.
    ///
    /// # Errors
    /// When a cell is missing, or the file cannot be written.
    pub fn finish(&self, journal: Journal, output: &Path) -> Result<usize> {
        let bytes = Form::of(output)?.bytes(self.rows(&journal)?)?;
        journal.finish(output, &bytes, "the table could not be written")?;
        Ok(bytes.len())
    }
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
