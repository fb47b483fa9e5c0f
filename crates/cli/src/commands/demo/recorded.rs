//! The jobs of the demo that need no rights: record a program and compare policies, or compare them on a recording that is part of Terrace.
//!
//! In: how much work. Out: a comparison and its answer. Must not: take longer than four minutes on two cores, or show a recording of Terrace's
//! as one of this machine.

use std::time::Duration;

use anyhow::{Context, bail};
use terrace_trace::tools::info;

use super::Demo;
use crate::args::{Command, CompareArguments};
use crate::commands::compare::{Recording, record as record_program, replay as replay_recording};
use crate::recorder::Tools;

/// What to install for recording.
pub(super) const PACKAGES: &str = "apt-get install qemu-user sqlite3";
/// The recording that is part of Terrace.
pub(super) const HELD: &str = "a recording of sqlite3 that is part of Terrace";
/// `docs/traces.md` says how it was made.
/// (`terrace record --cache 1MiB`, with [`queries`] of all rows.)
const TRACE: &[u8] = include_bytes!("../../../data/sqlite3.trace");
/// Rows of the whole demo's table.
const ROWS: u64 = 200_000;
/// The least that says anything.
const LEAST_ROWS: u64 = 20_000;
/// Lookups for each row.
const LOOKUPS: u64 = 5;
/// The duration that means all rows.
const WHOLE: Duration = Duration::from_secs(45);
/// Policies and sizes: what a reader wants to see first, in half of the time of `terrace compare`.
const TERMS: [&str; 6] =
    ["--policies", "age,first-touch,tpp,terrace,clairvoyant", "--fast", "12.5%,25%,50%,75%", "--max-slowdown", "10%"];
/// A cache in front of the recorder: what it would serve is left out, which is most.
const CACHE: &str = "256KiB";

/// The program that is recorded, by its name, and its words.
///
/// # Errors
/// Why none can be recorded here.
pub(super) fn program(duration: Duration) -> anyhow::Result<(String, Vec<String>)> {
    let share = (duration.as_secs_f64() / WHOLE.as_secs_f64()).min(1.0);
    let rows = ((ROWS as f64 * share) as u64).max(LEAST_ROWS);
    let candidates = [
        (format!("sqlite3 (a table of {rows} rows)"), vec!["sqlite3".to_owned(), ":memory:".to_owned(), queries(rows)]),
        (format!("awk (an array of {rows} elements)"), vec!["awk".to_owned(), script(rows)]),
    ];
    let mut refused = None;
    for (name, words) in candidates {
        match Tools::find(&words.iter().map(Into::into).collect::<Vec<_>>()) {
            Ok(_) => return Ok((name, words)),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.context("no program is known to the demo")?)
}

/// Rows are stored, then the last tenth of them is looked up by key, over and over.
fn queries(rows: u64) -> String {
    format!(
        "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, price INTEGER); \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows}) \
         INSERT INTO item SELECT i, printf('item number %d of the catalogue', i), i * 7919 % 10007 FROM n; \
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {lookups}) \
         SELECT sum(item.price) FROM n JOIN item ON item.id = {rows} - n.i * 7919 % {tenth};",
        lookups = rows * LOOKUPS,
        tenth = rows / 10
    )
}

fn script(rows: u64) -> String {
    format!(
        "BEGIN {{ for (i = 0; i < {rows}; i++) item[i] = \"item number \" i; \
         for (i = 1; i < {lookups}; i++) sum += length(item[{rows} - 1 - i * 7919 % {tenth}]); print sum }}",
        lookups = rows * LOOKUPS,
        tenth = rows / 10
    )
}

pub(super) fn record(demo: &Demo) -> anyhow::Result<String> {
    let (_, words) = program(demo.duration)?;
    let arguments = arguments(demo, &words)?;
    let tools = Tools::find(&arguments.command)?;
    demo.say("recording takes some seconds, replaying a minute or two")?;
    let recording = record_program(&arguments, &tools)?;
    compare(demo, &arguments, &recording)
}

pub(super) fn replay(demo: &Demo) -> anyhow::Result<String> {
    let held = info(TRACE).context("the recording that is part of Terrace")?;
    // Beside the page, so that it can be looked at: `terrace trace info`.
    std::fs::create_dir_all(&demo.place).with_context(|| demo.place.display().to_string())?;
    let trace = demo.place.join("sqlite3.trace");
    terrace_files::write(&trace, TRACE).with_context(|| trace.display().to_string())?;
    let accesses = held.summary.accesses;
    let recording = Recording { trace, accesses, started: Vec::new(), wall: None, _folder: None };
    compare(demo, &arguments(demo, &["sqlite3".to_owned()])?, &recording)
}

fn compare(demo: &Demo, arguments: &CompareArguments, recording: &Recording) -> anyhow::Result<String> {
    let told = replay_recording(arguments, recording)?;
    demo.print(&told.text)?;
    Ok(format!("{} (simulated on {})", told.answer, arguments.machine))
}

fn arguments(demo: &Demo, program: &[String]) -> anyhow::Result<CompareArguments> {
    let words: Vec<&str> = ["compare", "--cache", CACHE]
        .into_iter()
        .chain(TERMS)
        .chain(["--"])
        .chain(program.iter().map(String::as_str))
        .collect();
    match super::command(&words)? {
        Command::Compare(arguments) => Ok(CompareArguments { report: Some(demo.place.clone()), ..*arguments }),
        _ => bail!("`terrace compare` is another command"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_is_whole_and_small() {
        let held = info(TRACE).unwrap();
        assert!(held.damage.is_none() && held.summary.accesses > 100_000, "{:?}", held.summary);
        assert!(TRACE.len() <= 2 << 20, "{} bytes", TRACE.len());
    }

    #[test]
    fn the_terms_are_of_the_grammar() {
        let demo = Demo { duration: WHOLE, place: "x".into(), json: false, refused: Vec::new() };
        let arguments = arguments(&demo, &["sqlite3".to_owned(), "--version".to_owned()]).unwrap();
        assert_eq!(arguments.command.len(), 2);
        crate::commands::compare::check(&arguments).unwrap();
    }
}
