//! What NPB's solvers on a grid share: five unknowns a point, the grid and its exact solution, and the judgement at the end.
//!
//! In: a number of points and a seed; the arrays of a solver when it is done. Out: vectors read and written as memory
//! sees them, and the solver's answer or what is wrong with it. Must not: know a solver's equations.

use std::ops::Range;

use crate::memory::{Array, Lane};
use crate::program::{Answer, WorkloadError, check};
use crate::random::mix;

/// The five unknowns of a point.
pub(super) type Vector = [f64; 5];

/// Reads a point's vector: 40 bytes, seen by cache line.
#[inline]
pub(super) fn vector<L: Lane>(array: &Array<f64>, lane: &mut L, point: usize) -> Vector {
    let mut out = [0.0; 5];
    let mut place = 0;
    array.read_span(lane, point * 5..point * 5 + 5, |value| {
        out[place] = value;
        place += 1;
    });
    out
}

/// Writes a point's vector.
#[inline]
pub(super) fn set_vector<L: Lane>(array: &Array<f64>, lane: &mut L, point: usize, value: &Vector) {
    array.write_span(lane, point * 5..point * 5 + 5, |index| value[index - point * 5]);
}

/// A grid, and the waves of the solution that a right side is made for.
pub(super) struct Grid {
    /// Points along each axis; x is the one whose neighbours lie side by side.
    pub(super) extent: [usize; 3],
    seed: u64,
}

impl Grid {
    /// The grid, near a cube, whose number of points is nearest to `points`.
    pub(super) fn new(points: u64, seed: u64) -> Grid {
        let x = (points as f64).cbrt().round().max(4.0) as usize;
        let y = (points as f64 / x as f64).sqrt().round().max(4.0) as usize;
        Grid { extent: [x, y, ((points as f64 / (x * y) as f64).round() as usize).max(4)], seed }
    }

    pub(super) fn points(&self) -> usize {
        self.extent.iter().product()
    }

    /// Rows along x: what threads share out.
    pub(super) fn rows(&self) -> usize {
        self.extent[1] * self.extent[2]
    }

    pub(super) fn points_of(&self, rows: Range<usize>) -> Range<usize> {
        rows.start * self.extent[0]..rows.end * self.extent[0]
    }

    /// Points between neighbours along each axis.
    pub(super) fn strides(&self) -> [usize; 3] {
        [1, self.extent[0], self.extent[0] * self.extent[1]]
    }

    pub(super) fn point(&self, at: [usize; 3]) -> usize {
        at[0] + self.extent[0] * (at[1] + self.extent[1] * at[2])
    }

    pub(super) fn place(&self, point: usize) -> [usize; 3] {
        [point % self.extent[0], point / self.extent[0] % self.extent[1], point / (self.extent[0] * self.extent[1])]
    }

    /// The exact solution at a point: smooth, zero outside the grid, a different wave for each unknown.
    pub(super) fn exact(&self, point: usize) -> Vector {
        let at = self.place(point);
        let mut out = [0.0; 5];
        for (unknown, out) in out.iter_mut().enumerate() {
            let mut product = 1.0;
            for (axis, (at, extent)) in at.into_iter().zip(self.extent).enumerate() {
                let waves = 1 + (mix(self.seed ^ (unknown * 3 + axis) as u64) % 3) as usize;
                let phase = (at + 1) as f64 / (extent + 1) as f64;
                product *= (std::f64::consts::PI * waves as f64 * phase).sin();
            }
            *out = product * (1.0 + 0.2 * unknown as f64);
        }
        out
    }

    /// Root of the mean square distance of `u` to the exact solution.
    pub(super) fn distance(&self, u: &Array<f64>) -> f64 {
        let mut sum = 0.0;
        for point in 0..self.points() {
            for (m, exact) in self.exact(point).iter().enumerate() {
                sum += (u.peek(point * 5 + m) - exact).powi(2);
            }
        }
        (sum / self.points() as f64).sqrt()
    }
}

/// A solver that is done.
pub(super) struct Solved<'a> {
    pub(super) workload: &'static str,
    pub(super) grid: &'a Grid,
    pub(super) solution: &'a Array<f64>,
    pub(super) right_side: &'a Array<f64>,
    pub(super) iterations: u64,
    /// What an iteration must shrink residual and distance by, at least.
    pub(super) rate: f64,
    /// Residuals before the first and after the last iteration.
    pub(super) residuals: [f64; 2],
    /// Distance to the exact solution before the first.
    pub(super) start_distance: f64,
}

impl Solved<'_> {
    /// The answer, if the right side is still as `made` and residual and distance have fallen at the method's rate.
    pub(super) fn judge(&self, made: impl Fn(usize) -> Vector) -> Result<Answer, WorkloadError> {
        let points = self.grid.points();
        for point in 0..points {
            let found: Vector = std::array::from_fn(|m| self.right_side.peek(5 * point + m));
            check(self.workload, found == made(point), || format!("the right side at point {point} has changed"))?;
        }
        let bound = self.rate.powi(self.iterations as i32).max(1e-10);
        let fallen = self.residuals[1] / self.residuals[0];
        check(self.workload, fallen <= bound, || {
            format!("the residual is {fallen:.3e} of the first after {} iterations, over {bound:.3e}", self.iterations)
        })?;
        let nearer = self.grid.distance(self.solution) / self.start_distance;
        check(self.workload, nearer <= 2.0 * bound, || {
            format!("the distance to the exact solution is {nearer:.3e} of the first, over {:.3e}", 2.0 * bound)
        })?;
        let checksum = (0..5 * points).fold(0u64, |sum, index| mix(sum ^ self.solution.peek(index).to_bits()));
        Ok(Answer {
            operations: self.iterations,
            checksum,
            verified: "the right side; the fall of the residual and of the distance to the exact solution",
            figures: vec![("points", points as f64), ("residual left", fallen), ("distance left", nearer)],
        })
    }
}
