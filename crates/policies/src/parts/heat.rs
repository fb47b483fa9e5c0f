//! Access counts of pages and huge pages, cooled lazily by epochs, with the histogram that goes with them.
//!
//! In: samples, births, deaths, moves, coolings. Out: for each the [`Change`] of the unit's place in the histogram, so that a
//! policy can keep its lists in step. Must not: touch a page on cooling (its count is halved once for each missed epoch when
//! it is next looked at), decide what is hot, or rebuild the histogram.
//!
//! Source: MEMTIS's per-page state and cooling (specification section 6), which FlexMem keeps. A sample adds 512 to a base
//! page, so that it lands in bin 9 with the first; a huge page's own count grows by 1 a sample and weighs 512 pages, and each
//! of its pages keeps a count as if it were alone. A new page starts with a value the policy sets, is left out of
//! the first cooling, and enters the histogram with its first sample or at the first cooling.
//!
//! Memory beside the eight common bytes: 4 bytes a page for the count; 8 bytes a block (0.016 a page).
//! `stamp` is the epoch, the two policy bits are "slow" and "sampled".

use terrace_core::pages::{Column, Page, Pages};
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, TierId};

use crate::parts::bins::{BINS, Bins, fine_bin};

/// What a sample adds to a base page, and a huge page's worth of its own count.
pub const SAMPLE_WEIGHT: u32 = 512;

/// Bytes a page costs here beside the common eight.
pub const BYTES_PER_PAGE: f64 = 4.0 + 8.0 / BLOCK_PAGES as f64;

const SLOW: u8 = 1;
const SAMPLED: u8 = 2;

/// How a unit stands to the histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Counted, and halved at the next cooling.
    Settled,
    /// Born since the last cooling and sampled: counted, not halved at the next cooling.
    Fresh,
    /// Born since the last cooling and never sampled: not counted yet.
    Unseen,
}

/// Where a unit is: its side, its standing and its fine bin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// Whether it lies in any tier but the fastest.
    pub slow: bool,
    /// Its standing.
    pub class: Class,
    /// Its fine bin.
    pub fine: usize,
}

/// A unit moved from one spot to another, appeared (`before` is `None`) or vanished (`after` is).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The unit: a page, or a huge block by its first page.
    pub unit: PageId,
    /// Its 4 KiB pages: 1 or 512.
    pub pages: u64,
    /// Where it was.
    pub before: Option<Spot>,
    /// Where it is.
    pub after: Option<Spot>,
}

/// What is known of a block as one unit.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Its value while it is huge; 0 when it is not tracked as a unit.
    value: u32,
    stamp: u16,
    flags: u8,
    huge: bool,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Heat {
    values: Column<u32>,
    blocks: Vec<Block>,
    epoch: u16,
    newborn: u32,
    /// What one observation of a sample adds.
    weight: u32,
    /// Histograms by side and class.
    bins: [[Bins; 3]; 2],
    /// The histogram as if every page were a base page, by class, where it is wanted.
    base_bins: Option<[Bins; 3]>,
    changes: Vec<Change>,
}

impl Heat {
    /// No pages. `with_base_view` keeps a second histogram in which the pages of huge blocks count one by one.
    pub fn new(with_base_view: bool) -> Heat {
        Heat {
            values: Column::default(),
            blocks: Vec::new(),
            epoch: 0,
            newborn: 1,
            weight: SAMPLE_WEIGHT,
            bins: Default::default(),
            base_bins: with_base_view.then(Default::default),
            changes: Vec::new(),
        }
    }

    /// Base pages stand for huge ones, and `parts` observations for one sample, which adds 1 to a huge page. At most 512 parts:
    /// a page that stands for a huge one has the 512th of its accesses, and with that the 512th of its samples.
    pub fn set_folded(&mut self, parts: u32) {
        self.weight = (SAMPLE_WEIGHT / parts.max(1)).max(1);
    }

    /// The value new pages start with: a count plus one.
    pub fn set_newborn(&mut self, value: u32) {
        self.newborn = value.max(1);
    }

    /// Makes room for every id of `pages`.
    pub fn fit(&mut self, pages: &Pages) {
        self.values.fit(pages);
        let blocks = pages.capacity() / BLOCK_PAGES as usize;
        if self.blocks.len() < blocks {
            self.blocks.resize(blocks, Block::default());
        }
    }

    /// Bytes this structure occupies.
    pub fn memory_bytes(&self) -> usize {
        self.values.len() * size_of::<u32>() + self.blocks.capacity() * size_of::<Block>() + size_of::<Heat>()
    }

    /// Brings the unit of `page` up to date with where the page lies and how it is mapped.
    pub fn refresh(&mut self, page: PageId, pages: &mut Pages) {
        let block = page.block();
        let huge = pages.block(block).is_some_and(|block| block.huge);
        if self.blocks[block.0 as usize].huge != huge {
            self.remap(block, huge, pages);
        }
        let unit = pages.unit(page).start;
        let slow = pages[unit].tier().map(|tier| tier > TierId::FAST);
        let before = self.spot(unit, pages);
        match (before, slow) {
            (None, Some(slow)) => self.enter(unit, slow, self.newborn, false, self.epoch.wrapping_add(1), pages),
            (Some(_), None) => self.leave(unit, pages),
            (Some(before), Some(slow)) if before.slow != slow => {
                self.set_flag(unit, SLOW, slow, pages);
                let pages_in_unit = self.unit_pages(unit);
                self.shift(unit, pages_in_unit, Some(before), Some(Spot { slow, ..before }));
            }
            _ => {}
        }
    }

    /// Forgets the unit of a page that is about to vanish. Of a huge block that vanishes in part the rest enters again when it
    /// is next seen.
    pub fn forget(&mut self, page: PageId, pages: &Pages) {
        let unit = if self.blocks[page.block().0 as usize].huge { page.block().first_page() } else { page };
        if self.spot(unit, pages).is_some() {
            self.leave(unit, pages);
        }
    }

    /// A sample hit `page`. Returns the unit and its value before, or `None` if the page is not tracked.
    pub fn sample(&mut self, page: PageId, pages: &mut Pages) -> Option<Hit> {
        self.refresh(page, pages);
        let unit = pages.unit(page).start;
        let before = self.spot(unit, pages)?;
        let page_before = self.value(page, pages);
        let huge = self.blocks[page.block().0 as usize].huge;
        if huge {
            let value = self.unit_value(unit, pages).saturating_add(1);
            self.store_unit(unit, value);
        }
        self.store(page, page_before.saturating_add(self.weight), pages);
        if let Some(base) = &mut self.base_bins
            && huge
        {
            base[0].take(fine_bin(page_before), 1);
            base[0].add(fine_bin(page_before.saturating_add(self.weight)), 1);
        }
        self.set_flag(unit, SAMPLED, true, pages);
        let after = self.spot(unit, pages).expect("the unit is tracked");
        let pages_in_unit = self.unit_pages(unit);
        self.shift(unit, pages_in_unit, Some(before), Some(after));
        Some(Hit { unit, page_before, before, after })
    }

    /// Halves every count. Costs nothing a page.
    pub fn cool(&mut self) {
        for side in &mut self.bins {
            let [settled, fresh, unseen] = side;
            settled.cool();
            settled.absorb(fresh);
            settled.absorb(unseen);
        }
        if let Some([settled, fresh, unseen]) = &mut self.base_bins {
            settled.cool();
            settled.absorb(fresh);
            settled.absorb(unseen);
        }
        self.epoch = self.epoch.wrapping_add(1);
    }

    /// Multiplies every count by `keep`, which is not one half: no shift does that, so every page is looked at.
    pub fn cool_by(&mut self, keep: f64, pages: &mut Pages) {
        let blocks: Vec<BlockId> = pages.blocks().map(|(block, _)| block).collect();
        let scaled = |value: u32| ((f64::from(value - 1) * keep) as u32).saturating_add(1);
        let epoch = self.epoch.wrapping_add(1);
        for block in blocks {
            let huge = self.blocks[block.0 as usize].huge;
            for page in (0..BLOCK_PAGES).map(|offset| block.first_page().plus(offset)) {
                let spot = if huge && page.offset() > 0 { None } else { self.spot(page, pages) };
                let fresh = spot.is_some_and(|spot| spot.class != Class::Settled);
                let value = self.value(page, pages);
                if huge && value > 0 {
                    self.set(page, scaled(value), epoch, pages);
                }
                let Some(before) = spot else { continue };
                let value = self.unit_value(page, pages);
                let value = if fresh { value } else { scaled(value) };
                if huge {
                    let entry = &mut self.blocks[block.0 as usize];
                    (entry.value, entry.stamp) = (value, epoch);
                } else {
                    self.set(page, value, epoch, pages);
                }
                let after = Spot { class: Class::Settled, fine: fine_bin(value), ..before };
                let pages_in_unit = self.unit_pages(page);
                self.shift(page, pages_in_unit, Some(before), Some(after));
            }
        }
        self.epoch = epoch;
        self.recount_base(pages);
    }

    /// Where a unit is now; `None` if it is not tracked.
    pub fn spot(&self, unit: PageId, pages: &Pages) -> Option<Spot> {
        let block = self.blocks.get(unit.block().0 as usize)?;
        let (value, stamp, flags) = if block.huge {
            (block.value, block.stamp, block.flags)
        } else {
            let page = pages[unit];
            (self.values[unit.index()], page.stamp, page.policy_bits())
        };
        if value == 0 {
            return None;
        }
        let class = match (stamp == self.epoch.wrapping_add(1), flags & SAMPLED != 0) {
            (false, _) => Class::Settled,
            (true, true) => Class::Fresh,
            (true, false) => Class::Unseen,
        };
        Some(Spot { slow: flags & SLOW != 0, class, fine: fine_bin(self.cooled(value, stamp)) })
    }

    /// The value (count plus one) of a unit now; 0 if it is not tracked.
    pub fn unit_value(&self, unit: PageId, pages: &Pages) -> u32 {
        let block = &self.blocks[unit.block().0 as usize];
        if block.huge { self.cooled(block.value, block.stamp) } else { self.value(unit, pages) }
    }

    /// The value (count plus one) of one page now, within a huge block too; 0 if it is not tracked.
    pub fn value(&self, page: PageId, pages: &Pages) -> u32 {
        self.cooled(self.values[page.index()], pages[page].stamp)
    }

    /// The 4 KiB pages of a unit as it is tracked: 1 or 512.
    pub fn unit_pages(&self, unit: PageId) -> u64 {
        if self.blocks[unit.block().0 as usize].huge { u64::from(BLOCK_PAGES) } else { 1 }
    }

    /// Pages by visible bin that count: all but the unseen.
    pub fn histogram(&self) -> [u64; BINS] {
        let mut visible = [0; BINS];
        for side in &self.bins {
            side[Class::Settled as usize].add_to(&mut visible);
            side[Class::Fresh as usize].add_to(&mut visible);
        }
        visible
    }

    /// As [`Heat::histogram`], of the fast or the slow side alone.
    pub fn histogram_of(&self, slow: bool) -> [u64; BINS] {
        let mut visible = [0; BINS];
        self.bins[usize::from(slow)][Class::Settled as usize].add_to(&mut visible);
        self.bins[usize::from(slow)][Class::Fresh as usize].add_to(&mut visible);
        visible
    }

    /// As [`Heat::histogram`], as if every page were a base page; the same where no such view is kept.
    pub fn base_histogram(&self) -> [u64; BINS] {
        let Some(base) = &self.base_bins else { return self.histogram() };
        let mut visible = [0; BINS];
        base[Class::Settled as usize].add_to(&mut visible);
        base[Class::Fresh as usize].add_to(&mut visible);
        visible
    }

    /// Pages tracked, the unseen included.
    pub fn tracked_pages(&self) -> u64 {
        self.bins.iter().flatten().map(Bins::total).sum()
    }

    /// The changes since the last call, in order.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Gives a drained buffer back, so that its memory is used again.
    pub fn give_back(&mut self, mut buffer: Vec<Change>) {
        if self.changes.is_empty() {
            buffer.clear();
            self.changes = buffer;
        }
    }

    /// A block became huge, or was split: the counts of its pages stay.
    fn remap(&mut self, block: BlockId, huge: bool, pages: &mut Pages) {
        let first = block.first_page();
        let ids = (0..BLOCK_PAGES).map(|offset| first.plus(offset));
        let values: Vec<u32> = ids.clone().map(|page| self.value(page, pages)).collect();
        if !huge {
            let before = self.spot(first, pages);
            if before.is_some() {
                self.leave(first, pages);
            }
            self.blocks[block.0 as usize] = Block::default();
            let Some(before) = before else { return };
            for (page, value) in ids.zip(values) {
                if pages[page].tier().is_some() {
                    self.enter(page, before.slow, value.max(1), true, self.epoch, pages);
                }
            }
            return;
        }
        let (mut sum, mut slow, mut any) = (0u64, false, false);
        for (page, &value) in ids.clone().zip(&values) {
            if let Some(spot) = self.spot(page, pages) {
                (slow, any) = (slow | spot.slow, true);
                sum += u64::from(value - 1);
                self.leave(page, pages);
            }
        }
        self.blocks[block.0 as usize] = Block { huge: true, ..Block::default() };
        if !any {
            return;
        }
        for (page, value) in ids.zip(values) {
            self.set(page, value.max(1), self.epoch, pages);
            self.base_enter(Class::Settled, fine_bin(value.max(1)));
        }
        // The count of the whole is that of its pages, in the huge page's own scale of 1 a sample.
        let value = (sum / u64::from(SAMPLE_WEIGHT)).min(u64::from(u32::MAX - 1)) as u32 + 1;
        self.enter(first, slow, value, true, self.epoch, pages);
    }

    fn enter(&mut self, unit: PageId, slow: bool, value: u32, sampled: bool, stamp: u16, pages: &mut Pages) {
        let flags = if slow { SLOW } else { 0 } | if sampled { SAMPLED } else { 0 };
        let block = unit.block().0 as usize;
        if self.blocks[block].huge {
            self.blocks[block] = Block { value, stamp, flags, huge: true };
            for page in (0..BLOCK_PAGES).map(|offset| unit.plus(offset)) {
                if self.values[page.index()] == 0 {
                    self.set(page, 1, self.epoch, pages);
                    self.base_enter(Class::Settled, 0);
                }
            }
        } else {
            self.set(unit, value, stamp, pages);
            pages[unit].set_policy_bits(flags);
        }
        let after = self.spot(unit, pages);
        self.shift(unit, self.unit_pages(unit), None, after);
    }

    fn leave(&mut self, unit: PageId, pages: &Pages) {
        let before = self.spot(unit, pages);
        let unit_pages = self.unit_pages(unit);
        let block = unit.block().0 as usize;
        if self.blocks[block].huge {
            for page in (0..BLOCK_PAGES).map(|offset| unit.plus(offset)) {
                let fine = fine_bin(self.value(page, pages));
                if let Some(base) = &mut self.base_bins {
                    base[Class::Settled as usize].take(fine, 1);
                }
                self.values[page.index()] = 0;
            }
            self.blocks[block] = Block { huge: true, ..Block::default() };
        } else {
            self.values[unit.index()] = 0;
        }
        self.shift(unit, unit_pages, before, None);
    }

    /// Enters a change into the histograms, and notes it if it is one.
    fn shift(&mut self, unit: PageId, pages: u64, before: Option<Spot>, after: Option<Spot>) {
        if before == after {
            return;
        }
        let base = !self.blocks[unit.block().0 as usize].huge;
        if let Some(spot) = before {
            self.bins[usize::from(spot.slow)][spot.class as usize].take(spot.fine, pages);
            if let Some(bins) = self.base_bins.as_mut().filter(|_| base) {
                bins[spot.class as usize].take(spot.fine, pages);
            }
        }
        if let Some(spot) = after {
            self.bins[usize::from(spot.slow)][spot.class as usize].add(spot.fine, pages);
            if base {
                self.base_enter(spot.class, spot.fine);
            }
        }
        self.changes.push(Change { unit, pages, before, after });
    }

    fn base_enter(&mut self, class: Class, fine: usize) {
        if let Some(base) = &mut self.base_bins {
            base[class as usize].add(fine, 1);
        }
    }

    fn recount_base(&mut self, pages: &Pages) {
        if self.base_bins.take().is_none() {
            return;
        }
        let mut base: [Bins; 3] = Default::default();
        for (block, _) in pages.blocks() {
            for page in (0..BLOCK_PAGES).map(|offset| block.first_page().plus(offset)) {
                let value = self.value(page, pages);
                if value > 0 {
                    base[Class::Settled as usize].add(fine_bin(value), 1);
                }
            }
        }
        self.base_bins = Some(base);
    }

    fn set(&mut self, page: PageId, value: u32, stamp: u16, pages: &mut Pages) {
        self.values[page.index()] = value;
        pages[page].stamp = stamp;
    }

    /// Stores a new value of one page; a page born since the last cooling stays out of the next one.
    fn store(&mut self, page: PageId, value: u32, pages: &mut Pages) {
        let stamp = self.renewed(pages[page].stamp);
        self.set(page, value, stamp, pages);
    }

    fn store_unit(&mut self, unit: PageId, value: u32) {
        let block = unit.block().0 as usize;
        let stamp = self.renewed(self.blocks[block].stamp);
        (self.blocks[block].value, self.blocks[block].stamp) = (value, stamp);
    }

    fn renewed(&self, stamp: u16) -> u16 {
        if stamp == self.epoch.wrapping_add(1) { stamp } else { self.epoch }
    }

    fn set_flag(&mut self, unit: PageId, flag: u8, on: bool, pages: &mut Pages) {
        let set = |flags: u8| if on { flags | flag } else { flags & !flag };
        let block = &mut self.blocks[unit.block().0 as usize];
        if block.huge {
            block.flags = set(block.flags);
        } else {
            let page: &mut Page = &mut pages[unit];
            page.set_policy_bits(set(page.policy_bits()));
        }
    }

    /// A stored value after the coolings it missed. Never-stored values stay 0.
    fn cooled(&self, value: u32, stamp: u16) -> u32 {
        let missed = self.epoch.wrapping_sub(stamp);
        match (value, missed) {
            (0, _) => 0,
            (value, u16::MAX) => value,
            (value, missed) => value.checked_shr(u32::from(missed)).unwrap_or(0).max(1),
        }
    }
}

/// What a sample found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The unit that was hit.
    pub unit: PageId,
    /// The value of the very page before.
    pub page_before: u32,
    /// Where the unit was.
    pub before: Spot,
    /// Where it is now.
    pub after: Spot,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use terrace_core::units::{SpaceId, Vpn};

    const SPACE: SpaceId = SpaceId(0);

    fn three_blocks() -> (Heat, Pages) {
        let mut pages = Pages::new();
        pages.map(SPACE, Vpn(0)..Vpn(3 * 512));
        let mut heat = Heat::new(true);
        heat.fit(&pages);
        (heat, pages)
    }

    /// The histogram as a count over all units, from the outside.
    fn recount(heat: &Heat, pages: &Pages) -> ([u64; BINS], u64) {
        let (mut visible, mut tracked) = ([0; BINS], 0);
        for (block, info) in pages.blocks() {
            let step = if info.huge { BLOCK_PAGES as usize } else { 1 };
            for page in (0..BLOCK_PAGES).step_by(step).map(|offset| block.first_page().plus(offset)) {
                if let Some(spot) = heat.spot(page, pages) {
                    tracked += step as u64;
                    if spot.class != Class::Unseen {
                        visible[crate::parts::bins::visible_bin(spot.fine)] += step as u64;
                    }
                }
            }
        }
        (visible, tracked)
    }

    #[test]
    fn one_sample_lands_in_bin_nine_and_a_new_page_skips_the_next_cooling() {
        let (mut heat, mut pages) = three_blocks();
        let page = PageId(5);
        pages.set_tier(page, Some(TierId(1)));
        heat.set_newborn(1);
        heat.refresh(page, &mut pages);
        assert_eq!(heat.histogram().iter().sum::<u64>(), 0, "a page never sampled is not counted");
        heat.sample(page, &mut pages).unwrap();
        assert_eq!(heat.histogram()[9], 1);
        heat.cool();
        assert_eq!((heat.histogram()[9], heat.unit_value(page, &pages)), (1, 513));
        heat.cool();
        assert_eq!((heat.histogram()[8], heat.unit_value(page, &pages)), (1, 256));
    }

    #[test]
    fn a_huge_page_needs_512_samples_for_bin_nine_and_its_pages_one() {
        let (mut heat, mut pages) = three_blocks();
        pages.set_huge(BlockId(1), true);
        for page in (0..512).map(|offset| BlockId(1).first_page().plus(offset)) {
            pages.set_tier(page, Some(TierId(1)));
        }
        let first = BlockId(1).first_page();
        for sample in 0..511 {
            let hit = heat.sample(first.plus(sample % 7), &mut pages).unwrap();
            assert_eq!(hit.unit, first);
        }
        assert_eq!((heat.spot(first, &pages).unwrap().fine, heat.histogram()[9]), (9, 512));
        assert_eq!(heat.base_histogram()[15], 7, "seven pages of it took 73 samples each");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Place(u32, Option<u8>),
        Sample(u32),
        Huge(u32, bool),
        Cool,
        CoolBy(f64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..1536, proptest::option::of(0u8..2)).prop_map(|(page, tier)| Step::Place(page, tier)),
            (0u32..1536).prop_map(Step::Sample),
            (0u32..3, any::<bool>()).prop_map(|(block, huge)| Step::Huge(block, huge)),
            Just(Step::Cool),
            (0.1f64..0.9).prop_map(Step::CoolBy),
        ]
    }

    proptest! {
        /// Shifted histograms equal a recount of all units, and no page is lost, whatever happens.
        #[test]
        fn the_histogram_equals_a_recount(steps in proptest::collection::vec(step(), 1..300)) {
            let (mut heat, mut pages) = three_blocks();
            for step in steps {
                match step {
                    Step::Place(page, tier) => {
                        let unit = pages.unit(PageId(page));
                        for page in unit.start.0..unit.end.0 {
                            pages.set_tier(PageId(page), tier.map(TierId));
                        }
                        heat.refresh(PageId(page), &mut pages);
                    }
                    Step::Sample(page) => { heat.sample(PageId(page), &mut pages); }
                    Step::Huge(block, huge) => {
                        pages.set_huge(BlockId(block), huge);
                        let first = BlockId(block).first_page();
                        let tier = pages[first].tier();
                        for page in (0..512).map(|offset| first.plus(offset)) {
                            pages.set_tier(page, tier);
                            heat.refresh(page, &mut pages);
                        }
                    }
                    Step::Cool => heat.cool(),
                    Step::CoolBy(keep) => heat.cool_by(keep, &mut pages),
                }
                let (visible, tracked) = recount(&heat, &pages);
                prop_assert_eq!(heat.histogram(), visible);
                prop_assert_eq!(heat.tracked_pages(), tracked);
                prop_assert_eq!(tracked, pages.footprint(SPACE));
            }
        }
    }
}
