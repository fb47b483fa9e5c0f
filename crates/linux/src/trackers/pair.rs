//! Two trackers at once: one that the run is known by, and one that adds what the first cannot see.
//!
//! In: two trackers that were proven. Out: a tracker with the grade and the proof of the first, that reports what each of them
//! sees. Must not: pair two that clear the same marks.
//!
//! Two pairs are made. [`samples_and_hint_faults`] serves a policy that lives on both. [`with_refaults`] completes a tracker
//! with each page that the program brought back: a table walk shows only in its next round that a page came back, and not who
//! brought it; a refault event says at once that moving that page was a mistake.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use terrace_core::policy::{HintScan, SamplePeriods};
use terrace_core::units::{SpaceId, Time};
use terrace_core::watching::WatchPrices;

use super::hint_faults::HintFaults;
use super::page_faults::PageFaults;
use super::{Grade, ProofKind, Round, Sink, Target, TrackError, Tracker};
use crate::process::MemoryRange;

struct Pair {
    name: &'static str,
    main: Box<dyn Tracker>,
    /// Heard before `main`: what happened comes before what a walk is about to see.
    beside: Box<dyn Tracker>,
    poll: OwnedFd,
}

/// Pairs a tracker of samples with one of hint faults.
///
/// # Errors
/// When their descriptors cannot be waited for together.
pub fn samples_and_hint_faults(samples: Box<dyn Tracker>, faults: Box<dyn Tracker>) -> io::Result<Box<dyn Tracker>> {
    let poll = poll_both(samples.as_ref(), faults.as_ref())?;
    Ok(Box::new(Pair { name: "samples+hint-faults", main: samples, beside: faults, poll }))
}

/// Why refaults cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum RefaultsError {
    /// There is no tracker of page faults.
    #[error(transparent)]
    Faults(#[from] TrackError),
    /// The two cannot be waited for together.
    #[error("epoll: {0}")]
    Epoll(io::Error),
}

/// Completes `main` with refaults; it keeps its name. Gives it back as it is, with the reason in one line, where they cannot be
/// watched: it is better to work without them, and to say so. A tracker of page faults has no need of it.
pub fn with_refaults(main: Box<dyn Tracker>) -> (Box<dyn Tracker>, Result<(), RefaultsError>) {
    if [PageFaults::NAME, HintFaults::NAME].contains(&main.name()) {
        return (main, Ok(()));
    }
    let opened = PageFaults::open_refaults_only().map_err(RefaultsError::Faults).and_then(|faults| {
        let poll = poll_both(main.as_ref(), &faults).map_err(RefaultsError::Epoll)?;
        Ok((faults, poll))
    });
    match opened {
        Ok((faults, poll)) => (Box::new(Pair { name: main.name(), main, beside: Box::new(faults), poll }), Ok(())),
        Err(reason) => (main, Err(reason)),
    }
}

/// One descriptor that is ready when one of theirs is.
fn poll_both(main: &dyn Tracker, beside: &dyn Tracker) -> io::Result<OwnedFd> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, fd) in [main.event_fd(), beside.event_fd()].into_iter().enumerate() {
        if let Some(fd) = fd {
            epoll::add(&poll, fd, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
        }
    }
    Ok(poll)
}

impl Tracker for Pair {
    fn name(&self) -> &'static str {
        self.name
    }

    fn grade(&self) -> Grade {
        self.main.grade()
    }

    fn proof_kind(&self) -> ProofKind {
        self.main.proof_kind()
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.beside.scan(round, sink)?;
        self.main.scan(round, sink)
    }

    fn events(&mut self, now: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.beside.events(now, targets, sink)?;
        self.main.events(now, targets, sink)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn lost(&self) -> u64 {
        self.main.lost() + self.beside.lost()
    }

    fn notes(&self) -> Vec<String> {
        self.main.notes().into_iter().chain(self.beside.notes()).collect()
    }

    fn reads_page_tables(&self) -> bool {
        self.main.reads_page_tables()
    }

    fn sees_virtual_machines(&self) -> bool {
        self.main.sees_virtual_machines()
    }

    fn watch_within(&mut self, within: f64) {
        self.main.watch_within(within);
        self.beside.watch_within(within);
    }

    fn prices(&self) -> Option<WatchPrices> {
        self.main.prices().or_else(|| self.beside.prices())
    }

    fn forget(&mut self, space: SpaceId) {
        self.main.forget(space);
        self.beside.forget(space);
    }

    fn admit(&mut self, range: MemoryRange) -> Result<(), TrackError> {
        self.main.admit(range)?;
        self.beside.admit(range)
    }

    fn set_sample_periods(&mut self, wanted: SamplePeriods) {
        self.main.set_sample_periods(wanted);
        self.beside.set_sample_periods(wanted);
    }

    fn set_hint_scan(&mut self, wanted: HintScan) {
        self.main.set_hint_scan(wanted);
        self.beside.set_hint_scan(wanted);
    }
}
