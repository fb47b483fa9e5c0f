//! The commands, one module each; this file only hands over.

use std::process::ExitCode;

use crate::args::Command;
use crate::terminal::{print, print_json, print_text};

mod compare;
mod config;
mod demo;
mod doctor;
mod generate;
mod lab;
pub(crate) mod manage;
mod named;
mod policies;
pub(crate) mod record;
mod reproduce;
mod rerun;
mod service;
pub(crate) mod sim;
pub(crate) mod size;
mod sweep;
mod top;
mod topology;
mod trace;
mod workload;

/// Runs a command.
///
/// # Errors
/// Whatever the command could not do; misuse is an [`crate::options::Misuse`].
pub(crate) fn run(command: Command, verbose: bool) -> anyhow::Result<ExitCode> {
    if let Command::Sim(_) | Command::Reproduce(_) | Command::Sweep(_) | Command::Rerun(_) = command {
        terrace_linux::sys::allocator::use_huge_pages();
    }
    let done = match command {
        // The exit code of these says more than that they are done: it is a program's, or a verdict.
        Command::Run(arguments) => return manage::run(&arguments, verbose),
        Command::Attach(arguments) => return manage::attach(&arguments, verbose),
        Command::Observe(arguments) => return manage::observe(&arguments, verbose),
        Command::Size(command) => return size::run(&command),
        Command::Trace(command) => return trace::run(&command),
        Command::Record(arguments) => return record::run(&arguments),
        Command::Rerun(arguments) => return rerun::run(&arguments),
        Command::Lab(command) => return lab::run(&command),
        Command::Demo(arguments) => demo::run(&arguments),
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
        Command::Reload(arguments) => service::reload(&arguments),
        Command::Set(arguments) => service::set(&arguments),
        Command::Config(command) => config::run(&command),
        Command::Workload(arguments) => workload::run(&arguments),
        Command::Sim(command) => sim::run(&command),
        Command::Version => print_text(&format!("terrace {}\n", env!("CARGO_PKG_VERSION"))),
        Command::Completions(arguments) => generate::completions(arguments.shell),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Sweep(arguments) => sweep::run(&arguments),
    };
    done.map(|()| ExitCode::SUCCESS)
}
