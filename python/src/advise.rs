//! `advise`: the same as `terrace size advise` of a workload or a recorded program.
//!
//! In: what its options take. Out: the JSON that it prints. Must not: have a default of its own, or watch a program; that is the command's.

use std::path::PathBuf;

use pyo3::prelude::*;
use terrace_study::advice::Asked;
use terrace_study::arguments::{CandidateArguments, GROUPS, LEAST_SAMPLE, ProgramArguments};
use terrace_study::{Error, misuse};

use crate::simulate::Model;
use crate::watch::{raised, work};

/// Advice; its JSON.
#[pyfunction]
#[pyo3(signature = (workload, trace, policies, max_slowdown, fast, prices, seed, sample, groups, max_footprint, model, command, progress))]
#[expect(clippy::too_many_arguments, reason = "the package's own function has them by name")]
pub(crate) fn advise(
    py: Python<'_>,
    workload: Option<String>,
    trace: Option<PathBuf>,
    policies: Vec<String>,
    max_slowdown: String,
    fast: Vec<String>,
    prices: String,
    seed: u64,
    sample: u32,
    groups: u16,
    max_footprint: String,
    model: Model,
    command: Vec<String>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let refuse = |error: Error| raised(&error);
    if workload.is_some() == trace.is_some() {
        return Err(refuse(terrace_study::Misuse("--workload or --trace: expected one of them".to_owned()).into()));
    }
    if sample < LEAST_SAMPLE {
        return Err(refuse(misuse("--sample", &sample.to_string(), format!("expected {LEAST_SAMPLE} or more"))));
    }
    if !GROUPS.contains(&groups) {
        let why = format!("expected {} to {}", GROUPS.start(), GROUPS.end());
        return Err(refuse(misuse("--groups", &groups.to_string(), why)));
    }
    let model = model.checked().map_err(refuse)?;
    let program = ProgramArguments { workload, trace, max_footprint, seed, model };
    let candidates = CandidateArguments { max_slowdown, policies, fast, sample, groups };
    work(py, progress.as_ref(), |watch| {
        let asked = Asked::parse(&program, &candidates, &prices)?;
        let (advice, mut made) = asked.of_accesses(&program, &candidates, watch)?;
        made.command = terrace_study::provenance::command(command.clone());
        Ok(made.stamp(&advice.as_json())?.to_string())
    })
}
