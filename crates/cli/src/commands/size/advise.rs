//! `terrace size advise`: how much fast memory to buy for a program, on every machine there is a model of.
//!
//! In: a workload, a recorded program, or one that is watched while it has only fast memory. Out: for each machine the careful size, the expected one, the
//! policy that keeps them, the curve with its band, what is saved; as a table, JSON, and a page. Must not: move anything, or claim more than was seen.
//!
//! The forecast is that of `terrace size forecast`. Where every access is known it rests on them. Of a program that was watched only marks are known: the
//! forecast is then made three times, with the least that marks can mean, with what is expected and with the most (`terrace_sizing::watched`), and the careful
//! size holds in the worst of the three.

use std::process::ExitCode;
use std::time::Duration;

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_sim::{FastSize, SimConfig};
use terrace_sizing::forecast::{Curve, within_bounds};
use terrace_sizing::watched::{GROUPS, Intensity, Marks};

use super::forecast::{Candidates, Program};
use crate::args::{SizeAdviseArguments, WatchArguments};
use crate::commands::named;
use crate::options::{WatchOptions, duration, misuse};
use crate::provenance::Provenance;
use crate::report::advice::{Advice, Advices, Basis};
use crate::session::profile::Profiler;
use crate::session::{Plan, RunHook, TargetSpec, run_with};

pub(super) fn run(arguments: &SizeAdviseArguments) -> anyhow::Result<ExitCode> {
    let candidates = Candidates::parse(&arguments.candidates, &arguments.program.model.settings)?;
    let prices = prices(&arguments.prices)?;
    let machines = machines(&arguments.program.model.machine)?;
    let known = arguments.program.trace.is_some() || arguments.program.workload.is_some();
    let (code, basis, curves, made) = match known {
        true => of_accesses(arguments, &candidates, &machines)?,
        false => of_marks(arguments, &candidates, &machines)?,
    };
    let of = machines.iter().zip(curves).map(|(machine, curves)| Advice::new(machine, curves, prices)).collect();
    let advice = Advices { of, basis, max_slowdown: candidates.request.target, prices };
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

/// How it ended, what is known, curves machine by machine, and what made them.
type Known = (ExitCode, Basis, Vec<Vec<Curve>>, Provenance);

/// Of a workload or a recorded program.
fn of_accesses(
    arguments: &SizeAdviseArguments,
    candidates: &Candidates,
    machines: &[Machine],
) -> anyhow::Result<Known> {
    let mut raw = arguments.program.clone();
    // What it does depends on no machine: it is read once, on the first.
    raw.model.machine = names(&raw.model.machine)[0].to_owned();
    let program = Program::prepare(&raw, &arguments.candidates, candidates)?;
    let curves = machines
        .iter()
        .map(|machine| {
            let config = SimConfig { machine: machine.clone(), ..program.one.config.clone() };
            candidates.curves(&config, &program.tapes, usize::from(program.groups))
        })
        .collect::<anyhow::Result<_>>()?;
    let basis = Basis::Accesses {
        program: program.one.source.name(),
        played: program.played(),
        resident_bytes: program.one.config.footprint.get() * u64::from(program.one.config.scale.factor()),
    };
    let made = Provenance {
        command: Provenance::here().command,
        policy: None,
        machine: None,
        machine_hash: None,
        ..program.one.made.clone()
    };
    Ok((ExitCode::SUCCESS, basis, curves, made))
}

/// Of a program that is watched.
fn of_marks(arguments: &SizeAdviseArguments, candidates: &Candidates, machines: &[Machine]) -> anyhow::Result<Known> {
    let window = duration("--window", &arguments.window)?;
    if window < Duration::from_secs(1) {
        return Err(misuse(
            "--window",
            &arguments.window,
            "expected 1s or more: pages' ages are known to a quarter of a second",
        ));
    }
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
    // Twice as many as asked for: a sample is thinned out by halves.
    let mut profiler = Profiler::new(window, (arguments.candidates.sample * GROUPS * 2) as usize);
    let hook: &mut dyn RunHook = &mut profiler;
    let mut plan = Plan::observe(target, watch, limit);
    // Every page in every round: one that was not looked at in a window would count as not accessed in it.
    plan.settings.insert("share".to_owned(), "100%".to_owned());
    let (code, _) = run_with(&plan, Some(hook))?;
    if profiler.profile().windows == 0 {
        let what = arguments.command.first().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let shown = &arguments.window;
        let why = format!("it ended before the first window of {shown} was over; see --window");
        return Err(misuse("CMD", &what, why));
    }
    let marks = profiler.marks();
    let not_enough = marks.enough().err().map(|error| error.to_string());
    let curves = machines
        .iter()
        .map(|machine| match not_enough {
            None => within_marks(&marks, candidates, machine),
            Some(_) => Ok(Vec::new()),
        })
        .collect::<anyhow::Result<_>>()?;
    let made = Provenance::here().on_this_machine().running(&arguments.command).under(&plan.policy, &plan.settings);
    Ok((code, Basis::Marks { profile: profiler.profile().clone(), not_enough }, curves, made))
}

/// The curves within what marks leave open.
fn within_marks(marks: &Marks, candidates: &Candidates, machine: &Machine) -> anyhow::Result<Vec<Curve>> {
    let of = |intensity| {
        let tapes = marks.tapes("watched", machine, intensity);
        // What the size is does not matter here: that of each tape takes its place.
        let mut config = SimConfig::new(machine.clone(), Bytes::of_pages(1), FastSize::Share(1.0));
        // What sets a mark has passed the caches already, or may have; and translation is in the CPU time.
        (config.cache, config.tlb) = (false, false);
        candidates.curves(&config, &tapes, tapes.len())
    };
    let [least, expected, most] = [Intensity::LEAST, Intensity::EXPECTED, Intensity::MOST].map(of);
    Ok(within_bounds(&least?, &expected?, &most?, candidates.request.target))
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

/// `--machines`: names or files with commas between, or `all`.
fn names(text: &str) -> Vec<&str> {
    match text {
        "all" => Machine::preset_names(),
        names => names.split(',').map(str::trim).collect(),
    }
}

fn machines(text: &str) -> anyhow::Result<Vec<Machine>> {
    names(text).into_iter().map(|name| Ok(crate::commands::sim::options::machine(name)?)).collect()
}
