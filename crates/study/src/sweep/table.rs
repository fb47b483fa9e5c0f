//! The table of a sweep: JSON lines, CSV or Parquet, by the ending of the file's name.
//!
//! In: rows. Out: bytes, the same for the same rows. Must not: leave a key of a row out of a table.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;
use serde_json::Value;

use crate::error::{Result, misuse};
use crate::rows::{COLUMNS, Kind, csv_table};

/// The policy that moves nothing.
const FIRST_TOUCH: &str = terrace_policies::first_touch::INFO.name;
/// Rows of a row group.
const GROUP: usize = 1 << 16;
/// How the table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// JSON lines.
    Lines,
    /// CSV.
    Csv,
    /// Parquet.
    Parquet,
}

impl Form {
    /// By the name's ending.
    ///
    /// # Errors
    /// When it is none of the three; exit code 2.
    pub fn of(path: &Path) -> Result<Form> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("jsonl") => Ok(Form::Lines),
            Some("csv") => Ok(Form::Csv),
            Some("parquet") => Ok(Form::Parquet),
            _ => Err(misuse(
                "--output",
                &path.display().to_string(),
                "expected a name that ends in .parquet, .csv or .jsonl",
            )),
        }
    }

    /// The bytes of a table.
    ///
    /// # Errors
    /// When Parquet refuses the rows.
    pub fn bytes(self, rows: Vec<Value>) -> Result<Vec<u8>> {
        match self {
            Form::Lines => Ok(rows.iter().map(|row| format!("{row}\n")).collect::<String>().into_bytes()),
            Form::Csv => Ok(csv_table(&rows).into_bytes()),
            Form::Parquet => Ok(parquet(&rows)?),
        }
    }
}

/// Fills in the gain over first touch where that policy is part of the sweep, with the settings it was first named with.
pub(super) fn compared_with_first_touch(mut rows: Vec<Value>) -> Vec<Value> {
    let place = |row: &Value| -> String {
        ["machine", "workload", "trace_hash", "fast", "seed"].map(|key| row[key].to_string()).join(" ")
    };
    let mut seconds: BTreeMap<String, f64> = BTreeMap::new();
    for row in rows.iter().filter(|row| row["policy"] == FIRST_TOUCH) {
        if let Some(time) = row["seconds"].as_f64() {
            seconds.entry(place(row)).or_insert(time);
        }
    }
    for row in &mut rows {
        if let (Some(first), Some(own)) = (seconds.get(&place(row)), row["seconds"].as_f64()) {
            row["gain_over_first_touch"] = (first / own).into();
        }
    }
    rows
}

fn parquet(rows: &[Value]) -> Result<Vec<u8>, parquet::errors::ParquetError> {
    let column = |(name, kind): &(&str, Kind)| -> Result<Arc<Type>, parquet::errors::ParquetError> {
        let (physical, logical) = match kind {
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Whole => (Physical::INT64, None),
            Kind::Number => (Physical::DOUBLE, None),
        };
        let built = Type::primitive_type_builder(name, physical);
        Ok(Arc::new(built.with_repetition(Repetition::OPTIONAL).with_logical_type(logical).build()?))
    };
    let columns = COLUMNS.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    let schema = Arc::new(Type::group_type_builder("row").with_fields(columns).build()?);
    let properties = WriterProperties::builder().set_compression(Compression::UNCOMPRESSED).build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties))?;
    for rows in rows.chunks(GROUP) {
        let mut group = writer.next_row_group()?;
        for (name, kind) in COLUMNS {
            let values = rows.iter().map(|row| &row[name]);
            match kind {
                Kind::Text => put::<ByteArrayType>(&mut group, values.map(text).collect())?,
                Kind::Whole => put::<Int64Type>(&mut group, values.map(Value::as_i64).collect())?,
                Kind::Number => put::<DoubleType>(&mut group, values.map(Value::as_f64).collect())?,
            }
        }
        group.close()?;
    }
    writer.close()?;
    Ok(bytes)
}

/// A text; an object is its JSON.
fn text(value: &Value) -> Option<ByteArray> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(ByteArray::from(text.as_str())),
        other => Some(ByteArray::from(other.to_string().as_str())),
    }
}

/// Writes the next column; `None` is null.
fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    values: Vec<Option<T::T>>,
) -> Result<(), parquet::errors::ParquetError> {
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let known: Vec<T::T> = values.into_iter().flatten().collect();
    let Some(mut column) = group.next_column()? else {
        return Err(parquet::errors::ParquetError::General("there is no further column".to_owned()));
    };
    column.typed::<T>().write_batch(&known, Some(&levels), None)?;
    column.close()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;
    use serde_json::json;

    use super::*;

    fn row(policy: &str, seconds: f64) -> Value {
        let mut row: serde_json::Map<String, Value> =
            COLUMNS.iter().map(|(name, _)| ((*name).to_owned(), Value::Null)).collect();
        row["policy"] = policy.into();
        row["seconds"] = seconds.into();
        row["seed"] = 7.into();
        row["settings"] = json!({ "tpp.a": "1" });
        Value::Object(row)
    }

    #[test]
    fn the_form_is_the_names_ending() {
        assert_eq!(Form::of(Path::new("a/b.parquet")).unwrap(), Form::Parquet);
        assert!(Form::of(Path::new("b.xlsx")).unwrap_err().to_string().contains(".jsonl"));
        assert!(Form::of(Path::new("b")).is_err());
    }

    #[test]
    fn each_row_is_compared_with_first_touch_of_its_own_place() {
        let rows = compared_with_first_touch(vec![row("tpp", 2.0), row(FIRST_TOUCH, 3.0)]);
        assert_eq!((&rows[0]["gain_over_first_touch"], &rows[1]["gain_over_first_touch"]), (&json!(1.5), &json!(1.0)));
        assert!(compared_with_first_touch(vec![row("tpp", 2.0)])[0]["gain_over_first_touch"].is_null());
    }

    #[test]
    fn parquet_has_every_column_with_its_kind_and_its_nulls() {
        let rows = vec![row("tpp", 0.5), row("age", 1.5)];
        let bytes = Form::Parquet.bytes(rows.clone()).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        assert_eq!(bytes, Form::Parquet.bytes(rows).unwrap(), "the same rows give the same bytes");
        let reader = SerializedFileReader::new(file).unwrap();
        let names: Vec<String> = reader
            .metadata()
            .file_metadata()
            .schema_descr()
            .columns()
            .iter()
            .map(|one| one.name().to_owned())
            .collect();
        assert_eq!(names, COLUMNS.map(|(name, _)| name));
        let read = |row: usize, name: &str| {
            let row = reader.get_row_iter(None).unwrap().nth(row).unwrap().unwrap();
            row.get_column_iter().find(|(column, _)| *column == name).map(|(_, field)| field.clone()).unwrap()
        };
        assert_eq!((read(1, "policy"), read(1, "seconds")), (Field::Str("age".to_owned()), Field::Double(1.5)));
        assert_eq!((read(1, "seed"), read(0, "operations")), (Field::Long(7), Field::Null));
        assert_eq!(read(0, "settings"), Field::Str("{\"tpp.a\":\"1\"}".to_owned()));
    }

    #[test]
    fn every_column_is_of_one_kind() {
        let names: std::collections::BTreeSet<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), COLUMNS.len(), "a name that stands twice could be of two kinds");
    }
}
