//! ChampSim's traces: 64-byte records, one for each instruction.
//!
//! In: records of `u64 ip, u8 is_branch, u8 branch_taken, u8 destination_registers[2], u8 source_registers[4],
//! u64 destination_memory[2], u64 source_memory[4]`, little endian (`inc/trace_instruction.h` of the project; a memory
//! operand of 0 is none). Out: the loads of each instruction, then its stores, each of one line: the format has no sizes,
//! no time and no threads. Must not: read the longer records of CloudSuite.

use std::io::BufRead;

use crate::error::TraceError;
use crate::import::{Sink, Touch, next_record};

pub(crate) const RECORD_BYTES: usize = 64;
/// Where the operands that are written begin; two of 8 bytes.
pub(crate) const DESTINATIONS: usize = 16;
/// Where the operands that are read begin; four of 8 bytes.
pub(crate) const SOURCES: usize = 32;
const FORMAT: &str = "ChampSim";

pub(super) fn read(input: &mut dyn BufRead, sink: &mut Sink<'_>) -> Result<(), TraceError> {
    let mut record = [0; RECORD_BYTES];
    let mut offset = 0_u64;
    while next_record(input, &mut record, offset, FORMAT, "")? {
        if record[8] > 1 || record[9] > 1 {
            let reason = "is_branch and branch_taken are not 0 or 1: no ChampSim record of 64 bytes begins here";
            return Err(TraceError::record(FORMAT, offset, reason));
        }
        let mut touched = false;
        for (from, to, write) in [(SOURCES, RECORD_BYTES, false), (DESTINATIONS, SOURCES, true)] {
            for operand in record[from..to].chunks_exact(8) {
                let address = operand.iter().rev().fold(0_u64, |address, &byte| address << 8 | u64::from(byte));
                if address != 0 {
                    touched = true;
                    sink.touch(&Touch { address, bytes: 1, write, thread: 0, nanos: 0, latency: 0 })?;
                }
            }
        }
        if !touched {
            sink.skip("instruction without data");
        }
        offset += RECORD_BYTES as u64;
    }
    Ok(())
}
