//! Plots of use: which memory was touched, and how long it had lain idle.
//!
//! In: the heat map and the age histogram of a report. Out: figures. Must not: draw more than [`MOST_COLUMNS`] by [`MOST_ROWS`] cells,
//! which is what keeps the page small.

use plotters::prelude::*;
use plotters::series::LineSeries;

use super::raster::{Cells, place};
use super::*;
use crate::heat::{Grid, Stretch};
use crate::{AgeBin, text};

/// Columns and rows of the heat map at most.
const MOST_COLUMNS: usize = 240;
/// See [`MOST_COLUMNS`]. A cell takes three bits where neighbours have nothing in common: 100 kB for two papers.
const MOST_ROWS: usize = 300;
/// Upper bounds of the shares that the inks of [`HEAT`] stand for. Small shares are distinguished best: one page in fifty is what
/// keeps a huge page hot.
pub(super) const HEAT_BOUNDS: [f32; 7] = [0.0, 0.02, 0.10, 0.25, 0.50, 0.75, 1.0];
/// Bins of idle time that a narrow plot names at most.
const MOST_NARROW_LABELS: usize = 6;
/// Room for addresses left of the heat map.
const ADDRESS_WIDTH: u32 = 440;
/// The same where only the sizes of the ranges are named.
const SIZE_WIDTH: u32 = 190;

/// Address by time.
pub(super) fn heat_map(report: &Report) -> anyhow::Result<Figure> {
    let (id, question) = ("heat", "Which addresses were used?");
    let wall = report.target.wall_seconds;
    let end = report.timeline.last().map_or(wall, |point| point.seconds.max(wall));
    let grid = Grid::of(&report.heat_map, end, MOST_COLUMNS, MOST_ROWS);
    if grid.is_empty() {
        let answer = "Nothing was recorded: no round of accessed bits fell into this run.".to_owned();
        return Ok(Figure::without_drawing(id, question, answer));
    }
    let answer = describe(report, &grid);
    let reading = "A colour is the share of the pages that were touched.".to_owned();
    let legend = (0..HEAT.len()).map(|level| Legend::area(HEAT[level], level_label(level))).collect();
    let span = *grid.column_edges.last().expect("a grid that is not empty has columns");
    let time = Scale::of_time(span);
    let total = grid.total_bytes() as f64;
    let first = grid.column_edges[0].max(0.0);
    let svg = drawn_with(id, question, &answer, [900; 2], &[cells(&grid)], |root, sheet| {
        let x_name = format!("time since the start ({})", time.unit);
        let y_name = sheet.pick("range of addresses: its start · its size", "ranges of addresses, by size");
        let mesh = Mesh {
            left: sheet.pick(ADDRESS_WIDTH, SIZE_WIDTH),
            y_labels: 0,
            y_format: &|_| String::new(),
            ..Mesh::of(sheet, &x_name, y_name)
        };
        let mut chart = mesh.chart(root, time.of(first)..time.of(span), 0.0..total)?;
        let all = Rectangle::new([(time.of(first), total), (time.of(span), 0.0)], place(0).filled());
        chart.draw_series([all]).map_err(failed)?;
        let stretches = grid.stretches();
        // With hundreds of small ranges the lines between them would hide the map.
        if stretches.len() <= 60 {
            let lines = stretches.iter().skip(1).map(|stretch| {
                let height = total - stretch.offset as f64;
                PathElement::new(
                    vec![(time.of(first), height), (time.of(span), height)],
                    SEPARATOR.mix(0.6).stroke_width(1),
                )
            });
            chart.draw_series(lines).map_err(failed)?;
        }
        let several = stretches.iter().any(|stretch| stretch.pid != stretches[0].pid);
        let places = stretches.iter().map(|stretch| {
            let middle = total - stretch.offset as f64 - stretch.bytes as f64 / 2.0;
            chart.backend_coord(&(time.of(first), middle))
        });
        for (stretch, place) in labelled(stretches.iter().zip(places).collect()) {
            let label = sheet.pick(range_label(stretch, several), units::bytes(stretch.bytes));
            root.draw(&Text::new(label, (place.0 - 14, place.1), text_at(HPos::Right, VPos::Center)))
                .map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// The largest ranges whose labels do not run into each other.
fn labelled(mut places: Vec<(&Stretch, (i32, i32))>) -> Vec<(&Stretch, (i32, i32))> {
    places.sort_by_key(|(stretch, _)| std::cmp::Reverse(stretch.bytes));
    let mut chosen: Vec<(&Stretch, (i32, i32))> = Vec::new();
    for (stretch, place) in places {
        if chosen.iter().all(|(_, other)| (other.1 - place.1).abs() >= TEXT_SIZE as i32) {
            chosen.push((stretch, place));
        }
    }
    chosen
}

fn range_label(stretch: &Stretch, with_process: bool) -> String {
    let process = if with_process { format!("{}: ", stretch.pid) } else { String::new() };
    format!("{process}{:x} · {}", stretch.address, units::bytes(stretch.bytes))
}

/// Where most of the touched memory was, and how much of all was touched.
fn describe(report: &Report, grid: &Grid) -> String {
    let pids: std::collections::BTreeSet<u32> = report.heat_map.rows.iter().map(|row| row.pid).collect();
    let processes = match pids.iter().next() {
        Some(pid) if pids.len() == 1 => format!("process {pid}"),
        _ => units::counted(pids.len() as u64, "process", "processes"),
    };
    let stretches = grid.stretches();
    // Memory by time: what was seen of it, and what of that was touched.
    let mut sums = vec![(0.0_f64, 0.0_f64); stretches.len()];
    for (column, span) in grid.cells.iter().zip(grid.column_edges.windows(2)) {
        let mut offset = 0;
        for (row, share) in grid.rows.iter().zip(column) {
            let stretch = stretches.partition_point(|stretch| stretch.offset <= offset).saturating_sub(1);
            offset += row.bytes;
            if let (Some(share), Some(sum)) = (share, sums.get_mut(stretch)) {
                let weight = row.bytes as f64 * (span[1] - span[0]).max(0.0);
                *sum = (sum.0 + weight, sum.1 + weight * f64::from(*share));
            }
        }
    }
    let (seen, touched) = sums.iter().fold((0.0, 0.0), |all, sum| (all.0 + sum.0, all.1 + sum.1));
    let share = |part: f64, whole: f64| units::percent(if whole > 0.0 { part / whole } else { 0.0 });
    let all = format!(
        "{} of {processes} lies in {}",
        units::bytes(grid.total_bytes()),
        units::counted(stretches.len() as u64, "range of addresses", "ranges of addresses"),
    );
    let busiest = sums.iter().enumerate().max_by(|(_, a), (_, b)| a.1.total_cmp(&b.1));
    match busiest.and_then(|(index, sum)| Some((stretches.get(index)?, sum))) {
        Some((stretch, sum)) if touched > 0.0 && stretches.len() > 1 => format!(
            "{} of what was touched lay in the range {:x} ({}), of which {} was touched on average; {all}.",
            share(sum.1, touched),
            stretch.address,
            units::bytes(stretch.bytes),
            share(sum.1, sum.0),
        ),
        Some(_) if touched > 0.0 => format!("{} of it was touched on average; {all}.", share(touched, seen)),
        _ => format!("None was seen to be touched; {all}."),
    }
}

/// What an ink of the heat map stands for.
fn level_label(level: usize) -> String {
    match level {
        0 => "not touched".to_owned(),
        _ => format!("up to {} %", (HEAT_BOUNDS[level] * 100.0).round()),
    }
}

/// The ink of a share.
fn level_of(share: f32) -> usize {
    HEAT_BOUNDS.iter().position(|bound| share <= *bound).unwrap_or(HEAT_BOUNDS.len() - 1)
}

/// The cells with their levels; a row is as high as the memory in it.
fn cells(grid: &Grid) -> Cells {
    let down = grid.rows.iter().scan(0, |offset, row| {
        *offset += row.bytes;
        Some(*offset as f64)
    });
    Cells {
        across: grid.column_edges.iter().map(|edge| edge.max(0.0)).collect(),
        down: std::iter::once(0.0).chain(down).collect(),
        levels: grid.cells.iter().map(|column| column.iter().map(|share| share.map(level_of)).collect()).collect(),
    }
}

/// The spans of a curve that lie this share of the axis apart, so that their labels do.
fn parted(curve: &[(f64, u64)], axis: &std::ops::Range<f64>, share: f64) -> Vec<f64> {
    let least = (axis.end / axis.start).ln() * share;
    let mut spans: Vec<f64> = Vec::with_capacity(curve.len());
    for (span, _) in curve {
        if spans.last().is_none_or(|last| (span / last).ln() >= least) {
            spans.push(*span);
        }
    }
    spans
}

/// Memory touched within the last T seconds, for every T.
pub(super) fn working_set(report: &Report) -> anyhow::Result<Figure> {
    let (id, question) = ("working-set", "How much memory did it touch within the last T seconds?");
    let curve = text::working_set_curve(&report.age_histogram);
    let total = text::aged_bytes(&report.age_histogram);
    let Some(&(longest, _)) = curve.last().filter(|_| total > 0) else {
        return Ok(Figure::without_drawing(id, question, text::NO_AGES.to_owned()));
    };
    let answer = text::working_set_sentence(report);
    let reading = String::new();
    let memory = Scale::of_bytes(total);
    let shortest = curve[0].0;
    let legend = vec![
        Legend::line(FAST, "memory touched within that span, at the end of the run"),
        Legend::line(RESIDENT, "all memory, however long idle"),
    ];
    let svg = drawn(id, question, &answer, [HEIGHT; 2], |root, sheet| {
        // A logarithmic axis needs a range that is not empty.
        let range = shortest * 0.9..(longest * 1.1).max(shortest * 2.0);
        let top = headroom(memory.of(total as f64));
        let mut chart = ChartBuilder::on(root)
            .margin(10)
            .margin_right(60)
            .x_label_area_size(84)
            .y_label_area_size(sheet.pick(170, 150))
            .build_cartesian_2d(
                range.clone().log_scale().with_key_points(parted(&curve, &range, sheet.pick(0.04, 0.14))),
                0.0..top,
            )
            .map_err(failed)?;
        let x_name =
            sheet.pick("span T before the end of the run (logarithmic)", "span T before the end (logarithmic)");
        let y_name = format!("memory touched ({})", memory.unit);
        let seconds = |value: &f64| units::seconds(*value);
        Mesh { x_labels: 14, x_format: &seconds, ..Mesh::of(sheet, x_name, &y_name) }.draw(&mut chart)?;
        let values: Vec<(f64, f64)> = curve.iter().map(|(span, bytes)| (*span, memory.of(*bytes as f64))).collect();
        let all = memory.of(total as f64);
        let across = [(range.start, all), (range.end, all)];
        chart.draw_series(LineSeries::new(across, RESIDENT.stroke_width(2))).map_err(failed)?;
        chart.draw_series(LineSeries::new(values.clone(), FAST.stroke_width(5))).map_err(failed)?;
        chart.draw_series(values.iter().map(|value| Circle::new(*value, 9, FAST.filled()))).map_err(failed)?;
        Ok(())
    })?;
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// Memory by idle time, fast and slow side by side.
pub(super) fn ages(report: &Report) -> anyhow::Result<Figure> {
    let (id, question) = ("ages", "How long had the memory of each tier been idle?");
    let bins: Vec<&AgeBin> =
        text::occupied(&report.age_histogram).iter().filter(|bin| bin.from_seconds.is_finite()).collect();
    let most = bins.iter().map(|bin| bin.fast_bytes.max(bin.slow_bytes)).max().unwrap_or(0);
    if most == 0 {
        return Ok(Figure::without_drawing(id, question, text::NO_AGES.to_owned()));
    }
    let answer = text::ages_sentence(report);
    let reading = String::new();
    let memory = Scale::of_bytes(most);
    let mut legend = vec![Legend::area(FAST, "in fast memory")];
    if bins.iter().any(|bin| bin.slow_bytes > 0) {
        legend.push(Legend::area(SLOW, "in slower tiers"));
    }
    let svg = drawn(id, question, &answer, [HEIGHT; 2], |root, sheet| {
        let x_name = sheet.pick("idle time at the end of the run", "idle at the end of the run for ... or longer");
        let y_name = format!("memory ({})", memory.unit);
        let mesh = Mesh { x_labels: 0, x_format: &|_| String::new(), ..Mesh::of(sheet, x_name, &y_name) };
        let top = headroom(memory.of(most as f64));
        let mut chart = mesh.chart(root, 0.0..bins.len() as f64, 0.0..top)?;
        let every = bins.len().div_ceil(MOST_NARROW_LABELS).max(1);
        for (index, bin) in bins.iter().enumerate() {
            let bars = [(0.12, FAST, bin.fast_bytes), (0.51, SLOW, bin.slow_bytes)];
            let bars = bars.into_iter().filter(|(_, _, bytes)| *bytes > 0).map(|(left, ink, bytes)| {
                let left = index as f64 + left;
                Rectangle::new([(left, 0.0), (left + 0.37, memory.of(bytes as f64))], ink.filled())
            });
            chart.draw_series(bars).map_err(failed)?;
            let (x, y) = chart.backend_coord(&(index as f64 + 0.5, 0.0));
            // A telephone has room for where a bin begins, and that of some.
            if sheet == Sheet::Narrow && index % every != 0 {
                continue;
            }
            let label = sheet.pick(text::age_label(bin), units::seconds(bin.from_seconds));
            root.draw(&Text::new(label, (x, y + 10), text_at(HPos::Center, VPos::Top))).map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, reading, legend, svg })
}
