//! From what other tools record to a trace.
//!
//! In: the bytes of a recording, as they are or compressed by gzip or zstd, and what the recording itself does not say ([`ImportOptions`]).
//! Out: a trace, and an [`ImportReport`] of what went in and what was left out. Must not: hold the recording in memory,
//! skip a line it does not understand without counting it, or present samples or regions as every access.

pub(crate) mod champsim;
mod csv;
mod damon;
mod drmemtrace;
mod execlog;
pub(crate) mod gem5;
mod hook;
mod lackey;
mod lines;
mod oracle_general;
mod perf_script;
mod unpack;

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use rustc_hash::FxHashMap;
use terrace_core::units::{PAGE_SHIFT, Time, Vpn};

pub use csv::{AddressBase, Column, CsvColumns};
pub use damon::DamonOptions;
pub use perf_script::PerfField;

use crate::error::TraceError;
use crate::header::{Header, Provenance, read_up_to};
use crate::index::Summary;
use crate::map::{MapPiece, NumberBy, Numbering, Process, ProcessId, Region};
use crate::record::{Access, Change, Event, Pages, ThreadId};
use crate::writer::Writer;

/// What a recording is.
#[derive(Clone, Debug, PartialEq)]
pub enum ImportFormat {
    /// Text of `valgrind --tool=lackey --trace-mem=yes`.
    Lackey,
    /// 12-byte records of DynamoRIO's drmemtrace.
    Drmemtrace,
    /// Text of drmemtrace's `view` tool.
    DrmemtraceView,
    /// Text of `perf script` over memory samples; the fields it was asked for with `-F`, in any order.
    PerfScript(Vec<PerfField>),
    /// DAMON: `perf script` over its tracepoints, or `damo report raw`.
    Damon(DamonOptions),
    /// Text columns; with [`CsvColumns::libcachesim`] those of libCacheSim.
    Csv(CsvColumns),
    /// 64-byte records of ChampSim.
    ChampSim,
    /// Packet trace of gem5's memory probe.
    Gem5,
    /// Text of gem5's `decode_packet_trace.py`.
    Gem5Text,
    /// Text of QEMU's plugin execlog.
    Execlog,
    /// 24-byte records of libCacheSim.
    OracleGeneral,
    /// What the recorder behind [`crate::hook`] writes.
    Hook,
}

/// What a recording does not say about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportOptions {
    /// The program traced, in words, for the header.
    pub workload: String,
    /// How pages are numbered; `None` takes what suits the format: pages for objects of libCacheSim, blocks for all others.
    pub number_by: Option<NumberBy>,
    /// Whether to keep the cache line of each access. An access over several lines then counts once for each.
    pub lines: bool,
    /// Nanoseconds a time unit, for formats with time.
    pub time_resolution_nanos: u64,
    /// Accesses that one sample stands for, for sampled formats; `None` if the recording says so itself.
    pub period: Option<u64>,
    /// By how much the traced program was shrunk against the one that is meant.
    pub scale: f64,
    /// Count and skip text lines that cannot be understood, instead of stopping at the first.
    pub skip_bad_lines: bool,
    /// At an error, keep what was whole before it and report the error in [`ImportReport::damage`].
    pub keep_whole_prefix: bool,
    /// The most bytes that a compressed recording is decompressed to.
    pub most_unpacked: u64,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions {
            workload: String::new(),
            number_by: None,
            lines: true,
            time_resolution_nanos: 1000,
            period: None,
            scale: 1.0,
            skip_bad_lines: false,
            keep_whole_prefix: false,
            most_unpacked: 64 << 30,
        }
    }
}

/// What an import did.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ImportReport {
    /// Totals of the trace written.
    pub summary: Summary,
    /// Records of the recording that became accesses or events. One record may become several accesses.
    pub records: u64,
    /// Records left out, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// What was taken for granted about the recording as a whole, such as the base of its addresses.
    pub notes: Vec<&'static str>,
    /// The error that ended the import early, with [`ImportOptions::keep_whole_prefix`].
    #[serde(serialize_with = "as_text")]
    pub damage: Option<TraceError>,
}

fn as_text<S: serde::Serializer>(error: &Option<TraceError>, to: S) -> Result<S::Ok, S::Error> {
    match error {
        Some(error) => to.collect_str(error),
        None => to.serialize_none(),
    }
}

/// Converts a recording to a trace.
///
/// # Errors
/// [`TraceError::Line`] or [`TraceError::Record`] where the recording cannot be understood; [`TraceError::NoAccesses`]
/// where it was understood to its end and holds none (but for [`ImportFormat::Hook`], whose callers know why a program
/// made none); [`TraceError::Option`] for options that make no sense; [`TraceError::Io`] where a stream fails.
pub fn import(
    format: &ImportFormat,
    mut input: impl BufRead,
    mut output: impl Write,
    options: &ImportOptions,
) -> Result<ImportReport, TraceError> {
    let report = import_any(format, &mut *unpack::unpacked(&mut input, options.most_unpacked)?, &mut output, options)?;
    let nothing = report.summary.accesses == 0 && report.summary.events == 0;
    match report.damage {
        None if nothing && *format != ImportFormat::Hook => {
            let skipped: Vec<_> =
                report.skipped.iter().map(|(reason, count)| format!(", {count} x {reason}")).collect();
            Err(TraceError::NoAccesses { skipped: skipped.concat() })
        }
        _ => Ok(report),
    }
}

fn import_any(
    format: &ImportFormat,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    options: &ImportOptions,
) -> Result<ImportReport, TraceError> {
    let timed = Header {
        workload: options.workload.clone(),
        provenance: Provenance::Exact,
        time_resolution_nanos: Some(options.time_resolution_nanos),
        lines: options.lines,
        latency: None,
        scale: options.scale,
        processes: false,
    };
    let mut run = |header: Header, read: &mut dyn FnMut(&mut Sink<'_>) -> Result<(), TraceError>| {
        drive(header, NumberBy::Block, output, options, read)
    };
    match format {
        ImportFormat::Lackey => {
            let header = Header { time_resolution_nanos: None, ..timed };
            run(header, &mut |sink| lackey::read(input, sink, options))
        }
        ImportFormat::Drmemtrace => run(timed, &mut |sink| drmemtrace::read_binary(input, sink)),
        ImportFormat::DrmemtraceView => run(timed, &mut |sink| drmemtrace::read_view(input, sink, options)),
        ImportFormat::PerfScript(fields) => {
            let header = perf_script::header(timed, fields, options)?;
            run(header, &mut |sink| perf_script::read(input, sink, fields, options))
        }
        ImportFormat::Damon(damon) => {
            let header = damon::header(timed, damon);
            run(header, &mut |sink| damon::read(input, sink, damon, options))
        }
        ImportFormat::Csv(columns) => {
            let header = csv::header(timed, columns, options);
            let by_default = if columns.objects { NumberBy::Page } else { NumberBy::Block };
            drive(header, by_default, output, options, &mut |sink| csv::read(input, sink, columns, options))
        }
        ImportFormat::ChampSim => {
            let header = Header { time_resolution_nanos: None, ..timed };
            run(header, &mut |sink| champsim::read(input, sink))
        }
        ImportFormat::Execlog => {
            let header = Header { time_resolution_nanos: None, ..timed };
            run(header, &mut |sink| execlog::read(input, sink, options))
        }
        ImportFormat::Gem5 => run(timed, &mut |sink| gem5::read_protobuf(input, sink)),
        ImportFormat::Gem5Text => run(timed, &mut |sink| gem5::read_text(input, sink, options)),
        ImportFormat::OracleGeneral => {
            let header = Header { lines: false, time_resolution_nanos: Some(1_000_000_000), ..timed };
            drive(header, NumberBy::Page, output, options, &mut |sink| oracle_general::read(input, sink))
        }
        ImportFormat::Hook => {
            let (head, begin) = hook::read_head(input)?;
            let header = match options.period {
                // The program that wrote the recording sampled it; the recording does not say so itself.
                Some(period) if period > 1 => {
                    Header { provenance: Provenance::Sampled { period }, ..hook::header(timed, &head) }
                }
                _ => hook::header(timed, &head),
            };
            run(header, &mut |sink| hook::read(input, sink, begin))
        }
    }
}

fn drive(
    header: Header,
    by_default: NumberBy,
    output: &mut dyn Write,
    options: &ImportOptions,
    read: &mut dyn FnMut(&mut Sink<'_>) -> Result<(), TraceError>,
) -> Result<ImportReport, TraceError> {
    let mut sink = Sink::new(Writer::new(output, header)?, options.number_by.unwrap_or(by_default));
    let damage = match read(&mut sink) {
        Ok(()) => None,
        Err(error) if options.keep_whole_prefix => Some(error),
        Err(error) => return Err(error),
    };
    sink.put_map()?;
    let (_, summary) = sink.writer.finish()?;
    Ok(ImportReport { summary, records: sink.records, skipped: sink.skipped, notes: sink.notes, damage })
}

/// One access as a recording tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) write: bool,
    /// The recording's own number of the thread.
    pub(crate) thread: u64,
    /// The recording's own clock; the first time seen becomes zero.
    pub(crate) nanos: u64,
    pub(crate) latency: u32,
}

/// Addresses of user programs on x86-64 and arm64 lie below this, five-level paging included.
pub(crate) const USER_END: u64 = 1 << 57;

/// Where importers put what they read: renumbers pages and threads, and splits what crosses a line or page.
pub(crate) struct Sink<'a> {
    writer: Writer<&'a mut dyn Write>,
    numbering: Numbering,
    threads: FxHashMap<u64, ThreadId>,
    last_thread: (u64, ThreadId),
    first_nanos: Option<u64>,
    period: Option<u64>,
    pub(crate) records: u64,
    skipped: BTreeMap<&'static str, u64>,
    notes: Vec<&'static str>,
}

impl<'a> Sink<'a> {
    fn new(writer: Writer<&'a mut dyn Write>, by: NumberBy) -> Sink<'a> {
        Sink {
            writer,
            numbering: Numbering::new(by),
            threads: FxHashMap::default(),
            last_thread: (0, ThreadId(0)),
            first_nanos: None,
            period: None,
            records: 0,
            skipped: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    /// Counts a record that is left out.
    pub(crate) fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_default() += 1;
    }

    /// Says what was taken for granted about the recording as a whole.
    pub(crate) fn note(&mut self, what: &'static str) {
        self.notes.push(what);
    }

    /// Adds an access, as one access for each line (or page, where the trace keeps no lines) that it covers.
    pub(crate) fn touch(&mut self, touch: &Touch) -> Result<(), TraceError> {
        if touch.address >= USER_END {
            self.skip("address of the kernel");
            return Ok(());
        }
        self.records += 1;
        let thread = if self.last_thread.0 == touch.thread && !self.threads.is_empty() {
            self.last_thread.1
        } else {
            self.thread(touch.thread)?
        };
        let time = self.time(touch.nanos);
        let step: u64 = if self.writer.header().lines { 64 } else { 1 << PAGE_SHIFT };
        let last = touch.address.saturating_add(touch.bytes.max(1) - 1).min(USER_END - 1);
        let mut address = touch.address;
        loop {
            let page = self.numbering.page(Vpn::of_address(address)).map_err(|_| self.out_of_ids())?;
            if self.numbering.has_fresh() {
                self.put_map()?;
            }
            let access = if touch.write { Access::write(page) } else { Access::read(page) };
            let line = (address >> 6) as u8 & 63;
            self.writer.access(access.on_line(line).at(time).by(thread).taking(touch.latency))?;
            address = (address & !(step - 1)) + step;
            if address > last {
                return Ok(());
            }
        }
    }

    /// Adds an access to an object whose number, any 64 bits, stands in the place of a page number.
    pub(crate) fn object(&mut self, object: u64, write: bool, nanos: u64) -> Result<(), TraceError> {
        self.records += 1;
        let time = self.time(nanos);
        let page = self.numbering.page(Vpn(object)).map_err(|_| self.out_of_ids())?;
        if self.numbering.has_fresh() {
            self.put_map()?;
        }
        let access = if write { Access::write(page) } else { Access::read(page) };
        self.writer.access(access.at(time))
    }

    /// Adds an event over a range of addresses, as one event for each run of consecutive page ids.
    pub(crate) fn range_event(
        &mut self,
        nanos: u64,
        addresses: std::ops::Range<u64>,
        change: impl Fn(Pages) -> Change,
    ) -> Result<(), TraceError> {
        let time = self.time(nanos);
        let first = Vpn::of_address(addresses.start);
        let count = addresses.end.saturating_add((1 << PAGE_SHIFT) - 1) / (1 << PAGE_SHIFT) - first.0;
        let mut runs = Vec::new();
        self.numbering.range(first, count, |pages| runs.push(pages)).map_err(|_| self.out_of_ids())?;
        self.put_map()?;
        runs.into_iter().try_for_each(|pages| self.writer.event(Event { time, change: change(pages) }))
    }

    /// Says how many accesses each sample stands for from here on, if that changed.
    pub(crate) fn period(&mut self, nanos: u64, period: u64) -> Result<(), TraceError> {
        if self.period == Some(period) {
            return Ok(());
        }
        self.period = Some(period);
        let time = self.time(nanos);
        self.writer.event(Event { time, change: Change::Period(period) })
    }

    /// A process of which addresses will be.
    pub(crate) fn process(&mut self, number: ProcessId, process: Process) -> Result<(), TraceError> {
        self.writer.map(&MapPiece::Process(number, process))
    }

    /// From here on addresses are of this process.
    pub(crate) fn enter(&mut self, process: ProcessId) {
        self.numbering.enter(process);
    }

    /// Adds an event over all pages that a process has had, as one event for each run of consecutive page ids.
    pub(crate) fn process_event(
        &mut self,
        nanos: u64,
        process: ProcessId,
        change: impl Fn(Pages) -> Change,
    ) -> Result<(), TraceError> {
        let time = self.time(nanos);
        let runs = self.numbering.pages_of(process);
        runs.into_iter().try_for_each(|pages| self.writer.event(Event { time, change: change(pages) }))
    }

    /// Adds a named address range.
    pub(crate) fn region(&mut self, region: Region) -> Result<(), TraceError> {
        self.writer.map(&MapPiece::Region(region))
    }

    fn time(&mut self, nanos: u64) -> Time {
        Time::from_nanos(nanos.saturating_sub(*self.first_nanos.get_or_insert(nanos)))
    }

    fn thread(&mut self, raw: u64) -> Result<ThreadId, TraceError> {
        let thread = match self.threads.get(&raw) {
            Some(&thread) => thread,
            None => {
                let number = u16::try_from(self.threads.len()).map_err(|_| TraceError::Unwritable {
                    record: self.writer.written(),
                    reason: "a trace holds at most 65536 threads".to_owned(),
                })?;
                self.threads.insert(raw, ThreadId(number));
                self.writer.map(&MapPiece::Thread(ThreadId(number), raw))?;
                ThreadId(number)
            }
        };
        self.last_thread = (raw, thread);
        Ok(thread)
    }

    fn put_map(&mut self) -> Result<(), TraceError> {
        let fresh = self.numbering.take_fresh();
        fresh.iter().try_for_each(|piece| self.writer.map(piece))
    }

    fn out_of_ids(&self) -> TraceError {
        TraceError::Unwritable {
            record: self.writer.written(),
            reason: "the recording touches more than 2^32 page ids (16 TiB); number by page instead, or cut it first"
                .to_owned(),
        }
    }
}
/// Reads the next record of a format whose records are all of one length; `false` at the end. `doubt` asks whether it is that format.
fn next_record(
    mut input: &mut dyn BufRead,
    record: &mut [u8],
    offset: u64,
    format: &'static str,
    doubt: &str,
) -> Result<bool, TraceError> {
    match read_up_to(&mut input, record, offset)? {
        0 => Ok(false),
        got if got < record.len() => {
            let reason = format!("the last record is cut off;{doubt} --keep-whole keeps those before it");
            Err(TraceError::record(format, offset, reason))
        }
        _ => Ok(true),
    }
}
