//! Live test of the kernel's watermarks as Terrace sets them: raised a little, and put back at a clean end and after SIGKILL. Needs root.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and why where it cannot be tried. Must not: raise the
//! mark by more than a few MiB, as it is the whole machine's, or leave it raised.
//!
//! It has its own `main`, because the guard starts the running program again, and the holder is this program too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use terrace_core::units::Bytes;
use terrace_fixtures::live;
use terrace_linux::guard::{GUARD_ARGUMENT, run_guardian};
use terrace_linux::topology::{TierKind, Topology};
use terrace_linux::watermarks::{WatermarkError, Watermarks};

const HOLDER_ARGUMENT: &str = "__holder";
const SETTING: &str = "/proc/sys/vm/min_free_kbytes";
/// By so much the high mark is raised.
const MORE: Bytes = Bytes::mib(8);

const TESTS: &[live::LiveTest] = &[
    ("a_clean_end_puts_it_back", a_clean_end_puts_it_back),
    ("a_kill_puts_it_back", a_kill_puts_it_back),
    ("an_administrators_value_survives_the_guard", an_administrators_value_survives_the_guard),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARD_ARGUMENT) => return ExitCode::from(run_guardian(std::io::stdin())),
        Some(HOLDER_ARGUMENT) => return hold(),
        _ => {}
    }
    live::run("live_watermarks", TESTS, ready)
}

fn ready() -> Result<(), String> {
    live::need_root()?;
    live::need(std::fs::File::options().write(true).open(SETTING).is_ok(), "vm.min_free_kbytes cannot be written here")
}

fn setting() -> u64 {
    std::fs::read_to_string(SETTING).unwrap().trim().parse().unwrap()
}

fn fast_nodes() -> Vec<u32> {
    match &Topology::discover(Path::new("/")).unwrap().tiers[0].kind {
        TierKind::Nodes { nodes } => nodes.clone(),
        TierKind::Swap { .. } => panic!("the first tier is no memory"),
    }
}

/// A Terrace in small: the marks raised a little, until stdin closes or it is killed.
fn hold() -> ExitCode {
    let mut marks = Watermarks::open(Path::new("/"), &fast_nodes()).unwrap();
    let wanted = marks.high() + MORE;
    marks.keep_free(wanted).unwrap();
    println!("{}", setting());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    ExitCode::SUCCESS
}

/// A holder that has raised the setting, and what it says it wrote.
fn start_holder() -> (Child, u64) {
    let mut child = Command::new("/proc/self/exe")
        .arg(HOLDER_ARGUMENT)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim().parse().unwrap())
}

fn a_clean_end_puts_it_back() {
    let before = setting();
    let (mut child, raised) = start_holder();
    assert!(raised > before && setting() == raised, "{before} was raised to {raised}");
    let second = Watermarks::open(Path::new("/"), &fast_nodes());
    assert!(matches!(second, Err(WatermarkError::InUse)), "one at a time");
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(setting(), before);
}

/// TERRACE_KILLS says how many (1 without).
fn a_kill_puts_it_back() {
    let kills: u32 = std::env::var("TERRACE_KILLS").map_or(1, |text| text.parse().unwrap());
    let mut slowest = Duration::ZERO;
    for kill in 1..=kills {
        let before = setting();
        let (mut child, raised) = start_holder();
        assert!(raised > before && setting() == raised, "{before} was raised to {raised}");
        child.kill().unwrap();
        child.wait().unwrap();
        let began = Instant::now();
        while setting() != before {
            assert!(began.elapsed() < Duration::from_secs(30), "still {} and not {before}", setting());
            std::thread::sleep(Duration::from_millis(5));
        }
        slowest = slowest.max(began.elapsed());
        println!(
            "    kill {kill:3}: {raised} KiB, {before} KiB again {:.2} s after kill -9",
            began.elapsed().as_secs_f64()
        );
    }
    println!("    {kills} kills: 0 left raised; put back after {:.2} s at most", slowest.as_secs_f64());
}

fn an_administrators_value_survives_the_guard() {
    let before = setting();
    let (mut child, raised) = start_holder();
    let administrators = raised + 4;
    std::fs::write(SETTING, administrators.to_string()).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    // The guard acts within milliseconds; it is given a hundred times that.
    std::thread::sleep(Duration::from_secs(2));
    let after = setting();
    std::fs::write(SETTING, before.to_string()).unwrap();
    assert_eq!(after, administrators, "the guard wrote over what somebody else had set");
}
