//! A counting Bloom filter in blocks of a cache line: how often each of many keys was seen, by small counters they share.
//!
//! In: keys and counts. Out: an estimate that is never below the truth, but for counters that are full. Must not: know what a key stands for.
//!
//! Source: counting filters with one memory access a key, as HybridTier uses them (ASPLOS 2025, section 4): a key's `k` counters lie
//! in one line of 64 bytes, so that reading or raising them touches one line. Size for `n` keys at a share `p` of wrong answers:
//! `n * -k / ln(1 - p^(1/k))` counters.

use terrace_core::random::mix;

/// Bits of a cache line.
const LINE_BITS: usize = 512;
/// Counters a key has (HybridTier's code: 4).
const HASHES: usize = 4;

/// See the module's header.
#[derive(Clone, Debug)]
pub struct CountingFilter {
    words: Vec<u64>,
    bits: u32,
    lines: u64,
}

impl CountingFilter {
    /// Counters of `bits` bits (a power of two of at most 32) for about this many counters, at least one line.
    pub fn new(counters: f64, bits: u32) -> CountingFilter {
        let a_line = (LINE_BITS as u32 / bits) as f64;
        let lines = (counters / a_line).ceil().max(1.0) as u64;
        CountingFilter { words: vec![0; lines as usize * LINE_BITS / 64], bits, lines }
    }

    /// Counters that `keys` keys need for this share of keys that collide in all their counters.
    pub fn counters_for(keys: u64, collisions: f64) -> f64 {
        let k = HASHES as f64;
        keys as f64 * -k / (1.0 - collisions.powf(1.0 / k)).ln()
    }

    /// The largest count.
    pub fn most(&self) -> u32 {
        (1u32 << self.bits) - 1
    }

    /// The places of a key's counters: word and shift.
    fn places(&self, key: u64) -> [(usize, u32); HASHES] {
        let word = mix(key);
        let line = (word % self.lines) as usize * LINE_BITS / 64;
        let a_line = LINE_BITS as u32 / self.bits;
        let mut spread = mix(word);
        std::array::from_fn(|_| {
            let counter = (spread as u32) % a_line;
            spread >>= 16;
            let bit = counter * self.bits;
            (line + (bit / 64) as usize, bit % 64)
        })
    }

    fn at(&self, (word, shift): (usize, u32)) -> u32 {
        (self.words[word] >> shift) as u32 & self.most()
    }

    fn set(&mut self, (word, shift): (usize, u32), value: u32) {
        let mask = u64::from(self.most()) << shift;
        self.words[word] = (self.words[word] & !mask) | (u64::from(value) << shift);
    }

    /// How often the key was seen: the least of its counters.
    pub fn count(&self, key: u64) -> u32 {
        self.places(key).into_iter().map(|place| self.at(place)).min().unwrap_or(0)
    }

    /// Counts a key `times` times more.
    pub fn add(&mut self, key: u64, times: u32) {
        // Only counters that a larger count proves too low are raised; the estimate is the same, and others' stay lower.
        let count = self.count(key).saturating_add(times).min(self.most());
        for place in self.places(key) {
            if self.at(place) < count {
                self.set(place, count);
            }
        }
    }

    /// Makes the key's count lower by one, where it is not zero.
    pub fn take_one(&mut self, key: u64) {
        let count = self.count(key).saturating_sub(1);
        for place in self.places(key) {
            if self.at(place) > count {
                self.set(place, count);
            }
        }
    }

    /// Halves all counts.
    pub fn halve(&mut self) {
        let mut keep = 0u64;
        for counter in 0..64 / self.bits {
            keep |= u64::from(self.most() >> 1) << (counter * self.bits);
        }
        self.words.iter_mut().for_each(|word| *word = (*word >> 1) & keep);
    }

    /// Bytes of the counters.
    pub fn memory_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_never_too_low_and_rarely_too_high_at_the_size_it_was_made_for() {
        let keys = 10_000u64;
        let mut filter = CountingFilter::new(CountingFilter::counters_for(keys, 0.001), 4);
        assert!((20.0..21.0).contains(&(CountingFilter::counters_for(keys, 0.001) / keys as f64)), "k = 4, p = 0.1 %");
        for key in 0..keys {
            filter.add(key, (key % 7) as u32);
        }
        let wrong = (0..keys).filter(|&key| filter.count(key) != (key % 7) as u32).count();
        assert!((0..keys).all(|key| filter.count(key) >= (key % 7) as u32));
        assert!(
            wrong < 100,
            "{wrong} of {keys} keys, of which a tenth of a percent are allowed if lines were filled evenly"
        );
    }

    #[test]
    fn a_full_counter_stays_full_and_all_are_halved() {
        for bits in [4, 16] {
            let mut filter = CountingFilter::new(1000.0, bits);
            filter.add(1, 9);
            filter.add(2, u32::MAX);
            assert_eq!((filter.count(1), filter.count(2)), (9, filter.most()), "{bits} bits");
            filter.halve();
            assert_eq!((filter.count(1), filter.count(2)), (4, filter.most() / 2), "{bits} bits");
            filter.take_one(1);
            assert_eq!(filter.count(1), 3);
        }
    }
}
