//! `terrace size forecast`: what less fast memory would cost a workload or a recorded program, under each policy, and which needs least.
//!
//! In: a workload or a trace, a modelled machine, policies, a target. Out: a curve a policy with its error, the careful size, the policy that needs
//! least. Must not: know what a policy would do; `terrace_sizing::forecast` plays it.

use serde_json::json;
use terrace_sizing::forecast::{Curve, best};
use terrace_study::Unwatched;
use terrace_study::figures as units;
use terrace_study::forecast::{Candidates, Program};

use crate::args::SizeForecastArguments;
use crate::options::Misuse;
use crate::provenance::Provenance;

pub(super) fn run(arguments: &SizeForecastArguments) -> anyhow::Result<()> {
    let candidates = Candidates::parse(&arguments.candidates, &arguments.program.model.settings)?;
    let target = candidates.request.target;
    let program = Program::prepare(&arguments.program, &arguments.candidates, &candidates)?;
    let curves = candidates.curves(&program.one.config, &program.tapes, usize::from(program.groups), &Unwatched)?;
    let chosen = best(&curves).ok_or_else(|| Misuse("--policies: expected at least one".to_owned()))?;
    if arguments.json {
        let made = Provenance { command: Provenance::here().command, policy: None, ..program.one.made.clone() };
        let (pages, accesses) = program.sampled();
        super::super::print_json(&made.stamp(&json!({
            "max_slowdown": target, "fast_share": chosen.fast_share, "fast_share_expected": chosen.fast_share_expected,
            "policy": chosen.policy, "probability_over_target": chosen.probability_over_target,
            "sample_one_in": program.one_in(), "groups": program.groups, "sample_pages": pages,
            "accesses": accesses, "policies": curves,
        }))?)
    } else {
        super::super::print_text(&text(&curves, chosen, &program, target))
    }
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
