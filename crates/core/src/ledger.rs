//! The ledger: counts every move, failure and ping-pong, and keeps the latest decisions to explain them.
//!
//! In: outcomes and returns, from the engine. Out: totals for reports, and the history of a block. Must not: count a request; only what
//! happened.

use std::collections::{BTreeMap, VecDeque};

use crate::plan::{Action, Failure, Outcome, Reason};
use crate::units::{SpaceId, TierId, Time, Vpn};

/// A kind of move that is counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Source tier.
    pub from: TierId,
    /// Target tier.
    pub to: TierId,
    /// Reason.
    pub reason: Reason,
}

/// A decision that was carried out or failed: neighbouring pages of one block, moved for one reason by one plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// When its outcome came in.
    pub time: Time,
    /// The plan it belonged to.
    pub plan: u64,
    /// The space.
    pub space: SpaceId,
    /// Its first page.
    pub first: Vpn,
    /// Number of pages from the first to the last it touched.
    pub span: u32,
    /// Pages that moved.
    pub moved: u32,
    /// Pages that did not move.
    pub failed: u32,
    /// Source tier.
    pub from: TierId,
    /// The action.
    pub action: Action,
    /// The reason.
    pub reason: Reason,
}

/// Number of decisions kept: 64 bytes each, a quarter of a MiB in all.
const DECISIONS_KEPT: usize = 4096;

/// Totals since the start, and the latest decisions. All counts in 4 KiB pages.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    moved: BTreeMap<Route, u64>,
    failed: BTreeMap<Failure, u64>,
    refaults: u64,
    ping_pong_pages: u64,
    promotions_failed: u64,
    demotions_failed: u64,
    splits: u64,
    looks: u64,
    collapses: u64,
    splits_refused: BTreeMap<Failure, u64>,
    decisions: VecDeque<Decision>,
}

impl Ledger {
    /// Records the outcome of one move.
    pub(crate) fn enter(&mut self, time: Time, plan: u64, space: SpaceId, first: Vpn, outcome: &Outcome) {
        let item = outcome.item;
        let failed = item.pages - outcome.done;
        match item.action {
            Action::MoveTo(to) => {
                if outcome.done > 0 {
                    let route = Route { from: item.from, to, reason: item.reason };
                    *self.moved.entry(route).or_default() += u64::from(outcome.done);
                }
                if to > item.from {
                    self.demotions_failed += u64::from(failed);
                } else {
                    self.promotions_failed += u64::from(failed);
                }
            }
            Action::Split => {
                self.splits += u64::from(outcome.done > 0);
                self.looks += u64::from(outcome.done > 0 && item.reason == Reason::Inside);
            }
            Action::Collapse => self.collapses += u64::from(outcome.done > 0),
        }
        if let (Action::Split, Some(failure)) = (item.action, outcome.failure) {
            *self.splits_refused.entry(failure).or_default() += 1;
        }
        if let Some(failure) = outcome.failure {
            *self.failed.entry(failure).or_default() += u64::from(failed);
        }
        self.remember(time, plan, space, first, outcome, failed);
    }

    fn remember(&mut self, time: Time, plan: u64, space: SpaceId, first: Vpn, outcome: &Outcome, failed: u32) {
        let item = outcome.item;
        if let Some(last) = self.decisions.back_mut() {
            let same = last.plan == plan
                && last.space == space
                && last.first.block_start() == first.block_start()
                && (last.from, last.action, last.reason) == (item.from, item.action, item.reason)
                && first >= last.first;
            if same {
                last.span = (first.0 - last.first.0) as u32 + item.pages;
                last.moved += outcome.done;
                last.failed += failed;
                return;
            }
        }
        if self.decisions.len() == DECISIONS_KEPT {
            self.decisions.pop_front();
        }
        self.decisions.push_back(Decision {
            time,
            plan,
            space,
            first,
            span: item.pages,
            moved: outcome.done,
            failed,
            from: item.from,
            action: item.action,
            reason: item.reason,
        });
    }

    /// Records refaulted pages.
    pub(crate) fn returned(&mut self, ping_pong: bool) {
        self.refaults += 1;
        self.ping_pong_pages += u64::from(ping_pong);
    }

    /// Records a promotion that reversed a recent demotion.
    pub(crate) fn ping_pong(&mut self) {
        self.ping_pong_pages += 1;
    }

    /// Pages moved, by route.
    pub fn moved(&self) -> &BTreeMap<Route, u64> {
        &self.moved
    }

    /// Pages whose move failed, by cause.
    pub fn failed(&self) -> &BTreeMap<Failure, u64> {
        &self.failed
    }

    /// Pages moved to slower tiers.
    pub fn demoted(&self) -> u64 {
        self.moved.iter().filter(|(route, _)| route.to > route.from).map(|(_, pages)| pages).sum()
    }

    /// Pages promoted by Terrace; refaulted pages are [`Ledger::refaults`].
    pub fn promoted(&self) -> u64 {
        self.moved.iter().filter(|(route, _)| route.to < route.from).map(|(_, pages)| pages).sum()
    }

    /// Pages whose promotion failed.
    pub fn promotions_failed(&self) -> u64 {
        self.promotions_failed
    }

    /// Pages whose demotion failed.
    pub fn demotions_failed(&self) -> u64 {
        self.demotions_failed
    }

    /// Demoted pages that came back because the program touched them.
    pub fn refaults(&self) -> u64 {
        self.refaults
    }

    /// Demotions that turned out wrong: the page was back within the ping-pong window.
    pub fn ping_pong_pages(&self) -> u64 {
        self.ping_pong_pages
    }

    /// Huge pages split.
    pub fn splits(&self) -> u64 {
        self.splits
    }

    /// Of these, those split to see or to take what is cold inside ([`Reason::Inside`]).
    pub fn looks(&self) -> u64 {
        self.looks
    }

    /// Huge pages that could not be split, by cause. Their pages are in [`Ledger::failed`] as well.
    pub fn splits_refused(&self) -> &BTreeMap<Failure, u64> {
        &self.splits_refused
    }

    /// Blocks collapsed into huge pages.
    pub fn collapses(&self) -> u64 {
        self.collapses
    }

    /// The latest decisions, oldest first.
    pub fn decisions(&self) -> impl DoubleEndedIterator<Item = &Decision> {
        self.decisions.iter()
    }

    /// The latest decisions that touched a page, newest first.
    pub fn explain(&self, space: SpaceId, vpn: Vpn) -> impl Iterator<Item = &Decision> {
        self.decisions.iter().rev().filter(move |decision| {
            decision.space == space && (decision.first.0..decision.first.0 + u64::from(decision.span)).contains(&vpn.0)
        })
    }
}
