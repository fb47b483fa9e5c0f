//! `terrace size forecast`: what less fast memory would cost a workload or a recorded program, under each policy, and which needs least.
//!
//! In: a workload or a trace, a modelled machine, policies, a target. Out: a curve a policy with its error, the careful size, the policy that needs
//! least. Must not: know what a policy would do; `terrace_sizing::forecast` plays it.

use std::path::Path;
use std::process::ExitCode;

use rayon::prelude::*;
use serde_json::json;
use terrace_core::units::{Bytes, parse_share};
use terrace_sim::{Pages, SimConfig};
use terrace_sizing::forecast::{ALL_FAST, Cell, Curve, NO_MIGRATION, Played, Request, SHARES, best};
use terrace_sizing::tape::{self, Tape, TapeError};
use terrace_study::Error;
use terrace_study::options::{OneRun, Own, PolicySettings, Trace, failed, workload_source};

use crate::args::{BesideArguments, OneRunArguments, SizeForecastArguments};
use crate::options::{Misuse, footprint, misuse};
use crate::provenance::Provenance;
use crate::report::units;

pub(super) fn run(arguments: &SizeForecastArguments) -> anyhow::Result<ExitCode> {
    let target = super::max_slowdown(&arguments.max_slowdown)?;
    let request = Request { shares: shares(&arguments.fast)?, policies: policies(&arguments.policies)?, target };
    let settings = PolicySettings::parse(&arguments.model.settings, &request.policies, &Own::new())?;
    let raw = one_run(arguments);
    let mut one = OneRun::prepare(&raw, &request.policies, settings.clone())?;
    // Page tables cannot be thinned out: a sample of pages has no walk of its own.
    if one.config.mmu.take().is_some() {
        return Err(Misuse(
            "size forecast: the MMU cannot be modelled on a sample of pages: leave out its options, --pages 2m, and policies that read its counters"
                .to_owned(),
        )
        .into());
    }
    if one.config.pages == Pages::Traced {
        one.config.pages = Pages::Small;
    }
    let one_in = one_in(one.source.footprint(), arguments.sample);
    let tapes = tapes(arguments, one_in)?;
    if tapes.iter().all(Tape::is_empty) {
        return Err(misuse("--sample", &arguments.sample.to_string(), "no access is to a page of the sample"));
    }
    let curves = curves(&request, &one.config, &tapes, usize::from(arguments.groups), &settings)?;
    let chosen = best(&curves).ok_or_else(|| Misuse("--policies: expected at least one".to_owned()))?;
    if arguments.json {
        let made = Provenance { command: Provenance::here().command, policy: None, ..one.made.clone() };
        super::super::print_json(&made.stamp(&json!({
            "max_slowdown": target, "fast_share": chosen.fast_share, "fast_share_expected": chosen.fast_share_expected,
            "policy": chosen.policy, "probability_over_target": chosen.probability_over_target,
            "sample_one_in": one_in, "groups": arguments.groups, "sample_pages": tapes.iter().map(pages_of).sum::<u64>(),
            "accesses": tapes.iter().map(Tape::len).sum::<usize>(), "policies": curves,
        }))?)?;
    } else {
        super::super::print_text(&text(&curves, chosen, &tapes, arguments.groups, target))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn pages_of(tape: &Tape) -> u64 {
    terrace_sim::Source::footprint(tape).pages()
}

/// Plays every cell on all cores.
pub(super) fn curves(
    request: &Request,
    config: &SimConfig,
    tapes: &[Tape],
    groups: usize,
    settings: &PolicySettings,
) -> anyhow::Result<Vec<Curve>> {
    let play = |cells: &Vec<Cell>| -> Result<Vec<Played>, Error> {
        request.play(config, tapes, cells, |name| settings.build(name)).map_err(|error| match error {
            Error::Simulation(error) => failed(error),
            other => other,
        })
    };
    let parts = request.parts(tapes, groups);
    let played = parts.par_iter().map(play).collect::<Result<Vec<_>, _>>()?.concat();
    Ok(request.curves(&played, tapes))
}

/// The sizes asked for, in order, each once; those of a usual curve if none is.
fn shares(texts: &[String]) -> anyhow::Result<Vec<f64>> {
    let mut shares = match texts {
        [] => SHARES.to_vec(),
        given => given
            .iter()
            .map(|text| match parse_share(text) {
                Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
                _ => Err(misuse("--fast", text, "expected shares above 0% and below 100%, such as 50%,80%")),
            })
            .collect::<anyhow::Result<_>>()?,
    };
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    Ok(shares)
}

/// The policies asked for, after the one that moves nothing.
pub(super) fn policies(names: &[String]) -> anyhow::Result<Vec<String>> {
    let mut all = vec![NO_MIGRATION.to_owned()];
    for name in names {
        if name == ALL_FAST {
            return Err(misuse("--policies", name, "expected policies that have less than everything fast"));
        }
        if !all.contains(name) {
            all.push(name.clone());
        }
    }
    Ok(all)
}

/// How many pages each page of a sample stands for, so that a group has `pages` of them or more.
fn one_in(footprint: Bytes, pages: u32) -> u32 {
    let ways = u32::try_from(footprint.pages() / u64::from(pages.max(1))).unwrap_or(u32::MAX);
    if ways < 2 { 1 } else { 1 << ways.ilog2() }
}

fn one_run(arguments: &SizeForecastArguments) -> OneRunArguments {
    OneRunArguments {
        workload: arguments.workload.clone(),
        trace: arguments.trace.clone(),
        max_footprint: arguments.max_footprint.clone(),
        policy: NO_MIGRATION.to_owned(),
        fast: "100%".to_owned(),
        seed: arguments.seed,
        beside: BesideArguments { beside: None, every: 1 },
        model: arguments.model.clone(),
    }
}

fn tapes(arguments: &SizeForecastArguments, one_in: u32) -> anyhow::Result<Vec<Tape>> {
    let groups = u32::from(arguments.groups);
    let failed = |error: TapeError| match error {
        TapeError::TooMany(_) => misuse("--sample", &arguments.sample.to_string(), error),
        other => other.into(),
    };
    match (&arguments.trace, &arguments.workload) {
        (Some(path), _) => of_trace(path, &arguments.max_footprint, one_in, groups, failed),
        (None, Some(name)) => {
            let source = workload_source(name, &arguments.model, arguments.seed)?;
            tape::of_workload(&source.name, &source.parameters, one_in, groups).map_err(failed)
        }
        (None, None) => Err(Misuse("--workload or --trace: expected one of them".to_owned()).into()),
    }
}

fn of_trace(
    path: &Path,
    most: &str,
    one_in: u32,
    groups: u32,
    failed: impl Fn(TapeError) -> anyhow::Error,
) -> anyhow::Result<Vec<Tape>> {
    let trace = Trace::open(path, footprint(most)?)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut reader = trace.reader().map_err(Misuse)?;
    tape::of_trace(&name, &mut reader, one_in, groups).map_err(failed)
}

fn text(curves: &[Curve], chosen: &Curve, tapes: &[Tape], groups: u16, target: f64) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let one_in = tapes.first().map_or(1, |tape| tape.sample().one_in());
    let mut out = match chosen.fast_share < 1.0 {
        true => format!(
            "{} of its memory fast under {}: a loss above {} has a probability of {}\n",
            units::percent(chosen.fast_share),
            chosen.policy,
            percent(target),
            percent(chosen.probability_over_target)
        ),
        false => format!("no size below all of it keeps a loss of {} under any of the policies\n", percent(target)),
    };
    let played = match one_in {
        1 => format!("all pages with {}", units::counted(u64::from(groups), "seed", "seeds")),
        _ => format!("{} of one in {one_in} of the pages", units::counted(u64::from(groups), "sample", "samples")),
    };
    let accesses = units::count(tapes.iter().map(Tape::len).sum::<usize>() as u64);
    out += &format!("played on {played}, {accesses} accesses; predicted by a model, not measured\n");
    for curve in curves {
        out += &format!(
            "  {:<14} {:>5} carefully, {:>5} as expected\n",
            curve.policy,
            units::percent(curve.fast_share),
            units::percent(curve.fast_share_expected)
        );
        for point in &curve.curve {
            out += &format!(
                "    {:>5} fast: loss {:>8} ({} to {}), {} of the accesses slow ({} by recency)\n",
                units::percent(point.fast_share),
                percent(point.loss),
                percent(point.loss_low),
                percent(point.loss_high),
                percent(point.slow_share),
                percent(point.slow_share_by_recency)
            );
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_at_least_the_pages_asked_for() {
        let of = |pages: u64| one_in(Bytes::of_pages(pages), 2048);
        assert_eq!([100, 2048, 4095, 4096, 9000, 1 << 20].map(of), [1, 1, 1, 2, 4, 512]);
    }

    #[test]
    fn moving_nothing_is_always_a_candidate() {
        assert_eq!(policies(&["tpp".to_owned(), NO_MIGRATION.to_owned()]).unwrap(), [NO_MIGRATION, "tpp"]);
        assert!(policies(&[ALL_FAST.to_owned()]).unwrap_err().is::<Misuse>());
        assert!(shares(&["0%".to_owned()]).is_err() && shares(&["100%".to_owned()]).is_err());
        assert_eq!(shares(&["50%".to_owned(), "20%".to_owned(), "50%".to_owned()]).unwrap(), [0.2, 0.5]);
    }
}
