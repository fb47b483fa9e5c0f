//! The fixed program of the canaries: a few hundred pages whose hot part moves, within some tens of milliseconds.
//!
//! In: a size. Out: a [`Source`] that plays the same accesses every time. Must not: depend on a program of `terrace_workloads`, or be changed
//! without need: every kept result is then stale.
//!
//! It has what programs have: input in page cache, a table that is written once in blocks, loads, chained loads and stores of several threads
//! to a hot part that moves, few accesses to all the rest, sweeps, memory that comes and goes, pauses in which threads only compute, parallel
//! regions and phases.

use terrace_core::units::{Bytes, PAGE_BYTES};
use terrace_sim::lockstep::Lockstep;
use terrace_sim::{SimError, Source};
use terrace_workloads::random::Random;
use terrace_workloads::{Array, Lane, Memory, Schedule, TracedMemory};

/// Its threads.
pub(crate) const THREADS: usize = 4;
/// Moves of the hot part.
const ROUNDS: usize = 12;
/// Steps of a thread between two moves.
const STEPS: usize = 400;
/// Accesses of a thread in one step, so that threads take turns.
const ACCESSES: usize = 8;
/// Cycles between two accesses: time passes for policies that look once a second.
const CYCLES: u32 = 150;
/// A pause, in times of these: policies that look twice a minute look several times.
const PAUSE: u32 = 8000;
/// Words of 8 bytes in a page.
const PAGE_WORDS: usize = PAGE_BYTES as usize / 8;
/// Words of a cache line.
const LINE_WORDS: usize = 8;

/// See the module's header.
pub(crate) struct Exercise {
    pages: usize,
}

impl Exercise {
    /// With memory of this size at most.
    pub(crate) fn new(size: Bytes) -> Exercise {
        Exercise { pages: size.pages() as usize }
    }

    fn run<M: Memory>(&self, memory: &mut M) {
        memory.phase("load");
        let input: Array<u64> = memory.allocate_file("input", self.pages / 8 * PAGE_WORDS);
        // Takes the first fast memory and leaves it halfway, so that there is room for policies that only fill room.
        let early: Array<u64> = memory.allocate("early", self.pages / 16 * PAGE_WORDS);
        memory.parallel(early.len(), PAGE_WORDS, Schedule::Blocks, |lane, range| early.set(lane, range.start, 1));
        let table: Array<u64> = memory.allocate("table", self.pages / 2 * PAGE_WORDS);
        memory.parallel(table.len(), PAGE_WORDS, Schedule::Blocks, |lane, range| {
            input.get(lane, range.start % input.len());
            table.write_span(lane, range, |index| index as u64);
        });
        let mut early = Some(early);
        memory.phase("run");
        let pages = table.len() / PAGE_WORDS;
        let hot = pages / 6;
        for round in 0..ROUNDS {
            let first = round * hot / 2;
            let mut threads: Vec<(Random, usize)> =
                (0..THREADS).map(|thread| (Random::new(round as u64, thread as u64), 0)).collect();
            memory.run(&mut threads, |lane, (random, steps)| {
                step(&table, lane, random, first, hot);
                *steps += 1;
                *steps < STEPS
            });
            if round == ROUNDS / 2
                && let Some(early) = early.take()
            {
                memory.free(early);
            }
            if round % 3 == 1 {
                let scratch: Array<u64> = memory.allocate("scratch", self.pages / 4 * PAGE_WORDS);
                memory.parallel(scratch.len(), PAGE_WORDS, Schedule::Cyclic, |lane, range| {
                    scratch.set(lane, range.start, 1);
                    lane.compute(CYCLES);
                });
                memory.free(scratch);
            }
            if round % 4 == 3 {
                memory.parallel(table.len(), PAGE_WORDS, Schedule::Blocks, |lane, range| {
                    table.get(lane, range.start);
                });
            }
        }
        memory.phase("verify");
        memory.parallel(input.len(), PAGE_WORDS, Schedule::Blocks, |lane, range| {
            input.get(lane, range.start + LINE_WORDS);
        });
    }
}

/// Some accesses of one thread, four of five to the hot pages.
fn step<L: Lane>(table: &Array<u64>, lane: &mut L, random: &mut Random, first: usize, hot: usize) {
    let pages = table.len() / PAGE_WORDS;
    for _ in 0..ACCESSES {
        let page = match random.below(5) {
            0 => random.below(pages as u64) as usize,
            _ => (first + random.below(hot as u64) as usize) % pages,
        };
        let index = page * PAGE_WORDS + random.below(PAGE_WORDS as u64) as usize;
        match random.below(4) {
            0 => table.set(lane, index, page as u64),
            1 => drop(table.chase(lane, index)),
            _ => drop(table.get(lane, index)),
        }
        lane.compute(CYCLES);
    }
    // Now and then a thread computes for long, as at the end of a request.
    if random.below(64) == 0 {
        lane.compute(CYCLES * PAUSE);
    }
}

impl Source for Exercise {
    fn name(&self) -> String {
        "exercise".to_owned()
    }
    fn footprint(&self) -> Bytes {
        Bytes::of_pages(self.pages as u64)
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        let mut memory = TracedMemory::new(THREADS, into);
        self.run(&mut memory);
        memory.flush();
        Ok(())
    }
}
