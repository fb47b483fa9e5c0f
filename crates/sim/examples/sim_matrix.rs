//! Prints one line a policy for a workload: what the model says of each. A quick look; `terrace sim compare` is the tool.
//!
//! `cargo run --release -p terrace-sim --example sim_matrix -- WORKLOAD SIZE_MIB FAST_SHARE THREADS SCALE OPERATIONS [POLICY...]`
//!
//! 0 operations stand for the workload's own number.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a program has arguments and a clock")]

use std::io::Write;
use std::time::Instant;

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::{POLICIES, Settings};
use terrace_sim::run::{bounds, run};
use terrace_sim::{FastSize, Pages, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let get = |n: usize, default: &str| arguments.get(n).cloned().unwrap_or_else(|| default.to_owned());
    let name = get(0, "btree");
    let mib: u64 = get(1, "256").parse().expect("a size in MiB");
    let share: f64 = get(2, "0.47").parse().expect("a share");
    let threads: usize = get(3, "24").parse().expect("a number of threads");
    let scale: u32 = get(4, "64").parse().expect("a scale");
    let operations: u64 = get(5, "0").parse().expect("a number of operations");
    let chosen: Vec<&str> = arguments.iter().skip(6).map(String::as_str).collect();
    let machine = Machine::preset("optane-6252").expect("the preset is part of the program");
    let mut config = SimConfig::new(machine, Bytes::mib(mib), FastSize::Share(share));
    config.scale = Scale::new(scale).expect("a scale of at least 1");
    config.pages = if scale > 1 { Pages::Folded } else { Pages::Huge };
    let mut parameters = Parameters::new(mib << 20);
    parameters.threads = threads;
    parameters.operations = (operations > 0).then_some(operations);
    let source = WorkloadSource { name, parameters };
    let mut out = std::io::stdout().lock();
    let mut say = |line: String| writeln!(out, "{line}").expect("standard output is open");
    let start = Instant::now();
    let bounds = match bounds(&config, &source) {
        Ok(bounds) => bounds,
        Err(error) => return say(format!("bounds: {error}")),
    };
    say(format!("{bounds:?} in {:.1} s", start.elapsed().as_secs_f64()));
    for info in POLICIES.iter().filter(|info| chosen.is_empty() || chosen.contains(&info.name)) {
        let start = Instant::now();
        let policy = match terrace_policies::build(info.name, Settings::default()) {
            Ok(policy) => policy,
            Err(error) => return say(error.to_string()),
        };
        match run(&config, &source, policy, Some(bounds)) {
            Ok(report) => {
                let spent = start.elapsed().as_secs_f64();
                say(format!(
                    "{:14} gain {:.3} slowdown {:.3} hit {:.3} up {} down {} failed {} kernel {} mgmt {:.3} s, meta {:.1} B, {:.1} M/s, walks {:.3}, bw-bound {:.2}",
                    info.name,
                    report.gain_over_all_slow.unwrap_or(f64::NAN),
                    report.slowdown_vs_all_fast.unwrap_or(f64::NAN),
                    report.fast_hit_share,
                    report.promoted_pages,
                    report.demoted_pages,
                    report.failed_promotions,
                    report.kernel_demoted_pages,
                    report.management_seconds,
                    report.metadata_bytes_per_page,
                    report.accesses as f64 / spent / 1e6,
                    report.walk_share,
                    report.bandwidth_bound_share,
                ));
                say(format!(
                    "    {:?} samples {:?} hint {}",
                    report.overhead_seconds, report.samples, report.hint_faults
                ));
                say(format!(
                    "    {:?} {:?} full-size {:.1} s",
                    report.failures, report.policy_metrics, report.full_size_seconds
                ));
            }
            Err(error) => say(format!("{:14} {error}", info.name)),
        }
    }
}
