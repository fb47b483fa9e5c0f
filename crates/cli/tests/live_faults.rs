//! What the daemon must survive on this kernel: storms, floods, tiers and cgroups that go, clocks that jump, kills.
//!
//! In: nothing, or a part of a test's name; TERRACE_KILLS says how many kills (6 without), TERRACE_SEED their seed. Out: lines on what
//! was seen. Must not: leave anything behind, or judge by the time anything took.
//!
//! The programs check every read and, at their end, every page against what they wrote; an exit code of 0 says all was right.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use common::daemon::{AT_ANY_PRICE, Daemon, EAGER, MIB, cgroup_root, class, ends_well, named, terraced, workload};
use common::{PATIENCE, Running, read, run_live_tests, status_bytes, wait_until, zram_of};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use terrace_daemon::protocol::Verb;

fn main() -> ExitCode {
    run_live_tests(
        "live_faults",
        &[
            ("a_fork_storm_and_ten_thousand_mappings", a_fork_storm_and_ten_thousand_mappings),
            ("two_hundred_processes_of_two_thousand_mappings", two_hundred_processes_of_two_thousand_mappings),
            ("a_full_slow_tier_stops_nothing", a_full_slow_tier_stops_nothing),
            ("a_hostile_socket_disturbs_nobody", a_hostile_socket_disturbs_nobody),
            ("cgroups_come_go_and_are_moved_into", cgroups_come_go_and_are_moved_into),
            ("the_wall_clock_may_jump", the_wall_clock_may_jump),
            ("a_slow_tier_that_is_switched_off_stops_nothing", a_slow_tier_that_is_switched_off_stops_nothing),
            ("a_rival_that_comes_later_is_reported", a_rival_that_comes_later_is_reported),
            ("a_kvm_guest_is_seen_by_what_sees_it_or_refused", a_kvm_guest_is_seen_by_what_sees_it_or_refused),
            (
                "a_cgroup_killed_whole_leaves_no_swap_to_the_next_daemon",
                a_cgroup_killed_whole_leaves_no_swap_to_the_next_daemon,
            ),
            (
                "a_container_killed_whole_leaves_no_swap_to_the_host",
                a_container_killed_whole_leaves_no_swap_to_the_host,
            ),
            ("data_survive_kills_of_the_daemon", data_survive_kills_of_the_daemon),
        ],
    )
}

fn a_fork_storm_and_ten_thousand_mappings() {
    // Everything with these names belongs to the class, so that every one of the storm that lives long enough is looked at. The
    // names are this test's own: other people's processes are not ours to manage.
    let place = tempfile::tempdir().unwrap();
    let ours = |name: &str, program: &str| {
        let link = place.path().join(format!("{name}-{}", std::process::id()));
        std::os::unix::fs::symlink(program, &link).unwrap();
        link
    };
    // Not by PATH, where a version manager's script may stand for the interpreter.
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let (quick, python) = (ours("quick", "/bin/true"), ours("many", String::from_utf8(asked.stdout).unwrap().trim()));
    let names = [&quick, &python].map(|link| format!("{{ name = {:?} }}", link.file_name().unwrap()));
    let daemon = Daemon::start(&format!("[class.all]\nmatch = [{}]\n", names.join(", ")));
    let before = status_bytes(daemon.pid(), "VmRSS").unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        let children: Vec<Child> = (0..10).map(|_| Command::new(&quick).spawn().unwrap()).collect();
        children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
    }
    println!("    1,000 processes in {:.1} s", began.elapsed().as_secs_f64());
    wait_until(PATIENCE, "all of them are forgotten", || daemon.figure("all", "processes") == 0);
    // Mappings of two kinds side by side cannot be merged: 10,000 of them. It works a fifth of the time, since what sleeps is not read again.
    let program = "import mmap,sys,time\n\
                   held=[mmap.mmap(-1,8192,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS,\n\
                   \x20 (mmap.PROT_READ|mmap.PROT_WRITE) if i%2 else mmap.PROT_READ) for i in range(10000)]\n\
                   [m.__setitem__(0,1) for m in held[1::2]]\nprint('ready',flush=True)\n\
                   for again in range(6000):\n\
                   \x20 began=time.process_time()\n\
                   \x20 while time.process_time()<began+0.02: held[1][0]=1\n\
                   \x20 time.sleep(0.1)\n";
    let mut many = Command::new(&python).args(["-c", program]).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 5];
    many.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let mappings = std::fs::read_to_string(format!("/proc/{}/maps", many.id())).unwrap().lines().count();
    wait_until(PATIENCE, "they are walked", || daemon.figure("all", "footprint_bytes") > 20 * MIB);
    let walks = daemon.figure("all", "rounds");
    wait_until(PATIENCE, "and walked again", || daemon.figure("all", "rounds") > walks + 2);
    let after = status_bytes(daemon.pid(), "VmRSS").unwrap();
    println!("    {mappings} mappings; the daemon's memory went from {} to {} MiB", before / MIB, after / MIB);
    assert!(mappings > 10_000, "{mappings}");
    assert!(after < before + 64 * MIB, "no unbounded growth: {before} to {after}");
    many.kill().unwrap();
    many.wait().unwrap();
    wait_until(PATIENCE, "they are let go", || daemon.figure("all", "processes") == 0);
    daemon.end();
}

/// Makes 2,000 mappings that cannot be merged, and 200 children that have them too and write a page of every second one.
const FAMILY: &str = "import mmap,os,sys,time\n\
                      held=[mmap.mmap(-1,8192,mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS,\n\
                      \x20 (mmap.PROT_READ|mmap.PROT_WRITE) if i%2 else mmap.PROT_READ) for i in range(2000)]\n\
                      for child in range(200):\n\
                      \x20 if os.fork()==0:\n\
                      \x20  [m.__setitem__(0,1) for m in held[1::2]]\n\
                      \x20  sys.stdin.read()\n\
                      \x20  assert all(m[0]==1 for m in held[1::2])\n\
                      \x20  os._exit(0)\n\
                      print('ready',flush=True)\n\
                      sys.exit(sum(os.waitstatus_to_exitcode(os.wait()[1]) for child in range(200)))\n";

fn two_hundred_processes_of_two_thousand_mappings() {
    let place = tempfile::tempdir().unwrap();
    let asked = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    let python = place.path().join(format!("family-{}", std::process::id()));
    std::os::unix::fs::symlink(String::from_utf8(asked.stdout).unwrap().trim(), &python).unwrap();
    let daemon =
        // They sleep: by the usual budget for watching they would hardly be watched, and this is about many mappings.
        Daemon::start(&format!(
            "[class.family]\nmatch = [{{ name = {:?} }}]\nmax_overhead = \"50%\"\n{AT_ANY_PRICE}{EAGER}",
            python.file_name().unwrap()
        ));
    let before = status_bytes(daemon.pid(), "VmRSS").unwrap();
    let mut family =
        Command::new(&python).args(["-c", FAMILY]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 5];
    family.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    wait_until(Duration::from_secs(120), "all are managed", || daemon.figure("family", "processes") == 201);
    // They sleep: each is read once, and then leaves.
    wait_until(Duration::from_secs(120), "what they left alone goes out", || {
        daemon.figure("family", "slow_bytes") > 200 * MIB
    });
    let (class, after) = (daemon.class("family"), status_bytes(daemon.pid(), "VmRSS").unwrap());
    println!(
        "    {} walks of {:.2} s each; the daemon's memory went from {} to {} MiB",
        class["rounds"],
        class["round_seconds"].as_f64().unwrap() / class["rounds"].as_f64().unwrap(),
        before / MIB,
        after / MIB
    );
    assert!(after < before + 64 * MIB, "no unbounded growth: {before} to {after}");
    // They look at every page they wrote, and end.
    drop(family.stdin.take());
    assert!(family.wait().unwrap().success(), "every page is right");
    wait_until(PATIENCE, "they are let go", || daemon.figure("family", "processes") == 0);
    daemon.end();
}

fn a_full_slow_tier_stops_nothing() {
    // Much smaller than what is cold.
    let daemon = Daemon::with_slow(&class("all", "full", ""), "16MiB");
    let program = beside_a_full_tier(&daemon);
    std::thread::sleep(Duration::from_secs(3));
    let class = daemon.class("all");
    println!(
        "    slow {} MiB; failed {}, rejected {}",
        class["slow_bytes"].as_u64().unwrap() / MIB,
        class["failed_pages"],
        class["rejected_pages"]
    );
    assert!(class["slow_bytes"].as_u64().unwrap() <= 16 * MIB);
    assert_eq!(class["state"], "running");
    ends_well(program, "full");
    daemon.end();
}

/// A program that still works when the slow tier is full. Where processors are short the tier takes longer to fill than a program of 20 s
/// lives: with two busy loops a processor 22 s were seen. At its end a program touches all it has, so nothing is cold any more.
fn beside_a_full_tier(daemon: &Daemon) -> Running {
    for seconds in [20, 60, 180] {
        let program = workload("full", "96MiB", seconds, &[]);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(seconds.into()) {
            if daemon.figure("all", "slow_bytes") > 14 * MIB {
                return program;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        println!("    the slow tier was not full within the {seconds} s of a program");
        ends_well(program, "full");
    }
    panic!("the slow tier was full beside no program of 20, 60 and 180 s");
}

fn a_hostile_socket_disturbs_nobody() {
    let daemon = Daemon::start(&class("front", "front", ""));
    let program = workload("front", "32MiB", 25, &[]);
    wait_until(PATIENCE, "it is managed", || daemon.figure("front", "processes") == 1);
    let socket = daemon.place.path().join("socket");
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    // Noise, half lines, lines without an end, and requests that are nearly right.
    for round in 0..200 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let length = (random() % 3000) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if round % 3 == 0 {
            bytes = br#"{"terrace":1,"verb":"history","after":"#.to_vec();
            bytes.extend(random().to_string().bytes());
            bytes.extend(if round % 2 == 0 { b"}\n".to_vec() } else { vec![0, b'\n'] });
        }
        let _ = stream.write_all(&bytes);
    }
    let mut flood = UnixStream::connect(&socket).unwrap();
    let _ = flood.write_all(&vec![b'x'; 1 << 20]);
    // Readers that ask for much and read nothing, on both servers, more of them than are let in.
    let slow: Vec<UnixStream> = (0..60)
        .map(|turn| {
            let metrics = daemon.place.path().join("metrics");
            let mut stream = UnixStream::connect(if turn % 2 == 0 { &socket } else { &metrics }).unwrap();
            let request = if turn % 2 == 0 {
                "{\"terrace\":1,\"verb\":\"timeline\"}\n".repeat(50)
            } else {
                "GET /metrics HTTP/1.1\r\n\r\n".to_owned()
            };
            let _ = stream.write_all(request.as_bytes());
            stream
        })
        .collect();
    drop((flood, slow));
    wait_until(PATIENCE, "it answers again", || daemon.try_ask(Verb::Status {}).is_some());
    let walks = daemon.figure("front", "rounds");
    wait_until(PATIENCE, "and it has gone on managing", || daemon.figure("front", "rounds") > walks);
    let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    println!("    {threads} threads, {} MiB resident", status_bytes(daemon.pid(), "VmRSS").unwrap() / MIB);
    wait_until(PATIENCE, "the threads of those who left end", || {
        std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count() <= 8
    });
    ends_well(program, "front");
    daemon.end();
}

fn cgroups_come_go_and_are_moved_into() {
    let Some(root) = cgroup_root() else {
        println!("SKIPPED cgroups_come_go_and_are_moved_into: no cgroup can be made here");
        return;
    };
    let name = format!("terrace-test-{}", std::process::id());
    let group = root.join(&name);
    let classes = format!("[class.group]\nmatch = [{{ cgroup = \"/{name}\" }}]\n{EAGER}{AT_ANY_PRICE}");
    // /proc is looked through every ten minutes at most: only inotify can tell of a move in time.
    let daemon = Daemon::spawn(&classes, "512MiB", "60s", |_| {});
    daemon.wait_until_it_answers();
    assert!(daemon.ask(Verb::Status {})["process_events"].as_str().unwrap().contains("cgroups are watched"));
    let program = workload("moved", "16MiB", 40, &[]);
    let put = |group: &Path| std::fs::write(group.join("cgroup.procs"), program.pid().to_string()).unwrap();
    for turn in 1..=3 {
        std::fs::create_dir(&group).unwrap();
        put(&group);
        let noticed =
            wait_until(Duration::from_secs(20), "a move into the group", || daemon.figure("group", "processes") == 1);
        put(&root);
        let let_go =
            wait_until(Duration::from_secs(20), "a move out of it", || daemon.figure("group", "processes") == 0);
        std::fs::remove_dir(&group).unwrap();
        println!(
            "    turn {turn}: noticed after {:.2} s, let go after {:.2} s",
            noticed.as_secs_f64(),
            let_go.as_secs_f64()
        );
    }
    assert_eq!(daemon.class("group")["state"], "waiting");
    ends_well(program, "moved");
    daemon.end();
}

/// A library that shifts the wall clock by as many seconds as a file says; the monotonic clock stays what it is.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    const char *path = getenv("TERRACE_TEST_CLOCK");
    FILE *file = clock == CLOCK_REALTIME && path ? fopen(path, "r") : NULL;
    long shift = 0;
    if (file && fscanf(file, "%ld", &shift) == 1) time->tv_sec += shift;
    if (file) fclose(file);
    return result;
}
"#;

fn the_wall_clock_may_jump() {
    let place = tempfile::tempdir().unwrap();
    let (source, library, shift) =
        (place.path().join("clock.c"), place.path().join("clock.so"), place.path().join("shift"));
    std::fs::write(&source, CLOCK).unwrap();
    std::fs::write(&shift, "0").unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).arg("-ldl").status();
    if !built.is_ok_and(|status| status.success()) {
        println!("SKIPPED the_wall_clock_may_jump: there is no C compiler `cc`");
        return;
    }
    let daemon = Daemon::spawn(&class("front", "front", ""), "512MiB", "500ms", |command| {
        command.env("LD_PRELOAD", &library).env("TERRACE_TEST_CLOCK", &shift);
    });
    daemon.wait_until_it_answers();
    let program = workload("front", "48MiB", 35, &[]);
    wait_until(PATIENCE, "it is moved", || daemon.figure("front", "slow_bytes") > 30 * MIB);
    let time = |daemon: &Daemon| {
        let timeline: Value = serde_json::from_str(&daemon.get("/api/v1/timeline")).unwrap();
        timeline["points"].as_array().unwrap().last().unwrap()["time"].as_f64().unwrap()
    };
    let began = time(&daemon);
    let up = |daemon: &Daemon| daemon.ask(Verb::Status {})["uptime_seconds"].as_f64().unwrap();
    let mut uptime = up(&daemon);
    // A day ahead, a year back, and right again.
    for seconds in [86_400i64, -31_536_000, 0] {
        let (rounds, refaults) = (daemon.figure("front", "rounds"), daemon.figure("front", "refaults"));
        std::fs::write(&shift, seconds.to_string()).unwrap();
        wait_until(PATIENCE, "the times shown jump", || (time(&daemon) - began - seconds as f64).abs() < 3600.0);
        wait_until(PATIENCE, "walks go on as before", || daemon.figure("front", "rounds") > rounds + 3);
        let later = up(&daemon);
        assert!(later > uptime && later < uptime + 120.0, "the uptime is not the wall clock's: {uptime} to {later}");
        uptime = later;
        let slow = daemon.figure("front", "slow_bytes");
        println!(
            "    {seconds} s: {} MiB slow, {} came back",
            slow / MIB,
            daemon.figure("front", "refaults") - refaults
        );
        assert!(slow > 20 * MIB, "nothing is thrown about: {slow}");
    }
    ends_well(program, "front");
    daemon.end();
}

fn a_slow_tier_that_is_switched_off_stops_nothing() {
    let daemon = Daemon::start(&class("front", "front", ""));
    let program = workload("front", "64MiB", 45, &[]);
    wait_until(PATIENCE, "a part is in slow memory", || daemon.figure("front", "slow_bytes") > 20 * MIB);
    let device = format!("/dev/{}", zram_of(daemon.pid()).unwrap());
    assert!(Command::new("swapoff").arg(&device).status().unwrap().success());
    wait_until(PATIENCE, "it is told", || {
        daemon.happened("fault").iter().any(|line| line.contains(&device) && line.contains("is gone"))
    });
    wait_until(PATIENCE, "everything is known to be back", || daemon.figure("front", "slow_bytes") == 0);
    let (rounds, failed) = (daemon.figure("front", "rounds"), daemon.class("front")["failed_pages"].clone());
    wait_until(PATIENCE, "walks go on", || daemon.figure("front", "rounds") > rounds + 3);
    let status = daemon.ask(Verb::Status {});
    assert_eq!((&status["tiers"][1]["capacity_bytes"], &status["classes"][0]["state"]), (&0.into(), &"running".into()));
    assert_eq!(daemon.class("front")["failed_pages"], failed, "and nothing is asked of it any more");
    ends_well(program, "front");
    daemon.end();
}

fn a_rival_that_comes_later_is_reported() {
    let daemon = Daemon::start(&class("front", "front", ""));
    // A program of that name is all that another daemon shows of itself.
    let rival = Running::start(Command::new(named("terraced")).args([
        "workload",
        "hot-cold",
        "--size",
        "1MiB",
        "--duration",
        "100s",
    ]));
    let pid = rival.pid().to_string();
    wait_until(Duration::from_secs(90), "it is reported", || {
        daemon.happened("rival").iter().any(|line| line.contains(&pid) && line.contains("another Terrace runs"))
    });
    // Others may come and go on this machine meanwhile: it is one of them, and the metric counts all. The event is reported at once, the
    // status is published once a period.
    wait_until(PATIENCE, "it is in the status", || daemon.ask(Verb::Status {})["rivals"].to_string().contains(&pid));
    let rivals = daemon.ask(Verb::Status {})["rivals"].clone();
    assert!(daemon.get("/metrics").contains(&format!("terrace_rivals {}\n", rivals.as_array().unwrap().len())));
    drop(rival);
    wait_until(Duration::from_secs(90), "and taken off the list when it is gone", || {
        !daemon.ask(Verb::Status {})["rivals"].to_string().contains(&pid)
    });
    daemon.end();
}

/// A virtual machine of QEMU that boots from nothing, and whether KVM runs it; `None` where there is none to be had.
fn guest(accelerator: &str) -> Option<(Running, bool)> {
    const QEMU: &str = "qemu-system-x86_64";
    Command::new(QEMU).arg("--version").output().ok()?;
    let quiet = ["-display", "none", "-serial", "null", "-monitor", "none", "-nic", "none"];
    let mut command = Command::new(QEMU);
    let mut program =
        Running::start(command.args(["-m", "64", "-accel", accelerator]).args(quiet).stdin(Stdio::null()));
    std::thread::sleep(Duration::from_secs(1));
    let files = std::fs::read_dir(format!("/proc/{}/fd", program.pid())).into_iter().flatten().flatten();
    let mut targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let kvm = targets.any(|target| target.to_string_lossy().contains("kvm-vm"));
    program.is_running().then_some((program, kvm))
}

fn a_kvm_guest_is_seen_by_what_sees_it_or_refused() {
    let skipped = |why: &str| println!("SKIPPED a_kvm_guest_is_seen_by_what_sees_it_or_refused: {why}");
    let Some((emulated, false)) = guest("tcg") else { return skipped("there is no qemu-system-x86_64") };
    let Some((kvm, true)) = guest("kvm") else { return skipped("/dev/kvm is not there, or runs no guest") };
    let of = |name: &str, pid: u32| {
        format!("[class.{name}]\nmatch = [{{ guest = true, pid = {pid} }}]\n{EAGER}{AT_ANY_PRICE}")
    };
    let daemon = Daemon::start(&format!("{}{}", of("emulated", emulated.pid()), of("kvm", kvm.pid())));
    // What QEMU emulates is a program like any other.
    wait_until(PATIENCE, "the emulated one is managed", || daemon.figure("emulated", "processes") == 1);
    // What KVM runs marks its accesses elsewhere: never a tracker that is blind to them.
    wait_until(PATIENCE, "the other one is managed or refused", || {
        daemon.figure("kvm", "processes") == 1 || daemon.class("kvm")["state"] == "failed"
    });
    let class = daemon.class("kvm");
    let tracker = class["tracker"].as_str().unwrap_or("none");
    println!("    tracker {tracker}; {}", class["reason"].as_str().unwrap_or("managed"));
    if daemon.figure("kvm", "processes") == 1 {
        assert!(["walker", "damon", "idle-pages"].contains(&tracker), "{class:#}");
    } else {
        assert!(
            class["reason"]
                .as_str()
                .unwrap()
                .contains("KVM guest, whose accesses only walker, damon and idle-pages see"),
            "{class:#}"
        );
        let explained = daemon.ask(Verb::Explain { pid: kvm.pid(), address: None });
        assert!(explained["why"].as_str().unwrap().contains("KVM guest"), "{explained:#}");
    }
    drop((emulated, kvm));
    wait_until(PATIENCE, "both are let go", || daemon.figure("emulated", "processes") == 0);
    daemon.end();
}

/// A program whose memory goes out and comes back all the time, and is checked at its end.
fn survivor() -> Running {
    workload("front", "64MiB", 60, &["shift_seconds=2"])
}

fn data_survive_kills_of_the_daemon() {
    let number = |name: &str, otherwise: u64| std::env::var(name).map_or(otherwise, |text| text.parse().unwrap());
    let (kills, mut state) = (number("TERRACE_KILLS", 6), number("TERRACE_SEED", 12345));
    let classes = class("front", "front", "");
    let mut program = survivor();
    let (mut checked, mut in_set_up, mut with_memory_out, mut longest) = (0, 0, 0, Duration::ZERO);
    for kill in 1..=kills {
        if !program.is_running() {
            // Its minute is over: every page is checked, and the next one takes its place.
            ends_well(std::mem::replace(&mut program, survivor()), "front");
            checked += 1;
        }
        let mut daemon = Daemon::spawn(&classes, "512MiB", "500ms", |_| {});
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = state >> 33;
        // Every third at any moment of the first 700 ms, while the swap and the trackers are made ready; the others once the one
        // that runs already is taken up, while pages are moved.
        if kill % 3 == 0 {
            std::thread::sleep(Duration::from_millis(random % 700));
        } else {
            daemon.wait_until_it_answers();
            wait_until(PATIENCE, "the one that runs already is taken up", || {
                daemon.figure("front", "processes") == 1 || !program.is_running()
            });
            std::thread::sleep(Duration::from_millis(random % 3500));
        }
        let managed = daemon.try_ask(Verb::Status {}).is_some_and(|status| status["classes"][0]["processes"] == 1);
        let out = status_bytes(program.pid(), "VmSwap").unwrap_or(0);
        let zram = zram_of(daemon.pid());
        in_set_up += u64::from(!managed);
        with_memory_out += u64::from(out > 0);
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        let gone = wait_until(PATIENCE, "the guard takes the swap away", || zram_of(daemon.pid()).is_none());
        longest = longest.max(gone);
        println!(
            "    kill {kill:>3}: {}, {:>5.1} MiB out, {} gone after {:.2} s",
            if managed { "managing  " } else { "setting up" },
            out as f64 / MIB as f64,
            zram.as_deref().unwrap_or("no zram"),
            gone.as_secs_f64()
        );
    }
    ends_well(program, "front");
    println!(
        "    {kills} kills: {in_set_up} while it set up, {with_memory_out} while memory was out, swap gone after {:.2} s at most; \
         {} programs ended with every page right",
        longest.as_secs_f64(),
        checked + 1
    );
}

fn a_cgroup_killed_whole_leaves_no_swap_to_the_next_daemon() {
    let Some(root) = cgroup_root() else {
        println!("SKIPPED a_cgroup_killed_whole_leaves_no_swap_to_the_next_daemon: no cgroup can be made here");
        return;
    };
    let classes = class("front", "front", "");
    let mut first = Daemon::start(&classes);
    let program = workload("front", "64MiB", 45, &[]);
    wait_until(PATIENCE, "a part is in slow memory", || first.figure("front", "slow_bytes") > 20 * MIB);
    let device = zram_of(first.pid()).unwrap();
    // As a container is: daemon and guard in one group, which is killed. The guard first, so that it has no moment to act in.
    let group = root.join(format!("terrace-killed-{}", std::process::id()));
    std::fs::create_dir(&group).unwrap();
    let guard = children(first.pid()).into_iter().find(is_guard).unwrap();
    for pid in [guard, first.pid()] {
        std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
    }
    if group.join("cgroup.kill").exists() {
        std::fs::write(group.join("cgroup.kill"), "1").unwrap();
    } else {
        for pid in [guard, first.pid()] {
            kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        }
    }
    first.child.wait().unwrap();
    wait_until(PATIENCE, "the group is empty", || std::fs::remove_dir(&group).is_ok());
    assert_eq!(zram_of(first.pid()), Some(device.clone()), "nobody is there to remove it");
    let next = Daemon::start(&classes);
    assert_eq!(zram_of(first.pid()), None, "{}", next.log());
    let notes = next.ask(Verb::Status {})["notes"].to_string();
    assert!(notes.contains(&format!("removed /dev/{device}")), "{notes}");
    ends_well(program, "front");
    next.end();
}

fn is_guard(pid: &u32) -> bool {
    read(Path::new(&format!("/proc/{pid}/cmdline"))).contains("__guard")
}

fn a_container_killed_whole_leaves_no_swap_to_the_host() {
    let (before, place) = (common::zram_devices(), tempfile::tempdir().unwrap());
    let (own, file) = (place.path().display(), place.path().join("terrace.toml"));
    let text = format!(
        "[daemon]\nsocket = \"{own}/socket\"\n[memory]\nslow = \"zram:64MiB\"\n[metrics]\nlisten = \"unix:{own}/metrics\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(terraced()).arg("--config").arg(&file);
    let mut container = Running::start(command.env_remove("TERRACE_LOG").env_remove("JOURNAL_STREAM"));
    let is_new = |name: &String| !before.contains_key(name);
    wait_until(PATIENCE, "swap is on", || {
        let on = read(Path::new("/proc/swaps"));
        !container.is_running()
            || common::zram_devices().keys().any(|name| is_new(name) && on.contains(&format!("/dev/{name} ")))
    });
    if container.stderr().starts_with("unshare: ") {
        println!("SKIPPED a_container_killed_whole_leaves_no_swap_to_the_host: {}", container.stderr().trim());
        return;
    }
    assert!(container.is_running(), "{}", container.stderr());
    let device = common::zram_devices().into_keys().find(is_new).unwrap();
    // The guard first, so that it has no moment to act in; then the first process of the namespace, with which all others end.
    let daemon = children(container.pid())[0];
    for pid in [children(daemon).into_iter().find(is_guard).unwrap(), daemon] {
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    }
    container.finish(PATIENCE);
    assert!(common::zram_devices().contains_key(&device), "nobody is there to remove it");
    let next = Daemon::start("");
    let notes = next.ask(Verb::Status {})["notes"].to_string();
    assert!(notes.contains(&format!("removed /dev/{device}")) && notes.contains("pid namespace"), "{notes}");
    next.end();
    assert_eq!(common::zram_devices(), before);
}

/// The processes that the threads of one have started and that run.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let text: String = threads.map(|thread| read(&thread.path().join("children"))).collect();
    text.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect()
}
