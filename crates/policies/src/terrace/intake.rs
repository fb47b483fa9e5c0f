//! From what trackers see to accesses of pages.
//!
//! In: samples, walks, faults, counts, allocations. Out: means, last uses and newborns, in the words of the pages. Must not: decide.
//!
//! The unit is an access that reached memory. A sample stands for its period; an accessed bit or a fault for as many accesses as there were
//! for each of them, as the processor counts accesses, or as such programs usually make where it counts none. For how many a sampled store stands, `stores` knows.

use terrace_core::observation::{Access, Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::random::unit as unit_number;
use terrace_core::units::{BLOCK_PAGES, PageId, TierId, Time};

use super::Terrace;
use super::pass::NEWBORN;
use super::state::{LONG_AGEING, SHORT_AGEING, decode, encode, weight};

impl Terrace {
    /// Step 1: what a tracker saw becomes accesses of pages.
    pub(super) fn take_in(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) => {
                let huge = pages.block(scan.first.block()).is_some_and(|block| block.huge);
                let read = scan.window.is_some();
                if let Some(blind) = self.blind.get_mut(scan.first.block().0 as usize).filter(|_| read) {
                    *blind = false;
                }
                let mut once = huge;
                for (offset, pte) in (0..).zip(scan.ptes) {
                    let page = scan.first.plus(offset);
                    let unit = if huge { page.block().first_page() } else { page };
                    if pte.tier().is_some() && pages[unit].stamp == 0 && pages[unit].managed() {
                        match huge {
                            true => self.allocated(now, unit, u64::from(BLOCK_PAGES), pages),
                            false => self.adopt(unit, pages),
                        }
                    }
                    if read && pte.accessed() && (!huge || once) {
                        once = false;
                        let size = if huge { f64::from(BLOCK_PAGES) } else { 1.0 };
                        self.touched(page, self.touch * size, pages);
                    }
                }
            }
            Observations::Events(events) => {
                for event in events {
                    match *event {
                        Observation::Sampled { page, access, period } => {
                            let period = f64::from(period) / f64::from(self.parts);
                            let accesses = match access {
                                Access::Load => {
                                    self.stores.load(period);
                                    period
                                }
                                Access::Store if self.options.stores => self.stores.store(period),
                                Access::Store => 0.0,
                            };
                            if accesses > 0.0 {
                                self.touched(page, accesses, pages);
                            }
                        }
                        Observation::Counted { page, accesses } => self.touched(page, f64::from(accesses), pages),
                        Observation::HintFault { page, .. } | Observation::Refault { page } => {
                            self.touched(page, self.touch, pages);
                        }
                        Observation::Allocated { page, .. } => self.allocated(now, page, 1, pages),
                        Observation::Freed { page } => pages[page].stamp = 0,
                    }
                }
            }
        }
    }

    /// Takes in accesses that reached a page of a unit of that size.
    pub(super) fn touched(&mut self, page: PageId, accesses: f64, pages: &mut Pages) {
        let range = pages.unit(page);
        let (unit, size) = (range.start, range.end.0 - range.start.0);
        if pages[unit].tier().is_none() {
            return;
        }
        self.adopt(unit, pages);
        self.received += accesses;
        self.pace.observe();
        let each = (accesses / f64::from(size)) as f32;
        let mut draw = || unit_number(self.random.next()) as f32;
        let entry = &mut pages[unit];
        entry.heat = encode(decode(entry.heat) + each * weight(LONG_AGEING), draw());
        entry.stamp = self.number;
        let short = &mut self.short[unit.index()];
        *short = encode(decode(*short) + each * weight(SHORT_AGEING), draw());
        self.notice(unit, size, pages);
    }

    /// A unit that is not known yet is as the mean page, until more is known.
    pub(super) fn adopt(&mut self, unit: PageId, pages: &mut Pages) {
        let entry = &mut pages[unit];
        if entry.stamp == 0 && entry.tier().is_some() {
            entry.heat = encode(self.mean_long as f32, 0.5);
            entry.stamp = self.number;
            entry.set_policy_bits(NEWBORN);
            self.short[unit.index()] = 0;
        }
    }

    pub(super) fn allocated(&mut self, now: Time, unit: PageId, count: u64, pages: &mut Pages) {
        pages[unit].stamp = 0;
        self.adopt(unit, pages);
        self.pace.observe();
        self.allocations.note(now, count);
        let free = self.fast_limit.saturating_sub(pages.used_in_all(TierId::FAST));
        self.make_room |= self.options.allocations && self.headroom > 0 && 2 * free < self.headroom;
    }
}
