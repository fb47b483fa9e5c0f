//! The tuner at the wheel of a simulation: counters become windows, shares become limits.
//!
//! In: the simulator's counters, every interval. Out: the limit in pages. Must not: decide; the tuner does, as it does live.

use std::sync::{Arc, Mutex, PoisonError};

use terrace_core::units::Time;
use terrace_machine::scale::Scale;
use terrace_sim::tuning::{Counters, Tuning};

use crate::index::Index;
use crate::tuner::{Loss, MARGIN, Mode, Tuner, TunerConfig, Window, leaves_room};
use crate::vector::ConfigVector;

/// TPP's threshold, which does not change: the second fault promotes (TPP, ASPLOS 2023).
pub const FIXED_THRESHOLD: f64 = 2.0;

/// The vector of what happened between two looks at the counters, at full size; `None` if nothing did.
pub fn vector_between(before: &Counters, after: &Counters, scale: Scale) -> Option<ConfigVector> {
    let factor = f64::from(scale.factor());
    let fast = (after.fast_accesses - before.fast_accesses) as f64 * factor;
    let slow = (after.slow_accesses - before.slow_accesses) as f64 * factor;
    let operations = (after.operations - before.operations) * factor;
    (fast + slow >= 1.0).then(|| ConfigVector {
        fast_accesses: fast,
        slow_accesses: slow,
        demotions: (after.demoted - before.demoted) as f64 * factor,
        promotions: (after.promoted - before.promoted) as f64 * factor,
        intensity: operations / (fast + slow),
        resident_bytes: after.resident_pages as f64 * 4096.0 * factor,
        // Eq. 4 divides by the threshold less one: a threshold of one access is taken as two.
        hot_threshold: after.hot_threshold.unwrap_or(FIXED_THRESHOLD).max(2.0),
        threads: f64::from(after.threads.max(1)),
    })
}

/// Loss between two looks, by the counters of stalled cycles: what slow memory and management cost over what is left.
pub fn loss_between(before: &Counters, after: &Counters) -> Option<f64> {
    let all = after.thread_nanos - before.thread_nanos;
    let lost = (after.slow_nanos - before.slow_nanos) + (after.management_nanos - before.management_nanos);
    (all > 0.0).then(|| lost / (all - lost).max(all * 0.01))
}

/// Between two decisions the limit follows the program's size so often, every tenth of a second with the paper's interval: live it is a
/// share of what the program has, too, and the manager has turns as often.
const FOLLOWS_AN_INTERVAL: u32 = 25;

/// See the module's header.
pub struct Steer {
    tuner: Arc<Mutex<Tuner>>,
    index: Arc<Index>,
    scale: Scale,
    /// Pages of the scaled machine that are 100 % of what is saved: the most the program has at one time.
    full_pages: u64,
    last: Option<Counters>,
    /// When to decide, and when to look.
    decide: Time,
    due: Time,
    /// What the program had at the last look, and at the last decision.
    resident: u64,
    decided_at: u64,
    /// Whether the limit left room at every look since the last decision.
    had_room: bool,
}

impl Steer {
    /// The tuner for a program of at most `full_pages` on a machine of this scale.
    pub fn new(tuner: Arc<Mutex<Tuner>>, index: Arc<Index>, scale: Scale, full_pages: u64) -> Steer {
        let (decide, due) = (Time::ZERO, Time::ZERO);
        Steer { tuner, index, scale, full_pages, last: None, decide, due, resident: 0, decided_at: 0, had_room: true }
    }

    /// The window between two looks. Shares are of what the program has now; in the paper's mode, of the most it has.
    fn window(&self, before: &Counters, after: &Counters, follows: bool) -> Option<Window> {
        let vector = vector_between(before, after, self.scale)?;
        let of = |pages: u64, full: u64| (pages as f64 / full.max(1) as f64).min(1.0);
        let full = if follows { after.resident_pages } else { self.full_pages };
        let held = after.fast_limit.max(after.fast_pages);
        Some(Window {
            end: after.now,
            length: after.now.since(before.now),
            vector,
            held_share: of(held, full),
            saved_share: 1.0 - of(held, self.full_pages),
            // TPP and its like go on moving pages as long as a size holds: all of it is the size's.
            loss: loss_between(before, after).map(Loss::of_size),
            used_share: of(after.fast_pages, full),
            // A limit that follows has let it grow.
            growth_share: if follows {
                0.0
            } else {
                of(after.resident_pages.saturating_sub(before.resident_pages), full)
            },
            left_room: self.had_room,
            return_seconds: None,
            move_seconds: None,
        })
    }

    /// The limit in pages for a share of what the program has, ahead of its growth by twice what it grew by since the last look. With everything
    /// fast, and while it grows, there is room for what policies keep free as well.
    fn follow(&mut self, share: f64, resident: u64) -> u64 {
        let growth = resident.saturating_sub(std::mem::replace(&mut self.resident, resident)) as f64;
        let grows = resident as f64 > self.decided_at as f64 + MARGIN * self.full_pages as f64;
        let free = if share >= 1.0 || grows { MARGIN / (1.0 - MARGIN) * self.full_pages as f64 } else { 0.0 };
        (resident as f64 * share + 2.0 * growth + free).ceil() as u64
    }
}

impl Tuning for Steer {
    fn due(&self) -> Time {
        self.due
    }

    fn tune(&mut self, counters: &Counters) -> Option<u64> {
        let shared = self.tuner.clone();
        let mut tuner = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let TunerConfig { interval, mode, .. } = *tuner.config();
        let follows = mode == Mode::Measured;
        self.due = counters.now + if follows { interval / FOLLOWS_AN_INTERVAL } else { interval };
        self.had_room &= leaves_room(counters.fast_limit, counters.fast_pages);
        let mut share = None;
        if counters.now >= self.decide {
            self.decide = counters.now + interval;
            let before = self.last.replace(*counters);
            self.decided_at = before.map_or(0, |before| before.resident_pages);
            let window = before.and_then(|before| self.window(&before, counters, follows));
            self.had_room = true;
            // A vector that cannot be a program's leaves the limit as it is: the next interval has another.
            share = window.and_then(|window| tuner.decide(&window, &self.index).ok());
        }
        if follows {
            return Some(self.follow(tuner.share(), counters.resident_pages));
        }
        // Everything fast is the whole tier: the room above the program's size is then its own.
        share.map(|share| if share >= 1.0 { u64::MAX } else { (self.full_pages as f64 * share).ceil() as u64 })
    }
}
