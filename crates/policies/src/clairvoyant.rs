//! `clairvoyant`: knows the future of the trace. An upper bound for policies that do not, not a policy to run.
//!
//! In: how often every page will be used within each of three horizons, from an [`Oracle`]. Out: exchanges that pay, and fast
//! memory left free for new pages that will be used. Must not: be compared as if it could exist; a live driver refuses it,
//! since nothing can serve what it needs.
//!
//! Source: Terrace; the idea is Belady's. At each interval the slow pages with the most accesses ahead change places with the
//! fast pages with the fewest, as long as the difference is worth an exchange within one of the horizons, and loses nothing
//! within the shorter ones: what is used soon is not given up for what is used more later. A page that is not born yet
//! competes like a slow page: room is made for it, at the price of one move, and it is born fast. Its moves take no time and load no tier
//! ([`Movers::Free`]), so a policy that chooses as well and pays for its moves is behind it.
//!
//! | constant | default | why |
//! |---|---|---|
//! | `interval` | 100 ms | how often it looks: births and hot sets change within a second; the horizons are 1, 4 and 16 of them |
//! | `FAR` | 16 | each look of this number has horizons as many times longer: what pays only within 25 s |
//! | `gain` | 12 accesses | what an exchange must save: two copies of 4 KiB between DRAM and Optane take 3 us (2.3 GB/s up, 3.5 GB/s down), an access saves 250 ns |
//!
//! It is a bound within its model, not a proof: it looks no further than the last horizon, makes no exchange below its price, and
//! holds reads and writes for equal. `crates/sim/tests/bound.rs` holds that no policy is 2 % ahead of it.
use std::time::Duration;

use terrace_core::observation::Observations;
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    CapacityView, Kernel, Metric, Movers, Needs, Oracle, Policy, PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::units::{PageId, TierId, Time};

use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry. It is given its oracle with [`Policy::foresee`].
pub const INFO: PolicyInfo = PolicyInfo {
    name: "clairvoyant",
    summary: "knows the future of the trace: an upper bound, in the simulator only",
    source: "Terrace, after Belady",
    settings: &[
        SettingInfo {
            key: "interval",
            default: "100ms",
            meaning: "how often it looks; it looks 1, 4 and 16 of them ahead, and each 16th time 16, 64 and 256",
        },
        SettingInfo { key: "gain", default: "12", meaning: "accesses an exchange must save within a horizon" },
    ],
    build: |settings| Ok(Box::new(Clairvoyant::new(settings)?)),
};

/// The horizons, in intervals.
const HORIZONS: [u32; 3] = [1, 4, 16];
/// Each look of this number is a far one, with horizons as many times longer.
const FAR: u32 = 16;

/// Accesses of a page within each horizon, each including the shorter ones.
type Ahead = [u32; HORIZONS.len()];

/// See the module's header.
pub struct Clairvoyant {
    interval: Duration,
    gain: u32,
    oracle: Option<Box<dyn Oracle>>,
    /// Of a unit, on its first page.
    ahead: Column<Ahead>,
    known: Vec<PageId>,
    /// Accesses within the shortest horizon that a new page needs to take the last of the room that was made.
    bar: u32,
    next: Time,
    looks: u32,
    unfinished: bool,
}

/// A page or huge page that could change places: what it has ahead for each of its 4 KiB pages, so that a huge page
/// competes by its density.
struct Candidate {
    ahead: Ahead,
    unit: PageId,
    size: u64,
    /// Not there yet: only room is to be made.
    unborn: bool,
    taken: bool,
}

impl Clairvoyant {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Clairvoyant, SettingsError> {
        Ok(Clairvoyant {
            interval: settings.duration("interval")?,
            gain: settings.number("gain", 0..=1_000_000)?,
            oracle: None,
            ahead: Column::default(),
            known: Vec::new(),
            bar: 0,
            next: Time::ZERO,
            looks: 0,
            unfinished: false,
        })
    }

    /// Fills `ahead` with the accesses within each horizon, by unit: a huge page's on its first page.
    fn look_ahead(&mut self, now: Time, pages: &Pages) {
        self.looks += 1;
        let step = if self.looks.is_multiple_of(FAR) { self.interval * FAR } else { self.interval };
        let Some(oracle) = &mut self.oracle else { return };
        for unit in self.known.drain(..) {
            self.ahead[unit.index()] = Ahead::default();
        }
        let mut found = Vec::new();
        let mut from = now;
        for (horizon, intervals) in HORIZONS.into_iter().enumerate() {
            let until = now + step * intervals;
            oracle.future(from, until, pages, &mut found);
            from = until;
            for (page, accesses) in found.drain(..) {
                if pages.block(page.block()).is_none() {
                    continue;
                }
                let unit = pages.unit(page).start;
                let entry = &mut self.ahead[unit.index()];
                if *entry == Ahead::default() {
                    self.known.push(unit);
                }
                for count in &mut entry[horizon..] {
                    *count = count.saturating_add(accesses);
                }
            }
        }
    }

    /// Who may come, and who may go.
    fn candidates(&self, pages: &Pages) -> (Vec<Candidate>, Vec<Candidate>) {
        let (mut coming, mut leaving) = (Vec::new(), Vec::new());
        let candidate = |unit: PageId, size: u64, unborn: bool| {
            let ahead = self.ahead[unit.index()].map(|accesses| accesses / size as u32);
            Candidate { ahead, unit, size, unborn, taken: false }
        };
        support::each_unit(pages, |unit, size, tier| {
            let entry = &pages[unit];
            if entry.moving() || entry.pinned() {
                return;
            }
            if tier == TierId::FAST {
                leaving.push(candidate(unit, size, false));
            } else if self.ahead[unit.index()] != Ahead::default() {
                coming.push(candidate(unit, size, false));
            }
        });
        // A page born beyond the shortest horizon is met by a later look.
        let unborn = self.known.iter().filter(|unit| pages[**unit].tier().is_none() && self.ahead[unit.index()][0] > 0);
        coming.extend(unborn.map(|&unit| {
            let range = pages.unit(unit);
            candidate(unit, u64::from(range.end.0 - range.start.0), true)
        }));
        (coming, leaving)
    }
}

/// Whether what comes is used at least as often as what goes within every horizon shorter than this one.
fn loses_nothing_sooner(coming: &Ahead, leaving: &Ahead, horizon: usize) -> bool {
    coming.iter().zip(leaving).take(horizon).all(|(coming, leaving)| coming >= leaving)
}

impl Policy for Clairvoyant {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { future: true, ..Needs::default() })
            .above(Kernel { movers: Movers::Free, ..Kernel::default() })
    }

    fn configure(&mut self, setup: Setup) {
        if setup.oracle.is_some() {
            self.oracle = setup.oracle;
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => self.ahead.fit(pages),
            Remap::Unmapping(space, range) => {
                support::each_page(pages, space, &range, |page| self.ahead[page.index()] = Ahead::default())
            }
        }
    }

    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if self.oracle.is_none() || capacity.tiers.len() < 2 || (now < self.next && !self.unfinished) {
            return;
        }
        if !self.unfinished {
            self.next = now + self.interval;
            self.look_ahead(now, pages);
        }
        let (mut coming, mut leaving) = self.candidates(pages);
        let mut free = support::fast_limit(capacity).saturating_sub(capacity.tiers[0].used);
        self.bar = 0;
        for horizon in 0..HORIZONS.len() {
            coming.sort_unstable_by_key(|one| (std::cmp::Reverse(one.ahead[horizon]), one.unit));
            leaving.sort_unstable_by_key(|one| (one.ahead[horizon], one.unit));
            let mut victims = leaving.iter_mut().filter(|victim| !victim.taken).peekable();
            'coming: for one in coming.iter_mut().filter(|one| !one.taken) {
                // A new page costs no promotion.
                let price = if one.unborn { self.gain / 2 } else { self.gain };
                if one.ahead[horizon] < price / 2 || (one.unborn && horizon > 0) {
                    break;
                }
                let (mut gained, mut chosen) = (free, Vec::new());
                while gained < one.size {
                    let pays =
                        |victim: &&mut Candidate| one.ahead[horizon] >= victim.ahead[horizon].saturating_add(price);
                    match victims.next_if(pays) {
                        Some(victim) if loses_nothing_sooner(&one.ahead, &victim.ahead, horizon) => {
                            gained += victim.size;
                            chosen.push(victim);
                        }
                        Some(_) => {}
                        None => break 'coming,
                    }
                }
                if requests.left() <= chosen.len() {
                    break;
                }
                for victim in chosen {
                    victim.taken = true;
                    requests.move_to(victim.unit, TierId::FAST.below(), Reason::MakeRoom);
                }
                if !one.unborn {
                    requests.move_to(one.unit, TierId::FAST, Reason::Prefetch);
                } else {
                    self.bar = one.ahead[0];
                }
                one.taken = true;
                free = gained - one.size;
            }
        }
        self.unfinished = requests.left() == 0;
    }

    /// A new page is born fast where there is room, unless the room was made for others.
    fn place(&mut self, _now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        let limit = support::fast_limit(capacity);
        let made_for_others = self.ahead.get(page.index()).is_some_and(|ahead| ahead[0] < self.bar);
        if capacity.tiers[0].used < limit && !made_for_others { TierId::FAST } else { support::first_below(capacity) }
    }

    fn schedule(&self) -> Schedule {
        Schedule { wake_at: self.oracle.is_some().then_some(self.next), ..Schedule::default() }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport {
            memory_bytes: self.ahead.len() * size_of::<Ahead>() + self.known.capacity() * size_of::<PageId>(),
            metrics: vec![
                Metric { name: "oracle_given", value: f64::from(u8::from(self.oracle.is_some())) },
                Metric { name: "pages_used_ahead", value: self.known.len() as f64 },
                Metric { name: "metadata_bytes_per_page", value: (8 + size_of::<Ahead>()) as f64 },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW, SPACE};
    use terrace_core::units::Vpn;

    /// 50 fast pages.
    fn fast_50(settings: &[(&str, &str)]) -> Rig {
        let policy = crate::build("clairvoyant", Settings::from_pairs(settings.iter().copied())).unwrap();
        let mut rig = Rig::new(policy, &[50, 1000]);
        rig.map(512);
        rig
    }

    /// Before second 10 the pages 100 to 149 are used 100 times in each stretch that is asked for, later the pages 200 to 249.
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
            let mut rig = fast_50(&[("gain", gain)]);
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
        check("301", false);
    }

    /// The pages 100 to 149 are used a little now, the pages 200 to 249 much, but only from 10 s ahead on.
    struct Later;

    impl Oracle for Later {
        fn future(&mut self, from: Time, until: Time, pages: &Pages, found: &mut Vec<(PageId, u32)>) {
            let mut tell = |first: u64, accesses| {
                found.extend((first..first + 50).filter_map(|vpn| Some((pages.find(SPACE, Vpn(vpn))?, accesses))));
            };
            tell(100, 10);
            if until >= from + Duration::from_secs(10) {
                tell(200, 1000);
            }
        }
    }

    #[test]
    fn what_is_used_soon_is_not_given_up_for_what_is_used_more_later() {
        // Far looks at 1.6 s, 3.2 s and so on see the pages 200 to 249.
        let mut rig = fast_50(&[]);
        rig.born(100..150, TierId::FAST);
        rig.born(200..250, SLOW);
        assert!(rig.engine.foresee(Box::new(Later)));
        // The first look, which says when the next is due; then all.
        rig.pass(Duration::from_millis(1));
        rig.pass(Duration::from_secs(20));
        assert_eq!((rig.tier(120), rig.promotions), (Some(TierId::FAST), 0));
        // Where what is fast has no use at all, they come. The price keeps room from being made for pages that are never born here.
        let mut rig = fast_50(&[("gain", "60")]);
        rig.born(300..350, TierId::FAST);
        rig.born(200..250, SLOW);
        assert!(rig.engine.foresee(Box::new(Later)));
        rig.pass(Duration::from_millis(1));
        rig.pass(Duration::from_secs(20));
        assert_eq!((rig.tier(220), rig.tier(320)), (Some(TierId::FAST), Some(SLOW)));
    }

    #[test]
    fn room_is_made_for_pages_that_are_about_to_be_born() {
        let mut rig = fast_50(&[]);
        rig.born(0..50, TierId::FAST);
        assert!(rig.engine.foresee(Box::new(Switch)));
        rig.pass(Duration::from_secs(3));
        assert_eq!(rig.promotions, 0, "they are not there yet");
        rig.touch_first(100..150);
        assert_eq!(rig.tier(120), Some(TierId::FAST));
        rig.touch_first(300..301);
        assert_eq!(rig.tier(300), Some(SLOW), "no room is left, and it is not used again");
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
