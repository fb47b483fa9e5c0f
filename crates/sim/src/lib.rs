//! The simulator: the engine that manages live memory, on modelled hardware, under a workload or a trace.
//!
//! Entry: [`Simulation`], the order of events of one run.
//! In: a machine, a policy, and accesses that a workload or a trace delivers.
//! Out: a [`Report`]: how long the program took, where its accesses were served, what moved and failed and why, and what the management
//! cost.
//! Must not: read a clock or a file, start a thread, or treat the engine otherwise than the live manager does.
//!
//! [`Simulation`] is one run and is also the sink that workloads write into. [`run`](mod@run) adds the bounds (everything fast, everything
//! slow) that a report compares with. [`lockstep`] runs one program on many machines at once. [`compare`] turns many reports into
//! geometric means with intervals.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod colocate;
pub mod compare;
pub mod config;
mod copies;
mod error;
pub mod fixed;
pub mod heat;
pub mod history;
mod hot;
pub mod hotness;
pub mod lockstep;
pub mod mmu;
mod oracle;
mod prices;
pub mod processes;
pub mod record;
pub mod report;
pub mod run;
pub mod series;
pub mod simulation;
pub mod tuning;

pub use config::{FastSize, Pages, SimConfig};
pub use error::SimError;
pub use history::{History, Moment, What};
pub use mmu::{MmuConfig, MmuReport};
pub use report::Report;
pub use run::{Source, TraceSource, WorkloadSource, run};
pub use simulation::Simulation;
