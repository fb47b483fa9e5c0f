//! The `terrace` command: what an operator types.
//!
//! Entry: `main`, then the command's file in `commands`.
//! In: arguments.
//! Out: the exit code: 0 done, 1 failed, 2 misuse; `run` passes its program's code through, and has env(1)'s 126 and 127 for a program
//! that cannot be started. A command of research is `terrace-research` from then on, with its exit codes and signals; 127 where that is not installed.
//! Must not: hold logic; each command is a module of `commands`. Link a simulator, or anything else that only research needs.

#![deny(clippy::print_stderr, reason = "it panics where stderr cannot be written: `say!` does not")]

use std::process::ExitCode;

use terrace_grammar as args;
use terrace_report as report;
use terrace_report::terminal;
use terrace_run::{entry, options, program, programs, session};

mod commands;
mod render;

fn main() -> ExitCode {
    if let Some(code) = entry::guardian() {
        return code;
    }
    let arguments = match args::parsed(args::command()) {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    entry::begin(arguments.verbose);
    if let Some(name) = arguments.command.of_research() {
        let error = programs::hand_over(programs::RESEARCH, name);
        return entry::failed(&error, false);
    }
    entry::ended(commands::run(arguments.command, arguments.verbose > 0), options::is_misuse)
}
