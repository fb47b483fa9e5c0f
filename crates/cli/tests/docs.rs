//! docs/reference/cli.md states what the program states: its commands, their options, and the defaults.
//!
//! The command's own help is the source: it is asked for every command, and for every command below that.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::{BTreeMap, BTreeSet};

mod common;
use common::{leaves, text};

const PAGE: &str = include_str!("../../../docs/reference/cli.md");

/// The long options of a help text, each with its default if it has one.
fn options(help: &str) -> BTreeMap<String, Option<String>> {
    let mut found: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut last = None;
    // A default that did not fit stands at the beginning of the next line.
    let help = help.replace("[default:\n", "[default: ");
    for line in help.lines().skip_while(|line| *line != "Options:") {
        if line.trim_start().starts_with('-') {
            let name = line
                .split_whitespace()
                .map(|word| word.trim_end_matches([',', '.']))
                .find(|word| word.starts_with("--"));
            last = name.map(str::to_owned);
            found.extend(last.clone().map(|name| (name, None)));
        }
        if let (Some(name), Some((_, rest))) = (&last, line.split_once("[default: ")) {
            found.insert(name.clone(), Some(rest.split(']').next().unwrap().trim().to_owned()));
        }
    }
    found
}

/// The rows of the page's tables: by heading (empty before the first), the option and its default.
fn documented() -> BTreeMap<String, BTreeMap<String, Option<String>>> {
    let mut sections: BTreeMap<String, BTreeMap<String, Option<String>>> = BTreeMap::new();
    let mut heading = String::new();
    for line in PAGE.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            heading = name.to_owned();
            sections.entry(heading.clone()).or_default();
        }
        if let Some(row) = line.strip_prefix("| `--") {
            let mut cells = row.split('|');
            let name = cells.next().unwrap().split(['`', ' ']).next().unwrap();
            let default = cells.next().unwrap().trim().trim_matches('`');
            let default = (!default.is_empty()).then(|| default.to_owned());
            sections.entry(heading.clone()).or_default().insert(format!("--{name}"), default);
        }
    }
    sections
}

#[test]
fn the_page_lists_every_command_and_option_and_no_other() {
    let page = documented();
    let everywhere: BTreeSet<&String> = page[""].keys().collect();
    let leaves = leaves(&[]);
    assert!(leaves.len() >= 7, "only {} commands were found in the help", leaves.len());
    let mut names = BTreeSet::from([String::new()]);
    for (path, help) in leaves {
        let name = format!("terrace {path}");
        let section = page.get(&name).unwrap_or_else(|| panic!("docs/reference/cli.md lacks a section {name:?}"));
        let mut real = options(&help);
        assert!(real.contains_key("--help"), "{name}: its help was not understood");
        real.retain(|option, _| !everywhere.contains(option));
        assert_eq!(
            &real, section,
            "left: the options of {name} and their defaults; right: what docs/reference/cli.md says"
        );
        names.insert(name);
    }
    let stale: Vec<&String> = page.keys().filter(|name| !names.contains(*name)).collect();
    assert!(stale.is_empty(), "docs/reference/cli.md has sections that are no commands: {stale:?}");
}

#[test]
fn options_of_every_command_are_those_of_the_program_itself() {
    let program: BTreeSet<String> = options(&text(&["--help"])).into_keys().collect();
    let page: BTreeSet<String> = documented()[""].keys().cloned().collect();
    assert_eq!(page, program);
}
