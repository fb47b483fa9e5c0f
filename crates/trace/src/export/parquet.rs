//! Parquet, for the tables of data frames.
//!
//! In: a trace. Out: one row an access, in row groups of one mebirow: page, address, line, write, thread, time_ns,
//! latency. Must not: pull in a column framework; the low-level writer is enough, and zstd is not asked for because
//! the dictionary and delta encodings of the format do most of it.

use std::io::{Read, Write};
use std::sync::Arc;

use ::parquet::basic::{Encoding, Repetition, Type as Physical};
use ::parquet::data_type::{BoolType, DataType, Int32Type, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::types::{ColumnPath, Type};
use terrace_core::units::PAGE_SHIFT;

use crate::error::TraceError;
use crate::export::{ExportReport, each_batch, vpn_of};
use crate::reader::Reader;

const ROW_GROUP: usize = 1 << 20;

/// Rows that wait for their row group, by column.
#[derive(Default)]
struct Rows {
    pages: Vec<i64>,
    addresses: Vec<i64>,
    lines: Vec<i32>,
    writes: Vec<bool>,
    threads: Vec<i64>,
    times: Vec<i64>,
    latencies: Vec<i32>,
}

/// Writes a trace as a Parquet file of columns `page, address, line, write, thread, time_ns, latency`.
///
/// # Errors
/// When the trace is damaged, or the output fails.
pub fn parquet<R: Read>(reader: &mut Reader<R>, output: impl Write + Send) -> Result<ExportReport, TraceError> {
    let mut writer = SerializedFileWriter::new(output, schema()?, Arc::new(properties())).map_err(failed)?;
    let mut rows = Rows::default();
    let report = each_batch(reader, |batch, map| {
        for access in batch {
            let address = (vpn_of(map, access.page()).0 << PAGE_SHIFT) | (u64::from(access.line()) << 6);
            rows.pages.push(i64::from(access.page().0));
            rows.addresses.push(address as i64);
            rows.lines.push(i32::from(access.line()));
            rows.writes.push(access.is_write());
            rows.threads.push(map.thread(access.thread()).unwrap_or(u64::from(access.thread().0)) as i64);
            rows.times.push(access.time().as_nanos() as i64);
            rows.latencies.push(i32::from(access.latency()));
        }
        if rows.pages.len() >= ROW_GROUP { put(&mut rows, &mut writer) } else { Ok(()) }
    })?;
    put(&mut rows, &mut writer)?;
    writer.close().map_err(failed)?;
    Ok(report)
}

fn failed(error: ::parquet::errors::ParquetError) -> TraceError {
    TraceError::io("writing Parquet", 0, &std::io::Error::other(error))
}

fn schema() -> Result<Arc<Type>, TraceError> {
    let columns = [
        ("page", Physical::INT64),
        ("address", Physical::INT64),
        ("line", Physical::INT32),
        ("write", Physical::BOOLEAN),
        ("thread", Physical::INT64),
        ("time_ns", Physical::INT64),
        ("latency", Physical::INT32),
    ];
    let fields = columns.into_iter().map(|(name, kind)| {
        Type::primitive_type_builder(name, kind).with_repetition(Repetition::REQUIRED).build().map(Arc::new)
    });
    let fields = fields.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    Type::group_type_builder("access").with_fields(fields).build().map(Arc::new).map_err(failed)
}

fn properties() -> WriterProperties {
    let delta = ColumnPath::from("time_ns");
    WriterProperties::builder()
        .set_column_dictionary_enabled(delta.clone(), false)
        .set_column_encoding(delta, Encoding::DELTA_BINARY_PACKED)
        .build()
}

fn put<W: Write + Send>(rows: &mut Rows, writer: &mut SerializedFileWriter<W>) -> Result<(), TraceError> {
    if rows.pages.is_empty() {
        return Ok(());
    }
    let mut group = writer.next_row_group().map_err(failed)?;
    column::<Int64Type, W>(&mut group, &rows.pages)?;
    column::<Int64Type, W>(&mut group, &rows.addresses)?;
    column::<Int32Type, W>(&mut group, &rows.lines)?;
    column::<BoolType, W>(&mut group, &rows.writes)?;
    column::<Int64Type, W>(&mut group, &rows.threads)?;
    column::<Int64Type, W>(&mut group, &rows.times)?;
    column::<Int32Type, W>(&mut group, &rows.latencies)?;
    group.close().map_err(failed)?;
    *rows = Rows::default();
    Ok(())
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
) -> Result<(), TraceError> {
    let missing = || TraceError::Header("the Parquet schema has too few columns".to_owned());
    let mut column = group.next_column().map_err(failed)?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, None, None).map_err(failed)?;
    column.close().map_err(failed)?;
    Ok(())
}
