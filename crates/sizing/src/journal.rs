//! The journal of a build: what is finished is on disk, so that a kill loses nothing.
//!
//! In: records in order of their numbers; or the bytes of a journal. Out: bytes to append; or what is whole of them. Must not:
//! take up a journal of another build: machine, numbers, seed and version stand in its header.
//!
//! A header line of JSON, then records of fixed size: number (u32), eight f64, a hundred f32, CRC-32 of all that, little-endian. A
//! torn record at the end is dropped; it is computed again, with the same result.

use crate::database::{Origin, VERSION};
use crate::vector::{ConfigVector, DIMENSIONS};
use terrace_tuning::curve::SIZES;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 4 + 8 * DIMENSIONS + 4 * SIZES + 4;

/// What was whole in a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The vectors, from record 0.
    pub vectors: Vec<ConfigVector>,
    /// Their times.
    pub seconds: Vec<f32>,
    /// Bytes of the journal up to the end of its last whole record: append there.
    pub bytes: usize,
}

/// The header of a build's journal.
pub fn header(origin: &Origin) -> Vec<u8> {
    let value = serde_json::json!({
        "terrace_sizing_journal": VERSION, "machine": origin.machine, "machine_checksum": origin.machine_checksum,
        "seed": origin.seed, "fast_divisor": origin.fast_divisor,
    });
    format!("{value}\n").into_bytes()
}

/// Appends a record.
pub fn append(journal: &mut Vec<u8>, number: u32, vector: &ConfigVector, seconds: &[f32; SIZES]) {
    let start = journal.len();
    journal.extend_from_slice(&number.to_le_bytes());
    vector.to_array().iter().for_each(|value| journal.extend_from_slice(&value.to_le_bytes()));
    seconds.iter().for_each(|time| journal.extend_from_slice(&time.to_le_bytes()));
    let checksum = crc32fast::hash(&journal[start..]);
    journal.extend_from_slice(&checksum.to_le_bytes());
}

/// A journal that cannot be continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is of another build (machine, seed or version), or no journal at all")]
pub struct ForeignJournal;

/// Reads what is whole.
///
/// # Errors
/// When the journal is of another build.
pub fn read(bytes: &[u8], origin: &Origin) -> Result<Found, ForeignJournal> {
    let header = header(origin);
    let Some(rest) = bytes.strip_prefix(&header[..]) else {
        // A header torn by a kill holds no records; anything else is not ours to continue.
        if header.starts_with(bytes) {
            return Ok(Found::default());
        }
        return Err(ForeignJournal);
    };
    let mut found = Found { bytes: header.len(), ..Found::default() };
    for record in rest.chunks_exact(RECORD_BYTES) {
        let (body, checksum) = record.split_at(RECORD_BYTES - 4);
        let word = |at: usize| <[u8; 4]>::try_from(&body[at..at + 4]).map(u32::from_le_bytes).unwrap_or(0);
        let whole = checksum == crc32fast::hash(body).to_le_bytes() && word(0) as usize == found.vectors.len();
        if !whole {
            break;
        }
        let double = |k: usize| {
            let at = 4 + 8 * k;
            f64::from_bits(u64::from(word(at)) | u64::from(word(at + 4)) << 32)
        };
        found.vectors.push(ConfigVector::from_array(std::array::from_fn(double)));
        found.seconds.extend((0..SIZES).map(|size| f32::from_bits(word(4 + 8 * DIMENSIONS + 4 * size))));
        found.bytes += RECORD_BYTES;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::small;

    #[test]
    fn a_journal_cut_anywhere_gives_back_what_was_whole() {
        let database = small(5);
        let meta = database.meta();
        let origin = Origin {
            machine: meta.machine.clone(),
            machine_checksum: meta.machine_checksum,
            seed: meta.seed,
            fast_divisor: meta.fast_divisor,
        };
        let mut bytes = header(&origin);
        let first = bytes.len();
        for (number, vector) in database.vectors().iter().enumerate() {
            append(&mut bytes, number as u32, vector, database.seconds(number).try_into().unwrap());
        }
        for cut in 0..=bytes.len() {
            let found = read(&bytes[..cut], &origin).unwrap();
            let whole = cut.saturating_sub(first) / RECORD_BYTES;
            assert_eq!(found.vectors, database.vectors()[..whole], "cut at {cut}");
            assert_eq!(found.seconds.len(), whole * SIZES);
        }
        let whole = read(&bytes, &origin).unwrap();
        assert_eq!((whole.seconds.as_slice(), whole.bytes), (&database.seconds[..], bytes.len()));
        bytes[first + RECORD_BYTES + 9] ^= 1;
        assert_eq!(read(&bytes, &origin).unwrap().vectors.len(), 1, "a damaged record ends what is taken");
        assert_eq!(read(&bytes, &Origin { seed: 2, ..origin }).err(), Some(ForeignJournal));
    }
}
