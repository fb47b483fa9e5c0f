//! Blocks: the unit in which a trace is compressed, checked and lost.
//!
//! In: up to [`BLOCK_RECORDS`] accesses with the events between them, or bytes from a file. Out: a framed, compressed
//! block, or its records. Must not: need another block, because a reader may begin at any, nor deliver part of one.
//!
//! On disk, a 32-byte frame: u32 mark, u8 kind, 3 zero bytes, u32 accesses, u32 events, u32 raw bytes, u32 stored
//! bytes, u32 CRC-32 of the stored bytes, u32 CRC-32 of the frame before it. Then the stored bytes, zstd level 1.
//! Raw, an access block is columns, each with its length in front: pages (zigzag varints of the change against the
//! access before; times 64 plus the line where lines are kept), write bits, threads (runs), times (zigzag varints of
//! the change in time units), latencies (varints), events. Columns compress and decode faster than rows.

use terrace_core::units::{PageId, Time};

use crate::error::TraceError;
use crate::header::Header;
use crate::map::MapPiece;
use crate::record::{Access, Change, Event, Pages};
use crate::varint::{Cursor, put, unzigzag, zigzag};

/// Accesses in a full block.
pub const BLOCK_RECORDS: usize = 1 << 16;
/// Most events in a block; a writer ends the block when it holds this many.
pub(crate) const BLOCK_EVENTS: usize = 1 << 14;
/// Bytes of a frame.
pub(crate) const FRAME_BYTES: usize = 32;
const MARK: u32 = 0x4b4c_4254;
/// The most a block may unpack to. A writer ends a block of records below 4 MiB and one of the map at 1 MiB and a piece; the index has
/// some 20 bytes a block, and the longest trace that fits it has a million million accesses.
const LARGEST_RAW: u32 = 1 << 26;
const LARGEST_PART: u32 = 1 << 24;
/// The level that a measurement of real traces chose: 2.1 bytes an access against 1.6 at level 3, at half the time.
const ZSTD_LEVEL: i32 = 1;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockKind {
    /// Accesses and events.
    Records,
    /// Pieces of the page map.
    Map,
    /// The index, the last block of a whole trace.
    Index,
}

impl BlockKind {
    const fn code(self) -> u8 {
        match self {
            BlockKind::Records => 1,
            BlockKind::Map => 2,
            BlockKind::Index => 3,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Option<BlockKind> {
        match code {
            1 => Some(BlockKind::Records),
            2 => Some(BlockKind::Map),
            3 => Some(BlockKind::Index),
            _ => None,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            BlockKind::Records => "a block of records",
            BlockKind::Map => "a block of the page map",
            BlockKind::Index => "the index",
        }
    }
}

/// The fixed part in front of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: BlockKind,
    pub(crate) accesses: u32,
    pub(crate) events: u32,
    pub(crate) raw_bytes: u32,
    pub(crate) stored_bytes: u32,
    pub(crate) checksum: u32,
}

impl Frame {
    pub(crate) fn encode(&self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[4] = self.kind.code();
        let words = [(0, MARK), (8, self.accesses), (12, self.events), (16, self.raw_bytes), (20, self.stored_bytes)];
        for (at, word) in words.into_iter().chain([(24, self.checksum)]) {
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        let own = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; FRAME_BYTES]) -> Result<Frame, &'static str> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        if word(0) != MARK {
            return Err("no block begins here");
        }
        if word(28) != crc32fast::hash(&bytes[..28]) {
            return Err("the checksum of its frame does not match");
        }
        let kind = BlockKind::from_code(bytes[4]).ok_or("its kind is unknown")?;
        let frame = Frame {
            kind,
            accesses: word(8),
            events: word(12),
            raw_bytes: word(16),
            stored_bytes: word(20),
            checksum: word(24),
        };
        let largest = if kind == BlockKind::Index { LARGEST_RAW } else { LARGEST_PART };
        let bounded = frame.raw_bytes <= largest
            && frame.stored_bytes <= LARGEST_RAW + LARGEST_RAW / 128
            && frame.accesses <= BLOCK_RECORDS as u32
            && frame.events <= BLOCK_EVENTS as u32;
        if bounded { Ok(frame) } else { Err("its sizes are impossible") }
    }
}

/// Packs raw bytes into blocks.
pub(crate) struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    /// The frame and stored bytes of the block packed last.
    pub(crate) packed: Vec<u8>,
}

impl Packer {
    pub(crate) fn new() -> Result<Packer, TraceError> {
        let zstd = zstd::bulk::Compressor::new(ZSTD_LEVEL)
            .map_err(|error| TraceError::io("preparing the compressor", 0, &error))?;
        Ok(Packer { zstd, packed: Vec::new() })
    }

    /// Leaves the whole block in `packed`. `offset` is only for the error.
    pub(crate) fn pack(
        &mut self,
        kind: BlockKind,
        counts: (u32, u32),
        raw: &[u8],
        offset: u64,
    ) -> Result<(), TraceError> {
        let largest = if kind == BlockKind::Index { LARGEST_RAW } else { LARGEST_PART };
        let raw_bytes = u32::try_from(raw.len()).ok().filter(|&bytes| bytes <= largest);
        let raw_bytes = raw_bytes.ok_or_else(|| TraceError::Unwritable {
            record: 0,
            reason: format!("{} at byte {offset} would exceed {largest} bytes", kind.name()),
        })?;
        let stored = self.zstd.compress(raw).map_err(|error| TraceError::io("compressing a block", offset, &error))?;
        let frame = Frame {
            kind,
            accesses: counts.0,
            events: counts.1,
            raw_bytes,
            stored_bytes: stored.len() as u32,
            checksum: crc32fast::hash(&stored),
        };
        self.packed.clear();
        self.packed.extend_from_slice(&frame.encode());
        self.packed.extend_from_slice(&stored);
        Ok(())
    }
}

/// Unpacks blocks.
pub(crate) struct Unpacker {
    zstd: zstd::bulk::Decompressor<'static>,
    /// The raw bytes of the block unpacked last.
    pub(crate) raw: Vec<u8>,
}

/// Why a block cannot be unpacked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockError {
    #[error("its checksum does not match")]
    Checksum,
    #[error("{0}")]
    Zstd(std::io::Error),
    #[error("it unpacks to {got} bytes, not {wanted}")]
    Length { got: usize, wanted: usize },
}

impl Unpacker {
    pub(crate) fn new() -> Result<Unpacker, TraceError> {
        let zstd =
            zstd::bulk::Decompressor::new().map_err(|error| TraceError::io("preparing the decompressor", 0, &error))?;
        Ok(Unpacker { zstd, raw: Vec::new() })
    }

    pub(crate) fn unpack(&mut self, frame: &Frame, stored: &[u8]) -> Result<(), BlockError> {
        if crc32fast::hash(stored) != frame.checksum {
            return Err(BlockError::Checksum);
        }
        let wanted = frame.raw_bytes as usize;
        self.raw.clear();
        self.raw.reserve(wanted);
        let got = self.zstd.decompress_to_buffer(stored, &mut self.raw).map_err(BlockError::Zstd)?;
        if got == wanted { Ok(()) } else { Err(BlockError::Length { got, wanted }) }
    }
}

/// Encodes accesses, and events each with the number of accesses of this block before it.
pub(crate) fn encode_records(header: &Header, accesses: &[Access], events: &[(u32, Event)], raw: &mut Vec<u8>) {
    raw.clear();
    let mut column = Vec::with_capacity(accesses.len() * 5);
    let shift = if header.lines { 6 } else { 0 };
    let mut before = 0_i64;
    for access in accesses {
        let place = if header.lines { access.line_number() } else { u64::from(access.page().0) } as i64;
        put(&mut column, zigzag(place - before));
        before = place;
    }
    debug_assert!(before >> shift <= i64::from(u32::MAX));
    finish_column(raw, &mut column);

    for eight in accesses.chunks(8) {
        column.push(eight.iter().rev().fold(0, |bits, access| (bits << 1) | u8::from(access.is_write())));
    }
    finish_column(raw, &mut column);

    for run in accesses.chunk_by(|a, b| a.thread() == b.thread()) {
        put(&mut column, run.len() as u64);
        put(&mut column, u64::from(run[0].thread().0));
    }
    finish_column(raw, &mut column);

    if let Some(resolution) = header.time_resolution_nanos {
        let mut before = 0_i64;
        for access in accesses {
            let units = (access.time().as_nanos() / resolution) as i64;
            put(&mut column, zigzag(units - before));
            before = units;
        }
    }
    finish_column(raw, &mut column);

    if header.latency.is_some() {
        accesses.iter().for_each(|access| put(&mut column, u64::from(access.latency())));
    }
    finish_column(raw, &mut column);

    let mut passed = 0;
    for (position, event) in events {
        put(&mut column, u64::from(position - passed));
        passed = *position;
        encode_event(event, &mut column);
    }
    finish_column(raw, &mut column);
}

fn finish_column(raw: &mut Vec<u8>, column: &mut Vec<u8>) {
    put(raw, column.len() as u64);
    raw.append(column);
}

fn encode_event(event: &Event, out: &mut Vec<u8>) {
    let mut with_pages = |code: u8, pages: Pages| {
        out.push(code);
        put(out, event.time.as_nanos());
        put(out, u64::from(pages.first.0));
        put(out, u64::from(pages.count));
    };
    match event.change {
        Change::Born(pages) => with_pages(1, pages),
        Change::Gone(pages) => with_pages(2, pages),
        Change::Huge(pages) => with_pages(3, pages),
        Change::Split(pages) => with_pages(4, pages),
        Change::Region { pages, accesses, age } => {
            with_pages(5, pages);
            put(out, u64::from(accesses));
            put(out, u64::from(age));
        }
        Change::Period(period) => {
            out.push(6);
            put(out, event.time.as_nanos());
            put(out, period);
        }
    }
}

fn decode_event(from: &mut Cursor<'_>) -> Option<Event> {
    let code = from.take(1)?[0];
    let time = Time::from_nanos(from.number()?);
    if code == 6 {
        return Some(Event { time, change: Change::Period(from.number()?) });
    }
    let pages = Pages { first: PageId(from.number32()?), count: from.number32()? };
    if u64::from(pages.first.0) + u64::from(pages.count) > 1 << 32 {
        return None;
    }
    let change = match code {
        1 => Change::Born(pages),
        2 => Change::Gone(pages),
        3 => Change::Huge(pages),
        4 => Change::Split(pages),
        5 => Change::Region { pages, accesses: from.number32()?, age: from.number32()? },
        _ => return None,
    };
    Some(Event { time, change })
}

/// Decodes what [`encode_records`] made, replacing what was in `accesses` and `events`.
pub(crate) fn decode_records(
    header: &Header,
    frame: &Frame,
    raw: &[u8],
    accesses: &mut Vec<Access>,
    events: &mut Vec<(u32, Event)>,
) -> Result<(), &'static str> {
    let mut rest = Cursor::new(raw);
    let mut column = || {
        let length = rest.number().and_then(|length| usize::try_from(length).ok())?;
        rest.take(length)
    };
    let count = frame.accesses as usize;
    accesses.clear();
    accesses.resize(count, Access::default());
    let pages = column().ok_or("the page column is missing")?;
    let writes = column().ok_or("the write column is missing")?;
    decode_places(header.lines, pages, writes, accesses)?;

    let mut threads = Cursor::new(column().ok_or("the thread column is missing")?);
    let mut open = accesses.as_mut_slice();
    while !open.is_empty() {
        let run = threads.number().and_then(|run| usize::try_from(run).ok()).filter(|&run| run > 0);
        let thread =
            threads.number().and_then(|thread| u16::try_from(thread).ok()).ok_or("a thread is out of range")?;
        let (these, others) =
            run.and_then(|run| open.split_at_mut_checked(run)).ok_or("a run of a thread is too long")?;
        if thread != 0 {
            these.iter_mut().for_each(|access| access.set_thread(thread));
        }
        open = others;
    }

    let times = column().ok_or("the time column is missing")?;
    if let Some(resolution) = header.time_resolution_nanos {
        decode_times(resolution, times, accesses)?;
    }
    let mut latencies = Cursor::new(column().ok_or("the latency column is missing")?);
    if header.latency.is_some() {
        for access in accesses.iter_mut() {
            let latency = latencies.number().and_then(|value| u16::try_from(value).ok());
            access.set_latency(latency.ok_or("a latency is out of range")?);
        }
    }
    let mut encoded = Cursor::new(column().ok_or("the event column is missing")?);
    events.clear();
    let mut position = 0_u32;
    for _ in 0..frame.events {
        let ahead = encoded.number32().and_then(|ahead| position.checked_add(ahead));
        position = ahead.filter(|&at| at <= frame.accesses).ok_or("an event lies outside the block")?;
        events.push((position, decode_event(&mut encoded).ok_or("an event makes no sense")?));
    }
    Ok(())
}

fn decode_places(lines: bool, pages: &[u8], writes: &[u8], accesses: &mut [Access]) -> Result<(), &'static str> {
    if writes.len() != accesses.len().div_ceil(8) {
        return Err("the write column has the wrong length");
    }
    let largest: u64 = if lines { (1 << 38) - 1 } else { (1 << 32) - 1 };
    let mut cursor = Cursor::new(pages);
    let mut place = 0_u64;
    // Out of range is gathered instead of branched on: it happens in no file that was written by us.
    let mut beyond = 0_u64;
    for (eight, &byte) in accesses.chunks_mut(8).zip(writes) {
        let mut bits = u64::from(byte);
        for access in eight {
            let change = cursor.number().ok_or("the page column ends early")?;
            place = place.wrapping_add(unzigzag(change) as u64);
            beyond |= place & !largest;
            *access = if lines {
                Access::from_parts((place >> 6) as u32, ((place & 63) << 1) | (bits & 1))
            } else {
                Access::from_parts(place as u32, bits & 1)
            };
            bits >>= 1;
        }
    }
    if beyond == 0 { Ok(()) } else { Err("a page is out of range") }
}

fn decode_times(resolution: u64, times: &[u8], accesses: &mut [Access]) -> Result<(), &'static str> {
    let mut cursor = Cursor::new(times);
    let mut units = 0_u64;
    for access in accesses {
        let change = cursor.number().ok_or("the time column ends early")?;
        units = units.wrapping_add(unzigzag(change) as u64);
        *access = access.at(Time::from_nanos(units.saturating_mul(resolution)));
    }
    Ok(())
}

/// Decodes the pieces of a map block, one after another.
pub(crate) fn decode_map(
    raw: &[u8],
    mut each: impl FnMut(MapPiece) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    let mut cursor = Cursor::new(raw);
    while !cursor.is_empty() {
        each(MapPiece::decode(&mut cursor).ok_or("a piece of the page map makes no sense")?)?;
    }
    Ok(())
}
