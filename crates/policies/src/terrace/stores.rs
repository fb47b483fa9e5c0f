//! How many accesses of memory a sampled store stands for.
//!
//! In: samples of loads and of stores, and the accesses of memory that the processor counted. Out: a share. Must not: look at a page.
//!
//! A sampled load reached memory. A sampled store is any that retired, and most of them hit a cache: eight stores fill a line that is fetched once.
//! What the processor counted beyond the loads were stores, so `share = (counted - loads) / stores`. Without it a program that writes,
//! as all do while they load their data, is not seen at all.

/// What an interval leaves of the sums: a half-life of 23 intervals.
const KEEP: f64 = 0.97;

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub(super) struct Stores {
    counted: f64,
    loads: f64,
    stores: f64,
    share: f64,
}

impl Stores {
    /// Takes in the accesses of memory that the processor counted.
    pub(super) fn count(&mut self, accesses: u64) {
        self.counted += accesses as f64;
    }

    /// Takes in the number of loads that sampled ones stand for.
    pub(super) fn load(&mut self, period: f64) {
        self.loads += period;
    }

    /// Takes in the number of stores that sampled ones stand for. Returns how many of them reached memory.
    pub(super) fn store(&mut self, period: f64) -> f64 {
        self.stores += period;
        period * self.share
    }

    /// An interval is over.
    pub(super) fn close(&mut self) {
        if self.stores > 0.0 {
            self.share = ((self.counted - self.loads) / self.stores).clamp(0.0, 1.0);
        }
        [&mut self.counted, &mut self.loads, &mut self.stores].into_iter().for_each(|sum| *sum *= KEEP);
    }

    /// Share of retired stores that reach memory.
    pub(super) fn share(&self) -> f64 {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_stands_for_what_was_counted_beyond_the_loads() {
        let mut stores = Stores::default();
        assert_eq!(stores.store(1000.0), 0.0, "nothing was counted yet");
        for _ in 0..100 {
            // 1000 loads and 250 lines fetched by 2000 stores.
            stores.load(1000.0);
            stores.store(2000.0);
            stores.count(1250);
            stores.close();
        }
        assert!((stores.share() - 0.125).abs() < 0.002, "{}", stores.share());
        (0..400).for_each(|_| {
            stores.load(1000.0);
            stores.store(2000.0);
            stores.close();
        });
        assert_eq!(stores.share(), 0.0, "where nothing is counted stores say nothing");
    }
}
