//! `thermostat`: Thermostat. Samples a few huge pages, counts faults on some of their pieces, and keeps slow accesses under a rate.
//!
//! In: one round of accessed bits a period, hint faults on the pages it names ([`Policy::watch`]). Out: demotions of sampled
//! huge pages while their summed rate stays under the target, promotions of slow ones that turned out busy. Must not:
//! classify before its faults are really counted; a driver that does not serve `watch` gets no moves at all.
//!
//! Source: Thermostat (ASPLOS 2017). Neither code nor full text was reachable: every value here is an unverified
//! recollection, but for what FlexHM measured with it (specification section 11).
//!
//! | constant | default | meaning (all unverified) |
//! |---|---|---|
//! | `period` | 30 s | of each of the three stages: split, watch by accessed bits, count faults |
//! | `sampled` | 5 % | share of the huge pages in a sample |
//! | `poisoned` | 50 | pieces of each that are made to fault, drawn from those found accessed |
//! | `slowdown` | 3 % | x of the target rate x / (100 * t_s) |
//! | `slow_access` | 1 us | t_s: 30,000 accesses a second may be slow |
//! | correction | always | all slow huge pages are watched, and the busiest come back until the rest keep the target |
//!
//! Rate of a sampled huge page: faults * (accessed pieces / poisoned pieces) / period. The draw is by a generator with a
//! fixed seed. Blocks that are not mapped as huge pages are sampled too and need no split. On a scaled-down machine whose
//! small pages stand for huge ones the unit is the small page, of one piece.
//!
//! Memory beside the eight common bytes: 12 bytes a block and a bit a page.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Facet, Feedback, Metric, Needs, PageWatch, Policy, PolicyReport, Profile, Remap, Schedule,
    Setup,
};
use terrace_core::random::SplitMix64;
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, BlockId, PageId, SpaceId, TierId, Time, Vpn};

use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "thermostat",
    summary: "Thermostat: faults on pieces of 5 % of the huge pages estimate rates; slow accesses kept under a target",
    source: "Thermostat, ASPLOS 2017",
    settings: &[
        SettingInfo { key: "period", default: "30s", meaning: "length of each of the three stages" },
        SettingInfo { key: "sampled", default: "5%", meaning: "share of the huge pages in a sample" },
        SettingInfo { key: "poisoned", default: "50", meaning: "pieces of each that are made to fault" },
        SettingInfo { key: "slowdown", default: "3%", meaning: "slowdown that slow accesses may cause" },
        SettingInfo { key: "slow_access", default: "1us", meaning: "what one slow access is taken to cost" },
        SettingInfo { key: "seed", default: "1", meaning: "seed of the draw" },
    ],
    build: |settings| Ok(Box::new(Thermostat::new(settings)?)),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Draw a sample, split it.
    Split,
    /// Clear its accessed bits.
    Clear,
    /// Read its accessed bits a period later, choose the pieces.
    Mark,
    /// Count faults.
    Count,
}

/// A sampled unit.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Whether it was one huge page before it was split for the sample.
    huge: bool,
    /// Pieces found accessed.
    accessed: Vec<PageId>,
    poisoned: u32,
    faults: u64,
}

/// See the module's header.
pub struct Thermostat {
    period: Duration,
    share: f64,
    poisoned: usize,
    full_target: f64,
    target: f64,
    random: SplitMix64,
    stage: Stage,
    stage_ends: Time,
    /// log2 of the pages of a unit: 0 where a small page stands for a huge one.
    shift: u32,
    sample: BTreeMap<u32, Sample>,
    /// Faults of slow units in the running count.
    slow_faults: Vec<u32>,
    named: Option<Vec<PageId>>,
    /// Whether the driver has taken the names of the pages to watch.
    served: bool,
    scan_at: Option<Time>,
    rates: u64,
    demote: Vec<u32>,
    promote: Vec<u32>,
    collapse: Vec<u32>,
    split: Vec<u32>,
    slow_rate: f64,
}

impl Thermostat {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Thermostat, SettingsError> {
        let slowdown = settings.share("slowdown")?;
        let cost = settings.duration("slow_access")?;
        let target = slowdown / cost.as_secs_f64();
        Ok(Thermostat {
            period: settings.duration("period")?,
            share: settings.share("sampled")?,
            poisoned: settings.number("poisoned", 1..=512)?,
            full_target: target,
            target,
            random: SplitMix64::new(settings.number("seed", 0..=u64::MAX)?.wrapping_mul(2).wrapping_add(1)),
            stage: Stage::Split,
            stage_ends: Time::ZERO,
            shift: BLOCK_SHIFT,
            sample: BTreeMap::new(),
            slow_faults: Vec::new(),
            named: None,
            served: false,
            scan_at: None,
            rates: 0,
            demote: Vec::new(),
            promote: Vec::new(),
            collapse: Vec::new(),
            split: Vec::new(),
            slow_rate: 0.0,
        })
    }

    /// The next number of the draw.
    fn draw(&mut self, below: usize) -> usize {
        self.random.below(below.max(1) as u64) as usize
    }

    fn unit_of(&self, page: PageId) -> u32 {
        page.0 >> self.shift
    }

    fn first_of(&self, unit: u32) -> PageId {
        PageId(unit << self.shift)
    }

    fn pages_of(&self, unit: u32) -> impl Iterator<Item = PageId> + use<> {
        (unit << self.shift..(unit + 1) << self.shift).map(PageId)
    }

    /// All units of live blocks.
    fn units(&self, pages: &Pages) -> Vec<u32> {
        let of = |block: BlockId| {
            let first = block.first_page();
            self.unit_of(first)..=self.unit_of(first.plus(BLOCK_PAGES - 1))
        };
        pages.blocks().flat_map(|(block, _)| of(block)).collect()
    }

    fn is_huge(&self, unit: u32, pages: &Pages) -> bool {
        pages.block(self.first_of(unit).block()).is_some_and(|info| info.huge)
    }

    /// Whether a unit has memory, at least half of it fast.
    fn is_fast(&self, unit: u32, pages: &Pages) -> bool {
        let tiers = self.pages_of(unit).filter_map(|page| pages[page].tier());
        let (fast, placed) =
            tiers.fold((0, 0), |(fast, placed), tier| (fast + u32::from(tier == TierId::FAST), placed + 1));
        placed > 0 && 2 * fast >= placed
    }

    /// Stage one: a random share of the fast units.
    fn draw_sample(&mut self, pages: &Pages) {
        let mut fast = self.units(pages);
        fast.retain(|&unit| self.is_fast(unit, pages));
        let wanted = (fast.len() as f64 * self.share).ceil() as usize;
        self.sample.clear();
        for _ in 0..wanted {
            let index = self.draw(fast.len());
            let unit = fast.swap_remove(index);
            let huge = self.is_huge(unit, pages);
            self.sample.insert(unit, Sample { huge, ..Sample::default() });
            if huge {
                self.split.push(unit);
            }
        }
    }

    /// Stage two ends: which pieces are to fault, and with them all of slow memory.
    fn name_pages(&mut self, pages: &Pages) {
        let mut names = Vec::new();
        let units: Vec<u32> = self.sample.keys().copied().collect();
        for unit in units {
            let mut accessed = self.sample[&unit].accessed.clone();
            let total = accessed.len();
            let wanted = total.min(self.poisoned);
            for _ in 0..wanted {
                let index = self.draw(accessed.len());
                names.push(accessed.swap_remove(index));
            }
            let sample = self.sample.get_mut(&unit).expect("the unit is in the sample");
            (sample.poisoned, sample.faults) = (wanted as u32, 0);
        }
        for unit in self.units(pages).into_iter().filter(|&unit| !self.is_fast(unit, pages)) {
            let step = if self.is_huge(unit, pages) { BLOCK_PAGES } else { 1 };
            names.extend(self.pages_of(unit).step_by(step as usize).filter(|page| pages[*page].tier().is_some()));
        }
        self.slow_faults = vec![0; pages.capacity() >> self.shift];
        self.named = Some(names);
        self.served = false;
    }

    /// Stage three ends: the coldest of the sample leave, the busiest slow units come back.
    fn classify(&mut self, pages: &Pages) {
        if !self.served {
            return;
        }
        let seconds = self.period.as_secs_f64();
        let mut rates: Vec<(f64, u32)> = Vec::new();
        for (&unit, sample) in &self.sample {
            if pages.block(self.first_of(unit).block()).is_none() {
                continue;
            }
            let spread = sample.accessed.len() as f64 / f64::from(sample.poisoned.max(1));
            rates.push((sample.faults as f64 * spread / seconds, unit));
        }
        rates.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
        self.rates += rates.len() as u64;
        let allowed = self.share * self.target;
        let mut sum = 0.0;
        for &(rate, unit) in &rates {
            sum += rate;
            if sum > allowed {
                break;
            }
            self.demote.push(unit);
        }
        // Those demoted are the first of them.
        let kept = rates[self.demote.len().min(rates.len())..].iter().map(|&(_, unit)| unit);
        self.collapse = kept.filter(|unit| self.sample[unit].huge).collect();
        let mut slow: Vec<(u32, u32)> = self
            .units(pages)
            .into_iter()
            .map(|unit| (self.slow_faults.get(unit as usize).copied().unwrap_or(0), unit))
            .filter(|&(faults, unit)| faults > 0 && !self.is_fast(unit, pages))
            .collect();
        slow.sort_by_key(|&(faults, unit)| (std::cmp::Reverse(faults), unit));
        self.slow_rate = slow.iter().map(|&(faults, _)| f64::from(faults)).sum::<f64>() / seconds;
        let mut rest = self.slow_rate;
        for (faults, unit) in slow {
            if rest <= self.target {
                break;
            }
            rest -= f64::from(faults) / seconds;
            self.promote.push(unit);
        }
    }

    fn request_unit(&self, unit: u32, to: TierId, reason: Reason, pages: &Pages, requests: &mut MoveRequests) {
        if pages.block(self.first_of(unit).block()).is_none() {
            return;
        }
        let step = if self.is_huge(unit, pages) { BLOCK_PAGES } else { 1 };
        for page in self.pages_of(unit).step_by(step as usize) {
            if pages[page].tier().is_some_and(|tier| tier != to) && !pages[page].moving() {
                requests.move_to(page, to, reason);
            }
        }
    }
}

impl Thermostat {
    fn unmapping(&mut self, space: SpaceId, range: Range<Vpn>, pages: &Pages) {
        for (block, info) in pages.blocks_of(space) {
            if info.start.0 < range.end.0 && range.start.0 < info.start.0 + u64::from(BLOCK_PAGES) {
                let shift = self.shift;
                let of_block = |unit: u32| PageId(unit << shift).block() == block;
                self.sample.retain(|&unit, _| !of_block(unit));
                for list in [&mut self.demote, &mut self.promote, &mut self.collapse, &mut self.split] {
                    list.retain(|&unit| !of_block(unit));
                }
            }
        }
        if let Some(named) = &mut self.named {
            named.retain(|page| {
                let (of, vpn) = pages.locate(*page);
                of != space || !range.contains(&vpn)
            });
        }
    }
}

impl Policy for Thermostat {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { scans: true, hint_faults: true, own_marks: true, ..Needs::default() })
            .splitting(true)
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            // Accesses a second of a machine so much smaller are fewer by as much.
            self.target = self.full_target / f64::from(factor);
        }
        if setup.sample_parts.is_some() {
            self.shift = 0;
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        if let Remap::Unmapping(space, range) = change {
            self.unmapping(space, range, pages);
        }
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) if scan.window.is_some() && self.stage == Stage::Mark => {
                for (offset, pte) in scan.ptes.iter().enumerate().filter(|(_, pte)| pte.accessed()) {
                    let page = scan.first.plus(offset as u32);
                    // While the block is still huge its one mark stands for all of it.
                    let unit = self.unit_of(page);
                    if let Some(sample) = self.sample.get_mut(&unit).filter(|_| !pte.huge() || page.offset() == 0) {
                        sample.accessed.push(page);
                    }
                }
            }
            Observations::Scan(_) => {}
            Observations::Events(events) => {
                for event in events {
                    let Observation::HintFault { page, .. } = *event else { continue };
                    if self.stage != Stage::Count {
                        continue;
                    }
                    let slow = pages[page].tier().is_some_and(|tier| tier > TierId::FAST);
                    let unit = self.unit_of(page);
                    if let Some(sample) = self.sample.get_mut(&unit).filter(|_| !slow) {
                        sample.faults += 1;
                    } else if let Some(faults) = self.slow_faults.get_mut(unit as usize).filter(|_| slow) {
                        *faults += 1;
                    }
                }
            }
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::ScanDone(_) = feedback {
            self.scan_at = None;
            match self.stage {
                Stage::Clear => {
                    self.stage = Stage::Mark;
                    self.scan_at = Some(now + self.period);
                }
                Stage::Mark => self.stage_ends = now,
                Stage::Split | Stage::Count => {}
            }
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if capacity.tiers.len() < 2 {
            return;
        }
        if now >= self.stage_ends {
            self.stage_ends = now + self.period;
            match self.stage {
                Stage::Split => {
                    self.draw_sample(pages);
                    if self.sample.is_empty() {
                        // Nothing is there yet; look again soon.
                        self.stage_ends = now + self.period / 30;
                    } else {
                        // Marks are read twice: now, which clears them, and a period later.
                        self.stage = Stage::Clear;
                        self.scan_at = Some(now);
                        self.stage_ends = Time::FAR_FUTURE;
                    }
                }
                // These two end with their rounds.
                Stage::Clear => {}
                Stage::Mark => {
                    self.name_pages(pages);
                    self.stage = Stage::Count;
                }
                Stage::Count => {
                    self.classify(pages);
                    self.stage = Stage::Split;
                    // Not at once: the engine is not asked again at the time it asked.
                    self.stage_ends = now + Duration::from_millis(1);
                }
            }
        }
        for unit in std::mem::take(&mut self.split) {
            if self.is_huge(unit, pages) {
                requests.push(self.first_of(unit), Action::Split, Reason::PageSize);
            }
        }
        for unit in std::mem::take(&mut self.collapse) {
            requests.push(self.first_of(unit), Action::Collapse, Reason::PageSize);
        }
        for unit in std::mem::take(&mut self.promote) {
            self.request_unit(unit, TierId::FAST, Reason::Hot, pages, requests);
        }
        for unit in std::mem::take(&mut self.demote) {
            self.request_unit(unit, TierId::FAST.below(), Reason::Cold, pages, requests);
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule {
            cadence: Cadence { scan_at: self.scan_at, share: 1.0, ..Cadence::default() },
            wake_at: Some(self.stage_ends),
        }
    }

    fn report(&self) -> PolicyReport {
        let sample: usize = self.sample.values().map(|sample| sample.accessed.capacity() * size_of::<PageId>()).sum();
        PolicyReport {
            memory_bytes: sample + self.slow_faults.capacity() * size_of::<u32>(),
            metrics: vec![
                Metric { name: "target_slow_accesses_per_second", value: self.target },
                Metric { name: "slow_accesses_per_second", value: self.slow_rate },
                Metric { name: "sampled_blocks", value: self.sample.len() as f64 },
                Metric { name: "classified_blocks", value: self.rates as f64 },
                Metric { name: "watch_served", value: f64::from(u8::from(self.served)) },
                Metric { name: "metadata_bytes_per_page", value: 8.0 + 12.0 / f64::from(BLOCK_PAGES) },
            ],
        }
    }

    fn facet(&mut self) -> Option<Facet<'_>> {
        Some(Facet::Watch(self))
    }
}

impl PageWatch for Thermostat {
    fn watch(&mut self) -> Option<Vec<PageId>> {
        let named = self.named.take();
        self.served |= named.is_some();
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW};
    use terrace_core::engine::Input;
    use terrace_core::policy::ScanReport;

    const PERIOD: Duration = Duration::from_secs(30);

    /// Four fast blocks, all in the sample; block b faults `faults[b]` times on each watched piece.
    fn cycle(extra: &[(&str, &str)], served: bool, faults: [u32; 4]) -> Rig {
        let pairs = [("sampled", "100%")].into_iter().chain(extra.iter().copied());
        let mut rig = Rig::new(crate::build("thermostat", Settings::from_pairs(pairs)).unwrap(), &[100_000, 100_000]);
        rig.map(4 * 512);
        rig.born(0..4 * 512, TierId::FAST);
        rig.pass(Duration::from_secs(1));
        for accessed in [512, 100] {
            assert_eq!(rig.cadence.scan_at, Some(rig.now));
            for block in 0..4 {
                rig.scan(block, |vpn| vpn % 512 < accessed);
            }
            rig.engine.handle(rig.now, Input::ScanDone(ScanReport::default()));
            rig.settle();
            if accessed == 512 {
                rig.pass(PERIOD);
            }
        }
        if served {
            let names = rig.engine.watch().expect("pages to watch");
            assert_eq!(names.len(), 4 * 50, "half of the hundred accessed pieces of each block");
            for page in names {
                let (_, vpn) = rig.engine.pages().locate(page);
                rig.fault(vec![vpn.0; faults[(vpn.0 / 512) as usize] as usize], Duration::ZERO, false);
            }
        }
        rig.pass(PERIOD);
        rig
    }

    #[test]
    fn the_coldest_leave_while_their_rates_stay_under_the_target() {
        let check = |extra: &[(&str, &str)], served: bool, faults: [u32; 4], slow: [bool; 4]| {
            let rig = cycle(extra, served, faults);
            let found = [0, 1, 2, 3].map(|block| rig.tier(block * 512) == Some(SLOW));
            assert_eq!(found, slow, "{extra:?} {faults:?}");
        };
        // One fault on each of 50 pieces stands for 100 accesses in 30 s; a target of 10 a second bears three such blocks.
        let strict = [("slowdown", "0.001%")];
        check(&strict, true, [0, 1, 2, 9], [true, true, true, false]);
        check(&[], true, [0, 1, 2, 9], [true; 4]);
        check(&strict, false, [0, 1, 2, 9], [false; 4]);
    }
}
