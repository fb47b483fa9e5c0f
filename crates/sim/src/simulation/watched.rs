//! A run that is watched for the sake of scoring trackers.
//!
//! In: a [`Probe`]. Out: the same, having seen every access. Must not: let it change anything of the run.

use terrace_core::units::Time;

use super::Simulation;
use crate::error::SimError;
use crate::hotness::probe::Probe;
use crate::report::Report;

impl Simulation {
    /// Lets a probe see every access from now on.
    pub(crate) fn watch_with(&mut self, probe: Probe) {
        if let Some(run) = &mut self.hot.mmu {
            run.probe = Some(Box::new(probe));
        }
    }

    /// Passes the time to the probe.
    pub(super) fn tell_probe(&mut self) {
        let now: Time = self.now();
        if let Some(probe) = self.hot.mmu.as_mut().and_then(|run| run.probe.as_mut()) {
            probe.pass(now, &self.hot.memory);
        }
    }

    /// Ends the run, and gives the probe back.
    pub(crate) fn finish_watched(mut self, name: &str) -> Result<(Report, Probe), SimError> {
        self.meet();
        let probe = self.hot.mmu.as_mut().and_then(|run| run.probe.take());
        let report = self.finish(name)?;
        match probe {
            Some(probe) => Ok((report, *probe)),
            None => Err(SimError::Source("the run had no MMU to watch".to_owned())),
        }
    }
}
