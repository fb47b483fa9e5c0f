//! Runs the cases of rows on modelled hardware, each distinct one once a seed; those of one program in lockstep.
//!
//! In: rows, scale, seeds. Out: [`Runs`]. Must not: compare runs, or know what a row asks of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rayon::prelude::*;
use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::{Bounds, batches, bounding, machines_at_once, run_together};
use terrace_sim::{SimConfig, WorkloadSource};
use terrace_sizing::Index;
use terrace_tuning::Interval;

use crate::case::{Case, Limit};
use crate::error::{Error, RunError};
use crate::experiments::Row;
use crate::measure::Measure;
use crate::outcome::{Asked, Outcome};
use crate::prepare::bounds_of;
use crate::query::Query;
use crate::stop::{Stop, Stoppable};
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
pub(crate) struct Other {
    pub policy: String,
    pub key: String,
    pub value: String,
}

/// Makes the performance database of a machine ready for queries.
pub type Database<'a> = &'a (dyn Fn(&Machine) -> Result<Index, Box<dyn std::error::Error + Send + Sync>> + Sync);

/// What is to be run.
pub struct Plan<'a> {
    pub(crate) rows: Vec<&'a Row>,
    pub(crate) options: Options,
    pub(crate) scale: Scale,
    pub(crate) others: Vec<Other>,
    asked: BTreeMap<String, Asked>,
    /// Distinct runs: those that need no other run, and those that need the peak of one of these.
    pub(crate) first: Vec<(Case, u64)>,
    pub(crate) second: Vec<(Case, u64)>,
}

/// All runs, and the databases that predict.
#[derive(Default)]
pub struct Runs {
    outcomes: BTreeMap<(String, u64), Outcome>,
    indices: BTreeMap<String, Arc<Index>>,
    queries: BTreeMap<String, Query>,
}

impl Runs {
    /// The run of a case.
    pub(crate) fn of(&self, case: &Case, seed: u64) -> Option<&Outcome> {
        self.outcomes.get(&(case.to_string(), seed))
    }

    /// Takes a run over.
    pub(crate) fn take(&mut self, case: &Case, seed: u64, outcome: Outcome) {
        self.outcomes.insert((case.to_string(), seed), outcome);
    }

    /// How long the database of a machine takes to answer.
    pub(crate) fn query(&self, machine: &str) -> Option<&Query> {
        self.queries.get(machine)
    }

    /// Takes that over.
    pub(crate) fn take_query(&mut self, machine: &str, query: Query) {
        self.queries.insert(machine.to_owned(), query);
    }

    /// Takes the database of a machine.
    pub(crate) fn take_index(&mut self, machine: &str, index: Arc<Index>) {
        self.indices.insert(machine.to_owned(), index);
    }

    /// Takes the database of a machine over from others.
    pub(crate) fn share_index(&mut self, machine: &str, other: &Runs) {
        if let Some(index) = other.indices.get(machine) {
            self.indices.insert(machine.to_owned(), index.clone());
        }
    }

    /// Makes the database of a machine ready, if it is not.
    pub(crate) fn prepare_index(&mut self, name: &str, database: Database<'_>) -> Result<(), Error> {
        if !self.indices.contains_key(name) {
            let failed = |source| Error::Run { case: format!("the database of {name}"), seed: 0, source };
            let machine = Machine::preset(name).map_err(|error| failed(RunError::Simulation(error.into())))?;
            let index = database(&machine).map_err(|why| failed(RunError::Database(why)))?;
            self.indices.insert(name.to_owned(), Arc::new(index));
        }
        Ok(())
    }

    /// Times the queries of a machine's database, if that was not done.
    pub(crate) fn prepare_query(&mut self, name: &str, database: Database<'_>) -> Result<(), Error> {
        self.prepare_index(name, database)?;
        if let (Some(index), None) = (self.indices.get(name), self.queries.get(name)) {
            let failed = |why: String| Error::Measure { id: format!("the database of {name}"), why };
            let query = Query::time(index.database()).map_err(|error| failed(error.to_string()))?;
            self.queries.insert(name.to_owned(), query);
        }
        Ok(())
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
        of_plan.map(|((case, seed), outcome)| (case.as_str(), *seed, outcome))
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
        let asked = Asked::of(rows.iter().copied());
        Ok(Plan { rows, options, scale, others, asked, first, second })
    }

    /// That of a single case of no row.
    pub(crate) fn of_one(scale: Scale, case: &Case, asked: Asked) -> Plan<'static> {
        let options = Options { scale: scale.factor(), seeds: vec![1], set: Vec::new() };
        let asked = [(case.to_string(), asked)].into();
        Plan { rows: Vec::new(), options, scale, others: Vec::new(), asked, first: Vec::new(), second: Vec::new() }
    }

    /// The settings of a case's policy, with those that take the place of its own.
    pub(crate) fn settings_of(&self, case: &Case) -> BTreeMap<String, String> {
        let mut settings = case.policy_settings.clone();
        let for_it = self.others.iter().filter(|other| other.policy == case.policy);
        settings.extend(for_it.map(|other| (other.key.clone(), other.value.clone())));
        settings
    }

    /// Asks of its runs what these rows want of them as well, so that what one plan runs serves the others.
    pub fn ask_also<'r>(&mut self, rows: impl IntoIterator<Item = &'r Row>) {
        let mut all: Vec<&Row> = rows.into_iter().collect();
        all.extend(&self.rows);
        self.asked = Asked::of(all.into_iter());
    }

    /// What only some rows want of a run.
    pub(crate) fn asked_of(&self, case: &Case) -> Asked {
        self.asked.get(&case.to_string()).cloned().unwrap_or_default()
    }

    /// Whether a run is there, with all that is asked of it.
    fn has(&self, runs: &Runs, case: &Case, seed: u64) -> bool {
        runs.of(case, seed).is_some_and(|run| self.asked_of(case).is_answered_by(&run.figures))
    }

    /// How many of its runs another one lacks.
    pub fn lacks(&self, runs: &Runs) -> usize {
        self.first.iter().chain(&self.second).filter(|(case, seed)| !self.has(runs, case, *seed)).count()
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
        self.tuned_cases().filter_map(move |case| Some((case, runs.of(case, seed)?.shown.intervals.as_slice())))
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
        for row in &self.rows {
            for name in &row.machines {
                match row.measure {
                    Measure::DatabaseQuery => runs.prepare_query(name, database)?,
                    _ => runs.prepare_index(name, database)?,
                }
            }
        }
        let never = Stop::never();
        for part in [&self.first, &self.second] {
            let before: &Runs = runs;
            let left: Vec<&(Case, u64)> = part.iter().filter(|(case, seed)| !self.has(before, case, *seed)).collect();
            let programs = self.by_program(left).into_iter().map(|cases| (self.at_once(&cases[0].0), cases));
            let outcomes: Vec<Vec<_>> = batches(programs, rayon::current_num_threads())
                .into_par_iter()
                .map(|cases| {
                    let outcomes = self.together(&cases, before, &never);
                    cases.iter().for_each(|_| done());
                    outcomes
                })
                .collect::<Result<_, _>>()?;
            runs.outcomes.extend(outcomes.into_iter().flatten());
        }
        Ok(())
    }

    /// Runs by their program with its seed; within one, those on equal machines stand together.
    pub(crate) fn by_program<'c>(&self, cases: Vec<&'c (Case, u64)>) -> Vec<Vec<&'c (Case, u64)>> {
        let mut programs: BTreeMap<String, Vec<&(Case, u64)>> = BTreeMap::new();
        for one in cases {
            programs.entry(format!("{:?}", self.source(&one.0, one.1))).or_default().push(one);
        }
        let machine = |(case, _): &&(Case, u64)| (case.setting.machine.clone(), case.setting.huge);
        programs.values_mut().for_each(|cases| cases.sort_by_key(machine));
        programs.into_values().collect()
    }

    /// How many machines to run together of a case's program.
    pub(crate) fn at_once(&self, case: &Case) -> usize {
        machines_at_once(self.footprint(case))
    }

    fn source(&self, case: &Case, seed: u64) -> WorkloadSource {
        let parameters = case.setting.parameters(case.setting.scale(self.scale), seed);
        WorkloadSource { name: case.setting.workload.clone(), parameters }
    }

    pub(crate) fn footprint(&self, case: &Case) -> Bytes {
        case.setting.scale(self.scale).bytes(case.setting.size)
    }

    /// Runs cases of one program and seed: the program once, with the bounds of those that ask for them. None came to an end where it was
    /// told to stop.
    pub(crate) fn together(&self, cases: &[&(Case, u64)], runs: &Runs, stop: &Stop) -> Result<Vec<Done>, Error> {
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
        let source = Stoppable::new(self.source(&cases[0].0, cases[0].1), stop);
        let reports = run_together(requests, &source);
        if source.was_stopped() {
            return Ok(Vec::new());
        }
        let mut reports = reports.into_iter();
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
            let outcome = after.outcome(&report).map_err(|error| failed(one, error))?;
            outcomes.push(((one.0.to_string(), one.1), outcome));
        }
        Ok(outcomes)
    }
}

/// A run by its case and seed, with what it came to.
pub(crate) type Done = ((String, u64), Outcome);

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
