//! The performance database, and its file format.
//!
//! In: records, or the bytes of a Parquet file. Out: the bytes of a Parquet file, or a database that is whole: every figure
//! finite, the checksum right, made by a version this one understands. Must not: open files; bytes may be a memory map.
//!
//! One row a record: the eight figures of the vector as DOUBLE under the paper's names, and `seconds_001` to `seconds_100` as
//! FLOAT, the run time with that number of hundredths of the resident size fast. Plain and uncompressed, so that reading is copying.
//! What else there is to know is JSON under the key `terrace.sizing` of the file's metadata: see [`Meta`].

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Repetition, Type as Physical};
use parquet::column::page::Page;
use parquet::data_type::{DataType, DoubleType, FloatType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use crate::microbench::FastDivisor;
use crate::vector::{ConfigVector, DIMENSIONS, NAMES, ZScore};
use terrace_tuning::curve::{Curve, SIZES};

/// The largest database or journal that programs read, in bytes: two million records. The design has 100,000.
pub const LARGEST_DATABASE: u64 = 1 << 30;

/// The version of the format and of what the numbers mean. A change to the micro-benchmark or its model is a new one.
pub const VERSION: u32 = 1;
const KEY: &str = "terrace.sizing";
/// Rows read or written at a time.
const BATCH: usize = 1 << 16;

/// What a database says of itself.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// [`VERSION`] of the program that made it.
    pub version: u32,
    /// The machine it is of.
    pub machine: String,
    /// A checksum of the machine's description: numbers of another one are another machine's.
    pub machine_checksum: u32,
    /// The seed of its sampling.
    pub seed: u64,
    /// Records.
    pub records: usize,
    /// Sizes a record.
    pub sizes: usize,
    /// Seconds that the counts of the vectors refer to.
    pub interval_seconds: f64,
    /// What equation 3 divides by.
    pub fast_divisor: FastDivisor,
    /// Means and deviations of the features.
    pub z_score: ZScore,
    /// CRC-32 of all figures, record by record, little-endian: eight DOUBLEs, a hundred FLOATs.
    pub checksum: u32,
}

/// Why bytes are not a database.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DatabaseError {
    /// No Parquet, or Parquet cut short.
    #[error("it is no Parquet file, or a damaged one: {0}")]
    NotParquet(String),
    /// Parquet of something else.
    #[error("it is a Parquet file, but no performance database: {0}")]
    Foreign(String),
    /// Another version's.
    #[error("it was made by version {found} of the format, and this is version {VERSION}: build it anew")]
    Version {
        /// Its version.
        found: u32,
    },
    /// Its figures are not those it was written with.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// There is nothing in it.
    #[error("it holds no records")]
    Empty,
}

/// Records in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Database {
    meta: Meta,
    vectors: Vec<ConfigVector>,
    pub(crate) seconds: Vec<f32>,
}

/// What a database is made of, before its records.
#[derive(Clone, Debug, PartialEq)]
pub struct Origin {
    /// The machine.
    pub machine: String,
    /// Of its description.
    pub machine_checksum: u32,
    /// The seed of the sampling.
    pub seed: u64,
    /// What equation 3 divides by.
    pub fast_divisor: FastDivisor,
}

/// The checksum of a machine's description: every number and its source.
pub fn machine_checksum(machine: &terrace_machine::preset::Machine) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    for source in &machine.sources {
        hash.update(source.key.as_bytes());
        hash.update(source.value.as_bytes());
    }
    hash.finalize()
}

impl Database {
    /// A database of records; `seconds` has [`SIZES`] for each vector.
    ///
    /// # Errors
    /// When there are none, or a figure is not finite or a time not above zero.
    pub fn new(origin: Origin, vectors: Vec<ConfigVector>, seconds: Vec<f32>) -> Result<Database, DatabaseError> {
        let meta = Meta {
            version: VERSION,
            machine: origin.machine,
            machine_checksum: origin.machine_checksum,
            seed: origin.seed,
            records: vectors.len(),
            sizes: SIZES,
            interval_seconds: crate::vector::INTERVAL_SECONDS,
            fast_divisor: origin.fast_divisor,
            z_score: ZScore::of(&vectors),
            checksum: checksum(&vectors, &seconds),
        };
        let database = Database { meta, vectors, seconds };
        database.check()?;
        Ok(database)
    }

    fn check(&self) -> Result<(), DatabaseError> {
        if self.vectors.is_empty() {
            return Err(DatabaseError::Empty);
        }
        if self.seconds.len() != self.vectors.len() * SIZES {
            let what = format!("{} times for {} records of {SIZES}", self.seconds.len(), self.vectors.len());
            return Err(DatabaseError::Damaged(what));
        }
        for (number, vector) in self.vectors.iter().enumerate() {
            vector.check().map_err(|error| DatabaseError::Damaged(format!("record {number}: {error}")))?;
        }
        match self.seconds.iter().position(|time| !(time.is_finite() && *time > 0.0)) {
            Some(place) => {
                Err(DatabaseError::Damaged(format!("record {}: a run time of {}", place / SIZES, self.seconds[place])))
            }
            None => Ok(()),
        }
    }

    /// What it says of itself.
    pub const fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The vectors, by record.
    pub fn vectors(&self) -> &[ConfigVector] {
        &self.vectors
    }

    /// Records; at least one.
    pub fn len(&self) -> usize {
        self.vectors.len()
    }

    /// Never: a database has records.
    pub fn is_empty(&self) -> bool {
        self.vectors.is_empty()
    }

    /// Seconds of a record at 1 % to 100 %.
    pub fn seconds(&self, record: usize) -> &[f32] {
        &self.seconds[record * SIZES..(record + 1) * SIZES]
    }

    /// Losses of a record.
    pub fn curve(&self, record: usize) -> Curve {
        Curve::of_times(self.seconds(record))
    }

    /// Why it is not of this machine, if it is not.
    pub fn is_foreign_to(&self, machine: &terrace_machine::preset::Machine) -> Option<String> {
        if self.meta.machine != machine.name {
            return Some(format!("it is of machine {}, not of {}", self.meta.machine, machine.name));
        }
        (self.meta.machine_checksum != machine_checksum(machine))
            .then(|| format!("it is of machine {}, but of one with other numbers: build it anew", machine.name))
    }

    /// The database as a Parquet file.
    ///
    /// # Errors
    /// When Parquet refuses, which would be a fault of this program.
    pub fn to_parquet(&self) -> Result<Vec<u8>, DatabaseError> {
        self.write().map_err(|error| DatabaseError::NotParquet(error.to_string()))
    }

    fn write(&self) -> Result<Vec<u8>, ParquetError> {
        let meta = serde_json::to_string(&self.meta).map_err(|error| ParquetError::External(Box::new(error)))?;
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN)
            .set_compression(Compression::UNCOMPRESSED)
            .set_key_value_metadata(Some(vec![KeyValue::new(KEY.to_owned(), meta)]))
            .build();
        let mut bytes = Vec::with_capacity(self.vectors.len() * (8 * DIMENSIONS + 4 * SIZES) + (1 << 16));
        let mut writer = SerializedFileWriter::new(&mut bytes, schema()?, Arc::new(properties))?;
        for start in (0..self.len()).step_by(BATCH) {
            let rows = start..(start + BATCH).min(self.len());
            let mut group = writer.next_row_group()?;
            for k in 0..DIMENSIONS {
                let column: Vec<f64> = self.vectors[rows.clone()].iter().map(|vector| vector.to_array()[k]).collect();
                put::<DoubleType>(&mut group, &column)?;
            }
            for size in 0..SIZES {
                let column: Vec<f32> = rows.clone().map(|record| self.seconds[record * SIZES + size]).collect();
                put::<FloatType>(&mut group, &column)?;
            }
            group.close()?;
        }
        writer.close()?;
        Ok(bytes)
    }

    /// A database from the bytes of a file.
    ///
    /// # Errors
    /// When they are no database, another version's, or damaged; the error says which.
    pub fn from_parquet(bytes: Bytes) -> Result<Database, DatabaseError> {
        let not_parquet = |error: ParquetError| DatabaseError::NotParquet(error.to_string());
        // Least bytes of a written row: a file's claim about its size allocates nothing before it is verified.
        let room = bytes.len() / (8 * DIMENSIONS + 4 * SIZES);
        let reader = SerializedFileReader::new(bytes).map_err(not_parquet)?;
        let file = reader.metadata().file_metadata();
        let text = file
            .key_value_metadata()
            .and_then(|pairs| pairs.iter().find(|pair| pair.key == KEY))
            .and_then(|pair| pair.value.clone())
            .ok_or_else(|| DatabaseError::Foreign(format!("its metadata has no key {KEY}")))?;
        let version: VersionOnly =
            serde_json::from_str(&text).map_err(|error| DatabaseError::Foreign(format!("{KEY}: {error}")))?;
        if version.version != VERSION {
            return Err(DatabaseError::Version { found: version.version });
        }
        let meta: Meta =
            serde_json::from_str(&text).map_err(|error| DatabaseError::Damaged(format!("{KEY}: {error}")))?;
        let columns: Vec<String> =
            file.schema_descr().columns().iter().map(|column| column.name().to_owned()).collect();
        if columns != column_names() || meta.sizes != SIZES || meta.interval_seconds != crate::vector::INTERVAL_SECONDS
        {
            return Err(DatabaseError::Foreign(format!("its {} columns are not those of a database", columns.len())));
        }
        // The library takes these for granted, and panics.
        let columns = reader.metadata().row_groups().iter().flat_map(|group| group.columns());
        for column in columns {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            if start < 0 || column.data_page_offset() < 0 || column.compressed_size() < 0 {
                return Err(DatabaseError::Damaged(
                    "a column begins before the file, or has less than no bytes".to_owned(),
                ));
            }
        }
        let rows = usize::try_from(file.num_rows()).unwrap_or(0);
        if rows == 0 {
            return Err(DatabaseError::Empty);
        }
        if rows != meta.records {
            return Err(DatabaseError::Damaged(format!("{rows} rows, and {} records were written", meta.records)));
        }
        if rows > room {
            return Err(DatabaseError::Damaged(format!("{rows} rows, and its bytes are those of {room} at most")));
        }
        let mut figures = vec![[0.0; DIMENSIONS]; rows];
        let mut seconds = vec![0.0f32; rows * SIZES];
        let mut first = 0;
        for group in 0..reader.num_row_groups() {
            let group = reader.get_row_group(group).map_err(not_parquet)?;
            let count = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
            if count > rows - first {
                return Err(DatabaseError::Damaged("more rows than it says".to_owned()));
            }
            for column in 0..DIMENSIONS {
                let values = plain(&*group, column, count)?.into_iter().map(f64::from_le_bytes);
                figures[first..first + count].iter_mut().zip(values).for_each(|(row, value)| row[column] = value);
            }
            for size in 0..SIZES {
                let values = plain(&*group, DIMENSIONS + size, count)?.into_iter().map(f32::from_le_bytes);
                seconds[first * SIZES..].chunks_mut(SIZES).zip(values).for_each(|(row, value)| row[size] = value);
            }
            first += count;
        }
        let vectors: Vec<ConfigVector> = figures.into_iter().map(ConfigVector::from_array).collect();
        if checksum(&vectors, &seconds) != meta.checksum {
            return Err(DatabaseError::Damaged("its figures are not those it was written with (checksum)".to_owned()));
        }
        // The text of a number may be off in its last place; the z-scores are those of the figures, and near what is written.
        let z_score = ZScore::of(&vectors);
        let near = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-9 * a.abs().max(1.0));
        if !near(&z_score.mean, &meta.z_score.mean) || !near(&z_score.deviation, &meta.z_score.deviation) {
            return Err(DatabaseError::Damaged("its z-scores are not those of its figures".to_owned()));
        }
        let database = Database { meta: Meta { z_score, ..meta }, vectors, seconds };
        database.check()?;
        Ok(database)
    }
}

#[derive(serde::Deserialize)]
struct VersionOnly {
    version: u32,
}

fn column_names() -> Vec<String> {
    let sizes = (1..=SIZES).map(|percent| format!("seconds_{percent:03}"));
    NAMES.iter().map(|name| (*name).to_owned()).chain(sizes).collect()
}

fn schema() -> Result<Arc<Type>, ParquetError> {
    let fields = column_names().into_iter().enumerate().map(|(place, name)| {
        let kind = if place < DIMENSIONS { Physical::DOUBLE } else { Physical::FLOAT };
        Type::primitive_type_builder(&name, kind).with_repetition(Repetition::REQUIRED).build().map(Arc::new)
    });
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    Type::group_type_builder("record").with_fields(fields).build().map(Arc::new)
}

fn put<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, &mut Vec<u8>>,
    values: &[T::T],
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("the schema has too few columns".to_owned());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}

/// The values of a column, `N` bytes each. A database is written plain, so its pages hold the values and nothing more; the library's
/// own readers of columns panic on pages that belie the footer.
fn plain<const N: usize>(
    group: &dyn RowGroupReader,
    column: usize,
    count: usize,
) -> Result<Vec<[u8; N]>, DatabaseError> {
    let damaged = |error: ParquetError| DatabaseError::Damaged(error.to_string());
    let mut pages = group.get_column_page_reader(column).map_err(damaged)?;
    let mut values = Vec::with_capacity(count);
    while values.len() < count {
        let (bytes, here) = match pages.get_next_page().map_err(damaged)? {
            Some(Page::DataPage { buf, num_values, encoding: Encoding::PLAIN, .. }) => (buf, num_values as usize),
            Some(_) => return Err(DatabaseError::Damaged(format!("column {column} is not written plain"))),
            None => {
                let error = format!("column {column} ends after {} of {count} rows", values.len());
                return Err(DatabaseError::Damaged(error));
            }
        };
        let (whole, _) = bytes.as_chunks::<N>();
        if here > whole.len() || here > count - values.len() {
            return Err(DatabaseError::Damaged(format!("a page of column {column} has not the {here} values it says")));
        }
        values.extend_from_slice(&whole[..here]);
    }
    Ok(values)
}

fn checksum(vectors: &[ConfigVector], seconds: &[f32]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    let mut row = Vec::with_capacity(8 * DIMENSIONS + 4 * SIZES);
    for (vector, times) in vectors.iter().zip(seconds.chunks(SIZES)) {
        row.clear();
        vector.to_array().iter().for_each(|value| row.extend_from_slice(&value.to_le_bytes()));
        times.iter().for_each(|time| row.extend_from_slice(&time.to_le_bytes()));
        hash.update(&row);
    }
    hash.finalize()
}

#[cfg(test)]
pub(crate) mod tests {
    use terrace_machine::preset::Machine;

    use super::*;
    use crate::model;
    use crate::sampling::Design;

    /// A small database of the first preset.
    pub(crate) fn small(records: u64) -> Database {
        let machine = Machine::preset("optane-6252").unwrap();
        let design = Design::new(&machine, 1);
        let vectors: Vec<ConfigVector> = (0..records).map(|number| design.vector(number)).collect();
        let seconds =
            vectors.iter().flat_map(|v| model::record(v, &machine, FastDivisor::Threshold).unwrap()).collect();
        let origin = Origin {
            machine: machine.name.clone(),
            machine_checksum: machine_checksum(&machine),
            seed: 1,
            fast_divisor: FastDivisor::Threshold,
        };
        Database::new(origin, vectors, seconds).unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        let database = small(100);
        let bytes = database.to_parquet().unwrap();
        assert_eq!(bytes, database.to_parquet().unwrap(), "the same bytes every time");
        assert_eq!(Database::from_parquet(bytes.into()).unwrap(), database);
    }

    #[test]
    fn what_is_cut_foreign_or_changed_is_refused_with_the_reason() {
        let whole = small(20).to_parquet().unwrap();
        let refused = |bytes: Vec<u8>| Database::from_parquet(bytes.into()).unwrap_err();
        assert!(matches!(refused(Vec::new()), DatabaseError::NotParquet(_)));
        assert!(matches!(refused(b"PAR1 but not really PAR1".to_vec()), DatabaseError::NotParquet(_)));
        for cut in [1, 100, whole.len() / 2, whole.len() - 4] {
            refused(whole[..whole.len() - cut].to_vec());
        }
        // A figure that changes is found, whichever column it is in.
        let database = small(20);
        for figure in [
            database.vectors()[3].fast_accesses.to_le_bytes().to_vec(),
            database.vectors()[19].intensity.to_le_bytes().to_vec(),
            database.seconds(7)[42].to_le_bytes().to_vec(),
        ] {
            let place = whole.windows(figure.len()).position(|window| window == figure).unwrap();
            let mut changed = whole.clone();
            changed[place] ^= 1;
            assert!(matches!(refused(changed), DatabaseError::Damaged(_)));
        }
        let text = String::from_utf8_lossy(&whole).into_owned();
        assert!(text.contains(KEY));
        let mut other = whole.clone();
        let place = whole.windows(10).position(|window| window == b"\"version\":").unwrap() + 10;
        other[place] = b'9';
        assert_eq!(refused(other), DatabaseError::Version { found: 9 });
    }

    #[test]
    fn a_footer_with_any_byte_changed_is_refused_or_its_figures_are_right() {
        let database = small(3);
        let whole = database.to_parquet().unwrap();
        let length = u32::from_le_bytes(*whole[whole.len() - 8..].first_chunk().unwrap()) as usize;
        // The lowest bit of a number in the footer is its sign.
        for place in whole.len() - 8 - length..whole.len() {
            let mut changed = whole.clone();
            changed[place] ^= 1;
            if let Ok(read) = Database::from_parquet(changed.into()) {
                // Names in the footer have no checksum; the figures have.
                assert_eq!(read.vectors(), database.vectors());
                assert!((0..3).all(|record| read.seconds(record) == database.seconds(record)));
            }
        }
    }

    #[test]
    fn another_machine_is_told_by_name_and_numbers() {
        let database = small(3);
        let mut machine = Machine::preset("optane-6252").unwrap();
        assert_eq!(database.is_foreign_to(&machine), None);
        machine.sources[0].value.push('0');
        assert!(database.is_foreign_to(&machine).unwrap().contains("other numbers"));
        let other = Machine::preset("cxl-pond").unwrap();
        assert_eq!(database.is_foreign_to(&other).unwrap(), "it is of machine optane-6252, not of cxl-pond");
    }
}
