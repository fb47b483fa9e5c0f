//! The kernel's rules of reclaim as pure code: watermarks, the share of inactive pages, the time of a kernel thread.
//!
//! In: sizes of zones and lists, the factor by which a machine is scaled down, elapsed time. Out: watermarks, ratios, and whether a thread
//! may go on. Must not: hold pages or lists; the caller does. The simulator and the policies that imitate a kernel use the same rules.
//!
//! Facts (Linux 5.15 to 6.x as documented; specification sections 8 and 10): min_free_kbytes is 4 * sqrt(kilobytes), 128 KiB to 256 MiB;
//! the gap between watermarks is the larger of a quarter of min and 0.1 % of the zone (watermark_scale_factor 10); low is min + gap, high
//! is low + gap. For anonymous and for file pages each, the active list shrinks while it is longer than the inactive one times sqrt(10 *
//! GiB of both), a whole number of at least 1.
//!
//! All of it is computed for the full-size machine and then scaled down. Watermarks on a scaled machine are fractions of pages: rounded,
//! the 10 MiB that Tiering-0.8 keeps for promotions would be less than one page at 1:4096.

use crate::policy::Kernel;
use crate::units::BLOCK_PAGES;

/// A gibibyte of pages as a power of two.
const GIB_SHIFT: u32 = 18;
/// Smallest and largest min watermark, in kilobytes.
const MIN_KIB: (f64, f64) = (128.0, 262_144.0);

/// A zone's watermarks of free memory, in 4 KiB pages of the machine at hand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watermarks {
    /// Below this only reclaim itself may allocate.
    pub min: f64,
    /// Below this new pages go elsewhere, and reclaim wakes.
    pub low: f64,
    /// Promotions need more than this; reclaim stops here, unless a policy asks for more.
    pub high: f64,
    /// The goal of reclaim: the high watermark, or above it room for promotions.
    pub goal: f64,
    /// Below this reclaim wakes: the low watermark, or the goal where reclaim is decoupled from allocation.
    pub wake: f64,
}

impl Watermarks {
    /// The watermarks of a zone of `pages` on a machine scaled down by `scale`. None is above half of the zone.
    pub fn new(pages: u64, scale: u32, kernel: &Kernel) -> Watermarks {
        let scale = u64::from(scale.max(1));
        let full = pages * scale;
        let min_kib = (4.0 * ((full * 4) as f64).sqrt()).clamp(MIN_KIB.0, MIN_KIB.1);
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
            // TPP: allocation and reclaim are decoupled; any allocation below the watermark wakes reclaim.
            wake = wake.max(demote);
        }
        let shrink = |full: u64| (full as f64 / scale as f64).min(pages as f64 / 2.0);
        Watermarks { min: shrink(min), low: shrink(low), high: shrink(high), goal: shrink(goal), wake: shrink(wake) }
    }

    /// Whether a piece of a unit can be taken from `free` pages above `mark`; see [`piece`].
    pub fn leaves(mark: f64, free: u64, piece: f64) -> bool {
        free as f64 >= mark + piece
    }
}

/// The amount that one move or allocation takes at a time from a unit of `weight` pages, in pages of a machine scaled down by `scale`. Such
/// a unit stands for `scale` units of full size, each of which is checked separately: the watermark that the first of them meets decides.
/// With `folded` a small page stands for the huge pages of the full size.
pub fn piece(weight: u64, scale: u32, folded: bool) -> f64 {
    let of_full = if folded { u64::from(BLOCK_PAGES) } else { 1 };
    // On a machine scaled down only a little, a folded page is itself a piece of a huge page.
    (weight * of_full) as f64 / f64::from(scale.max(1))
}

/// How many times longer than the inactive list the active one may be, if both hold `pages` of a machine scaled down by `scale`.
pub fn inactive_ratio(pages: u64, scale: u32) -> u64 {
    let gib = (pages * u64::from(scale.max(1))) >> GIB_SHIFT;
    if gib == 0 { 1 } else { (10 * gib).isqrt() }
}

/// Whether the inactive list is so short that the active one shrinks.
pub fn inactive_is_low(inactive: u64, active: u64, scale: u32) -> bool {
    inactive * inactive_ratio(inactive + active, scale) < active
}

/// The time of a kernel thread: it cannot work more than the elapsed time. Unfinished work carries over as debt; idle time is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ThreadTime {
    /// Nanoseconds left of the elapsed time; below 0 the debt.
    left: f64,
    worked: f64,
}

impl ThreadTime {
    /// Adds `span` nanoseconds of elapsed time, which pay the debt first.
    pub fn pass(&mut self, span: f64) {
        let debt = (-self.left).max(0.0);
        self.worked += debt.min(span);
        self.left = span - debt;
    }

    /// Whether it has time to start work.
    pub fn may_begin(&self) -> bool {
        self.left > 0.0
    }

    /// Records started work of `nanos` nanoseconds.
    pub fn begin(&mut self, nanos: f64) {
        self.worked += nanos.min(self.left.max(0.0));
        self.left -= nanos;
    }

    /// Nanoseconds it worked up to now: never more than elapsed.
    pub fn worked(&self) -> f64 {
        self.worked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    /// A Tiering-0.8 kernel: 10 MiB of room for promotions, reclaim woken early.
    fn tiering08() -> Kernel {
        Kernel { demotion: true, promotion_room: Bytes::mib(10), early_wake: true, ..Kernel::default() }
    }

    #[test]
    fn watermarks_are_those_of_the_kernel() {
        // 30 GiB: min = 4*sqrt(31457280) KiB = 22435 KiB = 5608 pages; gap = 0.1 % = 7864 pages.
        let pages = Bytes::gib(30).pages();
        let check = |kernel: Kernel, goal: u64, wake: u64| {
            let marks = Watermarks::new(pages, 1, &kernel);
            let wanted = [5608, 13_472, 21_336, goal, wake].map(|mark: u64| mark as f64);
            assert_eq!([marks.min, marks.low, marks.high, marks.goal, marks.wake], wanted, "{kernel:?}");
        };
        check(Kernel::default(), 21_336, 13_472);
        check(Kernel { demote_scale: 200, ..Kernel::default() }, pages / 50, pages / 50);
        check(tiering08(), 21_336 + 2560, 21_336 + 1280);
        check(Kernel { promotion_gap: true, ..Kernel::default() }, 29_200, 13_472);
    }

    #[test]
    fn marks_and_goals_of_a_smaller_machine_are_those_of_full_size() {
        let pages = Bytes::gib(28).pages();
        for kernel in [Kernel::default(), tiering08(), Kernel { demote_scale: 200, ..Kernel::default() }] {
            let full = Watermarks::new(pages, 1, &kernel);
            for scale in [64, 1024, 4096] {
                let small = Watermarks::new(pages / u64::from(scale), scale, &kernel);
                for (small, full) in [
                    (small.min, full.min),
                    (small.low, full.low),
                    (small.high, full.high),
                    (small.goal, full.goal),
                    (small.wake, full.wake),
                ] {
                    let stands_for = small * f64::from(scale);
                    assert!((stands_for / full - 1.0).abs() < 1e-3, "1:{scale}: {stands_for} for {full}");
                }
            }
        }
    }

    #[test]
    fn reclaim_that_reached_its_goal_left_room_for_a_promotion_at_every_scale() {
        let pages = Bytes::gib(28).pages();
        for (scale, folded) in [(1, false), (512, true), (1024, true), (4096, true), (4096, false), (16_384, true)] {
            let marks = Watermarks::new(pages / u64::from(scale), scale, &tiering08());
            let free = marks.goal.ceil() as u64;
            assert!(Watermarks::leaves(marks.high, free, piece(1, scale, folded)), "1:{scale} {folded}: {marks:?}");
        }
    }

    #[test]
    fn the_inactive_ratio_of_a_smaller_machine_is_that_of_full_size() {
        let pages = Bytes::gib(80).pages();
        assert_eq!(inactive_ratio(pages, 1), 28, "sqrt(10 * 80)");
        for scale in [64, 1024, 4096] {
            assert_eq!(inactive_ratio(pages / u64::from(scale), scale), 28, "1:{scale}");
            let small = |part: u64| pages / part / u64::from(scale);
            assert!(inactive_is_low(small(40), pages / u64::from(scale) - small(40), scale));
            assert!(!inactive_is_low(small(20), pages / u64::from(scale) - small(20), scale));
        }
        assert_eq!((inactive_ratio(100, 1), inactive_ratio(0, 4096)), (1, 1));
    }

    #[test]
    fn a_thread_works_no_longer_than_time_passes_and_carries_on_what_it_began() {
        let mut thread = ThreadTime::default();
        let mut begun = 0;
        for _ in 0..1000 {
            thread.pass(10.0);
            while thread.may_begin() {
                thread.begin(25.0);
                begun += 1;
            }
            assert!(thread.worked() <= 10_000.0);
        }
        assert_eq!((begun, thread.worked()), (400, 10_000.0), "25 of each 10, so one in two and a half");
        // Idle time is no credit.
        let mut thread = ThreadTime::default();
        thread.pass(1e9);
        thread.pass(10.0);
        thread.begin(100.0);
        assert!(!thread.may_begin() && thread.worked() == 10.0);
    }
}
