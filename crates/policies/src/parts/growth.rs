//! Whether a program's memory grows fast: while it loads what it will serve, that nobody used a page yet does not make it cold.
//!
//! In: the footprint at each plan. Out: whether it grew. Must not: know a page.

use std::collections::VecDeque;
use std::time::Duration;

use terrace_core::units::Time;

/// A program grows fast while its memory grew by more than this share within the time looked at.
const GROWTH: f64 = 0.05;

/// The footprint, in pages, at the plans of the time looked at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growth {
    footprints: VecDeque<(Time, u64)>,
}

impl Growth {
    /// Notes the footprint now; whether it grew fast within `span`.
    pub(crate) fn note(&mut self, now: Time, footprint: u64, span: Duration) -> bool {
        self.footprints.push_back((now, footprint));
        while self.footprints.get(1).is_some_and(|(at, _)| now.since(*at) >= span) {
            self.footprints.pop_front();
        }
        let least = self.footprints.iter().map(|(_, pages)| *pages).min().unwrap_or(footprint);
        footprint as f64 > least as f64 * (1.0 + GROWTH)
    }
}
