//! Which compressor suits a program: each that zram offers is tried on some of the program's own pages.
//!
//! In: a process. Out: for each compressor, what the pages take and how long they need, and the one to use by [`choose`]. Must not: bring a
//! page of the process back from swap for it, keep a copy of one, or leave the device behind.
//!
//! The pages come from all over the private anonymous memory of the process, [`MOST_PAGES`] of them at most. They are written to a zram
//! device that is made for it and are read back, each time whole and past the page cache (O_DIRECT), so that the kernel's own compressors
//! are timed, as a page-out and a refault would run them. The whole takes some tens of milliseconds.
//!
//! What they take is the compressed size. The allocator's own figure says nothing for a megabyte: of each of its hundred size classes the
//! last group of pages is half empty.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, Vpn};

use super::compression::offered;
use super::device::{OwnDevice, ZramError, step};
use crate::guard::Guard;
use crate::pagemap::{Pagemap, Residence};
use crate::pressure::{PressureError, ZramUse};
use crate::process::{Backing, MemoryRange, Process, ProcessError, RangeOptions};
use crate::sys::{self, RemoteRange};

/// Pages of a process that are tried, at most: a megabyte takes a few milliseconds a compressor.
pub const MOST_PAGES: usize = 256;
/// With fewer the figures would be those of a few data structures, not of the program.
pub const LEAST_PAGES: usize = 64;
/// Blocks whose page tables are looked at: reading them takes a hundredth of a second.
const MOST_BLOCKS: usize = 256;
/// Pages for each call that reads them: one that cannot be read ends its call.
const PAGES_A_CALL: usize = 16;
/// Each compressor writes and reads the pages this often, and the fastest time counts: what else the machine does only adds.
const ROUNDS: usize = 3;
/// Compressors worth trying, the preferred first: the fast ones, and the dense one that kernels commonly have. lzo is lzo-rle without its short
/// form for runs of zeros; lz4hc, deflate and 842 are not tried, since each more lengthens the start of a run.
const WORTH_TRYING: [&str; 3] = ["lz4", "lzo-rle", "zstd"];
/// Times that differ by less are the same: two trials of the same pages on a busy machine differ by up to 1.5 us a page.
const SAME_US: f64 = 1.5;
/// A denser compressor must need less than this share of the fastest one's memory: a smaller gain may be the sample's.
const DENSER: f64 = 0.8;
/// What a page-out costs beside the compressor, about: 6.6 us beside an idle program and 19 to 25 us beside a busy one (docs/performance.md), some of
/// which the compressor takes.
const PAGE_OUT_US: f64 = 10.0;
const PAGE: usize = PAGE_BYTES as usize;

/// Why no compressor was tried.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The process is gone, or not ours.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its pages cannot be read.
    #[error("the pages of process {pid} cannot be read: {source}; it needs root, or CAP_SYS_PTRACE")]
    Pages {
        /// The process.
        pid: u32,
        /// What the kernel said.
        source: io::Error,
    },
    /// It has too little memory.
    #[error("process {pid} has {pages} pages of its own in memory that can be tried, and it takes {LEAST_PAGES}")]
    TooFew {
        /// The process.
        pid: u32,
        /// What there is.
        pages: usize,
    },
    /// There is nothing to choose from.
    #[error("zram offers one compressor worth trying at most: {offered}")]
    NoChoice {
        /// What it offers.
        offered: String,
    },
    /// The device could not be made, used or taken away.
    #[error(transparent)]
    Zram(#[from] ZramError),
    /// Its figures could not be read.
    #[error(transparent)]
    Figures(#[from] PressureError),
    /// What was read back is not what was written.
    #[error(
        "zram gave other data back than were written, by {algorithm}; do not use it, and report this to the kernel's developers"
    )]
    Differs {
        /// The compressor.
        algorithm: String,
    },
}

/// What a compressor did with the sample.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct CompressorTrial {
    /// Its name, as zram has it.
    pub algorithm: String,
    /// Pages tried.
    pub pages: u64,
    /// What they take. Pages that zram keeps whole count whole, pages of one value take nothing.
    pub compressed_bytes: Bytes,
    /// Bytes of pages for each byte that they take.
    pub ratio: f64,
    /// Microseconds to compress and store a page.
    pub write_us_per_page: f64,
    /// Microseconds to read it back.
    pub read_us_per_page: f64,
}

impl CompressorTrial {
    fn us_per_page(&self) -> f64 {
        self.write_us_per_page + self.read_us_per_page
    }

    fn saved_bytes(&self) -> Bytes {
        Bytes::of_pages(self.pages).saturating_sub(self.compressed_bytes)
    }
}

impl fmt::Display for CompressorTrial {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompressorTrial { algorithm, ratio, write_us_per_page, read_us_per_page, .. } = self;
        write!(out, "{algorithm} {ratio:.2} ({write_us_per_page:.1} us + {read_us_per_page:.1} us a page)")
    }
}

/// The compressor to use. `None` without a trial.
///
/// It is the fastest, since a refault waits for it: the first of those that are as fast as any. A denser one takes its place if it needs a
/// fifth less memory at least, and if each byte that it saves more costs no more time than a byte costs that the fastest one saves: that
/// price is a page-out with its compression, by what it frees. Otherwise the memory is cheaper to have from other pages. So zstd, which takes
/// several times as long, is for data from which lz4 saves little. Of those that are worth it the densest is taken.
pub fn choose(trials: &[CompressorTrial]) -> Option<&CompressorTrial> {
    let least = trials.iter().map(CompressorTrial::us_per_page).min_by(f64::total_cmp)?;
    let fastest = trials.iter().find(|trial| trial.us_per_page() <= least + SAME_US)?;
    let limit = fastest.compressed_bytes.share(DENSER);
    let worth_it = trials.iter().filter(|trial| {
        let more_saved = fastest.compressed_bytes.saturating_sub(trial.compressed_bytes).get() as f64;
        let more_time = trial.us_per_page() - fastest.us_per_page();
        let price_of_all = PAGE_OUT_US + fastest.us_per_page();
        more_saved > 0.0
            && trial.compressed_bytes <= limit
            && more_time * fastest.saved_bytes().get() as f64 <= more_saved * price_of_all
    });
    Some(worth_it.min_by_key(|trial| trial.compressed_bytes).unwrap_or(fastest))
}

/// The compressor to use for a process, tried now; `None`, with the reason in the log, where that cannot be.
pub(crate) fn chosen_for(pid: u32, guard: &Guard) -> Option<String> {
    let began = Instant::now();
    let trials = match Sample::of(pid).and_then(|sample| try_on(&sample, Some(guard))) {
        Ok(trials) => trials,
        Err(error) => {
            tracing::info!("compressors are not tried: {error}");
            return None;
        }
    };
    let chosen = choose(&trials)?.algorithm.clone();
    let figures: Vec<String> = trials.iter().map(ToString::to_string).collect();
    tracing::info!(
        pid,
        pages = trials.first().map_or(0, |trial| trial.pages),
        took = ?began.elapsed(),
        figures = figures.join(", "),
        "compressor by trial: {chosen}"
    );
    Some(chosen)
}

/// Pages of a process, copied. The copy is overwritten when it goes.
pub struct Sample {
    pages: Aligned,
}

impl fmt::Debug for Sample {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not what is in them: they belong to another program.
        out.debug_struct("Sample").field("pages", &self.pages()).finish()
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        self.pages.bytes.fill(0);
    }
}

impl Sample {
    /// Copies pages of a process that are in memory, spread over it by address.
    ///
    /// # Errors
    /// When it is gone, may not be read, or has fewer than [`LEAST_PAGES`].
    pub fn of(pid: u32) -> Result<Sample, TrialError> {
        let refused = |source| TrialError::Pages { pid, source };
        let process = Process::open(pid)?;
        let mut pagemap = Pagemap::of_process(&process).map_err(refused)?;
        let mut present = Vec::new();
        let mut places = [Residence::Absent; BLOCK_PAGES as usize];
        for (first, pages) in evenly(&blocks(&process.ranges(RangeOptions::default())?), MOST_BLOCKS) {
            let places = &mut places[..pages as usize];
            pagemap.residences(first, places).map_err(refused)?;
            let here = places.iter().zip(first.0..).filter(|(place, _)| place.is_present());
            present.extend(here.map(|(_, page)| Vpn(page)));
        }
        let wanted = evenly(&present, MOST_PAGES);
        let mut sample = Sample { pages: Aligned::of_pages(wanted.len()) };
        let mut read = 0;
        for pages in wanted.chunks(PAGES_A_CALL) {
            let ranges: Vec<RemoteRange> =
                pages.iter().map(|page| RemoteRange { address: page.address() as usize, length: PAGE }).collect();
            let into = &mut sample.pages.bytes_mut()[read * PAGE..][..pages.len() * PAGE];
            match sys::process_vm_readv(process.seen_by(), into, &ranges) {
                Ok(bytes) => read += bytes / PAGE,
                // The first page of the call went in the meantime.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
                Err(source) => return Err(refused(source)),
            }
        }
        sample.pages.truncate(read);
        if read < LEAST_PAGES { Err(TrialError::TooFew { pid, pages: read }) } else { Ok(sample) }
    }

    /// Pages that were copied.
    pub fn pages(&self) -> usize {
        self.pages.bytes().len() / PAGE
    }
}

/// These ranges in blocks of addresses, as the first page and the number of pages of each; anonymous memory only.
fn blocks(ranges: &[MemoryRange]) -> Vec<(Vpn, u64)> {
    let anonymous = ranges.iter().filter(|range| range.backing == Backing::Anonymous);
    let starts = anonymous.flat_map(|range| {
        let block_pages = u64::from(BLOCK_PAGES);
        let inside = (range.start.block_start().0..range.end.0).step_by(BLOCK_PAGES as usize);
        inside.map(move |block| (block.max(range.start.0), (block + block_pages).min(range.end.0)))
    });
    starts.map(|(start, end)| (Vpn(start), end - start)).collect()
}

/// At most this many of the items, at equal distances.
fn evenly<T: Copy>(items: &[T], most: usize) -> Vec<T> {
    let taken = items.len().min(most);
    (0..taken).map(|at| items[at * items.len() / taken]).collect()
}

/// Tries the compressors on a sample. With a guard, the device goes even if this process is killed.
///
/// # Errors
/// When there is nothing to choose from, or the device cannot be made, used or taken away.
pub fn try_on(sample: &Sample, guard: Option<&Guard>) -> Result<Vec<CompressorTrial>, TrialError> {
    // Leaving by `?` drops the device and thereby removes it.
    let mut own = OwnDevice::add(guard)?;
    let offered = offered(&own.identity.read("comp_algorithm")?);
    let wanted: Vec<&str> = WORTH_TRYING.into_iter().filter(|name| offered.iter().any(|one| one == name)).collect();
    let mut trials = Vec::new();
    if wanted.len() > 1 {
        let mut back = Aligned::of_pages(sample.pages());
        for algorithm in wanted {
            // Up to 6.6 the kernel names compressors whose module it may not find, and refuses those here.
            if own.identity.write("comp_algorithm", algorithm).is_ok() {
                let trial = try_one(&own, algorithm, sample.pages.bytes(), back.bytes_mut());
                back.bytes_mut().fill(0);
                trials.push(trial?);
                own.identity.reset()?;
            }
        }
    }
    own.take_away()?;
    if trials.len() < 2 { Err(TrialError::NoChoice { offered: offered.join(", ") }) } else { Ok(trials) }
}

/// Writes the pages through a device whose compressor is set, and reads them back.
fn try_one(own: &OwnDevice, algorithm: &str, pages: &[u8], back: &mut [u8]) -> Result<CompressorTrial, TrialError> {
    own.identity.write("disksize", &pages.len().to_string())?;
    let device = own.identity.device();
    let failed = |source| step(&device.display().to_string(), source);
    let file = open_direct(&device).map_err(failed)?;
    let (mut write, mut read) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        file.write_all_at(pages, 0).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        write = write.min(began.elapsed());
        let began = Instant::now();
        file.read_exact_at(back, 0).map_err(failed)?;
        read = read.min(began.elapsed());
        if back != pages {
            return Err(TrialError::Differs { algorithm: algorithm.to_owned() });
        }
    }
    let compressed_bytes = ZramUse::read(Path::new("/"), own.identity.id)?.compressed_bytes;
    let count = pages.len() / PAGE;
    let us_per_page = |time: Duration| time.as_secs_f64() * 1e6 / count as f64;
    Ok(CompressorTrial {
        algorithm: algorithm.to_owned(),
        pages: count as u64,
        compressed_bytes,
        ratio: pages.len() as f64 / compressed_bytes.get().max(1) as f64,
        write_us_per_page: us_per_page(write),
        read_us_per_page: us_per_page(read),
    })
}

/// Opens a block device past the page cache.
fn open_direct(device: &Path) -> io::Result<File> {
    File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(device)
}

/// Whole pages that begin at a page's boundary, as O_DIRECT asks.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn of_pages(pages: usize) -> Aligned {
        let bytes = vec![0; (pages + 1) * PAGE];
        let start = bytes.as_ptr().align_offset(PAGE);
        Aligned { bytes, start, length: pages * PAGE }
    }

    fn truncate(&mut self, pages: usize) {
        self.length = self.length.min(pages * PAGE);
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(algorithm: &str, kib: u64, write: f64, read: f64) -> CompressorTrial {
        CompressorTrial {
            algorithm: algorithm.to_owned(),
            pages: 256,
            compressed_bytes: Bytes::kib(kib),
            ratio: 1024.0 / kib as f64,
            write_us_per_page: write,
            read_us_per_page: read,
        }
    }

    fn chosen(trials: &[CompressorTrial]) -> &str {
        &choose(trials).unwrap().algorithm
    }

    #[test]
    fn the_fastest_is_taken_where_it_saves_most_of_what_there_is() {
        let lz4 = trial("lz4", 314, 8.7, 2.3);
        assert_eq!(choose(&[]), None);
        assert_eq!(chosen(std::slice::from_ref(&lz4)), "lz4");
        // As zstd does on this text: 142 KiB more for 49 us a page, where lz4 saves 710 KiB for 21 us.
        assert_eq!(chosen(&[lz4.clone(), trial("zstd", 172, 40.0, 20.0)]), "lz4");
        // At 4 us a page it is worth it, at 5 us it is not.
        assert_eq!(chosen(&[lz4.clone(), trial("zstd", 172, 11.0, 4.0)]), "zstd");
        assert_eq!(chosen(&[lz4.clone(), trial("zstd", 172, 11.0, 5.0)]), "lz4");
        // Less than a fifth may be chance.
        assert_eq!(chosen(&[lz4, trial("zstd", 252, 8.7, 2.4)]), "lz4");
    }

    #[test]
    fn where_the_fastest_saves_little_a_slow_one_is_worth_it() {
        let slow = trial("zstd", 650, 40.0, 20.0);
        assert_eq!(chosen(&[trial("lz4", 974, 4.0, 1.0), slow.clone()]), "zstd");
        assert_eq!(
            chosen(&[trial("lz4", 1024, 4.0, 1.0), slow]),
            "zstd",
            "any price is worth it where else nothing is saved"
        );
        let noise = [trial("lz4", 1024, 3.7, 0.9), trial("zstd", 1024, 15.0, 0.9)];
        assert_eq!(chosen(&noise), "lz4");
    }

    #[test]
    fn of_those_that_are_worth_it_the_densest_is_taken_whatever_the_order() {
        let mut all = vec![trial("lz4", 400, 3.0, 1.0), trial("lzo-rle", 300, 4.0, 2.0), trial("zstd", 200, 6.0, 2.0)];
        for _ in 0..3 {
            assert_eq!(chosen(&all), "zstd");
            all.rotate_left(1);
        }
        all.iter_mut().filter(|trial| trial.algorithm == "zstd").for_each(|trial| trial.write_us_per_page = 20.0);
        assert_eq!(chosen(&all), "lzo-rle");
    }

    #[test]
    fn of_equals_the_first_in_the_list_is_taken() {
        assert_eq!(chosen(&[trial("lz4", 1024, 3.7, 0.9), trial("lzo-rle", 1024, 2.7, 0.8)]), "lz4");
        assert_eq!(chosen(&[trial("lz4", 1024, 4.7, 0.9), trial("lzo-rle", 1024, 2.7, 0.8)]), "lzo-rle");
        assert_eq!(chosen(&[trial("lz4", 0, 0.4, 0.3), trial("lzo-rle", 0, 0.3, 0.3)]), "lz4", "nothing is stored");
    }

    #[test]
    fn blocks_cover_anonymous_ranges_and_no_others() {
        let range = |start, end, backing| MemoryRange { start: Vpn(start), end: Vpn(end), backing };
        let ranges = [
            range(500, 1100, Backing::Anonymous),
            range(2048, 4096, Backing::PrivateFile),
            range(5000, 5001, Backing::Anonymous),
        ];
        let expected = [(Vpn(500), 12), (Vpn(512), 512), (Vpn(1024), 76), (Vpn(5000), 1)];
        assert_eq!(blocks(&ranges), expected);
    }

    #[test]
    fn samples_are_spread_over_all_there_is() {
        assert_eq!(evenly(&[0, 1, 2], 5), [0, 1, 2]);
        assert_eq!(evenly(&(0..1000).collect::<Vec<_>>(), 4), [0, 250, 500, 750]);
        assert!(evenly::<u64>(&[], 4).is_empty());
    }

    #[test]
    fn a_sample_of_this_process_is_whole_and_says_nothing_of_its_contents() {
        let memory = vec![7_u8; 4 << 20];
        let sample = Sample::of(std::process::id()).unwrap();
        assert!((LEAST_PAGES..=MOST_PAGES).contains(&sample.pages()), "{sample:?}");
        assert_eq!(sample.pages.bytes().as_ptr() as usize % PAGE, 0);
        let of_ours = sample.pages.bytes().chunks(PAGE).filter(|page| page.iter().all(|byte| *byte == 7)).count();
        assert!(of_ours > 0, "pages of {} are among them", memory.len());
        assert_eq!(format!("{sample:?}"), format!("Sample {{ pages: {} }}", sample.pages()));
    }

    #[test]
    fn a_process_that_is_gone_has_no_sample() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        assert!(matches!(Sample::of(child.id()).unwrap_err(), TrialError::Process(ProcessError::Gone { .. })));
    }
}
