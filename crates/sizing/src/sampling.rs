//! Which configurations a database holds.
//!
//! In: a machine, a seed, a number. Out: the vector of that record, the same every time. Must not: depend on how many records
//! there are, so that a build can be continued and a smaller database is the beginning of a larger one.
//!
//! The paper gives no design. Here, of a point of a low-discrepancy sequence in eight dimensions (Roberts' R sequence,
//! 2018: the fractional parts of `n / phi^k`, `phi` the root of `x^9 = x + 1`), shifted by the seed:
//!
//! | figure | range | law |
//! |---|---|---|
//! | resident size | 64 MiB (more than the cache) to the fast tier's capacity | log-uniform |
//! | threads | 1 to the machine's cores | uniform |
//! | hot_thr | 2 to 8 | uniform |
//! | AI | 0.3 to 1000 operations an access | log-uniform |
//! | accesses | as many as take 1.25 to 5 s with everything fast: half to twice an interval | log-uniform in time |
//! | slow share of them | none in a quarter of the records; else 0.0001 to 0.7 | log-uniform |
//! | promotions | none in a quarter of the records with slow accesses; else 1 to a million, and no more than slow accesses / hot_thr | log-uniform |
//! | demotions | a quarter to four times the promotions; without those none in half of the records, else 1 to a million | log-uniform |
//!
//! Accesses follow from time because the vector of a real interval obeys it too: independent ranges for accesses, threads and
//! arithmetic would spend most records on programs that take a microsecond or an hour for their 2.5 s.

use terrace_core::random::{mix, unit};
use terrace_machine::preset::Machine;

use crate::microbench::{Benchmark, FastDivisor};
use crate::model;
use crate::vector::{ConfigVector, DIMENSIONS, INTERVAL_SECONDS};

/// Least resident size, bytes.
const LEAST_BYTES: f64 = 67_108_864.0;
const MOST_THRESHOLD: f64 = 8.0;
/// Migrations an interval at most: what one core can move in it, order of magnitude (1.2 us a page).
const MOST_MOVES: f64 = 1e6;

/// The root of `x^(d+1) = x + 1` for d = 8, by the iteration that defines it.
fn phi() -> f64 {
    (0..64).fold(2.0f64, |x, _| (1.0 + x).powf(1.0 / (DIMENSIONS as f64 + 1.0)))
}

/// The design of a database.
#[derive(Clone, Debug)]
pub struct Design {
    machine: Machine,
    shifts: [f64; DIMENSIONS],
    steps: [f64; DIMENSIONS],
}

impl Design {
    /// The design for a machine.
    pub fn new(machine: &Machine, seed: u64) -> Design {
        let phi = phi();
        Design {
            machine: machine.clone(),
            shifts: std::array::from_fn(|k| unit(mix(seed.wrapping_add(k as u64)))),
            steps: std::array::from_fn(|k| phi.powi(-(k as i32 + 1))),
        }
    }

    /// The machine.
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The vector of record `number`, from 0.
    pub fn vector(&self, number: u64) -> ConfigVector {
        let u: [f64; DIMENSIONS] =
            std::array::from_fn(|k| (self.shifts[k] + (number as f64 + 1.0) * self.steps[k]).fract());
        let log = |u: f64, low: f64, high: f64| low * (high / low).powf(u);
        let whole = |u: f64, low: f64, high: f64| (low + u * (high - low + 1.0)).floor().min(high);
        let capacity = self.machine.tiers[0].capacity.get() as f64;
        let mut vector = ConfigVector {
            fast_accesses: 1e8,
            slow_accesses: 0.0,
            demotions: 0.0,
            promotions: 0.0,
            intensity: log(u[3], 0.3, 1000.0),
            resident_bytes: (log(u[0], LEAST_BYTES, capacity) / 4096.0).floor() * 4096.0,
            hot_threshold: whole(u[2], 2.0, MOST_THRESHOLD),
            threads: whole(u[1], 1.0, f64::from(self.machine.processor.cores)),
        };
        let time = log(u[4], INTERVAL_SECONDS / 2.0, INTERVAL_SECONDS * 2.0);
        // Time is in proportion to the accesses up to the little that page counts matter: two steps are enough.
        for _ in 0..2 {
            if let Ok(benchmark) = Benchmark::new(&vector, 1.0, FastDivisor::Threshold) {
                vector.fast_accesses *= time / model::seconds(&benchmark, &self.machine);
            }
        }
        let total = vector.fast_accesses;
        // A quarter of each unit interval stands for none; the rest is stretched over the range.
        let some = |u: f64, none: f64| (u >= none).then(|| (u - none) / (1.0 - none));
        if let Some(u) = some(u[5], 0.25) {
            vector.slow_accesses = total * log(u, 1e-4, 0.7);
            vector.fast_accesses = total - vector.slow_accesses;
        }
        if let Some(u) = some(u[6], 0.25).filter(|_| vector.slow_accesses >= 1.0) {
            vector.promotions = log(u, 1.0, MOST_MOVES).min(vector.slow_accesses / vector.hot_threshold).floor();
        }
        vector.demotions = if vector.promotions > 0.0 {
            vector.promotions * log(u[7], 0.25, 4.0)
        } else {
            some(u[7], 0.5).map_or(0.0, |u| log(u, 1.0, MOST_MOVES))
        }
        .min(vector.fast_accesses)
        .floor();
        vector
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_vector_is_that_of_a_program_and_takes_about_an_interval() {
        let machine = Machine::preset("optane-6252").unwrap();
        let design = Design::new(&machine, 1);
        let (mut still, mut quiet) = (0, 0);
        for number in 0..2000 {
            let vector = design.vector(number);
            vector.check().unwrap();
            let benchmark = Benchmark::new(&vector, 1.0, FastDivisor::Threshold).unwrap();
            let seconds = model::seconds(&benchmark, &machine);
            assert!((0.8..7.0).contains(&seconds), "{number}: {seconds} s, {vector:?}");
            still += u32::from(vector.slow_accesses == 0.0);
            quiet += u32::from(vector.promotions == 0.0);
        }
        assert!((450..550).contains(&still), "a quarter without slow accesses, not {still}");
        assert!((800..960).contains(&quiet), "{quiet}");
        assert_ne!(design.vector(7), Design::new(&machine, 2).vector(7));
        assert_eq!(design.vector(7), Design::new(&machine, 1).vector(7));
    }
}
