//! The pace of page-outs: what the program can afford, and a probe before the plunge.
//!
//! In: the cost of what was done so far and the prices of page-outs, with each [`Pressure`]. Out: whether another page-out is affordable, and how
//! many pages may leave until more is known of them. Must not: rank pages, or read a clock.
//!
//! **The budget.** A program earns `max_slowdown` of its time. Watching, moves and refaults spend it. Page-outs wait while nothing is left, so over
//! any longer time the sum stays within the bound; at most ten seconds' worth is saved up, for cold memory that appears at once. Who wants
//! the memory sooner may invest more at the start, until no page-out has waited for ten seconds; pages that come back never may cost more.
//!
//! **The probe.** What becomes of a kind of pages after they were idle is unknown until some have left and not come back. First as much leaves as
//! may all come back for half of what can be saved up, or a sixty-fourth of the program's memory where that is more, spread over the blocks of
//! what is cold. Twice as much leaves in each period only while what came back in the last one cost no more than half of what the bound affords. The period is a sixteenth of the time that the program has been managed, so that all
//! lots together take a part of it that is small, and at most four seconds.

use std::time::Duration;

use super::Pressure;
use crate::plan::{Action, MoveRequest, Reason};
use crate::units::{BLOCK_PAGES, TierId};

/// The program's time whose share may be saved up.
const SAVED_UP: Duration = Duration::from_secs(10);
/// The most that may be owed, as the program's time in which it is earned: a mistake must not stop everything for longer.
const OWED: Duration = Duration::from_secs(30);
/// The move at the start is over when for so long no page-out waited.
const OVER: Duration = Duration::from_secs(10);
/// Part of the program's memory that leaves first.
const FIRST: u64 = 64;
/// A period is this part of the time that the program has been managed, within bounds.
const PART: u32 = 16;
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(4);

/// What the last period's cost was, by its cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spent {
    refaults: f64,
    moves: f64,
    watching: f64,
}

/// Why nothing is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Short {
    /// Pages that came back cost most of it.
    Refaults,
    /// Page-outs cost most of it.
    Moves,
    /// Watching costs most of it.
    Watching,
}

/// See the module's header. All times are of the program, in seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// What is left of the budget, and what of it is promised to moves that are not accounted yet.
    left: f64,
    promised: f64,
    /// What a page that leaves alone costs, and a whole block; 0 while unknown, which makes page-outs free.
    single: f64,
    block: f64,
    /// What a split of a huge page costs, and a collapse into one; 0 while unknown.
    remaps: [f64; 2],
    /// Pages that may all come back for half of what can be saved up.
    first_probe: u64,
    /// Costs, fading over ten seconds, by which the cause of a shortage is named.
    spent: Spent,
    waited: bool,
    /// What the move at the start may cost instead of the bound, and how long no page-out has waited since the first; `None` when it is over.
    invest: Option<(f64, Duration)>,
    moved: bool,
    probe: Option<Probe>,
}

/// How many pages may leave in this period.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    managed: Duration,
    elapsed: Duration,
    limit: u64,
    sent: u64,
    returned: f64,
    /// Whether requests were left out for it in this period.
    thinned: bool,
}

impl Pace {
    /// With nothing earned yet, a probe or none, and what the move at the start may cost, as a share of the program's time.
    pub(super) fn new(probe: bool, invest: Option<f64>) -> Pace {
        let invest = invest.map(|share| (share, Duration::ZERO));
        Pace { probe: probe.then(Probe::default), invest, ..Pace::default() }
    }

    /// Whether the move at the start is under way, and may cost more than the bound.
    pub(super) fn invests(&self) -> bool {
        self.invest.is_some() && self.moved
    }

    /// Enters what the last stretch of time cost. Returns whether pages that the probe left out may leave now.
    pub(super) fn on_pressure(&mut self, pressure: &Pressure, refault_cost: Duration, max_slowdown: f64) -> bool {
        let seconds = pressure.window.as_secs_f64();
        let earning = max_slowdown * pressure.cores.max(1.0);
        let cost = Spent {
            refaults: pressure.refaults as f64 * refault_cost.as_secs_f64(),
            moves: (pressure.moving + pressure.translating).as_secs_f64(),
            watching: pressure.watching.as_secs_f64(),
        };
        (self.single, self.block) = (pressure.single_out_cost.as_secs_f64(), pressure.block_out_cost.as_secs_f64());
        self.remaps = [pressure.split_cost, pressure.collapse_cost].map(|cost| cost.as_secs_f64());
        let there_and_back = self.single + refault_cost.as_secs_f64();
        self.first_probe = (earning * SAVED_UP.as_secs_f64() / 2.0 / there_and_back) as u64;
        if let Some((_, calm)) = &mut self.invest {
            *calm = if self.waited || !self.moved { Duration::ZERO } else { *calm + pressure.window };
        }
        self.invest = self.invest.filter(|(_, calm)| *calm < OVER);
        let share = self.invest.map_or(max_slowdown, |(share, _)| share.max(max_slowdown));
        let earned_in = |seconds: f64| share * pressure.cores.max(1.0) * seconds;
        let earned = earned_in(seconds);
        let left = self.left + earned - cost.refaults - cost.moves - cost.watching;
        // What was earned while more processors ran the program is not taken away.
        let most =
            (earning * SAVED_UP.as_secs_f64()).max(self.left).max(earned_in(seconds.min(SAVED_UP.as_secs_f64())));
        self.left = left.clamp(-earning * OWED.as_secs_f64(), most);
        self.promised = 0.0;
        self.waited = false;
        let keep = (-seconds / SAVED_UP.as_secs_f64()).exp();
        self.spent = Spent {
            refaults: self.spent.refaults * keep + cost.refaults,
            moves: self.spent.moves * keep + cost.moves,
            watching: self.spent.watching * keep + cost.watching,
        };
        let wasted = pressure.refaults as f64 * pressure.page_out_cost.as_secs_f64();
        let probe = self.probe.as_mut();
        probe.is_some_and(|probe| probe.on_pressure(pressure.window, cost.refaults + wasted, there_and_back, earning))
    }

    /// What a page costs that leaves alone, and one of a whole block, in seconds.
    pub(super) fn prices(&self) -> [f64; 2] {
        [self.single, self.block / f64::from(BLOCK_PAGES)]
    }

    /// What a split costs, and a collapse, in seconds.
    pub(super) fn prices_of_remaps(&self) -> [f64; 2] {
        self.remaps
    }

    /// A block is split, or collapsed.
    pub(super) fn promise_remap(&mut self, action: Action) {
        let [split, collapse] = self.remaps;
        self.promised += if action == Action::Split { split } else { collapse };
    }

    /// Whether nobody said what page-outs cost: then they are not paced.
    fn is_free(&self) -> bool {
        self.single <= 0.0 && self.block <= 0.0
    }

    /// Whether another page-out can be paid for.
    pub(super) fn affords(&mut self) -> bool {
        let affords = self.is_free() || self.left > self.promised;
        self.waited |= !affords;
        affords
    }

    /// A page-out was granted: a page, or a huge page, alone or as part of a whole block.
    pub(super) fn promise(&mut self, pages: u64, whole: bool) {
        let block = f64::from(BLOCK_PAGES);
        let each = if whole || pages > 1 { self.block / block } else { self.single };
        self.promised += each * pages as f64;
        self.moved = true;
        if let Some(probe) = &mut self.probe {
            probe.sent += pages;
        }
    }

    /// Why page-outs waited for the budget since the last pressure, if they did.
    pub(super) fn short(&self) -> Option<Short> {
        let Spent { refaults, moves, watching } = self.spent;
        let cause = match () {
            () if refaults >= moves && refaults >= watching => Short::Refaults,
            () if moves >= watching => Short::Moves,
            () => Short::Watching,
        };
        self.waited.then_some(cause)
    }

    /// Leaves of the requests for cold pages as many as the probe allows, spread over their blocks. `footprint` is the program's memory in
    /// pages, and `size` says how many pages a request stands for.
    pub(super) fn thin(
        &mut self,
        requests: Vec<MoveRequest>,
        footprint: u64,
        size: impl Fn(&MoveRequest) -> u64,
    ) -> Vec<MoveRequest> {
        if self.is_free() {
            return requests;
        }
        let Some(probe) = &mut self.probe else { return requests };
        let is_cold = |request: &MoveRequest| {
            let down = matches!(request.action, Action::MoveTo(tier) if tier > TierId::FAST);
            down && request.reason == Reason::Cold && request.instead_of.is_none()
        };
        let cold: u64 = requests.iter().filter(|request| is_cold(request)).map(&size).sum();
        if cold == 0 {
            return requests;
        }
        if probe.limit == 0 {
            probe.limit = (footprint / FIRST).max(self.first_probe).max(u64::from(BLOCK_PAGES));
        }
        let allowed = probe.limit.saturating_sub(probe.sent);
        if cold <= allowed {
            return requests;
        }
        probe.thinned = true;
        let mut kept = Vec::new();
        let (mut passed, mut left) = (0_u64, allowed);
        for group in
            requests.chunk_by(|one, next| one.page.block() == next.page.block() && is_cold(one) == is_cold(next))
        {
            if !is_cold(&group[0]) {
                kept.extend_from_slice(group);
                continue;
            }
            // The group is kept in which the running sum passes the next multiple of the stride: evenly spread, whatever sizes blocks have.
            let pages: u64 = group.iter().map(&size).sum();
            let due = |sum: u64| u128::from(sum) * u128::from(allowed) / u128::from(cold) / u128::from(BLOCK_PAGES);
            let its_turn = passed == 0 || due(passed + pages) > due(passed);
            passed += pages;
            if its_turn && left > 0 {
                left = left.saturating_sub(pages);
                kept.extend_from_slice(group);
            }
        }
        kept
    }
}

impl Probe {
    /// `returned` is what pages that came back cost since the last time, `there_and_back` what a page costs that does.
    fn on_pressure(&mut self, window: Duration, returned: f64, there_and_back: f64, earning: f64) -> bool {
        self.managed += window;
        self.elapsed += window;
        self.returned += returned;
        let period = (self.managed / PART).clamp(SHORTEST, LONGEST);
        if self.elapsed < period {
            return false;
        }
        let affordable = earning * self.elapsed.as_secs_f64() / 2.0;
        if self.returned > affordable {
            // As much as may all come back again in a period is no risk, and a block must fit in.
            let safe = (affordable / there_and_back) as u64;
            self.limit = (self.limit / 4).max(safe.max(u64::from(BLOCK_PAGES)).min(self.limit));
        } else if self.sent >= self.limit / 2 {
            self.limit = self.limit.saturating_mul(2);
        }
        (self.elapsed, self.sent, self.returned) = (Duration::ZERO, 0, 0.0);
        std::mem::take(&mut self.thinned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageId;

    const SECOND: Duration = Duration::from_secs(1);
    /// A bound so tight that not even a block may come back unnoticed.
    const TIGHT: f64 = 0.001;

    fn cold(pages: impl IntoIterator<Item = u32>) -> Vec<MoveRequest> {
        let request = |page| MoveRequest::new(PageId(page), Action::MoveTo(TierId(1)), Reason::Cold);
        pages.into_iter().map(request).collect()
    }

    fn priced() -> Pressure {
        Pressure {
            window: SECOND,
            single_out_cost: Duration::from_micros(10),
            block_out_cost: Duration::from_micros(50),
            ..Pressure::default()
        }
    }

    #[test]
    fn page_outs_cost_no_more_than_the_bound_over_any_half_minute() {
        let mut pace = Pace::new(false, None);
        let mut spent = Vec::new();
        let mut moving = Duration::ZERO;
        for _ in 0..120 {
            pace.on_pressure(&Pressure { moving, ..priced() }, Duration::from_micros(5), 0.02);
            let mut pages = 0;
            while pace.affords() {
                pace.promise(1, false);
                pages += 1;
            }
            moving = Duration::from_micros(10) * pages;
            spent.push(moving.as_secs_f64());
        }
        for window in spent.windows(30) {
            let share = window.iter().sum::<f64>() / 30.0;
            assert!((0.0195..0.0205).contains(&share), "{share}");
        }
        assert_eq!(pace.short(), Some(Short::Moves));
    }

    #[test]
    fn the_move_at_the_start_may_cost_what_is_invested_and_then_the_bound_holds() {
        let mut pace = Pace::new(false, Some(0.1));
        let (mut spent, mut moving) = (Vec::new(), Duration::ZERO);
        let mut cold = 200_000;
        for second in 0..120 {
            // More becomes cold when the first is over.
            cold += if second == 60 { 200_000 } else { 0 };
            pace.on_pressure(&Pressure { moving, ..priced() }, Duration::from_micros(5), 0.02);
            let mut pages = 0;
            while cold > 0 && pace.affords() {
                pace.promise(1, false);
                (pages, cold) = (pages + 1, cold - 1);
            }
            moving = Duration::from_micros(10) * pages;
            spent.push(moving.as_secs_f64());
        }
        let share = |seconds: std::ops::Range<usize>| spent[seconds.clone()].iter().sum::<f64>() / seconds.len() as f64;
        assert!((0.09..0.11).contains(&share(1..18)), "{}", share(1..18));
        assert!((0.0195..0.03).contains(&share(62..92)), "{}: with what was saved up", share(62..92));
        assert!(!pace.invests());
    }

    #[test]
    fn a_whole_block_costs_its_own_price_and_refaults_come_off_the_budget() {
        let mut pace = Pace::new(false, None);
        pace.on_pressure(&priced(), Duration::from_micros(5), 0.02);
        let mut blocks = 0;
        while pace.affords() {
            pace.promise(u64::from(BLOCK_PAGES), true);
            blocks += 1;
        }
        assert_eq!(blocks, 400, "20 ms at 50 us a block");
        let back = Pressure { refaults: 10_000, ..priced() };
        pace.on_pressure(&back, Duration::from_micros(5), 0.02);
        assert!(!pace.affords());
        assert_eq!(pace.short(), Some(Short::Refaults));
        // 50 ms are owed and 40 earned: a second later something is left again.
        pace.on_pressure(&priced(), Duration::from_micros(5), 0.02);
        assert!(pace.affords());
    }

    #[test]
    fn a_long_stretch_of_time_earns_no_more_than_may_be_saved_up() {
        let mut pace = Pace::new(false, None);
        pace.on_pressure(&Pressure { window: SECOND * 3600, ..priced() }, Duration::from_micros(5), 0.02);
        let mut pages = 0;
        while pace.affords() {
            pace.promise(1, false);
            pages += 1;
        }
        assert!((20_000..=20_001).contains(&pages), "200 ms at 10 us a page: {pages}");
    }

    #[test]
    fn without_prices_nothing_waits() {
        let mut pace = Pace::new(false, None);
        pace.on_pressure(&Pressure { window: SECOND, refaults: 1 << 20, ..Pressure::default() }, SECOND, 0.02);
        assert!(pace.affords() && pace.short().is_none());
    }

    #[test]
    fn what_may_all_come_back_leaves_first() {
        let mut pace = Pace::new(true, None);
        pace.on_pressure(&priced(), Duration::from_micros(5), 0.02);
        // Half of ten seconds at 2 % are 100 ms, and 15 us a page there and back.
        let first = pace.thin(cold(0..64 * 1024), 65536, |_| 1).len();
        assert!((6144..=6666 + 512).contains(&first), "{first}");
        let mut dear = Pace::new(true, None);
        dear.on_pressure(&priced(), Duration::from_micros(5), 1.0);
        assert_eq!(dear.thin(cold(0..64 * 1024), 65536, |_| 1).len(), 65536, "who allows everything needs no probe");
    }

    #[test]
    fn a_sixty_fourth_leaves_first_spread_over_the_blocks() {
        let mut pace = Pace::new(true, None);
        let all = cold(0..64 * 1024);
        assert_eq!(pace.thin(all.clone(), 65536, |_| 1), all, "without prices nothing is known to be dear");
        pace.on_pressure(&priced(), Duration::from_micros(5), TIGHT);
        let first = pace.thin(all.clone(), 65536, |_| 1);
        assert_eq!(first.len(), 1024);
        let mut blocks: Vec<u32> = first.iter().map(|request| request.page.block().0).collect();
        blocks.dedup();
        assert_eq!(blocks.len(), 2, "whole blocks");
        assert!(blocks[1] - blocks[0] > 32, "far apart: {blocks:?}");
        pace.promise(1024, true);
        assert!(pace.thin(all.clone(), 65536, |_| 1).is_empty(), "and no more in this period");
        // Nothing came back: twice as much, and so on.
        for period in 1..=5 {
            let renewed = (0..10).filter(|_| pace.on_pressure(&priced(), Duration::from_micros(5), TIGHT)).count();
            assert!(renewed >= 1, "the policy is asked again");
            let next = pace.thin(all.clone(), 65536, |_| 1).len() as u64;
            assert_eq!(next, 1024 << period);
            pace.promise(next, true);
        }
    }

    #[test]
    fn what_comes_back_stops_the_growth_and_what_is_not_cold_is_left_alone() {
        let mut pace = Pace::new(true, None);
        let all = cold(0..64 * 1024);
        pace.on_pressure(&priced(), Duration::from_micros(5), TIGHT);
        pace.promise(pace.probe.unwrap().limit, true);
        let first = pace.thin(all.clone(), 65536, |_| 1).len();
        pace.promise(first as u64, true);
        let back = Pressure { refaults: 20_000, ..priced() };
        pace.on_pressure(&back, Duration::from_micros(5), TIGHT);
        assert_eq!(pace.thin(all, 65536, |_| 1).len(), 512, "a quarter, but a block at least");
        // What may all come back in a period for half of the bound is no risk: 10 ms at 15 us a page, however often it was cut back.
        let mut pace = Pace::new(true, None);
        pace.on_pressure(&priced(), Duration::from_micros(5), 0.02);
        pace.thin(cold(0..64 * 1024), 65536, |_| 1);
        (0..8).for_each(|_| _ = pace.on_pressure(&back, Duration::from_micros(5), 0.02));
        assert_eq!(pace.probe.unwrap().limit, 666);
        let over: Vec<MoveRequest> = (0..4096)
            .map(|page| MoveRequest::new(PageId(page), Action::MoveTo(TierId(1)), Reason::OverLimit))
            .collect();
        assert_eq!(pace.thin(over.clone(), 65536, |_| 1), over, "a limit has to be kept");
    }
}
