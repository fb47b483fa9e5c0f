//! Live tests of the trackers page-faults, samples, damon, idle-pages and write-tracking, and of the proof, on the kernel at hand.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; lines that start with SKIPPED say what could not be
//! tried and why. Must not: leave anything behind, or touch a DAMON that another program set up.
//!
//! It has its own `main`, because the children whose accesses are known are this program too.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use perf_event_open_sys::bindings::{self as perf, perf_event_attr};
use terrace_core::observation::PteState;
use terrace_core::policy::Needs;
use terrace_core::units::{Bytes, SpaceId, Time, Vpn};
use terrace_fixtures::live;
use terrace_fixtures::live::skipped;
use terrace_linux::doctor::{self, Doctor, choose_tracker};
use terrace_linux::guard::{GUARD_ARGUMENT, run_guardian};
use terrace_linux::pagemap::{Pagemap, Residence};
use terrace_linux::perf::group::{EventGroup, Scope};
use terrace_linux::perf::record::Layout;
use terrace_linux::process::{Backing, MemoryRange, Process};
use terrace_linux::sys::private_memory::PrivateMemory;
use terrace_linux::sys::{self, RemoteRange, write_tracking};
use terrace_linux::topology::TierMap;
use terrace_linux::topology::declared::zram_is_there;
use terrace_linux::trackers::damon::Damon;
use terrace_linux::trackers::idle_pages::IdlePages;
use terrace_linux::trackers::page_faults::PageFaults;
use terrace_linux::trackers::pair::with_refaults;
use terrace_linux::trackers::prove::prove;
use terrace_linux::trackers::samples::Samples;
use terrace_linux::trackers::write_tracking::WriteTracking;
use terrace_linux::trackers::{Event, Round, Sink, Target, Tracker};
use terrace_linux::zram::{ZramOptions, ZramSwap};

const CHILD_ARGUMENT: &str = "__toucher";
/// Makes this program one that has DAMON watch itself until it is killed.
const DAMON_HOLDER: &str = "__damon";
const CHILD_PAGES: u64 = 8192;
const NR_KDAMONDS: &str = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";

const TESTS: &[live::LiveTest] = &[
    ("births_are_exact", births_are_exact),
    ("threads_that_ran_before_are_watched", threads_that_ran_before_are_watched),
    ("what_a_watched_program_starts_is_watched_once", what_a_watched_program_starts_is_watched_once),
    ("returns_from_compressed_swap_are_refaults", returns_from_compressed_swap_are_refaults),
    ("a_flood_is_cut_off_and_ends", a_flood_is_cut_off_and_ends),
    ("machine_wide_events_and_their_period", machine_wide_events_and_their_period),
    (
        "a_program_that_ended_but_was_not_waited_for_is_no_trouble",
        a_program_that_ended_but_was_not_waited_for_is_no_trouble,
    ),
    ("faults_of_ended_programs_are_let_go", faults_of_ended_programs_are_let_go),
    ("samples_work_or_say_why_not", samples_work_or_say_why_not),
    ("damon_is_refused_or_put_back", damon_is_refused_or_put_back),
    ("damon_is_free_again_after_kills", damon_is_free_again_after_kills),
    ("idle_pages_work_or_say_why_not", idle_pages_work_or_say_why_not),
    (
        "writes_are_exact_where_registered_and_nothing_elsewhere",
        writes_are_exact_where_registered_and_nothing_elsewhere,
    ),
    ("page_faults_and_write_tracking_are_proven", page_faults_and_write_tracking_are_proven),
    ("the_doctor_tells_of_every_tracker", the_doctor_tells_of_every_tracker),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARD_ARGUMENT) => return ExitCode::from(run_guardian(std::io::stdin())),
        Some(DAMON_HOLDER) => return hold_damon(),
        Some(CHILD_ARGUMENT) => {
            touch_as_told();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    live::run("live_trackers", TESTS, live::need_root)
}

// ---- the child ----

/// Obeys lines on stdin, answers each with a line on stdout.
fn touch_as_told() {
    let mut memory = PrivateMemory::map(CHILD_PAGES as usize).unwrap();
    println!("{}", memory.address());
    let mut workers: Vec<Worker> = Vec::new();
    let mut grandchildren: Vec<Toucher> = Vec::new();
    let mut registrations = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |index: usize| words[index].parse::<usize>().unwrap();
        match words[0] {
            "write" => (number(1)..number(2)).for_each(|page| memory.write(page, 1)),
            "read" => (number(1)..number(2)).for_each(|page| assert!(memory.read(page) < 2)),
            // A thread with memory of its own, whose first touch waits for "work".
            "thread" => {
                workers.push(Worker::start());
                println!("{}", workers.last().unwrap().address);
                continue;
            }
            "work" => workers.drain(..).for_each(Worker::work),
            "fork" => {
                let grandchild = Toucher::start();
                println!("{} {}", grandchild.child.id(), grandchild.first.address());
                grandchildren.push(grandchild);
                continue;
            }
            "grandchild" => grandchildren[0].tell(&words[1..].join(" ")),
            "register" => {
                let descriptor = write_tracking::create().unwrap();
                write_tracking::register(&descriptor, memory.address(), CHILD_PAGES * 4096).unwrap();
                registrations.push(descriptor);
            }
            other => panic!("unknown command {other:?}"),
        }
        println!("done");
    }
}

const WORKER_PAGES: usize = 300;

struct Worker {
    address: u64,
    go: std::sync::mpsc::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Worker {
    fn start() -> Worker {
        let ((go, wait), (tell, told)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
        let thread = std::thread::spawn(move || {
            let mut memory = PrivateMemory::map(WORKER_PAGES).unwrap();
            tell.send(memory.address()).unwrap();
            wait.recv().unwrap();
            (0..WORKER_PAGES).for_each(|page| memory.write(page, 1));
        });
        Worker { address: told.recv().unwrap(), go, thread }
    }

    fn work(self) {
        self.go.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// A child that touches its memory on request.
struct Toucher {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    first: Vpn,
    process: Process,
}

impl Toucher {
    fn start() -> Toucher {
        let program = std::env::current_exe().unwrap();
        let mut child =
            Command::new(program).arg(CHILD_ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, mut output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let process = Process::open(child.id()).unwrap();
        Toucher { child, input, output, first: Vpn::of_address(line.trim().parse().unwrap()), process }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input, "{command}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn tell(&mut self, command: &str) {
        assert_eq!(self.ask(command), "done", "{command}");
    }

    fn range(&self) -> MemoryRange {
        range(self.first, CHILD_PAGES)
    }
}

impl Drop for Toucher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn range(start: Vpn, pages: u64) -> MemoryRange {
    MemoryRange { start, end: Vpn(start.0 + pages), backing: Backing::Anonymous }
}

// ---- what trackers say ----

#[derive(Default)]
struct Heard {
    births: BTreeMap<(SpaceId, Vpn), u32>,
    refaults: Vec<Vpn>,
    ptes: BTreeMap<Vpn, (PteState, bool)>,
    samples: u64,
}

impl Heard {
    fn births_in(&self, space: u32, first: Vpn) -> Vec<u64> {
        self.births.keys().filter(|(of, _)| *of == SpaceId(space)).map(|(_, vpn)| vpn.0 - first.0).collect()
    }

    fn accessed(&self, first: Vpn) -> Vec<u64> {
        let seen = self.ptes.iter().filter(|(_, (pte, window))| *window && pte.accessed());
        seen.map(|(vpn, _)| vpn.0 - first.0).collect()
    }
}

impl Sink for Heard {
    fn scan(&mut self, _: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, _: bool) {
        for (page, pte) in ptes.iter().enumerate() {
            self.ptes.insert(Vpn(first.0 + page as u64), (*pte, window.is_some()));
        }
    }

    fn event(&mut self, space: SpaceId, vpn: Vpn, event: Event) {
        match event {
            Event::Allocated => *self.births.entry((space, vpn)).or_default() += 1,
            Event::Sampled { .. } => self.samples += 1,
            Event::Refault => self.refaults.push(vpn),
            // No tracker of these tests marks pages for it.
            Event::HintFault => panic!("a hint fault at {vpn:?}"),
        }
    }
}

fn tiers() -> TierMap {
    TierMap::new(Vec::new(), Vec::new())
}

fn listen(tracker: &mut PageFaults, now: Time, targets: &[Target<'_>]) -> Heard {
    let mut heard = Heard::default();
    tracker.events(now, targets, &mut heard).unwrap();
    heard
}

fn second(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

// ---- the tests ----

fn births_are_exact() {
    let mut child = Toucher::start();
    let mut tracker = PageFaults::open().unwrap();
    let first = child.first;
    let touched: Vec<u64> = (0..1000).chain(3000..3001).chain(5000..8192).collect();
    child.tell("write 8000 8010");
    let process = Process::open(child.process.pid()).unwrap();
    let ranges = [child.range()];
    let targets = [Target { space: SpaceId(7), process: &process, ranges: &ranges }];
    assert!(listen(&mut tracker, second(1), &targets).births.is_empty(), "nothing from before it was watched");
    for part in ["write 0 1000", "read 3000 3001", "write 5000 8192"] {
        child.tell(part);
    }
    let heard = listen(&mut tracker, second(2), &targets);
    let expected: Vec<u64> = touched.into_iter().filter(|page| !(8000..8010).contains(page)).collect();
    assert_eq!(heard.births_in(7, first), expected);
    assert!(heard.births.values().all(|&count| count == 1), "each page is born once");
    child.tell("write 0 1000");
    assert!(listen(&mut tracker, second(3), &targets).births.is_empty(), "a second touch is no birth");
    assert_eq!(tracker.lost(), 0);
}

fn threads_that_ran_before_are_watched() {
    let mut child = Toucher::start();
    let firsts: Vec<Vpn> = (0..3).map(|_| Vpn::of_address(child.ask("thread").parse().unwrap())).collect();
    let mut ranges: Vec<MemoryRange> = firsts.iter().map(|&first| range(first, WORKER_PAGES as u64)).collect();
    ranges.sort_by_key(|range| range.start);
    let process = Process::open(child.process.pid()).unwrap();
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    let mut tracker = PageFaults::open().unwrap();
    listen(&mut tracker, second(1), &targets);
    child.tell("work");
    let heard = listen(&mut tracker, second(2), &targets);
    assert_eq!(heard.births.len(), 3 * WORKER_PAGES);
    assert!(heard.births.values().all(|&count| count == 1));
}

fn what_a_watched_program_starts_is_watched_once() {
    let mut child = Toucher::start();
    let parent = Process::open(child.process.pid()).unwrap();
    let mut tracker = PageFaults::open().unwrap();
    let parent_ranges = [child.range()];
    listen(&mut tracker, second(1), &[Target { space: SpaceId(0), process: &parent, ranges: &parent_ranges }]);
    // A thread and a process that begin after their parent was attached, and that become known to the tracker only later.
    let thread = range(Vpn::of_address(child.ask("thread").parse().unwrap()), WORKER_PAGES as u64);
    let answer = child.ask("fork");
    let (pid, address) = answer.split_once(' ').unwrap();
    let grandchild = Process::open(pid.parse().unwrap()).unwrap();
    let grandchild_range = [range(Vpn::of_address(address.parse().unwrap()), CHILD_PAGES)];
    let mut ranges = [child.range(), thread];
    ranges.sort_by_key(|range| range.start);
    let targets = [
        Target { space: SpaceId(0), process: &parent, ranges: &ranges },
        Target { space: SpaceId(1), process: &grandchild, ranges: &grandchild_range },
    ];
    let mut heard = Heard::default();
    tracker.scan(&Round::of_all(second(2), &targets, &tiers()), &mut heard).unwrap();
    child.tell("work");
    child.tell("grandchild write 100 700");
    let heard = listen(&mut tracker, second(3), &targets);
    assert_eq!(heard.births_in(0, thread.start), (0..WORKER_PAGES as u64).collect::<Vec<_>>());
    assert_eq!(heard.births_in(1, grandchild_range[0].start), (100..700).collect::<Vec<_>>());
    assert!(heard.births.values().all(|&count| count == 1), "watched twice");
}

fn returns_from_compressed_swap_are_refaults() {
    const MADV_PAGEOUT: i32 = 21;
    if !zram_is_there(std::path::Path::new("/")) {
        return skipped("returns_from_compressed_swap_are_refaults", live::NO_ZRAM);
    }
    let zram = ZramSwap::set_up(&ZramOptions::of_size(Bytes::mib(64)), None).unwrap();
    let mut child = Toucher::start();
    let process = Process::open(child.process.pid()).unwrap();
    let ranges = [child.range()];
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    // On top of a tracker that has no events of its own.
    let (mut tracker, reason) = with_refaults(Box::new(WriteTracking::default()));
    assert!(tracker.name() == "write-tracking" && reason.is_ok(), "{reason:?}");
    let mut listen = |now: Time| {
        let mut heard = Heard::default();
        tracker.events(now, &targets, &mut heard).unwrap();
        heard
    };
    child.tell("write 0 2000");
    listen(second(1));
    let out = RemoteRange { address: child.first.address() as usize, length: 2000 * 4096 };
    sys::process_madvise(process.pidfd(), &[out], MADV_PAGEOUT).unwrap();
    let mut residences = vec![Residence::Absent; 2000];
    Pagemap::open(process.pid()).unwrap().residences(child.first, &mut residences).unwrap();
    child.tell("read 300 800");
    child.tell("read 300 800");
    child.tell("write 3000 4000");
    let heard = listen(second(2));
    drop(child);
    zram.tear_down().unwrap();
    let swapped: Vec<u64> = (300..800).filter(|&page| residences[page as usize] == Residence::Swapped).collect();
    assert!(swapped.len() > 450, "{} of 500 pages left", swapped.len());
    let refaults: Vec<u64> = heard.refaults.iter().map(|vpn| vpn.0 - ranges[0].start.0).collect();
    assert_eq!(refaults, swapped, "each return is told once, and nothing else");
    assert!(heard.births.is_empty(), "births were not asked for");
}

fn a_flood_is_cut_off_and_ends() {
    let mut child = Toucher::start();
    let process = Process::open(child.process.pid()).unwrap();
    let ranges = [child.range()];
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    let mut tracker = PageFaults::open_with_limits(1000, 2000).unwrap();
    listen(&mut tracker, second(1), &targets);
    child.tell("write 0 3000");
    assert_eq!(listen(&mut tracker, second(2), &targets).births.len(), 3000, "what came is not thrown away");
    child.tell("write 3000 6000");
    assert_eq!(listen(&mut tracker, second(3), &targets).births.len(), 0, "the gate is closed");
    assert_eq!(listen(&mut tracker, second(5), &targets).births.len(), 0);
    child.tell("write 6000 6500");
    let heard = listen(&mut tracker, second(6), &targets);
    assert_eq!(heard.births_in(0, child.first), (6000..6500).collect::<Vec<_>>(), "it opens again");
    assert!(tracker.counts().1 >= Duration::from_secs(1));
}

/// The way hardware samples go, tried with a software event, as this needs no hardware.
fn machine_wide_events_and_their_period() {
    let layout =
        Layout::new(u64::from(perf::PERF_SAMPLE_IDENTIFIER | perf::PERF_SAMPLE_TID | perf::PERF_SAMPLE_ADDR)).unwrap();
    let mut event = perf_event_attr {
        type_: perf::PERF_TYPE_SOFTWARE,
        config: perf::PERF_COUNT_SW_PAGE_FAULTS_MIN.into(),
        ..Default::default()
    };
    event.__bindgen_anon_1.sample_period = 1;
    let mut group = EventGroup::open(&[event], layout, Scope::Machine, 256).unwrap();
    let mut child = Toucher::start();
    let (pid, first) = (child.process.pid(), child.first);
    let mut count = |group: &mut EventGroup, command: &str| {
        group.drain(&mut |_, _| {});
        child.tell(command);
        let (mut inside, mut outside) = (0_u64, 0_u64);
        group.drain(&mut |_, sample| match Vpn::of_address(sample.address) {
            vpn if sample.pid == pid && (first..Vpn(first.0 + CHILD_PAGES)).contains(&vpn) => inside += 1,
            _ => outside += 1,
        });
        (inside, outside)
    };
    // Every fault of every program arrives here, and beside a compiler the ring may be too small for them: try again then.
    let mut page = 0;
    let counted = (0..10).find_map(|_| {
        let lost = group.counts().lost;
        let counted = count(&mut group, &format!("write {page} {}", page + 50)).0;
        page += 50;
        (group.counts().lost == lost).then_some(counted)
    });
    assert_eq!(counted, Some(50));
    group.set_period(0, 10).unwrap();
    // One sample in ten, over the faults of all programs together; what share is the child's depends a little on the others.
    let counted: Vec<(u64, u64)> =
        (1..7).map(|part| count(&mut group, &format!("write {} {}", part * 1000, (part + 1) * 1000))).collect();
    let near = counted.iter().filter(|(inside, _)| (70..=130).contains(inside)).count();
    assert!(near >= 3, "samples of 1000 faults each, with those of other programs: {counted:?}");
}

fn a_program_that_ended_but_was_not_waited_for_is_no_trouble() {
    let mut child = Toucher::start();
    let process = Process::open(child.process.pid()).unwrap();
    let ranges = [child.range()];
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    child.child.kill().unwrap();
    while process.is_alive() {
        std::thread::yield_now();
    }
    let mut tracker = PageFaults::open().unwrap();
    assert!(listen(&mut tracker, second(1), &targets).births.is_empty());
    match WriteTracking::open() {
        Ok(mut written) => written.scan(&Round::of_all(second(1), &targets, &tiers()), &mut Heard::default()).unwrap(),
        // Kernels before 6.7 have no PAGEMAP_SCAN to put the question with.
        Err(error) => {
            println!("SKIPPED a_program_that_ended_but_was_not_waited_for_is_no_trouble, its second half: {error}")
        }
    }
}

fn faults_of_ended_programs_are_let_go() {
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let mut tracker = PageFaults::open().unwrap();
    let before = descriptors();
    for _ in 0..5 {
        let mut child = Toucher::start();
        let process = Process::open(child.process.pid()).unwrap();
        let ranges = [child.range()];
        let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
        listen(&mut tracker, second(1), &targets);
        child.tell("write 0 10");
        assert!(descriptors() > before);
        drop(child);
        listen(&mut tracker, second(2), &[]);
    }
    assert_eq!(descriptors(), before);
}

fn samples_work_or_say_why_not() {
    match Samples::open() {
        Ok(mut samples) => {
            let proof = prove(&mut samples, &tiers());
            println!("samples by {}: {proof:?}", samples.vendor());
            assert!(proof.is_ok());
        }
        Err(error) => {
            let line = error.to_string();
            assert!(line.starts_with("samples: ") && !line.contains('\n'), "{line}");
            skipped("samples_work_or_say_why_not", &line);
        }
    }
}

fn damon_is_refused_or_put_back() {
    let Ok(before) = std::fs::read_to_string(NR_KDAMONDS) else {
        let line = Damon::open().unwrap_err().to_string();
        assert!(line.contains("CONFIG_DAMON_SYSFS"), "{line}");
        return skipped("damon_is_refused_or_put_back", &line);
    };
    match Damon::open() {
        Err(error) => {
            let line = error.to_string();
            assert!(line.contains("another"), "{line}");
            println!("{line}");
        }
        Ok(mut damon) => println!("damon by {:?}: {:?}", damon.operations(), prove(&mut damon, &tiers())),
    }
    assert_eq!(std::fs::read_to_string(NR_KDAMONDS).unwrap(), before);
}

/// Sets DAMON up for itself, says so, and looks again and again.
fn hold_damon() -> ExitCode {
    let memory = PrivateMemory::map(CHILD_PAGES as usize).unwrap();
    let start = Vpn::of_address(memory.address());
    let process = Process::open(std::process::id()).unwrap();
    let ranges = [MemoryRange { start, end: Vpn(start.0 + CHILD_PAGES), backing: Backing::Anonymous }];
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    let (mut damon, tiers) = (Damon::open().unwrap(), tiers());
    println!("opened");
    loop {
        damon.scan(&Round::of_all(Time::ZERO, &targets, &tiers), &mut Unheard).unwrap();
        // Set up and taken away in turns, so that kills hit both.
        std::thread::sleep(Duration::from_millis(30));
        damon.scan(&Round::of_all(Time::ZERO, &[], &tiers), &mut Unheard).unwrap();
    }
}

struct Unheard;

impl Sink for Unheard {
    fn scan(&mut self, _: SpaceId, _: Vpn, _: &[PteState], _: Option<Duration>, _: bool) {}
    fn event(&mut self, _: SpaceId, _: Vpn, _: Event) {}
}

/// TERRACE_KILLS says how many (6 without).
fn damon_is_free_again_after_kills() {
    if let Err(error) = Damon::open() {
        return skipped("damon_is_free_again_after_kills", &error.to_string());
    }
    let kills: u64 = std::env::var("TERRACE_KILLS").map_or(6, |text| text.parse().unwrap());
    let mut random = terrace_core::random::SplitMix64::new(7);
    let (mut set_up, mut slowest) = (0, Duration::ZERO);
    for kill in 1..=kills {
        let mut child = Command::new("/proc/self/exe")
            .arg(DAMON_HOLDER)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "opened\n");
        std::thread::sleep(Duration::from_micros(random.below(150_000)));
        let count = std::fs::read_to_string(NR_KDAMONDS).unwrap();
        set_up += u64::from(count.trim() != "0");
        child.kill().unwrap();
        child.wait().unwrap();
        let began = std::time::Instant::now();
        while std::fs::read_to_string(NR_KDAMONDS).unwrap().trim() != "0" {
            assert!(began.elapsed() < Duration::from_secs(30), "kill {kill}: DAMON is still set up");
            std::thread::sleep(Duration::from_millis(5));
        }
        slowest = slowest.max(began.elapsed());
        println!("    kill {kill:3}: nr_kdamonds was {}, 0 after {:.2} s", count.trim(), began.elapsed().as_secs_f64());
    }
    println!(
        "    {kills} kills, {set_up} while DAMON was set up: 0 left; free after {:.2} s at most",
        slowest.as_secs_f64()
    );
}

fn idle_pages_work_or_say_why_not() {
    match IdlePages::open() {
        Ok(mut tracker) => assert!(prove(&mut tracker, &tiers()).is_ok()),
        Err(error) => skipped("idle_pages_work_or_say_why_not", &error.to_string()),
    }
}

fn writes_are_exact_where_registered_and_nothing_elsewhere() {
    let mut tracker = match WriteTracking::open() {
        Ok(tracker) => tracker,
        Err(error) => return skipped("writes_are_exact_where_registered_and_nothing_elsewhere", &error.to_string()),
    };
    let mut child = Toucher::start();
    let (first, pid) = (child.first, child.process.pid());
    let process = Process::open(pid).unwrap();
    let ranges = [child.range()];
    let targets = [Target { space: SpaceId(0), process: &process, ranges: &ranges }];
    let mut round = |now: u64| {
        let mut heard = Heard::default();
        tracker.scan(&Round::of_all(second(now), &targets, &tiers()), &mut heard).unwrap();
        (heard, tracker.is_blind_to(SpaceId(0)))
    };
    child.tell("write 0 8192");
    round(1);
    child.tell("write 0 100");
    let (heard, blind) = round(2);
    assert!(blind && heard.accessed(first).is_empty(), "nothing is claimed of memory that is not registered");
    child.tell("register");
    assert!(round(3).0.accessed(first).is_empty(), "the first round only protects");
    child.tell("read 0 8192");
    child.tell("write 40 90");
    child.tell("write 8191 8192");
    let (heard, blind) = round(4);
    assert!(!blind);
    assert_eq!(heard.accessed(first), (40..90).chain([8191]).collect::<Vec<_>>());
    assert_eq!(heard.ptes.len() as u64, CHILD_PAGES);
    assert!(round(5).0.accessed(first).is_empty());
}

fn page_faults_and_write_tracking_are_proven() {
    let proof = prove(&mut PageFaults::open().unwrap(), &tiers()).unwrap();
    assert_eq!((proof.read_recall, proof.write_recall, proof.precision), (Some(1.0), Some(1.0), 1.0));
    println!("page-faults: {proof:?}");
    match WriteTracking::open() {
        Ok(mut tracker) => {
            let proof = prove(&mut tracker, &tiers()).unwrap();
            assert_eq!((proof.read_recall, proof.write_recall, proof.precision), (None, Some(1.0), 1.0));
            println!("write-tracking: {proof:?}");
        }
        Err(error) => skipped("write-tracking", &error.to_string()),
    }
}

fn the_doctor_tells_of_every_tracker() {
    let doctor = serde_json::to_value(Doctor::examine().unwrap()).unwrap();
    let reports = doctor["trackers"].as_array().unwrap();
    let found: Vec<&str> = reports.iter().map(|report| report["name"].as_str().unwrap()).collect();
    assert_eq!(found, doctor::names());
    for report in reports {
        for key in ["available", "proven", "reads"] {
            assert!(report[key].is_boolean(), "{key} of {report}");
        }
        assert!(
            !report["reason"].as_str().unwrap().is_empty() && report["granularity_bytes"].as_u64().unwrap() >= 4096
        );
        // What a hint fault costs is not measured.
        let measured = report["proven"].as_bool().unwrap() && report["name"] != "hint-faults";
        assert_eq!(report["cost_ns_per_page"].is_number(), measured, "{report}");
    }
    for list in ["movers", "tiers", "rivals", "advice"] {
        assert!(doctor[list].is_array());
    }
    match choose_tracker(Needs { scans: true, ..Needs::default() }, None) {
        Ok((tracker, reasons)) => {
            assert_eq!(doctor["chosen_tracker"], tracker.name());
            assert!(reasons.iter().any(|reason| reason.contains("chosen")), "{reasons:?}");
        }
        Err(error) => skipped("choose_tracker", &error.to_string()),
    }
}
