//! Made-up reports for tests of what shows them.
//!
//! In: nothing. Out: [`managed`], a run with something of everything, and others at the edges. Must not: be shown to a user.

use std::collections::BTreeMap;

use terrace_linux::live_proof::ProofState;

use super::*;

/// A run of two minutes that saved about half of two GiB, was limited and stopped once each, and failed at some pages.
pub(super) fn managed() -> Report {
    let timeline: Vec<Point> = (0..120).map(point).collect();
    Report {
        schema_version: SCHEMA_VERSION,
        target: target(),
        tracker: "accessed-bits".to_owned(),
        tracker_reasons: vec![
            "samples: no hardware performance counters (virtual machine without a vPMU)".to_owned(),
            "accessed-bits: saw all 64 touched pages and none of the others; 43 ns a page".to_owned(),
        ],
        policy: "age".to_owned(),
        policy_settings: settings(&[("half_life", "10s"), ("idle", "20s")]),
        fast_goal: "50%".to_owned(),
        max_slowdown: Some(0.02),
        invest: None,
        max_promotions: None,
        invested_seconds: 0.0,
        tiers: vec![
            TierReport {
                name: "dram".to_owned(),
                kind: "nodes".to_owned(),
                capacity_bytes: 16 << 30,
                mean_used_bytes: 900 << 20,
                end_used_bytes: 610 << 20,
                mean_occupied_bytes: None,
            },
            TierReport {
                name: "zram1".to_owned(),
                kind: "swap".to_owned(),
                capacity_bytes: 2 << 30,
                mean_used_bytes: 1150 << 20,
                end_used_bytes: 1440 << 20,
                mean_occupied_bytes: Some(310 << 20),
            },
        ],
        fast_bytes_saved_mean: 840 << 20,
        fast_bytes_saved_end: 1050 << 20,
        fast_bytes_saved_peak: 1070 << 20,
        swap_end: SwapReport {
            swapped_bytes: 1424 << 20,
            zeros_bytes: 96 << 20,
            zram_stored_bytes: 1120 << 20,
            zram_bytes: 314 << 20,
            zswap_stored_bytes: 192 << 20,
            zswap_pool_bytes: 44 << 20,
            swap_cache_bytes: 16 << 20,
            disk_bytes: 0,
        },
        swap_peak: SwapReport {
            swapped_bytes: 1430 << 20,
            zram_stored_bytes: 1430 << 20,
            zram_bytes: 360 << 20,
            ..SwapReport::default()
        },
        swapped_by_others_bytes_mean: 12 << 20,
        swapped_by_others_bytes_end: 16 << 20,
        swapped_by_others_bytes_peak: 24 << 20,
        incompressible_bytes_peak: 32 << 20,
        moved_pages: moved_pages(),
        inside: inside(),
        file_cache: Some(file_cache()),
        refaults: 20_418,
        refaults_at_end: 3_350,
        ping_pong_pages: 913,
        promotions_p98: Some(0.0174),
        page_outs_seconds: seconds(&[
            ("limited_to_bound", 25.0),
            ("stopped_came_back", 12.0),
            ("stopped_compression", 2.5),
        ]),
        throttled_seconds: seconds(&[("price_of_moves", 25.0), ("refaults", 12.0), ("compression", 2.5)]),
        rejected_pages: counts(&[("cooldown", 5_120), ("throttled", 20_480)]),
        manager: manager(),
        cost: cost(),
        proof: Some(proof()),
        timeline,
        heat_map: heat(120, 180),
        age_histogram: ages(),
        notes: vec![
            "zram1 was set up for this run and is taken away again".to_owned(),
            "2 processes ended during the run & were let go".to_owned(),
            "node 0 says it has 8.0 GiB, /proc/meminfo says 24.0 GiB: the latter is used".to_owned(),
        ],
        background_notes: 1,
    }
}

fn target() -> TargetReport {
    TargetReport {
        command: ["/usr/bin/redis-server", "--save", "", "<script>alert('x')</script>", "{{facts}}"]
            .map(str::to_owned)
            .to_vec(),
        pid: 4242,
        cgroup: None,
        everything: false,
        ended: true,
        exit_code: Some(0),
        wall_seconds: 120.4,
        cpu_seconds: 117.9,
        peak_rss_bytes: 2_180_000_000,
        peak_footprint_bytes: 2_190_000_000,
        processes: 2,
    }
}

fn moved_pages() -> MovedPages {
    MovedPages {
        demoted: 391_220,
        promoted: 2_110,
        failed: 1_234,
        failed_by_cause: counts(&[("stayed", 1_100), ("EBUSY", 134)]),
        measuring: 0,
        moved_by_reason: counts(&[("cold", 391_220), ("hot", 2_110)]),
        by_unit: MovedByUnit {
            single: 61_492,
            local: 58_112,
            huge: 0,
            collapsed: 329_728,
            apart: counts(&[("shared with another process", 1_024)]),
        },
    }
}

fn manager() -> ManagerReport {
    ManagerReport {
        cpu_seconds: 3.31,
        user_cpu_seconds: 0.42,
        max_rss_bytes: 19 << 20,
        stall_seconds: 0.96,
        refault_microseconds: Some(29.8),
        rounds: 431,
        hint_faults: 0,
        births: 0,
        deaths: 0,
        kernel_lists: None,
        round_milliseconds_mean: 1.27,
        longest_move_call_milliseconds: 8.4,
    }
}

fn cost() -> CostReport {
    CostReport {
        watching_seconds: 0.21,
        moving_seconds: 0.14,
        refault_seconds: 0.61,
        ending_seconds: 0.1,
        own_cpu_seconds: 3.31,
        lost_share: 0.96 / 120.4,
        share_of_target: 0.0081,
        touched_bits: 812_000,
        touch_nanoseconds: 171.5,
        back_off: 2,
    }
}

fn proof() -> ProofState {
    ProofState {
        metric: "redis://localhost:6379".to_owned(),
        seed: 7,
        windows: 24,
        discarded: 2,
        gain: Some(0.031),
        gain_low: Some(0.012),
        gain_high: Some(0.049),
        frozen: false,
        freezes: 0,
        error: None,
        differences: vec![0.031; 12],
    }
}

/// A run that ended before anything was seen.
pub(super) fn empty() -> Report {
    let mut report = managed();
    report.timeline.clear();
    report.heat_map = HeatMap::default();
    report.age_histogram.clear();
    report.tiers.clear();
    report.moved_pages = MovedPages::default();
    report.policy_settings.clear();
    report.page_outs_seconds.clear();
    report.throttled_seconds.clear();
    report.rejected_pages.clear();
    report.tracker_reasons.clear();
    report.notes.clear();
    report.target.command.clear();
    report.target.exit_code = None;
    report.target.wall_seconds = 0.0;
    report.manager.refault_microseconds = None;
    report
}

/// Runs at the edges: one point, no length, all numbers not finite, nothing but zeros.
pub(super) fn edges() -> Vec<(&'static str, Report)> {
    let mut single = managed();
    single.timeline.truncate(1);
    single.heat_map = heat(1, 1);
    single.age_histogram.truncate(1);
    let mut instant = managed();
    instant.target.wall_seconds = 0.0;
    for point in &mut instant.timeline {
        point.seconds = 0.0;
    }
    let mut broken = managed();
    for point in broken.timeline.iter_mut().step_by(3) {
        point.seconds = f64::NAN;
        point.accessed_share = f64::INFINITY;
    }
    broken.heat_map.cells[3] = vec![f32::NAN; 7];
    broken.heat_map.cells.truncate(60);
    broken.manager.stall_seconds = f64::NAN;
    broken.cost.lost_share = f64::NAN;
    broken.age_histogram[0].to_seconds = Some(f64::NAN);
    let mut zeros = managed();
    zeros.timeline = (0..3).map(|second| Point { seconds: f64::from(second), ..Point::default() }).collect();
    zeros.age_histogram.iter_mut().for_each(|bin| (bin.fast_bytes, bin.slow_bytes) = (0, 0));
    zeros.heat_map.cells.iter_mut().flatten().for_each(|cell| *cell = 0.0);
    vec![("empty", empty()), ("single", single), ("instant", instant), ("broken", broken), ("zeros", zeros)]
}

/// A run that only watched.
pub(super) fn observed() -> Report {
    let mut report = managed();
    report.fast_goal = "none".to_owned();
    report.tiers.truncate(1);
    report.tiers[0].mean_used_bytes = 2 << 30;
    report.moved_pages = MovedPages::default();
    report.refaults = 0;
    report.file_cache = None;
    report
}

/// A heat map of three ranges in two processes: a hot one, one whose hot part wanders, and a cold one.
fn heat(columns: usize, rows: usize) -> HeatMap {
    let share = |column: usize, row: usize| match row * 3 / rows.max(1) {
        _ if column % 40 == 39 => -1.0,
        0 => 0.6 + ((row * 7 + column * 3) % 40) as f32 / 100.0,
        1 if (column * rows / columns / 3 + rows / 3).abs_diff(row) < rows / 20 => 0.9,
        1 => 0.01,
        _ if column < columns / 10 => 0.3,
        _ => 0.0,
    };
    let row = |row: usize| {
        let range = row * 3 / rows.max(1);
        let start = [0x5582_1a00_0000_u64, 0x7f10_4000_0000, 0x7f90_0000_0000][range];
        HeatRow { pid: if range == 2 { 4243 } else { 4242 }, address: start + row as u64 * (8 << 20), bytes: 8 << 20 }
    };
    HeatMap {
        column_seconds: (0..columns).map(|column| column as f64).collect(),
        rows: (0..rows).map(row).collect(),
        cells: (0..columns).map(|column| (0..rows).map(|row| share(column, row)).collect()).collect(),
    }
}

/// A map that no two neighbouring cells of are alike, larger than any screen.
pub(super) fn noise() -> HeatMap {
    let cell = |column: usize, row: usize| ((column * 7_919 + row * 104_729) % 1_009) as f32 / 1_008.0;
    HeatMap {
        column_seconds: (0..700).map(f64::from).collect(),
        rows: (0..3_000).map(|row| HeatRow { pid: 1, address: row << 21, bytes: 2 << 20 }).collect(),
        cells: (0..700).map(|column| (0..3_000).map(|row| cell(column, row)).collect()).collect(),
    }
}

fn file_cache() -> FileCacheReport {
    FileCacheReport {
        rule: "bound".to_owned(),
        left_bytes: 1946 << 20,
        at_end_bytes: 102 << 20,
        refaulted_pages: 120,
        stalled_seconds: 0.12,
        seconds: 120.0,
        not_possible: None,
    }
}

fn inside() -> InsideReport {
    InsideReport {
        looked: true,
        huge_bytes: 96 << 20,
        split_blocks: 214,
        looked_into_blocks: 20,
        sparse_blocks: 18,
        even_blocks: 1,
        left_bytes: 412 << 20,
        huge_again_blocks: 1,
        left_whole_blocks: counts(&[("shared with another process", 2)]),
        used_bytes: Some(60 << 20),
        used_bytes_low: Some(36 << 20),
        used_bytes_high: Some(90 << 20),
    }
}

fn point(second: u64) -> Point {
    let slow = if second < 20 { 0 } else { ((second - 20) * 60).min(1440) << 20 };
    let footprint = (2050 << 20) * second.min(6) / 6;
    let page_outs = match second {
        30..55 => PageOuts::LimitedToBound,
        72..84 => PageOuts::StoppedCameBack,
        _ => PageOuts::Free,
    };
    Point {
        seconds: second as f64,
        fast_bytes: footprint - slow,
        slow_bytes: slow,
        slow_occupied_bytes: slow * 27 / 100,
        saved_bytes: slow * 73 / 100,
        swapped_by_others_bytes: 0,
        resident_bytes: footprint - slow + (12 << 20),
        demoted_pages: slow >> 12,
        promoted_pages: second * 17,
        refaults: second * second + if second > 70 { 4_000 } else { 0 },
        manager_cpu_seconds: second as f64 * 0.027,
        lost_seconds: second as f64 * 0.008,
        accessed_share: 0.2,
        page_outs,
        throttled: page_outs != PageOuts::Free,
    }
}

fn ages() -> Vec<AgeBin> {
    let edges = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0];
    let sizes = [(420, 0), (40, 0), (30, 2), (25, 4), (35, 60), (20, 160), (30, 500), (8, 720), (2, 0)];
    let bins = edges.iter().enumerate().zip(sizes);
    bins.map(|((index, from), (fast, slow))| AgeBin {
        from_seconds: *from,
        to_seconds: edges.get(index + 1).copied(),
        fast_bytes: fast << 20,
        slow_bytes: slow << 20,
    })
    .collect()
}

fn counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
}

fn seconds(seconds: &[(&str, f64)]) -> BTreeMap<String, f64> {
    seconds.iter().map(|(state, span)| ((*state).to_owned(), *span)).collect()
}

fn settings(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
    settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
