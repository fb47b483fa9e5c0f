//! Tests of the engine, with a policy that requests what the test says.

use super::*;
use crate::observation::PteState;
use crate::plan::{Move, Reason};
use crate::policy::{PolicyReport, Profile};
use crate::units::PageId;

const SPACE: SpaceId = SpaceId(0);
const SLOW: TierId = TierId(1);

/// Requests the demotion of every fast page that was not accessed at the last scan, and the promotion of every slow page that was.
#[derive(Default)]
struct LastScan {
    accessed: Vec<bool>,
    refaults: usize,
    scan_at: Time,
}

impl Policy for LastScan {
    fn profile(&self) -> Profile {
        Profile::new("last-scan", Needs { scans: true, ..Needs::default() })
    }

    fn observe(&mut self, _now: Time, seen: Observations<'_>, pages: &mut Pages) {
        self.accessed.resize(pages.capacity(), false);
        match seen {
            Observations::Scan(scan) => {
                for (offset, pte) in scan.ptes.iter().enumerate() {
                    self.accessed[scan.first.plus(offset as u32).index()] = pte.accessed();
                }
            }
            Observations::Events(events) => {
                self.refaults += events.iter().filter(|event| matches!(event, Observation::Refault { .. })).count();
            }
        }
    }

    fn feedback(&mut self, now: Time, feedback: Feedback<'_>, _pages: &mut Pages) {
        if let Feedback::ScanDone(_) = feedback {
            self.scan_at = now + Duration::from_secs(1);
        }
    }

    fn plan(&mut self, _now: Time, _capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        let blocks: Vec<_> = pages.blocks().map(|(id, _)| id).collect();
        for block in blocks {
            for offset in 0..BLOCK_PAGES {
                let page = block.first_page().plus(offset);
                match (pages[page].tier(), self.accessed.get(page.index()).copied().unwrap_or(false)) {
                    (Some(TierId::FAST), false) => requests.move_to(page, SLOW, Reason::Cold),
                    (Some(tier), true) if tier == SLOW => requests.move_to(page, TierId::FAST, Reason::Hot),
                    _ => true,
                };
            }
        }
    }

    fn schedule(&self) -> Schedule {
        Schedule { cadence: Cadence { scan_at: Some(self.scan_at), share: 1.0, ..Cadence::default() }, wake_at: None }
    }

    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}

fn engine(goal: FastGoal) -> Engine {
    let config = EngineConfig { tiers: vec![1 << 20, 1 << 20], goal, governor: GovernorConfig::default() };
    Engine::new(config, Box::new(LastScan::default()))
}

/// Shows the engine one block: the first `hot` pages accessed, the rest not, each where `place` says.
fn show(engine: &mut Engine, now: Time, hot: u32, place: impl Fn(u32) -> Option<TierId>) {
    engine.handle(now, Input::Mapped(SPACE, Vpn(0)..Vpn(u64::from(BLOCK_PAGES))));
    let first = engine.pages().find(SPACE, Vpn(0)).unwrap();
    let ptes: Vec<PteState> = (0..BLOCK_PAGES)
        .map(|page| place(page).map_or(PteState::ABSENT, |tier| PteState::placed(tier).with_accessed(page < hot)))
        .collect();
    let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
    engine.handle(now, Input::Observed(Observations::Scan(scan)));
    engine.handle(now, Input::ScanDone(ScanReport::default()));
}

/// Carries out every plan, until the engine returns a wake-up time.
fn carry_out(engine: &mut Engine, now: Time) -> Vec<Move> {
    let mut done = Vec::new();
    loop {
        match engine.poll(now) {
            Output::Move(plan) => {
                let outcomes: Vec<Outcome> =
                    plan.moves.iter().map(|&item| Outcome { item, done: item.pages, failure: None }).collect();
                done.extend(plan.moves);
                engine.handle(now, Input::Moved(&outcomes));
            }
            Output::Track(_) => {}
            Output::Wake(_) => return done,
        }
    }
}

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

#[test]
fn cold_pages_leave_and_are_counted_once() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 100, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(100)).len(), 412);
    assert_eq!((engine.pages().used(SPACE, TierId::FAST), engine.pages().used(SPACE, SLOW)), (100, 412));
    assert_eq!((engine.ledger().demoted(), engine.ledger().refaults()), (412, 0));
}

#[test]
fn a_page_that_comes_back_by_itself_is_a_refault_and_soon_a_mistake() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 100, |_| Some(TierId::FAST));
    carry_out(&mut engine, at(100));
    show(&mut engine, at(105), 110, |page| Some(if page < 110 { TierId::FAST } else { SLOW }));
    assert_eq!((engine.ledger().refaults(), engine.ledger().ping_pong_pages()), (10, 10));
    show(&mut engine, at(300), 120, |page| Some(if page < 120 { TierId::FAST } else { SLOW }));
    assert_eq!((engine.ledger().refaults(), engine.ledger().ping_pong_pages()), (20, 10));
}

#[test]
fn failures_are_counted_by_cause_and_hopeless_pages_left_alone() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 510, |_| Some(TierId::FAST));
    let Output::Move(plan) = engine.poll(at(100)) else { panic!("two cold pages are to leave") };
    let causes = [Failure::Errno(13), Failure::Stayed];
    let outcomes: Vec<Outcome> =
        plan.moves.iter().zip(causes).map(|(&item, cause)| Outcome { item, done: 0, failure: Some(cause) }).collect();
    engine.handle(at(100), Input::Moved(&outcomes));
    assert_eq!(
        engine.ledger().failed().iter().map(|(cause, pages)| (*cause, *pages)).collect::<Vec<_>>(),
        [(Failure::Errno(13), 1), (Failure::Stayed, 1)]
    );
    show(&mut engine, at(101), 510, |_| Some(TierId::FAST));
    assert!(carry_out(&mut engine, at(101)).is_empty(), "a page in use rests");
    show(&mut engine, at(200), 510, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(200)).len(), 1, "and may be tried again; EACCES is final");
}

#[test]
fn a_page_that_the_kernel_says_is_not_there_is_forgotten_until_it_is_seen_again() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 509, |_| Some(TierId::FAST));
    let Output::Move(plan) = engine.poll(at(100)) else { panic!("three pages are cold") };
    let absent = [Failure::Errno(14), Failure::Errno(2), Failure::Errno(14)];
    let outcomes: Vec<Outcome> = plan
        .moves
        .iter()
        .zip(absent)
        .map(|(&item, failure)| Outcome { item, done: 0, failure: Some(failure) })
        .collect();
    assert_eq!(outcomes.len(), 3);
    engine.handle(at(100), Input::Moved(&outcomes));
    assert_eq!(engine.pages().footprint_of_all(), 509, "they take no memory");
    engine.handle(at(101), Input::ScanDone(ScanReport::default()));
    assert!(carry_out(&mut engine, at(101)).is_empty(), "the policy does not ask again");
    // Memory is available again: then they are normal pages.
    show(&mut engine, at(102), 509, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(102)).len(), 3);
}

#[test]
fn no_second_plan_before_the_first_is_answered() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 0, |_| Some(TierId::FAST));
    assert!(matches!(engine.poll(at(100)), Output::Move(_)));
    assert!(!matches!(engine.poll(at(100)), Output::Move(_)));
    show(&mut engine, at(101), 0, |_| Some(TierId::FAST));
    assert!(!matches!(engine.poll(at(101)), Output::Move(_)));
}

#[test]
fn a_space_that_exits_in_mid_move_leaves_nothing_behind() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 0, |_| Some(TierId::FAST));
    let Output::Move(plan) = engine.poll(at(100)) else { panic!("a plan is due") };
    engine.handle(at(100), Input::Exited(SPACE));
    let outcomes: Vec<Outcome> =
        plan.moves.iter().map(|&item| Outcome { item, done: 0, failure: Some(Failure::Gone) }).collect();
    engine.handle(at(100), Input::Moved(&outcomes));
    assert_eq!(engine.pages().footprint_of_all(), 0);
    assert!(matches!(engine.poll(at(101)), Output::Wake(_) | Output::Track(_)));
}

#[test]
fn a_huge_block_moves_as_one() {
    let mut engine = engine(FastGoal::Least);
    engine.handle(at(1), Input::Mapped(SPACE, Vpn(0)..Vpn(512)));
    let first = engine.pages().find(SPACE, Vpn(0)).unwrap();
    let ptes = vec![PteState::placed(TierId::FAST).with_huge(true); 512];
    let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
    engine.handle(at(1), Input::Observed(Observations::Scan(scan)));
    engine.handle(at(1), Input::ScanDone(ScanReport::default()));
    let moves = carry_out(&mut engine, at(1));
    assert_eq!(moves.len(), 1, "511 of the 512 requests are stale once the block is on its way");
    assert_eq!((moves[0].pages, engine.ledger().demoted()), (512, 512));
}

#[test]
fn explain_tells_what_became_of_a_page() {
    let mut engine = engine(FastGoal::Least);
    show(&mut engine, at(100), 100, |_| Some(TierId::FAST));
    carry_out(&mut engine, at(100));
    let decision = engine.ledger().explain(SPACE, Vpn(300)).next().expect("page 300 was demoted");
    assert_eq!((decision.first, decision.span, decision.moved, decision.reason), (Vpn(100), 412, 412, Reason::Cold));
    assert!(engine.ledger().explain(SPACE, Vpn(50)).next().is_none());
}

#[test]
fn a_floor_and_a_ceiling_of_all_spaces_together_hold() {
    let mut engine = engine(FastGoal::Least);
    engine.handle(at(99), Input::TotalLimits(SpaceLimits { floor: 300, ceiling: 350 }));
    show(&mut engine, at(100), 100, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(100)).len(), 212, "512 less the floor");
    assert_eq!(engine.governor().rejections()[&crate::plan::Rejection::Floor], 200);
    // All are accessed now: promotion stops at the ceiling.
    show(&mut engine, at(200), 512, |page| Some(if (100..312).contains(&page) { SLOW } else { TierId::FAST }));
    carry_out(&mut engine, at(200));
    assert_eq!(engine.pages().used(SPACE, TierId::FAST), 350);
    // A floor that means "never" does not overflow.
    engine.handle(at(201), Input::TotalLimits(SpaceLimits { floor: u64::MAX, ceiling: u64::MAX }));
    show(&mut engine, at(300), 0, |page| Some(if (100..262).contains(&page) { SLOW } else { TierId::FAST }));
    assert!(carry_out(&mut engine, at(300)).is_empty());
}

#[test]
fn a_drain_brings_back_what_was_moved_whatever_stands_against_it() {
    let mut engine = engine(FastGoal::Pages(100));
    show(&mut engine, at(100), 100, |_| Some(TierId::FAST));
    carry_out(&mut engine, at(100));
    assert!(engine.has_pages_to_bring_back());
    // Pages that moved a second ago are in cooldown, and the goal leaves no room: both are ignored when Terrace leaves.
    engine.handle(at(101), Input::Drain(true));
    let moves = carry_out(&mut engine, at(101));
    assert!(moves.len() == 412 && moves.iter().all(|item| item.reason == Reason::Drain));
    assert_eq!((engine.pages().used(SPACE, SLOW), engine.ledger().ping_pong_pages()), (0, 0));
    assert!(!engine.has_pages_to_bring_back());
    show(&mut engine, at(150), 100, |_| Some(TierId::FAST));
    assert!(carry_out(&mut engine, at(150)).is_empty(), "while it drains nothing leaves");
    engine.handle(at(151), Input::Drain(false));
    show(&mut engine, at(200), 100, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(200)).len(), 412, "and then it goes on");
}

#[test]
fn a_rate_can_be_changed_while_wishes_wait_for_it() {
    let mut engine = engine(FastGoal::Least);
    engine.handle(at(99), Input::Rate(Some(Bytes::kib(4))));
    show(&mut engine, at(100), 0, |_| Some(TierId::FAST));
    assert!(carry_out(&mut engine, at(100)).len() < 10 && engine.waiting() > 500);
    engine.handle(at(100), Input::Rate(None));
    assert!(carry_out(&mut engine, at(100)).len() > 500 && engine.waiting() == 0);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    /// One scan of 512 pages whose accessed bits are the bits of `marks`, delivered in pieces of `piece` pages.
    fn deliver(engine: &mut Engine, now: Time, marks: &[bool], piece: usize) {
        engine.handle(now, Input::Mapped(SPACE, Vpn(0)..Vpn(512)));
        for (number, part) in marks.chunks(piece).enumerate() {
            let first = engine.pages().find(SPACE, Vpn((number * piece) as u64)).unwrap();
            let ptes: Vec<PteState> = part
                .iter()
                .enumerate()
                .map(|(offset, &accessed)| {
                    let tier = engine.pages()[first.plus(offset as u32)].tier().unwrap_or(TierId::FAST);
                    PteState::placed(if accessed { TierId::FAST } else { tier }).with_accessed(accessed)
                })
                .collect();
            let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
            engine.handle(now, Input::Observed(Observations::Scan(scan)));
        }
        engine.handle(now, Input::ScanDone(ScanReport::default()));
    }

    proptest! {
        /// The batches into which a scan is cut do not matter: the same input gives the same moves.
        #[test]
        fn batch_splits_do_not_matter(
            rounds in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 512), 1..6),
            piece in 1usize..512,
        ) {
            let (mut whole, mut split) = (engine(FastGoal::Least), engine(FastGoal::Least));
            for (number, marks) in rounds.iter().enumerate() {
                let now = at(100 + 20 * number as u64);
                deliver(&mut whole, now, marks, 512);
                deliver(&mut split, now, marks, piece);
                prop_assert_eq!(carry_out(&mut whole, now), carry_out(&mut split, now));
                prop_assert_eq!(whole.ledger().refaults(), split.ledger().refaults());
            }
        }

        /// No tier ever holds more than its capacity, and no page is lost, whatever succeeds or fails.
        #[test]
        fn capacity_holds_and_pages_are_conserved(
            capacity in 1u64..400,
            rounds in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 512), 1..6),
            fails in proptest::collection::vec(any::<bool>(), 64),
        ) {
            let config = EngineConfig {
                tiers: vec![512, capacity], goal: FastGoal::Share(0.5), governor: GovernorConfig::default(),
            };
            let mut engine = Engine::new(config, Box::new(LastScan::default()));
            for (number, marks) in rounds.iter().enumerate() {
                let now = at(100 + 20 * number as u64);
                deliver(&mut engine, now, marks, 512);
                while let Output::Move(plan) = engine.poll(now) {
                    let outcomes: Vec<Outcome> = plan.moves.iter().enumerate().map(|(index, &item)| {
                        let failed = fails[index % fails.len()];
                        Outcome { item, done: if failed { 0 } else { item.pages }, failure: failed.then_some(Failure::Stayed) }
                    }).collect();
                    engine.handle(now, Input::Moved(&outcomes));
                    let tiers = engine.tier_use();
                    prop_assert!(tiers[1].used <= capacity, "{} in a tier of {capacity}", tiers[1].used);
                }
                prop_assert_eq!(engine.pages().footprint(SPACE), 512);
                let marked = (0..512).filter(|&page| engine.pages()[PageId(page)].moving()).count();
                prop_assert_eq!(marked, 0);
            }
        }
    }
}

#[test]
fn what_terrace_moved_is_told_from_what_others_put_out() {
    let mut engine = engine(FastGoal::Pages(1 << 20));
    show(&mut engine, at(100), 500, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(100)).len(), 12);
    // Another 100 are found in slow memory, which nobody here has moved.
    let place = |page: u32| Some(if (400..500).contains(&page) || page >= 500 { SLOW } else { TierId::FAST });
    show(&mut engine, at(101), 400, place);
    assert_eq!((engine.pages().used_in_all(SLOW), engine.pages().demoted_in_all(SLOW)), (112, 12));
    // Four of those that Terrace moved come back, and ten of the others'.
    let place = |page: u32| Some(if (410..508).contains(&page) { SLOW } else { TierId::FAST });
    show(&mut engine, at(102), BLOCK_PAGES, place);
    assert_eq!((engine.pages().used_in_all(SLOW), engine.pages().demoted_in_all(SLOW)), (98, 8));
    assert_eq!(engine.ledger().refaults(), 4, "only what Terrace moved can come back from it");
    // Memory that is given back is in neither.
    show(&mut engine, at(103), BLOCK_PAGES, |page| (page < 410).then_some(TierId::FAST));
    assert_eq!((engine.pages().used_in_all(SLOW), engine.pages().demoted_in_all(SLOW)), (0, 0));
}

#[test]
fn shared_pages_go_on_with_their_history_in_another_space() {
    let mut engine = engine(FastGoal::Pages(1 << 20));
    show(&mut engine, at(100), 500, |_| Some(TierId::FAST));
    assert_eq!(carry_out(&mut engine, at(100)).len(), 12);
    let heir = SpaceId(7);
    let handed = Input::Handed { from: (SPACE, Vpn(496)), to: (heir, Vpn(1008)), pages: 16 };
    engine.handle(at(101), handed);
    engine.handle(at(101), Input::Exited(SPACE));
    let pages = engine.pages();
    assert_eq!((pages.used(heir, SLOW), pages.used(heir, TierId::FAST), pages.demoted_in_all(SLOW)), (12, 4, 12));
    // It is the other that uses them now, and that is a return like any other.
    let first = engine.pages().find(heir, Vpn(1008)).unwrap();
    let ptes = [PteState::placed(TierId::FAST).with_accessed(true); 16];
    let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
    engine.handle(at(102), Input::Observed(Observations::Scan(scan)));
    assert_eq!((engine.ledger().refaults(), engine.pages().demoted_in_all(SLOW)), (12, 0));
}

#[test]
fn what_moved_with_its_mapping_is_terraces_once_it_is_told() {
    let mut engine = engine(FastGoal::Pages(1 << 20));
    // Found in slow memory: by others' doing, as far as anybody knows.
    show(&mut engine, at(100), 0, |page| Some(if page < 100 { SLOW } else { TierId::FAST }));
    assert_eq!((engine.pages().demoted_in_all(SLOW), engine.has_pages_to_bring_back()), (0, false));
    engine.handle(at(100), Input::MovedBefore(SPACE, Vpn(90)..Vpn(600)));
    assert_eq!(engine.pages().demoted_in_all(SLOW), 10, "of these, what is in slow memory");
    // It is brought back as what Terrace moved, and its return by itself is a refault.
    assert!(engine.has_pages_to_bring_back());
    show(&mut engine, at(101), 0, |page| Some(if page < 94 { SLOW } else { TierId::FAST }));
    let back = engine.pages().find(SPACE, Vpn(95)).unwrap();
    assert_eq!((engine.ledger().refaults(), engine.pages()[back].ping_pong()), (6, 0));
    engine.handle(at(102), Input::Drain(true));
    let back: Vec<_> = carry_out(&mut engine, at(102)).iter().map(|item| item.page.offset()).collect();
    assert_eq!(back, [90, 91, 92, 93]);
}

/// Asks for a split of each huge block, as long as there are any.
struct Splitter;

impl Policy for Splitter {
    fn profile(&self) -> Profile {
        Profile::new("splitter", Needs { scans: true, ..Needs::default() }).splitting(true)
    }
    fn observe(&mut self, _now: Time, _seen: Observations<'_>, _pages: &mut Pages) {}
    fn plan(&mut self, _now: Time, _capacity: &CapacityView<'_>, pages: &mut Pages, requests: &mut MoveRequests) {
        for (block, _) in pages.blocks().filter(|(_, info)| info.huge) {
            requests.push(block.first_page(), Action::Split, Reason::Inside);
        }
    }
    fn schedule(&self) -> Schedule {
        Schedule::default()
    }
    fn report(&self) -> PolicyReport {
        PolicyReport::default()
    }
}

/// Three huge blocks.
fn huge_blocks(governor: GovernorConfig) -> Engine {
    let config = EngineConfig { tiers: vec![1 << 20, 1 << 20], goal: FastGoal::Least, governor };
    let mut engine = Engine::new(config, Box::new(Splitter));
    engine.handle(at(100), Input::Mapped(SPACE, Vpn(0)..Vpn(3 * u64::from(BLOCK_PAGES))));
    look_huge(&mut engine, at(100));
    engine
}

fn look_huge(engine: &mut Engine, now: Time) {
    let ptes = [PteState::placed(TierId::FAST).with_huge(true); BLOCK_PAGES as usize];
    for block in 0..3 {
        let first = engine.pages().find(SPACE, Vpn(block * u64::from(BLOCK_PAGES))).unwrap();
        let scan = ScanBatch { first, ptes: &ptes, window: None, cleared: false };
        engine.handle(now, Input::Observed(Observations::Scan(scan)));
    }
    engine.handle(now, Input::ScanDone(ScanReport::default()));
}

fn next_plan(engine: &mut Engine, now: Time) -> Option<Plan> {
    loop {
        match engine.poll(now) {
            Output::Move(plan) => return Some(plan),
            Output::Track(_) => {}
            Output::Wake(_) => return None,
        }
    }
}

#[test]
fn a_split_is_counted_and_one_that_was_refused_leaves_the_block_as_it_was() {
    let mut engine = huge_blocks(GovernorConfig::default());
    let plan = next_plan(&mut engine, at(100)).unwrap();
    let answers = [None, Some(Failure::Whole), Some(Failure::Errno(22))];
    let answer = |(&item, failure): (&Move, Option<Failure>)| Outcome {
        item,
        done: if failure.is_none() { item.pages } else { 0 },
        failure,
    };
    let outcomes: Vec<Outcome> = plan.moves.iter().zip(answers).map(answer).collect();
    assert_eq!(outcomes.len(), 3);
    engine.handle(at(101), Input::Moved(&outcomes));
    let ledger = engine.ledger();
    assert_eq!((ledger.splits(), ledger.looks(), ledger.moved().len()), (1, 1, 0));
    assert_eq!(ledger.splits_refused().values().sum::<u64>(), 2);
    let blocks: Vec<(bool, bool)> = engine.pages().blocks().map(|(_, info)| (info.huge, info.split())).collect();
    assert_eq!(blocks, [(false, true), (true, false), (true, false)]);
    assert_eq!(engine.pages().split_blocks(), 1);
    for (block, _) in engine.pages().blocks() {
        let page = engine.pages().block_pages(block)[0];
        assert!(!page.pinned() && !page.moving() && page.ping_pong() == 0, "it may still move whole: {page:?}");
    }
    // Once huge again it is not counted any more.
    look_huge(&mut engine, at(102));
    assert_eq!(engine.pages().split_blocks(), 0);
}

#[test]
fn splits_wait_until_the_program_can_afford_them() {
    let mut engine = huge_blocks(GovernorConfig { swap: Some(SLOW), max_slowdown: 0.001, ..GovernorConfig::default() });
    let priced = Pressure {
        window: Duration::from_secs(1),
        single_out_cost: Duration::from_micros(10),
        block_out_cost: Duration::from_micros(50),
        split_cost: Duration::from_micros(800),
        ..Pressure::default()
    };
    // A millisecond is earned: the second begins while something is left, and the third waits.
    engine.handle(at(101), Input::Pressure(priced));
    engine.handle(at(101), Input::ScanDone(ScanReport::default()));
    let plan = next_plan(&mut engine, at(101)).unwrap();
    assert_eq!(plan.moves.len(), 2);
    let outcomes: Vec<Outcome> =
        plan.moves.iter().map(|&item| Outcome { item, done: item.pages, failure: None }).collect();
    engine.handle(at(101), Input::Moved(&outcomes));
    // What they cost, and what the program loses by them from then on, is of the same budget.
    let spent = Pressure { moving: Duration::from_micros(1600), translating: Duration::from_micros(1900), ..priced };
    engine.handle(at(102), Input::Pressure(spent));
    engine.handle(at(102), Input::ScanDone(ScanReport::default()));
    assert_eq!(next_plan(&mut engine, at(102)), None);
    engine.handle(at(103), Input::Pressure(priced));
    engine.handle(at(103), Input::ScanDone(ScanReport::default()));
    assert_eq!(next_plan(&mut engine, at(103)), None, "half a millisecond is owed still");
    engine.handle(at(104), Input::Pressure(priced));
    engine.handle(at(104), Input::ScanDone(ScanReport::default()));
    assert_eq!(next_plan(&mut engine, at(104)).unwrap().moves.len(), 1);
}
