//! Which ranges of a process are locked, or otherwise must stay where they are.
//!
//! In: how much is locked, the ranges, and smaps. Out: the ranges that may be managed. Must not: read smaps oftener than a small share of
//! the time: the kernel counts every page of the process for it, which takes a tenth of a second and more where there are many areas.
//!
//! The kernel refuses to page locked memory out, so a range that is not known to be locked costs a call in vain, and nothing else. Where pages
//! only go to swap, a little locked memory is therefore not worth a reading. Between nodes the kernel moves locked pages like others.

use std::io::{self, BufRead};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrace_core::units::{PAGE_BYTES, Vpn};

use super::MemoryRange;
use crate::usage::thread_cpu;

/// smaps is read again no sooner than this many times what the last reading took: it costs at most a hundredth of a processor.
const SPACING: u32 = 100;

/// Who may refuse: where pages only go to swap, the kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refuses {
    /// It does not move what is locked.
    Kernel,
    /// Nobody but who reads smaps.
    Nobody,
}

/// Where the kernel refuses, one part in this many of the memory may be locked before smaps is read.
const LITTLE: u64 = 64;

/// What is known of the locked ranges of one process.
#[derive(Debug, Default)]
pub(super) struct LockedAreas(Mutex<Option<Reading>>);

/// One reading of smaps.
#[derive(Debug)]
struct Reading {
    /// How much was locked.
    amount: u64,
    /// The ranges that there were, by address.
    ranges: Vec<MemoryRange>,
    /// Where those begin that must stay, by address.
    starts: Vec<Vpn>,
    /// When the next reading may be.
    next: Instant,
}

impl LockedAreas {
    /// Takes out of `ranges` what must stay where it is; `read` reads smaps, if that is due.
    pub(super) fn take_out(
        &self,
        amount: u64,
        ranges: &mut Vec<MemoryRange>,
        refuses: Refuses,
        read: impl FnOnce() -> io::Result<Vec<Vpn>>,
    ) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Locked memory shows only in smaps; VmLck in status says whether there is any.
        let little = || {
            let pages: u64 = ranges.iter().map(|range| range.end.0 - range.start.0).sum();
            refuses == Refuses::Kernel && amount.saturating_mul(LITTLE) < pages * (PAGE_BYTES >> 10)
        };
        if amount == 0 || little() {
            *last = None;
            return;
        }
        let now = Instant::now();
        if last.as_ref().is_none_or(|last| last.is_due(amount, ranges, now)) {
            let began = thread_cpu();
            // Of a process that ends meanwhile nothing is known, and nothing will be asked.
            let Ok(starts) = read() else {
                ranges.clear();
                return;
            };
            let next = Instant::now() + spacing(thread_cpu().saturating_sub(began));
            *last = Some(Reading { amount, ranges: ranges.clone(), starts, next });
        }
        if let Some(last) = &*last {
            last.filter(amount, ranges);
        }
    }
}

fn spacing(took: Duration) -> Duration {
    took * SPACING
}

impl Reading {
    /// Whether something changed that smaps would show, and enough time has passed.
    fn is_due(&self, amount: u64, ranges: &[MemoryRange], now: Instant) -> bool {
        now >= self.next && (amount != self.amount || ranges != self.ranges)
    }

    /// Takes out what must stay. Where more or less is locked than at the reading, ranges that are new since wait for the next: the program
    /// may have locked just these.
    fn filter(&self, amount: u64, ranges: &mut Vec<MemoryRange>) {
        let was_there = |range: &MemoryRange| {
            let at = self.ranges.binary_search_by_key(&range.start, |known| known.start);
            at.is_ok_and(|at| self.ranges[at] == *range)
        };
        let all_known = amount == self.amount;
        ranges.retain(|range| self.starts.binary_search(&range.start).is_err() && (all_known || was_there(range)));
    }
}

/// How much a process has locked, in kB: VmLck of /proc/PID/status.
pub(super) fn amount(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// An area of a process's memory, and what its flags say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// Its first page.
    pub(crate) start: Vpn,
    /// The page after its last.
    pub(crate) end: Vpn,
    /// It is locked ("lo" in VmFlags), device or hugetlb memory.
    pub(crate) stays: bool,
    /// It is registered with userfaultfd.
    pub(crate) watched: bool,
    /// It asks for huge pages (MADV_HUGEPAGE).
    pub(crate) asks: bool,
}

/// The areas in smaps, by address. smaps of many areas is tens of MiB, so one line at a time is held.
pub(crate) fn areas(smaps: &mut dyn BufRead) -> io::Result<Vec<Area>> {
    let mut areas = Vec::new();
    let (mut range, mut line) = (None, Vec::new());
    while smaps.read_until(b'\n', &mut line)? > 0 {
        // A name of a file may be any bytes; the fields before it are ASCII.
        let text = String::from_utf8_lossy(&line);
        if let Some(flags) = text.strip_prefix("VmFlags:") {
            let has = |wanted: &[&str]| flags.split_ascii_whitespace().any(|flag| wanted.contains(&flag));
            let (stays, watched) = (has(&["lo", "io", "pf", "ht"]), has(&["um", "uw", "ui"]));
            areas.extend(range.map(|(start, end)| Area { start, end, stays, watched, asks: has(&["hg"]) }));
        } else if let Some((first, last)) = text.split_ascii_whitespace().next().and_then(|range| range.split_once('-'))
        {
            let page = |text| u64::from_str_radix(text, 16).ok().map(Vpn::of_address);
            range = page(first).zip(page(last));
        }
        line.clear();
    }
    Ok(areas)
}

/// The starts of the ranges that smaps marks as locked, device or hugetlb memory.
pub(super) fn starts(smaps: &mut dyn BufRead) -> io::Result<Vec<Vpn>> {
    Ok(areas(smaps)?.into_iter().filter(|area| area.stays).map(|area| area.start).collect())
}

/// As read from a text that is there already.
pub fn parse_locked(smaps: &str) -> Vec<Vpn> {
    // Reading from memory does not fail.
    starts(&mut smaps.as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Backing;

    fn range(start: u64) -> MemoryRange {
        MemoryRange { start: Vpn(start), end: Vpn(start + 4), backing: Backing::Anonymous }
    }

    #[test]
    fn locked_ranges_are_found_in_smaps() {
        let smaps = "\
7f0000000000-7f0000100000 rw-p 00000000 00:00 0
Size:               1024 kB
VmFlags: rd wr mr mw me ac
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
VmFlags: rd wr mr mw me lo ac
";
        assert_eq!(parse_locked(smaps), [Vpn::of_address(0x7f00_0020_0000)]);
        let watched = smaps.replace("me ac", "me um ac hg");
        let [first, _] = areas(&mut watched.as_bytes()).unwrap()[..] else { panic!("{watched}") };
        assert_eq!((first.stays, first.watched, first.asks), (false, true, true));
        assert_eq!((first.start, first.end.0 - first.start.0), (Vpn::of_address(0x7f00_0000_0000), 256));
        assert_eq!([amount("VmLck:\t       8 kB\n"), amount("VmRSS: 4 kB\n")], [8, 0]);
    }

    /// Takes the locked ones out of `given`, which smaps says start at `locked`. Returns what is left, and whether smaps was read.
    fn left(areas: &LockedAreas, amount: u64, given: &[u64], locked: &[u64]) -> (Vec<u64>, bool) {
        let mut ranges: Vec<MemoryRange> = given.iter().copied().map(range).collect();
        let mut was_read = false;
        areas.take_out(amount, &mut ranges, Refuses::Nobody, || {
            was_read = true;
            Ok(locked.iter().copied().map(Vpn).collect())
        });
        (ranges.iter().map(|range| range.start.0).collect(), was_read)
    }

    #[test]
    fn smaps_is_read_only_when_something_changed() {
        let areas = LockedAreas::default();
        assert_eq!(left(&areas, 0, &[0, 8], &[8]), (vec![0, 8], false), "nothing is locked");
        assert_eq!(left(&areas, 4, &[0, 8], &[8]), (vec![0], true));
        for _ in 0..1000 {
            assert_eq!(left(&areas, 4, &[0, 8], &[8]), (vec![0], false), "nothing has changed");
        }
    }

    #[test]
    fn a_reading_of_smaps_that_was_dear_is_not_repeated_soon() {
        let areas = LockedAreas::default();
        left(&areas, 4, &[0, 8], &[8]);
        // As if the last one had taken half a minute.
        if let Some(last) = &mut *areas.0.lock().unwrap() {
            last.next = Instant::now() + spacing(Duration::from_secs(30));
        }
        assert_eq!(left(&areas, 4, &[0, 8, 16], &[8]), (vec![0, 16], false), "no more is locked than was");
        assert_eq!(left(&areas, 8, &[0, 8, 16], &[8, 16]), (vec![0], false), "what is new may be what was locked");
        if let Some(last) = &mut *areas.0.lock().unwrap() {
            last.next = Instant::now();
        }
        assert_eq!(left(&areas, 8, &[0, 8, 16, 24], &[8, 16]), (vec![0, 24], true));
        assert_eq!(spacing(Duration::from_millis(300)), Duration::from_secs(30));
    }

    #[test]
    fn a_little_locked_memory_is_left_to_the_kernel_to_refuse() {
        let areas = LockedAreas::default();
        let all: Vec<MemoryRange> = (0..50_000).map(|at| range(at * 8)).collect();
        let mut ranges = all.clone();
        areas.take_out(4, &mut ranges, Refuses::Kernel, || panic!("50,000 areas for one page"));
        assert_eq!(ranges, all);
        // Much of it is locked: then each call in vain would cost more.
        areas.take_out(100_000, &mut ranges, Refuses::Kernel, || Ok(vec![all[0].start]));
        assert_eq!(ranges, all[1..]);
    }

    #[test]
    fn of_a_process_whose_smaps_cannot_be_read_nothing_is_offered() {
        let areas = LockedAreas::default();
        let mut ranges = vec![range(0)];
        areas.take_out(4, &mut ranges, Refuses::Nobody, || Err(io::Error::from_raw_os_error(libc::EACCES)));
        assert_eq!(ranges, []);
    }
}
