//! Valgrind's lackey: ` L addr,size`, ` S addr,size`, ` M addr,size`, `I  addr,size`; no thread, no time.
//!
//! In: text, with whatever blanks, and with what Valgrind and the program itself wrote between. Out: accesses. Must not:
//! count instruction fetches, which say nothing of data placement. A modify (M) is a load and a store of the same place,
//! as the tool's manual says.

use std::io::BufRead;

use crate::error::TraceError;
use crate::import::lines::{BadLine, FOREIGN, decimal, each_line, hexadecimal, no_aside};
use crate::import::{ImportOptions, Sink, Touch};

/// Instructions of one access reach 4 KiB at most (state save); a larger size is a damaged line.
const LARGEST_SIZE: u64 = 1 << 16;

pub(super) fn read(input: &mut dyn BufRead, sink: &mut Sink<'_>, options: &ImportOptions) -> Result<(), TraceError> {
    each_line(input, sink, "lackey", options, |line, sink| {
        let text = line.trim_ascii_start();
        let (kind, operands) = match text {
            [kind @ (b'I' | b'L' | b'S' | b'M'), b' ' | b'\t', operands @ ..] => (*kind, operands.trim_ascii_start()),
            // Valgrind's own messages begin with its process number between such marks.
            [b'=', b'=', ..] | [b'-', b'-', ..] | [b'*', b'*', ..] | [] => return Ok(()),
            _ => {
                no_aside(text)?;
                return Err(BadLine::Aside(FOREIGN));
            }
        };
        let comma = operands.iter().position(|&byte| byte == b',');
        let address = operands[..comma.unwrap_or(operands.len())].trim_ascii_end();
        // A sentence that begins with one of the letters.
        if address.iter().any(u8::is_ascii_whitespace) {
            return Err(BadLine::Aside(FOREIGN));
        }
        let place = hexadecimal(address);
        let size = comma.and_then(|comma| decimal(operands[comma + 1..].trim_ascii()));
        if kind == b'I' {
            sink.skip(if place.is_some() && size.is_some() { "instruction fetch" } else { FOREIGN });
            return Ok(());
        }
        if comma.is_none() {
            return Err(BadLine::from("no comma between address and size"));
        }
        let address = place.ok_or("the address is no hexadecimal number")?;
        let bytes = size.filter(|size| (1..=LARGEST_SIZE).contains(size));
        let bytes = bytes.ok_or("the size is no number between 1 and 65536")?;
        for write in [false, true] {
            if kind == b'M' || write == (kind == b'S') {
                sink.touch(&Touch { address, bytes, write, thread: 0, nanos: 0, latency: 0 })?;
            }
        }
        Ok(())
    })
}
