//! The bound is one: on no program is a policy ahead of the one that knows the future.
//!
//! In: six programs, small; all policies but the bounds. Out: for each program, that none is faster than `clairvoyant` by more than 2 %.
#![allow(clippy::unwrap_used)] // These are tests.

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::{BOUNDS, POLICIES, Settings};
use terrace_sim::run::run_alone;
use terrace_sim::{FastSize, Pages, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

/// Program, and how many operations it does: fewer than its own number, so that all policies take seconds.
const PROGRAMS: [(&str, u64); 6] = [
    ("gups", 200_000),
    ("hot-cold", 400_000),
    ("memcached", 20_000),
    ("silo-ycsb-c", 30_000),
    ("btree", 10_000),
    ("scan-then-random", 100_000),
];
/// How much faster than the bound a policy may be.
const TOLERANCE: f64 = 0.02;

/// Seconds at full size; `None` of a policy that runs on another machine, with the MMU modelled.
fn seconds(policy: &str, program: &str, operations: u64) -> Option<f64> {
    let size = Bytes::mib(6);
    let machine = Machine::preset("optane-6252").unwrap();
    let mut config = SimConfig::new(machine, size, FastSize::Share(0.25));
    (config.scale, config.pages) = (Scale::new(4096).unwrap(), Pages::Folded);
    let mut parameters = Parameters::new(size.get());
    (parameters.threads, parameters.operations) = (4, Some(operations));
    let source = WorkloadSource { name: program.to_owned(), parameters };
    let policy = terrace_policies::build(policy, Settings::default()).unwrap();
    if policy.profile().needs().counters {
        return None;
    }
    Some(run_alone(&config, &source, policy).unwrap().full_size_seconds)
}

#[test]
fn no_policy_is_ahead_of_the_one_that_knows_the_future() {
    let ahead = |(program, operations): (&str, u64)| -> Vec<String> {
        let bound = seconds(terrace_policies::clairvoyant::INFO.name, program, operations).unwrap();
        let others = POLICIES.iter().map(|info| info.name).filter(|name| !BOUNDS.contains(name));
        let times = others.filter_map(|name| Some((name, seconds(name, program, operations)?)));
        let faster = times.filter(|(_, took)| *took < bound * (1.0 - TOLERANCE));
        faster.map(|(name, took)| format!("{program}: {name} {took:.3} s, the bound {bound:.3} s")).collect()
    };
    let found: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = PROGRAMS.iter().map(|&program| scope.spawn(move || ahead(program))).collect();
        running.into_iter().flat_map(|one| one.join().unwrap()).collect()
    });
    assert!(found.is_empty(), "{found:#?}");
}
