//! `doctor`, `run`, `attach`, `observe` and `size` in a pid namespace of their own, as in a container with all rights, and with a /proc that is
//! read-only, as hardened containers have it. They need root, zram, a tracker, and leave to make a namespace.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave anything behind; the swap
//! that they move to is made here, outside of the namespace, and taken away again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use common::daemon::terraced;
use common::namespace::{Swap, inside, refused, words};
use common::{Finished, PATIENCE, Running, number, run_live_tests, verified, workload_words};
use serde_json::Value;

/// A policy in a hurry.
const EAGER: [&str; 6] = ["--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "100%"];

fn main() -> ExitCode {
    if let Some(reason) = refused() {
        println!("SKIPPED live_namespace: needs a pid namespace of its own: {reason}");
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_namespace",
        &[
            ("the_doctor_proves_the_tracker_and_says_what_is_not_seen", the_doctor_proves_the_tracker),
            ("a_run_moves_pages_of_its_program_to_swap_that_is_there", a_run_moves_pages),
            ("a_program_of_the_namespace_is_attached_to_by_its_pid_there", a_program_is_attached_to),
            ("a_program_of_the_namespace_is_observed_by_its_pid_there", a_program_is_observed),
            ("a_size_is_advised", a_size_is_advised),
            ("a_process_outside_is_no_process", a_process_outside_is_no_process),
            ("a_proc_that_is_read_only_hinders_no_run", a_proc_that_is_read_only_hinders_no_run),
            ("a_proc_that_is_read_only_hinders_no_daemon", a_proc_that_is_read_only_hinders_no_daemon),
            ("what_would_write_to_a_read_only_proc_is_refused", what_would_write_to_a_read_only_proc_is_refused),
        ],
    )
}

fn the_doctor_proves_the_tracker() {
    let done = inside(&words(&["doctor", "--json"]));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let doctor: Value = serde_json::from_str(&done.stdout).unwrap();
    let tracker = doctor["trackers"].as_array().unwrap().iter().find(|tracker| tracker["name"] == "accessed-bits");
    let tracker = tracker.unwrap();
    assert_eq!(tracker["proven"], true, "{tracker}");
    let advice = doctor["advice"].to_string();
    assert!(advice.contains("outside of it") && advice.contains("not seen"), "{advice}");
}

fn a_run_moves_pages() {
    let swap = Swap::set_up();
    let program = workload_words("256MiB", 15, 7, &[]);
    let run = words(
        &[&["run", "--quiet", "--json"][..], &["--tier-slow", &format!("swap:{}", swap.device())], &EAGER, &["--"]]
            .concat(),
    );
    let done = inside(&format!("{run} {program}"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    assert!(number(&report, "/moved_pages/demoted") > 1000.0, "{report}");
    let program = done.stdout.lines().rev().nth(1).unwrap_or_default();
    assert!(verified(program).is_some(), "the program's data: {program}");
}

fn a_program_is_attached_to() {
    let swap = Swap::set_up();
    let program = workload_words("256MiB", 20, 8, &[]);
    let attach = words(
        &[
            &["attach", "--quiet", "--json"][..],
            &["--tier-slow", &format!("swap:{}", swap.device())],
            &EAGER,
            &["--pid"],
        ]
        .concat(),
    );
    // The program's pid is a small number here, and some kernel thread's to the rest of the machine.
    let done = inside(&format!("{program} >/dev/null & sleep 2; {attach} $!; code=$?; wait; exit $code"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    assert!(number(&report, "/moved_pages/demoted") > 1000.0, "{report}");
}

fn a_program_is_observed() {
    let program = workload_words("128MiB", 10, 9, &[]);
    let observe = words(&["observe", "--quiet", "--json", "--duration", "4s", "--pid"]);
    let done = inside(&format!("{program} >/dev/null & sleep 2; {observe} $!; code=$?; wait; exit $code"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    assert_eq!(report["tracker"], "accessed-bits", "{report}");
    assert!(number(&report, "/target/peak_footprint_bytes") > 100e6, "{report}");
}

fn a_size_is_advised() {
    let program = workload_words("32MiB", 4, 10, &[]);
    let advise = words(&["size", "advise", "--"]);
    let done = inside(&format!("{advise} {program}"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.contains("MiB"), "{}", done.stdout);
}

fn a_process_outside_is_no_process() {
    let pid = std::process::id();
    assert!(pid > 500, "the namespace has no such pid");
    let done = inside(&words(&["attach", "--pid", &pid.to_string()]));
    assert_eq!(done.code, 1, "{}", done.stdout);
    assert!(done.stderr.contains(&format!("process {pid} is gone")), "{}", done.stderr);
    assert!(Path::new(&format!("/proc/{pid}")).exists());
}

/// Runs a line of the shell where /proc is read-only.
fn with_read_only_proc(script: &str) -> Finished {
    let script =
        format!("mount -o remount,bind,ro /proc && ! echo 1 2>/dev/null >/proc/self/oom_score_adj && {{ {script}; }}");
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &script]);
    command.env_remove("TERRACE_LOG").env("COLUMNS", "100").stdin(Stdio::null());
    Running::start(&mut command).finish(2 * PATIENCE)
}

fn a_proc_that_is_read_only_hinders_no_run() {
    let program = workload_words("128MiB", 12, 11, &[]);
    let run = words(&[&["run", "--quiet", "--json", "--tier-slow", "zram:256MiB"][..], &EAGER, &["--"]].concat());
    let done = with_read_only_proc(&format!("{run} {program}"));
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    assert!(number(&report, "/moved_pages/demoted") > 1000.0, "{report}");
    let program = done.stdout.lines().rev().nth(1).unwrap_or_default();
    assert!(verified(program).is_some(), "the program's data: {program}");
}

fn a_proc_that_is_read_only_hinders_no_daemon() {
    let place = tempfile::tempdir().unwrap();
    let (config, socket) = (place.path().join("terrace.toml"), place.path().join("socket"));
    let text = format!("[daemon]\nsocket = {socket:?}\n[memory]\nslow = \"zram:64MiB\"\n[metrics]\nlisten = \"off\"\n");
    std::fs::write(&config, text).unwrap();
    let status = words(&["status", "--socket", socket.to_str().unwrap()]);
    // It answers, and ends with 0 when told to.
    let done = with_read_only_proc(&format!(
        "'{}' --config '{}' & daemon=$!; answered=1; for try in $(seq 300); do {status} >/dev/null 2>&1 && {{ answered=0; break; }}; \
         kill -0 $daemon || break; sleep 0.2; done; kill $daemon; wait $daemon && exit $answered",
        terraced().display(),
        config.display()
    ));
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(!socket.exists());
}

fn what_would_write_to_a_read_only_proc_is_refused() {
    let tune = words(&["size", "tune", "--hold", "watermarks", "--max-slowdown", "5%", "--", "sleep", "3"]);
    let done = with_read_only_proc(&tune);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
    let says = ["terrace: --hold watermarks: /proc/sys/vm/min_free_kbytes: ", "Read-only file system"];
    assert!(done.stderr.lines().count() == 1 && says.iter().all(|part| done.stderr.contains(part)), "{}", done.stderr);
}
