//! `terrace lab compare`: the same program in the same guest under each manager.
//!
//! In: lists of workloads and managers. Out: rows as a table, JSON or a page. Must not: count anything itself, or stop at a run that
//! fails: the failure is reported, the others are shown, and the exit code is 1.

use std::process::ExitCode;

use serde_json::Value;
use terrace_core::units::{Bytes, Quantity};
use terrace_lab::compare::{Job, Manager, Row, fast_of_share};
use terrace_lab::{Cache, Lab, LabError, Mode};

use super::time_limit;
use crate::args::LabCompareArguments;
use crate::options::misuse;
use crate::provenance::Provenance;
use crate::report::comparison::{Comparison, Named, Settings, manager, progress};
use crate::{render, report};

pub(super) fn run(arguments: &LabCompareArguments) -> anyhow::Result<ExitCode> {
    let size = bytes("--size", &arguments.size)?;
    let fast = match arguments.fast.parse().map_err(|error| misuse("--fast", &arguments.fast, error))? {
        Quantity::Share(share) => fast_of_share(size, share),
        Quantity::Bytes(bytes) => bytes,
    };
    if fast < Bytes::mib(1) || fast > size {
        return Err(misuse("--fast", &arguments.fast, "expected from 1MiB up to the footprint"));
    }
    let cache = match &arguments.cache {
        Some(text) => bytes("--cache", text)?,
        None => Bytes::new(size.get() / 64),
    };
    let managers = match arguments.managers.is_empty() {
        true => Manager::usual(),
        false => arguments
            .managers
            .iter()
            .map(|name| Manager::parse(name).map_err(|error| misuse("--managers", name, error)))
            .collect::<Result<_, _>>()?,
    };
    check_names(arguments, &managers)?;
    managers.iter().try_for_each(Manager::check)?;
    let lab = Lab {
        cache: Cache::of_user()?.with_mirror(arguments.mirror.clone()),
        terrace: arguments.binary.clone().unwrap_or_else(Lab::usual_terrace),
        mode: Mode::Deterministic,
        refresh: arguments.refresh,
        keep: arguments.keep.clone(),
    };
    let settings = Settings {
        size_bytes: size.get(),
        fast_bytes: fast.get(),
        modelled_machine: arguments.machine.clone(),
        modelled_cache_bytes: cache.get(),
        workload_settings: arguments.settings.clone(),
        operations: arguments.operations,
        qemu: terrace_lab::qemu_version()?,
    };
    let mut comparison = Comparison { rows: Vec::new(), courses: Vec::new(), failures: Vec::new(), settings };
    for workload in &arguments.workload {
        for seed in (arguments.first_seed..).take(arguments.seeds as usize) {
            for manager in &managers {
                let job = Job {
                    kernel: arguments.kernel.clone(),
                    workload: workload.clone(),
                    size,
                    operations: arguments.operations,
                    workload_settings: arguments.settings.clone(),
                    fast,
                    manager: manager.clone(),
                    seed,
                    machine: arguments.machine.clone(),
                    cache,
                    time_limit: time_limit(&arguments.time_limit)?,
                };
                one(&lab, &job, &mut comparison)?;
            }
        }
    }
    if let Some(directory) = &arguments.report {
        report::lab::write_comparison(directory, &comparison, &stamped(arguments, &comparison)?)?;
    }
    if arguments.json {
        super::super::print_json(&stamped(arguments, &comparison)?)?;
    } else {
        super::super::print_text(&render::lab::comparison(&comparison))?;
    }
    Ok(ExitCode::from(u8::from(!comparison.failures.is_empty())))
}

/// The comparison with what made it, and each row with what made that.
fn stamped(arguments: &LabCompareArguments, comparison: &Comparison) -> anyhow::Result<Value> {
    let machine = terrace_machine::preset::Machine::preset(&arguments.machine)
        .map_err(|error| misuse("--machine", &arguments.machine, error))?;
    let mut made = Provenance::here().on(&machine);
    (made.size_bytes, made.operations, made.scale) =
        (Some(comparison.settings.size_bytes), arguments.operations, Some(1));
    let given = arguments.settings.iter().filter_map(|text| text.split_once('='));
    made.workload_settings = given.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect();
    let rows: Result<Vec<Value>, anyhow::Error> = comparison.rows.iter().map(|row| stamped_row(&made, row)).collect();
    let mut all = made.stamp(comparison)?;
    all["rows"] = rows?.into();
    Ok(all)
}

/// A row's policy stands with the settings that were asked for: `age:idle=5s`.
fn stamped_row(made: &Provenance, row: &Row) -> anyhow::Result<Value> {
    let mut made = made.clone();
    if let Some(text) = row.policy.as_deref().filter(|_| row.manager == "terrace") {
        let mut parts = text.split(':');
        let policy = parts.next().unwrap_or_default();
        let given = parts.filter_map(|part| part.split_once('='));
        made = made.under(policy, &given.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
    }
    Ok(made.stamp(row)?)
}

fn one(lab: &Lab, job: &Job, comparison: &mut Comparison) -> anyhow::Result<()> {
    match lab.compare_one(job) {
        Ok((row, course)) => {
            eprintln!("{}", progress(&row));
            let manager = manager(&row);
            comparison.courses.push(Named { manager, workload: row.workload.clone(), seed: row.seed, points: course });
            comparison.rows.push(row);
            Ok(())
        }
        // What went wrong in a guest is that run's matter; anything else would go wrong in all of them.
        Err(error @ (LabError::Guest { .. } | LabError::TimeLimit { .. })) => {
            let text = format!("{} under {}, seed {}: {error}", job.workload, job.manager.name(), job.seed);
            eprintln!("terrace: {text}");
            comparison.failures.push(text);
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Names that no guest need be booted for to be wrong.
fn check_names(arguments: &LabCompareArguments, managers: &[Manager]) -> anyhow::Result<()> {
    let known = terrace_workloads::workloads();
    for name in &arguments.workload {
        if !known.iter().any(|info| info.name == name) {
            let names: Vec<_> = known.iter().map(|info| info.name).collect();
            return Err(misuse("--workload", name, format!("expected {}", names.join(", "))));
        }
    }
    for policy in managers.iter().filter_map(Manager::policy) {
        if !terrace_policies::POLICIES.iter().any(|info| info.name == policy) {
            return Err(misuse("--managers", policy, "`terrace policies` lists the policies"));
        }
    }
    terrace_machine::preset::Machine::preset(&arguments.machine)
        .map(drop)
        .map_err(|error| misuse("--machine", &arguments.machine, error))
}

fn bytes(option: &str, text: &str) -> anyhow::Result<Bytes> {
    text.parse().map_err(|error| misuse(option, text, error))
}
