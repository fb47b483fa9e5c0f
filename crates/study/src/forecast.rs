//! What less fast memory would cost a workload or a recorded program, under each policy: what `terrace size forecast`, `terrace size advise` and the Python
//! package share.
//!
//! In: a workload or a trace, policies, sizes, a target, as texts. Out: curves. Must not: know what a policy would do; `terrace_sizing::forecast` plays it.

use terrace_common::arguments::{CandidateArguments, ProgramArguments};
use terrace_common::{figures, max_slowdown};
use terrace_core::units::{Bytes, parse_share};
use terrace_sim::{Pages, SimConfig};
use terrace_sizing::forecast::{ALL_FAST, Curve, NO_MIGRATION, Request, SHARES};
use terrace_sizing::tape::{self, Tape, TapeError};

use crate::Progress;
use crate::error::{Error, Misuse, Result, misuse};
use crate::journal::on_all_cores;
use crate::options::{OneRun, Own, PolicySettings, Trace, failed, footprint, workload_source};
use crate::provenance::Provenance;

/// What is to be chosen between: sizes, policies with their settings, the target.
pub struct Candidates {
    /// Sizes, policies, and the loss that is accepted.
    pub request: Request,
    /// The policies' settings.
    pub settings: PolicySettings,
}

impl Candidates {
    /// Reads them.
    ///
    /// # Errors
    /// What is wrong: misuse.
    pub fn parse(raw: &CandidateArguments, settings: &[String]) -> Result<Candidates> {
        let target = max_slowdown(&raw.max_slowdown)?;
        let request = Request { shares: shares(&raw.fast)?, policies: policies(&raw.policies)?, target };
        let settings = PolicySettings::parse(settings, &request.policies, &Own::new())?;
        Ok(Candidates { request, settings })
    }

    /// Plays every cell on all cores: a curve a policy. `progress` is asked before each part of them whether to go on.
    ///
    /// # Errors
    /// When a simulation fails, or is to stop.
    pub fn curves(
        &self,
        config: &SimConfig,
        tapes: &[Tape],
        groups: usize,
        progress: &dyn Progress,
    ) -> Result<Vec<Curve>> {
        let played = on_all_cores(self.request.parts(tapes, groups), progress, |cells| {
            self.request.play(config, tapes, &cells, |name| self.settings.build(name)).map_err(|error| match error {
                Error::Simulation(error) => failed(error),
                other => other,
            })
        })?
        .concat();
        Ok(self.request.curves(&played, tapes))
    }
}

/// A program that is simulated or was recorded: what it did with its pages, and the terms on which that is played.
pub struct Program {
    /// Machine, scale and seed, and what its results carry.
    pub one: OneRun,
    /// What it did, a tape a sample.
    pub tapes: Vec<Tape>,
    /// How many samples, or seeds where a sample has every page.
    pub groups: u16,
}

impl Program {
    /// Runs a workload, or reads a trace, once.
    ///
    /// # Errors
    /// What is wrong: misuse. A trace that cannot be read, a workload that fails.
    pub fn prepare(raw: &ProgramArguments, of: &CandidateArguments, candidates: &Candidates) -> Result<Program> {
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
        // What was played are all of them.
        one.made.settings =
            policies.iter().flat_map(|policy| candidates.settings.made(Provenance::of(""), policy).settings).collect();
        Ok(Program { one, tapes, groups: of.groups })
    }

    /// Pages and accesses that are played.
    pub fn sampled(&self) -> (u64, usize) {
        (self.tapes.iter().map(pages_of).sum(), self.tapes.iter().map(Tape::len).sum())
    }

    /// What is played, for people.
    pub fn played(&self) -> String {
        let groups = u64::from(self.groups);
        let played = match self.one_in() {
            1 => format!("all pages with {}", figures::counted(groups, "seed", "seeds")),
            ways => format!("{} of one in {ways} of the pages", figures::counted(groups, "sample", "samples")),
        };
        let accesses = figures::count(self.sampled().1 as u64);
        format!("played on {played}, {accesses} accesses; predicted by a model, not measured")
    }

    /// How many pages each page of a sample stands for.
    pub fn one_in(&self) -> u32 {
        self.tapes.first().map_or(1, |tape| tape.sample().one_in())
    }
}

fn pages_of(tape: &Tape) -> u64 {
    terrace_sim::Source::footprint(tape).pages()
}

/// The sizes asked for, in order, each once; those of a usual curve if none is.
fn shares(texts: &[String]) -> Result<Vec<f64>> {
    let mut shares = match texts {
        [] => SHARES.to_vec(),
        given => given
            .iter()
            .map(|text| match parse_share(text) {
                Ok(share) if share > 0.0 && share < 1.0 => Ok(share),
                _ => Err(misuse("--fast", text, "expected shares above 0% and below 100%, such as 50%,80%")),
            })
            .collect::<Result<_>>()?,
    };
    shares.sort_by(f64::total_cmp);
    shares.dedup();
    Ok(shares)
}

/// The policies asked for, after the one that moves nothing.
fn policies(names: &[String]) -> Result<Vec<String>> {
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

fn tapes(program: &ProgramArguments, of: &CandidateArguments, one_in: u32) -> Result<Vec<Tape>> {
    let groups = u32::from(of.groups);
    let failed = |error: TapeError| match error {
        TapeError::TooMany(_) => misuse("--sample", &of.sample.to_string(), error),
        TapeError::Trace(error) => error.into(),
        other => Misuse(other.to_string()).into(),
    };
    match (&program.trace, &program.workload) {
        (Some(path), _) => {
            let mut reader = Trace::open(path, footprint(&program.max_footprint)?)?.reader()?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            tape::of_trace(&name, &mut reader, one_in, groups).map_err(failed)
        }
        (None, Some(name)) => {
            let source = workload_source(name, &program.model, program.seed)?;
            tape::of_workload(&source.name, &source.parameters, one_in, groups).map_err(failed)
        }
        (None, None) => Err(Misuse("--workload or --trace: expected one of them".to_owned()).into()),
    }
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
        assert!(policies(&[ALL_FAST.to_owned()]).unwrap_err().is_misuse());
        assert!(shares(&["0%".to_owned()]).is_err() && shares(&["100%".to_owned()]).is_err());
        assert_eq!(shares(&["50%".to_owned(), "20%".to_owned(), "50%".to_owned()]).unwrap(), [0.2, 0.5]);
    }

    #[test]
    fn a_target_is_a_share() {
        assert_eq!(max_slowdown("5%").unwrap(), 0.05);
        assert_eq!(max_slowdown("1").unwrap(), 1.0);
        for text in ["0", "0%", "-5%", "101%", "2", "much", "NaN"] {
            assert!(max_slowdown(text).is_err(), "{text}");
        }
    }
}
