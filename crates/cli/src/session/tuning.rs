//! The tuner at the wheel of a live run: what was seen becomes windows, shares become limits of the space.
//!
//! In: the manager, every interval. Out: a new limit of fast memory, set in the engine. Must not: decide; `terrace_sizing::Tuner` does,
//! the same code as in the simulator.
//!
//! Where there are no counters of accesses by tier, as in most virtual machines, the vector is estimated: pages that a tracker
//! saw accessed within the interval count as the accesses that would keep them fast (the threshold times their number), pages that
//! came back by a fault as slow accesses and promotions, and the program's CPU time as its operations. The loss of a window is
//! the time those faults cost, as a refault was measured at the start, over what is left of the CPU time.
//!
//! The limit is held by the engine, which demotes the program's coldest pages; or by the kernel's watermarks, if they were
//! given: then so much of fast memory is kept free as would be if the program were at its limit, and the kernel demotes.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use terrace_core::policy::FastGoal;
use terrace_core::units::{Bytes, TierId, Time};
use terrace_linux::manager::Manager;
use terrace_linux::watermarks::{KernelMoves, Watermarks};
use terrace_policies::age::idle_time;
use terrace_sizing::steer::FIXED_THRESHOLD;
use terrace_sizing::tuner::{Interval, Summary, Tuner, TunerConfig, Window};
use terrace_sizing::{ConfigVector, Index};

/// What is counted at the end of a window.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    at: Time,
    refaults: u64,
    promoted: u64,
    demoted: u64,
    kernel: KernelMoves,
    cpu_seconds: f64,
}

/// Someone who looks at a run at times of his own choice, and may change how much fast memory it keeps.
pub(crate) trait Onlooker {
    /// The run begins; what one refault costs on this machine, if it was measured.
    fn begin(&mut self, refault_cost: Option<Duration>);
    /// When it wants to look next.
    fn due(&self) -> Time;
    /// Looks.
    fn look(&mut self, manager: &mut Manager);
}

/// See the module's header.
pub(crate) struct LiveTuner {
    tuner: Tuner,
    index: Index,
    frequency_hertz: f64,
    refault_cost: Option<Duration>,
    /// If given, they hold the limit.
    watermarks: Option<Watermarks>,
    /// The share that they hold the program to.
    held_to: f64,
    last: Option<Reading>,
    due: Time,
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
        self.refault_cost = refault_cost;
    }

    fn due(&self) -> Time {
        self.due
    }

    fn look(&mut self, manager: &mut Manager) {
        let now = manager.now();
        self.hold(manager);
        if now < self.due {
            return;
        }
        self.due = now + self.tuner.config().interval;
        let ledger = manager.engine().ledger();
        let reading = Reading {
            at: now,
            refaults: manager.stats().major_faults,
            promoted: ledger.promoted(),
            demoted: ledger.demoted(),
            kernel: self.kernel_moves(),
            cpu_seconds: manager.stats().cpu_ticks as f64 / rustix::param::clock_ticks_per_second() as f64,
        };
        let Some(before) = self.last.replace(reading) else { return };
        let Some(window) = self.window(manager, &before, &reading) else { return };
        match self.tuner.decide(&window, &self.index) {
            Ok(share) if self.watermarks.is_some() => self.held_to = share,
            Ok(share) => manager.set_goal(FastGoal::Share(share)),
            // A window that cannot be a program's says nothing: the limit stays.
            Err(error) => tracing::debug!(%error, "an interval was passed over"),
        }
    }
}

/// Where a live run's vector comes from without counters.
const INPUTS: &str = "estimated: accesses by tier from the tracker's marks and from refaults, operations from CPU time; no hardware counters";

impl LiveTuner {
    pub(crate) fn new(
        config: TunerConfig,
        index: Index,
        frequency_hertz: f64,
        watermarks: Option<Watermarks>,
    ) -> LiveTuner {
        LiveTuner {
            tuner: Tuner::new(config),
            index,
            frequency_hertz,
            refault_cost: None,
            watermarks,
            held_to: 1.0,
            last: None,
            due: Time::ZERO,
        }
    }

    /// Sets the marks by what is free now: as much as would be free if the program were at its limit.
    fn hold(&mut self, manager: &Manager) {
        let Some(marks) = &mut self.watermarks else { return };
        let pages = manager.engine().pages();
        let limit = (pages.footprint_of_all() as f64 * self.held_to).ceil() as u64;
        let over = Bytes::of_pages(pages.used_in_all(TierId::FAST).saturating_sub(limit));
        let set = match self.held_to < 1.0 {
            true => marks.free().and_then(|free| marks.keep_free(free + over)),
            false => marks.keep_free(Bytes::ZERO),
        };
        if let Err(error) = set {
            // The marks stay where they are; the next look tries again.
            tracing::warn!(%error, "the watermarks could not be set");
        }
    }

    /// What the kernel moved, where it is the kernel that holds the limit.
    fn kernel_moves(&self) -> KernelMoves {
        let held = self.watermarks.as_ref().map(|_| KernelMoves::read(Path::new("/")));
        held.and_then(Result::ok).unwrap_or_default()
    }

    fn window(&self, manager: &Manager, before: &Reading, now: &Reading) -> Option<Window> {
        let pages = manager.engine().pages();
        let footprint = pages.footprint_of_all();
        if footprint == 0 {
            return None;
        }
        let length = now.at.since(before.at);
        let mut touched = 0u64;
        for (block, _) in pages.blocks() {
            let used = |page: &&terrace_core::pages::Page| {
                page.tier() == Some(TierId::FAST) && idle_time(page, now.at).is_some_and(|idle| idle <= length)
            };
            touched += pages.block_pages(block).iter().filter(used).count() as u64;
        }
        let refaults = now.refaults.saturating_sub(before.refaults);
        let cpu = (now.cpu_seconds - before.cpu_seconds).max(0.0);
        let accesses = touched as f64 * FIXED_THRESHOLD + refaults as f64 * FIXED_THRESHOLD;
        let vector = ConfigVector {
            fast_accesses: touched as f64 * FIXED_THRESHOLD,
            slow_accesses: refaults as f64 * FIXED_THRESHOLD,
            demotions: (now.demoted.saturating_sub(before.demoted)
                + now.kernel.demoted.saturating_sub(before.kernel.demoted)) as f64,
            promotions: (now.promoted.saturating_sub(before.promoted)
                + now.kernel.promoted.saturating_sub(before.kernel.promoted)
                + refaults) as f64,
            intensity: cpu * self.frequency_hertz / accesses.max(1.0),
            resident_bytes: Bytes::of_pages(footprint).get() as f64,
            hot_threshold: FIXED_THRESHOLD,
            threads: (cpu / length.as_secs_f64()).ceil().max(1.0),
        };
        // Compressed memory lies in fast memory, too: what it takes is not saved.
        let occupied = manager.stats().pressure.zram.map_or(0, |zram| zram.mem_used_bytes.pages());
        let share = |amount: u64| (amount as f64 / footprint as f64).min(1.0);
        let used = pages.used_in_all(TierId::FAST);
        let loss = self.refault_cost.filter(|_| cpu > 0.0).map(|cost| {
            let lost = refaults as f64 * cost.as_secs_f64();
            lost / (cpu - lost).max(cpu * 0.01)
        });
        Some(Window {
            end: now.at,
            length,
            vector,
            held_share: share(used),
            saved_share: 1.0 - share(used + occupied),
            loss,
            used_share: share(used),
            // The limit is a share of what the program has, and grows with it; refaults are of pages that it put out.
            growth_share: 0.0,
            left_room: false,
        })
    }

    /// What the run came to.
    pub(crate) fn report(&self, footprint_bytes: u64) -> TuneReport {
        let mut summary = self.tuner.summary();
        let observed = summary.loss.is_some();
        if !observed {
            // Nothing could be observed: what was predicted stands in, and the report says so.
            let predicted: Vec<f64> =
                self.tuner.intervals().iter().filter_map(|interval| interval.predicted_loss).collect();
            summary.loss = (!predicted.is_empty()).then(|| predicted.iter().sum::<f64>() / predicted.len() as f64);
        }
        TuneReport {
            saved_bytes_mean: (summary.saved_share_mean * footprint_bytes as f64) as u64,
            summary,
            loss_observed: observed,
            inputs: INPUTS,
            held_by: if self.watermarks.is_some() { "watermarks" } else { "pages" },
            intervals: self.tuner.intervals().to_vec(),
            machine: self.index.database().meta().machine.clone(),
            records: self.index.database().len(),
        }
    }
}
