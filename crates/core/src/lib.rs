//! The core of Terrace: its state and its decisions, without I/O.
//!
//! Entry: [`engine::Engine`].
//! In: what a driver saw ([`engine::Input`]), with the time.
//! Out: what it should do ([`engine::Output`]).
//! Must not: read a clock, touch a file, start a thread, draw a random number or depend on hash order. `now` is always an argument.
//!
//! One pipeline: trackers report [`observation`]s, the [`engine`] keeps them in dense arrays ([`pages`]), a [`policy`] ranks pages, the
//! [`governor`] admits or rejects requests, and a [`plan`] goes to a mover, whose outcomes come back. The [`ledger`] counts and explains.
//! The same code runs live, in replay and in the simulator.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod arbiter;
pub mod engine;
pub mod file_cache;
pub mod governor;
pub mod ledger;
pub mod observation;
pub mod pages;
pub mod plan;
pub mod policy;
pub mod prefetch;
pub mod prices;
pub mod random;
pub mod recent_use;
pub mod reclaim;
pub mod sleep;
pub mod text;
pub mod units;
pub mod watching;
