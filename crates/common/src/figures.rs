//! Figures as people read them: bytes, spans, shares and counts.
//!
//! In: plain numbers. Out: short texts with their unit. Must not: fail on a number that is infinite or not a number; such
//! a figure is shown as "unknown".

use terrace_core::units::{Bytes, PAGE_BYTES};

/// "1.1 GiB".
pub fn bytes(amount: u64) -> String {
    Bytes::new(amount).to_string()
}

/// The memory of `pages` pages of 4 KiB.
pub fn pages(count: u64) -> String {
    bytes(count.saturating_mul(PAGE_BYTES))
}

/// "1,234,567".
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// "1 page", "2 pages": a count with its noun.
pub fn counted(number: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(number), if number == 1 { singular } else { plural })
}

/// A span, in the unit that reads best: "180 µs", "12 ms", "1.3 s", "2 min 5 s", "3 h 20 min".
pub fn seconds(span: f64) -> String {
    if !span.is_finite() {
        return "unknown".to_owned();
    }
    if span < 0.0 {
        return format!("-{}", seconds(-span));
    }
    if span == 0.0 {
        return "0 s".to_owned();
    }
    if span < 0.9995e-3 {
        return format!("{} µs", significant(span * 1e6));
    }
    if span < 0.9995 {
        return format!("{} ms", significant(span * 1e3));
    }
    if span < 119.5 {
        return format!("{} s", significant(span));
    }
    // Rounded once, so that no "60 s" can stand beside the minutes.
    let whole = span.round() as u64;
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{large} {large_unit}"),
        _ => format!("{large} {large_unit} {small} {small_unit}"),
    };
    if whole < 7200 {
        two(whole / 60, "min", whole % 60, "s")
    } else {
        two(whole / 3600, "h", whole % 3600 / 60, "min")
    }
}

/// "54 %", "0.8 %"; the share is 0 to 1.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{} %", significant(share * 100.0)) } else { "unknown".to_owned() }
}

/// `part` of `whole` as a share, 0 where there is no whole.
pub fn share_of(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A number with a digit after the point only where it tells something.
pub fn significant(number: f64) -> String {
    match number.abs() {
        size if size.fract() == 0.0 && size < 1e6 => count_of(number),
        size if size < 0.095 => format!("{number:.2}"),
        size if size < 9.95 => format!("{number:.1}"),
        size if size < 1e6 => count_of(number),
        _ => format!("{number:.2e}"),
    }
}

/// A rounded number with separators.
fn count_of(number: f64) -> String {
    let sign = if number < 0.0 { "-" } else { "" };
    format!("{sign}{}", count(number.abs().round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well_at_every_size() {
        let cases = [
            (seconds(0.0), "0 s"),
            (seconds(0.000_18), "180 µs"),
            (seconds(0.0123), "12 ms"),
            (seconds(0.9999), "1.0 s"),
            (seconds(1.26), "1.3 s"),
            (seconds(2.0), "2 s"),
            (seconds(62.0), "62 s"),
            (seconds(119.7), "2 min"),
            (seconds(125.0), "2 min 5 s"),
            (seconds(12_000.0), "3 h 20 min"),
            (seconds(f64::NAN), "unknown"),
            (percent(0.543), "54 %"),
            (percent(0.008), "0.8 %"),
            (percent(f64::INFINITY), "unknown"),
            (count(0), "0"),
            (count(999), "999"),
            (count(1_234_567), "1,234,567"),
            (counted(1, "page", "pages"), "1 page"),
            (pages(256), "1.0 MiB"),
            (bytes(1_181_116_006), "1.1 GiB"),
        ];
        for (text, wanted) in cases {
            assert_eq!(text, wanted);
        }
    }

    #[test]
    fn a_share_of_nothing_is_nothing() {
        assert_eq!(share_of(5, 0), 0.0);
        assert_eq!(share_of(1, 4), 0.25);
    }
}
