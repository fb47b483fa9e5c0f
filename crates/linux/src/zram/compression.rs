//! What compression a kernel's zram offers, and which of it a run would use.
//!
//! In: the files of a zram device, if there is one; else those of one made for the question. Out: [`Compression`], for `terrace doctor`. Must
//! not: change a device that is there, or leave one behind.

use std::path::{Path, PathBuf};

use super::ALGORITHMS;
use super::device::{OwnDevice, ZramError};
use super::recompression::{DENSE, is_there};
use super::trial::{CompressorTrial, Sample, TrialError, choose, try_on};
use crate::guard::Guard;

/// Compression as a run would have it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Compression {
    /// The compressors of the kernel's zram; none where that is not known.
    pub offered: Vec<String>,
    /// The one that a run uses where it makes no trial.
    pub usual: Option<String>,
    /// Whether what stays in swap is compressed again, by a denser compressor.
    pub recompression: bool,
    /// All of it in a line, with what is missing and why.
    pub reason: String,
    /// What a trial on the pages of a process showed, if asked for.
    pub tried: Option<Tried>,
}

/// A trial on the pages of a process.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Tried {
    /// The process.
    pub pid: u32,
    /// The compressor that `terrace attach` would use for it.
    pub chosen: String,
    /// Each compressor.
    pub compressors: Vec<CompressorTrial>,
}

impl Tried {
    /// Tries the compressors on pages of a process.
    ///
    /// # Errors
    /// When the process, zram or the rights do not serve it.
    pub fn on(pid: u32) -> Result<Tried, TrialError> {
        let sample = Sample::of(pid)?;
        let guard = Guard::start().map_err(|error| ZramError::Unprotected(error.into()))?;
        let compressors = try_on(&sample, Some(&guard))?;
        let chosen = choose(&compressors).map(|trial| trial.algorithm.clone()).unwrap_or_default();
        Ok(Tried { pid, chosen, compressors })
    }
}

impl Compression {
    /// Asks the kernel, by a device that is there or by one made for it.
    pub fn examine() -> Compression {
        match any_device(Path::new("/")) {
            Some(directory) => Compression::of(&directory),
            None => Compression::of_new_device().unwrap_or_else(|reason| Compression {
                reason: format!("compressors of zram are not known: {reason}"),
                ..Compression::default()
            }),
        }
    }

    fn of_new_device() -> Result<Compression, String> {
        // Before the guard: without zram there is nothing to guard.
        if !Path::new("/sys/class/zram-control").exists() {
            return Err(ZramError::NoModule.to_string());
        }
        let guard = Guard::start().map_err(|error| error.to_string())?;
        let mut own = OwnDevice::add(Some(&guard)).map_err(|error| error.to_string())?;
        let found = Compression::of(&own.identity.directory());
        own.take_away().map_err(|error| error.to_string())?;
        Ok(found)
    }

    /// What a device's directory in /sys/block says.
    fn of(directory: &Path) -> Compression {
        let offered = offered(&std::fs::read_to_string(directory.join("comp_algorithm")).unwrap_or_default());
        let usual = ALGORITHMS.into_iter().find(|name| offered.iter().any(|one| one == name)).map(str::to_owned);
        let has_dense = offered.iter().any(|name| name == DENSE);
        let again = match (is_there(directory), has_dense, usual.as_deref()) {
            (_, _, Some(DENSE)) => Err("what it leaves cannot be made much smaller".to_owned()),
            (true, true, _) => Ok(format!("what stays in swap for minutes is compressed again by {DENSE}")),
            (true, false, _) => {
                Err(format!("zram has no {DENSE} here (CONFIG_ZRAM_BACKEND_ZSTD, or CONFIG_CRYPTO_ZSTD)"))
            }
            (false, ..) => Err("this kernel has no recompression (CONFIG_ZRAM_MULTI_COMP, Linux 6.2)".to_owned()),
        };
        let recompression = again.is_ok();
        let used = match &usual {
            Some(usual) => format!("`run` uses {usual}; `attach` tries them on pages of the program"),
            None => "a run takes the first of them".to_owned(),
        };
        let again = again.unwrap_or_else(|why| format!("no second pass: {why}"));
        let reason = format!("zram offers {}; {used}; {again}", offered.join(", "));
        Compression { offered, usual, recompression, reason, tried: None }
    }
}

/// The names in a list such as `lzo [lzo-rle] lz4`.
pub(super) fn offered(list: &str) -> Vec<String> {
    list.split_ascii_whitespace().map(|name| name.trim_matches(['[', ']']).to_owned()).collect()
}

/// The directory of the first zram device, of any owner: it is only read.
fn any_device(root: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(root.join("sys/block")).into_iter().flatten().flatten();
    let zram = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("zram")));
    zram.map(|entry| entry.path()).filter(|path| path.join("comp_algorithm").exists()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(list: &str, again: bool) -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("sys/block/zram7");
        std::fs::create_dir_all(&place).unwrap();
        std::fs::write(place.join("comp_algorithm"), list).unwrap();
        if again {
            std::fs::write(place.join("recomp_algorithm"), "").unwrap();
        }
        (root, place)
    }

    #[test]
    fn a_device_says_what_there_is_and_what_is_missing() {
        let (root, place) = device("[lzo-rle] lzo lz4 \n", false);
        assert_eq!(any_device(root.path()), Some(place.clone()));
        let found = Compression::of(&place);
        assert_eq!((found.offered.len(), found.usual.as_deref(), found.recompression), (3, Some("lz4"), false));
        assert!(found.reason.starts_with("zram offers lzo-rle, lzo, lz4; `run` uses lz4"), "{}", found.reason);
        assert!(found.reason.contains("CONFIG_ZRAM_MULTI_COMP"), "{}", found.reason);
        let (_root, place) = device("lzo lz4 [zstd]", true);
        let found = Compression::of(&place);
        assert_eq!(found.offered, ["lzo", "lz4", "zstd"]);
    }

    #[test]
    fn a_second_pass_needs_the_files_and_a_denser_compressor() {
        let found = |list: &str, again| {
            let (_root, place) = device(list, again);
            let found = Compression::of(&place);
            (found.recompression, found.reason)
        };
        assert!(found("lzo lz4 [zstd]", true).0);
        let (there, reason) = found("[lzo] lz4", true);
        assert!(!there && reason.contains("zram has no zstd"), "{reason}");
        let (there, reason) = found("[zstd]", true);
        assert!(!there && reason.contains("cannot be made much smaller"), "{reason}");
        assert_eq!(any_device(tempfile::tempdir().unwrap().path()), None);
    }
}
