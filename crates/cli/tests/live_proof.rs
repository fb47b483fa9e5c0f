//! Proof in place on this kernel: a program's own counter, harm that is injected, metrics that fail, a thousand children.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave
//! anything behind; each test stands between two looks at swap, zram, DAMON and the settings of memory management.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{Finished, Running, number, run_live_tests, terrace};
use rustix::process::Signal;
use serde_json::Value;

/// Windows so short are for tests: real ones hold noise that these do not average out.
const QUICK: [&str; 10] = [
    "run",
    "--quiet",
    "--json",
    "--tier-slow",
    "zram:1GiB",
    "--set",
    "idle=1s",
    "--interval=250ms",
    "--metric-window",
    "2s",
];
const LIMIT: Duration = Duration::from_secs(180);

fn main() -> ExitCode {
    run_live_tests(
        "live_proof",
        &[
            ("a_counter_that_the_program_writes_is_its_measure", a_counter_that_the_program_writes_is_its_measure),
            ("harm_within_twelve_windows_stops_management", harm_within_twelve_windows_stops_management),
            ("a_metric_that_fails_is_one_line_and_nothing_stays", a_metric_that_fails_is_one_line_and_nothing_stays),
            ("what_breaks_in_the_middle_costs_a_window", what_breaks_in_the_middle_costs_a_window),
            ("a_thousand_children_are_no_trouble", a_thousand_children_are_no_trouble),
        ],
    )
}

fn start(verbose: bool, options: &[&str], script: &str) -> Running {
    let mut command = terrace();
    command.args(verbose.then_some("-v")).args(QUICK).args(options).args(["--", "sh", "-c", script]);
    Running::start(&mut command)
}

/// Terrace's own lines.
fn said(done: &Finished) -> Vec<&str> {
    done.stderr.lines().filter(|line| line.starts_with("terrace: ")).collect()
}

fn a_counter_that_the_program_writes_is_its_measure() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("done");
    // A real program beside its counter: some memory, and a number that grows with work.
    let script = format!(
        "i=0; end=$(($(date +%s)+34)); while [ $(date +%s) -lt $end ]; do i=$((i+1)); echo $i > {0}.new; mv {0}.new {0}; done",
        file.display()
    );
    let metric = format!("file:{}", file.display());
    let done = start(false, &["--metric", &metric], &script).finish(LIMIT);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    let proof = &report["proof"];
    println!("    {proof}");
    assert!(number(&report, "/proof/windows") >= 12.0, "{proof:#}");
    let [low, gain, high] = ["gain_low", "gain", "gain_high"].map(|key| number(&report, &format!("/proof/{key}")));
    assert!(low <= gain && gain <= high, "{proof:#}");
    assert_eq!((&proof["metric"], &proof["error"]), (&Value::from(metric), &Value::Null));
    for key in ["watching_seconds", "moving_seconds", "refault_seconds", "own_cpu_seconds", "share_of_target"] {
        number(&report, &format!("/cost/{key}"));
    }
}

/// The metric follows what Terrace does: it is 5 % lower where the program is managed, plus a little noise.
fn harm_within_twelve_windows_stops_management() {
    let place = tempfile::tempdir().unwrap();
    let (file, new) = (place.path().join("speed"), place.path().join("new"));
    let metric = format!("gauge=file:{}", file.display());
    let mut running = start(true, &["--metric", &metric, "--max-slowdown", "1%"], "exec sleep 120");
    let began = Instant::now();
    let mut frozen: Option<Duration> = None;
    for turn in 0.. {
        let log = running.stderr();
        let managed =
            !log.lines().rfind(|line| line.contains("window begins")).is_some_and(|line| line.contains("left alone"));
        let speed = if managed { 950.0 } else { 1000.0 } + f64::from(turn % 5);
        std::fs::write(&new, speed.to_string()).unwrap();
        std::fs::rename(&new, &file).unwrap();
        if log.contains("slows the program down") {
            frozen.get_or_insert_with(|| began.elapsed());
        }
        // Two windows more, in which nobody looks.
        if frozen.is_some_and(|frozen| began.elapsed() > frozen + Duration::from_secs(5)) {
            running.signal(Signal::TERM);
            break;
        }
        if !running.is_running() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let done = running.finish(LIMIT);
    let report = done.report();
    println!("    frozen after {frozen:?}: {}", report["proof"]);
    let told: Vec<&str> = said(&done);
    assert!(told.len() == 1 && told[0].contains("it is left alone for 10 min"), "{}", done.stderr);
    assert!(number(&report, "/proof/windows") <= 12.0 && report["proof"]["frozen"] == true, "{report:#}");
    let gain = number(&report, "/proof/gain");
    assert!((-0.055..-0.04).contains(&gain), "{gain}");
    assert!(number(&report, "/proof/gain_low") <= -0.047 && number(&report, "/proof/gain_high") < -0.01);
    // From then on nobody looks at the program's pages.
    let last = done.stderr.lines().rfind(|line| line.contains("window begins")).unwrap();
    assert!(last.contains("left alone"), "{last}");
}

fn a_metric_that_fails_is_one_line_and_nothing_stays() {
    let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let redis = format!("redis://{unused}");
    for (metric, seconds, says) in [
        ("command:echo no such table >&2; exit 3", 5, "the command failed with code 3: no such table"),
        ("command:sleep 4321", 9, "no answer within 5 s"),
        ("command:echo three apples", 5, "\"three apples\" is not a number"),
        (redis.as_str(), 5, "refused"),
    ] {
        let done = start(false, &["--metric", metric], &format!("sleep {seconds}; exit 7")).finish(LIMIT);
        assert_eq!(done.code, 7, "the program's own: {}", done.stderr);
        let told = said(&done);
        assert!(
            told.len() == 1 && told[0].contains("--metric ") && told[0].contains(says),
            "{metric}: {}",
            done.stderr
        );
        let report = done.report();
        assert_eq!((number(&report, "/proof/windows"), &report["proof"]["frozen"]), (0.0, &Value::Bool(false)));
        assert!(report["proof"]["error"].as_str().is_some_and(|error| error.contains(says)), "{report:#}");
    }
    let left = |entry: &std::fs::DirEntry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|words| words == b"sleep\x004321\x00")
    };
    let mut processes = std::fs::read_dir(Path::new("/proc")).unwrap().flatten();
    assert!(!processes.any(|entry| left(&entry)), "a command of the metric still runs");
}

fn what_breaks_in_the_middle_costs_a_window() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("done");
    let metric = format!("file:{}", file.display());
    // A program that is over before the first window is.
    let done =
        start(false, &["--metric", &metric], &format!("echo 1 > {}; sleep 1; exit 5", file.display())).finish(LIMIT);
    assert_eq!((done.code, number(&done.report(), "/proof/windows")), (5, 0.0), "{}", done.stderr);
    assert!(said(&done).is_empty(), "{}", done.stderr);
    // The metric is gone from the 9th to the 14th second, and Terrace is stopped from the 18th to the 30th, as by Ctrl-Z or by its machine's host.
    let script = format!(
        "i=0; begin=$(date +%s); second=0; while [ $second -lt 36 ]; do second=$(($(date +%s)-begin)); i=$((i+1)); \
         if [ $second -ge 9 ] && [ $second -lt 14 ]; then rm -f {0}; sleep 0.1; else echo $i > {0}.new; mv {0}.new {0}; fi; done; exit 6",
        file.display()
    );
    let began = Instant::now();
    let mut running = start(false, &["--metric", &metric], &script);
    for (second, signal) in [(18, Signal::STOP), (30, Signal::CONT)] {
        std::thread::sleep(Duration::from_secs(second).saturating_sub(began.elapsed()));
        running.signal(signal);
    }
    let done = running.finish(LIMIT);
    let report = done.report();
    println!("    {}", report["proof"]);
    assert_eq!(done.code, 6, "the program's own: {}", done.stderr);
    let lines: Vec<&str> = said(&done);
    assert!(lines.len() == 2 && lines[1].contains("it can be read again"), "{}", done.stderr);
    assert!(number(&report, "/proof/windows") >= 4.0 && number(&report, "/proof/discarded") >= 1.0, "{report:#}");
    assert_eq!(report["proof"]["error"], Value::Null, "it is read again");
}

fn a_thousand_children_are_no_trouble() {
    let script = "for i in $(seq 1000); do sleep 6 & done; wait; exit 3";
    let done = start(false, &["--metric", "cpu"], script).finish(LIMIT);
    assert_eq!(done.code, 3, "{}", done.stderr);
    let report = done.report();
    println!("    {} processes, {}", report["target"]["processes"], report["proof"]);
    assert!(number(&report, "/target/processes") > 500.0, "{}", report["target"]);
    assert!(said(&done).is_empty(), "{}", done.stderr);
    assert_eq!(report["proof"]["error"], Value::Null);
}
