//! Live tests of what a run says it saved, beside what the kernel says: zram, pages of zeros, a zram with a limit, zswap in front of zram, a disk.
//! What is in swap is held against three of the kernel's counts: VmSwap, SwapPss, and the cgroup's.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; SKIPPED and the reason where they cannot run. Must not: leave zswap switched
//! otherwise, or a zram; each test stands between two looks at swap, zram, DAMON and the settings of memory management.
//!
//! zswap is tried only where TERRACE_ZSWAP=1: once it was on, a kernel brings no large folios back from swap until it is started again.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

mod common;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use common::own_swap::{OwnSwap, swap_on};
use common::{Finished, PATIENCE, Running, number, read, run_live_tests, status_bytes, terrace, wait_until};
use terrace_fixtures::live;

const EAGER: [&str; 8] = ["--set", "idle=1s", "--interval", "250ms", "--max-slowdown", "100%", "--json", "-v"];
const ZSWAP: &str = "/sys/module/zswap/parameters/enabled";
const MIB: f64 = 1048576.0;
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/filled.py");

fn main() -> ExitCode {
    if !live::can_run("live_saved", live::need_program("python3")) {
        return ExitCode::SUCCESS;
    }
    run_live_tests(
        "live_saved",
        &[
            ("of_zram_what_it_takes_is_not_saved", of_zram_what_it_takes_is_not_saved),
            ("pages_of_zeros_are_saved_to_the_end", pages_of_zeros_are_saved_to_the_end),
            ("what_a_limited_zram_refuses_is_in_memory", what_a_limited_zram_refuses_is_in_memory),
            ("on_a_disk_what_is_in_memory_still_is_not_saved", on_a_disk_what_is_in_memory_still_is_not_saved),
            ("the_pool_of_zswap_is_not_saved", the_pool_of_zswap_is_not_saved),
        ],
    )
}

/// What came of a run, and the kernel's figures at its end, in bytes.
struct Seen {
    done: Finished,
    swapped: f64,
    /// What the program's cgroup has in swap, where the memory controller counts it.
    of_cgroup: Option<f64>,
    /// SwapPss: as `swapped`, shared entries by their share.
    pss: f64,
    zram_stored: f64,
    zram_memory: f64,
    zswap_pool: f64,
    /// Swap entries of pages that are in memory still.
    in_memory: f64,
    seconds: f64,
}

impl Seen {
    /// What the kernel's figures say was saved.
    fn truth(&self) -> f64 {
        self.swapped - self.zram_memory - self.zswap_pool - self.in_memory
    }

    /// The report says the same within 2 % of what is in swap, and was taken to the end.
    fn is_told(&self) {
        let report = self.done.report();
        let said = number(&report, "/fast_bytes_saved_end");
        let (truth, near) = (self.truth(), self.swapped * 0.02);
        println!(
            "    in swap {:.1} MiB, {:.1} stored in {:.1} of zram, zswap {:.1}, in memory {:.1}: saved {:.1}; told {:.1}",
            self.swapped / MIB,
            self.zram_stored / MIB,
            self.zram_memory / MIB,
            self.zswap_pool / MIB,
            self.in_memory / MIB,
            truth / MIB,
            said / MIB
        );
        println!("    SwapPss {:.1} MiB, the cgroup's {:.1?}", self.pss / MIB, self.of_cgroup.map(|bytes| bytes / MIB));
        let counted = number(&report, "/swap_end/swapped_bytes");
        // A cgroup pays for a page in the swap cache as memory, not as swap.
        let of_cgroup = self.of_cgroup.map(|bytes| bytes + number(&report, "/swap_end/swap_cache_bytes"));
        for (name, other) in [("VmSwap", Some(self.swapped)), ("SwapPss", Some(self.pss)), ("cgroup", of_cgroup)] {
            let off = other.map_or(0.0, |other| (counted - other).abs());
            assert!(off <= near, "{counted} in swap by the report, {other:?} by {name}");
        }
        assert!((said - truth).abs() <= near, "told {said}, {truth} by the kernel: {}", self.done.stderr);
        let points = report["timeline"].as_array().unwrap();
        let last = points.last().unwrap()["seconds"].as_f64().unwrap();
        assert!(last > self.seconds - 4.0, "the timeline ends at {last} s of {}", self.seconds);
    }
}

/// A run on a program that fills its memory, until as much is in swap as will be.
fn see(options: &[&str], mib: u32, what: &str) -> Seen {
    let place = tempfile::tempdir().unwrap();
    let ended = place.path().join("ended");
    let mut command = terrace();
    command.arg("run").args(options).args(EAGER).arg("--");
    let group = Group::new();
    if let Some(group) = &group {
        let script = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
        command.args(["sh", "-c", &script, "sh"]);
    }
    command.args(["python3", PROGRAM, &mib.to_string(), what]);
    let began = Instant::now();
    let mut running = Running::start(command.arg(&ended));
    let pid_file = place.path().join("ended.pid");
    wait_until(PATIENCE, "the program is ready", || {
        assert!(running.is_running(), "{}", running.stderr());
        pid_file.metadata().is_ok_and(|file| file.len() > 0)
    });
    let pid: u32 = read(&pid_file).parse().unwrap();
    let mut seen = (0, Instant::now());
    wait_until(PATIENCE, "no more leaves", || {
        let swapped = status_bytes(pid, "VmSwap").unwrap_or(0);
        if swapped > seen.0 + (1 << 20) {
            seen = (swapped, Instant::now());
        }
        assert!(running.is_running(), "{}", running.stderr());
        seen.0 > 8 << 20 && seen.1.elapsed() > Duration::from_secs(8)
    });
    let swapped = status_bytes(pid, "VmSwap").unwrap() as f64;
    let of_cgroup = group.as_ref().map(Group::swapped);
    let smaps = read(Path::new(&format!("/proc/{pid}/smaps_rollup")));
    let pss = smaps.lines().find_map(|line| line.strip_prefix("SwapPss:")?.trim().strip_suffix(" kB")?.parse().ok());
    let pss = pss.map_or(0.0, |kib: f64| kib * 1024.0);
    let (mut stored, mut memory) = (0.0, 0.0);
    for area in terrace_linux::topology::swap::read_swaps(Path::new("/")).unwrap() {
        let Some(name) = area.device.strip_prefix("/dev/").filter(|_| area.compressed) else { continue };
        let text = read(Path::new(&format!("/sys/block/{name}/mm_stat")));
        let figures: Vec<f64> = text.split_ascii_whitespace().map(|figure| figure.parse().unwrap()).collect();
        (stored, memory) = (stored + figures[0], memory + figures[2]);
    }
    let meminfo = read(Path::new("/proc/meminfo"));
    let line =
        |name: &str| meminfo.lines().find_map(|line| line.strip_prefix(name)?.trim().split(' ').next()?.parse().ok());
    let zswap_pool = line("Zswap:").unwrap_or(0.0) * 1024.0;
    let cached: f64 = line("SwapCached:").unwrap_or(0.0) * 1024.0;
    let seconds = began.elapsed().as_secs_f64();
    std::fs::write(&ended, "").unwrap();
    let done = running.finish(PATIENCE);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let words: Vec<&str> = done.stdout.lines().next().unwrap().split(' ').collect();
    // The program counts its own pages one by one; on a machine with little else in swap SwapCached says it of all.
    let in_memory = (words[4].parse::<f64>().unwrap() * 4096.0).max(cached.min(swapped));
    Seen { done, swapped, of_cgroup, pss, zram_stored: stored, zram_memory: memory, zswap_pool, in_memory, seconds }
}

/// A cgroup of the memory controller, removed when it is dropped.
struct Group(PathBuf);

impl Group {
    /// `None`, said, where there is no such controller or no cgroup can be made.
    fn new() -> Option<Group> {
        let roots = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
        let has = |root: &Path| {
            root.join("memory.stat").exists() && (root.join("memory.limit_in_bytes").exists() || controls(root))
        };
        let Some(root) = roots.into_iter().find(|root| has(root)) else {
            println!("    not compared with a cgroup's count: no memory controller counts groups below /sys/fs/cgroup");
            return None;
        };
        let place = root.join(format!("terrace-saved-{}", std::process::id()));
        match std::fs::create_dir(&place) {
            Ok(()) => Some(Group(place)),
            Err(error) => {
                println!("    not compared with a cgroup's count: {}: {error}", place.display());
                None
            }
        }
    }

    /// Bytes of its processes in swap.
    fn swapped(&self) -> f64 {
        if let Ok(text) = std::fs::read_to_string(self.0.join("memory.swap.current")) {
            return text.trim().parse().unwrap();
        }
        let text = read(&self.0.join("memory.stat"));
        text.lines().find_map(|line| line.strip_prefix("swap ")?.parse().ok()).unwrap()
    }
}

/// Whether version 2 counts memory in the groups below.
fn controls(root: &Path) -> bool {
    std::fs::read_to_string(root.join("cgroup.subtree_control")).is_ok_and(|text| text.contains("memory"))
}

impl Drop for Group {
    fn drop(&mut self) {
        let gone = Instant::now() + Duration::from_secs(10);
        while std::fs::remove_dir(&self.0).is_err() && self.0.exists() && Instant::now() < gone {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn of_zram_what_it_takes_is_not_saved() {
    let seen = see(&["--tier-slow", "zram:256MiB"], 96, "half");
    seen.is_told();
    assert!(seen.zram_memory > 30.0 * MIB, "about half of it");
}

fn pages_of_zeros_are_saved_to_the_end() {
    let seen = see(&["--tier-slow", "zram:512MiB"], 192, "zeros");
    seen.is_told();
    assert!(seen.truth() > 150.0 * MIB, "nearly all of it: {}", seen.truth());
    // Before Linux 6.12 they went to zram, which stores as little of them.
    if seen.zram_stored < seen.swapped / 2.0 {
        let zeros = number(&seen.done.report(), "/swap_peak/zeros_bytes");
        assert!((zeros - (seen.swapped - seen.zram_stored)).abs() < seen.swapped * 0.02, "{zeros}");
        let words: Vec<&str> = seen.done.stderr.split_whitespace().collect();
        assert!(words.join(" ").contains("pages of zeros"), "{}", seen.done.stderr);
    }
}

fn what_a_limited_zram_refuses_is_in_memory() {
    let swap = OwnSwap::new(256, "100");
    let (device, name) = (swap.device(), format!("zram{}", swap.0));
    std::fs::write(format!("/sys/block/{name}/mem_limit"), "16M").unwrap();
    let seen = see(&["--tier-slow", &format!("swap:{device}")], 128, "half");
    seen.is_told();
    let report = seen.done.report();
    // What is reported as moved was written.
    assert!(seen.in_memory < seen.swapped * 0.02, "{} with an entry are in memory", seen.in_memory);
    let moved = number(&report, "/moved_pages/demoted") * 4096.0;
    assert!(moved < 64.0 * MIB, "16 MiB at 2:1 hold no {moved}");
    let notes = report["notes"].to_string();
    assert!(notes.contains(&format!("{name} is at its limit of 16.0 MiB (mem_limit)")), "{notes}");
    assert!(seen.done.stderr.contains("mem_limit"), "{}", seen.done.stderr);
}

/// A swap file, switched off when it is dropped.
struct SwapFile(PathBuf);

impl Drop for SwapFile {
    fn drop(&mut self) {
        let off = Command::new("swapoff").arg(&self.0).status();
        println!("    {}: {off:?}", self.0.display());
    }
}

/// What is written to a disk stays in the swap cache until the kernel wants its memory: nothing is saved before.
fn on_a_disk_what_is_in_memory_still_is_not_saved() {
    let name = "on_a_disk_what_is_in_memory_still_is_not_saved";
    // Beside the test programs: /tmp may be memory.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = place.path().join("swap");
    std::fs::File::create(&file).unwrap().write_all(&vec![0; 192 << 20]).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    if let Err(why) = swap_on(&file, "100") {
        println!("SKIPPED {name}: {why}");
        return;
    }
    let _swap = SwapFile(file.clone());
    let seen = see(&["--tier-slow", &format!("swap:{}", file.display())], 96, "half");
    seen.is_told();
    assert!(seen.zram_memory < MIB, "{}", seen.zram_memory);
    let cache = number(&seen.done.report(), "/swap_end/swap_cache_bytes");
    println!("    {:.1} MiB have their place on the disk, and are in memory until the kernel takes that", cache / MIB);
}

/// Puts zswap's switch back.
struct Switch(String);

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = std::fs::write(ZSWAP, self.0.trim());
    }
}

fn the_pool_of_zswap_is_not_saved() {
    let name = "the_pool_of_zswap_is_not_saved";
    if std::env::var("TERRACE_ZSWAP").as_deref() != Ok("1") {
        println!(
            "SKIPPED {name}: no large folio comes back from swap once zswap was on: set TERRACE_ZSWAP=1 to run it"
        );
        return;
    }
    let Ok(before) = std::fs::read_to_string(ZSWAP) else {
        println!("SKIPPED {name}: this kernel has no zswap");
        return;
    };
    let _switch = Switch(before);
    std::fs::write(ZSWAP, "Y").unwrap();
    let seen = see(&["--tier-slow", "zram:256MiB"], 96, "half");
    seen.is_told();
    assert!(seen.zswap_pool > 20.0 * MIB, "it took them first: {}", seen.zswap_pool);
    assert!(seen.done.stderr.contains("zswap"), "{}", seen.done.stderr);
    let doctor = Command::new(terrace().get_program()).arg("doctor").output().unwrap();
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("zswap is on"), "{doctor:?}");
}
