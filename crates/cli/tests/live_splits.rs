//! Live tests of looking inside of huge pages: what is cold in them leaves, what is used evenly stays whole, and what must not be split is not.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave the kernel's setting for huge
//! pages otherwise, or anything else; each test stands between two looks at swap, zram, DAMON and the settings of memory management.
//!
//! The programs check every page at their end; an exit code of 0 says all was right.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use common::{
    Finished, GUARD_LIMIT, PATIENCE, Random, Running, State, number, read, run_live_tests, status_bytes, terrace,
    verified, wait_for_state, wait_until, workload, workload_words,
};
use rustix::process::Signal;
use serde_json::Value;
use terrace_fixtures::live;

const MIB: f64 = 1048576.0;
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
/// A slow tier of our own, whatever else the machine has, and a policy in a hurry.
const EAGER: [&str; 8] =
    ["--tier-slow", "zram:1GiB", "--set", "idle=2s", "--interval", "250ms", "--max-slowdown", "100%"];
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/pieces.py");

fn main() -> ExitCode {
    let there = live::need(Path::new(SETTING).exists(), "this kernel has no huge pages");
    if !live::can_run("live_splits", there) || !live::can_run("live_splits", live::need_program("python3")) {
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_splits",
        &[
            ("what_is_cold_inside_leaves", what_is_cold_inside_leaves),
            ("what_is_used_evenly_stays_whole", what_is_used_evenly_stays_whole),
            ("a_fork_in_the_middle_loses_nothing", a_fork_in_the_middle_loses_nothing),
            ("a_kill_in_the_middle_loses_nothing", a_kill_in_the_middle_loses_nothing),
            ("what_must_stay_whole_is_never_split", what_must_stay_whole_is_never_split),
            ("a_setting_that_is_switched_counts_at_once", a_setting_that_is_switched_counts_at_once),
            ("without_huge_pages_there_is_nothing_to_say", without_huge_pages_there_is_nothing_to_say),
            ("a_kernel_that_does_not_split_is_named_once", a_kernel_that_does_not_split_is_named_once),
            ("observe_says_what_it_cannot_see_and_estimates_it", observe_says_what_it_cannot_see_and_estimates_it),
        ],
    )
}

/// The kernel's setting for huge pages; put back when dropped.
struct Setting(String);

impl Setting {
    fn set(to: &str) -> Setting {
        let text = read(Path::new(SETTING));
        let before = text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']')).unwrap();
        let setting = Setting(before.to_owned());
        setting.switch(to);
        setting
    }

    fn switch(&self, to: &str) {
        std::fs::write(SETTING, to).unwrap();
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        self.switch(&self.0);
    }
}

/// The program with this kind of memory, under Terrace; with where its report goes.
fn managed(options: &[&str], kind: &str, mib: u32, seconds: u32) -> Running {
    let mut command = terrace();
    command.arg("run").args(EAGER).args(options).args(["--json", "-v", "--", "python3", PROGRAM, kind]);
    Running::start(command.args([mib.to_string(), seconds.to_string()]))
}

/// These words of a shell, run under Terrace.
fn run_with(options: &[&str], words: &str) -> Finished {
    common::run(&[&["run", "--json", "-v"], options, &["--", "sh", "-c", words]].concat())
}

/// KiB of huge pages that the program had at its looks.
fn looks(done: &Finished) -> Vec<u64> {
    done.stdout.lines().filter_map(|line| line.strip_prefix("huge ")?.parse().ok()).collect()
}

/// Whether its memory was huge to begin with, which is for the kernel to give.
fn began_huge(done: &Finished, mib: u64) -> bool {
    let huge = looks(done)[0] >= (mib << 10) * 9 / 10;
    if !huge {
        println!("    SKIPPED: the kernel had no huge pages for it: {:?} KiB of {mib} MiB", looks(done));
    }
    huge
}

fn inside(report: &Value, key: &str) -> f64 {
    number(report, &format!("/inside/{key}"))
}

fn what_is_cold_inside_leaves() {
    let _always = Setting::set("always");
    let mut program = workload("512MiB", 600, 1, &["hot=0.06"]);
    let pid = program.pid();
    let mut manager = Running::start(terrace().args(["attach", "--json", "-v", "--pid", &pid.to_string()]).args(EAGER));
    wait_until(Duration::from_secs(240), "what is cold inside leaves", || {
        assert!(manager.is_running(), "{}", manager.stderr());
        status_bytes(pid, "VmSwap").unwrap_or(0) > 220 << 20
    });
    manager.signal(Signal::TERM);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    program.end_early();
    let ended = program.finish(PATIENCE);
    assert!(ended.code == 0 && verified(&ended.stdout).is_some(), "{}{}", ended.stdout, ended.stderr);
    let report = done.report();
    let (left, looked) = (inside(&report, "left_bytes"), inside(&report, "looked_into_blocks"));
    println!(
        "    {:.0} of 512 MiB left from inside {} huge pages ({looked} looked into) in {:.0} s",
        left / MIB,
        inside(&report, "split_blocks"),
        number(&report, "/target/wall_seconds")
    );
    assert!(looked >= 2.0 && left > 150.0 * MIB, "{}", done.stderr);
    let said = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("looked into were used by less than a tenth"), "{}", done.stderr);
}

fn what_is_used_evenly_stays_whole() {
    let _always = Setting::set("always");
    let words = workload_words("1GiB", 30, 1, &["hot=1"]);
    let done = run_with(&["--tier-slow", "zram:1GiB"], &words);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    let (split, left) = (inside(&report, "split_blocks"), inside(&report, "left_bytes"));
    println!(
        "    {split} of 512 blocks split, {:.1} MiB left; account {:.2} % of its time",
        left / MIB,
        number(&report, "/cost/share_of_target") * 100.0
    );
    // Eight of each 64 MiB at most, and a hundredth of all that was not repaid.
    assert!(split <= 12.0 && left < 8.0 * MIB, "{}", done.stderr);
}

fn a_fork_in_the_middle_loses_nothing() {
    let _always = Setting::set("always");
    let mut running = managed(&[], "fork", 128, 24);
    let done = running.finish(PATIENCE);
    assert_eq!(done.code, 0, "the data of parent and child: {}", done.stderr);
    if began_huge(&done, 128) {
        println!("    huge KiB {:?}; {} split", looks(&done), inside(&done.report(), "split_blocks"));
    }
}

fn a_kill_in_the_middle_loses_nothing() {
    let _always = Setting::set("always");
    let mut random = Random::new(58);
    // A landing has a few; `make check-all` and `make test` all.
    let kills = if std::env::var("TERRACE_SOAK_SECONDS").is_ok_and(|seconds| seconds == "0") { 3 } else { 20 };
    for kill in 1..=kills {
        let before = State::read();
        let mut program = workload("192MiB", 120, kill, &["hot=0.06"]);
        let pid = program.pid();
        let mut manager = Running::start(terrace().args(["attach", "--pid", &pid.to_string()]).args(EAGER));
        wait_until(PATIENCE, "pieces leave", || {
            assert!(manager.is_running(), "{}", manager.stderr());
            status_bytes(pid, "VmSwap").unwrap_or(0) > 1 << 20
        });
        std::thread::sleep(Duration::from_millis(random.below(5000)));
        let out = status_bytes(pid, "VmSwap").unwrap_or(0);
        manager.signal(Signal::KILL);
        drop(manager);
        program.end_early();
        let ended = program.finish(PATIENCE);
        assert_eq!((ended.code, ended.signal), (0, None), "{}{}", ended.stdout, ended.stderr);
        assert!(verified(&ended.stdout).is_some(), "{}", ended.stdout);
        assert_eq!(wait_for_state(&before, GUARD_LIMIT), Vec::<String>::new());
        println!("    kill {kill}: {:.0} MiB were out", out as f64 / MIB);
    }
}

fn what_must_stay_whole_is_never_split() {
    let _always = Setting::set("always");
    for kind in ["locked", "shared", "watched"] {
        let mut running = managed(&[], kind, 64, 14);
        let done = running.finish(PATIENCE);
        if done.stderr.contains("is refused") && done.code == 1 {
            println!("    SKIPPED {kind}: {}", done.stderr);
            continue;
        }
        assert_eq!(done.code, 0, "{kind}: {}", done.stderr);
        let report = done.report();
        if began_huge(&done, 64) {
            let (looks, split) = (looks(&done), inside(&report, "split_blocks"));
            println!("    {kind}: huge KiB {looks:?}, left whole {}", report["inside"]["left_whole_blocks"]);
            // Python's own heap may have a huge page or two.
            assert!(
                looks[1] >= looks[0] * 99 / 100 && split <= 4.0,
                "{kind}: {looks:?}, {split} split: {}",
                done.stderr
            );
        }
    }
}

/// Blocks that were made huge on the whole machine so far.
fn collapsed() -> u64 {
    let text = read(Path::new("/proc/vmstat"));
    let line = text.lines().find_map(|line| line.strip_prefix("thp_collapse_alloc "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn a_setting_that_is_switched_counts_at_once() {
    let setting = Setting::set("always");
    let mut program = workload("256MiB", 60, 3, &["hot=0.06"]);
    let pid = program.pid();
    program.wait_for_output("\"run\"", PATIENCE);
    let mut manager = Running::start(terrace().args(["attach", "--json", "-v", "--pid", &pid.to_string()]).args(EAGER));
    wait_until(PATIENCE, "pieces leave", || {
        assert!(manager.is_running(), "{}", manager.stderr());
        status_bytes(pid, "VmSwap").unwrap_or(0) > 8 << 20
    });
    setting.switch("never");
    // What was under way is over.
    std::thread::sleep(Duration::from_secs(1));
    let before = (collapsed(), status_bytes(pid, "VmSwap").unwrap_or(0));
    std::thread::sleep(Duration::from_secs(6));
    let made = collapsed() - before.0;
    setting.switch("always");
    let again = Instant::now();
    wait_until(PATIENCE, "moves go on", || {
        status_bytes(pid, "VmSwap").unwrap_or(0) > before.1 + (1 << 20) || again.elapsed() > Duration::from_secs(8)
    });
    manager.signal(Signal::INT);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    program.end_early();
    let ended = program.finish(PATIENCE);
    assert!(ended.code == 0 && verified(&ended.stdout).is_some(), "{}{}", ended.stdout, ended.stderr);
    println!("    {made} blocks made huge while the setting was never");
    assert_eq!(made, 0, "{}", done.stderr);
}

fn without_huge_pages_there_is_nothing_to_say() {
    let _never = Setting::set("never");
    let words = workload_words("128MiB", 12, 1, &["hot=0.06"]);
    let before = collapsed();
    let done = run_with(&EAGER, &words);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let report = done.report();
    assert_eq!((inside(&report, "split_blocks"), inside(&report, "huge_bytes")), (0.0, 0.0));
    assert_eq!(collapsed(), before, "never is a wish");
    assert!(!done.stderr.contains("looked into"), "{}", done.stderr);
    assert!(number(&report, "/moved_pages/demoted") > 1000.0, "its small pages leave as ever: {}", done.stderr);
    let doctor = common::text(&["doctor"]);
    let doctor = doctor.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(doctor.contains("huge pages are set to never"), "{doctor}");
}

/// Executes what follows with a seccomp filter under which the kernel refuses process_madvise(MADV_COLD), as one before Linux 5.10 does.
const WITHOUT_COLD: &str = "
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
NR, ARCH_OK, ADVICE = 440, 0, 16 + 3 * 8
code = [(0x20, 0, 0, 0), (0x15, 0, 3, NR), (0x20, 0, 0, ADVICE), (0x15, 0, 1, 20), (0x06, 0, 0, 0x00050000 | 22), (0x06, 0, 0, 0x7fff0000)]
filter = b''.join(struct.pack('HBBI', *line) for line in code)
held = ctypes.create_string_buffer(filter)
program = struct.pack('HxxxxxxP', len(code), ctypes.addressof(held))
given = ctypes.create_string_buffer(program)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, given, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[1], sys.argv[1:])
";

fn a_kernel_that_does_not_split_is_named_once() {
    let _always = Setting::set("always");
    let words = workload_words("128MiB", 10, 1, &["hot=0.06"]);
    let mut command = Command::new("python3");
    command.args(["-c", WITHOUT_COLD]).arg(common::program()).env_remove("TERRACE_LOG");
    command.arg("run").args(EAGER).args(["--json", "-v", "--", "sh", "-c", &words]);
    let done = Running::start(&mut command).finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let said = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(said.matches("huge pages stay whole here").count(), 1, "{}", done.stderr);
    assert_eq!(inside(&done.report(), "split_blocks"), 0.0);
}

fn observe_says_what_it_cannot_see_and_estimates_it() {
    let _always = Setting::set("always");
    // Watched while it loops: at its end it reads all of its memory once more.
    let observe = |seconds: u32, options: &[&str]| {
        let mut program = workload("512MiB", 600, 1, &["hot=0.05"]);
        program.wait_for_output("\"run\"", PATIENCE);
        let (pid, duration) = (program.pid().to_string(), format!("{seconds}s"));
        let words = [&["observe", "--json", "--pid", &pid, "--duration", &duration], options].concat();
        let done = Running::start(terrace().args(words)).finish(Duration::from_secs(300));
        program.end_early();
        assert_eq!((done.code, program.finish(PATIENCE).code), (0, 0), "{}", done.stderr);
        let said = done.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
        (done.report(), said)
    };
    let looking = ["--max-overhead", "5%", "--inside"];
    let (mut report, mut said) = observe(30, &looking);
    if inside(&report, "used_bytes_high") > 400.0 * MIB {
        println!("    30 s were not enough on a busy machine");
        (report, said) = observe(120, &looking);
    }
    let (used, low, high) =
        (inside(&report, "used_bytes"), inside(&report, "used_bytes_low"), inside(&report, "used_bytes_high"));
    println!("    {:.0} MiB used ({:.0} to {:.0}); 25.6 are", used / MIB, low / MIB, high / MIB);
    assert!(said.contains("split to look"), "{said}");
    assert!((low..=high).contains(&used) && used > 12.8 * MIB && used < 51.2 * MIB, "{said}");
    assert_eq!(number(&report, "/moved_pages/demoted"), 0.0);
    let (report, said) = observe(10, &[]);
    println!("    {:.0} MiB in huge pages", inside(&report, "huge_bytes") / MIB);
    assert!(inside(&report, "huge_bytes") > 400.0 * MIB && said.contains("--inside"), "{said}");
    assert_eq!((inside(&report, "split_blocks"), report["inside"]["used_bytes"].is_null()), (0.0, true));
}
