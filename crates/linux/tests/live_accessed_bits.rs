//! The tracker `accessed-bits` on this kernel, on children whose accesses are known to the page.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{Bytes, SpaceId, TierId, Time, Vpn};
use terrace_fixtures::live;
use terrace_linux::pagemap::{Pagemap, Residence};
use terrace_linux::process::{Backing, MemoryRange, Process, RangeOptions};
use terrace_linux::sys::{self, RemoteRange};
use terrace_linux::topology::{Tier, TierKind, TierMap};
use terrace_linux::trackers::accessed_bits::AccessedBits;
use terrace_linux::trackers::{Event, Round, Sink, Target, Tracker};

const SPACE: SpaceId = SpaceId(3);
const BLOCK: usize = 512;
const SWAP: TierId = TierId(1);

fn tiers() -> TierMap {
    let tier = |id: u8, name: &str, kind: TierKind| Tier {
        id: TierId(id),
        name: name.to_owned(),
        kind,
        capacity_bytes: Bytes::gib(1),
        read_latency_ns: None,
        read_bandwidth_mbps: None,
    };
    let swap = TierKind::Swap { device: "/dev/zram".to_owned(), compressed: true };
    TierMap::new(vec![tier(0, "DRAM", TierKind::Nodes { nodes: vec![0] }), tier(1, "swap", swap)], Vec::new())
}

/// What one round told, page by page.
#[derive(Default)]
struct Seen {
    ptes: BTreeMap<Vpn, PteState>,
    /// By block: its window, and whether it was cleared.
    blocks: BTreeMap<u64, (Option<Duration>, bool)>,
}

impl Sink for Seen {
    fn scan(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, cleared: bool) {
        assert_eq!(space, SPACE);
        assert!(first.offset_in_block() as usize + ptes.len() <= BLOCK, "a scan stays within its block");
        for (offset, pte) in ptes.iter().enumerate() {
            let before = self.ptes.insert(Vpn(first.0 + offset as u64), *pte);
            assert!(before.is_none(), "page {} was told twice", first.0 + offset as u64);
        }
        self.blocks.insert(first.block_start().0, (window, cleared));
    }

    fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
}

/// A child that touches its memory on request.
struct Toucher {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    start: Vpn,
    pages: usize,
}

impl Toucher {
    /// A child with `pages` pages, 2 MiB aligned; `huge` asks for 2 MiB mappings.
    fn start(pages: usize, huge: bool) -> Toucher {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "the_touching_child", "--nocapture"])
            .env("TERRACE_TOUCHER", format!("{pages} {huge}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut toucher = Toucher { child, input, output, start: Vpn(0), pages };
        toucher.start = Vpn::of_address(toucher.answer().parse().unwrap());
        toucher
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child is gone");
            // The test harness prints before and around what the child says.
            if let Some((_, answer)) = line.split_once("child:") {
                return answer.trim().to_owned();
            }
        }
    }

    /// Touches the pages `first`, `first + step`, ... below `end`; returns a checksum over all of what it read.
    fn touch(&mut self, how: &str, first: usize, end: usize, step: usize) -> u64 {
        writeln!(self.input, "{how} {first} {end} {step}").unwrap();
        self.answer().parse().unwrap()
    }

    fn process(&self) -> Process {
        Process::open(self.child.id()).unwrap()
    }

    fn range(&self) -> MemoryRange {
        let end = Vpn(self.start.0 + self.pages as u64);
        MemoryRange { start: self.start, end, backing: Backing::Anonymous }
    }

    fn page(&self, page: usize) -> Vpn {
        Vpn(self.start.0 + page as u64)
    }
}

impl Drop for Toucher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the child of the other tests; does nothing without them"]
fn the_touching_child() {
    let Ok(order) = std::env::var("TERRACE_TOUCHER") else { return };
    let (pages, huge) = order.split_once(' ').unwrap();
    let pages: usize = pages.parse().unwrap();
    let mut memory = memmap2::MmapMut::map_anon((pages + BLOCK) * 4096).unwrap();
    let skip = (memory.as_ptr() as usize).next_multiple_of(BLOCK * 4096) - memory.as_ptr() as usize;
    let advice = if huge == "true" { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage };
    memory.advise(advice).unwrap();
    println!("\nchild:{}", memory.as_ptr() as usize + skip);
    // The kernel holds back the pages a CPU faulted last, up to 31 of them (a folio batch), and MADV_COLD passes over those. On one
    // CPU, a few pages faulted after the others push them out; a tracker told to be exact is then tried on settled pages.
    let mut one = rustix::thread::CpuSet::new();
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    one.set((0..rustix::thread::CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |word: usize| words[word].parse::<usize>().unwrap();
        let mut sum = 0u64;
        for page in (number(1)..number(2)).step_by(number(3)) {
            let byte = &mut memory[skip + page * 4096];
            if words[0] == "write" {
                *byte = (page % 251) as u8 + 1;
            }
            sum = sum.wrapping_mul(31).wrapping_add(u64::from(std::hint::black_box(*byte)));
        }
        let mut pushes = memmap2::MmapMut::map_anon(64 * 4096).unwrap();
        pushes.advise(memmap2::Advice::NoHugePage).unwrap();
        (0..64).for_each(|page| pushes[page * 4096] = 1);
        println!("\nchild:{sum}");
    }
}

/// The tracker, or the reason why this machine cannot run it.
fn opened(test: &str) -> Option<AccessedBits> {
    live::can_run(test, live::need_root().and(live::need_btf()))
        .then(|| AccessedBits::open().unwrap_or_else(|error| panic!("root with BTF, and yet: {error}")))
}

fn round(tracker: &mut AccessedBits, toucher: &Toucher, milliseconds: u64, share: f64) -> Seen {
    let (process, ranges) = (toucher.process(), [toucher.range()]);
    let targets = [Target { space: SPACE, process: &process, ranges: &ranges }];
    let mut seen = Seen::default();
    let now = Time::from_nanos(milliseconds * 1_000_000);
    tracker.scan(&Round { now, targets: &targets, tiers: &tiers(), share }, &mut seen).unwrap();
    seen
}

/// The pages that were told as accessed, as numbers from the start of the memory.
fn accessed(toucher: &Toucher, seen: &Seen) -> Vec<usize> {
    let used = seen.ptes.iter().filter(|(_, pte)| pte.accessed());
    used.map(|(vpn, _)| (vpn.0 - toucher.start.0) as usize).collect()
}

/// Whether a DAMON thread of another program clears accessed bits on this machine.
fn other_clearer() -> bool {
    let running = std::fs::read_to_string("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds");
    running.is_ok_and(|number| number.trim() != "0")
}

/// Never a page too many. None too few either, unless something else on the machine clears accessed bits too: then
/// one in a hundred, or a single one, may have been taken away between touch and look.
fn same_pages(told: &[usize], expect: &[usize], what: &str) {
    let wrong: Vec<_> = told.iter().filter(|page| expect.binary_search(page).is_err()).collect();
    assert!(wrong.is_empty(), "{what}: untouched pages told as used: {wrong:?}");
    let lost = if other_clearer() { (expect.len() / 100).max(1) } else { 0 };
    assert!(
        told.len() + lost >= expect.len(),
        "{what}: {} of {} pages were missed",
        expect.len() - told.len(),
        expect.len()
    );
}

#[test]
fn strides_are_seen_without_one_page_too_many_or_too_few() {
    let Some(mut tracker) = opened("strides") else { return };
    let pages = 20 * BLOCK + 77;
    let mut toucher = Toucher::start(pages, false);
    toucher.touch("write", 0, pages, 1);
    let first = round(&mut tracker, &toucher, 0, 1.0);
    assert_eq!(first.ptes.len(), pages);
    assert!(first.ptes.values().all(|pte| pte.tier() == Some(TierId::FAST) && pte.dirty()));
    assert!(first.blocks.values().all(|block| *block == (None, true)), "at first pte no window is known");
    for (number, (how, from, end, step)) in [
        ("read", 0, pages, 1),
        ("read", 0, pages, 2),
        ("write", 1, pages, 3),
        ("read", 511, pages, 512),
        ("write", 5 * BLOCK, 6 * BLOCK + 1, 1),
        ("read", 0, 0, 1),
        ("read", pages - 1, pages, 1),
    ]
    .into_iter()
    .enumerate()
    {
        toucher.touch(how, from, end, step);
        let seen = round(&mut tracker, &toucher, 100 * (number as u64 + 1), 1.0);
        let expect: Vec<usize> = (from..end).step_by(step).collect();
        same_pages(&accessed(&toucher, &seen), &expect, &format!("{how} {from}..{end} by {step}"));
        assert!(seen.blocks.values().all(|block| *block == (Some(Duration::from_millis(100)), true)));
    }
}

#[test]
fn every_block_has_its_turn_and_its_own_window() {
    let Some(mut tracker) = opened("rotation") else { return };
    let mut toucher = Toucher::start(16 * BLOCK, false);
    toucher.touch("write", 0, 16 * BLOCK, 1);
    let mut turns = BTreeMap::new();
    for number in 0..12u64 {
        // The page that is touched says in which round it was: block b, page `number`.
        toucher.touch("read", number as usize, 16 * BLOCK, BLOCK);
        let seen = round(&mut tracker, &toucher, 100 * number, 0.25);
        assert_eq!(seen.ptes.len(), 16 * BLOCK, "places are reported every round");
        let cleared: Vec<u64> =
            seen.blocks.iter().filter(|(_, (_, cleared))| *cleared).map(|(block, _)| *block).collect();
        // Turns go by hash, which spreads sixteen blocks over the circle as evenly as whole numbers allow.
        assert!((3..=5).contains(&cleared.len()), "about a quarter has its turn: {cleared:?}");
        let back = cleared.iter().filter_map(|block| turns.get(block)).all(|before: &u64| number - before == 4);
        assert!(back, "each block has its turn in every fourth scan: {cleared:?} after {turns:?}");
        for (&block, &(window, cleared)) in &seen.blocks {
            let before: Option<u64> = turns.get(&block).copied();
            let expect = before.filter(|_| cleared).map(|before| Duration::from_millis(100 * (number - before)));
            assert_eq!(window, expect, "block {block} in round {number}");
            if let Some(before) = before.filter(|_| cleared) {
                // Exactly the touches since its own last turn.
                let at = (block - toucher.start.0) as usize;
                let used: Vec<usize> =
                    accessed(&toucher, &seen).into_iter().filter(|page| (at..at + BLOCK).contains(page)).collect();
                let expect: Vec<usize> = (before + 1..=number).map(|round| at + round as usize).collect();
                same_pages(&used, &expect, &format!("block {block} in round {number}"));
            }
        }
        turns.extend(cleared.into_iter().map(|block| (block, number)));
    }
    assert_eq!(turns.len(), 16, "every block had its turn");
    // No share, no clearing: the marks stay for the next turn.
    let idle = round(&mut tracker, &toucher, 5000, 0.0);
    assert!(idle.blocks.values().all(|block| *block == (None, false)));
}

#[test]
fn untouched_and_returned_pages_are_absent() {
    let Some(mut tracker) = opened("absent") else { return };
    let mut toucher = Toucher::start(8 * BLOCK, false);
    toucher.touch("write", 2 * BLOCK, 3 * BLOCK, 2);
    // Only read: maps the shared page of zeros, which is no memory of the child's.
    toucher.touch("read", 2 * BLOCK + 1, 3 * BLOCK, 2);
    let seen = round(&mut tracker, &toucher, 0, 1.0);
    for page in 2 * BLOCK..3 * BLOCK {
        let pte = seen.ptes[&toucher.page(page)];
        assert_eq!(pte.tier().is_some(), page % 2 == 0, "page {page}: {pte:?}");
        assert!(page % 2 == 0 || !pte.accessed());
    }
    assert!(!seen.ptes.contains_key(&toucher.page(0)), "blocks that never held anything are not worth a word");
    let pieces = toucher.process().ranges(RangeOptions::default()).unwrap();
    assert!(pieces.iter().any(|range| range.start <= toucher.start && range.end >= toucher.range().end));
}

#[test]
fn a_huge_page_is_one_entry_and_stays_whole() {
    let Some(mut tracker) = opened("huge") else { return };
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if !(enabled.contains("[madvise]") || enabled.contains("[always]")) {
        return live::skipped("huge", "needs transparent huge pages");
    }
    let mut toucher = Toucher::start(6 * BLOCK, true);
    // Only looked at: the shared huge page of zeros.
    toucher.touch("read", 5 * BLOCK, 5 * BLOCK + 1, 1);
    for block in 0..4 {
        toucher.touch("write", block * BLOCK, block * BLOCK + 1, 1);
    }
    let first = round(&mut tracker, &toucher, 0, 1.0);
    if !first.ptes.values().any(|pte| pte.huge()) {
        return live::skipped("huge", "the kernel had no free 2 MiB page");
    }
    assert!(first.ptes.get(&toucher.page(5 * BLOCK)).is_none_or(|pte| pte.tier().is_none()));
    toucher.touch("read", BLOCK + 100, BLOCK + 101, 1);
    let mut second = round(&mut tracker, &toucher, 250, 1.0);
    for again in 2..10 {
        // Another clearer may have been faster once; not every time.
        if second.ptes[&toucher.page(BLOCK)].accessed() || !other_clearer() {
            break;
        }
        toucher.touch("read", BLOCK + 100, BLOCK + 101, 1);
        second = round(&mut tracker, &toucher, 250 * again, 1.0);
    }
    for block in 0..4 {
        for page in block * BLOCK..(block + 1) * BLOCK {
            let pte = second.ptes[&toucher.page(page)];
            assert_eq!(pte.huge(), first.ptes[&toucher.page(page)].huge(), "page {page} was split");
            if pte.huge() {
                assert_eq!(pte.accessed(), block == 1, "page {page}: {pte:?}");
            }
        }
    }
}

#[test]
fn swapped_pages_lie_in_the_swap_tier() {
    let Some(mut tracker) = opened("swapped") else { return };
    let _swap = match swap::ensure() {
        Ok(swap) => swap,
        Err(reason) => return live::skipped("swapped", &reason),
    };
    let mut toucher = Toucher::start(4 * BLOCK, false);
    let sum = toucher.touch("write", 0, 4 * BLOCK, 1);
    let out = RemoteRange { address: toucher.page(BLOCK).address() as usize, length: 2 * BLOCK * 4096 };
    sys::process_madvise(toucher.process().pidfd(), &[out], libc_advice::PAGEOUT).unwrap();
    let seen = round(&mut tracker, &toucher, 0, 1.0);
    let mut told = vec![Residence::Absent; 4 * BLOCK];
    Pagemap::open(toucher.child.id()).unwrap().residences(toucher.start, &mut told).unwrap();
    let mut swapped = 0;
    for (page, residence) in told.iter().enumerate() {
        let expect = if *residence == Residence::Swapped { SWAP } else { TierId::FAST };
        let pte = seen.ptes[&toucher.page(page)];
        assert_eq!(pte.tier(), Some(expect), "page {page}: {residence:?}, {pte:?}");
        assert!(expect != SWAP || !pte.accessed());
        swapped += usize::from(expect == SWAP);
    }
    assert!(swapped > BLOCK, "only {swapped} of {} pages went out", 2 * BLOCK);
    assert_eq!(toucher.touch("read", 0, 4 * BLOCK, 1), sum, "the child's data is what it was");
    let back = round(&mut tracker, &toucher, 500, 1.0);
    assert!(back.ptes.values().all(|pte| pte.tier() == Some(TierId::FAST)));
    same_pages(&accessed(&toucher, &back), &(0..4 * BLOCK).collect::<Vec<_>>(), "after the return");
}

#[test]
fn a_process_that_ends_is_no_error() {
    let Some(mut tracker) = opened("gone") else { return };
    for _ in 0..20 {
        let mut toucher = Toucher::start(32 * BLOCK, false);
        toucher.touch("write", 0, 32 * BLOCK, 1);
        let (process, ranges) = (toucher.process(), [toucher.range()]);
        let targets = [Target { space: SPACE, process: &process, ranges: &ranges }];
        // Ends somewhere within the rounds.
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(3));
            drop(toucher);
        });
        while !killer.is_finished() {
            tracker.scan(&Round::of_all(Time::ZERO, &targets, &tiers()), &mut Seen::default()).unwrap();
        }
        killer.join().unwrap();
        let mut seen = Seen::default();
        tracker.scan(&Round::of_all(Time::ZERO, &targets, &tiers()), &mut seen).unwrap();
        assert!(seen.ptes.is_empty(), "nothing is reported of a process that is gone");
        tracker.forget(SPACE);
    }
}

mod libc_advice {
    //! Of asm-generic/mman-common.h.
    pub(crate) const PAGEOUT: i32 = 21;
}

mod swap {
    //! Swap for a test: what the machine has, or a zram device of our own that is taken away again.

    use std::fs;
    use std::process::Command;

    /// Keeps the device for as long as it lives.
    pub(crate) struct Swap {
        own: Option<u32>,
    }

    pub(crate) fn ensure() -> Result<Swap, String> {
        if fs::read_to_string("/proc/swaps").is_ok_and(|swaps| swaps.lines().count() > 1) {
            return Ok(Swap { own: None });
        }
        let number =
            fs::read_to_string("/sys/class/zram-control/hot_add").map_err(|_| "needs swap or zram".to_owned())?;
        let number: u32 = number.trim().parse().map_err(|_| "zram gave no number".to_owned())?;
        let swap = Swap { own: Some(number) };
        fs::write(format!("/sys/block/zram{number}/disksize"), "256M").map_err(|error| error.to_string())?;
        run("mkswap", &[&format!("/dev/zram{number}")])?;
        run("swapon", &[&format!("/dev/zram{number}")])?;
        Ok(swap)
    }

    fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
        let output = Command::new(program).args(arguments).output().map_err(|error| format!("{program}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then_some(()).ok_or(format!("{program}: {said}"))
    }

    impl Drop for Swap {
        fn drop(&mut self) {
            let Some(number) = self.own else { return };
            let _ = run("swapoff", &[&format!("/dev/zram{number}")]);
            let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
            let _ = fs::write("/sys/class/zram-control/hot_remove", number.to_string());
        }
    }
}
