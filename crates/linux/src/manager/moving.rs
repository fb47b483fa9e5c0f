//! What moving costs the programs, as it happens: the manager's account of it, and of the processor time of watching.
//!
//! In: what a page-out, a move between nodes, or a split takes of a running thread (`move_cost.rs`), the processor time of each batch of moves and of watching, how busy the processors are and how
//! long the programs' threads waited for one. Out: the price of a page-out now, and the cost of all work so far. Must not: judge it; the
//! governor does.
//!
//! A move costs a program twice. Each thread of it that runs is interrupted to flush its TLB, and fills it again. And the mover uses a processor
//! that the program may have wanted, as the tracker does. It cannot have lost more by that than its threads waited for a processor (schedstat), nor more than
//! both used:
//!
//! ```text
//! taken = min(1, time the programs' threads waited / processor time of mover and tracker)
//! ```
//!
//! Where the kernel does not count waits, `taken` is 1 less the idle processors, counted without Terrace's own time, at least 0.

use std::path::Path;
use std::time::Duration;

use terrace_core::units::BLOCK_PAGES;

use crate::move_cost::{BlockPrice, MoveCost};
use crate::movers::MoveCounts;
use crate::processors::{self, ProcessorUse};
use crate::usage::{Who, usage};

/// What a page-out takes of a running thread where it could not be measured: the middle of what two machines of docs/sizing.md showed.
const ASSUMED_INTERRUPT: Duration = Duration::from_micros(10);
/// How many interrupts a whole block costs where that could not be measured: its collapse flushes twice, its page-out once, and the
/// program walks to its neighbours again (four to six on the machine of docs/block-moves.md).
const ASSUMED_BLOCK: u32 = 6;
/// A block is measured in milliseconds, in which the machine's neighbours may take far more of a thread than a block does: 0.8 and 2.3 ms in two
/// starts here, where it was charged a tenth of a millisecond in others, mover included. What is above this many times its interrupts is taken for that.
const NOISE: u32 = 2;
/// What a split takes of the mover, and making a block huge again, where that could not be measured: the middle of what a busy machine showed
/// (docs/inside-huge-pages.md).
const ASSUMED_SPLIT: Duration = Duration::from_micros(500);
const ASSUMED_COLLAPSE: Duration = Duration::from_millis(4);
/// How many interrupts a split costs where that could not be measured: one for the huge mapping, one for what it becomes.
const ASSUMED_RESIZE: u32 = 2;
/// Weight of the latest batch in the mover's time a page.
const LATEST: f64 = 0.1;
/// Readings without a move after which the surroundings are no longer read: four seconds of two readings each. A policy that moves
/// pages once a second is then never without an earlier reading to compare with.
const QUIET: u32 = 8;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct MovingAccount {
    /// What a page-out, or a move between nodes, takes of each thread that runs.
    interrupt: Duration,
    /// What a whole block takes of it.
    block: Duration,
    /// What a page of the latest batches took of it: the mean over their kinds, and over those that went alone.
    each: Duration,
    single: Duration,
    /// The mover's own time a page that goes out: the mean, for a page that goes alone, and for a whole block.
    fixed: Duration,
    alone: Duration,
    whole: Duration,
    /// What a split takes of each thread that runs, and making a block huge again; the mover's own time of a split, and of the other.
    resize: [Duration; 2],
    resizing: [Duration; 2],
    /// Share of the mover's time that was taken from somebody when it last worked.
    taken: f64,
    /// Since the last reading: the mover's time, and what the moves took of each thread that ran.
    mover: Duration,
    interrupts: Duration,
    before: Option<Reading>,
    /// Readings since anything was done.
    quiet: u32,
    total: Duration,
    watching: Duration,
}

/// Sums since boot, or since the processes began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    busy: Duration,
    own: Duration,
    waited: Option<Duration>,
}

/// What the last stretch of time showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moved {
    /// What the moves of that stretch cost the programs.
    pub(super) cost: Duration,
    /// What the tracker's processor time cost them.
    pub(super) watching: Duration,
    /// What a page-out costs now: the mean of the latest.
    pub(super) page_out: Duration,
    /// Share of the time of mover and tracker that the programs waited for, where either worked.
    pub(super) taken: Option<f64>,
    /// What one costs that goes alone, and what a whole block costs.
    pub(super) single_out: Duration,
    pub(super) block_out: Duration,
    /// What one more split costs, and one more block that is made huge again.
    pub(super) split: Duration,
    pub(super) collapse: Duration,
}

impl MovingAccount {
    /// With what moves were measured to cost; on a single processor nothing runs meanwhile.
    pub(super) fn new(costs: &MoveCost) -> MovingAccount {
        let mut account = MovingAccount {
            interrupt: Duration::ZERO,
            block: Duration::ZERO,
            each: Duration::ZERO,
            single: Duration::ZERO,
            fixed: Duration::ZERO,
            alone: costs.page_out_mover.unwrap_or_default(),
            whole: costs.block_out.map_or(Duration::ZERO, |price| price.mover * BLOCK_PAGES),
            resize: [Duration::ZERO; 2],
            resizing: resizing(costs),
            taken: 1.0,
            mover: Duration::ZERO,
            interrupts: Duration::ZERO,
            before: None,
            quiet: 0,
            total: Duration::ZERO,
            watching: Duration::ZERO,
        };
        account.set_prices(costs);
        (account.each, account.single) = (account.interrupt, account.interrupt);
        account
    }

    /// They were measured again.
    pub(super) fn set_prices(&mut self, costs: &MoveCost) {
        let others = crate::move_cost::others_can_be_interrupted();
        let assumed = if others { ASSUMED_INTERRUPT } else { Duration::ZERO };
        self.interrupt = costs.interrupt().map_or(assumed, |interval| interval.median);
        let block = costs.block_out.and_then(|price| price.program).map(|interval| interval.median);
        let interrupts = self.interrupt * ASSUMED_BLOCK;
        self.block = block.map_or(interrupts, |block| block.min(interrupts * NOISE));
        let inside = costs.inside.unwrap_or_default();
        let assumed = self.interrupt * ASSUMED_RESIZE;
        // No thread loses more by it than it takes; what is above is the machine's noise.
        self.resize = [inside.split, inside.collapse].map(|price| {
            let program = price.and_then(|price| Some(price.program?.median.min(price.mover * BLOCK_PAGES)));
            program.unwrap_or(assumed)
        });
    }

    /// The mover's time of splits was measured, for the first time.
    pub(super) fn set_prices_of_splits(&mut self, costs: &MoveCost) {
        self.resizing = resizing(costs);
    }

    /// A batch was carried out: the mover's processor time, pages whose move interrupts the programs, by kind, and pages that moved at all.
    pub(super) fn carried_out(&mut self, cpu: Duration, counts: &MoveCounts, moved: u64) {
        self.mover += cpu;
        let out = counts.pages();
        let blocks = (counts.huge + counts.collapsed) as f64 / f64::from(BLOCK_PAGES);
        // From the program's own processor nobody is interrupted; what the program waited there shows in `taken`.
        let single = self.interrupt.mul_f64(counts.single.saturating_sub(counts.local) as f64);
        let taken = single + self.block.mul_f64(blocks);
        let [split, collapse] = self.resize;
        self.interrupts += taken + split.mul_f64(counts.split as f64) + collapse.mul_f64(counts.huge_again as f64);
        match (counts.split, counts.huge_again) {
            (0, 0) => {}
            (splits, 0) => learn(&mut self.resizing[0], counts.resizing.as_secs_f64() / splits as f64),
            (0, collapses) => learn(&mut self.resizing[1], counts.resizing.as_secs_f64() / collapses as f64),
            _ => {}
        }
        let cpu = cpu.saturating_sub(counts.resizing);
        if counts.single > 0 {
            learn(&mut self.single, single.as_secs_f64() / counts.single as f64);
        }
        if out > 0 {
            learn(&mut self.each, taken.as_secs_f64() / out as f64);
        }
        if moved > 0 && out == moved {
            learn(&mut self.fixed, cpu.as_secs_f64() / out as f64);
            match (counts.single, blocks) {
                (single, 0.0) => learn(&mut self.alone, cpu.as_secs_f64() / single as f64),
                (0, blocks) => learn(&mut self.whole, cpu.as_secs_f64() / blocks),
                // Of a mixed batch nobody knows which part took how long.
                _ => {}
            }
        }
    }

    /// Reads the surroundings over the last `window`: `tracker` is the processor time of watching in it, `cores` are those that the programs ran on,
    /// `pids` the programs.
    pub(super) fn read(
        &mut self,
        root: &Path,
        window: Duration,
        tracker: Duration,
        cores: f64,
        pids: impl Iterator<Item = u32>,
    ) -> Moved {
        let (mover, interrupts) = (std::mem::take(&mut self.mover), std::mem::take(&mut self.interrupts));
        let work = mover + tracker;
        self.quiet = if work.is_zero() { self.quiet + 1 } else { 0 };
        if self.quiet >= QUIET || (work.is_zero() && self.before.is_none()) {
            // Nothing is done, so nothing needs to be known of the processors.
            self.before = None;
            return self.priced(Duration::ZERO, Duration::ZERO, None, cores);
        }
        let mine = usage(Who::Myself);
        let now = Reading {
            busy: ProcessorUse::read(root, &[]).map_or(Duration::ZERO, |reading| reading.busy),
            own: Duration::from_secs_f64(mine.user_seconds + mine.system_seconds),
            waited: pids.filter_map(|pid| processors::waited(root, pid)).reduce(|sum, one| sum + one),
        };
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Before a second reading the program is taken to wait for all of it.
        let known = self.before.replace(now).map_or(Some(1.0), |before| taken(&before, &now, window, work, processors));
        let taken = known.unwrap_or(0.0);
        if !mover.is_zero() {
            self.taken = taken;
        }
        let (cost, watching) = (mover.mul_f64(taken) + interrupts.mul_f64(cores), tracker.mul_f64(taken));
        self.total += cost;
        self.watching += watching;
        self.priced(cost, watching, known, cores)
    }

    fn priced(&self, cost: Duration, watching: Duration, taken: Option<f64>, cores: f64) -> Moved {
        let [page_out, single_out, block_out, split, collapse] = self.prices(cores);
        Moved { cost, watching, taken, page_out, single_out, block_out, split, collapse }
    }

    /// What these cost a program that runs on this number of cores: a page-out in the mean, of a page that goes alone, of a whole block; one more split of a
    /// block, and one that is made huge again.
    pub(super) fn prices(&self, cores: f64) -> [Duration; 5] {
        let single = self.alone.mul_f64(self.taken) + self.single.mul_f64(cores);
        let block = self.whole.mul_f64(self.taken) + self.block.mul_f64(cores);
        let [split, collapse] = [0, 1].map(|at| self.resizing[at].mul_f64(self.taken) + self.resize[at].mul_f64(cores));
        [self.page_out(cores), single, block, split, collapse]
    }

    fn page_out(&self, cores: f64) -> Duration {
        self.fixed.mul_f64(self.taken) + self.each.mul_f64(cores)
    }

    /// What all moves so far cost the programs.
    pub(super) fn total(&self) -> Duration {
        self.total
    }

    /// What the tracker's processor time has cost them.
    pub(super) fn watching(&self) -> Duration {
        self.watching
    }
}

/// The mover's time for a split, and for a block made huge again, as measured at the start.
fn resizing(costs: &MoveCost) -> [Duration; 2] {
    let inside = costs.inside.unwrap_or_default();
    let of = |price: Option<BlockPrice>, assumed| price.map_or(assumed, |price| price.mover * BLOCK_PAGES);
    [of(inside.split, ASSUMED_SPLIT), of(inside.collapse, ASSUMED_COLLAPSE)]
}

/// Moves what is known of a time towards the latest value.
fn learn(known: &mut Duration, seen: f64) {
    let before = known.as_secs_f64();
    *known = Duration::from_secs_f64(if known.is_zero() { seen } else { before + LATEST * (seen - before) });
}

/// Share of the time of mover and tracker that was taken from the programs; `None` if neither worked.
fn taken(before: &Reading, now: &Reading, window: Duration, work: Duration, processors: usize) -> Option<f64> {
    if work.is_zero() {
        return None;
    }
    if let (Some(before), Some(now)) = (before.waited, now.waited) {
        return Some((now.saturating_sub(before).as_secs_f64() / work.as_secs_f64()).min(1.0));
    }
    let others = now.busy.saturating_sub(before.busy).saturating_sub(now.own.saturating_sub(before.own));
    let idle = processors as f64 - others.as_secs_f64() / window.as_secs_f64().max(1e-3);
    Some((1.0 - idle).clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::move_cost::Interval;
    use crate::split_cost::InsidePrice;

    const MS: Duration = Duration::from_millis(1);

    /// 4 us of a running thread for a page, 20 us for a whole block.
    fn costs() -> MoveCost {
        let each = |micros| Some(Interval { median: Duration::from_micros(micros), ..Interval::default() });
        let block_out = Some(BlockPrice { mover: Duration::from_micros(2), program: each(20) });
        MoveCost { page_out: each(4), block_out, ..MoveCost::default() }
    }

    #[test]
    fn a_program_loses_no_more_to_the_mover_than_it_waited() {
        let before = Reading { waited: Some(MS * 7), ..Reading::default() };
        let check = |waited: u32, expect: f64| {
            // However busy the processors are.
            let now = Reading { busy: MS * 1000, own: MS * 100, waited: Some(MS * (7 + waited)) };
            let found = taken(&before, &now, MS * 500, MS * 100, 2).unwrap();
            assert!((found - expect).abs() < 1e-9, "{waited} ms waited: {found}");
        };
        check(0, 0.0);
        check(25, 0.25);
        check(100, 1.0);
        check(900, 1.0);
        assert_eq!(taken(&before, &before, MS * 500, Duration::ZERO, 2), None, "the mover did not work");
    }

    #[test]
    fn where_waits_are_not_counted_the_movers_time_counts_as_far_as_no_processor_is_idle() {
        let check = |others: u32, expect: f64| {
            let now = Reading { busy: MS * (others + 100), own: MS * 100, waited: None };
            let found = taken(&Reading::default(), &now, MS * 500, MS * 100, 2).unwrap();
            assert!((found - expect).abs() < 1e-9, "{others} ms of others: {found}");
        };
        check(0, 0.0);
        check(500, 0.0);
        check(750, 0.5);
        check(1000, 1.0);
    }

    #[test]
    fn a_page_out_costs_each_thread_that_runs_its_interrupt() {
        let mut account = MovingAccount::new(&costs());
        account.carried_out(MS * 10, &MoveCounts { single: 1000, ..MoveCounts::default() }, 1000);
        let root = tempfile::tempdir().unwrap();
        let moved = account.read(root.path(), MS * 500, Duration::ZERO, 2.0, std::iter::empty());
        // Without a second reading all of the mover's 10 us a page count.
        assert_eq!(moved.page_out, Duration::from_micros(18));
        assert_eq!(moved.cost, MS * 18);
        assert_eq!(account.total(), MS * 18);
        let idle = account.read(root.path(), MS * 500, Duration::ZERO, 0.0, std::iter::empty());
        assert_eq!(idle.cost, Duration::ZERO, "nothing moved since");
        assert_eq!(idle.page_out, Duration::from_micros(10), "and a program that sleeps is not interrupted");
    }

    #[test]
    fn a_block_costs_no_more_than_twice_its_interrupts() {
        let each = |micros| Some(Interval { median: Duration::from_micros(micros), ..Interval::default() });
        let block_out = Some(BlockPrice { mover: Duration::ZERO, program: each(2300) });
        let account = MovingAccount::new(&MoveCost { page_out: each(4), block_out, ..MoveCost::default() });
        assert_eq!(account.block, Duration::from_micros(2 * 6 * 4));
    }

    #[test]
    fn the_tracker_costs_what_the_program_waited_for_it_and_no_page_out_is_dearer_for_that() {
        let mut account = MovingAccount::new(&costs());
        let root = tempfile::tempdir().unwrap();
        let first = account.read(root.path(), MS * 500, MS * 3, 1.0, std::iter::empty());
        assert_eq!((first.watching, first.cost), (MS * 3, Duration::ZERO), "nothing is known yet");
        // Of two processors one was idle.
        account.taken = 0.0;
        let second = account.read(root.path(), MS * 500, MS * 3, 1.0, std::iter::empty());
        assert_eq!((second.watching, account.taken), (Duration::ZERO, 0.0));
        assert_eq!(account.watching(), MS * 3);
    }

    #[test]
    fn a_split_costs_what_it_was_measured_to_and_no_page_out_is_dearer_for_that() {
        let each = |micros| Some(Interval { median: Duration::from_micros(micros), ..Interval::default() });
        let of = |mover, program| Some(BlockPrice { mover: Duration::from_micros(mover), program: each(program) });
        // A second of loss by a split of half a millisecond is the machine's noise.
        let inside = InsidePrice { split: of(1, 30), collapse: of(4, 1_000_000), ..InsidePrice::default() };
        let mut account = MovingAccount::new(&MoveCost { inside: Some(inside), ..costs() });
        assert_eq!(account.resize, [Duration::from_micros(30), Duration::from_micros(4 * 512)]);
        let counts = MoveCounts { split: 10, single: 100, resizing: MS * 6, ..MoveCounts::default() };
        account.carried_out(MS * 7, &counts, 100);
        let root = tempfile::tempdir().unwrap();
        let moved = account.read(root.path(), MS * 500, Duration::ZERO, 1.0, std::iter::empty());
        assert_eq!(moved.cost.as_micros(), 7000 + 100 * 4 + 10 * 30);
        assert_eq!(moved.single_out, Duration::from_micros(10 + 4), "a millisecond for a hundred pages");
        let [learned, _] = account.resizing;
        assert!(learned > Duration::from_micros(512) && learned < Duration::from_micros(600), "{learned:?}");
        assert_eq!(moved.split, learned + Duration::from_micros(30));
        // Nothing was measured: half a millisecond, and two interrupts.
        let account = MovingAccount::new(&costs());
        assert_eq!((account.resizing[0], account.resize[0]), (ASSUMED_SPLIT, Duration::from_micros(8)));
    }

    #[test]
    fn a_whole_block_costs_what_it_was_measured_to_and_not_512_pages() {
        let mut account = MovingAccount::new(&costs());
        let counts = MoveCounts { single: 100, huge: 512, collapsed: 512, ..MoveCounts::default() };
        account.carried_out(Duration::ZERO, &counts, 1124);
        account.carried_out(Duration::from_nanos(1), &MoveCounts::default(), 0);
        let root = tempfile::tempdir().unwrap();
        let moved = account.read(root.path(), MS * 500, Duration::ZERO, 1.0, std::iter::empty());
        assert_eq!(moved.cost.as_micros(), 100 * 4 + 2 * 20);
        assert!(moved.page_out < Duration::from_micros(4), "{:?}: a page of a block is cheaper", moved.page_out);
    }
}
