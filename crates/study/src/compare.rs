//! A comparison: every policy on every workload and trace at every size, on all cores.
//!
//! In: [`SimCompareArguments`]. Out: cells, what they say together, and what made each. Must not: average anything itself;
//! `terrace_sim::compare` does.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use terrace_common::arguments::{BesideArguments, OneRunArguments, SimCompareArguments};
use terrace_sim::compare::{Cell, Course, Job, Matrix, Summary, compare_with_first_touch, summarise};
use terrace_sim::run::{Bounds, RunRequest, batches, bounding, machines_at_once, run_together};
use terrace_sim::{FastSize, Report, SimConfig};

use crate::Progress;
use crate::error::{Error, Result, misuse};
use crate::journal::on_all_cores;
use crate::options::{self, OneRun, Own, PolicySettings, command_of, failed};
use crate::provenance::Provenance;

/// The policy that moves nothing: what managing memory must beat.
const FIRST_TOUCH: &str = terrace_policies::first_touch::INFO.name;

/// A comparison that ran.
pub struct Comparison {
    /// The cells.
    pub cells: Vec<Cell>,
    /// What they say together.
    pub summary: Summary,
    /// The course of the runs of the first seed.
    pub courses: Vec<Course>,
    /// What made each cell.
    pub made: Vec<Provenance>,
}

impl Comparison {
    /// The cells, each with what made it.
    ///
    /// # Errors
    /// When a cell is no JSON, which does not happen.
    pub fn rows(&self) -> Result<Vec<Value>> {
        self.cells.iter().zip(&self.made).map(|(cell, made)| Ok(made.stamp(cell)?)).collect()
    }

    /// All of it, with what the cells have in common; `made` says which command asked for it.
    ///
    /// # Errors
    /// As [`Comparison::rows`].
    pub fn as_json(&self, mut made: Provenance) -> Result<Value> {
        for cell in &self.made {
            made.settings.extend(cell.settings.clone());
        }
        if let Some(first) = self.made.first() {
            made.machine.clone_from(&first.machine);
            made.machine_hash.clone_from(&first.machine_hash);
            made.workload_settings.clone_from(&first.workload_settings);
            made.scale = first.scale.filter(|scale| self.made.iter().all(|cell| cell.scale == Some(*scale)));
            made.threads = first.threads.filter(|threads| self.made.iter().all(|cell| cell.threads == Some(*threads)));
            made.pages =
                first.pages.clone().filter(|pages| self.made.iter().all(|cell| cell.pages.as_ref() == Some(pages)));
            (made.size_bytes, made.operations) = (first.size_bytes, first.operations);
        }
        Ok(made
            .stamp(&json!({ "cells": self.rows()?, "geomean": self.summary.geomean, "duels": self.summary.duels }))?)
    }
}

/// A program of a comparison.
#[derive(Clone)]
pub struct Program {
    /// Its name in the table.
    name: String,
    /// The trace, if it is none of the catalogue's.
    trace: Option<PathBuf>,
}

/// Workloads and traces in the order in which they were named. A trace is called by its file, or by its path where another has that name.
///
/// # Errors
/// When one is named twice, or an option of workloads is given for traces alone: misuse.
pub fn programs(arguments: &SimCompareArguments) -> Result<Vec<Program>> {
    if arguments.workloads.is_empty() {
        if let Some(count) = arguments.model.operations {
            return Err(misuse("--operations", &count.to_string(), "a trace is replayed whole; it is for --workloads"));
        }
        if let Some(text) = arguments.model.workload_settings.first() {
            return Err(misuse("--workload-set", text, "a trace has no options; it is for --workloads"));
        }
    }
    let mut programs: Vec<Program> =
        arguments.workloads.iter().map(|name| Program { name: name.clone(), trace: None }).collect();
    let short = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for path in &arguments.trace {
        let name = short(path);
        let others = arguments.trace.iter().filter(|other| short(other) == name).count();
        let taken = others > 1 || arguments.workloads.contains(&name);
        let name = if taken { path.display().to_string() } else { name };
        if programs.iter().any(|program| program.name == name) {
            return Err(misuse("--trace", &name, "it is named twice"));
        }
        programs.push(Program { name, trace: Some(path.clone()) });
    }
    Ok(programs)
}

/// A program with a seed: what shares bounds.
pub struct Settled {
    /// The program.
    pub name: String,
    /// What was asked for.
    pub raw: OneRunArguments,
    /// The same, checked.
    pub run: OneRun,
}

impl Settled {
    /// Checks it.
    ///
    /// # Errors
    /// What is wrong: misuse.
    pub fn new(arguments: &SimCompareArguments, own: &Own, program: &Program, seed: u64) -> Result<Settled> {
        let settings = PolicySettings::parse(&arguments.model.settings, &arguments.policies, own)?;
        let first = |list: &[String]| list.first().cloned().unwrap_or_default();
        let mut raw = OneRunArguments {
            workload: program.trace.is_none().then(|| program.name.clone()),
            trace: program.trace.clone(),
            max_footprint: arguments.max_footprint.clone(),
            policy: first(&arguments.policies),
            fast: first(&arguments.fast),
            seed,
            beside: BesideArguments { beside: None, every: 1 },
            model: arguments.model.clone(),
        };
        let run = OneRun::prepare(&raw, &arguments.policies, settings)?;
        // One policy may want the MMU, and then each runs with it; alone it would not.
        raw.model.mmu.cores = run.config.mmu.map(|mmu| mmu.cores);
        Ok(Settled { name: program.name.clone(), raw, run })
    }

    /// The configuration with fast memory of a size.
    pub fn config(&self, fast: FastSize) -> SimConfig {
        SimConfig { fast, ..self.run.config.clone() }
    }

    /// What makes the cell of a job under a policy with these settings.
    pub fn made(&self, job: &Job, settings: &PolicySettings) -> Provenance {
        let mut raw = OneRunArguments { policy: job.policy.clone(), fast: job.fast_text.clone(), ..self.raw.clone() };
        raw.model.settings = settings.given(&job.policy);
        // No command repeats a policy that only the caller has.
        let command = if settings.is_own(&job.policy) { String::new() } else { command_of(&raw) };
        let made = Provenance { command, ..self.run.made.clone() };
        settings.made(made, &job.policy)
    }
}

/// One machine under a program: with everything fast, with everything slow, or that of a job by its number.
#[derive(Clone, Copy)]
enum Run {
    Fast,
    Slow,
    Job(usize),
}

impl Settled {
    /// Runs the program once, on all these machines.
    fn together(&self, runs: &[(usize, Run)], jobs: &[&Job]) -> Result<Vec<Report>> {
        let [fast, slow] = bounding(&self.run.config).map_err(failed)?;
        let (mut fast, mut slow) = (Some(fast), Some(slow));
        let request = |(_, run): &(usize, Run)| match run {
            Run::Fast => Ok(fast.take().expect("it is asked for once")),
            Run::Slow => Ok(slow.take().expect("it is asked for once")),
            Run::Job(number) => {
                let job = jobs[*number];
                Ok(RunRequest::new(self.config(job.fast), self.run.settings.build(&job.policy)?))
            }
        };
        let requests = runs.iter().map(request).collect::<Result<Vec<_>>>()?;
        run_together(requests, self.run.source.as_ref()).into_iter().map(|report| report.map_err(failed)).collect()
    }
}

/// Runs a comparison on all cores. A program runs once for all policies and sizes, or once for each core's part of them. `own` are policies beside the registered ones.
///
/// # Errors
/// When what was asked for makes no sense (misuse), a run fails, or `progress` asked to stop.
pub fn compare(arguments: &SimCompareArguments, own: &Own, progress: &dyn Progress) -> Result<Comparison> {
    let programs = programs(arguments)?;
    let fast: Result<Vec<_>, Error> =
        arguments.fast.iter().map(|text| Ok((text.clone(), options::fast_size(text)?))).collect();
    let matrix = Matrix {
        workloads: programs.iter().map(|program| program.name.clone()).collect(),
        policies: arguments.policies.clone(),
        fast: fast?,
        seeds: (arguments.first_seed..arguments.first_seed + arguments.seeds).collect(),
    };
    let pairs: Vec<(&Program, u64)> =
        programs.iter().flat_map(|program| matrix.seeds.iter().map(move |seed| (program, *seed))).collect();
    let settled: Result<Vec<Settled>, Error> =
        pairs.into_iter().map(|(program, seed)| Settled::new(arguments, own, program, seed)).collect();
    let settled = settled?;
    for (one, (text, fast)) in settled.iter().flat_map(|one| matrix.fast.iter().map(move |fast| (one, fast))) {
        let refused = |error| misuse("--fast", text, format!("{}: {error}", one.name));
        one.config(*fast).capacities().map_err(refused)?;
    }
    let jobs = matrix.jobs();
    // What every cell is compared with, of the settings for which it was not asked for.
    let reference = Matrix { policies: vec![FIRST_TOUCH.to_owned()], ..matrix.clone() };
    let asked = matrix.policies.iter().any(|policy| policy == FIRST_TOUCH);
    let reference_jobs = if asked { Vec::new() } else { reference.jobs() };
    progress.begin(settled.len() + jobs.len() + reference_jobs.len(), 0);
    let all: Vec<&Job> = jobs.iter().chain(&reference_jobs).collect();
    // Each run with the number of its program.
    let runs_of = |(place, one): (usize, &Settled)| {
        let own = |job: &Job| one.name == job.workload && one.raw.seed == job.seed;
        let numbers = (0..all.len()).filter(|number| own(all[*number]));
        let runs = [Run::Fast, Run::Slow].into_iter().chain(numbers.map(Run::Job)).map(|run| (place, run));
        (machines_at_once(one.run.config.footprint), runs.collect())
    };
    let batches = batches(settled.iter().enumerate().map(runs_of), rayon::current_num_threads());
    let reports = on_all_cores(batches, progress, |runs| {
        let reports = settled[runs[0].0].together(&runs, &all)?;
        (0..runs.iter().filter(|(_, run)| !matches!(run, Run::Slow)).count()).for_each(|_| progress.step());
        Ok(runs.into_iter().zip(reports).collect::<Vec<_>>())
    })?;
    let mut bounds: Vec<[Option<Report>; 2]> = settled.iter().map(|_| [None, None]).collect();
    let mut of_jobs: Vec<Option<(usize, Report)>> = all.iter().map(|_| None).collect();
    for ((place, run), report) in reports.into_iter().flatten() {
        match run {
            Run::Fast => bounds[place][0] = Some(report),
            Run::Slow => bounds[place][1] = Some(report),
            Run::Job(number) => of_jobs[number] = Some((place, report)),
        }
    }
    let (mut cells, mut made, mut courses) = (Vec::new(), Vec::new(), Vec::new());
    for (job, found) in all.iter().zip(of_jobs) {
        let (place, mut report) = found.expect("every job's program and seed were settled");
        let one = &settled[place];
        let [Some(fast), Some(slow)] = &bounds[place] else { unreachable!("every program's bounds were run") };
        report.compare_with(&Bounds::of([fast, slow]));
        cells.push(Cell::new(job, &report));
        if made.len() < jobs.len() {
            made.push(one.made(job, &one.run.settings));
            if job.seed == arguments.first_seed {
                courses.push(Course { job: (*job).clone(), series: report.series, heat_map: report.heat_map });
            }
        }
    }
    let mut references = cells.split_off(jobs.len());
    references.extend(cells.iter().filter(|cell| cell.policy == FIRST_TOUCH).cloned());
    compare_with_first_touch(&mut cells, &references);
    let summary = summarise(&cells, 1);
    Ok(Comparison { cells, summary, courses, made })
}
