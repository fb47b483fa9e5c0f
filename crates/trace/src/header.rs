//! The head of a trace: what the records mean.
//!
//! In: a [`Header`] to write, or the first bytes of a file. Out: bytes, or a checked header. Must not: know how many
//! records follow, because a header is written before the first of them.
//!
//! On disk: 8 bytes signature, u16 version, u16 zero, u32 length of the body, the body as JSON (so that `head` shows
//! it), u32 CRC-32 of everything before. All numbers in the format are little endian.

use std::io::Read;

use crate::error::TraceError;

/// The first eight bytes of every trace. The first is no ASCII and the last is a newline, so that a transfer that
/// mangles either is noticed at once.
pub const SIGNATURE: [u8; 8] = *b"\x93TTRACE\n";
/// The latest version, which only traces of several processes have: who cannot tell processes apart must not read them as one.
pub const VERSION: u16 = 2;
/// The version of all other traces.
const ONE_PROCESS: u16 = 1;
const FIXED_BYTES: usize = 16;
const LARGEST_BODY: u32 = 1 << 20;

/// What the records of a trace mean.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// The program traced, in words: command line, input, size.
    pub workload: String,
    /// How the accesses were seen.
    pub provenance: Provenance,
    /// Nanoseconds a time unit; times are kept in whole units, rounded down. `None`: the trace keeps no time.
    pub time_resolution_nanos: Option<u64>,
    /// Whether accesses keep their cache line within the page, which a cache filter needs.
    pub lines: bool,
    /// Unit of the latencies. `None`: the trace keeps none.
    pub latency: Option<LatencyUnit>,
    /// By how much footprint and time were shrunk against the program that is meant; 1 where nothing was.
    pub scale: f64,
    /// Whether the map says of each page which process it is of. Where not, all are of one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub processes: bool,
}

/// How the accesses were seen, which bounds what may be concluded from them.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Provenance {
    /// Every access was seen.
    Exact,
    /// Every access was seen, and those that a cache of this many bytes per thread would have served were left out.
    Filtered {
        /// Size of that cache, with 64-byte lines, direct mapped.
        cache_bytes: u64,
    },
    /// Each access stands for `period` accesses, unless a `Change::Period` event says otherwise.
    Sampled {
        /// Accesses a sample stands for; 0 where the source does not say.
        period: u64,
    },
    /// No accesses, but regions with counts.
    Regional {
        /// Time between two checks of a region; 0 where the source does not say.
        sample_nanos: u64,
        /// Time over which the counts were gathered; a count is at most `aggregation / sample`.
        aggregation_nanos: u64,
    },
}

/// In what a latency is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyUnit {
    /// Nanoseconds.
    Nanoseconds,
    /// Cycles of the core that issued the access, as hardware samples count.
    Cycles,
}

impl Default for Header {
    /// Every access exactly, with lines, without time or latency.
    fn default() -> Header {
        Header {
            workload: String::new(),
            provenance: Provenance::Exact,
            time_resolution_nanos: None,
            lines: true,
            latency: None,
            scale: 1.0,
            processes: false,
        }
    }
}

impl Header {
    /// Checks what a writer could get wrong.
    ///
    /// # Errors
    /// When the resolution is zero, or the scale is not a finite positive number.
    pub fn check(&self) -> Result<(), TraceError> {
        if self.time_resolution_nanos == Some(0) {
            return Err(TraceError::Header("time resolution must be at least 1 ns".to_owned()));
        }
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(TraceError::Header(format!("scale {} is not a positive number", self.scale)));
        }
        Ok(())
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, TraceError> {
        self.check()?;
        let body = serde_json::to_vec(self).map_err(|error| TraceError::Header(error.to_string()))?;
        let length = u32::try_from(body.len()).ok().filter(|&length| length <= LARGEST_BODY);
        let length = length.ok_or_else(|| TraceError::Header("the workload text is longer than 1 MiB".to_owned()))?;
        let mut bytes = SIGNATURE.to_vec();
        let version = if self.processes { VERSION } else { ONE_PROCESS };
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&body);
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        Ok(bytes)
    }

    /// Reads the head of a trace; returns it with the number of bytes it took.
    ///
    /// # Errors
    /// [`TraceError::NotATrace`], [`TraceError::Version`], [`TraceError::Truncated`] or [`TraceError::Corrupt`].
    pub(crate) fn read(input: &mut impl Read) -> Result<(Header, u64), TraceError> {
        let truncated = |end: usize| TraceError::Truncated { offset: 0, end: end as u64, within: "the header" };
        let corrupt = |reason: &str| TraceError::corrupt(0, "the header", reason);
        let mut bytes = vec![0; FIXED_BYTES];
        let got = read_up_to(input, &mut bytes, 0)?;
        let compared = got.min(SIGNATURE.len());
        if bytes[..compared] != SIGNATURE[..compared] || got == 0 {
            return Err(TraceError::NotATrace { found: bytes[..compared].to_vec() });
        }
        if got < FIXED_BYTES {
            return Err(truncated(got));
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if !(ONE_PROCESS..=VERSION).contains(&version) {
            return Err(TraceError::Version { found: version, supported: VERSION });
        }
        let length = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
        if length > LARGEST_BODY {
            return Err(corrupt("its length is impossible"));
        }
        let rest = length as usize + 4;
        bytes.resize(FIXED_BYTES + rest, 0);
        let got = read_up_to(input, &mut bytes[FIXED_BYTES..], FIXED_BYTES as u64)?;
        if got < rest {
            return Err(truncated(FIXED_BYTES + got));
        }
        let (covered, checksum) = bytes.split_at(bytes.len() - 4);
        if crc32fast::hash(covered).to_le_bytes() != checksum {
            return Err(corrupt("its checksum does not match"));
        }
        let header: Header =
            serde_json::from_slice(&covered[FIXED_BYTES..]).map_err(|error| corrupt(&error.to_string()))?;
        header.check().map_err(|error| corrupt(&error.to_string()))?;
        if header.processes != (version == VERSION) {
            return Err(corrupt("its version and what it says of processes do not agree"));
        }
        Ok((header, bytes.len() as u64))
    }
}

/// Reads until `buffer` is full or the input ends; returns how many bytes came. `offset` is only for the error.
pub(crate) fn read_up_to(input: &mut impl Read, buffer: &mut [u8], offset: u64) -> Result<usize, TraceError> {
    let mut filled = 0;
    while filled < buffer.len() {
        match input.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TraceError::io("reading", offset + filled as u64, &error)),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_as_it_was() {
        let header = Header {
            workload: "btree --size 1GiB".to_owned(),
            provenance: Provenance::Sampled { period: 4999 },
            time_resolution_nanos: Some(1000),
            lines: false,
            latency: Some(LatencyUnit::Cycles),
            scale: 64.0,
            processes: false,
        };
        let bytes = header.encode().unwrap();
        assert_eq!(bytes[8], 1, "older programs read what they know");
        assert_eq!(Header::read(&mut bytes.as_slice()).unwrap(), (header.clone(), bytes.len() as u64));
        let several = Header { processes: true, ..header };
        let bytes = several.encode().unwrap();
        assert_eq!(bytes[8], 2);
        assert_eq!(Header::read(&mut bytes.as_slice()).unwrap().0, several);
    }

    #[test]
    fn what_is_no_header_is_refused_by_name() {
        let bytes = Header::default().encode().unwrap();
        let read = |bytes: &[u8]| Header::read(&mut &*bytes).unwrap_err();
        assert_eq!(read(b"PAR1....PAR1...."), TraceError::NotATrace { found: b"PAR1....".to_vec() });
        assert_eq!(read(b""), TraceError::NotATrace { found: Vec::new() });
        let mut newer = bytes.clone();
        newer[8] = 9;
        assert_eq!(read(&newer), TraceError::Version { found: 9, supported: VERSION });
        for end in 1..bytes.len() {
            let expected = TraceError::Truncated { offset: 0, end: end as u64, within: "the header" };
            assert_eq!(read(&bytes[..end]), expected);
        }
        for (index, _) in bytes.iter().enumerate().skip(16) {
            let mut damaged = bytes.clone();
            damaged[index] ^= 0x10;
            assert!(matches!(read(&damaged), TraceError::Corrupt { offset: 0, .. }), "byte {index}");
        }
    }

    #[test]
    fn a_header_that_makes_no_sense_is_not_written() {
        for header in [
            Header { time_resolution_nanos: Some(0), ..Header::default() },
            Header { scale: f64::NAN, ..Header::default() },
            Header { scale: 0.0, ..Header::default() },
        ] {
            assert!(matches!(header.encode(), Err(TraceError::Header(_))), "{header:?}");
        }
    }
}
