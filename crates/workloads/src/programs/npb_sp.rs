//! NPB SP: alternating directions on a 3-D grid of five unknowns, scalar pentadiagonal systems along each line.
//!
//! Source: NAS Parallel Benchmarks, application SP; FlexMem (ATC 2024) runs it at 80 GB. Memory and order of work are
//! NPB's: u, rhs, forcing of five numbers a point; us, vs, ws, qs, rho_i, speed, square of one: 22, 176 bytes a point.
//! The equations are ours: convection with speeds that depend on the solution, in coordinates of a fixed orthogonal
//! transform; diffusion; fourth-order damping (hence five diagonals); reaction; a right side whose exact solution is
//! known. Allocation: as listed. Phases: "init", "iterate" (auxiliary fields and right side; transform; x, y and z
//! lines; transform back and add), "verify". Check: the right side is as made; the residual and
//! the distance to the exact solution have fallen.

use super::npb_grid::{Grid, Solved, Vector, set_vector, vector};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo};

/// Bytes of a point.
const POINT_BYTES: u64 = 22 * 8;
/// Diffusion, damping, reaction, and the time step that the factored iteration takes.
const DIFFUSION: f64 = 1.0;
const DAMPING: f64 = 0.05;
const REACTION: f64 = 1.2;
const STEP: f64 = 0.35;
/// What an iteration must shrink residual and error by, at least.
const RATE: f64 = 0.9;
/// Lines handled together along y and z: neighbours in x, a few cache lines at a time.
const LINES_TOGETHER: usize = 8;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "npb-sp",
    description: "alternating-direction solver with scalar pentadiagonal lines on a 3-D grid",
    source: "NAS Parallel Benchmarks; used by FlexMem",
    operation: "time steps (10; NPB does 400 to 500)",
    open_ended: false,
    options: &[],
    build: |settings| Ok(Box::new(Alternating::new(settings)?)),
};

struct Alternating {
    grid: Grid,
    iterations: u64,
}

impl Alternating {
    fn new(settings: &Settings<'_>) -> Result<Alternating, WorkloadError> {
        let grid = Grid::new(settings.size() / POINT_BYTES, settings.seed());
        Ok(Alternating { grid, iterations: settings.operations().unwrap_or(10) })
    }
}

/// The transform to the coordinates the convection is diagonal in: a reflection, so it is its own inverse.
#[inline]
fn reflect(v: &Vector) -> Vector {
    const NORMAL: Vector = [0.5, 0.5, 0.5, 0.4, 0.3];
    let dot: f64 = (0..5).map(|m| NORMAL[m] * v[m]).sum();
    let mut out = *v;
    (0..5).for_each(|m| out[m] -= 2.0 * dot * NORMAL[m]);
    out
}

/// What NPB keeps beside the solution, from a point's solution: velocities, qs, rho_i, speed, square. All bounded.
struct Beside {
    velocity: [f64; 3],
    qs: f64,
    rho_i: f64,
    speed: f64,
    square: f64,
}

#[inline]
fn beside(u: &Vector) -> Beside {
    let rho_i = 1.0 / (1.0 + u[0] * u[0]);
    let velocity = [1, 2, 3].map(|m| 0.5 * u[m] / (1.0 + u[m] * u[m]));
    let square = 0.5 * (velocity[0] * velocity[0] + velocity[1] * velocity[1] + velocity[2] * velocity[2]);
    Beside { velocity, qs: square * rho_i, rho_i, speed: 0.5 / (1.0 + u[4] * u[4]), square }
}

/// Convection speed of each unknown along an axis.
#[inline]
fn speeds(velocity: f64, speed: f64) -> Vector {
    [velocity, velocity, velocity, velocity + 0.3 * speed, velocity - 0.3 * speed]
}

/// A third of the reaction at a point: each direction has one.
#[inline]
fn reaction(qs: f64, rho_i: f64, square: f64) -> f64 {
    REACTION / 3.0 * (1.0 + 0.1 * qs + 0.05 * rho_i + 0.05 * square)
}

/// The five diagonals of a row: offsets -2 to 2.
#[inline]
fn row(speed: f64, reaction: f64) -> [f64; 5] {
    let far = DAMPING;
    let near = -DIFFUSION - 4.0 * DAMPING;
    [far, near - 0.5 * speed, 2.0 * DIFFUSION + 6.0 * DAMPING + reaction, near + 0.5 * speed, far]
}

/// Solves a pentadiagonal system in place: rows of five diagonals, right sides in `right`.
fn solve(rows: &mut [[f64; 5]], right: &mut [f64]) {
    let length = rows.len();
    for pivot in 0..length {
        for below in 1..=2.min(length - 1 - pivot) {
            let factor = rows[pivot + below][2 - below] / rows[pivot][2];
            // The pivot's row reaches two places right of its diagonal.
            for offset in 0..=2 {
                let entry = 2 - below + offset;
                rows[pivot + below][entry] -= factor * rows[pivot][2 + offset];
            }
            right[pivot + below] -= factor * right[pivot];
        }
    }
    for pivot in (0..length).rev() {
        let mut value = right[pivot];
        for above in 1..=2.min(length - 1 - pivot) {
            value -= rows[pivot][2 + above] * right[pivot + above];
        }
        right[pivot] = value / rows[pivot][2];
    }
}

struct Arrays {
    u: Array<f64>,
    rhs: Array<f64>,
    forcing: Array<f64>,
    velocity: [Array<f64>; 3],
    qs: Array<f64>,
    rho_i: Array<f64>,
    speed: Array<f64>,
    square: Array<f64>,
}

impl Alternating {
    /// The operator at a point, in the solution's own coordinates.
    fn operator(&self, at: [usize; 3], near: &Beside, mut read: impl FnMut(usize) -> Vector) -> Vector {
        let strides = self.grid.strides();
        let point = at[0] + at[1] * strides[1] + at[2] * strides[2];
        let third = reaction(near.qs, near.rho_i, near.square);
        let here = reflect(&read(point));
        let mut sum = [0.0; 5];
        for axis in 0..3 {
            let speeds = speeds(near.velocity[axis], near.speed);
            let rows = speeds.map(|speed| row(speed, third));
            (0..5).for_each(|m| sum[m] += rows[m][2] * here[m]);
            for offset in [0usize, 1, 3, 4] {
                let Some(place) = (at[axis] + offset).checked_sub(2).filter(|&place| place < self.grid.extent[axis])
                else {
                    continue;
                };
                let v = reflect(&read(point + place * strides[axis] - at[axis] * strides[axis]));
                (0..5).for_each(|m| sum[m] += rows[m][offset] * v[m]);
            }
        }
        reflect(&sum)
    }

    /// Auxiliary fields, then the residual times the step into rhs; returns the residual's norm.
    fn right_side<M: Memory>(&self, memory: &mut M, arrays: &Arrays) -> f64 {
        let rows = self.grid.rows();
        memory.parallel(rows, 1, Schedule::Blocks, |lane, range| {
            for point in self.grid.points_of(range) {
                let near = beside(&vector(&arrays.u, lane, point));
                lane.compute(40);
                for axis in 0..3 {
                    arrays.velocity[axis].set(lane, point, near.velocity[axis]);
                }
                arrays.qs.set(lane, point, near.qs);
                arrays.rho_i.set(lane, point, near.rho_i);
                arrays.speed.set(lane, point, near.speed);
                arrays.square.set(lane, point, near.square);
            }
        });
        let mut sums = vec![0.0f64; memory.threads()];
        memory.parallel_with(&mut sums, rows, 1, Schedule::Blocks, |lane, sum, range| {
            for point in self.grid.points_of(range) {
                let near = arrays.beside(lane, point);
                let mut rhs = vector(&arrays.forcing, lane, point);
                let applied = self.operator(self.grid.place(point), &near, |point| vector(&arrays.u, lane, point));
                for m in 0..5 {
                    rhs[m] -= applied[m];
                    *sum += rhs[m] * rhs[m];
                    rhs[m] *= STEP;
                }
                lane.compute(200);
                set_vector(&arrays.rhs, lane, point, &rhs);
            }
        });
        (sums.iter().sum::<f64>() / self.grid.points() as f64).sqrt()
    }

    /// Solves the lines along an axis, in place in rhs. The x lines come first and transform on the way in; the z lines
    /// come last and transform back, which is NPB's txinvr and tzetar.
    fn lines<M: Memory>(&self, memory: &mut M, arrays: &Arrays, axis: usize) {
        let strides = self.grid.strides();
        let length = self.grid.extent[axis];
        let (stride, together) = (strides[axis], if axis == 0 { 1 } else { LINES_TOGETHER.min(self.grid.extent[0]) });
        // Lines of a batch differ in x; batches go over x and the remaining axis (y for z lines, z for y lines).
        let (across, other) = match axis {
            0 => (1, self.grid.extent[1] * self.grid.extent[2]),
            1 => (self.grid.extent[0].div_ceil(together), self.grid.extent[2]),
            _ => (self.grid.extent[0].div_ceil(together), self.grid.extent[1]),
        };
        let other_stride = [strides[1], strides[2], strides[1]][axis];
        memory.parallel(across * other, 1, Schedule::Blocks, |lane, range| {
            let mut rows = vec![[[0.0; 5]; 5]; length * together];
            let mut right = vec![[0.0; 5]; length * together];
            let (mut one_rows, mut one_right) = (vec![[0.0; 5]; length], vec![0.0; length]);
            for batch in range {
                let first = batch % across * together;
                let width = if axis == 0 { 1 } else { together.min(self.grid.extent[0] - first) };
                let start = if axis == 0 { batch * other_stride } else { first + batch / across * other_stride };
                for place in 0..length {
                    for line in 0..width {
                        let point = start + place * stride + line;
                        let speed = arrays.speed.get(lane, point);
                        let velocity = arrays.velocity[axis].get(lane, point);
                        let qs = arrays.qs.get(lane, point);
                        let rho_i = arrays.rho_i.get(lane, point);
                        let square = arrays.square.get(lane, point);
                        let third = reaction(qs, rho_i, square);
                        let value = vector(&arrays.rhs, lane, point);
                        right[line * length + place] = if axis == 0 { reflect(&value) } else { value };
                        rows[line * length + place] = speeds(velocity, speed).map(|speed| {
                            let mut row = row(speed, third).map(|entry| STEP * entry);
                            row[2] += 1.0;
                            row
                        });
                    }
                }
                for line in 0..width {
                    for m in 0..5 {
                        for place in 0..length {
                            one_rows[place] = rows[line * length + place][m];
                            one_right[place] = right[line * length + place][m];
                        }
                        solve(&mut one_rows, &mut one_right);
                        (0..length).for_each(|place| right[line * length + place][m] = one_right[place]);
                    }
                }
                lane.compute((width * length * 200) as u32);
                for place in 0..length {
                    for line in 0..width {
                        let value = right[line * length + place];
                        let value = if axis == 2 { reflect(&value) } else { value };
                        set_vector(&arrays.rhs, lane, start + place * stride + line, &value);
                    }
                }
            }
        });
    }

    /// The right side at a point that makes the exact solution exact.
    fn made_right_side(&self, point: usize) -> Vector {
        let read = |point| self.grid.exact(point);
        self.operator(self.grid.place(point), &beside(&read(point)), read)
    }
}

impl Arrays {
    fn beside<L: Lane>(&self, lane: &mut L, point: usize) -> Beside {
        Beside {
            velocity: [0, 1, 2].map(|axis| self.velocity[axis].get(lane, point)),
            qs: self.qs.get(lane, point),
            rho_i: self.rho_i.get(lane, point),
            speed: self.speed.get(lane, point),
            square: self.square.get(lane, point),
        }
    }
}

impl Program for Alternating {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        let points = self.grid.points();
        memory.phase("init");
        let arrays = Arrays {
            u: memory.allocate("u", 5 * points),
            rhs: memory.allocate("rhs", 5 * points),
            forcing: memory.allocate("forcing", 5 * points),
            velocity: [memory.allocate("us", points), memory.allocate("vs", points), memory.allocate("ws", points)],
            qs: memory.allocate("qs", points),
            rho_i: memory.allocate("rho_i", points),
            speed: memory.allocate("speed", points),
            square: memory.allocate("square", points),
        };
        let this = &*self;
        let rows = this.grid.rows();
        memory.parallel(rows, 1, Schedule::Blocks, |lane, range| {
            for point in this.grid.points_of(range) {
                set_vector(&arrays.u, lane, point, &[0.0; 5]);
                lane.compute(2500);
                set_vector(&arrays.forcing, lane, point, &this.made_right_side(point));
            }
        });
        let start_distance = self.grid.distance(&arrays.u);

        memory.phase("iterate");
        let first = self.right_side(memory, &arrays);
        let mut last = first;
        for _ in 0..self.iterations {
            (0..3).for_each(|axis| self.lines(memory, &arrays, axis));
            memory.parallel(rows, 1, Schedule::Blocks, |lane, range| {
                for point in self.grid.points_of(range) {
                    let change = vector(&arrays.rhs, lane, point);
                    let mut u = vector(&arrays.u, lane, point);
                    (0..5).for_each(|m| u[m] += change[m]);
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
            right_side: &arrays.forcing,
            iterations: self.iterations,
            rate: RATE,
            residuals: [first, last],
            start_distance,
        };
        solved.judge(|point| self.made_right_side(point))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pentadiagonal_solution_satisfies_its_system() {
        for length in [1usize, 2, 3, 7, 40] {
            let rows: Vec<[f64; 5]> = (0..length)
                .map(|k| row(0.3 * (k as f64).sin(), 0.7).map(|entry| entry + 0.01 * (k % 3) as f64))
                .collect();
            let right: Vec<f64> = (0..length).map(|k| (k as f64 * 0.7).cos()).collect();
            let (mut used, mut found) = (rows.clone(), right.clone());
            solve(&mut used, &mut found);
            for k in 0..length {
                let sum: f64 = (0..5)
                    .filter_map(|d| (k + d).checked_sub(2).filter(|&j| j < length).map(|j| rows[k][d] * found[j]))
                    .sum();
                assert!((sum - right[k]).abs() < 1e-10, "length {length} row {k}");
            }
        }
    }

    #[test]
    fn the_reflection_is_its_own_inverse() {
        let v = [1.0, -2.0, 3.0, 0.5, 7.0];
        let back = reflect(&reflect(&v));
        assert!((0..5).all(|m| (back[m] - v[m]).abs() < 1e-12));
    }
}
