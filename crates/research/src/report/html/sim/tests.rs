//! Pages of simulated runs: their markup, their weight, and what their headlines say.

use terrace_core::policy::Metric;
use terrace_core::random::mix;
use terrace_core::units::Time;
use terrace_sim::compare::{Course, Job, Matrix, summarise};
use terrace_sim::config::FastSize;
use terrace_sim::heat::HeatMap;
use terrace_sim::series::{Series, Totals};

use super::*;
use crate::report::plots;

#[test]
fn a_page_has_the_style_and_no_markup_from_outside() {
    let page = page("a <b>", "c & d", "");
    assert!(page.contains("a &lt;b&gt;") && page.contains("c &amp; d") && page.contains("border-collapse"));
    assert!(!page.contains("{{"));
}

fn cell(job: &Job, gain: f64) -> Cell {
    Cell {
        workload: job.workload.clone(),
        policy: job.policy.clone(),
        machine: "cxl-expander".to_owned(),
        fast: job.fast_text.clone(),
        fast_share: 0.5,
        seed: job.seed,
        scale: 16,
        fast_bytes: 1 << 30,
        footprint_bytes: 2 << 30,
        seconds: 100.0 / gain,
        slowdown_vs_all_fast: 3.0 / gain,
        gain_over_all_slow: gain,
        gain_over_first_touch: gain,
        fast_hit_share: 0.777,
        promoted_pages: 1_234_567,
        demoted_pages: 1_234_567,
        failed_promotions: 12_345,
        management_seconds: 1.5,
        metadata_bytes_per_page: 8.0,
    }
}

/// The longest course that is kept, of noise, which nothing makes smaller, with a histogram.
fn course(job: &Job) -> Course {
    const BINS: [&str; 16] = [
        "bin_0", "bin_1", "bin_2", "bin_3", "bin_4", "bin_5", "bin_6", "bin_7", "bin_8", "bin_9", "bin_10", "bin_11",
        "bin_12", "bin_13", "bin_14", "bin_15",
    ];
    let mut state = mix(job.seed);
    let mut noise = || {
        state = mix(state);
        state >> 40
    };
    let mut series = Series::new(1);
    let mut totals = Totals::default();
    for second in 1..1024 {
        totals.fast += noise() & 0xffff;
        totals.memory += 0xffff;
        let bins = BINS.map(|name| Metric { name, value: noise() as f64 });
        let metrics: Vec<Metric> = bins.into_iter().chain([Metric { name: "hot_threshold_bin", value: 7.0 }]).collect();
        series.add(Time::from_nanos(second * 1_000_000_000), totals, noise(), &metrics);
    }
    let rows = (0..256).map(|_| (0..256).map(|_| noise() as u32 & 0xff).collect()).collect();
    let heat_map = HeatMap { pages_per_column: 64, nanos_per_row: 4_000_000_000, rows };
    Course { job: job.clone(), series, heat_map }
}

/// Every shape of 200 cells that `sim compare` may be asked for.
#[test]
fn the_page_of_two_hundred_cells_stays_below_a_megabyte() {
    let names = |stem: &str, count: usize| -> Vec<String> { (0..count).map(|n| format!("{stem}-{n}")).collect() };
    for (workloads, policies, sizes, seeds) in
        [(10, 10, 2, 1), (200, 1, 1, 1), (1, 20, 10, 1), (20, 10, 1, 1), (5, 5, 2, 4)]
    {
        let matrix = Matrix {
            workloads: names("workload-of-some-length", workloads),
            policies: names("policy-of-some-length", policies),
            fast: names("size", sizes).into_iter().map(|text| (text, FastSize::Share(0.5))).collect(),
            seeds: (0..seeds).collect(),
        };
        let jobs = matrix.jobs();
        assert_eq!(jobs.len(), 200);
        let cells: Vec<Cell> =
            jobs.iter().enumerate().map(|(n, job)| cell(job, 1.0 + mix(n as u64) as f64 / u64::MAX as f64)).collect();
        let courses: Vec<Course> = jobs.iter().filter(|job| job.seed == 0).map(course).collect();
        let summary = summarise(&cells, 1);
        let figures = plots::sim::comparison_figures(&cells, &summary, &courses).unwrap();
        let page = comparison_page(&cells, &summary, &figures, Some("25% is <enough>"));
        assert!(page.contains("<p class=\"headline\">25% is &lt;enough&gt;.</p>"));
        let shape = format!("{workloads} x {policies} x {sizes} x {seeds}");
        assert!(page.len() <= 1_000_000, "{shape}: {} bytes", page.len());
        assert_eq!(
            page.matches("<tr><th scope=\"row\">workload-of-some-length").count(),
            200,
            "{shape}: every run is in it"
        );
        assert!(page.matches("<image class=\"light\"").count() >= 2, "{shape}: bins and heat are drawn");
        assert_eq!(
            page.matches("<image class=\"light\"").count(),
            page.matches("<image class=\"dark\"").count(),
            "{shape}"
        );
        assert!(page.contains("img-src data:") && !plots::without_pictures(&page).contains("NaN"), "{shape}");
    }
}

fn mean(policy: &str, gain: f64, bound: bool) -> Geomean {
    Geomean { policy: policy.to_owned(), gain_over_all_slow: gain, low: gain, high: gain, cells: 4, best: 1, bound }
}

fn duel(against: &str, ratio: f64, low: f64, high: f64) -> Duel {
    let (policy, against) = ("age".to_owned(), against.to_owned());
    Duel { policy, against, wins: 1, losses: 1, draws: 0, ratio, low, high }
}

/// The headline of `age` against others, by ratio, and lower and upper end of its interval.
fn said(others: &[(&str, f64, f64, f64)]) -> String {
    let mut geomean = vec![mean("clairvoyant", 2.5, true), mean("age", 1.5, false)];
    geomean.extend(others.iter().map(|(name, ratio, _, _)| mean(name, 1.5 / ratio, false)));
    let duels = others.iter().map(|(name, ratio, low, high)| duel(name, *ratio, *low, *high)).collect();
    headline(&Summary { geomean, duels })
}

#[test]
fn the_headline_names_who_is_ahead_where_the_interval_shows_it() {
    assert_eq!(
        said(&[("tpp", 1.1, 1.05, 1.16), ("memtis", 1.2, 1.1, 1.3)]),
        "age is ahead of tpp by 10.0 % (95 % interval 5.0 % to 16.0 %): 1.50 times as fast as all-slow memory."
    );
}

#[test]
fn the_headline_says_level_where_the_interval_includes_one() {
    assert_eq!(
        said(&[("tpp", 1.1, 0.97, 1.3), ("memtis", 1.2, 1.1, 1.3)]),
        "age and tpp are level: age is 1.50 times as fast as all-slow memory; the 95 % interval of the ratio of the first two, \
         0.970 to 1.300, includes 1."
    );
}

#[test]
fn the_headline_says_level_where_the_two_are_a_draw() {
    assert_eq!(
        said(&[("tpp", 1.008, 1.004, 1.012), ("memtis", 1.2, 1.1, 1.3)]),
        "age and tpp are level: age is 1.50 times as fast as all-slow memory; the first two are 0.8 % apart, a draw within 1 %."
    );
    assert!(
        said(&[("tpp", 1.0099, 1.005, 1.015)]).starts_with("age and tpp are level"),
        "a draw up to its edge, as in duels"
    );
    assert!(said(&[("tpp", 1.011, 1.005, 1.015)]).starts_with("age is ahead of tpp by 1.1 %"));
}

#[test]
fn the_headline_counts_the_level_ones_that_it_has_no_room_for() {
    let others: Vec<_> = ["b", "c", "d", "e"].map(|name| (name, 1.001, 1.0, 1.002)).into();
    assert!(said(&others[..2]).starts_with("age, b and c are level: "), "{}", said(&others[..2]));
    assert!(said(&others).starts_with("age, b, c and 2 more are level: "), "{}", said(&others));
    let parted = [("b", 1.001, 1.0, 1.002), ("c", 1.2, 1.1, 1.3), ("d", 1.3, 0.9, 1.9)];
    assert!(said(&parted).starts_with("age and b are level: "), "no one is level across one who is behind");
}

#[test]
fn the_headline_of_one_policy_or_none_compares_nothing() {
    assert_eq!(said(&[]), "age: 1.50 times as fast as all-slow memory.");
    assert_eq!(headline(&Summary::default()), "Nothing could be compared.");
}
