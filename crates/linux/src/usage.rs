//! What this process and its children used: CPU time and memory.
//!
//! In: whose use. Out: seconds and bytes from getrusage(2) and clock_gettime(2). Must not: estimate.

use std::time::Duration;

use terrace_core::units::Bytes;

use crate::sys;

/// Whose use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// This process, all threads.
    Myself,
    /// Children that exited and were waited for, and theirs.
    WaitedChildren,
}

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time in user mode, seconds.
    pub user_seconds: f64,
    /// CPU time in the kernel, seconds.
    pub system_seconds: f64,
    /// Highest resident memory; of children, that of the largest.
    pub max_rss_bytes: u64,
}

/// Reads what was used so far.
pub fn usage(who: Who) -> Usage {
    let (user, system, max_rss_kib) = sys::resource_usage(who == Who::WaitedChildren);
    Usage {
        user_seconds: user.as_secs_f64(),
        system_seconds: system.as_secs_f64(),
        max_rss_bytes: Bytes::kib(max_rss_kib).get(),
    }
}

/// Processor time of this thread so far.
pub(crate) fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Holds this process's memory in fast memory, what it uses later as well: a manager that waits for its own memory to come
/// back from the slow tier would stall on what it manages. Only what is touched is held, not the whole of every stack.
///
/// # Errors
/// Without CAP_IPC_LOCK, when RLIMIT_MEMLOCK is too small.
pub fn lock_own_memory() -> std::io::Result<()> {
    use rustix::mm::{MlockAllFlags, mlockall};
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT).map_err(Into::into)
}

/// Lets go of it for a while: trackers are proven on memory of this process, and locked memory can be neither marked as cold nor
/// paged out (madvise(2), EINVAL).
///
/// # Errors
/// When the kernel refuses.
pub fn unlock_own_memory() -> std::io::Result<()> {
    rustix::mm::munlockall().map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_as_cpu_time_and_memory_as_resident() {
        let before = usage(Who::Myself);
        let memory = vec![1u8; 32 << 20];
        let sum: u64 =
            (0..4).map(|_| memory.iter().map(|&byte| u64::from(std::hint::black_box(byte))).sum::<u64>()).sum();
        let after = usage(Who::Myself);
        assert!(sum > 0 && after.user_seconds + after.system_seconds > before.user_seconds + before.system_seconds);
        assert!(after.max_rss_bytes >= 32 << 20);
    }
}
