//! Text columns, of which the caller says what each holds.
//!
//! In: lines of fields with one separator, and a mapping ([`CsvColumns`]). Out: accesses. Must not: guess a column, or
//! know quoted fields that hold the separator; addresses and numbers need none.

use std::io::BufRead;
use std::str::FromStr;

use crate::error::TraceError;
use crate::header::{Header, LatencyUnit, Provenance};
use crate::import::lines::{BadLine, decimal, each_line, either, hexadecimal};
use crate::import::{ImportOptions, Sink, Touch};

/// A column, by place or by its name in the first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// Place, from 0.
    Place(usize),
    /// Name in the first line.
    Name(String),
}

impl FromStr for Column {
    type Err = TraceError;

    /// A number is a place, anything else a name.
    fn from_str(text: &str) -> Result<Column, TraceError> {
        Ok(text.parse().map_or_else(|_| Column::Name(text.to_owned()), Column::Place))
    }
}

/// What each column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvColumns {
    /// Between two fields.
    pub separator: u8,
    /// Whether the first line holds names. It must where a column is given by name.
    pub names: bool,
    /// The address, or the page's number.
    pub address: Column,
    /// Whether `address` holds page numbers.
    pub pages: bool,
    /// Whether `address` holds numbers of objects, any 64 bits, each taken as a page; their sizes are not used.
    pub objects: bool,
    /// Whether addresses without "0x" are hexadecimal.
    pub hexadecimal: bool,
    /// Read or write: r, read, l, load, get, gets, 0; w, write, s, store, set, add, cas, replace, append, prepend, incr,
    /// decr, update, 1; a delete of an object is left out. Without it every access is a read.
    pub operation: Option<Column>,
    /// Bytes accessed.
    pub size: Option<Column>,
    /// The thread's number.
    pub thread: Option<Column>,
    /// The time, in units of `time_unit_nanos`, with or without decimals.
    pub time: Option<Column>,
    /// Nanoseconds in the unit of `time`: 1 for ns, 1e9 for seconds.
    pub time_unit_nanos: u64,
    /// The latency.
    pub latency: Option<Column>,
    /// Its unit.
    pub latency_unit: LatencyUnit,
}

impl CsvColumns {
    /// Columns `time` (seconds), `obj_id` and `op`, as [`crate::export::libcachesim_csv`] names them. libCacheSim itself
    /// knows columns by their place alone.
    #[must_use]
    pub fn libcachesim() -> CsvColumns {
        let named = |name: &str| Column::Name(name.to_owned());
        CsvColumns {
            address: named("obj_id"),
            objects: true,
            operation: Some(named("op")),
            thread: None,
            time: Some(named("time")),
            time_unit_nanos: 1_000_000_000,
            ..CsvColumns::default()
        }
    }
}

impl Default for CsvColumns {
    /// Commas, names in the first line, and the columns that [`crate::export::csv`] writes.
    fn default() -> CsvColumns {
        let named = |name: &str| Some(Column::Name(name.to_owned()));
        CsvColumns {
            separator: b',',
            names: true,
            address: Column::Name("address".to_owned()),
            pages: false,
            objects: false,
            hexadecimal: false,
            operation: named("operation"),
            size: None,
            thread: named("thread"),
            time: named("time_ns"),
            time_unit_nanos: 1,
            latency: None,
            latency_unit: LatencyUnit::Nanoseconds,
        }
    }
}

pub(super) fn header(timed: Header, columns: &CsvColumns, options: &ImportOptions) -> Header {
    Header {
        time_resolution_nanos: columns.time.is_some().then_some(options.time_resolution_nanos),
        latency: columns.latency.is_some().then_some(columns.latency_unit),
        provenance: options.period.map_or(Provenance::Exact, |period| Provenance::Sampled { period }),
        lines: timed.lines && !columns.pages && !columns.objects,
        ..timed
    }
}

/// The mapping with every column as a place.
struct Places {
    address: usize,
    operation: Option<usize>,
    size: Option<usize>,
    thread: Option<usize>,
    time: Option<usize>,
    latency: Option<usize>,
}

impl Places {
    fn find(columns: &CsvColumns, names: &[&[u8]]) -> Result<Places, BadLine> {
        let place = |column: &Column| match column {
            Column::Place(place) => Ok(*place),
            Column::Name(name) => names
                .iter()
                .position(|found| *found == name.as_bytes())
                .ok_or_else(|| BadLine::Trace(no_such_column(name, names))),
        };
        let optional = |column: &Option<Column>| column.as_ref().map(place).transpose();
        Ok(Places {
            address: place(&columns.address)?,
            operation: optional(&columns.operation)?,
            size: optional(&columns.size)?,
            thread: optional(&columns.thread)?,
            time: optional(&columns.time)?,
            latency: optional(&columns.latency)?,
        })
    }
}

fn no_such_column(name: &str, names: &[&[u8]]) -> TraceError {
    let names = String::from_utf8_lossy(&names.join(&b", "[..])).into_owned();
    TraceError::Option {
        option: "columns",
        reason: format!("no column is called {name:?}; the first line has: {names}"),
    }
}

pub(super) fn read(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    columns: &CsvColumns,
    options: &ImportOptions,
) -> Result<(), TraceError> {
    let mut places = if columns.names { None } else { Some(Places::find(columns, &[]).map_err(as_trace_error)?) };
    each_line(input, sink, "CSV", options, |line, sink| {
        let fields: Vec<&[u8]> = line.split(|&byte| byte == columns.separator).map(bare).collect();
        if line.is_empty() {
            return Ok(());
        }
        let Some(places) = &places else {
            places = Some(Places::find(columns, &fields)?);
            return Ok(());
        };
        let field = |place: usize| fields.get(place).copied().ok_or("the line has too few columns");
        let number = |place: Option<usize>, or: u64| match place {
            Some(place) => either(field(place)?).ok_or("a field is no number"),
            None => Ok(or),
        };
        let address = field(places.address)?;
        let address = if columns.hexadecimal { hexadecimal(strip_prefix(address)) } else { either(address) };
        let mut address = address.ok_or("the address is no number (set hexadecimal if it has no 0x)")?;
        if columns.pages {
            address = address.checked_mul(4096).ok_or("the page number is too large")?;
        }
        let write = match places.operation.map(field).transpose()? {
            Some(operation) if operation.eq_ignore_ascii_case(b"delete") => {
                sink.skip("delete of an object");
                return Ok(());
            }
            Some(operation) => is_write(operation).ok_or("the operation is neither read nor write")?,
            None => false,
        };
        let nanos = match places.time {
            Some(place) => scaled(field(place)?, columns.time_unit_nanos).ok_or("the time is no number")?,
            None => 0,
        };
        if columns.objects {
            return Ok(sink.object(address, write, nanos)?);
        }
        let bytes = number(places.size, 1)?;
        if bytes > 1 << 30 {
            return Err(BadLine::from("the size is larger than 1 GiB"));
        }
        let latency = u32::try_from(number(places.latency, 0)?).unwrap_or(u32::MAX);
        let thread = number(places.thread, 0)?;
        Ok(sink.touch(&Touch { address, bytes, write, thread, nanos, latency })?)
    })
}

fn as_trace_error(error: BadLine) -> TraceError {
    match error {
        BadLine::Trace(error) => error,
        BadLine::Reason(reason) => TraceError::Option { option: "columns", reason },
    }
}

fn bare(field: &[u8]) -> &[u8] {
    let field = field.trim_ascii();
    field.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(field)
}

fn strip_prefix(field: &[u8]) -> &[u8] {
    field.strip_prefix(b"0x").unwrap_or(field)
}

fn is_write(field: &[u8]) -> Option<bool> {
    match field.to_ascii_lowercase().as_slice() {
        b"r" | b"read" | b"l" | b"ld" | b"load" | b"get" | b"gets" | b"0" => Some(false),
        b"w" | b"write" | b"s" | b"st" | b"store" | b"1" => Some(true),
        b"set" | b"add" | b"cas" | b"replace" | b"append" | b"prepend" | b"incr" | b"decr" | b"update" => Some(true),
        _ => None,
    }
}

/// A number with or without decimals, times the unit, rounded down.
fn scaled(field: &[u8], unit: u64) -> Option<u64> {
    let (whole, fraction) = match field.iter().position(|&byte| byte == b'.') {
        Some(at) => (&field[..at], &field[at + 1..]),
        None => return decimal(field)?.checked_mul(unit),
    };
    let digits = &fraction[..fraction.len().min(12)];
    let part = u128::from(decimal(digits)?) * u128::from(unit) / 10_u128.pow(digits.len() as u32);
    decimal(whole)?.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_scaled_exactly() {
        assert_eq!(scaled(b"12", 1000), Some(12_000));
        assert_eq!(scaled(b"1.5", 1_000_000_000), Some(1_500_000_000));
        assert_eq!(scaled(b"0.000000001", 1_000_000_000), Some(1));
        assert_eq!(scaled(b"1e9", 1), None);
        assert_eq!(scaled(b"-1", 1), None);
    }
}
