//! GUPS: random updates of a large table, most of them in a hot set that stays or moves.
//!
//! Source: HPC Challenge RandomAccess for the update of 64-bit words at random; Raybuck et al., "HeMem" (SOSP 2021) for
//! the hot set (90 % of the updates in it). Allocation: the table. Phases: "load" (every word written once, in blocks),
//! "run" (updates), "verify". An update adds a random value to a word. Check: the sum of every word times a hash of its
//! place, modulo 2^64, is that of the start plus that of the updates: a lost, doubled or misplaced update shows.

use super::hot_set::{HotSet, PAGE_BYTES, PAGE_WORDS};
use crate::ahead::Ahead;
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Random, mix};
use crate::service::{Budget, serve};

const OPTIONS: &[(&str, &str)] = &[
    ("hot", "share of the pages that are hot (0.1)"),
    ("hot_updates", "share of the updates that go to the hot set (0.9)"),
    ("layout", "scattered or contiguous hot pages (scattered)"),
    ("shift_operations", "updates between moves of the hot set; 0 never (gups: 0; gups-shift: a quarter of all)"),
    ("shift_seconds", "in timed runs, seconds between moves; 0 never (gups: 0; gups-shift: 60)"),
];

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "gups",
    description: "random updates of 64-bit words, 90 % of them in a fixed hot set",
    source: "HPC Challenge RandomAccess; HeMem, SOSP 2021",
    operation: "updates",
    open_ended: true,
    options: OPTIONS,
    build: |settings| Ok(Box::new(Gups::new(settings, false)?)),
};

pub(super) const SHIFTING: WorkloadInfo = WorkloadInfo {
    name: "gups-shift",
    description: "random updates of 64-bit words, 90 % of them in a hot set that moves",
    build: |settings| Ok(Box::new(Gups::new(settings, true)?)),
    ..INFO
};

struct Gups {
    name: &'static str,
    words: usize,
    hot_set: HotSet,
    hot_updates: f64,
    budget: Budget,
    shift: Option<Budget>,
    seed: u64,
}

/// How the hot set moves: the updates or the time from one move to the next.
pub(super) fn shifts(
    settings: &Settings<'_>,
    budget: Budget,
    operations: u64,
    seconds: f64,
) -> Result<Option<Budget>, WorkloadError> {
    let operations = settings.option("shift_operations", operations, "a number of operations", |_| true)?;
    let wanted = "seconds, at least 0";
    let seconds = settings.option("shift_seconds", seconds, wanted, |s: f64| s >= 0.0 && s.is_finite())?;
    Ok(match budget.duration_nanos {
        Some(_) if seconds > 0.0 => Some(Budget { duration_nanos: Some((seconds * 1e9) as u64), ..budget }),
        None if operations > 0 => Some(Budget { operations, duration_nanos: None }),
        _ => None,
    })
}

/// Serves a budget in parts, calling `between` where the hot set moves.
pub(super) fn serve_in_parts<M: Memory, C>(
    memory: &mut M,
    budget: Budget,
    part: Option<Budget>,
    context: &mut C,
    mut run: impl FnMut(&mut M, Budget, &mut C) -> u64,
    mut between: impl FnMut(&mut C),
) -> u64 {
    let mut done = 0;
    let mut left = budget;
    loop {
        let now = part.map_or(left, |part| Budget {
            operations: part.operations.min(left.operations),
            duration_nanos: left.duration_nanos.zip(part.duration_nanos).map(|(left, part)| left.min(part)),
        });
        done += run(memory, now, context);
        left.operations = left.operations.saturating_sub(now.operations);
        left.duration_nanos =
            left.duration_nanos.zip(now.duration_nanos).map(|(left, now)| left - now).filter(|left| *left > 0);
        let over = if budget.duration_nanos.is_some() { left.duration_nanos.is_none() } else { left.operations == 0 };
        if over || part.is_none() || memory.main().stopped() {
            return done;
        }
        between(context);
    }
}

struct Updater {
    random: Random,
    ahead: Ahead,
    expected: u64,
}

impl Gups {
    fn new(settings: &Settings<'_>, shifting: bool) -> Result<Gups, WorkloadError> {
        let pages = settings.size() / PAGE_BYTES;
        let budget = Budget::of(settings, settings.size() / 16);
        let (operations, seconds) = if shifting { ((budget.operations / 4).max(1), 60.0) } else { (0, 0.0) };
        Ok(Gups {
            name: settings.name(),
            words: pages as usize * PAGE_WORDS,
            hot_set: HotSet::of(settings, pages, 0.1)?,
            hot_updates: settings.option("hot_updates", 0.9, "a share of 0 to 1", |s| (0.0..=1.0).contains(&s))?,
            shift: shifts(settings, budget, operations, seconds)?,
            budget,
            seed: settings.seed(),
        })
    }
}

/// The place's factor in the check.
fn factor(index: usize) -> u64 {
    mix(index as u64) | 1
}

impl Program for Gups {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("load");
        let table: Array<u64> = memory.allocate("table", self.words);
        memory.parallel(self.words, PAGE_WORDS, Schedule::Blocks, |lane, range| {
            table.write_span(lane, range, |index| index as u64);
        });

        memory.phase("run");
        let (words, hot_updates) = (self.words as u64, self.hot_updates);
        // An update's place and value. How many numbers it takes does not depend on where the hot set lies.
        let draw = move |random: &mut Random, hot_set: &HotSet| {
            let index = if random.unit() < hot_updates {
                let page = hot_set.page(random.below(hot_set.hot_pages()));
                page as usize * PAGE_WORDS + random.below(PAGE_WORDS as u64) as usize
            } else {
                random.below(words) as usize
            };
            (index, random.bits())
        };
        let first_set = self.hot_set;
        let mut updaters: Vec<Updater> = (0..memory.threads())
            .map(|thread| {
                let random = Random::new(self.seed, thread as u64);
                let ahead = Ahead::of(&random, |random| draw(random, &first_set));
                Updater { random, ahead, expected: 0 }
            })
            .collect();
        let mut hot_set = self.hot_set;
        let mut moves = 0u64;
        let operations = serve_in_parts(
            memory,
            self.budget,
            self.shift,
            &mut (&mut hot_set, &mut updaters, &mut moves),
            |memory, budget, (hot_set, updaters, _)| {
                let hot_set = **hot_set;
                serve(memory, budget, updaters, 256, |lane, updater| {
                    updater.ahead.step(lane, |random| draw(random, &hot_set), |(index, _)| table.expect(index));
                    let (index, value) = draw(&mut updater.random, &hot_set);
                    lane.compute(6);
                    table.add(lane, index, value);
                    updater.expected = updater.expected.wrapping_add(value.wrapping_mul(factor(index)));
                })
            },
            |(hot_set, _, moves)| {
                hot_set.shift();
                **moves += 1;
            },
        );

        memory.phase("verify");
        let start = (0..self.words).fold(0u64, |sum, i| sum.wrapping_add((i as u64).wrapping_mul(factor(i))));
        let expected = updaters.iter().fold(start, |sum, updater| sum.wrapping_add(updater.expected));
        let found = (0..self.words).fold(0u64, |sum, i| sum.wrapping_add(table.peek(i).wrapping_mul(factor(i))));
        check(self.name, found == expected, || {
            format!("the table sums up to {found:#x}, its updates to {expected:#x}: an update was lost or misplaced")
        })?;
        memory.free(table);
        Ok(Answer {
            operations,
            checksum: found,
            verified: "every update is in its word of the table",
            figures: vec![("hot set moves", moves as f64)],
        })
    }
}
