//! Runs what a store lacks, the cheapest first, within a time.
//!
//! In: a plan, a store, a budget. Out: the store, which has each run as soon as it is made; [`Filled`]. Must not: run what the store has and
//! this program would compute again, or lose a finished run to one that fails or is stopped.
//!
//! What a run costs is what it took before: itself with another fingerprint or seed, else others of its program at its scale, else by the program's
//! size. That is processor time; where others use the processors too, it takes as much longer as what was run since the start. Runs of one program on one scale are made together, so that the program runs once for them; towards the end a batch is cut so
//! that all cores are busy.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::canary::{Canaries, Canary};
use crate::case::Case;
use crate::error::Error;
use crate::measure::Measure;
use crate::origin::Origin;
use crate::run::{Database, Plan, Runs};
use crate::stop::Stop;
use crate::store::{Key, Record, Store, query_key};

/// Seconds of one core that a run takes for each 4 KiB page of its scaled program, where nothing of the kind was run before: the mean of all
/// rows on a core of 2020.
const SECONDS_A_PAGE: f64 = 1.5e-3;

/// Seconds that the performance database of a machine takes to be built, on such a core.
const SECONDS_A_DATABASE: f64 = 5.0;

/// How long runs may take, and on how many cores.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// From the call on; `None` to the end.
    pub time: Option<Duration>,
    /// Batches at a time.
    pub cores: usize,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Filled {
    /// Runs of the plan.
    pub runs: usize,
    /// Of these, those that the store had.
    pub kept: usize,
    /// Those that were made.
    pub made: usize,
    /// Those that are missing, or that this program would compute otherwise.
    pub missing: usize,
    /// Expected seconds of one core for these.
    pub missing_seconds: f64,
}

/// Runs of one program, scale and seed that are missing.
struct Batch {
    cases: Vec<(Case, u64)>,
    /// Expected seconds of each.
    each: f64,
}

impl Batch {
    fn seconds(&self) -> f64 {
        self.each * self.cases.len() as f64
    }
}

/// Of a worker that runs a batch: one that panics leaves nobody waiting for it.
struct Busy<'b, 's> {
    state: &'b Mutex<State<'s>>,
    changed: &'b Condvar,
}

impl Drop for Busy<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).busy -= 1;
            self.changed.notify_all();
        }
    }
}

/// What the workers share.
struct State<'s> {
    store: &'s mut Store,
    batches: Vec<Batch>,
    /// Batches under way.
    busy: usize,
    indices: Runs,
    made: usize,
    /// Seconds that passed in all batches, and seconds of processor time that they took.
    passed: f64,
    worked: f64,
    /// The first run that failed. The others go on.
    failed: Option<Error>,
    /// Whether the store cannot be written: nothing goes on.
    is_broken: bool,
}

impl Plan<'_> {
    /// The run of a case in the store.
    pub(crate) fn key(&self, case: &Case, seed: u64) -> Key {
        (case.to_string(), case.setting.scale(self.scale).factor(), seed)
    }

    /// Runs what the store lacks. `done` is called with how many runs were added.
    ///
    /// # Errors
    /// When a run fails, which is said once the others are made, or the store cannot be written. What was finished is in the store.
    pub fn fill(
        &self,
        store: &mut Store,
        budget: Budget,
        database: Database<'_>,
        done: &(dyn Fn(usize) + Sync),
    ) -> Result<Filled, Error> {
        let until = budget.time.map(|time| Instant::now() + time);
        store.prints.prepare(self.canaries(self.first.iter().chain(&self.second).map(|(case, _)| case)))?;
        let batches = self.missing(store)?;
        let queries = self.missing_queries(store)?;
        let runs = self.first.len() + self.second.len() + self.query_machines().count();
        let missing = batches.iter().map(|batch| batch.cases.len()).sum::<usize>() + queries.len();
        let mut state = State {
            store,
            batches,
            busy: 0,
            indices: Runs::default(),
            made: 0,
            passed: 0.0,
            worked: 0.0,
            failed: None,
            is_broken: false,
        };
        for machine in queries {
            if until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            let began = processor_seconds();
            state.indices.prepare_query(&machine, database)?;
            let (run, scale, seed) = query_key(&machine);
            let query = state.indices.query(&machine).cloned();
            let took = took(processor_seconds() - began);
            state.store.put(vec![Record {
                run,
                scale,
                seed,
                of: Origin::of_query(&machine, &state.store.prints)?,
                took,
                figures: None,
                query,
            }])?;
            state.made += 1;
            done(1);
        }
        let cores = budget.cores.max(1);
        let (state, changed) = (Mutex::new(state), Condvar::new());
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| self.work(&state, &changed, until, cores, database, done));
            }
        });
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = state.failed {
            return Err(error);
        }
        let missing_seconds = state.batches.iter().map(Batch::seconds).sum();
        Ok(Filled { runs, kept: runs - missing, made: state.made, missing: missing - state.made, missing_seconds })
    }

    /// Those of these cases.
    pub(crate) fn canaries<'c>(
        &'c self,
        cases: impl Iterator<Item = &'c Case> + 'c,
    ) -> impl Iterator<Item = Canary> + 'c {
        cases.flat_map(|case| Canaries::of(case, &self.settings_of(case), &self.asked_of(case)).all())
    }

    fn query_machines(&self) -> impl Iterator<Item = &String> {
        let rows = self.rows.iter().filter(|row| matches!(row.measure, Measure::DatabaseQuery));
        let machines: std::collections::BTreeSet<&String> = rows.flat_map(|row| &row.machines).collect();
        machines.into_iter()
    }

    fn missing_queries(&self, store: &Store) -> Result<Vec<String>, Error> {
        let mut missing = Vec::new();
        for machine in self.query_machines() {
            let of = Origin::of_query(machine, &store.prints)?;
            if store.get(&query_key(machine)).is_none_or(|record| record.of != of) {
                missing.push(machine.clone());
            }
        }
        Ok(missing)
    }

    /// The runs that the store lacks, by program.
    fn missing(&self, store: &Store) -> Result<Vec<Batch>, Error> {
        let costs = Costs::of(store);
        let mut batches = Vec::new();
        for part in [&self.first, &self.second] {
            let mut lacking = Vec::new();
            for one @ (case, seed) in part {
                if store.current(self, case, *seed)?.is_none() {
                    lacking.push(one);
                }
            }
            for cases in self.by_program(lacking) {
                let each: f64 = cases.iter().map(|(case, _)| costs.expect(self, case)).sum();
                let each = each / cases.len() as f64;
                batches.push(Batch { cases: cases.into_iter().cloned().collect(), each });
            }
        }
        Ok(batches)
    }

    /// Takes batches until none is left that fits.
    fn work(
        &self,
        state: &Mutex<State<'_>>,
        changed: &Condvar,
        until: Option<Instant>,
        cores: usize,
        database: Database<'_>,
        done: &(dyn Fn(usize) + Sync),
    ) {
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut guard = lock();
        loop {
            if guard.is_broken {
                return;
            }
            let left =
                until.map_or(f64::INFINITY, |until| until.saturating_duration_since(Instant::now()).as_secs_f64());
            let next = match self.next(&mut guard, left, cores, until.is_some()) {
                Ok(next) => next,
                Err(error) => {
                    (guard.failed, guard.is_broken) = (Some(error), true);
                    changed.notify_all();
                    return;
                }
            };
            let Some(batch) = next else {
                // One under way may be what another waits for.
                if guard.busy == 0 || guard.batches.is_empty() {
                    return;
                }
                guard = changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let made = self.prepared(&mut guard, &batch, database);
            guard.busy += 1;
            drop(guard);
            let (began, worked) = (Instant::now(), processor_seconds());
            let made = {
                let _busy = Busy { state, changed };
                made.and_then(|runs| self.together(&batch.cases.iter().collect::<Vec<_>>(), &runs, &Stop::at(until)))
            };
            let seconds = processor_seconds() - worked;
            guard = lock();
            guard.busy -= 1;
            guard.passed += began.elapsed().as_secs_f64();
            guard.worked += seconds;
            let kept = made.and_then(|made| self.keep(&mut guard, &batch, made, seconds));
            match kept {
                Ok(0) => guard.batches.push(batch),
                Ok(count) => done(count),
                Err(error) => {
                    guard.is_broken |= !matches!(error, Error::Run { .. });
                    guard.failed.get_or_insert(error);
                }
            }
            changed.notify_all();
        }
    }

    /// The batch of the cheapest runs that can be made and fits into what is left of the time, cut where it is too large. Without a limit of time the
    /// dearest comes first, so that no core waits for it at the end.
    fn next(
        &self,
        state: &mut MutexGuard<'_, State<'_>>,
        left: f64,
        cores: usize,
        is_limited: bool,
    ) -> Result<Option<Batch>, Error> {
        let all: f64 = state.batches.iter().map(Batch::seconds).sum();
        let slower = if state.worked > 0.0 { (state.passed / state.worked).max(1.0) } else { 1.0 };
        let mut best: Option<(usize, f64)> = None;
        for (place, batch) in state.batches.iter().enumerate() {
            let order = if is_limited { batch.each } else { -batch.seconds() };
            let builds = self.machine_asked(batch).is_some_and(|machine| state.indices.index(machine).is_none());
            let least = batch.each + if builds { SECONDS_A_DATABASE } else { 0.0 };
            if least * slower <= left
                && best.is_none_or(|(_, other)| order < other)
                && self.is_ready(state.store, batch)?
            {
                best = Some((place, order));
            }
        }
        let Some((place, _)) = best else { return Ok(None) };
        // A part of what is left to do for each core, so that they end together.
        let share = if cores > 1 { all / (2 * cores) as f64 } else { f64::INFINITY };
        let fits =
            ((left / slower).min(share.max(state.batches[place].each)) / state.batches[place].each.max(1e-9)) as usize;
        let count = fits.clamp(1, self.at_once(&state.batches[place].cases[0].0)).min(state.batches[place].cases.len());
        let each = state.batches[place].each;
        let rest = state.batches[place].cases.split_off(count);
        let batch = state.batches.swap_remove(place);
        if !rest.is_empty() {
            state.batches.push(Batch { cases: rest, each });
        }
        Ok(Some(batch))
    }

    /// The machine whose database a batch needs first, if it needs one.
    fn machine_asked<'b>(&self, batch: &'b Batch) -> Option<&'b str> {
        batch.cases.iter().find(|(case, _)| self.asks_database(case)).map(|(case, _)| case.setting.machine.as_str())
    }

    pub(crate) fn asks_database(&self, case: &Case) -> bool {
        case.needs_database() || !self.asked_of(case).shares.is_empty()
    }

    /// Whether the runs with everything fast that its runs need are there.
    fn is_ready(&self, store: &Store, batch: &Batch) -> Result<bool, Error> {
        for (case, seed) in &batch.cases {
            if self.needs_baseline(case) && store.current(self, &case.baseline(), *seed)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn needs_baseline(&self, case: &Case) -> bool {
        case.at.is_some() && *case != case.baseline()
    }

    /// What the runs of a batch need of others: runs with everything fast, databases.
    fn prepared(
        &self,
        state: &mut MutexGuard<'_, State<'_>>,
        batch: &Batch,
        database: Database<'_>,
    ) -> Result<Runs, Error> {
        let mut runs = Runs::default();
        for (case, seed) in &batch.cases {
            if self.asks_database(case) {
                let machine = &case.setting.machine;
                state.indices.prepare_index(machine, database)?;
                runs.share_index(machine, &state.indices);
            }
            if self.needs_baseline(case) {
                let baseline = case.baseline();
                let found = state.store.usable(self, &baseline, *seed);
                if let Some(outcome) = found.and_then(Record::outcome) {
                    runs.take(&baseline, *seed, outcome);
                }
            }
        }
        Ok(runs)
    }

    /// Puts what was made into the store; how many runs that were.
    fn keep(
        &self,
        state: &mut MutexGuard<'_, State<'_>>,
        batch: &Batch,
        made: Vec<crate::run::Done>,
        seconds: f64,
    ) -> Result<usize, Error> {
        let count = made.len();
        let mut outcomes: BTreeMap<(String, u64), _> = made.into_iter().collect();
        let mut records = Vec::new();
        for (case, seed) in &batch.cases {
            let Some(outcome) = outcomes.remove(&(case.to_string(), *seed)) else { continue };
            let asked = self.asked_of(case);
            let (run, scale, seed) = self.key(case, *seed);
            let of = Origin::of(self, case, &state.store.prints)?;
            let figures = Some(outcome.figures.kept(&asked));
            records.push(Record { run, scale, seed, of, took: took(seconds / count as f64), figures, query: None });
        }
        let Some(first) = records.first() else { return Ok(0) };
        let of = (program(&first.run).to_owned(), first.scale);
        state.store.put(records)?;
        for other in &mut state.batches {
            let (run, scale, _) = self.key(&other.cases[0].0, 0);
            if (program(&run), scale) == (of.0.as_str(), of.1) {
                other.each = seconds / count as f64;
            }
        }
        state.made += count;
        Ok(count)
    }
}

/// Of this thread, which runs a batch by itself.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// To hundredths of a second.
fn took(seconds: f64) -> f64 {
    (seconds * 100.0).round() / 100.0
}

/// What runs took before.
struct Costs {
    runs: BTreeMap<(String, u32), f64>,
    programs: BTreeMap<(String, u32), (f64, usize)>,
}

impl Costs {
    fn of(store: &Store) -> Costs {
        let mut costs = Costs { runs: BTreeMap::new(), programs: BTreeMap::new() };
        for record in store.records().filter(|record| record.figures.is_some()) {
            costs.runs.insert((record.run.clone(), record.scale), record.took);
            let (sum, count) = costs.programs.entry((program(&record.run).to_owned(), record.scale)).or_default();
            *sum += record.took;
            *count += 1;
        }
        costs
    }

    fn expect(&self, plan: &Plan<'_>, case: &Case) -> f64 {
        let (run, scale, _) = plan.key(case, 0);
        if let Some(took) = self.runs.get(&(run.clone(), scale)) {
            return *took;
        }
        match self.programs.get(&(program(&run).to_owned(), scale)) {
            Some((sum, count)) => sum / *count as f64,
            None => plan.footprint(case).pages() as f64 * SECONDS_A_PAGE,
        }
    }
}

/// A run's program with its size and amount of work.
fn program(run: &str) -> &str {
    run.split(',').next().unwrap_or(run)
}
