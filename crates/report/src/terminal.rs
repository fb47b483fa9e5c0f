//! The terminal: what it can show, and text and JSON on stdout.
//!
//! In: text, or a value. Out: the same on stdout. Must not: let control characters in names from outside act on the terminal.

use std::io::{self, ErrorKind, StdoutLock, Write};

use anyhow::Context;
use comfy_table::presets::{ASCII_HORIZONTAL_ONLY, UTF8_HORIZONTAL_ONLY};
use comfy_table::{ContentArrangement, Table};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use terrace_core::text::visible_lines;

/// What a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Screen {
    /// Characters in a line.
    pub width: usize,
    /// Whether it shows more than ASCII.
    pub unicode: bool,
}

/// The default width, for a pipe or a file.
const USUAL_WIDTH: usize = 100;

impl Screen {
    /// The screen behind this output, from its size and the locale.
    pub fn of(output: impl std::os::fd::AsFd) -> Screen {
        let width = terminal_size::terminal_size_of(output).map(|(width, _)| usize::from(width.0));
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).unwrap_or_default());
        Screen { width: width.filter(|width| *width > 0).unwrap_or(USUAL_WIDTH), unicode: speaks_unicode(&locale) }
    }

    /// A table for it, with these headings.
    pub fn table(&self, headings: &[&str]) -> Table {
        let mut table = Table::new();
        table
            .load_style(if self.unicode { UTF8_HORIZONTAL_ONLY } else { ASCII_HORIZONTAL_ONLY })
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(self.width).unwrap_or(u16::MAX))
            .set_header(headings.iter().copied());
        table
    }
}

/// The first of LC_ALL, LC_CTYPE and LANG that is set decides (locale(7)).
fn speaks_unicode(locale: &[String]) -> bool {
    let decisive = locale.iter().find(|value| !value.is_empty()).map(|value| value.to_ascii_lowercase());
    decisive.is_some_and(|value| value.ends_with("utf-8") || value.ends_with("utf8"))
}

/// The text cut to the width, so that a terminal does not wrap it.
pub fn fitted(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// A bar on stderr when that is a terminal, and nothing otherwise; `done` of its steps were done before.
pub fn bar(total: u64, done: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()).with_position(done);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.reset_eta();
    bar
}

/// Stdout, whose errors say that it is stdout that could not be written.
pub struct Stdout(StdoutLock<'static>);

/// Takes stdout. All data of commands goes through here.
pub fn stdout() -> Stdout {
    Stdout(io::stdout().lock())
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(|error| named("stdout", error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(|error| named("stdout", error))
    }
}

fn named(output: &str, error: io::Error) -> io::Error {
    match error.kind() {
        // Who writes tries again.
        ErrorKind::Interrupted => error,
        kind => io::Error::new(kind, format!("{output} could not be written: {error}")),
    }
}

/// Whether it only says that a reader has closed its pipe: it has what it wanted, as `head` does.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}

/// Prints a value as one JSON object on one line of stdout. Every command with `--json` prints by this.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut stdout = stdout();
    serde_json::to_writer(&mut stdout, value).map_err(io::Error::from)?;
    writeln!(stdout)?;
    stdout.flush()?;
    Ok(())
}

/// Prints a value as JSON where that is asked for, else as the text that a person reads on this screen.
pub fn print(json: bool, value: &impl serde::Serialize, text: impl FnOnce(&Screen) -> String) -> anyhow::Result<()> {
    if json { print_json(value) } else { print_text(&text(&Screen::of(io::stdout()))) }
}

/// Prints text on stdout. Control characters in names from outside do not act on the terminal.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = stdout();
    stdout.write_all(visible_lines(text).as_bytes())?;
    stdout.flush()?;
    Ok(())
}

/// Prints text on stderr, where stdout belongs to something else. Unlike what is said in passing (`say!`), it is a result: that it is lost is a
/// failure.
pub fn print_aside(text: &str) -> anyhow::Result<()> {
    io::stderr().lock().write_all(visible_lines(text).as_bytes()).context("stderr could not be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_cannot_be_written_is_named_with_the_reason() {
        for (errno, why) in [(28, "No space left on device"), (122, "quota exceeded"), (30, "Read-only file system")] {
            let error = named("stdout", io::Error::from_raw_os_error(errno));
            let kind = io::Error::from_raw_os_error(errno).kind();
            assert_eq!(error.kind(), kind);
            let text = error.to_string();
            assert!(text.starts_with("stdout could not be written: ") && text.contains(why), "{text}");
        }
        assert!(is_closed_pipe(&named("stdout", ErrorKind::BrokenPipe.into()).into()));
        assert!(!is_closed_pipe(&named("stdout", ErrorKind::StorageFull.into()).into()));
    }

    #[test]
    fn the_first_locale_that_is_set_decides() {
        let locale = |values: [&str; 3]| speaks_unicode(&values.map(str::to_owned));
        assert!(locale(["", "", "C.UTF-8"]) && locale(["", "de_DE.utf8", "C"]));
        assert!(!locale(["C", "", "C.UTF-8"]) && !locale(["", "", ""]));
    }
}
