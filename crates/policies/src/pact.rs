//! `pact`: PACT. A slow page's worth is the stall it caused; the pages of the top bin of a histogram that adapts come up.
//!
//! In: hardware samples, and how long cores waited for slow memory. Out: promotions, 4,096 a cycle at most. Must not: demote; the kernel's
//! reclaim does.
//!
//! Source: PACT (ASPLOS 2026), by its public description and the constants of its artefact [C]. PAC is per-page access criticality.
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `sample_period` | 400 | loads a sample [C] |
//! | `cycle` | 20 ms | between two cycles [C] |
//! | PAC | stall of slow memory in the cycle over its slow samples, added for each sample | misses over MLP is the stall [C] |
//! | bins | 20 | of equal width, of which the last is open; its pages are promoted [C] |
//! | width | twice the interquartile range over the cube root of the pages | Freedman and Diaconis (1981) [C] |
//! | table | 2 million pages | at most, of the full-size machine, in the width [C] |
//! | pressure | 0.7 | with more pages than this a candidate the width is doubled, otherwise halved [C] |
//! | `reservoir` | 100 | PACs of which the quartiles are taken [C] |
//! | `most` | 4,096 | pages promoted in a cycle [C] |
//! | `keep` | 1 | what a cooling each 200,000 samples leaves of PACs; 1 never cools [C] |
//!
//! Ambiguities: the stall is what cores waited for slow memory beyond the time of fast memory, where the paper has misses over MLP by counters of the
//! memory controller. The reservoir is a uniform sample of the PACs as they are raised. A candidate is a page that was sampled since the last
//! cycle and lies in the top bin. Where nobody counts, each sample is worth the same, which is frequency. A huge page is a unit; PACT has none.
//!
//! Memory beside the common eight bytes: 4 a page. Its own is a table of 2 million pages.

use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Needs, Policy, PolicyReport, Profile, Remap, SamplePeriods,
    Schedule, Setup,
};
use terrace_core::prices::ProcessorCounts;
use terrace_core::random::SplitMix64;
use terrace_core::units::{BLOCK_PAGES, PageId, TierId, Time};

use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "pact",
    summary: "PACT: pages are worth the stall they cause; the top bin of an adaptive histogram is promoted each 20 ms",
    source: "PACT, ASPLOS 2026",
    settings: &[
        SettingInfo { key: "sample_period", default: "400", meaning: "loads a sample" },
        SettingInfo { key: "cycle", default: "20ms", meaning: "time between two cycles" },
        SettingInfo { key: "reservoir", default: "100", meaning: "PACs of which the quartiles are taken" },
        SettingInfo { key: "most", default: "4096", meaning: "pages promoted in a cycle at most" },
        SettingInfo { key: "keep", default: "1", meaning: "what a cooling leaves of PACs; 1 never cools" },
        SettingInfo { key: "worth", default: "stall", meaning: "stall, or frequency: each sample is worth the same" },
    ],
    build: |settings| Ok(Box::new(Pact::new(settings)?)),
};

const BINS: f64 = 20.0;
const PRESSURE: f64 = 0.7;
/// Pages of its table at full size.
const MOST_KNOWN: u64 = 2 << 20;
const COOL_SAMPLES: u64 = 200_000;
/// Fewer PACs have no quartiles.
const LEAST_RESERVOIR: usize = 4;
/// Policy bit: the page was sampled since the last cycle.
const SAMPLED: u8 = 1;

/// The quarter and three quarters of some values.
fn quartiles(values: &[f32]) -> Option<[f64; 2]> {
    if values.len() < LEAST_RESERVOIR {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f32::total_cmp);
    Some([sorted.len() / 4, 3 * sorted.len() / 4].map(|at| f64::from(sorted[at])))
}

/// The width of a bin, for `pages` pages of which `candidates` are candidates; `None` where half of all values are the same.
fn width(values: &[f32], pages: u64, candidates: u64) -> Option<f64> {
    let [low, high] = quartiles(values)?;
    if high <= low || pages == 0 {
        return None;
    }
    let plain = 2.0 * (high - low) / (pages as f64).cbrt();
    Some(match candidates {
        0 => plain,
        some if pages as f64 / some as f64 > PRESSURE => 2.0 * plain,
        _ => plain / 2.0,
    })
}

/// See the module's header.
pub struct Pact {
    sample_period: u32,
    cycle: Duration,
    most: u64,
    keep: f32,
    by_stall: bool,
    scale: u32,
    parts: Option<u32>,
    /// PAC of each unit, by its first page; how many have one.
    pac: Column<f32>,
    known: u64,
    reservoir: Vec<f32>,
    wanted: usize,
    raised: u64,
    random: SplitMix64,
    /// Slow units sampled in this cycle, one entry a sample.
    samples: Vec<PageId>,
    since_cooling: u64,
    counts: ProcessorCounts,
    counted: bool,
    width: Option<f64>,
    waiting: u64,
    next: Time,
    promoted: u64,
    worth: f64,
}

impl Pact {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Pact, SettingsError> {
        Ok(Pact {
            sample_period: settings.number("sample_period", 1..=1_000_000_000)?,
            cycle: settings.duration("cycle")?,
            most: settings.number("most", 1..=u64::from(u32::MAX))?,
            keep: settings.number("keep", 0.0..=1.0)?,
            by_stall: settings.choice("worth", &[("stall", true), ("frequency", false)])?,
            scale: 1,
            parts: None,
            pac: Column::default(),
            known: 0,
            reservoir: Vec::new(),
            wanted: settings.number("reservoir", LEAST_RESERVOIR..=1_000_000)?,
            raised: 0,
            random: SplitMix64::new(0x9ac7),
            samples: Vec::new(),
            since_cooling: 0,
            counts: ProcessorCounts::default(),
            counted: false,
            width: None,
            waiting: 0,
            next: Time::ZERO,
            promoted: 0,
            worth: 0.0,
        })
    }

    fn set_pac(&mut self, unit: PageId, value: f32) {
        let before = std::mem::replace(&mut self.pac[unit.index()], value);
        self.known = self.known + u64::from(value > 0.0) - u64::from(before > 0.0);
    }

    /// One of the PACs that were raised, each with the same chance (Vitter's algorithm R, 1985).
    fn keep_one(&mut self, value: f32) {
        self.raised += 1;
        if self.reservoir.len() < self.wanted {
            self.reservoir.push(value);
        } else {
            let at = self.random.below(self.raised) as usize;
            if let Some(slot) = self.reservoir.get_mut(at) {
                *slot = value;
            }
        }
    }

    /// Adds what the cycle's samples are worth. Returns the units sampled, each once.
    fn attribute(&mut self, pages: &mut Pages) -> Vec<PageId> {
        let counts = std::mem::take(&mut self.counts);
        let samples = std::mem::take(&mut self.samples);
        if samples.is_empty() {
            return samples;
        }
        self.worth = match self.by_stall && self.counted {
            true => counts.slow_wait_ns / samples.len() as f64,
            false => f64::from(self.sample_period),
        };
        let mut units = Vec::new();
        for unit in samples {
            if pages.block(unit.block()).is_none() || pages[unit].tier().is_none() {
                continue;
            }
            let value = self.pac[unit.index()] + self.worth as f32;
            self.set_pac(unit, value);
            self.keep_one(value);
            if pages[unit].policy_bits() & SAMPLED == 0 {
                pages[unit].set_policy_bits(SAMPLED);
                units.push(unit);
            }
        }
        units.iter().for_each(|&unit| pages[unit].set_policy_bits(0));
        units
    }

    fn cool(&mut self) {
        let parts = self.parts.unwrap_or(1);
        if self.keep < 1.0 && self.since_cooling >= support::scaled_samples(COOL_SAMPLES, self.scale, parts) {
            self.since_cooling = 0;
            self.pac.iter_mut().for_each(|value| *value *= self.keep);
        }
    }
}

impl Policy for Pact {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { samples: true, ..Needs::default() })
            .above(Kernel { demotion: true, ..Kernel::default() })
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor.max(1);
        }
        if let Some(parts) = setup.sample_parts {
            self.parts = Some(parts.max(1));
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => self.pac.fit(pages),
            Remap::Unmapping(space, range) => {
                support::each_page(pages, space, &range, |page| self.set_pac(page, 0.0));
            }
        }
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        let Observations::Events(events) = seen else { return };
        for event in events {
            match *event {
                Observation::Sampled { page, .. } => {
                    let unit = pages.unit(page).start;
                    self.since_cooling += 1;
                    if pages[unit].tier().is_some_and(|tier| tier > TierId::FAST) {
                        self.samples.push(unit);
                    }
                }
                Observation::Freed { page } => self.set_pac(page, 0.0),
                _ => {}
            }
        }
    }

    fn feedback(&mut self, _now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::Processor(counts) = feedback {
            self.counted |= counts.memory_accesses > 0;
            self.counts.slow_wait_ns += counts.slow_wait_ns;
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if now < self.next {
            return;
        }
        self.next = now + self.cycle;
        let units = self.attribute(pages);
        self.cool();
        // The width is that of a full-size table.
        let scale = u64::from(self.scale);
        let known = (self.known * scale).min(MOST_KNOWN);
        self.width = width(&self.reservoir, known, self.waiting * scale).or(self.width);
        let Some(width) = self.width else { return };
        let top = (BINS - 1.0) * width;
        let mut chosen: Vec<(f32, PageId)> = units
            .into_iter()
            .map(|unit| (self.pac[unit.index()], unit))
            .filter(|(pac, unit)| f64::from(*pac) >= top && !pages[*unit].moving() && !pages[*unit].pinned())
            .collect();
        self.waiting = chosen.len() as u64;
        chosen.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        // Where a small page stands for a huge one, there are as many fewer of them.
        let stands_for = if self.parts.is_some() { u64::from(BLOCK_PAGES) } else { 1 };
        let mut left = support::scaled_count(self.most * stands_for, self.scale);
        let mut free = support::fast_limit(capacity).saturating_sub(capacity.tiers[0].used);
        for (_, unit) in chosen {
            let range = pages.unit(unit);
            let size = u64::from(range.end.0 - range.start.0);
            if left == 0 || free < size || requests.left() == 0 {
                return;
            }
            requests.move_to(unit, TierId::FAST, Reason::Hot);
            left = left.saturating_sub(size);
            free -= size;
            self.promoted += size;
        }
    }

    fn schedule(&self) -> Schedule {
        let sampling = SamplePeriods { loads: self.sample_period, stores: u32::MAX };
        Schedule { cadence: Cadence { sampling: Some(sampling), ..Cadence::default() }, wake_at: Some(self.next) }
    }

    fn report(&self) -> PolicyReport {
        let metric = |name, value| Metric { name, value };
        let lists = self.samples.capacity() * size_of::<PageId>() + self.reservoir.capacity() * size_of::<f32>();
        PolicyReport {
            memory_bytes: self.pac.len() * size_of::<f32>() + lists,
            metrics: vec![
                metric("stall_nanos_per_sample", self.worth),
                metric("bin_width", self.width.unwrap_or(0.0)),
                metric("candidates", self.waiting as f64),
                metric("known_units", self.known as f64),
                metric("requested_pages", self.promoted as f64),
                metric("metadata_bytes_per_page", 8.0 + size_of::<f32>() as f64),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::engine::Input;

    use super::*;
    use crate::rig::{Rig, SLOW};

    const CYCLE: Duration = Duration::from_millis(20);

    fn rig(extra: &[(&str, &str)]) -> Rig {
        let policy = crate::build("pact", Settings::from_pairs(extra.iter().copied())).unwrap();
        let mut rig = Rig::new(policy, &[1000, 100_000]);
        rig.map(2000);
        rig.born(0..2000, SLOW);
        rig
    }

    /// A cycle with these samples, in which cores waited this long for slow memory.
    fn cycle(rig: &mut Rig, samples: impl IntoIterator<Item = u64>, stall: f64) {
        rig.sample(samples);
        let counts = ProcessorCounts {
            memory_accesses: 1000,
            slow_accesses: 1000,
            slow_wait_ns: stall,
            ..ProcessorCounts::default()
        };
        rig.now = rig.now + CYCLE;
        rig.engine.handle(rig.now, Input::Processor(counts));
        rig.settle();
    }

    /// A background of pages of many worths, so that there are quartiles.
    fn background(rig: &mut Rig) {
        for round in 1..5u64 {
            cycle(rig, 1000..1000 + 25 * round, 25.0 * round as f64);
        }
    }

    #[test]
    fn as_many_samples_are_worth_more_where_they_stalled_the_program_longer() {
        let check = |worth: &str, wanted: [bool; 2]| {
            let mut rig = rig(&[("worth", worth), ("sample_period", "1")]);
            background(&mut rig);
            // Ten samples each: those of page 1 overlapped, those of page 2 did not.
            cycle(&mut rig, [1; 10], 5.0);
            cycle(&mut rig, [2; 10], 2000.0);
            let fast = [1, 2].map(|page| rig.tier(page) == Some(TierId::FAST));
            assert_eq!(fast, wanted, "worth={worth}");
        };
        check("stall", [false, true]);
        check("frequency", [false, false]);
    }

    #[test]
    fn the_width_of_a_bin_follows_quartiles_pages_and_pressure() {
        let values: Vec<f32> = (0..100).map(|n| n as f32).collect();
        assert_eq!(quartiles(&values), Some([25.0, 75.0]));
        let check = |candidates: u64, wanted: f64| {
            assert!((width(&values, 1000, candidates).unwrap() - wanted).abs() < 1e-9, "{candidates} candidates");
        };
        check(0, 10.0);
        check(10, 20.0);
        check(2000, 5.0);
        assert_eq!(width(&[1.0; 100], 1000, 10), None, "equal values have no width");
        assert_eq!(width(&values[..3], 1000, 10), None);
    }

    #[test]
    fn no_more_than_most_come_up_in_a_cycle_the_worst_first() {
        let mut rig = rig(&[("most", "2")]);
        background(&mut rig);
        let before = rig.promotions;
        cycle(&mut rig, [1, 1, 2, 2, 2, 3, 3, 3, 3], 9e6);
        assert_eq!(rig.promotions - before, 2);
        assert_eq!([1, 2, 3].map(|page| rig.tier(page)), [Some(SLOW), Some(TierId::FAST), Some(TierId::FAST)]);
    }

    #[test]
    fn cooling_forgets_old_stalls() {
        let pac = |keep: &str| {
            let mut pact = Pact::new(&mut Settings::from_pairs([("keep", keep)]).for_policy(&INFO)).unwrap();
            pact.pac = Column::default();
            let mut pages = Pages::new();
            pages.map(terrace_core::units::SpaceId(0), terrace_core::units::Vpn(0)..terrace_core::units::Vpn(8));
            pact.pac.fit(&pages);
            pact.set_pac(PageId(3), 8.0);
            pact.since_cooling = COOL_SAMPLES;
            pact.cool();
            pact.pac[3]
        };
        assert_eq!((pac("0.5"), pac("1")), (4.0, 8.0));
    }
}
