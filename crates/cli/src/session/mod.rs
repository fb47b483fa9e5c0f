//! A managed or observed run, from set-up to report.
//!
//! `machine` prepares what the run needs (tiers, compressed swap, tracker, movers), `target` starts the program and passes
//! signals and the exit code through, `record` keeps what the report will show. This file is the order of things.
//!
//! In: validated options. Out: a [`Report`] and the exit code. Must not: leave anything behind on the machine, whatever fails.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use terrace_core::text::visible_lines;
use terrace_core::units::{Bytes, Time};
use terrace_daemon::spec::{Found, RunSpec};
use terrace_linux::kernel_lists::{KernelLists, ListSettings};
use terrace_linux::live_proof::LiveProof;
use terrace_linux::manager::{Manager, Woken};
use terrace_linux::topology::declared::SlowTier;

use crate::args::{ReportArguments, checked};
use crate::program;
use crate::provenance::Provenance;
use crate::report::text::closing_lines;
use crate::report::{Places, Report, write_report};
use crate::terminal::{Screen, print_json, print_text};

mod live;
pub(crate) mod machine;
mod members;
pub(crate) mod profile;
mod proving;
mod record;
pub(crate) mod refusal;
mod target;
pub(crate) mod tuning;

use machine::Machine;
use members::Members;
use record::Recorder;
use target::Target;
pub(crate) use target::TargetSpec;
pub(crate) use tuning::{RunHook, Steering};

/// What a run is to do.
#[derive(Debug)]
pub(crate) struct Plan {
    pub target: TargetSpec,
    /// How the program is watched, and how its pages move.
    pub spec: RunSpec,
    /// The goal in the user's words.
    pub goal_text: String,
    /// Where the results go.
    pub output: ReportArguments,
    /// Stop after this long.
    pub duration: Option<Duration>,
    /// Say all that is known at the end.
    pub verbose: bool,
}

/// The specification of a run that only watches: one tier, so there is nowhere to move to, and the policy that keeps ages.
pub(crate) fn observing() -> RunSpec {
    RunSpec { slow: SlowTier::None, moves: false, ..RunSpec::default() }
}

impl Plan {
    /// A run that only watches, by a specification over [`observing`].
    ///
    /// # Errors
    /// An option makes no sense.
    pub(crate) fn observe(
        target: TargetSpec,
        spec: RunSpec,
        output: ReportArguments,
        duration: Option<Duration>,
    ) -> anyhow::Result<Plan> {
        let spec = checked(spec, Bytes::new(u64::MAX))?;
        Ok(Plan { target, spec, goal_text: "none".to_owned(), output, duration, verbose: false })
    }
}

/// Whether this machine can serve a run: it is made ready for one, and what that changed is undone.
///
/// # Errors
/// Why it cannot.
pub(crate) fn probe(spec: &RunSpec) -> anyhow::Result<()> {
    let needs = spec.build_policy()?.profile().needs;
    let machine = Machine::prepare(spec, &needs, None)?;
    machine::release(machine.ready.held)
}

/// Runs a plan to its end.
///
/// # Errors
/// When the machine cannot serve it (nothing was started then), or the tracker broke while it ran.
pub(crate) fn run(plan: &Plan) -> anyhow::Result<ExitCode> {
    run_with(plan, None).map(|(code, _)| code)
}

/// Runs a plan to its end while `onlooker` looks on, and returns the report as well.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with(plan: &Plan, mut hook: Option<&mut dyn RunHook>) -> anyhow::Result<(ExitCode, Report)> {
    let policy = plan.spec.build_policy()?;
    // Refuse what can be refused before changing the machine, and before the program runs in vain.
    if let TargetSpec::Command(command) = &plan.target {
        program::check(command.first().map_or(OsStr::new(""), |name| name))?;
    }
    let mut proof = proving::begin(plan)?;
    let places = Places::prepare(&plan.output)?;
    if plan.output.live {
        live::LiveView::check()?;
    }
    let profile = policy.profile();
    let Machine { ready, tracker, granted, life_cycle, facts } =
        Machine::prepare(&plan.spec, &profile.needs, plan.target.pid())
            .map_err(|error| refusal::with_alternative(error, &plan.target))?;
    let kernel_lists = match profile.kernel.lists.filter(|_| plan.spec.moves) {
        Some(lists) => {
            let started = ListSettings::of(&lists, &ready.tiers).and_then(|settings| KernelLists::start(&settings));
            Some(started.map_err(|reason| anyhow::anyhow!("{reason}"))?)
        }
        None => None,
    };
    let found = Found { policy, tracker, granted, life_cycle, kernel_lists };
    let mut manager = plan.spec.manager(&ready, found, plan.spec.fast_goal());
    if let Some(hook) = &mut hook {
        manager.watch_fully();
        hook.begin(ready.move_cost, manager.tiers())?;
    }
    let mut target = Target::start(&plan.target)?;
    tracing::info!(policy = profile.name, "managing");
    let mut recorder = Recorder::new(manager.now(), plan);
    let broke = manage(plan, &mut manager, &mut target, &mut recorder, hook, proof.as_mut());
    if broke.is_err() {
        eprintln!("terrace: management stopped; the program goes on without it");
    }
    let mut report = recorder.finish(plan, &manager, &mut target, &facts)?;
    report.proof = proof.as_ref().map(|proof| proof.state());
    drop(proof);
    // The compressed swap goes before the report is shown: what it says of the end is then true.
    drop(manager);
    let released = machine::release(ready.held);
    // Write the report whatever else failed: a second run would not give the same one.
    let written = write(plan, &report);
    drop(places);
    // Management may end before the program, by --duration or because the tracker broke.
    target.outlast()?;
    let failures: Vec<anyhow::Error> = [broke, released, written].into_iter().filter_map(Result::err).collect();
    Ok((exit_code(target.exit_code(), failures)?, report))
}

/// The program's own code if it failed, since its caller expects that; else Terrace's failures, each reported.
fn exit_code(program: ExitCode, mut failures: Vec<anyhow::Error>) -> anyhow::Result<ExitCode> {
    let Some(last) = failures.pop() else { return Ok(program) };
    for failure in &failures {
        eprintln!("terrace: {}", visible_lines(&terrace_daemon::tell::causes(failure)));
    }
    if program == ExitCode::SUCCESS {
        return Err(last);
    }
    eprintln!("terrace: {}", visible_lines(&terrace_daemon::tell::causes(&last)));
    Ok(program)
}

/// How often an empty cgroup is looked at.
const LOOK_FOR_MEMBERS: Duration = Duration::from_millis(200);

/// How often a point of the report is taken.
const POINT: Duration = Duration::from_secs(1);

/// The loop: manage for a second, take a point, pass on signals, until the program is done.
fn manage(
    plan: &Plan,
    manager: &mut Manager,
    target: &mut Target,
    recorder: &mut Recorder,
    mut hook: Option<&mut dyn RunHook>,
    mut proof: Option<&mut LiveProof>,
) -> anyhow::Result<()> {
    let Some(mut members) = Members::begin(&plan.target, target, manager)? else {
        return target.wait();
    };
    let end = plan.duration.map_or(Time::FAR_FUTURE, |duration| manager.now() + duration);
    let mut point_at = manager.now() + POINT;
    loop {
        let mut until = point_at.min(end);
        if let Some(hook) = &mut hook {
            // In a window of a proof that is left alone nothing moves, and there is nothing to decide.
            if proof.as_ref().is_some_and(|proof| !proof.manages()) {
                hook.leave_alone(manager);
            } else {
                hook.look(manager);
                until = until.min(hook.due());
            }
        }
        if let Some(proof) = &mut proof {
            for news in proof.look(manager) {
                proving::tell(plan, &news);
            }
            manager.hold(!proof.manages());
            until = until.min(proof.due(manager.now()));
        }
        let woken = manager.run(&[target.signals().as_fd()], until, recorder).context("the tracker failed")?;
        if proof.is_none() || woken != Woken::ByTime || manager.now() >= point_at {
            recorder.point(manager);
            point_at = manager.now() + POINT;
        }
        if woken != Woken::ByCaller {
            members.follow(manager);
        }
        if woken == Woken::AllGone && manager.processes().next().is_none() {
            if members.are_over() {
                return target.wait();
            }
            // Nothing to manage until someone comes.
            target.wait_for_signal(LOOK_FOR_MEMBERS)?;
        }
        if target.pass_signals_on()? || manager.now() >= end {
            return Ok(());
        }
    }
}

fn write(plan: &Plan, report: &Report) -> anyhow::Result<()> {
    let (output, observed) = (&plan.output, plan.spec.observes());
    if !output.quiet {
        // What was observed of a process that runs anyway is this command's data. Else stdout is the program's, or JSON's.
        if observed && !matches!(plan.target, TargetSpec::Command(_)) && !output.json {
            print_text(&closing_lines(report, observed, plan.verbose, &Screen::of(std::io::stdout())))?;
        } else {
            eprint!(
                "{}",
                visible_lines(&closing_lines(report, observed, plan.verbose, &Screen::of(std::io::stderr())))
            );
        }
    }
    let made = Provenance::here().on_this_machine().under(&plan.spec.policy, &plan.spec.settings);
    let json = match &plan.target {
        TargetSpec::Command(command) => made.running(command).stamp(report)?,
        TargetSpec::Pids(_) | TargetSpec::Cgroup(_) => made.stamp(report)?,
    };
    if let Some(directory) = &output.report {
        write_report(directory, report, &json)?;
    }
    if let Some(file) = &output.json_file {
        let text = serde_json::to_string_pretty(&json)? + "\n";
        terrace_files::write(file, text)
            .with_context(|| format!("{}: the report could not be written", file.display()))?;
    }
    if output.json {
        print_json(&json)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_of_a_program_that_failed_outlives_failures_of_ours() {
        let failures = || vec![anyhow::anyhow!("the tracker failed"), anyhow::anyhow!("zram is busy")];
        assert_eq!(exit_code(ExitCode::from(9), Vec::new()).unwrap(), ExitCode::from(9));
        assert_eq!(exit_code(ExitCode::from(9), failures()).unwrap(), ExitCode::from(9));
        assert_eq!(exit_code(ExitCode::SUCCESS, failures()).unwrap_err().to_string(), "zram is busy");
    }
}
