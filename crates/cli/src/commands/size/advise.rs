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
    let mut plan = Plan::observe(target, watch, limit);
    // Every page in every round: one that was not looked at in a window would count as not accessed in it.
    plan.settings.insert("share".to_owned(), "100%".to_owned());
    let (code, _) = run_with(&plan, Some(onlooker))?;
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
        of: machines.into_iter().map(|machine| advise(machine, profile, tau, fast, slow)).collect(),
        profile,
        tau,
        prices: (fast, slow),
    };
    if let Some(directory) = &arguments.report {
        crate::report::sim::write_advice(directory, &advice.as_json(), &advice)?;
    }
    if arguments.json {
        super::super::print_json(&advice.as_json())?;
    } else {
        super::super::print_text(&advice.text())?;
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

/// Advice for all machines, and what it is about.
pub(crate) struct Advices<'a> {
    pub of: Vec<Advice>,
    pub profile: &'a Profile,
    pub tau: f64,
    /// What as much of fast and of slow memory costs.
    pub prices: (f64, f64),
}

/// The columns of the table: what is expected, and what holds in the worst case.
pub(crate) const COLUMNS: [&str; 6] = [
    "machine",
    "fast memory",
    "fast memory at worst",
    "cost saved",
    "cost saved at worst",
    "loss with half of it fast (least to most)",
];

impl Advices<'_> {
    fn as_json(&self) -> serde_json::Value {
        let machines: Vec<_> = self
            .of
            .iter()
            .map(|advice| {
                json!({
                    "machine": advice.machine.name, "fast_share": advice.share, "fast_share_careful": advice.careful_share,
                    "cost_saved_share": advice.cost_saved, "cost_saved_share_careful": advice.careful_cost_saved,
                    "curve": advice.curve,
                })
            })
            .collect();
        let (fast, slow) = self.prices;
        json!({
            "target_tau": self.tau, "profile": self.profile, "resident_bytes": self.profile.pages() * 4096,
            "price_fast": fast, "price_slow": slow, "machines": machines,
        })
    }

    /// What was seen, in a sentence.
    pub(crate) fn seen(&self) -> String {
        format!(
            "{} resident, seen in {} windows of {}; nothing was moved, losses are predicted",
            units::bytes(self.profile.pages() * 4096),
            self.profile.windows,
            units::seconds(self.profile.window_seconds)
        )
    }

    /// What the table says.
    pub(crate) fn meaning(&self) -> String {
        let (fast, slow) = self.prices;
        format!(
            "Least fast memory for a loss of {}, as expected, and at worst: if every touch of a page reads all of it, and pages in use all the time take all the time. Fast memory costs {fast}, slow memory {slow}.",
            percent(self.tau)
        )
    }

    /// A row a machine.
    pub(crate) fn rows(&self) -> Vec<[String; 6]> {
        let row = |advice: &Advice| {
            let half = advice.curve[49];
            [
                advice.machine.name.clone(),
                units::percent(advice.share),
                units::percent(advice.careful_share),
                percent(advice.cost_saved),
                percent(advice.careful_cost_saved),
                format!("{} ({} to {})", percent(half.loss), percent(half.loss_low), percent(half.loss_high)),
            ]
        };
        self.of.iter().map(row).collect()
    }

    fn text(&self) -> String {
        let mut out = format!("{}\n{}\n", self.seen(), self.meaning());
        let mut row = |cells: [String; 6]| {
            let [name, share, careful, saved, careful_saved, at_half] = cells;
            out += &format!("  {name:<14}{share:>12}{careful:>10}{saved:>12}{careful_saved:>10}   {at_half}\n");
        };
        let [name, share, _, saved, _, at_half] = COLUMNS;
        row([name, share, "at worst", saved, "at worst", at_half].map(str::to_owned));
        self.rows().into_iter().for_each(row);
        out
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
