//! Messages before a command runs and after it fails: help, version, misuse, and errors with their causes; and long text in lines.
//!
//! In: clap's message, an error, or a text. Out: the exit code (0 for requested and printed output, 1 if it could not be printed, 2 for
//! misuse), or lines. Must not: be silent about lost output, as clap's own exit is, or print anything twice.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// An error and its causes in one line. Omits a cause that the text before it already contains, as many errors contain the kernel's.
pub fn causes(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |text, cause| {
        let cause = cause.to_string();
        match text.as_str() {
            "" => cause,
            said if said.contains(&cause) => text,
            said => format!("{said}: {cause}"),
        }
    })
}

/// A text in lines of at most `width` characters, broken between words; a word that is longer has a line to itself. There is always a line.
pub fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            if line.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut line));
            } else {
                line.push(' ');
            }
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Prints it to stdout or stderr.
pub fn tell(told: &clap::Error) -> ExitCode {
    match told.print().and_then(|()| std::io::stdout().flush()) {
        // A reader that closed the pipe has what it wanted.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            // stderr may be what failed; nothing more can be reported then.
            let _ = writeln!(std::io::stderr(), "terrace: stdout could not be written: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(told.exit_code()).unwrap_or(2)),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = || std::io::Error::from(ErrorKind::NotFound);
        let twice = anyhow::Error::new(cause()).context(format!("/x: {}", cause()));
        assert_eq!(causes(&twice), format!("/x: {}", cause()));
        let other = Err::<(), _>(cause()).context("/x could not be read").context("--report /x").unwrap_err();
        assert_eq!(causes(&other), format!("--report /x: /x could not be read: {}", cause()));
    }
}
