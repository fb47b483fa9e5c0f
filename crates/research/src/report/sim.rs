//! The report of simulated runs on disk: report.json and a page with plots.
//!
//! In: reports of the simulator. Out: files. Must not: mix simulated with measured figures; every page says "simulated".

use std::path::Path;

use anyhow::Context;
use terrace_reproduce::{Limit, Plan, Runs};
use terrace_sim::Report;
use terrace_sim::compare::{Cell, Course as RunCourse, Summary};
use terrace_study::advice::Advices;

use super::plots::sizing::Course;
use super::{files, html, plots};
use crate::provenance::Provenance;

/// Writes report.json and report.html of one run.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write_run(directory: &Path, report: &Report, made: &Provenance) -> anyhow::Result<()> {
    files::write_pair(directory, &made.stamp(report)?, &html::sim::run_page(report, &plots::sim::run_figures(report)?))
}

/// Writes heat over time as a picture.
///
/// # Errors
/// When nothing was recorded, or the file cannot be written.
pub(crate) fn write_heat(path: &Path, picture: &terrace_sim::hotness::HeatPicture, title: &str) -> anyhow::Result<()> {
    let svg = plots::hotness_picture(picture, title)?.context("the run recorded no heat to draw")?;
    terrace_files::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes tuned programs over time as a picture: those of the first policy, target and interval that the rows name.
///
/// # Errors
/// When it cannot be drawn, or the file cannot be written.
pub(crate) fn write_tuned(path: &Path, plan: &Plan<'_>, runs: &Runs) -> anyhow::Result<()> {
    let (mut first, mut courses): (_, Vec<Course<'_>>) = (None, Vec::new());
    for (case, intervals) in plan.tuned(runs) {
        let Some(Limit::Tuned { measured, target, interval }) = case.at else { continue };
        let of = *first.get_or_insert((case.policy.as_str(), target, interval));
        if of != (case.policy.as_str(), target, interval) {
            continue;
        }
        let place = courses.iter().position(|course| course.name == case.setting_name).unwrap_or_else(|| {
            courses.push(Course { name: &case.setting_name, paper: &[], measured: &[] });
            courses.len() - 1
        });
        let course = &mut courses[place];
        *(if measured { &mut course.measured } else { &mut course.paper }) = intervals;
    }
    let (policy, target, _) = first.context("there is nothing to draw")?;
    let title = format!("Programs tuned to a loss of {} % above {policy}, simulated", target * 100.0);
    let svg = plots::sizing::courses(&courses, target, &title)?.context("there is nothing to draw")?;
    terrace_files::write(path, svg).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes report.json and report.html of a comparison; the page starts with what `json` calls its answer.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write_comparison(
    directory: &Path,
    json: &serde_json::Value,
    cells: &[Cell],
    summary: &Summary,
    courses: &[RunCourse],
) -> anyhow::Result<()> {
    let figures = plots::sim::comparison_figures(cells, summary, courses)?;
    files::write_pair(directory, json, &html::sim::comparison_page(cells, summary, &figures, json["answer"].as_str()))
}

/// Writes report.json and report.html of advice on fast memory.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write_advice(directory: &Path, json: &serde_json::Value, advice: &Advices) -> anyhow::Result<()> {
    let curves = plots::sizing::curves(&advice.of, advice.max_slowdown)?;
    files::write_pair(directory, json, &html::sim::advice_page(advice, &curves))
}
