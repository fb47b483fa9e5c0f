//! `terrace sim run`: one run and its two bounds.
//!
//! In: a checked run. Out: its report as text, JSON or a page. Must not: judge it.

use std::fmt::Write;

use terrace_sim::run::{bounds, run_alone};
use terrace_sim::{FastSize, Report};

use super::options::{OneRun, Own, failed};
use crate::args::SimRunArguments;
use crate::provenance::Provenance;
use crate::report::units;

pub(super) fn run(arguments: &SimRunArguments) -> anyhow::Result<()> {
    let mut asked = arguments.run.clone();
    asked.workload = asked.workload.or_else(|| arguments.named.clone());
    let run = OneRun::parse(&asked, &Own::new())?;
    let report = report(&run)?;
    let made = Provenance { command: Provenance::here().command, ..run.made.clone() };
    if let Some(directory) = &arguments.report {
        crate::report::sim::write_run(directory, &report, &made)?;
    }
    if arguments.json {
        super::super::print_json(&without_picture(made.stamp(&report)?))
    } else {
        super::super::print_text(&text(&report, run.config.fast))
    }
}

/// A run, compared with its bounds.
pub(crate) fn report(run: &OneRun) -> anyhow::Result<Report> {
    let policy = run.policy()?;
    // The bounds depend on neither policy nor fast memory, so they run beside it.
    let (report, bounds) = rayon::join(
        || run_alone(&run.config, run.source.as_ref(), policy),
        || bounds(&run.config, run.source.as_ref()),
    );
    let mut report = report.map_err(failed)?;
    report.compare_with(&bounds.map_err(failed)?);
    Ok(report)
}

/// What `--json` prints: the heat map is a picture of 65,536 cells, and report.json has it.
pub(crate) fn without_picture(mut report: serde_json::Value) -> serde_json::Value {
    if let Some(object) = report.as_object_mut() {
        object.remove("heat_map");
    }
    report
}

fn text(report: &Report, fast: FastSize) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        writeln!(out, "{name:24}{value}").expect("writing to a string does not fail");
    };
    line("workload", report.workload.clone());
    line("policy", report.policy.clone());
    line("machine", format!("{}, simulated at scale 1:{}, seed {}", report.machine, report.scale, report.seed));
    let share = match fast {
        FastSize::Share(share) => share,
        FastSize::Bytes(_) => units::share_of(report.fast_bytes, report.footprint_bytes),
    };
    line(
        "fast memory",
        format!(
            "{} of {} ({})",
            units::bytes(report.fast_bytes),
            units::bytes(report.footprint_bytes),
            units::percent(share)
        ),
    );
    line(
        "run time",
        format!("{}, {} at full size", units::seconds(report.seconds), units::seconds(report.full_size_seconds)),
    );
    let ratio = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |value| format!("{value:.3}"));
    line("slowdown vs all fast", ratio(report.slowdown_vs_all_fast));
    line("gain over all slow", ratio(report.gain_over_all_slow));
    line("fast hit share", units::percent(report.fast_hit_share));
    for (name, accesses) in report.tier_names.iter().zip(&report.tier_accesses) {
        line("accesses", format!("{} to {name}", units::count(*accesses)));
    }
    line(
        "accesses",
        format!("{} in all, {} in the cache", units::count(report.accesses), units::count(report.cache_hits)),
    );
    for process in &report.processes {
        let [resident, fast] = [process.mean_resident_bytes, process.mean_fast_bytes].map(units::bytes);
        line(
            "  process",
            format!(
                "{}: {} of its memory accesses fast, {fast} of its {resident} on the mean",
                process.workload,
                units::percent(process.fast_hit_share)
            ),
        );
    }
    line("promoted", format!("{} pages", units::count(report.promoted_pages)));
    line(
        "demoted",
        format!(
            "{} pages, {} of them by the kernel",
            units::count(report.demoted_pages),
            units::count(report.kernel_demoted_pages)
        ),
    );
    line("failed promotions", units::count(report.failed_promotions));
    for (cause, pages) in &report.failures {
        line("  failed or rejected", format!("{} pages: {cause}", units::count(*pages)));
    }
    line("migrated", units::bytes(report.migrated_bytes));
    line("management", format!("{} of CPU time", units::seconds(report.management_seconds)));
    for (kind, seconds) in report.overhead_seconds.iter().filter(|(_, seconds)| **seconds > 0.0) {
        line("  of it", format!("{} {kind}", units::seconds(*seconds)));
    }
    line("metadata", format!("{:.1} bytes a page", report.metadata_bytes_per_page));
    out
}
