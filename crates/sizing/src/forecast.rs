//! The loss at sizes that a program never ran with, from a run with everything fast in which its pages were watched.
//!
//! In: look by look, what counters say of the program and what its pages did. Out: a loss for each size. Must not: decide, or use a
//! constant that is not the machine's.
//!
//! Tuna's prediction has the micro-benchmark's time as its yardstick, and that is not the program's: the benchmark of an interval of 2.5 s takes
//! 0.2 s (a B-tree, whose loads wait for each other) to 2 s, so that what a moved page costs looks up to twelve times too dear. And it takes all
//! pages for equally used. Here the yardstick is the program's own time, and its pages are seen ([`crate::shadow`]).
//!
//! For each stretch between two looks the equations of load ([`terrace_machine::load`]) are solved twice. First as it was: the threads' time
//! without waiting for memory is given, and a number of accesses in a row that they waited for, chosen so that the solution is the time that
//! passed. Then with what a size would have cost: slow accesses wait as many times longer as slow memory's latency is fast memory's, under the
//! load that both have then; a hint fault and the copy of a promotion take a thread's time, each move interrupts all that run, copies take
//! bandwidth. A loss is the difference, over the whole run.
//!
//! Waiting time, accesses and bytes are what hardware counts (stalled cycles with a miss outstanding, last-level misses, memory controllers).

use terrace_core::units::PAGE_BYTES;
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::load::{Rates, ThreadWork, Traffic, Wait, solve_among};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_sim::tuning::Counters;

use crate::model::{slow_faults, slow_tier};
use crate::shadow::{Shadows, Size, Toll};

/// What counters say of a stretch with everything fast, at full size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Activity {
    /// Nanoseconds that passed while the program ran.
    pub nanos: f64,
    /// Threads that ran side by side, on average.
    pub threads: f64,
    /// Nanoseconds that threads waited for memory, summed over them.
    pub waited_nanos: f64,
    /// Accesses that reached memory.
    pub accesses: f64,
    /// Bytes that were read from and written to memory.
    pub bytes: [f64; 2],
}

impl Activity {
    /// Between two looks at the counters; `None` if nothing reached memory.
    pub fn between(before: &Counters, after: &Counters, scale: Scale) -> Option<Activity> {
        let factor = f64::from(scale.factor());
        let nanos = (after.ran_nanos - before.ran_nanos) * factor;
        let accesses = (after.fast_accesses - before.fast_accesses) as f64 * factor;
        let threads = (after.thread_nanos - before.thread_nanos) * factor / nanos;
        let bytes = [0, 1].map(|way| (after.fast_bytes[way] - before.fast_bytes[way]) as f64 * factor);
        let waited_nanos = (after.memory_nanos - before.memory_nanos).max(0.0) * factor;
        (nanos > 0.0 && accesses >= 1.0).then_some(Activity { nanos, threads, waited_nanos, accesses, bytes })
    }

    /// How much longer the stretch would take at each of these tolls.
    pub fn losses(&self, tolls: &[Toll], machine: &Machine) -> Vec<f64> {
        let nothing = Toll::default();
        // The more accesses in a row, the longer; no more than are made.
        let (mut low, mut high) = (0.0, self.accesses);
        for _ in 0..50 {
            let middle = f64::midpoint(low, high);
            if self.nanos_with(middle, &nothing, machine) < self.nanos { low = middle } else { high = middle }
        }
        let without = self.nanos_with(low, &nothing, machine);
        tolls.iter().map(|toll| self.nanos_with(low, toll, machine) / without - 1.0).collect()
    }

    /// The time of the stretch if threads wait for this many accesses in a row.
    fn nanos_with(&self, in_a_row: f64, toll: &Toll, machine: &Machine) -> f64 {
        let (management, slow) = (&machine.management, slow_tier(machine));
        let (promoted, demoted) = (toll.promotions * PAGE_BYTES as f64, toll.demotions * PAGE_BYTES as f64);
        let share = (toll.slow_accesses / self.accesses).clamp(0.0, 1.0);
        let copy_nanos = management.copy_nanos(PAGE_BYTES as f64, &machine.tiers[slow], &machine.tiers[0])
            + management.move_small_ns;
        let moves = toll.promotions + toll.demotions;
        let mut work = ThreadWork {
            stall_ns: (self.nanos * self.threads - self.waited_nanos).max(0.0)
                + moves * management.shootdown_ns * self.threads,
            ..ThreadWork::default()
        };
        let mut traffic = vec![Traffic::default(); machine.tiers.len()];
        let [read, written] = self.bytes;
        traffic[0] = Traffic { read, written };
        let mut kept = 1.0;
        if slow_faults(machine) {
            // Each page comes back by the first fault, and is fast then.
            work.stall_ns += toll.faults * machine.tiers[slow].read_latency_ns;
        } else {
            kept = 1.0 - share;
            work.stall_ns += toll.faults * management.hint_fault_ns + toll.promotions * copy_nanos;
            let unit = machine.tiers[slow].access_unit.get().max(LINE_BYTES) as f64 / LINE_BYTES as f64;
            traffic[0] = Traffic { read: read * kept + demoted, written: written * kept + promoted };
            traffic[slow] = Traffic { read: read * share * unit + promoted, written: written * share * unit + demoted };
            work.misses[slow][Wait::Dependent as usize] = (in_a_row * share) as u32;
        }
        work.misses[0][Wait::Dependent as usize] = (in_a_row * kept) as u32;
        // All threads' work in one, side by side as they ran: no cycles or overlapping loads are among it, so that neither rate matters.
        let rates = Rates { frequency_hertz: 1e9, parallelism: 1.0, cache_hit_ns: 0.0 };
        solve_among(&machine.tiers, &traffic, &[work], &rates, self.threads).nanos
    }
}

/// Time between two looks, seconds: to that ages are known. A tenth of the second in which kernels' scanners pass at the earliest.
pub const LOOK_SECONDS: f64 = 0.1;

/// Looks that the kernel's scanner of hint faults takes for a pass: by default it makes 256 MiB inaccessible each 100 ms, and goes past eight times as much
/// that is fast.
pub fn pass_looks(resident_bytes: f64, fast_share: f64) -> f64 {
    const STEP_BYTES: f64 = 268_435_456.0;
    const STEP_SECONDS: f64 = 0.1;
    let steps = (resident_bytes * (1.0 - fast_share)).max(resident_bytes / 8.0) / STEP_BYTES;
    steps.max(1.0) * STEP_SECONDS / LOOK_SECONDS
}

/// A run's forecast, look by look.
#[derive(Debug)]
pub struct Forecast {
    machine: Machine,
    scale: Scale,
    shares: Vec<f64>,
    shadows: Shadows,
    before: Vec<Toll>,
    last: Option<Counters>,
    /// Of the stretches so far: how long they took, and what each size would have added.
    nanos: f64,
    lost: Vec<f64>,
}

impl Forecast {
    /// For a program of this many pages, of the scaled machine, with these shares of it in fast memory, under a policy that promotes at the hint fault of
    /// number `threshold`.
    pub fn new(machine: Machine, scale: Scale, pages: u64, shares: &[f64], threshold: u8) -> Forecast {
        let resident = pages as f64 * PAGE_BYTES as f64 * f64::from(scale.factor());
        let size =
            |share: &f64| Size { fast_pages: (pages as f64 * share) as u64, pass_looks: pass_looks(resident, *share) };
        let shadows = Shadows::new(shares.iter().map(size), threshold);
        Forecast {
            machine,
            scale,
            before: vec![Toll::default(); shares.len()],
            lost: vec![0.0; shares.len()],
            shares: shares.to_vec(),
            shadows,
            last: None,
            nanos: 0.0,
        }
    }

    /// A look at pages and counters, [`LOOK_SECONDS`] after the one before.
    pub fn look(&mut self, pages: &[Option<u32>], counters: &Counters) {
        self.shadows.look(pages);
        let tolls: Vec<Toll> = self.shadows.tolls().collect();
        let before = std::mem::replace(&mut self.before, tolls.clone());
        let activity = self.last.replace(*counters).and_then(|last| Activity::between(&last, counters, self.scale));
        let Some(activity) = activity else { return };
        let factor = f64::from(self.scale.factor());
        let added: Vec<Toll> = tolls.iter().zip(&before).map(|(toll, before)| toll.since(before, factor)).collect();
        for (lost, loss) in self.lost.iter_mut().zip(activity.losses(&added, &self.machine)) {
            *lost += activity.nanos * loss;
        }
        self.nanos += activity.nanos;
    }

    /// Share and loss of each size so far.
    pub fn losses(&self) -> impl Iterator<Item = (f64, f64)> {
        let nanos = self.nanos.max(f64::MIN_POSITIVE);
        self.shares.iter().zip(&self.lost).map(move |(share, lost)| (*share, lost / nanos))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine::preset("optane-6252").unwrap()
    }

    /// A tenth of a second of four threads, which wait for memory half of their time, at a load that does not slow it down.
    fn activity() -> Activity {
        let waited_nanos = 2e8;
        let accesses = waited_nanos / machine().tiers[0].read_latency_ns * 4.0;
        Activity { nanos: 1e8, threads: 4.0, waited_nanos, accesses, bytes: [accesses * 64.0, 0.0] }
    }

    fn loss(activity: &Activity, toll: Toll, machine: &Machine) -> f64 {
        activity.losses(&[toll], machine)[0]
    }

    #[test]
    fn nothing_slow_and_nothing_moved_costs_nothing() {
        assert_eq!(loss(&activity(), Toll::default(), &machine()), 0.0);
    }

    #[test]
    fn slow_accesses_cost_what_the_latencies_differ_by_of_the_time_waited() {
        let (machine, activity) = (machine(), activity());
        let toll = Toll { slow_accesses: 0.1 * activity.accesses, ..Toll::default() };
        let ratio = machine.tiers[slow_tier(&machine)].read_latency_ns / machine.tiers[0].read_latency_ns;
        let expect = 0.5 * 0.1 * (ratio - 1.0);
        let loss = loss(&activity, toll, &machine);
        assert!((loss / expect - 1.0).abs() < 0.15, "{loss} {expect}");
    }

    #[test]
    fn a_move_interrupts_every_thread_and_a_fault_one() {
        let (machine, activity) = (machine(), activity());
        let management = &machine.management;
        let moved = loss(&activity, Toll { demotions: 1000.0, ..Toll::default() }, &machine);
        assert!((moved / (1000.0 * management.shootdown_ns / 1e8) - 1.0).abs() < 0.05, "{moved}");
        let faults = loss(&activity, Toll { faults: 1000.0, ..Toll::default() }, &machine);
        assert!((faults / (1000.0 * management.hint_fault_ns / 4e8) - 1.0).abs() < 0.05, "{faults}");
    }

    #[test]
    fn a_program_held_by_bandwidth_loses_less_by_interruptions() {
        let (machine, quiet) = (machine(), activity());
        let tier = &machine.tiers[0];
        let busy = Activity { bytes: [0.94 * tier.read_bandwidth * 0.1, 0.0], ..quiet };
        let toll = Toll { demotions: 10_000.0, ..Toll::default() };
        assert!(loss(&busy, toll, &machine) < 0.7 * loss(&quiet, toll, &machine));
    }

    #[test]
    fn a_fault_on_compressed_memory_takes_its_latency() {
        let machine = Machine::preset("zram-vm").unwrap();
        let waited_nanos = 1e8;
        let accesses = waited_nanos / machine.tiers[0].read_latency_ns;
        let activity = Activity { nanos: 1e8, threads: 2.0, waited_nanos, accesses, bytes: [accesses * 64.0, 0.0] };
        let loss = loss(&activity, Toll { faults: 100.0, slow_accesses: 1e4, ..Toll::default() }, &machine);
        let expect = 100.0 * machine.tiers[slow_tier(&machine)].read_latency_ns / 2e8;
        assert!((loss / expect - 1.0).abs() < 0.05, "{loss} {expect}");
    }

    #[test]
    fn a_pass_goes_past_what_is_fast_eight_times_as_fast() {
        let gib = |count: f64| count * 1_073_741_824.0;
        // 16 GiB: 8 steps over address space; 64 where all of it is slow.
        assert!((pass_looks(gib(16.0), 0.99) * LOOK_SECONDS - 0.8).abs() < 1e-9);
        assert!((pass_looks(gib(16.0), 0.0) * LOOK_SECONDS - 6.4).abs() < 1e-9);
        assert!((pass_looks(gib(0.1), 0.5) * LOOK_SECONDS - 0.1).abs() < 1e-9);
    }
}
