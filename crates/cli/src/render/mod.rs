//! Tables and other text for a terminal.
//!
//! In: what a command found. Out: text, no wider than the screen. Must not: print, colour (so NO_COLOR has nothing to forbid),
//! or find out anything itself but what the screen can show.

pub(crate) mod doctor;
pub(crate) mod lab;
pub(crate) mod service;
pub(crate) mod top;
pub(crate) mod topology;

use comfy_table::presets::{ASCII_HORIZONTAL_ONLY, UTF8_HORIZONTAL_ONLY};
use comfy_table::{ContentArrangement, Table};

/// What a terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Screen {
    /// Characters in a line.
    pub width: usize,
    /// Whether it shows more than ASCII.
    pub unicode: bool,
}

/// The default width, for a pipe or a file.
const USUAL_WIDTH: usize = 100;

impl Screen {
    /// The screen behind this output, from its size and the locale.
    pub(crate) fn of(output: impl std::os::fd::AsFd) -> Screen {
        let width = terminal_size::terminal_size_of(output).map(|(width, _)| usize::from(width.0));
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).unwrap_or_default());
        Screen { width: width.filter(|width| *width > 0).unwrap_or(USUAL_WIDTH), unicode: speaks_unicode(&locale) }
    }

    /// A table for it, with these headings.
    fn table(&self, headings: &[&str]) -> Table {
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
pub(crate) fn fitted(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

/// A heading and entries under it, each begun with a dash and continued under itself; nothing if there are none. The lines of an
/// entry stay lines of their own.
fn listed(heading: &str, entries: impl IntoIterator<Item = String>, width: usize) -> String {
    let room = width.saturating_sub(4).max(30);
    let mut text = String::new();
    for entry in entries {
        if text.is_empty() {
            text.push_str(&format!("\n{heading}\n"));
        }
        let mut head = "  - ";
        for line in entry.lines() {
            let mut current = String::new();
            for word in line.split_whitespace() {
                if !current.is_empty() && current.chars().count() + 1 + word.chars().count() > room {
                    text.push_str(&format!("{head}{current}\n"));
                    head = "    ";
                    current.clear();
                }
                if !current.is_empty() {
                    current.push(' ');
                }
                current.push_str(word);
            }
            text.push_str(&format!("{head}{current}\n"));
            head = "    ";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_locale_that_is_set_decides() {
        let locale = |values: [&str; 3]| speaks_unicode(&values.map(str::to_owned));
        assert!(locale(["", "", "C.UTF-8"]) && locale(["", "de_DE.utf8", "C"]));
        assert!(!locale(["C", "", "C.UTF-8"]) && !locale(["", "", ""]));
    }

    #[test]
    fn lists_keep_to_the_width() {
        let text = listed("Notes", ["one two three four five six seven eight nine ten eleven".to_owned()], 34);
        assert_eq!(text, "\nNotes\n  - one two three four five six\n    seven eight nine ten eleven\n");
        assert_eq!(listed("Notes", [], 34), "");
        assert_eq!(
            listed("Notes", ["none works:\n  one\n  two".to_owned()], 34),
            "\nNotes\n  - none works:\n    one\n    two\n"
        );
    }
}
