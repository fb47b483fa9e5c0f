//! Live proof that nothing is lost: Terrace is killed with SIGKILL at random moments, and ended in the middle of moves.
//!
//! In: nothing, or a part of a test's name; TERRACE_KILLS says how many kills (8 without), TERRACE_SEED their seed. Out: one
//! line a kill; each says what the program's own check of its data found. Must not: leave anything behind.
//!
//! The program checks every read and, at its end, every page against what it wrote; its exit code is 0 only if all was right.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::{
    GUARD_LIMIT, PATIENCE, Random, Running, State, read, run_live_tests, status_bytes, terrace, verified,
    wait_for_state, wait_until, workload, workload_words, zram_of,
};
use rustix::process::{Pid, Signal, test_kill_process};

const MIB: u64 = 1 << 20;
const SIZE: &str = "96MiB";
/// How long the program loops: longer than the latest kill after a page went out.
const PROGRAM_SECONDS: u32 = 6;
/// The hot set stays, so that all the rest goes out; or it moves, so that pages go out and come back all the time.
const HOT_SETS: [(&str, &[&str]); 2] = [("stays", &[]), ("moves", &["shift_seconds=1"])];
/// A slow tier of our own, whatever else the machine has, and a policy in a hurry.
const EAGER: [&str; 8] =
    ["--tier-slow", "zram:256MiB", "--set", "idle=1s", "--set", "interval=250ms", "--max-slowdown", "100%"];
/// The latest moment of a kill after Terrace's start; and how long one that is meant to hit a move waits for the first page that goes out.
const LATEST_KILL: Duration = Duration::from_millis(3800);
/// The latest moment of a kill after a page went out.
const LATEST_IN_MOVE: Duration = Duration::from_millis(1800);

fn main() -> ExitCode {
    run_live_tests(
        "live_kill",
        &[
            ("data_survive_kills_at_random_moments", data_survive_kills_at_random_moments),
            ("data_survive_an_end_in_mid_move", data_survive_an_end_in_mid_move),
        ],
    )
}

fn from_environment(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

fn data_survive_kills_at_random_moments() {
    let (kills, seed) = (from_environment("TERRACE_KILLS", 8), from_environment("TERRACE_SEED", 1));
    // Moments are random, and the same for the same seed.
    let mut random = Random::new(seed);
    println!("    {kills} kills, seed {seed}, program: {SIZE} for {PROGRAM_SECONDS} s");
    let (mut with_memory_out, mut slowest) = (0, Duration::ZERO);
    for kill in 1..=kills {
        // Half of the kills hit any moment, set-up too. A slow machine is still setting up at most of those, so the other half wait for a move.
        let (latest, in_move) = if kill % 4 < 2 { (LATEST_IN_MOVE, true) } else { (LATEST_KILL, false) };
        let moment = Moment { after: Duration::from_micros(random.below(latest.as_micros() as u64)), in_move };
        let fast = if random.below(2) == 0 { "min" } else { "30%" };
        // Slow moves last longer than the run, so that those kills hit the middle of a move; fast ones hit refaults.
        let rate = if random.below(2) == 0 { "16MiB" } else { "256MiB" };
        let (hot_set, settings) = HOT_SETS[random.below(2) as usize];
        let mut options = EAGER.to_vec();
        options.extend(["--fast", fast, "--rate", rate]);
        let case = Case { options, seed: kill, settings, moment };
        let outcome = if kill % 2 == 0 { kill_attached(&case) } else { kill_parent(&case) };
        with_memory_out += u64::from(outcome.out_bytes > 0);
        slowest = slowest.max(outcome.gone_after);
        println!(
            "    kill {kill:2}: {} --fast {fast:3} --rate {rate:6}, hot set {hot_set}, {:.3} s after {} with {:5.1} MiB out; zram {} gone after {:.2} s; \
             program's exit code 0, data verified, checksum {}; swap, zram, DAMON, sysctls as before",
            if kill % 2 == 0 { "attach" } else { "run   " },
            moment.after.as_secs_f64(),
            if in_move { "the first page-out" } else { "the start" },
            outcome.out_bytes as f64 / MIB as f64,
            outcome.device.as_deref().unwrap_or("not yet set up,"),
            outcome.gone_after.as_secs_f64(),
            outcome.checksum,
        );
    }
    println!(
        "    {kills} kills: data right {kills} times; {with_memory_out} with memory out; zram gone after {:.2} s at most",
        slowest.as_secs_f64()
    );
    assert!(
        with_memory_out * 4 >= kills,
        "too few kills hit a run with memory out to prove anything: {with_memory_out}"
    );
}

struct Case {
    options: Vec<&'static str>,
    seed: u64,
    /// Of the program.
    settings: &'static [&'static str],
    moment: Moment,
}

/// When Terrace is killed.
#[derive(Clone, Copy)]
struct Moment {
    after: Duration,
    /// Counted from the first page that is out, not from Terrace's start.
    in_move: bool,
}

impl Moment {
    fn wait(self, out_bytes: impl Fn() -> u64) {
        let began = Instant::now();
        while self.in_move && out_bytes() == 0 && began.elapsed() < LATEST_KILL {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(self.after);
    }
}

struct Outcome {
    out_bytes: u64,
    device: Option<String>,
    gone_after: Duration,
    checksum: String,
}

/// Terrace watches a program that someone else started.
fn kill_attached(case: &Case) -> Outcome {
    let before = State::read();
    let mut program = workload(SIZE, PROGRAM_SECONDS, case.seed, case.settings);
    let pid = program.pid();
    let manager = Running::start(terrace().args(["attach", "--pid", &pid.to_string()]).args(&case.options));
    let out = || status_bytes(pid, "VmSwap").unwrap_or(0);
    case.moment.wait(out);
    let (out_bytes, device, gone_after) = kill_and_wait(manager, out);
    let ended = program.finish(PATIENCE);
    assert_eq!((ended.code, ended.signal), (0, None), "{}{}", ended.stdout, ended.stderr);
    let checksum = verified(&ended.stdout).unwrap_or_else(|| panic!("not verified: {}", ended.stdout));
    assert_eq!(wait_for_state(&before, GUARD_LIMIT), Vec::<String>::new());
    Outcome { out_bytes, device, gone_after, checksum }
}

/// Terrace is the program's parent, and dies before it.
fn kill_parent(case: &Case) -> Outcome {
    let before = State::read();
    let place = tempfile::tempdir().unwrap();
    let file = |name: &str| place.path().join(name);
    let words = workload_words(SIZE, PROGRAM_SECONDS, case.seed, case.settings);
    // The exit code appears whole or not at all, so that a reader never sees half of it.
    let script = format!(
        "cd '{}' && {{ {words} >output 2>errors & echo $! >pid.new && mv pid.new pid; wait $!; echo $? >code.new; mv code.new code; }}",
        place.path().display()
    );
    let manager = Running::start(terrace().arg("run").args(&case.options).args(["--", "sh", "-c", &script]));
    let pid = || read(&file("pid")).trim().parse::<u32>().ok();
    let out = || pid().and_then(|pid| status_bytes(pid, "VmSwap")).unwrap_or(0);
    case.moment.wait(out);
    let (out_bytes, device, gone_after) = kill_and_wait(manager, out);
    // A kill during set-up comes before the program's start: then there is no program to lose.
    wait_until(PATIENCE, "the shell has started the program, or there is no shell", || {
        pid().is_some() || !is_mentioned(place.path())
    });
    if pid().is_none() {
        assert_eq!(wait_for_state(&before, GUARD_LIMIT), Vec::<String>::new());
        return Outcome { out_bytes, device, gone_after, checksum: "none (not started yet)".to_owned() };
    }
    wait_until(PATIENCE, "the orphaned program ends", || file("code").exists());
    assert_eq!(read(&file("code")).trim(), "0", "{}", read(&file("errors")));
    let output = read(&file("output"));
    let checksum = verified(&output).unwrap_or_else(|| panic!("not verified: {output}"));
    assert_eq!(wait_for_state(&before, GUARD_LIMIT), Vec::<String>::new());
    Outcome { out_bytes, device, gone_after, checksum }
}

/// Whether a process has this path in its command line.
fn is_mentioned(path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline")).is_ok_and(|text| text.windows(path.len()).any(|part| part == path))
    })
}

/// Kills Terrace. Returns how much was out just before, its zram device, and how long after the kill that was gone.
fn kill_and_wait(mut manager: Running, out_bytes: impl Fn() -> u64) -> (u64, Option<String>, Duration) {
    assert!(manager.is_running(), "it should run until it is killed: {}", manager.stderr());
    let device = zram_of(manager.pid());
    let out_bytes = out_bytes();
    manager.signal(Signal::KILL);
    let killed = Instant::now();
    let ended = manager.finish(PATIENCE);
    assert_eq!(ended.signal, Some(9), "{}", ended.stderr);
    if let Some(device) = &device {
        // The label still names its owner, so that a device of the same number set up by someone else is none of ours.
        wait_until(GUARD_LIMIT, &format!("{device} is gone"), || zram_of(manager.pid()).is_none());
    }
    (out_bytes, device, killed.elapsed())
}

fn data_survive_an_end_in_mid_move() {
    for (number, signal) in [Signal::TERM, Signal::INT, Signal::HUP, Signal::TERM].into_iter().enumerate() {
        let mut program = workload(SIZE, 40, number as u64, &[]);
        let pid = program.pid();
        // 72 MiB are cold; at this rate they take nine seconds.
        let options = [EAGER.as_slice(), &["--rate", "8MiB"]].concat();
        let mut manager = Running::start(terrace().args(["attach", "--json", "--pid", &pid.to_string()]).args(options));
        let out = || status_bytes(pid, "VmSwap").unwrap_or(0);
        wait_until(PATIENCE, "a part is out", || out() > (5 + 5 * number as u64) * MIB);
        let out_bytes = out();
        manager.signal(signal);
        let began = Instant::now();
        let ended = manager.finish(PATIENCE);
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.report()["fast_bytes_saved_peak"].as_u64().unwrap() < 70 * MIB, "it was in the middle");
        println!(
            "    {signal:?} with {:.1} MiB out: Terrace ended after {:.2} s, exit code 0",
            out_bytes as f64 / MIB as f64,
            began.elapsed().as_secs_f64()
        );
        assert!(test_kill_process(Pid::from_raw(pid as i32).unwrap()).is_ok(), "the program lives");
        assert_eq!(zram_of(manager.pid()), None, "taken away before it ended");
        program.end_early();
        let ended = program.finish(PATIENCE);
        assert_eq!(ended.code, 0, "{}{}", ended.stdout, ended.stderr);
        assert!(verified(&ended.stdout).is_some(), "{}", ended.stdout);
    }
}
