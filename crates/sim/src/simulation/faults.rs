//! The slow path of an access: first touch, hint fault, return from compressed memory.
//!
//! In: an access that the inner loop stopped at. Out: a page that can be accessed, the program's time for it, and what a
//! tracker sees of it. Must not: ask the policy anything but where a new page should go.

use terrace_core::observation::Observation;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, Bytes, PAGE_BYTES, TierId, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::memory::PageWord;

use super::Simulation;
use super::books::{Cost, Event};
use crate::error::SimError;
use crate::history::What;
use crate::record::Record;

impl Simulation {
    /// Resolves whatever keeps `access` from being made.
    pub(super) fn fault<R: Record>(&mut self, access: &R) -> Result<(), SimError> {
        let vpn = Vpn(access.page());
        let page = self.page_of(vpn)?;
        if page as usize >= self.hot.memory.len() || !self.hot.memory.word(page).has(PageWord::MAPPED) {
            // A source without allocations: the whole block becomes the program's.
            self.map_block(page);
            self.check()?;
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
    pub(super) fn first_touch(&mut self, page: u32, thread: Option<usize>) -> bool {
        let now = self.now();
        let preferred = if self.hot.memory_mode.is_some() { TierId(1) } else { self.link.place(now, page) };
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
                self.books.note(now, vpn, || What::Allocated { tier, huge: true });
            }
            self.entered(first);
            self.link.relocated(first);
            return true;
        }
        let Some(tier) = self.room(preferred, 1) else { return false };
        self.hot.memory.place(page, tier);
        self.entered(page);
        let vpn = self.vpn(page);
        self.books.note(now, vpn, || What::Allocated { tier, huge: false });
        self.link.born(Observation::Allocated { page: self.link.id(page), tier });
        if thread.is_some() {
            let slow = self.slow_clear_nanos(PAGE_BYTES, tier);
            self.pay(thread, self.config.machine.management.first_touch_small_ns + slow);
            self.hot.add_bytes(tier.index(), [0, PAGE_BYTES]);
        }
        true
    }

    /// What clearing `bytes` takes longer in a tier as loaded as in the latest stretch than in one that does not slow a core down.
    fn slow_clear_nanos(&self, bytes: u64, tier: TierId) -> f64 {
        let place = (&self.config.machine.tiers[tier.index()], self.clock.load_of(tier));
        self.config.machine.management.slow_clear_nanos(bytes as f64, place)
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
        let slow = self.slow_clear_nanos(bytes, tier);
        let share = cleared as f64 / f64::from(BLOCK_PAGES);
        self.pay(Some(thread), management.first_touch_huge_ns * share + slow);
        self.hot.add_bytes(tier.index(), [0, bytes]);
    }

    fn pay(&mut self, thread: Option<usize>, nanos: f64) {
        if let Some(thread) = thread {
            self.hot.stall(thread, nanos);
        }
    }

    pub(super) fn entered(&mut self, unit: u32) {
        self.kernel.born(&mut self.hot.memory, unit);
        if self.kernel.rules().keeps_copies {
            self.shadows.forget(unit);
            self.shadows.trim(&self.hot.memory);
        }
    }

    fn block_is_empty(&self, first: u32) -> bool {
        let words = &self.hot.memory.words()[first as usize..(first + BLOCK_PAGES) as usize];
        words.iter().all(|word| word.has(PageWord::MAPPED) && word.has(PageWord::ABSENT) && !word.has(PageWord::FILE))
    }

    /// The program touched a page the scanner had made inaccessible.
    fn hint_fault(&mut self, page: u32, thread: usize, write: bool) {
        let unit = self.hot.memory.unit(page);
        for page in unit.clone() {
            self.hot.memory.clear(page, PageWord::MARKED);
        }
        let (cost, marked) = self.hint_faulted(page, unit.start);
        self.hot.stall(thread, cost);
        self.books.pay(Cost::HintFaultStall, cost);
        self.books.count(Event::HintFaults, 1);
        self.link.saw(Observation::HintFault { page: self.link.id(page), write, marked });
        self.kernel.touched(&mut self.hot.memory, unit.start);
        let (now, vpn) = (self.now(), self.vpn(page));
        self.books.note(now, vpn, || What::HintFault { after_ms: now.since(marked).as_millis() as u64, write });
    }

    /// A page comes back from compressed memory by a fault.
    fn bring_back(&mut self, page: u32, thread: usize) -> bool {
        let Some(from) = self.hot.memory.word(page).tier() else { return false };
        let Some(to) = self.room(TierId::FAST, 1) else { return false };
        self.kernel.leaving(&self.hot.memory, page);
        self.hot.memory.move_to(page, to);
        self.hot.memory.clear(page, PageWord::ACTIVE | PageWord::DEMOTED);
        self.kernel.arrived(&mut self.hot.memory, page);
        let cost = self.config.machine.tiers[from.index()].read_latency_ns;
        self.hot.stall(thread, cost);
        self.books.pay(Cost::RefaultStall, cost);
        self.hot.add_bytes(from.index(), [PAGE_BYTES, 0]);
        self.hot.add_bytes(to.index(), [0, PAGE_BYTES]);
        self.books.count(Event::Refaults, 1);
        self.books.count(Event::Promoted, 1);
        self.books.count(Event::MigratedPages, 1);
        self.link.relocated(page);
        let (now, vpn) = (self.now(), self.vpn(page));
        self.books.note(now, vpn, || What::Refault { tier: to });
        true
    }
}
