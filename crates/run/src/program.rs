//! The program to start, found before anything is set up for it.
//!
//! In: its name as the user typed it. Out: nothing if it can be executed, else a [`NotStarted`] with the exit code that
//! env(1), nice(1) and timeout(1) have for it. Must not: start it, or be stricter than execvp(3).

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use terrace_linux::processes::{self, Facts};

/// Where programs are looked for without PATH, as execvp(3) does.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why a program cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// There is none of that name.
    #[error("{name}: no such program; expected its path, or its name if a directory of PATH holds it{hint}")]
    NotFound {
        /// The name.
        name: String,
        /// What was probably meant: empty, or text that goes on.
        hint: String,
    },
    /// There is something, but it cannot be executed.
    #[error("{name}: {path} cannot be executed ({source}); check its mode with `ls -l`, and that it is a program")]
    NotExecutable {
        /// The name.
        name: String,
        /// What was found.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
}

impl NotStarted {
    /// What the user typed, with the kernel's answer to starting it.
    pub fn new(name: &OsStr, source: io::Error) -> NotStarted {
        let path = PathBuf::from(name);
        let name = name.to_string_lossy().into_owned();
        match source.kind() {
            io::ErrorKind::NotFound => NotStarted::NotFound { name, hint: String::new() },
            _ => NotStarted::NotExecutable { name, path, source },
        }
    }

    /// 127 if the program does not exist, 126 if it cannot be executed.
    pub fn exit_code(&self) -> u8 {
        match self {
            NotStarted::NotFound { .. } => 127,
            NotStarted::NotExecutable { .. } => 126,
        }
    }
}

/// The program of a command, looked for before anything is read of it. `takes` is the command that takes what runs already: a pid or the name
/// of a process is perhaps meant for it.
///
/// # Errors
/// As [`check`], with the line that was probably meant.
pub fn check_of(command: &[OsString], starts: &str, takes: &str) -> Result<(), NotStarted> {
    let Some(first) = command.first() else { return Ok(()) };
    check(first).map_err(|told| match told {
        NotStarted::NotFound { name, .. } => {
            let hint = meant(&name, command.len() == 1, starts, takes);
            NotStarted::NotFound { name, hint: hint.map_or_else(String::new, |line| format!("; type: {line}")) }
        }
        other => other,
    })
}

/// The line that was probably meant by a program that does not exist.
fn meant(name: &str, alone: bool, starts: &str, takes: &str) -> Option<String> {
    if alone && !name.is_empty() && name.bytes().all(|letter| letter.is_ascii_digit()) {
        return Some(format!("terrace {takes} --pid {name}"));
    }
    // A whole command line in quotes, as for `sh -c`.
    if let Some((program, _)) = name.split_once(' ')
        && alone
        && check(OsStr::new(program)).is_ok()
    {
        return Some(format!("terrace {starts} -- {name}"));
    }
    let runs = |pid: u32| Facts::read(pid).ok().flatten().is_some_and(|facts| facts.name == name);
    (alone && processes::all().into_iter().any(runs)).then(|| format!("terrace {takes} --name {name}"))
}

/// Looks for a program where execvp(3) would.
///
/// # Errors
/// When it would not find it, or find only what it could not execute.
pub fn check(name: &OsStr) -> Result<(), NotStarted> {
    find(name).map(drop)
}

/// The file that execvp(3) would start.
///
/// # Errors
/// As [`check`].
pub fn find(name: &OsStr) -> Result<PathBuf, NotStarted> {
    check_in(name, std::env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH)))
}

fn check_in(name: &OsStr, path: OsString) -> Result<PathBuf, NotStarted> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return executable(&path).map(|()| path).map_err(|source| NotStarted::new(name, source));
    }
    let mut refused = None;
    // An empty name is in no directory, though joining it to one makes the directory's own name.
    let directories = std::env::split_paths(&path).filter(|_| !name.is_empty());
    for candidate in directories.map(|directory| directory.join(name)) {
        match executable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && candidate.exists() => {
                refused.get_or_insert((candidate, error));
            }
            Err(_) => {}
        }
    }
    let name = name.to_string_lossy().into_owned();
    Err(match refused {
        Some((path, source)) => NotStarted::NotExecutable { name, path, source },
        None => NotStarted::NotFound { name, hint: String::new() },
    })
}

fn executable(path: &Path) -> io::Result<()> {
    // A directory has its x bit for another reason; execve(2) answers EACCES.
    if std::fs::metadata(path)?.is_dir() {
        return Err(rustix::io::Errno::ACCESS.into());
    }
    Ok(access(path, Access::EXEC_OK)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_cannot_be_executed_have_their_codes() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text");
        std::fs::write(&text, "no program").unwrap();
        let path = || directory.path().as_os_str().to_owned();
        let code = |name: &OsStr| check_in(name, path()).map_err(|error| (error.exit_code(), error.to_string()));
        assert!(code(OsStr::new("/bin/sh")).is_ok());
        for (name, expected) in
            [("", 127), ("nowhere", 127), ("/no/where", 127), ("text", 126), ("/", 126), ("./", 126)]
        {
            let (found, text) = code(OsStr::new(name)).unwrap_err();
            assert_eq!(found, expected, "{name}: {text}");
            assert!(text.starts_with(&format!("{name}: ")), "{text}");
        }
        assert_eq!(code(text.as_os_str()).unwrap_err().0, 126);
        assert!(check_in(OsStr::new("sh"), OsString::from(DEFAULT_PATH)).is_ok());
    }
}
