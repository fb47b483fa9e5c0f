//! gem5's packet traces: the protobuf file of its memory probe, and the text of `util/decode_packet_trace.py`.
//!
//! In: "gem5", then messages with their length as a varint in front, first a `PacketHeader` and then each `Packet`
//! (`src/proto/packet.proto` of the project); or lines `[id,]cmd,address,size,[flags,]tick[,pc]`.
//! Out: an access for each ReadReq and WriteReq. Must not: guess what other commands are, whose numbers differ from
//! version to version (gem5's own decoder names these two alone), or trust a length.

use std::io::BufRead;

use crate::error::TraceError;
use crate::header::read_up_to;
use crate::import::lines::{BadLine, decimal, each_line, no_aside};
use crate::import::{ImportOptions, Sink, Touch};
use crate::varint::Cursor;

const FORMAT: &str = "gem5";
pub(crate) const SIGNATURE: &[u8; 4] = b"gem5";
/// Numbers of commands in `MemCmd::Command` of `src/mem/packet.hh`, the same in all versions.
pub(crate) const READ_REQUEST: u64 = 1;
pub(crate) const WRITE_REQUEST: u64 = 4;
/// gem5 has a tick a picosecond, unless told otherwise. The text does not say.
pub(crate) const TICKS_A_SECOND: u64 = 1_000_000_000_000;
/// A header names every requestor of the system; real ones are a few KiB.
const LONGEST_MESSAGE: u64 = 1 << 20;
/// A packet moves a line, a device's a few KiB; a larger size is a damaged record.
const LARGEST_SIZE: u64 = 1 << 16;
const OTHER_COMMAND: &str = "command other than ReadReq and WriteReq";

pub(super) fn read_protobuf(input: &mut dyn BufRead, sink: &mut Sink<'_>) -> Result<(), TraceError> {
    let mut input = input;
    let mut signature = [0; 4];
    let got = read_up_to(&mut input, &mut signature, 0)?;
    if got < 4 || &signature != SIGNATURE {
        return Err(TraceError::record(FORMAT, 0, "it does not begin with \"gem5\": no packet trace"));
    }
    let mut offset = 4_u64;
    let mut message = Vec::new();
    let Some(begin) = next_message(input, &mut message, &mut offset)? else {
        return Err(TraceError::record(FORMAT, 4, "it ends before the header"));
    };
    let frequency = fields(&message, begin)?[3].filter(|&ticks| ticks > 0);
    let frequency = frequency.ok_or_else(|| TraceError::record(FORMAT, begin, "the header has no tick frequency"))?;
    while let Some(begin) = next_message(input, &mut message, &mut offset)? {
        let [_, tick, command, address, size] = fields(&message, begin)?;
        let (Some(tick), Some(command), Some(address), Some(size)) = (tick, command, address, size) else {
            return Err(TraceError::record(FORMAT, begin, "the packet lacks its tick, command, address or size"));
        };
        let packet = Packet { tick, address, size };
        let touch = packet.touch(frequency).map_err(|reason| TraceError::record(FORMAT, begin, reason))?;
        match command {
            READ_REQUEST => sink.touch(&touch)?,
            WRITE_REQUEST => sink.touch(&Touch { write: true, ..touch })?,
            _ => sink.skip(OTHER_COMMAND),
        }
    }
    Ok(())
}

/// What a packet says, in whichever form.
struct Packet {
    tick: u64,
    address: u64,
    size: u64,
}

impl Packet {
    /// The read that it is, if its command says so.
    fn touch(&self, frequency: u64) -> Result<Touch, &'static str> {
        if self.size > LARGEST_SIZE {
            return Err("the size is larger than 65536");
        }
        let nanos = u128::from(self.tick) * 1_000_000_000 / u128::from(frequency);
        let nanos = u64::try_from(nanos).map_err(|_| "the tick is later than 584 years")?;
        Ok(Touch { address: self.address, bytes: self.size, write: false, thread: 0, nanos, latency: 0 })
    }
}

/// Reads the next message; `None` at the end. Returns where its length began.
fn next_message(input: &mut dyn BufRead, message: &mut Vec<u8>, offset: &mut u64) -> Result<Option<u64>, TraceError> {
    let mut input = input;
    let begin = *offset;
    let cut = || TraceError::record(FORMAT, begin, "the last message is cut off; --keep-whole keeps those before it");
    let mut length = 0_u64;
    for shift in (0..).step_by(7) {
        let mut byte = [0];
        if read_up_to(&mut input, &mut byte, *offset)? == 0 {
            return if shift == 0 { Ok(None) } else { Err(cut()) };
        }
        *offset += 1;
        length |= u64::from(byte[0] & 0x7f) << shift;
        if length > LONGEST_MESSAGE || shift > 21 {
            return Err(TraceError::record(FORMAT, begin, "a message of more than 1 MiB is none of gem5's"));
        }
        if byte[0] < 0x80 {
            break;
        }
    }
    message.resize(length as usize, 0);
    if (read_up_to(&mut input, message, *offset)? as u64) < length {
        return Err(cut());
    }
    *offset += length;
    Ok(Some(begin))
}

/// The numbers of fields 1 to 4 of a message, by their number; other fields are passed over.
fn fields(message: &[u8], begin: u64) -> Result<[Option<u64>; 5], TraceError> {
    let bad = || TraceError::record(FORMAT, begin, "the message is no protobuf");
    let mut numbers = [None; 5];
    let mut rest = Cursor::new(message);
    while !rest.is_empty() {
        let tag = rest.number().ok_or_else(bad)?;
        let number = match tag & 7 {
            0 => Some(rest.number().ok_or_else(bad)?),
            1 => rest.take(8).map(|_| None).ok_or_else(bad)?,
            2 => {
                let length = rest.number().and_then(|length| usize::try_from(length).ok()).ok_or_else(bad)?;
                rest.take(length).map(|_| None).ok_or_else(bad)?
            }
            5 => rest.take(4).map(|_| None).ok_or_else(bad)?,
            _ => return Err(bad()),
        };
        if let (Some(number), field @ 1..=4) = (number, tag >> 3) {
            numbers[field as usize] = Some(number);
        }
    }
    Ok(numbers)
}

pub(super) fn read_text(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    options: &ImportOptions,
) -> Result<(), TraceError> {
    each_line(input, sink, "gem5 text", options, |line, sink| {
        if line.is_empty() {
            return Ok(());
        }
        no_aside(line)?;
        let words: Vec<&[u8]> = line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).collect();
        let at = words.iter().take(2).position(|word| matches!(*word, b"r" | b"w" | b"u"));
        let at = at.ok_or("neither the first nor the second field is a command: r, w or u")?;
        let number = |place: usize| words.get(place).and_then(|word| decimal(word));
        let (address, size) = (number(at + 1).ok_or("no address")?, number(at + 2).ok_or("no size")?);
        // With flags, as the memory probe writes them, the tick is behind these; a counter may come last.
        let tick = match words.len() - at {
            4 => at + 3,
            5 | 6 => at + 4,
            _ => return Err(BadLine::from("expected [id,]cmd,address,size,[flags,]tick[,pc]")),
        };
        let tick = number(tick).ok_or("no tick")?;
        let touch = Packet { tick, address, size }.touch(TICKS_A_SECOND)?;
        match words[at] {
            b"r" => sink.touch(&touch)?,
            b"w" => sink.touch(&Touch { write: true, ..touch })?,
            _ => sink.skip(OTHER_COMMAND),
        }
        Ok(())
    })
}
