//! The workloads of the papers: real algorithms, each of which verifies its own answer.
//!
//! Entry: [`registry`].
//! In: a program's name, its parameters, and a memory to work on.
//! Out: its answer, verified, and the accesses that it made.
//! Must not: read a clock, touch a file, start a thread, or depend on hash order. A native run gets its clock, its threads and the place
//! for its output from the driver.
//!
//! One abstraction of memory ([`memory`]) lets the same code run native ([`native`]: plain loads and stores, real threads) and traced
//! ([`traced`]: every access a record, logical threads taking turns, the same trace every time). Programs are found by name in the
//! [`registry`]; inputs are generated from a seed ([`random`], [`graph`]); the programs themselves, a file each, lie in [`programs`] and
//! open with their source, allocation order, phases and check.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ahead;
pub mod graph;
pub mod memory;
pub mod native;
pub mod program;
pub mod programs;
pub mod random;
pub mod registry;
pub mod service;
pub mod traced;
pub mod tree;

pub use memory::{Array, Lane, Memory, Progress, Schedule};
pub use native::{Clock, Executor, NativeMemory, Sequential, Stop};
pub use program::{Answer, Parameters, Workload, WorkloadError, WorkloadInfo};
pub use registry::{build, run_native, run_traced, workloads};
pub use traced::{Access, AccessSink, Fault, Region, TraceSummary, TracedMemory};
