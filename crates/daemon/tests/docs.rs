//! docs/reference/daemon.md states what the program states: keys, fields, metrics.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use terrace_daemon::config::schema::{SELECTOR_KEYS, reference_table};
use terrace_daemon::metrics;
use terrace_daemon::view::*;

const PAGE: &str = include_str!("../../../docs/reference/daemon.md");

/// The first cells, without their marks, of the first table below a heading.
fn table(heading: &str) -> Vec<Vec<String>> {
    let section = PAGE.split(&format!("{heading}\n")).nth(1).unwrap_or_else(|| panic!("no section {heading}"));
    let rows = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.skip(2).map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

fn names(heading: &str) -> BTreeSet<String> {
    table(heading).into_iter().map(|row| row[0].trim_matches('`').to_owned()).collect()
}

/// Every field of a value, as the document writes it.
fn fields(value: &Value, prefix: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                found.insert(format!("{prefix}{key}"));
                // The keys of counts by cause or by reason are data.
                let by_cause = ["failed_pages", "rejected_pages", "page_outs_seconds", "throttled_seconds"]
                    .contains(&key.as_str());
                if !by_cause {
                    let many = matches!(inner, Value::Array(list) if list.first().is_some_and(Value::is_object));
                    fields(inner, &format!("{prefix}{key}{}.", if many { "[]" } else { "" }), found);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| fields(inner, prefix, found)),
        _ => {}
    }
}

fn same(heading: &str, value: impl serde::Serialize) {
    let mut real = BTreeSet::new();
    fields(&serde_json::to_value(value).unwrap(), "", &mut real);
    assert_eq!(real, names(heading), "left: the fields of {heading}; right: what docs/reference/daemon.md says");
}

/// A status with one of everything.
fn status() -> Status {
    let counts = |name: &str| BTreeMap::from([(name.to_owned(), 3)]);
    let class = Class {
        name: "we\"b".to_owned(),
        state: "running".to_owned(),
        hit_share: Some(0.5),
        bound_share: Some(0.02),
        failed_pages: counts("EPERM"),
        rejected_pages: counts("floor"),
        page_outs: "stopped_came_back".to_owned(),
        page_outs_seconds: BTreeMap::from([("stopped_came_back".to_owned(), 1.5)]),
        throttled_seconds: BTreeMap::from([("refaults".to_owned(), 1.5)]),
        moves: vec![Moves { from: "dram".to_owned(), to: "zram".to_owned(), reason: "cold".to_owned(), pages: 2 }],
        contract: Some(Contract::default()),
        proof: Some(Proof { gain: Some(0.01), interval: Some((0.0, 0.02)), ..Proof::default() }),
        file_cache: Some(FileCache::default()),
        tuned: Some(Tuned { loss: Some(0.01), ..Tuned::default() }),
        ..Class::default()
    };
    Status {
        tiers: vec![Tier { name: "dram".to_owned(), occupied_bytes: Some(1), ..Tier::default() }],
        classes: vec![class],
        refused: vec![Refused::default()],
        rivals: vec![Rival::default()],
        survey: Some(Survey {
            groups: vec![SurveyGroup {
                kind: "service".to_owned(),
                cgroup: "/a\"b".to_owned(),
                idle_one_minute_bytes: Some(1),
                file_inactive_bytes: Some(1),
                could_save_bytes: Some(1),
                ..SurveyGroup::default()
            }],
            ..Survey::default()
        }),
        ..Status::default()
    }
}

#[test]
fn every_field_stands_on_the_page() {
    same("### Status", status());
    same("### Events", Happening::default());
    same("### Timeline", Timeline { points: vec![Point::default()], ..Timeline::default() });
    same("### Heat", Heat { rows: vec![HeatRow::default()], ..Heat::default() });
    let bins = Bins { bins: vec![Bin::default()], thresholds: vec![Threshold::default()], ..Bins::default() };
    same("### Bins", bins);
    same("### Sizing", Sizing { decisions: vec![Decision::default()], ..Sizing::default() });
    same(
        "### Explanation",
        Explanation {
            tiers: vec![TierBytes::default()],
            page: Some(PageExplanation::default()),
            ..Explanation::default()
        },
    );
}

#[test]
fn every_key_and_every_part_of_a_selector_stands_on_the_page() {
    let rows = reference_table();
    assert!(
        PAGE.contains(&rows),
        "the table of keys in docs/reference/daemon.md is not this, which the schema makes:\n{rows}"
    );
    let parts: BTreeSet<String> = SELECTOR_KEYS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    assert_eq!(parts, names("all given parts must match. In a list, one matching selector is enough."));
}

/// Words that begin with `terrace_`, as in queries.
fn words(text: &str) -> BTreeSet<String> {
    let word = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit() || character == '_';
    text.split(|character| !word(character)).filter(|part| part.starts_with("terrace_")).map(str::to_owned).collect()
}

#[test]
fn dashboard_and_alerts_ask_for_metrics_that_there_are() {
    let text = metrics::text(&status()) + &metrics::loop_age(std::time::Duration::ZERO);
    let real: BTreeSet<String> =
        text.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split(' ').next()?.to_owned())).collect();
    for (name, file) in [
        ("packaging/grafana/terrace.json", include_str!("../../../packaging/grafana/terrace.json")),
        ("packaging/prometheus/terrace.rules.yml", include_str!("../../../packaging/prometheus/terrace.rules.yml")),
    ] {
        let asked = words(file);
        assert!(asked.len() > 5, "{name} asks for {asked:?} only");
        let missing: Vec<&String> = asked.difference(&real).collect();
        assert!(missing.is_empty(), "{name} asks for {missing:?}");
    }
    serde_json::from_str::<Value>(include_str!("../../../packaging/grafana/terrace.json")).unwrap();
}

#[test]
fn every_metric_stands_on_the_page_and_is_well_formed() {
    let text = metrics::text(&status()) + &metrics::loop_age(std::time::Duration::ZERO);
    let mut real = BTreeMap::new();
    let mut last = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name}: _total is for what only grows");
            assert!(real.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            last = name.to_owned();
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, last, "a series stands below its family");
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            assert!(!line.contains("pid="), "{line}");
        }
    }
    assert!(text.contains(r#"class="we\"b""#), "labels are escaped");
    let page: BTreeMap<String, String> =
        table("## Metrics").into_iter().map(|row| (row[0].trim_matches('`').to_owned(), row[1].clone())).collect();
    assert_eq!(real, page);
}
