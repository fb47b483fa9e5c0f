//! Rows as tables: the columns that every row of a comparison or a sweep has.
//!
//! In: rows. Out: CSV. Must not: leave out a key of a row.

use serde_json::Value;

/// The columns of the CSV, in their order: all keys of a cell, and then what made it.
pub const COLUMNS: [&str; 31] = [
    "workload",
    "policy",
    "machine",
    "fast",
    "fast_share",
    "seed",
    "scale",
    "fast_bytes",
    "footprint_bytes",
    "seconds",
    "slowdown_vs_all_fast",
    "gain_over_all_slow",
    "gain_over_first_touch",
    "fast_hit_share",
    "promoted_pages",
    "demoted_pages",
    "failed_promotions",
    "management_seconds",
    "metadata_bytes_per_page",
    "schema_version",
    "version",
    "commit",
    "command",
    "machine_hash",
    "workload_settings",
    "trace_hash",
    "size_bytes",
    "operations",
    "settings",
    "threads",
    "pages",
];

/// Rows as CSV, with the names of the columns first.
pub fn csv_table(rows: &[Value]) -> String {
    let mut out = COLUMNS.join(",") + "\n";
    for row in rows {
        out += &(COLUMNS.iter().map(|column| csv_field(&row[*column])).collect::<Vec<_>>().join(",") + "\n");
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
