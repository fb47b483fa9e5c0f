//! The grammar of `lab`: stock kernels in QEMU with fast and slow nodes.
//!
//! In: what the user typed. Out: raw arguments. Must not: look at the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Boot a stock kernel on a machine with fast and slow memory, describe it, power it off.
    Boot(Box<LabBootArguments>),
    /// Run scenarios: files that say what to boot, what to do there, and what must come out.
    ///
    /// The exit code is 0 if every step and every assertion is as it must.
    Run(Box<LabRunArguments>),
    /// The same program in the same guest under each manager of tiered memory, every access counted.
    ///
    /// Needs the QEMU plugin (package terrace-record, or `make qemu-plugin`). Time is by instructions: a run comes out the same each time, and takes minutes.
    Compare(Box<LabCompareArguments>),
    /// Every access of programs in a guest as a trace, with the page sizes that its kernel chose.
    ///
    /// Needs the QEMU plugin (package terrace-record, or `make qemu-plugin`). The programs are this host's and are brought along with their libraries. Their
    /// children are recorded too, each process apart. The exit code is the program's.
    Record(Box<LabRecordArguments>),
    /// A shell in the guest, on this terminal; poweroff -f ends it.
    Shell(Box<LabShellArguments>),
    /// The kernels in the cache, and those that Debian has.
    Kernels(LabKernelsArguments),
}

/// Where guests come from.
#[derive(Debug, Args)]
pub struct LabHostArguments {
    /// The terrace command that goes into the guest, with the terrace-research beside it; without it TERRACE_BINARY, or the installed one.
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Time by instructions: the same in every run, two to four times slower. Usual where CI=true.
    #[arg(long)]
    pub deterministic: bool,
    /// Time by the host's clock. Usual elsewhere.
    #[arg(long, conflicts_with = "deterministic")]
    pub real_time: bool,
    /// Look for newer kernels than those in the cache.
    #[arg(long)]
    pub refresh: bool,
    /// A Debian archive other than that of the host's apt sources.
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// Keep the console's log and the raw results in this folder.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// The machine.
#[derive(Debug, Args)]
pub struct LabMachineArguments {
    /// 6.1, 6.12, 7.2, newest, or a whole version.
    #[arg(long, default_value = "6.12", value_name = "VERSION")]
    pub kernel: String,
    /// The topology of the memory.
    #[arg(long, default_value = "fast-slow", value_name = "NAME", value_parser = [
        "fast-slow", "three-tiers", "two-sockets", "two-sockets-slow",
    ])]
    pub topology: String,
    /// Memory of the fast node, or of each of two sockets.
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    pub fast: String,
    /// Memory of the slow node; of the second socket in two-sockets.
    #[arg(long, default_value = "1GiB", value_name = "BYTES")]
    pub slow: String,
    /// Compressed swap of three-tiers.
    #[arg(long, default_value = "512MiB", value_name = "BYTES")]
    pub zram: String,
    /// Processors.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub cpus: u32,
    /// A module to load, with what it needs. May be given several times.
    #[arg(long = "module", value_name = "NAME")]
    pub modules: Vec<String>,
}

#[derive(Debug, Args)]
pub struct LabBootArguments {
    #[command(flatten)]
    pub machine: LabMachineArguments,
    #[command(flatten)]
    pub host: LabHostArguments,
    /// The guest is killed after this long; four times that with --deterministic.
    #[arg(long, default_value = "2m", value_name = "TIME")]
    pub time_limit: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LabRunArguments {
    /// Scenario files, or names of those in lab/scenarios.
    #[arg(required = true, value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// A kernel instead of the scenario's first; all runs it on each that the scenario names.
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<String>,
    #[command(flatten)]
    pub host: LabHostArguments,
    /// Limit of wall time instead of the scenario's own; four times that with --deterministic.
    #[arg(long, value_name = "TIME")]
    pub time_limit: Option<String>,
    /// Write the verdicts into the table of this document, such as docs/kernels.md.
    #[arg(long, value_name = "FILE")]
    pub table: Option<PathBuf>,
    /// Print one JSON object; with several runs, one for each.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LabRecordArguments {
    /// The trace to write.
    #[arg(long, default_value = "record.trace", value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub machine: LabMachineArguments,
    /// Transparent huge pages in the guest; without it as its kernel has them.
    #[arg(long, value_name = "WHEN", value_parser = ["always", "madvise", "never"])]
    pub huge_pages: Option<String>,
    /// Leave out what a cache of this size would serve: direct mapped, lines of 64 bytes, one a processor, such as 32MiB.
    #[arg(long, value_name = "BYTES")]
    pub cache: Option<String>,
    /// Keep every Nth of the remaining accesses.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub period: u64,
    /// Another program that runs and is recorded at the same time, with its arguments as for a shell. May be given several times.
    #[arg(long, value_name = "'CMD ARGS'")]
    pub beside: Vec<String>,
    /// A file that the guest gets too, with its path there, such as words.txt:/words.txt. May be given several times.
    #[arg(long = "file", value_name = "HOST:GUEST")]
    pub files: Vec<String>,
    /// Run the program on this host first (its output thrown away), to tell the slowdown.
    #[arg(long, conflicts_with = "beside")]
    pub native: bool,
    #[command(flatten)]
    pub host: LabHostArguments,
    /// The guest is killed after this long; four times that with --deterministic.
    #[arg(long, default_value = "10m", value_name = "TIME")]
    pub time_limit: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct LabShellArguments {
    #[command(flatten)]
    pub machine: LabMachineArguments,
    #[command(flatten)]
    pub host: LabHostArguments,
}

#[derive(Debug, Args)]
pub struct LabKernelsArguments {
    /// Ask the Debian archive as well.
    #[arg(long)]
    pub refresh: bool,
    /// A Debian archive other than that of the host's apt sources.
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct LabCompareArguments {
    /// 6.12, 7.2, newest, or a whole version.
    #[arg(long, default_value = "6.12", value_name = "VERSION")]
    pub kernel: String,
    /// Workloads, with commas between (`terrace workload list` names them).
    #[arg(long, value_name = "NAMES", required_unless_present_any = ["programs", "command"], value_delimiter = ',')]
    pub workload: Vec<String>,
    /// A program of this host with its arguments as for a shell, compared as well. It is brought along with its libraries. May be given several times.
    #[arg(long = "program", value_name = "'CMD ARGS'")]
    pub programs: Vec<String>,
    /// A file that the guest gets too, with its path there, such as words.txt:/words.txt. May be given several times.
    #[arg(long = "file", value_name = "HOST:GUEST")]
    pub files: Vec<String>,
    /// Fast memory: a share of the footprint (30%) or an amount.
    #[arg(long, default_value = "30%", value_name = "AMOUNT")]
    pub fast: String,
    /// Managers, with commas between: none, interleave, numa_balancing=1, numa_balancing=2, damon, memtierd[:config=FILE],
    /// terrace:POLICY[:KEY=VALUE...]; without it those but memtierd, and terrace with age and flexhm.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub managers: Vec<String>,
    /// How many seeds each is run with.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// The first of these seeds; the others follow it.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    pub first_seed: u64,
    /// Footprint. Without it a workload has 64MiB, and a program is run once more, to see the most that it has.
    #[arg(long, value_name = "BYTES")]
    pub size: Option<String>,
    /// Amount of work, in the workload's own operations; by default the workload's own amount.
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// An option of the workload. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
    /// The modelled machine, of `terrace sim machines`: its latencies, bandwidths and TLBs.
    #[arg(long, default_value = "cxl-170", value_name = "NAME")]
    pub machine: String,
    /// The modelled cache; without it a 64th of the footprint.
    #[arg(long, value_name = "BYTES")]
    pub cache: Option<String>,
    /// Most wall time of one run.
    #[arg(long, default_value = "30m", value_name = "TIME")]
    pub time_limit: String,
    /// The terrace command that goes into the guest, with the terrace-research beside it; without it TERRACE_BINARY, or the installed one.
    #[arg(long, value_name = "FILE")]
    pub binary: Option<PathBuf>,
    /// Look for newer kernels than those in the cache.
    #[arg(long)]
    pub refresh: bool,
    /// A Debian archive other than that of the host's apt sources.
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Keep each guest's console log and raw results in a folder of this one.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Write report.json and report.html into this directory.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// A program of this host and its arguments, compared as well: its children count with it.
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
