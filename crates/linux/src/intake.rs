//! What a tracker sees by address becomes what the engine knows by page.
//!
//! In: sights and events of a tracker, one round at a time. Out: observations, in the engine. Must not: ask the kernel, or leave
//! anything out that the engine could know.

use std::time::Duration;

use terrace_core::engine::{Engine, Input};
use terrace_core::observation::{Observation, Scan, Seen, Sight};
use terrace_core::policy::Round;
use terrace_core::units::{PageId, SpaceId, TierId, Time, Vpn};

use crate::tap::Tap;
use crate::trackers::{Event, Sink};

/// Turns what the tracker sees by address into what the engine knows by page.
pub(crate) struct Intake<'a> {
    pub engine: &'a mut Engine,
    pub tap: &'a mut dyn Tap,
    pub now: Time,
    /// How much of what was looked at was accessed.
    pub round: Round,
    /// Faults of marked pages so far.
    pub hint_faults: u64,
}

impl Intake<'_> {
    fn page(&self, space: SpaceId, vpn: Vpn) -> Option<PageId> {
        self.engine.pages().find(space, vpn)
    }
}

impl Sink for Intake<'_> {
    fn scan(&mut self, space: SpaceId, first: Vpn, sights: &[Sight], window: Option<Duration>, cleared: bool) {
        let range = first..Vpn(first.0 + sights.len() as u64);
        if !self.engine.pages().covers(space, range.clone()) {
            // Pages are made known when memory first appears behind them: a range that is only reserved costs nothing.
            let nothing_there = sights.iter().all(|sight| sight.tier().is_none());
            if nothing_there && self.engine.pages().find_block(space, first).is_none() {
                return;
            }
            self.engine.handle(self.now, Input::Mapped(space, range));
        }
        self.tap.scan(self.now, space, first, sights, window);
        if window.is_some() {
            // Pages in swap have no mark that could be set; they count neither way.
            let marked = sights.iter().filter(|sight| sight.tier().is_some());
            self.round.pages += marked.count() as u64;
            self.round.accessed += sights.iter().filter(|sight| sight.accessed()).count() as u64;
        }
        if let Some(page) = self.page(space, first) {
            let scan = Scan { first: page, sights, window, cleared };
            self.engine.handle(self.now, Input::Seen(Seen::Scan(scan)));
        }
    }

    fn event(&mut self, space: SpaceId, vpn: Vpn, event: Event) {
        let Some(page) = self.page(space, vpn) else { return };
        let seen = match event {
            Event::Sampled { access, period } => Observation::Sampled { page, access, period },
            // The kernel marks what lies in slow nodes; anywhere else a minor fault is a copy on write, or a first touch.
            Event::HintFault => match self.engine.pages()[page].tier() {
                Some(TierId::FAST) => return,
                Some(_) => {
                    self.hint_faults += 1;
                    Observation::HintFault { page, write: false, marked: self.now }
                }
                None => Observation::Born { page, tier: TierId::FAST },
            },
            Event::Born => Observation::Born { page, tier: TierId::FAST },
            Event::Refault => Observation::Refault { page },
        };
        self.engine.handle(self.now, Input::Seen(Seen::Events(&[seen])));
    }
}
