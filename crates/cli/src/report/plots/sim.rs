//! Plots of simulated runs: run times as bars, hit ratio and bins over time, and accesses by address and time.
//!
//! In: reports of the simulator. Out: figures. Must not: draw what was not recorded.

use plotters::prelude::*;
use plotters::series::LineSeries;
use terrace_sim::Report;
use terrace_sim::compare::{Cell, Job};
use terrace_sim::series::Series;

use super::*;

/// Inks of policies, in the order they appear; after the last the first comes again.
const POLICY_INKS: [RGBColor; 8] = [FAST, OCCUPIED, SLOW, BRAKED, REFAULTS, RESIDENT, PROMOTED, DEMOTED];

fn ink(number: usize) -> RGBColor {
    POLICY_INKS[number % POLICY_INKS.len()]
}

/// The plots of one run.
///
/// # Errors
/// When a plot cannot be drawn.
pub(crate) fn run_figures(report: &Report) -> anyhow::Result<Vec<Figure>> {
    let hits = [Panel { title: report.policy.clone(), lines: vec![(0, hit_ratio(&report.series))] }];
    let answer = format!("Over the whole run {} of the memory accesses.", units::percent(report.fast_hit_share));
    let legend = vec![Legend::line(ink(0), report.policy.clone())];
    let mut figures =
        vec![panels("hit-ratio", "How many accesses did fast memory serve?", answer, legend, &hits, Some(1.0))?];
    let bins: Vec<usize> =
        (0..report.series.metrics.len()).filter(|&column| report.series.metrics[column].starts_with("bin_")).collect();
    if !bins.is_empty() {
        let lines = bins.iter().enumerate().map(|(number, &column)| {
            let rows = report.series.rows.iter();
            let points = rows.filter_map(|row| Some((row.seconds, *row.metrics.get(column)?))).collect();
            (number, points)
        });
        let panel = Panel { title: "pages in each bin of the histogram".to_owned(), lines: lines.collect() };
        let names = bins.iter().enumerate();
        let legend = names.map(|(number, &column)| Legend::line(ink(number), report.series.metrics[column])).collect();
        let answer = "Sizes of the policy's bins; colours repeat after eight.".to_owned();
        figures.push(panels("bins", "How did the histogram change?", answer, legend, &[panel], None)?);
    }
    figures.push(heat_map(report)?);
    Ok(figures)
}

/// The plots of a comparison.
///
/// # Errors
/// When a plot cannot be drawn.
pub(crate) fn comparison_figures(cells: &[Cell], courses: &[(Job, Series)]) -> anyhow::Result<Vec<Figure>> {
    let mut policies: Vec<&str> = Vec::new();
    for cell in cells {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
    }
    let number = |policy: &str| policies.iter().position(|known| *known == policy).unwrap_or(0);
    let legend = |line: bool| -> Vec<Legend> {
        let entries = policies.iter().enumerate();
        entries.map(|(n, policy)| Legend { ink: ink(n), label: (*policy).to_owned(), line }).collect()
    };
    let mut hits: Vec<Panel> = Vec::new();
    for (job, series) in courses {
        let title = format!("{}, {} fast", job.workload, job.fast_text);
        if hits.last().is_none_or(|panel| panel.title != title) {
            hits.push(Panel { title, lines: Vec::new() });
        }
        if let Some(panel) = hits.last_mut() {
            panel.lines.push((number(&job.policy), hit_ratio(series)));
        }
    }
    let answer = "Runs of the first seed, in full-size time; a line ends where its run ended.".to_owned();
    let question = "How many accesses did fast memory serve, over time?";
    Ok(vec![
        bars(cells, &policies, legend(false))?,
        panels("hit-ratio", question, answer, legend(true), &hits, Some(1.0))?,
    ])
}

fn hit_ratio(series: &Series) -> Vec<(f64, f64)> {
    series.rows.iter().filter_map(|row| Some((row.seconds, row.fast_hit_share?))).collect()
}

/// Mean run time over all-fast of each policy in each setting.
fn bars(cells: &[Cell], policies: &[&str], legend: Vec<Legend>) -> anyhow::Result<Figure> {
    let (id, question) = ("run-times", "How long did the program take?");
    let mut settings: Vec<(&str, &str)> = Vec::new();
    for cell in cells {
        if !settings.contains(&(&cell.workload, &cell.fast)) {
            settings.push((&cell.workload, &cell.fast));
        }
    }
    let mean = |setting: &(&str, &str), policy: &str| {
        let values: Vec<f64> = cells
            .iter()
            .filter(|cell| (cell.workload.as_str(), cell.fast.as_str()) == *setting && cell.policy == policy)
            .map(|cell| cell.slowdown_vs_all_fast)
            .filter(|value| value.is_finite())
            .collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let answer =
        "Run time over that with everything in fast memory, mean of the seeds: 1 is as good as it gets.".to_owned();
    let most = cells.iter().map(|cell| cell.slowdown_vs_all_fast).filter(|value| value.is_finite()).fold(1.0, f64::max);
    let rows = settings.len() * (policies.len() + 1);
    let height = 140 + 44 * rows as u32;
    let svg = drawn(id, question, &answer, height, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(84)
            .y_label_area_size(420)
            .build_cartesian_2d(0.0..headroom(most), 0.0..rows as f64)
            .map_err(failed)?;
        Mesh {
            x_labels: 10,
            y_labels: 0,
            x_format: &|value| short(*value),
            y_format: &|_| String::new(),
            x_name: "run time over all fast",
            y_name: "",
        }
        .draw(&mut chart)?;
        for (place, setting) in settings.iter().enumerate() {
            let top = (rows - place * (policies.len() + 1)) as f64;
            for (number, policy) in policies.iter().enumerate() {
                let Some(value) = mean(setting, policy) else { continue };
                let (low, high) = (top - number as f64 - 0.95, top - number as f64 - 0.1);
                let bar = Rectangle::new([(0.0, low), (value, high)], ink(number).filled());
                chart.draw_series([bar]).map_err(failed)?;
            }
            let (_, y) = chart.backend_coord(&(0.0, top - policies.len() as f64 / 2.0));
            let label = format!("{}, {}", setting.0, setting.1);
            root.draw(&Text::new(label, (410, y), text_at(HPos::Right, VPos::Center))).map_err(failed)?;
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, legend, svg })
}

/// One drawing over time: its title, and lines by the number of their ink.
struct Panel {
    title: String,
    lines: Vec<(usize, Vec<(f64, f64)>)>,
}

fn panels(
    id: &'static str,
    question: &'static str,
    answer: String,
    legend: Vec<Legend>,
    panels: &[Panel],
    top: Option<f64>,
) -> anyhow::Result<Figure> {
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|(_, points)| points);
    if points().next().is_none() {
        let answer = "Nothing was recorded: the run ended before the first point was taken.".to_owned();
        return Ok(Figure { id, question, answer, legend: Vec::new(), svg: None });
    }
    let height = 420 * panels.len() as u32;
    let svg = drawn(id, question, &answer, height, |root| {
        for (panel, area) in panels.iter().zip(root.split_evenly((panels.len(), 1))) {
            let points = || panel.lines.iter().flat_map(|(_, points)| points);
            let time = Scale::of_time(points().map(|(seconds, _)| *seconds).fold(0.0, f64::max));
            let end = headroom(time.of(points().map(|(seconds, _)| *seconds).fold(0.0, f64::max))) / 1.06;
            let top = top.unwrap_or_else(|| headroom(points().map(|(_, value)| *value).fold(0.0, f64::max)));
            let mut chart = ChartBuilder::on(&area)
                .caption(&panel.title, text())
                .margin(10)
                .margin_right(40)
                .x_label_area_size(84)
                .y_label_area_size(170)
                .build_cartesian_2d(0.0..end, 0.0..top)
                .map_err(failed)?;
            let x_name = format!("time since the start, at full size ({})", time.unit);
            Mesh {
                x_labels: 12,
                y_labels: 4,
                x_format: &|value| short(*value),
                y_format: &|value| short(*value),
                x_name: &x_name,
                y_name: "",
            }
            .draw(&mut chart)?;
            for (number, points) in &panel.lines {
                let step = points.len().div_ceil(MOST_POINTS).max(1);
                let drawn = points.iter().step_by(step).map(|(seconds, value)| (time.of(*seconds), *value));
                chart.draw_series(LineSeries::new(drawn, ink(*number).stroke_width(4))).map_err(failed)?;
            }
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, legend, svg })
}

/// Accesses by address and time; a colour is a share of the busiest cell, on a scale of logarithms.
fn heat_map(report: &Report) -> anyhow::Result<Figure> {
    let (id, question) = ("heat", "Where did the program work, and when?");
    let map = &report.heat_map;
    let most = map.rows.iter().flatten().copied().max().unwrap_or(0);
    if most == 0 {
        let answer = "Nothing was recorded: the run ended before the first point was taken.".to_owned();
        return Ok(Figure { id, question, answer, legend: Vec::new(), svg: None });
    }
    let answer = "Accesses by address (upwards) and full-size time (to the right).".to_owned();
    let steps = (HEAT.len() - 1) as f64;
    let shade = |count: u32| HEAT[(steps * f64::from(count).ln_1p() / f64::from(most).ln_1p()).ceil() as usize];
    let columns = map.rows.iter().map(Vec::len).max().unwrap_or(1);
    let used = (0..columns).rposition(|column| map.rows.iter().any(|row| row[column] > 0)).map_or(1, |last| last + 1);
    let end_seconds = map.rows.len() as f64 * map.nanos_per_row as f64 / 1e9;
    let time = Scale::of_time(end_seconds);
    let memory = Scale::of_bytes(used as u64 * map.pages_per_column * 4096);
    let column_size = memory.of((map.pages_per_column * 4096) as f64);
    let svg = drawn(id, question, &answer, HEIGHT, |root| {
        let mut chart = ChartBuilder::on(root)
            .margin(10)
            .margin_right(40)
            .x_label_area_size(84)
            .y_label_area_size(170)
            .build_cartesian_2d(0.0..time.of(end_seconds), 0.0..used as f64 * column_size)
            .map_err(failed)?;
        let x_name = format!("time since the start, at full size ({})", time.unit);
        Mesh {
            x_labels: 12,
            y_labels: 6,
            x_format: &|value| short(*value),
            y_format: &|value| memory.label(*value),
            x_name: &x_name,
            y_name: "",
        }
        .draw(&mut chart)?;
        let width = time.of(map.nanos_per_row as f64 / 1e9);
        for (number, row) in map.rows.iter().enumerate() {
            // Neighbours of one shade are one rectangle: the page stays small.
            let mut from = 0;
            while from < used {
                let colour = shade(row[from]);
                let to = (from..used).find(|&column| shade(row[column]) != colour).unwrap_or(used);
                let low = (number as f64 * width, from as f64 * column_size);
                let high = ((number + 1) as f64 * width, to as f64 * column_size);
                chart.draw_series([Rectangle::new([low, high], colour.filled())]).map_err(failed)?;
                from = to;
            }
        }
        Ok(())
    })?;
    let label = |count: f64| format!("{} accesses seen", units::count(count.round() as u64));
    let legend = vec![Legend::area(HEAT[0], label(0.0)), Legend::area(HEAT[HEAT.len() - 1], label(f64::from(most)))];
    Ok(Figure { id, question, answer, legend, svg })
}
