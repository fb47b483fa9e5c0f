//! The index at the end of a trace: where each block lies, and what the whole holds.
//!
//! In: what a writer wrote, or a file that can seek. Out: the index block and the 24-byte trailer that finds it, or
//! an [`Index`]. Must not: be needed. A trace without one (cut off, or still being written) is read from its front.
//!
//! The trailer: u64 offset of the index block, u64 accesses in the trace, u32 CRC-32 of those 16 bytes, u32 mark.

use std::io::{Read, Seek, SeekFrom};

use terrace_core::units::Time;

use crate::block::{BlockKind, FRAME_BYTES, Frame, Unpacker, decode_map};
use crate::error::TraceError;
use crate::header::{Header, read_up_to};
use crate::map::{MapBudget, PageMap};
use crate::varint::{Cursor, put};

pub(crate) const TRAILER_BYTES: usize = 24;
const TRAILER_MARK: u32 = 0x444e_4554;

/// Totals of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    /// Accesses.
    pub accesses: u64,
    /// Writes among them.
    pub writes: u64,
    /// Events.
    pub events: u64,
    /// One more than the highest page id in an access or event: what an array over pages must hold.
    pub page_ids: u64,
    /// One more than the highest thread number.
    pub threads: u32,
    /// Time of the earliest access or event.
    pub first_time: Time,
    /// Time of the latest access or event.
    pub last_time: Time,
}

/// One block in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BlockEntry {
    /// Where its frame begins in the file.
    pub offset: u64,
    /// What it holds.
    pub kind: BlockKind,
    /// Accesses in it.
    pub accesses: u32,
    /// Earliest time in it.
    pub first_time: Time,
    /// Latest time in it.
    pub last_time: Time,
}

/// Where each block lies, and the totals.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Index {
    /// Every block but the index itself, by offset.
    pub blocks: Vec<BlockEntry>,
    /// Totals of the trace.
    pub summary: Summary,
}

impl Index {
    pub(crate) fn encode(&self, raw: &mut Vec<u8>) {
        raw.clear();
        let Summary { accesses, writes, events, page_ids, threads, first_time, last_time } = self.summary;
        let totals =
            [accesses, writes, events, page_ids, u64::from(threads), first_time.as_nanos(), last_time.as_nanos()];
        totals.into_iter().for_each(|value| put(raw, value));
        put(raw, self.blocks.len() as u64);
        let mut before = 0;
        for block in &self.blocks {
            put(raw, block.offset - before);
            before = block.offset;
            raw.push(if block.kind == BlockKind::Map { 2 } else { 1 });
            put(raw, u64::from(block.accesses));
            put(raw, block.first_time.as_nanos());
            put(raw, block.last_time.as_nanos());
        }
    }

    /// Decodes an index at offset `at` of a trace, which limits the number of frames before it.
    pub(crate) fn decode(raw: &[u8], at: u64) -> Option<Index> {
        let mut from = Cursor::new(raw);
        let summary = Summary {
            accesses: from.number()?,
            writes: from.number()?,
            events: from.number()?,
            page_ids: from.number()?,
            threads: from.number32()?,
            first_time: Time::from_nanos(from.number()?),
            last_time: Time::from_nanos(from.number()?),
        };
        let count = from.number()?;
        if count > at / FRAME_BYTES as u64 {
            return None;
        }
        let mut blocks = Vec::new();
        let mut offset = 0_u64;
        for _ in 0..count {
            offset = offset.checked_add(from.number()?)?;
            blocks.push(BlockEntry {
                offset,
                kind: BlockKind::from_code(from.take(1)?[0])?,
                accesses: from.number32()?,
                first_time: Time::from_nanos(from.number()?),
                last_time: Time::from_nanos(from.number()?),
            });
        }
        from.is_empty().then_some(Index { blocks, summary })
    }

    /// Reads header and index of a trace without reading its records. The position of `input` is left anywhere.
    ///
    /// # Errors
    /// As for a [`crate::Reader`]; [`TraceError::Truncated`] where the trace has no whole trailer, in which case the
    /// records can still be read from the front.
    pub fn read(input: &mut (impl Read + Seek)) -> Result<(Header, Index), TraceError> {
        seek(input, SeekFrom::Start(0))?;
        let (header, head_bytes) = Header::read(input)?;
        let end = seek(input, SeekFrom::End(0))?;
        let truncated = TraceError::Truncated { offset: end, end, within: "the index" };
        let trailer_at = end.checked_sub(TRAILER_BYTES as u64).filter(|&at| at >= head_bytes + FRAME_BYTES as u64);
        let trailer_at = trailer_at.ok_or_else(|| truncated.clone())?;
        seek(input, SeekFrom::Start(trailer_at))?;
        let mut trailer = [0; TRAILER_BYTES];
        read_up_to(input, &mut trailer, trailer_at)?;
        let trailer = Trailer::decode(&trailer).ok_or(truncated)?;
        let index_at = trailer.index_offset;
        let corrupt = |reason: &str| TraceError::corrupt(index_at, "the index", reason);
        let room = trailer_at.checked_sub(index_at).and_then(|room| usize::try_from(room).ok());
        let room =
            room.filter(|&room| room >= FRAME_BYTES).ok_or_else(|| corrupt("the trailer points past the end"))?;
        seek(input, SeekFrom::Start(index_at))?;
        let mut frame = [0; FRAME_BYTES];
        read_up_to(input, &mut frame, index_at)?;
        let frame = Frame::decode(&frame).map_err(corrupt)?;
        if frame.kind != BlockKind::Index || frame.stored_bytes as usize != room - FRAME_BYTES {
            return Err(corrupt("the trailer does not point at an index"));
        }
        let mut stored = vec![0; frame.stored_bytes as usize];
        read_up_to(input, &mut stored, index_at + FRAME_BYTES as u64)?;
        let mut unpacker = Unpacker::new()?;
        unpacker.unpack(&frame, &stored).map_err(|error| corrupt(&error.to_string()))?;
        let index = Index::decode(&unpacker.raw, index_at).ok_or_else(|| corrupt("it makes no sense"))?;
        if index.summary.accesses != trailer.accesses {
            return Err(corrupt("it disagrees with the trailer about the number of accesses"));
        }
        Ok((header, index))
    }

    /// Reads the page map of a trace without its records. The position of `input` is left anywhere.
    ///
    /// # Errors
    /// As for a [`crate::Reader`].
    pub fn map(&self, input: &mut (impl Read + Seek)) -> Result<PageMap, TraceError> {
        let (mut map, mut budget) = (PageMap::default(), MapBudget::new());
        let mut unpacker = Unpacker::new()?;
        for block in self.blocks.iter().filter(|block| block.kind == BlockKind::Map) {
            let corrupt = |reason: &str| TraceError::corrupt(block.offset, BlockKind::Map.name(), reason);
            seek(input, SeekFrom::Start(block.offset))?;
            let mut frame = [0; FRAME_BYTES];
            read_up_to(input, &mut frame, block.offset)?;
            let frame = Frame::decode(&frame).map_err(corrupt)?;
            if frame.kind != BlockKind::Map {
                return Err(corrupt("the index points at something else"));
            }
            let mut stored = vec![0; frame.stored_bytes as usize];
            read_up_to(input, &mut stored, block.offset + FRAME_BYTES as u64)?;
            unpacker.unpack(&frame, &stored).map_err(|error| corrupt(&error.to_string()))?;
            let take = |piece| {
                budget.take(&piece)?;
                map.add(&piece);
                Ok(())
            };
            decode_map(&unpacker.raw, take).map_err(corrupt)?;
        }
        Ok(map)
    }
}

fn seek(input: &mut impl Seek, to: SeekFrom) -> Result<u64, TraceError> {
    input.seek(to).map_err(|error| TraceError::io("seeking", 0, &error))
}

/// The last bytes of a whole trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) index_offset: u64,
    pub(crate) accesses: u64,
}

impl Trailer {
    pub(crate) fn encode(&self) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..8].copy_from_slice(&self.index_offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.accesses.to_le_bytes());
        let checksum = crc32fast::hash(&bytes[..16]);
        bytes[16..20].copy_from_slice(&checksum.to_le_bytes());
        bytes[20..].copy_from_slice(&TRAILER_MARK.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; TRAILER_BYTES]) -> Option<Trailer> {
        let (offset, rest) = bytes.split_first_chunk::<8>()?;
        let (accesses, rest) = rest.split_first_chunk::<8>()?;
        let (checksum, mark) = rest.split_first_chunk::<4>()?;
        let whole = *checksum == crc32fast::hash(&bytes[..16]).to_le_bytes() && mark == TRAILER_MARK.to_le_bytes();
        whole.then(|| Trailer { index_offset: u64::from_le_bytes(*offset), accesses: u64::from_le_bytes(*accesses) })
    }
}
