//! `numab2`: upstream memory tiering, NUMA balancing mode 2. A fault soon after its mark makes a page hot.
//!
//! In: hint faults on slow pages, with the time of their mark. Out: promotions at once. Must not: promote above its rate but
//! where fast memory has plenty free.
//!
//! Source: Linux 6.x (specification section 8). Scanner constants: [`crate::parts::hint_scanner`], without adaptation, since faults on
//! slow pages return before its statistics; watermarks: [`terrace_core::reclaim`].
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `threshold` | 1000 ms | hint-fault latency below which a page is hot, at the start; from 1/8 of it to twice it |
//! | `rate` | 65536 MiB/s | candidates in a window of 1 s |
//! | adjustment | 60 s | candidates above 1.1 of the rate: down by 1/8 of the default; below 0.9: up by as much |
//! | enough free | promotion watermark + the larger of 1 GiB and 1/16 of the node | then all is promoted, and the threshold reset |
//! | reclaim | up to the promotion watermark, one gap above high | `demotion_enabled` is taken to be on |

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::policy::{Kernel, Metric};
use terrace_core::units::{Bytes, Time};

use crate::parts::fault_tiering::{FaultPolicy, FaultTiering, PromotionRule, SlowFault};
use crate::parts::hint_scanner::{self, SLOW_TIERS};
use crate::parts::support::{scaled_pages, size};
use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "numab2",
    summary: "Linux memory tiering: promotes pages that fault soon after their mark, threshold follows a rate",
    source: "Linux 6.x, numa_balancing=2",
    settings: &[
        SettingInfo { key: "threshold", default: "1000ms", meaning: "hint-fault latency below which a page is hot" },
        SettingInfo { key: "rate", default: "65536MiB", meaning: "most promoted a second" },
        SettingInfo { key: "adjust", default: "60s", meaning: "time between adjustments of the threshold" },
        hint_scanner::SETTINGS[0],
        hint_scanner::SETTINGS[1],
        hint_scanner::SETTINGS[2],
        hint_scanner::SETTINGS[3],
    ],
    build: |settings| {
        let kernel =
            Kernel { demotion: true, promotion_gap: true, promotion_needs_high_watermark: true, ..Kernel::default() };
        let tiering = FaultTiering::new(settings, kernel, SLOW_TIERS, false)?;
        Ok(Box::new(FaultPolicy { tiering, judge: Mode2::new(settings)? }))
    },
};

/// Steps of the threshold: a sixteenth of twice the default.
const STEPS: u32 = 16;
const ABOVE: f64 = 1.1;
const BELOW: f64 = 0.9;
const WINDOW: Duration = Duration::from_secs(1);

/// See the module's header.
pub struct Mode2 {
    default: Duration,
    threshold: Duration,
    full_rate: Bytes,
    rate: u64,
    adjust: Duration,
    adjusted_at: Option<Time>,
    candidates: u64,
    candidates_at_adjustment: u64,
    window_began: Option<Time>,
    candidates_at_window: u64,
    limited: u64,
}

impl Mode2 {
    fn new(settings: &mut Settings) -> Result<Mode2, SettingsError> {
        let default = settings.duration("threshold")?;
        let full_rate = size(settings, "rate")?;
        Ok(Mode2 {
            default,
            threshold: default,
            full_rate,
            rate: full_rate.pages(),
            adjust: settings.duration("adjust")?,
            adjusted_at: None,
            candidates: 0,
            candidates_at_adjustment: 0,
            window_began: None,
            candidates_at_window: 0,
            limited: 0,
        })
    }

    fn adjust(&mut self, now: Time) {
        let since = *self.adjusted_at.get_or_insert(now);
        if now < since + self.adjust {
            return;
        }
        let wanted = self.rate as f64 * self.adjust.as_secs_f64();
        let seen = (self.candidates - self.candidates_at_adjustment) as f64;
        let step = self.default * 2 / STEPS;
        if seen > wanted * ABOVE {
            self.threshold = self.threshold.saturating_sub(step).max(step);
        } else if seen < wanted * BELOW {
            self.threshold = (self.threshold + step).min(self.default * 2);
        }
        (self.adjusted_at, self.candidates_at_adjustment) = (Some(now), self.candidates);
    }

    /// Counts a candidate. Returns whether the rate lets it through.
    fn admit(&mut self, now: Time, pages: u64) -> bool {
        let began = *self.window_began.get_or_insert(now);
        self.candidates += pages;
        if now.since(began) > WINDOW {
            (self.window_began, self.candidates_at_window) = (Some(now), self.candidates);
        }
        let admitted = self.candidates - self.candidates_at_window < self.rate;
        self.limited += if admitted { 0 } else { pages };
        admitted
    }
}

impl PromotionRule for Mode2 {
    fn name(&self) -> &'static str {
        INFO.name
    }

    fn judge(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages) {
        let range = pages.unit(fault.page);
        let count = u64::from(range.end.0 - range.start.0);
        if tiering.has_plenty(pages, |marks| marks.goal) {
            self.threshold = self.default;
            tiering.promote(fault.now, fault.page, pages);
            return;
        }
        self.adjust(fault.now);
        if fault.now.since(fault.marked) < self.threshold && self.admit(fault.now, count) {
            tiering.promote(fault.now, fault.page, pages);
        }
    }

    fn set_scale(&mut self, factor: u32) {
        self.rate = scaled_pages(self.full_rate, factor);
    }

    fn metrics(&self, metrics: &mut Vec<Metric>) {
        metrics.push(Metric { name: "hot_threshold_seconds", value: self.threshold.as_secs_f64() });
        metrics.push(Metric { name: "rate_limited_pages", value: self.limited as f64 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode2(rate: &str) -> Mode2 {
        Mode2::new(&mut Settings::from_pairs([("rate", rate)]).for_policy(&INFO)).unwrap()
    }

    #[test]
    fn the_threshold_steps_with_the_candidates_of_a_minute() {
        let check = |share: f64, before: u64, after: u64| {
            let mut judge = mode2("30MiB");
            judge.threshold = Duration::from_millis(before);
            judge.adjust(Time::ZERO);
            judge.candidates = (share * (judge.rate * 60) as f64) as u64;
            judge.adjust(Time::ZERO + Duration::from_secs(59));
            assert_eq!(judge.threshold.as_millis() as u64, before, "not before its time");
            judge.adjust(Time::ZERO + Duration::from_secs(60));
            assert_eq!(judge.threshold.as_millis() as u64, after, "{share} of the rate");
        };
        check(1.2, 1000, 875);
        check(1.0, 1000, 1000);
        check(0.5, 1000, 1125);
        check(2.0, 125, 125);
        check(0.0, 2000, 2000);
    }

    #[test]
    fn a_window_lets_its_rate_through_and_no_more() {
        let mut judge = mode2("1MiB");
        let admitted = (0..1000).filter(|_| judge.admit(Time::ZERO, 1)).count();
        assert_eq!(admitted, 255, "256 pages a second, the last one at the limit");
        let later = Time::ZERO + Duration::from_millis(1001);
        assert!(judge.admit(later, 1));
    }
}
