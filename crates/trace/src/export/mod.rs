//! From a trace to what other tools read.
//!
//! In: a [`Reader`], and something to write to. Out: lackey text, oracleGeneral records, CSV (our columns or
//! libCacheSim's), ChampSim records, gem5 packets, and Parquet with the feature `parquet`. Must not: hold the trace in
//! memory, but for oracleGeneral with next accesses, which cannot be known otherwise.
//!
//! Pages are written as the addresses that the map knows; pages without one as if the trace began at address zero.
//! Events have no place in these formats; how many were left out is returned.

#[cfg(feature = "parquet")]
mod parquet;
mod simulators;

use std::io::{BufWriter, Read, Write};

use terrace_core::units::{PAGE_SHIFT, PageId, Vpn};

#[cfg(feature = "parquet")]
pub use self::parquet::parquet;
pub use self::simulators::{champsim, gem5, libcachesim_csv};
use crate::error::TraceError;
use crate::map::PageMap;
use crate::reader::Reader;
use crate::record::Access;

/// What an export did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ExportReport {
    /// Accesses written.
    pub accesses: u64,
    /// Events left out, because the format has no place for them.
    pub events_left_out: u64,
}

/// Calls `each` with every batch of accesses and the map as it stands; counts the events between.
pub(crate) fn each_batch<R: Read>(
    reader: &mut Reader<R>,
    mut each: impl FnMut(&[Access], &PageMap) -> Result<(), TraceError>,
) -> Result<ExportReport, TraceError> {
    let mut batch = vec![Access::default(); 4096];
    let mut report = ExportReport::default();
    loop {
        let count = reader.fill(&mut batch)?;
        if count > 0 {
            each(&batch[..count], reader.map())?;
            report.accesses += count as u64;
        } else if reader.take_event().is_some() {
            report.events_left_out += 1;
        } else {
            return Ok(report);
        }
    }
}

/// The page's number in the traced program, or its id where that is not known.
pub(crate) fn vpn_of(map: &PageMap, page: PageId) -> Vpn {
    map.vpn(page).unwrap_or(Vpn(u64::from(page.0)))
}

fn failed(error: &std::io::Error) -> TraceError {
    TraceError::io("writing the export", 0, error)
}

/// As lackey writes: ` L addr,8` and ` S addr,8`. The size is made up (no access then crosses a line); thread, time and
/// latency are lost.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn lackey<R: Read>(reader: &mut Reader<R>, output: impl Write) -> Result<ExportReport, TraceError> {
    let mut output = BufWriter::with_capacity(1 << 16, output);
    let report = each_batch(reader, |batch, map| {
        for access in batch {
            let kind = if access.is_write() { 'S' } else { 'L' };
            let address = (vpn_of(map, access.page()).0 << PAGE_SHIFT) | (u64::from(access.line()) << 6);
            writeln!(output, " {kind} {address:08x},8").map_err(|error| failed(&error))?;
        }
        Ok(())
    })?;
    output.flush().map_err(|error| failed(&error))?;
    Ok(report)
}

/// Columns `address,operation,thread,time_ns`, and `latency` where the trace has it; the first line names them.
/// [`crate::import::CsvColumns::default`] reads them again.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn csv<R: Read>(reader: &mut Reader<R>, output: impl Write) -> Result<ExportReport, TraceError> {
    let mut output = BufWriter::with_capacity(1 << 16, output);
    let with_latency = reader.header().latency.is_some();
    let more = if with_latency { ",latency" } else { "" };
    writeln!(output, "address,operation,thread,time_ns{more}").map_err(|error| failed(&error))?;
    let report = each_batch(reader, |batch, map| {
        for access in batch {
            let kind = if access.is_write() { "write" } else { "read" };
            let address = (vpn_of(map, access.page()).0 << PAGE_SHIFT) | (u64::from(access.line()) << 6);
            let thread = map.thread(access.thread()).unwrap_or(u64::from(access.thread().0));
            let time = access.time().as_nanos();
            let written = if with_latency {
                writeln!(output, "{address:#x},{kind},{thread},{time},{}", access.latency())
            } else {
                writeln!(output, "{address:#x},{kind},{thread},{time}")
            };
            written.map_err(|error| failed(&error))?;
        }
        Ok(())
    })?;
    output.flush().map_err(|error| failed(&error))?;
    Ok(report)
}

/// What stands for the next access in oracleGeneral where it is not given.
pub const NEXT_NOT_GIVEN: i64 = -2;
/// What stands for the next access in oracleGeneral where there is none.
pub const NO_NEXT: i64 = i64::MAX;

/// libCacheSim's oracleGeneral: for each access u32 seconds, u64 page number, u32 4096, i64 next access.
///
/// The next access, counted in accesses from 0, is what clairvoyant policies need. With `next_accesses` it is given,
/// which takes 16 bytes of memory for each access; without it the export streams.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn oracle_general<R: Read>(
    reader: &mut Reader<R>,
    output: impl Write,
    next_accesses: bool,
) -> Result<ExportReport, TraceError> {
    let mut output = BufWriter::with_capacity(1 << 16, output);
    let mut put = |seconds: u32, object: u64, next: i64| {
        let mut record = [0; 24];
        record[..4].copy_from_slice(&seconds.to_le_bytes());
        record[4..12].copy_from_slice(&object.to_le_bytes());
        record[12..16].copy_from_slice(&4096_u32.to_le_bytes());
        record[16..].copy_from_slice(&next.to_le_bytes());
        output.write_all(&record).map_err(|error| failed(&error))
    };
    let seconds = |access: &Access| u32::try_from(access.time().as_secs()).unwrap_or(u32::MAX);
    let report = if next_accesses {
        let mut kept: Vec<(u32, u32)> = Vec::new();
        let report = each_batch(reader, |batch, _| {
            kept.extend(batch.iter().map(|access| (access.page().0, seconds(access))));
            Ok(())
        })?;
        let pages = kept.iter().map(|(page, _)| *page as usize + 1).max().unwrap_or(0);
        let mut next_of_page = vec![NO_NEXT; pages];
        let mut next: Vec<i64> = kept
            .iter()
            .enumerate()
            .rev()
            .map(|(index, (page, _))| std::mem::replace(&mut next_of_page[*page as usize], index as i64))
            .collect();
        next.reverse();
        for ((page, seconds), next) in kept.into_iter().zip(next) {
            put(seconds, vpn_of(reader.map(), PageId(page)).0, next)?;
        }
        report
    } else {
        each_batch(reader, |batch, map| {
            batch.iter().try_for_each(|access| put(seconds(access), vpn_of(map, access.page()).0, NEXT_NOT_GIVEN))
        })?
    };
    output.flush().map_err(|error| failed(&error))?;
    Ok(report)
}
