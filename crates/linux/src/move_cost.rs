//! What moves cost a program on this machine, measured on pages of this process.
//!
//! In: the tiers. Out: the cost of a refault, what a page-out takes of a thread that runs on another processor meanwhile, and what a move
//! between nodes costs the mover and such a thread. Must not: touch another process, or guess where nothing could be measured.
//!
//! Why page-outs cost a program that does not touch the pages: the kernel writes a dirty page out only after it has flushed the TLBs of all
//! processors on which the address space runs, so that each page-out interrupts them and leaves their TLBs empty. How dear that is differs
//! with the machine (in a virtual one an interrupt is an exit) and with the program; here a thread goes through as many pages as a second-level
//! TLB has entries, which has it refill the most after each flush.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_core::plan::Failure;
use terrace_core::prices::Prices;
use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, TierId, Vpn};

use crate::movers::{MoveResult, Mover, Movers, PageMove};
use crate::process::{Process, ProcessError};
use crate::split_cost::InsidePrice;
use crate::swap_in::FolioSize;
use crate::sys::placement::{ask_for_small_pages, prefer_memory_from};
use crate::topology::nodes::free_memory;
use crate::topology::{Tier, TierKind, TierMap};
use crate::usage::thread_cpu;

/// What moves cost, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCost {
    /// What one refault costs the program that makes it.
    pub refault: Option<Duration>,
    /// What one page-out takes of each thread that runs meanwhile; `None` without swap, and where it could not be measured.
    pub page_out: Option<Interval>,
    /// The mover's processor time for such a page.
    pub page_out_mover: Option<Duration>,
    /// What a whole block that goes out as one huge page costs; `None` where none went whole.
    pub block_out: Option<BlockPrice>,
    /// What it costs to look inside of huge pages, once that was asked for.
    pub inside: Option<InsidePrice>,
    /// What a move between the two fastest tiers of nodes costs; `None` with fewer of them, and where it could not be measured.
    pub between_nodes: Option<NodeMove>,
    /// Pages of Terrace itself that were moved between nodes to find out: the kernel counts them too.
    pub measured_pages: u64,
}

/// What memory costs that goes to swap as folios of one size: a block of 2 MiB as one huge page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockPrice {
    /// Processor time of the mover for each 4 KiB of it, collapsing included where it was not huge before.
    pub mover: Duration,
    /// What the block, or the page of a smaller folio, takes of each thread that runs meanwhile; `None` on a single processor, and where the thread did not run.
    pub program: Option<Interval>,
}

/// What moving a page of 4 KiB between two tiers of nodes costs: the mean of there and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMove {
    /// Processor time of the mover, copy included.
    pub mover: Duration,
    /// Of it the copy, as one core reads a page of the slower tier and writes one of the faster.
    pub copy: Duration,
    /// What it takes of each thread that runs meanwhile; `None` on a single processor, and where the thread did not run.
    pub interrupt: Option<Interval>,
}

impl MoveCost {
    /// What a move takes of each running thread of a program: where pages go to swap a page-out, else a move between nodes.
    pub fn interrupt(&self) -> Option<Interval> {
        self.page_out.or_else(|| self.between_nodes?.interrupt)
    }

    /// The prices by which a policy weighs a move between nodes, if they were measured. What was not measured (a huge page's fixed part) is as assumed; the
    /// distance is that of the firmware's table (HMAT) where it has one.
    pub fn prices(&self, tiers: &TierMap) -> Option<Prices> {
        let measured = self.between_nodes?;
        let nanos = |time: Duration| time.as_nanos() as f64;
        let flush_ns = measured.interrupt.map_or(Prices::ASSUMED.flush_small_ns, |interval| nanos(interval.median));
        let latency = |tier: Option<&Tier>| tier.and_then(|tier| tier.read_latency_ns).map(f64::from);
        let inside = self.inside.unwrap_or_default();
        // The mover's time, and what one thread loses meanwhile.
        let of_block = |price: Option<BlockPrice>, assumed: f64| {
            price.map_or(assumed, |price| {
                nanos(price.mover * BLOCK_PAGES) + price.program.map_or(0.0, |each| nanos(each.median))
            })
        };
        let farther = latency(tiers.tiers().get(1)).zip(latency(tiers.tiers().first())).map(|(slow, fast)| slow - fast);
        Some(Prices {
            move_small_ns: nanos(measured.mover.saturating_sub(measured.copy)),
            copy_ns: nanos(measured.copy),
            flush_ns: flush_ns.max(Prices::ASSUMED.flush_ns),
            flush_small_ns: flush_ns,
            split_ns: of_block(inside.split, Prices::ASSUMED.split_ns),
            collapse_ns: of_block(inside.collapse, Prices::ASSUMED.collapse_ns),
            walk_ns: inside.walk.map_or(Prices::ASSUMED.walk_ns, nanos),
            farther_ns: farther.filter(|more| *more > 0.0).unwrap_or(Prices::ASSUMED.farther_ns),
            ..Prices::ASSUMED
        })
    }
}

/// A median, and an interval of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// The median.
    pub median: Duration,
    /// Lower end of the interval of 93 %.
    pub low: Duration,
    /// Upper end.
    pub high: Duration,
}

/// Pages that go out, as many each round.
const PAGES: usize = 1024;
/// A size that the allocator always takes from the kernel as new memory.
pub(crate) const FRESH: usize = 33 << 20;
/// Rounds: between the second and the seventh of eight values the median lies in 93 of 100 cases (binomial, 1 - 18/256).
pub(crate) const ROUNDS: usize = 8;
/// A round of fewer says more of the machine's noise: pages that were touched just now may stay (a folio batch has 31).
const LEAST_PAGES: usize = 32;
/// Blocks that go out in a round: one takes a millisecond, in which a thread's loss drowns in the machine's noise.
const BLOCKS: usize = 3;
/// Longest that the thread is watched undisturbed, before and after each round.
const UNDISTURBED: Duration = Duration::from_millis(4);
/// Free memory of a slower node that is taken for room; less is left to the programs.
const ROOM: Bytes = Bytes::mib(64);
/// Pages that the watched thread goes through: entries of a second-level TLB (1,024 to 2,048 on processors of the last ten years).
const HOT_PAGES: usize = 1024;

/// Pages of this process that were paged out and touched again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refault {
    /// What one refault cost; `None` where too few pages left.
    pub cost: Option<Duration>,
    /// How many left.
    pub left: u64,
    /// Why others did not.
    pub failure: Option<Failure>,
}

/// What a refault costs, on pages of this process; and whether any page can leave at all, before one of a program is asked to.
///
/// # Errors
/// When this process cannot be read.
pub fn refault(tiers: &TierMap, swap: TierId, deadline: Duration) -> Result<Refault, ProcessError> {
    let mut pages = OwnPages::new(tiers, swap, deadline)?;
    let results: Vec<MoveResult> = (0..ROUNDS).flat_map(|round| pages.out(round)).collect();
    let mut touches: Vec<Duration> = Vec::new();
    for (number, _) in results.iter().enumerate().filter(|(_, result)| result.done == 1) {
        let began = Instant::now();
        std::hint::black_box(std::hint::black_box(&pages.memory)[pages.skip + number * PAGE_BYTES as usize]);
        touches.push(began.elapsed());
    }
    touches.sort_unstable();
    // The median of single touches is taken, since on a shared machine the mean counts other programs' time.
    let cost = (touches.len() >= PAGES / 4).then(|| touches[touches.len() / 2]);
    Ok(Refault { cost, left: touches.len() as u64, failure: results.iter().find_map(|result| result.failure) })
}

/// What a page-out takes of a thread that runs meanwhile, on pages and a thread of this process: 60 ms. `None` where there is
/// no second processor to be interrupted, or in more than half of the rounds too few pages left or the thread did not run.
///
/// # Errors
/// When this process cannot be read.
pub fn page_out(tiers: &TierMap, swap: TierId, deadline: Duration) -> Result<Option<Interval>, ProcessError> {
    if !others_can_be_interrupted() {
        return Ok(None);
    }
    let mut pages = OwnPages::new(tiers, swap, deadline)?;
    Ok(beside_a_thread(|round| done(&pages.out(round)) as usize))
}

/// The mover's processor time for a page that goes out alone: the median of rounds without a thread beside it. `None` where too few left.
///
/// # Errors
/// When this process cannot be read.
pub fn page_out_mover(tiers: &TierMap, swap: TierId, deadline: Duration) -> Result<Option<Duration>, ProcessError> {
    let mut pages = OwnPages::new(tiers, swap, deadline)?;
    let times = (0..ROUNDS).filter_map(|round| {
        let began = thread_cpu();
        let left = done(&pages.out(round)) as usize;
        (left >= LEAST_PAGES).then(|| thread_cpu().saturating_sub(began) / left as u32)
    });
    Ok(median(times.collect()))
}

/// What a page costs that goes out as part of a folio of this size, or alone: of the mover, and of a thread that runs beside it. The kernel must use
/// folios of the size for new memory. `None` where it had too few of them, and where too few pages left.
///
/// # Errors
/// When this process cannot be read.
pub fn folio_out(
    tiers: &TierMap,
    swap: TierId,
    deadline: Duration,
    size: Option<FolioSize>,
) -> Result<Option<BlockPrice>, ProcessError> {
    let Some(size) = size else {
        let mut pages = OwnPages::new(tiers, swap, deadline)?;
        return Ok(in_rounds(|round| done(&pages.out(round)) as usize));
    };
    let root = Path::new("/");
    let before = size.made(root);
    // Of a mapping of its own: smaller memory may be some that was used before, whose pages are there already (M_MMAP_THRESHOLD in mallopt(3) is
    // 32 MiB at most). Only the first part of it is ever touched.
    let mut memory = vec![0u8; FRESH];
    fill_with_half_noise(&mut memory[..(PAGES + 2 * size.pages() as usize) * PAGE_BYTES as usize]);
    let made = before.zip(size.made(root)).map_or(0, |(before, after)| after.saturating_sub(before));
    // A folio that was not to be had, and a huge page instead of 32 folios, would be measured as what they are not.
    if made * size.pages() < (PAGES - PAGES / 8) as u64 {
        return Ok(None);
    }
    let mut pages = OwnPages::of(memory, size.pages(), tiers, swap, deadline)?;
    Ok(in_rounds(|round| done(&pages.out(round)) as usize))
}

/// The price of a page in rounds of `carry`, which returns how many pages went, each round next to a thread that runs. `None` if more than half
/// of the rounds failed.
pub(crate) fn in_rounds(mut carry: impl FnMut(usize) -> usize) -> Option<BlockPrice> {
    let mut times = Vec::new();
    let mut out = |round: usize| {
        let began = thread_cpu();
        let pages = carry(round);
        if pages >= LEAST_PAGES {
            times.push(thread_cpu().saturating_sub(began) / pages as u32);
        }
        pages
    };
    let program = if others_can_be_interrupted() {
        beside_a_thread(&mut out)
    } else {
        (0..ROUNDS).for_each(|round| _ = out(round));
        None
    };
    median(times).map(|mover| BlockPrice { mover, program })
}

/// What a whole block costs that goes out as one huge page, on blocks and a thread of this process: 130 ms. `None` where in more than half
/// of the rounds the block did not go whole: the kernel is older than 6.1, has no free huge page, or splits them for this swap.
///
/// # Errors
/// When this process cannot be read.
pub fn block_out(tiers: &TierMap, swap: TierId, deadline: Duration) -> Result<Option<BlockPrice>, ProcessError> {
    let block = BLOCK_PAGES as usize * PAGE_BYTES as usize;
    let memory = half_noise((ROUNDS * BLOCKS + 1) * block);
    let first = (memory.as_ptr() as u64).next_multiple_of(block as u64) / PAGE_BYTES;
    let me = Process::open(std::process::id())?;
    let mut mover = Movers::for_tiers(tiers, deadline);
    let count = BLOCKS * BLOCK_PAGES as usize;
    let pages = (first..).take(ROUNDS * count);
    let moves: Vec<PageMove> =
        pages.map(|page| PageMove { vpn: Vpn(page), pages: 1, from: TierId::FAST, to: swap }).collect();
    let price = in_rounds(|round| {
        let counts = mover.execute(&me, &moves[round * count..][..count], tiers, &mut Vec::new()).counts;
        if counts.huge + counts.collapsed == count as u64 { count } else { 0 }
    });
    let of_block = |each: Interval| Interval {
        median: each.median * BLOCK_PAGES,
        low: each.low * BLOCK_PAGES,
        high: each.high * BLOCK_PAGES,
    };
    Ok(price.map(|price| BlockPrice { program: price.program.map(of_block), ..price }))
}

/// The median; `None` if more than half of the rounds failed.
fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    (times.len() >= ROUNDS / 2).then(|| times[times.len() / 2])
}

/// What a move between the two fastest tiers costs, where both consist of nodes: pages of this process go to the slower and back, next to a
/// thread that runs all the time. Takes some 70 ms. With it, how many pages moved; they are all back afterwards, but for those that the
/// kernel would not move. `None` where that is more than half of the rounds, none of this process's memory came from the fast node, or the
/// slower ones are full.
///
/// # Errors
/// When this process cannot be read.
pub fn between_nodes(tiers: &TierMap, deadline: Duration) -> Result<(Option<NodeMove>, u64), ProcessError> {
    let [fast, slow, ..] = tiers.tiers() else { return Ok((None, 0)) };
    let (TierKind::Nodes { nodes }, TierKind::Nodes { nodes: slower }) = (&fast.kind, &slow.kind) else {
        return Ok((None, 0));
    };
    if !slower.iter().any(|node| free_memory(Path::new("/"), *node) >= Some(ROOM)) {
        return Ok((None, 0));
    }
    let mut pages = OwnPages::on_nodes(tiers, slow.id, deadline, nodes)?;
    let mut moved = 0;
    let price = in_rounds(|round| {
        let there_and_back = done(&pages.out(round)) + done(&pages.back(round));
        moved += there_and_back;
        there_and_back as usize
    });
    let Some(BlockPrice { mover, program: interrupt }) = price else { return Ok((None, moved)) };
    moved += done(&pages.out(0));
    let copy = pages.time_of_copy(0).min(mover);
    moved += done(&pages.back(0));
    Ok((Some(NodeMove { mover, copy, interrupt }), moved))
}

/// Pages that moved.
fn done(results: &[MoveResult]) -> u64 {
    results.iter().map(|result| u64::from(result.done)).sum()
}

/// Whether there is more than one processor: on a single one nothing runs during a page-out.
pub fn others_can_be_interrupted() -> bool {
    std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1)
}

/// Pages of this process that go out in rounds.
struct OwnPages<'a> {
    memory: Vec<u8>,
    /// Bytes before the first page.
    skip: usize,
    first: u64,
    /// Which of them take part.
    takes_part: Vec<bool>,
    me: Process,
    mover: Movers,
    tiers: &'a TierMap,
    slower: TierId,
}

impl<'a> OwnPages<'a> {
    fn new(tiers: &'a TierMap, swap: TierId, deadline: Duration) -> Result<OwnPages<'a>, ProcessError> {
        Self::of(half_noise_in_small_pages((PAGES + 1) * PAGE_BYTES as usize), 1, tiers, swap, deadline)
    }

    /// The pages of this memory, from the first whose number is a multiple of `multiple`.
    fn of(
        memory: Vec<u8>,
        multiple: u64,
        tiers: &'a TierMap,
        slower: TierId,
        deadline: Duration,
    ) -> Result<OwnPages<'a>, ProcessError> {
        let first = (memory.as_ptr() as u64).div_ceil(PAGE_BYTES).next_multiple_of(multiple);
        let skip = (first * PAGE_BYTES - memory.as_ptr() as u64) as usize;
        let me = Process::open(std::process::id())?;
        let (mover, takes_part) = (Movers::for_tiers(tiers, deadline), vec![true; PAGES]);
        Ok(OwnPages { memory, skip, first, takes_part, me, mover, tiers, slower })
    }

    /// Those of them that came from the fast tier's nodes; what lies elsewhere would not move, and cost next to nothing.
    fn on_nodes(
        tiers: &'a TierMap,
        slower: TierId,
        deadline: Duration,
        fast: &[u32],
    ) -> Result<OwnPages<'a>, ProcessError> {
        // A thread of its own asks for the node: the policy of this one is inherited by the program that it starts.
        let memory = std::thread::scope(|scope| {
            let filled = scope.spawn(|| {
                if let Some(Err(error)) = fast.first().map(|node| prefer_memory_from(*node)) {
                    tracing::debug!(%error, "memory of a node cannot be asked for");
                }
                half_noise_in_small_pages((PAGES + 1) * PAGE_BYTES as usize)
            });
            filled.join().unwrap_or_default()
        });
        let mut pages = Self::of(memory, 1, tiers, slower, deadline)?;
        let addresses: Vec<u64> = (0..PAGES as u64).map(|page| (pages.first + page) * PAGE_BYTES).collect();
        let mut places = vec![-1; PAGES];
        // Without an answer none takes part.
        let _ = crate::sys::move_pages(std::process::id(), &addresses, None, &mut places);
        pages.takes_part =
            places.iter().map(|node| fast.iter().any(|fast| i64::from(*fast) == i64::from(*node))).collect();
        Ok(pages)
    }

    /// Moves the pages of a round to the slower tier.
    fn out(&mut self, round: usize) -> Vec<MoveResult> {
        self.carry(round, TierId::FAST, self.slower)
    }

    /// Moves them back.
    fn back(&mut self, round: usize) -> Vec<MoveResult> {
        self.carry(round, self.slower, TierId::FAST)
    }

    fn carry(&mut self, round: usize, from: TierId, to: TierId) -> Vec<MoveResult> {
        let pages = PAGES / ROUNDS;
        let moves: Vec<PageMove> = (round * pages..(round + 1) * pages)
            .filter(|page| self.takes_part[*page])
            .map(|page| PageMove { vpn: Vpn(self.first + page as u64), pages: 1, from, to })
            .collect();
        let mut results = Vec::new();
        self.mover.execute(&self.me, &moves, self.tiers, &mut results);
        results
    }

    /// What copying one of a round's pages from where they lie now takes a core: the median over the pages.
    fn time_of_copy(&self, round: usize) -> Duration {
        let mut page = vec![0u8; PAGE_BYTES as usize];
        let mut times: Vec<Duration> = self.memory[self.skip..]
            .chunks_exact(page.len())
            .zip(&self.takes_part)
            .skip(round * PAGES / ROUNDS)
            .take(PAGES / ROUNDS)
            .filter(|(_, takes_part)| **takes_part)
            .map(|(source, _)| {
                let began = Instant::now();
                page.copy_from_slice(std::hint::black_box(source));
                std::hint::black_box(&mut page);
                began.elapsed()
            })
            .collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// Memory compressible about 2:1, as ordinary data is: half of each page is noise.
pub fn half_noise(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0u8; bytes];
    fill_with_half_noise(&mut memory);
    memory
}

/// The same in small pages, which move one by one.
pub(crate) fn half_noise_in_small_pages(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0u8; bytes];
    ask_for_small_pages(&mut memory);
    fill_with_half_noise(&mut memory);
    memory
}

/// Fills memory so that it compresses about 2:1.
pub(crate) fn fill_with_half_noise(memory: &mut [u8]) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in memory.chunks_exact_mut(PAGE_BYTES as usize) {
        for byte in &mut chunk[..PAGE_BYTES as usize / 2] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
}

/// Rounds of `out`, which returns how many pages went, next to a thread that runs all the time.
fn beside_a_thread(mut out: impl FnMut(usize) -> usize) -> Option<Interval> {
    let hot = vec![1u8; HOT_PAGES * PAGE_BYTES as usize];
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let losses: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for part in hot.chunks_exact(64 * PAGE_BYTES as usize) {
                    for page in part.chunks_exact(PAGE_BYTES as usize) {
                        std::hint::black_box(page[0]);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let span = |work: &mut dyn FnMut() -> usize| {
            let (began, before) = (Instant::now(), done.load(Ordering::Relaxed));
            let pages = work();
            (pages, began.elapsed().as_secs_f64(), (done.load(Ordering::Relaxed) - before) as f64)
        };
        let mut undisturbed = || {
            std::thread::sleep(UNDISTURBED);
            0
        };
        // The thread begins, and its pages come.
        span(&mut undisturbed);
        let mut before = span(&mut undisturbed);
        let mut losses = Vec::new();
        for round in 0..ROUNDS {
            let (pages, seconds, work) = span(&mut || out(round));
            let after = span(&mut undisturbed);
            let speed = (before.2 + after.2) / (before.1 + after.1);
            if pages >= LEAST_PAGES && speed > 0.0 {
                losses.push((seconds - work / speed) / pages as f64);
            }
            before = after;
        }
        stop.store(true, Ordering::Relaxed);
        losses
    });
    interval(losses)
}

/// The median and its interval; `None` if more than half of the rounds failed. With fewer rounds than all the interval is from the least to
/// the most. A loss below nothing is the machine's noise.
fn interval(mut losses: Vec<f64>) -> Option<Interval> {
    let count = losses.len();
    if count < ROUNDS / 2 {
        return None;
    }
    losses.sort_by(f64::total_cmp);
    let left_out = usize::from(count == ROUNDS);
    let time = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
    Some(Interval {
        median: time(f64::midpoint(losses[(count - 1) / 2], losses[count / 2])),
        low: time(losses[left_out]),
        high: time(losses[count - 1 - left_out]),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_leaves_out_the_least_and_the_most() {
        let losses = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -7.0].map(|microseconds| microseconds * 1e-6).to_vec();
        let found = interval(losses).unwrap();
        let micros = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        assert_eq!((micros(found.low), micros(found.median), micros(found.high)), (1.0, 3.5, 6.0));
        let fewer = interval(vec![3e-6, 1e-6, 2e-6, 4e-6, 5e-6]).unwrap();
        assert_eq!((micros(fewer.low), micros(fewer.median), micros(fewer.high)), (1.0, 3.0, 5.0));
        assert_eq!(interval(vec![1e-6; ROUNDS / 2 - 1]), None, "more than half of the rounds failed");
        assert_eq!(interval(vec![-1e-6; ROUNDS]).unwrap().high, Duration::ZERO);
    }

    #[test]
    fn a_thread_is_watched_in_every_round() {
        if std::thread::available_parallelism().is_ok_and(|processors| processors.get() < 2) {
            println!("SKIPPED: there is one processor");
            return;
        }
        // How much that is nobody can say on a machine with other work; that each round counts can be said.
        let mut rounds = Vec::new();
        let found = beside_a_thread(|round| {
            rounds.push(round);
            std::thread::sleep(Duration::from_millis(2));
            PAGES / ROUNDS
        });
        let found = found.expect("all rounds went");
        assert!(found.low <= found.median && found.median <= found.high, "{found:?}");
        assert_eq!(rounds, (0..ROUNDS).collect::<Vec<_>>());
        assert_eq!(beside_a_thread(|_| 0), None, "nothing went out");
    }
}
