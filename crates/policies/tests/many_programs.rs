//! Many programs in one class, in virtual time: those that sleep are out whatever the others do, and one that wakes is met.
//!
//! In: an engine with the default policy, as the live driver feeds it: clocks, rounds over who runs, pressure by program. Out: who is out, and what came
//! back. Must not: depend on a kernel.
#![allow(clippy::unwrap_used)] // These are tests.

use std::time::Duration;

use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::{GovernorConfig, Pressure};
use terrace_core::observation::{Observation, Observations, PteState, ScanBatch};
use terrace_core::plan::{Action, Outcome, Reason};
use terrace_core::policy::{FastGoal, ScanReport};
use terrace_core::units::{SpaceId, TierId, Time, Vpn};
use terrace_policies::Settings;

const SWAP: TierId = TierId(1);
/// Pages of a program: 8 MiB.
const PAGES: u64 = 2048;
const HALF: Duration = Duration::from_millis(500);

/// A program as the kernel has it.
struct Program {
    space: SpaceId,
    out: Vec<bool>,
    /// Pages used since the latest round.
    used: Vec<bool>,
    ran: bool,
    told_asleep: bool,
    still_since: Time,
    refaults: u64,
}

struct World {
    engine: Engine,
    programs: Vec<Program>,
    now: Time,
    fetched: u64,
    reasons: Vec<Reason>,
}

impl World {
    fn new() -> World {
        let policy = terrace_policies::build("age", Settings::default()).unwrap();
        let governor = GovernorConfig { swap: Some(SWAP), ..GovernorConfig::default() };
        let config = EngineConfig { tiers: vec![1 << 24, 1 << 24], goal: FastGoal::Least, governor };
        let now = Time::ZERO + Duration::from_secs(3600);
        World { engine: Engine::new(config, policy), programs: Vec::new(), now, fetched: 0, reasons: Vec::new() }
    }

    fn start(&mut self) {
        let space = SpaceId(self.programs.len() as u32);
        self.engine.handle(self.now, Input::Mapped(space, Vpn(0)..Vpn(PAGES)));
        let pages = PAGES as usize;
        self.programs.push(Program {
            space,
            out: vec![false; pages],
            used: vec![true; pages],
            ran: true,
            told_asleep: false,
            still_since: self.now,
            refaults: 0,
        });
    }

    /// The program uses these pages.
    fn touch(&mut self, index: usize, pages: impl Iterator<Item = usize>) {
        let program = &mut self.programs[index];
        program.ran = true;
        let mut back = Vec::new();
        for page in pages {
            program.used[page] = true;
            if std::mem::replace(&mut program.out[page], false) {
                program.refaults += 1;
                let page = self.engine.pages().find(program.space, Vpn(page as u64)).unwrap();
                back.push(Observation::Refault { page });
            }
        }
        for events in back.chunks(32) {
            self.engine.handle(self.now, Input::Observed(Observations::Events(events)));
        }
        for fetch in self.engine.fetches() {
            self.fetched += fetch.ranges.iter().map(|range| range.end.0 - range.start.0).sum::<u64>();
        }
    }

    /// Half a second passes: clocks are looked at, who ran is read, and what the engine asks for is done.
    fn pass(&mut self) {
        self.now = self.now + HALF;
        let now = self.now;
        for index in 0..self.programs.len() {
            let program = &mut self.programs[index];
            if !program.ran {
                if !std::mem::replace(&mut program.told_asleep, true) {
                    self.engine.handle(now, Input::Slept(program.space, program.still_since));
                }
                continue;
            }
            (program.ran, program.told_asleep, program.still_since) = (false, false, now);
            self.engine.handle(now, Input::Ran(program.space));
            for block in 0..PAGES / 512 {
                let ptes: Vec<PteState> = (block * 512..block * 512 + 512)
                    .map(|page| match program.out[page as usize] {
                        true => PteState::placed(SWAP),
                        false => PteState::placed(TierId::FAST).with_accessed(program.used[page as usize]),
                    })
                    .collect();
                let first = self.engine.pages().find(program.space, Vpn(block * 512)).unwrap();
                let scan = ScanBatch { first, ptes: &ptes, window: Some(HALF), cleared: true };
                self.engine.handle(now, Input::Observed(Observations::Scan(scan)));
            }
            program.used.fill(false);
            let pressure = Pressure {
                window: HALF,
                refaults: std::mem::take(&mut program.refaults),
                single_out_cost: Duration::from_micros(10),
                block_out_cost: Duration::from_micros(50),
                ..Pressure::default()
            };
            self.engine.handle(now, Input::ProgramPressure(program.space, pressure));
        }
        self.engine.handle(now, Input::Pressure(Pressure { window: HALF, ..Pressure::default() }));
        self.engine.handle(now, Input::ScanDone(ScanReport { share: 1.0, pages: 1, ..ScanReport::default() }));
        loop {
            match self.engine.poll(now) {
                Output::Move(plan) => {
                    let done =
                        |item: &terrace_core::plan::Move| Outcome { item: *item, done: item.pages, failure: None };
                    let outcomes: Vec<Outcome> = plan.moves.iter().map(done).collect();
                    for item in &plan.moves {
                        let (space, vpn) = self.engine.pages().locate(item.page);
                        let program = &mut self.programs[space.0 as usize];
                        let Action::MoveTo(to) = item.action else { panic!("{item:?}") };
                        program.out[vpn.0 as usize] = to == SWAP;
                        self.reasons.push(item.reason);
                    }
                    self.engine.handle(now, Input::Moved(&outcomes));
                }
                Output::Track(_) => {}
                Output::Wake(_) => return,
            }
        }
    }

    fn out(&self, index: usize) -> usize {
        self.programs[index].out.iter().filter(|out| **out).count()
    }
}

#[test]
fn programs_that_start_one_after_another_and_sleep_are_out_while_others_work() {
    let mut world = World::new();
    // The first works all the time, on all it has, and the second comes back to what it left each ten seconds.
    for half in 0..120 {
        if half % 4 == 0 && world.programs.len() < 14 {
            world.start();
        }
        world.touch(0, 0..PAGES as usize);
        if half % 20 == 19 {
            world.touch(1, 0..PAGES as usize);
        }
        world.pass();
        if half == 80 {
            let out: usize = (2..14).map(|index| world.out(index)).sum();
            assert!(out * 10 >= 12 * PAGES as usize * 6, "{out} pages out after 40 s");
        }
    }
    assert_eq!(world.out(0), 0);
    for index in 2..14 {
        assert_eq!(world.out(index), PAGES as usize, "program {index}");
    }
    assert!(world.reasons.iter().filter(|reason| **reason == Reason::Asleep).count() >= 12 * PAGES as usize);
    assert_eq!(world.engine.sleepers().asleep(), 12, "but for the two");
}

#[test]
fn what_returns_to_one_program_delays_no_other() {
    let mut world = World::new();
    (0..2).for_each(|_| world.start());
    for half in 0..200 {
        // Both run all the time, on the same quarter. The other three quarters leave, and the first wants them back all at once, again and again.
        for index in 0..2 {
            world.touch(index, 0..512);
        }
        if half >= 80 && half % 10 == 0 {
            world.touch(0, 512..PAGES as usize);
        }
        world.pass();
    }
    assert_eq!(world.out(1), 1536, "the other's");
    assert!(world.out(0) < 512, "{}", world.out(0));
}

#[test]
fn one_that_wakes_is_met_with_what_it_used_last() {
    let mut world = World::new();
    world.start();
    // Twice its first sleep is more than enough for what it used to leave as well.
    let sleep = |world: &mut World, halves| {
        (0..halves).for_each(|_| world.pass());
        assert_eq!(world.out(0), PAGES as usize, "it is out");
    };
    sleep(&mut world, 40);
    world.touch(0, 0..1000);
    world.pass();
    let learned = world.fetched;
    sleep(&mut world, 120);
    world.touch(0, 0..1000);
    assert_eq!(world.fetched - learned, 1000 - 32, "as soon as some tens had come back");
    let asked_before = world.engine.ledger().refaults();
    world.pass();
    assert_eq!(world.engine.ledger().refaults(), asked_before, "each return is counted once");
}
