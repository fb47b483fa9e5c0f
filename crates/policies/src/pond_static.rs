//! `pond-static`: Pond's placement. A prediction of how much a guest will leave untouched decides how much of it is slow memory.
//!
//! In: new pages of each space, the size of the space. Out: their tier; with `monitor=on` one migration of a space that touches
//! its slow part after all. Must not: learn; the predictor is a number with an error, as the papers' stand-in.
//!
//! Source: Pond (ASPLOS 2023) as the specification (section 13) tells it; all values here are unverified recollections.
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `untouched` | 50 % | predicted untouched share of each space |
//! | `error` | 0 % | how far the prediction is off, up for one space and down for the next |
//! | `slice` | 1 GiB | granularity of the pool: the slow part is rounded down to it (unverified) |
//! | `insensitive` | off | the latency model says the program bears slow memory: all of it goes there |
//! | `monitor` | on | a sensitive space that touches its slow part is moved to fast memory, once (unverified) |
//!
//! Local memory fills first, as a guest's kernel does with a node that has no processors.

use std::collections::BTreeSet;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{CapacityView, Metric, Needs, Policy, PolicyReport, Profile, Remap, Schedule, Setup};
use terrace_core::units::{BLOCK_PAGES, BlockId, Bytes, PageId, SpaceId, TierId, Time};

use crate::parts::static_placement::nearest_with_room;
use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "pond-static",
    summary: "Pond: a predicted untouched share of each space is slow memory from the start",
    source: "Pond, ASPLOS 2023",
    settings: &[
        SettingInfo { key: "untouched", default: "50%", meaning: "predicted untouched share of a space" },
        SettingInfo { key: "error", default: "0%", meaning: "error of the prediction, up and down in turn" },
        SettingInfo { key: "slice", default: "1GiB", meaning: "granularity of the slow part" },
        SettingInfo { key: "insensitive", default: "off", meaning: "everything may be slow" },
        SettingInfo { key: "monitor", default: "on", meaning: "move a space that touches its slow part, once" },
    ],
    build: |settings| Ok(Box::new(PondStatic::new(settings)?)),
};

/// See the module's header.
pub struct PondStatic {
    untouched: f64,
    error: f64,
    full_slice: Bytes,
    slice: u64,
    insensitive: bool,
    monitor: bool,
    /// Known pages and fast quota by space, indexed by its number.
    mapped: Vec<u64>,
    used_fast: Vec<u64>,
    space_of: Vec<u32>,
    /// Spaces that touched their slow part, and those that were moved for it.
    touched: BTreeSet<SpaceId>,
    moved: BTreeSet<SpaceId>,
    due: Option<Time>,
}

impl PondStatic {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<PondStatic, SettingsError> {
        let full_slice = support::size(settings, "slice")?;
        Ok(PondStatic {
            untouched: settings.share("untouched")?,
            error: settings.share("error")?,
            full_slice,
            slice: full_slice.pages(),
            insensitive: settings.switch("insensitive")?,
            monitor: settings.switch("monitor")?,
            mapped: Vec::new(),
            used_fast: Vec::new(),
            space_of: Vec::new(),
            touched: BTreeSet::new(),
            moved: BTreeSet::new(),
            due: None,
        })
    }

    /// Fast pages a space is given: all but the predicted untouched share, rounded down to whole slices.
    fn quota(&self, space: SpaceId) -> u64 {
        if self.moved.contains(&space) {
            return u64::MAX;
        }
        if self.insensitive {
            return 0;
        }
        let size = self.mapped.get(space.0 as usize).copied().unwrap_or(0);
        let sign = if space.0.is_multiple_of(2) { 1.0 } else { -1.0 };
        let predicted = (self.untouched + sign * self.error).clamp(0.0, 1.0);
        let pool = (size as f64 * predicted) as u64 / self.slice * self.slice;
        size - pool
    }

    fn count(&mut self, pages: &Pages) {
        for space in pages.spaces() {
            let index = space.0 as usize;
            if self.used_fast.len() <= index {
                self.used_fast.resize(index + 1, 0);
            }
            self.used_fast[index] = pages.used(space, TierId::FAST);
        }
    }
}

impl PondStatic {
    fn mapped(&mut self, blocks: &[BlockId], pages: &mut Pages) {
        self.space_of.resize(pages.capacity() / BLOCK_PAGES as usize, 0);
        for &block in blocks {
            let Some(info) = pages.block(block) else { continue };
            self.space_of[block.0 as usize] = info.space.0;
        }
        // A block is mapped again when it gains pages, so sizes are counted again for the spaces that changed.
        let spaces: BTreeSet<SpaceId> =
            blocks.iter().filter_map(|&block| pages.block(block)).map(|info| info.space).collect();
        for space in spaces {
            let index = space.0 as usize;
            if self.mapped.len() <= index {
                self.mapped.resize(index + 1, 0);
            }
            let of_block =
                |block: BlockId| pages.block_pages(block).iter().filter(|page| page.managed()).count() as u64;
            self.mapped[index] = pages.blocks_of(space).map(|(block, _)| of_block(block)).sum();
        }
    }
}

impl Policy for PondStatic {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs::default())
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.slice = support::scaled_pages(self.full_slice, factor);
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        if let Remap::Mapped(blocks) = change {
            self.mapped(blocks, pages);
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        self.count(pages);
        if !self.monitor || self.insensitive {
            return;
        }
        let mut touch = |page: PageId, tier: TierId| {
            let (space, _) = pages.locate(page);
            if tier > TierId::FAST && !self.moved.contains(&space) && self.touched.insert(space) {
                self.due = Some(now);
            }
        };
        match seen {
            Observations::Scan(scan) => {
                if let Some(tier) = scan.ptes.iter().filter_map(|pte| pte.tier()).max() {
                    touch(scan.first, tier);
                }
            }
            Observations::Events(events) => {
                for event in events {
                    if let Observation::Allocated { page, tier } = *event {
                        touch(page, tier);
                    }
                }
            }
        }
    }

    fn plan(&mut self, _now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.due = None;
        let mut left = support::fast_limit(capacity).saturating_sub(capacity.tiers[0].used);
        for space in std::mem::take(&mut self.touched) {
            self.moved.insert(space);
            for (block, info) in pages.blocks_of(space) {
                let step = if info.huge { BLOCK_PAGES } else { 1 };
                for page in (0..BLOCK_PAGES).step_by(step as usize).map(|offset| block.first_page().plus(offset)) {
                    let slow = pages[page].tier().is_some_and(|tier| tier > TierId::FAST) && !pages[page].moving();
                    if slow && left >= u64::from(step) {
                        left -= u64::from(step);
                        requests.move_to(page, TierId::FAST, Reason::Hot);
                    }
                }
            }
        }
    }

    fn place(&mut self, _now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        let space = SpaceId(self.space_of.get(page.block().0 as usize).copied().unwrap_or(0));
        let used = self.used_fast.get(space.0 as usize).copied().unwrap_or(0);
        let wanted = if used < self.quota(space) { TierId::FAST } else { capacity.slowest() };
        let tier = nearest_with_room(wanted, capacity);
        if tier == TierId::FAST {
            // Allocations are reported in batches; until then the count here keeps the quota.
            let index = space.0 as usize;
            if self.used_fast.len() <= index {
                self.used_fast.resize(index + 1, 0);
            }
            self.used_fast[index] += 1;
        }
        tier
    }

    fn schedule(&self) -> Schedule {
        Schedule { wake_at: self.due, ..Schedule::default() }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport {
            memory_bytes: (self.mapped.capacity() + self.used_fast.capacity()) * 8 + self.space_of.capacity() * 4,
            metrics: vec![
                Metric { name: "spaces_moved", value: self.moved.len() as f64 },
                Metric { name: "metadata_bytes_per_page", value: 8.0 + 4.0 / f64::from(BLOCK_PAGES) },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW};

    fn rig(extra: &[(&str, &str)]) -> Rig {
        let pairs = [("slice", "400KiB")].into_iter().chain(extra.iter().copied());
        let mut rig = Rig::new(crate::build("pond-static", Settings::from_pairs(pairs)).unwrap(), &[5000, 5000]);
        rig.map(1024);
        rig
    }

    #[test]
    fn the_slow_part_is_the_prediction_rounded_down_to_slices() {
        let check = |extra: &[(&str, &str)], fast: usize| {
            let mut rig = rig(&[("monitor", "off")].into_iter().chain(extra.iter().copied()).collect::<Vec<_>>());
            rig.touch_first(0..1024);
            let found = (0..1024).filter(|&vpn| rig.tier(vpn) == Some(TierId::FAST)).count();
            assert_eq!(found, fast, "{extra:?}");
            assert!(rig.moves.is_empty());
        };
        check(&[], 524);
        check(&[("untouched", "25%")], 824);
        check(&[("untouched", "25%"), ("error", "25%")], 524);
        check(&[("untouched", "0%")], 1024);
        check(&[("insensitive", "on")], 0);
    }

    #[test]
    fn a_space_that_touches_its_slow_part_is_moved_once() {
        let mut rig = rig(&[]);
        rig.touch_first(0..524);
        assert!(rig.moves.is_empty(), "the prediction held");
        rig.touch_first([524]);
        assert_eq!((rig.promotions, rig.tier(524)), (1, Some(TierId::FAST)));
        rig.born([600], SLOW);
        assert_eq!(rig.promotions, 1, "only once");
    }
}
