//! Two trackers at once: hardware samples and hint faults, for a policy that lives on both.
//!
//! In: two trackers that were proven. Out: a tracker that reports what each of them sees. Must not: pair two that clear the same
//! marks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use terrace_core::policy::{HintScan, SamplePeriods};
use terrace_core::units::{SpaceId, Time};

use super::{Grade, ProofKind, Sink, Target, TrackError, Tracker};
use crate::process::MemoryRange;
use crate::topology::TierMap;

const NAME: &str = "samples+hint-faults";

/// The pair.
pub struct Both {
    samples: Box<dyn Tracker>,
    faults: Box<dyn Tracker>,
    poll: OwnedFd,
}

impl Both {
    /// Its name in reports.
    pub const NAME: &'static str = NAME;

    /// Pairs a tracker of samples with one of hint faults.
    ///
    /// # Errors
    /// When their descriptors cannot be waited for together.
    pub fn pair(samples: Box<dyn Tracker>, faults: Box<dyn Tracker>) -> io::Result<Both> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (number, fd) in [samples.event_fd(), faults.event_fd()].into_iter().enumerate() {
            if let Some(fd) = fd {
                epoll::add(&poll, fd, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
            }
        }
        Ok(Both { samples, faults, poll })
    }
}

impl Tracker for Both {
    fn name(&self) -> &'static str {
        NAME
    }

    fn grade(&self) -> Grade {
        self.samples.grade()
    }

    fn round(
        &mut self,
        now: Time,
        targets: &[Target<'_>],
        tiers: &TierMap,
        share: f64,
        sink: &mut dyn Sink,
    ) -> Result<(), TrackError> {
        self.samples.round(now, targets, tiers, share, sink)?;
        self.faults.round(now, targets, tiers, share, sink)
    }

    fn events(&mut self, now: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.samples.events(now, targets, sink)?;
        self.faults.events(now, targets, sink)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poll.as_fd())
    }

    fn lost(&self) -> u64 {
        self.samples.lost() + self.faults.lost()
    }

    fn forget(&mut self, space: SpaceId) {
        self.samples.forget(space);
        self.faults.forget(space);
    }

    fn proof_kind(&self) -> ProofKind {
        self.samples.proof_kind()
    }

    fn admit(&mut self, range: MemoryRange) -> Result<(), TrackError> {
        self.samples.admit(range)?;
        self.faults.admit(range)
    }

    fn set_sample_periods(&mut self, wanted: SamplePeriods) {
        self.samples.set_sample_periods(wanted);
    }

    fn set_hint_scan(&mut self, wanted: HintScan) {
        self.faults.set_hint_scan(wanted);
    }
}
