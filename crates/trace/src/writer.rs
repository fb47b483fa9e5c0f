//! Writes a trace as a stream, in bounded memory.
//!
//! In: a header, then accesses, events and map pieces in the order in which they happened. Out: bytes into anything
//! that implements [`Write`]. Must not: seek, open files, or hold more than one block (about 3 MiB) and the index
//! (some 40 bytes for each 65536 accesses).
//!
//! Map pieces reach the file before the records that follow them, so that even a trace that was cut off can show
//! the addresses of what it holds.

use std::io::Write;

use terrace_core::units::Time;

use crate::block::{BLOCK_EVENTS, BLOCK_RECORDS, BlockKind, Packer, encode_records};
use crate::error::TraceError;
use crate::header::Header;
use crate::index::{BlockEntry, Index, Summary, Trailer};
use crate::map::{Extent, MapPiece};
use crate::record::{Access, Change, Event, Pages};

/// Writes one trace. Without [`Writer::finish`] the trace is truncated.
pub struct Writer<W> {
    output: W,
    offset: u64,
    header: Header,
    accesses: Vec<Access>,
    events: Vec<(u32, Event)>,
    map: Vec<u8>,
    /// The extent added last, which the next may continue.
    extent: Option<Extent>,
    raw: Vec<u8>,
    packer: Packer,
    index: Index,
    seen_any_time: bool,
}

/// A map block is written when it holds this many bytes, whether or not records are waiting.
const MAP_BYTES: usize = 1 << 20;

impl<W: Write> Writer<W> {
    /// Begins a trace by writing its header.
    ///
    /// # Errors
    /// When the header makes no sense, or the output fails.
    pub fn new(output: W, header: Header) -> Result<Writer<W>, TraceError> {
        let head = header.encode()?;
        let mut writer = Writer {
            output,
            offset: 0,
            header,
            accesses: Vec::with_capacity(BLOCK_RECORDS),
            events: Vec::new(),
            map: Vec::new(),
            extent: None,
            raw: Vec::new(),
            packer: Packer::new()?,
            index: Index::default(),
            seen_any_time: false,
        };
        writer.put(&head)?;
        Ok(writer)
    }

    /// Adds an access.
    ///
    /// # Errors
    /// When a full block cannot be written.
    #[inline]
    pub fn access(&mut self, access: Access) -> Result<(), TraceError> {
        self.accesses.push(access);
        if self.accesses.len() == BLOCK_RECORDS { self.end_block() } else { Ok(()) }
    }

    /// Adds accesses.
    ///
    /// # Errors
    /// When a full block cannot be written.
    pub fn accesses(&mut self, mut accesses: &[Access]) -> Result<(), TraceError> {
        while !accesses.is_empty() {
            let room = BLOCK_RECORDS - self.accesses.len();
            let (now, later) = accesses.split_at(room.min(accesses.len()));
            self.accesses.extend_from_slice(now);
            accesses = later;
            if self.accesses.len() == BLOCK_RECORDS {
                self.end_block()?;
            }
        }
        Ok(())
    }

    /// Adds an event at this place among the accesses.
    ///
    /// # Errors
    /// When its pages exceed the last page id, or a full block cannot be written.
    pub fn event(&mut self, event: Event) -> Result<(), TraceError> {
        if let Some(Pages { first, count }) = pages_of(&event)
            && u64::from(first.0) + u64::from(count) > 1 << 32
        {
            let reason = format!("{count} pages from page {} exceed the last page id", first.0);
            return Err(TraceError::Unwritable { record: self.written(), reason });
        }
        self.events.push((self.accesses.len() as u32, event));
        if self.events.len() == BLOCK_EVENTS { self.end_block() } else { Ok(()) }
    }

    /// Adds a piece of the page map. It takes effect for what is written after it, and may for what was before.
    ///
    /// # Errors
    /// When a full map block cannot be written.
    pub fn map(&mut self, piece: &MapPiece) -> Result<(), TraceError> {
        // Pages numbered one at a time, as they are met, are one extent where they follow each other.
        if let (Some(last), MapPiece::Extent(next)) = (&mut self.extent, piece)
            && last.count.checked_add(next.count).is_some()
            && last.first.0.checked_add(last.count) == Some(next.first.0)
            && last.vpn.0.checked_add(u64::from(last.count)) == Some(next.vpn.0)
            && last.process == next.process
        {
            last.count += next.count;
            return Ok(());
        }
        self.settle_extent();
        match piece {
            MapPiece::Extent(extent) => self.extent = Some(*extent),
            other => other.encode(&mut self.map),
        }
        if self.map.len() >= MAP_BYTES { self.end_map() } else { Ok(()) }
    }

    /// The extent added last stands as it is.
    fn settle_extent(&mut self) {
        if let Some(extent) = self.extent.take() {
            MapPiece::Extent(extent).encode(&mut self.map);
        }
    }

    /// The header the trace began with.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Accesses taken so far.
    pub fn written(&self) -> u64 {
        self.index.summary.accesses + self.accesses.len() as u64
    }

    /// Writes what is pending, the index and the trailer; returns the output and the totals.
    ///
    /// # Errors
    /// When the output fails.
    pub fn finish(mut self) -> Result<(W, Summary), TraceError> {
        self.end_block()?;
        self.end_map()?;
        let index_offset = self.offset;
        self.index.encode(&mut self.raw);
        self.packer.pack(BlockKind::Index, (0, 0), &self.raw, self.offset)?;
        let packed = std::mem::take(&mut self.packer.packed);
        self.put(&packed)?;
        self.put(&Trailer { index_offset, accesses: self.index.summary.accesses }.encode())?;
        self.output.flush().map_err(|error| TraceError::io("writing the trace", self.offset, &error))?;
        Ok((self.output, self.index.summary))
    }

    fn end_block(&mut self) -> Result<(), TraceError> {
        self.end_map()?;
        if self.accesses.is_empty() && self.events.is_empty() {
            return Ok(());
        }
        let (first_time, last_time) = self.count_block();
        encode_records(&self.header, &self.accesses, &self.events, &mut self.raw);
        let counts = (self.accesses.len() as u32, self.events.len() as u32);
        self.end(BlockKind::Records, counts, (first_time, last_time))?;
        self.accesses.clear();
        self.events.clear();
        Ok(())
    }

    fn end_map(&mut self) -> Result<(), TraceError> {
        self.settle_extent();
        if self.map.is_empty() {
            return Ok(());
        }
        std::mem::swap(&mut self.map, &mut self.raw);
        self.map.clear();
        self.end(BlockKind::Map, (0, 0), (Time::ZERO, Time::ZERO))
    }

    fn end(&mut self, kind: BlockKind, counts: (u32, u32), times: (Time, Time)) -> Result<(), TraceError> {
        let (first_time, last_time) = times;
        self.packer.pack(kind, counts, &self.raw, self.offset)?;
        self.index.blocks.push(BlockEntry { offset: self.offset, kind, accesses: counts.0, first_time, last_time });
        let packed = std::mem::take(&mut self.packer.packed);
        self.put(&packed)?;
        self.packer.packed = packed;
        Ok(())
    }

    /// Adds the block to the totals; returns its earliest and latest time.
    fn count_block(&mut self) -> (Time, Time) {
        let summary = &mut self.index.summary;
        let (mut first, mut last) = (Time::FAR_FUTURE, Time::ZERO);
        let mut page_ids = summary.page_ids;
        let mut threads = summary.threads;
        for access in &self.accesses {
            page_ids = page_ids.max(u64::from(access.page().0) + 1);
            threads = threads.max(u32::from(access.thread().0) + 1);
            summary.writes += u64::from(access.is_write());
            first = first.min(access.time());
            last = last.max(access.time());
        }
        for (_, event) in &self.events {
            if let Some(pages) = pages_of(event) {
                page_ids = page_ids.max(u64::from(pages.first.0) + u64::from(pages.count));
            }
            first = first.min(event.time);
            last = last.max(event.time);
        }
        summary.page_ids = page_ids;
        summary.threads = threads;
        summary.accesses += self.accesses.len() as u64;
        summary.events += self.events.len() as u64;
        summary.first_time = if self.seen_any_time { summary.first_time.min(first) } else { first };
        summary.last_time = summary.last_time.max(last);
        self.seen_any_time = true;
        (first, last)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.output.write_all(bytes).map_err(|error| TraceError::io("writing the trace", self.offset, &error))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

/// The pages an event is about, if it is about pages.
pub(crate) const fn pages_of(event: &Event) -> Option<Pages> {
    match event.change {
        Change::Born(pages)
        | Change::Gone(pages)
        | Change::Huge(pages)
        | Change::Split(pages)
        | Change::Region { pages, .. } => Some(pages),
        Change::Period(_) => None,
    }
}
