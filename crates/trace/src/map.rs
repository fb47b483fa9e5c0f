//! Which address a page of the trace had: dense page ids on one side, address ranges with names on the other.
//!
//! In: addresses as an importer meets them, or the map pieces of a trace. Out: page ids ([`Numbering`]), and addresses
//! and names again ([`PageMap`]). Must not: give one page two ids, or forget which thread or range an id stood for.
//!
//! Replay indexes arrays by page, so ids must be dense; an address space is not. By default whole blocks of 2 MiB are
//! numbered in order of first touch, so that pages of one huge page stay together and the id has the form that
//! [`terrace_core::units::PageId`] describes.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PAGE_SHIFT, PageId, Vpn};

use crate::record::{Pages, ThreadId};
use crate::varint::{Cursor, put, put_text};

/// Consecutive pages of the trace that had consecutive page numbers in the traced program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Extent {
    /// The first page's id.
    pub first: PageId,
    /// The first page's number in the traced program.
    pub vpn: Vpn,
    /// How many pages.
    pub count: u32,
}

/// A mapped range of the traced program (a line of its `maps` file), or an object's range.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Region {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// What it is: a path, `[heap]`, `[stack]`; may be empty.
    pub name: String,
}

/// A piece of the map, as a trace holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapPiece {
    /// Ids that stand for addresses from here on.
    Extent(Extent),
    /// A named address range.
    Region(Region),
    /// The original number of a thread.
    Thread(ThreadId, u64),
}

impl MapPiece {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            MapPiece::Extent(extent) => {
                out.push(1);
                for value in [u64::from(extent.first.0), extent.vpn.0, u64::from(extent.count)] {
                    put(out, value);
                }
            }
            MapPiece::Region(region) => {
                out.push(2);
                put(out, region.start);
                put(out, region.end);
                put_text(out, &region.name);
            }
            MapPiece::Thread(thread, raw) => {
                out.push(3);
                put(out, u64::from(thread.0));
                put(out, *raw);
            }
        }
    }

    pub(crate) fn decode(from: &mut Cursor<'_>) -> Option<MapPiece> {
        match from.take(1)?[0] {
            1 => {
                let (first, vpn, count) = (from.number32()?, from.number()?, from.number32()?);
                let last = u64::from(count.checked_sub(1)?);
                let fits = u64::from(first) + last < 1 << 32 && vpn.checked_add(last).is_some();
                fits.then_some(MapPiece::Extent(Extent { first: PageId(first), vpn: Vpn(vpn), count }))
            }
            2 => {
                let (start, end) = (from.number()?, from.number()?);
                let name = from.text()?;
                (start <= end).then_some(MapPiece::Region(Region { start, end, name }))
            }
            3 => Some(MapPiece::Thread(ThreadId(u16::try_from(from.number()?).ok()?), from.number()?)),
            _ => None,
        }
    }
}

/// Everything a trace says about where its pages lay.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PageMap {
    extents: BTreeMap<u32, Extent>,
    regions: Vec<Region>,
    threads: BTreeMap<ThreadId, u64>,
}

impl PageMap {
    /// Takes in a piece; a later one about the same pages or thread wins.
    pub fn add(&mut self, piece: &MapPiece) {
        match piece {
            MapPiece::Extent(extent) => {
                self.extents.insert(extent.first.0, *extent);
            }
            MapPiece::Region(region) => self.regions.push(region.clone()),
            MapPiece::Thread(thread, raw) => {
                self.threads.insert(*thread, *raw);
            }
        }
    }

    /// The page's number in the traced program, or the object's in a trace of objects; `None` where the trace does
    /// not say.
    pub fn vpn(&self, page: PageId) -> Option<Vpn> {
        let (_, extent) = self.extents.range(..=page.0).next_back()?;
        let offset = page.0 - extent.first.0;
        (offset < extent.count).then(|| Vpn(extent.vpn.0 + u64::from(offset)))
    }

    /// The address at which the page began in the traced program; `None` where the trace does not say, or where it
    /// is of objects whose numbers are no addresses.
    pub fn address(&self, page: PageId) -> Option<u64> {
        self.vpn(page).filter(|vpn| vpn.0 < 1 << (64 - PAGE_SHIFT)).map(Vpn::address)
    }

    /// The range an address lay in: the last one recorded that holds it.
    pub fn region(&self, address: u64) -> Option<&Region> {
        self.regions.iter().rev().find(|region| (region.start..region.end).contains(&address))
    }

    /// The number the thread had in the traced program.
    pub fn thread(&self, thread: ThreadId) -> Option<u64> {
        self.threads.get(&thread).copied()
    }

    /// Ids and addresses, ascending by id.
    pub fn extents(&self) -> impl Iterator<Item = &Extent> {
        self.extents.values()
    }

    /// Named ranges, in the order they were recorded.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Every piece again, for copying a map into another trace.
    pub fn pieces(&self) -> impl Iterator<Item = MapPiece> + '_ {
        let extents = self.extents.values().map(|extent| MapPiece::Extent(*extent));
        let regions = self.regions.iter().map(|region| MapPiece::Region(region.clone()));
        let threads = self.threads.iter().map(|(thread, raw)| MapPiece::Thread(*thread, *raw));
        extents.chain(regions).chain(threads)
    }
}

/// How an importer numbers pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumberBy {
    /// Whole blocks of 2 MiB in order of first touch: huge pages stay whole, and gaps within a block take ids.
    #[default]
    Block,
    /// Single pages in order of first touch: no gaps, but which pages were neighbours is lost to huge pages.
    /// For traces of objects, whose numbers are no addresses.
    Page,
}

/// There are no page ids left: a trace holds 2^32 pages (16 TiB).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfIds;

/// Gives pages their ids, and remembers what must go into the trace's map.
#[derive(Debug)]
pub(crate) struct Numbering {
    shift: u32,
    ids: FxHashMap<u64, u32>,
    /// The unit looked up last: programs stay in a block for many accesses, and a hash lookup costs ten times this.
    last: Option<(u64, u32)>,
    next: u64,
    fresh: Vec<MapPiece>,
}

impl Numbering {
    pub(crate) fn new(by: NumberBy) -> Numbering {
        let shift = if by == NumberBy::Block { BLOCK_SHIFT } else { 0 };
        Numbering { shift, ids: FxHashMap::default(), last: None, next: 0, fresh: Vec::new() }
    }

    /// The id of a page.
    #[inline]
    pub(crate) fn page(&mut self, vpn: Vpn) -> Result<PageId, OutOfIds> {
        let unit = vpn.0 >> self.shift;
        let first = match self.last {
            Some((last, first)) if last == unit => first,
            _ => self.look_up(unit)?,
        };
        Ok(PageId(first + (vpn.0 as u32 & ((1 << self.shift) - 1))))
    }

    fn look_up(&mut self, unit: u64) -> Result<u32, OutOfIds> {
        let first = match self.ids.get(&unit) {
            Some(&first) => first,
            None => {
                let count = 1_u32 << self.shift;
                let first = u32::try_from(self.next).map_err(|_| OutOfIds)?;
                self.next += u64::from(count);
                self.ids.insert(unit, first);
                self.remember(Extent { first: PageId(first), vpn: Vpn(unit << self.shift), count });
                first
            }
        };
        self.last = Some((unit, first));
        Ok(first)
    }

    fn remember(&mut self, extent: Extent) {
        if let Some(MapPiece::Extent(last)) = self.fresh.last_mut()
            && last.first.0 + last.count == extent.first.0
            && last.vpn.0.checked_add(u64::from(last.count)) == Some(extent.vpn.0)
        {
            last.count += extent.count;
            return;
        }
        self.fresh.push(MapPiece::Extent(extent));
    }

    /// Ids of a whole range of pages, as runs of consecutive ids.
    pub(crate) fn range(&mut self, start: Vpn, count: u64, mut each: impl FnMut(Pages)) -> Result<(), OutOfIds> {
        // Refused before it is numbered: a region of terabytes from a broken input would fill memory first.
        if count > (1 << 32) - u64::from(BLOCK_PAGES) {
            return Err(OutOfIds);
        }
        let end = start.0.saturating_add(count);
        let mut run: Option<Pages> = None;
        let mut vpn = start.0;
        while vpn < end {
            let first = self.page(Vpn(vpn))?;
            let unit_end = ((vpn >> self.shift) + 1) << self.shift;
            let here = (unit_end.min(end) - vpn) as u32;
            run = match run {
                Some(pages) if pages.first.0 + pages.count == first.0 => {
                    Some(Pages { first: pages.first, count: pages.count + here })
                }
                other => {
                    other.into_iter().for_each(&mut each);
                    Some(Pages { first, count: here })
                }
            };
            vpn = unit_end;
        }
        run.into_iter().for_each(each);
        Ok(())
    }

    /// Map pieces that arose since they were last taken.
    pub(crate) fn take_fresh(&mut self) -> Vec<MapPiece> {
        std::mem::take(&mut self.fresh)
    }

    pub(crate) const fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_pages_together() {
        let mut numbering = Numbering::new(NumberBy::Block);
        let vpns = [0x7f00_0000_1203, 0x400, 0x401, 0x7f00_0000_12ff, 0x600];
        let ids: Vec<u32> = vpns.iter().map(|vpn| numbering.page(Vpn(*vpn)).unwrap().0).collect();
        assert_eq!(ids, [3, 512, 513, 255, 1024]);
        let mut map = PageMap::default();
        numbering.take_fresh().iter().for_each(|piece| map.add(piece));
        for (vpn, id) in vpns.iter().zip(ids) {
            assert_eq!(map.address(PageId(id)), Some(vpn << 12));
        }
        assert_eq!(map.address(PageId(1536)), None);
        assert_eq!(map.extents().count(), 2, "neighbouring blocks share an extent");
    }

    #[test]
    fn single_pages_leave_no_gap() {
        let mut numbering = Numbering::new(NumberBy::Page);
        let ids: Vec<u32> = [9, 7, 9, 8, 100].iter().map(|vpn| numbering.page(Vpn(*vpn)).unwrap().0).collect();
        assert_eq!(ids, [0, 1, 0, 2, 3]);
    }

    #[test]
    fn ranges_split_where_ids_do() {
        let mut numbering = Numbering::new(NumberBy::Block);
        numbering.page(Vpn(512)).unwrap();
        let mut runs = Vec::new();
        numbering.range(Vpn(10), 1500, |pages| runs.push((pages.first.0, pages.count))).unwrap();
        assert_eq!(runs, [(522, 502), (0, 512), (1024, 486)]);
        assert_eq!(numbering.range(Vpn(0), 1 << 40, |_| ()), Err(OutOfIds));
    }
}
