//! Sleeping programs in virtual time: what leaves and when, what is paid for, what is fetched ahead.

use proptest::prelude::*;

use super::*;
use crate::observation::PteState;

const SLOW: TierId = TierId(1);
const TERMS: Terms = Terms { max_slowdown: 0.02, single: 15e-6, of_block: 5e-6, max_promotions: None };

fn at(seconds: f64) -> Time {
    Time::ZERO + Duration::from_secs(1000) + Duration::from_secs_f64(seconds)
}

/// Programs of these numbers of pages, all of them fast.
fn programs(sizes: &[u64]) -> Pages {
    let mut pages = Pages::new();
    for (space, size) in (0..).map(SpaceId).zip(sizes) {
        pages.map(space, Vpn(0)..Vpn(*size));
        for vpn in (0..*size).map(Vpn) {
            let page = pages.find(space, vpn).unwrap();
            pages.set_tier(page, Some(TierId::FAST));
        }
    }
    pages
}

/// Asks who may leave and lets them go.
fn leave(sleepers: &mut Sleepers, now: Time, terms: &Terms, pages: &mut Pages) -> Vec<(SpaceId, Vpn)> {
    let requests = sleepers.leave(now, terms, pages, 1 << 20);
    let mut left = Vec::new();
    for request in requests {
        assert_eq!((request.action, request.reason), (Action::MoveTo(SLOW), Reason::Asleep));
        left.push(pages.locate(request.page));
        pages.set_tier(request.page, Some(SLOW));
        pages.change(request.page, |page| page.set_demoted(true));
        sleepers.sent(pages.locate(request.page).0, 1);
    }
    left
}

fn come_back(sleepers: &mut Sleepers, now: Time, space: SpaceId, vpns: impl Iterator<Item = u64>, pages: &mut Pages) {
    for vpn in vpns.map(Vpn) {
        let page = pages.find(space, vpn).unwrap();
        pages.set_tier(page, Some(TierId::FAST));
        pages.change(page, |page| page.set_demoted(false));
        sleepers.came_back(now, space, vpn, pages);
    }
}

#[test]
fn a_program_that_sleeps_long_enough_leaves_whole_and_one_that_runs_stays() {
    let mut pages = programs(&[2048, 2048]);
    let mut sleepers = Sleepers::default();
    sleepers.ran(at(0.0), SpaceId(0));
    sleepers.slept(SpaceId(1), at(0.0));
    assert_eq!(sleepers.look_at(), at(5.0));
    assert!(leave(&mut sleepers, at(4.9), &TERMS, &mut pages).is_empty());
    let left = leave(&mut sleepers, at(5.0), &TERMS, &mut pages);
    assert_eq!((left.len(), pages.used(SpaceId(1), TierId::FAST)), (2048, 0));
    assert_eq!(pages.used(SpaceId(0), TierId::FAST), 2048);
    assert!(leave(&mut sleepers, at(7.0), &TERMS, &mut pages).is_empty());
    assert_eq!((sleepers.asleep(), sleepers.moved()), (1, [2048, 0]));
    // All of its returns are paid for, and no more than those.
    assert_eq!(sleepers.unpaid(SpaceId(1), 2000, &pages), 0);
    assert_eq!(sleepers.unpaid(SpaceId(1), 100, &pages), 52);
    assert_eq!(sleepers.unpaid(SpaceId(0), 7, &pages), 7);
}

#[test]
fn what_was_in_use_leaves_last_and_no_more_is_out_than_the_sleep_pays_for() {
    let mut pages = programs(&[4096]);
    let mut sleepers = Sleepers::default();
    sleepers.ran(at(0.0), SpaceId(0));
    let used = vec![PteState::placed(TierId::FAST).with_accessed(true); 512];
    for block in 0..2 {
        let first = pages.find(SpaceId(0), Vpn(block * 512)).unwrap();
        let scan = ScanBatch { first, ptes: &used, window: Some(Duration::from_secs(1)), cleared: true };
        sleepers.observe(at(61.0), SpaceId(0), Vpn(block * 512), &scan);
    }
    sleepers.slept(SpaceId(0), at(62.0));
    // At 100 us a page five seconds pay for a thousand.
    let dear = Terms { single: 1e-4, of_block: 1e-4, ..TERMS };
    let left = leave(&mut sleepers, at(67.0), &dear, &mut pages);
    assert!((999..=1000).contains(&left.len()), "{}", left.len());
    assert!(left.iter().all(|(_, vpn)| vpn.0 >= 1024));
    let mut second = 68.0;
    while pages.used(SpaceId(0), TierId::FAST) > 0 {
        leave(&mut sleepers, at(second), &dear, &mut pages);
        let out = 4096 - pages.used(SpaceId(0), TierId::FAST);
        assert!(out as f64 <= 200.0 * (second - 62.0) + 1.0, "{out} out at {second} s");
        let idle_in = (1024..4096).filter(|vpn| fast(&pages, *vpn)).count();
        let used_in = (0..1024).filter(|vpn| fast(&pages, *vpn)).count();
        assert!(idle_in == 0 || used_in == 1024, "{idle_in} and {used_in} at {second} s");
        second += 1.0;
        assert!(second < 120.0, "it leaves whole");
    }
}

#[test]
fn what_is_in_use_stays_for_twice_the_usual_sleep_and_leaves_where_memory_is_short() {
    let mut pages = programs(&[2048]);
    let mut sleepers = Sleepers::default();
    let used = |vpn: u64| vpn < 512 || (1024..1032).contains(&vpn);
    let use_it = |sleepers: &mut Sleepers, pages: &Pages, second: f64| {
        sleepers.ran(at(second), SpaceId(0));
        for start in [0, 1024] {
            let first = pages.find(SpaceId(0), Vpn(start)).unwrap();
            let ptes: Vec<PteState> =
                (start..start + 512).map(|vpn| PteState::placed(TierId::FAST).with_accessed(used(vpn))).collect();
            let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_millis(100)), cleared: true };
            sleepers.observe(at(second + 1.0), SpaceId(0), Vpn(start), &scan);
        }
        sleepers.slept(SpaceId(0), at(second + 2.0));
    };
    use_it(&mut sleepers, &pages, 0.0);
    // Nobody knows yet how long it sleeps: it leaves whole.
    assert_eq!(leave(&mut sleepers, at(32.0), &TERMS, &mut pages).len(), 2048);
    // Somebody else brings all of it back.
    for vpn in (0..2048).map(Vpn) {
        let page = pages.find(SpaceId(0), vpn).unwrap();
        pages.set_tier(page, Some(TierId::FAST));
        pages.change(page, |page| page.set_demoted(false));
    }
    use_it(&mut sleepers, &pages, 62.0);
    // It slept for a minute, so that what it uses stays for two.
    let left = leave(&mut sleepers, at(72.0), &TERMS, &mut pages);
    assert_eq!(left.len(), 2048 - 520);
    assert!(left.iter().all(|(_, vpn)| !used(vpn.0)));
    assert!(leave(&mut sleepers, at(182.0), &TERMS, &mut pages).is_empty());
    sleepers.short_by(100);
    assert_eq!(leave(&mut sleepers, at(183.0), &TERMS, &mut pages).len(), 100);
    sleepers.short_by(0);
    assert_eq!(leave(&mut sleepers, at(210.0), &TERMS, &mut pages).len(), 420);
}

#[test]
fn moments_awake_with_little_use_make_nothing_forgotten_until_there_are_four() {
    let mut pages = programs(&[1024]);
    let mut sleepers = Sleepers::default();
    let space = SpaceId(0);
    let uses = |sleepers: &mut Sleepers, pages: &Pages, second: f64, most: u64| {
        sleepers.ran(at(second), space);
        let first = pages.find(space, Vpn(0)).unwrap();
        let ptes: Vec<PteState> =
            (0..512).map(|vpn| PteState::placed(TierId::FAST).with_accessed(vpn < most)).collect();
        let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_millis(100)), cleared: true };
        sleepers.observe(at(second + 0.5), space, Vpn(0), &scan);
        sleepers.slept(space, at(second + 1.0));
    };
    sleepers.slept(space, at(0.0));
    uses(&mut sleepers, &pages, 60.0, 400);
    // Short sleeps between make little of the long one: what is in use stays for more than a minute.
    for moment in 0..3 {
        uses(&mut sleepers, &pages, 70.0 + 6.0 * f64::from(moment), 8);
        assert_eq!(sleepers.recent(space).unwrap().count(), 400, "after moment {moment}");
    }
    assert_eq!(leave(&mut sleepers, at(135.0), &TERMS, &mut pages).len(), 624);
    uses(&mut sleepers, &pages, 150.0, 8);
    uses(&mut sleepers, &pages, 210.0, 8);
    assert_eq!(sleepers.recent(space).unwrap().count(), 8);
}

#[test]
fn what_a_program_used_while_it_started_says_nothing_of_its_use() {
    let mut pages = programs(&[1024, 1024]);
    let mut sleepers = Sleepers::default();
    let mark = |sleepers: &mut Sleepers, pages: &Pages, space: u32, second: f64, window: f64, used: Range<u64>| {
        for start in [0, 512] {
            let first = pages.find(SpaceId(space), Vpn(start)).unwrap();
            let ptes: Vec<PteState> = (start..start + 512)
                .map(|vpn| PteState::placed(TierId::FAST).with_accessed(used.contains(&vpn)))
                .collect();
            let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs_f64(window)), cleared: true };
            sleepers.observe(at(second), SpaceId(space), Vpn(start), &scan);
        }
    };
    // Both use all of it while they start. Only the first is woken, and uses 100 pages; its marks were cleared while it slept.
    for space in 0..2 {
        sleepers.ran(at(0.0), SpaceId(space));
        mark(&mut sleepers, &pages, space, 1.0, 1.0, 0..1024);
        sleepers.slept(SpaceId(space), at(2.0));
    }
    sleepers.ran(at(62.0), SpaceId(0));
    mark(&mut sleepers, &pages, 0, 62.5, 60.0, 0..100);
    sleepers.slept(SpaceId(0), at(62.1));
    assert_eq!(sleepers.recent(SpaceId(0)).unwrap().count(), 100);
    // Where memory is short the second leaves whole before what the first uses.
    sleepers.short_by(924 + 1024);
    let left = leave(&mut sleepers, at(64.0), &TERMS, &mut pages);
    assert_eq!(left.len(), 924 + 1024);
    assert!((0..100).all(|vpn| fast(&pages, vpn)));
    // Nothing of the second is fetched ahead when it is woken for the first time.
    come_back(&mut sleepers, at(70.0), SpaceId(1), 0..40, &mut pages);
    assert_eq!(sleepers.take_fetches(), []);
}

#[test]
fn what_comes_back_while_a_program_sleeps_stays() {
    let mut pages = programs(&[1024]);
    let mut sleepers = Sleepers::default();
    let space = SpaceId(0);
    sleepers.ran(at(0.0), space);
    sleepers.slept(space, at(2.0));
    assert_eq!(leave(&mut sleepers, at(62.0), &TERMS, &mut pages).len(), 1024);
    // Its timer needs ten pages.
    come_back(&mut sleepers, at(63.0), space, 100..110, &mut pages);
    sleepers.short_by(5);
    assert!(leave(&mut sleepers, at(200.0), &TERMS, &mut pages).is_empty());
    sleepers.ran(at(201.0), space);
    sleepers.slept(space, at(202.0));
    sleepers.short_by(5);
    assert_eq!(leave(&mut sleepers, at(204.0), &TERMS, &mut pages).len(), 5);
}

fn fast(pages: &Pages, vpn: u64) -> bool {
    pages[pages.find(SpaceId(0), Vpn(vpn)).unwrap()].tier() == Some(TierId::FAST)
}

#[test]
fn where_memory_is_short_those_asleep_longest_leave_at_once_and_no_more_than_is_short() {
    let mut pages = programs(&[1024, 1024, 1024]);
    let mut sleepers = Sleepers::default();
    for (space, since) in [(0, 2.0), (1, 0.0), (2, 3.5)] {
        sleepers.slept(SpaceId(space), at(since));
    }
    assert!(leave(&mut sleepers, at(4.0), &TERMS, &mut pages).is_empty());
    sleepers.short_by(1500);
    assert_eq!(sleepers.look_at(), at(1.0));
    let left = leave(&mut sleepers, at(4.0), &TERMS, &mut pages);
    let of = |space| left.iter().filter(|(of, _)| *of == SpaceId(space)).count();
    assert_eq!([of(0), of(1), of(2)], [476, 1024, 0]);
    assert!(leave(&mut sleepers, at(4.0), &TERMS, &mut pages).is_empty(), "as much is free again");
}

#[test]
fn one_whose_turn_did_not_come_is_due_at_once() {
    let pages = programs(&[1024, 1024]);
    let mut sleepers = Sleepers::default();
    sleepers.slept(SpaceId(0), at(0.0));
    sleepers.slept(SpaceId(1), at(1.0));
    let first = sleepers.leave(at(60.0), &TERMS, &pages, 1000);
    assert!(first.len() == 1000 && first.iter().all(|request| pages.locate(request.page).0 == SpaceId(0)));
    assert!(sleepers.look_at() <= at(60.0), "the other");
    let second = sleepers.leave(at(60.0), &TERMS, &pages, 5000);
    assert!(second.len() == 1024 && second.iter().all(|request| pages.locate(request.page).0 == SpaceId(1)));
    assert!(sleepers.look_at() > at(60.0));
}

#[test]
fn a_bound_of_returns_keeps_what_was_in_use() {
    let mut pages = programs(&[1024]);
    let mut sleepers = Sleepers::default();
    sleepers.ran(at(0.0), SpaceId(0));
    let used = vec![PteState::placed(TierId::FAST).with_accessed(true); 500];
    let first = pages.find(SpaceId(0), Vpn(0)).unwrap();
    let scan = ScanBatch { first, ptes: &used, window: Some(Duration::from_secs(1)), cleared: true };
    sleepers.observe(at(61.0), SpaceId(0), Vpn(0), &scan);
    sleepers.slept(SpaceId(0), at(62.0));
    let bounded = Terms { max_promotions: Some(0.01), ..TERMS };
    assert_eq!(leave(&mut sleepers, at(122.0), &bounded, &mut pages).len(), 512 + 5, "1 % of 500 in a minute");
    assert_eq!(leave(&mut sleepers, at(182.0), &bounded, &mut pages).len(), 5);
}

#[test]
fn some_tens_of_remembered_pages_that_come_back_at_once_fetch_the_others() {
    let mut pages = programs(&[2048]);
    let mut sleepers = Sleepers::default();
    let space = SpaceId(0);
    sleepers.slept(space, at(0.0));
    leave(&mut sleepers, at(60.0), &TERMS, &mut pages);
    // The first time nothing is remembered, and what is used is learned.
    come_back(&mut sleepers, at(61.0), space, (0..1000).map(|page| page * 2), &mut pages);
    sleepers.ran(at(61.5), space);
    assert_eq!(sleepers.take_fetches(), []);
    sleepers.slept(space, at(62.0));
    leave(&mut sleepers, at(190.0), &TERMS, &mut pages);
    assert_eq!(pages.used(space, TierId::FAST), 0);
    // What was not used says nothing of it, and neither do a few.
    come_back(&mut sleepers, at(191.0), space, (0..500).map(|page| page * 2 + 1), &mut pages);
    come_back(&mut sleepers, at(191.0), space, (0..31).map(|page| page * 2), &mut pages);
    assert_eq!(sleepers.take_fetches(), []);
    come_back(&mut sleepers, at(194.0), space, 100..=100, &mut pages);
    assert_eq!(sleepers.take_fetches(), [], "no moment any more");
    come_back(&mut sleepers, at(194.5), space, (0..40).map(|page| 102 + page * 2), &mut pages);
    let fetches = sleepers.take_fetches();
    assert_eq!((fetches.len(), fetches[0].space, fetches[0].asked), (1, space, false));
    let fetched: u64 = fetches[0].ranges.iter().map(|range| range.end.0 - range.start.0).sum();
    assert_eq!(fetched, 1000 - 31 - 32);
    assert!(fetches[0].ranges.iter().all(|range| range.start.0 % 2 == 0 && range.start.0 >= 62));
}

#[test]
fn one_that_is_about_to_wake_gets_back_what_it_used_or_all_that_left() {
    let mut pages = programs(&[1024]);
    let mut sleepers = Sleepers::default();
    let space = SpaceId(0);
    sleepers.slept(space, at(0.0));
    leave(&mut sleepers, at(60.0), &TERMS, &mut pages);
    sleepers.wake(space, &pages);
    assert_eq!(sleepers.take_fetches(), [Fetch { space, ranges: vec![Vpn(0)..Vpn(1024)], asked: true }]);
    come_back(&mut sleepers, at(61.0), space, 10..20, &mut pages);
    sleepers.ran(at(61.0), space);
    sleepers.slept(space, at(62.0));
    leave(&mut sleepers, at(200.0), &TERMS, &mut pages);
    sleepers.wake(space, &pages);
    assert_eq!(sleepers.take_fetches(), [Fetch { space, ranges: vec![Vpn(10)..Vpn(20)], asked: true }]);
    // A program that nobody knows has nothing to come back.
    sleepers.wake(SpaceId(9), &pages);
    assert_eq!(sleepers.take_fetches(), []);
}

#[test]
fn a_nap_does_not_end_what_a_program_is_judged_by() {
    let mut sleepers = Sleepers::default();
    let space = SpaceId(0);
    assert_eq!(sleepers.awake_since(space), Some(Time::ZERO));
    for second in 0..20 {
        sleepers.slept(space, at(f64::from(second)));
        assert_eq!(sleepers.awake_since(space), None);
        sleepers.ran(at(f64::from(second) + 0.9), space);
        assert_eq!(sleepers.awake_since(space), Some(Time::ZERO));
    }
    sleepers.slept(space, at(20.0));
    sleepers.ran(at(26.0), space);
    assert_eq!(sleepers.awake_since(space), Some(at(26.0)));
}

proptest! {
    /// In any order of sleeping, waking and use: a program that runs never loses a page for sleeping, none loses more than its sleep pays for,
    /// and more returns are never paid for than pages left.
    #[test]
    fn sleep_pays_for_what_leaves(steps in proptest::collection::vec((0u8..6, 0u32..3, 0u64..1500, 1u32..80), 1..120)) {
        let mut pages = programs(&[1500, 700, 40]);
        let mut sleepers = Sleepers::default();
        let (mut now, mut since) = (at(0.0), [None; 3]);
        let (mut bought, mut paid) = ([0_u64; 3], [0_u64; 3]);
        for (kind, space, vpn, tenths) in steps {
            now = now + Duration::from_millis(u64::from(tenths) * 100);
            let (of, space) = (space as usize, SpaceId(space));
            match kind {
                0 => {
                    sleepers.ran(now, space);
                    since[of] = None;
                }
                1 => {
                    sleepers.slept(space, now);
                    since[of].get_or_insert(now);
                }
                2 => {
                    let left = leave(&mut sleepers, now, &TERMS, &mut pages);
                    for (whose, (since, bought)) in since.iter().zip(&mut bought).enumerate() {
                        let gone = left.iter().filter(|(space, _)| space.0 as usize == whose).count() as u64;
                        *bought += gone;
                        let earned = since.map_or(0.0, |since| TERMS.max_slowdown * now.since(since).as_secs_f64());
                        prop_assert!(gone as f64 * TERMS.of_block <= earned + 1e-9);
                        prop_assert!(gone == 0 || now.since(since.unwrap()) >= LONG_ENOUGH);
                    }
                }
                _ => {
                    if let Some(page) = pages.find(space, Vpn(vpn)).filter(|page| pages[*page].demoted()) {
                        pages.set_tier(page, Some(TierId::FAST));
                        pages.change(page, |page| page.set_demoted(false));
                        sleepers.came_back(now, space, Vpn(vpn), &pages);
                        paid[of] += 1 - sleepers.unpaid(space, 1, &pages);
                    }
                }
            }
            prop_assert!(paid.iter().zip(&bought).all(|(paid, bought)| paid <= bought));
        }
    }
}
