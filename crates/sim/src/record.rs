//! What the inner loop reads of an access, whatever source it comes from.
//!
//! In: the sources' own records. Out: page, line, kind, thread, compute. Must not: copy or convert batches: each source
//! gets an inner loop of its own by monomorphisation.

use terrace_machine::load::Wait;

/// One access.
pub trait Record: Copy {
    /// Virtual page number, in the source's own numbering.
    fn page(&self) -> u64;
    /// Cache line within the page, 0 to 63.
    fn line(&self) -> u32;
    /// How it waits: load, dependent load, store.
    fn wait(&self) -> Wait;
    /// The logical thread.
    fn thread(&self) -> usize;
    /// Core cycles computed before it.
    fn cycles(&self) -> u32;
}

/// An access that is kept: in a core's queue, or on a tape. Sixteen bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    page: u64,
    cycles: u32,
    thread: u16,
    line: u8,
    wait: Wait,
}

impl Stored {
    /// An access of a thread to a page; the thread computed `cycles` before it.
    #[inline(always)]
    pub const fn new(page: u64, line: u8, wait: Wait, thread: u16, cycles: u32) -> Stored {
        Stored { page, line: line & 63, wait, thread, cycles }
    }
}

impl Record for Stored {
    #[inline(always)]
    fn page(&self) -> u64 {
        self.page
    }
    #[inline(always)]
    fn line(&self) -> u32 {
        u32::from(self.line)
    }
    #[inline(always)]
    fn wait(&self) -> Wait {
        self.wait
    }
    #[inline(always)]
    fn thread(&self) -> usize {
        usize::from(self.thread)
    }
    #[inline(always)]
    fn cycles(&self) -> u32 {
        self.cycles
    }
}

impl Record for terrace_workloads::Access {
    #[inline(always)]
    fn page(&self) -> u64 {
        self.address >> 12
    }
    #[inline(always)]
    fn line(&self) -> u32 {
        (self.address >> 6) as u32 & 63
    }
    #[inline(always)]
    fn wait(&self) -> Wait {
        if self.is_write() {
            Wait::Store
        } else if self.is_dependent() {
            Wait::Dependent
        } else {
            Wait::Load
        }
    }
    #[inline(always)]
    fn thread(&self) -> usize {
        usize::from(self.thread)
    }
    #[inline(always)]
    fn cycles(&self) -> u32 {
        self.compute_cycles
    }
}

impl Record for terrace_trace::Access {
    #[inline(always)]
    fn page(&self) -> u64 {
        u64::from(terrace_trace::Access::page(self).0)
    }
    #[inline(always)]
    fn line(&self) -> u32 {
        u32::from(terrace_trace::Access::line(self))
    }
    #[inline(always)]
    fn wait(&self) -> Wait {
        if self.is_write() { Wait::Store } else { Wait::Load }
    }
    #[inline(always)]
    fn thread(&self) -> usize {
        usize::from(terrace_trace::Access::thread(self).0)
    }
    #[inline(always)]
    fn cycles(&self) -> u32 {
        0
    }
}

/// A bare page number: a load by thread 0. The leanest trace there is.
impl Record for u32 {
    #[inline(always)]
    fn page(&self) -> u64 {
        u64::from(*self)
    }
    #[inline(always)]
    fn line(&self) -> u32 {
        0
    }
    #[inline(always)]
    fn wait(&self) -> Wait {
        Wait::Load
    }
    #[inline(always)]
    fn thread(&self) -> usize {
        0
    }
    #[inline(always)]
    fn cycles(&self) -> u32 {
        0
    }
}
