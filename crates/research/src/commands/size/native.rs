//! The micro-benchmark as a program of this machine: arrays in its tiers, real loads, real moves.
//!
//! In: a benchmark. Out: what was performed: loads as the threads made them, moves and places as the kernel tells them. Must not:
//! count as moved what was only asked for, or leave compressed swap behind.
//!
//! The slow array is moved to the slow tier before the clock starts. Where that is a node, slow accesses are loads from it, and both
//! kinds of moves are made by a mover beside the threads. Where it is compressed swap, a visit to a slow page is a fault that
//! brings the page back, a promotion is nothing but that, and the mover puts the pages that must stay slow out again. A page that
//! is on its way is not visited before it is there; the threads do something else, or wait, as programs wait for reclaim.

mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context;
use terrace_core::units::{PAGE_BYTES, TierId, Vpn};
use terrace_linux::move_cost::half_noise;
use terrace_linux::movers::{MoveResult, Mover, PageMove};
use terrace_linux::pagemap::{Pagemap, Residence};
use terrace_linux::process::Process;
use terrace_linux::topology::{TierKind, TierMap};
use terrace_run::spec::RunSpec;
use terrace_sizing::Benchmark;
use terrace_sizing::simulated::Performed;

use crate::args::checked;
use crate::options::misuse;
use crate::session::machine::{Machine, release};

use worker::{Common, Done, Movable, Worker};

const PAGE: usize = PAGE_BYTES as usize;
/// Pages of one call to the mover.
const BATCH: usize = 256;
/// Pages that may wait for the mover; a thread that is further ahead waits, as a program does whose reclaim is behind.
const WAITING: usize = 4096;
/// The mover takes what there is after so long: a few page-outs' time, so that threads that wait for few pages do not wait for a batch.
const LINGER: Duration = Duration::from_micros(100);
/// So often a page is tried that does not leave, as one does that the kernel is just looking at; then it counts as not moved.
const TRIES: u32 = 4;

/// What a native run did.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Native {
    #[serde(flatten)]
    pub performed: Performed,
    /// Whether slow accesses are faults.
    pub slow_faults: bool,
    /// Faults that brought a page back, as the kernel counts them.
    pub major_faults: u64,
    /// Pages put out again because they came back by a slow access.
    pub put_out_again: u64,
    /// Name of the slow tier.
    #[serde(skip)]
    pub slow_tier: &'static str,
}

/// Performs the benchmark in the memory of this process.
///
/// # Errors
/// When there is no slow tier that pages can be moved to, or not enough of it.
pub(super) fn perform(benchmark: &Benchmark, tier_slow: &str) -> anyhow::Result<Native> {
    let slow = tier_slow.parse().map_err(|error| misuse("--tier-slow", tier_slow, error))?;
    // What watching costs is measured, and bounded by max_slowdown.
    let spec = RunSpec { slow, max_overhead: 1.0, ..RunSpec::default() };
    let spec = checked(spec, crate::session::memory()?)?;
    let machine = Machine::prepare(&spec, &[terrace_core::policy::Needs { scans: true, ..Default::default() }], None)?;
    let done = run(benchmark, &machine.ready.tiers, machine.ready.mover());
    release(machine.ready.held)?;
    done
}

/// Pages by what is done with them, as numbers in the memory.
struct Layout {
    fast: std::ops::Range<u64>,
    demoted: std::ops::Range<u64>,
    overflow: std::ops::Range<u64>,
    slow: std::ops::Range<u64>,
    promoted: std::ops::Range<u64>,
    pages: u64,
}

impl Layout {
    fn new(benchmark: &Benchmark) -> Layout {
        let mut at = 0;
        let mut next = |pages: u64| {
            at += pages;
            at - pages..at
        };
        let (fast, demoted, overflow) =
            (next(benchmark.fast_pages), next(benchmark.demoted_pages), next(benchmark.overflow_pages));
        let (slow, promoted) = (next(benchmark.slow_pages), next(benchmark.promoted_pages));
        Layout { fast, demoted, overflow, slow, promoted, pages: at.max(benchmark.resident_pages) }
    }

    fn slow_from(&self) -> u64 {
        self.overflow.start
    }
}

fn run(benchmark: &Benchmark, tiers: &TierMap, mut mover: Box<dyn Mover>) -> anyhow::Result<Native> {
    let layout = Layout::new(benchmark);
    let slow = tiers.tiers().last().filter(|tier| tier.id > TierId::FAST).map(|tier| tier.id);
    let slow = slow.context("there is no slow tier: see --tier-slow")?;
    let faults = matches!(tiers.tier(slow).kind, TierKind::Swap { .. });
    let memory = half_noise((layout.pages as usize + 1) * PAGE);
    let skip = memory.as_ptr().align_offset(PAGE);
    let base = Vpn((memory.as_ptr() as u64 + skip as u64) / PAGE_BYTES);
    let bytes = &memory[skip..skip + layout.pages as usize * PAGE];
    let me = Process::open(std::process::id())?;
    let mut moves = Moves { mover: &mut *mover, me: &me, tiers, base, slow, results: Vec::new() };
    // The slow array, and the idle pages behind it, leave before the clock starts.
    let begin: Vec<u64> = (layout.slow_from()..layout.pages).collect();
    for pages in begin.chunks(BATCH) {
        moves.make(pages, false);
    }
    let out = in_slow(base, layout.overflow.start..layout.promoted.end, faults)?;
    let wanted = layout.promoted.end - layout.overflow.start;
    anyhow::ensure!(
        !faults || out * 100 >= wanted * 98,
        "only {out} of {wanted} pages could be moved to {}: is it large enough?",
        tiers.tier(slow).name
    );

    let (sender, receiver) = mpsc::sync_channel::<Order>(WAITING);
    let before = me.stat()?;
    let under_way: Vec<AtomicBool> = (0..layout.pages).map(|_| AtomicBool::new(false)).collect();
    let movable = Movable::new(&layout);
    let threads = u64::from(benchmark.threads.max(1));
    let common =
        Common { benchmark, layout: &layout, movable: &movable, under_way: &under_way, bytes, base, threads, faults };
    let workers: Result<Vec<Worker>, _> =
        (0..threads).map(|thread| Worker::new(common, thread, sender.clone())).collect();
    let workers = workers.context("/proc/self/pagemap")?;
    drop(sender);
    let began = Instant::now();
    let (moved, done) = std::thread::scope(|scope| {
        let numbered = workers.into_iter().zip(0..);
        let running: Vec<_> = numbered.map(|(worker, seed)| scope.spawn(move || worker.work(seed))).collect();
        let moved = carry_out(&receiver, &mut moves, &under_way);
        let done: Vec<Done> = running.into_iter().filter_map(|thread| thread.join().ok()).collect();
        (moved, done)
    });
    let seconds = began.elapsed().as_secs_f64();
    let major_faults = me.stat()?.major_faults - before.major_faults;
    let total = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>();
    let slow_loads = total(|done| done.slow_loads);
    Ok(Native {
        performed: Performed {
            seconds,
            fast_accesses: total(|done| done.loads) - slow_loads,
            slow_accesses: if faults { major_faults } else { slow_loads },
            // Where a touch promotes, those whose page was out just before it.
            promotions: if faults { total(|done| done.promotions) } else { moved.promoted },
            demotions: moved.demoted,
            operations: total(|done| done.computed),
        },
        slow_faults: faults,
        major_faults,
        put_out_again: moved.put_out_again,
        slow_tier: if faults { "compressed swap" } else { "a node" },
    })
}

/// Why a thread hands a page over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// It came back by a slow access, and is to be slow.
    PutOutAgain,
    Demote,
    Promote,
}

/// A page for the mover.
#[derive(Clone, Copy, Debug)]
struct Order {
    page: u64,
    why: Why,
    tries: u32,
}

/// Moves that were made.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    promoted: u64,
    demoted: u64,
    put_out_again: u64,
}

/// The mover, with its parameters.
struct Moves<'a> {
    mover: &'a mut dyn Mover,
    me: &'a Process,
    tiers: &'a TierMap,
    base: Vpn,
    slow: TierId,
    results: Vec<MoveResult>,
}

impl Moves<'_> {
    /// Moves pages up or down; one result each, in order.
    fn make(&mut self, pages: &[u64], up: bool) -> &[MoveResult] {
        let (from, to) = if up { (self.slow, TierId::FAST) } else { (TierId::FAST, self.slow) };
        let one = |page: &u64| PageMove { vpn: Vpn(self.base.0 + page), pages: 1, from, to };
        let moves: Vec<PageMove> = pages.iter().map(one).collect();
        self.results.clear();
        self.mover.execute(self.me, &moves, self.tiers, &mut self.results);
        &self.results
    }
}

/// Makes the moves that threads ask for, in batches of one direction, until the last thread has let go of its end.
fn carry_out(receiver: &mpsc::Receiver<Order>, moves: &mut Moves, under_way: &[AtomicBool]) -> Moved {
    let mut moved = Moved::default();
    let mut waiting: Vec<Order> = Vec::new();
    loop {
        if waiting.is_empty() {
            match receiver.recv() {
                Ok(order) => waiting.push(order),
                Err(_) => return moved,
            }
        }
        while waiting.len() < BATCH
            && let Ok(order) = receiver.recv_timeout(LINGER)
        {
            waiting.push(order);
        }
        // Neighbours leave in one call.
        waiting.sort_unstable_by_key(|order| order.page);
        let mut again = Vec::new();
        for up in [false, true] {
            let orders: Vec<Order> =
                waiting.iter().copied().filter(|order| (order.why == Why::Promote) == up).collect();
            if orders.is_empty() {
                continue;
            }
            let pages: Vec<u64> = orders.iter().map(|order| order.page).collect();
            for (order, result) in orders.into_iter().zip(moves.make(&pages, up)) {
                if result.done == 0 && order.tries + 1 < TRIES {
                    again.push(Order { tries: order.tries + 1, ..order });
                    continue;
                }
                let count = match order.why {
                    Why::PutOutAgain => &mut moved.put_out_again,
                    Why::Demote => &mut moved.demoted,
                    Why::Promote => &mut moved.promoted,
                };
                *count += u64::from(result.done);
                under_way[order.page as usize].store(false, Ordering::Release);
            }
        }
        waiting = again;
    }
}

/// Pages of the range that are out of memory, where slow means swap.
fn in_slow(base: Vpn, range: std::ops::Range<u64>, faults: bool) -> anyhow::Result<u64> {
    if !faults || range.is_empty() {
        return Ok(0);
    }
    let mut pagemap = Pagemap::open(std::process::id())?;
    let mut residences = vec![Residence::Absent; (range.end - range.start) as usize];
    pagemap.residences(Vpn(base.0 + range.start), &mut residences)?;
    Ok(residences.iter().filter(|residence| **residence == Residence::Swapped).count() as u64)
}
