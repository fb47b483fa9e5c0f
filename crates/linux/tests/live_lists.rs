//! The kernel's page lists ordered through the module's rings, and pages moved by its threads: on a machine with the module and two nodes
//! with memory, which is the laboratory's guest (`lab/scenarios/lists.toml`). And a fuzzer of rings and calls.
//!
//! In: nothing, or a part of a test's name; TERRACE_FUZZ_SECONDS, how long to fuzz. Out: one line a test; lines that start with SKIPPED
//! say what could not be tried and why. Must not: leave a memory group behind.
//!
//! It has its own `main`, because the programs it kills are this program too.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "common/patterned.rs"]
mod patterned;
#[path = "common/planned.rs"]
mod planned;

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use patterned::{CHILD_ARGUMENT, Mode, Patterned};
use terrace_core::random::SplitMix64;
use terrace_core::units::{PAGE_BYTES, TierId, Vpn};
use terrace_fixtures::live;
use terrace_linux::kernel_lists::{Counts, KernelLists, ListSettings, ListsError};
use terrace_linux::kernel_module::{DEVICE, KernelModule};
use terrace_linux::manager::{Manager, ManagerParts};
use terrace_linux::observer::NoTap;
use terrace_linux::process::Process;
use terrace_linux::sys;
use terrace_linux::sys::terrace_mm::{self as abi, Ring};
use terrace_linux::topology::Topology;
use terrace_policies::Settings;

const GROUP: &str = "/sys/fs/cgroup/terrace-lists";

const TESTS: &[live::LiveTest] = &[
    (
        "hot_pages_come_to_the_fast_node_and_the_counts_are_the_kernel_s",
        hot_pages_come_to_the_fast_node_and_the_counts_are_the_kernel_s,
    ),
    (
        "cold_pages_leave_until_the_high_watermark_and_hot_ones_stay",
        cold_pages_leave_until_the_high_watermark_and_hot_ones_stay,
    ),
    ("an_allocation_below_the_low_watermark_demotes_at_once", an_allocation_below_the_low_watermark_demotes_at_once),
    ("a_cooling_makes_half_of_the_active_list_inactive", a_cooling_makes_half_of_the_active_list_inactive),
    ("a_policy_s_marks_move_pages_through_the_module", a_policy_s_marks_move_pages_through_the_module),
    ("wrong_settings_and_a_second_owner_are_refused", wrong_settings_and_a_second_owner_are_refused),
    ("programs_killed_in_mid_move_are_no_trouble", programs_killed_in_mid_move_are_no_trouble),
    ("nothing_that_is_thrown_at_it_brings_it_down", nothing_that_is_thrown_at_it_brings_it_down),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == CHILD_ARGUMENT) {
        patterned::run_child(&arguments[1..]);
        return ExitCode::SUCCESS;
    }
    live::run("live_lists", TESTS, ready)
}

/// Whether there is all that they need.
fn ready() -> Result<(), String> {
    live::need_root()?;
    KernelModule::open(1).map_err(|reason| reason.to_string())?;
    live::need(Path::new("/sys/devices/system/node/node1").exists(), "needs a second node with memory")
}

// ---- what the tests share ----

/// A child in a memory group of its own, so that the lists that are moved from hold its pages and nothing else.
struct Grouped {
    child: Patterned,
    pages: Vec<Vpn>,
}

impl Grouped {
    fn start(pages: usize) -> Grouped {
        let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
        let _ = fs::create_dir(GROUP);
        // A process's memory is charged to the group it is in when it touches it: this one goes there while the child starts.
        let procs = |group: &str| fs::write(format!("{group}/cgroup.procs"), std::process::id().to_string()).unwrap();
        procs(GROUP);
        let child = Patterned::start(Mode::Plain, pages);
        procs("/sys/fs/cgroup");
        let first = child.pieces[0].first;
        Grouped { child, pages: (0..pages as u64).map(|page| Vpn(first.0 + page)).collect() }
    }

    fn process(&self) -> Process {
        Process::open(self.child.pid()).unwrap()
    }

    fn addresses(&self) -> Vec<u64> {
        self.pages.iter().map(|page| page.0 * PAGE_BYTES).collect()
    }

    fn move_all(&self, node: i32) {
        let mut status = vec![-1; self.pages.len()];
        sys::move_pages(self.child.pid(), &self.addresses(), Some(&vec![node; self.pages.len()]), &mut status).unwrap();
        assert!(self.nodes().iter().all(|at| *at == node), "the pages start on node {node}");
    }

    /// Where every page is.
    fn nodes(&self) -> Vec<i32> {
        let mut status = vec![-1; self.pages.len()];
        sys::move_pages(self.child.pid(), &self.addresses(), None, &mut status).unwrap();
        status
    }
}

impl Drop for Grouped {
    fn drop(&mut self) {
        self.child.end();
        let _ = fs::remove_dir(GROUP);
    }
}

/// A counter of /proc/vmstat.
fn kernel_count(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap()
}

/// Free and managed pages of a node.
fn free_of(node: u32) -> (u64, u64) {
    let text = fs::read_to_string("/proc/zoneinfo").unwrap();
    let (mut here, mut free, mut managed) = (false, 0, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["Node", number, ..] => here = number == format!("{node},"),
            // What processors keep for themselves is free as well.
            ["pages", "free", pages] | ["count:", pages] if here => free += pages.parse::<u64>().unwrap(),
            ["managed", pages] if here => managed += pages.parse::<u64>().unwrap(),
            _ => {}
        }
    }
    (free, managed)
}

/// Settings with which nothing moves by itself before a test's end.
fn quiet() -> ListSettings {
    ListSettings { high_watermark: 0, low_watermark: 0, period: Duration::from_secs(60), ..ListSettings::default() }
}

fn drained(lists: &KernelLists) {
    let until = Instant::now() + Duration::from_secs(10);
    while !lists.is_idle() {
        assert!(Instant::now() < until, "the rings are not worked off: {:?}", lists.counts());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the counts satisfy a test, and returns them.
fn wait_for(lists: &KernelLists, what: &str, holds: impl Fn(&Counts) -> bool) -> Counts {
    let until = Instant::now() + Duration::from_secs(15);
    loop {
        let counts = lists.counts().unwrap();
        if holds(&counts) {
            return counts;
        }
        assert!(Instant::now() < until, "{what}: {counts:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

// ---- the tests ----

fn hot_pages_come_to_the_fast_node_and_the_counts_are_the_kernel_s() {
    let mut program = Grouped::start(2048);
    program.move_all(1);
    let before = kernel_count("pgmigrate_success");
    let mut lists = KernelLists::start(&ListSettings { period: Duration::from_millis(500), ..quiet() }).unwrap();
    let slot = lists.add(&program.process()).unwrap();
    for (number, page) in program.pages.iter().enumerate() {
        lists.push(slot, *page, number % 4 == 0);
    }
    drained(&lists);
    wait_for(&lists, "promotion", |counts| counts.promoted_pages >= 480);
    std::thread::sleep(Duration::from_millis(1200));
    let counts = lists.counts().unwrap();
    drop(lists);
    let moved = kernel_count("pgmigrate_success") - before;
    let nodes = program.nodes();
    let (hot, cold): (Vec<_>, Vec<_>) = nodes.iter().enumerate().partition(|(number, _)| number % 4 == 0);
    let fast = |part: &[(usize, &i32)]| part.iter().filter(|(_, node)| **node == 0).count();
    println!("{counts:?}; hot on the fast node: {} of {}; cold: {}", fast(&hot), hot.len(), fast(&cold));
    // A batch of a processor's folios may be in no list just then: at most 31 pages each of two processors.
    assert!(fast(&hot) >= 512 - 62 && fast(&cold) <= 62, "{counts:?}");
    assert_eq!(counts.promoted_pages + counts.demoted_pages, moved, "the kernel counts the same: {counts:?}");
    assert_eq!(fast(&hot) as u64 + fast(&cold) as u64, counts.promoted_pages);
    assert_eq!((counts.bad_entries, counts.overruns, counts.demoted_pages), (0, 0, 0));
    assert_eq!(counts.hot_entries + counts.cold_entries + counts.missed_entries, 2048, "every entry is accounted for");
    assert_eq!(program.child.check(), "intact");
}

fn cold_pages_leave_until_the_high_watermark_and_hot_ones_stay() {
    let mut program = Grouped::start(8192);
    program.move_all(0);
    let (free, managed) = free_of(0);
    // Room for 3000 pages more than is free now, of the 6144 cold ones.
    let high = u32::try_from((free + 3000) * 10_000 / managed).unwrap();
    let settings = ListSettings {
        high_watermark: high,
        low_watermark: 0,
        period: Duration::from_millis(500),
        ..ListSettings::default()
    };
    let before = kernel_count("pgmigrate_success");
    let mut lists =
        KernelLists::start(&ListSettings { period: Duration::from_millis(2000), ..settings.clone() }).unwrap();
    let slot = lists.add(&program.process()).unwrap();
    for (number, page) in program.pages.iter().enumerate() {
        lists.push(slot, *page, number % 4 == 0);
    }
    drained(&lists);
    wait_for(&lists, "demotion", |counts| counts.periodic_runs >= 1 && counts.demoted_pages >= 2000);
    std::thread::sleep(Duration::from_millis(2500));
    let counts = lists.counts().unwrap();
    drop(lists);
    let moved = kernel_count("pgmigrate_success") - before;
    let nodes = program.nodes();
    let left =
        |hot: bool| nodes.iter().enumerate().filter(|(number, node)| (number % 4 == 0) == hot && **node == 1).count();
    println!("{counts:?}; cold that left: {} of 6144; hot that left: {} of 2048", left(false), left(true));
    assert!(left(true) <= 62, "hot pages stay: {} left", left(true));
    // One run takes no more than the rear 70 % of the list, in batches of 32.
    assert!((2000..=6144 * 7 / 10 + 64).contains(&left(false)), "{} left; {counts:?}", left(false));
    assert_eq!(counts.promoted_pages + counts.demoted_pages, moved, "the kernel counts the same");
    assert_eq!(program.child.check(), "intact");
}

fn an_allocation_below_the_low_watermark_demotes_at_once() {
    let mut program = Grouped::start(8192);
    program.move_all(0);
    let (free, managed) = free_of(0);
    let parts = |pages: u64| u32::try_from(pages * 10_000 / managed).unwrap();
    // The period never comes: whatever moves was woken by an allocation.
    let settings = ListSettings {
        high_watermark: parts(free + 2000),
        low_watermark: parts(free - 1500),
        period: Duration::from_secs(60),
        ..ListSettings::default()
    };
    let mut lists = KernelLists::start(&settings).unwrap();
    let slot = lists.add(&program.process()).unwrap();
    program.pages.iter().for_each(|page| lists.push(slot, *page, false));
    drained(&lists);
    assert_eq!(lists.counts().unwrap().demoted_pages, 0, "there is room");
    let filler = vec![1_u8; 3000 * 4096];
    let counts = wait_for(&lists, "direct demotion", |counts| counts.direct_runs >= 1 && counts.demoted_pages >= 500);
    println!("{counts:?}");
    assert_eq!(counts.periodic_runs, 0);
    assert!(filler.iter().step_by(4096).all(|byte| *byte == 1));
    // By hand as well: the call that a hook in user space would make.
    drop(filler);
    lists.demote_now().unwrap();
    assert_eq!(program.child.check(), "intact");
}

fn a_cooling_makes_half_of_the_active_list_inactive() {
    let program = Grouped::start(4096);
    program.move_all(0);
    let mut lists = KernelLists::start(&quiet()).unwrap();
    let slot = lists.add(&program.process()).unwrap();
    program.pages.iter().for_each(|page| lists.push(slot, *page, true));
    drained(&lists);
    lists.cooled().unwrap();
    let counts = wait_for(&lists, "deactivation", |counts| counts.deactivated_pages >= 1900);
    std::thread::sleep(Duration::from_millis(300));
    println!("{:?}", lists.counts().unwrap());
    assert!(lists.counts().unwrap().deactivated_pages <= 2200, "half of the active list, not more: {counts:?}");
}

/// TieredMMS whole but for the processor's samples: policy, manager, rings, module, lists, pages.
fn a_policy_s_marks_move_pages_through_the_module() {
    let mut program = Grouped::start(2048);
    program.move_all(1);
    let tiers = Topology::discover(Path::new("/")).unwrap().tier_map().unwrap();
    let policy = terrace_policies::build("tieredmms", Settings::from_pairs([("lists", "kernel")])).unwrap();
    let settings = ListSettings::of(&policy.profile().kernel.lists.unwrap(), &tiers).unwrap();
    let lists = KernelLists::start(&settings).unwrap();
    // A quarter is sampled four times, the rest once: counts of four are hot, of one are not.
    let times = |number: usize| if number.is_multiple_of(4) { 4 } else { 1 };
    let samples = program.pages.iter().enumerate().flat_map(|(number, page)| vec![*page; times(number)]).collect();
    let capacities = tiers.tiers().iter().map(|tier| tier.capacity_bytes.pages()).collect();
    let before = kernel_count("pgmigrate_success");
    let parts = planned::parts(policy, std::rc::Rc::new(std::cell::RefCell::new(samples)), capacities, tiers);
    let mut manager = Manager::new(ManagerParts { kernel_lists: Some(lists), ..parts });
    let space = manager.add_process(program.child.pid()).unwrap();
    let until = manager.now() + Duration::from_secs(4);
    manager.run(&[], until, &mut NoTap).unwrap();
    let counts = manager.stats().kernel_lists.unwrap();
    let moved = kernel_count("pgmigrate_success") - before;
    let nodes = program.nodes();
    let on_fast =
        |hot: bool| nodes.iter().enumerate().filter(|(number, node)| (number % 4 == 0) == hot && **node == 0).count();
    println!("{counts:?}; hot on the fast node: {} of 512; others: {}", on_fast(true), on_fast(false));
    assert!(on_fast(true) >= 512 - 62 && on_fast(false) <= 62, "{counts:?}");
    assert_eq!(counts.promoted_pages + counts.demoted_pages, moved, "the kernel counts the same");
    assert_eq!((counts.bad_entries, manager.stats().dropped_marks), (0, 0));
    // Terrace itself moved nothing, and learns where the pages are when it looks again, which it does the more seldom the longer a
    // look takes.
    let known = |manager: &Manager| manager.engine().pages().used(space, TierId::FAST);
    for _ in 0..10 {
        if known(&manager) < on_fast(true) as u64 {
            let until = manager.now() + Duration::from_secs(2);
            manager.run(&[], until, &mut NoTap).unwrap();
        }
    }
    assert!(known(&manager) >= on_fast(true) as u64, "it knows of {} pages on the fast node", known(&manager));
    let ledger = manager.engine().ledger();
    assert_eq!((ledger.promoted(), ledger.demoted()), (0, 0));
    assert_eq!(program.child.check(), "intact");
}

fn wrong_settings_and_a_second_owner_are_refused() {
    let refused = |settings: ListSettings| {
        KernelLists::start(&settings).err().unwrap_or_else(|| panic!("{settings:?} was taken"))
    };
    refused(ListSettings { slow_nodes: vec![0], ..quiet() });
    refused(ListSettings { slow_nodes: vec![], ..quiet() });
    refused(ListSettings { slow_nodes: vec![9], ..quiet() });
    refused(ListSettings { slow_nodes: vec![64], ..quiet() });
    refused(ListSettings { ring_entries: 1000, ..quiet() });
    refused(ListSettings { ring_entries: 1 << 21, ..quiet() });
    refused(ListSettings { high_watermark: 100, low_watermark: 200, ..quiet() });
    refused(ListSettings { high_watermark: 9901, ..quiet() });
    refused(ListSettings { period: Duration::from_millis(1), ..quiet() });
    refused(ListSettings { candidates_percent: 0, ..quiet() });
    refused(ListSettings { deactivate_percent: 101, ..quiet() });
    // A scenario reads the reason in what this prints.
    let first = KernelLists::start(&quiet()).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(refused(quiet()), ListsError::Busy));
    drop(first);
    drop(KernelLists::start(&quiet()).unwrap());
}

fn programs_killed_in_mid_move_are_no_trouble() {
    for round in 0..4 {
        let program = Grouped::start(4096);
        program.move_all(round % 2);
        let (free, managed) = free_of(0);
        let high = u32::try_from((free + 3500) * 10_000 / managed).unwrap();
        let settings = ListSettings { high_watermark: high, period: Duration::from_millis(10), ..quiet() };
        let mut lists = KernelLists::start(&settings).unwrap();
        let slot = lists.add(&program.process()).unwrap();
        program.pages.iter().for_each(|page| lists.push(slot, *page, round % 2 == 1));
        wait_for(&lists, "something moves", |counts| counts.promoted_pages + counts.demoted_pages > 0);
        let pid = rustix::process::Pid::from_raw(i32::try_from(program.child.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        // More of a program that is gone: entries of no process, no pages.
        program.pages.iter().for_each(|page| lists.push(slot, *page, round % 2 == 0));
        drained(&lists);
        std::thread::sleep(Duration::from_millis(100));
        println!("{:?}", lists.counts().unwrap());
    }
}

fn nothing_that_is_thrown_at_it_brings_it_down() {
    let seconds = std::env::var("TERRACE_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut random = SplitMix64::new(20_261_121);
    let mut outcomes: BTreeMap<Option<i32>, u64> = BTreeMap::new();
    let (mut calls, mut files, mut scribbles) = (0_u64, 0, 0_u64);
    while Instant::now() < until {
        let mut program = Grouped::start(512);
        let device = OpenOptions::new().read(true).write(true).open(DEVICE).unwrap();
        files += 1;
        // Half of the files get a session that would work, so that what follows hits something that runs.
        let mut rings = Vec::new();
        let slot = abi::add_target(&device, i32::try_from(program.child.pid()).unwrap()).unwrap();
        if random.next().is_multiple_of(2) {
            let start = abi::Start {
                fast_nodes: 1,
                slow_nodes: 2,
                ring_entries: 64 << (random.below(6)),
                high_watermark: random.below(9900) as u32,
                low_watermark: 0,
                period_ms: 10,
                candidates_percent: 1 + random.below(100) as u32,
                deactivate_percent: random.below(101) as u32,
                reserved: 0,
            };
            abi::start(&device, &start).unwrap();
            rings = [0x1_0000_0000, 0x2_0000_0000].map(|at| Ring::map(&device, at, start.ring_entries).unwrap()).into();
        }
        let mut argument = Box::new([0_u8; 1 << 14]);
        for _ in 0..300 {
            // Words that are now and then something the module knows.
            for word in argument[..64].as_chunks_mut::<8>().0 {
                let page = program.pages[random.below(512) as usize].0 * PAGE_BYTES;
                let value = match random.below(6) {
                    0 => random.next(),
                    1 => random.below(70),
                    2 => page,
                    3 => page | (random.below(80)),
                    4 => u64::from(program.child.pid()) | random.next() << 60,
                    _ => 0,
                };
                *word = value.to_ne_bytes();
            }
            let pick = random.next();
            // The calls there are, or any; walks of hundreds of milliseconds would only take the time of others.
            let sizes =
                [(2_u8, 0_u8, 8_u16), (3, 1, 8), (1, 2, 4), (1, 3, 8), (3, 4, 56), (1, 5, 48), (1, 6, 4), (2, 7, 88)];
            let (direction, number, size) = match pick % 4 {
                0 => (pick as u8, (pick >> 8) as u8, (pick >> 16) as u16),
                _ => sizes[(pick >> 8) as usize % sizes.len()],
            };
            if (direction, number, size) == (3, 4, 56) {
                argument[28..32].copy_from_slice(&(random.next() as u32 % 3000).to_ne_bytes());
                if !random.next().is_multiple_of(16) {
                    argument[24..28].copy_from_slice(&(random.next() as u32 % 3).to_ne_bytes());
                }
            }
            let result = abi::any(&device, direction, number, size, &mut argument);
            *outcomes.entry(result.err().and_then(|error| error.raw_os_error())).or_default() += 1;
            calls += 1;
            for ring in &mut rings {
                for _ in 0..20 {
                    let value = match random.below(4) {
                        0 => random.next(),
                        1 => random.below(5000),
                        _ => (program.pages[random.below(512) as usize].0 * PAGE_BYTES) | u64::from(slot),
                    };
                    match random.below(8) {
                        // The head, the tail, or any word, whatever the rules say.
                        0 => ring.scribble(0, value),
                        1 => ring.scribble(random.next(), value),
                        _ => {
                            ring.push(value);
                        }
                    }
                    scribbles += 1;
                }
            }
        }
        if random.next().is_multiple_of(3) {
            program.child.end();
        } else {
            assert_eq!(program.child.check(), "intact", "after file {files}");
        }
        // Files are closed before their rings are unmapped, and after.
        if random.next().is_multiple_of(2) {
            drop(device);
        }
    }
    println!("{files} files, {calls} calls, {scribbles} ring entries; answers by errno: {outcomes:?}");
    assert!(calls > 0);
    // It still does what it should.
    drop(KernelLists::start(&quiet()).unwrap());
}
