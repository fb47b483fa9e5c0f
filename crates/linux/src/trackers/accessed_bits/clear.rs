//! Clears accessed bits of another process.
//!
//! In: stretches of its memory. Out: which of them the kernel cleared. Must not: split a huge page, or hold up the
//! target for long.
//!
//! Two ways. `process_madvise(MADV_COLD)` clears chosen stretches under the lock for reading and flushes the TLB; it
//! skips pages that several processes map, which therefore look used for ever, and it would split a huge page of
//! which it is given a part, so stretches are whole blocks wherever the range has them whole. Writing 1 to
//! /proc/PID/clear_refs clears the whole process under the lock for writing: the way out where the first is refused.

use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::process::Process;
use crate::sys::{self, RemoteRange};

/// A call takes at most this many ranges (UIO_MAXIOV).
const RANGES_A_CALL: usize = 1024;
/// And this many bytes here: at 40 to 140 ns a page a call then holds the target's lock for 1 to 2 ms.
const BYTES_A_CALL: usize = 64 << 20;

/// How a process's bits are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clearing {
    /// By stretches.
    Cold,
    /// The whole process at once.
    ClearRefs,
}

/// What became of a list of stretches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cleared {
    /// All were dealt with; those that could not be cleared were named.
    Done,
    /// The process is gone.
    Gone,
    /// This kernel or these rights do not allow it at all.
    Refused,
}

/// Clears `stretches` in order; `failed` receives the index of each one that the kernel does not clear.
pub(super) fn cold(
    pidfd: BorrowedFd<'_>,
    stretches: &[RemoteRange],
    mut failed: impl FnMut(usize),
) -> std::io::Result<Cleared> {
    let mut at = 0;
    while at < stretches.len() {
        let batch = batch_length(&stretches[at..]);
        match sys::process_madvise(pidfd, &stretches[at..at + batch], libc::MADV_COLD) {
            // The kernel stops at the first stretch it does not like and tells how far it came; asked again from
            // there, it says what was wrong.
            Ok(bytes) => {
                let advised = whole_stretches(&stretches[at..at + batch], bytes);
                at += advised;
                if advised == 0 {
                    failed(at);
                    at += 1;
                }
            }
            Err(error) => match error.raw_os_error() {
                // A hole in the first stretch: what is mapped of it was cleared.
                Some(libc::ENOMEM) => at += 1,
                Some(libc::EINTR | libc::EAGAIN) => {}
                Some(libc::ESRCH) => return Ok(Cleared::Gone),
                Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => return Ok(Cleared::Refused),
                // Locked memory, device memory: nothing that is managed.
                Some(libc::EINVAL) => {
                    failed(at);
                    at += 1;
                }
                _ => return Err(error),
            },
        }
    }
    Ok(Cleared::Done)
}

/// Clears all of a process.
pub(super) fn clear_refs(process: &Process) -> std::io::Result<Cleared> {
    match terrace_files::set(Path::new(&format!("/proc/{}/clear_refs", process.pid())), "1") {
        Ok(()) => Ok(Cleared::Done),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => Ok(Cleared::Gone),
            // The file of a process whose memory is gone, and which has not ended yet, belongs to root (proc(5), dumpable).
            Some(libc::EACCES | libc::EPERM) if !process.has_memory() => Ok(Cleared::Gone),
            Some(libc::EACCES | libc::EPERM) => Ok(Cleared::Refused),
            _ => Err(error),
        },
    }
}

/// How many of the next stretches go into one call: at least one, at most 64 MiB or 1024.
fn batch_length(stretches: &[RemoteRange]) -> usize {
    let mut bytes = 0;
    let fits = stretches.iter().take(RANGES_A_CALL).take_while(|stretch| {
        bytes += stretch.length;
        bytes <= BYTES_A_CALL
    });
    fits.count().max(1)
}

/// How many stretches `bytes` cover in full.
fn whole_stretches(stretches: &[RemoteRange], mut bytes: usize) -> usize {
    let covered = stretches.iter().take_while(|stretch| {
        let whole = stretch.length <= bytes;
        bytes = bytes.saturating_sub(stretch.length);
        whole
    });
    covered.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretches(mib: &[usize]) -> Vec<RemoteRange> {
        mib.iter().map(|mib| RemoteRange { address: 0, length: mib << 20 }).collect()
    }

    #[test]
    fn batches_stay_within_bytes_and_count() {
        assert_eq!(batch_length(&stretches(&[32, 32, 2])), 2);
        assert_eq!(batch_length(&stretches(&[128, 2])), 1, "a long one goes alone");
        assert_eq!(batch_length(&vec![RemoteRange { address: 0, length: 4096 }; 3000]), RANGES_A_CALL);
    }

    #[test]
    fn a_part_of_a_stretch_does_not_count() {
        assert_eq!(whole_stretches(&stretches(&[2, 2, 2]), 5 << 20), 2);
        assert_eq!(whole_stretches(&stretches(&[2]), 1 << 20), 0);
        assert_eq!(whole_stretches(&stretches(&[2, 4]), 6 << 20), 2);
    }

    /// Says something where the tests run as an ordinary user: root may write to every file.
    #[test]
    fn a_process_without_memory_refuses_nothing() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        while process.has_memory() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_ne!(clear_refs(&process).unwrap(), Cleared::Refused);
        child.wait().unwrap();
    }

    #[test]
    fn holes_are_passed_over_and_the_rest_is_cleared() {
        let memory = sys::private_memory::PrivateMemory::map(4).unwrap();
        let me = Process::open(std::process::id()).unwrap();
        // Address 4096 is below what may be mapped: a hole.
        let hole = RemoteRange { address: 4096, length: 4096 };
        let whole = RemoteRange { address: memory.address() as usize, length: 4 * 4096 };
        let mut failed = Vec::new();
        let outcome = cold(me.pidfd(), &[whole, hole, whole], |index| failed.push(index)).unwrap();
        assert_eq!((outcome, failed.as_slice()), (Cleared::Done, [].as_slice()));
    }
}
