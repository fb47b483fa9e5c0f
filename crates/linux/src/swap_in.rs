//! Returns in larger pieces: while a run lasts, pages come back from compressed swap in folios of one size.
//!
//! In: a size. Out: the kernel's setting for folios of that size, written, with its undo record at the guard. Must not: change anything before it is
//! known that the kernel has the size and lets it be written, put back what somebody else set meanwhile, or be believed: `trials.rs` tries whether
//! folios come back, and where they do not the setting is put back at once.
//!
//! Since Linux 6.12 a fault on a page in zram brings the whole folio back if the page's neighbours left together, and if the area may have
//! anonymous folios of that size (hugepages-SIZEkB/enabled). `always` allows it for all programs, whatever they advise; so new memory comes in
//! folios of that size, too.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use terrace_core::units::{Bytes, PAGE_BYTES};

use crate::guard::{Guard, GuardError, ProtectToken, Undo, UndoError};
use crate::huge_pages::chosen;

/// Where the kernel has its settings for folios of each size.
const SIZES: &str = "sys/kernel/mm/transparent_hugepage";
/// What is written: `inherit` would go by the machine's setting for huge pages, `madvise` by what programs advise.
const FOR_ALL: &str = "always";
/// Sizes of anonymous folios: four pages are the least; from 2 MiB on they are huge pages, which do not come back from swap whole.
const LEAST_PAGES: u64 = 4;
const MOST_PAGES: u64 = 256;
/// The first kernel that brings folios back from zram.
const SINCE: (u32, u32) = (6, 12);

/// A size of folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FolioSize(Bytes);

/// Why pages cannot come back in folios of a size. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum SwapInError {
    /// The kernel has no such size.
    #[error(
        "this kernel has no folios of {size} for anonymous memory ({path} is missing); {}",
        if there.is_empty() { "it has none of any size, which needs Linux 6.8 with CONFIG_TRANSPARENT_HUGEPAGE".to_owned() }
        else { format!("it has {}", there.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")) }
    )]
    Missing {
        /// The size.
        size: FolioSize,
        /// The file that it would have.
        path: PathBuf,
        /// The sizes that it has.
        there: Vec<FolioSize>,
    },
    /// The setting cannot be read or written.
    #[error("{path} cannot be changed: {source}; leave swap-in out, or run where /sys is writable")]
    Setting {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The change could not be guarded.
    #[error(transparent)]
    Guard(#[from] GuardError),
}

/// A text that is no size of folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a power of two from 16KiB to 1MiB, such as 64KiB")]
pub struct NotAFolioSize;

impl FromStr for FolioSize {
    type Err = NotAFolioSize;

    fn from_str(text: &str) -> Result<FolioSize, NotAFolioSize> {
        let size: Bytes = text.parse().map_err(|_| NotAFolioSize)?;
        let pages = size.get() / PAGE_BYTES;
        let fits = size.get().is_power_of_two() && (LEAST_PAGES..=MOST_PAGES).contains(&pages);
        if fits { Ok(FolioSize(size)) } else { Err(NotAFolioSize) }
    }
}

impl fmt::Display for FolioSize {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.get() >> 20 {
            0 => write!(to, "{}KiB", self.0.get() >> 10),
            mib => write!(to, "{mib}MiB"),
        }
    }
}

impl FolioSize {
    /// A size in pages that is known to be one.
    pub(crate) const fn of_pages(pages: u64) -> FolioSize {
        FolioSize(Bytes::of_pages(pages))
    }

    /// Pages of a folio.
    pub(crate) const fn pages(self) -> u64 {
        self.0.pages()
    }

    /// All sizes that there may be.
    pub(crate) fn all() -> impl Iterator<Item = FolioSize> {
        (2..=8).map(|order| FolioSize(Bytes::of_pages(1 << order)))
    }

    pub(crate) fn file(self, root: &Path) -> PathBuf {
        self.directory(root).join("enabled")
    }

    fn directory(self, root: &Path) -> PathBuf {
        root.join(format!("{SIZES}/hugepages-{}kB", self.0.get() >> 10))
    }

    /// Folios of this size that faults on new memory got on the whole machine so far. `None` where the kernel does not count them.
    pub(crate) fn made(self, root: &Path) -> Option<u64> {
        self.count(root, "anon_fault_alloc")
    }

    /// Folios of this size that the kernel wanted to bring back so far, and had no memory for.
    pub(crate) fn failed_returns(self, root: &Path) -> u64 {
        self.count(root, "swpin_fallback").unwrap_or(0)
    }

    fn count(self, root: &Path, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.directory(root).join("stats").join(name)).ok()?.trim().parse().ok()
    }
}

/// Whether the kernel has this size and its setting may be written; nothing is changed.
///
/// # Errors
/// See [`SwapInError`].
pub fn check(root: &Path, size: FolioSize) -> Result<(), SwapInError> {
    let path = size.file(root);
    match std::fs::OpenOptions::new().write(true).open(&path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let there = FolioSize::all().filter(|size| size.file(root).exists()).collect();
            Err(SwapInError::Missing { size, path, there })
        }
        Err(source) => Err(SwapInError::Setting { path, source }),
    }
}

/// The setting as it is to be put back, and the guard's record of it. Dropping it leaves that to the guard.
#[derive(Debug)]
pub(crate) struct Changed {
    undo: Undo,
    token: ProtectToken,
}

impl Changed {
    /// Puts the old value back now.
    ///
    /// # Errors
    /// When the file cannot be written; the guard then goes on trying.
    pub(crate) fn put_back(self) -> Result<(), UndoError> {
        self.undo.perform()?;
        // Should the guard be gone, its record is, too.
        let _ = self.token.forget();
        Ok(())
    }
}

/// Has the kernel use folios of this size until the guard ends, as it does with the run or after it was killed. `None` where it was so before.
///
/// # Errors
/// See [`SwapInError`].
pub(crate) fn set(root: &Path, size: FolioSize, guard: &Guard) -> Result<Option<Changed>, SwapInError> {
    check(root, size)?;
    let path = size.file(root);
    let failed = |source| SwapInError::Setting { path: path.clone(), source };
    let before = std::fs::read_to_string(&path).map_err(failed)?;
    let Some(undo) = undo(&path, &before) else { return Ok(None) };
    let token = guard.protect(undo.clone())?;
    match terrace_files::set(&path, FOR_ALL) {
        Ok(()) => Ok(Some(Changed { undo, token })),
        Err(source) => {
            token.forget()?;
            Err(failed(source))
        }
    }
}

/// That this release brings pages back one by one whatever is set.
pub(crate) fn too_old(release: &str) -> Option<String> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map_while(|part| part.parse().ok());
    let version = numbers.next().zip(numbers.next())?;
    (version < SINCE).then(|| {
        format!(
            "Linux {release} brings pages back from compressed swap one by one, and folios came with {}.{}",
            SINCE.0, SINCE.1
        )
    })
}

/// How the choice in this text is put back; `None` where it need not be changed. The kernel shows all values and puts the one in force in brackets.
fn undo(path: &Path, before: &str) -> Option<Undo> {
    let previous = chosen(before).unwrap_or(before.trim());
    if previous == FOR_ALL {
        return None;
    }
    let values = before.split_ascii_whitespace().map(|word| match word.trim_matches(['[', ']']) {
        FOR_ALL => format!("[{FOR_ALL}]"),
        other => other.to_owned(),
    });
    // Before the change: killed in between, the setting is still what it is now.
    let ours = vec![before.trim().to_owned(), values.collect::<Vec<_>>().join(" ")];
    Some(Undo::WriteFile { path: path.to_owned(), previous: previous.to_owned(), ours })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::Undone;
    use crate::pressure::tests::tree;

    const NEVER: &str = "always inherit madvise [never]\n";

    fn size(text: &str) -> FolioSize {
        text.parse().unwrap()
    }

    #[test]
    fn sizes_are_powers_of_two_of_pages_below_a_huge_page() {
        for text in ["16KiB", "32KiB", "64KiB", "512KiB", "1MiB"] {
            assert_eq!(size(text).to_string(), text);
        }
        for text in ["", "3KiB", "4KiB", "8KiB", "48KiB", "2MiB", "64", "large", "-64KiB", "1TiB"] {
            let error = text.parse::<FolioSize>().unwrap_err().to_string();
            assert!(error.contains("16KiB to 1MiB"), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_size_that_the_kernel_lacks_is_answered_with_those_it_has() {
        let file = |size: &str| format!("{SIZES}/hugepages-{size}kB/enabled");
        let root = tree(&[(&file("16"), NEVER), (&file("64"), NEVER)]);
        assert!(check(root.path(), size("64KiB")).is_ok());
        let error = check(root.path(), size("128KiB")).unwrap_err().to_string();
        assert!(error.contains("no folios of 128KiB") && error.ends_with("it has 16KiB, 64KiB"), "{error}");
        let error = check(tree(&[]).path(), size("64KiB")).unwrap_err().to_string();
        assert!(error.contains("none of any size") && error.contains("Linux 6.8"), "{error}");
    }

    #[test]
    fn the_choice_in_force_is_put_back_unless_somebody_else_made_another() {
        let root = tree(&[("enabled", NEVER)]);
        let path = root.path().join("enabled");
        let undo = undo(&path, NEVER).unwrap();
        for (text, becomes, undone) in [
            ("[always] inherit madvise never\n", "never", Undone::PutBack),
            (NEVER, "never", Undone::PutBack),
            ("always [inherit] madvise never\n", "always [inherit] madvise never\n", Undone::Theirs),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(undo.perform().unwrap(), undone, "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), becomes);
        }
        assert_eq!(super::undo(&path, "[always] inherit madvise never\n"), None, "nothing to change");
    }

    #[test]
    fn kernels_that_bring_single_pages_back_are_named() {
        assert!(too_old("6.8.0-45-generic").unwrap().contains("6.12"));
        assert!(too_old("5.15").is_some());
        for release in ["6.12.0", "6.18.44-fc", "7.0-rc1", "odd"] {
            assert_eq!(too_old(release), None, "{release}");
        }
    }
}
