//! Looking inside, driven by the engine: a small program of huge blocks under `age`, with prices of swap.

use super::*;
use terrace_core::engine::{Engine, EngineConfig, Input, Output};
use terrace_core::governor::{GovernorConfig, Pressure};
use terrace_core::observation::{Observations, PteState};
use terrace_core::plan::Move;
use terrace_core::policy::{FastGoal, ScanReport};

const SPACE: SpaceId = SpaceId(0);
const SLOW: TierId = TierId(1);
const PAGES: u64 = BLOCK_PAGES as u64;

/// A program of huge blocks, all of which are read each second.
struct Program {
    engine: Engine,
    blocks: u64,
    huge: Vec<bool>,
    place: Vec<TierId>,
    /// What the driver answers to a split of this block.
    refusal: fn(u64) -> Option<Failure>,
    /// Whether what its pages hold compresses; else none leaves.
    compresses: bool,
    second: u64,
    /// Splits carried out or refused, by block, in order.
    asked: Vec<u64>,
    split_cost: Duration,
}

impl Program {
    fn new(blocks: u64, settings: &[(&str, &str)]) -> Program {
        let policy = crate::build("age", Settings::from_pairs(settings.iter().copied())).unwrap();
        let config = EngineConfig {
            tiers: vec![1 << 22, 1 << 22],
            goal: FastGoal::Least,
            governor: GovernorConfig { swap: Some(SLOW), ..GovernorConfig::default() },
        };
        let mut engine = Engine::new(config, policy);
        engine.handle(at(0), Input::Mapped(SPACE, Vpn(0)..Vpn(blocks * PAGES)));
        Program {
            engine,
            blocks,
            huge: vec![true; blocks as usize],
            place: vec![TierId::FAST; (blocks * PAGES) as usize],
            refusal: |_| None,
            compresses: true,
            second: 0,
            asked: Vec::new(),
            split_cost: Duration::from_micros(250),
        }
    }

    /// Runs for so long; `used(page, second)` says what the program uses in each second.
    fn run(&mut self, seconds: u64, used: impl Fn(u64, u64) -> bool) {
        for _ in 0..seconds {
            self.second += 1;
            let now = at(self.second);
            for vpn in 0..self.blocks * PAGES {
                if used(vpn, self.second) {
                    self.place[vpn as usize] = TierId::FAST;
                }
            }
            let pressure = Pressure {
                window: Duration::from_secs(1),
                single_out_cost: Duration::from_micros(8),
                block_out_cost: Duration::from_micros(50),
                split_cost: self.split_cost,
                cores: 1.0,
                ..Pressure::default()
            };
            self.engine.handle(now, Input::Pressure(pressure));
            for block in 0..self.blocks {
                self.scan(now, block, &used);
            }
            let report = ScanReport { pages: 1000, accessed: 200, walk: Duration::from_millis(1), share: 1.0 };
            self.engine.handle(now, Input::ScanDone(report));
            while let Output::Move(plan) = match self.engine.poll(now) {
                Output::Track(_) => self.engine.poll(now),
                other => other,
            } {
                let outcomes: Vec<Outcome> = plan.moves.iter().map(|item| self.carry_out(item)).collect();
                self.engine.handle(now, Input::Moved(&outcomes));
            }
        }
    }

    fn scan(&mut self, now: Time, block: u64, used: impl Fn(u64, u64) -> bool) {
        let first = self.engine.pages().find(SPACE, Vpn(block * PAGES)).unwrap();
        let range = block * PAGES..(block + 1) * PAGES;
        let huge = self.huge[block as usize];
        let any = range.clone().any(|vpn| used(vpn, self.second));
        let pte = |vpn: u64| {
            let tier = self.place[vpn as usize];
            let accessed = if huge { any } else { tier == TierId::FAST && used(vpn, self.second) };
            PteState::placed(tier).with_accessed(accessed).with_huge(huge)
        };
        let ptes: Vec<PteState> = range.map(pte).collect();
        let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
        self.engine.handle(now, Input::Observed(Observations::Scan(scan)));
    }

    fn carry_out(&mut self, item: &Move) -> Outcome {
        let (_, vpn) = self.engine.pages().locate(item.page);
        let failure = match item.action {
            Action::Split => {
                let block = vpn.0 / PAGES;
                self.asked.push(block);
                let failure = (self.refusal)(block);
                self.huge[block as usize] &= failure.is_some();
                failure
            }
            Action::Collapse => panic!("nothing is collapsed: {item:?}"),
            Action::MoveTo(_) if !self.compresses => Some(Failure::Incompressible),
            Action::MoveTo(to) => {
                (vpn.0..vpn.0 + u64::from(item.pages)).for_each(|vpn| self.place[vpn as usize] = to);
                None
            }
        };
        Outcome { item: *item, done: if failure.is_none() { item.pages } else { 0 }, failure }
    }

    fn split_now(&self) -> usize {
        self.huge.iter().filter(|huge| !**huge).count()
    }

    fn out(&self) -> u64 {
        self.engine.pages().used(SPACE, SLOW)
    }

    fn metric(&self, name: &str) -> f64 {
        let metrics = self.engine.policy_metrics();
        metrics.iter().find(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}")).value
    }
}

fn at(second: u64) -> Time {
    Time::ZERO + Duration::from_secs(1000 + second)
}

fn scattered(vpn: u64, _: u64) -> bool {
    vpn.is_multiple_of(16)
}

#[test]
fn where_what_is_cold_does_not_compress_no_more_is_split() {
    let mut program = Program::new(200, &[]);
    program.compresses = false;
    program.run(150, scattered);
    assert_eq!(program.out(), 0);
    assert!((1..=4).contains(&program.split_now()), "{} of 200", program.split_now());
}

#[test]
fn a_few_are_split_first_and_then_all_whose_pieces_are_cold() {
    let mut program = Program::new(64, &[]);
    program.run(12, scattered);
    assert_eq!(program.split_now(), UNPAID, "one in a hundred, two at least");
    program.run(80, scattered);
    assert_eq!(program.split_now(), 64);
    assert_eq!(program.metric("inside_blocks_sparse"), 64.0);
    let (low, high) = (program.metric("inside_used_share_low"), program.metric("inside_used_share_high"));
    assert!((low - 0.0625).abs() < 1e-9 && (high - 0.0625).abs() < 1e-9, "all were read: {low} to {high}");
    program.run(60, scattered);
    let cold = 64 * PAGES * 15 / 16;
    assert!(program.out() > cold * 9 / 10, "{} of {cold}", program.out());
    assert_eq!(program.engine.ledger().looks(), 64);
    assert_eq!(program.engine.pages().split_blocks(), 64);
    assert_eq!(program.metric("inside_pages_left"), program.out() as f64);
}

#[test]
fn evenly_used_memory_rests_ever_longer_and_is_read_again_without_another_split() {
    let mut program = Program::new(64, &[]);
    let even = |_: u64, _: u64| true;
    program.run(600, even);
    assert_eq!((program.split_now(), program.out()), (UNPAID, 0));
    assert_eq!(program.metric("inside_blocks_even"), UNPAID as f64);
    // It becomes scattered: the blocks split before show it, at the latest when the rest is over.
    program.run(900, scattered);
    assert_eq!(program.split_now(), 64);
}

#[test]
fn blocks_that_are_dense_where_others_are_sparse_stay_whole() {
    // The first 64 MiB are used all over.
    let half = |vpn: u64, _: u64| vpn < 32 * PAGES || vpn.is_multiple_of(16);
    let mut program = Program::new(512, &[]);
    program.run(200, half);
    let split = |blocks: Range<usize>| program.huge[blocks].iter().filter(|huge| !**huge).count();
    assert_eq!(split(32..512), 480);
    assert!((1..=4).contains(&split(0..32)), "{} of the dense 64 MiB", split(0..32));
    assert_eq!(program.metric("inside_blocks_even") as usize, split(0..32));
}

#[test]
fn what_must_stay_whole_is_asked_for_once_and_a_kernel_that_cannot_is_left_alone_for_a_minute() {
    let mut program = Program::new(64, &[]);
    program.refusal = |block| (block % 2 == 0).then_some(Failure::Whole);
    program.run(200, scattered);
    let mut asked = program.asked.clone();
    asked.sort_unstable();
    let times = asked.len();
    asked.dedup();
    assert_eq!(times, asked.len(), "each once: {:?}", program.asked);
    assert_eq!(program.split_now(), 32);
    assert!(program.engine.ledger().splits_refused()[&Failure::Whole] > 0);
    let mut unable = Program::new(64, &[]);
    unable.refusal = |_| Some(Failure::Errno(95));
    unable.run(200, scattered);
    assert!((2..=8).contains(&unable.asked.len()), "{:?}", unable.asked);
    // Whole they may move all the same.
    unable.run(60, |_, _| false);
    assert!(unable.out() > 0);
}

#[test]
fn off_asks_for_nothing_and_look_for_no_more_than_a_few() {
    let mut off = Program::new(64, &[("inside", "off")]);
    off.run(120, scattered);
    assert!(off.asked.is_empty() && off.engine.policy_metrics().iter().all(|one| !one.name.starts_with("inside")));
    let mut look = Program::new(1024, &[("inside", "look")]);
    look.run(120, scattered);
    assert!((4..=10).contains(&look.split_now()), "{}", look.split_now());
    assert!((look.metric("inside_used_share") - 0.0625).abs() < 1e-9);
    assert!((0.0625..0.3).contains(&look.metric("inside_used_share_high")));
}

#[test]
fn a_split_that_costs_more_than_its_pages_is_not_asked_for_a_second_time() {
    let mut program = Program::new(64, &[]);
    program.split_cost = Duration::from_millis(15);
    program.run(300, scattered);
    assert!(program.split_now() <= UNPAID, "{}", program.split_now());
}

#[test]
fn who_makes_a_block_huge_again_or_takes_it_away_is_noticed() {
    let mut program = Program::new(64, &[]);
    program.run(30, |_, _| true);
    assert_eq!(program.split_now(), UNPAID);
    program.huge.fill(true);
    program.run(1, |_, _| true);
    assert_eq!((program.metric("inside_blocks_split_now"), program.engine.pages().split_blocks()), (0.0, 0));
    let now = at(program.second);
    program.engine.handle(now, Input::Exited(SPACE));
    assert_eq!(program.engine.pages().split_blocks(), 0);
}
