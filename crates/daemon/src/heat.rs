//! The heat map of a class: which share of each stretch of memory was accessed, over the last minutes.
//!
//! In: walks, as the manager's tap sees them. Out: a [`crate::view::Heat`], and how many accesses fast memory served. Must not: grow with
//! the memory or with time: rows grow coarser, old columns go.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use terrace_core::observation::Sight;
use terrace_core::units::{BLOCK_SHIFT, PAGE_SHIFT, SpaceId, TierId, Time, Vpn};
use terrace_linux::manager::Tap;

use crate::view::{self, HeatRow};

const COLUMNS: usize = 60;
const ROWS: usize = 128;
/// A column; with 60 of them the map reaches back five minutes.
const COLUMN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Default)]
struct Cell {
    pages: u32,
    accessed: u32,
}

#[derive(Default)]
struct Column {
    began: f64,
    number: u64,
    cells: BTreeMap<(SpaceId, u64), Cell>,
}

/// See the module's header.
#[derive(Default)]
pub struct HeatTap {
    columns: VecDeque<Column>,
    /// A row covers 2^shift blocks.
    shift: u32,
    /// Seconds since 1970 at the manager's time zero.
    epoch: f64,
    fast: u64,
    slow: u64,
}

impl HeatTap {
    /// A tap for a manager whose clock shows `now`.
    pub fn new(now: Time) -> HeatTap {
        HeatTap { epoch: crate::shared::wall_clock() - now.as_secs_f64(), ..HeatTap::default() }
    }

    /// Accessed marks seen since the last call: on pages in the fastest tier, and in slower ones.
    pub fn take_hits(&mut self) -> (u64, u64) {
        (std::mem::take(&mut self.fast), std::mem::take(&mut self.slow))
    }

    /// A process is gone; its rows go when their columns do.
    pub fn map(&self, class: &str, pids: &BTreeMap<SpaceId, u32>) -> view::Heat {
        let keys: BTreeSet<(SpaceId, u64)> =
            self.columns.iter().flat_map(|column| column.cells.keys().copied()).collect();
        let bytes = 1u64 << (self.shift + BLOCK_SHIFT + PAGE_SHIFT);
        // Blocks are read in rotation, so a column misses some; they keep what was last seen of them for a while.
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
            cells: cells.collect(),
            columns: self.columns.iter().map(|column| column.began).collect(),
            rows: keys
                .iter()
                .map(|(space, row)| HeatRow { pid: pids.get(space).copied().unwrap_or(0), address: row * bytes, bytes })
                .collect(),
        }
    }
}

impl Tap for HeatTap {
    fn scan(&mut self, now: Time, space: SpaceId, first: Vpn, sights: &[Sight], window: Option<Duration>) {
        if window.is_none() {
            return;
        }
        let number = (now.as_nanos() / COLUMN.as_nanos() as u64).max(1);
        if self.columns.back().is_none_or(|column| column.number < number) {
            let began = self.epoch + number as f64 * COLUMN.as_secs_f64();
            self.columns.push_back(Column { began, number, cells: BTreeMap::new() });
            if self.columns.len() > COLUMNS {
                self.columns.pop_front();
            }
        }
        let key = (space, first.0 >> (BLOCK_SHIFT + self.shift));
        let mut seen = Cell::default();
        for sight in sights.iter().filter(|sight| sight.tier().is_some()) {
            seen.pages += 1;
            if sight.accessed() {
                seen.accessed += 1;
                match sight.tier() {
                    Some(TierId::FAST) => self.fast += 1,
                    _ => self.slow += 1,
                }
            }
        }
        let Some(column) = self.columns.back_mut() else { return };
        let cell = column.cells.entry(key).or_default();
        cell.pages += seen.pages;
        cell.accessed += seen.accessed;
        if column.cells.len() > ROWS {
            self.shift += 1;
            for column in &mut self.columns {
                let mut coarser: BTreeMap<(SpaceId, u64), Cell> = BTreeMap::new();
                for ((space, row), cell) in &column.cells {
                    let sum = coarser.entry((*space, row >> 1)).or_default();
                    sum.pages += cell.pages;
                    sum.accessed += cell.accessed;
                }
                column.cells = coarser;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_class_watched_for_days_stays_within_the_bounds() {
        let mut tap = HeatTap::new(Time::ZERO);
        let hot = vec![Sight::placed(TierId::FAST).with_accessed(true); 512];
        for second in (10..200_000).step_by(50) {
            for block in 0..300 {
                let now = Time::ZERO + Duration::from_secs(second);
                tap.scan(now, SpaceId(block % 3), Vpn(u64::from(block) * 512), &hot, Some(COLUMN));
            }
        }
        assert!(tap.columns.len() <= COLUMNS && tap.columns.iter().all(|column| column.cells.len() <= ROWS));
        let map = tap.map("web", &BTreeMap::from([(SpaceId(0), 7)]));
        assert!(map.cells.iter().flatten().all(|share| *share == 1.0) && map.rows.iter().any(|row| row.pid == 7));
        assert_eq!((tap.take_hits().0 > 0, tap.take_hits()), (true, (0, 0)));
    }
}
