//! What happens between two stretches: trackers report, the kernel reclaims, the mover answers, the engine is polled.
//!
//! In: the time that passed. Out: inputs to the engine, in the order a live manager would see them. Must not: call
//! `poll` more often than the rule of use allows: one `handle`, then `poll` until it answers `Wake`.

use std::time::Duration;

use terrace_core::engine::{Input, Output};
use terrace_core::observation::{Access, Observation, Scan, Seen, Sight};
use terrace_core::policy::{Cadence, Round};
use terrace_core::units::{BLOCK_PAGES, BLOCK_SHIFT, PageId, TierId, Time};
use terrace_machine::memory::PageWord;
use terrace_machine::sampler::Sampler;
use terrace_machine::scanner::{Walk, walk_block};

use super::{NO_BLOCK, Simulation};
use crate::history::What;

/// The engine is told what sampling took in pieces of this many nanoseconds.
const SAMPLER_TOLD_NS: f64 = 10_000.0;

impl Simulation {
    /// Does everything that is due now.
    pub(crate) fn manage(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let span = std::mem::take(&mut self.span_ns);
        self.settle_moves(span);
        self.copy(span);
        self.take_samples(span);
        self.background_reclaim(span);
        self.rearm_watched();
        let mut news = self.deliver();
        news |= self.answer_plan();
        news |= self.scan_if_due();
        news |= self.mark_if_due();
        if self.now() >= self.wake && !news {
            let now = self.now();
            self.engine.handle(now, Input::Tick);
            news = true;
        }
        if news {
            self.poll();
        }
    }

    /// Tells the engine what was seen since the last time. Returns whether there was anything.
    pub(crate) fn deliver(&mut self) -> bool {
        let now = self.now();
        let mut news = false;
        if self.sampler_spent >= SAMPLER_TOLD_NS {
            let spent = std::mem::take(&mut self.sampler_spent) * f64::from(self.config.scale.factor());
            self.engine.handle(now, Input::SamplerTime(Duration::from_nanos(spent as u64)));
        }
        if !self.born.is_empty() {
            let born = std::mem::take(&mut self.born);
            self.engine.handle(now, Input::Seen(Seen::Events(&born)));
            self.born = born;
            self.born.clear();
            news = true;
        }
        if !self.relocated.is_empty() {
            let mut relocated = std::mem::take(&mut self.relocated);
            relocated.sort_unstable();
            relocated.dedup();
            for &page in &relocated {
                self.tell_place(now, page);
            }
            relocated.clear();
            self.relocated = relocated;
            news = true;
        }
        if !self.events.is_empty() {
            let events = std::mem::take(&mut self.events);
            self.engine.handle(now, Input::Seen(Seen::Events(&events)));
            self.events = events;
            self.events.clear();
            news = true;
        }
        news
    }

    /// Tells the engine where a unit lies, and a block's pages all at once where it is or was huge.
    fn tell_place(&mut self, now: Time, page: u32) {
        if !self.known(page) {
            return;
        }
        let first = page >> BLOCK_SHIFT << BLOCK_SHIFT;
        let known_huge = self.engine.pages().block(self.id(first).block()).is_some_and(|block| block.huge);
        let whole = known_huge || self.hot.memory.word(page).has(PageWord::HUGE);
        let range = if whole { first..first + BLOCK_PAGES } else { page..page + 1 };
        self.sights.clear();
        for page in range.clone() {
            let word = self.hot.memory.word(page);
            let sight = match word.tier() {
                Some(tier) => Sight::placed(tier).with_huge(word.has(PageWord::HUGE)),
                None => Sight::ABSENT,
            };
            self.sights.push(sight);
        }
        let scan = Scan { first: self.id(range.start), sights: &self.sights, window: None, cleared: false };
        self.engine.handle(now, Input::Seen(Seen::Scan(scan)));
    }

    /// Polls until the engine wants to be woken, carrying out what it asks for.
    pub(crate) fn poll(&mut self) {
        let now = self.now();
        loop {
            match self.engine.poll(now) {
                Output::Move(plan) => self.carry_out(&plan),
                Output::Track(cadence) => self.set_cadence(cadence),
                Output::Wake(at) => {
                    self.wake = at;
                    if self.hint_faults_wanted
                        && let Some(pages) = self.engine.watch(now)
                    {
                        self.watch(&pages);
                    }
                    return;
                }
            }
            // A plan that cost the mover nothing (all failed, or paid by the program) is answered at once.
            if self.outcomes.is_some() && self.mover_free_ns <= self.now_ns {
                self.answer_plan();
            }
        }
    }

    /// Makes every use of these pages fault from now on, in place of those named before.
    fn watch(&mut self, ids: &[PageId]) {
        for page in std::mem::take(&mut self.watched) {
            self.hot.memory.clear(page, PageWord::WATCHED | PageWord::MARKED);
        }
        for page in ids.iter().filter_map(|id| self.page(*id)).collect::<Vec<u32>>() {
            if !self.hot.memory.word(page).has(PageWord::ABSENT | PageWord::STORED) {
                self.hot.memory.set(page, PageWord::WATCHED);
                self.mark(page..page + 1);
                self.watched.push(page);
            }
        }
        self.rearm.clear();
    }

    /// Watched pages that faulted become inaccessible again: their translation has left the TLB by then.
    fn rearm_watched(&mut self) {
        let rearm = std::mem::take(&mut self.rearm);
        for &page in &rearm {
            let word = self.hot.memory.word(page);
            if word.has(PageWord::WATCHED) && !word.has(PageWord::ABSENT | PageWord::STORED) {
                self.mark(page..page + 1);
            }
        }
        self.rearm = rearm;
        self.rearm.clear();
    }

    fn answer_plan(&mut self) -> bool {
        if self.mover_free_ns > self.now_ns {
            return false;
        }
        let Some(outcomes) = self.outcomes.take() else { return false };
        let now = self.now();
        self.engine.handle(now, Input::Moved(&outcomes));
        true
    }

    fn set_cadence(&mut self, cadence: Cadence) {
        let now = self.now();
        match (cadence.sampling, &mut self.sampler) {
            (Some(periods), Some(sampler)) => sampler.ask(periods),
            (Some(periods), None) => {
                let record_ns = self.config.machine.management.sample_ns;
                let sampler = Sampler::new(periods, self.config.sampling_quota, record_ns, now);
                self.sampler = Some(sampler.in_parts(self.sample_parts));
            }
            (None, _) => (self.hot.load_period, self.hot.store_period) = (0, 0),
        }
        if cadence.sampling.is_some() {
            self.set_periods();
        }
        if cadence.hint_scan.is_some() && self.cadence.hint_scan.is_none() {
            self.next_hint = now;
        }
        if cadence.hint_scan.is_some() && self.marked_at.is_empty() {
            self.marked_at = vec![0; self.hot.memory.len().max(1)];
        }
        self.cadence = cadence;
    }

    pub(crate) fn set_periods(&mut self) {
        let Some(sampler) = &self.sampler else { return };
        let mut periods = sampler.counter_periods();
        // Where one access stands for many, as many fewer of them make up a period.
        periods.loads = (periods.loads / self.weight).max(1);
        periods.stores = (periods.stores / self.weight).max(1);
        if (self.hot.load_period, self.hot.store_period) == (periods.loads, periods.stores) {
            return;
        }
        (self.hot.load_period, self.hot.store_period) = (periods.loads, periods.stores);
        for thread in 0..self.hot.countdown.len() {
            self.hot.countdown[thread] = self.fresh_countdown();
        }
    }

    /// Turns the counters' picks into observations, as many as the kernel's rate lets through.
    fn take_samples(&mut self, span: f64) {
        let now = self.now();
        let mut samples = std::mem::take(&mut self.hot.samples);
        if let Some(mut sampler) = self.sampler.take() {
            samples.retain(|sample| sampler.keeps(sample.access == Access::Store));
            if !samples.is_empty() {
                let kept = sampler.admit(samples.len() as u64, self.active, span) as usize;
                let periods = sampler.periods();
                for sample in &samples[..kept] {
                    let store = sample.access == Access::Store;
                    let period = if store { periods.stores } else { periods.loads };
                    if self.known(sample.page) && !self.hot.memory.word(sample.page).has(PageWord::ABSENT) {
                        self.events.push(Observation::Sampled {
                            page: self.id(sample.page),
                            access: sample.access,
                            period,
                        });
                        let vpn = self.vpn(sample.page);
                        self.history.add(now, vpn, || What::Sampled { store });
                    }
                }
                let spent = kept as f64 * sampler.record_nanos();
                self.costs.sampling += spent;
                self.sampler_spent += spent;
            }
            let changed = sampler.adapt(now, self.config.scale.factor());
            self.sampler = Some(sampler);
            if changed && self.cadence.sampling.is_some() {
                self.set_periods();
            }
        }
        self.hot.samples = samples;
        self.hot.samples.clear();
    }

    /// The kernel's reclaim thread: as much as one thread can do in the time that passed.
    fn background_reclaim(&mut self, span: f64) {
        if !self.lists {
            return;
        }
        let before = self.costs.reclaim;
        for tier in (0..self.tiers.len() as u8).map(TierId) {
            let goes_down = self.kernel.demotion || tier == self.slowest_memory();
            if self.hot.memory.is_compressed(tier) || !goes_down {
                continue;
            }
            while self.costs.reclaim - before < span && self.reclaim.has_work(&self.hot.memory, tier) {
                if !self.reclaim_one(tier) {
                    self.reclaim.sleep(tier);
                }
            }
        }
    }

    /// The bytes that the mover's threads copied meanwhile load the tiers from here on.
    pub(crate) fn copy(&mut self, span: f64) {
        let (read, written) = self.copies.within(span);
        self.waited.moved_fast[0] += read[0];
        self.waited.moved_fast[1] += written[0];
        for tier in 0..self.tiers.len() {
            self.hot.read[tier] += read[tier];
            self.hot.written[tier] += written[tier];
        }
    }

    /// Charges the accesses that met a page on its way, now that the stretch shows which pages were in use.
    ///
    /// A page that was touched in the stretch after its move began was touched within the move with the share of the
    /// stretch that the move took; whoever touched it then waited for half of it on average. A unit of the scaled machine
    /// stands for several pages, which move one after another: each is blocked for its own part of the time.
    fn settle_moves(&mut self, span: f64) {
        let moving = std::mem::take(&mut self.moving);
        let mut waited = 0.0;
        let pieces = self.config.pages_in_a_unit();
        for &(unit, accessed, nanos) in &moving {
            let range = self.hot.memory.unit(unit);
            let words = &self.hot.memory.words()[range.start as usize..range.end as usize];
            if words.iter().any(|word| word.has(PageWord::ACCESSED)) {
                let one = nanos / pieces;
                waited += pieces * (one / span.max(one)) * one / 2.0;
            }
            if accessed && !self.hot.memory.word(unit).has(PageWord::ABSENT) {
                self.hot.memory.set(unit, PageWord::ACCESSED);
            }
        }
        if waited > 0.0 {
            self.costs.blocked_stall += waited;
            self.stall_shared(waited);
        }
        self.moving = moving;
        self.moving.clear();
    }

    /// A round of accessed bits, if the cadence has one due and the last walk is over.
    fn scan_if_due(&mut self) -> bool {
        let now = self.now();
        match self.cadence.scan_at {
            Some(at) if at <= now && self.scan_not_before <= now => {}
            _ => return false,
        }
        if self.hot.mmu.is_some() && self.engine.policy_needs().counters {
            self.sweep_counters();
            return true;
        }
        let blocks: Vec<u32> =
            (0..self.ids.len() as u32).filter(|&block| self.ids[block as usize] != NO_BLOCK).collect();
        let share = self.cadence.share.clamp(0.0, 1.0);
        let count = ((blocks.len() as f64 * share).ceil() as usize).min(blocks.len());
        let from = blocks.partition_point(|&block| block < self.scan_cursor);
        let mut walk = Walk::default();
        let mut sights: Vec<Sight> = Vec::with_capacity(BLOCK_PAGES as usize);
        for step in 0..count {
            let block = blocks[(from + step) % blocks.len()];
            self.scan_cursor = block + 1;
            sights.clear();
            sights.resize(BLOCK_PAGES as usize, Sight::ABSENT);
            let (history, base) = (&mut self.history, self.hot.base + u64::from(block << BLOCK_SHIFT));
            walk_block(&mut self.hot.memory, block, true, &mut walk, |offset, word, accessed| {
                if let Some(tier) = word.tier() {
                    let huge = word.has(PageWord::HUGE);
                    let sight = Sight::placed(tier).with_accessed(accessed).with_huge(huge);
                    sights[offset as usize] = sight.with_dirty(word.has(PageWord::DIRTY));
                    if accessed {
                        history.add(now, terrace_core::units::Vpn(base + u64::from(offset)), || What::Accessed);
                    }
                }
            });
            let cleared = std::mem::replace(&mut self.cleared_at[block as usize], now.as_nanos());
            let scan = Scan {
                first: PageId(self.ids[block as usize]),
                sights: &sights,
                window: Some(now.since(Time::from_nanos(cleared))),
                cleared: true,
            };
            self.engine.handle(now, Input::Seen(Seen::Scan(scan)));
        }
        if self.scan_cursor as usize >= self.ids.len() {
            self.scan_cursor = 0;
        }
        let management = self.config.machine.management;
        let nanos = walk.read as f64 * management.scan_read_ns + walk.cleared as f64 * management.scan_clear_ns;
        let reset = walk.cleared as f64 * management.scan_reset_ns;
        self.costs.scan += nanos;
        self.costs.scan_reset_stall += reset;
        self.stall_shared(reset);
        let took = Duration::from_nanos((nanos * f64::from(self.config.scale.factor())) as u64);
        self.scan_not_before = now + took;
        self.engine.handle(now, Input::Round(Round { pages: walk.pages, accessed: walk.accessed, walk: took }));
        true
    }

    /// A step of the hint-fault scanner, if one is due. Steps that were missed are made up, as task work is.
    fn mark_if_due(&mut self) -> bool {
        let Some(hint) = self.cadence.hint_scan else { return false };
        let now = self.now();
        if now < self.next_hint {
            return false;
        }
        let mut units = Vec::new();
        let mut marked = 0;
        while self.next_hint <= now {
            marked +=
                self.hint_scanner.step(&mut self.hot.memory, hint.window_pages, hint.tiers, |unit| units.push(unit));
            self.next_hint = self.next_hint + hint.period.max(Duration::from_millis(1));
        }
        let at = (now.as_nanos() / 1_000_000) as u32;
        if self.marked_at.len() < self.hot.memory.len() {
            self.marked_at.resize(self.hot.memory.len(), 0);
        }
        for unit in units {
            self.marked_at[unit as usize] = at;
            let vpn = self.vpn(unit);
            self.history.add(now, vpn, || What::Marked);
        }
        let cost = marked as f64 * self.config.machine.management.hint_mark_ns;
        self.costs.hint_mark_stall += cost;
        self.stall_shared(cost);
        false
    }
}
