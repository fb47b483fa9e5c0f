//! The kernel's two lists of memory use: an active and an inactive list for each tier and kind of page.
//!
//! In: births, deaths, moves, activity. Out: the pages of a list, oldest first. Must not: decide what is active, or request.
//!
//! Memory: 10 bytes a page, links and label; the kernel has the same in its page structure.

use terrace_core::pages::Pages;
use terrace_core::units::{BLOCK_PAGES, PageId, TierId};

use crate::parts::lists::Lists;

/// Bytes a page costs here.
pub const BYTES_PER_PAGE: f64 = (crate::parts::lists::BYTES_PER_ENTRY + 2) as f64;

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous memory.
    Anonymous,
    /// A file's contents.
    File,
}

/// Which list a page is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tier.
    pub tier: TierId,
    /// What it holds.
    pub kind: Kind,
    /// Whether the list is the active one.
    pub active: bool,
}

impl Place {
    /// The active list of anonymous memory.
    pub const fn active(tier: TierId) -> Place {
        Place { tier, kind: Kind::Anonymous, active: true }
    }

    /// The inactive list of anonymous memory.
    pub const fn inactive(tier: TierId) -> Place {
        Place { tier, kind: Kind::Anonymous, active: false }
    }

    const fn list(self) -> usize {
        self.tier.index() * 4 + if matches!(self.kind, Kind::File) { 2 } else { 0 } + self.active as usize
    }

    const fn of_list(list: usize) -> Place {
        Place {
            tier: TierId((list / 4) as u8),
            kind: if list & 2 != 0 { Kind::File } else { Kind::Anonymous },
            active: list & 1 != 0,
        }
    }
}

const LISTS: usize = TierId::MAX * 4;
const LIST_MASK: u16 = 0x3f;
const HUGE: u16 = 0x100;

/// See the module's header. Where a block is huge, its first page stands for it.
#[derive(Clone, Debug)]
pub struct Lru {
    lists: Lists,
    /// List number plus one, or 0; and the marks.
    labels: Vec<u16>,
    sizes: [u64; LISTS],
}

impl Default for Lru {
    fn default() -> Lru {
        Lru { lists: Lists::new(LISTS), labels: Vec::new(), sizes: [0; LISTS] }
    }
}

impl Lru {
    /// Makes room for every id of `pages`.
    pub fn fit(&mut self, pages: &Pages) {
        self.lists.fit(pages.capacity());
        if self.labels.len() < pages.capacity() {
            self.labels.resize(pages.capacity(), 0);
        }
    }

    /// Bytes this structure occupies.
    pub fn memory_bytes(&self) -> usize {
        self.lists.memory_bytes() + self.labels.capacity() * size_of::<u16>()
    }

    /// Brings the unit of `page` up to date with where it lies and how it is mapped. A new unit enters at the head of the
    /// inactive list; one that changed tier keeps its activity.
    pub fn refresh(&mut self, page: PageId, pages: &Pages) {
        let info = pages.block(page.block()).expect("the page belongs to a live block");
        let first = page.block().first_page();
        let was_huge = self.labels[first.index()] & HUGE != 0;
        let kind = if info.file { Kind::File } else { Kind::Anonymous };
        if was_huge != info.huge {
            self.remap(first, info.huge, pages);
        }
        let unit = pages.unit(page).start;
        match (self.place(unit), pages[unit].tier()) {
            (None, Some(tier)) => self.insert(unit, Place { tier, kind, active: false }, info.huge),
            (Some(_), None) => self.forget(unit),
            (Some(place), Some(tier)) if place.tier != tier || place.kind != kind => {
                self.relocate(unit, Place { tier, kind, ..place });
            }
            _ => {}
        }
    }

    /// Takes a page out of all lists.
    pub fn forget(&mut self, page: PageId) {
        if let Some(place) = self.place(page) {
            self.sizes[place.list()] -= self.weight(page);
            self.lists.remove(page.0);
            self.labels[page.index()] = 0;
        }
    }

    /// Where a unit is; `None` if it is in no list.
    pub fn place(&self, unit: PageId) -> Option<Place> {
        let label = self.labels.get(unit.index()).copied().unwrap_or(0) & LIST_MASK;
        (label != 0).then(|| Place::of_list(usize::from(label) - 1))
    }

    /// Whether a unit is on an active list.
    pub fn is_active(&self, unit: PageId) -> bool {
        self.place(unit).is_some_and(|place| place.active)
    }

    /// 4 KiB pages of a list.
    pub fn size(&self, place: Place) -> u64 {
        self.sizes[place.list()]
    }

    /// The 4 KiB pages of a listed unit: 1 or 512.
    pub fn weight(&self, unit: PageId) -> u64 {
        if self.labels[unit.index()] & HUGE != 0 { u64::from(BLOCK_PAGES) } else { 1 }
    }

    /// Puts a listed unit at the head of the active or the inactive list of its tier and kind.
    pub fn set_active(&mut self, unit: PageId, active: bool) {
        if let Some(place) = self.place(unit) {
            self.relocate(unit, Place { active, ..place });
        }
    }

    /// As [`Lru::set_active`], but leaves a unit alone that is on that list already.
    pub fn set_active_if_changed(&mut self, unit: PageId, active: bool) {
        if self.place(unit).is_some_and(|place| place.active != active) {
            self.set_active(unit, active);
        }
    }

    /// The units of a list from its tail to its head.
    pub fn tail_to_head(&self, place: Place) -> impl Iterator<Item = PageId> + '_ {
        self.lists.back_to_front(place.list()).map(PageId)
    }

    /// Moves the tail of an active list to the head of the inactive one: `pages` 4 KiB pages of it.
    pub fn age(&mut self, tier: TierId, kind: Kind, pages: u64) {
        let from = Place { tier, kind, active: true };
        let mut left = pages.min(self.size(from));
        while left > 0 {
            let Some(unit) = self.lists.back(from.list()).map(PageId) else { break };
            left = left.saturating_sub(self.weight(unit));
            self.relocate(unit, Place { active: false, ..from });
        }
    }

    fn insert(&mut self, unit: PageId, place: Place, huge: bool) {
        self.labels[unit.index()] = place.list() as u16 + 1 + if huge { HUGE } else { 0 };
        self.sizes[place.list()] += self.weight(unit);
        self.lists.push_front(place.list(), unit.0);
    }

    fn relocate(&mut self, unit: PageId, to: Place) {
        let from = self.place(unit).expect("only listed units are moved");
        let weight = self.weight(unit);
        self.sizes[from.list()] -= weight;
        self.sizes[to.list()] += weight;
        self.lists.remove(unit.0);
        self.lists.push_front(to.list(), unit.0);
        let label = &mut self.labels[unit.index()];
        *label = (*label & !LIST_MASK) | (to.list() as u16 + 1);
    }

    /// A block became huge, or was split; its pages keep the activity of the whole, the whole that of its first listed page.
    fn remap(&mut self, first: PageId, huge: bool, pages: &Pages) {
        let ids = (0..BLOCK_PAGES).map(|offset| first.plus(offset));
        if huge {
            let place = ids.clone().find_map(|page| self.place(page));
            ids.for_each(|page| self.forget(page));
            if let Some(place) = place {
                self.insert(first, place, true);
            }
        } else {
            let place = self.place(first);
            self.forget(first);
            let Some(place) = place else { return };
            for page in ids.filter(|page| pages[*page].tier().is_some()) {
                self.insert(page, place, false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::units::{BlockId, SpaceId, Vpn};

    const SPACE: SpaceId = SpaceId(0);
    const INACTIVE: Place = Place::inactive(TierId::FAST);

    fn fast_pages(count: u64) -> (Lru, Pages) {
        let mut pages = Pages::new();
        pages.map(SPACE, Vpn(0)..Vpn(512));
        let mut lru = Lru::default();
        lru.fit(&pages);
        for page in (0..count as u32).map(PageId) {
            pages.set_tier(page, Some(TierId::FAST));
            lru.refresh(page, &pages);
        }
        (lru, pages)
    }

    #[test]
    fn the_active_list_gives_up_its_tail() {
        let (mut lru, _) = fast_pages(8);
        for page in (0..8).map(PageId) {
            lru.set_active(page, true);
        }
        lru.age(TierId::FAST, Kind::Anonymous, 3);
        assert!([0, 1, 2].into_iter().all(|page| !lru.is_active(PageId(page))) && lru.is_active(PageId(3)));
    }

    #[test]
    fn a_huge_block_is_listed_once_and_its_pages_when_it_is_split() {
        let (mut lru, mut pages) = fast_pages(512);
        lru.set_active(PageId(0), true);
        pages.set_huge(BlockId(0), true);
        lru.refresh(PageId(77), &pages);
        assert_eq!((lru.size(Place::active(TierId::FAST)), lru.size(INACTIVE)), (512, 0));
        for page in (0..512).map(PageId) {
            pages.set_tier(page, Some(TierId(1)));
        }
        lru.refresh(PageId(3), &pages);
        assert_eq!(lru.size(Place::active(TierId(1))), 512);
        pages.set_huge(BlockId(0), false);
        lru.refresh(PageId(3), &pages);
        assert_eq!(lru.tail_to_head(Place::active(TierId(1))).count(), 512);
    }
}
