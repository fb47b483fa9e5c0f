//! `terrace size advise`: what less fast memory would cost a program, on every machine there is a model of.
//!
//! In: a program, started or running, that has only fast memory. Out: curves with error bars, the least size for the target, what it
//! saves; as a table, JSON, and a page. Must not: move anything, or claim more than the marks of pages say.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use terrace_machine::preset::Machine;
use terrace_sizing::advise::{Point, Profile, cost_saved, least_share};

use crate::args::{SizeAdviseArguments, WatchArguments};
use crate::options::{WatchOptions, duration, misuse};
use crate::report::units;
use crate::session::profile::Profiler;
use crate::session::{Onlooker, Plan, TargetSpec, run_with};

/// A curve and what follows of it.
pub(crate) struct Advice {
    pub machine: Machine,
    pub curve: Vec<Point>,
    /// Least shares for the target: expected, and if the most is true.
    pub share: f64,
    pub careful_share: f64,
    pub cost_saved: f64,
    pub careful_cost_saved: f64,
}

pub(super) fn run(arguments: &SizeAdviseArguments) -> anyhow::Result<ExitCode> {
    let tau = super::tau(&arguments.tau)?;
    let window = duration("--window", &arguments.window)?;
    if window < Duration::from_secs(1) {
        return Err(misuse(
            "--window",
            &arguments.window,
            "expected 1s or more: pages' ages are known to a quarter of a second",
        ));
    }
    let (fast, slow) = prices(&arguments.prices)?;
    let machines = machines(&arguments.machines)?;
    let limit = arguments.duration.as_deref().map(|text| duration("--duration", text)).transpose()?;
    let watch = WatchOptions::parse(&WatchArguments {
        tracker: arguments.tracker.clone(),
        interval: Some("500ms".to_owned()),
        files: false,
        shared: false,
        report: None,
        json: false,
        json_file: None,
        quiet: true,
    })?;
    let target = match arguments.pid {
        Some(pid) => TargetSpec::Pid(pid),
        None => TargetSpec::Command(arguments.command.clone()),
    };
    let mut profiler = Profiler::new(window);
    let onlooker: &mut dyn Onlooker = &mut profiler;
    let (code, _) = run_with(&Plan::observe(target, watch, limit), Some(onlooker))?;
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
    let advice: Vec<Advice> = machines.into_iter().map(|machine| advise(machine, profile, tau, fast, slow)).collect();
    if let Some(directory) = &arguments.report {
        let table = text(profile, &advice, tau);
        crate::report::sim::write_advice(directory, &as_json(profile, &advice, tau), &table, &advice, tau)?;
    }
    if arguments.json {
        super::super::print_json(&as_json(profile, &advice, tau))?;
    } else {
        super::super::print_text(&text(profile, &advice, tau))?;
    }
    Ok(code)
}

fn advise(machine: Machine, profile: &Profile, tau: f64, fast: f64, slow: f64) -> Advice {
    let curve = profile.curve(&machine);
    let share = least_share(&curve, tau, |point| point.loss);
    let careful_share = least_share(&curve, tau, |point| point.loss_high);
    let (cost, careful) = (cost_saved(&machine, share, fast, slow), cost_saved(&machine, careful_share, fast, slow));
    Advice { machine, curve, share, careful_share, cost_saved: cost, careful_cost_saved: careful }
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
    chosen.into_iter().map(crate::commands::sim::options::machine).collect()
}

fn as_json(profile: &Profile, advice: &[Advice], tau: f64) -> serde_json::Value {
    let machines: Vec<_> = advice
        .iter()
        .map(|advice| {
            json!({
                "machine": advice.machine.name, "fast_share": advice.share, "fast_share_careful": advice.careful_share,
                "cost_saved_share": advice.cost_saved, "cost_saved_share_careful": advice.careful_cost_saved,
                "curve": advice.curve,
            })
        })
        .collect();
    json!({ "target_tau": tau, "profile": profile, "resident_bytes": profile.pages() * 4096, "machines": machines })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn text(profile: &Profile, advice: &[Advice], tau: f64) -> String {
    let mut out = format!(
        "{} resident, seen in {} windows of {}; nothing was moved, losses are predicted\n",
        units::bytes(profile.pages() * 4096),
        profile.windows,
        units::seconds(profile.window_seconds)
    );
    out += &format!(
        "least fast memory for a loss of {}: expected, and if every touch of a page reads all of it (careful)\n",
        percent(tau)
    );
    let row = |cells: [String; 5]| {
        let [name, share, careful, saved, at_half] = cells;
        format!("  {name:<14}{share:>10}{careful:>10}{saved:>20}   {at_half}\n")
    };
    out += &row(["machine", "expected", "careful", "cost saved", "loss with half of it fast (least to most)"]
        .map(str::to_owned));
    for advice in advice {
        let half = advice.curve[49];
        out += &row([
            advice.machine.name.clone(),
            units::percent(advice.share),
            units::percent(advice.careful_share),
            format!("{} ({})", percent(advice.cost_saved), percent(advice.careful_cost_saved)),
            format!("{} ({} to {})", percent(half.loss), percent(half.loss_low), percent(half.loss_high)),
        ]);
    }
    out
}
