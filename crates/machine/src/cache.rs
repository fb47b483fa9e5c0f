//! The last-level cache as a filter: which accesses reach memory, and which dirty lines come back out.
//!
//! In: line numbers, reads and writes. Out: hit, or miss with the line that had to be written back. Must not: know
//! tiers; the driver asks where the lines lie.
//!
//! Upper cache levels are not modelled apart: they are smaller, inclusive in effect for what concerns memory traffic,
//! and their hits cost the program time that the workload's own compute time already holds.

use terrace_core::units::Bytes;

use crate::associative::{Associative, MAX_WAYS, Outcome};

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

/// An access to a line: its number, and whether it is a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineUse(u64);

impl LineUse {
    /// A use of a line.
    #[inline(always)]
    pub const fn new(line: u64, write: bool) -> LineUse {
        LineUse(line << 1 | write as u64)
    }

    /// The line.
    #[inline(always)]
    pub const fn line(self) -> u64 {
        self.0 >> 1
    }

    /// Whether it is a store.
    #[inline(always)]
    pub const fn write(self) -> bool {
        self.0 & 1 != 0
    }
}

/// One miss of a run of accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    at: u32,
    victim: u32,
}

impl Missed {
    const DIRTY: u32 = 1 << 31;

    /// Which access of the run.
    #[inline(always)]
    pub const fn at(self) -> usize {
        (self.at & !Missed::DIRTY) as usize
    }

    /// The same miss in a longer run, before which `accesses` others stand.
    #[inline(always)]
    #[must_use]
    pub const fn later_by(self, accesses: usize) -> Missed {
        Missed { at: self.at + accesses as u32, ..self }
    }

    /// The same miss in the part of a run that begins with its access `first`.
    #[inline(always)]
    #[must_use]
    pub const fn from(self, first: usize) -> Missed {
        Missed { at: self.at - first as u32, ..self }
    }

    /// The dirty line that left, if one did, when `line` came in.
    #[inline(always)]
    pub fn writeback(self, line: u64) -> Option<u64> {
        // The upper bits of a line number are those of the access that evicts it, short of a footprint beyond 256 GiB.
        (self.at & Missed::DIRTY != 0).then_some(line & !u64::from(u32::MAX) | u64::from(self.victim))
    }
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
    #[inline(always)]
    pub fn prefetch(&self, line: u64) {
        self.table.prefetch(line);
    }

    /// One access.
    #[inline]
    pub fn access(&mut self, line: u64, write: bool) -> Filtered {
        let set = self.table.set_of(line);
        let Outcome { hit, victim, dirty } = match self.table.vectors() {
            1 => self.table.access_in::<1>(set, line as u32, write),
            3 => self.table.access_in::<3>(set, line as u32, write),
            _ => self.table.access_in::<4>(set, line as u32, write),
        };
        if hit {
            return Filtered::Hit;
        }
        self.misses += 1;
        self.writebacks += u64::from(dirty);
        let missed = Missed { at: u32::from(dirty) << 31, victim };
        Filtered::Miss { writeback: missed.writeback(line) }
    }

    /// A run of fewer than 2^31 accesses, in order. Fills `missed` from the front with those that go to memory and
    /// returns how many.
    ///
    /// # Panics
    /// When `missed` is shorter than `uses`.
    pub fn run(&mut self, uses: &[LineUse], missed: &mut [Missed]) -> usize {
        match self.table.vectors() {
            1 => self.run_in::<1>(uses, missed),
            3 => self.run_in::<3>(uses, missed),
            _ => self.run_in::<4>(uses, missed),
        }
    }

    #[inline(never)]
    fn run_in<const VECTORS: usize>(&mut self, uses: &[LineUse], missed: &mut [Missed]) -> usize {
        let missed = &mut missed[..uses.len()];
        let mut count = 0;
        let mut writebacks = 0;
        for (at, used) in uses.iter().enumerate() {
            let set = self.table.set_of(used.line());
            let Outcome { hit, victim, dirty } = self.table.access_in::<VECTORS>(set, used.line() as u32, used.write());
            // Written down always and kept only if it missed: whether it did cannot be foretold, so there is no branch.
            // An empty way is never dirty.
            missed[count] = Missed { at: at as u32 | u32::from(dirty) << 31, victim };
            count += usize::from(!hit);
            writebacks += u64::from(dirty);
        }
        self.misses += count as u64;
        self.writebacks += writebacks;
        count
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
