//! The kernel's watermarks and its reclaim of fast memory, for policies that stand for a kernel.
//!
//! In: capacities, births, accessed bits. Out: demotions from the inactive tails until the goal is free. Must not: promote.
//!
//! A kernel policy can run in two ways. With `reclaim=kernel` (the default) the kernel beneath does this by itself: the simulator
//! models it from the accessed bits it alone sees, a live kernel has it. With `reclaim=policy` the policy keeps its own
//! lists from walks of accessed bits and requests for the demotions, so that the same rules run where no kernel does.
//!
//! Watermarks and list ratios are those of [`terrace_core::reclaim`], as the simulator's kernel has them.
//!
//! | constant | value | source |
//! |---|---|---|
//! | rest after failures | 16 times nothing to move, then 10 s | section 10 [C] |

use std::time::Duration;

use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::reclaim::Watermarks;
use terrace_core::units::{Bytes, PageId, TierId, Time};

use crate::SettingInfo;
use crate::parts::lru::{Kind, Lru, Place};

/// The setting that says who reclaims.
pub const RECLAIM: SettingInfo = SettingInfo {
    key: "reclaim",
    default: "kernel",
    meaning: "who demotes: the kernel beneath (or its model), or the policy from its own lists",
};
/// The setting of how often accessed bits are read for the policy's own lists.
pub const SCAN: SettingInfo = SettingInfo {
    key: "reference_scan",
    default: "1s",
    meaning: "time between readings of the accessed bits with reclaim=policy",
};

const FAILURES_BEFORE_REST: u32 = 16;
const REST: Duration = Duration::from_secs(10);
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

    /// Requests for demotions until `marks.goal` pages would be free, where `free` are now.
    pub fn run(
        &mut self,
        now: Time,
        free: u64,
        marks: &Watermarks,
        scale: u32,
        pages: &Pages,
        requests: &mut MoveRequests,
    ) {
        self.awake |= (free as f64) < marks.wake;
        if self.rests_until.is_some_and(|until| now < until) || !self.awake {
            return;
        }
        self.rests_until = None;
        let wanted = (marks.goal.ceil() as u64).saturating_sub(free).min(requests.left() as u64);
        if wanted == 0 {
            self.awake = false;
            return;
        }
        let mut victims = Vec::new();
        let got = self.shrink(wanted, scale, pages, &mut victims);
        for unit in victims {
            requests.move_to(unit, TierId::FAST.below(), Reason::MakeRoom);
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
            if self.lru.inactive_is_low(TierId::FAST, kind, scale) {
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
