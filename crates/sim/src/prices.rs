//! What the modelled machine tells a policy of prices.
//!
//! In: the machine's description. Out: [`Prices`]. Must not: tell what no data sheet or measurement could.

use terrace_core::prices::Prices;
use terrace_core::units::{PAGE_BYTES, TierId};
use terrace_machine::preset::Machine;

/// Prices as the machine's description states them, where one flush serves this many moved pages.
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
