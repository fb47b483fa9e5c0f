//! Watches processes start, change and exit.
//!
//! In: the kernel's process connector and inotify on cgroups, or /proc at intervals. Out: changes of class membership. Must not: do much
//! work for short-lived processes. A new process is examined only after a short delay.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use terrace_linux::cgroup_events::{CgroupEvent, CgroupEvents};
use terrace_linux::machine_programs::has_real_time_thread;
use terrace_linux::process::Stat;
use terrace_linux::process_events::{ProcessEvent, ProcessEvents};
use terrace_linux::processes::{Facts, all};

use crate::config::{Config, Events};
use crate::table::{Change, Table};

/// Delay before a new process is examined: by then it has executed its program, and most processes of a fork storm have exited.
const SETTLE: Duration = Duration::from_millis(150);
/// With events, the interval of full sweeps is longer by this factor.
const SELDOM: u32 = 10;

/// See the module's header.
pub struct Watcher {
    /// Which process belongs to which class.
    pub table: Table,
    events: Option<ProcessEvents>,
    /// Watched only if a selector uses cgroups or containers.
    cgroups: Option<CgroupEvents>,
    /// How processes are detected, and why that way, in one line.
    pub how: String,
    /// Processes to examine, the time to do so, and their parents where known.
    pending: BTreeMap<u32, (Instant, Option<u32>)>,
    poll: Duration,
    sweep_at: Instant,
    sweeps: u32,
    news: Vec<ProcessEvent>,
    /// Processes of which a thread runs in real time, with their start times: looked for once, where a class has everything.
    real_time: BTreeMap<u32, u64>,
}

impl Watcher {
    /// Begins to watch, with the process events that another process opened, if there are any.
    ///
    /// # Errors
    /// The configuration demands netlink and it does not work.
    pub fn new(
        config: &Config,
        never: impl IntoIterator<Item = u32>,
        passed: Option<ProcessEvents>,
    ) -> anyhow::Result<Watcher> {
        let every = |poll: Duration| format!("{} s", poll.as_secs_f64());
        let (events, how) = match config.events {
            Events::Poll => (None, format!("poll: /proc is scanned every {}, as configured", every(config.poll))),
            wanted => match passed.map_or_else(ProcessEvents::open, Ok) {
                Ok(events) => (Some(events), "netlink: the kernel reports processes at once".to_owned()),
                Err(reason) if wanted == Events::Auto => {
                    (None, format!("poll: /proc is scanned every {}, because {reason}", every(config.poll)))
                }
                Err(reason) => anyhow::bail!("daemon.events = \"netlink\": {reason}; auto would poll instead"),
            },
        };
        let mut table = Table::new(never);
        table.set_rules(config);
        table.spare(std::process::id());
        let now = Instant::now();
        let mut watcher = Watcher {
            table,
            events,
            cgroups: None,
            how,
            pending: BTreeMap::new(),
            poll: config.poll,
            sweep_at: now,
            sweeps: 0,
            news: Vec::new(),
            real_time: BTreeMap::new(),
        };
        watcher.watch_cgroups(config);
        Ok(watcher)
    }

    /// Watches cgroups if a selector uses them: a move between cgroups causes no process event.
    fn watch_cgroups(&mut self, config: &Config) {
        if !config.asks_for_cgroups() {
            self.cgroups = None;
        } else if self.cgroups.is_none() {
            let added = match CgroupEvents::open(Path::new("/")) {
                Ok(cgroups) => {
                    let (count, missing) = cgroups.watched();
                    self.cgroups = Some(cgroups);
                    missing.unwrap_or_else(|| format!("{count} cgroups are watched"))
                }
                Err(why) => format!("cgroup changes are found by scanning /proc, because {why}"),
            };
            self.how = format!("{}; {added}", self.how.split("; ").next().unwrap_or_default());
        }
    }

    /// Sets a new configuration; all processes are examined again at the next turn.
    pub fn set_config(&mut self, config: &Config) {
        self.table.set_rules(config);
        self.table.spare(std::process::id());
        self.watch_cgroups(config);
        self.poll = config.poll;
        self.sweep_at = Instant::now();
        self.sweeps = 0;
    }

    /// The descriptors that become readable on an event.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events.as_ref().map(ProcessEvents::fd).into_iter().chain(self.cgroups.as_ref().map(CgroupEvents::fd))
    }

    /// Deadline of the next work.
    pub fn due(&self) -> Instant {
        let pending = self.pending.values().map(|(at, _)| *at).min();
        pending.map_or(self.sweep_at, |at| at.min(self.sweep_at))
    }

    /// Number of times that events were lost.
    pub fn lost(&self) -> u64 {
        self.events.as_ref().map_or(0, ProcessEvents::lost)
    }

    /// Handles events, and returns who joins and leaves.
    pub fn turn(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        let now = Instant::now();
        if let Some(events) = &mut self.events {
            events.take(&mut self.news);
        }
        for event in std::mem::take(&mut self.news) {
            match event {
                ProcessEvent::Forked { pid, parent } => {
                    self.pending.insert(pid, (now + SETTLE, Some(parent)));
                }
                ProcessEvent::Changed { pid } => {
                    let parent = self.pending.get(&pid).and_then(|(_, parent)| *parent);
                    self.pending.insert(pid, (now + SETTLE, parent));
                }
                ProcessEvent::Exited { pid } => {
                    self.pending.remove(&pid);
                    changes.extend(self.table.vanish(pid));
                }
                ProcessEvent::Lost => self.sweep_at = now,
            }
        }
        self.take_cgroup_news(now);
        let due: Vec<(u32, Option<u32>)> =
            self.pending.iter().filter(|(_, (at, _))| *at <= now).map(|(pid, (_, parent))| (*pid, *parent)).collect();
        for (pid, parent) in due {
            self.pending.remove(&pid);
            changes.extend(self.look(pid, parent));
        }
        if now >= self.sweep_at {
            changes.extend(self.sweep());
            let pace = if self.events.is_some() { self.poll * SELDOM } else { self.poll };
            self.sweep_at = Instant::now() + pace;
        }
        changes
    }

    fn take_cgroup_news(&mut self, now: Instant) {
        let Some(cgroups) = &mut self.cgroups else { return };
        let mut news = Vec::new();
        cgroups.take(&mut news);
        for event in news {
            match event {
                CgroupEvent::Moved { pids } => {
                    for pid in pids {
                        let parent = self.pending.get(&pid).and_then(|(_, parent)| *parent);
                        self.pending.insert(pid, (now, parent));
                    }
                }
                CgroupEvent::Lost => self.sweep_at = now,
                CgroupEvent::Changed => {}
            }
        }
    }

    fn look(&mut self, pid: u32, parent: Option<u32>) -> Vec<Change> {
        match Facts::read(pid) {
            Ok(Some(mut facts)) => {
                facts.real_time |= self.has_real_time_thread(&facts);
                self.table.see(&facts, parent)
            }
            // No memory of its own (a kernel thread, a zombie), or exited.
            Ok(None) | Err(_) => self.table.vanish(pid),
        }
    }

    /// Whether a thread of it runs in real time. A file a thread, so only where it matters, and at the first sight of a process.
    fn has_real_time_thread(&mut self, facts: &Facts) -> bool {
        if !self.table.has_everything() {
            return false;
        }
        if self.table.get(facts.pid).is_none_or(|known| known.start_time != facts.start_time) {
            self.real_time.remove(&facts.pid);
            if has_real_time_thread(facts.pid) {
                self.real_time.insert(facts.pid, facts.start_time);
            }
        }
        self.real_time.get(&facts.pid) == Some(&facts.start_time)
    }

    /// Examines all processes. Without events most sweeps only find new and exited pids: that is ten times cheaper than reading all cgroups
    /// and files.
    fn sweep(&mut self) -> Vec<Change> {
        let thorough = self.events.is_some() || self.sweeps.is_multiple_of(SELDOM);
        self.sweeps += 1;
        let mut changes = Vec::new();
        let there = all();
        self.real_time.retain(|pid, _| there.binary_search(pid).is_ok());
        for pid in self.table.pids() {
            if there.binary_search(&pid).is_err() {
                changes.extend(self.table.vanish(pid));
            }
        }
        for pid in there {
            let known = self.table.get(pid).map(|known| known.start_time);
            let same = known.is_some_and(|start| Stat::read(pid).is_ok_and(|stat| stat.start_time == start));
            if thorough || !same {
                changes.extend(self.look(pid, None));
            }
        }
        changes
    }
}
