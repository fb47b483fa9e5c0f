//! Page-access traces: a format of our own, importers from what others record, exporters to what others read.
//!
//! Entry: [`Reader`] and [`Writer`].
//! In: bytes, through [`std::io::Read`] and [`std::io::Write`] that the caller opened.
//! Out: batches of [`Access`] with the [`Event`]s between them, and errors that name the offset or line.
//! Must not: open a file, read a clock, start a thread; the same input gives the same bytes.
//!
//! A trace is a [`Header`], compressed blocks of records and of the [`PageMap`], and an [`Index`] at the end.
//! [`Writer`] and [`Reader`] stream; [`import`] and [`export`] convert; [`tools`] is what `terrace trace`
//! calls; [`hook`] is the recorder for programs that can be recompiled.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod block;
mod error;
pub mod export;
mod header;
pub mod hook;
pub mod import;
mod index;
mod map;
mod reader;
mod record;
pub mod tools;
mod varint;
mod writer;

pub use block::{BLOCK_RECORDS, BlockKind};
pub use error::TraceError;
pub use header::{Header, LatencyUnit, Provenance, SIGNATURE, VERSION};
pub use index::{BlockEntry, Index, Summary};
pub use map::{Extent, MapPiece, NumberBy, PageMap, Process, ProcessId, Region};
pub use reader::{AccessSource, Reader};
pub use record::{Access, Change, Event, LINES_PER_PAGE, Pages, ThreadId};
pub use writer::Writer;
