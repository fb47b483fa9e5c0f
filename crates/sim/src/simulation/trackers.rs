//! What sees the program's accesses: samples, walks of accessed bits, hint faults, pages whose every use is watched.
//!
//! In: what the inner loop counted and the page words hold, and a cadence. Out: observations for the engine, at a cost. Must not: see what no
//! tracker could, or decide how often to look.

use std::time::Duration;

use terrace_core::engine::Input;
use terrace_core::observation::{Access, Observation, Observations, PteState, ScanBatch};
use terrace_core::policy::{Cadence, ScanReport};
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PageId, Time, Vpn};
use terrace_machine::memory::PageWord;
use terrace_machine::sampler::Sampler;
use terrace_machine::scanner::{HintScanner, Walk, walk_block};

use super::Simulation;
use super::books::Cost;
use crate::history::What;
use crate::hot::Countdown;

/// The engine receives the time of sampling in pieces of this many nanoseconds.
const SAMPLER_TOLD_NS: f64 = 10_000.0;

/// See the module's header.
pub(super) struct Trackers {
    cadence: Cadence,
    sampler: Option<Sampler>,
    /// Records in place of one sample: more than one where small pages stand for huge ones.
    sample_parts: u32,
    /// Time of the sampler that the engine has not received yet, in small nanoseconds.
    sampler_spent: f64,
    /// Whether the policy lives on hint faults.
    hint_faults: bool,
    hint_scanner: HintScanner,
    next_hint: Time,
    /// Full-size milliseconds at which a page was marked; empty until something marks.
    marked_at: Vec<u32>,
    scan_cursor: u32,
    scan_not_before: Time,
    /// Full-size nanoseconds at which the accessed bits of a block were last cleared.
    cleared_at: Vec<u64>,
    /// Pages whose every use faults, and those that wait for being marked again.
    watched: Vec<u32>,
    rearm: Vec<u32>,
    /// What a fault on a page costs whose every use is watched: it comes with each use, not with each page.
    watched_fault_ns: f64,
}

impl Trackers {
    /// Trackers at rest; see the fields for what is stated.
    pub(super) fn new(sample_parts: u32, hint_faults: bool, watched_fault_ns: f64) -> Trackers {
        Trackers {
            cadence: Cadence::default(),
            sampler: None,
            sample_parts,
            sampler_spent: 0.0,
            hint_faults,
            hint_scanner: HintScanner::default(),
            next_hint: Time::ZERO,
            marked_at: Vec::new(),
            scan_cursor: 0,
            scan_not_before: Time::ZERO,
            cleared_at: Vec::new(),
            watched: Vec::new(),
            rearm: Vec::new(),
            watched_fault_ns,
        }
    }

    pub(super) fn serves_hint_faults(&self) -> bool {
        self.hint_faults
    }

    /// Records taken and lost.
    pub(super) fn samples(&self) -> [u64; 2] {
        self.sampler.as_ref().map_or([0, 0], |sampler| [sampler.records, sampler.lost])
    }

    pub(super) fn grow(&mut self, pages: usize) {
        self.cleared_at.resize(pages >> BLOCK_SHIFT, 0);
        if !self.marked_at.is_empty() {
            self.marked_at.resize(pages, 0);
        }
    }

    /// The time of sampling that the engine has not received yet, in small nanoseconds, once it is large enough.
    pub(super) fn take_sampler_time(&mut self) -> Option<f64> {
        (self.sampler_spent >= SAMPLER_TOLD_NS).then(|| std::mem::take(&mut self.sampler_spent))
    }

    /// The accessed bits of a block are cleared. Returns for how long they had been set since.
    pub(super) fn cleared(&mut self, block: u32, now: Time) -> Duration {
        let before = std::mem::replace(&mut self.cleared_at[block as usize], now.as_nanos());
        now.since(Time::from_nanos(before))
    }

    /// A walk took so long: the next begins when it is over.
    pub(super) fn walked(&mut self, now: Time, took: Duration) {
        self.scan_not_before = now + took;
    }
}

impl Simulation {
    /// Makes every use of these pages fault from now on, in place of those named before.
    pub(super) fn watch(&mut self, ids: &[PageId]) {
        for page in std::mem::take(&mut self.trackers.watched) {
            self.hot.memory.clear(page, PageWord::WATCHED | PageWord::MARKED);
        }
        for page in ids.iter().filter_map(|id| self.link.page(*id)).collect::<Vec<u32>>() {
            if !self.hot.memory.word(page).has(PageWord::ABSENT | PageWord::STORED) {
                self.hot.memory.set(page, PageWord::WATCHED);
                self.mark(page..page + 1);
                self.trackers.watched.push(page);
            }
        }
        self.trackers.rearm.clear();
    }

    /// Watched pages that faulted become inaccessible again: their translation has left the TLB by then.
    pub(super) fn rearm_watched(&mut self) {
        let rearm = std::mem::take(&mut self.trackers.rearm);
        for &page in &rearm {
            let word = self.hot.memory.word(page);
            if word.has(PageWord::WATCHED) && !word.has(PageWord::ABSENT | PageWord::STORED) {
                self.mark(page..page + 1);
            }
        }
        self.trackers.rearm = rearm;
        self.trackers.rearm.clear();
    }

    /// Makes a unit inaccessible, and remembers when.
    pub(super) fn mark(&mut self, unit: std::ops::Range<u32>) {
        if self.trackers.marked_at.is_empty() {
            self.trackers.marked_at = vec![0; self.hot.memory.len()];
        }
        self.trackers.marked_at[unit.start as usize] = (self.now().as_nanos() / 1_000_000) as u32;
        for page in unit {
            self.hot.memory.set(page, PageWord::MARKED);
        }
    }

    /// Trackers look this often from now on.
    pub(super) fn set_cadence(&mut self, cadence: Cadence) {
        let now = self.now();
        match (cadence.sampling, &mut self.trackers.sampler) {
            (Some(periods), Some(sampler)) => sampler.ask(periods),
            (Some(periods), None) => {
                let record_ns = self.config.machine.management.sample_ns;
                let sampler = Sampler::new(periods, self.config.sampling_quota, record_ns, now);
                self.trackers.sampler = Some(sampler.in_parts(self.trackers.sample_parts));
            }
            (None, _) => self.hot.stop_sampling(),
        }
        if cadence.sampling.is_some() {
            self.set_periods();
        }
        if cadence.hint_scan.is_some() && self.trackers.cadence.hint_scan.is_none() {
            self.trackers.next_hint = now;
        }
        if cadence.hint_scan.is_some() && self.trackers.marked_at.is_empty() {
            self.trackers.marked_at = vec![0; self.hot.memory.len().max(1)];
        }
        self.trackers.cadence = cadence;
    }

    /// The counters' periods, as the sampler has them now.
    pub(super) fn set_periods(&mut self) {
        let Some(sampler) = &self.trackers.sampler else { return };
        let mut periods = sampler.counter_periods();
        // Where one access stands for many, as many fewer of them make up a period.
        periods.loads = (periods.loads / self.hot.weight()).max(1);
        periods.stores = (periods.stores / self.hot.weight()).max(1);
        if self.hot.set_periods(periods) {
            for thread in 0..self.hot.threads() {
                let countdown = self.fresh_countdown();
                self.hot.set_countdown(thread, countdown);
            }
        }
    }

    /// Counters that start anywhere in their period, as those of cores that were switched on at different times.
    pub(super) fn fresh_countdown(&mut self) -> Countdown {
        let [loads, stores] = self.hot.periods().map(|period| period.max(1));
        let mut start = |period: u32| 1 + (self.draw() * f64::from(period)) as u32;
        Countdown { loads: std::array::from_fn(|_| start(loads)), stores: start(stores) }
    }

    /// A hint fault on a page, which may be one whose every use is watched. Returns what it costs, and when the page was marked.
    pub(super) fn hint_faulted(&mut self, page: u32, unit: u32) -> (f64, Time) {
        let trackers = &mut self.trackers;
        let watched = self.hot.memory.word(page).has(PageWord::WATCHED);
        if watched {
            trackers.rearm.push(page);
        }
        let cost = if watched { trackers.watched_fault_ns } else { self.config.machine.management.hint_fault_ns };
        (cost, Time::from_nanos(u64::from(trackers.marked_at[unit as usize]) * 1_000_000))
    }

    /// Turns the counters' picks into observations, as many as the kernel's rate lets through.
    pub(super) fn take_samples(&mut self, span: f64) {
        let now = self.now();
        let mut samples = self.hot.take_samples();
        if let Some(mut sampler) = self.trackers.sampler.take() {
            samples.retain(|sample| sampler.keeps(sample.access == Access::Store));
            if !samples.is_empty() {
                let kept = sampler.admit(samples.len() as u64, self.clock.active(), span) as usize;
                let periods = sampler.periods();
                for sample in &samples[..kept] {
                    let store = sample.access == Access::Store;
                    let period = if store { periods.stores } else { periods.loads };
                    if self.link.known(sample.page) && !self.hot.memory.word(sample.page).has(PageWord::ABSENT) {
                        self.link.saw(Observation::Sampled {
                            page: self.link.id(sample.page),
                            access: sample.access,
                            period,
                        });
                        let vpn = self.vpn(sample.page);
                        self.books.note(now, vpn, || What::Sampled { store });
                    }
                }
                let spent = kept as f64 * sampler.record_nanos();
                self.books.pay(Cost::Sampling, spent);
                self.trackers.sampler_spent += spent;
            }
            let changed = sampler.adapt(now, self.config.scale.factor());
            self.trackers.sampler = Some(sampler);
            if changed && self.trackers.cadence.sampling.is_some() {
                self.set_periods();
            }
        }
        self.hot.give_back(samples);
    }

    /// A round of accessed bits, if the cadence has one due and the last walk is over.
    pub(super) fn scan_if_due(&mut self) -> bool {
        let now = self.now();
        match self.trackers.cadence.scan_at {
            Some(at) if at <= now && self.trackers.scan_not_before <= now => {}
            _ => return false,
        }
        if self.hot.mmu.is_some() && self.link.engine().policy_needs().counters {
            self.sweep_counters();
            return true;
        }
        let blocks = self.link.known_blocks();
        let share = self.trackers.cadence.share.clamp(0.0, 1.0);
        let count = ((blocks.len() as f64 * share).ceil() as usize).min(blocks.len());
        let from = blocks.partition_point(|&block| block < self.trackers.scan_cursor);
        let mut walk = Walk::default();
        let mut ptes: Vec<PteState> = Vec::with_capacity(BLOCK_PAGES as usize);
        for step in 0..count {
            let block = blocks[(from + step) % blocks.len()];
            self.trackers.scan_cursor = block + 1;
            ptes.clear();
            ptes.resize(BLOCK_PAGES as usize, PteState::ABSENT);
            let first = block << BLOCK_SHIFT;
            let (books, base) = (&mut self.books, self.hot.base() + u64::from(first));
            walk_block(&mut self.hot.memory, block, true, &mut walk, |offset, word, accessed| {
                if let Some(tier) = word.tier() {
                    let huge = word.has(PageWord::HUGE);
                    let pte = PteState::placed(tier).with_accessed(accessed).with_huge(huge);
                    ptes[offset as usize] = pte.with_dirty(word.has(PageWord::DIRTY));
                    if accessed {
                        books.note(now, Vpn(base + u64::from(offset)), || What::Accessed);
                    }
                }
            });
            let window = Some(self.trackers.cleared(block, now));
            let scan = ScanBatch { first: self.link.id(first), ptes: &ptes, window, cleared: true };
            self.link.handle(now, Input::Observed(Observations::Scan(scan)));
        }
        if self.trackers.scan_cursor as usize >= self.link.blocks() {
            self.trackers.scan_cursor = 0;
        }
        let management = self.config.machine.management;
        let nanos = walk.read as f64 * management.scan_read_ns + walk.cleared as f64 * management.scan_clear_ns;
        let reset = walk.cleared as f64 * management.scan_reset_ns;
        self.books.pay(Cost::Scan, nanos);
        self.books.pay(Cost::ScanResetStall, reset);
        self.clock.stall_shared(reset);
        let took = Duration::from_nanos((nanos * f64::from(self.config.scale.factor())) as u64);
        self.trackers.walked(now, took);
        let counts = self.processor_counts();
        self.link.handle(now, Input::Processor(counts));
        self.link
            .handle(now, Input::ScanDone(ScanReport { pages: walk.pages, accessed: walk.accessed, walk: took, share }));
        true
    }

    /// A step of the hint-fault scanner, if one is due. Steps that were missed are made up, as task work is.
    pub(super) fn mark_if_due(&mut self) {
        let Some(hint) = self.trackers.cadence.hint_scan else { return };
        let now = self.now();
        if now < self.trackers.next_hint {
            return;
        }
        let mut units = Vec::new();
        let mut marked = 0;
        while self.trackers.next_hint <= now {
            marked += self
                .trackers
                .hint_scanner
                .step(&mut self.hot.memory, hint.window_pages, hint.tiers, |unit| units.push(unit));
            self.trackers.next_hint = self.trackers.next_hint + hint.period.max(Duration::from_millis(1));
        }
        let at = (now.as_nanos() / 1_000_000) as u32;
        if self.trackers.marked_at.len() < self.hot.memory.len() {
            self.trackers.marked_at.resize(self.hot.memory.len(), 0);
        }
        for unit in units {
            self.trackers.marked_at[unit as usize] = at;
            let vpn = self.vpn(unit);
            self.books.note(now, vpn, || What::Marked);
        }
        let cost = marked as f64 * self.config.machine.management.hint_mark_ns;
        self.books.pay(Cost::HintMarkStall, cost);
        self.clock.stall_shared(cost);
    }
}
