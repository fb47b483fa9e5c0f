//! The table of what passed on which kernel, between two marks in a document.
//!
//! In: the document, and verdicts. Out: the document with the table brought up to date: what was run now replaces what stood there for
//! the same scenario and kernel, all else stays. Must not: touch anything outside the marks, or keep a verdict nobody gave.

use std::collections::{BTreeMap, BTreeSet};

use crate::lab::ScenarioReport;

const BEGIN: &str = "<!-- lab-results: begin.";
const END: &str = "<!-- lab-results: end -->";
const NOT_RUN: &str = "-";

/// Why a document takes no verdicts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// One of the lines around the table is missing.
    #[error("the line {0:?} is missing")]
    NoMark(&'static str),
    /// A row has another number of cells than the head.
    #[error("a row of the table has {cells} cells and not {wanted}: {line:?}")]
    Row {
        /// Cells it has.
        cells: usize,
        /// Cells of the head.
        wanted: usize,
        /// The row.
        line: Vec<String>,
    },
}

/// The document with the verdicts of these reports in its table.
///
/// # Errors
/// When the marks are not there, or what stands between them is no such table.
pub fn with_results(document: &str, reports: &[ScenarioReport]) -> Result<String, TableError> {
    let missing = TableError::NoMark;
    let begin = document.find(BEGIN).ok_or_else(|| missing(BEGIN))?;
    let begin = begin + document[begin..].find('\n').ok_or_else(|| missing(BEGIN))? + 1;
    let end = begin + document[begin..].find(END).ok_or_else(|| missing(END))?;
    let mut cells = read(&document[begin..end])?;
    for report in reports {
        let verdict = if report.passed { "passed" } else { "FAILED" };
        cells.insert((report.scenario.clone(), report.release.clone()), verdict.to_owned());
    }
    Ok(format!("{}\n{}\n{}", &document[..begin], written(&cells), &document[end..]))
}

type Cells = BTreeMap<(String, String), String>;

/// The cells of a table by scenario and kernel. A text without a table has none.
fn read(text: &str) -> Result<Cells, TableError> {
    let row = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
    };
    let mut lines = text.lines().filter(|line| line.trim_start().starts_with('|'));
    let Some(head) = lines.next().map(row) else { return Ok(Cells::new()) };
    let mut cells = Cells::new();
    for line in lines.skip(1) {
        let line = row(line);
        if line.len() != head.len() {
            return Err(TableError::Row { cells: line.len(), wanted: head.len(), line });
        }
        for (kernel, verdict) in head.iter().zip(&line).skip(1).filter(|(_, verdict)| *verdict != NOT_RUN) {
            cells.insert((line[0].clone(), kernel.clone()), verdict.clone());
        }
    }
    Ok(cells)
}

fn written(cells: &Cells) -> String {
    let kernels: BTreeSet<(Vec<u64>, &str)> =
        cells.keys().map(|(_, kernel)| (numbers(kernel), kernel.as_str())).collect();
    let scenarios: BTreeSet<&str> = cells.keys().map(|(scenario, _)| scenario.as_str()).collect();
    let mut text = "| scenario |".to_owned();
    text.extend(kernels.iter().map(|(_, kernel)| format!(" {kernel} |")));
    text += "\n|---|";
    text += &"---|".repeat(kernels.len());
    for scenario in scenarios {
        text += &format!("\n| `{scenario}` |");
        for (_, kernel) in &kernels {
            let verdict = cells.get(&(scenario.to_owned(), (*kernel).to_owned()));
            text += &format!(" {} |", verdict.map_or(NOT_RUN, String::as_str));
        }
    }
    text + "\n"
}

/// Numbers in a release, so that 6.12 comes after 6.1.
fn numbers(release: &str) -> Vec<u64> {
    release.split(|part: char| !part.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str =
        "before\n<!-- lab-results: begin. By hand no. -->\n\nNot generated yet.\n\n<!-- lab-results: end -->\nafter\n";

    fn report(scenario: &str, release: &str, passed: bool) -> ScenarioReport {
        ScenarioReport {
            scenario: scenario.to_owned(),
            kernel: String::new(),
            release: release.to_owned(),
            mode: crate::Mode::Fast,
            qemu: String::new(),
            passed,
            boot_seconds: 0.0,
            wall_seconds: 0.0,
            guest_seconds: 0.0,
            steps: Vec::new(),
            assertions: Vec::new(),
            figures: BTreeMap::new(),
            values: BTreeMap::new(),
            console_tail: None,
        }
    }

    #[test]
    fn results_are_merged_by_scenario_and_kernel() {
        let first = with_results(PAGE, &[report("a", "6.12.1", true), report("b", "6.1.0", false)]).unwrap();
        let table = "| scenario | 6.1.0 | 6.12.1 |\n|---|---|---|\n| `a` | - | passed |\n| `b` | FAILED | - |\n";
        assert!(first.contains(table) && first.starts_with("before\n") && first.ends_with("after\n"), "{first}");
        let second = with_results(&first, &[report("b", "6.1.0", true)]).unwrap();
        assert!(second.contains("| `a` | - | passed |\n| `b` | passed | - |\n"), "{second}");
        assert_eq!(with_results(&second, &[]).unwrap(), second, "writing it again changes nothing");
    }

    #[test]
    fn a_document_without_marks_is_refused() {
        assert_eq!(with_results("text", &[]), Err(TableError::NoMark(BEGIN)));
        let broken = PAGE.replace("Not generated yet.", "| scenario | x |\n|---|---|\n| a |");
        assert!(matches!(with_results(&broken, &[]), Err(TableError::Row { .. })));
    }
}
