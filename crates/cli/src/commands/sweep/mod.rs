//! `terrace sweep`: many machines, programs, policies, settings, sizes and seeds on all cores, through interruptions, into one table.
//!
//! In: a specification. Out: a table with a row a cell, and on the way a journal of what is finished. Must not: leave a table that is not
//! whole, compute a finished cell twice, or give other bytes after an interruption.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde_json::json;
use terrace_sim::compare::{Cell, Job};
use terrace_sim::run::{Bounds, bounds, run_alone};

use super::sim::options::failed;
use crate::args::SweepArguments;
use crate::options::misuse;
use crate::provenance::Provenance;
use crate::report::units;

mod journal;
mod specification;
mod table;

use journal::Journal;
use specification::{Plan, Specification};
use table::Form;

/// The longest specification.
const LONGEST: u64 = 1 << 20;

pub(super) fn run(arguments: &SweepArguments) -> anyhow::Result<ExitCode> {
    let form = Form::of(&arguments.output)?;
    let named = arguments.file.display().to_string();
    let text =
        terrace_files::read_to_string(&arguments.file, LONGEST).map_err(|error| misuse("FILE", &named, error))?;
    let folder = arguments.file.parent().unwrap_or(Path::new(""));
    let specification = Specification::parse(&text, folder).map_err(|why| misuse("FILE", &named, why))?;
    let plan = Plan::new(&specification)?;
    let partial = partial(&arguments.output);
    let journal = Journal::open(&partial, &plan.fingerprint(&text))?;
    let resumed = journal.cells();
    if resumed > 0 {
        eprintln!("terrace: {}: goes on after {} cells", partial.display(), units::count(resumed as u64));
    }
    let began = Instant::now();
    let progress = Progress::new(plan.cells.len() + plan.groups.len(), resumed + journal.all_bounds());
    run_bounds(&plan, &journal, &progress)?;
    run_cells(&plan, &journal, &progress)?;
    progress.bar.finish_and_clear();
    let rows = journal.rows(plan.cells.len())?;
    let bytes = form.bytes(table::compared_with_first_touch(rows))?;
    terrace_files::write(&arguments.output, &bytes)
        .with_context(|| format!("{}: the table could not be written", arguments.output.display()))?;
    journal.remove()?;
    let (seconds, cells) = (began.elapsed().as_secs_f64(), plan.cells.len());
    if arguments.json {
        super::print_json(&Provenance::here().stamp(&json!({
            "file": arguments.output, "cells": cells, "resumed_cells": resumed, "computed_cells": cells - resumed,
            "seconds": seconds, "bytes": bytes.len(),
        }))?)?;
    } else {
        super::print_text(&format!(
            "{}: {} cells, {}; {} computed in {}\n",
            arguments.output.display(),
            units::count(cells as u64),
            units::bytes(bytes.len() as u64),
            units::count((cells - resumed) as u64),
            units::seconds(seconds)
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The journal of an output.
fn partial(output: &Path) -> PathBuf {
    let mut name = output.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

/// Everything fast and everything slow, of each group that has cells left: they depend on neither policy nor size.
fn run_bounds(plan: &Plan, journal: &Journal, progress: &Progress) -> anyhow::Result<()> {
    let wanted = (0..plan.groups.len()).filter(|group| journal.bounds(*group).is_none());
    let left = wanted.filter(|group| plan.cells_of(*group).any(|cell| !journal.has(cell)));
    left.collect::<Vec<_>>().into_par_iter().try_for_each(|group| {
        let run = &plan.groups[group].run;
        let found = bounds(&run.config, run.source.as_ref()).map_err(failed)?;
        journal.add_bounds(group, found)?;
        progress.step();
        Ok(())
    })
}

fn run_cells(plan: &Plan, journal: &Journal, progress: &Progress) -> anyhow::Result<()> {
    let left: Vec<usize> = (0..plan.cells.len()).filter(|cell| !journal.has(*cell)).collect();
    left.into_par_iter().try_for_each(|number| {
        let known = journal.bounds(plan.cells[number].group).context("the bounds of every group were run")?;
        let row = one(plan, number, &known).with_context(|| format!("cell {}", number + 1))?;
        journal.add_cell(number, &row)?;
        progress.step();
        Ok(())
    })
}

fn one(plan: &Plan, number: usize, known: &Bounds) -> anyhow::Result<serde_json::Value> {
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

/// How far it is: a bar on a terminal, and elsewhere a line now and then.
struct Progress {
    bar: ProgressBar,
    began: Instant,
    done_before: usize,
    told: std::sync::Mutex<Instant>,
}

/// Time between two lines where there is no terminal.
const LINES: std::time::Duration = std::time::Duration::from_secs(10);

impl Progress {
    fn new(total: usize, done: usize) -> Progress {
        let bar =
            ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr()).with_position(done as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {elapsed} elapsed, {eta} left") {
            bar.set_style(style);
        }
        bar.reset_eta();
        let now = Instant::now();
        Progress { bar, began: now, done_before: done, told: std::sync::Mutex::new(now) }
    }

    fn step(&self) {
        self.bar.inc(1);
        if !self.bar.is_hidden() {
            return;
        }
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if told.elapsed() < LINES {
            return;
        }
        *told = Instant::now();
        let (done, total) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let elapsed = self.began.elapsed().as_secs_f64();
        let computed = done.saturating_sub(self.done_before as u64).max(1);
        let left = elapsed / computed as f64 * total.saturating_sub(done) as f64;
        eprintln!("terrace: {done} of {total} runs, {elapsed:.0} s elapsed, about {left:.0} s left");
    }
}
