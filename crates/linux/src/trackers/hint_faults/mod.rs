//! `hint-faults`: the kernel's NUMA scanner makes pages of slow nodes inaccessible; the faults show who touches them.
//!
//! In: the targets, and the kernel's scanner ([`scanner`]), which is set to mark pages and to promote none while there are any. Out: an
//! [`Event::HintFault`] for each minor fault, whose address perf events show. Must not: promote (that is for the policy to decide),
//! have pages marked whose faults nobody hears (a program would pay for them in vain), or leave the kernel's settings changed.
//!
//! A perf event does not distinguish a hint fault from a first touch, or from the first write after a fork. All of them say that the
//! program used the page; the sink knows which pages have memory in a slow tier, and those are what was marked.

pub mod scanner;

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use terrace_core::policy::HintScan;
use terrace_core::units::{SpaceId, Time, Vpn};

use self::scanner::Scanner;
use super::page_faults::PageFaults;
use super::{Event, ProofKind, Round, Sink, Target, TrackError, Tracker};

const NAME: &str = "hint-faults";

/// The tracker.
#[derive(Debug)]
pub struct HintFaults {
    faults: PageFaults,
    scanner: Scanner,
    /// The spaces whose faults are heard. While there are none, nothing is marked.
    heard: BTreeSet<SpaceId>,
    wanted: Option<HintScan>,
}

impl HintFaults {
    /// Its name, as `--tracker` takes it.
    pub const NAME: &'static str = NAME;

    /// Finds the kernel's scanner, which marks pages of slow nodes from the first round with targets until this has none, is dropped or killed.
    ///
    /// # Errors
    /// When the kernel has no such scanner, no tiers, or someone else uses it; or when perf events are refused.
    pub fn open() -> Result<HintFaults, TrackError> {
        // The events first: they change nothing.
        let faults = PageFaults::open().map_err(|error| match error {
            TrackError::Unavailable { reason, .. } => unavailable(reason),
            other => other,
        })?;
        let scanner = Scanner::open(std::path::Path::new("/")).map_err(|error| unavailable(error.to_string()))?;
        Ok(HintFaults { faults, scanner, heard: BTreeSet::new(), wanted: None })
    }

    /// Has the targets' pages marked, once their faults are heard.
    fn mark(&mut self, targets: &[Target<'_>]) -> Result<(), TrackError> {
        self.heard.extend(targets.iter().map(|target| target.space));
        if self.heard.is_empty() {
            return Ok(());
        }
        self.scanner.start().map_err(|error| unavailable(error.to_string()))
    }

    /// Passes the policy's request on to the kernel, for the largest of the targets.
    fn follow_policy(&mut self, targets: &[Target<'_>]) {
        let Some(wanted) = self.wanted else { return };
        let resident = targets.iter().filter_map(|target| target.process.stat().ok()).map(|stat| stat.resident);
        let Some(resident) = resident.max() else { return };
        self.scanner.pace(wanted, resident);
    }
}

fn unavailable(reason: String) -> TrackError {
    TrackError::Unavailable { tracker: NAME, reason }
}

/// Takes minor faults for what they are here.
struct AsHintFaults<'a>(&'a mut dyn Sink);

impl Sink for AsHintFaults<'_> {
    fn scan(
        &mut self,
        space: SpaceId,
        first: Vpn,
        ptes: &[terrace_core::observation::PteState],
        window: Option<std::time::Duration>,
        cleared: bool,
    ) {
        self.0.scan(space, first, ptes, window, cleared);
    }

    fn event(&mut self, space: SpaceId, vpn: Vpn, event: Event) {
        self.0.event(space, vpn, if event == Event::Allocated { Event::HintFault } else { event });
    }
}

impl Tracker for HintFaults {
    fn name(&self) -> &'static str {
        NAME
    }

    fn scan(&mut self, round: &Round<'_>, sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.faults.scan(round, &mut AsHintFaults(sink))?;
        self.mark(round.targets)?;
        self.follow_policy(round.targets);
        Ok(())
    }

    fn events(&mut self, now: Time, targets: &[Target<'_>], sink: &mut dyn Sink) -> Result<(), TrackError> {
        self.faults.events(now, targets, &mut AsHintFaults(sink))?;
        self.mark(targets)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.faults.event_fd()
    }

    fn lost(&self) -> u64 {
        self.faults.lost()
    }

    fn forget(&mut self, space: SpaceId) {
        self.faults.forget(space);
        self.heard.remove(&space);
        if self.heard.is_empty() {
            self.scanner.stop();
        }
    }

    fn proof_kind(&self) -> ProofKind {
        ProofKind::HintFaults { slow_node: self.scanner.slow_node() }
    }

    fn set_hint_scan(&mut self, wanted: HintScan) {
        self.wanted = Some(wanted);
    }
}
