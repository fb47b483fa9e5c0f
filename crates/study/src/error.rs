//! What can go wrong with a comparison or a sweep.
//!
//! In: nothing. Out: [`Error`]. Must not: call misuse what the caller could not have prevented.

use terrace_sim::SimError;

/// Something was asked for that makes no sense: exit code 2 of the command, `ValueError` in Python.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// See the module's header.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// A simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimError),
    /// A trace could not be read on.
    #[error(transparent)]
    Trace(#[from] terrace_trace::TraceError),
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    File {
        /// Which, and what was to be done with it.
        what: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A result could not be turned into JSON, or JSON into a result.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A result that is no JSON object cannot carry what made it.
    #[error("a result is a JSON object")]
    NoObject,
    /// A table could not be turned into Parquet.
    #[error("the table could not be turned into Parquet")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A cell of a sweep failed.
    #[error("cell {number}")]
    Cell {
        /// Its number, from 1.
        number: usize,
        /// Why.
        source: Box<Error>,
    },
    /// A table was asked for before every cell was run.
    #[error("cell {0} was not run")]
    NotRun(usize),
    /// The caller's [`Progress`](crate::Progress) asked to stop.
    #[error("stopped before all runs were done")]
    Stopped,
}

impl Error {
    /// Whether what was asked for makes no sense.
    pub fn is_misuse(&self) -> bool {
        match self {
            Error::Misuse(_) => true,
            Error::Cell { source, .. } => source.is_misuse(),
            _ => false,
        }
    }
}

/// What this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A [`Misuse`] about one option, in the words of the command line.
pub fn misuse(option: &str, given: &str, why: impl std::fmt::Display) -> Error {
    Misuse(format!("{option} {given}: {why}")).into()
}
