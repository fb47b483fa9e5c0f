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
use terrace_core::units::{BLOCK_SHIFT, PAGE_SHIFT, PageId, Vpn};

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
    /// Whose they are.
    pub process: ProcessId,
}

/// A process of the traced machine, or rather the address space it had: numbered from 0 in order of appearance. A program that starts
/// another in its place (exec) is a new one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct ProcessId(pub u16);

/// What is known of a process.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Process {
    /// Its number in the traced machine; two that followed each other may have the same.
    pub pid: u64,
    /// Its name there.
    pub name: String,
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
    /// A process, where a trace has several.
    Process(ProcessId, Process),
}

impl MapPiece {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            MapPiece::Extent(extent) => {
                out.push(if extent.process == ProcessId(0) { 1 } else { 5 });
                for value in [u64::from(extent.first.0), extent.vpn.0, u64::from(extent.count)] {
                    put(out, value);
                }
                if extent.process != ProcessId(0) {
                    put(out, u64::from(extent.process.0));
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
            MapPiece::Process(number, process) => {
                out.push(4);
                put(out, u64::from(number.0));
                put(out, process.pid);
                put_text(out, &process.name);
            }
        }
    }

    pub(crate) fn decode(from: &mut Cursor<'_>) -> Option<MapPiece> {
        let process = |from: &mut Cursor<'_>| Some(ProcessId(u16::try_from(from.number()?).ok()?));
        match from.take(1)?[0] {
            kind @ (1 | 5) => {
                let (first, vpn, count) = (from.number32()?, from.number()?, from.number32()?);
                let last = u64::from(count.checked_sub(1)?);
                let fits = u64::from(first) + last < 1 << 32 && vpn.checked_add(last).is_some();
                let process = if kind == 5 { process(from)? } else { ProcessId(0) };
                fits.then_some(MapPiece::Extent(Extent { first: PageId(first), vpn: Vpn(vpn), count, process }))
            }
            2 => {
                let (start, end) = (from.number()?, from.number()?);
                let name = from.text()?;
                (start <= end).then_some(MapPiece::Region(Region { start, end, name }))
            }
            3 => Some(MapPiece::Thread(ThreadId(u16::try_from(from.number()?).ok()?), from.number()?)),
            4 => {
                let number = process(from)?;
                let (pid, name) = (from.number()?, from.text()?);
                Some(MapPiece::Process(number, Process { pid, name }))
            }
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
    processes: BTreeMap<ProcessId, Process>,
}

/// How much of a page map a reader takes in. A block of some kilobytes can unpack to millions of pieces.
#[derive(Debug)]
pub(crate) struct MapBudget {
    /// Bytes of memory that are left, about.
    left: usize,
}

impl MapBudget {
    /// 64 MiB: a million extents of 2 MiB or more.
    pub(crate) const fn new() -> MapBudget {
        MapBudget { left: 64 << 20 }
    }

    /// Counts a piece, as it lies in memory.
    pub(crate) fn take(&mut self, piece: &MapPiece) -> Result<(), &'static str> {
        /// An extent or a region beside its name, with what the collections keep free.
        const PIECE: usize = 64;
        let name = match piece {
            MapPiece::Region(region) => region.name.len(),
            MapPiece::Process(_, process) => process.name.len(),
            MapPiece::Extent(_) | MapPiece::Thread(..) => 0,
        };
        self.left = self.left.checked_sub(PIECE + name).ok_or(
            "the page map has more pieces than a reader takes (64 MiB of them): record a shorter time or fewer processes",
        )?;
        Ok(())
    }
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
            MapPiece::Process(number, process) => {
                self.processes.insert(*number, process.clone());
            }
        }
    }

    /// The page's number in the traced program, or the object's in a trace of objects; `None` where the trace does
    /// not say.
    pub fn vpn(&self, page: PageId) -> Option<Vpn> {
        let extent = self.extent(page)?;
        Some(Vpn(extent.vpn.0 + u64::from(page.0 - extent.first.0)))
    }

    /// The process the page is of: the first where the trace does not say.
    pub fn process_of(&self, page: PageId) -> ProcessId {
        self.extent(page).map_or(ProcessId(0), |extent| extent.process)
    }

    fn extent(&self, page: PageId) -> Option<&Extent> {
        let (_, extent) = self.extents.range(..=page.0).next_back()?;
        (page.0 - extent.first.0 < extent.count).then_some(extent)
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

    /// The processes, where the trace tells them apart.
    pub const fn processes(&self) -> &BTreeMap<ProcessId, Process> {
        &self.processes
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
        let processes = self.processes.iter().map(|(number, process)| MapPiece::Process(*number, process.clone()));
        extents.chain(regions).chain(threads).chain(processes)
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

/// Where the process stands in the key of a unit: blocks of addresses below 2^57 have 36 bits. Objects, any 64 bits, are of one process.
const PROCESS_SHIFT: u32 = 48;

/// Gives pages their ids, and remembers what must go into the trace's map.
#[derive(Debug)]
pub(crate) struct Numbering {
    shift: u32,
    ids: FxHashMap<u64, u32>,
    /// The unit looked up last: programs stay in a block for many accesses, and a hash lookup costs ten times this.
    last: Option<(u64, u32)>,
    next: u64,
    /// Whose addresses these are; in the upper bits of a unit's key, as addresses of programs leave them free.
    process: ProcessId,
    fresh: Vec<MapPiece>,
    /// Pages that ranges named, those counted twice that were named twice.
    by_range: u64,
}

/// The most pages that ranges may number without an access to any of them: 4 TiB. A line of text can name any range.
const MOST_BY_RANGE: u64 = 1 << 30;

impl Numbering {
    pub(crate) fn new(by: NumberBy) -> Numbering {
        let shift = if by == NumberBy::Block { BLOCK_SHIFT } else { 0 };
        Numbering {
            shift,
            ids: FxHashMap::default(),
            last: None,
            next: 0,
            process: ProcessId(0),
            fresh: Vec::new(),
            by_range: 0,
        }
    }

    /// From here on addresses are of this process.
    pub(crate) fn enter(&mut self, process: ProcessId) {
        if process != self.process {
            self.process = process;
            self.last = None;
        }
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
        let key = unit | u64::from(self.process.0) << PROCESS_SHIFT;
        let first = match self.ids.get(&key) {
            Some(&first) => first,
            None => {
                let count = 1_u32 << self.shift;
                let first = u32::try_from(self.next).map_err(|_| OutOfIds)?;
                self.next += u64::from(count);
                self.ids.insert(key, first);
                let vpn = Vpn(unit << self.shift);
                self.remember(Extent { first: PageId(first), vpn, count, process: self.process });
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
            && last.process == extent.process
        {
            last.count += extent.count;
            return;
        }
        self.fresh.push(MapPiece::Extent(extent));
    }

    /// Ids of a whole range of pages, as runs of consecutive ids.
    pub(crate) fn range(&mut self, start: Vpn, count: u64, mut each: impl FnMut(Pages)) -> Result<(), OutOfIds> {
        // Refused before it is numbered: regions of terabytes from a broken input would fill memory first.
        self.by_range = self.by_range.saturating_add(count);
        if count > MOST_BY_RANGE || (self.by_range > MOST_BY_RANGE && self.next + count > MOST_BY_RANGE) {
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

    /// All ids of a process so far, as runs of consecutive ids.
    pub(crate) fn pages_of(&self, process: ProcessId) -> Vec<Pages> {
        let count = 1_u32 << self.shift;
        let own = self.ids.iter().filter(|(key, _)| *key >> PROCESS_SHIFT == u64::from(process.0));
        let mut firsts: Vec<u32> = own.map(|(_, first)| *first).collect();
        firsts.sort_unstable();
        let mut runs: Vec<Pages> = Vec::new();
        for first in firsts {
            match runs.last_mut() {
                Some(run) if run.first.0 + run.count == first => run.count += count,
                _ => runs.push(Pages { first: PageId(first), count }),
            }
        }
        runs
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
    fn one_address_is_another_page_in_another_process() {
        let mut numbering = Numbering::new(NumberBy::Block);
        let mut map = PageMap::default();
        let mut page = |numbering: &mut Numbering, process: u16, vpn: u64| {
            numbering.enter(ProcessId(process));
            let page = numbering.page(Vpn(vpn)).unwrap();
            numbering.take_fresh().iter().for_each(|piece| {
                let mut bytes = Vec::new();
                piece.encode(&mut bytes);
                let read = MapPiece::decode(&mut Cursor::new(&bytes)).unwrap();
                assert_eq!(read, *piece);
                map.add(&read);
            });
            page.0
        };
        let ids =
            [(0, 0x400), (7, 0x400), (0, 0x401), (7, 0x7ff)].map(|(process, vpn)| page(&mut numbering, process, vpn));
        assert_eq!(ids, [0, 512, 1, 1535]);
        assert_eq!(ids.map(|id| map.process_of(PageId(id)).0), [0, 7, 0, 7]);
        assert_eq!(ids.map(|id| map.vpn(PageId(id)).unwrap().0), [0x400, 0x400, 0x401, 0x7ff]);
        let bash = MapPiece::Process(ProcessId(7), Process { pid: 81, name: "bash".to_owned() });
        let mut bytes = Vec::new();
        bash.encode(&mut bytes);
        assert_eq!(MapPiece::decode(&mut Cursor::new(&bytes)), Some(bash));
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
