//! Traces in a comparison, and rows that are repeated.
//!
//! In: tiny runs, and a trace of a made-up program. Out: the same figures again, or a table of those that differ; exit codes. Must not: judge
//! a figure.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;

use serde_json::Value;

mod common;
use common::{misuse, output as terrace, text};

const TINY: [&str; 8] = ["--size", "4MiB", "--threads", "2", "--operations", "20000", "--scale", "1024"];

/// A folder, and paths in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// A trace of this many accesses to pages that differ with `step`.
    fn trace(&self, name: &str, accesses: u64, step: u64) -> String {
        let lines: String = (0..accesses).map(|n| format!(" L {:08x},8\n", n * step % 500 * 4096)).collect();
        let recording = self.at("recording");
        std::fs::write(&recording, lines).unwrap();
        let trace = self.at(name);
        text(&["trace", "import", "--format", "lackey", &recording, &trace]);
        trace
    }
}

/// Repeats what the file holds: exit code and text.
fn rerun(file: &str, more: &[&str]) -> (Option<i32>, String) {
    let output = terrace(&[&["rerun", file][..], more].concat());
    (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_run_is_repeated_and_a_changed_figure_is_found() {
    let place = Place::new();
    let words = ["sim", "run", "--workload", "gups", "--policy", "flexmem", "--set", "flexmem.beta=0.4", "--json"];
    let line = text(&[&words[..], &TINY].concat());
    let value: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(value["settings"]["flexmem.beta"], "0.4");
    assert!(value["command"].as_str().unwrap().contains("--set flexmem.beta=0.4"), "{}", value["command"]);
    let row = place.at("row.jsonl");
    std::fs::write(&row, format!("{line}{line}")).unwrap();
    assert_eq!(rerun(&row, &[]), (Some(0), "2 of 2 rows came out the same\n".to_owned()));
    let mut other = value.clone();
    other["promoted_pages"] = 12_345.into();
    other["mine"] = "a column of my own".into();
    std::fs::write(&row, format!("{line}{other}")).unwrap();
    let (code, said) = rerun(&row, &[]);
    assert_eq!(code, Some(1), "{said}");
    let table: Vec<&str> = said.lines().collect();
    assert!(table[1].contains("    2  promoted_pages") && table[1].contains("12345"), "{said}");
    assert_eq!((table.len(), table[2]), (3, "1 of 2 rows came out differently"), "{said}");
    // A version that is not this one is named, and repeated when that is asked for.
    other = value;
    other["version"] = "0.0.9".into();
    std::fs::write(&row, other.to_string()).unwrap();
    misuse(&["rerun", &row], "made by Terrace 0.0.9");
    assert_eq!(rerun(&row, &["--any-version"]).0, Some(0));
}

#[test]
fn every_policy_has_the_same_figures_with_its_defaults_written_out() {
    let place = Place::new();
    let rows = place.at("rows.jsonl");
    let listed: Value = serde_json::from_str(&text(&["policies", "--json"])).unwrap();
    let names: Vec<&str> =
        listed["policies"].as_array().unwrap().iter().filter_map(|one| one["name"].as_str()).collect();
    assert!(names.len() > 15, "{names:?}");
    let mut lines = String::new();
    for name in names {
        let line = text(&[&["sim", "run", "--workload", "gups", "--json", "--policy", name][..], &TINY].concat());
        let mut value: Value = serde_json::from_str(&line).unwrap();
        // Of another version: then each setting that the row says is given.
        value["version"] = "0.0.9".into();
        lines += &format!("{value}\n");
    }
    std::fs::write(&rows, lines).unwrap();
    let (code, said) = rerun(&rows, &["--any-version"]);
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn traces_and_workloads_are_compared_in_one_table_and_each_cell_is_repeated() {
    let place = Place::new();
    let (one, two) = (place.trace("one.trace", 40_000, 977), place.trace("two.trace", 20_000, 7));
    let document = place.at("cells.json");
    let csv = place.at("cells.csv");
    let words =
        ["sim", "compare", "--workloads", "gups", "--policies", "memtis,tpp", "--fast", "25%,50%", "--seeds", "2"];
    let both = format!("{one},{two}");
    let line = text(&[&words[..], &["--trace", &both, "--csv", &csv, "--json"], &TINY[..6]].concat());
    let value: Value = serde_json::from_str(&line).unwrap();
    let cells = value["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3 * 2 * 2 * 2);
    let of = |workload: &str| cells.iter().filter(|cell| cell["workload"] == workload).collect::<Vec<_>>();
    assert_eq!((of("gups").len(), of("one.trace").len(), of("two.trace").len()), (8, 8, 8));
    // A trace has its own scale; the workload has the usual one.
    assert_eq!((of("one.trace")[0]["scale"].as_u64(), of("gups")[0]["scale"].as_u64()), (Some(1), Some(64)));
    assert!(of("one.trace")[0]["trace_hash"].as_str().is_some_and(|hash| hash.len() == 64));
    assert_ne!(of("one.trace")[0]["trace_hash"], of("two.trace")[0]["trace_hash"]);
    assert!(of("gups")[0]["trace_hash"].is_null() && of("one.trace")[0]["operations"].is_null());
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 25);
    std::fs::write(&document, &line).unwrap();
    assert_eq!(rerun(&document, &[]), (Some(0), "24 of 24 rows came out the same\n".to_owned()));
    // One cell as a line, from elsewhere.
    let cell = place.at("cell.jsonl");
    std::fs::write(&cell, of("two.trace")[3].to_string()).unwrap();
    let elsewhere = common::terrace().args(["rerun", &cell]).current_dir("/").output().unwrap();
    assert!(elsewhere.status.success(), "{}", String::from_utf8_lossy(&elsewhere.stderr));
    // Another recording under its name is not what it was made with.
    place.trace("two.trace", 20_000, 11);
    misuse(&["rerun", &cell], "the trace is not the one it was made with");
}

#[test]
fn a_policy_that_reads_counters_gives_each_its_mmu_and_cells_say_so() {
    let place = Place::new();
    let words =
        ["sim", "compare", "--workloads", "gups", "--policies", "hotness-walk,tpp", "--pages", "2m", "--seeds", "1"];
    let line = text(&[&words[..], &["--fast", "50%", "--json"], &TINY].concat());
    let document = place.at("cells.json");
    std::fs::write(&document, &line).unwrap();
    assert_eq!(rerun(&document, &[]), (Some(0), "2 of 2 rows came out the same\n".to_owned()));
    let value: Value = serde_json::from_str(&line).unwrap();
    assert!(value["cells"][1]["command"].as_str().unwrap().contains("--cores 2"), "{}", value["cells"][1]["command"]);
}

#[test]
fn a_row_of_a_papers_figure_is_repeated() {
    let place = Place::new();
    let own = "[paper]\nprefix = \"T\"\nname = \"own\"\ntitle = \"Own\"\nagree = \"20%\"\n\
         [settings.gups]\nworkload = \"gups\"\nsize = \"16GiB\"\nfast = \"1:3\"\nthreads = 2\nmachine = \"optane-6252\"\n\
         pages = \"4KiB\"\n[[row]]\nid = \"T.gain\"\nquantity = \"a gain\"\npaper = 10\nunit = \"%\"\nsource = \"nowhere\"\n\
         measure = \"gain\"\nsettings = [\"gups\"]\npolicies = [\"tpp\", \"first-touch\"]\n";
    let (file, document) = (place.at("own.toml"), place.at("rows.json"));
    std::fs::write(&file, own).unwrap();
    let line = text(&["reproduce", "T", "--experiments", &file, "--quick", "--seeds", "2", "--json"]);
    let value: Value = serde_json::from_str(&line).unwrap();
    let row = &value["rows"][0];
    assert_eq!((&row["machine"], &row["workload"]), (&Value::from("optane-6252"), &Value::from("gups")));
    assert!(row["policy"].is_null() && row["settings"].as_object().unwrap().keys().any(|key| key.starts_with("tpp.")));
    std::fs::write(&document, &line).unwrap();
    assert_eq!(rerun(&document, &[]), (Some(0), "1 of 1 rows came out the same\n".to_owned()));
    let mut other = row.clone();
    other["ours"] = 77.5.into();
    std::fs::write(&document, other.to_string()).unwrap();
    let (code, said) = rerun(&document, &[]);
    assert!(code == Some(1) && said.contains("    1  ours ") && said.contains("77.5"), "{said}");
}

#[test]
fn rows_that_cannot_be_repeated_are_refused_before_anything_runs() {
    let place = Place::new();
    let file = place.at("rows");
    let refused = |rows: &str, says: &str| {
        std::fs::write(&file, rows).unwrap();
        misuse(&["rerun", &file], says);
    };
    refused("", "holds no row");
    refused("{\"cells\":[]}", "holds no row");
    refused("workload,policy\ngups,tpp\n", "no JSON");
    refused("{\"seconds\":1}", "row 1: it does not say which version");
    let row = |command: &str| {
        format!("{{\"schema_version\":1,\"version\":\"{}\",\"command\":\"{command}\"}}\n", env!("CARGO_PKG_VERSION"))
    };
    let good = row("terrace sim run --workload gups --size 4MiB");
    refused(&(good.clone() + &row("terrace lab compare --workload gups")), "row 2: `terrace lab compare");
    refused(&(good.clone() + &row("terrace sim run --workload nonsense")), "row 2: no workload is called");
    refused(&(good + &row("true")), "no command of terrace");
    refused(&row("terrace sim run --trace /nowhere"), "row 1: --trace /nowhere");
    misuse(&["rerun", "/nowhere"], "/nowhere");
}

#[test]
fn traces_that_cannot_be_compared_are_refused_with_their_name() {
    let place = Place::new();
    let trace = place.trace("good.trace", 4000, 7);
    let compare = |traces: &str, more: &[&str], says: &str| {
        misuse(&[&["sim", "compare", "--policies", "tpp", "--seeds", "1", "--trace", traces][..], more].concat(), says);
    };
    let mut bytes = std::fs::read(&trace).unwrap();
    bytes.truncate(bytes.len() / 2);
    std::fs::write(place.at("torn.trace"), bytes).unwrap();
    compare(&place.at("torn.trace"), &[], "torn.trace");
    compare(&format!("{trace},{}", place.at("torn.trace")), &[], "--keep-whole");
    text(&["trace", "cut", &trace, &place.at("empty.trace"), "--threads", "77"]);
    compare(&place.at("empty.trace"), &[], "empty.trace: it holds no access");
    misuse(&["sim", "run", "--trace", &place.at("empty.trace")], "it holds no access");
    compare(&format!("{trace},{trace}"), &[], "it is named twice");
    compare(&place.at("absent"), &[], "absent");
    compare(&trace, &["--operations", "5"], "--operations 5");
    compare(&trace, &["--workload-set", "a=1"], "--workload-set a=1");
    compare(&trace, &["--max-footprint", "1MiB"], "see --max-footprint");
    compare(&trace, &["--fast", "1GiB"], "good.trace: ");
    assert!(Path::new(&trace).exists());
    misuse(&["sim", "compare", "--policies", "tpp"], "--workloads");
}
