//! Live tests of page-outs by whole blocks: whatever kind of memory it is, the data stay, nothing grows, and what is not collapsed has its reason.
//!
//! In: nothing, or a part of a test's name; TERRACE_KILLS says how many kills (20 without). Out: one line a kind of memory, and one a kill; SKIPPED
//! and the reason where they cannot run. Must not: leave anything behind; settings of huge pages and of KSM are put back, after a failure too.
//!
//! It has its own `main`, because the guard starts the running program again, and the mover that is killed is this program too.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

#[path = "common/swap.rs"]
mod swap;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use swap::{settle, zram_tiers};
use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, TierId, Vpn};
use terrace_fixtures::{live, wait_until};
use terrace_linux::guard::{GUARD_ARGUMENT, Guard, Undo, run_guardian};
use terrace_linux::movers::{Apart, MoveCost, MoveResult, Mover, Movers, PageMove, STALL_DEADLINE};
use terrace_linux::pagemap::Pagemap;
use terrace_linux::process::Process;
use terrace_linux::topology::Topology;
use terrace_linux::zram::{ZramOptions, ZramSwap, has_pids_of_machine, leftovers};

/// Makes this program a Terrace that pages a process out by blocks until it is killed.
const MOVER_ARGUMENT: &str = "__mover";
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/blocks.py");
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const KSM: &str = "/sys/kernel/mm/ksm";
const BLOCKS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(20);
const PAGES_OF_BLOCK: u64 = BLOCK_PAGES as u64;
/// Blocks of the program whose mover is killed.
const MANY_BLOCKS: u64 = 32;

const TESTS: &[live::LiveTest] = &[
    ("single_pages_go_whole_unless_huge_pages_are_set_to_never", single_pages_go_whole),
    ("a_setting_that_changes_counts_at_once", a_setting_that_changes_counts_at_once),
    ("memory_that_asks_for_huge_pages_goes_whole", || {
        // Where none was free at the fault there are single pages, which are collapsed.
        is_whole_or("advised", "madvise", &[]);
    }),
    ("memory_that_may_only_be_read_stays_whole", || is_whole_or("readonly", "madvise", &[Apart::Forbidden])),
    ("memory_watched_by_userfaultfd_stays_whole", || is_whole_or("userfaultfd", "madvise", &[Apart::Forbidden])),
    ("an_area_that_forbids_huge_pages_goes_apart", || is_apart("nohugepage", BLOCKS, Apart::Forbidden)),
    ("a_process_that_forbids_huge_pages_goes_apart", || is_apart("disabled", BLOCKS, Apart::Forbidden)),
    ("a_block_with_a_guard_page_goes_apart", || is_apart("guarded", 1, Apart::Areas)),
    ("a_block_of_two_areas_goes_apart", || is_apart("halved", 1, Apart::Areas)),
    ("a_block_with_an_unmapped_page_goes_apart", || is_apart("unmapped", 1, Apart::Shared)),
    ("a_block_with_an_empty_page_is_not_filled", || is_apart("empty", 1, Apart::Shared)),
    ("what_a_fork_shares_goes_apart_and_what_was_written_since_whole", || {
        is_apart("forked", BLOCKS / 2, Apart::Shared)
    }),
    ("memory_of_a_file_goes_apart", || is_apart("memfd", BLOCKS, Apart::Shared)),
    ("merged_memory_stays_merged", merged_memory_stays_merged),
    ("locked_memory_stays", locked_memory_stays),
    ("data_survive_kills_in_the_middle_of_collapsing", data_survive_kills_in_the_middle_of_collapsing),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARD_ARGUMENT) => return ExitCode::from(run_guardian(std::io::stdin())),
        Some(MOVER_ARGUMENT) => return page_out_until_killed(&arguments[1..]),
        _ => {}
    }
    live::run("live_blocks", TESTS, ready)
}

fn ready() -> Result<(), String> {
    live::need_root()?;
    swap::need_zram()?;
    live::need_program("python3")?;
    live::need(Path::new(HUGE_PAGES).exists(), "this kernel has no huge pages (CONFIG_TRANSPARENT_HUGEPAGE)")
}

/// A setting of the kernel that is put back when this is dropped: by a panic, and by the guard when this program is killed.
struct Setting(Option<Guard>);

impl Setting {
    fn set(path: &Path, value: &str) -> Setting {
        let text = std::fs::read_to_string(path).unwrap();
        // Of a choice the one in brackets is in force.
        let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
        let previous = chosen.unwrap_or(text.trim()).to_owned();
        // A choice reads back with all of its values.
        let brackets = text.replace(['[', ']'], "").replace(value, &format!("[{value}]"));
        let ours = vec![text, value.to_owned(), brackets];
        let guard = Guard::start().unwrap();
        guard.protect(Undo::WriteFile { path: path.to_owned(), previous, ours }).unwrap();
        std::fs::write(path, value).unwrap();
        Setting(Some(guard))
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        if !self.0.take().unwrap().finish(PATIENCE) {
            println!("    a setting is not back yet");
        }
    }
}

/// A program with blocks of one kind of memory. Dropping it ends it.
struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    first: Vpn,
}

impl Program {
    fn start(kind: &str, blocks: u64) -> Program {
        let mut child = Command::new("python3")
            .args([PROGRAM, kind, &blocks.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim().strip_suffix(" ready").unwrap_or_else(|| panic!("{kind}: not ready: {line:?}"));
        let first = Vpn::of_address(address.parse().unwrap());
        assert_eq!(first.0 % PAGES_OF_BLOCK, 0);
        Program { child, stdin, stdout, first }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it says of its data: "intact", or what differs.
    fn check(&mut self) -> String {
        writeln!(self.stdin.as_mut().unwrap(), "check").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    /// Memory and swap of it and of the child that shares with it, each page once.
    fn footprint(&self) -> Bytes {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap_or_default();
        let pids = children.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).chain([self.pid()]);
        pids.map(|pid: u32| smaps(pid, "Pss:") + smaps(pid, "SwapPss:")).fold(Bytes::ZERO, |sum, one| sum + one)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sum over all areas of a process.
fn smaps(pid: u32, field: &str) -> Bytes {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_else(|| panic!("{field}: {text}"));
    Bytes::kib(value.trim().strip_suffix(" kB").unwrap().parse().unwrap())
}

/// A counter of /proc/vmstat.
fn counted(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

fn all_pages(first: Vpn, blocks: u64) -> Vec<PageMove> {
    let pages = first.0..first.0 + blocks * PAGES_OF_BLOCK;
    pages.map(|page| PageMove { vpn: Vpn(page), pages: 1, from: TierId(0), to: TierId(1) }).collect()
}

/// Pages that a reason kept from going whole.
fn apart(cost: &MoveCost, why: Apart) -> u64 {
    cost.counts.apart.get(&why).copied().unwrap_or_default()
}

/// Pages a program out, all blocks at once, and checks what holds for every kind of memory. Returns what it cost, and how many pages left.
fn page_out(kind: &str, huge_pages: &str, program: &mut Program) -> (MoveCost, u64) {
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(program.pid()).unwrap();
    settle(&tiers);
    let before = program.footprint();
    let whole_before = counted("thp_swpout");
    let mut results: Vec<MoveResult> = Vec::new();
    let moves = all_pages(program.first, BLOCKS);
    let cost = Movers::for_tiers(&tiers, STALL_DEADLINE).execute(&process, &moves, &tiers, &mut results);
    let whole = counted("thp_swpout") - whole_before;
    let after = program.footprint();
    let done: u64 = results.iter().map(|result| u64::from(result.done)).sum();
    let end = Vpn(program.first.0 + BLOCKS * PAGES_OF_BLOCK);
    let count = Pagemap::open(program.pid()).unwrap().count(program.first, end).unwrap();
    println!(
        "    {kind}, huge pages {huge_pages}: {done} pages left; huge {}, collapsed {}, single {}, {:?}; {before} before, {after} after",
        cost.counts.huge, cost.counts.collapsed, cost.counts.single, cost.counts.apart
    );
    // Page tables and the interpreter's own pages are all that may come.
    assert!(
        after <= before + Bytes::kib(256),
        "{kind}: {before} became {after}: collapsing filled or copied something"
    );
    assert_eq!(results.len(), moves.len());
    if kind != "memfd" {
        // A page of a file that is in swap leaves no trace in the page tables.
        assert_eq!(count.swapped_pages, done, "{kind}: what is reported is what the page tables say");
    }
    assert!(
        whole * PAGES_OF_BLOCK >= cost.counts.huge + cost.counts.collapsed,
        "{kind}: the kernel wrote {whole} whole"
    );
    let told = cost.counts.huge + cost.counts.collapsed + cost.counts.apart.values().sum::<u64>();
    assert!(
        kind == "locked" || told == BLOCKS * PAGES_OF_BLOCK,
        "{kind}: each block went whole, or has its reason: {told}"
    );
    assert_eq!(program.check(), "intact", "{kind}, after page-out");
    zram.tear_down().unwrap();
    assert_eq!(program.check(), "intact", "{kind}, after its swap went");
    (cost, done)
}

fn single_pages_go_whole() {
    for huge_pages in ["always", "madvise", "never"] {
        let _setting = Setting::set(Path::new(HUGE_PAGES), huge_pages);
        let mut program = Program::start("plain", BLOCKS);
        let made = counted("thp_collapse_alloc");
        let (cost, done) = page_out("plain", huge_pages, &mut program);
        assert_eq!(done, BLOCKS * PAGES_OF_BLOCK);
        if huge_pages == "never" {
            assert_eq!((cost.counts.single, apart(&cost, Apart::Never)), (done, done), "{:?}", cost.counts);
            assert_eq!(counted("thp_collapse_alloc"), made, "no huge page is made");
            continue;
        }
        assert_eq!(cost.counts.huge + cost.counts.collapsed, done, "huge pages {huge_pages}: {:?}", cost.counts);
        if huge_pages != "always" {
            assert_eq!(cost.counts.collapsed, done, "single pages until now");
        }
    }
}

/// One mover, and a block each time: with `never` it makes none huge from the next block on, and with `madvise` it does again.
fn a_setting_that_changes_counts_at_once() {
    let mut program = Program::start("plain", BLOCKS);
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(program.pid()).unwrap();
    settle(&tiers);
    let mut movers = Movers::for_tiers(&tiers, STALL_DEADLINE);
    for (block, huge_pages) in (0..BLOCKS).zip(["madvise", "never", "always", "never"]) {
        let _setting = Setting::set(Path::new(HUGE_PAGES), huge_pages);
        let first = Vpn(program.first.0 + block * PAGES_OF_BLOCK);
        let cost = movers.execute(&process, &all_pages(first, 1), &tiers, &mut Vec::new());
        println!("    block {block}, huge pages {huge_pages}: {:?}", cost.counts);
        if huge_pages == "never" {
            assert_eq!((cost.counts.collapsed, apart(&cost, Apart::Never)), (0, PAGES_OF_BLOCK), "{:?}", cost.counts);
        } else {
            // khugepaged, which `always` wakes, may have been first.
            assert_eq!(cost.counts.collapsed + cost.counts.huge, PAGES_OF_BLOCK, "{:?}", cost.counts);
        }
    }
    assert_eq!(program.check(), "intact");
    zram.tear_down().unwrap();
}

/// All blocks leave, whole or for one of these reasons page by page.
fn is_whole_or(kind: &str, huge_pages: &str, reasons: &[Apart]) {
    let _setting = Setting::set(Path::new(HUGE_PAGES), huge_pages);
    let (cost, done) = page_out(kind, huge_pages, &mut Program::start(kind, BLOCKS));
    assert_eq!(done, BLOCKS * PAGES_OF_BLOCK, "all of it left");
    assert!(cost.counts.apart.keys().all(|why| reasons.contains(why)), "{:?}", cost.counts);
}

/// As many blocks are not collapsed, for this reason; the others go whole.
fn is_apart(kind: &str, blocks: u64, why: Apart) {
    let _setting = Setting::set(Path::new(HUGE_PAGES), "madvise");
    let (cost, _) = page_out(kind, "madvise", &mut Program::start(kind, BLOCKS));
    assert_eq!(apart(&cost, why), blocks * PAGES_OF_BLOCK, "{:?}", cost.counts);
    assert_eq!(cost.counts.collapsed, (BLOCKS - blocks) * PAGES_OF_BLOCK, "{:?}", cost.counts);
}

fn merged_memory_stays_merged() {
    let ksm = Path::new(KSM);
    if !ksm.exists() {
        live::skipped("merged_memory_stays_merged", "this kernel has no KSM (CONFIG_KSM)");
        return;
    }
    let _setting = Setting::set(Path::new(HUGE_PAGES), "madvise");
    let _ksm = [("pages_to_scan", "4096"), ("sleep_millisecs", "10"), ("run", "1")]
        .map(|(name, value)| Setting::set(&ksm.join(name), value));
    let mut program = Program::start("ksm", BLOCKS);
    let merged = || {
        let text = std::fs::read_to_string(format!("/proc/{}/ksm_merging_pages", program.pid())).unwrap();
        text.trim().parse::<u64>().unwrap()
    };
    wait_until(PATIENCE, "each page is merged", || merged() >= BLOCKS * PAGES_OF_BLOCK - 8);
    let (cost, _) = page_out("ksm", "madvise", &mut program);
    assert_eq!(apart(&cost, Apart::Shared), BLOCKS * PAGES_OF_BLOCK, "{:?}", cost.counts);
}

fn locked_memory_stays() {
    let _setting = Setting::set(Path::new(HUGE_PAGES), "madvise");
    let (cost, done) = page_out("locked", "madvise", &mut Program::start("locked", BLOCKS));
    assert_eq!((done, cost.counts.pages()), (0, 0), "nothing of it leaves: {:?}", cost.counts);
}

/// A Terrace in small: PID ADDRESS [guarded]. Sets compressed swap up, pages all of it out, and waits.
fn page_out_until_killed(arguments: &[String]) -> ExitCode {
    let (pid, first) = (arguments[0].parse().unwrap(), Vpn(arguments[1].parse().unwrap()));
    let guard = (arguments.len() > 2).then(|| Guard::start().unwrap());
    let zram = ZramSwap::set_up(&ZramOptions::of_size(Bytes::mib(256)), guard.as_ref()).unwrap();
    let tiers = swap::with_swap(Topology::discover(Path::new("/")).unwrap(), &zram.device());
    settle(&tiers);
    println!("{}", zram.device().display());
    let process = Process::open(pid).unwrap();
    let mut results = Vec::new();
    Movers::for_tiers(&tiers, STALL_DEADLINE).execute(&process, &all_pages(first, MANY_BLOCKS), &tiers, &mut results);
    // It is to be killed before it comes here, or while it waits.
    let _ = std::io::stdin().read(&mut [0]);
    ExitCode::FAILURE
}

/// The moment of each kill is when a random number of blocks has left, and a random part of a millisecond later.
fn data_survive_kills_in_the_middle_of_collapsing() {
    if !has_pids_of_machine() {
        live::skipped("data_survive_kills_in_the_middle_of_collapsing", "pids here are not the machine's");
        return;
    }
    let _setting = Setting::set(Path::new(HUGE_PAGES), "madvise");
    let kills: u64 = std::env::var("TERRACE_KILLS").map_or(20, |text| text.parse().unwrap());
    let mut program = Program::start("plain", MANY_BLOCKS);
    let footprint = program.footprint();
    let (mut state, mut in_the_middle) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for kill in 1..=kills {
        let guarded = kill % 2 == 0;
        let (blocks, later) = (random(MANY_BLOCKS - 1), Duration::from_micros(random(1000)));
        let before = (counted("thp_swpout"), counted("thp_collapse_alloc"));
        let mut words = vec![MOVER_ARGUMENT.to_owned(), program.pid().to_string(), program.first.0.to_string()];
        words.extend(guarded.then(|| "guarded".to_owned()));
        let mut mover =
            Command::new("/proc/self/exe").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut device = String::new();
        BufReader::new(mover.stdout.take().unwrap()).read_line(&mut device).unwrap();
        let device = PathBuf::from(device.trim());
        wait_until(PATIENCE, "enough blocks have left", || counted("thp_swpout") - before.0 >= blocks);
        std::thread::sleep(later);
        mover.kill().unwrap();
        mover.wait().unwrap();
        let left = counted("thp_swpout") - before.0;
        let collapsed = counted("thp_collapse_alloc") - before.1;
        in_the_middle += u64::from(left < MANY_BLOCKS && collapsed > 0);
        if guarded {
            let there = Path::new("/sys/block").join(device.file_name().unwrap());
            wait_until(PATIENCE, "the guard takes the swap away", || !there.exists());
        } else {
            // As the next Terrace does when it starts.
            let found = leftovers();
            assert_eq!(found.len(), 1, "{found:?}");
            assert_eq!(found[0].zram.device(), device);
            found.into_iter().next().unwrap().remove().unwrap();
        }
        assert!(leftovers().is_empty(), "nothing is left behind");
        let end = Vpn(program.first.0 + MANY_BLOCKS * PAGES_OF_BLOCK);
        let count = Pagemap::open(program.pid()).unwrap().count(program.first, end).unwrap();
        assert_eq!(count.swapped_pages, 0, "all of it is back");
        assert_eq!(program.check(), "intact", "kill {kill}");
        let grown = program.footprint().saturating_sub(footprint);
        assert!(grown <= Bytes::new(256 * PAGE_BYTES), "kill {kill}: the program has {grown} more");
        println!(
            "    kill {kill:2}: {}, {collapsed} blocks collapsed and {left} of {MANY_BLOCKS} out; data right",
            if guarded { "the guard cleaned up     " } else { "the next start cleaned up" },
        );
    }
    assert!(in_the_middle * 4 >= kills * 3, "too few kills came in the middle: {in_the_middle} of {kills}");
}
