//! The `terrace` command.
//!
//! Entry: `main`, then the command's file in `commands`.
//! In: arguments.
//! Out: the exit code: 0 done, 1 failed, 2 misuse; `run` passes its program's code through, and has env(1)'s 126 and 127 for a program
//! that cannot be started.
//! Must not: hold logic; each command is a module of `commands`.

use std::process::ExitCode;

use clap::FromArgMatches;
use terrace_core::text::visible_lines;
use terrace_study::provenance;

mod args;
mod commands;
mod options;
mod program;
mod recorder;
mod render;
mod report;
mod session;
mod terminal;

/// Simulations ask it for huge pages; other commands have the system's allocator.
#[global_allocator]
static ALLOCATOR: terrace_linux::sys::allocator::WithHugePages = terrace_linux::sys::allocator::WithHugePages;

fn main() -> ExitCode {
    // The undo guard is this program started again; it must not depend on the command line's grammar.
    if std::env::args_os().nth(1).is_some_and(|argument| argument == terrace_linux::guard::GUARD_ARGUMENT) {
        return ExitCode::from(terrace_linux::guard::run_guardian(std::io::stdin()));
    }
    let parsed = args::command().try_get_matches().and_then(|given| args::Arguments::from_arg_matches(&given));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(told) => {
            let words: Vec<String> =
                std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            let told = args::with_guess(args::with_nearest(told), &args::command(), &words);
            return terrace_daemon::tell::tell(&told);
        }
    };
    start_log(arguments.verbose);
    match commands::run(arguments.command, arguments.verbose > 0) {
        Ok(code) => code,
        Err(error) => fail(&error),
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

fn fail(error: &anyhow::Error) -> ExitCode {
    let broken_pipe = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe);
    if broken_pipe {
        return ExitCode::SUCCESS;
    }
    eprintln!("terrace: {}", visible_lines(&terrace_daemon::tell::causes(error)));
    match error.downcast_ref::<program::NotStarted>() {
        Some(not_started) => ExitCode::from(not_started.exit_code()),
        None if options::is_misuse(error) => ExitCode::from(2),
        None => ExitCode::FAILURE,
    }
}
