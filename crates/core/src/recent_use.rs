//! Which pages a program used lately: a bit a page, for now and for before.
//!
//! In: pages that were seen in use, the ends of stretches of time. Out: the pages of the latest stretches, and how many they are. Must not: read a
//! clock, or take a page for used that nobody saw in use.
//!
//! A stretch is a minute of a program that runs, or the time it ran between two sleeps. Both of the latest two together are what it uses: its
//! working set. Pages are kept by address, so that they are known after their ids went to others.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::units::{BLOCK_PAGES, BLOCK_SHIFT, Vpn};

/// The pages of a block, a bit each.
type Bits = [u64; BLOCK_PAGES as usize / 64];

const NONE: Bits = [0; BLOCK_PAGES as usize / 64];

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecentUse {
    /// By the number of the block: its first page divided by 512.
    blocks: BTreeMap<u64, [Bits; 2]>,
}

impl RecentUse {
    /// A page was used now.
    pub fn used(&mut self, vpn: Vpn) {
        let now = &mut self.blocks.entry(vpn.0 >> BLOCK_SHIFT).or_insert([NONE; 2])[0];
        set(now, vpn.offset_in_block());
    }

    /// Of consecutive pages of one block those were used of which the iterator says so.
    pub fn seen(&mut self, first: Vpn, used: impl Iterator<Item = bool>) {
        let mut bits = NONE;
        for (offset, _) in (first.offset_in_block()..).zip(used).filter(|(_, used)| *used) {
            set(&mut bits, offset);
        }
        if bits != NONE {
            let now = &mut self.blocks.entry(first.0 >> BLOCK_SHIFT).or_insert([NONE; 2])[0];
            now.iter_mut().zip(bits).for_each(|(now, seen)| *now |= seen);
        }
    }

    /// Whether a page was used in the stretch at hand.
    pub fn has_now(&self, vpn: Vpn) -> bool {
        self.blocks.get(&(vpn.0 >> BLOCK_SHIFT)).is_some_and(|[now, _]| is_set(now, vpn.offset_in_block()))
    }

    /// A stretch is over: what was used in it is what was used before. One in which nothing was seen in use changes nothing.
    pub fn turn(&mut self) {
        if self.blocks.values().all(|[now, _]| *now == NONE) {
            return;
        }
        self.blocks.values_mut().for_each(|[now, before]| *before = std::mem::replace(now, NONE));
        self.blocks.retain(|_, [_, before]| *before != NONE);
    }

    /// These pages are gone.
    pub fn forget(&mut self, range: Range<Vpn>) {
        if range.is_empty() {
            return;
        }
        let last = (range.end.0 - 1) >> BLOCK_SHIFT;
        let touched: Vec<u64> =
            self.blocks.range(range.start.0 >> BLOCK_SHIFT..=last).map(|(number, _)| *number).collect();
        for number in touched {
            let start = number << BLOCK_SHIFT;
            let low = range.start.0.max(start) - start;
            let high = (range.end.0 - start).min(u64::from(BLOCK_PAGES));
            let Some(block) = self.blocks.get_mut(&number) else { continue };
            for bits in block.iter_mut() {
                (low..high).for_each(|page| bits[page as usize / 64] &= !(1 << (page % 64)));
            }
            if *block == [NONE; 2] {
                self.blocks.remove(&number);
            }
        }
    }

    /// Whether the page was used in the latest stretches.
    pub fn has(&self, vpn: Vpn) -> bool {
        let is_set = |bits: &Bits| is_set(bits, vpn.offset_in_block());
        self.blocks.get(&(vpn.0 >> BLOCK_SHIFT)).is_some_and(|block| block.iter().any(is_set))
    }

    /// Whether a page of this block was.
    pub fn has_of_block(&self, start: Vpn) -> bool {
        self.blocks.contains_key(&(start.0 >> BLOCK_SHIFT))
    }

    /// The pages used in the latest stretches, by address.
    pub fn pages(&self) -> impl Iterator<Item = Vpn> {
        self.blocks.iter().flat_map(|(number, [now, before])| {
            let both = |word: usize| now[word] | before[word];
            let is_set = move |page: &u64| both(*page as usize / 64) >> (page % 64) & 1 == 1;
            (0..u64::from(BLOCK_PAGES)).filter(is_set).map(move |page| Vpn((number << BLOCK_SHIFT) + page))
        })
    }

    /// How many were used in the stretch at hand, and in the one before.
    pub fn counts(&self) -> [u64; 2] {
        let of = |bits: &Bits| -> u64 { bits.iter().map(|word| u64::from(word.count_ones())).sum() };
        self.blocks.values().fold([0; 2], |[now, before], block| [now + of(&block[0]), before + of(&block[1])])
    }

    /// How many were used in either.
    pub fn count(&self) -> u64 {
        let of = |[now, before]: &[Bits; 2]| -> u64 {
            now.iter().zip(before).map(|(now, before)| u64::from((now | before).count_ones())).sum()
        };
        self.blocks.values().map(of).sum()
    }

    /// Bytes it occupies.
    pub fn memory_bytes(&self) -> usize {
        self.blocks.len() * size_of::<(u64, [Bits; 2])>() * 4 / 3
    }
}

fn is_set(bits: &Bits, offset: u32) -> bool {
    bits[offset as usize / 64] >> (offset % 64) & 1 == 1
}

fn set(bits: &mut Bits, offset: u32) {
    bits[offset as usize / 64] |= 1 << (offset % 64);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is used, forgotten and turned: the same as with two sets of page numbers.
        #[test]
        fn it_is_two_sets(steps in proptest::collection::vec((0u8..6, 0u64..1600, 1u64..700), 1..60)) {
            let (mut recent, mut sets) = (RecentUse::default(), [BTreeSet::new(), BTreeSet::new()]);
            for (kind, start, length) in steps {
                match kind {
                    0 => {
                        recent.forget(Vpn(start)..Vpn(start + length));
                        sets.iter_mut().for_each(|set| set.retain(|page| !(start..start + length).contains(page)));
                    }
                    1 => {
                        recent.turn();
                        if !sets[0].is_empty() {
                            sets[1] = std::mem::take(&mut sets[0]);
                        }
                    }
                    2 => {
                        recent.used(Vpn(start));
                        sets[0].insert(start);
                    }
                    _ => {
                        let end = (start + length).min((start / 512 + 1) * 512);
                        recent.seen(Vpn(start), (start..end).map(|page| page % 3 == 0));
                        sets[0].extend((start..end).filter(|page| page % 3 == 0));
                    }
                }
                let both: Vec<u64> = sets[0].union(&sets[1]).copied().collect();
                prop_assert_eq!(recent.pages().map(|vpn| vpn.0).collect::<Vec<_>>(), both.clone());
                prop_assert_eq!(recent.count(), both.len() as u64);
                prop_assert!(both.iter().all(|page| recent.has(Vpn(*page)) && recent.has_of_block(Vpn(*page))));
                prop_assert!((0..1600).all(|page| recent.has(Vpn(page)) == both.contains(&page)));
            }
        }
    }

    #[test]
    fn what_is_remembered_costs_two_bits_a_page() {
        let mut recent = RecentUse::default();
        (0..1 << 18).for_each(|page| recent.used(Vpn(page)));
        assert!(recent.memory_bytes() * 8 < (1 << 18) * 3, "{} bytes for 1 GiB", recent.memory_bytes());
    }
}
