//! The cross-checks of the specification (section 14) that need no modelled hardware: an engine, a policy, and samples or
//! faults made by hand. Numbers in the test names are those of the specification; 4, 8 and 9 are about sizing and hardware.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "../src/rig.rs"]
mod rig;

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_core::reclaim::Watermarks;
use terrace_core::units::{Bytes, TierId};
use terrace_policies::{Settings, build};

use rig::{Rig, SLOW};

/// On a machine so much smaller the clamps of MEMTIS's watermarks do not bite at a thousand pages.
const SCALE: u32 = 12_800;
const FAST: u64 = 1000;
const PERIOD: Duration = Duration::from_millis(500);

fn rig_of(name: &str, pairs: &[(&str, &str)], scale: u32, fast: u64) -> Rig {
    let mut policy = build(name, Settings::from_pairs(pairs.iter().copied())).unwrap();
    policy.configure(rig::scaled(scale));
    let mut rig = Rig::new(policy, &[fast, 1_000_000]);
    rig.map(40_000);
    rig
}

/// An adaptation every 100 samples and a cooling every `cool` hundreds of samples on the small machine.
fn samples(cool: u64) -> [(&'static str, String); 3] {
    let full = |small: u64| (small * u64::from(SCALE)).to_string();
    [("adapt_samples", full(100)), ("cool_samples", full(cool * 100)), ("cool_growth", "1TiB".to_owned())]
}

fn small(name: &str, cool: u64, extra: &[(&str, &str)]) -> Rig {
    small_with(FAST, name, cool, extra)
}

fn small_with(fast: u64, name: &str, cool: u64, extra: &[(&str, &str)]) -> Rig {
    let common = samples(cool);
    let pairs: Vec<(&str, &str)> =
        common.iter().map(|(key, text)| (*key, text.as_str())).chain(extra.iter().copied()).collect();
    rig_of(name, &pairs, SCALE, fast)
}

/// A generator with a fixed seed, for traces.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn check_1_flexmem_and_memtis_agree_on_the_hot_threshold_while_it_does_not_fall() {
    let mut memtis = small("memtis", 0, &[("split", "off")]);
    // FlexMem fills the capacity, MEMTIS the capacity less its 3 % watermark: machines on which these are the same.
    let mut flexmem = small_with(970, "flexmem", 0, &[("fault_profiler", "off")]);
    let mut draw = Draw(1);
    for rig in [&mut memtis, &mut flexmem] {
        rig.born(0..900, TierId::FAST);
        rig.born(900..6000, SLOW);
    }
    let (mut compared, mut last) = (0, 0.0);
    for round in 0..120 {
        // Ever more pages come into use, so the threshold rises.
        let vpns: Vec<u64> = (0..100).map(|_| draw.below(500 + 40 * round)).collect();
        memtis.sample(vpns.iter().copied());
        flexmem.sample(vpns.iter().copied());
        let (lagging, immediate) = (memtis.metric("hot_threshold_bin"), flexmem.metric("hot_threshold_bin"));
        assert!(immediate >= last, "the trace was to raise the threshold only");
        last = immediate;
        assert_eq!(lagging, immediate, "round {round}");
        compared += 1;
    }
    assert!(compared == 120 && last >= 10.0, "the threshold rose to {last}");
}

#[test]
fn check_1_memtis_lags_by_one_bin_a_cooling_when_it_falls() {
    let mut memtis = small("memtis", 20, &[("split", "off")]);
    let mut flexmem = small("flexmem", 20, &[("fault_profiler", "off")]);
    for rig in [&mut memtis, &mut flexmem] {
        rig.born(0..900, TierId::FAST);
        rig.born(900..3000, SLOW);
        for _ in 0..3 {
            rig.sample(0..3000);
        }
    }
    // Now a hundred pages are in use; what the others did is halved away, and the threshold follows.
    let (start, coolings) = (memtis.metric("hot_threshold_bin"), memtis.metric("coolings"));
    let (mut last, mut was_behind) = (start, false);
    for _ in 0..200 {
        memtis.sample(0..100);
        flexmem.sample(0..100);
        let now = memtis.metric("hot_threshold_bin");
        assert!(now >= last - 1.0, "from {last} to {now} at once");
        was_behind |= flexmem.metric("hot_threshold_bin") < now;
        last = now;
    }
    let fallen = start - last;
    assert!(fallen >= 3.0 && fallen <= memtis.metric("coolings") - coolings, "fell by {fallen}");
    assert!(was_behind, "FlexMem's threshold falls at once");
}

#[test]
fn check_2_flexmem_without_what_it_adds_migrates_as_memtis_without_split() {
    let bare = [
        ("countdown", "0"),
        ("alpha", "0"),
        ("warm", "single"),
        ("demotion", "fixed"),
        ("couple", "decoupled"),
        ("fault_profiler", "off"),
    ];
    let mut memtis = small("memtis", 0, &[("split", "off")]);
    let mut flexmem = small("flexmem", 0, &bare);
    for rig in [&mut memtis, &mut flexmem] {
        rig.born(0..900, TierId::FAST);
        rig.born(900..2000, SLOW);
        rig.pass(PERIOD);
        // Half of the fast pages are in use; then a slow set that takes more than the room there is.
        for _ in 0..4 {
            rig.sample(0..400);
        }
        for _ in 0..4 {
            rig.sample(1000..1300);
            rig.pass(PERIOD);
        }
        rig.pass(PERIOD * 4);
    }
    let moved = |rig: &Rig| rig.moves.iter().map(|item| (item.page, item.from)).collect::<BTreeSet<_>>();
    assert!(memtis.promotions >= 300 && memtis.demotions >= 200, "{} {}", memtis.promotions, memtis.demotions);
    assert_eq!((flexmem.promotions, flexmem.demotions), (memtis.promotions, memtis.demotions));
    assert_eq!(moved(&flexmem), moved(&memtis));
}

#[test]
fn check_3_tieredmms_and_memtis_draw_the_same_first_thresholds() {
    // Pages and samples of each: a sample lands a page in MEMTIS's bin 9 and in TieredMMS's bar 0.
    let check = |groups: &[(u64, u64)]| {
        let total: u64 = groups.iter().map(|(pages, samples)| pages * samples).sum();
        let period = (total * u64::from(SCALE)).to_string();
        let mut memtis = rig_of(
            "memtis",
            &[("split", "off"), ("adapt_samples", &period), ("cool_samples", "0"), ("cool_growth", "1TiB")],
            SCALE,
            FAST,
        );
        let mut tieredmms = rig_of("tieredmms", &[("threshold_period", &period), ("cool_period", "0")], SCALE, FAST);
        for rig in [&mut memtis, &mut tieredmms] {
            rig.born(0..20_000, SLOW);
            let mut first = 0;
            for &(pages, samples) in groups {
                (0..samples).for_each(|_| rig.sample(first..first + pages));
                first += pages;
            }
        }
        let thresholds = |rig: &Rig| [rig.metric("hot_threshold_bin"), rig.metric("warm_threshold_bin")];
        let shifted = thresholds(&tieredmms).map(|bin| bin + 9.0);
        assert_eq!(thresholds(&memtis), shifted, "{groups:?}");
    };
    check(&[(2000, 1), (300, 4), (100, 16)]);
    check(&[(2000, 1), (900, 4), (50, 16)]);
    check(&[(2000, 2), (1500, 9), (200, 40)]);
    check(&[(1200, 3), (728, 8)]);
}

/// Every slow page marked once a second and used some time later: the faults of a uniform trace over `pages` pages.
fn uniform_faults(rig: &mut Rig, pages: u64, seconds: u64) {
    let mut draw = Draw(7);
    for _ in 0..seconds {
        let marked: Vec<u64> = (0..pages).filter(|&vpn| rig.tier(vpn) == Some(SLOW)).collect();
        for part in 0..10 {
            let used: Vec<u64> = marked.iter().copied().filter(|_| draw.below(20) == 0).collect();
            rig.fault(used, Duration::from_millis(100 * part + 50), false);
            rig.pass(Duration::from_millis(100));
        }
        for block in 0..pages.div_ceil(512) {
            let turn = draw.below(2);
            rig.scan(block, |vpn| vpn % 2 == turn);
        }
    }
}

#[test]
fn check_5_tpp_needs_three_touches_for_less_and_ping_pongs_where_the_hot_set_is_too_large() {
    let promoted = |touches: &str| {
        let mut rig = rig_of("tpp", &[("touches", touches)], 64, 5000);
        rig.kernel_goal = 100;
        rig.touch_first(0..8192);
        uniform_faults(&mut rig, 8192, 12);
        (rig.promotions, rig.metric("promote_candidate_demoted_pages"))
    };
    let ((two, ping_pong), (three, _)) = (promoted("2"), promoted("3"));
    assert!(three > 0 && two > 0, "{two} {three}");
    assert!((three as f64 / two as f64) < 1.0, "three touches promoted {three}, two {two}");
    assert!(ping_pong > 0.0, "the hot set is larger than fast memory");
}

#[test]
fn check_6_autonuma_stops_promoting_at_the_high_watermark() {
    let mut rig = rig_of("autonuma", &[], 64, 5000);
    let marks = Watermarks::new(5000, 64, &terrace_core::policy::Kernel::default());
    // What the kernel does is the driver's part: one more than the mark must stay free.
    rig.watermark = marks.high.ceil() as u64 + 1;
    rig.born(0..4000, TierId::FAST);
    rig.born(4000..8192, SLOW);
    uniform_faults(&mut rig, 8192, 12);
    // A page stands for 64, and the mark falls into the last one.
    let least = rig.least_free as f64;
    assert!(least > marks.high - 1.0, "{least} free at the least, the mark is {}", marks.high);
    let (promoted, failed) = (rig.metric("promoted_pages"), rig.metric("promotion_failures_no_room"));
    assert_eq!(rig.demotions, 0);
    assert!(failed > promoted, "{failed} failed, {promoted} went through; the ratio grows for ever");
}

#[test]
fn check_7_tiering_08_keeps_to_its_rate_once_fast_memory_is_full() {
    let minute = |seconds_before: u64| {
        let mut rig = rig_of("tiering08", &[], 64, 5000);
        // The room for promotions, 10 MiB above the high watermark, on a machine 64 times smaller.
        rig.kernel_goal = 50;
        rig.touch_first(0..20_000);
        uniform_faults(&mut rig, 20_000, seconds_before);
        let before = rig.promotions;
        uniform_faults(&mut rig, 20_000, 60);
        rig.promotions - before
    };
    // 30 MB/s are 1.8 GB a minute, on a machine 64 times smaller.
    let most = Bytes::mib(30 * 60).pages() / 64;
    let moved = minute(2);
    assert!(moved <= most, "{moved} pages in a minute, {most} are allowed");
    assert!(moved > most / 10, "{moved} of {most}: the rate was what held it back");
}
