//! A long run of the daemon under a storm, in which nothing of its own may grow and no byte of a program may be wrong.
//!
//! In: TERRACE_SOAK_SECONDS for how long (30; 0 for not at all), TERRACE_SOAK_OUTPUT for a file that takes the samples as CSV,
//! TERRACE_SEED. Out: lines on what was seen. Must not: leave anything behind, or judge by the time anything took.
//!
//! The storm: processes that live for a moment, others that execute another program, move into cgroups and out, are killed with
//! SIGKILL, or have 20,000 mappings; the slow tier switched off and on; reloads, some of which must be refused; a status and a scrape each second.
//! Programs that check all they wrote run all the time.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::daemon::{AT_ANY_PRICE, Daemon, EAGER, MIB, cgroup_root, named};
use common::{PATIENCE, Random, Running, read, run_live_tests, status_bytes, verified, wait_until, zram_of};
use rustix::process::Signal;
use serde_json::Value;
use terrace_daemon::protocol::Verb;

/// What a third of the run may be above the first third, in the middle of its samples. The daemon keeps 2,000 events, 900 points of its
/// timeline and 2 MiB a GiB managed; until those are full its memory grows, in runs of up to half an hour by this much. It has a
/// descriptor for each process it manages and one for each cgroup it watches; their number varies with the storm.
const MEMORY_TOLERANCE_KIB: u64 = 8 << 10;
/// In runs of less than five minutes the first third is the daemon's own start: buffers fill, the first programs' pages are entered.
const STARTING_KIB: u64 = 24 << 10;
const DESCRIPTOR_TOLERANCE: u64 = 16;
const THREAD_TOLERANCE: u64 = 1;

static TRIED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    run_live_tests(
        "live_soak",
        &[
            ("growth_is_told_from_a_storm", growth_is_told_from_a_storm),
            (
                "a_storm_leaves_the_daemon_as_it_was_and_programs_right",
                a_storm_leaves_the_daemon_as_it_was_and_programs_right,
            ),
        ],
    )
}

/// What the daemon itself takes, at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    seconds: f64,
    rss_kib: u64,
    descriptors: u64,
    threads: u64,
    cpu_seconds: f64,
    page_state_kib: u64,
    processes: u64,
}

impl Sample {
    const HEADER: &str = "seconds,rss_kib,descriptors,threads,cpu_seconds,page_state_kib,processes";

    fn take(daemon: &Daemon, status: &Value, began: Instant) -> Sample {
        let entries = |part: &str| std::fs::read_dir(format!("/proc/{}/{part}", daemon.pid())).unwrap().count() as u64;
        let stat = read(Path::new(&format!("/proc/{}/stat", daemon.pid())));
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        let classes = status["classes"].as_array().unwrap();
        Sample {
            seconds: began.elapsed().as_secs_f64(),
            rss_kib: status_bytes(daemon.pid(), "VmRSS").unwrap() >> 10,
            descriptors: entries("fd"),
            threads: entries("task"),
            cpu_seconds: ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            page_state_kib: status["own"]["page_state_bytes"].as_u64().unwrap() >> 10,
            processes: classes.iter().map(|class| class["processes"].as_u64().unwrap()).sum(),
        }
    }

    fn row(&self) -> String {
        format!(
            "{:.1},{},{},{},{:.2},{},{}",
            self.seconds,
            self.rss_kib,
            self.descriptors,
            self.threads,
            self.cpu_seconds,
            self.page_state_kib,
            self.processes
        )
    }
}

/// The middle value of the first and of the last third of the run.
fn thirds(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> (u64, u64) {
    let middle = |part: &[Sample]| {
        let mut values: Vec<u64> = part.iter().map(&of).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    let third = samples.len() / 3;
    (middle(&samples[..third]), middle(&samples[samples.len() - third..]))
}

/// What has grown by more than the tolerance.
fn growth(samples: &[Sample]) -> Vec<String> {
    let grown = |what: &str, of: fn(&Sample) -> u64, tolerance: u64| {
        let (first, last) = thirds(samples, of);
        println!("    {what}: {first} in the first third, {last} in the last, {tolerance} more are tolerated");
        (last > first + tolerance).then(|| format!("{what} grew from {first} to {last}"))
    };
    let short = samples.last().is_some_and(|last| last.seconds < 270.0);
    let memory = if short { STARTING_KIB } else { MEMORY_TOLERANCE_KIB };
    let all = [
        grown("KiB resident", |sample| sample.rss_kib, memory),
        grown("descriptors", |sample| sample.descriptors, DESCRIPTOR_TOLERANCE),
        grown("threads", |sample| sample.threads, THREAD_TOLERANCE),
    ];
    all.into_iter().flatten().collect()
}

fn growth_is_told_from_a_storm() {
    let course = |rss: fn(u64) -> u64, descriptors: fn(u64) -> u64, threads: fn(u64) -> u64| {
        let sample = |at: u64| Sample {
            seconds: at as f64 * 10.0,
            rss_kib: rss(at),
            descriptors: descriptors(at),
            threads: threads(at),
            ..Sample::default()
        };
        growth(&(0..90).map(sample).collect::<Vec<_>>())
    };
    let (calm, up_and_down) = (|_| 30, |at| 20_000 + at % 10 * 4_000);
    assert_eq!(course(up_and_down, |at| 40 + at % 7 * 9, |at| 3 + at % 2), Vec::<String>::new());
    assert!(course(|at| 20_000 + at * 200, calm, calm)[0].contains("resident"));
    assert!(course(up_and_down, |at| 30 + at / 2, calm)[0].contains("descriptors"));
    assert!(course(up_and_down, calm, |at| 3 + at / 20)[0].contains("threads"));
}

/// Writes its memory, then reads half of it every second or two and writes that again, and reads all of it at its end: `right`.
const HOLD: &str = r"
import hashlib, mmap, sys, time
seconds, seed, size = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) << 20
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def content(at, version):
    return hashlib.blake2b(b'%d %d %d' % (seed, at, version)).digest() * 64
versions = [0] * (size // 4096)
for at in range(0, size, 4096):
    memory[at:at + 4096] = content(at, 0)
end, turn = time.monotonic() + seconds, 0
while time.monotonic() < end:
    time.sleep(1.5)
    turn += 1
    for at in range(turn % 4 * 4096, size // 2, 4 * 4096):
        if memory[at:at + 4096] != content(at, versions[at // 4096]):
            sys.exit(f'page {at // 4096} is wrong')
        versions[at // 4096] += 1
        memory[at:at + 4096] = content(at, versions[at // 4096])
for at in range(0, size, 4096):
    if memory[at:at + 4096] != content(at, versions[at // 4096]):
        sys.exit(f'page {at // 4096} is wrong at the end')
print('right', turn)
";

/// Mappings of two kinds side by side cannot be merged: 20,000 of them.
const MANY: &str = r"
import mmap, time
held = [mmap.mmap(-1, 8192, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
        (mmap.PROT_READ | mmap.PROT_WRITE) if i % 2 else mmap.PROT_READ) for i in range(20000)]
for m in held[1::2]:
    m[0] = 1
time.sleep(25)
";

/// A program that must end with all its data right.
struct Checked {
    running: Running,
    what: String,
}

impl Checked {
    /// Whether it is over, and all was right.
    fn is_over(&mut self) -> bool {
        if self.running.is_running() {
            return false;
        }
        let ended = self.running.finish(PATIENCE);
        assert_eq!(ended.code, 0, "{}: {}{}", self.what, ended.stdout, ended.stderr);
        let right = verified(&ended.stdout).is_some() || ended.stdout.starts_with("right ");
        assert!(right, "{}: {}", self.what, ended.stdout);
        true
    }
}

/// What happened to the daemon and its programs.
#[derive(Debug, Default)]
struct Counts {
    short: u64,
    executed: u64,
    killed: u64,
    checked: u64,
    mapped: u64,
    grouped: u64,
    reloads: u64,
    refused: u64,
    switches: u64,
    scrapes: u64,
}

/// The slow tier that the daemon set up.
struct Tier {
    device: String,
    priority: String,
    /// What is waited for since when: that the daemon has noticed that it is off, or on; `None` while it has.
    pending: Option<(bool, Instant)>,
}

impl Tier {
    fn of(daemon: &Daemon) -> Tier {
        let device = format!("/dev/{}", zram_of(daemon.pid()).unwrap());
        let swaps = read(Path::new("/proc/swaps"));
        let line = swaps.lines().find(|line| line.starts_with(&device)).unwrap();
        Tier { priority: line.split_ascii_whitespace().nth(4).unwrap().to_owned(), device, pending: None }
    }

    fn switch(&mut self, on: bool) {
        let mut command = Command::new(if on { "swapon" } else { "swapoff" });
        if on && !self.priority.starts_with('-') {
            command.args(["-p", &self.priority]);
        }
        let output = command.arg(&self.device).output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        self.pending = Some((on, Instant::now()));
    }

    /// Looks what the daemon knows of it; true once it has been off and is known to be on again.
    fn follow(&mut self, status: &Value) -> bool {
        let Some((on, since)) = self.pending else { return false };
        let tier = &status["tiers"][1];
        if (tier["capacity_bytes"].as_u64().unwrap() > 0) != on {
            assert!(
                since.elapsed() < PATIENCE,
                "not noticed that {} is {}",
                self.device,
                if on { "on" } else { "off" }
            );
            return false;
        }
        self.pending = None;
        if !on {
            self.switch(true);
        }
        on
    }
}

/// The programs of the storm, under names of this run's own: other people's processes are not ours to manage.
struct Programs {
    place: tempfile::TempDir,
    spinning: PathBuf,
    random: Random,
}

impl Programs {
    const NAMES: [(&str, &str); 5] =
        [("quick", "true"), ("short", "sleep"), ("shell", "sh"), ("many", "python3"), ("hold", "python3")];

    fn new(seed: u64) -> Programs {
        let place = tempfile::tempdir().unwrap();
        // Not by PATH, where a version manager's script may stand for the interpreter.
        let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
        let python = String::from_utf8(asked.stdout).unwrap();
        for (name, program) in Programs::NAMES {
            let target = if program == "python3" { python.trim().to_owned() } else { format!("/bin/{program}") };
            std::os::unix::fs::symlink(target, place.path().join(Programs::name(name))).unwrap();
        }
        Programs { place, spinning: named("soak-spin"), random: Random::new(seed) }
    }

    fn name(of: &str) -> String {
        format!("{of}-{}", std::process::id())
    }

    fn path(&self, of: &str) -> PathBuf {
        self.place.path().join(Programs::name(of))
    }

    fn classes(&self, group: &str) -> String {
        let any = |names: &[&str]| {
            let all: Vec<String> =
                names.iter().map(|name| format!("{{ name = {:?} }}", Programs::name(name))).collect();
            all.join(", ")
        };
        // The sleepers would hardly be watched by the usual budget.
        let watched = format!("max_overhead = \"50%\"\n{AT_ANY_PRICE}");
        let group = format!("[class.group]\nmatch = [{{ cgroup = \"/{group}\" }}]\n{EAGER}{watched}");
        format!(
            "{group}[class.hold]\nmatch = [{}, {{ exe = \"{}\" }}]\n{EAGER}{watched}[class.storm]\nmatch = [{}]\n{EAGER}{watched}",
            any(&["hold"]),
            self.spinning.display(),
            any(&["quick", "short", "shell", "many"])
        )
    }

    fn hold(&mut self, seconds: u64, mebibytes: u64) -> Command {
        let mut command = Command::new(self.path("hold"));
        let seed = self.random.below(1 << 32);
        command.args(["-c", HOLD, &seconds.to_string(), &seed.to_string(), &mebibytes.to_string()]);
        command.stdin(Stdio::null());
        command
    }

    fn checked(&mut self, slot: usize, counts: &mut Counts) -> Checked {
        let seconds = 8 + self.random.below(25);
        let mut command = match slot {
            // Every read is checked, as fast as a processor goes; others may need it more.
            0 => {
                let mut command = Command::new("nice");
                command.args(["-n", "10"]).arg(&self.spinning).args(["workload", "hot-cold", "--size", "48MiB"]);
                command.args(["--duration", &format!("{seconds}s"), "--seed", &self.random.below(1 << 32).to_string()]);
                command.args(["--set", "shift_seconds=3"]).env_remove("TERRACE_LOG").stdin(Stdio::null());
                command
            }
            // Executed by a program of another class.
            1 => {
                counts.executed += 1;
                let held = self.hold(seconds, 32);
                let mut command = Command::new(self.path("shell"));
                command.args(["-c", "sleep 0.4; exec \"$0\" \"$@\""]).arg(held.get_program()).args(held.get_args());
                command.stdin(Stdio::null());
                command
            }
            _ => self.hold(seconds, 32),
        };
        Checked { what: format!("{command:?}"), running: Running::start(&mut command) }
    }
}

/// A cgroup that programs are moved into.
struct Group {
    root: PathBuf,
    path: PathBuf,
}

impl Group {
    fn put(&self, program: &mut Running, inside: bool) {
        if inside {
            std::fs::create_dir(&self.path).unwrap();
        }
        let into = if inside { &self.path } else { &self.root };
        // What ended meanwhile cannot be moved; whether it ended well is judged elsewhere.
        let moved = std::fs::write(into.join("cgroup.procs"), program.pid().to_string());
        assert!(moved.is_ok() || !program.is_running(), "{moved:?}");
        if !inside {
            self.remove();
        }
    }

    fn remove(&self) {
        if self.path.exists() {
            // A process that just ended is in it for a moment longer.
            wait_until(PATIENCE, "the group is empty", || std::fs::remove_dir(&self.path).is_ok());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

fn a_storm_leaves_the_daemon_as_it_was_and_programs_right() {
    let number = |name: &str, otherwise: u64| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (seconds, seed) = (number("TERRACE_SOAK_SECONDS", 30), number("TERRACE_SEED", 1));
    if seconds == 0 {
        println!("SKIPPED live_soak: TERRACE_SOAK_SECONDS=0; make check-all soaks for longer");
        return;
    }
    // A leak that is seen every other time is one.
    assert!(!TRIED.swap(true, Ordering::Relaxed), "a soak that failed is not tried again");
    assert!(seconds >= 30, "TERRACE_SOAK_SECONDS={seconds}: at least 30, so that everything has its turn");
    let output = std::env::var("TERRACE_SOAK_OUTPUT").ok().filter(|path| !path.is_empty());
    let mut output = output.map(|path| File::create(&path).unwrap_or_else(|error| panic!("{path}: {error}")));
    let group_name = format!("terrace-soak-{}", std::process::id());
    let mut programs = Programs::new(seed);
    let group = cgroup_root().map(|root| Group { path: root.join(&group_name), root });
    if group.is_none() {
        println!("    no cgroup can be made here: nothing is moved into one");
    }
    let place = tempfile::tempdir().unwrap();
    std::fs::create_dir(place.path().join("conf.d")).unwrap();
    let daemon = Daemon::spawn_in(place, &programs.classes(&group_name), "512MiB", "500ms", |_| {});
    daemon.wait_until_it_answers();
    let drop_in = daemon.place.path().join("conf.d/50.toml");
    let mut tier = Tier::of(&daemon);
    let mut counts = Counts::default();
    let mut checked: Vec<Checked> = (0..4).map(|slot| programs.checked(slot, &mut counts)).collect();
    let (mut children, mut victims): (Vec<Child>, Vec<(Child, Instant)>) = (Vec::new(), Vec::new());
    let mut samples: Vec<Sample> = Vec::new();
    if let Some(file) = &mut output {
        writeln!(file, "{}", Sample::HEADER).unwrap();
    }
    let (began, length) = (Instant::now(), Duration::from_secs(seconds));
    // In a short run everything has its turn a few times as well.
    let every = Duration::from_secs((seconds / 5).clamp(5, 60));
    let sample_every = Duration::from_secs((seconds / 720).clamp(1, 10));
    let (mut second, mut next_sample, mut next_switch) = (0, Duration::ZERO, every / 2);
    while began.elapsed() < length {
        // Many that live for a moment, one that lives long enough to be looked at, and those that are killed.
        for _ in 0..15 {
            children.push(Command::new(programs.path("quick")).stdin(Stdio::null()).spawn().unwrap());
        }
        for _ in 0..3 {
            children.push(Command::new(programs.path("short")).arg("0.4").stdin(Stdio::null()).spawn().unwrap());
        }
        counts.short += 18;
        if victims.len() < 3 {
            let victim = programs.hold(600, 24).stdout(Stdio::null()).spawn().unwrap();
            let life = Duration::from_millis(500 + programs.random.below(6000));
            victims.push((victim, Instant::now() + life));
        }
        victims.retain_mut(|(victim, end)| {
            let alive = Instant::now() < *end;
            if !alive {
                victim.kill().unwrap();
                victim.wait().unwrap();
                counts.killed += 1;
            }
            alive
        });
        if second % every.as_secs() == 1 {
            let mut many = Command::new(programs.path("many"));
            children.push(many.args(["-c", MANY]).stdin(Stdio::null()).spawn().unwrap());
            counts.mapped += 1;
        }
        for (slot, program) in checked.iter_mut().enumerate() {
            if program.is_over() {
                *program = programs.checked(slot, &mut counts);
                counts.checked += 1;
            }
        }
        if let Some(group) = &group
            && second % 10 == 3
        {
            group.put(&mut checked[2].running, !group.path.exists());
            counts.grouped += 1;
        }
        // Three that are right, by both ways, then one that is not.
        if second % 5 == 2 {
            let turn = second / 5;
            let fast = ["2GiB", "96MiB", "1GiB", "much"][turn as usize % 4];
            std::fs::write(&drop_in, format!("[budget]\nfast = \"{fast}\"\n")).unwrap();
            if fast == "1GiB" {
                daemon.signal(Signal::HUP);
                counts.reloads += 1;
            } else {
                let taken = daemon.try_ask(Verb::Reload {}).is_some();
                assert_eq!(taken, fast != "much", "{fast}: {}", daemon.log());
                *(if taken { &mut counts.reloads } else { &mut counts.refused }) += 1;
            }
        }
        let status = daemon.ask(Verb::Status {});
        assert!(daemon.get("/metrics").contains("terrace_class_processes{class=\"storm\"}"));
        counts.scrapes += 1;
        for class in status["classes"].as_array().unwrap() {
            assert_ne!(class["state"], "failed", "a process's end is no fault of a tracker: {class:#}");
        }
        counts.switches += u64::from(tier.follow(&status));
        if began.elapsed() >= next_switch && tier.pending.is_none() {
            tier.switch(false);
            next_switch = began.elapsed() + every;
        }
        if began.elapsed() >= next_sample {
            next_sample += sample_every;
            let sample = Sample::take(&daemon, &status, began);
            if let Some(file) = &mut output {
                writeln!(file, "{}", sample.row()).unwrap();
            }
            samples.push(sample);
        }
        children.retain_mut(|child| {
            child.try_wait().unwrap().is_none_or(|status| {
                assert!(status.success(), "{status}");
                false
            })
        });
        second += 1;
        std::thread::sleep((Duration::from_secs(1) * second as u32).saturating_sub(began.elapsed()));
    }
    wait_until(PATIENCE, "the slow tier is on", || {
        std::thread::sleep(Duration::from_millis(200));
        counts.switches += u64::from(tier.follow(&daemon.ask(Verb::Status {})));
        tier.pending.is_none()
    });
    for (mut victim, _) in victims {
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    for mut program in checked {
        wait_until(PATIENCE * 2, "the last programs end", || program.is_over());
        counts.checked += 1;
    }
    if let Some(group) = &group {
        group.remove();
    }
    children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    wait_until(PATIENCE, "all are let go", || {
        std::thread::sleep(Duration::from_millis(200));
        daemon.ask(Verb::Status {})["classes"].as_array().unwrap().iter().all(|class| class["processes"] == 0)
    });
    let last = samples.last().unwrap();
    println!("    {counts:?}");
    println!(
        "    {} samples in {:.0} s; {:.1} s of a processor, {:.2} % of one; {} MiB resident at last",
        samples.len(),
        last.seconds,
        last.cpu_seconds,
        last.cpu_seconds / last.seconds * 100.0,
        (last.rss_kib << 10) / MIB
    );
    let Counts { killed, checked, mapped, reloads, refused, switches, executed, .. } = counts;
    for (what, count) in [("kills", killed), ("checked programs", checked), ("mappings", mapped), ("reloads", reloads)]
        .into_iter()
        .chain([
            ("refused reloads", refused),
            ("times that the slow tier was off and on", switches),
            ("programs executed by others", executed),
        ])
    {
        assert!(count > 0, "no {what}");
    }
    assert_eq!(growth(&samples), Vec::<String>::new());
    daemon.end();
}
