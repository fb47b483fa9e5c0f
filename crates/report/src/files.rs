//! The report on disk.
//!
//! In: a directory and a [`Report`]. Out: report.json and report.html in it. Must not: leave half a file behind, or replace a
//! good one by half of a new one.

use std::path::Path;

use anyhow::Context;

use super::{Report, html};

/// Writes report.json, the report with what made it, and report.html into `directory`, which is made if it is not there.
///
/// # Errors
/// When the directory cannot be made or a file in it not be written; the error names which, and what to do.
pub fn write_report(directory: &Path, report: &Report, json: &serde_json::Value) -> anyhow::Result<()> {
    write_pair(directory, json, &html::page(report)?)
}

/// Writes report.json, from anything that has such a form, and report.html beside it.
///
/// # Errors
/// As [`write_report`].
pub fn write_pair(directory: &Path, report: &impl serde::Serialize, page: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory).with_context(|| {
        format!("{}: the directory of the report could not be made; name another with --report", directory.display())
    })?;
    let json = serde_json::to_string_pretty(report).context("the report could not be turned into JSON")? + "\n";
    write_whole(&directory.join("report.json"), &json)?;
    write_whole(&directory.join("report.html"), page)
}

/// Writes a file atomically: a reader sees the old one or the new one.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    terrace_files::write(path, text).with_context(|| {
        format!(
            "{}: the report could not be written; see that the directory is writable and has room, or name another with --report",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::example;

    #[test]
    fn both_files_are_written_whole_and_nothing_else_stays() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("new/deep");
        let report = example::managed();
        let json = terrace_common::provenance::Provenance::here().stamp(&report).unwrap();
        write_report(&place, &report, &json).unwrap();
        write_report(&place, &report, &json).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["report.html", "report.json"]);
        let json = std::fs::read_to_string(place.join("report.json")).unwrap();
        let read: Report = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (read.target.command, read.moved_pages.demoted),
            (report.target.command, report.moved_pages.demoted)
        );
        assert_eq!((read.timeline.len(), read.heat_map.cells), (report.timeline.len(), report.heat_map.cells));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = format!("{:#}", write_report(&file, &example::managed(), &serde_json::Value::Null).unwrap_err());
        assert!(error.contains(&file.display().to_string()) && error.contains("--report"), "{error}");
    }
}
