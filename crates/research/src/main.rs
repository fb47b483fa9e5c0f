//! The `terrace-research` command: simulations, papers, recordings, guests, and how much fast memory to buy.
//!
//! Entry: `main`, then the command's file in `commands`.
//! In: arguments, as `terrace` has them: `terrace sim run` becomes this program.
//! Out: the exit code: 0 done, 1 failed, 2 misuse; `record` and `size advise` pass their program's code through.
//! Must not: hold logic; each command is a module of `commands`. Know the service.

#![deny(clippy::print_stderr, reason = "it panics where stderr cannot be written: `say!` does not")]

use std::process::ExitCode;

use terrace_grammar as args;
use terrace_report::terminal;
use terrace_run::{entry, program, programs, session};
use terrace_study::provenance;

mod commands;
mod options;
mod profile;
mod recorder;
mod render;
mod report;

/// Simulations ask it for huge pages; other commands have the system's allocator.
#[global_allocator]
static ALLOCATOR: terrace_linux::sys::allocator::WithHugePages = terrace_linux::sys::allocator::WithHugePages;

fn main() -> ExitCode {
    if let Some(code) = entry::guardian() {
        return code;
    }
    let arguments = match args::parsed(args::of_research()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    entry::begin(arguments.verbose);
    entry::ended(commands::run(arguments.command), options::is_misuse)
}
