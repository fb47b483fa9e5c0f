//! `arms`: ARMS. Pages are ranked by two moving averages; the best that fit belong in fast memory, and move there if that repays its cost.
//!
//! In: hardware samples, prices, and how much bandwidth is in use. Out: exchanges, best first, each interval. Must not: hold a threshold of hotness.
//!
//! Source: ARMS (arXiv 2508.04417). The mechanisms are those of its abstract [P]: short and long averages, migration by cost and benefit, batches
//! by spare bandwidth, no thresholds. Constants marked [M] are recalled and were not read again; those marked [D] are ours, where no source was found.
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `interval` | 500 ms | between two rankings [M] |
//! | `alpha_short`, `alpha_long` | 0.7, 0.1 | weights of the newest interval in the two averages [M] |
//! | `history`, `recency` | 0.2, 0.8 | weight of the short average in the score, by mode; the long one has the rest [M] |
//! | top k | the pages that fit fast memory | no threshold [P] |
//! | `rounds` | 2 | intervals among the top k before a page moves, in the mode of history [M] |
//! | benefit | latency saved by an access, times the difference of scores, times the intervals among the top k | [M] |
//! | cost | moving both pages | by the prices of the machine, where ARMS measures its own moves [D] |
//! | change | Page-Hinkley test of the share of slow samples: drift 0.05, threshold 0.2 | [M] for the test, [D] for its numbers and for the share in place of bandwidth |
//! | `recency_rounds` | 10 | intervals that the mode of recency lasts [D] |
//! | batch | what a mover moves in an interval, times the spare share of bandwidth: the least latency seen over the present one, of the busier tier | [P] for spare bandwidth, [D] for the formula |
//! | `sample_period` | 5,000 | loads a sample: HeMem's, on which ARMS is built [M] |
//!
//! Ambiguities: how long a page will stay is taken from how long it has been among the top k, one interval for one. Of pages with equal scores the
//! fast ones are ranked before the slow ones, so that equals do not change places. A unit is what moves as one: a page, or a huge block.
//!
//! Memory beside the common eight bytes: 8 a page, the two averages.

use std::time::Duration;

use terrace_core::observation::{Observation, Observations};
use terrace_core::pages::{Column, Pages};
use terrace_core::plan::MoveRequests;
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Metric, Needs, Policy, PolicyReport, Profile, Remap, SamplePeriods, Schedule,
    Setup,
};
use terrace_core::prices::{Prices, ProcessorCounts};
use terrace_core::units::{BLOCK_PAGES, PageId, TierId, Time};

use crate::parts::support;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "arms",
    summary: "ARMS: top k by a short and a long moving average, moved by cost and benefit in batches of spare bandwidth",
    source: "ARMS, arXiv 2508.04417, 2025",
    settings: &[
        SettingInfo { key: "interval", default: "500ms", meaning: "time between two rankings" },
        SettingInfo {
            key: "alpha_short",
            default: "0.7",
            meaning: "weight of the newest interval in the short average",
        },
        SettingInfo { key: "alpha_long", default: "0.1", meaning: "weight of the newest interval in the long average" },
        SettingInfo { key: "history", default: "0.2", meaning: "weight of the short average in the score, usually" },
        SettingInfo { key: "recency", default: "0.8", meaning: "the same after a change of the hot set" },
        SettingInfo {
            key: "rounds",
            default: "2",
            meaning: "intervals among the top k before a page moves; 1 moves it at once",
        },
        SettingInfo {
            key: "recency_rounds",
            default: "10",
            meaning: "intervals that follow a change; 0 ignores changes",
        },
        SettingInfo { key: "cost", default: "on", meaning: "a move must repay its cost" },
        SettingInfo {
            key: "bandwidth",
            default: "on",
            meaning: "batches are what spare bandwidth moves; off: no bound",
        },
        SettingInfo { key: "sample_period", default: "5000", meaning: "loads a sample" },
    ],
    build: |settings| Ok(Box::new(Arms::new(settings)?)),
};

/// The Page-Hinkley test of the share of samples in slow memory.
const DRIFT: f64 = 0.05;
const ALARM: f64 = 0.2;
/// Samples below which an interval's share is not taken for one.
const LEAST_SAMPLES: u64 = 16;

/// Whether the mean of a series has risen (Page, Biometrika 1954).
#[derive(Clone, Copy, Debug, Default)]
struct PageHinkley {
    count: f64,
    mean: f64,
    sum: f64,
    least: f64,
}

impl PageHinkley {
    /// Takes in a value. Returns whether the mean has risen; then it begins again.
    fn rises(&mut self, value: f64) -> bool {
        self.count += 1.0;
        self.mean += (value - self.mean) / self.count;
        self.sum += value - self.mean - DRIFT;
        self.least = self.least.min(self.sum);
        let alarm = self.sum - self.least > ALARM;
        if alarm {
            *self = PageHinkley::default();
        }
        alarm
    }
}

/// A unit in the ranking.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    unit: PageId,
    pages: u32,
    tier: TierId,
    /// Score of the whole unit, in samples an interval.
    score: f32,
}

impl Ranked {
    fn density(&self) -> f32 {
        self.score / self.pages as f32
    }
}

/// See the module's header.
pub struct Arms {
    interval: Duration,
    alpha: [f32; 2],
    /// Weight of the short average by mode.
    weights: [f32; 2],
    rounds: u16,
    recency_rounds: u32,
    weighs: bool,
    by_bandwidth: bool,
    sample_period: u32,
    scale: u32,
    parts: Option<u32>,
    /// Short and long average of each unit, by its first page; what came in this interval is its heat, how long it is among the top k its stamp.
    averages: Column<[f32; 2]>,
    prices: Prices,
    counts: ProcessorCounts,
    /// The least latency of each tier that was seen.
    idle_ns: [f64; TierId::MAX],
    samples: [u64; 2],
    change: PageHinkley,
    /// Intervals for which the mode of recency still lasts.
    recent: u32,
    next: Time,
    exchanges: u64,
    refused: u64,
    changes: u64,
    budget: f64,
}

impl Arms {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Arms, SettingsError> {
        let share = |settings: &mut Settings, key| settings.number(key, 0.0..=1.0);
        Ok(Arms {
            interval: settings.duration("interval")?,
            alpha: [share(settings, "alpha_short")?, share(settings, "alpha_long")?],
            weights: [share(settings, "history")?, share(settings, "recency")?],
            rounds: settings.number("rounds", 1..=1000)?,
            recency_rounds: settings.number("recency_rounds", 0..=1_000_000)?,
            weighs: settings.switch("cost")?,
            by_bandwidth: settings.switch("bandwidth")?,
            sample_period: settings.number("sample_period", 1..=1_000_000_000)?,
            scale: 1,
            parts: None,
            averages: Column::default(),
            prices: Prices::ASSUMED,
            counts: ProcessorCounts::default(),
            idle_ns: [f64::INFINITY; TierId::MAX],
            samples: [0; 2],
            change: PageHinkley::default(),
            recent: 0,
            next: Time::ZERO,
            exchanges: 0,
            refused: 0,
            changes: 0,
            budget: 0.0,
        })
    }

    fn on_sample(&mut self, page: PageId, pages: &mut Pages) {
        let weight = self.parts.map_or(1, |parts| (BLOCK_PAGES / parts).max(1) as u16);
        let unit = pages.unit(page).start;
        let entry = &mut pages[unit];
        let Some(tier) = entry.tier() else { return };
        entry.heat = entry.heat.saturating_add(weight);
        self.samples[usize::from(tier > TierId::FAST)] += 1;
    }

    /// Ends the interval of each unit and ranks all of them: the hottest first, of equals those that are fast.
    fn rank(&mut self, pages: &mut Pages) -> Vec<Ranked> {
        let mut units = Vec::new();
        support::each_unit(pages, |unit, size, tier| units.push((unit, size as u32, tier)));
        let weight = self.weights[usize::from(self.recent > 0)];
        let alpha = self.alpha;
        let mut ranked: Vec<Ranked> = units
            .into_iter()
            .map(|(unit, size, tier)| {
                let came = f32::from(std::mem::take(&mut pages[unit].heat));
                let averages = &mut self.averages[unit.index()];
                for (average, alpha) in averages.iter_mut().zip(alpha) {
                    *average += alpha * (came - *average);
                }
                let score = weight * averages[0] + (1.0 - weight) * averages[1];
                Ranked { unit, pages: size, tier, score }
            })
            .collect();
        // The sort is stable: of equals in one tier the order of addresses holds.
        ranked.sort_by(|one, other| other.density().total_cmp(&one.density()).then(one.tier.cmp(&other.tier)));
        ranked
    }

    /// Pages that a mover moves in an interval with the spare bandwidth of the busier tier. Latency grows with load, so that it tells the spare part.
    fn batch(&self) -> f64 {
        let interval_ns = self.interval.as_nanos() as f64 / f64::from(self.scale);
        let both = self.prices.copying(1, TierId(1), TierId::FAST) + self.prices.copying(1, TierId::FAST, TierId(1));
        let tiers = self.counts.latency_ns.into_iter().zip(self.idle_ns);
        let spare = tiers.map(|(now, idle)| if now > 0.0 { idle / now } else { 1.0 }).fold(1.0, f64::min);
        spare * interval_ns / both
    }

    /// Whether the exchange repays its cost: what the newcomer is used more than those who leave, for as long as it has been among the top k.
    fn repays(&self, comes: &Ranked, leave: &[Ranked], rounds: u16) -> bool {
        if !self.weighs {
            return true;
        }
        let slow = TierId::FAST.below();
        let cores = self.counts.cores.max(1);
        let price = |one: &Ranked, from, to| self.prices.moving(u64::from(one.pages), from, to, cores);
        let cost = price(comes, comes.tier, TierId::FAST)
            + leave.iter().map(|one| price(one, TierId::FAST, slow)).sum::<f64>();
        // Where a small page stands for a huge one it has as many times fewer accesses than its samples say.
        let stands_for = if self.parts.is_some() { f64::from(BLOCK_PAGES) } else { 1.0 };
        let more = f64::from(comes.score - leave.iter().map(|one| one.score).sum::<f32>());
        let accesses = more * f64::from(self.sample_period) / stands_for * f64::from(rounds.max(1));
        accesses * self.prices.farther_ns > cost
    }

    fn exchange(&mut self, limit: u64, used: u64, ranked: &[Ranked], pages: &mut Pages, requests: &mut MoveRequests) {
        let mut left = limit;
        let mut coming = Vec::new();
        let mut inside = 0;
        for one in ranked {
            // What was never used is not hot, however much room there is.
            if left < u64::from(one.pages) || one.score <= 0.0 {
                break;
            }
            left -= u64::from(one.pages);
            inside += 1;
            let entry = &mut pages[one.unit];
            entry.stamp = entry.stamp.saturating_add(1);
            let free_to_move = !entry.moving() && !entry.pinned();
            let known = entry.stamp >= self.rounds || self.recent > 0;
            if one.tier > TierId::FAST && known && free_to_move {
                coming.push((*one, entry.stamp));
            }
        }
        for one in &ranked[inside..] {
            pages[one.unit].stamp = 0;
        }
        let mut victims = ranked[inside..]
            .iter()
            .rev()
            .filter(|one| one.tier == TierId::FAST && !pages[one.unit].moving() && !pages[one.unit].pinned());
        let mut free = limit.saturating_sub(used);
        self.budget = if self.by_bandwidth { self.batch() } else { f64::INFINITY };
        for (comes, rounds) in coming {
            let size = u64::from(comes.pages);
            self.budget -= size as f64;
            if self.budget < 0.0 {
                return;
            }
            let mut leave: Vec<Ranked> = Vec::new();
            let mut room = free;
            while room < size {
                let Some(victim) = victims.next() else { return };
                room += u64::from(victim.pages);
                leave.push(*victim);
            }
            if !self.repays(&comes, &leave, rounds) {
                // The candidates that follow are no hotter, the victims no colder.
                self.refused += 1;
                return;
            }
            let units: Vec<PageId> = leave.iter().map(|one| one.unit).collect();
            if !requests.exchange(&units, TierId::FAST.below(), comes.unit, TierId::FAST) {
                return;
            }
            free = room - size;
            self.exchanges += 1;
        }
    }

    fn notice_change(&mut self) {
        let [fast, slow] = std::mem::take(&mut self.samples);
        self.recent = self.recent.saturating_sub(1);
        if fast + slow >= LEAST_SAMPLES && self.change.rises(slow as f64 / (fast + slow) as f64) {
            self.changes += 1;
            self.recent = self.recency_rounds;
        }
    }
}

impl Policy for Arms {
    fn profile(&self) -> Profile {
        Profile::new(INFO.name, Needs { samples: true, ..Needs::default() })
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.scale = factor.max(1);
        }
        if let Some(parts) = setup.sample_parts {
            self.parts = Some(parts.max(1));
        }
        if let Some(prices) = setup.prices {
            self.prices = prices;
        }
    }

    fn remap(&mut self, _now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => self.averages.fit(pages),
            Remap::Unmapping(space, range) => {
                support::each_page(pages, space, &range, |page| self.averages[page.index()] = [0.0; 2]);
            }
        }
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        let Observations::Events(events) = seen else { return };
        for event in events {
            match *event {
                Observation::Sampled { page, .. } => self.on_sample(page, pages),
                Observation::Freed { page } => {
                    self.averages[page.index()] = [0.0; 2];
                    (pages[page].heat, pages[page].stamp) = (0, 0);
                }
                _ => {}
            }
        }
    }

    fn feedback(&mut self, _now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::Processor(counts) = feedback {
            self.counts = *counts;
            for (idle, now) in self.idle_ns.iter_mut().zip(counts.latency_ns) {
                *idle = if now > 0.0 { idle.min(now) } else { *idle };
            }
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if capacity.tiers.len() < 2 || now < self.next {
            return;
        }
        self.next = now + self.interval;
        self.notice_change();
        let ranked = self.rank(pages);
        self.exchange(support::fast_limit(capacity), capacity.tiers[0].used, &ranked, pages, requests);
    }

    fn schedule(&self) -> Schedule {
        let sampling = SamplePeriods { loads: self.sample_period, stores: u32::MAX };
        Schedule { cadence: Cadence { sampling: Some(sampling), ..Cadence::default() }, wake_at: Some(self.next) }
    }

    fn report(&self) -> PolicyReport {
        let metric = |name, value| Metric { name, value };
        PolicyReport {
            memory_bytes: self.averages.len() * size_of::<[f32; 2]>(),
            metrics: vec![
                metric("exchanges", self.exchanges as f64),
                metric("refused_by_cost", self.refused as f64),
                metric("changes", self.changes as f64),
                metric("recency_mode", f64::from(u8::from(self.recent > 0))),
                metric("metadata_bytes_per_page", METADATA_BYTES),
            ],
        }
    }
}

const METADATA_BYTES: f64 = 8.0 + size_of::<[f32; 2]>() as f64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW};

    const ROUND: Duration = Duration::from_millis(500);

    /// Ten fast pages, which are 0 to 9 at first, and ninety slow ones.
    fn rig(extra: &[(&str, &str)]) -> Rig {
        let policy = crate::build("arms", Settings::from_pairs(extra.iter().copied())).unwrap();
        let mut rig = Rig::new(policy, &[10, 100_000]);
        rig.map(100);
        rig.born(0..10, TierId::FAST);
        rig.born(10..100, SLOW);
        rig.pass(Duration::from_millis(1));
        rig
    }

    fn round(rig: &mut Rig, samples: &[(u64, usize)]) {
        for &(page, times) in samples {
            rig.sample(vec![page; times]);
        }
        rig.pass(ROUND);
    }

    #[test]
    fn a_page_moves_once_it_was_among_the_best_for_two_rounds_and_takes_the_place_of_the_coldest() {
        let check = |rounds: &str, after: usize| {
            let mut rig = rig(&[("rounds", rounds)]);
            for number in 1..=after {
                assert_eq!(rig.tier(50), Some(SLOW), "rounds={rounds}, {number}");
                let used: Vec<(u64, usize)> = (0..9).map(|page| (page, 3)).chain([(50, 9)]).collect();
                round(&mut rig, &used);
            }
            assert_eq!((rig.tier(50), rig.tier(9)), (Some(TierId::FAST), Some(SLOW)), "rounds={rounds}");
            assert_eq!((rig.promotions, rig.demotions), (1, 1));
        };
        check("1", 1);
        check("2", 2);
    }

    #[test]
    fn equal_pages_do_not_change_places() {
        let mut rig = rig(&[("rounds", "1")]);
        for _ in 0..20 {
            round(&mut rig, &(0..100).map(|page| (page, 2)).collect::<Vec<_>>());
        }
        assert_eq!(rig.promotions, 0);
    }

    #[test]
    fn a_move_that_does_not_repay_its_cost_is_not_made() {
        // A sample stands for ten accesses, of which each saves 100 ns; an exchange costs 3.4 us.
        let check = |cost: &str, samples: usize, moves: bool| {
            let mut rig = rig(&[("rounds", "1"), ("cost", cost), ("sample_period", "10"), ("alpha_long", "1")]);
            let used: Vec<(u64, usize)> = (0..10).map(|page| (page, 1)).chain([(50, samples)]).collect();
            round(&mut rig, &used);
            assert_eq!(rig.tier(50) == Some(TierId::FAST), moves, "cost={cost}, {samples} samples");
        };
        check("on", 3, false);
        check("on", 9, true);
        check("off", 3, true);
    }

    #[test]
    fn a_change_of_the_hot_set_lets_the_short_average_rule() {
        let check = |rounds: &str| {
            let mut rig = rig(&[("recency_rounds", rounds), ("history", "0"), ("recency", "1")]);
            for _ in 0..20 {
                round(&mut rig, &(0..10).map(|page| (page, 20)).collect::<Vec<_>>());
            }
            // All at once ten other pages are used.
            let mut needed = 0;
            while rig.tier(60) != Some(TierId::FAST) {
                round(&mut rig, &(60..70).map(|page| (page, 20)).collect::<Vec<_>>());
                needed += 1;
                assert!(needed < 50);
            }
            (needed, rig.metric("changes"))
        };
        assert_eq!(check("10"), (1, 1.0), "the short average has forgotten the old pages at once");
        let (needed, _) = check("0");
        assert!(needed > 5, "by the long average it takes {needed} rounds");
    }

    #[test]
    fn a_batch_is_what_spare_bandwidth_moves() {
        use terrace_core::engine::Input;
        let check = |switch: &str, load: f64| {
            let mut rig = rig(&[("rounds", "1"), ("bandwidth", switch), ("interval", "10us")]);
            let told = |rig: &mut Rig, latency: f64| {
                let mut counts =
                    ProcessorCounts { memory_accesses: 1000, slow_accesses: 1000, ..ProcessorCounts::default() };
                counts.latency_ns[..2].copy_from_slice(&[80.0, latency]);
                rig.now = rig.now + Duration::from_millis(1);
                rig.engine.handle(rig.now, Input::Processor(counts));
                rig.settle();
            };
            told(&mut rig, 170.0);
            rig.sample((50..60).flat_map(|page| [page; 3]));
            told(&mut rig, 170.0 * load);
            rig.promotions
        };
        assert_eq!(check("on", 1.0), 10, "13.4 exchanges fit into 10 us");
        assert_eq!(check("on", 2.0), 6);
        assert_eq!(check("on", 5.0), 2);
        assert_eq!(check("off", 5.0), 10);
    }

    #[test]
    fn the_test_of_page_and_hinkley_sees_a_rise_and_no_noise() {
        let mut test = PageHinkley::default();
        assert!((0..1000).all(|n| !test.rises(0.3 + 0.02 * f64::from(n % 3 - 1))));
        assert!((0..3).any(|_| test.rises(0.8)));
        assert!((0..100).all(|_| !test.rises(0.1)), "a fall is no rise");
    }
}
