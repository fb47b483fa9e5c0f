//! The budget for tracking: how often accessed bits may be read and cleared, given the cost to the program.
//!
//! In: the prices of a scan, the actual cost of each scan, the processor time of the program, the moves that tracking led to, and the
//! [`Cadence`] that a policy asks for. Out: a [`Grant`]: when the next scan may start, which share of the blocks it may clear, and among
//! which blocks the shares rotate. Must not: read a clock, perform I/O, know a tracker, or grant more than requested.
//!
//! A scan costs three times: Terrace reads the page tables, Terrace clears bits, and the *program* pays when it next touches each page
//! whose bit was cleared (a TLB miss, and the processor sets the bit again). Terrace's own time costs the program what it waits for it: beside
//! idle processors little, and it counts as an eighth at least. The sum is kept below a share of the processor time that the program uses, by
//! three means, in this order:
//!
//! 1. **Shares and longer windows.** A scan of cost `c` at an income of `r` seconds per second allows the next one `c / r` later (the
//!    virtual scheduling form of a leaky bucket, ITU-T I.371 annex A). A scan clears no more blocks at once than [`LONGEST_PAUSE`] pays for,
//!    so that its cost is spread over time.
//! 2. **Back-off.** While tracking leads to no moves (all is hot, or nothing can be moved) the income halves step by step, and the blocks
//!    among which the shares rotate are cut to a quarter each step, down to [`LEAST_BLOCKS`]. A hash of the address selects the remaining
//!    blocks, so they represent all. Since they are fewer, each is still scanned often enough to notice a change.
//! 3. **Recovery.** Moves among the blocks still tracked, memory growth, or a new goal restore the whole budget at once.
//!
//! | constant | value | why |
//! |---|---|---|
//! | [`DEFAULT_MAX_OVERHEAD`] | 1 % | a tenth of what a user notices; chosen |
//! | [`LONGEST_PAUSE`] | 4 s | the cost of one scan's clearing is paid within the window in which `age` reads each block once |
//! | [`QUIET`] | 24 s | how long a page in steady use must be silent before `age` treats it as cold |
//! | [`QUIET_TURNS`] | 3 | a page is cold after two readings at the earliest; the third confirms it |
//! | [`LEAST_BLOCKS`] | 8 | 4,096 pages: a change of 2 % of them is 80 pages, beyond chance |

use std::time::Duration;

use crate::policy::Cadence;
use crate::units::{BLOCK_PAGES, Time};

/// Share of the program's processor time that tracking may cost, unless the user sets another.
pub const DEFAULT_MAX_OVERHEAD: f64 = 0.01;
/// The longest pause that the clearing of one scan may require.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// After this time without moves, tracking backs off by one step.
pub const QUIET: Duration = Duration::from_secs(24);
/// How often each tracked block must have been read in that time.
pub const QUIET_TURNS: f64 = 3.0;
/// Steps of the back-off: the last has 1/32 of the budget.
pub const LAST_STEP: u32 = 5;
/// At least this many blocks are always tracked.
pub const LEAST_BLOCKS: u64 = 8;

/// Moves count as a result from one tracked page in this many, and at least [`LEAST_RESULT`].
const RESULT_OF: u64 = 256;
/// Fewer moved pages than this are no result, however few are tracked.
const LEAST_RESULT: u64 = 64;
/// Memory that grew by one page in this many is new memory to track.
const GROWTH_OF: u64 = 8;
/// A program that uses fewer cores than this leaves processors idle. Terrace's own time then counts only in proportion, since it delays no
/// one. 0.4 cores at 1 % are 0.4 % of a core for reading and clearing, so the first clearing of 4 GiB takes half a minute.
const IDLE_CORES: f64 = 0.4;
/// What nobody waits for counts at least this much: Terrace itself uses at most eight times the share, whatever processors idle.
const LEAST_TAKEN: f64 = 0.125;
/// Programs count as using at least this much, so that a sleeping one is still scanned.
const LEAST_CORES: f64 = 0.01;
/// Half-life of the estimate of how many cores the program uses.
const CORES_HALF_LIFE: Duration = Duration::from_secs(2);
/// Weight of the latest scan in the expected cost of a scan.
const LATEST: f64 = 0.25;

/// The cost of tracking per page, in nanoseconds: measured by the driver where possible, otherwise the named assumption.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WatchPrices {
    /// Terrace's time to read one 4 KiB page's entry.
    pub read_ns: f64,
    /// Terrace's time to clear one page of a block with at least one bit set.
    pub clear_ns: f64,
    /// The program's time for touching a 4 KiB page whose bit was cleared, beyond touching one whose bit was not.
    pub touch_ns: f64,
    /// The same for a 2 MiB page.
    pub touch_huge_ns: f64,
}

impl WatchPrices {
    /// The assumption if nothing was measured, from `track_cost` on a Xeon under KVM (docs/performance.md): 1.4 ns to copy an entry and 1.8
    /// ns to translate it, 54 to 94 ns to clear a page, 156 to 240 ns for the program to touch it again, and 0.4 ns * 512 for a huge one.
    pub const ASSUMED: WatchPrices =
        WatchPrices { read_ns: 3.2, clear_ns: 75.0, touch_ns: 200.0, touch_huge_ns: 205.0 };
}

/// The work of one scan.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScanBill {
    /// Pages with memory behind them whose entries were read.
    pub read: u64,
    /// Pages of the blocks to clear in this scan.
    pub in_turn: u64,
    /// Of these, pages in blocks with at least one bit set, which was cleared: a block without one costs nothing.
    pub cleared: u64,
    /// 4 KiB pages found accessed whose bit had been cleared before: the program paid for each.
    pub touched: u64,
    /// The same for 2 MiB pages.
    pub touched_huge: u64,
    /// Share of all blocks that this scan cleared.
    pub share: f64,
    /// Terrace's processor time.
    pub own: Duration,
}

/// The part of a policy's request that the budget allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grant {
    /// When the next scan may start; `None` if none is wanted.
    pub scan_at: Option<Time>,
    /// Which share of all blocks it may clear, 0 to 1.
    pub share: f64,
    /// Which share of all blocks, by a hash of their address, is cleared in rotation, 0 to 1. The others are only read.
    pub within: f64,
}

/// The cost of tracking up to now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WatchCost {
    /// Terrace's processor time for reading and clearing.
    pub own: Duration,
    /// The program's time for touching pages whose bits were cleared.
    pub program: Duration,
    /// Bits cleared that were found set again, of pages and huge pages.
    pub touched: u64,
}

/// See the module's header.
#[derive(Clone, Debug)]
pub struct WatchBudget {
    max_overhead: f64,
    prices: WatchPrices,
    /// Cores the program uses; `None` before the first reading.
    cores: Option<f64>,
    /// Share of Terrace's own time that the program waited for.
    taken: f64,
    /// The time up to which costs are paid.
    paid_until: Time,
    /// Pages of the latest scan, and the cost of a page that it clears to Terrace and to the program, in ns.
    pages: u64,
    turn_own_ns: f64,
    turn_program_ns: f64,
    /// Own time divided by the forecast from the prices.
    own_factor: f64,
    cost: WatchCost,
    back_off: BackOff,
}

/// The current back-off step, and its start.
#[derive(Clone, Copy, Debug, Default)]
struct BackOff {
    step: u32,
    since: Option<Time>,
    /// How often each tracked block was cleared since.
    turns: f64,
    /// Pages moved, and pages in total, when the step began.
    moved: u64,
    footprint: u64,
}

impl WatchBudget {
    /// A budget of this share of the program's processor time, 0 to 1.
    pub fn new(max_overhead: f64) -> WatchBudget {
        WatchBudget {
            max_overhead,
            prices: WatchPrices::ASSUMED,
            cores: None,
            taken: 1.0,
            paid_until: Time::ZERO,
            pages: 0,
            turn_own_ns: WatchPrices::ASSUMED.clear_ns,
            turn_program_ns: WatchPrices::ASSUMED.touch_ns,
            own_factor: 1.0,
            cost: WatchCost::default(),
            back_off: BackOff::default(),
        }
    }

    /// Changes the share.
    pub fn set_max_overhead(&mut self, max_overhead: f64) {
        self.max_overhead = max_overhead;
    }

    /// Sets measured prices.
    pub fn set_prices(&mut self, prices: WatchPrices) {
        self.prices = prices;
        self.turn_own_ns = prices.clear_ns;
        self.turn_program_ns = prices.touch_ns;
        self.own_factor = 1.0;
    }

    /// The prices in use.
    pub fn prices(&self) -> WatchPrices {
        self.prices
    }

    /// Records the program's processor time in the last `window`.
    pub fn on_program(&mut self, window: Duration, cpu: Duration) {
        if window.is_zero() {
            return;
        }
        let seen = cpu.as_secs_f64() / window.as_secs_f64();
        let keep = 0.5f64.powf(window.as_secs_f64() / CORES_HALF_LIFE.as_secs_f64());
        self.cores = Some(self.cores.map_or(seen, |cores| cores * keep + seen * (1.0 - keep)));
    }

    /// Records which share of Terrace's own time the program waited for lately, 0 to 1: beside an idle processor none.
    pub fn on_taken(&mut self, taken: f64) {
        self.taken += LATEST * (taken.clamp(0.0, 1.0) - self.taken);
    }

    /// Records the cost of a completed scan.
    pub fn on_scan(&mut self, now: Time, bill: &ScanBill) {
        let program_ns = self.program_ns(bill);
        let forecast = bill.read as f64 * self.prices.read_ns + bill.cleared as f64 * self.prices.clear_ns;
        let own_ns = bill.own.as_nanos() as f64;
        if forecast > 0.0 {
            // A scan that was preempted or had a cold cache says little: learn at most a factor of eight at once.
            self.own_factor +=
                LATEST * ((own_ns / forecast).clamp(self.own_factor / 8.0, self.own_factor * 8.0) - self.own_factor);
        }
        if bill.in_turn > 0 {
            let pages = bill.in_turn as f64;
            let clearing_ns = bill.cleared as f64 * self.own_factor * self.prices.clear_ns;
            self.turn_own_ns += LATEST * (clearing_ns / pages - self.turn_own_ns);
            self.turn_program_ns += LATEST * (program_ns / pages - self.turn_program_ns);
        }
        self.pages = bill.read;
        self.cost.own += bill.own;
        self.cost.program += Duration::from_nanos(program_ns as u64);
        self.cost.touched += bill.touched + bill.touched_huge;
        let within = self.within();
        self.back_off.turns += bill.share / within;
        let seconds = (own_ns * self.own_weight() + program_ns) * 1e-9;
        let pause = Duration::from_secs_f64((seconds / self.income()).min(86_400.0));
        // At most one pause's worth is saved up, so that a quiet hour does not pay for a storm.
        let saved = Time::from_nanos(now.as_nanos().saturating_sub(LONGEST_PAUSE.as_nanos() as u64));
        self.paid_until = self.paid_until.max(saved) + pause;
    }

    /// Takes the result of tracking: the pages moved up to now, in either direction, and the number of pages. `can_move` says whether
    /// anything could be moved at all; tracking only for display does not back off.
    pub fn on_result(&mut self, now: Time, moved: u64, footprint: u64, can_move: bool) {
        let watched = (footprint as f64 * self.within()) as u64;
        let back_off = &mut self.back_off;
        let Some(since) = back_off.since.filter(|_| can_move) else {
            *back_off = BackOff { since: Some(now), moved, footprint, ..BackOff::default() };
            return;
        };
        let result = moved.saturating_sub(back_off.moved) >= LEAST_RESULT.max(watched / RESULT_OF);
        let grew = footprint > back_off.footprint + (back_off.footprint / GROWTH_OF).max(LEAST_RESULT);
        if result || grew {
            *back_off = BackOff { since: Some(now), moved, footprint, ..BackOff::default() };
        } else if now.since(since) >= QUIET && back_off.turns >= QUIET_TURNS && back_off.step < LAST_STEP {
            let step = back_off.step + 1;
            // Growth is counted from the first step on, or slow growth would never count as new memory.
            let footprint = if step == 1 { footprint } else { back_off.footprint };
            *back_off = BackOff { step, since: Some(now), turns: 0.0, moved, footprint };
        }
    }

    /// A change, such as a new goal, restores the whole budget.
    pub fn restore(&mut self) {
        self.back_off = BackOff::default();
    }

    /// Grants part of the policy's request.
    pub fn grant(&self, wanted: &Cadence) -> Grant {
        let within = self.within();
        let all = self.pages as f64 * (self.turn_own_ns * self.own_weight() + self.turn_program_ns) * 1e-9;
        let most = if all > 0.0 { self.income() * LONGEST_PAUSE.as_secs_f64() / all } else { 1.0 };
        Grant {
            scan_at: wanted.scan_at.map(|at| at.max(self.paid_until)),
            share: (wanted.share * within).min(most).clamp(0.0, 1.0),
            within,
        }
    }

    /// The cost of tracking up to now.
    pub fn cost(&self) -> WatchCost {
        self.cost
    }

    /// The back-off step, 0 to [`LAST_STEP`].
    pub fn step(&self) -> u32 {
        self.back_off.step
    }

    /// Cores the program uses, smoothed; 1 before it is known.
    pub fn cores(&self) -> f64 {
        self.cores.unwrap_or(1.0)
    }

    /// Seconds per second that may be spent now.
    fn income(&self) -> f64 {
        self.max_overhead * self.cores().max(LEAST_CORES) / f64::from(1u32 << self.back_off.step)
    }

    /// How much Terrace's own time counts: as far as the program waited for it, and less for a mostly sleeping one.
    fn own_weight(&self) -> f64 {
        (self.cores().max(LEAST_CORES) / IDLE_CORES).min(self.taken.max(LEAST_TAKEN))
    }

    fn within(&self) -> f64 {
        let blocks = (self.pages / u64::from(BLOCK_PAGES)).max(1);
        let least = LEAST_BLOCKS as f64 / blocks as f64;
        0.25f64.powi(self.back_off.step as i32).max(least).min(1.0)
    }

    fn program_ns(&self, bill: &ScanBill) -> f64 {
        bill.touched as f64 * self.prices.touch_ns + bill.touched_huge as f64 * self.prices.touch_huge_ns
    }
}

#[cfg(test)]
mod tests;
