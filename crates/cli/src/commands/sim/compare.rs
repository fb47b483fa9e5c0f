//! `terrace sim compare`: every policy on every workload at every size, on all cores.
//!
//! In: checked lists. Out: cells and what they say together, as text, JSON, CSV or a page. Must not: average anything
//! itself; `terrace_sim::compare` does.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use terrace_core::units::Bytes;
use terrace_sim::compare::{Cell, Course, DRAW, Job, Matrix, Summary, compare_with_first_touch, summarise};
use terrace_sim::run::{Bounds, bounds, run_alone};
use terrace_sim::{SimConfig, WorkloadSource};

use super::options::{self, PolicySettings, failed};
use crate::args::SimCompareArguments;
use crate::report::units;

/// The policy that moves nothing: what managing memory must beat.
const FIRST_TOUCH: &str = terrace_policies::first_touch::INFO.name;

/// A comparison that ran.
#[derive(serde::Serialize)]
pub(crate) struct Comparison {
    pub cells: Vec<Cell>,
    #[serde(flatten)]
    pub summary: Summary,
    /// The course of the runs of the first seed.
    #[serde(skip)]
    pub courses: Vec<Course>,
}

pub(super) fn run(arguments: &SimCompareArguments) -> anyhow::Result<ExitCode> {
    let comparison = compare(arguments)?;
    if let Some(path) = &arguments.csv {
        write_csv(path, &comparison.cells)?;
    }
    if let Some(directory) = &arguments.report {
        crate::report::sim::write_comparison(directory, &comparison.cells, &comparison.summary, &comparison.courses)?;
    }
    if arguments.json {
        super::super::print_json(&comparison)?;
    } else {
        super::super::print_text(&text(&comparison))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(arguments: &SimCompareArguments) -> anyhow::Result<Comparison> {
    let model = &arguments.model;
    let settings = PolicySettings::parse(&model.settings, &arguments.policies)?;
    let machine = options::machine(&model.machine)?;
    let scale = options::workload_scale(model.scale)?;
    let mmu = options::mmu(model, &arguments.policies, &settings, model.threads, &machine)?;
    let fast: Result<Vec<_>, anyhow::Error> =
        arguments.fast.iter().map(|text| Ok((text.clone(), options::fast_size(text)?))).collect();
    let matrix = Matrix {
        workloads: arguments.workloads.clone(),
        policies: arguments.policies.clone(),
        fast: fast?,
        seeds: (arguments.first_seed..arguments.first_seed + arguments.seeds).collect(),
    };
    // A configuration and a source for each workload and seed: what shares bounds.
    let mut settled: Vec<(String, u64, WorkloadSource)> = Vec::new();
    for workload in &matrix.workloads {
        for seed in &matrix.seeds {
            settled.push((workload.clone(), *seed, options::workload_source(workload, model, *seed)?));
        }
    }
    let config = |seed: u64, fast| {
        let size: Bytes =
            settled.first().map_or(Bytes::ZERO, |(_, _, source)| Bytes::new(source.parameters.size_bytes));
        let mut config = SimConfig::new(machine.clone(), size, fast);
        (config.seed, config.scale, config.mmu) = (seed, scale, mmu);
        config.pages = options::pages(&model.pages, scale, mmu.is_some());
        config
    };
    for (text, fast) in &matrix.fast {
        config(1, *fast).capacities().map_err(|error| crate::options::misuse("--fast", text, error))?;
    }
    let jobs = matrix.jobs();
    // What every cell is compared with, of the settings for which it was not asked for.
    let reference = Matrix { policies: vec![FIRST_TOUCH.to_owned()], ..matrix.clone() };
    let asked = matrix.policies.iter().any(|policy| policy == FIRST_TOUCH);
    let reference_jobs = if asked { Vec::new() } else { reference.jobs() };
    let bar = progress(settled.len() + jobs.len() + reference_jobs.len());
    let all_bounds: Result<Vec<(&str, u64, Bounds)>, anyhow::Error> = settled
        .par_iter()
        .map(|(workload, seed, source)| {
            let bounds = bounds(&config(*seed, matrix.fast[0].1), source).map_err(failed)?;
            bar.inc(1);
            Ok((workload.as_str(), *seed, bounds))
        })
        .collect();
    let all_bounds = all_bounds?;
    let run_one = |job: &Job| -> anyhow::Result<(Cell, Option<Course>)> {
        let (_, _, source) = settled
            .iter()
            .find(|(workload, seed, _)| *workload == job.workload && *seed == job.seed)
            .context("every job's workload and seed were settled")?;
        let (_, _, bounds) = all_bounds
            .iter()
            .find(|(workload, seed, _)| *workload == job.workload && *seed == job.seed)
            .context("every job's bounds were run")?;
        let policy = settings.build(&job.policy)?;
        let mut report = run_alone(&config(job.seed, job.fast), source, policy).map_err(failed)?;
        report.compare_with(bounds);
        bar.inc(1);
        let cell = Cell::new(job, &report);
        let course = || Course { job: job.clone(), series: report.series, heat_map: report.heat_map };
        Ok((cell, (job.seed == arguments.first_seed).then(course)))
    };
    let all = |jobs: &[Job]| -> anyhow::Result<Vec<_>> { jobs.par_iter().map(run_one).collect() };
    let (mut cells, courses): (Vec<Cell>, Vec<_>) = all(&jobs)?.into_iter().unzip();
    let mut references: Vec<Cell> = all(&reference_jobs)?.into_iter().map(|(cell, _)| cell).collect();
    references.extend(cells.iter().filter(|cell| cell.policy == FIRST_TOUCH).cloned());
    bar.finish_and_clear();
    compare_with_first_touch(&mut cells, &references);
    let summary = summarise(&cells, 1);
    Ok(Comparison { cells, summary, courses: courses.into_iter().flatten().collect() })
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

/// The columns of the CSV, in their order: all keys of a cell.
const COLUMNS: [&str; 19] = [
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
];

fn write_csv(path: &Path, cells: &[Cell]) -> anyhow::Result<()> {
    let mut out = COLUMNS.join(",") + "\n";
    for cell in cells {
        let value = serde_json::to_value(cell)?;
        // Names of workloads and policies hold neither commas nor quotes.
        let field = |column: &&str| value[*column].as_str().map_or_else(|| value[*column].to_string(), str::to_owned);
        out += &(COLUMNS.iter().map(field).collect::<Vec<_>>().join(",") + "\n");
    }
    terrace_files::write(path, out).with_context(|| format!("{}: the table could not be written", path.display()))
}
