//! Pages of a program brought back from swap before it uses them, by several threads at once.
//!
//! In: a process, ranges of its memory that are in swap. Out: how many pages came back, and how long it took. Must not: choose pages, or take longer
//! than it is of use: a program that has ended is left alone.
//!
//! Two ways, as measured for 200 MiB in lz4 zram: advised with WILLNEED, pages are read into the swap cache, which leaves the program a minor fault
//! each, and their slots (a page that leaves again unwritten costs nothing); which of them it uses shows in its page table. Read by
//! `process_vm_readv`, they are mapped, and its first touch costs what any touch does. So a program that is on its way through its pages is advised for,
//! and one that is about to wake has them brought back whole.
//!
//! Each page takes as long as a fault of the program's own would, less the fault; that it is done sooner is due to the processors that help. The last
//! pages go first where the program comes from the front: helpers that begin where it is would only wait for the same pages.

use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, Time, Vpn};

use crate::pagemap::{Pagemap, Residence};
use crate::process::{Process, ProcessError, RangeOptions};
use crate::sys::{self, RemoteRange};

/// How pages come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Read into the swap cache, the last ones first: the program is on its way through them.
    Advised,
    /// Read and mapped.
    Mapped,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Pages that were asked for, and of which the kernel did not say that they cannot be had.
    pub pages: u64,
    /// Wall time.
    pub took: Duration,
}

/// Why nothing came back.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The process is gone, or not ours.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The kernel refused.
    #[error("process {pid}: {call}: {source}; it needs root, or CAP_SYS_PTRACE and CAP_SYS_NICE")]
    Call {
        /// The process.
        pid: u32,
        /// What was asked of the kernel.
        call: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// Pages of a slice of work: a block.
const SLICE: u64 = BLOCK_PAGES as u64;
/// Most threads.
const MOST_THREADS: usize = 4;
/// Most ranges of a call (IOV_MAX of linux/uio.h).
const RANGES: usize = 1024;

/// Whether it pays to fetch ahead of a program that is on its way through its pages, as seen when that was done.
///
/// On two processors that are threads of one core, or beside other work, the helpers take from the program what they give it: 200 MiB took 268 ms ahead
/// and 256 ms by faults of the program's own. What is fetched also keeps its slot in swap, so that it takes memory twice.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worth {
    /// Until when it is not tried, and for how long that is.
    not_before: Time,
    pause: Duration,
}

/// It pays where a page takes at most this part of a fault.
const PAYS: f64 = 0.75;
/// Fewer pages say nothing.
const LEAST_PAGES: u64 = 256;
/// How long it is not tried after it did not pay: doubled each time, up to a day.
const PAUSE: Duration = Duration::from_secs(600);
const MOST_PAUSE: Duration = Duration::from_secs(86_400);

impl Worth {
    /// Whether to fetch ahead now.
    pub fn is_tried(&self, now: Time) -> bool {
        now >= self.not_before
    }

    /// What a fetch took, and what a fault of the program's own takes for a page, if that is known.
    pub fn found(&mut self, now: Time, fetched: &Fetched, fault: Option<Duration>) {
        let Some(fault) = fault.filter(|_| fetched.pages >= LEAST_PAGES) else { return };
        if fetched.took.as_secs_f64() <= PAYS * fault.as_secs_f64() * fetched.pages as f64 {
            self.pause = Duration::ZERO;
            return;
        }
        self.pause = (self.pause * 2).clamp(PAUSE, MOST_PAUSE);
        self.not_before = now + self.pause;
        tracing::info!(
            pages = fetched.pages, took = ?fetched.took, a_fault = ?fault, again_in = ?self.pause,
            "to fetch ahead is no faster here than faults of the program's own"
        );
    }
}

/// Brings these pages back, by as many threads as there are processors, four at most.
///
/// # Errors
/// The process may not be read. That it ended meanwhile is none.
pub fn fetch(process: &Process, ranges: &[Range<Vpn>], way: Way) -> Result<Fetched, FetchError> {
    let began = Instant::now();
    let mut slices = sliced(ranges);
    // Taken from the end.
    if way == Way::Mapped {
        slices.reverse();
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(slices.len());
    let work = Mutex::new(slices);
    let done = std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(|| work_off(process, &work, way))).collect();
        let own = if threads > 0 { work_off(process, &work, way) } else { Ok(0) };
        let others = helpers.into_iter().map(|helper| helper.join().unwrap_or(Ok(0)));
        others.fold(own, |sum, one| Ok(sum? + one?))
    });
    match done {
        Ok(pages) => Ok(Fetched { pages, took: began.elapsed() }),
        Err(source) => {
            let call = if way == Way::Mapped { "process_vm_readv" } else { "process_madvise(MADV_WILLNEED)" };
            Err(FetchError::Call { pid: process.pid(), call, source })
        }
    }
}

/// Brings all of a process's private memory back that is in swap.
///
/// # Errors
/// It is gone, or may not be read.
pub fn everything(process: &Process) -> Result<Fetched, FetchError> {
    let began = Instant::now();
    let ranges = in_swap(process)?;
    let fetched = fetch(process, &ranges, Way::Mapped)?;
    Ok(Fetched { took: began.elapsed(), ..fetched })
}

/// The pages of a process's private memory that are in swap.
fn in_swap(process: &Process) -> Result<Vec<Range<Vpn>>, FetchError> {
    let call = |source| FetchError::Call { pid: process.pid(), call: "/proc/PID/pagemap", source };
    let mut pagemap = Pagemap::of_process(process).map_err(call)?;
    let (mut found, mut places): (Vec<Range<Vpn>>, Vec<Residence>) = (Vec::new(), Vec::new());
    for range in process.ranges(RangeOptions { files: true, shared: false })? {
        let mut at = range.start;
        while at < range.end {
            let end = Vpn(range.end.0.min(at.0 + (1 << 16)));
            places.clear();
            places.resize((end.0 - at.0) as usize, Residence::Absent);
            pagemap.residences(at, &mut places).map_err(call)?;
            for (vpn, _) in (at.0..).zip(&places).filter(|(_, place)| **place == Residence::Swapped) {
                match found.last_mut() {
                    Some(last) if last.end.0 == vpn => last.end = Vpn(vpn + 1),
                    _ => found.push(Vpn(vpn)..Vpn(vpn + 1)),
                }
            }
            at = end;
        }
    }
    Ok(found)
}

/// Ranges as slices of work: of a bounded number of pages each, neighbours together.
fn sliced(ranges: &[Range<Vpn>]) -> Vec<Vec<Range<Vpn>>> {
    let mut slices: Vec<Vec<Range<Vpn>>> = Vec::new();
    let mut room = 0;
    for range in ranges {
        let mut at = range.start.0;
        while at < range.end.0 {
            if room == 0 || slices.last().is_none_or(|slice| slice.len() == RANGES) {
                slices.push(Vec::new());
                room = SLICE;
            }
            let end = range.end.0.min(at + room);
            room -= end - at;
            if let Some(slice) = slices.last_mut() {
                slice.push(Vpn(at)..Vpn(end));
            }
            at = end;
        }
    }
    slices
}

fn work_off(process: &Process, work: &Mutex<Vec<Vec<Range<Vpn>>>>, way: Way) -> io::Result<u64> {
    let (mut pages, mut bytes) = (0, [0_u8; SLICE as usize]);
    loop {
        // A thread that panicked has taken its slice with it; the others are whole.
        let next = work.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
        let Some(slice) = next.filter(|_| process.is_alive()) else { return Ok(pages) };
        match way {
            Way::Advised => pages += advise(process, &slice)?,
            Way::Mapped => pages += read(process, &slice, &mut bytes)?,
        }
    }
}

fn remote(range: &Range<Vpn>) -> RemoteRange {
    RemoteRange {
        address: range.start.address() as usize,
        length: ((range.end.0 - range.start.0) * PAGE_BYTES) as usize,
    }
}

/// Whether an error says that the process, or this part of its memory, is not there any more.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ESRCH | libc::ENOMEM | libc::EFAULT | libc::EINVAL))
}

fn advise(process: &Process, slice: &[Range<Vpn>]) -> io::Result<u64> {
    let ranges: Vec<RemoteRange> = slice.iter().map(remote).collect();
    let (mut from, mut pages) = (0, 0);
    while from < ranges.len() {
        match sys::process_madvise(process.pidfd(), &ranges[from..], libc::MADV_WILLNEED) {
            Ok(bytes) if bytes > 0 => {
                pages += Bytes::new(bytes as u64).pages();
                let mut left = bytes;
                let whole = ranges[from..].iter().take_while(|range| {
                    let fits = range.length <= left;
                    left = left.saturating_sub(range.length);
                    fits
                });
                from += whole.count().max(1);
            }
            Ok(_) => from += 1,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if is_absence(&error) => from += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(pages)
}

fn read(process: &Process, slice: &[Range<Vpn>], bytes: &mut [u8]) -> io::Result<u64> {
    let each = slice.iter().flat_map(|range| range.start.0..range.end.0);
    let ranges: Vec<RemoteRange> =
        each.map(|vpn| RemoteRange { address: Vpn(vpn).address() as usize, length: 1 }).collect();
    let (mut from, mut pages) = (0, 0);
    while from < ranges.len() {
        match sys::process_vm_readv(process.pid(), bytes, &ranges[from..]) {
            // One byte a page: the bytes read are the pages reached, and the next one, if any, is at fault.
            Ok(read) if read > 0 => (from, pages) = (from + read, pages + read as u64),
            Ok(_) => from += 1,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) if is_absence(&error) => from += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_sliced_by_pages_and_ranges_whatever_its_pieces() {
        let range = |start: u64, pages: u64| Vpn(start)..Vpn(start + pages);
        let lengths = |ranges: &[Range<Vpn>]| -> Vec<u64> {
            let of = |slice: &Vec<Range<Vpn>>| slice.iter().map(|range| range.end.0 - range.start.0).sum();
            sliced(ranges).iter().map(of).collect()
        };
        assert_eq!(lengths(&[]), Vec::<u64>::new());
        assert_eq!(lengths(&[range(0, 1300)]), [512, 512, 276]);
        assert_eq!(lengths(&[range(0, 500), range(600, 500)]), [512, 488]);
        let single: Vec<Range<Vpn>> = (0..700).map(|page| range(page * 2, 1)).collect();
        assert_eq!(lengths(&single), [512, 188]);
        let all: Vec<u64> = sliced(&single).into_iter().flatten().map(|range| range.start.0).collect();
        assert!(all.iter().zip(0..).all(|(start, page)| *start == page * 2) && all.len() == 700, "none is lost");
    }

    #[test]
    fn memory_that_is_there_is_brought_back_by_either_way_and_what_is_not_mapped_is_left_out() {
        let process = Process::open(std::process::id()).unwrap();
        let memory = vec![7_u8; 64 * PAGE_BYTES as usize];
        let first = Vpn::of_address(memory.as_ptr() as u64).0 + 1;
        let nowhere = Vpn(1)..Vpn(3);
        for way in [Way::Advised, Way::Mapped] {
            let fetched = fetch(&process, &[nowhere.clone(), Vpn(first)..Vpn(first + 40)], way).unwrap();
            assert_eq!(fetched.pages, 40, "{way:?}");
        }
        assert_eq!(fetch(&process, &[], Way::Mapped).unwrap().pages, 0);
        assert!(memory.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn where_it_is_no_faster_it_pauses_for_longer_each_time() {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let took = |pages: u64, micros: u64| Fetched { pages, took: Duration::from_micros(pages * micros) };
        let fault = Some(Duration::from_micros(8));
        let mut worth = Worth::default();
        worth.found(at(0), &took(1000, 2), fault);
        assert!(worth.is_tried(at(0)), "a quarter of a fault a page");
        worth.found(at(0), &took(100, 9), fault);
        worth.found(at(0), &took(1000, 9), None);
        assert!(worth.is_tried(at(0)), "too few pages, or nothing to compare with");
        worth.found(at(0), &took(1000, 7), fault);
        assert!(!worth.is_tried(at(599)) && worth.is_tried(at(600)));
        worth.found(at(600), &took(1000, 7), fault);
        assert!(!worth.is_tried(at(1799)) && worth.is_tried(at(1800)));
        worth.found(at(1800), &took(1000, 2), fault);
        worth.found(at(1801), &took(1000, 7), fault);
        assert!(worth.is_tried(at(2401)), "once it paid, the pauses are short again");
    }

    #[test]
    fn a_process_that_has_ended_is_no_error() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(fetch(&process, &[Vpn(16)..Vpn(4096)], Way::Advised).unwrap().pages, 0);
    }
}
