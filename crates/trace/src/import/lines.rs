//! Lines of text, one at a time, and the numbers in them.
//!
//! In: a buffered reader. Out: lines without their end, with their number for error messages; parsed numbers. Must
//! not: grow with the input, or allocate for each line.
//!
//! A line ends with LF, CR LF or CR. A line that is none of the tool's is counted under what it is ([`BadLine::Aside`]).

use std::io::{BufRead, Read};

use crate::error::TraceError;
use crate::import::{ImportOptions, Sink};

const LONGEST_LINE: u64 = 1 << 20;
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
/// What to do about a line that cannot be understood.
const LEAVE_OUT: &str = "--skip-bad-lines leaves such lines out and counts them";

/// What a line is that no tool's form fits, such as the traced program's own output in the same file.
pub(crate) const FOREIGN: &str = "line of no form of this tool, such as output of the program itself";

/// Calls `each` for every line. A line that it refuses ends the import, or is counted if the options say so.
pub(crate) fn each_line(
    input: &mut dyn BufRead,
    sink: &mut Sink<'_>,
    format: &'static str,
    options: &ImportOptions,
    mut each: impl FnMut(&[u8], &mut Sink<'_>) -> Result<(), BadLine>,
) -> Result<(), TraceError> {
    let failed = |error: std::io::Error, offset| TraceError::io("reading the recording", offset, &error);
    let mut line = Vec::new();
    let mut number = 0_u64;
    let mut offset = 0_u64;
    loop {
        line.clear();
        let count = Read::take(&mut *input, LONGEST_LINE).read_until(b'\n', &mut line);
        let count = count.map_err(|error| failed(error, offset))?;
        if count == 0 {
            return Ok(());
        }
        number += 1;
        offset += count as u64;
        if count as u64 == LONGEST_LINE && line.last() != Some(&b'\n') {
            if !options.skip_bad_lines {
                return Err(TraceError::line(format, number, &line, "the line is longer than 1 MiB", LEAVE_OUT));
            }
            sink.skip("line longer than 1 MiB");
            offset += input.skip_until(b'\n').map_err(|error| failed(error, offset))? as u64;
            continue;
        }
        let text = if number == 1 { without_mark(&line, format)? } else { &line[..] };
        for part in text.trim_ascii_end().split(|&byte| byte == b'\r').map(<[u8]>::trim_ascii_end) {
            match each(part, sink) {
                Ok(()) => {}
                Err(BadLine::Trace(error)) => return Err(error),
                Err(BadLine::Aside(what)) => sink.skip(what),
                Err(BadLine::Refused(reason, remedy)) => {
                    return Err(TraceError::line(format, number, part, reason, remedy));
                }
                Err(BadLine::Reason(_)) if options.skip_bad_lines => sink.skip("line not understood"),
                Err(BadLine::Reason(reason)) => return Err(TraceError::line(format, number, part, reason, LEAVE_OUT)),
            }
        }
    }
}

/// The first line without the mark that says UTF-8. Text in UTF-16, which some shells write, is no damage.
pub(crate) fn without_mark<'l>(line: &'l [u8], format: &'static str) -> Result<&'l [u8], TraceError> {
    if line.starts_with(b"\xff\xfe") || line.starts_with(b"\xfe\xff") {
        let remedy = "convert it: iconv -f UTF-16 -t UTF-8 FILE | terrace trace import ... - NEW";
        return Err(TraceError::line(format, 1, line, "the text is UTF-16", remedy));
    }
    Ok(line.strip_prefix(UTF8_MARK).unwrap_or(line))
}

/// Why a line became no access.
#[derive(Debug)]
pub(crate) enum BadLine {
    /// It cannot be understood.
    Reason(String),
    /// It is none of the recording's own, and counted as this.
    Aside(&'static str),
    /// Whatever the options say, nothing behind it can be understood; and what to do.
    Refused(String, &'static str),
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

/// Parts comments and markers of an end, such as `#eof`, from what a tool recorded.
pub(crate) fn no_aside(line: &[u8]) -> Result<(), BadLine> {
    let text = line.trim_ascii();
    let marks = |byte: &u8| !byte.is_ascii_alphanumeric();
    // Longer lines are none, and need no look at each byte.
    if text.len() <= 40 && text.first().is_some_and(|first| !first.is_ascii_digit()) {
        let begin = text.iter().position(|byte| !marks(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !marks(byte)).map_or(begin, |at| at + 1);
        let words = &text[begin..end];
        if [&b"eof"[..], b"end", b"end of file", b"end of trace"].iter().any(|end| words.eq_ignore_ascii_case(end)) {
            return Err(BadLine::Aside("marker of the end"));
        }
    }
    if text.starts_with(b"#") || text.starts_with(b"//") {
        return Err(BadLine::Aside("comment"));
    }
    Ok(())
}

/// A hexadecimal number with or without "0x", 1 to 16 digits.
pub(crate) fn hexadecimal(text: &[u8]) -> Option<u64> {
    let digits = marked(text).unwrap_or(text);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0_u64, |value, &digit| Some((value << 4) | u64::from((digit as char).to_digit(16)?)))
}

/// What stands behind "0x".
pub(crate) fn marked(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"0x").or_else(|| text.strip_prefix(b"0X"))
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
    if marked(digits).is_some() { hexadecimal(digits) } else { decimal(digits) }
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
        assert_eq!((hexadecimal(b"0x1F"), either(b"0X1f")), (Some(31), Some(31)));
        assert_eq!(seconds(b"82877.315633"), Some(82_877_315_633_000));
        assert_eq!(seconds(b"7"), Some(7_000_000_000));
        for bad in [&b""[..], b"g", b"0x", b"0x0x1", b"10000000000000000"] {
            assert_eq!(hexadecimal(bad), None);
        }
        assert_eq!(decimal(b"18446744073709551616"), None);
        assert_eq!(seconds(b"1."), None);
        assert_eq!(seconds(b"1.0000000001"), None);
    }

    #[test]
    fn comments_and_ends_are_told_from_accesses() {
        let told = |line: &[u8]| match no_aside(line) {
            Err(BadLine::Aside(what)) => what,
            _ => "",
        };
        for line in [&b"#eof"[..], b"<EOF>", b"--- end of trace ---", b"End"] {
            assert_eq!(told(line), "marker of the end");
        }
        for line in [&b"# by a simulator"[..], b"  // end of phase 1", b"#end: 5"] {
            assert_eq!(told(line), "comment");
        }
        for line in [&b"0xend"[..], b"R 0x1000", b"ending", b"", b"0 R end"] {
            assert_eq!(told(line), "");
        }
    }
}
