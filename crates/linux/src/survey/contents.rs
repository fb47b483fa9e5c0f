//! How cold memory compresses: a few pages of it, read, compressed here, and forgotten.
//!
//! In: a process and cold pages of its private anonymous memory. Out: [`Contents`]: which share of them would leave, and what of it stays in memory.
//! Must not: keep a byte of what it read, read locked memory (the caller's ranges have none) or that of a process that forbids to be looked into
//! ([`may_be_read`]), or bring a page back from swap.
//!
//! LZ4 stands for the algorithms of zram that find repeated strings (lzo-rle, lz4); zstd saves more. What an object takes is what zsmalloc gives it:
//! a size of 16 bytes more or less, in chains of up to 8 pages (mm/zsmalloc.c, `calculate_zspage_chain_size`). A page filled with one value takes nothing.

use std::path::Path;

use terrace_core::units::{PAGE_BYTES, Vpn};

use crate::compressibility::{KEPT_WHOLE, LEAST_SAVED};
use crate::pagemap::{Pagemap, PagemapEntry};
use crate::sys::{self, RemoteRange};

/// Blocks that are looked into, and pages of each: as many as the manager tries of a block before it goes.
pub(crate) const BLOCKS: usize = 64;
pub(crate) const PAGES: usize = 4;
const PAGE: usize = PAGE_BYTES as usize;
/// zsmalloc's distance of sizes, its least size, what it adds to an object, and the pages of a chain.
const STEP: usize = 16;
const LEAST: usize = 32;
const HANDLE: usize = 8;
const CHAIN: usize = 8;

/// What the cold pages of a process hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Contents {
    /// Pages that were looked into.
    pub(crate) pages: u64,
    /// Share of them that would leave: mapped by this process alone, and in a block that compresses.
    pub(crate) leaves: f64,
    /// Bytes that a byte of these takes in compressed memory.
    pub(crate) takes: f64,
    /// Bytes that a byte of any cold page takes.
    pub(crate) compressed: f64,
    /// Share of all that is filled with one value.
    pub(crate) filled: f64,
    /// Share of all that several processes map.
    pub(crate) shared: f64,
    /// Share of all in blocks that do not compress.
    pub(crate) stays_whole: f64,
}

/// Scratch of one reader, overwritten after each block.
#[derive(Debug)]
pub(crate) struct Reader {
    pages: Vec<u8>,
    packed: Vec<u8>,
}

impl Reader {
    pub(crate) fn new() -> Reader {
        let most = lz4_flex::block::get_maximum_output_size(PAGE);
        Reader { pages: vec![0; PAGES * PAGE], packed: vec![0; most] }
    }

    /// Looks into these pages, given by block. `None` where none could be read.
    pub(crate) fn look(&mut self, pid: u32, blocks: &[Vec<Vpn>]) -> Option<Contents> {
        let mut pagemap = Pagemap::open(pid).ok()?;
        let mut sum = Sum::default();
        for pages in blocks {
            let here: Vec<Vpn> = pages.iter().copied().take(PAGES).collect();
            let entries: Vec<PagemapEntry> = here.iter().map(|page| entry(&mut pagemap, *page)).collect();
            // Only what is in memory: reading must not bring a page back.
            let present = here.iter().zip(&entries).filter(|(_, entry)| entry.present());
            let ranges: Vec<RemoteRange> =
                present.map(|(page, _)| RemoteRange { address: page.address() as usize, length: PAGE }).collect();
            let exclusive: Vec<bool> =
                entries.iter().filter(|entry| entry.present()).map(|entry| entry.exclusive()).collect();
            let Ok(read) = sys::process_vm_readv(pid, &mut self.pages[..ranges.len() * PAGE], &ranges) else {
                continue;
            };
            let sizes: Vec<usize> = self.pages[..read / PAGE * PAGE]
                .chunks_exact(PAGE)
                .map(|page| stored(page, &mut self.packed))
                .collect();
            sum.add_block(&sizes, &exclusive);
            self.pages.fill(0);
            self.packed.fill(0);
        }
        sum.contents()
    }
}

fn entry(pagemap: &mut Pagemap, page: Vpn) -> PagemapEntry {
    let mut entry = [PagemapEntry::default()];
    // Of a process that ends meanwhile there is nothing to say.
    let _ = pagemap.entries(page, &mut entry);
    entry[0]
}

/// Whether a process lets others look into its memory. One that is not dumpable (prctl(2), PR_SET_DUMPABLE: agents that hold keys) has its files below
/// /proc owned by root, also where another user runs it.
pub(crate) fn may_be_read(proc: &Path, pid: u32, user: u32) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata(proc.join(format!("{pid}/maps"))).map(|file| file.uid());
    owner.is_ok_and(|owner| owner == user)
}

/// What a page takes in compressed memory.
fn stored(page: &[u8], packed: &mut [u8]) -> usize {
    let (words, _) = page.as_chunks::<8>();
    if words.iter().all(|word| *word == words[0]) {
        return 0;
    }
    match lz4_flex::block::compress_into(page, packed) {
        Ok(length) if length <= KEPT_WHOLE => object_bytes(length),
        _ => PAGE,
    }
}

/// What zsmalloc takes for an object of this length.
fn object_bytes(length: usize) -> usize {
    let size = (length + HANDLE).max(LEAST).next_multiple_of(STEP);
    let chain =
        if size.is_power_of_two() { 1 } else { (1..=CHAIN).min_by_key(|pages| (pages * PAGE) % size).unwrap_or(1) };
    (chain * PAGE) / ((chain * PAGE) / size).max(1)
}

#[derive(Debug, Default)]
struct Sum {
    pages: u64,
    leaving: u64,
    leaving_bytes: u64,
    bytes: u64,
    filled: u64,
    shared: u64,
    whole: u64,
}

impl Sum {
    /// A block of which these pages were read.
    fn add_block(&mut self, sizes: &[usize], exclusive: &[bool]) {
        if sizes.is_empty() {
            return;
        }
        let all = sizes.len() * PAGE;
        let saved = all - sizes.iter().sum::<usize>().min(all);
        let compresses = saved as f64 >= LEAST_SAVED * all as f64;
        for (size, exclusive) in sizes.iter().zip(exclusive) {
            self.pages += 1;
            self.bytes += *size as u64;
            self.filled += u64::from(*size == 0);
            self.shared += u64::from(!exclusive);
            self.whole += u64::from(!compresses);
            if compresses && *exclusive {
                self.leaving += 1;
                self.leaving_bytes += *size as u64;
            }
        }
    }

    fn contents(&self) -> Option<Contents> {
        let share = |part: u64| part as f64 / self.pages as f64;
        (self.pages > 0).then(|| Contents {
            pages: self.pages,
            leaves: share(self.leaving),
            takes: self.leaving_bytes as f64 / (self.leaving.max(1) * PAGE_BYTES) as f64,
            compressed: self.bytes as f64 / (self.pages * PAGE_BYTES) as f64,
            filled: share(self.filled),
            shared: share(self.shared),
            stays_whole: share(self.whole),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_page(fill: impl FnMut(usize) -> u8) -> usize {
        let page: Vec<u8> = (0..PAGE).map(fill).collect();
        stored(&page, &mut vec![0; lz4_flex::block::get_maximum_output_size(PAGE)])
    }

    fn noise() -> impl FnMut(usize) -> u8 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        }
    }

    #[test]
    fn a_page_takes_what_zram_would_take_for_it() {
        assert_eq!(of_page(|_| 0), 0, "filled with one value");
        assert_eq!(of_page(|at| (at % 8) as u8), 0, "the same word all over");
        assert_eq!(of_page(noise()), PAGE, "kept whole");
        let text = b"GET /index.html HTTP/1.1 200 12345 Mozilla/5.0\n";
        let small = of_page(|at| text[at % text.len()]);
        assert!((32..200).contains(&small), "{small}");
        let mut noise = noise();
        let half = of_page(|at| if at % PAGE < PAGE / 2 { noise(at) } else { 0 });
        assert!((2048..2400).contains(&half), "{half}");
    }

    #[test]
    fn an_object_has_its_part_of_a_chain() {
        // 48 bytes: three pages hold 256 of them without waste; 2,048: two a page; 3,632: nine in eight pages.
        assert_eq!(object_bytes(40), 48);
        assert_eq!(object_bytes(2040), 2048);
        assert_eq!(object_bytes(3624), 8 * PAGE / 9);
        assert_eq!(object_bytes(1), 32);
    }

    #[test]
    fn what_is_shared_or_does_not_compress_stays() {
        let mut sum = Sum::default();
        sum.add_block(&[1024; 4], &[true; 4]);
        sum.add_block(&[1024; 4], &[false; 4]);
        sum.add_block(&[PAGE; 4], &[true; 4]);
        sum.add_block(&[], &[]);
        let contents = sum.contents().unwrap();
        assert_eq!((contents.pages, contents.leaves, contents.takes), (12, 4.0 / 12.0, 0.25));
        assert_eq!((contents.shared, contents.stays_whole), (4.0 / 12.0, 4.0 / 12.0));
        assert_eq!(Sum::default().contents(), None);
    }

    #[test]
    fn pages_of_this_process_are_looked_into_and_forgotten() {
        let text = b"a line that comes again and again, with a number\n";
        let memory: Vec<u8> = (0..8 << 20).map(|at: usize| text[at % text.len()]).collect();
        let first = (memory.as_ptr() as u64).next_multiple_of(2 << 20) / PAGE_BYTES;
        let blocks: Vec<Vec<Vpn>> =
            (0..2).map(|block| (0..4).map(|at| Vpn(first + block * 512 + at * 100)).collect()).collect();
        let mut reader = Reader::new();
        let contents = reader.look(std::process::id(), &blocks).unwrap();
        assert_eq!((contents.pages, contents.filled, contents.stays_whole), (8, 0.0, 0.0));
        assert!(contents.compressed < 0.1, "{contents:?}");
        assert!(reader.pages.iter().chain(&reader.packed).all(|byte| *byte == 0));
        assert_eq!(reader.look(u32::MAX, &blocks), None);
        let user = rustix::process::getuid().as_raw();
        assert!(may_be_read(Path::new("/proc"), std::process::id(), user));
        assert!(!may_be_read(Path::new("/proc"), std::process::id(), user + 1));
    }
}
