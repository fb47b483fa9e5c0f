//! Live tests of movers, compressed swap and the undo guard, on the kernel at hand. They need root and zram.
//!
//! In: nothing, or a part of a test's name. Out: one line a test; lines that start with SKIPPED say what could not be
//! tried and why. Must not: leave anything behind; each test is followed by a comparison of /proc/swaps and the zram
//! devices with what they were at the start.
//!
//! It has its own `main`, because the guard starts the running program again, and the children are this program too.
//! One after the other, and one run at a time (a lock in the temporary directory): swap belongs to the whole machine.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test program: it speaks, and panics are its failures")]

#[path = "common/patterned.rs"]
mod patterned;
#[path = "common/swap.rs"]
mod swap;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use patterned::{Mode, Patterned, Piece};
use swap::{settle, with_swap, zram_tiers};
use terrace_core::plan::Failure;
use terrace_core::units::{Bytes, TierId, Vpn};
use terrace_fixtures::{live, wait_until};
use terrace_linux::doctor::Doctor;
use terrace_linux::guard::{GUARD_ARGUMENT, Guard, Undo, run_guardian};
use terrace_linux::movers::{MovePages, MoveResult, Mover, Movers, PageMove, STALL_DEADLINE, SideBySide};
use terrace_linux::pagemap::{Pagemap, Residence};
use terrace_linux::process::{Process, RangeOptions};
use terrace_linux::topology::swap::read_swaps;
use terrace_linux::topology::{Tier, TierKind, TierMap, Topology};
use terrace_linux::zram::{Owner, ZramError, ZramOptions, ZramSwap, has_pids_of_machine, leftovers};

/// Makes this program a Terrace that holds a zram under guard until it is killed, or until stdin closes.
const HOLDER_ARGUMENT: &str = "__holder";
const FAST: TierId = TierId(0);
const SWAP: TierId = TierId(1);

const TESTS: &[live::LiveTest] = &[
    ("pages_go_out_and_come_back_unharmed", pages_go_out_and_come_back_unharmed),
    ("two_thousand_ranges_go_and_only_the_locked_stay", two_thousand_ranges_go_and_only_the_locked_stay),
    ("locked_memory_is_not_offered_and_does_not_move", locked_memory_is_not_offered_and_does_not_move),
    ("shared_pages_stay", shared_pages_stay),
    ("a_process_that_ended_is_gone", a_process_that_ended_is_gone),
    ("a_huge_page_goes_whole", a_huge_page_goes_whole),
    ("move_pages_reads_the_status_of_each_page", move_pages_reads_the_status_of_each_page),
    ("full_swap_is_told_as_no_room", full_swap_is_told_as_no_room),
    ("what_a_limited_zram_refuses_is_no_room", what_a_limited_zram_refuses_is_no_room),
    ("a_refused_set_up_leaves_nothing", a_refused_set_up_leaves_nothing),
    ("zram_goes_and_data_stay_when_terrace_is_killed", zram_goes_and_data_stay_when_terrace_is_killed),
    ("a_leftover_is_told_by_its_label_and_can_be_removed", a_leftover_is_told_by_its_label_and_can_be_removed),
    ("a_clean_exit_leaves_the_guardian_nothing", a_clean_exit_leaves_the_guardian_nothing),
    ("a_guardian_without_records_ends_at_once", a_guardian_without_records_ends_at_once),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some(GUARD_ARGUMENT) => return ExitCode::from(run_guardian(std::io::stdin())),
        Some(patterned::CHILD_ARGUMENT) => {
            patterned::run_child(&arguments[1..]);
            return ExitCode::SUCCESS;
        }
        Some(HOLDER_ARGUMENT) if arguments.len() > 1 => return hold_without_guard(),
        Some(HOLDER_ARGUMENT) => return hold(),
        _ => {}
    }
    live::run("live_movers", TESTS, || live::need_root().and(swap::need_zram()))
}

fn pages_of(pieces: &[Piece], from: TierId, to: TierId) -> Vec<PageMove> {
    let pages = pieces.iter().flat_map(|piece| piece.first.0..piece.first.0 + piece.pages);
    pages.map(|vpn| PageMove { vpn: Vpn(vpn), pages: 1, from, to }).collect()
}

fn execute(process: &Process, moves: &[PageMove], tiers: &TierMap) -> Vec<MoveResult> {
    settle(tiers);
    let mut results = Vec::new();
    let cost = Movers::for_tiers(tiers, STALL_DEADLINE).execute(process, moves, tiers, &mut results);
    assert_eq!(results.len(), moves.len());
    println!(
        "    {} moves: {} calls, {:.1} ms, longest {:.1} ms",
        moves.len(),
        cost.calls,
        cost.elapsed.as_secs_f64() * 1e3,
        cost.longest_call.as_secs_f64() * 1e3
    );
    results
}

fn done(results: &[MoveResult]) -> u64 {
    results.iter().map(|result| u64::from(result.done)).sum()
}

fn pages_go_out_and_come_back_unharmed() {
    let mut child = Patterned::start(Mode::Plain, 16384);
    let (zram, tiers) = zram_tiers(Bytes::mib(256));
    let process = Process::open(child.pid()).unwrap();
    let piece = child.pieces[0];
    // Every third page first, then the rest, so that neither ranges nor order are tidy.
    let mut moves = pages_of(&child.pieces, FAST, SWAP);
    moves.sort_by_key(|item| (item.vpn.0 % 3, item.vpn.0 % 7));
    let results = execute(&process, &moves, &tiers);
    let mut pagemap = Pagemap::open(child.pid()).unwrap();
    let count = pagemap.count(piece.first, Vpn(piece.first.0 + piece.pages)).unwrap();
    assert_eq!(done(&results), count.swapped_pages, "what is reported is what the page tables say");
    assert_eq!(count.swapped_pages, 16384, "a child at rest gives up all of it");
    let usage = zram.usage().unwrap();
    println!("    zram: {usage:?}, {:.2}:1", usage.ratio().unwrap());
    assert!(usage.orig_data_bytes >= Bytes::mib(63) && usage.mem_used_bytes < Bytes::mib(32), "{usage:?}");

    let back: Vec<PageMove> = moves[..10_000].iter().map(|item| PageMove { from: SWAP, to: FAST, ..*item }).collect();
    let results = execute(&process, &back, &tiers);
    assert_eq!(done(&results), 10_000);
    let mut places = vec![Residence::Absent; 16384];
    pagemap.residences(piece.first, &mut places).unwrap();
    assert_eq!(places.iter().filter(|place| place.is_present()).count(), 10_000);
    for item in &back {
        assert!(places[(item.vpn.0 - piece.first.0) as usize].is_present());
    }
    let faults = process.stat().unwrap().major_faults;
    assert_eq!(child.check(), "intact");
    let faults = process.stat().unwrap().major_faults - faults;
    assert!((6000..6500).contains(&faults), "only what was still out costs the child a fault: {faults}");
    zram.tear_down().unwrap();
    assert_eq!(child.check(), "intact");
}

fn two_thousand_ranges_go_and_only_the_locked_stay() {
    let mut child = Patterned::start(Mode::Pieces, 8000);
    assert_eq!(child.pieces.len(), 2000);
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(child.pid()).unwrap();
    let offered = process.ranges(RangeOptions::default()).unwrap();
    let offers = |vpn: Vpn| offered.iter().any(|range| range.start <= vpn && vpn < range.end);
    assert!(child.pieces.iter().all(|piece| offers(piece.first) != piece.locked), "locked pieces are not offered");
    // Asked for all the same: the kernel refuses the locked ones, which must not cost the others their move.
    let moves = pages_of(&child.pieces, FAST, SWAP);
    let results = execute(&process, &moves, &tiers);
    let mut at = 0;
    for piece in &child.pieces {
        for result in &results[at..at + 4] {
            if piece.locked {
                assert_eq!(*result, MoveResult { done: 0, failure: Some(Failure::Errno(libc::EINVAL)) });
            } else {
                assert_eq!(*result, MoveResult { done: 1, failure: None });
            }
        }
        at += 4;
    }
    assert_eq!(done(&results), 1980 * 4);
    assert_eq!(child.check(), "intact");
    zram.tear_down().unwrap();
}

fn locked_memory_is_not_offered_and_does_not_move() {
    let mut child = Patterned::start(Mode::Locked, 1000);
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(child.pid()).unwrap();
    let piece = child.pieces[0];
    let offered = process.ranges(RangeOptions::default()).unwrap();
    assert!(!offered.iter().any(|range| range.start <= piece.first && piece.first < range.end));
    let results = execute(&process, &pages_of(&child.pieces, FAST, SWAP), &tiers);
    assert_eq!(done(&results), 0);
    assert!(results.iter().all(|result| result.failure.unwrap().is_permanent()), "no use to try again");
    assert_eq!(child.check(), "intact");
    zram.tear_down().unwrap();
}

fn shared_pages_stay() {
    // A shell and its subshell share what neither has written since the fork.
    let mut shell = Command::new("sh")
        .args(["-c", "( echo ready; read line ); true"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    // The shell itself still runs when its child is ready, and gives memory back; once it waits for that it touches nothing.
    while !std::fs::read_to_string(format!("/proc/{}/stat", shell.id())).unwrap().contains(") S ") {
        std::thread::yield_now();
    }
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(shell.id()).unwrap();
    let mut pagemap = Pagemap::open(shell.id()).unwrap();
    let mut shared = Vec::new();
    for range in process.ranges(RangeOptions::default()).unwrap() {
        let mut entries = vec![Default::default(); (range.end.0 - range.start.0) as usize];
        pagemap.entries(range.start, &mut entries).unwrap();
        let mut residences = vec![Residence::Absent; entries.len()];
        pagemap.residences(range.start, &mut residences).unwrap();
        for ((page, entry), residence) in (range.start.0..).zip(&entries).zip(&residences) {
            // Anonymous, present, and another process maps it too. The kernel's zero page belongs to no process.
            if residence.is_present() && !entry.exclusive() && !entry.file_or_shared() {
                shared.push(PageMove { vpn: Vpn(page), pages: 1, from: FAST, to: SWAP });
            }
        }
    }
    assert!(!shared.is_empty(), "a forked shell shares pages");
    let results = execute(&process, &shared, &tiers);
    assert_eq!(done(&results), 0);
    assert!(results.iter().all(|result| result.failure == Some(Failure::Stayed)), "{results:?}");
    drop(shell.stdin.take());
    shell.wait().unwrap();
    zram.tear_down().unwrap();
}

fn a_process_that_ended_is_gone() {
    let mut child = Patterned::start(Mode::Plain, 2000);
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(child.pid()).unwrap();
    let out = pages_of(&child.pieces, FAST, SWAP);
    // An address that is not mapped any more is gone as well, while the process lives.
    let nowhere = [PageMove { vpn: Vpn(16), pages: 1, from: FAST, to: SWAP }];
    let results = execute(&process, &nowhere, &tiers);
    assert_eq!(results[0], MoveResult { done: 0, failure: Some(Failure::Gone) });
    child.end();
    let back: Vec<PageMove> = out.iter().map(|item| PageMove { from: SWAP, to: FAST, ..*item }).collect();
    for moves in [&out, &back] {
        let results = execute(&process, moves, &tiers);
        assert!(results.iter().all(|result| result.done == 0 && result.failure == Some(Failure::Gone)));
    }
    zram.tear_down().unwrap();
}

fn a_huge_page_goes_whole() {
    let mut child = Patterned::start(Mode::Huge, 4 * 512);
    let piece = child.pieces[0];
    let mut pagemap = Pagemap::open(child.pid()).unwrap();
    let huge = pagemap.count(piece.first, Vpn(piece.first.0 + piece.pages)).unwrap().huge_pages;
    if huge != piece.pages {
        println!("SKIPPED a_huge_page_goes_whole: only {huge} of {} pages are mapped huge", piece.pages);
        return;
    }
    let (zram, tiers) = zram_tiers(Bytes::mib(64));
    let process = Process::open(child.pid()).unwrap();
    let block = |number: u64| PageMove { vpn: Vpn(piece.first.0 + number * 512), pages: 512, from: FAST, to: SWAP };
    let results = execute(&process, &[block(2), block(0)], &tiers);
    assert_eq!(results, [MoveResult { done: 512, failure: None }; 2]);
    let count = pagemap.count(piece.first, Vpn(piece.first.0 + piece.pages)).unwrap();
    assert_eq!((count.swapped_pages, count.huge_pages), (1024, 1024), "the other two are huge as before");
    let back = [0, 2].map(|number| PageMove { from: SWAP, to: FAST, ..block(number) });
    assert_eq!(done(&execute(&process, &back, &tiers)), 1024);
    assert_eq!(child.check(), "intact");
    zram.tear_down().unwrap();
}

fn move_pages_reads_the_status_of_each_page() {
    let mut child = Patterned::start(Mode::Plain, 20_000);
    let process = Process::open(child.pid()).unwrap();
    // Two tiers of the one node that every machine has: the kernel finds each page where it should be.
    let tier = |id| Tier {
        id: TierId(id),
        name: format!("t{id}"),
        kind: TierKind::Nodes { nodes: vec![0] },
        capacity_bytes: Bytes::gib(1),
        read_latency_ns: None,
        read_bandwidth_mbps: None,
    };
    let mut missing = tier(2);
    missing.kind = TierKind::Nodes { nodes: vec![900] };
    let tiers = TierMap::new(vec![tier(0), tier(1), missing], Vec::new());
    let mut moves = pages_of(&child.pieces, TierId(0), TierId(1));
    // An address without a page, in the middle.
    moves[7000].vpn = Vpn(16);
    let mut mover = MovePages::new(STALL_DEADLINE);
    let mut results = Vec::new();
    let cost = mover.execute(&process, &moves, &tiers, &mut results);
    println!("    {cost:?}");
    assert_eq!(done(&results), 19_999);
    assert!(matches!(results[7000].failure, Some(Failure::Errno(libc::EFAULT | libc::ENOENT))));
    assert!(cost.calls < 60, "batches grow: {} calls", cost.calls);
    // Four threads say the same of each.
    let mut by_four = Vec::new();
    let cost = SideBySide::new(4, STALL_DEADLINE).execute(&process, &moves, &tiers, &mut by_four);
    println!("    by four threads: {cost:?}");
    assert_eq!(by_four, results);
    // A node outside the cpuset is refused before the kernel is asked.
    let moves = pages_of(&child.pieces[..1], TierId(0), TierId(2));
    results.clear();
    let cost = mover.execute(&process, &moves[..10], &tiers, &mut results);
    assert_eq!(cost.calls, 0);
    assert_eq!(results, [MoveResult { done: 0, failure: Some(Failure::Errno(libc::EACCES)) }; 10]);
    assert_eq!(child.check(), "intact");
}

fn full_swap_is_told_as_no_room() {
    let others = read_swaps(Path::new("/")).unwrap();
    if !others.is_empty() {
        println!("SKIPPED full_swap_is_told_as_no_room: other swap would take the overflow: {others:?}");
        return;
    }
    let mut child = Patterned::start(Mode::Plain, 4096);
    let (zram, tiers) = zram_tiers(Bytes::mib(4));
    let process = Process::open(child.pid()).unwrap();
    let results = execute(&process, &pages_of(&child.pieces, FAST, SWAP), &tiers);
    assert!((512..1024).contains(&done(&results)), "4 MiB hold less than 1024 pages: {}", done(&results));
    let rest = results.iter().filter(|result| result.done == 0);
    assert!(rest.clone().count() > 3000);
    let told = rest.filter(|result| result.failure == Some(Failure::NoRoom)).count();
    println!("    told as no room: {told}");
    assert!(told > 3000);
    assert_eq!(child.check(), "intact");
    zram.tear_down().unwrap();
}

/// Pages that zram refuses get a swap entry and stay in memory, in the swap cache: they are taken back, and not told as moved.
fn what_a_limited_zram_refuses_is_no_room() {
    let mut child = Patterned::start(Mode::Plain, 16384);
    let (zram, tiers) = zram_tiers(Bytes::mib(256));
    std::fs::write(format!("/sys/block/zram{}/mem_limit", zram.id()), "2M").unwrap();
    let process = Process::open(child.pid()).unwrap();
    settle(&tiers);
    let (moves, mut results) = (pages_of(&child.pieces, FAST, SWAP), Vec::new());
    let cost = Movers::for_tiers(&tiers, STALL_DEADLINE).execute(&process, &moves, &tiers, &mut results);
    let usage = zram.usage().unwrap();
    let (told, stored) = (done(&results), usage.orig_data_bytes.pages());
    println!("    {told} told, {stored} stored in {}, {} taken back", usage.mem_used_bytes, cost.unwritten);
    assert!(cost.unwritten > 0 && told > 0 && told < 16000, "the limit is met in the middle: {told}");
    assert!(told.abs_diff(stored) <= told / 50, "{told} told as moved, {stored} written");
    let piece = child.pieces[0];
    let count = Pagemap::open(child.pid()).unwrap().count(piece.first, Vpn(piece.first.0 + piece.pages)).unwrap();
    assert_eq!((count.swapped_pages, count.present_pages), (told, 16384 - told));
    let refused = results.iter().filter(|result| result.done == 0);
    assert!(refused.clone().all(|result| result.failure == Some(Failure::NoRoom)));
    assert_eq!(child.check(), "intact");
    zram.tear_down().unwrap();
}

fn a_refused_set_up_leaves_nothing() {
    let options = ZramOptions { algorithm: Some("no-such".to_owned()), ..ZramOptions::of_size(Bytes::mib(64)) };
    let error = ZramSwap::set_up(&options, None).unwrap_err();
    assert!(matches!(&error, ZramError::Algorithm { available, .. } if available.contains("lz")), "{error}");
    println!("    {error}");
}

/// A Terrace in small: guard, zram, and nothing else until it is killed.
fn hold() -> ExitCode {
    let guard = Guard::start().unwrap();
    let zram = ZramSwap::set_up(&ZramOptions::of_size(Bytes::mib(256)), Some(&guard)).unwrap();
    let knob = std::env::temp_dir().join(format!("terrace-knob-{}", std::process::id()));
    std::fs::write(&knob, "changed").unwrap();
    let token = guard
        .protect(Undo::WriteFile {
            path: knob.clone(),
            previous: "as it was".to_owned(),
            ours: vec!["changed".to_owned()],
        })
        .unwrap();
    println!("{} {} {}", zram.device().display(), guard.pid(), knob.display());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    // A clean exit: undo, then forget; the guardian must not do it again.
    std::fs::write(&knob, "undone by hand").unwrap();
    token.forget().unwrap();
    zram.tear_down().unwrap();
    assert!(guard.finish(Duration::from_secs(10)));
    ExitCode::SUCCESS
}

/// The same without a guard, for what is left behind then.
fn hold_without_guard() -> ExitCode {
    let zram = ZramSwap::set_up(&ZramOptions::of_size(Bytes::mib(16)), None).unwrap();
    println!("{} 0 none", zram.device().display());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    ExitCode::SUCCESS
}

struct Holder {
    child: std::process::Child,
    device: std::path::PathBuf,
    guardian: u32,
    knob: std::path::PathBuf,
}

fn start_holder(more: &[&str]) -> Holder {
    let mut child = Command::new("/proc/self/exe")
        .arg(HOLDER_ARGUMENT)
        .args(more)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    Holder { child, device: fields[0].into(), guardian: fields[1].parse().unwrap(), knob: fields[2].into() }
}

fn is_running(pid: u32) -> bool {
    Process::open(pid).is_ok_and(|process| process.is_alive())
}

fn zram_goes_and_data_stay_when_terrace_is_killed() {
    let mut child = Patterned::start(Mode::Plain, 16384);
    let mut holder = start_holder(&[]);
    let tiers = with_swap(Topology::discover(Path::new("/")).unwrap(), &holder.device);
    let process = Process::open(child.pid()).unwrap();
    let results = execute(&process, &pages_of(&child.pieces, FAST, SWAP), &tiers);
    assert_eq!(done(&results), 16384);
    assert!(leftovers().is_empty(), "its owner lives: no leftover");
    let status = std::fs::read_to_string(format!("/proc/{}/status", holder.guardian)).unwrap();
    let resident = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    println!("    guardian: {resident}");
    // ^C and the end of a service reach everyone of the group; the guardian lives on.
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM, rustix::process::Signal::HUP] {
        let guardian = rustix::process::Pid::from_raw(holder.guardian as i32).unwrap();
        rustix::process::kill_process(guardian, signal).unwrap();
    }
    assert!(is_running(holder.guardian));
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    let device = holder.device.file_name().unwrap().to_owned();
    let gone = || !Path::new("/sys/block").join(&device).exists();
    let took = wait_until(Duration::from_secs(10), "zram gone after kill -9", gone);
    println!("    zram gone {:.2} s after kill -9 with 64 MiB in it", took.as_secs_f64());
    let ended = || !is_running(holder.guardian);
    wait_until(Duration::from_secs(5), "the guardian ends", ended);
    assert_eq!(std::fs::read_to_string(&holder.knob).unwrap(), "as it was");
    std::fs::remove_file(&holder.knob).unwrap();
    assert_eq!(child.check(), "intact");
}

fn a_leftover_is_told_by_its_label_and_can_be_removed() {
    if !has_pids_of_machine() {
        println!("SKIPPED a_leftover_is_told_by_its_label_and_can_be_removed: pids here are not the machine's");
        return;
    }
    let mut holder = start_holder(&["without guard"]);
    assert!(leftovers().is_empty(), "its owner lives");
    holder.child.kill().unwrap();
    holder.child.wait().unwrap();
    let found = leftovers();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].owner, found[0].zram.device()), (Owner::Pid(holder.child.id()), holder.device));
    println!("    {}", found[0].remedy);
    let advice = Doctor::examine().unwrap().advice;
    assert!(advice.iter().any(|line| line.ends_with(&found[0].remedy)), "the doctor says it: {advice:?}");
    found[0].zram.take_away().unwrap();
    assert!(leftovers().is_empty());
}

fn a_clean_exit_leaves_the_guardian_nothing() {
    let mut holder = start_holder(&[]);
    drop(holder.child.stdin.take());
    assert!(holder.child.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(&holder.knob).unwrap(), "undone by hand");
    std::fs::remove_file(&holder.knob).unwrap();
    assert!(!is_running(holder.guardian));
}

fn a_guardian_without_records_ends_at_once() {
    let mut program = Command::new("/proc/self/exe");
    program.arg(GUARD_ARGUMENT).stdin(Stdio::null()).stdout(Stdio::piped());
    let output = program.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "terrace-guard ready\n");
    assert!(output.status.success(), "nothing to undo");
}
