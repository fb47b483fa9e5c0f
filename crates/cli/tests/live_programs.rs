//! Programs as they are, on this kernel: daemons, children that nobody waits for, a first thread that ends, a program that changes its name, user,
//! namespaces and root, and one that is stopped, frozen or traced. Needs root and zram.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and why where it cannot be tried. Must not: leave a cgroup or a
//! process behind; swap, zram and sysctls are compared before and after each test.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::process::{Command, ExitCode};

use common::daemon::cgroup_root;
use common::{
    PATIENCE, Running, run, run_live_tests, status_bytes, terrace, verified, wait_until, workload, workload_words,
};
use rustix::process::{Pid, Signal, kill_process};

/// A slow tier of our own, and a policy in a hurry.
const EAGER: [&str; 8] =
    ["--tier-slow", "zram:512MiB", "--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "50%"];
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    run_live_tests(
        "live_programs",
        &[
            (
                "what_a_program_leaves_running_is_managed_to_its_end",
                what_a_program_leaves_running_is_managed_to_its_end,
            ),
            ("what_goes_on_unmanaged_is_named", what_goes_on_unmanaged_is_named),
            ("children_that_nobody_waits_for_cost_nothing", children_that_nobody_waits_for_cost_nothing),
            ("a_first_thread_that_has_ended_is_told", a_first_thread_that_has_ended_is_told),
            ("many_areas_and_one_locked_page_are_managed", many_areas_and_one_locked_page_are_managed),
            ("a_changed_name_user_namespace_and_root", a_changed_name_user_namespace_and_root),
            ("a_stopped_program_is_managed", a_stopped_program_is_managed),
            ("a_traced_program_is_managed", a_traced_program_is_managed),
            ("a_frozen_program_is_managed", a_frozen_program_is_managed),
        ],
    )
}

fn swapped(pid: u32) -> u64 {
    status_bytes(pid, "VmSwap").unwrap_or(0)
}

/// A process that is no child of this one, killed when dropped.
struct Orphan(u32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_raw(self.0 as i32).unwrap(), Signal::KILL);
    }
}

/// A daemon: it starts the workload in a session of its own, writes its pid, and its parent ends at once with code 3.
fn daemon(place: &std::path::Path, seconds: u32) -> String {
    let (out, pid) = (place.join("out"), place.join("pid"));
    let words = workload_words("48MiB", seconds, 1, &[]);
    format!(
        "setsid sh -c \"echo \\$\\$ > {pid}; exec {words} > {out}\" & while ! [ -s {pid} ]; do sleep 0.01; done; exit 3",
        out = out.display(),
        pid = pid.display()
    )
}

fn what_a_program_leaves_running_is_managed_to_its_end() {
    let place = tempfile::tempdir().unwrap();
    let script = daemon(place.path(), 12);
    let done = Running::start(terrace().args(["run", "--json"]).args(EAGER).args(["--", "sh", "-c", &script]))
        .finish(PATIENCE);
    assert_eq!(done.code, 3, "the program's own code: {}", done.stderr);
    assert!(done.stderr.contains("exit code 3; what it left running is managed"), "{}", done.stderr);
    assert!(!done.stderr.contains("unmanaged"), "{}", done.stderr);
    assert!(done.report()["moved_pages"]["demoted"].as_u64().unwrap() > 10 * MIB / 4096, "{}", done.stdout);
    assert!(verified(&std::fs::read_to_string(place.path().join("out")).unwrap()).is_some());
}

fn what_goes_on_unmanaged_is_named() {
    let place = tempfile::tempdir().unwrap();
    let script = daemon(place.path(), 120);
    let mut manager = Running::start(terrace().arg("run").args(EAGER).args(["--", "sh", "-c", &script]));
    wait_until(PATIENCE, "it says that it manages on", || manager.stderr().contains("is managed until it ends"));
    let pid = std::fs::read_to_string(place.path().join("pid")).unwrap().trim().parse().unwrap();
    let left = Orphan(pid);
    manager.signal(Signal::TERM);
    let done = manager.finish(PATIENCE);
    assert_eq!((done.code, done.signal), (3, None), "{}", done.stderr);
    assert!(done.stderr.contains(&format!("goes on unmanaged: process {pid} (")), "{}", done.stderr);
    assert!(done.stderr.contains(&format!("terrace attach --pid {pid}")), "{}", done.stderr);
    assert!(status_bytes(left.0, "VmRSS").is_some(), "it is not disturbed");
}

/// Forks children that end at once and are never waited for, then holds 64 MiB until a signal ends it.
const NEVER_WAITS: &str = "\
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
for _ in range(400):
    if os.fork() == 0: os._exit(0)
m = bytearray(os.urandom(64) * (1 << 20))
signal.sigwait({signal.SIGUSR1})
assert m[:1 << 20] == m[-(1 << 20):]
";

fn children_that_nobody_waits_for_cost_nothing() {
    let mut manager =
        Running::start(terrace().args(["run", "--json"]).args(EAGER).args(["--", "python3", "-c", NEVER_WAITS]));
    let child = || terrace_linux::process::children(manager.pid());
    let holder = || child().into_iter().find(|pid| terrace_linux::process::children(*pid).len() == 400);
    wait_until(PATIENCE, "its memory goes out beside its zombies", || {
        holder().is_some_and(|pid| swapped(pid) > 20 * MIB)
    });
    manager.signal(Signal::USR1);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    // A child that lives for a moment may be seen alive, or not yet have been waited for by nobody.
    let processes = done.report()["target"]["processes"].as_u64().unwrap();
    assert!(processes < 40, "{processes} processes");
}

/// Another thread holds the memory, and the first ends.
const FIRST_THREAD_ENDS: &str = "\
import ctypes, os, threading, time
m = bytearray(os.urandom(64) * (1 << 19))
threading.Thread(target=lambda: time.sleep(12)).start()
print('ends', flush=True)
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)
";

fn a_first_thread_that_has_ended_is_told() {
    let program = ["--", "python3", "-c", FIRST_THREAD_ENDS];
    let done = Running::start(terrace().args(["run", "--json"]).args(EAGER).args(program)).finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let notes = done.report()["notes"].to_string();
    assert!(notes.contains("its first thread has ended"), "{notes}");
    let mut alone = Running::start(Command::new("python3").args(["-c", FIRST_THREAD_ENDS]));
    alone.wait_for_output("ends", PATIENCE);
    let state = || std::fs::read_to_string(format!("/proc/{}/stat", alone.pid())).unwrap();
    wait_until(PATIENCE, "its first thread has ended", || state().contains(") Z "));
    let done = run(&["attach", "--pid", &alone.pid().to_string(), "--duration", "1s"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stderr.contains("first thread has ended"), "{}", done.stderr);
    assert!(!done.stderr.contains("kernel thread"), "{}", done.stderr);
}

/// Some 40,000 areas by protection of every fourth page, and one page locked.
const MANY_AREAS: &str = "\
import ctypes, mmap, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
c = ctypes.CDLL(None, use_errno=True)
m = mmap.mmap(-1, 80000 * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(80000): m[i * 4096] = i % 251 + 1
a = ctypes.addressof(ctypes.c_char.from_buffer(m))
for i in range(20000): assert c.mprotect(ctypes.c_void_p(a + i * 16384), 4096, 1) == 0
l = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
assert c.mlock(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(l))), 4096) == 0
while signal.sigtimedwait({signal.SIGUSR1}, 0) is None:
    for i in range(1000000): pass
assert all(m[i * 4096] == i % 251 + 1 for i in range(80000))
";

fn many_areas_and_one_locked_page_are_managed() {
    let mut manager =
        Running::start(terrace().args(["run", "--json"]).args(EAGER).args(["--", "python3", "-c", MANY_AREAS]));
    let child = || terrace_linux::process::children(manager.pid());
    wait_until(PATIENCE, "its memory goes out", || child().into_iter().any(|pid| swapped(pid) > 40 * MIB));
    manager.signal(Signal::USR1);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
}

/// Changes all that identifies it to others but its pid.
const CHANGES: &str = "\
import ctypes, os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
m = bytearray(os.urandom(64) * (1 << 20))
c = ctypes.CDLL(None, use_errno=True)
assert c.prctl(15, b'renamed', 0, 0, 0) == 0
assert c.unshare(0x00020000 | 0x04000000 | 0x08000000) == 0
os.chroot(sys.argv[1]); os.chdir('/')
os.setgid(65534); os.setuid(65534)
print('changed', flush=True)
signal.sigwait({signal.SIGUSR1})
assert m[:1 << 20] == m[-(1 << 20):]
";

fn a_changed_name_user_namespace_and_root() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().to_str().unwrap();
    let program = ["--", "python3", "-c", CHANGES, root];
    let mut manager = Running::start(terrace().args(["run", "--json"]).args(EAGER).args(program));
    manager.wait_for_output("changed", PATIENCE);
    let child = || terrace_linux::process::children(manager.pid());
    wait_until(PATIENCE, "its memory goes out", || child().into_iter().any(|pid| swapped(pid) > 20 * MIB));
    manager.signal(Signal::USR1);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(!done.report()["notes"].to_string().contains("left alone"), "{}", done.stdout);
}

/// Attaches to a workload until 10 MiB of it are out, then lets it go on with `resume` and verify its data.
fn goes_out(mut program: Running, resume: impl FnOnce(&Running)) {
    let pid = program.pid();
    let mut manager = Running::start(terrace().args(["attach", "--pid", &pid.to_string()]).args(EAGER));
    wait_until(PATIENCE, "its memory goes out", || swapped(pid) > 10 * MIB);
    manager.signal(Signal::TERM);
    let done = manager.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    resume(&program);
    program.end_early();
    let ended = program.finish(PATIENCE);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(verified(&ended.stdout).is_some(), "{}", ended.stdout);
}

/// A workload that has filled its memory.
fn filled() -> Running {
    let mut program = workload("48MiB", 90, 1, &[]);
    program.wait_for_output("\"phase\"", PATIENCE);
    wait_until(PATIENCE, "it has its memory", || status_bytes(program.pid(), "VmRSS").unwrap_or(0) > 48 * MIB);
    program
}

fn a_stopped_program_is_managed() {
    let program = filled();
    program.signal(Signal::STOP);
    goes_out(program, |program| program.signal(Signal::CONT));
}

/// Holds a process by ptrace(2) until it is killed: PTRACE_SEIZE, then PTRACE_INTERRUPT, which stops it.
const TRACES: &str = "\
import ctypes, os, sys, time
c = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
for request in (0x4206, 0x4207): assert c.ptrace(request, pid, None, None) == 0, ctypes.get_errno()
os.waitpid(pid, 0x40000000)
print('traced', flush=True)
time.sleep(600)
";

fn a_traced_program_is_managed() {
    let program = filled();
    let mut tracer = Running::start(Command::new("python3").args(["-c", TRACES, &program.pid().to_string()]));
    tracer.wait_for_output("traced", PATIENCE);
    // A tracee whose tracer ends goes on.
    goes_out(program, |_| drop(tracer));
}

fn a_frozen_program_is_managed() {
    let place = cgroup_root().map(|root| (root.clone(), root.join(format!("terrace-frozen-{}", std::process::id()))));
    let Some((root, place)) = place else {
        println!("SKIPPED a_frozen_program_is_managed: no cgroup can be made here");
        return;
    };
    std::fs::create_dir(&place).unwrap();
    let frozen = |frozen: &str| std::fs::write(place.join("cgroup.freeze"), frozen);
    if frozen("0").is_err() {
        std::fs::remove_dir(&place).unwrap();
        println!("SKIPPED a_frozen_program_is_managed: cgroups of version 1 freeze by a controller of their own");
        return;
    }
    let program = filled();
    let pid = program.pid().to_string();
    std::fs::write(place.join("cgroup.procs"), &pid).unwrap();
    frozen("1").unwrap();
    goes_out(program, |_| {
        frozen("0").unwrap();
        std::fs::write(root.join("cgroup.procs"), &pid).unwrap();
    });
    wait_until(PATIENCE, "the cgroup can be removed", || std::fs::remove_dir(&place).is_ok() || !place.exists());
}
