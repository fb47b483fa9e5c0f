//! Hot and cold: everything touched once, then a random loop over a hot part that may move.
//!
//! Source: our own live benchmark. Allocation: one arena of 4 KiB pages. Phases: "load" (every page written once: a third
//! random words, the rest one word repeated, so that it compresses about 3:1), "run" (a random word of a random hot page
//! is read and compared with what it must be; one operation in ten counts in the page's first word), "verify". Check:
//! every read was right, every page still holds its contents, and the counters add up to the operations that counted.

use super::gups::{serve_in_parts, shifts};
use super::hot_set::{HotSet, PAGE_BYTES, PAGE_WORDS};
use crate::ahead::Ahead;
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Random, mix};
use crate::service::{Budget, serve};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "hot-cold",
    description: "touches everything once, then loops at random over a hot part, which may move",
    source: "own live benchmark",
    operation: "reads of the loop",
    open_ended: true,
    options: &[
        ("hot", "share of the pages that are hot (0.25)"),
        ("layout", "scattered or contiguous hot pages (scattered)"),
        ("writes", "share of the operations that also write (0.1)"),
        ("shift_operations", "operations between moves of the hot set; 0 never (0)"),
        ("shift_seconds", "in timed runs, seconds between moves; 0 never (0)"),
    ],
    build: |settings| Ok(Box::new(HotCold::new(settings)?)),
};

/// Words of a page that are random: a third.
const RANDOM_WORDS: usize = PAGE_WORDS / 3;

struct HotCold {
    pages: usize,
    hot_set: HotSet,
    writes: f64,
    budget: Budget,
    shift: Option<Budget>,
    seed: u64,
}

impl HotCold {
    fn new(settings: &Settings<'_>) -> Result<HotCold, WorkloadError> {
        let pages = settings.size() / PAGE_BYTES;
        let budget = Budget::of(settings, settings.size() / 32);
        Ok(HotCold {
            pages: pages as usize,
            hot_set: HotSet::of(settings, pages, 0.25)?,
            writes: settings.option("writes", 0.1, "a share of 0 to 1", |s| (0.0..=1.0).contains(&s))?,
            shift: shifts(settings, budget, 0, 0.0)?,
            budget,
            seed: settings.seed(),
        })
    }
}

/// What word `word` of page `page` must hold; word 0 is the page's counter and starts at zero.
#[inline]
fn content(seed: u64, page: usize, word: usize) -> u64 {
    match word {
        0 => 0,
        1..=RANDOM_WORDS => mix(seed ^ (page * PAGE_WORDS + word) as u64),
        _ => mix(seed ^ !(page as u64)),
    }
}

struct Reader {
    random: Random,
    ahead: Ahead,
    counted: u64,
    wrong: u64,
}

impl Program for HotCold {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("load");
        let seed = self.seed;
        let arena: Array<u64> = memory.allocate("arena", self.pages * PAGE_WORDS);
        memory.parallel(self.pages, 1, Schedule::Blocks, |lane, pages| {
            for page in pages {
                arena.write_span(lane, page * PAGE_WORDS..(page + 1) * PAGE_WORDS, |index| {
                    content(seed, page, index % PAGE_WORDS)
                });
            }
        });

        memory.phase("run");
        let writes = self.writes;
        // A read's page and word, and whether it counts. It takes three numbers wherever the hot set lies.
        let draw = move |random: &mut Random, hot_set: &HotSet| {
            let page = hot_set.page(random.below(hot_set.hot_pages())) as usize;
            let word = 1 + random.below(PAGE_WORDS as u64 - 1) as usize;
            (page, word, random.unit() < writes)
        };
        let first_set = self.hot_set;
        let mut readers: Vec<Reader> = (0..memory.threads())
            .map(|thread| {
                let random = Random::new(seed, thread as u64);
                let ahead = Ahead::of(&random, |random| draw(random, &first_set));
                Reader { random, ahead, counted: 0, wrong: 0 }
            })
            .collect();
        let mut hot_set = self.hot_set;
        let mut moves = 0u64;
        let operations = serve_in_parts(
            memory,
            self.budget,
            self.shift,
            &mut (&mut hot_set, &mut readers, &mut moves),
            |memory, budget, (hot_set, readers, _)| {
                let hot_set = **hot_set;
                serve(memory, budget, readers, 1024, |lane, reader| {
                    let draw = |random: &mut Random| draw(random, &hot_set);
                    reader.ahead.step(lane, draw, |(page, word, _)| arena.expect(page * PAGE_WORDS + word));
                    let (page, word, counts) = draw(&mut reader.random);
                    lane.compute(12);
                    let found = arena.get(lane, page * PAGE_WORDS + word);
                    reader.wrong += u64::from(found != content(seed, page, word));
                    if counts {
                        arena.add(lane, page * PAGE_WORDS, 1);
                        reader.counted += 1;
                    }
                })
            },
            |(hot_set, _, moves)| {
                hot_set.shift();
                **moves += 1;
            },
        );

        memory.phase("verify");
        let wrong: u64 = readers.iter().map(|reader| reader.wrong).sum();
        check(INFO.name, wrong == 0, || {
            format!("{wrong} of {operations} reads found something else than was written")
        })?;
        let (mut counted, mut checksum) = (0u64, 0u64);
        for page in 0..self.pages {
            counted = counted.wrapping_add(arena.peek(page * PAGE_WORDS));
            for word in 1..PAGE_WORDS {
                let found = arena.peek(page * PAGE_WORDS + word);
                check(INFO.name, found == content(seed, page, word), || {
                    format!("word {word} of page {page} holds {found:#x}, not what was written there")
                })?;
                checksum = checksum.wrapping_add(found).rotate_left(1);
            }
        }
        let expected: u64 = readers.iter().map(|reader| reader.counted).sum();
        check(INFO.name, counted == expected, || format!("the pages counted {counted} writes, the loop {expected}"))?;
        memory.free(arena);
        Ok(Answer {
            operations,
            checksum: checksum ^ counted,
            verified: "every read, every page's contents and every counter",
            figures: vec![("hot set moves", moves as f64), ("writes", counted as f64)],
        })
    }
}
