//! Who put a page into swap: the swap slots of what Terrace moved out.
//!
//! In: the slots of pages that Terrace has just moved out, and of pages that are found in swap without having been moved; what a tracker sees of
//! noted pages; what is no longer mapped. Out: which of the found pages Terrace had moved. Must not: ask the kernel, or keep anything of a
//! page in memory.
//!
//! A page changes its address when its mapping moves (mremap), and has one more in a forked child. Its slot, which /proc/PID/pagemap shows
//! (type and offset of the swap entry), stays the same. So a page that appears in swap and was not moved there now is looked up by its
//! slot: it is Terrace's if a page that Terrace moved has that slot, at whatever address and in whatever process.
//!
//! A slot is free when its last page is back or gone, and the kernel may then give it to any page. What a page held is therefore
//! forgotten once it is seen to have left; not at once, for the round that shows the old address empty may have come too late to the new
//! one, but with the second complete round. The errors are bounded by that:
//!
//! - A page of others counts as Terrace's if its slot was held by a page of Terrace's until less than two complete rounds before.
//! - A page of Terrace's that moved during two rounds on end, each time away from where the round was about to look, counts as others'.
//! - Where a page in swap takes the address of another in swap between two rounds, nothing is seen to change, and it counts as that one did.
//! - Without CAP_SYS_ADMIN the kernel shows no slots. Then a page counts as Terrace's at its own address only. The same holds for swapped memory that
//!   was not offered for management while it moved.
//!
//! Neighbours go to neighbouring slots. A block's slots are kept as runs of eight bytes, 1 to 512 pages each: next to nothing for blocks
//! that left in one piece, and as much as a page's own state where each page left alone.

use std::collections::BTreeMap;
use std::ops::Range;

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, SpaceId, TierId, Vpn};

/// Bits of a slot's place within its area: 8 PiB of swap.
const OFFSET_BITS: u32 = 41;
/// Areas from here on may be something else than swap, such as pages in migration (`trackers/accessed_bits/entries.rs`).
const FIRST_OTHER_AREA: u64 = 23;
/// Bits of a place or a length within a block.
const BLOCK_MASK: u64 = BLOCK_PAGES as u64 - 1;

/// A swap slot: the number of its area in the high bits, its place there in the low ones. Slots side by side have consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SwapSlot(u64);

impl SwapSlot {
    /// `None` where it is no slot: the first page of an area is its header, and what is beyond the areas is no swap.
    pub(crate) fn new(area: u64, offset: u64) -> Option<SwapSlot> {
        let is_slot = area < FIRST_OTHER_AREA && (1..1 << OFFSET_BITS).contains(&offset);
        is_slot.then_some(SwapSlot(area << OFFSET_BITS | offset))
    }
}

/// Consecutive pages of a block in consecutive slots: the first page's place in the block (9 bits), their number less one (9), the first slot (46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SlotRun(u64);

const RUN_SLOT_BITS: u32 = 46;

impl SlotRun {
    fn new(pages: Range<u64>, slot: u64) -> SlotRun {
        let length = pages.end - pages.start - 1;
        SlotRun(pages.start << (RUN_SLOT_BITS + BLOCK_SHIFT) | length << RUN_SLOT_BITS | slot)
    }

    /// Its pages, by their place in the block.
    fn pages(self) -> Range<u64> {
        let start = self.0 >> (RUN_SLOT_BITS + BLOCK_SHIFT);
        start..start + (self.0 >> RUN_SLOT_BITS & BLOCK_MASK) + 1
    }

    fn slots(self) -> Range<u64> {
        let first = self.0 & ((1 << RUN_SLOT_BITS) - 1);
        first..first + (self.0 >> RUN_SLOT_BITS & BLOCK_MASK) + 1
    }

    /// The part of it within these pages.
    fn within(self, pages: &Range<u64>) -> Option<SlotRun> {
        let (own, first) = (self.pages(), self.slots().start);
        let (start, end) = (own.start.max(pages.start), own.end.min(pages.end));
        (start < end).then(|| SlotRun::new(start..end, first + start - own.start))
    }

    /// Both as one, where the other goes on as this one ends.
    fn joined(self, next: SlotRun) -> Option<SlotRun> {
        let goes_on = self.pages().end == next.pages().start && self.slots().end == next.slots().start;
        goes_on.then(|| SlotRun::new(self.pages().start..next.pages().end, self.slots().start))
    }
}

/// Pages of a space.
pub(crate) type Stretch = (SpaceId, Range<Vpn>);

/// A page that was found in swap, and its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) slot: SwapSlot,
    pub(crate) space: SpaceId,
    pub(crate) vpn: Vpn,
}

/// See the module's header.
#[derive(Debug, Default)]
pub(crate) struct SwapSlots {
    /// The slots of noted pages, by block: its number is that of its first page divided by 512. Runs are in the order of their pages.
    blocks: BTreeMap<(SpaceId, u64), Vec<SlotRun>>,
    /// Noted pages that were seen to have left since the last complete round, and before it.
    left: Vec<Stretch>,
    left_before: Vec<Stretch>,
    /// Pages that appeared in swap and were not moved there.
    found: Vec<Stretch>,
}

impl SwapSlots {
    /// Terrace has moved these pages out: their slots as they are now. Pages without one are not noted.
    pub(crate) fn moved_out(&mut self, space: SpaceId, first: Vpn, slots: &[Option<SwapSlot>]) {
        let range = first..Vpn(first.0 + slots.len() as u64);
        // Whatever was known of them is over.
        subtract(&mut self.left, space, &range);
        subtract(&mut self.left_before, space, &range);
        self.forget(space, &range);
        for (block, pages) in by_block(&range) {
            let from = ((block << BLOCK_SHIFT) + pages.start - first.0) as usize;
            let here = &slots[from..from + (pages.end - pages.start) as usize];
            if here.iter().all(Option::is_none) {
                continue;
            }
            let runs = self.blocks.entry((space, block)).or_default();
            let noted = pages.zip(here).filter_map(|(page, slot)| Some(SlotRun::new(page..page + 1, slot.as_ref()?.0)));
            runs.extend(noted);
            runs.sort_unstable();
            join(runs);
            runs.shrink_to_fit();
        }
    }

    /// A tracker has looked at these pages, which lie in one block: noted ones that are not in swap have left.
    pub(crate) fn scanned(&mut self, space: SpaceId, first: Vpn, ptes: &[PteState], swap: TierId) {
        let Some(runs) = self.blocks.get(&(space, first.0 >> BLOCK_SHIFT)) else { return };
        let from = u64::from(first.offset_in_block());
        let seen = from..from + ptes.len() as u64;
        for run in runs.iter().filter_map(|run| run.within(&seen)) {
            let pages = run.pages();
            let here = &ptes[(pages.start - from) as usize..(pages.end - from) as usize];
            for (page, _) in pages.zip(here).filter(|(_, pte)| pte.tier() != Some(swap)) {
                push(&mut self.left, space, Vpn(first.0 - from + page));
            }
        }
    }

    /// These pages came back, or are no longer there.
    pub(crate) fn left(&mut self, space: SpaceId, range: Range<Vpn>) {
        let last = range.end.0.saturating_sub(1) >> BLOCK_SHIFT;
        let blocks = (space, range.start.0 >> BLOCK_SHIFT)..=(space, last);
        if range.start < range.end && self.blocks.range(blocks).next().is_some() {
            self.left.push((space, range));
        }
    }

    /// This page appeared in swap.
    pub(crate) fn found(&mut self, space: SpaceId, vpn: Vpn) {
        if !self.blocks.is_empty() {
            push(&mut self.found, space, vpn);
        }
    }

    /// The pages that appeared in swap since the last call.
    pub(crate) fn take_found(&mut self) -> Vec<Stretch> {
        std::mem::take(&mut self.found)
    }

    /// Which of these pages Terrace had moved out, by address. They are noted, so that what is moved or forked from them is known as well.
    pub(crate) fn claim(&mut self, found: &mut [Found]) -> Vec<Stretch> {
        found.sort_unstable_by_key(|page| page.slot);
        let mut ours: Vec<Found> = Vec::new();
        let mut held = vec![false; found.len()];
        for run in self.blocks.values().flatten() {
            let slots = run.slots();
            let from = found.partition_point(|page| page.slot.0 < slots.start);
            let upto = from + found[from..].iter().take_while(|page| page.slot.0 < slots.end).count();
            held[from..upto].fill(true);
        }
        ours.extend(found.iter().zip(held).filter(|(_, held)| *held).map(|(page, _)| *page));
        ours.sort_unstable_by_key(|page| (page.space, page.vpn));
        let mut claimed = Vec::new();
        for run in ours.chunk_by(|one, next| one.space == next.space && one.vpn.0 + 1 == next.vpn.0) {
            let slots: Vec<Option<SwapSlot>> = run.iter().map(|page| Some(page.slot)).collect();
            self.moved_out(run[0].space, run[0].vpn, &slots);
            claimed.push((run[0].space, run[0].vpn..Vpn(run[0].vpn.0 + run.len() as u64)));
        }
        claimed
    }

    /// A round over all pages is complete, and what it found is claimed.
    pub(crate) fn end_round(&mut self) {
        let gone = std::mem::replace(&mut self.left_before, std::mem::take(&mut self.left));
        for (space, range) in gone {
            self.forget(space, &range);
        }
    }

    fn forget(&mut self, space: SpaceId, range: &Range<Vpn>) {
        let last = range.end.0.saturating_sub(1) >> BLOCK_SHIFT;
        let blocks = (space, range.start.0 >> BLOCK_SHIFT)..=(space, last);
        let touched: Vec<u64> = self.blocks.range(blocks).map(|((_, block), _)| *block).collect();
        for block in touched {
            let start = block << BLOCK_SHIFT;
            let low = range.start.0.saturating_sub(start);
            let high = (range.end.0 - start).min(u64::from(BLOCK_PAGES));
            let Some(runs) = self.blocks.get_mut(&(space, block)) else { continue };
            if runs.iter().any(|run| run.within(&(low..high)).is_some()) {
                let kept = |run: &SlotRun| [run.within(&(0..low)), run.within(&(high..u64::from(BLOCK_PAGES)))];
                *runs = runs.iter().flat_map(kept).flatten().collect();
            }
            if runs.is_empty() {
                self.blocks.remove(&(space, block));
            }
        }
    }

    /// Bytes of what is kept of noted pages.
    #[cfg(test)]
    fn memory_bytes(&self) -> usize {
        let entry = size_of::<(SpaceId, u64)>() + size_of::<Vec<SlotRun>>();
        // A B-tree node is on average three quarters full.
        let index = self.blocks.len() * entry * 4 / 3;
        index + self.blocks.values().map(|runs| runs.capacity() * size_of::<SlotRun>()).sum::<usize>()
    }
}

/// The blocks that hold these pages, each with the places of those in it.
fn by_block(range: &Range<Vpn>) -> impl Iterator<Item = (u64, Range<u64>)> + use<> {
    let (start, end) = (range.start.0, range.end.0);
    (start >> BLOCK_SHIFT..=end.saturating_sub(1) >> BLOCK_SHIFT).filter(move |_| start < end).map(move |block| {
        let first = block << BLOCK_SHIFT;
        (block, start.max(first) - first..end.min(first + u64::from(BLOCK_PAGES)) - first)
    })
}

/// Makes one run of those that go on in each other.
fn join(runs: &mut Vec<SlotRun>) {
    let mut joined: Vec<SlotRun> = Vec::new();
    for run in runs.drain(..) {
        match joined.last_mut().and_then(|last| Some((last.joined(run)?, last))) {
            Some((whole, last)) => *last = whole,
            None => joined.push(run),
        }
    }
    *runs = joined;
}

/// Adds a page to the last stretch if it follows it.
fn push(to: &mut Vec<Stretch>, space: SpaceId, vpn: Vpn) {
    match to.last_mut() {
        Some((last, range)) if *last == space && range.end == vpn => range.end = Vpn(vpn.0 + 1),
        _ => to.push((space, vpn..Vpn(vpn.0 + 1))),
    }
}

/// Takes `range` out of the stretches.
fn subtract(from: &mut Vec<Stretch>, space: SpaceId, range: &Range<Vpn>) {
    let meets = |(other, held): &Stretch| *other == space && held.start < range.end && range.start < held.end;
    if !from.iter().any(meets) {
        return;
    }
    let cut = |stretch: Stretch| {
        if !meets(&stretch) {
            return [Some(stretch), None];
        }
        let held = stretch.1;
        let (before, after) = (held.start..range.start, range.end..held.end);
        [before, after].map(|part| (part.start < part.end).then_some((space, part)))
    };
    *from = std::mem::take(from).into_iter().flat_map(cut).flatten().collect();
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceId = SpaceId(3);
    const CHILD: SpaceId = SpaceId(4);
    const SWAP: TierId = TierId(1);

    fn slot(offset: u64) -> Option<SwapSlot> {
        SwapSlot::new(1, offset)
    }

    fn found(space: SpaceId, vpn: u64, offset: u64) -> Found {
        Found { slot: slot(offset).unwrap(), space, vpn: Vpn(vpn) }
    }

    fn claim(slots: &mut SwapSlots, mut pages: Vec<Found>) -> Vec<(u32, u64, u64)> {
        slots.claim(&mut pages).into_iter().map(|(space, range)| (space.0, range.start.0, range.end.0)).collect()
    }

    #[test]
    fn what_is_no_swap_has_no_slot() {
        assert_eq!(SwapSlot::new(0, 0), None, "the header, and what is shown without the rights");
        assert_eq!(SwapSlot::new(23, 7), None, "a page in migration");
        assert_eq!(SwapSlot::new(0, 1 << 41), None);
        assert!(SwapSlot::new(0, (1 << 41) - 1).unwrap() < SwapSlot::new(1, 1).unwrap());
        let run = SlotRun::new(0..512, SwapSlot::new(22, (1 << 41) - 512).unwrap().0);
        assert_eq!((run.pages(), run.slots().end - run.slots().start), (0..512, 512));
    }

    #[test]
    fn a_page_is_known_by_its_slot_at_any_address() {
        let mut slots = SwapSlots::default();
        let out: Vec<_> = (0..600).map(|page| slot(1000 + page)).collect();
        slots.moved_out(SPACE, Vpn(500), &out);
        assert_eq!(slots.blocks.values().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1], "one run a block");
        let pages =
            vec![found(SPACE, 9000, 1005), found(SPACE, 9001, 1006), found(SPACE, 9002, 999), found(CHILD, 500, 1599)];
        assert_eq!(claim(&mut slots, pages), [(3, 9000, 9002), (4, 500, 501)]);
        assert_eq!(claim(&mut slots, vec![found(SPACE, 9003, 1600)]), []);
    }

    #[test]
    fn what_left_is_forgotten_with_the_second_complete_round() {
        let mut slots = SwapSlots::default();
        slots.moved_out(SPACE, Vpn(0), &[slot(10), slot(11), slot(12)]);
        let mut ptes = [PteState::placed(SWAP); 3];
        ptes[1] = PteState::placed(TierId::FAST);
        slots.scanned(SPACE, Vpn(0), &ptes, SWAP);
        slots.end_round();
        assert_eq!(claim(&mut slots, vec![found(CHILD, 7, 11)]), [(4, 7, 8)], "it may have moved meanwhile");
        slots.left(CHILD, Vpn(0)..Vpn(u64::MAX));
        slots.end_round();
        assert_eq!(claim(&mut slots, vec![found(SPACE, 8, 10)]), [(3, 8, 9)], "the others are still there");
        slots.end_round();
        assert_eq!(claim(&mut slots, vec![found(SPACE, 9, 11)]), [], "its page is back, and so is the child's");
    }

    #[test]
    fn a_page_that_leaves_again_is_not_forgotten() {
        let mut slots = SwapSlots::default();
        slots.moved_out(SPACE, Vpn(0), &[slot(10), slot(11)]);
        slots.left(SPACE, Vpn(0)..Vpn(2));
        slots.moved_out(SPACE, Vpn(1), &[slot(20)]);
        slots.end_round();
        slots.end_round();
        assert_eq!(
            claim(&mut slots, vec![found(CHILD, 5, 20), found(CHILD, 9, 10), found(CHILD, 11, 11)]),
            [(4, 5, 6)]
        );
    }

    #[test]
    fn nothing_is_kept_of_what_is_gone_or_has_no_slot() {
        let mut slots = SwapSlots::default();
        slots.moved_out(SPACE, Vpn(100), &[None; 1000]);
        slots.found(SPACE, Vpn(1));
        assert!(slots.blocks.is_empty() && slots.take_found().is_empty());
        slots.moved_out(SPACE, Vpn(100), &[slot(5); 1]);
        slots.left(SPACE, Vpn(0)..Vpn(u64::MAX));
        slots.end_round();
        slots.end_round();
        assert_eq!(slots.memory_bytes(), 0);
    }

    #[test]
    fn a_slot_costs_a_bit_where_blocks_leave_whole() {
        let mut slots = SwapSlots::default();
        let out: Vec<_> = (0..512 * 200).map(|page| slot(1 + page)).collect();
        slots.moved_out(SPACE, Vpn(0), &out);
        assert!(slots.memory_bytes() * 8 <= out.len(), "{} bytes for {} slots", slots.memory_bytes(), out.len());
        // And at most what a page's own state costs where no two neighbours are in neighbouring slots.
        let out: Vec<_> = (0..512 * 200).map(|page| slot(1 + page * 2)).collect();
        slots.moved_out(SPACE, Vpn(0), &out);
        assert!(slots.memory_bytes() <= out.len() * 9, "{} bytes for {} slots", slots.memory_bytes(), out.len());
    }
}
