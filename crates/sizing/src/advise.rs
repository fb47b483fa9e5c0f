//! What less fast memory saves, in money.
//!
//! In: a machine, a share of the memory that is fast, what a byte of each kind costs. Out: the share of the cost that is saved. Must not: say which
//! share a program needs; [`crate::forecast`] does.

use terrace_machine::preset::Machine;

use crate::model;

/// What fewer bytes of fast memory save, as a share of what all of it fast would cost; prices are for a byte of each.
pub fn cost_saved(machine: &Machine, share: f64, price_fast: f64, price_slow: f64) -> f64 {
    let slow = &machine.tiers[model::slow_tier(machine)];
    // Compressed memory lies in fast memory itself.
    let price = if model::slow_faults(machine) { price_fast / slow.ratio } else { price_slow };
    (1.0 - share) * (1.0 - price / price_fast)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_memory_is_paid_in_fast_memory() {
        let zram = Machine::preset("zram-vm").unwrap();
        assert!((cost_saved(&zram, 0.5, 4.0, 1.0) - 0.5 * (1.0 - 1.0 / 3.0)).abs() < 1e-9);
        let cxl = Machine::preset("cxl-pond").unwrap();
        assert!((cost_saved(&cxl, 0.5, 4.0, 2.0) - 0.25).abs() < 1e-9);
        assert_eq!(cost_saved(&cxl, 1.0, 4.0, 2.0), 0.0);
    }
}
