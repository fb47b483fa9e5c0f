//! What can go wrong in the laboratory, with what was wrong, where, and what to do.
//!
//! In: nothing. Out: [`LabError`] and the helpers that make one of an I/O error. Must not: print.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a guest could not be built, booted or believed.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program that the laboratory needs is not installed.
    #[error("{program} is not installed: on Debian, `apt-get install {package}`")]
    NotInstalled {
        /// The program.
        program: String,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A program ended with an error.
    #[error("`{command}` failed ({status}): {tail}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status.
        status: String,
        /// The end of what it said.
        tail: String,
    },
    /// No Debian mirror or key ring is known here.
    #[error("{0}")]
    Sources(String),
    /// No package has such a kernel.
    #[error("no kernel {asked} in the Debian package lists: there are {present}")]
    NoSuchKernel {
        /// What was asked for.
        asked: String,
        /// The newest of each series.
        present: String,
    },
    /// A kernel image is not what it should be.
    #[error("{path}: {what}", path = path.display())]
    Image {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A kernel has no such module.
    #[error("kernel {kernel} has no module {module}, neither built in nor to load")]
    NoSuchModule {
        /// The kernel's release.
        kernel: String,
        /// The module.
        module: String,
    },
    /// A file that a guest needs has not been made yet.
    #[error("{0}")]
    Missing(String),
    /// A scenario file, a machine or an option makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The guest did not power off in time; it was killed.
    #[error("the guest did not end within {limit:?} and was killed; the end of its console:\n{tail}")]
    TimeLimit {
        /// The limit, wall time.
        limit: Duration,
        /// The end of the console log.
        tail: String,
    },
    /// The guest ended before its steps did.
    #[error("{what}; the end of the guest's console:\n{tail}")]
    Guest {
        /// What happened.
        what: String,
        /// The end of the console log.
        tail: String,
    },
}

/// What is wrong with a kernel's image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It has no type information.
    #[error("has no type information (section .BTF)")]
    NoTypes,
    /// Its type information is damaged.
    #[error("its type information (section .BTF) makes no sense")]
    BadTypes,
    /// It has not the form of a kernel's image.
    #[error("it is no bzImage: there is no HdrS at 0x202")]
    NoBzImage,
    /// Its header ends too soon.
    #[error("its header is too short")]
    ShortHeader,
    /// The header points outside the file.
    #[error("its payload ({length} bytes at {start}) lies outside the file of {file} bytes")]
    Outside {
        /// Bytes of the payload.
        length: usize,
        /// Where it begins.
        start: usize,
        /// Bytes of the file.
        file: usize,
    },
    /// It is compressed in an unknown way.
    #[error("its payload is neither xz nor zstd: it begins with {0:02x?}")]
    Compression(Vec<u8>),
    /// What was compressed is no ELF image.
    #[error("what was compressed in it is no ELF image")]
    NoElf,
    /// Zstandard refused it.
    #[error("zstd: {0}")]
    Zstd(io::Error),
    /// xz cannot be started.
    #[error("xz cannot be started ({0}): `apt-get install xz-utils`")]
    NoXz(io::Error),
    /// xz refused it.
    #[error("xz: {0}")]
    Xz(String),
}

/// An I/O error with its file.
pub(crate) fn file_error(path: &Path) -> impl FnOnce(io::Error) -> LabError + use<> {
    let path = path.to_owned();
    move |source| LabError::File { path, source }
}

/// The last lines of a text.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
