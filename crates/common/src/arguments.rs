//! What a run and a comparison are asked to be, as the command line has it and as the Python package fills it in.
//!
//! In: texts. Out: the same texts, by name. Must not: check one against another; `options` does.

use std::path::PathBuf;

use clap::Args;

/// Options that a run and a comparison share.
#[derive(Clone, Debug, Args, Default)]
pub struct ModelArguments {
    /// The machine, of `terrace sim machines`, or the file of one.
    #[arg(long, default_value = "optane-6252", value_name = "NAME")]
    pub machine: String,
    /// Footprint of the program on the scaled machine.
    #[arg(long, default_value = "256MiB", value_name = "BYTES")]
    pub size: String,
    /// Threads of the program.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub threads: usize,
    /// Factor by which footprint, fast memory, time, caches and sample counts stand for a larger machine; 64 unless a
    /// trace names its own.
    #[arg(long, value_name = "FACTOR")]
    pub scale: Option<u32>,
    /// How the program's memory is mapped: thp (huge pages; on a scaled machine folded to small ones, unless the MMU is
    /// modelled; of a trace, as it tells), 2m (all by huge pages, at any scale; models the MMU) or 4k.
    #[arg(long, default_value = "thp", value_name = "SIZE", value_parser = ["thp", "4k", "2m"])]
    pub pages: String,
    /// Those of the MMU.
    #[command(flatten)]
    pub mmu: MmuArguments,
    /// Amount of work, in the workload's own operations.
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// A setting of a policy, such as flexmem.beta=0.3. May be given several times.
    #[arg(long = "set", value_name = "POLICY.KEY=VALUE")]
    pub settings: Vec<String>,
    /// An option of the workload (`terrace workload list` names them). May be given several times.
    #[arg(long = "workload-set", value_name = "KEY=VALUE")]
    pub workload_settings: Vec<String>,
}

/// Options of the modelled MMU. Any of them, `--pages 2m`, or a policy that reads counters turns it on.
#[derive(Clone, Debug, Args, Default)]
pub struct MmuArguments {
    /// Cores the threads run on, side by side within a microsecond; models the MMU. As many as threads if it is modelled
    /// for another reason.
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
    /// Which accesses to huge pages the MMU counts: none, l1-miss, l2-miss, random:N, nth:N or every; l1-miss if it is modelled.
    #[arg(long, value_name = "WHEN")]
    pub counters: Option<String>,
    /// Counters behind each PMD table: full (one for each 4 KiB) or literal (512, shared by all its huge pages).
    #[arg(long, value_name = "LAYOUT")]
    pub counter_layout: Option<String>,
    /// Bits of a counter: 8, 16 or 64; 16 unless stated.
    #[arg(long, value_name = "BITS")]
    pub counter_width: Option<String>,
    /// What an update costs the core: cycles (100 unless stated), none, or coherent (cores wait for each other's lines).
    #[arg(long, value_name = "COST")]
    pub counter_sync: Option<String>,
    /// Tier of page tables and counters: fast (unless stated), slow or with-data.
    #[arg(long, value_name = "PLACE")]
    pub page_tables: Option<String>,
    /// How cores forget translations of 4 KiB pages that move: page (an interrupt each, unless stated) or batch (one for up to 512
    /// pages, as Linux from 6.3 on).
    #[arg(long, value_name = "HOW")]
    pub tlb_flush: Option<String>,
}

/// A second process.
#[derive(Clone, Debug, Args)]
pub struct BesideArguments {
    /// Another workload as a second process of the same size: recorded once, played along on the first core, and begun again
    /// when it ends. Models the MMU.
    #[arg(long, value_name = "NAME")]
    pub beside: Option<String>,
    /// Accesses of the first process for each of the second.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub every: u64,
}

/// One run.
#[derive(Clone, Debug, Args)]
pub struct OneRunArguments {
    /// The workload (`terrace workload list` names them).
    #[arg(long, value_name = "NAME", required_unless_present = "trace", conflicts_with = "trace")]
    pub workload: Option<String>,
    /// A trace instead of a workload (`terrace trace import` makes one).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["operations", "workload_settings"])]
    pub trace: Option<PathBuf>,
    /// The largest footprint of a trace that is taken: some 45 bytes are kept for each of its pages, and a short file can name any
    /// page.
    #[arg(long, default_value = "16GiB", value_name = "SIZE")]
    pub max_footprint: String,
    /// The policy (`terrace policies` lists them).
    #[arg(long, default_value = "flexmem", value_name = "NAME")]
    pub policy: String,
    /// Fast memory: a share of the footprint (50%) or an amount on the scaled machine (64MiB).
    #[arg(long, default_value = "50%", value_name = "AMOUNT")]
    pub fast: String,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// The second process.
    #[command(flatten)]
    pub beside: BesideArguments,
    /// What it shares with a comparison.
    #[command(flatten)]
    pub model: ModelArguments,
}

/// A comparison.
#[derive(Clone, Debug, Args, Default)]
pub struct SimCompareArguments {
    /// Workloads, with commas between.
    #[arg(long, value_name = "NAMES", required_unless_present = "trace", value_delimiter = ',')]
    pub workloads: Vec<String>,
    /// Traces, with commas between, beside workloads or instead of them (`terrace record` makes one of a program).
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    pub trace: Vec<PathBuf>,
    /// The largest footprint of a trace that is taken: some 45 bytes are kept for each of its pages, and a short file can name any
    /// page.
    #[arg(long, default_value = "16GiB", value_name = "SIZE")]
    pub max_footprint: String,
    /// Policies, with commas between.
    #[arg(long, value_name = "NAMES", required = true, value_delimiter = ',')]
    pub policies: Vec<String>,
    /// Fast memory: shares of the footprint or amounts, with commas between.
    #[arg(long, default_value = "25%,50%", value_name = "AMOUNTS", value_delimiter = ',')]
    pub fast: Vec<String>,
    /// How many seeds each setting is run with.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// The first of these seeds; the others follow it.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    pub first_seed: u64,
    /// What it shares with a comparison.
    #[command(flatten)]
    pub model: ModelArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Write the cells as CSV into this file.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write report.json and report.html into this directory.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

/// A program that is simulated or was recorded, and what it is played on.
#[derive(Clone, Debug, Args)]
pub struct ProgramArguments {
    /// The workload (`terrace workload list` names them).
    #[arg(long, value_name = "NAME", conflicts_with = "trace")]
    pub workload: Option<String>,
    /// A recorded program instead of a workload (`terrace record` makes a trace).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["operations", "workload_settings"])]
    pub trace: Option<PathBuf>,
    /// The largest footprint of a trace that is taken.
    #[arg(long, default_value = "16GiB", value_name = "SIZE")]
    pub max_footprint: String,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// What it shares with a comparison.
    #[command(flatten)]
    pub model: ModelArguments,
}

impl ProgramArguments {
    /// A run of it with everything fast, under a policy that moves nothing.
    pub fn all_fast(&self, policy: &str) -> OneRunArguments {
        OneRunArguments {
            workload: self.workload.clone(),
            trace: self.trace.clone(),
            max_footprint: self.max_footprint.clone(),
            policy: policy.to_owned(),
            fast: "100%".to_owned(),
            seed: self.seed,
            beside: BesideArguments { beside: None, every: 1 },
            model: self.model.clone(),
        }
    }
}

/// Least pages of a sample: fewer say nothing.
pub const LEAST_SAMPLE: u32 = 64;
/// How many samples a forecast may have.
pub const GROUPS: std::ops::RangeInclusive<u16> = 2..=16;

/// What a forecast chooses between, and on how much of the program it is made.
#[derive(Clone, Debug, Args)]
pub struct CandidateArguments {
    /// Most time that may be lost.
    #[arg(long, default_value = "5%", value_name = "SHARE")]
    pub max_slowdown: String,
    /// Policies, with commas between; first-touch, which moves nothing, is always among them.
    #[arg(long, default_value = "tpp,flexmem,terrace,age", value_name = "NAMES", value_delimiter = ',')]
    pub policies: Vec<String>,
    /// Sizes of fast memory, as shares of the footprint, with commas between; twelve from 5% to 98% unless given.
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    pub fast: Vec<String>,
    /// Pages of each sample, at least: fewer are quicker and less exact.
    #[arg(long, default_value_t = 2048, value_name = "PAGES", value_parser = clap::value_parser!(u32).range(i64::from(LEAST_SAMPLE)..))]
    pub sample: u32,
    /// Samples that have no page in common, from whose differences errors follow; seeds where a sample has every page.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(i64::from(*GROUPS.start())..=i64::from(*GROUPS.end())))]
    pub groups: u16,
}
