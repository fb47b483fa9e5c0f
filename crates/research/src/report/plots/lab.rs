//! Plots of a comparison in the lab: the share of fast memory accesses over the run, a panel for each workload.
//!
//! In: courses. Out: figures. Must not: draw what was not recorded.

use plotters::prelude::*;
use plotters::series::LineSeries;

use super::*;
use crate::report::comparison::{Named, shortened};

/// Inks of managers, in the order they appear; after the last the first comes again.
const INKS_OF_MANAGERS: [RGBColor; 8] = [AXIS, OCCUPIED, SLOW, STOPPED, REFAULTS, FAST, PROMOTED, RESIDENT];

/// The plots.
///
/// # Errors
/// When a plot cannot be drawn.
pub(crate) fn figures(courses: &[Named]) -> anyhow::Result<Vec<Figure>> {
    let (mut managers, mut workloads): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    for course in courses {
        if !managers.contains(&course.manager.as_str()) {
            managers.push(&course.manager);
        }
        if !workloads.contains(&course.workload.as_str()) {
            workloads.push(&course.workload);
        }
    }
    let ink = |manager: &str| {
        let number = managers.iter().position(|known| *known == manager).unwrap_or(0);
        INKS_OF_MANAGERS[number % INKS_OF_MANAGERS.len()]
    };
    let first_seed = courses.iter().filter_map(|course| course.seed).min().unwrap_or(1);
    let (id, question) = ("fast-share", "How many memory accesses did the fast node serve, over the run?");
    let reading = "Runs of the first seed, each point a stretch of about a million accesses.".to_owned();
    // A mean over all points of all runs of a manager.
    let share = |manager: &str| {
        let own = courses.iter().filter(|course| course.manager == manager);
        let points: Vec<f64> = own.flat_map(|course| &course.points).map(|(_, share)| *share).collect();
        (!points.is_empty()).then(|| points.iter().sum::<f64>() / points.len() as f64)
    };
    let answer = most_and_least(&managers, share, "No run recorded any.");
    let legend = managers.iter().map(|manager| Legend::line(ink(manager), *manager)).collect();
    if courses.is_empty() {
        let answer = "Nothing was recorded: no run came to its end.".to_owned();
        return Ok(vec![Figure::without_drawing(id, question, answer)]);
    }
    let first = |course: &Named| course.seed.is_none_or(|seed| seed == first_seed);
    let lines = courses.iter().filter(|course| first(course)).count();
    let most = MOST_POINTS.min(MOST_POINTS_OF_ALL / lines.max(1));
    let height = 480 * workloads.len() as u32;
    let svg = drawn(id, question, &answer, [height; 2], |root, sheet| {
        for (workload, area) in workloads.iter().zip(root.split_evenly((workloads.len(), 1))) {
            let shown: Vec<&Named> =
                courses.iter().filter(|course| course.workload == *workload && first(course)).collect();
            let end = shown.iter().filter_map(|course| course.points.last()).map(|(at, _)| *at).fold(0.0, f64::max);
            let caption = shortened(workload);
            let mesh = Mesh {
                caption: Some(&caption),
                left: 110,
                y_labels: 4,
                y_format: &|value| short(*value * 100.0),
                ..Mesh::of(sheet, "accesses of the program (million)", "served fast (%)")
            };
            let mut chart = mesh.chart(&area, 0.0..headroom(end) / 1.06, 0.0..1.0)?;
            for course in shown {
                let step = course.points.len().div_ceil(sheet.pick(most, most / 2).max(1)).max(1);
                let points = course.points.iter().step_by(step).copied();
                chart.draw_series(LineSeries::new(points, ink(&course.manager).stroke_width(4))).map_err(failed)?;
            }
        }
        Ok(())
    })?;
    Ok(vec![Figure { id, question, answer, reading, legend, svg }])
}
