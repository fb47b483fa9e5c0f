//! The last-level cache as a filter: which accesses reach memory, and which dirty lines come back out.
//!
//! In: line numbers, reads and writes. Out: hit, or miss with the line that had to be written back. Must not: know
//! tiers; the driver asks where the lines lie.
//!
//! Upper cache levels are not modelled apart: they are smaller, inclusive in effect for what concerns memory traffic,
//! and their hits cost the program time that the workload's own compute time already holds.

use terrace_core::units::Bytes;

use crate::associative::{Associative, Lookup, MAX_WAYS};

/// Bytes of a cache line.
pub const LINE_BYTES: u64 = 64;
/// `log2(LINE_BYTES)`.
pub const LINE_SHIFT: u32 = 6;
/// Lines of a 4 KiB page.
pub const PAGE_LINES: u64 = 64;

/// What became of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filtered {
    /// Served by the cache.
    Hit,
    /// Goes to memory; if a line is named, that dirty line is written back to make room.
    Miss {
        /// The line that leaves dirty.
        writeback: Option<u64>,
    },
}

/// The filter.
///
/// A line is known in its set by the low 32 bits of its number. Up to 256 GiB of footprint that is exact; beyond, two
/// lines 256 GiB apart can be taken for one if the hash puts them into the same set, one time in as many as there are
/// sets.
#[derive(Clone, Debug)]
pub struct Cache {
    table: Associative,
    /// Misses so far.
    pub misses: u64,
    /// Dirty lines that left so far.
    pub writebacks: u64,
}

impl Cache {
    /// A cache of `capacity` and as many ways as the hardware has, up to 16: beyond that, associativity does not matter
    /// to a hashed cache.
    pub fn new(capacity: Bytes, ways: u32) -> Cache {
        let table = Associative::new(capacity.get() / LINE_BYTES, ways.clamp(1, MAX_WAYS));
        Cache { table, misses: 0, writebacks: 0 }
    }

    /// Bytes it can hold.
    pub fn capacity(&self) -> Bytes {
        Bytes::new(self.table.capacity() * LINE_BYTES)
    }

    /// Asks the host to bring the line's set into its cache.
    #[inline]
    pub fn prefetch(&self, line: u64) {
        self.table.prefetch(line);
    }

    /// One access.
    #[inline]
    pub fn access(&mut self, line: u64, write: bool) -> Filtered {
        let set = self.table.set_of(line);
        match self.table.access(set, line as u32, write) {
            Lookup::Hit => Filtered::Hit,
            Lookup::Filled | Lookup::Evicted { dirty: false, .. } => {
                self.misses += 1;
                Filtered::Miss { writeback: None }
            }
            Lookup::Evicted { key, dirty: true } => {
                self.misses += 1;
                self.writebacks += 1;
                // The upper bits of a line number are those of the access that evicts it, short of a footprint beyond
                // 256 GiB.
                Filtered::Miss { writeback: Some(line & !u64::from(u32::MAX) | u64::from(key)) }
            }
        }
    }

    /// Forgets every line, as a flush does.
    pub fn clear(&mut self) {
        self.table.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_misses_once_and_a_scan_of_twice_the_size_misses_nearly_always() {
        let mut cache = Cache::new(Bytes::kib(64), 16);
        let lines = cache.capacity().get() / LINE_BYTES;
        // Half the capacity: a hashed set rarely overflows.
        for _ in 0..4 {
            for line in 0..lines / 2 {
                cache.access(line, false);
            }
        }
        assert!(cache.misses < lines / 2 + lines / 20, "{} misses for {} lines", cache.misses, lines / 2);
        let mut cache = Cache::new(Bytes::kib(64), 16);
        for _ in 0..4 {
            for line in 0..4 * lines {
                cache.access(line, false);
            }
        }
        assert!(cache.misses > 15 * lines, "{} of {}", cache.misses, 16 * lines);
    }

    #[test]
    fn every_dirty_line_is_written_back_exactly_once() {
        let mut cache = Cache::new(Bytes::kib(4), 16);
        let mut back = Vec::new();
        for line in 0..1000 {
            if let Filtered::Miss { writeback: Some(line) } = cache.access(line, line % 3 == 0) {
                back.push(line);
            }
        }
        let total = back.len();
        back.sort_unstable();
        back.dedup();
        assert_eq!(back.len(), total, "no line twice");
        assert!(back.iter().all(|line| line % 3 == 0), "only dirty lines");
        assert!(total as u64 >= 1000 / 3 - 64, "{total} written back; the cache holds 64");
    }
}
