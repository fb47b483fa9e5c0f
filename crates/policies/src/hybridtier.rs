//! `hybridtier`: HybridTier. Two small sketches tell how often a page is used and how often lately; either makes it hot, both keep it.
//!
//! In: hardware samples, and how many accesses each tier serves. Out: promotions after each batch of samples; when little is free,
//! demotions in the order of addresses. Must not: keep a count for each page; pages share counters.
//!
//! Source: HybridTier (ASPLOS 2025; arXiv 2312.04789) and the constants of its public artefact, read in a fork of it [C].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `hot` | 5 | frequency that makes a page hot [C] |
//! | `momentum` | 3 | momentum that makes a page hot; a page is without momentum below 1 [C] |
//! | counters | 4 bits, 4 a key, 0.1 % collisions for as many keys as fast memory has pages | frequency [C] |
//! | `momentum_size` | 100 % | counters of the momentum over those of the frequency; 1 % in the code, see below |
//! | halving | 160 samples a fast page | of the frequency [C] |
//! | `momentum_samples` | 1,100,000 | samples between two halvings of the momentum [C] |
//! | `batch` | 100,000 | samples after which pages are promoted and demoted [C] |
//! | watermarks | 1.25 %, 5 % | free fast memory at which demotion starts, and which it restores [C] |
//! | `second_chance` | 60 s, 10,000 pages | how long a page of high frequency and no momentum may stay unused [C] |
//! | quiet | two sweeps without enough cold pages | then sampling ends; hit ratios each 60 s after 120 s [C] |
//! | wake | -0.01 a minute | slope of five hit ratios below which sampling begins again [C] |
//! | 2 MiB | counters of 16 bits, all thresholds and the halving times 400 | where pages are huge [C], the hot ones by the same factor |
//! | `sample_period` | 200 | loads a sample; the code asks for 100,001 samples a second and core, which is this at 20 million misses |
//!
//! With a hundredth of the counters the 1,100,000 samples between halvings of the momentum leave no counter at zero: every page has momentum, and none
//! leaves. The default is as many counters as for the frequency; `momentum_size=1%` is the code's.
//!
//! Ambiguities: a frequency that was halved meanwhile counts as unused in the second chance (the code compares for equality). The sweep
//! goes on where the last one ended and begins again at the end. Not modelled: a promotion that fails is tried again with a tenth of
//! its pages (here what does not fit is left out); fast memory is sampled no longer when 80 % of its samples meet full counters (a
//! sampler here has one period for all tiers); demotion above 100 MB/s rests for 1 s. Where nobody counts accesses by tier there
//! is no quiet mode, since nothing would end it.
//!
//! Memory beside the common eight bytes: 20.5 a fast page, nothing for a slow one.

use std::collections::VecDeque;
use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Needs, Policy, PolicyReport, Profile, SamplePeriods, Schedule,
    Setup,
};
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{BLOCK_PAGES, PageId, TierId, Time};

use crate::parts::counting_filter::CountingFilter;
use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "hybridtier",
    summary: "HybridTier: frequency and momentum in two counting filters; either promotes, the lack of both demotes",
    source: "HybridTier, ASPLOS 2025",
    settings: &[
        SettingInfo { key: "hot", default: "5", meaning: "frequency that makes a page hot" },
        SettingInfo { key: "momentum", default: "3", meaning: "momentum that makes a page hot; 0 leaves momentum out" },
        SettingInfo {
            key: "momentum_size",
            default: "100%",
            meaning: "counters of the momentum over those of frequency",
        },
        SettingInfo {
            key: "momentum_samples",
            default: "1100000",
            meaning: "samples between two halvings of the momentum",
        },
        SettingInfo { key: "batch", default: "100000", meaning: "samples after which pages are moved" },
        SettingInfo {
            key: "second_chance",
            default: "60s",
            meaning: "time in which a page of high frequency and no momentum must be used",
        },
        SettingInfo {
            key: "quiet",
            default: "on",
            meaning: "sampling ends where nothing is cold, until hit ratios fall",
        },
        SettingInfo { key: "sample_period", default: "200", meaning: "loads a sample" },
    ],
    build: |settings| Ok(Box::new(HybridTier::new(settings)?)),
};

const COLLISIONS: f64 = 0.001;
const FREQUENCY_SAMPLES_A_PAGE: u64 = 160;
/// Thresholds and halving are larger by it where pages are huge.
const HUGE_FACTOR: u32 = 400;
/// Shares of fast memory, in 1/10000.
const ALLOCATION_MARK: u64 = 125;
const DEMOTION_MARK: u64 = 500;
const MOST_SECOND_CHANCES: usize = 10_000;
const SWEEPS_BEFORE_QUIET: u8 = 2;
const SETTLES: Duration = Duration::from_secs(120);
const RATIO_EACH: Duration = Duration::from_secs(60);
const RATIOS: usize = 5;
const WAKE_SLOPE: f64 = -0.01;
/// Policy bits: the page waits for the end of the batch; the page has its second chance.
const SEEN: u8 = 1;
const SECOND: u8 = 2;

/// See the module's header.
pub struct HybridTier {
    hot: u32,
    momentum_hot: u32,
    momentum_size: f64,
    momentum_samples: u64,
    full_batch: u64,
    second_chance: Duration,
    may_be_quiet: bool,
    sample_period: u32,
    scale: u32,
    /// Observations that one hardware sample comes in, where small pages stand for huge ones.
    parts: Option<u32>,
    /// What all thresholds are multiplied by: 1, or more where pages are huge.
    factor: u32,
    limit: Option<u64>,
    frequency: Option<CountingFilter>,
    momentum: Option<CountingFilter>,
    samples: u64,
    since: [u64; 2],
    in_batch: u64,
    /// Slow pages sampled in this batch.
    seen: Vec<PageId>,
    due: bool,
    /// Where the next sweep begins: a page, counted over the blocks in order of addresses.
    sweep_at: u32,
    failed_sweeps: u8,
    chances: VecDeque<(PageId, u32)>,
    chances_checked: Time,
    quiet: Option<Quiet>,
    counted: bool,
    quiets: u64,
    given_chances: u64,
}

/// Sampling rests, and hit ratios tell when it should begin again.
#[derive(Clone, Debug)]
struct Quiet {
    /// When the next ratio is complete.
    next: Time,
    accesses: [u64; 2],
    ratios: VecDeque<f64>,
}

impl HybridTier {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<HybridTier, SettingsError> {
        Ok(HybridTier {
            hot: settings.number("hot", 1..=15)?,
            momentum_hot: settings.number("momentum", 0..=15)?,
            momentum_size: settings.share("momentum_size")?,
            momentum_samples: settings.number("momentum_samples", 1..=u64::from(u32::MAX))?,
            full_batch: settings.number("batch", 1..=u64::from(u32::MAX))?,
            second_chance: settings.duration("second_chance")?,
            may_be_quiet: settings.switch("quiet")?,
            sample_period: settings.number("sample_period", 1..=1_000_000_000)?,
            scale: 1,
            parts: None,
            factor: 1,
            limit: None,
            frequency: None,
            momentum: None,
            samples: 0,
            since: [0; 2],
            in_batch: 0,
            seen: Vec::new(),
            due: false,
            sweep_at: 0,
            failed_sweeps: 0,
            chances: VecDeque::new(),
            chances_checked: Time::ZERO,
            quiet: None,
            counted: false,
            quiets: 0,
            given_chances: 0,
        })
    }

    /// A count of samples at full size, in observations here.
    fn observations(&self, full: u64) -> u64 {
        match self.parts {
            Some(parts) => support::scaled_samples(full, self.scale, parts),
            None => support::scaled_count(full, self.scale),
        }
    }

    /// Makes the sketches for this size of fast memory.
    fn make_sketches(&mut self, limit: u64, huge: bool) {
        let folded = self.parts.is_some();
        self.factor = if huge || folded { HUGE_FACTOR } else { 1 };
        let keys = if huge && !folded { limit / u64::from(BLOCK_PAGES) } else { limit };
        let bits = if self.factor > 1 { 16 } else { 4 };
        let counters = CountingFilter::counters_for(keys.max(1), COLLISIONS);
        self.frequency = Some(CountingFilter::new(counters, bits));
        self.momentum = Some(CountingFilter::new(counters * self.momentum_size, bits));
    }

    /// Observations between two halvings of the frequency.
    fn frequency_ages(&self, limit: u64) -> u64 {
        let (each, factor) = (FREQUENCY_SAMPLES_A_PAGE, u64::from(self.factor));
        let samples = match (self.factor, self.parts) {
            (1, _) => each * limit,
            (_, None) => each * factor * limit / u64::from(BLOCK_PAGES),
            (_, Some(parts)) => each * factor * limit * u64::from(parts) / u64::from(BLOCK_PAGES),
        };
        samples.max(1)
    }

    fn on_sample(&mut self, now: Time, page: PageId, pages: &mut Pages) {
        let Some(limit) = self.limit else { return };
        let unit = pages.unit(page).start;
        if self.frequency.is_none() {
            self.make_sketches(limit, pages.block(page.block()).is_some_and(|block| block.huge));
        }
        let weight = self.parts.map_or(1, |parts| (BLOCK_PAGES / parts.max(1)).max(1));
        let ages = [self.frequency_ages(limit), self.observations(self.momentum_samples)];
        let sketches = [self.frequency.as_mut(), self.momentum.as_mut()];
        for ((sketch, since), ages) in sketches.into_iter().zip(&mut self.since).zip(ages) {
            let Some(sketch) = sketch else { continue };
            sketch.add(u64::from(unit.0), weight);
            *since += 1;
            if *since >= ages {
                *since = 0;
                sketch.halve();
            }
        }
        self.samples += 1;
        self.in_batch += 1;
        let entry = &mut pages[unit];
        if entry.tier().is_some_and(|tier| tier > TierId::FAST) && entry.policy_bits() & SEEN == 0 {
            entry.set_policy_bits(entry.policy_bits() | SEEN);
            self.seen.push(unit);
        }
        if self.in_batch >= self.observations(self.full_batch) {
            self.in_batch = 0;
            self.due = true;
            if self.chances_checked == Time::ZERO {
                self.chances_checked = now;
            }
        }
    }

    /// Frequency and momentum of a unit.
    fn counts(&self, unit: PageId) -> [u32; 2] {
        let count =
            |sketch: &Option<CountingFilter>| sketch.as_ref().map_or(0, |sketch| sketch.count(u64::from(unit.0)));
        [count(&self.frequency), count(&self.momentum)]
    }

    fn has_momentum(&self, momentum: u32) -> bool {
        self.momentum_hot > 0 && momentum >= self.factor
    }

    fn is_hot(&self, [frequency, momentum]: [u32; 2]) -> bool {
        let by_momentum = self.momentum_hot > 0 && momentum >= self.momentum_hot * self.factor;
        frequency >= self.hot * self.factor || by_momentum
    }

    /// Promotes what the batch found hot, as far as there is room. Returns the pages still free.
    fn promote(&mut self, mut free: u64, pages: &mut Pages, requests: &mut MoveRequests) -> u64 {
        let seen = std::mem::take(&mut self.seen);
        for unit in seen {
            if pages.block(unit.block()).is_none() {
                continue;
            }
            let entry = &mut pages[unit];
            entry.set_policy_bits(entry.policy_bits() & !SEEN);
            let slow = entry.tier().is_some_and(|tier| tier > TierId::FAST);
            if !slow || entry.moving() || !self.is_hot(self.counts(unit)) {
                continue;
            }
            let range = pages.unit(unit);
            let size = u64::from(range.end.0 - range.start.0);
            if range.start == unit && size <= free && requests.left() > 0 {
                requests.move_to(unit, TierId::FAST, Reason::Hot);
                free -= size;
            }
        }
        free
    }

    /// Pages whose second chance has passed unused. Returns how many pages leave.
    fn end_chances(&mut self, now: Time, pages: &mut Pages, requests: &mut MoveRequests) -> u64 {
        if self.chances.is_empty() || now < self.chances_checked + self.second_chance {
            return 0;
        }
        self.chances_checked = now;
        let mut leaving = 0;
        for (unit, before) in std::mem::take(&mut self.chances) {
            if pages.block(unit.block()).is_none() || pages[unit].policy_bits() & SECOND == 0 {
                continue;
            }
            let bits = pages[unit].policy_bits();
            pages[unit].set_policy_bits(bits & !SECOND);
            let unused = self.counts(unit)[0] <= before;
            if unused && pages[unit].tier() == Some(TierId::FAST) && !pages[unit].moving() && requests.left() > 0 {
                let range = pages.unit(unit);
                requests.move_to(unit, TierId::FAST.below(), Reason::Cold);
                leaving += u64::from(range.end.0 - range.start.0);
            }
        }
        leaving
    }

    /// Goes over fast memory by address, from where it last was, until enough cold pages are found. Returns how many.
    fn sweep(&mut self, wanted: u64, pages: &mut Pages, requests: &mut MoveRequests) -> u64 {
        let blocks: Vec<(PageId, bool)> = pages.blocks().map(|(id, info)| (id.first_page(), info.huge)).collect();
        if blocks.is_empty() {
            return 0;
        }
        let most = support::scaled_count(MOST_SECOND_CHANCES as u64, self.scale).max(1) as usize;
        // From the page where it ended, over all blocks, to that page again.
        let (begin, skip) = ((self.sweep_at / BLOCK_PAGES) as usize % blocks.len(), self.sweep_at % BLOCK_PAGES);
        let mut found = 0;
        for step in 0..=blocks.len() {
            let at = (begin + step) % blocks.len();
            let (first, huge) = blocks[at];
            let size = if huge { BLOCK_PAGES } else { 1 };
            let part =
                if step == 0 { skip..BLOCK_PAGES } else { 0..if step == blocks.len() { skip } else { BLOCK_PAGES } };
            for offset in part.filter(|offset| offset.is_multiple_of(size)) {
                let unit = first.plus(offset);
                let entry = pages[unit];
                if entry.tier() != Some(TierId::FAST) || entry.moving() || entry.pinned() {
                    continue;
                }
                let [frequency, momentum] = self.counts(unit);
                if self.has_momentum(momentum) {
                    continue;
                }
                if frequency < self.hot * self.factor {
                    if found >= wanted || requests.left() == 0 {
                        self.sweep_at = at as u32 * BLOCK_PAGES + offset;
                        return found;
                    }
                    requests.move_to(unit, TierId::FAST.below(), Reason::MakeRoom);
                    found += u64::from(size);
                } else if entry.policy_bits() & SECOND == 0 && self.chances.len() < most {
                    self.give_chance(unit, frequency, pages);
                }
            }
        }
        if found < wanted {
            self.failed_sweeps += 1;
        }
        found
    }

    fn give_chance(&mut self, unit: PageId, mut frequency: u32, pages: &mut Pages) {
        // A full counter would hide an access: it is lowered first.
        if let Some(sketch) = self.frequency.as_mut().filter(|sketch| sketch.most() == frequency) {
            sketch.take_one(u64::from(unit.0));
            frequency -= 1;
        }
        let bits = pages[unit].policy_bits();
        pages[unit].set_policy_bits(bits | SECOND);
        self.chances.push_back((unit, frequency));
        self.given_chances += 1;
    }

    fn processor(&mut self, now: Time, counts: &ProcessorCounts) {
        self.counted |= counts.memory_accesses > 0;
        let Some(quiet) = &mut self.quiet else { return };
        quiet.accesses[0] += counts.memory_accesses - counts.slow_accesses.min(counts.memory_accesses);
        quiet.accesses[1] += counts.memory_accesses;
        if now < quiet.next || quiet.accesses[1] == 0 {
            return;
        }
        let [fast, all] = std::mem::take(&mut quiet.accesses);
        quiet.next = now + RATIO_EACH;
        quiet.ratios.push_back(fast as f64 / all as f64);
        if quiet.ratios.len() <= RATIOS {
            return;
        }
        quiet.ratios.pop_front();
        if slope(&quiet.ratios) < WAKE_SLOPE {
            self.quiet = None;
            self.failed_sweeps = 0;
        }
    }
}

/// Slope of the line of least squares through values at 0, 1, 2 and so on.
fn slope(values: &VecDeque<f64>) -> f64 {
    let n = values.len() as f64;
    let middle = (n - 1.0) / 2.0;
    let (mut above, mut below) = (0.0, 0.0);
    for (x, y) in values.iter().enumerate() {
        above += (x as f64 - middle) * y;
        below += (x as f64 - middle).powi(2);
    }
    above / below
}

impl Policy for HybridTier {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { samples: true, ..Needs::default() }).above(Kernel::default())
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor.max(1);
        }
        if let Some(parts) = setup.sample_parts {
            self.parts = Some(parts.max(1));
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        if let Observations::Events(events) = seen {
            for event in events {
                if let Observation::Sampled { page, .. } = *event {
                    self.on_sample(now, page, pages);
                }
            }
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::Processor(counts) = feedback {
            self.processor(now, counts);
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let limit = support::fast_limit(capacity);
        self.limit = Some(limit);
        if capacity.tiers.len() < 2 || !std::mem::take(&mut self.due) {
            return;
        }
        let free = self.promote(limit.saturating_sub(capacity.tiers[0].used), pages, requests);
        if free > limit * ALLOCATION_MARK / 10_000 {
            return;
        }
        let back = self.end_chances(now, pages, requests);
        let wanted = (limit * DEMOTION_MARK / 10_000).saturating_sub(free + back);
        if wanted == 0 {
            return;
        }
        if self.sweep(wanted, pages, requests) >= wanted {
            self.failed_sweeps = 0;
        } else if self.failed_sweeps >= SWEEPS_BEFORE_QUIET && self.may_be_quiet && self.counted {
            let next = now + SETTLES + RATIO_EACH;
            self.quiet = Some(Quiet { next, accesses: [0; 2], ratios: VecDeque::new() });
            self.quiets += 1;
        }
    }

    fn schedule(&self) -> Schedule {
        let loads = self.sample_period;
        let sampling = self.quiet.is_none().then_some(SamplePeriods { loads, stores: u32::MAX });
        // Counts come with a wake: one at the end of each ratio while it is quiet, and one to learn how much fast memory there is.
        let wake_at = match (&self.quiet, self.due || self.limit.is_none()) {
            (_, true) => Some(Time::ZERO),
            (Some(quiet), false) => Some(quiet.next),
            (None, false) => None,
        };
        Schedule { cadence: Cadence { sampling, ..Cadence::default() }, wake_at }
    }

    fn report(&self) -> PolicyReport {
        let sketches = [&self.frequency, &self.momentum];
        let sketches: usize = sketches.into_iter().flatten().map(CountingFilter::memory_bytes).sum();
        let lists = self.seen.capacity() * size_of::<PageId>() + self.chances.capacity() * size_of::<(PageId, u32)>();
        let metric = |name, value| Metric { name, value };
        let a_fast_page = sketches as f64 / self.limit.unwrap_or(1).max(1) as f64;
        PolicyReport {
            memory_bytes: sketches + lists,
            metrics: vec![
                metric("samples", self.samples as f64),
                metric("second_chances", self.given_chances as f64),
                metric("quiet", f64::from(u8::from(self.quiet.is_some()))),
                metric("quiets", self.quiets as f64),
                metric("sketch_bytes_per_fast_page", a_fast_page),
                metric("metadata_bytes_per_page", 8.0),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW};

    const FAST: u64 = 400;
    const SOON: Duration = Duration::from_millis(1);

    /// Fast memory of 400 pages, full, and 1600 slow pages; a batch each 20 samples.
    fn rig(extra: &[(&str, &str)]) -> Rig {
        let pairs = [("batch", "20"), ("momentum_size", "100%")].into_iter().chain(extra.iter().copied());
        let policy = crate::build("hybridtier", Settings::from_pairs(pairs)).unwrap();
        let mut rig = Rig::new(policy, &[FAST, 100_000]);
        rig.map(2000);
        rig.born(0..FAST, TierId::FAST);
        rig.born(FAST..2000, SLOW);
        rig
    }

    /// A batch that consists of these pages, each as often, filled up with others by one sample each.
    fn batch(rig: &mut Rig, pages: &[u64], times: usize) {
        for &page in pages {
            rig.sample(vec![page; times]);
        }
        let left = 20 - (pages.len() * times) % 20;
        let others = 400 + rig.metric("samples") as u64 % 560;
        rig.sample(others..others + left as u64);
        rig.pass(SOON);
    }

    #[test]
    fn a_page_used_often_lately_comes_up_by_momentum_before_its_frequency_would_do_it() {
        let check = |momentum: &str, wanted: Option<TierId>| {
            let mut rig = rig(&[("momentum", momentum)]);
            batch(&mut rig, &[1000], 3);
            // The first batch found fast memory full and made room.
            batch(&mut rig, &[1000], 1);
            assert_eq!(rig.tier(1000), wanted, "momentum={momentum}");
        };
        check("3", Some(TierId::FAST));
        check("0", Some(SLOW));
    }

    #[test]
    fn frequency_alone_promotes_once_momentum_is_forgotten() {
        let mut rig = rig(&[("momentum", "0")]);
        for _ in 0..3 {
            batch(&mut rig, &[1000], 2);
        }
        assert_eq!(rig.tier(1000), Some(TierId::FAST), "a frequency of five and more");
    }

    #[test]
    fn when_little_is_free_cold_pages_leave_by_address_until_a_twentieth_is_free() {
        let mut rig = rig(&[]);
        let used: Vec<u64> = (0..5).collect();
        batch(&mut rig, &used, 1);
        assert!(rig.fast_free() >= FAST / 20, "{} pages are free", rig.fast_free());
        assert!(used.iter().all(|&vpn| rig.tier(vpn) == Some(TierId::FAST)), "pages with momentum stay");
        assert_eq!(rig.tier(5), Some(SLOW), "the first without leaves");
    }

    #[test]
    fn a_page_of_high_frequency_and_no_momentum_leaves_if_its_second_chance_passes_unused() {
        let check = |used: bool, wanted: Option<TierId>| {
            let mut rig = rig(&[("momentum_samples", "20")]);
            // Page 0 becomes hot, its frequency stays, its momentum of eight is gone after four more batches.
            batch(&mut rig, &[0], 8);
            (0..4).for_each(|_| batch(&mut rig, &[], 0));
            assert_eq!(rig.tier(0), Some(TierId::FAST));
            // Fast memory fills up again and again, and each sweep takes what is cold: in the end it has met every page.
            // Downwards, so that a sweep upwards comes to an end.
            let mut next = 2000;
            let mut fill = |rig: &mut Rig| {
                let free = rig.fast_free();
                rig.born(next - free..next, TierId::FAST);
                next -= free;
            };
            for _ in 0..44 {
                fill(&mut rig);
                batch(&mut rig, &[], 0);
            }
            assert_eq!(rig.metric("second_chances"), 1.0, "page 0 has its chance");
            rig.pass(Duration::from_secs(61));
            fill(&mut rig);
            batch(&mut rig, if used { &[0] } else { &[] }, 1);
            assert_eq!(rig.tier(0), wanted, "used: {used}");
        };
        check(true, Some(TierId::FAST));
        check(false, Some(SLOW));
    }

    #[test]
    fn sampling_rests_where_nothing_is_cold_until_hit_ratios_fall() {
        use terrace_core::engine::Input;
        let check = |switch: &str, quiet: bool| {
            let mut rig = rig(&[("quiet", switch), ("momentum", "1"), ("batch", "400")]);
            let counts =
                |slow| ProcessorCounts { memory_accesses: 1000, slow_accesses: slow, ..ProcessorCounts::default() };
            rig.engine.handle(rig.now, Input::Processor(counts(100)));
            rig.settle();
            for _ in 0..3 {
                rig.sample(0..FAST);
                rig.pass(SOON);
            }
            assert_eq!(rig.cadence.sampling.is_none(), quiet, "quiet={switch}");
            if !quiet {
                return;
            }
            for minute in 0..12u64 {
                rig.now = rig.now + Duration::from_secs(if minute == 0 { 181 } else { 61 });
                // Ratios stay for six minutes, then fall by five points each.
                let slow = 100 + minute.saturating_sub(6) * 50;
                rig.engine.handle(rig.now, Input::Processor(counts(slow)));
                rig.settle();
                assert!(minute > 6 || rig.cadence.sampling.is_none(), "quiet in minute {minute}");
            }
            assert!(rig.cadence.sampling.is_some(), "awake again");
        };
        check("on", true);
        check("off", false);
    }

    #[test]
    fn where_pages_are_huge_thresholds_are_four_hundred_times_as_high() {
        let mut policy = crate::build("hybridtier", Settings::from_pairs([("batch", "4000")])).unwrap();
        policy.configure(crate::rig::folded(512));
        let mut rig = Rig::new(policy, &[100, 100_000]);
        rig.map(1000);
        rig.born(0..50, TierId::FAST);
        rig.born(50..1000, SLOW);
        let check = |rig: &mut Rig, samples: usize, wanted| {
            rig.sample(vec![500; samples]);
            rig.sample(vec![0; 4000 * 512 - samples]);
            rig.pass(SOON);
            assert_eq!(rig.tier(500), wanted, "{samples} samples");
        };
        check(&mut rig, 400, Some(SLOW));
        check(&mut rig, 1700, Some(TierId::FAST));
    }

    #[test]
    fn the_slope_is_that_of_the_line_through_the_ratios() {
        assert!((slope(&VecDeque::from([0.9, 0.8, 0.7, 0.6, 0.5])) + 0.1).abs() < 1e-12);
        assert_eq!(slope(&VecDeque::from([0.5; 5])), 0.0);
    }
}
