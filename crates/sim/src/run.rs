//! Runs: a source of accesses on a machine under a policy, and the two bounds every report compares with.
//!
//! In: a configuration, a source that can be played as often as needed, and a policy. Out: a [`Report`]. Must not: start
//! a thread: the caller runs many of these side by side.

use std::collections::BTreeSet;

use terrace_core::policy::Policy;
use terrace_core::units::{Bytes, TierId, Vpn};
use terrace_trace::{AccessSource, Change, Pages};
use terrace_workloads::Parameters;

use crate::colocate::Recorded;
use crate::config::SimConfig;
use crate::error::SimError;
use crate::fixed::Fixed;
use crate::lockstep::Lockstep;
use crate::oracle::Future;
use crate::processes::{Placement, Process};
use crate::report::Report;
use crate::simulation::Simulation;
use crate::tuning::Tuning;

/// Something that can be played into a simulation, the same every time.
pub trait Source: Send + Sync {
    /// Its name in reports.
    fn name(&self) -> String;
    /// The most memory it has at one time.
    fn footprint(&self) -> Bytes;
    /// Its processes, if they are several.
    fn processes(&self) -> Vec<Process> {
        Vec::new()
    }
    /// Plays it from its beginning.
    ///
    /// # Errors
    /// When the source cannot be built or read, or its own check of its answer fails.
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError>;
}

/// A workload by name.
#[derive(Clone, Debug)]
pub struct WorkloadSource {
    /// Its name.
    pub name: String,
    /// Size, threads, seed, operations, options. The size is that of the scaled machine.
    pub parameters: Parameters,
}

impl Source for WorkloadSource {
    fn name(&self) -> String {
        self.name.clone()
    }
    fn footprint(&self) -> Bytes {
        Bytes::new(self.parameters.size_bytes)
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        let played = terrace_workloads::run_traced(&self.name, &self.parameters, into);
        played.map(drop).map_err(|error| SimError::Source(error.to_string()))
    }
}

/// A recorded trace. `open` starts it from the beginning.
pub struct TraceSource<F> {
    /// Its name in reports.
    pub name: String,
    /// Bytes of pages it holds: the index of a trace knows.
    pub footprint: Bytes,
    /// Opens it again.
    pub open: F,
    /// Where the pages of its processes lie, if they are several.
    pub placement: Option<Placement>,
}

impl<F> Source for TraceSource<F>
where
    F: Fn() -> Result<Box<dyn AccessSource>, SimError> + Send + Sync,
{
    fn name(&self) -> String {
        self.name.clone()
    }
    fn footprint(&self) -> Bytes {
        self.footprint
    }
    fn processes(&self) -> Vec<Process> {
        self.placement.as_ref().map_or_else(Vec::new, |placement| placement.processes().to_vec())
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        let mut source = (self.open)()?;
        let mut batch = vec![terrace_trace::Access::default(); 2048];
        if let Some(placement) = &self.placement {
            into.apart(placement.processes());
        }
        let each = |pages: Pages, what: &mut dyn FnMut(Vpn, u64)| match &self.placement {
            None => what(Vpn(u64::from(pages.first.0)), u64::from(pages.count)),
            Some(placement) => {
                placement.runs(pages).for_each(|run| what(Vpn(u64::from(run.first.0)), u64::from(run.count)));
            }
        };
        while into.goes_on() {
            let count = source.fill(&mut batch).map_err(|error| SimError::Source(error.to_string()))?;
            if let Some(placement) = &self.placement {
                placement.place(&mut batch[..count]);
            }
            into.feed(&batch[..count]);
            if count > 0 {
                continue;
            }
            match source.take_event().map(|event| event.change) {
                None => break,
                Some(Change::Born(pages)) => each(pages, &mut |first, count| into.map(first, count, false)),
                Some(Change::Gone(pages)) => each(pages, &mut |first, count| into.unmap(first, count)),
                Some(Change::Region { .. }) => {
                    let why =
                        "the trace is regional: it tells which regions were in use, and no single access to replay";
                    return Err(SimError::Source(why.to_owned()));
                }
                Some(Change::Huge(pages)) => each(pages, &mut |first, count| into.remap(first, count, true)),
                Some(Change::Split(pages)) => each(pages, &mut |first, count| into.remap(first, count, false)),
                Some(Change::Period(accesses)) => into.each_stands_for(accesses),
            }
        }
        Ok(())
    }
}

/// A source with a recorded process beside it.
pub struct Beside {
    /// The first process.
    pub first: Box<dyn Source>,
    /// The second.
    pub other: Recorded,
}

impl Source for Beside {
    fn name(&self) -> String {
        self.first.name()
    }
    /// That of both.
    fn footprint(&self) -> Bytes {
        Bytes::new(self.first.footprint().get() + self.other.size_bytes())
    }
    fn processes(&self) -> Vec<Process> {
        self.other.beside(&self.first.name()).to_vec()
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        into.play_beside(&self.first.name(), &self.other);
        self.first.play(into)
    }
}

/// Run times of the two bounds, in seconds of the scaled machine.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Bounds {
    /// With everything in the fastest tier.
    pub all_fast_seconds: f64,
    /// With everything in the slowest tier that loads and stores reach.
    pub all_slow_seconds: f64,
}

/// One of several runs of a program: a machine and what manages it.
pub struct RunRequest {
    /// The machine, the size of its fast tier, and the rest.
    pub config: SimConfig,
    /// The policy.
    pub policy: Box<dyn Policy>,
    /// Whether every tier has room for all.
    unlimited: bool,
    /// What decides how large fast memory is while it runs.
    tuning: Option<Box<dyn Tuning>>,
}

impl RunRequest {
    /// A run under a policy.
    pub fn new(config: SimConfig, policy: Box<dyn Policy>) -> RunRequest {
        let unlimited = policy.profile().needs().unlimited_fast;
        RunRequest { config, policy, unlimited, tuning: None }
    }

    /// The same while `tuning` decides how large fast memory is.
    #[must_use]
    pub fn tuned(self, tuning: Box<dyn Tuning>) -> RunRequest {
        RunRequest { tuning: Some(tuning), ..self }
    }

    fn begin(self, future: Option<Future>) -> Result<Simulation, SimError> {
        let mut simulation = match self.unlimited {
            true => Simulation::unlimited(self.config, self.policy)?,
            false => Simulation::new(self.config, self.policy)?,
        };
        if let Some(future) = future {
            simulation.foresee(future);
        }
        if let Some(tuning) = self.tuning {
            simulation.tune_with(tuning);
        }
        Ok(simulation)
    }
}

/// Pages of all machines that [`run_together`] should hold at once: some 4 GiB at what a page costs a machine.
const PAGES_AT_ONCE: u64 = 1 << 27;
/// Machines that it should hold at once: what an interruption may cost, and what the host's caches keep near.
const MACHINES_AT_ONCE: u64 = 16;

/// How many machines to run together of a program of this size.
pub fn machines_at_once(footprint: Bytes) -> usize {
    (PAGES_AT_ONCE / footprint.pages().max(1)).clamp(1, MACHINES_AT_ONCE) as usize
}

/// Cuts the runs of each program into batches to [run together](run_together), of a number of machines at most: few, as the program runs once for each, but enough that `cores`
/// are busy to the end.
pub fn batches<T: Clone>(programs: impl IntoIterator<Item = (usize, Vec<T>)>, cores: usize) -> Vec<Vec<T>> {
    let programs: Vec<(usize, Vec<T>)> = programs.into_iter().collect();
    let cores = cores.max(1);
    let parts = match programs.len() {
        // A core that is done early has nothing else to take.
        0..=1 => cores,
        few if few < 3 * cores => (2 * cores).div_ceil(few),
        _ => 1,
    };
    let cut = |(most, runs): &(usize, Vec<T>)| -> Vec<Vec<T>> {
        let size = runs.len().div_ceil(parts).clamp(1, *most);
        runs.chunks(size).map(<[T]>::to_vec).collect()
    };
    programs.iter().flat_map(cut).collect()
}

/// Runs `source` under each of `requests`, in their order, without the bounds. The program runs once for all that lay it out
/// alike, and once more for each that must know its future; each report is that of a run alone.
pub fn run_together(requests: Vec<RunRequest>, source: &dyn Source) -> Vec<Result<Report, SimError>> {
    let begun: Vec<Result<Simulation, SimError>> = requests
        .into_iter()
        .map(|request| {
            let foresees = request.policy.profile().needs().future;
            let future = if foresees { Some(record_future(&request.config, source)?) } else { None };
            request.begin(future)
        })
        .collect();
    let boundaries: BTreeSet<u64> = begun.iter().flatten().map(Lockstep::boundary_of).collect();
    let mut results: Vec<Option<Result<Report, SimError>>> = begun.iter().map(|_| None).collect();
    let mut waiting: Vec<(usize, Simulation)> = Vec::new();
    for (at, begun) in begun.into_iter().enumerate() {
        match begun {
            Ok(simulation) => waiting.push((at, simulation)),
            Err(error) => results[at] = Some(Err(error)),
        }
    }
    for boundary in boundaries {
        let alike: Vec<(usize, Simulation)> =
            waiting.extract_if(.., |(_, simulation)| Lockstep::boundary_of(simulation) == boundary).collect();
        let (places, simulations): (Vec<usize>, Vec<Simulation>) = alike.into_iter().unzip();
        let mut lockstep = Lockstep::new(simulations);
        let played = source.play(&mut lockstep);
        for (at, simulation) in places.into_iter().zip(lockstep.into_simulations()) {
            // An error of the machine takes precedence over that of a source which stopped because of it.
            let report = simulation.finish(&source.name());
            results[at] = Some(report.and_then(|report| played.clone().map(|()| report)));
        }
    }
    results.into_iter().map(|result| result.expect("every run began or failed to")).collect()
}

/// The two runs of [`bounds`]: everything fast, everything slow.
///
/// # Errors
/// When the configuration is out of range.
pub fn bounding(config: &SimConfig) -> Result<[RunRequest; 2], SimError> {
    config.capacities()?;
    let slow = config.machine.tiers.iter().rposition(|tier| tier.kind == terrace_machine::preset::TierKind::Memory);
    Ok([TierId::FAST, TierId(slow.unwrap_or(0) as u8)].map(|tier| {
        let mut config = config.clone();
        config.watch = None;
        RunRequest { config, policy: Box::new(Fixed(tier)), unlimited: true, tuning: None }
    }))
}

impl Bounds {
    /// The bounds, of the reports of the runs that [`bounding`] asks for.
    pub fn of([fast, slow]: [&Report; 2]) -> Bounds {
        Bounds { all_fast_seconds: fast.seconds, all_slow_seconds: slow.seconds }
    }
}

/// Runs `source` with everything fast and with everything slow. They depend on neither policy nor size of the fast tier.
///
/// # Errors
/// As [`run`].
pub fn bounds(config: &SimConfig, source: &dyn Source) -> Result<Bounds, SimError> {
    let runs = run_together(bounding(config)?.into(), source).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(Bounds::of([&runs[0], &runs[1]]))
}

/// Runs `source` under `policy`, without the bounds.
///
/// # Errors
/// When the configuration is out of range, the source fails, or the machine runs out of memory.
pub fn run_alone(config: &SimConfig, source: &dyn Source, policy: Box<dyn Policy>) -> Result<Report, SimError> {
    run_together(vec![RunRequest::new(config.clone(), policy)], source).remove(0)
}

/// Plays `source` into one simulation.
///
/// # Errors
/// Those of the simulation first: a source may have stopped because of it.
pub(crate) fn play_alone(simulation: Simulation, source: &dyn Source) -> (Simulation, Result<(), SimError>) {
    let mut lockstep = Lockstep::new(vec![simulation]);
    let played = source.play(&mut lockstep);
    (lockstep.into_simulations().remove(0), played)
}

/// Runs `source` under `policy` while `tuning` decides how large fast memory is, without the bounds.
///
/// # Errors
/// As [`run_alone`].
pub fn run_tuned(
    config: &SimConfig,
    source: &dyn Source,
    policy: Box<dyn Policy>,
    tuning: Box<dyn Tuning>,
) -> Result<Report, SimError> {
    run_together(vec![RunRequest::new(config.clone(), policy).tuned(tuning)], source).remove(0)
}

/// Plays the source once to write down what it will use. The machine's cache is the same; where pages lie is of no account.
fn record_future(config: &SimConfig, source: &dyn Source) -> Result<Future, SimError> {
    let mut config = config.clone();
    config.watch = None;
    let mut simulation = Simulation::unlimited(config, Box::new(Fixed(TierId::FAST)))?;
    simulation.record_future();
    let (simulation, played) = play_alone(simulation, source);
    played.and_then(|()| simulation.take_future())
}

/// Runs `source` under `policy` and compares with `bounds`, or runs those as well.
///
/// # Errors
/// As [`run_alone`].
pub fn run(
    config: &SimConfig,
    source: &dyn Source,
    policy: Box<dyn Policy>,
    known: Option<Bounds>,
) -> Result<Report, SimError> {
    let mut report = run_alone(config, source, policy)?;
    let bounds = match known {
        Some(bounds) => bounds,
        None => bounds(config, source)?,
    };
    report.compare_with(&bounds);
    Ok(report)
}

impl Report {
    /// Fills in slowdown and gain.
    pub fn compare_with(&mut self, bounds: &Bounds) {
        if self.seconds > 0.0 && bounds.all_fast_seconds > 0.0 {
            self.slowdown_vs_all_fast = Some(self.seconds / bounds.all_fast_seconds);
            self.gain_over_all_slow = Some(bounds.all_slow_seconds / self.seconds);
        }
    }
}
