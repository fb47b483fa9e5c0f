//! The page docs/fidelity.md: for each paper how many figures agree, and every figure beside ours with the reason where it differs.
//!
//! In: rows and results as files hold them. Out: Markdown. Must not: run anything, or say of a row what neither its result nor its record says.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::experiments::{Experiments, Row};

/// Results of one file.
#[derive(Clone, Debug)]
pub struct PageSource {
    name: String,
    commit: String,
    command: String,
    rows: BTreeMap<String, Value>,
}

impl PageSource {
    /// Takes what `terrace reproduce --json` or `--output` wrote; `name` is what the page calls the file.
    ///
    /// # Errors
    /// When the value has no rows with ids.
    pub fn read(name: &str, value: &Value) -> Result<PageSource, String> {
        let rows =
            value["rows"].as_array().ok_or("expected an object with `rows`, as `terrace reproduce` writes it")?;
        let mut found = BTreeMap::new();
        for row in rows {
            let id = row["id"].as_str().ok_or("a row has no `id`")?;
            found.insert(id.to_owned(), row.clone());
        }
        let text = |key: &str| value[key].as_str().unwrap_or("unknown").to_owned();
        Ok(PageSource { name: name.to_owned(), commit: text("commit"), command: text("command"), rows: found })
    }
}

/// The verdicts in the order of the columns, as JSON has them and as the page calls them.
const VERDICTS: [(&str, &str); 7] = [
    ("agrees", "agrees"),
    ("differs", "differs"),
    ("opposite", "other way"),
    ("undecided", "undecided"),
    ("no-number", "no number"),
    ("no-value", "no value"),
    ("refused", "refused"),
];

/// The page of these rows. A row has the result of the last file that has one.
pub fn page(experiments: &Experiments, rows: &[&Row], ids: &[String], sources: &[PageSource]) -> String {
    let files: String = sources.iter().map(|source| format!(" --page {}", source.name)).collect();
    let mut out = format!(
        "# Fidelity: the papers' figures beside ours\n\n\
         Every figure that a row of `experiments/*.toml` states, beside what the simulator computes for it. Nothing here was measured. The page\n\
         is made by\n\n    terrace reproduce {}{files} >docs/fidelity.md\n\n\
         and a test holds it to that. [Experiments](experiments.md) says what the verdicts mean and how to repeat a row.\n\n\
         | results | made by | commit |\n|---|---|---|\n",
        ids.join(" "),
    );
    for source in sources {
        let PageSource { name, command, commit, .. } = source;
        let _ = writeln!(out, "| [{name}](../{name}) | `{}` | {commit} |", cell(command));
    }
    let result = |row: &Row| sources.iter().rev().find_map(|source| source.rows.get(&row.id));
    summary(&mut out, experiments, rows, &result);
    for paper in &experiments.papers {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| begins(row, &paper.prefix)).collect();
        if own.is_empty() {
            continue;
        }
        let _ = write!(
            out,
            "\n## {}\n\n| row | what | paper | ours | verdict | scale, seeds | why |\n|---|---|---|---|---|---|---|\n",
            paper.title
        );
        own.iter().for_each(|row| line(&mut out, row, rows, &result));
        let missing = experiments.not_built.iter().filter(|row| row.id.starts_with(&format!("{}.", paper.prefix)));
        for row in missing {
            let _ = writeln!(out, "| {} | | | | not built | | {} |", row.id, cell(&row.why));
        }
    }
    out
}

fn begins(row: &Row, prefix: &str) -> bool {
    row.id.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

fn verdict(result: Option<&Value>) -> &str {
    result.and_then(|result| result["verdict"].as_str()).unwrap_or("not run")
}

/// Rows whose paper states a number or a range, so that agreement is within a distance of it.
fn is_numeric(row: &Row) -> bool {
    row.paper.number.is_some() || row.paper.at_least.is_some() || row.paper.at_most.is_some()
}

fn summary<'v>(out: &mut String, experiments: &Experiments, rows: &[&Row], result: &dyn Fn(&Row) -> Option<&'v Value>) {
    out.push_str("\n## How many agree\n\n| paper | rows |");
    VERDICTS.iter().for_each(|(_, name)| {
        let _ = write!(out, " {name} |");
    });
    out.push_str(" not run | numeric rows that agree | others with a cause | of these tested |\n|---|---|");
    out.push_str(&"---|".repeat(VERDICTS.len() + 4));
    out.push('\n');
    let mut line = |name: &str, own: &[&Row]| {
        let count = |wanted: &str| own.iter().filter(|row| verdict(result(row)) == wanted).count();
        let _ = write!(out, "| {name} | {} |", own.len());
        for (key, _) in VERDICTS {
            let _ = write!(out, " {} |", count(key));
        }
        let numeric: Vec<&&Row> =
            own.iter().filter(|row| is_numeric(row) && verdict(result(row)) != "not run").collect();
        let agree = numeric.iter().filter(|row| verdict(result(row)) == "agrees").count();
        let others: Vec<&&Row> =
            own.iter().filter(|row| !matches!(verdict(result(row)), "agrees" | "no-number" | "not run")).collect();
        let with_cause = others.iter().filter(|row| row.cause.is_some()).count();
        let tested = others.iter().filter(|row| row.cause_row.is_some()).count();
        let _ = writeln!(
            out,
            " {} | {agree} of {} | {with_cause} of {} | {tested} |",
            count("not run"),
            numeric.len(),
            others.len()
        );
    };
    for paper in &experiments.papers {
        let own: Vec<&Row> = rows.iter().copied().filter(|row| begins(row, &paper.prefix)).collect();
        if !own.is_empty() {
            line(&paper.title, &own);
        }
    }
    line("all", rows);
    out.push_str(
        "\nA cause is tested where another row has that one thing changed; both values then stand in the last column. What has no cause there is not\n\
         explained.\n",
    );
}

fn line<'v>(out: &mut String, row: &Row, rows: &[&Row], result: &dyn Fn(&Row) -> Option<&'v Value>) {
    let Some(found) = result(row) else {
        let _ = writeln!(out, "| {} | {} | {} | | not run | | |", row.id, cell(&row.quantity), cell(&row.paper.words));
        return;
    };
    let text = |key: &str| found[key].as_str().unwrap_or("").to_owned();
    let name = VERDICTS.iter().find(|(key, _)| *key == verdict(Some(found))).map_or("", |(_, name)| name);
    let mut why = text("verdict_why");
    if verdict(Some(found)) != "agrees" {
        if let Some(cause) = &row.cause {
            let _ = write!(why, ". Cause: {cause}");
        }
        if let Some(other) = &row.cause_row {
            let changed = rows.iter().find(|row| row.id == *other).and_then(|row| result(row));
            let ours = changed.and_then(|found| found["ours_text"].as_str()).unwrap_or("not run");
            let _ = write!(why, ". With that changed ({other}): {ours}");
        }
    }
    let seeds = found["seeds"].as_array().map_or(0, Vec::len);
    let _ = writeln!(
        out,
        "| {} | {} | {} | {} | {name} | 1:{}, {seeds} | {} |",
        row.id,
        cell(&row.quantity),
        cell(&row.paper.words),
        cell(&text("ours_text")),
        found["scale"],
        cell(&why)
    );
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}
