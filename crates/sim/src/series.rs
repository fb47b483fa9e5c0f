//! Figures over time, in a bounded number of rows.
//!
//! In: running totals, with the time. Out: rows of what happened between one and the next. Must not: grow with the run:
//! when it is full, neighbouring rows are joined and each covers twice the time.

use terrace_core::policy::Metric;
use terrace_core::units::Time;

const MOST_ROWS: usize = 1024;

/// Running totals of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Accesses served by the fastest tier.
    pub fast: u64,
    /// Accesses served by memory of any tier.
    pub memory: u64,
    /// Pages promoted.
    pub promoted: u64,
    /// Pages demoted, by the policy or by the kernel.
    pub demoted: u64,
    /// Pages whose promotion failed.
    pub failed: u64,
}

/// One stretch of the run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Row {
    /// When it ended, in full-size seconds.
    pub seconds: f64,
    /// Share of memory accesses served by the fastest tier; NaN where there were none is written as null.
    pub fast_hit_share: Option<f64>,
    /// Memory accesses.
    pub memory_accesses: u64,
    /// Pages promoted.
    pub promoted: u64,
    /// Pages demoted.
    pub demoted: u64,
    /// Pages whose promotion failed.
    pub failed_promotions: u64,
    /// Pages in the fastest tier at its end.
    pub fast_pages: u64,
    /// The policy's figures at its end, in the order of [`Series::metrics`].
    pub metrics: Vec<f64>,
    #[serde(skip)]
    fast_accesses: u64,
}

/// Rows in the order of time.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Series {
    /// Names of the policy's figures.
    pub metrics: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Row>,
    #[serde(skip)]
    interval: u64,
    #[serde(skip)]
    due: u64,
    #[serde(skip)]
    last: Totals,
}

impl Series {
    /// A series with a row per `interval` full-size nanoseconds at first.
    pub fn new(interval: u64) -> Series {
        Series { interval: interval.max(1), due: interval.max(1), ..Series::default() }
    }

    /// Whether a row is due.
    pub fn is_due(&self, now: Time) -> bool {
        now.as_nanos() >= self.due
    }

    /// Adds the row that ends now.
    pub fn add(&mut self, now: Time, totals: Totals, fast_pages: u64, metrics: &[Metric]) {
        // A policy may name a figure only once it has it; columns are added on the right.
        for metric in metrics {
            if !self.metrics.contains(&metric.name) {
                self.metrics.push(metric.name);
            }
        }
        let value = |name: &&str| metrics.iter().find(|metric| metric.name == *name).map_or(0.0, |metric| metric.value);
        let memory = totals.memory - self.last.memory;
        let fast = totals.fast - self.last.fast;
        self.rows.push(Row {
            seconds: now.as_secs_f64(),
            fast_hit_share: (memory > 0).then(|| fast as f64 / memory as f64),
            memory_accesses: memory,
            promoted: totals.promoted - self.last.promoted,
            demoted: totals.demoted - self.last.demoted,
            failed_promotions: totals.failed - self.last.failed,
            fast_pages,
            metrics: self.metrics.iter().map(value).collect(),
            fast_accesses: fast,
        });
        self.last = totals;
        if self.rows.len() >= MOST_ROWS {
            let old = std::mem::take(&mut self.rows);
            self.rows = old.chunks(2).map(join).collect();
            self.interval *= 2;
        }
        self.due = now.as_nanos() + self.interval;
    }
}

fn join(pair: &[Row]) -> Row {
    let mut row = pair[pair.len() - 1].clone();
    if let [first, _] = pair {
        row.fast_accesses += first.fast_accesses;
        row.memory_accesses += first.memory_accesses;
        row.promoted += first.promoted;
        row.demoted += first.demoted;
        row.failed_promotions += first.failed_promotions;
        let share = row.fast_accesses as f64 / row.memory_accesses as f64;
        row.fast_hit_share = (row.memory_accesses > 0).then_some(share);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joining_rows_loses_nothing() {
        let mut series = Series::new(10);
        let mut totals = Totals::default();
        let mut rows = 0;
        for step in 0..5000u64 {
            totals =
                Totals { fast: totals.fast + 1, memory: totals.memory + 2, promoted: totals.promoted + 3, ..totals };
            let now = Time::from_nanos(step * 10 + 10);
            if series.is_due(now) {
                series.add(now, totals, 7, &[Metric { name: "bins", value: step as f64 }]);
                rows += 1;
            }
        }
        assert!(series.rows.len() < MOST_ROWS && rows > MOST_ROWS);
        let promoted: u64 = series.rows.iter().map(|row| row.promoted).sum();
        assert_eq!(promoted, series.last.promoted);
        assert!(series.rows.iter().all(|row| row.fast_hit_share == Some(0.5) && row.fast_pages == 7));
        assert_eq!(series.metrics, ["bins"]);
    }
}
