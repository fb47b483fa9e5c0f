//! Drives the tuner in a simulation: counters become windows, shares become limits.
//!
//! In: the simulator's counters, every interval; a database. Out: the limit in pages. Must not: decide; the tuner does, as it does live.

use std::sync::{Arc, Mutex, PoisonError};

use terrace_core::units::Time;
use terrace_machine::scale::Scale;
use terrace_sim::tuning::{Counters, Tuning};

use crate::index::Index;
use crate::vector::ConfigVector;
use terrace_tuning::{Loss, MARGIN, Mode, Prediction, Tuner, TunerConfig, Window, leaves_room};

/// Records that a prediction is of: the nearest, as in the paper.
const NEIGHBOURS: usize = 1;
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

/// Loss between two looks, by what the counters say slow memory and management cost.
pub fn loss_between(before: &Counters, after: &Counters) -> Option<f64> {
    let all = after.ran_nanos - before.ran_nanos;
    let lost = after.lost_nanos - before.lost_nanos;
    (all > 0.0).then(|| lost.max(0.0) / (all - lost).max(all * 0.01))
}

/// Between two decisions the limit follows the program's size so often, every fortieth of a second with the paper's interval: to read a
/// resident size costs microseconds. Programs that begin grow by 8 % of their size in a tenth of a second, which is more than policies
/// keep free; what is born slow then is slow for long.
const FOLLOWS_AN_INTERVAL: u32 = 100;
/// Ahead of growth by this many times the program's growth since the last look: it may grow twice as fast until the next.
const AHEAD: f64 = 2.0;

/// See the module's header.
pub struct SimDriver {
    tuner: Arc<Mutex<Tuner>>,
    index: Arc<Index>,
    scale: Scale,
    /// Pages of the scaled machine that are 100 % of what is saved: the most the program has at one time.
    full_pages: u64,
    last: Option<Counters>,
    /// When to decide, and when to look.
    decide: Time,
    due: Time,
    /// What the program had at the last look, and when that was.
    resident: u64,
    looked: Time,
    /// Pages times seconds that were held since the last decision.
    held: f64,
    /// Whether the limit left room at every look since then.
    had_room: bool,
}

impl SimDriver {
    /// The tuner for a program of at most `full_pages` on a machine of this scale.
    pub fn new(tuner: Arc<Mutex<Tuner>>, index: Arc<Index>, scale: Scale, full_pages: u64) -> SimDriver {
        let (decide, due, looked) = (Time::ZERO, Time::ZERO, Time::ZERO);
        SimDriver {
            tuner,
            index,
            scale,
            full_pages,
            last: None,
            decide,
            due,
            resident: 0,
            looked,
            held: 0.0,
            had_room: true,
        }
    }

    /// The window between two decisions. Shares are of what the program has now with what policies keep free of it; in the paper's mode, of
    /// the most it has. What was saved is a mean over all looks: at its end a window of a program that grows has the least.
    fn window(&self, before: &Counters, after: &Counters, follows: bool) -> Option<(Window, Option<Prediction>)> {
        let vector = vector_between(before, after, self.scale)?;
        let reserve = if follows { self.reserve(after) } else { 0.0 };
        let full = if follows { after.resident_pages as f64 + reserve } else { self.full_pages as f64 };
        let of = |pages: u64| (pages as f64 / full.max(1.0)).min(1.0);
        let growth = of(after.resident_pages.saturating_sub(before.resident_pages));
        let length = after.now.since(before.now);
        let held = self.held / length.as_secs_f64().max(f64::MIN_POSITIVE) / self.full_pages.max(1) as f64;
        // A vector that cannot be a program's has no prediction: the next interval has another.
        let answer = self.index.query(&vector.over_interval(length.as_secs_f64()), NEIGHBOURS).ok();
        let prediction = answer.map(|answer| {
            // The paper's tuner goes by whatever record is nearest.
            Prediction { curve: answer.curve, covered: answer.uncovered.is_none(), trusted: true }
        });
        let window = Window {
            end: after.now,
            length,
            idle: false,
            held_share: of(after.fast_limit.max(after.fast_pages)),
            saved_share: (1.0 - held).max(0.0),
            // TPP and its like go on moving pages as long as a size holds: all of it is the size's.
            loss: loss_between(before, after).map(Loss::of_size),
            // The tuner adds a margin to it; here what policies keep free is in its stead.
            used_share: if follows { of(after.fast_pages) + reserve / full - MARGIN } else { of(after.fast_pages) },
            growth_share: if follows { 0.0 } else { growth },
            followed_share: if follows { growth } else { 0.0 },
            left_room: self.had_room,
            return_seconds: None,
            move_seconds: None,
        };
        Some((window, prediction))
    }

    /// What is kept free of the tier, which is as large as the program at its peak and that: by the kernel as its watermarks say, by a policy
    /// as much as any does.
    fn reserve(&self, counters: &Counters) -> f64 {
        let by_policy = MARGIN / (1.0 - MARGIN) * self.full_pages as f64;
        counters.kernel_keeps_free.map_or(by_policy, |pages| pages as f64)
    }

    /// The limit in pages for a share of what the program has and of what policies keep free, so that the first step down from everything is
    /// no larger than the others; ahead of the program's growth.
    fn follow(&mut self, share: f64, counters: &Counters) -> u64 {
        let resident = counters.resident_pages;
        let growth = resident.saturating_sub(std::mem::replace(&mut self.resident, resident)) as f64;
        ((resident as f64 + self.reserve(counters)) * share + AHEAD * growth).ceil() as u64
    }

    /// Adds up what was held since the last look: of what everything is, at most.
    fn note_held(&mut self, counters: &Counters) {
        let seconds = counters.now.since(std::mem::replace(&mut self.looked, counters.now)).as_secs_f64();
        let held = counters.fast_limit.max(counters.fast_pages).min(self.full_pages);
        self.held += held as f64 * seconds;
    }
}

impl Tuning for SimDriver {
    fn due(&self) -> Time {
        self.due
    }

    fn tune(&mut self, counters: &Counters) -> Option<u64> {
        let shared = self.tuner.clone();
        let mut tuner = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let TunerConfig { interval, mode, .. } = *tuner.config();
        let follows = mode == Mode::Measured;
        self.due = counters.now + if follows { interval / FOLLOWS_AN_INTERVAL } else { interval };
        self.note_held(counters);
        self.had_room &= leaves_room(counters.fast_limit, counters.fast_pages);
        let mut share = None;
        if counters.now >= self.decide {
            self.decide = counters.now + interval;
            let before = self.last.replace(*counters);
            let window = before.and_then(|before| self.window(&before, counters, follows));
            (self.had_room, self.held) = (true, 0.0);
            share = window.map(|(window, prediction)| tuner.decide(&window, prediction.as_ref()));
        }
        if follows {
            return Some(self.follow(tuner.share(), counters));
        }
        // Everything fast is the whole tier: the room above the program's size is then its own.
        share.map(|share| if share >= 1.0 { u64::MAX } else { (self.full_pages as f64 * share).ceil() as u64 })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::database::tests::small;
    use terrace_tuning::Action;

    fn counters(milliseconds: u64, resident: u64, limit: u64) -> Counters {
        Counters {
            now: Time::ZERO + Duration::from_millis(milliseconds),
            fast_accesses: milliseconds * 1000,
            slow_accesses: 0,
            operations: milliseconds as f64 * 1e4,
            promoted: 0,
            demoted: 0,
            failed_promotions: 0,
            resident_pages: resident,
            fast_pages: resident,
            fast_limit: limit,
            kernel_keeps_free: None,
            hot_threshold: None,
            threads: 1,
            thread_nanos: milliseconds as f64 * 1e3,
            slow_nanos: 0.0,
            management_nanos: 0.0,
            ran_nanos: milliseconds as f64 * 1e3,
            lost_nanos: 0.0,
            memory_nanos: 0.0,
            fast_bytes: [0; 2],
        }
    }

    /// A program that grows by ten pages each millisecond for `grows` milliseconds, followed for ten seconds.
    fn follow(grows: u64) -> (Arc<Mutex<Tuner>>, Vec<(u64, u64)>) {
        let tuner = Arc::new(Mutex::new(Tuner::new(TunerConfig::new(0.05, Mode::Measured))));
        let index = Arc::new(Index::new(small(500)).unwrap());
        let full = grows * 10;
        let mut steer = SimDriver::new(tuner.clone(), index, Scale::new(1).unwrap(), full);
        let (mut limit, mut seen) = (full * 2, Vec::new());
        for milliseconds in (0..=10_000).step_by(25) {
            let resident = milliseconds.min(grows) * 10;
            let now = counters(milliseconds, resident, limit);
            if steer.due() <= now.now {
                limit = steer.tune(&now).unwrap_or(limit);
                seen.push((resident, limit));
            }
        }
        (tuner, seen)
    }

    #[test]
    fn what_a_program_has_not_touched_yet_is_saved_as_long_as_it_is_not() {
        let (tuner, seen) = follow(10_000);
        for (resident, limit) in seen {
            assert!(limit >= resident + 500, "room for twice the growth up to the next look: {limit} for {resident}");
        }
        // From all to nothing in ten seconds: half, less 3 % that policies keep free, and twice the growth of a fortieth of a second.
        let saved = tuner.lock().unwrap().summary().saved_share_mean;
        assert!((0.43..0.47).contains(&saved), "{saved}");
        let first = tuner.lock().unwrap().intervals()[0].saved_share;
        assert!((0.81..0.85).contains(&first), "of a quarter of the time, half of its growth: {first}");
    }

    #[test]
    fn no_size_is_tried_while_the_program_grows_and_the_first_step_is_no_larger_than_others() {
        let (tuner, seen) = follow(6_000);
        let tuner = tuner.lock().unwrap();
        for interval in tuner.intervals().iter().filter(|interval| interval.seconds < 7.4) {
            assert_eq!(interval.fast_share, 1.0, "{interval:?}");
        }
        assert_eq!(tuner.intervals().last().map(|interval| interval.action), Some(Action::Shrunk));
        let limits: Vec<u64> =
            seen.iter().filter(|(resident, _)| *resident == 60_000).map(|(_, limit)| *limit).collect();
        let (all, least) = (limits[1], limits[limits.len() - 1]);
        assert!(all >= 61_855 && least >= 61_200, "a hundredth of {all}: {least}");
    }

    #[test]
    fn beside_what_the_program_has_stays_free_what_the_kernel_keeps_free() {
        let limit = |kernel_keeps_free| {
            let tuner = Arc::new(Mutex::new(Tuner::new(TunerConfig::new(0.05, Mode::Measured))));
            let mut steer =
                SimDriver::new(tuner, Arc::new(Index::new(small(500)).unwrap()), Scale::new(1).unwrap(), 10_000);
            let at = |milliseconds| Counters { kernel_keeps_free, ..counters(milliseconds, 8_000, 10_000) };
            steer.tune(&at(0));
            steer.tune(&at(25)).unwrap()
        };
        assert_eq!((limit(Some(206)), limit(Some(0))), (8_206, 8_000));
        assert_eq!(limit(None), 8_310, "3 % of a tier that holds 10,000 pages beside them");
    }
}
