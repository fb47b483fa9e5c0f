//! `terrace lab compare`: the same program in the same guest under each manager.
//!
//! In: lists of workloads and managers, programs of this host. Out: rows as a table, JSON or a page. Must not: count anything itself, or stop at a run that
//! fails: the failure is reported, the others are shown, and the exit code is 1.

use std::process::ExitCode;
use terrace_common::say;

use serde_json::Value;
use terrace_core::units::{Bytes, Quantity};
use terrace_lab::compare::{Job, Manager, Program, Row, Subject, fast_of_share};
use terrace_lab::{Cache, Lab, LabError, Mode};

use super::brought::{brought, file, line_of};
use super::time_limit;
use crate::args::LabCompareArguments;
use crate::options::{Misuse, duration, misuse};
use crate::provenance::{Modelled, Provenance, quoted};
use crate::report::comparison::{Comparison, Named, Settings, manager, progress};
use crate::{render, report};

/// Footprint of a workload, unless another is asked for.
const WORKLOAD_SIZE: Bytes = Bytes::mib(64);
/// Less fast memory than this holds nothing.
const LEAST_FAST: Bytes = Bytes::mib(1);

pub(super) fn run(arguments: &LabCompareArguments) -> anyhow::Result<ExitCode> {
    let fast = arguments.fast.parse().map_err(|error| misuse("--fast", &arguments.fast, error))?;
    let size = arguments.size.as_ref().map(|text| bytes("--size", text)).transpose()?;
    if !arguments.workload.is_empty() {
        fast_of(arguments, fast, size.unwrap_or(WORKLOAD_SIZE))?;
    }
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
    let limit = time_limit(&arguments.time_limit)?;
    let programs = programs(arguments)?;
    let lab = Lab {
        cache: Cache::of_user()?.with_mirror(arguments.mirror.clone()),
        terrace: arguments.binary.clone().unwrap_or_else(Lab::usual_terrace),
        mode: Mode::Deterministic,
        refresh: arguments.refresh,
        keep: arguments.keep.clone(),
    };
    let settings = Settings {
        modelled_machine: arguments.machine.clone(),
        workload_settings: arguments.settings.clone(),
        operations: arguments.operations,
        qemu: terrace_lab::qemu_version()?,
    };
    let mut comparison = Comparison { rows: Vec::new(), courses: Vec::new(), failures: Vec::new(), settings };
    let mut subjects = workloads(arguments, size.unwrap_or(WORKLOAD_SIZE));
    for program in programs {
        let found = match size {
            Some(size) => Ok(size),
            None => lab.footprint_of(&program, &arguments.kernel, limit),
        };
        match found {
            Ok(size) => subjects.push((Subject::Program(program), size)),
            Err(error @ (LabError::Guest { .. } | LabError::TimeLimit { .. })) => failed(&mut comparison, &error),
            Err(error) => return Err(error.into()),
        }
    }
    for (subject, size) in subjects {
        for manager in &managers {
            let job = Job {
                kernel: arguments.kernel.clone(),
                subject: subject.clone(),
                size,
                fast: fast_of(arguments, fast, size)?,
                manager: manager.clone(),
                machine: arguments.machine.clone(),
                cache: cache_of(arguments, size)?,
                time_limit: limit,
            };
            one(&lab, &job, &mut comparison)?;
        }
    }
    let json = stamped(arguments, &comparison)?;
    if let Some(directory) = &arguments.report {
        report::lab::write_comparison(directory, &comparison, &json)?;
    }
    super::super::print(arguments.json, &json, |screen| render::lab::comparison(&comparison, screen))?;
    Ok(ExitCode::from(u8::from(!comparison.failures.is_empty())))
}

/// Each workload with each seed.
fn workloads(arguments: &LabCompareArguments, size: Bytes) -> Vec<(Subject, Bytes)> {
    let seeds = || (arguments.first_seed..).take(arguments.seeds as usize);
    let of = |name: &String, seed| Subject::Workload {
        name: name.clone(),
        operations: arguments.operations,
        settings: arguments.settings.clone(),
        seed,
    };
    arguments.workload.iter().flat_map(|name| seeds().map(move |seed| (of(name, seed), size))).collect()
}

/// The programs of this host, each with all files: those of `--program`, and the one after `--`.
fn programs(arguments: &LabCompareArguments) -> anyhow::Result<Vec<Program>> {
    let files = arguments.files.iter().map(|text| file(text)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut programs = Vec::new();
    for shown in &arguments.programs {
        let mut files = files.clone();
        let line = line_of("--program", shown, &mut files)?;
        programs.push(Program { shown: shown.trim().to_owned(), line, files });
    }
    if let Some((first, rest)) = arguments.command.split_first() {
        let mut files = files.clone();
        let text = |word: &std::ffi::OsString| quoted(&word.to_string_lossy());
        let rest: String = rest.iter().map(|word| format!(" {}", text(word))).collect();
        let line = format!("{}{rest}", quoted(&brought(&first.to_string_lossy(), &mut files)?));
        programs.push(Program { shown: format!("{}{rest}", text(first)), line, files });
    }
    let only = |option: &str, given: bool| match given && arguments.workload.is_empty() {
        true => Err(Misuse(format!("{option}: is for workloads; a program takes its own arguments"))),
        false => Ok(()),
    };
    only("--set", !arguments.settings.is_empty())?;
    only("--operations", arguments.operations.is_some())?;
    only("--seeds", arguments.seeds > 1)?;
    if programs.is_empty() && !files.is_empty() {
        return Err(Misuse("--file: is for programs; a workload reads none".to_owned()).into());
    }
    Ok(programs)
}

fn fast_of(arguments: &LabCompareArguments, fast: Quantity, size: Bytes) -> anyhow::Result<Bytes> {
    let found = match fast {
        Quantity::Share(share) => fast_of_share(size, share),
        Quantity::Bytes(bytes) => bytes,
    };
    match found >= LEAST_FAST && found <= size {
        true => Ok(found),
        false => Err(misuse("--fast", &arguments.fast, format!("expected from 1MiB up to the footprint, {size}"))),
    }
}

fn cache_of(arguments: &LabCompareArguments, size: Bytes) -> anyhow::Result<Bytes> {
    match &arguments.cache {
        Some(text) => bytes("--cache", text),
        None => Ok(Bytes::new(size.get() / 64)),
    }
}

fn failed(comparison: &mut Comparison, why: &dyn std::fmt::Display) {
    say!("terrace: {why}\n");
    comparison.failures.push(why.to_string());
}

/// The comparison with what made it, and each row with what made that.
fn stamped(arguments: &LabCompareArguments, comparison: &Comparison) -> anyhow::Result<Value> {
    let machine = terrace_machine::preset::Machine::preset(&arguments.machine)
        .map_err(|error| misuse("--machine", &arguments.machine, error))?;
    let mut made = Provenance::here().on(&machine);
    (made.scale, made.pages) = (Some(1), Some("4k".to_owned()));
    let rows: Result<Vec<Value>, anyhow::Error> =
        comparison.rows.iter().map(|row| stamped_row(arguments, &made, row)).collect();
    let mut all = made.stamp(comparison)?;
    all["rows"] = rows?.into();
    Ok(all)
}

/// A row's policy stands with the settings that it ran with, those of the guest's measure included.
fn stamped_row(arguments: &LabCompareArguments, made: &Provenance, row: &Row) -> anyhow::Result<Value> {
    let mut made = made.clone();
    // A program has no seed, and takes none of the workloads' options.
    if row.seed.is_some() {
        let given = arguments.settings.iter().filter_map(|text| text.split_once('='));
        made.workload_settings = given.map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned())).collect();
        made.operations = arguments.operations;
    }
    if let Ok(manager) = Manager::parse(&manager(row))
        && let Some(policy) = manager.policy()
    {
        made = made.under(policy, &manager.runs_with(Bytes::new(row.size_bytes)));
    }
    Ok(made.stamp(row)?)
}

fn one(lab: &Lab, job: &Job, comparison: &mut Comparison) -> anyhow::Result<()> {
    match lab.compare_one(job) {
        Ok((row, course)) => {
            say!("{}\n", progress(&row));
            let manager = manager(&row);
            comparison.courses.push(Named { manager, workload: row.workload.clone(), seed: row.seed, points: course });
            comparison.rows.push(row);
            Ok(())
        }
        // What went wrong in a guest is that run's matter; anything else would go wrong in all of them.
        Err(error @ (LabError::Guest { .. } | LabError::TimeLimit { .. })) => {
            let seed = job.subject.seed().map(|seed| format!(", seed {seed}")).unwrap_or_default();
            failed(comparison, &format!("{} under {}{seed}: {error}", job.subject.name(), job.manager.name()));
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
    for (manager, policy) in managers.iter().filter_map(|manager| Some((manager, manager.policy()?))) {
        if !terrace_policies::POLICIES.iter().any(|info| info.name == policy) {
            return Err(misuse("--managers", policy, "`terrace policies` lists the policies"));
        }
        let mut settings = manager.runs_with(WORKLOAD_SIZE);
        if let Some(rest) = settings.remove("rest") {
            duration("--managers", &rest)?;
        }
        terrace_policies::build(policy, terrace_policies::Settings::from_pairs(settings))
            .map_err(|error| misuse("--managers", &manager.label(), error))?;
    }
    terrace_machine::preset::Machine::preset(&arguments.machine)
        .map(drop)
        .map_err(|error| misuse("--machine", &arguments.machine, error))
}

fn bytes(option: &str, text: &str) -> anyhow::Result<Bytes> {
    text.parse().map_err(|error| misuse(option, text, error))
}
