//! What a run came to: rows of its series, and the report at its end.
//!
//! In: the books. Out: a [`Report`]. Must not: change the run, but for what is still under way at its end.

use std::collections::BTreeMap;

use terrace_core::units::{Bytes, TierId, Time};

use super::Simulation;
use crate::report::Report;
use crate::series::Totals;

impl Simulation {
    fn totals(&self) -> Totals {
        Totals {
            fast: self.counts.tier_accesses[0],
            memory: self.counts.tier_accesses.iter().sum(),
            promoted: self.counts.promoted,
            demoted: self.counts.demoted,
            failed: self.counts.failed_promotions,
        }
    }

    pub(crate) fn add_row(&mut self, now: Time) {
        let metrics = self.engine.policy_metrics();
        let (totals, fast) = (self.totals(), self.hot.memory.used(TierId::FAST));
        self.series.add(now, totals, fast, &metrics);
    }

    pub(crate) fn report(mut self, workload: &str) -> Report {
        // What the last round of management moved, and what the mover had not finished, belongs to the run as well.
        self.copy(f64::INFINITY);
        self.total_up();
        if let Some(run) = &self.hot.mmu {
            (self.hot.second_hits, self.hot.walks) = crate::mmu::replay::walks(&run.mmu);
        }
        let now = self.now();
        self.add_row(now);
        let counts = self.counts;
        let totals = self.totals();
        let overhead_seconds = self.costs.seconds();
        let mut failures: BTreeMap<String, u64> = BTreeMap::new();
        for (failure, pages) in self.engine.ledger().failed() {
            *failures.entry(failure.name()).or_default() += pages;
        }
        for (veto, count) in self.engine.governor().vetoes() {
            failures.insert(format!("veto_{}", snake_case(&format!("{veto:?}"))), *count);
        }
        let policy_metrics: BTreeMap<&'static str, f64> =
            self.engine.policy_metrics().into_iter().map(|metric| (metric.name, metric.value)).collect();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let known_pages = self.engine.pages().capacity() as f64;
        // A policy counts what it keeps; what it states includes the eight common bytes. The larger of the two is reported.
        let counted = self.engine.pages().memory_bytes() + self.engine.policy_memory_bytes();
        let stated = policy_metrics.get("metadata_bytes_per_page").copied().unwrap_or(0.0);
        let metadata_bytes_per_page = share(counted as f64, known_pages).max(stated);
        // A policy that does not even try where it knows there is no room counts that as a failure itself.
        let by_policy: f64 = policy_metrics
            .iter()
            .filter(|(name, _)| name.starts_with("promotion_failures"))
            .map(|(_, value)| value)
            .sum();
        let failed_promotions = counts.failed_promotions.max(by_policy as u64);
        let fast = match self.config.capacities() {
            Ok(capacity) => Bytes::of_pages(capacity[0]),
            Err(_) => Bytes::ZERO,
        };
        let seconds = self.now_ns / 1e9;
        Report {
            workload: workload.to_owned(),
            policy: self.engine.policy_name().to_owned(),
            machine: self.config.machine.name.clone(),
            seed: self.config.seed,
            scale: self.config.scale.factor(),
            pages: self.config.pages,
            fast_bytes: fast.get(),
            footprint_bytes: Bytes::of_pages(counts.peak_pages).get(),
            seconds,
            full_size_seconds: seconds * f64::from(self.config.scale.factor()),
            slowdown_vs_all_fast: None,
            gain_over_all_slow: None,
            fast_hit_share: share(totals.fast as f64, totals.memory as f64),
            promoted_pages: counts.promoted,
            demoted_pages: counts.demoted,
            failed_promotions,
            management_seconds: overhead_seconds.values().sum(),
            metadata_bytes_per_page,
            accesses: counts.accesses,
            cache_hits: counts.cache_hits,
            tier_accesses: counts.tier_accesses[..self.tiers.len()].to_vec(),
            tier_names: self.tiers.iter().map(|tier| tier.name.clone()).collect(),
            tier_bytes: (0..self.tiers.len()).map(|k| [counts.tier_read[k], counts.tier_written[k]]).collect(),
            bandwidth_bound_share: share(counts.bandwidth_bound_ns, self.now_ns),
            walk_share: share(self.hot.walks as f64, counts.accesses as f64),
            migrated_bytes: Bytes::of_pages(counts.migrated_pages).get(),
            failures,
            overhead_seconds,
            samples: self.sampler.as_ref().map_or([0, 0], |sampler| [sampler.records, sampler.lost]),
            hint_faults: counts.hint_faults,
            refaults: counts.refaults,
            kernel_demoted_pages: counts.kernel_demoted,
            direct_reclaims: counts.direct_reclaims,
            splits_and_collapses: [counts.splits, counts.collapses],
            policy_metrics,
            processes: self.served(),
            mmu: self.hot.mmu.as_ref().map(|run| run.report(self.tiers.len())),
            phases: self.phases,
            series: self.series,
            heat_map: self.heat,
            history: self.history,
        }
    }
}

fn snake_case(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
