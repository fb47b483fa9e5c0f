//! DAMON's region snapshots: `perf script` over its tracepoints, and `damo report raw`.
//!
//! In: text, and the intervals, which only part of it holds. Out: one region event for each region of a snapshot, in a
//! trace marked regional. Must not: invent accesses. A region says in how many checks of an interval some page of it
//! was accessed; what to replay from that is the simulator's choice.
//!
//! The tracepoint prints addresses in decimal, damo prints them in hexadecimal.

use std::io::BufRead;

use crate::error::TraceError;
use crate::header::{Header, Provenance};
use crate::import::lines::{BadLine, FOREIGN, decimal, each_line, hexadecimal, no_aside, seconds, words};
use crate::import::{ImportOptions, Sink, USER_END};
use crate::record::Change;

/// What a DAMON recording does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DamonOptions {
    /// Nanoseconds between two checks; 0 if not known.
    pub sample_nanos: u64,
    /// Nanoseconds over which a count was gathered; 0 if not known.
    pub aggregation_nanos: u64,
    /// The target to keep; `None` keeps the first that appears. Targets are address spaces, and a trace holds one.
    pub target: Option<u64>,
}

pub(super) fn header(timed: Header, damon: &DamonOptions) -> Header {
    let provenance =
        Provenance::Regional { sample_nanos: damon.sample_nanos, aggregation_nanos: damon.aggregation_nanos };
    Header { provenance, lines: false, ..timed }
}

pub(super) fn read(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    damon: &DamonOptions,
    options: &ImportOptions,
) -> Result<(), TraceError> {
    let mut raw = Raw { target: None, end_nanos: 0 };
    let mut kept = damon.target;
    each_line(input, sink, "DAMON", options, |line, sink| {
        let fields: Vec<&[u8]> = words(line).collect();
        let Some(&first) = fields.first() else {
            return Ok(());
        };
        if let Some(at) = fields.iter().position(|word| word.starts_with(b"damon:")) {
            return trace_line(&fields, at, &mut kept, sink);
        }
        match first {
            b"target_id:" => raw.target = Some(named_number(&fields, 1)?),
            b"monitoring_end:" => raw.end_nanos = spoken_time(&fields[1..]).ok_or("the time makes no sense")?,
            b"nr_regions:" | b"monitoring_start:" | b"monitoring_duration:" | b"base_time_absolute:" => {}
            _ => {
                no_aside(line)?;
                // A region of which the beginning is lost is damage; what is no region, perf or the program said.
                let region = first.contains(&b'-') && line.contains(&b':');
                let target = raw.target.ok_or_else(|| match region {
                    true => BadLine::from("a region outside a snapshot of a target"),
                    false => BadLine::Aside(FOREIGN),
                })?;
                return raw_line(line, target, raw.end_nanos, &mut kept, sink);
            }
        }
        Ok(())
    })
}

/// Where a snapshot of the raw text stands.
struct Raw {
    target: Option<u64>,
    end_nanos: u64,
}

fn trace_line(fields: &[&[u8]], at: usize, kept: &mut Option<u64>, sink: &mut Sink<'_>) -> Result<(), BadLine> {
    let target_name: &[u8] = match fields[at] {
        b"damon:damon_aggregated:" => b"target_id=",
        b"damon:damos_before_apply:" => b"target_idx=",
        _ => {
            sink.skip("other tracepoint");
            return Ok(());
        }
    };
    let time = at.checked_sub(1).and_then(|before| fields[before].strip_suffix(b":")).and_then(seconds);
    let nanos = time.ok_or("no time such as 123.456789: before the tracepoint")?;
    let target = fields[at..].iter().find_map(|word| word.strip_prefix(target_name)).and_then(decimal);
    let target = target.ok_or("no target")?;
    // "<start>-<end>: <accesses> [<age>]" are the last fields.
    let range = fields[at..].iter().rposition(|word| word.ends_with(b":") && word.contains(&b'-'));
    let range = at + range.filter(|&range| range > 0).ok_or("no address range")?;
    let (start, end) = range_of(fields[range], decimal).ok_or("the address range makes no sense")?;
    let accesses = named_number(fields, range + 1)?;
    let age = if fields.len() > range + 2 { named_number(fields, range + 2)? } else { 0 };
    put(Region { target, nanos, start, end, accesses, age }, kept, sink)
}

fn raw_line(line: &[u8], target: u64, nanos: u64, kept: &mut Option<u64>, sink: &mut Sink<'_>) -> Result<(), BadLine> {
    // "563ebaa00000-563ebc99e000(  31.617 MiB):        1 [age]"
    let colon = line.iter().rposition(|&byte| byte == b':').ok_or("no region such as start-end(size): count")?;
    let range = line[..colon].split(|&byte| byte == b'(').next().unwrap_or_default().trim_ascii();
    let (start, end) = range_of(range, hexadecimal).ok_or("the address range makes no sense")?;
    let counts: Vec<&[u8]> = words(&line[colon + 1..]).collect();
    let accesses = named_number(&counts, 0)?;
    let age = if counts.len() > 1 { named_number(&counts, 1)? } else { 0 };
    put(Region { target, nanos, start, end, accesses, age }, kept, sink)
}

struct Region {
    target: u64,
    nanos: u64,
    start: u64,
    end: u64,
    accesses: u64,
    age: u64,
}

fn put(region: Region, kept: &mut Option<u64>, sink: &mut Sink<'_>) -> Result<(), BadLine> {
    if *kept.get_or_insert(region.target) != region.target {
        sink.skip("region of another target");
        return Ok(());
    }
    if region.end > USER_END {
        sink.skip("address of the kernel");
        return Ok(());
    }
    sink.records += 1;
    let accesses = u32::try_from(region.accesses).map_err(|_| BadLine::from("the count is impossible"))?;
    let age = u32::try_from(region.age).unwrap_or(u32::MAX);
    let change = |pages| Change::Region { pages, accesses, age };
    Ok(sink.range_event(region.nanos, region.start..region.end, change)?)
}

fn range_of(word: &[u8], number: fn(&[u8]) -> Option<u64>) -> Option<(u64, u64)> {
    let word = word.strip_suffix(b":").unwrap_or(word);
    let dash = word.iter().position(|&byte| byte == b'-')?;
    let (start, end) = (number(&word[..dash])?, number(&word[dash + 1..])?);
    (start < end).then_some((start, end))
}

fn named_number(fields: &[&[u8]], at: usize) -> Result<u64, BadLine> {
    fields.get(at).and_then(|word| decimal(word)).ok_or_else(|| BadLine::from("a count is missing or no number"))
}

/// damo speaks its times: "0 ns", "104.599 ms", "8 m 59.809 s".
fn spoken_time(words: &[&[u8]]) -> Option<u64> {
    if words.is_empty() || !words.len().is_multiple_of(2) {
        return None;
    }
    words.chunks(2).try_fold(0_u64, |total, pair| {
        let unit = match pair[1] {
            b"ns" => 1.0,
            b"us" => 1e3,
            b"ms" => 1e6,
            b"s" => 1e9,
            b"m" => 60e9,
            b"h" => 3600e9,
            b"d" => 86_400e9,
            _ => return None,
        };
        let value: f64 = std::str::from_utf8(pair[0]).ok()?.replace(',', "").parse().ok()?;
        (value.is_finite() && value >= 0.0).then(|| total.saturating_add((value * unit).round() as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spoken_times_are_added_up() {
        let speak = |text: &str| spoken_time(&words(text.as_bytes()).collect::<Vec<_>>());
        assert_eq!(speak("0 ns"), Some(0));
        assert_eq!(speak("104.599 ms"), Some(104_599_000));
        assert_eq!(speak("8 m 59.809 s"), Some(539_809_000_000));
        assert_eq!(speak("soon"), None);
        assert_eq!(speak("1 fortnight"), None);
    }
}
