//! What a run came to: rows of its series, and the report at its end.
//!
//! In: the books. Out: a [`Report`]. Must not: change the run, but for what is still under way at its end.

use std::collections::BTreeMap;

use terrace_core::units::Bytes;

use super::Simulation;
use super::books::{Course, Event};
use crate::heat::HeatMap;
use crate::history::History;
use crate::report::Report;
use crate::series::Series;

impl Simulation {
    pub(crate) fn report(mut self, workload: &str) -> Report {
        // What the last round of management moved, and what the mover had not finished, belongs to the run as well.
        self.copy(f64::INFINITY);
        self.total_up();
        let now = self.now();
        self.add_row(now);
        let counted = |event| self.books.counted(event);
        let totals = self.books.totals();
        let overhead_seconds = self.books.cost_seconds();
        let mut failures: BTreeMap<String, u64> = BTreeMap::new();
        for (failure, pages) in self.link.engine().ledger().failed() {
            *failures.entry(failure.name()).or_default() += pages;
        }
        for (rejection, count) in self.link.engine().governor().rejections() {
            failures.insert(format!("veto_{}", snake_case(&format!("{rejection:?}"))), *count);
        }
        let policy_metrics: BTreeMap<&'static str, f64> =
            self.link.engine().policy_metrics().into_iter().map(|metric| (metric.name, metric.value)).collect();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let known_pages = self.link.engine().pages().capacity() as f64;
        // A policy counts what it keeps; what it states includes the eight common bytes. The larger of the two is reported.
        let kept = self.link.engine().pages().memory_bytes() + self.link.engine().policy_memory_bytes();
        let stated = policy_metrics.get("metadata_bytes_per_page").copied().unwrap_or(0.0);
        let metadata_bytes_per_page = share(kept as f64, known_pages).max(stated);
        // A policy that does not even try where it knows there is no room counts that as a failure itself.
        let by_policy: f64 = policy_metrics
            .iter()
            .filter(|(name, _)| name.starts_with("promotion_failures"))
            .map(|(_, value)| value)
            .sum();
        let failed_promotions = counted(Event::FailedPromotions).max(by_policy as u64);
        let fast = match self.config.capacities() {
            Ok(capacity) => Bytes::of_pages(capacity[0]),
            Err(_) => Bytes::ZERO,
        };
        let seconds = self.clock.now_ns() / 1e9;
        let tiers = self.config.machine.tiers.len();
        // A thread that works longer than the run would give its policy moves for which there is no time.
        let busiest = self.kernel.busiest_thread_ns();
        assert!(
            busiest <= self.clock.now_ns() * (1.0 + 1e-9),
            "a reclaim thread worked {busiest} ns of a run of {} ns",
            self.clock.now_ns()
        );
        let mut report = Report {
            workload: workload.to_owned(),
            policy: self.link.engine().policy_name().to_owned(),
            machine: self.config.machine.name.clone(),
            seed: self.config.seed,
            scale: self.config.scale.factor(),
            pages: self.config.pages,
            fast_bytes: fast.get(),
            footprint_bytes: Bytes::of_pages(self.books.peak_pages()).get(),
            seconds,
            full_size_seconds: seconds * f64::from(self.config.scale.factor()),
            slowdown_vs_all_fast: None,
            gain_over_all_slow: None,
            fast_hit_share: share(totals.fast as f64, totals.memory as f64),
            promoted_pages: counted(Event::Promoted),
            demoted_pages: counted(Event::Demoted),
            failed_promotions,
            management_seconds: overhead_seconds.values().sum(),
            kernel_seconds: self.books.kernel_nanos() / 1e9,
            metadata_bytes_per_page,
            accesses: self.books.accesses(),
            cache_hits: self.books.cache_hits(),
            tier_accesses: self.books.tier_accesses()[..tiers].to_vec(),
            counted_loads: self.books.counted_loads()[..tiers].to_vec(),
            tier_names: self.config.machine.tiers.iter().map(|tier| tier.name.clone()).collect(),
            tier_bytes: (0..tiers).map(|tier| self.books.tier_bytes(tier)).collect(),
            bandwidth_bound_share: share(self.books.bandwidth_bound_ns(), self.clock.now_ns()),
            walk_share: share(self.hot.walks() as f64, self.books.accesses() as f64),
            migrated_bytes: Bytes::of_pages(counted(Event::MigratedPages)).get(),
            failures,
            overhead_seconds,
            samples: self.trackers.samples(),
            hint_faults: counted(Event::HintFaults),
            refaults: counted(Event::Refaults),
            kernel_demoted_pages: counted(Event::KernelDemoted),
            direct_reclaims: counted(Event::DirectReclaims),
            splits_and_collapses: [counted(Event::Splits), counted(Event::Collapses)],
            policy_metrics,
            processes: self.served(),
            mmu: self.hot.mmu.as_ref().map(|run| run.report(tiers)),
            phases: Vec::new(),
            series: Series::default(),
            heat_map: HeatMap::default(),
            history: History::default(),
        };
        let Course { history, series, heat, phases } = self.books.into_course();
        (report.history, report.series, report.heat_map, report.phases) = (history, series, heat, phases);
        report
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
