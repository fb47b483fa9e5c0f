//! The state of every page, in dense arrays: eight bytes per page, in blocks of 512.
//!
//! In: ranges that appear and vanish, tiers that change. Out: page ids for addresses and back, the state of each page, and how many pages
//! of each space are in each tier. Must not: decide anything, or return an id whose block is gone.
//!
//! A block is the 2 MiB of addresses behind one last-level page table. Its 512 ids are consecutive, so a scan of a page table meets a run
//! of the array. A block that vanishes leaves its ids to the next that appears, so memory follows what is mapped now and not the largest
//! mapping ever.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut, Range};

use crate::units::{BLOCK_PAGES, BLOCK_SHIFT, BlockId, PageId, SpaceId, TierId, Vpn};

/// The state of one page that every policy and the governor share. Eight bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Page {
    /// The policy's score of the page. Terrace itself never reads it.
    pub heat: u16,
    /// The policy's second word: an age, an epoch, a count.
    pub stamp: u16,
    /// The governor's word: when the page last changed tier, in its ticks (wrapping); 0 if it never did.
    pub(crate) moved_at: u16,
    place: u8,
    flags: u8,
}

const PLACE_NONE: u8 = 0xff;
const MANAGED: u8 = 1;
const MOVING: u8 = 2;
const PINNED: u8 = 4;
const DEMOTED: u8 = 8;
const LEVEL_SHIFT: u8 = 4;
const LEVEL_MAX: u8 = 3;
const POLICY_SHIFT: u8 = 6;

impl Page {
    const UNMANAGED: Page = Page { heat: 0, stamp: 0, moved_at: 0, place: PLACE_NONE, flags: 0 };
    const NEW: Page = Page { flags: MANAGED, ..Page::UNMANAGED };

    /// The page's tier; `None` while it has no memory behind it.
    pub const fn tier(&self) -> Option<TierId> {
        if self.place == PLACE_NONE { None } else { Some(TierId(self.place)) }
    }

    /// Whether the page belongs to a range that Terrace may manage.
    pub const fn managed(&self) -> bool {
        self.flags & MANAGED != 0
    }

    /// Whether the page is part of a plan whose outcome is pending.
    pub const fn moving(&self) -> bool {
        self.flags & MOVING != 0
    }

    /// Whether a move of the page failed for good, so that another try is useless.
    pub const fn pinned(&self) -> bool {
        self.flags & PINNED != 0
    }

    /// Whether Terrace demoted the page and it has not come back since.
    pub const fn demoted(&self) -> bool {
        self.flags & DEMOTED != 0
    }

    /// Number of ping-pongs, 0 to 3; each makes the cooldown four times longer.
    pub const fn ping_pong(&self) -> u8 {
        (self.flags >> LEVEL_SHIFT) & LEVEL_MAX
    }

    /// Two bits that belong to the policy.
    pub const fn policy_bits(&self) -> u8 {
        self.flags >> POLICY_SHIFT
    }

    /// Sets the policy's two bits.
    pub const fn set_policy_bits(&mut self, bits: u8) {
        self.flags = (self.flags & !(3 << POLICY_SHIFT)) | ((bits & 3) << POLICY_SHIFT);
    }

    pub(crate) const fn set_moving(&mut self, moving: bool) {
        self.set(MOVING, moving);
    }

    pub(crate) const fn set_pinned(&mut self, pinned: bool) {
        self.set(PINNED, pinned);
    }

    pub(crate) const fn set_demoted(&mut self, demoted: bool) {
        self.set(DEMOTED, demoted);
    }

    pub(crate) const fn set_ping_pong(&mut self, level: u8) {
        let level = if level > LEVEL_MAX { LEVEL_MAX } else { level };
        self.flags = (self.flags & !(LEVEL_MAX << LEVEL_SHIFT)) | (level << LEVEL_SHIFT);
    }

    const fn set(&mut self, flag: u8, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }
}

/// The address and mapping of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The space it belongs to.
    pub space: SpaceId,
    /// Its first page's number; a multiple of 512.
    pub start: Vpn,
    /// Whether it is mapped by one 2 MiB entry, so that its pages are seen and moved only together.
    pub huge: bool,
    /// Whether it holds file pages; reclaim treats those apart from anonymous memory.
    pub file: bool,
    /// How many of its pages are known, and whether it was split: in one word, so that a block stays within 16 bytes.
    managed: u16,
}

/// Of [`Block`]: it was split on request and has not been huge since.
const SPLIT: u16 = 1 << 15;

impl Block {
    /// Whether it was split on request and has not been huge since: each of its pages is seen, and moved, alone.
    pub const fn split(&self) -> bool {
        self.managed & SPLIT != 0
    }
}

/// The pages of every space.
#[derive(Clone, Debug, Default)]
pub struct Pages {
    pages: Vec<Page>,
    blocks: Vec<Option<Block>>,
    index: BTreeMap<(SpaceId, u64), BlockId>,
    free: Vec<BlockId>,
    used: BTreeMap<SpaceId, [u64; TierId::MAX]>,
    /// Those of `used` that Terrace demoted.
    demoted_of: BTreeMap<SpaceId, [u64; TierId::MAX]>,
    total: [u64; TierId::MAX],
    /// Those of `total` that Terrace demoted.
    demoted: [u64; TierId::MAX],
    /// Blocks that were split on request.
    split: u64,
}

impl Pages {
    /// No pages.
    pub fn new() -> Pages {
        Pages::default()
    }

    /// Adds the pages `range` of `space`; known pages keep their state. Returns the blocks that hold them, in address order.
    pub fn map(&mut self, space: SpaceId, range: Range<Vpn>) -> Vec<BlockId> {
        self.used.entry(space).or_default();
        let mut touched = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let start = at.block_start();
            let end = Vpn(range.end.0.min(start.0 + u64::from(BLOCK_PAGES)));
            let block = self.block_for(space, start);
            for vpn in at.0..end.0 {
                let index = block.first_page().plus(Vpn(vpn).offset_in_block()).index();
                if !self.pages[index].managed() {
                    self.pages[index] = Page::NEW;
                    self.info_mut(block).managed += 1;
                }
            }
            touched.push(block);
            at = end;
        }
        touched
    }

    /// Removes the pages `range` of `space`. A block without pages frees its ids.
    pub fn unmap(&mut self, space: SpaceId, range: Range<Vpn>) {
        let first = range.start.0 >> BLOCK_SHIFT;
        let last = range.end.0.saturating_sub(1) >> BLOCK_SHIFT;
        let blocks: Vec<BlockId> = self.index.range((space, first)..=(space, last)).map(|(_, block)| *block).collect();
        for block in blocks {
            let start = self.info(block).start.0;
            let low = range.start.0.max(start) - start;
            let high = range.end.0.min(start + u64::from(BLOCK_PAGES)).saturating_sub(start);
            for offset in low as u32..high as u32 {
                self.forget(block.first_page().plus(offset));
            }
            // A partial unmap splits a huge mapping: its 512 pages no longer move as one.
            if high - low < u64::from(BLOCK_PAGES) {
                self.set_huge(block, false);
            }
            self.release_if_empty(block);
        }
    }

    /// Removes a whole space.
    pub fn remove_space(&mut self, space: SpaceId) {
        self.unmap(space, Vpn(0)..Vpn(u64::MAX));
        self.used.remove(&space);
        self.demoted_of.remove(&space);
    }

    /// The page of an address, if it is known.
    pub fn find(&self, space: SpaceId, vpn: Vpn) -> Option<PageId> {
        let block = *self.index.get(&(space, vpn.0 >> BLOCK_SHIFT))?;
        let page = block.first_page().plus(vpn.offset_in_block());
        self.pages[page.index()].managed().then_some(page)
    }

    /// Whether every page of `range`, which must be within one block, is known.
    pub fn covers(&self, space: SpaceId, range: Range<Vpn>) -> bool {
        self.find_block(space, range.start).is_some_and(|block| {
            let first = block.first_page().plus(range.start.offset_in_block()).index();
            self.pages[first..first + (range.end.0 - range.start.0) as usize].iter().all(Page::managed)
        })
    }

    /// The block of an address, if any page of it is known.
    pub fn find_block(&self, space: SpaceId, vpn: Vpn) -> Option<BlockId> {
        self.index.get(&(space, vpn.0 >> BLOCK_SHIFT)).copied()
    }

    /// The space and page number behind an id. The id must be of a live block.
    pub fn locate(&self, page: PageId) -> (SpaceId, Vpn) {
        let block = self.info(page.block());
        (block.space, Vpn(block.start.0 + u64::from(page.offset())))
    }

    /// A block's address and mapping, or `None` if the block is gone.
    pub fn block(&self, block: BlockId) -> Option<&Block> {
        self.blocks.get(block.0 as usize)?.as_ref()
    }

    /// The 512 pages of a block, including unmanaged ones.
    pub fn block_pages(&self, block: BlockId) -> &[Page] {
        let first = block.first_page().index();
        &self.pages[first..first + BLOCK_PAGES as usize]
    }

    /// The pages `first` to `first + length` of one block, whose words a policy may update.
    pub fn run_mut(&mut self, first: PageId, length: usize) -> &mut [Page] {
        &mut self.pages[first.index()..first.index() + length]
    }

    /// All live blocks by space and address.
    pub fn blocks(&self) -> impl Iterator<Item = (BlockId, &Block)> {
        self.index.values().map(|&block| (block, self.info(block)))
    }

    /// The live blocks of one space by address.
    pub fn blocks_of(&self, space: SpaceId) -> impl Iterator<Item = (BlockId, &Block)> {
        self.index.range((space, 0)..=(space, u64::MAX)).map(|(_, &block)| (block, self.info(block)))
    }

    /// The ids that move as one with `page`: its whole block if that is huge, otherwise the page alone.
    pub fn unit(&self, page: PageId) -> Range<PageId> {
        if self.info(page.block()).huge {
            let first = page.block().first_page();
            first..first.plus(BLOCK_PAGES)
        } else {
            page..page.plus(1)
        }
    }

    /// Puts a page into a tier, or removes its memory (`None`). Returns its previous tier.
    pub fn set_tier(&mut self, page: PageId, tier: Option<TierId>) -> Option<TierId> {
        let entry = &mut self.pages[page.index()];
        let before = entry.tier();
        if before == tier || !entry.managed() {
            return before;
        }
        entry.place = tier.map_or(PLACE_NONE, |tier| tier.0);
        let space = self.info(page.block()).space;
        let used = self.used.entry(space).or_default();
        if let Some(before) = before {
            used[before.index()] -= 1;
            self.total[before.index()] -= 1;
        }
        if let Some(after) = tier {
            used[after.index()] += 1;
            self.total[after.index()] += 1;
        }
        if self.pages[page.index()].demoted() {
            let own = self.demoted_of.entry(space).or_default();
            if let Some(before) = before {
                self.demoted[before.index()] -= 1;
                own[before.index()] -= 1;
            }
            if let Some(after) = tier {
                self.demoted[after.index()] += 1;
                own[after.index()] += 1;
            }
        }
        before
    }

    /// Changes a page's flags and keeps the count of demoted pages true. The change must leave the tier as it is.
    pub(crate) fn change<T>(&mut self, page: PageId, change: impl FnOnce(&mut Page) -> T) -> T {
        let entry = &mut self.pages[page.index()];
        let before = entry.demoted();
        let result = change(entry);
        if let Some(tier) = entry.tier().filter(|_| entry.demoted() != before) {
            let (after, space) = (entry.demoted(), self.info(page.block()).space);
            let own = self.demoted_of.entry(space).or_default();
            for count in [&mut self.demoted[tier.index()], &mut own[tier.index()]] {
                *count = *count + u64::from(after) - u64::from(before);
            }
        }
        result
    }

    /// Gives a page's state and history to another page, which is known and has no memory of its own yet. Returns whether it did.
    pub(crate) fn hand(&mut self, from: PageId, to: PageId) -> bool {
        let state = self.pages[from.index()];
        let target = self.pages[to.index()];
        if state.tier().is_none() || target.tier().is_some() || !target.managed() {
            return false;
        }
        self.set_tier(from, None);
        self.change(from, |page| page.set_demoted(false));
        let (heat, stamp, moved_at) = (state.heat, state.stamp, state.moved_at);
        self.pages[to.index()] =
            Page { heat, stamp, moved_at, place: PLACE_NONE, flags: state.flags & !(MOVING | PINNED) };
        self.set_tier(to, state.tier());
        true
    }

    /// Records that a block is mapped by one 2 MiB entry, or was split into 4 KiB ones.
    pub fn set_huge(&mut self, block: BlockId, huge: bool) {
        let info = self.info_mut(block);
        info.huge = huge;
        if huge && info.split() {
            info.managed &= !SPLIT;
            self.split -= 1;
        }
    }

    /// Records that a huge block was split on request.
    pub(crate) fn set_split(&mut self, block: BlockId) {
        let info = self.info_mut(block);
        info.huge = false;
        if !info.split() {
            info.managed |= SPLIT;
            self.split += 1;
        }
    }

    /// Blocks that were split on request and have not been huge since.
    pub fn split_blocks(&self) -> u64 {
        self.split
    }

    /// Records that the known blocks of a range hold file pages.
    pub fn set_file(&mut self, space: SpaceId, range: Range<Vpn>) {
        if range.is_empty() {
            return;
        }
        let last = (range.end.0 - 1) >> BLOCK_SHIFT;
        let blocks = self.index.range((space, range.start.0 >> BLOCK_SHIFT)..=(space, last));
        for (_, block) in blocks {
            self.blocks[block.0 as usize].as_mut().expect("the index names live blocks").file = true;
        }
    }

    /// Pages of a space in a tier.
    pub fn used(&self, space: SpaceId, tier: TierId) -> u64 {
        self.used.get(&space).map_or(0, |used| used[tier.index()])
    }

    /// Pages of all spaces in a tier.
    pub fn used_in_all(&self, tier: TierId) -> u64 {
        self.total[tier.index()]
    }

    /// Pages of all spaces in a tier that Terrace demoted. What the kernel, or the program itself, put there is not among them.
    pub fn demoted_in_all(&self, tier: TierId) -> u64 {
        self.demoted[tier.index()]
    }

    /// The same of one space.
    pub fn demoted(&self, space: SpaceId, tier: TierId) -> u64 {
        self.demoted_of.get(&space).map_or(0, |demoted| demoted[tier.index()])
    }

    /// Pages of a space with memory behind them, in any tier.
    pub fn footprint(&self, space: SpaceId) -> u64 {
        self.used.get(&space).map_or(0, |used| used.iter().sum())
    }

    /// Pages of all spaces with memory behind them.
    pub fn footprint_of_all(&self) -> u64 {
        self.total.iter().sum()
    }

    /// The known spaces, in order.
    pub fn spaces(&self) -> impl Iterator<Item = SpaceId> {
        self.used.keys().copied()
    }

    /// Number of ids allocated, including free ones: the length that a policy's own side array needs.
    pub fn capacity(&self) -> usize {
        self.pages.len()
    }

    /// Bytes of this structure.
    pub fn memory_bytes(&self) -> usize {
        // A B-tree node holds up to 11 entries and is on average three quarters full.
        let index = self.index.len() * size_of::<((SpaceId, u64), BlockId)>() * 4 / 3;
        self.pages.capacity() * size_of::<Page>() + self.blocks.capacity() * size_of::<Option<Block>>() + index
    }

    fn info(&self, block: BlockId) -> &Block {
        self.blocks[block.0 as usize].as_ref().expect("the id belongs to a live block")
    }

    fn info_mut(&mut self, block: BlockId) -> &mut Block {
        self.blocks[block.0 as usize].as_mut().expect("the id belongs to a live block")
    }

    fn block_for(&mut self, space: SpaceId, start: Vpn) -> BlockId {
        let key = (space, start.0 >> BLOCK_SHIFT);
        if let Some(block) = self.index.get(&key) {
            return *block;
        }
        let info = Some(Block { space, start, huge: false, file: false, managed: 0 });
        let block = match self.free.pop() {
            Some(block) => {
                self.blocks[block.0 as usize] = info;
                block
            }
            None => {
                self.blocks.push(info);
                // Grow by an eighth, not by half: at 0.2 % of the managed memory the slack counts.
                if self.pages.len() == self.pages.capacity() {
                    let eighth = (self.pages.len() / 8).max(16 * BLOCK_PAGES as usize);
                    self.pages.reserve_exact(eighth.next_multiple_of(BLOCK_PAGES as usize));
                }
                self.pages.resize(self.pages.len() + BLOCK_PAGES as usize, Page::UNMANAGED);
                BlockId(self.blocks.len() as u32 - 1)
            }
        };
        self.index.insert(key, block);
        block
    }

    fn forget(&mut self, page: PageId) {
        if self.pages[page.index()].managed() {
            self.set_tier(page, None);
            self.pages[page.index()] = Page::UNMANAGED;
            self.info_mut(page.block()).managed -= 1;
        }
    }

    fn release_if_empty(&mut self, block: BlockId) {
        let info = *self.info(block);
        if info.managed & !SPLIT == 0 {
            self.index.remove(&(info.space, info.start.0 >> BLOCK_SHIFT));
            self.blocks[block.0 as usize] = None;
            self.split -= u64::from(info.split());
            self.free.push(block);
        }
    }
}

/// A single page by its id. The id must be one that [`Pages`] handed out.
impl std::ops::Index<PageId> for Pages {
    type Output = Page;
    fn index(&self, page: PageId) -> &Page {
        &self.pages[page.index()]
    }
}

impl std::ops::IndexMut<PageId> for Pages {
    fn index_mut(&mut self, page: PageId) -> &mut Page {
        &mut self.pages[page.index()]
    }
}

/// A column that a policy keeps besides the pages, one entry per page id, grown as ids appear.
#[derive(Clone, Debug, Default)]
pub struct Column<T> {
    entries: Vec<T>,
}

impl<T: Clone + Default> Column<T> {
    /// Grows the column so that every id of `pages` has an entry.
    pub fn fit(&mut self, pages: &Pages) {
        if self.entries.len() < pages.capacity() {
            self.entries.resize(pages.capacity(), T::default());
        }
    }
}

impl<T> Deref for Column<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.entries
    }
}

impl<T> DerefMut for Column<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: SpaceId = SpaceId(7);

    #[test]
    fn a_page_costs_eight_bytes() {
        assert_eq!(size_of::<Page>(), 8);
        let mut pages = Pages::new();
        pages.map(SPACE, Vpn(0)..Vpn(1 << 20));
        assert!(pages.memory_bytes() <= (1 << 20) * 10, "{} bytes for 4 GiB", pages.memory_bytes());
    }

    #[test]
    fn ranges_appear_vanish_and_their_ids_come_back() {
        let mut pages = Pages::new();
        let blocks = pages.map(SPACE, Vpn(500)..Vpn(1030));
        assert_eq!(blocks.len(), 3);
        assert!(pages.find(SPACE, Vpn(499)).is_none());
        let page = pages.find(SPACE, Vpn(1029)).unwrap();
        assert_eq!(pages.locate(page), (SPACE, Vpn(1029)));
        pages.set_tier(page, Some(TierId(1)));
        assert_eq!((pages.used(SPACE, TierId(1)), pages.footprint(SPACE)), (1, 1));

        pages.unmap(SPACE, Vpn(1024)..Vpn(1030));
        assert_eq!(pages.footprint(SPACE), 0);
        assert!(pages.find(SPACE, Vpn(1029)).is_none());
        let reused = pages.map(SpaceId(8), Vpn(0)..Vpn(1));
        assert_eq!(reused, vec![blocks[2]], "the id of the vanished block is used again");
        assert_eq!(pages.capacity(), 3 * 512);
    }

    #[test]
    fn mapping_twice_keeps_the_state() {
        let mut pages = Pages::new();
        pages.map(SPACE, Vpn(0)..Vpn(8));
        let page = pages.find(SPACE, Vpn(3)).unwrap();
        pages[page].heat = 42;
        pages.map(SPACE, Vpn(0)..Vpn(16));
        assert_eq!(pages[page].heat, 42);
    }

    #[test]
    fn a_huge_block_is_one_unit_until_it_is_split() {
        let mut pages = Pages::new();
        let block = pages.map(SPACE, Vpn(0)..Vpn(512))[0];
        let page = block.first_page().plus(100);
        pages.set_huge(block, true);
        assert_eq!(pages.unit(page), block.first_page()..block.first_page().plus(512));
        pages.set_huge(block, false);
        assert_eq!(pages.unit(page), page..page.plus(1));
    }

    #[test]
    fn flags_do_not_touch_each_other() {
        let mut page = Page::NEW;
        page.set_policy_bits(3);
        page.set_ping_pong(9);
        page.set_moving(true);
        assert_eq!((page.policy_bits(), page.ping_pong(), page.moving(), page.managed()), (3, 3, true, true));
        page.set_ping_pong(0);
        page.set_moving(false);
        assert_eq!((page.policy_bits(), page.ping_pong(), page.moving(), page.pinned()), (3, 0, false, false));
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            /// Whatever appears, moves and vanishes: the counters equal a recount, and no page is in two tiers.
            #[test]
            fn counters_equal_a_recount(steps in proptest::collection::vec((0u8..3, 0u64..4000, 1u64..900, 0u8..3), 1..60)) {
                let mut pages = Pages::new();
                for (kind, start, length, tier) in steps {
                    let range = Vpn(start)..Vpn(start + length);
                    match kind {
                        0 => { pages.map(SPACE, range); }
                        1 => pages.unmap(SPACE, range),
                        _ => for vpn in range.start.0..range.end.0 {
                            if let Some(page) = pages.find(SPACE, Vpn(vpn)) {
                                pages.set_tier(page, (tier < 2).then_some(TierId(tier)));
                            }
                        },
                    }
                }
                let mut recount = [0u64; TierId::MAX];
                let blocks: Vec<BlockId> = pages.blocks().map(|(id, _)| id).collect();
                for block in &blocks {
                    for page in pages.block_pages(*block) {
                        if let Some(tier) = page.tier() { recount[tier.index()] += 1; }
                    }
                }
                for (tier, &counted) in recount.iter().enumerate() {
                    prop_assert_eq!(pages.used(SPACE, TierId(tier as u8)), counted);
                }
                prop_assert!(blocks.windows(2).all(|pair| pages.block(pair[0]).unwrap().start < pages.block(pair[1]).unwrap().start));
            }
        }
    }
}
