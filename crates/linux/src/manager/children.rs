//! Processes that the managed ones start: taken up, passed over, or left alone with a word.
//!
//! In: the kernel's lists of children. Out: processes taken up, and why others are not. Must not: pay again and again for what has ended: a
//! parent that never waits keeps its children's pids listed for as long as it runs.
//!
//! A process whose parent has ended is listed by that parent no more. Where Terrace is the reaper of its program's orphans (prctl(2),
//! PR_SET_CHILD_SUBREAPER), they become children of Terrace, and are found there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use super::Manager;
use crate::helpers;
use crate::process::{self, Stat};

/// Why a process is there and not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftAlone {
    /// Its first thread has ended and others run on.
    FirstThreadEnded,
    /// It may not be read: it runs as another user now, or with other rights.
    Refused,
}

impl LeftAlone {
    /// The reason as a report tells it: what it is, and what to do.
    pub const fn reason(self) -> &'static str {
        match self {
            LeftAlone::FirstThreadEnded => {
                "its first thread has ended while others run on (pthread_exit in main), and Linux then lets no other process move its \
                 memory; let main wait for the other threads (pthread_join), or put the program into a cgroup with memory.high"
            }
            LeftAlone::Refused => {
                "it may not be read, as after a change of its user or rights; as root: terrace attach --pid and its pid"
            }
        }
    }
}

/// What is known of processes that are not managed.
#[derive(Debug, Default)]
pub(super) struct Children {
    /// Not followed: the processes come from elsewhere.
    ignored: bool,
    /// Orphans of the managed processes become children of Terrace; these are children of Terrace that are none.
    own: Option<BTreeSet<u32>>,
    /// Listed and not to be taken up: those that ended and are not waited for, and those that cannot be managed, which may have children
    /// that can. Each for as long as it is listed: its pid may be another's later.
    passed_over: BTreeMap<u32, Passed>,
    /// The children of programs that sleep, as they were when these last ran for a moment: they start none.
    of_sleepers: BTreeMap<u32, Vec<u32>>,
}

#[cfg(test)]
impl Children {
    pub(super) fn passed_over(&self) -> usize {
        self.passed_over.len()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    Ended,
    NotOurs,
}

impl Manager {
    /// Whether children of the managed processes are taken up by themselves, as they are at first.
    pub fn follow_children(&mut self, follow: bool) {
        self.children.ignored = !follow;
    }

    /// From now on children of Terrace itself are taken up as well, but for `own`: its caller has made it the reaper of orphans.
    pub fn adopt_orphans(&mut self, own: BTreeSet<u32>) {
        self.children.own = Some(own);
    }

    /// Takes up the children of the managed processes and theirs.
    pub(super) fn take_up_children(&mut self) {
        if self.children.ignored {
            return;
        }
        let terrace = std::process::id();
        let known: BTreeSet<u32> = self.spaces.values().map(|space| space.process.pid()).collect();
        let mut parents: Vec<u32> = known.iter().copied().collect();
        parents.extend(self.children.own.as_ref().map(|_| terrace));
        let still = |space: &mut super::Space| space.activity.starts_nothing().then(|| space.process.pid());
        let asleep: BTreeSet<u32> = self.spaces.values_mut().filter_map(still).collect();
        self.children.of_sleepers.retain(|pid, _| asleep.contains(pid));
        let mut listed = BTreeSet::new();
        while let Some(parent) = parents.pop() {
            let children = match asleep.contains(&parent) {
                true => self.children.of_sleepers.entry(parent).or_insert_with(|| process::children(parent)).clone(),
                false => process::children(parent),
            };
            for pid in children {
                let is_own = pid == terrace
                    || self.children.own.as_ref().is_some_and(|own| own.contains(&pid))
                    || parent == terrace && helpers::is_one(pid);
                // What is managed has its turn as a parent already.
                if is_own || known.contains(&pid) || !listed.insert(pid) {
                    continue;
                }
                let passed = self.children.passed_over.get(&pid).copied();
                if passed != Some(Passed::Ended) {
                    parents.push(pid);
                }
                if passed.is_none() {
                    self.take_up(pid);
                }
            }
        }
        self.children.passed_over.retain(|pid, _| listed.contains(pid));
    }

    fn take_up(&mut self, pid: u32) {
        let passed = match Stat::read(pid) {
            Ok(stat) if stat.has_ended() => Passed::Ended,
            Ok(_) if self.add_process(pid).is_ok() => return,
            // A child that cannot be opened is not ours, or has ended by now.
            _ => Passed::NotOurs,
        };
        self.children.passed_over.insert(pid, passed);
    }

    /// Says once that a process is there and not managed, and why.
    pub(super) fn leave_alone(&mut self, pid: u32, why: LeftAlone, error: &dyn Display) {
        if self.stats.left_alone.insert(pid, why) != Some(why) {
            tracing::warn!(pid, %error, "it is left alone: {}", why.reason());
        }
    }
}
