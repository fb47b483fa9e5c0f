//! What clap has to say before a command runs: help, version, and what is wrong with the arguments.
//!
//! In: clap's answer. Out: the exit code: 0 for what was asked for and could be printed, 1 where it could not, 2 for misuse. Must not: be
//! silent about output that was lost; clap's own exit is.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Prints it where it belongs.
pub fn tell(told: &clap::Error) -> ExitCode {
    match told.print().and_then(|()| std::io::stdout().flush()) {
        // A reader that went away has what it wanted.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            // stderr may be what failed; then there is nobody left to tell.
            let _ = writeln!(std::io::stderr(), "{error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(2)),
    }
}
