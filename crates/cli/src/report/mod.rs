//! The report of a managed run: what was saved, what it cost, and how it went over time.
//!
//! In: figures the manager measured. Out: report.json (this file's types are its schema, documented in
//! docs/reference/report.md), report.html and the lines a person sees at the end. Must not: compute a figure that was
//! not measured, or mix estimates with measurements without saying so.

pub(crate) mod comparison;
mod files;
mod heat;
mod html;
pub(crate) mod lab;
mod markup;
mod places;
mod plots;
pub(crate) mod sim;
pub(crate) mod text;

#[cfg(test)]
mod example;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
pub(crate) use terrace_daemon::view::HeatRow;
pub(crate) use terrace_study::figures as units;

pub(crate) use files::write_report;
pub(crate) use places::Places;

/// Version of the JSON below; it grows by one when a key changes its meaning or goes away.
pub(crate) const SCHEMA_VERSION: u32 = 2;

/// A managed or observed run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// What ran.
    pub target: TargetReport,
    /// The tracker that was used, and the reasons it was chosen before others.
    pub tracker: String,
    /// One line for each tracker that was considered.
    pub tracker_reasons: Vec<String>,
    /// The policy, and its settings as given.
    pub policy: String,
    /// Settings given on the command line.
    pub policy_settings: BTreeMap<String, String>,
    /// The goal for fast memory as it was given: "50%", "2GiB", "min".
    pub fast_goal: String,
    /// Share of its time that the program may lose; `null` for an observed run.
    #[serde(default)]
    pub max_slowdown: Option<f64>,
    /// Share of its time that page-outs could cost at the start instead; `null` without `--invest`.
    #[serde(default)]
    pub invest: Option<f64>,
    /// How long that lasted.
    #[serde(default)]
    pub invested_seconds: f64,
    /// The tiers from fast to slow.
    pub tiers: Vec<TierReport>,
    /// Mean over time of the fast memory the program did without: what Terrace had moved to swap and what lay in slower nodes, less what a
    /// compressed tier itself occupied for it.
    pub fast_bytes_saved_mean: u64,
    /// The same at the end.
    pub fast_bytes_saved_end: u64,
    /// The same at its highest.
    pub fast_bytes_saved_peak: u64,
    /// Mean over time of the program's memory in swap that Terrace did not move: the program itself or the kernel put it out.
    #[serde(default)]
    pub swapped_by_others_bytes_mean: u64,
    /// The same at the end.
    #[serde(default)]
    pub swapped_by_others_bytes_end: u64,
    /// The same at its highest.
    #[serde(default)]
    pub swapped_by_others_bytes_peak: u64,
    /// Memory that was left in fast memory because it does not compress, at its highest.
    #[serde(default)]
    pub incompressible_bytes_peak: u64,
    /// Pages of 4 KiB that changed tier, or did not.
    pub moved_pages: MovedPages,
    /// Pages the program touched after they had left fast memory.
    pub refaults: u64,
    /// Demotions undone within 20 seconds: the page was back sooner than it had been idle before it left.
    pub ping_pong_pages: u64,
    /// Seconds during which page-outs were stopped, by cause ("refaults", "compression").
    pub throttled_seconds: BTreeMap<String, f64>,
    /// Requests of the policy that were not granted, by reason.
    pub rejected_pages: BTreeMap<String, u64>,
    /// What Terrace itself cost.
    pub manager: ManagerReport,
    /// What it cost the program.
    #[serde(default)]
    pub cost: CostReport,
    /// Proof in place, if `--metric` asked for it.
    #[serde(default)]
    pub proof: Option<terrace_linux::live_proof::ProofState>,
    /// One point about every second.
    pub timeline: Vec<Point>,
    /// Address by time.
    pub heat_map: HeatMap,
    /// Memory by idle time at the end.
    pub age_histogram: Vec<AgeBin>,
    /// Things a reader should know: fallbacks taken, what could not be measured.
    pub notes: Vec<String>,
    /// How many of `notes`, from the end, are of the machine and change nothing for the run: the closing lines do without them.
    #[serde(skip)]
    pub background_notes: usize,
}

/// The managed program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TargetReport {
    /// Its command line; empty when attached by pid.
    pub command: Vec<String>,
    /// Its pid; of several processes the first.
    pub pid: u32,
    /// The cgroup, if that was managed.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// Whether it was over before Terrace let go of it.
    #[serde(default)]
    pub ended: bool,
    /// Its exit code, 128 + n when signal n ended it; `null` when it outlived Terrace.
    pub exit_code: Option<i32>,
    /// How long it ran under Terrace.
    pub wall_seconds: f64,
    /// CPU time of the program itself.
    pub cpu_seconds: f64,
    /// Its highest resident memory.
    pub peak_rss_bytes: u64,
    /// Highest memory in all tiers together.
    pub peak_footprint_bytes: u64,
    /// Processes managed, children included.
    pub processes: u32,
}

/// One tier over the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TierReport {
    /// Its name.
    pub name: String,
    /// "nodes" or "swap".
    pub kind: String,
    /// What it can hold.
    pub capacity_bytes: u64,
    /// Mean over time of what it held of the program.
    pub mean_used_bytes: u64,
    /// What it held at the end.
    pub end_used_bytes: u64,
    /// For a compressed tier, mean of the memory it occupied itself.
    pub mean_occupied_bytes: Option<u64>,
}

/// Pages of 4 KiB.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MovedPages {
    /// To slower tiers.
    pub demoted: u64,
    /// To faster tiers by Terrace; what came back because the program touched it is `refaults`.
    pub promoted: u64,
    /// That should have moved and did not.
    pub failed: u64,
    /// Those by errno or cause.
    pub failed_by_cause: BTreeMap<String, u64>,
    /// Pages of Terrace itself that were moved between nodes to measure what that costs; the kernel counts them as well.
    #[serde(default)]
    pub measuring: u64,
    /// Moves by reason.
    pub moved_by_reason: BTreeMap<String, u64>,
    /// Those that went to slower memory, by what the kernel unmapped at once.
    #[serde(default)]
    pub by_unit: MovedByUnit,
}

/// Pages of 4 KiB that went to slower memory. What is unmapped at once interrupts the program once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct MovedByUnit {
    /// One by one.
    pub single: u64,
    /// Of these the ones that went from the processor of the program's only busy thread: they interrupted nobody.
    #[serde(default)]
    pub local: u64,
    /// As huge pages of the program.
    pub huge: u64,
    /// As whole blocks that were made one huge page first.
    pub collapsed: u64,
    /// Of the single pages those that made up whole blocks, by the reason why they were not made one.
    pub apart: BTreeMap<String, u64>,
}

/// What being managed cost the program, in its own time. Counted, and priced by what was measured at the start.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CostReport {
    /// Being watched: reading and clearing accessed bits, and touching again the pages whose bits were cleared. `--max-overhead` bounds it.
    pub watching_seconds: f64,
    /// Moves: interrupts of the program's processors, and processor time of the mover where no processor was idle.
    pub moving_seconds: f64,
    /// Pages that came back: refaults times the measured cost of one.
    pub refault_seconds: f64,
    /// CPU time of Terrace itself, which the first two contain as far as the program had to wait for it.
    pub own_cpu_seconds: f64,
    /// The first three together, over the CPU time of the program.
    pub share_of_target: f64,
    /// Accessed bits cleared that the program set again.
    pub touched_bits: u64,
    /// Measured at start: what the program pays to touch a page again whose bit was cleared, in nanoseconds.
    pub touch_nanoseconds: f64,
    /// How many times the budget for watching was halved at the end, because nothing came of watching: 0 to 5.
    pub back_off: u32,
}

/// What Terrace cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ManagerReport {
    /// Its CPU time, user and kernel, page-outs included.
    pub cpu_seconds: f64,
    /// The part in user mode: what it costs beyond the kernel's own work.
    pub user_cpu_seconds: f64,
    /// Its highest resident memory.
    pub max_rss_bytes: u64,
    /// Estimate of all that it cost the program: `cost.watching_seconds`, `cost.moving_seconds` and `cost.refault_seconds` together.
    pub stall_seconds: f64,
    /// Measured at start: what one refault costs, in microseconds; `null` without a swap tier.
    pub refault_microseconds: Option<f64>,
    /// Rounds of accessed bits.
    pub rounds: u64,
    /// Hint faults seen, on pages of slow tiers.
    #[serde(default)]
    pub hint_faults: u64,
    /// Pages mapped for the first time, as reported when it happened, including copies on write and pages back from swap; 0 if the policy
    /// does not ask or the kernel does not tell.
    #[serde(default)]
    pub births: u64,
    /// Pages freed, reported in the same way.
    #[serde(default)]
    pub deaths: u64,
    /// What the kernel module did by the policy's marks, if the policy orders the kernel's own lists.
    #[serde(default)]
    pub kernel_lists: Option<terrace_linux::kernel_lists::Counts>,
    /// Mean time of one round.
    pub round_milliseconds_mean: f64,
    /// Longest single call that moved pages.
    pub longest_move_call_milliseconds: f64,
}

/// The state at one moment.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Point {
    /// Seconds since the start.
    pub seconds: f64,
    /// Memory of the program in the fastest tier.
    pub fast_bytes: u64,
    /// Memory of the program in slower tiers.
    pub slow_bytes: u64,
    /// Memory a compressed tier occupied itself.
    pub slow_occupied_bytes: u64,
    /// Fast memory saved: see [`Report::fast_bytes_saved_mean`].
    #[serde(default)]
    pub saved_bytes: u64,
    /// Of `slow_bytes`, what is in swap and was not moved by Terrace.
    #[serde(default)]
    pub swapped_by_others_bytes: u64,
    /// Resident memory of the program as the kernel counts it.
    pub resident_bytes: u64,
    /// Pages demoted since the start.
    pub demoted_pages: u64,
    /// Pages promoted since the start.
    pub promoted_pages: u64,
    /// Refaults since the start.
    pub refaults: u64,
    /// Terrace's CPU time since the start.
    pub manager_cpu_seconds: f64,
    /// Share of the memory with a window that was accessed in the latest round, 0 to 1.
    pub accessed_share: f64,
    /// Whether page-outs were stopped.
    pub throttled: bool,
}

/// Accessed share by address and time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HeatMap {
    /// Start of each column, seconds.
    pub column_seconds: Vec<f64>,
    /// First address of each row, and its length in bytes; rows cover mapped memory only, in address order.
    pub rows: Vec<HeatRow>,
    /// `cells[column][row]`: accessed share of the pages in memory, 0 to 1; -1 where nothing was seen.
    pub cells: Vec<Vec<f32>>,
}

/// Memory by idle time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AgeBin {
    /// Idle for at least this,
    pub from_seconds: f64,
    /// and less than this; `null` for the last.
    pub to_seconds: Option<f64>,
    /// In the fastest tier.
    pub fast_bytes: u64,
    /// In slower tiers.
    pub slow_bytes: u64,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    /// Objects whose keys are causes, reasons or settings; the documentation has a `*` for those.
    const OPEN: [&str; 7] = [
        "policy_settings",
        "settings",
        "throttled_seconds",
        "rejected_pages",
        "moved_pages.failed_by_cause",
        "moved_pages.by_unit.apart",
        "moved_pages.moved_by_reason",
    ];

    fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(entries) => {
                if !path.is_empty() {
                    found.insert(path.to_owned());
                }
                for (key, entry) in entries {
                    let key = if OPEN.contains(&path) { "*" } else { key };
                    let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
                    paths(entry, &path, found);
                }
            }
            Value::Array(entries) => entries.iter().for_each(|entry| paths(entry, &format!("{path}[]"), found)),
            _ => {
                found.insert(path.to_owned());
            }
        }
    }

    #[test]
    fn the_reference_names_every_key_and_no_other() {
        let reference = include_str!("../../../../docs/reference/report.md");
        let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let documented: BTreeSet<String> = rows.map(str::to_owned).collect();
        let mut written = BTreeSet::new();
        let made = crate::provenance::Provenance::here().under("age", &BTreeMap::new());
        paths(&made.stamp(&example::managed()).unwrap(), "", &mut written);
        let missing: Vec<&String> = written.difference(&documented).collect();
        let stale: Vec<&String> = documented.difference(&written).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "missing in report.md: {missing:?}; no longer written: {stale:?}"
        );
    }
}
