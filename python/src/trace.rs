//! Traces as Arrow tables: batches go to pyarrow, and come from it, through Arrow's C data interface, without a copy on the way.
//!
//! In: a trace's file, or a table of accesses. Out: a stream of record batches, or a file that is there whole or not at all. Must not: hold
//! more than a batch of a trace that is read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    ArrayRef, BooleanArray, RecordBatch, RecordBatchReader, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_pyarrow::{FromPyArrow, IntoPyArrow};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use terrace_core::units::{BLOCK_PAGES, PageId, Time, Vpn};
use terrace_trace::{Access, Extent, Header, Index, MapPiece, PageMap, ProcessId, Reader, ThreadId, Writer};

/// Accesses of a record batch.
const BATCH: usize = 1 << 16;
/// Where a table carries the trace's header.
const HEADER_KEY: &str = "terrace.header";

fn wrong(path: &Path, why: &dyn std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("{}: {why}", path.display()))
}

fn open(path: &Path) -> PyResult<Reader<BufReader<File>>> {
    let file = File::open(path).map_err(|error| PyOSError::new_err(format!("{}: {error}", path.display())))?;
    Reader::new(BufReader::with_capacity(1 << 20, file)).map_err(|error| wrong(path, &error))
}

fn fields() -> Vec<Field> {
    let field = |name: &str, kind: DataType| Field::new(name, kind, false);
    vec![
        field("page", DataType::UInt32),
        field("address", DataType::UInt64),
        field("line", DataType::UInt8),
        field("write", DataType::Boolean),
        field("thread", DataType::UInt16),
        field("time_ns", DataType::UInt64),
        field("latency", DataType::UInt16),
    ]
}

/// Reads batch by batch.
struct Batches {
    reader: Reader<BufReader<File>>,
    map: PageMap,
    schema: SchemaRef,
    over: bool,
}

impl Batches {
    fn next_batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let failed = |error: &dyn std::fmt::Display| ArrowError::ExternalError(error.to_string().into());
        let mut accesses = vec![Access::default(); BATCH];
        let mut count = 0;
        while count < BATCH {
            let more = self.reader.fill(&mut accesses[count..]).map_err(|error| failed(&error))?;
            count += more;
            if more == 0 && self.reader.take_event().is_none() {
                self.over = true;
                break;
            }
        }
        self.reader.take_map_pieces().iter().for_each(|piece| self.map.add(piece));
        let seen = &accesses[..count];
        if seen.is_empty() {
            return Ok(None);
        }
        let address = |access: &Access| {
            let page = self.map.address(access.page()).unwrap_or(u64::from(access.page().0) << 12);
            page | (u64::from(access.line()) << 6)
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt32Array::from_iter_values(seen.iter().map(|access| access.page().0))),
            Arc::new(UInt64Array::from_iter_values(seen.iter().map(address))),
            Arc::new(UInt8Array::from_iter_values(seen.iter().map(Access::line))),
            Arc::new(BooleanArray::from_iter(seen.iter().map(|access| Some(access.is_write())))),
            Arc::new(UInt16Array::from_iter_values(seen.iter().map(|access| access.thread().0))),
            Arc::new(UInt64Array::from_iter_values(seen.iter().map(|access| access.time().as_nanos()))),
            Arc::new(UInt16Array::from_iter_values(seen.iter().map(Access::latency))),
        ];
        RecordBatch::try_new(self.schema.clone(), columns).map(Some)
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, ArrowError>;
    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let found = self.next_batch();
        self.over |= found.is_err();
        found.transpose()
    }
}

impl RecordBatchReader for Batches {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

/// A trace as a stream of record batches.
#[pyfunction]
pub(crate) fn open_trace(py: Python<'_>, path: PathBuf) -> PyResult<Bound<'_, PyAny>> {
    let mut file = File::open(&path).map_err(|error| PyOSError::new_err(format!("{}: {error}", path.display())))?;
    // A trace that was cut off has no index: refused before its first access is shown.
    let (header, _) = Index::read(&mut file).map_err(|error| {
        wrong(&path, &format!("{error}; `terrace trace cut --keep-whole` makes a new trace of what is whole"))
    })?;
    let mut reader = open(&path)?;
    reader.keep_map_pieces();
    let header = serde_json::to_string(&header).map_err(|error| wrong(&path, &error))?;
    let metadata = std::collections::HashMap::from([(HEADER_KEY.to_owned(), header)]);
    let schema = Schema::new_with_metadata(fields(), metadata);
    let batches = Batches { reader, map: PageMap::default(), schema: Arc::new(schema), over: false };
    let batches: Box<dyn RecordBatchReader + Send> = Box::new(batches);
    batches.into_pyarrow(py)
}

/// What a trace says of itself: header and summary, as JSON.
#[pyfunction]
pub(crate) fn trace_header(path: PathBuf) -> PyResult<String> {
    let mut file = File::open(&path).map_err(|error| PyOSError::new_err(format!("{}: {error}", path.display())))?;
    let (header, index) = Index::read(&mut file).map_err(|error| wrong(&path, &error))?;
    let mut found = serde_json::to_value(header).map_err(|error| wrong(&path, &error))?;
    let summary = serde_json::to_value(index.summary).map_err(|error| wrong(&path, &error))?;
    if let (Some(all), serde_json::Value::Object(summary)) = (found.as_object_mut(), summary) {
        all.extend(summary);
    }
    Ok(found.to_string())
}

/// The columns of a batch that is written; those that a table does not have are none.
struct Columns {
    page: UInt32Array,
    address: Option<UInt64Array>,
    line: Option<UInt8Array>,
    write: Option<BooleanArray>,
    thread: Option<UInt16Array>,
    time: Option<UInt64Array>,
    latency: Option<UInt16Array>,
}

fn column<T>(
    batch: &RecordBatch,
    name: &str,
    kind: &str,
    cast: impl Fn(&ArrayRef) -> Option<T>,
) -> Result<Option<T>, String> {
    let Some(found) = batch.column_by_name(name) else { return Ok(None) };
    if found.null_count() > 0 {
        return Err(format!("column {name}: it has nulls; expected none"));
    }
    let given = found.data_type();
    cast(found).map(Some).ok_or_else(|| format!("column {name}: it is of type {given}; expected {kind}"))
}

impl Columns {
    fn of(batch: &RecordBatch) -> Result<Columns, String> {
        let known = fields();
        let schema = batch.schema();
        if let Some(other) = schema.fields().iter().find(|field| known.iter().all(|one| one.name() != field.name())) {
            let names: Vec<&str> = known.iter().map(|field| field.name().as_str()).collect();
            return Err(format!(
                "column {}: there is no such column in a trace; expected {}",
                other.name(),
                names.join(", ")
            ));
        }
        let page = column(batch, "page", "uint32", |one| one.as_primitive_opt::<UInt32Type>().cloned())?;
        Ok(Columns {
            page: page.ok_or("column page: it is missing; it numbers the pages from 0, as uint32")?,
            address: column(batch, "address", "uint64", |one| one.as_primitive_opt::<UInt64Type>().cloned())?,
            line: column(batch, "line", "uint8", |one| one.as_primitive_opt::<UInt8Type>().cloned())?,
            write: column(batch, "write", "bool", |one| one.as_boolean_opt().cloned())?,
            thread: column(batch, "thread", "uint16", |one| one.as_primitive_opt::<UInt16Type>().cloned())?,
            time: column(batch, "time_ns", "uint64", |one| one.as_primitive_opt::<UInt64Type>().cloned())?,
            latency: column(batch, "latency", "uint16", |one| one.as_primitive_opt::<UInt16Type>().cloned())?,
        })
    }

    fn access(&self, row: usize) -> Access {
        let page = PageId(self.page.value(row));
        let write = self.write.as_ref().is_some_and(|write| write.value(row));
        let access = if write { Access::write(page) } else { Access::read(page) };
        access
            .on_line(self.line.as_ref().map_or(0, |line| line.value(row)))
            .by(ThreadId(self.thread.as_ref().map_or(0, |thread| thread.value(row))))
            .at(Time::from_nanos(self.time.as_ref().map_or(0, |time| time.value(row))))
            .taking(self.latency.as_ref().map_or(0, |latency| u32::from(latency.value(row))))
    }
}

/// The part of the map that a page needs and that was not written yet: its block's where the block lies as in the program, else its own.
fn extent(page: PageId, vpn: Vpn, seen: &mut BTreeSet<(u32, u32)>) -> Option<Extent> {
    let offset = page.0 % BLOCK_PAGES;
    let (first, count) =
        if vpn.0 % u64::from(BLOCK_PAGES) == u64::from(offset) { (page.0 - offset, BLOCK_PAGES) } else { (page.0, 1) };
    let start = Vpn(vpn.0 - u64::from(page.0 - first));
    seen.insert((first, count)).then_some(Extent { first: PageId(first), vpn: start, count, process: ProcessId(0) })
}

/// Writes a table of accesses as a trace; how many accesses.
#[pyfunction]
pub(crate) fn write_trace(py: Python<'_>, table: &Bound<'_, PyAny>, path: PathBuf, header: &str) -> PyResult<u64> {
    let batches = arrow_array::ffi_stream::RecordBatchStreamReader::from_pyarrow_bound(table)?;
    let header: Header = serde_json::from_str(header).map_err(|error| wrong(&path, &format!("header: {error}")))?;
    py.detach(|| write(batches, &path, header))
}

fn write(batches: impl RecordBatchReader, path: &Path, header: Header) -> PyResult<u64> {
    let named = |error: std::io::Error| PyOSError::new_err(format!("{}: {error}", path.display()));
    let output = terrace_files::Output::create(path).map_err(named)?;
    let mut writer =
        Writer::new(BufWriter::with_capacity(1 << 20, output), header).map_err(|error| wrong(path, &error))?;
    let (mut seen, mut count, mut last) = (BTreeSet::new(), 0_u64, Time::ZERO);
    for batch in batches {
        let batch = batch.map_err(|error| wrong(path, &error))?;
        let columns = Columns::of(&batch).map_err(|why| wrong(path, &why))?;
        for row in 0..batch.num_rows() {
            let access = columns.access(row);
            if access.time() < last {
                let why =
                    format!("row {}: time_ns goes backwards; expected rows in the order of time", count + row as u64);
                return Err(wrong(path, &why));
            }
            last = access.time();
            if let Some(addresses) = &columns.address
                && let Some(extent) = extent(access.page(), Vpn::of_address(addresses.value(row)), &mut seen)
            {
                writer.map(&MapPiece::Extent(extent)).map_err(|error| wrong(path, &error))?;
            }
            writer.access(access).map_err(|error| wrong(path, &error))?;
        }
        count += batch.num_rows() as u64;
    }
    let (output, _) = writer.finish().map_err(|error| wrong(path, &error))?;
    let output = output.into_inner().map_err(|error| named(error.into_error()))?;
    output.finish().map_err(named)?;
    Ok(count)
}
