//! Witnesses, and four ways to rank pages that are tried on them on paper.
//!
//! In: what each witness received, its value by each way, prices. Out: which way rules the real pages. Must not: look at where real pages lie,
//! but for a witness that appears.
//!
//! A witness is a page, chosen by a hash of its address, whose last state is remembered: the value table learns from witnesses alone. Each
//! arm places the witnesses in a fast memory of the same share. It is charged the accesses that its slow witnesses received, and the price
//! of its exchanges; charges are forgotten with a half-life of 28 intervals. The arm with the least charge rules. It takes 3 % less than the
//! ruling one to replace it, but `frozen` rules as soon as it is the least: doing nothing needs no proof.

use terrace_core::random::mix;
use terrace_core::units::{SpaceId, TierId, Vpn};

use super::exchange::Market;
use super::state::State;

/// Intervals after which half of a charge is forgotten.
const HALF_LIFE: f64 = 28.0;
/// How much less than the ruling arm's the charge of another must be.
const MARGIN: f64 = 0.03;
/// All units are witnesses while there are fewer; above, half as many to as many.
const MOST_WITNESSES: u64 = 16_384;

/// A way to rank pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// Nothing moves.
    Frozen,
    /// The long mean: what lasted long will last.
    Steady,
    /// Half the long mean, half the short one.
    Blend,
    /// The value table.
    Table,
}

/// The arms, in the order of their bits and charges.
pub(super) const ARMS: [Arm; 4] = [Arm::Frozen, Arm::Steady, Arm::Blend, Arm::Table];

/// Intervals for which `steady` and `blend` take their mean to last.
const STEADY_LASTS: f32 = 12.0;
const BLEND_LASTS: f32 = 6.0;

impl Arm {
    /// The value of a page by this arm, from its means over that of the mean page and its value by the table.
    pub(super) fn value(self, long: f32, short: f32, table: f32) -> f32 {
        match self {
            Arm::Frozen | Arm::Table => table,
            Arm::Steady => STEADY_LASTS * long,
            Arm::Blend => BLEND_LASTS * (long + short) / 2.0,
        }
    }
}

/// A page whose last state is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Witness {
    /// Its address.
    pub space: SpaceId,
    /// See there.
    pub vpn: Vpn,
    /// Its state when the interval began.
    pub state: State,
    /// Its short mean then: what the mean has more at the end, the page received.
    pub short: u16,
    /// What it received in the interval that ended last, for each of its pages.
    pub received: f32,
    /// In which arms it lies in fast memory, a bit each.
    pub placed: u8,
    /// Whether it really lies in fast memory.
    pub fast: bool,
    /// Intervals left in which a move is judged: above zero after a promotion, below after a demotion.
    pub moved: i8,
}

/// Whether the page of an address is a witness, where one in `2^thinned` is.
pub(super) fn is_witness(space: SpaceId, vpn: Vpn, thinned: u32) -> bool {
    mix(vpn.0 ^ (u64::from(space.0) << 40)) & ((1 << thinned) - 1) == 0
}

/// How far witnesses are thinned among so many units.
pub(super) fn thinned(units: u64) -> u32 {
    (0..).find(|shift| units >> shift < MOST_WITNESSES).unwrap_or(0)
}

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct Shadows {
    charges: [f64; ARMS.len()],
    ruling: usize,
    /// Whether arms other than the table may rule.
    free: bool,
    order: Vec<(f32, u32)>,
    /// Changes of the ruling arm so far.
    pub changes: u32,
}

impl Shadows {
    /// Arms without charges; the table rules. Unless `free`, it always will.
    pub(super) fn new(free: bool) -> Shadows {
        Shadows { charges: [0.0; ARMS.len()], ruling: ARMS.len() - 1, free, order: Vec::new(), changes: 0 }
    }

    /// The arm that rules.
    pub(super) fn ruling(&self) -> Arm {
        ARMS[self.ruling]
    }

    /// The number of the ruling arm, for reports.
    pub(super) fn ruling_number(&self) -> usize {
        self.ruling
    }

    /// An interval is over. `values` are those of each witness by the arms; `capacity` is how many witnesses fast memory holds, and `moves`
    /// how many exchanges of witnesses the mover can make.
    pub(super) fn judge(
        &mut self,
        witnesses: &mut [Witness],
        values: &[[f32; ARMS.len()]],
        capacity: usize,
        moves: usize,
        market: &Market,
    ) {
        let keep = 0.5f64.powf(1.0 / HALF_LIFE);
        for (arm, way) in ARMS.into_iter().enumerate() {
            let bit = 1u8 << arm;
            let slow = witnesses.iter().filter(|witness| witness.placed & bit == 0);
            let waited: f64 = slow.map(|witness| f64::from(witness.received)).sum();
            let mut charge = waited * market.gain_ns.max(0.0);
            if way != Arm::Frozen {
                charge += self.exchange(arm, witnesses, values, capacity, moves, market);
            }
            self.charges[arm] = self.charges[arm] * keep + charge;
        }
        if !self.free {
            return;
        }
        let least = (0..ARMS.len()).min_by(|one, other| self.charges[*one].total_cmp(&self.charges[*other]));
        let Some(least) = least.filter(|least| *least != self.ruling) else { return };
        let margin = if ARMS[least] == Arm::Frozen { 0.0 } else { MARGIN };
        if self.charges[least] < self.charges[self.ruling] * (1.0 - margin) {
            self.ruling = least;
            self.changes += 1;
        }
    }

    /// Exchanges witnesses of an arm as the real pages would be, and returns what that costs.
    fn exchange(
        &mut self,
        arm: usize,
        witnesses: &mut [Witness],
        values: &[[f32; ARMS.len()]],
        capacity: usize,
        moves: usize,
        market: &Market,
    ) -> f64 {
        let bit = 1u8 << arm;
        let mut order = std::mem::take(&mut self.order);
        let sorted = |fast: bool, order: &mut Vec<(f32, u32)>| {
            order.clear();
            let number = (0u32..).zip(witnesses.iter()).filter(|(_, witness)| (witness.placed & bit != 0) == fast);
            order.extend(number.map(|(number, _)| (values[number as usize][arm], number)));
            let slow = !fast;
            order.sort_unstable_by(|one, other| {
                let by_value = one.0.total_cmp(&other.0);
                let by_value = if slow { by_value.reverse() } else { by_value };
                by_value.then(one.1.cmp(&other.1))
            });
        };
        let mut slow = Vec::new();
        sorted(false, &mut slow);
        sorted(true, &mut order);
        let mut free = capacity.saturating_sub(order.len());
        let mut victims = order.iter();
        let mut paid = 0.0;
        let mut changed = Vec::new();
        for (value, number) in slow.into_iter().take(moves) {
            let mut price = market.price(1, f64::from(value), TierId::FAST.below(), TierId::FAST).program_ns;
            let mut lost = 0.0;
            let mut victim = None;
            if free == 0 {
                let Some(leaves) = victims.next() else { break };
                price += market.price(1, f64::from(leaves.0), TierId::FAST, TierId::FAST.below()).program_ns;
                lost = f64::from(leaves.0);
                victim = Some(leaves.1);
            }
            let gained = f64::from(value) - lost;
            if if market.weighs { market.worth(gained) <= price } else { gained <= 0.0 } {
                break;
            }
            free = free.saturating_sub(1);
            paid += price;
            changed.push(number);
            changed.extend(victim);
        }
        for number in changed {
            witnesses[number as usize].placed ^= bit;
        }
        self.order = order;
        paid
    }

    /// Bytes it occupies.
    pub(super) fn memory_bytes(&self) -> usize {
        self.order.capacity() * size_of::<(f32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::exchange::tests::market;
    use super::*;

    /// 64 witnesses, a quarter fast in every arm. Each interval `rates` says what each receives; the table's value is `forecast`.
    fn ruling(intervals: u64, rate: impl Fn(u64, u64) -> f32, forecast: impl Fn(u64, u64) -> f32) -> Arm {
        let witness = |number: u64| Witness {
            space: SpaceId(0),
            vpn: Vpn(number),
            state: State::default(),
            short: 0,
            received: 0.0,
            placed: if number < 16 { 15 } else { 0 },
            fast: number < 16,
            moved: 0,
        };
        let mut witnesses: Vec<Witness> = (0..64).map(witness).collect();
        let mut shadows = Shadows::new(true);
        let mut long = [10.0f32; 64];
        for now in 0..intervals {
            let mut values = Vec::new();
            for (number, witness) in (0..).zip(&mut witnesses) {
                witness.received = rate(number, now);
                let mean = &mut long[number as usize];
                *mean = *mean * 0.965 + witness.received * 0.035;
                let (long, short) = (*mean / 10.0, witness.received / 10.0);
                values.push(ARMS.map(|arm| arm.value(long, short, forecast(number, now))));
            }
            shadows.judge(&mut witnesses, &values, 16, 64, &market());
        }
        shadows.ruling()
    }

    /// Accesses in an order that nobody can know.
    fn scattered(number: u64, now: u64) -> f32 {
        if mix(number ^ (now << 20)).is_multiple_of(4) { 40.0 } else { 0.0 }
    }

    #[test]
    fn where_forecasts_are_wrong_nothing_moves() {
        // The table takes what was just used for what comes next.
        assert_eq!(ruling(200, scattered, scattered), Arm::Frozen);
    }

    #[test]
    fn where_the_table_is_right_it_rules() {
        let sweep = |number: u64, now: u64| if now % 8 == number / 8 { 80.0 } else { 0.0 };
        assert_eq!(ruling(200, sweep, |number, now| 4.0 * sweep(number, now + 1)), Arm::Table);
    }

    #[test]
    fn where_heat_lasts_and_the_table_knows_nothing_a_mean_rules() {
        let hot = |number: u64, _| if number >= 48 { 37.0 } else { 1.0 };
        let arm = ruling(200, hot, |_, _| 1.0);
        assert!(matches!(arm, Arm::Steady | Arm::Blend), "{arm:?}");
    }

    #[test]
    fn witnesses_are_thinned_to_a_bounded_number_by_address_alone() {
        assert_eq!([0, 16_383, 16_384, 8 << 20].map(thinned), [0, 0, 1, 10]);
        let count = (0..1 << 20).filter(|vpn| is_witness(SpaceId(1), Vpn(*vpn), 4)).count();
        assert!((count as f64 / 65_536.0 - 1.0).abs() < 0.02, "{count}");
    }
}
