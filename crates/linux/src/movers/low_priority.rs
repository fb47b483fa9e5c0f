//! Page-outs at the lowest priority: their processor time is then what the programs leave over.
//!
//! In: nothing. Out: a thread at nice 19 for as long as the value lives, where it can come back from there. Must not: stay lowered, or fail a
//! move where the kernel refuses.
//!
//! Who lowers a thread may not always raise it again: that takes CAP_SYS_NICE, or a limit on nice values that is high enough (setpriority(2)). A
//! thread that is tried and thrown away says so, whatever gives or takes the right here (capabilities, a user namespace, a limit, a filter).

use std::sync::Mutex;

use rustix::process::{getpriority_process, setpriority_process};

/// The lowest priority there is (setpriority(2)): next to one busy thread of nice 0 such a thread gets 15 of 1039 parts of a processor.
const LOWEST: i32 = 19;

/// The nice value from which it was last tried whether a thread comes back, and whether it did.
static TRIED: Mutex<Option<(i32, bool)>> = Mutex::new(None);

/// Lowers the calling thread until it is dropped. On Linux a nice value belongs to a thread (setpriority(2), C library/kernel differences).
#[derive(Debug)]
pub(super) struct LowPriority {
    before: Option<i32>,
}

impl LowPriority {
    /// Lowers the calling thread, if it can be raised again. Otherwise, and where lowering is refused, it stays as it is: the move costs more then, and
    /// the account shows it.
    pub(super) fn enter() -> LowPriority {
        LowPriority::enter_if(comes_back_as_tried)
    }

    fn enter_if(comes_back: impl Fn(i32) -> bool) -> LowPriority {
        let before = getpriority_process(None).ok().filter(|before| *before < LOWEST && comes_back(*before));
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

/// As [`comes_back`], tried once for each nice value.
fn comes_back_as_tried(before: i32) -> bool {
    let mut tried = TRIED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match *tried {
        Some((value, result)) if value == before => result,
        _ => {
            let result = comes_back(before);
            if !result {
                tracing::info!(
                    "pages are paged out at Terrace's usual priority: without CAP_SYS_NICE a thread that is lowered cannot be raised again"
                );
            }
            *tried = Some((before, result));
            result
        }
    }
}

/// Whether a thread of this process's rights is raised from the lowest priority to `before` again. The thread that tries it ends with it.
fn comes_back(before: i32) -> bool {
    let trial = std::thread::Builder::new()
        .name("priority".to_owned())
        .spawn(move || setpriority_process(None, LOWEST).is_ok() && setpriority_process(None, before).is_ok());
    trial.is_ok_and(|thread| thread.join().unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_has_its_priority_again_afterwards() {
        let before = getpriority_process(None).unwrap();
        let lowered = LowPriority::enter();
        let meanwhile = getpriority_process(None).unwrap();
        assert_eq!(meanwhile, if comes_back(before) { LOWEST } else { before });
        drop(lowered);
        assert_eq!(getpriority_process(None).unwrap(), before);
    }

    #[test]
    fn without_the_right_to_come_back_no_thread_is_lowered() {
        // A capability belongs to a thread; the one that gives it up ends with the test. Nobody here has a limit on nice values of his own.
        std::thread::spawn(|| {
            let mut held = rustix::thread::capabilities(None).unwrap();
            held.effective.remove(rustix::thread::CapabilitySet::SYS_NICE);
            rustix::thread::set_capabilities(None, held).unwrap();
            let before = getpriority_process(None).unwrap();
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nice).current.unwrap_or(u64::MAX);
            let allowed = i64::try_from(limit).unwrap_or(40) >= 20 - i64::from(before);
            assert_eq!(comes_back(before), allowed, "limit {limit}, nice {before}");
            let lowered = LowPriority::enter_if(comes_back);
            assert_eq!(getpriority_process(None).unwrap(), if allowed { LOWEST } else { before });
            drop(lowered);
            assert_eq!(getpriority_process(None).unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
