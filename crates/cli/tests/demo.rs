//! `terrace demo` where there is neither right nor QEMU: it compares policies on the recording that is part of Terrace. Needs no rights.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::{PATIENCE, Running, terrace};
use serde_json::Value;

/// `demo --from JOB` with PATH as given, and where its page goes.
fn demo(job: &str, path: &str) -> (Value, String, tempfile::TempDir) {
    let place = tempfile::tempdir().unwrap();
    let page = place.path().join("page");
    let words = ["demo", "--json", "--duration", "5s", "--from", job, "--report", page.to_str().unwrap()];
    let done = Running::start(terrace().args(words).env("PATH", path)).finish(PATIENCE * 3);
    assert_eq!(done.code, 0, "{}", done.stderr);
    (done.report(), done.stderr, place)
}

#[test]
fn without_qemu_a_recording_is_replayed_and_the_first_line_says_why() {
    let (told, said, place) = demo("record", "/nowhere");
    assert_eq!((told["did"].as_str(), told["because"][0]["not"].as_str()), (Some("replay"), Some("record")), "{told}");
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("demo: compares policies on a recording of sqlite3"), "{first}");
    assert!(first.contains("because no program can be recorded (") && first.contains("qemu-user sqlite3"), "{first}");
    assert!(told["result"].as_str().unwrap().contains("of fast memory is enough for a loss of 10.0 %"), "{told}");
    let page = std::fs::read_to_string(place.path().join("page/report.html")).unwrap();
    assert!(page.contains("clairvoyant") && page.contains("simulated"), "the page of a comparison");
    // What it was made of can be looked at.
    let held = common::text(&["trace", "info", "--json", place.path().join("page/sqlite3.trace").to_str().unwrap()]);
    assert!(held.contains("sqlite3"), "{held}");
}

#[test]
fn the_recording_gives_the_same_result_each_time() {
    let path = std::env::var("PATH").unwrap();
    let (first, ..) = demo("replay", &path);
    let (second, ..) = demo("replay", &path);
    assert_eq!(first["result"], second["result"]);
    assert_eq!(first["because"], serde_json::json!([]));
}

#[test]
fn a_duration_must_be_one() {
    common::misuse(&["demo", "--duration", "soon"], "--duration soon");
    common::misuse(&["demo", "--from", "everything"], "--from");
}
