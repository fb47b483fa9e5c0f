//! Two programs of one class: what one costs, owes or gets back is not the other's.

use std::time::Duration;

use super::*;
use crate::governor::Governor;
use crate::plan::{Action, Reason, Rejection};
use crate::policy::TierUse;
use crate::units::{TierId, Vpn};

const SECOND: Duration = Duration::from_secs(1);
const SLOW: TierId = TierId(1);
const TIERS: [TierUse; 2] = [TierUse { used: 8192, capacity: 1 << 20 }, TierUse { used: 0, capacity: 1 << 20 }];

fn at(second: u64) -> Time {
    Time::ZERO + SECOND * 100 + SECOND * second as u32
}

/// Two programs of 4,096 fast pages each.
fn two() -> Pages {
    let mut pages = Pages::new();
    for space in [SpaceId(0), SpaceId(1)] {
        pages.map(space, Vpn(0)..Vpn(4096));
        for vpn in (0..4096).map(Vpn) {
            let page = pages.find(space, vpn).unwrap();
            pages.set_tier(page, Some(TierId::FAST));
        }
    }
    pages
}

fn request(pages: &Pages, space: u32, vpn: u64, reason: Reason) -> MoveRequest {
    MoveRequest::new(pages.find(SpaceId(space), Vpn(vpn)).unwrap(), Action::MoveTo(SLOW), reason)
}

/// Every other page of both programs, by turns, so that no block is whole.
fn both(pages: &Pages) -> Vec<MoveRequest> {
    let each = |vpn: u64| [0, 1].map(|space| request(pages, space, vpn * 2, Reason::Cold));
    (0..2048).flat_map(each).collect()
}

fn priced() -> Pressure {
    Pressure {
        window: SECOND,
        single_out_cost: Duration::from_micros(10),
        block_out_cost: Duration::from_micros(50),
        ..Pressure::default()
    }
}

fn of(pages: &Pages, space: u32, page: crate::units::PageId) -> bool {
    pages.locate(page).0 == SpaceId(space)
}

#[test]
fn what_comes_back_to_one_program_stops_no_other() {
    let mut pages = two();
    let mut governor = Governor::new(GovernorConfig::default());
    governor.on_program(at(0), SpaceId(0), &Pressure { window: SECOND, refaults: 20_000, ..Pressure::default() });
    governor.on_program(at(0), SpaceId(1), &Pressure { window: SECOND, ..Pressure::default() });
    assert_eq!(governor.throttle(), None, "one of them is not stopped");
    let requests = [request(&pages, 0, 1, Reason::Cold), request(&pages, 1, 1, Reason::Cold)];
    let granted = governor.admit(at(0), &requests, &mut pages, &TIERS, None);
    assert_eq!((granted.moves.len(), granted.rejected.len()), (1, 1));
    assert!(of(&pages, 1, granted.moves[0].page));
    assert_eq!(granted.rejected[0].1, Rejection::Throttled);
    // Its pages leave all the same while it sleeps.
    let asleep = [request(&pages, 0, 2, Reason::Asleep)];
    assert_eq!(governor.admit(at(0), &asleep, &mut pages, &TIERS, None).moves.len(), 1);
    // The other one is gone: all that there are, are stopped.
    governor.forget(SpaceId(1));
    assert_eq!(governor.throttle(), Some(Throttle::Refaults));
}

#[test]
fn a_program_that_cannot_afford_its_page_outs_holds_up_no_other() {
    let mut pages = two();
    let mut governor = Governor::new(GovernorConfig::default());
    for space in [SpaceId(0), SpaceId(1)] {
        governor.on_program(at(0), space, &priced());
    }
    // Program 0 owes for what it did; program 1 has 20 ms, for 2,001 pages of 10 us.
    governor.on_program(at(1), SpaceId(0), &Pressure { moving: SECOND, ..priced() });
    let requests = both(&pages);
    let granted = governor.admit(at(1), &requests, &mut pages, &TIERS, None);
    assert!(granted.moves.iter().all(|item| of(&pages, 1, item.page)));
    assert_eq!((granted.moves.len(), granted.deferred.len()), (2001, 2048 + 47));
    assert_eq!((granted.consumed, granted.rejected.len()), (4096, 0));
    assert!(granted.wait_until.is_some());
    // A third that nobody has reported on yet waits for its books.
    pages.map(SpaceId(2), Vpn(0)..Vpn(8));
    let page = pages.find(SpaceId(2), Vpn(0)).unwrap();
    pages.set_tier(page, Some(TierId::FAST));
    let early = [request(&pages, 2, 0, Reason::Cold)];
    let granted = governor.admit(at(1), &early, &mut pages, &TIERS, None);
    assert_eq!((granted.moves.len(), granted.deferred.as_slice()), (0, early.as_slice()));
}

#[test]
fn page_outs_of_all_are_only_limited_while_those_of_one_are() {
    let mut pages = two();
    let mut governor = Governor::new(GovernorConfig::default());
    governor.on_program(at(0), SpaceId(0), &Pressure { refaults: 20_000, ..priced() });
    // Program 1 owes for what it did, so that its next page-out waits.
    governor.on_program(at(0), SpaceId(1), &Pressure { moving: SECOND, ..priced() });
    governor.admit(at(0), &[request(&pages, 1, 1, Reason::Cold)], &mut pages, &TIERS, None);
    governor.on_program(at(1), SpaceId(0), &Pressure { refaults: 20_000, ..priced() });
    governor.on_program(at(1), SpaceId(1), &priced());
    assert_eq!(governor.throttle(), Some(Throttle::Moves));
    governor.forget(SpaceId(1));
    assert_eq!(governor.throttle(), Some(Throttle::Refaults));
}

#[test]
fn each_program_is_probed_by_itself() {
    let pages = two();
    let mut governor = Governor::new(GovernorConfig { swap: Some(SLOW), ..GovernorConfig::default() });
    for space in [SpaceId(0), SpaceId(1)] {
        governor.on_program(at(0), space, &Pressure { single_out_cost: SECOND, ..priced() });
    }
    let requests = both(&pages);
    let kept = governor.probe(requests.clone(), &pages);
    let [first, second] = [0, 1].map(|space| kept.iter().filter(|request| of(&pages, space, request.page)).count());
    assert!(first == second && (256..=768).contains(&first), "{first} and {second}");
    let mut rest = requests.iter();
    assert!(kept.iter().all(|request| rest.any(|other| other == request)), "in their order");
}

#[test]
fn patience_is_a_programs_own() {
    let mut governor = Governor::new(GovernorConfig::default());
    let costly = Pressure { window: SECOND, refaults: 3500, ..Pressure::default() };
    for second in 0..60 {
        for space in [SpaceId(0), SpaceId(1)] {
            (0..1000).for_each(|_| governor.note_demoted(space));
        }
        (0..900).for_each(|_| governor.note_return(SpaceId(0), true));
        governor.note_return(SpaceId(1), false);
        governor.on_program(at(second), SpaceId(0), &costly);
        governor.on_program(at(second), SpaceId(1), &Pressure { refaults: 0, ..costly });
    }
    assert!(governor.backoff_of(SpaceId(0)) > 1.5 && governor.backoff_of(SpaceId(1)) == 1.0);
    assert_eq!(governor.backoff_of(SpaceId(7)), 1.0, "of one that is not known");
}
