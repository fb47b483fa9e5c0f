//! Which processes a run manages: the program that it started, the pids it was given, or all of a cgroup or of the machine as they come and go.
//!
//! In: the target. Out: processes taken up and let go by the manager, and whether the run is over. Must not: take up Terrace itself, a process
//! that has left the cgroup, or, where all are meant, one that holds the machine up.

use std::collections::BTreeSet;
use terrace_common::say;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use terrace_core::text::visible;
use terrace_linux::cgroup::Cgroup;
use terrace_linux::everything::Everything;
use terrace_linux::manager::Manager;
use terrace_linux::process::ProcessError;
use terrace_linux::processes::Facts;
use terrace_linux::usage::lock_own_memory;

use super::TargetSpec;
use super::target::Target;

/// See the module's header.
pub(super) enum Members {
    /// The program or the pids; the manager follows their children.
    Families,
    /// All in a cgroup, and below it.
    Of {
        cgroup: Cgroup,
        /// Seen and not to be managed: without memory, of Terrace, or not permitted.
        left_out: BTreeSet<u32>,
    },
    /// All of the machine that are not to be left alone.
    All(Everything),
}

/// Names of what is left alone that the first line has.
const MOST_NAMED: usize = 6;

impl Members {
    /// Takes up the first processes. `None` if the program is over already.
    ///
    /// # Errors
    /// A process may not be managed, or a pid that was given is gone.
    pub(super) fn begin(spec: &TargetSpec, target: &Target, manager: &mut Manager) -> anyhow::Result<Option<Members>> {
        match spec {
            TargetSpec::Command(_) => match manager.add_process(target.pid()) {
                Ok(_) => Ok(Some(Members::Families)),
                // A program so short that it is over already has nothing to manage.
                Err(ProcessError::Gone { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            },
            TargetSpec::Pids(pids) => {
                for &pid in pids {
                    manager.add_process(pid)?;
                }
                Ok(Some(Members::Families))
            }
            TargetSpec::Cgroup(cgroup) => {
                // Children are members themselves, and one that was moved elsewhere is no longer meant.
                manager.follow_children(false);
                let mut left_out = BTreeSet::new();
                if let (0, Some(error)) = join(cgroup, &mut left_out, manager) {
                    return Err(error.into());
                }
                if manager.processes().next().is_none() {
                    say!("terrace: {} has no process yet; what comes into it is taken up\n", cgroup.name());
                }
                Ok(Some(Members::Of { cgroup: cgroup.clone(), left_out }))
            }
            TargetSpec::All(never) => {
                manager.follow_children(false);
                allow_many_files();
                // On a machine that is short a manager that waits for its own memory helps nobody.
                if let Err(error) = lock_own_memory() {
                    tracing::debug!(%error, "memory is not locked");
                }
                let mut everything = Everything::but(never.clone());
                let refused = follow_all(&mut everything, manager);
                let managed = manager.processes().count();
                if let (0, Some(error)) = (managed, refused) {
                    return Err(error.into());
                }
                say!("terrace: {}\n", begun(managed, &everything));
                Ok(Some(Members::All(everything)))
            }
        }
    }

    /// Looks who came and who left; about once a second.
    pub(super) fn follow(&mut self, manager: &mut Manager) {
        let (cgroup, left_out) = match self {
            Members::Families => return,
            Members::All(everything) => {
                follow_all(everything, manager);
                return;
            }
            Members::Of { cgroup, left_out } => (cgroup, left_out),
        };
        let members = cgroup.members();
        let managed: Vec<u32> = manager.processes().map(|(_, process, _)| process.pid()).collect();
        for pid in managed.into_iter().filter(|pid| !members.contains(pid)) {
            manager.remove_process(pid);
        }
        // A pid that is gone may be given to another process.
        left_out.retain(|pid| members.contains(pid));
        join(cgroup, left_out, manager);
    }

    /// Whether nothing can come any more, once no process is left: a cgroup that is there may get new ones.
    pub(super) fn are_over(&self) -> bool {
        match self {
            Members::Families => true,
            Members::Of { cgroup, .. } => !cgroup.exists(),
            Members::All(_) => false,
        }
    }
}

/// A process takes some descriptors. What the hard limit allows is taken, as a service manager would set it.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Takes up who came, lets go who is to be left alone now. Returns why the last one that was refused is not managed.
fn follow_all(everything: &mut Everything, manager: &mut Manager) -> Option<ProcessError> {
    let changes = everything.look();
    for pid in changes.leave {
        manager.remove_process(pid);
    }
    let mut refused = None;
    for pid in changes.join {
        match manager.add_process(pid) {
            Ok(_) | Err(ProcessError::Gone { .. }) => {}
            // Another user's, without the rights: of hundreds each would have a line.
            Err(error) => {
                tracing::debug!(pid, %error, "it is left alone");
                refused = Some(error);
            }
        }
    }
    refused
}

/// The first line of a run over everything: what it manages, and what it leaves alone.
fn begun(managed: usize, everything: &Everything) -> String {
    let alone = everything.left_alone();
    let count: usize = alone.values().sum();
    let mut names: Vec<String> = alone.keys().take(MOST_NAMED).map(|name| visible(name).into_owned()).collect();
    if alone.len() > MOST_NAMED {
        names.push("...".to_owned());
    }
    let processes = if managed == 1 { "1 process is" } else { &format!("{managed} processes are") };
    format!("{processes} managed, those that come later as well; {count} never touched: {}", names.join(", "))
}

/// Takes up who is in the cgroup and not yet managed. Returns how many, and why the last of the others was not.
fn join(cgroup: &Cgroup, left_out: &mut BTreeSet<u32>, manager: &mut Manager) -> (usize, Option<ProcessError>) {
    let managed: BTreeSet<u32> = manager.processes().map(|(_, process, _)| process.pid()).collect();
    let own = std::process::id();
    let (mut joined, mut refused) = (0, None);
    for pid in cgroup.members() {
        if managed.contains(&pid) || left_out.contains(&pid) {
            continue;
        }
        let taken = match Facts::read(pid) {
            // Terrace and its undo guard may lie in the cgroup that they manage.
            Ok(Some(facts)) if pid != own && facts.parent != own => manager.add_process(pid).map(|_| true),
            Ok(_) => Ok(false),
            Err(error) => Err(error),
        };
        match taken {
            Ok(true) => joined += 1,
            // A zombie or a thread of the kernel stays what it is; a process that is gone does not come back under this pid.
            Ok(false) => drop(left_out.insert(pid)),
            Err(ProcessError::Gone { .. }) => {}
            Err(error) => {
                tracing::warn!(pid, %error, "a process of {} is left alone", cgroup.name());
                left_out.insert(pid);
                refused = Some(error);
            }
        }
    }
    (joined, refused)
}
