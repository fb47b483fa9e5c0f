//! What there is: machines, policies with their settings, workloads.
//!
//! In: nothing. Out: JSON. Must not: leave out a setting or a source.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use serde_json::{Value, json};
use terrace_machine::preset::Machine;
use terrace_policies::{POLICIES, Settings};

/// Machines: name, summary, numbers with their sources.
#[pyfunction]
pub(crate) fn machines() -> PyResult<String> {
    let mut list = Vec::new();
    for name in Machine::preset_names() {
        let machine = Machine::preset(name).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let numbers: Vec<Value> = machine
            .sources
            .iter()
            .map(|one| json!({ "key": one.key, "value": one.value, "source": one.source }))
            .collect();
        list.push(json!({ "name": machine.name, "summary": machine.summary, "numbers": numbers }));
    }
    Ok(Value::from(list).to_string())
}

/// Policies: name, summary, source, whether it runs live, settings.
#[pyfunction]
pub(crate) fn policies() -> String {
    let one = |info: &terrace_policies::PolicyInfo| {
        let live = terrace_policies::build(info.name, Settings::default())
            .is_ok_and(|policy| terrace_policies::only_simulated(policy.profile().needs()).is_none());
        let settings: Vec<Value> = info
            .settings
            .iter()
            .map(|setting| json!({ "key": setting.key, "default": setting.default, "meaning": setting.meaning }))
            .collect();
        json!({ "name": info.name, "summary": info.summary, "source": info.source, "live": live, "settings": settings })
    };
    Value::from(POLICIES.iter().map(one).collect::<Vec<_>>()).to_string()
}

/// Workloads: name, summary, options.
#[pyfunction]
pub(crate) fn workloads() -> String {
    let one = |info: &terrace_workloads::WorkloadInfo| {
        let options: Vec<Value> =
            info.options.iter().map(|option| json!({ "key": option.0, "meaning": option.1 })).collect();
        json!({ "name": info.name, "summary": info.description, "source": info.source, "operation": info.operation, "options": options })
    };
    Value::from(terrace_workloads::workloads().iter().map(|info| one(info)).collect::<Vec<_>>()).to_string()
}
