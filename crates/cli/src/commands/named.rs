//! Which running process is meant by a name.
//!
//! In: a name, and the processes of this machine. Out: a pid, or why none. Must not: guess between two.

use terrace_linux::processes::{self, Facts};

/// The process that is meant: `pid`, or else the one called `name`.
///
/// # Errors
/// When there is no process of that name, or more than one that is not a child of another.
pub(crate) fn process(pid: Option<u32>, name: Option<&str>) -> anyhow::Result<Option<u32>> {
    let Some(name) = name else { return Ok(pid) };
    // Processes that end meanwhile, or that may not be read, are not meant.
    let running: Vec<Facts> = processes::all()
        .into_iter()
        .filter(|&pid| pid != std::process::id())
        .filter_map(|pid| Facts::read(pid).ok().flatten())
        .collect();
    choose(name, &running).map(Some)
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
                "--name {name}: {} processes have that name (pids {}); choose one with --pid, or give all of them to the service",
                roots.len(),
                pids.join(", ")
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
        assert!(said.contains("pids 7, 9") && said.contains("--pid"), "{said}");
    }

    #[test]
    fn a_misspelt_name_is_met_with_the_nearest() {
        let running = [facts(7, 1, "redis-server", "/x")];
        let said = choose("redis-srver", &running).unwrap_err().to_string();
        assert!(said.contains("\"redis-server\" runs"), "{said}");
        assert!(!choose("zebra", &running).unwrap_err().to_string().contains("runs;"));
    }
}
