//! Bad input: each gets one clear line and the right exit code, and leaves nothing behind. Needs no rights.
//!
//! In: command lines that make no sense, or that no machine can serve. Out: 2 for misuse, 1 for what only the machine can
//! refuse, 127 and 126 for programs as env(1) has them. Must not: start the program it is given.
#![allow(clippy::unwrap_used, reason = "panics are a test's failures")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Finished, Transcript, read, run};
use insta::assert_snapshot;

/// Runs `terrace` with these words, which are refused with this exit code; the line that says why has these parts. For what differs
/// from machine to machine; what does not is in a snapshot.
#[track_caller]
fn refused(code: i32, words: &[&str], says: &[&str]) -> Finished {
    let before = swap();
    let done = run(words);
    common::is_refusal(&done, code, &words.join(" "));
    for part in says {
        assert!(done.stderr.contains(part), "{words:?}: {part:?} is not in {:?}", done.stderr);
    }
    swap_is(&before);
    done
}

/// The transcript of these lines, all refused with this exit code.
#[track_caller]
fn refusals(code: i32, lines: &[&str]) -> String {
    let before = swap();
    let mut transcript = Transcript::new();
    lines.iter().for_each(|line| transcript.refused(code, line));
    swap_is(&before);
    transcript.text
}

/// The same of options of `run`. The program would leave a file behind if it were started.
#[track_caller]
fn misuse(options: &[&str]) -> String {
    let before = swap();
    let mut transcript = Transcript::new();
    for option in options {
        transcript.refused(2, &format!("run {option} -- touch PLACE/started"));
        assert!(!transcript.path("started").exists(), "{option}: the program was started");
    }
    swap_is(&before);
    transcript.text
}

/// Swap is as it was. Other programs may come and go with swap of their own meanwhile, but not forever.
#[track_caller]
fn swap_is(before: &[String]) {
    common::wait_until(common::PATIENCE, "swap is as before", || swap() == before);
}

/// The swap areas and zram devices that are no other Terrace's.
fn swap() -> Vec<String> {
    let state = common::State::read();
    state.into_names().filter(|key| key.starts_with("swap ") || key.starts_with("/sys/block/")).collect()
}

/// The command built without eBPF (`--no-default-features`): what lacks is named, and nothing is started.
#[cfg(not(feature = "bpf"))]
#[test]
fn a_build_without_ebpf_says_so() {
    let place = tempfile::tempdir().unwrap();
    let started = place.path().join("started");
    let program = ["--", "touch", started.to_str().unwrap()];
    let words = [&["run", "--tracker", "accessed-bits"] as &[&str], &program].concat();
    let done = refused(1, &words, &["no tracker works here"]);
    assert!(done.stderr.contains("accessed-bits: this build has no eBPF"), "{}", done.stderr);
    assert!(!started.exists(), "the program was started");
    let doctor = run(&["doctor", "--json"]);
    let doctor: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let trackers = doctor["trackers"].as_array().unwrap();
    let accessed_bits = trackers.iter().find(|tracker| tracker["name"] == "accessed-bits").unwrap();
    assert_eq!(accessed_bits["available"], false);
}

#[test]
fn fast_memory_must_be_some_and_no_more_than_there_is() {
    assert_snapshot!(misuse(&[
        "--fast 0",
        "--fast 0%",
        "--fast 150%",
        "--fast plenty",
        "--fast=-1GiB",
        "--fast NaN%",
        "--fast ''",
    ]));
    for much in ["8192TiB", "99999999999999999999GiB"] {
        refused(
            2,
            &["run", "--fast", much, "--", "true"],
            &["--fast", much, "that is all the memory this machine has"],
        );
    }
}

#[test]
fn the_slow_tier_must_be_there() {
    assert_snapshot!(misuse(&[
        "--tier-slow node:",
        "--tier-slow nonsense",
        "--tier-slow zram:much",
        "--tier-slow zram:0"
    ]));
    for (given, says) in [
        ("node:99", "no memory node 99: this machine has node 0"),
        ("zram:9999TiB", "expected 4 times the machine's memory at most"),
        ("swap:/dev/no-such", "/dev/no-such is not an active swap area"),
    ] {
        refused(2, &["run", "--tier-slow", given, "--", "true"], &["--tier-slow", given, says]);
    }
}

#[test]
fn policies_and_their_settings_are_known_by_name() {
    assert_snapshot!(misuse(&[
        "--policy nonsense",
        "--set idle=banana",
        "--set bananas=3",
        "--set idle",
        "--tracker crystal-ball",
    ]));
}

#[test]
fn times_rates_and_shares_have_bounds() {
    let observed =
        ["observe --duration 0s -- true", "observe --duration soon -- true", "observe --interval 1ms -- true"];
    assert_snapshot!(
        misuse(&[
            "--interval 1ms",
            "--interval 0s",
            "--interval soon",
            "--rate 0",
            "--rate fast",
            "--max-overhead 0",
            "--max-overhead 150%",
            "--max-overhead hardly",
            "--max-slowdown 0",
            "--max-slowdown 101%",
            "--max-slowdown little",
            "--swap-in 3KiB",
            "--swap-in 2MiB",
            "--swap-in large",
            "--invest 0%",
            "--invest 200%",
            "--invest everything",
        ]) + &refusals(2, &observed)
            + &refusals(2, &["attach --pid 1 --duration soon"])
    );
}

#[test]
fn a_metric_must_be_one_and_have_windows() {
    assert_snapshot!(misuse(&[
        "--metric speed",
        "--metric redis://localhost:0",
        "--metric redis://:secret@localhost",
        "--metric cost=cpu",
        "--metric cpu --metric-window 1s",
        "--metric cpu --metric-window soon",
        "--metric cpu --dry-run",
    ]));
}

#[test]
fn a_process_must_be_there_and_have_memory() {
    let pids = ["0", "4194305", "4294967295", "99999999999999999999", "-1", "banana"];
    let lines = pids.map(|pid| ["attach", "observe"].map(|command| format!("{command} --pid={pid}")));
    assert_snapshot!(refusals(2, &lines.iter().flatten().map(String::as_str).collect::<Vec<_>>()));
    // A child that has ended and was waited for: its pid was real, and is gone.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    child.wait().unwrap();
    for command in ["attach", "observe"] {
        refused(1, &[command, "--pid", &pid], &[&format!("process {pid} is gone")]);
    }
    // One that ended and was not waited for has no memory any more. Without root its maps cannot be read, or are empty.
    let mut zombie = std::process::Command::new("true").spawn().unwrap();
    let pid = zombie.id().to_string();
    let state = format!("/proc/{pid}/stat");
    common::wait_until(common::PATIENCE, "it ended", || read(Path::new(&state)).contains(") Z "));
    refused(1, &["attach", "--pid", &pid], &[&format!("process {pid}")]);
    zombie.wait().unwrap();
}

#[test]
fn what_is_never_touched_is_named_by_names() {
    let lines =
        ["a*b", "*", "/usr/bin/sshd", "''", "db,,cache", "a**"].map(|name| format!("attach --all --never {name}"));
    assert_snapshot!(refusals(2, &lines.iter().map(String::as_str).collect::<Vec<_>>()));
}

#[test]
fn what_is_woken_must_be_there() {
    let socket = "--socket PLACE/no-socket";
    let mut transcript = Transcript::new();
    transcript.refused(1, &format!("wake web {socket}"));
    transcript.refused(1, &format!("wake 4194304 {socket}"));
    transcript.refused(1, &format!("wake 0 {socket}"));
    assert_snapshot!(transcript.text);
}

#[test]
fn a_program_must_be_there_and_be_one() {
    let mut transcript = Transcript::new();
    let text = transcript.path("text");
    std::fs::write(&text, "not a program").unwrap();
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o644)).unwrap();
    for command in ["run", "observe"] {
        for program in ["no-such-program", "/no/such/program", "''"] {
            transcript.refused(127, &format!("{command} -- {program}"));
        }
        for program in ["PLACE/text", "PLACE"] {
            transcript.refused(126, &format!("{command} -- {program}"));
        }
    }
    assert_snapshot!(transcript.text);
}

#[test]
fn words_that_are_missing_or_unknown_are_named() {
    let lines = [
        "run",
        "run --",
        "observe",
        "attach",
        "attach --all --pid 1",
        "attach --never sshd --pid 1",
        "wake",
        "observe --pid 1 -- true",
        "run --bogus -- true",
        "bogus",
        "workload",
        "config explain nonsense",
    ];
    assert_snapshot!(refusals(2, &lines));
}

#[test]
fn a_report_must_have_a_place_before_the_program_starts() {
    let mut transcript = Transcript::new();
    std::fs::write(transcript.path("file"), "in the way").unwrap();
    for option in
        ["--report PLACE/file/below", "--report PLACE/file", "--json-file PLACE/file/below", "--json-file PLACE"]
    {
        transcript.refused(1, &format!("run {option} -- touch PLACE/started"));
    }
    assert!(!transcript.path("started").exists(), "found before the program started");
    // A wrong option beside it leaves no directory either.
    transcript.refused(127, "run --report PLACE/new/deep -- no-such-program");
    assert!(!transcript.path("new").exists());
    assert_snapshot!(transcript.text);
}

#[test]
fn workloads_and_their_options_are_known() {
    let options = [
        "--size banana",
        "--size 1",
        "--duration banana",
        "--duration 0s",
        "--threads 0",
        "--threads banana",
        "--seed banana",
        "--operations -1",
        "--set hot",
        "--set bananas=3",
        "--set hot=7",
    ];
    let lines = options.map(|option| format!("workload hot-cold {option}"));
    let lines: Vec<&str> = lines.iter().map(String::as_str).chain(["workload nonsense"]).collect();
    assert_snapshot!(refusals(2, &lines));
    refused(2, &["workload", "hot-cold", "--size", "8192TiB"], &["the machine's memory and swap"]);
}

#[test]
fn a_comparison_in_the_lab_is_checked_before_a_guest_is_booted() {
    let lines = [
        "lab compare",
        "lab compare --set hot=10% -- true",
        "lab compare --seeds 2 --program true",
        "lab compare --workload gups --file /etc/hostname:/x",
        "lab compare --file /nowhere:/x -- true",
        "lab compare --fast 120MiB --workload gups",
        "lab compare --managers terrace:terrace:between=x --workload gups",
        "lab compare --managers terrace:age:idle --workload gups",
        "lab compare --managers terrace:age:rest=soon --workload gups",
    ];
    assert_snapshot!(refusals(2, &lines) + &refusals(127, &["lab compare -- no-such-program"]));
    refused(2, &["lab", "compare", "--program", "  ", "--workload", "gups"], &["--program", "expected a program"]);
}
