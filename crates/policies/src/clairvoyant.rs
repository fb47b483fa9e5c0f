//! `clairvoyant`: knows the future of the trace. An upper bound for policies that do not, not a policy to run.
//!
//! In: at each interval, how often every page will be used in the next one, from an [`Oracle`]. Out: exchanges that pay. Must
//! not: be compared as if it could exist; a live driver refuses it, since nothing can serve what it needs.
//!
//! Source: Terrace; the idea is Belady's. At each interval the slow pages with the most accesses ahead change places
//! with the fast pages with the fewest, as long as the difference pays for both moves.
//!
//! | constant | default | why |
//! |---|---|---|
//! | `interval` | 1 s | how far it looks ahead, and how often |
//! | `gain` | 40 accesses | what an exchange must save: two moves of about 5 us at 250 ns saved an access |
//!
//! It is a bound within its model, not a proof: it looks one interval ahead, and pays for moves by a fixed price.

use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::Seen;
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::{Reason, Wishes};
use terrace_core::policy::{Cadence, Metric, Needs, Oracle, Policy, Room};
use terrace_core::units::{BlockId, PageId, SpaceId, TierId, Time, Vpn};

use crate::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry. It is given its oracle with [`Policy::foresee`].
pub const INFO: PolicyInfo = PolicyInfo {
    name: "clairvoyant",
    summary: "knows the future of the trace: an upper bound, in the simulator only",
    source: "Terrace, after Belady",
    settings: &[
        SettingInfo { key: "interval", default: "1s", meaning: "how far it looks ahead, and how often" },
        SettingInfo { key: "gain", default: "40", meaning: "accesses an exchange must save in an interval" },
    ],
    build: |settings| Ok(Box::new(Clairvoyant::new(settings)?)),
};

/// See the module's header.
pub struct Clairvoyant {
    interval: Duration,
    gain: u32,
    oracle: Option<Box<dyn Oracle>>,
    ahead: Column<u32>,
    known: Vec<(PageId, u32)>,
    next: Time,
    unfinished: bool,
}

impl Clairvoyant {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Clairvoyant, SettingsError> {
        Ok(Clairvoyant {
            interval: settings.duration("interval", Duration::from_secs(1))?,
            gain: settings.number("gain", 40, 0..=1_000_000)?,
            oracle: None,
            ahead: Column::default(),
            known: Vec::new(),
            next: Time::ZERO,
            unfinished: false,
        })
    }

    /// With an oracle from the start.
    #[must_use]
    pub fn with_oracle(mut self, oracle: Box<dyn Oracle>) -> Clairvoyant {
        self.oracle = Some(oracle);
        self
    }

    /// Fills `ahead` with the accesses of the next interval, by unit: a huge block's on its first page.
    fn look_ahead(&mut self, now: Time, pages: &Pages) {
        let Some(oracle) = &mut self.oracle else { return };
        for (page, _) in self.known.drain(..) {
            self.ahead[page.index()] = 0;
        }
        let mut found = Vec::new();
        oracle.future(now, now + self.interval, pages, &mut found);
        for (page, accesses) in found {
            if pages.block(page.block()).is_some() {
                let unit = pages.unit(page).start;
                let entry = &mut self.ahead[unit.index()];
                *entry = entry.saturating_add(accesses);
                self.known.push((unit, 0));
            }
        }
    }
}

impl Policy for Clairvoyant {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn needs(&self) -> Needs {
        Needs { future: true, ..Needs::default() }
    }

    fn foresee(&mut self, oracle: Box<dyn Oracle>) -> bool {
        self.oracle = Some(oracle);
        true
    }

    fn mapped(&mut self, _now: Time, _blocks: &[BlockId], pages: &mut Pages) {
        self.ahead.fit(pages);
    }

    fn unmapping(&mut self, _now: Time, space: SpaceId, range: Range<Vpn>, pages: &Pages) {
        support::each_page(pages, space, &range, |page| self.ahead[page.index()] = 0);
    }

    fn observe(&mut self, _now: Time, _seen: Seen<'_>, _pages: &mut Pages) {}

    fn plan(&mut self, now: Time, room: &Room<'_>, pages: &mut Pages, wishes: &mut Wishes) {
        if self.oracle.is_none() || room.tiers.len() < 2 || (now < self.next && !self.unfinished) {
            return;
        }
        if !self.unfinished {
            self.next = now + self.interval;
            self.look_ahead(now, pages);
        }
        // Both sides by accesses a page, so that a huge block competes by its density.
        let (mut coming, mut leaving) = (Vec::new(), Vec::new());
        let ahead = &self.ahead;
        support::each_unit(pages, |unit, size, tier| {
            let entry = &pages[unit];
            if entry.moving() || entry.pinned() {
                return;
            }
            let density = ahead[unit.index()] / size as u32;
            if tier == TierId::FAST {
                leaving.push((density, unit, size));
            } else if ahead[unit.index()] > 0 {
                coming.push((density, unit, size));
            }
        });
        coming.sort_unstable_by_key(|&(density, unit, _)| (std::cmp::Reverse(density), unit));
        leaving.sort_unstable_by_key(|&(density, unit, _)| (density, unit));
        let mut free = support::fast_limit(room).saturating_sub(room.tiers[0].used);
        let mut victims = leaving.into_iter().peekable();
        'coming: for (density, unit, size) in coming {
            let mut chosen = Vec::new();
            let mut gained = free;
            while gained < size {
                match victims.next_if(|&(other, _, _)| density >= other.saturating_add(self.gain)) {
                    Some((_, victim, pages)) => {
                        gained += pages;
                        chosen.push(victim);
                    }
                    None => break 'coming,
                }
            }
            if density < self.gain / 2 || wishes.left() <= chosen.len() {
                break;
            }
            for victim in chosen {
                wishes.move_to(victim, TierId::FAST.below(), Reason::MakeRoom);
            }
            wishes.move_to(unit, TierId::FAST, Reason::AheadOfUse);
            free = gained - size;
        }
        self.unfinished = wishes.left() == 0;
    }

    fn memory_bytes(&self) -> usize {
        self.ahead.len() * size_of::<u32>() + self.known.capacity() * size_of::<(PageId, u32)>()
    }

    fn cadence(&self) -> Cadence {
        Cadence::default()
    }

    fn next_wake(&self) -> Option<Time> {
        self.oracle.is_some().then_some(self.next)
    }

    fn metrics(&self) -> Vec<Metric> {
        vec![
            Metric { name: "oracle_given", value: f64::from(u8::from(self.oracle.is_some())) },
            Metric { name: "pages_used_ahead", value: self.known.len() as f64 },
            Metric { name: "metadata_bytes_per_page", value: 8.0 + 4.0 },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW, SPACE};

    /// Before second 10 the pages 100 to 149 are used 100 times a second, later the pages 200 to 249.
    struct Switch;

    impl Oracle for Switch {
        fn future(&mut self, from: Time, _until: Time, pages: &Pages, found: &mut Vec<(PageId, u32)>) {
            let first = if from < Time::ZERO + Duration::from_secs(10) { 100 } else { 200 };
            found.extend((first..first + 50).filter_map(|vpn| Some((pages.find(SPACE, Vpn(vpn))?, 100))));
        }
    }

    #[test]
    fn pages_are_there_before_they_are_used_and_only_exchanges_that_pay_are_made() {
        let check = |gain: &str, moved: bool| {
            let policy = crate::build("clairvoyant", Settings::from_pairs([("gain", gain)])).unwrap();
            let mut rig = Rig::new(policy, &[50, 1000]);
            rig.map(512);
            rig.born(0..50, TierId::FAST);
            rig.born(50..300, SLOW);
            assert!(rig.engine.foresee(Box::new(Switch)));
            rig.pass(Duration::from_secs(5));
            assert_eq!(rig.tier(120) == Some(TierId::FAST), moved, "gain {gain}");
            rig.pass(Duration::from_secs(6));
            assert_eq!(rig.tier(220) == Some(TierId::FAST), moved, "gain {gain}");
            assert_eq!(rig.promotions, if moved { 100 } else { 0 });
        };
        check("40", true);
        check("101", false);
    }

    #[test]
    fn without_an_oracle_it_places_and_does_nothing_else() {
        let mut rig = Rig::new(crate::build("clairvoyant", Settings::default()).unwrap(), &[10, 100]);
        rig.map(64);
        rig.touch_first(0..20);
        rig.pass(Duration::from_secs(5));
        assert!(rig.moves.is_empty() && rig.engine.policy_needs().future);
    }
}
