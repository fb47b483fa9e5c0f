//! What both programs of the command line begin and end with: the undo guard, the log, and the last line of a failure.
//!
//! In: the process's arguments, an error. Out: the log on stderr, an exit code. Must not: print data.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use terrace_common::say;

use signal_hook::consts::SIGXFSZ;

use terrace_core::text::visible_lines;
use terrace_linux::guard::{GUARD_ARGUMENT, run_guardian};

use crate::program::NotStarted;
use crate::programs::Missing;
use crate::session::signals::{WITNESS_ARGUMENT, is_ignored, run_witness};
use terrace_report::terminal::{is_closed_pipe, stdout};

/// The exit code of the undo guard, or of the witness of signals, if this process is one: the program started again. They must not depend on the command
/// line's grammar.
pub fn guardian() -> Option<ExitCode> {
    let first = std::env::args_os().nth(1)?;
    match () {
        () if first == GUARD_ARGUMENT => Some(ExitCode::from(run_guardian(std::io::stdin()))),
        () if first == WITNESS_ARGUMENT => Some(ExitCode::from(run_witness())),
        () => None,
    }
}

/// Before a command: the log, and SIGXFSZ. An output beyond the limit of file sizes (`ulimit -f`) is an error with a message; the signal would end Terrace without
/// a word. A program that it starts has the signal as ever: handlers do not outlive exec.
pub fn begin(verbose: u8) {
    start_log(verbose);
    if !is_ignored(SIGXFSZ)
        && let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))
    {
        tracing::warn!(%error, "SIGXFSZ cannot be handled");
    }
}

/// After a command: its exit code. What is left in stdout's buffer would be lost without a word when the process ends. After a failure it is what could not
/// be written.
pub fn ended(done: anyhow::Result<ExitCode>, is_misuse: impl Fn(&anyhow::Error) -> bool) -> ExitCode {
    let flushed = |code| if code == ExitCode::SUCCESS { stdout().flush().map(|()| code) } else { Ok(code) };
    match done.and_then(|code| Ok(flushed(code)?)) {
        Ok(code) => code,
        Err(error) => failed(&error, is_misuse(&error)),
    }
}

/// Logs go to stderr; data goes to stdout.
fn start_log(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let colour = std::env::var_os("NO_COLOR").is_none() && std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .without_time()
        // Which module warns helps who debugs Terrace, and nobody else.
        .with_target(verbose > 0)
        .init();
}

/// Prints why a command failed; its exit code: 2 for misuse, 126 and 127 for a program that cannot be started or is not there, else 1.
pub fn failed(error: &anyhow::Error, is_misuse: bool) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    say!("terrace: {}\n", visible_lines(&terrace_common::tell::causes(error)));
    if let Some(not_started) = error.downcast_ref::<NotStarted>() {
        return ExitCode::from(not_started.exit_code());
    }
    match error.is::<Missing>() {
        true => ExitCode::from(Missing::EXIT_CODE),
        false if is_misuse => ExitCode::from(2),
        false => ExitCode::FAILURE,
    }
}
