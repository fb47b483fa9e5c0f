//! Page residency: what the page tables of a process say of its pages, read back after every move.
//!
//! In: a process and addresses. Out: for each page whether it is present, swapped or absent, by the `PAGEMAP_SCAN`
//! ioctl (6.7 and later; runs of pages, about 1 ns a page) or by /proc/PID/pagemap (26 ns a page); and the frame
//! numbers, which only the latter has. Must not: keep a file open over an exec, after which it would show the old image.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES, Vpn};

use crate::process::Process;
use crate::shared_memory::SharedPages;
use crate::swap_slots::SwapSlot;
use crate::sys::{self, PageRegion, PageScan};

/// The page is present in memory (`PAGE_IS_*` of linux/fs.h).
const PAGE_IS_PRESENT: u64 = 1 << 3;
/// The page is in swap. The kernel counts pages that migrate just now among them.
const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// What is mapped is the kernel's page of zeros: somebody read memory that nobody wrote.
const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// The page is part of a huge mapping.
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Runs asked for at once; 6 KiB on the stack.
const REGIONS: usize = 256;

/// Where one page is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residence {
    /// No memory behind it: never written, given back, or not mapped. Memory that was only read is the kernel's one page of zeros, which
    /// cannot move; kernels before 6.7 do not distinguish it, and report `Present`.
    #[default]
    Absent,
    /// In memory.
    Present,
    /// In memory, as part of a 2 MiB mapping. The fallback without `PAGEMAP_SCAN` says `Present` instead.
    PresentHuge,
    /// In swap.
    Swapped,
}

impl Residence {
    /// Whether the page is in memory.
    pub const fn is_present(self) -> bool {
        matches!(self, Residence::Present | Residence::PresentHuge)
    }

    fn of_categories(categories: u64) -> Residence {
        if categories & PAGE_IS_PFNZERO != 0 {
            Residence::Absent
        } else if categories & PAGE_IS_PRESENT != 0 {
            if categories & PAGE_IS_HUGE != 0 { Residence::PresentHuge } else { Residence::Present }
        } else if categories & PAGE_IS_SWAPPED != 0 {
            Residence::Swapped
        } else {
            Residence::Absent
        }
    }
}

/// One entry of /proc/PID/pagemap (admin-guide/mm/pagemap.rst).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PagemapEntry(pub u64);

impl PagemapEntry {
    /// Bit 63: the page is in memory.
    pub const fn present(self) -> bool {
        self.0 & (1 << 63) != 0
    }

    /// Bit 62: the page is in swap.
    pub const fn swapped(self) -> bool {
        self.0 & (1 << 62) != 0
    }

    /// Bit 61: file-backed or shared anonymous memory.
    pub const fn file_or_shared(self) -> bool {
        self.0 & (1 << 61) != 0
    }

    /// Bit 56: mapped by this process alone.
    pub const fn exclusive(self) -> bool {
        self.0 & (1 << 56) != 0
    }

    /// Bits 0 to 54: the frame of a present page. `None` if it is not present, or the reader lacks CAP_SYS_ADMIN,
    /// in which case the kernel says 0.
    pub const fn frame(self) -> Option<u64> {
        let frame = self.0 & ((1 << 55) - 1);
        if self.present() && frame != 0 { Some(frame) } else { None }
    }

    /// Bits 0 to 4 and 5 to 54: the area and the place in it of a swapped page. `None` if it is in no swap, or the reader lacks CAP_SYS_ADMIN, in
    /// which case the kernel says 0.
    pub(crate) fn swap_slot(self) -> Option<SwapSlot> {
        let bits = self.0 & ((1 << 55) - 1);
        if self.swapped() && !self.present() { SwapSlot::new(bits & 31, bits >> 5) } else { None }
    }

    const fn residence(self) -> Residence {
        if self.present() {
            Residence::Present
        } else if self.swapped() {
            Residence::Swapped
        } else {
            Residence::Absent
        }
    }
}

/// How many pages of some ranges are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ResidencyCount {
    /// Pages in memory.
    pub present_pages: u64,
    /// Those of them that are mapped as 2 MiB (0 without `PAGEMAP_SCAN`).
    pub huge_pages: u64,
    /// Pages in swap.
    pub swapped_pages: u64,
}

/// The page tables of one process, open for reading. Opening it costs some microseconds: open it for a batch.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    scan: bool,
    /// Shared memory, whose pages in swap no page table shows.
    shared: SharedPages,
    /// Scratch for the fallback, so that a call allocates nothing once it is warm.
    raw: Vec<u8>,
}

impl Pagemap {
    /// Opens /proc/PID/pagemap.
    ///
    /// # Errors
    /// When the process is gone (`ENOENT`, `ESRCH`) or may not be read (`EACCES`, `EPERM`).
    pub fn open(pid: u32) -> io::Result<Pagemap> {
        Ok(Pagemap::of_file(File::open(format!("/proc/{pid}/pagemap"))?))
    }

    /// Opens the page tables of a process of which shared memory may be managed: pages of it that are in swap count as that.
    ///
    /// # Errors
    /// As [`Pagemap::open`].
    pub fn of_process(process: &Process) -> io::Result<Pagemap> {
        let mut pagemap = Pagemap::open(process.seen_by())?;
        if process.offers_shared() {
            // A process that ended in between has no mappings, and its pages are gone.
            pagemap.shared = SharedPages::new(process.seen_by(), process.shared_mappings().unwrap_or_default());
        }
        Ok(pagemap)
    }

    /// Reads from a file that is open already: a pagemap, or bytes recorded from one, which are read without the ioctl.
    pub fn of_file(file: File) -> Pagemap {
        let probe = PageScan { return_mask: PAGE_IS_PRESENT, ..PageScan::default() };
        // An empty scan costs a microsecond and shows whether the kernel has the call.
        let scan = match sys::pagemap_scan(file.as_fd(), &probe, &mut []) {
            Ok(_) => true,
            Err(error) => error.raw_os_error() != Some(libc::ENOTTY),
        };
        Pagemap { file, scan, shared: SharedPages::default(), raw: Vec::new() }
    }

    /// Whether the fast ioctl is used.
    pub fn has_scan(&self) -> bool {
        self.scan
    }

    /// Takes the way of kernels before 6.7 from now on, to compare the two.
    pub fn without_scan(mut self) -> Pagemap {
        self.scan = false;
        self
    }

    /// Whether the 2 MiB block at `first` is mapped by one entry. Without `PAGEMAP_SCAN` (Linux 6.7) nobody can say: then never.
    ///
    /// # Errors
    /// As the ioctl.
    pub fn is_huge(&mut self, first: Vpn) -> io::Result<bool> {
        let mut huge = false;
        if self.scan {
            let end = Vpn(first.0 + u64::from(BLOCK_PAGES));
            self.runs(first, end, |start, pages, residence| {
                let whole = start == first && pages == u64::from(BLOCK_PAGES);
                huge = whole && residence == Residence::PresentHuge;
            })?;
        }
        Ok(huge)
    }

    /// Whether this kernel can say what is mapped huge (`PAGEMAP_SCAN`).
    pub(crate) fn tells_huge(&self) -> bool {
        self.scan
    }

    /// Reads the raw entries of `out.len()` pages from `first` on. Pages past the end of the address space are absent.
    ///
    /// # Errors
    /// As read(2) on /proc/PID/pagemap.
    pub fn entries(&mut self, first: Vpn, out: &mut [PagemapEntry]) -> io::Result<()> {
        self.raw.clear();
        self.raw.resize(out.len() * 8, 0);
        let mut filled = 0;
        while filled < self.raw.len() {
            match self.file.read_at(&mut self.raw[filled..], first.0 * 8 + filled as u64) {
                Ok(0) => break,
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        for (entry, raw) in out.iter_mut().zip(self.raw.as_chunks::<8>().0) {
            *entry = PagemapEntry(u64::from_ne_bytes(*raw));
        }
        Ok(())
    }

    /// Says where each of `out.len()` pages from `first` on is.
    ///
    /// # Errors
    /// As the ioctl or the read; the process being gone is none: its pages are absent.
    pub fn residences(&mut self, first: Vpn, out: &mut [Residence]) -> io::Result<()> {
        out.fill(Residence::Absent);
        if self.scan {
            let end = first.0 + out.len() as u64;
            self.runs(first, Vpn(end), |start, pages, residence| {
                let from = (start.0 - first.0) as usize;
                out[from..from + pages as usize].fill(residence);
            })?;
            return self.shared.complete(first, out);
        }
        let mut entries = [PagemapEntry::default(); 512];
        for (index, chunk) in out.chunks_mut(entries.len()).enumerate() {
            let entries = &mut entries[..chunk.len()];
            self.entries(Vpn(first.0 + index as u64 * 512), entries)?;
            for (residence, entry) in chunk.iter_mut().zip(entries.iter()) {
                *residence = entry.residence();
            }
        }
        self.shared.complete(first, out)
    }

    /// Counts the pages from `start` up to `end` by where they are.
    ///
    /// # Errors
    /// As [`Pagemap::residences`].
    pub fn count(&mut self, start: Vpn, end: Vpn) -> io::Result<ResidencyCount> {
        let mut count = ResidencyCount::default();
        let mut add = |pages: u64, residence: Residence| match residence {
            Residence::Absent => {}
            Residence::Swapped => count.swapped_pages += pages,
            Residence::Present => count.present_pages += pages,
            Residence::PresentHuge => {
                count.present_pages += pages;
                count.huge_pages += pages;
            }
        };
        if self.scan {
            self.runs(start, end, |_, pages, residence| add(pages, residence))?;
        } else {
            let mut chunk = [Residence::Absent; 4096];
            let mut at = start.0;
            while at < end.0 {
                let pages = (end.0 - at).min(chunk.len() as u64);
                self.residences(Vpn(at), &mut chunk[..pages as usize])?;
                chunk[..pages as usize].iter().for_each(|residence| add(1, *residence));
                at += pages;
            }
        }
        Ok(count)
    }

    /// Walks the runs of present or swapped pages.
    fn runs(&self, start: Vpn, end: Vpn, mut each: impl FnMut(Vpn, u64, Residence)) -> io::Result<()> {
        let mut regions = [PageRegion::default(); REGIONS];
        let mut scan = PageScan {
            start: start.address(),
            end: end.address(),
            category_anyof_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED,
            return_mask: PAGE_IS_PRESENT | PAGE_IS_SWAPPED | PAGE_IS_PFNZERO | PAGE_IS_HUGE,
            ..PageScan::default()
        };
        while scan.start < scan.end {
            let (filled, walked_to) = match sys::pagemap_scan(self.file.as_fd(), &scan, &mut regions) {
                Ok(done) => done,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The address space went away with its process: nothing is present any more.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) => return Err(error),
            };
            for region in &regions[..filled] {
                let pages = (region.end - region.start) / PAGE_BYTES;
                each(Vpn::of_address(region.start), pages, Residence::of_categories(region.categories));
            }
            if walked_to <= scan.start {
                break;
            }
            scan.start = walked_to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory of this process: `pages` of them written, as many again only reserved.
    fn half_touched(pages: usize) -> (memmap2::MmapMut, Vpn) {
        let mut memory = memmap2::MmapMut::map_anon(pages * 2 * 4096).unwrap();
        memory[..pages * 4096].fill(7);
        let first = Vpn::of_address(memory.as_ptr() as u64);
        (memory, first)
    }

    #[test]
    fn touched_pages_are_present_and_others_absent_by_both_ways() {
        let (_memory, first) = half_touched(1500);
        for fallback in [false, true] {
            let mut pagemap = Pagemap::open(std::process::id()).unwrap();
            if fallback {
                pagemap = pagemap.without_scan();
            }
            let mut out = vec![Residence::Absent; 3000];
            pagemap.residences(first, &mut out).unwrap();
            assert_eq!(out.iter().filter(|residence| residence.is_present()).count(), 1500, "fallback {fallback}");
            assert!(out[..1500].iter().all(|residence| residence.is_present()));
            let count = pagemap.count(first, Vpn(first.0 + 3000)).unwrap();
            assert_eq!((count.present_pages, count.swapped_pages), (1500, 0), "fallback {fallback}");
        }
    }

    #[test]
    fn memory_that_was_only_read_is_none() {
        let (memory, first) = half_touched(600);
        assert_eq!(memory[600 * 4096..].iter().step_by(4096).map(|byte| u32::from(*byte)).sum::<u32>(), 0);
        let mut pagemap = Pagemap::open(std::process::id()).unwrap();
        if pagemap.has_scan() {
            let mut out = vec![Residence::Absent; 1200];
            pagemap.residences(first, &mut out).unwrap();
            assert!(out.iter().enumerate().all(|(page, residence)| residence.is_present() == (page < 600)));
        }
    }

    #[test]
    fn more_runs_than_one_call_returns_are_all_found() {
        let mut memory = memmap2::MmapMut::map_anon(2048 * 4096).unwrap();
        for page in (0..2048).step_by(2) {
            memory[page * 4096] = 1;
        }
        let first = Vpn::of_address(memory.as_ptr() as u64);
        let mut pagemap = Pagemap::open(std::process::id()).unwrap();
        let mut out = vec![Residence::Absent; 2048];
        pagemap.residences(first, &mut out).unwrap();
        assert!(out.iter().enumerate().all(|(page, residence)| residence.is_present() == (page % 2 == 0)));
    }

    #[test]
    fn an_entry_is_taken_apart_by_its_bits() {
        let entry = PagemapEntry((1 << 63) | (1 << 56) | 0x1234);
        assert!(entry.present() && entry.exclusive() && !entry.swapped() && !entry.file_or_shared());
        assert_eq!(entry.frame(), Some(0x1234));
        assert_eq!(PagemapEntry((1 << 62) | 0x55).frame(), None, "a swap entry has no frame");
        assert_eq!(PagemapEntry(1 << 62).residence(), Residence::Swapped);
        assert_eq!(PagemapEntry((1 << 62) | (1 << 61) | (0x77 << 5) | 3).swap_slot(), SwapSlot::new(3, 0x77));
        assert_eq!(PagemapEntry(1 << 62).swap_slot(), None, "not shown without the rights");
        assert_eq!(entry.swap_slot(), None, "a present page has none");
    }
}
