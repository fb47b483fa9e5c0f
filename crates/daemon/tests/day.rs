//! A day of the daemon in virtual time: the engines, the arbiter and the claims of each class as they run live, for 24 hours with every
//! event that a server sees.
//!
//! In: nothing; seeds are fixed. Out: figures of the day. Must not: read a clock, or talk to the kernel.
//!
//! The model covers what surrounds that code: programs that start, work, idle at night and exit; accessed bits of what they touched; a
//! mover that fails as kernels do (no space, EBUSY, EPERM, pages that stay); a slow tier that is offline for an hour; a clock that jumps
//! two hours ahead, as after a pause of a virtual machine; budgets that change. The model records where each page really is, and the
//! engines must never lose or invent one.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that says what its day was like")]

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::arbiter::{Activity, share_out};
use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::{GovernorConfig, Pressure};
use terrace_core::observation::{Observations, PteState, ScanBatch};
use terrace_core::plan::{Action, Failure, Outcome, Plan};
use terrace_core::policy::{Cadence, FastGoal, ScanReport};
use terrace_core::units::{BLOCK_PAGES, Bytes, SpaceId, TierId, Time, Vpn};
use terrace_daemon::claims::{self, Grant, Standing};
use terrace_daemon::config::{Class, Config, Source};
use terrace_workloads::random::Random;

const SLOW: TierId = TierId(1);
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// The slow tier is offline in the fourth hour; the clock jumps at noon; at 18:00 fast memory is halved for an hour.
const OFFLINE: std::ops::Range<u64> = 3 * HOUR..4 * HOUR;
const LEAP_AT: u64 = 12 * HOUR;
const LEAP: Duration = Duration::from_secs(2 * HOUR);
const SHORT: std::ops::Range<u64> = 18 * HOUR..19 * HOUR;
const SLOW_PAGES: u64 = 1 << 20;
const RATE: Bytes = Bytes::mib(4);

const CONFIG: &str = r#"
[class.front]
match = [{ pid = 1 }]
goal = "best"
floor = "4MiB"
weight = 300
[class.batch]
match = [{ pid = 2 }]
goal = "least"
[class.half]
match = [{ pid = 3 }]
policy = "flexhm"
set = { e = "20s", i = "2s" }
goal = "50%"
[class.promised]
match = [{ pid = 4 }]
goal = "never-slow"
"#;

/// A program: the tier of each of its pages, and which of them it uses now.
struct Program {
    places: Vec<TierId>,
    ends: u64,
    hot_from: usize,
    last_scan: Time,
}

struct Tenant {
    class: Class,
    engine: Engine,
    programs: BTreeMap<SpaceId, Program>,
    started: u32,
    cadence: Cadence,
    activity: Activity,
    active: u64,
    grant: Grant,
    random: Random,
    refaults: u64,
    moved: u64,
    failures: u64,
}

impl Tenant {
    fn new(class: Class, seed: u64) -> Tenant {
        let config = EngineConfig {
            tiers: vec![1 << 20, SLOW_PAGES],
            goal: FastGoal::Pages(u64::MAX),
            governor: GovernorConfig {
                rate: Some(RATE),
                max_slowdown: class.spec.max_slowdown,
                ..GovernorConfig::default()
            },
        };
        let policy = class.spec.build_policy().unwrap();
        Tenant {
            class,
            engine: Engine::new(config, policy),
            programs: BTreeMap::new(),
            started: 0,
            cadence: Cadence::default(),
            activity: Activity::default(),
            active: 0,
            grant: Grant::default(),
            random: Random::new(seed, 0),
            refaults: 0,
            moved: 0,
            failures: 0,
        }
    }

    /// Programs exit and start, more by day than by night.
    fn come_and_go(&mut self, now: Time, second: u64) {
        let over: Vec<SpaceId> =
            self.programs.iter().filter(|(_, program)| program.ends <= second).map(|(space, _)| *space).collect();
        for space in over {
            self.programs.remove(&space);
            self.engine.handle(now, Input::Exited(space));
        }
        let wanted = if (7 * HOUR..22 * HOUR).contains(&second) { 3 } else { 1 };
        if self.programs.len() < wanted && second < DAY - HOUR && self.random.below(60) == 0 {
            let blocks = 1 + self.random.below(3);
            let pages = blocks * u64::from(BLOCK_PAGES);
            let life = 60 + self.random.below(3 * HOUR);
            let program = Program {
                places: vec![TierId::FAST; pages as usize],
                ends: (second + life).min(DAY),
                hot_from: 0,
                last_scan: now,
            };
            self.programs.insert(SpaceId(self.started), program);
            self.started += 1;
        }
        // The hot set moves from time to time.
        for program in self.programs.values_mut() {
            if self.random.below(600) == 0 {
                program.hot_from = self.random.below(program.places.len() as u64) as usize;
            }
        }
    }

    /// Pages that programs touch this second come back from slow memory, as from swap.
    fn touch(&mut self, second: u64) -> u64 {
        let mut refaults = 0;
        let busy = if (7 * HOUR..22 * HOUR).contains(&second) { 4 } else { 16 };
        for program in self.programs.values_mut() {
            let length = program.places.len();
            for offset in 0..length / busy {
                let page = (program.hot_from + offset) % length;
                if program.places[page] == SLOW {
                    program.places[page] = TierId::FAST;
                    refaults += 1;
                }
            }
        }
        self.refaults += refaults;
        refaults
    }

    /// A scan of all pages, with the accessed bits since the last.
    fn walk(&mut self, now: Time, second: u64) {
        let busy = if (7 * HOUR..22 * HOUR).contains(&second) { 4 } else { 16 };
        let mut round = ScanReport { walk: Duration::from_millis(2), share: 1.0, ..ScanReport::default() };
        for (space, program) in &mut self.programs {
            let window = now.since(program.last_scan).max(Duration::from_millis(1));
            program.last_scan = now;
            let length = program.places.len();
            for (block, places) in program.places.chunks(BLOCK_PAGES as usize).enumerate() {
                let first = Vpn(block as u64 * u64::from(BLOCK_PAGES));
                self.engine.handle(now, Input::Mapped(*space, first..Vpn(first.0 + places.len() as u64)));
                let ptes: Vec<PteState> = places
                    .iter()
                    .enumerate()
                    .map(|(offset, tier)| {
                        let page = block * BLOCK_PAGES as usize + offset;
                        let hot = (page + length - program.hot_from) % length < length / busy;
                        PteState::placed(*tier).with_accessed(hot && *tier == TierId::FAST)
                    })
                    .collect();
                round.pages += ptes.len() as u64;
                round.accessed += ptes.iter().filter(|pte| pte.accessed()).count() as u64;
                let first = self.engine.pages().find(*space, first).unwrap();
                let scan = ScanBatch { first, ptes: &ptes, window: Some(window), cleared: true };
                self.engine.handle(now, Input::Observed(Observations::Scan(scan)));
            }
        }
        self.active = self.activity.update(now, round.accessed);
        self.engine.handle(now, Input::ScanDone(round));
    }

    fn standing(&self) -> Standing {
        let pages = self.engine.pages();
        Standing {
            footprint: pages.footprint_of_all(),
            fast: pages.used_in_all(TierId::FAST),
            active: self.active,
            works: true,
            ..Standing::default()
        }
    }

    /// Passes the limits to the engine, and carries out its moves.
    fn work(&mut self, now: Time, tier_is_there: bool) {
        let orders = claims::orders(&self.class, &self.standing(), &self.grant);
        self.engine.handle(now, Input::Goal(orders.goal));
        self.engine.handle(now, Input::TotalLimits(orders.limits));
        self.engine.handle(now, Input::Rate(orders.rate));
        self.settle(now, tier_is_there);
    }

    fn settle(&mut self, now: Time, tier_is_there: bool) {
        for turn in 0.. {
            assert!(turn < 100_000, "an engine that never rests");
            match self.engine.poll(now) {
                Output::Track(cadence) => self.cadence = cadence,
                Output::Wake(_) => return,
                Output::Move(plan) => {
                    let floor = claims::floor(&self.class, self.engine.pages().footprint_of_all());
                    let before = self.engine.pages().used_in_all(TierId::FAST);
                    let outcomes = self.carry_out(&plan, tier_is_there);
                    self.engine.handle(now, Input::Moved(&outcomes));
                    let after = self.engine.pages().used_in_all(TierId::FAST);
                    assert!(after >= floor.min(before), "{}: the floor of {floor} fell to {after}", self.class.name);
                }
            }
        }
    }

    /// As a kernel does it: most moves succeed, some do not, and the result is reported truthfully.
    fn carry_out(&mut self, plan: &Plan, tier_is_there: bool) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for item in &plan.moves {
            let Action::MoveTo(to) = item.action else { panic!("only moves are asked for: {item:?}") };
            assert!(tier_is_there || to != SLOW, "nothing may be moved to a tier that is gone");
            let failure = match self.random.below(400) {
                0 => Some(Failure::NoRoom),
                1 => Some(Failure::Errno(16)),
                2 if self.random.below(10) == 0 => Some(Failure::Errno(1)),
                3 => Some(Failure::Stayed),
                _ => None,
            };
            let (space, first) = self.engine.pages().locate(item.page);
            let done = if failure.is_some() { 0 } else { item.pages };
            if failure.is_none() {
                let program = self.programs.get_mut(&space).expect("the engine knows who is gone");
                for page in 0..u64::from(item.pages) {
                    program.places[(first.0 + page) as usize] = to;
                }
                self.moved += u64::from(item.pages);
            }
            self.failures += u64::from(failure.is_some());
            outcomes.push(Outcome { item: *item, done, failure });
        }
        outcomes
    }

    /// The engine's books against the model.
    fn audit(&self) {
        for (space, program) in &self.programs {
            for (page, place) in program.places.iter().enumerate() {
                let id = self.engine.pages().find(*space, Vpn(page as u64));
                let known = id.and_then(|id| self.engine.pages()[id].tier());
                assert_eq!(known, Some(*place), "{}: page {page} of {space:?}", self.class.name);
            }
        }
        let truth: u64 = self.programs.values().map(|program| program.places.len() as u64).sum();
        assert_eq!(self.engine.pages().footprint_of_all(), truth, "{}", self.class.name);
    }

    fn bytes(&self) -> usize {
        self.engine.pages().memory_bytes() + self.engine.policy_memory_bytes()
    }
}

#[test]
fn a_day_of_everything_leaves_nothing_lost_and_nothing_grown() {
    let config = Config::of(&[Source { name: "day".to_owned(), text: CONFIG.to_owned() }]).unwrap();
    let mut tenants: Vec<Tenant> =
        config.classes.iter().zip(1..).map(|(class, seed)| Tenant::new(class.clone(), seed * 7919)).collect();
    let mut leapt = Duration::ZERO;
    let (mut largest_first_half, mut largest) = (0, 0);
    for second in 0..DAY {
        if second == LEAP_AT {
            leapt = LEAP;
        }
        let now = Time::ZERO + Duration::from_secs(HOUR + second) + leapt;
        let there = !OFFLINE.contains(&second);
        for tenant in &mut tenants {
            if second == OFFLINE.start || second == OFFLINE.end {
                // The kernel brought its pages back to memory.
                tenant.programs.values_mut().for_each(|program| program.places.fill(TierId::FAST));
                tenant.engine.handle(now, Input::Capacity(SLOW, if there { SLOW_PAGES } else { 0 }));
                tenant.walk(now, second);
            }
            tenant.come_and_go(now, second);
            let refaults = tenant.touch(second);
            let window = Duration::from_secs(1);
            tenant.engine.handle(now, Input::Pressure(Pressure { window, refaults, ..Pressure::default() }));
            if tenant.cadence.scan_at.is_none_or(|at| at <= now) {
                tenant.walk(now, second);
            }
        }
        let budget = if SHORT.contains(&second) { 2_000 } else { 4_000 };
        let rate = RATE.get();
        let claims: Vec<_> =
            tenants.iter().map(|tenant| claims::of_class(&tenant.class, &tenant.standing(), rate, 20_000)).collect();
        let fast = share_out(budget, &claims.iter().map(|claim| claim.fast).collect::<Vec<_>>());
        let rates = share_out(rate, &claims.iter().map(|claim| claim.bandwidth).collect::<Vec<_>>());
        assert!(fast.iter().sum::<u64>() <= budget && rates.iter().sum::<u64>() <= rate);
        for (index, tenant) in tenants.iter_mut().enumerate() {
            tenant.grant = Grant { fast: fast[index], bandwidth: Some(rates[index]), cpu: 0.005 };
            tenant.work(now, there);
        }
        if second % 600 == 599 {
            let bytes: usize = tenants.iter().map(Tenant::bytes).sum();
            largest = largest.max(bytes);
            if second < DAY / 2 {
                largest_first_half = largest;
            }
            // The books are correct after a scan; later refaults are not known yet.
            for tenant in &mut tenants {
                tenant.walk(now, second);
                tenant.audit();
                tenant.settle(now, there);
            }
        }
    }
    // The end: all moved pages come back, and the remaining programs exit.
    let now = Time::ZERO + Duration::from_secs(HOUR + DAY) + leapt;
    for tenant in &mut tenants {
        tenant.come_and_go(now, DAY);
        assert!(tenant.programs.is_empty());
        assert_eq!((tenant.engine.pages().footprint_of_all(), tenant.engine.pages().spaces().count()), (0, 0));
        let ledger = tenant.engine.ledger();
        println!(
            "{:<9} {:>3} programs, {:>8} pages moved, {:>7} came back, {:>6} moves failed, {:>7} refused, {:>4} KiB of books",
            tenant.class.name,
            tenant.started,
            tenant.moved,
            tenant.refaults,
            tenant.failures,
            tenant.engine.governor().rejections().values().sum::<u64>(),
            tenant.bytes() >> 10
        );
        assert!(tenant.started > 10, "a day had programs");
        assert!(ledger.decisions().count() <= 8192 && ledger.failed().len() <= 8, "what is remembered is bounded");
        if tenant.class.name == "promised" {
            assert_eq!(ledger.demoted(), 0, "a promise is kept for a whole day");
        } else {
            assert!(ledger.demoted() > 1000, "{}: {} pages left", tenant.class.name, ledger.demoted());
            assert!(tenant.failures > 0, "the kernel refused some");
        }
        let most = RATE.pages() * DAY;
        assert!(ledger.demoted() + ledger.promoted() <= most, "the rate holds over a day");
    }
    assert!(largest <= 2 * largest_first_half, "books grew from {largest_first_half} to {largest} bytes");
}
