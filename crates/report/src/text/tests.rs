//! The closing lines, the progress line and the pictures in text on synthetic reports.

use super::*;
use crate::{InsideReport, MovedPages, example};

const WIDE: Screen = Screen { width: 120, unicode: true };

#[test]
fn the_headline_says_what_was_saved_and_what_it_cost() {
    assert_eq!(
        headline(&example::managed()),
        "Saved 840.0 MiB of 2.0 GiB of fast memory on average (41 %); the program lost about 0.8 % of its time (estimate); \
         the bound of 2 % was kept, page-outs stopped for 12 s because pages came back"
    );
    assert!(
        headline(&example::observed()).starts_with("Watched 2.0 GiB for 2 min and moved nothing: 521.0 MiB (25 %)")
    );
    let mut unseen = example::managed();
    unseen.tiers.iter_mut().for_each(|tier| tier.mean_used_bytes = 0);
    assert!(headline(&unseen).starts_with("No memory of the program was seen"), "{}", headline(&unseen));
    let mut dear = example::managed();
    dear.manager.stall_seconds = 6.02;
    assert!(
        headline(&dear).contains("about 5 % of its time (estimate); the bound of 2 % was NOT kept"),
        "{}",
        headline(&dear)
    );
}

#[test]
fn one_share_of_loss_is_in_all_lines_and_it_is_the_one_that_the_bound_is_for() {
    let mut report = example::managed();
    // Of four cores the program has four times as much time as the clock shows.
    (report.target.wall_seconds, report.target.cpu_seconds, report.manager.stall_seconds) = (100.0, 400.0, 6.0);
    assert!(headline(&report).contains("lost about 1.5 % of its time (estimate); the bound of 2 % was kept"));
    assert!(lost_text(&report).starts_with("about 6 s (1.5 % of its time): "), "{}", lost_text(&report));
    assert!(!closing_lines(&report, false, true, &WIDE).contains("CPU time"));
}

#[test]
fn what_an_ending_program_reads_back_is_named_and_breaks_no_bound() {
    let mut report = example::managed();
    report.manager.stall_seconds = 3.0;
    (report.cost.refault_seconds, report.cost.ending_seconds) = (2.65, 1.5);
    let line = headline(&report);
    assert!(line.contains("about 2.5 % of its time (estimate)"), "{line}");
    assert!(line.ends_with("the bound of 2 % was kept but for what it read back as it ended"), "{line}");
    assert!(lost_text(&report).ends_with("pages that came back (1.5 s of it read back as the program ended)"));
    report.cost.ending_seconds = 0.2;
    assert!(headline(&report).contains("the bound of 2 % was NOT kept"), "{}", headline(&report));
}

/// `terrace run sleep 1`: nothing moved, and hardly anything was there.
fn idle() -> Report {
    let mut report = example::managed();
    report.target = crate::TargetReport { wall_seconds: 1.0, cpu_seconds: 0.005, ..report.target };
    report.target.peak_footprint_bytes = 900 << 10;
    report.tiers.iter_mut().for_each(|tier| tier.mean_used_bytes = 300 << 10);
    (report.fast_bytes_saved_mean, report.moved_pages, report.refaults) = (0, MovedPages::default(), 0);
    (report.manager.stall_seconds, report.cost.share_of_target) = (0.000_335, 0.067);
    report.cost.ending_seconds = 0.0;
    report.page_outs_seconds.clear();
    report.notes.clear();
    report.proof = None;
    report.inside = InsideReport::default();
    report.file_cache = None;
    report
}

#[test]
fn of_next_to_nothing_no_share_is_told_and_a_run_of_nothing_is_short() {
    let text = closing_lines(&idle(), false, false, &WIDE);
    assert!(text.contains("Saved no fast memory: no page was idle for long enough"), "{text}");
    assert!(!text.contains("6.7 %") && text.lines().count() <= 4, "{text}");
    assert!(!closing_lines(&idle(), false, true, &WIDE).contains("6.7 %"));
}

#[test]
fn a_program_that_was_left_alone_is_not_called_busy() {
    let mut report = idle();
    report.target.processes = 1;
    report.notes = vec![format!("process 7 {}: its first thread has ended", IS_LEFT_ALONE)];
    assert!(headline(&report).contains("it was left alone, as a note says"), "{}", headline(&report));
    report.target.processes = 2;
    assert!(headline(&report).contains("no page was idle"), "{}", headline(&report));
}

#[test]
fn few_rounds_in_a_long_run_are_not_taken_for_pages_in_use() {
    let mut report = idle();
    report.target.wall_seconds = 25.0;
    report.manager.rounds = 1;
    assert!(headline(&report).contains("watching was too dear"), "{}", headline(&report));
    report.manager.rounds = 20;
    assert!(headline(&report).contains("no page was idle"), "{}", headline(&report));
    // A policy that wants no rounds.
    report.manager.rounds = 0;
    assert!(headline(&report).contains("no page was idle"), "{}", headline(&report));
}

#[test]
fn the_closing_lines_tell_gains_costs_failures_and_notes() {
    let text = closing_lines(&example::managed(), false, false, &WIDE);
    assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
    insta::with_settings!({ snapshot_path => "../../tests/snapshots" }, {
        insta::assert_snapshot!("closing_lines", [
            text,
            closing_lines(&example::managed(), false, true, &WIDE),
            closing_lines(&example::observed(), true, false, &WIDE),
            closing_lines(&idle(), false, false, &WIDE),
        ].join("\n"));
    });
}

#[test]
fn the_closing_lines_stay_few() {
    let mut report = example::managed();
    report.notes = (0..9).map(|number| format!("note {number}")).collect();
    let wide = Screen { width: 400, unicode: true };
    let text = closing_lines(&report, false, false, &wide);
    assert_eq!(text.lines().count(), 1 + 10, "{text}");
    assert!(text.contains("note 0 (and 7 more: --verbose)"), "{text}");
    assert_eq!(closing_lines(&report, false, true, &wide).matches("note ").count(), 2 * 9);
}

#[test]
fn what_was_found_inside_of_huge_pages_is_one_sentence() {
    let mut report = example::managed();
    let told = |report: &Report| inside_text(report).unwrap_or_default();
    assert_eq!(
        told(&report),
        "huge pages: 18 of 20 blocks looked into were used by less than a tenth; 412.0 MiB of cold pieces left; left whole: 2 shared with \
         another process"
    );
    let even = InsideReport { looked: true, looked_into_blocks: 6, even_blocks: 6, ..InsideReport::default() };
    report.inside = even.clone();
    assert_eq!(told(&report), "huge pages: evenly used, left whole (6 blocks looked into)");
    report.inside = InsideReport::default();
    assert_eq!(inside_text(&report), None);
    // Where nothing moves it is said how much is not seen.
    let mut report = Report { inside: InsideReport::default(), ..example::observed() };
    assert_eq!(inside_text(&report), None);
    report.inside.huge_bytes = 3 << 29;
    assert!(told(&report).starts_with("huge pages: 1.5 GiB lies in them") && told(&report).contains("--inside"));
    report.inside = InsideReport { huge_bytes: 3 << 29, split_blocks: 4, ..even };
    assert!(told(&report).contains("4 blocks were split to look, and not read"), "{}", told(&report));
    let bounds = [Some(16 << 20), Some(9 << 20), Some(30 << 20)];
    [report.inside.used_bytes, report.inside.used_bytes_low, report.inside.used_bytes_high] = bounds;
    assert_eq!(
        told(&report),
        "huge pages: about 16.0 MiB of what lies in them is used (9.0 MiB to 30.0 MiB), by 6 blocks that were split to look"
    );
}

#[test]
fn nothing_fails_or_grows_wide_at_the_edges() {
    for (name, report) in example::edges() {
        for screen in [WIDE, Screen { width: 60, unicode: false }, Screen { width: 10, unicode: false }] {
            let text = closing_lines(&report, true, true, &screen);
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
        page_outs: PageOuts::LimitedToBound,
        ..Point::default()
    };
    let line = progress_line(&point, Some(&before), 200);
    for part in [
        "12 s",
        "fast   1.0 GiB",
        "saved   1.5 GiB",
        "moves  1,050/s",
        "refaults    2/s",
        "cpu 2.5 %",
        "limited to the bound",
    ] {
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
