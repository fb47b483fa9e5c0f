//! `terrace sim hotness`: trackers of hotness scored against each other on one run.
//!
//! In: a workload or a trace, and a second workload as another process if wanted. Out: scores as text or JSON, and heat over
//! time as a picture. Must not: score anything itself: `terrace_sim::hotness` does.

use std::collections::BTreeMap;
use std::fmt::Write;

use terrace_core::units::{parse_duration, parse_share};
use terrace_sim::hotness::{HotnessPlan, HotnessReport, run as score};

use super::options::{NOT_BESIDE, OneRun, Own, Trace, failed, recorded};
use crate::args::{BesideArguments, MmuArguments, ModelArguments, OneRunArguments, SimHotnessArguments};
use crate::options::{footprint, misuse};
use crate::provenance::Provenance;
use crate::report::units;

pub(super) fn run(arguments: &SimHotnessArguments) -> anyhow::Result<()> {
    let window = parse_duration(&arguments.window).map_err(|error| misuse("--window", &arguments.window, error))?;
    let window_ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    if window_ns < 1000 {
        return Err(misuse("--window", &arguments.window, "expected a microsecond or more"));
    }
    let fast_share = match parse_share(&arguments.fast) {
        Ok(share) if share > 0.0 && share < 1.0 => share,
        _ => return Err(misuse("--fast", &arguments.fast, "expected a share above 0% and below 100%, such as 25%")),
    };
    let pages = match (&arguments.pages, &arguments.trace) {
        (Some(pages), _) => pages.clone(),
        (None, Some(path)) if Trace::open(path, footprint(&arguments.max_footprint)?)?.tells_page_sizes()? => {
            "thp".to_owned()
        }
        (None, _) => "2m".to_owned(),
    };
    let one = OneRun::parse(
        &OneRunArguments {
            workload: arguments.workload.clone(),
            trace: arguments.trace.clone(),
            max_footprint: arguments.max_footprint.clone(),
            policy: "all-fast".to_owned(),
            fast: "100%".to_owned(),
            seed: arguments.seed,
            // The second process is watched, and so given apart.
            beside: BesideArguments { beside: None, every: arguments.beside.every },
            model: ModelArguments {
                machine: arguments.machine.clone(),
                size: arguments.size.clone(),
                threads: arguments.threads,
                scale: arguments.scale,
                pages,
                mmu: MmuArguments { cores: Some(arguments.cores.unwrap_or(1)), ..MmuArguments::default() },
                operations: arguments.operations,
                settings: Vec::new(),
                workload_settings: arguments.workload_settings.clone(),
            },
        },
        &Own::new(),
    )?;
    if let (Some(name), Some(_)) = (&arguments.beside.beside, &arguments.trace) {
        return Err(misuse("--beside", name, NOT_BESIDE));
    }
    let beside = recorded(&arguments.beside, &arguments.size, arguments.seed)?;
    let plan = HotnessPlan { fast_share, window_ns };
    let report = score(&one.config, &plan, one.source.as_ref(), beside.as_ref()).map_err(failed)?;
    if let Some(path) = &arguments.heatmap {
        let title = format!("Heat over time: {}, {}", report.workload, units::bytes(one.config.footprint.get()));
        crate::report::sim::write_heat(path, &report.picture, &title)?;
    }
    if arguments.json {
        // Every tracker looks on at one run, in which nothing moves.
        let command = Provenance::here().command;
        let made = Provenance { command, policy: None, settings: BTreeMap::new(), ..one.made };
        super::super::print_json(&made.stamp(&report)?)
    } else {
        super::super::print_text(&text(&report))
    }
}

fn text(report: &HotnessReport) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string does not fail");
    let beside = match (&report.beside, report.processes.len()) {
        (Some(other), _) => format!(" beside {other}"),
        (None, 0 | 1) => String::new(),
        (None, _) => format!(" ({})", report.processes.join(", ")),
    };
    line(format!(
        "{}{beside}, {}, simulated at scale 1:{}; {} windows of {}; fast memory holds {}",
        report.workload,
        units::bytes(report.footprint_bytes),
        report.scale,
        report.windows,
        units::seconds(report.window_seconds),
        units::percent(report.fast_share),
    ));
    line(format!(
        "{:22} {:>6} {:>6} {:>6} {:>6} {:>9} {:>9} {:>10} {:>10} {:>8} {:>12}",
        "tracker", "rank", "top-k", "prec.", "recall", "cpu", "bandw.", "bytes/GiB", "searched", "fair", "cpu at 1 TB"
    ));
    for tracker in &report.trackers {
        let fair = tracker.fairness.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let grown = tracker.growth.last().map_or(0.0, |growth| growth.cpu_share);
        line(format!(
            "{:22} {:>6.2} {:>6.2} {:>6.2} {:>6.2} {:>8.3}% {:>8.3}% {:>10.0} {:>10.0} {fair:>8} {:>11.3}%",
            tracker.name,
            tracker.rank_correlation,
            tracker.top_k_overlap,
            tracker.precision,
            tracker.recall,
            tracker.cpu_share * 100.0,
            tracker.bandwidth_share * 100.0,
            tracker.bytes_per_gib,
            tracker.candidate_search_operations,
            grown * 100.0,
        ));
    }
    line(
        "cpu: of the program's cores; searched: entries looked at in a window; the last column is modelled".to_owned(),
    );
    out
}
