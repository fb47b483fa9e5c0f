//! The only crate of Terrace that talks to the kernel.
//!
//! Entry: [`manager`], the live loop.
//! In: what the engine asks for.
//! Out: what the kernel shows.
//! Must not: decide: what should move, the core says.
//!
//! `topology` finds the tiers, `swap_saving` says what pages in swap save, `process` the address spaces, [`trackers`] the accesses; [`movers`] change a page's tier; `zram` sets
//! compressed swap up and takes it away; `manager` is the loop that drives the engine with all of them, [`live_tuner`] fits its share of
//! fast memory to a target, and [`live_proof`] measures by a [`metric`] whether managing helps. Every unsafe block is in `sys`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod cgroup;
mod cgroup_charges;
pub mod cgroup_events;
pub mod cgroup_memory;
pub mod compressibility;
pub mod doctor;
pub mod everything;
pub mod fetch_ahead;
pub mod file_cache;
pub mod guard;
pub mod helpers;
pub mod huge_pages;
mod intake;
pub mod kernel_lists;
pub mod kernel_module;
pub mod life_cycle;
pub mod live_proof;
pub mod live_tuner;
pub mod machine;
pub mod machine_programs;
pub mod manager;
pub mod metric;
pub mod move_cost;
pub mod movers;
pub mod observer;
pub mod pagemap;
pub mod perf;
pub mod pressure;
pub mod prices;
pub mod process;
pub mod process_events;
pub mod processes;
pub mod processors;
pub mod rights;
pub mod shared_memory;
pub mod split_cost;
pub mod survey;
pub mod swap_in;
pub mod swap_saving;
mod swap_slots;
pub mod sys;
pub mod topology;
pub mod trackers;
pub mod trials;
pub mod usage;
pub mod watermarks;
pub mod zram;
