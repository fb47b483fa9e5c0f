//! Heat over time as a picture: all memory, and the pieces of the 2 MiB that are hottest.
//!
//! In: what the scoring of trackers recorded. Out: one SVG that stands by itself, so with its title, key and axes in it. Must not:
//! draw a rectangle a cell: cells are two pictures.

use plotters::prelude::*;
use terrace_sim::hotness::HeatPicture;

use super::raster::Cells;
use super::shades::{LABELS, Shades};
use super::*;

/// Cells of a panel at most, across and up.
const CELLS: (usize, usize) = (160, 128);
/// Height of the title and the key above the panels.
const HEAD: u32 = 170;
/// Left end of the panels' drawing, beneath which title and key begin.
const LEFT: i32 = (MARGIN + LABELS) as i32;

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
    let rows = picture.memory.iter().map(Vec::len).max().unwrap_or(1);
    let bytes = rows as u64 * u64::from(picture.pages_per_row) * 4096;
    let memory = Scale::of_bytes(bytes);
    let row = units::bytes(u64::from(picture.pages_per_row) * 4096);
    let all = panel(&picture.memory, rows, seconds, memory.of(bytes as f64), format!("address ({})", memory.unit));
    let all = all(&format!("All memory: hottest {row}"));
    let place = picture.block.map_or_else(String::new, |page| format!(" at page {page}"));
    let block = panel(&picture.pieces, 512, seconds, 512.0, "piece of 4 KiB".to_owned());
    let block = block(&format!("The 2 MiB{place}, hottest after the first walk: hottest piece"));
    let cells: [Cells; 2] = [all.cells(), block.cells()];
    drawn_alone("hotness", title, description, HEAD + 2 * HEIGHT, &cells, |root| {
        root.fill(&PAPER).map_err(failed)?;
        let (head, body) = root.split_vertically(HEAD);
        key(&head, title)?;
        let (upper, lower) = body.split_vertically(HEIGHT);
        all.draw(&upper, Sheet::Wide, 0)?;
        block.draw(&lower, Sheet::Wide, 1)
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

/// A panel of `rows` rows, the vertical axis of which ends at `top`; wants the words before its hottest use.
fn panel(columns: &[Vec<f32>], rows: usize, seconds: f64, top: f64, y_name: String) -> impl FnOnce(&str) -> Shades {
    let hottest = columns.iter().flatten().copied().fold(0.0, f32::max);
    let grid = shrunk(columns, rows);
    let across = grid.len() as f64;
    let step = top / grid.first().map_or(1, Vec::len) as f64;
    let ends = (1..=grid.len()).map(|column| seconds * column as f64 / across).collect();
    let columns = grid.into_iter().map(|column| column.into_iter().map(f64::from).collect()).collect();
    move |title| {
        let title = format!("{title}: {} uses", units::count(hottest.round() as u64));
        Shades { title, ends, columns, step, y_name, rows_join: true, line: None }
    }
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

#[cfg(test)]
mod tests {
    use terrace_report::plots::sound::fault;

    use super::*;

    #[test]
    fn the_picture_of_heat_has_its_title_key_and_axes_in_it() {
        let columns = |rows: usize| -> Vec<Vec<f32>> {
            (0..300).map(|step| (0..rows).map(|row| ((row * 7 + step) % 50 * (row % 3)) as f32).collect()).collect()
        };
        let picture = HeatPicture {
            window_seconds: 0.1,
            pages_per_row: 32,
            memory: columns(256),
            block: Some(512),
            pieces: columns(512),
        };
        let svg = hotness_picture(&picture, "Heat over time: gap-pr").unwrap().unwrap();
        assert_eq!(fault(&svg), None);
        for text in [
            "\nHeat over time: gap-pr\n",
            "not used",
            "address (MiB)",
            "piece of 4 KiB",
            "time since the start",
            "98 uses",
        ] {
            assert!(svg.contains(text), "{text} is not in it");
        }
        assert_eq!(svg.matches("<image").count(), 2, "it stands by itself, on light paper");
        assert!(svg.matches("<rect").count() < 20, "{}", svg.matches("<rect").count());
        assert!(hotness_picture(&HeatPicture::default(), "").unwrap().is_none());
    }
}
