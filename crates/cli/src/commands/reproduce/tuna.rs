//! Tuna's experiments: sizes of fast memory, prediction against run, the tuner at work.
//!
//! In: scale and seed. Out: rows of paper, ours and verdict, for TPP as in the paper and for FlexMem. Must not: hold a value that the paper
//! does not state, or a constant chosen to meet one.
//!
//! The baseline of a loss is the same program under the same policy with everything fast. Fast memory is a little more than
//! the program's peak, so that the policy's own watermarks do not lie within it, and is limited from there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use rayon::prelude::*;
use terrace_core::units::{Bytes, Time};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::run_tuned;
use terrace_sim::tuning::{Counters, FixedLimit, Tuning};
use terrace_sim::{FastSize, Report, SimConfig, WorkloadSource};
use terrace_sizing::forecast::LOOK_SECONDS;
use terrace_sizing::steer::{FIXED_THRESHOLD, Steer, vector_between};
use terrace_sizing::tuner::{Interval, Mode, Summary, Tuner, TunerConfig};
use terrace_sizing::{ConfigVector, Forecast, Index};
use terrace_workloads::Parameters;

use crate::report::sim::Course;

mod oracle;
mod rows;

pub(super) use rows::{Row, rows};

/// A program of Table 1: resident size in decimal gigabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum App {
    PageRank,
    XsBench,
    Bfs,
    Sssp,
    Btree,
}

pub(super) const APPS: [App; 5] = [App::Sssp, App::Bfs, App::XsBench, App::PageRank, App::Btree];

impl App {
    pub(super) const fn name(self) -> &'static str {
        match self {
            App::PageRank => "PageRank",
            App::XsBench => "XSBench",
            App::Bfs => "BFS",
            App::Sssp => "SSSP",
            App::Btree => "Btree",
        }
    }

    const fn workload(self) -> &'static str {
        match self {
            App::PageRank => "gap-pr",
            App::XsBench => "xsbench",
            App::Bfs => "gap-bfs",
            App::Sssp => "gap-sssp",
            App::Btree => "btree",
        }
    }

    const fn gigabytes(self) -> f64 {
        match self {
            App::PageRank => 15.8,
            App::XsBench => 16.4,
            App::Bfs => 12.4,
            App::Sssp => 23.5,
            App::Btree => 10.8,
        }
    }

    /// How often the usual amount of work is done: the paper does not state it, and its figures show minutes.
    const fn times(self) -> u64 {
        match self {
            App::XsBench => 10,
            App::Bfs | App::Btree | App::PageRank => 2,
            App::Sssp => 1,
        }
    }
}

/// A case of fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Everything fast: the baseline, and the profile.
    Full,
    /// The same again with its pages watched, for the forecast at the sizes of Table 2: those are shares of the peak, which the first tells.
    Watched,
    /// So many thousandths of the peak.
    Fixed(u32),
    /// The tuner: whether it goes by what is observed, target in thousandths, interval in milliseconds.
    Tuned(bool, u32, u32),
    /// Pond's split, so many thousandths of the peak slow from the start.
    Pond(u32),
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    pub app: App,
    pub policy: &'static str,
    pub kind: Kind,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { app, policy, kind } = self;
        write!(out, "{} {} GB, 24 threads, 4 KiB pages, optane-6252, {policy}, ", app.workload(), app.gigabytes())?;
        match kind {
            Kind::Full => write!(out, "everything fast"),
            Kind::Watched => write!(out, "everything fast, pages watched"),
            Kind::Fixed(size) => write!(out, "{:.1}% fast", f64::from(*size) / 10.0),
            Kind::Tuned(measured, tau, interval) => {
                let mode = if *measured { "measured" } else { "as in the paper" };
                write!(out, "tuned {mode}, target {:.1}%, every {interval} ms", f64::from(*tau) / 10.0)
            }
            Kind::Pond(slow) => write!(out, "{:.1}% slow from the start", f64::from(*slow) / 10.0),
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub seconds: f64,
    pub full_size_seconds: f64,
    pub peak_pages: u64,
    pub migrated_pages: u64,
    pub failed_promotions: u64,
    /// Share of the accesses that slow memory served.
    pub slow_share: f64,
    /// Seconds of all threads that management took.
    pub management_seconds: f64,
    pub vector: Option<ConfigVector>,
    /// Share and forecast loss of each size, of the run whose pages are watched.
    pub forecast: Vec<(f64, f64)>,
    /// Work, time and resident pages over time, of runs that are not tuned.
    pub course: oracle::Course,
    pub summary: Option<Summary>,
    pub intervals: Vec<Interval>,
}

/// All runs of a reproduction, and the database it was predicted with.
pub(super) struct Runs {
    pub outcomes: BTreeMap<Case, Outcome>,
    pub index: Arc<Index>,
}

impl Runs {
    pub(super) fn of(&self, case: Case) -> anyhow::Result<&Outcome> {
        self.outcomes.get(&case).with_context(|| format!("{case}: was not run"))
    }

    /// How much longer a case took than with everything fast.
    pub(super) fn loss(&self, case: Case) -> anyhow::Result<f64> {
        Ok(self.of(case)?.seconds / self.of(Case { kind: Kind::Full, ..case })?.seconds - 1.0)
    }
}

/// The programs tuned to 5 % every 2.5 s under a policy, in both modes, as far as they were run: figures 3 to 7.
pub(super) fn courses<'a>(runs: &'a Runs, policy: &'static str) -> Vec<Course<'a>> {
    let of = |app: App, measured: bool| {
        let case = Case { app, policy, kind: Kind::Tuned(measured, 50, 2500) };
        runs.outcomes.get(&case).map_or(&[][..], |outcome| outcome.intervals.as_slice())
    };
    let all = APPS.into_iter().map(|app| Course { name: app.name(), paper: of(app, false), measured: of(app, true) });
    all.filter(|course| !course.paper.is_empty() || !course.measured.is_empty()).collect()
}

/// Runs what the rows need, each case once; those with everything fast first, as they say what everything is.
pub(super) fn run(chosen: &[&Row], scale: Scale, seed: u64) -> anyhow::Result<Runs> {
    let machine = Machine::preset("optane-6252")?;
    let index = Arc::new(crate::commands::size::store::ready(crate::commands::size::store::in_memory(&machine)?)?);
    let mut cases: Vec<Case> = chosen.iter().flat_map(|row| row.cases.iter().copied()).collect();
    cases.extend(cases.clone().into_iter().map(|case| Case { kind: Kind::Full, ..case }));
    cases.sort_unstable();
    cases.dedup();
    let bar = super::super::sim::compare::progress(cases.len());
    let (full, others): (Vec<Case>, Vec<Case>) = cases.into_iter().partition(|case| case.kind == Kind::Full);
    let mut outcomes = BTreeMap::new();
    for part in [full, others] {
        let done: Result<Vec<(Case, Outcome)>, anyhow::Error> = part
            .par_iter()
            .map(|&case| {
                let peak = outcomes.get(&Case { kind: Kind::Full, ..case }).map(|full: &Outcome| full.peak_pages);
                let outcome = one(case, peak, &machine, &index, scale, seed).with_context(|| case.to_string())?;
                bar.inc(1);
                Ok((case, outcome))
            })
            .collect();
        outcomes.extend(done?);
    }
    bar.finish_and_clear();
    Ok(Runs { outcomes, index })
}

/// Above the peak: TPP keeps 2 % free, FlexMem 3 %, of what the tier has; that is to be beside the program and not in it.
const ROOM: f64 = 1.032;

fn one(
    case: Case,
    peak: Option<u64>,
    machine: &Machine,
    index: &Arc<Index>,
    scale: Scale,
    seed: u64,
) -> anyhow::Result<Outcome> {
    let footprint = scale.bytes(Bytes::new((case.app.gigabytes() * 1e9) as u64));
    let mut parameters = Parameters::new(footprint.get());
    (parameters.threads, parameters.seed) = (24, seed);
    parameters.operations = Some(usual_operations(case.app, footprint.get()) * case.app.times());
    let full = peak.unwrap_or(footprint.pages());
    let room = Bytes::of_pages((full as f64 * ROOM).ceil() as u64);
    let mut config = SimConfig::new(machine.clone(), room, FastSize::Share(1.0));
    (config.scale, config.seed) = (scale, seed);
    let source = WorkloadSource { name: case.app.workload().to_owned(), parameters };
    let mut settings: Vec<(&str, String)> = Vec::new();
    if let Kind::Pond(slow) = case.kind {
        // Of the size that is mapped, as it is mapped; slices of one page, as the scaled machine has no gigabytes.
        settings = vec![
            ("untouched", format!("{:.1}%", f64::from(slow) / 10.0)),
            ("slice", "4KiB".to_owned()),
            ("monitor", "off".to_owned()),
        ];
    }
    let policy = terrace_policies::build(case.policy, Settings::from_pairs(settings))?;
    let profile = Arc::new(Mutex::new(Profile::default()));
    let mut tuner = None;
    let tuning: Box<dyn Tuning> = match case.kind {
        Kind::Full => Box::new(Profiler { profile: profile.clone(), limit: None }),
        Kind::Watched => {
            let shares = rows::TABLE_2.map(|size| f64::from(size) / 1000.0);
            let forecast = Forecast::new(machine.clone(), scale, full, &shares, FIXED_THRESHOLD as u8);
            profile.lock().unwrap_or_else(PoisonError::into_inner).forecast = Some(forecast);
            Box::new(Profiler { profile: profile.clone(), limit: None })
        }
        Kind::Pond(_) => Box::new(FixedLimit::new(u64::MAX)),
        Kind::Fixed(size) => {
            let limit = (full as f64 * f64::from(size) / 1000.0) as u64;
            Box::new(Profiler { profile: profile.clone(), limit: Some(limit) })
        }
        Kind::Tuned(measured, tau, interval) => {
            let mode = if measured { Mode::Measured } else { Mode::Paper };
            let mut config = TunerConfig::new(f64::from(tau) / 1000.0, mode);
            config.interval = Duration::from_millis(u64::from(interval));
            let shared = Arc::new(Mutex::new(Tuner::new(config)));
            tuner = Some(shared.clone());
            Box::new(Steer::new(shared, index.clone(), scale, full))
        }
    };
    let report: Report = run_tuned(&config, &source, policy, tuning)?;
    let tuner = tuner.as_ref().map(|tuner| tuner.lock().unwrap_or_else(PoisonError::into_inner));
    let profile = profile.lock().unwrap_or_else(PoisonError::into_inner);
    let peak_pages = Bytes::new(report.footprint_bytes).pages();
    let summary = tuner.as_ref().map(|tuner| of_the_whole_run(tuner, report.full_size_seconds));
    Ok(Outcome {
        seconds: report.seconds,
        full_size_seconds: report.full_size_seconds,
        peak_pages,
        migrated_pages: Bytes::new(report.migrated_bytes).pages(),
        failed_promotions: report.failed_promotions,
        slow_share: report.tier_accesses[1..].iter().sum::<u64>() as f64
            / report.tier_accesses.iter().sum::<u64>().max(1) as f64,
        management_seconds: report.management_seconds,
        vector: profile.vector(scale, peak_pages),
        forecast: profile.forecast.iter().flat_map(Forecast::losses).collect(),
        course: profile.course.clone(),
        summary,
        intervals: tuner.as_ref().map_or_else(Vec::new, |tuner| tuner.intervals().to_vec()),
    })
}

/// A tuner's summary, with what was saved as a mean over the whole run: nothing in what is left of it after the last decision, and
/// before the first window.
fn of_the_whole_run(tuner: &Tuner, seconds: f64) -> Summary {
    let summary = tuner.summary();
    let windows: f64 = tuner.intervals().iter().map(|interval| interval.window_seconds).sum();
    Summary { saved_share_mean: summary.saved_share_mean * (windows / seconds.max(windows)).min(1.0), ..summary }
}

/// The number of operations of a run that is not told, as the workloads state it (programs/*.rs, `Budget::of` and the like).
fn usual_operations(app: App, size: u64) -> u64 {
    match app {
        App::Bfs => 16,
        App::PageRank => 20,
        App::Sssp => 4,
        App::XsBench => (size / 4096).max(2000),
        App::Btree => size / 128,
    }
}

/// First and last counters of a run, and how it went between them.
#[derive(Default)]
struct Profile {
    first: Option<Counters>,
    last: Option<Counters>,
    course: oracle::Course,
    forecast: Option<Forecast>,
}

impl Profile {
    fn vector(&self, scale: Scale, peak_pages: u64) -> Option<ConfigVector> {
        let (first, last) = (self.first.as_ref()?, self.last.as_ref()?);
        let seconds = last.now.since(first.now).as_secs_f64();
        let vector = vector_between(first, last, scale)?.over_interval(seconds);
        let resident_bytes = (peak_pages * 4096 * u64::from(scale.factor())) as f64;
        Some(ConfigVector { resident_bytes, ..vector })
    }
}

/// Looks several times an interval, so that the last look is near the end, and sets a limit once, at the start.
struct Profiler {
    profile: Arc<Mutex<Profile>>,
    limit: Option<u64>,
}

/// The shortest runs, of some 15 s, are to be cut into forty parts; and ages are to be known well enough for a forecast.
const LOOK: Duration = Duration::from_millis((LOOK_SECONDS * 1000.0) as u64);

impl Tuning for Profiler {
    fn due(&self) -> Time {
        let profile = self.profile.lock().unwrap_or_else(PoisonError::into_inner);
        profile.last.map_or(Time::ZERO, |last| last.now + LOOK)
    }
    fn tune(&mut self, counters: &Counters) -> Option<u64> {
        let mut profile = self.profile.lock().unwrap_or_else(PoisonError::into_inner);
        profile.first.get_or_insert(*counters);
        profile.last = Some(*counters);
        profile.course.points.push((counters.operations, counters.now.as_secs_f64(), counters.resident_pages));
        self.limit.take()
    }
    fn watches_pages(&self) -> bool {
        self.profile.lock().unwrap_or_else(PoisonError::into_inner).forecast.is_some()
    }
    fn watch(&mut self, pages: &[Option<u32>], counters: &Counters) {
        let mut profile = self.profile.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(forecast) = &mut profile.forecast {
            forecast.look(pages, counters);
        }
    }
}
