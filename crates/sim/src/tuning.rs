//! Fast memory that changes its size while a program runs, and the counters by which someone decides that.
//!
//! In: a [`Tuning`] that is shown the counters at the times it asks for. Out: the limit it answers, held by the modelled machine. Must
//! not: decide, or show what no counter of real hardware or kernel could.
//!
//! How a limit is held depends on who manages fast memory. Where the policy's kernel reclaims, the watermarks rise by what is
//! withheld ([`terrace_machine::reclaim::Reclaim::withhold`]), as Tuna has it (section 4). Elsewhere the fast tier simply
//! holds so many pages, as under a control group, and the policy is told and demotes.

use terrace_core::engine::Input;
use terrace_core::policy::FastGoal;
use terrace_core::units::{TierId, Time};
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::load::{Stretch, Traffic, Wait, solve_among};
use terrace_machine::preset::TierKind;

use crate::simulation::Simulation;

/// What has been counted since the start. Of the scaled machine but for `now`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counters {
    /// Full-size time.
    pub now: Time,
    /// Accesses served by the fastest tier.
    pub fast_accesses: u64,
    /// Accesses served by the others.
    pub slow_accesses: u64,
    /// Cycles in which the threads computed, cache hits included at what they cost.
    pub operations: f64,
    /// Pages promoted.
    pub promoted: u64,
    /// Pages demoted.
    pub demoted: u64,
    /// Pages whose promotion failed.
    pub failed_promotions: u64,
    /// Pages with memory now.
    pub resident_pages: u64,
    /// Pages in the fastest tier now.
    pub fast_pages: u64,
    /// The limit of fast pages now.
    pub fast_limit: u64,
    /// Accesses to a page that make it hot, by the policy's own threshold; `None` where it has none that changes.
    pub hot_threshold: Option<f64>,
    /// Threads that ran lately.
    pub threads: u32,
    /// Time the threads ran, summed over them, in nanoseconds.
    pub thread_nanos: f64,
    /// Of that, what they waited for slow memory beyond what fast memory would have taken: what counters of stalled cycles show,
    /// split by the tier that was waited for.
    pub slow_nanos: f64,
    /// Of that, what management cost them: faults, marks, moves in faults, shootdowns, direct reclaim.
    pub management_nanos: f64,
    /// How long the program ran: time that passed, whatever the number of threads, in nanoseconds.
    pub ran_nanos: f64,
    /// Of that, what it would not have taken with everything fast and unmanaged. It is less than what the threads waited: while some
    /// wait, the others find memory less loaded. On hardware it is worked out from the counters of stalled cycles, the bytes that
    /// memory controllers count by tier, and the tiers' latency under load, which is measured once; here from the same, by the same
    /// equations that time runs by. `ran_nanos` and this are counted while a [`Tuning`] looks on.
    pub lost_nanos: f64,
}

/// Decides about the size of fast memory.
pub trait Tuning: Send {
    /// When it wants to be asked next, in full-size time.
    fn due(&self) -> Time;
    /// Looks at the counters. Returns the limit in pages from now on, or `None` to leave it.
    fn tune(&mut self, counters: &Counters) -> Option<u64>;
}

/// A limit that is set once, at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedLimit {
    /// The limit in pages.
    pub pages: u64,
    done: bool,
}

impl FixedLimit {
    /// This limit from the start.
    pub const fn new(pages: u64) -> FixedLimit {
        FixedLimit { pages, done: false }
    }
}

impl Tuning for FixedLimit {
    fn due(&self) -> Time {
        if self.done { Time::FAR_FUTURE } else { Time::ZERO }
    }
    fn tune(&mut self, _counters: &Counters) -> Option<u64> {
        self.done = true;
        Some(self.pages)
    }
}

/// Waiting as the counters sum it up, in nanoseconds over all threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waited {
    pub(crate) threads: f64,
    pub(crate) slow: f64,
    pub(crate) cycles: u64,
    /// Of the time that passed.
    pub(crate) ran: f64,
    pub(crate) lost: f64,
    /// What management shared out to threads in this stretch; and what the threads had paid themselves, in their faults, up to the end of
    /// the one before.
    pub(crate) shared: f64,
    paid: f64,
    /// Bytes that moves read and wrote in the fastest tier in this stretch.
    pub(crate) moved_fast: [u64; 2],
}

impl Simulation {
    /// Has `tuning` decide about the size of fast memory from now on.
    pub fn tune_with(&mut self, tuning: Box<dyn Tuning>) {
        self.tuning = Some(tuning);
        self.tune_if_due();
    }

    /// Holds fast memory to so many pages from now on.
    pub fn limit_fast(&mut self, pages: u64) {
        let pages = pages.clamp(1, self.fast_capacity);
        self.fast_limit = pages;
        let now = self.now();
        let goal = if self.kernel.demotion {
            // The engine lets promotions pass that the watermarks allow; the kernel demotes for them.
            self.fast_capacity - self.reclaim.withhold(TierId::FAST, self.fast_capacity - pages)
        } else {
            self.hot.memory.set_capacity(TierId::FAST, pages);
            self.engine.handle(now, Input::Capacity(TierId::FAST, pages));
            pages
        };
        self.engine.handle(now, Input::Goal(FastGoal::Pages(goal)));
        self.poll();
    }

    /// What has been counted.
    pub fn counters(&self) -> Counters {
        let counts = &self.counts;
        let hits = counts.cache_hits as f64 * self.rates.cache_hit_ns / self.rates.parallelism;
        Counters {
            now: self.now(),
            fast_accesses: counts.tier_accesses[0],
            slow_accesses: counts.tier_accesses[1..].iter().sum(),
            operations: self.waited.cycles as f64 + hits * self.rates.frequency_hertz / 1e9,
            promoted: counts.promoted,
            demoted: counts.demoted,
            failed_promotions: counts.failed_promotions,
            resident_pages: self.hot.memory.resident(),
            fast_pages: self.hot.memory.used(TierId::FAST),
            fast_limit: self.fast_limit,
            hot_threshold: self.hot_threshold(),
            threads: self.active,
            thread_nanos: self.waited.threads,
            slow_nanos: self.waited.slow,
            management_nanos: self.costs.program_stall(),
            ran_nanos: self.waited.ran,
            lost_nanos: self.waited.lost,
        }
    }

    /// Policies with a histogram name the bin from which pages are hot; bin k counts pages of 2^k accesses and more.
    fn hot_threshold(&self) -> Option<f64> {
        let bin = self.engine.policy_metrics().into_iter().find(|metric| metric.name == "hot_threshold_bin")?;
        Some(bin.value.exp2())
    }

    /// Sums up what the threads of a stretch waited for, before their work is cleared.
    pub(crate) fn note_waits(&mut self, stretch: &Stretch, traffic: &[Traffic], concurrency: f64) {
        let paid = self.costs.hint_fault_stall + self.costs.refault_stall;
        let management =
            std::mem::take(&mut self.waited.shared) + paid - std::mem::replace(&mut self.waited.paid, paid);
        let moved = std::mem::take(&mut self.waited.moved_fast);
        if self.tuning.is_some() {
            self.waited.ran += stretch.nanos;
            self.waited.lost += stretch.nanos - self.without(stretch, traffic, concurrency, management, moved);
        }
        self.waited.threads += stretch.nanos * concurrency;
        for work in &self.hot.work {
            self.waited.cycles += work.cycles;
            for k in (1..self.tiers.len()).filter(|&k| self.tiers[k].kind == TierKind::Memory) {
                let slow = work.waits(k, &self.tiers[k], &self.rates) * stretch.factor[k];
                // The same accesses, had fast memory served them.
                let fast = work.waits(k, &self.tiers[0], &self.rates) * stretch.factor[0];
                self.waited.slow += (slow - fast).max(0.0);
            }
        }
    }

    /// What a stretch would have taken with everything fast and without `management`, of which this much was waited for in it.
    fn without(
        &self,
        stretch: &Stretch,
        traffic: &[Traffic],
        concurrency: f64,
        management: f64,
        moved_fast: [u64; 2],
    ) -> f64 {
        let mut fast = traffic[0];
        fast.read -= moved_fast[0] as f64;
        fast.written -= moved_fast[1] as f64;
        let stalled: f64 = self.hot.work.iter().map(|work| work.stall_ns).sum();
        let kept = if stalled > 0.0 { 1.0 - (management / stalled).clamp(0.0, 1.0) } else { 1.0 };
        let (mut work, mut slow) = (self.hot.work.clone(), 0u64);
        for work in &mut work {
            work.stall_ns *= kept;
            for k in (1..self.tiers.len()).filter(|&k| self.tiers[k].kind == TierKind::Memory) {
                let misses = std::mem::take(&mut work.misses[k]);
                slow += misses.iter().map(|&count| u64::from(count)).sum::<u64>();
                fast.read += misses.iter().map(|&count| f64::from(count)).sum::<f64>() * LINE_BYTES as f64;
                // What is stored to is written back, sooner or later.
                fast.written += f64::from(misses[Wait::Store as usize]) * LINE_BYTES as f64;
                work.misses[0].iter_mut().zip(misses).for_each(|(fast, slow)| *fast += slow);
            }
        }
        if slow == 0 && kept >= 1.0 && moved_fast == [0; 2] {
            return stretch.nanos;
        }
        let mut all = vec![Traffic::default(); self.tiers.len()];
        all[0] = fast;
        let threads = concurrency.min(f64::from(self.config.machine.processor.cores));
        solve_among(&self.tiers, &all, &work, &self.rates, threads).nanos
    }

    pub(crate) fn tune_if_due(&mut self) {
        let Some(mut tuning) = self.tuning.take() else { return };
        if tuning.due() <= self.now()
            && let Some(pages) = tuning.tune(&self.counters())
        {
            self.limit_fast(pages);
        }
        self.tuning = Some(tuning);
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::{Bytes, Vpn};
    use terrace_machine::preset::Machine;
    use terrace_machine::scale::Scale;

    use super::*;
    use crate::{FastSize, SimConfig};

    const PAGES: u32 = 8192;

    fn simulation(policy: &str) -> Simulation {
        let machine = Machine::preset("optane-6252").unwrap();
        let mut config = SimConfig::new(machine, Bytes::of_pages(u64::from(PAGES)), FastSize::Share(1.0));
        config.cache = false;
        config.scale = Scale::new(64).unwrap();
        let policy = terrace_policies::build(policy, terrace_policies::Settings::default()).unwrap();
        let mut simulation = Simulation::new(config, policy).unwrap();
        simulation.map(Vpn(0), u64::from(PAGES), false);
        simulation
    }

    fn play(simulation: &mut Simulation, passes: u32, hot: u32) {
        for _ in 0..passes {
            let batch: Vec<u32> = (0..hot).collect();
            simulation.feed(&batch);
        }
    }

    #[test]
    fn a_limit_is_held_both_ways() {
        for policy in ["tpp", "flexmem"] {
            let mut simulation = simulation(policy);
            play(&mut simulation, 1, PAGES);
            let limit = u64::from(PAGES) / 2;
            simulation.limit_fast(limit);
            // Some ten seconds of the full machine: FlexMem looks twice a second, and TPP's scanner passes once in one or more.
            play(&mut simulation, 4000, 2000);
            let before = simulation.counters();
            play(&mut simulation, 400, 2000);
            let counters = simulation.counters();
            // The watermarks let promotions take a fifth of what is withheld before reclaim has made room for them.
            let most = if policy == "tpp" { limit + limit / 5 } else { limit };
            assert!(counters.fast_pages <= most, "{policy}: {} pages, limit {limit}", counters.fast_pages);
            let slow = counters.slow_accesses - before.slow_accesses;
            let fast = counters.fast_accesses - before.fast_accesses;
            assert!(
                slow * 2 < fast,
                "{policy}: most of what is in use is fast again: {slow} slow, {fast} fast accesses"
            );
            assert_eq!(counters.fast_limit, limit);
            simulation.limit_fast(u64::from(PAGES));
            assert_eq!(simulation.counters().fast_limit, u64::from(PAGES));
        }
    }

    #[test]
    fn with_everything_fast_the_first_pages_are_fast() {
        for policy in ["tpp", "autonuma", "flexmem"] {
            let mut simulation = simulation(policy);
            play(&mut simulation, 3, PAGES / 2);
            let counters = simulation.counters();
            assert_eq!((counters.slow_accesses, counters.fast_pages), (0, u64::from(PAGES) / 2), "{policy}");
        }
    }

    #[test]
    fn hot_pages_that_began_slow_come_up_though_the_limit_is_reached() {
        let mut simulation = simulation("tpp");
        simulation.limit_fast(u64::from(PAGES) / 2);
        // What is used at first fills fast memory, and is left alone from then on.
        play(&mut simulation, 1, PAGES);
        let hot: Vec<u32> = (PAGES - 1000..PAGES).collect();
        (0..4000).for_each(|_| simulation.feed(&hot));
        let before = simulation.counters();
        (0..400).for_each(|_| simulation.feed(&hot));
        let after = simulation.counters();
        let (fast, slow) = (after.fast_accesses - before.fast_accesses, after.slow_accesses - before.slow_accesses);
        assert!(slow * 10 < fast, "{slow} slow, {fast} fast accesses");
    }

    #[test]
    fn what_was_lost_is_what_the_same_work_takes_less_with_everything_fast() {
        // Eight threads that load memory, and hint faults and promotions beside.
        let run = |limit: u64| {
            let mut simulation = simulation("tpp");
            simulation.tune_with(Box::new(FixedLimit::new(limit)));
            // With all of fast memory allowed there is room for what TPP keeps free.
            play(&mut simulation, 1, 3 * PAGES / 4);
            simulation.meet();
            let before = simulation.counters();
            play(&mut simulation, 2000, 3 * PAGES / 4);
            simulation.meet();
            let after = simulation.counters();
            (after.ran_nanos - before.ran_nanos, after.lost_nanos - before.lost_nanos)
        };
        let ((fast, nothing), (slow, lost)) = (run(u64::from(PAGES)), run(u64::from(PAGES) / 2));
        assert!(nothing.abs() < fast * 1e-9, "{nothing}");
        assert!(lost > fast * 0.05, "{lost} of {slow}, {fast} with everything fast");
        assert!(((slow - lost) / fast - 1.0).abs() < 0.05, "{slow} - {lost} against {fast}");
    }

    #[test]
    fn counters_say_what_slow_memory_cost() {
        let run = |slow: bool| {
            let machine = Machine::preset("optane-6252").unwrap();
            let mut config = SimConfig::new(machine, Bytes::of_pages(u64::from(PAGES)), FastSize::Share(1.0));
            (config.cache, config.tlb) = (false, false);
            let tier = TierId(u8::from(slow));
            let mut simulation = Simulation::new(config, Box::new(crate::fixed::Fixed(tier))).unwrap();
            simulation.map(Vpn(0), u64::from(PAGES), false);
            // First touches clear their pages, which takes longer in slow memory and is no access of the program's.
            play(&mut simulation, 1, PAGES);
            simulation.meet();
            let before = simulation.counters();
            play(&mut simulation, 20, PAGES);
            simulation.meet();
            let after = simulation.counters();
            assert_eq!((after.slow_accesses == 0, after.fast_accesses == 0), (!slow, slow));
            (after.thread_nanos - before.thread_nanos, after.slow_nanos - before.slow_nanos)
        };
        let ((fast, none), (slow, cost)) = (run(false), run(true));
        assert_eq!(none, 0.0);
        assert!(((slow - cost) / fast - 1.0).abs() < 0.02, "{slow} - {cost} against {fast}");
    }
}
