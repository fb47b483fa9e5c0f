//! The core of Terrace: everything it knows and decides, without I/O.
//!
//! One pipeline: trackers report what they saw ([`observation`]), the [`engine`] keeps it in dense arrays
//! ([`pages`]), a [`policy`] ranks, the [`governor`] bounds and rejections, and a [`plan`] goes out to a mover whose
//! outcomes come back in. The [`ledger`] counts and explains. The same code runs live, in replay and in the simulator.
//!
//! Must not: read a clock, touch a file, start a thread, draw a random number or depend on hash order. `now` is
//! always passed in.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arbiter;
pub mod engine;
pub mod governor;
pub mod ledger;
pub mod observation;
pub mod pages;
pub mod plan;
pub mod policy;
pub mod prices;
pub mod random;
pub mod reclaim;
pub mod text;
pub mod units;
pub mod watching;
