//! The processes of the machine as a survey lists them: how much memory each has, and what it is.
//!
//! In: /proc. Out: [`Listed`], one a process that has memory. Must not: need rights: all of this is for everybody to read.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_core::units::Bytes;

use super::groups::Member;
use crate::process::{Stat, read_below};
use crate::processes::{Facts, all};

/// A process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listed {
    /// What it is.
    pub(crate) member: Member,
    /// Start time, clock ticks after boot.
    pub(crate) start_time: u64,
    /// The user it runs as.
    pub(crate) user: u32,
    /// Anonymous memory.
    pub(crate) anonymous: Bytes,
    /// All resident memory.
    pub(crate) resident: Bytes,
    /// In swap.
    pub(crate) swapped: Bytes,
    /// Processor time, clock ticks.
    pub(crate) ticks: u64,
    /// Whether it is a virtual machine under KVM.
    pub(crate) kvm: bool,
}

/// The processes with memory of their own, but for this one. Of those that `known` has by pid and start time, only what changes is read.
pub(crate) fn list(known: impl Fn(u32, u64) -> Option<Listed>) -> Vec<Listed> {
    let own = std::process::id();
    let proc = Path::new("/proc");
    let of = |pid: u32| {
        let status = read_below(proc, pid, "status").ok()?;
        let sizes = Sizes::parse(&status)?;
        let stat = Stat::read(pid).ok()?;
        let before = match known(pid, stat.start_time) {
            Some(before) => before,
            None => fresh(pid)?,
        };
        let cgroups = read_below(proc, pid, "cgroup").unwrap_or_default();
        Some(Listed {
            // An exec gives it another name.
            member: Member { parent: sizes.parent, name: stat.command, cgroups, ..before.member },
            start_time: stat.start_time,
            anonymous: sizes.anonymous,
            resident: sizes.resident,
            swapped: sizes.swapped,
            ticks: stat.user_ticks + stat.system_ticks,
            ..before
        })
    };
    all().into_iter().filter(|pid| *pid != own).filter_map(of).collect()
}

fn fresh(pid: u32) -> Option<Listed> {
    let facts = Facts::read(pid).ok().flatten()?;
    let member = Member { pid, parent: facts.parent, name: facts.name, exe: facts.exe, cgroups: String::new() };
    let kvm = facts.guest.is_some_and(|guest| guest.kvm);
    Some(Listed { member, user: facts.user, kvm, ..Listed::default() })
}

/// The processes that another Terrace watches, and which: it holds a pidfd of each, whose entry in fdinfo names it (pidfd_open(2)). `names` are those of all
/// processes by pid.
pub(crate) fn watched_by_others<'a>(proc: &Path, names: impl Iterator<Item = (u32, &'a str)>) -> BTreeMap<u32, String> {
    let mut watched = BTreeMap::new();
    for (pid, name) in names.filter(|(_, name)| name.starts_with("terrace")) {
        let entries = std::fs::read_dir(proc.join(format!("{pid}/fdinfo"))).into_iter().flatten().flatten();
        for text in entries.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()) {
            let held = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<u32>().ok());
            watched.extend(held.map(|held| (held, format!("{name} (pid {pid})"))));
        }
    }
    watched
}

/// What /proc/PID/status says of its memory (proc_pid_status(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    parent: u32,
    anonymous: Bytes,
    resident: Bytes,
    swapped: Bytes,
}

impl Sizes {
    /// `None` for one without memory: a kernel thread, a zombie.
    fn parse(status: &str) -> Option<Sizes> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok())
        };
        field("VmSize")?;
        let kib = |name| Bytes::kib(field(name).unwrap_or(0));
        Some(Sizes {
            parent: field("PPid").and_then(|pid| pid.try_into().ok()).unwrap_or(0),
            anonymous: kib("RssAnon"),
            resident: kib("RssAnon") + kib("RssFile") + kib("RssShmem"),
            swapped: kib("VmSwap"),
        })
    }
}

/// The users by number, as /etc/passwd has them.
pub(crate) fn user_name(passwd: &str, user: u32) -> String {
    let number = user.to_string();
    let named = passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then(|| name.to_owned())
    });
    named.unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_status_and_kernel_threads_have_none() {
        let status = "Name:\tx y\nPPid:\t7\nVmSize:\t 900 kB\nRssAnon:\t 100 kB\nRssFile:\t 20 kB\nRssShmem:\t 4 kB\nVmSwap:\t 8 kB\n";
        let sizes = Sizes::parse(status).unwrap();
        assert_eq!((sizes.parent, sizes.anonymous, sizes.swapped), (7, Bytes::kib(100), Bytes::kib(8)));
        assert_eq!(sizes.resident, Bytes::kib(124));
        assert_eq!(Sizes::parse("Name:\tkthreadd\nPPid:\t0\n"), None);
    }

    #[test]
    fn what_another_terrace_holds_is_its_own() {
        let proc = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("40/fdinfo/3", "pos:\t0\nflags:\t02\n"),
            ("40/fdinfo/4", "pos:\t0\nPid:\t77\nNSpid:\t77\n"),
            ("40/fdinfo/5", "Pid:\t-1\n"),
            ("41/fdinfo/4", "Pid:\t78\n"),
        ] {
            let path = proc.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = watched_by_others(proc.path(), [(40, "terraced"), (41, "systemd"), (42, "terrace")].into_iter());
        assert_eq!(found, BTreeMap::from([(77, "terraced (pid 40)".to_owned())]));
    }

    #[test]
    fn users_have_names_or_numbers() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\n";
        assert_eq!((user_name(passwd, 1000), user_name(passwd, 7)), ("ann".to_owned(), "7".to_owned()));
    }

    #[test]
    fn all_but_this_process_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let listed = list(|_, _| None);
        let found = listed.iter().find(|one| one.member.pid == child.id()).cloned();
        child.kill().unwrap();
        child.wait().unwrap();
        let found = found.expect("the child has memory");
        assert_eq!(found.member.parent, std::process::id());
        assert!(found.resident > Bytes::ZERO && found.start_time > 0);
        assert!(listed.iter().all(|one| one.member.pid != std::process::id()));
    }
}
