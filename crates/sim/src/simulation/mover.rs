//! The modelled mover: carries out plans and the kernel's own demotions, at a cost, and says what became of each move.
//!
//! In: plans. Out: outcomes, bytes on the tiers, time on the mover's thread and stalls in the program. Must not: decide.
//!
//! A move costs its fixed time and its copy, on a mover's thread, of which there are as many as the policy's system has; the
//! bytes load both tiers; each core that runs the program is
//! interrupted to flush its TLB; and if the page is in use, a thread that touches it waits. Promotions of systems that move
//! pages in the hint fault are paid by the program instead of by a mover. Those of a bound cost nothing.
//! A block of single pages that leaves whole for compressed memory is made one huge page first: one interrupt for all of it
//! (`docs/block-moves.md`).

use terrace_core::engine::Input;
use terrace_core::observation::Observation;
use terrace_core::plan::{Action, Failure, Move, Outcome, Plan};
use terrace_core::policy::Movers;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PAGE_BYTES, TierId, Time};
use terrace_machine::memory::PageWord;
use terrace_machine::mmu::Size;

use super::Simulation;
use super::books::{Cost, Event};
use crate::copies::Copies;
use crate::history::{What, named};

/// What is on its way.
#[derive(Default)]
pub(super) struct Mover {
    /// Small nanoseconds at which the mover's threads are done.
    free_ns: f64,
    /// What became of the plan that is being carried out.
    outcomes: Option<Vec<Outcome>>,
    /// What the mover's threads are copying.
    copies: Copies,
    /// Units that moved in this stretch.
    moving: Vec<Moving>,
    /// Pages of the block on its way to compressed memory as one huge page that are still to land.
    of_whole: u32,
}

/// A unit that moved in this stretch.
#[derive(Clone, Copy)]
struct Moving {
    unit: u32,
    /// Whether it had been accessed.
    accessed: bool,
    /// For how long it moved.
    nanos: f64,
    /// Whether it stayed mapped meanwhile, so that no thread had to wait for it.
    mapped: bool,
    /// Whether it is a block of 4 KiB pages by now, any of which a thread may have waited for.
    split: bool,
}

impl Mover {
    /// Whether no plan is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.outcomes.is_none()
    }
}

impl Simulation {
    /// Passes the outcomes of its plan to the engine, if the mover had the time for it. Returns whether it did.
    pub(super) fn answer_plan(&mut self) -> bool {
        let now = self.now();
        self.mover.free_ns <= self.clock.now_ns() && self.answer_plan_at(now)
    }

    /// Passes the outcomes of its plan to the engine, if there is one, ready or not.
    pub(super) fn answer_plan_at(&mut self, now: Time) -> bool {
        let Some(outcomes) = self.mover.outcomes.take() else { return false };
        self.link.handle(now, Input::Moved(&outcomes));
        true
    }

    /// Lets the moves that are under way come to their end, and starts no others: engine and machine then agree.
    pub fn settle(&mut self) {
        self.deliver();
        if !self.mover.is_idle() {
            self.clock.wait_until(self.mover.free_ns);
            let now = self.now();
            self.answer_plan_at(now);
        }
    }

    /// The bytes that the mover's threads copied meanwhile load the tiers from here on.
    pub(super) fn copy(&mut self, span: f64) {
        let (read, written) = self.mover.copies.within(span);
        self.books.moved_fast([read[0], written[0]]);
        for tier in 0..self.config.machine.tiers.len() {
            self.hot.add_bytes(tier, [read[tier], written[tier]]);
        }
    }

    /// Charges the accesses that met a page on its way, now that the stretch shows which pages were in use.
    ///
    /// A page that was touched in the stretch after its move began was touched within the move with the share of the
    /// stretch that the move took; a thread that touched it then waited for half of it on average. A unit of the scaled machine
    /// stands for several pages, which move one after another: each is blocked for its own part of the time.
    pub(super) fn settle_moves(&mut self, span: f64) {
        let moving = std::mem::take(&mut self.mover.moving);
        let (mut waited, mut again) = (0.0, 0.0);
        let pieces = self.config.pages_in_a_unit();
        for &Moving { unit, accessed, nanos, mapped, split } in &moving {
            let range = if split { unit..unit + BLOCK_PAGES } else { self.hot.memory.unit(unit) };
            let words = &self.hot.memory.words()[range.start as usize..range.end as usize];
            let one = nanos / pieces;
            let within = one / span.max(one);
            if mapped {
                // What was written while it was copied is copied again.
                let written = words.iter().any(|word| word.has(PageWord::DIRTY));
                again += if written { pieces * within * one } else { 0.0 };
            } else if words.iter().any(|word| word.has(PageWord::ACCESSED)) {
                waited += pieces * within * one / 2.0;
            }
            if accessed && !self.hot.memory.word(unit).has(PageWord::ABSENT) {
                self.hot.memory.set(unit, PageWord::ACCESSED);
            }
        }
        if waited > 0.0 {
            self.books.pay(Cost::BlockedStall, waited);
            self.clock.stall_shared(waited);
        }
        if again > 0.0 {
            self.books.pay(Cost::Migration, again);
            self.mover.free_ns += again;
        }
        self.mover.moving = moving;
        self.mover.moving.clear();
    }

    /// Carries out a plan. Its outcomes go to the engine when the mover has had the time for it.
    pub(super) fn carry_out(&mut self, plan: &Plan) {
        let mut outcomes = Vec::with_capacity(plan.moves.len());
        // Time each mover spends, by the tier it moves pages out of.
        let mut busy = [0.0; TierId::MAX];
        for (k, item) in plan.moves.iter().enumerate() {
            let mut spent = 0.0;
            if self.mover.of_whole == 0 && self.leaves_whole(&plan.moves[k..]) {
                self.mover.of_whole = BLOCK_PAGES;
                spent += self.gather(item.from);
            }
            let failure = self.carry_out_one(item, &mut spent);
            let mover = if self.kernel.rules().movers == Movers::EachTier { item.from.index() } else { 0 };
            let sharing = if let Movers::Several(threads) = self.kernel.rules().movers { threads.max(1) } else { 1 };
            busy[mover] += spent / f64::from(sharing);
            let promotion = matches!(item.action, Action::MoveTo(to) if to < item.from);
            if failure.is_some() && promotion {
                self.books.count(Event::FailedPromotions, u64::from(item.pages));
            }
            if let Some(page) = self.link.page(item.page) {
                let now = self.now();
                for page in page..page + item.pages {
                    let vpn = self.vpn(page);
                    self.books.note(now, vpn, || What::Moved {
                        from: item.from,
                        action: item.action,
                        reason: item.reason,
                        failure: named(failure),
                    });
                }
            }
            self.mover.of_whole = self.mover.of_whole.saturating_sub(1);
            outcomes.push(Outcome { item: *item, done: if failure.is_none() { item.pages } else { 0 }, failure });
        }
        self.flush_batch();
        let now = self.clock.now_ns();
        self.mover.free_ns = self.mover.free_ns.max(now) + busy.into_iter().fold(0.0, f64::max);
        self.mover.copies.take_until(self.mover.free_ns - now);
        self.mover.outcomes = Some(outcomes);
    }

    /// Whether these moves begin with all pages of a block, one by one, on their way to compressed memory.
    fn leaves_whole(&self, moves: &[Move]) -> bool {
        let Some(block) = moves.get(..BLOCK_PAGES as usize) else { return false };
        let Action::MoveTo(to) = block[0].action else { return false };
        let first = block[0].page.block().first_page();
        to.index() < self.config.machine.tiers.len()
            && self.hot.memory.is_compressed(to)
            && (0..).zip(block).all(|(offset, item)| {
                item.pages == 1 && item.page == first.plus(offset) && item.action == block[0].action
            })
    }

    /// A block of single pages is copied into a huge one. Returns what the mover spends.
    fn gather(&mut self, tier: TierId) -> f64 {
        let bytes = u64::from(BLOCK_PAGES) * PAGE_BYTES;
        self.hot.add_bytes(tier.index(), [bytes; 2]);
        let management = &self.config.machine.management;
        let cost = management.collapse_ns + self.copy_nanos(bytes as f64, tier, tier) + management.move_huge_ns;
        self.books.count(Event::Collapses, 1);
        self.books.pay(Cost::Migration, cost);
        cost
    }

    fn carry_out_one(&mut self, item: &Move, busy: &mut f64) -> Option<Failure> {
        let Some(page) = self.link.page(item.page) else { return Some(Failure::Gone) };
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
            Action::Split => {
                let failure = self.split(unit.start, busy);
                if failure.is_none() {
                    // Who touches the block meanwhile waits for it.
                    let nanos = self.config.machine.management.split_ns;
                    let moving = Moving { unit: unit.start, accessed: false, nanos, mapped: false, split: true };
                    self.mover.moving.push(moving);
                }
                failure
            }
            Action::Collapse => self.collapse(page >> BLOCK_SHIFT << BLOCK_SHIFT, busy),
        }
    }

    fn move_unit(&mut self, unit: std::ops::Range<u32>, to: TierId, busy: &mut f64) -> Option<Failure> {
        let from = self.hot.memory.word(unit.start).tier()?;
        let weight = u64::from(unit.end - unit.start);
        let promotion = to < from;
        if to.index() >= self.config.machine.tiers.len() {
            return Some(Failure::Errno(19));
        }
        if promotion && !self.kernel.lets_promote(&self.hot.memory, to, weight) {
            return Some(Failure::NoRoom);
        }
        if self.hot.memory.free(to) < weight {
            return Some(Failure::NoRoom);
        }
        if self.kernel.rules().movers == Movers::Free {
            self.land(unit, to);
            self.books.count(if promotion { Event::Promoted } else { Event::Demoted }, weight);
            return None;
        }
        let rules = self.kernel.rules();
        let in_fault = promotion && rules.promotion_needs_high_watermark && !rules.keeps_copies;
        let copied = !self.has_copy_in(&unit, to);
        let cost = self.relocate_unit(unit.clone(), from, to, self.config.pages_a_flush(), copied);
        if !copied {
            // Its copy is there already.
        } else if in_fault {
            self.load_copy(weight * PAGE_BYTES, from, to);
        } else {
            // A mover's thread copies, while the program goes on.
            self.mover.copies.add(from, to, weight * PAGE_BYTES);
        }
        if promotion {
            for page in unit {
                self.hot.memory.clear(page, PageWord::DEMOTED);
            }
            self.books.count(Event::Promoted, weight);
        } else {
            self.books.count(Event::Demoted, weight);
        }
        if in_fault {
            // The page moves in the fault that asked for it.
            self.books.pay(Cost::PromotionStall, cost);
            self.clock.stall_shared(cost);
        } else {
            self.books.pay(Cost::Migration, cost);
            *busy += cost;
        }
        None
    }

    /// Moves a unit that fits, with its bytes, and returns what the one who moves it spends.
    pub(super) fn relocate(&mut self, unit: std::ops::Range<u32>, from: TierId, to: TierId, pages_a_flush: u32) -> f64 {
        let copied = !self.has_copy_in(&unit, to);
        if copied {
            self.load_copy(u64::from(unit.end - unit.start) * PAGE_BYTES, from, to);
        }
        self.relocate_unit(unit, from, to, pages_a_flush, copied)
    }

    /// Whether a unit that is about to move has a copy in the tier it goes to that is still the same.
    fn has_copy_in(&mut self, unit: &std::ops::Range<u32>, to: TierId) -> bool {
        if !self.kernel.rules().keeps_copies {
            return false;
        }
        let words = &self.hot.memory.words()[unit.start as usize..unit.end as usize];
        let written = words.iter().any(|word| word.has(PageWord::DIRTY));
        self.shadows.forget(unit.start) == Some(to) && !written
    }

    /// The bytes of a copy load both tiers at once.
    fn load_copy(&mut self, bytes: u64, from: TierId, to: TierId) {
        self.hot.add_bytes(from.index(), [bytes, 0]);
        self.hot.add_bytes(to.index(), [0, bytes]);
        let of_fast = |tier| if tier == TierId::FAST { bytes } else { 0 };
        self.books.moved_fast([of_fast(from), of_fast(to)]);
    }

    /// Moves a unit that fits, but for its bytes. Pages of 4 KiB may share a flush with others.
    fn relocate_unit(
        &mut self,
        unit: std::ops::Range<u32>,
        from: TierId,
        to: TierId,
        pages_a_flush: u32,
        copied: bool,
    ) -> f64 {
        let management = self.config.machine.management;
        let huge = unit.len() > 1;
        let weight = u64::from(unit.end - unit.start);
        let bytes = weight * PAGE_BYTES;
        let accessed = self.land(unit.clone(), to);
        let leaves_copy = self.kernel.rules().keeps_copies && to == TierId::FAST && !huge;
        if leaves_copy {
            unit.clone().for_each(|page| self.hot.memory.clear(page, PageWord::DIRTY));
            self.shadows.keep(unit.start, weight, from);
        }
        if self.kernel.rules().keeps_copies {
            self.shadows.trim(&self.hot.memory);
        }
        let stored = self.hot.memory.is_compressed(to);
        // Of a block that leaves whole, the last page's flush is that of all.
        let of_whole = self.mover.of_whole > 0;
        match &mut self.hot.mmu {
            _ if self.mover.of_whole > 1 => self.flush_page(unit.start, huge),
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
        let fixed = match huge {
            _ if of_whole => 0.0,
            true => management.move_huge_ns,
            false => management.move_small_ns,
        };
        let copy = if copied && !of_whole { self.copy_nanos(bytes as f64, from, to) } else { 0.0 };
        let packing = if stored { self.config.machine.tiers[to.index()].write_latency_ns * weight as f64 } else { 0.0 };
        let unpacking = match self.hot.memory.is_compressed(from) {
            true => self.config.machine.tiers[from.index()].read_latency_ns * weight as f64,
            false => 0.0,
        };
        let cost = fixed + copy + packing + unpacking;
        self.mover.moving.push(Moving { unit: unit.start, accessed, nanos: cost, mapped: leaves_copy, split: false });
        cost
    }

    /// Nanoseconds in which one core copies `bytes` from a tier to a tier that are as loaded as in the latest stretch.
    pub(super) fn copy_nanos(&self, bytes: f64, from: TierId, to: TierId) -> f64 {
        let loaded = |tier: TierId| (&self.config.machine.tiers[tier.index()], self.clock.load_of(tier));
        self.config.machine.management.copy_nanos(bytes, loaded(from), loaded(to))
    }

    /// A unit is in another tier from now on. Returns whether it had been accessed since its bits were last cleared.
    fn land(&mut self, unit: std::ops::Range<u32>, to: TierId) -> bool {
        let huge = unit.len() > 1;
        self.kernel.leaving(&self.hot.memory, unit.start);
        let accessed = self.hot.memory.take_accessed(unit.clone());
        for page in unit.clone() {
            self.hot.memory.move_to(page, to);
            self.hot.memory.clear(page, PageWord::MARKED);
        }
        let splits = huge && self.hot.memory.is_compressed(to);
        if splits {
            // Compressed memory holds 4 KiB pages: the block splits on the way, and the engine is informed.
            for page in unit.clone() {
                self.hot.memory.clear(page, PageWord::HUGE);
            }
            self.link.relocated(unit.start);
        }
        let units = if splits { unit.clone() } else { unit.start..unit.start + 1 };
        for unit in units {
            self.kernel.arrived(&mut self.hot.memory, unit);
        }
        self.books.count(Event::MigratedPages, unit.len() as u64);
        accessed
    }

    /// A block's mapping changed by itself: the cost is that of a split or a collapse, and no mover is busy with it.
    pub(super) fn follow_mapping(&mut self, first: u32, huge: bool) {
        let mut spent = 0.0;
        let failure = match huge {
            true if self.hot.memory.word(first).has(PageWord::HUGE) => return,
            // Pages without memory are allocated as the trace has it.
            true if !self.fill(first) => return,
            true => self.collapse(first, &mut spent),
            false => self.split(first, &mut spent),
        };
        if failure.is_none() {
            self.link.relocated(first);
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
            self.books.note(now, vpn, || What::Allocated { tier, huge: false });
            self.link.born(Observation::Allocated { page: self.link.id(page), tier });
        }
        true
    }

    fn split(&mut self, first: u32, busy: &mut f64) -> Option<Failure> {
        if !self.hot.memory.word(first).has(PageWord::HUGE) {
            return Some(Failure::Gone);
        }
        self.break_up(first);
        self.remapped(first, true);
        self.books.count(Event::Splits, 1);
        let cost = self.config.machine.management.split_ns;
        self.books.pay(Cost::Migration, cost);
        *busy += cost;
        None
    }

    /// Makes 512 units of a huge one.
    pub(super) fn break_up(&mut self, first: u32) {
        self.kernel.leaving(&self.hot.memory, first);
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
        for page in first..first + BLOCK_PAGES {
            self.kernel.arrived(&mut self.hot.memory, page);
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
        let in_use = words.iter().any(|word| word.has(PageWord::ACCESSED));
        for page in first..first + BLOCK_PAGES {
            self.kernel.leaving(&self.hot.memory, page);
        }
        for page in first..first + BLOCK_PAGES {
            self.hot.memory.set(page, PageWord::HUGE);
        }
        self.kernel.arrived(&mut self.hot.memory, first);
        match &mut self.hot.mmu {
            Some(run) => run.mmu.collapse(first, tier),
            None => (first..first + BLOCK_PAGES).for_each(|page| self.flush_page(page, false)),
        }
        self.remapped(first, false);
        self.books.count(Event::Collapses, 1);
        let bytes = u64::from(BLOCK_PAGES) * PAGE_BYTES;
        self.hot.add_bytes(tier.index(), [bytes; 2]);
        let management = &self.config.machine.management;
        let cost = management.collapse_ns + self.copy_nanos(bytes as f64, tier, tier);
        let cost = if in_use { cost.max(management.collapse_in_use_ns) } else { cost };
        self.books.pay(Cost::Migration, cost);
        *busy += cost;
        None
    }

    /// Forgets a translation on every core that ever ran a thread of the program.
    fn flush_page(&mut self, page: u32, huge: bool) {
        self.hot.flush_page(page, huge);
        if let Some(run) = &mut self.hot.mmu {
            run.mmu.shootdown(page, if huge { Size::Huge } else { Size::Small });
        }
    }

    /// Each core that runs the program is interrupted to forget translations.
    fn interrupt(&mut self) {
        let cost = self.config.machine.management.shootdown_ns;
        self.books.pay(Cost::ShootdownStall, cost * f64::from(self.clock.active()));
        self.clock.stall_each(cost);
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
