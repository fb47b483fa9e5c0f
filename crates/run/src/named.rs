//! Which running processes are meant: by pid, name, cgroup or unit.
//!
//! In: what was typed, and the processes of this machine. Out: a target, or why there is none. Must not: guess between two.

use std::path::Path;

use anyhow::Context;
use terrace_linux::cgroup::{Cgroup, NoCgroup};
use terrace_linux::manager::LeftAlone;
use terrace_linux::process::{Process, ProcessError, RangeOptions};
use terrace_linux::processes::{self, Facts};
use terrace_linux::rights::Job;

use crate::args::TargetArguments;
use crate::session::TargetSpec;
use crate::session::refusal::{self, Refusal};

/// What runs already and is meant; `None` if nothing was named. Asked before anything is set up, so that a pid that is gone changes nothing.
///
/// # Errors
/// When it does not run, when a name means several, or when it has no memory of its own.
pub fn target(given: &TargetArguments, ranges: RangeOptions, job: Job) -> anyhow::Result<Option<TargetSpec>> {
    let root = Path::new("/");
    let found = |option: &str, given: &str, found: Result<Cgroup, NoCgroup>| {
        found.map(TargetSpec::Cgroup).with_context(|| format!("{option} {given}"))
    };
    if let Some(path) = &given.cgroup {
        return found("--cgroup", path, Cgroup::open(root, path)).map(Some);
    }
    if let Some(unit) = &given.unit {
        return found("--unit", unit, Cgroup::of_unit(root, unit)).map(Some);
    }
    let mut pids = match &given.name {
        Some(name) => vec![process(name)?],
        None => given.pid.clone(),
    };
    pids.sort_unstable();
    pids.dedup();
    for &pid in &pids {
        check(pid, ranges, job)?;
    }
    Ok(if pids.is_empty() { None } else { Some(TargetSpec::Pids(pids)) })
}

/// Whether there is anything to manage in a process.
fn check(pid: u32, options: RangeOptions, job: Job) -> anyhow::Result<()> {
    let refused = |error| match error {
        ProcessError::NotPermitted { .. } => {
            refusal::with_alternative(Refusal::of_others(&error, job).into(), &TargetSpec::Pids(vec![pid]))
        }
        other => other.into(),
    };
    let process = Process::open(pid).map_err(refused)?;
    if process.ranges(options).map_err(refused)?.is_empty() {
        // Every program has a stack, so this is a thread of the kernel, or a program that ended and was not waited for.
        anyhow::bail!("process {pid} has no memory of its own: it is a kernel thread, or has ended; see `ps -p {pid}`");
    }
    if process.first_thread_has_ended() {
        anyhow::bail!("process {pid} cannot be managed: {}", LeftAlone::FirstThreadEnded.reason());
    }
    Ok(())
}

/// The process of this name.
fn process(name: &str) -> anyhow::Result<u32> {
    // Processes that end meanwhile, or that may not be read, are not meant.
    let running: Vec<Facts> = processes::all()
        .into_iter()
        .filter(|&pid| pid != std::process::id())
        .filter_map(|pid| Facts::read(pid).ok().flatten())
        .collect();
    choose(name, &running)
}

/// As pidof(8) and pgrep(1) find it: the command's name, or the file name of its executable. Children of a match are
/// followed by the manager, so that only the first process of a family counts.
fn choose(name: &str, running: &[Facts]) -> anyhow::Result<u32> {
    let is_called = |facts: &&Facts| {
        let file = facts.exe.as_deref().and_then(|path| path.rsplit('/').next());
        facts.name == name || file == Some(name)
    };
    let matches: Vec<&Facts> = running.iter().filter(is_called).collect();
    let first = |facts: &&&Facts| {
        let mut parent = facts.parent;
        // A parent has a lower place in the tree; the length of the list bounds the way up even if pids are used again meanwhile.
        for _ in running {
            if matches.iter().any(|other| other.pid == parent) {
                return false;
            }
            match running.iter().find(|other| other.pid == parent) {
                Some(above) => parent = above.parent,
                None => return true,
            }
        }
        true
    };
    let roots: Vec<u32> = matches.iter().filter(first).map(|facts| facts.pid).collect();
    match roots[..] {
        [pid] => Ok(pid),
        [] => {
            let near = terrace_core::text::nearest(name, running.iter().map(|facts| facts.name.as_str()));
            let hint = near.map_or_else(String::new, |near| format!("; {near:?} runs"));
            anyhow::bail!("--name {name}: no process of that name runs{hint}")
        }
        _ => {
            let pids: Vec<String> = roots.iter().map(u32::to_string).collect();
            anyhow::bail!(
                "--name {name}: {} processes have that name; for all of them: --pid {}; for one: --pid {}",
                roots.len(),
                pids.join(","),
                pids[0]
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(pid: u32, parent: u32, name: &str, exe: &str) -> Facts {
        Facts {
            pid,
            start_time: 1,
            parent,
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
    fn the_first_of_a_family_is_meant() {
        let running = [
            facts(1, 0, "init", "/sbin/init"),
            facts(10, 1, "postgres", "/usr/lib/postgresql/15/bin/postgres"),
            facts(11, 10, "sh", "/bin/sh"),
            facts(12, 11, "postgres", "/usr/lib/postgresql/15/bin/postgres"),
        ];
        assert_eq!(choose("postgres", &running).unwrap(), 10);
    }

    #[test]
    fn a_name_longer_than_the_kernel_keeps_is_found_by_its_executable() {
        let running = [facts(7, 1, "a-very-long-nam", "/opt/a-very-long-name-of-a-server")];
        assert_eq!(choose("a-very-long-name-of-a-server", &running).unwrap(), 7);
    }

    #[test]
    fn two_families_are_named_and_none_is_chosen() {
        let running = [facts(7, 1, "redis-server", "/x"), facts(9, 1, "redis-server", "/x")];
        let said = choose("redis-server", &running).unwrap_err().to_string();
        assert!(said.contains("for all of them: --pid 7,9; for one: --pid 7"), "{said}");
    }

    #[test]
    fn a_misspelt_name_is_met_with_the_nearest() {
        let running = [facts(7, 1, "redis-server", "/x")];
        let said = choose("redis-srver", &running).unwrap_err().to_string();
        assert!(said.contains("\"redis-server\" runs"), "{said}");
        assert!(!choose("zebra", &running).unwrap_err().to_string().contains("runs;"));
    }
}
