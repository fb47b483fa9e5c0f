//! What holds the machine up and is therefore left alone when everything is managed: by name, and by how it runs.
//!
//! In: the facts of a process, and names. Out: why it is left alone, if it is. Must not: move anything, or keep a process from being managed that
//! somebody names himself: this is asked for `--all` and `all = true` only.
//!
//! Names are a list that the configuration can change. What locks all its memory, runs in real time, is the first process or is what started Terrace
//! is left alone under whatever name: nobody who asked for that wants to wait for a page.

use std::collections::BTreeSet;
use std::fmt;

use terrace_core::text::visible;

use crate::process::Stat;
use crate::processes::Facts;

/// The names that are left alone unless the configuration has others: by what they hold up. A star at the end stands for any rest.
pub const NEVER: &[&str] = &[
    // The system and its parts: they restart what fails, and log what went wrong.
    "systemd*",
    "(sd-*",
    "init",
    "openrc*",
    "runit*",
    "s6-*",
    "dbus-daemon",
    "dbus-broker*",
    "udevd",
    "(udev-worker)",
    "elogind*",
    "polkitd",
    "auditd",
    "rsyslogd",
    "syslog-ng",
    "watchdog",
    "earlyoom",
    "cron",
    "crond",
    // The way in: who comes to see why a machine is slow must not wait for it.
    "sshd*",
    "dropbear",
    "login",
    "agetty",
    "getty",
    "NetworkManager",
    "wpa_supplicant",
    "dhcpcd",
    "dhclient",
    "chronyd",
    // Storage and clusters: a late answer of theirs counts as a failure of the machine.
    "multipathd",
    "iscsid",
    "corosync",
    "pacemakerd",
    // Containers: their health checks have time limits, and everything in them waits.
    "containerd*",
    "dockerd",
    "docker-proxy",
    "docker-init",
    "tini",
    "runc",
    "crun",
    "crio",
    "conmon*",
    "podman",
    "buildkitd",
    "kubelet",
    "k3s*",
    "kube-proxy",
    // What draws the screen, and takes the keys.
    "Xorg",
    "X",
    "Xwayland",
    "gnome-shell",
    "kwin_*",
    "plasmashell",
    "mutter*",
    "weston",
    "sway",
    "Hyprland",
    "gdm*",
    "sddm*",
    "lightdm",
    "pipewire*",
    "wireplumber",
    "pulseaudio",
    // Terrace.
    "terrace",
    "terraced",
];

/// The longest name of a list, in bytes: that of a file (NAME_MAX of linux/limits.h).
const LONGEST_NAME: usize = 255;
/// A process that has locked this share of its memory has locked all that counts: what mlockall(2) leaves out are guard pages and the kernel's own.
const ALL_BUT: u64 = 10;

/// Why a name cannot stand in the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("a name is empty")]
    Empty,
    /// It has a star elsewhere than at the end.
    #[error("{0:?}: a star may stand at the end of a name only, as in systemd*")]
    Star(String),
    /// It is a path.
    #[error(
        "{0:?} is a path: write the name of the file alone; daemon.exclude takes paths, as in {{ exe = \"/usr/bin/x*\" }}"
    )]
    Path(String),
    /// It is longer than any file's name.
    #[error("a name has at most {LONGEST_NAME} bytes")]
    Long,
    /// It would leave everything alone.
    #[error("\"*\" leaves every process alone: then leave `all` out")]
    Everything,
}

/// Why a process is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeftAlone {
    /// Its name, or that of its executable, is in the list under this entry.
    Named(String),
    /// It is the first process.
    First,
    /// It has locked all its memory.
    Locked,
    /// It runs in real time, or by deadlines.
    RealTime,
    /// It is Terrace, or started Terrace.
    Ours,
}

impl fmt::Display for LeftAlone {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftAlone::Named(name) => {
                write!(out, "{:?} is in the list of what is never touched (daemon.never)", visible(name))
            }
            LeftAlone::First => out.write_str("it is the first process"),
            LeftAlone::Locked => out.write_str("it has locked all its memory"),
            LeftAlone::RealTime => out.write_str("it runs in real time or by deadlines"),
            LeftAlone::Ours => out.write_str("it is Terrace, or started Terrace"),
        }
    }
}

/// What is never touched where everything is managed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Never {
    names: Vec<String>,
    /// Pids of Terrace, its helpers, and of those that started it.
    ours: BTreeSet<u32>,
}

impl Default for Never {
    /// The names of [`NEVER`].
    fn default() -> Never {
        Never { names: NEVER.iter().map(|name| (*name).to_owned()).collect(), ours: BTreeSet::new() }
    }
}

impl Never {
    /// A list of these names.
    ///
    /// # Errors
    /// A name makes no sense.
    pub fn of(names: impl IntoIterator<Item = String>) -> Result<Never, NameError> {
        let names = names.into_iter().map(checked).collect::<Result<_, _>>()?;
        Ok(Never { names, ours: BTreeSet::new() })
    }

    /// These names as well.
    ///
    /// # Errors
    /// A name makes no sense.
    pub fn and(mut self, names: impl IntoIterator<Item = String>) -> Result<Never, NameError> {
        for name in names {
            self.names.push(checked(name)?);
        }
        Ok(self)
    }

    /// Leaves this process alone, and all that it was started by: the shell and the session that it runs in.
    pub fn and_ancestors_of(mut self, pid: u32) -> Never {
        let mut next = Some(pid);
        // Each pid once: a parent that is given to another process meanwhile could lead in a ring.
        while let Some(pid) = next.filter(|pid| *pid != 0 && self.ours.insert(*pid)) {
            next = Facts::parent_of(pid);
        }
        self
    }

    /// The names.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Why a process is left alone, if it is.
    pub fn leaves_alone(&self, facts: &Facts) -> Option<LeftAlone> {
        if facts.pid == 1 {
            return Some(LeftAlone::First);
        }
        if self.ours.contains(&facts.pid) {
            return Some(LeftAlone::Ours);
        }
        if facts.locks_memory {
            return Some(LeftAlone::Locked);
        }
        if facts.real_time {
            return Some(LeftAlone::RealTime);
        }
        let file = facts.exe.as_deref().and_then(|path| path.rsplit('/').next()).unwrap_or("");
        let found = self.names.iter().find(|entry| is_meant(entry, &facts.name) || is_meant(entry, file));
        found.map(|entry| LeftAlone::Named(entry.clone()))
    }
}

fn checked(name: String) -> Result<String, NameError> {
    match name.trim_end_matches('*') {
        _ if name.is_empty() => Err(NameError::Empty),
        _ if name.len() > LONGEST_NAME => Err(NameError::Long),
        "" => Err(NameError::Everything),
        _ if name.contains('/') => Err(NameError::Path(name)),
        stem if stem.contains('*') || name.len() > stem.len() + 1 => Err(NameError::Star(name)),
        _ => Ok(name),
    }
}

/// Whether an entry means a name. The kernel cuts a command's name to 15 bytes, so an entry that is longer means what it begins with.
fn is_meant(entry: &str, name: &str) -> bool {
    const KEPT: usize = 15;
    match entry.strip_suffix('*') {
        Some(stem) => name.starts_with(stem),
        None => {
            name == entry || name.len() == KEPT && entry.len() > KEPT && entry.as_bytes().starts_with(name.as_bytes())
        }
    }
}

/// Whether a process has locked all its memory: kilobytes of VmLck, of VmRSS and of VmSwap in /proc/PID/status. What was in swap before counts: a
/// program that is all out but for a little that it locked is none.
pub(crate) fn locks_all(locked: u64, resident: u64, swapped: u64) -> bool {
    let all = resident.saturating_add(swapped);
    locked > 0 && locked >= all - all / ALL_BUT
}

/// Whether a line of /proc/PID/stat, or of a thread, is of one that the scheduler runs in real time: SCHED_FIFO, SCHED_RR or SCHED_DEADLINE of
/// linux/sched.h, field 41 of proc_pid_stat(5).
pub(crate) fn is_real_time(stat: &str) -> bool {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    matches!(rest.split_ascii_whitespace().nth(41 - 3), Some("1" | "2" | "6"))
}

/// Whether a thread of a process runs in real time. A file a thread: asked once, before a process is taken up.
pub fn has_real_time_thread(pid: u32) -> bool {
    // A first thread alone is in its facts.
    if Stat::read(pid).is_ok_and(|stat| stat.threads < 2) {
        return false;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read(thread.path().join("stat")).ok())
        .any(|text| is_real_time(&String::from_utf8_lossy(&text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pid: u32, name: &str, exe: &str) -> Facts {
        Facts {
            pid,
            start_time: 1,
            parent: 1,
            name: name.to_owned(),
            exe: Some(exe.to_owned()),
            user: 0,
            cgroups: Vec::new(),
            container: None,
            guest: None,
            locks_memory: false,
            real_time: false,
        }
    }

    #[test]
    fn what_holds_the_machine_is_left_alone_and_programs_are_not() {
        let never = Never::default();
        for (name, exe) in [
            ("systemd", "/usr/lib/systemd/systemd"),
            ("systemd-journal", "/usr/lib/systemd/systemd-journald"),
            ("sshd-session", "/usr/lib/openssh/sshd-session"),
            ("dbus-daemon", "/usr/bin/dbus-daemon"),
            ("containerd-shim", "/usr/bin/containerd-shim-runc-v2"),
            ("kubelet", "/usr/bin/kubelet"),
            ("conmonrs", "/usr/bin/conmonrs"),
            ("Xorg", "/usr/lib/xorg/Xorg"),
            ("renamed", "/usr/bin/dockerd"),
            ("terraced", "/usr/bin/terraced"),
        ] {
            assert!(matches!(never.leaves_alone(&facts(7, name, exe)), Some(LeftAlone::Named(_))), "{name}");
        }
        for (name, exe) in [
            ("bash", "/bin/bash"),
            ("python3", "/usr/bin/python3"),
            ("xsystemd", "/opt/xsystemd"),
            ("sway-app", "/opt/sway-app"),
        ] {
            assert_eq!(never.leaves_alone(&facts(7, name, exe)), None, "{name}");
        }
    }

    #[test]
    fn how_a_process_runs_counts_under_whatever_name() {
        let never = Never::of([]).unwrap();
        let python = facts(7, "python3", "/usr/bin/python3");
        assert_eq!(never.leaves_alone(&python), None);
        assert_eq!(never.leaves_alone(&Facts { pid: 1, ..python.clone() }), Some(LeftAlone::First));
        assert_eq!(never.leaves_alone(&Facts { locks_memory: true, ..python.clone() }), Some(LeftAlone::Locked));
        assert_eq!(never.leaves_alone(&Facts { real_time: true, ..python }), Some(LeftAlone::RealTime));
    }

    #[test]
    fn terrace_and_what_it_was_started_by_are_left_alone() {
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        let never = Never::of([]).unwrap().and_ancestors_of(own);
        for pid in [own, parent] {
            assert_eq!(never.leaves_alone(&facts(pid, "x", "/x")), Some(LeftAlone::Ours), "{pid}");
        }
        assert_eq!(never.leaves_alone(&facts(1 << 22, "x", "/x")), None);
    }

    #[test]
    fn a_name_that_makes_no_sense_is_refused_with_the_reason() {
        let refused = |name: &str| Never::of([name.to_owned()]).unwrap_err();
        assert_eq!(refused(""), NameError::Empty);
        assert_eq!(refused("*"), NameError::Everything);
        assert!(refused("/usr/bin/x").to_string().contains("daemon.exclude"));
        assert!(refused("a*b").to_string().contains("at the end") && refused("a**").to_string().contains("at the end"));
        assert_eq!(refused(&"x".repeat(256)), NameError::Long);
        assert_eq!(Never::of(["ssh*".to_owned()]).unwrap().and(["db".to_owned()]).unwrap().names(), ["ssh*", "db"]);
    }

    #[test]
    fn every_name_of_the_list_makes_sense() {
        assert_eq!(Never::of(NEVER.iter().map(|name| (*name).to_owned())).unwrap(), Never::default());
    }

    #[test]
    fn a_name_cut_by_the_kernel_is_known() {
        assert!(is_meant("a-program-of-a-long-name", "a-program-of-a-"));
        assert!(!is_meant("a-program-of-a-long-name", "a-program-of-b-") && !is_meant("long", "lon"));
    }

    #[test]
    fn locked_memory_is_all_of_it_or_does_not_count() {
        for (locked, resident, swapped, all) in [
            (0, 1000, 0, false),
            (64, 100_000, 0, false),
            (1000, 1000, 0, true),
            // The address space is larger than what is resident.
            (5000, 1000, 0, true),
            (910, 1000, 0, true),
            // Nearly all of it is in swap, and a little is locked.
            (64, 70, 100_000, false),
            (0, 0, 0, false),
        ] {
            assert_eq!(locks_all(locked, resident, swapped), all, "{locked} {resident} {swapped}");
        }
    }

    #[test]
    fn the_scheduling_policy_is_read_behind_any_name() {
        let stat = |policy: &str| format!("7 (a) b) S 1 {}0 {policy} 0 0", "0 ".repeat(35));
        for (policy, real_time) in [("0", false), ("1", true), ("2", true), ("3", false), ("5", false), ("6", true)] {
            assert_eq!(is_real_time(&stat(policy)), real_time, "{policy}");
        }
        assert!(!is_real_time("") && !is_real_time("7 (x"));
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(!is_real_time(&own) && !has_real_time_thread(std::process::id()));
    }
}
