//! Reading quantities with units from preset text.
//!
//! In: texts such as "98ns", "39.4GB/s", "35.75MiB", "2.1GHz". Out: nanoseconds, bytes, bytes a second, hertz as plain
//! numbers. Must not: accept a number that is not finite, or a negative one.

use terrace_core::units::{Bytes, parse_duration};

/// A number and the unit behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let trimmed = text.trim();
    let end = trimmed.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(trimmed.len());
    let number: f64 = trimmed[..end].parse().ok()?;
    number.is_finite().then(|| (number, trimmed[end..].trim()))
}

/// "98ns", "1.2us", "500ms": nanoseconds.
pub(crate) fn nanoseconds(text: &str) -> Option<f64> {
    match split(text)? {
        // The general reader knows no parts of a nanosecond; costs per entry need them.
        (number, "ns") => Some(number),
        (number, "us") => Some(number * 1e3),
        _ => parse_duration(text).ok().map(|span| span.as_nanos() as f64),
    }
}

/// "39.4GB/s" (decimal, as vendors state bandwidth) or "30GiB/s": bytes a second.
pub(crate) fn bandwidth(text: &str) -> Option<f64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "MB/s" => 1e6,
        "GB/s" => 1e9,
        "MiB/s" => (1u64 << 20) as f64,
        "GiB/s" => (1u64 << 30) as f64,
        _ => return None,
    };
    Some(number * factor)
}

/// "35.75MiB", "96GiB".
pub(crate) fn bytes(text: &str) -> Option<Bytes> {
    text.parse().ok()
}

/// "2.1GHz": cycles a second.
pub(crate) fn frequency(text: &str) -> Option<f64> {
    match split(text)? {
        (number, "GHz") => Some(number * 1e9),
        (number, "MHz") => Some(number * 1e6),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_carry_their_units() {
        assert_eq!(nanoseconds("98ns"), Some(98.0));
        assert_eq!(nanoseconds("0.42 ns"), Some(0.42));
        assert_eq!(nanoseconds("1.2us"), Some(1200.0));
        assert_eq!(nanoseconds("2ms"), Some(2e6));
        assert_eq!(bandwidth("39.4GB/s"), Some(39.4e9));
        assert_eq!(bytes("35.75MiB").map(Bytes::get), Some(37_486_592));
        assert_eq!(frequency("2.1GHz"), Some(2.1e9));
        for text in ["98", "ns", "-1ns", "NaNns", "1GB", "1e400GB/s"] {
            assert!(nanoseconds(text).is_none() && bandwidth(text).is_none(), "{text}");
        }
    }
}
