//! Traced memory: every access becomes a record, in batches, in an order that is the same every time.
//!
//! In: a program's accesses, allocations, barriers and phases. Out: batches of [`Access`] to an [`AccessSink`], with
//! the events between them in their right place. Must not: start threads (logical threads take turns), or keep a trace.
//!
//! Virtual addresses are given out upward in the order of allocation. A region of 2 MiB or more starts on a 2 MiB
//! boundary, as Linux 6.7 and later places anonymous mappings, so that huge pages can back it; addresses are not used twice.

use crate::memory::{Array, Lane, Memory, Progress, Scalar};

/// Accesses in a full batch.
pub const BATCH: usize = 2048;
/// First address given out.
pub const FIRST_ADDRESS: u64 = 0x1000_0000_0000;
const PAGE_BYTES: u64 = 4096;
const HUGE_BYTES: u64 = 2 << 20;

/// One load or store. Sixteen bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Access {
    /// Virtual address.
    pub address: u64,
    /// Core cycles this thread computed since its previous access.
    pub compute_cycles: u32,
    /// Logical thread.
    pub thread: u16,
    flags: u16,
}

const WRITE: u16 = 1;
const DEPENDENT: u16 = 2;

impl Access {
    /// Whether it is a store.
    pub const fn is_write(self) -> bool {
        self.flags & WRITE != 0
    }

    /// Whether it is a load that had to wait for this thread's load before it (a pointer chase).
    pub const fn is_dependent(self) -> bool {
        self.flags & DEPENDENT != 0
    }

    /// Virtual page number.
    pub const fn page(self) -> u64 {
        self.address / PAGE_BYTES
    }
}

/// A mapping of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// What the program calls it.
    pub name: &'static str,
    /// First address; a multiple of 4096.
    pub start: u64,
    /// Bytes asked for. Pages are born when they are first touched.
    pub bytes: u64,
    /// Whether its pages are page cache of an input file rather than anonymous memory. They exist from the start.
    pub file_backed: bool,
}

/// Takes a trace. Calls come in program order; all accesses before an event are delivered before it.
pub trait AccessSink {
    /// Up to [`BATCH`] accesses.
    fn accesses(&mut self, batch: &[Access]);
    /// Bytes on whose multiples regions begin: a power of two, no less than a page. No two regions share such a stretch.
    fn boundary(&self) -> u64 {
        PAGE_BYTES
    }
    /// A region was mapped.
    fn mapped(&mut self, _region: &Region) {}
    /// A region is gone.
    fn unmapped(&mut self, _region: &Region) {}
    /// A parallel region begins: until the next barrier the threads run side by side.
    fn fork(&mut self) {}
    /// All threads have waited for each other.
    fn barrier(&mut self) {}
    /// A named part of the program begins.
    fn phase(&mut self, _name: &'static str) {}
    /// Whether open-ended loops should go on. Programs with an end of their own run to it all the same.
    fn wants_more(&self) -> bool {
        true
    }
}

/// A fault planted to prove that a program's check can fail: every store to one element has `mask` flipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Region by the program's name for it; the first mapped under that name.
    pub region: &'static str,
    /// Byte offset of the element in the region; must be the start of an element.
    pub offset: u64,
    /// Bits to flip.
    pub mask: u64,
}

/// Memory whose accesses go to a sink.
pub struct TracedMemory<'s> {
    lane: TracedLane<'s>,
    threads: usize,
    next_address: u64,
    regions: Vec<Region>,
    waiting_compute: Vec<u32>,
    fault: Option<Fault>,
}

/// The logical thread that is having its turn.
pub struct TracedLane<'s> {
    buffer: Box<[Access; BATCH]>,
    length: usize,
    pending_cycles: u32,
    thread: u16,
    fault_address: u64,
    fault_mask: u64,
    sink: &'s mut dyn AccessSink,
}

impl<'s> TracedMemory<'s> {
    /// Memory for a program of `threads` logical threads, at least one and at most 65,535.
    pub fn new(threads: usize, sink: &'s mut dyn AccessSink) -> TracedMemory<'s> {
        let threads = threads.clamp(1, usize::from(u16::MAX));
        let lane = TracedLane {
            buffer: Box::new([Access::default(); BATCH]),
            length: 0,
            pending_cycles: 0,
            thread: 0,
            fault_address: u64::MAX,
            fault_mask: 0,
            sink,
        };
        TracedMemory {
            lane,
            threads,
            next_address: FIRST_ADDRESS,
            regions: Vec::new(),
            waiting_compute: vec![0; threads],
            fault: None,
        }
    }

    /// Plants a fault, before the run.
    pub fn plant(&mut self, fault: Fault) {
        self.fault = Some(fault);
    }

    /// Regions mapped now.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Delivers what is still in the buffer. Called by every event and at the end of the run.
    pub fn flush(&mut self) {
        self.lane.flush();
    }

    fn map(&mut self, name: &'static str, bytes: u64, file_backed: bool) -> u64 {
        let boundary = self.lane.sink.boundary();
        let alignment = if bytes >= HUGE_BYTES { HUGE_BYTES } else { PAGE_BYTES };
        let start = self.next_address.next_multiple_of(alignment.max(boundary));
        self.next_address = start + bytes.max(1).next_multiple_of(boundary);
        let region = Region { name, start, bytes, file_backed };
        self.regions.push(region);
        if let Some(fault) = self.fault.take_if(|fault| fault.region == name) {
            self.lane.fault_address = start + fault.offset;
            self.lane.fault_mask = fault.mask;
        }
        self.lane.flush();
        self.lane.sink.mapped(&region);
        start
    }

    fn turn(&mut self, thread: usize) {
        self.waiting_compute[usize::from(self.lane.thread)] = self.lane.pending_cycles;
        self.lane.thread = thread as u16;
        self.lane.pending_cycles = self.waiting_compute[thread];
    }
}

impl<'s> Memory for TracedMemory<'s> {
    type Lane = TracedLane<'s>;

    fn threads(&self) -> usize {
        self.threads
    }

    fn allocate<T: Scalar>(&mut self, name: &'static str, length: usize) -> Array<T> {
        let start = self.map(name, (length * size_of::<T::Cell>()) as u64, false);
        Array::new(start, length)
    }

    fn allocate_file<T: Scalar>(&mut self, name: &'static str, length: usize) -> Array<T> {
        let start = self.map(name, (length * size_of::<T::Cell>()) as u64, true);
        Array::new(start, length)
    }

    fn free<T: Scalar>(&mut self, array: Array<T>) {
        if let Some(position) = self.regions.iter().position(|region| region.start == array.base()) {
            let region = self.regions.remove(position);
            self.lane.flush();
            self.lane.sink.unmapped(&region);
        }
    }

    fn main(&mut self) -> &mut TracedLane<'s> {
        &mut self.lane
    }

    fn run<S: Send, F>(&mut self, states: &mut [S], step: F)
    where
        F: Fn(&mut TracedLane<'s>, &mut S) -> bool + Sync,
    {
        assert!(states.len() <= self.threads, "a region has at most as many states as threads");
        self.lane.flush();
        self.lane.sink.fork();
        let mut live: Vec<usize> = (0..states.len()).collect();
        while !live.is_empty() {
            live.retain(|&thread| {
                self.turn(thread);
                step(&mut self.lane, &mut states[thread])
            });
        }
        self.turn(0);
        self.lane.flush();
        self.lane.sink.barrier();
    }

    fn phase(&mut self, name: &'static str) {
        self.lane.flush();
        self.lane.sink.phase(name);
    }

    fn report(&mut self, _progress: &Progress) {}

    fn threads_for_short_regions(&self) -> usize {
        self.threads
    }
}

impl TracedLane<'_> {
    #[inline(always)]
    fn record(&mut self, address: u64, flags: u16) {
        // The mask spares a bounds check; `length` is below BATCH here because a full buffer is flushed at once.
        self.buffer[self.length & (BATCH - 1)] =
            Access { address, compute_cycles: self.pending_cycles, thread: self.thread, flags };
        self.pending_cycles = 0;
        self.length += 1;
        if self.length == BATCH {
            self.flush();
        }
    }

    #[cold]
    #[inline(never)]
    fn flush(&mut self) {
        if self.length > 0 {
            self.sink.accesses(&self.buffer[..self.length]);
            self.length = 0;
        }
    }
}

impl Lane for TracedLane<'_> {
    const SHARED: bool = false;

    #[inline(always)]
    fn thread(&self) -> usize {
        usize::from(self.thread)
    }

    #[inline(always)]
    fn read(&mut self, address: u64) {
        self.record(address, 0);
    }

    #[inline(always)]
    fn read_dependent(&mut self, address: u64) {
        self.record(address, DEPENDENT);
    }

    #[inline(always)]
    fn write(&mut self, address: u64) {
        self.record(address, WRITE);
    }

    #[inline(always)]
    fn compute(&mut self, cycles: u32) {
        self.pending_cycles = self.pending_cycles.saturating_add(cycles);
    }

    #[inline(always)]
    fn stored(&self, address: u64, bits: u64) -> u64 {
        if address == self.fault_address { bits ^ self.fault_mask } else { bits }
    }

    fn now(&self) -> Option<u64> {
        None
    }

    fn stopped(&self) -> bool {
        !self.sink.wants_more()
    }
}

/// What a trace amounts to: counts, a hash of every record and event, and the pages that were ever live at once.
/// It is also the plainest example of a sink.
#[derive(Clone, Debug, Default)]
pub struct TraceSummary {
    /// Loads.
    pub reads: u64,
    /// Stores.
    pub writes: u64,
    /// Loads that waited for the one before.
    pub dependent_reads: u64,
    /// Core cycles computed.
    pub compute_cycles: u64,
    /// Accesses by thread.
    pub by_thread: Vec<u64>,
    /// Hash of records and events in order: two runs with the same hash had the same trace.
    pub hash: u64,
    /// Pages touched and not yet unmapped, file pages included from their mapping on.
    pub live_pages: u64,
    /// The most [`TraceSummary::live_pages`] ever was.
    pub peak_pages: u64,
    /// Phases with the number of accesses before each.
    pub phases: Vec<(&'static str, u64)>,
    /// Regions ever mapped.
    pub mapped: Vec<Region>,
    /// Barriers.
    pub barriers: u64,
    touched: Vec<u64>,
}

impl TraceSummary {
    /// Nothing seen yet.
    pub fn new() -> TraceSummary {
        TraceSummary::default()
    }

    /// Loads and stores.
    pub fn total(&self) -> u64 {
        self.reads + self.writes
    }

    fn hash_in(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(5) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }

    fn touch(&mut self, page: u64) {
        let index = (page - FIRST_ADDRESS / PAGE_BYTES) as usize;
        let (word, bit) = (index / 64, 1u64 << (index % 64));
        if self.touched.len() <= word {
            self.touched.resize(word + 1, 0);
        }
        if self.touched[word] & bit == 0 {
            self.touched[word] |= bit;
            self.live_pages += 1;
            self.peak_pages = self.peak_pages.max(self.live_pages);
        }
    }

    fn pages_of(region: &Region) -> std::ops::Range<u64> {
        region.start / PAGE_BYTES..(region.start + region.bytes).div_ceil(PAGE_BYTES)
    }
}

impl AccessSink for TraceSummary {
    fn accesses(&mut self, batch: &[Access]) {
        for access in batch {
            self.hash_in(access.address ^ (u64::from(access.thread) << 48) ^ (u64::from(access.flags) << 62));
            self.hash_in(u64::from(access.compute_cycles));
            if access.is_write() {
                self.writes += 1;
            } else {
                self.reads += 1;
            }
            self.dependent_reads += u64::from(access.is_dependent());
            self.compute_cycles += u64::from(access.compute_cycles);
            let thread = usize::from(access.thread);
            if self.by_thread.len() <= thread {
                self.by_thread.resize(thread + 1, 0);
            }
            self.by_thread[thread] += 1;
            self.touch(access.page());
        }
    }

    fn mapped(&mut self, region: &Region) {
        self.mapped.push(*region);
        self.hash_in(region.start ^ region.bytes.rotate_left(32));
        if region.file_backed {
            for page in TraceSummary::pages_of(region) {
                self.touch(page);
            }
        }
    }

    fn unmapped(&mut self, region: &Region) {
        self.hash_in(!region.start);
        for page in TraceSummary::pages_of(region) {
            let index = (page - FIRST_ADDRESS / PAGE_BYTES) as usize;
            if let Some(word) = self.touched.get_mut(index / 64)
                && *word & (1 << (index % 64)) != 0
            {
                *word &= !(1 << (index % 64));
                self.live_pages -= 1;
            }
        }
    }

    fn barrier(&mut self) {
        self.barriers += 1;
        self.hash_in(1);
    }

    fn phase(&mut self, name: &'static str) {
        let so_far = self.total();
        self.phases.push((name, so_far));
    }
}
