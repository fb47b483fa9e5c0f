//! `terrace size tune --paper`: a program under the tuner of the paper, which goes by a performance database.
//!
//! In: arguments. Out: the program's exit code. Must not: tune; `terrace_run::tune` does, and is lent a database.

use std::process::ExitCode;

use terrace_core::engine::Engine;
use terrace_core::units::{Bytes, TierId};
use terrace_policies::age::idle_time;
use terrace_run::tune::Database;
use terrace_sizing::sim_driver::FIXED_THRESHOLD;
use terrace_sizing::{ConfigVector, Index};
use terrace_tuning::{LiveWindow, Prediction, Predictor};

use super::store;
use crate::args::{DatabaseArguments, SizeTuneArguments};

pub(super) fn run(arguments: &SizeTuneArguments) -> anyhow::Result<ExitCode> {
    terrace_run::tune::run(arguments, || {
        let store::Ready { index, machine, .. } = store::index(&database_arguments(arguments))?;
        Ok(Database {
            machine: machine.name.clone(),
            records: index.database().len(),
            predictor: Box::new(DatabasePredictor::new(index, machine.processor.frequency_hertz)),
        })
    })
}

/// The database of the paper's way: the file that was named, or one for the machine that was.
fn database_arguments(arguments: &SizeTuneArguments) -> DatabaseArguments {
    /// The preset that is most like a virtual machine with compressed swap, where this command is used most.
    const LIKE_THIS_ONE: &str = "zram-vm";
    let machine = arguments.machine.clone().unwrap_or_else(|| LIKE_THIS_ONE.to_owned());
    DatabaseArguments { db: arguments.db.clone(), machine, k: 1 }
}

/// A performance database that is asked about live windows.
///
/// Pages that a tracker saw accessed within the window count as the accesses that would keep them fast (the threshold times their number),
/// pages that came back by a fault as slow accesses and promotions, and the program's CPU time as its operations.
struct DatabasePredictor {
    index: Index,
    frequency_hertz: f64,
}

impl DatabasePredictor {
    /// For a machine whose processor runs at this frequency.
    fn new(index: Index, frequency_hertz: f64) -> DatabasePredictor {
        DatabasePredictor { index, frequency_hertz }
    }

    fn vector(&self, touched: u64, window: &LiveWindow) -> ConfigVector {
        let [fast_accesses, slow_accesses] = [touched, window.refaults].map(|pages| pages as f64 * FIXED_THRESHOLD);
        let vector = ConfigVector {
            fast_accesses,
            slow_accesses,
            demotions: window.demoted as f64,
            promotions: (window.promoted + window.refaults) as f64,
            intensity: window.cpu_seconds * self.frequency_hertz / (fast_accesses + slow_accesses).max(1.0),
            resident_bytes: Bytes::of_pages(window.footprint_pages).get() as f64,
            hot_threshold: FIXED_THRESHOLD,
            threads: (window.cpu_seconds / window.length.as_secs_f64()).ceil().max(1.0),
        };
        vector.over_interval(window.length.as_secs_f64())
    }
}

impl Predictor for DatabasePredictor {
    fn predict(&mut self, engine: &Engine, window: &LiveWindow) -> Option<Prediction> {
        let pages = engine.pages();
        let used = |page: &&terrace_core::pages::Page| {
            let idle = idle_time(page, window.end);
            page.tier() == Some(TierId::FAST) && idle.is_some_and(|idle| idle <= window.used_within)
        };
        let touched =
            pages.blocks().map(|(block, _)| pages.block_pages(block).iter().filter(used).count() as u64).sum();
        // A window in which nothing was accessed is no program's, and has no prediction.
        let answer = self.index.query(&self.vector(touched, window), 1).ok()?;
        // Whether it is trusted goes by all windows, which the live tuner counts.
        Some(Prediction { covered: answer.uncovered.is_none(), trusted: true, curve: answer.curve })
    }
}
