//! How many runs are made, kept and resumed: the journal of an output, FILE.partial, has the cells that are finished while FILE is being made, and those that are missing
//! run on all cores.
//!
//! In: an output, what it is of, results of cells by their number. Out: [`Journal`], with errors in the words of the command line; [`on_all_cores`].
//! Must not: know what a cell computes.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use terrace_files::JournalError;

use crate::error::{Error, Result, misuse, unwritable};
use crate::{Progress, unless_stopped};

/// The journal of an output.
pub struct Journal(terrace_files::Journal);

/// What stands before a cell's number in its key.
const CELL: &str = "cell ";

impl Journal {
    /// Opens the journal of an output that `option` names, with what an earlier run had finished. `kind` is what writes it; `foreign` says what is wrong with one of
    /// something else.
    ///
    /// # Errors
    /// When it is of something else, another process writes it, or there can be none; exit code 2. When it cannot be written: exit code 1.
    pub fn open(option: &str, output: &Path, of: &Value, kind: &str, foreign: &str) -> Result<Journal> {
        let mut path = output.as_os_str().to_owned();
        path.push(".partial");
        let path = PathBuf::from(path);
        let shown = path.display().to_string();
        terrace_files::Journal::open(&path, &of.to_string()).map(Journal).map_err(|error| match error {
            JournalError::Foreign => {
                misuse(option, &shown, format!("{foreign}; remove it, or choose another {option}"))
            }
            JournalError::Busy => misuse(option, &shown, format!("another {kind} is writing it")),
            JournalError::File(error) => unwritable(option, &shown, error),
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// How many cells are finished.
    pub fn finished(&self) -> usize {
        self.0.count(CELL)
    }

    /// How many results it has, cells and others.
    pub fn results(&self) -> usize {
        self.0.count("")
    }

    /// Of this many cells those that are not finished.
    pub fn missing(&self, cells: usize) -> Vec<usize> {
        (0..cells).filter(|cell| !self.0.has(&key(*cell))).collect()
    }

    /// The results of this many cells, in their order.
    ///
    /// # Errors
    /// When one is missing.
    pub fn cells<T: DeserializeOwned>(&self, cells: usize) -> Result<Vec<T>> {
        (0..cells).map(|cell| self.get(&key(cell))?.ok_or(Error::NotRun(cell + 1))).collect()
    }

    /// Adds a cell's result.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn put_cell(&self, cell: usize, result: &impl Serialize) -> Result<()> {
        self.put(key(cell), result).map(drop)
    }

    /// The result of another key than a cell's.
    ///
    /// # Errors
    /// When it is of another type.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        Ok(self.0.get(key).map(|text| serde_json::from_str(&text)).transpose()?)
    }

    /// Adds a result by such a key. Returns false where that has one.
    ///
    /// # Errors
    /// When the journal cannot be written.
    pub fn put(&self, key: String, result: &impl Serialize) -> Result<bool> {
        let what = || format!("{}: the journal cannot be written", self.path().display());
        self.0.put(key, serde_json::to_string(result)?).map_err(|source| Error::File { what: what(), source })
    }

    /// Writes the output, whole, and removes the journal. `failed` says what there is not if that fails.
    ///
    /// # Errors
    /// When the output cannot be written; the journal stays.
    pub fn finish(self, output: &Path, bytes: &[u8], failed: &str) -> Result<()> {
        let what = format!("{}: {failed}", output.display());
        terrace_files::write(output, bytes).map_err(|source| Error::File { what, source })?;
        let what = self.path().display().to_string();
        self.0.remove().map_err(|source| Error::File { what, source })
    }
}

fn key(cell: usize) -> String {
    format!("{CELL}{cell}")
}

/// Runs batches on all cores, and gives their results in the order of the batches. None begins after `progress` asked to stop, or after one failed.
///
/// # Errors
/// When a batch fails, or `progress` asked to stop.
pub fn on_all_cores<B: Send, T: Send>(
    batches: Vec<B>,
    progress: &dyn Progress,
    run: impl Fn(B) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let one = |batch| unless_stopped(progress).and_then(|()| run(batch));
    batches.into_par_iter().map(one).collect()
}
