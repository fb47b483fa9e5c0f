//! Huge pages looked into: a few are split, what is cold inside leaves, and what is evenly used is left whole.
//!
//! In: programs under huge pages on the machine whose prices of splits were measured, at full size, with an access each ten microseconds. Out: how
//! much left and what that cost; what was learned of programs; MEMTIS with its split beside without.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use terrace_core::random::SplitMix64;
use terrace_core::units::{Bytes, PageId, Vpn};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::lockstep::Lockstep;
use terrace_sim::run::{Source, run_alone};
use terrace_sim::{FastSize, Pages, Report, SimConfig, SimError, WorkloadSource};
use terrace_trace::Access;
use terrace_workloads::Parameters;

/// Uses each `every`th page of its memory at random, for as many seconds.
struct Scatter {
    size: Bytes,
    every: u64,
    seconds: u64,
}

/// Accesses a second: 26,000 cycles at 2.6 GHz each.
const RATE: u64 = 100_000;
const CYCLES: u32 = 26_000;

impl Source for Scatter {
    fn name(&self) -> String {
        "scatter".to_owned()
    }
    fn footprint(&self) -> Bytes {
        self.size
    }
    fn play(&self, into: &mut Lockstep) -> Result<(), SimError> {
        let pages = self.size.pages();
        let page = |page: u64| Access::read(PageId(page as u32));
        into.map(Vpn(0), pages, false);
        // Each huge page is touched once, as a program does that got its memory at once.
        let first: Vec<Access> = (0..pages).step_by(64).map(page).collect();
        first.chunks(1024).for_each(|batch| into.feed(batch));
        let mut random = SplitMix64::new(3);
        for _ in 0..self.seconds * RATE / 1000 {
            let batch: Vec<Access> =
                (0..1000).map(|_| page(random.below(pages / self.every) * self.every).on_line(7)).collect();
            into.feed(&batch);
        }
        Ok(())
    }
}

fn run(policy: &str, settings: &[(&str, &str)], program: &Scatter) -> Report {
    let machine = Machine::preset("zram-vm").unwrap();
    let mut config = SimConfig::new(machine, program.size, FastSize::Share(1.0));
    (config.scale, config.pages, config.cycles_per_access) = (Scale::FULL, Pages::Huge, CYCLES);
    config.cache = false;
    let settings = Settings::from_pairs(settings.iter().copied());
    run_alone(&config, program, terrace_policies::build(policy, settings).unwrap()).unwrap()
}

/// All that the program's threads paid for being managed, of its time.
fn account(report: &Report) -> f64 {
    let paid: f64 =
        report.overhead_seconds.iter().filter(|(name, _)| name.ends_with("_stall")).map(|(_, seconds)| seconds).sum();
    paid / report.seconds
}

fn share_out(report: &Report) -> f64 {
    let pages = report.footprint_bytes / 4096;
    (report.demoted_pages - report.refaults) as f64 / pages as f64
}

#[test]
fn what_is_cold_inside_huge_pages_leaves_within_the_bound() {
    let scattered = Scatter { size: Bytes::gib(1), every: 16, seconds: 120 };
    let (whole, inside) = (run("age", &[("inside", "off")], &scattered), run("age", &[], &scattered));
    assert!(share_out(&whole) < 0.01, "each block is in use: {}", share_out(&whole));
    assert!(share_out(&inside) > 0.45, "{} out, {:?}", share_out(&inside), inside.policy_metrics);
    assert!(account(&inside) <= 0.025, "{:?} of {} s", inside.overhead_seconds, inside.seconds);
    assert!(inside.seconds / whole.seconds < 1.03, "{} and {} s", inside.seconds, whole.seconds);
}

#[test]
fn what_is_evenly_used_stays_whole_and_costs_next_to_nothing_to_look_into() {
    let even = Scatter { size: Bytes::gib(1), every: 1, seconds: 80 };
    let (whole, inside) = (run("age", &[("inside", "off")], &even), run("age", &[], &even));
    let [splits, _] = inside.splits_and_collapses;
    let blocks = inside.footprint_bytes >> 21;
    assert!(splits > 0 && splits * 100 < blocks, "{splits} of {blocks} blocks");
    let looking = account(&inside) - account(&whole);
    assert!(looking <= 0.003, "{looking}");
    assert!(inside.seconds / whole.seconds < 1.003, "{} and {} s", inside.seconds, whole.seconds);
    assert!(inside.demoted_pages * 1000 < blocks * 512, "{} pages of {blocks} blocks", inside.demoted_pages);
}

#[test]
fn sixteen_mebibytes_scattered_over_four_gibibytes_are_estimated_within_a_factor_of_two() {
    let rare = Scatter { size: Bytes::gib(4), every: 256, seconds: 60 };
    let report = run("age", &[("inside", "look")], &rare);
    let truth = 1.0 / 256.0;
    let metric = |name: &str| report.policy_metrics[name];
    let found = metric("inside_used_share");
    assert!((truth / 2.0..=truth * 2.0).contains(&found), "{found} where {truth} is in use");
    assert!(metric("inside_used_share_low") <= truth && truth <= metric("inside_used_share_high"));
    let blocks = report.footprint_bytes >> 21;
    assert!(report.splits_and_collapses[0] * 100 <= blocks, "{} of {blocks}", report.splits_and_collapses[0]);
}

#[test]
fn terrace_looks_inside_as_well() {
    let scattered = Scatter { size: Bytes::gib(1), every: 16, seconds: 120 };
    let bits = ("signals", "accessed-bits");
    let (whole, inside) = (run("terrace", &[bits, ("inside", "off")], &scattered), run("terrace", &[bits], &scattered));
    assert!(share_out(&whole) < 0.01, "each block is in use: {}", share_out(&whole));
    assert!(share_out(&inside) > 0.45, "{} out, {:?}", share_out(&inside), inside.policy_metrics);
    assert!(account(&inside) <= 0.025, "{:?} of {} s", inside.overhead_seconds, inside.seconds);
}

#[test]
fn the_pieces_in_use_of_slow_huge_pages_come_up_without_the_rest() {
    let program = Scatter { size: Bytes::mib(512), every: 16, seconds: 90 };
    let [whole, inside] = ["off", "on"].map(|mode| {
        let mut config = SimConfig::new(Machine::preset("cxl-170").unwrap(), program.size, FastSize::Share(0.25));
        (config.pages, config.cycles_per_access, config.cache) = (Pages::Huge, CYCLES, false);
        let policy = terrace_policies::build("age", Settings::from_pairs([("inside", mode)])).unwrap();
        run_alone(&config, &program, policy).unwrap()
    });
    assert!(whole.fast_hit_share < 0.4, "a quarter of the huge pages is fast: {}", whole.fast_hit_share);
    let last = |report: &Report| {
        let rows = &report.series.rows;
        let late = &rows[rows.len() * 9 / 10..];
        late.iter().filter_map(|row| row.fast_hit_share).sum::<f64>() / late.len() as f64
    };
    assert!(last(&inside) > 0.9, "{} at the end, {:?}", last(&inside), inside.policy_metrics);
}

/// A program of 64 GiB at full size with 2 MiB pages, a ninth of it fast, under a policy with its split and without. Counts are halved each 32 million
/// samples: with the usual 2 million a page of the scaled run would have been sampled less than once.
fn with_and_without(policy: &str, workload: &str, operations: u64) -> [Report; 2] {
    ["on", "off"].map(|split| {
        let size = Bytes::mib(64);
        let mut config = SimConfig::new(Machine::preset("memtis-nvm").unwrap(), size, FastSize::Share(1.0 / 9.0));
        (config.scale, config.pages) = (Scale::new(1024).unwrap(), Pages::Huge);
        let mut parameters = Parameters::new(size.get());
        (parameters.threads, parameters.operations) = (4, Some(operations));
        let source = WorkloadSource { name: workload.to_owned(), parameters };
        let settings = [("split", split), ("cool_samples", "32000000"), ("adapt_samples", "1600000")];
        let policy = terrace_policies::build(policy, Settings::from_pairs(settings)).unwrap();
        run_alone(&config, &source, policy).unwrap()
    })
}

#[test]
fn the_split_of_memtis_gains_on_silo_and_btree_as_in_its_paper() {
    for (workload, operations) in [("silo-ycsb-c", 4_000_000), ("btree", 3_000_000)] {
        let [with, without] = with_and_without("memtis", workload, operations);
        assert!(with.splits_and_collapses[0] > 0 && without.splits_and_collapses[0] == 0);
        let gain = without.full_size_seconds / with.full_size_seconds;
        assert!(gain > 1.03, "{workload}: {gain:.3}");
        assert!(with.fast_hit_share > 1.5 * without.fast_hit_share, "{workload}: {}", with.fast_hit_share);
    }
}

#[test]
fn flexmem_splits_as_memtis_does_and_stops_where_that_does_not_pay() {
    let [with, without] = with_and_without("flexmem", "silo-ycsb-c", 4_000_000);
    let gain = without.full_size_seconds / with.full_size_seconds;
    assert!(with.splits_and_collapses[0] > 1 && gain > 1.01, "{gain:.3}");
    let [with, without] = with_and_without("flexmem", "btree", 3_000_000);
    let gain = without.full_size_seconds / with.full_size_seconds;
    assert!(gain > 0.98, "{gain:.3}: {:?} splits", with.splits_and_collapses);
}
