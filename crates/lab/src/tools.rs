//! Programs of the host that the laboratory runs.
//!
//! In: a command. Out: its standard output, or an error with the end of what it said. Must not: leave a command running.

use std::io;
use std::process::{Command, Output, Stdio};

use crate::error::{LabError, tail};

/// Runs a command to its end and returns its standard output. `package` is the Debian package that has the program.
pub(crate) fn output_of(command: &mut Command, package: &'static str) -> Result<Vec<u8>, LabError> {
    let output = run(command, package)?;
    if output.status.success() { Ok(output.stdout) } else { Err(failed(command, &output)) }
}

/// Like [`output_of`], and the output must be text.
pub(crate) fn text_of(command: &mut Command, package: &'static str) -> Result<String, LabError> {
    Ok(String::from_utf8_lossy(&output_of(command, package)?).into_owned())
}

fn run(command: &mut Command, package: &'static str) -> Result<Output, LabError> {
    tracing::debug!(command = line_of(command), "running");
    command.stdin(Stdio::null()).output().map_err(|source| start_error(command, package, source))
}

/// Why a command could not be started.
pub(crate) fn start_error(command: &Command, package: &'static str, source: io::Error) -> LabError {
    let program = command.get_program();
    match source.kind() {
        io::ErrorKind::NotFound => LabError::NotInstalled { program: program.to_string_lossy().into_owned(), package },
        _ => LabError::File { path: program.into(), source },
    }
}

fn failed(command: &Command, output: &Output) -> LabError {
    let said = format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    LabError::Command { command: line_of(command), status: output.status.to_string(), tail: tail(&said, 12) }
}

/// The command line as a person would type it.
pub(crate) fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words
        .map(|word| {
            let word = word.to_string_lossy();
            if word.chars().any(char::is_whitespace) { format!("'{word}'") } else { word.into_owned() }
        })
        .collect();
    words.join(" ")
}
