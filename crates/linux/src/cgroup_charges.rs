//! What a cgroup is charged with: its memory, and the file cache of it that is in use and that is not.
//!
//! In: a path, the mounted hierarchies. Out: [`Charge`]. Must not: change a limit. It needs no rights: as a rule everybody may read cgroups.

use std::path::{Path, PathBuf};

/// The memory controllers that are visible here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charges {
    /// Where version 2 is mounted.
    unified: Option<PathBuf>,
    /// Where the memory controller of version 1 is.
    memory: Option<PathBuf>,
}

/// What a cgroup and those below it are charged with, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) memory: u64,
    pub(crate) file_active: u64,
    pub(crate) file_inactive: u64,
}

impl Charges {
    /// By `<root>/proc/mounts`.
    pub(crate) fn find(root: &Path) -> Charges {
        let mounts = std::fs::read_to_string(root.join("proc/mounts")).unwrap_or_default();
        let mut charges = Charges::default();
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let &[_, point, kind, options, ..] = fields.as_slice() else { continue };
            let point = root.join(point.replace("\\040", " ").trim_start_matches('/'));
            match kind {
                "cgroup2" => charges.unified = Some(point),
                "cgroup" if options.split(',').any(|option| option == "memory") => charges.memory = Some(point),
                _ => {}
            }
        }
        charges
    }

    /// Whether the memory controller is one of version 1, which reclaims no file cache on request.
    pub(crate) fn is_version_one(&self) -> bool {
        self.memory.is_some()
    }

    /// The charge of a cgroup; `None` where no controller has it.
    pub(crate) fn of(&self, path: &str) -> Option<Charge> {
        let below = |point: &PathBuf| point.join(path.trim_start_matches('/'));
        // A controller is in one hierarchy only.
        match &self.memory {
            Some(point) => read(&below(point), "memory.usage_in_bytes", ["total_active_file", "total_inactive_file"]),
            None => read(&below(self.unified.as_ref()?), "memory.current", ["active_file", "inactive_file"]),
        }
    }
}

fn read(directory: &Path, current: &str, [active, inactive]: [&str; 2]) -> Option<Charge> {
    let memory = std::fs::read_to_string(directory.join(current)).ok()?.trim().parse().ok()?;
    let stat = std::fs::read_to_string(directory.join("memory.stat")).ok()?;
    Some(Charge { memory, file_active: count(&stat, active)?, file_inactive: count(&stat, inactive)? })
}

/// A line of `memory.stat` (Documentation/admin-guide/cgroup-v2.rst), by its key.
pub(crate) fn count(stat: &str, key: &str) -> Option<u64> {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(known, _)| *known == key).and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::tests::tree;

    #[test]
    fn both_versions_say_what_is_file_cache() {
        let two = tree(&[
            ("proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"),
            ("sys/fs/cgroup/a/memory.current", "5000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\nfile 3000\ninactive_file 2000\nactive_file 1000\n"),
        ]);
        let charges = Charges::find(two.path());
        let expected = Charge { memory: 5000, file_active: 1000, file_inactive: 2000 };
        assert_eq!((charges.of("/a"), charges.is_version_one()), (Some(expected), false));
        assert_eq!(charges.of("/b"), None);
        let one = tree(&[
            (
                "proc/mounts",
                "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            ),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "5000\n"),
            ("sys/fs/cgroup/memory/a/memory.stat", "active_file 7\ntotal_inactive_file 2000\ntotal_active_file 1000\n"),
        ]);
        let charges = Charges::find(one.path());
        assert_eq!((charges.of("/a"), charges.is_version_one()), (Some(expected), true));
        assert_eq!(Charges::find(Path::new("/nowhere")).of("/"), None);
    }
}
