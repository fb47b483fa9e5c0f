//! The papers' figures as data, run on modelled hardware and judged.
//!
//! Entry: [`Experiments`].
//! In: `experiments/*.toml`, or a file of one's own: one record a figure, with the paper's number, its source, the runs, the measure and
//! what counts as agreement.
//! Out: [`Document`], rows of paper, ours and verdict.
//! Must not: hold a number of a paper, or fit anything to one: to check a figure, read the TOML and the paper, and no Rust.
//!
//! [`Experiments`] reads and selects, [`Plan`] finds the distinct runs and runs them, [`Document`] evaluates and judges. [`Store`] keeps
//! runs by what they depend on ([`Origin`], by the [`Fingerprints`] of what computes them), [`Plan::fill`] runs what it lacks, and [`page()`] prints docs/fidelity.md from it. A file of
//! experiments is described in docs/experiments.md.

mod bounds;
mod canary;
mod case;
mod course;
mod digest;
mod error;
mod evaluate;
mod exercise;
mod experiments;
mod figure;
mod fill;
mod fingerprints;
mod measure;
mod origin;
mod outcome;
mod page;
mod prepare;
mod query;
mod results;
mod run;
mod sample;
mod schema;
mod stop;
mod store;
mod tuned;
mod verdict;

pub use case::{Case, Fast, Limit, Operations, Setting};
pub use error::{Error, MeasureError, RunError, ValueError};
pub use experiments::{Experiments, Kind, NotBuilt, Paper, Row, Stated};
pub use fill::{Budget, Filled};
pub use fingerprints::Fingerprints;
pub use measure::{Figure, Measure, Part, Prediction};
pub use origin::Origin;
pub use outcome::{Outcome, OverTime, Predicted, PredictedAt, RunFigures, Tuned};
pub use page::page;
pub use results::{Document, RowResult, SCHEMA_VERSION};
pub use run::{Database, Options, Plan, Runs};
pub use sample::{Again, Sample, Sampled};
pub use store::Store;
pub use verdict::Verdict;

/// The scale of a first look, and the largest there is.
pub const QUICK_SCALE: u32 = 4096;
/// The smallest scale: at full size a run takes days.
pub const LEAST_SCALE: u32 = 64;

#[cfg(test)]
mod tests;
