//! The heat map: which share of each address range was accessed, column by column of time.
//!
//! In: scans, as the manager's observer sees them. Out: a [`Map`], and the number of accesses that fast memory served. Must not: grow with memory,
//! processes or time. Rows become coarser, and with very many processes some are left out; columns become longer, or old ones are dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_SHIFT, PAGE_SHIFT, SpaceId, TierId, Time, Vpn};
use terrace_linux::observer::Observer;
pub use terrace_report::HeatRow;

/// What a map may hold, and what happens when it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Most columns.
    pub columns: usize,
    /// Most rows of a column.
    pub rows: usize,
    /// Length of a column, at the start.
    pub column: Duration,
    /// What makes room for a further column.
    pub when_full: WhenFull,
    /// For how many columns a row keeps what was last seen of it: blocks are read in rotation, so a column misses some.
    pub stays: usize,
}

/// What makes room for a further column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Two become one, so that the map covers all of a run.
    Merge,
    /// The oldest goes, so that the map covers the latest minutes. Times in which nothing was seen have no column.
    DropOldest,
}

/// All of a run, for its report.
pub const OF_A_RUN: Bounds =
    Bounds { columns: 120, rows: 256, column: Duration::from_secs(2), when_full: WhenFull::Merge, stays: 4 };

/// The latest five minutes, for the service.
pub const LATEST: Bounds =
    Bounds { columns: 60, rows: 128, column: Duration::from_secs(5), when_full: WhenFull::DropOldest, stays: 6 };

/// With rows of 2^36 blocks a process has one row: five-level page tables span 57 bits.
const COARSEST: u32 = 36;

/// What was seen of the pages of a row in one column.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// Pages looked at, as often as they were.
    pages: u32,
    /// Those found accessed.
    accessed: u32,
}

/// A column, by process and row.
type Cells = BTreeMap<(SpaceId, u64), Cell>;

/// Cells added up, rows made `shift` steps coarser.
fn merged<'a>(cells: impl IntoIterator<Item = (&'a (SpaceId, u64), &'a Cell)>, shift: u32) -> Cells {
    let mut sums = Cells::new();
    for ((space, row), cell) in cells {
        let sum = sums.entry((*space, row >> shift)).or_default();
        sum.pages += cell.pages;
        sum.accessed += cell.accessed;
    }
    sums
}

/// A map as it is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Map {
    /// The start of each column, seconds since the beginning.
    pub columns: Vec<f64>,
    /// The rows, by process and address.
    pub rows: Vec<HeatRow>,
    /// `cells[column][row]`: the share of the row's pages that were accessed, 0 to 1; -1 where nothing was seen.
    pub cells: Vec<Vec<f32>>,
    /// Processes without a row.
    pub left_out: u64,
}

struct Column {
    number: u64,
    cells: Cells,
}

/// See the module's header.
pub struct HeatRecorder {
    bounds: Bounds,
    /// Where the first column begins.
    began: Time,
    /// Length of a column now.
    column: Duration,
    columns: VecDeque<Column>,
    /// A row covers 2^shift blocks.
    shift: u32,
    fast: u64,
    slow: u64,
}

impl HeatRecorder {
    /// An observer for a manager; columns are counted from `began`.
    pub fn new(bounds: Bounds, began: Time) -> HeatRecorder {
        HeatRecorder { bounds, began, column: bounds.column, columns: VecDeque::new(), shift: 0, fast: 0, slow: 0 }
    }

    /// Accessed bits seen since the last call: on pages in the fastest tier, and in slower tiers.
    pub fn take_hits(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.fast), std::mem::take(&mut self.slow))
    }

    /// The map of these processes. Rows of one that came and went between two looks have no pid and are left out; those of an exited one stay as
    /// long as its columns.
    pub fn map(&self, pids: &BTreeMap<SpaceId, u32>) -> Map {
        let keys = self.shown(pids);
        let shown: BTreeSet<SpaceId> = keys.iter().map(|(space, _)| *space).collect();
        let bytes = 1u64 << (self.shift + BLOCK_SHIFT + PAGE_SHIFT);
        let mut last: BTreeMap<(SpaceId, u64), (f32, usize)> = BTreeMap::new();
        let cells = self.columns.iter().enumerate().map(|(at, column)| {
            for (key, cell) in column.cells.iter().filter(|(_, cell)| cell.pages > 0) {
                last.insert(*key, (cell.accessed as f32 / cell.pages as f32, at));
            }
            let stays = |seen: usize| at - seen <= self.bounds.stays;
            keys.iter()
                .map(|key| last.get(key).filter(|(_, seen)| stays(*seen)).map_or(-1.0, |(share, _)| *share))
                .collect()
        });
        Map {
            cells: cells.collect(),
            columns: self.columns.iter().map(|column| column.number as f64 * self.column.as_secs_f64()).collect(),
            rows: keys.iter().map(|(space, row)| HeatRow { pid: pids[space], address: row * bytes, bytes }).collect(),
            left_out: pids.keys().filter(|space| !shown.contains(space)).count() as u64,
        }
    }

    /// The rows that are shown. Of the latest minutes those of the latest columns come first; of a run all are.
    fn shown(&self, pids: &BTreeMap<SpaceId, u32>) -> BTreeSet<(SpaceId, u64)> {
        let most = match self.bounds.when_full {
            WhenFull::Merge => usize::MAX,
            WhenFull::DropOldest => self.bounds.rows,
        };
        let mut keys = BTreeSet::new();
        let cells = self.columns.iter().rev().flat_map(|column| column.cells.keys());
        for key in cells.filter(|(space, _)| pids.contains_key(space)) {
            if keys.len() < most || keys.contains(key) {
                keys.insert(*key);
            }
        }
        keys
    }

    /// The column of this time, with room made for it.
    fn column_at(&mut self, now: Time) -> Option<&mut Column> {
        let mut number = (now.since(self.began).as_nanos() / self.column.as_nanos()) as u64;
        match self.bounds.when_full {
            WhenFull::Merge => {
                while number >= self.bounds.columns as u64 {
                    let pairs = self.columns.make_contiguous().chunks(2).enumerate();
                    let halved = pairs.map(|(at, pair)| Column {
                        number: at as u64,
                        cells: merged(pair.iter().flat_map(|column| &column.cells), 0),
                    });
                    self.columns = halved.collect();
                    self.column *= 2;
                    number /= 2;
                }
                // A column in which nothing was seen is one too: the map is of a time without gaps.
                for missing in self.columns.len() as u64..=number {
                    self.columns.push_back(Column { number: missing, cells: Cells::new() });
                }
            }
            WhenFull::DropOldest => {
                if self.columns.back().is_none_or(|column| column.number < number) {
                    // The many processes that made it so coarse have left: discard the map and start again.
                    let few = self.bounds.rows / 8;
                    if self.shift == COARSEST && self.columns.iter().all(|column| column.cells.len() <= few) {
                        self.columns.clear();
                        self.shift = 0;
                    }
                    self.columns.push_back(Column { number, cells: Cells::new() });
                    if self.columns.len() > self.bounds.columns {
                        self.columns.pop_front();
                    }
                }
            }
        }
        self.columns.back_mut()
    }
}

impl Observer for HeatRecorder {
    fn scan(&mut self, now: Time, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>) {
        if window.is_none() {
            return;
        }
        let mut seen = Cell::default();
        for pte in ptes.iter().filter(|pte| pte.tier().is_some()) {
            seen.pages += 1;
            if pte.accessed() {
                seen.accessed += 1;
                match pte.tier() {
                    Some(TierId::FAST) => self.fast += 1,
                    _ => self.slow += 1,
                }
            }
        }
        let rows = self.bounds.rows;
        let Some(column) = self.column_at(now) else { return };
        let full = column.cells.len() >= rows;
        let key = |shift: u32| (space, first.0 >> (BLOCK_SHIFT + shift));
        let own = key(self.shift);
        let Some(column) = self.columns.back_mut() else { return };
        if self.shift == COARSEST && full && !column.cells.contains_key(&own) {
            return;
        }
        let cell = column.cells.entry(own).or_default();
        cell.pages += seen.pages;
        cell.accessed += seen.accessed;
        while self.shift < COARSEST && self.columns.back().is_some_and(|column| column.cells.len() > rows) {
            self.shift += 1;
            for column in &mut self.columns {
                column.cells = merged(&column.cells, 1);
            }
        }
        // More processes than rows: leave out the newest.
        if let Some(column) = self.columns.back_mut().filter(|column| column.cells.len() > rows) {
            column.cells.remove(&key(self.shift));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = LATEST.columns;
    const ROWS: usize = LATEST.rows;
    const COLUMN: Duration = LATEST.column;

    #[test]
    fn a_large_class_watched_for_days_stays_within_the_bounds() {
        let mut observer = HeatRecorder::new(LATEST, Time::ZERO);
        let hot = vec![PteState::placed(TierId::FAST).with_accessed(true); 512];
        for second in (10..200_000).step_by(50) {
            for block in 0..300 {
                let now = Time::ZERO + Duration::from_secs(second);
                observer.scan(now, SpaceId(block % 3), Vpn(u64::from(block) * 512), &hot, Some(COLUMN));
            }
        }
        assert!(observer.columns.len() <= COLUMNS && observer.columns.iter().all(|column| column.cells.len() <= ROWS));
        let map = observer.map(&BTreeMap::from([(SpaceId(0), 7)]));
        assert!(map.cells.iter().flatten().all(|share| *share == 1.0) && map.rows.iter().any(|row| row.pid == 7));
        assert_eq!((observer.take_hits().0 > 0, observer.take_hits()), (true, (0, 0)));
    }

    #[test]
    fn of_more_processes_than_rows_some_are_left_out_and_that_is_told() {
        let mut observer = HeatRecorder::new(LATEST, Time::ZERO);
        let hot = vec![PteState::placed(TierId::FAST).with_accessed(true); 8];
        // Heap, mappings and stack of each are as far apart as possible.
        let places = [0x5555_5555_5000u64, 0x7fff_f7d0_0000, 0x00ff_ffff_ffff_f000];
        for second in (10..400).step_by(5) {
            for process in 0..300u32 {
                for place in places {
                    let now = Time::ZERO + Duration::from_secs(second);
                    observer.scan(
                        now,
                        SpaceId(process + second as u32 / 100 * 50),
                        Vpn(place >> PAGE_SHIFT),
                        &hot,
                        Some(COLUMN),
                    );
                }
            }
        }
        assert_eq!(observer.shift, COARSEST);
        assert!(observer.columns.iter().all(|column| column.cells.len() <= ROWS));
        let pids: BTreeMap<SpaceId, u32> = (150..450).map(|space| (SpaceId(space), space)).collect();
        let map = observer.map(&pids);
        assert_eq!((map.rows.len(), map.left_out), (ROWS, 300 - ROWS as u64));
        assert!(map.cells.iter().all(|column| column.len() == ROWS));
        assert!(
            map.rows.iter().all(|row| row.address == 0 && row.pid > 0),
            "those of now are shown, not those who left"
        );
        // All but one exit; when their columns are dropped, its map is fine again.
        for second in (400..1000).step_by(5) {
            for place in places {
                let now = Time::ZERO + Duration::from_secs(second);
                observer.scan(now, SpaceId(449), Vpn(place >> PAGE_SHIFT), &hot, Some(COLUMN));
            }
        }
        assert_eq!((observer.shift, observer.map(&pids).rows.len()), (0, 3));
    }

    #[test]
    fn a_long_run_of_a_large_program_stays_within_the_bounds() {
        let mut heat = HeatRecorder::new(OF_A_RUN, Time::ZERO);
        // A few pages of each block stand for all: what is bounded are columns and rows.
        let ptes = [PteState::placed(TierId::FAST).with_accessed(true); 4];
        for second in (0..100_000).step_by(10) {
            for block in 0..600 {
                let now = Time::ZERO + Duration::from_secs(second);
                heat.scan(now, SpaceId(0), Vpn(block * 512), &ptes, Some(Duration::from_secs(10)));
            }
        }
        assert!(
            heat.columns.len() <= OF_A_RUN.columns
                && heat.columns.iter().all(|column| column.cells.len() <= OF_A_RUN.rows)
        );
        let map = heat.map(&BTreeMap::from([(SpaceId(0), 7)]));
        assert!(heat.map(&BTreeMap::new()).rows.is_empty(), "a process without a pid has no row");
        assert!(map.cells.iter().flatten().all(|share| *share == 1.0), "all was accessed all the time");
        let covered: u64 = map.rows.iter().map(|row| row.bytes).sum();
        assert!(covered >= 600 << 21, "every address keeps its row");
    }
}
