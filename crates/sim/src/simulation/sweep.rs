//! The operating system's walk in a run: page tables and counters are read, passed to the engine, and halved.
//!
//! In: that a round is due. Out: scans of 4 KiB mappings, counts of the pieces of huge ones, the round's cost. Must not: rank.
//!
//! The walk descends only where upper accessed bits are set. A huge page whose counters are above zero is read and halved at
//! every round, used or not, so that counters halve exactly and still no round touches all of memory: a page that is used no more
//! is through after as many rounds as a counter has bits, and until then it stands in a list. After the walk all cores forget
//! their translations, as cleared accessed bits are set again by walks only; what that costs the program, its next walks show.

use std::time::Duration;

use terrace_core::engine::Input;
use terrace_core::observation::{Observation, Observations, PteState, ScanBatch};
use terrace_core::policy::ScanReport;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, SpaceId};
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::memory::PageWord;
use terrace_machine::mmu::{Size, SweepCost};

use super::Simulation;
use super::books::Cost;

/// Entries of a page table that one line holds: what reading a line costs over reading one entry.
const ENTRIES_A_LINE: f64 = 8.0;

impl Simulation {
    /// One round. The engine receives every 4 KiB mapping in a visited table, and every counter above zero.
    pub(super) fn sweep_counters(&mut self) {
        let now = self.now();
        let Some(mut run) = self.hot.mmu.take() else { return };
        let mut cost = SweepCost::default();
        let mut blocks: Vec<(u32, Vec<PteState>)> = Vec::new();
        let mut huge = Vec::new();
        {
            let memory = &self.hot.memory;
            let mut look = |page: u32, size, accessed| match size {
                Size::Small => {
                    let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
                    if blocks.last().is_none_or(|(block, _)| *block != first) {
                        blocks.push((first, vec![PteState::ABSENT; BLOCK_PAGES as usize]));
                    }
                    let word = memory.word(page);
                    if let (Some((_, ptes)), Some(tier)) = (blocks.last_mut(), word.tier()) {
                        let dirty = word.has(PageWord::DIRTY);
                        ptes[(page - first) as usize] =
                            PteState::placed(tier).with_accessed(accessed).with_dirty(dirty);
                    }
                }
                _ if accessed => huge.push(page),
                _ => {}
            };
            // One process after the other, each down its own tables.
            let spaces: Vec<SpaceId> = run.mmu.tables.spaces().map(|(space, _)| space).collect();
            for space in spaces {
                run.mmu.tables.sweep(space, true, &mut cost, &mut look);
            }
            // Mappings that no walk has entered yet have memory all the same.
            for (first, ptes) in &mut blocks {
                for (page, pte) in (*first..).zip(ptes.iter_mut()) {
                    if let (None, Some(tier)) = (pte.tier(), memory.word(page).tier()) {
                        *pte = PteState::placed(tier);
                    }
                }
            }
        }
        let mut round = ScanReport::default();
        let mut events = Vec::new();
        run.live.extend(huge.iter().copied());
        let mut lines = [0u64; terrace_core::units::TierId::MAX];
        if let Some(counters) = run.mmu.counters() {
            let block_lines = (u64::from(BLOCK_PAGES) * counters.width().bytes()).div_ceil(LINE_BYTES);
            for &first in &run.live {
                if self.hot.memory.len() <= first as usize || !self.hot.memory.word(first).has(PageWord::HUGE) {
                    continue;
                }
                let (_, tier) = run.mmu.tables.counter_line(first);
                lines[tier.index()] += block_lines;
                if !self.link.known(first) {
                    continue;
                }
                round.pages += u64::from(BLOCK_PAGES);
                for page in first..first + BLOCK_PAGES {
                    let count = counters.get(page);
                    if count > 0 {
                        round.accessed += 1;
                        let accesses = u32::try_from(count).unwrap_or(u32::MAX);
                        events.push(Observation::Counted { page: self.link.id(page), accesses });
                    }
                }
            }
        }
        if let Some(counters) = run.mmu.counters_mut() {
            let memory = &self.hot.memory;
            run.live.retain(|&first| {
                memory.len() > first as usize && memory.word(first).has(PageWord::HUGE) && counters.halve(first)
            });
        }
        run.mmu.flush();
        let counter_lines: u64 = lines.iter().sum();
        run.sweeps.rounds += 1;
        run.sweeps.entries += cost.entries;
        run.sweeps.skipped += cost.skipped;
        run.sweeps.counter_lines += counter_lines;
        self.hot.mmu = Some(run);
        for (first, ptes) in &blocks {
            if !self.link.known(*first) {
                continue;
            }
            round.pages += ptes.iter().filter(|pte| pte.tier().is_some()).count() as u64;
            round.accessed += ptes.iter().filter(|pte| pte.accessed()).count() as u64;
            let window = Some(self.trackers.cleared(first >> BLOCK_SHIFT, now));
            let scan = ScanBatch { first: self.link.id(*first), ptes, window, cleared: true };
            self.link.handle(now, Input::Observed(Observations::Scan(scan)));
        }
        if !events.is_empty() {
            self.link.handle(now, Input::Observed(Observations::Events(&events)));
        }
        let management = self.config.machine.management;
        // Each counter line is read and, to halve it, written.
        let nanos = cost.entries as f64 * management.scan_read_ns
            + counter_lines as f64 * 2.0 * ENTRIES_A_LINE * management.scan_read_ns
            + cost.cleared as f64 * management.scan_clear_ns;
        for (tier, lines) in lines.iter().enumerate() {
            self.hot.add_bytes(tier, [lines * LINE_BYTES; 2]);
        }
        self.books.pay(Cost::Scan, nanos);
        self.clock.stall_each(management.shootdown_ns);
        self.books.pay(Cost::ShootdownStall, management.shootdown_ns * f64::from(self.clock.active()));
        let took = Duration::from_nanos((nanos * f64::from(self.config.scale.factor())) as u64);
        self.trackers.walked(now, took);
        round.walk = took;
        let counts = self.processor_counts();
        self.link.handle(now, Input::Processor(counts));
        self.link.handle(now, Input::ScanDone(round));
    }
}
