//! What the words must hold: names of core's public types and options of the command line use terms of docs/glossary.md.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// A word as it is compared: lower case, singular.
fn plain(word: &str) -> String {
    let word = word.to_lowercase();
    match word.strip_suffix('s') {
        Some(stem) if !stem.ends_with('s') && stem.len() > 2 => stem.to_owned(),
        _ => word,
    }
}

fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).map(plain)
}

/// Every word of the first column, and of the list of ordinary words.
fn known() -> BTreeSet<String> {
    let page = read("docs/glossary.md");
    let terms = page.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split('|').next());
    let mut known: BTreeSet<String> = terms.flat_map(words).collect();
    let ordinary = page.split("## Ordinary words").nth(1).expect("docs/glossary.md has a section \"Ordinary words\"");
    known.extend(words(ordinary));
    known
}

/// "MoveRequest" as "Move", "Request".
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for letter in name.chars() {
        if letter.is_uppercase() || parts.is_empty() {
            parts.push(String::new());
        }
        parts.last_mut().expect("a part was begun").push(letter);
    }
    parts
}

/// Public types in a source text, by name.
fn types(source: &str) -> Vec<String> {
    let opens = ["pub struct ", "pub enum ", "pub trait ", "pub type "];
    let named = source.lines().filter_map(|line| opens.iter().find_map(|open| line.strip_prefix(open)));
    named.map(|rest| rest.split(|letter: char| !letter.is_alphanumeric()).next().unwrap().to_owned()).collect()
}

#[test]
fn names_of_public_types_of_core_use_listed_terms() {
    let known = known();
    let (mut seen, mut unknown) = (0, Vec::new());
    let mut pending = vec![root().join("crates/core/src")];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
            if entry.path().is_dir() {
                pending.push(entry.path());
                continue;
            }
            for name in types(&std::fs::read_to_string(entry.path()).unwrap()) {
                seen += 1;
                let coined: Vec<_> = parts(&name).into_iter().filter(|part| !known.contains(&plain(part))).collect();
                if !coined.is_empty() {
                    unknown.push(format!("{name} in {}: {}", entry.path().display(), coined.join(", ")));
                }
            }
        }
    }
    assert!(seen > 40, "only {seen} types were found");
    assert!(unknown.is_empty(), "use a term of docs/glossary.md, or list the new one there: {unknown:#?}");
}

#[test]
fn options_of_the_command_line_use_listed_terms() {
    let known = known();
    // The page is held to the program's own help by a test of the command line.
    let page = read("docs/reference/cli.md");
    let options: BTreeSet<&str> =
        page.split("`--").skip(1).map(|rest| rest.split(['`', ' ', '=']).next().unwrap()).collect();
    assert!(options.len() > 80, "only {} options were found", options.len());
    let coined: Vec<_> = options
        .iter()
        .filter(|option| words(option).any(|word| !known.contains(&word)))
        .map(|option| format!("--{option}"))
        .collect();
    assert!(coined.is_empty(), "use a term of docs/glossary.md, or list the new word there: {coined:#?}");
}
