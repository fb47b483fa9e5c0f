//! Media with an access unit larger than a cache line: how many bytes an access really moves.
//!
//! In: lines read or written on a tier. Out: bytes. Must not: hold data or time.
//!
//! Optane moves 256 bytes for each access; neighbouring lines that are wanted soon after are served from a small buffer. So a
//! stream pays for its bytes and a random access for four times its bytes. Reads and writes have a buffer each: a line that was read
//! makes no write cheaper. A unit in the write buffer was dirtied by a line that left the cache; its other lines join it, and it is
//! written once.
//!
//! The read buffer keeps its size on a machine that is scaled down, since what it joins does not shrink: the lines of a unit in which a
//! thread streams are next to each other in time at every scale, and there are as many streams. The write buffer shrinks: what comes to it left
//! the last-level cache, whose sets evict out of step, so that the lines of a unit leave it as far apart as the cache is large. At full size
//! that is far beyond what the buffer holds: on Optane, plain stores in order without flushes write four times their bytes (effective write ratio 0.26; Yang
//! et al., FAST'20, recalled, unverified). What does shrink for both is the time until a line comes again. A line that comes a second time to a unit in the buffer left the cache and came back in between, for which at full
//! size the buffer is far too small: it moves the unit again.

use crate::cache::{LINE_BYTES, LINE_SHIFT};
use crate::preset::Tier;
use crate::scale::Scale;

/// One buffer. Direct-mapped: an approximation of the device's own, whose replacement is not published. A slot holds a unit (upper half) and
/// the lines of it that were served (lower half).
#[derive(Clone, Debug)]
struct Buffer(Vec<u64>);

impl Buffer {
    /// Whether an access to a line moves its unit, or is joined to one that did. Free of branches: which tier an access goes to cannot be
    /// foretold.
    #[inline(always)]
    fn moves(&mut self, line: u64, line_to_unit: u32, buffered: bool) -> bool {
        let unit = (line >> line_to_unit) as u32;
        let bit = 1u64 << (line & ((1 << line_to_unit) - 1) & 31);
        let mixed = unit.wrapping_mul(0x9e37_79b9);
        let slot = ((u64::from(mixed) * self.0.len() as u64) >> 32) as usize;
        let held = self.0[slot];
        let joins = (held >> 32 == u64::from(unit)) & (held & bit == 0) & buffered;
        let before = if joins { held } else { u64::from(unit) << 32 };
        self.0[slot] = before | bit;
        !joins
    }
}

/// The buffers of one tier.
#[derive(Clone, Debug)]
pub struct Media {
    unit_bytes: u32,
    line_to_unit: u32,
    /// Whether units are larger than a line. Media whose are not have one slot that nobody asks.
    buffered: bool,
    reads: Buffer,
    writes: Buffer,
}

impl Media {
    /// The medium of a tier of a machine that is scaled down by so much.
    pub fn new(tier: &Tier, scale: Scale) -> Media {
        let unit = tier.access_unit.get();
        let buffered = unit > LINE_BYTES;
        let slots = if buffered { (tier.unit_buffer.get() / unit).max(1) } else { 1 };
        let empty = |slots: u64| Buffer(vec![u64::MAX; slots as usize]);
        Media {
            unit_bytes: unit as u32,
            line_to_unit: unit.trailing_zeros() - LINE_SHIFT,
            buffered,
            reads: empty(slots),
            writes: empty(scale.count(slots, 1)),
        }
    }

    /// Bytes that one movement moves.
    pub fn unit_bytes(&self) -> u32 {
        self.unit_bytes
    }

    /// Bytes moved for a line that is read.
    #[inline]
    pub fn read_bytes(&mut self, line: u64) -> u32 {
        if self.reads_unit(line) { self.unit_bytes } else { 0 }
    }

    /// Bytes moved for a line that is written.
    #[inline]
    pub fn written_bytes(&mut self, line: u64) -> u32 {
        if self.writes.moves(line, self.line_to_unit, self.buffered) { self.unit_bytes } else { 0 }
    }

    /// Whether reading a line moves a unit, or is served by the buffer.
    #[inline(always)]
    pub fn reads_unit(&mut self, line: u64) -> bool {
        self.reads.moves(line, self.line_to_unit, self.buffered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Machine;

    fn optane() -> Media {
        Media::new(&Machine::preset("optane-6252").unwrap().tiers[1], Scale::FULL)
    }

    #[test]
    fn a_stream_pays_for_its_bytes_and_random_lines_for_four_times_theirs() {
        let mut optane = optane();
        let stream: u64 = (0..4000).map(|line| u64::from(optane.read_bytes(line))).sum();
        assert_eq!(stream, 4000 * 64);
        let written: u64 = (0..4000).map(|line| u64::from(optane.written_bytes(line))).sum();
        assert_eq!(written, 4000 * 64);
        let random: u64 =
            (0..4000u64).map(|n| u64::from(optane.read_bytes(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20))).sum();
        assert!(random > 4000 * 250, "{random}");
        let mut dram = Media::new(&Machine::preset("optane-6252").unwrap().tiers[0], Scale::FULL);
        assert_eq!(dram.read_bytes(1) + dram.read_bytes(1), 128);
    }

    #[test]
    fn a_unit_that_was_read_makes_no_write_cheaper() {
        let mut optane = optane();
        (0..400).for_each(|line| {
            optane.read_bytes(line);
        });
        let written: u64 = (0..400).map(|line| u64::from(optane.written_bytes(line))).sum();
        assert_eq!(written, 400 * 64);
    }

    #[test]
    fn lines_that_leave_the_cache_out_of_order_are_joined_as_little_on_a_small_machine_as_on_a_whole_one() {
        // A sweep of stores whose lines leave the cache each as late as chance has it, by up to a third of what the cache holds.
        let amplified = |scale: u32, cache_lines: u64| {
            let scale = Scale::new(scale).unwrap();
            let mut optane = Media::new(&Machine::preset("optane-6252").unwrap().tiers[1], scale);
            let mut left: Vec<(u64, u64)> = (0..4 * cache_lines)
                .map(|line| {
                    let mixed = line.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let late = ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) % (cache_lines / 3);
                    (line + late, line)
                })
                .collect();
            left.sort_unstable();
            let bytes: u64 = left.iter().map(|(_, line)| u64::from(optane.written_bytes(*line))).sum();
            bytes as f64 / (left.len() as f64 * 64.0)
        };
        // 35.75 MiB are 585,728 lines.
        for scale in [16, 256, 1024, 4096] {
            let times = amplified(scale, 585_728 / u64::from(scale));
            assert!((3.6..=4.0).contains(&times), "1:{scale}: {times}");
        }
    }

    #[test]
    fn a_line_that_leaves_the_cache_again_is_written_again_however_small_the_program() {
        // Ten passes over less than the buffer holds, as of a program scaled to it: each pass writes all of it.
        for lines in [40, 400, 1200, 40_000] {
            let mut optane = optane();
            let bytes: u64 = (0..10).flat_map(|_| 0..lines).map(|line| u64::from(optane.written_bytes(line))).sum();
            assert_eq!(bytes, 10 * lines * 64, "{lines} lines");
            let bytes: u64 = (0..10).flat_map(|_| 0..lines).map(|line| u64::from(optane.read_bytes(line))).sum();
            assert_eq!(bytes, 10 * lines * 64, "{lines} lines");
        }
    }
}
