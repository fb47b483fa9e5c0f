//! Native memory: the same programs at full speed, on real threads if the driver brings them.
//!
//! In: an [`Executor`], a clock, a sign to stop, and where progress goes; all of them the driver's, since this crate may not start a
//! thread or read a clock. Out: plain loads and stores. Must not: see or count accesses.

use std::sync::{Mutex, PoisonError};

use crate::memory::{Array, Lane, Memory, Progress, Scalar};

/// Runs tasks, at the same time where it has threads. Implemented by the driver over scoped threads.
pub trait Executor: Sync {
    /// Calls `task(0)` to `task(tasks - 1)`, each once, and returns when all have ended. Tasks may wait for tasks with
    /// lower numbers, so a task may only be held back for ones before it.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// One task after the other on the caller's thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sequential;

impl Executor for Sequential {
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        for number in 0..tasks {
            task(number);
        }
    }
}

/// The driver's clock: nanoseconds since an origin of its own.
pub type Clock<'d> = &'d (dyn Fn() -> u64 + Sync);

/// Whether somebody wants the run over before its time; only open-ended loops ask, and what they did is verified as ever.
pub type Stop<'d> = &'d (dyn Fn() -> bool + Sync);

/// Memory without a trace.
pub struct NativeMemory<'d> {
    executor: &'d dyn Executor,
    out: &'d mut dyn FnMut(&Progress),
    main: NativeLane<'d>,
    threads: usize,
    next_address: u64,
    phase: &'static str,
    started: u64,
}

/// A thread of a native run.
pub struct NativeLane<'d> {
    clock: Clock<'d>,
    stop: Stop<'d>,
    thread: usize,
}

impl<'d> NativeMemory<'d> {
    /// Memory for a program of `threads` threads, run by `executor`.
    pub fn new(
        threads: usize,
        executor: &'d dyn Executor,
        clock: Clock<'d>,
        stop: Stop<'d>,
        out: &'d mut dyn FnMut(&Progress),
    ) -> NativeMemory<'d> {
        let main = NativeLane { clock, stop, thread: 0 };
        let started = clock();
        NativeMemory { executor, out, main, threads: threads.max(1), next_address: 4096, phase: "start", started }
    }
}

impl<'d> Memory for NativeMemory<'d> {
    type Lane = NativeLane<'d>;

    fn threads(&self) -> usize {
        self.threads
    }

    fn allocate<T: Scalar>(&mut self, _name: &'static str, length: usize) -> Array<T> {
        let array = Array::new(self.next_address, length);
        self.next_address += array.bytes().next_multiple_of(4096);
        array
    }

    fn allocate_file<T: Scalar>(&mut self, name: &'static str, length: usize) -> Array<T> {
        self.allocate(name, length)
    }

    fn free<T: Scalar>(&mut self, array: Array<T>) {
        drop(array);
    }

    fn main(&mut self) -> &mut NativeLane<'d> {
        &mut self.main
    }

    fn run<S: Send, F>(&mut self, states: &mut [S], step: F)
    where
        F: Fn(&mut NativeLane<'d>, &mut S) -> bool + Sync,
    {
        let NativeLane { clock, stop, .. } = self.main;
        let work = |thread: usize, state: &mut S| {
            let mut lane = NativeLane { clock, stop, thread };
            while step(&mut lane, state) {
                // A step that had to wait returns at once; let the thread it waits for have the core.
                std::hint::spin_loop();
            }
        };
        if let [only] = states {
            work(0, only);
            return;
        }
        // Each slot is locked by one task alone; the lock only carries the exclusive borrow to it. A poisoned slot means
        // that another task of this region panicked, and that panic is the one to be seen.
        let slots: Vec<Mutex<&mut S>> = states.iter_mut().map(Mutex::new).collect();
        self.executor.run(slots.len(), &|thread| {
            work(thread, &mut slots[thread].lock().unwrap_or_else(PoisonError::into_inner));
        });
    }

    fn phase(&mut self, name: &'static str) {
        self.phase = name;
        let elapsed_nanos = (self.main.clock)() - self.started;
        let nothing = f64::NAN;
        let begun = Progress {
            phase: name,
            elapsed_nanos,
            operations: 0,
            p50_nanos: nothing,
            p10_nanos: nothing,
            p99_nanos: nothing,
        };
        (self.out)(&begun);
    }

    fn report(&mut self, progress: &Progress) {
        let elapsed_nanos = (self.main.clock)() - self.started;
        (self.out)(&Progress { phase: self.phase, elapsed_nanos, ..progress.clone() });
    }

    fn threads_for_short_regions(&self) -> usize {
        1
    }
}

impl Lane for NativeLane<'_> {
    #[inline(always)]
    fn thread(&self) -> usize {
        self.thread
    }
    #[inline(always)]
    fn read(&mut self, _address: u64) {}
    #[inline(always)]
    fn read_dependent(&mut self, _address: u64) {}
    #[inline(always)]
    fn write(&mut self, _address: u64) {}
    #[inline(always)]
    fn compute(&mut self, _cycles: u32) {}
    #[inline]
    fn now(&self) -> Option<u64> {
        Some((self.clock)())
    }
    #[inline]
    fn stopped(&self) -> bool {
        (self.stop)()
    }
}
