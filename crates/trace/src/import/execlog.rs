//! QEMU's plugin execlog: `cpu, pc, code, "instruction", load, address, device, store, address, ...`.
//!
//! In: text. Out: the loads and stores of each instruction, the processor as thread; no time, no sizes. Must not: take the
//! operands of an instruction, which stand between quotes, for an access, or registers, which newer versions add, for one.

use std::io::BufRead;

use crate::error::TraceError;
use crate::import::lines::{BadLine, FOREIGN, decimal, each_line, hexadecimal, marked, no_aside};
use crate::import::{ImportOptions, Sink, Touch};

pub(super) fn read(input: &mut dyn BufRead, sink: &mut Sink<'_>, options: &ImportOptions) -> Result<(), TraceError> {
    each_line(input, sink, "execlog", options, |line, sink| {
        if line.is_empty() {
            return Ok(());
        }
        no_aside(line)?;
        let comma = line.iter().position(|&byte| byte == b',').ok_or(BadLine::Aside(FOREIGN))?;
        let thread = decimal(line[..comma].trim_ascii()).ok_or(BadLine::Aside(FOREIGN))?;
        let quotes = (line.iter().position(|&byte| byte == b'"'), line.iter().rposition(|&byte| byte == b'"'));
        let (Some(begin), Some(end)) = quotes else {
            return Err(BadLine::Aside(FOREIGN));
        };
        if begin == end {
            return Err(BadLine::from("the instruction has no second quotation mark"));
        }
        let mut fields = line[end + 1..].split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
        let mut touched = false;
        while let Some(field) = fields.next() {
            let write = match field {
                b"load" => false,
                b"store" => true,
                _ => continue,
            };
            let address = fields.next().and_then(marked).and_then(hexadecimal);
            let address = address.ok_or("no address such as 0x1000 behind load or store")?;
            sink.touch(&Touch { address, bytes: 1, write, thread, nanos: 0, latency: 0 })?;
            touched = true;
        }
        if !touched {
            sink.skip("instruction without data");
        }
        Ok(())
    })
}
