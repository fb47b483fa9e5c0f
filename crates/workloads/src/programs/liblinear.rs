//! Liblinear-like logistic regression on sparse rows shaped as KDD Cup 2012, read from a file.
//!
//! Source: Fan et al., "LIBLINEAR" (JMLR 2008), L2-regularised logistic regression by a Newton method with conjugate
//! gradients (its solver 0, the one its multi-core version speeds up: Lee et al., "Fast Matrix-vector Multiplications for
//! Large-scale Logistic Regression on Shared-memory Systems", ICDM 2015, whose threads sum products with Xᵀ in a vector
//! each and add those up); KDD12: 149.6 million rows of 11 features out of 54.7 million, about 21 GB of text; TieredMMS:
//! 45 GB anonymous and 21 GB of file pages, which is what this comes to with 20 threads. Allocation: the file (page
//! cache; filled by the kernel, read by the program), nodes (index and value, 16 bytes, 11 a row and an end mark), row
//! starts, labels, then vectors over rows (z, D) and over features (w, gradient, direction, product, step, and a sum for
//! each thread). Phases:
//! "read" (parse the text), "train", "verify". Features of a row come one from each of 11 fields, zipf within the field;
//! labels follow a hidden model. Check: parsed rows are those generated; the objective, computed again from the file's
//! rows, is the one the solver has, fell in every iteration, and ends below its start, and the gradient has shrunk.

use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Permutation, Random, Zipf, mix};

/// Features a row has, one from each field.
const FIELDS: usize = 11;
/// Text bytes of a row: label, and eleven times a space, eight digits and ":1"; a line end; spaces up to 140, which is
/// what 21 GB over 149.6 million rows come to.
const LINE_BYTES: usize = 140;
/// Nodes of a row, with its end mark.
const NODES: usize = FIELDS + 1;
/// Features for each row, from KDD12: 54.7 over 149.6.
const FEATURES_PER_ROW: f64 = 0.3655;
/// Features of a field, from KDD12: 54,686,452 over 11.
const FIELD_FEATURES: usize = 4_971_496;
/// LIBLINEAR's C.
const COST: f64 = 1.0;
/// An index that ends a row.
const END: u64 = u64::MAX;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "liblinear",
    description: "logistic regression on sparse rows read from a file, by a Newton method",
    source: "LIBLINEAR, JMLR 2008; used by TieredMMS, MEMTIS",
    operation: "Newton iterations (6)",
    open_ended: false,
    options: &[("cg", "conjugate-gradient steps of a Newton iteration, 1 to 100 (8)")],
    build: |settings| Ok(Box::new(Regression::new(settings)?)),
};

struct Regression {
    rows: usize,
    features: usize,
    iterations: u64,
    steps: u64,
    seed: u64,
}

impl Regression {
    fn new(settings: &Settings<'_>) -> Result<Regression, WorkloadError> {
        // File and nodes, row start, label, z, D; and vectors of features, five and one a thread.
        let vectors = 5 + settings.threads();
        let row = LINE_BYTES as f64 + (NODES * 16 + 8 + 8 + 16) as f64 + FEATURES_PER_ROW * 8.0 * vectors as f64;
        let rows = (settings.size() as f64 / row) as usize;
        Ok(Regression {
            rows,
            features: ((rows as f64 * FEATURES_PER_ROW) as usize).clamp(FIELDS * 8, 99_999_999),
            iterations: settings.operations().unwrap_or(6),
            steps: settings.option("cg", 8, "1 to 100", |steps| (1..=100).contains(&steps))?,
            seed: settings.seed(),
        })
    }
}

/// Generates rows: each field has an equal part of the features, scattered, and draws by zipf.
struct Rows {
    zipf: Zipf,
    field: usize,
    scatter: Permutation,
    seed: u64,
}

impl Rows {
    fn new(features: usize, seed: u64) -> Rows {
        let field = features / FIELDS;
        // Exponent 1: a few values are in most rows and most are in few, as categorical data are. Ranks are of a whole field of
        // KDD12, so that a share of a smaller vector draws what that share does there: what caches of the same share hold.
        let zipf = Zipf::new(field.max(FIELD_FEATURES) as u64, 1.0);
        Rows { zipf, field, scatter: Permutation::new(features as u64, seed), seed }
    }

    /// A row's label (true is +1) and features, ascending as LIBLINEAR's files are.
    fn row(&self, number: usize) -> (bool, [usize; FIELDS]) {
        let mut random = Random::new(self.seed, 1000 + number as u64);
        let mut features: [usize; FIELDS] = std::array::from_fn(|field| {
            let value = self.zipf.draw(&mut random) as usize * self.field / self.field.max(FIELD_FEATURES);
            self.scatter.apply((field * self.field + value) as u64) as usize
        });
        features.sort_unstable();
        let score: f64 = features.iter().map(|&feature| self.hidden(feature)).sum();
        (random.unit() < 1.0 / (1.0 + (-score).exp()), features)
    }

    /// The hidden model's weight of a feature.
    fn hidden(&self, feature: usize) -> f64 {
        (mix(self.seed ^ !(feature as u64)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// A row as a line of text.
fn line_of(label: bool, features: &[usize; FIELDS]) -> [u8; LINE_BYTES] {
    let mut line = [b' '; LINE_BYTES];
    line[0] = if label { b'1' } else { b'0' };
    for (field, feature) in features.iter().enumerate() {
        let start = 1 + field * 11;
        let mut rest = feature + 1;
        for digit in (0..8).rev() {
            line[start + 1 + digit] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        line[start + 9] = b':';
        line[start + 10] = b'1';
    }
    line[LINE_BYTES - 1] = b'\n';
    line
}

/// A line back into label and one-based features.
fn parse(line: &[u8]) -> (bool, Vec<(u64, f64)>) {
    let mut nodes = Vec::with_capacity(FIELDS);
    let (mut index, mut value, mut in_value) = (0u64, 0u64, false);
    for &byte in &line[1..] {
        match byte {
            b'0'..=b'9' if in_value => value = value * 10 + u64::from(byte - b'0'),
            b'0'..=b'9' => index = index * 10 + u64::from(byte - b'0'),
            b':' => in_value = true,
            _ if in_value => {
                nodes.push((index, value as f64));
                (index, value, in_value) = (0, 0, false);
            }
            _ => {}
        }
    }
    (line[0] == b'1', nodes)
}

struct Problem {
    /// Pairs of words: one-based index, value as bits.
    nodes: Array<u64>,
    starts: Array<u64>,
    labels: Array<f64>,
    z: Array<f64>,
    d: Array<f64>,
    w: Array<f64>,
    gradient: Array<f64>,
    direction: Array<f64>,
    product: Array<f64>,
    step: Array<f64>,
    /// A vector over features for each thread, one after another.
    sums: Array<f64>,
}

impl Problem {
    /// Calls `seen` with each index and value of a row.
    #[inline]
    fn row<L: Lane>(&self, lane: &mut L, row: usize, mut seen: impl FnMut(&mut L, usize, f64)) {
        let mut node = self.starts.get(lane, row) as usize;
        while node + 1 < self.nodes.len() {
            let index = self.nodes.get(lane, node);
            if index == END || index == 0 || index as usize > self.w.len() {
                return;
            }
            let value = f64::from_bits(self.nodes.get(lane, node + 1));
            seen(lane, index as usize - 1, value);
            node += 2;
        }
    }

    /// Loss, and z = X w; with `derivatives` also D, and gradient = w + C Xᵀ(…).
    fn objective<M: Memory>(&self, memory: &mut M, derivatives: bool) -> f64 {
        let rows = self.labels.len();
        let mut losses = vec![0.0f64; memory.threads()];
        memory.parallel_with(&mut losses, rows, 16, Schedule::Blocks, |lane, loss, range| {
            for row in range {
                let mut z = 0.0;
                self.row(lane, row, |lane, feature, value| z += self.w.get(lane, feature) * value);
                let margin = self.labels.get(lane, row) * z;
                lane.compute(60);
                // log(1 + e^-m), without overflow for large negative margins.
                *loss += if margin > 0.0 { (-margin).exp().ln_1p() } else { margin.exp().ln_1p() - margin };
                self.z.set(lane, row, z);
            }
        });
        let mut squares = vec![0.0f64; memory.threads()];
        memory.parallel_with(&mut squares, self.w.len(), 256, Schedule::Blocks, |lane, square, range| {
            for feature in range {
                let w = self.w.get(lane, feature);
                *square += w * w;
                if derivatives {
                    self.gradient.set(lane, feature, w);
                }
            }
        });
        if derivatives {
            self.add_transposed(memory, &self.gradient, |lane, row| {
                let label = self.labels.get(lane, row);
                let sigma = 1.0 / (1.0 + (-label * self.z.get(lane, row)).exp());
                lane.compute(40);
                self.d.set(lane, row, sigma * (1.0 - sigma));
                COST * (sigma - 1.0) * label
            });
        }
        0.5 * squares.iter().sum::<f64>() + COST * losses.iter().sum::<f64>()
    }

    /// product = direction + C Xᵀ D X direction.
    fn hessian<M: Memory>(&self, memory: &mut M) {
        memory.parallel(self.w.len(), 256, Schedule::Blocks, |lane, range| {
            for feature in range {
                let value = self.direction.get(lane, feature);
                self.product.set(lane, feature, value);
            }
        });
        self.add_transposed(memory, &self.product, |lane, row| {
            let mut dot = 0.0;
            self.row(lane, row, |lane, feature, value| dot += self.direction.get(lane, feature) * value);
            lane.compute(10);
            COST * self.d.get(lane, row) * dot
        });
    }

    /// into += Xᵀ v, where `factor` gives v at a row. Each thread sums in a vector of its own, so that none waits for another's
    /// cache line at the features that most rows have.
    fn add_transposed<M: Memory>(
        &self,
        memory: &mut M,
        into: &Array<f64>,
        factor: impl Fn(&mut M::Lane, usize) -> f64 + Sync,
    ) {
        let features = self.w.len();
        // A thread's block is its own vector.
        memory.parallel(self.sums.len(), 256, Schedule::Blocks, |lane, range| {
            range.for_each(|at| self.sums.set(lane, at, 0.0));
        });
        memory.parallel(self.labels.len(), 16, Schedule::Blocks, |lane, range| {
            let own = lane.thread() * features;
            for row in range {
                let factor = factor(lane, row);
                self.row(lane, row, |lane, feature, value| {
                    let sum = self.sums.get(lane, own + feature) + factor * value;
                    self.sums.set(lane, own + feature, sum);
                });
            }
        });
        memory.parallel(features, 256, Schedule::Blocks, |lane, range| {
            for feature in range {
                let before = into.get(lane, feature);
                let of_threads = (feature..self.sums.len()).step_by(features);
                let sum = of_threads.fold(before, |sum, at| sum + self.sums.get(lane, at));
                into.set(lane, feature, sum);
            }
        });
    }

    /// Sum of `term(lane, feature)` over features.
    fn sum<M: Memory>(&self, memory: &mut M, term: impl Fn(&mut M::Lane, usize) -> f64 + Sync) -> f64 {
        let mut sums = vec![0.0f64; memory.threads()];
        memory.parallel_with(&mut sums, self.w.len(), 256, Schedule::Blocks, |lane, sum, range| {
            range.for_each(|feature| *sum += term(lane, feature));
        });
        sums.iter().sum()
    }

    /// Solves H step = -gradient by conjugate gradients. `gradient` becomes the residual.
    fn newton_step<M: Memory>(&self, memory: &mut M, steps: u64) {
        let mut square = self.sum(memory, |lane, feature| {
            let residual = -self.gradient.get(lane, feature);
            self.gradient.set(lane, feature, residual);
            self.direction.set(lane, feature, residual);
            self.step.set(lane, feature, 0.0);
            residual * residual
        });
        let enough = 0.01 * square;
        for _ in 0..steps {
            if square <= enough {
                return;
            }
            self.hessian(memory);
            let curve =
                self.sum(memory, |lane, feature| self.direction.get(lane, feature) * self.product.get(lane, feature));
            let alpha = square / curve;
            let next = self.sum(memory, |lane, feature| {
                let step = self.step.get(lane, feature) + alpha * self.direction.get(lane, feature);
                self.step.set(lane, feature, step);
                let residual = self.gradient.get(lane, feature) - alpha * self.product.get(lane, feature);
                self.gradient.set(lane, feature, residual);
                residual * residual
            });
            let beta = next / square;
            self.sum(memory, |lane, feature| {
                let direction = self.gradient.get(lane, feature) + beta * self.direction.get(lane, feature);
                self.direction.set(lane, feature, direction);
                0.0
            });
            square = next;
        }
    }
}

impl Program for Regression {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        let (rows, features) = (self.rows, self.features);
        let generated = Rows::new(features, self.seed);
        let file: Array<u8> = memory.allocate_file("input file", rows * LINE_BYTES);
        for row in 0..rows {
            let (label, features) = generated.row(row);
            for (offset, byte) in line_of(label, &features).into_iter().enumerate() {
                file.place(row * LINE_BYTES + offset, byte);
            }
        }
        memory.phase("read");
        let problem = Problem {
            nodes: memory.allocate("nodes", rows * NODES * 2),
            starts: memory.allocate("row starts", rows),
            labels: memory.allocate("labels", rows),
            z: memory.allocate("z", rows),
            d: memory.allocate("D", rows),
            w: memory.allocate("w", features),
            gradient: memory.allocate("gradient", features),
            direction: memory.allocate("direction", features),
            product: memory.allocate("product", features),
            step: memory.allocate("step", features),
            sums: memory.allocate("sums of threads", features * memory.threads()),
        };
        let lane = memory.main();
        let mut line: Vec<u8> = Vec::with_capacity(LINE_BYTES);
        let mut node = 0;
        for row in 0..rows {
            line.clear();
            file.read_span(lane, row * LINE_BYTES..(row + 1) * LINE_BYTES, |byte| line.push(byte));
            let (label, nodes) = parse(&line);
            lane.compute(4 * LINE_BYTES as u32);
            problem.starts.set(lane, row, node as u64);
            problem.labels.set(lane, row, if label { 1.0 } else { -1.0 });
            for (index, value) in nodes {
                problem.nodes.set(lane, node, index);
                problem.nodes.set(lane, node + 1, value.to_bits());
                node += 2;
            }
            problem.nodes.set(lane, node, END);
            node += 2;
        }

        memory.phase("train");
        let first = problem.objective(memory, true);
        let norm = |memory: &mut M| problem.sum(memory, |lane, f| problem.gradient.get(lane, f).powi(2)).sqrt();
        let first_norm = norm(memory);
        let (mut now, mut falls) = (first, 0u64);
        for _ in 0..self.iterations {
            problem.newton_step(memory, self.steps);
            let mut scale = 1.0;
            // The Newton direction of a convex function goes down; halve until the full amount does too.
            loop {
                problem.sum(memory, |lane, feature| {
                    let w = problem.w.get(lane, feature) + scale * problem.step.get(lane, feature);
                    problem.w.set(lane, feature, w);
                    0.0
                });
                let new = problem.objective(memory, true);
                if new <= now {
                    falls += u64::from(new < now);
                    now = new;
                    break;
                }
                // `w + scale s` becomes `w + scale/2 s` by taking half the step back; tiny steps end the search.
                scale = if scale > 0.0 { -0.5 * scale } else { 0.5 * scale };
                check(INFO.name, scale.abs() > 1e-9 && new.is_finite(), || {
                    format!("no step along the Newton direction lowers the objective from {now}")
                })?;
            }
        }
        let last_norm = norm(memory);

        memory.phase("verify");
        let (mut loss, mut bad) = (0.0f64, None);
        for row in 0..rows {
            let (label, features) = generated.row(row);
            let start = problem.starts.peek(row) as usize;
            for (place, feature) in features.iter().enumerate() {
                let node = start + 2 * place;
                let right = node + 1 < problem.nodes.len()
                    && problem.nodes.peek(node) == *feature as u64 + 1
                    && f64::from_bits(problem.nodes.peek(node + 1)) == 1.0;
                bad = bad.or((!right).then_some(row));
            }
            let label = if label { 1.0 } else { -1.0 };
            bad = bad.or((problem.labels.peek(row) != label).then_some(row));
            let margin = label * features.iter().map(|&feature| problem.w.peek(feature)).sum::<f64>();
            loss += if margin > 0.0 { (-margin).exp().ln_1p() } else { margin.exp().ln_1p() - margin };
        }
        check(INFO.name, bad.is_none(), || format!("row {} in memory is not that of the file", bad.unwrap_or(0)))?;
        let expected = 0.5 * (0..features).map(|f| problem.w.peek(f).powi(2)).sum::<f64>() + COST * loss;
        check(INFO.name, (now / expected - 1.0).abs() < 1e-9, || {
            format!("the solver's objective is {now}, computed again {expected}")
        })?;
        check(INFO.name, falls > 0 && now < first && last_norm < first_norm, || {
            format!("the objective went from {first} to {now}, the gradient from {first_norm} to {last_norm}")
        })?;
        let checksum = (0..features).fold(0u64, |sum, f| mix(sum ^ problem.w.peek(f).to_bits()));
        memory.free(file);
        let figures = vec![
            ("rows", rows as f64),
            ("features", features as f64),
            ("first objective", first),
            ("last objective", now),
            ("gradient left", last_norm / first_norm),
        ];
        let verified = "the rows, the objective computed again, and its fall";
        Ok(Answer { operations: self.iterations, checksum, verified, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_into_what_it_was_made_of() {
        let features = [0, 5, 77, 1234, 20_000, 300_000, 4_000_000, 4_000_001, 50_000_000, 54_686_451, 54_686_452];
        for label in [true, false] {
            let (found, nodes) = parse(&line_of(label, &features));
            assert_eq!(found, label);
            let expected: Vec<(u64, f64)> = features.iter().map(|feature| (*feature as u64 + 1, 1.0)).collect();
            assert_eq!(nodes, expected);
        }
    }

    #[test]
    fn a_share_of_a_field_draws_what_it_draws_in_kdd12() {
        let weight = |ranks: usize| (1..=ranks).map(|rank| 1.0 / rank as f64).sum::<f64>();
        for features in [11 * 500, 11 * 20_000] {
            let rows = Rows::new(features, 7);
            let first: Vec<usize> =
                (0..FIELDS).map(|field| rows.scatter.apply((field * rows.field) as u64) as usize).collect();
            let drawn = (0..2000).flat_map(|row| rows.row(row).1).filter(|feature| first.contains(feature)).count();
            let expected = weight(FIELD_FEATURES / rows.field) / weight(FIELD_FEATURES);
            let share = drawn as f64 / (2000 * FIELDS) as f64;
            assert!((share / expected - 1.0).abs() < 0.05, "{features} features: {share:.3}, expected {expected:.3}");
        }
    }
}
