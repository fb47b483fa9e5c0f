//! The arguments of `terrace size tune`.
//!
//! In: what the user typed. Out: raw arguments. Must not: look at the machine.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::{SpecArguments, TargetArguments, ToTune};

// Its documentation is that of the command: a comment here would become help.
#[allow(missing_docs)]
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "name", "cgroup", "unit", "command"]))]
pub struct SizeTuneArguments {
    /// Most time that may be lost: on average, and in 95 of 100 windows.
    #[arg(long, default_value = "5%", value_name = "SHARE")]
    pub max_slowdown: String,
    /// Time between decisions, at least 500ms.
    #[arg(long, default_value = "2500ms", value_name = "TIME")]
    pub every: String,
    /// As in the paper: by a performance database, not by observation, as long as it has records like nine of ten intervals.
    #[arg(long)]
    pub paper: bool,
    /// With --paper: the performance database (`terrace size build` makes one). Without it one is built for the machine, in memory.
    #[arg(long, value_name = "FILE", requires = "paper")]
    pub db: Option<PathBuf>,
    /// With --paper: the machine that stands for this one, of `terrace sim machines`; zram-vm unless given.
    #[arg(long, value_name = "NAME", requires = "paper")]
    pub machine: Option<String>,
    /// What holds the limit: pages (Terrace demotes the coldest pages of the program, and only of it) or watermarks (the kernel keeps so
    /// much memory free, by `vm.min_free_kbytes`, which is put back at the end; it takes from every program).
    #[arg(long, default_value = "pages", value_name = "HOW", value_parser = ["pages", "watermarks"])]
    pub hold: String,
    #[command(flatten)]
    pub spec: SpecArguments<ToTune>,
    #[command(flatten)]
    pub target: TargetArguments,
    /// Write report.json and report.html of the run into this directory.
    #[arg(short = 'o', long, alias = "output", value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object on stdout, after the program's own output.
    #[arg(long)]
    pub json: bool,
    /// Write the JSON object into this file.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Print no progress line and no closing lines.
    #[arg(short, long)]
    pub quiet: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
