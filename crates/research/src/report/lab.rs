//! The report of a comparison in the lab on disk: report.json and a page with plots.
//!
//! In: a comparison. Out: files. Must not: take emulated time for a measurement; the page says what each figure is.

use std::path::Path;

use super::comparison::Comparison;
use super::{files, html, plots};

/// Writes report.json and report.html.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write_comparison(
    directory: &Path,
    comparison: &Comparison,
    json: &serde_json::Value,
) -> anyhow::Result<()> {
    let figures = plots::lab::figures(&comparison.courses)?;
    files::write_pair(directory, json, &html::lab::page(comparison, &figures))
}
