//! The modelled mover: carries out plans and the kernel's own demotions, at a cost, and says what became of each move.
//!
//! In: plans. Out: outcomes, bytes on the tiers, time on the mover's thread and stalls in the program. Must not: decide.
//!
//! A move costs its fixed time and its copy, on a mover's thread, of which there are as many as the policy's system has; the
//! bytes load both tiers; each core that runs the program is
//! interrupted to flush its TLB; and if the page is in use, a thread that touches it waits. Promotions of systems that move
//! pages in the hint fault are paid by the program instead of by a mover.

use terrace_core::observation::Observation;
use terrace_core::plan::{Action, Failure, Move, Outcome, Plan};
use terrace_core::policy::Movers;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PAGE_BYTES, TierId};
use terrace_machine::memory::PageWord;
use terrace_machine::mmu::Size;

use super::Simulation;
use crate::history::{What, named};

impl Simulation {
    /// Carries out a plan. Its outcomes are told to the engine when the mover has had the time for it.
    pub(crate) fn carry_out(&mut self, plan: &Plan) {
        let mut outcomes = Vec::with_capacity(plan.moves.len());
        // Time each mover spends, by the tier it moves pages out of.
        let mut busy = [0.0; TierId::MAX];
        for item in &plan.moves {
            let mut spent = 0.0;
            let failure = self.carry_out_one(item, &mut spent);
            let mover = if self.kernel.movers == Movers::EachTier { item.from.index() } else { 0 };
            let sharing = if let Movers::Several(threads) = self.kernel.movers { threads.max(1) } else { 1 };
            busy[mover] += spent / f64::from(sharing);
            let promotion = matches!(item.action, Action::MoveTo(to) if to < item.from);
            if failure.is_some() && promotion {
                self.counts.failed_promotions += u64::from(item.pages);
            }
            if let Some(page) = self.page(item.page) {
                let now = self.now();
                for page in page..page + item.pages {
                    let vpn = self.vpn(page);
                    self.history.add(now, vpn, || What::Moved {
                        from: item.from,
                        action: item.action,
                        reason: item.reason,
                        failure: named(failure),
                    });
                }
            }
            outcomes.push(Outcome { item: *item, done: if failure.is_none() { item.pages } else { 0 }, failure });
        }
        self.flush_batch();
        self.mover_free_ns = self.mover_free_ns.max(self.now_ns) + busy.into_iter().fold(0.0, f64::max);
        self.copies.take_until(self.mover_free_ns - self.now_ns);
        self.outcomes = Some(outcomes);
    }

    fn carry_out_one(&mut self, item: &Move, busy: &mut f64) -> Option<Failure> {
        let Some(page) = self.page(item.page) else { return Some(Failure::Gone) };
        let word = self.hot.memory.word(page);
        let unit = self.hot.memory.unit(page);
        if word.tier() != Some(item.from) || unit.len() != item.pages as usize && item.action != Action::Collapse {
            return Some(Failure::Gone);
        }
        if self.config.transient_failures > 0.0 && self.draw() < self.config.transient_failures {
            return Some(Failure::Stayed);
        }
        match item.action {
            Action::MoveTo(to) => self.move_unit(unit, to, busy),
            Action::Split => self.split(unit.start, busy),
            Action::Collapse => self.collapse(page >> BLOCK_SHIFT << BLOCK_SHIFT, busy),
        }
    }

    fn move_unit(&mut self, unit: std::ops::Range<u32>, to: TierId, busy: &mut f64) -> Option<Failure> {
        let from = self.hot.memory.word(unit.start).tier()?;
        let weight = u64::from(unit.end - unit.start);
        let promotion = to < from;
        if to.index() >= self.tiers.len() {
            return Some(Failure::Errno(19));
        }
        if promotion
            && self.kernel.promotion_needs_high_watermark
            && !self.reclaim.may_promote(&self.hot.memory, to, weight)
        {
            return Some(Failure::NoRoom);
        }
        if self.hot.memory.free(to) < weight {
            return Some(Failure::NoRoom);
        }
        let cost = self.relocate(unit.clone(), from, to, self.config.pages_a_flush());
        let in_fault = promotion && self.kernel.promotion_needs_high_watermark;
        if !in_fault {
            // A mover's thread copies, while the program goes on.
            let bytes = weight * PAGE_BYTES;
            self.hot.read[from.index()] -= bytes;
            self.hot.written[to.index()] -= bytes;
            self.waited.moved_fast[0] -= if from == TierId::FAST { bytes } else { 0 };
            self.waited.moved_fast[1] -= if to == TierId::FAST { bytes } else { 0 };
            self.copies.add(from, to, bytes);
        }
        if promotion {
            for page in unit {
                self.hot.memory.clear(page, PageWord::DEMOTED);
            }
            self.counts.promoted += weight;
        } else {
            self.counts.demoted += weight;
        }
        if in_fault {
            // The page moves in the fault that asked for it.
            self.costs.promotion_stall += cost;
            self.stall_shared(cost);
        } else {
            self.costs.migration += cost;
            *busy += cost;
        }
        None
    }

    /// Moves a unit that fits, and returns what the one who moves it spends. Pages of 4 KiB may share a flush with so many others.
    fn relocate(&mut self, unit: std::ops::Range<u32>, from: TierId, to: TierId, pages_a_flush: u32) -> f64 {
        let management = self.config.machine.management;
        let huge = unit.len() > 1;
        let weight = u64::from(unit.end - unit.start);
        let bytes = weight * PAGE_BYTES;
        if self.lists {
            self.reclaim.leaving(&self.hot.memory, unit.start);
        }
        let accessed = self.hot.memory.take_accessed(unit.clone());
        for page in unit.clone() {
            self.hot.memory.move_to(page, to);
            self.hot.memory.clear(page, PageWord::MARKED);
        }
        let stored = self.hot.memory.is_compressed(to);
        if stored && huge {
            // Compressed memory holds 4 KiB pages: the block comes apart on the way, and the engine is told.
            for page in unit.clone() {
                self.hot.memory.clear(page, PageWord::HUGE);
            }
            self.relocated.push(unit.start);
        }
        if self.lists {
            let units = if stored && huge { unit.clone() } else { unit.start..unit.start + 1 };
            for unit in units {
                self.reclaim.arrived(&mut self.hot.memory, unit);
            }
        }
        match &mut self.hot.mmu {
            Some(run) if !huge && pages_a_flush > 1 => {
                run.unflushed += 1;
                if run.unflushed >= pages_a_flush {
                    self.flush_batch();
                }
            }
            _ => {
                self.flush_page(unit.start, huge);
                self.interrupt();
            }
        }
        self.hot.read[from.index()] += bytes;
        self.hot.written[to.index()] += bytes;
        self.waited.moved_fast[0] += if from == TierId::FAST { bytes } else { 0 };
        self.waited.moved_fast[1] += if to == TierId::FAST { bytes } else { 0 };
        self.counts.migrated_pages += weight;
        let fixed = if huge { management.move_huge_ns } else { management.move_small_ns };
        let copy = management.copy_nanos(bytes as f64, &self.tiers[from.index()], &self.tiers[to.index()]);
        let packing = if stored { self.tiers[to.index()].write_latency_ns * weight as f64 } else { 0.0 };
        let unpacking = match self.hot.memory.is_compressed(from) {
            true => self.tiers[from.index()].read_latency_ns * weight as f64,
            false => 0.0,
        };
        let cost = fixed + copy + packing + unpacking;
        self.moving.push((unit.start, accessed, cost));
        cost
    }

    /// One page, or one huge page, goes one tier down by the kernel's choice. Returns whether any could.
    pub(crate) fn reclaim_one(&mut self, tier: TierId) -> bool {
        let management = self.config.machine.management;
        let scanned = self.reclaim.counts.scanned;
        let listed = self.hot.memory.used(tier);
        let victim = self.reclaim.next_victim(&mut self.hot.memory, tier, 2 * listed + 64);
        self.costs.reclaim += (self.reclaim.counts.scanned - scanned) as f64 * management.reclaim_page_ns;
        let Some(victim) = victim else { return false };
        let unit = self.hot.memory.unit(victim);
        let weight = u64::from(unit.end - unit.start);
        let memory = &self.hot.memory;
        let below = (tier.0 + 1..memory.tiers() as u8).map(TierId).find(|to| memory.free(*to) >= weight);
        let Some(to) = below else { return false };
        let cost = self.relocate(unit.clone(), tier, to, 1);
        self.costs.reclaim += cost;
        self.counts.demoted += weight;
        self.counts.kernel_demoted += weight;
        let now = self.now();
        for page in unit.clone() {
            self.hot.memory.clear(page, PageWord::ACTIVE | PageWord::REFERENCED);
            self.hot.memory.set(page, PageWord::DEMOTED);
            let vpn = self.vpn(page);
            self.history.add(now, vpn, || What::Reclaimed { from: tier, to });
        }
        if self.kernel.demoted_pages_marked && !self.hot.memory.is_compressed(to) {
            self.mark(unit.clone());
        }
        self.relocated.push(unit.start);
        true
    }

    /// Makes a unit inaccessible, and remembers when.
    pub(crate) fn mark(&mut self, unit: std::ops::Range<u32>) {
        if self.marked_at.is_empty() {
            self.marked_at = vec![0; self.hot.memory.len()];
        }
        self.marked_at[unit.start as usize] = (self.now().as_nanos() / 1_000_000) as u32;
        for page in unit {
            self.hot.memory.set(page, PageWord::MARKED);
        }
    }

    /// A block's mapping changed by itself: the cost is that of a split or a collapse, and no mover is busy with it.
    pub(crate) fn follow_mapping(&mut self, first: u32, huge: bool) {
        let mut spent = 0.0;
        let failure = match huge {
            true if self.hot.memory.word(first).has(PageWord::HUGE) => return,
            // What has no memory yet is born as the trace has it.
            true if !self.fill(first) => return,
            true => self.collapse(first, &mut spent),
            false => self.split(first, &mut spent),
        };
        if failure.is_none() {
            self.relocated.push(first);
        }
    }

    /// Gives memory to what of a block has none, where the rest lies, as a kernel's collapse does (khugepaged's `max_ptes_none` is 511 unless
    /// set). Returns whether any of it had memory.
    fn fill(&mut self, first: u32) -> bool {
        let block = first..first + BLOCK_PAGES;
        let Some(tier) = block.clone().find_map(|page| self.hot.memory.word(page).tier()) else { return false };
        let now = self.now();
        for page in block {
            let word = self.hot.memory.word(page);
            if !word.has(PageWord::MAPPED) || !word.has(PageWord::ABSENT) || !self.hot.memory.place(page, tier) {
                continue;
            }
            self.entered(page);
            let vpn = self.vpn(page);
            self.history.add(now, vpn, || What::Born { tier, huge: false });
            self.born.push(Observation::Born { page: self.id(page), tier });
        }
        true
    }

    fn split(&mut self, first: u32, busy: &mut f64) -> Option<Failure> {
        if !self.hot.memory.word(first).has(PageWord::HUGE) {
            return Some(Failure::Gone);
        }
        self.break_up(first);
        self.remapped(first, true);
        self.counts.splits += 1;
        let cost = self.config.machine.management.split_ns;
        self.costs.migration += cost;
        *busy += cost;
        None
    }

    /// Makes 512 units of a huge one.
    pub(crate) fn break_up(&mut self, first: u32) {
        if self.lists {
            self.reclaim.leaving(&self.hot.memory, first);
        }
        let active = self.hot.memory.word(first).has(PageWord::ACTIVE);
        for page in first..first + BLOCK_PAGES {
            self.hot.memory.clear(page, PageWord::HUGE);
            if active {
                self.hot.memory.set(page, PageWord::ACTIVE);
            }
        }
        if let Some(run) = &mut self.hot.mmu {
            run.mmu.split(first);
        }
        if self.lists {
            for page in first..first + BLOCK_PAGES {
                self.reclaim.arrived(&mut self.hot.memory, page);
            }
        }
    }

    fn collapse(&mut self, first: u32, busy: &mut f64) -> Option<Failure> {
        let words = &self.hot.memory.words()[first as usize..(first + BLOCK_PAGES) as usize];
        let tier = words[0].tier()?;
        let together = words.iter().all(|word| {
            word.tier() == Some(tier)
                && !word.has(PageWord::HUGE | PageWord::MARKED | PageWord::STORED | PageWord::FILE)
        });
        if !together {
            return Some(Failure::Stayed);
        }
        if self.lists {
            for page in first..first + BLOCK_PAGES {
                self.reclaim.leaving(&self.hot.memory, page);
            }
        }
        for page in first..first + BLOCK_PAGES {
            self.hot.memory.set(page, PageWord::HUGE);
        }
        if self.lists {
            self.reclaim.arrived(&mut self.hot.memory, first);
        }
        match &mut self.hot.mmu {
            Some(run) => run.mmu.collapse(first, tier),
            None => (first..first + BLOCK_PAGES).for_each(|page| self.flush_page(page, false)),
        }
        self.remapped(first, false);
        self.counts.collapses += 1;
        let bytes = u64::from(BLOCK_PAGES) * PAGE_BYTES;
        self.hot.read[tier.index()] += bytes;
        self.hot.written[tier.index()] += bytes;
        let management = &self.config.machine.management;
        let place = &self.tiers[tier.index()];
        let cost = management.collapse_ns + management.copy_nanos(bytes as f64, place, place);
        self.costs.migration += cost;
        *busy += cost;
        None
    }

    /// Forgets a translation on every core that ever ran a thread of the program.
    fn flush_page(&mut self, page: u32, huge: bool) {
        let threads = self.hot.work.len();
        for tlb in self.hot.tlbs.iter_mut().take(threads) {
            tlb.flush_page(page, huge);
        }
        if let Some(run) = &mut self.hot.mmu {
            run.mmu.shootdown(page, if huge { Size::Huge } else { Size::Small });
        }
    }

    /// Each core that runs the program is interrupted to forget translations.
    fn interrupt(&mut self) {
        let cost = self.config.machine.management.shootdown_ns;
        self.costs.shootdown_stall += cost * f64::from(self.active);
        self.stall_each(cost);
    }

    /// Pages moved whose translations wait to be forgotten: with them all others go, on every core.
    fn flush_batch(&mut self) {
        let Some(run) = self.hot.mmu.as_mut().filter(|run| run.unflushed > 0) else { return };
        run.unflushed = 0;
        run.mmu.flush();
        run.mmu.shootdowns += 1;
        self.interrupt();
    }

    /// A block's mapping changed size: its old translations go, on every core.
    fn remapped(&mut self, first: u32, was_huge: bool) {
        self.flush_page(first, was_huge);
        self.interrupt();
    }
}
