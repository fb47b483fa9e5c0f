//! Parts that several policies share: rankings, lists, counters, the kernel's own mechanisms.
//!
//! In: observations and numbers from the policy that owns the part. Out: what it ranked or counted. Does not: decide what moves;
//! that is written in the policy's own file.

pub mod bin_lists;
pub mod bins;
pub mod counting_filter;
pub mod fault_tiering;
pub(crate) mod growth;
pub mod heat;
pub mod hint_scanner;
pub mod huge_split;
pub(crate) mod inside;
pub mod interval;
pub mod lists;
pub mod lru;
pub mod period_control;
pub mod ranking;
pub mod static_placement;
pub mod support;
pub(crate) mod whole_blocks;
