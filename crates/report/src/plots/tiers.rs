//! Plots over time: what lay in which tier, what moved, and what came back.
//!
//! In: the timeline of a report. Out: figures. Must not: show a rate over a span that was not recorded.

use plotters::prelude::*;
use plotters::series::{AreaSeries, LineSeries};

use super::*;
use crate::{PageOuts, Point, text};

/// Fast and slow memory over time.
pub(super) fn fast_and_slow(report: &Report) -> anyhow::Result<Figure> {
    let observed = text::is_observation(report);
    let id = "tiers";
    let question = if observed { "How much memory did it have?" } else { "How much fast memory did it need?" };
    let points = thinned(&report.timeline);
    let compressed = report.tiers.iter().any(|tier| tier.mean_occupied_bytes.is_some());
    let mut legend = vec![Legend::area(FAST, "in fast memory")];
    if !observed || points.iter().any(|point| point.slow_bytes > 0) {
        legend.push(Legend::area(SLOW, "in slower tiers"));
    }
    legend.push(Legend::line(RESIDENT, "resident, as the kernel counts it"));
    if compressed {
        legend.push(Legend::line(OCCUPIED, "memory the compressed tier occupied itself"));
    }
    legend.extend(page_outs_legend(&points));
    if points.is_empty() {
        return Ok(Figure::without_drawing(id, question, NOTHING_RECORDED));
    }
    let answer = if observed { text::footprint_sentence(report) } else { text::memory_sentence(report) };
    let reading = String::new();
    let most = points
        .iter()
        .map(|point| point.fast_bytes.saturating_add(point.slow_bytes).max(point.resident_bytes))
        .max()
        .unwrap_or(0);
    let (time, memory) = (time_scale(&points), Scale::of_bytes(most));
    let end = end_of(&points, &time);
    let top = headroom(memory.of(most as f64));
    let svg = drawn(id, question, &answer, [HEIGHT; 2], |root, sheet| {
        let x_name = format!("time since the start ({})", time.unit);
        let y_name = format!("memory of the program ({})", memory.unit);
        let mut chart = Mesh::of(sheet, &x_name, &y_name).chart(root, 0.0..end, 0.0..top)?;
        let series = |value: fn(&Point) -> u64| -> Vec<(f64, f64)> {
            points.iter().map(|point| (time.of(point.seconds), memory.of(value(point) as f64))).collect()
        };
        // The fast area covers the lower part of the whole one, which leaves the slow memory stacked upon it.
        let stacked = [
            (SLOW, series(|point| point.fast_bytes.saturating_add(point.slow_bytes))),
            (FAST, series(|point| point.fast_bytes)),
        ];
        for (ink, values) in stacked {
            chart.draw_series(AreaSeries::new(values.clone(), 0.0, ink)).map_err(failed)?;
            draw_lone_point(&mut chart, &values, ink)?;
        }
        shade_page_outs(&mut chart, &points, &time, end, top)?;
        let mut lines = vec![(RESIDENT, series(|point| point.resident_bytes))];
        if compressed {
            lines.push((OCCUPIED, series(|point| point.slow_occupied_bytes)));
        }
        for (ink, values) in lines {
            chart.draw_series(LineSeries::new(values.clone(), PAPER.stroke_width(9))).map_err(failed)?;
            chart.draw_series(LineSeries::new(values.clone(), ink.stroke_width(4))).map_err(failed)?;
            draw_lone_point(&mut chart, &values, ink)?;
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// Moves a second.
pub(super) fn moves(report: &Report) -> anyhow::Result<Figure> {
    let (id, question) = ("moves", "When did pages move?");
    let moved = &report.moved_pages;
    if moved.demoted == 0 && moved.promoted == 0 {
        return Ok(Figure::without_drawing(id, question, "Never: no page moved."));
    }
    let lines: [Line; 2] = [
        (DEMOTED, "left fast memory", |point| point.demoted_pages),
        (PROMOTED, "brought back ahead of use", |point| point.promoted_pages),
    ];
    rates_figure(report, (id, question), &lines, |busiest| {
        format!(
            "Most of them {busiest}; {} left fast memory in all ({}); brought back ahead of use: {}.",
            units::counted(moved.demoted, "page", "pages"),
            units::pages(moved.demoted),
            units::count(moved.promoted),
        )
    })
}

/// Refaults a second, with a scale of their own: ten refaults are news beside ten thousand demotions.
pub(super) fn refaults(report: &Report) -> anyhow::Result<Figure> {
    let (id, question) = ("refaults", "How much came back?");
    if report.refaults == 0 {
        return Ok(Figure::without_drawing(id, question, "Nothing: the program touched no page that had left."));
    }
    rates_figure(report, (id, question), &[(REFAULTS, "touched after leaving", |point| point.refaults)], |busiest| {
        format!(
            "The program touched {} that had left, of {}; most of them {busiest}.",
            units::counted(report.refaults, "page", "pages"),
            units::count(report.moved_pages.demoted),
        )
    })
}

/// A counter, its ink, and what it counts.
type Line = (RGBColor, &'static str, fn(&Point) -> u64);

/// Counters by second; `answer` gets when the first one grew most.
fn rates_figure(
    report: &Report,
    (id, question): (&'static str, &'static str),
    lines: &[Line],
    answer: impl Fn(&str) -> String,
) -> anyhow::Result<Figure> {
    let points = thinned(&report.timeline);
    if points.len() < 2 {
        let answer = "Fewer than two points were recorded, so there is no rate to show.";
        return Ok(Figure::without_drawing(id, question, answer));
    }
    let mut legend: Vec<Legend> = lines.iter().map(|(ink, label, _)| Legend::line(*ink, *label)).collect();
    legend.extend(page_outs_legend(&points));
    let time = time_scale(&points);
    let end = end_of(&points, &time);
    let answer = answer(&busiest(&points, lines[0].2));
    let drawn_lines: Vec<(RGBColor, Vec<(f64, f64)>)> =
        lines.iter().map(|(ink, _, counter)| (*ink, rates(&points, &time, *counter))).collect();
    let svg = drawn(id, question, &answer, [RATES_HEIGHT; 2], |root, sheet| {
        rate_panel(root, sheet, &points, &time, end, &drawn_lines)
    })?;
    Ok(Figure { id, question, answer, reading: String::new(), legend, svg })
}

/// When a counter grew most, in words.
fn busiest(points: &[Point], counter: fn(&Point) -> u64) -> String {
    let rate = |pair: &&[Point]| {
        let span = pair[1].seconds - pair[0].seconds;
        if span > 0.0 { counter(&pair[1]).saturating_sub(counter(&pair[0])) as f64 / span } else { 0.0 }
    };
    let most = points.windows(2).max_by(|a, b| rate(a).total_cmp(&rate(b)));
    most.filter(|pair| rate(pair) > 0.0).map_or_else(
        || "before the first point was taken".to_owned(),
        |pair| format!("{} to {} after the start", units::seconds(pair[0].seconds), units::seconds(pair[1].seconds)),
    )
}

/// Height of a plot of rates.
const RATES_HEIGHT: u32 = 420;

/// What stands in place of a plot without data.
const NOTHING_RECORDED: &str = "Nothing was recorded: the run ended before the first point was taken.";

fn rate_panel(
    area: &Drawing<'_>,
    sheet: Sheet,
    points: &[Point],
    time: &Scale,
    end: f64,
    lines: &[(RGBColor, Vec<(f64, f64)>)],
) -> anyhow::Result<()> {
    let most = lines.iter().flat_map(|(_, values)| values).map(|(_, rate)| *rate).fold(0.0, f64::max);
    let top = headroom(most);
    let x_name = format!("time since the start ({})", time.unit);
    let mesh = Mesh { y_labels: 4, ..Mesh::of(sheet, &x_name, "pages a second") };
    let mut chart = mesh.chart(area, 0.0..end, 0.0..top)?;
    shade_page_outs(&mut chart, points, time, end, top)?;
    for (ink, values) in lines {
        chart.draw_series(LineSeries::new(values.iter().copied(), ink.stroke_width(4))).map_err(failed)?;
        draw_lone_point(&mut chart, values, *ink)?;
    }
    Ok(())
}

/// The growth of a counter between neighbouring points, by second, as steps.
fn rates(points: &[Point], time: &Scale, counter: fn(&Point) -> u64) -> Vec<(f64, f64)> {
    let mut steps = Vec::with_capacity(points.len() * 2);
    for pair in points.windows(2) {
        let span = pair[1].seconds - pair[0].seconds;
        if span > 0.0 {
            let rate = counter(&pair[1]).saturating_sub(counter(&pair[0])) as f64 / span;
            steps.extend([(time.of(pair[0].seconds), rate), (time.of(pair[1].seconds), rate)]);
        }
    }
    steps
}

/// What the shaded spans are: each state in which page-outs were, once.
fn page_outs_legend(points: &[Point]) -> Vec<Legend> {
    let mut legend: Vec<Legend> = Vec::new();
    for state in points.iter().map(|point| point.page_outs).filter(|state| *state != PageOuts::Free) {
        let label = format!("page-outs {}", state.in_words());
        if legend.iter().all(|known| known.label != label) {
            legend.push(Legend::area(ink_of(state), label));
        }
    }
    legend
}

/// While page-outs are limited pages leave; while they are stopped none do.
fn ink_of(state: PageOuts) -> RGBColor {
    if state.are_stopped() { STOPPED } else { LIMITED }
}

/// Shades the spans in which page-outs were limited or stopped: each lasts from its point to the next.
fn shade_page_outs(
    chart: &mut Chart<'_, '_>,
    points: &[Point],
    time: &Scale,
    end: f64,
    top: f64,
) -> anyhow::Result<()> {
    let mut spans: Vec<(f64, f64, RGBColor)> = Vec::new();
    for (index, point) in points.iter().enumerate().filter(|(_, point)| point.page_outs != PageOuts::Free) {
        let (from, ink) = (time.of(point.seconds), ink_of(point.page_outs));
        let to = points.get(index + 1).map_or(end, |next| time.of(next.seconds));
        match spans.last_mut() {
            Some(last) if last.1 >= from && last.2 == ink => last.1 = to,
            _ => spans.push((from, to, ink)),
        }
    }
    let bands =
        spans.into_iter().map(|(from, to, ink)| Rectangle::new([(from, 0.0), (to, top)], ink.mix(0.35).filled()));
    chart.draw_series(bands).map_err(failed)?;
    Ok(())
}

/// A line or area through a single point cannot be seen, so a dot stands for it.
fn draw_lone_point(chart: &mut Chart<'_, '_>, values: &[(f64, f64)], ink: RGBColor) -> anyhow::Result<()> {
    if let [only] = values {
        chart.draw_series([Circle::new(*only, 8, ink.filled())]).map_err(failed)?;
    }
    Ok(())
}

fn time_scale(points: &[Point]) -> Scale {
    Scale::of_time(points.last().map_or(0.0, |point| point.seconds))
}

/// Where the time axis ends; a run of no length still gets an axis.
fn end_of(points: &[Point], time: &Scale) -> f64 {
    let end = points.last().map_or(0.0, |point| time.of(point.seconds));
    if end > 0.0 { end } else { 1.0 }
}

/// The timeline with at most [`MOST_POINTS`] points. Counters are those of the last point of each bundle, so that rates stay
/// exact; amounts are means; page-outs are those of its first point at which they were stopped, or else limited.
fn thinned(timeline: &[Point]) -> Vec<Point> {
    let valid: Vec<Point> =
        timeline.iter().filter(|point| point.seconds.is_finite() && point.seconds >= 0.0).copied().collect();
    let width = valid.len().div_ceil(MOST_POINTS).max(1);
    valid.chunks(width).map(bundled).collect()
}

/// One point for several.
fn bundled(points: &[Point]) -> Point {
    let mean = |value: fn(&Point) -> u64| {
        (points.iter().map(|point| u128::from(value(point))).sum::<u128>() / points.len() as u128) as u64
    };
    let mut states = points.iter().map(|point| point.page_outs);
    let stopped = states.clone().find(|state| state.are_stopped());
    let limited = states.find(|state| *state != PageOuts::Free);
    Point {
        fast_bytes: mean(|point| point.fast_bytes),
        slow_bytes: mean(|point| point.slow_bytes),
        slow_occupied_bytes: mean(|point| point.slow_occupied_bytes),
        saved_bytes: mean(|point| point.saved_bytes),
        swapped_by_others_bytes: mean(|point| point.swapped_by_others_bytes),
        resident_bytes: mean(|point| point.resident_bytes),
        page_outs: stopped.or(limited).unwrap_or_default(),
        ..points[points.len() - 1]
    }
}
