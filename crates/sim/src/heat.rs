//! An address-by-time heat map of bounded size.
//!
//! In: pages touched, with the time. Out: counts in at most 256 rows of time and 256 columns of addresses. Must not:
//! grow with the run: when a side is full, neighbours are added up and each cell covers twice as much.

use terrace_core::units::Time;

/// Columns, and most rows.
const SIDE: usize = 256;

/// The map.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct HeatMap {
    /// Pages a column covers.
    pub pages_per_column: u64,
    /// Full-size nanoseconds a row covers.
    pub nanos_per_row: u64,
    /// Counts of sampled accesses: one row a stretch of time, one column a stretch of pages from the first mapped on.
    pub rows: Vec<Vec<u32>>,
}

impl HeatMap {
    /// An empty map whose first rows cover this many nanoseconds.
    pub fn new(nanos_per_row: u64) -> HeatMap {
        HeatMap { pages_per_column: 1, nanos_per_row: nanos_per_row.max(1), rows: Vec::new() }
    }

    /// Counts a page at a time.
    pub fn add(&mut self, now: Time, page: u32) {
        while u64::from(page) / self.pages_per_column >= SIDE as u64 {
            self.widen();
        }
        while now.as_nanos() / self.nanos_per_row >= SIDE as u64 {
            self.heighten();
        }
        let row = (now.as_nanos() / self.nanos_per_row) as usize;
        if self.rows.len() <= row {
            self.rows.resize(row + 1, vec![0; SIDE]);
        }
        let cell = &mut self.rows[row][(u64::from(page) / self.pages_per_column) as usize];
        *cell = cell.saturating_add(1);
    }

    fn widen(&mut self) {
        self.pages_per_column *= 2;
        for row in &mut self.rows {
            for column in 0..SIDE / 2 {
                row[column] = row[2 * column].saturating_add(row[2 * column + 1]);
            }
            row[SIDE / 2..].fill(0);
        }
    }

    fn heighten(&mut self) {
        self.nanos_per_row *= 2;
        let old = std::mem::take(&mut self.rows);
        self.rows = old
            .chunks(2)
            .map(|pair| match pair {
                [one, two] => one.iter().zip(two).map(|(a, b)| a.saturating_add(*b)).collect(),
                one => one[0].clone(),
            })
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_count_is_lost_however_far_the_map_grows() {
        let mut map = HeatMap::new(10);
        for n in 0..10_000u32 {
            map.add(Time::from_nanos(u64::from(n) * 7), n.wrapping_mul(97) % 100_000);
        }
        let total: u32 = map.rows.iter().flatten().sum();
        assert_eq!(total, 10_000);
        assert!(map.rows.len() <= SIDE && map.rows.iter().all(|row| row.len() == SIDE));
        assert!(map.pages_per_column * SIDE as u64 >= 100_000 && map.pages_per_column < 1024);
    }
}
