//! What the daemon shows: the one form in which status, classes, metrics and the page see it.
//!
//! In: figures, gathered by the daemon once a period. Out: plain data that goes over the socket as JSON; the command reads it
//! back into the same types. Must not: compute. docs/reference/daemon.md lists every field, and a test compares the two.

use serde::{Deserialize, Serialize};

/// Grows by one when a field changes its meaning or goes. New fields may come at any time.
pub const SCHEMA_VERSION: u32 = 1;

/// The state of a daemon whose loop does not turn.
pub const HUNG: &str = "hung";

/// Everything at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of this form.
    pub schema_version: u32,
    /// Version of Terrace.
    pub version: String,
    /// The daemon's pid.
    pub pid: u32,
    /// Since it started.
    pub uptime_seconds: f64,
    /// running, paused, draining, drained, or hung: the loop has not turned within `daemon.watchdog`.
    pub state: String,
    /// Seconds since the daemon's loop last turned.
    #[serde(default)]
    pub loop_age_seconds: f64,
    /// How new processes are noticed, and why so.
    pub process_events: String,
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// What is shared out.
    pub budget: Budget,
    /// What the daemon itself uses.
    pub own: Own,
    /// The classes, in the order in which they take processes.
    pub classes: Vec<Class>,
    /// Processes that a class matches and that cannot be managed, with the reason; at most 100.
    pub refused: Vec<Refused>,
    /// Others that move pages or clear marks.
    pub rivals: Vec<Rival>,
    /// What is odd about the machine.
    pub notes: Vec<String>,
}

/// One tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// nodes or swap.
    pub kind: String,
    /// How much it holds.
    pub capacity_bytes: u64,
    /// Pages of all classes in it.
    pub used_bytes: u64,
    /// Memory that a compressed tier takes.
    pub occupied_bytes: Option<u64>,
}

/// The budgets and how they are used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Fast memory for all classes.
    pub fast_bytes: u64,
    /// Fast memory that they hold.
    pub fast_used_bytes: u64,
    /// Bytes a second that may change tier.
    pub bandwidth_bytes_per_second: u64,
    /// Share of one core.
    pub cpu_share: f64,
    /// Of that, what watching processes and answering questions takes.
    pub cpu_overhead_share: f64,
}

/// What the daemon uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Processor time since it started.
    pub cpu_seconds: f64,
    /// Share of one core over the last minute.
    pub cpu_share: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Memory for the state of pages: eight bytes each, and what policies keep.
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
    /// What is wanted, as configured.
    pub goal: String,
    /// How accesses are seen.
    pub tracker: Option<String>,
    /// Processes under management.
    pub processes: u64,
    /// Memory with something in it.
    pub footprint_bytes: u64,
    /// Of that in fast memory
    pub fast_bytes: u64,
    /// and in slower tiers.
    pub slow_bytes: u64,
    /// What counts as in use.
    pub active_bytes: u64,
    /// Fast memory granted.
    pub granted_bytes: u64,
    /// The floor as it is now.
    pub floor_bytes: u64,
    /// The ceiling, if there is one.
    pub ceiling_bytes: Option<u64>,
    /// The weight.
    pub weight: u32,
    /// Bytes a second granted.
    pub bandwidth_bytes_per_second: u64,
    /// Share of one core granted.
    pub cpu_granted_share: f64,
    /// Processor time spent on it.
    pub cpu_seconds: f64,
    /// Whether its work waits for processor time.
    pub short_of_cpu: bool,
    /// Share of the accesses seen lately that fast memory served.
    pub hit_share: Option<f64>,
    /// Pages moved to slower tiers.
    pub demoted_pages: u64,
    /// Pages moved to faster tiers.
    pub promoted_pages: u64,
    /// Moves that failed, in pages, by cause.
    pub failed_pages: std::collections::BTreeMap<String, u64>,
    /// Pages moved, by route and reason.
    pub moves: Vec<Moves>,
    /// Requests of the policy that were refused, in pages, by reason.
    pub rejected_pages: std::collections::BTreeMap<String, u64>,
    /// Pages that came back by themselves.
    pub refaults: u64,
    /// Demotions that turned out wrong.
    pub ping_pong_pages: u64,
    /// Major faults of its processes.
    pub major_faults: u64,
    /// Estimated share of its time lost to pages that come back, to moves and to being watched.
    pub stall_share: f64,
    /// Its time lost to being watched, Terrace's own for it included.
    pub watching_seconds: f64,
    /// Its time lost to moves, but for pages that come back.
    pub moving_seconds: f64,
    /// How many times the budget for watching it was halved, because nothing came of watching: 0 to 5.
    pub watching_back_off: u32,
    /// By which factor idle thresholds are lengthened.
    pub backoff: f64,
    /// Why page-outs are stopped, if they are.
    pub throttle: Option<String>,
    /// Time for which they were, by cause.
    pub throttled_seconds: std::collections::BTreeMap<String, f64>,
    /// Walks over its pages.
    pub rounds: u64,
    /// Time they took.
    pub round_seconds: f64,
    /// Longest single call that moved pages.
    pub longest_move_call_seconds: f64,
    /// Events that the tracker lost.
    pub lost_events: u64,
    /// For the goals never-slow and never-fast: how far they are kept.
    pub contract: Option<Contract>,
    /// Proof mode, if it is on.
    pub proof: Option<Proof>,
    /// The tuner, if the class has a target.
    pub tuned: Option<Tuned>,
}

/// Pages moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moves {
    /// From this tier
    pub from: String,
    /// to that one,
    pub to: String,
    /// for this reason.
    pub reason: String,
    /// How many.
    pub pages: u64,
}

/// The audit of a promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contract {
    /// never-slow or never-fast.
    pub promise: String,
    /// Bytes that lie where they should not, now.
    pub violating_bytes: u64,
    /// The most that ever did.
    pub worst_bytes: u64,
    /// Pages that Terrace itself moved against the promise: always 0, or it is a defect.
    pub own_moves_against_it: u64,
}

/// What proof mode has measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Proof {
    /// Pairs of windows measured.
    pub pairs: u64,
    /// Mean difference of the share of time lost to memory, managed less unmanaged.
    pub effect: Option<f64>,
    /// The ends of its 95 % interval.
    pub interval: Option<(f64, f64)>,
    /// measuring, harmless or harmful.
    pub verdict: String,
}

/// A process that is matched and not managed.
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

/// Someone else who moves pages.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rival {
    /// Who.
    pub name: String,
    /// What was found.
    pub state: String,
    /// What it does, and what to do about it.
    pub effect: String,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Happening {
    /// Counts up; ask for what came after a number.
    pub number: u64,
    /// Seconds since 1970.
    pub time: f64,
    /// The class it is about, if it is about one.
    pub class: Option<String>,
    /// process, move, throttle, budget, config, state, rival or fault.
    pub kind: String,
    /// What happened, in a line.
    pub text: String,
}

/// A point of the timeline, one a period.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since 1970.
    pub time: f64,
    /// Bytes in each tier, fastest first.
    pub tier_bytes: Vec<u64>,
    /// Memory that the compressed tier takes.
    pub occupied_bytes: u64,
    /// Fast bytes of each class, in the order of the classes.
    pub class_fast_bytes: Vec<u64>,
    /// Pages moved to slower tiers so far.
    pub demoted_pages: u64,
    /// Pages moved to faster tiers so far.
    pub promoted_pages: u64,
    /// Pages that came back by themselves so far.
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

/// Where a class's memory is used, by address and time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Heat {
    /// The class.
    pub class: String,
    /// When each column began, seconds since 1970.
    pub columns: Vec<f64>,
    /// The rows, by process and address.
    pub rows: Vec<HeatRow>,
    /// By column, then row: the share of the row's pages that were accessed, 0 to 1; -1 where nothing was looked at.
    pub cells: Vec<Vec<f32>>,
    /// Processes for which there is no row: there are 128 at most.
    pub processes_left_out: u64,
}

/// How a class's pages spread over what its policy ranks them by.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bins {
    /// The class.
    pub class: String,
    /// Its policy.
    pub policy: String,
    /// What it ranks pages by, in words.
    pub ranked_by: String,
    /// The bins, lowest first.
    pub bins: Vec<Bin>,
    /// Where the policy draws its lines, in the unit of the bins.
    pub thresholds: Vec<Threshold>,
    /// Share of the footprint that was looked at; what was found is scaled up by it.
    pub looked_at_share: f64,
    /// Why there are no bins, if there are none.
    pub note: Option<String>,
}

/// One bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// The score it begins with.
    pub from: f64,
    /// The score the next one begins with; the last has none.
    pub to: Option<f64>,
    /// Bytes in it.
    pub bytes: u64,
    /// Of that in fast memory, where the policy's histogram tells.
    pub fast_bytes: Option<u64>,
}

/// A line that a policy draws.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// Its name: hot, warm or cold.
    pub name: String,
    /// Where it lies.
    pub at: f64,
}

/// How much slower a class was with less fast memory, and what its tuner does about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sizing {
    /// The class.
    pub class: String,
    /// The target: how much slower it may be than with everything fast.
    pub max_slowdown: f64,
    /// Share of the footprint that is to be fast now.
    pub fast_share: f64,
    /// Share that was, what compressed memory takes included.
    pub held_share: f64,
    /// What the loss is observed by.
    pub inputs: String,
    /// The latest decisions, oldest first.
    pub decisions: Vec<Decision>,
}

/// A decision of the tuner.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since the tuner began.
    pub seconds: f64,
    /// Loss observed in the window before it, where it could be.
    pub observed_loss: Option<f64>,
    /// Loss that was expected for what was held, by the straight line through what was observed before.
    pub predicted_loss: Option<f64>,
    /// The share from then on.
    pub fast_share: f64,
    /// waited, kept, shrunk, grew or backed_off.
    pub action: String,
}

/// A class with a target, at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tuned {
    /// The target: how much slower it may be than with everything fast.
    pub max_slowdown: f64,
    /// Share of the footprint that is to be fast; 1 until the tuner has decided.
    pub fast_share: f64,
    /// Mean loss over the last hour of windows, where it was observed.
    pub loss: Option<f64>,
    /// 95th percentile of those windows.
    pub loss_p95: Option<f64>,
    /// Why nothing is decided yet, if nothing is.
    pub waits: Option<String>,
}

/// A row of the heat map.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatRow {
    /// The process.
    pub pid: u32,
    /// Its first address.
    pub address: u64,
    /// How many bytes it covers.
    pub bytes: u64,
}

/// Why a process, or a page of it, is where it is.
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
    /// Why it belongs there, or why it is not managed.
    pub why: String,
    /// Its pages in each tier.
    pub tiers: Vec<TierBytes>,
    /// The page asked for, if one was.
    pub page: Option<PageExplanation>,
}

/// Bytes in a tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TierBytes {
    /// The tier.
    pub tier: String,
    /// How much.
    pub bytes: u64,
}

/// Why a page is where it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PageExplanation {
    /// Its address.
    pub address: u64,
    /// The tier it lies in; `None` while there is no memory behind it.
    pub tier: Option<String>,
    /// Whether it moves only as part of a 2 MiB block.
    pub huge: bool,
    /// The policy's score of it.
    pub heat: u16,
    /// How long it was idle, where the policy keeps ages.
    pub idle_seconds: Option<f64>,
    /// Whether Terrace put it where it is.
    pub demoted: bool,
    /// How often it came straight back.
    pub ping_pong: u8,
    /// Whether the kernel refused to move it for good.
    pub pinned: bool,
    /// The latest decisions about it, newest first.
    pub decisions: Vec<String>,
    /// In a sentence: observation, rule, and the governor's word.
    pub because: String,
}
