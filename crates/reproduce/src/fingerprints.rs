//! What the canaries of this program come to, each computed once.
//!
//! In: canaries. Out: their digests, from memory, from the file of this program's build, or by a run. Must not: take over what another build computed.
//!
//! A build is known by the digest of the program's own file, so that each build has a file of its own in the folder and reads no other. The newest
//! few are kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::canary::Canary;
use crate::digest::digest_of;
use crate::error::Error;

/// Files of builds that are kept.
const BUILDS: usize = 8;
/// The longest file that is read, in bytes: some hundred thousand canaries.
const LONGEST_FILE: u64 = 64 << 20;
/// The longest program whose build can be told, in bytes.
const LONGEST_PROGRAM: u64 = 1 << 32;

/// See the module's header. In memory alone, unless it was [opened](Fingerprints::open).
#[derive(Debug, Default)]
pub struct Fingerprints {
    known: Mutex<BTreeMap<String, String>>,
    /// The file of this build.
    file: Option<PathBuf>,
}

impl Fingerprints {
    /// Those of this build, kept in a folder, which is made if need be. A file that is damaged counts as none.
    ///
    /// # Errors
    /// When the folder cannot be made, or the program's own file cannot be read.
    pub fn open(folder: &Path) -> Result<Fingerprints, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| Error::Folder { path, why: format!("fingerprints cannot be kept: {error}") }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let program = std::env::current_exe().map_err(failed(folder))?;
        let build = digest_of(terrace_files::read(&program, LONGEST_PROGRAM).map_err(failed(&program))?);
        let file = folder.join(format!("{build}.json"));
        let text = terrace_files::read_to_string(&file, LONGEST_FILE).unwrap_or_default();
        let known = serde_json::from_str(&text).unwrap_or_default();
        Ok(Fingerprints { known: Mutex::new(known), file: Some(file) })
    }

    /// That of a canary.
    ///
    /// # Errors
    /// When it does not run.
    pub(crate) fn of(&self, canary: &Canary) -> Result<String, Error> {
        let key = canary.key();
        if let Some(known) = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(known.clone());
        }
        let print = canary.run().map_err(|source| Error::Run { case: format!("the canary {key}"), seed: 1, source })?;
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, print.clone());
        Ok(print)
    }

    /// Runs those that are not known, on all cores, and keeps them.
    ///
    /// # Errors
    /// When one does not run, or what was computed cannot be written.
    pub(crate) fn prepare(&self, canaries: impl Iterator<Item = Canary>) -> Result<(), Error> {
        let mut wanted: BTreeMap<String, Canary> = canaries.map(|canary| (canary.key(), canary)).collect();
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.retain(|key, _| !known.contains_key(key));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.into_values().collect::<Vec<_>>().into_par_iter().try_for_each(|canary| self.of(&canary).map(drop))?;
        let Some(file) = &self.file else { return Ok(()) };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let text = serde_json::to_string(&*known).expect("its keys are texts");
        terrace_files::write(file, text).map_err(|source| Error::Write { path: file.clone(), source })?;
        forget_old(file);
        Ok(())
    }
}

/// Removes the files of builds that were not made of late. One that stays is no fault.
fn forget_old(file: &Path) {
    let Some(entries) = file.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else { return };
    let aged = |entry: std::fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
    let mut files: Vec<_> = entries.flatten().filter_map(aged).collect();
    files.sort();
    files.iter().rev().skip(BUILDS).for_each(|(_, path)| drop(std::fs::remove_file(path)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_keeps_its_own_and_takes_no_damaged_file() {
        let place = tempfile::tempdir().unwrap();
        let canary = Canary::query("optane-6252");
        let first = Fingerprints::open(place.path()).unwrap();
        first.prepare([canary.clone()].into_iter()).unwrap();
        let file = first.file.clone().unwrap();
        let mut kept: BTreeMap<String, String> =
            serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(kept[&canary.key()], canary.run().unwrap());
        // What the file says is believed: it is not computed again.
        kept.insert(canary.key(), "0123".to_owned());
        std::fs::write(&file, serde_json::to_string(&kept).unwrap()).unwrap();
        assert_eq!(Fingerprints::open(place.path()).unwrap().of(&canary).unwrap(), "0123");
        std::fs::write(&file, "{\"half").unwrap();
        assert_eq!(Fingerprints::open(place.path()).unwrap().of(&canary).unwrap(), canary.run().unwrap());
        for number in 0..2 * BUILDS {
            std::fs::write(place.path().join(format!("{number}.json")), "{}").unwrap();
        }
        forget_old(&file);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), BUILDS);
    }
}
