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
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

use crate::args::ReproduceArguments;
use crate::options::Misuse;

mod experiments;
mod facts;
mod quantity;
mod tuna;

use experiments::{Case, NOT_BUILT, Row};

/// The largest scale of experiments on page sizes: 4 GB are then 7 huge pages, 12 GB are 22. For a first look half of that:
/// MCF cannot be smaller than 4 MiB.
const MMU_SCALE: u32 = 256;
const MMU_QUICK_SCALE: u32 = 512;
/// The scale of a first look.
const QUICK_SCALE: u32 = 4096;
/// The largest scale of Tuna's experiments: the graphs of its smallest programs have the least size of the workloads, 4 MiB, there.
const TUNA_SCALE: u32 = 2048;

pub(super) fn run(arguments: &ReproduceArguments) -> anyhow::Result<ExitCode> {
    let (rows, tuna) = (experiments::rows(), tuna::rows());
    if arguments.ids.iter().any(|id| id == "list") {
        return list(&rows, &tuna, arguments.json);
    }
    let (chosen, chosen_tuna) = chosen(&rows, &tuna, &arguments.ids)?;
    if let Some(path) = arguments.svg.as_ref().filter(|_| chosen_tuna.is_empty()) {
        return Err(Misuse(format!("--svg {}: only tuned runs are drawn (TU)", path.display())).into());
    }
    if arguments.seeds > 1 && chosen.is_empty() {
        let why = "Tuna's rows run one seed, and draw its course: ask for them seed by seed, with --seed N";
        return Err(Misuse(format!("--seeds {}: {why}", arguments.seeds)).into());
    }
    let scale = if arguments.quick { QUICK_SCALE } else { arguments.scale };
    let factor = Scale::new(scale)
        .filter(|scale| (64..=QUICK_SCALE).contains(&scale.factor()))
        .ok_or_else(|| Misuse(format!("--scale {scale}: expected a factor from 64 to {QUICK_SCALE}")))?;
    let others = others(&arguments.settings)?;
    let mut cases: Vec<&Case> = Vec::new();
    for case in chosen.iter().flat_map(|row| &row.cases) {
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let runs: Vec<(&Case, u64)> = (0..arguments.seeds)
        .flat_map(|more| cases.iter().map(move |&case| (case, arguments.seed.wrapping_add(more))))
        .collect();
    let bar = super::sim::compare::progress(runs.len());
    let reports: Result<Vec<(Key, Report)>, anyhow::Error> = runs
        .par_iter()
        .map(|&(case, seed)| {
            let report = one(case, factor, seed, &others).with_context(|| format!("{case}, seed {seed}"))?;
            bar.inc(1);
            Ok(((case.to_string(), seed), report))
        })
        .collect();
    bar.finish_and_clear();
    let reports: BTreeMap<Key, Report> = reports?.into_iter().collect();
    let tuna_runs = match chosen_tuna.is_empty() {
        true => None,
        false => {
            let most = Scale::new(TUNA_SCALE).context("the scale is in range")?;
            Some(tuna::run(&chosen_tuna, factor.min(most), arguments.seed)?)
        }
    };
    if let (Some(path), Some(runs)) = (&arguments.svg, &tuna_runs) {
        draw(path, runs)?;
    }
    print(&chosen, &reports, tuna_runs.as_ref().map(|runs| (chosen_tuna.as_slice(), runs)), scale, arguments)
}

/// Draws the tuned runs over time: beneath TPP, or else beneath FlexMem.
fn draw(path: &std::path::Path, runs: &tuna::Runs) -> anyhow::Result<()> {
    let [tpp, flexmem] = [("tpp", "TPP"), ("flexmem", "FlexMem")].map(|(id, name)| (tuna::courses(runs, id), name));
    let (courses, name) = if tpp.0.is_empty() { flexmem } else { tpp };
    let title = format!("Programs tuned to a loss of 5 % above {name}, simulated");
    if courses.is_empty() {
        return Err(Misuse(format!("--svg {}: the chosen rows have no run tuned to 5 %", path.display())).into());
    }
    crate::report::sim::write_courses(path, &courses, 0.05, &title)
}

/// A run: the case in words, and its seed.
type Key = (String, u64);

/// Settings by policy that take the place of the cases' own: `flexmem.dr_gate=literal`.
fn others(texts: &[String]) -> anyhow::Result<Vec<(String, String, String)>> {
    let one = |text: &String| {
        let parts = text.split_once('=').and_then(|(key, value)| Some((key.trim().split_once('.')?, value.trim())));
        let Some(((policy, key), value)) = parts else {
            return Err(
                Misuse(format!("--set {text}: expected POLICY.KEY=VALUE, such as flexmem.dr_gate=literal")).into()
            );
        };
        // Built once, so that a bad value is told before anything runs.
        terrace_policies::build(policy, Settings::from_pairs([(key, value)]))
            .map_err(|error| Misuse(format!("--set {text}: {error}")))?;
        Ok((policy.to_owned(), key.to_owned(), value.to_owned()))
    };
    texts.iter().map(one).collect()
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
            "hotness-walk" => "HW.",
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
                "expected an id of `terrace reproduce list`, flexmem, tuna, tieredmms, flexhm, hotness-walk or all",
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

/// The largest scale of an experiment on page sizes in a run at this one.
fn mmu_scale(scale: u32) -> u32 {
    if scale == QUICK_SCALE { MMU_QUICK_SCALE } else { MMU_SCALE }
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Real huge pages are as coarse on the scaled machine as on the full one: a program must have some of them.
fn scale_of(case: &Case, scale: Scale) -> anyhow::Result<Scale> {
    Ok(match case.setting.mmu {
        Some(_) => scale.min(Scale::new(mmu_scale(scale.factor())).context("the scale is in range")?),
        None => scale,
    })
}

/// The program of a case on a machine of this scale.
fn parameters(case: &Case, scale: Scale, seed: u64) -> Parameters {
    let mut parameters = Parameters::new(scale.bytes(case.setting.size()).get());
    (parameters.threads, parameters.seed) = (case.setting.threads, seed);
    parameters.operations = case.setting.operations.map(|full| match case.setting.mmu {
        Some(_) => full,
        None => full / u64::from(scale.factor()),
    });
    parameters.options = pairs(case.setting.options);
    parameters
}

/// Runs one case; all-fast and all-slow come of it as well where the row asks for them.
fn one(case: &Case, scale: Scale, seed: u64, others: &[(String, String, String)]) -> anyhow::Result<Report> {
    let machine = super::sim::options::machine(case.setting.machine)?;
    let scale = scale_of(case, scale)?;
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
        config.pages = if case.setting.huge { Pages::Whole } else { Pages::Small };
        config.mmu =
            Some(MmuConfig { miss_cycles: mmu.miss_cycles, counters: None, ..MmuConfig::new(case.setting.threads) });
    }
    let parameters = parameters(case, scale, seed);
    let source = WorkloadSource { name: case.setting.workload.to_owned(), parameters };
    let mut settings = pairs(&case.settings);
    let for_it = others.iter().filter(|(policy, _, _)| policy == case.policy);
    settings.extend(for_it.map(|(_, key, value)| (key.clone(), value.clone())));
    let policy = terrace_policies::build(case.policy, Settings::from_pairs(settings))?;
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
    reports: &BTreeMap<Key, Report>,
    tuna: Option<(&[&tuna::Row], &tuna::Runs)>,
    scale: u32,
    arguments: &ReproduceArguments,
) -> anyhow::Result<ExitCode> {
    let mut list = Vec::new();
    let seeds: Vec<u64> = (0..arguments.seeds).map(|more| arguments.seed.wrapping_add(more)).collect();
    let seed_text = match seeds[..] {
        [only] => format!("seed {only}"),
        _ => format!("seeds {} to {}", seeds[0], seeds[seeds.len() - 1]),
    };
    let mut text = format!("Simulated at scale 1:{scale}, {seed_text}; nothing here was measured.\n");
    if rows.iter().any(|row| row.cases.iter().any(|case| case.setting.mmu.is_some())) {
        text += &format!("Experiments on page sizes (HW) are at most at 1:{}.\n", mmu_scale(scale));
    }
    if tuna.is_some() && scale > TUNA_SCALE {
        text += &format!("Tuna's experiments (TU) are at 1:{TUNA_SCALE}.\n");
    }
    if !arguments.settings.is_empty() {
        text += &format!("Not as the cases have it: {}.\n", arguments.settings.join(", "));
    }
    for row in rows {
        let of_seed = |seed: u64| -> Option<Vec<&Report>> {
            row.cases.iter().map(|case| reports.get(&(case.to_string(), seed))).collect()
        };
        let all: Option<Vec<quantity::Ours>> =
            seeds.iter().map(|&seed| Some(quantity::ours(row, &of_seed(seed)?))).collect();
        let ours = quantity::over_seeds(row, all.context("every case of a chosen row ran")?);
        let config: Vec<String> = row.cases.iter().map(Case::to_string).collect();
        text += &format!(
            "{:18} {}\n{:18} paper {}; ours {}; {}\n",
            row.id, row.quantity, "", row.paper, ours.text, ours.verdict
        );
        list.push(json!({
            "id": row.id, "quantity": row.quantity, "paper": row.paper, "paper_source": row.source, "ours": ours.text,
            "verdict": ours.verdict,
            "config": {
                "scale": scale, "seed": arguments.seed, "seeds": arguments.seeds, "set": arguments.settings, "runs": config
            },
            "paper_value": row.value, "ours_value": ours.value, "ours_detail": ours.detail,
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
            "verdict": ours.verdict, "config": { "scale": scale.min(TUNA_SCALE), "seed": arguments.seed, "runs": cases },
            "paper_value": row.value, "ours_value": ours.value, "ours_detail": ours.detail, "courses": courses,
        }));
    }
    if arguments.json {
        let runs: Vec<_> = reports.iter().map(|((run, seed), report)| facts::of(run, *seed, report)).collect();
        super::print_json(&json!({ "rows": list, "runs": runs }))?;
    } else {
        super::print_text(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_on_the_modelled_mmu_can_be_as_small_as_their_scale_makes_them() {
        let rows = experiments::rows();
        for case in rows.iter().flat_map(|row| &row.cases).filter(|case| case.setting.mmu.is_some()) {
            for factor in [64, 1024, QUICK_SCALE] {
                let scale = scale_of(case, Scale::new(factor).unwrap()).unwrap();
                if let Err(error) = terrace_workloads::build(case.setting.workload, &parameters(case, scale, 1)) {
                    panic!("{case} at 1:{factor}: {error}");
                }
            }
        }
    }
}
