//! Hotness counters: how often each 4 KiB piece of a 2 MiB page was used, as far as it was counted.
//!
//! In: pages. Out: their counters, incremented, read, halved. Must not: decide what is counted, or time it.
//!
//! The machine keeps the counters behind PMD tables; the host keeps 512 of them for each 2 MiB page that was ever counted
//! (`full`), or for each PMD table (`literal`), so that memory follows what is used.

use terrace_core::units::BLOCK_SHIFT;

use super::spec::{Layout, Width};
use super::tables::{ENTRIES, REGION_SHIFT};

const NONE: u32 = u32::MAX;

/// The values, in cells of the width.
#[derive(Clone, Debug)]
enum Values {
    Eight(Vec<u8>),
    Sixteen(Vec<u16>),
    SixtyFour(Vec<u64>),
}

/// The counters.
#[derive(Clone, Debug)]
pub struct Counters {
    layout: Layout,
    width: Width,
    /// Pages to a group of 512 counters, by shift.
    shift: u32,
    slots: Vec<u32>,
    free: Vec<u32>,
    values: Values,
}

impl Counters {
    /// Counters that are all zero.
    pub fn new(layout: Layout, width: Width) -> Counters {
        let values = match width {
            Width::W8 => Values::Eight(Vec::new()),
            Width::W16 => Values::Sixteen(Vec::new()),
            Width::W64 => Values::SixtyFour(Vec::new()),
        };
        let shift = if layout == Layout::Full { BLOCK_SHIFT } else { REGION_SHIFT };
        Counters { layout, width, shift, slots: Vec::new(), free: Vec::new(), values }
    }

    /// Bytes of counters behind one PMD table.
    pub const fn region_bytes(layout: Layout, width: Width) -> u64 {
        let counters = match layout {
            Layout::Full => 1 << REGION_SHIFT,
            Layout::Literal => ENTRIES as u64,
        };
        counters * width.bytes()
    }

    /// The layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The width.
    pub fn width(&self) -> Width {
        self.width
    }

    /// The place of a page's counter among those of its PMD table.
    #[inline]
    pub fn index(&self, page: u32) -> u32 {
        match self.layout {
            Layout::Full => page & ((1 << REGION_SHIFT) - 1),
            Layout::Literal => page & (ENTRIES as u32 - 1),
        }
    }

    /// The line of a page's counter, counted from the first behind its PMD table.
    #[inline]
    pub fn line(&self, page: u32) -> u64 {
        u64::from(self.index(page)) * self.width.bytes() / 64
    }

    /// Counts a use of the page; at its largest value a counter stays.
    #[inline]
    pub fn increment(&mut self, page: u32) {
        let slot = self.slot(page);
        let at = slot as usize * ENTRIES + page as usize % ENTRIES;
        match &mut self.values {
            Values::Eight(values) => values[at] = values[at].saturating_add(1),
            Values::Sixteen(values) => values[at] = values[at].saturating_add(1),
            Values::SixtyFour(values) => values[at] = values[at].saturating_add(1),
        }
    }

    /// The value of a page's counter.
    pub fn get(&self, page: u32) -> u64 {
        let Some(slot) = self.slots.get((page >> self.shift) as usize).copied().filter(|&slot| slot != NONE) else {
            return 0;
        };
        let at = slot as usize * ENTRIES + page as usize % ENTRIES;
        match &self.values {
            Values::Eight(values) => u64::from(values[at]),
            Values::Sixteen(values) => u64::from(values[at]),
            Values::SixtyFour(values) => values[at],
        }
    }

    /// Halves, rounding down, the 512 counters that the 2 MiB page of `page` uses. Returns whether any is left above zero.
    pub fn halve(&mut self, page: u32) -> bool {
        let Some(slot) = self.slots.get((page >> self.shift) as usize).copied().filter(|&slot| slot != NONE) else {
            return false;
        };
        let range = slot as usize * ENTRIES..(slot as usize + 1) * ENTRIES;
        macro_rules! halve {
            ($values:expr) => {
                $values[range].iter_mut().fold(false, |left, value| {
                    *value >>= 1;
                    left | (*value > 0)
                })
            };
        }
        match &mut self.values {
            Values::Eight(values) => halve!(values),
            Values::Sixteen(values) => halve!(values),
            Values::SixtyFour(values) => halve!(values),
        }
    }

    /// Zeroes the counters of a freed 2 MiB page; shared ones stay.
    pub fn forget(&mut self, page: u32) {
        if self.layout == Layout::Literal {
            return;
        }
        let at = (page >> self.shift) as usize;
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| **slot != NONE) {
            self.free.push(std::mem::replace(slot, NONE));
        }
    }

    /// Asks the host to bring the page's counter into its cache.
    #[inline]
    pub fn prefetch(&self, page: u32) {
        let Some(&slot) = self.slots.get((page >> self.shift) as usize) else { return };
        if slot != NONE {
            let at = slot as usize * ENTRIES + page as usize % ENTRIES;
            match &self.values {
                Values::Eight(values) => terrace_core::prefetch::prefetch(&values[at]),
                Values::Sixteen(values) => terrace_core::prefetch::prefetch(&values[at]),
                Values::SixtyFour(values) => terrace_core::prefetch::prefetch(&values[at]),
            }
        }
    }

    /// Bytes this structure occupies on the host.
    pub fn host_bytes(&self) -> usize {
        let values = match &self.values {
            Values::Eight(values) => values.capacity(),
            Values::Sixteen(values) => values.capacity() * 2,
            Values::SixtyFour(values) => values.capacity() * 8,
        };
        values + self.slots.capacity() * 4
    }

    #[inline]
    fn slot(&mut self, page: u32) -> u32 {
        let at = (page >> self.shift) as usize;
        match self.slots.get(at) {
            Some(&slot) if slot != NONE => slot,
            _ => self.add_slot(at),
        }
    }

    #[cold]
    fn add_slot(&mut self, at: usize) -> u32 {
        if self.slots.len() <= at {
            self.slots.resize(at + 1, NONE);
        }
        let slot = match self.free.pop() {
            Some(slot) => {
                let range = slot as usize * ENTRIES..(slot as usize + 1) * ENTRIES;
                match &mut self.values {
                    Values::Eight(values) => values[range].fill(0),
                    Values::Sixteen(values) => values[range].fill(0),
                    Values::SixtyFour(values) => values[range].fill(0),
                }
                slot
            }
            None => {
                let length = |old: usize| old + ENTRIES;
                match &mut self.values {
                    Values::Eight(values) => values.resize(length(values.len()), 0),
                    Values::Sixteen(values) => values.resize(length(values.len()), 0),
                    Values::SixtyFour(values) => values.resize(length(values.len()), 0),
                }
                (match &self.values {
                    Values::Eight(values) => values.len(),
                    Values::Sixteen(values) => values.len(),
                    Values::SixtyFour(values) => values.len(),
                } / ENTRIES
                    - 1) as u32
            }
        };
        self.slots[at] = slot;
        slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_saturate_and_halve_exactly_at_every_width() {
        for (width, pushes) in [(Width::W8, 300u64), (Width::W16, 70_000), (Width::W64, 70_000)] {
            let mut counters = Counters::new(Layout::Full, width);
            for _ in 0..pushes {
                counters.increment(1000);
            }
            counters.increment(1001);
            let expected = pushes.min(width.most());
            assert_eq!(counters.get(1000), expected, "{width:?}");
            assert!(counters.halve(1023));
            assert_eq!((counters.get(1000), counters.get(1001)), (expected / 2, 0));
            for round in 0..64 {
                let before = counters.get(1000);
                counters.halve(1000);
                assert_eq!(counters.get(1000), before / 2, "{width:?} round {round}");
            }
            assert!(!counters.halve(1000));
        }
    }

    #[test]
    fn the_literal_layout_adds_up_all_huge_pages_of_a_gibibyte_and_the_full_one_does_not() {
        let mut full = Counters::new(Layout::Full, Width::W16);
        let mut literal = Counters::new(Layout::Literal, Width::W16);
        for block in 0..512u32 {
            full.increment((block << 9) + 3);
            literal.increment((block << 9) + 3);
        }
        literal.increment((1 << 18) + 3);
        assert_eq!((full.get(3), full.get(512 + 3)), (1, 1));
        assert_eq!((literal.get(3), literal.get(512 + 3)), (512, 512), "aliased");
        assert_eq!(literal.get((1 << 18) + 3), 1, "another PMD table has counters of its own");
    }

    #[test]
    fn sizes_are_those_of_the_specification() {
        let bytes = |layout, width| Counters::region_bytes(layout, width);
        assert_eq!(bytes(Layout::Full, Width::W8), 256 << 10);
        assert_eq!(bytes(Layout::Full, Width::W16), 512 << 10);
        assert_eq!(bytes(Layout::Full, Width::W64), 2 << 20);
        assert_eq!(bytes(Layout::Literal, Width::W64), 4096);
        let share = |width| bytes(Layout::Full, width) as f64 / f64::from(1 << 30) * 100.0;
        assert!((share(Width::W8) - 0.024).abs() < 0.001 && (share(Width::W64) - 0.195).abs() < 0.001);
    }

    #[test]
    fn host_memory_follows_the_pages_counted_and_a_page_that_went_leaves_nothing() {
        let mut counters = Counters::new(Layout::Full, Width::W16);
        counters.increment(1 << 20);
        assert!(counters.host_bytes() < 16 << 10, "{}", counters.host_bytes());
        counters.forget(1 << 20);
        assert_eq!(counters.get(1 << 20), 0);
        counters.increment((1 << 20) + 512);
        assert_eq!(counters.get((1 << 20) + 512), 1, "a slot used again starts at zero");
    }
}
