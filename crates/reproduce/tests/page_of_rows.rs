//! The page of all rows is what its command prints; rivals at their best; runs that one plan hands to the next.
#![allow(clippy::unwrap_used)] // These are tests.

use std::path::Path;

use terrace_reproduce::{Document, Experiments, Options, PageSource, Plan, Runs, page};

/// A file with rows that compare these policies, each row with more keys.
fn file(rows: &[(&str, &str, &str)]) -> Result<Experiments, String> {
    let mut text = "[paper]\nprefix = \"T\"\nname = \"test\"\ntitle = \"A paper\"\nagree = \"20%\"\n[settings.gups]\nworkload = \"gups\"\n\
        size = \"32GiB\"\nfast = \"1:3\"\nthreads = 2\nmachine = \"optane-6252\"\npages = \"4KiB\"\n"
        .to_owned();
    for (id, policies, more) in rows {
        text += &format!(
            "[[row]]\nid = \"T.{id}\"\nquantity = \"a | b\"\npaper = 3\nunit = \"x\"\nsource = \"s\"\nmeasure = \"speedup\"\n\
             settings = [\"gups\"]\npolicies = [{policies}]\n{more}\n"
        );
    }
    let mut all = Experiments::default();
    all.add("test.toml", &text).map(|()| all).map_err(|why| why.to_string())
}

fn plan<'a>(all: &'a Experiments, id: &str) -> Plan<'a> {
    let options = Options { scale: 4096, seeds: vec![1], set: Vec::new() };
    Plan::new(all.select(&[id.to_owned()]).unwrap(), options).unwrap()
}

fn run(all: &Experiments, id: &str) -> Document {
    let plan = plan(all, id);
    let runs = plan.run(&|_| Err("no test asks for a database".into()), &|| ()).unwrap();
    Document::new(&plan, &runs).unwrap()
}

/// The page states the command that made it; the files that it names are in the repository.
#[test]
fn the_page_of_all_rows_is_what_its_command_prints() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let written = std::fs::read_to_string(root.join("docs/fidelity.md")).unwrap();
    let command = written.lines().find_map(|line| line.strip_prefix("    terrace reproduce ")).expect("its command");
    let command = command.strip_suffix(" >docs/fidelity.md").expect("where it goes");
    let mut parts = command.split(" --page ");
    let ids: Vec<String> = parts.next().unwrap().split(' ').map(str::to_owned).collect();
    let sources: Vec<PageSource> = parts
        .map(|file| {
            let text = std::fs::read_to_string(root.join(file)).unwrap_or_else(|why| panic!("{file}: {why}"));
            PageSource::read(file, &serde_json::from_str(&text).unwrap()).unwrap()
        })
        .collect();
    assert!(!sources.is_empty());
    let experiments = Experiments::built_in().unwrap();
    let rows = experiments.select(&ids).unwrap();
    let made = page(&experiments, &rows, &ids, &sources);
    assert!(made == written, "docs/fidelity.md is not what this prints: terrace reproduce {command}");
}

#[test]
fn the_page_counts_verdicts_and_shows_a_cause_with_what_it_changes() {
    let two = "\"tpp\", \"memtis\"";
    let cause = "cause = \"too slow\"\ncause_row = \"T.other\"";
    let all = file(&[("good", two, ""), ("bad", two, cause), ("other", two, "")]).unwrap();
    let result = |id: &str, verdict: &str, ours: &str| serde_json::json!({ "id": id, "verdict": verdict, "verdict_why": "w", "ours_text": ours, "scale": 64, "seeds": [1] });
    let value = serde_json::json!({ "commit": "abc", "command": "terrace reproduce test", "rows": [
        result("T.good", "agrees", "3.00x"), result("T.bad", "differs", "2.00x"), result("T.other", "agrees", "2.90x"),
    ]});
    let ids = ["all".to_owned()];
    let rows = all.select(&ids).unwrap();
    let made = page(&all, &rows, &ids, &[PageSource::read("r.json", &value).unwrap()]);
    assert!(made.contains("| A paper | 3 | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 2 of 3 | 1 of 1 | 1 |"), "{made}");
    assert!(made.contains("w. Cause: too slow. With that changed (T.other): 2.90x"), "{made}");
    assert!(made.contains("a \\| b"), "{made}");
    for wrong in ["cause = \"c\"\ncause_row = \"T.none\"", "cause_row = \"T.other\""] {
        assert!(file(&[("bad", two, wrong), ("other", two, "")]).is_err_and(|why| why.contains("cause_row")));
    }
    assert!(PageSource::read("r.json", &serde_json::json!({ "cells": [] })).is_err());
}

#[test]
fn of_several_settings_of_a_rival_the_fastest_counts_and_is_named() {
    let three = "\"first-touch\", \"all-slow\", \"all-fast\"";
    let all = file(&[("best", three, "rivals_tried = 2"), ("one", "\"first-touch\", \"all-fast\"", "")]).unwrap();
    let found = run(&all, "T");
    let [best, one] = &found.rows[..] else { panic!("two rows") };
    assert!(best.ours_text.ends_with("(best of 2: gups all-fast)"), "{}", best.ours_text);
    assert_eq!(best.ours, one.ours);
    for (policies, more, why) in [
        ("\"tpp\", \"memtis\"", "rivals_tried = 2", "their number is another"),
        ("\"tpp\", \"memtis\"", "rivals_tried = 1", "expected at least 2"),
    ] {
        assert!(file(&[("best", policies, more)]).is_err_and(|error| error.contains(why)), "{why}");
    }
}

#[test]
fn what_one_plan_ran_the_next_takes_over() {
    let all = file(&[("a", "\"first-touch\", \"all-fast\"", ""), ("b", "\"all-slow\", \"all-fast\"", "")]).unwrap();
    let (first, second, mut runs) = (plan(&all, "T.a"), plan(&all, "T"), Runs::default());
    let database = |_: &_| Err("no test asks for a database".into());
    assert_eq!((first.lacks(&runs), second.lacks(&runs)), (2, 3));
    first.run_on(&mut runs, &database, &|| ()).unwrap();
    assert_eq!((first.lacks(&runs), second.lacks(&runs)), (0, 1));
    second.run_on(&mut runs, &database, &|| ()).unwrap();
    assert_eq!(second.lacks(&runs), 0);
    assert_eq!(Document::new(&first, &runs).unwrap().runs.len(), 2, "a document has its own plan's runs");
}
