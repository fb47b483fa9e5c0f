//! `terrace reproduce`: the papers' figures beside what the simulator computes for the same experiment.
//!
//! In: ids. Out: rows of paper, ours and verdict. Must not: fit anything to a figure, or print a value of ours that no
//! run produced: what cannot be run yet is listed as not built.
//!
//! `experiments` declares the rows, `quantity` computes a value from reports, and this runs each distinct case once.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Context;
use rayon::prelude::*;
use serde_json::json;
use terrace_core::units::Bytes;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::{bounds, run_alone};
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

use crate::args::ReproduceArguments;
use crate::options::Misuse;

mod experiments;
mod quantity;

use experiments::{Case, NOT_BUILT, Row};

/// The largest scale of experiments on page sizes: 4 GB are then 7 huge pages, 12 GB are 22. For a first look a quarter of that.
const MMU_SCALE: u32 = 256;
const MMU_QUICK_SCALE: u32 = 1024;
/// The scale of a first look.
const QUICK_SCALE: u32 = 4096;

pub(super) fn run(arguments: &ReproduceArguments) -> anyhow::Result<ExitCode> {
    let rows = experiments::rows();
    if arguments.ids.iter().any(|id| id == "list") {
        return list(&rows, arguments.json);
    }
    let chosen = chosen(&rows, &arguments.ids)?;
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
    print(&chosen, &reports, scale, arguments)
}

fn chosen<'a>(rows: &'a [Row], ids: &[String]) -> anyhow::Result<Vec<&'a Row>> {
    let mut chosen: Vec<&Row> = Vec::new();
    for id in ids {
        let prefix = match id.as_str() {
            "all" => "",
            "flexmem" => "FM.",
            "tieredmms" => "MM.",
            "flexhm" => "FH.",
            "hotness-walk" => "HW.",
            _ => id,
        };
        let whole = prefix.is_empty() || prefix.ends_with('.');
        let found = rows.iter().filter(|row| if whole { row.id.starts_with(prefix) } else { row.id == prefix });
        let found: Vec<&Row> = found.collect();
        if found.is_empty() {
            let not_built = NOT_BUILT.iter().find(|(known, _)| *known == prefix);
            let why = not_built.map_or(
                "expected an id of `terrace reproduce list`, flexmem, tieredmms, flexhm, hotness-walk or all",
                |(_, why)| why,
            );
            return Err(Misuse(format!("{id}: {why}")).into());
        }
        for row in found {
            if !chosen.iter().any(|other| std::ptr::eq(*other, row)) {
                chosen.push(row);
            }
        }
    }
    Ok(chosen)
}

/// The largest scale of an experiment on page sizes in a run at this one.
fn mmu_scale(scale: u32) -> u32 {
    if scale == QUICK_SCALE { MMU_QUICK_SCALE } else { MMU_SCALE }
}

/// Runs one case; all-fast and all-slow come of it as well where the row asks for them.
fn one(case: &Case, scale: Scale, seed: u64) -> anyhow::Result<Report> {
    let machine = super::sim::options::machine(case.setting.machine)?;
    // Real huge pages are as coarse on the scaled machine as on the full one: a program must have some of them.
    let scale = match case.setting.mmu {
        Some(_) => scale.min(Scale::new(mmu_scale(scale.factor())).context("the scale is in range")?),
        None => scale,
    };
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
    if let Some(mmu) = case.setting.mmu {
        config.pages = if case.setting.huge { Pages::Huge } else { Pages::Small };
        config.mmu =
            Some(MmuConfig { miss_cycles: mmu.miss_cycles, counters: None, ..MmuConfig::new(case.setting.threads) });
    }
    let mut parameters = Parameters::new(footprint.get());
    (parameters.threads, parameters.seed) = (case.setting.threads, seed);
    parameters.operations = case.setting.operations.map(|full| match case.setting.mmu {
        Some(_) => full,
        None => full / u64::from(scale.factor()),
    });
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

fn list(rows: &[Row], json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let built: Vec<_> = rows
            .iter()
            .map(
                |row| json!({ "id": row.id, "quantity": row.quantity, "paper": row.paper, "paper_source": row.source }),
            )
            .collect();
        let missing: Vec<_> = NOT_BUILT.iter().map(|(id, why)| json!({ "id": id, "why": why })).collect();
        super::print_json(&json!({ "rows": built, "not_built": missing }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::new();
    for row in rows {
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
    scale: u32,
    arguments: &ReproduceArguments,
) -> anyhow::Result<ExitCode> {
    let mut list = Vec::new();
    let mut text = format!("Simulated at scale 1:{scale}, seed {}; nothing here was measured.\n", arguments.seed);
    if rows.iter().any(|row| row.cases.iter().any(|case| case.setting.mmu.is_some())) {
        text += &format!("Experiments on page sizes (HW) are at most at 1:{}.\n", mmu_scale(scale));
    }
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
            "paper_value": row.value, "ours_value": ours.value, "ours_detail": ours.detail,
        }));
    }
    if arguments.json {
        super::print_json(&json!({ "rows": list }))?;
    } else {
        super::print_text(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
