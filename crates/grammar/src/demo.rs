//! The grammar of `terrace demo`.
//!
//! In: what the user typed. Out: raw arguments. Must not: look at the machine.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// What the demo can do, best first. Each is tried where the one before it does not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DemoJob {
    // Manage a program, and say what that saved and cost.
    Manage,
    // Observe it, move nothing, and say how much fast memory it needs.
    Observe,
    // Record a program in QEMU's user mode, and compare policies on what it did.
    Record,
    // Compare policies on a recording that is part of Terrace.
    Replay,
}

#[derive(Debug, Args)]
pub struct DemoArguments {
    /// How long the program works. A recording is shortened accordingly.
    #[arg(long, default_value = "45s", value_name = "TIME")]
    pub duration: String,
    /// The first job that is tried.
    #[arg(long, default_value = "manage", value_name = "JOB")]
    pub from: DemoJob,
    /// Write report.json and report.html into this directory; by default demo-report, or a new one for temporary files where that cannot be written.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print one JSON object: what was done, why nothing better, the result, the page. The rest goes to stderr.
    #[arg(long)]
    pub json: bool,
}
