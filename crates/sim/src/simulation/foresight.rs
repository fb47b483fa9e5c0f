//! The future of a run: recorded in a first pass, used in a second.
//!
//! In: what reached memory, and how far a run has come. Out: a [`Future`], or a policy that sees one. Must not: tell any policy that does not
//! ask for it.

use std::sync::Arc;

use terrace_core::units::Time;

use super::Simulation;
use crate::error::SimError;
use crate::hot::Hot;
use crate::oracle::{Future, Progress, Seer};

/// The recorded future, in either pass.
#[derive(Default)]
pub(super) struct Foresight {
    future: Option<Future>,
    /// Accesses that were written down.
    written: u64,
    progress: Option<Arc<Progress>>,
}

impl Foresight {
    /// The run has come so far.
    pub(super) fn pass(&self, accesses: u64, now: Time) {
        if let Some(progress) = &self.progress {
            progress.tell(accesses, now);
        }
    }

    /// Writes down what the inner loop recorded, `accesses` since the start.
    pub(super) fn write_down(&mut self, accesses: u64, hot: &mut Hot) {
        if let Some(future) = &mut self.future {
            let since = accesses - std::mem::replace(&mut self.written, accesses);
            hot.add_missed_to(future, since);
        }
    }
}

impl Simulation {
    /// From now on, what reaches memory is written down.
    pub(crate) fn record_future(&mut self) {
        self.hot.record_misses();
        self.foresight.future = Some(Future::new());
    }

    /// What was written down.
    pub(crate) fn take_future(mut self) -> Result<Future, SimError> {
        self.meet();
        match (self.failure, self.foresight.future) {
            (Some(error), _) => Err(error),
            (None, future) => Ok(future.unwrap_or_else(Future::new).of_spaces(self.spaces.starts().len())),
        }
    }

    /// Gives the policy the future, if it has a use for it.
    pub(crate) fn foresee(&mut self, future: Future) {
        let progress = Arc::new(Progress::default());
        if self.link.foresee(Box::new(Seer::new(future, progress.clone()))) {
            self.foresight.progress = Some(progress);
        }
    }
}
