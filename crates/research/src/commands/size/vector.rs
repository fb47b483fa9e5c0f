//! `terrace size vector`: the eight figures of a program, as `terrace size query` takes them.
//!
//! In: a workload or a recorded program, a modelled machine. Out: its vector over an interval, from counters of a simulated run with everything fast. Must
//! not: predict.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use terrace_common::say;

use serde_json::json;
use terrace_core::units::{Bytes, Time};
use terrace_sim::FastSize;
use terrace_sim::run::run_tuned;
use terrace_sim::tuning::{Counters, Tuning};
use terrace_sizing::ConfigVector;
use terrace_sizing::forecast::NO_MIGRATION;
use terrace_sizing::sim_driver::vector_between;
use terrace_study::options::{OneRun, Own, failed};

use crate::args::SizeVectorArguments;
use crate::options::misuse;
use crate::provenance::Provenance;
use crate::report::units;

/// Between two looks at the counters: short programs are seen to within so much of their end.
const LOOK: Duration = Duration::from_millis(10);
/// Fast memory beside what the program has, which the kernel may keep free without withholding any of it.
const ROOM: f64 = 1.05;

/// The first and the last counters of a run.
#[derive(Default)]
struct Ends(Option<(Counters, Counters)>);

struct Watcher(Arc<Mutex<Ends>>);

impl Tuning for Watcher {
    fn due(&self) -> Time {
        let ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.0.map_or(Time::ZERO, |(_, last)| last.now + LOOK)
    }
    fn tune(&mut self, counters: &Counters) -> Option<u64> {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = ends.0.map(|(first, _)| first);
        ends.0 = Some((first.unwrap_or(*counters), *counters));
        first.is_none().then_some(u64::MAX)
    }
}

pub(super) fn run(arguments: &SizeVectorArguments) -> anyhow::Result<()> {
    let mut one = OneRun::parse(&arguments.program.all_fast(NO_MIGRATION), &Own::new())?;
    one.config.footprint = Bytes::of_pages((one.config.footprint.pages() as f64 * ROOM).ceil() as u64);
    one.config.fast = FastSize::Share(1.0);
    let ends = Arc::new(Mutex::new(Ends::default()));
    let report =
        run_tuned(&one.config, one.source.as_ref(), one.policy()?, Box::new(Watcher(ends.clone()))).map_err(failed)?;
    let scale = one.config.scale;
    let seen = ends.lock().unwrap_or_else(PoisonError::into_inner).0;
    let vector = seen.and_then(|(first, last)| {
        let seconds = last.now.since(first.now).as_secs_f64();
        let vector = vector_between(&first, &last, scale).filter(|_| seconds > 0.0)?.over_interval(seconds);
        let resident_bytes = (report.footprint_bytes * u64::from(scale.factor())) as f64;
        Some((ConfigVector { resident_bytes, ..vector }, seconds))
    });
    let option = if arguments.program.trace.is_some() { "--trace" } else { "--workload" };
    let Some((vector, seconds)) = vector else {
        let why = format!(
            "too short for a vector: expected a run of {LOOK:?} or more at full size, by more --operations or a longer trace"
        );
        return Err(misuse(option, &one.source.name(), why));
    };
    vector.check().map_err(|error| misuse(option, &one.source.name(), error))?;
    let text = text(&vector);
    if arguments.json {
        let made = Provenance { command: Provenance::here().command, ..one.made.clone() };
        super::super::print_json(&made.stamp(&json!({ "vector": text, "figures": vector, "seconds": seconds }))?)
    } else {
        say!("of {} with everything fast, by 2.5 s; simulated, not measured\n", units::seconds(seconds));
        super::super::print_text(&format!("{text}\n"))
    }
}

/// As `--vector` takes it.
fn text(vector: &ConfigVector) -> String {
    vector.to_array().map(|value| format!("{value}")).join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_taken_again() {
        let vector =
            super::super::vector("pacc_f=5e8,pacc_s=0.25,pm_de=1,pm_pr=2,AI=0.1,rss=16e9,hot_thr=2,threads=24")
                .unwrap();
        assert_eq!(super::super::vector(&text(&vector)).unwrap(), vector);
    }
}
