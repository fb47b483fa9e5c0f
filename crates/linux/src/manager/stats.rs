//! What a manager has done and seen so far, in figures.
//!
//! In: nothing. Out: [`ManagerStats`]. Must not: compute anything but sums of them; the manager fills it in, reports and views read it.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::governor::Throttle;
use terrace_core::policy::ScanReport;
use terrace_core::units::Bytes;

use super::LeftAlone;
use crate::kernel_lists::Counts;
use crate::movers::MoveCounts;
use crate::pressure::PressureReading;
use crate::swap_saving::SwapFigures;

/// Figures of the run so far.
#[derive(Clone, Debug, Default)]
pub struct ManagerStats {
    /// Rounds of accessed bits.
    pub rounds: u64,
    /// Time spent in them.
    pub round_time: Duration,
    /// The latest round.
    pub last_round: ScanReport,
    /// Wall time of calls that moved pages.
    pub move_time: Duration,
    /// Longest single call that moved pages.
    pub longest_move_call: Duration,
    /// Calls that moved pages.
    pub move_calls: u64,
    /// Pages that went to slower memory, by what was unmapped at once.
    pub counts: MoveCounts,
    /// Major faults of the managed processes since they are managed.
    pub major_faults: u64,
    /// CPU time of the managed processes since they are managed, clock ticks.
    pub cpu_ticks: u64,
    /// Time during which page-outs were stopped or limited, by cause.
    pub throttled: BTreeMap<Throttle, Duration>,
    /// Time of the move at the start, which may cost what is invested.
    pub invested: Duration,
    /// Events lost by the tracker.
    pub lost_events: u64,
    /// Hint faults on pages of slow tiers.
    pub hint_faults: u64,
    /// Pages that the kernel reported as mapped for the first time, including copies on write and pages back from swap, and known
    /// pages that it reported as freed; 0 if it does not report them.
    pub births: u64,
    /// See `births`.
    pub deaths: u64,
    /// Lost records of allocations and frees; the next scan finds those pages.
    pub lost_births_and_deaths: u64,
    /// What the kernel module did by the marks of the policy, if the policy gives marks.
    pub kernel_lists: Option<Counts>,
    /// Marks that found no room in a ring.
    pub dropped_marks: u64,
    /// How much later than wanted the latest round came that came late because watching may cost no more.
    pub latest_round: Duration,
    /// Areas of memory of all managed processes, as their map lists show them, and the processor time that reading those took last.
    pub areas: usize,
    /// See `areas`.
    pub areas_time: Duration,
    /// Processes that are, or were, there and not managed.
    pub left_alone: BTreeMap<u32, LeftAlone>,
    /// Processes ever managed.
    pub processes: u32,
    /// Of those that are managed now, how many sleep.
    pub asleep: u32,
    /// Pages fetched ahead for programs that woke, or were about to.
    pub fetched_ahead: u64,
    /// By how much free memory was short at the last reading.
    pub short_by: Bytes,
    /// Resident memory of the managed processes, as the kernel counts it.
    pub resident_bytes: u64,
    /// Processor time of the turns.
    pub cpu: Duration,
    /// Whether work waits for processor time that is not in hand.
    pub short_of_cpu: bool,
    /// The latest reading of the surroundings.
    pub pressure: PressureReading,
    /// What the kernel said of swap then.
    pub swap: SwapFigures,
    /// What the managed processes have in swap by its count, without shared memory; `None` if none of them has memory any more.
    pub swapped: Option<Bytes>,
    /// Pages that could not be written to swap and were taken back into memory.
    pub unwritten_pages: u64,
    /// The limit that zram had met at some time (its `mem_limit`).
    pub zram_limit: Option<Bytes>,
    /// The most that zswap held, before compression.
    pub zswap_stored_peak: Bytes,
    /// Pages that are left where they are because they do not compress.
    pub incompressible_pages: u64,
    /// Why shared memory is left alone, if it was to be managed and cannot be accounted for.
    pub shared_refused: Option<String>,
    /// Why the surroundings could not be read, if they could not: then nothing throttles but the refaults.
    pub pressure_error: Option<String>,
}

impl ManagerStats {
    /// Time during which page-outs were stopped or limited, by their state.
    pub fn page_outs(&self) -> BTreeMap<&'static str, Duration> {
        let mut sums: BTreeMap<&'static str, Duration> = BTreeMap::new();
        for (throttle, time) in &self.throttled {
            *sums.entry(throttle.state()).or_default() += *time;
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limited_to_the_bound_is_one_state_whatever_used_the_bound_up() {
        let seconds = Duration::from_secs;
        let throttled = [(Throttle::Moves, 20), (Throttle::Watching, 5), (Throttle::Refaults, 3)];
        let stats = ManagerStats {
            throttled: throttled.map(|(throttle, time)| (throttle, seconds(time))).into(),
            ..ManagerStats::default()
        };
        let states = BTreeMap::from([("limited_to_bound", seconds(25)), ("stopped_came_back", seconds(3))]);
        assert_eq!(stats.page_outs(), states);
    }
}
