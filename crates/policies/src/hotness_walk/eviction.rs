//! What has to leave fast memory so that something else may come: the coldest units first, and no space below its floor for
//! another's sake.
//!
//! In: lists of units by heat, the floors of the spaces. Out: units to demote, and what the search cost. Must not: give the same
//! unit twice, or request for anything itself.
//!
//! A space that asks may exchange its own pages for its own whatever its floor is; others give only what they have above theirs.
//! So each space's list is read by two cursors: what one passed over for the sake of a floor, the other still finds.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::pages::Pages;
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, SpaceId, TierId};

use crate::hotness_walk::lists::{HotnessLists, Side, TOP_BIN};

/// Units to give up, with the pages each has.
pub(crate) type Units = Vec<(PageId, u64)>;

/// See the module's header.
pub(crate) struct Victims<'a> {
    lists: &'a HotnessLists,
    pages: &'a Pages,
    /// Blocks that are left alone: they are being split.
    splitting: &'a BTreeSet<BlockId>,
    spaces: Vec<Source>,
    taken: BTreeSet<PageId>,
    /// Victims that were taken and not needed.
    spare: Units,
    searched: u64,
    kept: u64,
}

/// A space, and how far its lists have been read.
struct Source {
    space: SpaceId,
    floor: u64,
    fast: u64,
    own: Cursor,
    others: Cursor,
    /// Pages that could not be found for this space, the fewest: no more will be for a colder unit.
    stuck: u64,
}

/// A place in the lists of a space's fast units, from the coldest bin up, the one filed longest ago first.
#[derive(Clone, Copy, Default)]
struct Cursor {
    bin: u32,
    begun: bool,
    at: Option<PageId>,
}

impl Cursor {
    /// The next unit in bins below `below`.
    fn next(&mut self, lists: &HotnessLists, space: SpaceId, below: u32) -> Option<PageId> {
        while self.bin < below {
            self.at = match self.at {
                Some(unit) => lists.newer(unit),
                None if !self.begun => lists.oldest(space, Side::Fast, self.bin),
                None => None,
            };
            self.begun = true;
            if self.at.is_some() {
                return self.at;
            }
            *self = Cursor { bin: self.bin + 1, ..Cursor::default() };
        }
        None
    }
}

impl<'a> Victims<'a> {
    /// With the pages that each space keeps.
    pub(crate) fn new(
        lists: &'a HotnessLists,
        floors: BTreeMap<SpaceId, u64>,
        splitting: &'a BTreeSet<BlockId>,
        pages: &'a Pages,
    ) -> Victims<'a> {
        let source = |(space, floor)| Source {
            space,
            floor,
            fast: pages.used(space, TierId::FAST),
            own: Cursor::default(),
            others: Cursor::default(),
            stuck: u64::MAX,
        };
        let spaces = floors.into_iter().map(source).collect();
        Victims { lists, pages, splitting, spaces, taken: BTreeSet::new(), spare: Vec::new(), searched: 0, kept: 0 }
    }

    /// Units looked at, and those of them that stayed because of a floor.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.searched, self.kept)
    }

    /// Whether a unit may be moved now.
    pub(crate) fn is_usable(&self, unit: PageId) -> bool {
        let page = &self.pages[unit];
        !page.moving() && !page.pinned() && page.tier().is_some() && !self.splitting.contains(&unit.block())
    }

    /// Whether nothing can be found for a space any more, be it a single page, unless it is due it by its floor.
    pub(crate) fn is_hopeless(&self, space: SpaceId) -> bool {
        self.spaces.iter().any(|source| source.space == space && source.stuck <= 1) && !self.is_poor(space, 1)
    }

    /// Victims of at least `need` pages, so that a unit of `weight` pages of `space` may come: units in bins below `below`, or, as long
    /// as the space stays within its floor with it, any that others have above theirs. `None` if there are too few.
    pub(crate) fn room_for(&mut self, space: SpaceId, weight: u64, need: u64, below: u32) -> Option<Units> {
        if self.is_poor(space, weight)
            && let Some(units) = self.collect(need, TOP_BIN + 1, None)
        {
            return Some(units);
        }
        if self.spaces.iter().any(|source| source.space == space && need >= source.stuck) {
            return None;
        }
        let units = self.collect(need, below, Some(space));
        if units.is_none()
            && let Some(source) = self.source(space)
        {
            source.stuck = need;
        }
        units
    }

    /// Victims that were found and are not needed: others may have them.
    pub(crate) fn give_back(&mut self, mut units: Units) {
        for &(unit, weight) in &units {
            let (space, _) = self.pages.locate(unit);
            self.came(space, weight);
        }
        self.spare.append(&mut units);
    }

    /// A unit of a space came to fast memory.
    pub(crate) fn came(&mut self, space: SpaceId, weight: u64) {
        if let Some(source) = self.source(space) {
            source.fast += weight;
        }
    }

    /// The next victim in bins below `below`, and its pages. The space that asks may give up its own below its floor.
    pub(crate) fn next(&mut self, below: u32, asking: Option<SpaceId>) -> Option<(PageId, u64)> {
        let Victims { lists, pages, .. } = *self;
        let spared = self.spare.iter().position(|&(unit, weight)| {
            let (space, _) = pages.locate(unit);
            lists.bin(unit) < below
                && (asking == Some(space)
                    || self.spaces.iter().any(|source| source.space == space && source.fast >= source.floor + weight))
        });
        if let Some(at) = spared {
            let (unit, weight) = self.spare.remove(at);
            let (space, _) = pages.locate(unit);
            if let Some(source) = self.source(space) {
                source.fast -= weight.min(source.fast);
            }
            return Some((unit, weight));
        }
        loop {
            // The space whose next victim is coldest, and of those the one furthest above its floor.
            let (mine, source) = self
                .spaces
                .iter_mut()
                .map(|source| (asking == Some(source.space), source))
                .filter(|(mine, source)| {
                    let cursor = if *mine { source.own } else { source.others };
                    cursor.bin < below && (*mine || source.fast > source.floor)
                })
                .min_by_key(|(mine, source)| {
                    let cursor = if *mine { source.own } else { source.others };
                    (cursor.bin, u64::MAX - source.fast.saturating_sub(source.floor))
                })?;
            let (space, cursor) = (source.space, if mine { &mut source.own } else { &mut source.others });
            // A bin at a time: the next may be that of another space.
            let Some(unit) = cursor.next(lists, space, cursor.bin + 1) else { continue };
            self.searched += 1;
            let weight = match pages.block(unit.block()) {
                Some(block) if block.huge => u64::from(BLOCK_PAGES),
                _ => 1,
            };
            if !mine && source.fast < source.floor + weight {
                self.kept += 1;
                continue;
            }
            let page = &pages[unit];
            let usable = !page.moving() && !page.pinned() && page.tier().is_some();
            if usable && !self.splitting.contains(&unit.block()) && self.taken.insert(unit) {
                source.fast -= weight.min(source.fast);
                return Some((unit, weight));
            }
        }
    }

    fn source(&mut self, space: SpaceId) -> Option<&mut Source> {
        self.spaces.iter_mut().find(|source| source.space == space)
    }

    /// Whether a space has no more than its floor even with `weight` pages more.
    pub(crate) fn is_poor(&self, space: SpaceId, weight: u64) -> bool {
        self.spaces.iter().any(|source| source.space == space && source.fast + weight <= source.floor)
    }

    fn collect(&mut self, need: u64, below: u32, asking: Option<SpaceId>) -> Option<Units> {
        let (mut units, mut freed) = (Units::new(), 0);
        while freed < need {
            let Some((unit, weight)) = self.next(below, asking) else {
                self.give_back(units);
                return None;
            };
            units.push((unit, weight));
            freed += weight;
        }
        Some(units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::Vpn;

    const BUSY: SpaceId = SpaceId(1);
    const QUIET: SpaceId = SpaceId(2);

    /// Two spaces with fast pages of these heats; the first pages of both are ids of one dense range.
    fn setup(heats: [(SpaceId, &[u16]); 2]) -> (HotnessLists, Pages) {
        let (mut lists, mut pages) = (HotnessLists::default(), Pages::new());
        for (space, heats) in heats {
            pages.map(space, Vpn(0)..Vpn(512));
            lists.fit(pages.capacity());
            for (vpn, heat) in (0..).map(Vpn).zip(heats) {
                let page = pages.find(space, vpn).unwrap();
                pages.set_tier(page, Some(TierId::FAST));
                lists.file(page, space, Side::Fast, *heat, 1);
            }
        }
        (lists, pages)
    }

    #[test]
    fn the_coldest_go_first_and_a_floor_stops_others_but_not_the_space_itself() {
        let (lists, pages) = setup([(BUSY, &[900, 800, 1000]), (QUIET, &[1, 0, 2, 0])]);
        let none = BTreeSet::new();
        let floors = || BTreeMap::from([(BUSY, 2), (QUIET, 3)]);
        let of = |victims: &mut Victims<'_>, below, asking| {
            let (unit, weight) = victims.next(below, asking)?;
            let (space, vpn) = pages.locate(unit);
            assert_eq!(weight, 1);
            Some((space, vpn.0))
        };
        let mut victims = Victims::new(&lists, floors(), &none, &pages);
        assert_eq!(of(&mut victims, 5, Some(BUSY)), Some((QUIET, 1)), "filed before the other cold one");
        assert_eq!(of(&mut victims, 5, Some(BUSY)), None, "the quiet one is at its floor, the busy one's are hot");
        assert_eq!(of(&mut victims, 5, Some(QUIET)), Some((QUIET, 3)), "its own it may exchange");
        // Back to its floor, the quiet one gives nothing; the busy one has one page above its own.
        assert_eq!(of(&mut victims, TOP_BIN + 1, None), Some((BUSY, 0)), "filed first in its bin");
        assert_eq!(of(&mut victims, TOP_BIN + 1, None), None);
    }

    #[test]
    fn what_is_due_by_a_floor_is_found_though_hotter_units_of_others_found_nothing() {
        let (lists, pages) = setup([(BUSY, &[900, 900, 900, 900]), (QUIET, &[1])]);
        let none = BTreeSet::new();
        let mut victims = Victims::new(&lists, BTreeMap::from([(BUSY, 2), (QUIET, 2)]), &none, &pages);
        assert_eq!(victims.room_for(BUSY, 1, 1, 9), None);
        assert!(victims.is_hopeless(BUSY) && !victims.is_hopeless(QUIET));
        let out = victims.room_for(QUIET, 1, 1, 1).unwrap();
        assert_eq!((out.len(), pages.locate(out[0].0).0), (1, BUSY), "however hot it is");
        victims.came(QUIET, 1);
        assert_eq!(victims.room_for(QUIET, 1, 1, 1), None, "no more than the floor");
    }

    #[test]
    fn a_huge_unit_that_a_floor_keeps_from_others_is_still_there_for_its_own_space() {
        let (mut lists, mut pages) = setup([(BUSY, &[]), (QUIET, &[])]);
        let first = pages.find(QUIET, Vpn(0)).unwrap();
        pages.set_huge(first.block(), true);
        for page in pages.unit(first).start.0..pages.unit(first).end.0 {
            pages.set_tier(PageId(page), Some(TierId::FAST));
        }
        lists.file(first, QUIET, Side::Fast, 0, 512);
        let none = BTreeSet::new();
        let mut victims = Victims::new(&lists, BTreeMap::from([(BUSY, 0), (QUIET, 100)]), &none, &pages);
        assert_eq!(victims.next(TOP_BIN + 1, Some(BUSY)), None);
        assert_eq!(victims.counts(), (1, 1));
        assert_eq!(victims.next(TOP_BIN + 1, Some(QUIET)), Some((first, 512)));
        assert_eq!(victims.next(TOP_BIN + 1, Some(QUIET)), None, "once");
    }
}
