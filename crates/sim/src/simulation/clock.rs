//! How virtual time advances: stretch by stretch, and among threads.
//!
//! In: what the inner loop counted since the last stretch, and stalls that are laid on threads. Out: time for all and for each thread. Must not:
//! look at single accesses; those are over when a stretch ends. Nor do what is due; the order of events is the simulation's.

use terrace_core::units::{TierId, Time};
use terrace_machine::load::{Rates, Stretch, ThreadWork, Traffic, solve_among};
use terrace_machine::preset::Tier;
use terrace_machine::scale::Scale;

use super::Simulation;

/// Most accesses of a stretch.
pub(super) const STRETCH_ACCESSES: usize = 16_384;
/// Least accesses of a stretch, barriers aside: below it the load model costs more than the accesses.
const STRETCH_LEAST: usize = 512;
/// Full-size nanoseconds a stretch should not exceed: half of the shortest interval at which any policy acts (10 ms).
const STRETCH_NANOS: f64 = 5e6;
/// A thread without an access for this many accesses counts as stopped, unless a round of turns of all threads was seen to take longer.
const ROUND_ACCESSES: u64 = 1 << 16;
const NEVER: u64 = u64::MAX;

/// See the module's header.
pub(super) struct Clock {
    scale: Scale,
    rates: Rates,
    cores: f64,
    /// Small nanoseconds since the start.
    now_ns: f64,
    /// Of these, the time not managed yet.
    span_ns: f64,
    stretch_accesses: usize,
    stretch_limit: usize,
    /// Since the latest fork or barrier: when it was, how long each thread has run, and when it was last seen, counted
    /// in accesses.
    region_start_ns: f64,
    clocks: Vec<f64>,
    seen_at: Vec<u64>,
    region_accesses: u64,
    /// A thread without an access for this many accesses counts as stopped: twice the longest that one was seen to pause between two turns. A
    /// turn is a step of the program, which may be a block of a hundred thousand accesses.
    round: u64,
    /// Whether a fork began the region, and how many threads the one before it had.
    forked: bool,
    last_region_threads: usize,
    /// Threads that did anything in the latest stretch.
    active: u32,
    /// Factor on each tier's latency in it.
    load: [f64; TierId::MAX],
    pending_stall: f64,
}

/// What a stretch amounted to.
pub(super) struct Passed {
    pub(super) stretch: Stretch,
    pub(super) traffic: Vec<Traffic>,
    /// Threads that ran side by side, which may be more than the cores.
    pub(super) concurrency: f64,
    /// Nanoseconds of stalls of all threads that were laid on those of the stretch.
    pub(super) stalled: f64,
    /// Nanoseconds between two accesses of a thread, in the mean.
    pub(super) access_ns: f64,
}

/// A stall of all running threads, in nanoseconds: the part of each that runs, and what each thread of the stretch was given in their place.
#[derive(Clone, Copy, Default)]
struct Shared {
    lost: f64,
    each: f64,
    laid: f64,
}

/// Whether a thread counts as running that was last seen after this many accesses of the region, where a round of turns is this long.
fn is_running(seen: u64, region_accesses: u64, round: u64) -> bool {
    seen != NEVER && seen.saturating_add(round) >= region_accesses
}

impl Clock {
    pub(super) fn new(scale: Scale, cores: u32, rates: Rates) -> Clock {
        Clock {
            scale,
            rates,
            cores: f64::from(cores),
            now_ns: 0.0,
            span_ns: 0.0,
            stretch_accesses: 0,
            stretch_limit: STRETCH_LEAST,
            region_start_ns: 0.0,
            clocks: Vec::new(),
            seen_at: Vec::new(),
            region_accesses: 0,
            round: ROUND_ACCESSES,
            forked: false,
            last_region_threads: 1,
            active: 1,
            load: [1.0; TierId::MAX],
            pending_stall: 0.0,
        }
    }

    /// Small nanoseconds since the start.
    pub(super) fn now_ns(&self) -> f64 {
        self.now_ns
    }

    /// Full-size time.
    pub(super) fn now(&self) -> Time {
        self.scale.full_time(self.now_ns as u64)
    }

    /// Small nanoseconds that passed since this was last asked.
    pub(super) fn take_span(&mut self) -> f64 {
        std::mem::take(&mut self.span_ns)
    }

    /// Waits until then, if that is to come. Nobody manages the time meanwhile.
    pub(super) fn wait_until(&mut self, then_ns: f64) {
        self.now_ns = self.now_ns.max(then_ns);
    }

    /// Threads that did anything in the latest stretch.
    pub(super) fn active(&self) -> u32 {
        self.active
    }

    /// The factor that load put on a tier's latency in the latest stretch.
    pub(super) fn load_of(&self, tier: TierId) -> f64 {
        self.load[tier.index()]
    }

    pub(super) fn rates(&self) -> Rates {
        self.rates
    }

    /// Processors the program may use.
    pub(super) fn cores(&self) -> f64 {
        self.cores
    }

    /// Makes every thread that runs in the stretch wait so long.
    pub(super) fn stall_each(&mut self, nanos: f64) {
        self.pending_stall += nanos;
    }

    /// Spreads nanoseconds over the running threads.
    pub(super) fn stall_shared(&mut self, nanos: f64) {
        self.pending_stall += nanos / f64::from(self.active.max(1));
    }

    /// One thread more.
    pub(super) fn add_thread(&mut self) {
        self.clocks.push(0.0);
        self.seen_at.push(NEVER);
    }

    /// Accesses until the stretch must end.
    pub(super) fn left_in_stretch(&self) -> usize {
        self.stretch_limit.saturating_sub(self.stretch_accesses)
    }

    /// Records accesses of the stretch.
    pub(super) fn ran(&mut self, accesses: usize) {
        self.stretch_accesses += accesses;
    }

    /// Ends the stretch in which the threads did this `work` and the tiers moved this `traffic`. `None` if nothing happened in it.
    fn pass(&mut self, tiers: &[Tier], work: &mut [ThreadWork], traffic: Vec<Traffic>) -> Option<Passed> {
        let concurrency = self.concurrency(work);
        let shared = self.share_stall(work, concurrency);
        let stretch = solve_among(tiers, &traffic, work, &self.rates, concurrency.min(self.cores));
        if stretch.active == 0 && stretch.nanos <= 0.0 {
            self.stretch_accesses = 0;
            return None;
        }
        self.run_clocks(tiers, work, &stretch, concurrency, shared);
        self.active = concurrency as u32;
        self.load = stretch.factor;
        self.now_ns += stretch.nanos;
        self.span_ns += stretch.nanos;
        let full = stretch.nanos * f64::from(self.scale.factor());
        let per_access = full / self.stretch_accesses.max(1) as f64;
        if self.stretch_accesses >= STRETCH_LEAST {
            self.stretch_limit =
                ((STRETCH_NANOS / per_access.max(1e-3)) as usize).clamp(STRETCH_LEAST, STRETCH_ACCESSES);
        }
        let accesses = std::mem::take(&mut self.stretch_accesses);
        let access_ns = stretch.nanos * concurrency.min(self.cores) / accesses.max(1) as f64;
        Some(Passed { stretch, traffic, concurrency, stalled: shared.lost, access_ns })
    }

    /// Everyone waits for the thread that ran longest.
    fn meet(&mut self) {
        let longest = self.clocks.iter().copied().fold(0.0, f64::max);
        let lag = (self.region_start_ns + longest - self.now_ns).max(0.0);
        self.now_ns += lag;
        self.span_ns += lag;
        self.begin_region(false);
    }

    /// How many threads run side by side: those seen lately in this region, or as many as the parallel region before had
    /// where a new one has just begun and not all had their turn. Taking too many is put right at the barrier.
    fn concurrency(&mut self, work: &[ThreadWork]) -> f64 {
        self.region_accesses += self.stretch_accesses as u64;
        let mut running = 0;
        for (work, seen) in work.iter().zip(&mut self.seen_at) {
            if *work != ThreadWork::default() {
                if *seen != NEVER {
                    self.round = self.round.max(2 * (self.region_accesses - *seen));
                }
                *seen = self.region_accesses;
            }
            running += usize::from(is_running(*seen, self.region_accesses, self.round));
        }
        if self.forked && self.region_accesses < self.round {
            running = running.max(self.last_region_threads);
        }
        running.max(1) as f64
    }

    /// Lays the stall that every core which runs the program waits through on the threads that did something in this stretch: few of those
    /// that run had their turn. A stall that finds nobody stays for the next stretch.
    fn share_stall(&mut self, work: &mut [ThreadWork], concurrency: f64) -> Shared {
        if self.pending_stall == 0.0 {
            return Shared::default();
        }
        let lost = self.pending_stall * concurrency.min(self.cores);
        let mut present: Vec<_> = work.iter_mut().filter(|work| **work != ThreadWork::default()).collect();
        if present.is_empty() {
            return Shared::default();
        }
        let laid = lost / present.len() as f64;
        present.iter_mut().for_each(|work| work.stall_ns += laid);
        self.pending_stall = 0.0;
        Shared { lost, each: lost / concurrency, laid }
    }

    /// Each thread's own time in the stretch. A wait of all threads goes to all running threads, whichever caused it.
    fn run_clocks(&mut self, tiers: &[Tier], work: &[ThreadWork], stretch: &Stretch, concurrency: f64, shared: Shared) {
        let total: f64 = work.iter().map(|work| work.nanos(tiers, &self.rates, &stretch.factor)).sum();
        if total <= 0.0 {
            return;
        }
        // Bandwidth, or turns on too few cores, stretch everybody's time alike.
        let stretched = stretch.nanos * concurrency / total;
        for ((clock, work), seen) in self.clocks.iter_mut().zip(work).zip(&self.seen_at) {
            let mut nanos = if is_running(*seen, self.region_accesses, self.round) { shared.each } else { 0.0 };
            if *work != ThreadWork::default() {
                nanos += work.nanos(tiers, &self.rates, &stretch.factor) - shared.laid;
            }
            *clock += nanos * stretched;
        }
    }

    /// A region of the program begins, as a fork or after a barrier.
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
}

impl Simulation {
    /// Ends the stretch: time, totals, and everything that is due.
    pub(super) fn close_stretch(&mut self, barrier: bool) {
        let tiers = &self.config.machine.tiers;
        self.hot.weigh();
        let traffic = (0..tiers.len()).map(|tier| self.hot.traffic(tier)).collect();
        if let Some(passed) = self.clock.pass(tiers, self.hot.work_mut(), traffic) {
            self.note_waits(&passed);
            self.hot.set_load(&self.config.machine.tiers, &passed.stretch.factor, passed.access_ns);
            if passed.stretch.bandwidth_bound {
                self.books.bound_by_bandwidth(passed.stretch.nanos);
            }
            self.total_up();
        }
        if barrier {
            self.clock.meet();
        }
        self.tell_probe();
        self.foresight.pass(self.books.accesses(), self.now());
        self.manage();
        self.tune_if_due();
        let now = self.now();
        if self.books.row_is_due(now) {
            self.add_row(now);
        }
    }

    /// What was counted goes into the books.
    pub(super) fn total_up(&mut self) {
        self.books.total_up(&mut self.hot, self.config.machine.tiers.len());
        self.foresight.write_down(self.books.accesses(), &mut self.hot);
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

    /// Small nanoseconds of a parallel region of these threads delivered in turns of these accesses, with a stall of all threads
    /// after each 2000 of them.
    fn region(threads: usize, turn: usize, stall: f64) -> f64 {
        region_of(128_000, threads, turn, stall)
    }

    /// The same of `accesses` accesses.
    fn region_of(accesses: usize, threads: usize, turn: usize, stall: f64) -> f64 {
        let machine = Machine::preset("optane-6252").unwrap();
        let mut config = SimConfig::new(machine, Bytes::of_pages(PAGES), FastSize::Share(1.0));
        config.cache = false;
        config.scale = Scale::new(512).unwrap();
        let policy = terrace_policies::build("first-touch", terrace_policies::Settings::default()).unwrap();
        let mut simulation = Simulation::new(config, policy).unwrap();
        simulation.map(Vpn(0), PAGES, false);
        let steps: Vec<Step> = (0..accesses).map(|n| Step((n as u64 * 7) % PAGES, n / turn % threads)).collect();
        let mut began = 0.0;
        // The first region touches the pages and tells how many threads there are.
        for stall in [0.0, stall] {
            simulation.meet();
            simulation.fork();
            began = simulation.clock.now_ns();
            for part in steps.chunks(2000) {
                simulation.feed(part);
                simulation.clock.stall_each(stall);
            }
        }
        simulation.meet();
        simulation.clock.now_ns() - began
    }

    #[test]
    fn threads_run_side_by_side_however_long_their_turns_are() {
        let time = |turn| region_of(800_000, 20, turn, 0.0);
        let short = time(100);
        // A round of turns is 200,000 accesses in the last.
        for turn in [2000, 4000, 10_000] {
            let ratio = time(turn) / short;
            assert!((ratio - 1.0).abs() < 0.05, "turns of {turn}: {ratio:.2} times as long");
        }
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
