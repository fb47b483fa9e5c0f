//! The report of a managed run: what was saved, what it cost, and how it went over time.
//!
//! Entry: [`Report`], [`write_report`].
//! In: figures the manager measured.
//! Out: report.json (this file's types are its schema, documented in docs/reference/report.md), report.html and the lines a person sees at the end.
//! Must not: compute a figure that was not measured, or mix estimates with measurements without saying so.
//!
//! [`plots`] and [`html`] are the one stack of charts and pages, which research draws with, too. [`terminal`] is what prints.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
mod example;
pub mod files;
mod heat;
pub mod html;
pub mod markup;
pub mod plots;
pub mod terminal;
pub mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
pub use terrace_common::figures as units;
use terrace_core::governor::Throttle;

pub use files::write_report;

/// How a note says that a process was there and not managed.
pub const IS_LEFT_ALONE: &str = "is left alone";

/// Version of the JSON below; it grows by one when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 2;

/// A managed or observed run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
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
    /// Share of its pages in use that could come back in a minute; `null` without `--max-promotions`.
    #[serde(default)]
    pub max_promotions: Option<f64>,
    /// The tiers from fast to slow.
    pub tiers: Vec<TierReport>,
    /// Mean over time of the fast memory the program did without: what Terrace had moved to swap and what lay in slower nodes, less what holds
    /// its data in memory: zram, zswap's pool, the swap cache.
    pub fast_bytes_saved_mean: u64,
    /// The same at the end.
    pub fast_bytes_saved_end: u64,
    /// The same at its highest.
    pub fast_bytes_saved_peak: u64,
    /// Where the data of what Terrace had moved to swap were at the end.
    #[serde(default)]
    pub swap_end: SwapReport,
    /// The same when most was saved.
    #[serde(default)]
    pub swap_peak: SwapReport,
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
    /// What was found inside of huge pages.
    #[serde(default)]
    pub inside: InsideReport,
    /// The file cache of the cgroup, apart from all above; `null` where no whole cgroup was managed.
    #[serde(default)]
    pub file_cache: Option<FileCacheReport>,
    /// Pages the program touched after they had left fast memory.
    pub refaults: u64,
    /// Of these, those of the last seconds of a program that ended, beyond what came back at the rate until then.
    #[serde(default)]
    pub refaults_at_end: u64,
    /// Demotions undone within 20 seconds: the page was back sooner than it had been idle before it left.
    pub ping_pong_pages: u64,
    /// Promotions a minute as a share of the pages in use, which 98 of 100 minutes stayed within: returns and promotions of each program and
    /// minute in which it ran. `null` for a run of less than a minute, and where no program is known to run or sleep.
    #[serde(default)]
    pub promotions_p98: Option<f64>,
    /// Seconds during which page-outs were limited to the bound, or stopped, by state: the names of [`PageOuts`].
    #[serde(default)]
    pub page_outs_seconds: BTreeMap<String, f64>,
    /// The same by cause, under names that stay for one release.
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
pub struct TargetReport {
    /// Its command line; empty when attached by pid.
    pub command: Vec<String>,
    /// Its pid; of several processes the first.
    pub pid: u32,
    /// The cgroup, if that was managed.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// Whether all processes of the machine were managed.
    #[serde(default)]
    pub everything: bool,
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

impl TargetReport {
    /// Seconds as a share of the program's time, as the bound takes it: of the time it ran, or of its CPU time where several cores make that more.
    pub fn share_of_time(&self, seconds: f64) -> f64 {
        let time = self.wall_seconds.max(self.cpu_seconds);
        if time > 0.0 { seconds / time } else { 0.0 }
    }
}

/// One tier over the run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TierReport {
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
    /// For a compressed tier, mean of the memory it took for what Terrace had moved there.
    pub mean_occupied_bytes: Option<u64>,
}

/// What Terrace had moved to swap, by where its data were, at one moment. What several processes share in a pool counts by pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapReport {
    /// All of it.
    pub swapped_bytes: u64,
    /// Pages of zeros, which are stored nowhere.
    pub zeros_bytes: u64,
    /// In zram, before compression.
    pub zram_stored_bytes: u64,
    /// Memory that zram took for that.
    pub zram_bytes: u64,
    /// In zswap, before compression.
    pub zswap_stored_bytes: u64,
    /// Memory that zswap took for that.
    pub zswap_pool_bytes: u64,
    /// Still in memory: it had a swap entry, and lay in the swap cache.
    pub swap_cache_bytes: u64,
    /// On a disk.
    pub disk_bytes: u64,
}

/// Pages of 4 KiB.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MovedPages {
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
pub struct MovedByUnit {
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

/// What is known of the inside of huge pages: a few are split, and then each of their pages shows whether it is used. Blocks are of 2 MiB.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InsideReport {
    /// Whether the policy looked inside.
    pub looked: bool,
    /// Memory in huge pages at the end, of which only the whole shows whether it is used.
    pub huge_bytes: u64,
    /// Blocks split for it.
    pub split_blocks: u64,
    /// Blocks of which is known by now how many of their pages are used.
    pub looked_into_blocks: u64,
    /// Of these, used by less than a tenth of their pages.
    pub sparse_blocks: u64,
    /// Of these, so evenly used that nothing of them is worth moving.
    pub even_blocks: u64,
    /// Memory that had left as pieces of split blocks, at its highest.
    pub left_bytes: u64,
    /// Blocks made huge again, because they had been split in vain.
    pub huge_again_blocks: u64,
    /// Blocks that were to be split and were left whole, by the reason.
    pub left_whole_blocks: BTreeMap<String, u64>,
    /// Of the memory in huge pages when it was looked into, what is used, as estimated from the blocks; `null` where none was looked into.
    pub used_bytes: Option<u64>,
    /// Lower end of the interval of 95 % of that.
    pub used_bytes_low: Option<u64>,
    /// Upper end.
    pub used_bytes_high: Option<u64>,
}

/// What left of the file cache of a cgroup (`--file-cache`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileCacheReport {
    /// The rule by which it left.
    pub rule: String,
    /// File cache that left at Terrace's requests, by the kernel's count. What was read again and left again counts again.
    pub left_bytes: u64,
    /// File cache that was there at the end.
    pub at_end_bytes: u64,
    /// Pages of 4 KiB of the cgroup that were read again after they had left, whatever took them.
    pub refaulted_pages: u64,
    /// Time in which some task of the cgroup waited for memory.
    pub stalled_seconds: f64,
    /// Time for which it was looked after.
    pub seconds: f64,
    /// Why it was left alone, or left alone from some moment on; `null` where it was not.
    pub not_possible: Option<String>,
}

/// What being managed cost the program, in its own time. Counted, and priced by what was measured at the start.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CostReport {
    /// Being watched: reading and clearing accessed bits, and touching again the pages whose bits were cleared. `--max-overhead` bounds it.
    pub watching_seconds: f64,
    /// Moves: interrupts of the program's processors, and processor time of the mover where no processor was idle.
    pub moving_seconds: f64,
    /// Pages that came back: refaults times the measured cost of one.
    pub refault_seconds: f64,
    /// Of that, what the program read back as it ended: [`Report::refaults_at_end`]. No bound holds for it.
    #[serde(default)]
    pub ending_seconds: f64,
    /// CPU time of Terrace itself, which the first two contain as far as the program had to wait for it.
    pub own_cpu_seconds: f64,
    /// What the program lost: watching, moves and pages that came back, over its time ([`TargetReport::share_of_time`]).
    #[serde(default)]
    pub lost_share: f64,
    /// The same over its CPU time alone.
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
pub struct ManagerReport {
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
pub struct Point {
    /// Seconds since the start.
    pub seconds: f64,
    /// Memory of the program in the fastest tier.
    pub fast_bytes: u64,
    /// Memory of the program in slower tiers.
    pub slow_bytes: u64,
    /// Memory that compressed tiers took for what Terrace had moved there.
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
    /// What the program lost since the start: see [`ManagerReport::stall_seconds`].
    #[serde(default)]
    pub lost_seconds: f64,
    /// Share of the memory with a window that was accessed in the latest round, 0 to 1.
    pub accessed_share: f64,
    /// What page-outs did.
    #[serde(default)]
    pub page_outs: PageOuts,
    /// Whether they were limited or stopped; it stays for one release.
    pub throttled: bool,
}

/// What page-outs did at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageOuts {
    /// Nothing limited them.
    #[default]
    Free,
    /// They waited for the budget of the bound, and went on as it allowed.
    LimitedToBound,
    /// They stopped because pages came back.
    StoppedCameBack,
    /// They stopped because data hardly compress.
    StoppedCompression,
    /// They stopped because as much came back in a minute as may.
    StoppedPromotions,
}

impl PageOuts {
    /// Whether none left.
    pub fn are_stopped(self) -> bool {
        !matches!(self, PageOuts::Free | PageOuts::LimitedToBound)
    }

    /// The state in words.
    pub fn in_words(self) -> &'static str {
        self.throttle().map_or("not limited", Throttle::in_words)
    }

    /// A reason for the state; `None` where nothing limits.
    fn throttle(self) -> Option<Throttle> {
        match self {
            PageOuts::Free => None,
            PageOuts::LimitedToBound => Some(Throttle::Moves),
            PageOuts::StoppedCameBack => Some(Throttle::Refaults),
            PageOuts::StoppedCompression => Some(Throttle::Compression),
            PageOuts::StoppedPromotions => Some(Throttle::Promotions),
        }
    }
}

impl From<Option<Throttle>> for PageOuts {
    fn from(throttle: Option<Throttle>) -> PageOuts {
        match throttle {
            None => PageOuts::Free,
            Some(Throttle::Moves | Throttle::Watching) => PageOuts::LimitedToBound,
            Some(Throttle::Refaults) => PageOuts::StoppedCameBack,
            Some(Throttle::Compression) => PageOuts::StoppedCompression,
            Some(Throttle::Promotions) => PageOuts::StoppedPromotions,
        }
    }
}

/// Accessed share by address and time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HeatMap {
    /// Start of each column, seconds.
    pub column_seconds: Vec<f64>,
    /// First address of each row, and its length in bytes; rows cover mapped memory only, in address order.
    pub rows: Vec<HeatRow>,
    /// `cells[column][row]`: accessed share of the pages in memory, 0 to 1; -1 where nothing was seen.
    pub cells: Vec<Vec<f32>>,
}

/// A row of the heat map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatRow {
    /// The process.
    pub pid: u32,
    /// Its first address.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Memory by idle time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgeBin {
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
    const OPEN: [&str; 9] = [
        "policy_settings",
        "settings",
        "page_outs_seconds",
        "throttled_seconds",
        "rejected_pages",
        "moved_pages.failed_by_cause",
        "moved_pages.by_unit.apart",
        "moved_pages.moved_by_reason",
        "inside.left_whole_blocks",
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
    fn states_of_page_outs_have_one_name_and_the_same_words_everywhere() {
        use terrace_core::governor::{FREE, state_in_words};

        let reference = include_str!("../../../docs/reference/report.md");
        for throttle in Throttle::ALL.into_iter().map(Some).chain([None]) {
            let state = PageOuts::from(throttle);
            let name = throttle.map_or(FREE, Throttle::state);
            assert_eq!(serde_json::to_value(state).unwrap(), name);
            assert_eq!((state.in_words(), state.are_stopped()), (state_in_words(name), name.starts_with("stopped_")));
            assert!(reference.contains(&format!("`{name}`")), "report.md does not name {name}");
        }
    }

    #[test]
    fn the_reference_names_every_key_and_no_other() {
        let reference = include_str!("../../../docs/reference/report.md");
        let rows = reference.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        let documented: BTreeSet<String> = rows.map(str::to_owned).collect();
        let mut written = BTreeSet::new();
        let made = terrace_common::provenance::Provenance::here().under("age", &BTreeMap::new());
        paths(&made.stamp(&example::managed()).unwrap(), "", &mut written);
        let missing: Vec<&String> = written.difference(&documented).collect();
        let stale: Vec<&String> = documented.difference(&written).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "missing in report.md: {missing:?}; no longer written: {stale:?}"
        );
    }
}
