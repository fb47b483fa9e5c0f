//! A managed or observed run, from set-up to report.
//!
//! `machine` prepares what the run needs (tiers, compressed swap, tracker, movers), `target` starts the program and passes
//! signals and the exit code through, `record` keeps what the report will show. This file is the order of things.
//!
//! In: validated options. Out: a [`Report`] and the exit code. Must not: leave anything behind on the machine, whatever fails.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use terrace_common::say;

use crate::spec::{Found, INSIDE, RunSpec};
use anyhow::Context;
use terrace_core::text::visible_lines;
use terrace_core::units::{Bytes, Time};
use terrace_linux::kernel_lists::{KernelLists, ListSettings};
use terrace_linux::live_proof::LiveProof;
use terrace_linux::manager::{Manager, Woken};
use terrace_linux::topology::declared::SlowTier;

use crate::args::{ReportArguments, checked};
use crate::program;
use terrace_common::provenance::Provenance;
use terrace_report::terminal::{Screen, is_closed_pipe, print_aside, print_json, print_text};
use terrace_report::text::closing_lines;
use terrace_report::{Report, write_report};

mod file_cache;
mod live;
pub mod machine;
mod members;
mod orphans;
mod places;
mod proving;
mod record;
pub mod refusal;
pub mod signals;
mod target;
pub mod tuning;

pub use file_cache::Files;
use machine::Machine;
use members::Members;
use orphans::Orphans;
pub use places::Places;
use record::Recorder;
use signals::Signals;
pub use target::TargetSpec;
use target::{Asked, Target};
pub use tuning::{RunHook, Steering};

/// What a run is to do.
#[derive(Debug)]
pub struct Plan {
    /// What is started, or runs already.
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
pub fn observing() -> RunSpec {
    let settings = BTreeMap::from([(INSIDE.to_owned(), "off".to_owned())]);
    RunSpec { slow: SlowTier::None, moves: false, settings, ..RunSpec::default() }
}

impl Plan {
    /// A run that only watches, by a specification over [`observing`].
    ///
    /// # Errors
    /// An option makes no sense.
    pub fn observe(
        target: TargetSpec,
        spec: RunSpec,
        output: ReportArguments,
        duration: Option<Duration>,
    ) -> anyhow::Result<Plan> {
        let spec = checked(spec, Bytes::new(u64::MAX))?;
        Ok(Plan { target, spec, goal_text: "none".to_owned(), output, duration, verbose: false })
    }
}

/// The memory of this machine, in all nodes.
///
/// # Errors
/// When the kernel does not tell.
pub fn memory() -> anyhow::Result<Bytes> {
    let topology = terrace_linux::topology::Topology::discover(Path::new("/"))?;
    Ok(topology.nodes.iter().fold(Bytes::ZERO, |sum, node| sum + node.memory_bytes))
}

/// Whether this machine can serve a run: it is made ready for one, and what that changed is undone.
///
/// # Errors
/// Why it cannot.
pub fn probe(spec: &RunSpec) -> anyhow::Result<()> {
    let needs = spec.build_policy()?.profile().needs;
    let machine = Machine::prepare(spec, &needs, None)?;
    machine::release(machine.ready.held)
}

/// Runs a plan to its end.
///
/// # Errors
/// When the machine cannot serve it (nothing was started then), or the tracker broke while it ran.
pub fn run(plan: &Plan) -> anyhow::Result<ExitCode> {
    run_with(plan, None).map(|(code, _)| code)
}

/// Runs a plan to its end while `onlooker` looks on, and returns the report as well.
///
/// # Errors
/// As [`run`].
pub fn run_with(plan: &Plan, mut hook: Option<&mut dyn RunHook>) -> anyhow::Result<(ExitCode, Report)> {
    let policy = plan.spec.build_policy()?;
    file_cache::check(plan)?;
    // Refuse what can be refused before changing the machine, and before the program runs in vain.
    if let TargetSpec::Command(command) = &plan.target {
        program::check(command.first().map_or(OsStr::new(""), |name| name))?;
    }
    let proof = proving::begin(plan)?;
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
    // Before the program starts, so that a signal meant for both finds both ready; and before orphans are looked for, as it has a child of its own.
    let starts_program = matches!(plan.target, TargetSpec::Command(_));
    let signals = Signals::receive(starts_program)?;
    let orphans = starts_program.then(Orphans::begin);
    if let Some(own) = orphans.as_ref().and_then(Orphans::own) {
        manager.adopt_orphans(own);
    }
    let mut target = Target::start(&plan.target, signals)?;
    tracing::info!(policy = profile.name, "managing");
    let mut recorder = Recorder::new(manager.now(), plan);
    let mut beside = Beside { proof, files: Files::of_plan(plan) };
    let broke = manage(plan, &mut manager, &mut target, orphans.as_ref(), &mut recorder, hook, &mut beside);
    if broke.is_err() {
        say!("terrace: management stopped; the program goes on without it\n");
    }
    let mut report = recorder.finish(plan, &manager, &mut target, &facts)?;
    report.proof = beside.proof.as_ref().map(|proof| proof.state());
    report.file_cache = beside.files.as_mut().map(|files| files.report());
    drop(beside);
    // The compressed swap goes before the report is shown: what it says of the end is then true.
    drop(manager);
    let released = machine::release(ready.held);
    // Write the report whatever else failed: a second run would not give the same one.
    let written = write(plan, &report);
    drop(places);
    // Management may end before the program, by --duration or because the tracker broke.
    target.outlast()?;
    if let Some(orphans) = orphans
        && let left = orphans.running(target.pid())
        && !left.is_empty()
    {
        say!("{}\n", orphans::left_behind(&left));
    }
    let failures = [broke, released].into_iter().chain(written).filter_map(Result::err).collect();
    Ok((exit_code(target.exit_code(), failures)?, report))
}

/// The program's own code if it failed, since its caller expects that; else Terrace's failures, each reported.
fn exit_code(program: ExitCode, mut failures: Vec<anyhow::Error>) -> anyhow::Result<ExitCode> {
    // It must not hide another.
    failures.retain(|failure| !is_closed_pipe(failure));
    let Some(last) = failures.pop() else { return Ok(program) };
    for failure in &failures {
        say!("terrace: {}\n", visible_lines(&terrace_common::tell::causes(failure)));
    }
    if program == ExitCode::SUCCESS {
        return Err(last);
    }
    say!("terrace: {}\n", visible_lines(&terrace_common::tell::causes(&last)));
    Ok(program)
}

/// How often an empty cgroup is looked at.
const LOOK_FOR_MEMBERS: Duration = Duration::from_millis(200);

/// How often a point of the report is taken.
const POINT: Duration = Duration::from_secs(1);

/// What goes on beside the moves of pages.
struct Beside {
    proof: Option<LiveProof>,
    files: Option<Files>,
}

/// The loop: manage for a second, take a point, pass on signals, until the program is done.
fn manage(
    plan: &Plan,
    manager: &mut Manager,
    target: &mut Target,
    orphans: Option<&Orphans>,
    recorder: &mut Recorder,
    mut hook: Option<&mut dyn RunHook>,
    beside: &mut Beside,
) -> anyhow::Result<()> {
    let Beside { proof, files } = beside;
    let Some(mut members) = Members::begin(&plan.target, target, manager)? else {
        return target.wait();
    };
    let end = plan.duration.map_or(Time::FAR_FUTURE, |duration| manager.now() + duration);
    let mut point_at = manager.now() + POINT;
    let (mut over_at, mut told) = (None, false);
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
        if let Some(proof) = proof.as_mut() {
            for news in proof.look(manager) {
                proving::tell(plan, &news);
            }
            manager.hold(!proof.manages());
            until = until.min(proof.due(manager.now()));
        }
        if let Some(files) = files.as_mut() {
            if let Some(why) = files.news() {
                say!("terrace: {why}\n");
            }
            until = files.wait().map_or(until, |wait| until.min(manager.now() + wait));
        }
        let woken = manager.run(&[target.signals().as_fd()], until, recorder).context("the tracker failed")?;
        if proof.is_none() || woken != Woken::ByTime || manager.now() >= point_at {
            recorder.point(manager);
            point_at = manager.now() + POINT;
        }
        if let Some(files) = files.as_mut() {
            files.look(proof.as_ref().is_some_and(|proof| !proof.manages()));
        }
        if woken != Woken::ByCaller {
            members.follow(manager);
        }
        // Asked for every time: those that ended are waited for by this.
        let left = orphans.map_or_else(Vec::new, |orphans| orphans.running(target.pid()));
        if !told
            && !left.is_empty()
            && let Some(code) = target.exit_now()?
        {
            // What ends with the program, a moment later, is not worth a word.
            let told_at = *over_at.get_or_insert(manager.now()) + POINT;
            told = manager.now() >= told_at;
            if told {
                say!("{}\n", orphans::managed_on(code, &left));
            }
        }
        if woken == Woken::AllGone && manager.processes().next().is_none() {
            if members.are_over() {
                return target.wait();
            }
            // Nothing to manage until someone comes.
            target.wait_for_signal(LOOK_FOR_MEMBERS)?;
        }
        match target.pass_signals_on() {
            Asked::Nothing => {}
            Asked::End => return Ok(()),
            Asked::Stop => {
                recorder.give_screen_back();
                let stopped = target.stop_with_it();
                recorder.take_screen();
                manager.leave_out(stopped);
            }
            // Stopped by others: what is late is at most a point less than that.
            Asked::GoesOn => manager.leave_out(manager.now().since(until)),
        }
        if manager.now() >= end {
            return Ok(());
        }
    }
}

/// Writes all that was asked for. What cannot be written keeps nothing else from being written.
fn write(plan: &Plan, report: &Report) -> Vec<anyhow::Result<()>> {
    let (output, observed) = (&plan.output, plan.spec.observes());
    let mut done = Vec::new();
    if !output.quiet {
        // What was observed of a process that runs anyway is this command's data. Else stdout is the program's, or JSON's.
        done.push(if observed && !matches!(plan.target, TargetSpec::Command(_)) && !output.json {
            print_text(&closing_lines(report, observed, plan.verbose, &Screen::of(std::io::stdout())))
        } else {
            print_aside(&closing_lines(report, observed, plan.verbose, &Screen::of(std::io::stderr())))
        });
    }
    let made = Provenance::here().on_this_machine().under(&plan.spec.policy, &plan.spec.settings);
    let json = match &plan.target {
        TargetSpec::Command(command) => made.running(command).stamp(report),
        TargetSpec::Pids(_) | TargetSpec::Cgroup(_) | TargetSpec::All(_) => made.stamp(report),
    };
    let json = match json {
        Ok(json) => json,
        Err(error) => {
            done.push(Err(error.into()));
            return done;
        }
    };
    if let Some(directory) = &output.report {
        done.push(write_report(directory, report, &json));
    }
    if let Some(file) = &output.json_file {
        done.push(write_json(file, &json));
    }
    if output.json {
        done.push(print_json(&json));
    }
    done
}

fn write_json(file: &Path, json: &serde_json::Value) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(json)? + "\n";
    terrace_files::write(file, text).with_context(|| {
        format!("{}: the report could not be written; name another file with --json-file", file.display())
    })
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
