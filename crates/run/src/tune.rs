//! `terrace size tune`: a program under the tuner.
//!
//! In: a target, a program, and for the paper's way a database. Out: the program's exit code, and what was saved and lost. Must not: start
//! anything before target, database and program are checked.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::spec::{Goal, RunSpec};
use anyhow::Context;
use terrace_common::max_slowdown;
use terrace_core::units::Quantity;
use terrace_linux::live_tuner::LiveTuner;
use terrace_linux::rights::Job;
use terrace_linux::topology::{TierKind, Topology};
use terrace_linux::watermarks::Watermarks;
use terrace_report::terminal::print_aside;
use terrace_tuning::{LEAST_COVERAGE, Mode, Predictor, TunerConfig};

use crate::args::{ReportArguments, SizeTuneArguments};
use crate::named;
use crate::options::{duration, misuse};
use crate::session::tuning::{TuneReport, report as report_of};
use crate::session::{Plan, Steering, TargetSpec, run_with};
use terrace_common::provenance::Provenance;
use terrace_report::terminal::print_json;
use terrace_report::units;

/// Below it a window holds too few rounds of marks.
const LEAST_INTERVAL: Duration = Duration::from_millis(500);
/// The policy: it keeps the ages of pages, by which windows are measured and the coldest are found.
const POLICY: &str = "age";

/// The performance database of the paper's way.
pub struct Database {
    /// The machine that it is of.
    pub machine: String,
    /// Its records.
    pub records: usize,
    /// Who asks it.
    pub predictor: Box<dyn Predictor>,
}

/// Tunes a program; `paper` reads the database, if the paper's way was asked for.
///
/// # Errors
/// An option that makes no sense, or what a run fails by.
pub fn run(
    arguments: &SizeTuneArguments,
    paper: impl FnOnce() -> anyhow::Result<Database>,
) -> anyhow::Result<ExitCode> {
    let max_slowdown = max_slowdown(&arguments.max_slowdown)?;
    let every = duration("--every", &arguments.every)?;
    if every < LEAST_INTERVAL {
        return Err(misuse("--every", &arguments.every, "expected 500ms or more: a window needs some rounds of marks"));
    }
    let plan = plan(arguments, max_slowdown)?;
    if let Some(metric) = plan.spec.metric.as_ref().filter(|_| arguments.hold == "watermarks") {
        let why = "by --hold watermarks the kernel demotes in windows that are left alone, too, so that nothing is compared: use --hold pages";
        return Err(misuse("--metric", &metric.text, why));
    }
    let mut config = TunerConfig::new(max_slowdown, if arguments.paper { Mode::Paper } else { Mode::Measured });
    config.interval = every;
    let mut live = LiveTuner::new(config);
    let mut database = None;
    if arguments.paper {
        let Database { machine, records, predictor } = paper()?;
        database = Some((machine, records));
        live = live.predicting(predictor);
    }
    let watermarks =
        if arguments.hold == "watermarks" { Some(watermarks(arguments.spec.text("tier-slow"))?) } else { None };
    let mut tuner = Steering::new(live, watermarks);
    let (code, run) = run_with(&plan, Some(&mut tuner))?;
    let report = report_of(&tuner, run.target.peak_footprint_bytes, database, run.proof.as_ref());
    // The watermarks go back before anything is shown of a run that is over.
    drop(tuner);
    if report.intervals.is_empty() {
        let shown = units::seconds(every.as_secs_f64());
        let text = format!(
            "the program ended before the first interval of {shown} was over, so that nothing was tuned; see --every"
        );
        let what = arguments.command.first().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        return Err(misuse("CMD", &what, text));
    }
    let made =
        Provenance::here().on_this_machine().running(&arguments.command).under(&plan.spec.policy, &plan.spec.settings);
    let json = made.stamp(&report)?;
    if let Some(file) = &arguments.json_file {
        let text = serde_json::to_string_pretty(&json)? + "\n";
        terrace_files::write(file, text)
            .with_context(|| format!("{}: the report could not be written", file.display()))?;
    }
    if arguments.json {
        print_json(&json)?;
    }
    if !arguments.quiet {
        print_aside(&closing_lines(&report, run.target.peak_footprint_bytes))?;
    }
    Ok(code)
}

/// Whether the kernel moves pages to slower nodes when it reclaims; otherwise it puts them into swap, or keeps them.
const DEMOTION: &str = "sys/kernel/mm/numa/demotion_enabled";

/// The watermarks of the fastest tier's nodes, not yet changed.
fn watermarks(tier_slow: &str) -> anyhow::Result<Watermarks> {
    let root = Path::new("/");
    let topology = Topology::discover(root)?;
    let mut by_nodes = topology.tiers.iter().filter_map(|tier| match &tier.kind {
        TierKind::Nodes { nodes } => Some(nodes.as_slice()),
        TierKind::Swap { .. } => None,
    });
    let nodes = by_nodes.next().context("no node has memory: see terrace topology")?;
    let to_nodes = tier_slow.starts_with("node:") || (tier_slow == "auto" && by_nodes.next().is_some());
    if to_nodes {
        kernel_demotes(root)?;
    }
    Watermarks::open(root, nodes).context("--hold watermarks")
}

/// An error if the kernel below `root` would not demote to slower nodes. Switch and demotion came together, with 5.15
/// (Documentation/ABI/testing/sysfs-kernel-mm-numa): a kernel without the one does not do the other.
fn kernel_demotes(root: &Path) -> anyhow::Result<()> {
    match std::fs::read_to_string(root.join(DEMOTION)) {
        Ok(text) if !matches!(text.trim(), "false" | "0") => Ok(()),
        Ok(_) => {
            let why =
                format!("the kernel does not demote to slower nodes: echo true >/{DEMOTION}, or use --hold pages");
            Err(misuse("--hold", "watermarks", why))
        }
        Err(error) => {
            let why = format!(
                "/{DEMOTION}: {error}: the kernel cannot demote to slower nodes, which takes Linux 5.15 or newer; use --hold pages"
            );
            Err(misuse("--hold", "watermarks", why))
        }
    }
}

fn plan(arguments: &SizeTuneArguments, max_slowdown: f64) -> anyhow::Result<Plan> {
    let base = RunSpec {
        policy: POLICY.to_owned(),
        // Half a second: five rounds a window, and no longer when a program is idle.
        interval: Some(Duration::from_millis(500)),
        // The target covers it: half of max_slowdown at most, see `RunSpec::watching_share`.
        max_overhead: 1.0,
        goal: Goal::Fixed(Quantity::Share(1.0)),
        // As much of the time may go to pages that come back as the target allows; the tuner stays below it.
        max_slowdown,
        ..RunSpec::default()
    };
    let spec = arguments.spec.spec_over(base, crate::session::memory()?)?;
    let target = named::target(&arguments.target, spec.ranges, Job::Move)?;
    let target = target.unwrap_or_else(|| TargetSpec::Command(arguments.command.clone()));
    Ok(Plan {
        target,
        spec,
        goal_text: format!("tuned to a loss of {}", arguments.max_slowdown),
        output: ReportArguments { report: arguments.report.clone(), quiet: true, ..ReportArguments::default() },
        duration: arguments.target.limit()?,
        verbose: false,
    })
}

fn closing_lines(report: &TuneReport, footprint: u64) -> String {
    let summary = &report.summary;
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let mut text = format!(
        "fast memory saved: {} on average ({} of {}), {} at most\n",
        percent(summary.saved_share_mean),
        units::bytes(report.saved_bytes_mean),
        units::bytes(footprint),
        percent(summary.saved_share_max)
    );
    text += &match (summary.loss, summary.loss_p95) {
        (Some(loss), Some(p95)) if report.loss_observed => format!(
            "slowdown: {} on average ({} to {}), {} in the worst of 20 windows, by pages that came back, page-outs, and waiting for \
             processors (target {})\n",
            percent(loss),
            percent(summary.loss_low.unwrap_or(loss)),
            percent(summary.loss_high.unwrap_or(loss)),
            percent(p95),
            percent(summary.max_slowdown)
        ),
        (Some(loss), _) => format!(
            "slowdown: {} predicted, nothing could observe it (target {})\n",
            percent(loss),
            percent(summary.max_slowdown)
        ),
        _ => "slowdown: unknown\n".to_owned(),
    };
    text += &match (report.resident_saved_share_steady, report.not_steady) {
        (Some(share), _) => format!("in steady state: {} of what it has, growth apart\n", percent(share)),
        (None, why) => format!("in steady state: not known, {}\n", why.unwrap_or_default()),
    };
    let measured = &report.measured;
    let by = measured.measured_by.as_deref().unwrap_or_default();
    if let Some(loss) = measured.measured_loss {
        let interval = measured.measured_loss_low.zip(measured.measured_loss_high);
        let interval =
            interval.map_or_else(String::new, |(low, high)| format!(" ({} to {})", percent(low), percent(high)));
        let windows = measured.measured_windows;
        text += &format!(
            "measured by {by}: {} longer managed than left alone{interval}, in {windows} windows\n",
            percent(loss)
        );
    }
    if let Some(why) = &measured.not_measured {
        text += &format!("not measured: {why}\n");
    }
    if let Some(coverage) = report.coverage.filter(|coverage| *coverage < LEAST_COVERAGE) {
        text += &format!(
            "the database has records like {} of the intervals only, so that in {} of {} it was not used: what was observed decided there, or \
             all stayed fast\n",
            percent(coverage),
            report.database_unused_intervals.unwrap_or(0),
            report.intervals.len()
        );
    }
    text + &format!(
        "{} decisions; inputs {}{}\n",
        report.intervals.len(),
        report.inputs,
        report.page_out_price.remark()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_does_not_demote_is_refused_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let told = kernel_demotes(root.path()).unwrap_err().to_string();
        assert!(told.contains("5.15") && told.contains("--hold pages"), "a kernel without the switch: {told}");
        let file = root.path().join(DEMOTION);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        for (text, demotes) in [("true\n", true), ("1\n", true), ("false\n", false), ("0\n", false)] {
            std::fs::write(&file, text).unwrap();
            let found = kernel_demotes(root.path());
            assert_eq!(found.is_ok(), demotes, "{text:?}");
            if let Err(error) = found {
                let told = error.to_string();
                assert!(
                    told.contains("--hold") && told.contains("echo true >/sys/kernel/mm/numa/demotion_enabled"),
                    "{told}"
                );
            }
        }
    }
}
