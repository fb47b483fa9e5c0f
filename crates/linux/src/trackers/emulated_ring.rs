//! The memory that the lab's QEMU plugin and Terrace in its guest share: what both sides must agree on.
//!
//! In: nothing. Out: constants. Must not: use anything, since this file is compiled twice: into this crate as the reader, and into the
//! plugin (`qemu-plugin`, a workspace of its own) as the writer.
//!
//! The first page is laid out as that of a perf ring (`struct perf_event_mmap_page`); records follow it. The words of control stand in the
//! page's second half, which perf leaves unused.

/// "TERRSMPL", little-endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TERRSMPL");
/// Of the words and records.
pub const VERSION: u64 = 1;
/// Where the words of control begin in the first page, in bytes.
pub const WORDS_OFFSET: u64 = 2048;

/// The words of control, of eight bytes each, by their place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// [`MAGIC`], written by the plugin.
    Magic = 0,
    /// [`VERSION`], written by the plugin.
    Version = 1,
    /// Data pages behind the first page, a power of two, written by the plugin.
    DataPages = 2,
    /// Loads that missed the modelled cache a sample, written by the guest; 0 is none.
    LoadPeriod = 3,
    /// Stores a sample, written by the guest; 0 is none.
    StorePeriod = 4,
}

/// What the identifier of a record of a load says.
pub const LOADS: u64 = 1;
/// The same of a store.
pub const STORES: u64 = 2;
