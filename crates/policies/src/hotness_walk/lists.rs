//! Lists of units by heat, for each space and side apart, that age without being walked.
//!
//! In: units with their heat, rounds that halve all heats. Out: the hottest and the coldest units of a space. Must not: know
//! why a unit is hot.
//!
//! Heat halves at every round, so the logarithm of a unit's heat falls by one at each. Filed under the round plus that
//! logarithm, a unit stays where it is: only the list that has come down to no heat at all is joined to that of the cold, in one
//! step. Links take 8 bytes a page, the place 4.

use std::collections::BTreeMap;

use terrace_core::units::{PageId, SpaceId};

use crate::parts::lists::Lists;

/// Heats above zero have logarithms 0 to 15; a list for each, and one more so that none is met again before it is empty.
const RING: u32 = 18;
/// Lists of one side of a space: the ring, and the units without heat.
const SIDE: usize = RING as usize + 1;
const COLD: usize = RING as usize;
/// Spaces with lists of their own; further ones share those of the last. 1,700 processes under one manager are not expected.
const MOST_SPACES: usize = 1700;

/// Highest bin: bin 0 is no heat, bin `b` heats from `2^(b-1)` up to `2^b`.
pub const TOP_BIN: u32 = 16;

/// The bin of a heat.
pub const fn bin_of(heat: u16) -> u32 {
    u16::BITS - heat.leading_zeros()
}

/// Fast memory, or slower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The fastest tier.
    Fast = 0,
    /// Any other.
    Slow = 1,
}

/// Where a unit is filed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    /// The round plus the bin; 0 for no heat. The lowest bit is the side; all shifted by one more so that 0 is "nowhere".
    code: u32,
}

/// See the module's header.
#[derive(Clone, Debug, Default)]
pub struct HotnessLists {
    lists: Option<Lists>,
    places: Vec<Place>,
    /// Pages in each list, and those of them that are units by themselves.
    pages: Vec<u64>,
    singles: Vec<u64>,
    slots: BTreeMap<SpaceId, usize>,
    round: u32,
}

impl HotnessLists {
    /// Makes room for the ids 0 to `length - 1`.
    pub fn fit(&mut self, length: usize) {
        self.lists.get_or_insert_with(|| Lists::new(0)).fit(length);
        if self.places.len() < length {
            self.places.resize(length, Place::default());
        }
    }

    /// Bytes this structure occupies.
    pub fn memory_bytes(&self) -> usize {
        self.lists.as_ref().map_or(0, Lists::memory_bytes) + self.places.capacity() * size_of::<Place>()
    }

    /// The side a unit is filed on, if it is filed.
    pub fn side(&self, unit: PageId) -> Option<Side> {
        match self.places.get(unit.index())?.code {
            0 => None,
            code if code & 1 == 0 => Some(Side::Fast),
            _ => Some(Side::Slow),
        }
    }

    /// The bin of a unit now; 0 for one that is not filed.
    pub fn bin(&self, unit: PageId) -> u32 {
        self.places.get(unit.index()).map_or(0, |place| self.bin_at(*place))
    }

    fn bin_at(&self, place: Place) -> u32 {
        // What is filed stands two above its sum, less the round the bin remains.
        (place.code >> 1).saturating_sub(self.round + 1)
    }

    /// Files a unit of `pages` pages under its heat, wherever it was before.
    pub fn file(&mut self, unit: PageId, space: SpaceId, side: Side, heat: u16, weight: u64) {
        self.remove(unit, space, weight);
        let bin = bin_of(heat);
        let list = self.list(space, side, bin);
        let Some(lists) = &mut self.lists else { return };
        lists.push_front(list, unit.0);
        self.pages[list] += weight;
        self.singles[list] += u64::from(weight == 1);
        let sum = if bin == 0 { 1 } else { self.round + 1 + bin };
        self.places[unit.index()] = Place { code: sum << 1 | side as u32 };
    }

    /// Removes a unit of `pages` pages.
    pub fn remove(&mut self, unit: PageId, space: SpaceId, weight: u64) {
        let Some(side) = self.side(unit) else { return };
        let list = self.list(space, side, self.bin(unit));
        self.pages[list] -= weight;
        self.singles[list] -= u64::from(weight == 1);
        if let Some(lists) = &mut self.lists {
            lists.remove(unit.0);
        }
        self.places[unit.index()] = Place::default();
    }

    /// A round: all heats are halved.
    pub fn halve(&mut self) {
        let falling = ((self.round + 1) % RING) as usize;
        self.round += 1;
        let Some(lists) = &mut self.lists else { return };
        for slot in 0..self.pages.len() / (2 * SIDE) {
            for side in 0..2 {
                let base = (2 * slot + side) * SIDE;
                lists.splice_back(base + falling, base + COLD);
                self.pages[base + COLD] += std::mem::take(&mut self.pages[base + falling]);
                self.singles[base + COLD] += std::mem::take(&mut self.singles[base + falling]);
            }
        }
    }

    /// Pages of a space on a side in a bin.
    pub fn pages(&self, space: SpaceId, side: Side, bin: u32) -> u64 {
        self.slots.get(&space).map_or(0, |slot| self.pages[self.place_of(*slot, side, bin)])
    }

    /// Those of them that are units by themselves: 4 KiB pages.
    pub fn singles(&self, space: SpaceId, side: Side, bin: u32) -> u64 {
        self.slots.get(&space).map_or(0, |slot| self.singles[self.place_of(*slot, side, bin)])
    }

    /// The unit of a space on a side in a bin that was filed longest ago.
    pub fn oldest(&self, space: SpaceId, side: Side, bin: u32) -> Option<PageId> {
        let slot = self.slots.get(&space)?;
        self.lists.as_ref()?.back(self.place_of(*slot, side, bin)).map(PageId)
    }

    /// The unit in the same list that was filed after this one.
    pub fn newer(&self, unit: PageId) -> Option<PageId> {
        self.lists.as_ref()?.toward_front(unit.0).map(PageId)
    }

    /// Units of a space on a side in a bin, the one filed last first. Takes no more steps than are asked of it.
    pub fn newest_first(&self, space: SpaceId, side: Side, bin: u32) -> impl Iterator<Item = PageId> + '_ {
        let list = self.slots.get(&space).map(|slot| self.place_of(*slot, side, bin));
        let lists = self.lists.as_ref().zip(list);
        lists
            .into_iter()
            .flat_map(|(lists, list)| std::iter::successors(lists.front(list), |&id| lists.toward_back(id)))
            .map(PageId)
    }

    fn place_of(&self, slot: usize, side: Side, bin: u32) -> usize {
        let base = (2 * slot + side as usize) * SIDE;
        base + if bin == 0 { COLD } else { ((self.round + bin) % RING) as usize }
    }

    fn list(&mut self, space: SpaceId, side: Side, bin: u32) -> usize {
        let next = self.slots.len().min(MOST_SPACES - 1);
        let slot = *self.slots.entry(space).or_insert(next);
        let count = (slot + 1) * 2 * SIDE;
        if self.pages.len() < count {
            self.pages.resize(count, 0);
            self.singles.resize(count, 0);
            self.lists.get_or_insert_with(|| Lists::new(0)).add_lists(count);
        }
        self.place_of(slot, side, bin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SPACE: SpaceId = SpaceId(4);

    proptest! {
        /// Units stand in the bin of their heat, halved once a round since they were filed, whatever happened in between.
        #[test]
        fn units_age_as_their_heats_do(steps in proptest::collection::vec((0u8..4, 0u32..30, any::<u16>(), any::<bool>()), 1..200)) {
            let mut lists = HotnessLists::default();
            lists.fit(30);
            let mut model: BTreeMap<u32, (u16, Side)> = BTreeMap::new();
            for (kind, id, heat, slow) in steps {
                let side = if slow { Side::Slow } else { Side::Fast };
                match kind {
                    0 | 1 => {
                        lists.file(PageId(id), SPACE, side, heat, 1);
                        model.insert(id, (heat, side));
                    }
                    2 => {
                        lists.remove(PageId(id), SPACE, 1);
                        model.remove(&id);
                    }
                    _ => {
                        lists.halve();
                        model.values_mut().for_each(|(heat, _)| *heat >>= 1);
                    }
                }
                for (&id, &(heat, side)) in &model {
                    prop_assert_eq!(lists.bin(PageId(id)), bin_of(heat));
                    prop_assert_eq!(lists.side(PageId(id)), Some(side));
                }
                for side in [Side::Fast, Side::Slow] {
                    for bin in 0..=TOP_BIN {
                        let mut found: Vec<u32> = lists.newest_first(SPACE, side, bin).map(|unit| unit.0).collect();
                        found.sort_unstable();
                        let expected: Vec<u32> = model
                            .iter()
                            .filter(|(_, (heat, on))| *on == side && bin_of(*heat) == bin)
                            .map(|(id, _)| *id)
                            .collect();
                        prop_assert_eq!(lists.pages(SPACE, side, bin), expected.len() as u64);
                        prop_assert_eq!(found.clone(), expected);
                        let mut oldest: Vec<u32> =
                            std::iter::successors(lists.oldest(SPACE, side, bin), |unit| lists.newer(*unit)).map(|unit| unit.0).collect();
                        oldest.sort_unstable();
                        prop_assert_eq!(oldest, found);
                    }
                }
            }
        }
    }

    #[test]
    fn spaces_have_lists_of_their_own() {
        let mut lists = HotnessLists::default();
        lists.fit(10);
        lists.file(PageId(1), SpaceId(1), Side::Fast, 5, 512);
        lists.file(PageId(2), SpaceId(2), Side::Fast, 5, 1);
        assert_eq!((lists.pages(SpaceId(1), Side::Fast, 3), lists.pages(SpaceId(2), Side::Fast, 3)), (512, 1));
        assert_eq!((lists.singles(SpaceId(1), Side::Fast, 3), lists.singles(SpaceId(2), Side::Fast, 3)), (0, 1));
        assert_eq!(lists.newest_first(SpaceId(2), Side::Fast, 3).collect::<Vec<_>>(), [PageId(2)]);
        assert_eq!(lists.oldest(SpaceId(3), Side::Fast, 3), None);
    }
}
