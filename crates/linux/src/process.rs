//! Processes: who they are, beyond doubt, and which of their memory may be managed.
//!
//! In: a pid. Out: a [`Process`] that cannot be confused with a later one of the same pid, and its
//! [`MemoryRange`]s. Must not: offer memory that must not move (device, locked, shared unless asked for).
//!
//! What /proc/PID shows of a process's memory it shows by the first thread. Where that one has ended while others run, its files are empty, and
//! those of another thread are not: every reader goes through [`Process::seen_by`].

mod locked;

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use terrace_core::units::{Bytes, PAGE_BYTES, Vpn};

use self::locked::LockedAreas;
pub(crate) use self::locked::{Area, areas};
pub use self::locked::{Refuses, parse_locked};

/// A process, held by a pidfd and by its start time, so that a pid used again is never taken for it.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    start_time: u64,
    pidfd: OwnedFd,
    /// Whether shared memory was among the ranges it offered last.
    offers_shared: AtomicBool,
    /// The thread by which its memory is seen: the first, until that has ended.
    seen_by: AtomicU32,
    locked: LockedAreas,
}

/// Why a process cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No such process, or it exited in the meantime.
    #[error("process {pid} is gone (or never was): check the pid with `ps -p {pid}`")]
    Gone {
        /// The pid.
        pid: u32,
    },
    /// It belongs to someone else and the rights do not reach.
    #[error("process {pid} is not ours to manage: it needs root, or CAP_SYS_PTRACE")]
    NotPermitted {
        /// The pid.
        pid: u32,
    },
    /// A file of it could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What backs a range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Backing {
    /// Private anonymous memory: heap, stacks, mmap without a file.
    Anonymous,
    /// A private mapping of a file.
    PrivateFile,
    /// Shared memory or a shared file.
    Shared,
}

/// A range of memory that may be managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryRange {
    /// Its first page.
    pub start: Vpn,
    /// The page after its last.
    pub end: Vpn,
    /// What backs it.
    pub backing: Backing,
}

/// An object that processes share: a file of tmpfs, a memfd, a segment of System V, anonymous shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SharedObject {
    /// Major and minor number of its device.
    device: (u32, u32),
    inode: u64,
    /// Segments of System V have their identifier for an inode, which another object of the same device may have as well.
    system_v: bool,
}

/// A shared mapping, and which part of which object it shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMapping {
    /// Its first page.
    pub start: Vpn,
    /// The page after its last.
    pub end: Vpn,
    /// The object.
    pub object: SharedObject,
    /// The page of the object that `start` shows.
    pub first: u64,
}

/// Which ranges are offered for management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RangeOptions {
    /// Private file mappings as well.
    pub files: bool,
    /// Shared memory as well.
    pub shared: bool,
}

impl Process {
    /// Takes hold of a process.
    ///
    /// # Errors
    /// When it is gone or may not be read.
    pub fn open(pid: u32) -> Result<Process, ProcessError> {
        let gone = || ProcessError::Gone { pid };
        let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).ok_or_else(gone)?;
        let pidfd =
            rustix::process::pidfd_open(raw, rustix::process::PidfdFlags::empty()).map_err(|errno| match errno {
                rustix::io::Errno::PERM => ProcessError::NotPermitted { pid },
                rustix::io::Errno::SRCH | rustix::io::Errno::INVAL => gone(),
                other => ProcessError::Read { path: format!("pidfd_open({pid})"), source: other.into() },
            })?;
        let start_time = Stat::read(pid)?.start_time;
        Ok(Process {
            pid,
            start_time,
            pidfd,
            offers_shared: AtomicBool::new(false),
            seen_by: AtomicU32::new(pid),
            locked: LockedAreas::default(),
        })
    }

    /// The id under which the kernel shows its memory, below /proc and to calls that take the id of a thread: its pid, or that of a thread
    /// that runs where the first has ended. As found when its ranges were read last.
    pub fn seen_by(&self) -> u32 {
        self.seen_by.load(Ordering::Relaxed)
    }

    /// Looks again by which thread its memory is seen. Another thread takes the place of the first by executing a program, so that is asked
    /// first.
    fn look_for_thread(&self) -> u32 {
        let found = thread_with_memory(Path::new("/proc"), self.pid).unwrap_or(self.pid);
        self.seen_by.store(found, Ordering::Relaxed);
        found
    }

    /// Whether its first thread has ended, and others run on with its memory. Linux then lets nobody else advise on that memory
    /// (process_madvise(2) answers ESRCH, by whatever pidfd), so that it cannot be paged out from outside.
    pub fn first_thread_has_ended(&self) -> bool {
        !self.has_memory() && self.look_for_thread() != self.pid
    }

    /// Its shared mappings, by address, whatever they are mappings of.
    ///
    /// # Errors
    /// When the process is gone or may not be read.
    pub fn shared_mappings(&self) -> Result<Vec<SharedMapping>, ProcessError> {
        Ok(parse_shared(&self.read_memory_file("maps")?))
    }

    /// Whether shared memory was among the ranges that [`Process::ranges`] offered last.
    pub fn offers_shared(&self) -> bool {
        self.offers_shared.load(Ordering::Relaxed)
    }

    /// Its pid, for as long as [`Process::is_alive`].
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Its start time in clock ticks after boot, field 22 of /proc/PID/stat.
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Its pidfd, which becomes readable when it exits.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Whether all of its threads are over: it is gone, or waits to be waited for.
    pub fn has_ended(&self) -> bool {
        self.stat().map_or(true, |stat| stat.has_ended())
    }

    /// Whether its first thread runs, and it is the one that was opened. A zombie does not run.
    pub fn is_alive(&self) -> bool {
        Stat::read(self.pid).is_ok_and(|stat| stat.start_time == self.start_time && !matches!(stat.state, 'Z' | 'X'))
    }

    /// Whether its first thread still has memory. A process loses it some time before it exits, and one whose first thread has ended shows
    /// none by its pid while its other threads run ([`Process::first_thread_has_ended`]).
    pub fn has_memory(&self) -> bool {
        self.stat().is_ok_and(|stat| stat.mapped > Bytes::ZERO)
    }

    /// Its counters now.
    ///
    /// # Errors
    /// When it is gone.
    pub fn stat(&self) -> Result<Stat, ProcessError> {
        let stat = Stat::read(self.pid)?;
        if stat.start_time == self.start_time { Ok(stat) } else { Err(ProcessError::Gone { pid: self.pid }) }
    }

    /// The processor time of its threads so far; `None` if it is gone.
    pub fn clock(&self) -> Option<Duration> {
        crate::sys::process_clock(self.pid).ok()
    }

    /// The memory ranges that may be managed, by address.
    ///
    /// # Errors
    /// When the process is gone or may not be read.
    pub fn ranges(&self, options: RangeOptions) -> Result<Vec<MemoryRange>, ProcessError> {
        self.ranges_where(options, Refuses::Nobody)
    }

    /// The memory ranges that may be managed, by address; where the kernel refuses to move what is locked, a little of that is among them.
    ///
    /// # Errors
    /// As [`Process::ranges`].
    pub fn ranges_where(&self, options: RangeOptions, refuses: Refuses) -> Result<Vec<MemoryRange>, ProcessError> {
        let mut ranges = parse_maps(&self.read_memory_file("maps")?, options);
        let status = self.read_memory_file("status")?;
        self.locked.take_out(locked::amount(&status), &mut ranges, refuses, || {
            let path = format!("/proc/{}/smaps", self.seen_by());
            locked::starts(&mut io::BufReader::with_capacity(1 << 16, std::fs::File::open(path)?))
        });
        let offers_shared = ranges.iter().any(|range| range.backing == Backing::Shared);
        self.offers_shared.store(offers_shared, Ordering::Relaxed);
        Ok(ranges)
    }

    /// The first pages of the ranges whose NUMA memory policy (numa_maps in proc(5), set_mempolicy(2)) forbids moving their
    /// pages between these nodes: bound to fewer of them, or spread over nodes on purpose. What is only preferred (`prefer`,
    /// `local`) says where memory is allocated, not where it must stay.
    ///
    /// The kernel counts every page of the process for this file, so it is not for every round.
    ///
    /// # Errors
    /// When the process is gone or may not be read, or the kernel was built without NUMA.
    pub fn placed_by_policy(&self, nodes: &BTreeSet<u32>) -> Result<BTreeSet<Vpn>, ProcessError> {
        Ok(parse_placed(&self.read_memory_file("numa_maps")?, nodes))
    }

    /// Reads a file that tells of its memory.
    fn read_memory_file(&self, file: &str) -> Result<String, ProcessError> {
        match read_proc(self.seen_by(), file) {
            Ok(text) if !text.is_empty() => Ok(text),
            // Empty, or of a thread that is over by now. Of a process that has no memory any more it stays empty.
            Ok(_) | Err(ProcessError::Gone { .. }) => {
                read_proc(self.look_for_thread(), file).map_err(|error| match error {
                    ProcessError::Gone { .. } => ProcessError::Gone { pid: self.pid },
                    other => other,
                })
            }
            Err(error) => Err(error),
        }
    }
}

/// A thread of a process that shows its memory: the first that has not ended.
fn thread_with_memory(proc: &Path, pid: u32) -> Option<u32> {
    let tasks = std::fs::read_dir(proc.join(format!("{pid}/task"))).ok()?;
    let mut threads: Vec<u32> = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    // A thread's own folder below /proc is there for who knows its id, and so are its files of the process it belongs to.
    let text = |thread| read_below(proc, pid, &format!("task/{thread}/stat")).ok();
    threads
        .into_iter()
        .find(|thread| text(*thread).and_then(|text| Stat::parse(&text)).is_some_and(|stat| stat.mapped > Bytes::ZERO))
}

/// The children of a process, as far as the kernel lists them: those that ended and were not waited for among them.
pub fn children(pid: u32) -> Vec<u32> {
    children_below(Path::new("/proc"), pid)
}

fn children_below(proc: &Path, pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(proc.join(format!("{pid}/task"))).into_iter().flatten().flatten();
    let texts = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    texts
        .flat_map(|text| text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>())
        .collect()
}

/// The counters of /proc/PID/stat that Terrace uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The command's name.
    pub command: String,
    /// R, S, D, T, Z, ...
    pub state: char,
    /// Its process group; 0 where the group's leader lies outside of this PID namespace, as that of the first process of a guest or container does.
    pub group: u32,
    /// Its session; 0 where the leader lies outside of this PID namespace.
    pub session: u32,
    /// Faults that needed no I/O, since it started.
    pub minor_faults: u64,
    /// Faults that read from a device or from swap, since it started.
    pub major_faults: u64,
    /// CPU time in user mode, clock ticks.
    pub user_ticks: u64,
    /// CPU time in the kernel, clock ticks.
    pub system_ticks: u64,
    /// Its threads that are not over. A first thread that ended counts until the last has.
    pub threads: u64,
    /// Start time, clock ticks after boot.
    pub start_time: u64,
    /// Resident memory.
    pub resident: Bytes,
    /// Mapped memory. Zero once the kernel has taken the memory away: of a zombie, and of a process that is about to be one.
    pub mapped: Bytes,
}

impl Stat {
    /// Reads the counters of a pid.
    ///
    /// # Errors
    /// When it is gone.
    pub fn read(pid: u32) -> Result<Stat, ProcessError> {
        let text = read_proc(pid, "stat")?;
        Stat::parse(&text).ok_or(ProcessError::Gone { pid })
    }

    /// Whether all of its threads are over, and it only waits to be waited for. A process whose first thread alone has ended is shown as a
    /// zombie as well.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X') && self.threads <= 1
    }

    /// Parses /proc/PID/stat (proc_pid_stat(5)). The command may hold blanks and brackets, so the last ')' ends it.
    pub(crate) fn parse(text: &str) -> Option<Stat> {
        let open = text.find('(')?;
        let close = text.rfind(')')?;
        let command = text.get(open + 1..close)?.to_owned();
        let fields: Vec<&str> = text.get(close + 1..)?.split_ascii_whitespace().collect();
        // Field 3 of the manual page is fields[0] here.
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        // -1 while the process ends.
        let leader = |field: usize| Some(fields.get(field - 3)?.parse::<i32>().ok()?.max(0) as u32);
        Some(Stat {
            command,
            state: fields.first()?.chars().next()?,
            group: leader(5)?,
            session: leader(6)?,
            minor_faults: number(10)?,
            major_faults: number(12)?,
            user_ticks: number(14)?,
            system_ticks: number(15)?,
            threads: number(20)?,
            start_time: number(22)?,
            resident: Bytes::of_pages(number(24)?),
            mapped: Bytes::new(number(23)?),
        })
    }
}

fn read_proc(pid: u32, file: &str) -> Result<String, ProcessError> {
    read_below(Path::new("/proc"), pid, file)
}

/// Reads a file of a process as text; the command name in it may be any bytes.
pub(crate) fn read_below(proc: &Path, pid: u32, file: &str) -> Result<String, ProcessError> {
    let path = proc.join(format!("{pid}/{file}"));
    match std::fs::read(&path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(source) => Err(match source.raw_os_error() {
            Some(libc::ENOENT | libc::ESRCH) => ProcessError::Gone { pid },
            Some(libc::EACCES | libc::EPERM) => ProcessError::NotPermitted { pid },
            _ => ProcessError::Read { path: path.display().to_string(), source },
        }),
    }
}

/// Parses /proc/PID/maps into the ranges that may be managed.
pub fn parse_maps(text: &str, options: RangeOptions) -> Vec<MemoryRange> {
    text.lines().filter_map(|line| parse_map_line(line, options)).collect()
}

fn parse_map_line(line: &str, options: RangeOptions) -> Option<MemoryRange> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let (_offset, _device) = (fields.next()?, fields.next()?);
    let inode: u64 = fields.next()?.parse().ok()?;
    let name = fields.next().unwrap_or("");
    // The kernel's own pages, device memory and hugetlbfs do not move by these means.
    let special = ["[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]", "[uprobes]"].contains(&name)
        || name.starts_with("/dev/") && !name.starts_with("/dev/shm/") && !name.starts_with("/dev/zero")
        || name.starts_with("/anon_hugepage")
        || name.starts_with("anon_inode:");
    if special {
        return None;
    }
    let backing = match permissions.get(3)? {
        b's' => Backing::Shared,
        _ if inode != 0 => Backing::PrivateFile,
        _ => Backing::Anonymous,
    };
    let wanted = match backing {
        Backing::Anonymous => true,
        Backing::PrivateFile => options.files,
        Backing::Shared => options.shared,
    };
    let page = |text: &str| u64::from_str_radix(text, 16).ok().map(Vpn::of_address);
    let (start, end) = (page(start)?, page(end)?);
    (wanted && start < end).then_some(MemoryRange { start, end, backing })
}

/// Parses /proc/PID/maps into the shared mappings.
pub fn parse_shared(text: &str) -> Vec<SharedMapping> {
    text.lines().filter_map(parse_shared_line).collect()
}

fn parse_shared_line(line: &str) -> Option<SharedMapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    if fields.next()?.as_bytes().get(3) != Some(&b's') {
        return None;
    }
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let first = number(fields.next()?)? / PAGE_BYTES;
    let (major, minor) = fields.next()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode = fields.next()?.parse().ok()?;
    let system_v = fields.next().is_some_and(|name| name.starts_with("/SYSV"));
    let page = |text: &str| number(text).map(Vpn::of_address);
    Some(SharedMapping {
        start: page(start)?,
        end: page(end)?,
        object: SharedObject { device, inode, system_v },
        first,
    })
}

/// The starts of the ranges of a numa_maps whose policy binds them to fewer than these nodes or interleaves them.
pub fn parse_placed(numa_maps: &str, nodes: &BTreeSet<u32>) -> BTreeSet<Vpn> {
    let placed = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let start = u64::from_str_radix(fields.next()?, 16).ok()?;
        // MODE[=FLAGS]:NODES, such as bind:0-1 or interleave=static:0,2; the node list lacks for `default` and `local`.
        // A kernel that prints `weighted interleave:0-1` puts a blank into the mode.
        let policy = fields.next()?;
        let (mode, allowed) = policy.split_once(':').unwrap_or((policy, ""));
        let stays = match mode.split('=').next()? {
            "bind" => !nodes.is_subset(&parse_nodes(allowed)?),
            "interleave" | "weighted" => true,
            _ => false,
        };
        stays.then_some(Vpn::of_address(start))
    };
    numa_maps.lines().filter_map(placed).collect()
}

/// A list of nodes as the kernel prints it: `0-1,3`. With relative nodes (`bind=relative:0-1`) the numbers are not nodes of the
/// machine; those are taken as they stand, which errs on the side of leaving memory where it is.
fn parse_nodes(text: &str) -> Option<BTreeSet<u32>> {
    /// More than any kernel is built for: MAX_NUMNODES is 1024 at most (include/linux/numa.h).
    const NODES: u32 = 4096;
    let mut nodes = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last: u32 = last.parse().ok().filter(|last| *last < NODES)?;
        nodes.extend(first.parse::<u32>().ok()?..=last);
    }
    Some(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_mappings_say_which_part_of_which_object_they_show() {
        let maps = "\
7f10-7f20 rw-p 00000000 00:00 0
7f0000000000-7f0000002000 rw-s 00003000 00:01 3                          /dev/zero (deleted)
7f0000004000-7f0000005000 rw-s 00000000 00:01 3                          /SYSV00000000 (deleted)
7f0000006000-7f0000007000 r--s 00000000 fe:00 3                          /usr/lib/x
";
        let found = parse_shared(maps);
        let places: Vec<(u64, u64, u64)> =
            found.iter().map(|mapping| (mapping.start.0, mapping.end.0, mapping.first)).collect();
        assert_eq!(
            places,
            [(0x7f0000000, 0x7f0000002, 3), (0x7f0000004, 0x7f0000005, 0), (0x7f0000006, 0x7f0000007, 0)]
        );
        let mut objects: Vec<SharedObject> = found.iter().map(|mapping| mapping.object).collect();
        objects.sort();
        objects.dedup();
        assert_eq!(objects.len(), 3, "a segment of System V may have another object's inode");
    }

    #[test]
    fn ranges_that_end_before_they_begin_and_endless_lists_of_nodes_are_left_out() {
        let maps = "7000-5000 rw-p 00000000 00:00 0\n5000-5000 rw-p 00000000 00:00 0\n";
        assert_eq!(parse_maps(maps, RangeOptions::default()), []);
        assert_eq!(parse_placed("5000 bind:0-4294967295 anon=1", &BTreeSet::from([0, 1])), BTreeSet::new());
    }

    #[test]
    fn only_private_anonymous_memory_is_offered_unless_asked() {
        let maps = "\
55d0c0000000-55d0c0021000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000100000 r--p 00000000 08:01 1234                       /usr/lib/libc.so.6
7f0000200000-7f0000300000 rw-s 00000000 00:05 77                         /dev/shm/ring
7f0000400000-7f0000500000 rw-s 00000000 00:05 78                         /dev/dri/card0
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
7ffc001d0000-7ffc001d2000 r-xp 00000000 00:00 0                          [vdso]
";
        let plain = parse_maps(maps, RangeOptions::default());
        assert_eq!(plain.len(), 2, "{plain:?}");
        assert_eq!(plain[0].start, Vpn::of_address(0x55d0_c000_0000));
        let all = parse_maps(maps, RangeOptions { files: true, shared: true });
        assert_eq!(
            all.iter().map(|range| range.backing).collect::<Vec<_>>(),
            [Backing::Anonymous, Backing::PrivateFile, Backing::Shared, Backing::Anonymous]
        );
    }

    #[test]
    fn a_command_with_brackets_does_not_shift_the_fields() {
        let text =
            "42 (a) R (b) S 1 42 42 0 -1 4194304 100 0 7 0 11 22 0 0 20 0 1 0 98765 1000000 250 18446744073709551615 0";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.command.as_str(), stat.state), ("a) R (b", 'S'));
        assert_eq!((stat.minor_faults, stat.major_faults, stat.start_time), (100, 7, 98765));
        assert_eq!((stat.resident, stat.mapped), (Bytes::of_pages(250), Bytes::new(1_000_000)));
    }

    /// Its pid, its threads with the state and mapped bytes of each, and its children.
    type FakeProcess<'a> = (u32, &'a [(u32, char, u64)], &'a str);

    /// A tree like /proc.
    fn fake_proc(processes: &[FakeProcess<'_>]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (pid, threads, children) in processes {
            for (thread, state, mapped) in *threads {
                let place = proc.path().join(format!("{pid}/task/{thread}"));
                std::fs::create_dir_all(&place).unwrap();
                let count = threads.len();
                let stat = format!("{thread} (x) {state} 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {count} 0 5 {mapped} 9 0");
                std::fs::write(place.join("stat"), stat).unwrap();
                std::fs::write(place.join("children"), if thread == pid { children } else { "" }).unwrap();
            }
        }
        proc
    }

    #[test]
    fn a_thread_that_runs_shows_the_memory_of_a_first_that_ended() {
        let proc = fake_proc(&[
            (40, &[(40, 'Z', 0), (41, 'Z', 0), (42, 'S', 4096)], ""),
            (50, &[(50, 'S', 4096), (51, 'S', 4096)], ""),
            (60, &[(60, 'Z', 0)], ""),
        ]);
        assert_eq!([40, 50, 60, 70].map(|pid| thread_with_memory(proc.path(), pid)), [Some(42), Some(50), None, None]);
        let ended =
            |pid| Stat::parse(&read_below(proc.path(), pid, &format!("task/{pid}/stat")).unwrap()).unwrap().has_ended();
        assert_eq!([40, 50, 60].map(ended), [false, false, true], "one whose other threads run has not ended");
    }

    #[test]
    fn children_of_all_threads_are_listed_and_theirs_are_not() {
        let proc = fake_proc(&[(40, &[(40, 'S', 1), (41, 'S', 1)], "43 44 "), (43, &[(43, 'S', 1)], "45 ")]);
        std::fs::write(proc.path().join("40/task/41/children"), "46 ").unwrap();
        let mut found = children_below(proc.path(), 40);
        found.sort_unstable();
        assert_eq!(found, [43, 44, 46]);
        assert_eq!(children_below(proc.path(), 99), Vec::<u32>::new());
    }

    #[test]
    fn memory_that_a_policy_placed_is_told_from_memory_that_may_move() {
        let numa_maps = "\
55d0c0000000 default heap anon=33 dirty=33 N0=33 kernelpagesize_kB=4
7f0000000000 bind:0 anon=256 dirty=256 N0=256 kernelpagesize_kB=4
7f0000100000 bind:0-1 anon=256 dirty=256 N0=256 kernelpagesize_kB=4
7f0000200000 interleave:0-1 anon=256 dirty=256 N0=128 N1=128 kernelpagesize_kB=4
7f0000300000 prefer:0 anon=1 N0=1 kernelpagesize_kB=4
7f0000400000 local anon=1 N0=1 kernelpagesize_kB=4
7f0000500000 bind=static:0,2-3 anon=1 N0=1 kernelpagesize_kB=4
7f0000600000 weighted interleave:0-1 anon=2 N0=1 N1=1 kernelpagesize_kB=4
";
        let placed = parse_placed(numa_maps, &BTreeSet::from([0, 1]));
        let expected = [0x7f00_0000_0000, 0x7f00_0020_0000, 0x7f00_0050_0000, 0x7f00_0060_0000];
        assert_eq!(placed, expected.map(Vpn::of_address).into());
    }

    #[test]
    fn this_process_is_alive_and_pid_zero_is_not() {
        let me = Process::open(std::process::id()).unwrap();
        assert!(me.is_alive() && me.has_memory());
        assert!(!me.ranges(RangeOptions::default()).unwrap().is_empty());
        assert!(matches!(Process::open(0), Err(ProcessError::Gone { .. })));
        assert!(matches!(Process::open(u32::MAX), Err(ProcessError::Gone { .. })));
    }
}
