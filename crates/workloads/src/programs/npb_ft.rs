//! NPB FT: a partial differential equation by 3-D fast Fourier transforms.
//!
//! Source: NAS Parallel Benchmarks, report RNR-94-007 and its update, kernel FT; FlexMem (ATC 2024) runs it at 80.4 GB.
//! Memory as NPB's: two complex fields and the exponents, 40 bytes a point (class D: 2^31 points, 80 GiB). Allocation:
//! field u0, field u1, exponents. Phases: "init" (exponents, random field), "forward" (one transform), "iterate" (six
//! times: evolve all of u0, inverse transform into u1, checksum), "verify". Sizes are free, so grid lengths are any
//! products of 2, 3 and 5 rather than powers of two; along x whole blocks of 16 as NPB's, so that a block's rows are whole units of 256 bytes.
//! A block of 16 lines (330 KiB at 80 GiB) lies in a core's second-level cache of 1 MiB until it is written back. Blocks shrink with the cube root of
//! the size, and no cache of a scaled machine does: so a transform in place announces its stores where it reads. Check: the field that started is found again by taking the
//! evolution back and transforming; for the 64^3 grid of class S and NPB's seed, its checksums are the published ones.

use std::f64::consts::PI;

use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};

/// Diffusivity of the equation.
const ALPHA: f64 = 1e-6;
/// Bytes of a point: two complex numbers and an exponent.
const POINT_BYTES: u64 = 40;
/// NPB's own seed; the run's seed is added to it, seed 0 being NPB's very input.
const NPB_SEED: u64 = 314_159_265;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "npb-ft",
    description: "3-D fast Fourier transforms of a diffusing field",
    source: "NAS Parallel Benchmarks; used by FlexMem",
    operation: "iterations (6)",
    open_ended: false,
    options: &[("grid", "points along each axis, all three; 0 chooses by size (0)")],
    build: |settings| Ok(Box::new(Fourier::new(settings)?)),
};

/// Complex number.
type Complex = (f64, f64);

fn times(a: Complex, b: Complex) -> Complex {
    (a.0 * b.0 - a.1 * b.1, a.0 * b.1 + a.1 * b.0)
}

struct Fourier {
    grid: [usize; 3],
    iterations: u64,
    seed: u64,
}

/// Products of 2, 3 and 5 up to `most`, in order.
pub(super) fn smooth_numbers(most: usize) -> Vec<usize> {
    let rest = |mut number: usize| {
        for prime in [2, 3, 5] {
            while number.is_multiple_of(prime) {
                number /= prime;
            }
        }
        number
    };
    (1..=most).filter(|&number| rest(number) == 1).collect()
}

/// The smooth grid, near a cube and of whole blocks along x, whose number of points is nearest to `points`.
fn grid_of(points: u64) -> [usize; 3] {
    let edge = (points as f64).cbrt();
    let near: Vec<usize> =
        smooth_numbers((edge * 1.5) as usize + 2).into_iter().filter(|&n| n as f64 > edge * 0.6).collect();
    let mut best = ([1, 1, 1], f64::INFINITY);
    let whole: Vec<usize> = near.iter().copied().filter(|x| x.is_multiple_of(LINES_TOGETHER)).collect();
    for &x in if whole.is_empty() { &near } else { &whole } {
        for &y in &near {
            for &z in near.iter().filter(|&&z| z <= y) {
                let off = ((x * y * z) as f64 / points as f64).ln().abs();
                if off < best.1 {
                    best = ([x, y, z], off);
                }
            }
        }
    }
    best.0
}

impl Fourier {
    fn new(settings: &Settings<'_>) -> Result<Fourier, WorkloadError> {
        let grid = match settings.option("grid", 0usize, "0, or a product of 2, 3 and 5 up to 4096", |n| n <= 4096)? {
            0 => grid_of(settings.size() / POINT_BYTES),
            edge if smooth_numbers(edge).last() == Some(&edge) => [edge; 3],
            edge => return Err(settings.refused("grid", &edge.to_string(), "a product of 2, 3 and 5")),
        };
        Ok(Fourier { grid, iterations: settings.operations().unwrap_or(6), seed: settings.seed() })
    }

    fn points(&self) -> usize {
        self.grid.iter().product()
    }
}

/// NPB's generator: x' = 5^13 x mod 2^46, as a number in 0 to 1.
struct NpbRandom(u64);

impl NpbRandom {
    const MASK: u64 = (1 << 46) - 1;
    const FACTOR: u64 = 1_220_703_125;

    /// The generator after `skip` draws from `seed`.
    fn after(seed: u64, mut skip: u64) -> NpbRandom {
        let (mut power, mut state) = (NpbRandom::FACTOR, seed & NpbRandom::MASK);
        while skip > 0 {
            if skip & 1 == 1 {
                state = state.wrapping_mul(power) & NpbRandom::MASK;
            }
            power = power.wrapping_mul(power) & NpbRandom::MASK;
            skip >>= 1;
        }
        NpbRandom(state)
    }

    fn draw(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(NpbRandom::FACTOR) & NpbRandom::MASK;
        self.0 as f64 / (1u64 << 46) as f64
    }
}

/// A transform of one length: mixed radices 2, 3, 4 and 5, self-sorting (Stockham), on local line buffers.
struct Line {
    length: usize,
    radices: Vec<usize>,
    roots: Vec<Complex>,
}

impl Line {
    fn new(length: usize) -> Line {
        let (mut rest, mut radices) = (length, Vec::new());
        for radix in [4, 2, 3, 5] {
            while rest.is_multiple_of(radix) {
                radices.push(radix);
                rest /= radix;
            }
        }
        let roots = (0..length).map(|k| (2.0 * PI * k as f64 / length as f64).sin_cos()).map(|(s, c)| (c, s)).collect();
        Line { length, radices, roots }
    }

    /// exp(sign 2πi k / length).
    fn root(&self, k: usize, sign: f64) -> Complex {
        let (re, im) = self.roots[k % self.length];
        (re, sign * im)
    }

    /// Transforms `line`; `other` is scratch of the same length. The result is in `line`. Not normalised.
    fn transform(&self, line: &mut Vec<Complex>, other: &mut Vec<Complex>, sign: f64) {
        let (mut done, mut left) = (1, self.length);
        for &radix in &self.radices {
            left /= radix;
            let mut arms = [[(0.0, 0.0); 5]; 5];
            for (output, row) in arms.iter_mut().enumerate().take(radix) {
                for (input, root) in row.iter_mut().enumerate().take(radix) {
                    *root = self.root(output * input % radix * (self.length / radix), sign);
                }
            }
            for within in 0..done {
                // Twiddles of the decimation in time: a block of size done * radix has its own roots.
                let mut twiddles = [(0.0, 0.0); 5];
                for (arm, twiddle) in twiddles.iter_mut().enumerate().take(radix) {
                    *twiddle = self.root(arm * within * left, sign);
                }
                for group in 0..left {
                    let mut terms = [(0.0, 0.0); 5];
                    for arm in 0..radix {
                        terms[arm] = times(line[(arm * left + group) * done + within], twiddles[arm]);
                    }
                    for (arm, row) in arms.iter().enumerate().take(radix) {
                        let mut sum = terms[0];
                        for input in 1..radix {
                            let turned = times(terms[input], row[input]);
                            sum = (sum.0 + turned.0, sum.1 + turned.1);
                        }
                        other[(group * radix + arm) * done + within] = sum;
                    }
                }
            }
            std::mem::swap(line, other);
            done *= radix;
        }
    }

    fn cycles(&self) -> u32 {
        (self.length * self.radices.iter().sum::<usize>() * 2) as u32
    }
}

/// A field: real and imaginary parts side by side.
type Field = Array<f64>;

fn load<L: Lane>(field: &Field, lane: &mut L, index: usize) -> Complex {
    (field.get(lane, 2 * index), field.get(lane, 2 * index + 1))
}

fn save<L: Lane>(field: &Field, lane: &mut L, index: usize, value: Complex) {
    field.set(lane, 2 * index, value.0);
    field.set(lane, 2 * index + 1, value.1);
}

/// Loads what will be written back, and announces that.
fn take<L: Lane>(field: &Field, lane: &mut L, index: usize) -> Complex {
    let value = load(field, lane, index);
    field.claim(lane, 2 * index);
    field.claim(lane, 2 * index + 1);
    value
}

/// Writes back what was taken.
fn put<L: Lane>(field: &Field, lane: &L, index: usize, value: Complex) {
    field.put(lane, 2 * index, value.0);
    field.put(lane, 2 * index + 1, value.1);
}

/// Lines handled together along the far axes, as NPB's block of 16: a cache line of neighbours at a time.
const LINES_TOGETHER: usize = 16;

impl Fourier {
    /// Transforms along one axis from `from` into `to`, which may be the same.
    fn along<M: Memory>(&self, memory: &mut M, axis: usize, sign: f64, from: &Field, to: &Field) {
        let plan = Line::new(self.grid[axis]);
        let stride: usize = self.grid[..axis].iter().product();
        let lines = self.points() / plan.length;
        let in_place = std::ptr::eq(from, to);
        // Lines that differ only in x lie side by side; a batch must not cross the end of such a run.
        let batch = if axis == 0 { 1 } else { LINES_TOGETHER.min(stride) };
        let batches_in_run = stride.div_ceil(batch);
        let runs = if axis == 0 { lines } else { lines / stride };
        let batches = if axis == 0 { lines } else { runs * batches_in_run };
        memory.parallel(batches, 1, Schedule::Blocks, |lane, range| {
            let mut local: Vec<Vec<Complex>> = vec![vec![(0.0, 0.0); plan.length]; batch];
            let mut scratch = vec![(0.0, 0.0); plan.length];
            for number in range {
                let (start, width) = if axis == 0 {
                    (number * plan.length, 1)
                } else {
                    let (run, part) = (number / batches_in_run, number % batches_in_run * batch);
                    (run * stride * plan.length + part, batch.min(stride - part))
                };
                for place in 0..plan.length {
                    for (line, local) in local.iter_mut().enumerate().take(width) {
                        let index = start + place * stride + line;
                        local[place] = if in_place { take(from, lane, index) } else { load(from, lane, index) };
                    }
                }
                for local in local.iter_mut().take(width) {
                    plan.transform(local, &mut scratch, sign);
                    lane.compute(plan.cycles());
                }
                for place in 0..plan.length {
                    for (line, local) in local.iter().enumerate().take(width) {
                        let index = start + place * stride + line;
                        if in_place {
                            put(to, lane, index, local[place]);
                        } else {
                            save(to, lane, index, local[place]);
                        }
                    }
                }
            }
        });
    }

    fn transform<M: Memory>(&self, memory: &mut M, sign: f64, from: &Field, to: &Field) {
        let axes = if sign < 0.0 { [0, 1, 2] } else { [2, 1, 0] };
        self.along(memory, axes[0], sign, from, to);
        self.along(memory, axes[1], sign, to, to);
        self.along(memory, axes[2], sign, to, to);
    }

    /// Squared wave number of a point.
    fn wave(&self, index: usize) -> f64 {
        let [nx, ny, _] = self.grid;
        let at = [index % nx, index / nx % ny, index / (nx * ny)];
        (0..3)
            .map(|axis| {
                let n = self.grid[axis];
                let k = ((at[axis] + n / 2) % n) as f64 - (n / 2) as f64;
                k * k
            })
            .sum()
    }

    /// NPB's checksum: 1,024 points of a fixed pattern, over the number of points.
    fn checksum<L: Lane>(&self, lane: &mut L, field: &Field) -> Complex {
        let [nx, ny, nz] = self.grid;
        let mut sum = (0.0, 0.0);
        for j in 1..=1024usize {
            let index = j % nx + nx * (3 * j % ny + ny * (5 * j % nz));
            let value = load(field, lane, index);
            sum = (sum.0 + value.0, sum.1 + value.1);
        }
        (sum.0 / self.points() as f64, sum.1 / self.points() as f64)
    }
}

impl Program for Fourier {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        let points = self.points();
        let [nx, ny, nz] = self.grid;
        let seed = NPB_SEED + 2 * (self.seed & 0xFFFF_FFFF);
        memory.phase("init");
        let u0: Field = memory.allocate("field u0", 2 * points);
        let u1: Field = memory.allocate("field u1", 2 * points);
        let exponents: Array<f64> = memory.allocate("exponents", points);
        let factor = -4.0 * ALPHA * PI * PI;
        memory.parallel(ny * nz, 4, Schedule::Blocks, |lane, rows| {
            for row in rows {
                for index in row * nx..(row + 1) * nx {
                    lane.compute(30);
                    exponents.set(lane, index, (factor * self.wave(index)).exp());
                }
                let mut random = NpbRandom::after(seed, (2 * row * nx) as u64);
                for index in row * nx..(row + 1) * nx {
                    let value = (random.draw(), random.draw());
                    save(&u1, lane, index, value);
                }
            }
        });
        memory.phase("forward");
        self.transform(memory, -1.0, &u1, &u0);
        memory.phase("iterate");
        let mut sums: Vec<Complex> = Vec::new();
        for _ in 0..self.iterations {
            memory.parallel(points, 128, Schedule::Blocks, |lane, range| {
                for index in range {
                    let value = load(&u0, lane, index);
                    let exponent = exponents.get(lane, index);
                    let evolved = (value.0 * exponent, value.1 * exponent);
                    save(&u0, lane, index, evolved);
                    save(&u1, lane, index, evolved);
                }
            });
            self.transform(memory, 1.0, &u1, &u1);
            sums.push(self.checksum(memory.main(), &u1));
        }

        memory.phase("verify");
        let rounds = self.iterations as i32;
        for index in 0..points {
            let back = exponents.peek(index).powi(rounds);
            u0.place(2 * index, u0.peek(2 * index) / back);
            u0.place(2 * index + 1, u0.peek(2 * index + 1) / back);
        }
        let mut worst = 0.0f64;
        self.transform_unseen(&u0);
        for row in 0..ny * nz {
            let mut random = NpbRandom::after(seed, (2 * row * nx) as u64);
            for index in row * nx..(row + 1) * nx {
                for part in 0..2 {
                    let found = u0.peek(2 * index + part) / points as f64;
                    let off = (found - random.draw()).abs();
                    // A NaN must not pass for a small difference.
                    worst = if off.is_nan() { f64::INFINITY } else { worst.max(off) };
                }
            }
        }
        check(INFO.name, worst < 1e-8, || format!("taken back, the field is off by {worst:.3e}"))?;
        // The last inverse transform: its checksum comes out of u1, and the field there must be the evolution of the start.
        let last = sums.last().copied().unwrap_or_default();
        check(INFO.name, last.0.is_finite() && last.1.is_finite(), || "a checksum is not finite".to_owned())?;
        let energy: f64 = (0..2 * points).map(|index| u1.peek(index).powi(2)).sum::<f64>() / points as f64;
        let expected = self.energy_after(&u0, &exponents, rounds);
        check(INFO.name, (energy / expected - 1.0).abs() < 1e-9, || {
            format!("the evolved field has energy {energy:.12e}, not {expected:.12e}")
        })?;
        let checksum =
            sums.iter().fold(0u64, |sum, s| sum.rotate_left(9) ^ s.0.to_bits() ^ s.1.to_bits().rotate_left(32));
        memory.free(exponents);
        memory.free(u1);
        memory.free(u0);
        let mut figures = vec![("points", points as f64), ("worst error", worst)];
        const NAMES: [(&str, &str); 6] = [
            ("checksum 1 real", "checksum 1 imaginary"),
            ("checksum 2 real", "checksum 2 imaginary"),
            ("checksum 3 real", "checksum 3 imaginary"),
            ("checksum 4 real", "checksum 4 imaginary"),
            ("checksum 5 real", "checksum 5 imaginary"),
            ("checksum 6 real", "checksum 6 imaginary"),
        ];
        // As NPB prints them: sums of the pattern divided by the number of points.
        for (sum, (real, imaginary)) in sums.iter().zip(NAMES) {
            figures.push((real, sum.0));
            figures.push((imaginary, sum.1));
        }
        Ok(Answer {
            operations: self.iterations,
            checksum,
            verified: "the inverse gives the first field back; the last field's energy",
            figures,
        })
    }
}

impl Fourier {
    /// The inverse transform in place, unseen.
    fn transform_unseen(&self, field: &Field) {
        for axis in 0..3 {
            let plan = Line::new(self.grid[axis]);
            let stride: usize = self.grid[..axis].iter().product();
            let (mut line, mut scratch) = (vec![(0.0, 0.0); plan.length], vec![(0.0, 0.0); plan.length]);
            for number in 0..self.points() / plan.length {
                let start = number / stride * stride * plan.length + number % stride;
                for (place, value) in line.iter_mut().enumerate() {
                    let index = 2 * (start + place * stride);
                    *value = (field.peek(index), field.peek(index + 1));
                }
                plan.transform(&mut line, &mut scratch, 1.0);
                for (place, value) in line.iter().enumerate() {
                    let index = 2 * (start + place * stride);
                    field.place(index, value.0);
                    field.place(index + 1, value.1);
                }
            }
        }
    }

    /// What Parseval says the last field's energy (sum of squares over the points) is, from the first field that `start`
    /// holds unnormalised: transformed again and evolved.
    fn energy_after(&self, start: &Field, exponents: &Array<f64>, rounds: i32) -> f64 {
        // The inverse transform of the conjugate is the conjugate of the forward one; only squares are wanted.
        let scale = self.points() as f64;
        for index in 0..self.points() {
            start.place(2 * index, start.peek(2 * index) / scale);
            start.place(2 * index + 1, -start.peek(2 * index + 1) / scale);
        }
        self.transform_unseen(start);
        (0..self.points())
            .map(|index| {
                let square = start.peek(2 * index).powi(2) + start.peek(2 * index + 1).powi(2);
                square * exponents.peek(index).powi(2 * rounds)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_the_plain_sum_for_every_smooth_length() {
        for length in [1, 2, 3, 4, 5, 6, 8, 12, 15, 16, 30, 45, 60, 64] {
            let input: Vec<Complex> = (0..length).map(|k| ((k * k % 7) as f64, (k % 3) as f64 - 1.0)).collect();
            let (mut line, mut scratch) = (input.clone(), vec![(0.0, 0.0); length]);
            Line::new(length).transform(&mut line, &mut scratch, -1.0);
            for (k, found) in line.iter().enumerate() {
                let mut expected = (0.0, 0.0);
                for (j, value) in input.iter().enumerate() {
                    let (sin, cos) = (-2.0 * PI * (j * k % length) as f64 / length as f64).sin_cos();
                    let turned = times(*value, (cos, sin));
                    expected = (expected.0 + turned.0, expected.1 + turned.1);
                }
                let off = (found.0 - expected.0).hypot(found.1 - expected.1);
                assert!(off < 1e-10, "length {length}, place {k}: {found:?} {expected:?}");
            }
        }
    }

    #[test]
    fn grids_take_the_bytes_they_were_given() {
        for megabytes in [4u64, 7, 33, 100, 1024, 82_000] {
            let points = (megabytes << 20) / POINT_BYTES;
            let grid = grid_of(points);
            let off = grid.iter().product::<usize>() as f64 / points as f64;
            assert!((0.97..1.03).contains(&off), "{megabytes} MiB: {grid:?}");
        }
    }
}
