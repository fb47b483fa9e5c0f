//! Proof in place of a run: made from its options, and its news told.
//!
//! In: a plan. Out: a [`LiveProof`], and lines on stderr. Must not: judge; `terrace_linux::live_proof` does.

use std::time::{Duration, SystemTime};
use terrace_common::say;

use anyhow::Context;
use terrace_core::text::visible;
use terrace_linux::live_proof::{LiveProof, News};
use terrace_report::units::{percent, seconds};

use super::{Plan, TargetSpec};

/// The proof that was asked for.
pub(super) fn begin(plan: &Plan) -> anyhow::Result<Option<LiveProof>> {
    let Some((metric, window)) = plan.spec.proof() else { return Ok(None) };
    // Another order in each run, or one that a program's own rhythm meets would be met again; the report names it.
    let seed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as u64 >> 10;
    // A program that is only just started has written nothing yet; one that runs has.
    let patience = match plan.target {
        TargetSpec::Command(_) => window,
        TargetSpec::Pids(_) | TargetSpec::Cgroup(_) | TargetSpec::All(_) => Duration::ZERO,
    };
    LiveProof::new(metric.clone(), window, plan.spec.left_alone, plan.spec.max_slowdown, seed, patience)
        .map(Some)
        .with_context(|| format!("--metric {metric}"))
}

/// Tells a person what happened.
pub(super) fn tell(plan: &Plan, news: &News) {
    let metric = plan.spec.metric.as_ref().map_or("", |metric| metric.text.as_str());
    say!("terrace: {}\n", visible(&line(metric, plan.spec.max_slowdown, news)));
}

fn line(metric: &str, allowed: f64, news: &News) -> String {
    match news {
        News::Unmeasured(why) => {
            format!("--metric {metric}: {why}; the program is managed, and what that does to it is not measured")
        }
        News::Measured => format!("--metric {metric}: it can be read again"),
        News::Harm { gain, interval: (low, high), windows, rest } => format!(
            "managing slows the program down by {} ({} to {}, {windows} windows), {} are allowed: it is left alone for {}",
            percent(-gain),
            percent(-high),
            percent(-low),
            percent(allowed),
            seconds(rest.as_secs_f64()),
        ),
        News::Thawed => "the program is managed again, and whether that harms is measured anew".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_one_line_with_what_follows() {
        let harm = News::Harm { gain: -0.051, interval: (-0.061, -0.041), windows: 12, rest: Duration::from_secs(600) };
        let text = line("cpu", 0.02, &harm);
        assert!(text.contains("by 5.1 % (4.1 % to 6.1 %, 12 windows), 2 % are allowed"), "{text}");
        let text = line("file:/x", 0.02, &News::Unmeasured("No such file".to_owned()));
        assert_eq!(
            text,
            "--metric file:/x: No such file; the program is managed, and what that does to it is not measured"
        );
    }
}
