//! The memory the programs work on: typed arrays whose every access may be seen.
//!
//! In: a program that is generic over [`Memory`] and allocates [`Array`]s in its own order. Out: real values in real
//! memory, and, for each access, a call to the [`Lane`] (the logical thread) that makes it. A native lane does nothing,
//! so `get` and `set` compile to a plain load or store; a traced lane writes the access down. Must not: know what a
//! program computes, or start a thread; parallel regions are run by the [`Memory`].
//!
//! Elements are atomics read and written with relaxed order. That costs nothing on the machines we run on (a relaxed
//! load is a plain `mov`), and it lets real threads share an array without unsafe code.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes in a cache line: spans are recorded as one access a line.
pub const LINE_BYTES: u64 = 64;

/// A logical thread of a program. Every access goes through one.
pub trait Lane {
    /// Whether other threads may really run at the same time. Where logical threads take turns on one real thread, a
    /// read-modify-write is a plain load and store, which does not drain the core's pipeline as an atomic one does.
    const SHARED: bool = true;
    /// The number of this thread, from 0.
    fn thread(&self) -> usize;
    /// A load from `address` that may overlap with others of this thread.
    fn read(&mut self, address: u64);
    /// A load whose address came out of the load before it, so that the two cannot overlap.
    fn read_dependent(&mut self, address: u64);
    /// A store to `address`.
    fn write(&mut self, address: u64);
    /// Work of `cycles` core cycles before the next access, cache hits of local variables included.
    fn compute(&mut self, cycles: u32);
    /// What a store really puts into memory. The identity, unless a fault was planted to prove that a check can fail.
    fn stored(&self, _address: u64, bits: u64) -> u64 {
        bits
    }
    /// Nanoseconds since the driver's origin, or `None` where there is no clock (traced runs).
    fn now(&self) -> Option<u64>;
    /// Whether the run's time is over, or nobody wants more of the trace. Only open-ended loops ask.
    fn stopped(&self) -> bool;
}

/// Where programs allocate and run.
pub trait Memory {
    /// The logical thread of this memory.
    type Lane: Lane;

    /// Logical threads a parallel region has.
    fn threads(&self) -> usize;

    /// Allocates zeroed memory of `length` elements. Pages are born when they are first touched.
    fn allocate<T: Scalar>(&mut self, name: &'static str, length: usize) -> Array<T>;

    /// Allocates memory that stands for a mapped input file: its pages are page cache, filled by [`Array::place`].
    fn allocate_file<T: Scalar>(&mut self, name: &'static str, length: usize) -> Array<T>;

    /// Gives memory back.
    fn free<T: Scalar>(&mut self, array: Array<T>);

    /// The main thread, for serial parts.
    fn main(&mut self) -> &mut Self::Lane;

    /// Runs one logical thread for each state until its step says `false`, then waits for all of them (a barrier).
    /// A traced memory lets them take turns, a step each, so the result is the same every time; a native one runs each
    /// to its end, on real threads where the driver's executor has them. A step that waits for another thread returns
    /// `true`, and may only wait for threads with a lower number.
    fn run<S: Send, F>(&mut self, states: &mut [S], step: F)
    where
        F: Fn(&mut Self::Lane, &mut S) -> bool + Sync;

    /// A named part of the run begins.
    fn phase(&mut self, name: &'static str);

    /// Reports how an open-ended loop goes. Only native runs have anyone to tell.
    fn report(&mut self, progress: &Progress);

    /// Threads worth using for regions of a few microseconds: all of them where threads cost nothing (traced), one
    /// where each region would start real threads.
    fn threads_for_short_regions(&self) -> usize;

    /// A loop over `items` in grains, spread over all threads; the body gets its grain.
    fn parallel<F>(&mut self, items: usize, grain: usize, schedule: Schedule, body: F)
    where
        F: Fn(&mut Self::Lane, Range<usize>) + Sync,
        Self: Sized,
    {
        let mut states = vec![(); self.threads()];
        self.parallel_with(&mut states, items, grain, schedule, |lane, _, range| body(lane, range));
    }

    /// A parallel loop in which each thread keeps a state of its own (a partial sum, a buffer).
    fn parallel_with<S: Send, F>(&mut self, states: &mut [S], items: usize, grain: usize, schedule: Schedule, body: F)
    where
        F: Fn(&mut Self::Lane, &mut S, Range<usize>) + Sync,
        Self: Sized,
    {
        let threads = states.len();
        let grain = grain.max(1);
        let mut walks: Vec<(usize, &mut S)> = states.iter_mut().map(|state| (0, state)).collect();
        self.run(&mut walks, |lane, (done, state)| {
            let range = match schedule {
                Schedule::Blocks => {
                    let block = block_of(items, threads, lane.thread());
                    let start = block.start + *done * grain;
                    start..(start + grain).min(block.end)
                }
                Schedule::Cyclic => {
                    let start = (*done * threads + lane.thread()) * grain;
                    start..(start + grain).min(items)
                }
            };
            if range.is_empty() {
                return false;
            }
            body(lane, state, range);
            *done += 1;
            true
        });
    }
}

/// How a parallel loop is dealt out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Each thread has one contiguous part (OpenMP `static`).
    Blocks,
    /// Grains go round the threads in turn (OpenMP `static, grain`); evens out skewed work.
    Cyclic,
}

/// The part of `items` that thread `thread` of `threads` has under [`Schedule::Blocks`].
pub fn block_of(items: usize, threads: usize, thread: usize) -> Range<usize> {
    items * thread / threads..items * (thread + 1) / threads
}

/// How an open-ended loop went since the last report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// The phase it is in.
    pub phase: &'static str,
    /// Nanoseconds since the run began.
    pub elapsed_nanos: u64,
    /// Operations since the last report, by all threads.
    pub operations: u64,
    /// Nanoseconds an operation took, median over the timed groups of operations; NaN when none was timed.
    pub p50_nanos: f64,
    /// The same, 10th percentile.
    pub p10_nanos: f64,
    /// The same, 99th percentile.
    pub p99_nanos: f64,
}

/// A type that can lie in an [`Array`].
pub trait Scalar: Copy + Send + Sync + 'static {
    /// The shared cell it lies in.
    type Cell: bytemuck::Zeroable + Send + Sync;
    /// Reads a cell.
    fn load(cell: &Self::Cell) -> Self;
    /// Writes a cell.
    fn store(cell: &Self::Cell, value: Self);
    /// The value's bits, low end first.
    fn to_bits(self) -> u64;
    /// The value of these bits.
    fn from_bits(bits: u64) -> Self;
    /// Replaces the value if it still is `current`; whether it was.
    fn exchange(cell: &Self::Cell, current: Self, new: Self) -> bool;
}

macro_rules! scalar {
    ($type:ty, $cell:ty, $raw:ty, $to:expr, $from:expr) => {
        impl Scalar for $type {
            type Cell = $cell;
            #[inline(always)]
            fn load(cell: &$cell) -> $type {
                $from(cell.load(Relaxed))
            }
            #[inline(always)]
            fn store(cell: &$cell, value: $type) {
                cell.store($to(value), Relaxed);
            }
            #[inline(always)]
            fn to_bits(self) -> u64 {
                u64::from($to(self))
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> $type {
                $from(bits as $raw)
            }
            #[inline(always)]
            fn exchange(cell: &$cell, current: $type, new: $type) -> bool {
                // Locks are taken with this, hence the stronger orders; on x86-64 they cost nothing more.
                cell.compare_exchange($to(current), $to(new), std::sync::atomic::Ordering::AcqRel, Relaxed).is_ok()
            }
        }
    };
}

scalar!(u8, AtomicU8, u8, |v: u8| v, |r: u8| r);
scalar!(u32, AtomicU32, u32, |v: u32| v, |r: u32| r);
scalar!(u64, AtomicU64, u64, |v: u64| v, |r: u64| r);
scalar!(i64, AtomicU64, u64, |v: i64| v as u64, |r: u64| r as i64);
scalar!(f32, AtomicU32, u32, |v: f32| v.to_bits(), |r: u32| f32::from_bits(r));
scalar!(f64, AtomicU64, u64, |v: f64| v.to_bits(), |r: u64| f64::from_bits(r));

/// An array of the program: real memory, and the virtual addresses it has in the trace.
pub struct Array<T: Scalar> {
    /// The elements, after `skip` cells that only bring the first one onto a page boundary.
    storage: Box<[T::Cell]>,
    skip: usize,
    base: u64,
    length: usize,
    /// Log2 of the element size, so that an address is a shift and an addition.
    shift: u32,
}

/// Bytes of a page, to which arrays of at least that size are aligned.
const PAGE_BYTES: usize = 4096;

impl<T: Scalar> Array<T> {
    /// Zeroed memory at virtual address `base`. Zeroed by the allocator, so that pages nobody touches take no memory.
    pub fn new(base: u64, length: usize) -> Array<T> {
        let cell = size_of::<T::Cell>();
        // The trace puts every array on a page of its own, and programs that lay out hot pages count on it; an allocator puts
        // its own words before a large block, so that each hot page would spill over into its neighbour.
        let spare = if length * cell >= PAGE_BYTES { PAGE_BYTES / cell } else { 0 };
        let storage: Box<[T::Cell]> = bytemuck::zeroed_slice_box(length + spare);
        let skip = if spare > 0 { (storage.as_ptr() as usize).wrapping_neg() % PAGE_BYTES / cell } else { 0 };
        Array { storage, skip, base, length, shift: cell.trailing_zeros() }
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// First virtual address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        (self.length as u64) << self.shift
    }

    /// Virtual address of an element.
    #[inline(always)]
    pub fn address(&self, index: usize) -> u64 {
        self.base + ((index as u64) << self.shift)
    }

    #[inline(always)]
    fn cell(&self, index: usize) -> &T::Cell {
        debug_assert!(index < self.length);
        &self.storage[self.skip + index]
    }

    /// Asks the host to bring an element into its cache, where `index` is one. The program does not see this.
    #[inline(always)]
    pub(crate) fn expect(&self, index: usize) {
        if let Some(cell) = self.storage.get(self.skip + index) {
            terrace_core::prefetch::prefetch(cell);
        }
    }

    /// Loads an element.
    #[inline(always)]
    pub fn get<L: Lane>(&self, lane: &mut L, index: usize) -> T {
        let value = T::load(self.cell(index));
        lane.read(self.address(index));
        value
    }

    /// Loads an element whose index came out of the load before it (a pointer chase).
    #[inline(always)]
    pub fn chase<L: Lane>(&self, lane: &mut L, index: usize) -> T {
        let value = T::load(self.cell(index));
        lane.read_dependent(self.address(index));
        value
    }

    /// Stores an element.
    #[inline(always)]
    pub fn set<L: Lane>(&self, lane: &mut L, index: usize, value: T) {
        let address = self.address(index);
        T::store(self.cell(index), T::from_bits(lane.stored(address, value.to_bits())));
        lane.write(address);
    }

    /// The store of an element whose value [`Array::put`] brings later: for a program that writes back what it has just read, from a buffer
    /// of its own. The line is in the core's own caches all the while at full size, and leaves them once. Announced where it was read, it
    /// does so at every scale.
    #[inline(always)]
    pub fn claim<L: Lane>(&self, lane: &mut L, index: usize) {
        lane.write(self.address(index));
    }

    /// Stores an element whose store was announced by [`Array::claim`].
    #[inline(always)]
    pub fn put<L: Lane>(&self, lane: &L, index: usize, value: T) {
        T::store(self.cell(index), T::from_bits(lane.stored(self.address(index), value.to_bits())));
    }

    /// Atomically replaces an element if it is `current`; whether it was.
    #[inline]
    pub fn replace<L: Lane>(&self, lane: &mut L, index: usize, current: T, new: T) -> bool {
        let address = self.address(index);
        lane.read(address);
        let new = T::from_bits(lane.stored(address, new.to_bits()));
        let done = if L::SHARED {
            T::exchange(self.cell(index), current, new)
        } else {
            let same = T::load(self.cell(index)).to_bits() == current.to_bits();
            if same {
                T::store(self.cell(index), new);
            }
            same
        };
        if done {
            lane.write(address);
        }
        done
    }

    /// Atomically changes an element; returns what it was.
    #[inline]
    pub fn update<L: Lane>(&self, lane: &mut L, index: usize, change: impl Fn(T) -> T) -> T {
        let address = self.address(index);
        lane.read(address);
        lane.write(address);
        loop {
            let before = T::load(self.cell(index));
            let after = T::from_bits(lane.stored(address, change(before).to_bits()));
            if !L::SHARED {
                T::store(self.cell(index), after);
                return before;
            }
            if T::exchange(self.cell(index), before, after) {
                return before;
            }
        }
    }

    /// Loads the elements of a range one by one into `into`, seen as one access a cache line.
    #[inline]
    pub fn read_span<L: Lane>(&self, lane: &mut L, range: Range<usize>, mut into: impl FnMut(T)) {
        self.lines(&range, |address| lane.read(address));
        for cell in &self.storage[self.skip + range.start..self.skip + range.end] {
            into(T::load(cell));
        }
    }

    /// Stores the elements of a range from `from(index)`, seen as one access a cache line.
    #[inline]
    pub fn write_span<L: Lane>(&self, lane: &mut L, range: Range<usize>, mut from: impl FnMut(usize) -> T) {
        self.lines(&range, |address| lane.write(address));
        for index in range {
            let bits = lane.stored(self.address(index), from(index).to_bits());
            T::store(self.cell(index), T::from_bits(bits));
        }
    }

    /// Reads without being seen: for checks, which are no part of the program.
    #[inline(always)]
    pub fn peek(&self, index: usize) -> T {
        T::load(self.cell(index))
    }

    /// Writes without being seen: for what the program does not do itself, such as the kernel filling file pages.
    #[inline(always)]
    pub fn place(&self, index: usize, value: T) {
        T::store(self.cell(index), value);
    }

    #[inline]
    fn lines(&self, range: &Range<usize>, mut seen: impl FnMut(u64)) {
        if range.is_empty() {
            return;
        }
        let last = self.address(range.end - 1);
        let mut address = self.address(range.start);
        while address <= last {
            seen(address);
            address = (address | (LINE_BYTES - 1)) + 1;
        }
    }
}

impl Array<u64> {
    /// Atomically adds, wrapping; returns what it was.
    #[inline(always)]
    pub fn add<L: Lane>(&self, lane: &mut L, index: usize, value: u64) -> u64 {
        let address = self.address(index);
        lane.read(address);
        lane.write(address);
        let value = lane.stored(address, value);
        let cell = self.cell(index);
        if L::SHARED {
            return cell.fetch_add(value, Relaxed);
        }
        let before = cell.load(Relaxed);
        cell.store(before.wrapping_add(value), Relaxed);
        before
    }

    /// Atomically sets bits; returns what it was.
    #[inline(always)]
    pub fn set_bits<L: Lane>(&self, lane: &mut L, index: usize, bits: u64) -> u64 {
        let address = self.address(index);
        lane.read(address);
        lane.write(address);
        let bits = lane.stored(address, bits);
        let cell = self.cell(index);
        if L::SHARED {
            return cell.fetch_or(bits, Relaxed);
        }
        let before = cell.load(Relaxed);
        cell.store(before | bits, Relaxed);
        before
    }
}

impl Array<u32> {
    /// Atomically adds, wrapping; returns what it was.
    #[inline(always)]
    pub fn add<L: Lane>(&self, lane: &mut L, index: usize, value: u32) -> u32 {
        let address = self.address(index);
        lane.read(address);
        lane.write(address);
        let value = lane.stored(address, u64::from(value)) as u32;
        let cell = self.cell(index);
        if L::SHARED {
            return cell.fetch_add(value, Relaxed);
        }
        let before = cell.load(Relaxed);
        cell.store(before.wrapping_add(value), Relaxed);
        before
    }
}
