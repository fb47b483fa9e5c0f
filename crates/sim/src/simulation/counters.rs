//! What counters show of a run: to the tuner, and to a policy of the modelled processor.
//!
//! In: the books of the run. Out: [`Counters`] since the start, [`ProcessorCounts`] since they were last asked for. Must not: show what no
//! counter of real hardware or kernel could.

use terrace_core::prices::ProcessorCounts;
use terrace_core::units::TierId;
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::load::{Stretch, Traffic, Wait, solve_among};
use terrace_machine::preset::TierKind;

use super::Simulation;
use crate::tuning::Counters;

impl Simulation {
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
            kernel_keeps_free: self.kernel.demotion.then(|| self.reclaim.kept_free(TierId::FAST)),
            hot_threshold: self.hot_threshold(),
            threads: self.active,
            thread_nanos: self.waited.threads,
            slow_nanos: self.waited.slow,
            management_nanos: self.costs.program_stall(),
            ran_nanos: self.waited.ran,
            lost_nanos: self.waited.lost,
            memory_nanos: self.waited.memory,
            fast_bytes: [counts.tier_read[0], counts.tier_written[0]],
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
        self.waited.memory += stretch.nanos * concurrency.min(self.cores());
        for work in &self.hot.work {
            self.waited.memory -= work.own_nanos(&self.rates);
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
        solve_among(&self.tiers, &all, &work, &self.rates, concurrency.min(self.cores())).nanos
    }

    /// What was counted since this was last asked; `None` where no MMU is modelled.
    pub(crate) fn processor_counts(&mut self) -> Option<ProcessorCounts> {
        let counters = self.counters();
        let run = self.hot.mmu.as_deref_mut()?;
        let processors = self.config.machine.processor.cores.max(1);
        let mut now = ProcessorCounts {
            cores: self.active,
            in_use: (f64::from(self.active) / f64::from(processors)).min(1.0),
            slow_accesses: counters.slow_accesses,
            slow_wait_ns: counters.slow_nanos,
            memory_accesses: counters.slow_accesses + counters.fast_accesses,
            ..ProcessorCounts::default()
        };
        let mut walk_ns = 0.0;
        for core in run.mmu.totals() {
            now.accesses[1] += core.huge_accesses;
            now.translation_ns[1] += core.huge_walk_ns;
            now.counted += core.updates;
            walk_ns += core.walk_ns;
        }
        now.accesses[0] = self.counts.accesses.saturating_sub(now.accesses[1]);
        now.translation_ns[0] = walk_ns - now.translation_ns[1];
        let before = std::mem::replace(&mut run.told, now);
        Some(ProcessorCounts {
            cores: now.cores,
            in_use: now.in_use,
            accesses: [0, 1].map(|size| now.accesses[size].saturating_sub(before.accesses[size])),
            translation_ns: [0, 1].map(|size| (now.translation_ns[size] - before.translation_ns[size]).max(0.0)),
            counted: now.counted - before.counted,
            slow_accesses: now.slow_accesses - before.slow_accesses,
            slow_wait_ns: (now.slow_wait_ns - before.slow_wait_ns).max(0.0),
            memory_accesses: now.memory_accesses - before.memory_accesses,
        })
    }
}
