//! Shaded cells over time: one drawing for whatever is counted by a coordinate and by time.
//!
//! In: counts by column of time and row, and what they are. Out: a figure. Must not: know what is counted, or let a page grow with the
//! number of panels beyond [`MOST_PANELS`] and [`MOST_BYTES`].

use plotters::prelude::*;
use plotters::series::LineSeries;

use super::raster::{Cells, place};
use super::*;

/// Bytes of the pictures of a figure at most. With more, cells are taken together until they fit: a page of three figures of pictures
/// stays below 1 MB with everything else on it.
pub const MOST_BYTES: usize = 200_000;

/// Room for the labels left of a panel's cells.
pub const LABELS: u32 = 170;

/// One panel of shaded cells.
pub struct Shades {
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
    /// Whether neighbouring rows may be drawn as one where a page would grow too large.
    pub rows_join: bool,
    /// A row for each column, drawn as a line through the middle of its cells.
    pub line: Option<Vec<f64>>,
}

/// The figure of panels below each other; a shade is a share of the panel's highest count, on a scale of logarithms.
///
/// # Errors
/// When it cannot be drawn.
pub fn shades(
    id: &'static str,
    question: &'static str,
    (answer, mut reading): (String, String),
    counted: &str,
    panels: &[Shades],
) -> anyhow::Result<Figure> {
    let most = panels.iter().map(Shades::most).fold(0.0, f64::max);
    if most <= 0.0 {
        let answer = "Nothing was recorded: the run ended before the first point was taken.".to_owned();
        return Ok(Figure::without_drawing(id, question, answer));
    }
    let panels = shown(panels, "drawings", &mut reading);
    let mut cells: Vec<Cells> = panels.iter().map(Shades::cells).collect();
    let mut halvings = 0;
    while bytes(&cells)? > MOST_BYTES && cells.iter().any(|cells| cells.levels.len() > 1) {
        // A row of bins is a bin, which does not join with its neighbour; one of addresses does.
        cells = panels.iter().zip(&cells).map(|(panel, cells)| cells.halved(panel.rows_join)).collect();
        halvings += 1;
    }
    if halvings > 0 {
        reading += &format!(" Each {} columns are drawn as one, by the most in them.", 1_u32 << halvings);
    }
    let height = HEIGHT * panels.len() as u32;
    let svg = drawn_with(id, question, &answer, [height; 2], &cells, |root, sheet| {
        for (number, (panel, area)) in panels.iter().zip(root.split_evenly((panels.len(), 1))).enumerate() {
            panel.draw(&area, sheet, number)?;
        }
        Ok(())
    })?;
    let mut legend = vec![Legend::area(HEAT[0], format!("0 {counted}"))];
    for (level, colour) in HEAT.iter().enumerate().skip(1) {
        let share = level as f64 / (HEAT.len() - 1) as f64;
        let label = match panels {
            [only] => format!("up to {}", units::count((only.most().ln_1p() * share).exp_m1().round() as u64)),
            _ if level == HEAT.len() - 1 => format!("the panel's most {counted}"),
            _ => format!("step {level} of {}, logarithmic", HEAT.len() - 1),
        };
        legend.push(Legend::area(*colour, label));
    }
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// Bytes that the pictures take in a page, for light and dark paper.
fn bytes(cells: &[Cells]) -> anyhow::Result<usize> {
    cells.iter().map(|cells| Ok(2 * cells.png(false)?.len().div_ceil(3) * 4)).sum()
}

impl Shades {
    fn most(&self) -> f64 {
        self.columns.iter().flatten().copied().fold(0.0, f64::max)
    }

    fn rows(&self) -> usize {
        self.columns.iter().map(Vec::len).max().unwrap_or(1).max(1)
    }

    /// The cells with their levels: a level is a share of the panel's highest count, on a scale of logarithms.
    pub fn cells(&self) -> Cells {
        let (most, rows) = (self.most(), self.rows());
        let steps = (HEAT.len() - 1) as f64;
        let level = |count: f64| if most > 0.0 { (steps * count.ln_1p() / most.ln_1p()).ceil() as usize } else { 0 };
        let column = |counts: &Vec<f64>| -> Vec<Option<usize>> {
            (0..rows).rev().map(|row| counts.get(row).map(|count| level(*count))).collect()
        };
        Cells {
            across: std::iter::once(0.0).chain(self.ends.iter().copied()).collect(),
            down: (0..=rows).map(|row| row as f64).collect(),
            levels: self.columns.iter().map(column).collect(),
        }
    }

    /// Draws the panel around the place of the picture `number`.
    ///
    /// # Errors
    /// When it cannot be drawn.
    pub fn draw(&self, area: &Drawing<'_>, sheet: Sheet, number: usize) -> anyhow::Result<()> {
        let seconds = self.ends.last().copied().unwrap_or(1.0);
        let top = self.rows() as f64 * self.step;
        let time = Scale::of_time(seconds);
        let x_name = full_size_time(sheet, &time);
        let mesh = Mesh { caption: Some(&self.title), left: LABELS, ..Mesh::of(sheet, &x_name, &self.y_name) };
        let mut chart = mesh.chart(area, 0.0..time.of(seconds), 0.0..top)?;
        let all = Rectangle::new([(0.0, 0.0), (time.of(seconds), top)], place(number).filled());
        chart.draw_series([all]).map_err(failed)?;
        if let Some(line) = &self.line {
            let step = self.ends.len().div_ceil(MOST_POINTS / 2).max(1);
            let points = self.ends.iter().zip(line).map(|(end, row)| (time.of(*end), (row + 0.5) * self.step));
            chart.draw_series(LineSeries::new(points.step_by(step), RESIDENT.stroke_width(4))).map_err(failed)?;
        }
        Ok(())
    }
}
