//! What the kernel counts of the programs themselves: instructions retired, and how their time was spent.
//!
//! In: the processes under management. Out: sums that only grow, see [`Counters`]. Must not: judge them, or count a process twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use perf_event_open_sys::bindings::{
    PERF_COUNT_HW_INSTRUCTIONS, PERF_FORMAT_TOTAL_TIME_ENABLED, PERF_FORMAT_TOTAL_TIME_RUNNING, PERF_TYPE_HARDWARE,
    perf_event_attr,
};

use crate::process::Process;
use crate::processors;
use crate::sys::perf;

/// Processes that are read: each is some files, 15 us each. Of more, the first ones stand for all.
const MOST_READ: usize = 64;
/// Threads on which a counter is opened; those that they start inherit it.
const MOST_THREADS: usize = 1024;

/// Sums over all processes since they are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Instructions, scaled up where the counter was shared.
    pub instructions: f64,
    /// Seconds in the programs' own code.
    pub user_seconds: f64,
    /// Seconds in which they ran in the kernel, or could have run and waited for a processor.
    pub other_seconds: f64,
}

/// What of it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Instructions.
    Instructions,
    /// How their time was spent.
    Time,
}

/// Counts the processes of a run.
#[derive(Debug)]
pub struct OwnCounter {
    counted: Counted,
    events: Vec<File>,
    /// Processes whose threads have a counter of their own or inherited one.
    covered: BTreeSet<u32>,
    /// The last reading of each process, so that one that ends takes nothing away.
    last: BTreeMap<u32, (f64, f64)>,
    sums: Counters,
}

/// Why instructions cannot be counted, in one line.
#[derive(Debug, thiserror::Error)]
pub enum Uncounted {
    /// The machine has no counter.
    #[error(
        "this machine counts no instructions (a virtual machine without a vPMU?); use cpu or a metric of the program"
    )]
    Machine,
    /// This process may not use it.
    #[error("counting instructions is not allowed: needs CAP_PERFMON, or sysctl kernel.perf_event_paranoid=2 or less")]
    Rights,
    /// The kernel refuses it.
    #[error("instructions cannot be counted: {0}")]
    Call(io::Error),
}

/// Whether this machine counts instructions.
///
/// # Errors
/// See [`Uncounted`].
pub fn instructions_work() -> Result<(), Uncounted> {
    match perf::open(&instructions(), std::process::id() as i32, -1) {
        Ok(_) => Ok(()),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => Uncounted::Machine,
            Some(libc::EACCES | libc::EPERM) => Uncounted::Rights,
            _ => Uncounted::Call(error),
        }),
    }
}

fn instructions() -> perf_event_attr {
    let mut attributes =
        perf_event_attr { type_: PERF_TYPE_HARDWARE, config: PERF_COUNT_HW_INSTRUCTIONS.into(), ..Default::default() };
    // The kernel's own instructions are work for the program's memory, not of the program.
    attributes.set_exclude_kernel(1);
    attributes
}

impl OwnCounter {
    /// Counts nothing yet.
    pub fn new(counted: Counted) -> OwnCounter {
        OwnCounter {
            counted,
            events: Vec::new(),
            covered: BTreeSet::new(),
            last: BTreeMap::new(),
            sums: Counters::default(),
        }
    }

    /// Reads these processes.
    ///
    /// # Errors
    /// When the kernel refuses a counter.
    pub fn read<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) -> io::Result<Counters> {
        match self.counted {
            Counted::Time => self.read_time(processes.take(MOST_READ)),
            Counted::Instructions => {
                for process in processes {
                    self.attach(process.pid(), &instructions())?;
                }
                let mut sum = 0.0;
                for event in &mut self.events {
                    sum += scaled(event)?;
                }
                self.sums.instructions = sum;
            }
        }
        Ok(self.sums)
    }

    fn read_time<'a>(&mut self, processes: impl Iterator<Item = &'a Process>) {
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        let mut alive = BTreeMap::new();
        for process in processes {
            let Ok(stat) = process.stat() else { continue };
            let waited = processors::waited(Path::new("/"), process.pid()).unwrap_or_default();
            let now = (stat.user_ticks as f64 / hertz, stat.system_ticks as f64 / hertz + waited.as_secs_f64());
            // What a process did before it was first seen belongs to no window; waits of threads that ended are taken back.
            let before = self.last.get(&process.pid()).copied().unwrap_or(now);
            self.sums.user_seconds += (now.0 - before.0).max(0.0);
            self.sums.other_seconds += (now.1 - before.1).max(0.0);
            alive.insert(process.pid(), now);
        }
        self.last = alive;
    }

    /// Opens a counter on each thread of a process, unless one that is counted started it.
    fn attach(&mut self, pid: u32, attributes: &perf_event_attr) -> io::Result<()> {
        if !self.covered.insert(pid) || parent(pid).is_some_and(|parent| self.covered.contains(&parent)) {
            return Ok(());
        }
        let mut attributes = *attributes;
        attributes.read_format = u64::from(PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING);
        attributes.set_inherit(1);
        let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Ok(()) };
        let tids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
        for tid in tids.take(MOST_THREADS) {
            match perf::open(&attributes, tid, -1) {
                Ok(event) => self.events.push(File::from(event)),
                // It ended in the meantime.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A counter's value over all the time it was enabled (perf_event_open(2): value, time enabled, time running).
fn scaled(event: &mut File) -> io::Result<f64> {
    let mut bytes = [0; 24];
    event.read_exact(&mut bytes)?;
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_ne_bytes(word) as f64
    };
    let (value, enabled, running) = (word(0), word(8), word(16));
    Ok(if running > 0.0 { value * enabled / running } else { 0.0 })
}

/// The parent of a process (proc_pid_stat(5), field 4).
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use perf_event_open_sys::bindings::{PERF_COUNT_SW_TASK_CLOCK, PERF_TYPE_SOFTWARE};

    use super::*;
    use crate::process::Process;

    fn spin(milliseconds: u128) {
        let began = std::time::Instant::now();
        let mut sum = 0u64;
        while began.elapsed().as_millis() < milliseconds {
            sum = std::hint::black_box(sum.wrapping_mul(3).wrapping_add(1));
        }
    }

    #[test]
    fn time_in_the_programs_own_code_is_told_from_the_kernels() {
        let own = Process::open(std::process::id()).unwrap();
        let mut counter = OwnCounter::new(Counted::Time);
        let first = counter.read(std::iter::once(&own)).unwrap();
        assert_eq!(first, Counters::default(), "what was before belongs to no window");
        spin(300);
        let then = counter.read(std::iter::once(&own)).unwrap();
        assert!(then.user_seconds > 0.05, "{then:?}");
        let gone = counter.read(std::iter::empty()).unwrap();
        assert_eq!(gone, then, "a process that ends takes nothing away");
    }

    #[test]
    fn a_counter_of_the_kernel_counts_what_a_thread_does() {
        // The same way with an event that every machine has: nanoseconds on a processor.
        let attributes = perf_event_attr {
            type_: PERF_TYPE_SOFTWARE,
            config: PERF_COUNT_SW_TASK_CLOCK.into(),
            ..Default::default()
        };
        let mut counter = OwnCounter::new(Counted::Instructions);
        if let Err(error) = counter.attach(std::process::id(), &attributes) {
            assert!(matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)), "{error}");
            println!("SKIPPED: perf events are not allowed here");
            return;
        }
        spin(50);
        let sum: f64 = counter.events.iter_mut().map(|event| scaled(event).unwrap()).sum();
        assert!(sum > 1e6, "{sum} ns");
    }

    #[test]
    fn a_machine_without_the_counter_says_what_to_use() {
        if let Err(why) = instructions_work().map_err(|why| why.to_string()) {
            assert!(why.contains("instructions") && !why.contains('\n'), "{why}");
        }
    }
}
