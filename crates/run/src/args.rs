//! The arguments of a run: what is run and what runs already, the options of a run as flags, and where the results go.
//!
//! In: what the user typed. Out: raw arguments, and a checked specification. Must not: look at the machine.

use std::path::PathBuf;

use clap::Args;

mod spec;
mod target;
mod tune;

pub use spec::*;
pub use target::*;
pub use tune::*;

/// What can be a pid: the kernel's PID_MAX_LIMIT is 2^22 (proc_sys_kernel(5), pid_max).
const PIDS: std::ops::RangeInclusive<u32> = 1..=(1 << 22);

/// A pid as people write it.
fn pid(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(pid) if PIDS.contains(&pid) => Ok(pid),
        Err(_) if text.chars().any(|letter| !letter.is_ascii_digit()) => {
            Err(format!("expected a number; by name: --name {text}"))
        }
        _ => Err(format!("a pid is {} to {}", PIDS.start(), PIDS.end())),
    }
}

/// Where the results of a run go.
#[derive(Clone, Debug, Default, Args)]
pub struct ReportArguments {
    /// Write report.json and report.html into this directory.
    #[arg(short = 'o', long, alias = "output", value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print the report as one JSON object on stdout, after the program's own output.
    #[arg(long)]
    pub json: bool,
    /// Write the report as one JSON object into this file.
    #[arg(long, value_name = "FILE")]
    pub json_file: Option<PathBuf>,
    /// Print no progress line and no closing lines.
    #[arg(short, long)]
    pub quiet: bool,
    /// Show the memory by idle time and by address on the whole terminal while it runs.
    #[arg(long, conflicts_with = "quiet")]
    pub live: bool,
}
