//! Inputs made from good ones.
//!
//! In: a stream of words, good inputs, words of the format. Out: bytes. Must not: know a format; what guards one is repaired in `seal`.

use terrace_core::random::SplitMix64;

/// The longest input: what is promised of memory holds up to 1 MiB.
pub(crate) const LONGEST: usize = 1 << 20;

/// Numbers at which decoders turn.
const EDGES: [u64; 14] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 40,
    (1 << 57) - 1,
    i64::MAX as u64,
    u64::MAX,
];

pub(crate) struct Mutator<'a> {
    pub(crate) random: SplitMix64,
    /// Words that the format knows.
    pub(crate) words: &'a [&'a str],
}

impl Mutator<'_> {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.random.next() % bound.max(1) as u64) as usize
    }

    /// Changes `bytes` in one to eight places; `others` lend their parts.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        for _ in 0..1 + self.below(8).min(self.below(8)) {
            self.once(bytes, others);
        }
        bytes.truncate(LONGEST);
    }

    fn once(&mut self, bytes: &mut Vec<u8>, others: &[Vec<u8>]) {
        let at = self.below(bytes.len() + 1);
        match self.below(12) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            2 if at < bytes.len() => bytes[at] = self.random.next() as u8,
            3 => {
                let width = [1, 2, 4, 8][self.below(4)];
                let edge = EDGES[self.below(EDGES.len())].wrapping_add(self.below(3) as u64).wrapping_sub(1);
                if let Some(place) = bytes.get_mut(at..at + width) {
                    place.copy_from_slice(&edge.to_le_bytes()[..width]);
                }
            }
            4 => {
                let end = (at + 1 + self.below(32)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            5 => {
                let end = (at + 1 + self.below(64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let times = if self.below(8) == 0 { 1 + self.below(2000) } else { 1 + self.below(4) };
                let room = LONGEST.saturating_sub(bytes.len()) / part.len().max(1);
                let part = part.repeat(times.min(room));
                bytes.splice(at..at, part);
            }
            6 => bytes.truncate(at),
            7 => {
                if let Some(other) = others.get(self.below(others.len())) {
                    let from = self.below(other.len() + 1);
                    let end = (from + 1 + self.below(256)).min(other.len());
                    let part = other[from.min(end)..end].to_vec();
                    bytes.splice(at..at, part);
                }
            }
            8 => {
                if let Some(word) = self.words.get(self.below(self.words.len())) {
                    bytes.splice(at..at, word.bytes());
                }
            }
            // A number in text, by another.
            9 | 10 => {
                let digit = |byte: &u8| byte.is_ascii_hexdigit();
                if let Some(from) = bytes[at..].iter().position(digit).map(|from| at + from) {
                    let end = bytes[from..].iter().position(|byte| !digit(byte)).map_or(bytes.len(), |end| from + end);
                    let edge = EDGES[self.below(EDGES.len())];
                    let text = if self.below(2) == 0 { edge.to_string() } else { format!("{edge:x}") };
                    bytes.splice(from..end, text.into_bytes());
                }
            }
            _ => {
                let byte = self.random.next() as u8;
                bytes.insert(at, byte);
            }
        }
    }
}
