//! What a copy takes from the program: bandwidth of a tier for which the program's cores wait.
//!
//! In: what the processor counts. Out: for each tier, how many cores wait for it, as far as it is loaded. Must not: know a page.
//!
//! A copy's requests stand in the tier's queue before the program's. Where the queue is empty nobody waits for them; where loads take twice as long as
//! they do at rest, half of the time is queue, and what a copy adds to it delays every core that waits there. Without this price several movers
//! fill the bandwidth of Optane memory with exchanges that gain less than they take (`docs/policies/terrace.md`, "Movers").

use terrace_core::prices::ProcessorCounts;
use terrace_core::units::{TierId, Time};

use super::USUAL_OVERLAP;

/// See the module's header.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// The shortest latency of a load that was counted: that of the tier at rest. 0 if none was.
    at_rest_ns: [f64; TierId::MAX],
    waiting: [f64; TierId::MAX],
    counted: Time,
}

impl Load {
    /// Takes in what was counted since the last time, on a machine scaled down by this factor.
    pub(super) fn count(&mut self, now: Time, counts: &ProcessorCounts, scale: u32) {
        let span = now.since(self.counted).as_nanos() as f64 / f64::from(scale);
        self.counted = now;
        if span <= 0.0 {
            return;
        }
        let waits = [counts.memory_wait_ns - counts.slow_wait_ns, counts.slow_wait_ns];
        for (tier, wait) in waits.into_iter().enumerate() {
            let (latency, at_rest) = (counts.latency_ns[tier], &mut self.at_rest_ns[tier]);
            if latency <= 0.0 {
                continue;
            }
            *at_rest = if *at_rest > 0.0 { at_rest.min(latency) } else { latency };
            let cores = (wait.max(0.0) / span).min(f64::from(counts.cores));
            // A core that waits for several accesses at once waits for the delay of each once.
            self.waiting[tier] = cores / USUAL_OVERLAP * (1.0 - *at_rest / latency);
        }
    }

    /// Nanoseconds that the program's cores lose together for each nanosecond of a tier's bandwidth.
    pub(super) fn waiting(&self) -> [f64; TierId::MAX] {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of a second in which cores waited for slow memory this long, at this latency.
    fn counts(slow_wait_ns: f64, latency_ns: f64) -> ProcessorCounts {
        let mut counts =
            ProcessorCounts { cores: 16, slow_wait_ns, memory_wait_ns: slow_wait_ns, ..ProcessorCounts::default() };
        counts.latency_ns[1] = latency_ns;
        counts
    }

    #[test]
    fn a_copy_costs_as_many_cores_as_wait_in_the_queue_of_a_loaded_tier() {
        let mut load = Load::default();
        let mut after = |second: u64, counts| {
            load.count(Time::from_nanos(second * 1_000_000_000), &counts, 1);
            load.waiting()
        };
        assert_eq!(after(1, counts(8e9, 300.0))[1], 0.0, "the first latency counts as that at rest");
        assert_eq!(after(2, counts(8e9, 600.0))[1], 1.0, "eight cores, half of it queue, four accesses at once");
        assert_eq!(after(3, counts(64e9, 600.0))[1], 2.0, "no more cores wait than there are");
        assert_eq!(after(4, counts(8e9, 300.0)), [0.0; TierId::MAX], "at rest");
        assert_eq!(after(5, counts(0.0, 600.0))[1], 0.0, "nobody waits");
    }

    #[test]
    fn where_latencies_are_not_counted_bandwidth_is_free() {
        let mut load = Load::default();
        load.count(Time::from_nanos(1_000_000_000), &counts(8e9, 0.0), 1);
        assert_eq!(load.waiting(), [0.0; TierId::MAX]);
    }
}
