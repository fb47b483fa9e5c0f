//! What a run needs of the machine: tiers, compressed swap, a tracker that has proven itself, movers.
//!
//! In: a plan. Out: the parts of a manager, and what must be released afterwards. Must not: change anything for a plan that
//! cannot be carried out; checks come before changes.

use std::time::Duration;

use anyhow::Context;
use terrace_core::policy::Needs;
use terrace_daemon::spec::RunSpec;
use terrace_linux::doctor::choose_any;
use terrace_linux::life_cycle::LifeCycle;
use terrace_linux::machine::{Held, Machine as Ready, MachineError, Wanted};
use terrace_linux::rights::Rights;
use terrace_linux::topology::declared::SlowTier;
use terrace_linux::trackers::Tracker;

use crate::options::misuse;

/// A machine made ready, with a tracker for one run.
pub(crate) struct Machine {
    pub ready: Ready,
    pub tracker: Box<dyn Tracker>,
    /// Which of the policy's needs the tracker serves.
    pub granted: Needs,
    /// Allocations and frees, if the policy wants to know of them and the kernel tells.
    pub life_cycle: Option<LifeCycle>,
    pub facts: Facts,
}

/// What the report says of the machine.
pub(crate) struct Facts {
    pub tracker: String,
    pub tracker_reasons: Vec<String>,
    pub notes: Vec<String>,
    pub refault_cost: Option<Duration>,
}

impl Machine {
    /// Makes the machine ready for a run and the first of these needs that it can serve.
    pub(crate) fn prepare(spec: &RunSpec, any: &[Needs]) -> anyhow::Result<Machine> {
        let wanted = Wanted::Slow(&spec.slow);
        let understood = |error| match error {
            MachineError::Wanted(error) => misuse("--tier-slow", &slow_text(&spec.slow), error),
            other => other.into(),
        };
        let movable = Ready::could_move(&wanted).map_err(understood)?;
        // Before the tracker, which from its start on misses what happens until somebody listens.
        let life_cycle = any.first().and_then(|needs| LifeCycle::for_needs(*needs));
        // Then the tracker: it changes nothing, and without one there is no point in the rest.
        let (tracker, granted, tracker_reasons) =
            choose_any(any, spec.tracker.as_deref()).map_err(|error| with_rights(error.into()))?;
        if spec.moves && movable && !Rights::of_this_process().holds(MOVING) {
            return Err(with_rights(anyhow::anyhow!("pages of another program cannot be moved without {MOVING}")));
        }
        let mut ready = Ready::prepare(&wanted, spec.moves).map_err(understood)?;
        let (tracker, mut tracker_reasons) = ready.complete(tracker, tracker_reasons);
        let mut notes = std::mem::take(&mut ready.notes);
        let life_cycle = match life_cycle {
            Some((Some(cycle), line)) => {
                tracker_reasons.push(line);
                Some(cycle)
            }
            Some((None, line)) => {
                notes.push(line);
                None
            }
            None => None,
        };
        let refault_cost = ready.move_cost.refault;
        let facts = Facts { tracker: tracker.name().to_owned(), tracker_reasons, notes, refault_cost };
        Ok(Machine { ready, tracker, granted, life_cycle, facts })
    }
}

/// Undoes what was set up.
pub(crate) fn release(held: Held) -> anyhow::Result<()> {
    held.release().context("the compressed swap could not be taken away; its guard goes on trying")
}

/// process_madvise(2) and move_pages(2) on another process ask for it, even of the same user.
const MOVING: &str = "CAP_SYS_NICE";

/// An error with what this process may not do, where that may be its cause, and what works all the same.
fn with_rights(error: anyhow::Error) -> anyhow::Error {
    let rights = Rights::of_this_process();
    if rights.missing.is_empty() {
        return error;
    }
    let mut text = format!("{error}\nmissing rights (run as root, or give these capabilities):");
    for capability in rights.capabilities.iter().filter(|capability| !capability.held) {
        text += &format!("\n  {}: {}", capability.name, capability.needed_for);
    }
    text += "\nwhat works without them:";
    for line in &rights.still_works {
        text += &format!("\n  {line}");
    }
    anyhow::anyhow!(
        text + "\n  terrace topology, terrace doctor, terrace policies, terrace workload\nnothing was started or changed"
    )
}

fn slow_text(slow: &SlowTier) -> String {
    match slow {
        SlowTier::Auto => "auto".to_owned(),
        SlowTier::None => "none".to_owned(),
        SlowTier::Memory(memory) => memory.to_string(),
    }
}
