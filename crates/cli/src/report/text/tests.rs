//! The closing lines, the progress line and the pictures in text on synthetic reports.

use super::*;
use crate::report::example;

const WIDE: Screen = Screen { width: 120, unicode: true };

#[test]
fn the_headline_says_what_was_saved_and_what_it_cost() {
    assert_eq!(
        headline(&example::managed()),
        "Fast memory saved: 840.0 MiB of 2.0 GiB on average (41 %), at 0.8 % stall (estimate); Terrace used 3.3 s of CPU"
    );
    assert!(headline(&example::observed()).starts_with("Watched 2.0 GiB for 2 min and moved nothing"));
    let mut unseen = example::managed();
    unseen.tiers.iter_mut().for_each(|tier| tier.mean_used_bytes = 0);
    assert!(headline(&unseen).starts_with("No memory of the program was seen"), "{}", headline(&unseen));
}

#[test]
fn the_closing_lines_tell_gains_costs_failures_and_notes() {
    let text = closing_lines(&example::managed(), false, &WIDE);
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    insta::with_settings!({ snapshot_path => "../../../tests/snapshots" }, {
        insta::assert_snapshot!("closing_lines", text + &closing_lines(&example::observed(), true, &WIDE));
    });
}

#[test]
fn the_closing_lines_stay_few() {
    let mut report = example::managed();
    report.notes = (0..9).map(|number| format!("note {number}")).collect();
    let text = closing_lines(&report, false, &Screen { width: 400, unicode: true });
    assert_eq!(text.lines().count(), 12, "{text}");
    assert!(text.contains("and 6 more in the report"), "what changes nothing for the run is not announced: {text}");
}

#[test]
fn nothing_fails_or_grows_wide_at_the_edges() {
    for (name, report) in example::edges() {
        for screen in [WIDE, Screen { width: 60, unicode: false }, Screen { width: 10, unicode: false }] {
            let text = closing_lines(&report, true, &screen);
            assert!(!text.contains("NaN"), "{name}: {text}");
            if screen.width >= 60 {
                assert!(text.lines().all(|line| line.chars().count() <= screen.width), "{name}: {text}");
            }
        }
    }
}

#[test]
fn pictures_are_ascii_where_the_locale_is() {
    let report = example::observed();
    let ascii = Screen { width: 100, unicode: false };
    let text = age_histogram(&report.age_histogram, &ascii) + &heat_map(&report.heat_map, 120.0, 24, &ascii);
    assert!(text.is_ascii() && text.contains('#'), "{text}");
    let unicode = age_histogram(&report.age_histogram, &WIDE);
    assert!(unicode.contains('█') && unicode.contains('░'), "{unicode}");
}

#[test]
fn rates_are_of_the_span_between_two_points() {
    let before = Point { seconds: 10.0, manager_cpu_seconds: 1.0, demoted_pages: 100, refaults: 5, ..Point::default() };
    let point = Point {
        seconds: 12.0,
        fast_bytes: 1 << 30,
        slow_bytes: 2 << 30,
        slow_occupied_bytes: 512 << 20,
        saved_bytes: 3 << 29,
        demoted_pages: 2100,
        promoted_pages: 100,
        refaults: 9,
        manager_cpu_seconds: 1.05,
        throttled: true,
        ..Point::default()
    };
    let line = progress_line(&point, Some(&before), 200);
    for part in
        ["12 s", "fast   1.0 GiB", "saved   1.5 GiB", "moves  1,050/s", "refaults    2/s", "cpu 2.5 %", "throttled"]
    {
        assert!(line.contains(part), "{part:?} is missing in {line:?}");
    }
    assert_eq!(
        progress_line(&point, Some(&before), 40).trim_start(),
        "12 s  fast   1.0 GiB  slow   2.0 GiB",
        "no figure is cut"
    );
    assert!(!progress_line(&point, None, 200).contains("/s"), "no rate without an earlier point");
    assert!(!progress_line(&point, Some(&point), 200).contains("/s"), "no rate over no time");
}

#[test]
fn the_working_set_curve_never_falls() {
    let report = example::managed();
    let curve = working_set_curve(&report.age_histogram);
    assert_eq!(curve.len(), report.age_histogram.len() - 1, "the open bin has no span");
    assert!(curve.last().unwrap().1 < aged_bytes(&report.age_histogram));
    assert!(curve.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    assert_eq!(working_set_sentence(&report), "521.0 MiB of 2.0 GiB (25 %) was touched within the last 10 s.");
    let ages = ages_sentence(&report);
    assert_eq!(
        ages,
        "At the end 95.0 MiB in fast memory and 1.4 GiB in slower tiers had been idle for 10 s or longer."
    );
}

#[test]
fn ages_are_named_shortly() {
    let label =
        |from_seconds, to_seconds| age_label(&AgeBin { from_seconds, to_seconds, fast_bytes: 0, slow_bytes: 0 });
    assert_eq!(label(0.0, Some(1.0)), "under 1 s");
    assert_eq!(label(10.0, Some(20.0)), "10 to 20 s");
    assert_eq!(label(60.0, Some(120.0)), "60 s to 2 min");
    assert_eq!(label(600.0, None), "10 min and more");
}

#[test]
fn bins_that_the_run_was_too_short_for_are_left_out() {
    let mut report = example::observed();
    report.age_histogram.iter_mut().skip(3).for_each(|bin| (bin.fast_bytes, bin.slow_bytes) = (0, 0));
    assert_eq!(occupied(&report.age_histogram).len(), 3);
    assert_eq!(working_set_curve(&report.age_histogram).last().unwrap().0, 5.0);
    assert_eq!(age_histogram(&report.age_histogram, &WIDE).lines().count(), 4);
    assert!(occupied(&[]).is_empty());
}

#[test]
fn the_live_screen_fits_the_terminal_and_keeps_its_figures() {
    let report = example::observed();
    let point = report.timeline.last().unwrap();
    for lines in [8, 24, 50] {
        for width in [40, 80, 200] {
            let screen = Screen { width, unicode: true };
            let text = live_screen(point, None, &report.age_histogram, &report.heat_map, &screen, lines);
            assert!(text.lines().count() < lines, "the cursor needs the last of {lines} lines:\n{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            assert!(text.contains("fast "), "{text}");
        }
    }
    let whole = live_screen(point, None, &report.age_histogram, &report.heat_map, &WIDE, 60);
    assert!(whole.contains("memory by idle time") && whole.contains("pages touched:"), "{whole}");
}
