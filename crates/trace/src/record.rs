//! The two kinds of record a trace holds: accesses, by the million, and the rare events between them.
//!
//! In: nothing. Out: [`Access`] (16 bytes, so that a batch of 2048 fits the first two cache levels) and [`Event`].
//! Must not: interpret. What an access costs and what a birth means, the simulator decides.

use terrace_core::units::{PageId, Time};

/// A thread of the traced program, numbered from 0 in order of appearance; the map keeps the original number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ThreadId(pub u16);

/// Cache lines in a page: 4096 / 64.
pub const LINES_PER_PAGE: u8 = 64;

/// One access to one page.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Access {
    /// Bit 0: write. Bits 1 to 6: the cache line within the page. Bits 7 and up: nanoseconds.
    /// Packed, because time needs 57 bits at most (4.5 years) and 16 bytes an access copy faster than 24.
    packed: u64,
    page: u32,
    thread: u16,
    latency: u16,
}

const TIME_SHIFT: u32 = 7;

impl Access {
    /// The latest time an access can carry: 2^57 - 1 ns, four and a half years after the trace began.
    pub const LAST_TIME: Time = Time::from_nanos((1 << (64 - TIME_SHIFT)) - 1);

    /// A read of `page`, at time zero, by thread 0, of the page's first line.
    pub const fn read(page: PageId) -> Access {
        Access { packed: 0, page: page.0, thread: 0, latency: 0 }
    }

    /// A write to `page`, at time zero, by thread 0, of the page's first line.
    pub const fn write(page: PageId) -> Access {
        Access { packed: 1, page: page.0, thread: 0, latency: 0 }
    }

    /// The same access at `time`; later than [`Access::LAST_TIME`] counts as that.
    pub const fn at(self, time: Time) -> Access {
        let nanos =
            if time.as_nanos() > Access::LAST_TIME.as_nanos() { Access::LAST_TIME.as_nanos() } else { time.as_nanos() };
        Access { packed: (self.packed & ((1 << TIME_SHIFT) - 1)) | (nanos << TIME_SHIFT), ..self }
    }

    /// The same access by `thread`.
    pub const fn by(self, thread: ThreadId) -> Access {
        Access { thread: thread.0, ..self }
    }

    /// The same access to another page.
    pub const fn of_page(self, page: PageId) -> Access {
        Access { page: page.0, ..self }
    }

    /// The same access to the cache line `line` (0 to 63; only the low six bits count) of the page.
    pub const fn on_line(self, line: u8) -> Access {
        let line = (line & (LINES_PER_PAGE - 1)) as u64;
        Access { packed: (self.packed & !(63 << 1)) | (line << 1), ..self }
    }

    /// The same access with a measured latency, in the unit the header names; more than 65535 counts as that.
    pub const fn taking(self, latency: u32) -> Access {
        Access { latency: if latency > u16::MAX as u32 { u16::MAX } else { latency as u16 }, ..self }
    }

    /// When it happened, since the trace began. Zero where the trace keeps no time.
    pub const fn time(&self) -> Time {
        Time::from_nanos(self.packed >> TIME_SHIFT)
    }

    /// The page touched.
    pub const fn page(&self) -> PageId {
        PageId(self.page)
    }

    /// The thread that touched it.
    pub const fn thread(&self) -> ThreadId {
        ThreadId(self.thread)
    }

    /// The cache line within the page, 0 to 63. Zero where the trace keeps no lines.
    pub const fn line(&self) -> u8 {
        (self.packed >> 1) as u8 & (LINES_PER_PAGE - 1)
    }

    /// The cache line's number over the whole trace: 64 lines a page. What a cache filter indexes by.
    pub const fn line_number(&self) -> u64 {
        ((self.page as u64) << 6) | self.line() as u64
    }

    /// Whether it was a write.
    pub const fn is_write(&self) -> bool {
        self.packed & 1 != 0
    }

    /// Measured latency in the header's unit; 0 where it was not measured.
    pub const fn latency(&self) -> u16 {
        self.latency
    }

    pub(crate) const fn from_parts(page: u32, line_and_write: u64) -> Access {
        Access { packed: line_and_write, page, thread: 0, latency: 0 }
    }

    pub(crate) const fn set_thread(&mut self, thread: u16) {
        self.thread = thread;
    }

    pub(crate) const fn set_latency(&mut self, latency: u16) {
        self.latency = latency;
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_write() { 'W' } else { 'R' };
        let (time, page, line, thread) = (self.time().as_nanos(), self.page, self.line(), self.thread);
        write!(out, "{kind} page {page} line {line} thread {thread} at {time} ns latency {}", self.latency)
    }
}

/// Something other than an access, in its place among the accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Event {
    /// When, since the trace began.
    pub time: Time,
    /// What.
    pub change: Change,
}

/// What happened to pages, or to the way they were seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Pages were mapped. A page that is accessed without a birth is born by its first access.
    Born(Pages),
    /// Pages were given back; an access after that is a new birth.
    Gone(Pages),
    /// Pages are mapped by 2 MiB entries from here on.
    Huge(Pages),
    /// Pages are mapped by 4 KiB entries from here on.
    Split(Pages),
    /// In a regional trace: the number of checks in one aggregation interval that found the region accessed.
    Region {
        /// The region's pages.
        pages: Pages,
        /// Checks that found it accessed.
        accesses: u32,
        /// Aggregation intervals for which that has been so; 0 where the source does not say.
        age: u32,
    },
    /// In a sampled trace: from here on each access stands for this many of its kind.
    Period(u64),
}

/// Consecutive pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Pages {
    /// The first.
    pub first: PageId,
    /// How many.
    pub count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packed_parts_do_not_touch_each_other() {
        let plain =
            Access::write(PageId(u32::MAX)).on_line(63).at(Access::LAST_TIME).by(ThreadId(u16::MAX)).taking(70_000);
        assert_eq!((plain.page(), plain.line(), plain.is_write()), (PageId(u32::MAX), 63, true));
        assert_eq!((plain.time(), plain.thread(), plain.latency()), (Access::LAST_TIME, ThreadId(u16::MAX), u16::MAX));
        let moved = plain.on_line(0).at(Time::ZERO);
        assert_eq!((moved.line(), moved.time(), moved.is_write()), (0, Time::ZERO, true));
        assert_eq!(Access::read(PageId(3)).at(Time::FAR_FUTURE).time(), Access::LAST_TIME);
        assert_eq!(Access::read(PageId(3)).on_line(5).line_number(), 3 * 64 + 5);
        assert_eq!(size_of::<Access>(), 16);
    }
}
