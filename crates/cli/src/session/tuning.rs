//! The tuner at the wheel of a live run: `terrace size tune`.
//!
//! In: the manager, every interval. Out: a new limit of fast memory, set in the engine, and a report. Must not: decide;
//! `terrace_sizing::Tuner` does, by the windows that `terrace_daemon::tuning` makes, as for the classes of the daemon.
//!
//! The limit is held by the engine, which demotes the program's coldest pages, and brings pages back when the target was broken: by
//! its faults alone a program would have them back only when it has paid for each. Or it is held by the kernel's watermarks, if they were
//! given: then so much of fast memory is kept free as would be if the program were at its limit, and the kernel demotes.

use serde::Serialize;
use terrace_core::policy::FastGoal;
use terrace_core::units::{Bytes, TierId, Time};
use terrace_daemon::tuning::{INPUTS, LiveTuner, PageOutPrice};
use terrace_linux::manager::Manager;
use terrace_linux::move_cost::MoveCost;
use terrace_linux::watermarks::Watermarks;
use terrace_sizing::tuner::{Interval, Summary};

/// Someone who looks at a run at times of his own choice, and may change how much fast memory it keeps.
pub(crate) trait Onlooker {
    /// The run begins; what moves cost on this machine, as far as it was measured.
    fn begin(&mut self, costs: MoveCost);
    /// Whether it goes by what page-outs cost, which takes a tenth of a second to measure.
    fn prices_page_outs(&self) -> bool {
        false
    }
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
    /// The machine whose database was asked, and its records.
    pub machine: String,
    pub records: usize,
}

/// A tuner, and what holds the limits that it sets.
pub(crate) struct Steering {
    live: LiveTuner,
    /// If given, they hold the limit.
    watermarks: Option<Watermarks>,
    /// The share that they hold the program to.
    held_to: f64,
}

impl Steering {
    pub(crate) fn new(live: LiveTuner, watermarks: Option<Watermarks>) -> Steering {
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

impl Onlooker for Steering {
    fn begin(&mut self, costs: MoveCost) {
        self.live.begin(costs);
    }

    fn prices_page_outs(&self) -> bool {
        true
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
}

/// What a tuned run came to.
pub(crate) fn report(steering: &Steering, footprint_bytes: u64) -> TuneReport {
    let live = &steering.live;
    let tuner = live.tuner();
    let mut summary = tuner.summary();
    let observed = summary.loss.is_some();
    if !observed {
        // Nothing could be observed: what was predicted stands in, and the report says so.
        let predicted: Vec<f64> = tuner.intervals().iter().filter_map(|interval| interval.predicted_loss).collect();
        summary.loss = (!predicted.is_empty()).then(|| predicted.iter().sum::<f64>() / predicted.len() as f64);
    }
    let database = live.index().database();
    let costs = live.costs();
    let micros = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    TuneReport {
        saved_bytes_mean: (summary.saved_share_mean * footprint_bytes as f64) as u64,
        summary,
        loss_observed: observed,
        inputs: INPUTS,
        refault_microseconds: costs.refault.map(micros),
        page_out_price: live.page_out_price(),
        page_out_microseconds: costs.page_out.map(|cost| [cost.low, cost.median, cost.high].map(micros)),
        held_by: if steering.watermarks.is_some() { "watermarks" } else { "pages" },
        intervals: tuner.intervals().to_vec(),
        machine: database.meta().machine.clone(),
        records: database.len(),
    }
}
