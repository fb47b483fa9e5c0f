//! `tieredmms`: TieredMMS. Sampled hotness puts the kernel's two lists in order; a module demotes from their tails and promotes from their heads.
//!
//! In: hardware samples, the life cycle of pages. Out: demotions from the inactive lists by watermarks, promotions of the slow
//! active list from its head, where the hottest are. Must not: look at a page's count when it picks victims; the order of the lists is all it goes by.
//!
//! Source: TieredMMS (China Unicom), sections III and IV; M1 to M7 are the ambiguities of the specification (section 3).
//!
//! | constant | default | source |
//! |---|---|---|
//! | periods | 199 loads, 100,007 stores | section III.A |
//! | `quota` | 30 | not stated; what the live sampler holds every policy to. The paper measures 4.25 % at most |
//! | `merge` | on | section III.A: "we merge the adjacent accesses that fall on the same page" |
//! | promotion | from the head of the slow active list | section V.C: TieredMMS keeps the hottest pages there |
//! | bars | 16; a page is in bar n if its count is in [2^n, 2^(n+1)) | figure 3 |
//! | `alpha` | 75 % | section III.A: below so much of F_s the bar under the hot ones is warm |
//! | `threshold_period` | 100,000 samples | not stated; MEMTIS's (M1) |
//! | `cool_period` | 20,000,000 samples | not stated; from figure 5, see below (M1) |
//! | F_s | fast capacity less the high watermark | M3 |
//! | `high_wm`, `low_wm` | 3 %, 2 % of fast memory | section III.B |
//! | `period` | 500 ms | section III.B |
//! | direct demotion stops | half way between the watermarks | M5 |
//! | `candidates` | the rear 70 % of a list | section III.B (M7) |
//! | `deactivate` | the tail 50 % of the active anonymous list at each cooling | section III.B |
//! | promotion goes on | while fast memory has a free page | section III.B: the active list not being empty is the only condition (M4) |
//! | order | inactive file, active file, inactive anonymous; never active anonymous | section III.B |
//!
//! Algorithm 2 cools in the `else` of the threshold's test; with periods of which one divides the other it would never cool, so
//! cooling is tested first. Pages of warm bars are pushed into neither ring (M2); `warm_goes_hot` is the literal text. Every
//! 4 KiB page is counted by itself, as huge pages were off.
//!
//! `cool_period` follows from figure 5: with 1:1 the hot pages come close to the DRAM, half of 66 GB or 8 million pages, and grow "very
//! slowly" (Graph500), and more than 67 GB of pages are counted at a time, 17 million. Counts halve at a cooling, so that their sum is at
//! most twice the period: MEMTIS's 2,000,000 could keep 4 million pages at a count of one. 17 million need 8,500,000 if all are
//! sampled alike; heat is skewed, so that twice as much and a little is taken.
//!
//! Were promotion to stop at the high watermark, where demotion ends too, it would get only the room that pages give back by
//! themselves once fast memory is full. The paper names no such stop: "the promotion condition is that the anonymous active
//! list is not empty"; what it takes below the watermarks the next demotion restores.
//!
//! With `lists=kernel` the kernel's own lists are ordered and moved from, by a module: the policy gives marks and makes no requests.
//!
//! Memory beside the eight common bytes: 4 for the count, 10 for the kernel's lists. The paper's map takes 12 a page.
use std::collections::VecDeque;
use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Facet, Feedback, Kernel, KernelLists, ListMark, ListPlan, Metric, Movers, Needs, Policy,
    PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::units::{BLOCK_PAGES, PageId, TierId, Time};

use crate::parts::bins::{BINS, Bins, fine_bin, fit, visible_bin};
use crate::parts::lru::{Kind, Lru, Place};
use crate::parts::period_control::PeriodControl;
use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "tieredmms",
    summary: "TieredMMS: samples order the kernel's lists; watermarks demote, the slow active list is promoted",
    source: "TieredMMS, China Unicom",
    settings: &[
        SettingInfo { key: "alpha", default: "75%", meaning: "share of the capacity below which a bar is kept warm" },
        SettingInfo { key: "threshold_period", default: "100000", meaning: "samples between thresholds (M1)" },
        SettingInfo {
            key: "cool_period",
            default: "20000000",
            meaning: "samples between coolings (M1); 0 never cools",
        },
        SettingInfo { key: "high_wm", default: "3%", meaning: "free fast memory up to which demotion goes" },
        SettingInfo {
            key: "low_wm",
            default: "2%",
            meaning: "free fast memory below which an allocation demotes at once",
        },
        SettingInfo { key: "period", default: "500ms", meaning: "time between wakes of the migration threads" },
        SettingInfo {
            key: "direct",
            default: "on",
            meaning: "demote at once when an allocation meets the low watermark",
        },
        SettingInfo { key: "candidates", default: "70%", meaning: "rear share of a list that a pass may demote (M7)" },
        SettingInfo {
            key: "deactivate",
            default: "50%",
            meaning: "tail share of the active list that a cooling deactivates",
        },
        SettingInfo {
            key: "warm_goes_hot",
            default: "off",
            meaning: "warm pages go to the head of the active list too (M2)",
        },
        SettingInfo {
            key: "life_cycle",
            default: "on",
            meaning: "forget the count of a page that gives its memory back",
        },
        SettingInfo { key: "merge", default: "on", meaning: "samples that follow each other on one page count as one" },
        SettingInfo {
            key: "quota",
            default: "30",
            meaning: "permil of a processor for the sampler, to which its periods are fitted; 0 leaves them as they are",
        },
        SettingInfo {
            key: "lists",
            default: "own",
            meaning: "own, or kernel: the kernel's own lists, ordered and moved from by the module terrace_mm (live only)",
        },
    ],
    build: |settings| Ok(Box::new(TieredMms::new(settings)?)),
};

/// The live sampler compares its time with its quota as often.
const QUOTA_WINDOW: Duration = Duration::from_secs(15);

/// See the module's header.
pub struct TieredMms {
    alpha: f64,
    scale: u32,
    full_periods: (u64, u64),
    threshold_period: u64,
    cool_period: u64,
    high: f64,
    low: f64,
    period: Duration,
    direct: bool,
    candidates: f64,
    deactivate: f64,
    warm_goes_hot: bool,
    life_cycle: bool,
    /// Marks for the kernel's lists, if those are the ones to order.
    marks: Option<Vec<ListMark>>,
    counts: Column<u32>,
    control: PeriodControl,
    merge: bool,
    /// The page of the sample before.
    last: Option<PageId>,
    /// What one observation adds to a count.
    weight: u32,
    bars: Bins,
    lru: Lru,
    samples: u64,
    coolings: u64,
    hot: usize,
    warm: usize,
    capacity: Option<u64>,
    next_pass: Time,
    direct_due: bool,
    unfinished: bool,
    direct_runs: u64,
}

impl TieredMms {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind, or the low watermark lies above the high one.
    pub fn new(settings: &mut Settings) -> Result<TieredMms, SettingsError> {
        let threshold_period = settings.number("threshold_period", 1..=u64::from(u32::MAX))?;
        let cool = settings.number("cool_period", 0..=u64::from(u32::MAX))?;
        let cool_period = if cool == 0 { u64::MAX } else { cool };
        let high = settings.share("high_wm")?;
        let chosen = settings.is_given("low_wm");
        let low = settings.take("low_wm", "a share not above high_wm", |text| {
            terrace_core::units::parse_share(text).ok().filter(|low| !chosen || *low <= high)
        })?;
        let direct = settings.switch("direct")?;
        let kernel = settings.take(
            "lists",
            "own, or kernel with direct as it is: the module does it as the paper says",
            |text| match text {
                "own" => Some(false),
                "kernel" => Some(true).filter(|_| direct),
                _ => None,
            },
        )?;
        Ok(TieredMms {
            alpha: settings.share("alpha")?,
            scale: 1,
            full_periods: (threshold_period, cool_period),
            threshold_period,
            cool_period,
            high,
            low: low.min(high),
            period: settings.duration("period")?,
            direct,
            candidates: settings.share("candidates")?,
            deactivate: settings.share("deactivate")?,
            warm_goes_hot: settings.switch("warm_goes_hot")?,
            life_cycle: settings.switch("life_cycle")?,
            marks: kernel.then(Vec::new),
            counts: Column::default(),
            control: PeriodControl::new(settings.number("quota", 0..=1000)?, QUOTA_WINDOW),
            merge: settings.switch("merge")?,
            last: None,
            weight: 1,
            bars: Bins::default(),
            lru: Lru::default(),
            samples: 0,
            coolings: 0,
            hot: 1,
            warm: 1,
            capacity: None,
            next_pass: Time::ZERO,
            direct_due: false,
            unfinished: false,
            direct_runs: 0,
        })
    }

    /// The hot and the warm threshold; cold pages are below the latter.
    pub fn thresholds(&self) -> (usize, usize) {
        (self.hot, self.warm)
    }

    fn mark(&self, share: f64) -> u64 {
        (self.capacity.unwrap_or(0) as f64 * share).floor() as u64
    }

    fn bar(count: u32) -> Option<usize> {
        (count > 0).then(|| visible_bin(fine_bin(count)))
    }

    fn on_sample(&mut self, page: PageId, pages: &mut Pages) {
        self.lru.refresh(page, pages);
        if pages[page].tier().is_none() {
            return;
        }
        if self.merge && self.last.replace(page) == Some(page) {
            return;
        }
        let before = self.counts[page.index()];
        let after = before.saturating_add(self.weight);
        if before > 0 {
            self.bars.take(fine_bin(before), 1);
        }
        self.bars.add(fine_bin(after), 1);
        self.counts[page.index()] = after;
        let bar = Self::bar(after).expect("a sampled page has a count");
        let unit = pages.unit(page).start;
        if bar >= self.hot || (self.warm_goes_hot && bar >= self.warm) {
            self.set_active(unit, true);
        } else if bar < self.warm {
            self.set_active(unit, false);
        }
        self.samples += 1;
        if self.samples.is_multiple_of(self.cool_period) {
            self.cool(pages);
        } else if self.samples.is_multiple_of(self.threshold_period) {
            self.adapt();
        }
    }

    fn set_active(&mut self, unit: PageId, active: bool) {
        self.lru.set_active(unit, active);
        if let Some(marks) = &mut self.marks {
            marks.push(if active { ListMark::Hot(unit) } else { ListMark::Cold(unit) });
        }
    }

    /// Algorithm 1.
    fn adapt(&mut self) {
        let Some(capacity) = self.capacity else { return };
        let capacity = capacity - self.mark(self.high);
        let mut sizes = [0; BINS];
        self.bars.add_to(&mut sizes);
        let found = fit(&sizes, capacity);
        self.hot = found.lowest;
        let under_filled = (found.pages as f64) < capacity as f64 * self.alpha;
        self.warm = if under_filled { self.hot.saturating_sub(1) } else { self.hot };
    }

    /// Halves every count; what became cold goes to the inactive head, and the tail half of the active list with it.
    fn cool(&mut self, pages: &Pages) {
        self.coolings += 1;
        self.bars.cool_away();
        for (block, info) in pages.blocks() {
            for page in (0..BLOCK_PAGES).map(|offset| block.first_page().plus(offset)) {
                let before = self.counts[page.index()];
                if before == 0 {
                    continue;
                }
                self.counts[page.index()] = before / 2;
                let is_cold = |count| Self::bar(count).is_none_or(|bar| bar < self.warm);
                if !info.huge && is_cold(before / 2) && !is_cold(before) {
                    self.set_active(page, false);
                }
            }
        }
        if let Some(marks) = &mut self.marks {
            marks.push(ListMark::Cooled);
        }
        let active = Place::active(TierId::FAST);
        self.lru.age(TierId::FAST, Kind::Anonymous, (self.lru.size(active) as f64 * self.deactivate) as u64);
    }

    fn forget_count(&mut self, page: PageId) {
        let count = std::mem::take(&mut self.counts[page.index()]);
        if count > 0 {
            self.bars.take(fine_bin(count), 1);
        }
    }

    fn refresh(&mut self, page: PageId, pages: &Pages) {
        self.lru.refresh(page, pages);
        if self.life_cycle && pages[page].tier().is_none() {
            self.forget_count(page);
        }
    }

    /// Demotes until `goal` pages are free. Returns the pages requested for.
    fn demote(&mut self, free: u64, goal: u64, pages: &Pages, requests: &mut MoveRequests) -> u64 {
        let place = |kind, active| Place { tier: TierId::FAST, kind, active };
        let order = [place(Kind::File, false), place(Kind::File, true), place(Kind::Anonymous, false)];
        let need = goal.saturating_sub(free);
        let mut freed = 0;
        for place in order {
            let mut candidates = (self.lru.size(place) as f64 * self.candidates).ceil() as u64;
            for unit in self.lru.tail_to_head(place) {
                if freed >= need || candidates == 0 || requests.left() == 0 {
                    break;
                }
                let weight = self.lru.weight(unit);
                candidates = candidates.saturating_sub(weight);
                if pages[unit].moving() || pages[unit].pinned() {
                    continue;
                }
                requests.move_to(unit, TierId::FAST.below(), Reason::MakeRoom);
                freed += weight;
            }
        }
        freed
    }

    /// Promotes from the heads of the active lists as far as there is room. The lists are walked from their tails: of a walk the last
    /// pages that fit are kept, and the very last goes first.
    fn promote(&mut self, tiers: usize, mut left: u64, pages: &Pages, requests: &mut MoveRequests) {
        for tier in 1..tiers as u8 {
            if left == 0 || requests.left() == 0 {
                return;
            }
            let (mut nearest, mut held) = (VecDeque::new(), 0);
            for unit in self.lru.tail_to_head(Place::active(TierId(tier))) {
                if pages[unit].moving() || pages[unit].pinned() {
                    continue;
                }
                let weight = self.lru.weight(unit);
                nearest.push_back((unit, weight));
                held += weight;
                while let Some(&(_, farthest)) = nearest.front().filter(|(_, farthest)| held - farthest >= left) {
                    nearest.pop_front();
                    held -= farthest;
                }
            }
            for (unit, weight) in nearest.into_iter().rev() {
                if left < weight || requests.left() == 0 {
                    return;
                }
                requests.move_to(unit, TierId::FAST, Reason::Hot);
                left -= weight;
            }
        }
    }
}

impl TieredMms {
    fn set_folded(&mut self, parts: u32) {
        // A small page has the samples of a huge one: its observations count as parts of them.
        self.weight = (BLOCK_PAGES / parts.max(1)).max(1);
        // Nor are its samples those of one place.
        self.merge = false;
        self.threshold_period = support::scaled_samples(self.full_periods.0, self.scale, parts);
        self.cool_period = support::scaled_samples(self.full_periods.1, self.scale, parts);
    }
}

impl Policy for TieredMms {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { samples: true, life_cycle: self.life_cycle || self.direct, ..Needs::default() })
            .above(Kernel {
                movers: Movers::EachTier,
                lists: self.marks.as_ref().map(|_| ListPlan {
                    high_watermark: self.high,
                    low_watermark: self.low,
                    period: self.period,
                    candidates: self.candidates,
                    deactivate: self.deactivate,
                }),
                ..Kernel::default()
            })
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor;
            self.threshold_period = support::scaled_count(self.full_periods.0, factor);
            self.cool_period = support::scaled_count(self.full_periods.1, factor);
        }
        if let Some(parts) = setup.sample_parts {
            self.set_folded(parts);
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => {
                self.counts.fit(pages);
                self.lru.fit(pages);
            }
            Remap::Unmapping(space, range) => {
                support::each_page(pages, space, &range, |page| {
                    self.lru.forget(page);
                    self.forget_count(page);
                });
            }
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        match seen {
            Observations::Scan(scan) => {
                (0..scan.ptes.len() as u32).for_each(|offset| self.refresh(scan.first.plus(offset), pages));
            }
            Observations::Events(events) => {
                for event in events {
                    match *event {
                        Observation::Sampled { page, .. } => self.on_sample(page, pages),
                        _ => self.refresh(event.page(), pages),
                    }
                }
                let born = events.iter().any(|event| matches!(event, Observation::Allocated { .. }));
                if let Some(capacity) = self.capacity.filter(|_| born && self.direct) {
                    let free = capacity.saturating_sub(pages.used_in_all(TierId::FAST));
                    if free < self.mark(self.low) && !self.direct_due {
                        self.direct_due = true;
                        self.next_pass = self.next_pass.min(now);
                    }
                }
            }
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::Moved(done) => {
                for outcome in done {
                    if pages.block(outcome.item.page.block()).is_some() {
                        self.lru.refresh(outcome.item.page, pages);
                    }
                }
            }
            Feedback::SamplerTime(spent) => self.control.spend(now, spent),
            _ => {}
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let limit = support::fast_limit(capacity);
        self.capacity = Some(limit);
        if capacity.tiers.len() < 2 || (now < self.next_pass && !self.unfinished) {
            return;
        }
        if self.marks.is_some() {
            // The kernel's threads look at the watermarks and the lists themselves.
            self.direct_due = false;
            self.next_pass = now + self.period;
            return;
        }
        let (high, low) = (self.mark(self.high), self.mark(self.low));
        let free = limit.saturating_sub(capacity.tiers[0].used);
        if std::mem::take(&mut self.direct_due) {
            // A direct run only gets out of need, and promotes nothing; the periodic one goes on from there.
            self.direct_runs += 1;
            self.next_pass = now + self.period;
            self.demote(free, low.midpoint(high), pages, requests);
            return;
        }
        self.next_pass = now + self.period;
        let freed = if free < high { self.demote(free, high, pages, requests) } else { 0 };
        self.promote(capacity.tiers.len(), free + freed, pages, requests);
        self.unfinished = requests.left() == 0;
    }

    fn schedule(&self) -> Schedule {
        let sampling = Some(self.control.periods());
        Schedule { cadence: Cadence { sampling, ..Cadence::default() }, wake_at: Some(self.next_pass) }
    }

    fn report(&self) -> PolicyReport {
        let mut sizes = [0; BINS];
        self.bars.add_to(&mut sizes);
        let mut metrics = vec![
            Metric { name: "hot_threshold_bin", value: self.hot as f64 },
            Metric { name: "warm_threshold_bin", value: self.warm as f64 },
            Metric { name: "samples", value: self.samples as f64 },
            Metric { name: "coolings", value: self.coolings as f64 },
            Metric { name: "direct_demotion_runs", value: self.direct_runs as f64 },
            Metric { name: "count_bytes_per_page", value: size_of::<u32>() as f64 },
            Metric { name: "metadata_bytes_per_page", value: 8.0 + 4.0 + crate::parts::lru::BYTES_PER_PAGE },
        ];
        metrics.extend(crate::parts::bins::metrics(&sizes));
        PolicyReport { memory_bytes: self.counts.len() * size_of::<u32>() + self.lru.memory_bytes(), metrics }
    }

    fn facet(&mut self) -> Option<Facet<'_>> {
        self.marks.is_some().then_some(Facet::Lists(self))
    }
}

impl KernelLists for TieredMms {
    fn marks(&mut self, into: &mut Vec<ListMark>) {
        if let Some(marks) = &mut self.marks {
            into.append(marks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW, SPACE};
    use terrace_core::engine::Input;
    use terrace_core::units::Vpn;

    const PERIOD: Duration = Duration::from_millis(500);

    /// 1000 fast pages, thresholds every 100 samples; tests give a page several samples one behind the other.
    fn rig(extra: &[(&str, &str)]) -> Rig {
        let pairs = [("threshold_period", "100"), ("cool_period", "0"), ("merge", "off")]
            .into_iter()
            .chain(extra.iter().copied());
        let mut rig = Rig::new(crate::build("tieredmms", Settings::from_pairs(pairs)).unwrap(), &[1000, 100_000]);
        rig.map(4096);
        rig
    }

    #[test]
    fn thresholds_by_algorithm_one() {
        let check = |bars: &[(u32, u64)], hot: usize, warm: usize| {
            let mut policy = TieredMms::new(&mut Settings::default().for_policy(&INFO)).unwrap();
            policy.capacity = Some(1000);
            for &(count, pages) in bars {
                policy.bars.add(fine_bin(count), pages);
            }
            policy.adapt();
            assert_eq!(policy.thresholds(), (hot, warm), "{bars:?}");
        };
        check(&[(1, 500), (8, 900), (64, 300)], 4, 3);
        check(&[(1, 500), (8, 900), (64, 800)], 4, 4);
        check(&[(1, 100), (8, 100)], 0, 0);
        check(&[(1 << 15, 2000)], 16, 15);
    }

    #[test]
    fn demotion_stops_at_the_high_watermark_and_takes_the_oldest_inactive() {
        let mut rig = rig(&[("low_wm", "1%")]);
        rig.born(0..985, TierId::FAST);
        rig.pass(PERIOD);
        assert_eq!(rig.fast_free(), 30);
        assert!((0..15).all(|vpn| rig.tier(vpn) == Some(SLOW)), "the first fifteen are the oldest");
    }

    #[test]
    fn file_pages_leave_before_anonymous_ones_whatever_their_use() {
        let mut rig = rig(&[]);
        rig.engine.handle(rig.now, Input::FileBacked(SPACE, Vpn(512)..Vpn(1024)));
        rig.born(0..985, TierId::FAST);
        rig.pass(PERIOD);
        let files = (512..985).filter(|&vpn| rig.tier(vpn) == Some(SLOW)).count() as u64;
        assert_eq!((files, rig.demotions), (15, 15));
    }

    #[test]
    fn hot_slow_pages_come_in_at_the_next_pass() {
        let mut rig = rig(&[]);
        rig.born(0..500, TierId::FAST);
        rig.born(500..600, SLOW);
        rig.sample((500..550).flat_map(|vpn| [vpn; 4]));
        rig.pass(PERIOD);
        assert!((500..550).all(|vpn| rig.tier(vpn) == Some(TierId::FAST)));
        assert_eq!(rig.tier(560), Some(SLOW));
    }

    #[test]
    fn promotion_begins_at_the_head_where_the_hottest_are() {
        let mut rig = rig(&[("direct", "off")]);
        rig.born(0..980, TierId::FAST);
        rig.born(1000..1100, SLOW);
        // All are hot; the last that was sampled lies at the head. 20 pages are free and 10 more become so.
        rig.sample((1000..1100).flat_map(|vpn| [vpn; 4]));
        rig.pass(PERIOD);
        let came: Vec<u64> = (1000..1100).filter(|&vpn| rig.tier(vpn) == Some(TierId::FAST)).collect();
        assert_eq!(came, (1070..1100).collect::<Vec<_>>());
    }

    #[test]
    fn samples_that_follow_each_other_on_one_page_count_once() {
        let counted = |merge: &str| {
            let mut rig = rig(&[("merge", merge)]);
            rig.born(0..2, TierId::FAST);
            rig.sample([0, 0, 0, 1, 0, 0, 1]);
            (rig.metric("samples"), rig.metric("bin_01_pages"))
        };
        assert_eq!(counted("on"), (4.0, 2.0), "two of each page");
        assert_eq!(counted("off"), (7.0, 1.0), "five of one, two of the other");
    }

    #[test]
    fn the_periods_follow_the_quota_and_stay_without_one() {
        let loads = |quota: &str| {
            let mut rig = rig(&[("quota", quota)]);
            for _ in 0..3 {
                rig.engine.handle(rig.now, Input::SamplerTime(Duration::from_secs(5)));
                rig.pass(QUOTA_WINDOW);
            }
            rig.cadence.sampling.unwrap().loads
        };
        assert_eq!((loads("0"), loads("30")), (199, 401));
    }

    #[test]
    fn once_fast_memory_is_full_promotion_takes_what_is_free_and_what_demotion_frees() {
        let mut rig = rig(&[("direct", "off")]);
        rig.born(0..980, TierId::FAST);
        rig.born(1000..1100, SLOW);
        rig.sample((1000..1100).flat_map(|vpn| [vpn; 4]));
        rig.pass(PERIOD);
        assert_eq!(rig.promotions, 30);
    }

    #[test]
    fn an_allocation_below_the_low_watermark_demotes_at_once_half_way_up() {
        let check = |direct: &str, free: u64| {
            let mut rig = rig(&[("direct", direct)]);
            rig.pass(PERIOD / 2);
            rig.born(0..990, TierId::FAST);
            assert_eq!(rig.fast_free(), free, "direct={direct}");
        };
        check("on", 25);
        check("off", 10);
    }

    #[test]
    fn the_kernel_s_lists_get_marks_and_nothing_is_requested() {
        let mut rig = rig(&[("lists", "kernel"), ("cool_period", "1000")]);
        rig.born(0..995, TierId::FAST);
        rig.born(1000..1010, SLOW);
        rig.sample((1000..1010).flat_map(|vpn| [vpn; 100]));
        rig.pass(PERIOD);
        assert_eq!((rig.promotions, rig.demotions), (0, 0), "the module moves");
        let mut marks = Vec::new();
        rig.engine.list_marks(&mut marks);
        let hot = marks.iter().filter(|mark| matches!(mark, ListMark::Hot(_))).count();
        assert!(
            hot > 900 && marks.last() == Some(&ListMark::Cooled),
            "{hot} hot marks, the last is {:?}",
            marks.last()
        );
        let (_, vpn) = match marks[0] {
            ListMark::Hot(page) | ListMark::Cold(page) => rig.engine.pages().locate(page),
            ListMark::Cooled => panic!("a cooling comes after a thousand samples"),
        };
        assert_eq!(vpn, Vpn(1000));
        marks.clear();
        rig.engine.list_marks(&mut marks);
        assert!(marks.is_empty(), "each mark is given once");
        let kernel = |settings| crate::build("tieredmms", settings).unwrap().profile().kernel;
        let plan = kernel(Settings::from_pairs([("lists", "kernel")])).lists.unwrap();
        assert_eq!((plan.high_watermark, plan.low_watermark, plan.candidates, plan.deactivate), (0.03, 0.02, 0.7, 0.5));
        assert_eq!(kernel(Settings::default()).lists, None);
    }

    #[test]
    fn what_the_module_does_not_do_is_refused_with_the_kernel_s_lists() {
        let settings = Settings::from_pairs([("lists", "kernel"), ("direct", "off")]);
        let error = crate::build("tieredmms", settings).err().unwrap();
        assert!(error.to_string().contains("lists=kernel"), "{error}");
    }

    #[test]
    fn cooling_deactivates_half_of_the_active_list() {
        let mut rig = rig(&[("cool_period", "1000"), ("threshold_period", "100000")]);
        rig.born(0..200, TierId::FAST);
        rig.sample((0..200).flat_map(|vpn| [vpn; 5]));
        assert_eq!(rig.metric("coolings"), 1.0);
        assert_eq!(rig.metric("bin_01_pages"), 200.0, "five becomes two");
    }
}
