//! Live tests of what a report says of memory in swap: shared memory, what others put out, and what does not compress.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave anything behind;
//! each test stands between two looks at swap, zram, DAMON and the settings of memory management.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use common::own_swap::OwnSwap;
use common::{PATIENCE, Running, number, read, run, run_live_tests, status_bytes, terrace, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use terrace_fixtures::live;

const MIB: f64 = (1 << 20) as f64;
/// A policy in a hurry, which may cost what it likes: other work on the machine must not change what moves.
const EAGER: [&str; 8] = ["--shared", "--json", "--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "100%"];
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/memory.py");

fn main() -> ExitCode {
    if !live::can_run("live_shared", live::need_program("python3")) {
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_shared",
        &[
            ("anonymous_shared_memory_is_accounted", || is_accounted("anonymous")),
            ("a_memfd_is_accounted", || is_accounted("memfd")),
            ("a_file_of_tmpfs_is_accounted", || is_accounted("tmpfs")),
            ("a_segment_of_system_v_is_accounted", || is_accounted("sysv")),
            ("shared_pages_that_come_back_are_counted", shared_pages_that_come_back_are_counted),
            ("what_a_process_leaves_goes_on_in_another_and_counts_once", what_a_process_leaves_goes_on_in_another),
            ("what_the_program_put_out_is_neither_claimed_nor_brought_back", what_the_program_put_out),
            ("what_moves_with_its_mapping_stays_terraces", what_moves_with_its_mapping_stays_terraces),
            ("what_does_not_compress_is_left_and_told", what_does_not_compress_is_left_and_told),
            ("swap_that_is_full_is_told", swap_that_is_full_is_told),
            ("an_own_swap_with_the_highest_priority_is_named", an_own_swap_with_the_highest_priority_is_named),
            ("a_program_that_is_killed_leaves_nothing", a_program_that_is_killed_leaves_nothing),
        ],
    )
}

/// What was said at the end, whatever the width of the lines.
fn said(done: &common::Finished) -> String {
    done.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A program of this kind under Terrace, to its end, with its right data.
fn managed(kind: &str, mib: &str, seconds: &str, slow: &str) -> (Value, common::Finished) {
    let first = ["run", "--tier-slow", slow];
    let program = ["--", "python3", PROGRAM, kind, mib, seconds];
    let done = run(&[&first[..], &EAGER, &program].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    (done.report(), done)
}

/// What /proc/swaps said of the run's own device as the program ended, in bytes.
fn swapped(report: &Value, done: &common::Finished) -> f64 {
    let device = format!("/dev/{}", report["tiers"][1]["name"].as_str().unwrap());
    let line = done.stdout.lines().find(|line| line.starts_with(&device)).unwrap_or_else(|| panic!("{}", done.stdout));
    line.split_ascii_whitespace().nth(3).unwrap().parse::<f64>().unwrap() * 1024.0
}

/// The report's account of the slow tier is what the kernel says, within 2 %; half a MiB is what the program itself touches as it asks.
fn agrees(report: &Value, done: &common::Finished) -> f64 {
    let (told, swapped) = (number(report, "/tiers/1/end_used_bytes"), swapped(report, done));
    println!("    told {:.1} MiB, /proc/swaps {:.1} MiB", told / MIB, swapped / MIB);
    assert!((told - swapped).abs() <= f64::max(0.02 * swapped, 0.5 * MIB), "{told} of {swapped}: {}", done.stderr);
    swapped
}

fn is_accounted(kind: &str) {
    let (report, done) = managed(kind, "128", "50", "zram:512MiB");
    let swapped = agrees(&report, &done);
    assert!(swapped > 100.0 * MIB, "an eighth is used, the rest goes: {}", done.stderr);
    let demoted = number(&report, "/moved_pages/demoted") * 4096.0;
    let refaults = number(&report, "/refaults") * 4096.0;
    println!("    {:.1} MiB out, {:.1} MiB back", demoted / MIB, refaults / MIB);
    // What left and is not back is in swap. As it ends the program touches some of it, before Terrace's last look or after.
    assert!(demoted >= 0.98 * swapped && demoted - refaults <= 1.02 * swapped, "{}", done.stderr);
    let saved = number(&report, "/fast_bytes_saved_end");
    assert!(saved > 0.8 * swapped && saved < swapped, "less what it takes compressed: {saved}");
    assert!(number(&report, "/swapped_by_others_bytes_end") <= 0.02 * swapped);
    let gone = report.pointer("/moved_pages/failed_by_cause/gone").and_then(Value::as_f64).unwrap_or(0.0);
    assert!(gone * 4096.0 < 4.0 * MIB, "nothing that left counts as gone: {}", done.stderr);
}

fn shared_pages_that_come_back_are_counted() {
    let first = ["run", "--tier-slow", "zram:512MiB"];
    let done = run(&[&first[..], &EAGER, &["--", "python3", PROGRAM, "memfd", "64", "50", "again"]].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    let refaults = number(&report, "/refaults") * 4096.0;
    println!("    {:.1} MiB came back", refaults / MIB);
    // 56 MiB were out, of which the kernel may have brought back some ahead, mapped with their neighbours.
    assert!(refaults > 50.0 * MIB && refaults < 90.0 * MIB, "{}", done.stderr);
    agrees(&report, &done);
}

fn what_a_process_leaves_goes_on_in_another() {
    let (report, done) = managed("heir", "128", "50", "zram:512MiB");
    let swapped = agrees(&report, &done);
    assert!(swapped > 90.0 * MIB, "{}", done.stderr);
    let most = number(&report, "/target/peak_footprint_bytes");
    assert!(most < 170.0 * MIB, "two processes map the same 128 MiB: {:.1} MiB", most / MIB);
    assert!(number(&report, "/swapped_by_others_bytes_end") <= 0.02 * swapped, "Terrace moved it: {}", done.stderr);
    assert!(number(&report, "/fast_bytes_saved_end") > 0.8 * swapped, "{}", done.stderr);
}

/// On a swap area of the user's own, which stays, so that what Terrace brings back shows.
fn what_the_program_put_out() {
    let swap = OwnSwap::new(512, "100");
    let tier = format!("swap:{}", swap.device());
    let mut target = Running::start(Command::new("python3").args([PROGRAM, "pageout", "128", "14"]));
    target.wait_for_output("out", PATIENCE);
    let out = || status_bytes(target.pid(), "VmSwap").unwrap() as f64;
    let before = out();
    assert!(before > 100.0 * MIB, "the program paged its own memory out: {before}");
    let words = ["attach", "--pid", &target.pid().to_string(), "--tier-slow", &tier].map(str::to_owned);
    let mut manager = Running::start(terrace().args(words).args(EAGER));
    std::thread::sleep(Duration::from_secs(6));
    manager.signal(Signal::TERM);
    let done = manager.finish(PATIENCE);
    let report = done.report();
    println!(
        "    {}",
        done.stderr
            .lines()
            .filter(|line| line.contains("not counted") || line.starts_with("saved"))
            .collect::<String>()
    );
    assert_eq!(done.code, 0, "{}", done.stderr);
    let after = out();
    println!("    in swap: {:.1} MiB before, {:.1} MiB after", before / MIB, after / MIB);
    // The user's swap goes on when Terrace leaves: the little that Terrace moved stays there as well.
    assert!(after > before - 2.0 * MIB && after < before + 16.0 * MIB, "{before} before, {after} after");
    let others = number(&report, "/swapped_by_others_bytes_end");
    assert!((others - before).abs() < 0.02 * before, "{others} of {before}: {}", done.stderr);
    // The interpreter's own memory is all there is to move.
    assert!(number(&report, "/fast_bytes_saved_peak") < 24.0 * MIB, "{}", done.stderr);
    assert!(said(&done).contains("put into swap by the program itself or the kernel"), "{}", done.stderr);
    let ended = target.finish(PATIENCE);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

/// A vector grows by mremap, which moves its pages in swap to other addresses; then a child shares them.
fn what_moves_with_its_mapping_stays_terraces() {
    let (report, done) = managed("vector", "96", "40", "zram:512MiB");
    let (swapped, others) = (swapped(&report, &done), number(&report, "/swapped_by_others_bytes_end"));
    println!("    {:.1} MiB in swap, {:.1} MiB by others' doing", swapped / MIB, others / MIB);
    assert!(swapped > 70.0 * MIB, "seven eighths are not used: {}", done.stderr);
    assert!(others <= 0.02 * swapped, "Terrace moved it: {}", done.stderr);
}

fn what_does_not_compress_is_left_and_told() {
    let (report, done) = managed("noise", "128", "50", "zram:512MiB");
    let swapped = agrees(&report, &done);
    let left = number(&report, "/incompressible_bytes_peak");
    println!("    {:.1} MiB left of 32 MiB that do not compress", left / MIB);
    // Of 128 MiB a quarter is noise, and an eighth is in use.
    assert!((60.0..92.0).contains(&(swapped / MIB)), "the text goes and the noise does not: {}", done.stderr);
    assert!((30.0..36.0).contains(&(left / MIB)), "{}", done.stderr);
    assert!(said(&done).contains("does not compress was left"), "{}", done.stderr);
}

fn swap_that_is_full_is_told() {
    let (report, done) = managed("anonymous", "128", "50", "zram:48MiB");
    let swapped = agrees(&report, &done);
    assert!(swapped > 30.0 * MIB && swapped <= 48.0 * MIB, "{}", done.stderr);
    let full = ["/moved_pages/failed_by_cause/no_room", "/rejected_pages/no_room"];
    let told: f64 = full.iter().filter_map(|pointer| report.pointer(pointer).and_then(Value::as_f64)).sum();
    assert!(told > 0.0, "that there was no room is told: {}", done.stderr);
    assert!(!done.stderr.contains("ERROR"), "{}", done.stderr);
}

fn an_own_swap_with_the_highest_priority_is_named() {
    let swap = OwnSwap::new(64, "32767");
    let done = run(&["run", "--tier-slow", "zram:64MiB", "--shared", "--", "touch", "/nowhere/started"]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
    assert_eq!(done.stderr.lines().filter(|line| line.starts_with("terrace: ")).count(), 1, "{}", done.stderr);
    assert!(done.stderr.contains(&swap.device()) && done.stderr.contains("32767"), "{}", done.stderr);
    // The refusal names a command that works, and so the program; touch itself would say this.
    assert!(!done.stderr.contains("cannot touch"), "the program was not started: {}", done.stderr);
    assert!(done.stderr.contains("works here: terrace observe -- touch /nowhere/started"), "{}", done.stderr);
}

/// Shared memory whose process ends while it is being moved.
fn a_program_that_is_killed_leaves_nothing() {
    let words = ["run", "--tier-slow", "zram:512MiB"];
    let program = ["--", "python3", PROGRAM, "memfd", "256", "50"];
    let mut manager = Running::start(terrace().args(words).args(EAGER).args(program));
    let pid = || {
        let children = terrace_linux::process::children(manager.pid());
        children.into_iter().find(|pid| read(Path::new(&format!("/proc/{pid}/cmdline"))).contains("memory.py"))
    };
    let used = || {
        let lines = read(Path::new("/proc/swaps"));
        let used = lines.lines().skip(1).filter_map(|line| line.split_ascii_whitespace().nth(3)?.parse::<u64>().ok());
        used.max().unwrap_or(0)
    };
    // Before the program starts, Terrace pages a little of its own out to learn what that costs.
    wait_until(PATIENCE, "some of it is out", || pid().is_some() && used() > 48 << 10);
    let raw = rustix::process::Pid::from_raw(pid().expect("the program runs") as i32).unwrap();
    rustix::process::kill_process(raw, Signal::KILL).unwrap();
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 137, "{}", done.stderr);
    assert!(!done.stderr.contains("ERROR") && !done.stderr.contains("panicked"), "{}", done.stderr);
    assert!(number(&done.report(), "/moved_pages/demoted") > 0.0);
}
