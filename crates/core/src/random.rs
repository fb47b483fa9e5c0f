//! Reproducible pseudorandom numbers.
//!
//! In: a seed. Out: 64-bit words. Must not: take entropy from anywhere. Distributions are in crates/workloads.
//!
//! Both are from SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). That is enough for draws,
//! scatter and patterns that must show no order to a tracker, but not for anything an adversary sees.

const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection in which every output bit depends on every input bit.
#[inline]
pub const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(GOLDEN_GAMMA);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A number in [0, 1) from a word's upper 53 bits, the precision of a float.
#[inline]
pub const fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// A stream of words.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// The stream of a seed.
    pub const fn new(seed: u64) -> SplitMix64 {
        SplitMix64 { state: seed }
    }

    /// The next word.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        let word = mix(self.state);
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        word
    }

    /// A number below `bound`, by remainder: the bias is below `bound / 2^64`. 0 for a bound of 0.
    #[inline]
    pub const fn below(&mut self, bound: u64) -> u64 {
        let word = self.next();
        if bound == 0 { 0 } else { word % bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_the_published_generator() {
        // The first words of seed 1234567, as the authors' C program prints them.
        let mut stream = SplitMix64::new(1_234_567);
        let words = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([stream.next(), stream.next(), stream.next()], words);
        assert_eq!(mix(1_234_567), words[0]);
        assert_eq!((stream.below(0), stream.below(1)), (0, 0));
        assert_eq!((unit(0), unit(1 << 63)), (0.0, 0.5));
        assert!(unit(u64::MAX) < 1.0);
    }
}
