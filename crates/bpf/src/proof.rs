//! What the search for the kernel's map of physical memory is proven by, and where physical memory ends.
//!
//! In: random bytes of the kernel, /proc/zoneinfo. Out: pages of this process that hold them ([`Marks`]). Must not: leave a copy of the
//! bytes anywhere but in those pages: the program gets them inverted, so that a walk that goes wrong cannot end at its own request.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

use memmap2::{Advice, MmapMut};

use crate::BpfError;

/// The C source's MARKS: four pages, each below a page table of its own. A wrong start of the map would have to lead to all of them.
pub(crate) const MARKS: usize = 4;
/// Words of a mark: 32 random bytes.
pub(crate) const MARK_WORDS: usize = 4;
/// One mark in each 2 MiB.
const MARK_STRIDE: usize = 2 << 20;
/// Where in its page a mark lies: not where the request holds its copy.
const MARK_OFFSET: usize = 2048;
const PAGE_BYTES: usize = 4096;

/// The C source's `struct proof`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Proof {
    address: u64,
    inverted: [[u64; MARK_WORDS]; MARKS],
}

/// Pages that hold random bytes of this start.
#[derive(Debug)]
pub(crate) struct Marks {
    memory: MmapMut,
}

impl Marks {
    /// Draws the bytes and writes them to fresh pages, which stay in memory where the limit on locked memory allows.
    pub(crate) fn draw() -> Result<Marks, BpfError> {
        let mut memory = MmapMut::map_anon(MARKS * MARK_STRIDE)
            .map_err(|source| BpfError::Call { call: "mmap of the search's marks", source })?;
        // Any page size can be walked; a small one need not be cleared to 2 MiB. Kernels without huge pages refuse.
        let _ = memory.advise(Advice::NoHugePage);
        for mark in 0..MARKS {
            let at = mark * MARK_STRIDE + MARK_OFFSET;
            fill_random(&mut memory[at..at + MARK_WORDS * 8])?;
            // A page that is not locked is seldom taken away within microseconds, and then the search is repeated.
            let page = memory[mark * MARK_STRIDE..].as_ptr();
            // SAFETY: one whole page of the mapping that was just made; locking changes no content.
            let locked = unsafe { libc::mlock(page.cast(), PAGE_BYTES) };
            if locked != 0 {
                tracing::debug!("a page of the search is not locked: {}", io::Error::last_os_error());
            }
        }
        Ok(Marks { memory })
    }

    /// What the program compares with.
    pub(crate) fn proof(&self) -> Proof {
        let mut proof = Proof { address: self.memory.as_ptr().addr() as u64 + MARK_OFFSET as u64, ..Proof::default() };
        for (mark, words) in proof.inverted.iter_mut().enumerate() {
            let at = mark * MARK_STRIDE + MARK_OFFSET;
            for (word, bytes) in words.iter_mut().zip(self.memory[at..].as_chunks::<8>().0) {
                *word = !u64::from_ne_bytes(*bytes);
            }
        }
        proof
    }
}

fn fill_random(bytes: &mut [u8]) -> Result<(), BpfError> {
    // SAFETY: the kernel writes at most as many bytes as the slice has. Up to 256 come all at once (getrandom(2)).
    let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if drawn == bytes.len() as isize {
        Ok(())
    } else {
        Err(BpfError::Call { call: "getrandom", source: io::Error::last_os_error() })
    }
}

/// The physical address where memory ends, by the kernel's list of zones.
pub(crate) fn memory_end() -> Result<u64, BpfError> {
    let path = Path::new("/proc/zoneinfo");
    let text = std::fs::read_to_string(path)
        .map_err(|source| BpfError::Call { call: "read /proc/zoneinfo for where memory ends", source })?;
    end_of_zones(&text).ok_or_else(|| BpfError::Call {
        call: "read /proc/zoneinfo for where memory ends",
        source: io::Error::new(io::ErrorKind::InvalidData, "it lists no zone with `spanned` and `start_pfn`"),
    })
}

/// The end of the last zone that has memory: its first page and how many it spans. Zones without memory have no first page.
fn end_of_zones(text: &str) -> Option<u64> {
    let mut spanned = 0u64;
    let mut end = None;
    for line in text.lines() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("spanned") {
            spanned = rest.trim().parse().ok()?;
        } else if let Some(rest) = line.strip_prefix("start_pfn:") {
            let first: u64 = rest.trim().parse().ok()?;
            end = end.max(Some(first.checked_add(spanned)?.checked_mul(PAGE_BYTES as u64)?));
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_ends_where_the_last_zone_with_memory_does() {
        let zones = "Node 0, zone      DMA\n  pages free     3840\n        spanned  4095\n        present  3998\n  start_pfn:           1\n\
                     Node 0, zone   Normal\n        spanned  1048576\n  start_pfn:           1048576\n\
                     Node 1, zone  Movable\n        spanned  0\n        present  0\n";
        assert_eq!(end_of_zones(zones), Some(2097152 * 4096));
        assert_eq!(end_of_zones("Node 0, zone  Movable\n        spanned  0\n"), None);
        assert_eq!(end_of_zones("  spanned x\n"), None);
    }

    #[test]
    fn this_machine_says_where_its_memory_ends() {
        let Ok(end) = memory_end() else {
            println!("SKIPPED this_machine_says_where_its_memory_ends: no /proc/zoneinfo");
            return;
        };
        let status = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total: u64 = status.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(end >= total * 1024, "{end:#x} is less than MemTotal");
    }

    #[test]
    fn marks_differ_from_start_to_start_and_are_handed_over_inverted() {
        let (first, second) = (Marks::draw().unwrap(), Marks::draw().unwrap());
        let (one, other) = (first.proof(), second.proof());
        let words = |proof: Proof| proof.inverted.into_iter().flatten().collect::<Vec<u64>>();
        assert!(words(one).iter().all(|word| !words(other).contains(word)), "the same bytes at two starts");
        let at = MARK_STRIDE + MARK_OFFSET;
        assert_eq!(first.memory[at..at + 8], (!one.inverted[1][0]).to_ne_bytes());
        assert_eq!(one.address % PAGE_BYTES as u64, MARK_OFFSET as u64);
    }
}
