//! What counters show of a run: to the tuner, and to a policy of the modelled processor.
//!
//! In: the books of the run. Out: [`Counters`] since the start, [`ProcessorCounts`] since they were last asked for. Must not: show what no
//! counter of real hardware or kernel could.

use terrace_core::prices::ProcessorCounts;
use terrace_core::units::TierId;
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::load::{Traffic, Wait, solve_among};
use terrace_machine::preset::TierKind;

use super::Simulation;
use super::books::{Cost, Event};
use super::clock::Passed;
use crate::tuning::Counters;

impl Simulation {
    /// What has been counted.
    pub fn counters(&self) -> Counters {
        let (books, waited, rates) = (&self.books, self.books.waited(), self.clock.rates());
        let hits = books.cache_hits() as f64 * rates.cache_hit_ns / rates.parallelism;
        let served = books.tier_accesses();
        Counters {
            now: self.now(),
            fast_accesses: served[0],
            slow_accesses: served[1..].iter().sum(),
            operations: waited.cycles as f64 + hits * rates.frequency_hertz / 1e9,
            promoted: books.counted(Event::Promoted),
            demoted: books.counted(Event::Demoted),
            failed_promotions: books.counted(Event::FailedPromotions),
            resident_pages: self.hot.memory.resident(),
            fast_pages: self.hot.memory.used(TierId::FAST),
            fast_limit: self.limit.pages(),
            kernel_keeps_free: self.kernel.keeps_free(),
            hot_threshold: self.hot_threshold(),
            threads: self.clock.active(),
            thread_nanos: waited.threads,
            slow_nanos: waited.slow,
            management_nanos: books.program_stall(),
            ran_nanos: waited.ran,
            lost_nanos: waited.lost,
            memory_nanos: waited.memory,
            fast_bytes: books.tier_bytes(0),
        }
    }

    /// Policies with a histogram name the bin from which pages are hot; bin k counts pages of 2^k accesses and more.
    fn hot_threshold(&self) -> Option<f64> {
        let bin = self.link.engine().policy_metrics().into_iter().find(|metric| metric.name == "hot_threshold_bin")?;
        Some(bin.value.exp2())
    }

    /// Sums up what the threads of a stretch waited for, before their work is cleared.
    pub(super) fn note_waits(&mut self, passed: &Passed) {
        let Passed { stretch, concurrency, stalled, .. } = passed;
        let paid = self.books.cost(Cost::HintFaultStall) + self.books.cost(Cost::RefaultStall);
        let waited = self.books.waited_mut();
        let management = stalled + paid - std::mem::replace(&mut waited.paid, paid);
        let moved = std::mem::take(&mut waited.moved_fast);
        let lost = self.limit.is_tuned().then(|| stretch.nanos - self.without(passed, management, moved));
        let (tiers, rates) = (&self.config.machine.tiers, self.clock.rates());
        let waited = self.books.waited_mut();
        if let Some(lost) = lost {
            waited.ran += stretch.nanos;
            waited.lost += lost;
        }
        waited.latency_ns += stretch.nanos;
        for (k, tier) in tiers.iter().enumerate().filter(|(_, tier)| tier.kind == TierKind::Memory) {
            waited.latency[k] += tier.read_latency_ns * stretch.factor[k] * stretch.nanos;
        }
        waited.threads += stretch.nanos * concurrency;
        waited.memory += stretch.nanos * concurrency.min(self.clock.cores());
        for work in self.hot.work() {
            waited.memory -= work.own_nanos(&rates);
            waited.cycles += work.cycles;
            for (k, tier) in tiers.iter().enumerate().skip(1).filter(|(_, tier)| tier.kind == TierKind::Memory) {
                let slow = work.waits(k, tier, &rates) * stretch.factor[k];
                // The same accesses, had fast memory served them.
                let fast = work.waits(k, &tiers[0], &rates) * stretch.factor[0];
                waited.slow += (slow - fast).max(0.0);
            }
        }
    }

    /// What a stretch would have taken with everything fast and without `management`, of which this much was waited for in it.
    fn without(&self, passed: &Passed, management: f64, moved_fast: [u64; 2]) -> f64 {
        let tiers = &self.config.machine.tiers;
        let mut fast = passed.traffic[0];
        fast.read -= moved_fast[0] as f64;
        fast.written -= moved_fast[1] as f64;
        let stalled: f64 = self.hot.work().iter().map(|work| work.stall_ns).sum();
        let kept = if stalled > 0.0 { 1.0 - (management / stalled).clamp(0.0, 1.0) } else { 1.0 };
        let (mut work, mut slow) = (self.hot.work().to_vec(), 0u64);
        for work in &mut work {
            work.stall_ns *= kept;
            for k in (1..tiers.len()).filter(|&k| tiers[k].kind == TierKind::Memory) {
                let misses = std::mem::take(&mut work.misses[k]);
                slow += misses.iter().map(|&count| u64::from(count)).sum::<u64>();
                fast.read += misses.iter().map(|&count| f64::from(count)).sum::<f64>() * LINE_BYTES as f64;
                // What is stored to is written back, sooner or later.
                fast.written +=
                    f64::from(misses[Wait::Store as usize] + misses[Wait::StreamedStore as usize]) * LINE_BYTES as f64;
                work.misses[0].iter_mut().zip(misses).for_each(|(fast, slow)| *fast += slow);
            }
        }
        if slow == 0 && kept >= 1.0 && moved_fast == [0; 2] {
            return passed.stretch.nanos;
        }
        let mut all = vec![Traffic::default(); tiers.len()];
        all[0] = fast;
        solve_among(tiers, &all, &work, &self.clock.rates(), passed.concurrency.min(self.clock.cores())).nanos
    }

    /// What was counted since this was last asked. Translations are counted where an MMU is modelled.
    pub(super) fn processor_counts(&mut self) -> ProcessorCounts {
        let counters = self.counters();
        let processors = self.config.machine.processor.cores.max(1);
        let mut now = ProcessorCounts {
            cores: self.clock.active(),
            in_use: (f64::from(self.clock.active()) / f64::from(processors)).min(1.0),
            slow_accesses: counters.slow_accesses,
            slow_wait_ns: counters.slow_nanos,
            memory_accesses: counters.slow_accesses + counters.fast_accesses,
            streamed_loads: self.books.streamed_loads(),
            memory_wait_ns: counters.memory_nanos,
            ..ProcessorCounts::default()
        };
        if let Some(run) = self.hot.mmu.as_deref() {
            let mut walk_ns = 0.0;
            for core in run.mmu.totals() {
                now.accesses[1] += core.huge_accesses;
                now.translation_ns[1] += core.huge_walk_ns;
                now.counted += core.updates;
                walk_ns += core.walk_ns;
            }
            now.translation_ns[0] = walk_ns - now.translation_ns[1];
        }
        now.accesses[0] = self.books.accesses().saturating_sub(now.accesses[1]);
        let waited = self.books.waited_mut();
        let (sums, span) = (std::mem::take(&mut waited.latency), std::mem::take(&mut waited.latency_ns));
        let latency_ns = if span > 0.0 { sums.map(|sum| sum / span) } else { sums };
        let before = self.link.told(now);
        ProcessorCounts {
            cores: now.cores,
            in_use: now.in_use,
            accesses: [0, 1].map(|size| now.accesses[size].saturating_sub(before.accesses[size])),
            translation_ns: [0, 1].map(|size| (now.translation_ns[size] - before.translation_ns[size]).max(0.0)),
            counted: now.counted - before.counted,
            slow_accesses: now.slow_accesses - before.slow_accesses,
            slow_wait_ns: (now.slow_wait_ns - before.slow_wait_ns).max(0.0),
            memory_accesses: now.memory_accesses - before.memory_accesses,
            streamed_loads: now.streamed_loads - before.streamed_loads,
            memory_wait_ns: (now.memory_wait_ns - before.memory_wait_ns).max(0.0),
            latency_ns,
        }
    }
}
