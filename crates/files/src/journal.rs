//! Results by their key, a line each: what a command that is interrupted had finished, and what is kept for good.
//!
//! In: keys and results, which are JSON, as they are finished, from any thread. Out: [`Journal`], which has those and what an earlier process
//! finished; [`sealed`] and [`unsealed`] for files of such lines that are replaced whole. Must not: take a line that is not as it was written, go on with
//! a journal of something else, or let two processes write one.
//!
//! A line is a JSON object that ends in `"sum"`, the first digits of the SHA-256 of what stands before it; in a journal its other members are `"key"` and `"value"`,
//! but for the first line, which says what the journal is of. A kill or a power cut can tear the last lines: the journal ends before the first that is damaged, and
//! what stood there is computed again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::output::open_in_place;

/// It is forced to the disk so often: a kill loses nothing of what was written, a power cut so much.
const SYNC: Duration = Duration::from_secs(2);
/// What stands before the sum in a line.
const BEFORE_SUM: &str = ",\"sum\":\"";

/// See the module's header.
pub struct Journal {
    path: PathBuf,
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    synced: Instant,
    /// Values as they are in the file: what is made of them is the same, interrupted or not.
    values: BTreeMap<String, String>,
}

/// Why there is no journal.
#[derive(Debug)]
pub enum JournalError {
    /// It is of something else, or no journal at all.
    Foreign,
    /// Another process writes it.
    Busy,
    /// The file cannot be read or written.
    File(io::Error),
}

impl From<io::Error> for JournalError {
    fn from(error: io::Error) -> JournalError {
        JournalError::File(error)
    }
}

impl Journal {
    /// Opens the journal of what `of`, a JSON object, describes, with all that is whole of it; the file is made where there is none.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn open(path: &Path, of: &str) -> Result<Journal, JournalError> {
        let mut file = open_in_place(path)?;
        file.try_lock().map_err(|_| JournalError::Busy)?;
        let header = sealed(of);
        let (mut whole, mut values) = (0, BTreeMap::new());
        let mut reader = BufReader::new(&file);
        let mut bytes = Vec::new();
        reader.by_ref().take(header.len() as u64).read_to_end(&mut bytes)?;
        if bytes == header.as_bytes() {
            whole = bytes.len();
            loop {
                bytes.clear();
                reader.read_until(b'\n', &mut bytes)?;
                let Some((key, value)) = std::str::from_utf8(&bytes).ok().and_then(entry) else { break };
                whole += bytes.len();
                values.insert(key, value);
            }
        } else if !header.as_bytes().starts_with(&bytes) {
            return Err(JournalError::Foreign);
        }
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        if whole == 0 {
            file.write_all(header.as_bytes())?;
        }
        Ok(Journal { path: path.to_owned(), inner: Mutex::new(Inner { file, synced: Instant::now(), values }) })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a key has its value.
    pub fn has(&self, key: &str) -> bool {
        self.inner().values.contains_key(key)
    }

    /// How many keys begin with this.
    pub fn count(&self, beginning: &str) -> usize {
        self.inner().values.range(beginning.to_owned()..).take_while(|(key, _)| key.starts_with(beginning)).count()
    }

    /// The value of a key, as it was put.
    pub fn get(&self, key: &str) -> Option<String> {
        self.inner().values.get(key).cloned()
    }

    /// Adds a value, which is JSON on one line, by a key without quotes. Returns false where the key has one already, which stays.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put(&self, key: String, value: String) -> io::Result<bool> {
        let line = sealed(&format!("{{\"key\":\"{key}\",\"value\":{value}}}"));
        let mut inner = self.inner();
        if inner.values.contains_key(&key) {
            return Ok(false);
        }
        inner.file.write_all(line.as_bytes())?;
        if inner.synced.elapsed() > SYNC {
            inner.file.sync_data()?;
            inner.synced = Instant::now();
        }
        inner.values.insert(key, value);
        Ok(true)
    }

    /// Removes the file, once what it was for is written.
    ///
    /// # Errors
    /// When that fails.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Key and value of a line that is whole.
fn entry(line: &str) -> Option<(String, String)> {
    let object = unsealed(line)?;
    let (key, value) = object.strip_prefix("{\"key\":\"")?.strip_suffix('}')?.split_once("\",\"value\":")?;
    Some((key.to_owned(), value.to_owned()))
}

/// The line of a JSON object that has a member or more, with the line's end.
pub fn sealed(object: &str) -> String {
    let open = object.strip_suffix('}').unwrap_or(object);
    format!("{open}{BEFORE_SUM}{}\"}}\n", sum(open))
}

/// The object of a line that is as it was written.
pub fn unsealed(line: &str) -> Option<String> {
    let (open, sum_of) = line.strip_suffix("\"}\n")?.rsplit_once(BEFORE_SUM)?;
    (sum(open) == sum_of).then(|| format!("{open}}}"))
}

/// Eight digits: of four thousand million kinds of damage one is not seen.
fn sum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: [&str; 3] = ["[0.1,1e300]", "{\"key\":\"x\",\"value\":1}", "\"a, \\\"sum\\\"\""];

    fn filled(path: &Path) -> Journal {
        let journal = Journal::open(path, "{\"of\":\"a\"}").unwrap();
        for (place, value) in VALUES.into_iter().enumerate() {
            assert!(journal.put(format!("cell {place}"), value.to_owned()).unwrap());
        }
        journal
    }

    #[test]
    fn whatever_is_whole_is_taken_wherever_the_file_is_cut() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        drop(filled(&path));
        let bytes = std::fs::read(&path).unwrap();
        let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').map(|at| at + 1).collect();
        assert_eq!(ends.len(), 1 + VALUES.len());
        for cut in 0..=bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let journal = Journal::open(&path, "{\"of\":\"a\"}").unwrap();
            let lines = ends.iter().filter(|end| **end <= cut).count().max(1);
            assert_eq!(journal.count("cell "), lines - 1, "cut at {cut}");
            for (place, value) in VALUES.into_iter().enumerate() {
                let found = journal.get(&format!("cell {place}"));
                assert_eq!(found.as_deref(), (place + 1 < lines).then_some(value), "cut at {cut}");
            }
            drop(journal);
            assert_eq!(std::fs::metadata(&path).unwrap().len() as usize, ends[lines - 1], "cut at {cut}");
        }
    }

    #[test]
    fn the_first_of_a_key_stays_and_damage_and_what_is_foreign_or_busy_are_not_taken() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("journal");
        let journal = filled(&path);
        assert!(!journal.put("cell 1".to_owned(), "7".to_owned()).unwrap());
        assert_eq!(journal.get("cell 1").unwrap(), VALUES[1]);
        assert!(matches!(Journal::open(&path, "{\"of\":\"a\"}"), Err(JournalError::Busy)));
        drop(journal);
        assert!(matches!(Journal::open(&path, "{\"of\":\"b\"}"), Err(JournalError::Foreign)));
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 20;
        bytes[last] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let journal = Journal::open(&path, "{\"of\":\"a\"}").unwrap();
        assert!(journal.has("cell 1") && !journal.has("cell 2"));
        journal.remove().unwrap();
        assert!(!path.exists());
    }
}
