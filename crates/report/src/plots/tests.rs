//! The plots on synthetic reports: no NaN, bounded size, every colour with a dark counterpart.

use super::sound::fault;
use super::*;
use crate::example;

#[test]
fn drawings_are_sound_at_every_edge() {
    let mut reports = example::edges();
    reports.extend([("managed", example::managed()), ("observed", example::observed())]);
    for (name, report) in reports {
        for figure in figures(&report).unwrap_or_else(|error| panic!("{name}: {error:#}")) {
            let Some(svg) = &figure.svg else { continue };
            assert_eq!(fault(svg), None, "{name}, {}", figure.id);
            assert!(svg.contains("role=\"img\"") && svg.contains("<title ") && svg.contains("<desc "), "{name}");
            assert!(!figure.legend.is_empty(), "{name}, {}", figure.id);
        }
    }
}

#[test]
fn a_full_report_has_every_plot_and_an_empty_one_none() {
    assert!(figures(&example::managed()).unwrap().iter().all(|figure| figure.svg.is_some()));
    let empty = figures(&example::empty()).unwrap();
    assert!(empty.iter().all(|figure| figure.svg.is_none() && !figure.answer.is_empty()));
}

#[test]
fn each_plot_asks_one_question_and_has_an_answer_and_a_drawing_for_a_telephone() {
    for figure in figures(&example::managed()).unwrap().into_iter().chain(figures(&example::observed()).unwrap()) {
        assert!(figure.question.ends_with('?') && !figure.question.contains(" and "), "{}", figure.question);
        assert!(figure.answer.ends_with('.'), "{}", figure.answer);
        if let Some(svg) = figure.svg {
            assert_eq!(svg.matches("<svg class=\"wide\"").count(), 1, "{}", figure.id);
            assert_eq!(svg.matches(&format!("<svg class=\"narrow\" viewBox=\"0 0 {NARROW_WIDTH} ")).count(), 1);
        }
    }
}

#[test]
fn what_only_watched_is_not_asked_about_fast_memory() {
    let observed = figures(&example::observed()).unwrap();
    assert_eq!(observed[0].question, "How much memory did it have?");
    assert!(observed[0].answer.contains("on average") && observed[0].answer.contains("at most"));
    assert!(!observed.iter().any(|figure| ["moves", "refaults"].contains(&figure.id)));
}

#[test]
fn the_moves_answer_when_and_where_nothing_moved_nothing_is_drawn() {
    let mut report = example::managed();
    let moves = &figures(&report).unwrap()[1];
    assert!(moves.answer.contains(" after the start; "), "{}", moves.answer);
    (report.moved_pages.demoted, report.moved_pages.promoted, report.refaults) = (0, 0, 0);
    let figures = figures(&report).unwrap();
    assert_eq!((figures[1].answer.as_str(), figures[1].svg.is_none()), ("Never: no page moved.", true));
    assert_eq!((figures[2].id, figures[2].svg.is_none()), ("refaults", true));
}

#[test]
fn a_single_point_can_be_seen() {
    let (_, single) = example::edges().remove(1);
    let figures = figures(&single).unwrap();
    assert!(figures[0].svg.as_ref().unwrap().contains("<circle"));
}

#[test]
fn time_in_which_page_outs_are_limited_and_time_in_which_they_are_stopped_are_shaded_apart() {
    let report = example::managed();
    let states = [
        (LIMITED, crate::PageOuts::LimitedToBound, "page-outs limited to the bound"),
        (STOPPED, crate::PageOuts::StoppedCameBack, "page-outs stopped because pages came back"),
    ];
    for (ink, state, label) in states {
        let figures_of = |report: &Report| figures(report).unwrap().into_iter().take(3).collect::<Vec<_>>();
        let named = |figure: &Figure| figure.legend.iter().any(|legend| legend.ink == ink && legend.label == label);
        let shaded = |figure: &Figure| figure.svg.as_ref().unwrap().contains(&hex(ink));
        assert!(figures_of(&report).iter().all(|figure| named(figure) && shaded(figure)), "{label}");
        let mut without = report.clone();
        without.timeline.retain(|point| point.page_outs != state);
        assert!(!figures_of(&without).iter().any(|figure| named(figure) || shaded(figure)), "{label}");
    }
}

#[test]
fn the_heat_map_is_a_picture_for_each_paper_and_stays_small_whatever_it_holds() {
    let mut report = example::managed();
    report.heat_map = example::noise();
    let svg = figures(&report).unwrap().remove(3).svg.unwrap();
    assert!(svg.len() < 200_000, "{} bytes", svg.len());
    assert!(svg.len() > 5_000, "{} bytes: the map is still there", svg.len());
    for paper in ["<image class=\"light\"", "<image class=\"dark\""] {
        assert_eq!(svg.matches(paper).count(), 1);
    }
    assert!(css().contains("image.dark { display: none; }") && css().contains("image.light { display: none; }"));
}

#[test]
fn letters_have_eleven_pixels_where_a_plot_is_narrowest_and_their_font_is_said_once() {
    assert!(f64::from(TEXT_SIZE) / 1.24 * f64::from(LEAST_WIDTH) / f64::from(WIDTH) >= 11.0);
    assert!(f64::from(TEXT_SIZE) / 1.24 * f64::from(LEAST_NARROW_WIDTH) / f64::from(NARROW_WIDTH) >= 11.0);
    assert!(css().contains(&format!("min-width: {LEAST_WIDTH}px")));
    for figure in figures(&example::managed()).unwrap() {
        let svg = figure.svg.unwrap();
        for svg in svg.split_inclusive("</svg>").filter(|svg| svg.contains("<svg")) {
            let (texts, sizes) = (svg.matches("<text").count(), svg.matches("font-size").count());
            assert!(texts > 3 && sizes == 1, "{}: {texts} texts, {sizes} sizes", figure.id);
        }
    }
}

#[test]
fn no_two_inks_are_alike() {
    for (index, (ink, _)) in INKS.iter().enumerate() {
        assert!(INKS[..index].iter().all(|(other, _)| other != ink), "{}", hex(*ink));
        assert!(css().contains(&hex(*ink)));
    }
}

#[test]
fn axes_choose_units_with_short_labels() {
    assert_eq!(
        (Scale::of_bytes(3 << 30).unit, short(Scale::of_bytes(3 << 30).of(1.5 * 1073741824.0))),
        ("GiB", "1.5".to_owned())
    );
    assert_eq!(Scale::of_bytes(1000 << 20).unit, "MiB");
    assert_eq!(Scale::of_bytes(0).unit, "B");
    assert_eq!(Scale::of_bytes(u64::MAX).unit, "TiB");
    assert_eq!((Scale::of_time(599.0).unit, Scale::of_time(601.0).unit, Scale::of_time(1e6).unit), ("s", "min", "h"));
}
