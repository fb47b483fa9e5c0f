//! Lines of text, one at a time, and the numbers in them.
//!
//! In: a buffered reader. Out: lines without their end, with their number for error messages; parsed numbers. Must
//! not: grow with the input, or allocate for each line.

use std::io::{BufRead, Read};

use crate::error::TraceError;
use crate::import::{ImportOptions, Sink};

const LONGEST_LINE: u64 = 1 << 20;

/// Calls `each` for every line. A line that it refuses ends the import, or is counted if the options say so.
pub(crate) fn each_line(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    format: &'static str,
    options: &ImportOptions,
    mut each: impl FnMut(&[u8], &mut Sink<'_>) -> Result<(), BadLine>,
) -> Result<(), TraceError> {
    let mut line = Vec::new();
    let mut number = 0_u64;
    let mut offset = 0_u64;
    loop {
        line.clear();
        let count = Read::take(&mut *input, LONGEST_LINE).read_until(b'\n', &mut line);
        let count = count.map_err(|error| TraceError::io("reading the recording", offset, &error))?;
        if count == 0 {
            return Ok(());
        }
        number += 1;
        offset += count as u64;
        if count as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
            return Err(TraceError::line(format, number, &line, "the line is longer than 1 MiB"));
        }
        match each(line.trim_ascii_end(), sink) {
            Ok(()) => {}
            Err(BadLine::Trace(error)) => return Err(error),
            Err(BadLine::Reason(_)) if options.skip_bad_lines => sink.skip("line not understood"),
            Err(BadLine::Reason(reason)) => {
                return Err(TraceError::line(format, number, line.trim_ascii_end(), reason));
            }
        }
    }
}

/// Why a line stopped an import.
pub(crate) enum BadLine {
    /// It cannot be understood.
    Reason(String),
    /// It was understood, but the trace could not take it.
    Trace(TraceError),
}

impl From<TraceError> for BadLine {
    fn from(error: TraceError) -> BadLine {
        BadLine::Trace(error)
    }
}

impl From<&str> for BadLine {
    fn from(reason: &str) -> BadLine {
        BadLine::Reason(reason.to_owned())
    }
}

/// A hexadecimal number without prefix, 1 to 16 digits.
pub(crate) fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &digit| Some((value << 4) | u64::from((digit as char).to_digit(16)?)))
}

/// A decimal number, at least one digit.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &digit| {
        let digit = u64::from((digit as char).to_digit(10)?);
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// A number that is hexadecimal with "0x" and decimal without.
pub(crate) fn either(digits: &[u8]) -> Option<u64> {
    match digits.strip_prefix(b"0x").or_else(|| digits.strip_prefix(b"0X")) {
        Some(digits) => hexadecimal(digits),
        None => decimal(digits),
    }
}

/// Seconds with up to nine decimals, such as 82877.315633, as nanoseconds.
pub(crate) fn seconds(text: &[u8]) -> Option<u64> {
    let (whole, fraction) = match text.iter().position(|&byte| byte == b'.') {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &b"0"[..]),
    };
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10_u64.pow(9 - fraction.len() as u32);
    decimal(whole)?.checked_mul(1_000_000_000)?.checked_add(decimal(fraction)? * scale)
}

/// The words of a line.
pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_or_refused() {
        assert_eq!(hexadecimal(b"1fff0001"), Some(0x1fff_0001));
        assert_eq!(hexadecimal(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(either(b"0x10"), Some(16));
        assert_eq!(either(b"10"), Some(10));
        assert_eq!(seconds(b"82877.315633"), Some(82_877_315_633_000));
        assert_eq!(seconds(b"7"), Some(7_000_000_000));
        for bad in [&b""[..], b"g", b"10000000000000000"] {
            assert_eq!(hexadecimal(bad), None);
        }
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(seconds(b"1."), None);
        assert_eq!(seconds(b"1.0000000001"), None);
    }
}
