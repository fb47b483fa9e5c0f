//! How often pages would be missed by least-recently-used fast memory of any size, from how long they go unused.
//!
//! In: the pages of accesses, in order. Out: the share of accesses that would be slow, for each size. Must not: know of policies, moves or time.
//!
//! The kinetic model of average eviction time (Hu et al., Kinetic Modeling of Data Eviction in Cache, USENIX ATC 2016): a page that is not used again
//! sinks through a cache of `c` pages in `T` accesses, where the sum of `P(t)` for `t` below `T` is `c` and `P(t)` the share of accesses whose page is
//! not used again within `t`. It is then evicted, so that the share of misses is `P(T)`. It takes one pass, and memory for a histogram.
//!
//! It is a cheap first answer, and a check of the dear one: no policy that goes by recency alone does better for long, so a replay that says so is in doubt.

use std::collections::BTreeMap;

/// Parts into which each doubling of a reuse time is cut: a bin is then at most an eighth of its time wide.
const PARTS: u64 = 8;

/// Times between two accesses to a page, counted in accesses to any.
#[derive(Clone, Debug, Default)]
pub struct Reuses {
    last: BTreeMap<u64, u64>,
    accesses: u64,
    bins: Vec<u64>,
}

fn bin(time: u64) -> usize {
    if time < 2 * PARTS {
        return time as usize;
    }
    let doubling = u64::from(time.ilog2());
    let part = (time >> (doubling - u64::from(PARTS.ilog2()))) - PARTS;
    ((doubling - u64::from(PARTS.ilog2())) * PARTS + PARTS + part) as usize
}

/// The least time of a bin.
fn least(bin: usize) -> u64 {
    let bin = bin as u64;
    if bin < 2 * PARTS {
        return bin;
    }
    let doubling = (bin - PARTS) / PARTS + u64::from(PARTS.ilog2());
    (PARTS + (bin - PARTS) % PARTS) << (doubling - u64::from(PARTS.ilog2()))
}

impl Reuses {
    /// The reuse times of these accesses.
    pub fn of(pages: impl Iterator<Item = u64>) -> Reuses {
        let mut reuses = Reuses::default();
        for page in pages {
            if let Some(before) = reuses.last.insert(page, reuses.accesses) {
                let bin = bin(reuses.accesses - before);
                if reuses.bins.len() <= bin {
                    reuses.bins.resize(bin + 1, 0);
                }
                reuses.bins[bin] += 1;
            }
            reuses.accesses += 1;
        }
        reuses
    }

    /// Pages that were accessed at all.
    pub fn pages(&self) -> u64 {
        self.last.len() as u64
    }

    /// The share of accesses that least-recently-used memory of `pages` pages would not serve. First accesses are served: a page is born where
    /// there is room, and is no miss.
    pub fn slow_share(&self, pages: f64) -> f64 {
        if self.accesses == 0 || pages >= self.pages() as f64 {
            return 0.0;
        }
        let all = self.accesses as f64;
        // Accesses whose page is not used again within the time of the bin, the last ones of each page among them.
        let mut beyond = all;
        let mut sunk = 0.0;
        for (place, count) in self.bins.iter().enumerate() {
            let (from, until) = (least(place), least(place + 1));
            let width = (until - from) as f64;
            // Within a bin the times are as even as can be.
            let after = beyond - *count as f64;
            let mean = f64::midpoint(beyond, after) / all;
            if sunk + mean * width >= pages {
                let part = ((pages - sunk) / (mean * width).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
                let at = beyond - *count as f64 * part;
                return ((at - self.pages() as f64) / all).max(0.0);
            }
            sunk += mean * width;
            beyond = after;
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::random::SplitMix64;

    #[test]
    fn bins_follow_each_other_without_gaps() {
        assert!((0..100_000u64).all(|time| least(bin(time)) <= time && time < least(bin(time) + 1)));
    }

    /// Misses of exact least-recently-used memory, first accesses aside.
    fn exact(pages: &[u64], size: usize) -> f64 {
        let (mut stack, mut misses) = (Vec::<u64>::new(), 0);
        for page in pages {
            if let Some(depth) = stack.iter().rev().position(|other| other == page) {
                misses += usize::from(depth >= size);
                let at = stack.len() - 1 - depth;
                stack.remove(at);
            }
            stack.push(*page);
        }
        misses as f64 / pages.len() as f64
    }

    #[test]
    fn it_says_what_exact_recency_says() {
        let mut random = SplitMix64::new(7);
        // Nine accesses of ten to a tenth of 400 pages.
        let pages: Vec<u64> =
            (0..40_000).map(|_| if random.below(10) < 9 { random.below(40) } else { 40 + random.below(360) }).collect();
        let reuses = Reuses::of(pages.iter().copied());
        for size in [20, 50, 100, 200, 300, 380] {
            let (model, truth) = (reuses.slow_share(size as f64), exact(&pages, size));
            assert!((model - truth).abs() < 0.03, "{size}: {model} for {truth}");
        }
        assert_eq!(reuses.slow_share(400.0), 0.0);
    }

    #[test]
    fn what_is_used_once_is_never_missed() {
        let reuses = Reuses::of(0..1000);
        assert!((1..1000).all(|size| reuses.slow_share(f64::from(size)) == 0.0));
        assert_eq!(Reuses::default().slow_share(1.0), 0.0);
    }
}
