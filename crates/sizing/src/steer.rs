//! The tuner at the wheel of a simulation: counters become windows, shares become limits.
//!
//! In: the simulator's counters, every interval. Out: the limit in pages. Must not: decide; the tuner does, as it does live.

use std::sync::{Arc, Mutex, PoisonError};

use terrace_core::units::Time;
use terrace_machine::scale::Scale;
use terrace_sim::tuning::{Counters, Tuning};

use crate::index::Index;
use crate::tuner::{Loss, Tuner, Window, leaves_room};
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

/// See the module's header.
pub struct Steer {
    tuner: Arc<Mutex<Tuner>>,
    index: Arc<Index>,
    scale: Scale,
    /// Pages of the scaled machine that are 100 %: the most the program has at one time.
    full_pages: u64,
    last: Option<Counters>,
    due: Time,
}

impl Steer {
    /// The tuner for a program of at most `full_pages` on a machine of this scale.
    pub fn new(tuner: Arc<Mutex<Tuner>>, index: Arc<Index>, scale: Scale, full_pages: u64) -> Steer {
        Steer { tuner, index, scale, full_pages, last: None, due: Time::ZERO }
    }

    fn window(&self, before: &Counters, after: &Counters) -> Option<Window> {
        let vector = vector_between(before, after, self.scale)?;
        let share = |pages: u64| (pages as f64 / self.full_pages as f64).min(1.0);
        let left_room = leaves_room(after.fast_limit, after.fast_pages, after.resident_pages);
        let held_share = share(after.fast_limit.max(after.fast_pages));
        Some(Window {
            end: after.now,
            length: after.now.since(before.now),
            vector,
            held_share,
            saved_share: 1.0 - held_share,
            // TPP and its like go on moving pages as long as a size holds: all of it is the size's.
            loss: loss_between(before, after).map(Loss::of_size),
            used_share: share(after.fast_pages),
            growth_share: share(after.resident_pages.saturating_sub(before.resident_pages)),
            left_room,
            return_seconds: None,
            move_seconds: None,
        })
    }
}

impl Tuning for Steer {
    fn due(&self) -> Time {
        self.due
    }

    fn tune(&mut self, counters: &Counters) -> Option<u64> {
        let mut tuner = self.tuner.lock().unwrap_or_else(PoisonError::into_inner);
        self.due = counters.now + tuner.config().interval;
        let before = self.last.replace(*counters)?;
        let window = self.window(&before, counters)?;
        // A vector that cannot be a program's leaves the limit as it is: the next interval has another.
        let share = tuner.decide(&window, &self.index).ok()?;
        // Everything fast is the whole tier: the room above the program's size is then its own.
        Some(if share >= 1.0 { u64::MAX } else { (self.full_pages as f64 * share).ceil() as u64 })
    }
}
