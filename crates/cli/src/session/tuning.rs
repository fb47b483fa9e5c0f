//! The tuner at the wheel of a live run: `terrace size tune`.
//!
//! In: the manager, every interval. Out: a new limit of fast memory, set in the engine, and a report. Must not: decide;
//! `terrace_sizing::Tuner` does, by the windows that `terrace_daemon::tuning` makes, as for the classes of the daemon.

use std::time::Duration;

use serde::Serialize;
use terrace_core::policy::FastGoal;
use terrace_core::units::Time;
use terrace_daemon::tuning::INPUTS;
pub(crate) use terrace_daemon::tuning::LiveTuner;
use terrace_linux::manager::Manager;
use terrace_sizing::tuner::{Interval, Summary};

/// Someone who looks at a run at times of his own choice, and may change how much fast memory it keeps.
pub(crate) trait Onlooker {
    /// The run begins; what one refault costs on this machine, if it was measured.
    fn begin(&mut self, refault_cost: Option<Duration>);
    /// When it wants to look next.
    fn due(&self) -> Time;
    /// Looks.
    fn look(&mut self, manager: &mut Manager);
}

/// What a tuned run came to: `terrace size tune --json`.
#[derive(Debug, Serialize)]
pub(crate) struct TuneReport {
    #[serde(flatten)]
    pub summary: Summary,
    /// Whether the loss was observed, or is what the database predicted.
    pub loss_observed: bool,
    /// Where the inputs came from.
    pub inputs: &'static str,
    /// What held the limit: `pages` or `watermarks`.
    pub held_by: &'static str,
    /// Decisions in order.
    pub intervals: Vec<Interval>,
    /// Bytes saved, mean over time.
    pub saved_bytes_mean: u64,
    /// The machine whose database was asked, and its records.
    pub machine: String,
    pub records: usize,
}

impl Onlooker for LiveTuner {
    fn begin(&mut self, refault_cost: Option<Duration>) {
        LiveTuner::begin(self, refault_cost);
    }

    fn due(&self) -> Time {
        LiveTuner::due(self)
    }

    fn look(&mut self, manager: &mut Manager) {
        if let Some(share) = LiveTuner::look(self, manager) {
            manager.set_goal(FastGoal::Share(share));
        }
    }
}

/// What a tuned run came to.
pub(crate) fn report(live: &LiveTuner, footprint_bytes: u64) -> TuneReport {
    let tuner = live.tuner();
    let mut summary = tuner.summary();
    let observed = summary.loss.is_some();
    if !observed {
        // Nothing could be observed: what was predicted stands in, and the report says so.
        let predicted: Vec<f64> = tuner.intervals().iter().filter_map(|interval| interval.predicted_loss).collect();
        summary.loss = (!predicted.is_empty()).then(|| predicted.iter().sum::<f64>() / predicted.len() as f64);
    }
    let database = live.index().database();
    TuneReport {
        saved_bytes_mean: (summary.saved_share_mean * footprint_bytes as f64) as u64,
        summary,
        loss_observed: observed,
        inputs: INPUTS,
        held_by: if live.is_held_by_watermarks() { "watermarks" } else { "pages" },
        intervals: tuner.intervals().to_vec(),
        machine: database.meta().machine.clone(),
        records: database.len(),
    }
}
