//! The budget in virtual time: programs that are all hot, that are partly cold, and that change.

use super::*;

const PRICES: WatchPrices = WatchPrices { read_ns: 1.0, clear_ns: 100.0, touch_ns: 200.0, touch_huge_ns: 200.0 };
const STEP: Duration = Duration::from_millis(50);

/// A program of this many blocks and cores, and a policy that asks for a quarter of the blocks four times a second and moves pages that
/// were idle for 12 s and at two readings.
struct World {
    budget: WatchBudget,
    now: Time,
    cores: f64,
    blocks: Vec<Block>,
    scanned_at: Time,
    turn_from: f64,
    moved: u64,
    can_move: bool,
    /// CPU time of the program, and the cost of tracking in it.
    cpu: f64,
}

#[derive(Clone, Copy)]
struct Block {
    /// Pages in use all the time; the others are idle since `idle_since`.
    hot: u64,
    idle_since: Time,
    readings: u32,
    left: u64,
}

impl World {
    fn new(blocks: u64, hot: u64, cores: f64, max_overhead: f64) -> World {
        let now = Time::ZERO + Duration::from_secs(3600);
        let mut budget = WatchBudget::new(max_overhead);
        budget.set_prices(PRICES);
        let block = Block { hot, idle_since: now, readings: 0, left: 512 };
        let blocks = vec![block; blocks as usize];
        let turn_from = 0.0;
        World { budget, now, cores, blocks, scanned_at: now, turn_from, moved: 0, can_move: true, cpu: 0.0 }
    }

    fn run(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.now = self.now + STEP;
            self.cpu += self.cores * STEP.as_secs_f64();
            self.budget.on_program(STEP, STEP.mul_f64(self.cores));
            let wanted = Cadence {
                scan_at: Some(self.scanned_at + Duration::from_millis(250)),
                share: 0.25,
                ..Cadence::default()
            };
            let grant = self.budget.grant(&wanted);
            assert!(grant.share <= wanted.share && grant.within <= 1.0, "no more than was asked for: {grant:?}");
            if grant.scan_at.unwrap() <= self.now {
                self.scan(&grant);
            }
            let footprint = self.blocks.len() as u64 * 512;
            self.budget.on_result(self.now, self.moved, footprint, self.can_move);
        }
    }

    fn scan(&mut self, grant: &Grant) {
        self.scanned_at = self.now;
        let count = self.blocks.len() as f64;
        let mut bill = ScanBill { read: self.blocks.len() as u64 * 512, share: grant.share, ..ScanBill::default() };
        let within = (count * grant.within).ceil();
        let turns = (count * grant.share).round().max(1.0);
        for offset in 0..turns as u64 {
            let at = ((self.turn_from + offset as f64) % within) as usize;
            let block = &mut self.blocks[at];
            block.readings += 1;
            bill.in_turn += 512;
            // At the first reading every page has been used.
            bill.cleared += if block.hot > 0 || block.readings == 1 { 512 } else { 0 };
            bill.touched += block.hot;
            let idle = self.now.since(block.idle_since) >= Duration::from_secs(12);
            if idle && block.readings >= 2 && block.left > block.hot {
                self.moved += block.left - block.hot;
                block.left = block.hot;
            }
        }
        self.turn_from = (self.turn_from + turns) % within;
        bill.own =
            Duration::from_nanos((bill.read as f64 * PRICES.read_ns + bill.cleared as f64 * PRICES.clear_ns) as u64);
        self.budget.on_scan(self.now, &bill);
    }

    /// The program goes idle except for this many pages per block.
    fn cool(&mut self, hot: u64) {
        for block in &mut self.blocks {
            *block = Block { hot, idle_since: self.now, readings: 0, left: 512 };
        }
    }

    /// The cost of tracking in the seconds that `work` runs, as a share of the program's processor time.
    fn overhead(&mut self, work: impl FnOnce(&mut World)) -> f64 {
        let (before, cpu) = (self.budget.cost(), self.cpu);
        work(self);
        let after = self.budget.cost();
        let spent = (after.own + after.program).saturating_sub(before.own + before.program);
        spent.as_secs_f64() / (self.cpu - cpu)
    }
}

#[test]
fn watching_stays_within_the_budget_whatever_the_size_and_the_cores() {
    for (blocks, cores, max) in
        [(280, 1.0, 0.01), (280, 2.0, 0.01), (8192, 1.0, 0.01), (320, 1.0, 0.001), (4, 1.0, 0.05)]
    {
        let mut world = World::new(blocks, 512, cores, max);
        world.can_move = false;
        let overhead = world.overhead(|world| world.run(300));
        assert_eq!(world.budget.step(), 0, "who only looks is not backed off from");
        // Only the pause before the first scan and one scan's cost may exceed the share.
        assert!(overhead <= max * 1.03, "{blocks} blocks on {cores} cores: {overhead:.5} of {max}");
        assert!(blocks < 100 || overhead > max * 0.8, "and the budget is used: {overhead:.5} of {max}");
    }
}

#[test]
fn what_nobody_waits_for_counts_an_eighth() {
    let spent = |taken: f64| {
        let mut world = World::new(8192, 512, 1.0, 0.01);
        world.can_move = false;
        (0..100).for_each(|_| world.budget.on_taken(taken));
        world.run(300);
        let cost = world.budget.cost();
        (cost.own.as_secs_f64() / world.cpu, cost.program.as_secs_f64() / world.cpu)
    };
    let (own, program) = spent(0.0);
    let counted = own / 8.0 + program;
    assert!((0.008..0.0103).contains(&counted), "{own:.5} own, {program:.5} of the program's: {counted:.5}");
    let (own_of_busy, program_of_busy) = spent(1.0);
    assert!((0.008..0.0103).contains(&(own_of_busy + program_of_busy)), "{own_of_busy:.5}, {program_of_busy:.5}");
    assert!(own > 1.1 * own_of_busy && program > 1.1 * program_of_busy, "an idle processor lets more be watched");
}

#[test]
fn a_program_of_which_all_is_hot_ends_up_nearly_unwatched() {
    let mut world = World::new(320, 512, 1.0, DEFAULT_MAX_OVERHEAD);
    world.run(240);
    assert_eq!(world.budget.step(), LAST_STEP);
    let overhead = world.overhead(|world| world.run(120));
    assert!(overhead < 0.0005, "{overhead}");
}

#[test]
fn a_program_with_cold_memory_is_found_within_its_time() {
    // 2 GiB, a quarter of each block hot: each page must be read twice and be idle for 12 s.
    let mut world = World::new(1024, 128, 1.0, DEFAULT_MAX_OVERHEAD);
    world.run(45);
    assert_eq!(world.moved, 1024 * 384);
}

#[test]
fn a_change_is_noticed_from_the_blocks_that_are_still_watched() {
    let mut world = World::new(320, 512, 1.0, DEFAULT_MAX_OVERHEAD);
    world.run(240);
    assert_eq!(world.budget.step(), LAST_STEP);
    world.cool(256);
    world.run(30);
    assert_eq!(world.budget.step(), 0, "the whole budget is back");
    world.run(45);
    assert_eq!(world.moved, 320 * 256);
}

#[test]
fn memory_that_grows_and_a_new_goal_bring_the_budget_back() {
    let mut world = World::new(320, 512, 1.0, DEFAULT_MAX_OVERHEAD);
    world.run(240);
    let block = world.blocks[0];
    world.blocks.extend([block; 64]);
    world.run(1);
    assert_eq!(world.budget.step(), 0);
    world.run(240);
    assert_eq!(world.budget.step(), LAST_STEP);
    world.budget.restore();
    assert_eq!(world.budget.step(), 0);
}

#[test]
fn what_cannot_be_moved_is_not_watched_either() {
    // Three quarters are cold, and nothing ever moves: the device is full, or page-outs are throttled.
    let mut world = World::new(320, 128, 1.0, DEFAULT_MAX_OVERHEAD);
    for block in &mut world.blocks {
        block.left = 0;
    }
    world.run(240);
    assert_eq!((world.moved, world.budget.step()), (0, LAST_STEP));
}

#[test]
fn a_program_that_sleeps_is_looked_at_on_time_that_nobody_wants() {
    let mut world = World::new(2048, 0, 0.0, DEFAULT_MAX_OVERHEAD);
    world.run(60);
    assert_eq!(world.moved, 2048 * 512, "4 GiB at rest are found cold within a minute");
    let own = world.budget.cost().own.as_secs_f64() / 60.0;
    assert!(own < 0.005, "{own} of a core");
}

#[test]
fn a_debt_of_busy_times_does_not_blind_a_program_that_falls_asleep() {
    let mut world = World::new(320, 512, 2.0, DEFAULT_MAX_OVERHEAD);
    world.run(10);
    world.cores = 0.0;
    world.cool(0);
    world.run(60);
    assert_eq!(world.moved, 320 * 512);
}

#[test]
fn a_scan_that_costs_more_than_forecast_makes_the_next_one_later() {
    let mut budget = WatchBudget::new(0.01);
    budget.set_prices(PRICES);
    let now = Time::ZERO + Duration::from_secs(3600);
    let wanted = Cadence { scan_at: Some(now), share: 1.0, ..Cadence::default() };
    // 1 ms of own time and 5,000 touches of 200 ns are 2 ms: at 10 ms per second 0.2 s, out of the 4 s saved up.
    let bill = ScanBill {
        read: 51_200,
        in_turn: 5120,
        cleared: 5120,
        touched: 5000,
        own: Duration::from_millis(1),
        share: 0.1,
        touched_huge: 0,
    };
    for _ in 0..21 {
        budget.on_scan(now, &bill);
    }
    let at = budget.grant(&wanted).scan_at.unwrap();
    assert_eq!(at.since(now).as_millis(), 200);
    assert_eq!(budget.grant(&Cadence::default()).scan_at, None, "who wants no scan gets none");
    // 100 blocks at 512 * (100 + 195) ns each: 4 s at 1 % pay for more than all of them.
    assert_eq!(budget.grant(&wanted).share, 1.0);
    budget.set_max_overhead(0.001);
    let share = budget.grant(&wanted).share;
    assert!((0.2..0.35).contains(&share), "4 ms pay for about a quarter: {share}");
}
