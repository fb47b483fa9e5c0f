//! `terrace sweep`: every combination once, the same bytes after a kill, rows that can be repeated, and bad input.
//!
//! In: tiny sweeps. Out: tables, exit codes. Must not: judge a figure.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

mod common;
use common::{misuse, output as terrace, text};

const SPECIFICATION: &str = "machines = [\"cxl-170\", \"optane-6252\"]\npolicies = [\"memtis\", \"tpp\", \"first-touch\"]\n\
     workloads = [\"gups\", \"hot-cold\"]\nfast = [\"25%\", \"50%\"]\nseeds = 3\nsize = \"4MiB\"\nthreads = 2\noperations = 20000\n\
     scale = 1024\n[settings]\n\"memtis.cool_samples\" = [1000, 2000]\n";
/// Two machines, two workloads, three seeds, two sizes; memtis with two values, two policies without.
const CELLS: usize = 2 * 2 * 3 * 2 * (2 + 2);

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        std::fs::write(place.path("sweep.toml"), SPECIFICATION).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// How many finished cells a journal holds.
fn finished(journal: &Path) -> usize {
    std::fs::read_to_string(journal).map_or(0, |text| text.lines().filter(|line| line.contains("\"cell ")).count())
}

/// Kills a sweep once its journal has this many cells.
fn kill_after(mut child: Child, journal: &Path, cells: usize) {
    let began = Instant::now();
    while finished(journal) < cells {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        assert!(began.elapsed() < Duration::from_secs(300), "only {} cells in five minutes", finished(journal));
        std::thread::sleep(Duration::from_millis(2));
    }
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_sweep_that_is_killed_twice_goes_on_and_ends_with_the_same_bytes() {
    let place = Place::new();
    let file = place.at("sweep.toml");
    let whole: Value =
        serde_json::from_str(&text(&["sweep", &file, "--output", &place.at("whole.jsonl"), "--json"])).unwrap();
    assert_eq!((whole["cells"].as_u64(), whole["resumed_cells"].as_u64()), (Some(CELLS as u64), Some(0)));
    let (cut, journal) = (place.at("cut.jsonl"), place.path("cut.jsonl.partial"));
    for cells in [CELLS / 4, CELLS / 2] {
        let mut run = common::terrace();
        run.args(["sweep", &file, "--output", &cut]);
        kill_after(run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap(), &journal, cells);
        assert!(!place.path("cut.jsonl").exists(), "no table before the end");
    }
    let done = finished(&journal);
    assert!((CELLS / 2..CELLS).contains(&done), "{done} of {CELLS}");
    // The last line is torn as well, as by a power cut: that cell is computed again, no other.
    let bytes = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &bytes[..bytes.len() - 5]).unwrap();
    let resumed: Value = serde_json::from_str(&text(&["sweep", &file, "--output", &cut, "--json"])).unwrap();
    let torn = finished(&journal);
    assert_eq!(torn, 0, "the journal is gone when the table is there");
    let kept = resumed["resumed_cells"].as_u64().unwrap() as usize;
    assert!(kept == done || kept == done - 1, "{resumed}");
    assert_eq!(resumed["computed_cells"].as_u64().unwrap() as usize, CELLS - kept, "nothing is computed twice");
    assert_eq!(std::fs::read(place.path("whole.jsonl")).unwrap(), std::fs::read(place.path("cut.jsonl")).unwrap());
}

#[test]
fn rows_have_every_combination_and_can_be_repeated_and_each_form_has_them_all() {
    let place = Place::new();
    let small = SPECIFICATION.replace("seeds = 3", "seeds = [7]").replace(", \"optane-6252\"", "");
    let recording: String = (0..4000u64).map(|n| format!(" L {:08x},8\n", n * 977 % 300 * 4096)).collect();
    std::fs::write(place.path("recording"), recording).unwrap();
    text(&["trace", "import", "--format", "lackey", &place.at("recording"), &place.at("own.trace")]);
    std::fs::write(place.path("sweep.toml"), format!("traces = [\"own.trace\"]\n{small}")).unwrap();
    let file = place.at("sweep.toml");
    for form in ["jsonl", "csv", "parquet"] {
        text(&["sweep", &file, "--output", &place.at(&format!("out.{form}"))]);
    }
    let lines = std::fs::read_to_string(place.path("out.jsonl")).unwrap();
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3 * 2 * 4);
    let of = |key: &str, value: &str| rows.iter().filter(|row| row[key] == value).count();
    assert_eq!((of("policy", "memtis"), of("policy", "tpp"), of("workload", "own.trace")), (12, 6, 8));
    let cooled = rows.iter().filter(|row| row["settings"]["memtis.cool_samples"] == "2000").count();
    assert_eq!(cooled, 6);
    assert!(
        rows.iter().all(|row| row["seed"] == 7 && row["gain_over_first_touch"].as_f64().is_some_and(|gain| gain > 0.0))
    );
    let again = terrace(&["rerun", &place.at("out.jsonl")]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stdout));
    assert_eq!(std::fs::read_to_string(place.path("out.csv")).unwrap().lines().count(), 25);
    let bytes = std::fs::read(place.path("out.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

#[test]
fn the_example_of_the_documents_is_a_sweep() {
    let place = Place::new();
    let example = include_str!("../../../docs/sweep.toml");
    // At a size for a test.
    let small =
        example.replace("size = \"64MiB\"", "size = \"4MiB\"\noperations = 2000").replace("seeds = 5", "seeds = 1");
    assert_ne!(example, small);
    std::fs::write(place.path("example.toml"), small).unwrap();
    let told = text(&["sweep", &place.at("example.toml"), "--output", &place.at("example.csv")]);
    assert!(told.contains("cells"), "{told}");
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    let place = Place::new();
    let file = place.at("sweep.toml");
    misuse(&["sweep", &file, "--output", &place.at("out.xlsx")], ".parquet, .csv or .jsonl");
    misuse(&["sweep", "/nowhere.toml", "--output", &place.at("out.csv")], "/nowhere.toml");
    let refused = |text: &str, says: &str| {
        std::fs::write(place.path("bad.toml"), text).unwrap();
        misuse(&["sweep", &place.at("bad.toml"), "--output", &place.at("out.csv")], says);
        assert!(!place.path("out.csv").exists() && !place.path("out.csv.partial").exists(), "{text}");
    };
    refused("", "machines");
    refused("machines = 7", "machines");
    refused(&SPECIFICATION.replace("tpp", "spp"), "no policy \"spp\"");
    refused(&SPECIFICATION.replace("[settings]", "machine = \"x\"\n[settings]"), "unknown field `machine`");
    refused(&SPECIFICATION.replace("1000, 2000", "\"many\""), "many");
    refused(&format!("traces = [\"absent.trace\"]\n{SPECIFICATION}"), "absent.trace");
    // A journal of another specification is not taken for this one's.
    let mut run = common::terrace();
    run.args(["sweep", &file, "--output", &place.at("out.csv")]);
    let child = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    kill_after(child, &place.path("out.csv.partial"), 1);
    std::fs::write(&file, SPECIFICATION.replace("seeds = 3", "seeds = 2")).unwrap();
    misuse(&["sweep", &file, "--output", &place.at("out.csv")], "journal of another sweep");
}
