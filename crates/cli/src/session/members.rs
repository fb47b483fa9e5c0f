//! Which processes a run manages: the program that it started, the pids it was given, or all of a cgroup as they come and go.
//!
//! In: the target. Out: processes taken up and let go by the manager, and whether the run is over. Must not: take up Terrace itself, or a process
//! that has left the cgroup.

use std::collections::BTreeSet;

use terrace_linux::cgroup::Cgroup;
use terrace_linux::manager::Manager;
use terrace_linux::process::ProcessError;
use terrace_linux::processes::Facts;

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
}

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
                    eprintln!("terrace: {} has no process yet; what comes into it is taken up", cgroup.name());
                }
                Ok(Some(Members::Of { cgroup: cgroup.clone(), left_out }))
            }
        }
    }

    /// Looks who came and who left; about once a second.
    pub(super) fn follow(&mut self, manager: &mut Manager) {
        let Members::Of { cgroup, left_out } = self else { return };
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
        }
    }
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
