//! Live tests of `terrace run`, `attach` and `observe` on the kernel at hand. They need root, zram and a tracker.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave
//! anything behind; each test stands between two looks at swap, zram, DAMON and the settings of memory management.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use common::{
    GUARD_LIMIT, PATIENCE, Running, State, number, read, run, run_live_tests, status_bytes, terrace, verified,
    wait_until, workload, workload_words, zram_of,
};
use rustix::process::Signal;
use serde_json::Value;

/// A slow tier of our own, whatever else the machine has, and a policy in a hurry, whatever a page-out costs on a machine that is slow or busy.
const EAGER: [&str; 8] =
    ["--tier-slow", "zram:1GiB", "--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "100%"];
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    run_live_tests(
        "live_run",
        &[
            ("the_exit_code_is_the_program_s", the_exit_code_is_the_program_s),
            ("signals_are_passed_on", signals_are_passed_on),
            (
                "the_report_is_on_stdout_in_a_file_and_in_a_directory",
                the_report_is_on_stdout_in_a_file_and_in_a_directory,
            ),
            ("what_the_caller_ran_before_is_not_the_program_s", what_the_caller_ran_before),
            ("children_are_followed", children_are_followed),
            ("observe_moves_nothing", observe_moves_nothing),
            ("a_program_with_nothing_to_save_is_watched_within_its_budget", watched_within_its_budget),
            ("observing_for_a_while_lets_the_program_go_on", observing_for_a_while_lets_the_program_go_on),
            ("a_dry_run_moves_nothing_and_says_what_it_would", a_dry_run_moves_nothing_and_says_what_it_would),
            ("detaching_leaves_the_program_alive_and_whole", detaching_leaves_the_program_alive_and_whole),
            ("half_of_the_memory_stays_fast", half_of_the_memory_stays_fast),
            ("page_outs_wait_for_what_the_program_can_afford", page_outs_wait_for_what_the_program_can_afford),
            ("a_busy_zram_is_named_and_its_guard_takes_it_away_later", a_busy_zram),
            ("without_rights_nothing_starts_and_the_missing_ones_are_named", without_rights),
            ("a_report_that_cannot_be_written_is_found_before_the_program_starts", a_report_that_cannot_be_written),
        ],
    )
}

fn run_with<'a>(first: &[&'a str], options: &[&'a str], program: &[&'a str]) -> common::Finished {
    let arguments: Vec<&str> = first.iter().chain(options).chain(&["--"]).chain(program).copied().collect();
    run(&arguments)
}

fn the_exit_code_is_the_program_s() {
    for (script, expected) in [("exit 0", 0), ("exit 37", 37), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let done = run_with(&["run", "--quiet", "--json"], &EAGER, &["sh", "-c", script]);
        assert_eq!((done.code, done.signal), (expected, None), "{script}: {}", done.stderr);
        assert_eq!(number(&done.report(), "/target/exit_code"), f64::from(expected));
    }
    let done = run_with(&["observe", "--quiet"], &[], &["sh", "-c", "exit 5"]);
    assert_eq!(done.code, 5, "{}", done.stderr);
}

fn signals_are_passed_on() {
    let script = "trap 'echo told; exit 9' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(terrace().args(["run", "--quiet"]).args(EAGER).args(["--", "sh", "-c", script]));
    running.wait_for_output("ready", PATIENCE);
    running.signal(Signal::TERM);
    let done = running.finish(PATIENCE);
    assert_eq!((done.code, done.stdout.as_str()), (9, "ready\ntold\n"), "{}", done.stderr);
    // One that does not listen ends by the signal, and Terrace says so the shell's way.
    let mut running = Running::start(terrace().args(["run", "--quiet"]).args(EAGER).args([
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 100",
    ]));
    running.wait_for_output("ready", PATIENCE);
    running.signal(Signal::HUP);
    assert_eq!(running.finish(PATIENCE).code, 129);
}

fn the_report_is_on_stdout_in_a_file_and_in_a_directory() {
    let place = tempfile::tempdir().unwrap();
    let (file, directory) = (place.path().join("run.json"), place.path().join("new/report"));
    let words = workload_words("96MiB", 5, 1, &[]);
    let script = format!("echo the program speaks; {words} >/dev/null; exit $?");
    let outputs = ["--json", "--json-file", file.to_str().unwrap(), "--report", directory.to_str().unwrap()];
    let done = run_with(&["run"], &[EAGER.as_slice(), &outputs].concat(), &["sh", "-c", &script]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(done.stdout.lines().count(), 2, "the program's line, then the report's: {}", done.stdout);
    assert!(done.stdout.starts_with("the program speaks\n"));
    let report = done.report();
    for pointer in [
        "/schema_version",
        "/target/exit_code",
        "/target/wall_seconds",
        "/target/peak_rss_bytes",
        "/tiers/0/capacity_bytes",
        "/tiers/0/mean_used_bytes",
        "/tiers/1/capacity_bytes",
        "/tiers/1/mean_used_bytes",
        "/fast_bytes_saved_mean",
        "/fast_bytes_saved_end",
        "/moved_pages/demoted",
        "/moved_pages/promoted",
        "/moved_pages/failed",
        "/refaults",
        "/manager/cpu_seconds",
        "/manager/max_rss_bytes",
        "/manager/stall_seconds",
    ] {
        number(&report, pointer);
    }
    for pointer in ["/tracker", "/policy", "/tiers/0/name", "/tiers/0/kind", "/tiers/1/name", "/tiers/1/kind"] {
        assert!(report.pointer(pointer).is_some_and(Value::is_string), "{pointer}");
    }
    assert!(number(&report, "/target/wall_seconds") >= 5.0);
    assert!(number(&report, "/target/peak_rss_bytes") >= (96 * MIB) as f64);
    assert!(number(&report, "/moved_pages/demoted") > 0.0, "72 MiB are cold for seconds: {}", done.stderr);
    assert!(number(&report, "/fast_bytes_saved_mean") > 0.0);
    // The data compresses 3:1, and the last look is not at a program that is exiting, whose swap is free already.
    let (saved, out) = (number(&report, "/fast_bytes_saved_end"), number(&report, "/tiers/1/end_used_bytes"));
    assert!(saved < 0.8 * out, "{saved} saved of {out} out");
    assert!(number(&report, "/manager/cpu_seconds") > 0.0);
    for path in [&file, &directory.join("report.json")] {
        let written: Value = serde_json::from_str(&read(path)).unwrap();
        assert_eq!(written, report, "{}", path.display());
    }
    assert!(read(&directory.join("report.html")).contains("</html>"));
    println!("    {}", done.stderr.lines().find(|line| line.starts_with("saved")).unwrap_or("no closing line"));
}

/// A script that builds first and then calls exec, as `make demo` does, leaves Terrace with children that were waited for.
fn what_the_caller_ran_before() {
    let before = "i=0; (while [ $i -lt 2000000 ]; do i=$((i + 1)); done); times >&2; exec \"$@\"";
    let words = ["-c", before, "sh", env!("CARGO_BIN_EXE_terrace"), "run", "--quiet", "--json"];
    let done = Running::start(Command::new("sh").args(words).args(EAGER).args(["--", "sleep", "1"])).finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let cpu = number(&done.report(), "/target/cpu_seconds");
    assert!(cpu < 0.2, "sleep took {cpu} s of CPU time; the shell before it:\n{}", done.stderr);
}

fn children_are_followed() {
    // `true` keeps the shell from becoming the workload itself.
    let script = format!("{} >&2; true", workload_words("200MiB", 8, 2, &["hot=0.02"]));
    let done = run_with(&["run", "--json"], &EAGER, &["sh", "-c", &script]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    let demoted = number(&report, "/moved_pages/demoted") * 4096.0;
    println!("    {:.0} MiB of the child's 200 went out", demoted / MIB as f64);
    assert!(number(&report, "/target/processes") >= 2.0);
    // The shell itself has a few MiB.
    assert!(demoted > (60 * MIB) as f64, "{}", done.stderr);
    assert!(done.stderr.lines().any(|line| verified(line).is_some()), "the child's data: {}", done.stderr);
}

/// Three quarters of 512 MiB, scattered, are cold from the start: as single pages they cost more than a small bound allows at once.
fn page_outs_wait_for_what_the_program_can_afford() {
    let words = workload_words("512MiB", 25, 1, &["layout=scattered"]);
    let options = ["--quiet", "--json", "--tier-slow", "zram:1GiB", "--set", "idle=1s", "--interval", "250ms"];
    let options = [&options[..], &["--max-slowdown", "0.8%", "--max-overhead", "0.2%"]].concat();
    let done = run_with(&["run"], &options, &["sh", "-c", &format!("exec {words} >/dev/null")]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    let (cost, waited) =
        (number(&report, "/cost/moving_seconds"), number(&report, "/page_outs_seconds/limited_to_bound"));
    let wall = number(&report, "/target/wall_seconds");
    println!("    moves cost {cost:.3} s of {wall:.1}, and waited for {waited:.1} s");
    assert!(number(&report, "/moved_pages/demoted") > 1000.0, "{}", done.stderr);
    // What a reading admits may cost more than it was priced at.
    assert!(cost < 0.008 * 1.5 * wall, "{}", done.stderr);
    assert!(waited > 5.0, "{}", done.stderr);
}

/// Random accesses to all of 256 MiB: nothing is ever cold. What watching cost is Terrace's own count of bits that the program set again, over
/// the program's own CPU time; no clock is looked at, so that other work on the machine changes nothing.
fn watched_within_its_budget() {
    let words = workload_words("256MiB", 20, 1, &["hot=1"]);
    let cost = |max_overhead: &str| {
        let options = ["--quiet", "--json", "--tier-slow", "zram:1GiB", "--interval", "250ms", "--set", "share=100%"];
        let options = [&options[..], &["--dry-run", "--max-slowdown", "100%", "--max-overhead", max_overhead]].concat();
        let done = run_with(&["run"], &options, &["sh", "-c", &format!("exec {words} >/dev/null")]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let report = done.report();
        let cpu = number(&report, "/target/cpu_seconds");
        let watching = number(&report, "/cost/watching_seconds");
        let bits = number(&report, "/cost/touched_bits");
        println!(
            "    --max-overhead {max_overhead}: {bits} bits in {cpu:.1} CPU seconds, {:.3} % of them, back-off {}",
            watching / cpu * 100.0,
            number(&report, "/cost/back_off"),
        );
        assert!(number(&report, "/cost/touch_nanoseconds") > 0.0);
        (bits / cpu, watching, cpu)
    };
    let (bits, watching, cpu) = cost("0.5%");
    // On top of the mean may come what was saved up before the first scan and what the last one has yet to earn: four seconds of income each. On
    // a busy machine the program has few seconds of its own.
    assert!(watching <= 0.005 * 1.1 * (cpu + 8.0), "{watching} s of {cpu} s");
    let (unbounded, ..) = cost("100%");
    assert!(bits * 2.0 < unbounded, "{bits:.0} bits a CPU second with the budget, {unbounded:.0} without");
}

fn observe_moves_nothing() {
    let before = State::read();
    let script = format!("{} >/dev/null", workload_words("64MiB", 7, 3, &[]));
    let mut running = Running::start(
        terrace()
            .args(["observe", "--json", "--interval", "250ms", "--", "sh", "-c"])
            .arg(format!("{script}; exit $?")),
    );
    std::thread::sleep(Duration::from_secs(3));
    assert!(running.is_running(), "{}", running.stderr());
    assert_eq!(before.differences(&State::read()), Vec::<String>::new(), "no swap is set up to look");
    let done = running.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    assert_eq!(report["tiers"].as_array().unwrap().len(), 1);
    assert_eq!(number(&report, "/moved_pages/demoted") + number(&report, "/moved_pages/promoted"), 0.0);
    let rows = report["heat_map"]["rows"].as_array().unwrap();
    let covered: u64 = rows.iter().map(|row| row["bytes"].as_u64().unwrap()).sum();
    assert!(covered >= 64 * MIB, "the map shows the program's memory: {covered}");
    let ages = report["age_histogram"].as_array().unwrap();
    let aged: u64 = ages.iter().map(|bin| bin["fast_bytes"].as_u64().unwrap()).sum();
    assert!(aged >= 48 * MIB, "ages are known: {aged}");
    assert!(done.stderr.contains("memory by idle time"), "{}", done.stderr);
}

fn observing_for_a_while_lets_the_program_go_on() {
    let arguments = ["observe", "--json", "--duration", "1s", "--", "sh", "-c"];
    let mut running = Running::start(terrace().args(arguments).arg("sleep 4; echo after; exit 6"));
    let done = running.finish(PATIENCE);
    assert_eq!(done.code, 6, "the exit code is the program's, long after the watching ended: {}", done.stderr);
    assert!(done.stdout.ends_with("after\n") || done.stdout.starts_with("after\n"), "{}", done.stdout);
    // Signals reach it in that time as well.
    let script = "trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let mut running = Running::start(terrace().args(arguments).arg(script));
    running.wait_for_output("schema_version", PATIENCE);
    running.signal(Signal::TERM);
    assert_eq!(running.finish(PATIENCE).code, 7);
}

fn a_dry_run_moves_nothing_and_says_what_it_would() {
    let words = workload_words("96MiB", 10, 4, &[]);
    let script = format!("{words} >/dev/null & child=$!; sleep 9; grep VmSwap /proc/$child/status; wait $child");
    let done = run_with(&["run", "--json", "--dry-run"], &EAGER, &["sh", "-c", &script]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let swapped: Vec<&str> = done.stdout.lines().next().unwrap().split_ascii_whitespace().collect();
    assert_eq!(swapped, ["VmSwap:", "0", "kB"]);
    let report = done.report();
    assert_eq!(number(&report, "/moved_pages/demoted") + number(&report, "/moved_pages/promoted"), 0.0);
    assert_eq!(number(&report, "/fast_bytes_saved_end"), 0.0);
    println!("    {} rounds, {} processes", report["manager"]["rounds"], report["target"]["processes"]);
    let would = number(&report, "/moved_pages/failed_by_cause/dry_run");
    println!("    {:.0} MiB would have gone", would * 4096.0 / MIB as f64);
    assert!(would * 4096.0 > (40 * MIB) as f64, "{}", done.stderr);
    assert!(would * 4096.0 < (100 * MIB) as f64, "each page once, however often it is asked about: {}", done.stderr);
    assert!(done.stderr.contains("dry run"), "{}", done.stderr);
}

fn detaching_leaves_the_program_alive_and_whole() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut target = workload("96MiB", 60, 5, &[]);
        let pid = target.pid().to_string();
        let mut manager = Running::start(terrace().args(["attach", "--json", "--pid", &pid]).args(EAGER));
        let gone_out = || status_bytes(target.pid(), "VmSwap").unwrap_or(0) > 20 * MIB;
        wait_until(PATIENCE, "memory goes out", gone_out);
        manager.signal(signal);
        let done = manager.finish(PATIENCE);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(done.report()["target"]["exit_code"].is_null());
        assert!(number(&done.report(), "/moved_pages/demoted") > 0.0);
        assert!(target.is_running(), "the program lives: {}", target.stderr());
        assert_eq!(status_bytes(target.pid(), "VmSwap"), Some(0), "all of it is back in memory");
        assert_eq!(zram_of(manager.pid()), None);
        target.end_early();
        let ended = target.finish(PATIENCE);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(verified(&ended.stdout).is_some(), "{}", ended.stdout);
    }
}

fn half_of_the_memory_stays_fast() {
    let words = workload_words("256MiB", 15, 6, &["hot=0.25"]);
    let script = format!("{words} >/dev/null; exit $?");
    let done = run_with(&["run", "--json", "--fast", "50%"], &EAGER, &["sh", "-c", &script]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    let (fast, slow) = (number(&report, "/tiers/0/end_used_bytes"), number(&report, "/tiers/1/end_used_bytes"));
    let share = fast / (fast + slow);
    println!("    {:.1} % of {:.0} MiB in fast memory at the end", share * 100.0, (fast + slow) / MIB as f64);
    assert!((0.475..=0.525).contains(&share), "{}", done.stderr);
}

fn a_busy_zram() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("run.json");
    let options = ["run", "--tier-slow", "zram:64MiB", "--json-file", file.to_str().unwrap(), "--", "sleep", "3"];
    let mut running = Running::start(terrace().args(options));
    let mut device = None;
    wait_until(PATIENCE, "the device is there", || {
        device = zram_of(running.pid());
        device.is_some()
    });
    let device = device.unwrap();
    // Somebody has the device open, which keeps it from being reset.
    let holder = std::fs::File::open(format!("/dev/{device}")).unwrap();
    let done = running.finish(PATIENCE);
    assert_eq!(done.code, 1, "{}", done.stderr);
    for says in [&format!("/dev/{device} is busy"), "lsof", "hot_remove"] {
        assert!(done.stderr.contains(says), "{says}: {}", done.stderr);
    }
    assert!(read(&file).contains("schema_version"), "the report is written all the same");
    let there = || Path::new(&format!("/sys/block/{device}")).exists();
    assert!(there(), "what is held cannot go");
    drop(holder);
    let after = wait_until(GUARD_LIMIT, "the guard has taken it away", || !there());
    println!("    {device}: gone {:.2} s after it was let go of", after.as_secs_f64());
}

fn without_rights() {
    let nobody = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let place = tempfile::tempdir().unwrap();
    // Nobody must be able to write there, were the program started; and to reach the command, wherever it was built.
    std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let binary = place.path().join("terrace");
    std::fs::copy(env!("CARGO_BIN_EXE_terrace"), &binary).unwrap();
    let as_nobody = |arguments: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(nobody).arg(&binary).args(arguments).current_dir(place.path());
        Running::start(&mut command).finish(PATIENCE)
    };
    if Command::new("setpriv").args(nobody).arg("true").status().is_ok_and(|status| status.success()) {
        for command in ["run", "observe"] {
            let done = as_nobody(&[command, "--report", "report", "--", "touch", "started"]);
            assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
            for named in ["CAP_BPF", "CAP_PERFMON", "works here: terrace ", "doctor"] {
                assert!(done.stderr.contains(named), "{named}: {}", done.stderr);
            }
            assert!(!place.path().join("started").exists(), "the program did not start");
            assert!(!place.path().join("report").exists(), "nor is an empty directory left");
        }
        let done = as_nobody(&["attach", "--pid", &std::process::id().to_string()]);
        assert_eq!(done.code, 1);
        assert!(done.stderr.contains("CAP_SYS_PTRACE"), "{}", done.stderr);
        let done = as_nobody(&["doctor", "--json"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert!(done.stdout.contains("CAP_SYS_ADMIN"));
        assert_eq!(as_nobody(&["topology"]).code, 0);
    } else {
        println!("SKIPPED: no setpriv, or no other user to be");
    }
    // All rights but one: eBPF works, moving does not.
    let drop_one = ["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice"];
    let mut command = Command::new("setpriv");
    command.args(drop_one).arg(&binary).args(["run", "--", "touch", "started"]).current_dir(place.path());
    let done = Running::start(&mut command).finish(PATIENCE);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stderr.contains("CAP_SYS_NICE") && !done.stderr.contains("CAP_BPF:"), "{}", done.stderr);
    assert!(!place.path().join("started").exists());
}

fn a_report_that_cannot_be_written() {
    let place = tempfile::tempdir().unwrap();
    let started = place.path().join("started");
    for (option, path) in
        [("--report", "/proc/no-such"), ("--report", "/etc/passwd/below"), ("--json-file", "/no/such.json")]
    {
        let done = run(&["run", option, path, "--", "touch", started.to_str().unwrap()]);
        assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{}", done.stderr);
        assert!(done.stderr.contains(&format!("{option} {path}: ")), "{}", done.stderr);
        assert!(!started.exists(), "found before the program started");
    }
    assert!(!Path::new("/no").exists());
}
