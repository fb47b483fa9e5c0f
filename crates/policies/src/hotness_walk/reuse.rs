//! What pages of some heat get at the next walk, as it was found.
//!
//! In: how many pages had which heat at a walk, and what the next one found of them. Out: how much of what their heat promises comes. Must
//! not: know what heat is made of, or rank.
//!
//! A steady page's heat is twice what comes in a walk, so half of it is what its heat promises. Two kinds of pages do not keep that: those
//! that are used once, as a program does that writes through its memory; and those that were counted by chance, of which the hottest
//! were lucky. Of both the next walk tells.

use crate::hotness_walk::lists::{TOP_BIN, bin_of};

const BINS: usize = TOP_BIN as usize + 1;

/// By bin of heat. Counts are smoothed as heats are: halved at each walk.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// Pages of which the walk now under way tells.
    asked: [f64; BINS],
    pages: [f64; BINS],
    /// The heat that came to them.
    found: [f64; BINS],
}

impl Default for Again {
    fn default() -> Again {
        Again { asked: [0.0; BINS], pages: [0.0; BINS], found: [0.0; BINS] }
    }
}

impl Again {
    /// Pages of a bin that the walk will report.
    pub(crate) fn ask(&mut self, bin: u32, pages: u64) {
        self.asked[bin as usize] += pages as f64;
    }

    /// A page of a bin got so much heat.
    pub(crate) fn find(&mut self, bin: u32, heat: u16) {
        self.found[bin as usize] += f64::from(heat);
    }

    /// The walk is over.
    pub(crate) fn end(&mut self) {
        for bin in 0..BINS {
            self.pages[bin] += std::mem::take(&mut self.asked[bin]);
        }
    }

    /// A walk begins: what is known counts half as much after it.
    pub(crate) fn begin(&mut self) {
        for kept in self.pages.iter_mut().chain(&mut self.found) {
            *kept /= 2.0;
        }
    }

    /// What comes at the next walk to a page of this heat, over what its heat promises. 1 where no page had such a heat.
    pub(crate) fn of(&self, heat: f64) -> f64 {
        let bin = bin_of(heat.clamp(0.0, f64::from(u16::MAX)) as u16) as usize;
        // Less than a page is what is left of pages long ago.
        if heat <= 0.0 || self.pages[bin] < 1.0 { 1.0 } else { self.found[bin] / self.pages[bin] / (heat / 2.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_held_against_half_of_the_heat() {
        let mut again = Again::default();
        assert_eq!(again.of(16.0), 1.0, "nothing is known");
        // 40 pages of heat 16, of which the next walk finds ten with 16 each: four a page, where eight were promised.
        again.ask(bin_of(16), 40);
        (0..10).for_each(|_| again.find(bin_of(16), 16));
        again.end();
        assert_eq!((again.of(16.0), again.of(24.0), again.of(200.0)), (0.5, 4.0 / 12.0, 1.0));
        // The next finds none of 20: what was known counts half of that.
        again.begin();
        again.ask(bin_of(16), 20);
        again.end();
        assert_eq!(again.of(16.0), 0.25);
        assert_eq!(again.of(0.0), 1.0);
    }
}
