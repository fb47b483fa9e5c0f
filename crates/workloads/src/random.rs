//! Random numbers and the distributions the papers' inputs follow.
//!
//! In: a seed, and a stream number for each thread or purpose. Out: uniform, Zipf and Gaussian draws, and bijections
//! that scatter ranks over places. Must not: take entropy from anywhere.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
pub(crate) use terrace_core::random::{mix, unit};

/// A stream of random numbers (PCG 64 MCG).
#[derive(Clone, Debug)]
pub struct Random {
    generator: Pcg64Mcg,
}

impl Random {
    /// Stream `stream` of `seed`. Different streams of a seed have nothing to do with each other.
    pub fn new(seed: u64, stream: u64) -> Random {
        let high = mix(seed ^ mix(stream));
        let low = mix(high ^ stream.rotate_left(32));
        Random { generator: Pcg64Mcg::new((u128::from(high) << 64) | u128::from(low)) }
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.generator.next_u64()
    }

    /// Uniform below `bound`, by multiplication (Lemire 2019) without the rejection step: the bias is below
    /// `bound / 2^64`, which no run here can see.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in 0 (included) to 1 (excluded), 53 bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        unit(self.bits())
    }

    /// Standard normal, approximated as sysbench does by the central limit: the sum of 12 uniforms less 6 has mean 0 and
    /// variance 1. Each uniform has 32 bits, so the sum still tells 2^35 places apart.
    #[inline]
    pub fn normal_by_sums(&mut self) -> f64 {
        let mut sum = 0u64;
        for _ in 0..6 {
            let bits = self.bits();
            sum += (bits >> 32) + (bits & 0xFFFF_FFFF);
        }
        // Half a step for each of the 12 uniforms centres the sum on 6 exactly.
        (sum as f64 + 6.0) / (1u64 << 32) as f64 - 6.0
    }
}

/// A one-to-one map of `0..length` to itself that looks random: odd multiplications and shifts, each of which can be
/// undone, over the next power of two, walked until the result falls inside (Black and Rogaway 2002 for the walk).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    length: u64,
    mask: u64,
    shift: u32,
    offset: u64,
    factors: [u64; 3],
}

impl Permutation {
    /// A permutation of `0..length` that follows from `seed`.
    pub fn new(length: u64, seed: u64) -> Permutation {
        let bits = 64 - length.saturating_sub(1).leading_zeros();
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        let key = mix(seed);
        let factors = [1, 2, 3].map(|round| mix(key ^ round) | 1);
        Permutation { length, mask, shift: bits / 2 + 1, offset: key, factors }
    }

    /// Where `index` goes. `index` must be below the length.
    #[inline]
    pub fn apply(&self, index: u64) -> u64 {
        let mut value = index;
        loop {
            value = value.wrapping_add(self.offset) & self.mask;
            for factor in self.factors {
                value = value.wrapping_mul(factor) & self.mask;
                value ^= value >> self.shift;
            }
            if value < self.length {
                return value;
            }
        }
    }
}

/// Ranks of a Zipf tail that the alias table holds one by one.
const HEAD: u64 = 4096;
/// Growth of the blocks that hold the other ranks.
const BLOCK_GROWTH: f64 = 1.002;

/// Zipf's law: rank `r` of `1..=n` with a weight of `r^-exponent`. Two levels: an alias table (Vose 1991) of the first
/// 4,096 ranks and of blocks of ranks growing by 0.2 %, then a uniform draw within the block, thinned by rejection to
/// the exact weights. The table stays in the cache at any `n`.
#[derive(Clone, Debug)]
pub struct Zipf {
    slots: Vec<Slot>,
    picks: Vec<Pick>,
    blocks: Vec<Block>,
    exponent: f64,
}

/// A slot of the alias table in eight bytes, for [`Zipf::fill`]: the threshold's upper 48 bits, and the alias.
#[derive(Clone, Copy, Debug)]
struct Pick(u64);

/// The ranks of a slot, for [`Zipf::fill`].
#[derive(Clone, Copy, Debug)]
struct Block {
    /// Counted from 0.
    first: u64,
    width: u32,
    /// [`Slot::least`] in units of 2^-32, rounded down; draws below it need no test.
    least: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    threshold: u64,
    alias: u32,
    first: u64,
    width: u64,
    /// Weight of the block's last rank as a share of that of its first; draws below it need no test.
    least: f64,
}

impl Zipf {
    /// Zipf over `n` ranks, at least 1, with an exponent of 0 (uniform) or more.
    pub fn new(n: u64, exponent: f64) -> Zipf {
        let mut blocks: Vec<(u64, u64)> = (1..=n.min(HEAD)).map(|rank| (rank, 1)).collect();
        let mut first = HEAD + 1;
        while first <= n {
            let widest = (n - first + 1).min(u64::from(u32::MAX));
            let width = (((first as f64) * (BLOCK_GROWTH - 1.0)) as u64).clamp(1, widest);
            blocks.push((first, width));
            first += width;
        }
        let weights: Vec<f64> = blocks.iter().map(|&(first, width)| weight_of(first, width, exponent)).collect();
        let (thresholds, aliases) = alias_table(&weights);
        let slots = blocks
            .iter()
            .zip(thresholds.iter().zip(&aliases))
            .map(|(&(first, width), (&threshold, &alias))| {
                let least = ((first + width - 1) as f64 / first as f64).powf(-exponent);
                Slot { threshold, alias, first, width, least }
            })
            .collect();
        let mut zipf = Zipf { slots, picks: Vec::new(), blocks: Vec::new(), exponent };
        for slot in &zipf.slots {
            // A table of 2^16 slots would be for 10^57 ranks.
            zipf.picks.push(Pick((slot.threshold & !0xffff) | u64::from(slot.alias & 0xffff)));
            let (first, width) = (slot.first - 1, slot.width as u32);
            zipf.blocks.push(Block { first, width, least: (slot.least * (1u64 << 32) as f64) as u32 });
        }
        zipf
    }

    /// Zipf over `n` ranks whose first `top` share draws `mass` of all: the exponent found by bisection. "80 % of
    /// references in the top 20 % of the data" is `with_share(n, 0.2, 0.8)`.
    pub fn with_share(n: u64, top: f64, mass: f64) -> Zipf {
        let head = ((n as f64 * top) as u64).max(1);
        let (mut low, mut high) = (0.0f64, 4.0f64);
        for _ in 0..60 {
            let exponent = 0.5 * (low + high);
            let share = weight_of(1, head, exponent) / weight_of(1, n, exponent);
            if share < mass {
                low = exponent;
            } else {
                high = exponent;
            }
        }
        Zipf::new(n, 0.5 * (low + high))
    }

    /// The exponent.
    pub fn exponent(&self) -> f64 {
        self.exponent
    }

    /// Draws a rank, counted from 0.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        let wide = u128::from(random.bits()) * self.slots.len() as u128;
        let mut slot = &self.slots[(wide >> 64) as usize];
        if (wide as u64) >= slot.threshold {
            slot = &self.slots[slot.alias as usize];
        }
        if slot.width == 1 {
            return slot.first - 1;
        }
        loop {
            let rank = slot.first + random.below(slot.width);
            let test = random.unit();
            if test < slot.least || test < (rank as f64 / slot.first as f64).powf(-self.exponent) {
                return rank - 1;
            }
        }
    }

    /// Draws as many ranks as `ranks` has places, counted from 0: the law of [`Zipf::draw`], but not its sequence. Every
    /// rank takes two numbers whatever comes of them, so there is nothing to guess wrong and the host works on several
    /// ranks at once; only a rejection, one in a thousand, draws again.
    pub fn fill(&self, random: &mut Random, ranks: &mut [u64]) {
        for rank in ranks {
            *rank = loop {
                let wide = u128::from(random.bits()) * self.picks.len() as u128;
                let slot = (wide >> 64) as usize;
                let pick = self.picks[slot].0;
                let chosen = if (wide as u64) >> 16 >= pick >> 16 { pick as usize & 0xffff } else { slot };
                let block = self.blocks[chosen];
                // The upper half of the product is the place, the lower one what is left of the number: the test.
                let wide = u128::from(random.bits()) * u128::from(block.width);
                let place = (wide >> 64) as u64;
                if ((wide as u64 >> 32) as u32) < block.least {
                    break block.first + place;
                }
                let test = unit(wide as u64);
                if test < ((block.first + 1 + place) as f64 / (block.first + 1) as f64).powf(-self.exponent) {
                    break block.first + place;
                }
            };
        }
    }
}

/// Sum of `r^-exponent` over `width` ranks from `first`: term by term where terms are few or steep, and by Euler and
/// Maclaurin's formula (to the first derivative; error below 1e-12 of the sum from rank 1,000 on) beyond.
fn weight_of(first: u64, width: u64, exponent: f64) -> f64 {
    let last = first + width - 1;
    let plain_until = last.min(first.max(1000) + 15);
    let mut sum: f64 = (first..=plain_until).map(|rank| (rank as f64).powf(-exponent)).sum();
    if last > plain_until {
        let (a, b) = ((plain_until + 1) as f64, last as f64);
        let power = 1.0 - exponent;
        let integral = if power.abs() < 1e-9 { (b / a).ln() } else { (b.powf(power) - a.powf(power)) / power };
        let (fa, fb) = (a.powf(-exponent), b.powf(-exponent));
        sum += integral + 0.5 * (fa + fb) + exponent / 12.0 * (fa / a - fb / b);
    }
    sum
}

fn alias_table(weights: &[f64]) -> (Vec<u64>, Vec<u32>) {
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let mut scaled: Vec<f64> = weights.iter().map(|weight| weight / mean).collect();
    let (mut small, mut large): (Vec<usize>, Vec<usize>) = (0..scaled.len()).partition(|&index| scaled[index] < 1.0);
    let mut thresholds = vec![u64::MAX; scaled.len()];
    let mut aliases: Vec<u32> = (0..scaled.len() as u32).collect();
    while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
        thresholds[less] = (scaled[less] * u64::MAX as f64) as u64;
        aliases[less] = more as u32;
        scaled[more] -= 1.0 - scaled[less];
        if scaled[more] < 1.0 {
            large.pop();
            small.push(more);
        }
    }
    (thresholds, aliases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_reaches_every_place_once() {
        for length in [1, 2, 3, 1000, 4096, 5000] {
            let permutation = Permutation::new(length, 7);
            let mut seen = vec![false; length as usize];
            (0..length).for_each(|index| seen[permutation.apply(index) as usize] = true);
            assert!(seen.iter().all(|seen| *seen), "{length}");
        }
        assert!((0..5000).any(|i| Permutation::new(5000, 7).apply(i) != Permutation::new(5000, 8).apply(i)));
    }

    #[test]
    fn zipf_has_its_exact_weights_in_the_head_and_in_the_blocks() {
        let (n, exponent, draws) = (200_000u64, 0.99, 4_000_000);
        let zipf = Zipf::new(n, exponent);
        let weights: Vec<f64> = (1..=n).map(|rank| (rank as f64).powf(-exponent)).collect();
        let total: f64 = weights.iter().sum();
        let (mut random, mut ranks) = (Random::new(3, 0), vec![0; 1000]);
        let mut one_by_one = vec![0u64; n as usize];
        (0..draws).for_each(|_| one_by_one[zipf.draw(&mut random) as usize] += 1);
        let mut filled = vec![0u64; n as usize];
        for _ in 0..draws / 1000 {
            zipf.fill(&mut random, &mut ranks);
            ranks.iter().for_each(|&rank| filled[rank as usize] += 1);
        }
        for counts in [one_by_one, filled] {
            for range in [0..1, 1..10, 10..1000, 1000..5000, 5000..50_000, 50_000..200_000] {
                let expected: f64 = weights[range.clone()].iter().sum::<f64>() / total;
                let seen = counts[range.clone()].iter().sum::<u64>() as f64 / f64::from(draws);
                assert!((seen / expected - 1.0).abs() < 0.01, "{range:?}: {seen} against {expected}");
            }
        }
    }

    #[test]
    fn the_top_fifth_gets_four_fifths() {
        let zipf = Zipf::with_share(500_000, 0.2, 0.8);
        let mut random = Random::new(5, 0);
        let inside = (0..1_000_000).filter(|_| zipf.draw(&mut random) < 100_000).count();
        assert!((0.795..0.805).contains(&(inside as f64 / 1e6)), "{inside} with exponent {}", zipf.exponent());
        let exact = weight_of(1, 100_000, zipf.exponent()) / weight_of(1, 500_000, zipf.exponent());
        assert!((exact - 0.8).abs() < 1e-9);
    }

    #[test]
    fn sums_of_weights_are_exact() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.3] {
            let plain: f64 = (1..=300_000u64).map(|rank| (rank as f64).powf(-exponent)).sum();
            assert!((weight_of(1, 300_000, exponent) / plain - 1.0).abs() < 1e-9, "{exponent}");
        }
    }

    #[test]
    fn the_normal_has_mean_zero_and_variance_one() {
        let mut random = Random::new(9, 0);
        let draws: Vec<f64> = (0..200_000).map(|_| random.normal_by_sums()).collect();
        let mean = draws.iter().sum::<f64>() / 2e5;
        let variance = draws.iter().map(|x| x * x).sum::<f64>() / 2e5;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }
}
