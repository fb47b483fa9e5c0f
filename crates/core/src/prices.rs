//! Prices of moves and mappings, and the processor's counts, by which a policy weighs a request.
//!
//! In: nothing. Out: [`Prices`], which a driver passes to a policy at the start and when they change, and [`ProcessorCounts`], which it
//! passes with each scan and each wake-up. Must not: judge. The policy decides whether a move is worth its price.
//!
//! The simulator takes both from the machine's description. Live, prices are measured at the start (linux, `move_cost.rs`) where pages move
//! between nodes, and of the counts only how busy the processors are is known.

use crate::units::TierId;

/// Prices of a machine, in nanoseconds of processor time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// Moving one 4 KiB page, without the copy.
    pub move_small_ns: f64,
    /// Moving one 2 MiB page, without the copy.
    pub move_huge_ns: f64,
    /// Copying 4 KiB at the speed of one core.
    pub copy_ns: f64,
    /// Copying 4 KiB at the read bandwidth of each tier.
    pub copy_from_ns: [f64; TierId::MAX],
    /// Copying 4 KiB at the write bandwidth of each tier.
    pub copy_to_ns: [f64; TierId::MAX],
    /// The cost of a changed mapping to each core that runs the program: the interrupt to flush it.
    pub flush_ns: f64,
    /// The same for a 4 KiB page that moves: its part of one interrupt that flushes a whole batch.
    pub flush_small_ns: f64,
    /// Splitting a huge mapping.
    pub split_ns: f64,
    /// Mapping a block huge again, without its copy.
    pub collapse_ns: f64,
    /// Reading and clearing the accessed bit of one 4 KiB mapping.
    pub scan_ns: f64,
    /// A page walk for the translation of a 4 KiB page.
    pub walk_ns: f64,
    /// Extra time of a load from the second fastest tier over one from the fastest.
    pub farther_ns: f64,
}

impl Prices {
    /// The prices of a machine that states none: measured on a Zen 3 server (1.2 us a 4 KiB page of one core, 11 GB/s by 2 MiB) and a Genoa guest; the
    /// distance is that of a remote node.
    pub const ASSUMED: Prices = Prices {
        move_small_ns: 830.0,
        move_huge_ns: 5000.0,
        copy_ns: 372.0,
        copy_from_ns: [0.0; TierId::MAX],
        copy_to_ns: [0.0; TierId::MAX],
        flush_ns: 500.0,
        flush_small_ns: 500.0,
        split_ns: 20_000.0,
        collapse_ns: 20_000.0,
        scan_ns: 43.0,
        walk_ns: 33.0,
        farther_ns: 100.0,
    };

    /// Moving `pages` that are mapped as one from a tier to a tier, with `cores` running the program.
    pub fn moving(&self, pages: u64, from: TierId, to: TierId, cores: u32) -> f64 {
        let (fixed, flush) = match pages {
            0 | 1 => (self.move_small_ns, self.flush_small_ns),
            _ => (self.move_huge_ns, self.flush_ns),
        };
        fixed + self.copying(pages, from, to) + flush * f64::from(cores)
    }

    /// The prices to a program that loses this share of the manager's own time, 0 to 1. The program pays in full for its cores' flushes,
    /// page walks and slower memory.
    pub fn taking(mut self, share: f64) -> Prices {
        let own = [&mut self.move_small_ns, &mut self.move_huge_ns, &mut self.copy_ns, &mut self.split_ns];
        let own = own.into_iter().chain([&mut self.collapse_ns, &mut self.scan_ns]);
        own.chain(&mut self.copy_from_ns).chain(&mut self.copy_to_ns).for_each(|price| *price *= share);
        self
    }

    /// Copying `pages`: at the speed of the slowest of core, source and destination.
    pub fn copying(&self, pages: u64, from: TierId, to: TierId) -> f64 {
        pages as f64 * self.copy_ns.max(self.copy_from_ns[from.index()]).max(self.copy_to_ns[to.index()])
    }
}

/// The processor's counts between two scans. Pairs are of 4 KiB and of 2 MiB mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessorCounts {
    /// Cores that run the program.
    pub cores: u32,
    /// Share of the machine's processors, 0 to 1, that are busy. Idle processors can manage memory without delaying the program.
    pub in_use: f64,
    /// Accesses, including those that hit a cache.
    pub accesses: [u64; 2],
    /// Nanoseconds that cores waited for translations.
    pub translation_ns: [f64; 2],
    /// Hotness counters incremented.
    pub counted: u64,
    /// Accesses served by memory slower than the fastest tier.
    pub slow_accesses: u64,
    /// Nanoseconds that cores waited for these, beyond the time of the fastest tier: from counters of stalled cycles.
    pub slow_wait_ns: f64,
    /// Accesses served by memory of any tier.
    pub memory_accesses: u64,
    /// Of these, loads of lines that a prefetcher had brought in time: samples of loads that missed do not see them.
    pub streamed_loads: u64,
    /// Nanoseconds that cores waited for memory of any tier: cycles with a read outstanding and nothing else to do.
    pub memory_wait_ns: f64,
    /// Mean nanoseconds of a load from each tier under the current load; 0 if unknown.
    pub latency_ns: [f64; TierId::MAX],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_costs_its_slowest_part_and_a_flush_on_each_core() {
        let mut prices = Prices { move_small_ns: 800.0, copy_ns: 400.0, flush_small_ns: 250.0, ..Prices::ASSUMED };
        prices.copy_to_ns[1] = 700.0;
        let slow = TierId(1);
        assert_eq!(prices.moving(1, slow, TierId::FAST, 4), 800.0 + 400.0 + 1000.0);
        assert_eq!(prices.moving(1, TierId::FAST, slow, 1), 800.0 + 700.0 + 250.0);
        assert_eq!(prices.moving(512, slow, TierId::FAST, 1), 5000.0 + 512.0 * 400.0 + 500.0);
        let quarter = prices.taking(0.25);
        assert_eq!(quarter.moving(1, TierId::FAST, slow, 4), 200.0 + 175.0 + 1000.0, "the flushes are the program's");
        assert_eq!(quarter.moving(512, slow, TierId::FAST, 1), 1250.0 + 512.0 * 100.0 + 500.0);
    }
}
