//! The heat map made small enough to look at.
//!
//! In: a [`HeatMap`] as it was recorded, with as many columns and rows as the run gave. Out: a [`Grid`] of bounded size whose
//! cells are means of the recorded ones, weighted by memory. Must not: make up a share where nothing was seen.

use super::HeatMap;

/// Accessed shares in a grid of bounded size.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    /// Where each column starts and the last ends, in seconds; one more than there are columns.
    pub column_edges: Vec<f64>,
    /// The rows, in address order.
    pub rows: Vec<GridRow>,
    /// `cells[column][row]`; `None` where nothing was seen.
    pub cells: Vec<Vec<Option<f32>>>,
}

/// A row of the grid: one recorded row or neighbours taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridRow {
    /// The process of the first recorded row in it.
    pub pid: u32,
    /// Its first address.
    pub address: u64,
    /// The address after its last byte.
    pub end: u64,
    /// Mapped memory in it: less than `end - address` where it spans a gap.
    pub bytes: u64,
}

/// Consecutive rows of one process without a gap between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The process.
    pub pid: u32,
    /// First address.
    pub address: u64,
    /// Mapped memory.
    pub bytes: u64,
    /// Mapped memory in the rows above it, which is where it starts on the page.
    pub offset: u64,
}

impl Grid {
    /// Merges `map` to at most `max_columns` and `max_rows`. `end_seconds` is the end of the run and of the last column.
    pub(crate) fn of(map: &HeatMap, end_seconds: f64, max_columns: usize, max_rows: usize) -> Grid {
        let rows = row_groups(map, max_rows.max(1));
        let width = map.column_seconds.len().div_ceil(max_columns.max(1)).max(1);
        let mut column_edges: Vec<f64> = map.column_seconds.chunks(width).map(|chunk| chunk[0]).collect();
        let cells = (0..column_edges.len())
            .map(|column| {
                let recorded = map.cells.get(column * width..).unwrap_or_default();
                let recorded = &recorded[..recorded.len().min(width)];
                rows.iter().map(|(_, members)| mean(map, recorded, members.clone())).collect()
            })
            .collect();
        if let Some(&last) = column_edges.last() {
            // A run that ended as its last column began still gets a column that can be seen.
            let usual = map.column_seconds.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
            let usual = if usual > 0.0 { usual * width as f64 } else { 1.0 };
            column_edges.push(if end_seconds > last { end_seconds } else { last + usual });
        }
        Grid { column_edges, rows: rows.into_iter().map(|(row, _)| row).collect(), cells }
    }

    /// Whether there is anything to look at.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() || self.cells.iter().flatten().all(Option::is_none)
    }

    /// Mapped memory in all rows.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    /// The stretches of the address space that the rows cover.
    pub(crate) fn stretches(&self) -> Vec<Stretch> {
        let mut stretches: Vec<Stretch> = Vec::new();
        let (mut offset, mut after) = (0, 0);
        for row in &self.rows {
            match stretches.last_mut() {
                Some(stretch) if stretch.pid == row.pid && after == row.address => stretch.bytes += row.bytes,
                _ => stretches.push(Stretch { pid: row.pid, address: row.address, bytes: row.bytes, offset }),
            }
            offset += row.bytes;
            after = row.end;
        }
        stretches
    }
}

/// Rows taken together so that each group holds about the same memory, with the recorded rows in each.
fn row_groups(map: &HeatMap, max_rows: usize) -> Vec<(GridRow, std::ops::Range<usize>)> {
    let total: u64 = map.rows.iter().map(|row| row.bytes).sum();
    // A closed group holds at least this much, so there can be no more of them than asked for.
    let least = if map.rows.len() <= max_rows { 0 } else { total.div_ceil(max_rows as u64) };
    let mut groups: Vec<(GridRow, std::ops::Range<usize>)> = Vec::new();
    let mut open = false;
    for (index, row) in map.rows.iter().enumerate().filter(|(_, row)| row.bytes > 0) {
        let end = row.address.saturating_add(row.bytes);
        match groups.last_mut() {
            Some((group, members)) if open => {
                group.bytes += row.bytes;
                group.end = end;
                members.end = index + 1;
            }
            _ => groups.push((GridRow { pid: row.pid, address: row.address, end, bytes: row.bytes }, index..index + 1)),
        }
        open = groups.last().is_some_and(|(group, _)| group.bytes < least);
    }
    groups
}

/// The mean of the cells that were seen, weighted by the memory of their rows.
fn mean(map: &HeatMap, columns: &[Vec<f32>], rows: std::ops::Range<usize>) -> Option<f32> {
    let (mut sum, mut weight) = (0.0_f64, 0.0_f64);
    for column in columns {
        for row in rows.clone() {
            // Columns recorded before a row was mapped may be shorter than the list of rows.
            let share = column.get(row).copied().unwrap_or(-1.0);
            if share.is_finite() && share >= 0.0 {
                let bytes = map.rows[row].bytes as f64;
                sum += f64::from(share.min(1.0)) * bytes;
                weight += bytes;
            }
        }
    }
    (weight > 0.0).then(|| (sum / weight) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeatRow;

    fn map(columns: usize, rows: usize) -> HeatMap {
        HeatMap {
            column_seconds: (0..columns).map(|column| column as f64).collect(),
            rows: (0..rows).map(|row| HeatRow { pid: 7, address: row as u64 * 4096, bytes: 4096 }).collect(),
            cells: (0..columns).map(|_| (0..rows).map(|row| (row % 2) as f32).collect()).collect(),
        }
    }

    #[test]
    fn a_small_map_is_left_as_it_is() {
        let grid = Grid::of(&map(3, 4), 3.0, 120, 200);
        assert_eq!(grid.column_edges, [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(grid.rows.len(), 4);
        assert_eq!(grid.cells[2], [Some(0.0), Some(1.0), Some(0.0), Some(1.0)]);
        assert_eq!(grid.stretches().len(), 1);
    }

    #[test]
    fn a_large_map_is_bounded_and_keeps_all_memory_and_its_mean() {
        let recorded = map(1_001, 5_003);
        let grid = Grid::of(&recorded, 1_001.0, 120, 200);
        assert!(grid.rows.len() <= 200 && grid.cells.len() <= 120, "{} x {}", grid.rows.len(), grid.cells.len());
        assert_eq!(grid.total_bytes(), 5_003 * 4096);
        assert!(grid.cells.iter().flatten().all(|cell| cell.is_some_and(|share| (share - 0.5).abs() < 0.05)));
    }

    #[test]
    fn what_was_not_seen_does_not_count_as_idle() {
        let mut recorded = map(2, 2);
        recorded.cells = vec![vec![-1.0, f32::NAN], vec![0.5]];
        let grid = Grid::of(&recorded, 2.0, 1, 2);
        assert_eq!(grid.cells, [[Some(0.5), None]]);
        assert!(Grid::of(&HeatMap::default(), 0.0, 120, 200).is_empty());
    }

    #[test]
    fn gaps_and_processes_part_stretches() {
        let mut recorded = map(1, 4);
        recorded.rows[2].address = 1 << 40;
        recorded.rows[3].pid = 8;
        let grid = Grid::of(&recorded, 1.0, 120, 200);
        let found: Vec<(u32, u64, u64)> =
            grid.stretches().iter().map(|stretch| (stretch.pid, stretch.bytes, stretch.offset)).collect();
        assert_eq!(found, [(7, 8192, 0), (7, 4096, 8192), (8, 4096, 12288)]);
    }

    #[test]
    fn a_run_that_ended_at_once_has_a_column_with_a_width() {
        let grid = Grid::of(&map(1, 1), 0.0, 120, 200);
        assert_eq!(grid.column_edges, [0.0, 1.0]);
    }
}
