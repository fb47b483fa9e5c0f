//! Writes down what programs of a guest do: every access, whose it is, and how large the guest's kernel mapped the page.
//!
//! In: accesses of user code by virtual CPU, the task that each CPU switches to, the guest's memory. Out: chunks of a [`Stream`] of version
//! 2. Must not: call into QEMU, or take anybody's word for a page size but the page tables'.
//!
//! **Who runs.** A kernel switches tasks in one place, where it loads the stack pointer from the next task's `task_struct`
//! ([`switched_stack`]); the address of that load is the task. From there the guest's memory says the rest: thread, process,
//! address space, page tables. Recorded is what carries the label of a command (`loginuid`, which children inherit), from the moment
//! that a program of that label has begun: the shell that wore the label first is not.
//!
//! **How large its pages are.** The page tables are walked as a processor would: at the first access to each 2 MiB since the kernel last
//! ran on this CPU. Between two such moments no mapping that the CPU uses can change, as the kernel would have to have it flushed here.
//!
//! Time is by instructions of all CPUs together, so that it does not depend on the host.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::GuestMemory;
use crate::options::GuestOptions;
use crate::stream::{CHUNK_WORDS, Filter, Kind, Place, Stream, cache_bytes, word};

const BLOCK_SHIFT: u32 = 21;
/// Blocks that a CPU remembers to have looked at. A power of two.
const LOOKED: usize = 1024;

/// `mov disp32(%rsi),%rsp`: the one instruction of x86-64 kernels (`__switch_to_asm`, since 4.9) by which a task's stack is
/// taken up again, `disp32` being where `task_struct` keeps it. Returns that offset.
pub(crate) fn switched_stack(instruction: &[u8]) -> Option<u64> {
    match *instruction {
        [0x48, 0x8b, 0xa6, a, b, c, d] => Some(u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => None,
    }
}

/// What is counted without a lock, for each virtual CPU.
#[derive(Default)]
struct Clock {
    /// Instructions so far.
    instructions: AtomicU64,
    /// Blocks of the kernel's code so far: another number means that the kernel has run.
    kernel: AtomicU64,
    /// Whether the block that runs is the kernel's.
    in_kernel: AtomicBool,
    /// The task that runs, by its address; 0 before the first switch.
    task: AtomicU64,
}

/// What one virtual CPU has in hand.
pub(crate) struct Cpu {
    words: Vec<u64>,
    first_nanos: u64,
    filter: Filter,
    /// [`Clock::kernel`] when it was last looked who runs.
    kernel: u64,
    /// Task and address space of that look, and whether they are recorded.
    known: (u64, u64),
    current: Option<Current>,
    /// Blocks and the [`Clock::kernel`] at which they were looked at.
    looked: Vec<(u64, u64)>,
}

/// Whose accesses are recorded now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Current {
    process: u32,
    thread: u64,
    tables: u64,
}

/// A process, which is an address space with its threads.
#[derive(Default)]
struct Process {
    tasks: HashSet<u64>,
    /// Whether each block that was accessed is mapped by one entry.
    huge: HashMap<u64, bool>,
}

/// What all CPUs know together.
#[derive(Default)]
struct Known {
    processes: Vec<Process>,
    by_space: HashMap<u64, u32>,
    by_task: HashMap<u64, u32>,
    /// Labels of which a program has begun.
    begun: HashSet<u64>,
}

/// A recording of a guest.
pub(crate) struct GuestRecording {
    stream: Stream,
    memory: GuestMemory,
    options: GuestOptions,
    clocks: Vec<Clock>,
    known: Mutex<Known>,
}

impl GuestRecording {
    /// Begins it.
    ///
    /// # Errors
    /// With what cannot be opened, and why.
    pub(crate) fn begin(options: GuestOptions, cpus: usize) -> Result<GuestRecording, String> {
        let output = &options.output;
        let cache_bytes = cache_bytes(options.cache_bytes);
        let memory = GuestMemory::of(&options.programs)?;
        let stream = Stream::begin(output, 2, cache_bytes).map_err(|error| format!("{}: {error}", output.display()))?;
        let clocks = (0..cpus).map(|_| Clock::default()).collect();
        Ok(GuestRecording { stream, memory, options, clocks, known: Mutex::default() })
    }

    /// A virtual CPU that has seen nothing.
    pub(crate) fn cpu(&self) -> Cpu {
        Cpu {
            words: Vec::with_capacity(CHUNK_WORDS),
            first_nanos: 0,
            filter: Filter::new(cache_bytes(self.options.cache_bytes), self.options.period),
            kernel: u64::MAX,
            known: (0, 0),
            current: None,
            looked: vec![(u64::MAX, 0); LOOKED],
        }
    }

    /// A block of `instructions` instructions begins.
    #[inline]
    pub(crate) fn block(&self, cpu: usize, instructions: u64, kernel: bool) {
        let Some(clock) = self.clocks.get(cpu) else { return };
        // A CPU is run by one thread, so that nobody else adds.
        let add = |counter: &AtomicU64, more: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
        };
        add(&clock.instructions, instructions);
        clock.in_kernel.store(kernel, Ordering::Relaxed);
        if kernel {
            add(&clock.kernel, 1);
        }
    }

    /// A CPU goes over to another task.
    pub(crate) fn switch(&self, number: usize, cpu: &mut Cpu, task: u64) {
        let Some(clock) = self.clocks.get(number) else { return };
        let before = clock.task.swap(task, Ordering::Relaxed);
        self.flush(cpu);
        (cpu.current, cpu.known) = (None, (0, 0));
        let mut known = self.known();
        // A task that has ended has no address space, and never runs again; another may get its place.
        if known.by_task.contains_key(&before) && self.memory.space(before) == Some(0) {
            self.leave(&mut known, before);
        }
    }

    /// One access of user code.
    #[inline]
    pub(crate) fn access(&self, number: usize, cpu: &mut Cpu, address: u64, size_shift: u32, write: bool) {
        let Some(clock) = self.clocks.get(number) else { return };
        // QEMU 7.2 tells some accesses of kernel code to who watches user code: those that its helpers make after an exception.
        if clock.in_kernel.load(Ordering::Relaxed) {
            return;
        }
        let kernel = clock.kernel.load(Ordering::Relaxed);
        if kernel != cpu.kernel {
            cpu.kernel = kernel;
            self.look_who(cpu, clock.task.load(Ordering::Relaxed));
        }
        let Some(current) = cpu.current else { return };
        if !cpu.filter.passes(address, u64::from(current.process), write) {
            return;
        }
        let block = address >> BLOCK_SHIFT;
        let slot = block as usize & (LOOKED - 1);
        if cpu.looked[slot] != (block, kernel) {
            cpu.looked[slot] = (block, kernel);
            self.look_how(cpu, current, block);
        }
        cpu.words.push(word(address, size_shift, write));
        if cpu.words.len() == CHUNK_WORDS {
            self.flush(cpu);
        }
    }

    /// Who runs on a CPU since the kernel last ran there.
    fn look_who(&self, cpu: &mut Cpu, task: u64) {
        let space = self.memory.space(task).unwrap_or(0);
        if cpu.known == (task, space) {
            return;
        }
        self.flush(cpu);
        (cpu.known, cpu.current) = ((task, space), None);
        let Some(tables) = self.memory.tables(space) else { return };
        let Some(who) = self.memory.identity(task).filter(|who| self.options.programs.labels.contains(&who.label))
        else {
            return;
        };
        let mut known = self.known();
        if who.forked_only && !known.begun.contains(&who.label) {
            return;
        }
        known.begun.insert(who.label);
        let process = match known.by_space.get(&space) {
            Some(process) => *process,
            None => {
                let process = known.processes.len() as u32;
                known.processes.push(Process::default());
                known.by_space.insert(space, process);
                let payload = [&who.process.to_le_bytes()[..], who.name.as_bytes()].concat();
                self.stream.chunk(Kind::Process, self.now(process), &payload);
                process
            }
        };
        if known.by_task.get(&task) != Some(&process) {
            // The thread began another program, and has left what it was.
            self.leave(&mut known, task);
            known.by_task.insert(task, process);
            known.processes[process as usize].tasks.insert(task);
        }
        cpu.current = Some(Current { process, thread: who.thread, tables });
    }

    /// A task is no longer of its process; without any task the process is over.
    fn leave(&self, known: &mut Known, task: u64) {
        let Some(process) = known.by_task.remove(&task) else { return };
        let left = &mut known.processes[process as usize];
        left.tasks.remove(&task);
        if left.tasks.is_empty() {
            left.huge = HashMap::new();
            known.by_space.retain(|_, other| *other != process);
            self.stream.chunk(Kind::Over, self.now(process), &[]);
        }
    }

    /// How a block is mapped now.
    fn look_how(&self, cpu: &mut Cpu, current: Current, block: u64) {
        let address = block << BLOCK_SHIFT;
        let Some(huge) = self.memory.is_huge(current.tables, address) else { return };
        let mut known = self.known();
        let Some(process) = known.processes.get_mut(current.process as usize) else { return };
        if process.huge.insert(block, huge) != Some(huge) {
            self.flush(cpu);
            self.stream.words(Kind::Sizes, self.now(current.process), &mut vec![address | u64::from(huge)]);
        }
    }

    /// Writes what a virtual CPU has in hand.
    pub(crate) fn flush(&self, cpu: &mut Cpu) {
        let now = self.nanos();
        if let Some(current) = cpu.current.filter(|_| !cpu.words.is_empty()) {
            let place = Place { process: current.process, thread: current.thread, nanos: (cpu.first_nanos, now) };
            self.stream.words(Kind::Accesses, place, &mut cpu.words);
        }
        cpu.first_nanos = now;
    }

    fn now(&self, process: u32) -> Place {
        let nanos = self.nanos();
        Place { process, thread: 0, nanos: (nanos, nanos) }
    }

    fn nanos(&self) -> u64 {
        let instructions: u64 = self.clocks.iter().map(|clock| clock.instructions.load(Ordering::Relaxed)).sum();
        instructions * self.options.instruction_nanos
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::{LAYOUT, Made};
    use crate::options::ProgramOptions;

    const LABEL: u32 = 500;
    const HEAP: u64 = 0x5555_5560_0000;

    struct Played {
        recording: GuestRecording,
        cpus: Vec<Cpu>,
        output: std::path::PathBuf,
    }

    impl Played {
        fn new(made: &Made, name: &str, cache_bytes: u64) -> Played {
            let output = std::env::temp_dir().join(format!("terrace-guest-{}-{name}", std::process::id()));
            let recording = GuestRecording::begin(
                GuestOptions {
                    output: output.clone(),
                    cache_bytes,
                    period: 1,
                    instruction_nanos: 8,
                    programs: ProgramOptions {
                        memory: made.files.clone(),
                        labels: u64::from(LABEL)..u64::from(LABEL) + 2,
                        layout: LAYOUT,
                    },
                },
                2,
            )
            .unwrap();
            let cpus = vec![recording.cpu(), recording.cpu()];
            Played { recording, cpus, output }
        }

        /// The kernel runs on a CPU, and goes on with a task.
        fn switch(&mut self, cpu: usize, task: u64) {
            self.recording.block(cpu, 10, true);
            self.recording.switch(cpu, &mut self.cpus[cpu], task);
        }

        fn access(&mut self, cpu: usize, address: u64) {
            self.recording.block(cpu, 1, false);
            self.recording.access(cpu, &mut self.cpus[cpu], address, 3, false);
        }

        /// Chunks: kind, process, thread, whole words.
        fn chunks(mut self) -> Vec<(u32, u32, u64, Vec<u64>)> {
            self.cpus.iter_mut().for_each(|cpu| self.recording.flush(cpu));
            let bytes = std::fs::read(&self.output).unwrap();
            std::fs::remove_file(&self.output).unwrap();
            let word32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let word64 = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            assert_eq!(word32(8), 2, "version");
            let (mut at, mut chunks) = (40, Vec::new());
            while at < bytes.len() {
                let length = word32(at + 32) as usize;
                let words = (0..length / 8).map(|word| word64(at + 48 + 8 * word) & ((1 << 57) - 1)).collect();
                chunks.push((word32(at + 4), word32(at + 40), word64(at + 8), words));
                at += 48 + length;
            }
            chunks
        }
    }

    #[test]
    fn the_switch_is_known_by_its_bytes() {
        assert_eq!(switched_stack(&[0x48, 0x8b, 0xa6, 0x18, 0x15, 0, 0]), Some(0x1518));
        assert_eq!(switched_stack(&[0x48, 0x89, 0xa7, 0x18, 0x15, 0, 0]), None, "the store of the task before");
        assert_eq!(switched_stack(&[0x48, 0x8b]), None);
    }

    #[test]
    fn only_what_carries_a_label_is_recorded_and_only_once_a_program_has_begun() {
        let made = Made::new("labels");
        made.space(0x2000, 0x4000);
        made.map(0x4000, HEAP, false);
        let mut played = Played::new(&made, "labels", 0);
        let other = made.task(0x1000, 0x2000, (5, 5), u32::MAX, 0);
        played.switch(0, other);
        played.access(0, HEAP);
        // The shell that took the label, then the program in its place, in an address space of its own.
        let task = made.task(0x1800, 0x2000, (7, 7), LABEL, 0x40);
        played.switch(0, task);
        played.access(0, HEAP + 8);
        made.space(0x3000, 0x8000);
        made.map(0x8000, HEAP, false);
        made.task(0x1800, 0x3000, (7, 7), LABEL, 0);
        played.recording.block(0, 10, true);
        played.access(0, HEAP + 16);
        // A child that the program forked runs the same program, and is recorded at once.
        made.space(0x3800, 0x1_0000);
        made.map(0x1_0000, HEAP, false);
        let child = made.task(0x1400, 0x3800, (8, 8), LABEL, 0x40);
        played.switch(0, child);
        played.access(0, HEAP + 24);
        assert_eq!(
            played.chunks(),
            [
                (3, 0, 0, vec![7]),
                (4, 0, 0, vec![HEAP]),
                (1, 0, 7, vec![HEAP + 16]),
                (3, 1, 0, vec![8]),
                (4, 1, 0, vec![HEAP]),
                (1, 1, 8, vec![HEAP + 24]),
            ]
        );
    }

    #[test]
    fn two_processes_and_their_threads_are_told_apart_on_two_cpus() {
        let made = Made::new("two");
        for (space, tables) in [(0x2000, 0x4000), (0x3000, 0x8000)] {
            made.space(space, tables);
            made.map(tables, HEAP, space == 0x3000);
        }
        let mut played = Played::new(&made, "two", 4096);
        let first = made.task(0x1000, 0x2000, (7, 7), LABEL, 0);
        let thread = made.task(0x1400, 0x2000, (8, 7), LABEL, 0);
        let second = made.task(0x1800, 0x3000, (9, 9), LABEL + 1, 0);
        played.switch(0, first);
        played.switch(1, second);
        played.access(0, HEAP);
        played.access(1, HEAP);
        played.access(0, HEAP + 8);
        played.switch(1, thread);
        played.access(1, HEAP + 64);
        // The first thread ends, then the other: the process is over.
        made.task(0x1000, 0, (7, 7), LABEL, 0);
        played.switch(0, second);
        made.task(0x1400, 0, (8, 7), LABEL, 0);
        played.switch(1, 0xffff_ffff_8260_0000);
        assert_eq!(
            played.chunks(),
            [
                (3, 0, 0, vec![7]),
                (4, 0, 0, vec![HEAP]),
                (3, 1, 0, vec![9]),
                (4, 1, 0, vec![HEAP | 1]),
                (1, 1, 9, vec![HEAP]),
                (1, 0, 7, vec![HEAP]),
                (1, 0, 8, vec![HEAP + 64]),
                (5, 0, 0, vec![]),
            ]
        );
    }

    #[test]
    fn what_the_kernel_s_code_accesses_is_not_the_program_s() {
        let made = Made::new("kernel");
        made.space(0x2000, 0x4000);
        made.map(0x4000, HEAP, false);
        let mut played = Played::new(&made, "kernel", 0);
        let task = made.task(0x1000, 0x2000, (7, 7), LABEL, 0);
        played.switch(0, task);
        played.recording.access(0, &mut played.cpus[0], HEAP + 8, 3, true);
        played.access(0, HEAP);
        let words: Vec<_> = played.chunks().into_iter().filter(|chunk| chunk.0 == 1).collect();
        assert_eq!(words, [(1, 0, 7, vec![HEAP])]);
    }

    #[test]
    fn a_page_that_the_kernel_collapses_or_splits_is_told_in_its_place() {
        let made = Made::new("sizes");
        made.space(0x2000, 0x4000);
        made.map(0x4000, HEAP, false);
        let mut played = Played::new(&made, "sizes", 0);
        let task = made.task(0x1000, 0x2000, (7, 7), LABEL, 0);
        played.switch(0, task);
        played.access(0, HEAP);
        made.map(0x4000, HEAP, true);
        played.access(0, HEAP + 64);
        played.recording.block(0, 10, true);
        played.access(0, HEAP + 128);
        made.map(0x4000, HEAP, false);
        played.recording.block(0, 10, true);
        played.access(0, HEAP + 192);
        let kinds: Vec<_> = played.chunks().into_iter().map(|(kind, _, _, words)| (kind, words)).collect();
        let expected = [
            (3, vec![7]),
            (4, vec![HEAP]),
            // The kernel has not run in between, so that the processor cannot have known.
            (1, vec![HEAP, HEAP + 64]),
            (4, vec![HEAP | 1]),
            (1, vec![HEAP + 128]),
            (4, vec![HEAP]),
            (1, vec![HEAP + 192]),
        ];
        assert_eq!(kinds, expected);
    }
}
