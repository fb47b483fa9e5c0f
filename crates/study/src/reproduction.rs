//! What makes a row of a reproduction, so that the command and the Python package say the same of it.
//!
//! In: rows as they came out, and how they were run. Out: the rows with their provenance. Must not: run or judge anything.

use std::path::{Path, PathBuf};

use serde_json::Value;
use terrace_machine::preset::Machine;
use terrace_reproduce::{Case, Document, Options, Row};

use crate::error::Result;
use crate::provenance::{self, Modelled, Provenance};

/// How rows are chosen and run.
pub struct Reproduction {
    /// Scale, seeds (the first and those that follow it) and settings.
    pub options: Options,
    /// The experiments file; `None` is the built-in ones.
    pub experiments: Option<PathBuf>,
}

impl Reproduction {
    /// With `seeds` seeds from `first` on.
    pub fn new(scale: u32, first: u64, seeds: u64, set: Vec<String>, experiments: Option<&Path>) -> Reproduction {
        let seeds = (0..seeds).map(|more| first.wrapping_add(more)).collect();
        Reproduction { options: Options { scale, seeds, set }, experiments: experiments.map(Path::to_owned) }
    }

    /// The rows of a document of these rows, each with what made it.
    ///
    /// # Errors
    /// When a row cannot be turned into JSON.
    pub fn stamped_rows(&self, rows: &[&Row], document: &Document) -> Result<Vec<Value>> {
        rows.iter().zip(&document.rows).map(|(row, result)| Ok(self.made(row).stamp(result)?)).collect()
    }

    /// What makes a row: where its runs agree on machine, program and policy, these too.
    fn made(&self, row: &Row) -> Provenance {
        let mut words = vec!["reproduce".to_owned(), row.id.clone()];
        let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
        let seed = self.options.seeds.first().copied();
        option("scale", self.options.scale.to_string());
        option("seed", seed.unwrap_or_default().to_string());
        option("seeds", self.options.seeds.len().to_string());
        self.options.set.iter().for_each(|text| option("set", text.clone()));
        if let Some(path) = &self.experiments {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            option("experiments", path.to_string_lossy().into_owned());
        }
        words.push("--json".to_owned());
        let mut made = Provenance::of(&provenance::command(words));
        made.seed = seed;
        made.machine = only(row, |case| case.setting.machine.clone());
        if let Some(machine) = made.machine.as_deref().and_then(|name| Machine::preset(name).ok()) {
            made = made.on(&machine);
        }
        made.workload = only(row, |case| case.setting.workload.clone());
        made.threads = only(row, |case| case.setting.threads);
        made.size_bytes = only(row, |case| case.setting.size.get());
        made.workload_settings = only(row, |case| case.setting.options.clone()).unwrap_or_default();
        made.pages = only(row, |case| if case.setting.huge { "huge" } else { "small" }.to_owned());
        made.policy = only(row, |case| case.policy.clone());
        for case in &row.cases {
            let mut given = case.policy_settings.clone();
            let others = self.options.set.iter().filter_map(|text| text.split_once('='));
            given.extend(others.filter_map(|(key, value)| {
                let key = key.trim().strip_prefix(&case.policy)?.strip_prefix('.')?;
                Some((key.to_owned(), value.trim().to_owned()))
            }));
            made.settings.extend(provenance::settings(&case.policy, &given));
        }
        made
    }
}

/// What all runs of a row have in common, if they have.
fn only<T: PartialEq>(row: &Row, of: impl Fn(&Case) -> T) -> Option<T> {
    let first = of(row.cases.first()?);
    row.cases.iter().all(|case| of(case) == first).then_some(first)
}
