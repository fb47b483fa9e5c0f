//! Heat over time as a picture: all memory, and the pieces of the 2 MiB that are hottest.
//!
//! In: what the scoring of trackers recorded. Out: one SVG that stands by itself. Must not: draw more than some ten thousand
//! rectangles.

use plotters::prelude::*;
use terrace_sim::hotness::HeatPicture;

use super::*;

/// Cells of a panel at most, across and up.
const CELLS: (usize, usize) = (160, 128);

/// The picture; `None` where nothing was recorded.
///
/// # Errors
/// When it cannot be drawn.
pub(crate) fn hotness_picture(picture: &HeatPicture, title: &str) -> anyhow::Result<Option<String>> {
    if picture.memory.is_empty() {
        return Ok(None);
    }
    let seconds = picture.window_seconds * picture.memory.len() as f64;
    let description = "Above: true heat of all memory, halved at each walk; the darker the hotter. Below: heat of the 512 pieces of the 2 MiB hottest after the first walk.";
    drawn("hotness", title, description, 2 * HEIGHT, |root| {
        root.fill(&HEAT[0]).map_err(failed)?;
        let (upper, lower) = root.split_vertically(HEIGHT);
        let rows = picture.memory.iter().map(Vec::len).max().unwrap_or(1);
        let bytes = rows as u64 * u64::from(picture.pages_per_row) * 4096;
        let memory = Scale::of_bytes(bytes);
        let top = memory.of(bytes as f64);
        panel(&upper, &picture.memory, rows, seconds, top, &format!("all memory ({})", memory.unit))?;
        let name = picture.block.map_or_else(
            || "pieces of the hottest 2 MiB".to_owned(),
            |page| format!("4 KiB pieces of the 2 MiB at page {page}"),
        );
        panel(&lower, &picture.pieces, 512, seconds, 512.0, &name)
    })
}

fn panel(
    area: &Drawing<'_>,
    columns: &[Vec<f32>],
    rows: usize,
    seconds: f64,
    top: f64,
    name: &str,
) -> anyhow::Result<()> {
    let time = Scale::of_time(seconds);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .margin_right(40)
        .x_label_area_size(84)
        .y_label_area_size(170)
        .build_cartesian_2d(0.0..time.of(seconds), 0.0..top)
        .map_err(failed)?;
    let x_name = format!("time since the start, at full size ({})", time.unit);
    let format = |value: &f64| short(*value);
    Mesh { x_labels: 10, y_labels: 6, x_format: &format, y_format: &format, x_name: &x_name, y_name: name }
        .draw(&mut chart)?;
    let grid = shrunk(columns, rows);
    let most = grid.iter().flatten().copied().fold(0.0, f32::max);
    let steps = (HEAT.len() - 1) as f32;
    let shade = |heat: f32| if most > 0.0 { (steps * heat.ln_1p() / most.ln_1p()).ceil() as usize } else { 0 };
    let (width, across) = (time.of(seconds) / grid.len().max(1) as f64, grid.len());
    for (number, column) in grid.iter().enumerate().take(across) {
        let height = top / column.len() as f64;
        let mut from = 0;
        while from < column.len() {
            let colour = shade(column[from]);
            let to = (from..column.len()).find(|&row| shade(column[row]) != colour).unwrap_or(column.len());
            if colour > 0 {
                let low = (number as f64 * width, from as f64 * height);
                let high = ((number + 1) as f64 * width, to as f64 * height);
                let ink = HEAT[colour.min(HEAT.len() - 1)].filled();
                chart.draw_series([Rectangle::new([low, high], ink)]).map_err(failed)?;
            }
            from = to;
        }
    }
    Ok(())
}

/// No more cells than [`CELLS`]: neighbours are averaged.
fn shrunk(columns: &[Vec<f32>], rows: usize) -> Vec<Vec<f32>> {
    let (wide, high) = (columns.len().div_ceil(CELLS.0).max(1), rows.div_ceil(CELLS.1).max(1));
    columns
        .chunks(wide)
        .map(|group| {
            (0..rows.div_ceil(high))
                .map(|row| {
                    let range = row * high..(row + 1) * high;
                    let cells = group.iter().flat_map(|column| column.get(range.start..range.end.min(column.len())));
                    let (sum, count) = cells.flatten().fold((0.0, 0u32), |(sum, count), heat| (sum + heat, count + 1));
                    if count > 0 { sum / count as f32 } else { 0.0 }
                })
                .collect()
        })
        .collect()
}
