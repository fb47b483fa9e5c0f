//! The grammar of the laboratory's commands: `sim`, `trace`, `record`, `compare`, `reproduce`, `sweep`, `rerun`.
//!
//! In: what the user typed. Out: raw arguments. Must not: look at the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
pub use terrace_common::arguments::{
    BesideArguments, MmuArguments, ModelArguments, OneRunArguments, SimCompareArguments,
};

use super::OutputArguments;

#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run one workload or trace under one policy on modelled hardware.
    Run(Box<SimRunArguments>),
    /// Run every policy on every workload at every size, and say which is best by how much.
    Compare(Box<SimCompareArguments>),
    /// The history of one page or range of a run: what was seen, what was decided, by which rule.
    Explain(Box<SimExplainArguments>),
    /// Which tracker knows best what is hot, and what each costs: MMU counters against its rivals, on one run.
    Hotness(Box<SimHotnessArguments>),
    /// The modelled machines, every number with its source.
    Machines(OutputArguments),
}

#[derive(Debug, Args)]
#[command(mut_arg("workload", |option| option.required_unless_present_any(["named", "trace"])))]
pub struct SimRunArguments {
    /// The workload, as with --workload.
    #[arg(value_name = "WORKLOAD", conflicts_with_all = ["workload", "trace"])]
    pub named: Option<String>,
    #[command(flatten)]
    pub run: OneRunArguments,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Write report.json and report.html into this directory.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct SimExplainArguments {
    #[command(flatten)]
    pub run: OneRunArguments,
    /// The page of this address, such as 0x100000001000.
    #[arg(long, value_name = "ADDRESS", required_unless_present = "range", conflicts_with = "range")]
    pub page: Option<String>,
    /// The pages from one address up to another, such as 0x100000000000-0x100000010000.
    #[arg(long, value_name = "START-END")]
    pub range: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SimHotnessArguments {
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
    #[command(flatten)]
    pub beside: BesideArguments,
    /// Share of memory that is fast: how many pages a tracker may choose.
    #[arg(long, default_value = "25%", value_name = "SHARE")]
    pub fast: String,
    /// Full-size time between two scans.
    #[arg(long, default_value = "100ms", value_name = "TIME")]
    pub window: String,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// The machine, of `terrace sim machines`, or the file of one.
    #[arg(long, default_value = "cxl-pond", value_name = "NAME")]
    pub machine: String,
    /// Footprint of the program on the scaled machine.
    #[arg(long, default_value = "256MiB", value_name = "BYTES")]
    pub size: String,
    /// Threads of the program.
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub threads: usize,
    /// Cores they run on; 1 unless stated.
    #[arg(long, value_name = "N")]
    pub cores: Option<usize>,
    /// Factor by which footprint, time, caches and TLBs stand for a larger machine; 64 unless a trace names its own.
    #[arg(long, value_name = "FACTOR")]
    pub scale: Option<u32>,
    /// How the program's memory is mapped: 2m, 4k, or thp (of a trace, as it tells). Without it as a trace tells, if it does, else 2m.
    #[arg(long, value_name = "SIZE", value_parser = ["2m", "4k", "thp"])]
    pub pages: Option<String>,
    /// Amount of work, in the workload's own operations.
    #[arg(long, value_name = "N")]
    pub operations: Option<u64>,
    /// An option of the workload (`terrace workload list` names them). May be given several times.
    #[arg(long = "workload-set", value_name = "KEY=VALUE")]
    pub workload_settings: Vec<String>,
    /// Write heat over time as a picture into this file.
    #[arg(long, value_name = "FILE.svg")]
    pub heatmap: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// What a trace holds; every checksum is verified.
    Info(TraceInfoArguments),
    /// Print the accesses and events of a trace.
    Cat(TraceCatArguments),
    /// Copy part of a trace, or what is whole of a damaged one.
    Cut(TraceCutArguments),
    /// Make a trace of what another tool recorded.
    Import(Box<TraceImportArguments>),
    /// Write a trace as other tools read it.
    Export(TraceExportArguments),
}

#[derive(Debug, Args)]
pub struct TraceInfoArguments {
    /// The trace.
    pub file: PathBuf,
    /// The largest range of addresses to read, from the first page on: a quarter of a byte is kept for each page.
    #[arg(long, default_value = "1TiB", value_name = "SIZE")]
    pub max_footprint: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceCatArguments {
    /// The trace.
    pub file: PathBuf,
    /// Accesses by their place, such as 0-1000: from the first up to, not including, the second.
    #[arg(long, value_name = "FROM-TO")]
    pub accesses: Option<String>,
    /// Print one JSON object a line.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceCutArguments {
    /// The trace.
    pub file: PathBuf,
    /// The new trace.
    pub output: PathBuf,
    /// Accesses by their place, such as 0-1000000.
    #[arg(long, value_name = "FROM-TO")]
    pub accesses: Option<String>,
    /// Accesses by their time, such as 10s-20s.
    #[arg(long, value_name = "FROM-TO")]
    pub times: Option<String>,
    /// Accesses of these threads, by the numbers they had in the traced program, with commas between.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub threads: Option<Vec<u64>>,
    /// Keep every Nth of the remaining accesses; the new trace is marked sampled.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: u64,
    /// At damage, keep what is whole before it.
    #[arg(long)]
    pub keep_whole: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceImportArguments {
    /// The recording, also compressed by gzip or zstd; - is stdin.
    pub file: PathBuf,
    /// The new trace.
    pub output: PathBuf,
    /// What the recording is.
    #[arg(long, value_name = "FORMAT", value_parser = [
        "lackey", "drmemtrace", "drmemtrace-view", "perf-script", "damon", "csv", "libcachesim-csv", "oracle-general",
        "champsim", "gem5", "gem5-text", "execlog", "hook",
    ])]
    pub format: String,
    /// The program traced, in words.
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub workload: String,
    /// Drop the cache line of each access.
    #[arg(long)]
    pub no_lines: bool,
    /// Nanoseconds a time unit of the new trace.
    #[arg(long, default_value_t = 1000, value_name = "NANOSECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub resolution: u64,
    /// Accesses that one sample stands for, where the recording does not say.
    #[arg(long, value_name = "N")]
    pub period: Option<u64>,
    /// By how much the traced program was smaller than the one that is meant.
    #[arg(long, default_value_t = 1.0, value_name = "FACTOR")]
    pub scale: f64,
    /// Count and skip lines that cannot be understood.
    #[arg(long)]
    pub skip_bad_lines: bool,
    /// At an error, keep what was whole before it.
    #[arg(long)]
    pub keep_whole: bool,
    /// The most that a compressed recording is decompressed to: a file of kilobytes can hold any amount.
    #[arg(long, default_value = "64GiB", value_name = "SIZE")]
    pub max_unpacked: String,
    /// perf-script: the fields it was asked for with -F, with commas between; without it
    /// comm,pid,tid,time,event,addr,weight.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// csv, libcachesim-csv: what each column holds, such as address=0,operation=1 or address=addr,time=t; kinds are
    /// address, page, object, operation, size, thread, time, latency. Without it: the columns that `terrace trace export` writes.
    #[arg(long, value_name = "KIND=COLUMN", value_delimiter = ',')]
    pub columns: Vec<String>,
    /// csv, libcachesim-csv: addresses without 0x are hexadecimal. Without this and --decimal the column tells, or the import asks.
    #[arg(long, conflicts_with = "decimal")]
    pub hex: bool,
    /// csv, libcachesim-csv: addresses without 0x are decimal.
    #[arg(long)]
    pub decimal: bool,
    /// csv, libcachesim-csv: the character between two fields, or its name: tab, or blank for any number of blanks and tabs.
    #[arg(long, default_value = ",", value_name = "CHARACTER")]
    pub separator: String,
    /// csv, libcachesim-csv: the first line holds no names.
    #[arg(long)]
    pub no_names: bool,
    /// csv, libcachesim-csv: nanoseconds in the unit of the time column; without it 1, and seconds for libcachesim-csv.
    #[arg(long, value_name = "NANOSECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub time_unit: Option<u64>,
    /// damon: time between two checks, such as 5ms, where the recording does not say.
    #[arg(long, value_name = "TIME")]
    pub damon_sample: Option<String>,
    /// damon: time over which a count was gathered, such as 100ms, where the recording does not say.
    #[arg(long, value_name = "TIME")]
    pub damon_aggregation: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TraceExportArguments {
    /// The trace.
    pub file: PathBuf,
    /// The new file.
    pub output: PathBuf,
    /// What to write.
    #[arg(long, value_name = "FORMAT", value_parser = [
        "lackey", "csv", "libcachesim-csv", "oracle-general", "champsim", "gem5", "parquet",
    ])]
    pub format: String,
    /// oracle-general: leave the next access out, which saves 16 bytes of memory for each access.
    #[arg(long)]
    pub no_next: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RecordArguments {
    /// The trace to write.
    #[arg(short, long, default_value = "record.trace", value_name = "FILE")]
    pub output: PathBuf,
    /// Leave out what a cache of this size would serve: direct mapped, lines of 64 bytes, one a thread, such as 32MiB.
    #[arg(long, value_name = "BYTES")]
    pub cache: Option<String>,
    /// Keep every Nth of the remaining accesses.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub period: u64,
    /// Run the program once, recorded; without it natively first (its output thrown away), to tell the slowdown.
    #[arg(long)]
    pub once: bool,
    /// Say whether the program can be recorded here, by the exit code, and record nothing.
    #[arg(long)]
    pub check: bool,
    /// Print the compiler and linker flags with which a program that can be recompiled records itself.
    #[arg(long, conflicts_with_all = ["command", "cache", "once", "check"])]
    pub hook: bool,
    /// With --hook: write the recorder's C source into this file, to be compiled as the printed lines say.
    #[arg(long, value_name = "FILE", requires = "hook")]
    pub write: Option<PathBuf>,
    /// With --hook: where the compiled recorder will be.
    #[arg(long, default_value = "terrace_record.o", value_name = "FILE")]
    pub object: String,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments.
    #[arg(required_unless_present = "hook", last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Debug, Args)]
pub struct ReproduceArguments {
    /// `list`, `flexmem`, `tuna`, `tieredmms`, `flexhm`, `hotness-walk`, `rivals`, `all`, or how ids begin (FM.fig6, FM.fig6.ft.tpp). `page`
    /// prints docs/fidelity.md from the store and runs nothing.
    #[arg(required = true, value_name = "ID")]
    pub ids: Vec<String>,
    /// Experiments of your own instead of those that come with Terrace (docs/experiments.md says how to write them).
    #[arg(long, value_name = "FILE.toml")]
    pub experiments: Option<PathBuf>,
    /// Factor by which the papers' machines and programs are shrunk.
    #[arg(long, default_value_t = 1024, value_name = "FACTOR", conflicts_with = "quick")]
    pub scale: u32,
    /// A quick run: scale 1:4096 (Tuna's 1:2048). Shapes hold less there.
    #[arg(long)]
    pub quick: bool,
    /// Draw the programs that the rows tune, saving and loss over time, into this file.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// First seed of everything random.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Number of seeds: each run is repeated with each, and values get a 95 % interval.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// Another setting of a policy in every run of it (flexmem.dr_gate=literal): another reading of a paper. May be repeated.
    #[arg(long = "set", value_name = "POLICY.KEY=VALUE")]
    pub settings: Vec<String>,
    /// Write rows and runs into this file, as `--json` prints them. While it runs, FILE.partial holds the rows that are finished; the same
    /// command goes on after them.
    #[arg(long, value_name = "FILE.json", conflicts_with = "svg")]
    pub output: Option<PathBuf>,
    /// Run the missing runs of the chosen rows for this long (20m), the cheapest first; each result is kept at once. Without `page` and
    /// this, nothing is read from the store.
    #[arg(long, value_name = "DURATION", conflicts_with_all = ["svg", "settings"])]
    pub budget: Option<String>,
    /// Make one in N kept runs of the chosen rows again, whole, the cheapest first, and compare every figure; --budget limits the time. With
    /// --output each is written down as a line, and the same command goes on after them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["svg", "settings"])]
    pub sample: Option<u64>,
    /// The folder in which runs are kept.
    #[arg(long, value_name = "DIR", default_value = "experiments/results")]
    pub store: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RerunArguments {
    /// Rows as `--json` printed them, one or many; - is stdin.
    pub file: PathBuf,
    /// Repeat rows of other versions of Terrace as well, with the settings they say.
    #[arg(long)]
    pub any_version: bool,
}

#[derive(Debug, Args)]
pub struct CompareArguments {
    /// The machine, of `terrace sim machines`, or the file of one.
    #[arg(long, default_value = "cxl-170", value_name = "NAME")]
    pub machine: String,
    /// Policies, with commas between (`terrace policies` lists them).
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "age,autonuma,first-touch,flexmem,memtis,terrace,tpp,clairvoyant"
    )]
    pub policies: Vec<String>,
    /// Fast memory: shares of the footprint or amounts, with commas between.
    #[arg(long, default_value = "12.5%,25%,50%,75%", value_name = "AMOUNTS", value_delimiter = ',')]
    pub fast: Vec<String>,
    /// Most time that may be lost, for the size that is enough.
    #[arg(long, default_value = "5%", value_name = "SHARE")]
    pub max_slowdown: String,
    /// How many seeds each setting is run with.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// Leave out what a cache of this size would serve: direct mapped, lines of 64 bytes, one a thread, such as 32MiB.
    #[arg(long, value_name = "BYTES", conflicts_with = "example")]
    pub cache: Option<String>,
    /// Keep every how many-th access of those left.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    pub period: u64,
    /// The largest footprint that is taken: some 45 bytes are kept for each of its pages.
    #[arg(long, default_value = "16GiB", value_name = "SIZE")]
    pub max_footprint: String,
    /// Keep the trace in this file.
    #[arg(long, value_name = "FILE", conflicts_with = "example")]
    pub output: Option<PathBuf>,
    /// Instead of a program, compare on a recording of sqlite3 that is part of Terrace: this needs no QEMU.
    #[arg(long, conflicts_with = "command")]
    pub example: bool,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Write report.json and report.html into this directory; by default compare-report, and with --json none.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required_unless_present = "example", trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct SweepArguments {
    /// What to run.
    #[arg(value_name = "FILE.toml")]
    pub file: PathBuf,
    /// The table: a name that ends in .parquet, .csv or .jsonl.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}
