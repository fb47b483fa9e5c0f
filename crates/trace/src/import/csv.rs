//! Text columns, of which the caller says what each holds.
//!
//! In: lines of fields with one separator, and a mapping ([`CsvColumns`]). Out: accesses. Must not: guess a column, know
//! quoted fields that hold the separator (addresses and numbers need none), or take hexadecimal addresses for decimal
//! ones: where the addresses themselves do not tell, the caller is asked.

use std::collections::BTreeSet;
use std::io::{BufRead, Cursor, Read};
use std::str::FromStr;

use crate::error::TraceError;
use crate::header::{Header, LatencyUnit, Provenance};
use crate::import::lines::{BadLine, decimal, each_line, either, hexadecimal, marked, no_aside, without_mark, words};
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

/// How the column of addresses is read where a number has no "0x" in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressBase {
    /// As the column shows: hexadecimal if one of its numbers has a digit from a to f, decimal if it is plain that none
    /// has; else the import ends and asks.
    ByColumn,
    /// Hexadecimal.
    Hexadecimal,
    /// Decimal.
    Decimal,
}

/// What each column holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvColumns {
    /// Between two fields. A blank stands for any number of blanks and tabs.
    pub separator: u8,
    /// Whether the first line holds names. It must where a column is given by name.
    pub names: bool,
    /// The address, or the page's number.
    pub address: Column,
    /// Whether `address` holds page numbers.
    pub pages: bool,
    /// Whether `address` holds objects, each taken as a page; their sizes are not used. A number, any 64 bits, is decimal
    /// without 0x; a name becomes a number by a hash.
    pub objects: bool,
    /// How addresses without "0x" are read.
    pub base: AddressBase,
    /// Read or write: r, rd, read, l, ld, load, get, gets, 0; w, wr, write, s, st, store, set, add, cas, replace, append,
    /// prepend, incr, decr, update, 1. A delete of an object and the fetch of an instruction (i, ifetch, 2) are left out.
    /// Without it every access is a read.
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
            base: AddressBase::ByColumn,
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
    let names = names.join(&b", "[..]);
    // Of what is no CSV the first line is anything, of any length.
    let names = String::from_utf8_lossy(&names[..names.len().min(120)]).escape_debug().to_string();
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
    let mut head = Vec::new();
    let base = match columns.base {
        AddressBase::ByColumn => {
            let failed = |error| TraceError::io("reading the recording", 0, &error);
            Read::take(&mut *input, LOOKED_AT).read_to_end(&mut head).map_err(failed)?;
            base_of(&head, columns, sink)?
        }
        known => known,
    };
    let by_column = columns.base == AddressBase::ByColumn;
    let mut rows = Rows::new(columns)?;
    let mut named = false;
    each_line(&mut Cursor::new(head).chain(input), sink, FORMAT, options, |line, sink| {
        let Some(row) = rows.row(line)? else {
            return Ok(());
        };
        let number = if base == AddressBase::Hexadecimal { hexadecimal(row.address) } else { either(row.address) };
        if number.is_none() && by_column && !columns.objects && hexadecimal(row.address).is_some() {
            let reason = "the address is hexadecimal, and those before it were read as decimal";
            return Err(BadLine::Refused(reason.to_owned(), ASK));
        }
        let mut address = match number {
            Some(number) => number,
            None if columns.objects && !row.address.is_empty() => {
                if !named {
                    sink.note("objects with a name instead of a number have a hash of it, of 64 bits, as number");
                    named = true;
                }
                hash(row.address)
            }
            None => return Err(BadLine::from("the address is no number")),
        };
        if columns.pages {
            address = address.checked_mul(4096).ok_or("the page number is too large")?;
        }
        let write = match row.operation {
            Operation::Read => false,
            Operation::Write => true,
            Operation::LeftOut(what) => {
                sink.skip(what);
                return Ok(());
            }
        };
        if columns.objects {
            return Ok(sink.object(address, write, row.nanos)?);
        }
        let Row { bytes, thread, nanos, latency, .. } = row;
        Ok(sink.touch(&Touch { address, bytes, write, thread, nanos, latency })?)
    })
}

const FORMAT: &str = "CSV";
/// Bytes that decide the base of the addresses: more than enough for the numbers that it takes.
const LOOKED_AT: u64 = 1 << 20;
/// This many different addresses without a digit from a to f are decimal: of hexadecimal ones, each has two digits or more that
/// could be any, and none of a to f in both has a chance of 0.4.
const ENOUGH: usize = 64;
/// Bytes of a sector, of which the addresses of block devices are multiples.
const SECTOR: u64 = 512;
const ASK: &str = "say --hex or --decimal";

/// Tells from the first part of the text how addresses without "0x" are to be read, and notes it where it is not plain.
fn base_of(head: &[u8], columns: &CsvColumns, sink: &mut Sink<'_>) -> Result<AddressBase, TraceError> {
    let mut rows = Rows::new(columns)?;
    let cut = head.len() as u64 == LOOKED_AT;
    let end = if cut { head.iter().rposition(|&byte| byte == b'\n').unwrap_or(0) } else { head.len() };
    let mut first = None;
    let (mut marks, mut different) = (false, BTreeSet::new());
    let (mut sectors, mut sectors_as_hexadecimal) = (!columns.pages, true);
    for (number, line) in (1..).zip(without_mark(&head[..end], FORMAT)?.split(|&byte| byte == b'\n')) {
        for part in line.split(|&byte| byte == b'\r').map(<[u8]>::trim_ascii_end) {
            let address = match rows.row(part) {
                Ok(Some(row)) => row.address,
                Err(BadLine::Trace(error)) => return Err(error),
                // Asides, and what will be refused at its place.
                Ok(None) | Err(_) => continue,
            };
            if marked(address).is_some() {
                marks = true;
                continue;
            }
            let Some(hexadecimal) = hexadecimal(address).filter(|_| !columns.objects) else {
                continue;
            };
            if address.iter().any(u8::is_ascii_alphabetic) {
                sink.note("the addresses have digits from a to f: all were read as hexadecimal");
                return Ok(AddressBase::Hexadecimal);
            }
            // One digit is the same number in both.
            if let Some(decimal) = decimal(address).filter(|&number| number > 9) {
                first.get_or_insert((number, part));
                different.insert(decimal);
                sectors &= decimal.is_multiple_of(SECTOR);
                sectors_as_hexadecimal &= hexadecimal.is_multiple_of(SECTOR);
            }
        }
    }
    let plain = marks || different.len() >= ENOUGH || (sectors && !sectors_as_hexadecimal);
    match first {
        Some((line, text)) if !plain => {
            let reason = "addresses of digits only, which may be decimal or hexadecimal";
            Err(TraceError::line(FORMAT, line, text, reason, ASK))
        }
        Some(_) => {
            sink.note("addresses without 0x were read as decimal");
            Ok(AddressBase::Decimal)
        }
        None => Ok(AddressBase::Decimal),
    }
}

/// What a line holds.
struct Row<'l> {
    address: &'l [u8],
    operation: Operation,
    bytes: u64,
    thread: u64,
    nanos: u64,
    latency: u32,
}

enum Operation {
    Read,
    Write,
    LeftOut(&'static str),
}

/// Takes lines apart, the first of them for the names.
struct Rows<'c> {
    columns: &'c CsvColumns,
    places: Option<Places>,
}

impl<'c> Rows<'c> {
    fn new(columns: &'c CsvColumns) -> Result<Rows<'c>, TraceError> {
        let places = if columns.names { None } else { Some(Places::find(columns, &[]).map_err(as_trace_error)?) };
        Ok(Rows { columns, places })
    }

    fn row<'l>(&mut self, line: &'l [u8]) -> Result<Option<Row<'l>>, BadLine> {
        let columns = self.columns;
        if line.is_empty() {
            return Ok(None);
        }
        let Some(places) = &self.places else {
            // The line of names may be written as a comment.
            let behind = line.trim_ascii_start().strip_prefix(b"#");
            match (Places::find(columns, &fields(behind.unwrap_or(line), columns.separator)), behind) {
                (Ok(places), _) => self.places = Some(places),
                (Err(_), Some(_)) => return Err(BadLine::Aside("comment")),
                (Err(error), None) => return Err(error),
            }
            return Ok(None);
        };
        no_aside(line)?;
        let fields = fields(line, columns.separator);
        let field = |place: usize| fields.get(place).copied().ok_or("the line has too few columns");
        let number = |place: Option<usize>, or: u64| match place {
            Some(place) => either(field(place)?).ok_or("a field is no number"),
            None => Ok(or),
        };
        let address = field(places.address)?;
        let operation = match places.operation.map(field).transpose()? {
            Some(operation) => operation_of(operation).ok_or("the operation is neither read nor write")?,
            None => Operation::Read,
        };
        let nanos = match places.time {
            Some(place) => scaled(field(place)?, columns.time_unit_nanos).ok_or("the time is no number")?,
            None => 0,
        };
        let bytes = if columns.objects { 1 } else { number(places.size, 1)? };
        if bytes > 1 << 30 {
            return Err(BadLine::from("the size is larger than 1 GiB"));
        }
        let latency = u32::try_from(number(places.latency, 0)?).unwrap_or(u32::MAX);
        Ok(Some(Row { address, operation, bytes, thread: number(places.thread, 0)?, nanos, latency }))
    }
}

fn fields(line: &[u8], separator: u8) -> Vec<&[u8]> {
    match separator {
        b' ' => words(line).map(bare).collect(),
        other => line.split(|&byte| byte == other).map(bare).collect(),
    }
}

fn as_trace_error(error: BadLine) -> TraceError {
    match error {
        BadLine::Trace(error) => error,
        BadLine::Reason(reason) | BadLine::Refused(reason, _) => TraceError::Option { option: "columns", reason },
        BadLine::Aside(reason) => TraceError::Option { option: "columns", reason: reason.to_owned() },
    }
}

/// A field without its blanks, its quotes, and the colon or comma that some tools write behind it.
fn bare(field: &[u8]) -> &[u8] {
    let field = field.trim_ascii();
    let field = field.strip_suffix(b":").or_else(|| field.strip_suffix(b",")).unwrap_or(field).trim_ascii_end();
    field.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(field)
}

fn operation_of(field: &[u8]) -> Option<Operation> {
    match field.to_ascii_lowercase().as_slice() {
        b"r" | b"rd" | b"read" | b"l" | b"ld" | b"load" | b"get" | b"gets" | b"0" => Some(Operation::Read),
        b"w" | b"wr" | b"write" | b"s" | b"st" | b"store" | b"1" => Some(Operation::Write),
        b"set" | b"add" | b"cas" | b"replace" | b"append" | b"prepend" | b"incr" | b"decr" | b"update" => {
            Some(Operation::Write)
        }
        b"delete" => Some(Operation::LeftOut("delete of an object")),
        b"i" | b"ifetch" | b"2" => Some(Operation::LeftOut("instruction fetch")),
        _ => None,
    }
}

/// FNV-1a of 64 bits: the same name has the same number in every import.
fn hash(name: &[u8]) -> u64 {
    name.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
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
