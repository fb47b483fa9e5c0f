//! `terrace sim compare`: every policy on every workload at every size, on all cores.
//!
//! In: lists of workloads, traces and policies. Out: cells and what they say together, as text, JSON, CSV or a page. Must not: average anything
//! itself; `terrace_sim::compare` does.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde_json::{Value, json};
use terrace_sim::compare::{Cell, Course, DRAW, Job, Matrix, Summary, compare_with_first_touch, summarise};
use terrace_sim::run::{Bounds, bounds, run_alone};
use terrace_sim::{FastSize, SimConfig};

use super::options::{self, OneRun, PolicySettings, command_of, failed};
use crate::args::{BesideArguments, OneRunArguments, SimCompareArguments};
use crate::options::misuse;
use crate::provenance::Provenance;
use crate::report::units;

/// The policy that moves nothing: what managing memory must beat.
const FIRST_TOUCH: &str = terrace_policies::first_touch::INFO.name;

/// A comparison that ran.
pub(crate) struct Comparison {
    pub cells: Vec<Cell>,
    pub summary: Summary,
    /// The course of the runs of the first seed.
    pub courses: Vec<Course>,
    /// What made each cell.
    pub made: Vec<Provenance>,
}

impl Comparison {
    /// The cells, each with what made it.
    pub(crate) fn rows(&self) -> anyhow::Result<Vec<Value>> {
        self.cells.iter().zip(&self.made).map(|(cell, made)| made.stamp(cell)).collect()
    }

    /// All of it, with what the cells have in common.
    pub(crate) fn as_json(&self) -> anyhow::Result<Value> {
        let mut made = Provenance::here();
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
        made.stamp(&json!({ "cells": self.rows()?, "geomean": self.summary.geomean, "duels": self.summary.duels }))
    }
}

pub(super) fn run(arguments: &SimCompareArguments) -> anyhow::Result<ExitCode> {
    let comparison = compare(arguments)?;
    if let Some(path) = &arguments.csv {
        write_csv(path, &comparison.rows()?)?;
    }
    if let Some(directory) = &arguments.report {
        let json = comparison.as_json()?;
        crate::report::sim::write_comparison(
            directory,
            &json,
            &comparison.cells,
            &comparison.summary,
            &comparison.courses,
        )?;
    }
    if arguments.json {
        super::super::print_json(&comparison.as_json()?)?;
    } else {
        super::super::print_text(&text(&comparison))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A program of a comparison.
#[derive(Clone)]
pub(crate) struct Program {
    /// Its name in the table.
    name: String,
    /// The trace, if it is none of the catalogue's.
    trace: Option<PathBuf>,
}

/// Workloads and traces in the order in which they were named. A trace is called by its file, or by its path where another has that name.
pub(crate) fn programs(arguments: &SimCompareArguments) -> anyhow::Result<Vec<Program>> {
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
pub(crate) struct Settled {
    pub name: String,
    pub raw: OneRunArguments,
    pub run: OneRun,
}

impl Settled {
    pub(crate) fn new(arguments: &SimCompareArguments, program: &Program, seed: u64) -> anyhow::Result<Settled> {
        let settings = PolicySettings::parse(&arguments.model.settings, &arguments.policies)?;
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

    pub(crate) fn config(&self, fast: FastSize) -> SimConfig {
        SimConfig { fast, ..self.run.config.clone() }
    }

    /// What makes the cell of a job under a policy with these settings.
    pub(crate) fn made(&self, job: &Job, settings: &PolicySettings) -> Provenance {
        let mut raw = OneRunArguments { policy: job.policy.clone(), fast: job.fast_text.clone(), ..self.raw.clone() };
        raw.model.settings = settings.given(&job.policy);
        let made = Provenance { command: command_of(&raw), ..self.run.made.clone() };
        settings.made(made, &job.policy)
    }
}

pub(crate) fn compare(arguments: &SimCompareArguments) -> anyhow::Result<Comparison> {
    let programs = programs(arguments)?;
    let fast: Result<Vec<_>, anyhow::Error> =
        arguments.fast.iter().map(|text| Ok((text.clone(), options::fast_size(text)?))).collect();
    let matrix = Matrix {
        workloads: programs.iter().map(|program| program.name.clone()).collect(),
        policies: arguments.policies.clone(),
        fast: fast?,
        seeds: (arguments.first_seed..arguments.first_seed + arguments.seeds).collect(),
    };
    let pairs: Vec<(&Program, u64)> =
        programs.iter().flat_map(|program| matrix.seeds.iter().map(move |seed| (program, *seed))).collect();
    let settled: Result<Vec<Settled>, anyhow::Error> =
        pairs.into_iter().map(|(program, seed)| Settled::new(arguments, program, seed)).collect();
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
    let bar = progress(settled.len() + jobs.len() + reference_jobs.len());
    let with_bounds: Result<Vec<(&Settled, Bounds)>, anyhow::Error> = settled
        .par_iter()
        .map(|one| {
            let bounds = bounds(&one.run.config, one.run.source.as_ref()).map_err(failed)?;
            bar.inc(1);
            Ok((one, bounds))
        })
        .collect();
    let with_bounds = with_bounds?;
    let run_one = |job: &Job| -> anyhow::Result<(Cell, (Provenance, Option<Course>))> {
        let found = with_bounds.iter().find(|(one, _)| one.name == job.workload && one.raw.seed == job.seed);
        let (one, bounds) = found.context("every job's program and seed were settled")?;
        let policy = one.run.settings.build(&job.policy)?;
        let mut report = run_alone(&one.config(job.fast), one.run.source.as_ref(), policy).map_err(failed)?;
        report.compare_with(bounds);
        bar.inc(1);
        let cell = Cell::new(job, &report);
        let course = || Course { job: job.clone(), series: report.series, heat_map: report.heat_map };
        Ok((cell, (one.made(job, &one.run.settings), (job.seed == arguments.first_seed).then(course))))
    };
    let all = |jobs: &[Job]| -> anyhow::Result<Vec<_>> { jobs.par_iter().map(run_one).collect() };
    let (mut cells, rest): (Vec<Cell>, Vec<_>) = all(&jobs)?.into_iter().unzip();
    let (made, courses): (Vec<Provenance>, Vec<_>) = rest.into_iter().unzip();
    let mut references: Vec<Cell> = all(&reference_jobs)?.into_iter().map(|(cell, _)| cell).collect();
    references.extend(cells.iter().filter(|cell| cell.policy == FIRST_TOUCH).cloned());
    bar.finish_and_clear();
    compare_with_first_touch(&mut cells, &references);
    let summary = summarise(&cells, 1);
    Ok(Comparison { cells, summary, courses: courses.into_iter().flatten().collect(), made })
}

/// A bar on stderr when that is a terminal, and nothing otherwise.
pub(crate) fn progress(total: usize) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total as u64), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {elapsed} gone, {eta} to go") {
        bar.set_style(style);
    }
    bar
}

fn text(comparison: &Comparison) -> String {
    let summary = &comparison.summary;
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string does not fail");
    line("Geometric mean of the gain over all-slow memory, simulated, with its 95 % interval".to_owned());
    line(format!("  {:16} {:>7} {:>17} {:>6} {:>5}", "policy", "gain", "interval", "cells", "best"));
    for mean in &summary.geomean {
        let interval = format!("{:.3} to {:.3}", mean.low, mean.high);
        let best = if mean.bound { "bound".to_owned() } else { mean.best.to_string() };
        line(format!(
            "  {:16} {:>7.3} {interval:>17} {:>6} {best:>5}",
            mean.policy, mean.gain_over_all_slow, mean.cells
        ));
    }
    // All pairs are in the JSON and, as a table, on the page; here, what a reader asks first.
    let leader = summary.ranking().next().map_or("", |mean| mean.policy.as_str());
    let mut duels = summary.duels.iter().filter(|duel| duel.policy == leader).peekable();
    if duels.peek().is_some() {
        line(format!(
            "\n{leader} against the others, by setting (workload and fast memory); within {:.0} % is a draw",
            DRAW * 100.0
        ));
        line(format!(
            "  {:16} {:>4} {:>6} {:>5} {:>7} {:>17}",
            "against", "wins", "losses", "draws", "ratio", "interval"
        ));
    }
    for duel in duels {
        let interval = format!("{:.3} to {:.3}", duel.low, duel.high);
        line(format!(
            "  {:16} {:>4} {:>6} {:>5} {:>7.3} {interval:>17}",
            duel.against, duel.wins, duel.losses, duel.draws, duel.ratio
        ));
    }
    line("\nCells".to_owned());
    line(format!(
        "  {:16} {:16} {:>6} {:>4} {:>7} {:>8} {:>6} {:>11} {:>11} {:>9}",
        "workload", "policy", "fast", "seed", "gain", "slowdown", "hits", "promoted", "demoted", "failed"
    ));
    for cell in &comparison.cells {
        line(format!(
            "  {:16} {:16} {:>6} {:>4} {:>7.3} {:>8.3} {:>6} {:>11} {:>11} {:>9}",
            cell.workload,
            cell.policy,
            cell.fast,
            cell.seed,
            cell.gain_over_all_slow,
            cell.slowdown_vs_all_fast,
            units::percent(cell.fast_hit_share),
            units::count(cell.promoted_pages),
            units::count(cell.demoted_pages),
            units::count(cell.failed_promotions)
        ));
    }
    out
}

/// The columns of the CSV, in their order: all keys of a cell, and then what made it.
pub(crate) const COLUMNS: [&str; 31] = [
    "workload",
    "policy",
    "machine",
    "fast",
    "fast_share",
    "seed",
    "scale",
    "fast_bytes",
    "footprint_bytes",
    "seconds",
    "slowdown_vs_all_fast",
    "gain_over_all_slow",
    "gain_over_first_touch",
    "fast_hit_share",
    "promoted_pages",
    "demoted_pages",
    "failed_promotions",
    "management_seconds",
    "metadata_bytes_per_page",
    "schema_version",
    "version",
    "commit",
    "command",
    "machine_hash",
    "workload_settings",
    "trace_hash",
    "size_bytes",
    "operations",
    "settings",
    "threads",
    "pages",
];

fn write_csv(path: &Path, rows: &[Value]) -> anyhow::Result<()> {
    terrace_files::write(path, csv_table(rows))
        .with_context(|| format!("{}: the table could not be written", path.display()))
}

/// Rows as CSV, with the names of the columns first.
pub(crate) fn csv_table(rows: &[Value]) -> String {
    let mut out = COLUMNS.join(",") + "\n";
    for row in rows {
        out += &(COLUMNS.iter().map(|column| csv_field(&row[*column])).collect::<Vec<_>>().join(",") + "\n");
    }
    out
}

/// A value as a field (RFC 4180); what is not known is empty, an object is JSON.
fn csv_field(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(csv_field(&json!("a, \"b\"")), "\"a, \"\"b\"\"\"");
        assert_eq!(csv_field(&json!({ "a": 1 })), "\"{\"\"a\"\":1}\"");
        assert_eq!((csv_field(&Value::Null), csv_field(&json!(1.5))), (String::new(), "1.5".to_owned()));
    }
}
