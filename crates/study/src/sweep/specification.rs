//! What a sweep is to run: the file as it is written, and the cells it means, checked before the first runs.
//!
//! In: TOML. Out: a [`Plan`]. Must not: run anything.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use terrace_common::arguments::{ModelArguments, SimCompareArguments};
use terrace_sim::FastSize;

use crate::compare::{Settled, programs};
use crate::error::{Error, Misuse, Result};
use crate::options::{self, Own, PolicySettings};
use crate::provenance::{COMMIT, SCHEMA_VERSION, VERSION, text_hash};

/// More cells than this are taken for a mistake.
const MOST_CELLS: usize = 10_000_000;

/// The file. Everything that is a list is combined with everything else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Specification {
    machines: Vec<String>,
    policies: Vec<String>,
    #[serde(default)]
    workloads: Vec<String>,
    #[serde(default)]
    traces: Vec<PathBuf>,
    fast: Vec<String>,
    #[serde(default = "one_seed")]
    seeds: Seeds,
    /// By POLICY.KEY, the values it takes.
    #[serde(default)]
    settings: BTreeMap<String, Vec<toml::Value>>,
    #[serde(default = "usual_size")]
    size: String,
    #[serde(default = "usual_threads")]
    threads: usize,
    scale: Option<u32>,
    #[serde(default = "usual_pages")]
    pages: String,
    operations: Option<u64>,
    #[serde(default)]
    workload_settings: BTreeMap<String, toml::Value>,
    #[serde(default = "usual_footprint")]
    max_footprint: String,
}

/// Seeds: how many from 1 on, or which.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Seeds {
    Count(u64),
    These(Vec<u64>),
}

// The defaults of `terrace sim compare`, but for the seeds.
fn one_seed() -> Seeds {
    Seeds::Count(1)
}

fn usual_size() -> String {
    "256MiB".to_owned()
}

fn usual_threads() -> usize {
    4
}

fn usual_pages() -> String {
    "thp".to_owned()
}

fn usual_footprint() -> String {
    "16GiB".to_owned()
}

/// What is wrong with the file, and where.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpecificationError {
    #[error("{}", .0.to_string().trim_end())]
    Toml(#[from] toml::de::Error),
    #[error("{0}: expected one at least")]
    Empty(&'static str),
    #[error("pages = {0:?}: expected thp, 4k or 2m")]
    Pages(String),
    #[error("{list}: {name} is named twice")]
    Twice { list: &'static str, name: String },
    #[error("settings.{0}: expected \"POLICY.KEY\" of one of the policies, in quotes")]
    Setting(String),
    #[error("settings.{0}: expected a list of values, one at least")]
    NoValue(String),
}

/// A value as `--set` takes it.
fn written(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

impl Specification {
    /// Reads the file's text. Paths of traces are relative to its folder.
    ///
    /// # Errors
    /// What is wrong, with its place.
    pub(super) fn parse(text: &str, folder: &Path) -> Result<Specification, SpecificationError> {
        let mut read: Specification = toml::from_str(text)?;
        for (name, list) in [("machines", &read.machines), ("policies", &read.policies), ("fast", &read.fast)] {
            if list.is_empty() {
                return Err(SpecificationError::Empty(name));
            }
        }
        if read.workloads.is_empty() && read.traces.is_empty() {
            return Err(SpecificationError::Empty("workloads or traces"));
        }
        if read.seeds().is_empty() {
            return Err(SpecificationError::Empty("seeds"));
        }
        if !["thp", "4k", "2m"].contains(&read.pages.as_str()) {
            return Err(SpecificationError::Pages(read.pages));
        }
        for (list, names) in [
            ("machines", &read.machines),
            ("policies", &read.policies),
            ("workloads", &read.workloads),
            ("fast", &read.fast),
        ] {
            if let Some((_, name)) = names.iter().enumerate().find(|(place, one)| names[..*place].contains(one)) {
                return Err(SpecificationError::Twice { list, name: name.clone() });
            }
        }
        for (key, values) in &read.settings {
            let policy = key.split_once('.').map(|(policy, _)| policy);
            if !policy.is_some_and(|policy| read.policies.iter().any(|one| one == policy)) {
                return Err(SpecificationError::Setting(key.clone()));
            }
            if values.is_empty() {
                return Err(SpecificationError::NoValue(key.clone()));
            }
        }
        for trace in &mut read.traces {
            *trace = folder.join(&*trace);
        }
        Ok(read)
    }

    fn seeds(&self) -> Vec<u64> {
        match &self.seeds {
            Seeds::Count(count) => (1..=*count).collect(),
            Seeds::These(these) => these.clone(),
        }
    }

    /// The settings of a policy, combined: each as `--set` takes them.
    fn combinations(&self, policy: &str) -> Vec<Vec<String>> {
        let mut all = vec![Vec::new()];
        for (key, values) in self.settings.iter().filter(|(key, _)| key.split('.').next() == Some(policy)) {
            let with = |value: &toml::Value| format!("{key}={}", written(value));
            all = all
                .iter()
                .flat_map(|before: &Vec<String>| values.iter().map(|value| [&before[..], &[with(value)]].concat()))
                .collect();
        }
        all
    }

    /// The comparison that a machine's part of it is.
    fn terms(&self, machine: &str) -> SimCompareArguments {
        let pair = |(key, value): (&String, &toml::Value)| format!("{key}={}", written(value));
        SimCompareArguments {
            workloads: self.workloads.clone(),
            trace: self.traces.clone(),
            max_footprint: self.max_footprint.clone(),
            policies: self.policies.clone(),
            fast: self.fast.clone(),
            seeds: 1,
            first_seed: 1,
            model: ModelArguments {
                machine: machine.to_owned(),
                size: self.size.clone(),
                threads: self.threads,
                scale: self.scale,
                pages: self.pages.clone(),
                operations: self.operations,
                workload_settings: self.workload_settings.iter().map(pair).collect(),
                ..ModelArguments::default()
            },
            ..SimCompareArguments::default()
        }
    }
}

/// One run of a sweep.
pub(super) struct CellPlan {
    /// Its machine, program and seed.
    pub(super) group: usize,
    /// Fast memory, as it was asked for.
    pub(super) fast_text: String,
    /// The same.
    pub(super) fast: FastSize,
    /// The policy.
    pub(super) policy: String,
    pub(super) settings: PolicySettings,
}

/// All of it, checked.
pub(super) struct Plan {
    /// Machine, program and seed: what shares bounds.
    pub(super) groups: Vec<Settled>,
    /// Group by group.
    pub(super) cells: Vec<CellPlan>,
}

impl Plan {
    /// Checks every name, size and setting.
    ///
    /// # Errors
    /// What is wrong; exit code 2.
    pub(super) fn new(specification: &Specification) -> Result<Plan> {
        let fast: Result<Vec<(String, FastSize)>, Error> =
            specification.fast.iter().map(|text| Ok((text.clone(), options::fast_size(text)?))).collect();
        let fast = fast?;
        let mut variants = Vec::new();
        for policy in &specification.policies {
            for settings in specification.combinations(policy) {
                variants
                    .push((policy, PolicySettings::parse(&settings, std::slice::from_ref(policy), &Own::default())?));
            }
        }
        let mut places = Vec::new();
        for machine in &specification.machines {
            let terms = specification.terms(machine);
            for program in programs(&terms)? {
                places.extend(specification.seeds().into_iter().map(|seed| (terms.clone(), program.clone(), seed)));
            }
        }
        let in_a_group = fast.len() * variants.len();
        if places.len().saturating_mul(in_a_group) > MOST_CELLS {
            return Err(Misuse(format!(
                "the sweep has {} cells: expected {MOST_CELLS} at most",
                places.len().saturating_mul(in_a_group)
            ))
            .into());
        }
        let settled = places.iter().map(|(terms, program, seed)| Settled::new(terms, &Own::default(), program, *seed));
        let groups = settled.collect::<Result<Vec<Settled>, Error>>()?;
        let mut cells = Vec::with_capacity(groups.len() * in_a_group);
        for (group, settled) in groups.iter().enumerate() {
            for (fast_text, fast) in &fast {
                settled.config(*fast).capacities().map_err(|error| {
                    Misuse(format!("fast = {fast_text:?}: {} on {}: {error}", settled.name, settled.raw.model.machine))
                })?;
                for (policy, settings) in &variants {
                    cells.push(CellPlan {
                        group,
                        fast_text: fast_text.clone(),
                        fast: *fast,
                        policy: (*policy).clone(),
                        settings: settings.clone(),
                    });
                }
            }
        }
        Ok(Plan { groups, cells })
    }

    /// What a journal must be of to be continued: this specification, these traces and machines, this build.
    pub(super) fn fingerprint(&self, text: &str) -> Value {
        let hash = |of: fn(&crate::provenance::Provenance) -> &Option<String>| {
            let all: Vec<&str> = self.groups.iter().filter_map(|group| of(&group.run.made).as_deref()).collect();
            text_hash(&all.join("\n"))
        };
        json!({
            "terrace_sweep": SCHEMA_VERSION, "version": VERSION, "commit": COMMIT, "specification": text_hash(text),
            "traces": hash(|made| &made.trace_hash), "machines": hash(|made| &made.machine_hash), "cells": self.cells.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "machines = [\"cxl-170\"]\npolicies = [\"flexmem\", \"tpp\"]\nworkloads = [\"gups\"]\nfast = [\"25%\", \"50%\"]\n\
         seeds = 2\nsize = \"4MiB\"\nscale = 1024\n[settings]\n\"flexmem.beta\" = [0.2, 0.4, \"0.6\"]\n";

    fn why(text: &str) -> String {
        match Specification::parse(text, Path::new("")).map(|found| Plan::new(&found)) {
            Err(error) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Ok(Ok(_)) => panic!("{text} is fine"),
        }
    }

    #[test]
    fn everything_is_combined_once_and_settings_are_their_policys_alone() {
        let found = Specification::parse(GOOD, Path::new("")).unwrap();
        let plan = Plan::new(&found).unwrap();
        // Two seeds, two sizes, three settings of one policy and none of the other.
        assert_eq!((plan.groups.len(), plan.cells.len()), (2, 2 * 2 * (3 + 1)));
        // Group by group.
        assert_eq!((plan.cells[7].group, plan.cells[8].group, plan.cells[15].group), (0, 1, 1));
        assert_ne!(plan.fingerprint(GOOD), plan.fingerprint(&GOOD.replace("0.2", "0.3")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let with = |from: &str, to: &str| why(&GOOD.replacen(from, to, 1));
        assert!(with("seeds = 2", "seeds = 0").contains("seeds"));
        assert!(with("seeds = 2", "seeds = []").contains("seeds"));
        assert!(with("seeds", "sedes").contains("sedes"));
        assert!(with("[\"cxl-170\"]", "[]").contains("machines"));
        assert!(with("cxl-170", "nonsense").contains("nonsense"));
        assert!(with("gups", "nonsense").contains("nonsense"));
        assert!(with("\"tpp\"", "\"nonsense\"").contains("nonsense"));
        assert!(with("\"tpp\"", "\"flexmem\"").contains("named twice"));
        assert!(with("50%", "500%").contains("500%"));
        assert!(with("50%", "8MiB").contains("larger than the footprint"));
        assert!(with("flexmem.beta", "memtis.x").contains("settings.memtis.x"));
        assert!(with("0.2", "\"much\"").contains("much"));
        assert!(with("4MiB", "0").contains("--size 0"));
        assert!(with("workloads = [\"gups\"]\n", "").contains("workloads or traces"));
        assert!(with("machines = ", "machines = = ").contains("line 1"));
    }
}
