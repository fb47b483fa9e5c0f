//! `terrace size advise`: what less fast memory would cost a program, on every machine there is a model of.
//!
//! In: a program, started or running, that has only fast memory. Out: curves with error bars, the least size for the target, what it
//! saves; as a table, JSON, and a page. Must not: move anything, or claim more than the marks of pages say.

use std::process::ExitCode;
use std::time::Duration;

use terrace_machine::preset::Machine;

use crate::args::{SizeAdviseArguments, WatchArguments};
use crate::commands::named;
use crate::options::{WatchOptions, duration, misuse};
use crate::provenance::Provenance;
use crate::report::advice::{Advice, Advices};
use crate::session::profile::Profiler;
use crate::session::{Plan, RunHook, TargetSpec, run_with};

pub(super) fn run(arguments: &SizeAdviseArguments) -> anyhow::Result<ExitCode> {
    let max_slowdown = super::max_slowdown(&arguments.max_slowdown)?;
    let window = duration("--window", &arguments.window)?;
    if window < Duration::from_secs(1) {
        return Err(misuse(
            "--window",
            &arguments.window,
            "expected 1s or more: pages' ages are known to a quarter of a second",
        ));
    }
    let prices = prices(&arguments.prices)?;
    let machines = machines(&arguments.machines)?;
    let limit = arguments.duration.as_deref().map(|text| duration("--duration", text)).transpose()?;
    let watch = WatchOptions::parse(&WatchArguments {
        tracker: arguments.tracker.clone(),
        interval: Some("500ms".to_owned()),
        // A measuring run: every page counts in every round, whatever it costs.
        max_overhead: "100%".to_owned(),
        files: false,
        shared: false,
        report: None,
        json: false,
        json_file: None,
        quiet: true,
        live: false,
    })?;
    let target = match named::process(arguments.pid, arguments.name.as_deref())? {
        Some(pid) => TargetSpec::Pid(pid),
        None => TargetSpec::Command(arguments.command.clone()),
    };
    let mut profiler = Profiler::new(window);
    let hook: &mut dyn RunHook = &mut profiler;
    let mut plan = Plan::observe(target, watch, limit);
    // Every page in every round: one that was not looked at in a window would count as not accessed in it.
    plan.settings.insert("share".to_owned(), "100%".to_owned());
    let (code, _) = run_with(&plan, Some(hook))?;
    let profile = profiler.profile();
    if profile.windows == 0 {
        let what = arguments.command.first().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let shown = &arguments.window;
        return Err(misuse(
            "CMD",
            &what,
            format!("it ended before the first window of {shown} was over; see --window"),
        ));
    }
    let advice = Advices {
        of: machines.into_iter().map(|machine| Advice::new(machine, profile, max_slowdown, prices)).collect(),
        profile,
        max_slowdown,
        prices,
    };
    let made = Provenance::here().on_this_machine().running(&arguments.command).under(&plan.policy, &plan.settings);
    let json = made.stamp(&advice.as_json())?;
    if let Some(directory) = &arguments.report {
        crate::report::sim::write_advice(directory, &json, &advice)?;
    }
    if arguments.json {
        super::super::print_json(&json)?;
    } else {
        super::super::print_text(&advice.text())?;
    }
    Ok(code)
}

/// `--prices FAST:SLOW`, for the same amount of memory.
fn prices(text: &str) -> anyhow::Result<(f64, f64)> {
    let parsed = text
        .split_once(':')
        .and_then(|(fast, slow)| Some((fast.trim().parse::<f64>().ok()?, slow.trim().parse::<f64>().ok()?)));
    match parsed {
        Some((fast, slow)) if fast > 0.0 && slow >= 0.0 && fast.is_finite() && slow.is_finite() => Ok((fast, slow)),
        _ => Err(misuse("--prices", text, "expected FAST:SLOW, what a gigabyte of each costs, such as 4:2")),
    }
}

fn machines(names: &[String]) -> anyhow::Result<Vec<Machine>> {
    let all = names.is_empty();
    let known = Machine::preset_names();
    let chosen: Vec<&str> = if all { known } else { names.iter().map(String::as_str).collect() };
    chosen.into_iter().map(|name| Ok(crate::commands::sim::options::machine(name)?)).collect()
}
