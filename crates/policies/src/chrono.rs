//! `chrono`: Chrono. A page is as hot as its idle time is short; the crossing of both tiers' idle times sets the threshold and the rate.
//!
//! In: hint faults with the time of their mark, on slow pages and on a sample of fast ones. Out: promotions at once, as many as the rate lets
//! through. Must not: promote on one short idle time.
//!
//! Source: Chrono (EuroSys 2025), by facts read from its public tree [C]; constants marked [D] are ours. Scanner constants:
//! [`crate::parts::hint_scanner`]; watermarks: [`terrace_core::reclaim`].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | idle time | from the mark to the next use | in 21 buckets a tier, an octave each, from 1 ms up [C] |
//! | `threshold` | 1 s | idle time up to which a page is hot, before the first crossing [D] |
//! | `rounds` | 2 | short idle times running that make a page a candidate [C] |
//! | crossing | slow buckets from the shortest and fast ones from the longest cancel each other out | where they meet is the threshold [C] |
//! | rate | what cancelled out, in a pass of the scanner | pages worth exchanging [C]; no bound before the first crossing [D] |
//! | hits | 1,000 | idle times before a crossing is looked for [C] |
//! | `fast_sample` | 8 | one of this many steps of the scanner marks fast pages too [D] |
//! | reclaim | high watermark + 10 MiB, woken half of that early | as in Tiering-0.8, on which it is built [C] |
//!
//! Ambiguities: Chrono marks random pages for its statistics and looks at candidates again in a shorter scan; here the scanner's own marks
//! serve for both, so that a second round takes a pass. Fast pages marked and not used within the pass count as idle for longest. Chrono
//! averages the histograms of up to 64 processes of a node; here all spaces make one. A huge page is a unit, where Chrono's sampler has none.

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::policy::{Kernel, Metric};
use terrace_core::units::{TierId, Time};

use crate::parts::fault_tiering::{FaultPolicy, FaultTiering, PromotionRule, SlowFault, TIERING08_ROOM};
use crate::parts::hint_scanner::{self, SLOW_TIERS};
use crate::parts::support::scaled_count;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "chrono",
    summary: "Chrono: idle times from mark to use; where those of fast and slow memory cross is threshold and rate",
    source: "Chrono, EuroSys 2025",
    settings: &[
        SettingInfo { key: "threshold", default: "1s", meaning: "idle time up to which a page is hot, at first" },
        SettingInfo { key: "rounds", default: "2", meaning: "short idle times running that promote" },
        SettingInfo {
            key: "crossing",
            default: "on",
            meaning: "threshold and rate follow the crossing; off: the first stay",
        },
        SettingInfo {
            key: "fast_sample",
            default: "8",
            meaning: "one of this many steps of the scanner marks fast pages too",
        },
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| {
        let kernel = Kernel {
            demotion: true,
            promotion_room: TIERING08_ROOM,
            early_wake: true,
            promotion_needs_high_watermark: true,
            ..Kernel::default()
        };
        let mut tiering = FaultTiering::new(settings, kernel, SLOW_TIERS, false)?;
        let judge = Chrono::new(settings)?;
        if judge.crosses {
            tiering.scanner.mark_fast_in_one_of(judge.fast_sample);
        }
        Ok(Box::new(FaultPolicy { tiering, judge }))
    },
};

const BUCKETS: usize = 21;
const HITS: u64 = 1000;
/// Fewer say nothing on a scaled-down machine either.
const LEAST_HITS: u64 = 16;

/// Pages by idle time.
type Histogram = [f64; BUCKETS];

fn bucket(idle: Duration) -> usize {
    ((idle.as_millis() as u64).max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// Where the histograms of slow and fast memory meet: the bucket, and how many pages of each side lie on the wrong side of it.
fn crossing(mut slow: Histogram, mut fast: Histogram) -> (f64, f64) {
    let (mut short, mut long, mut wrong) = (0, BUCKETS - 1, 0.0);
    while short < long {
        let both = f64::min(slow[short], fast[long]);
        wrong += both;
        slow[short] -= both;
        fast[long] -= both;
        if slow[short] <= 0.0 {
            short += 1;
        } else {
            long -= 1;
        }
    }
    ((short + long) as f64 / 2.0, wrong)
}

/// See the module's header.
pub struct Chrono {
    threshold: Duration,
    rounds: u8,
    crosses: bool,
    fast_sample: u32,
    wanted_hits: u64,
    idle: [Histogram; 2],
    hits: u64,
    began: Option<Time>,
    /// Pages a second, once it is known, and how many may be promoted now.
    rate: Option<f64>,
    allowed: f64,
    refilled: Time,
    crossings: u64,
    limited: u64,
}

impl Chrono {
    fn new(settings: &mut Settings) -> Result<Chrono, SettingsError> {
        Ok(Chrono {
            threshold: settings.duration("threshold")?,
            rounds: settings.number("rounds", 1..=100)?,
            crosses: settings.switch("crossing")?,
            fast_sample: settings.number("fast_sample", 1..=1_000_000)?,
            wanted_hits: HITS,
            idle: [[0.0; BUCKETS]; 2],
            hits: 0,
            began: None,
            rate: None,
            allowed: 0.0,
            refilled: Time::ZERO,
            crossings: 0,
            limited: 0,
        })
    }

    /// Takes in an idle time. Once a pass is over and enough are known, a new crossing is found.
    fn note(&mut self, fault: SlowFault, fast: bool, tiering: &FaultTiering, pages: &Pages) {
        if !self.crosses {
            return;
        }
        let now = fault.now;
        let began = *self.began.get_or_insert(now);
        let unit = pages.unit(fault.page);
        let stands_for = f64::from(unit.end.0 - unit.start.0) * if fast { f64::from(self.fast_sample) } else { 1.0 };
        self.idle[usize::from(!fast)][bucket(now.since(fault.marked))] += stands_for;
        self.hits += 1;
        let Some(pass) = tiering.scanner.pass() else { return };
        if now < began + pass || self.hits < self.wanted_hits {
            return;
        }
        let [mut fast, slow] = std::mem::replace(&mut self.idle, [[0.0; BUCKETS]; 2]);
        let used = fast.iter().sum::<f64>();
        fast[BUCKETS - 1] += (pages.used_in_all(TierId::FAST) as f64 - used).max(0.0);
        let (meet, wrong) = crossing(slow, fast);
        self.threshold = Duration::from_secs_f64(meet.exp2() / 1000.0);
        self.rate = Some(wrong / now.since(began).as_secs_f64().max(1e-3));
        self.crossings += 1;
        self.hits = 0;
        self.began = Some(now);
    }

    /// Whether the rate lets this many pages through.
    fn lets(&mut self, now: Time, count: f64) -> bool {
        let Some(rate) = self.rate else { return true };
        self.allowed = (self.allowed + rate * now.since(self.refilled).as_secs_f64()).min(rate.max(count));
        self.refilled = now;
        let lets = self.allowed >= count;
        if lets {
            self.allowed -= count;
        } else {
            self.limited += count as u64;
        }
        lets
    }
}

impl PromotionRule for Chrono {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn set_scale(&mut self, factor: u32) {
        self.wanted_hits = scaled_count(HITS, factor).max(LEAST_HITS);
    }

    fn judge(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages) {
        self.note(fault, false, tiering, pages);
        if fault.now.since(fault.marked) >= self.threshold {
            FaultTiering::set_judged(fault.page, 0, pages);
            return;
        }
        let rounds = FaultTiering::judged(fault.page, pages).saturating_add(1);
        let unit = pages.unit(fault.page);
        if rounds >= self.rounds && self.lets(fault.now, f64::from(unit.end.0 - unit.start.0)) {
            tiering.promote(fault.now, fault.page, pages);
        } else {
            FaultTiering::set_judged(fault.page, rounds, pages);
        }
    }

    fn fast_fault(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages) {
        self.note(fault, true, tiering, pages);
    }

    fn metrics(&self, metrics: &mut Vec<Metric>) {
        metrics.push(Metric { name: "threshold_seconds", value: self.threshold.as_secs_f64() });
        metrics.push(Metric { name: "crossings", value: self.crossings as f64 });
        metrics.push(Metric { name: "rate_pages_per_second", value: self.rate.unwrap_or(f64::INFINITY).min(1e12) });
        metrics.push(Metric { name: "promotions_over_rate", value: self.limited as f64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::{Rig, SLOW};

    /// A hundred fast pages of a thousand, and two hundred slow ones; the scanner takes a second for a pass.
    fn rig(extra: &[(&str, &str)]) -> Rig {
        let pairs = extra.iter().copied().chain([("fast_sample", "1")]);
        let mut policy = crate::build("chrono", Settings::from_pairs(pairs)).unwrap();
        policy.configure(crate::rig::scaled(64));
        let mut rig = Rig::new(policy, &[1000, 100_000]);
        rig.map(1000);
        rig.born(0..100, TierId::FAST);
        rig.born(100..300, SLOW);
        rig.pass(Duration::from_secs(2));
        rig
    }

    fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_page_comes_up_after_short_idle_times_running() {
        let check = |rounds: &str, idle: &[u64], comes: bool| {
            let mut rig = rig(&[("rounds", rounds), ("crossing", "off")]);
            idle.iter().for_each(|&idle| rig.fault([150], millis(idle), false));
            assert_eq!(rig.tier(150) == Some(TierId::FAST), comes, "rounds={rounds}, {idle:?}");
        };
        check("2", &[10], false);
        check("2", &[10, 10], true);
        check("2", &[10, 1500, 10], false);
        check("1", &[10], true);
    }

    #[test]
    fn the_histograms_meet_where_both_sides_have_as_many_pages_on_the_wrong_one() {
        let mut slow = [0.0; BUCKETS];
        let mut fast = [0.0; BUCKETS];
        (slow[2], slow[10], fast[3], fast[20]) = (30.0, 100.0, 50.0, 40.0);
        // The 30 short slow ones cancel 30 of the long fast ones; the ten left meet the slow ones in bucket 10.
        assert_eq!(crossing(slow, fast), (10.0, 40.0));
        (slow[2], fast[20]) = (0.0, 0.0);
        assert_eq!(crossing(slow, fast).1, 0.0, "all are where they belong");
        (slow[10], slow[2], fast[20]) = (0.0, 30.0, 40.0);
        assert_eq!(crossing(slow, fast), (20.0, 30.0), "no slow page is left to compare with");
    }

    #[test]
    fn the_crossing_sets_threshold_and_rate() {
        let check = |crossing: &str, threshold: f64| {
            let mut rig = rig(&[("crossing", crossing)]);
            // Slow pages are used 4 ms after their mark, or 500 ms; fast ones 40 ms after it, or never.
            for _ in 0..2 {
                rig.fault(100..140, millis(4), false);
                rig.fault(140..240, millis(500), false);
                rig.fault(0..60, millis(40), false);
                rig.pass(Duration::from_secs(2));
            }
            assert!((rig.metric("threshold_seconds") - threshold).abs() < 0.01, "{}", rig.metric("threshold_seconds"));
        };
        // 40 of either side are wrong; what is left meets between 32 and 256 ms.
        check("on", 0.032);
        check("off", 1.0);
    }

    #[test]
    fn no_more_come_up_than_are_worth_exchanging() {
        let mut rig = rig(&[("rounds", "1")]);
        // Nothing is on its wrong side: fast pages are used sooner than slow ones.
        for _ in 0..2 {
            rig.fault(100..160, millis(900), false);
            rig.fault(0..100, millis(2), false);
            rig.pass(Duration::from_secs(2));
        }
        rig.fault(0..1, millis(2), false);
        let before = rig.promotions;
        rig.fault(200..300, millis(1), false);
        assert!(rig.promotions < before + 100, "{} of 100", rig.promotions - before);
        assert!(rig.metric("promotions_over_rate") > 0.0);
    }

    #[test]
    fn fast_pages_are_marked_in_some_steps_of_the_scanner() {
        let steps = |sample: &str| {
            let pairs = [("fast_sample", sample)];
            let mut rig = Rig::new(crate::build("chrono", Settings::from_pairs(pairs)).unwrap(), &[1000, 100_000]);
            rig.map(1000);
            rig.born(0..300, SLOW);
            (0..200u32)
                .filter(|_| {
                    rig.pass(Duration::from_secs(1));
                    rig.cadence.hint_scan.is_some_and(|scan| scan.tiers & 1 != 0)
                })
                .count()
        };
        assert!(steps("1") >= 198);
        assert!((10..50).contains(&steps("8")), "about an eighth of 200");
    }
}
