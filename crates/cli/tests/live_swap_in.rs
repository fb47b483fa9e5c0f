//! Live tests of `--swap-in` and `memory.swap_in`: pages come back in folios while a run lasts, and the kernel's setting is put back however it ends.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run, or where Terrace found by a trial
//! that this kernel brings no folios back and put the setting back. Must not: leave the setting changed;
//! each test stands between two looks at it, at swap, zram, DAMON and the settings of memory management.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;
use std::time::Duration;

use common::daemon::Daemon;
use common::{
    GUARD_LIMIT, PATIENCE, Running, read, run, run_live_tests, terrace, verified, wait_until, workload_words,
};
use rustix::process::Signal;
use terrace_fixtures::live;

const SIZES: &str = "/sys/kernel/mm/transparent_hugepage";
const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
const SWPIN: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/stats/swpin";
const NO_FOLIOS: &str = "folios do not come back from swap here";
const OPTIONS: [&str; 8] =
    ["--swap-in", "64KiB", "--tier-slow", "zram:256MiB", "--set", "idle=1s", "--interval", "250ms"];

fn main() -> ExitCode {
    if !Path::new(ENABLED).exists() {
        println!("SKIPPED live_swap_in: this kernel has no folios of 64 KiB (Linux 6.8, CONFIG_TRANSPARENT_HUGEPAGE)");
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_swap_in",
        &[
            ("pages_come_back_in_folios_and_the_setting_is_put_back", || unchanged(pages_come_back_in_folios)),
            ("the_setting_is_put_back_after_a_kill", || unchanged(the_setting_is_put_back_after_a_kill)),
            ("a_dry_run_leaves_the_setting", || unchanged(a_dry_run_leaves_the_setting)),
            ("a_choice_made_meanwhile_stays", a_choice_made_meanwhile_stays),
            ("the_daemon_sets_it_for_its_time", || unchanged(the_daemon_sets_it_for_its_time)),
            ("what_cannot_be_set_is_named_and_nothing_changes", || unchanged(what_cannot_be_set_is_named)),
        ],
    )
}

/// Which choice is in force.
fn chosen() -> String {
    let text = read(Path::new(ENABLED));
    let (_, rest) = text.split_once('[').unwrap_or_else(|| panic!("{ENABLED}: {text}"));
    rest.split_once(']').unwrap().0.to_owned()
}

/// A test after which the setting is what it was, and which would show if it were not.
fn unchanged(test: fn()) {
    let before = read(Path::new(ENABLED));
    assert!(!before.contains("[always]"), "it is set already: nothing of this would show");
    test();
    assert_eq!(read(Path::new(ENABLED)), before);
}

/// Why folios do not come back here, as a run says that tried it; after it the setting must be as before.
fn no_folios() -> Option<&'static str> {
    static TOLD: OnceLock<Option<String>> = OnceLock::new();
    let told = TOLD.get_or_init(|| {
        let report = run(&[&["run", "--quiet", "--json"], &OPTIONS[..], &["--", "true"]].concat()).report();
        let notes = report["notes"].as_array().unwrap_or_else(|| panic!("{report}"));
        let said = notes.iter().filter_map(|note| note.as_str()).find(|note| note.contains(NO_FOLIOS))?;
        assert!(said.ends_with("the setting is put back"), "{said}");
        Some(said.to_owned())
    });
    told.as_deref()
}

/// Whether the kernel brings folios back; else the test is skipped with what Terrace found.
fn has_folios(test: &str) -> bool {
    no_folios().inspect(|why| live::skipped(test, why)).is_none()
}

fn pages_come_back_in_folios() {
    let counted = || std::fs::read_to_string(SWPIN).ok()?.trim().parse::<u64>().ok();
    let before = counted();
    if !has_folios("pages_come_back_in_folios_and_the_setting_is_put_back") {
        assert_eq!(counted(), before, "what the run said is true");
        return;
    }
    let before = counted();
    // The hot set moves each second, so what left comes back.
    let words = workload_words("96MiB", 8, 1, &["shift_seconds=2"]);
    let script = format!("cat {ENABLED} && exec {words}");
    let done = run(&[&["run", "--quiet", "--json"], &OPTIONS[..], &["--", "sh", "-c", &script]].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.starts_with("[always]"), "{}", done.stdout);
    let own = done.stdout.lines().rev().nth(1).unwrap();
    assert!(verified(own).is_some(), "{own}");
    match before.zip(counted()) {
        Some((before, after)) => {
            println!("    {} folios of 64 KiB came back", after - before);
            assert!(after > before, "{}", done.stderr);
        }
        None => println!("    this kernel does not count folios that come back"),
    }
}

fn the_setting_is_put_back_after_a_kill() {
    if !has_folios("the_setting_is_put_back_after_a_kill") {
        return;
    }
    let before = chosen();
    let mut target = Running::start(Command::new("sleep").arg("60"));
    let pid = target.pid().to_string();
    for kill in 1..=3 {
        let mut manager = Running::start(terrace().args(["attach", "--quiet", "--pid", &pid]).args(OPTIONS));
        wait_until(PATIENCE, "it is set", || chosen() == "always");
        std::thread::sleep(Duration::from_millis(200 * kill));
        manager.signal(Signal::KILL);
        manager.finish(PATIENCE);
        let took = wait_until(GUARD_LIMIT, "the guard puts it back", || chosen() == before);
        println!("    kill {kill}: back after {:.2} s", took.as_secs_f64());
    }
    target.signal(Signal::TERM);
    target.finish(PATIENCE);
}

fn a_dry_run_leaves_the_setting() {
    let script = format!("cat {ENABLED}");
    let done = run(&[&["run", "--quiet", "--dry-run"], &OPTIONS[..], &["--", "sh", "-c", &script]].concat());
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(!done.stdout.contains("[always]"), "{}", done.stdout);
}

/// A value that another program writes while a run goes on stays.
fn a_choice_made_meanwhile_stays() {
    let before = chosen();
    let script = format!("echo madvise > {ENABLED}");
    let done = run(&[&["run", "--quiet"], &OPTIONS[..], &["--", "sh", "-c", &script]].concat());
    let after = chosen();
    std::fs::write(ENABLED, &before).unwrap();
    assert_eq!((done.code, after.as_str()), (0, "madvise"), "{}", done.stderr);
}

fn the_daemon_sets_it_for_its_time() {
    if !has_folios("the_daemon_sets_it_for_its_time") {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("conf.d")).unwrap();
    std::fs::write(place.path().join("conf.d/50.toml"), "[memory]\nswap_in = \"64KiB\"\n").unwrap();
    let daemon = Daemon::spawn_in(place, "", "64MiB", "500ms", |_| {});
    daemon.wait_until_it_answers();
    assert_eq!(chosen(), "always");
    daemon.end();
}

/// What cannot be set: each in a mount namespace of its own, where the kernel's files are read-only or missing.
fn what_cannot_be_set_is_named() {
    let before = common::State::read();
    let cases = [
        (format!("mount --bind {SIZES} {SIZES} && mount -o remount,ro,bind {SIZES}"), ENABLED),
        (format!("mount -t tmpfs none {SIZES}"), "no folios of 64KiB"),
        (
            format!(
                "mount -t tmpfs none {SIZES} && mkdir {SIZES}/hugepages-16kB && echo never >{SIZES}/hugepages-16kB/enabled"
            ),
            "it has 16KiB",
        ),
    ];
    for (mounts, says) in cases {
        let mut command = Command::new("unshare");
        let script = format!("{mounts} && exec \"$@\"");
        command.args(["-m", "sh", "-c", &script, "sh"]).arg(terrace().get_program());
        command.args(["run"]).args(OPTIONS).args(["--", "echo", "the program ran"]);
        let done = Running::start(&mut command).finish(PATIENCE);
        println!("    {}", done.stderr.trim());
        if done.stderr.starts_with("unshare: ") || done.stderr.starts_with("mount: ") {
            println!("SKIPPED what_cannot_be_set_is_named_and_nothing_changes: mounts are not allowed here");
            return;
        }
        common::is_refusal(&done, 2, says);
        assert_eq!(done.stderr.lines().filter(|line| line.contains("--swap-in 64KiB: ")).count(), 1, "{}", done.stderr);
        assert!(done.stderr.contains(says), "{says}: {}", done.stderr);
        assert_eq!(before.differences(&common::State::read()), Vec::<String>::new());
    }
}
