//! How a run went, cut into parts of equal work.
//!
//! In: work, seconds and resident pages at each look. Out: seconds and pages of each part, which are what is kept of it. Must not: compare
//! runs; `bounds` does.

/// Parts of equal work.
const PARTS: usize = 40;

/// A run over time: work done, seconds and resident pages at each look; work in any unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    /// Work in any unit, seconds, resident pages.
    pub points: Vec<(f64, f64, u64)>,
}

impl Course {
    /// Seconds and mean resident pages of each part, `None` for a run that was too short to be cut.
    pub(crate) fn parts(&self, seconds: f64) -> Option<Vec<(f64, f64)>> {
        let (&(first, ..), &(last, last_seconds, last_resident)) = (self.points.first()?, self.points.last()?);
        if self.points.len() < PARTS / 4 || last <= first {
            return None;
        }
        // What follows the last look goes on as the run was on average: less than an interval.
        let whole = first + (last - first) * (seconds / last_seconds.max(f64::MIN_POSITIVE)).max(1.0);
        let at = |work: f64| {
            let next = self.points.partition_point(|&(done, ..)| done < work);
            let before = self.points[next.saturating_sub(1)];
            let after = self.points.get(next).copied().unwrap_or((whole, seconds, last_resident));
            let part = ((work - before.0) / (after.0 - before.0).max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
            (before.1 + part * (after.1 - before.1), before.2 as f64 + part * (after.2 as f64 - before.2 as f64))
        };
        let cuts: Vec<(f64, f64)> = (0..=PARTS)
            .map(|number| at(first + (whole - first) * number as f64 / PARTS as f64))
            .enumerate()
            // The start has no look before it.
            .map(|(number, cut)| if number == 0 { (0.0, cut.1) } else { cut })
            .collect();
        Some(cuts.windows(2).map(|pair| (pair[1].0 - pair[0].0, f64::midpoint(pair[0].1, pair[1].1))).collect())
    }
}
