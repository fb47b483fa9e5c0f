//! allocations and frees of pages as the kernel tells of them, page by page: on a kernel that takes eBPF programs at its functions, which
//! those of the laboratory do (`lab/scenarios/births.toml`). Elsewhere only that it says why not.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; lines that start with SKIPPED say what could not be tried and why.
//! Must not: leave a setting of the kernel changed.
//!
//! It has its own `main`, because all tests watch this very process, one after another.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "common/planned.rs"]
mod planned;

use std::collections::BTreeSet;
use std::fs;
use std::ops::Range;
use std::process::{Command, ExitCode};

use memmap2::{Advice, MmapMut};
use terrace_core::observation::PteState;
use terrace_core::random::SplitMix64;
use terrace_core::units::{PAGE_BYTES, SpaceId, TierId, Vpn};
use terrace_fixtures::live;
use terrace_linux::life_cycle::{LifeCycle, LifeSink};
use terrace_linux::manager::{Manager, ManagerParts};
use terrace_linux::observer::NoTap;
use terrace_linux::process::{Backing, MemoryRange, Process};
use terrace_linux::sys::private_memory::PrivateMemory;
use terrace_linux::topology::TierMap;
use terrace_linux::trackers::Target;
use terrace_linux::trackers::places::Places;
use terrace_policies::Settings;

const TESTS: &[live::LiveTest] = &[
    (
        "pages_are_born_when_they_are_touched_and_die_when_given_back",
        pages_are_born_when_they_are_touched_and_die_when_given_back,
    ),
    ("a_huge_page_is_born_whole", a_huge_page_is_born_whole),
    ("large_folios_are_born_whole", large_folios_are_born_whole),
    ("pages_that_a_system_call_touches_are_born", pages_that_a_system_call_touches_are_born),
    ("a_copy_on_write_is_told_of_and_a_move_is_not", a_copy_on_write_is_told_of_and_a_move_is_not),
    ("an_exit_is_the_death_of_all", an_exit_is_the_death_of_all),
    ("what_finds_no_room_is_counted", what_finds_no_room_is_counted),
    ("an_address_that_is_used_again_starts_at_zero", an_address_that_is_used_again_starts_at_zero),
];

/// The first argument that makes this program a child that touches memory and exits.
const CHILD: &str = "__touch";
const CHILD_PAGES: usize = 3000;

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|argument| argument == CHILD) {
        // Only when it is watched does it touch anything. A second line makes it give a third back, and the end of its input ends it.
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let mut memory = fresh(CHILD_PAGES);
        touch(&mut memory, 0..CHILD_PAGES);
        println!("{}", first_of(&memory));
        if std::io::stdin().read_line(&mut line).unwrap() > 0 {
            memory.give_back(0, CHILD_PAGES / 3).unwrap();
            std::io::stdin().read_line(&mut line).unwrap();
        }
        // It exits with the memory still there.
        std::mem::forget(memory);
        return ExitCode::SUCCESS;
    }
    live::run("live_births", TESTS, ready)
}

/// Whether the kernel takes the programs; if not, that it says so in a line.
fn ready() -> Result<(), String> {
    live::need_root()?;
    live::need_btf()?;
    let attached = LifeCycle::open().map(|cycle| println!("attached at {}", cycle.functions().join(", ")));
    attached.map_err(|error| {
        let reason = error.to_string();
        assert!(!reason.contains('\n') && reason.len() > 40, "one line that says what is missing: {reason:?}");
        reason
    })
}

// ---- what the tests share ----

/// Private memory of `pages` 4 KiB pages, none of them touched.
fn fresh(pages: usize) -> PrivateMemory {
    PrivateMemory::map(pages).unwrap()
}

fn first_of(memory: &PrivateMemory) -> u64 {
    memory.address() / PAGE_BYTES
}

fn touch(memory: &mut PrivateMemory, pages: impl IntoIterator<Item = usize>) {
    pages.into_iter().for_each(|page| memory.write(page, 1));
}

/// Memory of `bytes` bytes that may hold larger pages, and its first aligned page, by number and by offset.
fn large(bytes: usize, align: u64) -> (MmapMut, u64, usize) {
    let memory = MmapMut::map_anon(bytes).unwrap();
    let start = memory.as_ptr() as u64 / PAGE_BYTES;
    let first = start.next_multiple_of(align);
    (memory, first, (first - start) as usize)
}

/// The reported events, as a reader that knows the existing pages interprets them.
#[derive(Default)]
struct Alive {
    pages: BTreeSet<u64>,
    births: u64,
    deaths: u64,
    /// Births told of, those of pages that were alive included.
    told: u64,
}

impl LifeSink for Alive {
    fn born(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState]) {
        for page in first.0..first.0 + ptes.len() as u64 {
            self.told += 1;
            self.births += u64::from(self.pages.insert(page));
        }
    }

    fn gone(&mut self, _: SpaceId, range: Range<Vpn>) {
        let before = self.pages.len();
        self.pages.retain(|page| !(range.start.0..range.end.0).contains(page));
        self.deaths += (before - self.pages.len()) as u64;
    }
}

/// Watches this process, or another one.
struct Watch {
    cycle: LifeCycle,
    process: Process,
    places: Places,
}

impl Watch {
    fn of(pid: u32) -> Watch {
        let cycle = LifeCycle::open().unwrap();
        cycle.watch(pid).unwrap();
        Watch { cycle, process: Process::open(pid).unwrap(), places: Places::default() }
    }

    /// Hands over what happened in these pages.
    fn tell(&mut self, here: Range<u64>, alive: &mut Alive) {
        self.cycle.read().unwrap();
        let ranges = [MemoryRange { start: Vpn(here.start), end: Vpn(here.end), backing: Backing::Anonymous }];
        let targets = [Target { space: SpaceId(1), process: &self.process, ranges: &ranges }];
        let tiers = TierMap::new(Vec::new(), Vec::new());
        assert!(self.cycle.deliver(&targets, &tiers, &mut self.places, true, alive));
    }
}

// ---- the tests ----

fn pages_are_born_when_they_are_touched_and_die_when_given_back() {
    let pages = 2048;
    let mut watch = Watch::of(std::process::id());
    let mut memory = fresh(pages);
    let first = first_of(&memory);
    let here = first..first + pages as u64;
    let mut alive = Alive::default();
    let mut random = SplitMix64::new(7);
    let chosen: BTreeSet<usize> = (0..900).map(|_| random.below(2048) as usize).collect();
    touch(&mut memory, chosen.iter().copied().rev());
    watch.tell(here.clone(), &mut alive);
    let wanted: BTreeSet<u64> = chosen.iter().map(|page| first + *page as u64).collect();
    assert_eq!(alive.pages, wanted, "born are those that were touched, and no others");
    // Reading a page that nobody wrote maps the kernel's page of zeros: nothing is born.
    let zeros: u64 = (0..pages).filter(|page| !chosen.contains(page)).map(|page| memory.read(page)).sum();
    watch.tell(here.clone(), &mut alive);
    assert_eq!((zeros, alive.births), (0, chosen.len() as u64));
    memory.give_back(100, 600).unwrap();
    watch.tell(here.clone(), &mut alive);
    let dead = chosen.iter().filter(|page| (100..700).contains(*page)).count() as u64;
    assert_eq!((alive.deaths, alive.pages.len() as u64), (dead, chosen.len() as u64 - dead));
    touch(&mut memory, 100..200);
    watch.tell(here.clone(), &mut alive);
    assert_eq!(alive.births, chosen.len() as u64 + 100, "the same addresses are born again");
    let last = alive.pages.len() as u64;
    drop(memory);
    watch.tell(here, &mut alive);
    assert_eq!((alive.deaths, alive.pages.len()), (dead + last, 0), "munmap is the death of what was left");
    assert_eq!(watch.cycle.lost(), 0);
    println!("{} born, {} died, none too many and none missed", alive.births, alive.deaths);
}

fn a_huge_page_is_born_whole() {
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if mode.is_empty() || mode.contains("[never]") {
        live::skipped("a_huge_page_is_born_whole", "transparent huge pages are off");
        return;
    }
    let mut watch = Watch::of(std::process::id());
    let (mut memory, block, offset) = large(6 << 20, 512);
    memory.advise(Advice::HugePage).unwrap();
    [offset + 5, offset + 512 + 77].iter().for_each(|page| memory[page * 4096] = 1);
    let mut alive = Alive::default();
    watch.tell(block..block + 1024, &mut alive);
    assert_eq!((alive.births, alive.told), (1024, 1024), "two huge pages");
    drop(memory);
    watch.tell(block..block + 1024, &mut alive);
    assert_eq!((alive.deaths, alive.pages.len()), (1024, 0));
}

fn large_folios_are_born_whole() {
    const ENABLED: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled";
    let Ok(before) = fs::read_to_string(ENABLED) else {
        live::skipped(
            "large_folios_are_born_whole",
            "the kernel has no large folios of 64 KiB for anonymous memory (6.8)",
        );
        return;
    };
    let mode = before.split(['[', ']']).nth(1).unwrap().to_owned();
    fs::write(ENABLED, "always").unwrap();
    let mut watch = Watch::of(std::process::id());
    let (mut memory, first, offset) = large(1 << 20, 16);
    [offset + 3, offset + 16 * 4].iter().for_each(|page| memory[page * 4096] = 1);
    fs::write(ENABLED, mode).unwrap();
    let mut alive = Alive::default();
    watch.tell(first..first + 128, &mut alive);
    let wanted: BTreeSet<u64> = (first..first + 16).chain(first + 64..first + 80).collect();
    assert_eq!(alive.pages, wanted);
}

fn pages_that_a_system_call_touches_are_born() {
    let mut watch = Watch::of(std::process::id());
    let (mut memory, first, offset) = large(80 * 4096, 1);
    memory.advise(Advice::NoHugePage).unwrap();
    // The kernel writes into the memory on the program's behalf, and faults there itself.
    let mut random = fs::File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut random, &mut memory[(offset + 8) * 4096..(offset + 24) * 4096]).unwrap();
    // And here it takes the faults ahead of any use.
    memory.advise_range(Advice::PopulateWrite, (offset + 40) * 4096, 8 * 4096).unwrap();
    let mut alive = Alive::default();
    watch.tell(first..first + 64, &mut alive);
    let wanted: BTreeSet<u64> = (first + 8..first + 24).chain(first + 40..first + 48).collect();
    assert_eq!(alive.pages, wanted);
}

fn a_copy_on_write_is_told_of_and_a_move_is_not() {
    let mut watch = Watch::of(std::process::id());
    let mut memory = fresh(256);
    let first = first_of(&memory);
    let here = first..first + 256;
    touch(&mut memory, 0..256);
    let mut alive = Alive::default();
    watch.tell(here.clone(), &mut alive);
    assert_eq!((alive.births, alive.deaths), (256, 0));
    // Pages that change their node are freed where they were, and live on.
    let other = "/sys/devices/system/node/node1";
    if std::path::Path::new(other).exists() {
        let addresses: Vec<u64> = here.clone().map(|page| page * PAGE_BYTES).collect();
        let mut status = vec![-1; 256];
        terrace_linux::sys::move_pages(std::process::id(), &addresses, Some(&[1; 256]), &mut status).unwrap();
        assert!(status.iter().all(|node| *node == 1), "{status:?}");
        watch.tell(here.clone(), &mut alive);
        assert_eq!((alive.told, alive.deaths), (256, 0), "a move is no birth and no death");
    } else {
        live::skipped("a_copy_on_write_is_told_of_and_a_move_is_not (the move)", "needs a second node");
    }
    // A child that exits at once has made all pages shared: what is written now may be copied. Nobody dies of it.
    assert!(Command::new("/proc/self/exe").arg("--list").output().unwrap().status.success());
    touch(&mut memory, 0..256);
    watch.tell(here, &mut alive);
    assert_eq!((alive.births, alive.deaths), (256, 0));
}

fn an_exit_is_the_death_of_all() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;
    let mut child =
        Command::new("/proc/self/exe").arg(CHILD).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut watch = Watch::of(child.id());
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "go").unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let first: u64 = line.trim().parse().unwrap();
    let here = first..first + CHILD_PAGES as u64;
    let mut alive = Alive::default();
    watch.tell(here.clone(), &mut alive);
    assert_eq!(alive.pages, here.clone().collect());
    drop(stdin);
    assert!(child.wait().unwrap().success());
    watch.tell(here, &mut alive);
    assert_eq!(alive.deaths, CHILD_PAGES as u64);
}

fn what_finds_no_room_is_counted() {
    // The ring has 4 MiB, and a record takes 32 bytes of it.
    const ROOM: u64 = (4 << 20) / 32;
    let pages = 1000;
    let mut watch = Watch::of(std::process::id());
    let mut memory = fresh(pages);
    let first = first_of(&memory);
    let rounds = ROOM / 1000 + 40;
    for _ in 0..rounds {
        touch(&mut memory, 0..pages);
        memory.give_back(0, pages).unwrap();
    }
    let mut alive = Alive::default();
    watch.tell(first..first + 1000, &mut alive);
    let (told, lost) = (alive.told, watch.cycle.lost());
    println!("{told} births told, {lost} records lost of {rounds} rounds of {pages} births");
    assert!(told <= ROOM && lost > 20_000);
    // A round is a thousand births and one or two records of their death; little else of this process happened.
    let all = rounds * 1000;
    assert!((all..all + 4 * rounds + 100).contains(&(told + lost + (told / 1000))), "{told} + {lost} of {all}");
    // Afterwards everything is reported again.
    touch(&mut memory, 0..10);
    watch.tell(first..first + 1000, &mut alive);
    assert_eq!(watch.cycle.lost(), lost);
    assert!((first..first + 10).all(|page| alive.pages.contains(&page)));
}

/// The policy's whole way: manager, births, samples, counts, deaths, births.
fn an_address_that_is_used_again_starts_at_zero() {
    let policy = terrace_policies::build("tieredmms", Settings::from_pairs([("cool_period", "0")])).unwrap();
    assert!(policy.profile().needs().life_cycle);
    let (cycle, line) = LifeCycle::for_needs(policy.profile().needs()).unwrap();
    assert!(line.contains("seen as they happen"), "{line}");
    let samples = planned::Samples::default();
    let parts = planned::parts(policy, samples.clone(), vec![1 << 20], TierMap::new(Vec::new(), Vec::new()));
    let mut manager = Manager::new(ManagerParts { life_cycle: cycle, ..parts });
    let space = manager.add_process(std::process::id()).unwrap();
    // So that its ranges are read once, before there is any of the memory that the test is about.
    manager.turn(&mut NoTap).unwrap();
    let mut memory = fresh(512);
    let first = first_of(&memory);
    let run = |manager: &mut Manager| {
        std::thread::sleep(std::time::Duration::from_millis(15));
        manager.turn(&mut NoTap).unwrap();
    };
    let bars = |manager: &Manager| -> Vec<u64> {
        let metrics = manager.engine().policy_metrics();
        metrics.iter().filter(|metric| metric.name.starts_with("bin_")).map(|metric| metric.value as u64).collect()
    };
    let alive = |manager: &Manager| {
        let pages = manager.engine().pages();
        let known = (first..first + 512).filter_map(|vpn| pages.find(space, Vpn(vpn)));
        known.filter(|page| pages[*page].tier() == Some(TierId::FAST)).count()
    };
    let before = manager.stats().births;
    touch(&mut memory, 0..300);
    run(&mut manager);
    assert_eq!(alive(&manager), 300, "known at once, though its range was not");
    assert!(manager.stats().births >= before + 300);
    // Nine samples each of 200 pages: a count in [8, 16), bar 3.
    samples.borrow_mut().extend((0..9).flat_map(|_| first..first + 200).map(Vpn));
    run(&mut manager);
    assert_eq!(bars(&manager)[3], 200, "{:?}", bars(&manager));
    let deaths = manager.stats().deaths;
    memory.give_back(0, 150).unwrap();
    touch(&mut memory, 0..150);
    run(&mut manager);
    assert_eq!((alive(&manager), manager.stats().deaths - deaths), (300, 150));
    assert_eq!(bars(&manager)[3], 50, "the dead have lost their counts: {:?}", bars(&manager));
    samples.borrow_mut().extend((first..first + 150).map(Vpn));
    run(&mut manager);
    assert_eq!(
        (bars(&manager)[0], bars(&manager)[3]),
        (150, 50),
        "born again they start at zero: {:?}",
        bars(&manager)
    );
    drop(memory);
    run(&mut manager);
    assert_eq!((alive(&manager), bars(&manager).iter().sum::<u64>()), (0, 0), "{:?}", bars(&manager));
    assert_eq!(manager.stats().lost_births_and_deaths, 0);
}
