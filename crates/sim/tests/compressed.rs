//! Compressed swap as the only slow tier: pages that leave alone and whole blocks have their own prices, and the governor is the one that runs
//! live. A block on a machine of scale 64 stands for 64 of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::run_alone;
use terrace_sim::{FastSize, Pages, Report, SimConfig, WorkloadSource};
use terrace_workloads::Parameters;

/// 1 GiB at full size of which a quarter is used, for about 29 seconds, with fast memory for all of it.
fn run(policy: &str, layout: &str, max_slowdown: f64) -> Report {
    let size = Bytes::mib(16);
    let mut config = SimConfig::new(Machine::preset("zram-vm").unwrap(), size, FastSize::Share(1.0));
    (config.scale, config.pages) = (Scale::new(64).unwrap(), Pages::Small);
    config.governor.max_slowdown = max_slowdown;
    let mut parameters = Parameters::new(size.get());
    parameters.operations = Some(10_000_000);
    parameters.options.insert("layout".to_owned(), layout.to_owned());
    let source = WorkloadSource { name: "hot-cold".to_owned(), parameters };
    run_alone(&config, &source, terrace_policies::build(policy, Settings::default()).unwrap()).unwrap()
}

fn share_lost(report: &Report) -> f64 {
    let lost = ["shootdown_stall", "refault_stall", "blocked_stall", "scan_reset_stall"];
    lost.iter().map(|name| report.overhead_seconds[*name]).sum::<f64>() / report.seconds
}

#[test]
fn a_block_that_leaves_whole_interrupts_once() {
    let (whole, alone) = (run("age", "contiguous", 0.02), run("age", "scattered", 0.02));
    let price = |report: &Report| report.overhead_seconds["shootdown_stall"] / report.demoted_pages as f64;
    assert!(price(&alone) > 7e-6, "each page interrupts: {}", price(&alone));
    assert!(price(&whole) < price(&alone) / 100.0, "{} and {}", price(&whole), price(&alone));
    // Three quarters are cold.
    assert!(whole.demoted_pages > 2500, "{} of 4096 pages", whole.demoted_pages);
    assert_eq!(whole.refaults, 0);
}

#[test]
fn page_outs_keep_within_the_bound_and_more_leaves_where_more_is_allowed() {
    let (bounded, free) = (run("age", "scattered", 0.02), run("age", "scattered", 1.0));
    assert!(share_lost(&bounded) < 0.025, "{}", share_lost(&bounded));
    assert!(bounded.demoted_pages > 100, "{}", bounded.demoted_pages);
    assert!(free.demoted_pages > 2 * bounded.demoted_pages, "{} and {}", free.demoted_pages, bounded.demoted_pages);
    assert!(share_lost(&free) > 0.025, "{}", share_lost(&free));
}

#[test]
fn terrace_lets_go_what_its_price_allows() {
    let report = run("terrace", "contiguous", 0.02);
    assert!(report.demoted_pages > 1000, "{} of 4096 pages", report.demoted_pages);
    assert!(share_lost(&report) < 0.03, "{}", share_lost(&report));
}
