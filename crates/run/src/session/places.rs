//! Where the report goes, tried before the program starts: an hour's run must not end in "no such directory".
//!
//! In: the places the user named. Out: [`Places`], which holds the directories that were made for them. Must not: change a
//! file that is there, or leave a directory behind that nothing was written into.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use terrace_files::Output;

use crate::args::ReportArguments;

/// Places that can be written to. Dropping it removes the directories that it made and that are still empty.
#[derive(Debug, Default)]
pub struct Places {
    /// Outermost first.
    made: Vec<PathBuf>,
}

impl Places {
    /// Makes the report's directory, and tries whether files can be written where the user wants them.
    ///
    /// # Errors
    /// When they cannot; the error names option and path.
    pub fn prepare(output: &ReportArguments) -> anyhow::Result<Places> {
        let mut places = Places::default();
        if let Some(directory) = &output.report {
            places.try_directory(directory).with_context(|| {
                format!(
                    "--report {}: no report can be written there; expected a directory that can be",
                    directory.display()
                )
            })?;
        }
        if let Some(file) = &output.json_file {
            try_file(file).with_context(|| {
                format!(
                    "--json-file {}: it cannot be written; expected a file in a directory that is there",
                    file.display()
                )
            })?;
        }
        Ok(places)
    }

    fn try_directory(&mut self, directory: &Path) -> io::Result<()> {
        let missing: Vec<&Path> =
            directory.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
        for path in missing.into_iter().rev() {
            std::fs::create_dir(path)?;
            self.made.push(path.to_owned());
        }
        Output::create(&directory.join("report.json")).map(drop)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for directory in self.made.iter().rev() {
            // With the report in it, it is not empty and stays.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

fn try_file(file: &Path) -> io::Result<()> {
    match std::fs::metadata(file) {
        // Opening a pipe waits for its reader, and what a device does is its own business.
        Ok(found) if !found.is_file() && !found.is_dir() => Ok(()),
        _ => Output::create(file).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(report: Option<&Path>, json_file: Option<&Path>) -> ReportArguments {
        ReportArguments {
            report: report.map(Path::to_owned),
            json: false,
            json_file: json_file.map(Path::to_owned),
            quiet: true,
            live: false,
        }
    }

    #[test]
    fn directories_stay_only_if_something_was_written() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("new/deep");
        drop(Places::prepare(&output(Some(&deep), None)).unwrap());
        assert!(!root.path().join("new").exists());
        let places = Places::prepare(&output(Some(&deep), None)).unwrap();
        std::fs::write(deep.join("report.json"), "{}").unwrap();
        drop(places);
        assert!(deep.join("report.json").exists());
        // One that was there before stays, empty or not.
        drop(Places::prepare(&output(Some(root.path()), None)).unwrap());
        assert!(root.path().exists());
    }

    #[test]
    fn a_file_that_is_there_keeps_its_text_and_one_that_is_not_is_not_made() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("out.json");
        Places::prepare(&output(None, Some(&file))).unwrap();
        assert!(!file.exists());
        std::fs::write(&file, "before").unwrap();
        Places::prepare(&output(None, Some(&file))).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "before");
        for bad in [root.path().to_owned(), root.path().join("no/such.json"), file.join("below")] {
            let error = Places::prepare(&output(None, Some(&bad))).unwrap_err();
            assert!(format!("{error:#}").contains(&format!("--json-file {}", bad.display())), "{error:#}");
        }
        let error = Places::prepare(&output(Some(&file.join("below")), None)).unwrap_err();
        assert!(format!("{error:#}").contains("--report"), "{error:#}");
    }
}
