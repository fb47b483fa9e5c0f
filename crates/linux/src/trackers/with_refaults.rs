//! A tracker completed with refaults: what another tracker sees, and besides it each page that the program brought back.
//!
//! In: a tracker that was proven. Out: a tracker of the same name, grade and proof, that reports [`Event::Refault`](super::Event)
//! as well. Must not: fail where refaults cannot be watched; it is better to work without them, and to say so.
//!
//! A table walk shows that a page came back only in its next round, and not who brought it; a refault event says at once that
//! moving that page was a mistake.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use terrace_core::policy::{HintScan, SamplePeriods};
use terrace_core::units::{SpaceId, Time};

use super::hint_faults::HintFaults;
use super::page_faults::PageFaults;
use super::{Grade, ProofKind, Sink, Target, TrackError, Tracker};
use crate::process::MemoryRange;
use crate::topology::TierMap;

/// The pair.
pub struct WithRefaults {
    main: Box<dyn Tracker>,
    faults: PageFaults,
    poll: OwnedFd,
}

impl WithRefaults {
    /// Completes `main`. Gives it back as it is, with the reason in one line, where refaults cannot be watched or `main`
    /// watches them itself.
    pub fn complete(main: Box<dyn Tracker>) -> (Box<dyn Tracker>, Result<(), String>) {
        if [PageFaults::NAME, HintFaults::NAME].contains(&main.name()) {
            return (main, Ok(()));
        }
        let opened = PageFaults::open_refaults_only().map_err(|error| error.to_string()).and_then(|faults| {
            Ok((WithRefaults::poll(main.as_ref(), &faults).map_err(|error| format!("epoll: {error}"))?, faults))
        });
        match opened {
            Ok((poll, faults)) => (Box::new(WithRefaults { main, faults, poll }), Ok(())),
            Err(reason) => (main, Err(reason)),
        }
    }

    fn poll(main: &dyn Tracker, faults: &PageFaults) -> io::Result<OwnedFd> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, fd) in [main.event_fd(), faults.event_fd()].into_iter().enumerate() {
            if let Some(fd) = fd {
                epoll::add(&poll, fd, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
            }
        }
        Ok(poll)
    }
}

impl Tracker for WithRefaults {
    fn name(&self) -> &'static str {
        self.main.name()
    }

    fn grade(&self) -> Grade {
        self.main.grade()
    }

    fn round(
        &mut self,
        now: Time,
        targets: &[Target<'_>],
        tiers: &TierMap,
        share: f64,
        sink: &mut dyn Sink,
    ) -> Result<(), TrackError> {
        // The refaults first: they happened before what the walk is about to see.
        self.faults.round(now, targets, tiers, share, sink)?;
        self.main.round(now, targets, tiers, share, sink)
    }

    fn events(&mut self, now: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.faults.events(now, targets, sink)?;
        self.main.events(now, targets, sink)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn lost(&self) -> u64 {
        self.main.lost() + self.faults.lost()
    }

    fn forget(&mut self, space: SpaceId) {
        self.main.forget(space);
        self.faults.forget(space);
    }

    fn proof_kind(&self) -> ProofKind {
        self.main.proof_kind()
    }

    fn admit(&mut self, range: MemoryRange) -> Result<(), TrackError> {
        self.main.admit(range)
    }

    fn set_sample_periods(&mut self, wanted: SamplePeriods) {
        self.main.set_sample_periods(wanted);
    }

    fn set_hint_scan(&mut self, wanted: HintScan) {
        self.main.set_hint_scan(wanted);
    }
}
