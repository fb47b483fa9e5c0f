//! What a program leaves running when it ends: daemons, and whatever else it started and did not wait for.
//!
//! In: the program's end. Out: its orphans as children of Terrace, waited for, and the words that tell of them. Must not: take a process of
//! Terrace's own for one, or end what it finds.
//!
//! A process whose parent ends goes to the nearest living ancestor that wants orphans (prctl(2), PR_SET_CHILD_SUBREAPER), or to the first
//! process of the machine, where nothing tells any more whose it was. So Terrace wants them while its program runs.

use std::collections::BTreeSet;

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use terrace_core::text::visible_lines;
use terrace_linux::helpers;
use terrace_linux::process::{Stat, children};

/// Most processes that a message names.
const MOST_NAMED: usize = 3;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Children of Terrace that are none of the program's: its guard, its witness of signals, and those of who became Terrace by exec.
    own: BTreeSet<u32>,
    /// Whether the kernel brings them here.
    come_here: bool,
}

impl Orphans {
    /// From now on orphans come to Terrace. Called when all helpers of its own run, and the program does not yet.
    pub(super) fn begin() -> Orphans {
        let come_here = set_child_subreaper(Some(getpid()))
            .inspect_err(|error| tracing::warn!(%error, "what the program leaves running when it ends is not managed"))
            .is_ok();
        Orphans { own: children(std::process::id()).into_iter().collect(), come_here }
    }

    /// Children of Terrace that are none of the program's, if orphans come here.
    pub(super) fn own(&self) -> Option<BTreeSet<u32>> {
        self.come_here.then(|| self.own.clone())
    }

    /// Those that run, but for `program`. Those that ended are waited for, as the first process would do.
    pub(super) fn running(&self, program: u32) -> Vec<u32> {
        let listed = children(std::process::id()).into_iter();
        let waited_for = |pid: u32| pid == program || self.own.contains(&pid) || helpers::leads(pid);
        listed.filter(|pid| !waited_for(*pid) && !is_over(*pid) && !helpers::is_one(*pid)).collect()
    }
}

impl Drop for Orphans {
    fn drop(&mut self) {
        if self.come_here {
            // It can only fail where it could not be set.
            let _ = set_child_subreaper(None);
        }
    }
}

/// Whether a child has ended, which is then waited for.
fn is_over(pid: u32) -> bool {
    let ended = Stat::read(pid).map_or(true, |stat| stat.has_ended());
    if ended && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // Another may have waited for it.
        let _ = waitpid(Some(pid), WaitOptions::NOHANG);
    }
    ended
}

/// What is said when the program has ended and these are managed on.
pub(super) fn managed_on(code: i32, pids: &[u32]) -> String {
    format!(
        "terrace: the program has ended with exit code {code}; what it left running is managed until it ends: {}. Ctrl-C ends that and \
         leaves it running",
        named(pids)
    )
}

/// What is said when Terrace ends and these run on.
pub(super) fn left_behind(pids: &[u32]) -> String {
    let list: Vec<String> = pids.iter().map(u32::to_string).collect();
    format!(
        "terrace: what the program left running goes on unmanaged: {}. To manage it: terrace attach --pid {}",
        named(pids),
        list.join(",")
    )
}

/// "process 12 (redis-server)", or "3 processes, 12 (a), 13 (b), ...".
fn named(pids: &[u32]) -> String {
    let name = |pid: &u32| match Stat::read(*pid) {
        Ok(stat) => format!("{pid} ({})", visible_lines(&stat.command)),
        Err(_) => pid.to_string(),
    };
    let first: Vec<String> = pids.iter().take(MOST_NAMED).map(name).collect();
    match pids.len() {
        1 => format!("process {}", first[0]),
        all if all > MOST_NAMED => format!("{all} processes, {}, ...", first.join(", ")),
        all => format!("{all} processes, {}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_name_what_runs_and_how_to_manage_it() {
        let me = std::process::id();
        let name = Stat::read(me).unwrap().command;
        let said = managed_on(3, &[me]);
        assert!(said.contains("exit code 3") && said.contains(&format!("process {me} ({name})")), "{said}");
        // No process has a pid of more than 22 bits.
        let said = left_behind(&[5_000_001, 5_000_002, 5_000_003, 5_000_004]);
        assert!(said.contains("4 processes, 5000001, 5000002, 5000003, ..."), "{said}");
        assert!(said.ends_with("terrace attach --pid 5000001,5000002,5000003,5000004"), "{said}");
    }
}
