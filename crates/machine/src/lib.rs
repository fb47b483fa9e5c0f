//! Modelled hardware: memory tiers under load, caches, TLBs, kernel reclaim, trackers as they really see, and what each costs.
//!
//! Entry: [`preset`], a machine as it is described.
//! In: a preset (TOML text) and the accesses, faults and moves that a driver feeds.
//! Out: times, hits and misses, events, and which pages lie where.
//! Must not: know a policy, a workload or a clock; every number comes from the preset, and every preset number has its source beside it.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod associative;
pub mod cache;
pub mod load;
pub mod lru;
pub mod media;
pub mod memory;
pub mod memory_mode;
pub mod mmu;
pub mod preset;
pub mod reclaim;
pub mod sampler;
pub mod scale;
pub mod scanner;
pub mod tlb;
mod units;
