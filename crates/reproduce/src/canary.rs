//! Canaries: short runs whose every figure is hashed, so that a kept result tells whether this program would compute it again.
//!
//! In: what a run depends on. Out: a [`Canary`] for each part of it, and what that comes to. Must not: know a kept result, or read a source.
//!
//! | canary | what runs | what it covers |
//! |---|---|---|
//! | [`Canary::Program`] | the run's program as small as it can be, with its options and threads | every access and event of it, and its answer |
//! | [`Canary::Machine`] | the [`Exercise`] on the run's machine under [`Turns`], which knows no policy | caches, TLBs, MMU, tiers, new pages; on swap moves, and how the governor paces them |
//! | [`Canary::Policy`] | the exercise on that machine under the policy with its settings; where cases say `at`, also limited | what the policy decides, and all of engine, governor and machine that it sets to work |
//! | [`Canary::Sizing`] | the same watched or tuned, or asked what the database predicts | database, tuner, forecast |
//! | [`Canary::Query`] | a small database | the same without a run |
//!
//! A report is hashed whole, with its series, maps and the policy's figures, to the digits that results keep: [`DIGITS`]. All run at one scale and with
//! one seed. What shows only in larger runs these cannot see: `make rows-sample` runs kept runs again whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use terrace_core::observation::Observations;
use terrace_core::pages::Pages;
use terrace_core::plan::{MoveRequests, Reason};
use terrace_core::policy::{CapacityView, Needs, Policy, PolicyReport, Profile, Schedule};
use terrace_core::units::{Bytes, PageId, TierId, Time};
use terrace_machine::preset::{Machine, TierKind};
use terrace_machine::scale::Scale;
use terrace_sim::run::{RunRequest, run_together};
use terrace_sim::{FastSize, Report, SimConfig, SimError};
use terrace_sizing::database::{Origin, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::{Database, Index, model};
use terrace_workloads::program::LEAST_BYTES;
use terrace_workloads::{Answer, Parameters, TraceSummary, WorkloadError};

use crate::QUICK_SCALE;
use crate::case::{Case, Fast, Limit, Operations, Setting};
use crate::digest::digest_of;
use crate::error::RunError;
use crate::exercise::{Exercise, THREADS};
use crate::outcome::{Asked, DIGITS, Outcome, round_to};
use crate::run::{Plan, Runs};

/// The exercise's memory: on a machine made this small it is what tens of gigabytes are at full size.
const SIZE: Bytes = Bytes::mib(8);
/// The same where pages of 2 MiB are whole: some thirty of them.
const SIZE_OF_BLOCKS: Bytes = Bytes::mib(64);
/// Fast memory, of the exercise's.
const FAST_SHARE: f64 = 0.2;
/// The share of the peak to which a limited exercise is held.
const LIMITED_SHARE: f64 = 0.5;
/// The largest program that is tried: each is run as small as it can be built.
const MOST_BYTES: u64 = 256 << 20;
/// Programs whose usual amount of work is many times the same: once or twice is enough.
const OPERATIONS: [(&str, u64); 3] = [("gap-", 2), ("graph500", 2), ("ligra-pagerank", 2)];
/// Records of the database that canaries ask.
const RECORDS: u64 = 64;
/// Between two turns of [`Turns`], at full size.
const TURN: std::time::Duration = std::time::Duration::from_millis(500);

/// Where a canary runs.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Place {
    machine: String,
    huge: bool,
    mmu_miss_cycles: Option<u32>,
}

/// See the module's header.
#[derive(Clone, Debug, Serialize)]
pub(crate) enum Canary {
    Program { name: String, options: BTreeMap<String, String>, threads: usize },
    Machine { place: Place },
    Policy { place: Place, policy: String, settings: BTreeMap<String, String>, limit: Option<Held> },
    Sizing { place: Place, policy: String, settings: BTreeMap<String, String>, at: Limit, shares: Vec<f64>, room: f64 },
    Query { machine: String },
}

/// How a limited exercise is held.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Held {
    /// Fast memory over the peak.
    room: f64,
    /// Whether it also runs with no limit at all.
    unlimited: bool,
}

/// Those of a run.
pub(crate) struct Canaries {
    pub program: Canary,
    pub machine: Canary,
    pub policy: Canary,
    pub sizing: Option<Canary>,
}

impl Canaries {
    /// Those of a case whose policy has these settings.
    pub(crate) fn of(case: &Case, settings: &BTreeMap<String, String>, asked: &Asked) -> Canaries {
        let Setting { workload, options, threads, machine, huge, mmu_miss_cycles, room_over_peak, .. } = &case.setting;
        let place = Place { machine: machine.clone(), huge: *huge, mmu_miss_cycles: *mmu_miss_cycles };
        let (policy, settings) = (case.policy.clone(), settings.clone());
        let held = |at: &Limit| Held { room: *room_over_peak, unlimited: *at == Limit::Unlimited };
        let asks = case.needs_database() || !asked.shares.is_empty();
        let sizing = case.at.as_ref().filter(|_| asks).map(|at| Canary::Sizing {
            place: place.clone(),
            policy: policy.clone(),
            settings: settings.clone(),
            at: at.clone(),
            shares: asked.shares.clone(),
            room: *room_over_peak,
        });
        Canaries {
            program: Canary::Program { name: workload.clone(), options: options.clone(), threads: *threads },
            machine: Canary::Machine { place: place.clone() },
            policy: Canary::Policy { place, policy, settings, limit: case.at.as_ref().map(held) },
            sizing,
        }
    }

    /// All of them.
    pub(crate) fn all(self) -> impl Iterator<Item = Canary> {
        [self.program, self.machine, self.policy].into_iter().chain(self.sizing)
    }
}

impl Canary {
    /// What it is known by.
    pub(crate) fn key(&self) -> String {
        serde_json::to_string(self).expect("its keys are texts")
    }

    /// That of the time of queries.
    pub(crate) fn query(machine: &str) -> Canary {
        Canary::Query { machine: machine.to_owned() }
    }

    /// Runs it.
    ///
    /// # Errors
    /// When the machine, the policy or the program refuses to run.
    pub(crate) fn run(&self) -> Result<String, RunError> {
        match self {
            Canary::Program { name, options, threads } => Ok(program(name, options, *threads)?),
            Canary::Machine { place } => {
                let (case, config, turns) = unmanaged(place)?;
                digest(&[&exercised(RunRequest::new(config, Box::new(turns)), &case)?])
            }
            Canary::Policy { place, policy, settings, limit } => {
                let reports = policy_reports(place, policy, settings, *limit)?;
                digest(&reports.iter().collect::<Vec<_>>())
            }
            Canary::Sizing { place, policy, settings, at, shares, room } => {
                let mut runs = Runs::default();
                runs.take_index(&place.machine, Arc::new(index(&place.machine)?));
                let full = place.case(policy, settings.clone(), Some((Limit::Full, *room)));
                let (baseline, _) = limited(&full, shares, &runs)?;
                let mut shown = vec![serde_json::to_value(&baseline.figures).map_err(hashed)?];
                if *at != Limit::Full {
                    runs.take(&full.baseline(), 1, baseline);
                    let case = place.case(policy, settings.clone(), Some((at.clone(), *room)));
                    let (outcome, report) = limited(&case, &[], &runs)?;
                    shown.push(serde_json::to_value(&outcome.figures).map_err(hashed)?);
                    shown.push(serde_json::to_value(&outcome.shown.intervals).map_err(hashed)?);
                    shown.push(serde_json::to_value(&report).map_err(hashed)?);
                }
                digest(&shown.iter().collect::<Vec<_>>())
            }
            Canary::Query { machine } => {
                let index = index(machine)?;
                let (first, design) = (index.database().seconds(0).to_vec(), index.database().vectors().to_vec());
                let failed = |why: String| RunError::Database(why.into());
                let answers =
                    design.iter().map(|vector| index.query(vector, 3).map(|answer| answer.spread.0.loss(0.5)));
                let answers = answers.collect::<Result<Vec<f64>, _>>().map_err(|error| failed(error.to_string()))?;
                digest(&[&(first, answers)])
            }
        }
    }
}

/// The exercise under no policy. Where slow memory is swap there is fast memory for all, so that only what the governor lets through leaves.
fn unmanaged(place: &Place) -> Result<(Case, SimConfig, Turns), RunError> {
    let machine = Machine::preset(&place.machine).map_err(SimError::from)?;
    let moves = machine.tiers.iter().any(|tier| tier.kind == TierKind::Compressed);
    let fast = FastSize::Share(if moves { 1.0 } else { FAST_SHARE });
    let case = place.case("", BTreeMap::new(), None);
    let config = plan(&case, &[]).config(&case, machine, 1, size(&case), fast);
    Ok((case, config, Turns { moves, next: Time::ZERO, page: 0 }))
}

/// The reports of a policy's canary: with a share of fast memory, or held as cases that say `at` are.
pub(crate) fn policy_reports(
    place: &Place,
    policy: &str,
    settings: &BTreeMap<String, String>,
    limit: Option<Held>,
) -> Result<Vec<Report>, RunError> {
    let Some(Held { room, unlimited }) = limit else {
        let case = place.case(policy, settings.clone(), None);
        let (request, _) = plan(&case, &[]).prepare(&case, 1, &Runs::default())?;
        return Ok(vec![exercised(request, &case)?]);
    };
    let case = |at| place.case(policy, settings.clone(), Some((at, room)));
    let full = case(Limit::Full);
    let mut runs = Runs::default();
    let (baseline, report) = limited(&full, &[], &runs)?;
    runs.take(&full.baseline(), 1, baseline);
    let mut reports = vec![report, limited(&case(Limit::Share(LIMITED_SHARE)), &[], &runs)?.1];
    if unlimited {
        reports.push(limited(&case(Limit::Unlimited), &[], &runs)?.1);
    }
    Ok(reports)
}

impl Place {
    /// The exercise here.
    fn case(&self, policy: &str, settings: BTreeMap<String, String>, limit: Option<(Limit, f64)>) -> Case {
        let blocks = self.huge && self.mmu_miss_cycles.is_some();
        let size = if blocks { SIZE_OF_BLOCKS } else { SIZE };
        let (at, room_over_peak) = limit.map_or((None, 1.0), |(at, room)| (Some(at), room));
        let setting = Setting {
            workload: "exercise".to_owned(),
            size: Bytes::new(size.get() * u64::from(QUICK_SCALE)),
            fast: at.is_none().then_some(Fast::Share(FAST_SHARE)),
            threads: THREADS,
            machine: self.machine.clone(),
            huge: self.huge,
            options: BTreeMap::new(),
            operations: Operations::Usual,
            mmu_miss_cycles: self.mmu_miss_cycles,
            scale_at_most: None,
            quick_scale_at_most: None,
            room_over_peak,
        };
        let (policy, policy_settings) = (policy.to_owned(), settings);
        Case { setting_name: String::new(), setting, policy, policy_settings, at, bounds: false }
    }
}

/// The plan of one canary, of which these shares are asked.
fn plan(case: &Case, shares: &[f64]) -> Plan<'static> {
    let scale = Scale::new(QUICK_SCALE).expect("it is a scale");
    Plan::of_one(scale, case, Asked { shares: shares.to_vec(), ..Asked::default() })
}

fn size(case: &Case) -> Bytes {
    Bytes::new(case.setting.size.get() / u64::from(QUICK_SCALE))
}

fn exercised(request: RunRequest, case: &Case) -> Result<Report, RunError> {
    let report = run_together(vec![request], &Exercise::new(size(case))).pop().expect("one was asked for");
    Ok(report?)
}

/// A run of a case that says `at`.
fn limited(case: &Case, shares: &[f64], runs: &Runs) -> Result<(Outcome, Report), RunError> {
    let (request, after) = plan(case, shares).prepare(case, 1, runs)?;
    let report = exercised(request, case)?;
    Ok((after.outcome(&report)?, report))
}

/// The program as small as it can be, with every access.
fn program(name: &str, options: &BTreeMap<String, String>, threads: usize) -> Result<String, WorkloadError> {
    let mut bytes = LEAST_BYTES;
    loop {
        let mut parameters = Parameters::new(bytes);
        (parameters.threads, parameters.options) = (threads, options.clone());
        parameters.operations =
            OPERATIONS.iter().find(|(of, _)| name.starts_with(of)).map(|(_, operations)| *operations);
        match terrace_workloads::build(name, &parameters) {
            Err(_) if bytes < MOST_BYTES => bytes *= 2,
            Err(error) => return Err(error),
            Ok(_) => {
                let mut seen = TraceSummary::new();
                let Answer { operations, checksum, .. } = terrace_workloads::run_traced(name, &parameters, &mut seen)?;
                let TraceSummary { hash, peak_pages, barriers, phases, .. } = &seen;
                return Ok(digest_of(format!("{hash:x} {peak_pages} {barriers} {phases:?} {operations} {checksum:x}")));
            }
        }
    }
}

/// A small database of a machine.
fn index(machine: &str) -> Result<Index, RunError> {
    let failed = |why: String| RunError::Database(why.into());
    let machine = Machine::preset(machine).map_err(SimError::from)?;
    let design = Design::new(&machine, 1);
    let (mut vectors, mut seconds) = (Vec::new(), Vec::new());
    for number in 0..RECORDS {
        let vector = design.vector(number);
        let times = model::record(&vector, &machine, FastDivisor::default());
        seconds.extend(times.map_err(|error| failed(error.to_string()))?);
        vectors.push(vector);
    }
    let machine_checksum = machine_checksum(&machine);
    let origin = Origin { machine: machine.name, machine_checksum, seed: 1, fast_divisor: FastDivisor::default() };
    let database = Database::new(origin, vectors, seconds).map_err(|error| failed(error.to_string()))?;
    Index::new(database).map_err(|error| failed(error.to_string()))
}

fn hashed(error: serde_json::Error) -> RunError {
    RunError::Fingerprint(error.to_string())
}

/// The digest of figures, to the digits that are kept.
fn digest(figures: &[&impl Serialize]) -> Result<String, RunError> {
    let mut all = serde_json::to_value(figures).map_err(hashed)?;
    round(&mut all);
    Ok(digest_of(all.to_string()))
}

fn round(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(values) => values.values_mut().for_each(round),
        Value::Number(number) => {
            if let Some(mut rounded) = number.as_f64().filter(|_| number.is_f64()) {
                round_to(&mut rounded, DIGITS);
                *value = rounded.into();
            }
        }
        _ => {}
    }
}

/// Decides without looking: new pages go to fast and slow memory in turns; on swap, pages change places in turns as well.
struct Turns {
    moves: bool,
    next: Time,
    page: usize,
}

/// Pages that one turn of [`Turns`] asks to move.
const PAGES_A_TURN: usize = 48;

impl Policy for Turns {
    fn profile(&self) -> Profile {
        Profile::new("turns", Needs::default())
    }

    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}

    fn plan(&mut self, now: Time, capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        if !self.moves || now < self.next {
            return;
        }
        self.next = now + TURN;
        let all = pages.capacity();
        if all == 0 {
            return;
        }
        for _ in 0..PAGES_A_TURN {
            // Any step that shares no factor with the number of pages meets all of them.
            self.page = (self.page + 7) % all;
            let page = PageId(self.page as u32);
            match pages[page].tier() {
                Some(TierId::FAST) => requests.move_to(page, capacity.slowest(), Reason::Cold),
                Some(_) => requests.move_to(page, TierId::FAST, Reason::Hot),
                None => continue,
            };
        }
    }

    fn place(&mut self, _now: Time, page: PageId, capacity: &CapacityView<'_>) -> TierId {
        if (self.moves || page.0.is_multiple_of(2)) && capacity.fast_room() > 0 {
            TierId::FAST
        } else {
            capacity.slowest()
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule { wake_at: self.moves.then_some(self.next), ..Schedule::default() }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Experiments, Options, Row};

    /// Policies that place pages and leave them, or manage no memory by software.
    const STILL: [&str; 6] = ["all-fast", "all-slow", "first-touch", "interleave", "memory-mode", "pond-static"];

    fn place(machine: &str) -> Place {
        Place { machine: machine.to_owned(), huge: false, mmu_miss_cycles: None }
    }

    fn policy(machine: &str, name: &str, settings: &[(&str, &str)]) -> Canary {
        let settings = settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Canary::Policy { place: place(machine), policy: name.to_owned(), settings, limit: None }
    }

    fn program_of(name: &str, options: &[(&str, &str)]) -> Canary {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Canary::Program { name: name.to_owned(), options, threads: 2 }
    }

    /// Those of every row that comes with Terrace.
    fn all() -> BTreeMap<String, Canary> {
        let experiments = Experiments::built_in().unwrap();
        let rows: Vec<&Row> = experiments.rows.iter().collect();
        let plan = Plan::new(rows, Options { scale: QUICK_SCALE, seeds: vec![1], set: Vec::new() }).unwrap();
        let cases = plan.first.iter().chain(&plan.second).map(|(case, _)| case);
        plan.canaries(cases).map(|canary| (canary.key(), canary)).collect()
    }

    /// A policy that moves nothing in its canary could change without being noticed.
    #[test]
    fn each_policy_promotes_and_demotes_in_its_canary() {
        let (mut seen, mut still) = (BTreeSet::new(), Vec::new());
        for canary in all().into_values() {
            let Canary::Policy { place, policy, settings, limit: None } = canary else { continue };
            // One place of each policy with each of its settings.
            if STILL.contains(&policy.as_str()) || !seen.insert((policy.clone(), settings.clone())) {
                continue;
            }
            let report = policy_reports(&place, &policy, &settings, None).unwrap().remove(0);
            // AutoNUMA fills room, and leaves pages that are slow by then to nobody.
            let demotes = policy == "autonuma" || report.demoted_pages > 0;
            if report.promoted_pages == 0 || !demotes {
                still.push(format!(
                    "{policy} {settings:?}: {} up, {} down",
                    report.promoted_pages, report.demoted_pages
                ));
            }
        }
        assert_eq!(still, Vec::<String>::new());
        assert!(seen.len() > 20, "{}", seen.len());
    }

    #[test]
    fn a_limit_makes_policies_demote() {
        let held = Some(Held { room: 1.05, unlimited: true });
        for policy in ["tpp", "flexmem"] {
            let [full, half, unlimited] =
                &policy_reports(&place("optane-6252"), policy, &BTreeMap::new(), held).unwrap()[..]
            else {
                panic!("three runs")
            };
            assert!(half.demoted_pages > full.demoted_pages && half.demoted_pages > 0, "{policy}");
            assert!(half.seconds > unlimited.seconds, "{policy}");
        }
    }

    #[test]
    fn a_canary_comes_to_the_same_each_time() {
        for canary in [policy("cxl-170", "hemem", &[]), program_of("gups", &[]), Canary::query("cxl-170")] {
            assert_eq!(canary.run().unwrap(), canary.run().unwrap());
        }
    }

    #[test]
    fn what_a_policy_does_otherwise_shows_in_its_canary() {
        let mut same = Vec::new();
        for (name, settings) in [
            ("flexmem", ("fault_profiler", "off")),
            ("memtis", ("cool_samples", "500000")),
            ("tpp", ("touches", "3")),
            ("tiering08", ("rate", "120MiB")),
            ("flexhm", ("plan", "conservative")),
            ("tieredmms", ("cool_period", "500000")),
        ] {
            let [usual, other] = [&[][..], &[settings]].map(|given| policy("optane-6252", name, given).run().unwrap());
            same.extend((usual == other).then_some((name, settings)));
        }
        assert_eq!(same, []);
    }

    #[test]
    fn what_a_program_does_otherwise_shows_in_its_canary() {
        let usual = program_of("gups", &[]).run().unwrap();
        for other in [program_of("gups", &[("hot", "0.2")]), program_of("gups", &[("hot_updates", "0.8")])] {
            assert_ne!(usual, other.run().unwrap(), "{other:?}");
        }
    }

    #[test]
    fn what_a_machine_does_otherwise_shows_where_it_counts() {
        let usual = "optane-6252";
        let machine = |name: &str| Canary::Machine { place: place(name) }.run().unwrap();
        assert_ne!(machine(usual), machine("optane-6252 processor.memory_parallelism=4"));
        // Nothing moves under no policy: what a move costs is no concern of those that move nothing.
        let dear = "optane-6252 management.move_small=300us";
        let run = |name: &str, of: &str| policy(name, of, &[]).run().unwrap();
        assert_ne!(run(usual, "memtis"), run(dear, "memtis"));
    }

    /// As if a constant of the governor's pace were another.
    #[test]
    fn the_pace_of_page_outs_shows_where_slow_memory_is_swap() {
        let run = |machine: &str, max_slowdown: f64| {
            let (case, mut config, turns) = unmanaged(&place(machine)).unwrap();
            config.governor.max_slowdown = max_slowdown;
            exercised(RunRequest::new(config, Box::new(turns)), &case).unwrap()
        };
        let (quick, slow) = (run("zram-vm", 0.02), run("zram-vm", 0.001));
        assert!(
            quick.demoted_pages > 0 && quick.promoted_pages > 0,
            "{} {}",
            quick.demoted_pages,
            quick.promoted_pages
        );
        assert_ne!(quick.demoted_pages, slow.demoted_pages);
        assert_ne!(digest(&[&quick]).unwrap(), digest(&[&slow]).unwrap());
        let [one, other] = [0.02, 0.001].map(|cost| digest(&[&run("optane-6252", cost)]).unwrap());
        assert_eq!(one, other, "nothing moves there");
    }
}
