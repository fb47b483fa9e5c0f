//! Rows as tables: the columns that every row of a comparison or a sweep has.
//!
//! In: rows. Out: CSV. Must not: leave out a key of a row.

use serde_json::Value;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text; an object is its JSON.
    Text,
    /// A whole number.
    Whole,
    /// A number.
    Number,
}
use Kind::{Number, Text, Whole};

/// The columns of a table, in their order: all keys of a cell, and then what made it.
pub const COLUMNS: [(&str, Kind); 31] = [
    ("workload", Text),
    ("policy", Text),
    ("machine", Text),
    ("fast", Text),
    ("fast_share", Number),
    ("seed", Whole),
    ("scale", Whole),
    ("fast_bytes", Whole),
    ("footprint_bytes", Whole),
    ("seconds", Number),
    ("slowdown_vs_all_fast", Number),
    ("gain_over_all_slow", Number),
    ("gain_over_first_touch", Number),
    ("fast_hit_share", Number),
    ("promoted_pages", Whole),
    ("demoted_pages", Whole),
    ("failed_promotions", Whole),
    ("management_seconds", Number),
    ("metadata_bytes_per_page", Number),
    ("schema_version", Whole),
    ("version", Text),
    ("commit", Text),
    ("command", Text),
    ("machine_hash", Text),
    ("workload_settings", Text),
    ("trace_hash", Text),
    ("size_bytes", Whole),
    ("operations", Whole),
    ("settings", Text),
    ("threads", Whole),
    ("pages", Text),
];

/// Rows as CSV, with the names of the columns first.
pub fn csv_table(rows: &[Value]) -> String {
    let mut out = COLUMNS.map(|(name, _)| name).join(",") + "\n";
    for row in rows {
        out += &(COLUMNS.map(|(name, _)| csv_field(&row[name])).join(",") + "\n");
    }
    out
}

/// A value as a field (RFC 4180); what is not known is empty, an object is JSON.
fn csv_field(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(csv_field(&json!("a, \"b\"")), "\"a, \"\"b\"\"\"");
        assert_eq!(csv_field(&json!({ "a": 1 })), "\"{\"\"a\"\":1}\"");
        assert_eq!((csv_field(&Value::Null), csv_field(&json!(1.5))), (String::new(), "1.5".to_owned()));
    }
}
