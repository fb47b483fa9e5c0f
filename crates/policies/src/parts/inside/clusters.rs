//! The share of pages in use, from a few blocks drawn of many: an interval for the mean of clusters.
//!
//! In: the share of each block that was read, and of how many blocks they were drawn. Out: the mean and one-sided bounds. Must not: take the pages
//! of a block for independent, or be surer than two blocks can make it.
//!
//! See `inside.rs` for the distribution and its sources.

/// One-sided 90 % quantiles of Student's t for 1 to 30 degrees of freedom (Student, Biometrika 6, 1908; as in any table).
const STUDENT: [f64; 30] = [
    3.078, 1.886, 1.638, 1.533, 1.476, 1.440, 1.415, 1.397, 1.383, 1.372, 1.363, 1.356, 1.350, 1.345, 1.341, 1.337,
    1.333, 1.330, 1.328, 1.325, 1.323, 1.321, 1.319, 1.318, 1.316, 1.315, 1.314, 1.313, 1.311, 1.310,
];
/// The same of the normal distribution.
const NORMAL: f64 = 1.282;

/// A share with its bounds, each of which is meant to hold in nine cases of ten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    /// The lower bound.
    pub low: f64,
    /// The mean of what was read.
    pub mean: f64,
    /// The upper bound.
    pub high: f64,
}

impl Interval {
    /// Of blocks of which these `shares` of the pages are in use, drawn of `population` blocks.
    pub(crate) fn of(shares: &[f64], population: usize) -> Interval {
        let read = shares.len() as f64;
        if shares.is_empty() {
            return Interval { low: 0.0, mean: 0.5, high: 1.0 };
        }
        // What is left to be known: 0 when all were read.
        let rest = (1.0 - read / (population as f64).max(read)).max(0.0);
        let mean = shares.iter().sum::<f64>() / read;
        // One block that is not used and one that is used all over, of this weight.
        let count = read + 2.0 * rest;
        let middle = (mean * read + rest) / count;
        let squares: f64 = shares.iter().map(|share| (share - middle).powi(2)).sum();
        let squares = squares + rest * (middle.powi(2) + (1.0 - middle).powi(2));
        let freedom = (count - 1.0).max(1.0);
        let error = (squares / freedom / count * rest).sqrt();
        let quantile = STUDENT.get(freedom.floor() as usize - 1).copied().unwrap_or(NORMAL);
        let bound = |sign: f64| (middle + sign * quantile * error).clamp(0.0, 1.0);
        Interval { low: bound(-1.0).min(mean), mean, high: bound(1.0).max(mean) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::random::{SplitMix64, unit};

    /// The share of draws of `drawn` blocks whose bounds lie below and above the mean of all blocks.
    fn coverage(population: &[f64], drawn: usize, random: &mut SplitMix64) -> [f64; 2] {
        const DRAWS: u32 = 4000;
        let truth = population.iter().sum::<f64>() / population.len() as f64;
        let mut held = [0_u32; 2];
        for _ in 0..DRAWS {
            let mut left = population.to_vec();
            let one = |left: &mut Vec<f64>, random: &mut SplitMix64| {
                let at = random.below(left.len() as u64) as usize;
                left.swap_remove(at)
            };
            let shares: Vec<f64> = (0..drawn).map(|_| one(&mut left, random)).collect();
            let found = Interval::of(&shares, population.len());
            held[0] += u32::from(found.low <= truth + 1e-12);
            held[1] += u32::from(found.high >= truth - 1e-12);
        }
        held.map(|held| f64::from(held) / f64::from(DRAWS))
    }

    #[test]
    fn each_bound_holds_in_six_cases_of_seven_at_least_with_two_to_eight_blocks() {
        let mut random = SplitMix64::new(58);
        for blocks in [32_usize, 256] {
            let part = |share: f64, low: f64, high: f64| -> Vec<f64> {
                (0..blocks).map(|n| if (n as f64) < share * blocks as f64 { high } else { low }).collect()
            };
            let mut drawn_from =
                |shape: fn(f64) -> f64| -> Vec<f64> { (0..blocks).map(|_| shape(unit(random.next()))).collect() };
            let populations = [
                ("even", part(0.0, 1.0, 1.0)),
                ("scattered", part(0.0, 1.0 / 16.0, 0.0)),
                ("unused", part(0.0, 0.0, 0.0)),
                ("a tenth dense", part(0.1, 1.0 / 16.0, 1.0)),
                ("a fifth dense", part(0.2, 0.02, 1.0)),
                ("halves", part(0.5, 0.0, 1.0)),
                ("a tenth sparse", part(0.9, 0.05, 1.0)),
                ("uniform", drawn_from(|unit| unit)),
                ("mostly small", drawn_from(|unit| unit.powi(4))),
                ("mostly large", drawn_from(|unit| 1.0 - unit.powi(4))),
            ];
            let mut all = Vec::new();
            for (name, population) in &populations {
                for drawn in 2..=8 {
                    let [low, high] = coverage(population, drawn, &mut random);
                    all.extend([low, high]);
                    assert!(low >= 0.845 && high >= 0.845, "{name}, {drawn} of {blocks}: {low:.3} and {high:.3}");
                }
            }
            // Counts of blocks come in steps: not every case reaches what is meant, and their mean is well above it.
            assert!(all.iter().sum::<f64>() / all.len() as f64 >= 0.95);
        }
    }

    #[test]
    fn more_blocks_make_it_narrower_and_all_of_them_exact() {
        let width = |drawn: usize| {
            let found = Interval::of(&vec![0.0625; drawn], 64);
            assert!(found.low <= 0.0625 && 0.0625 <= found.high, "{found:?}");
            found.high - found.low
        };
        let widths = [2, 4, 8, 16, 32].map(width);
        assert!(widths.windows(2).all(|pair| pair[1] < pair[0] * 0.8), "{widths:?}");
        let all = Interval::of(&[0.25, 0.75], 2);
        assert_eq!((all.low, all.mean, all.high), (0.5, 0.5, 0.5));
        assert_eq!(Interval::of(&[], 100), Interval { low: 0.0, mean: 0.5, high: 1.0 });
    }
}
