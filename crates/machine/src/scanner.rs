//! The two scanners: which pages the hint-fault scanner makes inaccessible next, and what an accessed-bit walk costs.
//!
//! In: how much to scan. Out: pages, in rotation, and costs. Must not: decide when; the cadence does.
//!
//! Facts on the hint-fault scanner (kernel/sched/fair.c as documented in the reference, section 9): every period it marks
//! up to a window of pages that have memory and are not marked yet, and goes past at most eight times as much address
//! space; it resumes where it stopped and wraps.

use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT};

use crate::memory::{Memory, PageWord};

/// Where the hint-fault scanner is.
#[derive(Clone, Copy, Debug, Default)]
pub struct HintScanner {
    next: u32,
    /// Pages marked so far.
    pub marked: u64,
}

impl HintScanner {
    /// Marks the next `window` pages (a huge block counts 512) of the tiers in the mask `tiers`; calls `each` with every
    /// unit marked. Returns how many pages were marked.
    pub fn step(&mut self, memory: &mut Memory, window: u64, tiers: u8, mut each: impl FnMut(u32)) -> u64 {
        let pages = memory.len() as u32;
        if pages == 0 {
            return 0;
        }
        let mut marked = 0;
        // Eight windows of address space at most, and never past where this step began.
        let mut left = (window * 8).min(u64::from(pages));
        while marked < window && left > 0 {
            let page = self.next % pages;
            let unit = memory.unit(page);
            let span = u64::from(unit.end - page);
            self.next = if unit.end >= pages { 0 } else { unit.end };
            left = left.saturating_sub(span);
            let word = memory.word(unit.start);
            let wanted = word.tier().is_some_and(|tier| tiers & (1 << tier.0) != 0);
            if !wanted || word.has(PageWord::MARKED | PageWord::STORED) {
                continue;
            }
            for page in unit.clone() {
                memory.set(page, PageWord::MARKED);
            }
            marked += u64::from(unit.end - unit.start);
            each(unit.start);
        }
        self.marked += marked;
        marked
    }
}

/// What a walk of accessed bits did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Entries read: pages, or 1 for a huge block; upper entries of idle blocks included.
    pub read: u64,
    /// Accessed bits cleared, each of which the program must set again.
    pub cleared: u64,
    /// Pages with memory behind them.
    pub pages: u64,
    /// Of those, accessed.
    pub accessed: u64,
    /// Blocks skipped because their upper entry was not accessed.
    pub skipped: u64,
}

/// Walks one block as a scanner does that skips the 512 entries behind an upper entry without its accessed bit. Calls
/// `each` with offset, word and whether it was accessed, for every page that is mapped; clears the bits if asked.
pub fn walk_block(
    memory: &mut Memory,
    block: u32,
    clear: bool,
    walk: &mut Walk,
    mut each: impl FnMut(u32, PageWord, bool),
) {
    let first = (block << BLOCK_SHIFT) as usize;
    let words = &mut memory.words_mut()[first..first + BLOCK_PAGES as usize];
    let any = words.iter().fold(0, |bits, word| bits | u32::from(word.has(PageWord::ACCESSED))) != 0;
    let huge = words[0].has(PageWord::HUGE);
    walk.read += 1;
    if !any {
        walk.skipped += 1;
    } else if !huge {
        walk.read += u64::from(BLOCK_PAGES);
    }
    for (offset, word) in words.iter_mut().enumerate() {
        if !word.has(PageWord::MAPPED) {
            continue;
        }
        // All pieces of a huge mapping share one bit.
        let accessed = if huge { any } else { word.has(PageWord::ACCESSED) };
        walk.pages += u64::from(!word.has(PageWord::ABSENT));
        walk.accessed += u64::from(accessed);
        each(offset as u32, *word, accessed);
        if clear && word.has(PageWord::ACCESSED) {
            *word = word.without(PageWord::ACCESSED);
            walk.cleared += u64::from(!huge);
        }
    }
    walk.cleared += u64::from(huge && any && clear);
}

#[cfg(test)]
mod tests {
    use terrace_core::units::TierId;

    use super::*;

    /// The mask of the second tier.
    const SLOW: u8 = 2;

    fn memory(pages: u32) -> Memory {
        let mut memory = Memory::new(vec![u64::from(pages); 2], vec![false, false]);
        memory.grow(pages as usize);
        for page in 0..pages {
            memory.place(page, TierId((page % 2) as u8));
            memory.set(page, PageWord::MAPPED);
        }
        memory
    }

    #[test]
    fn the_scanner_goes_round_and_marks_only_what_it_should() {
        let mut memory = memory(1024);
        let mut scanner = HintScanner::default();
        let mut seen = Vec::new();
        assert_eq!(scanner.step(&mut memory, 100, SLOW, |page| seen.push(page)), 100);
        assert!(seen.iter().all(|page| page % 2 == 1));
        assert_eq!(seen.last(), Some(&199));
        let rest: u64 = (0..10).map(|_| scanner.step(&mut memory, 100, SLOW, |_| ())).sum();
        assert_eq!(rest, 412, "each page once until a fault clears its mark");
    }

    #[test]
    fn a_walk_skips_idle_blocks_and_clears_what_it_saw() {
        let mut memory = memory(1024);
        memory.set(3, PageWord::ACCESSED);
        let mut walk = Walk::default();
        let mut seen = 0;
        for block in 0..2 {
            walk_block(&mut memory, block, true, &mut walk, |_, _, accessed| seen += u32::from(accessed));
        }
        assert_eq!(walk, Walk { read: 514, cleared: 1, pages: 1024, accessed: 1, skipped: 1 });
        assert_eq!(seen, 1);
        let mut again = Walk::default();
        walk_block(&mut memory, 0, true, &mut again, |_, _, _| ());
        assert_eq!((again.accessed, again.skipped), (0, 1));
    }

    #[test]
    fn a_huge_block_has_one_bit() {
        let mut memory = memory(512);
        for page in 0..512 {
            memory.set(page, PageWord::HUGE);
        }
        memory.set(300, PageWord::ACCESSED);
        let mut walk = Walk::default();
        walk_block(&mut memory, 0, true, &mut walk, |_, _, accessed| assert!(accessed));
        assert_eq!((walk.read, walk.cleared, walk.accessed), (1, 1, 512));
    }
}
