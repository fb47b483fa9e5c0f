//! The HTML report of a comparison in the lab, in the style of the other reports.
//!
//! In: a comparison and its figures. Out: HTML. Must not: let a text from outside become markup.

use super::{data_table, escape, figure};
use crate::report::comparison::{COLUMNS, Comparison, cells, meaning};
use crate::report::plots::Figure;

/// The whole page.
pub(crate) fn page(comparison: &Comparison, figures: &[Figure]) -> String {
    let table = data_table("All runs", &COLUMNS, comparison.rows.iter().map(|row| cells(row).to_vec()).collect());
    let kernel = comparison.rows.first().map_or("", |row| row.kernel.as_str());
    let title = format!("managers of tiered memory on {kernel}");
    let figures: String = figures.iter().map(figure).collect();
    let failures: String = comparison
        .failures
        .iter()
        .map(|failure| format!("<p>Failed: <code>{}</code></p>\n", escape(failure)))
        .collect();
    let footer = format!(
        "Emulated by {}. Which page lay where is the kernel's doing; times are of a model. All figures are of report.json beside this page.",
        escape(&comparison.settings.qemu)
    );
    super::page_of("in the lab", &title, &meaning(comparison), &(figures + &table + &failures), &footer)
}
