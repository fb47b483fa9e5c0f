//! Kept runs made again whole, a sample of them: what canaries are too short to see.
//!
//! In: a store, and one in how many of its runs. Out: for each whether it came to the same. Must not: write into the store, or choose by what a
//! run came to.
//!
//! Which runs are in a sample depends on their words, scale and seed alone, so that it stays the same. Stale runs are left out: the page tells of
//! them. The cheapest come first.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::case::Case;
use crate::digest::digest_of;
use crate::error::Error;
use crate::experiments::{Experiments, Row};
use crate::origin::Origin;
use crate::outcome::RunFigures;
use crate::run::{Database, Options, Plan, Runs};
use crate::stop::Stop;
use crate::store::{Key, Store};
use crate::{LEAST_SCALE, QUICK_SCALE};

/// A kept run that was made again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// In words.
    pub run: String,
    /// The factor by which it was shrunk.
    pub scale: u32,
    /// Its seed.
    pub seed: u64,
    /// What computed it.
    pub of: Origin,
    /// Whether every figure is the same.
    pub equal: bool,
    /// The first figure that is another, kept and now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// What a sample is made of, and how long it may take.
#[derive(Clone, Copy, Debug)]
pub struct Sample<'s> {
    /// One in this many runs.
    pub one_in: u64,
    /// Those that were made again before: with the same origin they are not made once more.
    pub before: &'s [Again],
    /// From the call on; `None` to the end.
    pub time: Option<Duration>,
}

/// How far it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sampled {
    /// Runs of the sample.
    pub runs: usize,
    /// Those that were made again now.
    pub made: usize,
    /// Those that are left.
    pub left: usize,
}

/// One run of the sample.
struct Chosen {
    case: Case,
    seed: u64,
    plan: usize,
    took: f64,
    again: Again,
    kept: RunFigures,
}

impl Sample<'_> {
    /// Makes its runs again, and tells each.
    ///
    /// # Errors
    /// When a run fails.
    pub fn run(
        &self,
        experiments: &Experiments,
        rows: &[&Row],
        store: &Store,
        database: Database<'_>,
        tell: &(dyn Fn(&Again) + Sync),
    ) -> Result<Sampled, Error> {
        let until = self.time.map(|time| Instant::now() + time);
        let plans = plans(experiments, rows, store)?;
        if let Some(plan) = plans.first() {
            let cases = plan.first.iter().chain(&plan.second).map(|(case, _)| case);
            let words = store.words();
            store.prints.prepare(plan.canaries(cases.filter(|case| words.contains(case.to_string().as_str()))))?;
        }
        let mut chosen = self.chosen(&plans, store)?;
        let runs = chosen.len();
        chosen.retain(|one| !self.before.iter().any(|other| other.equal && other.is_of(&one.again)));
        chosen.sort_by(|a, b| a.took.total_cmp(&b.took));
        let mut indices = Runs::default();
        for one in &chosen {
            if plans[one.plan].asks_database(&one.case) {
                indices.prepare_index(&one.case.setting.machine, database)?;
            }
        }
        let made: usize = chosen
            .par_iter()
            .with_max_len(1)
            .map(|one| {
                let plan = &plans[one.plan];
                let mut runs = Runs::default();
                runs.share_index(&one.case.setting.machine, &indices);
                let baseline = one.case.baseline();
                let found = store.usable(plan, &baseline, one.seed).and_then(|record| record.outcome());
                if let Some(outcome) = found {
                    runs.take(&baseline, one.seed, outcome);
                }
                let alone = (one.case.clone(), one.seed);
                let Some((_, outcome)) = plan.together(&[&alone], &runs, &Stop::at(until))?.pop() else {
                    return Ok(0);
                };
                let now = outcome.figures.kept(&plan.asked_of(&one.case));
                let differs = difference(&one.kept, &now);
                tell(&Again { equal: differs.is_none(), differs, ..one.again.clone() });
                Ok(1)
            })
            .sum::<Result<usize, Error>>()?;
        Ok(Sampled { runs, made, left: chosen.len() - made })
    }

    fn chosen(&self, plans: &[Plan<'_>], store: &Store) -> Result<Vec<Chosen>, Error> {
        let (mut met, mut chosen): (BTreeSet<Key>, _) = (BTreeSet::new(), Vec::new());
        for (place, plan) in plans.iter().enumerate() {
            for (case, seed) in plan.first.iter().chain(&plan.second) {
                let key = plan.key(case, *seed);
                if !is_in(&key, self.one_in) || !met.insert(key) {
                    continue;
                }
                let Some(record) = store.current(plan, case, *seed)? else { continue };
                let Some(kept) = record.figures.clone() else { continue };
                let (run, scale, seed) = record.key();
                let again = Again { run, scale, seed, of: record.of.clone(), equal: true, differs: None };
                chosen.push(Chosen { case: case.clone(), seed, plan: place, took: record.took, again, kept });
            }
        }
        Ok(chosen)
    }
}

impl Again {
    /// Whether it is the same run, computed by the same.
    fn is_of(&self, other: &Again) -> bool {
        (&self.run, self.scale, self.seed, &self.of) == (&other.run, other.scale, other.seed, &other.of)
    }
}

/// A plan for each scale at which runs may be kept.
fn plans<'r>(experiments: &Experiments, rows: &[&'r Row], store: &Store) -> Result<Vec<Plan<'r>>, Error> {
    let scales =
        std::iter::successors(Some(LEAST_SCALE), |scale| Some(scale * 2)).take_while(|scale| *scale <= QUICK_SCALE);
    let seeds: Vec<u64> = store.seeds().into_iter().collect();
    let plan = |scale| {
        let mut plan = Plan::new(rows.to_vec(), Options { scale, seeds: seeds.clone(), set: Vec::new() })?;
        plan.ask_also(&experiments.rows);
        Ok(plan)
    };
    scales.map(plan).collect()
}

/// Whether a run is in the sample: by its digest, so that each is as likely as any other.
fn is_in((run, scale, seed): &Key, one_in: u64) -> bool {
    let digest = digest_of(format!("{run} {scale} {seed}"));
    let number = u64::from_str_radix(&digest, 16).expect("it is hexadecimal");
    number.is_multiple_of(one_in)
}

/// The first figure in which two runs differ.
fn difference(kept: &RunFigures, now: &RunFigures) -> Option<String> {
    let [kept, now] = [kept, now].map(|figures| serde_json::to_value(figures).expect("its keys are texts"));
    let empty = serde_json::Map::new();
    let (kept, now) = (kept.as_object().unwrap_or(&empty), now.as_object().unwrap_or(&empty));
    let names: BTreeSet<&String> = kept.keys().chain(now.keys()).collect();
    let shown = |value: Option<&serde_json::Value>| value.map_or("nothing".to_owned(), ToString::to_string);
    let other = names.into_iter().find(|name| kept.get(*name) != now.get(*name))?;
    Some(format!("{other}: {} was kept, now {}", shown(kept.get(other)), shown(now.get(other))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_one_in_so_many_and_stays_the_same() {
        let all = (0..5000).map(|seed| ("gups".to_owned(), 4096, seed));
        let count = all.filter(|key| is_in(key, 50)).count();
        assert!((60..140).contains(&count), "{count}");
        assert!((0..9).all(|seed| is_in(&("gups".to_owned(), 4096, seed), 1)));
    }

    #[test]
    fn the_first_figure_that_differs_is_named() {
        let kept = RunFigures { seconds: 1.5, hint_faults: 3, ..RunFigures::default() };
        assert_eq!(difference(&kept, &kept), None);
        let now = RunFigures { hint_faults: 4, ..kept.clone() };
        assert_eq!(difference(&kept, &now).unwrap(), "hint_faults: 3 was kept, now 4");
        let now = RunFigures { hot_set: Some(0.5), ..kept.clone() };
        assert_eq!(difference(&kept, &now).unwrap(), "hot_set: nothing was kept, now 0.5");
    }
}
