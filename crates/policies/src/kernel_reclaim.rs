//! The kernel's watermarks and its reclaim of fast memory, for policies that stand for a kernel.
//!
//! In: capacities, births, accessed marks. Out: demotions from the inactive tails until the goal is free. Must not: promote.
//!
//! A kernel policy can run in two ways. With `reclaim=kernel` (the default) the kernel beneath does this by itself: the simulator
//! models it from the accessed bits it alone sees, a live kernel has it. With `reclaim=policy` the policy keeps its own
//! lists from walks of accessed marks and wishes for the demotions, so that the same rules run where no kernel does.
//!
//! | constant | value | source |
//! |---|---|---|
//! | min | 4 * sqrt(KiB of the zone), 128 KiB to 256 MiB | kernel documentation (unverified) |
//! | gap | the larger of min / 4 and 0.1 % of the zone | specification section 8 [C] |
//! | low, high | min + gap, low + gap | specification section 8 [C] |
//! | goal | high; high + room for promotions; or TPP's share of the zone, at least 2 * high | sections 8 and 10 [C] |
//! | rest after failures | 16 times nothing to move, then 10 s | section 10 [C] |

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::plan::{Reason, Wishes};
use terrace_core::policy::Kernel;
use terrace_core::units::{Bytes, PageId, TierId, Time};

use crate::SettingInfo;
use crate::lru::{Kind, Lru, Place};

/// The setting that says who reclaims.
pub const RECLAIM: SettingInfo = SettingInfo {
    key: "reclaim",
    default: "kernel",
    meaning: "who demotes: the kernel beneath (or its model), or the policy from its own lists",
};
/// The setting of how often accessed marks are read for the policy's own lists.
pub const SCAN: SettingInfo = SettingInfo {
    key: "reference_scan",
    default: "1s",
    meaning: "time between readings of the accessed marks with reclaim=policy",
};

const FAILURES_BEFORE_REST: u32 = 16;
const REST: Duration = Duration::from_secs(10);
/// A gibibyte of pages as a power of two: list ratios grow with the size of the lists.
const GIB_SHIFT: u32 = 18;

/// Watermarks of free memory of the fast tier, in 4 KiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneMarks {
    /// New pages go elsewhere below this.
    pub low: u64,
    /// Promotions need more than this.
    pub high: u64,
    /// Reclaim frees up to this.
    pub goal: u64,
    /// Reclaim starts below this.
    pub wake: u64,
}

impl ZoneMarks {
    /// The marks of a tier of `pages`, computed for the full-size machine and shrunk with it.
    pub fn new(pages: u64, scale: u32, kernel: &Kernel) -> ZoneMarks {
        let scale = u64::from(scale.max(1));
        let full = pages * scale;
        let min_kib = (4.0 * ((full * 4) as f64).sqrt()).clamp(128.0, 262_144.0);
        let min = (min_kib / 4.0) as u64;
        let gap = (min / 4).max(full / 1000);
        let (low, high) = (min + gap, min + 2 * gap);
        let room = kernel.promotion_room.pages() + if kernel.promotion_gap { gap } else { 0 };
        let (mut goal, mut wake) = (high + room, low);
        if room > 0 && kernel.early_wake {
            wake = high + room / 2;
        }
        if kernel.demote_scale > 0 {
            let demote = (full * u64::from(kernel.demote_scale) / 10_000).max(2 * high).min(full);
            goal = goal.max(demote);
            wake = wake.max(demote);
        }
        let small = |full: u64| full.div_ceil(scale).min(pages / 2);
        ZoneMarks { low: small(low), high: small(high), goal: small(goal), wake: small(wake) }
    }
}

/// The policy's own reclaim.
#[derive(Clone, Debug, Default)]
pub struct OwnReclaim {
    /// The lists it reclaims from.
    pub lru: Lru,
    awake: bool,
    failures: u32,
    rests_until: Option<Time>,
}

impl OwnReclaim {
    /// A promotion found no room, or an allocation found little: reclaim should run.
    pub fn wake(&mut self) {
        self.awake = true;
    }

    /// When it will try again after it found nothing to move.
    pub fn rests_until(&self) -> Option<Time> {
        self.rests_until
    }

    /// Wishes for demotions until `marks.goal` pages would be free, where `free` are now.
    pub fn run(&mut self, now: Time, free: u64, marks: &ZoneMarks, scale: u32, pages: &Pages, wishes: &mut Wishes) {
        self.awake |= free < marks.wake;
        if self.rests_until.is_some_and(|until| now < until) || !self.awake {
            return;
        }
        self.rests_until = None;
        let wanted = marks.goal.saturating_sub(free).min(wishes.left() as u64);
        if wanted == 0 {
            self.awake = false;
            return;
        }
        let mut victims = Vec::new();
        let got = self.shrink(wanted, scale, pages, &mut victims);
        for unit in victims {
            wishes.move_to(unit, TierId::FAST.below(), Reason::MakeRoom);
        }
        if got == 0 {
            self.failures += 1;
            if self.failures >= FAILURES_BEFORE_REST {
                (self.failures, self.awake) = (0, false);
                self.rests_until = Some(now + REST);
            }
        } else {
            self.failures = 0;
        }
    }

    /// Both kinds give in proportion to the size of their lists; the active lists are aged where the inactive are short.
    fn shrink(&mut self, wanted: u64, scale: u32, pages: &Pages, victims: &mut Vec<PageId>) -> u64 {
        let place = |kind, active| Place { tier: TierId::FAST, kind, active };
        let size = |lru: &Lru, kind| lru.size(place(kind, false)) + lru.size(place(kind, true));
        let (anonymous, file) = (size(&self.lru, Kind::Anonymous), size(&self.lru, Kind::File));
        let file_share = (wanted as f64 * file as f64 / (anonymous + file).max(1) as f64).round() as u64;
        let mut got = 0;
        for (kind, share) in [(Kind::File, file_share), (Kind::Anonymous, wanted - file_share)] {
            let gib = ((size(&self.lru, kind) * u64::from(scale)) >> GIB_SHIFT) as f64;
            if self.lru.inactive_is_low(TierId::FAST, kind, gib) {
                self.lru.age(TierId::FAST, kind, share.max(32));
            }
            let busy = |unit: PageId| pages[unit].moving() || pages[unit].pinned();
            got += self.lru.victims(place(kind, false), share, busy, victims);
        }
        got
    }
}

/// The room above the high watermark that Tiering-0.8 keeps for promotions: `min(10 MB, node / 64)` on nodes of 640 MiB and more.
pub const TIERING08_ROOM: Bytes = Bytes::mib(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_of_a_thirty_gibibyte_zone() {
        let pages = Bytes::gib(30).pages();
        // min = 4 * sqrt(31457280) KiB = 22434 KiB = 5608 pages; gap = 0.1 % = 7864 pages.
        let check = |kernel: Kernel, goal: u64, wake: u64| {
            let marks = ZoneMarks::new(pages, 1, &kernel);
            assert_eq!((marks.low, marks.high, marks.goal, marks.wake), (13_472, 21_336, goal, wake), "{kernel:?}");
        };
        check(Kernel::default(), 21_336, 13_472);
        check(Kernel { demote_scale: 200, ..Kernel::default() }, pages * 200 / 10_000, pages * 200 / 10_000);
        check(
            Kernel { promotion_room: TIERING08_ROOM, early_wake: true, ..Kernel::default() },
            21_336 + 2560,
            21_336 + 1280,
        );
        check(Kernel { promotion_gap: true, ..Kernel::default() }, 29_200, 13_472);
        let small = ZoneMarks::new(pages / 64, 64, &Kernel::default());
        assert_eq!(small.high, 21_336_u64.div_ceil(64));
    }
}
