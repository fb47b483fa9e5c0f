//! Trials: what Terrace has the kernel do is tried once on memory of its own, before it is relied on.
//!
//! In: the tiers, and a size of folios where pages are to come back in folios. Out: for each what the kernel did, and where it did nothing the reason, if
//! it is known. Must not: touch another process, change a setting, or take for a refusal what could not be tried.
//!
//! Whether a page leaves at all is tried by `move_cost::refault`, and whether MADV_COLD clears accessed bits by the trackers' proof. MADV_WILLNEED is
//! never asked for: pages come back by a read of one byte each, which is tried here.

use std::io;
use std::path::Path;

use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, TierId, Vpn};

use crate::guard::Guard;
use crate::huge_pages;
use crate::machine::STALL_DEADLINE;
use crate::move_cost::{FRESH, fill_with_half_noise, half_noise_in_small_pages};
use crate::movers::{MADV_COLLAPSE, MoveCost, MoveResult, Mover, Movers, PageMove, Splitter, Unsplit};
use crate::pagemap::{Pagemap, Residence};
use crate::process::{Process, ProcessError};
use crate::swap_in::{self, FolioSize};
use crate::sys::placement::{ask_for_huge_pages, ask_for_small_pages};
use crate::sys::{self, RemoteRange};
use crate::topology::{TierKind, TierMap};

/// Whether the kernel did what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It did.
    Works,
    /// It did not, and will not do it for a program either.
    Fails,
    /// That could not be tried, or what was missing may be there later.
    Unknown,
}

/// What one trial showed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Trial {
    /// What was tried.
    pub name: &'static str,
    /// What came of it.
    pub verdict: Verdict,
    /// What was seen, or why not more.
    pub reason: String,
}

impl Trial {
    fn new(name: &'static str, verdict: Verdict, reason: impl Into<String>) -> Trial {
        Trial { name, verdict, reason: reason.into() }
    }

    /// What is to be said of it during a run: only what does not work.
    pub fn complaint(&self) -> Option<&str> {
        (self.verdict == Verdict::Fails).then_some(self.reason.as_str())
    }
}

/// Blocks become huge before they leave (MADV_COLLAPSE).
const COLLAPSE: &str = "collapse";
/// A huge page is split where a part of it is advised (MADV_COLD).
const SPLIT: &str = "split";
/// Pages come back before they are used.
const RETURN: &str = "return";
/// Pages come back in folios.
const FOLIOS: &str = "folios";

/// Folios that leave in a trial, and pages that come back in another.
const LEAVING: u64 = 8;
const RETURNING: u64 = 16;

/// Tries all that needs no setting to be changed.
///
/// # Errors
/// When this process cannot be read.
pub fn survey(root: &Path, tiers: &TierMap) -> Result<Vec<Trial>, ProcessError> {
    let mut trials = blocks(root)?;
    trials.push(match tiers.swap_tier() {
        Some(swap) => comes_back(tiers, swap)?,
        None => Trial::new(RETURN, Verdict::Unknown, "not tried: no swap is a tier here"),
    });
    Ok(trials)
}

/// What can be said of returns in folios where no setting is changed: what keeps the kernel from them, or how to try.
pub fn folios_untried(root: &Path, tiers: &TierMap) -> Trial {
    match obstacle(root, tiers.swap_tier().map(|swap| &tiers.tier(swap).kind), &release()) {
        Some(why) => Trial::new(FOLIOS, Verdict::Fails, format!("{NO_FOLIOS}: {why}")),
        None => Trial::new(
            FOLIOS,
            Verdict::Unknown,
            "not tried, as it changes a setting: `terrace doctor --prices` tries it, and so does a run with --swap-in",
        ),
    }
}

/// Whether this kernel splits a huge page where a part of it is advised.
///
/// # Errors
/// When this process cannot be read.
pub(crate) fn split() -> Result<Trial, ProcessError> {
    let tried = blocks(Path::new("/"))?;
    let untried = || Trial::new(SPLIT, Verdict::Unknown, "not tried");
    Ok(tried.into_iter().find(|trial| trial.name == SPLIT).unwrap_or_else(untried))
}

/// Makes a block huge, and has it split again.
fn blocks(root: &Path) -> Result<Vec<Trial>, ProcessError> {
    if huge_pages::are_forbidden(root) {
        let untried = |name| Trial::new(name, Verdict::Unknown, "not tried: huge pages are set to never");
        return Ok(vec![untried(COLLAPSE), untried(SPLIT)]);
    }
    let block = u64::from(BLOCK_PAGES) * PAGE_BYTES;
    // A mapping of its own, so that no advice stays behind; only its first part is ever touched.
    let mut memory = vec![0u8; FRESH];
    let part = &mut memory[..2 * block as usize];
    // Small until it is collapsed, whatever huge pages are set to.
    ask_for_small_pages(part);
    fill_with_half_noise(part);
    ask_for_huge_pages(part);
    let address = (memory.as_ptr() as u64).next_multiple_of(block);
    let first = Vpn::of_address(address);
    let me = Process::open(std::process::id())?;
    let mut pagemap = Pagemap::of_process(&me).map_err(own_pagemap)?;
    let mut advise = |bytes: u64, advice| {
        let range = RemoteRange { address: address as usize, length: bytes as usize };
        let answer = sys::process_madvise(me.pidfd(), &[range], advice);
        let huge = pagemap.tells_huge().then(|| pagemap.is_huge(first).unwrap_or(false));
        (answer.map(|_| ()), huge)
    };
    let (answer, huge) = advise(block, MADV_COLLAPSE);
    let (verdict, reason) = of_collapse(answer.as_ref().err(), huge);
    let mut trials = vec![Trial::new(COLLAPSE, verdict, reason)];
    trials.push(if huge == Some(true) {
        let (answer, huge) = advise(PAGE_BYTES, libc::MADV_COLD);
        let (verdict, reason) = of_split(answer.as_ref().err(), huge);
        Trial::new(SPLIT, verdict, reason)
    } else {
        split_by_fault(&me)
    });
    drop(memory);
    Ok(trials)
}

/// Splits a huge page that came by a fault: before Linux 6.1 no block becomes huge by advice.
fn split_by_fault(me: &Process) -> Trial {
    let block = u64::from(BLOCK_PAGES) * PAGE_BYTES;
    let mut memory = vec![0u8; FRESH];
    let part = &mut memory[..2 * block as usize];
    ask_for_huge_pages(part);
    // Pages of zeros would be given back.
    part.iter_mut().step_by(PAGE_BYTES as usize).for_each(|byte| *byte = 1);
    let first = Vpn::of_address((memory.as_ptr() as u64).next_multiple_of(block));
    let found = Splitter::new(STALL_DEADLINE).split(me, &[first], &mut MoveCost::default());
    match found.first() {
        Some(Ok(true)) => Trial::new(SPLIT, Verdict::Works, SPLITS),
        Some(Err(Unsplit::Kernel)) => Trial::new(
            SPLIT,
            Verdict::Fails,
            format!(
                "{STAYS_WHOLE}: the kernel refuses process_madvise(MADV_COLD), which came with Linux 5.10 and needs CAP_SYS_NICE, or does not show what is huge"
            ),
        ),
        Some(Err(why)) => Trial::new(SPLIT, Verdict::Unknown, format!("not tried: a huge page was {}", why.name())),
        Some(Ok(false)) | None => Trial::new(SPLIT, Verdict::Unknown, "not tried: there was no huge page to split"),
    }
}

/// What is said where splits work, and how a line begins where they do not.
const SPLITS: &str = "huge pages are split where it pays to look inside, and where they do not leave";
const STAYS_WHOLE: &str = "huge pages stay whole here, so that nothing is known of their inside";

const NO_RIGHT: &str = "not tried: process_madvise needs CAP_SYS_NICE";

/// What a collapse showed: the kernel's error, and whether the block is huge now, if the kernel tells.
fn of_collapse(error: Option<&io::Error>, huge: Option<bool>) -> (Verdict, String) {
    match (error.map(|error| (error, error.raw_os_error())), huge) {
        (None, Some(true)) => (Verdict::Works, "blocks become huge before they leave".to_owned()),
        (None, None) => (
            Verdict::Unknown,
            "the kernel says it makes blocks huge, and cannot show it (PAGEMAP_SCAN came with Linux 6.7)".to_owned(),
        ),
        (None, Some(false)) => (
            Verdict::Fails,
            "blocks leave page by page here: the kernel accepts MADV_COLLAPSE and leaves a block as it is".to_owned(),
        ),
        (Some((_, Some(libc::ENOMEM | libc::EBUSY | libc::EAGAIN))), _) => (
            Verdict::Unknown,
            "there was no free huge page, or the block was in use; it is tried at each block".to_owned(),
        ),
        (Some((_, Some(libc::EPERM))), _) => (Verdict::Unknown, NO_RIGHT.to_owned()),
        (Some((error, Some(libc::EINVAL | libc::ENOSYS))), _) => (
            Verdict::Fails,
            format!(
                "blocks leave page by page here: the kernel refuses MADV_COLLAPSE ({error}), which came with Linux 6.1 and needs \
                 CONFIG_TRANSPARENT_HUGEPAGE; a process that forbids huge pages (PR_SET_THP_DISABLE) gets none either"
            ),
        ),
        (Some((error, _)), _) => {
            (Verdict::Fails, format!("blocks leave page by page here: MADV_COLLAPSE is refused ({error})"))
        }
    }
}

/// What MADV_COLD on one page of a huge page showed.
fn of_split(error: Option<&io::Error>, huge: Option<bool>) -> (Verdict, String) {
    match (error, huge) {
        (None, Some(false)) => (Verdict::Works, SPLITS.to_owned()),
        (None, _) => {
            (Verdict::Fails, format!("{STAYS_WHOLE}: MADV_COLD on a part of one does not split it (Linux 5.10)"))
        }
        (Some(error), _) if error.raw_os_error() == Some(libc::EPERM) => (Verdict::Unknown, NO_RIGHT.to_owned()),
        (Some(error), _) => (Verdict::Fails, format!("{STAYS_WHOLE}: MADV_COLD is refused ({error})")),
    }
}

/// Pages of this process go out and are brought back as those of a program are.
fn comes_back(tiers: &TierMap, swap: TierId) -> Result<Trial, ProcessError> {
    let memory = half_noise_in_small_pages((RETURNING as usize + 1) * PAGE_BYTES as usize);
    let first = (memory.as_ptr() as u64).div_ceil(PAGE_BYTES);
    let me = Process::open(std::process::id())?;
    let mut mover = Movers::for_tiers(tiers, STALL_DEADLINE);
    let mut carry = |pages: &[u64], from, to| {
        let moves: Vec<PageMove> = pages.iter().map(|page| PageMove { vpn: Vpn(*page), pages: 1, from, to }).collect();
        let mut results = Vec::new();
        mover.execute(&me, &moves, tiers, &mut results);
        results
    };
    let pages: Vec<u64> = (first..first + RETURNING).collect();
    let out = carry(&pages, TierId::FAST, swap);
    let left: Vec<u64> =
        pages.into_iter().zip(&out).filter(|(_, result)| result.done == 1).map(|(page, _)| page).collect();
    let back = carry(&left, swap, TierId::FAST);
    let (verdict, reason) = of_return(&back);
    Ok(Trial::new(RETURN, verdict, reason))
}

/// What asking for pages that left showed.
fn of_return(back: &[MoveResult]) -> (Verdict, String) {
    let came = back.iter().filter(|result| result.done == 1).count();
    match (came, back.iter().find_map(|result| result.failure)) {
        _ if back.is_empty() => (Verdict::Unknown, "not tried: no page left for swap".to_owned()),
        (0, Some(why)) => (
            Verdict::Fails,
            format!("no page comes back ahead of its use here: process_vm_readv brings none ({})", why.name()),
        ),
        _ => (Verdict::Works, "pages come back ahead of their use".to_owned()),
    }
}

/// What was seen of folios that left, and of which one page was touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Folios all of whose pages were in swap.
    left: u64,
    /// Of these, folios all of whose pages were back after the touch.
    whole: u64,
    /// Folios that new memory got; `None` where the kernel does not count them.
    made: Option<u64>,
    /// Folios that the kernel wanted to bring back, and had no memory for.
    no_memory: u64,
}

/// The first words where folios do not come back.
pub const NO_FOLIOS: &str = "folios do not come back from swap here";

/// Tries whether pages come back in folios of this size, which the kernel's setting must allow by now.
///
/// # Errors
/// When this process cannot be read.
pub(crate) fn folios(root: &Path, tiers: &TierMap, swap: TierId, size: FolioSize) -> Result<Trial, ProcessError> {
    let (made, no_memory) = (size.made(root), size.failed_returns(root));
    // A mapping of its own, of which only the first part is touched: memory that was used before would be there in pages already.
    let mut memory = vec![0u8; FRESH];
    let pages = size.pages();
    fill_with_half_noise(&mut memory[..((LEAVING + 1) * pages * PAGE_BYTES) as usize]);
    let first = (memory.as_ptr() as u64).div_ceil(PAGE_BYTES).next_multiple_of(pages);
    let me = Process::open(std::process::id())?;
    let moves: Vec<PageMove> = (first..first + LEAVING * pages)
        .map(|page| PageMove { vpn: Vpn(page), pages: 1, from: TierId::FAST, to: swap })
        .collect();
    Movers::for_tiers(tiers, STALL_DEADLINE).execute(&me, &moves, tiers, &mut Vec::new());
    let mut pagemap = Pagemap::of_process(&me).map_err(own_pagemap)?;
    let mut places = vec![Residence::Absent; pages as usize];
    let mut seen = Seen::default();
    for folio in 0..LEAVING {
        let start = first + folio * pages;
        pagemap.residences(Vpn(start), &mut places).map_err(own_pagemap)?;
        if places.iter().any(|place| *place != Residence::Swapped) {
            continue;
        }
        seen.left += 1;
        let byte = (start * PAGE_BYTES - memory.as_ptr() as u64) as usize;
        std::hint::black_box(std::hint::black_box(&memory)[byte]);
        pagemap.residences(Vpn(start), &mut places).map_err(own_pagemap)?;
        seen.whole += u64::from(places.iter().all(|place| place.is_present()));
    }
    seen.made = made.zip(size.made(root)).map(|(before, after)| after.saturating_sub(before));
    seen.no_memory = size.failed_returns(root).saturating_sub(no_memory);
    let (verdict, reason) = of_folios(size, seen, obstacle(root, Some(&tiers.tier(swap).kind), &release()));
    Ok(Trial::new(FOLIOS, verdict, reason))
}

/// The size that is tried where nobody asks for one.
const USUAL: FolioSize = FolioSize::of_pages(16);

/// As [`folios`] for 64 KiB, with the kernel's setting changed for the time of the trial.
///
/// # Errors
/// When this process cannot be read.
pub(crate) fn folios_once(root: &Path, tiers: &TierMap, swap: TierId, guard: &Guard) -> Result<Trial, ProcessError> {
    let changed = match swap_in::set(root, USUAL, guard) {
        Ok(changed) => changed,
        Err(refused) => return Ok(Trial::new(FOLIOS, Verdict::Unknown, format!("not tried: {refused}"))),
    };
    let trial = folios(root, tiers, swap, USUAL);
    if let Some(Err(error)) = changed.map(swap_in::Changed::put_back) {
        tracing::warn!(%error, "the kernel's setting for folios of {USUAL} is not back yet; the guard goes on trying");
    }
    trial
}

/// What folios showed, and what is known to keep the kernel from bringing them back.
fn of_folios(size: FolioSize, seen: Seen, obstacle: Option<String>) -> (Verdict, String) {
    let Seen { left, whole, made, no_memory } = seen;
    if whole > 0 {
        return (Verdict::Works, format!("{whole} of {left} folios of {size} came back whole by one touch"));
    }
    match obstacle {
        Some(why) => (Verdict::Fails, format!("{NO_FOLIOS}: {why}")),
        None if left == 0 => (Verdict::Unknown, format!("not tried: no folio of {size} left for swap as a whole")),
        None if made == Some(0) || no_memory > 0 => {
            (Verdict::Unknown, format!("not tried: there was no free memory in folios of {size}"))
        }
        None => (
            Verdict::Fails,
            format!("{NO_FOLIOS}: of {left} that left none came back whole by one touch; why is not known"),
        ),
    }
}

/// What is known to keep the kernel from bringing folios back.
fn obstacle(root: &Path, swap: Option<&TierKind>, release: &str) -> Option<String> {
    let only = "the kernel does this only while zswap was never enabled since it started";
    swap_in::too_old(release).or_else(|| match zswap(root) {
        Zswap::On => Some(format!("{only}, and zswap is on")),
        Zswap::WasOn => Some(format!("{only}, and it was; it counts as such until the machine starts again")),
        Zswap::NoSign => match swap {
            Some(TierKind::Swap { device, compressed: false }) => {
                Some(format!("the kernel does this for zram only, and {device} is none"))
            }
            _ => None,
        },
    })
}

/// What there is to be seen of zswap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zswap {
    On,
    WasOn,
    NoSign,
}

/// When it is first enabled zswap announces itself to the hotplug of processors and makes its directory in debugfs, and neither goes again.
fn zswap(root: &Path) -> Zswap {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let counted = read("proc/vmstat");
    let stored =
        counted.lines().find_map(|line| line.strip_prefix("zswpout ")).is_some_and(|count| count.trim() != "0");
    if read("sys/module/zswap/parameters/enabled").trim() == "Y" {
        Zswap::On
    } else if stored
        || read("sys/devices/system/cpu/hotplug/states").contains("mm/zswap")
        || root.join("sys/kernel/debug/zswap").exists()
    {
        Zswap::WasOn
    } else {
        Zswap::NoSign
    }
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

fn own_pagemap(source: io::Error) -> ProcessError {
    ProcessError::Read { path: "/proc/self/pagemap".to_owned(), source }
}

#[cfg(test)]
mod tests {
    use terrace_core::plan::Failure;

    use super::*;
    use crate::huge_pages::SETTINGS;
    use crate::pressure::tests::tree;

    fn error(errno: i32) -> io::Error {
        io::Error::from_raw_os_error(errno)
    }

    fn size() -> FolioSize {
        FolioSize::of_pages(16)
    }

    const NEW: &str = "6.18.1";

    #[test]
    fn a_collapse_is_judged_by_what_is_huge_afterwards() {
        assert_eq!(of_collapse(None, Some(true)).0, Verdict::Works);
        let (verdict, reason) = of_collapse(None, Some(false));
        assert!(verdict == Verdict::Fails && reason.contains("accepts MADV_COLLAPSE"), "{reason}");
        assert_eq!(of_collapse(None, None).0, Verdict::Unknown, "the kernel cannot show it");
        for (errno, verdict, says) in [
            (libc::EINVAL, Verdict::Fails, "Linux 6.1"),
            (libc::EACCES, Verdict::Fails, "refused"),
            (libc::ENOMEM, Verdict::Unknown, "no free huge page"),
            (libc::EPERM, Verdict::Unknown, "CAP_SYS_NICE"),
        ] {
            let (found, reason) = of_collapse(Some(&error(errno)), Some(false));
            assert!(found == verdict && reason.contains(says), "{errno}: {reason}");
        }
    }

    #[test]
    fn a_split_is_judged_by_what_is_huge_afterwards() {
        assert_eq!(of_split(None, Some(false)).0, Verdict::Works);
        assert_eq!(of_split(None, Some(true)).0, Verdict::Fails);
        assert_eq!(of_split(Some(&error(libc::EINVAL)), Some(true)).0, Verdict::Fails);
        assert_eq!(of_split(Some(&error(libc::EPERM)), Some(true)).0, Verdict::Unknown);
    }

    #[test]
    fn returns_are_judged_by_the_pages_that_came() {
        let came = MoveResult { done: 1, failure: None };
        let refused = MoveResult { done: 0, failure: Some(Failure::Errno(libc::EPERM)) };
        assert_eq!(of_return(&[]).0, Verdict::Unknown, "none left");
        assert_eq!(of_return(&[came, refused]).0, Verdict::Works);
        let (verdict, reason) = of_return(&[refused; 16]);
        assert!(verdict == Verdict::Fails && reason.contains("EPERM"), "{reason}");
    }

    #[test]
    fn folios_are_believed_when_one_came_back_whole() {
        let some = Seen { left: 8, whole: 0, made: Some(9), no_memory: 0 };
        // What was seen stands above what is known.
        let (verdict, reason) = of_folios(size(), Seen { whole: 7, ..some }, Some("zswap".to_owned()));
        assert!(verdict == Verdict::Works && reason.contains("7 of 8 folios of 64KiB"), "{reason}");
        let (verdict, reason) = of_folios(size(), some, Some("zswap is on".to_owned()));
        assert!(verdict == Verdict::Fails && reason.ends_with("here: zswap is on"), "{reason}");
        let (verdict, reason) = of_folios(size(), some, None);
        assert!(verdict == Verdict::Fails && reason.contains("why is not known"), "{reason}");
        for untried in [Seen { left: 0, ..some }, Seen { made: Some(0), ..some }, Seen { no_memory: 3, ..some }] {
            let (verdict, reason) = of_folios(size(), untried, None);
            assert!(verdict == Verdict::Unknown && reason.starts_with("not tried"), "{untried:?}: {reason}");
        }
    }

    #[test]
    fn what_keeps_folios_from_coming_back_is_found() {
        let zram = TierKind::Swap { device: "/dev/zram0".to_owned(), compressed: true };
        let disk = TierKind::Swap { device: "/dev/sda2".to_owned(), compressed: false };
        let states = "sys/devices/system/cpu/hotplug/states";
        let enabled = "sys/module/zswap/parameters/enabled";
        let never =
            tree(&[(enabled, "N\n"), (states, " 57: mm/memcg:dead\n"), ("proc/vmstat", "zswpin 0\nzswpout 0\n")]);
        assert_eq!(obstacle(never.path(), Some(&zram), NEW), None);
        assert_eq!(obstacle(never.path(), None, NEW), None);
        let says = |root: &tempfile::TempDir, kind, release| obstacle(root.path(), Some(kind), release).unwrap();
        assert!(says(&never, &disk, NEW).contains("/dev/sda2 is none"));
        assert!(says(&never, &zram, "6.8.0-45-generic").contains("6.12"));
        assert!(says(&tree(&[(enabled, "Y\n")]), &zram, NEW).ends_with("and zswap is on"));
        for sign in [
            &[(enabled, "N\n"), (states, " 61: mm/zswap_pool:prepare\n")][..],
            &[(enabled, "N\n"), ("sys/kernel/debug/zswap/pool_total_size", "0\n")],
            &[("proc/vmstat", "zswpout 12\n")],
        ] {
            assert!(says(&tree(sign), &zram, NEW).contains("never enabled since it started, and it was"), "{sign:?}");
        }
    }

    #[test]
    fn nothing_is_made_huge_to_try_it_where_that_is_forbidden() {
        let root = tree(&[(&format!("{SETTINGS}/enabled"), "always madvise [never]\n")]);
        let trials = blocks(root.path()).unwrap();
        assert_eq!(trials.len(), 2);
        for trial in trials {
            assert!(trial.verdict == Verdict::Unknown && trial.reason.contains("set to never"), "{trial:?}");
        }
    }

    #[test]
    fn what_became_huge_in_a_trial_is_split_again() {
        let trials = blocks(tree(&[]).path()).unwrap();
        let [collapse, split] = trials.as_slice() else { panic!("{trials:?}") };
        println!("{collapse:?}\n{split:?}");
        if collapse.verdict == Verdict::Works {
            assert_eq!(split.verdict, Verdict::Works, "{split:?}");
        } else {
            println!("SKIPPED: no block becomes huge here: {}", collapse.reason);
        }
    }
}
