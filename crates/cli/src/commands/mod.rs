//! The commands, one module each; this file only hands over.

use std::process::ExitCode;

use terrace_core::text::visible_lines;

use crate::args::Command;

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
    match command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Run(arguments) => manage::run(&arguments, verbose),
        Command::Attach(arguments) => manage::attach(&arguments, verbose),
        Command::Observe(arguments) => manage::observe(&arguments, verbose),
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
        Command::Size(command) => size::run(&command),
        Command::Trace(command) => trace::run(&command),
        Command::Record(arguments) => record::run(&arguments),
        Command::Version => version(),
        Command::Completions(arguments) => generate::completions(arguments.shell),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Reproduce(arguments) => reproduce::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Sweep(arguments) => sweep::run(&arguments),
        Command::Rerun(arguments) => rerun::run(&arguments),
        Command::Lab(command) => lab::run(&command),
    }
}

/// A directory for temporary files, removed when dropped.
///
/// # Errors
/// When none can be made; the error says where one was wanted.
pub(crate) fn temporary_folder() -> anyhow::Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|error| {
        let place = std::env::temp_dir();
        anyhow::anyhow!(
            "no temporary files can be made in {}: {}; TMPDIR names another directory",
            place.display(),
            error.kind()
        )
    })
}

/// `terrace version`: as `terrace --version`.
fn version() -> anyhow::Result<ExitCode> {
    print_text(&format!("terrace {}\n", env!("CARGO_PKG_VERSION")))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a value as one JSON object on one line of stdout. Every command with `--json` prints by this.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, value)?;
    writeln!(stdout)?;
    Ok(())
}

/// Prints text on stdout. Control characters in names from outside do not act on the terminal.
pub(crate) fn print_text(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    std::io::stdout().lock().write_all(visible_lines(text).as_bytes())?;
    Ok(())
}
