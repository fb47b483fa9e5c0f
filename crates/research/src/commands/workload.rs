//! `terrace workload`: one of the laboratory's workloads as a real process, for live runs.
//!
//! In: a name and its size. Out: progress as JSON lines while it runs, and the verified answer. Must not: measure anything
//! itself; it lends the pure workload a clock, threads and a place for its output.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use signal_hook::consts::SIGUSR1;
use terrace_common::settings;
use terrace_core::units::Bytes;
use terrace_linux::topology::Topology;
use terrace_workloads::{Executor, Parameters, Progress, WorkloadError, run_native, workloads};

use crate::args::WorkloadArguments;
use crate::options::{Misuse, duration, misuse};

/// Tasks on scoped threads.
struct Threads;

impl Executor for Threads {
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for number in 1..tasks {
                scope.spawn(move || task(number));
            }
            task(0);
        });
    }
}

pub(super) fn run(arguments: &WorkloadArguments) -> anyhow::Result<()> {
    if arguments.name == "list" {
        return list(arguments.json);
    }
    let size: Bytes = arguments.size.parse().map_err(|error| misuse("--size", &arguments.size, error))?;
    let memory = memory_and_swap()?;
    if size > memory {
        return Err(misuse(
            "--size",
            &arguments.size,
            format!("expected {memory} at most: the machine's memory and swap"),
        ));
    }
    let options = settings("--set", &arguments.settings, "hot=10%")?;
    let limit = arguments.duration.as_deref().map(|text| duration("--duration", text)).transpose()?;
    let parameters = Parameters {
        size_bytes: size.get(),
        threads: arguments.threads,
        seed: arguments.seed,
        operations: arguments.operations,
        duration_nanos: limit.map(|limit| limit.as_nanos() as u64),
        options,
    };
    // SIGUSR1 ends a timed run early, with its data verified. Elsewhere the signal does what it does to any program.
    let told = Arc::new(AtomicBool::new(false));
    if parameters.duration_nanos.is_some() {
        signal_hook::flag::register(SIGUSR1, Arc::clone(&told))?;
    }
    let stop = move || told.load(Ordering::Relaxed);
    let origin = Instant::now();
    let clock = move || origin.elapsed().as_nanos() as u64;
    let mut broken = None;
    let mut report = |progress: &Progress| {
        let line = serde_json::json!({
            "phase": progress.phase, "seconds": progress.elapsed_nanos as f64 / 1e9, "operations": progress.operations,
            "p10_nanoseconds": number(progress.p10_nanos), "p50_nanoseconds": number(progress.p50_nanos),
            "p99_nanoseconds": number(progress.p99_nanos),
        });
        if broken.is_none() {
            broken = writeln!(crate::terminal::stdout(), "{line}").err();
        }
    };
    let answer = run_native(&arguments.name, &parameters, &Threads, &clock, &stop, &mut report);
    if let Some(error) = broken {
        return Err(error.into());
    }
    let answer = match answer {
        Ok(answer) => answer,
        Err(error @ WorkloadError::Wrong { .. }) => return Err(error.into()),
        Err(error) => return Err(Misuse(error.to_string()).into()),
    };
    let figures: BTreeMap<_, _> = answer.figures.iter().copied().collect();
    let line = serde_json::json!({
        "workload": arguments.name, "seconds": origin.elapsed().as_secs_f64(), "operations": answer.operations,
        "checksum": format!("{:016x}", answer.checksum), "verified": answer.verified, "figures": figures,
    });
    writeln!(crate::terminal::stdout(), "{line}")?;
    Ok(())
}

/// All that a footprint could be kept in: an allocation beyond it would be refused, or end this process later.
fn memory_and_swap() -> anyhow::Result<Bytes> {
    let topology = Topology::discover(Path::new("/"))?;
    let nodes = topology.nodes.iter().fold(Bytes::ZERO, |sum, node| sum + node.memory_bytes);
    Ok(topology.swaps.iter().fold(nodes, |sum, area| sum + area.size_bytes))
}

/// JSON knows no NaN; a time that was not measured is null.
fn number(value: f64) -> serde_json::Value {
    if value.is_finite() { serde_json::json!((value * 10.0).round() / 10.0) } else { serde_json::Value::Null }
}

fn list(json: bool) -> anyhow::Result<()> {
    if json {
        let list: Vec<_> = workloads()
            .iter()
            .map(|info| {
                let options: BTreeMap<_, _> = info.options.iter().copied().collect();
                serde_json::json!({
                    "name": info.name, "description": info.description, "source": info.source,
                    "operation": info.operation, "options": options,
                })
            })
            .collect();
        return super::print_json(&serde_json::json!({ "workloads": list }));
    }
    let width = workloads().iter().map(|info| info.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for info in workloads() {
        text += &format!("{:width$}  {} ({})\n", info.name, info.description, info.source);
        for (option, meaning) in info.options {
            text += &format!("{:width$}    {option}: {meaning}\n", "");
        }
    }
    super::print_text(&text)
}
