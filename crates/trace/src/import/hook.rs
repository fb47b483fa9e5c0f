//! What the recorder of [`crate::hook`] writes, in the layout that its C source states.
//!
//! In: the raw stream. Out: accesses with threads; times spread evenly over each chunk, between the two readings of
//! the clock that frame it; the program's mapped ranges as named regions; of a guest, processes apart, and how large the
//! guest's kernel mapped their pages. Must not: take a recording that was filtered for one of every access.
//!
//! Chunks of different threads stand in the order in which they were full, some 16000 accesses at a time.
//!
//! Version 2 is what the QEMU plugin writes of a guest (`qemu-plugin/src/guest.rs`). Each chunk says in its head which process it is
//! of, and there are three kinds more: a process appears (3), pages are mapped otherwise than before (4), a process is over (5).

use std::io::BufRead;

use terrace_core::units::{BLOCK_PAGES, PAGE_SHIFT};

use crate::error::TraceError;
use crate::header::{Header, Provenance, read_up_to};
use crate::import::lines::{hexadecimal, words};
use crate::import::{Sink, Touch};
use crate::map::{Process, ProcessId, Region};
use crate::record::Change;

const FORMAT: &str = "hook";
const SIGNATURE: &[u8; 8] = b"TRRHOOK1";
const HEAD_BYTES: usize = 40;
const CHUNK_BYTES: usize = 48;
const CHUNK_MARK: u32 = 0x4b48_4352;
const LARGEST_PAYLOAD: u32 = 1 << 20;
/// A single copy in a real program; a longer one is a damaged word.
const LONGEST_RANGE: u64 = 1 << 40;
const ADDRESS_MASK: u64 = (1 << 57) - 1;
const RANGE: u64 = 1 << 61;
const WRITE: u64 = 1 << 63;
/// Of a word that tells how pages are mapped: by one entry of 2 MiB.
const HUGE: u64 = 1;
const BLOCK_BYTES: u64 = (BLOCK_PAGES as u64) << PAGE_SHIFT;

/// The head of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    cache_bytes: u64,
    start_nanos: u64,
    processes: bool,
}

pub(super) fn read_head(input: &mut dyn BufRead) -> Result<(Head, Begin), TraceError> {
    let mut input = input;
    let mut bytes = [0; HEAD_BYTES];
    let got = read_up_to(&mut input, &mut bytes, 0)?;
    if got < HEAD_BYTES || &bytes[..8] != SIGNATURE {
        return Err(TraceError::record(FORMAT, 0, "it does not begin with TRRHOOK1: not a recording of the hook"));
    }
    let version = word32(&bytes, 8);
    if !(1..=2).contains(&version) {
        return Err(TraceError::record(FORMAT, 8, format!("version {version}, this program reads versions 1 and 2")));
    }
    let head = Head { cache_bytes: word64(&bytes, 16), start_nanos: word64(&bytes, 32), processes: version == 2 };
    Ok((head, Begin { offset: HEAD_BYTES as u64, start_nanos: head.start_nanos }))
}

/// Where the chunks begin, and what time it was then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begin {
    offset: u64,
    start_nanos: u64,
}

pub(super) fn header(timed: Header, head: &Head) -> Header {
    let provenance = match head.cache_bytes {
        0 => Provenance::Exact,
        cache_bytes => Provenance::Filtered { cache_bytes },
    };
    Header { provenance, processes: head.processes, ..timed }
}

pub(super) fn read(input: &mut dyn BufRead, sink: &mut Sink<'_>, begin: Begin) -> Result<(), TraceError> {
    let mut input = input;
    let mut offset = begin.offset;
    let mut head = [0; CHUNK_BYTES];
    let mut payload = Vec::new();
    loop {
        let got = read_up_to(&mut input, &mut head, offset)?;
        if got == 0 {
            return Ok(());
        }
        let bad = |reason: &str| TraceError::record(FORMAT, offset, reason);
        if got < CHUNK_BYTES {
            return Err(bad(
                "the last chunk is cut off, as the program did not end by itself; --keep-whole keeps those before it",
            ));
        }
        let length = word32(&head, 32);
        if word32(&head, 0) != CHUNK_MARK || length > LARGEST_PAYLOAD {
            return Err(bad("no chunk begins here"));
        }
        payload.resize(length as usize, 0);
        if read_up_to(&mut input, &mut payload, offset + CHUNK_BYTES as u64)? < length as usize {
            return Err(bad(
                "the last chunk is cut off, as the program did not end by itself; --keep-whole keeps those before it",
            ));
        }
        let process = match u16::try_from(word32(&head, 40)) {
            Ok(number) => ProcessId(number),
            Err(_) => return Err(bad("it is of a process beyond the 65536 that a trace holds")),
        };
        sink.enter(process);
        let past = word64(&head, 16).saturating_sub(begin.start_nanos);
        match word32(&head, 4) {
            1 => {
                let chunk = Chunk {
                    offset: offset + CHUNK_BYTES as u64,
                    thread: word64(&head, 8),
                    first: past,
                    last: word64(&head, 24).saturating_sub(begin.start_nanos),
                };
                chunk.read(&payload, sink)?;
                for _ in 0..word32(&head, 36).min(1 << 20) {
                    sink.skip("lost in a signal handler");
                }
            }
            2 => payload.split(|&byte| byte == b'\n').filter_map(maps_line).try_for_each(|line| sink.region(line))?,
            3 if length >= 8 => {
                let name = String::from_utf8_lossy(&payload[8..]).into_owned();
                sink.process(process, Process { pid: word64(&payload, 0), name })?;
            }
            4 => {
                for word in payload.chunks_exact(8).map(|bytes| word64(bytes, 0)) {
                    let start = word & ADDRESS_MASK & !(BLOCK_BYTES - 1);
                    let change = if word & HUGE != 0 { Change::Huge } else { Change::Split };
                    sink.range_event(past, start..start + BLOCK_BYTES, change)?;
                }
            }
            5 => sink.process_event(past, process, Change::Gone)?,
            _ => sink.skip("other chunk"),
        }
        offset += (CHUNK_BYTES + length as usize) as u64;
    }
}

struct Chunk {
    offset: u64,
    thread: u64,
    first: u64,
    last: u64,
}

impl Chunk {
    fn read(&self, payload: &[u8], sink: &mut Sink<'_>) -> Result<(), TraceError> {
        let count = (payload.len() / 8).max(1) as u64;
        let span = self.last.saturating_sub(self.first);
        let mut words = payload.chunks_exact(8).map(|bytes| word64(bytes, 0)).enumerate();
        while let Some((index, word)) = words.next() {
            let mut bytes = 1_u64 << ((word >> 57) & 15).min(6);
            if word & RANGE != 0 {
                let length = words.next().map(|(_, length)| length).filter(|&length| length <= LONGEST_RANGE);
                let at = self.offset + 8 * index as u64;
                bytes = length.ok_or_else(|| TraceError::record(FORMAT, at, "a range has no sensible length"))?;
            }
            let past = (u128::from(span) * index as u128 / u128::from(count)) as u64;
            sink.touch(&Touch {
                address: word & ADDRESS_MASK,
                bytes,
                write: word & WRITE != 0,
                thread: self.thread,
                nanos: self.first.saturating_add(past),
                latency: 0,
            })?;
        }
        Ok(())
    }
}

/// A line of /proc/PID/maps: "start-end perms offset dev inode path".
fn maps_line(line: &[u8]) -> Option<Region> {
    let mut fields = words(line);
    let range = fields.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let (start, end) = (hexadecimal(&range[..dash])?, hexadecimal(&range[dash + 1..])?);
    let name = fields.nth(4).map(|name| String::from_utf8_lossy(name).into_owned()).unwrap_or_default();
    (start < end).then_some(Region { start, end, name })
}

fn word32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from(word32(bytes, at)) | u64::from(word32(bytes, at + 4)) << 32
}
