//! News of cgroups at once: who was moved into one, which appear and vanish.
//!
//! In: the mounted cgroup hierarchies, watched by inotify. Out: [`CgroupEvent`]s. Must not: be relied on alone: what cannot be
//! watched or was lost is reported, and the caller then scans /proc.
//!
//! The process connector tells of forks and programs, but not that a process changed its cgroup. That is a write to the target's
//! `cgroup.procs` (or a thread's to `tasks` in version 1), which inotify shows on the directory. What is forked inside a cgroup writes
//! nothing; the connector tells of it.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupEvent {
    /// Someone wrote who belongs to a cgroup; these are in it now.
    Moved {
        /// The processes in it.
        pids: Vec<u32>,
    },
    /// A cgroup was made or removed.
    Changed,
    /// Events were lost: only a scan of /proc shows the processes.
    Lost,
}

/// Watches at once. A watch takes about a KiB of the kernel's memory; thousands of cgroups are a large machine.
const MOST: usize = 8192;

/// Why no cgroup can be watched.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The mounts cannot be read.
    #[error("/proc/mounts: {0}")]
    Mounts(std::io::Error),
    /// There is no hierarchy.
    #[error("no cgroup hierarchy is mounted")]
    NoHierarchy,
    /// inotify is not available.
    #[error("inotify cannot be had: {0}")]
    Inotify(Errno),
    /// Not one watch was granted.
    #[error("no cgroup can be watched: {0}")]
    NoneWatched(
        /// The latest reason.
        String,
    ),
}

/// A watch on all cgroups.
pub struct CgroupEvents {
    inotify: OwnedFd,
    watched: BTreeMap<i32, PathBuf>,
    /// Cgroups that could not be watched, and the latest reason.
    unwatched: Option<(usize, String)>,
    roots: Vec<PathBuf>,
}

impl CgroupEvents {
    /// Begins to watch the hierarchies mounted according to `<root>/proc/mounts`.
    ///
    /// # Errors
    /// One line on why nothing can be watched.
    pub fn open(root: &Path) -> Result<CgroupEvents, CgroupError> {
        let mounts = std::fs::read_to_string(root.join("proc/mounts")).map_err(CgroupError::Mounts)?;
        let roots = hierarchies(&mounts);
        if roots.is_empty() {
            return Err(CgroupError::NoHierarchy);
        }
        CgroupEvents::watch_below(roots)
    }

    /// Watches these directories and all below them.
    fn watch_below(roots: Vec<PathBuf>) -> Result<CgroupEvents, CgroupError> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(CgroupError::Inotify)?;
        let mut events = CgroupEvents { inotify, watched: BTreeMap::new(), unwatched: None, roots };
        events.watch_all();
        match &events.unwatched {
            Some((_, why)) if events.watched.is_empty() => Err(CgroupError::NoneWatched(why.clone())),
            _ => Ok(events),
        }
    }

    fn watch_all(&mut self) {
        self.unwatched = None;
        for root in self.roots.clone() {
            self.watch(root);
        }
    }

    /// Watches a directory and those below it. Version 2 comes first in `roots`, so that it is what fits.
    fn watch(&mut self, first: PathBuf) {
        let wanted = WatchFlags::MODIFY
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR;
        let mut left = vec![first];
        while let Some(path) = left.pop() {
            if self.watched.len() >= MOST {
                self.missed(format!("{MOST} cgroups are watched already"));
                continue;
            }
            match inotify::add_watch(&self.inotify, &path, wanted) {
                Ok(number) => {
                    let below = std::fs::read_dir(&path).into_iter().flatten().flatten();
                    left.extend(
                        below
                            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                            .map(|entry| entry.path()),
                    );
                    self.watched.insert(number, path);
                }
                // It was removed meanwhile: there is nothing to watch.
                Err(Errno::NOENT | Errno::NODEV) => {}
                Err(errno) => self.missed(format!("{}: {errno}", path.display())),
            }
        }
    }

    fn missed(&mut self, why: String) {
        let count = self.unwatched.as_ref().map_or(0, |(count, _)| *count);
        self.unwatched = Some((count + 1, why));
    }

    /// How many cgroups are watched, and what is to be said of those that are not.
    pub fn watched(&self) -> (usize, Option<String>) {
        let missing = self.unwatched.as_ref().map(|(count, why)| format!("{count} cgroups are not watched: {why}"));
        (self.watched.len(), missing)
    }

    /// What becomes readable when there is news.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Reads all pending events, up to a limit.
    pub fn take(&mut self, events: &mut Vec<CgroupEvent>) {
        const AT_ONCE: usize = 4096;
        let mut made: Vec<PathBuf> = Vec::new();
        let mut gone: Vec<i32> = Vec::new();
        let mut written: Vec<PathBuf> = Vec::new();
        let mut lost = false;
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        for _ in 0..AT_ONCE {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
            let flags = event.events();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                lost = true;
                continue;
            }
            if flags.contains(ReadFlags::IGNORED) {
                gone.push(event.wd());
                continue;
            }
            let (Some(directory), Some(name)) = (self.watched.get(&event.wd()), event.file_name()) else { continue };
            let name = std::ffi::OsStr::from_bytes(name.to_bytes());
            if flags.contains(ReadFlags::ISDIR) {
                if flags.contains(ReadFlags::CREATE) {
                    made.push(directory.join(name));
                }
                events.push(CgroupEvent::Changed);
            } else if flags.contains(ReadFlags::MODIFY) && (name == "cgroup.procs" || name == "tasks") {
                written.push(directory.clone());
            }
        }
        for number in gone {
            self.watched.remove(&number);
        }
        for path in made {
            // A process may have been written to it before the watch existed.
            written.push(path.clone());
            self.watch(path);
        }
        written.sort();
        written.dedup();
        events.extend(written.iter().filter_map(|path| pids(path)).map(|pids| CgroupEvent::Moved { pids }));
        if lost {
            // What was made meanwhile is unwatched; watching again what is watched changes nothing.
            self.watch_all();
            events.push(CgroupEvent::Lost);
        }
    }
}

/// Who belongs to a cgroup; `None` if nobody does, or it is gone.
fn pids(directory: &Path) -> Option<Vec<u32>> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).ok()?;
    let pids: Vec<u32> = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect();
    (!pids.is_empty()).then_some(pids)
}

/// The directories that cgroup hierarchies are mounted on, version 2 first.
pub(crate) fn hierarchies(mounts: &str) -> Vec<PathBuf> {
    let of = |kind: &str| {
        let lines = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        lines
            .filter(|fields| fields.get(2) == Some(&kind))
            // proc(5): spaces and the like in a path are written as octal escapes.
            .filter_map(|fields| fields.get(1).map(|path| PathBuf::from(path.replace("\\040", " "))))
            .collect::<Vec<_>>()
    };
    let mut found = of("cgroup2");
    found.extend(of("cgroup"));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(events: &mut CgroupEvents) -> Vec<CgroupEvent> {
        let mut found = Vec::new();
        events.take(&mut found);
        found
    }

    #[test]
    fn version_two_is_watched_first() {
        let mounts = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\n";
        let paths = ["/sys/fs/cgroup/uni fied", "/sys/fs/cgroup/cpu"].map(PathBuf::from);
        assert_eq!(hierarchies(mounts), paths);
        assert!(hierarchies("").is_empty());
    }

    /// inotify works the same on any file system, so an ordinary directory shows what is done with its events.
    #[test]
    fn who_is_written_into_a_group_is_told_and_new_groups_are_watched() {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(place.path().join("web/worker")).unwrap();
        let mut events = CgroupEvents::watch_below(vec![place.path().to_owned()]).unwrap();
        assert_eq!(events.watched(), (3, None));
        std::fs::write(place.path().join("web/worker/cgroup.procs"), "41\n42\n").unwrap();
        std::fs::write(place.path().join("web/worker/memory.high"), "max\n").unwrap();
        assert_eq!(news(&mut events), [CgroupEvent::Moved { pids: vec![41, 42] }]);
        // Made and written to before anyone could watch it.
        std::fs::create_dir(place.path().join("batch")).unwrap();
        std::fs::write(place.path().join("batch/cgroup.procs"), "7\n").unwrap();
        assert_eq!(news(&mut events), [CgroupEvent::Changed, CgroupEvent::Moved { pids: vec![7] }]);
        std::fs::write(place.path().join("batch/cgroup.procs"), "8\n").unwrap();
        assert_eq!(news(&mut events), [CgroupEvent::Moved { pids: vec![8] }]);
        // Removed groups are forgotten, and one of the same name is news again.
        std::fs::remove_dir_all(place.path().join("batch")).unwrap();
        assert!(news(&mut events).contains(&CgroupEvent::Changed));
        assert_eq!(events.watched(), (3, None));
        std::fs::create_dir(place.path().join("batch")).unwrap();
        assert_eq!((news(&mut events), events.watched().0), (vec![CgroupEvent::Changed], 4));
    }

    #[test]
    fn the_groups_of_this_machine_can_be_watched_or_it_is_said_why_not() {
        match CgroupEvents::open(Path::new("/")) {
            Ok(events) => assert!(events.watched().0 > 0),
            Err(why) => assert!(!why.to_string().is_empty()),
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(CgroupEvents::open(empty.path()).is_err_and(|why| matches!(why, CgroupError::Mounts(_))));
    }
}
