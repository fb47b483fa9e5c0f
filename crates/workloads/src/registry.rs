//! Programs by name.
//!
//! In: a name and [`Parameters`]. Out: a [`Workload`] sized to them, or its answer. Must not: know what a program does.

use crate::memory::Progress;
use crate::native::{Clock, Executor, NativeMemory, Stop};
use crate::program::{Answer, Parameters, Settings, Workload, WorkloadError, WorkloadInfo};
use crate::programs;
use crate::traced::{AccessSink, TracedMemory};

/// All workloads, in the order of the catalogue.
pub fn workloads() -> &'static [WorkloadInfo] {
    programs::ALL
}

/// Builds a workload.
///
/// # Errors
/// When the name is unknown, or a parameter or option is out of range or unknown.
pub fn build(name: &str, parameters: &Parameters) -> Result<Box<dyn Workload>, WorkloadError> {
    let info = workloads().iter().find(|info| info.name == name).ok_or_else(|| WorkloadError::Unknown {
        name: name.to_owned(),
        known: terrace_core::text::instead(name, &workloads().iter().map(|info| info.name).collect::<Vec<_>>()),
    })?;
    (info.build)(&mut Settings::new(info, parameters)?)
}

/// Builds and runs a workload in native memory.
///
/// # Errors
/// As [`build`], and [`WorkloadError::Wrong`] when the answer does not hold.
pub fn run_native(
    name: &str,
    parameters: &Parameters,
    executor: &dyn Executor,
    clock: Clock<'_>,
    stop: Stop<'_>,
    out: &mut dyn FnMut(&Progress),
) -> Result<Answer, WorkloadError> {
    let mut workload = build(name, parameters)?;
    workload.run_native(&mut NativeMemory::new(parameters.threads, executor, clock, stop, out))
}

/// Builds and runs a workload traced, its accesses going to `sink`.
///
/// # Errors
/// As [`build`], when a duration is given (a trace has no clock), and [`WorkloadError::Wrong`].
pub fn run_traced(name: &str, parameters: &Parameters, sink: &mut dyn AccessSink) -> Result<Answer, WorkloadError> {
    let mut workload = build(name, parameters)?;
    if let (Some(nanos), Some(info)) = (parameters.duration_nanos, workloads().iter().find(|info| info.name == name)) {
        return Err(WorkloadError::Parameter {
            workload: info.name,
            parameter: "duration".to_owned(),
            value: format!("{nanos} ns"),
            wanted: "left out in a traced run, which has no clock; give a number of operations".to_owned(),
        });
    }
    workload.run_traced(&mut TracedMemory::new(parameters.threads, sink))
}
