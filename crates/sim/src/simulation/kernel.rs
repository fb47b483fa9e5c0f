//! The kernel beneath the policy: page sizes, allocation by watermarks, and reclaim of the lists.
//!
//! In: pages that receive, change and lose memory, and the time that passed. Out: where a new page goes, and demotions by the kernel's own
//! choice, at a cost. Must not: see a policy's requests; it reports each page that the kernel moved.

use std::collections::BTreeSet;

use terrace_core::policy::Kernel;
use terrace_core::reclaim::ThreadTime;
use terrace_core::units::TierId;
use terrace_machine::memory::{Memory, PageWord};
use terrace_machine::reclaim::Reclaim;
use terrace_machine::scale::Scale;

use super::Simulation;
use super::books::{Cost, Event};
use crate::config::Pages;
use crate::history::What;

/// Units one direct reclaim frees before it tries again (SWAP_CLUSTER_MAX).
const CLUSTER: u64 = 32;

/// What of the kernel has a state.
pub(super) struct KernelModel {
    rules: Kernel,
    reclaim: Reclaim,
    /// Whether lists are kept: only where something reclaims.
    lists: bool,
    /// The time of each tier's reclaim thread.
    threads: Vec<ThreadTime>,
    /// First pages of the blocks that the trace has as huge.
    traced_huge: BTreeSet<u32>,
}

impl KernelModel {
    /// A kernel by these rules, over empty tiers with these capacities in pages; `folded`: whether small pages stand for huge ones; `lists`: whether it keeps
    /// lists of the pages in them.
    pub(super) fn new(rules: Kernel, capacity: &[u64], scale: Scale, folded: bool, lists: bool) -> KernelModel {
        let reclaim = Reclaim::new(capacity, scale, folded, &rules);
        let threads = vec![ThreadTime::default(); capacity.len()];
        KernelModel { rules, reclaim, lists, threads, traced_huge: BTreeSet::new() }
    }

    pub(super) fn rules(&self) -> &Kernel {
        &self.rules
    }

    /// Pages that reclaim keeps free of fast memory when nothing is withheld; `None` where it does not demote.
    pub(super) fn keeps_free(&self) -> Option<u64> {
        self.rules.demotion.then(|| self.reclaim.kept_free(TierId::FAST))
    }

    /// Keeps pages of fast memory free. Returns the pages that are never allocated.
    pub(super) fn withhold(&mut self, pages: u64) -> u64 {
        self.reclaim.withhold(TierId::FAST, pages)
    }

    /// The longest that any of its reclaim threads worked, in small nanoseconds.
    pub(super) fn busiest_thread_ns(&self) -> f64 {
        self.threads.iter().map(ThreadTime::worked).fold(0.0, f64::max)
    }

    pub(super) fn grow(&mut self, pages: usize) {
        if self.lists {
            self.reclaim.grow(pages);
        }
    }

    /// A unit received memory.
    pub(super) fn born(&mut self, memory: &mut Memory, unit: u32) {
        if self.lists {
            self.reclaim.born(memory, unit);
        }
    }

    /// A unit came from another tier.
    pub(super) fn arrived(&mut self, memory: &mut Memory, unit: u32) {
        if self.lists {
            self.reclaim.arrived(memory, unit);
        }
    }

    /// A unit is about to leave its tier, or memory altogether.
    pub(super) fn leaving(&mut self, memory: &Memory, unit: u32) {
        if self.lists {
            self.reclaim.leaving(memory, unit);
        }
    }

    /// A unit was used by a hint fault.
    pub(super) fn touched(&mut self, memory: &mut Memory, unit: u32) {
        if self.lists {
            self.reclaim.touched(memory, unit);
        }
    }

    /// Whether a unit of these pages may be promoted, if promotions need the high watermark.
    pub(super) fn lets_promote(&mut self, memory: &Memory, to: TierId, weight: u64) -> bool {
        !self.rules.promotion_needs_high_watermark || self.reclaim.may_promote(memory, to, weight)
    }

    /// From now on the trace has the block that begins with this page as huge, or as small pages.
    pub(super) fn note_traced(&mut self, first: u32, huge: bool) {
        if huge {
            self.traced_huge.insert(first);
        } else {
            self.traced_huge.remove(&first);
        }
    }
}

impl Simulation {
    /// Whether the block that begins with this page is allocated as a huge page.
    pub(super) fn huge_wanted(&self, first: u32) -> bool {
        match self.config.pages {
            Pages::Huge | Pages::Whole => true,
            Pages::Traced => self.kernel.traced_huge.contains(&first),
            Pages::Small | Pages::Folded => false,
        }
    }

    /// A tier with room for `weight` pages from `preferred` down, then up; direct reclaim if there is none.
    pub(super) fn room(&mut self, preferred: TierId, weight: u64) -> Option<TierId> {
        let slowest = self.slowest_memory();
        let preferred = preferred.min(slowest);
        // Watermarks hold where the kernel manages the tiers as zones. The other systems cap fast memory exactly, by a
        // control group or by managing it themselves.
        let zones = self.kernel.rules.demotion || self.kernel.rules.promotion_needs_high_watermark;
        if zones && let Some(tier) = self.kernel.reclaim.allocate(&self.hot.memory, preferred, weight) {
            return Some(tier);
        }
        let memory = &self.hot.memory;
        let fits = |tier: &TierId| memory.free(*tier) >= weight;
        let below = (preferred.0..=slowest.0).map(TierId).find(fits);
        if let Some(tier) = below.or_else(|| (0..preferred.0).map(TierId).find(fits)) {
            return Some(tier);
        }
        if weight > 1 || !self.kernel.lists {
            return None;
        }
        self.direct_reclaim(slowest).then_some(slowest)
    }

    /// The program makes room itself. Returns whether it found any.
    fn direct_reclaim(&mut self, tier: TierId) -> bool {
        self.books.count(Event::DirectReclaims, 1);
        let mut spent = 0.0;
        for _ in 0..CLUSTER {
            let (nanos, moved) = self.reclaim_one(tier);
            spent += nanos;
            if !moved {
                break;
            }
        }
        self.books.pay(Cost::DirectReclaimStall, spent);
        self.clock.stall_shared(spent);
        self.hot.memory.free(tier) > 0
    }

    /// The kernel's reclaim threads, one for each tier: as much as each can do in the time that passed.
    pub(super) fn background_reclaim(&mut self, span: f64) {
        if !self.kernel.lists {
            return;
        }
        for tier in (0..self.config.machine.tiers.len() as u8).map(TierId) {
            let goes_down = self.kernel.rules.demotion || tier == self.slowest_memory();
            if self.hot.memory.is_compressed(tier) || !goes_down {
                continue;
            }
            let mut thread = self.kernel.threads[tier.index()];
            let before = thread.worked();
            thread.pass(span);
            while thread.may_begin() && self.kernel.reclaim.has_work(&self.hot.memory, tier) {
                let (nanos, moved) = self.reclaim_one(tier);
                thread.begin(nanos);
                if !moved {
                    self.kernel.reclaim.sleep(tier);
                }
            }
            self.books.pay(Cost::Reclaim, thread.worked() - before);
            self.kernel.threads[tier.index()] = thread;
        }
    }

    /// One page, or one huge page, goes one tier down by the kernel's choice. Returns what that takes, and whether any
    /// could.
    fn reclaim_one(&mut self, tier: TierId) -> (f64, bool) {
        let management = self.config.machine.management;
        let scanned = self.kernel.reclaim.counts.scanned;
        let listed = self.hot.memory.used(tier);
        let victim = self.kernel.reclaim.next_victim(&mut self.hot.memory, tier, 2 * listed + 64);
        let looked_at = self.kernel.reclaim.counts.scanned - scanned;
        let looking = looked_at as f64 * management.reclaim_page_ns;
        let Some(victim) = victim else { return (looking, false) };
        let unit = self.hot.memory.unit(victim);
        let weight = u64::from(unit.end - unit.start);
        let memory = &self.hot.memory;
        let below = (tier.0 + 1..memory.tiers() as u8).map(TierId).find(|to| memory.free(*to) >= weight);
        let Some(to) = below else { return (looking, false) };
        let cost = self.relocate(unit.clone(), tier, to, 1);
        self.books.count(Event::Demoted, weight);
        self.books.count(Event::KernelDemoted, weight);
        let now = self.now();
        for page in unit.clone() {
            self.hot.memory.clear(page, PageWord::ACTIVE | PageWord::REFERENCED);
            self.hot.memory.set(page, PageWord::DEMOTED);
            let vpn = self.vpn(page);
            self.books.note(now, vpn, || What::Reclaimed { from: tier, to });
        }
        if self.kernel.rules.demoted_pages_marked && !self.hot.memory.is_compressed(to) {
            self.mark(unit.clone());
        }
        self.link.relocated(unit.start);
        (looking + cost, true)
    }
}
