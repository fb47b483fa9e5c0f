//! The mover on the processor of the program's one busy thread, where its page-outs interrupt nobody.
//!
//! In: a process. Out: this thread on the processor that the process's only running thread uses, for as long as the value lives. Must not: stay
//! there, or fail a move where the kernel refuses.
//!
//! The kernel flushes the TLBs of all processors that have the program's address space loaded before it writes a dirty folio. From another
//! processor that is an interrupt for every folio, and the mover waits for its end. On the program's own processor nobody else has the
//! address space loaded: the program waits for the mover's time and fills its TLB again once a call. Measured: a page costs the program
//! 4.2 us instead of 6.4, and the mover 4 instead of 13 (docs/block-moves.md). With several running threads nothing is won.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::process::Process;

/// With more threads than this the one that runs is not looked for: each costs a file to read, some 5 us.
const MOST_THREADS: usize = 32;

/// Which thread of a process ran when somebody looked last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BusyThread {
    /// Of which process, and which of its threads.
    known: Option<(u32, u32)>,
}

/// The calling thread on another processor, until it is dropped.
#[derive(Debug)]
pub(super) struct SameProcessor {
    before: CpuSet,
}

/// State and processor of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    tid: u32,
    runs: bool,
    processor: usize,
}

impl BusyThread {
    /// Moves the calling thread to the processor of the process's busy thread. `None` where there is no single one, the process is this one, or
    /// the kernel refuses: the pages then go from where the mover is.
    pub(super) fn join(&mut self, process: &Process) -> Option<SameProcessor> {
        if process.pid() == std::process::id() {
            return None;
        }
        let processor = self.processor(&threads(Path::new("/"), process.pid())?, process.pid())?;
        let before = sched_getaffinity(None).ok()?;
        let mut there = CpuSet::new();
        if processor >= CpuSet::MAX_CPU {
            return None;
        }
        there.set(processor);
        sched_setaffinity(None, &there).ok().map(|()| SameProcessor { before })
    }

    /// The processor of the only thread that runs; where none does at this moment, of the one that did when somebody looked last.
    fn processor(&mut self, threads: &[Thread], pid: u32) -> Option<usize> {
        let mut running = threads.iter().filter(|thread| thread.runs);
        let found = match (running.next(), running.next()) {
            (Some(only), None) => Some(only),
            (None, _) => threads.iter().find(|thread| self.known == Some((pid, thread.tid))),
            (Some(_), Some(_)) => None,
        };
        self.known = found.map(|thread| (pid, thread.tid));
        found.map(|thread| thread.processor)
    }
}

impl Drop for SameProcessor {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.before) {
            tracing::warn!("Terrace's own thread stays on the processor of the program: {error}");
        }
    }
}

/// The threads of a process; `None` where it is gone or has too many.
fn threads(root: &Path, pid: u32) -> Option<Vec<Thread>> {
    let tasks = std::fs::read_dir(root.join(format!("proc/{pid}/task"))).ok()?;
    let mut threads = Vec::new();
    for task in tasks.flatten() {
        if threads.len() == MOST_THREADS {
            return None;
        }
        // A thread that ended meanwhile does not run.
        threads.extend(thread(&task.path()));
    }
    Some(threads)
}

fn thread(task: &Path) -> Option<Thread> {
    let tid = task.file_name()?.to_str()?.parse().ok()?;
    let stat = std::fs::read_to_string(task.join("stat")).ok()?;
    // proc_pid_stat(5): behind the name in parentheses the state is field 3 and the processor field 39.
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    let runs = fields.next()? == "R";
    Some(Thread { tid, runs, processor: fields.nth(35)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    const fn thread(tid: u32, runs: bool, processor: usize) -> Thread {
        Thread { tid, runs, processor }
    }

    #[test]
    fn the_only_running_thread_says_where() {
        let mut busy = BusyThread::default();
        assert_eq!(busy.processor(&[thread(7, false, 0), thread(8, true, 1)], 7), Some(1));
        // It sleeps for a moment, and was elsewhere before.
        assert_eq!(busy.processor(&[thread(7, false, 0), thread(8, false, 0)], 7), Some(0));
        assert_eq!(busy.processor(&[thread(7, true, 0), thread(8, true, 1)], 7), None, "two run");
        assert_eq!(busy.processor(&[thread(7, false, 0), thread(8, false, 1)], 7), None, "and none is known any more");
        busy.processor(&[thread(8, true, 1)], 7);
        assert_eq!(busy.processor(&[thread(8, false, 1)], 9), None, "another process");
    }

    #[test]
    fn state_and_processor_are_read_whatever_the_name_is() {
        let stat = |state: char, processor: u32| {
            format!("8 (a) R 9 (x) {state} {} {processor} 0 0\n", vec!["1"; 35].join(" "))
        };
        let root = tree(&[("proc/7/task/7/stat", &stat('S', 3)), ("proc/7/task/8/stat", &stat('R', 5))]);
        let mut found = threads(root.path(), 7).unwrap();
        found.sort_by_key(|thread| thread.tid);
        assert_eq!(found, [thread(7, false, 3), thread(8, true, 5)]);
        assert_eq!(threads(root.path(), 9), None, "gone");
    }

    #[test]
    fn the_mover_goes_to_the_programs_processor_and_comes_back() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let before = sched_getaffinity(None).unwrap();
        let mut busy = BusyThread::default();
        let joined = (0..100).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            busy.join(&process)
        });
        assert!(joined.is_some(), "a thread that always runs is found");
        assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
        drop(joined);
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_own_process_is_left_alone() {
        let me = Process::open(std::process::id()).unwrap();
        assert!(BusyThread::default().join(&me).is_none());
    }
}
