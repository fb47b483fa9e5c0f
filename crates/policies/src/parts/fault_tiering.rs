//! What the kernel's fault-driven policies share: the scanner, the promotions a fault asks for, reclaim, and the counts.
//!
//! In: faults that a policy judged, places, outcomes. Out: promotions at once, demotions where reclaim is the policy's own.
//! Must not: judge a fault; that is what AutoNUMA, TPP, Tiering-0.8 and mode 2 differ in.
//!
//! A promotion is requested for in the call that reports the fault (`next_wake` is now). It succeeds only while fast memory has
//! more than its high watermark free; the driver holds it to that with `reclaim=kernel`, this module otherwise.
//! A policy of this kind is a [`PromotionRule`] in a [`FaultPolicy`]: the judge alone is what its file is about.
//! `heat` holds the judge's count in its low byte and two marks; policy bit 0 says that the page was fast when last seen.

use std::ops::Range;
use std::time::Duration;

use terrace_core::observation::{Observation, Observations, ScanBatch};
use terrace_core::pages::Pages;
use terrace_core::plan::{Action, Failure, MoveRequest, MoveRequests, Outcome, Reason, Rejection};
use terrace_core::policy::{
    Cadence, CapacityView, Feedback, Kernel, Metric, Needs, Policy, PolicyReport, Profile, Remap, Schedule, Setup,
};
use terrace_core::reclaim::{Watermarks, piece};
use terrace_core::units::{Bytes, PageId, SpaceId, TierId, Time, Vpn};

use crate::parts::hint_scanner::HintScanner;
use crate::parts::kernel_reclaim::{OwnReclaim, RECLAIM, SCAN};
use crate::parts::support::{self, scaled_pages};
use crate::{Settings, SettingsError};

const QUEUED: u16 = 0x8000;
const DEMOTED: u16 = 0x4000;
const JUDGE: u16 = 0x00ff;
const WAS_FAST: u8 = 1;

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
    /// Records pages demoted by the kernel or by the policy's own reclaim.
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
        Profile::new(self.judge.name(), self.tiering.needs()).above(self.tiering.kernel())
    }

    fn configure(&mut self, setup: Setup) {
        if let Some(factor) = setup.scale {
            self.tiering.set_scale(factor);
            self.judge.set_scale(factor);
        }
    }

    fn remap(&mut self, now: Time, change: Remap<'_>, pages: &mut Pages) {
        match change {
            Remap::Mapped(_) => self.tiering.mapped(now, pages),
            Remap::Unmapping(space, range) => self.tiering.unmapping(space, &range, pages),
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
        self.tiering.note_use(now, pages);
        self.tiering.scanner.tick(now, pages.footprint_of_all());
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, pages: &mut Pages) {
        match feedback {
            Feedback::ScanDone(_) => self.tiering.round(now),
            Feedback::Moved(done) => {
                let demoted = self.tiering.outcome(now, done, pages);
                if demoted > 0 {
                    self.judge.demoted(demoted);
                }
            }
            Feedback::Rejected(request, rejection) => self.tiering.refused(now, request, rejection, pages),
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
        PolicyReport { memory_bytes: self.tiering.memory_bytes(), metrics }
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
    own: Option<OwnReclaim>,
    reference_scan: Duration,
    scan_at: Time,
    scale: u32,
    capacity: Option<u64>,
    queue: Vec<PageId>,
    wake: Option<Time>,
}

impl FaultTiering {
    /// Reads the settings of the scanner and of reclaim. `kernel` is what the policy's kernel does.
    ///
    /// # Errors
    /// When a value is none of its kind.
    pub fn new(
        settings: &mut Settings,
        kernel: Kernel,
        tiers: u8,
        adaptive: bool,
    ) -> Result<FaultTiering, SettingsError> {
        let by_policy = settings.choice(RECLAIM.key, &[("kernel", false), ("policy", true)])?;
        Ok(FaultTiering {
            scanner: HintScanner::new(settings, tiers, adaptive)?,
            counts: Counts::default(),
            kernel,
            own: by_policy.then(OwnReclaim::default),
            reference_scan: settings.duration(SCAN.key)?,
            scan_at: Time::ZERO,
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

    /// The factor by which the machine is smaller.
    pub fn scale(&self) -> u32 {
        self.scale
    }

    /// What the kernel beneath does: all of it, or nothing where reclaim is the policy's own.
    pub fn kernel(&self) -> Kernel {
        if self.own.is_some() { Kernel::default() } else { self.kernel }
    }

    /// Accessed bits where reclaim is the policy's own, and hint faults.
    pub fn needs(&self) -> Needs {
        Needs { scans: self.own.is_some(), hint_faults: true, own_marks: true, ..Needs::default() }
    }

    /// Blocks appeared.
    pub fn mapped(&mut self, now: Time, pages: &Pages) {
        self.scanner.begin(now);
        if let Some(own) = &mut self.own {
            own.lru.fit(pages);
        }
    }

    /// Pages are about to vanish.
    pub fn unmapping(&mut self, space: SpaceId, range: &Range<Vpn>, pages: &Pages) {
        let Some(own) = &mut self.own else { return };
        support::each_page(pages, space, range, |page| own.lru.forget(page));
    }

    /// A page is where it is now: brings lists and marks up to date. Returns how many pages that shows to be demoted.
    pub fn refresh(&mut self, page: PageId, pages: &mut Pages) -> u64 {
        let unit = pages.unit(page);
        if let Some(own) = &mut self.own {
            own.lru.refresh(page, pages);
        }
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

    /// A walk: places, and accessed bits for the lists. Returns the pages it found demoted.
    pub fn scan(&mut self, scan: &ScanBatch<'_>, pages: &mut Pages) -> u64 {
        let mut demoted = 0;
        for (offset, pte) in scan.ptes.iter().enumerate() {
            let page = scan.first.plus(offset as u32);
            demoted += self.refresh(page, pages);
            if let Some(own) = self.own.as_mut().filter(|_| scan.window.is_some() && pte.accessed()) {
                own.lru.set_young(pages.unit(page).start);
            }
        }
        demoted
    }

    /// A round of accessed bits is complete.
    pub fn round(&mut self, now: Time) {
        self.scan_at = now + self.reference_scan;
    }

    /// An allocation may have left little: wakes the policy's own reclaim.
    pub fn note_use(&mut self, now: Time, pages: &Pages) {
        let (Some(own), Some(capacity)) = (&mut self.own, self.capacity) else { return };
        let marks = Watermarks::new(capacity, self.scale, &self.kernel);
        let free = capacity.saturating_sub(pages.used_in_all(TierId::FAST));
        if self.kernel.demotion && (free as f64) < marks.wake && own.rests_until().is_none_or(|until| until <= now) {
            own.wake();
            self.wake = Some(now);
        }
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
    pub fn outcome(&mut self, now: Time, done: &[Outcome], pages: &mut Pages) -> u64 {
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
                self.failed(now, u64::from(item.pages), outcome.failure == Some(Failure::NoRoom));
            }
        }
        demoted
    }

    /// A request was not granted.
    pub fn refused(&mut self, now: Time, request: &MoveRequest, rejection: Rejection, pages: &mut Pages) {
        if request.action == Action::MoveTo(TierId::FAST) && pages.block(request.page.block()).is_some() {
            let count = u64::from(pages.unit(request.page).end.0 - pages.unit(request.page).start.0);
            pages[request.page].heat &= !QUEUED;
            self.failed(now, count, rejection == Rejection::NoRoom);
        }
    }

    /// Requests: what the faults asked for first, then what reclaim must free.
    pub fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        self.wake = None;
        self.scanner.tick(now, capacity.footprint);
        let limit = support::fast_limit(capacity);
        self.capacity = Some(limit);
        if capacity.tiers.len() < 2 {
            self.queue.clear();
            return;
        }
        let marks = Watermarks::new(limit, self.scale, &self.kernel);
        let mut free = limit.saturating_sub(capacity.tiers[0].used);
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
            let range = pages.unit(page);
            let count = u64::from(range.end.0 - range.start.0);
            if self.own.is_some() {
                if free < count || free as f64 <= marks.high + piece(count, self.scale, false) {
                    pages[page].heat &= !QUEUED;
                    self.failed(now, count, true);
                    continue;
                }
                free -= count;
            }
            if requests.left() > 0 {
                requests.move_to(page, TierId::FAST, Reason::Hot);
            }
            self.queue.push(page);
        }
        if let Some(own) = self.own.as_mut().filter(|_| self.kernel.demotion) {
            own.run(now, free, &marks, self.scale, pages, requests);
        }
        self.wake = None;
    }

    fn failed(&mut self, now: Time, count: u64, no_room: bool) {
        self.scanner.failure();
        if !no_room {
            self.counts.failed_other += count;
            return;
        }
        self.counts.failed_no_room += count;
        if let Some(own) = self.own.as_mut().filter(|_| self.kernel.demotion) {
            own.wake();
            self.wake = Some(now);
        }
    }

    /// Where a new page goes. Beneath a kernel that reclaims, the kernel's own watermarks decide from the fast tier down.
    pub fn place(&self, capacity: &CapacityView<'_>) -> TierId {
        let limit = support::fast_limit(capacity);
        let low = match self.own {
            Some(_) => Watermarks::new(limit, self.scale, &self.kernel).low.ceil() as u64,
            None => 0,
        };
        if capacity.tiers[0].used + low < limit {
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

    /// How to look: the hint scanner, and accessed bits for the policy's own lists.
    pub fn cadence(&self) -> Cadence {
        Cadence {
            scan_at: self.own.is_some().then_some(self.scan_at),
            share: 1.0,
            hint_scan: self.scanner.hint_scan(),
            ..Cadence::default()
        }
    }

    /// When to plan next.
    pub fn next_wake(&self) -> Option<Time> {
        let rest = self.own.as_ref().and_then(OwnReclaim::rests_until);
        [self.wake, self.scanner.next_change(), rest].into_iter().flatten().min()
    }

    /// Bytes kept beside the pages.
    pub fn memory_bytes(&self) -> usize {
        let lists = self.own.as_ref().map_or(0, |own| own.lru.memory_bytes());
        lists + self.queue.capacity() * size_of::<PageId>()
    }

    /// Counts as figures.
    pub fn metrics(&self) -> Vec<Metric> {
        let counts = &self.counts;
        let own = if self.own.is_some() { crate::parts::lru::BYTES_PER_PAGE } else { 0.0 };
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
            Metric { name: "metadata_bytes_per_page", value: 8.0 + own },
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
