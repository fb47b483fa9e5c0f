//! `memtis`: MEMTIS. A histogram of sampled accesses sets the hot threshold; kmigrated moves hot pages in and cold ones out.
//!
//! In: hardware samples, births, outcomes. Out: promotions from the slow active lists, demotions from the tails of the fast
//! inactive lists, splits of skewed huge pages. Must not: promote a page that was never sampled hot, or reclaim room
//! for a promotion in the same breath; the demoter does that at its own pace.
//!
//! Source: MEMTIS (SOSP 2023), from its public code as the specification (section 6) tells it; all values below are [C].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | bins | 16, log2 | a sample adds 512 to a base page and 1 to a huge page |
//! | `adapt_samples` | 100,000 | samples between two adaptations of the thresholds |
//! | `cool_samples` | 2,000,000 | samples between two coolings (all counts halved) |
//! | `cool_growth` | 10 GiB | growth of the footprint that cools too |
//! | `period` | 500 ms | kmigrated's wake; the demoter is also woken by allocations that find fast memory short |
//! | warm | sum < 75 % of the capacity | then the bin below the hot ones is warm, and not demoted |
//! | watermarks | 2 % (50 to 1000 MiB), 3 % (100 to 1500 MiB) | free fast memory where demotion starts, and where it ends |
//! | `quota` | 30 permil of a processor | what the sampler may use, checked every 15 s |
//! | sampling periods | 199 to 19997 loads, 100,007 (100,003 to 1,500,003) stores | stepped by the quota |
//! | latencies | 80 ns, 270 ns (CXL 170) | weigh how many huge pages to split |
//!
//! Threshold: bins are added up from the hottest while they fit the limit less the promotion watermark. The hot threshold rises
//! at once; it falls by one bin at the first adaptation after a cooling, and freely only after a split.
//!
//! What differs from the code: cooling shifts the histogram and halves counts lazily, where the code walks all pages and
//! counts again; lists are put in order at the next wake, as there, by one walk in address order. The code forgets to enter a
//! new page's first bin; here pages are conserved. Sub-pages of a split page that hold only zeroes are not freed.
//! `sampling=one-core` is the published artifact started with a process id: it opens the counters of one core only, so
//! that of `cores` equal cores one is seen, and each sample then stands for `cores` times as many accesses. `sampling=main-thread`
//! is what these counters see of a program of several threads: `perf_event_open` with a pid and without `inherit`
//! (`htmm_sampler.c`) counts the thread of that id, which is the first, and none that it starts.
//!
//! Memory beside the eight common bytes: 4 for the count, 10 for the lists, 0.02 for blocks. The kernel's own is 8.

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, MoveRequests, Outcome, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Movers, Needs, Policy, PolicyReport, Profile, Remap,
    SamplePeriods, Schedule, Setup,
};
use terrace_core::units::{BLOCK_PAGES, BlockId, PageId, TierId, Time};

use crate::parts::bins::{BINS, fine_bin, fit, visible_bin};
use crate::parts::heat::Heat;
use crate::parts::huge_split::{SPLITS_A_PASS, SplitDecision};
use crate::parts::lru::{Kind, Lru, Place};
use crate::parts::period_control::PeriodControl;
use crate::parts::support::{self, MemtisMarks};
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "memtis",
    summary: "MEMTIS: sampled histogram, hot threshold by capacity, warm bin, huge pages split by skew",
    source: "MEMTIS, SOSP 2023",
    settings: &[
        SettingInfo { key: "split", default: "on", meaning: "split skewed huge pages (off: the artifact's -NS)" },
        SettingInfo { key: "warm", default: "on", meaning: "keep a warm bin (off: the artifact's -NW)" },
        SettingInfo {
            key: "adapt_samples",
            default: "100000",
            meaning: "samples between adaptations of the thresholds",
        },
        SettingInfo { key: "cool_samples", default: "2000000", meaning: "samples between coolings; 0 never cools" },
        SettingInfo { key: "cool_growth", default: "10GiB", meaning: "growth of the footprint that cools too" },
        SettingInfo { key: "period", default: "500ms", meaning: "time between wakes of the migration thread" },
        SettingInfo {
            key: "quota",
            default: "30",
            meaning: "permil of a processor for the sampler; 0 holds it to nothing",
        },
        SettingInfo {
            key: "sampling",
            default: "all-cores",
            meaning: "all-cores (repaired), main-thread (as published: the first thread alone; simulator only), or one-core",
        },
        SettingInfo { key: "cores", default: "20", meaning: "cores of which one-core sampling sees one" },
        SettingInfo {
            key: "grace",
            default: "on",
            meaning: "a base page stays active one bin below the threshold (off: a departure, to see what it does)",
        },
        SettingInfo { key: "fast_ns", default: "80", meaning: "latency of fast memory in the split formula" },
        SettingInfo {
            key: "slow_ns",
            default: "270",
            meaning: "latency of slow memory in the split formula; 170 for CXL",
        },
        support::RESERVE,
    ],
    build: |settings| Ok(Box::new(Memtis::new(settings)?)),
};

/// Share of the capacity below which the hot set is under-filled, so that a bin is kept warm.
const WARM_BELOW: f64 = 0.75;
/// Direct wakes come no closer than this part of the period: the thread is busy with the one before.
pub(crate) const DIRECT_GAP: u32 = 50;
/// Policy mark in `heat`: the page's own count was hot by the threshold of base pages when last sampled.
const MAY_BE_HOT: u16 = 1;

/// See the module's header.
pub struct Memtis {
    scale: u32,
    reserve: Option<f64>,
    full: Amounts,
    split: bool,
    warm: bool,
    amounts: Amounts,
    period: Duration,
    cores_unseen: u32,
    main_thread: bool,
    grace: bool,
    control: PeriodControl,
    heat: Heat,
    lru: Lru,
    splitting: SplitDecision,
    to_split: Vec<BlockId>,
    was_split: BTreeSet<BlockId>,
    hot: usize,
    warm_bin: usize,
    base_hot: usize,
    samples: u64,
    coolings: u64,
    pages_at_cooling: u64,
    adapt_is_first: bool,
    split_happened: bool,
    lists_due: bool,
    /// The fast limit as last seen, in pages; `None` before the first plan.
    limit: Option<u64>,
    next_pass: Time,
    direct: bool,
    last_direct: Option<Time>,
    unfinished: bool,
    warm_dropped: u64,
}

/// Amounts that shrink with the machine: full-size as set, and as they are here.
#[derive(Clone, Copy, Debug)]
struct Amounts {
    adapt_samples: u64,
    cool_samples: u64,
    cool_growth: u64,
}

impl Memtis {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Memtis, SettingsError> {
        let split = settings.switch("split")?;
        let adapt = settings.number("adapt_samples", 1..=u64::from(u32::MAX))?;
        let cool = settings.number("cool_samples", 0..=u64::from(u32::MAX))?;
        let full = Amounts {
            adapt_samples: adapt,
            cool_samples: if cool == 0 { u64::MAX } else { cool },
            cool_growth: support::size(settings, "cool_growth")?.pages(),
        };
        let seen = [("all-cores", (false, false)), ("one-core", (true, false)), ("main-thread", (false, true))];
        let (one_core, main_thread) = settings.choice("sampling", &seen)?;
        let cores = settings.number("cores", 1..=4096)?;
        let fast_ns = settings.number("fast_ns", 1.0..=1e6)?;
        let slow_ns = settings.number("slow_ns", 1.0..=1e6)?;
        let quota = settings.number("quota", 0..=1000)?;
        Ok(Memtis {
            scale: 1,
            reserve: support::reserve(settings)?,
            full,
            split,
            warm: settings.switch("warm")?,
            amounts: full,
            period: settings.duration("period")?,
            main_thread,
            grace: settings.switch("grace")?,
            cores_unseen: if one_core { cores } else { 1 },
            control: PeriodControl::new(quota, Duration::from_secs(15)),
            heat: Heat::new(split),
            lru: Lru::default(),
            splitting: SplitDecision::new(split, fast_ns, slow_ns, full.cool_samples.min(1 << 40)),
            to_split: Vec::new(),
            was_split: BTreeSet::new(),
            hot: 1,
            warm_bin: 1,
            base_hot: 1,
            samples: 0,
            coolings: 0,
            pages_at_cooling: 0,
            adapt_is_first: false,
            split_happened: false,
            lists_due: false,
            limit: None,
            next_pass: Time::ZERO,
            direct: false,
            last_direct: None,
            unfinished: false,
            warm_dropped: 0,
        })
    }

    /// The hot threshold, the lowest warm bin, and the threshold of base pages.
    pub fn thresholds(&self) -> (usize, usize, usize) {
        (self.hot, self.warm_bin, self.base_hot)
    }

    fn marks(&self, limit: u64) -> MemtisMarks {
        MemtisMarks::new(limit, self.scale, self.reserve)
    }

    fn bin(&self, unit: PageId, pages: &Pages) -> usize {
        self.heat.spot(unit, pages).map_or(0, |spot| visible_bin(spot.fine))
    }

    fn refresh(&mut self, page: PageId, pages: &mut Pages) {
        self.heat.refresh(page, pages);
        self.lru.refresh(page, pages);
        self.drain_changes(pages);
    }

    /// New units have no mark from the previous owner of the id.
    fn drain_changes(&mut self, pages: &mut Pages) {
        let changes = self.heat.take_changes();
        for change in changes.iter().filter(|change| change.before.is_none()) {
            pages[change.unit].heat = 0;
        }
        self.heat.give_back(changes);
    }

    fn on_sample(&mut self, page: PageId, pages: &mut Pages) {
        self.lru.refresh(page, pages);
        let Some(hit) = self.heat.sample(page, pages) else { return };
        self.drain_changes(pages);
        self.lru.set_active_if_changed(hit.unit, visible_bin(hit.after.fine) >= self.hot);
        let marked = pages[page].heat & MAY_BE_HOT != 0;
        self.splitting.sample(!hit.after.slow, marked);
        let now_hot = visible_bin(fine_bin(self.heat.value(page, pages))) >= self.base_hot;
        pages[page].heat = if now_hot { MAY_BE_HOT } else { 0 };
        self.samples += 1;
        if self.samples.is_multiple_of(self.amounts.cool_samples) {
            self.cool(pages);
        } else if self.samples.is_multiple_of(self.amounts.adapt_samples) {
            self.adapt();
        }
    }

    fn cool(&mut self, pages: &mut Pages) {
        self.coolings += 1;
        self.pages_at_cooling = self.heat.tracked_pages();
        self.heat.cool();
        self.base_hot = self.base_hot.saturating_sub(1).max(1);
        self.adapt_is_first = true;
        self.lists_due = true;
        let fast = self.limit.unwrap_or(u64::MAX >> 1);
        let chosen = self.splitting.decide(&self.heat, pages, self.base_hot, fast, self.coolings);
        if !chosen.is_empty() {
            self.to_split = chosen;
        }
    }

    fn adapt(&mut self) {
        let Some(limit) = self.limit else { return };
        let capacity = limit.saturating_sub(self.marks(limit).promote);
        let found = fit(&self.heat.histogram(), capacity);
        let bin = found.lowest.clamp(1, BINS - 1);
        let base = fit(&self.heat.base_histogram(), capacity).lowest.clamp(1, BINS - 1);
        self.base_hot = base;
        let first = std::mem::take(&mut self.adapt_is_first);
        if bin > self.hot {
            self.hot = bin;
        } else if bin < self.hot {
            if first {
                self.hot -= 1;
                self.lists_due = true;
            } else if self.split && std::mem::take(&mut self.split_happened) {
                self.hot = bin;
                self.lists_due = true;
            }
        }
        let under_filled = (found.pages as f64) < WARM_BELOW * capacity as f64;
        self.warm_bin = if self.warm && under_filled { self.hot - 1 } else { self.hot };
        self.heat.set_newborn((1 << (self.hot as u32 + 1)) + 1);
    }

    /// Puts every unit on the list that its bin calls for; after a cooling active base pages have one bin's grace.
    fn order_lists(&mut self, pages: &Pages) {
        let (heat, lru, hot, graced) = (&self.heat, &mut self.lru, self.hot, self.grace);
        support::each_unit(pages, |unit, size, _| {
            let bin = heat.spot(unit, pages).map_or(0, |spot| visible_bin(spot.fine));
            let grace = usize::from(graced && size == 1 && lru.is_active(unit));
            lru.set_active_if_changed(unit, bin + grace >= hot);
        });
    }

    fn request_splits(&mut self, pages: &Pages, requests: &mut MoveRequests) {
        let count = self.to_split.len().min(SPLITS_A_PASS);
        for block in self.to_split.drain(..count) {
            if pages.block(block).is_some_and(|info| info.huge) {
                requests.push(block.first_page(), Action::Split, Reason::PageSize);
            }
        }
    }

    /// Blocks that were split and have become hot all over may be huge again, if fast memory has room for them.
    fn request_collapses(&mut self, pages: &Pages, capacity: u64, requests: &mut MoveRequests) {
        let ready = |block: &BlockId| {
            pages.block(*block).is_some_and(|info| !info.huge)
                && pages.block_pages(*block).iter().all(|page| page.tier().is_some() && page.heat & MAY_BE_HOT != 0)
        };
        let mut left = capacity;
        let chosen: Vec<BlockId> = self
            .was_split
            .iter()
            .copied()
            .filter(ready)
            .take_while(|_| {
                let fits = left >= u64::from(BLOCK_PAGES);
                left = left.saturating_sub(u64::from(BLOCK_PAGES));
                fits
            })
            .collect();
        for block in chosen {
            self.was_split.remove(&block);
            requests.push(block.first_page(), Action::Collapse, Reason::PageSize);
        }
    }

    /// The demoter: what it frees, in 4 KiB pages.
    fn demote(
        &mut self,
        capacity: &CapacityView<'_>,
        hot_slow: u64,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) -> u64 {
        let (limit, used) = (support::fast_limit(capacity), capacity.tiers[0].used);
        let marks = self.marks(limit);
        let above = |free: u64| (used + free).saturating_sub(limit);
        let direct = std::mem::take(&mut self.direct) && above(marks.promote) > 0;
        let need = if direct { above(marks.promote) + marks.direct_extra } else { marks.need(limit, used, hot_slow) };
        if need == 0 {
            return 0;
        }
        let place = |kind, active| Place { tier: TierId::FAST, kind, active };
        let mut order = vec![place(Kind::File, false), place(Kind::File, true), place(Kind::Anonymous, false)];
        if direct && need > order.iter().map(|&place| self.lru.size(place)).sum() {
            order.push(place(Kind::Anonymous, true));
        }
        let mut freed = 0;
        for place in order {
            for unit in self.lru.tail_to_head(place) {
                if freed >= need || requests.left() == 0 {
                    break;
                }
                let warm = place.kind == Kind::Anonymous && !place.active && self.bin(unit, pages) >= self.warm_bin;
                if warm || pages[unit].moving() || pages[unit].pinned() {
                    continue;
                }
                let hot = self.bin(unit, pages) > 0;
                requests.move_to(unit, TierId::FAST.below(), if hot { Reason::MakeRoom } else { Reason::Cold });
                freed += self.lru.weight(unit);
            }
        }
        if freed < hot_slow.min(need) && self.warm_bin < self.hot && requests.left() > 0 {
            self.warm_bin = self.hot;
            self.warm_dropped += 1;
        }
        freed
    }

    fn promote(&mut self, capacity: &CapacityView<'_>, freed: u64, pages: &Pages, requests: &mut MoveRequests) {
        let limit = support::fast_limit(capacity);
        let marks = self.marks(limit);
        let mut left = (limit + freed).saturating_sub(marks.promote + capacity.tiers[0].used);
        for tier in 1..capacity.tiers.len() as u8 {
            for unit in self.lru.tail_to_head(Place::active(TierId(tier))) {
                let weight = self.lru.weight(unit);
                if left < weight || requests.left() == 0 {
                    return;
                }
                if pages[unit].moving() || pages[unit].pinned() {
                    continue;
                }
                requests.move_to(unit, TierId::FAST, Reason::Hot);
                left -= weight;
            }
        }
    }

    /// An allocation that finds fast memory short wakes the demoter.
    fn on_born(&mut self, now: Time, tier: TierId, pages: &Pages) {
        let Some(limit) = self.limit else { return };
        let short = pages.used_in_all(TierId::FAST) + self.marks(limit).demote >= limit;
        if tier > TierId::FAST || short {
            self.direct = true;
            let earliest = self.last_direct.map_or(now, |last| (last + self.period / DIRECT_GAP).max(now));
            self.next_pass = self.next_pass.min(earliest);
        }
    }
}

impl Memtis {
    fn set_scale(&mut self, factor: u32) {
        let scaled = |full| support::scaled_count(full, factor);
        self.scale = factor;
        self.amounts = Amounts {
            adapt_samples: scaled(self.full.adapt_samples),
            cool_samples: scaled(self.full.cool_samples),
            cool_growth: scaled(self.full.cool_growth),
        };
        self.splitting.set_cool_samples(self.amounts.cool_samples.min(1 << 40));
    }

    fn set_folded(&mut self, parts: u32) {
        self.heat.set_folded(parts);
        let samples = |full| support::scaled_samples(full, self.scale, parts);
        self.amounts.adapt_samples = samples(self.full.adapt_samples);
        self.amounts.cool_samples = samples(self.full.cool_samples);
        self.splitting.set_cool_samples(self.amounts.cool_samples.min(1 << 40));
    }

    fn outcome(&mut self, done: &[Outcome], pages: &mut Pages) {
        for outcome in done {
            if pages.block(outcome.item.page.block()).is_none() {
                continue;
            }
            for offset in 0..outcome.item.pages {
                self.refresh(outcome.item.page.plus(offset), pages);
            }
            if outcome.item.action == Action::Split && outcome.done > 0 {
                self.split_happened = true;
                let block = outcome.item.page.block();
                self.was_split.insert(block);
                for page in (0..BLOCK_PAGES).map(|offset| block.first_page().plus(offset)) {
                    self.refresh(page, pages);
                    self.lru.set_active_if_changed(page, self.bin(page, pages) + 1 >= self.hot);
                }
            }
        }
    }
}

impl Policy for Memtis {
    /// It works in the kernel, which knows each page from its fault on.
    fn profile(&self) -> Profile {
        Profile::new(
            INFO.name,
            Needs { samples: true, life_cycle: true, first_thread: self.main_thread, ..Needs::default() },
        )
        .above(Kernel { movers: Movers::EachTier, ..Kernel::default() })
        .splitting(self.split)
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.set_scale(factor);
        }
        if let Some(parts) = setup.sample_parts {
            self.set_folded(parts);
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => {
                self.heat.fit(pages);
                self.lru.fit(pages);
            }
            Remap::Unmapping(space, range) => {
                support::each_page(pages, space, &range, |page| {
                    self.heat.forget(page, pages);
                    self.lru.forget(page);
                    self.was_split.remove(&page.block());
                });
                let changes = self.heat.take_changes();
                self.heat.give_back(changes);
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
                        Observation::Allocated { page, tier } => {
                            self.refresh(page, pages);
                            self.on_born(now, tier, pages);
                        }
                        _ => self.refresh(event.page(), pages),
                    }
                }
            }
        }
        if self.heat.tracked_pages() >= self.pages_at_cooling.saturating_add(self.amounts.cool_growth) {
            self.cool(pages);
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::Moved(done) => self.outcome(done, pages),
            Feedback::SamplerTime(spent) => self.control.spend(now, spent),
            _ => {}
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let limit = support::fast_limit(capacity);
        self.limit = Some(limit);
        if capacity.tiers.len() < 2 || (now < self.next_pass && !self.unfinished) {
            return;
        }
        if self.direct {
            self.last_direct = Some(now);
        }
        self.next_pass = now + self.period;
        self.request_splits(pages, requests);
        if std::mem::take(&mut self.lists_due) {
            self.order_lists(pages);
        }
        let hot_slow = (1..capacity.tiers.len() as u8).map(|tier| self.lru.size(Place::active(TierId(tier)))).sum();
        let freed = self.demote(capacity, hot_slow, pages, requests);
        self.promote(capacity, freed, pages, requests);
        self.request_collapses(pages, limit.saturating_sub(capacity.tiers[0].used), requests);
        self.unfinished = requests.left() == 0;
    }

    fn place(&mut self, _now: Time, _page: PageId, capacity: &CapacityView<'_>) -> TierId {
        if capacity.tiers[0].used < support::fast_limit(capacity) {
            return TierId::FAST;
        }
        self.direct = true;
        support::first_below(capacity)
    }

    fn schedule(&self) -> Schedule {
        let SamplePeriods { loads, stores } = self.control.periods();
        let unseen = |period: u32| period.saturating_mul(self.cores_unseen);
        let sampling = SamplePeriods { loads: unseen(loads), stores: unseen(stores) };
        Schedule { cadence: Cadence { sampling: Some(sampling), ..Cadence::default() }, wake_at: Some(self.next_pass) }
    }

    fn report(&self) -> PolicyReport {
        let sizes = self.heat.histogram();
        let hot: u64 = sizes[self.hot..].iter().sum();
        let warm: u64 = sizes[self.warm_bin..self.hot].iter().sum();
        let mut metrics = vec![
            Metric { name: "hot_threshold_bin", value: self.hot as f64 },
            Metric { name: "warm_threshold_bin", value: self.warm_bin as f64 },
            Metric { name: "base_page_threshold_bin", value: self.base_hot as f64 },
            Metric { name: "hot_pages", value: hot as f64 },
            Metric { name: "warm_pages", value: warm as f64 },
            Metric { name: "samples", value: self.samples as f64 },
            Metric { name: "coolings", value: self.coolings as f64 },
            Metric { name: "warm_bin_dropped", value: self.warm_dropped as f64 },
            Metric { name: "splits_pending", value: self.to_split.len() as f64 },
            Metric { name: "load_period", value: f64::from(self.control.periods().loads) },
            Metric { name: "metadata_bytes_per_page", value: METADATA_BYTES },
        ];
        metrics.extend(crate::parts::bins::metrics(&self.heat.histogram()));
        PolicyReport { memory_bytes: self.heat.memory_bytes() + self.lru.memory_bytes(), metrics }
    }
}

/// Common state, count, lists and blocks.
const METADATA_BYTES: f64 = 8.0 + crate::parts::heat::BYTES_PER_PAGE + crate::parts::lru::BYTES_PER_PAGE;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW};

    /// A machine of 1000 fast pages, on which the clamps of the watermarks do not bite, an adaptation every 100 samples and
    /// a cooling every 2000.
    const SMALL: [(&str, &str); 3] =
        [("adapt_samples", "1280000"), ("cool_samples", "25600000"), ("cool_growth", "1TiB")];
    const PERIOD: Duration = Duration::from_millis(500);

    fn rig(extra: &[(&str, &str)]) -> Rig {
        let pairs: Vec<(&str, &str)> = SMALL.iter().chain(extra).copied().collect();
        let mut policy = crate::build("memtis", Settings::from_pairs(pairs)).unwrap();
        policy.configure(crate::rig::scaled(12_800));
        let mut rig = Rig::new(policy, &[1000, 100_000]);
        rig.map(4096);
        rig
    }

    #[test]
    fn hot_slow_pages_come_in_and_leave_the_promotion_watermark_free() {
        let mut rig = rig(&[]);
        rig.born(0..900, TierId::FAST);
        rig.born(900..2000, SLOW);
        rig.sample((1000..1100).chain(1000..1100));
        rig.pass(PERIOD);
        assert!((1000..1060).all(|vpn| rig.tier(vpn) == Some(TierId::FAST)), "there is room for at least 60");
        assert!(rig.fast_free() >= 30, "3 % stay free, not {}", rig.fast_free());
    }

    #[test]
    fn the_threshold_rises_at_once_and_falls_by_one_bin_a_cooling() {
        // 300 pages with one sample each fit; then 2,000 with three each do not.
        let mut rig = rig(&[("split", "off")]);
        rig.born(0..300, TierId::FAST);
        rig.born(300..2400, SLOW);
        rig.sample(0..300);
        rig.pass(PERIOD);
        let low = rig.metric("hot_threshold_bin");
        for _ in 0..3 {
            rig.sample(300..2300);
        }
        rig.pass(PERIOD);
        let high = rig.metric("hot_threshold_bin");
        assert!(high > low, "{low} {high}");
        let coolings = rig.metric("coolings");
        // Now next to nothing is used: the histogram empties, and the threshold follows one bin at a time.
        for _ in 0..2000 {
            rig.sample([5]);
        }
        let cooled = rig.metric("coolings") - coolings;
        assert!(
            cooled >= 1.0 && rig.metric("hot_threshold_bin") >= high - cooled,
            "one bin for each of {cooled} coolings"
        );
    }

    #[test]
    fn a_page_that_is_only_warm_is_not_demoted() {
        let check = |warm: &str, warm_bins: f64| {
            let mut rig = rig(&[("warm", warm), ("cool_samples", "60480000")]);
            rig.born(0..985, TierId::FAST);
            rig.born(985..1185, SLOW);
            // 20 very hot pages and 1,080 of middling heat, which do not fit as a whole; 85 used once.
            rig.sample((0..20).flat_map(|vpn| [vpn; 16]));
            rig.sample((20..900).chain(985..1185).flat_map(|vpn| [vpn; 4]));
            rig.sample(900..985);
            assert_eq!(rig.metric("hot_threshold_bin"), 12.0);
            assert_eq!(rig.metric("hot_threshold_bin") - rig.metric("warm_threshold_bin"), warm_bins);
            rig.pass(PERIOD);
            let middling = (20..900).filter(|&vpn| rig.tier(vpn) == Some(SLOW)).count();
            assert!(rig.demotions > 0, "985 of 1000 are over the demotion watermark");
            assert_eq!(middling, 0, "the pages used once go first");
        };
        check("on", 1.0);
        check("off", 0.0);
    }

    #[test]
    fn an_allocation_that_finds_fast_memory_full_wakes_the_demoter_at_once() {
        let mut rig = rig(&[("cool_growth", "10GiB")]);
        rig.touch_first(0..1000);
        rig.pass(PERIOD * 20);
        rig.moves.clear();
        let before = rig.now;
        rig.touch_first(1000..1400);
        rig.pass(Duration::from_millis(20));
        assert!(rig.now.since(before) < PERIOD);
        let spilled = (1000..1400).filter(|&vpn| rig.tier(vpn) == Some(SLOW)).count();
        assert!(spilled < 400, "some of the new pages found room, or the demoter never ran: {spilled} spilled");
    }

    #[test]
    fn at_the_lowest_threshold_no_active_page_is_a_victim_unless_its_grace_ends() {
        let demoted = |grace: &str| {
            let mut rig = rig(&[("split", "off"), ("grace", grace)]);
            rig.born(0..900, TierId::FAST);
            // Next to nothing is used for many coolings: the threshold falls to bin 1.
            let quiet = |rig: &mut Rig| {
                for _ in 0..60 {
                    rig.sample([5; 1000]);
                    rig.pass(PERIOD);
                }
                assert_eq!(rig.metric("hot_threshold_bin"), 1.0);
            };
            quiet(&mut rig);
            // All are used, which makes them active, and then no more, until their counts are nothing.
            rig.sample(0..900);
            rig.pass(PERIOD);
            quiet(&mut rig);
            rig.born(1000..1200, SLOW);
            rig.sample((1000..1200).flat_map(|vpn| [vpn; 2]));
            rig.pass(PERIOD * 4);
            rig.demotions
        };
        assert_eq!(demoted("on"), 0);
        assert!(demoted("off") > 0);
    }

    #[test]
    fn one_core_sampling_sees_one_of_the_cores() {
        let check = |sampling: &str, loads: u32| {
            let rig = rig(&[("sampling", sampling), ("cores", "20")]);
            assert_eq!(rig.cadence.sampling.unwrap().loads, loads);
        };
        check("all-cores", 199);
        check("main-thread", 199);
        check("one-core", 3980);
    }

    #[test]
    fn a_skewed_huge_page_is_split_and_its_hot_page_alone_comes_in() {
        let mut rig = rig(&[]);
        rig.born_huge(0, TierId::FAST);
        rig.born_huge(1, SLOW);
        rig.born_huge(2, SLOW);
        // Every sample goes to two pages of slow huge pages: base pages would have hit fast memory.
        for _ in 0..4000 {
            rig.sample([512 + 7, 1024 + 9]);
        }
        rig.pass(PERIOD);
        rig.pass(PERIOD);
        let splits = rig.moves.iter().filter(|item| item.action == Action::Split).count();
        assert!(splits >= 1, "no split");
        assert_eq!(rig.engine.ledger().splits(), splits as u64);
    }
}
