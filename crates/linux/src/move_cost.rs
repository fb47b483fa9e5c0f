//! What moves to and from swap cost a program on this machine, measured on pages of this process.
//!
//! In: the tiers. Out: the cost of a refault, and what a page-out takes of a thread that runs on another processor meanwhile. Must not: touch
//! another process, or guess where nothing could be measured.
//!
//! Why page-outs cost a program that does not touch the pages: the kernel writes a dirty page out only after it has flushed the TLBs of all
//! processors on which the address space runs, so that each page-out interrupts them and leaves their TLBs empty. How dear that is differs
//! with the machine (in a virtual one an interrupt is an exit) and with the program; here a thread goes through as many pages as a second-level
//! TLB has entries, which has it refill the most after each flush.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use terrace_core::units::{PAGE_BYTES, TierId, Vpn};

use crate::movers::{MoveResult, Mover, Movers, PageMove};
use crate::process::{Process, ProcessError};
use crate::topology::TierMap;

/// What moves cost, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveCost {
    /// What one refault costs the program that makes it.
    pub refault: Option<Duration>,
    /// What one page-out takes of each thread that runs meanwhile; `None` without swap, and where it could not be measured.
    pub page_out: Option<Interval>,
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
/// Rounds: between the second and the seventh of eight values the median lies in 93 of 100 cases (binomial, 1 - 18/256).
const ROUNDS: usize = 8;
/// A round of fewer says more of the machine's noise: pages that were touched just now may stay (a folio batch has 31).
const LEAST_PAGES: usize = 32;
/// Longest that the thread is watched undisturbed, before and after each round.
const UNDISTURBED: Duration = Duration::from_millis(4);
/// Pages that the watched thread goes through: entries of a second-level TLB (1,024 to 2,048 on processors of the last ten years).
const HOT_PAGES: usize = 1024;

/// What a refault costs, on pages of this process; `None` where too few pages left (then the mover will say why).
///
/// # Errors
/// When this process cannot be read.
pub fn refault(tiers: &TierMap, swap: TierId, deadline: Duration) -> Result<Option<Duration>, ProcessError> {
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
    Ok((touches.len() >= PAGES / 4).then(|| touches[touches.len() / 2]))
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
    Ok(beside_a_thread(|round| pages.out(round).iter().filter(|result| result.done == 1).count()))
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
    me: Process,
    mover: Movers,
    tiers: &'a TierMap,
    swap: TierId,
}

impl<'a> OwnPages<'a> {
    fn new(tiers: &'a TierMap, swap: TierId, deadline: Duration) -> Result<OwnPages<'a>, ProcessError> {
        let memory = half_noise((PAGES + 1) * PAGE_BYTES as usize);
        let first = (memory.as_ptr() as u64).div_ceil(PAGE_BYTES);
        let skip = (first * PAGE_BYTES - memory.as_ptr() as u64) as usize;
        let me = Process::open(std::process::id())?;
        Ok(OwnPages { memory, skip, first, me, mover: Movers::for_tiers(tiers, deadline), tiers, swap })
    }

    /// Puts the pages of a round out.
    fn out(&mut self, round: usize) -> Vec<MoveResult> {
        let pages = PAGES / ROUNDS;
        let moves: Vec<PageMove> = (0..pages)
            .map(|offset| Vpn(self.first + (round * pages + offset) as u64))
            .map(|vpn| PageMove { vpn, pages: 1, from: TierId::FAST, to: self.swap })
            .collect();
        let mut results = Vec::new();
        self.mover.execute(&self.me, &moves, self.tiers, &mut results);
        results
    }
}

/// Memory compressible about 2:1, as ordinary data is: half of each page is noise.
pub fn half_noise(bytes: usize) -> Vec<u8> {
    let mut memory = vec![0u8; bytes];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in memory.chunks_exact_mut(PAGE_BYTES as usize) {
        for byte in &mut chunk[..PAGE_BYTES as usize / 2] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
    memory
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
