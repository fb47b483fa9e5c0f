//! Events opened for processes on every CPU, with one ring a CPU that all of them write into.
//!
//! In: event attributes, and processes to watch. Out: samples, each with the event it is from. Must not: watch a
//! task twice, or stop watching a child because its parent ended.
//!
//! A perf event follows the tasks that a watched task starts (`inherit`), but its ring may then only be mapped for
//! one CPU. So each CPU gets a ring of its own, owned by an event that counts nothing, and the events of all
//! watched tasks on that CPU are sent to it. Which tasks are covered by inheritance is known from the FORK and EXIT
//! records of the first event given, which therefore must never be disabled. A task started during the few
//! microseconds in which its starter is being attached may be missed, until its process is attached again. CPUs that come
//! on line after the group was opened are not watched.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use perf_event_open_sys::bindings::{PERF_COUNT_SW_DUMMY, PERF_TYPE_SOFTWARE, perf_event_attr};
use rustix::event::epoll;

use super::record::{Layout, Record, Sample};
use super::ring::{Ring, RingCounts};
use crate::sys::perf;

/// Whom events are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The tasks attached, and all that they start.
    Tasks,
    /// Every task of the machine. Needs CAP_PERFMON.
    Machine,
}

/// Events of the same layout on every CPU.
#[derive(Debug)]
pub struct EventGroup {
    scope: Scope,
    events: Vec<perf_event_attr>,
    /// Which of `events` a sample's identifier stands for.
    kinds: BTreeMap<u64, usize>,
    rings: Vec<CpuRing>,
    poll: OwnedFd,
    /// Descriptors by the task they were opened on, with how many covered tasks live by them. Closing them would end
    /// the watch of all tasks that inherited.
    roots: BTreeMap<u32, Root>,
    /// Every covered task and its root.
    covered: BTreeMap<u32, u32>,
    pending: Vec<(usize, Sample)>,
}

#[derive(Debug)]
struct CpuRing {
    cpu: i32,
    owner: OwnedFd,
    ring: Ring,
}

#[derive(Debug)]
struct Root {
    opened: Vec<(usize, OwnedFd)>,
    alive: usize,
}

/// The root under which the events of the whole machine are kept; no task has this number.
const MACHINE: u32 = 0;

impl EventGroup {
    /// Makes the rings, `ring_pages` pages (a power of two) a CPU, and opens the events at once where the scope is the machine.
    /// Each of `events` is given the layout, and the flags of its scope; all start enabled.
    ///
    /// # Errors
    /// What perf_event_open or mmap said.
    pub fn open(events: &[perf_event_attr], layout: Layout, scope: Scope, ring_pages: usize) -> io::Result<EventGroup> {
        let quarter = (ring_pages * rustix::param::page_size() / 4) as u32;
        EventGroup::open_readable_from(events, layout, scope, ring_pages, quarter)
    }

    /// The same, readable when this number of bytes is in a ring.
    ///
    /// # Errors
    /// As [`EventGroup::open`].
    pub fn open_readable_from(
        events: &[perf_event_attr],
        layout: Layout,
        scope: Scope,
        ring_pages: usize,
        readable_from: u32,
    ) -> io::Result<EventGroup> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut rings = Vec::new();
        for cpu in online_cpus()? {
            let mut idle =
                perf_event_attr { type_: PERF_TYPE_SOFTWARE, config: PERF_COUNT_SW_DUMMY.into(), ..Default::default() };
            prepare(&mut idle, layout, readable_from);
            idle.set_disabled(1);
            idle.set_exclude_kernel(1);
            // On the main thread: it lives as long as this process, so the ring's descriptor never reports a hang-up.
            let owner = perf::open(&idle, std::process::id() as i32, cpu)?;
            let ring = Ring::map(&owner, layout, ring_pages)?;
            epoll::add(&poll, &owner, epoll::EventData::new_u64(cpu as u64), epoll::EventFlags::IN)?;
            rings.push(CpuRing { cpu, owner, ring });
        }
        let mut events = events.to_vec();
        for (index, event) in events.iter_mut().enumerate() {
            prepare(event, layout, readable_from);
            event.set_inherit(u64::from(scope == Scope::Tasks));
            event.set_task(u64::from(scope == Scope::Tasks && index == 0));
        }
        let (kinds, roots, covered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut group = EventGroup { scope, events, kinds, rings, poll, roots, covered, pending: Vec::new() };
        if scope == Scope::Machine {
            group.open_root(MACHINE, -1)?;
        }
        Ok(group)
    }

    /// Watches every thread of a process that is not watched yet. A process started by a watched one is already.
    ///
    /// # Errors
    /// What perf_event_open said; a thread that ended in the meantime is none.
    pub fn attach(&mut self, pid: u32) -> io::Result<()> {
        if self.scope == Scope::Machine {
            return Ok(());
        }
        // Threads that end just now, and a process that ended but was not waited for, are listed and cannot be opened.
        let mut ended = BTreeSet::new();
        loop {
            // What threads started since the last look inherited is known from the rings, and only from there.
            self.collect();
            let wanted = |tid: &u32| !self.covered.contains_key(tid) && !ended.contains(tid);
            let unseen: Vec<u32> = tasks_of(pid).into_iter().filter(wanted).collect();
            if unseen.is_empty() {
                return Ok(());
            }
            for tid in unseen {
                match self.open_root(tid, tid as i32) {
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                        ended.insert(tid);
                    }
                    result => result?,
                }
            }
        }
    }

    fn open_root(&mut self, root: u32, pid: i32) -> io::Result<()> {
        let mut opened = Vec::with_capacity(self.rings.len() * self.events.len());
        for ring in &self.rings {
            for (index, attributes) in self.events.iter().enumerate() {
                let event = match perf::open(attributes, pid, ring.cpu) {
                    // The CPU went off line since the rings were made. Nothing runs there.
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => break,
                    result => result?,
                };
                perf::set_output(&event, &ring.owner)?;
                self.kinds.insert(perf::id(&event)?, index);
                opened.push((index, event));
            }
        }
        self.roots.insert(root, Root { opened, alive: 1 });
        self.covered.insert(root, root);
        Ok(())
    }

    /// Hands over every sample that is there, with the index of its event.
    pub fn drain(&mut self, each: &mut dyn FnMut(usize, &Sample)) {
        self.collect();
        for (event, sample) in &self.pending {
            each(*event, sample);
        }
        self.pending.clear();
    }

    fn collect(&mut self) {
        let (kinds, covered, roots, pending) = (&self.kinds, &mut self.covered, &mut self.roots, &mut self.pending);
        let mut ended = Vec::new();
        for ring in &mut self.rings {
            ring.ring.drain(&mut |record| match record {
                Record::Sample(sample) => {
                    if let Some(&kind) = kinds.get(&sample.identifier) {
                        pending.push((kind, sample));
                    }
                }
                Record::Fork(task) => {
                    if let Some(&root) = covered.get(&task.parent_tid)
                        && covered.insert(task.tid, root).is_none()
                        && let Some(root) = roots.get_mut(&root)
                    {
                        root.alive += 1;
                    }
                }
                // After all rings are read: a task may end on another CPU than the one it was started on.
                Record::Exit(task) => ended.push(task.tid),
                _ => {}
            });
        }
        for tid in ended {
            self.uncover(tid);
        }
    }

    fn uncover(&mut self, tid: u32) {
        let Some(root) = self.covered.remove(&tid) else { return };
        if let Some(entry) = self.roots.get_mut(&root) {
            entry.alive -= 1;
            if entry.alive == 0 {
                self.roots.remove(&root);
            }
        }
    }

    /// Releases watched tasks that are gone without an EXIT record, which a full ring may have lost.
    pub fn prune(&mut self) {
        self.collect();
        let gone = |tid: &u32| *tid != MACHINE && !std::path::Path::new("/proc").join(tid.to_string()).exists();
        let gone: Vec<u32> = self.covered.keys().copied().filter(gone).collect();
        gone.into_iter().for_each(|tid| self.uncover(tid));
    }

    /// Starts or stops one kind of event everywhere, inherited ones included. Not for the first kind.
    ///
    /// # Errors
    /// When a descriptor is not a perf event any more.
    pub fn set_enabled(&mut self, event: usize, enabled: bool) -> io::Result<()> {
        debug_assert!(event != 0 || self.scope == Scope::Machine, "the first event carries the FORK and EXIT records");
        // Tasks attached from now on start the same way.
        self.events[event].set_disabled(u64::from(!enabled));
        for (_, fd) in self.roots.values().flat_map(|root| &root.opened).filter(|(index, _)| *index == event) {
            if enabled { perf::enable(fd)? } else { perf::disable(fd)? }
        }
        Ok(())
    }

    /// Changes the period of one kind of event. The scope must be the machine: inherited events keep the period they
    /// were born with, and the kernel offers no way to change it.
    ///
    /// # Errors
    /// When the hardware cannot count so far, or the scope is not the machine.
    pub fn set_period(&mut self, event: usize, period: u64) -> io::Result<()> {
        if self.scope != Scope::Machine {
            return Err(io::Error::from(io::ErrorKind::Unsupported));
        }
        self.events[event].__bindgen_anon_1.sample_period = period;
        for (_, fd) in self.roots.values().flat_map(|root| &root.opened).filter(|(index, _)| *index == event) {
            perf::set_period(fd, period)?;
        }
        Ok(())
    }

    /// What went missing, over all rings.
    pub fn counts(&self) -> RingCounts {
        let mut sum = RingCounts::default();
        self.rings.iter().for_each(|ring| sum.add(ring.ring.counts()));
        sum
    }

    /// Tasks watched now.
    pub fn watched(&self) -> usize {
        self.covered.len()
    }
}

impl AsFd for EventGroup {
    /// Becomes readable when a quarter of any ring is full, or as much as was asked for.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.as_fd()
    }
}

fn prepare(event: &mut perf_event_attr, layout: Layout, readable_from: u32) {
    event.sample_type = layout.sample_type();
    event.set_sample_id_all(1);
    event.set_watermark(1);
    event.__bindgen_anon_2.wakeup_watermark = readable_from;
}

/// The threads of a process; none if it is gone.
fn tasks_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The CPUs that are on line.
pub(crate) fn online_cpus() -> io::Result<Vec<i32>> {
    let path = "/sys/devices/system/cpu/online";
    let text =
        std::fs::read_to_string(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
    parse_cpu_list(&text)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{path}: {text:?} is no CPU list")))
}

/// Reads a CPU list such as "0-3,8".
fn parse_cpu_list(text: &str) -> Option<Vec<i32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<i32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-2,5\n").unwrap(), [0, 1, 2, 5]);
        assert_eq!(parse_cpu_list("0").unwrap(), [0]);
        assert_eq!(parse_cpu_list("zero"), None);
    }
}
