//! Page tables: a four-level radix tree for each space, with leaves of 4 KiB, 2 MiB and 1 GiB and accessed bits throughout.
//!
//! In: what is mapped at which size. Out: the entries that a walk reads, with the memory lines they lie on. Must not: time
//! anything, or know where data is beyond the tier in its input.
//!
//! Pages are numbered once over all spaces: a space is a stretch of page numbers that starts on a boundary of 1 GiB, so a page
//! number names its space, and TLBs need no tag. Tables are found through two dense arrays, by 2 MiB and by 1 GiB of page
//! numbers; the tree behind them is whole, and walks touch its entries level by level. Memory: 2 KiB a table, tables as
//! mapped.

use terrace_core::units::{BLOCK_SHIFT, SpaceId, TierId};

use super::spec::Size;
use crate::cache::PAGE_LINES;

/// `log2` of the pages that one PMD table covers.
pub const REGION_SHIFT: u32 = 18;
/// `log2` of the pages that one entry of a PMD table covers.
pub const BLOCK_OF_REGION: u32 = BLOCK_SHIFT;
/// `log2` of the pages that one PDPT covers.
pub const DOMAIN_SHIFT: u32 = 27;
/// Entries of a table.
pub const ENTRIES: usize = 512;
/// Frames for tables and counters: the last 16 GiB below 256 GiB, the most that a cache of lines distinguishes.
const FRAMES: u32 = 1 << 22;
/// Number of the first such frame, as a page. Data must stay below it.
pub const FIRST_FRAME: u32 = (1 << 26) - FRAMES;

const NONE: u32 = u32::MAX;
const PRESENT: u32 = 1 << 31;
const LEAF: u32 = 1 << 30;
const ACCESSED: u32 = 1 << 29;
const DIRTY: u32 = 1 << 28;
const VALUE: u32 = DIRTY - 1;

/// Levels as x86-64 numbers them: 1 is the table of 4 KiB entries, 4 the root.
pub type Level = u8;

/// One entry on the way of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// The table.
    pub table: u32,
    /// The entry in it.
    pub index: u32,
}

#[derive(Clone, Copy, Debug)]
struct Table {
    frame: u32,
    level: Level,
    /// Entries that are present; a table without any is given back.
    present: u16,
}

/// What is known of 1 GiB of page numbers.
#[derive(Clone, Copy, Debug)]
struct Region {
    pmd: u32,
    pdpt: u32,
    root: u32,
    /// The index in the root; that in the PDPT follows from the page.
    root_index: u16,
    pdpt_index: u16,
}

/// A space.
#[derive(Clone, Copy, Debug)]
struct Space {
    id: SpaceId,
    /// First page number.
    first: u32,
    /// Its virtual page number.
    base: u64,
    root: u32,
}

/// The tables of every space.
#[derive(Clone, Debug)]
pub struct Tables {
    entries: Vec<u32>,
    tables: Vec<Table>,
    free: Vec<u32>,
    spaces: Vec<Space>,
    /// By 2 MiB of page numbers: the table of 4 KiB entries.
    leaves: Vec<u32>,
    regions: Vec<Region>,
    /// Which tier each frame lies in.
    tiers: Vec<u8>,
    /// Frames given back, of a table alone and of a table with counters behind it.
    spare: [Vec<u32>; 2],
    /// Frames of counters behind each PMD table.
    counter_frames: u32,
}

impl Tables {
    /// No spaces. Each PMD table has `counter_bytes` of counters.
    pub fn new(counter_bytes: u64) -> Tables {
        Tables {
            entries: Vec::new(),
            tables: Vec::new(),
            free: Vec::new(),
            spaces: Vec::new(),
            leaves: Vec::new(),
            regions: Vec::new(),
            tiers: Vec::new(),
            spare: [Vec::new(), Vec::new()],
            counter_frames: counter_bytes.div_ceil(4096) as u32,
        }
    }

    /// Makes a space known: its pages are those from `first` on, up to the next space. `base` is the virtual page number of
    /// `first`; both lie on a boundary of 1 GiB. Spaces are added in the order of their pages.
    ///
    /// # Panics
    /// When they do not: a driver that breaks this would alias translations.
    pub fn add_space(&mut self, id: SpaceId, first: u32, base: u64, tier: TierId) {
        let mask = (1u32 << REGION_SHIFT) - 1;
        assert!(first & mask == 0 && base & u64::from(mask) == 0, "a space starts on a boundary of 1 GiB");
        assert!(self.spaces.last().is_none_or(|last| last.first < first), "spaces come in the order of their pages");
        let root = self.allocate(4, tier);
        self.spaces.push(Space { id, first, base, root });
    }

    /// The space of a page.
    ///
    /// # Panics
    /// When no space holds it.
    pub fn space_of(&self, page: u32) -> SpaceId {
        self.spaces[self.place_of(page)].id
    }

    /// Numbers of the spaces' first pages, with their names.
    pub fn spaces(&self) -> impl Iterator<Item = (SpaceId, u32)> + '_ {
        self.spaces.iter().map(|space| (space.id, space.first))
    }

    fn place_of(&self, page: u32) -> usize {
        self.spaces.partition_point(|space| space.first <= page).checked_sub(1).expect("the page belongs to a space")
    }

    /// How a page is mapped, if it is.
    #[inline]
    pub fn size_of(&self, page: u32) -> Option<Size> {
        let region = self.regions.get((page >> REGION_SHIFT) as usize)?;
        if region.pdpt == NONE {
            return None;
        }
        if self.at(region.pdpt, u32::from(region.pdpt_index)) & LEAF != 0 {
            return Some(Size::Giant);
        }
        if region.pmd == NONE {
            return None;
        }
        let middle = self.at(region.pmd, pmd_index(page));
        if middle & PRESENT == 0 {
            return None;
        }
        if middle & LEAF != 0 {
            return Some(Size::Huge);
        }
        let leaf = self.at(self.leaves[(page >> BLOCK_SHIFT) as usize], pte_index(page));
        (leaf & PRESENT != 0).then_some(Size::Small)
    }

    /// Maps the page, or the 2 MiB or 1 GiB around it, which must not be mapped. New tables go into `tier`.
    pub fn map(&mut self, page: u32, size: Size, tier: TierId) {
        debug_assert_eq!(self.size_of(page), None, "page {page} is mapped already");
        let region = self.region(page, tier);
        if size == Size::Giant {
            self.set(region.pdpt, u32::from(region.pdpt_index), LEAF);
            return;
        }
        let pmd = if region.pmd == NONE { self.add_middle(page, tier) } else { region.pmd };
        if size == Size::Huge {
            self.set(pmd, pmd_index(page), LEAF);
            return;
        }
        let leaf = match self.at(pmd, pmd_index(page)) {
            entry if entry & PRESENT != 0 => entry & VALUE,
            _ => self.add_leaf(page, pmd, tier),
        };
        self.set(leaf, pte_index(page), LEAF);
    }

    /// Takes the mapping of a page away, the whole of it where it is huge. Returns its size, if there was one. Tables
    /// without entries go.
    pub fn unmap(&mut self, page: u32) -> Option<Size> {
        let size = self.size_of(page)?;
        let region = self.regions[(page >> REGION_SHIFT) as usize];
        match size {
            Size::Giant => self.clear(region.pdpt, u32::from(region.pdpt_index)),
            Size::Huge => self.clear(region.pmd, pmd_index(page)),
            Size::Small => {
                let leaf = self.leaves[(page >> BLOCK_SHIFT) as usize];
                self.clear(leaf, pte_index(page));
                if self.tables[leaf as usize].present == 0 {
                    self.release(leaf);
                    self.leaves[(page >> BLOCK_SHIFT) as usize] = NONE;
                    self.clear(region.pmd, pmd_index(page));
                }
            }
        }
        if size != Size::Giant && self.tables[region.pmd as usize].present == 0 {
            self.release(region.pmd);
            self.regions[(page >> REGION_SHIFT) as usize].pmd = NONE;
            self.clear(region.pdpt, u32::from(region.pdpt_index));
        }
        Some(size)
    }

    /// Maps a 2 MiB page by 512 entries; they inherit its accessed bit, as the kernel does it.
    ///
    /// # Panics
    /// When the page is not mapped by 2 MiB.
    pub fn split(&mut self, page: u32) {
        assert_eq!(self.size_of(page), Some(Size::Huge), "only a huge page can be split");
        let pmd = self.regions[(page >> REGION_SHIFT) as usize].pmd;
        let tier = self.tier_of_frame(self.tables[pmd as usize].frame);
        let marks = self.at(pmd, pmd_index(page)) & (ACCESSED | DIRTY);
        self.clear(pmd, pmd_index(page));
        let leaf = self.add_leaf(page, pmd, tier);
        let accessed = marks & ACCESSED;
        self.entries[pmd as usize * ENTRIES + pmd_index(page) as usize] |= accessed;
        for index in 0..ENTRIES as u32 {
            self.set(leaf, index, LEAF | marks);
        }
    }

    /// Maps the 2 MiB around a page by one entry; whatever was mapped there goes.
    pub fn collapse(&mut self, page: u32, tier: TierId) {
        let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
        let mut accessed = false;
        for page in first..first + Size::Huge.pages() {
            if self.size_of(page) == Some(Size::Small) {
                accessed |= self.at(self.leaves[(page >> BLOCK_SHIFT) as usize], pte_index(page)) & ACCESSED != 0;
                self.unmap(page);
            }
        }
        self.map(first, Size::Huge, tier);
        if accessed {
            let pmd = self.regions[(page >> REGION_SHIFT) as usize].pmd;
            self.entries[pmd as usize * ENTRIES + pmd_index(page) as usize] |= ACCESSED;
        }
    }

    /// The entry that a walk reads at `level` for a mapped page.
    #[inline]
    pub fn step(&self, page: u32, level: Level) -> Step {
        let region = &self.regions[(page >> REGION_SHIFT) as usize];
        match level {
            1 => Step { table: self.leaves[(page >> BLOCK_SHIFT) as usize], index: pte_index(page) },
            2 => Step { table: region.pmd, index: pmd_index(page) },
            3 => Step { table: region.pdpt, index: u32::from(region.pdpt_index) },
            _ => Step { table: region.root, index: u32::from(region.root_index) },
        }
    }

    /// Asks the host to bring the last entry of a walk to a 4 KiB page into its cache. Returns the line it lies on.
    #[inline]
    pub fn prefetch(&self, page: u32) -> Option<u64> {
        let table = self.leaves.get((page >> BLOCK_SHIFT) as usize).copied().filter(|&leaf| leaf != NONE)?;
        let step = Step { table, index: pte_index(page) };
        terrace_core::prefetch::prefetch(&self.entries[table as usize * ENTRIES + step.index as usize]);
        Some(self.line(step).0)
    }

    /// Whether there is a PMD table for the page.
    #[inline]
    pub fn is_region(&self, page: u32) -> bool {
        self.regions.get((page >> REGION_SHIFT) as usize).is_some_and(|region| region.pmd != NONE)
    }

    /// Sets an entry's accessed bit, and its dirty bit if the access is a store and the entry a leaf. Returns whether that
    /// changed it, which the hardware does by a locked read-modify-write.
    #[inline]
    pub fn mark(&mut self, step: Step, store: bool) -> bool {
        let entry = &mut self.entries[step.table as usize * ENTRIES + step.index as usize];
        let dirty = if store && *entry & LEAF != 0 { DIRTY } else { 0 };
        let marked = *entry | ACCESSED | dirty;
        let changed = marked != *entry;
        *entry = marked;
        changed
    }

    /// The memory line an entry of eight bytes lies on, and the tier of that line.
    #[inline]
    pub fn line(&self, step: Step) -> (u64, TierId) {
        let frame = self.tables[step.table as usize].frame;
        let line = u64::from(FIRST_FRAME + frame) * PAGE_LINES + u64::from(step.index / 8);
        (line, self.tier_of_frame(frame))
    }

    /// The first line of the counters behind the PMD table of a page, and their tier.
    #[inline]
    pub fn counter_line(&self, page: u32) -> (u64, TierId) {
        let pmd = self.regions[(page >> REGION_SHIFT) as usize].pmd;
        let frame = self.tables[pmd as usize].frame;
        (u64::from(FIRST_FRAME + frame + 1) * PAGE_LINES, self.tier_of_frame(frame))
    }

    /// The tier of a line of tables or counters; `None` for a line of data, or of a frame that was given back.
    pub fn tier_of_line(&self, line: u64) -> Option<TierId> {
        let frame = (line / PAGE_LINES).checked_sub(u64::from(FIRST_FRAME))?;
        self.tiers.get(frame as usize).map(|&tier| TierId(tier))
    }

    fn tier_of_frame(&self, frame: u32) -> TierId {
        TierId(self.tiers[frame as usize])
    }

    /// Whether an entry is present, a leaf, and accessed.
    pub(super) fn look(&self, table: u32, index: u32) -> (bool, bool, bool) {
        let entry = self.at(table, index);
        (entry & PRESENT != 0, entry & LEAF != 0, entry & ACCESSED != 0)
    }

    /// The table that a non-leaf entry points to.
    pub(super) fn below(&self, table: u32, index: u32) -> u32 {
        self.at(table, index) & VALUE
    }

    /// Clears an entry's accessed bit.
    pub(super) fn clear_accessed(&mut self, table: u32, index: u32) {
        self.entries[table as usize * ENTRIES + index as usize] &= !ACCESSED;
    }

    /// Root, first page and base of a space.
    pub(super) fn root(&self, id: SpaceId) -> Option<(u32, u32, u64)> {
        self.spaces.iter().find(|space| space.id == id).map(|space| (space.root, space.first, space.base))
    }

    /// Bytes of tables as the machine has them, and of counters behind PMD tables.
    pub fn bytes(&self) -> (u64, u64) {
        let live = self.tables.len() - self.free.len();
        let middle = self.regions.iter().filter(|region| region.pmd != NONE).count() as u64;
        (live as u64 * 4096, middle * u64::from(self.counter_frames) * 4096)
    }

    /// Bytes this structure occupies on the host.
    pub fn host_bytes(&self) -> usize {
        self.entries.capacity() * 4 + self.leaves.capacity() * 4 + self.regions.capacity() * size_of::<Region>()
    }

    #[inline]
    fn at(&self, table: u32, index: u32) -> u32 {
        self.entries[table as usize * ENTRIES + index as usize]
    }

    fn set(&mut self, table: u32, index: u32, value: u32) {
        let entry = &mut self.entries[table as usize * ENTRIES + index as usize];
        if *entry & PRESENT == 0 {
            self.tables[table as usize].present += 1;
        }
        *entry = PRESENT | value;
    }

    fn clear(&mut self, table: u32, index: u32) {
        let entry = &mut self.entries[table as usize * ENTRIES + index as usize];
        if *entry & PRESENT != 0 {
            self.tables[table as usize].present -= 1;
        }
        *entry = 0;
    }

    /// The region of a page, with its PDPT.
    fn region(&mut self, page: u32, tier: TierId) -> Region {
        let at = (page >> REGION_SHIFT) as usize;
        if self.regions.len() <= at {
            let none = Region { pmd: NONE, pdpt: NONE, root: NONE, root_index: 0, pdpt_index: 0 };
            self.regions.resize(at + 1, none);
        }
        if self.regions[at].pdpt != NONE {
            return self.regions[at];
        }
        let space = self.spaces[self.place_of(page)];
        let vpn = u64::from(page - space.first) + space.base;
        let root_index = (vpn >> DOMAIN_SHIFT) as u32 & 511;
        let pdpt = match self.at(space.root, root_index) {
            entry if entry & PRESENT != 0 => entry & VALUE,
            _ => {
                let pdpt = self.allocate(3, tier);
                self.set(space.root, root_index, pdpt);
                pdpt
            }
        };
        let pdpt_index = (vpn >> REGION_SHIFT) as u16 & 511;
        let region = Region { pmd: NONE, pdpt, root: space.root, root_index: root_index as u16, pdpt_index };
        self.regions[at] = region;
        region
    }

    fn add_middle(&mut self, page: u32, tier: TierId) -> u32 {
        let pmd = self.allocate(2, tier);
        let region = &mut self.regions[(page >> REGION_SHIFT) as usize];
        region.pmd = pmd;
        let (pdpt, index) = (region.pdpt, u32::from(region.pdpt_index));
        self.set(pdpt, index, pmd);
        let blocks = ((page >> REGION_SHIFT) as usize + 1) << (REGION_SHIFT - BLOCK_SHIFT);
        if self.leaves.len() < blocks {
            self.leaves.resize(blocks, NONE);
        }
        pmd
    }

    fn add_leaf(&mut self, page: u32, pmd: u32, tier: TierId) -> u32 {
        let leaf = self.allocate(1, tier);
        self.set(pmd, pmd_index(page), leaf);
        self.leaves[(page >> BLOCK_SHIFT) as usize] = leaf;
        leaf
    }

    fn allocate(&mut self, level: Level, tier: TierId) -> u32 {
        let class = usize::from(level == 2);
        let frames = if class == 1 { 1 + self.counter_frames } else { 1 };
        let frame = match self.spare[class].pop() {
            Some(frame) => frame,
            None => {
                let frame = self.tiers.len() as u32;
                assert!(frame + frames <= FRAMES, "page tables and counters fill 16 GiB");
                self.tiers.resize((frame + frames) as usize, tier.0);
                frame
            }
        };
        self.tiers[frame as usize..(frame + frames) as usize].fill(tier.0);
        let table = Table { frame, level, present: 0 };
        match self.free.pop() {
            Some(id) => {
                self.tables[id as usize] = table;
                self.entries[id as usize * ENTRIES..(id as usize + 1) * ENTRIES].fill(0);
                id
            }
            None => {
                self.tables.push(table);
                self.entries.resize(self.tables.len() * ENTRIES, 0);
                self.tables.len() as u32 - 1
            }
        }
    }

    fn release(&mut self, id: u32) {
        let table = self.tables[id as usize];
        self.spare[usize::from(table.level == 2)].push(table.frame);
        self.free.push(id);
    }
}

#[inline]
const fn pmd_index(page: u32) -> u32 {
    (page >> BLOCK_SHIFT) & 511
}

#[inline]
const fn pte_index(page: u32) -> u32 {
    page & 511
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: TierId = TierId(0);

    fn tables() -> Tables {
        let mut tables = Tables::new(512 << 10);
        tables.add_space(SpaceId(1), 0, 1 << 36 >> 1, FAST);
        tables
    }

    #[test]
    fn the_three_sizes_map_and_unmap_and_empty_tables_go() {
        let mut tables = tables();
        assert_eq!(tables.size_of(5), None);
        tables.map(5, Size::Small, FAST);
        tables.map(512, Size::Huge, TierId(1));
        tables.map(1 << 18, Size::Giant, FAST);
        assert_eq!(tables.size_of(5), Some(Size::Small));
        assert_eq!(tables.size_of(6), None);
        assert_eq!((tables.size_of(512), tables.size_of(1023)), (Some(Size::Huge), Some(Size::Huge)));
        assert_eq!(tables.size_of((1 << 18) + 99_999), Some(Size::Giant));
        // Root, PDPT, PMD with its counters, one table of 4 KiB entries.
        assert_eq!(tables.bytes(), (4 * 4096, 512 << 10));
        assert_eq!(tables.unmap(6), None);
        assert_eq!(tables.unmap(5), Some(Size::Small));
        assert_eq!(tables.bytes().0, 3 * 4096);
        assert_eq!(tables.unmap(700), Some(Size::Huge));
        assert_eq!(tables.bytes(), (2 * 4096, 0));
        assert_eq!(tables.unmap(1 << 18), Some(Size::Giant));
        tables.map(5, Size::Small, FAST);
        assert_eq!(tables.bytes().0, 4 * 4096, "tables given back are used again");
        assert_eq!(tables.tables.len(), 4);
    }

    #[test]
    fn entries_of_eight_neighbours_share_a_line_and_counters_follow_their_table() {
        let mut tables = tables();
        for page in 0..16 {
            tables.map(page, Size::Small, TierId(1));
        }
        let line = |page| tables.line(tables.step(page, 1));
        assert_eq!(line(0), line(7));
        assert_eq!(line(8).0, line(7).0 + 1);
        assert_eq!(line(0).1, TierId(1));
        let (pmd, _) = tables.line(tables.step(0, 2));
        assert_eq!(tables.counter_line(0).0, pmd + 64, "counters lie right behind the PMD table");
        assert_eq!(tables.tier_of_line(tables.counter_line(0).0 + 8191), Some(TierId(1)));
        assert_eq!(tables.tier_of_line(64 * 1000), None, "a line of data");
    }

    #[test]
    fn splitting_and_collapsing_keep_the_accessed_bit() {
        let mut tables = tables();
        tables.map(512, Size::Huge, FAST);
        assert!(tables.mark(tables.step(512, 2), true) && !tables.mark(tables.step(512, 2), true));
        tables.split(600);
        assert_eq!(tables.size_of(512), Some(Size::Small));
        let step = tables.step(777, 1);
        assert_eq!(tables.look(step.table, step.index), (true, true, true));
        for page in 512..1024 {
            let step = tables.step(page, 1);
            tables.clear_accessed(step.table, step.index);
        }
        assert!(tables.mark(tables.step(900, 1), false));
        tables.collapse(1000, FAST);
        let step = tables.step(512, 2);
        assert_eq!(tables.look(step.table, step.index), (true, true, true));
        assert_eq!(tables.bytes().0, 3 * 4096, "the table of 4 KiB entries is gone");
    }

    #[test]
    fn spaces_with_equal_addresses_share_no_table_and_no_entry() {
        let mut tables = Tables::new(4096);
        tables.add_space(SpaceId(3), 0, 0, FAST);
        tables.add_space(SpaceId(9), 1 << 18, 0, FAST);
        tables.map(7, Size::Small, FAST);
        tables.map((1 << 18) + 7, Size::Small, FAST);
        assert_eq!((tables.space_of(7), tables.space_of((1 << 18) + 7)), (SpaceId(3), SpaceId(9)));
        for level in 1..=4 {
            let (one, other) = (tables.step(7, level), tables.step((1 << 18) + 7, level));
            assert!(one.table != other.table && one.index == other.index, "level {level}");
        }
    }
}
