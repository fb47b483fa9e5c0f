//! `terrace run`, `terrace attach`, `terrace observe`.
//!
//! In: arguments. Out: the program's exit code. Must not: start anything before the options are known to make sense.

use std::process::ExitCode;

use anyhow::Context;
use terrace_linux::machine_programs::Never;
use terrace_linux::rights::Job;

use crate::args::{AttachArguments, ObserveArguments, RunArguments};
use crate::options::misuse;
use crate::program;
use crate::session::{Plan, TargetSpec, observing};

pub(super) fn run(arguments: &RunArguments, verbose: bool) -> anyhow::Result<ExitCode> {
    let spec = arguments.spec.spec(crate::session::memory()?)?;
    program::check_of(&arguments.command, "run", "attach")?;
    let target = TargetSpec::Command(arguments.command.clone());
    let goal_text = arguments.spec.text("fast").to_owned();
    crate::session::run(&Plan { target, spec, goal_text, output: arguments.output.clone(), duration: None, verbose })
}

pub(super) fn attach(arguments: &AttachArguments, verbose: bool) -> anyhow::Result<ExitCode> {
    let spec = arguments.spec.spec(crate::session::memory()?)?;
    let duration = arguments.target.limit()?;
    let target = match arguments.all {
        true => {
            let never = Never::default().and(arguments.never.iter().cloned());
            TargetSpec::All(never.map_err(|error| misuse("--never", &arguments.never.join(","), error))?)
        }
        false => terrace_run::named::target(&arguments.target, spec.ranges, Job::Move)?
            .context("nothing to attach to was given")?,
    };
    let goal_text = arguments.spec.text("fast").to_owned();
    crate::session::run(&Plan { target, spec, goal_text, output: arguments.output.clone(), duration, verbose })
}

pub(super) fn observe(arguments: &ObserveArguments, verbose: bool) -> anyhow::Result<ExitCode> {
    let spec = arguments.spec.over(observing())?;
    let spec = if arguments.inside { spec.looking_inside() } else { spec };
    let limit = arguments.target.limit()?;
    let target = match terrace_run::named::target(&arguments.target, spec.ranges, Job::Watch)? {
        Some(target) => target,
        None => {
            program::check_of(&arguments.command, "observe", "observe")?;
            TargetSpec::Command(arguments.command.clone())
        }
    };
    let plan = Plan { verbose, ..Plan::observe(target, spec, arguments.output.clone(), limit)? };
    crate::session::run(&plan)
}
