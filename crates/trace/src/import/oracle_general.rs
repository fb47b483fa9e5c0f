//! libCacheSim's oracleGeneral: 24-byte records of u32 seconds, u64 object, u32 size, i64 next access.
//!
//! In: records. Out: one read for each, the object taken as a page number. Must not: use the object's
//! size or the next access, which a page trace has no place for; both can be made again at export.

use std::io::BufRead;

use crate::error::TraceError;
use crate::import::{Sink, next_record};

pub(crate) const RECORD_BYTES: usize = 24;
const FORMAT: &str = "oracleGeneral";

pub(super) fn read(input: &mut dyn BufRead, sink: &mut Sink<'_>) -> Result<(), TraceError> {
    let mut record = [0; RECORD_BYTES];
    let mut offset = 0_u64;
    while next_record(input, &mut record, offset, FORMAT, " is this oracleGeneral?")? {
        let seconds = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
        let object = u64::from_le_bytes([
            record[4], record[5], record[6], record[7], record[8], record[9], record[10], record[11],
        ]);
        sink.object(object, false, u64::from(seconds) * 1_000_000_000)?;
        offset += RECORD_BYTES as u64;
    }
    Ok(())
}
