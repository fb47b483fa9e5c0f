//! The stream that `terrace trace import --format hook` reads: its head, its chunks, and what is left out of them.
//!
//! In: accesses as words. Out: bytes in a file or a pipe. Must not: know whose accesses they are, or read a clock.
//!
//! Version 1 is of one process; its recorder for recompiled programs writes the same, so that one importer reads both. Version 2 is of a
//! guest: each chunk says of which process it is, and there are chunks for processes and for how pages are mapped.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

const SIGNATURE: &[u8; 8] = b"TRRHOOK1";
const CHUNK_MARK: u32 = 0x4b48_4352;
/// Accesses of one chunk: 128 KiB.
pub(crate) const CHUNK_WORDS: usize = 16_384;
const ADDRESS_MASK: u64 = (1 << 57) - 1;
const SIZE_SHIFT: u32 = 57;
const WRITE: u64 = 1 << 63;
const LINE_SHIFT: u32 = 6;
/// Set in a cache slot whose line was written.
const DIRTY: u64 = 1 << 63;

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Accesses, a word each.
    Accesses = 1,
    /// Lines of /proc/PID/maps.
    Maps = 2,
    /// A process appears: its number in the guest, and its name.
    Process = 3,
    /// Blocks of 2 MiB that are mapped otherwise than before, a word each: the address, and 1 if one entry maps all of it.
    Sizes = 4,
    /// A process is over; its pages are gone.
    Over = 5,
}

/// Where a chunk belongs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The process, in order of appearance; 0 in version 1.
    pub(crate) process: u32,
    /// The thread.
    pub(crate) thread: u64,
    /// Times of its first and of its last access.
    pub(crate) nanos: (u64, u64),
}

/// The output, shared by all virtual CPUs.
pub(crate) struct Stream {
    output: Mutex<File>,
}

/// Bytes of a cache that is really modelled: a power of two of lines.
pub(crate) fn cache_bytes(asked: u64) -> u64 {
    match asked >> LINE_SHIFT {
        0 => 0,
        lines => lines.next_power_of_two() << LINE_SHIFT,
    }
}

/// An access as a word.
pub(crate) fn word(address: u64, size_shift: u32, write: bool) -> u64 {
    (address & ADDRESS_MASK) | u64::from(size_shift.min(6)) << SIZE_SHIFT | if write { WRITE } else { 0 }
}

impl Stream {
    /// Begins it. `cache_bytes` as [`cache_bytes`] gives it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn begin(path: &Path, version: u32, cache_bytes: u64) -> io::Result<Stream> {
        let mut output = File::options().write(true).create(true).truncate(true).open(path)?;
        let mut head = SIGNATURE.to_vec();
        head.extend([version, 0].map(u32::to_le_bytes).concat());
        head.extend([cache_bytes, u64::from(std::process::id()), 0].map(u64::to_le_bytes).concat());
        output.write_all(&head)?;
        Ok(Stream { output: Mutex::new(output) })
    }

    /// Writes a chunk. If that fails, the program or guest would run on in vain, so it is ended.
    pub(crate) fn chunk(&self, kind: Kind, place: Place, payload: &[u8]) {
        let mut bytes = Vec::with_capacity(48 + payload.len());
        bytes.extend([CHUNK_MARK, kind as u32].map(u32::to_le_bytes).concat());
        bytes.extend([place.thread, place.nanos.0, place.nanos.1].map(u64::to_le_bytes).concat());
        bytes.extend([payload.len() as u32, 0, place.process, 0].map(u32::to_le_bytes).concat());
        bytes.extend_from_slice(payload);
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = output.write_all(&bytes) {
            // The reader has gone, or the disk is full.
            eprintln!("terrace-qemu-plugin: the recording cannot be written: {error}");
            std::process::exit(74);
        }
    }

    /// Writes words as a chunk, and takes them.
    pub(crate) fn words(&self, kind: Kind, place: Place, words: &mut Vec<u64>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.chunk(kind, place, &bytes);
        words.clear();
    }
}

/// What a virtual CPU leaves out: hits of a cache in front of the recorder, and all but one per period of the rest.
///
/// The cache is direct mapped with lines of 64 bytes; what it holds is not written down. A read that hits leaves no trace, a write that
/// hits a line which was only read so far does: the line must be known as written.
pub(crate) struct Filter {
    /// Line number and [`DIRTY`]; `u64::MAX` is empty.
    cache: Vec<u64>,
    period: u64,
    skipped: u64,
}

impl Filter {
    pub(crate) fn new(cache_bytes: u64, period: u64) -> Filter {
        Filter { cache: vec![u64::MAX; (cache_bytes >> LINE_SHIFT) as usize], period, skipped: 0 }
    }

    /// Whether an access is to be written down. `space` tells the same address of two processes apart, below 2^22.
    #[inline]
    pub(crate) fn passes(&mut self, address: u64, space: u64, write: bool) -> bool {
        if !self.cache.is_empty() && self.hits(address >> LINE_SHIFT, space, write) {
            return false;
        }
        self.skipped += 1;
        if self.skipped < self.period {
            return false;
        }
        self.skipped = 0;
        true
    }

    /// Whether the cache serves the access. A line that was only read and is now written counts once more.
    fn hits(&mut self, line: u64, space: u64, write: bool) -> bool {
        // Addresses of programs lie below 2^47, so that 41 bits are a line's. Equal addresses of two processes lie in different slots, as
        // their memory does.
        let line = line | space << 41;
        let slot = (line ^ space.wrapping_mul(0x9e37_79b9)) as usize & (self.cache.len() - 1);
        let held = self.cache[slot];
        let dirty = if write { DIRTY } else { 0 };
        if held != u64::MAX && held & !DIRTY == line {
            let known = held | dirty == held;
            self.cache[slot] = held | dirty;
            return known;
        }
        self.cache[slot] = line | dirty;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(cache_bytes: u64, period: u64, accesses: &[(u64, u64, bool)]) -> Vec<(u64, bool)> {
        let mut filter = Filter::new(cache_bytes, period);
        let kept = accesses.iter().filter(|(address, space, write)| filter.passes(*address, *space, *write));
        kept.map(|(address, _, write)| (*address, *write)).collect()
    }

    #[test]
    fn every_access_is_a_word_with_size_and_direction() {
        let read = word(0x7f00_1234_5678, 3, false);
        assert_eq!(read, 0x7f00_1234_5678 | 3 << SIZE_SHIFT);
        assert_eq!(word(0x7f00_1234_5678, 3, true), read | WRITE);
    }

    #[test]
    fn the_cache_keeps_what_it_holds_and_tells_the_first_write() {
        let accesses = [(64, false), (72, false), (64, true), (64, true), (64 + 4096, false), (64, true)];
        let accesses = accesses.map(|(address, write)| (address, 0, write));
        assert_eq!(passed(4096, 1, &accesses), [(64, false), (64, true), (4160, false), (64, true)]);
    }

    #[test]
    fn the_same_address_of_two_processes_is_two_lines() {
        let accesses = [(64, 0, false), (64, 1, false), (64, 0, false), (64, 1, false)];
        assert_eq!(passed(1 << 16, 1, &accesses).len(), 2, "each misses once");
    }

    #[test]
    fn of_a_period_every_nth_is_kept() {
        let all: Vec<(u64, u64, bool)> = (0..100).map(|page| (page * 4096, 0, false)).collect();
        let kept = passed(0, 10, &all);
        assert_eq!((kept.len(), kept[0].0), (10, 9 * 4096));
    }
}
