//! The kernel's hint-fault scanner as a policy sees it: how large its steps are and how often they come.
//!
//! In: the footprint, faults, failures. Out: the window and period a driver should scan with. Must not: mark a page itself.
//!
//! Source: Linux 6.3 kernel/sched/fair.c as the specification (section 9) tells it.
//!
//! | constant | default | source |
//! |---|---|---|
//! | `scan_size` | 256 MiB a step | kernel default |
//! | `scan_delay` | 1000 ms | kernel default |
//! | `scan_min`, `scan_max` | 1000 ms, 60000 ms for one pass over the program | kernel defaults |
//! | least time between steps | 1000 ms / (2560 MiB / `scan_size`) = 100 ms | kernel |
//!
//! A pass has `windows = ceil(footprint / scan_size)` steps, so the time between steps runs from
//! `max(least, scan_min / windows)` to `max(that, scan_max / windows)`: a 64 GiB program is scanned every 100 to 234 ms.

use std::time::Duration;

use terrace_core::policy::HintScan;
use terrace_core::random::mix;
use terrace_core::units::{Bytes, TierId, Time};

use crate::parts::support::scaled_pages;
use crate::{SettingInfo, Settings, SettingsError};

/// The bytes the kernel is willing to scan a second at most.
const MOST_SCANNED_A_SECOND: u64 = 2560 << 20;
/// Share of local faults, in tenths, above which the scanner slows down.
const LOCAL_WANTED_TENTHS: i64 = 7;

/// The settings every policy with a scanner has.
pub const SETTINGS: [SettingInfo; 4] = [
    SettingInfo {
        key: "scan_size",
        default: "256MiB",
        meaning: "memory made inaccessible at each step of the scanner",
    },
    SettingInfo { key: "scan_delay", default: "1000ms", meaning: "age of the program at the first step" },
    SettingInfo { key: "scan_min", default: "1000ms", meaning: "least time of one pass over the program" },
    SettingInfo { key: "scan_max", default: "60000ms", meaning: "most time of one pass over the program" },
];

/// See the module's header.
#[derive(Clone, Debug)]
pub struct HintScanner {
    full_window: Bytes,
    window: u64,
    least: Duration,
    delay: Duration,
    min: Duration,
    max: Duration,
    tiers: u8,
    /// One of this many steps marks fast pages too; and the step that runs.
    fast_each: Option<u32>,
    step: u64,
    /// Whether the period follows the faults; otherwise it stays at its minimum.
    adaptive: bool,
    began: Option<Time>,
    footprint: u64,
    period: Option<Duration>,
    pass_ends: Option<Time>,
    passes: u64,
    local: u64,
    remote: u64,
    failed: bool,
    running: bool,
}

impl HintScanner {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings, tiers: u8, adaptive: bool) -> Result<HintScanner, SettingsError> {
        let size = settings.take("scan_size", "a size of at least one page", |text| {
            text.parse::<Bytes>().ok().filter(|size| size.pages() > 0)
        })?;
        let least = Duration::from_secs_f64(size.get() as f64 / MOST_SCANNED_A_SECOND as f64);
        Ok(HintScanner {
            full_window: size,
            window: size.pages(),
            least: least.max(Duration::from_micros(1)),
            delay: settings.duration("scan_delay")?,
            min: settings.duration("scan_min")?,
            max: settings.duration("scan_max")?,
            tiers,
            fast_each: None,
            step: 0,
            adaptive,
            began: None,
            footprint: 0,
            period: None,
            pass_ends: None,
            passes: 0,
            local: 0,
            remote: 0,
            failed: false,
            running: false,
        })
    }

    /// Marks pages of all tiers in one of `steps` steps, drawn by their number: a sample of fast memory at a part of the faults.
    pub fn mark_fast_in_one_of(&mut self, steps: u32) {
        self.fast_each = Some(steps.max(1));
    }

    /// How long a pass over the program takes; `None` before the delay is over.
    pub fn pass(&self) -> Option<Duration> {
        self.running.then(|| self.current() * u32::try_from(self.windows()).unwrap_or(u32::MAX))
    }

    /// The machine is smaller by this factor: so is the window, and so the number of windows stays.
    pub fn set_scale(&mut self, scale: u32) {
        self.window = scaled_pages(self.full_window, scale);
    }

    /// The program exists since now, or earlier.
    pub fn begin(&mut self, now: Time) {
        self.began.get_or_insert(now);
    }

    /// Time passed: starts the scanner after its delay, and ends passes. Call whenever the policy is called.
    pub fn tick(&mut self, now: Time, footprint: u64) {
        self.footprint = footprint;
        let Some(began) = self.began else { return };
        self.running = now >= began + self.delay;
        if !self.running {
            return;
        }
        if let Some(each) = self.fast_each {
            self.step = (now.since(began).as_nanos() / self.current().as_nanos().max(1)) as u64;
            self.tiers = if mix(self.step).is_multiple_of(u64::from(each)) { ALL_TIERS } else { SLOW_TIERS };
        }
        match self.pass_ends {
            Some(end) if now < end => {}
            earlier => {
                self.passes += u64::from(earlier.is_some());
                if earlier.is_some() && self.adaptive {
                    self.adapt();
                }
                (self.local, self.remote, self.failed) = (0, 0, false);
                let (windows, period) = (self.windows(), self.current());
                self.pass_ends = Some(now + period * u32::try_from(windows).unwrap_or(u32::MAX));
            }
        }
    }

    /// A hint fault happened; `local` if the page lay where the processor that used it is.
    pub fn fault(&mut self, local: bool) {
        if local {
            self.local += 1;
        } else {
            self.remote += 1;
        }
    }

    /// A move that a fault asked for failed.
    pub fn failure(&mut self) {
        self.failed = true;
    }

    /// Passes over the program that have ended.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// How to scan; `None` before the delay is over.
    pub fn hint_scan(&self) -> Option<HintScan> {
        self.running.then(|| HintScan { window_pages: self.window, period: self.current(), tiers: self.tiers })
    }

    /// When the scanner's state changes by itself.
    pub fn next_change(&self) -> Option<Time> {
        match (self.running, self.began) {
            (false, Some(began)) => Some(began + self.delay),
            (true, Some(began)) if self.fast_each.is_some() => {
                let next = self.current().as_nanos() as u64 * (self.step + 1);
                Some(began + Duration::from_nanos(next))
            }
            _ => self.pass_ends.filter(|_| self.adaptive),
        }
    }

    /// Least and most time between two steps for the footprint as it is.
    pub fn bounds(&self) -> (Duration, Duration) {
        let windows = self.windows() as f64;
        let min = self.least.max(self.min.div_f64(windows));
        (min, min.max(self.max.div_f64(windows)))
    }

    fn windows(&self) -> u64 {
        self.footprint.div_ceil(self.window).max(1)
    }

    fn current(&self) -> Duration {
        let (min, max) = self.bounds();
        self.period.unwrap_or(min).clamp(min, max)
    }

    /// Steps of a tenth around 70 % local faults. Which thread shares a page is not seen, so only locality counts.
    fn adapt(&mut self) {
        let period = self.current();
        let faults = self.local + self.remote;
        let next = if faults == 0 || self.failed {
            period * 2
        } else {
            let tenths = (self.local * 10 / faults) as i64;
            let slots = match tenths - LOCAL_WANTED_TENTHS {
                0 => 1,
                slots => slots,
            };
            let tenth = period.as_secs_f64() / 10.0;
            Duration::from_secs_f64((period.as_secs_f64() + slots as f64 * tenth).max(0.0))
        };
        let (min, max) = self.bounds();
        self.period = Some(next.clamp(min, max));
    }
}

/// The bits of all tiers but the fastest, for [`HintScan::tiers`].
pub const SLOW_TIERS: u8 = !(1 << TierId::FAST.0);
/// The bits of all tiers.
pub const ALL_TIERS: u8 = !0;

#[cfg(test)]
mod tests {
    use super::*;

    fn scanner(scale: u32, adaptive: bool) -> HintScanner {
        let mut scanner =
            HintScanner::new(&mut Settings::default().for_policy(&crate::tpp::INFO), ALL_TIERS, adaptive).unwrap();
        scanner.set_scale(scale);
        scanner
    }

    #[test]
    fn the_period_scales_with_the_resident_size() {
        let check = |gib: u64, min_ms: u64, max_ms: u64| {
            let mut scanner = scanner(1, false);
            scanner.tick(Time::ZERO, Bytes::gib(gib).pages());
            let (min, max) = scanner.bounds();
            assert_eq!((min.as_millis() as u64, max.as_millis() as u64), (min_ms, max_ms), "{gib} GiB");
        };
        check(64, 100, 234);
        check(1, 250, 15_000);
        check(0, 1000, 60_000);
    }

    #[test]
    fn scaling_keeps_the_passes() {
        let (mut full, mut small) = (scanner(1, false), scanner(64, false));
        full.tick(Time::ZERO, Bytes::gib(64).pages());
        small.tick(Time::ZERO, Bytes::gib(1).pages());
        assert_eq!(small.window * 64, full.window);
        assert_eq!(small.bounds(), full.bounds());
    }

    #[test]
    fn it_starts_after_its_delay_and_slows_down_without_faults_or_with_failures() {
        let mut scanner = scanner(1, true);
        let footprint = Bytes::mib(512).pages();
        scanner.begin(Time::ZERO);
        scanner.tick(Time::ZERO, footprint);
        assert_eq!(scanner.hint_scan(), None);
        let mut now = Time::ZERO + Duration::from_secs(1);
        scanner.tick(now, footprint);
        assert_eq!(scanner.hint_scan().unwrap().period, Duration::from_millis(500));
        let mut pass = |scanner: &mut HintScanner, local, remote, failed| {
            (0..local).for_each(|_| scanner.fault(true));
            (0..remote).for_each(|_| scanner.fault(false));
            if failed {
                scanner.failure();
            }
            now = scanner.next_change().unwrap();
            scanner.tick(now, footprint);
            scanner.hint_scan().unwrap().period.as_millis()
        };
        assert_eq!(pass(&mut scanner, 0, 0, false), 1000, "no faults");
        assert_eq!(pass(&mut scanner, 5, 5, true), 2000, "a failure");
        assert_eq!(pass(&mut scanner, 5, 5, false), 1600, "half local: two slots faster");
        assert_eq!(pass(&mut scanner, 9, 1, false), 1920, "nine tenths local: two slots slower");
    }
}
