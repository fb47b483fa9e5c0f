//! The papers' figures as data, run on modelled hardware and judged.
//!
//! In: `experiments/*.toml`, or a file of one's own: one record a figure, with the paper's number, its source, the runs, the measure
//! and what counts as agreement. Out: [`Document`], rows of paper, ours and verdict. Must not: hold a number of a paper, or fit
//! anything to one: to check a figure, read the TOML and the paper, and no Rust.
//!
//! [`Experiments`] reads and selects, [`Plan`] finds the distinct runs and runs them, [`Document`] evaluates and judges. A file is
//! described in docs/experiments.md.

mod bounds;
mod case;
mod error;
mod evaluate;
mod experiments;
mod figure;
mod measure;
mod page;
mod results;
mod run;
mod schema;
mod tuned;
mod verdict;

pub use bounds::Course;
pub use case::{Case, Fast, Limit, Operations, Setting};
pub use error::{Error, MeasureError, RunError, ValueError};
pub use experiments::{Experiments, NotBuilt, Paper, Row, Stated};
pub use measure::{Figure, Measure, Part, Prediction};
pub use page::{PageSource, page};
pub use results::{Document, RowResult, SCHEMA_VERSION};
pub use run::{Database, Options, Outcome, Plan, Runs};
pub use verdict::Verdict;

/// The scale of a first look, and the largest there is.
pub const QUICK_SCALE: u32 = 4096;
/// The smallest scale: at full size a run takes days.
pub const LEAST_SCALE: u32 = 64;

#[cfg(test)]
mod tests;
