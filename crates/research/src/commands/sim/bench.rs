//! `terrace sim bench`: how many accesses a second the simulator replays.
//!
//! In: sizes. Out: rates by thread CPU time. Must not: judge a rate.

use rustix::time::{ClockId, clock_gettime};
use terrace_sim::bench::{Bench, BenchPlan, Probe};

use super::options::failed;
use crate::args::SimBenchArguments;
use crate::options::Misuse;

/// The bench's clock is this thread's CPU time.
struct Here;

impl Probe for Here {
    fn cpu_seconds(&mut self) -> f64 {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
    }
}

pub(super) fn run(arguments: &SimBenchArguments) -> anyhow::Result<()> {
    super::options::PolicySettings::default().build(&arguments.policy)?;
    if arguments.repeats == 0 {
        return Err(Misuse("--repeats 0: expected at least 1".to_owned()).into());
    }
    let mut benches = Vec::new();
    let mut printed = Ok(());
    for &pages in &arguments.pages {
        let plan = BenchPlan {
            pages,
            accesses: arguments.accesses,
            policy: arguments.policy.clone(),
            repeats: arguments.repeats,
            only: arguments.only.clone(),
        };
        let mut done = |bench: Bench| {
            if !arguments.json && printed.is_ok() {
                printed = super::super::print_text(&line(&bench));
            }
            benches.push(bench);
        };
        terrace_sim::bench::run(&plan, &mut Here, &mut done).map_err(failed)?;
    }
    printed?;
    if arguments.json {
        super::super::print_json(&serde_json::json!({ "benches": benches }))?;
    }
    Ok(())
}

fn line(bench: &Bench) -> String {
    let share = bench.share_of_bound.map_or_else(String::new, |share| format!("  {share:.2} of the bound"));
    let misses = bench.miss_ratio.map_or_else(String::new, |ratio| format!("  {ratio:.4} misses"));
    format!(
        "{:24} {:18} {:>10} pages  {:>7.1} M accesses/s  {:>5.1} bytes a page{share}{misses}\n",
        bench.name,
        bench.policy,
        bench.pages,
        bench.accesses_per_second / 1e6,
        bench.bytes_per_page
    )
}
