//! Results that last: runs by what they are, in files of text that are committed.
//!
//! In: a folder. Out: [`Store`]: the figures of runs, each with the fingerprints of what computed it. Must not: run or judge anything, or take a
//! line that is not as it was written.
//!
//! Each program has a file, `npb-ft.jsonl`. A line is a run, sealed as [`terrace_files`] has it. Lines are sorted by run, scale and seed, and a run has one, the last: a change is a small difference
//! of text. A file is replaced as a whole whenever runs are added, so that a process that is killed leaves what was there before. One process
//! writes at a time: it holds a lock on the folder.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::error::Error;
use crate::fingerprints::Fingerprints;
use crate::origin::Origin;
use crate::outcome::{Outcome, RunFigures};
use crate::query::Query;
use crate::run::Plan;

/// The longest file that is read, in bytes: some hundred thousand runs of one program.
const LONGEST_FILE: u64 = 1 << 28;

/// A run by its words, scale and seed.
pub(crate) type Key = (String, u32, u64);

/// A kept run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// In words.
    pub run: String,
    pub scale: u32,
    pub seed: u64,
    /// What computed it.
    pub of: Origin,
    /// Seconds of processor time that it took: its part of those of the runs with which it was made.
    pub took: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<RunFigures>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<Query>,
}

/// See the module's header.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    records: BTreeMap<Key, Record>,
    /// Of the folder, while it is written; the lock goes with it.
    lock: Option<File>,
    /// What this program computes.
    pub(crate) prints: Fingerprints,
}

impl Store {
    /// Reads a store.
    ///
    /// # Errors
    /// When there is no such folder, or a line is damaged: file and line are named.
    pub fn read(folder: &Path) -> Result<Store, Error> {
        let mut store =
            Store { folder: folder.to_owned(), records: BTreeMap::new(), lock: None, prints: Fingerprints::default() };
        let failed = |why: String| Error::Folder { path: folder.to_owned(), why };
        let entries = std::fs::read_dir(folder).map_err(|error| {
            failed(format!("no folder of results: {error}; run this in a checkout of Terrace, or name one by --store"))
        })?;
        let mut files = Vec::new();
        for entry in entries {
            let path = entry.map_err(|error| failed(error.to_string()))?.path();
            if path.extension().is_some_and(|ending| ending == "jsonl") {
                files.push(path);
            }
        }
        files.sort();
        files.iter().try_for_each(|file| store.read_file(file)).map(|()| store)
    }

    /// Opens a store to add to it; a folder that is not there is made, where the one above it is.
    ///
    /// # Errors
    /// As [`Store::read`], and when another process writes into it.
    pub fn open(folder: &Path) -> Result<Store, Error> {
        let failed = |why: String| Error::Folder { path: folder.to_owned(), why };
        match std::fs::create_dir(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(failed(format!(
                    "no folder of results, and none can be made: {error}; name one by --store"
                )));
            }
            _ => {}
        }
        let lock = File::open(folder).map_err(|error| failed(error.to_string()))?;
        lock.try_lock().map_err(|_| {
            failed("another process writes results into it: wait for it, or name another by --store".to_owned())
        })?;
        Ok(Store { lock: Some(lock), ..Store::read(folder)? })
    }

    fn read_file(&mut self, path: &Path) -> Result<(), Error> {
        let text = terrace_files::read_to_string(path, LONGEST_FILE)
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        let mut before: Option<Key> = None;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let wrong = |why: &str| {
                let why = format!(
                    "{why}; take the file from the repository again, or remove the line: its run is then run again"
                );
                Error::Store { path: path.to_owned(), line: number + 1, why }
            };
            let record = terrace_files::unsealed(line).and_then(|text| serde_json::from_str::<Record>(&text).ok());
            let record = record.ok_or_else(|| wrong("the line is damaged"))?;
            let key = record.key();
            if path.file_name().is_none_or(|name| *name != *file_of(&record.run)) {
                return Err(wrong("the run is of another program than the file"));
            }
            if before.as_ref().is_some_and(|before| *before >= key) {
                return Err(wrong("the run stands there twice, or out of order"));
            }
            before = Some(key.clone());
            self.records.insert(key, record);
        }
        Ok(())
    }

    /// With fingerprints that are kept elsewhere than in memory.
    #[must_use]
    pub fn with(self, prints: Fingerprints) -> Store {
        Store { prints, ..self }
    }

    /// How many runs are kept.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Record> {
        self.records.get(key)
    }

    /// The seeds of kept runs.
    pub(crate) fn seeds(&self) -> BTreeSet<u64> {
        self.records.values().filter(|record| record.figures.is_some()).map(|record| record.seed).collect()
    }

    /// The words of kept runs.
    pub(crate) fn words(&self) -> BTreeSet<&str> {
        self.records.keys().map(|(run, ..)| run.as_str()).collect()
    }

    /// All of them, in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Adds runs, in the place of what was kept of the same. They are on the disk when it returns.
    ///
    /// # Errors
    /// When a file cannot be written; it is as it was then.
    pub(crate) fn put(&mut self, records: Vec<Record>) -> Result<(), Error> {
        debug_assert!(self.lock.is_some(), "it was opened to be written");
        let files: BTreeSet<String> = records.iter().map(|record| file_of(&record.run)).collect();
        self.records.extend(records.into_iter().map(|record| (record.key(), record)));
        for file in files {
            let own = self.records.values().filter(|record| file_of(&record.run) == file);
            let text: String = own.map(line_of).collect();
            let path = self.folder.join(&file);
            terrace_files::write(&path, text).map_err(|source| Error::Write { path, source })?;
        }
        Ok(())
    }

    /// A case's run that this plan can use: with all that is asked of it; stale or not.
    pub(crate) fn usable(&self, plan: &Plan<'_>, case: &Case, seed: u64) -> Option<&Record> {
        let record = self.get(&plan.key(case, seed))?;
        let figures = record.figures.as_ref()?;
        plan.asked_of(case).is_answered_by(figures).then_some(record)
    }

    /// The same if this program would compute it again.
    pub(crate) fn current(&self, plan: &Plan<'_>, case: &Case, seed: u64) -> Result<Option<&Record>, Error> {
        let Some(record) = self.usable(plan, case, seed) else { return Ok(None) };
        Ok((record.of == Origin::of(plan, case, &self.prints)?).then_some(record))
    }
}

impl Record {
    pub(crate) fn key(&self) -> Key {
        (self.run.clone(), self.scale, self.seed)
    }

    /// As runs have it.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        Some(Outcome::read(self.scale, self.figures.clone()?))
    }
}

/// The words of the time of queries to a machine's database.
pub(crate) fn query_key(machine: &str) -> Key {
    (format!("performance-database of {machine}"), 1, 0)
}

/// The file of a run: that of its program, the first of its words.
fn file_of(run: &str) -> String {
    format!("{}.jsonl", run.split(' ').next().unwrap_or(run))
}

fn line_of(record: &Record) -> String {
    terrace_files::sealed(&serde_json::to_string(record).expect("it has no key that is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(run: &str, seed: u64, seconds: f64) -> Record {
        let of = Origin::of_query("optane-6252", &Fingerprints::default()).unwrap();
        let figures = Some(RunFigures { seconds, ..RunFigures::default() });
        Record { run: run.to_owned(), scale: 4096, seed, of, took: 0.5, figures, query: None }
    }

    fn filled() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("results");
        let mut store = Store::open(&folder).unwrap();
        store.put(vec![record("gups b", 1, 2.0), record("gups a", 2, 1.0), record("mcf", 1, 3.0)]).unwrap();
        store.put(vec![record("gups a", 1, 4.0), record("gups b", 1, 5.0)]).unwrap();
        (place, folder)
    }

    #[test]
    fn what_was_put_comes_back_sorted_and_the_last_of_a_run_counts() {
        let (_place, folder) = filled();
        let store = Store::read(&folder).unwrap();
        assert_eq!(store.len(), 4);
        assert_eq!(store.get(&("gups b".to_owned(), 4096, 1)), Some(&record("gups b", 1, 5.0)));
        let text = std::fs::read_to_string(folder.join("gups.jsonl")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 3 && lines.is_sorted(), "{text}");
        assert_eq!(std::fs::read_to_string(folder.join("mcf.jsonl")).unwrap().lines().count(), 1);
    }

    #[test]
    fn damage_is_refused_with_file_and_line() {
        let (_place, folder) = filled();
        let path = folder.join("gups.jsonl");
        let whole = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = whole.split_inclusive('\n').collect();
        let cases = [
            (whole.replacen("\"seed\":2", "\"seed\":3", 1), 2, "damaged"),
            (whole[..whole.len() - 1].to_owned(), 3, "damaged"),
            (whole[..whole.len() - 40].to_owned(), 3, "damaged"),
            (format!("<<<<<<< HEAD\n{whole}"), 1, "damaged"),
            (format!("{}{}{}", lines[1], lines[0], lines[2]), 2, "out of order"),
            (format!("{whole}{}", lines[2]), 4, "twice"),
            (line_of(&record("mcf", 1, 1.0)), 1, "another program"),
        ];
        for (text, line, why) in cases {
            std::fs::write(&path, text).unwrap();
            let error = Store::read(&folder).unwrap_err();
            assert!(error.is_misuse());
            let told = error.to_string();
            assert!(told.contains(&format!("gups.jsonl:{line}: ")) && told.contains(why), "{told}");
        }
        std::fs::write(&path, &whole[..lines[0].len()]).unwrap();
        assert_eq!(Store::read(&folder).unwrap().len(), 2, "a line may be removed");
    }

    #[test]
    fn one_process_writes_and_others_may_read() {
        let (_place, folder) = filled();
        let first = Store::open(&folder).unwrap();
        let second = Store::open(&folder).unwrap_err().to_string();
        assert!(second.contains("another process writes"), "{second}");
        assert_eq!(Store::read(&folder).unwrap().len(), 4);
        drop(first);
        assert_eq!(Store::open(&folder).unwrap().len(), 4);
        let absent = Store::read(&folder.join("none")).unwrap_err().to_string();
        assert!(absent.contains("no folder of results") && absent.contains("--store"), "{absent}");
        assert!(Store::open(&folder.join("none/none")).is_err_and(|error| error.is_misuse()));
    }

    /// What a kill leaves beside a file in the making is no result.
    #[test]
    fn half_a_file_of_a_killed_writer_is_not_read() {
        let (_place, folder) = filled();
        std::fs::write(folder.join(".terrace-x1"), "{\"run\":").unwrap();
        assert_eq!(Store::read(&folder).unwrap().len(), 4);
    }
}
