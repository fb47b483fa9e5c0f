//! The micro-benchmark on the simulator: access by access, with a policy that moves exactly the requested pages.
//!
//! In: a benchmark and a machine. Out: what was performed, counted by the machine, and how long it took. Must not: count what it
//! asked for as done.
//!
//! Pages are visited in strides: a visit makes its accesses at even distances in the page, and the next visit goes to the next
//! page of the thread's part, so that neither cache nor prefetched neighbours serve it. Visits of all kinds follow each other
//! at random, in the proportion of their numbers. A promoted page joins the pages that will be demoted, and the other way
//! round, so that more moves than pages can be made.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use terrace_core::governor::GovernorConfig;
use terrace_core::observation::Observations;
use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{CapacityView, Feedback, Kernel, Needs, Policy, PolicyReport, Profile, Remap, Schedule};
use terrace_core::units::{Bytes, PageId, SpaceId, TierId, Time, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::preset::Machine;
use terrace_sim::config::unbound;
use terrace_sim::record::Record;
use terrace_sim::{FastSize, SimConfig, SimError, Simulation};

use crate::microbench::Benchmark;
use crate::model::slow_tier;

const LINES: u32 = 64;
/// Accesses fed at a time.
const BATCH: usize = 4096;

/// What a run did, as the machine counted it.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Performed {
    /// Run time without the pass that touches all pages once.
    pub seconds: f64,
    /// Accesses that fast memory served.
    pub fast_accesses: u64,
    /// Accesses that slow memory served.
    pub slow_accesses: u64,
    /// Pages promoted.
    pub promotions: u64,
    /// Pages demoted.
    pub demotions: u64,
    /// Operations.
    pub operations: u64,
}

/// Moves that are to be made.
type Queue = Arc<Mutex<VecDeque<(Vpn, TierId)>>>;

/// The policy that makes them.
struct Script {
    queue: Queue,
    /// First slow page of the layout, and the slow tier.
    slow_from: u64,
    slow: TierId,
    /// The first page of each block the engine knows.
    starts: Vec<u64>,
    planned: Time,
}

impl Script {
    fn again(&self, page: PageId, to: TierId, pages: &Pages) {
        let (_, vpn) = pages.locate(page);
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((vpn, to));
    }
}

impl Policy for Script {
    fn profile(&self) -> Profile {
        // Promotions are the program's time, as in the kernels that promote in the hint fault.
        Profile::new("micro-benchmark", Needs::default())
            .above(Kernel { promotion_needs_high_watermark: true, ..Kernel::default() })
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        if let Remap::Mapped(blocks) = change {
            for &block in blocks {
                let Some(info) = pages.block(block) else { continue };
                if self.starts.len() <= block.0 as usize {
                    self.starts.resize(block.0 as usize + 1, 0);
                }
                self.starts[block.0 as usize] = info.start.0;
            }
        }
    }

    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}

    fn feedback(&mut self, _now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::Moved(done) => {
                for outcome in done.iter().filter(|outcome| outcome.failure.is_some()) {
                    if let terrace_core::plan::Action::MoveTo(to) = outcome.item.action {
                        self.again(outcome.item.page, to, pages);
                    }
                }
            }
            Feedback::Rejected(request, _) => {
                if let terrace_core::plan::Action::MoveTo(to) = request.action
                    && pages[request.page].tier().is_some_and(|tier| tier != to)
                {
                    self.again(request.page, to, pages);
                }
            }
            _ => {}
        }
    }

    fn plan(&mut self, now: Time, _capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.planned = now;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        while requests.left() > 0
            && let Some((vpn, to)) = queue.pop_front()
        {
            if let Some(page) = pages.find(SpaceId(0), vpn) {
                requests.move_to(page, to, if to == TierId::FAST { Reason::Hot } else { Reason::Cold });
            }
        }
    }

    fn place(&mut self, _now: Time, page: PageId, _capacity: &CapacityView<'_>) -> TierId {
        let start = self.starts.get(page.block().0 as usize).copied().unwrap_or(0);
        if start + u64::from(page.offset()) < self.slow_from { TierId::FAST } else { self.slow }
    }

    fn schedule(&self) -> Schedule {
        // Always soon: the driver asks after every stretch.
        Schedule { wake_at: Some(Time::from_nanos(self.planned.as_nanos() + 1)), ..Schedule::default() }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}

/// An access of the micro-benchmark.
#[derive(Clone, Copy, Debug)]
struct Load {
    page: u64,
    line: u32,
    thread: u16,
    cycles: u32,
}

impl Record for Load {
    fn page(&self) -> u64 {
        self.page
    }
    fn line(&self) -> u32 {
        self.line
    }
    fn wait(&self) -> Wait {
        Wait::Load
    }
    fn thread(&self) -> usize {
        usize::from(self.thread)
    }
    fn cycles(&self) -> u32 {
        self.cycles
    }
}

/// Pages that are visited in turn, each thread its own part.
struct Array {
    first: u64,
    pages: u64,
    accesses_a_visit: u32,
    left: u64,
    at: Vec<u64>,
}

impl Array {
    fn new(first: u64, pages: u64, accesses: u64, accesses_a_visit: u32, threads: usize) -> Array {
        let at = (0..threads as u64).map(|thread| pages * thread / threads as u64).collect();
        Array { first, pages, accesses_a_visit, left: accesses, at }
    }

    fn visits(&self) -> u64 {
        self.left.div_ceil(u64::from(self.accesses_a_visit.max(1)))
    }

    /// The page of the thread's next visit, how many accesses it makes, and how many came before them.
    fn visit(&mut self, thread: usize) -> (u64, u32, u64) {
        let accesses = self.left.min(u64::from(self.accesses_a_visit)) as u32;
        self.left -= u64::from(accesses);
        let threads = self.at.len() as u64;
        let (low, high) = (self.pages * thread as u64 / threads, self.pages * (thread as u64 + 1) / threads);
        let part = (high - low).max(1);
        let (pass, page) = (self.at[thread].wrapping_sub(low) / part, low + self.at[thread].wrapping_sub(low) % part);
        self.at[thread] += 1;
        // A pass goes on where the one before ended, or a unit of the medium would be found in its buffer.
        let before = pass.wrapping_mul(u64::from(self.accesses_a_visit)) % u64::from(LINES);
        (self.first + page.min(self.pages.saturating_sub(1)), accesses, before)
    }
}

/// The line of an access of a page, by how many of its kind came before: 36 lines up or 28 down, farther than prefetchers follow, through all
/// 16 units of 256 bytes before one comes again, and through all lines.
fn line_of(before: u64) -> u32 {
    ((before * 36 + before / 16 % 4) % u64::from(LINES)) as u32
}

/// What is left to do of a benchmark.
struct Work {
    arrays: [Array; 3],
    /// Promotions and demotions.
    moves: [Moves; 2],
    queue: Queue,
    threads: usize,
    random: u64,
    /// Visits so far.
    turn: usize,
}

/// Moves one way that are left to do, and the pages that can make them.
struct Moves {
    left: u64,
    pages: VecDeque<u64>,
    to: TierId,
    accesses: u32,
}

impl Work {
    /// The next visit: its thread, the page, how many accesses it makes, and how many of its kind came before them.
    fn visit(&mut self) -> Option<(usize, u64, u32, u64)> {
        // A move whose pages are all on the other side waits until one comes back.
        let ready = |moves: &Moves| if moves.pages.is_empty() { 0 } else { moves.left };
        let [fast, overflow, steady] = self.arrays.each_ref().map(Array::visits);
        let visits = [fast, overflow, steady, ready(&self.moves[0]), ready(&self.moves[1])];
        let all: u64 = visits.iter().sum();
        if all == 0 {
            return None;
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut drawn = ((u128::from(self.random >> 11) * u128::from(all)) >> 53) as u64;
        let mut kind = 0;
        while kind + 1 < visits.len() && drawn >= visits[kind] {
            drawn -= visits[kind];
            kind += 1;
        }
        let thread = self.turn % self.threads;
        self.turn += 1;
        if kind < self.arrays.len() {
            let (page, accesses, before) = self.arrays[kind].visit(thread);
            return Some((thread, page, accesses, before));
        }
        let moves = &mut self.moves[kind - 3];
        moves.left -= 1;
        let page = moves.pages.pop_front()?;
        self.queue.lock().unwrap_or_else(PoisonError::into_inner).push_back((Vpn(page), moves.to));
        let (accesses, before) = (moves.accesses, moves.left % u64::from(LINES));
        self.moves[4 - kind].pages.push_back(page);
        Some((thread, page, accesses, before))
    }
}

/// Performs the benchmark.
///
/// # Errors
/// When the machine has no room for it.
pub fn perform(benchmark: &Benchmark, machine: &Machine, seed: u64) -> Result<Performed, SimError> {
    let threads = benchmark.threads.max(1) as usize;
    let slow = TierId(slow_tier(machine) as u8);
    // The layout: what begins fast, then what begins slow, then what nobody accesses.
    let (fast, demoted) = (benchmark.fast_pages, benchmark.demoted_pages);
    let slow_from = fast + demoted;
    let (overflow, steady, promoted) = (benchmark.overflow_pages, benchmark.slow_pages, benchmark.promoted_pages);
    let pages = (slow_from + overflow + steady + promoted).max(benchmark.resident_pages);
    // Twice the room on both sides: the layout holds the sizes, and watermarks are not to interfere.
    let mut config = SimConfig::new(machine.clone(), Bytes::of_pages(2 * pages + (1 << 16)), FastSize::Share(1.0));
    // An access of the benchmark is one that misses the cache; a small array in a large cache would not.
    (config.seed, config.cache) = (seed, false);
    config.governor = GovernorConfig { batch_pages: 512, ..unbound() };
    let queue = Queue::default();
    let script = Script { queue: queue.clone(), slow_from, slow, starts: Vec::new(), planned: Time::ZERO };
    let mut simulation = Simulation::new(config, Box::new(script))?;
    simulation.map(Vpn(0), pages, false);
    let load = |page, line, thread: usize, cycles| Load { page, line, thread: thread as u16, cycles };
    let touch: Vec<Load> = (0..pages).map(|page| load(page, LINES - 1, (page % threads as u64) as usize, 0)).collect();
    simulation.feed(&touch);
    simulation.meet();
    let before = simulation.counters();

    let visit = benchmark.fast_accesses_a_visit;
    let steady_from = slow_from + overflow;
    let promoted_pages = steady_from + steady..steady_from + steady + promoted;
    let moves = |left, pages: Range<u64>, to, accesses| Moves { left, pages: pages.collect(), to, accesses };
    let mut work = Work {
        arrays: [
            Array::new(0, fast, benchmark.fast_accesses + benchmark.spared_accesses, visit, threads),
            Array::new(slow_from, overflow, benchmark.overflow_accesses, visit, threads),
            Array::new(steady_from, steady, benchmark.slow_accesses, benchmark.slow_accesses_a_visit, threads),
        ],
        moves: [
            moves(benchmark.promotions, promoted_pages, TierId::FAST, benchmark.accesses_a_promotion),
            moves(benchmark.demotions, fast..slow_from, slow, 1),
        ],
        queue: queue.clone(),
        threads,
        random: seed | 1,
        turn: 0,
    };
    let a_access = benchmark.operations as f64 / benchmark.accesses().max(1) as f64;
    let (mut computed, mut made) = (0u64, 0u64);
    let mut batch: Vec<Load> = Vec::with_capacity(BATCH + LINES as usize);
    while let Some((thread, page, accesses, before)) = work.visit() {
        for access in 0..accesses {
            made += 1;
            let due = (made as f64 * a_access) as u64;
            batch.push(load(page, line_of(before + u64::from(access)), thread, (due - computed) as u32));
            computed = due;
        }
        if batch.len() >= BATCH {
            simulation.feed(&batch);
            batch.clear();
        }
    }
    simulation.feed(&batch);
    simulation.meet();
    // The moves that were asked for belong to the run; a mover that does not make progress would be a fault.
    for _ in 0..100_000 {
        if queue.lock().unwrap_or_else(PoisonError::into_inner).is_empty() && simulation.is_settled() {
            break;
        }
        simulation.settle();
        simulation.meet();
    }
    let after = simulation.counters();
    simulation.finish("micro-benchmark")?;
    Ok(Performed {
        seconds: after.now.since(before.now).as_secs_f64(),
        fast_accesses: after.fast_accesses - before.fast_accesses,
        slow_accesses: after.slow_accesses - before.slow_accesses,
        promotions: after.promoted - before.promoted,
        demotions: after.demoted - before.demoted,
        operations: (after.operations - before.operations).round() as u64,
    })
}
