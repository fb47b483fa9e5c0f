//! The HTML report of a comparison in the lab, in the style of the other reports.
//!
//! In: a comparison and its figures. Out: HTML. Must not: let a text from outside become markup.

use super::{TEMPLATE, data_table, escape, figure, plots};
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
    let style = TEMPLATE.split_once("<style>").and_then(|(_, rest)| rest.split_once("</style>"));
    let style = style.map_or("", |(style, _)| style).replace("{{dark_inks}}", &plots::css());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Terrace: {title}</title>\n<style>{style}</style>\n</head>\n\
         <body>\n<header><h1>Terrace, in the lab: {title}</h1></header>\n<main>\n<p class=\"headline\">{meaning}</p>\n\
         {figures}{table}{failures}</main>\n\
         <footer>Emulated by {qemu}. Which page lay where is the kernel's doing; times are of a model. All figures are of \
         report.json beside this page.</footer>\n</body>\n</html>\n",
        title = escape(&title),
        meaning = escape(&meaning(comparison)),
        qemu = escape(&comparison.settings.qemu)
    )
}
