//! `terrace size` from the command line: what it prints, a build that is killed, and bad input. Needs no rights.
//!
//! In: small databases. Out: keys, exit codes, files. Must not: judge a prediction.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const VECTOR: &str = "5e8,1e6,100,200,40,16e9,2,24";

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrace"));
    command.args(words);
    command
}

fn terrace(words: &[&str]) -> Output {
    command(words).output().unwrap()
}

fn json(words: &[&str]) -> Value {
    let output = terrace(words);
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn misuse(words: &[&str], says: &str) {
    let output = terrace(words);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{words:?}: {stderr}");
    assert!(output.stdout.is_empty() && stderr.contains(says), "{words:?}: {says:?} is not in {stderr:?}");
}

fn build(path: &Path, records: &str) -> Value {
    json(&["size", "build", "--records", records, "--out", path.to_str().unwrap(), "--json"])
}

#[test]
fn a_database_is_built_and_asked() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("db.parquet");
    let built = build(&path, "300");
    assert_eq!((built["records"].as_u64(), built["sizes"].as_u64()), (Some(300), Some(100)));
    let file = path.to_str().unwrap();
    let answer =
        json(&["size", "query", "--db", file, "--vector", VECTOR, "--max-slowdown", "5%", "--k", "3", "--json"]);
    for key in ["fast_bytes", "fast_share", "predicted_loss", "query_microseconds"] {
        assert!(answer[key].as_f64().unwrap() >= 0.0, "{key}");
    }
    assert_eq!(answer["neighbours"].as_array().unwrap().len(), 3);
    assert!(answer["in_coverage"].is_boolean() && answer["predicted_loss"].as_f64().unwrap() <= 0.05);
    let far = json(&["size", "query", "--db", file, "--vector", "5e8,0,0,0,40,9e15,2,24", "--json"]);
    assert_eq!(far["in_coverage"], Value::Bool(false));
    let text = terrace(&["size", "query", "--db", file, "--vector", "5e8,0,0,0,40,9e15,2,24"]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("warning: the database does not cover this"));
}

#[test]
fn a_build_that_is_killed_goes_on_and_ends_with_the_same_bytes() {
    let place = tempfile::tempdir().unwrap();
    let (whole, cut) = (place.path().join("whole"), place.path().join("cut"));
    build(&whole, "3000");
    let words = ["size", "build", "--records", "3000", "--out", cut.to_str().unwrap(), "--json"];
    let mut child = command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let partial = place.path().join("cut.partial");
    // Killed once something is written; if it is over before that is seen, the rest of the test is about nothing.
    while child.try_wait().unwrap().is_none()
        && std::fs::metadata(&partial).map_or(0, |metadata| metadata.len()) < 10_000
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(partial.exists() && !cut.exists(), "it was killed on its way");
    let resumed = json(&words);
    assert!(resumed["resumed_records"].as_u64().unwrap() > 0, "{resumed}");
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&cut).unwrap());
    assert!(!partial.exists());
}

#[test]
fn the_microbench_says_what_it_did() {
    let vector = "2e5,1e4,50,100,3,128MiB,3,4";
    let done = json(&["size", "microbench", "--executor", "simulator", "--vector", vector, "--fast", "80%", "--json"]);
    assert_eq!(done["performed"]["promotions"], done["asked"]["promotions"]);
    assert!(done["performed"]["seconds"].as_f64().unwrap() > 0.0);
    let model = json(&["size", "microbench", "--executor", "model", "--vector", vector, "--json"]);
    assert!(model["performed"].is_null() && model["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn bad_input_is_refused_before_anything_is_started() {
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = place.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let mark = place.path().join("started");
    let mark = mark.to_str().unwrap();
    for max_slowdown in ["0", "0%", "101%", "-1%", "much"] {
        misuse(&["size", "tune", &format!("--max-slowdown={max_slowdown}"), "--", "touch", mark], "--max-slowdown");
        misuse(&["size", "query", "--vector", VECTOR, &format!("--max-slowdown={max_slowdown}")], "--max-slowdown");
        misuse(&["size", "advise", &format!("--max-slowdown={max_slowdown}"), "--", "touch", mark], "--max-slowdown");
    }
    let empty = file("empty", b"");
    misuse(&["size", "tune", "--paper", "--db", &empty, "--", "touch", mark], "it is empty");
    misuse(&["size", "query", "--db", &empty, "--vector", VECTOR], "it is empty");
    let text = file("text", b"this is no database, it is a text");
    misuse(&["size", "query", "--db", &text, "--vector", VECTOR], "no Parquet file");
    misuse(&["size", "query", "--db", "/nowhere/at/all", "--vector", VECTOR], "/nowhere/at/all");
    let database = place.path().join("db.parquet");
    build(&database, "20");
    let database = database.to_str().unwrap();
    misuse(
        &["size", "tune", "--paper", "--db", database, "--", "touch", mark],
        "of machine optane-6252, not of zram-vm",
    );
    misuse(&["size", "query", "--db", database, "--machine", "cxl-pond", "--vector", VECTOR], "not of cxl-pond");
    let cut = file("cut", &std::fs::read(database).unwrap()[..5000]);
    misuse(&["size", "query", "--db", &cut, "--vector", VECTOR], "damaged");
    let mut bytes = std::fs::read(database).unwrap();
    // Past the first page's header: within the figures.
    bytes[2000] ^= 0x10;
    let flipped = file("flipped", &bytes);
    misuse(&["size", "tune", "--paper", "--db", &flipped, "--machine", "optane-6252", "--", "touch", mark], "damaged");
    misuse(&["size", "query", "--vector", "1,2,3"], "expected 8 figures");
    misuse(&["size", "tune", "--every", "1ms", "--", "touch", mark], "--every");
    misuse(&["size", "advise", "--prices", "cheap", "--", "touch", mark], "--prices");
    misuse(&["size", "microbench", "--vector", VECTOR, "--fast", "0%", "--executor", "model"], "fast is 0");
    let journal = file("foreign.partial", b"not a journal at all, but something else");
    misuse(&["size", "build", "--records", "10", "--out", journal.trim_end_matches(".partial")], "another build");
    assert!(!Path::new(mark).exists(), "no program was started");
}
