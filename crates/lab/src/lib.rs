//! The full-system laboratory: stock Debian kernels in QEMU, on machines with fast and slow memory.
//!
//! Entry: [`Lab`].
//! In: scenario files and a terrace binary.
//! Out: reports of assertions and figures, or a shell in the guest.
//! Must not: need KVM, change the host's packages or kernel, leave a guest running, or take figures of emulated time for performance.
//!
//! [`kernel`] fetches, `initramfs` packs, [`machine`] models, `guest` runs, [`results`] reads, [`expression`] judges, [`Lab`] puts them
//! together. [`compare`] and [`record`] have the QEMU plugin see every access. docs/lab.md tells how to add a scenario or a kernel.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apt;
mod bpftrace;
pub mod btf;
pub mod compare;
pub mod cpio;
mod error;
pub mod expression;
mod guest;
mod initramfs;
pub mod kernel;
mod lab;
pub mod machine;
pub mod manager;
mod measure;
mod memtierd;
mod module_build;
mod modules;
pub mod plugin;
pub mod record;
pub mod results;
pub mod scenario;
pub mod table;
mod tools;
mod vmlinux;

pub use error::LabError;
pub use guest::qemu_version;
pub use kernel::{Cache, Kernel};
pub use lab::{Assertion, Lab, ScenarioReport};
pub use machine::{Machine, Mode, Topology};
pub use results::StepEnd;
pub use scenario::Scenario;
