//! To which row a process belongs: a service, a container, a user's sessions, a cgroup, or the program itself.
//!
//! In: the text of /proc/PID/cgroup, and who runs what. Out: a [`Group`]. Must not: read a file.

use std::collections::BTreeMap;

use super::view::Kind;
use crate::processes::container;

/// Digits of a container's identity that are shown, as `docker ps` does.
const IDENTITY: usize = 12;

/// A row's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Group {
    /// What it is.
    pub(crate) kind: Kind,
    /// Its name; of a program that of the process which leads it.
    pub(crate) name: String,
    /// Its cgroup, without a slash at the end; `None` for a program.
    pub(crate) cgroup: Option<String>,
    /// The leader's pid, for a program.
    pub(crate) leader: Option<u32>,
}

/// What of a process decides where it belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    pub(crate) name: String,
    pub(crate) exe: Option<String>,
    /// The text of its /proc/PID/cgroup.
    pub(crate) cgroups: String,
}

/// The paths of a process by hierarchy (cgroups(7)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths<'a> {
    /// Of version 2.
    pub(crate) unified: Option<&'a str>,
    /// Of systemd's own hierarchy of version 1.
    systemd: Option<&'a str>,
    /// Of the memory controller of version 1.
    pub(crate) memory: Option<&'a str>,
    all: Vec<&'a str>,
}

impl<'a> Paths<'a> {
    pub(crate) fn parse(text: &'a str) -> Paths<'a> {
        let mut paths = Paths::default();
        for line in text.lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let path = path.trim_end_matches('/');
            paths.all.push(path);
            match controllers {
                "" => paths.unified = Some(path),
                "name=systemd" => paths.systemd = Some(path),
                list if list.split(',').any(|name| name == "memory") => paths.memory = Some(path),
                _ => {}
            }
        }
        paths
    }

    /// The path that says most of what a process is: the first that is not the top.
    fn telling(&self) -> &'a str {
        let named = self.all.iter().find(|path| container(path).is_some()).copied();
        let in_order = [named, self.unified, self.systemd, self.memory];
        in_order.into_iter().flatten().find(|path| !path.is_empty()).unwrap_or("")
    }
}

/// The rows of these processes. `base` is the text of the cgroups of the first process of this container, of which all here are a part: what lies there is a
/// program, not a row. `users` names users by number.
pub(crate) fn groups(
    members: &[Member],
    base: Option<&str>,
    by_program: bool,
    user_name: impl Fn(u32) -> String,
) -> BTreeMap<u32, Group> {
    let base = base.map(|text| Paths::parse(text).telling().to_owned()).unwrap_or_default();
    let by_pid: BTreeMap<u32, &Member> = members.iter().map(|member| (member.pid, member)).collect();
    let of = |member: &Member| {
        if by_program {
            return None;
        }
        let path = Paths::parse(&member.cgroups).telling().to_owned();
        let (above, below) = match path.strip_prefix(base.as_str()) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => (base.as_str(), rest),
            _ => ("", path.as_str()),
        };
        of_path(above, below, &user_name)
    };
    let mut found: BTreeMap<u32, Group> = BTreeMap::new();
    for member in members {
        let group = of(member).unwrap_or_else(|| {
            let leader = leader(member, &by_pid);
            Group { kind: Kind::Program, name: leader.name.clone(), cgroup: None, leader: Some(leader.pid) }
        });
        found.insert(member.pid, group);
    }
    found
}

/// The row of a cgroup below another; `None` for the top, where programs lie that nobody put anywhere.
fn of_path(above: &str, path: &str, user_name: &impl Fn(u32) -> String) -> Option<Group> {
    if path.is_empty() {
        return None;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let up_to = |last: usize| format!("{above}/{}", parts[..=last].join("/"));
    let group = |kind, name: String, last: usize| Group { kind, name, cgroup: Some(up_to(last)), leader: None };
    if let Some(at) = parts.iter().position(|part| container(part).is_some()) {
        let identity = container(parts[at]).unwrap_or_default();
        return Some(group(Kind::Container, identity[..IDENTITY].to_owned(), at));
    }
    let user = parts.iter().position(|part| user_of(part).is_some());
    if let (Some(at), true) = (user, parts.first() == Some(&"user.slice")) {
        let name = user_of(parts[at]).map(user_name).unwrap_or_default();
        return Some(group(Kind::Session, name, at));
    }
    // Below a service there may be cgroups of its own making.
    if let Some(at) = parts.iter().position(|part| part.ends_with(".service")) {
        return Some(group(Kind::Service, parts[at].to_owned(), at));
    }
    Some(group(Kind::Cgroup, path.to_owned(), parts.len() - 1))
}

/// `user-1000.slice` is of user 1000.
fn user_of(part: &str) -> Option<u32> {
    part.strip_prefix("user-")?.strip_suffix(".slice")?.parse().ok()
}

/// The uppermost of its ancestors that runs the same program.
fn leader<'a>(member: &'a Member, by_pid: &BTreeMap<u32, &'a Member>) -> &'a Member {
    let mut leader = member;
    // As deep as the tree of processes can be looked through; a chain that is longer names another leader, and nothing worse.
    for _ in 0..64 {
        let parent = by_pid.get(&leader.parent);
        match parent.filter(|parent| parent.exe.is_some() && parent.exe == member.exe && parent.name == member.name) {
            Some(parent) => leader = parent,
            None => break,
        }
    }
    leader
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(pid: u32, parent: u32, name: &str, cgroups: &str) -> Member {
        let exe = Some(format!("/usr/bin/{name}"));
        Member { pid, parent, name: name.to_owned(), exe, cgroups: cgroups.to_owned() }
    }

    fn row(cgroups: &str) -> (Kind, String, Option<String>) {
        let members = [member(7, 1, "x", cgroups)];
        let group = groups(&members, None, false, |user| format!("user{user}")).remove(&7).unwrap();
        (group.kind, group.name, group.cgroup)
    }

    #[test]
    fn a_row_is_what_people_call_it() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            row("0::/system.slice/redis.service/worker\n"),
            (Kind::Service, "redis.service".into(), some("/system.slice/redis.service"))
        );
        let identity = "0123456789abcdef".repeat(4);
        assert_eq!(
            row(&format!("4:memory:/docker/{identity}/inner\n0::/\n")),
            (Kind::Container, "0123456789ab".into(), some(&format!("/docker/{identity}")))
        );
        assert_eq!(
            row("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox.scope\n"),
            (Kind::Session, "user1000".into(), some("/user.slice/user-1000.slice"))
        );
        assert_eq!(
            row("0::/user.slice/user-1000.slice/session-3.scope\n").2,
            some("/user.slice/user-1000.slice"),
            "one row a user"
        );
        assert_eq!(row("0::/jobs/one/\n"), (Kind::Cgroup, "/jobs/one".into(), some("/jobs/one")));
        assert_eq!(
            row("9:name=systemd:/\n4:memory:/batch\n0::/\n").1,
            "/batch",
            "version 1 where it alone says something"
        );
        assert_eq!(row("0::/\n"), (Kind::Program, "x".into(), None));
    }

    #[test]
    fn children_of_the_same_program_are_of_its_row() {
        let members = [
            member(10, 1, "nginx", ""),
            member(11, 10, "nginx", ""),
            member(12, 11, "nginx", ""),
            member(13, 10, "sh", ""),
        ];
        let found = groups(&members, None, false, |_| String::new());
        assert_eq!([10, 11, 12, 13].map(|pid| found[&pid].leader), [Some(10), Some(10), Some(10), Some(13)]);
    }

    #[test]
    fn in_a_container_its_own_cgroup_is_no_row() {
        let base = format!("0::/docker/{}", "ab".repeat(32));
        let members =
            [member(1, 0, "app", &base), member(2, 1, "db", &base), member(3, 1, "job", &format!("{base}/jobs"))];
        let found = groups(&members, Some(&base), false, |_| String::new());
        assert_eq!([1, 2, 3].map(|pid| found[&pid].kind), [Kind::Program, Kind::Program, Kind::Cgroup]);
        assert_eq!(
            (found[&3].name.as_str(), found[&3].cgroup.clone()),
            ("/jobs", Some(format!("{}/jobs", &base[3..])))
        );
        assert_eq!(groups(&members, None, true, |_| String::new())[&3].kind, Kind::Program, "asked for programs");
    }
}
