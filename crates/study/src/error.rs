//! What can go wrong with a comparison or a sweep.
//!
//! In: nothing. Out: [`Error`]. Must not: call misuse what the caller could not have prevented.

pub use terrace_common::Misuse;
use terrace_common::provenance::StampError;
use terrace_sim::SimError;

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
    /// A result could not be given what made it.
    #[error(transparent)]
    Stamp(#[from] StampError),
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
    terrace_common::misuse(option, given, why).into()
}

/// A file of an option that cannot be opened or written: a [`Misuse`] where the path makes no sense, else the machine's failure, such as no space.
pub(crate) fn unwritable(option: &str, given: &str, error: std::io::Error) -> Error {
    use std::io::ErrorKind::{InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound};
    match error.kind() {
        NotFound | IsADirectory | NotADirectory | InvalidInput | InvalidFilename => misuse(option, given, error),
        _ => Error::File { what: format!("{option} {given}: the file could not be written"), source: error },
    }
}

#[cfg(test)]
mod tests {
    use std::io::Error as IoError;

    use super::*;

    #[test]
    fn a_path_is_misuse_and_a_full_disk_is_not() {
        // ENOENT, EISDIR, then EACCES, ENOSPC, EROFS, EDQUOT.
        for (errno, expected) in [(2, true), (21, true), (13, false), (28, false), (30, false), (122, false)] {
            let error = unwritable("--out", "/x", IoError::from_raw_os_error(errno));
            assert_eq!(error.is_misuse(), expected, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("--out /x") && text.contains(&IoError::from_raw_os_error(errno).to_string()),
                "{text}"
            );
        }
    }
}
