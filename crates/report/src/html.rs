//! The report as one page that needs nothing else: no network, no script, no file beside it.
//!
//! In: a [`Report`]. Out: HTML. Must not: let a text from outside (a command line, a note) become markup.

use std::collections::BTreeMap;

use super::markup::escape;
use super::plots::{self, Figure};
use super::{Report, text, units};

/// The page around the parts.
const TEMPLATE: &str = include_str!("template.html");

/// The whole page.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn page(report: &Report) -> anyhow::Result<String> {
    let figures: String = plots::figures(report)?.iter().map(figure).collect();
    let moved = &report.moved_pages;
    let tables = [
        count_table("Pages moved, by reason", "reason", "pages of 4 KiB", &moved.moved_by_reason),
        count_table(
            "Pages that should have moved and did not, by cause",
            "cause",
            "pages of 4 KiB",
            &moved.failed_by_cause,
        ),
        count_table(
            "MoveRequests of the policy that were not granted, by reason",
            "reason",
            "pages of 4 KiB",
            &report.rejected_pages,
        ),
    ]
    .concat();
    let moves = match (text::is_observation(report), tables.is_empty()) {
        (true, true) => String::new(),
        (false, true) => section("moves", "Moves in detail", "<p>Nothing moved, and nothing failed to move.</p>\n"),
        _ => section("moves", "Moves in detail", &tables),
    };
    let parts = [
        ("title", escape(&title(report))),
        ("command", escape(&command(report))),
        ("headline", escape(&text::headline(report))),
        ("dark_inks", plots::css()),
        ("facts", facts(report)),
        ("tiers", tiers(report)),
        ("figures", figures),
        ("timeline", timeline(report)),
        ("moves", moves),
        ("tracker", list(&report.tracker_reasons, "No reasons were recorded.")),
        ("notes", list(&report.notes, "Nothing out of the ordinary.")),
        ("schema_version", report.schema_version.to_string()),
    ];
    Ok(filled(TEMPLATE, &parts))
}

/// A page of parts of its own in the style of the template: `kind` says where its figures are from, `footer` what they are.
pub fn page_of(kind: &str, title: &str, headline: &str, body: &str, footer: &str) -> String {
    let style = TEMPLATE.split_once("<style>").and_then(|(_, rest)| rest.split_once("</style>"));
    let style = style.map_or("", |(style, _)| style).replace("{{dark_inks}}", &plots::css());
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Terrace: {title}</title>\n<style>{style}</style>\n</head>\n\
         <body>\n<header><h1>Terrace, {kind}: {title}</h1></header>\n<main>\n<p class=\"headline\">{headline}</p>\n{body}</main>\n\
         <footer>{footer}</footer>\n</body>\n</html>\n",
        title = escape(title),
        headline = escape(headline)
    )
}

/// A part of the page under a heading of its own.
pub fn section(id: &str, heading: &str, body: &str) -> String {
    format!(
        "<section aria-labelledby=\"{id}-heading\">\n<h2 id=\"{id}-heading\">{}</h2>\n{body}</section>\n",
        escape(heading)
    )
}

/// The template with its `{{names}}` replaced, once from left to right: inserted text is not scanned again.
fn filled(template: &str, parts: &[(&str, String)]) -> String {
    let mut page = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("the template closes its braces, which a test checks");
        let (_, part) = parts
            .iter()
            .find(|(known, _)| *known == name)
            .expect("the template names known parts, which a test checks");
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page.push_str(rest);
    page
}

fn title(report: &Report) -> String {
    match report.target.command.first() {
        Some(program) => program.rsplit('/').next().unwrap_or(program).to_owned(),
        None if report.target.everything => "all processes".to_owned(),
        None => report.target.cgroup.clone().unwrap_or_else(|| format!("process {}", report.target.pid)),
    }
}

fn command(report: &Report) -> String {
    if report.target.command.is_empty() {
        return match &report.target.cgroup {
            Some(cgroup) => format!("attached to the cgroup {cgroup}"),
            None if report.target.everything => "attached to all processes of this machine".to_owned(),
            None => format!("attached to process {}", report.target.pid),
        };
    }
    report.target.command.join(" ")
}

/// The row of what left of a cgroup's file cache.
const FILES: &str = "File cache of the cgroup";
/// Facts about moves, of which a run that only watched has none.
const OF_MOVES: [&str; 8] = [
    "Policy",
    "Goal for fast memory",
    "Proof by a measure of the program",
    "of it to moves",
    "of it to pages that came back",
    "One refault costs",
    "Longest call that moved pages",
    "Page-outs limited or stopped",
];

/// The facts, a table for each subject.
fn facts(report: &Report) -> String {
    let (target, moved) = (&report.target, &report.moved_pages);
    let settings: Vec<String> =
        report.policy_settings.iter().map(|(name, value)| format!("{name} = {value}")).collect();
    let program = [
        ("End", text::exit_of(target)),
        ("Time under Terrace", units::seconds(target.wall_seconds)),
        ("CPU time", units::seconds(target.cpu_seconds)),
        ("Highest resident memory", units::bytes(target.peak_rss_bytes)),
        ("Highest memory in all tiers", units::bytes(target.peak_footprint_bytes)),
        ("Processes", units::count(u64::from(target.processes))),
        (
            "Policy",
            if settings.is_empty() {
                report.policy.clone()
            } else {
                format!("{} ({})", report.policy, settings.join(", "))
            },
        ),
        ("Goal for fast memory", report.fast_goal.clone()),
    ];
    let gained = [
        ("Fast memory saved, mean", units::bytes(report.fast_bytes_saved_mean)),
        ("at the end", units::bytes(report.fast_bytes_saved_end)),
        ("at most", units::bytes(report.fast_bytes_saved_peak)),
        ("In swap by others' doing, mean", units::bytes(report.swapped_by_others_bytes_mean)),
        ("Left because it does not compress, at most", units::bytes(report.incompressible_bytes_peak)),
        ("Demoted", amount(moved.demoted)),
        ("of it pieces of huge pages", units::bytes(report.inside.left_bytes)),
        (FILES, text::files_text(report).unwrap_or_default()),
        ("Promoted ahead of use", amount(moved.promoted)),
        ("Did not move", amount(moved.failed)),
        ("Refaults (touched after leaving)", amount(report.refaults)),
        ("Demotions undone within 20 s", amount(report.ping_pong_pages)),
    ];
    // A run that only watched had nothing to gain, and no policy chose what leaves; a column of zeros would read as failure.
    let observed = text::is_observation(report);
    // What did not happen, and is no news if it did not.
    let rare = [
        ("In swap by others' doing, mean", report.swapped_by_others_bytes_mean),
        ("Left because it does not compress, at most", report.incompressible_bytes_peak),
        ("of it pieces of huge pages", report.inside.left_bytes),
        (FILES, u64::from(report.file_cache.as_ref().is_some_and(|files| files.seconds > 0.0))),
        ("Promoted ahead of use", moved.promoted),
        ("Did not move", moved.failed),
    ];
    let says_something = |(name, _): &&(&str, String)| {
        let never = rare.iter().any(|(rare, count)| rare == name && *count == 0);
        let of_moves = observed && OF_MOVES.contains(name);
        !never && !of_moves
    };
    let table = |caption: &str, rows: &[(&str, String)]| {
        fact_table(caption, &rows.iter().filter(says_something).cloned().collect::<Vec<_>>())
    };
    let gained = if observed { String::new() } else { table("What was gained", &gained) };
    [table("The program", &program), gained, table("What it cost", &costs(report))].concat()
}

fn costs(report: &Report) -> [(&'static str, String); 12] {
    let manager = &report.manager;
    let page_outs = text::page_outs_text(report);
    let share = text::lost_share(report)
        .map_or_else(String::new, |share| format!(" ({} of the program's time)", units::percent(share)));
    [
        (
            "CPU time",
            format!(
                "{} ({} of one core)",
                units::seconds(manager.cpu_seconds),
                units::percent(text::per_second_of_run(report, manager.cpu_seconds))
            ),
        ),
        ("of it in user mode", units::seconds(manager.user_cpu_seconds)),
        ("Highest resident memory", units::bytes(manager.max_rss_bytes)),
        ("Lost by the program (estimate)", units::seconds(manager.stall_seconds) + &share),
        ("of it to being watched", units::seconds(report.cost.watching_seconds)),
        ("of it to moves", units::seconds(report.cost.moving_seconds)),
        ("of it to pages that came back", units::seconds(report.cost.refault_seconds) + &text::ending_text(report)),
        (
            "Proof by a measure of the program",
            report.proof.as_ref().map_or("none asked for".to_owned(), text::proof_text),
        ),
        (
            "One refault costs",
            manager.refault_microseconds.map_or_else(|| "not measured".to_owned(), |cost| units::seconds(cost / 1e6)),
        ),
        (
            "Rounds of accessed bits",
            format!("{}, {} each", units::count(manager.rounds), units::seconds(manager.round_milliseconds_mean / 1e3)),
        ),
        ("Longest call that moved pages", units::seconds(manager.longest_move_call_milliseconds / 1e3)),
        ("Page-outs limited or stopped", if page_outs.is_empty() { "never".to_owned() } else { page_outs }),
    ]
}

fn amount(pages: u64) -> String {
    format!("{} ({})", units::counted(pages, "page", "pages"), units::pages(pages))
}

/// A table of names and texts.
pub fn fact_table(caption: &str, rows: &[(&str, String)]) -> String {
    let rows: String = rows
        .iter()
        .map(|(name, value)| format!("<tr><th scope=\"row\">{}</th><td>{}</td></tr>\n", escape(name), escape(value)))
        .collect();
    format!("<table class=\"facts\"><caption>{}</caption><tbody>\n{rows}</tbody></table>\n", escape(caption))
}

fn tiers(report: &Report) -> String {
    let rows = report.tiers.iter().map(|tier| {
        vec![
            tier.name.clone(),
            tier.kind.clone(),
            units::bytes(tier.capacity_bytes),
            units::bytes(tier.mean_used_bytes),
            units::bytes(tier.end_used_bytes),
            tier.mean_occupied_bytes.map_or_else(|| "-".to_owned(), units::bytes),
        ]
    });
    let headings = ["tier", "kind", "capacity", "of the program, mean", "at the end", "occupied for it, mean"];
    data_table("Where the program's memory lay, from fast to slow", &headings, rows.collect())
}

/// The timeline in numbers, for those who cannot see the plots, thinned to what a person may read.
fn timeline(report: &Report) -> String {
    const MOST_ROWS: usize = 24;
    let step = report.timeline.len().div_ceil(MOST_ROWS).max(1);
    let last = report.timeline.len().saturating_sub(1);
    let points = report.timeline.iter().enumerate().filter(|(index, _)| index % step == 0 || *index == last);
    let rows = points.map(|(_, point)| {
        vec![
            units::seconds(point.seconds),
            units::bytes(point.fast_bytes),
            units::bytes(point.slow_bytes),
            units::bytes(point.slow_occupied_bytes),
            units::bytes(point.resident_bytes),
            units::count(point.demoted_pages),
            units::count(point.promoted_pages),
            units::count(point.refaults),
            units::percent(point.accessed_share),
            point.page_outs.in_words().to_owned(),
        ]
    });
    let headings = [
        "time",
        "fast",
        "slow",
        "occupied",
        "resident",
        "demoted so far",
        "promoted so far",
        "refaults so far",
        "accessed",
        "page-outs",
    ];
    let table = data_table("The run over time", &headings, rows.collect());
    if table.is_empty() {
        table
    } else {
        format!("<details><summary>The run over time, in numbers</summary>{table}</details>\n")
    }
}

/// A table of counts, the largest first; nothing where there are none.
pub fn count_table(caption: &str, name: &str, unit: &str, counts: &BTreeMap<String, u64>) -> String {
    let mut counts: Vec<(&String, &u64)> = counts.iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let rows = counts.into_iter().map(|(name, count)| vec![name.clone(), units::count(*count), units::pages(*count)]);
    data_table(caption, &[name, unit, "memory"], rows.collect())
}

/// A table whose first column names its rows; nothing where there are none.
pub fn data_table(caption: &str, headings: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heads: String = headings.iter().map(|heading| format!("<th scope=\"col\">{}</th>", escape(heading))).collect();
    let body: String = rows
        .iter()
        .map(|row| {
            let cells: String = row
                .iter()
                .enumerate()
                .map(|(column, cell)| match column {
                    0 => format!("<th scope=\"row\">{}</th>", escape(cell)),
                    _ => format!("<td>{}</td>", escape(cell)),
                })
                .collect();
            format!("<tr>{cells}</tr>\n")
        })
        .collect();
    // A wide table scrolls by itself, and can be reached by the keyboard to do so.
    format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table><caption>{caption}</caption>\
         <thead><tr>{heads}</tr></thead><tbody>\n{body}</tbody></table></div>\n",
        caption = escape(caption)
    )
}

/// A list of lines, or what is said where there are none.
pub fn list(lines: &[String], otherwise: &str) -> String {
    if lines.is_empty() {
        return format!("<p>{}</p>\n", escape(otherwise));
    }
    let items: String = lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect();
    format!("<ul>\n{items}</ul>\n")
}

/// A plot with its question, its answer and its legend.
pub fn figure(figure: &Figure) -> String {
    let Some(svg) = &figure.svg else {
        return format!(
            "<figure id=\"{}\"><h3>{}</h3><p>{}</p></figure>\n",
            figure.id,
            escape(figure.question),
            escape(&figure.answer)
        );
    };
    let reading = match figure.reading.as_str() {
        "" => String::new(),
        reading => format!("<p>{}</p>", escape(reading)),
    };
    let keys: String = figure
        .legend
        .iter()
        .map(|legend| {
            let height = if legend.line { 4 } else { 12 };
            let ink = plots::hex(legend.ink);
            format!(
                "<li><svg class=\"key\" viewBox=\"0 0 18 12\" aria-hidden=\"true\"><rect y=\"{}\" width=\"18\" height=\"{height}\" \
                 fill=\"{ink}\"/></svg>{}</li>",
                (12 - height) / 2,
                escape(&legend.label)
            )
        })
        .collect();
    format!(
        "<figure id=\"{}\"><h3>{question}</h3><figcaption>{}</figcaption>{reading}<ul class=\"legend\">{keys}</ul>\
         <div class=\"plot\">{svg}</div></figure>\n",
        figure.id,
        escape(&figure.answer),
        question = escape(figure.question),
    )
}

#[cfg(test)]
mod tests;
