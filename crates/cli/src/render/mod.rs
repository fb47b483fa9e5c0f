//! Tables and other text for a terminal.
//!
//! In: what a command found. Out: text, no wider than the screen. Must not: print, colour (so NO_COLOR has nothing to forbid),
//! or find out anything itself.

pub(crate) mod doctor;
pub(crate) mod machine;
pub(crate) mod service;
pub(crate) mod survey;
pub(crate) mod top;
pub(crate) mod topology;

use terrace_common::tell::wrapped;

use crate::terminal::Screen;

/// A heading and entries under it, each begun with a dash and continued under itself; nothing if there are none. The lines of an
/// entry stay lines of their own.
fn listed(heading: &str, entries: impl IntoIterator<Item = String>, width: usize) -> String {
    let room = width.saturating_sub(4).max(30);
    let mut text = String::new();
    for entry in entries {
        if text.is_empty() {
            text.push_str(&format!("\n{heading}\n"));
        }
        let heads = std::iter::once("  - ").chain(std::iter::repeat("    "));
        for (head, line) in heads.zip(entry.lines().flat_map(|line| wrapped(line, room))) {
            text.push_str(&format!("{head}{line}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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
