//! `terrace` as a whole, driven in virtual time.

use std::ops::Range;
use std::time::Duration;

use super::*;
use crate::rig::{Rig, SLOW, SPACE};
use terrace_core::observation::{Access, Observation, PteState, ScanBatch};
use terrace_core::units::Vpn;

fn rig(settings: &[(&str, &str)], fast: u64) -> Rig {
    let policy = crate::build("terrace", Settings::from_pairs(settings.iter().copied())).unwrap();
    let mut rig = Rig::new(policy, &[fast, 100_000]);
    rig.map(2048);
    rig
}

/// Runs `intervals` intervals of 1 s, in each of which pages are sampled as `count` says.
fn sampled(rig: &mut Rig, intervals: u64, count: impl Fn(u64, u64) -> usize) {
    for interval in 0..intervals {
        for vpn in 0..256 {
            rig.sample(std::iter::repeat_n(vpn, count(vpn, interval)));
        }
        rig.pass(Duration::from_secs(1));
    }
}

const SECOND: (&str, &str) = ("interval", "1s");

/// 256 pages of which the first 64 are fast.
fn quarter(settings: &[(&str, &str)]) -> Rig {
    let mut rig = rig(settings, 64);
    rig.born(0..64, TierId::FAST);
    rig.born(64..256, SLOW);
    rig
}

fn metric(rig: &Rig, name: &str) -> f64 {
    rig.engine.policy_metrics().iter().find(|metric| metric.name == name).unwrap().value
}

fn fast_of(rig: &Rig, vpns: Range<u64>) -> usize {
    vpns.filter(|vpn| rig.tier(*vpn) == Some(TierId::FAST)).count()
}

#[test]
fn pages_in_use_take_the_place_of_idle_ones_and_nothing_is_demoted_for_nobody() {
    let mut rig = quarter(&[SECOND]);
    // What was allocated just now wants no more room by then.
    rig.pass(Duration::from_secs(10));
    sampled(&mut rig, 30, |vpn, _| usize::from((100..150).contains(&vpn)) * 40);
    assert_eq!(fast_of(&rig, 100..150), 50);
    assert_eq!(
        (rig.promotions, rig.demotions),
        (50, 50),
        "the rest of fast memory is idle, and nobody wants its place"
    );
    assert_eq!(rig.fast_used(), 64);
}

#[test]
fn equal_pages_stay_where_they_are() {
    let mut rig = quarter(&[SECOND]);
    // Equal on average, and never two intervals alike.
    let noise = |vpn: u64, now: u64| (terrace_core::random::mix(vpn ^ (now << 12)) % 5) as usize;
    // The prior takes the noise of the first intervals for lasting; then the table knows better.
    sampled(&mut rig, 30, noise);
    let first = rig.promotions;
    sampled(&mut rig, 30, |vpn, now| noise(vpn, now + 30));
    let then = rig.promotions - first;
    assert!(then <= 40, "{then} promotions in 30 intervals of 192 pages");
}

#[test]
fn pages_in_use_are_found_by_accessed_bits_alone() {
    let mut rig = quarter(&[("signals", "accessed-bits")]);
    for _ in 0..20 {
        rig.scan(0, |vpn| (100..150).contains(&vpn));
        let report = ScanReport { pages: 256, accessed: 50, walk: Duration::ZERO, share: 1.0 };
        rig.engine.handle(
            rig.now,
            terrace_core::engine::Input::Processor(ProcessorCounts {
                cores: 1,
                memory_accesses: 1_000_000,
                ..ProcessorCounts::default()
            }),
        );
        rig.engine.handle(rig.now, terrace_core::engine::Input::ScanDone(report));
        rig.pass(Duration::from_secs(1));
    }
    assert_eq!(fast_of(&rig, 100..150), 50);
}

#[test]
fn where_no_accesses_are_counted_a_mark_stands_for_as_many_as_are_usual() {
    let mut rig = quarter(&[("signals", "accessed-bits")]);
    // A live machine says how many processors run the program, and counts nothing.
    let counts = ProcessorCounts { cores: 1, in_use: 1.0, ..ProcessorCounts::default() };
    for _ in 0..20 {
        rig.scan(0, |vpn| (100..150).contains(&vpn));
        rig.engine.handle(rig.now, terrace_core::engine::Input::Processor(counts));
        let report = ScanReport { pages: 256, accessed: 50, walk: Duration::ZERO, share: 1.0 };
        rig.engine.handle(rig.now, terrace_core::engine::Input::ScanDone(report));
        rig.pass(Duration::from_secs(1));
    }
    let found = metric(&rig, "accesses_of_a_mark");
    // 20 million a second, 50 marks a second.
    assert!((found / 400_000.0 - 1.0).abs() < 0.01, "{found}");
    assert_eq!(fast_of(&rig, 100..150), 50, "50 accesses a second would repay no move");
}

#[test]
fn what_a_page_receives_is_right_from_the_first_interval_on() {
    let mut rig = quarter(&[SECOND]);
    sampled(&mut rig, 1, |_, _| 4);
    let first = metric(&rig, "accesses_of_a_page");
    sampled(&mut rig, 9, |_, _| 4);
    let later = metric(&rig, "accesses_of_a_page");
    assert!((0.3..3.0).contains(&(first / later)), "{first}, then {later}: not 256 times as much");
}

#[test]
fn a_block_that_was_not_walked_is_not_taken_for_idle() {
    let mut rig = rig(&[("signals", "accessed-bits")], 64);
    rig.born(0..64, TierId::FAST);
    rig.born(512..768, SLOW);
    let counts = ProcessorCounts { cores: 1, memory_accesses: 1_000_000, ..ProcessorCounts::default() };
    for walk in 0..40 {
        // The fast block is walked four times and then no more; the slow one always, a quarter of it in use.
        if walk < 4 {
            rig.scan(0, |_| true);
        } else {
            let ptes = vec![PteState::placed(TierId::FAST); 64];
            let scan = ScanBatch { first: rig.page(0), ptes: &ptes, window: None, cleared: false };
            rig.engine.handle(rig.now, terrace_core::engine::Input::Observed(Observations::Scan(scan)));
        }
        rig.scan(1, |vpn| (vpn + walk) % 4 == 0);
        rig.engine.handle(rig.now, terrace_core::engine::Input::Processor(counts));
        let report = ScanReport { pages: 320, accessed: 128, walk: Duration::ZERO, share: 1.0 };
        rig.engine.handle(rig.now, terrace_core::engine::Input::ScanDone(report));
        rig.pass(Duration::from_secs(1));
    }
    assert_eq!(fast_of(&rig, 0..64), 64);
}

#[test]
fn room_is_made_for_new_pages_before_they_come() {
    let late = |settings: &[(&str, &str)]| {
        let mut rig = rig(settings, 512);
        // 512 pages that nobody uses fill fast memory; then new ones come, each in use for the rest of its life.
        rig.touch_first(0..512);
        let mut slow = 0;
        for step in 0..1200u64 {
            let vpn = 512 + step;
            rig.touch_first([vpn]);
            slow += u32::from(step >= 600 && rig.tier(vpn) == Some(SLOW));
            for recent in vpn.saturating_sub(40).max(512)..=vpn {
                rig.sample([recent, recent, recent, recent]);
            }
            rig.pass(Duration::from_millis(50));
        }
        slow
    };
    let (with, without) = (late(&[("interval", "500ms")]), late(&[("interval", "500ms"), ("allocations", "off")]));
    assert!(with <= 30 && without > 2 * with.max(30), "{with} of 600 in slow memory, {without} without");
}

/// A program that only writes while it loads, on a machine that counts no accesses: loads are sampled of one page alone.
#[test]
fn room_is_made_for_pages_that_nobody_sees_written() {
    let slow = |counts: Option<ProcessorCounts>| {
        let mut rig = rig(&[("interval", "500ms")], 512);
        rig.touch_first(0..512);
        let mut slow = 0;
        for vpn in 512..1112 {
            counts.iter().for_each(|counts| {
                rig.engine.handle(rig.now, terrace_core::engine::Input::Processor(*counts));
            });
            rig.touch_first([vpn]);
            slow += u32::from(vpn >= 812 && rig.tier(vpn) == Some(SLOW));
            rig.sample([0, 0]);
            rig.pass(Duration::from_millis(50));
        }
        slow
    };
    let counted = ProcessorCounts { cores: 1, memory_accesses: 2 * 2503, ..ProcessorCounts::default() };
    assert_eq!(slow(None), 0, "of 300");
    assert!(slow(Some(counted)) > 200, "no page but one is used, by the processor's own count");
}

#[test]
fn pages_numbered_otherwise_are_treated_alike() {
    let run = |order: [u64; 4]| {
        let policy = crate::build("terrace", Settings::from_pairs([SECOND])).unwrap();
        let mut rig = Rig::new(policy, &[200, 100_000]);
        for block in order {
            let range = Vpn(block * 512)..Vpn(block * 512 + 512);
            rig.engine.handle(rig.now, terrace_core::engine::Input::Mapped(SPACE, range));
        }
        rig.born((0..2048).step_by(11), TierId::FAST);
        rig.born((0..2048).filter(|vpn| vpn % 11 != 0), SLOW);
        for interval in 0..12u64 {
            for vpn in 0..2048 {
                let count = if vpn % 7 == 0 { 9 } else { terrace_core::random::mix(vpn * 99 + interval) % 3 };
                rig.sample(std::iter::repeat_n(vpn, count as usize));
            }
            rig.pass(Duration::from_secs(1));
        }
        let pages = rig.engine.pages();
        let moves: Vec<_> = rig.moves.iter().map(|item| (pages.locate(item.page), item.from)).collect();
        assert!(!moves.is_empty());
        moves
    };
    assert_eq!(run([0, 1, 2, 3]), run([2, 0, 3, 1]));
}

#[test]
fn no_fast_memory_one_page_of_it_and_enough_for_all() {
    for fast in [0, 1, 100_000] {
        let mut rig = rig(&[SECOND], fast);
        rig.touch_first(0..256);
        sampled(&mut rig, 10, |vpn, _| usize::from(vpn == 200) * 50);
        assert!(rig.fast_used() <= fast);
        assert_eq!(rig.tier(200) == Some(TierId::FAST), fast > 0, "{fast}");
        assert!(rig.promotions <= 1);
    }
}

#[test]
fn it_lives_on_what_the_driver_grants() {
    let mut policy = crate::build("terrace", Settings::default()).unwrap();
    let any = policy.profile().needs;
    assert!(any[0].samples && any[1].scans && any[2].hint_faults && any.iter().all(|needs| needs.life_cycle));
    policy.configure(Setup { granted: Some(any[1]), ..Setup::default() });
    let cadence = policy.schedule().cadence;
    assert!(policy.profile().needs == [any[1]] && cadence.scan_at.is_some() && cadence.sampling.is_none());
    let only = crate::build("terrace", Settings::from_pairs([("signals", "hint-faults")])).unwrap();
    assert_eq!(only.profile().needs, [any[2]]);
    assert!(only.schedule().cadence.hint_scan.is_some());
}

#[test]
fn a_huge_page_is_one_unit() {
    let mut rig = rig(&[SECOND], 1024);
    for block in 0..4 {
        rig.born_huge(block, TierId(u8::from(block >= 2)));
    }
    for _ in 0..20 {
        rig.sample(std::iter::repeat_n(3 * 512 + 7, 4000));
        rig.pass(Duration::from_secs(1));
    }
    assert_eq!(rig.tier(3 * 512), Some(TierId::FAST));
    assert_eq!((rig.promotions, rig.demotions), (512, 512));
}

#[test]
fn moves_cost_what_the_driver_says_and_prices_may_change() {
    let mut rig = quarter(&[SECOND]);
    let dear = Prices { move_small_ns: 1e9, ..Prices::ASSUMED };
    rig.engine.handle(rig.now, terrace_core::engine::Input::Prices(dear));
    let hot = |vpn: u64, _| usize::from((100..150).contains(&vpn)) * 40;
    sampled(&mut rig, 20, hot);
    assert_eq!(rig.promotions, 0);
    rig.engine.handle(rig.now, terrace_core::engine::Input::Prices(Prices::ASSUMED));
    sampled(&mut rig, 20, hot);
    assert_eq!(rig.promotions, 50);
}

#[test]
fn a_share_of_the_price_may_be_all_that_a_move_has_to_repay() {
    let moved = |price| {
        let mut rig = quarter(&[SECOND, ("price", price)]);
        let dear = Prices { move_small_ns: 4e7, ..Prices::ASSUMED };
        rig.engine.handle(rig.now, terrace_core::engine::Input::Prices(dear));
        sampled(&mut rig, 20, |vpn, _| usize::from((100..150).contains(&vpn)) * 40);
        rig.promotions
    };
    assert_eq!(["on", "50%"].map(moved), [0, 0]);
    assert!(moved("0.001%") > 20 && moved("off") > 20, "{} {}", moved("0.001%"), moved("off"));
}

#[test]
fn a_slow_page_that_is_seen_between_two_passes_does_not_wait_for_the_next() {
    let fast = |settings: &[(&str, &str)]| {
        let mut rig = quarter(settings);
        rig.pass(Duration::from_secs(10));
        sampled(&mut rig, 10, |vpn, _| if vpn < 20 { 30 } else { 0 });
        let passes = metric(&rig, "intervals");
        // Less than an eighth of an observation a page: the interval goes on.
        rig.sample((100..105).flat_map(|vpn| std::iter::repeat_n(vpn, 5)));
        rig.pass(Duration::from_secs(1));
        assert_eq!(metric(&rig, "intervals"), passes);
        assert_eq!(fast_of(&rig, 0..20), 20, "those in use stay");
        fast_of(&rig, 100..105)
    };
    let once = ("doubt", "1");
    assert_eq!((fast(&[once]), fast(&[once, ("between", "off")])), (5, 0));
}

#[test]
fn what_is_over_the_limit_leaves_least_valuable_first() {
    let mut rig = quarter(&[SECOND]);
    sampled(&mut rig, 10, |vpn, _| if vpn < 32 { 30 } else { 0 });
    rig.engine.handle(rig.now, terrace_core::engine::Input::Goal(terrace_core::policy::FastGoal::Pages(32)));
    sampled(&mut rig, 10, |vpn, _| if vpn < 32 { 30 } else { 0 });
    assert_eq!((fast_of(&rig, 0..32), rig.fast_used()), (32, 32));
}

/// A program that only writes: its stores are sampled, and the processor counts that one in eight reached memory.
#[test]
fn pages_that_are_only_written_are_found_by_stores() {
    let promoted = |settings: &[(&str, &str)]| {
        let mut rig = quarter(settings);
        rig.pass(Duration::from_secs(10));
        for _ in 0..30 {
            for vpn in (100..150).flat_map(|vpn| std::iter::repeat_n(vpn, 40)) {
                let page = rig.page(vpn);
                let store = Observation::Sampled { page, access: Access::Store, period: 1600 };
                rig.engine.handle(rig.now, terrace_core::engine::Input::Observed(Observations::Events(&[store])));
            }
            let counts = ProcessorCounts { cores: 1, memory_accesses: 50 * 40 * 200, ..ProcessorCounts::default() };
            rig.engine.handle(rig.now, terrace_core::engine::Input::Processor(counts));
            rig.pass(Duration::from_secs(1));
        }
        fast_of(&rig, 100..150)
    };
    assert_eq!((promoted(&[SECOND]), promoted(&[SECOND, ("stores", "off")])), (50, 0));
}

#[test]
fn a_plan_takes_no_longer_than_a_step_of_the_mover() {
    let (one, four) = (most_in_a_plan("1"), most_in_a_plan("4"));
    assert!((1..=5).contains(&one), "{one} in a plan");
    assert!((6..=20).contains(&four), "{four} in a plan of four movers");
}

/// The most promotions in one plan, where a move takes 10 ms.
fn most_in_a_plan(movers: &'static str) -> u64 {
    let mut rig = quarter(&[SECOND, ("movers", movers)]);
    rig.pass(Duration::from_secs(10));
    // A move takes 10 ms: an exchange of two a fifth of a step.
    let slow = Prices { move_small_ns: 10e6, flush_small_ns: 0.0, farther_ns: 1e6, ..Prices::ASSUMED };
    rig.engine.handle(rig.now, terrace_core::engine::Input::Prices(slow));
    let before = rig.promotions;
    let mut most = 0;
    for _ in 0..20 {
        let count = rig.promotions;
        for vpn in 100..150 {
            rig.sample(std::iter::repeat_n(vpn, 40));
        }
        rig.pass(Duration::from_secs(1));
        most = most.max(rig.promotions - count);
    }
    assert!(rig.promotions > before);
    most
}
