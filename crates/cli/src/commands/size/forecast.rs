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

use crate::args::{CandidateArguments, ProgramArguments, SizeForecastArguments};
use crate::options::{Misuse, footprint, misuse};
use crate::provenance::Provenance;
use crate::report::units;

/// What is to be chosen between: sizes, policies with their settings, the target.
pub(super) struct Candidates {
    pub request: Request,
    pub settings: PolicySettings,
}

impl Candidates {
    pub(super) fn parse(raw: &CandidateArguments, settings: &[String]) -> anyhow::Result<Candidates> {
        let target = super::max_slowdown(&raw.max_slowdown)?;
        let request = Request { shares: shares(&raw.fast)?, policies: policies(&raw.policies)?, target };
        let settings = PolicySettings::parse(settings, &request.policies, &Own::new())?;
        Ok(Candidates { request, settings })
    }

    /// Plays every cell on all cores: a curve a policy.
    pub(super) fn curves(&self, config: &SimConfig, tapes: &[Tape], groups: usize) -> anyhow::Result<Vec<Curve>> {
        let play = |cells: &Vec<Cell>| -> Result<Vec<Played>, Error> {
            self.request.play(config, tapes, cells, |name| self.settings.build(name)).map_err(|error| match error {
                Error::Simulation(error) => failed(error),
                other => other,
            })
        };
        let parts = self.request.parts(tapes, groups);
        let played = parts.par_iter().map(play).collect::<Result<Vec<_>, _>>()?.concat();
        Ok(self.request.curves(&played, tapes))
    }
}

/// A program that is simulated or was recorded: what it did with its pages, and the terms on which that is played.
pub(super) struct Program {
    pub one: OneRun,
    pub tapes: Vec<Tape>,
    pub groups: u16,
}

impl Program {
    pub(super) fn prepare(
        raw: &ProgramArguments,
        of: &CandidateArguments,
        candidates: &Candidates,
    ) -> anyhow::Result<Program> {
        let policies = &candidates.request.policies;
        let mut one = OneRun::prepare(&raw.all_fast(NO_MIGRATION), policies, candidates.settings.clone())?;
        // Page tables cannot be thinned out: a sample of pages has no walk of its own.
        if one.config.mmu.take().is_some() {
            return Err(Misuse(
                "the MMU cannot be modelled on a sample of pages: leave out its options, --pages 2m, and policies that read its counters"
                    .to_owned(),
            )
            .into());
        }
        if one.config.pages == Pages::Traced {
            one.config.pages = Pages::Small;
        }
        let tapes = tapes(raw, of, one_in(one.source.footprint(), of.sample))?;
        if tapes.iter().all(Tape::is_empty) {
            return Err(misuse("--sample", &of.sample.to_string(), "no access is to a page of the sample"));
        }
        Ok(Program { one, tapes, groups: of.groups })
    }

    /// Pages and accesses that are played.
    pub(super) fn sampled(&self) -> (u64, usize) {
        (self.tapes.iter().map(pages_of).sum(), self.tapes.iter().map(Tape::len).sum())
    }

    /// What is played, for people.
    pub(super) fn played(&self) -> String {
        let groups = u64::from(self.groups);
        let played = match self.one_in() {
            1 => format!("all pages with {}", units::counted(groups, "seed", "seeds")),
            ways => format!("{} of one in {ways} of the pages", units::counted(groups, "sample", "samples")),
        };
        let accesses = units::count(self.sampled().1 as u64);
        format!("played on {played}, {accesses} accesses; predicted by a model, not measured")
    }

    /// How many pages each page of a sample stands for.
    pub(super) fn one_in(&self) -> u32 {
        self.tapes.first().map_or(1, |tape| tape.sample().one_in())
    }
}

pub(super) fn run(arguments: &SizeForecastArguments) -> anyhow::Result<ExitCode> {
    let candidates = Candidates::parse(&arguments.candidates, &arguments.program.model.settings)?;
    let target = candidates.request.target;
    let program = Program::prepare(&arguments.program, &arguments.candidates, &candidates)?;
    let curves = candidates.curves(&program.one.config, &program.tapes, usize::from(program.groups))?;
    let chosen = best(&curves).ok_or_else(|| Misuse("--policies: expected at least one".to_owned()))?;
    if arguments.json {
        let made = Provenance { command: Provenance::here().command, policy: None, ..program.one.made.clone() };
        let (pages, accesses) = program.sampled();
        super::super::print_json(&made.stamp(&json!({
            "max_slowdown": target, "fast_share": chosen.fast_share, "fast_share_expected": chosen.fast_share_expected,
            "policy": chosen.policy, "probability_over_target": chosen.probability_over_target,
            "sample_one_in": program.one_in(), "groups": program.groups, "sample_pages": pages,
            "accesses": accesses, "policies": curves,
        }))?)?;
    } else {
        super::super::print_text(&text(&curves, chosen, &program, target))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn pages_of(tape: &Tape) -> u64 {
    terrace_sim::Source::footprint(tape).pages()
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
fn policies(names: &[String]) -> anyhow::Result<Vec<String>> {
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

fn tapes(program: &ProgramArguments, of: &CandidateArguments, one_in: u32) -> anyhow::Result<Vec<Tape>> {
    let groups = u32::from(of.groups);
    let failed = |error: TapeError| match error {
        TapeError::TooMany(_) => misuse("--sample", &of.sample.to_string(), error),
        other => other.into(),
    };
    match (&program.trace, &program.workload) {
        (Some(path), _) => of_trace(path, &program.max_footprint, one_in, groups, failed),
        (None, Some(name)) => {
            let source = workload_source(name, &program.model, program.seed)?;
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

fn text(curves: &[Curve], chosen: &Curve, program: &Program, target: f64) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
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
    out += &format!("{}\n", program.played());
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
