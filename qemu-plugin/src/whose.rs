//! Whose an access of user code is, on a guest of one processor: a process that carries a label, or anything else.
//!
//! In: what the processor executes, the guest's memory. Out: the number of the process that an access counts for. Must not: call into QEMU, or count a
//! shell that took the label and has not begun the program yet.
//!
//! How it is known who runs stands in `guest`, which also has to tell threads, page sizes and times.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::memory::GuestMemory;

/// What the processor does, and for whom.
pub(crate) struct Whose {
    memory: GuestMemory,
    /// Values of `loginuid` that count.
    labels: Range<u64>,
    /// The kernel has run since it was last looked who runs.
    stale: bool,
    in_kernel: bool,
    /// The task that runs, by its address; 0 before the first switch.
    task: u64,
    /// Task and address space of the last look.
    known: (u64, u64),
    current: Option<u32>,
    /// Labels of which a program has begun.
    begun: HashSet<u64>,
    /// Numbers of processes, by address space and process id: an address space's place is used again.
    numbers: HashMap<(u64, u64), u32>,
}

impl Whose {
    pub(crate) fn new(memory: GuestMemory, labels: Range<u64>) -> Whose {
        Whose {
            memory,
            labels,
            stale: true,
            in_kernel: false,
            task: 0,
            known: (0, 0),
            current: None,
            begun: HashSet::new(),
            numbers: HashMap::new(),
        }
    }

    /// A block of code begins.
    #[inline]
    pub(crate) fn block(&mut self, kernel: bool) {
        self.in_kernel = kernel;
        self.stale |= kernel;
    }

    /// The processor goes over to another task.
    pub(crate) fn switch(&mut self, task: u64) {
        self.task = task;
        (self.known, self.current, self.stale) = ((0, 0), None, true);
    }

    /// The process that an access counts for. QEMU 7.2 tells some accesses of kernel code to who watches user code; they are nobody's.
    #[inline]
    pub(crate) fn process(&mut self) -> Option<u32> {
        if self.in_kernel {
            return None;
        }
        if std::mem::take(&mut self.stale) {
            self.look();
        }
        self.current
    }

    fn look(&mut self) {
        let space = self.memory.space(self.task).unwrap_or(0);
        if self.known == (self.task, space) {
            return;
        }
        (self.known, self.current) = ((self.task, space), None);
        if space == 0 {
            return;
        }
        let who = self.memory.identity(self.task).filter(|who| self.labels.contains(&who.label));
        let Some(who) = who.filter(|who| !who.forked_only || self.begun.contains(&who.label)) else { return };
        self.begun.insert(who.label);
        let next = self.numbers.len() as u32;
        self.current = Some(*self.numbers.entry((space, who.process)).or_insert(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::tests::{LAYOUT, Made};

    #[test]
    fn only_the_program_and_its_children_count_and_each_has_a_number() {
        let made = Made::new("whose");
        let memory = GuestMemory::open(&made.files, LAYOUT).unwrap();
        let mut whose = Whose::new(memory, 500..501);
        let mut runs = |task: u64| {
            whose.block(true);
            whose.switch(task);
            whose.block(false);
            whose.process()
        };
        assert_eq!(runs(made.task(0x1000, 0x2000, (5, 5), u32::MAX, 0)), None, "another's");
        let shell = made.task(0x1800, 0x2000, (7, 7), 500, 0x40);
        assert_eq!(runs(shell), None, "the shell that took the label");
        assert_eq!(runs(made.task(0x1800, 0x3000, (7, 7), 500, 0)), Some(0), "the program in its place");
        assert_eq!(runs(made.task(0x1400, 0x3800, (8, 8), 500, 0x40)), Some(1), "a child that it forked");
        assert_eq!(runs(made.task(0x1000, 0x3000, (9, 7), 500, 0)), Some(0), "a thread");
        assert_eq!(runs(0xffff_ffff_8260_0000), None, "the idle task");
    }

    #[test]
    fn what_the_kernel_does_meanwhile_is_nobody_s_and_is_looked_at_after_it() {
        let made = Made::new("whose-kernel");
        let memory = GuestMemory::open(&made.files, LAYOUT).unwrap();
        let mut whose = Whose::new(memory, 500..501);
        whose.switch(made.task(0x1000, 0x2000, (7, 7), 500, 0x40));
        whose.block(false);
        assert_eq!(whose.process(), None);
        // It begins a program without a switch in between.
        whose.block(true);
        made.task(0x1000, 0x3000, (7, 7), 500, 0);
        assert_eq!(whose.process(), None, "the kernel's own");
        whose.block(false);
        assert_eq!(whose.process(), Some(0));
    }
}
