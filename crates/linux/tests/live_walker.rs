//! The tracker `walker` and the kernel module under it, where that is loaded: what it says of pages is exact, wrong requests are
//! refused, and programs that end or change their memory meanwhile are no trouble.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use memmap2::{Advice, MmapMut};
use terrace_core::observation::PteState;
use terrace_core::policy::Needs;
use terrace_core::units::{SpaceId, Time, Vpn};
use terrace_fixtures::live;
use terrace_linux::doctor::choose_tracker;
use terrace_linux::kernel_module::{KernelModule, MOST_SCANS, Seen, Slot, Walk};
use terrace_linux::pagemap::{Pagemap, PagemapEntry};
use terrace_linux::process::{MemoryRange, Process};
use terrace_linux::sys::private_memory::PrivateMemory;
use terrace_linux::topology::TierMap;
use terrace_linux::trackers::prove::prove;
use terrace_linux::trackers::walker::Walker;
use terrace_linux::trackers::{Event, Round, Sink, Target, Tracker};

const PAGES: usize = 4096;

/// The module with this very process named to it, or why there is none.
fn module(test: &str) -> Option<(KernelModule, Slot)> {
    if !live::can_run(test, live::need_root()) {
        return None;
    }
    match KernelModule::open(1 << 18) {
        Ok(module) => {
            let slot = module.add(&me()).unwrap();
            Some((module, slot))
        }
        Err(reason) => {
            live::skipped(test, &reason.to_string());
            None
        }
    }
}

fn me() -> Process {
    Process::open(std::process::id()).unwrap()
}

fn walk(memory: &PrivateMemory, clear: bool, scans: u32, interval_us: u32) -> Walk {
    Walk { first: Vpn::of_address(memory.address()), pages: memory.pages() as u64, clear, scans, interval_us }
}

fn used(seen: &[Seen]) -> Vec<usize> {
    seen.iter().enumerate().filter(|(_, seen)| seen.count() > 0).map(|(page, _)| page).collect()
}

#[test]
fn what_was_used_shows_exactly_and_where_it_lies() {
    let Some((mut module, slot)) = module("what_was_used_shows_exactly_and_where_it_lies") else { return };
    let mut memory = PrivateMemory::map(PAGES).unwrap();
    let mut seen = Vec::new();
    let nothing = module.walk(slot, walk(&memory, true, 1, 0), &mut seen).unwrap();
    assert!(nothing.present == 0 && seen.len() == PAGES && seen.iter().all(|seen| *seen == Seen(0)));
    for page in (0..PAGES).step_by(2) {
        memory.write(page, 7);
    }
    let written: Vec<usize> = (0..PAGES).step_by(2).collect();
    let walked = module.walk(slot, walk(&memory, false, 1, 0), &mut seen).unwrap();
    assert_eq!((walked.present, used(&seen)), (PAGES as u64 / 2, written.clone()), "a walk that only reads");
    module.walk(slot, walk(&memory, true, 1, 0), &mut seen).unwrap();
    assert_eq!(used(&seen), written, "reading cleared nothing");
    module.walk(slot, walk(&memory, true, 1, 0), &mut seen).unwrap();
    assert_eq!(used(&seen), Vec::<usize>::new(), "clearing cleared everything");
    for page in (0..PAGES).step_by(6) {
        assert_eq!(memory.read(page), 7);
    }
    let walked = module.walk(slot, walk(&memory, true, 1, 0), &mut seen).unwrap();
    assert_eq!(used(&seen), (0..PAGES).step_by(6).collect::<Vec<_>>(), "reads set the marks again, all of them");
    assert_eq!(walked.accessed, PAGES.div_ceil(6) as u64);
    let mut told = vec![PagemapEntry::default(); PAGES];
    Pagemap::open(std::process::id()).unwrap().entries(Vpn::of_address(memory.address()), &mut told).unwrap();
    assert!(seen.iter().zip(&told).all(|(seen, told)| seen.present() == told.present()));
    assert!(seen.iter().all(|seen| seen.present() == seen.node().is_some()));
    assert!((0..PAGES).step_by(2).all(|page| memory.read(page) == 7), "no content changed");
}

#[test]
fn counts_over_scans_tell_hot_from_cold_and_idle_tables_are_passed_over() {
    let Some((mut module, slot)) = module("counts_over_scans_tell_hot_from_cold_and_idle_tables_are_passed_over")
    else {
        return;
    };
    let mut map = MmapMut::map_anon((PAGES + 512) * 4096).unwrap();
    map.advise(Advice::NoHugePage).unwrap();
    let skip = (map.as_ptr() as usize).next_multiple_of(2 << 20) - map.as_ptr() as usize;
    let memory = &mut map[skip..skip + PAGES * 4096];
    memory.fill(1);
    let first = Vpn::of_address(memory.as_ptr() as u64);
    let memory = &*memory;
    let done = AtomicBool::new(false);
    let mut seen = Vec::new();
    let mut walked = Default::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // 64 pages of the first of eight tables, over and over.
            while !done.load(Ordering::Relaxed) {
                (0..64).for_each(|page| assert_eq!(std::hint::black_box(memory)[page * 4096], 1));
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let once = Walk { first, pages: PAGES as u64, clear: true, scans: 1, interval_us: 0 };
        module.walk(slot, once, &mut seen).unwrap();
        walked = module.walk(slot, Walk { scans: 5, interval_us: 60_000, ..once }, &mut seen).unwrap();
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen[..64].iter().all(|seen| (4..=5).contains(&seen.count())), "{:?}", &seen[..64]);
    assert!(seen[64..].iter().all(|seen| seen.count() == 0 && seen.present()), "idle pages keep their places");
    // Four scans after the first, seven idle tables. Other threads of the test may share none of them: the mapping is our own.
    assert_eq!(walked.skipped, 4 * 7);
    assert_eq!(walked.present, PAGES as u64);
}

#[test]
fn a_huge_page_has_one_mark() {
    let Some((mut module, slot)) = module("a_huge_page_has_one_mark") else { return };
    let mut map = MmapMut::map_anon(8 << 20).unwrap();
    map.advise(Advice::HugePage).unwrap();
    let skip = (map.as_ptr() as usize).next_multiple_of(2 << 20) - map.as_ptr() as usize;
    map[skip..skip + (4 << 20)].fill(1);
    let first = Vpn::of_address((map.as_ptr() as usize + skip) as u64);
    let mut seen = Vec::new();
    let both = Walk { first, pages: 1024, clear: true, scans: 1, interval_us: 0 };
    module.walk(slot, both, &mut seen).unwrap();
    if !seen.iter().all(|seen| seen.huge()) {
        live::skipped("a_huge_page_has_one_mark", "the kernel gave no huge pages");
        return;
    }
    assert_eq!(map[skip + (2 << 20) + 5000], 1);
    // A part of a huge page is reported and not cleared.
    let part = Walk { pages: 100, first: Vpn(first.0 + 600), ..both };
    for _ in 0..2 {
        module.walk(slot, part, &mut seen).unwrap();
        assert!(seen.iter().all(|seen| seen.huge() && seen.count() == 1));
    }
    module.walk(slot, both, &mut seen).unwrap();
    assert_eq!(used(&seen), (512..1024).collect::<Vec<_>>());
    module.walk(slot, both, &mut seen).unwrap();
    assert!(used(&seen).is_empty() && seen.iter().all(|seen| seen.present()));
}

#[test]
fn what_makes_no_sense_is_refused() {
    let Some((mut module, slot)) = module("what_makes_no_sense_is_refused") else { return };
    let memory = PrivateMemory::map(16).unwrap();
    let good = walk(&memory, true, 1, 0);
    let mut seen = Vec::new();
    let mut refused = |wrong: Walk, errno: i32| {
        assert_eq!(module.walk(slot, wrong, &mut seen).unwrap_err().raw_os_error(), Some(errno), "{wrong:?}")
    };
    refused(Walk { scans: 0, ..good }, libc::EINVAL);
    refused(Walk { scans: MOST_SCANS + 1, ..good }, libc::EINVAL);
    refused(Walk { scans: 2, clear: false, ..good }, libc::EINVAL);
    refused(Walk { pages: 0, ..good }, libc::EINVAL);
    refused(Walk { interval_us: 20_000_000, ..good }, libc::EINVAL);
    refused(Walk { pages: (1 << 18) + 1, ..good }, libc::ENOSPC);
    refused(Walk { first: Vpn((1 << 35) - 8), ..good }, libc::EINVAL);
    refused(Walk { first: Vpn(u64::MAX >> 13), ..good }, libc::EINVAL);
    module.forget(slot).unwrap();
    assert_eq!(module.walk(slot, good, &mut seen).unwrap_err().raw_os_error(), Some(libc::ESRCH), "a slot given back");
    assert_eq!(module.forget(slot).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    // A kernel thread has no memory of its own.
    let kthreadd = Process::open(2);
    assert!(kthreadd.is_err() || module.add(&kthreadd.unwrap()).is_err());
    let again: Vec<Slot> = (0..64).map(|_| module.add(&me()).unwrap()).collect();
    assert_eq!(module.add(&me()).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    again.into_iter().for_each(|slot| module.forget(slot).unwrap());
}

#[test]
fn only_root_opens_it() {
    if module("only_root_opens_it").is_none() {
        return;
    }
    let refused = std::os::unix::process::CommandExt::uid(
        Command::new("/bin/busybox").args(["head", "-c0", "/dev/terrace_mm"]),
        65534,
    )
    .status()
    .unwrap();
    assert!(!refused.success());
}

/// PTE states by page.
struct Heard {
    first: Vpn,
    ptes: Vec<PteState>,
    cleared: bool,
}

impl Sink for Heard {
    fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], _: Option<Duration>, cleared: bool) {
        let at = (first.0 - self.first.0) as usize;
        self.ptes[at..at + ptes.len()].copy_from_slice(ptes);
        self.cleared |= cleared;
    }
    fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
}

#[test]
fn the_tracker_is_proven_and_comes_before_the_others() {
    if module("the_tracker_is_proven_and_comes_before_the_others").is_none() {
        return;
    }
    let tiers = TierMap::new(Vec::new(), Vec::new());
    let proof = prove(&mut Walker::open().unwrap(), &tiers).unwrap();
    println!("proof: {proof:?}");
    assert!(proof.read_recall == Some(1.0) && proof.write_recall == Some(1.0) && proof.precision == 1.0, "{proof:?}");
    let (chosen, reasons) = choose_tracker(Needs { scans: true, ..Needs::default() }, None).unwrap();
    assert_eq!(chosen.name(), "walker", "{reasons:?}");
}

#[test]
fn programs_that_end_or_become_others_are_no_trouble() {
    if module("programs_that_end_or_become_others_are_no_trouble").is_none() {
        return;
    }
    let tiers = TierMap::new(Vec::new(), Vec::new());
    let mut tracker = Walker::open().unwrap();
    let mut round = |process: &Process| {
        let ranges = process.ranges(Default::default()).unwrap_or_default();
        let first = ranges.first().map_or(Vpn(0), |range| range.start);
        let pages = ranges.last().map_or(0, |range| range.end.0 - first.0) as usize;
        // The stack lies far above the heap; only what is near the first range is asked for.
        let near: Vec<MemoryRange> = ranges.into_iter().filter(|range| range.end.0 - first.0 < 1 << 20).collect();
        let mut heard = Heard { first, ptes: vec![PteState::ABSENT; pages.min(1 << 20)], cleared: false };
        let target = Target { space: SpaceId(9), process, ranges: &near };
        tracker.scan(&Round::of_all(Time::ZERO, &[target], &tiers), &mut heard).map(|()| heard)
    };
    let mut shell = Command::new("/bin/busybox");
    let mut child = shell.args(["sh", "-c", "/bin/busybox sleep 1; exec /bin/busybox sleep 100"]).spawn().unwrap();
    let process = Process::open(child.id()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let before = round(&process).unwrap();
    assert!(before.cleared && before.ptes.iter().any(|pte| pte.tier().is_some()));
    std::thread::sleep(Duration::from_millis(2500));
    let after = round(&process).unwrap();
    assert!(after.cleared && after.ptes.iter().any(|pte| pte.tier().is_some()), "it is another program by now");
    child.kill().unwrap();
    child.wait().unwrap();
    round(&process).unwrap();
}

#[test]
fn what_a_virtual_machine_uses_is_seen() {
    let test = "what_a_virtual_machine_uses_is_seen";
    let Ok(program) = std::env::var("TERRACE_KVM_GUEST") else {
        return live::skipped(test, "TERRACE_KVM_GUEST names no program (lab/kvm-guest.c)");
    };
    let Some((mut module, _)) = module(test) else { return };
    assert!(module.sees_guests());
    let mut machine = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(machine.stdout.take().unwrap()).lines().map(Result::unwrap);
    let first = Vpn::of_address(u64::from_str_radix(&told.next().unwrap(), 16).unwrap());
    let process = Process::open(machine.id()).unwrap();
    let slot = module.add(&process).unwrap();
    let all = Walk { first, pages: 1024, clear: true, scans: 1, interval_us: 0 };
    let mut lap = || {
        machine.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(told.next().unwrap(), "lap");
    };
    let mut seen = Vec::new();
    // The first lap has the hypervisor look up every page in the process's own tables, which marks those too.
    lap();
    let walked = module.walk(slot, all, &mut seen).unwrap();
    assert_eq!(walked.present, 1024);
    module.walk(slot, all, &mut seen).unwrap();
    assert_eq!(used(&seen), Vec::<usize>::new(), "clearing cleared the machine's tables too");
    for _ in 0..3 {
        lap();
        module.walk(slot, all, &mut seen).unwrap();
        assert_eq!(used(&seen), (0..1024).step_by(3).collect::<Vec<_>>(), "each page that it used, and no other");
        module.walk(slot, all, &mut seen).unwrap();
        assert_eq!(used(&seen), Vec::<usize>::new());
    }
    drop(machine.stdin.take());
    assert!(machine.wait().unwrap().success());
}

#[test]
fn memory_that_changes_under_the_walk_keeps_its_contents() {
    let Some((mut module, slot)) = module("memory_that_changes_under_the_walk_keeps_its_contents") else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..3_u8 {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let mut map = MmapMut::map_anon(6 << 20).unwrap();
                    if seed == 2 {
                        map.advise(Advice::HugePage).unwrap();
                    }
                    map.fill(seed);
                    // Splits, zaps and refills a part of it.
                    map.advise_range(Advice::NoHugePage, 2 << 20, 1 << 20).unwrap();
                    map[(1 << 20)..(3 << 20)].fill(seed + 10);
                    assert!(map[..1 << 20].iter().all(|byte| *byte == seed));
                    assert!(map[1 << 20..3 << 20].iter().all(|byte| *byte == seed + 10));
                }
            });
        }
        let mut seen = Vec::new();
        let mut walks = 0;
        let until = std::time::Instant::now() + Duration::from_secs(4);
        while std::time::Instant::now() < until {
            for range in me().ranges(Default::default()).unwrap() {
                let pages = (range.end.0 - range.start.0).min(1 << 18);
                let all = Walk { first: range.start, pages, clear: true, scans: 2, interval_us: 0 };
                module.walk(slot, all, &mut seen).unwrap();
                assert_eq!(seen.len() as u64, pages);
                walks += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
        println!("{walks} walks");
    });
}
