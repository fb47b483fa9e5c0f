//! What a tracker sees by address becomes what the engine knows by page.
//!
//! In: PTE states and events of a tracker, one round at a time; allocations and frees. Out: observations, in the engine; what appeared in swap and what
//! left it, for `swap_slots.rs`. Must not: ask the kernel, or leave anything out that the engine could know.

use std::ops::Range;
use std::time::Duration;

use terrace_core::engine::{Engine, Input};
use terrace_core::observation::{Observation, Observations, PteState, ScanBatch};
use terrace_core::policy::ScanReport;
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, SpaceId, TierId, Time, Vpn};
use terrace_core::watching::ScanBill;

use crate::life_cycle::LifeSink;
use crate::observer::Observer;
use crate::swap_slots::SwapSlots;
use crate::trackers::{Event, Sink};

/// Up to this many blocks of a range are looked up one by one; beyond that, all blocks of the space are scanned.
const FEW_BLOCKS: u64 = 64;

/// Turns what the tracker sees by address into what the engine knows by page.
pub(crate) struct Intake<'a> {
    pub engine: &'a mut Engine,
    pub observer: &'a mut dyn Observer,
    /// Where it is kept who put what into swap, and which tier that is; `None` where no tier is.
    pub swap: Option<(&'a mut SwapSlots, TierId)>,
    pub now: Time,
    /// How many of the scanned pages were accessed.
    pub round: ScanReport,
    /// What is to be paid for it.
    pub bill: ScanBill,
    /// Pages read of each process.
    pub read_of: Vec<(SpaceId, u64)>,
    /// Events so far, and faults of marked pages among them.
    pub events: u64,
    /// See there.
    pub hint_faults: u64,
    /// Pages allocated and freed, if these events are reported as they happen.
    pub births: u64,
    pub deaths: u64,
}

impl<'a> Intake<'a> {
    pub(crate) fn new(engine: &'a mut Engine, observer: &'a mut dyn Observer, now: Time) -> Intake<'a> {
        Intake {
            engine,
            observer,
            swap: None,
            now,
            round: ScanReport::default(),
            bill: ScanBill::default(),
            read_of: Vec::new(),
            events: 0,
            hint_faults: 0,
            births: 0,
            deaths: 0,
        }
    }

    /// Keeps what is seen of swap up to date as well.
    pub(crate) fn with_swap(self, slots: &'a mut SwapSlots, tier: Option<TierId>) -> Intake<'a> {
        Intake { swap: tier.map(|tier| (slots, tier)), ..self }
    }

    /// Notes which of these known pages were not in swap when last seen, and are now. Before the engine hears of it.
    fn find_in_swap(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState]) {
        let Some((slots, swap)) = &mut self.swap else { return };
        if !ptes.iter().any(|pte| pte.tier() == Some(*swap)) {
            return;
        }
        let pages = self.engine.pages();
        let Some(start) = pages.find(space, first) else { return };
        for (offset, _) in (0..).zip(ptes).filter(|(_, pte)| pte.tier() == Some(*swap)) {
            let known = pages[start.plus(offset)];
            if known.tier() != Some(*swap) && !known.moving() {
                slots.found(space, Vpn(first.0 + u64::from(offset)));
            }
        }
    }

    fn page(&self, space: SpaceId, vpn: Vpn) -> Option<PageId> {
        self.engine.pages().find(space, vpn)
    }
}

impl Sink for Intake<'_> {
    fn scan(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>, cleared: bool) {
        let range = first..Vpn(first.0 + ptes.len() as u64);
        if let Some((slots, swap)) = &mut self.swap {
            slots.scanned(space, first, ptes, *swap);
        }
        if !self.engine.pages().covers(space, range.clone()) {
            // Pages are made known when memory first appears behind them: a range that is only reserved costs nothing.
            let nothing_there = ptes.iter().all(|pte| pte.tier().is_none());
            if nothing_there && self.engine.pages().find_block(space, first).is_none() {
                return;
            }
            self.engine.handle(self.now, Input::Mapped(space, range));
        }
        self.find_in_swap(space, first, ptes);
        self.observer.scan(self.now, space, first, ptes, window);
        self.bill.read += ptes.len() as u64;
        // One process is read after the other.
        match self.read_of.last_mut() {
            Some((last, pages)) if *last == space => *pages += ptes.len() as u64,
            _ => self.read_of.push((space, ptes.len() as u64)),
        }
        if window.is_some() || cleared {
            let accessed = ptes.iter().filter(|pte| pte.accessed()).count() as u64;
            self.bill.in_turn += ptes.len() as u64;
            self.bill.cleared += if cleared && accessed > 0 { ptes.len() as u64 } else { 0 };
            if window.is_some() {
                // Pages in swap have no accessed bit; they are not counted.
                self.round.pages += ptes.iter().filter(|pte| pte.tier().is_some()).count() as u64;
                self.round.accessed += accessed;
                // One bit stands for a whole huge page.
                match accessed > 0 && ptes[0].huge() {
                    true => self.bill.touched_huge += 1,
                    false => self.bill.touched += accessed,
                }
            }
        }
        if let Some(page) = self.page(space, first) {
            let scan = ScanBatch { first: page, ptes, window, cleared };
            self.engine.handle(self.now, Input::Observed(Observations::Scan(scan)));
        }
    }

    fn event(&mut self, space: SpaceId, vpn: Vpn, event: Event) {
        self.events += 1;
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
                None => Observation::Allocated { page, tier: TierId::FAST },
            },
            Event::Allocated => Observation::Allocated { page, tier: TierId::FAST },
            Event::Refault => {
                if let Some((slots, _)) = &mut self.swap {
                    slots.left(space, vpn..Vpn(vpn.0 + 1));
                }
                Observation::Refault { page }
            }
        };
        self.engine.handle(self.now, Input::Observed(Observations::Events(&[seen])));
    }
}

impl LifeSink for Intake<'_> {
    fn born(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState]) {
        let range = first..Vpn(first.0 + ptes.len() as u64);
        if !self.engine.pages().covers(space, range.clone()) {
            self.engine.handle(self.now, Input::Mapped(space, range));
        }
        let Some(start) = self.page(space, first) else { return };
        self.find_in_swap(space, first, ptes);
        // The kernel's own count: a walk that saw the page first takes nothing from it.
        self.births += ptes.len() as u64;
        // A page that is alive was copied on write, came back or became part of a huge one: its life goes on.
        let alive = |page: PageId| self.engine.pages()[page].tier().is_some();
        let new = ptes.iter().enumerate().map(|(offset, pte)| (start.plus(offset as u32), pte));
        let born: Vec<Observation> = new
            .filter(|(page, _)| !alive(*page))
            // Freed again already, and the event is still pending: it was where memory is allocated first.
            .map(|(page, pte)| Observation::Allocated { page, tier: pte.tier().unwrap_or(TierId::FAST) })
            .collect();
        if !born.is_empty() {
            self.engine.handle(self.now, Input::Observed(Observations::Events(&born)));
        }
        // One huge page: a scan reports it as one, and so does this.
        if ptes.len() == BLOCK_PAGES as usize && ptes.iter().all(|pte| pte.huge()) {
            let scan = ScanBatch { first: start, ptes, window: None, cleared: false };
            self.engine.handle(self.now, Input::Observed(Observations::Scan(scan)));
        }
    }

    fn gone(&mut self, space: SpaceId, range: Range<Vpn>) {
        let pages = self.engine.pages();
        let mut gone = Vec::new();
        let mut take = |block: BlockId, start: Vpn| {
            let low = range.start.0.max(start.0);
            let high = range.end.0.min(start.0 + u64::from(BLOCK_PAGES));
            let inside = (low..high).map(|vpn| block.first_page().plus((vpn - start.0) as u32));
            let alive = inside.filter(|page| pages[*page].tier().is_some());
            gone.extend(alive.map(|page| Observation::Freed { page }));
        };
        let first = range.start.0 - range.start.0 % u64::from(BLOCK_PAGES);
        if range.end.0.saturating_sub(first) <= FEW_BLOCKS * u64::from(BLOCK_PAGES) {
            let starts = (first..range.end.0).step_by(BLOCK_PAGES as usize).map(Vpn);
            starts.for_each(|start| pages.find_block(space, start).into_iter().for_each(|block| take(block, start)));
        } else {
            pages.blocks_of(space).for_each(|(block, info)| take(block, info.start));
        }
        if !gone.is_empty() {
            self.deaths += gone.len() as u64;
            self.engine.handle(self.now, Input::Observed(Observations::Events(&gone)));
        }
    }
}
