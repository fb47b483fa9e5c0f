//! Comparisons and sweeps of simulations: the command `terrace` and the Python package share them, so that both give the same cells.
//!
//! Entry: [`compare`](mod@compare) and [`sweep`](mod@sweep).
//! In: arguments as the command line has them, or a sweep's specification.
//! Out: cells, rows with what made them, tables.
//! Must not: print, or draw a bar: a caller's [`Progress`] receives each run.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advice;
pub mod compare;
mod error;
pub mod forecast;
pub mod journal;
pub mod options;
pub mod provenance;
pub mod reproduction;
pub mod rows;
pub mod sweep;

pub use terrace_common::{arguments, figures};

pub use error::{Error, Misuse, Result, misuse};

/// Receives how far a comparison or a sweep is, from any thread.
pub trait Progress: Sync {
    /// There are `total` runs, of which `done` were done before.
    fn begin(&self, total: usize, done: usize) {
        let _ = (total, done);
    }
    /// A run is done.
    fn step(&self) {}
    /// Whether to go on: no further run begins after it said no.
    fn goes_on(&self) -> bool {
        true
    }
}

/// Nobody watches.
pub struct Unwatched;

impl Progress for Unwatched {}

/// Fails where the caller asked to stop.
fn unless_stopped(progress: &dyn Progress) -> Result<()> {
    if progress.goes_on() { Ok(()) } else { Err(Error::Stopped) }
}
