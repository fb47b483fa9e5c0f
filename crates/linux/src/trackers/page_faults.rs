//! `page-faults`: allocations and refaults, by the kernel's own page-fault events with their addresses. Works everywhere.
//!
//! In: the targets. Out: [`Event::Allocated`] for a minor fault, [`Event::Refault`] for a major one (with compressed swap, every
//! return of a page that the program itself touched is a major fault). Must not: cost a target more than a bounded
//! share of its time, or claim to see accesses that do not fault.
//!
//! A minor fault is not always a first touch: the first write to a page that was only read, or to one shared after a fork,
//! is one as well, and a prefetched page faults once more. So an allocation means "this page is in use from now on".

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use perf_event_open_sys::bindings::{self as perf, perf_event_attr};
use terrace_core::units::{SpaceId, Time, Vpn};

use super::{Event, Round, Sink, Target, TrackError, Tracker};
use crate::perf::group::{EventGroup, Scope};
use crate::perf::record::Layout;
use crate::perf::ring::RingCounts;
use crate::process::MemoryRange;
use crate::rights::Rights;

const NAME: &str = "page-faults";
/// 256 KiB a CPU: 8,000 faults of 32 bytes.
const RING_PAGES: usize = 64;
/// Faults of 32 bytes after which they are to be read, where they are rare: this number says that a program is on its way through what it used before.
const NOTICED_FROM: u32 = 32 * terrace_core::sleep::SOME_TENS;
/// The event that carries the FORK and EXIT records and is never switched off: major faults are rare by their nature.
const MAJOR: usize = 0;
const MINOR: usize = 1;
/// Most allocations tracked per second, on average: at about 1 us each (measured) this is 2 % of a core.
const BIRTHS_PER_SECOND: u64 = 20_000;
/// Allocations in one burst before the gate closes: the start of a program, not a steady state.
const BIRTH_BURST: u64 = 100_000;
/// How often tasks are looked for that ended unseen.
const PRUNE_EVERY: Duration = Duration::from_secs(10);

/// The tracker.
#[derive(Debug)]
pub struct PageFaults {
    group: EventGroup,
    gate: FloodGate,
    rights: Rights,
    attached: BTreeSet<u32>,
    pruned: Time,
}

impl PageFaults {
    /// Its name, as `--tracker` takes it.
    pub const NAME: &'static str = NAME;

    /// Opens the rings; the targets' threads follow when they are first seen.
    ///
    /// # Errors
    /// When the kernel refuses perf events: which right is missing, in a line.
    pub fn open() -> Result<PageFaults, TrackError> {
        PageFaults::open_with_limits(BIRTHS_PER_SECOND, BIRTH_BURST)
    }

    /// The same with other limits: allocations tracked per second on average, and in one burst.
    ///
    /// # Errors
    /// As [`PageFaults::open`].
    pub fn open_with_limits(births_per_second: u64, burst: u64) -> Result<PageFaults, TrackError> {
        PageFaults::open_events(FloodGate::new(births_per_second, burst), true)
    }

    /// Watches refaults only, which costs nothing while there are none: what another tracker is completed with.
    ///
    /// # Errors
    /// As [`PageFaults::open`].
    pub fn open_refaults_only() -> Result<PageFaults, TrackError> {
        PageFaults::open_events(FloodGate::new(BIRTHS_PER_SECOND, BIRTH_BURST), false)
    }

    fn open_events(gate: FloodGate, births: bool) -> Result<PageFaults, TrackError> {
        let kinds = u64::from(perf::PERF_SAMPLE_IDENTIFIER | perf::PERF_SAMPLE_TID | perf::PERF_SAMPLE_ADDR);
        let layout = Layout::new(kinds).expect("only fields of fixed size are asked for");
        // Faults that a system call takes on the program's behalf (read(2) into a fresh buffer) happen in the kernel; without
        // rights only those of the program's own code may be seen.
        let rights = Rights::of_this_process();
        let user_only = !rights.may_watch_kernel();
        let event = |config: u32| {
            let mut event =
                perf_event_attr { type_: perf::PERF_TYPE_SOFTWARE, config: config.into(), ..Default::default() };
            event.__bindgen_anon_1.sample_period = 1;
            event.set_exclude_kernel(u64::from(user_only));
            event.set_exclude_hv(1);
            event
        };
        let major = event(perf::PERF_COUNT_SW_PAGE_FAULTS_MAJ);
        let events = if births { vec![major, event(perf::PERF_COUNT_SW_PAGE_FAULTS_MIN)] } else { vec![major] };
        let group = match births {
            true => EventGroup::open(&events, layout, Scope::Tasks, RING_PAGES),
            // A program that wakes is to be noticed by the first pages that come back.
            false => EventGroup::open_readable_from(&events, layout, Scope::Tasks, RING_PAGES, NOTICED_FROM),
        };
        let group =
            group.map_err(|error| TrackError::Unavailable { tracker: NAME, reason: rights.explain_perf(&error) })?;
        Ok(PageFaults { group, gate, rights, attached: BTreeSet::new(), pruned: Time::ZERO })
    }

    /// Lost events, and how long allocations were not tracked because there were too many.
    pub fn counts(&self) -> (RingCounts, Duration) {
        (self.group.counts(), self.gate.closed_for)
    }

    fn attach(&mut self, targets: &[Target<'_>]) -> Result<(), TrackError> {
        for target in targets {
            let pid = target.process.pid();
            if self.attached.insert(pid) {
                self.group.attach(pid).map_err(|error| TrackError::Unavailable {
                    tracker: NAME,
                    reason: format!("pid {pid}: {}", self.rights.explain_perf(&error)),
                })?;
            }
        }
        Ok(())
    }
}

impl Tracker for PageFaults {
    fn name(&self) -> &'static str {
        NAME
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        let &Round { now, targets, .. } = round;
        // There are no accessed bits to read; the scan is used to find new threads.
        for target in targets {
            self.attached.remove(&target.process.pid());
        }
        self.events(now, targets, sink)
    }

    fn events(&mut self, now: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.attach(targets)?;
        let mut births = 0;
        self.group.drain(&mut |event, sample| {
            births += u64::from(event == MINOR);
            let vpn = Vpn::of_address(sample.address);
            if let Some(space) = space_of(targets, sample.pid, vpn) {
                sink.event(space, vpn, if event == MAJOR { Event::Refault } else { Event::Allocated });
            }
        });
        if let Some(open) = self.gate.note(now, births) {
            let call = |source| TrackError::call(NAME, "ioctl(PERF_EVENT_IOC_ENABLE)", source);
            self.group.set_enabled(MINOR, open).map_err(call)?;
        }
        if now.since(self.pruned) >= PRUNE_EVERY {
            self.pruned = now;
            self.group.prune();
        }
        Ok(())
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.group.as_fd())
    }

    fn lost(&self) -> u64 {
        self.group.counts().lost
    }

    fn proof_kind(&self) -> super::ProofKind {
        super::ProofKind::FirstTouches
    }
}

/// The space that an address of a process belongs to, if it lies in memory that may be managed.
pub(super) fn space_of(targets: &[Target<'_>], pid: u32, vpn: Vpn) -> Option<SpaceId> {
    let target = targets.iter().find(|target| target.process.pid() == pid)?;
    contains(target.ranges, vpn).then_some(target.space)
}

/// Whether one of the ranges, which are in order and apart, has the page.
pub(crate) fn contains(ranges: &[MemoryRange], vpn: Vpn) -> bool {
    let after = ranges.partition_point(|range| range.start <= vpn);
    after.checked_sub(1).is_some_and(|last| vpn < ranges[last].end)
}

/// Closes when more events come than are worth their cost, and opens again when the average is back in bounds: a token
/// bucket that may go into debt. Changing the period instead would not reach the threads that inherited their event.
#[derive(Clone, Debug)]
pub struct FloodGate {
    per_second: u64,
    burst: u64,
    tokens: i64,
    at: Option<Time>,
    closed_since: Option<Time>,
    /// Time spent closed, until the last opening.
    pub closed_for: Duration,
}

impl FloodGate {
    /// A gate that lets `per_second` events through on average, and `burst` in one go.
    pub fn new(per_second: u64, burst: u64) -> FloodGate {
        FloodGate { per_second, burst, tokens: burst as i64, at: None, closed_since: None, closed_for: Duration::ZERO }
    }

    /// Counts `events` that came until `now`; says whether to open (`true`) or to close (`false`) if that is to change.
    pub fn note(&mut self, now: Time, events: u64) -> Option<bool> {
        let passed = self.at.map_or(Duration::ZERO, |at| now.since(at));
        self.at = Some(now);
        let refill = (passed.as_secs_f64() * self.per_second as f64) as i64;
        self.tokens = (self.tokens.saturating_add(refill).min(self.burst as i64)).saturating_sub(events as i64);
        match self.closed_since {
            None if self.tokens < 0 => {
                self.closed_since = Some(now);
                Some(false)
            }
            // Half full, so that it does not flutter.
            Some(since) if self.tokens >= self.burst as i64 / 2 => {
                self.closed_for += now.since(since);
                self.closed_since = None;
                Some(true)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gate_closes_on_a_flood_and_holds_the_average() {
        let mut gate = FloodGate::new(1_000, 5_000);
        let (mut open, mut passed, mut now) = (true, 0_u64, Time::ZERO);
        for _ in 0..1_000 {
            now = now + Duration::from_millis(100);
            let events = if open { 2_000 } else { 0 };
            passed += events;
            open = gate.note(now, events).unwrap_or(open);
        }
        let seconds = now.as_secs();
        assert!(passed <= 1_000 * seconds + 5_000 + 2_000, "{passed} events in {seconds} s");
        assert!(passed >= 900 * seconds, "the gate lets the average through: {passed}");
        assert!(gate.closed_for > Duration::from_secs(90));
    }

    #[test]
    fn a_gate_within_its_rate_stays_open() {
        let mut gate = FloodGate::new(1_000, 5_000);
        for second in 1..100 {
            assert_eq!(gate.note(Time::from_nanos(second * 1_000_000_000), 1_000), None);
        }
        assert_eq!(gate.closed_for, Duration::ZERO);
    }
}
