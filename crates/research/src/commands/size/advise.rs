//! `terrace size advise`: how much fast memory to buy for a program, on every machine there is a model of.
//!
//! In: a workload, a recorded program, or one that is watched while it has only fast memory. Out: advice as a table, JSON, and a page. Must not: move
//! anything, or forecast; `terrace_study::advice` does.

use std::process::ExitCode;
use std::time::Duration;

use terrace_linux::rights::Job;
use terrace_run::named;
use terrace_run::spec::RunSpec;
use terrace_sizing::watched::GROUPS;
use terrace_study::Unwatched;
use terrace_study::advice::{Advices, Asked};

use crate::args::{ReportArguments, SizeAdviseArguments};
use crate::options::{duration, misuse};
use crate::profile::Profiler;
use crate::provenance::Provenance;
use crate::session::{Plan, RunHook, TargetSpec, observing, run_with};

pub(super) fn run(arguments: &SizeAdviseArguments) -> anyhow::Result<ExitCode> {
    let asked = Asked::parse(&arguments.program, &arguments.candidates, &arguments.prices)?;
    let known = arguments.program.trace.is_some() || arguments.program.workload.is_some();
    let (code, advice, made) = match known {
        true => {
            let (advice, made) = asked.of_accesses(&arguments.program, &arguments.candidates, &Unwatched)?;
            (ExitCode::SUCCESS, advice, Provenance { command: Provenance::here().command, ..made })
        }
        false => {
            let output = ReportArguments { quiet: true, ..ReportArguments::default() };
            let Watched { code, advice, made } = of_a_program(arguments, asked, output)?;
            (code, advice, made)
        }
    };
    let json = made.stamp(&advice.as_json())?;
    if let Some(directory) = &arguments.report {
        crate::report::sim::write_advice(directory, &json, &advice)?;
    }
    super::super::print(arguments.json, &json, |_| advice.text())?;
    Ok(code)
}

/// A program that was watched, and the advice that follows.
struct Watched {
    /// How it ended.
    pub code: ExitCode,
    /// How much fast memory it needs.
    pub advice: Advices,
    /// What made the advice.
    pub made: Provenance,
}

/// Of a program that is watched; `output` says where what was seen goes.
fn of_a_program(arguments: &SizeAdviseArguments, asked: Asked, output: ReportArguments) -> anyhow::Result<Watched> {
    let window = duration("--window", &arguments.window)?;
    if window < Duration::from_secs(1) {
        return Err(misuse(
            "--window",
            &arguments.window,
            "expected 1s or more: pages' ages are known to a quarter of a second",
        ));
    }
    let limit = arguments.target.limit()?;
    // A measuring run: every page counts in every round, whatever it costs.
    let base = RunSpec { interval: Some(Duration::from_millis(500)), max_overhead: 1.0, ..observing() };
    let spec = arguments.spec.over(base)?;
    let target = named::target(&arguments.target, spec.ranges, Job::Watch)?;
    let target = target.unwrap_or_else(|| TargetSpec::Command(arguments.command.clone()));
    // Twice as many as asked for: a sample is thinned out by halves.
    let mut profiler = Profiler::new(window, (arguments.candidates.sample * GROUPS * 2) as usize);
    let hook: &mut dyn RunHook = &mut profiler;
    let mut plan = Plan::observe(target, spec, output, limit)?;
    // Every page in every round: one that was not looked at in a window would count as not accessed in it.
    plan.spec.settings.insert("share".to_owned(), "100%".to_owned());
    let (code, _) = run_with(&plan, Some(hook))?;
    if profiler.profile().windows == 0 {
        let what = arguments.command.first().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let shown = &arguments.window;
        let why = format!("it ended before the first window of {shown} was over; see --window");
        return Err(misuse("CMD", &what, why));
    }
    let advice = asked.of_marks(&profiler.marks(), profiler.profile().clone(), &Unwatched)?;
    let made =
        Provenance::here().on_this_machine().running(&arguments.command).under(&plan.spec.policy, &plan.spec.settings);
    Ok(Watched { code, advice, made })
}
