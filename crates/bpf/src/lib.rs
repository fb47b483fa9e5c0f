//! The eBPF programs of Terrace and their loader.
//!
//! In: a pid and addresses. Out: copies of the page tables that map them, as raw entries ([`PageTables`]). Must not:
//! interpret an entry, or need a compiler for eBPF: the object is shipped built (`object/terrace.bpf.o`, rebuilt by
//! `build-object`) and adapts itself to the running kernel when it is loaded.
//!
//! eBPF is a run-time option: [`PageTables::open`] says in one line why it does not work here. With the feature `bpf`
//! off the crate needs no C library, and `open` says so.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "bpf")]
mod loader;
#[cfg(feature = "bpf")]
pub use loader::PageTables;

#[cfg(not(feature = "bpf"))]
mod absent;
#[cfg(not(feature = "bpf"))]
pub use absent::PageTables;

/// Entries of one page table.
pub const TABLE_ENTRIES: usize = 512;

/// What [`PageTables::head`] says of a block whose table was taken away while it was being copied: nothing is known.
pub const HEAD_UNKNOWN: u64 = u64::MAX;

/// Which of the programs is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Called directly with a pid: Linux 6.10 and later.
    ByPid,
    /// An iterator over the memory areas of a task: Linux 5.17 and later, a little dearer a call.
    ByIterator,
}

/// Tells the address spaces that one pid has after another (exec) apart. Means nothing beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceMark(u64);

/// Why page tables cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// Built without the feature.
    #[error("this build has no eBPF (feature `bpf` is off): build with `--features bpf`")]
    FeatureOff,
    /// The programs know the page tables of one processor family only.
    #[error("the eBPF programs read the page tables of x86-64 only, this machine is {0}")]
    Architecture(&'static str),
    /// The kernel does not describe its own types.
    #[error("the kernel offers no BTF (/sys/kernel/btf/vmlinux): it must be built with CONFIG_DEBUG_INFO_BTF=y")]
    NoBtf,
    /// The rights do not reach.
    #[error("eBPF is not permitted: it needs root, or CAP_BPF and CAP_PERFMON ({0})")]
    NotPermitted(String),
    /// Neither program could be loaded.
    #[error(
        "the kernel takes neither eBPF program; by pid (6.10 and later): {by_pid}; by iterator (5.17 and later): {by_iterator}"
    )]
    NotLoaded {
        /// Why not the first.
        by_pid: String,
        /// Why not the second.
        by_iterator: String,
    },
    /// The start of the kernel's map of physical memory was not found.
    #[error("the kernel's map of physical memory was not found: page tables cannot be followed on this kernel")]
    NoDirectMap,
    /// This process does not find itself.
    #[error(
        "pid {0} is not this process to the kernel: Terrace must run outside of a pid namespace (docker: --pid=host)"
    )]
    PidNamespace(u32),
    /// The process is gone.
    #[error("process {0} is gone")]
    Gone(u32),
    /// A system call failed.
    #[error("{call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}
