//! DynamoRIO's drmemtrace: the text of its `view` tool, and its 12-byte records.
//!
//! In: text, or records of one or several threads. Out: accesses with threads, and times as coarse as
//! the recording's timestamp markers. Must not: decode instructions, or read records of a stream that does not begin
//! with a header record. The record layout is the one of the project's trace_entry.h: u16 type, u16 size, u64
//! address, packed, little endian. Its maintainers recommend their own tools for reading files; the view text is the
//! stabler way, the records the faster.

use std::io::BufRead;

use crate::error::TraceError;
use crate::import::lines::{BadLine, decimal, each_line, hexadecimal, words};
use crate::import::{ImportOptions, Sink, Touch, next_record};

const FORMAT: &str = "drmemtrace";
const RECORD_BYTES: usize = 12;
const READ: u16 = 0;
const WRITE: u16 = 1;
const THREAD: u16 = 22;
const HEADER: u16 = 25;
const MARKER: u16 = 28;
const MARKER_TIMESTAMP: u16 = 2;
/// Types known today end near 50; far above that the stream is not what it is said to be.
const LARGEST_TYPE: u16 = 255;

pub(super) fn read_binary(input: &mut dyn BufRead, sink: &mut Sink<'_>) -> Result<(), TraceError> {
    let mut record = [0; RECORD_BYTES];
    let mut offset = 0_u64;
    let (mut thread, mut nanos) = (0, 0);
    while next_record(input, &mut record, offset, FORMAT, "")? {
        let kind = u16::from_le_bytes([record[0], record[1]]);
        let size = u16::from_le_bytes([record[2], record[3]]);
        let value = u64::from_le_bytes([
            record[4], record[5], record[6], record[7], record[8], record[9], record[10], record[11],
        ]);
        if offset == 0 && kind != HEADER {
            return Err(TraceError::record(FORMAT, 0, "it does not begin with a header record; decompress it first"));
        }
        match kind {
            READ | WRITE => {
                sink.touch(&Touch {
                    address: value,
                    bytes: u64::from(size),
                    write: kind == WRITE,
                    thread,
                    nanos,
                    latency: 0,
                })?;
            }
            THREAD => thread = value,
            // Microseconds; a later thread's file may begin earlier, and time then stands still.
            MARKER if size == MARKER_TIMESTAMP => nanos = value.saturating_mul(1000).max(nanos),
            HEADER | MARKER => {}
            2..=9 => sink.skip("prefetch"),
            10..=17 | 29..=31 => sink.skip("instruction fetch"),
            _ if kind > LARGEST_TYPE => {
                return Err(TraceError::record(FORMAT, offset, format!("record type {kind} does not exist")));
            }
            _ => sink.skip("other record"),
        }
        offset += RECORD_BYTES as u64;
    }
    Ok(())
}

pub(super) fn read_view(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    options: &ImportOptions,
) -> Result<(), TraceError> {
    let mut nanos = 0_u64;
    each_line(input, sink, "drmemtrace view", options, |line, sink| {
        if let Some(marker) = after(line, b"<marker: timestamp ") {
            let micros = decimal(marker.strip_suffix(b">").unwrap_or(marker)).ok_or("the timestamp is no number")?;
            nanos = micros.saturating_mul(1000).max(nanos);
            return Ok(());
        }
        let Some(operand) = after(line, b" byte(s) @ 0x") else {
            if !line.is_empty() && after(line, b"<").is_none() {
                sink.skip("line without an access");
            }
            return Ok(());
        };
        let before = &line[..line.len() - operand.len() - b" byte(s) @ 0x".len()];
        let mut back = before.rsplit(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let (size, kind, thread) = (back.next(), back.next(), back.next());
        let write = match kind {
            Some(b"read") => false,
            Some(b"write") => true,
            Some(b"ifetch") => {
                sink.skip("instruction fetch");
                return Ok(());
            }
            _ => {
                sink.skip("other record");
                return Ok(());
            }
        };
        let bytes =
            size.and_then(decimal).filter(|&size| size <= u64::from(u16::MAX)).ok_or("the size is no number")?;
        let address = words(operand).next().and_then(hexadecimal).ok_or("the address is no hexadecimal number")?;
        // "T468608", "W0.T3" and "3854659" all occur, by version.
        let thread = thread.and_then(|word| word.rsplit(|&byte| byte == b'T' || byte == b'.').next());
        let thread = thread.and_then(decimal).ok_or_else(|| BadLine::from("no thread number before the access"))?;
        Ok(sink.touch(&Touch { address, bytes, write, thread, nanos, latency: 0 })?)
    })
}

fn after<'a>(line: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let at = line.windows(mark.len()).position(|window| window == mark)?;
    Some(&line[at + mark.len()..])
}
