//! What cgroups allow and protect of a process's memory: how much swap it may have, and how much must stay.
//!
//! In: a pid, the mounted hierarchies (version 2; version 1 for its limits). Out: [`Level`]s, from the process's own cgroup up to the
//! highest that is visible here. Must not: change a limit.
//!
//! The kernel holds `memory.swap.max` against every page-out, so that a program that may have no swap keeps its pages whatever it is advised.
//! It does not hold `memory.min` and `memory.low` against MADV_PAGEOUT (they bind reclaim under pressure): Terrace respects them itself.
//! In version 1 a page-out moves a page from one part of `memory.memsw` to the other, and there is no protection.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use terrace_core::units::Bytes;

/// A cgroup of version 2 with a memory controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// Its directory.
    pub path: PathBuf,
    /// Memory charged to it, page cache included (`memory.current`).
    pub current: Bytes,
    /// What reclaim leaves it: the greater of `memory.min` and `memory.low`. `max` means all.
    pub protected: Bytes,
    /// Swap that it may still take; `None` without a limit.
    pub swap_left: Option<Bytes>,
    /// Memory that it may still take; `None` without a limit.
    pub memory_left: Option<Bytes>,
}

/// Reads the levels of processes, each cgroup once.
#[derive(Debug)]
pub struct CgroupMemory<'a> {
    root: &'a Path,
    mount: Option<Mount>,
    known: BTreeMap<PathBuf, Option<Level>>,
}

/// Where a hierarchy is mounted, and which of its directories that is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    of: String,
}

impl<'a> CgroupMemory<'a> {
    /// By `<root>/proc/self/mountinfo`. Without a hierarchy of version 2 no process has levels.
    pub fn read(root: &'a Path) -> CgroupMemory<'a> {
        let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        CgroupMemory { root, mount: unified(&mounts), known: BTreeMap::new() }
    }

    /// The levels of a process, its own cgroup first; none where it is gone, or no memory controller is visible.
    pub fn levels(&mut self, pid: u32) -> Vec<Level> {
        let Some(Mount { point, of }) = self.mount.clone() else { return Vec::new() };
        let text = std::fs::read_to_string(self.root.join(format!("proc/{pid}/cgroup"))).unwrap_or_default();
        let Some(path) = text.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
        // In a container without a cgroup namespace paths are the host's, and what is mounted is a part of them.
        let below = path.strip_prefix(of.as_str()).unwrap_or(path).trim_start_matches('/');
        if below.split('/').any(|part| part == "..") {
            return Vec::new();
        }
        let top = self.root.join(point.strip_prefix("/").unwrap_or(&point));
        let ancestors: Vec<PathBuf> =
            top.join(below).ancestors().take_while(|path| path.starts_with(&top)).map(Path::to_owned).collect();
        ancestors
            .into_iter()
            .filter_map(|path| self.known.entry(path.clone()).or_insert_with(|| read_level(&path)).clone())
            .collect()
    }
}

/// The mounted hierarchy of version 2 (proc_pid_mountinfo(5)): mount point and, within the hierarchy, its directory.
fn unified(mounts: &str) -> Option<Mount> {
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        (kind.split(' ').next() == Some("cgroup2")).then_some(())?;
        let plain = |text: &str| text.replace("\\040", " ");
        let of = plain(fields.get(3)?);
        Some(Mount { point: plain(fields.get(4)?).into(), of: if of == "/" { String::new() } else { of } })
    })
}

/// A cgroup, if it has a memory controller.
pub(crate) fn read_level(path: &Path) -> Option<Level> {
    let amount = |file: &str| {
        let text = std::fs::read_to_string(path.join(file)).ok()?;
        match text.trim() {
            "max" => Some(None),
            number => number.parse().ok().map(|bytes| Some(Bytes::new(bytes))),
        }
    };
    let current = amount("memory.current")??;
    let all = Bytes::new(u64::MAX);
    let protection = |file: &str| amount(file).map_or(Bytes::ZERO, |amount| amount.unwrap_or(all));
    let left = |limit: &str, used: &str| {
        let limit = amount(limit)??;
        Some(limit.saturating_sub(amount(used)?.unwrap_or(Bytes::ZERO)))
    };
    Some(Level {
        path: path.to_owned(),
        current,
        protected: protection("memory.min").max(protection("memory.low")),
        swap_left: left("memory.swap.max", "memory.swap.current"),
        memory_left: left("memory.max", "memory.current"),
    })
}

/// The level that lets no more page of a process go to swap, if there is one.
pub fn without_swap(levels: &[Level]) -> Option<&Level> {
    levels.iter().find(|level| level.swap_left.is_some_and(|left| left.pages() == 0))
}

/// Memory that a process may still take by its cgroups; `None` where none limits it.
pub fn memory_left(levels: &[Level]) -> Option<Bytes> {
    levels.iter().filter_map(|level| level.memory_left).min()
}

/// How much of a process's resident memory must stay, so that none of its cgroups falls below what is protected of it.
///
/// A cgroup holds other processes and page cache, too. What may leave of the process is its share of what the cgroup has above its protection: with
/// all its processes kept so, `current` stays at or above the protection. Resident memory may be charged elsewhere, as that of a program's file is, and
/// be more than all that is charged here; the process then has all of the cgroup, and no more may leave than the cgroup has above its protection.
pub fn kept(levels: &[Level], resident: Bytes) -> Bytes {
    let kept =
        levels.iter().filter(|level| level.protected > Bytes::ZERO && level.current > Bytes::ZERO).map(|level| {
            if level.protected >= level.current {
                return resident;
            }
            let above = level.current.saturating_sub(level.protected);
            let share = (resident.get() as f64 / level.current.get() as f64).min(1.0);
            resident.saturating_sub(above.share(share))
        });
    kept.max().unwrap_or(Bytes::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 23 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw
";

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/self/mountinfo", MOUNTS), ("proc/7/cgroup", "0::/jobs/one\n")].iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn a_process_has_the_levels_that_have_a_memory_controller() {
        let root = machine(&[
            ("sys/fs/cgroup/jobs/memory.current", "1000000\n"),
            ("sys/fs/cgroup/jobs/memory.max", "1500000\n"),
            ("sys/fs/cgroup/jobs/one/memory.current", "800000\n"),
            ("sys/fs/cgroup/jobs/one/memory.low", "400000\n"),
            ("sys/fs/cgroup/jobs/one/memory.min", "0\n"),
            ("sys/fs/cgroup/jobs/one/memory.max", "max\n"),
            ("sys/fs/cgroup/jobs/one/memory.swap.max", "0\n"),
            ("sys/fs/cgroup/jobs/one/memory.swap.current", "0\n"),
        ]);
        let mut groups = CgroupMemory::read(root.path());
        let levels = groups.levels(7);
        assert_eq!(levels.len(), 2, "{levels:?}");
        assert_eq!(levels[0].protected, Bytes::new(400_000));
        assert_eq!(
            without_swap(&levels).map(|level| level.path.clone()),
            Some(root.path().join("sys/fs/cgroup/jobs/one"))
        );
        assert_eq!(memory_left(&levels), Some(Bytes::new(500_000)));
        assert!(groups.levels(8).is_empty(), "a process that is gone");
    }

    #[test]
    fn a_container_with_the_paths_of_the_host_finds_its_own() {
        let mounts = "31 23 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(unified(mounts), Some(Mount { point: "/sys/fs/cgroup".into(), of: "/docker/abc".to_owned() }));
        let root = machine(&[
            ("proc/self/mountinfo", mounts),
            ("proc/7/cgroup", "0::/docker/abc/inner\n"),
            ("proc/8/cgroup", "0::/../other\n"),
            ("sys/fs/cgroup/inner/memory.current", "8192\n"),
        ]);
        let mut groups = CgroupMemory::read(root.path());
        assert_eq!(groups.levels(7).len(), 1);
        assert!(groups.levels(8).is_empty(), "outside of what is visible");
    }

    #[test]
    fn a_machine_without_version_two_limits_nothing() {
        let root = machine(&[("proc/self/mountinfo", "")]);
        assert!(CgroupMemory::read(root.path()).levels(7).is_empty());
        assert_eq!((without_swap(&[]), memory_left(&[]), kept(&[], Bytes::gib(1))), (None, None, Bytes::ZERO));
    }

    #[test]
    fn what_is_protected_stays() {
        let level = |current, protected| Level {
            path: PathBuf::new(),
            current: Bytes::mib(current),
            protected: Bytes::mib(protected),
            swap_left: None,
            memory_left: None,
        };
        let resident = Bytes::mib(300);
        assert_eq!(kept(&[level(400, 0)], resident), Bytes::ZERO);
        assert_eq!(kept(&[level(400, 100)], resident), Bytes::mib(75), "its share of the group's memory");
        assert_eq!(
            kept(&[level(400, 100), level(600, 300)], resident),
            Bytes::mib(150),
            "the level that protects most"
        );
        assert_eq!(kept(&[level(400, 500)], resident), resident, "a group below its protection keeps all");
        // 300 MiB are resident and 280 charged here: 80 above the protection may leave, not 300 / 280 of them.
        assert_eq!(kept(&[level(280, 200)], resident), Bytes::mib(220));
        // At the bound the group's memory is what is protected: 300 - 225 MiB of 400 have left.
        assert_eq!(kept(&[level(175, 100)], Bytes::mib(75)), Bytes::mib(75).share(100.0 / 175.0));
    }
}
