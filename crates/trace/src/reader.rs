//! Reads a trace as a stream, batch by batch, and verifies it on the way.
//!
//! In: anything that implements [`Read`]. Out: batches of accesses, and the events between them in their place. Must
//! not: seek, or deliver anything of a block that is not whole. What is whole before a fault is delivered before the
//! fault is reported; the fault is then reported every time.

use std::io::Read;

use terrace_core::units::Time;

use crate::block::{BlockError, BlockKind, FRAME_BYTES, Frame, Unpacker, decode_map, decode_records};
use crate::error::TraceError;
use crate::header::{Header, Provenance, read_up_to};
use crate::index::{Index, Summary, TRAILER_BYTES, Trailer};
use crate::map::{MapBudget, PageMap};
use crate::record::{Access, Change, Event};

/// Where replay takes its accesses from: a trace file, or anything else that comes in batches.
///
/// ```text
/// loop {
///     let count = source.fill(&mut batch)?;
///     replay(&batch[..count]);
///     if count == 0 {
///         match source.take_event() {
///             Some(event) => apply(event),
///             None => break,
///         }
///     }
/// }
/// ```
pub trait AccessSource {
    /// Puts the next accesses into `batch` and returns how many. A batch ends early at an event and at a block's
    /// end. 0 means that an event is next, which [`AccessSource::take_event`] hands out, or that the trace is over.
    ///
    /// # Errors
    /// When the source is damaged, after everything before the damage has been delivered.
    fn fill(&mut self, batch: &mut [Access]) -> Result<usize, TraceError>;

    /// The event that comes before the next access, if there is one.
    fn take_event(&mut self) -> Option<Event>;
}

/// Reads one trace.
pub struct Reader<R> {
    input: R,
    offset: u64,
    header: Header,
    map: PageMap,
    map_budget: MapBudget,
    map_pieces: Option<Vec<crate::map::MapPiece>>,
    unpacker: Unpacker,
    stored: Vec<u8>,
    accesses: Vec<Access>,
    next_access: usize,
    events: Vec<(u32, Event)>,
    next_event: usize,
    state: State,
    delivered_blocks: u64,
    loaded_accesses: u64,
}

enum State {
    Open,
    Whole(Index),
    Failed(TraceError),
}

impl<R: Read> Reader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// When this is no trace, a trace of another version, or its header is damaged.
    pub fn new(mut input: R) -> Result<Reader<R>, TraceError> {
        let (header, offset) = Header::read(&mut input)?;
        Ok(Reader {
            input,
            offset,
            header,
            map: PageMap::default(),
            map_budget: MapBudget::new(),
            map_pieces: None,
            unpacker: Unpacker::new()?,
            stored: Vec::new(),
            accesses: Vec::new(),
            next_access: 0,
            events: Vec::new(),
            next_event: 0,
            state: State::Open,
            delivered_blocks: 0,
            loaded_accesses: 0,
        })
    }

    /// The same, with what an access stands for by the header as its first event: for those who replay it.
    #[must_use]
    pub fn told_its_period(mut self) -> Reader<R> {
        if let Provenance::Sampled { period: period @ 2.. } = self.header.provenance {
            self.events.push((0, Event { time: Time::ZERO, change: Change::Period(period) }));
        }
        self
    }

    /// What the records mean.
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The page map as far as it has been read; it always covers the accesses delivered.
    pub const fn map(&self) -> &PageMap {
        &self.map
    }

    /// Keeps map pieces for [`Reader::take_map_pieces`] from here on, to copy a trace.
    pub fn keep_map_pieces(&mut self) {
        self.map_pieces.get_or_insert_default();
    }

    /// Map pieces read since this was last called, in file order; none unless [`Reader::keep_map_pieces`] asked for them.
    pub fn take_map_pieces(&mut self) -> Vec<crate::map::MapPiece> {
        self.map_pieces.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Bytes of the trace read so far; at a fault, where the damaged part begins.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Whole blocks of records read so far.
    pub const fn blocks(&self) -> u64 {
        self.delivered_blocks
    }

    /// Index and totals, once the whole trace has been read and found whole.
    pub const fn index(&self) -> Option<&Index> {
        match &self.state {
            State::Whole(index) => Some(index),
            State::Open | State::Failed(_) => None,
        }
    }

    /// Totals, once the whole trace has been read and found whole.
    pub fn summary(&self) -> Option<&Summary> {
        self.index().map(|index| &index.summary)
    }

    /// As [`AccessSource::fill`].
    ///
    /// # Errors
    /// [`TraceError::Truncated`], [`TraceError::Corrupt`] or [`TraceError::Io`].
    pub fn fill(&mut self, batch: &mut [Access]) -> Result<usize, TraceError> {
        loop {
            if batch.is_empty() {
                return Ok(0);
            }
            let stop = match self.events.get(self.next_event) {
                Some((position, _)) => *position as usize,
                None => self.accesses.len(),
            };
            if self.next_access < stop {
                let count = batch.len().min(stop - self.next_access);
                batch[..count].copy_from_slice(&self.accesses[self.next_access..self.next_access + count]);
                self.next_access += count;
                return Ok(count);
            }
            if self.next_event < self.events.len() {
                return Ok(0);
            }
            match &self.state {
                State::Open => {}
                State::Whole(_) => return Ok(0),
                State::Failed(error) => return Err(error.clone()),
            }
            self.accesses.clear();
            self.events.clear();
            (self.next_access, self.next_event) = (0, 0);
            if let Err(error) = self.load() {
                self.accesses.clear();
                self.events.clear();
                self.state = State::Failed(error.clone());
                return Err(error);
            }
        }
    }

    /// As [`AccessSource::take_event`].
    pub fn take_event(&mut self) -> Option<Event> {
        let (position, event) = *self.events.get(self.next_event)?;
        if position as usize != self.next_access {
            return None;
        }
        self.next_event += 1;
        Some(event)
    }

    fn load(&mut self) -> Result<(), TraceError> {
        let begin = self.offset;
        let mut bytes = [0; FRAME_BYTES];
        let got = read_up_to(&mut self.input, &mut bytes, begin)?;
        let truncated = |end: usize, within| TraceError::Truncated { offset: begin, end: begin + end as u64, within };
        if got < FRAME_BYTES {
            return Err(truncated(got, "a block's frame"));
        }
        let frame = Frame::decode(&bytes).map_err(|reason| TraceError::corrupt(begin, "a block's frame", reason))?;
        let within = frame.kind.name();
        let wanted = frame.stored_bytes as usize;
        let got = self.read_stored(wanted, begin + FRAME_BYTES as u64)?;
        if got < wanted {
            return Err(truncated(FRAME_BYTES + got, within));
        }
        let corrupt = |error: BlockError| TraceError::corrupt(begin, within, error.to_string());
        self.unpacker.unpack(&frame, &self.stored[..wanted]).map_err(corrupt)?;
        let named = |reason: &'static str| TraceError::corrupt(begin, within, reason);
        let raw = &self.unpacker.raw;
        match frame.kind {
            BlockKind::Records => {
                decode_records(&self.header, &frame, raw, &mut self.accesses, &mut self.events).map_err(named)?;
                self.delivered_blocks += 1;
                self.loaded_accesses += u64::from(frame.accesses);
            }
            BlockKind::Map => {
                let (map, budget, kept) = (&mut self.map, &mut self.map_budget, &mut self.map_pieces);
                decode_map(raw, |piece| {
                    budget.take(&piece)?;
                    map.add(&piece);
                    if let Some(kept) = kept {
                        kept.push(piece);
                    }
                    Ok(())
                })
                .map_err(named)?;
            }
            BlockKind::Index => {
                let index = Index::decode(raw, begin).ok_or_else(|| named("it makes no sense"))?;
                if index.summary.accesses != self.loaded_accesses {
                    return Err(named("it counts another number of accesses than the blocks hold"));
                }
                let trailer_at = begin + (FRAME_BYTES + wanted) as u64;
                self.check_trailer(begin, trailer_at)?;
                self.offset = trailer_at + TRAILER_BYTES as u64;
                self.state = State::Whole(index);
                return Ok(());
            }
        }
        self.offset = begin + (FRAME_BYTES + wanted) as u64;
        Ok(())
    }

    /// Fills `stored`, growing it as bytes really come, so that a frame that lies about its size costs no memory.
    fn read_stored(&mut self, wanted: usize, offset: u64) -> Result<usize, TraceError> {
        let mut got = 0;
        while got < wanted {
            let step = (wanted - got).min(1 << 20);
            if self.stored.len() < got + step {
                self.stored.resize(got + step, 0);
            }
            let read = read_up_to(&mut self.input, &mut self.stored[got..got + step], offset + got as u64)?;
            got += read;
            if read < step {
                break;
            }
        }
        Ok(got)
    }

    fn check_trailer(&mut self, index_at: u64, trailer_at: u64) -> Result<(), TraceError> {
        let mut bytes = [0; TRAILER_BYTES];
        let got = read_up_to(&mut self.input, &mut bytes, trailer_at)?;
        if got < TRAILER_BYTES {
            let end = trailer_at + got as u64;
            return Err(TraceError::Truncated { offset: trailer_at, end, within: "the trailer" });
        }
        let expected = Trailer { index_offset: index_at, accesses: self.loaded_accesses };
        if Trailer::decode(&bytes) != Some(expected) {
            return Err(TraceError::corrupt(trailer_at, "the trailer", "it does not match the index"));
        }
        Ok(())
    }
}

impl<R: Read> AccessSource for Reader<R> {
    fn fill(&mut self, batch: &mut [Access]) -> Result<usize, TraceError> {
        Reader::fill(self, batch)
    }

    fn take_event(&mut self) -> Option<Event> {
        Reader::take_event(self)
    }
}
