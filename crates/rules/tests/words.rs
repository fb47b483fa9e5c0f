//! What the prose must not say: phrases that make a comment or a document a riddle, and what to write instead.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A phrase, and what to write instead.
const RIDDLES: &[(&str, &str)] = &[
    ("so many", "the argument's name, \"this many\", or the number"),
    ("whoever", "the subject: the user, the client, the process"),
    ("anew", "again"),
    ("is told", "\"receives\", \"is reported\", or the name of the argument"),
    ("are told of", "\"receive\" or \"are reported\""),
    ("was told", "\"received\" or \"was reported\""),
    ("is to be told", "\"receives\""),
    ("its matter", "what it does or does not do"),
    ("for nothing", "\"without benefit\", \"at no cost\", or \"in vain\""),
    ("is nobody's", "\"belongs to no process\""),
    ("told anew", "\"reported again\""),
];

/// Files that quote, or whose old entries stay as they were.
const LEFT_OUT: &[&str] = &["CHANGELOG.md", "benchmarks/", "crates/rules/tests/words.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The prose of a file: its comments, or a document without code.
fn prose(path: &str, text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let words = if path.ends_with(".md") {
            fenced ^= line.trim_start().starts_with("```");
            if fenced || line.starts_with("    ") { "" } else { line }
        } else {
            line.trim_start().strip_prefix("//").unwrap_or("")
        };
        // Names of code stand in backticks.
        lines.push((number + 1, words.split('`').step_by(2).collect::<Vec<_>>().join("`").to_lowercase()));
    }
    lines
}

/// Whether a line has a phrase as whole words.
fn has(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let letter = |found: Option<char>| found.is_some_and(char::is_alphanumeric);
        !letter(line[..at].chars().next_back()) && !letter(line[at + phrase.len()..].chars().next())
    })
}

#[test]
fn comments_and_documents_are_no_riddles() {
    let output = Command::new("git").args(["ls-files", "*.rs", "*.md"]).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "git ls-files failed; this test needs a checkout");
    let mut read = 0;
    let mut found: Vec<String> = Vec::new();
    for path in String::from_utf8(output.stdout).unwrap().lines() {
        let Ok(text) = std::fs::read_to_string(root().join(path)) else { continue };
        if LEFT_OUT.iter().any(|left_out| path.starts_with(left_out)) {
            continue;
        }
        read += 1;
        for (number, line) in prose(path, &text) {
            let refused = RIDDLES.iter().filter(|(phrase, _)| has(&line, phrase));
            found.extend(refused.map(|(phrase, instead)| format!("{path}:{number}: \"{phrase}\": write {instead}")));
        }
    }
    assert!(read > 300, "only {read} files were read");
    assert!(found.is_empty(), "say it plainly:\n{}", found.join("\n"));
}

#[test]
fn riddles_are_found_as_whole_words_outside_code() {
    let lines = |path: &str, text: &str| prose(path, text).into_iter().map(|(_, line)| line).collect::<Vec<_>>();
    assert!(has(&lines("a.rs", "/// So many pages.")[0], "so many"));
    assert!(!has(&lines("a.rs", "let so_many = \"so many\";")[0], "so many"));
    assert!(!has(&lines("a.rs", "/// Also many pages.")[0], "so many"));
    assert!(!has(&lines("a.md", "The test `what_is told`.")[0], "is told"));
    assert!(!has(&lines("a.md", "```\nwhoever\n```")[1], "whoever"));
}
