//! The two programs of one command line, `terrace` and `terrace-research`: where the other one is, and how a command is handed over to it.
//!
//! In: the name of a program, and the words that were typed. Out: its path, or this process replaced by it, so that exit code and signals are its own.
//! Must not: hand over to what is neither beside this program nor on PATH.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::program;

/// The operator's program.
pub const TERRACE: &str = "terrace";
/// The program for research, which is the name of its package too.
pub const RESEARCH: &str = "terrace-research";

/// A command is of the other program, and that is not installed.
#[derive(Debug, thiserror::Error)]
#[error(
    "`terrace {command}` is of the package {program}, which is not installed: apt-get install {program} (from the sources: make build), or put the \
     program {program} beside this one or on PATH"
)]
pub struct Missing {
    command: String,
    program: &'static str,
}

impl Missing {
    /// As of a program that does not exist, in env(1) and a shell: no result of the command is mistaken for it.
    pub const EXIT_CODE: u8 = 127;
}

/// A program of Terrace: beside this one, then where PATH says.
///
/// # Errors
/// When it is in neither place; `command` is what it is needed for.
pub fn find(program: &'static str, command: &str) -> Result<PathBuf, Missing> {
    let own = std::env::current_exe().ok();
    let beside = own.and_then(|own| Some(own.parent()?.join(program)));
    beside
        .filter(|path| program::check(path.as_os_str()).is_ok())
        .or_else(|| program::find(OsStr::new(program)).ok())
        .ok_or_else(|| Missing { command: command.to_owned(), program })
}

/// Replaces this process by another program of Terrace, which gets the same words. Returns only if it could not.
pub fn hand_over(program: &'static str, command: &str) -> anyhow::Error {
    let path = match find(program, command) {
        Ok(path) => path,
        Err(missing) => return missing.into(),
    };
    let mut words = std::env::args_os();
    // In ps(1) it stays what was typed.
    let typed = words.next().unwrap_or_else(|| OsString::from(program));
    let error = Command::new(&path).arg0(typed).args(words).exec();
    anyhow::Error::new(error).context(format!("{} could not be started", path.display()))
}

/// Whether a program could be recorded here: `terrace-research` finds that out.
///
/// # Errors
/// Why not, in a line.
pub fn could_record(command: &[OsString]) -> anyhow::Result<()> {
    let research = find(RESEARCH, "record")?;
    let asked = Command::new(&research).args(["record", "--check", "--"]).args(command).stdin(Stdio::null()).output();
    let asked = asked.map_err(|error| anyhow::anyhow!("{}: {error}", research.display()))?;
    if asked.status.success() {
        return Ok(());
    }
    let told = String::from_utf8_lossy(&asked.stderr);
    let told = told.trim();
    anyhow::bail!("{}", told.strip_prefix("terrace: ").unwrap_or(told))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_nowhere_is_named_with_its_package() {
        let told = find("terrace-nowhere", "sim").unwrap_err().to_string();
        assert!(told.starts_with("`terrace sim` is of the package terrace-nowhere"), "{told}");
        assert!(told.lines().count() == 1 && told.contains("apt-get install terrace-nowhere"), "{told}");
    }
}
