//! The size of fast memory while a run goes on, and who is asked about it.
//!
//! In: a [`Tuning`], or a limit. Out: capacity or watermarks of the modelled machine, and the engine's goal. Must not: decide.

use terrace_core::engine::Input;
use terrace_core::policy::FastGoal;
use terrace_core::units::TierId;

use super::Simulation;
use crate::tuning::Tuning;

/// How much of fast memory may be used, and who decides.
pub(super) struct Limit {
    tuning: Option<Box<dyn Tuning>>,
    /// Pages the fast tier has, and those of them that may be used.
    capacity: u64,
    pages: u64,
}

impl Limit {
    /// A limit of all `pages`.
    pub(super) fn none(capacity: u64) -> Limit {
        Limit { tuning: None, capacity, pages: capacity }
    }

    pub(super) fn is_tuned(&self) -> bool {
        self.tuning.is_some()
    }

    /// Pages of fast memory that may be used.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }
}

impl Simulation {
    /// Has `tuning` decide about the size of fast memory from now on.
    pub fn tune_with(&mut self, tuning: Box<dyn Tuning>) {
        if tuning.watches_pages() {
            self.hot.record_misses();
        }
        self.limit.tuning = Some(tuning);
        self.tune_if_due();
    }

    /// Limits fast memory to `pages` from now on.
    pub fn limit_fast(&mut self, pages: u64) {
        let pages = pages.clamp(1, self.limit.capacity);
        self.limit.pages = pages;
        let now = self.now();
        let goal = if self.kernel.rules().demotion {
            // The engine lets promotions pass that the watermarks allow; the kernel demotes for them.
            self.limit.capacity - self.kernel.withhold(self.limit.capacity - pages)
        } else {
            self.hot.memory.set_capacity(TierId::FAST, pages);
            self.link.handle(now, Input::Capacity(TierId::FAST, pages));
            pages
        };
        self.link.handle(now, Input::Goal(FastGoal::Pages(goal)));
        self.poll();
    }

    pub(super) fn tune_if_due(&mut self) {
        let Some(mut tuning) = self.limit.tuning.take() else { return };
        if tuning.due() <= self.now() {
            let counters = self.counters();
            if tuning.watches_pages() {
                tuning.watch(&self.pages_seen(), &counters);
            }
            if let Some(pages) = tuning.tune(&counters) {
                self.limit_fast(pages);
            }
        }
        self.limit.tuning = Some(tuning);
    }

    /// Each page's accesses that reached memory since the look before.
    fn pages_seen(&mut self) -> Vec<Option<u32>> {
        let mut pages: Vec<Option<u32>> =
            self.hot.memory.words().iter().map(|word| word.tier().is_some().then_some(0)).collect();
        for page in self.hot.take_missed() {
            if let Some(Some(accesses)) = pages.get_mut(page as usize) {
                *accesses += 1;
            }
        }
        pages
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::{Bytes, Time, Vpn};
    use terrace_machine::preset::Machine;
    use terrace_machine::scale::Scale;

    use super::*;
    use crate::tuning::{Counters, FixedLimit};
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
    fn who_watches_pages_sees_what_reached_memory_since_the_look_before() {
        /// Looks each full-size millisecond; what it saw, summed up by page.
        #[derive(Default)]
        struct Watcher {
            due: Time,
            seen: std::sync::Arc<std::sync::Mutex<Vec<u64>>>,
        }
        impl Tuning for Watcher {
            fn due(&self) -> Time {
                self.due
            }
            fn tune(&mut self, counters: &Counters) -> Option<u64> {
                self.due = counters.now + std::time::Duration::from_millis(1);
                None
            }
            fn watches_pages(&self) -> bool {
                true
            }
            fn watch(&mut self, pages: &[Option<u32>], _counters: &Counters) {
                let mut seen = self.seen.lock().unwrap();
                seen.resize(PAGES as usize, 0);
                seen.iter_mut().zip(pages).for_each(|(seen, page)| *seen += u64::from(page.unwrap_or(0)));
            }
        }
        let watcher = Watcher::default();
        let seen = watcher.seen.clone();
        let mut simulation = simulation("tpp");
        simulation.tune_with(Box::new(watcher));
        play(&mut simulation, 50, 1000);
        simulation.meet();
        let accesses = simulation.counters().fast_accesses;
        let seen = seen.lock().unwrap();
        let sum: u64 = seen.iter().sum();
        assert!(sum > accesses * 9 / 10 && sum <= accesses, "{sum} of {accesses}");
        assert!(
            seen[..1000].iter().all(|&count| (40..=50).contains(&count))
                && seen[1000..].iter().all(|&count| count == 0)
        );
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
            // First touches clear their pages, which takes longer in slow memory and is not an access of the program.
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
