//! `alto`: Alto over TPP or the kernel's tiering. Promotions and marking are scaled by what a miss costs once overlap is counted.
//!
//! In: what the system beneath it sees, and how long cores waited for how many accesses. Out: that system's promotions, as many as pay; its scanner,
//! slowed down alike. Must not: choose pages; which ones come up is for the system beneath.
//!
//! Source: Alto (Soar and Alto, OSDI 2025) and the scripts of its artefact [C]. AOL, the amortised offcore latency, is the time with a read
//! outstanding over the reads: latency divided by how many overlap.
//!
//! | constant | default | meaning |
//! |---|---|---|
//! | `period` | 1 s | between two looks at the counters [C] |
//! | `latency` | 100 cycles | mean load latency up to which everything is promoted [C] |
//! | steps of AOL | 40, 60, 80, 100 cycles | promoted up to each: none, 1, 3, 5 of 10; above, all [C] |
//! | marking | 0, 2, 4, 8, 16 sixteenths | of the scanner's window, by the same steps; the artefact has 0, 1, 2, 4, 8, 16 [D] |
//! | `ghz` | 2.2 | cycles a nanosecond; the steps are those of a Skylake at this rate [D] |
//!
//! Ambiguities: reads are taken to be the accesses that memory serves, and the time with a read outstanding what cores waited for memory. Where
//! nobody counts, the system beneath runs alone. It has its default settings.
//!
//! Memory beside that of the system beneath: none.

use std::time::Duration;

use terrace_core::observation::Observations;
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, MoveRequests, Rejection};
use terrace_core::policy::{
    CapacityView, Facet, Feedback, Metric, Policy, PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{PageId, TierId, Time};

use crate::{PolicyInfo, SettingInfo, Settings, SettingsError};

/// The policy's entry in the registry.
pub const INFO: PolicyInfo = PolicyInfo {
    name: "alto",
    summary: "Alto over TPP or NUMA balancing: promotes and marks the less the more misses overlap",
    source: "Soar and Alto, OSDI 2025",
    settings: &[
        SettingInfo { key: "over", default: "tpp", meaning: "the system beneath: tpp, numab2, autonuma or tiering08" },
        SettingInfo { key: "period", default: "1s", meaning: "time between two looks at the counters" },
        SettingInfo {
            key: "latency",
            default: "100",
            meaning: "cycles of mean load latency up to which all is promoted",
        },
        SettingInfo { key: "ghz", default: "2.2", meaning: "cycles a nanosecond" },
    ],
    build: |settings| Ok(Box::new(Alto::new(settings)?)),
};

/// Cycles of AOL; promotions of ten up to it; pages of sixteen marked.
const STEPS: [(f64, u32, u64); 4] = [(40.0, 0, 0), (60.0, 1, 2), (80.0, 3, 4), (100.0, 5, 8)];
const ALL: (u32, u64) = (10, 16);

/// What is let through at this AOL and mean latency, in cycles: of ten promotions, and of sixteen pages to mark.
fn level(aol: f64, latency: f64, only_above: f64) -> (u32, u64) {
    if latency <= only_above {
        return ALL;
    }
    STEPS.iter().find(|(most, ..)| aol <= *most).map_or(ALL, |&(_, promoted, marked)| (promoted, marked))
}

/// See the module's header.
pub struct Alto {
    beneath: Box<dyn Policy>,
    period: Duration,
    only_above: f64,
    ghz: f64,
    running: ProcessorCounts,
    /// Sum of latencies over accesses, in nanoseconds.
    latencies: f64,
    aol: f64,
    latency: f64,
    promoted: u32,
    marked: u64,
    /// Promotions asked for, of which `promoted` in each ten pass.
    asked: u32,
    next: Time,
    held_back: u64,
}

impl Alto {
    /// Reads the settings.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(settings: &mut Settings) -> Result<Alto, SettingsError> {
        let names = ["tpp", "numab2", "autonuma", "tiering08"];
        let over = settings.choice("over", &names.map(|name| (name, name)))?;
        Ok(Alto {
            beneath: crate::build(over, Settings::default())?,
            period: settings.duration("period")?,
            only_above: settings.number("latency", 0.0..=1e6)?,
            ghz: settings.number("ghz", 0.1..=100.0)?,
            running: ProcessorCounts::default(),
            latencies: 0.0,
            aol: 0.0,
            latency: 0.0,
            promoted: ALL.0,
            marked: ALL.1,
            asked: 0,
            next: Time::ZERO,
            held_back: 0,
        })
    }

    fn count(&mut self, counts: &ProcessorCounts) {
        let fast = counts.memory_accesses.saturating_sub(counts.slow_accesses) as f64;
        self.latencies += fast * counts.latency_ns[0] + counts.slow_accesses as f64 * counts.latency_ns[1];
        self.running.memory_accesses += counts.memory_accesses;
        self.running.memory_wait_ns += counts.memory_wait_ns;
    }

    fn look(&mut self, now: Time) {
        self.next = now + self.period;
        let counts = std::mem::take(&mut self.running);
        let latencies = std::mem::take(&mut self.latencies);
        if counts.memory_accesses == 0 || latencies <= 0.0 {
            return;
        }
        let accesses = counts.memory_accesses as f64;
        self.aol = counts.memory_wait_ns / accesses * self.ghz;
        self.latency = latencies / accesses * self.ghz;
        (self.promoted, self.marked) = level(self.aol, self.latency, self.only_above);
    }

    /// Whether the next promotion is one of those that pass.
    fn passes(&mut self) -> bool {
        self.asked = (self.asked + 1) % 10;
        // Spread over the ten: the n-th passes where n times the share reaches the next whole number.
        (self.asked * self.promoted) % 10 < self.promoted
    }
}

impl Policy for Alto {
    fn profile(&self) -> Profile {
        Profile { name: INFO.name, ..self.beneath.profile() }
    }

    fn configure(&mut self, setup: Setup) {
        self.beneath.configure(setup);
    }

    fn remap(&mut self, now: Time, change: Remap<'_>, pages: &mut Pages) {
        self.beneath.remap(now, change, pages);
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        self.beneath.observe(now, seen, pages);
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        if let Feedback::Processor(counts) = &feedback {
            self.count(counts);
        }
        self.beneath.feedback(now, feedback, pages);
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if now >= self.next {
            self.look(now);
        }
        let mut asked = MoveRequests::with_limit(requests.left());
        self.beneath.plan(now, capacity, pages, &mut asked);
        for request in asked.into_vec() {
            if request.action == Action::MoveTo(TierId::FAST) && !self.passes() {
                self.held_back += u64::from(pages.unit(request.page).end.0 - pages.unit(request.page).start.0);
                self.beneath.feedback(now, Feedback::Rejected(&request, Rejection::Throttled), pages);
            } else {
                requests.push(request.page, request.action, request.reason);
            }
        }
    }

    fn place(&mut self, now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        self.beneath.place(now, page, capacity)
    }

    fn schedule(&self) -> Schedule {
        let mut schedule = self.beneath.schedule();
        schedule.cadence.hint_scan = schedule.cadence.hint_scan.filter(|_| self.marked > 0).map(|mut scan| {
            scan.window_pages = (scan.window_pages * self.marked / ALL.1).max(1);
            scan
        });
        Schedule { wake_at: Some(schedule.wake_at.map_or(self.next, |at| at.min(self.next))), ..schedule }
    }

    fn report(&self) -> PolicyReport {
        let mut report = self.beneath.report();
        let metric = |name, value| Metric { name, value };
        report.metrics.extend([
            metric("aol_cycles", self.aol),
            metric("load_latency_cycles", self.latency),
            metric("promoted_of_ten", f64::from(self.promoted)),
            metric("held_back_pages", self.held_back as f64),
        ]);
        report
    }

    fn facet(&mut self) -> Option<Facet<'_>> {
        self.beneath.facet()
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::engine::Input;

    use super::*;
    use crate::rig::{Rig, SLOW};

    const MILLIS: Duration = Duration::from_millis(1);

    /// Two hundred slow pages and as much fast memory as they need, over TPP, after a second in which an access cost this many nanoseconds.
    fn after(wait: f64, latency: f64) -> Rig {
        let policy = crate::build("alto", Settings::default()).unwrap();
        let mut rig = Rig::new(policy, &[20_000, 100_000]);
        rig.map(1000);
        rig.born(0..200, SLOW);
        rig.pass(Duration::from_secs(1));
        let mut counts = ProcessorCounts {
            memory_accesses: 1000,
            slow_accesses: 500,
            memory_wait_ns: 1000.0 * wait,
            ..ProcessorCounts::default()
        };
        counts.latency_ns[..2].copy_from_slice(&[latency, latency]);
        rig.now = rig.now + Duration::from_secs(1);
        rig.engine.handle(rig.now, Input::Processor(counts));
        rig.settle();
        rig
    }

    #[test]
    fn the_more_misses_overlap_the_fewer_pages_come_up() {
        let check = |wait: f64, latency: f64, wanted: u64| {
            let mut rig = after(wait, latency);
            for page in 0..100 {
                rig.fault([page, page], MILLIS, false);
            }
            assert_eq!(rig.promotions, wanted, "{wait} ns a miss, {latency} ns latency");
        };
        // At 2.2 GHz: 22, 55, 77, 99 and 220 cycles.
        check(10.0, 100.0, 0);
        check(25.0, 100.0, 10);
        check(35.0, 100.0, 30);
        check(45.0, 100.0, 50);
        check(100.0, 100.0, 100);
        check(10.0, 40.0, 100);
    }

    #[test]
    fn what_is_not_promoted_is_not_marked_either() {
        let window = |wait: f64| {
            let rig = after(wait, 100.0);
            rig.cadence.hint_scan.map(|scan| scan.window_pages)
        };
        let whole = window(100.0).unwrap();
        assert_eq!(window(45.0), Some(whole / 2));
        assert_eq!(window(10.0), None);
    }
}
