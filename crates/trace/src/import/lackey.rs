//! Valgrind's lackey: ` L addr,size`, ` S addr,size`, ` M addr,size`, `I  addr,size`; no thread, no time.
//!
//! In: text. Out: accesses. Must not: count instruction fetches, which say nothing of data placement. A modify (M) is
//! a load and a store of the same place, as the tool's manual says.

use std::io::BufRead;

use crate::error::TraceError;
use crate::import::lines::{BadLine, decimal, each_line, hexadecimal};
use crate::import::{ImportOptions, Sink, Touch};

/// Instructions of one access reach 4 KiB at most (state save); a larger size is a damaged line.
const LARGEST_SIZE: u64 = 1 << 16;

pub(super) fn read(input: &mut dyn BufRead, sink: &mut Sink<'_>, options: &ImportOptions) -> Result<(), TraceError> {
    each_line(input, sink, "lackey", options, |line, sink| {
        let (load, store) = match line {
            [b' ', b'L', b' ', ..] => (true, false),
            [b' ', b'S', b' ', ..] => (false, true),
            [b' ', b'M', b' ', ..] => (true, true),
            [b'I', b' ', b' ', ..] => {
                sink.skip("instruction fetch");
                return Ok(());
            }
            // Valgrind's own messages begin with its process number between such marks.
            [b'=', b'=', ..] | [b'-', b'-', ..] | [] => return Ok(()),
            _ => return Err(BadLine::from("expected ' L', ' S', ' M' or 'I ' and address,size")),
        };
        let operands = line[3..].trim_ascii_start();
        let comma = operands.iter().position(|&byte| byte == b',').ok_or("no comma between address and size")?;
        let address = hexadecimal(&operands[..comma]).ok_or("the address is no hexadecimal number")?;
        let bytes = decimal(&operands[comma + 1..]).filter(|&size| (1..=LARGEST_SIZE).contains(&size));
        let bytes = bytes.ok_or("the size is no number between 1 and 65536")?;
        for write in [false, true] {
            if if write { store } else { load } {
                sink.touch(&Touch { address, bytes, write, thread: 0, nanos: 0, latency: 0 })?;
            }
        }
        Ok(())
    })
}
