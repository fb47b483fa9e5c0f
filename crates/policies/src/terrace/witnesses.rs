//! Witnesses: pages whose last state is remembered, from which the value table learns.
//!
//! In: addresses. Out: which of them are witnesses. Must not: look at heat or place: witnesses must be as all pages are.

use terrace_core::random::mix;
use terrace_core::units::{SpaceId, Vpn};

use super::state::State;

/// All units are witnesses while there are fewer; above, half as many to as many.
const MOST_WITNESSES: u64 = 16_384;

/// A page whose last state is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Witness {
    /// Its address.
    pub space: SpaceId,
    /// See there.
    pub vpn: Vpn,
    /// Its state when the interval began.
    pub state: State,
    /// Its kind then, for swap.
    pub kind: u16,
    /// Its short mean then: what the mean has more at the end, the page received.
    pub short: u16,
}

/// Whether the page of an address is a witness, where one in `2^thinned` is.
pub(super) fn is_witness(space: SpaceId, vpn: Vpn, thinned: u32) -> bool {
    mix(vpn.0 ^ (u64::from(space.0) << 40)) & ((1 << thinned) - 1) == 0
}

/// How far witnesses are thinned among this many units.
pub(super) fn thinned(units: u64) -> u32 {
    (0..).find(|shift| units >> shift < MOST_WITNESSES).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn witnesses_are_thinned_to_a_bounded_number_by_address_alone() {
        assert_eq!([0, 16_383, 16_384, 8 << 20].map(thinned), [0, 0, 1, 10]);
        let count = (0..1 << 20).filter(|vpn| is_witness(SpaceId(1), Vpn(*vpn), 4)).count();
        assert!((count as f64 / 65_536.0 - 1.0).abs() < 0.02, "{count}");
    }
}
