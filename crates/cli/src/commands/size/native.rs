//! The micro-benchmark as a program of this machine: arrays in its tiers, real loads, real moves.
//!
//! In: a benchmark. Out: what was performed: loads as the threads made them, moves and places as the kernel tells them. Must not:
//! count as moved what was only asked for, or leave compressed swap behind.
//!
//! The slow array is moved to the slow tier before the clock starts. Where that is a node, slow accesses are loads from it, and both
//! kinds of moves are made by a mover beside the threads. Where it is compressed swap, a visit to a slow page is a fault that
//! brings the page back, a promotion is nothing but that, and the mover puts the pages that must stay slow out again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use anyhow::Context;
use terrace_core::units::{PAGE_BYTES, TierId, Vpn};
use terrace_linux::movers::{Mover, PageMove};
use terrace_linux::pagemap::{Pagemap, Residence};
use terrace_linux::process::Process;
use terrace_linux::topology::{TierKind, TierMap};
use terrace_sizing::Benchmark;
use terrace_sizing::simulated::Performed;

use crate::session::machine::Machine;
use crate::session::{Plan, TargetSpec};

const PAGE: usize = PAGE_BYTES as usize;
/// Pages of one call to the mover.
const BATCH: usize = 256;
/// Pages that may wait for the mover; a thread that is further ahead waits, as a program does whose reclaim is behind.
const WAITING: usize = 4096;

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
    let plan = plan(tier_slow)?;
    let machine = Machine::prepare(&plan, terrace_core::policy::Needs { scans: true, ..Default::default() })?;
    let done = run(benchmark, &machine.parts.tiers, machine.parts.mover);
    machine.held.release()?;
    done
}

fn plan(tier_slow: &str) -> anyhow::Result<Plan> {
    let memory = crate::commands::manage::memory()?;
    let raw = crate::args::ManageArguments {
        watch: crate::args::WatchArguments {
            tracker: "auto".to_owned(),
            interval: None,
            files: false,
            shared: false,
            report: None,
            json: false,
            json_file: None,
            quiet: true,
        },
        policy: "age".to_owned(),
        settings: Vec::new(),
        fast: "min".to_owned(),
        tier_slow: tier_slow.to_owned(),
        rate: None,
        max_stall: "2%".to_owned(),
        dry_run: false,
    };
    let options = crate::options::ManageOptions::parse(&raw, memory)?;
    Ok(Plan::manage(TargetSpec::Pid(std::process::id()), options, None))
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
            (next(benchmark.fast_pages), next(benchmark.demotions), next(benchmark.overflow_pages));
        let (slow, promoted) = (next(benchmark.slow_pages), next(benchmark.promotions));
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
    let mut memory = vec![0u8; (layout.pages as usize + 1) * PAGE];
    fill(&mut memory);
    let skip = memory.as_ptr().align_offset(PAGE);
    let base = Vpn((memory.as_ptr() as u64 + skip as u64) / PAGE_BYTES);
    let bytes = &memory[skip..skip + layout.pages as usize * PAGE];
    let me = Process::open(std::process::id())?;
    let mut results = Vec::new();
    let mut put = |mover: &mut Box<dyn Mover>, pages: &[u64], from: TierId, to: TierId| -> u64 {
        let moves: Vec<PageMove> =
            pages.iter().map(|page| PageMove { vpn: Vpn(base.0 + page), pages: 1, from, to }).collect();
        results.clear();
        mover.execute(&me, &moves, tiers, &mut results);
        results.iter().map(|result| u64::from(result.done)).sum()
    };
    // The slow array, and the idle pages behind it, leave before the clock starts.
    let begin: Vec<u64> = (layout.slow_from()..layout.pages).collect();
    for pages in begin.chunks(BATCH) {
        put(&mut mover, pages, TierId::FAST, slow);
    }
    let out = in_slow(base, layout.overflow.start..layout.promoted.end, faults)?;
    let wanted = layout.promoted.end - layout.overflow.start;
    anyhow::ensure!(
        !faults || out * 100 >= wanted * 98,
        "only {out} of {wanted} pages could be moved to {}: is it large enough?",
        tiers.tier(slow).name
    );

    let (sender, receiver) = mpsc::sync_channel::<(u64, bool)>(WAITING);
    let before = me.stat()?;
    let loads = AtomicU64::new(0);
    let slow_visits = AtomicU64::new(0);
    let computed = AtomicU64::new(0);
    let threads = u64::from(benchmark.threads.max(1));
    let began = Instant::now();
    let mut moved = BTreeMap::from([(true, 0u64), (false, 0u64)]);
    let mut again = 0;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (sender, layout, loads, slow_visits, computed) =
                (sender.clone(), &layout, &loads, &slow_visits, &computed);
            scope.spawn(move || {
                let mut worker = Worker {
                    benchmark,
                    layout,
                    bytes,
                    thread,
                    threads,
                    faults,
                    sender,
                    loads: 0,
                    slow_loads: 0,
                    computed: 0,
                    sum: 0,
                };
                worker.work();
                loads.fetch_add(worker.loads, Ordering::Relaxed);
                slow_visits.fetch_add(worker.slow_loads, Ordering::Relaxed);
                computed.fetch_add(worker.computed, Ordering::Relaxed);
            });
        }
        drop(sender);
        // The mover: what threads hand over, in batches of one direction.
        let mut waiting: Vec<(u64, bool)> = Vec::new();
        let mut open = true;
        while open || !waiting.is_empty() {
            match receiver.recv() {
                Ok(item) => waiting.push(item),
                Err(_) => open = false,
            }
            while waiting.len() < BATCH
                && let Ok(item) = receiver.try_recv()
            {
                waiting.push(item);
            }
            if waiting.len() < BATCH && open {
                continue;
            }
            for up in [false, true] {
                let pages: Vec<u64> =
                    waiting.iter().filter(|(_, to_fast)| *to_fast == up).map(|(page, _)| *page).collect();
                if pages.is_empty() {
                    continue;
                }
                let (from, to) = if up { (slow, TierId::FAST) } else { (TierId::FAST, slow) };
                let demoted: Vec<u64> = pages.iter().copied().filter(|page| layout.demoted.contains(page)).collect();
                let others: Vec<u64> = pages.iter().copied().filter(|page| !layout.demoted.contains(page)).collect();
                let done = put(&mut mover, &demoted, from, to);
                let rest = put(&mut mover, &others, from, to);
                *moved.entry(up).or_default() += if up { done + rest } else { done };
                again += if up { 0 } else { rest };
            }
            waiting.clear();
        }
    });
    let seconds = began.elapsed().as_secs_f64();
    let major_faults = me.stat()?.major_faults - before.major_faults;
    // Where a touch promotes, the promoted pages are those that are in memory now.
    let promotions = match faults {
        true => layout.promoted.end - layout.promoted.start - in_slow(base, layout.promoted.clone(), faults)?,
        false => moved[&true],
    };
    let slow_loads = if faults { major_faults } else { slow_visits.load(Ordering::Relaxed) };
    Ok(Native {
        performed: Performed {
            seconds,
            fast_accesses: loads.load(Ordering::Relaxed) - slow_visits.load(Ordering::Relaxed),
            slow_accesses: slow_loads,
            promotions,
            demotions: moved[&false],
            operations: computed.load(Ordering::Relaxed),
        },
        slow_faults: faults,
        major_faults,
        put_out_again: again,
        slow_tier: if faults { "compressed swap" } else { "a node" },
    })
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

/// Data that compresses about 2 to 1, as ordinary data does: half of each page is noise.
fn fill(memory: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for page in memory.chunks_mut(PAGE) {
        let half = page.len() / 2;
        for byte in &mut page[..half] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
        if let Some(last) = page.last_mut() {
            *last = 1;
        }
    }
}

/// One thread with its part of everything.
struct Worker<'a> {
    benchmark: &'a Benchmark,
    layout: &'a Layout,
    bytes: &'a [u8],
    thread: u64,
    threads: u64,
    faults: bool,
    sender: mpsc::SyncSender<(u64, bool)>,
    loads: u64,
    /// Accesses that slow memory served: loads from a node, or visits that faulted.
    slow_loads: u64,
    computed: u64,
    sum: u64,
}

impl Worker<'_> {
    fn part(&self, amount: u64) -> u64 {
        amount * (self.thread + 1) / self.threads - amount * self.thread / self.threads
    }

    fn pages(&self, range: &std::ops::Range<u64>) -> std::ops::Range<u64> {
        let count = range.end - range.start;
        range.start + count * self.thread / self.threads..range.start + count * (self.thread + 1) / self.threads
    }

    fn work(&mut self) {
        let b = self.benchmark;
        // Kinds of visits with what is left of each: fast, overflow, slow, promote, demote.
        let visits = |accesses: u64, a_visit: u32| accesses.div_ceil(u64::from(a_visit.max(1)));
        let mut left = [
            self.part(visits(b.fast_accesses + b.spared_accesses, b.fast_accesses_a_visit)),
            self.part(visits(b.overflow_accesses, b.fast_accesses_a_visit)),
            self.part(visits(b.slow_accesses, b.slow_accesses_a_visit)),
            self.part(b.promotions),
            self.part(b.demotions),
        ];
        let ranges =
            [&self.layout.fast, &self.layout.overflow, &self.layout.slow, &self.layout.promoted, &self.layout.demoted]
                .map(|range| self.pages(range));
        let mut at = [0u64; 5];
        let each = b.operations as f64 / b.accesses().max(1) as f64;
        let mut random = self.thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut due = 0.0;
        loop {
            let all: u64 = left.iter().sum();
            if all == 0 {
                break;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut drawn = ((u128::from(random >> 11) * u128::from(all)) >> 53) as u64;
            let mut kind = 0;
            while drawn >= left[kind] {
                drawn -= left[kind];
                kind += 1;
            }
            left[kind] -= 1;
            let count = (ranges[kind].end - ranges[kind].start).max(1);
            let (pass, page) = (at[kind] / count, ranges[kind].start + at[kind] % count);
            at[kind] += 1;
            let accesses = match kind {
                0 | 1 => b.fast_accesses_a_visit,
                2 => b.slow_accesses_a_visit,
                3 => b.accesses_a_promotion,
                _ => 1,
            };
            if ranges[kind].is_empty() {
                continue;
            }
            for access in 0..accesses.max(1) {
                let line = (pass + u64::from(access) * (64 / u64::from(accesses.clamp(1, 64)))) % 64;
                let place = page as usize * PAGE + line as usize * 64;
                self.sum = self.sum.wrapping_add(u64::from(std::hint::black_box(self.bytes)[place]));
                self.loads += 1;
                due += each;
                while due >= 1.0 {
                    // An integer multiplication and an addition that depend on what was loaded.
                    self.sum = std::hint::black_box(self.sum.wrapping_mul(3).wrapping_add(1));
                    self.computed += 1;
                    due -= 1.0;
                }
            }
            // One visit is one fault; from a node, every load is slow.
            let slow = matches!(kind, 1..=3);
            self.slow_loads += if !slow {
                0
            } else if self.faults {
                1
            } else {
                u64::from(accesses)
            };
            let handed = match kind {
                1 | 2 if self.faults => Some((page, false)),
                3 if !self.faults => Some((page, true)),
                4 => Some((page, false)),
                _ => None,
            };
            // The mover is there until the last thread has let go of its end.
            if let Some(item) = handed
                && self.sender.send(item).is_err()
            {
                return;
            }
        }
        std::hint::black_box(self.sum);
    }
}
