//! From a case to the simulator's request, and from its report to an outcome.
//!
//! In: a case, a seed, and for one that says `at` the run with everything fast. Out: [`RunRequest`], and [`After`], which makes an
//! [`Outcome`] of the report. Must not: run a program.
//!
//! A case that says `at` is limited while it runs. Its size follows the program's peak, so that its run with everything fast comes
//! first. Fast memory is then a little more than the peak, so that the policy's own watermarks do not lie within the program.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use terrace_core::units::{Bytes, Time};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::{RunRequest, run_together};
use terrace_sim::tuning::{Counters, FixedLimit, Tuning};
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, SimError};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sim_driver::{SimDriver, vector_between};
use terrace_sizing::watched::Looks;
use terrace_sizing::{Benchmark, ConfigVector, Index};
use terrace_tuning::{Mode, Tuner, TunerConfig};

use crate::case::{Case, Fast, Limit};
use crate::course::Course;
use crate::error::RunError;
use crate::outcome::{Asked, Outcome, Predicted, PredictedAt, Tuned};
use crate::run::{Plan, Runs};

impl Plan<'_> {
    /// The run of a case, and what makes an outcome of its report.
    pub(crate) fn prepare(&self, case: &Case, seed: u64, runs: &Runs) -> Result<(RunRequest, After), RunError> {
        let asked = self.asked_of(case);
        let machine = Machine::preset(&case.setting.machine).map_err(SimError::from)?;
        let scale = case.setting.scale(self.scale);
        let footprint = self.footprint(case);
        let settings = self.settings_of(case);
        let policy = terrace_policies::build(&case.policy, Settings::from_pairs(settings.clone()))?;
        let configured = |footprint, fast| self.config(case, machine.clone(), seed, footprint, fast);
        let Some(limit) = &case.at else {
            let fast = match case.setting.fast {
                Some(Fast::Share(share)) => FastSize::Share(share),
                Some(Fast::Amount(amount)) => FastSize::Bytes(Bytes::new(amount.get() / u64::from(scale.factor()))),
                None => FastSize::Share(1.0),
            };
            return Ok((RunRequest::new(configured(footprint, fast), policy), After { limited: None, scale, asked }));
        };
        let peak = match (limit, runs.of(&case.baseline(), seed)) {
            (Limit::Full, _) => footprint.pages(),
            (_, Some(baseline)) => baseline.figures.peak_pages(),
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
                let index = runs.index(&case.setting.machine).ok_or(RunError::NoDatabase)?;
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
        let index = match asked.shares[..] {
            [] => None,
            _ => Some(runs.index(&case.setting.machine).ok_or(RunError::NoDatabase)?.clone()),
        };
        let limited = Some(Limited { profile, tuner, replay, index });
        Ok((RunRequest::new(config, policy).tuned(tuning), After { limited, scale, asked }))
    }
}

impl Plan<'_> {
    /// A case's machine, with pages and MMU as its setting has them.
    pub(crate) fn config(
        &self,
        case: &Case,
        machine: Machine,
        seed: u64,
        footprint: Bytes,
        fast: FastSize,
    ) -> SimConfig {
        let mut config = SimConfig::new(machine, footprint, fast);
        (config.scale, config.seed) = (case.setting.scale(self.scale), seed);
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
    }
}

/// What the bounds of a run depend on.
pub(crate) fn bounds_of(config: &SimConfig) -> String {
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
pub(crate) struct After {
    limited: Option<Limited>,
    scale: Scale,
    asked: Asked,
}

/// What watched a run that was limited.
struct Limited {
    profile: Arc<Mutex<Profile>>,
    tuner: Option<Arc<Mutex<Tuner>>>,
    replay: Option<Replay>,
    /// Of the machine, where rows ask what it predicts.
    index: Option<Arc<Index>>,
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
    pub(crate) fn outcome(self, report: &Report) -> Result<Outcome, RunError> {
        let mut outcome = Outcome::of(report);
        outcome.figures = outcome.figures.complete(&self.asked);
        let Some(Limited { profile, tuner, replay, index }) = self.limited else { return Ok(outcome) };
        let tuner = tuner.as_ref().map(|tuner| tuner.lock().unwrap_or_else(PoisonError::into_inner));
        let profile = profile.lock().unwrap_or_else(PoisonError::into_inner);
        let figures = &mut outcome.figures;
        figures.parts = Some(profile.course.parts(report.full_size_seconds).unwrap_or_default());
        if let (Some(replay), Some(looks)) = (replay, &profile.looks) {
            figures.forecast = replay.losses(looks)?;
        }
        if let Some(index) = index {
            let vector = profile.vector(self.scale, figures.peak_pages());
            figures.predicted = Some(predicted(&index, vector.as_ref(), &self.asked.shares)?);
        }
        if let Some(tuner) = tuner {
            figures.tuned = Some(of_the_whole_run(&tuner, report.full_size_seconds));
            outcome.shown.intervals = tuner.intervals().to_vec();
        }
        Ok(outcome)
    }
}

/// What the database says of a run with everything fast, at shares of its peak: the loss, and the share of accesses that the nearest record's
/// micro-benchmark has in slow memory.
fn predicted(index: &Index, vector: Option<&ConfigVector>, shares: &[f64]) -> Result<Predicted, RunError> {
    let failed = |why: String| RunError::Database(why.into());
    let Some(vector) = vector else { return Ok(Predicted::default()) };
    let answer = index.query(vector, 1).map_err(|error| failed(error.to_string()))?;
    let nearest = &index.database().vectors()[answer.neighbours[0].record];
    let at = shares.iter().map(|&share| {
        let benchmark = Benchmark::new(nearest, share, FastDivisor::default());
        let benchmark = benchmark.map_err(|error| failed(error.to_string()))?;
        let slow = benchmark.accesses_in_slow() as f64 / benchmark.accesses() as f64;
        Ok(PredictedAt { share, loss: answer.curve.loss(share), slow })
    });
    let at = at.collect::<Result<_, RunError>>()?;
    Ok(Predicted { profiled: true, covered: answer.uncovered.is_none(), at })
}

/// A tuner's summary, with what was saved as a mean over the whole run: nothing is saved after the last decision, and before the
/// first window.
fn of_the_whole_run(tuner: &Tuner, seconds: f64) -> Tuned {
    let summary = tuner.summary();
    let windows: f64 = tuner.intervals().iter().map(|interval| interval.window_seconds).sum();
    Tuned {
        saved_share_mean: summary.saved_share_mean * (windows / seconds.max(windows)).min(1.0),
        saved_share_max: summary.saved_share_max,
        decisions: tuner.intervals().len(),
    }
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
