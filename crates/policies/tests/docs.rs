//! Each policy's page states what the code states: its settings with their defaults, and its table of constants.
#![allow(clippy::unwrap_used, missing_docs)]

use terrace_policies::POLICIES;

/// Name, page, source.
macro_rules! pages {
    ($(($name:literal, $file:literal)),* $(,)?) => {
        &[$((
            $name,
            include_str!(concat!("../../../docs/policies/", $name, ".md")),
            include_str!(concat!("../src/", $file, ".rs")),
        )),*]
    };
}

const PAGES: &[(&str, &str, &str)] = pages![
    ("age", "age"),
    ("all-fast", "all_fast"),
    ("all-slow", "all_slow"),
    ("alto", "alto"),
    ("arms", "arms"),
    ("autonuma", "autonuma"),
    ("chrono", "chrono"),
    ("clairvoyant", "clairvoyant"),
    ("colloid", "colloid"),
    ("first-touch", "first_touch"),
    ("flexhm", "flexhm"),
    ("flexmem", "flexmem"),
    ("hemem", "hemem"),
    ("hotness-walk", "hotness_walk"),
    ("hybridtier", "hybridtier"),
    ("interleave", "interleave"),
    ("memory-mode", "memory_mode"),
    ("memtis", "memtis"),
    ("nomad", "nomad"),
    ("numab2", "numab2"),
    ("pact", "pact"),
    ("pond-static", "pond_static"),
    ("terrace", "terrace"),
    ("thermostat", "thermostat"),
    ("tieredmms", "tieredmms"),
    ("tiering08", "tiering08"),
    ("tpp", "tpp"),
];

#[test]
fn every_policy_has_a_page_and_every_page_a_policy() {
    let names: Vec<&str> = POLICIES.iter().map(|info| info.name).collect();
    let pages: Vec<&str> = PAGES.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, pages, "both in alphabetical order");
}

#[test]
fn pages_list_the_settings_and_constants_of_the_code() {
    for (info, (name, page, source)) in POLICIES.iter().zip(PAGES) {
        assert!(page.contains(&format!("Source: {}.", info.source)), "{name}: the source is {:?}", info.source);
        let settings: Vec<String> = info
            .settings
            .iter()
            .map(|setting| format!("| `{}` | {} | {} |", setting.key, setting.default, setting.meaning))
            .collect();
        let constants = source.lines().filter_map(|line| line.strip_prefix("//! |")).map(|rest| format!("|{rest}"));
        for row in constants.chain(settings.iter().cloned()) {
            assert!(page.lines().any(|line| line == row), "docs/policies/{name}.md lacks the line\n{row}");
        }
        let listed = page.split("## Settings").nth(1).unwrap().lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(listed, settings.len(), "docs/policies/{name}.md lists settings that the code does not have");
    }
}
