//! The budget for watching: how often accessed bits may be read and cleared, from what that costs the program.
//!
//! In: the prices of a scan, what each scan turned out to cost, the processor time the program used, what watching led to, and the
//! [`Cadence`] a policy asks for. Out: a [`Grant`]: when the next scan may begin, which share of the blocks it may clear, and among which
//! blocks the shares rotate. Must not: read a clock, perform I/O, know a tracker, or grant more than was asked for.
//!
//! A scan is paid three times: Terrace reads the page tables, Terrace clears bits, and the *program* pays when it next touches each page
//! whose bit was cleared (a TLB miss, and the processor sets the bit again). The sum is held below a share of the processor time that the
//! program uses. Three means, in this order:
//!
//! 1. **Shares and longer windows.** A scan of cost `c` at an income of `r` seconds a second allows the next one `c / r` later (the virtual
//!    scheduling form of a leaky bucket, ITU-T I.371 annex A). A scan clears no more blocks at once than [`LONGEST_PAUSE`] pays for, so
//!    that its cost is spread over time.
//! 2. **Back-off.** Where watching leads to no moves (all is hot, or nothing can be moved) the income halves step by step, and the blocks
//!    among which the shares rotate are cut to a quarter each step, down to [`LEAST_BLOCKS`]. Which blocks remain is decided by a hash of
//!    their address, so they stand for all, and since there are fewer of them each is still looked at often enough to notice a change.
//! 3. **Recovery.** Moves that come of the blocks still watched, memory that grows, or a new goal restore the whole budget at once.
//!
//! | constant | value | why |
//! |---|---|---|
//! | [`DEFAULT_MAX_OVERHEAD`] | 1 % | a tenth of what a user notices; chosen |
//! | [`LONGEST_PAUSE`] | 4 s | what one scan clears is paid within the window in which `age` wants each block read once |
//! | [`QUIET`] | 24 s | how long a page in steady use must be silent before `age` takes it for cold |
//! | [`QUIET_TURNS`] | 3 | a page is cold after two readings at the earliest; the third says that there was nothing |
//! | [`LEAST_BLOCKS`] | 8 | 4,096 pages: of those a change of 2 % is 80 pages, beyond chance |

use std::time::Duration;

use crate::policy::Cadence;
use crate::units::{BLOCK_PAGES, Time};

/// Share of the program's processor time that watching may cost, unless the user says otherwise.
pub const DEFAULT_MAX_OVERHEAD: f64 = 0.01;
/// The longest pause that the clearing of one scan may make necessary.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// Without moves for so long, watching backs off by one step.
pub const QUIET: Duration = Duration::from_secs(24);
/// How often each watched block must have been read in that time.
pub const QUIET_TURNS: f64 = 3.0;
/// Steps of the back-off: the last has 1/32 of the budget.
pub const LAST_STEP: u32 = 5;
/// At least so many blocks are always watched.
pub const LEAST_BLOCKS: u64 = 8;

/// Moves that count as a result: one watched page in so many, and at least [`LEAST_RESULT`].
const RESULT_OF: u64 = 256;
/// Fewer moved pages than this are no result, however few are watched.
const LEAST_RESULT: u64 = 64;
/// Memory that grew by one page in so many is new memory to be watched.
const GROWTH_OF: u64 = 8;
/// A program that uses fewer cores than this leaves processors idle: Terrace's own time then counts in proportion, since nobody waits for
/// it. 0.4 cores at 1 % are 0.4 % of a core for reading and clearing, which the first clearing of 4 GiB then takes half a minute of.
const IDLE_CORES: f64 = 0.4;
/// No program counts as using less, so that what sleeps is still looked at.
const LEAST_CORES: f64 = 0.01;
/// Half-life of the estimate of how many cores the program uses.
const CORES_HALF_LIFE: Duration = Duration::from_secs(2);
/// Weight of the latest scan in what scans are expected to cost.
const LATEST: f64 = 0.25;

/// What watching costs a page, in nanoseconds. Measured by the driver where it can, assumed by name where it cannot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WatchPrices {
    /// Terrace's time to read one 4 KiB page's entry.
    pub read_ns: f64,
    /// Terrace's time to clear one page of a block of which some bit is set.
    pub clear_ns: f64,
    /// The program's time for touching a 4 KiB page whose bit was cleared, beyond touching one whose bit was not.
    pub touch_ns: f64,
    /// The same for a 2 MiB page.
    pub touch_huge_ns: f64,
}

impl WatchPrices {
    /// What is assumed where nothing was measured, from `track_cost` on a Xeon under KVM (docs/performance.md): 1.4 ns to copy an entry and
    /// 1.8 ns to translate it, 54 to 94 ns to clear a page, 156 to 240 ns for the program to touch it again, and 0.4 ns * 512 for a huge one.
    pub const ASSUMED: WatchPrices =
        WatchPrices { read_ns: 3.2, clear_ns: 75.0, touch_ns: 200.0, touch_huge_ns: 205.0 };
}

/// What one scan did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ScanBill {
    /// Pages with memory behind them whose entries were read.
    pub read: u64,
    /// Pages of the blocks whose turn it was.
    pub in_turn: u64,
    /// Those of them in blocks of which some bit was set, and was cleared: a block without one costs nothing.
    pub cleared: u64,
    /// 4 KiB pages found accessed whose bit had been cleared before: each was paid for by the program.
    pub touched: u64,
    /// 2 MiB pages of which the same holds.
    pub touched_huge: u64,
    /// Share of all blocks that had their turn.
    pub share: f64,
    /// Terrace's processor time.
    pub own: Duration,
}

/// What a budget allows of what a policy asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grant {
    /// When the next scan may begin; `None` if none is wanted.
    pub scan_at: Option<Time>,
    /// Which share of all blocks it may clear, 0 to 1.
    pub share: f64,
    /// Which share of all blocks, by a hash of their address, takes turns at being cleared, 0 to 1. The others are only read.
    pub within: f64,
}

/// What watching has cost so far.
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
    /// What was spent is paid from here on.
    paid_until: Time,
    /// Pages of the latest scan, and what one whose turn it is takes of Terrace and of the program, in ns.
    pages: u64,
    turn_own_ns: f64,
    turn_program_ns: f64,
    /// Own time over what the prices forecast of it.
    own_factor: f64,
    cost: WatchCost,
    back_off: BackOff,
}

/// How far watching has backed off, and since when.
#[derive(Clone, Copy, Debug, Default)]
struct BackOff {
    step: u32,
    since: Option<Time>,
    /// How often each watched block had its turn since.
    turns: f64,
    /// Pages moved, and pages there were, when the step began.
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

    /// Takes in prices that were measured.
    pub fn set_prices(&mut self, prices: WatchPrices) {
        self.prices = prices;
        self.turn_own_ns = prices.clear_ns;
        self.turn_program_ns = prices.touch_ns;
        self.own_factor = 1.0;
    }

    /// The prices it goes by.
    pub fn prices(&self) -> WatchPrices {
        self.prices
    }

    /// The program used this much processor time in the last `window`.
    pub fn on_program(&mut self, window: Duration, cpu: Duration) {
        if window.is_zero() {
            return;
        }
        let seen = cpu.as_secs_f64() / window.as_secs_f64();
        let keep = 0.5f64.powf(window.as_secs_f64() / CORES_HALF_LIFE.as_secs_f64());
        self.cores = Some(self.cores.map_or(seen, |cores| cores * keep + seen * (1.0 - keep)));
    }

    /// A scan is over: enters what it cost.
    pub fn on_scan(&mut self, now: Time, bill: &ScanBill) {
        let program_ns = self.program_ns(bill);
        let forecast = bill.read as f64 * self.prices.read_ns + bill.cleared as f64 * self.prices.clear_ns;
        let own_ns = bill.own.as_nanos() as f64;
        if forecast > 0.0 {
            // A scan that was preempted or met a cold cache says little: no more than a factor of eight is learned at once.
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
        // What was not used is not saved up beyond one pause, so that a quiet hour does not pay for a storm.
        let saved = Time::from_nanos(now.as_nanos().saturating_sub(LONGEST_PAUSE.as_nanos() as u64));
        self.paid_until = self.paid_until.max(saved) + pause;
    }

    /// Takes in what came of watching: the pages moved so far, either way, and how many pages there are. `can_move` says whether anything
    /// could be moved at all; who only wants to see is not backed off from.
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
            // The growth is counted from the first step on, or memory that grows slowly would never count as new.
            let footprint = if step == 1 { footprint } else { back_off.footprint };
            *back_off = BackOff { step, since: Some(now), turns: 0.0, moved, footprint };
        }
    }

    /// Something changed that makes watching worth its whole budget again, such as a goal.
    pub fn restore(&mut self) {
        self.back_off = BackOff::default();
    }

    /// What of the policy's request is granted.
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

    /// What watching has cost so far.
    pub fn cost(&self) -> WatchCost {
        self.cost
    }

    /// How many steps watching has backed off, 0 to [`LAST_STEP`].
    pub fn step(&self) -> u32 {
        self.back_off.step
    }

    /// Cores the program uses, smoothed; 1 before it is known.
    pub fn cores(&self) -> f64 {
        self.cores.unwrap_or(1.0)
    }

    /// Seconds a second that may be spent now.
    fn income(&self) -> f64 {
        self.max_overhead * self.cores().max(LEAST_CORES) / f64::from(1u32 << self.back_off.step)
    }

    /// How much Terrace's own time counts: all of it, but for a program that is mostly asleep.
    fn own_weight(&self) -> f64 {
        (self.cores().max(LEAST_CORES) / IDLE_CORES).min(1.0)
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
