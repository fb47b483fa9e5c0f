//! The histogram of a class's pages by policy score, and the thresholds of the policy.
//!
//! In: an engine. Out: a [`view::Bins`]. Must not: take longer on larger machines, or build a histogram for a policy that does not rank
//! pages.
//!
//! Policies with their own histogram (bins of access counts, as in MEMTIS) show that. For policies that keep a score per page, the pages
//! are counted: all of them up to a million, above that evenly chosen blocks, scaled up.

use terrace_core::engine::Engine;
use terrace_core::pages::{Page, Pages};
use terrace_core::policy::Metric;
use terrace_core::units::{Bytes, TierId};

use crate::view;

/// 2048 blocks are a million pages: about two milliseconds.
const MOST_BLOCKS: usize = 2048;
/// Bins of a score. Policies' own histograms also have 16.
const BINS: usize = 16;

/// The histogram of a class.
pub fn of(class: &str, engine: &Engine) -> view::Bins {
    let metrics = engine.policy_metrics();
    let mut view = view::Bins {
        class: class.to_owned(),
        policy: engine.policy_name().to_owned(),
        looked_at_share: 1.0,
        ..view::Bins::default()
    };
    let own: Vec<&Metric> = metrics.iter().filter(|metric| is_bin(metric.name)).collect();
    let pages = engine.pages();
    match engine.policy_name() {
        _ if !own.is_empty() => own_bins(&own, &metrics, &mut view),
        "age" => {
            view.ranked_by = "share of the recent past in which the page was in use".to_owned();
            let edge = |bin: usize| bin as f64 / BINS as f64;
            let bin = |page: &Page| usize::from(page.heat) * BINS / (usize::from(u16::MAX) + 1);
            spread(pages, BINS, edge, bin, &mut view);
            thresholds(&metrics, &[("cold", "cold_heat_share"), ("hot", "hot_heat_share")], &mut view);
        }
        "flexhm" => {
            view.ranked_by = "scans of the last epoch that found the page in use".to_owned();
            let most = pages.blocks().flat_map(|(block, _)| pages.block_pages(block)).map(|page| page.stamp).max();
            let width = (usize::from(most.unwrap_or(0)) / BINS + 1).max(1);
            let edge = |bin: usize| (bin * width) as f64;
            spread(pages, BINS, edge, |page| usize::from(page.stamp) / width, &mut view);
            thresholds(&metrics, &[("hot", "hot_count_line")], &mut view);
        }
        other => view.note = Some(format!("policy {other} keeps no score per page, so it has no histogram")),
    }
    view
}

fn is_bin(name: &str) -> bool {
    name.starts_with("bin_") && name.ends_with("_pages")
}

fn value(metrics: &[Metric], name: &str) -> Option<f64> {
    metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
}

fn thresholds(metrics: &[Metric], names: &[(&str, &str)], view: &mut view::Bins) {
    let found = names
        .iter()
        .filter_map(|(name, metric)| Some(view::Threshold { name: (*name).to_owned(), at: value(metrics, metric)? }));
    view.thresholds = found.collect();
}

/// Bin k holds counts of at least 2^k - 1 (`terrace_policies::bins`).
fn own_bins(own: &[&Metric], metrics: &[Metric], view: &mut view::Bins) {
    let edge = |bin: f64| bin.exp2() - 1.0;
    view.ranked_by = "samples of the page, halved at each cooling".to_owned();
    let last = own.len() - 1;
    view.bins = own
        .iter()
        .enumerate()
        .map(|(bin, metric)| view::Bin {
            from: edge(bin as f64),
            to: (bin < last).then(|| edge(bin as f64 + 1.0)),
            bytes: Bytes::of_pages(metric.value as u64).get(),
            fast_bytes: None,
        })
        .collect();
    let lines = [("hot", "hot_threshold_bin"), ("warm", "warm_threshold_bin")];
    thresholds(metrics, &lines, view);
    view.thresholds.iter_mut().for_each(|threshold| threshold.at = edge(threshold.at));
}

/// Passes over the pages with memory behind them.
fn spread(
    pages: &Pages,
    bins: usize,
    edge: impl Fn(usize) -> f64,
    bin: impl Fn(&Page) -> usize,
    view: &mut view::Bins,
) {
    let step = (pages.blocks().count() / MOST_BLOCKS).max(1);
    let mut counts = vec![(0u64, 0u64); bins];
    let mut seen = 0u64;
    for (block, _) in pages.blocks().step_by(step) {
        for page in pages.block_pages(block) {
            let Some(tier) = page.tier() else { continue };
            let (all, fast) = &mut counts[bin(page).min(bins - 1)];
            *all += 1;
            *fast += u64::from(tier == TierId::FAST);
            seen += 1;
        }
    }
    let footprint = pages.footprint_of_all();
    view.looked_at_share = if footprint == 0 { 1.0 } else { seen as f64 / footprint as f64 };
    let scaled = |count: u64| {
        let pages = if seen == 0 { 0.0 } else { count as f64 * (footprint as f64 / seen as f64) };
        Bytes::of_pages(pages.round() as u64).get()
    };
    view.bins = counts
        .iter()
        .enumerate()
        .map(|(bin, &(all, fast))| view::Bin {
            from: edge(bin),
            to: (bin + 1 < bins).then(|| edge(bin + 1)),
            bytes: scaled(all),
            fast_bytes: Some(scaled(fast)),
        })
        .collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use terrace_core::engine::{EngineConfig, Input};
    use terrace_core::governor::GovernorConfig;
    use terrace_core::observation::{Observations, PteState, ScanBatch};
    use terrace_core::policy::FastGoal;
    use terrace_core::units::{SpaceId, Time, Vpn};
    use terrace_policies::Settings;

    /// An engine that has seen `blocks` blocks: every fourth page is in use, and the last quarter of the blocks is slow.
    fn engine(policy: &str, blocks: u64) -> Engine {
        let config = EngineConfig {
            tiers: vec![1 << 30, 1 << 30],
            goal: FastGoal::Pages(u64::MAX),
            governor: GovernorConfig::default(),
        };
        let mut engine = Engine::new(config, terrace_policies::build(policy, Settings::default()).unwrap());
        for round in 1..=40u64 {
            let now = Time::ZERO + Duration::from_secs(round);
            for block in 0..blocks {
                let first = Vpn(block * 512);
                engine.handle(now, Input::Mapped(SpaceId(0), first..Vpn(first.0 + 512)));
                let tier = if block >= blocks * 3 / 4 { TierId(1) } else { TierId::FAST };
                let ptes: Vec<PteState> =
                    (0..512).map(|page| PteState::placed(tier).with_accessed(page % 4 == 0)).collect();
                let first = engine.pages().find(SpaceId(0), first).unwrap();
                let scan = ScanBatch { first, ptes: &ptes, window: Some(Duration::from_secs(1)), cleared: true };
                engine.handle(now, Input::Observed(Observations::Scan(scan)));
            }
        }
        engine
    }

    #[test]
    fn the_bins_of_age_hold_every_page_and_its_lines() {
        let view = of("web", &engine("age", 8));
        assert_eq!((view.bins.len(), view.looked_at_share), (BINS, 1.0));
        assert_eq!(view.bins.iter().map(|bin| bin.bytes).sum::<u64>(), 8 * (2 << 20));
        assert_eq!(view.bins.iter().map(|bin| bin.fast_bytes.unwrap()).sum::<u64>(), 6 * (2 << 20));
        assert!(view.bins[15].bytes > 3 << 20, "a quarter is always in use: {:?}", view.bins);
        assert!(view.bins[0].bytes > 11 << 20, "and the rest hardly ever: {:?}", view.bins);
        let lines: Vec<(&str, f64)> = view.thresholds.iter().map(|line| (line.name.as_str(), line.at)).collect();
        assert_eq!(lines.len(), 2);
        assert!((lines[0].1 - 0.125).abs() < 1e-3 && (lines[1].1 - 0.5).abs() < 1e-3, "{lines:?}");
    }

    #[test]
    fn a_policys_own_histogram_is_shown_as_it_is_and_none_is_made_up() {
        let own = of("web", &engine("memtis", 1));
        assert_eq!((own.bins.len(), own.bins[3].from, own.bins[15].to), (16, 7.0, None));
        assert!(own.thresholds.iter().any(|line| line.name == "hot"));
        let none = of("web", &engine("all-fast", 1));
        assert!(none.bins.is_empty() && none.note.unwrap().contains("all-fast"));
    }

    #[test]
    fn of_very_much_memory_a_part_is_looked_at_and_scaled_up() {
        let whole = engine("age", 8192);
        let view = of("web", &whole);
        assert!(view.looked_at_share > 0.2 && view.looked_at_share < 0.3, "{}", view.looked_at_share);
        let (all, footprint) = (view.bins.iter().map(|bin| bin.bytes).sum::<u64>(), 8192u64 << 21);
        assert!(all.abs_diff(footprint) < 64 << 10, "{all} of {footprint}");
    }
}
