//! Fidelity in four layers: it runs, shapes match theory, accounting is exact, scheduling is right.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Eager, FirstTouch, Random, Touch, bare, touch_all};
use terrace_core::policy::{Kernel, Movers};
use terrace_core::units::{Bytes, SpaceId, TierId, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::memory::PageWord;
use terrace_machine::memory_mode::Placement;
use terrace_machine::scale::Scale;
use terrace_sim::fixed::Fixed;
use terrace_sim::{FastSize, Pages, Report, SimConfig, SimError, Simulation, What};

const PAGES: u64 = 8192;

/// Run time of `touches` after every page was touched once, in nanoseconds.
fn time_of(config: SimConfig, tier: u8, pages: u64, touches: &[Touch]) -> (f64, Report) {
    let mut simulation = Simulation::new(config, Box::new(Fixed(TierId(tier)))).unwrap();
    touch_all(&mut simulation, pages);
    let before = simulation.now().as_nanos() as f64;
    simulation.feed(touches);
    simulation.meet();
    let nanos = simulation.now().as_nanos() as f64 - before;
    (nanos, simulation.finish("test").unwrap())
}

// Shapes.

#[test]
fn a_pointer_chase_is_latency_bound() {
    let mut random = Random(1);
    let chase: Vec<Touch> = (0..100_000).map(|_| Touch::chase(random.below(PAGES))).collect();
    for (tier, latency) in [(0, 98.0), (1, 348.0)] {
        let (nanos, report) = time_of(bare(PAGES, 1.0), tier, PAGES, &chase);
        assert!((nanos / (1e5 * latency) - 1.0).abs() < 0.01, "tier {tier}: {nanos}");
        assert_eq!(report.bandwidth_bound_share, 0.0);
    }
}

#[test]
fn a_sweep_overlaps_as_its_prefetcher_runs_ahead_and_random_loads_as_before() {
    let sweep: Vec<Touch> = (0..512).flat_map(|page| (0..64).map(move |line| Touch::load(page).on(line))).collect();
    let mut random = Random(3);
    let scattered: Vec<Touch> =
        (0..sweep.len()).map(|_| Touch::load(random.below(PAGES)).on(random.below(64) as u32)).collect();
    let lines = sweep.len() as f64;
    let time = |touches: &[Touch], ahead: Option<f64>| {
        let mut config = bare(PAGES, 1.0);
        config.machine.processor.stream_parallelism = ahead.unwrap_or(config.machine.processor.memory_parallelism);
        time_of(config, 0, PAGES, touches).0
    };
    // Of the 64 lines of a page the first two begin the stream: they wait as twelve independent loads do.
    let expected = lines * 98.0 * (62.0 / 20.0 + 2.0 / 12.0) / 64.0;
    let streamed = time(&sweep, Some(20.0));
    assert!((streamed / expected - 1.0).abs() < 0.03, "{streamed} for {expected}");
    assert!((time(&sweep, None) / (lines * 98.0 / 12.0) - 1.0).abs() < 0.01, "no stream is told apart");
    let (with, without) = (time(&scattered, Some(20.0)), time(&scattered, None));
    assert!((with / without - 1.0).abs() < 0.01, "{with} {without}");
}

#[test]
fn counters_do_not_see_loads_whose_line_the_streamer_brought_in_time() {
    let sweep = |cycles: u32| -> Vec<Touch> {
        (0..PAGES).flat_map(|page| (0..64).map(move |line| Touch::load(page).on(line).computing(cycles))).collect()
    };
    // Share of the loads that counters saw, by tier and by the cycles that the program computes between two lines.
    let seen = |tier: u8, touches: &[Touch]| {
        let mut config = bare(PAGES, 1.0);
        config.machine.processor.stream_parallelism = 20.0;
        let mut simulation = Simulation::new(config, Box::new(Fixed(TierId(tier)))).unwrap();
        touch_all(&mut simulation, PAGES);
        simulation.feed(touches);
        let report = simulation.finish("sweep").unwrap();
        // The first touches are loads as well, and no stream.
        (report.counted_loads[usize::from(tier)] - PAGES) as f64 / touches.len() as f64
    };
    // Two lines of a page begin its stream. A line lies 105 to 117 ns behind the one before: one of them is worth DRAM's 98 ns, three Optane's
    // 348 ns, and the streamer gains one in two lines: two are late there, six here.
    let (fast, slow) = (seen(0, &sweep(210)), seen(1, &sweep(210)));
    assert!((fast - 4.0 / 64.0).abs() < 0.01, "{fast}");
    assert!((slow - 8.0 / 64.0).abs() < 0.02, "{slow}");
    // A program that only loads catches up with the streamer.
    assert!(seen(1, &sweep(0)) > 0.6);
    let mut random = Random(3);
    let scattered: Vec<Touch> =
        (0..100_000).map(|_| Touch::load(random.below(PAGES)).on(random.below(64) as u32)).collect();
    assert!(seen(1, &scattered) > 0.99, "no stream, and all of it is seen");
    let stores: Vec<Touch> = sweep(210).into_iter().map(|load| Touch { wait: Wait::Store, ..load }).collect();
    assert!(seen(1, &stores) < 0.001, "stores have a counter of their own");
}

#[test]
fn streaming_on_all_cores_is_bandwidth_bound() {
    // 24 threads stream through slow memory line by line: 39.4 GB/s at 95 %.
    let mut stream = Vec::new();
    for page in 0..PAGES {
        for line in 0..64 {
            stream.push(Touch::load(page).on(line).by((page % 24) as usize));
        }
    }
    let bytes = stream.len() as f64 * 64.0;
    let mut config = bare(PAGES, 1.0);
    // Prefetching keeps 64 lines a thread in flight: latency does not hold it back.
    config.memory_parallelism = Some(64.0);
    let (nanos, report) = time_of(config, 1, PAGES, &stream);
    let rate = bytes / nanos * 1e9;
    assert!((rate / (39.4e9 * 0.95) - 1.0).abs() < 0.01, "{rate}");
    // The rest of the run is first touches.
    let whole = report.bandwidth_bound_share * report.seconds * 1e9;
    assert!((whole / nanos - 1.0).abs() < 0.02, "{whole} of {nanos}");
}

#[test]
fn uniform_access_hits_fast_memory_by_its_share() {
    for share in [0.1, 0.47, 0.9] {
        let mut simulation = Simulation::new(bare(PAGES, share), Box::new(FirstTouch::default())).unwrap();
        touch_all(&mut simulation, PAGES);
        let mut random = Random(2);
        let touches: Vec<Touch> = (0..400_000).map(|_| Touch::load(random.below(PAGES))).collect();
        simulation.feed(&touches);
        let report = simulation.finish("uniform").unwrap();
        assert!((report.fast_hit_share - share).abs() < 0.005, "{share}: {}", report.fast_hit_share);
    }
}

#[test]
fn memory_mode_with_a_working_set_of_its_size_hits_63_2_percent() {
    let mut config = bare(PAGES, 1.0);
    config.seed = 3;
    let kernel = Kernel { memory_mode: true, ..Kernel::default() };
    let mut simulation = Simulation::new(config, Box::new(FirstTouch { kernel })).unwrap();
    touch_all(&mut simulation, PAGES);
    let mut random = Random(3);
    let touches: Vec<Touch> = (0..1_000_000).map(|_| Touch::load(random.below(PAGES))).collect();
    simulation.feed(&touches);
    let report = simulation.finish("uniform").unwrap();
    let expect = 1.0 - (-1.0f64).exp();
    assert!((report.fast_hit_share - expect).abs() < 0.015, "{}", report.fast_hit_share);
    assert_eq!(fast_pages_at_the_end(&report), 0, "the operating system sees only the slow memory");
}

#[test]
fn check_8_memory_mode_has_no_conflicts_where_the_working_set_lies_in_one_piece() {
    let mut config = bare(PAGES, 1.0);
    config.placement = Placement::Contiguous;
    let kernel = Kernel { memory_mode: true, ..Kernel::default() };
    let mut simulation = Simulation::new(config, Box::new(FirstTouch { kernel })).unwrap();
    touch_all(&mut simulation, PAGES);
    let mut random = Random(3);
    let touches: Vec<Touch> = (0..400_000).map(|_| Touch::load(random.below(PAGES))).collect();
    simulation.feed(&touches);
    let report = simulation.finish("uniform").unwrap();
    // Each line misses once; the test touches one line a page.
    assert!(report.tier_accesses[1] <= PAGES, "{} misses, {PAGES} lines", report.tier_accesses[1]);
}

#[test]
fn check_9_walks_of_huge_pages_are_so_rare_that_counting_at_each_costs_nothing() {
    // A hotness walk costs 100 cycles at each miss of the first level; cycles of an access come from its latency.
    let overhead = |pages: Pages| {
        let mut config = bare(PAGES, 1.0);
        (config.tlb, config.pages) = (true, pages);
        let mut random = Random(4);
        let touches: Vec<Touch> = (0..2_000_000).map(|_| Touch::chase(random.below(PAGES))).collect();
        let (nanos, report) = time_of(config, 0, PAGES, &touches);
        let cycles = nanos * 2.1 / report.accesses as f64;
        100.0 * report.walk_share / cycles
    };
    // Sixteen huge pages fit the first level of 32: what misses there walks.
    let (huge, small) = (overhead(Pages::Huge), overhead(Pages::Small));
    assert!(huge < 1e-4, "{huge}");
    assert!(small > 0.1, "{small}: of 4 KiB pages most accesses walk");
}

fn fast_pages_at_the_end(report: &Report) -> u64 {
    report.series.rows.last().map_or(0, |row| row.fast_pages)
}

#[test]
fn a_cache_of_the_working_sets_size_takes_nearly_everything() {
    let mut config = bare(PAGES, 1.0);
    config.cache = true;
    // 4096 lines of 64 B: 256 KiB of 35.75 MiB.
    let touches: Vec<Touch> = (0..400_000u64).map(|n| Touch::load(n % 4096)).collect();
    let (_, report) = time_of(config, 1, PAGES, &touches);
    assert!(report.cache_hits > 390_000, "{}", report.cache_hits);
}

#[test]
fn huge_pages_walk_less_and_are_born_whole() {
    let mut random = Random(4);
    let touches: Vec<Touch> = (0..200_000).map(|_| Touch::load(random.below(PAGES))).collect();
    let mut config = bare(PAGES, 1.0);
    config.tlb = true;
    let (small_ns, small) = time_of(config.clone(), 0, PAGES, &touches);
    config.pages = Pages::Huge;
    let (huge_ns, huge) = time_of(config, 0, PAGES, &touches);
    assert!(small.walk_share > 0.5 && huge.walk_share < 0.01, "{} {}", small.walk_share, huge.walk_share);
    assert!(huge_ns < small_ns);
    assert_eq!(huge.footprint_bytes, small.footprint_bytes);
}

#[test]
fn folded_pages_translate_and_fault_at_the_price_of_huge_ones() {
    let mut random = Random(9);
    let touches: Vec<Touch> = (0..200_000).map(|_| Touch::load(random.below(PAGES))).collect();
    let mut config = bare(PAGES, 1.0);
    (config.tlb, config.pages) = (true, Pages::Folded);
    config.scale = Scale::new(512).unwrap();
    // At 512 the TLB has as many entries as at full size; 8192 pages are 16 GiB, of which it reaches 3.
    let (_, report) = time_of(config, 0, PAGES, &touches);
    let expect = 1.0 - 1536.0 / PAGES as f64;
    assert!((report.walk_share - expect).abs() < 0.05, "{} {expect}", report.walk_share);
    // Time at full size: 8192 first touches of 200 us.
    let mut config = bare(PAGES, 1.0);
    (config.pages, config.scale) = (Pages::Folded, Scale::new(512).unwrap());
    let mut simulation = Simulation::new(config, Box::new(Fixed(TierId::FAST))).unwrap();
    touch_all(&mut simulation, PAGES);
    let seconds = simulation.now().as_secs_f64();
    assert!((seconds / (8192.0 * 200e-6) - 1.0).abs() < 0.1, "{seconds}");
}

// Accounting.

#[test]
fn every_access_is_counted_once_and_every_byte_has_a_cause() {
    let mut simulation = Simulation::new(bare(PAGES, 0.5), Box::new(Eager::by_samples(50))).unwrap();
    touch_all(&mut simulation, PAGES);
    let mut random = Random(5);
    let touches: Vec<Touch> = (0..300_000)
        .map(|n| if n % 3 == 0 { Touch::store(random.below(PAGES)) } else { Touch::load(random.below(PAGES)) })
        .collect();
    let stores = touches.iter().filter(|touch| touch.wait == Wait::Store).count() as u64;
    simulation.feed(&touches);
    let report = simulation.finish("accounts").unwrap();
    assert_eq!(report.accesses, PAGES + 300_000);
    assert_eq!(report.tier_accesses.iter().sum::<u64>() + report.cache_hits, report.accesses);
    assert!(report.promoted_pages > 0 && report.demoted_pages > 0, "{report:?}");
    assert_eq!(report.migrated_bytes, (report.promoted_pages + report.demoted_pages) * 4096);
    // Fast memory holds what was born there, plus what came, less what left.
    assert_eq!(fast_pages_at_the_end(&report), PAGES / 2 + report.promoted_pages - report.demoted_pages);
    // Fast memory's unit is a line: reads are accesses and copies out, writes are stores, first touches and copies in.
    let read = report.tier_accesses[0] * 64 + report.demoted_pages * 4096;
    assert_eq!(report.tier_bytes[0][0], read);
    let written = report.tier_bytes[0][1] + report.tier_bytes[1][1];
    assert!(written >= stores * 64 + PAGES * 4096 + report.migrated_bytes, "{written}");
    let overhead: f64 = report.overhead_seconds.values().sum();
    assert!((overhead - report.management_seconds).abs() < 1e-12 && overhead > 0.0);
    let series: u64 = report.series.rows.iter().map(|row| row.promoted).sum();
    assert_eq!(series, report.promoted_pages);
}

#[test]
fn engine_and_machine_agree_on_every_page() {
    for pages in [Pages::Small, Pages::Huge] {
        let mut config = bare(PAGES, 0.4);
        config.pages = pages;
        let kernel = Kernel {
            demotion: true,
            promotion_needs_high_watermark: true,
            demoted_pages_marked: true,
            demote_scale: 200,
            ..Kernel::default()
        };
        let mut simulation = Simulation::new(config, Box::new(Eager::by_faults(kernel, 256))).unwrap();
        touch_all(&mut simulation, PAGES);
        let mut random = Random(6);
        for _ in 0..60 {
            let touches: Vec<Touch> = (0..5000).map(|_| Touch::load(random.below(PAGES))).collect();
            simulation.feed(&touches);
        }
        simulation.unmap(Vpn(100), 3000);
        simulation.meet();
        let known = simulation.engine().pages();
        for page in 0..PAGES {
            let real = simulation.memory().word(page as u32).tier();
            let believed = known.find(SpaceId(0), Vpn(page)).and_then(|id| known[id].tier());
            assert_eq!(real, believed, "{pages:?} page {page}");
            assert_eq!(real.is_none(), (100..3100).contains(&page), "{pages:?} page {page}");
        }
        for tier in [TierId(0), TierId(1)] {
            assert_eq!(known.used_in_all(tier), simulation.memory().used(tier));
            assert!(simulation.memory().used(tier) <= simulation.memory().capacity(tier));
        }
        let report = simulation.finish("agree").unwrap();
        assert!(report.kernel_demoted_pages > 0 && report.hint_faults > 0, "{pages:?}: {report:?}");
    }
}

// Scheduling.

#[test]
fn two_threads_halve_the_time_and_a_barrier_waits_for_the_slower() {
    let work = |threads: usize, count: usize| -> Vec<Touch> {
        (0..count).map(|n| Touch::chase((n as u64 * 7) % PAGES).by(n % threads).computing(100)).collect()
    };
    let (one, _) = time_of(bare(PAGES, 1.0), 0, PAGES, &work(1, 40_000));
    let (two, _) = time_of(bare(PAGES, 1.0), 0, PAGES, &work(2, 40_000));
    assert!((one / two - 2.0).abs() < 0.02, "{one} {two}");
    // Three quarters of the work on one thread: the barrier takes its time, not the mean.
    let uneven: Vec<Touch> = (0..40_000usize)
        .map(|n| Touch::chase((n as u64 * 7) % PAGES).by(usize::from(n % 4 == 3)).computing(100))
        .collect();
    let (lame, _) = time_of(bare(PAGES, 1.0), 0, PAGES, &uneven);
    assert!((lame / one - 0.75).abs() < 0.02, "{lame} {one}");
}

#[test]
fn a_serial_part_before_a_parallel_one_is_not_spread_over_threads() {
    let serial: Vec<Touch> = (0..30_000u64).map(|n| Touch::chase(n % PAGES)).collect();
    let parallel: Vec<Touch> = (0..24_000u64).map(|n| Touch::chase(n % PAGES).by((n % 24) as usize)).collect();
    let both = [serial, parallel].concat();
    let (nanos, _) = time_of(bare(PAGES, 1.0), 0, PAGES, &both);
    let expect = (30_000.0 + 1000.0) * 98.0;
    assert!((nanos / expect - 1.0).abs() < 0.02, "{nanos} {expect}");
}

#[test]
fn turns_longer_than_a_stretch_do_not_make_threads_wait_for_each_other() {
    // Eight threads, each delivered in turns of 4000 accesses, at a scale at which a stretch is far shorter.
    let turns = |threads: usize| -> Vec<Touch> {
        (0..256_000usize).map(|n| Touch::chase((n as u64 * 7) % PAGES).by((n / 4000) % threads)).collect()
    };
    let time = |threads: usize| {
        let mut config = bare(PAGES, 1.0);
        config.scale = Scale::new(512).unwrap();
        let mut simulation = Simulation::new(config, Box::new(Fixed(TierId::FAST))).unwrap();
        touch_all(&mut simulation, PAGES);
        simulation.fork();
        simulation.feed(&turns(threads));
        simulation.meet();
        let before = simulation.now();
        simulation.fork();
        simulation.feed(&turns(threads));
        simulation.meet();
        simulation.now().since(before).as_secs_f64()
    };
    let (one, eight) = (time(1), time(8));
    assert!((one / eight - 8.0).abs() < 0.1, "{one} {eight}");
}

#[test]
fn more_threads_than_cores_take_turns() {
    let work = |threads: usize| -> Vec<Touch> {
        (0..96_000).map(|n| Touch::load(0).by(n % threads).computing(1000)).collect()
    };
    let (fits, _) = time_of(bare(PAGES, 1.0), 0, PAGES, &work(24));
    let (crowd, _) = time_of(bare(PAGES, 1.0), 0, PAGES, &work(96));
    assert!((crowd / fits - 1.0).abs() < 0.02, "{fits} {crowd}");
}

// The kernel's part.

fn hot_set_in_slow_memory(kernel: Kernel) -> Report {
    let mut simulation = Simulation::new(bare(PAGES, 0.5), Box::new(Eager::by_faults(kernel, 512))).unwrap();
    touch_all(&mut simulation, PAGES);
    let mut random = Random(7);
    for _ in 0..200 {
        // The second half of memory, which came last and is slow, is in use; the first half is not.
        let touches: Vec<Touch> = (0..5000).map(|_| Touch::load(6000 + random.below(1500))).collect();
        simulation.feed(&touches);
    }
    simulation.finish("hot set").unwrap()
}

#[test]
fn without_demotion_promotions_fail_and_with_it_they_succeed() {
    let autonuma = hot_set_in_slow_memory(Kernel { promotion_needs_high_watermark: true, ..Kernel::default() });
    assert_eq!(autonuma.promoted_pages, 0, "fast memory stands at its low mark, below the high one");
    assert!(autonuma.failed_promotions > 100 && autonuma.failures["no_room"] == autonuma.failed_promotions);
    let tpp = hot_set_in_slow_memory(Kernel {
        promotion_needs_high_watermark: true,
        demotion: true,
        demote_scale: 200,
        ..Kernel::default()
    });
    assert!(tpp.promoted_pages >= 1000, "{}", tpp.promoted_pages);
    assert!(
        tpp.kernel_demoted_pages >= tpp.promoted_pages - PAGES / 10 && tpp.kernel_demoted_pages == tpp.demoted_pages
    );
    assert!(tpp.fast_hit_share > autonuma.fast_hit_share + 0.2, "{} {}", tpp.fast_hit_share, autonuma.fast_hit_share);
    assert!(tpp.seconds < autonuma.seconds);
}

#[test]
fn compressed_memory_takes_the_coldest_and_gives_it_back_by_faults() {
    let machine = terrace_machine::preset::Machine::preset("three-tier").unwrap();
    let mut config = SimConfig::new(machine, Bytes::of_pages(PAGES), FastSize::Share(0.25));
    (config.cache, config.tlb) = (false, false);
    // 192 GiB of CXL memory become 1536 pages: 2048 + 1536 pages of memory for 8192.
    config.scale = Scale::new(32_768).unwrap();
    let kernel = Kernel { demotion: true, ..Kernel::default() };
    let mut simulation = Simulation::new(config, Box::new(FirstTouch { kernel })).unwrap();
    touch_all(&mut simulation, 5000);
    assert!(simulation.memory().used(TierId(2)) > 1000, "{}", simulation.memory().used(TierId(2)));
    let again: Vec<Touch> = (0..5000).map(Touch::load).collect();
    simulation.feed(&again);
    simulation.meet();
    let known = simulation.engine().pages();
    for page in 0..5000 {
        let word = simulation.memory().word(page);
        assert_eq!(word.has(PageWord::STORED), word.tier() == Some(TierId(2)));
        let id = known.find(SpaceId(0), Vpn(u64::from(page))).unwrap();
        assert_eq!(known[id].tier(), word.tier(), "page {page}");
    }
    let report = simulation.finish("zram").unwrap();
    assert!(report.refaults > 1000 && report.overhead_seconds["refault_stall"] > 0.0);
}

// Scale.

#[test]
fn a_scaled_run_keeps_shares_and_ratios() {
    // The same program at a quarter of the size, with a policy whose times are stated at full size.
    let run = |scale: u32, pages: u64| -> Report {
        let mut config = bare(pages, 0.5);
        config.scale = Scale::new(scale).unwrap();
        let kernel =
            Kernel { promotion_needs_high_watermark: true, demotion: true, demote_scale: 200, ..Kernel::default() };
        let mut simulation =
            Simulation::new(config, Box::new(Eager::by_faults(kernel, 2048 / u64::from(scale)))).unwrap();
        touch_all(&mut simulation, pages);
        let mut random = Random(8);
        let touches: Vec<Touch> =
            (0..pages * 100).map(|_| Touch::chase(pages * 3 / 4 + random.below(pages / 5))).collect();
        simulation.feed(&touches);
        simulation.finish("scaled").unwrap()
    };
    let (full, quarter) = (run(1, 32_768), run(4, 8192));
    assert!(
        (full.fast_hit_share - quarter.fast_hit_share).abs() < 0.03,
        "{} {}",
        full.fast_hit_share,
        quarter.fast_hit_share
    );
    let ratio = quarter.full_size_seconds / full.seconds;
    assert!((ratio - 1.0).abs() < 0.05, "{ratio}");
    assert_eq!((full.scale, quarter.scale), (1, 4));
}

#[test]
fn folded_pages_have_as_many_samples_as_the_huge_pages_they_stand_for() {
    // MEMTIS samples every 199th load: 128 parts, of which the counter that counts each load leaves 128 in 199.
    let mut config = bare(PAGES, 0.5);
    (config.pages, config.scale) = (Pages::Folded, Scale::new(512).unwrap());
    let policy = terrace_policies::build("memtis", terrace_policies::Settings::default()).unwrap();
    let mut simulation = Simulation::new(config, policy).unwrap();
    touch_all(&mut simulation, PAGES);
    let before = simulation.engine().policy_metrics().iter().find(|metric| metric.name == "samples").unwrap().value;
    let mut random = Random(9);
    // One after the other: more than 100,000 samples a second would be lost.
    let touches: Vec<Touch> = (0..400_000).map(|_| Touch::chase(random.below(PAGES))).collect();
    simulation.feed(&touches);
    simulation.meet();
    let after = simulation.engine().policy_metrics().iter().find(|metric| metric.name == "samples").unwrap().value;
    let kept = (after - before) / 400_000.0;
    // The quota of 3 % of a core may have stepped the period up by then: 293 at most in so short a run.
    assert!((128.0 / 293.0 - 0.01..=128.0 / 199.0 + 0.01).contains(&kept), "{kept}");
}

#[test]
fn moves_out_of_two_tiers_take_turns_with_one_mover_and_run_side_by_side_with_two() {
    // Half of memory changes places with the other half, as fast as the movers can.
    let time = |movers: Movers| {
        let kernel = Kernel { movers, ..Kernel::default() };
        let mut simulation =
            Simulation::new(bare(PAGES, 0.5), Box::new(Eager { kernel, ..Eager::by_samples(1) })).unwrap();
        touch_all(&mut simulation, PAGES);
        let mut random = Random(11);
        for _ in 0..100 {
            let touches: Vec<Touch> = (0..1000).map(|_| Touch::chase(random.below(PAGES))).collect();
            simulation.feed(&touches);
        }
        simulation.settle();
        let nanos = simulation.now().as_nanos() as f64;
        let report = simulation.finish("exchange").unwrap();
        (report.migrated_bytes as f64 / nanos, report.overhead_seconds["migration"] * 1e9 / nanos)
    };
    let ((one, busy), (two, both)) = (time(Movers::One), time(Movers::EachTier));
    assert!(busy <= 1.001, "one thread works no more than all the time: {busy}");
    assert!(both > busy && two > one, "{one} {two} bytes a nanosecond, {busy} {both} threads");
}

#[test]
fn an_access_that_stands_for_many_takes_their_time_and_traffic() {
    let run = |weight: u64, count: u64| {
        let mut simulation = Simulation::new(bare(PAGES, 1.0), Box::new(Fixed(TierId::FAST))).unwrap();
        touch_all(&mut simulation, PAGES);
        simulation.each_stands_for(weight);
        let before = simulation.now();
        let touches: Vec<Touch> = (0..count).map(|n| Touch::chase(n * 7 % PAGES)).collect();
        simulation.feed(&touches);
        simulation.meet();
        let nanos = simulation.now().since(before).as_secs_f64() * 1e9;
        (nanos, simulation.finish("sampled").unwrap().tier_bytes[0])
    };
    let ((nanos, bytes), (all_nanos, all_bytes)) = (run(50, 2000), run(1, 100_000));
    assert!((nanos / all_nanos - 1.0).abs() < 0.01, "{nanos} {all_nanos}");
    assert_eq!(bytes, all_bytes);
}

#[test]
fn a_programs_own_splits_and_huge_mappings_are_followed_where_there_are_huge_pages() {
    let mut config = bare(PAGES, 1.0);
    config.pages = Pages::Huge;
    let mut simulation = Simulation::new(config, Box::new(Fixed(TierId::FAST))).unwrap();
    touch_all(&mut simulation, PAGES);
    let huge = |simulation: &Simulation, page: u32| simulation.memory().word(page).has(PageWord::HUGE);
    assert!(huge(&simulation, 600));
    simulation.remap(Vpn(512), 1024, false);
    assert_eq!([100, 600, 1100, 1600].map(|page| huge(&simulation, page)), [true, false, false, true]);
    // Not the whole block: nothing that one entry could map.
    simulation.remap(Vpn(600), 300, true);
    assert!(!huge(&simulation, 600));
    simulation.remap(Vpn(512), 512, true);
    assert!(huge(&simulation, 600));
    let pages = simulation.engine().pages();
    let block = pages.find_block(SpaceId(0), Vpn(512)).unwrap();
    assert!(pages.block(block).unwrap().huge, "the engine knows");
}

#[test]
fn all_fast_has_fast_memory_for_everything_however_little_is_asked_for() {
    let source = terrace_sim::WorkloadSource {
        name: "gups".to_owned(),
        parameters: terrace_workloads::Parameters::new(8 << 20),
    };
    let config = bare(2048, 0.1);
    let policy = terrace_policies::build("all-fast", terrace_policies::Settings::default()).unwrap();
    let report = terrace_sim::run::run_alone(&config, &source, policy).unwrap();
    assert_eq!((report.fast_hit_share, report.tier_accesses[1]), (1.0, 0));
}

// It runs, and refuses.

#[test]
fn what_does_not_fit_is_an_error_with_the_address() {
    let mut config = bare(PAGES, 0.5);
    config.scale = Scale::new(1 << 20).unwrap();
    let mut simulation = Simulation::new(config, Box::new(FirstTouch::default())).unwrap();
    touch_all(&mut simulation, PAGES);
    assert!(!simulation.goes_on());
    let error = simulation.finish("too big").unwrap_err();
    assert!(matches!(error, SimError::OutOfMemory { .. }), "{error}");
    let mut simulation = Simulation::new(bare(PAGES, 0.5), Box::new(FirstTouch::default())).unwrap();
    simulation.map(Vpn(1 << 40), 8, false);
    simulation.feed(&[Touch::load(5)]);
    assert!(matches!(simulation.finish("wild"), Err(SimError::Address { .. })));
}

#[test]
fn a_page_tells_its_history() {
    let mut config = bare(PAGES, 0.5);
    config.watch = Some(Vpn(7000)..Vpn(7001));
    let kernel =
        Kernel { promotion_needs_high_watermark: true, demotion: true, demote_scale: 200, ..Kernel::default() };
    let mut simulation = Simulation::new(config, Box::new(Eager::by_faults(kernel, 512))).unwrap();
    touch_all(&mut simulation, PAGES);
    for _ in 0..100 {
        let touches: Vec<Touch> = (0..2000).map(|n| Touch::load(6900 + n % 300)).collect();
        simulation.feed(&touches);
    }
    let report = simulation.finish("story").unwrap();
    let moments: Vec<&What> = report.history.moments.iter().map(|moment| &moment.what).collect();
    assert!(matches!(moments[0], What::Allocated { tier: TierId(1), huge: false }), "{moments:?}");
    let fault = moments.iter().position(|what| matches!(what, What::HintFault { .. })).unwrap();
    let marked = moments.iter().position(|what| matches!(what, What::Marked)).unwrap();
    let moved = moments.iter().position(|what| matches!(what, What::Moved { failure: None, .. })).unwrap();
    assert!(marked < fault && fault < moved, "{moments:?}");
    let text = serde_json::to_string(&report).unwrap();
    assert!(text.contains("\"what\":\"hint_fault\"") && text.contains("move to tier 0"));
}
