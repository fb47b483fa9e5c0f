//! The tuner at work on live processes: what was seen becomes windows, decisions become shares of fast memory.
//!
//! In: a manager, every interval; what moves cost on this machine; a [`Predictor`], if somebody has a performance database. Out: the share of
//! the footprint that should be fast from now on. Must not: decide; `terrace_tuning::Tuner` does, the same code as in the simulator.
//! `terrace size tune` and classes of the service with goal `tuned` both use this; the service asks no database.
//!
//! The loss of a window is what [`account`] says. Not seen are caches that compressing empties, and memory bandwidth that it takes.
//!
//! When the target was broken pages are brought back at once: by its faults alone a program would have them back only when it
//! has paid for each.

pub mod account;

use std::path::Path;
use std::time::{Duration, Instant};

use terrace_core::engine::{Engine, Input};
use terrace_core::units::{Bytes, TierId, Time};
use terrace_tuning::{Action, Coverage, LiveWindow, Prediction, Predictor, Tuner, TunerConfig, Window};

use self::account::Passed;
use crate::manager::Manager;
use crate::move_cost::{Interval as MoveInterval, MoveCost, others_can_be_interrupted};
use crate::processors::{ProcessorUse, reclaim_threads};
use crate::topology::TierMap;
use crate::watermarks::KernelMoves;

/// What is counted at the end of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: Time,
    refaults: u64,
    promoted: u64,
    demoted: u64,
    kernel: KernelMoves,
    cpu_seconds: f64,
    /// Of the manager's own: processor time, and that part of it in which pages moved.
    own: Duration,
    moving: Duration,
    processors: Option<ProcessorUse>,
    rounds: u64,
    footprint: u64,
}

/// Where the price of a page-out is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageOutPrice {
    /// No known cost of page-outs to threads: there is one processor, or nothing was measured on this machine.
    None,
    /// It was measured at the start.
    Measured,
    /// It could not be measured, and no page went out yet: the price of a refault is used instead, to pace the first ones.
    Refault,
    /// It could not be: what the page-outs themselves took.
    Duration,
}

impl PageOutPrice {
    /// The remark on it besides the inputs; none if it was measured.
    pub const fn remark(self) -> &'static str {
        match self {
            PageOutPrice::None | PageOutPrice::Measured => "",
            PageOutPrice::Refault => "; what page-outs cost could not be measured, a refault's price stands in",
            PageOutPrice::Duration => {
                "; what page-outs cost could not be measured, they are counted as long as they took"
            }
        }
    }
}

/// See the module's header.
pub struct LiveTuner {
    tuner: Tuner,
    predictor: Option<Box<dyn Predictor>>,
    coverage: Coverage,
    costs: MoveCost,
    price: PageOutPrice,
    /// The recent cost of a page-out to the processes, including waits for processors, in seconds; at first as measured.
    page_out_seconds: Option<f64>,
    counts_kernel_moves: bool,
    /// The kernel's threads whose time counts then.
    reclaim_threads: Vec<u32>,
    /// The recent cost of a scan to the processes, in seconds; and the interval between scans that follows from it.
    round_seconds: Option<f64>,
    spacing: Duration,
    look_cost: Duration,
    last: Option<Reading>,
    due: Time,
    held_share: f64,
    /// The share up to which pages are being brought back, and when to see how far that is.
    bringing_back: Option<(f64, Time)>,
}

/// So often it is seen how far pages that are brought back have come: some tens of MiB.
const LOOK: Duration = Duration::from_millis(50);

/// What the loss of a live run is observed by.
pub const INPUTS: &str = "observed: pages that came back, page-outs, and waiting for processors; no hardware counters";

/// The part of the target that scans may cost: the rest is for moves.
const OF_TARGET_FOR_ROUNDS: f64 = 0.2;
/// The longest interval between scans: beyond it the ages of pages would say too little.
const MOST_SPACING: Duration = Duration::from_secs(10);
/// With fewer page-outs in a window their price says more of other things.
const LEAST_PAGES_TO_LEARN: f64 = 256.0;
/// With a database a look passes over all pages, at about a nanosecond each: with much memory they are less frequent, so that they take one
/// two-hundredth of the time at most. Of the last two the cheaper counts: one that was interrupted would stop the tuner for a minute.
const PAUSE_PER_COST: u32 = 200;

/// Whether what a size costs shows on these tiers: where the tier below the fastest is swap, each slow page that is used again is a fault.
/// Memory that programs use in place is slower without saying so, and a loss there would be taken for none.
pub fn loss_shows(tiers: &TierMap) -> bool {
    tiers.swap_tier() == Some(TierId(TierId::FAST.0 + 1))
}

impl LiveTuner {
    /// A tuner of processes that have everything fast.
    pub fn new(config: TunerConfig) -> LiveTuner {
        LiveTuner {
            tuner: Tuner::new(config),
            predictor: None,
            coverage: Coverage::default(),
            costs: MoveCost::default(),
            price: PageOutPrice::None,
            page_out_seconds: None,
            counts_kernel_moves: false,
            reclaim_threads: Vec::new(),
            round_seconds: None,
            spacing: Duration::ZERO,
            look_cost: Duration::ZERO,
            last: None,
            due: Time::ZERO,
            held_share: 1.0,
            bringing_back: None,
        }
    }

    /// Asks a performance database about each window.
    #[must_use]
    pub fn predicting(self, predictor: Box<dyn Predictor>) -> LiveTuner {
        LiveTuner { predictor: Some(predictor), ..self }
    }

    /// What moves cost on this machine, if that was measured: without the cost of a refault no loss is observed, and without a database
    /// everything then stays fast.
    pub fn begin(&mut self, costs: MoveCost) {
        self.begin_beside(costs, others_can_be_interrupted());
    }

    fn begin_beside(&mut self, costs: MoveCost, others: bool) {
        self.costs = costs;
        self.price = match (costs.page_out, costs.refault) {
            (Some(_), _) => PageOutPrice::Measured,
            (None, Some(_)) if others => PageOutPrice::Refault,
            (None, _) => PageOutPrice::None,
        };
        let stands_in = costs.refault.filter(|_| self.price == PageOutPrice::Refault);
        self.page_out_seconds = costs.page_out.map(|cost| cost.median).or(stands_in).map(|cost| cost.as_secs_f64());
    }

    /// Where the price of page-outs is from.
    pub fn page_out_price(&self) -> PageOutPrice {
        self.price
    }

    /// Takes the price from the page-outs themselves if it could not be measured: `pages` that took this time. A thread loses a part of that
    /// time to each.
    fn price_by_duration(&mut self, pages: u64, moving: Duration) {
        if matches!(self.price, PageOutPrice::Refault | PageOutPrice::Duration) && pages as f64 >= LEAST_PAGES_TO_LEARN
        {
            let each = moving.div_f64(pages as f64);
            self.costs.page_out = Some(MoveInterval { median: each, low: Duration::ZERO, high: each });
            self.price = PageOutPrice::Duration;
        }
    }

    /// What moves cost.
    pub fn costs(&self) -> MoveCost {
        self.costs
    }

    /// The kernel's own moves count as well: for machines where the kernel holds the limit.
    #[must_use]
    pub fn counting_kernel_moves(self) -> LiveTuner {
        LiveTuner { counts_kernel_moves: true, reclaim_threads: reclaim_threads(Path::new("/")), ..self }
    }

    /// When it wants to look next, or to see how far pages that are brought back have come.
    pub fn due(&self) -> Time {
        self.bringing_back.map_or(self.due, |(_, look)| look.min(self.due))
    }

    /// Has pages brought back if the latest decision was that the target is broken. For who holds the limit by pages.
    pub fn answer(&mut self, now: Time) {
        let last = self.tuner.intervals().last();
        if let Some(broken) = last.filter(|interval| interval.action == Action::BackedOff) {
            self.bringing_back = Some((broken.fast_share, now));
        }
    }

    /// Brings pages back as long as there are some and the share is not reached; at each look, as not all come at the first try.
    /// Returns when to look again, if it goes on.
    pub fn bring_back(&mut self, manager: &mut Manager) -> Option<Time> {
        if let Some(drain) = self.order(manager.engine(), manager.now()) {
            manager.tell(Input::Drain(drain));
        }
        self.bringing_back.map(|(_, look)| look)
    }

    /// The next input of the engine, if any: promote pages, or stop doing so.
    fn order(&mut self, engine: &Engine, now: Time) -> Option<bool> {
        let (share, look) = self.bringing_back?;
        if now < look {
            return None;
        }
        let (fast, all) = (engine.pages().used_in_all(TierId::FAST), engine.pages().footprint_of_all());
        let wanted = engine.has_pages_to_bring_back() && (fast as f64) < all as f64 * share;
        self.bringing_back = wanted.then(|| (share, now + LOOK));
        Some(wanted)
    }

    /// Whether pages are being brought back.
    pub fn brings_back(&self) -> bool {
        self.bringing_back.is_some()
    }

    /// The decisions so far.
    pub fn tuner(&self) -> &Tuner {
        &self.tuner
    }

    /// The share of the footprint that was fast in the last window, what compressed memory takes of it included.
    pub fn held_share(&self) -> f64 {
        self.held_share
    }

    /// Keeps no more than the latest windows; see [`Tuner::forget_all_but`].
    pub fn forget_all_but(&mut self, windows: usize) {
        self.tuner.forget_all_but(windows);
    }

    /// The current window is invalid: management was interrupted within it. Pages promoted because of it stay.
    pub fn interrupt(&mut self) {
        self.last = None;
        self.bringing_back = None;
    }

    /// Looks, if it is time. The share of the footprint that should be fast from now on, if that was decided.
    pub fn look(&mut self, manager: &mut Manager) -> Option<f64> {
        let now = manager.now();
        if now < self.due {
            return None;
        }
        let began = Instant::now();
        self.due = now + self.tuner.config().interval;
        let ledger = manager.engine().ledger();
        let reading = Reading {
            at: now,
            refaults: manager.stats().major_faults,
            promoted: ledger.promoted(),
            demoted: ledger.demoted(),
            kernel: self.kernel_moves(),
            cpu_seconds: manager.stats().cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
            own: manager.stats().cpu,
            moving: manager.stats().move_time,
            rounds: manager.stats().rounds,
            footprint: manager.engine().pages().footprint_of_all(),
            processors: ProcessorUse::read(Path::new("/"), &self.reclaim_threads),
        };
        let before = self.last.replace(reading)?;
        self.price_by_duration(
            reading.demoted.saturating_sub(before.demoted),
            reading.moving.saturating_sub(before.moving),
        );
        let (seen, window) = self.window(manager, &before, &reading)?;
        self.learn_price(&window, seen.demoted);
        let seconds = window.loss.map_or(0.0, |loss| loss.managing * window.length.as_secs_f64());
        manager.space_rounds(self.space(seconds, reading.rounds - before.rounds));
        self.held_share = 1.0 - window.saved_share;
        let prediction = self.predictor.as_mut().and_then(|predictor| predictor.predict(manager.engine(), &seen));
        let prediction = prediction.map(|prediction| self.judged(prediction));
        let share = self.tuner.decide(&window, prediction.as_ref());
        self.due = now + self.pause(began.elapsed());
        Some(share)
    }

    /// A prediction, not trusted where the database has records like too few of the windows so far.
    fn judged(&mut self, prediction: Prediction) -> Prediction {
        let was_enough = self.coverage.share().is_none() || self.coverage.is_enough();
        self.coverage.count(prediction.covered);
        let trusted = self.coverage.is_enough();
        if let Some(share) = self.coverage.share().filter(|_| trusted != was_enough) {
            let what = if trusted { "used again" } else { "not used: what is observed decides" };
            tracing::warn!("the database has records like {:.0} % of the windows so far, and is {what}", share * 100.0);
        }
        Prediction { trusted, ..prediction }
    }

    /// How much of the run the database that is asked, if one is, has records like.
    pub fn coverage(&self) -> Coverage {
        self.coverage
    }

    /// Page-outs cost more than their interruptions where processors are short: as much as they were seen to.
    fn learn_price(&mut self, window: &Window, demoted: u64) {
        let Some(loss) = window.loss.filter(|_| demoted as f64 >= LEAST_PAGES_TO_LEARN) else { return };
        let seen = loss.moving * window.length.as_secs_f64() / demoted as f64;
        let measured = self.costs.page_out.map_or(0.0, |cost| cost.median.as_secs_f64());
        self.page_out_seconds = Some(f64::midpoint(self.page_out_seconds.unwrap_or(seen), seen).max(measured));
    }

    /// The time until the next observation, after one that took this time.
    fn pause(&mut self, cost: Duration) -> Duration {
        let before = std::mem::replace(&mut self.look_cost, cost);
        self.tuner.config().interval.max(cost.min(before) * PAUSE_PER_COST)
    }

    /// How far apart rounds are to begin, after a window in which managing cost the processes this many seconds: so that it costs a fifth
    /// of the target. Where a processor is free it costs nothing, and the policy's own cadence holds.
    fn space(&mut self, seconds: f64, rounds: u64) -> Duration {
        if rounds > 0 {
            let each = seconds / rounds as f64;
            let smoothed = f64::midpoint(self.round_seconds.unwrap_or(each), each);
            self.round_seconds = Some(smoothed);
            let wanted = smoothed / (self.tuner.config().max_slowdown * OF_TARGET_FOR_ROUNDS);
            self.spacing = Duration::from_secs_f64(wanted).min(MOST_SPACING);
        }
        self.spacing
    }

    fn window(&self, manager: &Manager, before: &Reading, now: &Reading) -> Option<(LiveWindow, Window)> {
        let pages = manager.engine().pages();
        let footprint = pages.footprint_of_all();
        if footprint == 0 {
            return None;
        }
        let length = now.at.since(before.at);
        let seen = LiveWindow {
            end: now.at,
            length,
            used_within: length.max(self.spacing.mul_f64(1.5)),
            footprint_pages: footprint,
            refaults: now.refaults.saturating_sub(before.refaults),
            demoted: now.demoted.saturating_sub(before.demoted)
                + now.kernel.demoted.saturating_sub(before.kernel.demoted),
            promoted: now.promoted.saturating_sub(before.promoted)
                + now.kernel.promoted.saturating_sub(before.kernel.promoted),
            cpu_seconds: (now.cpu_seconds - before.cpu_seconds).max(0.0),
        };
        let fast = pages.used_in_all(TierId::FAST);
        // Compressed memory lies in fast memory, too: what it takes is not saved.
        let occupied = self.occupied(manager, footprint - fast);
        let share = |amount: u64| (amount as f64 / footprint as f64).min(1.0);
        let passed = Passed {
            seconds: length.as_secs_f64(),
            cpu: seen.cpu_seconds,
            refaults: seen.refaults,
            moved_out: seen.demoted,
            own: now.own.saturating_sub(before.own).as_secs_f64(),
            moving: now.moving.saturating_sub(before.moving).as_secs_f64(),
            processors: now.processors.zip(before.processors).map(|(now, before)| now.since(&before)),
        };
        let window = Window {
            end: now.at,
            length,
            idle: seen.cpu_seconds <= 0.0 && seen.refaults == 0,
            held_share: share(fast),
            saved_share: 1.0 - share(fast + occupied),
            loss: passed.loss(&self.costs),
            used_share: share(fast),
            // The limit is a share of what the processes have, and grows with it; refaults are of pages that it put out.
            growth_share: 0.0,
            followed_share: share(footprint.saturating_sub(before.footprint)),
            left_room: false,
            return_seconds: self.costs.refault.map(|cost| footprint as f64 * cost.as_secs_f64()),
            // Of each thread that runs, as much; and a loss is a share of what they run.
            move_seconds: self.page_out_seconds.map(|cost| footprint as f64 * cost),
        };
        Some((seen, window))
    }

    /// The kernel's own moves, if they count.
    fn kernel_moves(&self) -> KernelMoves {
        let moves = self.counts_kernel_moves.then(|| KernelMoves::read(Path::new("/")).ok()).flatten();
        moves.unwrap_or_default()
    }

    /// Fast memory that `slow` pages in swap take.
    fn occupied(&self, manager: &Manager, slow: u64) -> u64 {
        let parts = manager.saving(Bytes::of_pages(slow));
        (parts.occupied() + parts.swap_cache).pages()
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::engine::{EngineConfig, Output};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::observation::{Observations, PteState, ScanBatch};
    use terrace_core::pages::Pages;
    use terrace_core::plan::{Move, MoveRequests, Outcome, Reason};
    use terrace_core::policy::{CapacityView, FastGoal, Needs, Policy, PolicyReport, Profile, ScanReport, Schedule};
    use terrace_core::units::{BLOCK_PAGES, SpaceId, Vpn};
    use terrace_tuning::{Loss, Mode};

    use super::account::tests::{costs, second};
    use super::*;

    #[test]
    fn what_could_not_be_measured_is_priced_by_the_page_outs_themselves() {
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured));
        live.begin_beside(costs(), true);
        assert_eq!(live.page_out_price(), PageOutPrice::Measured);
        live.price_by_duration(1000, Duration::from_millis(25));
        assert_eq!(live.costs(), costs(), "what was measured stays");
        let unpriced = MoveCost { page_out: None, ..costs() };
        live.begin_beside(unpriced, false);
        assert_eq!((live.page_out_price(), live.page_out_seconds), (PageOutPrice::None, None));
        live.begin_beside(unpriced, true);
        assert_eq!(live.page_out_price(), PageOutPrice::Refault);
        assert_eq!(live.page_out_seconds, unpriced.refault.map(|cost| cost.as_secs_f64()), "the first are paced, too");
        live.price_by_duration(10, Duration::from_millis(25));
        assert_eq!(live.page_out_price(), PageOutPrice::Refault, "ten pages say more of other things");
        live.price_by_duration(1000, Duration::from_millis(25));
        assert_eq!(live.page_out_price(), PageOutPrice::Duration);
        let priced = live.costs().page_out.unwrap();
        assert_eq!((priced.low, priced.median), (Duration::ZERO, Duration::from_micros(25)));
        assert_eq!(priced.high, priced.median, "a thread is not interrupted for longer");
        // A window of them is a loss now.
        let loss = Passed { moved_out: 1000, ..second() }.loss(&live.costs()).unwrap();
        assert!(loss.moving > 0.02 && loss.low == 0.0, "{loss:?}");
    }

    #[test]
    fn a_database_is_trusted_where_it_covers_nine_windows_of_ten() {
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Paper));
        let curve = terrace_tuning::Curve::of_losses([0.0; terrace_tuning::curve::SIZES]);
        let mut trusted = |covered| {
            let asked = Prediction { curve: curve.clone(), covered, trusted: true };
            live.judged(asked).trusted
        };
        assert!(trusted(true) && trusted(true), "all of two");
        assert!(!trusted(false), "two of three");
        assert!((0..6).all(|_| !trusted(true)), "up to eight of nine");
        assert!(trusted(true) && live.coverage().share() == Some(0.9));
    }

    #[test]
    fn rounds_are_set_apart_until_they_cost_a_fifth_of_the_target() {
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured));
        assert_eq!(live.space(0.0, 2), Duration::ZERO, "a processor is free");
        // Two rounds of 20 ms each second, then fewer, as requested; a window may have none.
        let mut apart = Duration::from_millis(500);
        for window in 0..40 {
            let each = apart.max(Duration::from_millis(500)).as_secs();
            let rounds = if each == 0 { 2 } else { u64::from(window % each == 0) };
            apart = live.space(0.02 * rounds as f64, rounds);
        }
        assert!((apart.as_secs_f64() - 2.0).abs() < 0.1, "{apart:?}");
        assert_eq!((0..20).map(|_| live.space(1.0, 1)).next_back(), Some(MOST_SPACING));
    }

    #[test]
    fn a_look_that_was_interrupted_does_not_stop_the_tuner_and_dear_looks_are_seldom() {
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured));
        let seconds =
            [1, 400, 1, 400, 400].map(|milliseconds| live.pause(Duration::from_millis(milliseconds)).as_secs_f64());
        assert_eq!(seconds, [2.5, 2.5, 2.5, 2.5, 80.0]);
    }

    const SLOW: TierId = TierId(1);

    /// Requests every second page away.
    struct Half;

    impl Policy for Half {
        fn profile(&self) -> Profile {
            Profile::new("half", Needs { scans: true, ..Needs::default() })
        }
        fn observe(&mut self, _: Time, _: Observations<'_>, _: &mut Pages) {}
        fn plan(&mut self, _: Time, _: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
            let blocks: Vec<_> = pages.blocks().map(|(block, _)| block).collect();
            for offset in (0..BLOCK_PAGES).step_by(2) {
                for block in &blocks {
                    requests.move_to(block.first_page().plus(offset), SLOW, Reason::Cold);
                }
            }
        }
        fn schedule(&self) -> Schedule {
            Schedule::default()
        }
        fn report(&self) -> PolicyReport {
            PolicyReport::default()
        }
    }

    /// An engine whose policy has put half of a block's pages into slow memory.
    fn half_out() -> Engine {
        let config = EngineConfig {
            tiers: vec![1 << 20, 1 << 20],
            goal: FastGoal::Share(0.5),
            governor: GovernorConfig::default(),
        };
        let mut engine = Engine::new(config, Box::new(Half));
        engine.handle(Time::ZERO, Input::Mapped(SpaceId(0), Vpn(0)..Vpn(u64::from(BLOCK_PAGES))));
        let now = Time::ZERO + Duration::from_secs(100);
        let first = engine.pages().find(SpaceId(0), Vpn(0)).unwrap();
        let ptes = vec![PteState::placed(TierId::FAST); BLOCK_PAGES as usize];
        let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
        engine.handle(now, Input::Observed(Observations::Scan(scan)));
        engine.handle(now, Input::ScanDone(ScanReport::default()));
        carry_out(&mut engine, now);
        let out = engine.pages().used_in_all(SLOW);
        assert_eq!(out, u64::from(BLOCK_PAGES) / 2);
        engine
    }

    /// Carries out what the engine wants moved now; how many pages that were.
    fn carry_out(engine: &mut Engine, now: Time) -> u64 {
        let mut moved = 0;
        loop {
            match engine.poll(now) {
                Output::Wake(_) => return moved,
                Output::Move(plan) => {
                    let done = |&item: &Move| Outcome { item, done: item.pages, failure: None };
                    let outcomes: Vec<Outcome> = plan.moves.iter().map(done).collect();
                    moved += plan.moves.iter().map(|item| u64::from(item.pages)).sum::<u64>();
                    engine.handle(now, Input::Moved(&outcomes));
                }
                Output::Track(_) => {}
            }
        }
    }

    #[test]
    fn a_broken_target_brings_pages_back_at_once_and_up_to_the_share() {
        let mut live = LiveTuner::new(TunerConfig::new(0.05, Mode::Measured));
        let mut engine = half_out();
        let out = engine.pages().used_in_all(SLOW);
        let now = Time::ZERO + Duration::from_secs(310);
        live.answer(now);
        assert_eq!(live.order(&engine, now), None, "nothing was broken");
        // Three windows in which the size holds, so that it shrinks, and one in which it does not.
        for number in 1..=4u64 {
            let standing = if number == 4 { 0.4 } else { 0.0 };
            let window = Window {
                end: Time::from_nanos(number * 2_500_000_000),
                length: Duration::from_millis(2500),
                idle: false,
                held_share: live.tuner.share(),
                saved_share: 1.0 - live.tuner.share(),
                loss: Some(Loss::of_size(standing)),
                used_share: live.tuner.share(),
                growth_share: 0.0,
                followed_share: 0.0,
                left_room: false,
                return_seconds: None,
                move_seconds: None,
            };
            live.tuner.decide(&window, None);
        }
        let share = live.tuner.share();
        live.answer(now);
        assert!(live.brings_back() && share > 0.9, "{:?}", live.tuner.intervals().last());
        assert_eq!(live.order(&engine, now), Some(true));
        engine.handle(now, Input::Drain(true));
        assert!(carry_out(&mut engine, now) > out / 2, "they do not wait for faults, and rest from no move");
        assert_eq!(live.order(&engine, now), None, "it is looked again in a moment");
        let later = now + LOOK;
        assert_eq!(live.order(&engine, later), Some(false), "enough is back");
        assert!(!live.brings_back() && live.order(&engine, later + LOOK).is_none());
        // Another order in between ends it.
        live.answer(later);
        live.interrupt();
        assert_eq!(live.order(&engine, later), None);
    }
}
