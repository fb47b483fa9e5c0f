//! `tiering08`: Tiering-0.8. As mode 2 of the kernel, with a hard rate, a bias for writes, and a threshold that also watches
//! how many demoted pages turn out hot.
//!
//! In: hint faults on slow pages, with the time of their mark. Out: promotions at once, as many as the rate lets through. Must
//! not: promote faster than the rate but where fast memory has plenty free.
//!
//! Source: Intel's tiering-0.8 tree, read in a tree derived from it (specification section 8); the burst factor and the write
//! bias cannot be told from later changes, so both are settings. Scanner constants: [`crate::parts::hint_scanner`]; watermarks:
//! [`terrace_core::reclaim`].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `threshold` | 1000 ms | hint-fault latency up to which a page is hot, at the start; at most twice that |
//! | `rate` | 30 MiB/s | as recommended for it; the tree's own default is 65536 |
//! | `burst` | 5 | refused while this second saw more candidates than this many times the rate |
//! | `write_bias` | 2 | a write is hot up to this many times the threshold |
//! | adjustment | 60 s, or at once above 1.1 | candidates over the rate above 1.1: 0.9 of it; below 0.2: 1.5; below 0.9: 1.1 |
//! | `demoted_threshold` | 16 | lowers it too when more than 1/16 of the demoted pages turned out hot; 0 never |
//! | enough free | high watermark + the larger of 1 GiB and 1/16 of the node | then all is promoted |
//! | reclaim | high watermark + 10 MiB, woken half of that early | `early_wake`, `scan_demoted` |

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::policy::{Kernel, Metric};
use terrace_core::units::{Bytes, Time};

use crate::parts::fault_tiering::{FaultPolicy, FaultTiering, PromotionRule, SlowFault, TIERING08_ROOM};
use crate::parts::hint_scanner::{self, SLOW_TIERS};
use crate::parts::support::size;
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "tiering08",
    summary: "Tiering-0.8: fault latency against an adaptive threshold, promotions at 30 MB/s",
    source: "Intel tiering-0.8",
    settings: &[
        SettingInfo { key: "threshold", default: "1000ms", meaning: "hint-fault latency up to which a page is hot" },
        SettingInfo { key: "rate", default: "30MiB", meaning: "most promoted a second" },
        SettingInfo {
            key: "burst",
            default: "5",
            meaning: "candidates a second, in rates, above which all are refused; 0 is off",
        },
        SettingInfo { key: "write_bias", default: "2", meaning: "factor on the threshold for writes" },
        SettingInfo { key: "adjust", default: "60s", meaning: "longest time between adjustments of the threshold" },
        SettingInfo {
            key: "demoted_threshold",
            default: "16",
            meaning: "act if more than 1/n of the demotions were hot; 0 never",
        },
        SettingInfo { key: "scan_demoted", default: "on", meaning: "demoted pages stay inaccessible" },
        SettingInfo { key: "early_wake", default: "on", meaning: "wake reclaim half the promotion room early" },
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| {
        let kernel = Kernel {
            demotion: true,
            promotion_room: TIERING08_ROOM,
            early_wake: settings.switch("early_wake")?,
            promotion_needs_high_watermark: true,
            demoted_pages_marked: settings.switch("scan_demoted")?,
            ..Kernel::default()
        };
        let tiering = FaultTiering::new(settings, kernel, SLOW_TIERS, false)?;
        Ok(Box::new(FaultPolicy { tiering, judge: Tiering08::new(settings)? }))
    },
};

const WINDOW: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// See the module's header.
pub struct Tiering08 {
    default: Duration,
    threshold: Duration,
    full_rate: Bytes,
    /// Pages a second, of this machine; not rounded, or a small machine would round it away.
    rate: f64,
    burst: u64,
    write_bias: f64,
    adjust: Duration,
    demoted_threshold: u64,
    /// Since the last adjustment of the threshold.
    since: Option<Time>,
    candidates: u64,
    tries: u64,
    demoted: u64,
    hot_demoted: u64,
    window_began: Option<Time>,
    in_window: u64,
    limited: u64,
}

impl Tiering08 {
    fn new(settings: &mut Settings) -> Result<Tiering08, SettingsError> {
        let default = settings.duration("threshold")?;
        let full_rate = size(settings, "rate")?;
        Ok(Tiering08 {
            default,
            threshold: default,
            full_rate,
            rate: full_rate.pages() as f64,
            burst: settings.number("burst", 0..=1000)?,
            write_bias: settings.number("write_bias", 1.0..=100.0)?,
            adjust: settings.duration("adjust")?,
            demoted_threshold: settings.number("demoted_threshold", 0..=1_000_000)?,
            since: None,
            candidates: 0,
            tries: 0,
            demoted: 0,
            hot_demoted: 0,
            window_began: None,
            in_window: 0,
            limited: 0,
        })
    }

    /// Every minute, or as soon as there were more candidates than a tenth above the rate of that minute.
    fn adjust(&mut self, now: Time) {
        let since = *self.since.get_or_insert(now);
        let wanted = self.rate * self.adjust.as_secs_f64();
        let ratio = self.candidates as f64 / wanted;
        if now < since + self.adjust && ratio <= 1.1 {
            return;
        }
        let too_hot = self.demoted_threshold > 0 && self.hot_demoted * self.demoted_threshold > self.demoted;
        let threshold = self.threshold;
        self.threshold = if ratio > 1.1 || too_hot {
            threshold.mul_f64(0.9).min(threshold.saturating_sub(MILLI)).max(MILLI)
        } else if ratio < 0.2 {
            threshold.mul_f64(1.5).max(threshold + 10 * MILLI)
        } else if ratio < 0.9 {
            threshold.mul_f64(1.1).max(threshold + MILLI)
        } else {
            threshold
        };
        self.threshold = self.threshold.min(self.default * 2);
        self.since = Some(now);
        (self.candidates, self.tries, self.demoted, self.hot_demoted) = (0, 0, 0, 0);
    }

    /// Counts a candidate. Returns whether the rate lets it through.
    fn admit(&mut self, now: Time, pages: u64) -> bool {
        self.candidates += pages;
        let began = *self.window_began.get_or_insert(now);
        if now.since(began) >= WINDOW {
            (self.window_began, self.in_window) = (Some(now), 0);
        }
        self.in_window += pages;
        let elapsed = now.since(self.since.unwrap_or(now)).as_secs_f64();
        let bursting = self.burst > 0 && self.in_window as f64 > self.burst as f64 * self.rate;
        let too_fast = (self.tries + pages) as f64 > self.rate * elapsed;
        if bursting || too_fast {
            self.limited += pages;
            return false;
        }
        self.tries += pages;
        true
    }
}

impl PromotionRule for Tiering08 {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn judge(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages) {
        let range = pages.unit(fault.page);
        let count = u64::from(range.end.0 - range.start.0);
        if tiering.has_plenty(pages, |marks| marks.high) {
            self.threshold = self.default;
            tiering.promote(fault.now, fault.page, pages);
            return;
        }
        let latency = fault.now.since(fault.marked);
        let threshold = if fault.write { self.threshold.mul_f64(self.write_bias) } else { self.threshold };
        if tiering.was_demoted(fault.page, pages) && latency <= self.threshold {
            self.hot_demoted += count;
        }
        self.adjust(fault.now);
        if latency <= threshold && self.admit(fault.now, count) {
            tiering.promote(fault.now, fault.page, pages);
        }
    }

    fn demoted(&mut self, pages: u64) {
        self.demoted += pages;
    }

    fn set_scale(&mut self, factor: u32) {
        self.rate = self.full_rate.pages() as f64 / f64::from(factor.max(1));
    }

    fn metrics(&self, metrics: &mut Vec<Metric>) {
        metrics.push(Metric { name: "hot_threshold_seconds", value: self.threshold.as_secs_f64() });
        metrics.push(Metric { name: "rate_limited_pages", value: self.limited as f64 });
        metrics.push(Metric { name: "hot_demoted_pages", value: self.hot_demoted as f64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge() -> Tiering08 {
        Tiering08::new(&mut Settings::default().for_policy(&INFO)).unwrap()
    }

    #[test]
    fn the_threshold_follows_candidates_and_demotions() {
        let check = |share: f64, demoted: u64, hot: u64, after_ms: u64| {
            let mut judge = judge();
            judge.adjust(Time::ZERO);
            judge.candidates = (share * judge.rate * 60.0) as u64;
            (judge.demoted, judge.hot_demoted) = (demoted, hot);
            judge.adjust(Time::ZERO + Duration::from_secs(60));
            assert_eq!(judge.threshold.as_millis() as u64, after_ms, "{share} of the rate, {hot} of {demoted}");
        };
        check(1.2, 0, 0, 900);
        check(1.0, 0, 0, 1000);
        check(0.5, 0, 0, 1100);
        check(0.1, 0, 0, 1500);
        check(0.1, 160, 11, 900);
        check(0.1, 160, 10, 1500);
    }

    #[test]
    fn a_small_machine_keeps_its_part_of_the_rate() {
        // 30 MiB/s are 1.875 pages a second at 1:4096.
        let mut judge = judge();
        judge.set_scale(4096);
        judge.adjust(Time::ZERO);
        let seconds = 1..=100;
        let admitted = seconds.filter(|&second| judge.admit(Time::ZERO + Duration::from_secs(second), 1)).count();
        let more = (1..=100).filter(|second| judge.admit(Time::ZERO + Duration::from_millis(100_000 + 5 * second), 1));
        assert_eq!((admitted, more.count()), (100, 8), "one a second passes, then no more than five rates a second");
    }

    #[test]
    fn too_many_candidates_lower_it_at_once() {
        let mut judge = judge();
        judge.adjust(Time::ZERO);
        judge.candidates = (judge.rate * 67.0) as u64;
        judge.adjust(Time::ZERO + Duration::from_secs(1));
        assert_eq!(judge.threshold, Duration::from_millis(900));
    }

    #[test]
    fn a_minute_lets_a_minute_of_the_rate_through() {
        let mut judge = judge();
        judge.adjust(Time::ZERO);
        let mut admitted = 0;
        for milli in 0..60_000u64 {
            let now = Time::ZERO + Duration::from_millis(milli);
            admitted += (0..10).filter(|_| judge.admit(now, 1)).count() as u64;
        }
        assert!(admitted as f64 <= judge.rate * 60.0, "{admitted}");
        assert!(admitted as f64 > judge.rate * 59.0);
    }
}
