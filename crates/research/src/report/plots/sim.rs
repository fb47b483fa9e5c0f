//! Plots of simulated runs: run times as bars, hit ratio and bins over time, and accesses by address and time.
//!
//! In: reports of the simulator. Out: figures. Must not: draw what was not recorded.

use plotters::prelude::*;
use plotters::series::LineSeries;
use terrace_sim::Report;
use terrace_sim::compare::{Cell, Course, Geomean, Summary};
use terrace_sim::heat::HeatMap;
use terrace_sim::series::Series;

use super::shades::{Shades, shades};
use super::*;

/// Inks of policies in one drawing of lines. More lines than these cannot be distinguished, so no more are drawn.
const POLICY_INKS: [RGBColor; 6] = [FAST, OCCUPIED, SLOW, STOPPED, FOREST, RESIDENT];

/// The plots of one run.
///
/// # Errors
/// When a plot cannot be drawn.
pub(crate) fn run_figures(report: &Report) -> anyhow::Result<Vec<Figure>> {
    let hits = [Panel { title: report.policy.clone(), lines: vec![(POLICY_INKS[0], hit_ratio(&report.series))] }];
    let answer = format!("{} of the memory accesses of the whole run.", units::percent(report.fast_hit_share));
    let legend = vec![Legend::line(POLICY_INKS[0], report.policy.clone())];
    let mut figures =
        vec![hit_ratios("How many accesses did fast memory serve?", (answer, String::new()), legend, &hits)?];
    figures.extend(bins(bin_shades(&report.series, report.policy.clone()).into_iter().collect())?);
    figures.push(heat(vec![heat_shades(&report.heat_map, report.workload.clone())])?);
    Ok(figures)
}

/// The plots of a comparison.
///
/// # Errors
/// When a plot cannot be drawn.
pub(crate) fn comparison_figures(cells: &[Cell], summary: &Summary, courses: &[Course]) -> anyhow::Result<Vec<Figure>> {
    let best: Vec<&str> = summary.ranking().take(POLICY_INKS.len()).map(|mean| mean.policy.as_str()).collect();
    let mut hits: Vec<Panel> = Vec::new();
    let (mut histograms, mut heats): (Vec<Shades>, Vec<Shades>) = (Vec::new(), Vec::new());
    for Course { job, series, heat_map } in courses {
        let setting = format!("{}, {} fast", job.workload, job.fast_text);
        if hits.last().is_none_or(|panel| panel.title != setting) {
            hits.push(Panel { title: setting.clone(), lines: Vec::new() });
        }
        let number = best.iter().position(|policy| *policy == job.policy);
        if let (Some(panel), Some(number)) = (hits.last_mut(), number) {
            panel.lines.push((POLICY_INKS[number], hit_ratio(series)));
        }
        if number.is_some() {
            histograms.extend(bin_shades(series, format!("{}, {setting}", job.policy)));
        }
        // What a program does is the same under every policy, but for how long it takes.
        if heats.last().is_none_or(|last| last.title != job.workload) {
            heats.push(heat_shades(heat_map, job.workload.clone()));
        }
    }
    let legend = best.iter().zip(POLICY_INKS).map(|(policy, ink)| Legend::line(ink, *policy)).collect();
    let reading = format!(
        "The {} best policies, in runs of the first seed, in full-size time; a line ends where its run ended.",
        best.len()
    );
    let share = |policy: &str| mean(cells.iter().filter(|cell| cell.policy == policy).map(|cell| cell.fast_hit_share));
    let answer = most_and_least(&best, share, "No run came to its end.");
    let mut figures = vec![
        bars(cells, summary)?,
        hit_ratios("How many accesses did fast memory serve, over time?", (answer, reading), legend, &hits)?,
    ];
    figures.extend(bins(histograms)?);
    figures.push(heat(heats)?);
    Ok(figures)
}

fn hit_ratio(series: &Series) -> Vec<(f64, f64)> {
    series.rows.iter().filter_map(|row| Some((row.seconds, row.fast_hit_share?))).collect()
}

/// Height of a bar with the room beside it.
const BAR: u32 = 40;

/// Mean run time over all-fast of each policy in each setting, the best policy on top.
fn bars(cells: &[Cell], summary: &Summary) -> anyhow::Result<Figure> {
    let (id, question) = ("run-times", "How long did the program take?");
    let mut settings: Vec<(&str, &str)> = Vec::new();
    for cell in cells {
        if !settings.contains(&(&cell.workload, &cell.fast)) {
            settings.push((&cell.workload, &cell.fast));
        }
    }
    let of_setting = |setting: &(&str, &str), policy: &str| {
        let runs = cells
            .iter()
            .filter(|cell| (cell.workload.as_str(), cell.fast.as_str()) == *setting && cell.policy == policy);
        mean(runs.map(|cell| cell.slowdown_vs_all_fast))
    };
    let reading = "Mean of the seeds; 1 is as long as with all memory fast, which is as good as it gets.".to_owned();
    let by_setting: Vec<(String, Vec<(&Geomean, f64)>)> = settings
        .iter()
        .map(|setting| {
            let policies = summary.geomean.iter();
            let mut bars: Vec<_> = policies.filter_map(|one| Some((one, of_setting(setting, &one.policy)?))).collect();
            bars.sort_by(|a, b| a.1.total_cmp(&b.1));
            (format!("{}, {} fast", setting.0, setting.1), bars)
        })
        .collect();
    let answer = fastest(&by_setting);
    let most = by_setting.iter().flat_map(|(_, bars)| bars).map(|(_, value)| *value).fold(1.0, f64::max);
    // A heading takes a bar's height above the bars, and there is air below them.
    let rows: usize = by_setting.iter().map(|(_, bars)| bars.len() + 2).sum();
    let height = 140 + BAR * rows as u32;
    let svg = drawn(id, question, &answer, [height; 2], |root, sheet| {
        let x_name = sheet.pick("run time over that with all memory fast (ratio)", "run time over all fast (ratio)");
        let mesh = Mesh {
            right: sheet.pick(140, 100),
            left: sheet.pick(320, 240),
            x_labels: sheet.pick(10, 5),
            y_labels: 0,
            y_format: &|_| String::new(),
            ..Mesh::of(sheet, x_name, "")
        };
        let mut chart = mesh.chart(root, 0.0..headroom(most), 0.0..rows as f64)?;
        let mut top = rows as f64;
        for (setting, bars) in &by_setting {
            let (left, y) = chart.backend_coord(&(0.0, top - 0.5));
            let start = sheet.pick(left, 10);
            root.draw(&Text::new(setting.clone(), (start, y), text_at(HPos::Left, VPos::Center))).map_err(failed)?;
            for (number, (policy, value)) in bars.iter().enumerate() {
                let middle = top - number as f64 - 1.5;
                let ink = if policy.bound { AXIS } else { FAST };
                let bar = Rectangle::new([(0.0, middle - 0.4), (*value, middle + 0.4)], ink.filled());
                chart.draw_series([bar]).map_err(failed)?;
                let (end, y) = chart.backend_coord(&(*value, middle));
                let label = |text: String, x, side| Text::new(text, (x, y), text_at(side, VPos::Center));
                root.draw(&label(policy.policy.clone(), left - 12, HPos::Right)).map_err(failed)?;
                root.draw(&label(format!("{value:.2}"), end + 10, HPos::Left)).map_err(failed)?;
            }
            top -= (bars.len() + 2) as f64;
        }
        Ok(())
    })?;
    let legend = vec![Legend::area(FAST, "policies"), Legend::area(AXIS, "bounds, which cannot be chosen")];
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// One drawing over time: its title, and lines with their inks.
struct Panel {
    title: String,
    lines: Vec<(RGBColor, Vec<(f64, f64)>)>,
}

fn hit_ratios(
    question: &'static str,
    (answer, mut reading): (String, String),
    legend: Vec<Legend>,
    panels: &[Panel],
) -> anyhow::Result<Figure> {
    let id = "hit-ratio";
    let points = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|(_, points)| points);
    if points().next().is_none() {
        let answer = "Nothing was recorded: the run ended before the first point was taken.".to_owned();
        return Ok(Figure::without_drawing(id, question, answer));
    }
    let panels = shown(panels, "settings", &mut reading);
    let lines: usize = panels.iter().map(|panel| panel.lines.len()).sum();
    let most = MOST_POINTS.min(MOST_POINTS_OF_ALL / lines.max(1));
    let height = 420 * panels.len() as u32;
    let svg = drawn(id, question, &answer, [height; 2], |root, sheet| {
        for (panel, area) in panels.iter().zip(root.split_evenly((panels.len(), 1))) {
            let points = || panel.lines.iter().flat_map(|(_, points)| points);
            let time = Scale::of_time(points().map(|(seconds, _)| *seconds).fold(0.0, f64::max));
            let end = headroom(time.of(points().map(|(seconds, _)| *seconds).fold(0.0, f64::max))) / 1.06;
            let x_name = full_size_time(sheet, &time);
            let mesh = Mesh {
                caption: Some(&panel.title),
                y_labels: 4,
                y_format: &|value| short(*value * 100.0),
                ..Mesh::of(sheet, &x_name, "served fast (%)")
            };
            let mut chart = mesh.chart(&area, 0.0..end, 0.0..1.0)?;
            for (ink, points) in &panel.lines {
                let step = points.len().div_ceil(sheet.pick(most, most / 2).max(1)).max(1);
                let drawn = points.iter().step_by(step).map(|(seconds, value)| (time.of(*seconds), *value));
                chart.draw_series(LineSeries::new(drawn, ink.stroke_width(4))).map_err(failed)?;
            }
        }
        Ok(())
    })?;
    Ok(Figure { id, question, answer, reading, legend, svg })
}

/// The bins of a policy's histogram over time, where it has one.
fn bin_shades(series: &Series, title: String) -> Option<Shades> {
    let of = |prefix: &str| -> Vec<usize> {
        (0..series.metrics.len()).filter(|&column| series.metrics[column].starts_with(prefix)).collect()
    };
    let (bins, threshold) = (of("bin_"), of("hot_threshold_bin"));
    let value = |row: &terrace_sim::series::Row, column: usize| row.metrics.get(column).copied().unwrap_or(0.0);
    (!bins.is_empty() && !series.rows.is_empty()).then(|| Shades {
        title,
        ends: series.rows.iter().map(|row| row.seconds).collect(),
        columns: series.rows.iter().map(|row| bins.iter().map(|&column| value(row, column)).collect()).collect(),
        step: 1.0,
        y_name: "bin (twice as hot each)".to_owned(),
        rows_join: false,
        line: threshold.first().map(|&column| series.rows.iter().map(|row| value(row, column)).collect()),
    })
}

fn bins(histograms: Vec<Shades>) -> anyhow::Result<Option<Figure>> {
    if histograms.is_empty() {
        return Ok(None);
    }
    let reading =
        "Pages by bin (upwards: a bin up is twice as hot) and time, a shade for each step of a scale of logarithms.";
    let (question, answer) = match histograms.iter().find_map(|shades| Some((shades, *shades.line.as_ref()?.last()?))) {
        Some((shades, bin)) => (
            "From which bin on did the policy take a page for hot?",
            format!("From bin {} on at the end of the run of {}.", short(bin), shades.title),
        ),
        None => ("How hot were the pages, in the policy's eyes?", fullest(&histograms[0])),
    };
    let mut figure = shades("bins", question, (answer, reading.to_owned()), "pages", &histograms)?;
    if histograms.iter().any(|shades| shades.line.is_some()) {
        figure.legend.push(Legend::line(RESIDENT, "bin of the hot threshold"));
    }
    Ok(Some(figure))
}

/// Accesses by address and time.
fn heat_shades(map: &HeatMap, title: String) -> Shades {
    let columns = map.rows.iter().map(Vec::len).max().unwrap_or(0);
    let used = (0..columns).rposition(|column| map.rows.iter().any(|row| row[column] > 0)).map_or(0, |last| last + 1);
    let memory = Scale::of_bytes(used as u64 * map.pages_per_column * 4096);
    Shades {
        title,
        ends: (1..=map.rows.len()).map(|row| row as f64 * map.nanos_per_row as f64 / 1e9).collect(),
        columns: map.rows.iter().map(|row| row[..used].iter().copied().map(f64::from).collect()).collect(),
        step: memory.of((map.pages_per_column * 4096) as f64),
        y_name: format!("address ({})", memory.unit),
        rows_join: true,
        line: None,
    }
}

fn heat(maps: Vec<Shades>) -> anyhow::Result<Figure> {
    let reading = "Accesses by address (upwards) and time, a shade for each step of a scale of logarithms.".to_owned();
    let answer = maps.first().map_or_else(String::new, half_of_accesses);
    shades("heat", "Which addresses were used?", (answer, reading), "accesses seen", &maps)
}

/// How little memory has half of a program's accesses.
fn half_of_accesses(map: &Shades) -> String {
    let rows = map.columns.iter().map(Vec::len).max().unwrap_or(0);
    let mut by_address: Vec<f64> =
        (0..rows).map(|row| map.columns.iter().filter_map(|column| column.get(row)).sum()).collect();
    by_address.sort_by(|a, b| b.total_cmp(a));
    let half = by_address.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    let hot = by_address.iter().take_while(|accesses| {
        let before = sum;
        sum += **accesses;
        before < half
    });
    let share = hot.count() as f64 / rows.max(1) as f64;
    format!("Half of the accesses of {} went to {} of its memory.", map.title, units::percent(share))
}

/// The bin that held most pages at the end.
fn fullest(histogram: &Shades) -> String {
    let last = histogram.columns.last().map_or(&[][..], Vec::as_slice);
    let most = last.iter().enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
    let (bin, pages) = most.map_or((0, 0.0), |(bin, pages)| (bin, *pages));
    format!(
        "Most of them, {}, lay in bin {bin} at the end of the run of {}.",
        units::count(pages.round() as u64),
        histogram.title
    )
}

/// Mean of the finite values, if there are any.
fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The policy that is fastest in most settings, bounds aside, and how long the program took under it and under the slowest.
fn fastest(settings: &[(String, Vec<(&Geomean, f64)>)]) -> String {
    let mut won: Vec<(&str, Vec<f64>)> = Vec::new();
    let mut slowest = 0.0_f64;
    for (_, bars) in settings {
        let mut policies = bars.iter().filter(|(policy, _)| !policy.bound);
        let Some((best, value)) = policies.clone().next() else { continue };
        slowest = policies.next_back().map_or(slowest, |(_, value)| slowest.max(*value));
        match won.iter_mut().find(|(policy, _)| *policy == best.policy) {
            Some((_, values)) => values.push(*value),
            None => won.push((&best.policy, vec![*value])),
        }
    }
    let Some((policy, values)) = won.iter().rev().max_by_key(|(_, values)| values.len()) else {
        return "No run came to its end.".to_owned();
    };
    let (least, most) =
        (values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max));
    let times = if most - least < 0.005 { format!("{least:.2}") } else { format!("{least:.2} to {most:.2}") };
    let place = match settings.len() {
        1 => String::new(),
        all => format!(" in {} of {all} settings", values.len()),
    };
    format!(
        "Shortest with {policy}{place}: {times} times as long as with all memory fast; the longest is {slowest:.2} times."
    )
}
