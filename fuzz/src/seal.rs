//! Repairs what guards a format, so that a changed input comes to the decoders behind its checksums.
//!
//! In: an input in its open form. Out: what a decoder reads. Must not: make an input whole beyond its checksums, lengths and offsets.
//!
//! The open form of a trace: u32 length of the header's text, the text; then for each block u8 kind, u32 accesses, u32 events, u16 how
//! often its bytes are repeated, u32 their length, the bytes as they are before they are packed. Numbers are little-endian; a length beyond the end means all that is left.

use terrace_trace::{SIGNATURE, VERSION};

/// The marks of a block and of the end, as crates/trace has them.
const BLOCK_MARK: u32 = 0x4b4c_4254;
const TRAILER_MARK: u32 = 0x444e_4554;
/// The most bytes a block is repeated to.
const MOST: usize = 1 << 26;

/// Reads an open form from its front; what is cut off reads as zeros and nothing.
struct Open<'a>(&'a [u8]);

impl<'a> Open<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, width: usize) -> u32 {
        self.take(width).iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
    }
}

/// A trace of its open form.
pub(crate) fn trace(open: &[u8]) -> Vec<u8> {
    let mut open = Open(open);
    let text = open.number(4) as usize;
    let text = open.take(text);
    let mut bytes = SIGNATURE.to_vec();
    let several = text.windows(16).any(|part| part == b"\"processes\":true");
    bytes.extend(if several { VERSION } else { 1 }.to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text);
    let checksum = crc32fast::hash(&bytes);
    bytes.extend(checksum.to_le_bytes());
    let (mut index_at, mut accesses) = (bytes.len() as u64, 0);
    while !open.0.is_empty() {
        let (kind, here, events) = (open.number(1) as u8, open.number(4), open.number(4));
        let (times, length) = (open.number(2).max(1) as usize, open.number(4) as usize);
        let part = open.take(length);
        let raw = part.repeat(times.min(MOST / part.len().max(1)).max(1));
        // An empty frame where zstd refuses, which it does only without memory.
        let stored = zstd::bulk::compress(&raw, 1).unwrap_or_default();
        if kind == 3 {
            index_at = bytes.len() as u64;
        } else if kind == 1 {
            accesses += u64::from(here);
        }
        let start = bytes.len();
        bytes.extend(BLOCK_MARK.to_le_bytes());
        bytes.extend([kind, 0, 0, 0]);
        for word in [here, events, raw.len() as u32, stored.len() as u32, crc32fast::hash(&stored)] {
            bytes.extend(word.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes[start..]);
        bytes.extend(checksum.to_le_bytes());
        bytes.extend(stored);
    }
    let start = bytes.len();
    bytes.extend(index_at.to_le_bytes());
    bytes.extend(accesses.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[start..]);
    bytes.extend(checksum.to_le_bytes());
    bytes.extend(TRAILER_MARK.to_le_bytes());
    bytes
}

/// The open form of a whole trace; nothing of what is none.
pub(crate) fn open_trace(bytes: &[u8]) -> Option<Vec<u8>> {
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?));
    let length = word(12)? as usize;
    let mut open = (length as u32).to_le_bytes().to_vec();
    open.extend(bytes.get(16..16 + length)?);
    let mut at = 16 + length + 4;
    while word(at)? == BLOCK_MARK {
        let (raw_bytes, stored) = (word(at + 16)? as usize, word(at + 20)? as usize);
        let raw = zstd::bulk::decompress(bytes.get(at + 32..at + 32 + stored)?, raw_bytes).ok()?;
        open.push(*bytes.get(at + 4)?);
        open.extend(bytes.get(at + 8..at + 16)?);
        open.extend(1_u16.to_le_bytes());
        open.extend((raw.len() as u32).to_le_bytes());
        open.extend(&raw);
        at += 32 + stored;
    }
    Some(open)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_trace_is_what_it_was_after_it_was_opened_and_sealed() {
        let trace = crate::seeds::trace().unwrap();
        let again = super::trace(&super::open_trace(&trace).unwrap());
        assert_eq!(again, trace);
    }
}
