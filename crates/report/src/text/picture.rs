//! Pictures of characters: the age histogram and the heat map on a terminal.
//!
//! In: the parts of a report, and what the screen can show. Out: text. Must not: write a character the screen cannot show,
//! or a line wider than it.

use crate::heat::Grid;
use crate::terminal::{Screen, fitted};
use crate::{AgeBin, HeatMap, units};

use super::age_label;

/// Shares up to which each shade stands; the first is for memory that was not touched.
const SHADE_BOUNDS: [f32; 5] = [0.0, 0.10, 0.33, 0.66, 1.0];

/// This many neighbouring rows without a touch are one line.
const LEAST_ALIKE: usize = 3;

/// Memory by idle time: a bar for each bin, its fast part and its slow part in different shades.
pub(super) fn age_histogram(bins: &[AgeBin], screen: &Screen) -> String {
    let most = bins.iter().map(|bin| bin.fast_bytes.saturating_add(bin.slow_bytes)).max().unwrap_or(0);
    if most == 0 {
        return "no idle times were recorded\n".to_owned();
    }
    let bins = super::occupied(bins);
    let labels: Vec<String> = bins.iter().map(age_label).collect();
    let label_width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let (fast, slow) = if screen.unicode { ('█', '░') } else { ('#', '-') };
    // Two amounts of up to ten characters and the spaces between stand beside the bar.
    let room = screen.width.saturating_sub(label_width + 26).max(8);
    let cells = |bytes: u64| match (bytes as f64 / most as f64 * room as f64).round() as usize {
        // What is there must be seen, be it ever so little.
        0 if bytes > 0 => 1,
        cells => cells.min(room),
    };
    let mut text = fitted(
        &format!("{:<label_width$}  {:>10}  {:>10}  {fast} fast {slow} slower", "idle for", "fast", "slower"),
        screen.width,
    );
    text.push('\n');
    for (bin, label) in bins.iter().zip(&labels) {
        let fast_cells = cells(bin.fast_bytes);
        let bar = format!(
            "{}{}",
            fast.to_string().repeat(fast_cells),
            slow.to_string().repeat(cells(bin.slow_bytes).min(room + 1 - fast_cells.min(room)))
        );
        let line = format!(
            "{label:<label_width$}  {:>10}  {:>10}  {bar}",
            units::bytes(bin.fast_bytes),
            units::bytes(bin.slow_bytes)
        );
        text.push_str(fitted(&line, screen.width).trim_end());
        text.push('\n');
    }
    text
}

/// Address by time: at most `rows` lines, one for each group of rows, a character for each group of columns.
pub(super) fn heat_map(map: &HeatMap, end_seconds: f64, rows: usize, screen: &Screen) -> String {
    const LABEL: usize = 24;
    let columns = screen.width.saturating_sub(LABEL + 2).clamp(10, 120);
    let grid = Grid::of(map, end_seconds, columns, rows);
    if grid.is_empty() {
        return "no round of accessed bits fell into this run\n".to_owned();
    }
    let shades = if screen.unicode { ['·', '░', '▒', '▓', '█'] } else { ['.', '-', '+', '*', '#'] };
    // A short run has few columns; each is then drawn as wide as the screen allows.
    let repeat = (columns / grid.cells.len().max(1)).max(1);
    let mut text = String::new();
    let mut process = None;
    // Rows in which nothing was touched say the same, so that a long row of them is one line.
    let untouched = |index: usize| grid.cells.iter().all(|column| column[index].is_none_or(|share| share <= 0.0));
    let mut index = 0;
    while index < grid.rows.len() {
        let row = &grid.rows[index];
        if process != Some(row.pid) {
            text.push_str(&format!("process {}\n", row.pid));
            process = Some(row.pid);
        }
        let alike = (index..grid.rows.len()).take_while(|&at| grid.rows[at].pid == row.pid && untouched(at)).count();
        if alike >= LEAST_ALIKE {
            let bytes = grid.rows[index..index + alike].iter().map(|row| row.bytes).sum();
            let label = format!("{:x} {:>9}", row.address, units::bytes(bytes));
            text.push_str(&fitted(&format!("{label:>LABEL$}  {alike} rows, none touched"), screen.width));
            text.push('\n');
            index += alike;
            continue;
        }
        let label = format!("{:x} {:>9}", row.address, units::bytes(row.bytes));
        let cells: String = grid
            .cells
            .iter()
            .map(|column| column[index].map_or(' ', |share| shades[shade(share)]).to_string().repeat(repeat))
            .collect();
        text.push_str(&fitted(format!("{label:>LABEL$}  {cells}").trim_end(), screen.width));
        text.push('\n');
        index += 1;
    }
    let (from, to) = (grid.column_edges[0], *grid.column_edges.last().expect("a grid that is not empty has columns"));
    let (from, to) = (units::seconds(from), units::seconds(to));
    let gap = (grid.cells.len() * repeat).saturating_sub(from.chars().count()).max(to.chars().count() + 1);
    text.push_str(&fitted(&format!("{:LABEL$}  {from}{to:>gap$}", ""), screen.width));
    text.push('\n');
    let key = format!(
        "pages touched: {} none  {} to 10 %  {} to 33 %  {} to 66 %  {} to 100 %  (blank: not seen)",
        shades[0], shades[1], shades[2], shades[3], shades[4]
    );
    text.push_str(&fitted(&key, screen.width));
    text.push('\n');
    text
}

fn shade(share: f32) -> usize {
    SHADE_BOUNDS.iter().position(|bound| share <= *bound).unwrap_or(SHADE_BOUNDS.len() - 1)
}
