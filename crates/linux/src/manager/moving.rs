//! What moving costs the programs, as it happens: the manager's account of it.
//!
//! In: what a page-out takes of a running thread (`move_cost.rs`), the processor time of each batch of moves, how busy the processors are and how
//! long the programs' threads waited for one. Out: the price of a page-out now, and the cost of all moves so far. Must not: judge it; the
//! governor does.
//!
//! A move costs a program twice. Each thread of it that runs is interrupted to flush its TLB, and fills it again. And the processor time of
//! the mover is taken from somebody as far as no processor is idle:
//!
//! ```text
//! taken = 1 - idle processors, counted without Terrace's own time, 0 to 1
//! ```
//!
//! raised to 1 where the programs' threads waited longer for a processor (schedstat) than a tenth of the mover's time. Processors are
//! counted over the time between two readings, as /proc/stat has them.

use std::path::Path;
use std::time::Duration;

use crate::processors::{self, ProcessorUse};
use crate::usage::{Who, usage};

/// What a page-out takes of a running thread where it could not be measured: the middle of what two machines of docs/sizing.md showed.
const ASSUMED_INTERRUPT: Duration = Duration::from_micros(10);
/// Weight of the latest batch in the mover's time a page.
const LATEST: f64 = 0.1;
/// A mover that worked for less between two readings says nothing of who waited for it: a timer's tick is as long.
const TELLS_FROM: Duration = Duration::from_millis(5);
/// Waiting for a processor for more than one part in so many of the mover's time is its doing.
const WAIT_PART: u32 = 10;

/// See the module's header.
#[derive(Clone, Debug)]
pub(super) struct MovingAccount {
    /// What a page-out takes of each thread that runs.
    interrupt: Duration,
    /// The mover's own time a page that goes out.
    fixed: Duration,
    /// Share of the mover's time that is taken from somebody.
    taken: f64,
    /// Since the last reading: the mover's time, and pages that went out.
    mover: Duration,
    out: u64,
    before: Option<Reading>,
    total: Duration,
}

/// Sums since boot, or since the processes began.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reading {
    busy: Duration,
    own: Duration,
    waited: Duration,
}

/// What the last stretch of time showed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// What the moves of that stretch cost the programs.
    pub(super) cost: Duration,
    /// What a page-out costs now.
    pub(super) page_out: Duration,
}

impl MovingAccount {
    /// With what a page-out takes of a running thread, if that was measured; on a single processor nothing runs meanwhile.
    pub(super) fn new(interrupt: Option<Duration>) -> MovingAccount {
        let assumed = if crate::move_cost::others_can_be_interrupted() { ASSUMED_INTERRUPT } else { Duration::ZERO };
        MovingAccount {
            interrupt: interrupt.unwrap_or(assumed),
            fixed: Duration::ZERO,
            taken: 1.0,
            mover: Duration::ZERO,
            out: 0,
            before: None,
            total: Duration::ZERO,
        }
    }

    /// It was measured again.
    pub(super) fn set_interrupt(&mut self, interrupt: Duration) {
        self.interrupt = interrupt;
    }

    /// A batch was carried out: the mover's processor time, pages that went to slower memory, and pages that moved at all.
    pub(super) fn carried_out(&mut self, cpu: Duration, out: u64, moved: u64) {
        self.mover += cpu;
        self.out += out;
        if moved > 0 && out == moved {
            let seen = cpu.as_secs_f64() / out as f64;
            let known = self.fixed.as_secs_f64();
            let next = if known == 0.0 { seen } else { known + LATEST * (seen - known) };
            self.fixed = Duration::from_secs_f64(next);
        }
    }

    /// Reads the surroundings over the last `window`: `cores` are those that the programs ran on, `pids` the programs.
    pub(super) fn read(&mut self, root: &Path, window: Duration, cores: f64, pids: impl Iterator<Item = u32>) -> Moved {
        let (mover, out) = (std::mem::take(&mut self.mover), std::mem::take(&mut self.out));
        if mover.is_zero() {
            // Nobody moves: nothing needs to be known of the processors, and reading it costs more than it tells.
            self.before = None;
            return Moved { cost: Duration::ZERO, page_out: self.page_out(cores) };
        }
        let mine = usage(Who::Myself);
        let now = Reading {
            busy: ProcessorUse::read(root, &[]).map_or(Duration::ZERO, |reading| reading.busy),
            own: Duration::from_secs_f64(mine.user_seconds + mine.system_seconds),
            waited: pids.map(|pid| processors::waited(root, pid)).sum(),
        };
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Before a second reading somebody is taken to wait for all of it.
        self.taken = self.before.replace(now).map_or(1.0, |before| taken(&before, &now, window, mover, processors));
        let cost = mover.mul_f64(self.taken) + (self.interrupt * u32::try_from(out).unwrap_or(u32::MAX)).mul_f64(cores);
        self.total += cost;
        Moved { cost, page_out: self.page_out(cores) }
    }

    fn page_out(&self, cores: f64) -> Duration {
        self.fixed.mul_f64(self.taken) + self.interrupt.mul_f64(cores)
    }

    /// What all moves so far cost the programs.
    pub(super) fn total(&self) -> Duration {
        self.total
    }
}

/// Share of the mover's time that was taken from somebody.
fn taken(before: &Reading, now: &Reading, window: Duration, mover: Duration, processors: usize) -> f64 {
    let waited = now.waited.saturating_sub(before.waited);
    if mover >= TELLS_FROM && waited > mover / WAIT_PART {
        return 1.0;
    }
    let others = now.busy.saturating_sub(before.busy).saturating_sub(now.own.saturating_sub(before.own));
    let idle = processors as f64 - others.as_secs_f64() / window.as_secs_f64().max(1e-3);
    (1.0 - idle).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_movers_time_counts_as_far_as_no_processor_is_idle() {
        let check = |others: u32, waited: u32, expect: f64| {
            let before = Reading::default();
            let now = Reading { busy: MS * (others + 100), own: MS * 100, waited: MS * waited };
            let found = taken(&before, &now, MS * 500, MS * 100, 2);
            assert!((found - expect).abs() < 1e-9, "{others} ms of others, {waited} ms waited: {found}");
        };
        check(0, 0, 0.0);
        check(500, 0, 0.0);
        check(750, 0, 0.5);
        check(1000, 0, 1.0);
        // Its threads waited: whatever the processors' counts say.
        check(500, 11, 1.0);
        check(500, 9, 0.0);
    }

    #[test]
    fn a_page_out_costs_each_thread_that_runs_its_interrupt() {
        let mut account = MovingAccount::new(Some(Duration::from_micros(4)));
        account.carried_out(MS * 10, 1000, 1000);
        let root = tempfile::tempdir().unwrap();
        let moved = account.read(root.path(), MS * 500, 2.0, std::iter::empty());
        // Without a second reading all of the mover's 10 us a page count.
        assert_eq!(moved.page_out, Duration::from_micros(18));
        assert_eq!(moved.cost, MS * 18);
        assert_eq!(account.total(), MS * 18);
        let idle = account.read(root.path(), MS * 500, 0.0, std::iter::empty());
        assert_eq!(idle.cost, Duration::ZERO, "nothing moved since");
        assert_eq!(idle.page_out, Duration::from_micros(10), "and a program that sleeps is not interrupted");
    }
}
