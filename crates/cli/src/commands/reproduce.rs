//! `terrace reproduce`: the papers' figures beside what the simulator computes for the same experiment.
//!
//! In: ids. Out: rows of paper, ours and verdict. Must not: fit anything to a figure, or print a value of ours that no
//! run produced: what cannot be run yet is listed as not built.
//!
//! `experiments` declares the rows, `quantity` computes a value from reports, and this runs each distinct case once. Tuna's
//! experiments change the size of fast memory while they run and predict what it costs: they are `tuna`'s.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use rayon::prelude::*;
use serde_json::json;
use terrace_core::units::Bytes;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::{bounds, run_alone};
use terrace_sim::{FastSize, Pages, Report, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

use crate::args::ReproduceArguments;
use crate::options::Misuse;

mod experiments;
mod quantity;
mod tuna;

use experiments::{Case, NOT_BUILT, Row};

/// The scale of a first look.
const QUICK_SCALE: u32 = 4096;

pub(super) fn run(arguments: &ReproduceArguments) -> anyhow::Result<ExitCode> {
    let (rows, tuna) = (experiments::rows(), tuna::rows());
    if arguments.ids.iter().any(|id| id == "list") {
        return list(&rows, &tuna, arguments.json);
    }
    let (chosen, chosen_tuna) = chosen(&rows, &tuna, &arguments.ids)?;
    let scale = if arguments.quick { QUICK_SCALE } else { arguments.scale };
    let factor = Scale::new(scale)
        .filter(|scale| (64..=QUICK_SCALE).contains(&scale.factor()))
        .ok_or_else(|| Misuse(format!("--scale {scale}: expected a factor from 64 to {QUICK_SCALE}")))?;
    let mut cases: Vec<&Case> = Vec::new();
    for case in chosen.iter().flat_map(|row| &row.cases) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let bar = super::sim::compare::progress(cases.len());
    let reports: Result<Vec<(String, Report)>, anyhow::Error> = cases
        .par_iter()
        .map(|case| {
            let report = one(case, factor, arguments.seed).with_context(|| format!("{case}"))?;
            bar.inc(1);
            Ok((case.to_string(), report))
        })
        .collect();
    bar.finish_and_clear();
    let reports: BTreeMap<String, Report> = reports?.into_iter().collect();
    let tuna_runs = match chosen_tuna.is_empty() {
        true => None,
        false => Some(tuna::run(&chosen_tuna, factor, arguments.seed)?),
    };
    print(&chosen, &reports, tuna_runs.as_ref().map(|runs| (chosen_tuna.as_slice(), runs)), scale, arguments)
}

/// The rows that the ids ask for, Tuna's apart.
fn chosen<'a>(
    rows: &'a [Row],
    tuna: &'a [tuna::Row],
    ids: &[String],
) -> anyhow::Result<(Vec<&'a Row>, Vec<&'a tuna::Row>)> {
    let mut chosen: Vec<&Row> = Vec::new();
    let mut chosen_tuna: Vec<&tuna::Row> = Vec::new();
    for id in ids {
        let prefix = match id.as_str() {
            "all" => "",
            "flexmem" => "FM.",
            "tieredmms" => "MM.",
            "flexhm" => "FH.",
            "tuna" => "TU.",
            _ => id,
        };
        let whole = prefix.is_empty() || prefix.ends_with('.');
        let is_meant = |id: &str| if whole { id.starts_with(prefix) } else { id == prefix };
        let found: Vec<&Row> = rows.iter().filter(|row| is_meant(row.id)).collect();
        let found_tuna: Vec<&tuna::Row> = tuna.iter().filter(|row| is_meant(&row.id)).collect();
        if found.is_empty() && found_tuna.is_empty() {
            let not_built = NOT_BUILT.iter().find(|(known, _)| *known == prefix);
            let why = not_built.map_or(
                "expected an id of `terrace reproduce list`, flexmem, tuna, tieredmms, flexhm or all",
                |(_, why)| why,
            );
            return Err(Misuse(format!("{id}: {why}")).into());
        }
        for row in found {
            if !chosen.iter().any(|other| std::ptr::eq(*other, row)) {
                chosen.push(row);
            }
        }
        for row in found_tuna {
            if !chosen_tuna.iter().any(|other| std::ptr::eq(*other, row)) {
                chosen_tuna.push(row);
            }
        }
    }
    Ok((chosen, chosen_tuna))
}

/// Runs one case; all-fast and all-slow come of it as well where the row asks for them.
fn one(case: &Case, scale: Scale, seed: u64) -> anyhow::Result<Report> {
    let machine = super::sim::options::machine(case.setting.machine)?;
    let footprint = scale.bytes(case.setting.size());
    let fast = match case.setting.fast {
        experiments::Fast::Share(share) => FastSize::Share(share),
        experiments::Fast::Gigabytes(amount) => {
            FastSize::Bytes(Bytes::new((amount * 1e9 / f64::from(scale.factor())) as u64))
        }
    };
    let mut config = SimConfig::new(machine, footprint, fast);
    (config.scale, config.seed) = (scale, seed);
    config.pages = if case.setting.huge { Pages::Folded } else { Pages::Small };
    let mut parameters = Parameters::new(footprint.get());
    (parameters.threads, parameters.seed) = (case.setting.threads, seed);
    parameters.operations = case.setting.operations.map(|full| full / u64::from(scale.factor()));
    let own = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    parameters.options = own(case.setting.options);
    let source = WorkloadSource { name: case.setting.workload.to_owned(), parameters };
    let policy = terrace_policies::build(case.policy, Settings::from_pairs(own(&case.settings)))?;
    let mut report = run_alone(&config, &source, policy)?;
    if case.bounds {
        report.compare_with(&bounds(&config, &source)?);
    }
    Ok(report)
}

fn list(rows: &[Row], tuna: &[tuna::Row], json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let mut built: Vec<_> = rows
            .iter()
            .map(
                |row| json!({ "id": row.id, "quantity": row.quantity, "paper": row.paper, "paper_source": row.source }),
            )
            .collect();
        built.extend(tuna.iter().map(
            |row| json!({ "id": row.id, "quantity": row.quantity, "paper": row.paper, "paper_source": row.source }),
        ));
        let missing: Vec<_> = NOT_BUILT.iter().map(|(id, why)| json!({ "id": id, "why": why })).collect();
        super::print_json(&json!({ "rows": built, "not_built": missing }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for row in rows {
        text += &format!("{:18} {}; paper: {} ({})\n", row.id, row.quantity, row.paper, row.source);
    }
    for row in tuna {
        text += &format!("{:18} {}; paper: {} ({})\n", row.id, row.quantity, row.paper, row.source);
    }
    text += "\nNot built\n";
    for (id, why) in NOT_BUILT {
        text += &format!("{id:18} {why}\n");
    }
    super::print_text(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn print(
    rows: &[&Row],
    reports: &BTreeMap<String, Report>,
    tuna: Option<(&[&tuna::Row], &tuna::Runs)>,
    scale: u32,
    arguments: &ReproduceArguments,
) -> anyhow::Result<ExitCode> {
    let mut list = Vec::new();
    let mut text = format!("Simulated at scale 1:{scale}, seed {}; nothing here was measured.\n", arguments.seed);
    for row in rows {
        let of: Option<Vec<&Report>> = row.cases.iter().map(|case| reports.get(&case.to_string())).collect();
        let ours = quantity::ours(row, &of.context("every case of a chosen row ran")?);
        let config: Vec<String> = row.cases.iter().map(Case::to_string).collect();
        text += &format!(
            "{:18} {}\n{:18} paper {}; ours {}; {}\n",
            row.id, row.quantity, "", row.paper, ours.text, ours.verdict
        );
        list.push(json!({
            "id": row.id, "quantity": row.quantity, "paper": row.paper, "paper_source": row.source, "ours": ours.text,
            "verdict": ours.verdict, "config": { "scale": scale, "seed": arguments.seed, "runs": config },
            "paper_value": row.value, "ours_value": ours.value,
        }));
    }
    for (row, runs) in tuna.iter().flat_map(|(rows, runs)| rows.iter().map(move |row| (*row, *runs))) {
        let ours = row.ours(runs).with_context(|| row.id.clone())?;
        let cases: Vec<String> = row.cases.iter().map(tuna::Case::to_string).collect();
        let courses: Vec<_> =
            row.courses(runs).iter().map(|(case, course)| json!({ "run": case, "intervals": course })).collect();
        text += &format!(
            "{:18} {}\n{:18} paper {}; ours {}; {}\n",
            row.id, row.quantity, "", row.paper, ours.text, ours.verdict
        );
        list.push(json!({
            "id": row.id, "quantity": row.quantity, "paper": row.paper, "paper_source": row.source, "ours": ours.text,
            "verdict": ours.verdict, "config": { "scale": scale, "seed": arguments.seed, "runs": cases },
            "paper_value": row.value, "ours_value": ours.value, "courses": courses,
        }));
    }
    if arguments.json {
        super::print_json(&json!({ "rows": list }))?;
    } else {
        super::print_text(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
