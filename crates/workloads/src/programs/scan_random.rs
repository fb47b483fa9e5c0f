//! Scan, then random: a sequential pass over everything, then random reads of a part.
//!
//! Source: own; the access pattern that fools recency (a scan makes every page look used) and that
//! scan-resistance is tested with. Allocation: the table. Phases: "load" (written in blocks), "scan" (read in order,
//! `passes` times), "run" (uniform reads within the last `hot` share), "verify". Check: the scan's sums are those of the
//! values written, and each random read finds its value.

use crate::ahead::Ahead;
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Random, mix};
use crate::service::{Budget, serve};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "scan-then-random",
    description: "sequential passes over everything, then random reads of a quarter of it",
    source: "own micro-benchmark",
    operation: "random reads",
    open_ended: true,
    options: &[("passes", "sequential passes, 1 to 1000 (2)"), ("hot", "share that the random reads go to (0.25)")],
    build: |settings| Ok(Box::new(ScanRandom::new(settings)?)),
};

struct ScanRandom {
    words: usize,
    passes: u64,
    hot: f64,
    budget: Budget,
    seed: u64,
}

impl ScanRandom {
    fn new(settings: &Settings<'_>) -> Result<ScanRandom, WorkloadError> {
        Ok(ScanRandom {
            words: (settings.size() / 8) as usize,
            passes: settings.option("passes", 2, "1 to 1000", |passes| (1..=1000).contains(&passes))?,
            hot: settings.option("hot", 0.25, "a share above 0 and at most 1", |s| s > 0.0 && s <= 1.0)?,
            budget: Budget::of(settings, settings.size() / 32),
            seed: settings.seed(),
        })
    }
}

impl Program for ScanRandom {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        let (seed, words) = (self.seed, self.words);
        let value = move |index: usize| mix(seed ^ index as u64);
        memory.phase("load");
        let table: Array<u64> = memory.allocate("table", words);
        memory.parallel(words, 512, Schedule::Blocks, |lane, range| table.write_span(lane, range, value));

        memory.phase("scan");
        let mut sums = vec![0u64; memory.threads()];
        for _ in 0..self.passes {
            memory.parallel_with(&mut sums, words, 512, Schedule::Blocks, |lane, sum, range| {
                table.read_span(lane, range, |word| *sum = sum.wrapping_add(word));
            });
        }

        memory.phase("run");
        let hot = ((words as f64 * self.hot) as usize).clamp(1, words);
        let draw = move |random: &mut Random| words - hot + random.below(hot as u64) as usize;
        let mut readers: Vec<(Random, Ahead, u64)> = (0..memory.threads())
            .map(|thread| {
                let random = Random::new(seed, thread as u64);
                let ahead = Ahead::of(&random, draw);
                (random, ahead, 0)
            })
            .collect();
        let operations = serve(memory, self.budget, &mut readers, 256, |lane, (random, ahead, wrong)| {
            ahead.step(lane, draw, |index| table.expect(index));
            let index = draw(random);
            lane.compute(6);
            *wrong += u64::from(table.get(lane, index) != value(index));
        });

        memory.phase("verify");
        let expected = (0..words).fold(0u64, |sum, index| sum.wrapping_add(value(index))).wrapping_mul(self.passes);
        let sum = sums.iter().fold(0u64, |sum, part| sum.wrapping_add(*part));
        check(INFO.name, sum == expected, || format!("the scans summed up to {sum:#x}, not {expected:#x}"))?;
        let wrong: u64 = readers.iter().map(|(_, _, wrong)| wrong).sum();
        check(INFO.name, wrong == 0, || {
            format!("{wrong} of {operations} reads found something else than was written")
        })?;
        memory.free(table);
        let checksum = readers.iter_mut().fold(sum, |sum, (random, _, _)| sum ^ random.bits());
        Ok(Answer { operations, checksum, verified: "the sums of the scans, and every random read", figures: vec![] })
    }
}
