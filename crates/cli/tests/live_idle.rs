//! Idle programs on this kernel: many of them that start one after another, and one that wakes. Needs root, zram and Python.
//!
//! In: nothing, or a part of a test's name. Out: one line a test and what it measured; SKIPPED and why where it cannot be tried. Must not: leave a
//! cgroup or a process behind; swap, zram and sysctls are compared before and after each test.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::daemon::cgroup_root;
use common::{PATIENCE, Running, number, run_live_tests, status_bytes, terrace, wait_until};
use terrace_core::units::PAGE_BYTES;
use terrace_linux::fetch_ahead;
use terrace_linux::process::{Process, RangeOptions};
use terrace_linux::sys::{RemoteRange, process_madvise};

const MIB: u64 = 1 << 20;
/// Interpreters, and how much each of them holds.
const MANY: usize = 12;
const EACH: u64 = 50;
/// What the one holds that wakes.
const WOKEN: u64 = 200;
const SECOND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    run_live_tests(
        "live_idle",
        &[
            ("many_that_start_one_after_another_are_out_soon", many_that_start_one_after_another_are_out_soon),
            ("one_that_wakes_is_met_half_way", one_that_wakes_is_met_half_way),
        ],
    )
}

/// An interpreter that sleeps until it is asked; it ends when dropped.
struct Idle {
    child: Child,
    asks: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Idle {
    fn start(mib: u64) -> Idle {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/idle.py");
        let mut command = Command::new(python());
        command.arg(program).arg(mib.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (asks, answers) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Idle { child, asks, answers }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.asks.as_mut().unwrap(), "{what}").unwrap();
        self.answer()
    }

    /// Milliseconds in which it read a byte of each of its pages.
    fn touch(&mut self) -> f64 {
        self.ask("touch").parse().unwrap()
    }

    fn swapped(&self) -> u64 {
        status_bytes(self.pid(), "VmSwap").unwrap_or(0)
    }

    fn is_whole(&mut self) {
        assert_eq!(self.ask("check"), "whole", "its data");
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.asks.take();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The interpreter itself: what stands on the path may be a version manager's script.
fn python() -> String {
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(asked.stdout).unwrap().trim().to_owned()
}

/// A cgroup of this test, gone when dropped.
struct Group {
    root: PathBuf,
    place: PathBuf,
    name: String,
}

impl Group {
    fn new() -> Option<Group> {
        let root = cgroup_root()?;
        let name = format!("terrace-idle-{}", std::process::id());
        let place = root.join(&name);
        std::fs::create_dir(&place).ok()?;
        Some(Group { root, place, name: format!("/{name}") })
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.place.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for pid in std::fs::read_to_string(self.place.join("cgroup.procs")).unwrap_or_default().split_whitespace() {
            let _ = std::fs::write(self.root.join("cgroup.procs"), pid);
        }
        let began = Instant::now();
        while std::fs::remove_dir(&self.place).is_err() && self.place.exists() && began.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn many_that_start_one_after_another_are_out_soon() {
    let Some(group) = Group::new() else {
        println!("SKIPPED many_that_start_one_after_another_are_out_soon: no cgroup can be made here");
        return;
    };
    let mut manager =
        Running::start(terrace().args(["attach", "--json", "--tier-slow", "zram:2GiB", "--cgroup", &group.name]));
    wait_until(PATIENCE, "it waits for members", || manager.stderr().contains("no process yet"));
    let began = Instant::now();
    let mut idle: Vec<Idle> = Vec::new();
    let out = |idle: &[Idle]| idle.iter().map(Idle::swapped).sum::<u64>();
    let all = MANY as u64 * EACH * MIB;
    let mut at_40 = 0;
    while began.elapsed() < 60 * SECOND {
        if idle.len() < MANY && began.elapsed() >= 2 * SECOND * idle.len() as u32 {
            let one = Idle::start(EACH);
            group.take(one.pid());
            idle.push(one);
        }
        if at_40 == 0 && began.elapsed() >= 40 * SECOND {
            at_40 = out(&idle);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let at_60 = out(&idle);
    println!(
        "  {MANY} interpreters of {EACH} MiB, one every 2 s: {} of {} MiB out after 40 s, {} after 60 s",
        at_40 / MIB,
        all / MIB,
        at_60 / MIB
    );
    // One of them is asked for a part of what it has: that is no reason to stop with the others.
    assert_eq!(idle[0].answer(), "ready");
    let first: f64 = idle[0].ask("part 10").parse().unwrap();
    println!("  its first answer took {first:.1} ms for a tenth of its memory");
    for one in &mut idle[1..] {
        assert_eq!(one.answer(), "ready");
    }
    idle.iter_mut().for_each(Idle::is_whole);
    manager.signal(rustix::process::Signal::INT);
    let done = manager.finish(PATIENCE);
    assert_eq!((done.code, done.signal), (0, None), "{}", done.stderr);
    assert!(!done.stderr.contains("management stopped"), "{}", done.stderr);
    let report = done.report();
    let page_outs = &report["page_outs_seconds"];
    println!(
        "  moved {} pages, came back {}, straight back {}; page-outs {page_outs}; {:.2} s of its own processor time in {:.0} s",
        number(&report, "/moved_pages/demoted"),
        number(&report, "/refaults"),
        number(&report, "/ping_pong_pages"),
        number(&report, "/manager/cpu_seconds"),
        began.elapsed().as_secs_f64(),
    );
    assert!(at_60 * 10 >= all * 6, "60 % are out after a minute: {} of {} MiB", at_60 / MIB, all / MIB);
}

/// Pages all of a process out, as Terrace would, and waits until it is.
fn page_out(idle: &Idle) {
    let process = Process::open(idle.pid()).unwrap();
    let began = Instant::now();
    // Pages that another processor has just touched are in its batch, and go the next time.
    while idle.swapped() < WOKEN * MIB * 95 / 100 {
        assert!(began.elapsed() < PATIENCE, "{} MiB are out", idle.swapped() / MIB);
        for range in process.ranges(RangeOptions::default()).unwrap() {
            let length = ((range.end.0 - range.start.0) * PAGE_BYTES) as usize;
            let range = RemoteRange { address: range.start.address() as usize, length };
            let _ = process_madvise(process.pidfd(), &[range], libc::MADV_PAGEOUT);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn one_that_wakes_is_met_half_way() {
    let (mut managed, mut alone) = (Idle::start(WOKEN), Idle::start(WOKEN));
    assert_eq!((managed.answer(), alone.answer()), ("ready".to_owned(), "ready".to_owned()));
    let pid = managed.pid().to_string();
    let mut manager = Running::start(terrace().args(["attach", "--json", "--tier-slow", "zram:2GiB", "--pid", &pid]));
    let is_out = |idle: &Idle| idle.swapped() >= WOKEN * MIB * 95 / 100;
    let (mut serial, mut ahead, mut asked) = (Vec::new(), Vec::new(), Vec::new());
    // Two turns, since what it uses stays for twice its usual sleep: each takes twice as long as the last.
    for turn in 0..2 {
        wait_until(PATIENCE * 2, "what sleeps is out", || is_out(&managed));
        let took = managed.touch();
        // What it uses is learned the first time.
        if turn > 0 {
            ahead.push(took);
        }
        page_out(&alone);
        serial.push(alone.touch());
        page_out(&alone);
        let fetched = fetch_ahead::everything(&Process::open(alone.pid()).unwrap()).unwrap();
        assert!(fetched.pages * PAGE_BYTES >= WOKEN * MIB * 95 / 100, "{fetched:?}");
        asked.push((fetched.took.as_secs_f64() * 1e3, alone.touch()));
    }
    managed.is_whole();
    alone.is_whole();
    manager.signal(rustix::process::Signal::INT);
    let done = manager.finish(PATIENCE);
    assert_eq!((done.code, done.signal), (0, None), "{}", done.stderr);
    let woken = median(asked.iter().map(|(_, touch)| *touch).collect());
    println!("  {WOKEN} MiB out, all of it touched: by serial faults {serial:.0?} ms, fetched ahead {ahead:.0?} ms");
    println!("  fetched before it is asked, and then touched (ms): {asked:.0?}");
    let (serial, ahead) = (median(serial), median(ahead));
    println!("  medians: {serial:.0} ms serial, {ahead:.0} ms ahead, {woken:.1} ms once it was fetched");
    assert!(woken <= serial / 2.0, "{woken} ms after a fetch, {serial} ms by serial faults");
}
