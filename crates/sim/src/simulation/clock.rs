//! How virtual time advances: stretch by stretch, and among threads.
//!
//! In: what the inner loop counted since the last stretch. Out: time for all and for each thread, totals, and the call to do what is
//! due. Must not: look at single accesses; those are over when a stretch ends.

use terrace_machine::load::{Stretch, ThreadWork, Traffic, solve_among};

use super::{NEVER, ROUND_ACCESSES, STRETCH_ACCESSES, STRETCH_LEAST, STRETCH_NANOS, Simulation};

/// A stall of all running threads, in nanoseconds: the part of each that runs, and what each thread of the stretch was given in their place.
#[derive(Clone, Copy, Default)]
struct Shared {
    each: f64,
    laid: f64,
}

/// Whether a thread that was seen last after so many accesses of the region is taken to run.
fn is_running(seen: u64, region_accesses: u64) -> bool {
    seen != NEVER && seen + ROUND_ACCESSES >= region_accesses
}

impl Simulation {
    /// Ends the stretch: time, totals, and everything that is due.
    pub(super) fn close_stretch(&mut self, barrier: bool) {
        if self.weight > 1 {
            self.weigh();
        }
        let traffic: Vec<Traffic> = (0..self.tiers.len())
            .map(|k| Traffic { read: self.hot.read[k] as f64, written: self.hot.written[k] as f64 })
            .collect();
        let concurrency = self.concurrency();
        let shared = self.share_stall(concurrency);
        let stretch = solve_among(&self.tiers, &traffic, &self.hot.work, &self.rates, concurrency.min(self.cores()));
        if stretch.active > 0 || stretch.nanos > 0.0 {
            self.run_clocks(&stretch, concurrency, shared);
            self.active = concurrency as u32;
            self.note_waits(&stretch, &traffic, concurrency);
            if let Some(run) = &mut self.hot.mmu {
                run.set_load(&stretch.factor);
            }
            self.now_ns += stretch.nanos;
            self.span_ns += stretch.nanos;
            if stretch.bandwidth_bound {
                self.counts.bandwidth_bound_ns += stretch.nanos;
            }
            self.total_up();
            let full = stretch.nanos * f64::from(self.config.scale.factor());
            let per_access = full / self.stretch_accesses.max(1) as f64;
            if self.stretch_accesses >= STRETCH_LEAST {
                self.stretch_limit =
                    ((STRETCH_NANOS / per_access.max(1e-3)) as usize).clamp(STRETCH_LEAST, STRETCH_ACCESSES);
            }
        }
        if barrier {
            // Everyone waits for the thread that ran longest.
            let longest = self.clocks.iter().copied().fold(0.0, f64::max);
            let lag = (self.region_start_ns + longest - self.now_ns).max(0.0);
            self.now_ns += lag;
            self.span_ns += lag;
            self.begin_region(false);
        }
        self.stretch_accesses = 0;
        self.tell_probe();
        if let Some(progress) = &self.progress {
            progress.tell(self.counts.accesses, self.now());
        }
        self.manage();
        self.tune_if_due();
        let now = self.now();
        if self.series.is_due(now) {
            self.add_row(now);
        }
    }

    /// What was counted in the stretch becomes that of all accesses its own stand for.
    fn weigh(&mut self) {
        let weight = self.weight;
        for work in &mut self.hot.work {
            work.cache_hits *= u64::from(weight);
            work.misses.iter_mut().flatten().for_each(|misses| *misses *= weight);
        }
    }

    pub(super) fn cores(&self) -> f64 {
        f64::from(self.config.machine.processor.cores)
    }

    /// How many threads run side by side: those seen lately in this region, or as many as the parallel region before had
    /// where a new one has just begun and not all had their turn. Taking too many is put right at the barrier.
    fn concurrency(&mut self) -> f64 {
        self.region_accesses += self.stretch_accesses as u64;
        let mut running = 0;
        for (work, seen) in self.hot.work.iter().zip(&mut self.seen_at) {
            if *work != ThreadWork::default() {
                *seen = self.region_accesses;
            }
            running += usize::from(is_running(*seen, self.region_accesses));
        }
        if self.forked && self.region_accesses < ROUND_ACCESSES {
            running = running.max(self.last_region_threads);
        }
        running.max(1) as f64
    }

    /// Lays the stall that every core which runs the program waits through on the threads that did something in this stretch: few of those
    /// that run had their turn. A stall that finds nobody stays for the next stretch.
    fn share_stall(&mut self, concurrency: f64) -> Shared {
        if self.pending_stall == 0.0 {
            return Shared::default();
        }
        let lost = self.pending_stall * concurrency.min(self.cores());
        let mut present: Vec<_> = self.hot.work.iter_mut().filter(|work| **work != ThreadWork::default()).collect();
        if present.is_empty() {
            return Shared::default();
        }
        let laid = lost / present.len() as f64;
        present.iter_mut().for_each(|work| work.stall_ns += laid);
        self.pending_stall = 0.0;
        self.waited.shared += lost;
        Shared { each: lost / concurrency, laid }
    }

    /// Each thread's own time in the stretch. What all waited through goes to all that run, whoever had it laid on.
    fn run_clocks(&mut self, stretch: &Stretch, concurrency: f64, shared: Shared) {
        let total: f64 = self.hot.work.iter().map(|work| work.nanos(&self.tiers, &self.rates, &stretch.factor)).sum();
        if total <= 0.0 {
            return;
        }
        // Bandwidth, or turns on too few cores, stretch everybody's time alike.
        let stretched = stretch.nanos * concurrency / total;
        for ((clock, work), seen) in self.clocks.iter_mut().zip(&self.hot.work).zip(&self.seen_at) {
            let mut nanos = if is_running(*seen, self.region_accesses) { shared.each } else { 0.0 };
            if *work != ThreadWork::default() {
                nanos += work.nanos(&self.tiers, &self.rates, &stretch.factor) - shared.laid;
            }
            *clock += nanos * stretched;
        }
    }

    pub(super) fn begin_region(&mut self, forked: bool) {
        if self.forked {
            self.last_region_threads = self.seen_at.iter().filter(|seen| **seen != NEVER).count().max(1);
        }
        self.forked = forked;
        self.region_accesses = 0;
        self.region_start_ns = self.now_ns;
        self.clocks.fill(0.0);
        self.seen_at.fill(NEVER);
    }

    pub(crate) fn total_up(&mut self) {
        let memory_mode = self.hot.memory_mode.is_some();
        for work in &mut self.hot.work {
            self.counts.cache_hits += work.cache_hits;
            for (tier, misses) in work.misses.iter().enumerate() {
                let misses: u64 = misses.iter().map(|&n| u64::from(n)).sum();
                self.counts.tier_accesses[tier] += misses;
                if memory_mode && tier > 0 {
                    // A miss of Memory Mode probed the fast tier first; it was served by the slow one.
                    self.counts.tier_accesses[0] -= misses;
                }
            }
            *work = ThreadWork::default();
        }
        for tier in 0..self.tiers.len() {
            self.counts.tier_read[tier] += std::mem::take(&mut self.hot.read[tier]);
            self.counts.tier_written[tier] += std::mem::take(&mut self.hot.written[tier]);
        }
        self.counts.peak_pages = self.counts.peak_pages.max(self.hot.memory.resident());
        if let Some(future) = &mut self.future {
            let accesses = self.counts.accesses - std::mem::replace(&mut self.told_accesses, self.counts.accesses);
            future.add(self.hot.base, accesses, &mut self.hot.missed);
        }
    }
}

#[cfg(test)]
mod tests {
    use terrace_core::units::{Bytes, Vpn};
    use terrace_machine::load::Wait;
    use terrace_machine::preset::Machine;
    use terrace_machine::scale::Scale;

    use crate::record::Record;
    use crate::{FastSize, SimConfig, Simulation};

    const PAGES: u64 = 4096;

    /// A dependent load.
    #[derive(Clone, Copy)]
    struct Step(u64, usize);

    impl Record for Step {
        fn page(&self) -> u64 {
            self.0
        }
        fn line(&self) -> u32 {
            0
        }
        fn wait(&self) -> Wait {
            Wait::Dependent
        }
        fn thread(&self) -> usize {
            self.1
        }
        fn cycles(&self) -> u32 {
            0
        }
    }

    /// Small nanoseconds of a parallel region of so many threads delivered in turns of so many accesses, with a stall of all threads
    /// after each 2000 of them.
    fn region(threads: usize, turn: usize, stall: f64) -> f64 {
        let machine = Machine::preset("optane-6252").unwrap();
        let mut config = SimConfig::new(machine, Bytes::of_pages(PAGES), FastSize::Share(1.0));
        config.cache = false;
        config.scale = Scale::new(512).unwrap();
        let policy = terrace_policies::build("first-touch", terrace_policies::Settings::default()).unwrap();
        let mut simulation = Simulation::new(config, policy).unwrap();
        simulation.map(Vpn(0), PAGES, false);
        let steps: Vec<Step> = (0..128_000).map(|n| Step((n as u64 * 7) % PAGES, n / turn % threads)).collect();
        let mut began = 0.0;
        // The first region touches the pages and tells how many threads there are.
        for stall in [0.0, stall] {
            simulation.meet();
            simulation.fork();
            began = simulation.now_ns;
            for part in steps.chunks(2000) {
                simulation.feed(part);
                simulation.stall_each(stall);
            }
        }
        simulation.meet();
        simulation.now_ns - began
    }

    #[test]
    fn a_stall_of_all_threads_takes_all_its_time_however_the_threads_take_turns() {
        // 64 threads are more than the machine has cores.
        for (threads, turn) in [(8, 1), (8, 100), (8, 1000), (8, 2000), (64, 1), (64, 100)] {
            let (without, with) = (region(threads, turn, 0.0), region(threads, turn, 10_000.0));
            let stalls = 64.0 * 10_000.0;
            let ratio = (with - without) / stalls;
            assert!((ratio - 1.0).abs() < 0.05, "{threads} threads, turns of {turn}: {ratio:.2} of what was asked for");
        }
    }
}
