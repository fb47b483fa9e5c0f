//! Undo records: what was changed in the system, and how it is put back.
//!
//! In: a change that Terrace is about to make. Out: its undo, for any process to perform at any time. Must not: overwrite what somebody else set
//! in the meantime; every record carries what the system holds if the change is still Terrace's.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::trackers::damon::DamonClaim;
use crate::zram::device::{ZramError, ZramIdentity};

/// A change to undo.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undo {
    /// Take a compressed swap device away: swapoff, reset, hot_remove. Waits until memory suffices.
    SwapOffZram {
        /// Which one.
        zram: ZramIdentity,
    },
    /// Write back what stood in a file, such as a sysctl, if it still holds what Terrace wrote. A file that is gone needs nothing.
    WriteFile {
        /// The file.
        path: PathBuf,
        /// What stood in it.
        previous: String,
        /// What Terrace wrote last, and what it is about to write: any other text is somebody else's. Compared without white space at
        /// the ends.
        ours: Vec<String>,
    },
    /// Remove an empty directory, such as a cgroup. One that is gone needs nothing.
    RemoveDirectory {
        /// The directory.
        path: PathBuf,
    },
    /// Stop DAMON's monitors and take them away, if they are still those of this claim.
    Damon {
        /// Which ones.
        claim: DamonClaim,
    },
}

/// What became of an undo record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// What was changed is as it was before.
    PutBack,
    /// It was so already, or is gone.
    Nothing,
    /// Somebody else changed it since; it was left alone.
    Theirs,
}

/// Why an undo record could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The device would not go.
    #[error(transparent)]
    Zram(#[from] ZramError),
    /// The file or directory would not change.
    #[error("{path}: {source}")]
    Path {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Undo {
    /// Puts it back. Doing so twice does no harm.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn perform(&self) -> Result<Undone, UndoError> {
        let at = |path: &Path, result: io::Result<Undone>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Undone::Nothing),
            result => result.map_err(|source| UndoError::Path { path: path.to_owned(), source }),
        };
        match self {
            Undo::SwapOffZram { zram } => match zram.take_away() {
                Ok(()) => Ok(Undone::PutBack),
                Err(ZramError::NotOurs { .. }) => Ok(Undone::Theirs),
                Err(error) => Err(error.into()),
            },
            Undo::WriteFile { path, previous, ours } => at(path, restore(path, previous, ours)),
            Undo::RemoveDirectory { path } => at(path, std::fs::remove_dir(path).map(|()| Undone::PutBack)),
            Undo::Damon { claim } => claim.take_away().map_err(|(path, source)| UndoError::Path { path, source }),
        }
    }
}

impl fmt::Display for Undo {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undo::SwapOffZram { zram } => write!(to, "compressed swap on {}", zram.device().display()),
            Undo::WriteFile { path, previous, .. } => write!(to, "{}, which held {previous:?}", path.display()),
            Undo::RemoveDirectory { path } => write!(to, "the directory {}", path.display()),
            Undo::Damon { claim } => write!(to, "DAMON's monitors below {}", claim.admin().display()),
        }
    }
}

/// Writes `previous` into a file that holds one of `ours`. Never creates the file: what is gone (a module's parameter, a cgroup's file)
/// needs nothing put back.
pub(crate) fn restore(path: &Path, previous: &str, ours: &[String]) -> io::Result<Undone> {
    let now = std::fs::read_to_string(path)?;
    if now.trim() == previous.trim() {
        return Ok(Undone::Nothing);
    }
    if !ours.iter().any(|text| text.trim() == now.trim()) {
        return Ok(Undone::Theirs);
    }
    terrace_files::set(path, previous)?;
    Ok(Undone::PutBack)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gets_its_old_text_back_and_a_missing_one_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sysctl");
        std::fs::write(&path, "a longer new value\n").unwrap();
        let undo = |path: &Path| Undo::WriteFile {
            path: path.to_owned(),
            previous: "old".to_owned(),
            ours: vec!["a longer new value".to_owned()],
        };
        assert_eq!(undo(&path).perform().unwrap(), Undone::PutBack);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(undo(&path).perform().unwrap(), Undone::Nothing);
        let missing = folder.path().join("missing");
        assert_eq!(undo(&missing).perform().unwrap(), Undone::Nothing);
        assert!(!missing.exists());
        let directory = folder.path().join("group");
        std::fs::create_dir(&directory).unwrap();
        let undo = Undo::RemoveDirectory { path: directory.clone() };
        undo.perform().unwrap();
        assert!(!directory.exists());
        undo.perform().unwrap();
    }

    #[test]
    fn a_value_that_somebody_else_set_meanwhile_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("min_free_kbytes");
        let ours = vec!["8192".to_owned(), "8300".to_owned()];
        let undo = Undo::WriteFile { path: path.clone(), previous: "4096".to_owned(), ours };
        std::fs::write(&path, "70000\n").unwrap();
        assert_eq!(undo.perform().unwrap(), Undone::Theirs);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "70000\n");
        // Killed between the record and the write, or right after it: either text is ours.
        for text in ["8192\n", "8300\n"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(undo.perform().unwrap(), Undone::PutBack);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "4096");
        }
    }
}
