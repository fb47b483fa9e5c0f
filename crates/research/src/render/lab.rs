//! What the lab found, as text.
//!
//! In: reports. Out: lines. Must not: judge.

use std::path::Path;

use terrace_lab::ScenarioReport;

use super::Screen;
use crate::report::comparison::{COLUMNS, Comparison, cells, meaning};

/// A scenario's report: the verdict, steps, assertions with the values they were made of, figures; what failed first shows last,
/// with the end of the console.
pub(crate) fn report(report: &ScenarioReport) -> String {
    let mut text = format!(
        "{} on {} ({}): {}; boot {:.1} s, {:.1} s in all, {:.1} s in the guest\n",
        report.scenario,
        report.release,
        report.mode.name(),
        if report.passed { "passed" } else { "FAILED" },
        report.boot_seconds,
        report.wall_seconds,
        report.guest_seconds
    );
    for step in &report.steps {
        text += &format!("  step {:<20} exit {} after {:.2} s\n", step.name, step.exit, step.seconds);
    }
    for assertion in &report.assertions {
        let values: Vec<String> = assertion.values.iter().map(|(path, value)| format!("{path} = {value}")).collect();
        let mark = if assertion.passed { "ok  " } else { "FAIL" };
        text +=
            &format!("  {mark} {}\n       {}\n", assertion.text, assertion.error.clone().unwrap_or(values.join(", ")));
    }
    for (name, value) in &report.figures {
        text += &format!("  {name}: {value}\n");
    }
    if let Some(tail) = &report.console_tail {
        text += &format!("  the end of the guest's console:\n{tail}\n");
    }
    text
}

/// The kernels in the cache and in the archive.
pub(crate) fn kernels(folder: &Path, here: &[String], offered: Option<&[String]>) -> String {
    let mut text = format!("in {}:\n", folder.display());
    for release in here {
        text += &format!("  {release}\n");
    }
    if here.is_empty() {
        text += "  none yet; `terrace lab boot` fetches one\n";
    }
    match offered {
        Some(offered) => {
            text += "in the Debian archive, the newest of each series:\n";
            text.extend(offered.iter().map(|release| format!("  {release}\n")));
        }
        None => text += "--refresh asks the Debian archive what it has\n",
    }
    text
}

/// The rows of a comparison, with what they mean below.
pub(crate) fn comparison(comparison: &Comparison, screen: &Screen) -> String {
    let mut table = screen.table(&COLUMNS);
    for row in &comparison.rows {
        table.add_row(cells(row));
    }
    let mut text = format!("{table}\n{}\n", meaning(comparison));
    for failure in &comparison.failures {
        text += &format!("failed: {failure}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_cache_says_how_to_fill_it() {
        let text = kernels(Path::new("/c"), &[], None);
        assert!(text.contains("none yet") && text.contains("--refresh"), "{text}");
        let text = kernels(Path::new("/c"), &["6.1.0-56-amd64".to_owned()], Some(&["7.2.13-amd64".to_owned()]));
        assert_eq!(
            text,
            "in /c:\n  6.1.0-56-amd64\nin the Debian archive, the newest of each series:\n  7.2.13-amd64\n"
        );
    }
}
