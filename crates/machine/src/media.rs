//! Media with an access unit larger than a cache line: how many bytes an access really moves.
//!
//! In: lines read or written on a tier. Out: bytes. Must not: hold data or time.
//!
//! Optane moves 256 bytes for each access; neighbouring lines touched soon after are served from a small buffer. So a
//! stream pays for its bytes and a random access for four times its bytes.

use crate::cache::{LINE_BYTES, LINE_SHIFT};
use crate::preset::Tier;

/// The buffer of one tier. Direct-mapped: an approximation of the device's own, whose replacement is not published.
#[derive(Clone, Debug)]
pub struct Media {
    unit_bytes: u32,
    line_to_unit: u32,
    /// Whether units are larger than a line. Media whose are not have one slot that nobody asks.
    buffered: bool,
    slots: Vec<u32>,
}

impl Media {
    /// The medium of a tier.
    pub fn new(tier: &Tier) -> Media {
        let unit = tier.access_unit.get();
        let buffered = unit > LINE_BYTES;
        let slots = if buffered { (tier.unit_buffer.get() / unit).max(1) } else { 1 };
        Media {
            unit_bytes: unit as u32,
            line_to_unit: unit.trailing_zeros() - LINE_SHIFT,
            buffered,
            slots: vec![u32::MAX; slots as usize],
        }
    }

    /// Bytes that one movement moves.
    pub fn unit_bytes(&self) -> u32 {
        self.unit_bytes
    }

    /// Bytes moved for an access to a line.
    #[inline]
    pub fn bytes(&mut self, line: u64) -> u32 {
        if self.moves(line) { self.unit_bytes } else { 0 }
    }

    /// Whether an access to a line moves a unit, or is served by the buffer. Free of branches: which tier an access goes
    /// to cannot be foretold.
    #[inline(always)]
    pub fn moves(&mut self, line: u64) -> bool {
        let unit = (line >> self.line_to_unit) as u32;
        let mixed = unit.wrapping_mul(0x9e37_79b9);
        let slot = ((u64::from(mixed) * self.slots.len() as u64) >> 32) as usize;
        let same = std::mem::replace(&mut self.slots[slot], unit) == unit;
        !(same & self.buffered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Machine;

    #[test]
    fn a_stream_pays_for_its_bytes_and_random_lines_for_four_times_theirs() {
        let machine = Machine::preset("optane-6252").unwrap();
        let mut optane = Media::new(&machine.tiers[1]);
        let stream: u64 = (0..4000).map(|line| u64::from(optane.bytes(line))).sum();
        assert_eq!(stream, 4000 * 64);
        let random: u64 =
            (0..4000u64).map(|n| u64::from(optane.bytes(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20))).sum();
        assert!(random > 4000 * 250, "{random}");
        let mut dram = Media::new(&machine.tiers[0]);
        assert_eq!(dram.bytes(1) + dram.bytes(1), 128);
    }
}
