//! `compare` and `run`: the same as `terrace sim compare` and `terrace sim run`.
//!
//! In: what their options take. Out: the JSON that they print. Must not: have a default of its own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use terrace_sim::run::{bounds, run_alone};
use terrace_study::arguments::{BesideArguments, ModelArguments, OneRunArguments, SimCompareArguments};
use terrace_study::compare::compare as compare_all;
use terrace_study::options::{OneRun, Own, command_of, failed};
use terrace_study::provenance::Provenance;
use terrace_study::{Error, misuse};

use crate::policy::InPython;
use crate::watch::{raised, work};

/// Options that a run and a comparison share, as keyword arguments; all are as the command takes them.
#[derive(FromPyObject)]
pub(crate) struct Model {
    #[pyo3(item)]
    machine: String,
    #[pyo3(item)]
    size: String,
    #[pyo3(item)]
    threads: usize,
    #[pyo3(item)]
    scale: Option<u32>,
    #[pyo3(item)]
    pages: String,
    #[pyo3(item)]
    operations: Option<u64>,
    #[pyo3(item)]
    settings: Vec<String>,
    #[pyo3(item)]
    workload_settings: Vec<String>,
}

impl Model {
    pub(crate) fn checked(self) -> Result<ModelArguments, Error> {
        if !["thp", "4k", "2m"].contains(&self.pages.as_str()) {
            return Err(misuse("--pages", &self.pages, "expected thp, 4k or 2m"));
        }
        Ok(ModelArguments {
            machine: self.machine,
            size: self.size,
            threads: self.threads,
            scale: self.scale,
            pages: self.pages,
            mmu: Default::default(),
            operations: self.operations,
            settings: self.settings,
            workload_settings: self.workload_settings,
        })
    }
}

/// Policies written in Python, by name: what `compare` and `run` take as `own`.
fn own(policies: BTreeMap<String, Py<PyAny>>) -> Result<Own, Error> {
    let mut all = Own::new();
    for (name, class) in policies {
        if terrace_policies::POLICIES.iter().any(|info| info.name == name) {
            return Err(misuse("--policies", &name, "a policy of this name is built in; give yours another"));
        }
        all.insert(name.clone(), Arc::new(InPython::new(&name, class)));
    }
    Ok(all)
}

/// A comparison; its JSON.
#[pyfunction]
#[pyo3(signature = (workloads, traces, policies, own_policies, fast, seeds, first_seed, max_footprint, model, progress))]
#[expect(clippy::too_many_arguments, reason = "the package's own function has them by name")]
pub(crate) fn compare(
    py: Python<'_>,
    workloads: Vec<String>,
    traces: Vec<PathBuf>,
    policies: Vec<String>,
    own_policies: BTreeMap<String, Py<PyAny>>,
    fast: Vec<String>,
    seeds: u64,
    first_seed: u64,
    max_footprint: String,
    model: Model,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let refuse = |error: Error| raised(&error);
    if workloads.is_empty() && traces.is_empty() {
        return Err(refuse(misuse("--workloads", "[]", "expected one, or a trace, at least")));
    }
    if policies.is_empty() {
        return Err(refuse(misuse("--policies", "[]", "expected one at least")));
    }
    if fast.is_empty() {
        return Err(refuse(misuse("--fast", "[]", "expected one at least")));
    }
    if !(1..=1000).contains(&seeds) {
        return Err(refuse(misuse("--seeds", &seeds.to_string(), "expected 1 to 1000")));
    }
    if !(1..=u64::from(u32::MAX)).contains(&first_seed) {
        return Err(refuse(misuse("--first-seed", &first_seed.to_string(), "expected 1 to 4294967295")));
    }
    let own = own(own_policies).map_err(refuse)?;
    let arguments = SimCompareArguments {
        workloads,
        trace: traces,
        max_footprint,
        policies,
        fast,
        seeds,
        first_seed,
        model: model.checked().map_err(refuse)?,
        json: true,
        csv: None,
        report: None,
    };
    work(py, progress.as_ref(), |watch| {
        let made = Provenance::of("");
        Ok(compare_all(&arguments, &own, watch)?.as_json(made)?.to_string())
    })
}

/// A run with its bounds; the JSON of its report.
#[pyfunction]
#[pyo3(signature = (workload, trace, policy, own_policies, fast, seed, max_footprint, model))]
#[expect(clippy::too_many_arguments, reason = "the package's own function has them by name")]
pub(crate) fn run(
    py: Python<'_>,
    workload: Option<String>,
    trace: Option<PathBuf>,
    policy: String,
    own_policies: BTreeMap<String, Py<PyAny>>,
    fast: String,
    seed: u64,
    max_footprint: String,
    model: Model,
) -> PyResult<String> {
    let refuse = |error: Error| raised(&error);
    if workload.is_some() == trace.is_some() {
        return Err(refuse(terrace_study::Misuse("--workload or --trace: expected one of them".to_owned()).into()));
    }
    let own = own(own_policies).map_err(refuse)?;
    let raw = OneRunArguments {
        workload,
        trace,
        max_footprint,
        policy,
        fast,
        seed,
        beside: BesideArguments { beside: None, every: 1 },
        model: model.checked().map_err(refuse)?,
    };
    work(py, None, |_| {
        let run = OneRun::parse(&raw, &own)?;
        let policy = run.policy()?;
        let mut report = run_alone(&run.config, run.source.as_ref(), policy).map_err(failed)?;
        report.compare_with(&bounds(&run.config, run.source.as_ref()).map_err(failed)?);
        let command = if run.settings.is_own(&run.policy) { String::new() } else { command_of(&raw) };
        let made = Provenance { command, ..run.made.clone() };
        Ok(made.stamp(&report)?.to_string())
    })
}
