//! What can be wrong with a trace, with an input to import, or with a place to write to.
//!
//! In: nothing. Out: one error type for the whole crate; every error names the byte offset or the line where
//! the trouble is. Must not: hide the cause, or hold anything that cannot be cloned, because a reader repeats its
//! error when it is asked again.

/// Why a trace could not be read, written, imported or exported.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The file does not begin with the signature of a trace.
    #[error(
        "not a Terrace trace: the first 8 bytes are {found:02x?}; import other formats with `terrace trace import`"
    )]
    NotATrace {
        /// What stands there instead; fewer than 8 bytes if the file is shorter.
        found: Vec<u8>,
    },
    /// The trace was written in another version of the format.
    #[error(
        "the trace has format version {found}, this program reads versions up to {supported}; record or import it again"
    )]
    Version {
        /// Version in the file.
        found: u16,
        /// The latest version this crate reads.
        supported: u16,
    },
    /// The file ends too early; every block before `offset` is whole and was delivered.
    #[error(
        "the trace is truncated: it ends at byte {end} within {within}, which begins at byte {offset}; \
         everything before byte {offset} is whole"
    )]
    Truncated {
        /// Where the part begins that is not whole.
        offset: u64,
        /// Where the file ends.
        end: u64,
        /// Which part that is.
        within: &'static str,
    },
    /// Bytes that are there but cannot be right; every block before `offset` is whole and was delivered.
    #[error("the trace is corrupt: {within} at byte {offset}: {reason}; everything before byte {offset} is whole")]
    Corrupt {
        /// Where the damaged part begins.
        offset: u64,
        /// Which part that is.
        within: &'static str,
        /// What about it is wrong.
        reason: String,
    },
    /// A header that a caller wanted to write makes no sense.
    #[error("the trace header is wrong: {0}")]
    Header(String),
    /// A record that the format cannot hold.
    #[error("record {record} cannot be written: {reason}")]
    Unwritable {
        /// How many accesses were written before it.
        record: u64,
        /// Why not.
        reason: String,
    },
    /// An input in a text format has a line that cannot be understood.
    #[error("{format} input, line {line}: {reason}: {text:?}; {remedy}")]
    Line {
        /// The format it was read as.
        format: &'static str,
        /// Line number, from 1.
        line: u64,
        /// What is wrong.
        reason: String,
        /// The line, shortened to 120 bytes.
        text: String,
        /// What to do.
        remedy: &'static str,
    },
    /// An input in a binary format has a record that cannot be understood.
    #[error("{format} input, byte {offset}: {reason}")]
    Record {
        /// The format it was read as.
        format: &'static str,
        /// Where the record begins.
        offset: u64,
        /// What is wrong.
        reason: String,
    },
    /// A recording was read to its end and holds no access that a trace could keep.
    #[error("the recording holds no access{skipped}; was the program recorded, and is this its format?")]
    NoAccesses {
        /// What was left out instead, as `, COUNT x REASON` for each reason; empty if there was nothing.
        skipped: String,
    },
    /// An option of an import or export that cannot be followed.
    #[error("option {option}: {reason}")]
    Option {
        /// Its name.
        option: &'static str,
        /// Why not, and what would be right.
        reason: String,
    },
    /// Reading or writing failed in the caller's stream.
    #[error("{doing} at byte {offset} failed: {message}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// How far it had come.
        offset: u64,
        /// The kind of failure.
        kind: std::io::ErrorKind,
        /// Its text.
        message: String,
    },
}

impl TraceError {
    pub(crate) fn io(doing: &'static str, offset: u64, error: &std::io::Error) -> TraceError {
        TraceError::Io { doing, offset, kind: error.kind(), message: error.to_string() }
    }

    pub(crate) fn corrupt(offset: u64, within: &'static str, reason: impl Into<String>) -> TraceError {
        TraceError::Corrupt { offset, within, reason: reason.into() }
    }

    pub(crate) fn line(
        format: &'static str,
        line: u64,
        text: &[u8],
        reason: impl Into<String>,
        remedy: &'static str,
    ) -> TraceError {
        let shown = String::from_utf8_lossy(&text[..text.len().min(120)]).into_owned();
        TraceError::Line { format, line, reason: reason.into(), text: shown, remedy }
    }

    pub(crate) fn record(format: &'static str, offset: u64, reason: impl Into<String>) -> TraceError {
        TraceError::Record { format, offset, reason: reason.into() }
    }
}
