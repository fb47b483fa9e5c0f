//! What a run needs of the machine: tiers, compressed swap, a tracker that has proven itself, movers.
//!
//! In: a plan. Out: the parts of a manager, and what must be released afterwards. Must not: change anything for a plan that
//! cannot be carried out; checks come before changes.

use std::path::Path;
use std::time::Duration;

use crate::spec::RunSpec;
use anyhow::Context;
use terrace_core::policy::Needs;
use terrace_linux::doctor::{ChooseError, choose_any};
use terrace_linux::life_cycle::LifeCycle;
use terrace_linux::machine::{Held, Machine as Ready, MachineError, NoPageOut, Wanted};
use terrace_linux::rights::{Job, Rights};
use terrace_linux::swap_in::{self, SwapInError};
use terrace_linux::swap_saving::zswap_rejected;
use terrace_linux::topology::declared::SlowTier;
use terrace_linux::trackers::Tracker;

use super::refusal::Refusal;
use crate::options::misuse;

/// A machine made ready, with a tracker for one run.
pub struct Machine {
    /// Tiers, movers, and what was set up for the run.
    pub ready: Ready,
    /// Proven.
    pub tracker: Box<dyn Tracker>,
    /// Which of the policy's needs the tracker serves.
    pub granted: Needs,
    /// Allocations and frees, if the policy wants to know of them and the kernel tells.
    pub life_cycle: Option<LifeCycle>,
    /// For the report.
    pub facts: Facts,
}

/// What the report says of the machine.
pub struct Facts {
    /// Its name.
    pub tracker: String,
    /// Why it was chosen before others.
    pub tracker_reasons: Vec<String>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Notes of the machine that change nothing for a run.
    pub background: Vec<String>,
    /// What a page that comes back costs, as measured.
    pub refault_cost: Option<Duration>,
    /// What zswap had rejected before, in pages.
    pub zswap_rejected: Option<u64>,
}

impl Machine {
    /// Makes the machine ready for a run and the first of these needs that it can serve. `managed` is the process, if it runs already; one that is
    /// started lives in this process's cgroup.
    ///
    /// # Errors
    /// A [`Refusal`] where machine or rights do not serve it; misuse of `--tier-slow`.
    pub fn prepare(spec: &RunSpec, any: &[Needs], managed: Option<u32>) -> anyhow::Result<Machine> {
        let wanted = Wanted::Slow(&spec.slow);
        // Before the tracker, which from its start on misses what happens until somebody listens.
        let life_cycle = any.first().and_then(|needs| LifeCycle::for_needs(*needs));
        let could_move = Ready::could_move(&wanted);
        let job = match &could_move {
            Ok(_) if !spec.moves || spec.observes() => Job::Watch,
            Ok(slow) if slow.sets_up_zram() => Job::MoveToOwnSwap,
            _ => Job::Move,
        };
        let refused = |error| match error {
            MachineError::Wanted(error) if spec.slow != SlowTier::Auto => {
                misuse("--tier-slow", &slow_text(&spec.slow), error)
            }
            MachineError::SwapIn(error @ (SwapInError::Missing { .. } | SwapInError::Setting { .. })) => {
                misuse("--swap-in", &spec.swap_in.map_or_else(String::new, |size| size.to_string()), error)
            }
            other => Refusal::of(&other, job).watchable().into(),
        };
        if let Some(size) = spec.swap_in {
            swap_in::check(Path::new("/"), size).map_err(|error| refused(error.into()))?;
        }
        // A wrong argument is named even where nothing else works either.
        let could_move = match could_move {
            Err(error @ MachineError::Wanted(_)) if spec.slow != SlowTier::Auto => return Err(refused(error)),
            other => other,
        };
        // Then the tracker: it changes nothing, and without one there is no point in the rest.
        let (tracker, granted, tracker_reasons) =
            choose_any(any, spec.tracker.as_deref()).map_err(|error| no_tracker(error, job))?;
        let movable = could_move.map_err(refused)?.anything();
        if spec.moves && movable && !Rights::of_this_process().holds(MOVING) {
            let why = format!("pages of another program cannot be moved without {MOVING}");
            return Err(Refusal::of(&why, job).watchable().into());
        }
        let mut ready = Ready::prepare(&wanted, spec.swap_in, spec.moves, managed).map_err(refused)?;
        if let Some(why) = no_page_out(&ready, managed) {
            return Err(Refusal::of(&why, job).watchable().into());
        }
        let (tracker, mut tracker_reasons) = ready.complete(tracker, tracker_reasons);
        let mut notes = std::mem::take(&mut ready.notes);
        if spec.looks_inside {
            notes.extend(Ready::cannot_look_inside().map_err(refused)?);
        }
        let mut background = std::mem::take(&mut ready.background);
        let (life_cycle, line) = life_cycle.unzip();
        let life_cycle = life_cycle.flatten();
        let said = if life_cycle.is_some() { &mut tracker_reasons } else { &mut background };
        said.extend(line);
        let refault_cost = ready.move_cost.refault;
        background.extend(tracker.notes());
        let facts = Facts {
            tracker: tracker.name().to_owned(),
            tracker_reasons,
            notes,
            background,
            refault_cost,
            zswap_rejected: zswap_rejected(Path::new("/")),
        };
        Ok(Machine { ready, tracker, granted, life_cycle, facts })
    }
}

/// Undoes what was set up.
pub fn release(held: Held) -> anyhow::Result<()> {
    held.release().context("the compressed swap could not be taken away; its guard goes on trying")
}

/// process_madvise(2) and move_pages(2) on another process ask for it, even of the same user.
const MOVING: &str = "CAP_SYS_NICE";

/// Why no page of the managed process can go to swap.
fn no_page_out(ready: &Ready, managed: Option<u32>) -> Option<NoPageOut> {
    ready.tiers.swap_tier().filter(|_| ready.moves)?;
    match (ready.no_page_out.clone(), managed) {
        // The cgroup of a process that runs may be another than this one's.
        (Some(why), Some(pid)) if why.is_of_own_cgroup() => NoPageOut::of_process(Path::new("/"), pid),
        (None, Some(pid)) => NoPageOut::of_process(Path::new("/"), pid),
        (why, _) => why,
    }
}

/// That no tracker can serve, as a refusal of the job it was wanted for.
fn no_tracker(error: ChooseError, job: Job) -> anyhow::Error {
    match error {
        ChooseError::Unknown { .. } => error.into(),
        ChooseError::NoneWorks { .. } => Refusal::of(&error.in_a_line(), job).into(),
    }
}

fn slow_text(slow: &SlowTier) -> String {
    match slow {
        SlowTier::Auto => "auto".to_owned(),
        SlowTier::None => "none".to_owned(),
        SlowTier::Zram => "zram".to_owned(),
        SlowTier::Memory(memory) => memory.to_string(),
    }
}
