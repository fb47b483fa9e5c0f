//! The page of all rows is what its command prints; what is kept is not run again; rivals at their best; runs that one plan hands to the next.
#![allow(clippy::unwrap_used)] // These are tests.

use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use terrace_machine::preset::Machine;
use terrace_reproduce::{Budget, Document, Experiments, Filled, Options, Plan, Row, Runs, Store, Verdict, page};
use terrace_sizing::Index;

/// A file with rows that compare these policies, each row with more keys.
fn file(rows: &[(&str, &str, &str)]) -> Result<Experiments, String> {
    let mut all = Experiments::default();
    all.add("test.toml", &written(rows)).map(|()| all).map_err(|why| why.to_string())
}

fn written(rows: &[(&str, &str, &str)]) -> String {
    let mut text = "[paper]\nprefix = \"T\"\nname = \"test\"\ntitle = \"A paper\"\nagree = \"20%\"\n[settings.gups]\nworkload = \"gups\"\n\
        size = \"32GiB\"\nfast = \"1:3\"\nthreads = 2\nmachine = \"optane-6252\"\npages = \"4KiB\"\n"
        .to_owned();
    for (id, policies, more) in rows {
        text += &format!(
            "[[row]]\nid = \"T.{id}\"\nquantity = \"a | b\"\npaper = 3\nunit = \"x\"\nsource = \"s\"\nmeasure = \"speedup\"\n\
             settings = [\"gups\"]\npolicies = [{policies}]\n{more}\n"
        );
    }
    text
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

/// A page without what it says of the program that printed it.
fn without_stale(page: &str) -> String {
    page.lines()
        .map(|line| line.split(" stale: ").next().unwrap_or(line).trim_end_matches(" |").to_owned() + "\n")
        .collect()
}

/// What is stale changes with what is computed, all else with results and rows alone.
#[test]
fn the_page_of_all_rows_is_that_of_the_committed_store() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let written = std::fs::read_to_string(root.join("docs/fidelity.md")).unwrap();
    let experiments = Experiments::built_in().unwrap();
    let store = Store::read(&root.join("experiments/results")).unwrap();
    let rows: Vec<&Row> = experiments.rows.iter().collect();
    let made = page(&experiments, &rows, &store).unwrap();
    let same = without_stale(&made) == without_stale(&written);
    assert!(same, "docs/fidelity.md is not what this prints: terrace reproduce page >docs/fidelity.md");
}

/// Two lines of a page: the cause, and the value of the row that tests it.
#[test]
fn a_cause_on_the_page_has_at_most_200_characters() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let written = std::fs::read_to_string(root.join("docs/fidelity.md")).unwrap();
    // A bar within a cell stands behind a backslash, so that " | " ends the cell.
    let causes = written.lines().filter_map(|line| Some((line, line.split_once("Cause: ")?.1.split(" | ").next()?)));
    let longer: Vec<&str> = causes.clone().filter(|(_, cause)| cause.len() > 200).map(|(line, _)| line).collect();
    assert!(longer.is_empty(), "shorten `cause` in experiments/*.toml of these rows:\n{}", longer.join("\n"));
    assert!(causes.count() > 20, "the page names few causes: is it made otherwise now?");
}

/// Three seeds that give the same are named once, in a row with a cause the first of three that differ.
#[test]
fn seeds_that_agree_are_named_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let written = std::fs::read_to_string(root.join("docs/fidelity.md")).unwrap();
    let rows = written.lines().filter(|line| line.contains(" | 1:") && line.contains(", 3 | "));
    let mut seen = 0;
    for row in rows {
        for cell in row.split(" | ") {
            let parts: Vec<&str> = cell.split(" \\| ").collect();
            seen += usize::from(parts.len() == 3);
            assert!(parts.len() != 3 || parts.iter().any(|part| *part != parts[0]), "thrice the same: {row}");
            assert!(!cell.contains("Cause: ") || parts.len() < 3 || parts[2].contains("Cause: "), "{row}");
        }
    }
    assert!(seen > 10, "no row has three seeds that differ");
}

fn no_database(_: &Machine) -> Result<Index, Box<dyn std::error::Error + Send + Sync>> {
    Err("no test asks for a database".into())
}

const MINUTES: Budget = Budget { time: Some(Duration::from_secs(600)), cores: 2 };

fn fill(all: &Experiments, id: &str, folder: &Path, budget: Budget) -> Filled {
    let mut plan = plan(all, id);
    plan.ask_also(&all.rows);
    plan.fill(&mut Store::open(folder).unwrap(), budget, &no_database, &|_| ()).unwrap()
}

fn page_of(all: &Experiments, folder: &Path) -> String {
    page(all, &all.rows.iter().collect::<Vec<_>>(), &Store::read(folder).unwrap()).unwrap()
}

#[test]
fn what_is_kept_is_not_run_again_and_says_what_a_fresh_run_says() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("results");
    let all = file(&[("a", "\"tpp\", \"flexmem\"", ""), ("b", "\"all-slow\", \"all-fast\"", "")]).unwrap();
    let first = fill(&all, "T.a", &folder, MINUTES);
    assert_eq!((first.runs, first.kept, first.made, first.missing), (2, 0, 2, 0));
    let page = page_of(&all, &folder);
    assert!(page.contains("| T.b | a \\| b | 3x | | not run | | | |"), "{page}");
    let all_rows = fill(&all, "T", &folder, MINUTES);
    assert_eq!((all_rows.runs, all_rows.kept, all_rows.made), (4, 2, 2));
    let files = || std::fs::read_to_string(folder.join("gups.jsonl")).unwrap();
    let (before, again) = (files(), fill(&all, "T", &folder, MINUTES));
    assert_eq!((again.kept, again.made, again.missing), (4, 0, 0));
    assert_eq!(files(), before);
    // The row from the store and the row of a fresh run.
    let fresh = run(&all, "T.a");
    let page = page_of(&all, &folder);
    let row = &fresh.rows[0];
    assert_eq!(row.verdict, Verdict::Opposite);
    assert!(page.contains(&format!("| {} | other way | 1:4096, 1 | {} |", row.ours_text, row.verdict_why)), "{page}");
    assert!(!page.contains(" stale: "), "{page}");
    // A row that asks more of a run has it run again, and that serves the others.
    let mut asks = Experiments::default();
    let metric = "measure = \"mean\"\nof = \"median:hot_threshold_bin\"";
    let text = written(&[("c", "\"flexmem\"", "")]).replace("measure = \"speedup\"", metric);
    asks.add("test.toml", &text).unwrap();
    let asked = fill(&asks, "T", &folder, MINUTES);
    assert_eq!((asked.runs, asked.kept, asked.made), (1, 0, 1));
    assert_eq!(fill(&all, "T", &folder, MINUTES).kept, 4);
    assert!(page_of(&asks, &folder).contains("| 1:4096, 1 |"));
}

#[test]
fn another_setting_or_another_digest_is_stale_until_it_is_run_again() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("results");
    let all = file(&[("a", "\"first-touch\", \"all-fast\"", "")]).unwrap();
    fill(&all, "T", &folder, MINUTES);
    let path = folder.join("gups.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    // As if the policy had been another when the first of them was run.
    let line = whole.lines().next().unwrap();
    let (text, _) = line.rsplit_once(",\"sum\":").unwrap();
    let policy = text.split_once("\"policy\":\"").unwrap().1;
    let text = text.replacen(&policy[..12], "0123456789ab", 1);
    std::fs::write(&path, whole.replacen(line, &with_sum(&text), 1)).unwrap();
    let page = page_of(&all, &folder);
    assert!(page.contains(" stale: policy |"), "{page}");
    let again = fill(&all, "T", &folder, MINUTES);
    assert_eq!((again.kept, again.made), (1, 1));
    assert!(!page_of(&all, &folder).contains(" stale: "));
    assert_eq!(
        without_took(&std::fs::read_to_string(&path).unwrap()),
        without_took(&whole),
        "the same run gives the same line"
    );
}

/// A line with its sum, as the store writes it.
fn with_sum(text: &str) -> String {
    let sum = Sha256::digest(text.as_bytes());
    let digits: String = sum.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("{text},\"sum\":\"{digits}\"}}")
}

/// Lines without the time that a run took.
fn without_took(text: &str) -> Vec<String> {
    let one = |line: &str| {
        let (before, after) = line.split_once("\"took\":").unwrap();
        let figures = after.split_once(',').unwrap().1.rsplit_once(",\"sum\"").unwrap().0.to_owned();
        format!("{before}{figures}")
    };
    text.lines().map(one).collect()
}

#[test]
fn a_budget_that_is_over_runs_nothing_more_and_keeps_what_was_whole() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("results");
    let all = file(&[("a", "\"first-touch\", \"all-fast\"", "")]).unwrap();
    let none = fill(&all, "T", &folder, Budget { time: Some(Duration::ZERO), cores: 1 });
    assert_eq!((none.made, none.missing), (0, 2));
    assert!(none.missing_seconds > 0.0 && Store::read(&folder).unwrap().is_empty());
    // Too short for the program, which takes longer than is expected of it the first time: it is stopped.
    let large = written(&[("a", "\"first-touch\", \"all-fast\"", "")])
        .replace("workload = \"gups\"", "workload = \"gups\"\nscaled_operations = 200000000");
    let mut slow = Experiments::default();
    slow.add("test.toml", &large).unwrap();
    let began = std::time::Instant::now();
    let budget = Budget { time: Some(Duration::from_secs(15)), cores: 1 };
    let stopped = fill(&slow, "T", &folder, budget);
    assert_eq!((stopped.made, stopped.missing), (0, 2), "{:?}", began.elapsed());
    assert!(Store::read(&folder).unwrap().is_empty());
    assert_eq!(fill(&all, "T", &folder, MINUTES).made, 2);
}

#[test]
fn a_run_that_fails_is_told_and_the_others_are_kept() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("results");
    // The smallest program comes first, and has less memory than the program can be built with.
    let text = written(&[("a", "\"first-touch\", \"all-fast\"", "")]);
    let small = "[settings.small]\nworkload = \"npb-ft\"\nsize = \"1MiB\"\nfast = \"1:3\"\nthreads = 2\nmachine = \"optane-6252\"\npages = \"4KiB\"\n\
        [[row]]\nid = \"T.small\"\nquantity = \"q\"\npaper = 3\nunit = \"x\"\nsource = \"s\"\nmeasure = \"speedup\"\nsettings = [\"small\"]\n\
        policies = [\"tpp\", \"first-touch\"]\n";
    let mut all = Experiments::default();
    all.add("test.toml", &(text + small)).unwrap();
    let mut store = Store::open(&folder).unwrap();
    let failed = plan(&all, "T").fill(&mut store, MINUTES, &no_database, &|_| ()).unwrap_err();
    assert!(failed.to_string().starts_with("npb-ft ") && !failed.is_misuse(), "{failed}");
    assert_eq!(store.len(), 2);
}

#[test]
fn the_page_counts_verdicts_and_shows_a_cause_with_what_it_changes() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("results");
    let cause = "cause = \"too slow\"\ncause_row = \"T.other\"";
    let two = "\"first-touch\", \"all-fast\"";
    let all = file(&[
        ("bad", two, cause),
        ("other", "\"all-slow\", \"all-fast\"", ""),
        ("none", "\"tpp\", \"all-fast\"", ""),
        ("wanted", "\"tpp\", \"all-slow\"", "kind = \"goal\""),
    ])
    .unwrap();
    fill(&all, "T.bad", &folder, MINUTES);
    assert!(page_of(&all, &folder).contains(". Cause: too slow. With that changed (T.other): not run |"));
    fill(&all, "T.other", &folder, MINUTES);
    let made = page_of(&all, &folder);
    assert!(made.contains("| A paper | 4 | 0 | 0 | 2 | 0 | 0 | 0 | 0 | 2 | 0 of 3 | 1 of 2 | 1 |"), "{made}");
    let first = "Of the 3 distinct figures that 1 papers state in numbers, or draw so that they can be read off, 0 agree, within the paper's own bound \
        where it states one; 2 point the other way, 1 of these with a cause that another row tests. Beside them stand 1 rows";
    assert!(made.contains(first), "{made}");
    assert!(file(&[("bad", two, "kind = \"gaol\"")]).is_err_and(|why| why.contains("kind")));
    let other = run(&all, "T.other").rows[0].ours_text.clone();
    assert!(made.contains(&format!(". Cause: too slow. With that changed (T.other): {other} |")), "{made}");
    assert!(made.contains("a \\| b"), "{made}");
    for wrong in ["cause = \"c\"\ncause_row = \"T.none\"", "cause_row = \"T.other\""] {
        assert!(file(&[("bad", two, wrong), ("other", two, "")]).is_err_and(|why| why.contains("cause_row")));
    }
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
