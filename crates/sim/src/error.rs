//! What can be wrong with a simulation, before or during it.
//!
//! In: what was asked for and what happened. Out: an error that names what was wrong, and where. Must not: say less than its reader needs.

use terrace_core::units::Bytes;
use terrace_machine::preset::PresetError;

/// What is wrong with a simulation, before or during it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The machine.
    #[error(transparent)]
    Machine(#[from] PresetError),
    /// A parameter.
    #[error("{name} is {value}, but it must be {wanted}")]
    Parameter {
        /// The parameter.
        name: &'static str,
        /// What it was.
        value: String,
        /// What it must be.
        wanted: String,
    },
    /// More fast memory than the program uses.
    #[error("fast memory of {fast} is larger than the footprint of {footprint}: nothing would ever be slow")]
    FastLargerThanFootprint {
        /// What was asked for.
        fast: Bytes,
        /// What the program uses.
        footprint: Bytes,
    },
    /// All tiers are full.
    #[error(
        "the machine is out of memory after {resident} of resident pages at address {address:#x}; its tiers hold {capacity}"
    )]
    OutOfMemory {
        /// What is resident.
        resident: Bytes,
        /// Where the program touched.
        address: u64,
        /// What all tiers hold together.
        capacity: Bytes,
    },
    /// An address below the first region, or 8 TiB above it.
    #[error("address {address:#x} is out of the 8 TiB that a simulation covers from {base:#x}")]
    Address {
        /// The address.
        address: u64,
        /// The first address.
        base: u64,
    },
    /// The source of accesses failed.
    #[error("{0}")]
    Source(String),
}
