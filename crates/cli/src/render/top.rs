//! `terrace top` as a picture of cells: tiers, classes, a heat strip for each process, what happens.
//!
//! In: the daemon's views. Out: a frame. Must not: ask the daemon, or rely on colour: everything colour says stands there as
//! text or as a shade of its own as well.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Table};
use terrace_daemon::view::{Happening, Heat, Status};

use super::service::{bytes, limit, percent, span};

/// What one frame shows.
#[derive(Default)]
pub(crate) struct Look {
    pub status: Status,
    pub heat: Option<Heat>,
    pub news: Vec<Happening>,
    /// The class that is chosen, by its place.
    pub chosen: usize,
    /// Pages a second to slower and to faster memory, and that came back, since the look before.
    pub rates: (f64, f64, f64),
    /// What is wrong with the connection, if anything is.
    pub trouble: Option<String>,
}

/// Shades from not used to all used; they differ in lightness, so that no colour is needed.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];
const NOT_SEEN: char = ' ';

/// Draws it.
pub(crate) fn draw(frame: &mut Frame<'_>, look: &Look) {
    let classes = look.status.classes.len() as u16 + 2;
    let tiers = look.status.tiers.len() as u16 + 1;
    let [head, tier_area, class_area, heat_area, news_area, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(tiers),
        Constraint::Length(classes.min(frame.area().height / 3)),
        Constraint::Min(5),
        Constraint::Length((frame.area().height / 4).clamp(3, 10)),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(headline(look), head);
    draw_tiers(frame, look, tier_area);
    draw_classes(frame, look, class_area);
    draw_heat(frame, look, heat_area);
    draw_news(frame, look, news_area);
    frame.render_widget(Paragraph::new("up, down: choose a class   Tab: the machine   q: leave").style(dim()), foot);
}

fn dim() -> Style {
    Style::default().add_modifier(Modifier::DIM)
}

fn strong() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

fn headline(look: &Look) -> Paragraph<'static> {
    let status = &look.status;
    let first = match &look.trouble {
        Some(trouble) => Line::from(Span::styled(trouble.clone(), strong())),
        None => Line::from(format!(
            "terraced {}, up {}: {}; own CPU {} of {}; resident {}",
            status.version,
            span(status.uptime_seconds),
            status.state,
            percent(status.own.cpu_share),
            percent(status.budget.cpu_share),
            bytes(status.own.resident_bytes),
        )),
    };
    let (out, back, returned) = look.rates;
    let second = format!(
        "moves a second: {} to slower memory, {} to faster; {returned:.0} pages came back",
        bytes((out * 4096.0) as u64),
        bytes((back * 4096.0) as u64),
    );
    Paragraph::new(vec![first, Line::from(second)])
}

fn draw_tiers(frame: &mut Frame<'_>, look: &Look, area: Rect) {
    let widths = [Constraint::Length(12), Constraint::Fill(1), Constraint::Length(42)];
    let rows = look.status.tiers.iter().enumerate().map(|(index, tier)| {
        // The fast tier is measured by the budget: the rest of it is not Terrace's to fill.
        let whole = if index == 0 { look.status.budget.fast_bytes } else { tier.capacity_bytes };
        let share = if whole == 0 { 0.0 } else { tier.used_bytes as f64 / whole as f64 };
        let takes = tier.occupied_bytes.map_or_else(String::new, |occupied| format!(", takes {}", bytes(occupied)));
        Row::new([
            Cell::from(tier.name.clone()),
            Cell::from(bar(share, usize::from(area.width.saturating_sub(58)))),
            Cell::from(format!("{} of {}{takes}", bytes(tier.used_bytes), bytes(whole))),
        ])
    });
    frame.render_widget(Table::new(rows, widths), area);
}

/// A bar of full and empty cells.
fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(width - full)
}

/// Columns from which on a class's working set fits beside the rest. On a narrower screen it is left out; `terrace classes` has it.
const WIDE: u16 = 131;

fn draw_classes(frame: &mut Frame<'_>, look: &Look, area: Rect) {
    let head = ["", "class", "state", "goal", "procs", "fast", "slow", "granted", "hits", "stall", "in use"];
    // The state is as wide as "stopped because pages came back".
    let widths = [2, 16, 31, 11, 6, 10, 10, 10, 8, 7, 10].map(Constraint::Length);
    let columns = if area.width >= WIDE { head.len() } else { head.len() - 1 };
    let rows = look.status.classes.iter().enumerate().map(|(index, class)| {
        let row = [
            if index == look.chosen { "›".to_owned() } else { String::new() },
            class.name.clone(),
            limit(class).map_or_else(|| class.state.clone(), str::to_owned),
            class.goal.clone(),
            class.processes.to_string(),
            bytes(class.fast_bytes),
            bytes(class.slow_bytes),
            bytes(class.granted_bytes),
            class.hit_share.map_or_else(|| "-".to_owned(), percent),
            percent(class.stall_share),
            bytes(class.active_bytes),
        ];
        let row = Row::new(row.into_iter().take(columns));
        if index == look.chosen { row.style(strong()) } else { row }
    });
    let head = Row::new(head.into_iter().take(columns)).style(dim());
    frame.render_widget(Table::new(rows, widths.into_iter().take(columns)).header(head), area);
}

fn draw_heat(frame: &mut Frame<'_>, look: &Look, area: Rect) {
    let name = look.status.classes.get(look.chosen).map_or("", |class| class.name.as_str());
    let block = Block::bordered()
        .title(format!(" {name}: use by address (right is now; {} not used to {} all used) ", SHADES[0], SHADES[4]));
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let Some(heat) = look.heat.as_ref().filter(|heat| !heat.rows.is_empty()) else {
        frame.render_widget(Paragraph::new("no walk of this class's memory has been made yet").style(dim()), inside);
        return;
    };
    frame.render_widget(Paragraph::new(strips(heat, inside.width, inside.height)), inside);
}

/// A strip a line: the process, the address, and a shade a column. What does not fit is left out at the end, and said.
fn strips(heat: &Heat, width: u16, height: u16) -> Vec<Line<'static>> {
    /// "4194304 7fffffffffff ".
    const LABEL: usize = 22;
    let room = usize::from(width).saturating_sub(LABEL);
    let columns = &heat.cells[heat.cells.len().saturating_sub(room)..];
    let whole = heat.rows.len();
    let shown = if whole > usize::from(height) { usize::from(height).saturating_sub(1) } else { whole };
    let mut lines: Vec<Line<'static>> = heat.rows[..shown]
        .iter()
        .enumerate()
        .map(|(row, place)| {
            let shades: String = columns.iter().map(|column| shade(column[row])).collect();
            Line::from(vec![
                Span::styled(format!("{:>7} {:>12x}  ", place.pid, place.address), dim()),
                Span::raw(shades),
            ])
        })
        .collect();
    if shown < whole {
        lines
            .push(Line::from(Span::styled(format!("and {} stretches more; the page shows all", whole - shown), dim())));
    }
    lines
}

fn shade(share: f32) -> char {
    match share {
        share if share < 0.0 => NOT_SEEN,
        share => SHADES[((share * 4.0).ceil() as usize).min(4)],
    }
}

fn draw_news(frame: &mut Frame<'_>, look: &Look, area: Rect) {
    let block = Block::bordered().title(" what happens ");
    let inside = block.inner(area);
    frame.render_widget(block, area);
    let lines = look.news.iter().rev().take(usize::from(inside.height)).rev();
    let lines: Vec<Line<'_>> = lines
        .map(|one| {
            let time = jiff::Timestamp::from_millisecond((one.time * 1e3) as i64);
            let time = time.map_or_else(|_| String::new(), |time| time.strftime("%H:%M:%S").to_string());
            let what = one.class.as_deref().unwrap_or(&one.kind);
            Line::from(vec![
                Span::styled(format!("{time} {what:<12} "), dim()),
                Span::raw(one.text.lines().next().unwrap_or("").to_owned()),
            ])
        })
        .collect();
    frame.render_widget(Paragraph::new(lines), inside);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use terrace_daemon::view::{Class, HeatRow, Tier};

    fn screen(look: &Look, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, look)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_frame_shows_tiers_classes_heat_and_news_at_any_size() {
        let class = |name: &str| Class { name: name.to_owned(), state: "running".to_owned(), ..Class::default() };
        let look = Look {
            status: Status {
                classes: vec![
                    Class { page_outs: "limited_to_bound".to_owned(), ..class("web") },
                    Class { page_outs: "stopped_came_back".to_owned(), ..class("batch") },
                    Class { page_outs: "free".to_owned(), ..class("idle") },
                ],
                tiers: vec![Tier { name: "dram".to_owned(), capacity_bytes: 100, used_bytes: 50, ..Tier::default() }],
                ..Status::default()
            },
            heat: Some(Heat {
                columns: vec![0.0, 5.0],
                rows: (0..40).map(|row| HeatRow { pid: 42, address: row << 21, bytes: 1 << 21 }).collect(),
                cells: vec![vec![1.0; 40], vec![-1.0; 40]],
                ..Heat::default()
            }),
            news: vec![Happening {
                kind: "throttle".to_owned(),
                text: "page-outs stop".to_owned(),
                ..Happening::default()
            }],
            chosen: 1,
            ..Look::default()
        };
        let shown = screen(&look, 120, 40);
        for part in [
            "dram",
            "web",
            "›  batch",
            "limited to the bound ",
            "stopped because pages came back ",
            "running",
            "batch: use by address",
            "42",
            "█",
            "stretches more",
            "page-outs stop",
        ] {
            assert!(shown.contains(part), "{part:?} is missing:\n{shown}");
        }
        for (width, height) in [(20, 8), (1, 1), (300, 100)] {
            screen(&look, width, height);
        }
        assert!(screen(&Look { trouble: Some("gone".to_owned()), ..Look::default() }, 80, 24).contains("gone"));
    }
}
