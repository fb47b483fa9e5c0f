//! Whether a program's memory grows fast: while it loads what it will serve, that nobody used a page yet does not make it cold.
//!
//! In: the footprint at each plan. Out: whether it grew. Must not: know a page, or take programs that start one after another for one that grows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::units::{SpaceId, Time};

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

/// The growth of each program.
#[derive(Clone, Debug, Default)]
pub(crate) struct GrowthOfEach {
    programs: BTreeMap<SpaceId, Growth>,
}

impl GrowthOfEach {
    /// Notes how much memory each program has now, but for those left out; which of them grew fast within `span`.
    pub(crate) fn note(
        &mut self,
        now: Time,
        pages: &Pages,
        span: impl Fn(SpaceId) -> Duration,
        left_out: impl Fn(SpaceId) -> bool,
    ) -> BTreeSet<SpaceId> {
        let spaces: BTreeSet<SpaceId> = pages.spaces().collect();
        self.programs.retain(|space, _| spaces.contains(space));
        let mut growing = BTreeSet::new();
        for space in spaces.into_iter().filter(|space| !left_out(*space)) {
            if self.programs.entry(space).or_default().note(now, pages.footprint(space), span(space)) {
                growing.insert(space);
            }
        }
        growing
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::{TierId, Vpn};

    use super::*;

    #[test]
    fn programs_that_start_one_after_another_do_not_grow() {
        let (mut pages, mut growth) = (Pages::new(), GrowthOfEach::default());
        let span = Duration::from_secs(12);
        for second in 0..40_u32 {
            let now = Time::ZERO + Duration::from_secs(100 + u64::from(second));
            // A program every four seconds, whose memory is there at once; the first one grows without end.
            for (space, range) in [(second / 4 + 1, 0..64), (0, u64::from(second) * 8..u64::from(second) * 8 + 8)] {
                let space = SpaceId(space);
                pages.map(space, Vpn(range.start)..Vpn(range.end));
                for vpn in range {
                    let page = pages.find(space, Vpn(vpn)).unwrap();
                    pages.set_tier(page, Some(TierId::FAST));
                }
            }
            let growing = growth.note(now, &pages, |_| span, |space| space == SpaceId(3));
            if second >= 20 {
                assert_eq!(growing, BTreeSet::from([SpaceId(0)]), "at {second} s");
            }
        }
    }
}
