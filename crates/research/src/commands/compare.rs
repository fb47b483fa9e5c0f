//! `terrace compare`: which policy is best for a program, how much fast memory it needs, and how far that is from the best possible.
//!
//! In: a program. Out: it is recorded once and replayed under each policy at each size; a table, JSON, a page. Must not: replay a program
//! that did not come to its end, or measure anything itself: `record` records, `sim compare` replays.

use std::fmt::Write;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use terrace_common::say;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use terrace_sim::compare::{Cell, DRAW};
use terrace_study::compare::{self as matrix, Comparison};
use terrace_study::options::Own;
use terrace_trace::tools::info;

use super::record::cache_size;
use super::sim::compare::Bar;
use crate::args::{CompareArguments, ModelArguments, SimCompareArguments};
use crate::provenance::Provenance;
use crate::recorder::{Tools, temporary_folder};
use crate::report::units;

/// Knows the future: no policy can do better.
const BOUND: &str = terrace_policies::clairvoyant::INFO.name;

/// The recording that is part of Terrace: sqlite3, with a table of 200,000 rows. docs/traces.md says how it was made (`terrace record --cache 1MiB`).
const TRACE: &[u8] = include_bytes!("../../data/sqlite3.trace");

/// Where the page goes unless `--report` says.
const PAGE: &str = "compare-report";

pub(super) fn run(arguments: &CompareArguments) -> anyhow::Result<()> {
    check(arguments)?;
    let recording = match arguments.example {
        true => example(arguments)?,
        false => record(arguments, &Tools::find(&arguments.command)?)?,
    };
    let Told { json, text } = replay(arguments, &recording)?;
    super::print(arguments.json, &json, |_| text)
}

/// A trace to compare policies on, and how it was made.
struct Recording {
    /// The trace.
    pub trace: PathBuf,
    /// What it holds.
    pub accesses: u64,
    /// Programs that the recorded one started.
    pub started: Vec<String>,
    /// How long recording took, if it was made just now.
    pub wall: Option<Duration>,
    /// Holds the trace as long as this lives, if nobody asked to keep it.
    pub _folder: Option<tempfile::TempDir>,
}

/// A comparison that was made.
struct Told {
    /// All of it, for programs.
    pub json: Value,
    /// The same for people.
    pub text: String,
}

/// Checks everything before the program runs in vain.
fn check(arguments: &CompareArguments) -> anyhow::Result<()> {
    super::size::max_slowdown(&arguments.max_slowdown)?;
    cache_size(arguments.cache.as_deref())?;
    super::sim::options::machine(&arguments.machine)?;
    super::sim::options::PolicySettings::parse(&[], &arguments.policies, &Own::new())?;
    arguments.fast.iter().try_for_each(|text| super::sim::options::fast_size(text).map(drop))?;
    crate::options::footprint(&arguments.max_footprint)?;
    Ok(())
}

/// Records the program, whose own output goes to stderr so that it does not come between the lines of the result.
fn record(arguments: &CompareArguments, tools: &Tools) -> anyhow::Result<Recording> {
    let cache = cache_size(arguments.cache.as_deref())?;
    let name = Path::new(&arguments.command[0]).file_name().unwrap_or_default();
    let (trace, folder) = match &arguments.output {
        Some(kept) => (kept.clone(), None),
        None => {
            let folder = temporary_folder()?;
            (folder.path().join(name), Some(folder))
        }
    };
    let stdout = Stdio::from(std::io::stderr().as_fd().try_clone_to_owned()?);
    let recorded = tools.record(&arguments.command, &trace, cache, arguments.period, stdout)?;
    let accesses = recorded.held.summary.accesses;
    came_to_its_end(&name.to_string_lossy(), recorded.status, accesses)?;
    if let Some(lacks) = recorded.lacks(&name.to_string_lossy()) {
        say!("terrace: {lacks}\n");
    }
    Ok(Recording { trace, accesses, started: recorded.started, wall: Some(recorded.wall), _folder: folder })
}

/// The recording that is part of Terrace, written beside the page so that it can be looked at: `terrace trace info`.
fn example(arguments: &CompareArguments) -> anyhow::Result<Recording> {
    let held = info(TRACE).context("the recording that is part of Terrace")?;
    let folder = arguments.report.is_none().then(temporary_folder).transpose()?;
    let place =
        folder.as_ref().map_or_else(|| arguments.report.clone().unwrap_or_default(), |folder| folder.path().into());
    std::fs::create_dir_all(&place).with_context(|| place.display().to_string())?;
    let trace = place.join("sqlite3.trace");
    terrace_files::write(&trace, TRACE).with_context(|| trace.display().to_string())?;
    Ok(Recording { trace, accesses: held.summary.accesses, started: Vec::new(), wall: None, _folder: folder })
}

/// Replays a recording under each policy at each size, and writes the page.
fn replay(arguments: &CompareArguments, recording: &Recording) -> anyhow::Result<Told> {
    let max_slowdown = super::size::max_slowdown(&arguments.max_slowdown)?;
    let comparison = matrix::compare(&terms(arguments, &recording.trace), &Own::new(), &Bar::default())?;
    let verdicts = verdicts(&comparison.cells, &arguments.fast);
    let answer = answer(&verdicts, max_slowdown);
    let json = with_answer(comparison.as_json(Provenance::here())?, recording, &verdicts, &answer);
    // A person gets a page without asking for it; a script gets what it asks for.
    let page = arguments.report.clone().or_else(|| (!arguments.json).then(|| PAGE.into()));
    if let Some(directory) = &page {
        let Comparison { cells, summary, courses, .. } = &comparison;
        crate::report::sim::write_comparison(directory, &json, cells, summary, courses)?;
        say!("terrace: page: {}\n", directory.join("report.html").display());
    }
    let text = text(arguments, recording.accesses, &comparison.cells, &verdicts, &answer);
    Ok(Told { json, text })
}

/// Refuses what would be a comparison of nothing, or of half a program.
fn came_to_its_end(name: &str, status: ExitStatus, accesses: u64) -> anyhow::Result<()> {
    // QEMU dies of the signal that its program died of; some versions exit with 128 + n.
    let signal = status.signal().or_else(|| status.code().filter(|code| *code > 128).map(|code| code - 128));
    match signal {
        Some(4) => {
            bail!(
                "{name} died under emulation of an instruction that QEMU does not know (SIGILL): nothing was compared"
            )
        }
        Some(signal) => bail!("{name} died under emulation of signal {signal}: nothing was compared"),
        None => {}
    }
    if accesses == 0 {
        bail!("{name} made no access that was recorded, and ended with {status}: nothing was compared");
    }
    if let Some(code) = status.code().filter(|code| *code != 0) {
        say!("terrace: {name} exited with {code}; what it did until then is compared\n");
    }
    Ok(())
}

/// The comparison behind it.
fn terms(arguments: &CompareArguments, trace: &Path) -> SimCompareArguments {
    SimCompareArguments {
        trace: vec![trace.to_owned()],
        max_footprint: arguments.max_footprint.clone(),
        policies: arguments.policies.clone(),
        fast: arguments.fast.clone(),
        seeds: arguments.seeds,
        first_seed: 1,
        model: ModelArguments {
            machine: arguments.machine.clone(),
            // Size, threads and operations are the trace's.
            size: "1GiB".to_owned(),
            threads: 1,
            pages: "4k".to_owned(),
            ..ModelArguments::default()
        },
        ..SimCompareArguments::default()
    }
}

/// What is best at one size. Losses are run time over that with everything fast, less one.
#[derive(Debug, PartialEq, serde::Serialize)]
struct Verdict {
    fast: String,
    /// The best policy, and those that are not slower by more than a draw.
    policies: Vec<String>,
    loss: f64,
    /// What a policy that knows the future loses.
    bound_loss: Option<f64>,
}

/// The mean loss of a policy at a size over the seeds.
fn loss(cells: &[Cell], policy: &str, fast: &str) -> Option<f64> {
    let of: Vec<f64> = cells
        .iter()
        .filter(|cell| cell.policy == policy && cell.fast == fast)
        .map(|cell| cell.slowdown_vs_all_fast - 1.0)
        .collect();
    (!of.is_empty()).then(|| of.iter().sum::<f64>() / of.len() as f64)
}

/// Policies in the order in which they stand in the cells, without bounds.
fn rivals(cells: &[Cell]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for cell in cells.iter().filter(|cell| !terrace_policies::BOUNDS.contains(&cell.policy.as_str())) {
        if !names.contains(&cell.policy.as_str()) {
            names.push(&cell.policy);
        }
    }
    names
}

fn verdicts(cells: &[Cell], sizes: &[String]) -> Vec<Verdict> {
    sizes
        .iter()
        .filter_map(|fast| {
            let mut losses: Vec<(f64, &str)> =
                rivals(cells).iter().filter_map(|policy| Some((loss(cells, policy, fast)?, *policy))).collect();
            losses.sort_by(|one, other| one.0.total_cmp(&other.0));
            let (least, _) = *losses.first()?;
            let level = losses.iter().filter(|(loss, _)| 1.0 + loss <= (1.0 + least) * (1.0 + DRAW));
            let policies = level.map(|(_, policy)| (*policy).to_owned()).collect();
            Some(Verdict { fast: fast.clone(), policies, loss: least, bound_loss: loss(cells, BOUND, fast) })
        })
        .collect()
}

/// The least size at which the best policy loses no more than `max_slowdown`, in a sentence. Sizes count in the order in which they were given.
fn answer(verdicts: &[Verdict], max_slowdown: f64) -> String {
    let wanted = format!("{:.1} %", max_slowdown * 100.0);
    match verdicts.iter().find(|verdict| verdict.loss <= max_slowdown) {
        Some(Verdict { fast, policies, loss, .. }) => format!(
            "{fast} of fast memory is enough for a loss of {wanted}: {} loses {}",
            policies.first().map_or("", String::as_str),
            percent(*loss)
        ),
        None => format!("None of these sizes is enough for a loss of {wanted}"),
    }
}

fn with_answer(mut json: Value, recording: &Recording, verdicts: &[Verdict], answer: &str) -> Value {
    json["verdicts"] = json!(verdicts);
    json["answer"] = answer.into();
    json["accesses"] = recording.accesses.into();
    json["started"] = json!(recording.started);
    json["recording_seconds"] = json!(recording.wall.map(|wall| wall.as_secs_f64()));
    json
}

/// A loss; what is faster than everything fast, by less work of the kernel, loses less than nothing.
fn percent(loss: f64) -> String {
    format!("{:.1} %", loss * 100.0)
}

fn text(arguments: &CompareArguments, accesses: u64, cells: &[Cell], verdicts: &[Verdict], answer: &str) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string does not fail");
    let footprint = cells.iter().map(|cell| cell.footprint_bytes).max().unwrap_or(0);
    line(format!(
        "{} accesses, {} of memory; replayed on {}, simulated",
        units::count(accesses),
        units::bytes(footprint),
        arguments.machine
    ));
    line("\nTime lost against all memory fast, by policy and fast memory".to_owned());
    let row = |name: &str, of: &dyn Fn(&str) -> String| {
        arguments.fast.iter().fold(format!("  {name:16}"), |text, fast| text + &format!(" {:>10}", of(fast)))
    };
    line(row("", &|fast| fast.to_owned()));
    let shown = |policy: &str, fast: &str| loss(cells, policy, fast).map_or_else(|| "-".to_owned(), percent);
    for policy in rivals(cells) {
        line(row(policy, &|fast| shown(policy, fast)));
    }
    if cells.iter().any(|cell| cell.policy == BOUND) {
        line(row("the bound", &|fast| shown(BOUND, fast)));
    }
    line("\nBest".to_owned());
    for Verdict { fast, policies, loss, bound_loss } in verdicts {
        let level = if policies.len() > 1 { " (level, within 1 %)" } else { "" };
        let from = bound_loss.map_or_else(String::new, |bound| {
            let above = (1.0 + loss) / (1.0 + bound) - 1.0;
            match above.abs() <= DRAW {
                true => ", level with the bound".to_owned(),
                false => format!(", {} above the bound", percent(above)),
            }
        });
        let best = if all_level(policies, cells) { "all policies".to_owned() } else { policies.join(", ") };
        line(format!("  {fast:>8}  {best}{level}: loses {}{from}", percent(*loss)));
    }
    line(format!("\n{answer}."));
    if verdicts.iter().all(|verdict| all_level(&verdict.policies, cells)) {
        line(format!("At these sizes it hardly matters on {} where the pages of this program lie.", arguments.machine));
    }
    if verdicts.iter().any(|verdict| verdict.bound_loss.is_some()) {
        line(format!("The bound is {BOUND}, which knows what the program will use."));
    }
    out
}

/// Whether all of several policies are level.
fn all_level(level: &[String], cells: &[Cell]) -> bool {
    level.len() > 1 && level.len() == rivals(cells).len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_is_whole_and_small() {
        let held = info(TRACE).unwrap();
        assert!(held.damage.is_none() && held.summary.accesses > 100_000, "{:?}", held.summary);
        assert!(TRACE.len() <= 2 << 20, "{} bytes", TRACE.len());
    }

    fn cell(policy: &str, fast: &str, slowdown: f64) -> Cell {
        Cell {
            workload: "w".to_owned(),
            policy: policy.to_owned(),
            machine: "m".to_owned(),
            fast: fast.to_owned(),
            fast_share: 0.5,
            seed: 1,
            scale: 1,
            fast_bytes: 1,
            footprint_bytes: 2,
            seconds: slowdown,
            slowdown_vs_all_fast: slowdown,
            gain_over_all_slow: 1.0,
            gain_over_first_touch: 1.0,
            fast_hit_share: 0.5,
            promoted_pages: 0,
            demoted_pages: 0,
            failed_promotions: 0,
            management_seconds: 0.0,
            metadata_bytes_per_page: 8.0,
        }
    }

    #[test]
    fn the_best_is_named_with_those_that_are_level_and_the_least_size_that_is_enough() {
        let cells = [
            cell("tpp", "25%", 1.5),
            cell("age", "25%", 1.2),
            cell(BOUND, "25%", 1.1),
            cell("tpp", "50%", 1.035),
            cell("age", "50%", 1.03),
        ];
        let found = verdicts(&cells, &["25%".to_owned(), "50%".to_owned()]);
        assert_eq!((found[0].policies.as_slice(), found[1].policies.len()), (&["age".to_owned()][..], 2));
        assert!((found[0].bound_loss.unwrap() - 0.1).abs() < 1e-9 && found[1].bound_loss.is_none());
        assert_eq!(answer(&found, 0.05), "50% of fast memory is enough for a loss of 5.0 %: age loses 3.0 %");
        assert!(answer(&found, 0.01).starts_with("None of these sizes"));
        assert!(!all_level(&found[0].policies, &cells) && all_level(&found[1].policies, &cells));
    }

    #[test]
    fn a_program_that_died_or_did_nothing_is_not_compared() {
        let why = |raw: i32, accesses: u64| {
            came_to_its_end("prog", ExitStatus::from_raw(raw), accesses).map_err(|error| error.to_string())
        };
        // As wait(2) has it: a signal in the low bits, an exit code above them.
        assert!(why(4, 9).unwrap_err().contains("does not know (SIGILL)"));
        assert!(why(132 << 8, 9).unwrap_err().contains("SIGILL"));
        assert!(why(11, 9).unwrap_err().contains("signal 11"));
        assert!(why(0, 0).unwrap_err().contains("no access"));
        assert!(why(0, 1).is_ok() && why(1 << 8, 1).is_ok());
    }
}
