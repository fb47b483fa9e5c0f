//! The policy driven by hand, walk by walk.
//!
//! In: counts and accessed bits. Out: what it requested for. Must not: model hardware; the simulator does.

use super::*;
use crate::rig::{Rig, SLOW, SPACE};
use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::GovernorConfig;
use terrace_core::observation::PteState;
use terrace_core::policy::{FastGoal, ScanReport};

fn rig(pairs: &[(&str, &str)], tiers: &[u64]) -> Rig {
    let policy = HotnessWalk::new(&mut Settings::from_pairs(pairs.iter().copied()).for_policy(&INFO)).unwrap();
    Rig::new(Box::new(policy), tiers)
}

/// A walk that found these counts: vpn and count.
fn walk(rig: &mut Rig, counts: &[(u64, u32)]) {
    let events: Vec<Observation> =
        counts.iter().map(|&(vpn, accesses)| Observation::Counted { page: rig.page(vpn), accesses }).collect();
    rig.now = rig.now + Duration::from_millis(100);
    rig.engine.handle(rig.now, Input::Observed(Observations::Events(&events)));
    rig.engine.handle(rig.now, Input::ScanDone(ScanReport::default()));
    rig.settle();
}

#[test]
fn the_hot_pieces_of_a_slow_huge_page_come_without_the_rest() {
    let mut rig = rig(&[], &[600, 4096]);
    rig.map(2048);
    rig.born_huge(0, TierId::FAST);
    for block in 1..4 {
        rig.born_huge(block, SLOW);
    }
    // Eight pieces of block 2 are hot; block 0, which is fast, is not used.
    let counts: Vec<(u64, u32)> = (0..8).map(|piece| (1024 + piece * 60, 400)).collect();
    for _ in 0..3 {
        walk(&mut rig, &counts);
    }
    let hot_are_fast = counts.iter().all(|(vpn, _)| rig.tier(*vpn) == Some(TierId::FAST));
    assert!(hot_are_fast, "{:?}", rig.moves);
    assert_eq!(rig.tier(1025), Some(SLOW), "its cold pieces stay");
    assert!(rig.promotions <= 88, "only what was hot, and what fits beside block 0: {}", rig.promotions);
    assert_eq!(rig.metric("splits_requested"), 1.0);
}

#[test]
fn a_huge_page_that_is_hot_all_over_moves_whole_and_chance_splits_nothing() {
    let mut rig = rig(&[], &[600, 4096]);
    rig.map(2048);
    rig.born_huge(0, TierId::FAST);
    for block in 1..4 {
        rig.born_huge(block, SLOW);
    }
    // Block 3: a count or none at random on each piece, six on the mean.
    let counts: Vec<(u64, u32)> = (0..512u64).map(|piece| (1536 + piece, 4 + (piece * 7919 % 5) as u32)).collect();
    // What is new counts as used; it takes a few walks until block 0 is known to be idle.
    for _ in 0..8 {
        walk(&mut rig, &counts);
    }
    assert_eq!(rig.metric("splits_requested"), 0.0);
    assert_eq!((rig.tier(1536), rig.tier(0)), (Some(TierId::FAST), Some(SLOW)));
    assert!(rig.moves.iter().all(|item| item.pages == 512));
    // Without splits, skewed pages move whole as well.
    let mut whole = self::rig(&[("split", "off")], &[600, 4096]);
    whole.map(2048);
    for block in 0..4 {
        whole.born_huge(block, if block == 0 { TierId::FAST } else { SLOW });
    }
    for _ in 0..8 {
        walk(&mut whole, &[(1024, 60_000), (1030, 60_000)]);
    }
    assert_eq!((whole.metric("splits_requested"), whole.tier(1024)), (0.0, Some(TierId::FAST)));
}

#[test]
fn what_is_written_through_once_is_no_skew() {
    let mut rig = rig(&[], &[600, 4096]);
    rig.map(2048);
    rig.born_huge(0, TierId::FAST);
    (1..4).for_each(|block| rig.born_huge(block, SLOW));
    // 32 pieces a walk are written, each walk the next; counters keep what is left of the walks before.
    let mut left = [0u32; 512];
    for step in 0..40usize {
        let now = step % 16 * 32..(step % 16 + 1) * 32;
        now.for_each(|piece| left[piece] += 500);
        let counts: Vec<(u64, u32)> =
            (0..).zip(left).filter(|(_, count)| *count > 0).map(|(piece, count)| (1024 + piece, count)).collect();
        walk(&mut rig, &counts);
        left.iter_mut().for_each(|count| *count >>= 1);
    }
    assert_eq!(rig.metric("splits_requested"), 0.0);
}

#[test]
fn the_cold_pieces_of_a_fast_huge_page_make_room_and_dense_blocks_grow_together() {
    let mut rig = rig(&[("reserve", "0%")], &[1024, 4096]);
    rig.map(2048);
    rig.born_huge(0, TierId::FAST);
    rig.born_huge(1, TierId::FAST);
    rig.born_huge(2, SLOW);
    // Block 0 is hot on eight pieces; block 1 is hot all over; of block 2 too many pieces are hot to split it.
    let mut counts: Vec<(u64, u32)> = (0..8).map(|piece| (piece * 64, 3000)).collect();
    counts.extend((512..1024).map(|vpn| (vpn, 100)));
    walk(&mut rig, &counts);
    walk(&mut rig, &counts);
    let mut later: Vec<(u64, u32)> = (512..1024).map(|vpn| (vpn, 100)).collect();
    later.extend((1024..1536).map(|vpn| (vpn, 90)));
    for _ in 0..8 {
        walk(&mut rig, &later);
    }
    assert_eq!(rig.tier(1), Some(SLOW), "a cold piece of block 0 went");
    assert_eq!(rig.tier(1024), Some(TierId::FAST), "block 2 came");
    assert_eq!(rig.tier(600), Some(TierId::FAST));
    // Block 0 comes back to life, piece by piece, and there is room: it is mapped huge again.
    let mut rig = self::rig(&[("reserve", "0%")], &[1024, 4096]);
    rig.map(1024);
    rig.touch_first(0..1024);
    assert_eq!(rig.fast_used(), 1024);
    for _ in 0..4 {
        rig.scan(0, |vpn| vpn % 4 != 3);
        rig.scan(1, |vpn| vpn == 700);
        rig.engine.handle(rig.now, Input::ScanDone(ScanReport::default()));
        rig.settle();
        rig.now = rig.now + Duration::from_millis(100);
    }
    let collapsed: Vec<u64> =
        rig.moves.iter().filter(|item| item.action == Action::Collapse).map(|item| item.page.0.into()).collect();
    assert!(!collapsed.is_empty() && collapsed.iter().all(|page| *page == 0), "{collapsed:?}: block 1 is not dense");
}

/// Two spaces on one machine; what each has of fast memory after the walks.
fn two_spaces(floor: &str) -> [u64; 2] {
    let pairs = [("floor", floor), ("reserve", "0%")];
    let policy = HotnessWalk::new(&mut Settings::from_pairs(pairs).for_policy(&INFO)).unwrap();
    let governor = GovernorConfig { cooldown: Duration::ZERO, ..GovernorConfig::default() };
    let goal = FastGoal::Pages(2048);
    let mut engine = Engine::new(EngineConfig { tiers: vec![2048, 8192], goal, governor }, Box::new(policy));
    let mut now = Time::ZERO;
    let spaces = [SpaceId(1), SpaceId(2)];
    for (number, space) in spaces.into_iter().enumerate() {
        engine.handle(now, Input::Mapped(space, Vpn(0)..Vpn(2048)));
        for block in 0..4u64 {
            let first = engine.pages().find(space, Vpn(block * 512)).unwrap();
            // Half of each is fast.
            let tier = if block < 2 { TierId::FAST } else { SLOW };
            let ptes = vec![PteState::placed(tier).with_huge(true); 512];
            let scan = ScanBatch { first, ptes: &ptes, window: None, cleared: false };
            engine.handle(now, Input::Observed(Observations::Scan(scan)));
        }
        assert_eq!(engine.pages().used(space, TierId::FAST), 1024, "space {number}");
    }
    for _ in 0..12 {
        now = now + Duration::from_millis(100);
        // The first is busy everywhere, the second hardly at all.
        for (space, each) in [(spaces[0], 1000), (spaces[1], 2)] {
            let events: Vec<Observation> = (0..2048)
                .map(|vpn| Observation::Counted { page: engine.pages().find(space, Vpn(vpn)).unwrap(), accesses: each })
                .collect();
            engine.handle(now, Input::Observed(Observations::Events(&events)));
        }
        engine.handle(now, Input::ScanDone(ScanReport::default()));
        loop {
            match engine.poll(now) {
                Output::Move(plan) => {
                    let outcomes: Vec<Outcome> =
                        plan.moves.iter().map(|&item| Outcome { item, done: item.pages, failure: None }).collect();
                    engine.handle(now, Input::Moved(&outcomes));
                }
                Output::Track(_) => {}
                Output::Wake(_) => break,
            }
        }
    }
    spaces.map(|space| engine.pages().used(space, TierId::FAST))
}

#[test]
fn a_busy_space_cannot_take_the_floor_of_a_quiet_one() {
    assert_eq!(two_spaces("0%"), [2048, 0], "without a floor the busy one takes all");
    assert_eq!(two_spaces("50%"), [1536, 512], "with one, the quiet one keeps half of its part");
    assert_eq!(two_spaces("100%"), [1024, 1024]);
}

#[test]
fn accessed_bits_rank_small_pages_by_how_often_they_are_set() {
    let mut rig = rig(&[("margin", "1"), ("collapse", "off"), ("reserve", "0%")], &[256, 4096]);
    rig.map(1024);
    rig.touch_first(0..1024);
    for round in 0..20u64 {
        // Pages 512 to 767 are used in every walk, the others in every eighth.
        rig.scan(0, |_| round % 8 == 0);
        rig.scan(1, |vpn| vpn < 768 || round % 8 == 0);
        rig.engine.handle(rig.now, Input::ScanDone(ScanReport::default()));
        rig.settle();
        rig.now = rig.now + Duration::from_millis(100);
    }
    let fast = (512..768).filter(|vpn| rig.tier(*vpn) == Some(TierId::FAST)).count();
    assert!(fast > 240, "{fast} of 256");
    assert_eq!(rig.engine.pages().spaces().collect::<Vec<_>>(), [SPACE]);
}

/// A machine where a page of 4 KiB costs 3 microseconds to move, one of 2 MiB 400, and what its processor counted in a walk: a
/// hundred accesses a count, half of which reach memory, where fast memory saves 40 ns of each, translations of 4 KiB that wait so long.
fn told(rig: &mut Rig, counts: u64, small_ns: f64) {
    let counts = ProcessorCounts {
        cores: 1,
        in_use: 1.0,
        accesses: [1000, counts * 100],
        translation_ns: [1000.0 * small_ns, 0.0],
        counted: counts,
        slow_accesses: counts * 50 + 500,
        slow_wait_ns: (counts * 50 + 500) as f64 * 40.0,
        memory_accesses: counts * 50 + 500,
        ..ProcessorCounts::default()
    };
    rig.engine.handle(rig.now, Input::Processor(counts));
}

fn weighing(pairs: &[(&str, &str)], tiers: &[u64]) -> Rig {
    let mut policy = HotnessWalk::new(&mut Settings::from_pairs(pairs.iter().copied()).for_policy(&INFO)).unwrap();
    policy.configure(Setup { prices: Some(cost_benefit::tests::PRICES), ..Default::default() });
    Rig::new(Box::new(policy), tiers)
}

#[test]
fn a_huge_page_moves_when_its_heat_has_lasted_long_enough_to_pay_for_it() {
    // A count on each piece at each walk: the counter shows two, and 512 times 100 accesses of 20 ns are 1 ms a walk. The move and the
    // one that makes room cost 0.8 ms.
    let promoted_after = |each: u32, weigh: &str| {
        let mut rig = weighing(&[("reserve", "0%"), ("weigh", weigh)], &[512, 4096]);
        rig.map(1024);
        rig.born_huge(0, TierId::FAST);
        rig.born_huge(1, SLOW);
        (1..200).find(|_| {
            told(&mut rig, u64::from(each) * 256, 0.0);
            let counts: Vec<(u64, u32)> = (512..1024).map(|vpn| (vpn, each)).collect();
            walk(&mut rig, &counts);
            rig.tier(512) == Some(TierId::FAST)
        })
    };
    let (soon, off) = (promoted_after(2, "on").unwrap(), promoted_after(2, "off").unwrap());
    assert!(soon <= off + 1, "{soon} {off}: a gain of 1 ms a walk is soon worth 0.8 ms");
    // Where fast memory saves a hundredth of that an access, it takes about 80 walks.
    let mut rig = weighing(&[("reserve", "0%")], &[512, 4096]);
    rig.map(1024);
    rig.born_huge(0, TierId::FAST);
    rig.born_huge(1, SLOW);
    let counts: Vec<(u64, u32)> = (512..1024).map(|vpn| (vpn, 2)).collect();
    let late = (1..200).find(|_| {
        let counted = ProcessorCounts {
            cores: 1,
            in_use: 1.0,
            accesses: [0, 51_200],
            counted: 512,
            slow_accesses: 25_600,
            slow_wait_ns: 25_600.0 * 0.4,
            memory_accesses: 25_600,
            ..ProcessorCounts::default()
        };
        rig.engine.handle(rig.now, Input::Processor(counted));
        walk(&mut rig, &counts);
        rig.tier(512) == Some(TierId::FAST)
    });
    let late = late.unwrap();
    assert!((70..90).contains(&late), "{late}");
    assert!(rig.metric("moves_not_worth_it") > 60.0);
}

#[test]
fn a_huge_page_is_not_split_where_its_translations_would_wait_longer_than_its_hits_gain() {
    let splits = |small_ns: f64, weigh: &str| {
        let mut rig = weighing(&[("weigh", weigh)], &[600, 4096]);
        rig.map(2048);
        rig.born_huge(0, TierId::FAST);
        (1..4).for_each(|block| rig.born_huge(block, SLOW));
        let counts: Vec<(u64, u32)> = (0..8).map(|piece| (1024 + piece * 60, 400)).collect();
        for _ in 0..4 {
            told(&mut rig, 1600, small_ns);
            walk(&mut rig, &counts);
        }
        (rig.metric("splits_requested"), rig.metric("splits_not_worth_it"))
    };
    assert_eq!(splits(1.0, "on").0, 1.0, "20 ns an access gained, 1 ns lost");
    let (requested, refused) = splits(30.0, "on");
    assert!(requested == 0.0 && refused >= 2.0, "{requested} {refused}");
    assert_eq!(splits(30.0, "off").0, 1.0);
}

#[test]
fn what_cannot_pay_to_be_split_moves_whole_at_once() {
    // Block 0 is used all over, and eight pieces of block 1 far more, for the first time: whether that lasts is not known. Where a split
    // may pay, it is waited for.
    let moved_after = |small_ns: f64| {
        let mut rig = weighing(&[("reserve", "0%")], &[512, 4096]);
        rig.map(1024);
        (0..2).for_each(|block| rig.born_huge(block, if block == 0 { TierId::FAST } else { SLOW }));
        let mut counts: Vec<(u64, u32)> = (0..512).map(|piece| (piece, 2)).collect();
        for _ in 0..12 {
            told(&mut rig, 512, small_ns);
            walk(&mut rig, &counts);
        }
        counts.extend((0..8).map(|piece| (512 + piece * 60, 4000)));
        told(&mut rig, 32_512, small_ns);
        walk(&mut rig, &counts);
        (rig.tier(512) == Some(TierId::FAST), rig.metric("splits_requested"))
    };
    assert_eq!(moved_after(0.1), (false, 0.0));
    assert_eq!(moved_after(30.0), (true, 0.0));
}

#[test]
fn memory_short_of_a_huge_page_is_not_kept_free_at_the_price_of_one() {
    // Four huge pages fill fast memory to the last; a hundredth of it would be 20 pages, and cost 512.
    let mut rig = rig(&[], &[2048, 8192]);
    rig.map(4096);
    (0..8).for_each(|block| rig.born_huge(block, if block < 4 { TierId::FAST } else { SLOW }));
    for _ in 0..6 {
        let counts: Vec<(u64, u32)> = (0..4096).map(|vpn| (vpn, 50)).collect();
        walk(&mut rig, &counts);
    }
    assert_eq!((rig.fast_used(), rig.moves.len()), (2048, 0));
}

#[test]
fn small_pages_that_are_written_once_are_not_fetched_and_those_used_again_are() {
    // 250 accesses a bit, each of which slow memory keeps 40 ns longer: half of one bit's are worth the 3 microseconds of a move. But of
    // the 64 pages that are written at a walk none is used again; 16 others are used at each walk.
    let mut rig = weighing(&[("collapse", "off"), ("reserve", "0%")], &[2048, 4096]);
    rig.map(4096);
    rig.born(0..4096, SLOW);
    let mut fetched = Vec::new();
    for walk in 0..30u64 {
        let written = walk * 64..walk * 64 + 64;
        let counts = ProcessorCounts {
            cores: 1,
            in_use: 1.0,
            accesses: [20_000, 0],
            slow_accesses: 20_000,
            slow_wait_ns: 20_000.0 * 40.0,
            memory_accesses: 20_000,
            ..ProcessorCounts::default()
        };
        rig.engine.handle(rig.now, Input::Processor(counts));
        rig.scan(written.start / 512, |vpn| written.contains(&vpn));
        rig.scan(7, |vpn| vpn >= 4080);
        rig.engine.handle(rig.now, Input::ScanDone(ScanReport::default()));
        rig.settle();
        rig.now = rig.now + Duration::from_millis(100);
        fetched.push(written.filter(|vpn| rig.tier(*vpn) == Some(TierId::FAST)).count());
    }
    assert!((4080..4096).all(|vpn| rig.tier(vpn) == Some(TierId::FAST)));
    assert!(fetched[0] == 64, "nothing is known yet: {fetched:?}");
    assert!(fetched[4..].iter().sum::<usize>() == 0, "{fetched:?}");
}
