//! The processes of this machine: the facts about each, to choose which to manage.
//!
//! In: /proc. Out: [`Facts`]. Must not: choose, or hold on to a process; [`crate::process::Process`] does that, and the start
//! time in the facts shows whether it is still the same.

use std::collections::BTreeSet;
use std::path::Path;

use crate::machine_programs::{is_real_time, locks_all};
use crate::process::{ProcessError, Stat, read_below};

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its pid.
    pub pid: u32,
    /// Its start time, clock ticks after boot.
    pub start_time: u64,
    /// Its parent's pid.
    pub parent: u32,
    /// The command's name, at most 15 bytes.
    pub name: String,
    /// The path of its executable; `None` if it may not be known.
    pub exe: Option<String>,
    /// The user it runs as (the real user id).
    pub user: u32,
    /// Its cgroups: the one of cgroup v2, and those of v1's hierarchies where they differ.
    pub cgroups: Vec<String>,
    /// The identity of its container, if its cgroup names one: 64 hexadecimal digits.
    pub container: Option<String>,
    /// What kind of virtual machine it is, if it is one.
    pub guest: Option<Guest>,
    /// Whether it has locked all its memory.
    pub locks_memory: bool,
    /// Whether its first thread runs in real time or by deadlines.
    pub real_time: bool,
}

/// A process that is a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guest {
    /// Whether it runs by KVM: its accesses are then marked in tables of their own, not in the process's.
    pub kvm: bool,
}

impl Facts {
    /// Reads a process. `None` for one without memory of its own: a kernel thread, or a zombie.
    ///
    /// # Errors
    /// When it is gone or may not be read.
    pub fn read(pid: u32) -> Result<Option<Facts>, ProcessError> {
        Facts::read_under(Path::new("/proc"), pid)
    }

    fn read_under(proc: &Path, pid: u32) -> Result<Option<Facts>, ProcessError> {
        let directory = proc.join(pid.to_string());
        let read = |file: &str| read_below(proc, pid, file);
        let status = read("status")?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|rest| rest.split_ascii_whitespace().next())
        };
        // Kernel threads and zombies have no memory, and status then has no VmSize.
        if field("VmSize").is_none() {
            return Ok(None);
        }
        let text = read("stat")?;
        let stat = Stat::parse(&text).ok_or(ProcessError::Gone { pid })?;
        let number = |name: &str| field(name).and_then(|text| text.parse().ok());
        let exe = std::fs::read_link(directory.join("exe")).ok();
        // A binary that was replaced while it runs is still meant by its path.
        let exe = exe.map(|path| path.to_string_lossy().trim_end_matches(" (deleted)").to_owned());
        let cgroups = parse_cgroups(&read("cgroup").unwrap_or_default());
        let guest = guest(&directory, exe.as_deref(), &stat.command);
        let kilobytes = |name: &str| field(name).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        Ok(Some(Facts {
            pid,
            start_time: stat.start_time,
            parent: number("PPid").unwrap_or(0),
            name: stat.command,
            user: number("Uid").unwrap_or(u32::MAX),
            container: cgroups.iter().find_map(|path| container(path)),
            exe,
            cgroups,
            guest,
            locks_memory: locks_all(kilobytes("VmLck"), kilobytes("VmRSS"), kilobytes("VmSwap")),
            real_time: is_real_time(&text),
        }))
    }

    /// The parent of a process; `None` if it is gone, or has none here.
    pub(crate) fn parent_of(pid: u32) -> Option<u32> {
        let status = read_below(Path::new("/proc"), pid, "status").ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
    }
}

/// The pids of all processes, in order.
pub fn all() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

/// The number of a user by name, or the number itself. Looked up in /etc/passwd: what a directory service knows beyond that is
/// given by number.
pub fn user_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    id_in(&std::fs::read_to_string("/etc/passwd").ok()?, name)
}

/// The number of a group by name, or the number itself; from /etc/group.
pub fn group_id(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    id_in(&std::fs::read_to_string("/etc/group").ok()?, name)
}

/// The groups that list a user (by number) as a member in /etc/group; its primary group is not among them.
pub fn groups_of(user: u32) -> Vec<u32> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    groups_in(&read("/etc/passwd"), &read("/etc/group"), user)
}

fn groups_in(users: &str, groups: &str, user: u32) -> Vec<u32> {
    let number = user.to_string();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == number).then_some(name)
    });
    let Some(name) = name else { return Vec::new() };
    let lists = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let (group, members) = (fields.next()?, fields.next()?);
        members.split(',').any(|member| member == name).then(|| group.parse().ok())?
    };
    groups.lines().filter_map(lists).collect()
}

/// passwd(5) and group(5) both have the name first and the number third.
fn id_in(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next()? == name).then(|| fields.nth(1)?.parse().ok())?)
}

/// Parses /proc/PID/cgroup (cgroups(7)): "0::/path" is v2, "4:memory:/path" one of v1.
fn parse_cgroups(text: &str) -> Vec<String> {
    let paths: BTreeSet<String> =
        text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(|path| path.trim_end().to_owned()).collect();
    let several = paths.len() > 1;
    // On a machine with v1 the v2 path is often just the root, which says nothing.
    paths.into_iter().filter(|path| !(several && path == "/")).collect()
}

/// The container that a cgroup's path names: Docker, containerd, CRI-O and Podman all put 64 hexadecimal digits into it.
pub(crate) fn container(path: &str) -> Option<String> {
    path.split(['/', '-', '.', ':'])
        .rev()
        .find(|part| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .map(str::to_ascii_lowercase)
}

/// A guest is known by what it holds open, or by QEMU's name: QEMU without KVM is an ordinary program.
fn guest(directory: &Path, exe: Option<&str>, name: &str) -> Option<Guest> {
    let file = exe.and_then(|path| path.rsplit('/').next()).unwrap_or(name);
    let named = ["qemu-system-", "qemu-kvm", "kvm"].iter().any(|start| file.starts_with(start));
    let virtual_machine = ["cloud-hypervisor", "firecracker", "crosvm"].contains(&file);
    // Reading every descriptor of every process would cost too much: only likely ones are read.
    if !named && !virtual_machine {
        return None;
    }
    let descriptors = std::fs::read_dir(directory.join("fd")).into_iter().flatten().flatten();
    let kvm = descriptors
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .any(|target| target.to_string_lossy().starts_with("anon_inode:kvm-vm"));
    Some(Guest { kvm })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_in_the_groups_that_list_it_by_name() {
        let users = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\nbroken\n";
        let groups = "root:x:0:\nops:x:27:bob,ann\nlong:x:28:annabel\nbad:x:no:ann\nterrace:x:990:ann\n";
        assert_eq!(groups_in(users, groups, 1000), [27, 990]);
        assert!(groups_in(users, groups, 0).is_empty() && groups_in(users, groups, 7).is_empty());
    }

    #[test]
    fn this_process_is_found_with_its_facts() {
        let me = std::process::id();
        assert!(all().contains(&me));
        let facts = Facts::read(me).unwrap().expect("it has memory");
        assert_eq!(facts.exe.as_deref(), std::env::current_exe().unwrap().to_str());
        assert_eq!(facts.user, rustix::process::getuid().as_raw());
        assert_eq!(facts.parent, std::os::unix::process::parent_id());
        assert_eq!(facts.start_time, Stat::read(me).unwrap().start_time);
        assert!(matches!(Facts::read(1 << 22), Err(ProcessError::Gone { .. })));
    }

    #[test]
    fn cgroups_of_both_versions_are_read() {
        assert_eq!(parse_cgroups("0::/system.slice/ssh.service\n"), ["/system.slice/ssh.service"]);
        assert_eq!(parse_cgroups("4:memory:/a/b\n1:cpu:/\n0::/\n"), ["/a/b"]);
        assert_eq!(parse_cgroups("0::/\n"), ["/"]);
        assert_eq!(parse_cgroups(""), Vec::<String>::new());
    }

    #[test]
    fn containers_are_known_by_their_cgroup() {
        let identity = "0123456789abcdef".repeat(4);
        for path in [
            format!("/docker/{identity}"),
            format!("/system.slice/docker-{identity}.scope"),
            format!("/kubepods.slice/kubepods-pod12.slice/cri-containerd-{identity}.scope"),
            format!("/machine.slice/libpod-{identity}.scope/container"),
        ] {
            assert_eq!(container(&path), Some(identity.clone()), "{path}");
        }
        assert_eq!(container("/system.slice/ssh.service"), None);
    }

    #[test]
    fn guests_are_known_by_what_they_hold_open() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("fd")).unwrap();
        assert_eq!(guest(root.path(), Some("/usr/bin/qemu-system-x86_64"), "qemu"), Some(Guest { kvm: false }));
        std::os::unix::fs::symlink("anon_inode:kvm-vm", root.path().join("fd/9")).unwrap();
        assert_eq!(guest(root.path(), Some("/usr/bin/qemu-system-x86_64"), "qemu"), Some(Guest { kvm: true }));
        assert_eq!(guest(root.path(), Some("/usr/bin/redis-server"), "redis-server"), None);
    }

    #[test]
    fn users_and_groups_are_known_by_name_or_number() {
        assert_eq!((user_id("root"), user_id("1234"), group_id("root")), (Some(0), Some(1234), Some(0)));
        assert_eq!(user_id("no-such-user-here"), None);
    }
}
