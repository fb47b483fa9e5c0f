//! The heat map of a class: which share of each address range was accessed, over the last minutes.
//!
//! In: scans, as the manager's observer sees them. Out: a [`crate::view::Heat`], and the number of accesses that fast memory served. Must
//! not: grow with memory, processes or time. Rows become coarser, old columns are dropped, and with very many processes some are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use terrace_core::observation::PteState;
use terrace_core::units::{BLOCK_SHIFT, PAGE_SHIFT, SpaceId, TierId, Time, Vpn};
use terrace_linux::observer::Observer;

use crate::view::{self, HeatRow};

const COLUMNS: usize = 60;
const ROWS: usize = 128;
/// Length of a column; with 60 of them the map covers five minutes.
const COLUMN: Duration = Duration::from_secs(5);
/// With rows of 2^36 blocks a process has one row: five-level page tables span 57 bits.
const COARSEST: u32 = 36;

/// What was seen of the pages of a row in one column.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    /// Pages looked at, as often as they were.
    pub pages: u32,
    /// Those found accessed.
    pub accessed: u32,
}

/// A column, by process and row.
pub type Cells = BTreeMap<(SpaceId, u64), Cell>;

/// Cells added up, rows made `shift` steps coarser.
pub fn merged<'a>(cells: impl IntoIterator<Item = (&'a (SpaceId, u64), &'a Cell)>, shift: u32) -> Cells {
    let mut sums = Cells::new();
    for ((space, row), cell) in cells {
        let sum = sums.entry((*space, row >> shift)).or_default();
        sum.pages += cell.pages;
        sum.accessed += cell.accessed;
    }
    sums
}

#[derive(Default)]
struct Column {
    began: f64,
    number: u64,
    cells: Cells,
}

/// See the module's header.
#[derive(Default)]
pub struct HeatTap {
    columns: VecDeque<Column>,
    /// A row covers 2^shift blocks.
    shift: u32,
    /// Seconds since 1970 at time zero of the manager.
    epoch: f64,
    fast: u64,
    slow: u64,
}

impl HeatTap {
    /// An observer for a manager whose clock shows `now`.
    pub fn new(now: Time) -> HeatTap {
        HeatTap { epoch: crate::shared::wall_clock() - now.as_secs_f64(), ..HeatTap::default() }
    }

    /// Accessed bits seen since the last call: on pages in the fastest tier, and in slower tiers.
    pub fn take_hits(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.fast), std::mem::take(&mut self.slow))
    }

    /// The map. Rows of an exited process stay until their columns are dropped, or until there are too many.
    pub fn map(&self, class: &str, pids: &BTreeMap<SpaceId, u32>) -> view::Heat {
        let mut keys: BTreeSet<(SpaceId, u64)> = BTreeSet::new();
        let cells = self.columns.iter().rev().flat_map(|column| column.cells.keys());
        // A process that ended leaves its cells in older columns; it is not shown any more.
        for key in cells.filter(|(space, _)| pids.contains_key(space)) {
            if keys.len() >= ROWS && !keys.contains(key) {
                continue;
            }
            keys.insert(*key);
        }
        let shown: BTreeSet<SpaceId> = keys.iter().map(|(space, _)| *space).collect();
        let bytes = 1u64 << (self.shift + BLOCK_SHIFT + PAGE_SHIFT);
        // Blocks are read in rotation, so a column misses some; they keep their last value for a while.
        let mut last: BTreeMap<(SpaceId, u64), (f32, usize)> = BTreeMap::new();
        let cells = self.columns.iter().enumerate().map(|(at, column)| {
            for (key, cell) in column.cells.iter().filter(|(_, cell)| cell.pages > 0) {
                last.insert(*key, (cell.accessed as f32 / cell.pages as f32, at));
            }
            keys.iter()
                .map(|key| last.get(key).filter(|(_, seen)| at - seen <= 6).map_or(-1.0, |(share, _)| *share))
                .collect()
        });
        view::Heat {
            class: class.to_owned(),
            processes_left_out: pids.keys().filter(|space| !shown.contains(space)).count() as u64,
            cells: cells.collect(),
            columns: self.columns.iter().map(|column| column.began).collect(),
            rows: keys.iter().map(|(space, row)| HeatRow { pid: pids[space], address: row * bytes, bytes }).collect(),
        }
    }
}

impl Observer for HeatTap {
    fn scan(&mut self, now: Time, space: SpaceId, first: Vpn, ptes: &[PteState], window: Option<Duration>) {
        if window.is_none() {
            return;
        }
        let number = (now.as_nanos() / COLUMN.as_nanos() as u64).max(1);
        if self.columns.back().is_none_or(|column| column.number < number) {
            // The many processes that made it so coarse have left: discard the map and start again.
            if self.shift == COARSEST && self.columns.iter().all(|column| column.cells.len() <= ROWS / 8) {
                self.columns.clear();
                self.shift = 0;
            }
            let began = self.epoch + number as f64 * COLUMN.as_secs_f64();
            self.columns.push_back(Column { began, number, cells: Cells::new() });
            if self.columns.len() > COLUMNS {
                self.columns.pop_front();
            }
        }
        let key = (space, first.0 >> (BLOCK_SHIFT + self.shift));
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
        let Some(column) = self.columns.back_mut() else { return };
        if self.shift == COARSEST && column.cells.len() >= ROWS && !column.cells.contains_key(&key) {
            return;
        }
        let cell = column.cells.entry(key).or_default();
        cell.pages += seen.pages;
        cell.accessed += seen.accessed;
        while self.shift < COARSEST && self.columns.back().is_some_and(|column| column.cells.len() > ROWS) {
            self.shift += 1;
            for column in &mut self.columns {
                column.cells = merged(&column.cells, 1);
            }
        }
        // More processes than rows: leave out the newest.
        if let Some(column) = self.columns.back_mut().filter(|column| column.cells.len() > ROWS) {
            column.cells.remove(&(space, first.0 >> (BLOCK_SHIFT + self.shift)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_class_watched_for_days_stays_within_the_bounds() {
        let mut observer = HeatTap::new(Time::ZERO);
        let hot = vec![PteState::placed(TierId::FAST).with_accessed(true); 512];
        for second in (10..200_000).step_by(50) {
            for block in 0..300 {
                let now = Time::ZERO + Duration::from_secs(second);
                observer.scan(now, SpaceId(block % 3), Vpn(u64::from(block) * 512), &hot, Some(COLUMN));
            }
        }
        assert!(observer.columns.len() <= COLUMNS && observer.columns.iter().all(|column| column.cells.len() <= ROWS));
        let map = observer.map("web", &BTreeMap::from([(SpaceId(0), 7)]));
        assert!(map.cells.iter().flatten().all(|share| *share == 1.0) && map.rows.iter().any(|row| row.pid == 7));
        assert_eq!((observer.take_hits().0 > 0, observer.take_hits()), (true, (0, 0)));
    }

    #[test]
    fn of_more_processes_than_rows_some_are_left_out_and_that_is_told() {
        let mut observer = HeatTap::new(Time::ZERO);
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
        let map = observer.map("web", &pids);
        assert_eq!((map.rows.len(), map.processes_left_out), (ROWS, 300 - ROWS as u64));
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
        assert_eq!((observer.shift, observer.map("web", &pids).rows.len()), (0, 3));
    }
}
