//! How little fast memory a program needs, and holding it there: Tuna's method and what was added to it.
//!
//! Entry: [`forecast`].
//! In: what a program did in an interval, as a vector of eight figures.
//! Out: how much slower it would be with less fast memory, and the least that a target allows.
//! Must not: do I/O, read a clock or start a thread: databases come and go as bytes.
//!
//! The way of one figure: [`vector`] describes an interval; [`microbench`] makes of it the micro-benchmark with the same
//! accesses, migrations and arithmetic; [`model`] or [`simulated`] run that at every size of fast memory, which is a record;
//! [`sampling`] chooses which records a [`database`] has; [`index`] finds the nearest. The tuner that acts on it interval by interval is `terrace_tuning`; [`sim_driver`] drives it in the simulator.
//! [`advise`] says what a size saves in money. [`forecast`] plays the engine itself, under any policy and
//! size, on what a run with everything fast did with a [`sample`] of its pages: a [`tape`] of its accesses, or one made of what was seen of them
//! ([`watched`]). [`aet`] is the cheap answer that checks it.
//!
//! Source: Tuna (`Tuning Fast Memory Size based on Modeling of Page Migration for Tiered Memory`), the equations by their numbers.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod advise;
pub mod aet;
pub mod database;
pub mod forecast;
pub mod index;
pub mod microbench;
pub mod model;
pub mod sample;
pub mod sampling;
pub mod sim_driver;
pub mod simulated;
pub mod student;
pub mod tape;
pub mod vector;
pub mod watched;

pub use database::{Database, DatabaseError};
pub use index::{Answer, Index};
pub use microbench::Benchmark;
pub use vector::ConfigVector;
