//! One look at the machine, as data: what `terrace survey --json` prints and `terrace top --replay` reads.
//!
//! In: nothing. Out: [`Look`] and its parts; docs/reference/survey.md lists every field. Must not: compute.

use serde::{Deserialize, Serialize};

/// Increases when a field changes its meaning or is removed. New fields may be added at any time.
pub const SCHEMA_VERSION: u32 = 1;

/// One look.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Version of this form.
    pub schema_version: u32,
    /// When it was taken, seconds since 1970.
    pub time: f64,
    /// For how long programs were watched by then.
    pub watched_seconds: f64,
    /// Whether this is one container, and not the machine.
    pub in_container: bool,
    /// Memory of the machine.
    pub memory: Machine,
    /// The rows, that which gives back most first.
    pub rows: Vec<Row>,
    /// What was not looked at, and why.
    pub unseen: Vec<Unseen>,
    /// What looking cost.
    pub cost: Cost,
    /// What a reader should know of the figures.
    pub notes: Vec<String>,
}

/// Memory of the machine, as /proc/meminfo has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// All of it.
    pub total_bytes: u64,
    /// What could be had without swapping.
    pub available_bytes: u64,
    /// File cache in use.
    pub file_active_bytes: u64,
    /// File cache not used lately.
    pub file_inactive_bytes: u64,
    /// In swap.
    pub swapped_bytes: u64,
    /// Memory that holds it compressed: zram, and zswap's pool.
    pub swap_takes_bytes: u64,
}

/// What a row is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A systemd service.
    Service,
    /// A container.
    Container,
    /// All sessions of a user.
    Session,
    /// Another cgroup.
    Cgroup,
    /// A program in no cgroup of its own, with those of its children that run the same program.
    #[default]
    Program,
}

impl Kind {
    /// In a word.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Service => "service",
            Kind::Container => "container",
            Kind::Session => "session",
            Kind::Cgroup => "cgroup",
            Kind::Program => "program",
        }
    }
}

/// A service, container, session, cgroup or program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What it is.
    pub kind: Kind,
    /// Its name: of the unit, the container, the user, the cgroup or the program.
    pub name: String,
    /// The name of its largest process.
    pub program: String,
    /// The path of that one's executable, if it may be known.
    pub executable: Option<String>,
    /// Its cgroup; `None` for a program.
    pub cgroup: Option<String>,
    /// Its processes, the largest first; at most 32.
    pub pids: Vec<u32>,
    /// How many there are.
    pub processes: u64,
    /// Memory: what its cgroup is charged with, or the resident memory of its processes.
    pub memory_bytes: u64,
    /// Anonymous memory of its processes.
    pub anonymous_bytes: u64,
    /// Already in swap.
    pub swapped_bytes: u64,
    /// Anonymous memory for which the sample speaks.
    pub watched_bytes: u64,
    /// Share of that which was looked at.
    pub sampled_share: f64,
    /// Anonymous memory that was idle for so long; `None` where it was not watched for so long.
    pub idle: Idle,
    /// Bytes that a byte of its cold memory takes when compressed, 0 to 1; `None` where none was looked at.
    pub compressed_share: Option<f64>,
    /// Share of its cold memory that is filled with one value, which takes nothing.
    pub filled_share: Option<f64>,
    /// File cache in use, of its cgroup.
    pub file_active_bytes: Option<u64>,
    /// File cache not used lately, of its cgroup.
    pub file_inactive_bytes: Option<u64>,
    /// What Terrace would give back and keep the slowdown within the bound; `None` where nothing was watched.
    pub gives_back_bytes: Option<u64>,
    /// The same as a share of its memory.
    pub gives_back_share: Option<f64>,
    /// How long a page must be idle for what comes back to stay within the bound.
    pub idle_wanted_seconds: Option<f64>,
    /// Memory a second that was used again after it had been idle for so long.
    pub came_back_bytes_per_second: f64,
    /// Huge blocks that are in use: whatever is idle inside of them is not seen, and leaves only when they are split.
    pub huge_in_use_bytes: u64,
    /// Why no more is given back, if something limits it.
    pub limited_by: Option<String>,
}

/// Memory by how long it was idle at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// One minute.
    pub one_minute_bytes: Option<u64>,
    /// Two minutes.
    pub two_minutes_bytes: Option<u64>,
    /// Five minutes.
    pub five_minutes_bytes: Option<u64>,
}

/// Memory that was not looked at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Unseen {
    /// Whose.
    pub what: String,
    /// How much.
    pub bytes: u64,
    /// Why, and what would change it.
    pub why: String,
}

/// What looking cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time of this process.
    pub cpu_seconds: f64,
    /// The same as a share of one core over all the time since it started.
    pub cpu_share: f64,
    /// Processor time of the programs for being watched, by the measured price of a page.
    pub program_seconds: f64,
    /// Blocks of 2 MiB that were watched.
    pub blocks: u64,
}

impl Look {
    /// What all rows give back.
    pub fn gives_back_bytes(&self) -> u64 {
        self.rows.iter().filter_map(|row| row.gives_back_bytes).sum()
    }

    /// What is saved now: what is in swap, less the memory that holds it.
    pub fn saved_bytes(&self) -> u64 {
        self.memory.swapped_bytes.saturating_sub(self.memory.swap_takes_bytes)
    }

    /// A row's part of that.
    pub fn saved_of(&self, row: &Row) -> u64 {
        let all = self.memory.swapped_bytes.max(1);
        (u128::from(self.saved_bytes()) * u128::from(row.swapped_bytes.min(all)) / u128::from(all)) as u64
    }

    /// Memory of all rows.
    pub fn memory_bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.memory_bytes).sum()
    }

    /// What was idle for so long in all rows; `None` where no row was watched for so long.
    pub fn idle_bytes(&self, of: impl Fn(&Idle) -> Option<u64>) -> Option<u64> {
        self.rows.iter().filter_map(|row| of(&row.idle)).reduce(|sum, bytes| sum + bytes)
    }
}
