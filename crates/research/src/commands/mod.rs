//! The commands, one module each; this file only hands over.

use std::process::ExitCode;

use crate::args::{Command, generate};
use crate::programs::{self, RESEARCH, TERRACE};
use crate::terminal::{print, print_json, print_text};

mod compare;
mod lab;
pub(crate) mod record;
mod reproduce;
mod rerun;
pub(crate) mod sim;
pub(crate) mod size;
mod sweep;
mod trace;
mod workload;

/// Runs a command.
///
/// # Errors
/// Whatever the command could not do; misuse is an [`crate::options::Misuse`].
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    if let Command::Sim(_) | Command::Reproduce(_) | Command::Sweep(_) | Command::Rerun(_) = command {
        terrace_linux::sys::allocator::use_huge_pages();
    }
    let done = match command {
        // The exit code of these says more than that they are done: it is a program's, or a verdict.
        Command::Size(command) => return size::run(&command),
        Command::Trace(command) => return trace::run(&command),
        Command::Record(arguments) => return record::run(&arguments),
        Command::Rerun(arguments) => return rerun::run(&arguments),
        Command::Lab(command) => return lab::run(&command),
        Command::Workload(arguments) => workload::run(&arguments),
        Command::Sim(command) => sim::run(&command),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Sweep(arguments) => sweep::run(&arguments),
        Command::Version => print_text(&format!("{RESEARCH} {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completions(arguments) => print_text(&generate::completions(RESEARCH, arguments.shell)?),
        Command::Generate(arguments) => generate::run(&arguments),
        other => return Err(programs::hand_over(TERRACE, other.name())),
    };
    done.map(|()| ExitCode::SUCCESS)
}
