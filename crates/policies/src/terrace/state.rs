//! What `terrace` knows of a page, and the state of the value table that follows from it.
//!
//! In: accesses, and the end of an interval. Out: two means on a logarithmic scale, and a [`State`]. Must not: hold anything a page;
//! the words lie in [`terrace_core::pages::Page`] and one column.
//!
//! A mean is kept in 16 bits, 256 steps an octave, from 2^-24 accesses an interval up. On such a scale ageing is a subtraction. What is
//! added is rounded up or down at random, in proportion, so that small amounts are right on average.

use std::sync::LazyLock;

/// Steps of the logarithmic scale in an octave.
pub(super) const STEPS: f32 = 256.0;
/// Octaves by which the smallest mean lies below one access an interval.
const BELOW_ONE: f32 = 24.0;

/// The exponent of 1 in an `f32`.
const BIAS: u32 = 127;

/// Ageing of the long mean in an interval, in steps: a half-life of 19.7 intervals.
pub(super) const LONG_AGEING: u16 = 13;
/// Ageing of the short mean: a half-life of 1.5 intervals.
pub(super) const SHORT_AGEING: u16 = 171;

/// Bins of the time since the last use: 0 to 3 intervals, then three bins for two octaves.
pub(super) const AGES: usize = 14;
/// Bins of short mean over long mean.
pub(super) const TRENDS: usize = 5;
/// Bins of long mean over the mean page, an octave each.
pub(super) const LEVELS: usize = 20;
/// The level of the mean page.
pub(super) const MEAN_LEVEL: usize = 10;
/// Edges of the trend bins in steps: ratios of 0.25, 0.7, 1.5 and 4.
const TREND_EDGES: [i32; TRENDS - 1] = [-512, -132, 150, 512];

/// States made of age, trend and level.
pub(super) const REGULAR: usize = AGES * TRENDS * LEVELS;
/// All states: two more for the first interval of a page, anonymous or of a file.
pub(super) const STATES: usize = REGULAR + 2;

/// The number a mean is stored as. `draw`, from 0 to below 1, decides between the two nearest.
pub(super) fn encode(value: f32, draw: f32) -> u16 {
    let steps = (value.max(0.0).log2() + BELOW_ONE) * STEPS + 1.0;
    if steps < 1.0 {
        // Below the scale: the smallest mean with the chance that keeps the average.
        return u16::from(draw < value.max(0.0) * BELOW_ONE.exp2());
    }
    (steps + draw).min(f32::from(u16::MAX)) as u16
}

/// The mean that a stored number stands for.
pub(super) fn decode(stored: u16) -> f32 {
    // A pass decodes several means a page: the octave is the exponent as it stands in the number, the part of an octave is looked up.
    static PARTS: LazyLock<[f32; STEPS as usize]> =
        LazyLock::new(|| std::array::from_fn(|part| (part as f32 / STEPS).exp2()));
    let Some(steps) = stored.checked_sub(1) else { return 0.0 };
    let octave = u32::from(steps / STEPS as u16) + BIAS - BELOW_ONE as u32;
    PARTS[usize::from(steps % STEPS as u16)] * f32::from_bits(octave.min(2 * BIAS) << (f32::MANTISSA_DIGITS - 1))
}

/// The share of an access that enters a mean with this ageing at once.
pub(super) fn weight(ageing: u16) -> f32 {
    1.0 - (-f32::from(ageing) / STEPS).exp2()
}

/// Which parts of the state are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// The time since the last use.
    pub age: bool,
    /// Whether use rises or falls.
    pub trend: bool,
    /// Whether a value is interpolated between levels, and starts at its prior.
    pub smooth: bool,
}

/// A state of the value table, between two of its levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// The lower of the two entries.
    pub entry: u16,
    /// How far from it to the next level, in 1/256 octave.
    pub part: u8,
}

impl State {
    /// The state of a page in its first interval.
    pub(super) fn newborn(file: bool) -> State {
        State { entry: (REGULAR + usize::from(file)) as u16, part: 0 }
    }

    /// The state of a page last used `age` intervals ago, by its stored means and that of the mean page.
    pub(super) fn of(age: u16, long: u16, short: u16, mean: u16, parts: Parts) -> State {
        let age = if parts.age { age_bin(age) } else { 0 };
        let trend = if parts.trend && long > 0 {
            let difference = i32::from(short) - i32::from(long);
            TREND_EDGES.iter().filter(|edge| difference >= **edge).count()
        } else {
            TRENDS / 2
        };
        let octave = STEPS as i32;
        let lowest = i32::from(mean) - MEAN_LEVEL as i32 * octave;
        let rounding = if parts.smooth { 0 } else { octave / 2 };
        let above = if long == 0 { 0 } else { i32::from(long) - lowest + rounding };
        let above = above.clamp(0, (LEVELS as i32 - 1) * octave);
        let (level, part) = (above / octave, above % octave);
        let entry = (age * TRENDS + trend) * LEVELS + level as usize;
        State { entry: entry as u16, part: if parts.smooth { part as u8 } else { 0 } }
    }

    /// The level of an entry as a multiple of the mean page's.
    pub(super) fn level(entry: usize) -> f32 {
        if entry >= REGULAR { 1.0 } else { ((entry % LEVELS) as f32 - MEAN_LEVEL as f32).exp2() }
    }
}

/// The level of a page when it was last used, `age` intervals ago: what its long mean has lost since is given back.
pub(super) fn level_at_use(age: u16, long: u16, mean: u16) -> usize {
    let octave = STEPS as i32;
    let lowest = i32::from(mean) - MEAN_LEVEL as i32 * octave;
    let then = if long == 0 { lowest } else { i32::from(long) + i32::from(age) * i32::from(LONG_AGEING) };
    ((then - lowest).clamp(0, (LEVELS as i32 - 1) * octave) / octave) as usize
}

/// The idle time in the middle of an age bin, in intervals.
pub(super) fn idle(bin: usize) -> f32 {
    let edge = |bin: usize| 4.0 * ((bin - 4) as f32 / 1.5).exp2();
    if bin < 4 { bin as f32 } else { f32::midpoint(edge(bin), edge(bin + 1)) }
}

pub(super) fn age_bin(age: u16) -> usize {
    match age {
        0..=3 => usize::from(age),
        _ => (4 + (f32::from(age) / 4.0).log2().mul_add(1.5, 0.0) as usize).min(AGES - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::random::{SplitMix64, unit};

    const ALL: Parts = Parts { age: true, trend: true, smooth: true };

    #[test]
    fn a_mean_is_kept_to_a_part_in_three_hundred_and_small_amounts_add_up() {
        for value in [1e-6, 0.003, 1.0, 77.0, 1e6] {
            let kept = decode(encode(value, 0.5));
            assert!((kept / value - 1.0).abs() < 0.0034, "{value}: {kept}");
        }
        assert_eq!((encode(0.0, 0.0), decode(0)), (0, 0.0));
        for stored in 1..30_000 {
            let value = (f32::from(stored - 1) / STEPS - BELOW_ONE).exp2();
            assert!((decode(stored) / value - 1.0).abs() < 1e-6, "{stored}");
        }
        assert!(decode(u16::MAX).is_finite());
        // A thousandth of a step at a time, on average.
        let mut random = SplitMix64::new(1);
        let (mut sum, rounds) = (0.0, 400);
        for _ in 0..rounds {
            let mut stored = encode(1.0, 0.0);
            for _ in 0..1000 {
                stored = encode(decode(stored) + 1e-4, unit(random.next()) as f32);
            }
            sum += decode(stored);
        }
        let mean = sum / rounds as f32;
        assert!((mean - 1.1).abs() < 0.01, "1000 times 0.0001 on 1 came to {mean}");
    }

    #[test]
    fn ageing_is_a_subtraction() {
        let aged = decode(encode(8.0, 0.0) - SHORT_AGEING) / 8.0;
        assert!((aged - 0.5f32.powf(1.0 / 1.5)).abs() < 0.002, "{aged}");
        assert!((weight(SHORT_AGEING) + aged - 1.0).abs() < 0.002);
    }

    #[test]
    fn states_tell_age_trend_and_level_apart_and_nothing_is_out_of_range() {
        let mean = encode(4.0, 0.0);
        let at = |age, long: f32, short: f32| State::of(age, encode(long, 0.0), encode(short, 0.0), mean, ALL);
        assert_eq!(at(0, 4.0, 4.0).entry as usize, 2 * LEVELS + MEAN_LEVEL);
        assert_eq!(at(0, 4.0, 4.0), at(0, 4.0, 4.1));
        assert_ne!(at(0, 4.0, 4.0).entry, at(0, 4.0, 20.0).entry, "rising");
        assert_ne!(at(0, 4.0, 4.0).entry, at(5, 4.0, 4.0).entry, "older");
        assert_eq!(at(0, 16.0, 16.0).entry - at(0, 4.0, 4.0).entry, 2, "two octaves hotter");
        let ages: Vec<usize> = [0, 1, 2, 3, 4, 6, 7, 10, 11, 400, 60_000].map(age_bin).to_vec();
        assert!(ages.windows(2).all(|pair| pair[0] <= pair[1]) && ages[10] == AGES - 1, "{ages:?}");
        for long in [0, 1, 2000, u16::MAX] {
            for short in [0, 1, 2000, u16::MAX] {
                for mean in [0, 3000, u16::MAX] {
                    let state = State::of(9, long, short, mean, ALL);
                    assert!((state.entry as usize) < REGULAR);
                    assert!(
                        state.part == 0 || !(state.entry as usize + 1).is_multiple_of(LEVELS),
                        "the top level has none above"
                    );
                }
            }
        }
        assert!(State::newborn(true).entry as usize == STATES - 1);
    }

    #[test]
    fn what_is_switched_off_is_not_looked_at() {
        let mean = encode(1.0, 0.0);
        let blind = Parts { age: false, trend: false, smooth: false };
        let one = State::of(0, mean, mean, mean, blind);
        assert_eq!(one, State::of(90, mean + 100, mean + 900, mean, blind));
        assert_eq!(one.entry + 1, State::of(0, mean + 130, 0, mean, blind).entry, "the nearest level");
    }
}
