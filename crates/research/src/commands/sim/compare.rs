//! `terrace sim compare`: every policy on every workload at every size, on all cores.
//!
//! In: lists of workloads, traces and policies. Out: cells and what they say together, as text, JSON, CSV or a page. Must not: average anything
//! itself; `terrace_sim::compare` does.

use std::fmt::Write;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::Context;
use indicatif::ProgressBar;
use serde_json::Value;
use terrace_sim::compare::DRAW;
use terrace_study::compare::{Comparison, compare};
use terrace_study::options::Own;
use terrace_study::rows::csv_table;

use crate::args::SimCompareArguments;
use crate::provenance::Provenance;
use crate::report::units;
use crate::terminal::bar;

pub(super) fn run(arguments: &SimCompareArguments) -> anyhow::Result<()> {
    let comparison = compare(arguments, &Own::new(), &Bar::default())?;
    if let Some(path) = &arguments.csv {
        write_csv(path, &comparison.rows()?)?;
    }
    let json = comparison.as_json(Provenance::here())?;
    if let Some(directory) = &arguments.report {
        crate::report::sim::write_comparison(
            directory,
            &json,
            &comparison.cells,
            &comparison.summary,
            &comparison.courses,
        )?;
    }
    super::super::print(arguments.json, &json, |_| text(&comparison))
}

/// The bar of a comparison, once it is known how many runs it has.
#[derive(Default)]
pub(crate) struct Bar(OnceLock<ProgressBar>);

impl terrace_study::Progress for Bar {
    fn begin(&self, total: usize, _done: usize) {
        self.0.get_or_init(|| progress(total));
    }

    fn step(&self) {
        if let Some(bar) = self.0.get() {
            bar.inc(1);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.0.get() {
            bar.finish_and_clear();
        }
    }
}

/// A bar of runs.
pub(crate) fn progress(total: usize) -> ProgressBar {
    bar(total as u64, 0, "{bar:40} {pos}/{len} runs, {elapsed} gone, {eta} to go")
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

fn write_csv(path: &Path, rows: &[Value]) -> anyhow::Result<()> {
    terrace_files::write(path, csv_table(rows))
        .with_context(|| format!("{}: the table could not be written", path.display()))
}
