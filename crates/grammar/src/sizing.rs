//! The grammar of `terrace size`.
//!
//! In: what the user typed. Out: raw arguments. Must not: look at the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
pub use terrace_common::arguments::{CandidateArguments, ProgramArguments};
use terrace_run::args::{SizeTuneArguments, SpecArguments, TargetArguments, ToAdvise};

#[derive(Debug, Subcommand)]
pub enum SizeCommand {
    /// Run the micro-benchmark of a configuration: requested and achieved counts.
    Microbench(SizeMicrobenchArguments),
    /// Build a performance database; an interrupted build continues.
    Build(SizeBuildArguments),
    /// Find the least fast memory for a configuration, by the nearest records of a database.
    Query(SizeQueryArguments),
    /// Run a program with as little fast memory as a target allows, tuned while it runs; or one that runs already.
    ///
    /// Every interval the tuner sets how much fast memory the program keeps; Terrace demotes the coldest pages to that limit, and promotes
    /// pages when the target was exceeded. The exit code is the program's.
    Tune(Box<SizeTuneArguments>),
    /// Estimate what less fast memory would cost a program, on every modelled machine.
    ///
    /// Runs or watches the program in the memory it has, moves nothing, and prints the expected loss against the size of fast
    /// memory, with lower and upper bounds.
    Advise(Box<SizeAdviseArguments>),
    /// Forecast what less fast memory would cost a workload or a recorded program, under each policy.
    ///
    /// Plays the policies themselves on samples of its pages, at a dozen sizes, on a modelled machine. The answer is the least size that exceeds the target
    /// with a probability of at most 2 %, and the policy that keeps it; to move nothing is always a candidate.
    Forecast(Box<SizeForecastArguments>),
    /// The configuration of a workload or a recorded program, as `query` and `microbench` take it.
    Vector(Box<SizeVectorArguments>),
}

/// Where predictions come from.
#[derive(Debug, Args)]
pub struct DatabaseArguments {
    /// The performance database (`terrace size build` makes one). Without it one is built for the machine, in memory.
    #[arg(long, value_name = "FILE")]
    pub db: Option<PathBuf>,
    /// The machine the prediction is for, of `terrace sim machines`, or the file of one.
    #[arg(long, default_value = "optane-6252", value_name = "NAME")]
    pub machine: String,
    /// How many of the nearest records are averaged, with weights of one over their distance.
    #[arg(long, default_value_t = 1, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub k: u16,
}

#[derive(Debug, Args)]
pub struct SizeMicrobenchArguments {
    /// The configuration: pacc_f, pacc_s, pm_de, pm_pr, AI, RSS, hot_thr, threads, with commas between, or as name=value.
    #[arg(long, value_name = "VECTOR")]
    pub vector: String,
    /// Fast memory, as a share of the resident size.
    #[arg(long, default_value = "90%", value_name = "SHARE")]
    pub fast: String,
    /// Who runs it: this machine, in its own tiers; the model that databases are built with; or the simulator, access by access.
    #[arg(long, default_value = "native", value_name = "NAME", value_parser = ["native", "model", "simulator"])]
    pub executor: String,
    /// The modelled machine, of `terrace sim machines`, or the file of one; not for native.
    #[arg(long, default_value = "optane-6252", value_name = "NAME")]
    pub machine: String,
    /// For native: the slow tier: auto, node:1, zram:2GiB (set up for the run), swap:/dev/NAME.
    #[arg(long, default_value = "auto", value_name = "TIER")]
    pub tier_slow: String,
    /// Seed of the order in which pages are visited.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SizeBuildArguments {
    /// The machine, of `terrace sim machines`, or the file of one.
    #[arg(long, default_value = "optane-6252", value_name = "NAME")]
    pub machine: String,
    /// Records; each is a configuration and its run time at 100 sizes.
    #[arg(long, default_value_t = 100_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub records: u32,
    /// The database; by default MACHINE.parquet here. While it is being built, FILE.partial holds what is finished.
    #[arg(short = 'o', long, alias = "output", value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Seed of the sampling.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Threads; all cores unless given.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SizeQueryArguments {
    /// The configuration: pacc_f, pacc_s, pm_de, pm_pr, AI, RSS, hot_thr, threads, with commas between, or as name=value.
    #[arg(long, value_name = "VECTOR")]
    pub vector: String,
    /// Most time that may be lost.
    #[arg(long, default_value = "5%", value_name = "SHARE")]
    pub max_slowdown: String,
    #[command(flatten)]
    pub database: DatabaseArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("program").required(true).args(["workload", "trace"]))]
pub struct SizeForecastArguments {
    #[command(flatten)]
    pub program: ProgramArguments,
    #[command(flatten)]
    pub candidates: CandidateArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("program").required(true).args(["workload", "trace"]))]
pub struct SizeVectorArguments {
    #[command(flatten)]
    pub program: ProgramArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// What describes a program that is simulated or recorded, and means nothing of one that is watched.
const OF_A_SIMULATED_PROGRAM: [&str; 18] = [
    "max_footprint",
    "size",
    "threads",
    "scale",
    "pages",
    "cores",
    "counters",
    "counter_layout",
    "counter_width",
    "counter_sync",
    "page_tables",
    "tlb_flush",
    "operations",
    "workload_settings",
    "groups",
    "seed",
    "workload",
    "trace",
];

/// What describes how a program is watched.
const OF_A_WATCHED_PROGRAM: [&str; 8] = ["window", "tracker", "duration", "pid", "name", "cgroup", "unit", "command"];

/// `--machine` of a command about one machine, for one about several; and options of one way to know a program refused beside the other.
fn of_several_machines(option: clap::Arg) -> clap::Arg {
    let name = option.get_id().as_str().to_owned();
    if name == "machine" {
        return option
            .long("machines")
            .visible_alias("machine")
            .default_value("all")
            .value_name("NAMES")
            .help("Machines, of `terrace sim machines`, or files of some, with commas between; or all");
    }
    if OF_A_SIMULATED_PROGRAM.contains(&name.as_str()) {
        return option.conflicts_with_all(OF_A_WATCHED_PROGRAM);
    }
    option
}

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "name", "cgroup", "unit", "command", "workload", "trace"]))]
#[command(mut_args(of_several_machines))]
pub struct SizeAdviseArguments {
    #[command(flatten)]
    pub program: ProgramArguments,
    #[command(flatten)]
    pub candidates: CandidateArguments,
    /// What a gigabyte of fast and of slow memory costs, in any currency.
    #[arg(long, default_value = "4:2", value_name = "FAST:SLOW")]
    pub prices: String,
    /// Time over which it is counted whether a page was accessed, at least 1s.
    #[arg(long, default_value = "1s", value_name = "TIME")]
    pub window: String,
    #[command(flatten)]
    pub spec: SpecArguments<ToAdvise>,
    #[command(flatten)]
    pub target: TargetArguments,
    /// Write report.json and report.html into this directory.
    #[arg(short = 'o', long, alias = "output", value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object on stdout, after the program's own output.
    #[arg(long)]
    pub json: bool,
    /// Start and watch this program, with its arguments.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
