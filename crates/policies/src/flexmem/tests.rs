//! FlexMem in virtual time: what its sampling half, its fault half and its demotion do, one scenario each.

use super::*;
use crate::rig::{Rig, SLOW};
use std::ops::Range;
use terrace_core::engine::Input;
use terrace_core::units::Vpn;

/// 1000 fast pages, intervals of 100 samples, coolings every 2000.
/// One fault makes a page promising here, so that a test needs only one; what the default says has a test of its own.
const SMALL: [(&str, &str); 4] =
    [("adapt_samples", "1280000"), ("cool_samples", "25600000"), ("cool_growth", "1TiB"), ("touches", "1")];
/// Tests fill fast memory page by page, and only one of them is about what that wakes; what is cold leaves at each interval.
const QUIET: [(&str, &str); 2] = [("direct", "off"), ("dr_gate", "literal")];
const SOON: Duration = Duration::from_millis(1);

fn rig(extra: &[(&str, &str)]) -> Rig {
    let pairs: Vec<(&str, &str)> = QUIET.iter().chain(&SMALL).chain(extra).copied().collect();
    let mut policy = crate::build("flexmem", Settings::from_pairs(pairs)).unwrap();
    policy.configure(crate::rig::scaled(12_800));
    let mut rig = Rig::new(policy, &[1000, 100_000]);
    rig.map(4096);
    rig
}

/// Samples that only end an interval: all on one fast page.
fn end_interval(rig: &mut Rig) {
    rig.sample([0; 100]);
}

#[test]
fn the_warm_range_grows_while_a_share_beta_of_a_bin_moves_up() {
    let check = |beta: f64, sizes: &[(usize, u64, u64)], hot: usize, warm: usize| {
        let (mut bins, mut up) = ([0; BINS], [0; BINS]);
        for &(bin, size, moved) in sizes {
            (bins[bin], up[bin]) = (size, moved);
        }
        assert_eq!(lowest_warm_bin(hot, beta, &bins, &up), warm, "{sizes:?} beta {beta}");
    };
    let sizes = [(8, 100, 30), (7, 100, 25), (6, 100, 10), (5, 100, 90)];
    check(0.2, &sizes, 9, 7);
    check(0.1, &sizes, 9, 5 - 5);
    check(0.4, &sizes, 9, 9);
    check(0.2, &[(3, 10, 0)], 4, 4);
}

#[test]
fn a_fault_makes_a_page_promising_and_the_next_interval_brings_it_in() {
    let mut rig = rig(&[]);
    rig.born(0..500, TierId::FAST);
    rig.born(500..600, SLOW);
    rig.fault([550, 551], SOON, false);
    assert_eq!((rig.promotions, rig.metric("active_slow_pages")), (0, 2.0), "never in the fault path");
    end_interval(&mut rig);
    assert_eq!((rig.tier(550), rig.tier(551), rig.tier(552)), (Some(TierId::FAST), Some(TierId::FAST), Some(SLOW)));
    assert_eq!(rig.metric("promoted_by_faults_pages"), 2.0);
}

#[test]
fn a_page_is_on_the_active_list_after_its_second_fault() {
    let mut rig = rig(&[("touches", "2")]);
    rig.born(0..500, TierId::FAST);
    rig.born(500..600, SLOW);
    rig.fault([550, 551, 551], SOON, false);
    assert_eq!(rig.metric("active_slow_pages"), 1.0, "section 2.2: a page only needs to be accessed twice");
    assert_eq!(FlexMem::new(&mut Settings::default().for_policy(&INFO)).unwrap().touches, 2);
}

#[test]
fn a_small_page_that_stands_for_a_huge_one_takes_as_many_samples_to_a_bin() {
    let mut policy = crate::build("flexmem", Settings::from_pairs(SMALL)).unwrap();
    policy.configure(crate::rig::scaled(12_800));
    policy.configure(crate::rig::folded(128));
    let mut rig = Rig::new(policy, &[1000, 100_000]);
    rig.map(4096);
    rig.born(0..2, TierId::FAST);
    // 100 samples an interval come as 12,800 observations; 32 of them are 128 samples of a huge page: bin 7.
    rig.sample([1; 32]);
    assert_eq!((rig.metric("bin_07_pages"), rig.metric("intervals")), (1.0, 0.0));
    rig.sample([1; 12_800 - 32]);
    assert_eq!(rig.metric("intervals"), 1.0);
}

#[test]
fn threshold_and_migration_come_with_the_samples_not_with_time() {
    let mut rig = rig(&[]);
    rig.born(0..500, TierId::FAST);
    rig.born(500..600, SLOW);
    rig.sample((500..549).chain(500..549));
    rig.pass(Duration::from_secs(10));
    assert_eq!(rig.promotions, 0);
    rig.sample([500, 501]);
    assert!(rig.promotions >= 49, "{}", rig.promotions);
}

#[test]
fn a_promising_page_that_stays_cold_is_passed_over_five_times_and_then_was_a_mistake() {
    // Intervals of 3,700 samples. 850 fast pages of four samples each fit; with 300 slow ones of one sample they do not.
    let mut rig = rig(&[("cool_samples", "0"), ("adapt_samples", "47360000"), ("warm", "none")]);
    rig.born(0..850, TierId::FAST);
    rig.born(1500..1800, SLOW);
    rig.fault([1500], SOON, false);
    rig.sample((0..850).flat_map(|vpn| [vpn; 4]).chain(1500..1800));
    assert_eq!((rig.metric("hot_threshold_bin"), rig.metric("warm_threshold_bin")), (10.0, 10.0));
    assert_eq!((rig.promotions, rig.tier(1500)), (1, Some(TierId::FAST)));
    for passed_over in 0..6 {
        assert_eq!(rig.tier(1500), Some(TierId::FAST), "passed over {passed_over} times so far");
        assert_eq!(rig.metric("passed_over_pages"), f64::from(passed_over));
        rig.sample([0; 3700]);
    }
    assert_eq!(rig.tier(1500), Some(SLOW));
    assert_eq!(rig.metric("mistaken_pages"), 1.0);
}

/// No limit, and nothing known of costs.
fn unlimited(tiers: &[terrace_core::policy::TierUse]) -> CapacityView<'_> {
    CapacityView { tiers, fast_limit: None, footprint: 0, backoff: 1.0, least_idle: Duration::ZERO, swap: None }
}

#[test]
fn mistakes_among_the_promotions_of_an_interval_lower_alpha() {
    let check = |mistaken, promoted, before: f64, after: f64| {
        let mut policy = FlexMem::new(&mut Settings::default().for_policy(&INFO)).unwrap();
        (policy.mistaken, policy.promoted_by_faults, policy.alpha) = (mistaken, promoted, before);
        let tiers = [terrace_core::policy::TierUse { used: 0, capacity: 10 }; 2];
        policy.open_interval(&unlimited(&tiers));
        assert_eq!(policy.alpha, after, "{mistaken} of {promoted}");
    };
    check(0, 10, 0.3, 1.0);
    check(5, 10, 1.0, 0.5);
    check(20, 10, 1.0, 0.0);
    check(3, 0, 0.7, 0.7);
}

#[test]
fn mistakes_wait_for_promotions_to_stand_against() {
    let mut policy = FlexMem::new(&mut Settings::default().for_policy(&INFO)).unwrap();
    let tiers = [terrace_core::policy::TierUse { used: 0, capacity: 10 }; 2];
    let view = unlimited(&tiers);
    let mut alpha_after = |mistaken: u64, promoted: u64| {
        policy.mistaken += mistaken;
        policy.promoted_by_faults += promoted;
        policy.open_interval(&view);
        policy.alpha
    };
    assert_eq!(alpha_after(3, 0), 1.0, "kept while nothing was promoted");
    assert_eq!(alpha_after(0, 10), 0.7, "three of ten");
    assert_eq!(alpha_after(0, 10), 1.0, "and both start again");
}

#[test]
fn a_page_whose_bin_rose_was_no_mistake_though_it_never_was_hot() {
    let mistaken = |reading: &str| {
        // As above: hot is bin 10. One sample is bin 9, and the page has none when it is promoted.
        let mut rig =
            rig(&[("cool_samples", "0"), ("adapt_samples", "47360000"), ("warm", "none"), ("mistake", reading)]);
        rig.born(0..850, TierId::FAST);
        rig.born(1500..1801, SLOW);
        rig.fault([1800], SOON, false);
        rig.sample((0..850).flat_map(|vpn| [vpn; 4]).chain(1500..1800));
        assert_eq!((rig.metric("hot_threshold_bin"), rig.tier(1800)), (10.0, Some(TierId::FAST)));
        rig.sample([1800]);
        for _ in 0..8 {
            rig.sample([0; 3700]);
        }
        assert_eq!(rig.tier(1800), Some(SLOW));
        rig.metric("mistaken_pages")
    };
    assert_eq!((mistaken("bin"), mistaken("hot")), (0.0, 1.0));
}

#[test]
fn a_threshold_that_falls_to_a_page_ends_its_countdown() {
    let mut rig = rig(&[("cool_samples", "0"), ("adapt_samples", "47360000"), ("warm", "none")]);
    rig.born(0..850, TierId::FAST);
    rig.born(1500..1800, SLOW);
    rig.fault([1500], SOON, false);
    rig.sample((0..850).flat_map(|vpn| [vpn; 4]).chain(1500..1800));
    let countdown = |rig: &Rig| rig.engine.pages()[rig.page(1500)].heat & COUNTDOWN_MASK;
    assert_eq!((rig.metric("hot_threshold_bin"), countdown(&rig)), (10.0, 5));
    // With three hundred hot pages gone all that has a sample fits.
    rig.engine.handle(rig.now, Input::Unmapped(crate::rig::SPACE, Vpn(0)..Vpn(512)));
    rig.sample([600; 3700]);
    assert!(rig.metric("hot_threshold_bin") < 10.0, "{}", rig.metric("hot_threshold_bin"));
    assert_eq!((rig.tier(1500), countdown(&rig), rig.metric("passed_over_pages")), (Some(TierId::FAST), 0, 0.0));
}

#[test]
fn pages_without_room_are_failures_of_their_source_and_raise_the_rate() {
    let mut rig = rig(&[("demote_into_warm", "off"), ("cool_samples", "0")]);
    rig.born(0..1000, TierId::FAST);
    rig.born(1000..1100, SLOW);
    rig.sample((0..800).flat_map(|vpn| [vpn; 2]));
    rig.fault([1001, 1002, 1003], SOON, false);
    rig.sample((1010..1030).flat_map(|vpn| [vpn; 3]));
    for _ in 0..2 {
        end_interval(&mut rig);
    }
    assert!(rig.metric("promotion_failures_faults") > 0.0);
    assert!(rig.metric("promotion_failures_histogram") > 0.0);
    assert!(rig.metric("demotion_rate_pages") > 0.0);
}

#[test]
fn a_page_that_waits_for_room_failed_once_and_not_at_each_interval() {
    // Failures of the active list, and the intervals in which they were counted.
    let failures = |reading: &str| {
        let mut rig = rig(&[("failures", reading), ("cool_samples", "0"), ("dr_gate", "need"), ("alpha", "0")]);
        rig.born(0..970, TierId::FAST);
        rig.born(1000..1100, SLOW);
        rig.sample((0..970).flat_map(|vpn| [vpn; 2]));
        let before = rig.metric("promotion_failures_faults");
        rig.fault(1000..1100, SOON, false);
        let intervals = rig.metric("intervals");
        rig.sample((0..970).flat_map(|vpn| [vpn; 2]));
        (rig.metric("promotion_failures_faults") - before, rig.metric("intervals") - intervals)
    };
    let (once, intervals) = failures("once");
    assert!(once == 100.0 && intervals > 5.0, "{once} in {intervals}");
    let (attempts, intervals) = failures("attempts");
    assert!((1.0..=intervals).contains(&attempts), "{attempts} in {intervals}");
    let (standing, intervals) = failures("standing");
    assert!(standing > 50.0 * intervals, "{standing} in {intervals}");
}

#[test]
fn a_page_that_came_and_went_may_fail_again() {
    let mut rig = rig(&[("cool_samples", "0"), ("dr_gate", "need"), ("alpha", "0")]);
    rig.born(0..970, TierId::FAST);
    rig.born(1000..1010, SLOW);
    rig.sample((0..970).flat_map(|vpn| [vpn; 2]));
    let failed = |rig: &mut Rig| {
        rig.fault(1000..1010, SOON, false);
        rig.sample([0; 200]);
        rig.metric("promotion_failures_faults")
    };
    assert_eq!((failed(&mut rig), failed(&mut rig)), (10.0, 10.0), "it waits still");
    // A pass of the scanner, and one more, without a use: it leaves the active list.
    for _ in 0..4 {
        rig.pass(Duration::from_secs(60));
        rig.sample([0]);
    }
    assert_eq!(rig.metric("active_slow_pages"), 0.0);
    assert_eq!(failed(&mut rig), 20.0);
}

#[test]
fn alpha_limits_what_the_active_list_promotes() {
    let promoted = |limits: &str, alpha: &str| {
        let mut rig = rig(&[("alpha_limits", limits), ("alpha", alpha), ("cool_samples", "0")]);
        rig.born(0..870, TierId::FAST);
        rig.born(1000..1200, SLOW);
        rig.fault(1000..1200, SOON, false);
        end_interval(&mut rig);
        rig.metric("promoted_by_faults_pages")
    };
    // Room for 100 above the 3 % that stay free.
    assert_eq!((promoted("promotion", "1"), promoted("promotion", "0.25")), (100.0, 25.0));
    assert_eq!(promoted("promotion", "0"), 7.0, "a sixteenth goes on as a trial");
    assert_eq!(promoted("demotion", "0.25"), 100.0);
}

#[test]
fn a_page_that_a_pass_of_the_scanner_does_not_find_used_leaves_the_active_list() {
    let left = |aging: &str| {
        let mut rig = rig(&[("active_aging", aging), ("touches", "2")]);
        rig.born(0..960, TierId::FAST);
        rig.born(1000..1010, SLOW);
        let fault = |rig: &mut Rig, vpn| rig.fault([vpn], SOON, false);
        (0..2).for_each(|_| fault(&mut rig, 1000));
        fault(&mut rig, 1001);
        for _ in 0..4 {
            rig.pass(Duration::from_secs(60));
            (0..2).for_each(|_| fault(&mut rig, 1002));
        }
        fault(&mut rig, 1001);
        rig.metric("active_slow_pages")
    };
    assert_eq!(left("on"), 1.0, "the one that is used in each pass");
    assert_eq!(left("off"), 3.0, "used twice at any distance");
}

#[test]
fn both_sources_get_their_turn() {
    let mut rig = rig(&[("cool_samples", "0")]);
    rig.born(0..960, TierId::FAST);
    rig.born(1000..1200, SLOW);
    rig.fault(1000..1050, SOON, false);
    rig.sample((1100..1150).flat_map(|vpn| [vpn; 2]));
    // Room for 10 above the 3 % that stay free: five each.
    let by = |rig: &Rig, range: Range<u64>| range.filter(|&vpn| rig.tier(vpn) == Some(TierId::FAST)).count();
    assert_eq!((by(&rig, 1000..1050), by(&rig, 1100..1150)), (5, 5));
}

#[test]
fn an_allocation_that_finds_fast_memory_short_has_cold_pages_leave_at_once() {
    let check = |direct: &str, demoted: bool| {
        let mut rig = rig(&[("direct", direct), ("dr_gate", "need")]);
        rig.born(0..900, TierId::FAST);
        rig.born(1500..2400, SLOW);
        // All are counted, and more than fast memory holds only once; the first hundred are hot.
        rig.sample((0..900).chain(1500..2400).chain((0..100).cycle().take(2700)));
        let before = rig.demotions;
        rig.born(1000..1000 + rig.fast_free(), TierId::FAST);
        rig.pass(Duration::from_millis(50));
        assert_eq!(rig.demotions > before, demoted, "direct={direct}");
        assert!((0..100).all(|vpn| rig.tier(vpn) == Some(TierId::FAST)), "no hot page left");
    };
    check("on", true);
    check("off", false);
}

#[test]
fn cooling_renames_the_lists_and_keeps_every_page() {
    for k in ["0.5", "0.3"] {
        let mut rig = rig(&[("k", k), ("cool_samples", "2560000"), ("adapt_samples", "100000000")]);
        rig.born(0..600, TierId::FAST);
        rig.born(600..900, SLOW);
        for round in 0..20 {
            rig.sample((0..900).filter(|vpn| vpn % 7 == round % 7));
        }
        let policy_pages: f64 = (0..16).map(|bin| rig.metric(&format!("bin_{bin:02}_pages"))).sum();
        assert_eq!(policy_pages, 900.0, "k={k}");
    }
}

#[test]
fn a_skewed_huge_page_is_split_unless_that_is_off() {
    let run = |split: &str| {
        let mut rig = rig(&[("split", split)]);
        rig.born_huge(0, TierId::FAST);
        rig.born_huge(1, SLOW);
        rig.born_huge(2, SLOW);
        // Two pages of slow huge pages get every sample: base pages would have hit fast memory.
        for _ in 0..4000 {
            rig.sample([512 + 7, 1024 + 9]);
        }
        rig.pass(Duration::from_secs(1));
        rig.engine.ledger().splits()
    };
    assert!(run("on") >= 1);
    assert_eq!(run("off"), 0);
}
