//! Regions of the program: mapped, given back, mapped by other sizes.
//!
//! In: ranges of addresses. Out: page words, and the same as inputs of the engine. Must not: place a page; a fault does.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PAGE_BYTES, Vpn};
use terrace_machine::memory::PageWord;
use terrace_workloads::{AccessSink, Region};

use super::Simulation;
use crate::config::Pages;
use crate::history::What;

impl Simulation {
    /// Pages from this one on may be touched: a region of the program. `file` pages are page cache and exist at once.
    pub fn map(&mut self, start: Vpn, pages: u64, file: bool) {
        if !self.goes_on() || pages == 0 {
            return;
        }
        self.drain_cores(false);
        self.close_stretch(false);
        let (first, last) = match (self.page_of(start), self.page_of(Vpn(start.0 + pages - 1))) {
            (Ok(first), Ok(last)) => (first, last),
            (Err(error), _) | (_, Err(error)) => {
                self.fail(error);
                return;
            }
        };
        self.grow(last as usize + 1);
        for page in first..=last {
            self.hot.memory.set(page, PageWord::MAPPED | if file { PageWord::FILE } else { 0 });
        }
        let now = self.now();
        let space = self.space_of(first);
        self.link.handle(now, terrace_core::engine::Input::Mapped(space, start..Vpn(start.0 + pages)));
        for block in first >> BLOCK_SHIFT..=last >> BLOCK_SHIFT {
            let start = self.vpn(block << BLOCK_SHIFT);
            self.link.learn(space, block, start);
        }
        if file {
            for page in first..=last {
                self.first_touch(page, None);
            }
        }
        self.deliver();
        self.poll();
    }

    /// Pages that were mapped are given back.
    pub fn unmap(&mut self, start: Vpn, pages: u64) {
        if !self.goes_on() || pages == 0 {
            return;
        }
        self.drain_cores(false);
        self.close_stretch(false);
        self.deliver();
        let (Ok(first), Ok(last)) = (self.page_of(start), self.page_of(Vpn(start.0 + pages - 1))) else { return };
        let Some(end) = (self.hot.memory.len() as u32).checked_sub(1).filter(|end| *end >= first) else { return };
        let last = last.min(end);
        let now = self.now();
        // A move that is under way is answered before its page can go and another take its number.
        self.answer_plan_at(now);
        // A huge page that loses only some of its pages comes apart first, as the kernel does it.
        for page in [first, last] {
            let unit = self.hot.memory.unit(page);
            if unit.start < first || unit.end > last + 1 {
                self.break_up(unit.start);
                self.link.relocated(unit.start);
            }
        }
        self.deliver();
        for page in first..=last {
            if self.hot.memory.word(page).tier().is_none() {
                continue;
            }
            if self.hot.memory.unit(page).start == page {
                self.kernel.leaving(&self.hot.memory, page);
            }
            let vpn = self.vpn(page);
            self.books.note(now, vpn, || What::Freed);
        }
        for page in first..=last {
            self.hot.memory.remove(page);
        }
        self.hot.flush_tlbs();
        if let Some(run) = &mut self.hot.mmu {
            run.mmu.unmap(first..last + 1);
        }
        let space = self.space_of(first);
        self.link.handle(now, terrace_core::engine::Input::Unmapped(space, start..Vpn(start.0 + pages)));
        for block in first >> BLOCK_SHIFT..=last >> BLOCK_SHIFT {
            let start = self.vpn(block << BLOCK_SHIFT);
            self.link.forget(block, start);
        }
        self.poll();
    }

    /// The program's own system mapped these pages by 2 MiB entries, or no longer does. Followed where the run has real huge
    /// pages ([`Pages::Huge`], [`Pages::Traced`]); elsewhere the configuration has the page size.
    pub fn remap(&mut self, start: Vpn, pages: u64, huge: bool) {
        if !self.goes_on() || pages == 0 || !matches!(self.config.pages, Pages::Huge | Pages::Traced) {
            return;
        }
        self.drain_cores(false);
        self.close_stretch(false);
        let (Ok(first), Ok(last)) = (self.page_of(start), self.page_of(Vpn(start.0 + pages - 1))) else { return };
        let known = (self.hot.memory.len() >> BLOCK_SHIFT) as u32;
        // One entry maps a whole block or none of it; a split of any part is one of the block.
        let blocks = match huge {
            true => first.div_ceil(BLOCK_PAGES)..(last + 1) >> BLOCK_SHIFT,
            false => first >> BLOCK_SHIFT..(last >> BLOCK_SHIFT) + 1,
        };
        for block in blocks {
            let first = block << BLOCK_SHIFT;
            // Later allocations follow the trace.
            self.kernel.note_traced(first, self.config.pages == Pages::Traced && huge);
            if block < known {
                self.follow_mapping(first, huge);
            }
        }
        self.deliver();
        self.poll();
    }

    pub(super) fn grow(&mut self, pages: usize) {
        self.hot.memory.grow(pages);
        let pages = self.hot.memory.len();
        self.kernel.grow(pages);
        self.link.grow(pages);
        self.trackers.grow(pages);
    }

    /// Pages that a region of a workload takes.
    pub(super) fn pages_of(&self, region: &Region) -> u64 {
        let boundary = if region.file_backed { PAGE_BYTES } else { self.boundary() };
        region.bytes.max(1).next_multiple_of(boundary) / PAGE_BYTES
    }
}
