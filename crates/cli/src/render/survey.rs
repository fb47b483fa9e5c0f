//! A look at the machine as text and as a page.
//!
//! In: a [`Look`]. Out: text no wider than the screen, or HTML. Must not: leave out what could not be seen, or a row's limit.

use std::fmt::Write;

use terrace_common::figures::{bytes, counted, percent, seconds};
use terrace_common::tell::wrapped;
use terrace_linux::survey::MAX_SLOWDOWN;
use terrace_linux::survey::view::{Idle, Kind, Look, Row};
use terrace_report::html;

use super::{Screen, listed};

const HEADINGS: [&str; 10] = [
    "what",
    "memory",
    "idle 1 min",
    "2 min",
    "5 min",
    "shrinks to",
    "file cache",
    "unused",
    "gives back",
    "limited by",
];
/// Columns of the text; the limit stands in a line of its own.
const COLUMNS: usize = 9;

/// The text of `terrace survey`: the sum first, the lines to type last.
pub(crate) fn text(look: &Look, most: usize, screen: &Screen) -> String {
    let mut text = String::new();
    for line in wrapped(&sum(look), screen.width).into_iter().chain(wrapped(&machine(look), screen.width)) {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "Watched for {}, moving nothing", seconds(look.watched_seconds.round()));
    text.push_str(&table(&look.rows[..most.min(look.rows.len())], screen));
    let left = &look.rows[most.min(look.rows.len())..];
    if !left.is_empty() {
        let back: u64 = left.iter().filter_map(|row| row.gives_back_bytes).sum();
        let _ = writeln!(
            text,
            "and {} more, which give back {}; -n {} shows all",
            counted(left.len() as u64, "row", "rows"),
            bytes(back),
            look.rows.len()
        );
    }
    text.push_str(&listed("Not looked at", look.unseen.iter().map(unseen), screen.width));
    text.push_str(&listed("Notes", look.notes.iter().cloned().chain([cost(look)]), screen.width));
    if let Some((row, now, for_good)) = first(look) {
        let _ = write!(
            text,
            "\nTo have that of {} ({}) back, now and as long as it runs:\n  {now}\n",
            title(row),
            gives(row)
        );
        let _ = write!(text, "or for good, by the service:\n  {for_good}\n");
    }
    text
}

/// The first line.
pub(crate) fn sum(look: &Look) -> String {
    let memory = look.memory_bytes();
    let rows = counted(look.rows.len() as u64, "row", "rows");
    if look.rows.iter().all(|row| row.gives_back_bytes.is_none()) {
        return format!("{rows} hold {}; how much of it is idle was not seen", bytes(memory));
    }
    let back = look.gives_back_bytes();
    format!(
        "Terrace would give back {} of {} ({}), with each program within {} of its time",
        bytes(back),
        bytes(memory),
        percent(back as f64 / memory.max(1) as f64),
        percent(MAX_SLOWDOWN),
    )
}

/// The second line: idle memory and the machine's.
fn machine(look: &Look) -> String {
    let idle = |of: fn(&Idle) -> Option<u64>| look.idle_bytes(of).map_or_else(|| "not known yet".to_owned(), bytes);
    let memory = &look.memory;
    format!(
        "Idle for 1 min: {}, 2 min: {}, 5 min: {}; file cache {}, of it {} not used lately; {} of {} available",
        idle(|idle| idle.one_minute_bytes),
        idle(|idle| idle.two_minutes_bytes),
        idle(|idle| idle.five_minutes_bytes),
        bytes(memory.file_active_bytes + memory.file_inactive_bytes),
        bytes(memory.file_inactive_bytes),
        bytes(memory.available_bytes),
        bytes(memory.total_bytes),
    )
}

/// What a row is called.
pub(crate) fn title(row: &Row) -> String {
    match row.kind {
        Kind::Service => row.name.clone(),
        Kind::Program => match row.processes {
            1 => format!("{} {}", row.name, row.pids.first().copied().unwrap_or_default()),
            many => format!("{} {} ({many} processes)", row.name, row.pids.first().copied().unwrap_or_default()),
        },
        Kind::Container => format!("container {} ({})", row.name, row.program),
        Kind::Session => format!("sessions of {}", row.name),
        Kind::Cgroup => format!("cgroup {}", row.name),
    }
}

fn gives(row: &Row) -> String {
    match (row.gives_back_bytes, row.gives_back_share) {
        (Some(back), Some(share)) => format!("{}, {}", brief(back), percent(share)),
        _ => "-".to_owned(),
    }
}

/// How small its cold memory would be.
pub(crate) fn shrinks(row: &Row) -> String {
    row.compressed_share.map_or_else(|| "-".to_owned(), percent)
}

/// The rows, a line each, in columns that end where their figures end: a table with rules would take three times the height.
fn table(rows: &[Row], screen: &Screen) -> String {
    let heads = HEADINGS[..COLUMNS].iter().map(|head| (*head).to_owned()).collect::<Vec<_>>();
    let lines: Vec<Vec<String>> =
        std::iter::once(heads).chain(rows.iter().map(|row| cells(row)[..COLUMNS].to_vec())).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (1..COLUMNS).map(width).collect();
    let figures = widths.iter().map(|width| width + 2).sum::<usize>();
    let name = width(0).min(screen.width.saturating_sub(figures).max(12));
    let mut text = "\n".to_owned();
    // A narrow screen has less of the names, and then cuts lines.
    for (at, line) in lines.iter().enumerate() {
        let cut = shortened(&line[0], name);
        let figures: String = line[1..].iter().zip(&widths).map(|(cell, width)| format!("  {cell:>width$}")).collect();
        let _ = writeln!(text, "{cut:<name$}{figures}");
        if let Some(limit) = at.checked_sub(1).and_then(|row| rows[row].limited_by.as_deref()) {
            let _ = writeln!(text, "    limited: {}", shortened(limit, screen.width.saturating_sub(13).max(20)));
        }
    }
    text
}

/// An amount in two or three digits.
fn brief(amount: u64) -> String {
    let (digits, unit) = split(amount);
    if unit == "B" { format!("{digits} B") } else { format!("{digits} {unit}iB") }
}

/// An amount in two or three digits, and the letter of its unit.
pub(crate) fn split(amount: u64) -> (String, &'static str) {
    const UNITS: [&str; 5] = ["B", "K", "M", "G", "T"];
    let (mut size, mut unit) = (amount as f64, 0);
    while size >= 999.5 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = if size < 9.95 && unit > 0 { format!("{size:.1}") } else { format!("{size:.0}") };
    (digits, UNITS[unit])
}

/// A text of at most `width` characters; where some are left out, its last one says so.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('~');
    short
}

fn cells(row: &Row) -> [String; 10] {
    let some = |amount: Option<u64>| amount.map_or_else(|| "-".to_owned(), brief);
    let cache = row.file_active_bytes.zip(row.file_inactive_bytes).map(|(active, inactive)| active + inactive);
    [
        title(row),
        brief(row.memory_bytes),
        some(row.idle.one_minute_bytes),
        some(row.idle.two_minutes_bytes),
        some(row.idle.five_minutes_bytes),
        shrinks(row),
        some(cache),
        some(row.file_inactive_bytes),
        gives(row),
        row.limited_by.clone().unwrap_or_default(),
    ]
}

fn unseen(one: &terrace_linux::survey::view::Unseen) -> String {
    format!("{}, {}: {}", one.what, bytes(one.bytes), one.why)
}

fn cost(look: &Look) -> String {
    let cost = &look.cost;
    format!(
        "looking took {} ({} of one core), and the programs about {}; {} of 2 MiB stood for all",
        seconds(cost.cpu_seconds),
        percent(cost.cpu_share),
        seconds(cost.program_seconds),
        counted(cost.blocks, "block", "blocks"),
    )
}

/// The row that gives back most, with the line that has it back now, and the one that has it for good.
fn first(look: &Look) -> Option<(&Row, String, String)> {
    let row = look.rows.iter().find(|row| row.gives_back_bytes.is_some_and(|back| back > 0))?;
    let now = match (row.kind, &row.cgroup, row.pids.first()) {
        (Kind::Service, Some(_), _) => format!("sudo terrace attach --unit {}", shell(&row.name)),
        (_, Some(cgroup), _) => format!("sudo terrace attach --cgroup {}", shell(cgroup)),
        (_, None, Some(pid)) => format!("sudo terrace attach --pid {pid}"),
        (_, None, None) => return None,
    };
    let selector = match (&row.cgroup, &row.executable) {
        (Some(cgroup), _) => format!("cgroup = {}", toml_text(&pattern(cgroup))),
        // A script's executable is its interpreter's, so that the name says which is meant.
        (None, Some(exe)) => {
            format!("name = {}, exe = {}", toml_text(&pattern(&row.name)), toml_text(&pattern(exe)))
        }
        (None, None) => format!("name = {}", toml_text(&pattern(&row.name))),
    };
    let class = class_name(&row.name);
    let lines = [format!("[class.{class}]"), format!("match = [{{ {selector} }}]")].map(|line| shell(&line)).join(" ");
    let for_good = format!(
        "printf '%s\\n' {lines} | sudo tee /etc/terrace/conf.d/{class}.toml && sudo systemctl reload-or-restart terraced"
    );
    Some((row, now, for_good))
}

/// A word as a shell takes it.
fn shell(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:@%+,=".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// A text of TOML.
fn toml_text(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

/// A pattern of a selector that means this text alone.
fn pattern(text: &str) -> String {
    text.chars().fold(String::new(), |mut pattern, letter| {
        match letter {
            '?' | '*' | '[' | ']' => pattern.extend(['[', letter, ']']),
            other => pattern.push(other),
        }
        pattern
    })
}

/// A name that a class may have, after that of a row.
fn class_name(name: &str) -> String {
    let name = name.trim_end_matches(".service");
    let plain: String = name
        .chars()
        .map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' })
        .collect();
    match plain.trim_matches('-') {
        "" => "first".to_owned(),
        plain => plain.chars().take(32).collect(),
    }
}

/// The page of `--report`.
pub(crate) fn page(look: &Look) -> String {
    let rows: Vec<Vec<String>> = look.rows.iter().map(|row| cells(row).to_vec()).collect();
    let memory = &look.memory;
    let facts = [
        ("Memory", format!("{}, {} available", bytes(memory.total_bytes), bytes(memory.available_bytes))),
        ("File cache in use", bytes(memory.file_active_bytes)),
        ("File cache not used lately", bytes(memory.file_inactive_bytes)),
        ("In swap", bytes(memory.swapped_bytes)),
        ("Watched for", seconds(look.watched_seconds.round())),
    ];
    let lines: Vec<String> = look.unseen.iter().map(unseen).collect();
    let notes: Vec<String> = look.notes.iter().cloned().chain([cost(look)]).collect();
    let mut body = html::data_table("What each would give back", &HEADINGS, rows);
    body += &html::section("machine", "The machine", &html::fact_table("Its memory", &facts));
    body += &html::section("unseen", "Not looked at", &html::list(&lines, "Everything was looked at."));
    body += &html::section("notes", "Notes", &html::list(&notes, ""));
    if let Some((row, now, for_good)) = first(look) {
        let lines = [now, for_good];
        body += &html::section("do", &format!("To have that of {} back", title(row)), &html::list(&lines, ""));
    }
    let where_from = if look.in_container { "this container" } else { "this machine" };
    let footer = "Estimated from a sample of what was watched; nothing was moved. report.json has every figure.";
    html::page_of("survey", where_from, &sum(look), &body, footer)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use terrace_linux::survey::view::{Cost, Machine, Unseen};

    const MIB: u64 = 1 << 20;

    /// A look with a row of each kind.
    pub(crate) fn example() -> Look {
        let row = |kind, name: &str, memory: u64, back: Option<u64>| Row {
            kind,
            name: name.to_owned(),
            program: "redis-server".to_owned(),
            executable: Some("/usr/bin/redis-server".to_owned()),
            cgroup: (kind != Kind::Program).then(|| format!("/system.slice/{name}")),
            pids: vec![4711],
            processes: 1,
            memory_bytes: memory * MIB,
            anonymous_bytes: memory * MIB,
            idle: Idle {
                one_minute_bytes: Some(memory * MIB / 2),
                two_minutes_bytes: Some(memory * MIB / 3),
                five_minutes_bytes: None,
            },
            compressed_share: back.map(|_| 0.31),
            file_active_bytes: (kind != Kind::Program).then_some(3 * MIB),
            file_inactive_bytes: (kind != Kind::Program).then_some(9 * MIB),
            gives_back_bytes: back.map(|back| back * MIB),
            gives_back_share: back.map(|back| back as f64 / memory as f64),
            came_back_bytes_per_second: 8192.0,
            ..Row::default()
        };
        Look {
            schema_version: 1,
            time: 1_795_852_931.0,
            watched_seconds: 120.4,
            memory: Machine {
                total_bytes: 24 << 30,
                available_bytes: 3 << 30,
                file_active_bytes: 512 * MIB,
                file_inactive_bytes: 1024 * MIB,
                swapped_bytes: 700 * MIB,
                swap_takes_bytes: 188 * MIB,
            },
            rows: vec![
                row(Kind::Service, "redis.service", 600, Some(412)),
                row(Kind::Container, "0123456789ab", 300, Some(120)),
                Row {
                    limited_by: Some("some of it does not compress".to_owned()),
                    ..row(Kind::Session, "ann", 900, Some(30))
                },
                row(Kind::Program, "postgres", 80, Some(0)),
                row(Kind::Cgroup, "/jobs.slice", 20, None),
            ],
            unseen: vec![Unseen {
                what: "2 processes".to_owned(),
                bytes: 70 * MIB,
                why: "it belongs to someone else: root may look, or CAP_SYS_PTRACE".to_owned(),
            }],
            cost: Cost { cpu_seconds: 0.97, cpu_share: 0.0081, program_seconds: 0.21, blocks: 950 },
            notes: vec![
                "the memory controller is on cgroup version 1: file cache is shown, and cannot be given back"
                    .to_owned(),
            ],
            ..Look::default()
        }
    }

    fn screen(width: usize) -> Screen {
        Screen { width, unicode: true }
    }

    #[test]
    fn the_sum_comes_first_and_what_to_type_last() {
        let text = text(&example(), 20, &screen(120));
        insta::assert_snapshot!("survey", text);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("562.0 MiB of 1.9 GiB"), "{}", lines[0]);
        assert!(lines[lines.len() - 3].ends_with("terrace attach --unit redis.service"), "{text}");
        assert!(lines[lines.len() - 1].contains("conf.d/redis.toml"), "{text}");
    }

    #[test]
    fn rows_that_are_left_out_are_counted_and_lines_fit() {
        let text = text(&example(), 2, &screen(100));
        assert!(text.contains("and 3 rows more, which give back 30.0 MiB; -n 5 shows all"), "{text}");
        let table: Vec<&str> =
            text.lines().skip_while(|line| !line.is_empty()).take_while(|line| !line.starts_with("and ")).collect();
        assert!(table.iter().all(|line| line.chars().count() <= 100), "{text}");
        assert_eq!(shortened("abcdef", 4), "abc~");
    }

    #[test]
    fn without_sight_of_idle_memory_it_says_so() {
        let mut look = example();
        look.rows.iter_mut().for_each(|row| row.gives_back_bytes = None);
        let text = text(&look, 20, &screen(100));
        assert!(text.starts_with("5 rows hold 1.9 GiB; how much of it is idle was not seen"), "{text}");
        assert!(!text.contains("terrace attach --"), "{text}");
    }

    #[test]
    fn every_field_stands_on_the_page_of_the_reference() {
        fn fields(value: &serde_json::Value, prefix: &str, found: &mut Vec<String>) {
            for (key, inner) in value.as_object().into_iter().flatten() {
                match inner.as_array().filter(|list| list.first().is_some_and(serde_json::Value::is_object)) {
                    Some(list) => {
                        found.push(format!("{prefix}{key}[]"));
                        fields(&list[0], &format!("{prefix}{key}[]."), found);
                    }
                    None => {
                        found.push(format!("{prefix}{key}"));
                        fields(inner, &format!("{prefix}{key}."), found);
                    }
                }
            }
        }
        let mut real = Vec::new();
        fields(&serde_json::to_value(example()).unwrap(), "", &mut real);
        let page = include_str!("../../../../docs/reference/survey.md");
        let mut told: Vec<String> =
            page.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned())).collect();
        real.sort();
        told.sort();
        assert_eq!(real, told);
    }

    #[test]
    fn names_from_outside_stay_words() {
        let mut look = example();
        look.rows[0] = Row {
            kind: Kind::Cgroup,
            name: "/a b'; rm -rf [x]*".to_owned(),
            cgroup: Some("/a b'; rm -rf [x]*".to_owned()),
            ..look.rows[0].clone()
        };
        let (_, now, for_good) = first(&look).unwrap();
        assert_eq!(now, r"sudo terrace attach --cgroup '/a b'\''; rm -rf [x]*'");
        assert!(for_good.contains(r#"cgroup = "/a b'\''; rm -rf [[]x[]][*]""#), "{for_good}");
        assert!(for_good.contains("/etc/terrace/conf.d/a-b---rm--rf--x.toml"), "{for_good}");
        look.rows[0].name = "<script>".to_owned();
        assert!(!page(&look).contains("<script>"));
    }
}
