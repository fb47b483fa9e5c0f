//! `perf script` over memory samples: hardware events with a data address (PEBS, IBS, SPE), or page faults.
//!
//! In: text, and the fields it was asked for with `-F`; time, event and addr must be among them. Out: one access for
//! each sample with a user address, marked sampled; its weight as latency in cycles; a period event where the period
//! changes; a huge-page event where a sample says that its data page is 2 MiB. Must not: take samples for all accesses.
//!
//! perf prints fields in an order of its own, whatever order they were asked for in: comm, pid/tid, cpu, time, period,
//! event, addr, data_src, weight, ip, phys_addr, data_page_size.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::str::FromStr;

use crate::error::TraceError;
use crate::header::{Header, LatencyUnit, Provenance};
use crate::import::lines::{BadLine, decimal, each_line, hexadecimal, no_aside, seconds, words};
use crate::import::{ImportOptions, Sink, Touch};
use crate::record::Change;

/// A field of `perf script -F`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfField {
    /// `comm`
    Comm,
    /// `pid`
    Pid,
    /// `tid`
    Tid,
    /// `cpu`
    Cpu,
    /// `time`
    Time,
    /// `period`
    Period,
    /// `event`
    Event,
    /// `addr`
    Address,
    /// `data_src`
    DataSource,
    /// `weight`
    Weight,
    /// `ip`
    Ip,
    /// `phys_addr`
    PhysicalAddress,
    /// `data_page_size`
    DataPageSize,
}

impl FromStr for PerfField {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<PerfField, TraceError> {
        Ok(match name.trim() {
            "comm" => PerfField::Comm,
            "pid" => PerfField::Pid,
            "tid" => PerfField::Tid,
            "cpu" => PerfField::Cpu,
            "time" => PerfField::Time,
            "period" => PerfField::Period,
            "event" => PerfField::Event,
            "addr" => PerfField::Address,
            "data_src" => PerfField::DataSource,
            "weight" => PerfField::Weight,
            "ip" => PerfField::Ip,
            "phys_addr" => PerfField::PhysicalAddress,
            "data_page_size" => PerfField::DataPageSize,
            other => {
                return Err(TraceError::Option {
                    option: "fields",
                    reason: format!(
                        "{other:?} is none of comm, pid, tid, cpu, time, period, event, addr, data_src, weight, ip, \
                         phys_addr, data_page_size"
                    ),
                });
            }
        })
    }
}

pub(super) fn header(timed: Header, fields: &[PerfField], options: &ImportOptions) -> Result<Header, TraceError> {
    for (needed, name) in
        [(PerfField::Time, "time"), (PerfField::Event, "event"), (PerfField::Address, "addr"), (PerfField::Tid, "tid")]
    {
        if !fields.contains(&needed) {
            let reason =
                format!("{name} is missing; run `perf script -F comm,tid,time,period,event,addr,data_src,weight`");
            return Err(TraceError::Option { option: "fields", reason });
        }
    }
    let latency = fields.contains(&PerfField::Weight).then_some(LatencyUnit::Cycles);
    Ok(Header { provenance: Provenance::Sampled { period: options.period.unwrap_or(0) }, latency, ..timed })
}

pub(super) fn read(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    fields: &[PerfField],
    options: &ImportOptions,
) -> Result<(), TraceError> {
    let has = |field| fields.contains(&field);
    let mut huge_blocks = BTreeSet::new();
    each_line(input, sink, "perf script", options, |line, sink| {
        if line.is_empty() {
            return Ok(());
        }
        no_aside(line)?;
        let words: Vec<&[u8]> = words(line).collect();
        let sample = Sample::split(&words, has(PerfField::Period))?;
        let address = sample.tail.first().and_then(|word| hexadecimal(word)).ok_or("no address after the event")?;
        if address == 0 {
            sink.skip("sample without address");
            return Ok(());
        }
        let (source, after_source) = if has(PerfField::DataSource) {
            split_source(&sample.tail[1..])
        } else {
            (&sample.tail[..0], &sample.tail[1..])
        };
        let latency = match has(PerfField::Weight) {
            true => after_source.first().and_then(|word| decimal(word)).ok_or("the weight is no number")?,
            false => 0,
        };
        if let (Some(period), None) = (sample.period, options.period) {
            sink.period(sample.nanos, period)?;
        }
        if has(PerfField::DataPageSize)
            && sample.tail.last() == Some(&&b"2M"[..])
            && address < super::USER_END
            && huge_blocks.insert(address >> 21)
        {
            let start = address >> 21 << 21;
            sink.range_event(sample.nanos, start..start + (1 << 21), Change::Huge)?;
        }
        let write = if source.is_empty() { event_is_store(sample.event) } else { is_store(source) };
        let latency = u32::try_from(latency).unwrap_or(u32::MAX);
        let (thread, nanos) = (sample.thread, sample.nanos);
        Ok(sink.touch(&Touch { address, bytes: 1, write, thread, nanos, latency })?)
    })
}

/// The parts of a line that every choice of fields has.
struct Sample<'w, 'l> {
    thread: u64,
    nanos: u64,
    period: Option<u64>,
    event: &'l [u8],
    tail: &'w [&'l [u8]],
}

impl<'w, 'l> Sample<'w, 'l> {
    /// The command may hold blanks and brackets, so the time, with its colon, is the first firm ground.
    fn split(words: &'w [&'l [u8]], with_period: bool) -> Result<Sample<'w, 'l>, BadLine> {
        let time_of = |word: &[u8]| word.strip_suffix(b":").filter(|text| text.contains(&b'.')).and_then(seconds);
        let at = words.iter().position(|word| time_of(word).is_some());
        // Call chains, and what perf and the program themselves say, have none.
        let at = at.ok_or(BadLine::Aside("line without a time such as 123.456789:"))?;
        let nanos = time_of(words[at]).ok_or("no time such as 123.456789:")?;
        let before = &words[..at];
        let before = match before.split_last() {
            Some((cpu, rest)) if cpu.starts_with(b"[") => rest,
            _ => before,
        };
        let thread = before.last().and_then(|word| word.rsplit(|&byte| byte == b'/').next()).and_then(decimal);
        let thread = thread.ok_or("no thread number before the time")?;
        let mut rest = &words[at + 1..];
        let mut period = None;
        if with_period {
            period = Some(rest.first().and_then(|word| decimal(word)).ok_or("the period is no number")?);
            rest = &rest[1..];
        }
        let (event, tail) = rest.split_first().ok_or("the line ends after the time")?;
        let event = event.strip_suffix(b":").ok_or("no event name with a colon after the time")?;
        Ok(Sample { thread, nanos, period, event, tail })
    }
}

/// Parts the words of data_src, `68100142 |OP LOAD|LVL L3 hit|...|BLK  N/A`, from those behind it. The last part has a
/// name and a value in words; the numbers behind it are the next field.
fn split_source<'w, 'l>(words: &'w [&'l [u8]]) -> (&'w [&'l [u8]], &'w [&'l [u8]]) {
    let last_bar = words.iter().rposition(|word| word.contains(&b'|'));
    let end = match last_bar {
        Some(bar) => (bar + 1..words.len()).find(|&at| hexadecimal(words[at]).is_some()).unwrap_or(words.len()),
        None => words.len().min(1),
    };
    words.split_at(end)
}

/// Whether the operation bits of a data source (PERF_MEM_OP_STORE is bit 2 of the value) or its text say store.
fn is_store(source: &[&[u8]]) -> bool {
    match source.first().and_then(|word| hexadecimal(word)) {
        Some(bits) => bits & 4 != 0,
        None => source.windows(2).any(|pair| pair[0].ends_with(b"|OP") && pair[1].starts_with(b"STORE")),
    }
}

/// Without a data source the event's name is all there is: `cpu/mem-stores/P`, `MEM_INST_RETIRED.ALL_STORES`.
fn event_is_store(event: &[u8]) -> bool {
    event.to_ascii_lowercase().windows(5).any(|window| window == b"store")
}
