//! `terrace run`, `terrace attach`, `terrace observe`.
//!
//! In: arguments. Out: the program's exit code. Must not: start anything before the options are known to make sense.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use terrace_core::units::Bytes;
use terrace_linux::process::{Process, ProcessError, RangeOptions};
use terrace_linux::rights::Job;
use terrace_linux::topology::Topology;

use super::named;
use crate::args::{AttachArguments, ObserveArguments, RunArguments};
use crate::options::duration;
use crate::session::refusal::{self, Refusal};
use crate::session::{Plan, TargetSpec, observing, program};

pub(super) fn run(arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let spec = arguments.spec.spec(memory()?)?;
    program::check_of(&arguments.command, "run", "attach")?;
    let target = TargetSpec::Command(arguments.command.clone());
    let goal_text = arguments.spec.text("fast").to_owned();
    crate::session::run(&Plan { target, spec, goal_text, output: arguments.output.clone(), duration: None })
}

pub(super) fn attach(arguments: &AttachArguments) -> anyhow::Result<ExitCode> {
    let spec = arguments.spec.spec(memory()?)?;
    let duration = arguments.duration.as_deref().map(|text| duration("--duration", text)).transpose()?;
    // Asked before anything is set up, so that a pid that is gone changes nothing.
    let pid =
        named::process(arguments.pid, arguments.name.as_deref())?.context("neither --pid nor --name was given")?;
    check(pid, spec.ranges, Job::Move)?;
    let goal_text = arguments.spec.text("fast").to_owned();
    crate::session::run(&Plan {
        target: TargetSpec::Pid(pid),
        spec,
        goal_text,
        output: arguments.output.clone(),
        duration,
    })
}

pub(super) fn observe(arguments: &ObserveArguments) -> anyhow::Result<ExitCode> {
    let spec = arguments.spec.over(observing())?;
    let limit = arguments.duration.as_deref().map(|text| duration("--duration", text)).transpose()?;
    let target = match named::process(arguments.pid, arguments.name.as_deref())? {
        Some(pid) => {
            check(pid, spec.ranges, Job::Watch)?;
            TargetSpec::Pid(pid)
        }
        None => {
            program::check_of(&arguments.command, "observe", "observe")?;
            TargetSpec::Command(arguments.command.clone())
        }
    };
    crate::session::run(&Plan::observe(target, spec, arguments.output.clone(), limit)?)
}

/// Whether there is anything to manage in a process.
fn check(pid: u32, options: RangeOptions, job: Job) -> anyhow::Result<()> {
    let refused = |error| match error {
        ProcessError::NotPermitted { .. } => {
            refusal::with_alternative(Refusal::of_others(&error, job).into(), &TargetSpec::Pid(pid))
        }
        other => other.into(),
    };
    if Process::open(pid).and_then(|process| process.ranges(options)).map_err(refused)?.is_empty() {
        // Every program has a stack, so this is a thread of the kernel, or a program that ended and was not waited for.
        anyhow::bail!("process {pid} has no memory of its own: it is a kernel thread, or has ended; see `ps -p {pid}`");
    }
    Ok(())
}

pub(crate) fn memory() -> anyhow::Result<Bytes> {
    let topology = Topology::discover(Path::new("/"))?;
    Ok(topology.nodes.iter().fold(Bytes::ZERO, |sum, node| sum + node.memory_bytes))
}
