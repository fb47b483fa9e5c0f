//! Loads the programs, runs them, and gives access to what they copied.
//!
//! In: the object shipped with the crate. Out: [`PageTables`]. Must not: interpret entries, or hand out a copy while
//! a program writes to it, or use a map of physical memory that is not proven. Unsafe code: the two system calls that libbpf-rs does not wrap, and the views of the
//! maps that are shared with the kernel.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{MapCore, ObjectBuilder, PrintLevel, libbpf_sys};
use memmap2::{MmapOptions, MmapRaw};

use crate::proof::{self, Marks, Proof};
use crate::{BpfError, SpaceMark, TABLE_ENTRIES, Variant};

static OBJECT: &[u8] = include_bytes!("../object/terrace.bpf.o");

/// Bits 12 to 51 of an entry hold the address of the frame (Intel SDM volume 3, 5.5.4).
const ADDRESS_MASK: u64 = 0x000f_ffff_ffff_f000;
/// Where the bit that marks encrypted memory can sit inside of these: AMD's SME and SEV use 47 or 51 (AMD64 APM
/// volume 2, 7.10, CPUID 8000_001F EBX). It is part of the entry and not of the address.
const ENCRYPTION_BITS: [u64; 3] = [0, 1 << 51, 1 << 47];

// The same numbers stand in the C source.
const COPY: u32 = 0;
const SEARCH: u32 = 1;
const NOT_RUN: u32 = 0;
const DONE: u32 = 1;

/// The C source's `struct request`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Request {
    direct_map: u64,
    address_mask: u64,
    memory_end: u64,
    space: u64,
    proof: Proof,
    pid: u32,
    wanted: u32,
    slots: u32,
    outcome: u32,
    beyond: u32,
    misled: u32,
}

/// In the order in which they are tried: the cheapest first, and of two that cost the same the one that works in more places.
const VARIANTS: [Variant; 3] = [Variant::ByOwnPid, Variant::ByPid, Variant::ByIterator];

/// How often the search is repeated with fresh pages, and the pause before the second; each later one is four times as long. While the
/// kernel moves a page it is in no table.
const SEARCHES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// Copies of the last-level page tables of a process, as many as there are slots.
#[derive(Debug)]
pub struct PageTables {
    variant: Variant,
    program: OwnedFd,
    /// The iterator's link of the process it was last used on.
    link: Option<(u32, OwnedFd)>,
    slots: usize,
    direct_map: u64,
    address_mask: u64,
    memory_end: u64,
    request: MmapRaw,
    heads: MmapRaw,
    tables: MmapRaw,
}

impl PageTables {
    /// Loads the program that this kernel supports, with room for `slots` 2 MiB blocks (4 KiB of memory each), and finds
    /// out where the kernel maps physical memory.
    ///
    /// # Errors
    /// When eBPF is not there or not permitted. The text says what is missing.
    pub fn open(slots: usize) -> Result<PageTables, BpfError> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(BpfError::Architecture(std::env::consts::ARCH));
        }
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Err(BpfError::NoBtf);
        }
        let mut refusals = Vec::new();
        for variant in VARIANTS {
            match PageTables::open_variant(variant, slots) {
                Ok(tables) => return Ok(tables),
                Err(error) => {
                    tracing::debug!(?variant, "the eBPF program was not taken: {error}");
                    refusals.push(error);
                }
            }
        }
        // A kernel that takes one and cannot be followed by it says most; the last asks for the least.
        let found =
            refusals.iter().position(|error| !matches!(error, BpfError::NotLoaded(_) | BpfError::NotPermitted(_)));
        let last = refusals.len() - 1;
        match (found, &refusals[last]) {
            (Some(at), _) => Err(refusals.swap_remove(at)),
            (None, BpfError::NotPermitted(_)) => Err(refusals.swap_remove(last)),
            _ => {
                let reason = |error: &BpfError| match error {
                    BpfError::NotLoaded(reason) => reason.clone(),
                    other => other.to_string(),
                };
                let reasons: Vec<String> = refusals.iter().map(reason).collect();
                Err(BpfError::NotLoaded(reasons.join("; ")))
            }
        }
    }

    /// Loads one variant, whatever the kernel would take. For tests and for comparing them.
    ///
    /// # Errors
    /// As [`PageTables::open`].
    pub fn open_variant(variant: Variant, slots: usize) -> Result<PageTables, BpfError> {
        match PageTables::load(variant, slots) {
            Ok(tables) => tables.find_direct_map(),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::PermissionDenied => {
                Err(BpfError::NotPermitted(format!("{error:#}")))
            }
            Err(error) => Err(BpfError::NotLoaded(format!("{}: {error:#}", described(variant)))),
        }
    }

    /// Which program is loaded.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// How many blocks one call of [`PageTables::copy`] takes.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The bits of an entry that hold the address of its frame on this machine.
    pub fn physical_address_mask(&self) -> u64 {
        self.address_mask
    }

    /// Where the kernel maps physical address 0, as it was found and proven.
    pub fn direct_map(&self) -> u64 {
        self.direct_map
    }

    /// Copies the page tables behind the 2 MiB blocks that begin at `blocks` (addresses in `pid`), one a slot; at most
    /// [`PageTables::slots`] of them. Blocks in the order of their addresses are cheapest.
    ///
    /// # Errors
    /// [`BpfError::Gone`] when the process is gone, or changed its address space under the copying.
    pub fn copy(&mut self, pid: u32, blocks: &[u64]) -> Result<SpaceMark, BpfError> {
        assert!(blocks.len() <= self.slots, "{} blocks do not fit {} slots", blocks.len(), self.slots);
        let mut done = self.copy_once(pid, blocks)?;
        if done.beyond != 0 {
            // Memory that was added since may hold page tables. If it did not grow, what named it was no entry.
            let end = proof::memory_end()?;
            if end > self.memory_end {
                self.memory_end = end;
                done = self.copy_once(pid, blocks)?;
            }
        }
        if done.outcome == DONE { Ok(SpaceMark(done.space)) } else { Err(BpfError::Gone(pid)) }
    }

    fn copy_once(&mut self, pid: u32, blocks: &[u64]) -> Result<Request, BpfError> {
        // SAFETY: the map holds `slots` values of eight bytes, is page-aligned, and is written by nobody else: the
        // programs run only within `run`, which this thread calls.
        let heads = unsafe { std::slice::from_raw_parts_mut(self.heads.as_mut_ptr().cast::<u64>(), blocks.len()) };
        heads.copy_from_slice(blocks);
        self.run(Request { slots: blocks.len() as u32, ..self.asking(pid, COPY) })
    }

    fn asking(&self, pid: u32, wanted: u32) -> Request {
        Request {
            direct_map: self.direct_map,
            address_mask: self.address_mask,
            memory_end: self.memory_end,
            space: 0,
            proof: Proof::default(),
            pid,
            wanted,
            slots: 0,
            outcome: NOT_RUN,
            beyond: 0,
            misled: 0,
        }
    }

    /// The entry that maps the block of a slot: 0 nothing, a 2 MiB page, or a page table ([`PageTables::table`]).
    /// [`crate::HEAD_UNKNOWN`] when it changed under the copying.
    pub fn head(&self, slot: usize) -> u64 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: within the map, aligned; the programs write only within `copy`, which needs `&mut self`.
        unsafe { self.heads.as_ptr().cast::<u64>().add(slot).read() }
    }

    /// The entries of the page table of a slot. Only the last [`PageTables::copy`] that found one there wrote it.
    pub fn table(&self, slot: usize) -> &[u64; TABLE_ENTRIES] {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        // SAFETY: within the map, page-aligned; the programs write only within `copy`, which needs `&mut self`, so
        // nothing changes while the reference lives.
        unsafe { &*self.tables.as_ptr().cast::<[u64; TABLE_ENTRIES]>().add(slot) }
    }

    fn load(variant: Variant, slots: usize) -> libbpf_rs::Result<PageTables> {
        // libbpf writes to stderr by itself; what it says belongs into the log.
        libbpf_rs::set_print(Some((PrintLevel::Info, |_, text| tracing::debug!("libbpf: {}", text.trim_end()))));
        let wanted = match variant {
            Variant::ByOwnPid => "copy_by_own_pid",
            Variant::ByPid => "copy_by_pid",
            Variant::ByIterator => "copy_by_iterator",
        };
        let mut open = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut program in open.progs_mut() {
            let load = program.name() == wanted;
            program.set_autoload(load);
        }
        for mut map in open.maps_mut() {
            if map.name() != "request" {
                map.set_max_entries(slots as u32)?;
            }
        }
        let object = open.load()?;
        let program = object.progs().find(|program| program.name() == wanted).ok_or_else(missing)?;
        let program = program.as_fd().try_clone_to_owned()?;
        let shared = |name: &str, bytes: usize| -> libbpf_rs::Result<MmapRaw> {
            let map = object.maps().find(|map| map.name() == name).ok_or_else(missing)?;
            let bytes = bytes.next_multiple_of(4096);
            Ok(MmapOptions::new().len(bytes).map_raw(map.as_fd().as_raw_fd())?)
        };
        Ok(PageTables {
            variant,
            program,
            link: None,
            slots,
            direct_map: 0,
            address_mask: ADDRESS_MASK,
            memory_end: 0,
            request: shared("request", size_of::<Request>())?,
            heads: shared("heads", slots * 8)?,
            tables: shared("tables", slots * 4096)?,
        })
    }

    /// Looks for the start of the map, each time with fresh pages and fresh bytes, until one is proven.
    fn find_direct_map(mut self) -> Result<PageTables, BpfError> {
        let pid = std::process::id();
        self.memory_end = proof::memory_end()?;
        let mut highest = 0;
        for attempt in 0..SEARCHES {
            if attempt > 0 {
                std::thread::sleep(FIRST_PAUSE * 4u32.pow(attempt - 1));
            }
            let marks = Marks::draw()?;
            for bit in ENCRYPTION_BITS {
                self.address_mask = ADDRESS_MASK & !bit;
                let request = Request { proof: marks.proof(), ..self.asking(pid, SEARCH) };
                match self.run(request) {
                    Ok(done) if done.outcome == DONE => {
                        self.direct_map = done.direct_map;
                        tracing::debug!(
                            variant = ?self.variant, attempt, passed_over = done.misled,
                            "the kernel's map of physical memory is proven at {:#x}; passed_over: wrong starts that led to memory",
                            done.direct_map
                        );
                        return Ok(self);
                    }
                    Ok(done) => highest = done.space,
                    Err(BpfError::Gone(_)) => return Err(BpfError::NotFoundItself(pid)),
                    Err(error) => return Err(error),
                }
            }
        }
        Err(BpfError::NoDirectMap { candidates: self.memory_end.div_ceil(1 << 30), highest })
    }

    /// Puts a request, runs the program once, and returns the request as the program left it.
    fn run(&mut self, request: Request) -> Result<Request, BpfError> {
        let shared = self.request.as_mut_ptr().cast::<Request>();
        // SAFETY: the map holds one `Request`, page-aligned; no program runs now.
        unsafe { shared.write_volatile(request) };
        match self.variant {
            Variant::ByOwnPid | Variant::ByPid => call_program(self.program.as_fd())?,
            Variant::ByIterator => self.call_iterator(request.pid)?,
        }
        // SAFETY: as above. Volatile, because the kernel wrote it behind the compiler's back.
        let done = unsafe { shared.read_volatile() };
        // Not run: the pid names no task, or one without memory.
        if matches!(done.outcome, 2 | 3 | NOT_RUN) { Err(BpfError::Gone(request.pid)) } else { Ok(done) }
    }

    fn call_iterator(&mut self, pid: u32) -> Result<(), BpfError> {
        if self.link.as_ref().is_none_or(|(linked, _)| *linked != pid) {
            self.link = Some((pid, link_iterator(self.program.as_fd(), pid)?));
        }
        let Some((_, link)) = &self.link else { return Err(BpfError::Gone(pid)) };
        // SAFETY: takes a descriptor and no pointer.
        let fd = unsafe { libbpf_sys::bpf_iter_create(link.as_raw_fd()) };
        let iterator = owned(fd, "bpf_iter_create")?;
        // Eight bytes are what the program writes when it has done its work; asking for no more ends the walk there.
        let mut mark = [0u8; 8];
        match io::Read::read(&mut std::fs::File::from(iterator), &mut mark) {
            Ok(_) => Ok(()),
            Err(error) if error.raw_os_error() == Some(ESRCH) => Err(BpfError::Gone(pid)),
            Err(source) => Err(BpfError::Call { call: "read from the eBPF iterator", source }),
        }
    }
}

fn described(variant: Variant) -> &'static str {
    match variant {
        Variant::ByOwnPid => "by pid (6.13 and later)",
        Variant::ByPid => "by pid of the first namespace (6.10 and later)",
        Variant::ByIterator => "by iterator (5.17 and later)",
    }
}

/// No such process (errno-base.h).
const ESRCH: i32 = 3;

pub(crate) fn missing() -> libbpf_rs::Error {
    io::Error::new(io::ErrorKind::NotFound, "the object does not hold what it should: rebuild it").into()
}

fn owned(fd: i32, call: &'static str) -> Result<OwnedFd, BpfError> {
    if fd < 0 {
        // libbpf returns the negated error number.
        return Err(BpfError::Call { call, source: io::Error::from_raw_os_error(-fd) });
    }
    // SAFETY: the kernel has just returned this descriptor to us, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs a program of type syscall once. It takes no context: a syscall program may have none of zero bytes.
pub(crate) fn call_program(program: BorrowedFd<'_>) -> Result<(), BpfError> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ..Default::default()
    };
    // SAFETY: `options` is initialised, states its own size, holds no pointers, and outlives the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result < 0 {
        return Err(BpfError::Call { call: "bpf(BPF_PROG_RUN)", source: io::Error::from_raw_os_error(-result) });
    }
    Ok(())
}

/// Hangs the program on an iterator over one task; on kernels before 6.1, which cannot choose one, over all tasks.
fn link_iterator(program: BorrowedFd<'_>, pid: u32) -> Result<OwnedFd, BpfError> {
    let mut task = libbpf_sys::bpf_iter_link_info::default();
    task.task.tid = pid;
    let create = |info: *mut libbpf_sys::bpf_iter_link_info, bytes: usize| {
        let options = libbpf_sys::bpf_link_create_opts {
            sz: size_of::<libbpf_sys::bpf_link_create_opts>() as libbpf_sys::size_t,
            iter_info: info,
            iter_info_len: bytes as u32,
            ..Default::default()
        };
        // SAFETY: `options` and what it points to are initialised and outlive the call, with their sizes stated.
        unsafe { libbpf_sys::bpf_link_create(program.as_raw_fd(), 0, libbpf_sys::BPF_TRACE_ITER, &options) }
    };
    let fd = create(&mut task, size_of::<libbpf_sys::bpf_iter_link_info>());
    let fd = if fd == -EINVAL || fd == -E2BIG { create(std::ptr::null_mut(), 0) } else { fd };
    if fd == -ESRCH { Err(BpfError::Gone(pid)) } else { owned(fd, "bpf(BPF_LINK_CREATE) for the task iterator") }
}

/// Invalid argument, argument list too long (errno-base.h): how kernels refuse a structure they do not know.
const EINVAL: i32 = 22;
const E2BIG: i32 = 7;
