//! The tuner in a live run: `terrace size tune`.
//!
//! In: the manager, every interval; for the paper's way a performance database. Out: a new limit of fast memory, set in the engine, and a
//! report. Must not: decide; `terrace_tuning::Tuner` does, by the windows that `terrace_linux::live_tuner` makes, as for the classes of the service.
//!
//! The limit is held by the engine, which demotes the program's coldest pages, and brings pages back when the target was broken: by
//! its faults alone a program would have them back only when it has paid for each. Or it is held by the kernel's watermarks, if they were
//! given: then so much of fast memory is kept free as would be if the program were at its limit, and the kernel demotes.

use serde::Serialize;
use terrace_core::engine::Input;
use terrace_core::policy::FastGoal;
use terrace_core::units::{Bytes, TierId, Time};
use terrace_linux::live_proof::ProofState;
use terrace_linux::live_tuner::{INPUTS, LiveTuner, PageOutPrice, loss_shows};
use terrace_linux::manager::Manager;
use terrace_linux::move_cost::MoveCost;
use terrace_linux::topology::TierMap;
use terrace_linux::watermarks::Watermarks;
use terrace_tuning::{Interval, Mode, NotSteady, Summary, steady_saving};

/// Someone who looks at a run at times of his own choice, and may change how much fast memory it keeps.
pub trait RunHook {
    /// The run is about to begin on these tiers; what moves cost on this machine, as far as it was measured.
    ///
    /// # Errors
    /// When it cannot do its work on such a machine; nothing is started then.
    fn begin(&mut self, costs: MoveCost, tiers: &TierMap) -> anyhow::Result<()>;
    /// When it wants to look next.
    fn due(&self) -> Time;
    /// Looks.
    fn look(&mut self, manager: &mut Manager);
    /// The program is left alone in this window of a proof: what was seen of it so far is no window of the tuner's.
    fn leave_alone(&mut self, _manager: &mut Manager) {}
}

/// What a tuned run came to: `terrace size tune --json`.
#[derive(Debug, Serialize)]
pub struct TuneReport {
    /// What was saved and lost.
    #[serde(flatten)]
    pub summary: Summary,
    /// Whether the loss was observed, or is what the database predicted.
    pub loss_observed: bool,
    /// Where the inputs came from.
    pub inputs: &'static str,
    /// What moves cost on this machine, as measured at the start; `None` where that was not measured.
    pub refault_microseconds: Option<f64>,
    /// Of a page-out, what it takes of each thread that runs meanwhile: lower end, median, upper end.
    pub page_out_microseconds: Option<[f64; 3]>,
    /// Where that is from: `measured` at the start; `duration` of the page-outs themselves, at most; `refault`, as long as there were none;
    /// `none` where a page-out costs no thread anything that is known.
    pub page_out_price: PageOutPrice,
    /// What held the limit: `pages` or `watermarks`.
    pub held_by: &'static str,
    /// Decisions in order.
    pub intervals: Vec<Interval>,
    /// Bytes saved, mean over time.
    pub saved_bytes_mean: u64,
    /// With `--paper`: the machine whose database was asked, and its records.
    pub machine: Option<String>,
    /// How many they are.
    pub records: Option<usize>,
    /// With `--paper`: the share of the intervals that the database has records like.
    pub coverage: Option<f64>,
    /// With `--paper`: intervals in which the database was asked and not gone by, as it covered too few so far.
    pub database_unused_intervals: Option<usize>,
    /// Share of what the program has that was saved once neither it grew nor the limit fell; `None` where there was no such time, for the reason beside it.
    pub resident_saved_share_steady: Option<f64>,
    /// Why there was none.
    pub not_steady: Option<&'static str>,
    /// The loss by experiment.
    #[serde(flatten)]
    pub measured: Measured,
}

/// The loss by experiment: how much longer the program takes managed than left alone, window against window by coin.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// 0.05 is 5 % longer; negative if it is faster.
    pub measured_loss: Option<f64>,
    /// Its interval, 90 % over all looks together.
    pub measured_loss_low: Option<f64>,
    /// Its upper end.
    pub measured_loss_high: Option<f64>,
    /// The metric, and windows that were compared.
    pub measured_by: Option<String>,
    /// How many they are.
    pub measured_windows: u64,
    /// Why a figure is missing, if one is.
    pub not_measured: Option<String>,
}

impl Measured {
    /// What a proof came to, if there was one.
    pub fn of(proof: Option<&ProofState>) -> Measured {
        let Some(proof) = proof else {
            let why =
                "no --metric was given, so that nothing was compared; --metric auto takes what the processor counts";
            return Measured { not_measured: Some(why.to_owned()), ..Measured::default() };
        };
        // A program that is a quarter faster takes a fifth less time.
        let longer = |gain: f64| 1.0 / (1.0 + gain) - 1.0;
        let not_measured = match (proof.gain, proof.gain_low, &proof.error) {
            (_, Some(_), _) => None,
            (Some(_), None, _) => Some(format!(
                "an interval takes six pairs of windows, and there were {}; see --metric-window",
                proof.windows / 2
            )),
            (None, _, Some(error)) => Some(format!("the metric could not be read: {error}")),
            (None, _, None) => Some("it ended before a pair of windows was over; see --metric-window".to_owned()),
        };
        Measured {
            measured_loss: proof.gain.map(longer),
            measured_loss_low: proof.gain_high.map(longer),
            measured_loss_high: proof.gain_low.map(longer),
            measured_by: Some(proof.metric.clone()),
            measured_windows: proof.windows,
            not_measured,
        }
    }
}

/// What a live run's vector is made of: there are no counters of accesses by tier in most virtual machines.
const ESTIMATED: &str =
    "estimated: accesses by tier from accessed bits and from refaults, operations from CPU time; no hardware counters";

/// A tuner, and what holds the limits that it sets.
pub struct Steering {
    live: LiveTuner,
    /// If given, they hold the limit.
    watermarks: Option<Watermarks>,
    /// The share that they hold the program to.
    held_to: f64,
}

impl Steering {
    /// A tuner whose limits the watermarks hold, or else the engine.
    pub fn new(live: LiveTuner, watermarks: Option<Watermarks>) -> Steering {
        let live = if watermarks.is_some() { live.counting_kernel_moves() } else { live };
        Steering { live, watermarks, held_to: 1.0 }
    }

    /// Sets the marks by what is free now: as much as would be free if the program were at its limit, more or less than is.
    fn hold(&mut self, manager: &Manager) {
        let Some(marks) = &mut self.watermarks else { return };
        let pages = manager.engine().pages();
        let limit = (pages.footprint_of_all() as f64 * self.held_to).ceil() as u64;
        let (used, limit) = (Bytes::of_pages(pages.used_in_all(TierId::FAST)), Bytes::of_pages(limit));
        let set = match self.held_to < 1.0 {
            true => marks.free().and_then(|free| marks.keep_free((free + used).saturating_sub(limit))),
            false => marks.keep_free(Bytes::ZERO),
        };
        if let Err(error) = set {
            // The marks stay where they are; the next look tries again.
            tracing::warn!(%error, "the watermarks could not be set");
        }
    }
}

impl RunHook for Steering {
    fn begin(&mut self, costs: MoveCost, tiers: &TierMap) -> anyhow::Result<()> {
        let shows = loss_shows(tiers);
        if self.live.tuner().config().mode == Mode::Measured && !shows {
            anyhow::bail!(
                "the slow tier is memory that programs use in place, where what it costs them cannot be observed without counters: \
                 take compressed swap (--tier-slow zram:2GiB), or go by a performance database (--paper)"
            );
        }
        // Without faults there is nothing to price: no loss is then observed, instead of none at all.
        self.live.begin(if shows { costs } else { MoveCost { refault: None, ..costs } });
        Ok(())
    }

    fn due(&self) -> Time {
        self.live.due()
    }

    fn look(&mut self, manager: &mut Manager) {
        self.hold(manager);
        match self.live.look(manager) {
            Some(share) if self.watermarks.is_some() => self.held_to = share,
            Some(share) => {
                manager.set_goal(FastGoal::Share(share));
                self.live.answer(manager.now());
            }
            None => {}
        }
        self.live.bring_back(manager);
    }

    fn leave_alone(&mut self, manager: &mut Manager) {
        if self.live.brings_back() {
            manager.tell(Input::Drain(false));
        }
        self.live.interrupt();
    }
}

/// What a tuned run came to.
pub fn report(
    steering: &Steering,
    footprint_bytes: u64,
    database: Option<(String, usize)>,
    proof: Option<&ProofState>,
) -> TuneReport {
    let live = &steering.live;
    let tuner = live.tuner();
    let mut summary = tuner.summary();
    let observed = summary.loss.is_some();
    if !observed {
        // Nothing could be observed: what was predicted stands in, and the report says so.
        let predicted: Vec<f64> = tuner.intervals().iter().filter_map(|interval| interval.predicted_loss).collect();
        summary.loss = (!predicted.is_empty()).then(|| predicted.iter().sum::<f64>() / predicted.len() as f64);
    }
    let costs = live.costs();
    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let steady = steady_saving(tuner.intervals());
    TuneReport {
        saved_bytes_mean: (summary.saved_share_mean * footprint_bytes as f64) as u64,
        summary,
        loss_observed: observed,
        inputs: if tuner.config().mode == Mode::Paper { ESTIMATED } else { INPUTS },
        refault_microseconds: costs.refault.map(micros),
        page_out_price: live.page_out_price(),
        page_out_microseconds: costs.page_out.map(|cost| [cost.low, cost.median, cost.high].map(micros)),
        held_by: if steering.watermarks.is_some() { "watermarks" } else { "pages" },
        intervals: tuner.intervals().to_vec(),
        coverage: live.coverage().share(),
        database_unused_intervals: database.as_ref().map(|_| unused(tuner.intervals())),
        resident_saved_share_steady: steady.ok(),
        not_steady: steady.err().map(NotSteady::why),
        measured: Measured::of(proof),
        records: database.as_ref().map(|(_, records)| *records),
        machine: database.map(|(machine, _)| machine),
    }
}

/// Intervals in which a database was asked and not gone by.
fn unused(intervals: &[Interval]) -> usize {
    intervals.iter().filter(|interval| interval.database_used == Some(false)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_was_not_measured_says_why_and_one_that_was_has_its_interval() {
        let none = Measured::of(None);
        assert!(none.measured_loss.is_none() && none.not_measured.unwrap().contains("no --metric was given"));
        let begun = ProofState { metric: "cpu".to_owned(), ..ProofState::default() };
        let why = |state: &ProofState| Measured::of(Some(state)).not_measured.unwrap();
        assert!(why(&begun).contains("before a pair of windows"));
        assert!(why(&ProofState { error: Some("No such file".to_owned()), ..begun.clone() }).contains("No such file"));
        let few = ProofState { gain: Some(-0.2), windows: 4, ..begun.clone() };
        assert!(why(&few).contains("there were 2") && Measured::of(Some(&few)).measured_loss == Some(0.25));
        let known = ProofState { gain_low: Some(-0.5), gain_high: Some(0.25), windows: 14, ..few };
        let measured = Measured::of(Some(&known));
        assert_eq!((measured.measured_loss_low.unwrap() * 100.0).round(), -20.0);
        assert_eq!((measured.measured_loss_high, measured.not_measured), (Some(1.0), None));
        assert_eq!((measured.measured_by.as_deref(), measured.measured_windows), (Some("cpu"), 14));
    }
}
