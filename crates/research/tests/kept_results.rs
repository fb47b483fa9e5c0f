//! Results of the papers' experiments that last: kept, not run again, whole after a kill, refused where they are damaged.
//!
//! In: small experiments of one's own. Out: what `terrace reproduce --budget` and `page` print, and the store. Must not: judge a figure.
#![allow(clippy::unwrap_used, missing_docs)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;
use sha2::{Digest, Sha256};

mod common;
use common::{PATIENCE, misuse, terrace, text};

// The budget of five hours is none: on a busy machine runs are thought to take many times what they do, and minutes would leave some out.

/// Programs of growing size, each with three runs.
const PROGRAMS: usize = 4;

struct Own {
    _place: tempfile::TempDir,
    file: PathBuf,
    store: PathBuf,
}

impl Own {
    fn new() -> Own {
        let place = tempfile::tempdir().unwrap();
        let (file, store) = (place.path().join("own.toml"), place.path().join("results"));
        let mut text = "[paper]\nprefix = \"T\"\nname = \"own\"\ntitle = \"Own\"\nagree = \"20%\"\n\
            [settings.base]\nworkload = \"gups\"\nfast = \"1:3\"\nthreads = 2\nmachine = \"optane-6252\"\npages = \"4KiB\"\n"
            .to_owned();
        for number in 1..=PROGRAMS {
            text += &format!(
                "[settings.gups{number}]\nlike = \"base\"\nsize = \"{}GiB\"\nscaled_operations = {}\n\
                 [[row]]\nid = \"T.gain{number}\"\nquantity = \"a gain\"\npaper = 10\nunit = \"%\"\nsource = \"nowhere\"\n\
                 measure = \"gain\"\nsettings = [\"gups{number}\"]\npolicies = [\"tpp\", \"first-touch\"]\n",
                16 * number,
                200_000 * number
            );
        }
        std::fs::write(&file, text).unwrap();
        Own { _place: place, file, store }
    }

    fn words<'w>(&'w self, first: &[&'w str], last: &[&'w str]) -> Vec<&'w str> {
        let own = ["--experiments", self.file.to_str().unwrap(), "--store", self.store.to_str().unwrap()];
        [&["reproduce"], first, &own, last].concat()
    }

    fn fill(&self) -> Value {
        serde_json::from_str(&text(&self.words(&["all"], &["--quick", "--budget", "5h", "--json"]))).unwrap()
    }

    fn page(&self) -> String {
        text(&self.words(&["page"], &[]))
    }

    fn lines(&self) -> usize {
        lines(&self.store)
    }
}

fn lines(store: &Path) -> usize {
    std::fs::read_to_string(store.join("gups.jsonl")).map_or(0, |text| text.lines().count())
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value}"))
}

/// What counts is what is computed, not a commit: the same program runs nothing a second time, whatever was committed since.
#[test]
fn what_was_run_is_not_run_again_and_the_page_comes_from_the_store() {
    const PAGE: &str = include_str!("../../../docs/reference/sim.md");
    let own = Own::new();
    let all = 2 * PROGRAMS as u64;
    let first = own.fill();
    assert_eq!((number(&first, "runs"), number(&first, "made"), number(&first, "missing")), (all, all, 0));
    let section = PAGE.split("\n## ").find(|section| section.starts_with("terrace reproduce --budget\n")).unwrap();
    let keys = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let said: BTreeSet<&str> = first.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(said, keys.collect());
    let page = own.page();
    assert!(page.contains("| T.gain4 |") && !page.contains("| | not run | |") && !page.contains(" stale: "), "{page}");
    let again = own.fill();
    assert_eq!((number(&again, "kept"), number(&again, "made"), number(&again, "missing")), (all, 0, 0));
    assert_eq!(own.page(), page);
    // A row's number is no part of a run.
    let file = std::fs::read_to_string(&own.file).unwrap();
    std::fs::write(&own.file, file.replace("paper = 10", "paper = 11")).unwrap();
    assert_eq!(number(&own.fill(), "made"), 0);
    assert_ne!(own.page(), page);
    // A setting is.
    std::fs::write(&own.file, file.replace("size = \"16GiB\"", "size = \"17GiB\"")).unwrap();
    assert_eq!(number(&own.fill(), "made"), 2);
    let told = text(&own.words(&["T.gain1"], &["--quick", "--budget", "5h"]));
    assert!(told.starts_with("2 runs: 2 were in ") && told.contains(", 0 are missing\n"), "{told}");
}

#[test]
fn a_sample_made_again_goes_on_and_tells_what_is_another() {
    const PAGE: &str = include_str!("../../../docs/reference/sim.md");
    let own = Own::new();
    own.fill();
    let log = own.file.with_file_name("sample.jsonl");
    let words = own.words(&["all"], &["--sample", "1", "--json", "--output", log.to_str().unwrap()]);
    let sample = || -> Value { serde_json::from_str(&text(&words)).unwrap() };
    let (all, first) = (2 * PROGRAMS as u64, sample());
    assert_eq!((number(&first, "runs"), number(&first, "made"), number(&first, "left")), (all, all, 0));
    let section = PAGE.split("\n## ").find(|section| section.starts_with("terrace reproduce --sample\n")).unwrap();
    let keys = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    assert_eq!(first.as_object().unwrap().keys().map(String::as_str).collect::<BTreeSet<_>>(), keys.collect());
    // One line less is one run more.
    let lines = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, lines.split_once('\n').unwrap().1).unwrap();
    assert_eq!(number(&sample(), "made"), 1);
    assert_eq!(number(&sample(), "made"), 0);
    // A kept figure that nobody computes.
    let path = own.store.join("gups.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    let (line, rest) = whole.split_once('\n').unwrap();
    let other = line.rsplit_once(",\"sum\":").unwrap().0.replacen("\"hint_faults\":", "\"hint_faults\":9", 1);
    let sum: String = Sha256::digest(&other).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(&path, format!("{other},\"sum\":\"{sum}\"}}\n{rest}")).unwrap();
    std::fs::remove_file(&log).unwrap();
    let told = terrace().args(&words).output().unwrap();
    let said = String::from_utf8(told.stderr).unwrap();
    assert!(told.status.code() == Some(1) && said.contains("1 of 8 runs came to something else"), "{said}");
    assert!(said.contains("hint_faults: 9"), "{said}");
}

#[test]
fn a_kill_loses_nothing_that_was_whole() {
    let own = Own::new();
    let mut words = own.words(&["all"], &["--quick", "--budget", "5h"]);
    // The second and third seed give the kill more time.
    words.extend(["--seeds", "3"]);
    let mut child = terrace().args(&words).env("RAYON_NUM_THREADS", "1").spawn().unwrap();
    let began = Instant::now();
    while own.lines() == 0 {
        assert!(began.elapsed() < PATIENCE && child.try_wait().unwrap().is_none(), "it keeps runs as they come");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = own.lines() as u64;
    let all = 6 * PROGRAMS as u64;
    assert!((1..all).contains(&kept), "{kept} of {all}");
    words.push("--json");
    let rest: Value = serde_json::from_str(&text(&words)).unwrap();
    assert_eq!((number(&rest, "kept"), number(&rest, "made"), number(&rest, "missing")), (kept, all - kept, 0));
    let whole = own.page();
    assert_eq!(whole.matches("| 1:4096, 3 |").count(), PROGRAMS, "{whole}");
    let straight = Own::new();
    text(&straight.words(&["all"], &["--quick", "--budget", "5h", "--seeds", "3"]));
    assert_eq!(straight.page(), whole, "killed or not, the page is the same");
}

#[test]
fn a_damaged_store_and_a_second_writer_are_refused() {
    let own = Own::new();
    own.fill();
    let path = own.store.join("gups.jsonl");
    let whole = std::fs::read_to_string(&path).unwrap();
    let seconds = whole.match_indices("\"seconds\":").nth(2).unwrap().0 + "\"seconds\":".len();
    let mut bytes = whole.clone().into_bytes();
    bytes[seconds] = if bytes[seconds] == b'1' { b'2' } else { b'1' };
    std::fs::write(&path, &bytes).unwrap();
    let says = "gups.jsonl:3: the line is damaged; take the file from the repository again, or remove the line";
    misuse(&own.words(&["page"], &[]), says);
    misuse(&own.words(&["all"], &["--quick", "--budget", "5h"]), says);
    std::fs::write(&path, whole).unwrap();
    let lock = std::fs::File::open(&own.store).unwrap();
    lock.try_lock().unwrap();
    misuse(&own.words(&["all"], &["--quick", "--budget", "5h"]), "results: another process writes results into it");
    assert!(own.page().contains("T.gain1"), "a reader does not wait");
    misuse(&["reproduce", "page", "--store", "no/such"], "no/such: no folder of results");
    misuse(&own.words(&["page", "T"], &[]), "page: it is of all rows");
    misuse(&own.words(&["all"], &["--quick", "--budget", "soon"]), "--budget soon: ");
}
