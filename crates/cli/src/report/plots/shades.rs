//! Shaded cells over time: one drawing for whatever is counted by a coordinate and by time.
//!
//! In: counts by column of time and row, and what they are. Out: a figure. Must not: know what is counted.

use plotters::prelude::*;
use plotters::series::LineSeries;

use super::*;

/// Room for the labels left of a panel's cells.
pub(super) const LABELS: u32 = 170;
/// Room around a panel.
pub(super) const MARGIN: u32 = 10;

/// One panel of shaded cells.
pub(super) struct Shades {
    /// What it is of.
    pub title: String,
    /// When each column ends, in full-size seconds; the first starts at zero, the others where the one before ended.
    pub ends: Vec<f64>,
    /// Counts from below upwards, by column. All are of one length.
    pub columns: Vec<Vec<f64>>,
    /// Height of a row, in what `y_name` names.
    pub step: f64,
    /// What rows are.
    pub y_name: String,
    /// A row for each column, drawn as a line through the middle of its cells.
    pub line: Option<Vec<f64>>,
}

/// The figure of panels below each other; a shade is a share of the panel's highest count, on a scale of logarithms.
///
/// # Errors
/// When it cannot be drawn.
pub(super) fn shades(
    id: &'static str,
    question: &'static str,
    answer: String,
    counted: &str,
    panels: &[Shades],
) -> anyhow::Result<Figure> {
    let most = panels.iter().map(Shades::most).fold(0.0, f64::max);
    if most <= 0.0 {
        let answer = "Nothing was recorded: the run ended before the first point was taken.".to_owned();
        return Ok(Figure { id, question, answer, legend: Vec::new(), svg: None });
    }
    let height = HEIGHT * panels.len() as u32;
    let svg = drawn(id, question, &answer, height, |root| {
        for (panel, area) in panels.iter().zip(root.split_evenly((panels.len(), 1))) {
            panel.draw(&area)?;
        }
        Ok(())
    })?;
    let label = |count: f64| format!("{} {counted}", units::count(count.round() as u64));
    let highest = if panels.len() == 1 { label(most) } else { format!("the panel's most {counted}") };
    let legend = vec![Legend::area(HEAT[0], label(0.0)), Legend::area(HEAT[HEAT.len() - 1], highest)];
    Ok(Figure { id, question, answer, legend, svg })
}

impl Shades {
    fn most(&self) -> f64 {
        self.columns.iter().flatten().copied().fold(0.0, f64::max)
    }

    /// Draws the panel; a shade is a share of its highest count, on a scale of logarithms.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub(super) fn draw(&self, area: &Drawing<'_>) -> anyhow::Result<()> {
        let most = self.most();
        let seconds = self.ends.last().copied().unwrap_or(1.0);
        let rows = self.columns.iter().map(Vec::len).max().unwrap_or(1);
        let time = Scale::of_time(seconds);
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, text())
            .margin(MARGIN)
            .margin_right(40)
            .x_label_area_size(84)
            .y_label_area_size(LABELS)
            .build_cartesian_2d(0.0..time.of(seconds), 0.0..rows as f64 * self.step)
            .map_err(failed)?;
        let x_name = format!("time since the start, at full size ({})", time.unit);
        let format = |value: &f64| short(*value);
        Mesh { x_labels: 12, y_labels: 6, x_format: &format, y_format: &format, x_name: &x_name, y_name: &self.y_name }
            .draw(&mut chart)?;
        let steps = (HEAT.len() - 1) as f64;
        let shade = |count: f64| if most > 0.0 { (steps * count.ln_1p() / most.ln_1p()).ceil() as usize } else { 0 };
        let mut left = 0.0;
        for (column, end) in self.columns.iter().zip(&self.ends) {
            let right = time.of(*end);
            // Neighbours of one shade are one rectangle: the page stays small.
            let mut from = 0;
            while from < column.len() {
                let colour = shade(column[from]);
                let to = (from..column.len()).find(|&row| shade(column[row]) != colour).unwrap_or(column.len());
                let corners = [(left, from as f64 * self.step), (right, to as f64 * self.step)];
                let cell = Rectangle::new(corners, HEAT[colour.min(HEAT.len() - 1)].filled());
                chart.draw_series([cell]).map_err(failed)?;
                from = to;
            }
            left = right;
        }
        if let Some(line) = &self.line {
            let points = self.ends.iter().zip(line).map(|(end, row)| (time.of(*end), (row + 0.5) * self.step));
            chart.draw_series(LineSeries::new(points, RESIDENT.stroke_width(4))).map_err(failed)?;
        }
        Ok(())
    }
}
