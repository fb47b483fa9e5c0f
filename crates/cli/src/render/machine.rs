//! `terrace top` of the machine as a picture of cells: what is saved, at what cost, who is limited and why; then the classes and the programs.
//!
//! In: looks at the machine, and the service's status if it runs. Out: a frame. Must not: ask anybody, or rely on colour.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row as TableRow, Table};
use terrace_common::figures::{percent, significant};
use terrace_core::text::visible;
use terrace_daemon::view::{Class, Status};
use terrace_linux::survey::MAX_SLOWDOWN;
use terrace_linux::survey::view::{Kind, Look, Row};

use super::service::limit;
use super::survey::{shortened, split, title};

/// Looks that are kept to be scrolled back to: an hour of one every five seconds.
pub(crate) const HISTORY: usize = 720;
/// Width of a name in the table.
const NAME: usize = 22;
/// Classes that are shown here; the other screen has all.
const MOST_CLASSES: usize = 4;

/// What the rows are sorted by, most first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    #[default]
    Could,
    Memory,
    Cold,
    Saved,
    CameBack,
    Name,
}

impl Sort {
    const ALL: [Sort; 6] = [Sort::Could, Sort::Memory, Sort::Cold, Sort::Saved, Sort::CameBack, Sort::Name];

    /// The one after it.
    pub(crate) fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Sort::ALL[(at + 1) % Sort::ALL.len()]
    }

    fn word(self) -> &'static str {
        match self {
            Sort::Could => "could",
            Sort::Memory => "memory",
            Sort::Cold => "cold",
            Sort::Saved => "saved",
            Sort::CameBack => "back/s",
            Sort::Name => "name",
        }
    }
}

/// An order to the service that waits for a yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Pause,
    Drain,
    Resume,
}

impl Order {
    /// What is asked.
    fn question(self) -> &'static str {
        match self {
            Order::Pause => "Pause the service? Nothing is looked at or moved until it resumes.",
            Order::Drain => "Drain the service? All that it moved comes back to memory, and it pauses.",
            Order::Resume => "Resume the service?",
        }
    }
}

/// What one frame shows.
#[derive(Default)]
pub(crate) struct Board {
    /// Looks, oldest first.
    pub looks: VecDeque<Look>,
    /// Which is shown, if not the latest.
    pub at: Option<usize>,
    pub sort: Sort,
    pub filter: String,
    /// Whether the filter is being typed.
    pub typing: bool,
    pub tree: bool,
    /// The line that is chosen, and the first that is shown.
    pub chosen: usize,
    pub asks: Option<Order>,
    /// What came of the last order, or what is wrong.
    pub said: Option<String>,
    /// Why idle memory cannot be seen.
    pub blind: Option<String>,
    /// The service, and pages a second that came back to its classes.
    pub service: Option<Status>,
    pub refaults: f64,
    pub replay: bool,
}

/// A line of the table: a row, or in a tree what is above some.
#[derive(Clone, Debug, Default, PartialEq)]
struct Entry {
    depth: usize,
    name: String,
    memory: u64,
    cold: Option<u64>,
    saved: u64,
    could: Option<u64>,
    /// Cold bytes and what they shrink to, for a mean.
    shrinks: Option<(f64, f64)>,
    came_back: f64,
    limited_by: Option<String>,
}

impl Entry {
    fn of(look: &Look, row: &Row) -> Entry {
        let weight = row.idle.one_minute_bytes.unwrap_or(row.watched_bytes).max(1) as f64;
        Entry {
            depth: 0,
            name: title(row),
            memory: row.memory_bytes,
            cold: row.idle.one_minute_bytes,
            saved: look.saved_of(row),
            could: row.gives_back_bytes,
            shrinks: row.compressed_share.map(|share| (weight, weight * share)),
            came_back: row.came_back_bytes_per_second,
            limited_by: row.limited_by.clone(),
        }
    }

    fn add(&mut self, other: &Entry) {
        let some = |one: Option<u64>, two: Option<u64>| one.map_or(two, |one| Some(one + two.unwrap_or(0)));
        self.memory += other.memory;
        self.cold = some(self.cold, other.cold);
        self.saved += other.saved;
        self.could = some(self.could, other.could);
        self.shrinks = match (self.shrinks, other.shrinks) {
            (Some((all, left)), Some((more, left_more))) => Some((all + more, left + left_more)),
            (one, two) => one.or(two),
        };
        self.came_back += other.came_back;
    }

    fn key(&self, sort: Sort) -> (Reverse<u64>, Reverse<u64>, String) {
        let most = match sort {
            Sort::Could => self.could.map_or(0, |bytes| bytes + 1),
            Sort::Memory => self.memory,
            Sort::Cold => self.cold.map_or(0, |bytes| bytes + 1),
            Sort::Saved => self.saved,
            Sort::CameBack => self.came_back as u64,
            Sort::Name => 0,
        };
        let then = if sort == Sort::Name { 0 } else { self.memory };
        (Reverse(most), Reverse(then), self.name.clone())
    }
}

impl Board {
    /// Takes a new look in.
    pub(crate) fn push(&mut self, look: Look) {
        self.looks.push_back(look);
        while self.looks.len() > HISTORY {
            self.looks.pop_front();
            // Who looks at an old one keeps looking at it, as long as it is there.
            self.at = self.at.map(|at| at.saturating_sub(1));
        }
    }

    /// Goes back or forth in the history.
    pub(crate) fn scroll(&mut self, by: isize) {
        let last = self.looks.len().saturating_sub(1);
        let at = self.at.unwrap_or(last).saturating_add_signed(by).min(last);
        self.at = (at < last).then_some(at);
    }

    /// How many lines the table has.
    pub(crate) fn lines(&self) -> usize {
        self.look().map_or(0, |look| self.entries(look).len())
    }

    fn look(&self) -> Option<&Look> {
        self.looks.get(self.at.unwrap_or(self.looks.len().saturating_sub(1)))
    }

    fn shown<'a>(&self, look: &'a Look) -> Vec<&'a Row> {
        let wanted = self.filter.to_lowercase();
        let has = |row: &&Row| {
            let cgroup = row.cgroup.as_deref().unwrap_or("");
            wanted.is_empty()
                || [title(row).as_str(), row.program.as_str(), cgroup]
                    .iter()
                    .any(|text| text.to_lowercase().contains(&wanted))
        };
        look.rows.iter().filter(has).collect()
    }

    fn entries(&self, look: &Look) -> Vec<Entry> {
        let rows = self.shown(look);
        if self.tree {
            return tree(look, &rows, self.sort);
        }
        let mut entries: Vec<Entry> = rows.into_iter().map(|row| Entry::of(look, row)).collect();
        entries.sort_by_cached_key(|entry| entry.key(self.sort));
        entries
    }
}

/// The rows below the cgroups that they are in. What is in none stands below `no cgroup`.
fn tree(look: &Look, rows: &[&Row], sort: Sort) -> Vec<Entry> {
    /// Cgroups by path, each with its sum; rows by the path of their own.
    #[derive(Default)]
    struct Node {
        sum: Entry,
        below: BTreeMap<String, Node>,
        rows: Vec<Entry>,
    }
    let mut top = Node::default();
    for row in rows {
        let entry = Entry::of(look, row);
        let path = row.cgroup.clone().unwrap_or_else(|| "/no cgroup/".to_owned());
        let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        // The last part is the row itself.
        if row.kind != Kind::Program {
            parts.pop();
        }
        let mut node = &mut top;
        for part in parts {
            node = node.below.entry(part.to_owned()).or_default();
            node.sum.name = format!("{part}/");
            node.sum.add(&entry);
        }
        node.rows.push(entry);
    }
    fn lay_out(node: Node, depth: usize, sort: Sort, into: &mut Vec<Entry>) {
        let mut parts: Vec<(Entry, Option<Node>)> = node.rows.into_iter().map(|entry| (entry, None)).collect();
        parts.extend(node.below.into_values().map(|node| (node.sum.clone(), Some(node))));
        parts.sort_by_cached_key(|(entry, _)| entry.key(sort));
        for (entry, below) in parts {
            into.push(Entry { depth, ..entry });
            if let Some(below) = below {
                lay_out(below, depth + 1, sort, into);
            }
        }
    }
    let mut entries = Vec::new();
    lay_out(top, 0, sort, &mut entries);
    entries
}

/// Draws it.
pub(crate) fn draw(frame: &mut Frame<'_>, board: &Board) {
    let classes = board.service.as_ref().map_or(0, |status| status.classes.len().clamp(1, MOST_CLASSES) as u16 + 1);
    let [head, sums, class_area, programs, detail, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(5),
        Constraint::Length(classes),
        Constraint::Min(3),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let Some(look) = board.look() else {
        frame.render_widget(Paragraph::new("looking at the machine for the first time ...").style(dim()), frame.area());
        return;
    };
    frame.render_widget(Paragraph::new(headline(board, look)).style(strong()), head);
    frame.render_widget(Paragraph::new(summary(board, look)), sums);
    if let Some(status) = &board.service {
        draw_classes(frame, status, class_area);
    }
    let entries = board.entries(look);
    draw_entries(frame, board, &entries, programs);
    frame.render_widget(Paragraph::new(detail_of(board, &entries)), detail);
    frame.render_widget(Paragraph::new(keys(board)).style(dim()), foot);
    if let Some(order) = board.asks {
        draw_question(frame, order);
    }
}

fn dim() -> Style {
    Style::default().add_modifier(Modifier::DIM)
}

fn strong() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

fn headline(board: &Board, look: &Look) -> String {
    let time = jiff::Timestamp::from_millisecond((look.time * 1e3) as i64);
    let time = time.map_or_else(|_| String::new(), |time| time.strftime("%H:%M:%S").to_string());
    let moment = match (board.at, board.replay) {
        (Some(at), _) => format!("{time} UTC, {} of {}: right and End go on", at + 1, board.looks.len()),
        (None, true) => format!("{time} UTC, replay, the last of {}", board.looks.len()),
        (None, false) => format!("{time} UTC"),
    };
    let what = if look.in_container { "container" } else { "machine" };
    format!(
        "terrace top, {what}: {} of {} available   {moment}",
        short(look.memory.available_bytes),
        short(look.memory.total_bytes)
    )
}

/// The five questions of somebody who looks for the first time, each answered in a line.
fn summary(board: &Board, look: &Look) -> Vec<Line<'static>> {
    let memory = &look.memory;
    let could = look.gives_back_bytes();
    let line = |name: &'static str, text: String| {
        Line::from(vec![Span::styled(format!("{name:<10}"), dim()), Span::raw(text)])
    };
    let seen = look.rows.iter().any(|row| row.gives_back_bytes.is_some());
    let more = match (&board.blind, seen) {
        (Some(_), _) => "how much could be is not seen, see below".to_owned(),
        (None, false) => "what could be is known in a minute".to_owned(),
        (None, true) => format!("{} more could be", short(could)),
    };
    let ratio = if memory.swap_takes_bytes > 0 {
        let ratio = memory.swapped_bytes as f64 / memory.swap_takes_bytes as f64;
        format!("{} : 1 in swap; ", significant(ratio))
    } else {
        "nothing is in swap; ".to_owned()
    };
    let cold = look.rows.iter().filter_map(|row| Entry::of(look, row).shrinks);
    let (all, left) = cold.fold((0.0, 0.0), |(all, left), (more, left_more)| (all + more, left + left_more));
    let sampled = if all > 0.0 {
        format!("cold memory would be {} : 1 (a sample)", significant(all / left.max(1.0)))
    } else {
        "no sample yet".to_owned()
    };
    let saved = if memory.swapped_bytes > 0 {
        let [swapped, takes] = [memory.swapped_bytes, memory.swap_takes_bytes].map(short);
        format!("{} now: {swapped} in swap take {takes}; {more}", short(look.saved_bytes()))
    } else {
        format!("nothing now; {more}")
    };
    vec![
        line("saved", saved),
        line("ratio", ratio + &sampled),
        line("cost", cost(board, look)),
        line("came back", came_back(board, look)),
        line("limited", limited(board, look)),
    ]
}

fn cost(board: &Board, look: &Look) -> String {
    match board.service.as_ref() {
        Some(status) => {
            let worst = status.classes.iter().max_by(|one, two| one.stall_share.total_cmp(&two.stall_share));
            let worst = worst
                .map_or_else(String::new, |class| format!("programs lose {} at most; ", percent(class.stall_share)));
            let watching = percent(look.cost.cpu_share);
            format!("{worst}terraced {}, survey {watching} of a core", percent(status.own.cpu_share))
        }
        None => {
            format!("survey {} of a core; the service does not run: nothing is moved", percent(look.cost.cpu_share))
        }
    }
}

fn came_back(board: &Board, look: &Look) -> String {
    let bytes: f64 = look.rows.iter().map(|row| row.came_back_bytes_per_second).sum();
    let used = format!("{}/s of idle memory used again", short(bytes as u64));
    match board.service {
        Some(_) => format!("{} pages a second from swap; {used}", significant(board.refaults)),
        None => used,
    }
}

fn limited(board: &Board, look: &Look) -> String {
    let classes = board.service.iter().flat_map(|status| &status.classes);
    let classes = classes.filter_map(|class| Some(format!("class {} ({})", class.name, limit(class)?)));
    let rows = look.rows.iter().filter_map(|row| Some(format!("{} ({})", title(row), row.limited_by.as_ref()?)));
    let all: Vec<String> = classes.chain(rows).collect();
    if all.is_empty() {
        return "nobody".to_owned();
    }
    /// What fits into a line of 80.
    const ROOM: usize = 62;
    let count = if all.len() > 1 { format!("{}: ", all.len()) } else { String::new() };
    let mut text = visible(&all[0]).into_owned();
    for (at, one) in all.iter().enumerate().skip(1) {
        if text.chars().count() + one.chars().count() > ROOM {
            text.push_str(&format!("; and {} more", all.len() - at));
            break;
        }
        text.push_str(&format!("; {}", visible(one)));
    }
    count + &text
}

fn draw_classes(frame: &mut Frame<'_>, status: &Status, area: Rect) {
    let head = ["class", "fast", "slow", "lost", "came back", "state"];
    // On 80 columns the state has room for "stopped because pages came back".
    let widths = [16, 6, 6, 6, 9].map(Constraint::Length).into_iter().chain([Constraint::Fill(1)]);
    let of = |class: &Class| {
        TableRow::new([
            visible(&class.name).into_owned(),
            short(class.fast_bytes),
            short(class.slow_bytes),
            percent(class.stall_share),
            class.refaults.to_string(),
            limit(class).unwrap_or(&class.state).to_owned(),
        ])
    };
    let mut rows: Vec<TableRow<'_>> = status.classes.iter().take(MOST_CLASSES).map(of).collect();
    if let Some(more) = status.classes.len().checked_sub(MOST_CLASSES).filter(|more| *more > 0) {
        rows.pop();
        rows.push(TableRow::new([format!("and {} more: Tab", more + 1)]));
    }
    if status.classes.is_empty() {
        rows.push(TableRow::new(["no class".to_owned()]));
    }
    frame.render_widget(Table::new(rows, widths).header(TableRow::new(head).style(dim())), area);
}

fn draw_entries(frame: &mut Frame<'_>, board: &Board, entries: &[Entry], area: Rect) {
    let mark = |name: &str| if name == board.sort.word() { format!("{name}\u{2193}") } else { name.to_owned() };
    let what = if board.sort == Sort::Name { "what\u{2193}" } else { "what" };
    let head = [
        what.to_owned(),
        mark("memory"),
        mark("cold"),
        mark("saved"),
        mark("could"),
        mark("back/s"),
        "ratio".to_owned(),
    ];
    let head = head.into_iter().chain(["limited by".to_owned()]);
    let widths = [NAME, 7, 6, 6, 6, 7, 5].map(|width| Constraint::Length(width as u16)).into_iter();
    let widths = widths.chain([Constraint::Fill(1)]);
    let rest = usize::from(area.width).saturating_sub(NAME + 44);
    let room = usize::from(area.height.saturating_sub(1)).max(1);
    // The chosen line stays in sight.
    let first = board.chosen.saturating_sub(room - 1).min(entries.len().saturating_sub(1));
    let rows = entries.iter().enumerate().skip(first).take(room).map(|(at, entry)| {
        let some = |amount: Option<u64>| amount.map_or_else(|| "-".to_owned(), short);
        let name = format!(
            "{}{}{}",
            if at == board.chosen { "\u{203a}" } else { " " },
            "  ".repeat(entry.depth),
            visible(&entry.name)
        );
        let ratio = entry.shrinks.map_or_else(
            || "-".to_owned(),
            |(all, left)| if left * 99.0 < all { ">99".to_owned() } else { significant(all / left) },
        );
        let cells = [
            shortened(&name, NAME),
            short(entry.memory),
            some(entry.cold),
            short(entry.saved),
            some(entry.could),
            short(entry.came_back as u64),
            ratio,
            shortened(entry.limited_by.as_deref().unwrap_or(""), rest),
        ];
        let row = TableRow::new(cells.map(Cell::from));
        if at == board.chosen { row.style(strong()) } else { row }
    });
    frame.render_widget(Table::new(rows, widths).header(TableRow::new(head).style(dim())), area);
}

/// What does not fit into the chosen line, or what happened.
fn detail_of(board: &Board, entries: &[Entry]) -> String {
    if board.typing {
        return format!("filter: {}_", visible(&board.filter));
    }
    if let Some(said) = &board.said {
        return visible(said).into_owned();
    }
    if let Some(why) = &board.blind {
        return format!("idle memory is not seen: {}", visible(why));
    }
    let filter = if board.filter.is_empty() { String::new() } else { format!("[{}] ", visible(&board.filter)) };
    match entries.get(board.chosen.min(entries.len().saturating_sub(1))) {
        None if filter.is_empty() => "no program has memory here".to_owned(),
        None => format!("{filter}nothing has that in its name"),
        Some(entry) => {
            let limit = entry
                .limited_by
                .as_ref()
                .map_or_else(|| "nothing limits it".to_owned(), |limit| format!("limited: {limit}"));
            format!("{filter}{}: {limit}; within {} of its time", visible(&entry.name), percent(MAX_SLOWDOWN))
        }
    }
}

fn keys(board: &Board) -> String {
    let service = if board.service.is_some() { " p pause  d drain  r resume  Tab classes" } else { "" };
    let tree = if board.tree { "list" } else { "tree" };
    format!("q quit  s sort  / filter  t {tree}  \u{2190}\u{2192} history {service}")
}

fn draw_question(frame: &mut Frame<'_>, order: Order) {
    let area = frame.area();
    let width = area.width.min(76);
    let height = area.height.min(4);
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let lines = vec![Line::from(order.question()), Line::from("y: yes   any other key: no")];
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered()), place);
}

/// An amount in five characters: `412M`, `1.2G`.
pub(crate) fn short(bytes: u64) -> String {
    let (digits, unit) = split(bytes);
    digits + unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::survey::tests::example;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(board: &Board, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, board)).unwrap();
        terminal.backend().to_string()
    }

    fn board() -> Board {
        let mut board = Board::default();
        let mut look = example();
        look.rows[0].swapped_bytes = 400 << 20;
        board.push(look);
        board
    }

    fn service() -> Status {
        let class = |name: &str| Class {
            name: name.to_owned(),
            state: "running".to_owned(),
            fast_bytes: 900 << 20,
            slow_bytes: 300 << 20,
            stall_share: 0.004,
            refaults: 1234,
            ..Class::default()
        };
        let mut status = Status { classes: vec![class("web"), class("batch")], ..Status::default() };
        status.classes[1].page_outs = "stopped_came_back".to_owned();
        status.own.cpu_share = 0.006;
        status
    }

    #[test]
    fn the_machine_at_80_by_24() {
        insta::assert_snapshot!("top-machine", screen(&board(), 80, 24));
    }

    #[test]
    fn the_machine_with_the_service_at_80_by_24() {
        let mut board = Board { service: Some(service()), refaults: 12.0, ..board() };
        insta::assert_snapshot!("top-service", screen(&board, 80, 24));
        board.asks = Some(Order::Drain);
        let shown = screen(&board, 80, 24);
        assert!(shown.contains("Drain the service?") && shown.contains("y: yes"), "{shown}");
    }

    #[test]
    fn a_tree_adds_up_what_is_below_and_a_filter_leaves_the_rest_out() {
        let mut board = Board { tree: true, ..board() };
        insta::assert_snapshot!("top-tree", screen(&board, 80, 24));
        board.tree = false;
        board.filter = "REDIS.".to_owned();
        let shown = screen(&board, 80, 24);
        assert!(shown.contains("redis.service") && !shown.contains("postgres"), "{shown}");
        board.filter = "no such".to_owned();
        assert!(screen(&board, 80, 24).contains("nothing has that in its name"));
    }

    #[test]
    fn history_is_scrolled_and_kept_in_bounds() {
        let mut board = board();
        for number in 0..HISTORY + 5 {
            let mut look = example();
            look.memory.available_bytes = number as u64;
            board.push(look);
        }
        assert_eq!(board.looks.len(), HISTORY);
        board.scroll(-1);
        assert_eq!(board.at, Some(HISTORY - 2));
        assert!(screen(&board, 80, 24).contains("719 of 720"));
        board.push(example());
        assert_eq!(board.at, Some(HISTORY - 3), "the same look");
        board.scroll(-(HISTORY as isize) * 2);
        assert_eq!(board.at, Some(0));
        board.scroll(HISTORY as isize * 2);
        assert_eq!(board.at, None, "live again");
    }

    #[test]
    fn rows_are_sorted_by_any_column() {
        let mut board = board();
        let first = |board: &Board| board.entries(board.look().unwrap())[0].name.clone();
        let mut firsts = Vec::new();
        for _ in 0..Sort::ALL.len() {
            firsts.push((board.sort.word(), first(&board)));
            board.sort = board.sort.next();
        }
        assert_eq!(board.sort, Sort::Could);
        assert_eq!(firsts[0].1, "redis.service");
        assert_eq!(firsts[1], ("memory", "sessions of ann".to_owned()));
        assert_eq!(firsts[5], ("name", "cgroup /jobs.slice".to_owned()));
    }

    #[test]
    fn any_size_and_any_name_is_drawn() {
        let mut odd = board();
        odd.looks[0].rows[0].name = "\u{1b}[2J".repeat(40);
        odd.chosen = 400;
        for (width, height) in [(1, 1), (20, 8), (80, 24), (300, 100)] {
            let shown = screen(&odd, width, height);
            assert!(!shown.contains('\u{1b}'));
            screen(&Board { service: Some(service()), asks: Some(Order::Pause), ..board() }, width, height);
            screen(&Board::default(), width, height);
        }
        let blind = Board { blind: Some("it needs root".to_owned()), ..board() };
        assert!(screen(&blind, 80, 24).contains("it needs root"));
        assert_eq!(
            [0, 999, 1023, 5 << 20, 412 << 20, 1234 << 20].map(short),
            ["0B", "999B", "1.0K", "5.0M", "412M", "1.2G"]
        );
    }
}
