//! Physical memory: one word a page that says where it lies and how it was used, and how full each tier is.
//!
//! In: pages placed, moved, removed, marked. Out: the words, for the driver's inner loop, and exact counts. Must not:
//! choose a tier; capacity is kept by refusing, never by moving something else.
//!
//! Pages are numbered densely by the driver; 512 consecutive numbers from a multiple of 512 are a block that one 2 MiB
//! entry can map.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, TierId};

/// What is known of a page. Two bytes, the only thing the inner loop reads: at 16 M pages they just fit a last-level
/// cache of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct PageWord(u16);

const TIER: u16 = TierId::MAX as u16 - 1;

impl PageWord {
    /// It is part of a huge page and was never touched, and what it stands for is still to be cleared: the next touch faults.
    pub const UNTOUCHED: u16 = 1 << 3;
    /// The page was accessed since the bit was cleared.
    pub const ACCESSED: u16 = 1 << 4;
    /// The page was written since it was last clean.
    pub const DIRTY: u16 = 1 << 5;
    /// The hint-fault scanner made it inaccessible: the next touch faults.
    pub const MARKED: u16 = 1 << 6;
    /// No memory behind it: the next touch faults.
    pub const ABSENT: u16 = 1 << 7;
    /// It lies in compressed memory: the next touch faults.
    pub const STORED: u16 = 1 << 8;
    /// It is mapped by a 2 MiB entry.
    pub const HUGE: u16 = 1 << 9;
    /// It is page cache of a file.
    pub const FILE: u16 = 1 << 10;
    /// It is on the active list.
    pub const ACTIVE: u16 = 1 << 11;
    /// It was found referenced once on the inactive list.
    pub const REFERENCED: u16 = 1 << 12;
    /// Reclaim moved it down and it has not come back.
    pub const DEMOTED: u16 = 1 << 13;
    /// It is mapped by the program: only these may be touched, scanned or moved.
    pub const MAPPED: u16 = 1 << 14;
    /// Every use of it is to be seen: it is made inaccessible again after each fault.
    pub const WATCHED: u16 = 1 << 15;
    /// Any of these makes a touch leave the fast path.
    pub const FAULTS: u16 = Self::MARKED | Self::ABSENT | Self::STORED | Self::UNTOUCHED;

    /// A page that is not mapped.
    pub const NONE: PageWord = PageWord(Self::ABSENT);

    /// The tier it lies in, or `None` without memory behind it.
    pub const fn tier(self) -> Option<TierId> {
        if self.0 & Self::ABSENT != 0 { None } else { Some(TierId((self.0 & TIER) as u8)) }
    }

    /// The tier's index; only meaningful where [`PageWord::ABSENT`] is not set.
    #[inline]
    pub const fn tier_index(self) -> usize {
        (self.0 & TIER) as usize
    }

    /// Whether any of the bits is set.
    #[inline]
    pub const fn has(self, bits: u16) -> bool {
        self.0 & bits != 0
    }

    /// The word with the bits set.
    #[inline]
    #[must_use]
    pub const fn with(self, bits: u16) -> PageWord {
        PageWord(self.0 | bits)
    }

    /// The word with the bits cleared.
    #[inline]
    #[must_use]
    pub const fn without(self, bits: u16) -> PageWord {
        PageWord(self.0 & !bits)
    }

    const fn in_tier(self, tier: TierId) -> PageWord {
        PageWord((self.0 & !(TIER | Self::ABSENT)) | tier.0 as u16)
    }
}

/// All pages and the tiers' fill.
#[derive(Clone, Debug)]
pub struct Memory {
    words: Vec<PageWord>,
    capacity: Vec<u64>,
    used: Vec<u64>,
    /// Tiers whose pages fault when touched.
    compressed: Vec<bool>,
}

impl Memory {
    /// Empty tiers with these capacities in pages; pages in a tier with `compressed[k]` fault when touched.
    pub fn new(capacity: Vec<u64>, compressed: Vec<bool>) -> Memory {
        let used = vec![0; capacity.len()];
        Memory { words: Vec::new(), capacity, used, compressed }
    }

    /// Makes room for page numbers below `pages`.
    pub fn grow(&mut self, pages: usize) {
        if self.words.len() < pages {
            self.words.resize(pages.next_multiple_of(BLOCK_PAGES as usize), PageWord::NONE);
        }
    }

    /// Page numbers there is room for; a multiple of 512.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Whether no page was ever mapped.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The words, for the inner loop.
    #[inline]
    pub fn words(&self) -> &[PageWord] {
        &self.words
    }

    /// The words, for the inner loop: it may set [`PageWord::ACCESSED`] and [`PageWord::DIRTY`], nothing else.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [PageWord] {
        &mut self.words
    }

    /// A page's word.
    #[inline]
    pub fn word(&self, page: u32) -> PageWord {
        self.words[page as usize]
    }

    /// Sets bits of a page.
    pub fn set(&mut self, page: u32, bits: u16) {
        debug_assert_eq!(bits & (PageWord::ABSENT | TIER), 0, "places change by place, move_to and remove only");
        let word = &mut self.words[page as usize];
        *word = word.with(bits);
    }

    /// Clears bits of a page.
    pub fn clear(&mut self, page: u32, bits: u16) {
        debug_assert_eq!(bits & (PageWord::ABSENT | TIER), 0, "places change by place, move_to and remove only");
        let word = &mut self.words[page as usize];
        *word = word.without(bits);
    }

    /// Pages in a tier.
    pub fn used(&self, tier: TierId) -> u64 {
        self.used[tier.index()]
    }

    /// Pages a tier can hold.
    pub fn capacity(&self, tier: TierId) -> u64 {
        self.capacity[tier.index()]
    }

    /// Pages a tier still has room for.
    pub fn free(&self, tier: TierId) -> u64 {
        self.capacity[tier.index()].saturating_sub(self.used[tier.index()])
    }

    /// Sets the capacity of a tier in pages. If it holds more already, it takes no page until it holds fewer.
    pub fn set_capacity(&mut self, tier: TierId, pages: u64) {
        self.capacity[tier.index()] = pages;
    }

    /// Tiers.
    pub fn tiers(&self) -> usize {
        self.capacity.len()
    }

    /// Whether a tier's pages fault when touched.
    pub fn is_compressed(&self, tier: TierId) -> bool {
        self.compressed[tier.index()]
    }

    /// Pages with memory behind them.
    pub fn resident(&self) -> u64 {
        self.used.iter().sum()
    }

    /// Gives a page without memory a place. Returns whether the tier had room.
    pub fn place(&mut self, page: u32, tier: TierId) -> bool {
        if self.free(tier) == 0 || !self.words[page as usize].has(PageWord::ABSENT) {
            return false;
        }
        self.used[tier.index()] += 1;
        self.write_tier(page, tier);
        true
    }

    /// Moves a page that has memory. Returns whether the tier had room.
    pub fn move_to(&mut self, page: u32, tier: TierId) -> bool {
        let Some(from) = self.words[page as usize].tier() else { return false };
        if from == tier {
            return true;
        }
        if self.free(tier) == 0 {
            return false;
        }
        self.used[from.index()] -= 1;
        self.used[tier.index()] += 1;
        self.write_tier(page, tier);
        true
    }

    /// Takes a page's memory away and unmaps it. Returns where it was.
    pub fn remove(&mut self, page: u32) -> Option<TierId> {
        let word = std::mem::replace(&mut self.words[page as usize], PageWord::NONE);
        let tier = word.tier()?;
        self.used[tier.index()] -= 1;
        Some(tier)
    }

    /// The pages that move as one with `page`: its block if that is mapped huge, else itself.
    pub fn unit(&self, page: u32) -> std::ops::Range<u32> {
        if self.words[page as usize].has(PageWord::HUGE) {
            let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
            first..first + BLOCK_PAGES
        } else {
            page..page + 1
        }
    }

    /// Reads and clears the accessed bits of a unit.
    pub fn take_accessed(&mut self, unit: std::ops::Range<u32>) -> bool {
        let mut accessed = false;
        for word in &mut self.words[unit.start as usize..unit.end as usize] {
            accessed |= word.has(PageWord::ACCESSED);
            *word = word.without(PageWord::ACCESSED);
        }
        accessed
    }

    fn write_tier(&mut self, page: u32, tier: TierId) {
        let compressed = self.compressed[tier.index()];
        let word = &mut self.words[page as usize];
        *word = word.in_tier(tier).without(PageWord::STORED).with(if compressed { PageWord::STORED } else { 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_never_holds_more_than_it_can() {
        let mut memory = Memory::new(vec![2, 10], vec![false, true]);
        memory.grow(600);
        assert_eq!(memory.len(), 1024);
        assert!(memory.place(0, TierId(0)) && memory.place(1, TierId(0)) && !memory.place(2, TierId(0)));
        assert!(!memory.place(0, TierId(1)), "it has a place already");
        assert!(memory.place(2, TierId(1)) && memory.word(2).has(PageWord::STORED));
        assert!(!memory.move_to(2, TierId(0)), "full");
        assert!(memory.move_to(1, TierId(1)) && memory.move_to(2, TierId(0)));
        assert!(!memory.word(2).has(PageWord::FAULTS));
        assert_eq!((memory.used(TierId(0)), memory.used(TierId(1)), memory.resident()), (2, 1, 3));
        assert_eq!(memory.remove(2), Some(TierId(0)));
        assert_eq!((memory.remove(2), memory.free(TierId(0))), (None, 1));
    }

    #[test]
    fn a_huge_page_is_one_unit() {
        let mut memory = Memory::new(vec![1024], vec![false]);
        memory.grow(1024);
        for page in 512..1024 {
            memory.place(page, TierId(0));
            memory.set(page, PageWord::HUGE);
        }
        assert_eq!(memory.unit(700), 512..1024);
        memory.set(900, PageWord::ACCESSED);
        assert!(memory.take_accessed(512..1024) && !memory.take_accessed(512..1024));
    }
}
