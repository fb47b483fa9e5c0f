//! A command of research, typed as one of `terrace`: it is `terrace-research` from then on, and where that is missing one line says so.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::{PATIENCE, Running, output, program, run, terrace, text, workload};
use rustix::process::Signal;

/// `terrace` alone in a place: nothing beside it, and nothing on its PATH.
fn alone(words: &[&str]) -> (Option<i32>, String, String) {
    let place = tempfile::tempdir().unwrap();
    let path: PathBuf = place.path().join("terrace");
    // By another process: while this one writes it, one that a test beside starts would hold it open, and it could not be executed.
    assert!(Command::new("cp").arg(program()).arg(&path).status().unwrap().success());
    let done = Command::new(&path).args(words).env("PATH", "/nowhere").env("COLUMNS", "100").output().unwrap();
    let told = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (done.status.code(), told(done.stdout), told(done.stderr))
}

#[test]
fn without_the_package_one_line_says_what_to_install() {
    for words in [
        &["sim", "machines"][..],
        &["-v", "workload", "list"],
        &["size", "query", "--vector", "1,1,1,1,1,1,2,1"],
        &["size", "tune", "--paper", "--", "true"],
        &["record", "--", "true"],
    ] {
        let (code, stdout, stderr) = alone(words);
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(127), "", 1), "{words:?}: {stderr}");
        assert!(
            stderr.starts_with("terrace: `terrace ") && stderr.contains("apt-get install terrace-research"),
            "{stderr}"
        );
    }
}

#[test]
fn help_and_guesses_need_no_package() {
    for words in [&["sim", "--help"][..], &["help", "sim"], &["size", "build", "--help"], &["help"]] {
        let (code, stdout, stderr) = alone(words);
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{words:?}");
        assert_eq!(stdout, text(words), "{words:?}: the same with the package");
    }
    for (wrong, right) in [("sweeep", "'sweep'"), ("recrod", "'record'"), ("rnu", "'run'"), ("simulate", "'sim'")] {
        let (code, _, stderr) = alone(&[wrong]);
        assert!(code == Some(2) && stderr.contains(right), "{wrong}: {stderr}");
    }
    let (code, _, stderr) = alone(&["sim", "run", "--workload"]);
    assert_eq!(code, Some(2), "misuse is misuse before anything is looked for: {stderr}");
}

#[test]
fn both_programs_print_the_same() {
    let research = common::built("terrace-research");
    for words in [&["workload", "list"][..], &["sim", "machines"], &["sim", "run", "--help"], &["policies"]] {
        let other = Command::new(&research).args(words).env("COLUMNS", "100").output().unwrap();
        // Each names itself as it was started.
        let told = String::from_utf8(other.stdout).unwrap().replace("terrace-research sim run", "terrace sim run");
        assert_eq!(told, text(words), "{words:?}");
    }
    assert_eq!(output(&["sim", "run", "--workload", "nonsense"]).status.code(), Some(2));
}

#[test]
fn its_exit_code_and_signals_are_its_own() {
    assert_eq!(run(&["rerun", "/nowhere"]).code, 2);
    let mut running = workload("8MiB", 60, 1, &[]);
    running.wait_for_output("\"phase\"", PATIENCE);
    // One process: the pid that was started is the program for research.
    let exe = std::fs::read_link(format!("/proc/{}/exe", running.pid())).unwrap();
    assert!(exe.ends_with("terrace-research"), "{}", exe.display());
    running.signal(Signal::KILL);
    assert_eq!(running.finish(PATIENCE).signal, Some(9));
    let mut closed = Running::start(terrace().args(["sim", "machines"]));
    assert_eq!(closed.finish(PATIENCE).code, 0);
}
