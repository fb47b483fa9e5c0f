//! A hot set of pages that may move: shared by GUPS and hot-cold.
//!
//! In: pages, the hot share, how it lies. Out: the page of the n-th hot place. Must not: touch memory.

use crate::program::{Settings, WorkloadError};
use crate::random::Permutation;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// 64-bit words of a page.
pub(super) const PAGE_WORDS: usize = 512;

#[derive(Clone, Copy, Debug)]
pub(super) struct HotSet {
    pages: u64,
    hot: u64,
    first: u64,
    scatter: Option<Permutation>,
}

impl HotSet {
    /// Options `hot` (share of the pages) and `layout`.
    pub(super) fn of(settings: &Settings<'_>, pages: u64, default_hot: f64) -> Result<HotSet, WorkloadError> {
        let share =
            settings.option("hot", default_hot, "a share above 0 and at most 1", |s: f64| s > 0.0 && s <= 1.0)?;
        let scattered = settings.choice("layout", &["scattered", "contiguous"])? == "scattered";
        let hot = ((pages as f64 * share) as u64).clamp(1, pages);
        let scatter = scattered.then(|| Permutation::new(pages, settings.seed()));
        Ok(HotSet { pages, hot, first: 0, scatter })
    }

    /// Pages in the hot set.
    pub(super) fn hot_pages(&self) -> u64 {
        self.hot
    }

    /// The page of hot place `place`, which is below [`HotSet::hot_pages`].
    #[inline]
    pub(super) fn page(&self, place: u64) -> u64 {
        // Both are below the number of pages, so a subtraction does for the remainder, without a division.
        let sum = self.first + place;
        let linear = if sum >= self.pages { sum - self.pages } else { sum };
        self.scatter.map_or(linear, |scatter| scatter.apply(linear))
    }

    /// Moves the hot set on by its own size, so that it shares no page with the one before while there is room.
    pub(super) fn shift(&mut self) {
        self.first = (self.first + self.hot) % self.pages;
    }
}
