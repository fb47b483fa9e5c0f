//! What goes into a tuner and what comes out: its configuration, windows, losses, predictions, decisions.
//!
//! In: nothing. Out: types, and the arithmetic that belongs to one of them alone. Must not: decide.

use std::time::Duration;

use terrace_core::engine::Engine;
use terrace_core::units::Time;

use crate::curve::Curve;

/// How the tuner decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By a performance database alone, as Tuna does.
    Paper,
    /// By what is observed, and by a database where one is asked.
    Measured,
}

/// What a tuner is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TunerConfig {
    /// The target: how much longer the program may take, above 0 and at most 1.
    pub max_slowdown: f64,
    /// How often it decides. The paper's is 2.5 s.
    pub interval: Duration,
    /// How it decides.
    pub mode: Mode,
    /// The least share it ever asks for.
    pub least_share: f64,
}

impl TunerConfig {
    /// The paper's interval, and no less than a hundredth, the least size of a record.
    pub const fn new(max_slowdown: f64, mode: Mode) -> TunerConfig {
        TunerConfig { max_slowdown, interval: Duration::from_millis(2500), mode, least_share: 0.01 }
    }
}

/// What a program did since the last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// When it ended.
    pub end: Time,
    /// How long it was.
    pub length: Duration,
    /// Whether the program reached no memory in it: then nothing is decided.
    pub idle: bool,
    /// Share of the full size that it held in fast memory, or was allowed to, whichever was more.
    pub held_share: f64,
    /// Share of the full size that this saved: what is not held, less what slow memory takes of fast memory (compressed memory
    /// lies in it).
    pub saved_share: f64,
    /// How much longer it took than with everything fast and unmanaged, if that was observed.
    pub loss: Option<Loss>,
    /// Share of the full size that was in use in fast memory at its end.
    pub used_share: f64,
    /// Share of the full size that the program grew by in it, and the limit did not.
    pub growth_share: f64,
    /// The same where the limit grew with it.
    pub followed_share: f64,
    /// Whether the limit left room all the time: then a larger one would not have made less slow.
    pub left_room: bool,
    /// Seconds that the program would wait if all of its full size were slow and came back at once; `None` where slow memory is
    /// used in its place, or the price of a page is not known.
    pub return_seconds: Option<f64>,
    /// Seconds that the program would lose if all of its full size was moved to slow memory; `None` where that costs it nothing
    /// that is known.
    pub move_seconds: Option<f64>,
}

/// What a performance database says of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The loss at each size.
    pub curve: Curve,
    /// Whether the database has records like this window at all.
    pub covered: bool,
    /// Whether it may be gone by: live a database that has records like too few of the windows may not.
    pub trusted: bool,
}

/// Below this coverage predictions do not hold: what a database says of windows that are none of its own is no knowledge.
pub const LEAST_COVERAGE: f64 = 0.9;

/// How many of the windows that a database was asked about are like its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    asked: u64,
    covered: u64,
}

impl Coverage {
    /// It was asked about a window more.
    pub fn count(&mut self, covered: bool) {
        self.asked += 1;
        self.covered += u64::from(covered);
    }

    /// The share of the windows; `None` if it was never asked.
    pub fn share(&self) -> Option<f64> {
        (self.asked > 0).then(|| self.covered as f64 / self.asked as f64)
    }

    /// Whether it may be gone by: it covers [`LEAST_COVERAGE`] of the windows so far.
    pub fn is_enough(&self) -> bool {
        self.share().is_some_and(|share| share >= LEAST_COVERAGE)
    }
}

/// What is known of a window of running processes without counts of accesses by tier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveWindow {
    /// When it ended.
    pub end: Time,
    /// How long it was.
    pub length: Duration,
    /// Pages whose age is below this count as used in it: where scans are further apart than windows, what was used is known from the
    /// scan before.
    pub used_within: Duration,
    /// Pages of the processes.
    pub footprint_pages: u64,
    /// Pages that came back from slow memory by a fault.
    pub refaults: u64,
    /// Pages demoted.
    pub demoted: u64,
    /// Pages promoted, without the refaults.
    pub promoted: u64,
    /// CPU time of the processes, in seconds.
    pub cpu_seconds: f64,
}

/// Someone who has a performance database.
pub trait Predictor: Send {
    /// What it says of a window of running processes, whose pages are those of the engine; `None` where it cannot say anything.
    fn predict(&mut self, engine: &Engine, window: &LiveWindow) -> Option<Prediction>;
}

impl Window {
    /// How much longer it took, if that was observed: what is slow though there is room is not the present size's, and counts as what
    /// managing costs.
    pub fn loss_by_limit(&self) -> Option<Loss> {
        self.loss.map(|loss| if self.left_room { loss.not_by_size() } else { loss })
    }
}

/// How much longer a window took than it would have without: each part over that time; 0.05 is 5 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Loss {
    /// By what is slow at this size: lost again in each window that the size stays.
    pub standing: f64,
    /// By changing the size: pages that went to slow memory, and not in the place of others that came back. Lost once.
    pub moving: f64,
    /// By managing at all, at any size: processor time that the program would have had.
    pub managing: f64,
    /// Lower end of the interval in which the sum lies.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Loss {
    /// A loss that is known for sure, and the size's alone.
    pub const fn of_size(loss: f64) -> Loss {
        Loss { standing: loss, moving: 0.0, managing: 0.0, low: loss, high: loss }
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.standing + self.moving + self.managing
    }

    /// The same where no size is to blame.
    pub(crate) fn not_by_size(self) -> Loss {
        Loss { standing: 0.0, managing: self.managing + self.standing, ..self }
    }
}

/// Whether a limit leaves room for pages: more of it is unused than policies keep free by themselves ([`MARGIN`]). That all the
/// program has would just fit is not enough, as policies demote before it does.
pub fn leaves_room(limit: u64, used: u64) -> bool {
    used as f64 <= limit as f64 * (1.0 - MARGIN)
}

/// What policies keep free of fast memory: TPP 2 %, MEMTIS and FlexMem 3 %; and as much again of the full size is left above what
/// is in use.
pub const MARGIN: f64 = 0.03;

/// Why the limit is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Nothing was decided: the program did nothing, or has just begun.
    Waited,
    /// The size stays.
    Kept,
    /// Less.
    Shrunk,
    /// More, as the prediction has it.
    Grew,
    /// More, because the target was broken.
    BackedOff,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Interval {
    /// When, in seconds since the start.
    pub seconds: f64,
    /// Length of the window before it.
    pub window_seconds: f64,
    /// Share of the full size that was not held in the window.
    pub saved_share: f64,
    /// Whether the limit left room in it, so that nothing of the loss is the limit's.
    pub left_room: bool,
    /// Observed loss of the window, by the limit: all of it.
    pub observed_loss: Option<f64>,
    /// Its parts, and the interval in which it lies.
    pub loss: Option<Loss>,
    /// The loss expected at the size of the window: by the database, or, where none is asked, by the straight line through what was
    /// observed before.
    pub predicted_loss: Option<f64>,
    /// The interval of observed over predicted loss.
    pub ratio_low: f64,
    /// Its upper end.
    pub ratio_high: f64,
    /// The share from now on.
    pub fast_share: f64,
    /// What was done.
    pub action: Action,
    /// Whether the database has records like this window; `None` where none is asked.
    pub in_coverage: Option<bool>,
    /// Whether what it predicted was gone by; `None` where none is asked.
    pub database_used: Option<bool>,
    /// Share of the full size that the program grew by in the window.
    pub grown_share: f64,
}

/// A run under a tuner, summed up.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Summary {
    /// Share of fast memory saved, mean over time.
    pub saved_share_mean: f64,
    /// The most that was saved in a window.
    pub saved_share_max: f64,
    /// Observed loss of the whole: time lost over the time it would have taken; `None` if nothing observed it.
    pub loss: Option<f64>,
    /// Lower end of the interval in which that lies, and the upper end: by what cannot be observed from within.
    pub loss_low: Option<f64>,
    /// Its upper end.
    pub loss_high: Option<f64>,
    /// 95th percentile of the windows' observed losses.
    pub loss_p95: Option<f64>,
    /// The target.
    pub max_slowdown: f64,
}

/// The program grows as long as it does so by more than this share of its size in a window.
const GROWTH: f64 = 0.01;
/// Windows of a steady state, at least.
const LEAST_STEADY: usize = 4;
/// The limit falls as long as the later half of those windows saves more than this above the earlier.
const FALL: f64 = 0.02;

/// Why a run has no steady state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSteady {
    /// Too few windows.
    Short,
    /// More was saved from window to window until the end.
    Falling,
}

impl NotSteady {
    /// For people.
    pub const fn why(self) -> &'static str {
        match self {
            NotSteady::Short => {
                "fewer than eight intervals since the program last grew by more than 1 % in one: let it run for longer"
            }
            NotSteady::Falling => "the limit was still falling at the end: let it run for longer",
        }
    }
}

/// The share saved once the program's size and the limit are steady: the mean over time of the later half of the windows since it last grew by more than a
/// hundredth in one, the first half being the way down. What a program has not touched yet is no saving there.
///
/// # Errors
/// Why there is none.
pub fn steady_saving(intervals: &[Interval]) -> Result<f64, NotSteady> {
    let grew = intervals.iter().rposition(|interval| interval.grown_share > GROWTH).map_or(0, |place| place + 1);
    let since = &intervals[grew..];
    let steady = &since[since.len() / 2..];
    let mean = |of: &[Interval]| {
        let (saved, seconds) = of.iter().fold((0.0, 0.0), |(saved, seconds), interval| {
            (saved + interval.saved_share * interval.window_seconds, seconds + interval.window_seconds)
        });
        (seconds > 0.0).then(|| saved / seconds)
    };
    let (earlier, later) = steady.split_at(steady.len() / 2);
    match (mean(steady), mean(earlier), mean(later)) {
        (Some(all), Some(earlier), Some(later)) if steady.len() >= LEAST_STEADY => {
            if later - earlier > FALL {
                Err(NotSteady::Falling)
            } else {
                Ok(all)
            }
        }
        _ => Err(NotSteady::Short),
    }
}

/// The least of these losses that 95 of 100 do not exceed; `None` without any.
pub fn percentile_95(losses: &[f64]) -> Option<f64> {
    let mut losses = losses.to_vec();
    losses.sort_by(f64::total_cmp);
    losses.get(((losses.len() as f64 * 0.95).ceil() as usize).saturating_sub(1)).copied()
}
