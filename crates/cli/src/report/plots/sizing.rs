//! The curves of `terrace size advise`: expected loss against the share of fast memory, a drawing a machine.
//!
//! In: advice. Out: a figure. Must not: hide the interval of what is known.

use plotters::prelude::*;
use plotters::series::LineSeries;

use super::*;
use crate::commands::size::advise::Advice;

/// Columns of drawings.
const COLUMNS: usize = 3;
/// Losses above this are off the drawing: nobody plans for them.
const TOP: f64 = 0.5;

/// The figure.
///
/// # Errors
/// When it cannot be drawn.
pub(crate) fn curves(advice: &[Advice], tau: f64) -> anyhow::Result<Figure> {
    let (id, question) = ("curves", "How much slower with less fast memory?");
    let answer = format!(
        "Expected loss against the share of its memory that is fast; the band is what is known at least and at most. The target is {:.1} %.",
        tau * 100.0
    );
    let legend = vec![
        Legend::line(FAST, "expected loss"),
        Legend::area(SLOW, "least to most"),
        Legend::line(REFAULTS, "target"),
    ];
    let rows = advice.len().div_ceil(COLUMNS).max(1);
    let svg = drawn(id, question, &answer, 440 * rows as u32, |root| {
        for (advice, area) in advice.iter().zip(root.split_evenly((rows, COLUMNS))) {
            let mut chart = ChartBuilder::on(&area)
                .caption(&advice.machine.name, text())
                .margin(10)
                .margin_right(30)
                .x_label_area_size(84)
                .y_label_area_size(110)
                .build_cartesian_2d(0.0..100.0, 0.0..TOP * 100.0)
                .map_err(failed)?;
            Mesh {
                x_labels: 5,
                y_labels: 5,
                x_format: &|value| short(*value),
                y_format: &|value| format!("{} %", short(*value)),
                x_name: "fast memory (% of resident)",
                y_name: "",
            }
            .draw(&mut chart)?;
            let line = |of: fn(&terrace_sizing::advise::Point) -> f64| -> Vec<(f64, f64)> {
                advice.curve.iter().map(|point| (point.fast_share * 100.0, of(point).min(TOP) * 100.0)).collect()
            };
            let mut band = line(|point| point.loss_high);
            band.extend(line(|point| point.loss_low).into_iter().rev());
            chart.draw_series([Polygon::new(band, SLOW.filled())]).map_err(failed)?;
            let target = [(0.0, tau.min(TOP) * 100.0), (100.0, tau.min(TOP) * 100.0)];
            chart.draw_series(LineSeries::new(target, REFAULTS.stroke_width(2))).map_err(failed)?;
            chart.draw_series(LineSeries::new(line(|point| point.loss), FAST.stroke_width(4))).map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, legend, svg })
}
