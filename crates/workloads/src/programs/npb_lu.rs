//! NPB LU: symmetric successive over-relaxation on a 3-D grid of five coupled unknowns, in pipelined sweeps.
//!
//! Source: NAS Parallel Benchmarks, application LU; FlexMem (ATC 2024) runs it at 134 GB. Memory, sweeps and pipeline are
//! NPB's: u, rsd, frct of five numbers a point, qs and rho_i of one, 136 bytes a point (class E: 1020^3 points, 134 GiB).
//! The equations are ours, a convection-diffusion-reaction system with 5x5 blocks that depend on the solution through
//! qs and rho_i, and a right side made so that the exact solution is known. Allocation: u, rsd, frct, qs, rho_i.
//! Phases: "init", "iterate" (right side; lower sweep from the first corner, upper sweep back, threads a plane apart;
//! update), "verify". Check: the right side is as made; the residual has fallen at the method's rate, and so has the distance to the exact solution.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::npb_grid::{Grid, Solved, Vector, set_vector, vector};
use crate::memory::{Array, Lane, Memory, Schedule, block_of};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo};

/// Bytes of a point.
const POINT_BYTES: u64 = 17 * 8;
/// Over-relaxation, as NPB's.
const OMEGA: f64 = 1.2;
/// Diffusion to each neighbour, and reaction.
const DIFFUSION: f64 = 1.0;
const REACTION: f64 = 0.9;
/// What an iteration must shrink residual and error by, at least. Ten iterations on 46,656 points shrank the residual to
/// 1.7e-4, a mean of 0.42 each; the bound leaves room for other sizes and for the slower first iterations.
const RATE: f64 = 0.85;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "npb-lu",
    description: "symmetric successive over-relaxation of five coupled unknowns on a 3-D grid",
    source: "NAS Parallel Benchmarks; used by FlexMem",
    operation: "iterations (10; NPB does 250 to 300)",
    open_ended: false,
    options: &[],
    build: |settings| Ok(Box::new(Relaxation::new(settings)?)),
};

type Matrix = [Vector; 5];

struct Relaxation {
    grid: Grid,
    iterations: u64,
}

impl Relaxation {
    fn new(settings: &Settings<'_>) -> Result<Relaxation, WorkloadError> {
        let grid = Grid::new(settings.size() / POINT_BYTES, settings.seed());
        Ok(Relaxation { grid, iterations: settings.operations().unwrap_or(10) })
    }
}

/// The convective factor of a point, from its solution; bounded, so the blocks stay dominant.
fn qs_of(u: &Vector) -> f64 {
    let square = u[1] * u[1] + u[2] * u[2] + u[3] * u[3];
    0.2 * square / (1.0 + square)
}

/// The reactive factor of a point, from its solution.
fn rho_of(u: &Vector) -> f64 {
    1.0 / (1.0 + 0.2 * u[0] * u[0] / (1.0 + u[0] * u[0]))
}

/// The block of a point towards its neighbour on `axis`, times a vector: diffusion, and convection that couples the
/// unknowns in a ring; `side` is -1 or 1.
#[inline]
fn toward(axis: usize, side: f64, qs: f64, v: &Vector) -> Vector {
    let mut out = [0.0; 5];
    for (m, out) in out.iter_mut().enumerate() {
        let ring = v[(m + 1 + axis) % 5] - v[(m + 4 - axis) % 5];
        *out = DIFFUSION * v[m] - side * qs * (v[m] + 0.5 * ring);
    }
    out
}

/// The diagonal block of a point.
#[inline]
fn diagonal(rho: f64) -> Matrix {
    let mut out = [[0.0; 5]; 5];
    for (m, row) in out.iter_mut().enumerate() {
        row[m] = 6.0 * DIFFUSION + REACTION;
        row[(m + 1) % 5] += 0.2 * rho;
        row[(m + 4) % 5] -= 0.2 * rho;
    }
    out
}

/// Solves a 5x5 system by elimination; the blocks are diagonally dominant, so no pivoting is needed.
#[inline]
fn solve(mut matrix: Matrix, mut right: Vector) -> Vector {
    for column in 0..5 {
        for row in column + 1..5 {
            let factor = matrix[row][column] / matrix[column][column];
            let pivot = matrix[column];
            for (entry, above) in matrix[row].iter_mut().zip(pivot).skip(column) {
                *entry -= factor * above;
            }
            right[row] -= factor * right[column];
        }
    }
    for row in (0..5).rev() {
        for column in row + 1..5 {
            right[row] -= matrix[row][column] * right[column];
        }
        right[row] /= matrix[row][row];
    }
    right
}

struct Arrays {
    u: Array<f64>,
    rsd: Array<f64>,
    frct: Array<f64>,
    qs: Array<f64>,
    rho_i: Array<f64>,
}

impl Relaxation {
    /// The operator at a point, given a way to read the solution there and beside it.
    fn operator(&self, at: [usize; 3], qs: f64, rho: f64, mut read: impl FnMut(usize) -> Vector) -> Vector {
        let point = self.grid.point(at);
        let here = read(point);
        let block = diagonal(rho);
        let mut out = [0.0; 5];
        for (row, out) in out.iter_mut().enumerate() {
            *out = (0..5).map(|column| block[row][column] * here[column]).sum();
        }
        for (axis, stride) in self.grid.strides().into_iter().enumerate() {
            if at[axis] > 0 {
                let below = toward(axis, -1.0, qs, &read(point - stride));
                (0..5).for_each(|m| out[m] -= below[m]);
            }
            if at[axis] + 1 < self.grid.extent[axis] {
                let above = toward(axis, 1.0, qs, &read(point + stride));
                (0..5).for_each(|m| out[m] -= above[m]);
            }
        }
        out
    }

    /// Residual into rsd; returns its norm.
    fn right_side<M: Memory>(&self, memory: &mut M, arrays: &Arrays) -> f64 {
        let rows = self.grid.rows();
        memory.parallel(rows, 1, Schedule::Blocks, |lane, range| {
            for point in self.grid.points_of(range) {
                let u = vector(&arrays.u, lane, point);
                lane.compute(12);
                arrays.qs.set(lane, point, qs_of(&u));
                arrays.rho_i.set(lane, point, rho_of(&u));
            }
        });
        let mut sums = vec![0.0f64; memory.threads()];
        memory.parallel_with(&mut sums, rows, 1, Schedule::Blocks, |lane, sum, range| {
            for point in self.grid.points_of(range) {
                let (qs, rho) = (arrays.qs.get(lane, point), arrays.rho_i.get(lane, point));
                let mut rsd = vector(&arrays.frct, lane, point);
                let applied = self.operator(self.grid.place(point), qs, rho, |point| vector(&arrays.u, lane, point));
                for m in 0..5 {
                    rsd[m] -= applied[m];
                    *sum += rsd[m] * rsd[m];
                }
                lane.compute(80);
                set_vector(&arrays.rsd, lane, point, &rsd);
            }
        });
        (sums.iter().sum::<f64>() / self.grid.points() as f64).sqrt()
    }

    /// One triangular sweep over rsd. Threads have blocks of rows; a thread may do a plane when the thread before it has.
    fn sweep<M: Memory>(&self, memory: &mut M, arrays: &Arrays, upper: bool) {
        let [nx, ny, nz] = self.grid.extent;
        let threads = memory.threads().min(ny);
        let done: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
        let mut planes = vec![0usize; threads];
        memory.run(&mut planes, |lane, plane| {
            let thread = lane.thread();
            if *plane == nz {
                return false;
            }
            if thread > 0 && done[thread - 1].load(Ordering::Acquire) <= *plane {
                return true;
            }
            let block = block_of(ny, threads, thread);
            for row in block {
                for column in 0..nx {
                    // The upper sweep is the lower one seen from the far corner.
                    let at =
                        if upper { [nx - 1 - column, ny - 1 - row, nz - 1 - *plane] } else { [column, row, *plane] };
                    self.relax(lane, arrays, at, upper);
                }
            }
            *plane += 1;
            done[thread].store(*plane, Ordering::Release);
            true
        });
    }

    #[inline]
    fn relax<L: Lane>(&self, lane: &mut L, arrays: &Arrays, at: [usize; 3], upper: bool) {
        let point = self.grid.point(at);
        let (qs, rho) = (arrays.qs.get(lane, point), arrays.rho_i.get(lane, point));
        let mut sum = [0.0; 5];
        for (axis, stride) in self.grid.strides().into_iter().enumerate() {
            let inside = if upper { at[axis] + 1 < self.grid.extent[axis] } else { at[axis] > 0 };
            if inside {
                let beside = if upper { point + stride } else { point - stride };
                let v = vector(&arrays.rsd, lane, beside);
                let part = toward(axis, if upper { 1.0 } else { -1.0 }, qs, &v);
                (0..5).for_each(|m| sum[m] += OMEGA * part[m]);
            }
        }
        lane.compute(150);
        let mut rsd = vector(&arrays.rsd, lane, point);
        if upper {
            let part = solve(diagonal(rho), sum);
            (0..5).for_each(|m| rsd[m] += part[m]);
        } else {
            (0..5).for_each(|m| rsd[m] += sum[m]);
            rsd = solve(diagonal(rho), rsd);
        }
        set_vector(&arrays.rsd, lane, point, &rsd);
    }

    /// The right side at a point that makes the exact solution exact.
    fn made_right_side(&self, point: usize) -> Vector {
        let read = |point| self.grid.exact(point);
        let u = read(point);
        self.operator(self.grid.place(point), qs_of(&u), rho_of(&u), read)
    }
}

impl Program for Relaxation {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        let points = self.grid.points();
        memory.phase("init");
        let arrays = Arrays {
            u: memory.allocate("u", 5 * points),
            rsd: memory.allocate("rsd", 5 * points),
            frct: memory.allocate("frct", 5 * points),
            qs: memory.allocate("qs", points),
            rho_i: memory.allocate("rho_i", points),
        };
        let this = &*self;
        let rows = this.grid.rows();
        memory.parallel(rows, 1, Schedule::Blocks, |lane, range| {
            for point in this.grid.points_of(range) {
                set_vector(&arrays.u, lane, point, &[0.0; 5]);
                lane.compute(1500);
                set_vector(&arrays.frct, lane, point, &this.made_right_side(point));
            }
        });
        let start_distance = self.grid.distance(&arrays.u);

        memory.phase("iterate");
        let first = self.right_side(memory, &arrays);
        let mut last = first;
        let factor = OMEGA * (2.0 - OMEGA);
        for _ in 0..self.iterations {
            self.sweep(memory, &arrays, false);
            self.sweep(memory, &arrays, true);
            memory.parallel(rows, 1, Schedule::Blocks, |lane, range| {
                for point in self.grid.points_of(range) {
                    let change = vector(&arrays.rsd, lane, point);
                    let mut u = vector(&arrays.u, lane, point);
                    (0..5).for_each(|m| u[m] += factor * change[m]);
                    lane.compute(5);
                    set_vector(&arrays.u, lane, point, &u);
                }
            });
            last = self.right_side(memory, &arrays);
        }

        memory.phase("verify");
        let solved = Solved {
            workload: INFO.name,
            grid: &self.grid,
            solution: &arrays.u,
            right_side: &arrays.frct,
            iterations: self.iterations,
            rate: RATE,
            residuals: [first, last],
            start_distance,
        };
        solved.judge(|point| self.made_right_side(point))
    }
}
