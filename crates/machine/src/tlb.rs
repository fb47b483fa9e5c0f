//! Address translation of one core: two levels of TLB, entries of 4 KiB and 2 MiB.
//!
//! In: page numbers and whether they are mapped huge. Out: where the translation was found. Must not: hold page tables,
//! or know costs; a walk's price is the preset's, and a walker with tables and counters of its own can stand behind
//! [`Translation::Walk`] without a change here.

use crate::associative::Associative;
use crate::preset::TlbSpec;
use crate::scale::Scale;
use terrace_core::units::BLOCK_SHIFT;

/// Marks keys of 2 MiB entries in the shared second level. Page numbers stay below it: 2^31 pages are 8 TiB.
const HUGE_KEY: u32 = 1 << 31;

/// Where a translation was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Translation {
    /// In the first level.
    First = 0,
    /// In the second level.
    Second = 1,
    /// Nowhere: the page table is walked.
    Walk = 2,
}

/// The TLBs of one core.
#[derive(Clone, Debug)]
pub struct Tlb {
    first_small: Associative,
    first_huge: Associative,
    second: Associative,
    /// The page of the latest translation: programs stay on a page for several accesses.
    last: u32,
}

impl Tlb {
    /// TLBs of the size the preset states, shrunk by the scale to no less than one set each, so that their reach keeps
    /// its share of the footprint.
    pub fn new(spec: &TlbSpec, scale: Scale) -> Tlb {
        let table = |level: crate::preset::TlbLevel| {
            Associative::new(scale.count(u64::from(level.entries), u64::from(level.ways)), level.ways)
        };
        Tlb {
            first_small: table(spec.first_small),
            first_huge: table(spec.first_huge),
            second: table(spec.second),
            last: u32::MAX,
        }
    }

    /// Translates a page, and fills what missed.
    #[inline(always)]
    pub fn translate(&mut self, page: u32, huge: bool) -> Translation {
        if page == self.last {
            return Translation::First;
        }
        self.last = page;
        let (first, key) =
            if huge { (&mut self.first_huge, (page >> BLOCK_SHIFT) | HUGE_KEY) } else { (&mut self.first_small, page) };
        let set = first.set_of(u64::from(key));
        let missed = !first.touch(set, key, true);
        let set = self.second.set_of(u64::from(key));
        let found = self.second.touch(set, key, missed);
        match (missed, found) {
            (false, _) => Translation::First,
            (true, true) => Translation::Second,
            (true, false) => Translation::Walk,
        }
    }

    /// Forgets one page, or the whole huge page it belongs to.
    pub fn flush_page(&mut self, page: u32, huge: bool) {
        let key = if huge { (page >> BLOCK_SHIFT) | HUGE_KEY } else { page };
        let first = if huge { &mut self.first_huge } else { &mut self.first_small };
        first.remove(first.set_of(u64::from(key)), key);
        self.second.remove(self.second.set_of(u64::from(key)), key);
        self.last = u32::MAX;
    }

    /// Forgets everything.
    pub fn flush(&mut self) {
        self.first_small.clear();
        self.first_huge.clear();
        self.second.clear();
        self.last = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Machine;

    fn tlb() -> Tlb {
        Tlb::new(&Machine::preset("optane-6252").unwrap().processor.tlb, Scale::FULL)
    }

    fn walks(tlb: &mut Tlb, pages: impl Iterator<Item = u32>, huge: bool) -> usize {
        pages.filter(|&page| tlb.translate(page, huge) == Translation::Walk).count()
    }

    #[test]
    fn what_fits_walks_once_and_huge_entries_reach_512_times_as_far() {
        let mut small = tlb();
        assert_eq!(walks(&mut small, 0..1000, false), 1000);
        assert!(walks(&mut small, 0..1000, false) < 50, "1000 pages fit 1536 entries");
        // 1000 huge pages: touched once a block they walk 1000 times, and then hardly ever over 512,000 pages.
        let mut huge = tlb();
        assert_eq!(walks(&mut huge, (0..1000).map(|block| block << BLOCK_SHIFT), true), 1000);
        assert!(walks(&mut huge, (0..512_000).step_by(7), true) < 50);
    }

    #[test]
    fn uniform_access_hits_in_proportion_to_the_reach() {
        // 1536 entries for 15,360 pages at random: one access in ten is found.
        let mut tlb = tlb();
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % 15_360) as u32
        };
        let warm: Vec<u32> = (0..50_000).map(|_| next()).collect();
        walks(&mut tlb, warm.into_iter(), false);
        let pages: Vec<u32> = (0..200_000).map(|_| next()).collect();
        let share = walks(&mut tlb, pages.into_iter(), false) as f64 / 200_000.0;
        assert!((share - 0.9).abs() < 0.01, "{share}");
    }

    #[test]
    fn a_flush_makes_the_next_translation_walk() {
        let mut tlb = tlb();
        tlb.translate(7, false);
        tlb.translate(1024, true);
        assert_eq!(tlb.translate(7, false), Translation::First);
        tlb.flush_page(7, false);
        assert_eq!(tlb.translate(7, false), Translation::Walk);
        tlb.flush_page(1030, true);
        assert_eq!(tlb.translate(1024, true), Translation::Walk);
        tlb.flush();
        assert_eq!(tlb.translate(7, false), Translation::Walk);
    }
}
