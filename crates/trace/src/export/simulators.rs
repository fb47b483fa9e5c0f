//! From a trace to what simulators of caches, cores and memories read: libCacheSim's CSV, ChampSim, gem5.
//!
//! In: a [`Reader`], and something to write to. Out: the format's bytes, streamed. Must not: invent what the trace does
//! not hold, but where the format demands something: each such place is named below.

use std::io::{BufWriter, Read, Write};

use terrace_core::units::PAGE_SHIFT;

use crate::error::TraceError;
use crate::export::{ExportReport, each_batch, failed, vpn_of};
use crate::import::{champsim as records, gem5 as packets};
use crate::map::PageMap;
use crate::reader::Reader;
use crate::record::Access;
use crate::varint;

/// The address of an access's line.
fn address(map: &PageMap, access: &Access) -> u64 {
    (vpn_of(map, access.page()).0 << PAGE_SHIFT) | (u64::from(access.line()) << 6)
}

/// Streams the trace through `encode`, which makes the bytes of one access.
fn streamed<R: Read>(
    reader: &mut Reader<R>,
    output: impl Write,
    head: &[u8],
    mut encode: impl FnMut(&Access, &PageMap, &mut Vec<u8>),
) -> Result<ExportReport, TraceError> {
    let mut output = BufWriter::with_capacity(1 << 16, output);
    output.write_all(head).map_err(|error| failed(&error))?;
    let mut bytes = Vec::new();
    let report = each_batch(reader, |batch, map| {
        for access in batch {
            bytes.clear();
            encode(access, map, &mut bytes);
            output.write_all(&bytes).map_err(|error| failed(&error))?;
        }
        Ok(())
    })?;
    output.flush().map_err(|error| failed(&error))?;
    Ok(report)
}

/// libCacheSim's CSV: columns `time` (whole seconds), `obj_id` (the page's number), `obj_size` (4096), `op` (`read` or
/// `write`), named in the first line. Its programs read it with
/// `-t "time-col=1, obj-id-col=2, obj-size-col=3, op-col=4, obj-id-is-num=true, has-header=true"`.
/// [`crate::import::CsvColumns::libcachesim`] reads it again.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn libcachesim_csv<R: Read>(reader: &mut Reader<R>, output: impl Write) -> Result<ExportReport, TraceError> {
    streamed(reader, output, b"time,obj_id,obj_size,op\n", |access, map, bytes| {
        let operation = if access.is_write() { "write" } else { "read" };
        let (seconds, page) = (access.time().as_secs(), vpn_of(map, access.page()).0);
        bytes.extend_from_slice(format!("{seconds},{page},4096,{operation}\n").as_bytes());
    })
}

/// ChampSim: one record of 64 bytes for each access, an instruction that does nothing else. All have the same made-up
/// address of the instruction, and no registers, so that none waits for another: what ChampSim then says of cores means
/// nothing, what it says of caches and memory does. An access to address 0, which means none there, becomes one to 1.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn champsim<R: Read>(reader: &mut Reader<R>, output: impl Write) -> Result<ExportReport, TraceError> {
    streamed(reader, output, b"", |access, map, bytes| {
        let mut record = [0; records::RECORD_BYTES];
        record[..8].copy_from_slice(&0x40_0000_u64.to_le_bytes());
        let operand = if access.is_write() { records::DESTINATIONS } else { records::SOURCES };
        record[operand..operand + 8].copy_from_slice(&address(map, access).max(1).to_le_bytes());
        bytes.extend_from_slice(&record);
    })
}

/// gem5: a packet trace as its traffic generator plays it, one ReadReq or WriteReq of 8 bytes (made up; no access then
/// crosses a line) for each access, a tick a picosecond.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn gem5<R: Read>(reader: &mut Reader<R>, output: impl Write) -> Result<ExportReport, TraceError> {
    // obj_id = 1, tick_freq = 3.
    let mut header = vec![1 << 3 | 2, 7];
    header.extend_from_slice(b"terrace");
    header.push(3 << 3);
    varint::put(&mut header, packets::TICKS_A_SECOND);
    let mut head = packets::SIGNATURE.to_vec();
    varint::put(&mut head, header.len() as u64);
    head.extend_from_slice(&header);
    let mut packet = Vec::new();
    streamed(reader, output, &head, |access, map, bytes| {
        packet.clear();
        let command = if access.is_write() { packets::WRITE_REQUEST } else { packets::READ_REQUEST };
        let tick = access.time().as_nanos().saturating_mul(TICKS_A_NANOSECOND);
        for (field, number) in [(1, tick), (2, command), (3, address(map, access)), (4, 8)] {
            packet.push(field << 3);
            varint::put(&mut packet, number);
        }
        varint::put(bytes, packet.len() as u64);
        bytes.extend_from_slice(&packet);
    })
}

const TICKS_A_NANOSECOND: u64 = packets::TICKS_A_SECOND / 1_000_000_000;
