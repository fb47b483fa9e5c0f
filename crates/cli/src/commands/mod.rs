//! The commands, one module each; this file only hands over.

use std::process::ExitCode;

use terrace_run::tune;

use crate::args::{Command, SizeCommand, generate};
use crate::programs::{self, RESEARCH, TERRACE};
use crate::terminal::{print, print_json, print_text};

mod config;
mod demo;
mod doctor;
mod manage;
mod policies;
mod service;
mod survey;
mod top;
mod topology;
mod wake;

/// Runs a command.
///
/// # Errors
/// Whatever the command could not do; misuse is an [`crate::options::Misuse`].
pub(crate) fn run(command: Command, verbose: bool) -> anyhow::Result<ExitCode> {
    let done = match command {
        // The exit code of these says more than that they are done: it is a program's, or a verdict.
        Command::Run(arguments) => return manage::run(&arguments, verbose),
        Command::Attach(arguments) => return manage::attach(&arguments, verbose),
        Command::Observe(arguments) => return manage::observe(&arguments, verbose),
        Command::Size(SizeCommand::Tune(arguments)) => return tune::run(&arguments, || Err(no_database())),
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Survey(arguments) => survey::run(&arguments),
        Command::Topology(arguments) => topology::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        Command::Policies(arguments) => policies::run(&arguments),
        Command::Status(arguments) => service::status(&arguments),
        Command::Classes(arguments) => service::classes(&arguments),
        Command::Explain(arguments) => service::explain(&arguments),
        Command::History(arguments) => service::history(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::Pause(arguments) => service::pause(&arguments),
        Command::Resume(arguments) => service::resume(&arguments),
        Command::Drain(arguments) => service::drain(&arguments),
        Command::Wake(arguments) => wake::run(&arguments),
        Command::Reload(arguments) => service::reload(&arguments),
        Command::Set(arguments) => service::set(&arguments),
        Command::Config(command) => config::run(&command),
        Command::Version => print_text(&format!("terrace {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completions(arguments) => print_text(&generate::completions(TERRACE, arguments.shell)?),
        Command::Generate(arguments) => generate::run(&arguments),
        // Not reached: `main` hands these over. A command that is in neither list is found by a test of the grammar.
        other => return Err(programs::hand_over(RESEARCH, other.name())),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// `size tune --paper` is of the other program, which has databases.
fn no_database() -> anyhow::Error {
    programs::hand_over(RESEARCH, "size tune --paper")
}
