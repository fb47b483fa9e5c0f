//! Memory Mode: fast memory as a direct-mapped, write-back cache of slow memory, in hardware.
//!
//! In: lines by page and place. Out: hit or miss, and what each cost in transfers. Must not: see a policy, or move a page.
//!
//! Facts (reference section 12): line 64 B, direct-mapped, index = physical line modulo the cache's lines; every access
//! probes DRAM first; a read hit moves 1 line, a clean miss 3, a dirty one 4; a write 2, 4 and 5. The operating system sees
//! only the slow memory. Where pages lie physically decides which of them collide: by default at random, as after a long
//! uptime; contiguous on request.

use terrace_core::random::mix;

use crate::cache::PAGE_LINES;

/// How pages are spread over physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Placement {
    /// Each page anywhere: sets fill as balls fall into bins.
    #[default]
    Random,
    /// Page numbers are frame numbers.
    Contiguous,
}

/// Lines moved by one access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Lines read from fast memory.
    pub fast_read: u32,
    /// Lines written to fast memory.
    pub fast_written: u32,
    /// Lines read from slow memory.
    pub slow_read: u32,
    /// Lines written to slow memory.
    pub slow_written: u32,
    /// Whether the line was in fast memory.
    pub hit: bool,
}

const EMPTY: u32 = u32::MAX;
const DIRTY: u32 = 1 << 31;

/// The cache.
#[derive(Clone, Debug)]
pub struct MemoryMode {
    /// The page whose line a slot holds, and its dirty bit.
    slots: Vec<u32>,
    pages: u64,
    slow_pages: u64,
    placement: Placement,
    seed: u64,
    /// Accesses served by fast memory.
    pub hits: u64,
    /// Accesses that went to slow memory.
    pub misses: u64,
}

impl MemoryMode {
    /// A cache of `fast_pages` before `slow_pages` of memory.
    pub fn new(fast_pages: u64, slow_pages: u64, placement: Placement, seed: u64) -> MemoryMode {
        let pages = fast_pages.max(1);
        let slots = vec![EMPTY; (pages * PAGE_LINES) as usize];
        MemoryMode { slots, pages, slow_pages: slow_pages.max(pages), placement, seed, hits: 0, misses: 0 }
    }

    /// One access that missed the processor's caches.
    #[inline]
    pub fn access(&mut self, page: u32, line: u32, write: bool) -> Transfers {
        let frame = match self.placement {
            Placement::Contiguous => u64::from(page),
            Placement::Random => {
                let mixed = mix(u64::from(page) ^ self.seed);
                ((u128::from(mixed) * u128::from(self.slow_pages)) >> 64) as u64
            }
        };
        let index = (frame % self.pages) * PAGE_LINES + u64::from(line);
        let slot = &mut self.slots[index as usize];
        let hit = *slot != EMPTY && *slot & !DIRTY == page;
        let dirty_victim = !hit && *slot != EMPTY && *slot & DIRTY != 0;
        let kept = if hit { *slot & DIRTY } else { 0 };
        *slot = page | kept | if write { DIRTY } else { 0 };
        if hit {
            self.hits += 1;
        } else {
            self.misses += 1;
        }
        Transfers {
            fast_read: 1,
            fast_written: u32::from(!hit) + u32::from(write),
            slow_read: u32::from(!hit),
            slow_written: u32::from(dirty_victim),
            hit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steady_misses(placement: Placement, fast: u64, pages: u32) -> f64 {
        let mut cache = MemoryMode::new(fast, 8 * fast, placement, 7);
        let mut state = 3u64;
        let mut run = |count: u32| {
            for _ in 0..count {
                state = mix(state);
                cache.access((state % u64::from(pages)) as u32, 0, false);
            }
            (cache.hits, cache.misses)
        };
        let before = run(20 * pages);
        let after = run(40 * pages);
        (after.1 - before.1) as f64 / f64::from(40 * pages)
    }

    #[test]
    fn a_working_set_of_the_cache_size_has_no_conflicts_if_contiguous_and_36_8_percent_if_random() {
        assert_eq!(steady_misses(Placement::Contiguous, 4096, 4096), 0.0);
        let random = steady_misses(Placement::Random, 4096, 4096);
        // Frames fall into 4096 sets like balls into bins: a share 1 - 1/e of the sets is used, each holding one page.
        assert!((random - (-1.0f64).exp()).abs() < 0.02, "{random}");
    }

    #[test]
    fn transfers_are_those_of_the_published_study() {
        let mut cache = MemoryMode::new(1, 8, Placement::Contiguous, 0);
        let total = |t: Transfers| t.fast_read + t.fast_written + t.slow_read + t.slow_written;
        assert_eq!(total(cache.access(0, 0, false)), 3, "read miss, clean");
        assert_eq!(total(cache.access(0, 0, false)), 1, "read hit");
        assert_eq!(total(cache.access(0, 0, true)), 2, "write hit");
        assert_eq!(total(cache.access(1, 0, false)), 4, "read miss, dirty");
        assert_eq!(total(cache.access(2, 0, true)), 4, "write miss, clean");
        assert_eq!(total(cache.access(3, 0, true)), 5, "write miss, dirty");
        assert_eq!((cache.hits, cache.misses), (2, 4));
    }
}
