//! What a program is: its parameters, its answer, its errors, and what there is to know of it before it is built.
//!
//! In: [`Parameters`]. Out: the types that every program is written in. Must not: know a single program, or run one.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::memory::Memory;
use crate::native::NativeMemory;
use crate::traced::TracedMemory;

/// Least footprint a workload accepts: below it page counts mean nothing.
pub const LEAST_BYTES: u64 = 4 << 20;
/// Most threads a workload accepts.
pub const MOST_THREADS: usize = 1024;
/// Most operations: with [`MOST_THREADS`] their shares stay within 64 bits, and a year at ten million a second is a third of them.
pub const MOST_OPERATIONS: u64 = 1_000_000_000_000_000;

/// What a run is asked to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Footprint in bytes: the most memory the program has touched and not freed at one time, file pages included.
    pub size_bytes: u64,
    /// Logical threads; native runs have as many real ones where the executor does.
    pub threads: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// How much to do, in the workload's own operations (see [`WorkloadInfo::operation`]); its default when `None`.
    pub operations: Option<u64>,
    /// For open-ended workloads in native runs: how long to run the measured part, instead of a number of operations.
    pub duration_nanos: Option<u64>,
    /// Options of one workload (see [`WorkloadInfo::options`]).
    pub options: BTreeMap<String, String>,
}

impl Parameters {
    /// One thread, seed 1, defaults.
    pub fn new(size_bytes: u64) -> Parameters {
        Parameters { size_bytes, threads: 1, seed: 1, operations: None, duration_nanos: None, options: BTreeMap::new() }
    }
}

/// A run's answer, already verified.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Operations done.
    pub operations: u64,
    /// A digest of the answer. Equal for equal parameters in traced runs; in native runs with several threads it may
    /// differ where the order of floating-point sums, or which of several right answers, depends on the threads.
    pub checksum: u64,
    /// What was verified, in words.
    pub verified: &'static str,
    /// Figures of the run (iterations, residuals, commits), by name.
    pub figures: Vec<(&'static str, f64)>,
}

/// Why a workload could not be built, or that its answer is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum WorkloadError {
    /// No workload of that name.
    #[error("no workload is called {name:?}; {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The nearest name, and all there are.
        known: String,
    },
    /// A parameter out of range.
    #[error("workload {workload}: {parameter} is {value}, but it must be {wanted}")]
    Parameter {
        /// The workload.
        workload: &'static str,
        /// The parameter.
        parameter: String,
        /// What it was.
        value: String,
        /// What it must be.
        wanted: String,
    },
    /// An option the workload does not have.
    #[error("workload {workload} has no option {option:?}; it has {known}")]
    Option {
        /// The workload.
        workload: &'static str,
        /// The option.
        option: String,
        /// Its options.
        known: String,
    },
    /// The answer is wrong: memory lost data, or the program has a bug.
    #[error("workload {workload} got a wrong answer: {what}")]
    Wrong {
        /// The workload.
        workload: &'static str,
        /// What does not hold.
        what: String,
    },
}

/// What a program's check of its own data found: what memory lost, or what the program did wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AuditError(
    /// What does not hold.
    pub String,
);

/// A program with its parameters, ready to run.
pub trait Workload: Send {
    /// Runs in traced memory.
    ///
    /// # Errors
    /// [`WorkloadError::Wrong`] when the answer does not hold.
    fn run_traced(&mut self, memory: &mut TracedMemory<'_>) -> Result<Answer, WorkloadError>;

    /// Runs in native memory.
    ///
    /// # Errors
    /// [`WorkloadError::Wrong`] when the answer does not hold.
    fn run_native(&mut self, memory: &mut NativeMemory<'_>) -> Result<Answer, WorkloadError>;
}

/// A program, generic over its memory. Every one is a [`Workload`].
pub trait Program: Send {
    /// Runs and verifies.
    ///
    /// # Errors
    /// [`WorkloadError::Wrong`] when the answer does not hold.
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError>;
}

impl<P: Program> Workload for P {
    fn run_traced(&mut self, memory: &mut TracedMemory<'_>) -> Result<Answer, WorkloadError> {
        let answer = self.run(memory);
        memory.flush();
        answer
    }

    fn run_native(&mut self, memory: &mut NativeMemory<'_>) -> Result<Answer, WorkloadError> {
        self.run(memory)
    }
}

/// What there is to know of a workload before building it.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadInfo {
    /// Its name.
    pub name: &'static str,
    /// One line.
    pub description: &'static str,
    /// Paper or benchmark it follows.
    pub source: &'static str,
    /// What [`Parameters::operations`] counts.
    pub operation: &'static str,
    /// Whether it runs until told to stop, so that [`Parameters::duration_nanos`] applies.
    pub open_ended: bool,
    /// Its options: name and meaning with default.
    pub options: &'static [(&'static str, &'static str)],
    /// Builds it.
    pub(crate) build: fn(&mut Settings<'_>) -> Result<Box<dyn Workload>, WorkloadError>,
}

/// The parameters as a workload's builder reads them; its errors name the workload.
pub(crate) struct Settings<'p> {
    info: &'static WorkloadInfo,
    parameters: &'p Parameters,
}

impl<'p> Settings<'p> {
    /// The parameters, if the workload can be built of them.
    pub(crate) fn new(info: &'static WorkloadInfo, parameters: &'p Parameters) -> Result<Settings<'p>, WorkloadError> {
        let settings = Settings { info, parameters };
        settings.check()?;
        Ok(settings)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.info.name
    }

    pub(crate) fn size(&self) -> u64 {
        self.parameters.size_bytes
    }

    pub(crate) fn threads(&self) -> usize {
        self.parameters.threads
    }

    pub(crate) fn seed(&self) -> u64 {
        self.parameters.seed
    }

    pub(crate) fn operations(&self) -> Option<u64> {
        self.parameters.operations
    }

    pub(crate) fn duration_nanos(&self) -> Option<u64> {
        self.parameters.duration_nanos
    }

    /// An option's value, or its default. `wanted` says in words what `accept` asks for.
    pub(crate) fn option<T: FromStr + Copy>(
        &self,
        option: &str,
        default: T,
        wanted: &str,
        accept: impl Fn(T) -> bool,
    ) -> Result<T, WorkloadError> {
        let Some(text) = self.parameters.options.get(option) else { return Ok(default) };
        match text.trim().parse::<T>() {
            Ok(value) if accept(value) => Ok(value),
            _ => Err(self.refused(option, text, wanted)),
        }
    }

    /// An option that is one of a few words; the first is the default.
    pub(crate) fn choice(&self, option: &str, words: &[&'static str]) -> Result<&'static str, WorkloadError> {
        let Some(text) = self.parameters.options.get(option) else { return Ok(words[0]) };
        let found = words.iter().find(|word| **word == text.trim());
        found.copied().ok_or_else(|| self.refused(option, text, &format!("one of {}", words.join(", "))))
    }

    pub(crate) fn refused(&self, parameter: &str, value: &str, wanted: &str) -> WorkloadError {
        WorkloadError::Parameter {
            workload: self.info.name,
            parameter: parameter.to_owned(),
            value: value.to_owned(),
            wanted: wanted.to_owned(),
        }
    }

    fn check(&self) -> Result<(), WorkloadError> {
        let parameters = self.parameters;
        if parameters.size_bytes < LEAST_BYTES {
            return Err(self.refused("size", &parameters.size_bytes.to_string(), "at least 4194304 bytes"));
        }
        if parameters.threads == 0 || parameters.threads > MOST_THREADS {
            return Err(self.refused("threads", &parameters.threads.to_string(), "1 to 1024"));
        }
        if parameters.operations == Some(0) {
            return Err(self.refused("operations", "0", "at least 1"));
        }
        if let Some(operations) = parameters.operations.filter(|&operations| operations > MOST_OPERATIONS) {
            return Err(self.refused("operations", &operations.to_string(), "at most 1000000000000000"));
        }
        if parameters.duration_nanos.is_some() && !self.info.open_ended {
            return Err(self.refused("duration", "given", "left out: this workload runs to its own end"));
        }
        if parameters.duration_nanos == Some(0) {
            return Err(self.refused("duration", "0", "longer than nothing"));
        }
        let known = |option: &String| self.info.options.iter().any(|(name, _)| name == option);
        if let Some(option) = parameters.options.keys().find(|option| !known(option)) {
            let names: Vec<&str> = self.info.options.iter().map(|(name, _)| *name).collect();
            let known = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(WorkloadError::Option { workload: self.info.name, option: option.clone(), known });
        }
        Ok(())
    }
}

/// A wrong answer, for the programs' checks.
pub(crate) fn wrong(workload: &'static str, what: impl Into<String>) -> WorkloadError {
    WorkloadError::Wrong { workload, what: what.into() }
}

impl AuditError {
    /// As the wrong answer of a workload.
    pub(crate) fn of(self, workload: &'static str) -> WorkloadError {
        wrong(workload, self.0)
    }
}

/// `Ok` where `holds`, otherwise a wrong answer.
pub(crate) fn check(workload: &'static str, holds: bool, what: impl FnOnce() -> String) -> Result<(), WorkloadError> {
    if holds { Ok(()) } else { Err(wrong(workload, what())) }
}
