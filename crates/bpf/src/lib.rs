//! The eBPF programs of Terrace and their loader.
//!
//! Entry: [`PageTables`] and [`LifeCycle`].
//! In: pids and addresses.
//! Out: copies of the page tables that map them, as raw entries; allocations and frees of their pages.
//! Must not: interpret an entry, or need a compiler for eBPF: the objects are shipped built (in `object/`, rebuilt by `build-object`) and
//! adapt themselves to the running kernel when they are loaded.
//!
//! eBPF is a run-time option: [`PageTables::open`] and [`LifeCycle::open`] say in one line why it does not work here. With the feature
//! `bpf` off the crate needs no C library, and they say so.
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "bpf")]
mod life_cycle;
#[cfg(feature = "bpf")]
mod loader;
#[cfg(feature = "bpf")]
mod proof;
#[cfg(feature = "bpf")]
pub use life_cycle::LifeCycle;
#[cfg(feature = "bpf")]
pub use loader::PageTables;

#[cfg(not(feature = "bpf"))]
mod absent;
#[cfg(not(feature = "bpf"))]
pub use absent::{LifeCycle, PageTables};

/// Entries of one page table.
pub const TABLE_ENTRIES: usize = 512;

/// What [`PageTables::head`] says of a block whose table was taken away while it was being copied: nothing is known.
pub const HEAD_UNKNOWN: u64 = u64::MAX;

/// Which of the programs is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Called directly with a pid of this process's own pid namespace: Linux 6.13 and later.
    ByOwnPid,
    /// Called directly with a pid of the first pid namespace: Linux 6.10 and later.
    ByPid,
    /// An iterator over the memory areas of a task: Linux 5.17 and later, a little dearer a call.
    ByIterator,
}

/// Tells the address spaces that one pid has after another (exec) apart. Means nothing beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceMark(u64);

/// What happened to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeKind {
    /// An anonymous folio was mapped there for the first time.
    Allocated,
    /// Whatever had memory there has none any more.
    Freed,
}

/// Something that happened to consecutive pages of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifeEvent {
    /// The process (its thread group).
    pub pid: u32,
    /// What happened.
    pub kind: LifeKind,
    /// Number of the first page: its address by 4096.
    pub first: u64,
    /// How many pages; of the dead it is how many addresses, memory behind them or not.
    pub pages: u64,
}

/// Why the programs cannot do their work.
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
    /// None of the programs could be loaded.
    #[error("the kernel takes none of the eBPF programs: {0}")]
    NotLoaded(String),
    /// A kernel of another time, or built in another way.
    #[error("the kernel describes none of the functions to watch for {what}: {names}")]
    NoFunction {
        /// What for.
        what: &'static str,
        /// The functions that would do.
        names: String,
    },
    /// Programs at kernel functions are not permitted.
    #[error(
        "the kernel refuses eBPF programs at its functions (fentry, fexit), by its own policy or for want of root: {0}"
    )]
    FunctionsRefused(String),
    /// Programs at kernel functions do not work.
    #[error("no eBPF program could be put to the kernel's functions: {0}")]
    NotAttached(String),
    /// The start of the kernel's map of physical memory was not found.
    #[error(
        "the kernel's map of physical memory was not found: none of its {candidates} possible starts, whole GiB up to {highest:#x}, leads to pages of \
         this process with random bytes, so page tables cannot be followed"
    )]
    NoDirectMap {
        /// Starts that were tried.
        candidates: u64,
        /// The highest of them.
        highest: u64,
    },
    /// This process does not find itself.
    #[error("the kernel finds no process {0} in this pid namespace for an eBPF program, and that is this process")]
    NotFoundItself(u32),
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
