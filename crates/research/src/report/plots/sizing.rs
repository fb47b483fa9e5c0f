//! The curves of `terrace size advise`: expected loss against the share of fast memory, a drawing a machine; and tuned runs over time.
//!
//! In: advice, decisions. Out: figures. Must not: hide the interval of what is known.

use plotters::prelude::*;
use plotters::series::LineSeries;

use super::*;

use terrace_sizing::forecast::Point;
use terrace_study::advice::Advice;
use terrace_tuning::Interval;

/// Columns of drawings.
const COLUMNS: usize = 3;
/// Losses above this are off the drawing: they are no useful target.
const TOP: f64 = 0.5;

/// A small drawing among others, from zero to the ends, with per cent upwards.
fn chart<'a, 'b>(
    area: &Drawing<'b>,
    name: &'a str,
    (width, top): (f64, f64),
    (x_name, y_name): (&'a str, &'a str),
) -> anyhow::Result<Chart<'a, 'b>> {
    let usual = Mesh::of(Sheet::Wide, x_name, y_name);
    let mesh = Mesh { caption: Some(name), right: 30, left: 110, x_labels: 5, y_labels: 5, ..usual };
    mesh.chart(area, 0.0..width, 0.0..top)
}

/// The figure.
///
/// # Errors
/// When it cannot be drawn.
pub(crate) fn curves(advice: &[Advice], max_slowdown: f64) -> anyhow::Result<Figure> {
    let (id, question) = ("curves", "How much slower with less fast memory?");
    // A machine without a curve would be an empty drawing.
    let advice: Vec<&Advice> = advice.iter().filter(|advice| !advice.curve().is_empty()).collect();
    if advice.is_empty() {
        return Ok(Figure::without_drawing(id, question, "Not enough was seen to say."));
    }
    let reading = format!(
        "The loss is that of run time; the band has the lower and the upper bound. The target is {:.1} %.",
        max_slowdown * 100.0
    );
    let answer = half_fast(&advice);
    let legend = vec![
        Legend::line(FAST, "expected loss"),
        Legend::area(SLOW, "least to most"),
        Legend::line(REFAULTS, "target"),
    ];
    let rows = advice.len().div_ceil(COLUMNS).max(1);
    let svg = drawn(id, question, &answer, [440 * rows as u32, 440 * advice.len().max(1) as u32], |root, sheet| {
        let grid = sheet.pick((rows, COLUMNS), (advice.len().max(1), 1));
        for (advice, area) in advice.iter().zip(root.split_evenly(grid)) {
            let mut chart =
                chart(&area, &advice.machine, (100.0, TOP * 100.0), ("fast memory (% of resident)", "loss (%)"))?;
            let line = |of: fn(&Point) -> f64| -> Vec<(f64, f64)> {
                advice.curve().iter().map(|point| (point.fast_share * 100.0, of(point).min(TOP) * 100.0)).collect()
            };
            // A line that leaves the drawing ends there; only a band may run along its edge.
            let mut expected = line(|point| point.loss);
            let inside = expected.iter().position(|(_, loss)| *loss < TOP * 100.0).unwrap_or(expected.len());
            expected.drain(..inside.saturating_sub(1));
            let mut band = line(|point| point.loss_high);
            band.extend(line(|point| point.loss_low).into_iter().rev());
            if band.is_empty() {
                continue;
            }
            chart.draw_series([Polygon::new(band, SLOW.filled())]).map_err(failed)?;
            let target = [(0.0, max_slowdown.min(TOP) * 100.0), (100.0, max_slowdown.min(TOP) * 100.0)];
            chart.draw_series(LineSeries::new(target, REFAULTS.stroke_width(2))).map_err(failed)?;
            chart.draw_series(LineSeries::new(expected, FAST.stroke_width(4))).map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// What is lost where only half of the memory is fast, on the machine that loses least and the one that loses most.
fn half_fast(advice: &[&Advice]) -> String {
    let loss = |advice: &Advice| {
        let nearest = |a: &&Point, b: &&Point| (a.fast_share - 0.5).abs().total_cmp(&(b.fast_share - 0.5).abs());
        advice.curve().iter().min_by(nearest).map(|point| point.loss)
    };
    let mut losses: Vec<(&str, f64)> =
        advice.iter().filter_map(|advice| Some((advice.machine.as_str(), loss(advice)?))).collect();
    losses.sort_by(|a, b| a.1.total_cmp(&b.1));
    match losses.as_slice() {
        [] => "Not enough was seen to say.".to_owned(),
        [(_, only)] => format!("With half of its memory fast it would lose {} of its time.", units::percent(*only)),
        [(least, low), .., (most, high)] => format!(
            "With half of its memory fast it would lose {} of its time on {least} and {} on {most}.",
            units::percent(*low),
            units::percent(*high)
        ),
    }
}

/// A tuned program: as in the paper, and by what is observed.
pub(crate) struct Course<'a> {
    pub name: &'a str,
    pub paper: &'a [Interval],
    pub measured: &'a [Interval],
}

/// Saving and loss over time, a drawing a program; the last place has the legend.
///
/// # Errors
/// When it cannot be drawn.
pub(crate) fn courses(of: &[Course<'_>], max_slowdown: f64, title: &str) -> anyhow::Result<Option<String>> {
    let description = "Fast memory saved, as a share of the program's peak, and observed loss, over time.";
    let rows = (of.len() + 1).div_ceil(COLUMNS);
    drawn_alone("courses", title, description, 440 * rows as u32, &[], |root| {
        root.fill(&PAPER).map_err(failed)?;
        let areas = root.split_evenly((rows, COLUMNS));
        for (course, area) in of.iter().zip(&areas) {
            let all = || course.paper.iter().chain(course.measured);
            let seconds = all().map(|interval| interval.seconds).fold(1.0, f64::max);
            let top = all().map(|interval| interval.saved_share).fold(4.0 * max_slowdown, f64::max) * 105.0;
            let mut chart =
                chart(area, course.name, (seconds, top), ("time (s)", "share of peak, or of run time (%)"))?;
            let line = |of: &[Interval], what: fn(&Interval) -> f64| -> Vec<(f64, f64)> {
                of.iter().map(|interval| (interval.seconds, (what(interval) * 100.0).min(top))).collect()
            };
            let loss = |interval: &Interval| interval.observed_loss.unwrap_or(0.0);
            let target = vec![(0.0, max_slowdown * 100.0), (seconds, max_slowdown * 100.0)];
            for (points, ink, width) in [
                (target, AXIS, 2),
                (line(course.paper, |interval| interval.saved_share), SLOW, 4),
                (line(course.measured, |interval| interval.saved_share), FAST, 4),
                (line(course.measured, loss), REFAULTS, 2),
            ] {
                chart.draw_series(LineSeries::new(points, ink.stroke_width(width))).map_err(failed)?;
            }
        }
        let names = [
            (SLOW, "saved, as in the paper"),
            (FAST, "saved, by what is observed"),
            (REFAULTS, "loss by the limit, the latter"),
            (AXIS, "target"),
        ];
        if let Some(area) = areas.get(of.len()) {
            for (place, (ink, name)) in names.into_iter().enumerate() {
                let y = 80 + 50 * place as i32;
                area.draw(&Rectangle::new([(40, y - 5), (90, y + 1)], ink.filled())).map_err(failed)?;
                area.draw(&Text::new(name, (105, y), text_at(HPos::Left, VPos::Center))).map_err(failed)?;
            }
        }
        Ok(())
    })
}
