//! Time under load: what a stretch of accesses takes when threads, latencies and bandwidths are all in play.
//!
//! In: what each thread did (cycles, cache hits, misses by tier and kind, stalls) and how many bytes each tier moved,
//! migrations included. Out: how long the stretch took, the latency each tier had in it, and each thread's own time.
//! Must not: remember anything from one stretch to the next.
//!
//! Latency depends on utilisation, utilisation on time, and time on latency. The three are solved together: the stretch
//! takes the time T at which the threads' work at the latencies of utilisation bytes/(T * peak) adds up to T. Work falls
//! as T grows, so there is one such T; it is found by bisection, and never below what the bandwidth allows.

use terrace_core::units::TierId;

use crate::preset::{Channel, Processor, Tier};

/// How an access waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wait {
    /// A load that overlaps with others of its thread.
    Load = 0,
    /// A load whose address came from the load before it.
    Dependent = 1,
    /// A store.
    Store = 2,
    /// A load of a line that a hardware prefetcher asked for ahead of it.
    Streamed = 3,
    /// A store to such a line.
    StreamedStore = 4,
    /// A load of a line that a hardware prefetcher asked for too late to be there: it waits for what is under way, as a streamed one, and
    /// counters count it as a miss, as any other.
    Late = 5,
}

impl Wait {
    /// All of them, by number.
    pub const ALL: [Wait; 6] =
        [Wait::Load, Wait::Dependent, Wait::Store, Wait::Streamed, Wait::StreamedStore, Wait::Late];

    /// Whether it stores.
    #[inline(always)]
    pub const fn is_store(self) -> bool {
        matches!(self, Wait::Store | Wait::StreamedStore)
    }

    /// Whether a counter of loads that missed the last-level cache counts it: a line that a prefetcher brought in time is found in a cache.
    #[inline(always)]
    pub const fn is_counted_load(self) -> bool {
        matches!(self, Wait::Load | Wait::Dependent | Wait::Late)
    }
}

/// What one thread did in a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(64))]
pub struct ThreadWork {
    /// Core cycles of computing.
    pub cycles: u64,
    /// Cache hits that a thread can overlap.
    pub cache_hits: u64,
    /// Nanoseconds of waiting that nothing overlaps: faults, page walks, blocked pages.
    pub stall_ns: f64,
    /// Accesses that went to memory, by tier and [`Wait`].
    pub misses: [[u32; Wait::ALL.len()]; TierId::MAX],
}

/// Bytes a tier moved in a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Bytes read.
    pub read: f64,
    /// Bytes written.
    pub written: f64,
}

/// What holds for every thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Cycles a second.
    pub frequency_hertz: f64,
    /// Misses a thread overlaps.
    pub parallelism: f64,
    /// Lines of a stream that are under way at once.
    pub stream_parallelism: f64,
    /// Nanoseconds of a cache hit.
    pub cache_hit_ns: f64,
}

impl Rates {
    /// Those of a machine's processor.
    pub fn of(processor: &Processor) -> Rates {
        Rates {
            frequency_hertz: processor.frequency_hertz,
            parallelism: processor.memory_parallelism,
            stream_parallelism: processor.stream_parallelism,
            cache_hit_ns: processor.cache.hit_ns,
        }
    }
}

/// What a stretch amounted to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stretch {
    /// The mean over the threads that did anything of the time each took: what the stretch takes if work is even. No
    /// less than the bandwidth allows.
    pub nanos: f64,
    /// Utilisation of each tier, 0 to 1.
    pub utilisation: [f64; TierId::MAX],
    /// Factor on each tier's idle latency; where bandwidth set the time, the queue before the tier is part of it.
    pub factor: [f64; TierId::MAX],
    /// Threads that did anything.
    pub active: u32,
    /// Whether bandwidth, not latency, set the time.
    pub bandwidth_bound: bool,
}

impl ThreadWork {
    fn is_idle(&self) -> bool {
        self.cycles == 0
            && self.cache_hits == 0
            && self.stall_ns == 0.0
            && self.misses.iter().flatten().all(|&n| n == 0)
    }

    /// Nanoseconds this thread needs at these latency factors.
    pub fn nanos(&self, tiers: &[Tier], rates: &Rates, factor: &[f64; TierId::MAX]) -> f64 {
        let memory: f64 = tiers.iter().enumerate().map(|(k, tier)| self.waits(k, tier, rates) * factor[k]).sum();
        self.own_nanos(rates) + memory
    }

    /// Nanoseconds this thread needs beside waiting for memory.
    pub fn own_nanos(&self, rates: &Rates) -> f64 {
        self.cycles as f64 * 1e9 / rates.frequency_hertz
            + self.cache_hits as f64 * rates.cache_hit_ns / rates.parallelism
            + self.stall_ns
    }

    /// Nanoseconds of waiting for what it had of tier `k`, at the idle latencies of `tier`.
    pub fn waits(&self, k: usize, tier: &Tier, rates: &Rates) -> f64 {
        let [loads, dependent, stores, streamed, streamed_stores, late] = self.misses[k].map(f64::from);
        (loads / rates.parallelism + dependent + (streamed + late) / rates.stream_parallelism) * tier.read_latency_ns
            + (stores / rates.parallelism + streamed_stores / rates.stream_parallelism) * tier.write_latency_ns
    }
}

/// Utilisation of a tier that moves this traffic in `nanos`.
fn utilisation(tier: &Tier, traffic: &Traffic, nanos: f64) -> f64 {
    let read = traffic.read * 1e9 / tier.read_bandwidth;
    let written = traffic.written * 1e9 / tier.write_bandwidth;
    let busy = match tier.channel {
        Channel::Shared => read + written,
        Channel::Duplex => read.max(written),
    };
    if nanos > 0.0 { busy / nanos } else { 0.0 }
}

/// Solves a stretch in which the threads that did anything ran side by side.
pub fn solve(tiers: &[Tier], traffic: &[Traffic], work: &[ThreadWork], rates: &Rates) -> Stretch {
    let active = work.iter().filter(|thread| !thread.is_idle()).count();
    solve_among(tiers, traffic, work, rates, active as f64)
}

/// Solves a stretch in which as many threads ran side by side as stated: more than did anything in it where a source
/// delivers the threads' accesses in turns longer than the stretch, fewer where there are more threads than cores.
pub fn solve_among(
    tiers: &[Tier],
    traffic: &[Traffic],
    work: &[ThreadWork],
    rates: &Rates,
    concurrency: f64,
) -> Stretch {
    let mut fixed = 0.0;
    let mut waits = [0.0; TierId::MAX];
    let mut active = 0;
    for thread in work.iter().filter(|thread| !thread.is_idle()) {
        active += 1;
        fixed += thread.own_nanos(rates);
        for (k, tier) in tiers.iter().enumerate() {
            waits[k] += thread.waits(k, tier, rates);
        }
    }
    let mut stretch = Stretch { factor: [1.0; TierId::MAX], active, ..Stretch::default() };
    // The least time the bytes need at the utilisation each tier can hold.
    let floor = tiers
        .iter()
        .zip(traffic)
        .map(|(tier, traffic)| utilisation(tier, traffic, 1.0) / tier.loading.limit)
        .fold(0.0, f64::max);
    let needed = |nanos: f64| {
        let memory: f64 = tiers
            .iter()
            .zip(traffic)
            .enumerate()
            .map(|(k, (tier, traffic))| waits[k] * tier.loading.factor(utilisation(tier, traffic, nanos)))
            .sum();
        (fixed + memory) / concurrency.max(1.0)
    };
    let at_floor = needed(floor);
    if at_floor <= floor {
        stretch.nanos = floor;
        stretch.bandwidth_bound = floor > 0.0;
    } else {
        let (mut low, mut high) = (floor, at_floor);
        // The interval halves 40 times: a relative error of 1e-12.
        for _ in 0..40 {
            let middle = 0.5 * (low + high);
            if needed(middle) > middle {
                low = middle;
            } else {
                high = middle;
            }
            if high - low <= high * 1e-9 {
                break;
            }
        }
        stretch.nanos = high;
    }
    for (k, (tier, traffic)) in tiers.iter().zip(traffic).enumerate() {
        stretch.utilisation[k] = utilisation(tier, traffic, stretch.nanos).min(1.0);
        stretch.factor[k] = tier.loading.factor(stretch.utilisation[k]);
    }
    if stretch.bandwidth_bound {
        // Threads then queue at the bound tier until together they ask for no more than it gives; no more can queue than they have under way.
        let bound = (0..tiers.len()).max_by(|&a, &b| stretch.utilisation[a].total_cmp(&stretch.utilisation[b]));
        if let Some(bound) = bound.filter(|&bound| waits[bound] > 0.0) {
            let tier = &tiers[bound];
            let elsewhere: f64 = (0..tiers.len()).filter(|&k| k != bound).map(|k| waits[k] * stretch.factor[k]).sum();
            let left = floor * concurrency.max(1.0) - fixed - elsewhere;
            let under_way = concurrency.max(1.0) * rates.stream_parallelism * tier.access_unit.get() as f64;
            let longest = under_way * 1e9 / tier.read_bandwidth.min(tier.write_bandwidth);
            let queue = (left / waits[bound]).min(longest / tier.read_latency_ns);
            stretch.factor[bound] = stretch.factor[bound].max(queue);
        }
    }
    stretch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Machine;

    const RATES: Rates =
        Rates { frequency_hertz: 2.1e9, parallelism: 4.0, stream_parallelism: 20.0, cache_hit_ns: 20.0 };

    fn tiers() -> Vec<Tier> {
        Machine::preset("optane-6252").unwrap().tiers
    }

    fn chasing(count: u32, tier: usize) -> ThreadWork {
        let mut work = ThreadWork::default();
        work.misses[tier][Wait::Dependent as usize] = count;
        work
    }

    #[test]
    fn a_pointer_chase_takes_one_latency_a_step() {
        let traffic = [Traffic { read: 64e3, written: 0.0 }, Traffic::default()];
        let fast = solve(&tiers(), &traffic, &[chasing(1000, 0)], &RATES);
        assert!((fast.nanos / 98_000.0 - 1.0).abs() < 0.001, "{}", fast.nanos);
        let slow = solve(&tiers(), &[Traffic::default(), traffic[0]], &[chasing(1000, 1)], &RATES);
        assert!((slow.nanos / 348_000.0 - 1.0).abs() < 0.001, "{}", slow.nanos);
    }

    #[test]
    fn independent_loads_overlap_up_to_the_parallelism() {
        let mut work = ThreadWork::default();
        work.misses[0][Wait::Load as usize] = 4000;
        let traffic = [Traffic { read: 256e3, written: 0.0 }, Traffic::default()];
        let stretch = solve(&tiers(), &traffic, &[work], &RATES);
        assert!((stretch.nanos / 98_000.0 - 1.0).abs() < 0.001, "{}", stretch.nanos);
    }

    #[test]
    fn a_stream_has_as_many_lines_under_way_as_its_prefetcher_runs_ahead() {
        let mut work = ThreadWork::default();
        work.misses[0][Wait::Streamed as usize] = 20_000;
        let traffic = [Traffic::default(), Traffic::default()];
        let stretch = solve(&tiers(), &traffic, &[work], &RATES);
        assert!((stretch.nanos / 98_000.0 - 1.0).abs() < 0.001, "{}", stretch.nanos);
    }

    #[test]
    fn streaming_is_held_at_the_bandwidth() {
        let work = ThreadWork { cycles: 1, ..ThreadWork::default() };
        let bytes = 39.4e9;
        let traffic = [Traffic::default(), Traffic { read: bytes, written: 0.0 }];
        let stretch = solve(&tiers(), &traffic, &[work; 24], &RATES);
        assert!(stretch.bandwidth_bound);
        assert!((stretch.nanos / 1e9 - 1.0 / 0.95).abs() < 1e-6, "{}", stretch.nanos);
        assert!((stretch.utilisation[1] - 0.95).abs() < 1e-9);
    }

    #[test]
    fn threads_that_a_bandwidth_holds_back_wait_at_its_tier() {
        let mut work = ThreadWork { cycles: 1000, ..ThreadWork::default() };
        work.misses[0][Wait::Load as usize] = 1000;
        work.misses[1][Wait::Load as usize] = 100_000;
        let traffic = [Traffic { read: 24.0 * 64e3, written: 0.0 }, Traffic { read: 24.0 * 102.4e6, written: 0.0 }];
        let tiers = tiers();
        let stretch = solve(&tiers, &traffic, &[work; 24], &RATES);
        assert!(stretch.bandwidth_bound && stretch.factor[1] > tiers[1].loading.factor(0.95), "{stretch:?}");
        let each = work.nanos(&tiers, &RATES, &stretch.factor);
        assert!((each / stretch.nanos - 1.0).abs() < 1e-6, "{each} of {}", stretch.nanos);
    }

    #[test]
    fn the_time_is_the_one_at_which_work_equals_time() {
        let tiers = tiers();
        // 24 threads of independent loads on Optane: well into the curve.
        let mut work = ThreadWork { cycles: 100_000, ..ThreadWork::default() };
        work.misses[1][Wait::Load as usize] = 10_000;
        let traffic = [Traffic::default(), Traffic { read: 24.0 * 10_000.0 * 128.0, written: 0.0 }];
        let stretch = solve(&tiers, &traffic, &[work; 24], &RATES);
        assert!(!stretch.bandwidth_bound && stretch.factor[1] > 1.2, "{stretch:?}");
        let again = work.nanos(&tiers, &RATES, &stretch.factor);
        assert!((again / stretch.nanos - 1.0).abs() < 1e-6, "{again} {}", stretch.nanos);
    }

    #[test]
    fn idle_threads_do_not_count_and_nothing_takes_no_time() {
        let stretch = solve(&tiers(), &[Traffic::default(); 2], &[chasing(10, 0), ThreadWork::default()], &RATES);
        assert_eq!(stretch.active, 1);
        let nothing = solve(&tiers(), &[Traffic::default(); 2], &[ThreadWork::default(); 3], &RATES);
        assert_eq!((nothing.nanos, nothing.active), (0.0, 0));
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            /// More work of any kind never takes less time, and no tier is ever used beyond its limit.
            #[test]
            fn time_grows_with_work(loads in 0u32..100_000, stores in 0u32..100_000, threads in 1usize..32, extra in 1u32..50_000) {
                let tiers = tiers();
                let run = |loads: u32| {
                    let mut work = ThreadWork { cycles: 1000, ..ThreadWork::default() };
                    work.misses[1] = [loads, 0, stores, 0, 0, 0];
                    let read = f64::from(loads + stores) * 64.0 * threads as f64;
                    let traffic = [Traffic::default(), Traffic { read, written: f64::from(stores) * 64.0 * threads as f64 }];
                    solve(&tiers, &traffic, &vec![work; threads], &RATES)
                };
                let (less, more) = (run(loads), run(loads + extra));
                prop_assert!(more.nanos >= less.nanos * (1.0 - 1e-8));
                prop_assert!(more.utilisation[1] <= 0.95 + 1e-9);
            }
        }
    }
}
