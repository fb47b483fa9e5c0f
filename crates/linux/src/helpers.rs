//! Commands that Terrace runs for itself beside a program: those of a metric, curl.
//!
//! In: a command. Out: its process, in a process group of its own; and whether a process is of such a group, so that none is taken for the
//! program's. Must not: wait for it or end it.
//!
//! Where Terrace is the reaper of its program's orphans, both kinds are its children, and what a command started and left comes to it as the
//! program's orphans do. The group tells them apart.

use std::collections::VecDeque;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};

use crate::process::Stat;

/// Groups that are remembered. What was killed takes a moment to end; the number of a group that is gone may be another's much later.
const REMEMBERED: usize = 16;

/// The last groups, the newest at the end.
static GROUPS: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());

/// Starts a command as the leader of a new process group.
///
/// # Errors
/// As [`Command::spawn`].
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    // Held while it starts: who sees the process in the meantime waits in `is_one` until its group is known.
    let mut groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    let child = command.process_group(0).spawn()?;
    if groups.len() == REMEMBERED {
        groups.pop_front();
    }
    groups.push_back(child.id());
    Ok(child)
}

/// Whether a process is the first of such a group: who started it waits for it.
pub fn leads(pid: u32) -> bool {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// Whether a process is one of these, or was started by one and has not left its group.
pub fn is_one(pid: u32) -> bool {
    let groups = GROUPS.lock().unwrap_or_else(PoisonError::into_inner);
    Stat::read(pid).is_ok_and(|stat| groups.contains(&stat.group))
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;
    use crate::process::children;

    #[test]
    fn what_a_command_starts_is_told_from_others() {
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let mut command = Command::new("sh");
        let mut own = spawn(command.args(["-c", "sleep 60 & wait"]).stdin(Stdio::null())).unwrap();
        let started = std::time::Instant::now();
        while children(own.id()).is_empty() && started.elapsed().as_secs() < 30 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let grandchild = children(own.id())[0];
        let seen = [own.id(), grandchild, other.id(), std::process::id()].map(is_one);
        other.kill().unwrap();
        other.wait().unwrap();
        let group = rustix::process::Pid::from_child(&own);
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
        own.wait().unwrap();
        assert_eq!(seen, [true, true, false, false]);
        assert!(leads(own.id()) && !leads(grandchild));
    }
}
