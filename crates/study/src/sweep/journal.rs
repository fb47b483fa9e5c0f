//! The journal of a sweep: what is finished, a line each, so that a kill loses only what was under way.
//!
//! In: rows and bounds as they are finished, from any thread. Out: what an earlier run had finished. Must not: take a line that is not
//! whole, or a journal of another sweep or another build.
//!
//! A line is eight digits of the SHA-256 of the rest, a blank, and a JSON object. The first says what the journal is of.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use terrace_sim::run::Bounds;

use crate::error::{Error, Result, misuse, unwritable};
use crate::provenance::text_hash;

/// The longest journal that is read.
const LONGEST: u64 = 1 << 34;
/// It is forced to the disk so often: a kill loses nothing of what was written, a power cut so much.
const SYNC: Duration = Duration::from_secs(2);

/// See the module's header.
pub struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    synced: Instant,
    bounds: BTreeMap<usize, Bounds>,
    /// Rows as they are in the file: every table is made of these texts, interrupted or not.
    cells: BTreeMap<usize, String>,
}

impl Journal {
    /// Opens the journal with what is whole of it.
    ///
    /// # Errors
    /// When it is of another sweep, another process writes it, or there can be none; exit code 2. When it cannot be written: exit code 1.
    pub fn open(path: &Path, fingerprint: &Value) -> Result<Journal> {
        let shown = path.display().to_string();
        let refuse = |error: std::io::Error| unwritable("--output", &shown, error);
        let mut file = terrace_files::open_in_place(path).map_err(refuse)?;
        file.try_lock().map_err(|_| misuse("--output", &shown, "another sweep is writing it"))?;
        let mut bytes = Vec::new();
        (&file).take(LONGEST).read_to_end(&mut bytes).map_err(refuse)?;
        let header = line(&fingerprint.to_string());
        let mut inner = Inner {
            file: file.try_clone().map_err(refuse)?,
            synced: Instant::now(),
            bounds: BTreeMap::new(),
            cells: BTreeMap::new(),
        };
        let mut whole = 0;
        if let Some(rest) = bytes.strip_prefix(header.as_bytes()) {
            whole = header.len() + inner.read(rest);
        } else if !header.as_bytes().starts_with(&bytes) {
            let why = "it is the journal of another sweep, or of another build of Terrace; remove it, or choose another --output";
            return Err(misuse("--output", &shown, why));
        }
        file.set_len(whole as u64).map_err(refuse)?;
        file.seek(SeekFrom::End(0)).map_err(refuse)?;
        if whole == 0 {
            file.write_all(header.as_bytes()).map_err(refuse)?;
        }
        Ok(Journal { path: path.to_owned(), inner: Mutex::new(inner) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many cells are finished.
    pub fn cells(&self) -> usize {
        self.inner().cells.len()
    }

    /// How many groups have bounds.
    pub fn all_bounds(&self) -> usize {
        self.inner().bounds.len()
    }

    /// Whether a cell is finished.
    pub fn has(&self, cell: usize) -> bool {
        self.inner().cells.contains_key(&cell)
    }

    /// The bounds of a group.
    pub fn bounds(&self, group: usize) -> Option<Bounds> {
        self.inner().bounds.get(&group).copied()
    }

    /// Adds the bounds of a group. Returns false where another part of the group has: they are the same.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_bounds(&self, group: usize, bounds: Bounds) -> Result<bool> {
        let mut inner = self.inner();
        if inner.bounds.contains_key(&group) {
            return Ok(false);
        }
        let bits =
            [bounds.all_fast_seconds, bounds.all_slow_seconds].map(|seconds| format!("{:016x}", seconds.to_bits()));
        inner.write(&self.path, &json!({ "bounds": group, "seconds_bits": bits }).to_string())?;
        inner.bounds.insert(group, bounds);
        Ok(true)
    }

    /// Adds a row.
    pub fn add_cell(&self, cell: usize, row: &Value) -> Result<()> {
        self.add_row(cell, row.to_string())
    }

    /// Adds a row by its text, which stays as it is: numbers that were read and written once more could differ in their last digit.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_row(&self, cell: usize, row: String) -> Result<()> {
        let mut inner = self.inner();
        inner.write(&self.path, &json!({ "cell": cell, "row": row }).to_string())?;
        inner.cells.insert(cell, row);
        Ok(())
    }

    /// All rows, in their order.
    ///
    /// # Errors
    /// When one is missing.
    pub fn rows(&self, cells: usize) -> Result<Vec<Value>> {
        let inner = self.inner();
        let row = |cell| -> Result<Value> {
            let text = inner.cells.get(&cell).ok_or(Error::NotRun(cell + 1))?;
            Ok(serde_json::from_str(text)?)
        };
        (0..cells).map(row).collect()
    }

    /// Removes the file, once the table is written.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path).map_err(|source| Error::File { what: self.path.display().to_string(), source })
    }
}

impl Inner {
    fn write(&mut self, path: &Path, text: &str) -> Result<()> {
        let failed =
            |source| Error::File { what: format!("{}: the journal cannot be written", path.display()), source };
        self.file.write_all(line(text).as_bytes()).map_err(failed)?;
        if self.synced.elapsed() > SYNC {
            self.file.sync_data().map_err(failed)?;
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Takes the lines that are whole; how many bytes they are.
    fn read(&mut self, bytes: &[u8]) -> usize {
        let mut whole = 0;
        for bytes in bytes.split_inclusive(|byte| *byte == b'\n') {
            let taken = std::str::from_utf8(bytes).ok().and_then(|text| self.take(text));
            if taken.is_none() {
                break;
            }
            whole += bytes.len();
        }
        whole
    }

    /// Takes one line; `None` where it is not whole.
    fn take(&mut self, text: &str) -> Option<()> {
        let (_, object) = text.strip_suffix('\n')?.split_once(' ')?;
        let value: Value = serde_json::from_str(object).ok().filter(|_| line(object) == text)?;
        let number = |key: &str| value[key].as_u64().map(|number| number as usize);
        if let Some(cell) = number("cell") {
            self.cells.insert(cell, value["row"].as_str()?.to_owned());
            return Some(());
        }
        let bits = |place: usize| u64::from_str_radix(value["seconds_bits"][place].as_str()?, 16).ok();
        let [all_fast_seconds, all_slow_seconds] = [bits(0)?, bits(1)?].map(f64::from_bits);
        self.bounds.insert(number("bounds")?, Bounds { all_fast_seconds, all_slow_seconds });
        Some(())
    }
}

/// A line of the journal.
fn line(object: &str) -> String {
    format!("{} {object}\n", &text_hash(object)[..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { all_fast_seconds: 0.1, all_slow_seconds: 1.0 / 3.0 };

    fn filled(path: &Path, of: &Value) -> Journal {
        let journal = Journal::open(path, of).unwrap();
        journal.add_bounds(0, BOUNDS).unwrap();
        journal.add_cell(1, &json!({ "seconds": 0.1 })).unwrap();
        journal.add_cell(0, &json!({ "seconds": 2 })).unwrap();
        journal
    }

    #[test]
    fn whatever_is_whole_is_taken_wherever_the_file_is_cut() {
        let place = tempfile::tempdir().unwrap();
        let (path, of) = (place.path().join("journal"), json!({ "sweep": "a" }));
        drop(filled(&path, &of));
        let bytes = std::fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').map(|at| at + 1).collect();
        assert_eq!(ends.len(), 4);
        for cut in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let journal = Journal::open(&path, &of).unwrap();
            let lines = ends.iter().filter(|end| **end <= cut).count();
            assert_eq!(journal.bounds(0).is_some(), lines > 1, "cut at {cut}");
            assert_eq!((journal.has(1), journal.has(0)), (lines > 2, lines > 3), "cut at {cut}");
            assert_eq!(journal.rows(2).is_ok(), lines > 3);
            drop(journal);
            assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, ends[lines.max(1) - 1], "cut at {cut}");
        }
        let journal = Journal::open(&path, &of).unwrap();
        assert_eq!(journal.bounds(0), Some(BOUNDS), "to the bit");
        assert_eq!(journal.rows(2).unwrap()[1], json!({ "seconds": 0.1 }));
    }

    #[test]
    fn a_row_comes_back_to_the_last_bit() {
        let place = tempfile::tempdir().unwrap();
        let journal = Journal::open(&place.path().join("journal"), &json!({ "sweep": "a" })).unwrap();
        // The first came back as 1.3745060636879285 once.
        let figures = [1.374_506_063_687_928_3, 0.1 + 0.2, 1.0 / 3.0, f64::MIN_POSITIVE, f64::MAX];
        for (cell, figure) in figures.iter().enumerate() {
            journal.add_cell(cell, &json!({ "figure": figure })).unwrap();
        }
        for (row, figure) in journal.rows(figures.len()).unwrap().iter().zip(figures) {
            assert_eq!(row["figure"].as_f64().unwrap().to_bits(), figure.to_bits());
        }
    }

    #[test]
    fn damage_and_other_sweeps_are_not_taken() {
        let place = tempfile::tempdir().unwrap();
        let (path, of) = (place.path().join("journal"), json!({ "sweep": "a" }));
        drop(filled(&path, &of));
        let other = Journal::open(&path, &json!({ "sweep": "b" })).err().unwrap().to_string();
        assert!(other.contains("another sweep"), "{other}");
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let journal = Journal::open(&path, &of).unwrap();
        assert_eq!((journal.cells(), journal.all_bounds()), (1, 1));
        let busy = Journal::open(&path, &of).err().unwrap().to_string();
        assert!(busy.contains("another sweep is writing it"), "{busy}");
    }
}
