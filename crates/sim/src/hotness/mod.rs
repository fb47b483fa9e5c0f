//! Trackers of hotness against each other on the same run: accuracy, cost, work to find candidates, fairness.
//!
//! In: a configuration with the MMU, a source, and another source as a second process if wanted. Out: a score for each tracker on
//! the four requirements of hotness walk, section 2.3, and heat over time. Must not: move pages: all lies in fast memory, so that
//! every tracker watches the very same program.
//!
//! Growth from 4 GB to 1 TB is modelled: what a tracker spends by the page or by the sample is taken to grow with memory (knowing as
//! much of each page takes as many samples of each), the rest to stay.

pub(crate) mod probe;
mod regions;
pub mod score;
pub(crate) mod trackers;
mod uses;

use terrace_core::units::{Bytes, TierId};

use crate::config::SimConfig;
use crate::error::SimError;
use crate::fixed::Fixed;
use crate::mmu::MmuConfig;
use crate::run::{Source, play_alone};
use crate::simulation::Simulation;
pub use probe::HeatPicture;
use probe::Probe;
use trackers::Tracker;

/// Sizes of the modelled growth, in GiB.
const GROWTH: [u64; 5] = [4, 16, 64, 256, 1024];

/// What to score.
#[derive(Clone, Copy, Debug)]
pub struct HotnessPlan {
    /// Share of memory that is fast: what a tracker may choose.
    pub fast_share: f64,
    /// Full-size nanoseconds between two walks.
    pub window_ns: u64,
}

/// A tracker's share of a core at a size of memory.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Growth {
    /// Memory.
    pub gib: u64,
    /// Processor time over that of the program's cores. Modelled.
    pub cpu_share: f64,
}

/// How a tracker did.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct TrackerScore {
    /// The tracker.
    pub name: String,
    /// Spearman's correlation of its estimate with the true counts, by 4 KiB page; mean over windows.
    pub rank_correlation: f64,
    /// Share of the truly hottest pages that it has among its hottest; as many as fast memory holds.
    pub top_k_overlap: f64,
    /// Share of its choices for fast memory that were among the hottest in the window that followed.
    pub precision: f64,
    /// Share of the hottest of that window that it had chosen.
    pub recall: f64,
    /// Processor time over that of the program's cores.
    pub cpu_share: f64,
    /// Bytes it moved over those the program moved.
    pub bandwidth_share: f64,
    /// Bytes it keeps for each GiB.
    pub bytes_per_gib: f64,
    /// Entries, counters or list members looked at to find candidates, a window.
    pub candidate_search_operations: f64,
    /// What the process that is served worst gets of what is due to it, over the same of the one served best; `None` with one
    /// process.
    pub fairness: Option<f64>,
    /// What each process gets of what is due to it, 0 to 1, mean over windows; empty with one process.
    pub served_by_process: Vec<f64>,
    /// Cost as memory grows. Modelled.
    pub growth: Vec<Growth>,
}

/// What came of it.
#[derive(Clone, Debug, serde::Serialize)]
pub struct HotnessReport {
    /// The source.
    pub workload: String,
    /// The second process.
    pub beside: Option<String>,
    /// All processes, where there are several.
    pub processes: Vec<String>,
    /// Memory at most, on the scaled machine.
    pub footprint_bytes: u64,
    /// Factor by which the machine was shrunk.
    pub scale: u32,
    /// Windows scored.
    pub windows: u32,
    /// Full-size seconds of a window.
    pub window_seconds: f64,
    /// Seconds of the run, scaled.
    pub seconds: f64,
    /// Share of memory that is fast.
    pub fast_share: f64,
    /// The trackers.
    pub trackers: Vec<TrackerScore>,
    /// Heat over time.
    #[serde(skip)]
    pub picture: HeatPicture,
}

/// Runs `source`, with `beside` as a second process, and scores every tracker.
///
/// # Errors
/// As [`crate::run::run`]; and when the run is too short for three windows.
pub fn run(
    config: &SimConfig,
    plan: &HotnessPlan,
    source: &dyn Source,
    beside: Option<&crate::colocate::Recorded>,
) -> Result<HotnessReport, SimError> {
    let mut config = config.clone();
    let mmu = config.mmu.get_or_insert_with(|| MmuConfig::new(1));
    mmu.counters = None;
    let cores = mmu.cores;
    if beside.is_some() {
        // The second process is as large as the first.
        config.footprint = Bytes::new(2 * config.footprint.get());
    }
    let mut simulation = Simulation::unlimited(config.clone(), Box::new(Fixed(TierId::FAST)))?;
    let machine = config.acting();
    let cycle_ns = 1e9 / machine.processor.frequency_hertz;
    let cache = config.scale.cache(machine.processor.cache.capacity);
    let slow = machine.tiers.last().map_or(0.0, |tier| tier.read_latency_ns);
    let trackers = Tracker::all(cycle_ns, cache, machine.tiers[0].read_latency_ns, slow);
    let processes = beside.map_or_else(|| source.processes(), |other| other.beside(&source.name()).to_vec());
    let several = processes.len() > 1;
    let starts = processes.iter().map(|process| process.first_page).collect();
    let probe = Probe::new(trackers, plan.fast_share, plan.window_ns, starts, machine.management);
    simulation.watch_with(probe);
    if let Some(other) = beside {
        simulation.play_beside(&source.name(), other.clone());
    }
    let (simulation, played) = play_alone(simulation, source);
    let (report, probe) = simulation.finish_watched(&source.name())?;
    played?;
    if probe.windows < 3 {
        let value = format!("{:.4} s for a run of {:.4} s", plan.window_ns as f64 / 1e9, report.full_size_seconds);
        return Err(SimError::Parameter {
            name: "window",
            value,
            wanted: "at most a third of the run; a longer run has more operations".to_owned(),
        });
    }
    let traffic: u64 = report.tier_bytes.iter().flatten().sum();
    let core_ns = report.seconds * 1e9 * cores as f64;
    let memory_bytes = report.footprint_bytes as f64 * f64::from(report.scale);
    let gib = memory_bytes / (1u64 << 30) as f64;
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    let trackers = probe
        .trackers
        .iter()
        .map(|(tracker, scores)| {
            let cost = tracker.cost();
            let windows = f64::from(scores.windows);
            TrackerScore {
                name: tracker.name(),
                rank_correlation: share(scores.correlation, windows),
                top_k_overlap: share(scores.overlap, windows),
                precision: share(scores.right as f64, scores.picked as f64),
                recall: share(scores.right as f64, scores.wanted as f64),
                cpu_share: share(cost.fixed_ns + cost.linear_ns, core_ns),
                bandwidth_share: share(cost.bytes as f64, traffic as f64),
                bytes_per_gib: tracker.bytes_per_gib(gib),
                candidate_search_operations: cost.searched as f64 / f64::from(probe.windows),
                fairness: several.then(|| share(scores.fairness, f64::from(scores.judged))),
                served_by_process: scores.served.iter().map(|sum| share(*sum, f64::from(scores.judged))).collect(),
                growth: GROWTH
                    .into_iter()
                    .map(|size| {
                        let grown = cost.fixed_ns + cost.linear_ns * share(size as f64, gib);
                        Growth { gib: size, cpu_share: share(grown, core_ns) }
                    })
                    .collect(),
            }
        })
        .collect();
    Ok(HotnessReport {
        workload: source.name(),
        beside: beside.map(|other| other.name.clone()),
        processes: processes.into_iter().map(|process| process.name).collect(),
        footprint_bytes: report.footprint_bytes,
        scale: report.scale,
        windows: probe.windows - 1,
        window_seconds: plan.window_ns as f64 / 1e9,
        seconds: report.seconds,
        fast_share: plan.fast_share,
        trackers,
        picture: probe.picture,
    })
}
