//! Page-outs at the lowest priority: their processor time is then what the programs leave over.
//!
//! In: nothing. Out: a thread at nice 19 for as long as the value lives. Must not: stay lowered, or fail a move where the kernel refuses.

use rustix::process::{getpriority_process, setpriority_process};

/// The lowest priority there is (setpriority(2)): next to one busy thread of nice 0 such a thread gets 15 of 1039 parts of a processor.
const LOWEST: i32 = 19;

/// Lowers the calling thread until it is dropped. On Linux a nice value belongs to a thread (setpriority(2), C library/kernel differences).
#[derive(Debug)]
pub(super) struct LowPriority {
    before: Option<i32>,
}

impl LowPriority {
    /// Lowers the calling thread. A refusal leaves it as it is: the move costs more then, and the account shows it.
    pub(super) fn enter() -> LowPriority {
        let before = getpriority_process(None).ok().filter(|before| *before < LOWEST);
        LowPriority { before: before.filter(|_| setpriority_process(None, LOWEST).is_ok()) }
    }
}

impl Drop for LowPriority {
    fn drop(&mut self) {
        if let Some(before) = self.before
            && let Err(error) = setpriority_process(None, before)
        {
            tracing::warn!("the priority of Terrace's own thread stays at nice {LOWEST}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_has_its_priority_again_afterwards() {
        // A thread of its own: where raising a priority is not permitted, no other test is to run lowered.
        std::thread::spawn(|| {
            let before = getpriority_process(None).unwrap();
            let lowered = LowPriority::enter();
            assert_eq!(getpriority_process(None).unwrap(), LOWEST);
            drop(lowered);
            let after = getpriority_process(None).unwrap();
            let permitted = rustix::process::geteuid().is_root();
            assert_eq!(after, if permitted { before } else { LOWEST });
        })
        .join()
        .unwrap();
    }
}
