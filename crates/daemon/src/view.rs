//! The state that the daemon shows: one form for status, classes, metrics and the web interface.
//!
//! In: figures that the daemon collects once per period. Out: plain data that goes over the socket as JSON; the command reads it back into
//! the same types. Must not: compute. docs/reference/daemon.md lists every field, and a test compares the two.

use serde::{Deserialize, Serialize};
pub use terrace_run::heat::HeatRow;

/// Increases when a field changes its meaning or is removed. New fields may be added at any time.
pub const SCHEMA_VERSION: u32 = 1;

/// The state of a daemon whose loop does not turn.
pub const HUNG: &str = "hung";

/// The whole status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this form.
    pub schema_version: u32,
    /// Version of Terrace.
    pub version: String,
    /// The daemon's pid.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// running, paused, draining, drained, or hung: the loop has not turned within `daemon.watchdog`.
    pub state: String,
    /// Seconds since the daemon's loop last turned.
    #[serde(default)]
    pub loop_age_seconds: f64,
    /// How new processes are detected, and why that way.
    pub process_events: String,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// The budgets.
    pub budget: Budget,
    /// The daemon's own use.
    pub own: Own,
    /// The classes, in the order in which processes are assigned.
    pub classes: Vec<Class>,
    /// Processes that a class matches but that cannot be managed, with the reason; at most 100.
    pub refused: Vec<Refused>,
    /// Others that move pages or clear accessed bits.
    pub rivals: Vec<Rival>,
    /// What is unusual about the machine.
    pub notes: Vec<String>,
    /// What the rest of the machine holds idle, if `metrics.survey` is on.
    #[serde(default)]
    pub survey: Option<Survey>,
}

/// What the machine holds idle beside what the service manages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Survey {
    /// For how long it was watched.
    pub watched_seconds: f64,
    /// Share of one core that watching took.
    pub cpu_share: f64,
    /// The cgroups, at most 100; those beyond are one of the kind other, and programs in no cgroup one of the kind program.
    pub groups: Vec<SurveyGroup>,
    /// Why idle memory cannot be seen, if so.
    pub trouble: Option<String>,
}

/// A cgroup of the survey.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SurveyGroup {
    /// service, container, session, cgroup, program or other.
    pub kind: String,
    /// Its path; empty for program and other.
    pub cgroup: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Anonymous memory that was idle for a minute.
    pub idle_one_minute_bytes: Option<u64>,
    /// The same for two.
    pub idle_two_minutes_bytes: Option<u64>,
    /// The same for five.
    pub idle_five_minutes_bytes: Option<u64>,
    /// File cache that was not used lately.
    pub file_inactive_bytes: Option<u64>,
    /// What managing it would give back.
    pub could_save_bytes: Option<u64>,
}

/// One tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// nodes or swap.
    pub kind: String,
    /// Its capacity.
    pub capacity_bytes: u64,
    /// Pages of all classes in it.
    pub used_bytes: u64,
    /// Memory that a compressed tier uses.
    pub occupied_bytes: Option<u64>,
}

/// The budgets and their use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Fast memory for all classes.
    pub fast_bytes: u64,
    /// Fast memory that they hold.
    pub fast_used_bytes: u64,
    /// Bytes per second that may change tier.
    pub bandwidth_bytes_per_second: u64,
    /// Share of one core.
    pub cpu_share: f64,
    /// Of that, tracking processes and answering requests.
    pub cpu_overhead_share: f64,
}

/// The daemon's own use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Processor time since it started.
    pub cpu_seconds: f64,
    /// Share of one core over the last minute.
    pub cpu_share: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Memory for page state: eight bytes per page, and the state of policies.
    pub page_state_bytes: u64,
}

/// One class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// waiting (no process), running, held (proof), stopped (harm), paused, draining, drained or failed.
    pub state: String,
    /// Why it is not running, if it is not.
    pub reason: Option<String>,
    /// The policy.
    pub policy: String,
    /// The goal, as configured.
    pub goal: String,
    /// How accesses are observed.
    pub tracker: Option<String>,
    /// Processes under management.
    pub processes: u64,
    /// Memory in use.
    pub footprint_bytes: u64,
    /// Of that in fast memory.
    pub fast_bytes: u64,
    /// Of that in slower tiers.
    pub slow_bytes: u64,
    /// The working set.
    pub active_bytes: u64,
    /// Fast memory granted.
    pub granted_bytes: u64,
    /// The current floor.
    pub floor_bytes: u64,
    /// The ceiling, if there is one.
    pub ceiling_bytes: Option<u64>,
    /// The weight.
    pub weight: u32,
    /// Bytes per second granted.
    pub bandwidth_bytes_per_second: u64,
    /// Share of one core granted.
    pub cpu_granted_share: f64,
    /// Processor time spent on it.
    pub cpu_seconds: f64,
    /// Whether its work waits for processor time.
    pub short_of_cpu: bool,
    /// Share of the recent accesses that fast memory served.
    pub hit_share: Option<f64>,
    /// Pages moved to slower tiers.
    pub demoted_pages: u64,
    /// Pages moved to faster tiers.
    pub promoted_pages: u64,
    /// Moves that failed, in pages, by cause.
    pub failed_pages: std::collections::BTreeMap<String, u64>,
    /// Pages moved, by route and reason.
    pub moves: Vec<Moves>,
    /// Rejected requests of the policy, in pages, by reason.
    pub rejected_pages: std::collections::BTreeMap<String, u64>,
    /// Refaulted pages.
    pub refaults: u64,
    /// Demotions that turned out wrong.
    pub ping_pong_pages: u64,
    /// Promotions a minute as a share of the pages in use, which 98 of 100 minutes stayed within.
    pub promotions_p98: Option<f64>,
    /// Its programs that sleep.
    pub asleep: u64,
    /// Pages fetched ahead for those that woke.
    pub fetched_ahead_pages: u64,
    /// Major faults of its processes.
    pub major_faults: u64,
    /// Estimated share of its time lost to refaults, moves and tracking.
    pub stall_share: f64,
    /// The most of its time that it may lose (max_slowdown), while it is managed.
    #[serde(default)]
    pub bound_share: Option<f64>,
    /// Its time lost to tracking, including Terrace's own work for it.
    pub watching_seconds: f64,
    /// Its time lost to moves, without refaults.
    pub moving_seconds: f64,
    /// How many times the budget for tracking was halved because tracking led to no moves: 0 to 5.
    pub watching_back_off: u32,
    /// The factor by which idle thresholds are lengthened.
    pub backoff: f64,
    /// Whether page-outs are limited to the bound, or stopped and why: the names of `terrace_core::governor::Throttle::state`, or "free".
    #[serde(default)]
    pub page_outs: String,
    /// Time for which they were limited or stopped, by state.
    #[serde(default)]
    pub page_outs_seconds: std::collections::BTreeMap<String, f64>,
    /// The cause of it, under a name that stays for one release.
    pub throttle: Option<String>,
    /// The time by cause, under a name that stays for one release.
    pub throttled_seconds: std::collections::BTreeMap<String, f64>,
    /// Scans of its pages.
    pub rounds: u64,
    /// Time they took.
    pub round_seconds: f64,
    /// Longest single call that moved pages.
    pub longest_move_call_seconds: f64,
    /// Events that the tracker lost.
    pub lost_events: u64,
    /// For the goals never-slow and never-fast: how well they are kept.
    pub contract: Option<Contract>,
    /// Proof mode, if it is on.
    pub proof: Option<Proof>,
    /// The tuner, if the class has a target.
    pub tuned: Option<Tuned>,
    /// Its file cache, if it is a whole cgroup.
    #[serde(default)]
    pub file_cache: Option<FileCache>,
}

/// Pages moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moves {
    /// Source tier.
    pub from: String,
    /// Target tier.
    pub to: String,
    /// Reason.
    pub reason: String,
    /// Number of pages.
    pub pages: u64,
}

/// The audit of the goals never-slow and never-fast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    /// never-slow or never-fast.
    pub promise: String,
    /// Bytes in the wrong tier now.
    pub violating_bytes: u64,
    /// The most bytes that ever were in the wrong tier.
    pub worst_bytes: u64,
    /// Pages that Terrace itself moved against the goal: always 0, or it is a defect.
    pub own_moves_against_it: u64,
}

/// The file cache of a class that is a whole cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileCache {
    /// The rule by which it leaves.
    pub rule: String,
    /// File cache that left at Terrace's requests.
    pub left_bytes: u64,
    /// File cache that was there at the last look.
    pub there_bytes: u64,
    /// Pages of 4 KiB that were read again after they had left, whatever took them.
    pub refaulted_pages: u64,
    /// Time in which some task of the cgroup waited for memory.
    pub stalled_seconds: f64,
    /// Why it is left alone, if so.
    pub not_possible: Option<String>,
}

/// The measurements of proof mode.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// What the class is measured by.
    pub metric: String,
    /// Windows compared.
    pub windows: u64,
    /// How much faster the class is in windows in which it is managed; below 0 it is slower.
    pub gain: Option<f64>,
    /// The ends of its interval: 90 % over all looks together.
    pub interval: Option<(f64, f64)>,
    /// Whether management stopped because harm was shown.
    pub frozen: bool,
    /// measuring, harmless or harmful.
    pub verdict: String,
    /// Why the metric cannot be read, if so.
    pub error: Option<String>,
}

/// A process that matches a class but is not managed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Refused {
    /// Its pid.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The class.
    pub class: String,
    /// Why not.
    pub reason: String,
}

/// Another program that moves pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rival {
    /// Its name.
    pub name: String,
    /// The evidence.
    pub state: String,
    /// Its effect, and what to do about it.
    pub effect: String,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Happening {
    /// Sequence number; ask for events after a number.
    pub number: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// The class it is about, if any.
    pub class: Option<String>,
    /// process, move, throttle, budget, config, state, rival or fault.
    pub kind: String,
    /// What happened, in a line.
    pub text: String,
}

/// A point of the timeline, one per period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since 1970.
    pub time: f64,
    /// Bytes in each tier, fastest first.
    pub tier_bytes: Vec<u64>,
    /// Memory that the compressed tier uses.
    pub occupied_bytes: u64,
    /// Fast bytes of each class, in the order of the classes.
    pub class_fast_bytes: Vec<u64>,
    /// Pages moved to slower tiers up to then.
    pub demoted_pages: u64,
    /// Pages moved to faster tiers up to then.
    pub promoted_pages: u64,
    /// Refaulted pages up to then.
    pub refaults: u64,
    /// The daemon's share of one core over the last minute.
    pub cpu_share: f64,
}

/// The timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Names of the tiers.
    pub tiers: Vec<String>,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The points, oldest first.
    pub points: Vec<Point>,
}

/// Which addresses of a class are accessed, over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// The class.
    pub class: String,
    /// The start of each column, seconds since 1970.
    pub columns: Vec<f64>,
    /// The rows, by process and address.
    pub rows: Vec<HeatRow>,
    /// By column, then row: the share of the row's pages that were accessed, 0 to 1; -1 if not scanned.
    pub cells: Vec<Vec<f32>>,
    /// Processes without a row: there are 128 rows at most.
    pub processes_left_out: u64,
}

/// The histogram of a class's pages by policy score.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bins {
    /// The class.
    pub class: String,
    /// Its policy.
    pub policy: String,
    /// The score that it ranks pages by, in words.
    pub ranked_by: String,
    /// The bins, lowest first.
    pub bins: Vec<Bin>,
    /// The thresholds of the policy, in the unit of the bins.
    pub thresholds: Vec<Threshold>,
    /// Share of the footprint that was counted; the result is scaled up by it.
    pub looked_at_share: f64,
    /// Why there are no bins, if there are none.
    pub note: Option<String>,
}

/// One bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// The score it starts at.
    pub from: f64,
    /// The score the next one starts at; the last has none.
    pub to: Option<f64>,
    /// Bytes in it.
    pub bytes: u64,
    /// Of that in fast memory, if the policy's histogram records it.
    pub fast_bytes: Option<u64>,
}

/// A threshold of a policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// Its name: hot, warm or cold.
    pub name: String,
    /// Its value.
    pub at: f64,
}

/// How much slower a class was with less fast memory, and the decisions of its tuner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizing {
    /// The class.
    pub class: String,
    /// The target: how much slower it may be than with everything fast.
    pub max_slowdown: f64,
    /// Target share of the footprint in fast memory.
    pub fast_share: f64,
    /// Actual share, including the memory that compressed pages use.
    pub held_share: f64,
    /// The measure of the loss.
    pub inputs: String,
    /// The latest decisions, oldest first.
    pub decisions: Vec<Decision>,
}

/// A decision of the tuner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since the tuner started.
    pub seconds: f64,
    /// Loss observed in the window before it, if it could be observed.
    pub observed_loss: Option<f64>,
    /// Loss predicted for that share, by a straight line through earlier observations.
    pub predicted_loss: Option<f64>,
    /// The new share.
    pub fast_share: f64,
    /// waited, kept, shrunk, grew or backed_off.
    pub action: String,
}

/// A class with a target, in short.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The target: how much slower it may be than with everything fast.
    pub max_slowdown: f64,
    /// Target share of the footprint in fast memory; 1 until the tuner has decided.
    pub fast_share: f64,
    /// Mean loss over the windows of the last hour, if it was observed.
    pub loss: Option<f64>,
    /// 95th percentile of those windows.
    pub loss_p95: Option<f64>,
    /// Why there is no decision yet, if there is none.
    pub waits: Option<String>,
}

/// What `terrace wake` brought back.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Awake {
    /// Processes that were asked for.
    pub processes: u64,
    /// What came back to memory.
    pub bytes: u64,
    /// How long that took.
    pub seconds: f64,
}

/// Why a process, or one of its pages, is where it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Version of this form.
    pub schema_version: u32,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The class it belongs to, if any.
    pub class: Option<String>,
    /// Why it belongs to it, or why it is not managed.
    pub why: String,
    /// Its pages in each tier.
    pub tiers: Vec<TierBytes>,
    /// The requested page, if any.
    pub page: Option<PageExplanation>,
}

/// Bytes in a tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierBytes {
    /// The tier.
    pub tier: String,
    /// Number of bytes.
    pub bytes: u64,
}

/// Why a page is where it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageExplanation {
    /// Its address.
    pub address: u64,
    /// Its tier; `None` while there is no memory behind it.
    pub tier: Option<String>,
    /// Whether it moves only as part of a 2 MiB block.
    pub huge: bool,
    /// The policy's score of it.
    pub heat: u16,
    /// How long it has been idle, if the policy keeps ages.
    pub idle_seconds: Option<f64>,
    /// Whether Terrace put it there.
    pub demoted: bool,
    /// Number of ping-pongs.
    pub ping_pong: u8,
    /// Whether the kernel refused to move it for good.
    pub pinned: bool,
    /// The latest decisions about it, newest first.
    pub decisions: Vec<String>,
    /// In a sentence: observation, rule, and the governor's decision.
    pub because: String,
}
