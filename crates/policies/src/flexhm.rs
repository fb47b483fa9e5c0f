//! `flexhm`: FlexHM's user-space manager. Counts references over r scans, then exchanges hot slow pages for cold fast ones.
//!
//! In: walks of accessed bits, all blocks at each. Out: exchanges of equal size, coldest and hottest first. Must not:
//! carry counts from one epoch to the next (ambiguity H4 of the specification: the paper resets them, and so do we).
//!
//! Source: FlexHM (ACM TACO 2022), sections 5.2, 5.3, 6 and 7.5. An epoch of length e has three stages. Collection: r
//! scans spaced i; each adds the accessed bit to the page's count, which ends between 0 and r. Analysis: the counts are sorted;
//! the hottest pages that fit the fast memory should be there. Action: slow pages above that line and fast pages below it are
//! exchanged in equal numbers; the rest of the epoch is sleep.
//!
//! | constant | aggressive | conservative | source |
//! |---|---|---|---|
//! | `r`, scans an epoch | 10 (6 with huge pages) | 20 | section 6 |
//! | `i`, interval | 100 ms | 100 ms | section 6 |
//! | `e`, epoch | 10 s | 20 s (10 s with huge pages) | section 6 |
//! | share of the identified pages moved | all | at most 1/2 | section 6 |
//! | `max_migration_size` | none | none | a share of the identified pages (5.3), of the fast memory (7.5), or bytes (fig. 13) |
//! | `kernel_demotion` | on | on | section 5.1: the kernel demotes when fast memory is full, as kswapd swaps |
//!
//! What the paper leaves open: where the line lies. The public manager fills a quota of the fast share from the highest count
//! downward, and so does this file. With no limit set there is no quota; then pages never referenced in the epoch are cold.
//! Where more pages were found used at every scan than fast memory holds, the line is at r: those that are slow change places
//! with fast pages of a lower count. Equal counts are never exchanged: that would only move bytes. `anti_thrash` demands a larger gap (public manager: 2).

use std::time::Duration;

use terrace_core::observation::Observations;
use terrace_core::pages::{Page, Pages};
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Needs, Policy, PolicyReport, Profile, ScanReport, Schedule, Setup,
};
use terrace_core::units::{BLOCK_PAGES, BlockId, Bytes, PageId, Quantity, TierId, Time};

use crate::parts::ranking::Tally;
use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "flexhm",
    summary: "FlexHM: r scans an epoch, then hot slow pages and cold fast pages change places",
    source: "FlexHM, ACM TACO 2022",
    settings: &[
        SettingInfo { key: "plan", default: "aggressive", meaning: "aggressive or conservative" },
        SettingInfo {
            key: "r",
            default: "auto",
            meaning: "scans an epoch; auto is 10, 6 with huge pages, and 20 when conservative",
        },
        SettingInfo { key: "i", default: "100ms", meaning: "interval between the scans of an epoch" },
        SettingInfo {
            key: "e",
            default: "auto",
            meaning: "length of an epoch; auto is 10s, and 20s when conservative with 4 KiB pages",
        },
        SettingInfo {
            key: "max_migration_size",
            default: "100%",
            meaning: "most that moves each way an epoch: 50% of what was identified, 1/4 of the fast memory, or 2GiB",
        },
        SettingInfo {
            key: "anti_thrash",
            default: "1",
            meaning: "least difference of counts between what comes and what goes",
        },
        SettingInfo {
            key: "auto",
            default: "off",
            meaning: "adapt i and e to walk time and to where the used pages lie (the paper's sys-refs)",
        },
        SettingInfo {
            key: "kernel_demotion",
            default: "on",
            meaning: "the kernel beneath demotes by its lists when fast memory is full (simulator)",
        },
    ],
    build: |settings| Ok(Box::new(FlexHm::new(settings)?)),
};

/// Exchanges are interleaved in pieces of 4 MiB, demotions first, as the public manager does.
const PIECE_PAGES: usize = 1024;
const R_MOST: u16 = 255;
/// Section 6: scans an epoch and its length in seconds, with pages of 4 KiB and with huge pages; aggressive, then conservative.
const BY_PLAN: [[(u16, u64); 2]; 2] = [[(10, 10), (6, 10)], [(20, 20), (20, 10)]];

/// The three meanings the paper gives to `max_migration_size`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MigrationCap {
    OfIdentified(f64),
    OfFastMemory(f64),
    Size(Bytes),
}

impl MigrationCap {
    fn parse(text: &str) -> Option<MigrationCap> {
        if let Some((above, below)) = text.split_once('/') {
            let share = above.trim().parse::<f64>().ok()? / below.trim().parse::<f64>().ok()?;
            return (share > 0.0 && share <= 1.0).then_some(MigrationCap::OfFastMemory(share));
        }
        match text.parse().ok()? {
            Quantity::Share(share) => (share > 0.0).then_some(MigrationCap::OfIdentified(share)),
            Quantity::Bytes(size) => (size.pages() > 0).then_some(MigrationCap::Size(size)),
        }
    }

    /// Pages on a machine `scale` times smaller than the one that a size is stated for.
    fn pages(self, identified: u64, fast: u64, scale: u32) -> u64 {
        match self {
            MigrationCap::OfIdentified(share) => (identified as f64 * share).floor() as u64,
            MigrationCap::OfFastMemory(share) => (fast as f64 * share).floor() as u64,
            MigrationCap::Size(size) => support::scaled_pages(size, scale),
        }
    }
}

/// See the module's header. A page's `heat` is its count of the running epoch, its `stamp` the count of the last one.
pub struct FlexHm {
    r: u16,
    interval: Duration,
    epoch: Duration,
    /// `r` and `e` with pages of 4 KiB and with huge pages.
    by_page_size: [(u16, Duration); 2],
    /// Small pages of a scaled machine that stand for huge ones.
    folded: bool,
    share: f64,
    cap: MigrationCap,
    scale: u32,
    anti_thrash: u16,
    auto: Option<AutoTune>,
    kernel_demotion: bool,
    scans_done: u16,
    epoch_began: Option<Time>,
    scan_at: Time,
    exchange: Exchange,
    analysis_due: bool,
}

/// What is still to be moved in this epoch, each way, and the count that divides hot from cold.
#[derive(Clone, Copy, Debug, Default)]
struct Exchange {
    line: usize,
    out: u64,
    into: u64,
}

impl FlexHm {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<FlexHm, SettingsError> {
        let conservative = settings.choice("plan", &[("aggressive", false), ("conservative", true)])?;
        let interval = settings.duration("i")?;
        let r = settings.take("r", "auto or a number from 1 to 255", |text| match text {
            "auto" => Some(None),
            number => number.parse::<u16>().ok().filter(|r| (1..=R_MOST).contains(r)).map(Some),
        })?;
        let epoch = settings.take("e", "auto or a time such as 10s", |text| match text {
            "auto" => Some(None),
            time => terrace_core::units::parse_duration(time).ok().filter(|time| !time.is_zero()).map(Some),
        })?;
        let by_page_size = BY_PLAN[usize::from(conservative)]
            .map(|(its_r, its_epoch)| (r.unwrap_or(its_r), epoch.unwrap_or(Duration::from_secs(its_epoch))));
        let (r, epoch) = by_page_size[0];
        Ok(FlexHm {
            r,
            by_page_size,
            folded: false,
            interval,
            epoch,
            share: if conservative { 0.5 } else { 1.0 },
            cap: settings.take(
                "max_migration_size",
                "a share of the identified pages (50%), of the fast memory (1/4), or a size (2GiB)",
                MigrationCap::parse,
            )?,
            scale: 1,
            anti_thrash: settings.number("anti_thrash", 1..=R_MOST)?,
            kernel_demotion: settings.switch("kernel_demotion")?,
            auto: settings.switch("auto")?.then(|| AutoTune::new(interval, epoch)),
            scans_done: 0,
            epoch_began: None,
            scan_at: Time::ZERO,
            exchange: Exchange::default(),
            analysis_due: false,
        })
    }

    /// The analysis stage: what changes places in this epoch.
    fn analyse(&self, capacity: &CapacityView<'_>, pages: &Pages) -> Exchange {
        let (fast, slow) = (self.counts(pages, false), self.counts(pages, true));
        let line = match capacity.fast_limit {
            Some(limit) => line(&fast, &slow, limit.min(capacity.tiers[0].capacity)),
            None => 1,
        };
        let cold: u64 = fast.as_slice()[..line].iter().sum();
        let hot: u64 = slow.as_slice()[line.min(slow.as_slice().len())..].iter().sum();
        let pairs = pairs(&fast.as_slice()[..line], slow.as_slice(), line, usize::from(self.anti_thrash));
        let limit = support::fast_limit(capacity);
        let bound = |identified: u64| {
            let share = (identified as f64 * self.share).floor() as u64;
            share.min(self.cap.pages(identified, limit, self.scale))
        };
        // The ratio has priority over hotness: what is above the limit leaves, room that is left is filled, the rest is exchanged.
        let excess = match capacity.fast_limit {
            Some(_) => capacity.fast_excess(),
            None => cold,
        };
        let shed = excess.min(bound(cold));
        let fill = capacity.fast_room().min(bound(hot));
        let swap = pairs.min(bound(cold) - shed).min(bound(hot) - fill);
        let (out, into) = (shed + swap, fill + swap);
        Exchange { line, out, into }
    }

    /// Managed pages of one side by their count in the epoch that ended.
    fn counts(&self, pages: &Pages, slow: bool) -> Tally {
        let mut tally = Tally::new(usize::from(self.r) + 1);
        for (block, _) in pages.blocks() {
            for page in pages.block_pages(block).iter().filter(|page| is_candidate(page, slow)) {
                tally.add(usize::from(page.stamp.min(self.r)), 1);
            }
        }
        tally
    }

    /// The first `wanted` of one side, best first: lowest counts of the fast side, highest of the slow one.
    fn choose(&self, pages: &Pages, slow: bool, wanted: u64) -> Vec<PageId> {
        let most = usize::from(self.r);
        let rank = |page: &Page| {
            let count = usize::from(page.stamp).min(most);
            match slow {
                true => (count >= self.exchange.line).then_some(most - count),
                false => (count < self.exchange.line).then_some(count),
            }
        };
        let mut tally = Tally::new(most + 1);
        for (block, _) in pages.blocks() {
            let candidates = pages.block_pages(block).iter().filter(|page| is_candidate(page, slow));
            candidates.filter_map(rank).for_each(|rank| tally.add(rank, 1));
        }
        let mut cut = tally.cut(wanted);
        let mut chosen = Vec::new();
        for (block, info) in pages.blocks() {
            let step = if info.huge { BLOCK_PAGES } else { 1 };
            for id in (0..BLOCK_PAGES).step_by(step as usize).map(|offset| block.first_page().plus(offset)) {
                let page = &pages[id];
                if let Some(rank) = rank(page).filter(|_| is_candidate(page, slow))
                    && cut.take(rank, u64::from(step))
                {
                    chosen.push((rank, id));
                }
            }
        }
        // Stable: pages of equal count stay in address order and move in runs.
        chosen.sort_by_key(|(rank, _)| *rank);
        chosen.into_iter().map(|(_, id)| id).collect()
    }
}

fn is_candidate(page: &Page, slow: bool) -> bool {
    page.tier().is_some_and(|tier| (tier > TierId::FAST) == slow) && !page.pinned() && !page.moving()
}

/// The count from which on pages should be fast: the quota is filled from the highest count downward.
fn line(fast: &Tally, slow: &Tally, quota: u64) -> usize {
    let mut sum = 0;
    for count in (0..fast.as_slice().len()).rev() {
        sum += fast.as_slice()[count] + slow.as_slice()[count];
        if sum > quota {
            return (count + 1).min(fast.as_slice().len() - 1);
        }
    }
    0
}

/// How many pages can change places, the hottest against the coldest, with counts at least `gap` apart.
fn pairs(cold: &[u64], slow: &[u64], line: usize, gap: usize) -> u64 {
    let mut cold_left: Vec<u64> = cold.to_vec();
    let mut pairs = 0;
    let mut at = 0;
    for hot in (line..slow.len()).rev() {
        let mut left = slow[hot];
        while left > 0 && at < cold_left.len() && at + gap <= hot {
            let matched = left.min(cold_left[at]);
            left -= matched;
            cold_left[at] -= matched;
            pairs += matched;
            if cold_left[at] == 0 {
                at += 1;
            }
        }
    }
    pairs
}

impl FlexHm {
    /// The constants of the page size that most blocks have.
    fn fit_page_size(&mut self, pages: &Pages) {
        let (huge, all) = pages.blocks().fold((0, 0), |(huge, all), (_, info)| (huge + u32::from(info.huge), all + 1));
        let (r, epoch) = self.by_page_size[usize::from(self.folded || huge * 2 > all)];
        self.r = r;
        match &mut self.auto {
            Some(auto) if auto.first_epoch == epoch => {}
            Some(auto) => (auto.first_epoch, auto.epoch, self.epoch) = (epoch, epoch, epoch),
            None => self.epoch = epoch,
        }
    }

    fn scan_done(&mut self, now: Time, report: &ScanReport, pages: &mut Pages) {
        let began = *self.epoch_began.get_or_insert(now);
        if self.scans_done == 0 {
            // A new collection ends the action stage of the epoch before, finished or not.
            self.exchange = Exchange::default();
            self.fit_page_size(pages);
        }
        self.scans_done += 1;
        if let Some(auto) = &mut self.auto {
            self.interval = auto.after_scan(report);
        }
        if self.scans_done < self.r {
            self.scan_at = now + self.interval;
            return;
        }
        let blocks: Vec<BlockId> = pages.blocks().map(|(block, _)| block).collect();
        for block in blocks {
            for page in pages.run_mut(block.first_page(), BLOCK_PAGES as usize) {
                page.stamp = page.heat;
                page.heat = 0;
            }
        }
        self.scans_done = 0;
        self.epoch_began = None;
        self.analysis_due = true;
        self.scan_at = (began + self.epoch).max(now + self.interval);
    }
}

impl Policy for FlexHm {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { scans: true, ..Needs::default() })
            .above(Kernel { demotion: self.kernel_demotion, ..Kernel::default() })
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor;
        }
        self.folded |= setup.sample_parts.is_some();
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        let Observations::Scan(scan) = seen else { return };
        if scan.window.is_none() {
            return;
        }
        for (page, pte) in pages.run_mut(scan.first, scan.ptes.len()).iter_mut().zip(scan.ptes) {
            page.heat = (page.heat + u16::from(pte.accessed())).min(self.r);
        }
        if let Some(auto) = &mut self.auto {
            for (block, pte) in (scan.first.0..).map(|page| PageId(page).block()).zip(scan.ptes) {
                auto.used(block, usize::from(pte.accessed()));
            }
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::ScanDone(report) => self.scan_done(now, report, pages),
            Feedback::Moved(done) => {
                for outcome in done {
                    let pages = u64::from(outcome.item.pages);
                    let side = match outcome.item.from {
                        TierId::FAST => &mut self.exchange.out,
                        _ => &mut self.exchange.into,
                    };
                    *side = side.saturating_sub(pages);
                }
            }
            _ => {}
        }
    }

    fn plan(&mut self, _now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if capacity.tiers.len() < 2 {
            return;
        }
        if std::mem::take(&mut self.analysis_due) {
            self.exchange = self.analyse(capacity, pages);
            if let Some(auto) = &mut self.auto {
                self.epoch = auto.after_epoch(self.exchange.out + self.exchange.into, capacity.footprint);
            }
        }
        let Exchange { out, into, .. } = self.exchange;
        if out + into == 0 {
            return;
        }
        let half = requests.left() as u64 / 2;
        let leaving = self.choose(pages, false, out.min(half));
        let coming = self.choose(pages, true, into.min(half));
        let (mut leaving, mut coming) = (leaving.chunks(PIECE_PAGES), coming.chunks(PIECE_PAGES));
        loop {
            let (out, into) = (leaving.next(), coming.next());
            if out.is_none() && into.is_none() {
                break;
            }
            for &page in out.unwrap_or_default() {
                let reason = if pages[page].stamp == 0 { Reason::Cold } else { Reason::MakeRoom };
                requests.move_to(page, TierId::FAST.below(), reason);
            }
            for &page in into.unwrap_or_default() {
                requests.move_to(page, TierId::FAST, Reason::Hot);
            }
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule { cadence: Cadence { scan_at: Some(self.scan_at), share: 1.0, ..Cadence::default() }, wake_at: None }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport {
            memory_bytes: self.auto.as_ref().map_or(0, AutoTune::memory_bytes),
            metrics: vec![
                Metric { name: "scan_interval_seconds", value: self.interval.as_secs_f64() },
                Metric { name: "epoch_seconds", value: self.epoch.as_secs_f64() },
                Metric { name: "hot_count_line", value: self.exchange.line as f64 },
                Metric { name: "exchange_out_pages", value: self.exchange.out as f64 },
                Metric { name: "exchange_in_pages", value: self.exchange.into as f64 },
            ],
        }
    }
}

/// The paper's sys-refs (section 5.4): a longer interval where a walk is short and each shows "small difference", a shorter one where it
/// is long and each shows "very different hot page distribution on virtual addresses"; a longer epoch while nothing changes. The
/// difference of two walks is that of the pages used in each 2 MiB of addresses, so that it is not hidden where as many pages become
/// cold in one place as become hot in another. The paper gives no constants; these are ours.
#[derive(Clone, Debug)]
struct AutoTune {
    first_interval: Duration,
    first_epoch: Duration,
    interval: Duration,
    epoch: Duration,
    /// Pages used in each block at this walk and at the one before.
    used: Vec<[u16; 2]>,
    walked_before: bool,
}

const SHORT_WALK: u32 = 20;
const LONG_WALK: u32 = 2;
const LITTLE_CHANGE: f64 = 0.05;
const MUCH_CHANGE: f64 = 0.20;
const STEP: f64 = 1.25;
const REACH: u32 = 8;

impl AutoTune {
    fn new(interval: Duration, epoch: Duration) -> AutoTune {
        AutoTune {
            first_interval: interval,
            first_epoch: epoch,
            interval,
            epoch,
            used: Vec::new(),
            walked_before: false,
        }
    }

    fn memory_bytes(&self) -> usize {
        self.used.capacity() * size_of::<[u16; 2]>()
    }

    /// The walk found `pages` of a block used.
    fn used(&mut self, block: BlockId, pages: usize) {
        let place = block.0 as usize;
        if self.used.len() <= place {
            self.used.resize(place + 1, [0; 2]);
        }
        self.used[place][0] = self.used[place][0].saturating_add(pages as u16);
    }

    fn after_scan(&mut self, round: &ScanReport) -> Duration {
        let differing: u64 = self.used.iter().map(|[now, before]| u64::from(now.abs_diff(*before))).sum();
        self.used.iter_mut().for_each(|counts| *counts = [0, counts[0]]);
        if std::mem::replace(&mut self.walked_before, true) && round.pages > 0 {
            let change = differing as f64 / round.pages as f64;
            if round.walk * SHORT_WALK < self.interval && change < LITTLE_CHANGE {
                self.interval = self.interval.mul_f64(STEP);
            } else if round.walk * LONG_WALK > self.interval && change > MUCH_CHANGE {
                self.interval = self.interval.div_f64(STEP);
            }
            self.interval = self.interval.clamp(self.first_interval / REACH, self.first_interval * REACH);
        }
        self.interval
    }

    fn after_epoch(&mut self, to_move: u64, footprint: u64) -> Duration {
        let idle = (to_move as f64) < 0.001 * footprint as f64;
        self.epoch = if idle { self.epoch.mul_f64(STEP).min(self.first_epoch * REACH) } else { self.first_epoch };
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_core::observation::{PteState, ScanBatch};
    use terrace_core::plan::Action;
    use terrace_core::policy::TierUse;
    use terrace_core::units::{SpaceId, Vpn};

    const SPACE: SpaceId = SpaceId(0);
    const SLOW: TierId = TierId(1);

    /// 512 pages, the first `fast` of them fast; page n is accessed in the first `count(n)` of the epoch's r scans.
    fn after_epoch(
        settings: &[(&str, &str)],
        fast: u32,
        limit: u64,
        count: impl Fn(u32) -> u16,
    ) -> (Vec<u64>, Vec<u64>) {
        let mut policy = FlexHm::new(&mut Settings::from_pairs(settings.iter().copied()).for_policy(&INFO)).unwrap();
        let mut pages = Pages::new();
        let first = pages.map(SPACE, Vpn(0)..Vpn(512))[0].first_page();
        let tier = |page: u32| if page < fast { TierId::FAST } else { SLOW };
        (0..512).for_each(|page| {
            pages.set_tier(first.plus(page), Some(tier(page)));
        });
        let mut now = Time::ZERO;
        for scan in 0..policy.r {
            let ptes: Vec<PteState> =
                (0..512).map(|page| PteState::placed(tier(page)).with_accessed(scan < count(page))).collect();
            let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_millis(100)), cleared: true };
            policy.observe(now, Observations::Scan(scan), &mut pages);
            policy.scan_done(
                now,
                &ScanReport { pages: 512, accessed: 0, walk: Duration::ZERO, share: 1.0 },
                &mut pages,
            );
            now = policy.scan_at;
        }
        let tiers =
            [TierUse { used: u64::from(fast), capacity: 512 }, TierUse { used: 512 - u64::from(fast), capacity: 512 }];
        let capacity = CapacityView {
            tiers: &tiers,
            fast_limit: Some(limit),
            footprint: 512,
            backoff: 1.0,
            least_idle: Duration::ZERO,
            swap: None,
        };
        let mut requests = MoveRequests::with_limit(4096);
        policy.plan(now, &capacity, &mut pages, &mut requests);
        let of = |to: TierId| {
            let moves = requests.as_slice().iter().filter(|request| request.action == Action::MoveTo(to));
            moves.map(|request| u64::from(request.page.offset())).collect::<Vec<_>>()
        };
        (of(SLOW), of(TierId::FAST))
    }

    #[test]
    fn hot_slow_and_cold_fast_pages_change_places_in_equal_numbers() {
        // 256 fast; the hot ones are the last 64, all slow.
        let (out, into) = after_epoch(&[], 256, 256, |page| if page >= 448 { 10 } else { u16::from(page >= 100) });
        assert_eq!(into, (448..512).collect::<Vec<_>>());
        assert_eq!(out, (0..64).collect::<Vec<_>>(), "the coldest first, by address");
    }

    #[test]
    fn a_cap_in_bytes_is_as_much_of_a_smaller_machine_as_of_the_full_one() {
        let pages = |text: &str, scale: u32| MigrationCap::parse(text).unwrap().pages(1 << 20, 1 << 18, scale);
        assert_eq!((pages("2GiB", 1), pages("2GiB", 1024), pages("2GiB", 4096)), (1 << 19, 512, 128));
        assert_eq!((pages("50%", 1024), pages("1/4", 1024)), (1 << 19, 1 << 16), "shares are shares at every scale");
    }

    #[test]
    fn conservative_moves_at_most_half_of_what_it_identified() {
        let hot = |page: u32| if page >= 448 { 20 } else { 0 };
        let (out, into) = after_epoch(&[("plan", "conservative")], 256, 256, hot);
        assert_eq!((out.len(), into.len()), (32, 32));
    }

    #[test]
    fn the_three_meanings_of_max_migration_size() {
        let hot = |page: u32| if page >= 448 { 10 } else { 0 };
        let moved = |size: &str| after_epoch(&[("max_migration_size", size)], 256, 256, hot).1.len();
        assert_eq!(moved("25%"), 16, "of the 64 pages identified");
        assert_eq!(moved("1/16"), 16, "of the 256 fast pages");
        assert_eq!(moved("32KiB"), 8, "bytes");
    }

    #[test]
    fn pages_of_equal_count_stay_where_they_are() {
        let (out, into) = after_epoch(&[], 256, 256, |_| 5);
        assert!(out.is_empty() && into.is_empty(), "{out:?} {into:?}");
        let close = |page: u32| if page >= 448 { 6 } else { 5 };
        assert_eq!(after_epoch(&[], 256, 256, close).1.len(), 64);
        assert!(after_epoch(&[("anti_thrash", "2")], 256, 256, close).1.is_empty());
    }

    #[test]
    fn the_ratio_comes_before_hotness() {
        let (out, into) = after_epoch(&[], 512, 128, |page| if page < 64 { 10 } else { 0 });
        assert_eq!((out.len(), into.len()), (384, 0));
        assert!(out.iter().all(|page| *page >= 64), "no hot page leaves while cold ones are there");
    }

    #[test]
    fn more_pages_of_the_highest_count_than_fast_memory_holds_do_not_stop_the_exchange() {
        // 400 pages are used at every scan, 256 fit; 112 fast ones are not used at all.
        let (out, into) = after_epoch(&[], 256, 256, |page| if page >= 112 { 10 } else { 0 });
        assert_eq!((out.len(), into.len()), (112, 112));
        assert!(out.iter().all(|page| *page < 112) && into.iter().all(|page| *page >= 256));
        let (out, into) = after_epoch(&[], 256, 256, |_| 10);
        assert!(out.is_empty() && into.is_empty(), "equal counts stay");
    }

    #[test]
    fn huge_pages_take_six_scans_and_the_conservative_plan_ten_seconds() {
        let check = |settings: &[(&str, &str)], r: u16, seconds: u64| {
            let mut policy =
                FlexHm::new(&mut Settings::from_pairs(settings.iter().copied()).for_policy(&INFO)).unwrap();
            policy.configure(Setup { sample_parts: Some(1), ..Setup::default() });
            policy.fit_page_size(&Pages::new());
            assert_eq!((policy.r, policy.epoch), (r, Duration::from_secs(seconds)), "{settings:?}");
        };
        check(&[], 6, 10);
        check(&[("plan", "conservative")], 20, 10);
        check(&[("r", "8"), ("e", "5s")], 8, 5);
        check(&[("plan", "conservative"), ("e", "30s")], 20, 30);
    }

    #[test]
    fn huge_pages_take_six_scans_with_auto_too() {
        let mut policy = FlexHm::new(&mut Settings::from_pairs([("auto", "on")]).for_policy(&INFO)).unwrap();
        policy.configure(Setup { sample_parts: Some(1), ..Setup::default() });
        policy.fit_page_size(&Pages::new());
        assert_eq!(policy.r, 6);
    }

    #[test]
    fn walks_differ_where_other_addresses_are_used_though_as_many() {
        let interval = Duration::from_millis(100);
        let after = |walks: [[usize; 2]; 2], walk: Duration| {
            let mut auto = AutoTune::new(interval, Duration::from_secs(10));
            let report = ScanReport { pages: 1024, accessed: 400, walk, share: 1.0 };
            for used in walks {
                (0..2).for_each(|block| auto.used(BlockId(block as u32), used[block]));
                auto.after_scan(&report);
            }
            auto.interval
        };
        let (short, long) = (Duration::from_millis(1), Duration::from_millis(80));
        assert!(after([[400, 0], [400, 0]], short) > interval, "a short walk, and the same places");
        assert_eq!(after([[400, 0], [0, 400]], short), interval, "other places");
        assert!(after([[400, 0], [0, 400]], long) < interval, "a long walk, and other places");
        assert_eq!(after([[400, 0], [400, 0]], long), interval, "the same places");
    }

    #[test]
    fn the_kernel_demotes_when_fast_memory_is_full() {
        let demotes = |mut settings: Settings| FlexHm::new(&mut settings).unwrap().profile().kernel.demotion;
        assert!(demotes(Settings::default().for_policy(&INFO)));
        assert!(!demotes(Settings::from_pairs([("kernel_demotion", "off")]).for_policy(&INFO)));
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        for (key, text) in
            [("r", "0"), ("i", "0s"), ("max_migration_size", "0%"), ("max_migration_size", "5/4"), ("plan", "wild")]
        {
            assert!(FlexHm::new(&mut Settings::from_pairs([(key, text)]).for_policy(&INFO)).is_err(), "{key}={text}");
        }
    }
}
