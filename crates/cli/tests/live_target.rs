//! What runs already, on this kernel: a cgroup whose members come and go, a unit, several pids. Needs root, zram and cgroups that can be made.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and why where it cannot be tried. Must not: leave a cgroup or a
//! process behind; swap, zram and sysctls are compared before and after each test.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use common::daemon::cgroup_root;
use common::{Finished, PATIENCE, Running, run_live_tests, status_bytes, terrace, verified, wait_until, workload};

/// A slow tier of our own, and a policy in a hurry.
const EAGER: [&str; 8] =
    ["--tier-slow", "zram:512MiB", "--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "50%"];
const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    run_live_tests(
        "live_target",
        &[
            ("members_of_a_cgroup_are_followed_until_it_ends", members_of_a_cgroup_are_followed_until_it_ends),
            ("an_empty_cgroup_is_waited_for", an_empty_cgroup_is_waited_for),
            ("a_unit_is_its_cgroup", a_unit_is_its_cgroup),
            ("several_processes_are_managed_until_the_last_ends", several_processes_are_managed_until_the_last_ends),
            ("sizes_are_found_for_a_cgroup", sizes_are_found_for_a_cgroup),
        ],
    )
}

/// A cgroup of this test, gone when dropped.
struct Group {
    root: PathBuf,
    place: PathBuf,
    name: String,
}

impl Group {
    fn new(test: &str, ending: &str) -> Option<Group> {
        let Some(root) = cgroup_root() else {
            println!("SKIPPED {test}: no cgroup can be made here");
            return None;
        };
        let name = format!("terrace-target-{}{ending}", std::process::id());
        let place = root.join(&name);
        std::fs::create_dir(&place).unwrap();
        Some(Group { root, place, name: format!("/{name}") })
    }

    fn take(&self, pid: u32) {
        std::fs::write(self.place.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn put_out(&self, pid: u32) {
        std::fs::write(self.root.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn remove(&self) {
        // What has ended leaves a moment later.
        wait_until(PATIENCE, "the cgroup can be removed", || {
            std::fs::remove_dir(&self.place).is_ok() || !self.place.exists()
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for pid in std::fs::read_to_string(self.place.join("cgroup.procs")).unwrap_or_default().split_whitespace() {
            let _ = std::fs::write(self.root.join("cgroup.procs"), pid);
        }
        let _ = std::fs::remove_dir(&self.place);
    }
}

fn swapped(program: &Running) -> u64 {
    status_bytes(program.pid(), "VmSwap").unwrap_or(0)
}

/// Ends a workload and checks its data.
fn ends_whole(mut program: Running) {
    program.end_early();
    let ended = program.finish(PATIENCE);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(verified(&ended.stdout).is_some(), "{}", ended.stdout);
}

fn is_over(done: &Finished) {
    assert_eq!((done.code, done.signal), (0, None), "{}", done.stderr);
    assert!(!done.stderr.contains("management stopped"), "{}", done.stderr);
}

fn members_of_a_cgroup_are_followed_until_it_ends() {
    let Some(group) = Group::new("members_of_a_cgroup_are_followed_until_it_ends", "") else { return };
    let (first, later) = (workload("48MiB", 90, 1, &[]), workload("48MiB", 90, 2, &[]));
    group.take(first.pid());
    let mut manager = Running::start(terrace().args(["attach", "--json", "--cgroup", &group.name]).args(EAGER));
    wait_until(PATIENCE, "memory of the first goes out", || swapped(&first) > 10 * MIB);
    assert_eq!(swapped(&later), 0, "it is no member yet");
    // A member of a cgroup below it is one, too.
    let below = group.place.join("worker");
    std::fs::create_dir(&below).unwrap();
    std::fs::write(below.join("cgroup.procs"), later.pid().to_string()).unwrap();
    wait_until(PATIENCE, "memory of the later one goes out", || swapped(&later) > 10 * MIB);
    group.put_out(first.pid());
    group.put_out(later.pid());
    std::fs::remove_dir(&below).unwrap();
    std::thread::sleep(Duration::from_millis(1500));
    assert!(manager.is_running(), "an empty cgroup may get members: {}", manager.stderr());
    group.remove();
    let done = manager.finish(PATIENCE);
    is_over(&done);
    let report = done.report();
    assert_eq!(report["target"]["cgroup"], group.name.as_str());
    assert_eq!((&report["target"]["processes"], &report["target"]["ended"]), (&2.into(), &true.into()));
    assert!(report["moved_pages"]["demoted"].as_u64().unwrap() > 0);
    ends_whole(first);
    ends_whole(later);
}

fn an_empty_cgroup_is_waited_for() {
    let Some(group) = Group::new("an_empty_cgroup_is_waited_for", "") else { return };
    let place = group.place.to_str().unwrap();
    let mut watcher = Running::start(terrace().args(["observe", "--json", "--interval", "250ms", "--cgroup", place]));
    wait_until(PATIENCE, "it says that it waits", || watcher.stderr().contains("has no process yet"));
    let program = workload("16MiB", 3, 1, &[]);
    group.take(program.pid());
    let mut program = program;
    assert_eq!(program.finish(PATIENCE).code, 0);
    assert!(watcher.is_running(), "the cgroup is still there: {}", watcher.stderr());
    group.remove();
    let done = watcher.finish(PATIENCE);
    is_over(&done);
    let report = done.report();
    assert_eq!(report["target"]["processes"], 1);
    assert!(report["target"]["peak_footprint_bytes"].as_u64().unwrap() > 10 * MIB, "{}", report["target"]);
}

fn a_unit_is_its_cgroup() {
    let Some(group) = Group::new("a_unit_is_its_cgroup", ".service") else { return };
    let mut program = workload("16MiB", 60, 1, &[]);
    group.take(program.pid());
    let unit = group.name.trim_start_matches('/').trim_end_matches(".service");
    let options = ["observe", "--json", "--duration", "3s", "--interval", "250ms", "--unit", unit];
    let done = Running::start(terrace().args(options)).finish(PATIENCE);
    is_over(&done);
    assert_eq!(done.report()["target"]["cgroup"], group.name.as_str());
    assert_eq!(done.report()["target"]["ended"], false);
    assert!(program.is_running(), "it goes on: {}", program.stderr());
    ends_whole(program);
}

fn several_processes_are_managed_until_the_last_ends() {
    let (first, second) = (workload("48MiB", 90, 1, &[]), workload("48MiB", 90, 2, &[]));
    let pids = format!("{},{}", first.pid(), second.pid());
    let mut manager = Running::start(terrace().args(["attach", "--json", "-p", &pids]).args(EAGER));
    wait_until(PATIENCE, "memory of both goes out", || swapped(&first) > 10 * MIB && swapped(&second) > 10 * MIB);
    ends_whole(first);
    std::thread::sleep(Duration::from_millis(1500));
    assert!(manager.is_running(), "one is left: {}", manager.stderr());
    ends_whole(second);
    let done = manager.finish(PATIENCE);
    is_over(&done);
    assert_eq!(done.report()["target"]["processes"], 2);
}

fn sizes_are_found_for_a_cgroup() {
    let Some(group) = Group::new("sizes_are_found_for_a_cgroup", "") else { return };
    let program = workload("24MiB", 90, 1, &[]);
    group.take(program.pid());
    let advise = ["size", "advise", "--json", "--machines", "cxl-170", "--duration", "6s", "--cgroup", &group.name];
    let done = Running::start(terrace().args(advise)).finish(PATIENCE * 2);
    is_over(&done);
    let advice: serde_json::Value = serde_json::from_str(&done.stdout).unwrap();
    assert!(advice.is_object(), "{advice}");
    let tune = ["size", "tune", "--json", "--tier-slow", "zram:256MiB", "--duration", "8s", "--cgroup", &group.name];
    let done = Running::start(terrace().args(tune)).finish(PATIENCE);
    is_over(&done);
    let tuned: serde_json::Value = serde_json::from_str(done.stdout.lines().last().unwrap()).unwrap();
    assert!(!tuned["intervals"].as_array().unwrap().is_empty(), "{tuned}");
    assert!(Path::new(&format!("/proc/{}", program.pid())).exists(), "it goes on");
    ends_whole(program);
}
