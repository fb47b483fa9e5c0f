//! Bad input: each gets one clear line and the right exit code, and leaves nothing behind. Needs no rights.
//!
//! In: command lines that make no sense, or that no machine can serve. Out: 2 for misuse, 1 for what only the machine can
//! refuse, 127 and 126 for programs as env(1) has them. Must not: start the program it is given.
#![allow(clippy::unwrap_used, reason = "panics are a test's failures")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{Finished, read, run};

/// Runs `terrace` with these words, and checks what holds for every refusal: nothing on stdout, the reason on stderr
/// naming option, given text and what was expected, and swap as it was.
#[track_caller]
fn refused(code: i32, words: &[&str], says: &[&str]) -> Finished {
    let before = swap();
    let done = run(words);
    assert_eq!(done.code, code, "{words:?}: {}", done.stderr);
    assert_eq!(done.signal, None);
    assert_eq!(done.stdout, "", "{words:?}: stdout is for data");
    let line = reason(&done);
    for part in says {
        assert!(line.contains(part), "{words:?}: {part:?} is not in {line:?}");
    }
    assert!(!done.stderr.contains("panicked") && !done.stderr.contains("RUST_BACKTRACE"), "{}", done.stderr);
    // Other programs may come and go with swap of their own meanwhile, but not forever.
    common::wait_until(common::PATIENCE, "swap is as before", || swap() == before);
    done
}

/// The swap areas and zram devices that are no other Terrace's.
fn swap() -> Vec<String> {
    let state = common::machine_state();
    state.into_keys().filter(|key| key.starts_with("swap ") || key.starts_with("/sys/block/")).collect()
}

/// The line that says why: ours, or the argument parser's.
fn reason(done: &Finished) -> String {
    let mut lines = done.stderr.lines().filter(|line| line.starts_with("terrace: ") || line.starts_with("error: "));
    let line = lines.next().unwrap_or_else(|| panic!("no reason: {}", done.stderr));
    assert_eq!(lines.next(), None, "one reason: {}", done.stderr);
    line.to_owned()
}

/// Misuse of an option of `run`. The program would leave a file behind if it were started.
#[track_caller]
fn misuse(option: &str, given: &str, expected: &[&str]) {
    let place = tempfile::tempdir().unwrap();
    let started = place.path().join("started");
    let says = [&[option, given] as &[&str], expected].concat();
    refused(2, &["run", option, given, "--", "touch", started.to_str().unwrap()], &says);
    assert!(!started.exists(), "{option} {given}: the program was started");
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
    misuse("--fast", "0", &["expected 1MiB or more"]);
    misuse("--fast", "0%", &["expected more than 0%"]);
    misuse("--fast", "150%", &["expected a share (50%)"]);
    misuse("--fast", "plenty", &["expected a share (50%), an amount (2GiB), or min"]);
    refused(2, &["run", "--fast=-1GiB", "--", "true"], &["--fast -1GiB: expected"]);
    misuse("--fast", "NaN%", &["expected"]);
    misuse("--fast", "", &["expected"]);
    misuse("--fast", "8192TiB", &["expected", "all the memory this machine has"]);
    misuse("--fast", "99999999999999999999GiB", &["expected"]);
}

#[test]
fn the_slow_tier_must_be_there() {
    misuse("--tier-slow", "node:99", &["no memory node 99", "this machine has node 0"]);
    misuse("--tier-slow", "node:", &["node:1"]);
    misuse("--tier-slow", "nonsense", &["write auto, none, node:1"]);
    misuse("--tier-slow", "zram:much", &["is not a size"]);
    misuse("--tier-slow", "zram:0", &["1 MiB at least"]);
    misuse("--tier-slow", "zram:9999TiB", &["expected 4 times the machine's memory at most"]);
    misuse("--tier-slow", "swap:/dev/no-such", &["not an active swap area"]);
}

#[test]
fn policies_and_their_settings_are_known_by_name() {
    misuse("--policy", "nonsense", &["there are: age"]);
    misuse("--set", "idle=banana", &["expected a duration such as 100ms or 10s"]);
    misuse("--set", "bananas=3", &["no setting \"bananas\"", "it has: idle"]);
    misuse("--set", "idle", &["expected KEY=VALUE"]);
    misuse("--tracker", "crystal-ball", &["expected auto, ", "accessed-bits"]);
}

#[test]
fn times_rates_and_shares_have_bounds() {
    misuse("--interval", "1ms", &["expected 50ms or more"]);
    misuse("--interval", "0s", &["expected a time longer than zero"]);
    misuse("--interval", "soon", &["is not a duration such as 250ms"]);
    misuse("--rate", "0", &["expected 1MiB"]);
    misuse("--rate", "fast", &["is not a size such as"]);
    misuse("--max-overhead", "0", &["expected more than 0%"]);
    misuse("--max-overhead", "150%", &["between 0% and 100%"]);
    misuse("--max-overhead", "hardly", &["such as 50%"]);
    misuse("--max-slowdown", "0", &["expected more than 0%"]);
    misuse("--max-slowdown", "101%", &["between 0% and 100%"]);
    misuse("--max-slowdown", "little", &["such as 50%"]);
    for words in [["observe", "--duration", "0s"], ["observe", "--duration", "soon"], ["observe", "--interval", "1ms"]]
    {
        refused(2, &[words.as_slice(), &["--", "true"]].concat(), &words[1..]);
    }
    refused(2, &["attach", "--pid", "1", "--duration", "soon"], &["--duration soon", "250ms"]);
}

#[test]
fn a_metric_must_be_one_and_have_windows() {
    misuse("--metric", "speed", &["expected auto, instructions, cpu, file:PATH"]);
    misuse("--metric", "redis://localhost:0", &["a port of 1 to 65535"]);
    misuse("--metric", "redis://:secret@localhost", &["no password"]);
    misuse("--metric", "cost=cpu", &["needs no counter="]);
    for (window, says) in [("1s", "expected 2s or more"), ("soon", "is not a duration")] {
        let words = ["run", "--metric", "cpu", "--metric-window", window, "--", "true"];
        refused(2, &words, &["--metric-window", window, says]);
    }
    refused(2, &["run", "--metric", "cpu", "--dry-run", "--", "true"], &["--metric cpu", "a dry run moves nothing"]);
}

#[test]
fn a_process_must_be_there_and_have_memory() {
    for pid in ["0", "4194305", "4294967295", "99999999999999999999", "-1", "banana"] {
        for command in ["attach", "observe"] {
            let given = format!("--pid={pid}");
            refused(2, &[command, &given], &["--pid", pid]);
        }
    }
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
fn a_program_must_be_there_and_be_one() {
    let place = tempfile::tempdir().unwrap();
    let text = place.path().join("text");
    std::fs::write(&text, "not a program").unwrap();
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o644)).unwrap();
    for command in ["run", "observe"] {
        refused(127, &[command, "--", "no-such-program"], &["no-such-program: no such program", "expected", "PATH"]);
        refused(127, &[command, "--", "/no/such/program"], &["/no/such/program: no such program"]);
        refused(127, &[command, "--", ""], &["no such program"]);
        refused(126, &[command, "--", text.to_str().unwrap()], &["cannot be executed", "ls -l"]);
        refused(126, &[command, "--", place.path().to_str().unwrap()], &["cannot be executed"]);
    }
}

#[test]
fn words_that_are_missing_or_unknown_are_named() {
    refused(2, &["run"], &["required"]);
    refused(2, &["run", "--"], &["required"]);
    refused(2, &["observe"], &["required"]);
    refused(2, &["attach"], &["required"]);
    refused(2, &["observe", "--pid", "1", "--", "true"], &["--pid", "cannot be used with"]);
    refused(2, &["run", "--bogus", "--", "true"], &["--bogus"]);
    refused(2, &["bogus"], &["bogus"]);
}

#[test]
fn a_report_must_have_a_place_before_the_program_starts() {
    let place = tempfile::tempdir().unwrap();
    let (file, started) = (place.path().join("file"), place.path().join("started"));
    std::fs::write(&file, "in the way").unwrap();
    let below = file.join("below");
    for (option, path) in
        [("--report", below.as_path()), ("--report", &file), ("--json-file", &below), ("--json-file", place.path())]
    {
        let path = path.to_str().unwrap();
        let words = ["run", option, path, "--", "touch", started.to_str().unwrap()];
        refused(1, &words, &[&format!("{option} {path}: "), "expected"]);
    }
    assert!(!started.exists(), "found before the program started");
    // A wrong option beside it leaves no directory either.
    let new = place.path().join("new/deep");
    refused(127, &["run", "--report", new.to_str().unwrap(), "--", "no-such-program"], &["no such program"]);
    assert!(!place.path().join("new").exists());
}

#[test]
fn workloads_and_their_options_are_known() {
    refused(2, &["workload"], &["required"]);
    refused(2, &["workload", "nonsense"], &["no workload is called \"nonsense\"", "hot-cold"]);
    for (option, given, expected) in [
        ("--size", "banana", "is not a size such as"),
        ("--size", "1", "at least"),
        ("--size", "8192TiB", "the machine's memory and swap"),
        ("--duration", "banana", "is not a duration such as"),
        ("--duration", "0s", "longer than zero"),
        ("--threads", "0", "1 to 1024"),
        ("--threads", "banana", "invalid value"),
        ("--seed", "banana", "invalid value"),
        ("--operations", "-1", "-1"),
        ("--set", "hot", "expected KEY=VALUE"),
        ("--set", "bananas=3", "it has hot"),
        ("--set", "hot=7", "hot"),
    ] {
        refused(2, &["workload", "hot-cold", option, given], &[expected]);
    }
}

#[test]
fn a_comparison_in_the_lab_is_checked_before_a_guest_is_booted() {
    let compare = ["lab", "compare"];
    let refused = |code, words: &[&str], says: &[&str]| refused(code, &[&compare as &[&str], words].concat(), says);
    refused(2, &[], &["required arguments"]);
    refused(2, &["--set", "hot=10%", "--", "true"], &["--set", "is for workloads"]);
    refused(2, &["--seeds", "2", "--program", "true"], &["--seeds", "is for workloads"]);
    refused(2, &["--workload", "gups", "--file", "/etc/hostname:/x"], &["--file", "is for programs"]);
    refused(2, &["--file", "/nowhere:/x", "--", "true"], &["--file /nowhere:/x"]);
    refused(2, &["--program", "  ", "--workload", "gups"], &["--program", "expected a program"]);
    refused(127, &["--", "no-such-program"], &["no-such-program", "no such program"]);
    refused(2, &["--fast", "120MiB", "--workload", "gups"], &["--fast 120MiB", "up to the footprint, 64.0 MiB"]);
}
