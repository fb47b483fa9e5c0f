//! Perf events: what the kernel and the processor report by records in a ring.
//!
//! In: events to open on processes. Out: their samples. [`record`] reads the bytes and is pure, [`ring`] drains
//! what the kernel wrote, [`group`] opens events on all CPUs for processes and those they start. Must not: know what a
//! sample means; that is the trackers' business.

pub mod group;
pub mod record;
pub mod ring;
pub mod spe;
