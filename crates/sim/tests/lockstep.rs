//! Machines that run one program in lockstep come to what each comes to alone, to the last bit.
#![allow(clippy::unwrap_used)] // These are tests.

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::{Bounds, RunRequest, bounding, bounds, run_alone, run_together};
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, SimError, WorkloadSource};
use terrace_workloads::Parameters;

const SIZE: Bytes = Bytes::mib(4);

fn source(workload: &str) -> WorkloadSource {
    let mut parameters = Parameters::new(SIZE.get());
    (parameters.threads, parameters.operations) = (4, Some(100_000));
    WorkloadSource { name: workload.to_owned(), parameters }
}

fn config(machine: &str, fast: f64) -> SimConfig {
    let mut config = SimConfig::new(Machine::preset(machine).unwrap(), SIZE, FastSize::Share(fast));
    config.scale = Scale::new(1024).unwrap();
    config
}

fn request(policy: &str, config: &SimConfig) -> RunRequest {
    RunRequest::new(config.clone(), terrace_policies::build(policy, Settings::default()).unwrap())
}

fn figures(report: &Report) -> String {
    serde_json::to_string(report).unwrap()
}

/// Runs each alone and all together, and compares.
fn same(workload: &str, asked: &[(&str, SimConfig)]) {
    let source = source(workload);
    let together = run_together(asked.iter().map(|(policy, config)| request(policy, config)).collect(), &source);
    for ((policy, config), together) in asked.iter().zip(together) {
        let alone = run_alone(config, &source, terrace_policies::build(policy, Settings::default()).unwrap()).unwrap();
        assert_eq!(figures(&together.unwrap()), figures(&alone), "{policy} under {workload}");
    }
}

#[test]
fn machines_of_one_cache_share_it_and_see_what_each_would_see_alone() {
    for workload in ["gups", "btree"] {
        let machine = "optane-6252";
        let policies = ["first-touch", "flexmem", "tpp", "terrace", "age", "clairvoyant", "memory-mode"];
        let asked: Vec<_> = policies.iter().map(|policy| (*policy, config(machine, 0.3))).collect();
        same(workload, &asked);
    }
}

#[test]
fn sizes_page_sizes_machines_and_a_modelled_mmu_mix() {
    let folded = SimConfig { pages: Pages::Folded, ..config("optane-6252", 0.2) };
    let whole = SimConfig { pages: Pages::Whole, ..config("optane-6252", 0.5) };
    let uncached = SimConfig { cache: false, ..config("cxl-170", 0.5) };
    let modelled = SimConfig { mmu: Some(MmuConfig::new(2)), ..config("optane-6252", 0.3) };
    let small = config("optane-6252", 0.1);
    same("gups", &[("tpp", small.clone()), ("flexmem", folded), ("age", whole), ("age", uncached)]);
    same("gups", &[("tpp", small), ("age", modelled)]);
}

#[test]
fn a_machine_that_fails_stops_none_beside_it() {
    let source = source("gups");
    let mut tiny = config("optane-6252", 0.3);
    tiny.machine.tiers[1].capacity = Bytes::gib(1);
    let good = config("optane-6252", 0.3);
    let results = run_together(vec![request("first-touch", &tiny), request("first-touch", &good)], &source);
    let [failed, went_on] = results.try_into().unwrap();
    assert!(matches!(failed, Err(SimError::OutOfMemory { .. })), "{:?}", failed.err());
    let alone = run_alone(&good, &source, terrace_policies::build("first-touch", Settings::default()).unwrap());
    assert_eq!(figures(&went_on.unwrap()), figures(&alone.unwrap()));
}

#[test]
fn bounds_are_two_more_machines_under_the_same_program() {
    let (source, config) = (source("btree"), config("optane-6252", 0.3));
    let mut all: Vec<RunRequest> = bounding(&config).unwrap().into();
    all.push(request("tpp", &config));
    let reports = run_together(all, &source).into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    assert_eq!(Bounds::of([&reports[0], &reports[1]]), bounds(&config, &source).unwrap());
    let alone = run_alone(&config, &source, terrace_policies::build("tpp", Settings::default()).unwrap()).unwrap();
    assert_eq!(figures(&reports[2]), figures(&alone));
}
