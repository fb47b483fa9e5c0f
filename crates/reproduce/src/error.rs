//! Why experiments cannot be read, chosen or run.
//!
//! In: nothing. Out: one error type; its texts name file, line and key, or the run. Must not: print anything.

use std::path::PathBuf;

use terrace_policies::SettingsError;
use terrace_sim::SimError;
use terrace_workloads::WorkloadError;

/// Whatever can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of experiments cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is no TOML, lacks a key, or has one that does not exist.
    #[error("{file}:{line}: {why}, in `{text}`")]
    Syntax {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The line itself.
        text: String,
        /// What is wrong.
        why: String,
    },
    /// A value means nothing.
    #[error("{file}:{line}: {place}, key `{key}`: {why}")]
    Value {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The row or setting.
        place: String,
        /// The key.
        key: &'static str,
        /// What is wrong, and what was expected.
        why: String,
    },
    /// No row has such an id.
    #[error("{given}: no row's id begins so; the nearest: {nearest}. `terrace reproduce list` shows all")]
    UnknownId {
        /// What was asked for.
        given: String,
        /// Ids that are spelt nearly so.
        nearest: String,
    },
    /// The paper reports it, and no row computes it.
    #[error("{id}: not built: {why}")]
    NotBuilt {
        /// The figure.
        id: String,
        /// Why there is no row.
        why: String,
    },
    /// The scale is out of range.
    #[error("--scale {given}: expected a factor from {least} to {most}")]
    Scale {
        /// What was asked for.
        given: u32,
        /// The least.
        least: u32,
        /// The most.
        most: u32,
    },
    /// Another setting of a policy cannot be taken.
    #[error("--set {text}: {why}")]
    Setting {
        /// As it was given.
        text: String,
        /// Why not.
        why: String,
    },
    /// A run failed.
    #[error("{case}, seed {seed}: {source}")]
    Run {
        /// The run, in words.
        case: String,
        /// Its seed.
        seed: u64,
        /// Why.
        source: RunError,
    },
    /// The store of results has a line that is none of its own.
    #[error("{}:{line}: {why}", path.display())]
    Store {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The store cannot be read or be written into.
    #[error("{}: {why}", path.display())]
    Folder {
        /// The folder, or a file of it.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A result cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The runs of a row do not give its value.
    #[error("{id}: {why}")]
    Measure {
        /// The row.
        id: String,
        /// Why not.
        why: String,
    },
}

/// Why one run failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The machine, the program or the simulation.
    #[error(transparent)]
    Simulation(#[from] SimError),
    /// The policy.
    #[error(transparent)]
    Policy(#[from] SettingsError),
    /// The program.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The performance database of its machine.
    #[error("no performance database: {0}")]
    Database(Box<dyn std::error::Error + Send + Sync>),
    /// What a canary came to cannot be hashed.
    #[error("what it came to cannot be hashed: {0}")]
    Fingerprint(String),
    /// The run with everything fast, which says how large the program is, is missing.
    #[error("its run with everything fast is missing")]
    NoBaseline,
    /// The performance database that it asks is missing.
    #[error("the performance database of its machine is missing")]
    NoDatabase,
}

/// A text that is no value of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} {why}")]
pub struct ValueError {
    /// The text.
    pub text: String,
    /// What it is not.
    pub why: String,
}

impl ValueError {
    pub(crate) fn new(text: &str, why: impl Into<String>) -> ValueError {
        ValueError { text: text.to_owned(), why: why.into() }
    }
}

/// Why runs give a measure no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// A case has no run, or not one of the kind that the measure needs.
    #[error("{case}: {why}")]
    Case {
        /// The case.
        case: String,
        /// What is missing.
        why: &'static str,
    },
    /// No database of the machine was given.
    #[error("no database of {0}")]
    NoDatabase(String),
    /// The run is too short, or the row lacks something.
    #[error("{0}")]
    Lacks(&'static str),
    /// The paper has another number of figures than the runs.
    #[error("{runs} sizes were run, and the paper has {paper} numbers")]
    Sizes {
        /// Sizes that were run.
        runs: usize,
        /// Numbers of the paper.
        paper: usize,
    },
    /// A value cannot be computed.
    #[error("{0}")]
    Value(String),
}

impl Error {
    /// Whether the caller asked for what there is not, or wrote a file that means nothing: exit code 2.
    pub fn is_misuse(&self) -> bool {
        !matches!(self, Error::Run { .. } | Error::Measure { .. } | Error::Write { .. })
    }
}
