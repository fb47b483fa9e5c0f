//! Processors: how busy all of them were, how long someone waited for one, and what the kernel's reclaim took.
//!
//! In: /proc/stat, /proc/pressure/cpu, /proc/PID/stat of kswapd. Out: [`ProcessorUse`], sums since boot. Must not: judge it.

use std::path::Path;
use std::time::Duration;

use crate::pressure::stall;

/// Sums since boot; two readings make a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessorUse {
    /// Processor time spent on anything, over all processors (proc_stat(5): all but idle, iowait and what hypervisors took).
    pub busy: Duration,
    /// Time in which some task that could have run waited for a processor (Documentation/accounting/psi.rst, cpu, some); `None` where
    /// the kernel does not count it (booted without psi=1).
    pub waited: Option<Duration>,
    /// Processor time of the kernel's reclaim threads that were asked for; none where the kernel does not list a thread's children (CONFIG_PROC_CHILDREN),
    /// which distributions' kernels do.
    pub reclaim: Duration,
    /// Processors that are online; no sum.
    pub online: u32,
}

impl ProcessorUse {
    /// Reads them, with these reclaim threads, see [`reclaim_threads`]. `None` if /proc/stat does not say.
    pub fn read(root: &Path, reclaim: &[u32]) -> Option<ProcessorUse> {
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        let text = std::fs::read_to_string(root.join("proc/stat")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let fields: Vec<u64> = line.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq; guests' time is within user and nice.
        let [user, nice, system, _, _, irq, softirq] = *fields.first_chunk::<7>()?;
        let seconds = |ticks: u64| Duration::from_secs_f64(ticks as f64 / hertz);
        let waited = std::fs::read_to_string(root.join("proc/pressure/cpu")).ok();
        let waited = waited.and_then(|text| stall(&text, "some", "total=")).map(Duration::from_micros);
        let reclaim = seconds(reclaim.iter().filter_map(|pid| thread(root, *pid)).map(|(_, ticks)| ticks).sum());
        let each = text.lines().filter(|line| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' ')));
        let online = each.count().max(1) as u32;
        Some(ProcessorUse { busy: seconds(user + nice + system + irq + softirq), waited, reclaim, online })
    }

    /// What changed since an earlier reading.
    #[must_use]
    pub fn since(&self, before: &ProcessorUse) -> ProcessorUse {
        ProcessorUse {
            busy: self.busy.saturating_sub(before.busy),
            waited: self.waited.zip(before.waited).map(|(now, before)| now.saturating_sub(before)),
            reclaim: self.reclaim.saturating_sub(before.reclaim),
            online: self.online,
        }
    }
}

/// Threads of a process that are asked how long they waited: each is a file, 15 us to read.
const MOST_THREADS: usize = 64;

/// How long the threads of a process waited for a processor while they could have run (second number of /proc/PID/task/TID/schedstat,
/// Documentation/scheduler/sched-stats.rst), of the first `MOST_THREADS`. `None` where the kernel does not count it, or the process is gone.
pub fn waited(root: &Path, pid: u32) -> Option<Duration> {
    let tasks = std::fs::read_dir(root.join(format!("proc/{pid}/task"))).ok()?;
    let waited = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let each = tasks.flatten().take(MOST_THREADS).filter_map(waited);
    each.reduce(|sum, one| sum + one).map(Duration::from_nanos)
}

/// The kernel's reclaim threads, one a node: children of kthreadd, which is pid 2. Looking for them reads a file for each thread of the
/// kernel, so it is done once.
pub fn reclaim_threads(root: &Path) -> Vec<u32> {
    let children = std::fs::read_to_string(root.join("proc/2/task/2/children")).unwrap_or_default();
    let pids = children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| thread(root, *pid).is_some_and(|(name, _)| name.starts_with("kswapd"))).collect()
}

/// Name of a thread, and its processor time in ticks.
fn thread(root: &Path, pid: u32) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
    let (name, rest) = stat.rsplit_once(") ")?;
    // proc_pid_stat(5): utime and stime are fields 14 and 15, the state behind the name is field 3.
    let mut fields = rest.split_ascii_whitespace().skip(11).map_while(|field| field.parse::<u64>().ok());
    Some((name.split_once('(')?.1.to_owned(), fields.next()? + fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    const STAT: &str = "cpu  100 20 30 4000 50 6 7 80 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";

    #[test]
    fn all_figures_are_read() {
        let stat =
            |name: &str, user: u64| format!("7 ({name}) S 2 0 0 0 -1 2129984 0 0 0 0 {user} 3 0 0 20 0 1 0 9 0 0\n");
        let root = tree(&[
            ("proc/stat", STAT),
            ("proc/pressure/cpu", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=1\n"),
            ("proc/2/task/2/children", "3 7 8 "),
            ("proc/3/stat", &stat("kthreadd) x", 1000)),
            ("proc/7/stat", &stat("kswapd0", 40)),
            ("proc/8/stat", &stat("kswapd1", 7)),
        ]);
        let hertz = rustix::param::clock_ticks_per_second() as f64;
        let threads = reclaim_threads(root.path());
        assert_eq!(threads, [7, 8]);
        let found = ProcessorUse::read(root.path(), &threads).unwrap();
        assert_eq!(found.busy, Duration::from_secs_f64(163.0 / hertz));
        assert_eq!(found.waited, Some(Duration::from_millis(2500)));
        assert_eq!(found.online, 1);
        assert_eq!(found.reclaim, Duration::from_secs_f64(53.0 / hertz));
        assert_eq!(ProcessorUse::read(root.path(), &[]).unwrap().reclaim, Duration::ZERO);
        let none = found.since(&found);
        assert_eq!((none.busy, none.waited), (Duration::ZERO, Some(Duration::ZERO)));
    }

    #[test]
    fn the_waits_of_all_threads_are_added_up() {
        let root = tree(&[
            ("proc/9/task/9/schedstat", "1000 250 7\n"),
            ("proc/9/task/10/schedstat", "1000 750 7\n"),
            ("proc/9/task/11/schedstat", "nonsense\n"),
        ]);
        assert_eq!(waited(root.path(), 9), Some(Duration::from_nanos(1000)));
        assert_eq!(waited(root.path(), 10), None, "gone");
    }

    #[test]
    fn without_pressure_the_rest_is_read_and_without_stat_nothing() {
        let root = tree(&[("proc/stat", STAT)]);
        let found = ProcessorUse::read(root.path(), &reclaim_threads(root.path())).unwrap();
        assert_eq!((found.waited, found.reclaim), (None, Duration::ZERO));
        assert_eq!(ProcessorUse::read(&root.path().join("nowhere"), &[]), None);
    }
}
