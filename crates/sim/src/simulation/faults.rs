//! The slow path of an access: first touch, hint fault, return from compressed memory.
//!
//! In: an access that the inner loop stopped at. Out: a page that can be accessed, the program's time for it, and what a
//! tracker sees of it. Must not: ask the policy anything but where a new page should go.

use terrace_core::observation::Observation;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, Bytes, PAGE_BYTES, TierId, Time, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::memory::PageWord;

use super::{NO_BLOCK, Simulation};
use crate::error::SimError;
use crate::history::What;
use crate::record::Record;

/// Units one direct reclaim frees before it tries again (SWAP_CLUSTER_MAX).
const CLUSTER: u64 = 32;

impl Simulation {
    /// Resolves whatever keeps `access` from being made.
    pub(crate) fn fault<R: Record>(&mut self, access: &R) -> Result<(), SimError> {
        let vpn = Vpn(access.page());
        let page = self.page_of(vpn)?;
        if page as usize >= self.hot.memory.len() || !self.hot.memory.word(page).has(PageWord::MAPPED) {
            // A source that tells no births: the whole block becomes the program's.
            self.map_block(page);
            if let Some(error) = self.failure.take() {
                return Err(error);
            }
        }
        let word = self.hot.memory.word(page);
        let thread = access.thread();
        if word.has(PageWord::ABSENT) {
            if !self.first_touch(page, Some(thread)) {
                return Err(self.out_of_memory(vpn));
            }
        } else if word.has(PageWord::STORED) && !self.bring_back(page, thread) {
            return Err(self.out_of_memory(vpn));
        }
        if self.hot.memory.word(page).has(PageWord::UNTOUCHED) {
            self.first_touch_of_part(page, thread);
        }
        if self.hot.memory.word(page).has(PageWord::MARKED) {
            self.hint_fault(page, thread, access.wait() == Wait::Store);
        }
        Ok(())
    }

    fn out_of_memory(&self, vpn: Vpn) -> SimError {
        let memory = &self.hot.memory;
        let capacity = (0..memory.tiers() as u8).map(|tier| memory.capacity(TierId(tier))).sum();
        SimError::OutOfMemory {
            resident: Bytes::of_pages(memory.resident()),
            address: vpn.address(),
            capacity: Bytes::of_pages(capacity),
        }
    }

    fn map_block(&mut self, page: u32) {
        let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
        self.grow(first as usize + BLOCK_PAGES as usize);
        let start = self.vpn(first);
        self.map(start, u64::from(BLOCK_PAGES), false);
    }

    /// Gives a page, or its whole block as a huge page, memory. `thread` pays; nobody does for page cache that was there
    /// before the program. Returns whether there was room.
    pub(crate) fn first_touch(&mut self, page: u32, thread: Option<usize>) -> bool {
        let now = self.now();
        let preferred = if self.hot.memory_mode.is_some() { TierId(1) } else { self.engine.place(now, self.id(page)) };
        let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
        if thread.is_some()
            && self.huge_wanted(first)
            && self.block_is_empty(first)
            && let Some(tier) = self.room(preferred, u64::from(BLOCK_PAGES))
        {
            for page in first..first + BLOCK_PAGES {
                self.hot.memory.place(page, tier);
                self.hot.memory.set(page, PageWord::HUGE | PageWord::UNTOUCHED);
                let vpn = self.vpn(page);
                self.history.add(now, vpn, || What::Born { tier, huge: true });
            }
            self.entered(first);
            self.relocated.push(first);
            return true;
        }
        let Some(tier) = self.room(preferred, 1) else { return false };
        self.hot.memory.place(page, tier);
        self.entered(page);
        let vpn = self.vpn(page);
        self.history.add(now, vpn, || What::Born { tier, huge: false });
        self.born.push(Observation::Born { page: self.id(page), tier });
        if thread.is_some() {
            let slow = self.config.machine.management.slow_clear_nanos(PAGE_BYTES as f64, &self.tiers[tier.index()]);
            self.pay(thread, self.config.machine.management.first_touch_small_ns + slow);
            self.hot.written[tier.index()] += PAGE_BYTES;
        }
        true
    }

    /// The first touch within a part of a huge page: it is cleared.
    ///
    /// A huge page of a machine scaled by `s` stands for `s` huge pages of the full size, of which each is cleared when it is first
    /// touched, by who touches it: it has as many parts (a page at most), and each costs as much of its first touch. At full size that is
    /// one. Clearing all at once would have one thread wait for what `s` faults of all threads take, as long as clearing `s` times
    /// 2 MiB takes at full size; and would clear what the program never touches.
    fn first_touch_of_part(&mut self, page: u32, thread: usize) {
        let Some(tier) = self.hot.memory.word(page).tier() else { return };
        let pages = BLOCK_PAGES.div_ceil(self.config.scale.factor().min(BLOCK_PAGES));
        let block = page >> BLOCK_SHIFT << BLOCK_SHIFT;
        let first = block + (page - block) / pages * pages;
        let part = first..(first + pages).min(block + BLOCK_PAGES);
        let cleared = u64::from(part.end - part.start);
        part.for_each(|page| self.hot.memory.clear(page, PageWord::UNTOUCHED));
        let management = self.config.machine.management;
        let bytes = cleared * PAGE_BYTES;
        let slow = management.slow_clear_nanos(bytes as f64, &self.tiers[tier.index()]);
        let share = cleared as f64 / f64::from(BLOCK_PAGES);
        self.pay(Some(thread), management.first_touch_huge_ns * share + slow);
        self.hot.written[tier.index()] += bytes;
    }

    fn pay(&mut self, thread: Option<usize>, nanos: f64) {
        if let Some(thread) = thread {
            self.hot.work[thread].stall_ns += nanos;
        }
    }

    pub(crate) fn entered(&mut self, unit: u32) {
        if self.lists {
            self.reclaim.born(&mut self.hot.memory, unit);
        }
    }

    fn block_is_empty(&self, first: u32) -> bool {
        let words = &self.hot.memory.words()[first as usize..(first + BLOCK_PAGES) as usize];
        words.iter().all(|word| word.has(PageWord::MAPPED) && word.has(PageWord::ABSENT) && !word.has(PageWord::FILE))
    }

    /// A tier with room for `weight` pages from `preferred` down, then up; direct reclaim if there is none.
    fn room(&mut self, preferred: TierId, weight: u64) -> Option<TierId> {
        let slowest = self.slowest_memory();
        let preferred = preferred.min(slowest);
        // Watermarks hold where the kernel manages the tiers as zones. The other systems cap fast memory exactly, by a
        // control group or by managing it themselves.
        let zones = self.kernel.demotion || self.kernel.promotion_needs_high_watermark;
        if zones && let Some(tier) = self.reclaim.allocate(&self.hot.memory, preferred, weight) {
            return Some(tier);
        }
        let memory = &self.hot.memory;
        let fits = |tier: &TierId| memory.free(*tier) >= weight;
        let below = (preferred.0..=slowest.0).map(TierId).find(fits);
        if let Some(tier) = below.or_else(|| (0..preferred.0).map(TierId).find(fits)) {
            return Some(tier);
        }
        if weight > 1 || !self.lists {
            return None;
        }
        self.direct_reclaim(slowest).then_some(slowest)
    }

    /// The program makes room itself. Returns whether it found any.
    fn direct_reclaim(&mut self, tier: TierId) -> bool {
        self.counts.direct_reclaims += 1;
        let before = self.costs.reclaim;
        for _ in 0..CLUSTER {
            if !self.reclaim_one(tier) {
                break;
            }
        }
        let spent = std::mem::replace(&mut self.costs.reclaim, before) - before;
        self.costs.direct_reclaim_stall += spent;
        self.stall_shared(spent);
        self.hot.memory.free(tier) > 0
    }

    /// The program touched a page the scanner had made inaccessible.
    fn hint_fault(&mut self, page: u32, thread: usize, write: bool) {
        let unit = self.hot.memory.unit(page);
        for page in unit.clone() {
            self.hot.memory.clear(page, PageWord::MARKED);
        }
        let watched = self.hot.memory.word(page).has(PageWord::WATCHED);
        if watched {
            self.rearm.push(page);
        }
        let cost = if watched { self.watched_fault_ns } else { self.config.machine.management.hint_fault_ns };
        self.hot.work[thread].stall_ns += cost;
        self.costs.hint_fault_stall += cost;
        self.counts.hint_faults += 1;
        let marked = Time::from_nanos(u64::from(self.marked_at[unit.start as usize]) * 1_000_000);
        self.events.push(Observation::HintFault { page: self.id(page), write, marked });
        if self.lists {
            self.reclaim.touched(&mut self.hot.memory, unit.start);
        }
        let (now, vpn) = (self.now(), self.vpn(page));
        self.history.add(now, vpn, || What::HintFault { after_ms: now.since(marked).as_millis() as u64, write });
    }

    /// A page comes back from compressed memory by a fault.
    fn bring_back(&mut self, page: u32, thread: usize) -> bool {
        let Some(from) = self.hot.memory.word(page).tier() else { return false };
        let Some(to) = self.room(TierId::FAST, 1) else { return false };
        if self.lists {
            self.reclaim.leaving(&self.hot.memory, page);
        }
        self.hot.memory.move_to(page, to);
        self.hot.memory.clear(page, PageWord::ACTIVE | PageWord::DEMOTED);
        if self.lists {
            self.reclaim.arrived(&mut self.hot.memory, page);
        }
        let cost = self.tiers[from.index()].read_latency_ns;
        self.hot.work[thread].stall_ns += cost;
        self.costs.refault_stall += cost;
        self.hot.read[from.index()] += PAGE_BYTES;
        self.hot.written[to.index()] += PAGE_BYTES;
        self.counts.refaults += 1;
        self.counts.promoted += 1;
        self.counts.migrated_pages += 1;
        self.relocated.push(page);
        let (now, vpn) = (self.now(), self.vpn(page));
        self.history.add(now, vpn, || What::Refault { tier: to });
        true
    }

    /// Whether the engine knows the page's block.
    pub(crate) fn known(&self, page: u32) -> bool {
        self.ids.get((page >> BLOCK_SHIFT) as usize).is_some_and(|&id| id != NO_BLOCK)
    }
}
