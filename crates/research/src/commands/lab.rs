//! `terrace lab`: stock kernels in QEMU with fast and slow memory.
//!
//! In: a machine, or scenario files. Out: reports on stdout; exit code 1 if something was not as it must. Must not: judge, which
//! is the work of `terrace-lab`, or leave a guest running.

mod brought;
mod compare;
mod record;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use terrace_core::units::{Bytes, parse_duration};
use terrace_lab::{Cache, Lab, LabError, Machine, Mode, Scenario, ScenarioReport, Topology};

use crate::args::{
    LabBootArguments, LabCommand, LabHostArguments, LabKernelsArguments, LabMachineArguments, LabRunArguments,
    LabShellArguments,
};
use crate::options::{Misuse, misuse};
use crate::render;

/// Where the scenarios lie whose name is enough.
const SCENARIOS: &str = "lab/scenarios";

pub(super) fn run(command: &LabCommand) -> anyhow::Result<ExitCode> {
    let done = match command {
        LabCommand::Boot(arguments) => boot(arguments),
        LabCommand::Run(arguments) => scenarios(arguments),
        LabCommand::Compare(arguments) => compare::run(arguments),
        LabCommand::Record(arguments) => record::run(arguments),
        LabCommand::Shell(arguments) => shell(arguments),
        LabCommand::Kernels(arguments) => kernels(arguments).map(|()| ExitCode::SUCCESS),
    };
    done.map_err(|error| match error.downcast::<LabError>() {
        Ok(LabError::Invalid(what)) => Misuse(what).into(),
        // Its text holds that of its source, which would stand there twice.
        Ok(other) => anyhow::anyhow!("{other}"),
        Err(error) => error,
    })
}

fn boot(arguments: &LabBootArguments) -> anyhow::Result<ExitCode> {
    let limit = time_limit(&arguments.time_limit)?;
    let machine = machine(&arguments.machine)?;
    let lab = lab(&arguments.host)?;
    show(&lab.boot(&machine, &arguments.machine.kernel, &arguments.machine.modules, limit)?, arguments.json)
}

fn scenarios(arguments: &LabRunArguments) -> anyhow::Result<ExitCode> {
    let limit = arguments.time_limit.as_deref().map(time_limit).transpose()?;
    // All are read before the first is run: a mistake in the last shows at once.
    let mut scenarios =
        arguments.scenarios.iter().map(|path| Scenario::read(&found(path))).collect::<Result<Vec<_>, _>>()?;
    for scenario in &mut scenarios {
        scenario.time_limit = limit.unwrap_or(scenario.time_limit);
    }
    let lab = lab(&arguments.host)?;
    let mut code = ExitCode::SUCCESS;
    for scenario in &scenarios {
        let kernels = match arguments.kernel.as_deref() {
            Some("all") => scenario.kernels.clone(),
            Some(kernel) => vec![kernel.to_owned()],
            None => vec![scenario.kernels[0].clone()],
        };
        for kernel in kernels {
            let report = lab.run(scenario, Some(&kernel))?;
            let one = show(&report, arguments.json)?;
            code = if one == ExitCode::SUCCESS { code } else { one };
            if let Some(path) = &arguments.table {
                // After each run: what ran before a failure stays told.
                enter(path, &report)?;
            }
        }
    }
    Ok(code)
}

fn enter(path: &Path, report: &ScenarioReport) -> anyhow::Result<()> {
    let named = || path.display().to_string();
    let document = terrace_files::read_to_string(path, 16 << 20).with_context(named)?;
    let document = terrace_lab::table::with_results(&document, std::slice::from_ref(report));
    let document = document.map_err(|why| misuse("--table", &named(), why))?;
    terrace_files::write(path, document).with_context(named)
}

fn shell(arguments: &LabShellArguments) -> anyhow::Result<ExitCode> {
    let machine = machine(&arguments.machine)?;
    let status = lab(&arguments.host)?.shell(&machine, &arguments.machine.kernel, &arguments.machine.modules)?;
    Ok(ExitCode::from(u8::from(!status.success())))
}

fn kernels(arguments: &LabKernelsArguments) -> anyhow::Result<()> {
    let cache = Cache::of_user()?.with_mirror(arguments.mirror.clone());
    let here = cache.present()?;
    let offered = if arguments.refresh { Some(cache.offered(true)?) } else { None };
    let json = serde_json::json!({"folder": cache.folder(), "cached": here, "offered": offered});
    super::print(arguments.json, &json, |_| render::lab::kernels(cache.folder(), &here, offered.as_deref()))
}

fn show(report: &ScenarioReport, json: bool) -> anyhow::Result<ExitCode> {
    super::print(json, report, |_| render::lab::report(report))?;
    Ok(ExitCode::from(u8::from(!report.passed)))
}

/// A scenario's file; a name without a folder and an ending is one of lab/scenarios.
fn found(given: &Path) -> PathBuf {
    let is_name = given.components().count() == 1 && given.extension().is_none() && !given.exists();
    if is_name { Path::new(SCENARIOS).join(given).with_extension("toml") } else { given.to_owned() }
}

fn time_limit(text: &str) -> anyhow::Result<Duration> {
    match parse_duration(text) {
        Ok(limit) if limit >= Duration::from_secs(1) => Ok(limit),
        Ok(_) => Err(misuse("--time-limit", text, "expected a second at least")),
        Err(error) => Err(misuse("--time-limit", text, error)),
    }
}

fn machine(arguments: &LabMachineArguments) -> anyhow::Result<Machine> {
    let size = |option: &str, text: &str| text.parse::<Bytes>().map_err(|error| misuse(option, text, error));
    let topology = Topology::ALL.into_iter().find(|topology| topology.name() == arguments.topology);
    let names = Topology::ALL.map(Topology::name).join(", ");
    Ok(Machine {
        topology: topology.ok_or_else(|| misuse("--topology", &arguments.topology, format!("expected {names}")))?,
        fast: size("--fast", &arguments.fast)?,
        slow: size("--slow", &arguments.slow)?,
        zram: size("--zram", &arguments.zram)?,
        cpus: arguments.cpus,
        kvm: false,
    })
}

fn lab(arguments: &LabHostArguments) -> anyhow::Result<Lab> {
    let mode = match (arguments.deterministic, arguments.real_time) {
        (true, _) => Mode::Deterministic,
        (_, true) => Mode::Fast,
        _ => Mode::of_environment(),
    };
    let cache = Cache::of_user()?.with_mirror(arguments.mirror.clone());
    let terrace = arguments.binary.clone().unwrap_or_else(Lab::usual_terrace);
    if let Some(folder) = &arguments.keep {
        std::fs::create_dir_all(folder).map_err(|error| misuse("--keep", &folder.display().to_string(), error))?;
    }
    Ok(Lab { cache, terrace, mode, refresh: arguments.refresh, keep: arguments.keep.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_a_scenario_of_the_repository() {
        assert_eq!(found(Path::new("cold-leaves")), Path::new("lab/scenarios/cold-leaves.toml"));
        assert_eq!(found(Path::new("mine.toml")), Path::new("mine.toml"));
        assert_eq!(found(Path::new("./cold-leaves")), Path::new("./cold-leaves"));
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        assert!(time_limit("0s").unwrap_err().to_string().contains("--time-limit 0s"));
        assert_eq!(time_limit("90s").unwrap(), Duration::from_secs(90));
    }
}
