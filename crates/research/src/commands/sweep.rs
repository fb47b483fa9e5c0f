//! `terrace sweep`: many machines, programs, policies, settings, sizes and seeds on all cores, through interruptions, into one table.
//!
//! In: a specification's file. Out: a table with a row a cell. Must not: run a cell itself: `terrace_study::sweep` does, and this shows how
//! far it is.

use std::path::Path;
use std::time::Instant;
use terrace_common::say;

use indicatif::ProgressBar;
use serde_json::json;
use terrace_study::sweep::{Form, Sweep};

use crate::args::SweepArguments;
use crate::options::misuse;
use crate::provenance::Provenance;
use crate::report::units;
use crate::terminal::bar;

/// The longest specification.
const LONGEST: u64 = 1 << 20;

pub(super) fn run(arguments: &SweepArguments) -> anyhow::Result<()> {
    Form::of(&arguments.output)?;
    let named = arguments.file.display().to_string();
    let text =
        terrace_files::read_to_string(&arguments.file, LONGEST).map_err(|error| misuse("FILE", &named, error))?;
    let sweep = Sweep::new(&text, &named, arguments.file.parent().unwrap_or(Path::new("")))?;
    let journal = sweep.journal(&arguments.output)?;
    let resumed = journal.finished();
    if resumed > 0 {
        say!("terrace: {}: goes on after {} cells\n", journal.path().display(), units::count(resumed as u64));
    }
    let began = Instant::now();
    let progress = Progress::new(sweep.cells() + sweep.groups(), journal.results());
    sweep.run(&journal, &progress)?;
    progress.bar.finish_and_clear();
    let cells = sweep.cells();
    let bytes = sweep.finish(journal, &arguments.output)?;
    let seconds = began.elapsed().as_secs_f64();
    if arguments.json {
        super::print_json(&Provenance::here().stamp(&json!({
            "file": arguments.output, "cells": cells, "resumed_cells": resumed, "computed_cells": cells - resumed,
            "seconds": seconds, "bytes": bytes,
        }))?)
    } else {
        super::print_text(&format!(
            "{}: {} cells, {}; {} computed in {}\n",
            arguments.output.display(),
            units::count(cells as u64),
            units::bytes(bytes as u64),
            units::count((cells - resumed) as u64),
            units::seconds(seconds)
        ))
    }
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
        let bar = bar(total as u64, done as u64, "{bar:40} {pos}/{len} runs, {elapsed} elapsed, {eta} left");
        let now = Instant::now();
        Progress { bar, began: now, done_before: done, told: std::sync::Mutex::new(now) }
    }
}

impl terrace_study::Progress for Progress {
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
        say!("terrace: {done} of {total} runs, {elapsed:.0} s elapsed, about {left:.0} s left\n");
    }
}
