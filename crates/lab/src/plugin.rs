//! The QEMU plugin: where it is, and whether the QEMU that is installed can load it.
//!
//! In: the environment and QEMU's own word. Out: paths. Must not: build or load it.

use std::path::PathBuf;
use std::process::Command;

use crate::error::LabError;
use crate::tools::text_of;

/// The plugin's file.
const FILE: &str = "libterrace_qemu_plugin.so";
/// Where the package terrace-record puts it, seen from the folder of the programs.
const INSTALLED: &str = "../lib/terrace";
/// Where cargo builds it, seen from the folder where it builds the command, whatever folder one stands in.
const BUILT: &str = "../../qemu-plugin/target/release";
/// The QEMU versions that speak the plugin's interface, number 1: from 6.0, the first that had it, to 8.2, the last (9.0 speaks 2).
const SPEAKS: std::ops::RangeInclusive<(u32, u32)> = (6, 0)..=(8, 2);

/// The plugin: TERRACE_QEMU_PLUGIN, the file beside this program, the one of the package terrace-record, or the one that `make qemu-plugin`
/// builds in the same repository.
///
/// # Errors
/// When there is none, with how to make it.
pub fn plugin() -> Result<PathBuf, LabError> {
    let named = std::env::var_os("TERRACE_QEMU_PLUGIN").filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    let places = folder.map(|folder| [".", INSTALLED, BUILT].map(|place| folder.join(place).join(FILE)));
    let found = match named {
        Some(path) => Some(path).filter(|path| path.exists()),
        None => places.into_iter().flatten().find(|path| path.exists()),
    };
    let path = found.ok_or_else(|| {
        LabError::Missing(format!(
            "there is no {FILE}: install the package terrace-record, or build it in the sources with `make qemu-plugin`; \
             TERRACE_QEMU_PLUGIN names one that lies elsewhere"
        ))
    })?;
    // QEMU takes a comma in a path for the end of it.
    path.canonicalize().map_err(crate::error::file_error(&path))
}

/// Checks that this QEMU loads the plugin. `package` is the Debian package that has the program.
///
/// # Errors
/// When it is not installed, or speaks another version of the interface.
pub fn check(program: &str, package: &'static str) -> Result<(), LabError> {
    let text = text_of(Command::new(program).arg("--version"), package)?;
    refuse(program, &text)?;
    let help = text_of(Command::new(program).arg("-h"), package)?;
    if help.contains("-plugin") {
        return Ok(());
    }
    Err(LabError::Invalid(format!("{program} is built without plugins: Debian bookworm's QEMU 7.2 has them")))
}

/// Why a QEMU of this version line does not do, if it does not.
fn refuse(program: &str, text: &str) -> Result<(), LabError> {
    let version = text.split_whitespace().skip_while(|word| *word != "version").nth(1).unwrap_or_default();
    let mut numbers = version.split(['.', '(']).map_while(|number| number.parse::<u32>().ok());
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if SPEAKS.contains(&found) {
        return Ok(());
    }
    let why = match found {
        (0..=5, _) => "speaks no plugin interface that is stable",
        (9..=10, _) => "speaks plugin interface 2 to 4 or later, and in Debian its user mode loads no plugins",
        _ => "speaks a plugin interface whose callbacks have other arguments",
    };
    Err(LabError::Invalid(format!(
        "{program} {version} {why}; the plugin is written for interface 1: QEMU 6.0 to 8.2, such as Debian bookworm's 7.2"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_speak_the_interface_are_told_from_others() {
        assert!(
            refuse("qemu-x86_64", "qemu-x86_64 version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright").is_ok()
        );
        assert!(refuse("q", "QEMU emulator version 8.2.0\n").is_ok());
        for (text, says) in [
            ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)", "2 to 4"),
            ("QEMU emulator version 11.1.3", "other arguments"),
            ("QEMU emulator version 5.2.0", "no plugin interface"),
            ("nonsense", "interface 1"),
        ] {
            let error = refuse("qemu-x86_64", text).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("7.2"), "{text}: {error}");
        }
    }
}
