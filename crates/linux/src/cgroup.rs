//! One control group: where it lies, and which processes are in it and below it.
//!
//! In: its path, or the name of a systemd unit; the mounted hierarchies. Out: pids, as they are at the moment. Must not: change a cgroup, or call
//! one that has vanished an error: that it ends is a fact like another.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use terrace_core::text::nearest;

use crate::cgroup_events::hierarchies;

/// Directories of one hierarchy that are looked through at most; thousands of cgroups are a large machine.
const MOST: usize = 16_384;

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    directory: PathBuf,
    name: String,
}

/// Why a control group cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum NoCgroup {
    /// The mounts cannot be read.
    #[error("/proc/mounts: {0}")]
    Mounts(std::io::Error),
    /// There is no hierarchy.
    #[error("no cgroup hierarchy is mounted below /sys/fs/cgroup")]
    NoHierarchy,
    /// There is no such cgroup.
    #[error("there is no such cgroup{hint}; `systemd-cgls` shows them")]
    NoPath {
        /// One that is called nearly so: empty, or text that goes on.
        hint: String,
    },
    /// No unit of that name has a cgroup.
    #[error("no unit of that name runs: there is no cgroup for it{hint}; `systemctl status` shows them")]
    NoUnit {
        /// One that is called nearly so: empty, or text that goes on.
        hint: String,
    },
    /// Several have.
    #[error("{} units have that name; choose one: {}", paths.len(), paths.iter().map(|path| format!("--cgroup {path}")).collect::<Vec<_>>().join(" or "))]
    SeveralUnits {
        /// Their cgroups.
        paths: Vec<String>,
    },
}

impl Cgroup {
    /// The cgroup of this path: within a hierarchy, as /proc/PID/cgroup has it (`/jobs.slice`), or in the file system
    /// (`/sys/fs/cgroup/jobs.slice`). `root` is the file system's root.
    ///
    /// # Errors
    /// There is none.
    pub fn open(root: &Path, path: &str) -> Result<Cgroup, NoCgroup> {
        let mounted = mounted(root)?;
        let inside = |mount: &PathBuf| Path::new(path).strip_prefix(mount).ok().map(Path::to_owned);
        // The longest mount that fits: version 1 mounts its hierarchies below one of version 2, or below a directory that is none.
        let relative = mounted.iter().filter_map(inside).min_by_key(|rest| rest.components().count());
        let relative = relative.unwrap_or_else(|| PathBuf::from(path.trim_start_matches('/')));
        let relative: PathBuf =
            relative.components().filter(|part| matches!(part, std::path::Component::Normal(_))).collect();
        let groups = mounted.iter().map(|mount| Cgroup::at(root, mount, &relative)).filter(Cgroup::exists);
        let groups: Vec<Cgroup> = groups.collect();
        // A path may exist in several hierarchies of version 1, and its processes be in one.
        let peopled = groups.iter().find(|group| !group.members().is_empty()).or(groups.first()).cloned();
        peopled.ok_or_else(|| NoCgroup::NoPath { hint: near(root, &mounted, &relative.display().to_string(), false) })
    }

    /// The cgroup of a systemd unit, by its name; `.service` may be left out.
    ///
    /// # Errors
    /// None has that name, or several have.
    pub fn of_unit(root: &Path, unit: &str) -> Result<Cgroup, NoCgroup> {
        let mounted = mounted(root)?;
        let name = if unit.contains('.') { unit.to_owned() } else { format!("{unit}.service") };
        for mount in &mounted {
            let found: Vec<PathBuf> = below(root, mount)
                .into_iter()
                .filter(|path| path.file_name().is_some_and(|last| last == name.as_str()))
                .collect();
            match found.as_slice() {
                [] => {}
                [one] => return Ok(Cgroup::at(root, mount, one)),
                several => {
                    let paths = several.iter().map(|path| format!("/{}", path.display())).collect();
                    return Err(NoCgroup::SeveralUnits { paths });
                }
            }
        }
        Err(NoCgroup::NoUnit { hint: near(root, &mounted, &name, true) })
    }

    fn at(root: &Path, mount: &Path, relative: &Path) -> Cgroup {
        let directory = root.join(mount.strip_prefix("/").unwrap_or(mount)).join(relative);
        Cgroup { directory, name: format!("/{}", relative.display()) }
    }

    /// Its path within its hierarchy, as /proc/PID/cgroup has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory in the file system.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether it is there.
    pub fn exists(&self) -> bool {
        self.directory.join("cgroup.procs").exists()
    }

    /// The processes in it and in those below it. None if it has vanished.
    pub fn members(&self) -> BTreeSet<u32> {
        let mut pids = BTreeSet::new();
        let mut left = vec![self.directory.clone()];
        let mut seen = 0;
        while let Some(directory) = left.pop() {
            seen += 1;
            // A threaded cgroup has no list of processes; they are in that of its domain, above it.
            if let Ok(text) = std::fs::read_to_string(directory.join("cgroup.procs")) {
                pids.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
            if seen < MOST {
                left.extend(directories(&directory));
            }
        }
        // A process of another pid namespace is shown as 0: it cannot be managed from here.
        pids.remove(&0);
        pids
    }
}

/// The mount points of the hierarchies, version 2 first.
fn mounted(root: &Path) -> Result<Vec<PathBuf>, NoCgroup> {
    let mounts = std::fs::read_to_string(root.join("proc/mounts")).map_err(NoCgroup::Mounts)?;
    let found = hierarchies(&mounts);
    if found.is_empty() { Err(NoCgroup::NoHierarchy) } else { Ok(found) }
}

fn directories(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

/// All cgroups of a hierarchy, by their paths within it.
fn below(root: &Path, mount: &Path) -> Vec<PathBuf> {
    let top = root.join(mount.strip_prefix("/").unwrap_or(mount));
    let mut left = vec![top.clone()];
    let mut found = Vec::new();
    while let Some(directory) = left.pop() {
        if found.len() >= MOST {
            break;
        }
        left.extend(directories(&directory));
        found.extend(directory.strip_prefix(&top).ok().map(Path::to_owned));
    }
    found.sort();
    found
}

/// The cgroup that is called nearly so, as text that goes on.
fn near(root: &Path, mounted: &[PathBuf], wanted: &str, as_unit: bool) -> String {
    let all: BTreeSet<PathBuf> = mounted.iter().flat_map(|mount| below(root, mount)).collect();
    let last = |path: &PathBuf| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = wanted.rsplit('/').next().unwrap_or(wanted);
    let names: Vec<String> = all.iter().filter_map(last).collect();
    let Some(found) = nearest(name, names.iter().map(String::as_str)) else { return String::new() };
    if as_unit {
        return format!("; did you mean --unit {found}?");
    }
    let path = all.iter().find(|path| last(path).as_deref() == Some(found));
    path.map_or_else(String::new, |path| format!("; did you mean --cgroup /{}?", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with one hierarchy of version 2 and one of version 1.
    fn machine() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let mounts =
            "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        write("proc/mounts", mounts);
        for (group, pids) in [
            ("unified", "1\n"),
            ("unified/system.slice", ""),
            ("unified/system.slice/redis.service", "41\n42\n"),
            ("unified/system.slice/redis.service/worker", "43\n0\n"),
            ("unified/user.slice/app.service", "50\n"),
            ("unified/other.slice/app.service", "51\n"),
            ("unified/docker", ""),
            ("memory", "1\n"),
            ("memory/docker", "60\n"),
        ] {
            write(&format!("sys/fs/cgroup/{group}/cgroup.procs"), pids);
        }
        root
    }

    #[test]
    fn a_path_is_within_a_hierarchy_or_in_the_file_system() {
        let root = machine();
        for path in [
            "/system.slice/redis.service",
            "system.slice/redis.service/",
            "/sys/fs/cgroup/unified/system.slice/redis.service",
        ] {
            let group = Cgroup::open(root.path(), path).unwrap();
            assert_eq!(group.name(), "/system.slice/redis.service", "{path}");
            assert_eq!(group.members(), BTreeSet::from([41, 42, 43]), "{path}");
        }
        // In version 1 the processes are where they are.
        assert_eq!(Cgroup::open(root.path(), "/docker").unwrap().members(), BTreeSet::from([60]));
        let told = Cgroup::open(root.path(), "/system.slice/redi.service").unwrap_err().to_string();
        assert!(told.contains("--cgroup /system.slice/redis.service?"), "{told}");
        assert!(Cgroup::open(root.path(), "../../../../proc").is_err(), "no way out of the hierarchies");
    }

    #[test]
    fn a_unit_is_found_by_its_name_and_two_are_named() {
        let root = machine();
        for unit in ["redis", "redis.service"] {
            assert_eq!(Cgroup::of_unit(root.path(), unit).unwrap().name(), "/system.slice/redis.service");
        }
        let told = Cgroup::of_unit(root.path(), "app").unwrap_err().to_string();
        assert!(told.contains("--cgroup /other.slice/app.service or --cgroup /user.slice/app.service"), "{told}");
        let told = Cgroup::of_unit(root.path(), "redsi").unwrap_err().to_string();
        assert!(told.contains("--unit redis.service?"), "{told}");
    }

    #[test]
    fn one_that_vanishes_has_no_members_and_is_no_error() {
        let root = machine();
        let group = Cgroup::open(root.path(), "/system.slice/redis.service").unwrap();
        std::fs::remove_dir_all(root.path().join("sys/fs/cgroup/unified/system.slice/redis.service")).unwrap();
        assert!(!group.exists() && group.members().is_empty());
    }
}
