//! Runs the cases of rows on modelled hardware, each distinct one once a seed; those of one program in lockstep.
//!
//! In: rows, scale, seeds. Out: [`Runs`]. Must not: compare runs, or know what a row asks of them.
//!
//! A case that says `at` is limited while it runs. Its size follows the program's peak, so that its run with everything fast comes
//! first. Fast memory is then a little more than the peak, so that the policy's own watermarks do not lie within the program.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rayon::prelude::*;
use terrace_core::units::{Bytes, Time};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::{Bounds, RunRequest, bounding, machines_at_once, parts, run_together};
use terrace_sim::tuning::{Counters, FixedLimit, Tuning};
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, SimError, WorkloadSource};
use terrace_sizing::sim_driver::{SimDriver, vector_between};
use terrace_sizing::watched::Looks;
use terrace_sizing::{ConfigVector, Index};
use terrace_tuning::{Interval, Mode, Summary, Tuner, TunerConfig};

use crate::bounds::Course;
use crate::case::{Case, Fast, Limit};
use crate::error::{Error, RunError};
use crate::experiments::Row;
use crate::{LEAST_SCALE, QUICK_SCALE};

/// How rows are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The factor by which machines and programs are shrunk.
    pub scale: u32,
    /// Seeds, each of which repeats every run.
    pub seeds: Vec<u64>,
    /// Settings of policies that take the place of the cases' own: `flexmem.dr_gate=literal`.
    pub set: Vec<String>,
}

/// A setting of a policy that takes the place of the cases' own.
struct Other {
    policy: String,
    key: String,
    value: String,
}

/// Makes the performance database of a machine ready for queries.
pub type Database<'a> = &'a (dyn Fn(&Machine) -> Result<Index, Box<dyn std::error::Error + Send + Sync>> + Sync);

/// What is to be run.
pub struct Plan<'a> {
    pub(crate) rows: Vec<&'a Row>,
    pub(crate) options: Options,
    scale: Scale,
    others: Vec<Other>,
    /// Distinct runs: those that need no other run, and those that need the peak of one of these.
    first: Vec<(Case, u64)>,
    second: Vec<(Case, u64)>,
}

/// What a run amounted to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The simulator's report.
    pub report: Report,
    /// Its counters over the whole run, for the database; `None` where it was not profiled, or too short.
    pub vector: Option<ConfigVector>,
    /// Share of the peak and forecast loss of each size, where pages were watched.
    pub forecast: Vec<(f64, f64)>,
    /// Work, time and resident pages over time, where it was profiled.
    pub course: Course,
    /// What the tuner came to.
    pub summary: Option<Summary>,
    /// The tuner's decisions.
    pub intervals: Vec<Interval>,
}

impl Outcome {
    /// Pages of the program at its peak.
    pub(crate) fn peak_pages(&self) -> u64 {
        Bytes::new(self.report.footprint_bytes).pages()
    }
}

/// All runs, and the databases that predict.
#[derive(Default)]
pub struct Runs {
    outcomes: BTreeMap<(String, u64), (Case, Outcome)>,
    indices: BTreeMap<String, Arc<Index>>,
}

impl Runs {
    /// The run of a case.
    pub(crate) fn of(&self, case: &Case, seed: u64) -> Option<&Outcome> {
        self.outcomes.get(&(case.to_string(), seed)).map(|(_, outcome)| outcome)
    }

    /// The database of a machine.
    pub(crate) fn index(&self, machine: &str) -> Option<&Arc<Index>> {
        self.indices.get(machine)
    }

    /// Those of a plan: run in words, seed, outcome.
    pub(crate) fn all<'r>(&'r self, plan: &Plan<'_>) -> impl Iterator<Item = (&'r str, u64, &'r Outcome)> {
        let own: BTreeSet<(String, u64)> =
            plan.first.iter().chain(&plan.second).map(|(case, seed)| (case.to_string(), *seed)).collect();
        let of_plan = self.outcomes.iter().filter(move |(key, _)| own.contains(key));
        of_plan.map(|((case, seed), (_, outcome))| (case.as_str(), *seed, outcome))
    }
}

impl<'a> Plan<'a> {
    /// Checks the options and finds the distinct runs.
    ///
    /// # Errors
    /// When the scale is out of range, or a setting cannot be taken.
    pub fn new(rows: Vec<&'a Row>, options: Options) -> Result<Plan<'a>, Error> {
        let scale = Scale::new(options.scale).filter(|scale| (LEAST_SCALE..=QUICK_SCALE).contains(&scale.factor()));
        let scale = scale.ok_or(Error::Scale { given: options.scale, least: LEAST_SCALE, most: QUICK_SCALE })?;
        let others = options.set.iter().map(|text| other(text)).collect::<Result<_, _>>()?;
        let mut distinct: BTreeMap<String, Case> = BTreeMap::new();
        for case in rows.iter().flat_map(|row| &row.cases) {
            distinct.insert(case.to_string(), case.clone());
            if case.at.is_some() {
                let baseline = case.baseline();
                distinct.insert(baseline.to_string(), baseline);
            }
        }
        let all: Vec<(Case, u64)> =
            options.seeds.iter().flat_map(|&seed| distinct.values().map(move |case| (case.clone(), seed))).collect();
        let (first, second) = all.into_iter().partition(|(case, _)| matches!(case.at, None | Some(Limit::Full)));
        Ok(Plan { rows, options, scale, others, first, second })
    }

    /// How many of its runs another one lacks.
    pub fn lacks(&self, runs: &Runs) -> usize {
        self.first.iter().chain(&self.second).filter(|(case, seed)| runs.of(case, *seed).is_none()).count()
    }

    /// How many runs there are.
    pub fn runs(&self) -> usize {
        self.first.len() + self.second.len()
    }

    /// Whether any run is tuned.
    pub fn has_tuned(&self) -> bool {
        self.tuned_cases().next().is_some()
    }

    fn tuned_cases(&self) -> impl Iterator<Item = &'a Case> {
        self.rows.iter().flat_map(|row| &row.cases).filter(|case| matches!(case.at, Some(Limit::Tuned { .. })))
    }

    /// The courses of tuned runs of the first seed, for pictures: case and decisions, in the order of the rows.
    pub fn tuned<'r>(&'r self, runs: &'r Runs) -> impl Iterator<Item = (&'a Case, &'r [Interval])> {
        let seed = self.options.seeds.first().copied().unwrap_or_default();
        self.tuned_cases().filter_map(move |case| Some((case, runs.of(case, seed)?.intervals.as_slice())))
    }

    /// The scale of a row's runs.
    pub(crate) fn scale_of(&self, row: &Row) -> u32 {
        row.cases.iter().map(|case| case.setting.scale(self.scale).factor()).max().unwrap_or(self.scale.factor())
    }

    /// Runs everything on all cores, and calls `done` after each run.
    ///
    /// # Errors
    /// When a run fails; it is named.
    pub fn run(&self, database: Database<'_>, done: &(dyn Fn() + Sync)) -> Result<Runs, Error> {
        let mut runs = Runs::default();
        self.run_on(&mut runs, database, done).map(|()| runs)
    }

    /// The same, but for what an earlier plan with the same options has run.
    ///
    /// # Errors
    /// When a run fails; it is named.
    pub fn run_on(&self, runs: &mut Runs, database: Database<'_>, done: &(dyn Fn() + Sync)) -> Result<(), Error> {
        for name in self.rows.iter().flat_map(|row| &row.machines) {
            if !runs.indices.contains_key(name) {
                let failed = |source| Error::Run { case: format!("the database of {name}"), seed: 0, source };
                let machine = Machine::preset(name).map_err(|error| failed(RunError::Simulation(error.into())))?;
                let index = database(&machine).map_err(|why| failed(RunError::Database(why)))?;
                runs.indices.insert(name.clone(), Arc::new(index));
            }
        }
        for part in [&self.first, &self.second] {
            let before: &Runs = runs;
            let left = part.iter().filter(|(case, seed)| before.of(case, *seed).is_none());
            let mut programs: BTreeMap<String, Vec<&(Case, u64)>> = BTreeMap::new();
            for one in left {
                let source = self.source(&one.0, one.1);
                programs.entry(format!("{source:?}")).or_default().push(one);
            }
            let parts = parts(programs.len(), rayon::current_num_threads());
            let mut batches: Vec<&[&(Case, u64)]> = Vec::new();
            for cases in programs.values() {
                let footprint = self.footprint(&cases[0].0);
                batches.extend(cases.chunks(cases.len().div_ceil(parts).min(machines_at_once(footprint))));
            }
            let outcomes: Vec<Vec<_>> = batches
                .into_par_iter()
                .map(|cases| {
                    let outcomes = self.together(cases, before);
                    cases.iter().for_each(|_| done());
                    outcomes
                })
                .collect::<Result<_, _>>()?;
            runs.outcomes.extend(outcomes.into_iter().flatten());
        }
        Ok(())
    }

    fn source(&self, case: &Case, seed: u64) -> WorkloadSource {
        let parameters = case.setting.parameters(case.setting.scale(self.scale), seed);
        WorkloadSource { name: case.setting.workload.clone(), parameters }
    }

    fn footprint(&self, case: &Case) -> Bytes {
        case.setting.scale(self.scale).bytes(case.setting.size)
    }

    /// Runs cases of one program and seed: the program once, with the bounds of those that ask for them.
    fn together(&self, cases: &[&(Case, u64)], runs: &Runs) -> Result<Vec<Done>, Error> {
        let failed = |(case, seed): &(Case, u64), source| Error::Run { case: case.to_string(), seed: *seed, source };
        let mut prepared = Vec::new();
        let mut bounded: BTreeMap<String, SimConfig> = BTreeMap::new();
        for one @ (case, seed) in cases {
            let (request, after) = self.prepare(case, *seed, runs).map_err(|source| failed(one, source))?;
            if case.at.is_none() && case.bounds {
                bounded.insert(bounds_of(&request.config), request.config.clone());
            }
            prepared.push((one, bounds_of(&request.config), request, after));
        }
        let mut requests = Vec::new();
        for config in bounded.values() {
            requests.extend(bounding(config).map_err(|error| failed(cases[0], error.into()))?);
        }
        let mut after = Vec::new();
        for (one, bounds, request, rest) in prepared {
            requests.push(request);
            after.push((one, bounds, rest));
        }
        let source = self.source(&cases[0].0, cases[0].1);
        let mut reports = run_together(requests, &source).into_iter();
        let mut bounds = BTreeMap::new();
        for key in bounded.into_keys() {
            let pair = [reports.next(), reports.next()].map(|report| report.expect("each has two runs"));
            let [fast, slow] = pair.map(|report| report.map_err(|error| failed(cases[0], error.into())));
            bounds.insert(key, Bounds::of([&fast?, &slow?]));
        }
        let mut outcomes = Vec::new();
        for ((one, key, after), report) in after.into_iter().zip(reports) {
            let mut report = report.map_err(|error| failed(one, error.into()))?;
            if let Some(bounds) = bounds.get(&key).filter(|_| one.0.bounds && one.0.at.is_none()) {
                report.compare_with(bounds);
            }
            let outcome = after.outcome(report).map_err(|error| failed(one, error))?;
            outcomes.push(((one.0.to_string(), one.1), (one.0.clone(), outcome)));
        }
        Ok(outcomes)
    }

    /// The run of a case, and what makes an outcome of its report.
    fn prepare(&self, case: &Case, seed: u64, runs: &Runs) -> Result<(RunRequest, After), RunError> {
        let machine = Machine::preset(&case.setting.machine).map_err(SimError::from)?;
        let scale = case.setting.scale(self.scale);
        let footprint = self.footprint(case);
        let mut settings = case.policy_settings.clone();
        let for_it = self.others.iter().filter(|other| other.policy == case.policy);
        settings.extend(for_it.map(|other| (other.key.clone(), other.value.clone())));
        let policy = terrace_policies::build(&case.policy, Settings::from_pairs(settings.clone()))?;
        let configured = |footprint, fast| {
            let mut config = SimConfig::new(machine.clone(), footprint, fast);
            (config.scale, config.seed) = (scale, seed);
            config.pages = match (case.setting.huge, case.setting.mmu_miss_cycles) {
                (false, _) => Pages::Small,
                (true, None) => Pages::Folded,
                (true, Some(_)) => Pages::Whole,
            };
            config.mmu = case.setting.mmu_miss_cycles.map(|miss_cycles| MmuConfig {
                miss_cycles,
                counters: None,
                ..MmuConfig::new(case.setting.threads)
            });
            config
        };
        let Some(limit) = &case.at else {
            let fast = match case.setting.fast {
                Some(Fast::Share(share)) => FastSize::Share(share),
                Some(Fast::Amount(amount)) => FastSize::Bytes(Bytes::new(amount.get() / u64::from(scale.factor()))),
                None => FastSize::Share(1.0),
            };
            return Ok((RunRequest::new(configured(footprint, fast), policy), After { limited: None, scale }));
        };
        let peak = match (limit, runs.of(&case.baseline(), seed)) {
            (Limit::Full, _) => footprint.pages(),
            (_, Some(baseline)) => baseline.peak_pages(),
            (_, None) => return Err(RunError::NoBaseline),
        };
        let room = Bytes::of_pages((peak as f64 * case.setting.room_over_peak).ceil() as u64);
        let config = configured(room, FastSize::Share(1.0));
        let profile = Arc::new(Mutex::new(Profile::default()));
        let mut tuner = None;
        let profiler = |limit| Box::new(Profiler { profile: profile.clone(), limit });
        let tuning: Box<dyn Tuning> = match limit {
            Limit::Full => profiler(None),
            Limit::Watched(_) => {
                let looks = Looks::new(&case.setting.workload, machine.clone(), 1);
                profile.lock().unwrap_or_else(PoisonError::into_inner).looks = looks;
                profiler(None)
            }
            Limit::Unlimited => Box::new(FixedLimit::new(u64::MAX)),
            Limit::Share(share) => profiler(Some((peak as f64 * share) as u64)),
            Limit::Tuned { measured, target, interval } => {
                let mode = if *measured { Mode::Measured } else { Mode::Paper };
                let mut config = TunerConfig::new(*target, mode);
                config.interval = *interval;
                let shared = Arc::new(Mutex::new(Tuner::new(config)));
                tuner = Some(shared.clone());
                let index = runs.index(&case.setting.machine).ok_or(RunError::NoBaseline)?;
                Box::new(SimDriver::new(shared, index.clone(), scale, peak))
            }
        };
        let replay = match limit {
            Limit::Watched(shares) => {
                let (config, shares, policy) = (config.clone(), shares.clone(), case.policy.clone());
                Some(Replay { config, peak, shares, policy, settings })
            }
            _ => None,
        };
        let limited = Some(Limited { profile, tuner, replay });
        Ok((RunRequest::new(config, policy).tuned(tuning), After { limited, scale }))
    }
}

/// A run by its case and seed, with what it came to.
type Done = ((String, u64), (Case, Outcome));

/// What the bounds of a run depend on.
fn bounds_of(config: &SimConfig) -> String {
    format!(
        "{} {:?} {:?} {:?} {}",
        config.machine.name,
        config.pages,
        config.mmu,
        config.footprint,
        config.scale.factor()
    )
}

/// What makes an outcome of a report.
struct After {
    limited: Option<Limited>,
    scale: Scale,
}

/// What watched a run that was limited.
struct Limited {
    profile: Arc<Mutex<Profile>>,
    tuner: Option<Arc<Mutex<Tuner>>>,
    replay: Option<Replay>,
}

/// How what was seen of a run is played again under its policy: held at shares of the peak, as the runs are that it is compared with.
struct Replay {
    config: SimConfig,
    peak: u64,
    shares: Vec<f64>,
    policy: String,
    settings: BTreeMap<String, String>,
}

impl Replay {
    /// Each share with its loss.
    fn losses(self, looks: &Looks) -> Result<Vec<(f64, f64)>, RunError> {
        // What was seen has passed the cache and the TLB already.
        let config = SimConfig { cache: false, tlb: false, ..self.config };
        let [tape] = looks.tapes() else { return Ok(Vec::new()) };
        let limits = std::iter::once(u64::MAX).chain(self.shares.iter().map(|share| (self.peak as f64 * share) as u64));
        let request = |limit| {
            let policy = terrace_policies::build(&self.policy, Settings::from_pairs(self.settings.clone()))?;
            Ok(RunRequest::new(config.clone(), policy).tuned(Box::new(FixedLimit::new(limit))))
        };
        let requests = limits.map(request).collect::<Result<Vec<_>, RunError>>()?;
        let reports = run_together(requests, tape).into_iter().collect::<Result<Vec<_>, _>>()?;
        let loss = |report: &Report| report.seconds / reports[0].seconds - 1.0;
        Ok(self.shares.iter().copied().zip(reports[1..].iter().map(loss)).collect())
    }
}

impl After {
    fn outcome(self, report: Report) -> Result<Outcome, RunError> {
        let Some(Limited { profile, tuner, replay }) = self.limited else {
            let (course, forecast, intervals) = Default::default();
            return Ok(Outcome { report, vector: None, forecast, course, summary: None, intervals });
        };
        let tuner = tuner.as_ref().map(|tuner| tuner.lock().unwrap_or_else(PoisonError::into_inner));
        let profile = profile.lock().unwrap_or_else(PoisonError::into_inner);
        let forecast = match (replay, &profile.looks) {
            (Some(replay), Some(looks)) => replay.losses(looks)?,
            _ => Vec::new(),
        };
        Ok(Outcome {
            vector: profile.vector(self.scale, Bytes::new(report.footprint_bytes).pages()),
            forecast,
            course: profile.course.clone(),
            summary: tuner.as_ref().map(|tuner| of_the_whole_run(tuner, report.full_size_seconds)),
            intervals: tuner.as_ref().map_or_else(Vec::new, |tuner| tuner.intervals().to_vec()),
            report,
        })
    }
}

/// Reads `POLICY.KEY=VALUE`, and builds the policy once, so that a bad value is found before anything runs.
fn other(text: &str) -> Result<Other, Error> {
    let refused = |why: String| Error::Setting { text: text.to_owned(), why };
    let parts = text.split_once('=').and_then(|(key, value)| Some((key.trim().split_once('.')?, value.trim())));
    let ((policy, key), value) =
        parts.ok_or_else(|| refused("expected POLICY.KEY=VALUE, such as flexmem.dr_gate=literal".to_owned()))?;
    terrace_policies::build(policy, Settings::from_pairs([(key, value)]))
        .map_err(|error| refused(error.to_string()))?;
    Ok(Other { policy: policy.to_owned(), key: key.to_owned(), value: value.to_owned() })
}

/// A tuner's summary, with what was saved as a mean over the whole run: nothing is saved after the last decision, and before the
/// first window.
fn of_the_whole_run(tuner: &Tuner, seconds: f64) -> Summary {
    let summary = tuner.summary();
    let windows: f64 = tuner.intervals().iter().map(|interval| interval.window_seconds).sum();
    Summary { saved_share_mean: summary.saved_share_mean * (windows / seconds.max(windows)).min(1.0), ..summary }
}

/// First and last counters of a run, and how it went between them.
#[derive(Default)]
struct Profile {
    first: Option<Counters>,
    last: Option<Counters>,
    course: Course,
    looks: Option<Looks>,
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
const LOOK: Duration = Duration::from_millis(100);

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
        self.profile.lock().unwrap_or_else(PoisonError::into_inner).looks.is_some()
    }
    fn watch(&mut self, pages: &[Option<u32>], counters: &Counters) {
        let mut profile = self.profile.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(looks) = &mut profile.looks {
            looks.look(pages, counters);
        }
    }
}
