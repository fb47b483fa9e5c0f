//! The histogram of access counts in powers of two, and the thresholds drawn from it.
//!
//! In: pages entering, leaving and changing bins; coolings. Out: pages by bin, and the lowest bin that still fits the fast
//! memory. Must not: hold a page, or be rebuilt: halving every count shifts the histogram by one bin, and that is all
//! that cooling does to it.
//!
//! Source: MEMTIS's 16 bins (code: bin = floor(log2(count + 1)), at most 15), used by FlexMem and TieredMMS too. A value here
//! is the count plus one, so that it is at least 1 and halving it moves it down by exactly one bin. MEMTIS halves the count
//! itself, which differs by at most 1 where one sample adds 512.

use terrace_core::policy::Metric;

/// Bins the papers see; the last holds all counts above.
pub const BINS: usize = 16;

/// Bins kept inside, one for each bit of a value, so that a cooling of the last visible bin is exact too.
pub const FINE_BINS: usize = 32;

/// The fine bin of a value, which is a count plus one: floor(log2(value)).
pub const fn fine_bin(value: u32) -> usize {
    (u32::BITS - 1 - if value == 0 { 31 } else { value.leading_zeros() }) as usize
}

/// The bin the papers see for a fine one.
pub const fn visible_bin(fine: usize) -> usize {
    if fine < BINS { fine } else { BINS - 1 }
}

/// Pages by fine bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bins {
    fine: [u64; FINE_BINS],
}

impl Bins {
    /// Enters pages.
    pub fn add(&mut self, fine: usize, pages: u64) {
        self.fine[fine] += pages;
    }

    /// Takes pages out.
    pub fn take(&mut self, fine: usize, pages: u64) {
        debug_assert!(self.fine[fine] >= pages, "bin {fine} holds {}, not {pages}", self.fine[fine]);
        self.fine[fine] = self.fine[fine].saturating_sub(pages);
    }

    /// Every value was halved: each bin's pages are now one bin lower, those of the lowest stay there.
    pub fn cool(&mut self) {
        let lowest = self.fine[0] + self.fine[1];
        self.fine.copy_within(1.., 0);
        self.fine[0] = lowest;
        self.fine[FINE_BINS - 1] = 0;
    }

    /// Every value was halved, and those of 1 became 0, which is in no bin: for counts that are not one too large.
    pub fn cool_away(&mut self) {
        self.fine.copy_within(1.., 0);
        self.fine[FINE_BINS - 1] = 0;
    }

    /// Takes over all pages of another histogram and leaves it empty.
    pub fn absorb(&mut self, other: &mut Bins) {
        for (into, from) in self.fine.iter_mut().zip(&mut other.fine) {
            *into += std::mem::take(from);
        }
    }

    /// All pages.
    pub fn total(&self) -> u64 {
        self.fine.iter().sum()
    }

    /// Adds this histogram to one of visible bins.
    pub fn add_to(&self, visible: &mut [u64; BINS]) {
        for (fine, pages) in self.fine.iter().enumerate() {
            visible[visible_bin(fine)] += pages;
        }
    }
}

/// The names under which policies report pages by bin.
const METRIC_NAMES: [&str; BINS] = [
    "bin_00_pages",
    "bin_01_pages",
    "bin_02_pages",
    "bin_03_pages",
    "bin_04_pages",
    "bin_05_pages",
    "bin_06_pages",
    "bin_07_pages",
    "bin_08_pages",
    "bin_09_pages",
    "bin_10_pages",
    "bin_11_pages",
    "bin_12_pages",
    "bin_13_pages",
    "bin_14_pages",
    "bin_15_pages",
];

/// The histogram as figures of a policy, for plots of bin sizes over time.
pub fn metrics(bins: &[u64; BINS]) -> impl Iterator<Item = Metric> + '_ {
    METRIC_NAMES.iter().zip(bins).map(|(name, &pages)| Metric { name, value: pages as f64 })
}

/// How far the hottest bins fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The lowest bin that still fits, [`BINS`] if not even the highest does.
    pub lowest: usize,
    /// Pages in the bins that fit.
    pub pages: u64,
}

/// Adds up bins from the hottest down while the sum stays within `capacity` pages. Shared by MEMTIS, FlexMem and
/// TieredMMS (Algorithm 1 there).
pub fn fit(bins: &[u64; BINS], capacity: u64) -> Fit {
    let mut pages = 0;
    for (bin, &size) in bins.iter().enumerate().rev() {
        if pages + size > capacity {
            return Fit { lowest: bin + 1, pages };
        }
        pages += size;
    }
    Fit { lowest: 0, pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_their_bins() {
        let check = |value: u32, fine: usize| assert_eq!(fine_bin(value), fine, "value {value}");
        check(1, 0);
        check(2, 1);
        check(3, 1);
        check(4, 2);
        check(513, 9);
        check(u32::MAX, 31);
        assert_eq!((visible_bin(15), visible_bin(31)), (15, 15));
    }

    #[test]
    fn shifting_equals_halving_every_value_and_counting_anew() {
        let values = [1u32, 1, 2, 3, 5, 8, 513, 1025, 65_535, 70_000, 1 << 20, u32::MAX];
        let count = |values: &[u32]| {
            let mut bins = Bins::default();
            values.iter().for_each(|&value| bins.add(fine_bin(value), 1));
            bins
        };
        let mut shifted = count(&values);
        let mut halved = values;
        for _ in 0..40 {
            shifted.cool();
            halved.iter_mut().for_each(|value| *value = (*value / 2).max(1));
            assert_eq!(shifted, count(&halved));
        }
    }

    #[test]
    fn the_hottest_bins_that_fit() {
        let check = |bins: [u64; BINS], capacity, lowest, pages| {
            assert_eq!(fit(&bins, capacity), Fit { lowest, pages }, "{bins:?} in {capacity}");
        };
        let mut bins = [0; BINS];
        (bins[9], bins[11], bins[15]) = (100, 50, 10);
        check(bins, 160, 0, 160);
        check(bins, 159, 10, 60);
        check(bins, 60, 10, 60);
        check(bins, 59, 12, 10);
        check(bins, 9, BINS, 0);
    }
}
