//! Heat over time as a picture: all memory, and the pieces of the 2 MiB that are hottest.
//!
//! In: what the scoring of trackers recorded. Out: one SVG that stands by itself, so with its title, key and axes in it. Must not:
//! draw more than some ten thousand rectangles.

use plotters::prelude::*;
use terrace_sim::hotness::HeatPicture;

use super::*;

/// Cells of a panel at most, across and up.
const CELLS: (usize, usize) = (160, 128);
/// Height of the title and the key above the panels.
const HEAD: u32 = 170;
/// Left end of the panels' drawing, beneath which title and key begin.
const LEFT: i32 = 180;

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
    drawn("hotness", title, description, HEAD + 2 * HEIGHT, |root| {
        root.fill(&PAPER).map_err(failed)?;
        let (head, body) = root.split_vertically(HEAD);
        key(&head, title)?;
        let (upper, lower) = body.split_vertically(HEIGHT);
        let rows = picture.memory.iter().map(Vec::len).max().unwrap_or(1);
        let bytes = rows as u64 * u64::from(picture.pages_per_row) * 4096;
        let memory = Scale::of_bytes(bytes);
        let row = units::bytes(u64::from(picture.pages_per_row) * 4096);
        let all = Grid {
            columns: &picture.memory,
            rows,
            seconds,
            top: memory.of(bytes as f64),
            y_name: format!("address ({})", memory.unit),
        };
        panel(&upper, &all, |most| format!("All memory: hottest {row}: {most}"))?;
        let place = picture.block.map_or_else(String::new, |page| format!(" at page {page}"));
        let y_name = "piece of 4 KiB".to_owned();
        let block = Grid { columns: &picture.pieces, rows: 512, seconds, top: 512.0, y_name };
        panel(&lower, &block, |most| format!("The 2 MiB{place}, hottest after the first walk: hottest piece: {most}"))
    })
}

/// The title, and what the shades mean.
fn key(area: &Drawing<'_>, title: &str) -> anyhow::Result<()> {
    let large = ("sans-serif", TEXT_SIZE * 5 / 4).into_font().color(&TEXT);
    area.draw(&Text::new(title.to_owned(), (LEFT, 20), large)).map_err(failed)?;
    let (wide, middle) = (60, 120);
    area.draw(&Text::new("not used", (LEFT, middle), text_at(HPos::Left, VPos::Center))).map_err(failed)?;
    let from = LEFT + 140;
    for (number, ink) in HEAT.iter().enumerate() {
        let left = from + number as i32 * wide;
        let shade = Rectangle::new([(left, middle - 22), (left + wide, middle + 22)], ink.filled());
        area.draw(&shade).map_err(failed)?;
    }
    let after = from + HEAT.len() as i32 * wide + 20;
    let label = "hottest of its panel (uses, halved at each walk; logarithmic)";
    area.draw(&Text::new(label, (after, middle), text_at(HPos::Left, VPos::Center))).map_err(failed)
}

/// What a panel shows.
struct Grid<'a> {
    columns: &'a [Vec<f32>],
    rows: usize,
    seconds: f64,
    /// The upper end of the vertical axis.
    top: f64,
    y_name: String,
}

fn panel(area: &Drawing<'_>, of: &Grid<'_>, caption: impl Fn(&str) -> String) -> anyhow::Result<()> {
    let &Grid { columns, rows, seconds, top, ref y_name } = of;
    let hottest = columns.iter().flatten().copied().fold(0.0, f32::max);
    let time = Scale::of_time(seconds);
    let mut chart = ChartBuilder::on(area)
        .caption(caption(&format!("{} uses", units::count(hottest.round() as u64))), text())
        .margin(10)
        .margin_right(40)
        .x_label_area_size(84)
        .y_label_area_size(LEFT - 10)
        .build_cartesian_2d(0.0..time.of(seconds), 0.0..top)
        .map_err(failed)?;
    let x_name = format!("time since the start, at full size ({})", time.unit);
    let format = |value: &f64| short(*value);
    Mesh { x_labels: 10, y_labels: 6, x_format: &format, y_format: &format, x_name: &x_name, y_name }
        .draw(&mut chart)?;
    let grid = shrunk(columns, rows);
    let most = grid.iter().flatten().copied().fold(0.0, f32::max);
    let steps = (HEAT.len() - 1) as f32;
    let shade = |heat: f32| if most > 0.0 { (steps * heat.ln_1p() / most.ln_1p()).ceil() as usize } else { 0 };
    let width = time.of(seconds) / grid.len().max(1) as f64;
    for (number, column) in grid.iter().enumerate() {
        let height = top / column.len() as f64;
        let mut from = 0;
        while from < column.len() {
            let colour = shade(column[from]);
            let to = (from..column.len()).find(|&row| shade(column[row]) != colour).unwrap_or(column.len());
            let low = (number as f64 * width, from as f64 * height);
            let high = ((number + 1) as f64 * width, to as f64 * height);
            let ink = HEAT[colour.min(HEAT.len() - 1)].filled();
            chart.draw_series([Rectangle::new([low, high], ink)]).map_err(failed)?;
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
