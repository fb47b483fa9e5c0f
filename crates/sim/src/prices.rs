//! What the modelled machine tells a policy of prices, and what its processor counted between two rounds.
//!
//! In: the machine's description, the counters of the run. Out: [`Prices`], [`ProcessorCounts`]. Must not: tell what no data sheet,
//! measurement or counter of a processor could.

use terrace_core::prices::{Prices, ProcessorCounts};
use terrace_core::units::{PAGE_BYTES, TierId};
use terrace_machine::preset::Machine;

use crate::simulation::Simulation;

/// Prices as the machine's description states them, where one flush serves so many pages that move.
pub(crate) fn of(machine: &Machine, pages_a_flush: u32) -> Prices {
    let management = &machine.management;
    let page = PAGE_BYTES as f64 * 1e9;
    let (mut copy_from_ns, mut copy_to_ns) = ([0.0; TierId::MAX], [0.0; TierId::MAX]);
    for (k, tier) in machine.tiers.iter().enumerate() {
        copy_from_ns[k] = page / tier.copy_read;
        copy_to_ns[k] = page / tier.copy_write;
    }
    Prices {
        move_small_ns: management.move_small_ns,
        move_huge_ns: management.move_huge_ns,
        copy_ns: page / management.copy_bandwidth,
        copy_from_ns,
        copy_to_ns,
        flush_ns: management.shootdown_ns,
        flush_small_ns: management.shootdown_ns / f64::from(pages_a_flush),
        split_ns: management.split_ns,
        collapse_ns: management.collapse_ns,
        scan_ns: management.scan_read_ns + management.scan_clear_ns,
        walk_ns: machine.processor.tlb.walk_small_ns,
        farther_ns: machine.tiers.get(1).map_or(0.0, |tier| tier.read_latency_ns) - machine.tiers[0].read_latency_ns,
    }
}

impl Simulation {
    /// What was counted since this was last asked; `None` where no MMU is modelled.
    pub(crate) fn processor_counts(&mut self) -> Option<ProcessorCounts> {
        let counters = self.counters();
        let run = self.hot.mmu.as_deref_mut()?;
        let processors = self.config.machine.processor.cores.max(1);
        let mut now = ProcessorCounts {
            cores: self.active,
            in_use: (f64::from(self.active) / f64::from(processors)).min(1.0),
            slow_accesses: counters.slow_accesses,
            slow_wait_ns: counters.slow_nanos,
            memory_accesses: counters.slow_accesses + counters.fast_accesses,
            ..ProcessorCounts::default()
        };
        let mut walk_ns = 0.0;
        for core in run.mmu.totals() {
            now.accesses[1] += core.huge_accesses;
            now.translation_ns[1] += core.huge_walk_ns;
            now.counted += core.updates;
            walk_ns += core.walk_ns;
        }
        now.accesses[0] = self.counts.accesses.saturating_sub(now.accesses[1]);
        now.translation_ns[0] = walk_ns - now.translation_ns[1];
        let before = std::mem::replace(&mut run.told, now);
        Some(ProcessorCounts {
            cores: now.cores,
            in_use: now.in_use,
            accesses: [0, 1].map(|size| now.accesses[size].saturating_sub(before.accesses[size])),
            translation_ns: [0, 1].map(|size| (now.translation_ns[size] - before.translation_ns[size]).max(0.0)),
            counted: now.counted - before.counted,
            slow_accesses: now.slow_accesses - before.slow_accesses,
            slow_wait_ns: (now.slow_wait_ns - before.slow_wait_ns).max(0.0),
            memory_accesses: now.memory_accesses - before.memory_accesses,
        })
    }
}
