//! The MMU in a run: what counters count, how cores advance, what the tables cost, and that two runs are equal.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Eager, FirstTouch, Random, Told, Touch, bare, touch_all};
use terrace_core::units::Vpn;
use terrace_machine::mmu::{CounterSpec, Sync, TablePlacement, When};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::colocate::Recorded;
use terrace_sim::fixed::Fixed;
use terrace_sim::mmu::Flush;
use terrace_sim::processes::ProcessReport;
use terrace_sim::run::{Beside, run_alone};
use terrace_sim::{
    FastSize, MmuConfig, MmuReport, Pages, Report, SimConfig, SimError, Simulation, Source, WorkloadSource,
};
use terrace_workloads::Parameters;

const PAGES: u64 = 8192;

fn config(pages: Pages, cores: usize, when: When) -> SimConfig {
    let mut config = bare(PAGES, 1.0);
    let mut mmu = MmuConfig::new(cores);
    mmu.counters = Some(CounterSpec { when, ..CounterSpec::default() });
    (config.pages, config.mmu) = (pages, Some(mmu));
    config
}

fn run(config: SimConfig, touches: &[Touch]) -> (Report, MmuReport) {
    let mut simulation = Simulation::new(config, Box::new(FirstTouch::default())).unwrap();
    simulation.map(Vpn(0), PAGES, false);
    simulation.fork();
    simulation.feed(touches);
    simulation.meet();
    let report = simulation.finish("test").unwrap();
    let mmu = report.mmu.clone().unwrap();
    (report, mmu)
}

#[test]
fn walks_follow_the_reach_of_the_tlb_and_huge_pages_reach_further() {
    let mut random = Random(3);
    let touches: Vec<Touch> = (0..300_000).map(|_| Touch::load(random.below(PAGES))).collect();
    let (small, mmu) = run(config(Pages::Small, 1, When::FirstMiss), &touches);
    // 1536 of 8192 pages are in reach; first touches aside.
    assert!((small.walk_share - (1.0 - 1536.0 / 8192.0)).abs() < 0.02, "{}", small.walk_share);
    assert_eq!(mmu.cores[0].updates, 0, "4 KiB mappings have no counters");
    let (huge, mmu) = run(config(Pages::Huge, 1, When::FirstMiss), &touches);
    assert!(huge.walk_share < 1e-3, "16 huge pages fit: {}", huge.walk_share);
    assert!(mmu.cores[0].first_miss_share < 1e-3 && huge.seconds < small.seconds);
    // What the paper's cross-check asks: 100 cycles a miss are nothing where nothing misses.
    assert!(mmu.cores[0].sync_seconds / huge.seconds < 1e-3);
    assert_eq!(mmu.table_and_counter_bytes, [3 * 4096, 512 << 10], "root, PDPT, PMD; counters of one GiB");
}

#[test]
fn the_placement_of_tables_is_felt_in_run_time() {
    let mut random = Random(4);
    let touches: Vec<Touch> = (0..200_000).map(|_| Touch::chase(random.below(PAGES))).collect();
    let time = |placement| {
        let mut config = config(Pages::Small, 1, When::FirstMiss);
        config.mmu.as_mut().unwrap().placement = placement;
        // A scaled cache, so that page tables do not fit it.
        config.scale = Scale::new(4096).unwrap();
        run(config, &touches).0.seconds
    };
    let (fast, slow) = (time(TablePlacement::Fast), time(TablePlacement::Slow));
    assert!(slow > 1.5 * fast, "{slow} against {fast}");
}

#[test]
fn a_huge_page_is_cleared_in_as_many_parts_as_it_stands_for_pages_by_who_touches_them() {
    let clearing = Machine::preset("optane-6252").unwrap().management.first_touch_huge_ns / 1e9;
    // Sixteen huge pages; what their first touches cost beyond touching all again.
    let cost = |scale: u32, pages: &dyn Fn(u64) -> bool, threads: u64| {
        let touches: Vec<Touch> = (0..PAGES)
            .filter(|page| pages(*page))
            .map(|page| Touch::load(page).by((page % 512 * threads / 512) as usize))
            .collect();
        let mut config = config(Pages::Huge, 4, When::Random(1000));
        config.scale = Scale::new(scale).unwrap();
        let (first, _) = run(config.clone(), &touches);
        let (both, _) = run(config, &[touches.clone(), touches].concat());
        2.0 * first.seconds - both.seconds
    };
    let near = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 0.05, "{found} s, expected {expected} s");
    };
    // At full size, the first touch of any page clears them all. At 1:64 each eight pages are cleared for themselves, at 1:512 each page.
    let one_each = |page: u64| page % 512 == 100;
    near(cost(1, &one_each, 1), 16.0 * clearing);
    near(cost(64, &one_each, 1), 16.0 * clearing / 64.0);
    near(cost(4096, &one_each, 1), 16.0 * clearing / 512.0);
    // All of it costs the same at every scale, and four threads share it.
    near(cost(1, &|_| true, 1), 16.0 * clearing);
    near(cost(64, &|_| true, 1), 16.0 * clearing);
    near(cost(64, &|_| true, 4), 4.0 * clearing);
}

#[test]
fn pages_that_move_together_share_a_flush_where_the_kernel_batches_them() {
    let mut random = Random(12);
    let touches: Vec<Touch> = (0..300_000).map(|_| Touch::load(random.below(PAGES))).collect();
    let stalled = |flush| {
        let mut config = config(Pages::Small, 1, When::FirstMiss);
        config.fast = FastSize::Share(0.25);
        config.mmu.as_mut().unwrap().flush = flush;
        let mut simulation = Simulation::new(config, Box::new(Eager::by_samples(100))).unwrap();
        simulation.map(Vpn(0), PAGES, false);
        simulation.feed(&touches);
        let report = simulation.finish("test").unwrap();
        let moved = (report.promoted_pages + report.demoted_pages) as f64;
        assert!(moved > 1000.0, "{moved}");
        (report.overhead_seconds["shootdown_stall"] / moved, report.walk_share)
    };
    let ((single, few), (batch, more)) = (stalled(Flush::Page), stalled(Flush::Batch));
    assert!((single - 500e-9).abs() < 1e-12, "an interrupt for each: {single}");
    assert!(batch < single / 20.0, "{batch}: plans of a hundred pages and more");
    assert!(more > few, "every translation is forgotten, not only those of what moved: {more} {few}");
}

#[test]
fn a_policy_is_told_what_the_processor_counted_and_how_many_processors_are_in_use() {
    let mut config = config(Pages::Small, 2, When::FirstMiss);
    config.fast = FastSize::Share(0.25);
    let cores = f64::from(config.machine.processor.cores);
    let mut simulation = Simulation::new(config, Box::new(Told::default())).unwrap();
    touch_all(&mut simulation, PAGES);
    simulation.fork();
    // No cache, and a quarter of the pages, each used as much as any other, is fast.
    let mut random = Random(5);
    let touches: Vec<Touch> = (0..600_000).map(|at| Touch::chase(random.below(PAGES)).by(at % 2)).collect();
    simulation.feed(&touches);
    simulation.meet();
    let told = simulation.finish("test").unwrap().policy_metrics;
    assert_eq!((told["cores"], told["in_use"]), (2.0, 2.0 / cores));
    assert!(told["memory_accesses"] > 1000.0 && told["memory_accesses"] == told["small_accesses"], "{told:?}");
    let slow = told["slow_accesses"] / told["memory_accesses"];
    assert!((slow - 0.75).abs() < 0.02, "{slow}");
    assert!(told["slow_wait_ns"] / told["slow_accesses"] > 50.0, "{told:?}");
}

#[test]
fn cores_advance_side_by_side_and_the_uneven_wait_at_the_barrier() {
    // A source that delivers whole threads one after another; thread 3 has twice the work.
    let mut touches = Vec::new();
    for thread in 0..4usize {
        let mut random = Random(thread as u64);
        let count = if thread == 3 { 40_000 } else { 20_000 };
        touches.extend((0..count).map(|_| Touch::chase(random.below(PAGES)).by(thread)));
    }
    let (_, mmu) = run(config(Pages::Huge, 4, When::Random(16)), &touches);
    let accesses: Vec<u64> = mmu.cores.iter().map(|core| core.accesses).collect();
    assert_eq!(accesses, [20_000, 20_000, 20_000, 40_000]);
    assert!((mmu.imbalance - 0.6).abs() < 1e-9, "{}", mmu.imbalance);
    // No core got further ahead than the skew and one run of 32 accesses.
    assert!(mmu.skew_ns < 1000.0 + 32.0 * 500.0, "{}", mmu.skew_ns);
    let last = mmu.cores[3];
    assert!(last.waited_seconds < 0.02 * last.busy_seconds, "{last:?}");
    assert!((mmu.cores[0].waited_seconds / last.busy_seconds - 0.5).abs() < 0.1, "{:?}", mmu.cores[0]);
    // Threads beyond the cores share them.
    let (_, two) = run(config(Pages::Huge, 2, When::FirstMiss), &touches);
    assert_eq!(two.cores.iter().map(|core| core.accesses).collect::<Vec<_>>(), [40_000, 60_000]);
}

#[test]
fn synchronisation_costs_its_cycles_and_coherence_costs_by_contention() {
    let mut random = Random(8);
    // Four cores on one page: the worst there is. Then each on a page of its own.
    let on = |page: fn(usize, u64) -> u64, random: &mut Random| -> Vec<Touch> {
        (0..80_000)
            .map(|step| {
                let thread = step % 4;
                Touch::load(page(thread, random.below(1 << 20))).by(thread)
            })
            .collect()
    };
    let one = on(|_, _| 5, &mut random);
    let apart = on(|thread, draw| (thread as u64) * 2048 + draw % 64, &mut random);
    let time = |sync, touches: &[Touch]| {
        let mut config = config(Pages::Huge, 4, When::Every);
        config.mmu.as_mut().unwrap().counters.as_mut().unwrap().sync = sync;
        let (report, mmu) = run(config, touches);
        (report.seconds, mmu)
    };
    let (free, _) = time(Sync::Nothing, &one);
    let (fixed, mmu) = time(Sync::Cycles(100), &one);
    let waited: f64 = mmu.cores.iter().map(|core| core.sync_seconds).sum();
    assert!((waited - 80_000.0 * 100.0 / 2.1e9).abs() < 1e-6, "{waited}");
    assert!(fixed > free);
    let (contended, mmu) = time(Sync::Coherent, &one);
    let (_, waits, wait_seconds) = mmu.contention.unwrap();
    assert!(waits > 20_000 && wait_seconds > 0.0, "{waits} {wait_seconds}");
    let (alone, mmu) = time(Sync::Coherent, &apart);
    assert!(mmu.contention.unwrap().1 == 0 && contended > 1.5 * alone, "{contended} against {alone}");
}

/// A busy process and a quiet one, each of 32 MiB, a quarter of both fast: what they got.
fn busy_beside_quiet(floor: &str) -> Vec<ProcessReport> {
    let parameters = |threads, operations| {
        let mut parameters = Parameters::new(32 << 20);
        (parameters.threads, parameters.operations) = (threads, Some(operations));
        parameters.options = [("hot".to_owned(), "0.9".to_owned())].into();
        parameters
    };
    let first = Box::new(WorkloadSource { name: "hot-cold".to_owned(), parameters: parameters(2, 14_000_000) });
    let other = Recorded::new("hot-cold", &parameters(1, 3_000_000), 8).unwrap();
    let source = Beside { first, other };
    let machine = Machine::preset("cxl-pond").unwrap();
    let mut config = SimConfig::new(machine, source.footprint(), FastSize::Share(0.25));
    config.scale = Scale::new(64).unwrap();
    config.pages = Pages::Whole;
    let counters = Some(CounterSpec { when: When::Random(16), ..CounterSpec::default() });
    config.mmu = Some(MmuConfig { counters, ..MmuConfig::new(2) });
    let policy = terrace_policies::build("hotness-walk", Settings::from_pairs([("floor", floor)])).unwrap();
    run_alone(&config, &source, policy).unwrap().processes
}

#[test]
fn a_quiet_process_keeps_its_floor_of_fast_memory_beside_a_busy_one() {
    // Both use all of their memory evenly, one of them 8 times as often: by heat alone it has most of what is fast.
    let without = busy_beside_quiet("0%");
    let with = busy_beside_quiet("100%");
    for process in without.iter().chain(&with) {
        assert!((24 << 20..34 << 20).contains(&process.mean_resident_bytes), "{process:?}");
    }
    // It is there from the middle of the run on, with a quarter of its 32 MiB then: 8 MiB.
    assert!(with[1].mean_fast_bytes > 4 << 20, "{with:?}");
    assert!(with[1].mean_fast_bytes as f64 > 1.75 * without[1].mean_fast_bytes as f64, "{with:?} {without:?}");
    assert!(with[1].fast_hit_share > 1.25 * without[1].fast_hit_share, "{with:?} {without:?}");
    assert!(with[0].mean_fast_bytes > 8 << 20, "no more than its part is taken from the busy one: {with:?}");
    assert_eq!(with, busy_beside_quiet("100%"), "and two runs are equal");
}

#[test]
fn two_runs_are_equal_and_nonsense_is_refused() {
    let mut random = Random(9);
    let touches: Vec<Touch> = (0..100_000).map(|step| Touch::store(random.below(PAGES)).by(step / 777 % 3)).collect();
    let text = || {
        let (report, mmu) = run(config(Pages::Huge, 3, When::Random(7)), &touches);
        format!("{} {mmu:?}", report.seconds)
    };
    assert_eq!(text(), text());
    let mut none = config(Pages::Huge, 3, When::Every);
    none.mmu.as_mut().unwrap().cores = 0;
    let refused = Simulation::new(none, Box::new(Fixed(terrace_core::units::TierId(0)))).err().unwrap();
    assert!(matches!(refused, SimError::Parameter { name: "cores", .. }), "{refused}");
}

#[test]
fn a_run_with_the_mmu_takes_as_long_as_one_without_where_nothing_is_translated() {
    // Everything in reach of the TLB: what remains is memory, and that is the same model.
    let chase: Vec<Touch> = (0..100_000u64).map(|step| Touch::chase(step * 31 % 1000)).collect();
    let mut flat = bare(PAGES, 1.0);
    flat.tlb = true;
    let mut with = flat.clone();
    with.mmu = Some(MmuConfig::new(1));
    let time = |config: SimConfig| {
        let mut simulation = Simulation::new(config, Box::new(Fixed(terrace_core::units::TierId(0)))).unwrap();
        touch_all(&mut simulation, 1000);
        let before = simulation.now().as_nanos();
        simulation.feed(&chase);
        simulation.meet();
        simulation.now().as_nanos() - before
    };
    let (flat, with) = (time(flat) as f64, time(with) as f64);
    assert!((with / flat - 1.0).abs() < 0.02, "{with} against {flat}");
}
