//! What the kernel's fault-driven policies share: the scanner, the promotions a fault asks for, and the counts.
//!
//! In: faults that a policy judged, places, outcomes. Out: promotions at once. Must not: judge a fault, which is what AutoNUMA, TPP,
//! Tiering-0.8 and mode 2 differ in; or demote: the kernel beneath does, or the simulator's model of it.
//!
//! A promotion is requested for in the call that reports the fault (`next_wake` is now). It succeeds only while fast memory has
//! more than its high watermark free; the driver holds it to that. Watermarks are those of [`terrace_core::reclaim`].
//! A policy of this kind is a [`PromotionRule`] in a [`FaultPolicy`]: the judge alone is what its file is about.
//! `heat` holds the judge's count in its low byte and two marks; policy bit 0 says that the page was fast when last seen.

use terrace_core::observation::{Observation, Observations, ScanBatch};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, Failure, MoveRequest, MoveRequests, Outcome, Reason, Rejection};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Needs, Policy, PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::reclaim::Watermarks;
use terrace_core::units::{Bytes, PageId, TierId, Time};

use crate::parts::hint_scanner::HintScanner;
use crate::parts::support::{self, scaled_pages};
use crate::{Settings, SettingsError};

const QUEUED: u16 = 0x8000;
const DEMOTED: u16 = 0x4000;
const JUDGE: u16 = 0x00ff;
const WAS_FAST: u8 = 1;

/// The room above the high watermark that Tiering-0.8 keeps for promotions: `min(10 MB, node / 64)` on nodes of 640 MiB and more.
pub const TIERING08_ROOM: Bytes = Bytes::mib(10);

/// The larger of 1 GiB and a sixteenth of the node above a watermark (specification section 8).
fn is_plenty(free: u64, capacity: u64, watermark: f64, scale: u32) -> bool {
    free as f64 > watermark + scaled_pages(Bytes::gib(1), scale).max(capacity / 16) as f64
}

/// A hint fault on a slow page.
#[derive(Clone, Copy, Debug)]
pub struct SlowFault {
    /// When it happened.
    pub now: Time,
    /// The page.
    pub page: PageId,
    /// Whether it was written.
    pub write: bool,
    /// When the page was made inaccessible.
    pub marked: Time,
}

/// What the fault-driven policies differ in: which faults promote.
pub trait PromotionRule: Send {
    /// The policy's name.
    fn name(&self) -> &'static str;
    /// A slow page was used. Calls [`FaultTiering::promote`] if that makes it hot.
    fn judge(&mut self, fault: SlowFault, tiering: &mut FaultTiering, pages: &mut Pages);
    /// A fast page was used, where the scanner marks those too.
    fn fast_fault(&mut self, _fault: SlowFault, _tiering: &mut FaultTiering, _pages: &mut Pages) {}
    /// Records pages that the kernel demoted.
    fn demoted(&mut self, _pages: u64) {}
    /// The machine is smaller by this factor.
    fn set_scale(&mut self, _factor: u32) {}
    /// Adds its figures.
    fn metrics(&self, _metrics: &mut Vec<Metric>) {}
}

/// A policy made of a judge and what all such policies share.
pub struct FaultPolicy<J> {
    /// What is shared.
    pub tiering: FaultTiering,
    /// What is not.
    pub judge: J,
}

impl<J: PromotionRule> Policy for FaultPolicy<J> {
    fn profile(&self) -> Profile {
        let needs = Needs { hint_faults: true, own_marks: true, ..Needs::default() };
        Profile::new(self.judge.name(), needs).above(self.tiering.kernel)
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.tiering.set_scale(factor);
            self.judge.set_scale(factor);
        }
    }

    fn remap(&mut self, now: Time, change: Remap<'_>, _pages: &mut Pages) {
        if matches!(change, Remap::Mapped(_)) {
            self.tiering.scanner.begin(now);
        }
    }

    fn observe(&mut self, now: Time, seen: Observations<'_>, pages: &mut Pages) {
        let mut demoted = 0;
        match seen {
            Observations::Scan(scan) => demoted += self.tiering.scan(&scan, pages),
            Observations::Events(events) => {
                for event in events {
                    match *event {
                        Observation::HintFault { page, write, marked } => {
                            let fault = SlowFault { now, page, write, marked };
                            if self.tiering.is_slow_fault(page, pages) {
                                self.judge.judge(fault, &mut self.tiering, pages);
                            } else {
                                self.judge.fast_fault(fault, &mut self.tiering, pages);
                            }
                        }
                        _ => demoted += self.tiering.refresh(event.page(), pages),
                    }
                }
            }
        }
        if demoted > 0 {
            self.judge.demoted(demoted);
        }
        self.tiering.scanner.tick(now, pages.footprint_of_all());
    }

    fn feedback(&mut self, _now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::Moved(done) => {
                let demoted = self.tiering.outcome(done, pages);
                if demoted > 0 {
                    self.judge.demoted(demoted);
                }
            }
            Feedback::Rejected(request, rejection) => self.tiering.refused(request, rejection, pages),
            _ => {}
        }
    }

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.tiering.plan(now, capacity, pages, requests);
    }

    fn place(&mut self, _now: Time, _page: PageId, capacity: &CapacityView<'_>) -> TierId {
        self.tiering.place(capacity)
    }

    fn schedule(&self) -> Schedule {
        Schedule { cadence: self.tiering.cadence(), wake_at: self.tiering.next_wake() }
    }

    fn report(&self) -> PolicyReport {
        let mut metrics = self.tiering.metrics();
        self.judge.metrics(&mut metrics);
        PolicyReport { memory_bytes: self.tiering.queue.capacity() * size_of::<PageId>(), metrics }
    }
}

/// Counts since the start, in 4 KiB pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Hint faults on slow pages.
    pub slow_faults: u64,
    /// Pages a fault asked to promote.
    pub candidates: u64,
    /// Those of them that had been demoted before: ping-pong.
    pub candidates_demoted: u64,
    /// Promoted.
    pub promoted: u64,
    /// Not promoted for lack of room.
    pub failed_no_room: u64,
    /// Not promoted for another reason.
    pub failed_other: u64,
    /// Demoted, by whomever.
    pub demoted: u64,
}

/// See the module's header.
pub struct FaultTiering {
    /// The hint-fault scanner.
    pub scanner: HintScanner,
    /// Counts since the start.
    pub counts: Counts,
    /// What the kernel beneath is taken to do.
    kernel: Kernel,
    scale: u32,
    capacity: Option<u64>,
    queue: Vec<PageId>,
    wake: Option<Time>,
}

impl FaultTiering {
    /// Reads the settings of the scanner. `kernel` is what the policy's kernel does.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(
        settings: &mut Settings,
        kernel: Kernel,
        tiers: u8,
        adaptive: bool,
    ) -> Result<FaultTiering, SettingsError> {
        Ok(FaultTiering {
            scanner: HintScanner::new(settings, tiers, adaptive)?,
            counts: Counts::default(),
            kernel,
            scale: 1,
            capacity: None,
            queue: Vec::new(),
            wake: Some(Time::ZERO),
        })
    }

    /// See [`terrace_core::policy::Setup::scale`].
    pub fn set_scale(&mut self, factor: u32) {
        self.scale = factor;
        self.scanner.set_scale(factor);
    }

    /// A page is where it is now: brings its marks up to date. Returns how many pages that shows to be demoted.
    pub fn refresh(&mut self, page: PageId, pages: &mut Pages) -> u64 {
        let unit = pages.unit(page);
        let count = u64::from(unit.end.0 - unit.start.0);
        let entry = &mut pages[unit.start];
        let was_fast = entry.policy_bits() & WAS_FAST != 0;
        match entry.tier() {
            None => {
                entry.set_policy_bits(0);
                entry.heat = 0;
                0
            }
            Some(tier) if tier > TierId::FAST && was_fast => {
                entry.set_policy_bits(0);
                entry.heat = DEMOTED;
                self.counts.demoted += count;
                count
            }
            Some(tier) => {
                entry.set_policy_bits(if tier == TierId::FAST { WAS_FAST } else { 0 });
                0
            }
        }
    }

    /// A walk shows places. Returns the pages it found demoted.
    pub fn scan(&mut self, scan: &ScanBatch<'_>, pages: &mut Pages) -> u64 {
        (0..scan.ptes.len()).map(|offset| self.refresh(scan.first.plus(offset as u32), pages)).sum()
    }

    /// Whether the page a fault hit lies in slow memory; counts the fault.
    pub fn is_slow_fault(&mut self, page: PageId, pages: &mut Pages) -> bool {
        self.refresh(page, pages);
        let unit = pages.unit(page).start;
        let slow = pages[unit].tier().is_some_and(|tier| tier > TierId::FAST);
        self.scanner.fault(!slow);
        self.counts.slow_faults += u64::from(slow);
        slow
    }

    /// Whether the page was demoted and has not come back since.
    pub fn was_demoted(&self, page: PageId, pages: &Pages) -> bool {
        pages[pages.unit(page).start].heat & DEMOTED != 0
    }

    /// The judge's own count of a page, 0 to 255.
    pub fn judged(page: PageId, pages: &Pages) -> u8 {
        (pages[pages.unit(page).start].heat & JUDGE) as u8
    }

    /// Sets the judge's own count.
    pub fn set_judged(page: PageId, count: u8, pages: &mut Pages) {
        let unit = pages.unit(page).start;
        pages[unit].heat = (pages[unit].heat & !JUDGE) | u16::from(count);
    }

    /// A fault asks for the promotion of a page, at once.
    pub fn promote(&mut self, now: Time, page: PageId, pages: &mut Pages) {
        let range = pages.unit(page);
        let count = u64::from(range.end.0 - range.start.0);
        let entry = &mut pages[range.start];
        if entry.heat & QUEUED != 0 {
            return;
        }
        self.counts.candidates += count;
        if entry.heat & DEMOTED != 0 {
            self.counts.candidates_demoted += count;
        }
        entry.heat |= QUEUED;
        self.queue.push(range.start);
        self.wake = Some(now);
    }

    /// Whether fast memory has so much free above a watermark that choosing what to promote is pointless.
    pub fn has_plenty(&self, pages: &Pages, watermark: impl Fn(Watermarks) -> f64) -> bool {
        // Not known before the first plan.
        self.capacity.is_some_and(|capacity| {
            let free = capacity.saturating_sub(pages.used_in_all(TierId::FAST));
            is_plenty(free, capacity, watermark(Watermarks::new(capacity, self.scale, &self.kernel)), self.scale)
        })
    }

    /// Moves were carried out, or failed. Returns the pages demoted.
    pub fn outcome(&mut self, done: &[Outcome], pages: &mut Pages) -> u64 {
        let mut demoted = 0;
        for outcome in done {
            let item = outcome.item;
            if pages.block(item.page.block()).is_none() {
                continue;
            }
            demoted += self.refresh(item.page, pages);
            if item.action != Action::MoveTo(TierId::FAST) {
                continue;
            }
            pages[item.page].heat &= !QUEUED;
            if outcome.done == item.pages {
                pages[item.page].heat = 0;
                self.counts.promoted += u64::from(item.pages);
            } else {
                self.failed(u64::from(item.pages), outcome.failure == Some(Failure::NoRoom));
            }
        }
        demoted
    }

    /// A request was not granted.
    pub fn refused(&mut self, request: &MoveRequest, rejection: Rejection, pages: &mut Pages) {
        if request.action == Action::MoveTo(TierId::FAST) && pages.block(request.page.block()).is_some() {
            let count = u64::from(pages.unit(request.page).end.0 - pages.unit(request.page).start.0);
            pages[request.page].heat &= !QUEUED;
            self.failed(count, rejection == Rejection::NoRoom);
        }
    }

    /// Requests what the faults asked for.
    pub fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.wake = None;
        self.scanner.tick(now, capacity.footprint);
        let limit = support::fast_limit(capacity);
        self.capacity = Some(limit);
        if capacity.tiers.len() < 2 {
            self.queue.clear();
            return;
        }
        let queue = std::mem::take(&mut self.queue);
        for page in queue {
            let live = pages.block(page.block()).is_some() && pages[page].heat & QUEUED != 0;
            if !live || pages[page].tier().is_none_or(|tier| tier == TierId::FAST) {
                continue;
            }
            if pages[page].moving() {
                self.queue.push(page);
                continue;
            }
            if requests.left() > 0 {
                requests.move_to(page, TierId::FAST, Reason::Hot);
            }
            self.queue.push(page);
        }
    }

    fn failed(&mut self, count: u64, no_room: bool) {
        self.scanner.failure();
        let counted = if no_room { &mut self.counts.failed_no_room } else { &mut self.counts.failed_other };
        *counted += count;
    }

    /// Where a new page goes: from the fast tier down; the watermarks are those of the kernel beneath.
    pub fn place(&self, capacity: &CapacityView<'_>) -> TierId {
        if capacity.tiers[0].used < support::fast_limit(capacity) {
            return TierId::FAST;
        }
        // What the watermarks keep free is used before there is none at all.
        let below = support::first_below(capacity);
        if capacity.tiers[usize::from(below.0)].free() == 0 && capacity.tiers[0].free() > 0 {
            TierId::FAST
        } else {
            below
        }
    }

    /// How to look: by the hint scanner.
    pub fn cadence(&self) -> Cadence {
        Cadence { share: 1.0, hint_scan: self.scanner.hint_scan(), ..Cadence::default() }
    }

    /// When to plan next.
    pub fn next_wake(&self) -> Option<Time> {
        [self.wake, self.scanner.next_change()].into_iter().flatten().min()
    }

    /// Counts as figures.
    pub fn metrics(&self) -> Vec<Metric> {
        let counts = &self.counts;
        let period = self.scanner.hint_scan().map_or(0.0, |scan| scan.period.as_secs_f64());
        vec![
            Metric { name: "slow_hint_faults", value: counts.slow_faults as f64 },
            Metric { name: "promote_candidate_pages", value: counts.candidates as f64 },
            Metric { name: "promote_candidate_demoted_pages", value: counts.candidates_demoted as f64 },
            Metric { name: "promoted_pages", value: counts.promoted as f64 },
            Metric { name: "promotion_failures_no_room", value: counts.failed_no_room as f64 },
            Metric { name: "promotion_failures_other", value: counts.failed_other as f64 },
            Metric { name: "demoted_pages", value: counts.demoted as f64 },
            Metric { name: "hint_scan_period_seconds", value: period },
            Metric { name: "metadata_bytes_per_page", value: 8.0 },
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_is_a_gibibyte_or_a_sixteenth() {
        let gib = Bytes::gib(1).pages();
        assert!(is_plenty(gib + 11, 8 * gib, 10.0, 1) && !is_plenty(gib + 10, 8 * gib, 10.0, 1));
        assert!(!is_plenty(2 * gib, 64 * gib, 10.0, 1) && is_plenty(5 * gib, 64 * gib, 10.0, 1));
    }
}
