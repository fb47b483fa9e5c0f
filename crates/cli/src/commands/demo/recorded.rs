//! The jobs of the demo that need no rights: record a program and compare policies, or compare them on a recording that is part of Terrace.
//!
//! `terrace-research` does both.
//!
//! In: how much work. Out: a comparison and its answer. Must not: take longer than four minutes on two cores, or show a recording of Terrace's
//! as one of this machine.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Context;

use super::Demo;
use crate::programs::{self, RESEARCH};

/// What to install for recording.
pub(super) const PACKAGES: &str = "apt-get install qemu-user sqlite3";
/// The recording that is part of Terrace.
pub(super) const HELD: &str = "a recording of sqlite3 that is part of Terrace";
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
        match programs::could_record(&words.iter().map(Into::into).collect::<Vec<_>>()) {
            Ok(()) => return Ok((name, words)),
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
    demo.say("recording takes some seconds, replaying a minute or two")?;
    compare(demo, &["--cache", CACHE], &[vec!["--".to_owned()], words].concat())
}

pub(super) fn replay(demo: &Demo) -> anyhow::Result<String> {
    compare(demo, &["--example"], &[])
}

/// Whether the recording that is part of Terrace could be replayed.
pub(super) fn could_replay() -> anyhow::Result<()> {
    programs::find(RESEARCH, "compare")?;
    Ok(())
}

fn compare(demo: &Demo, how: &[&str], program: &[String]) -> anyhow::Result<String> {
    let mut words: Vec<OsString> =
        ["compare"].into_iter().chain(TERMS).chain(how.iter().copied()).map(Into::into).collect();
    words.push("--report".into());
    words.push(demo.place.clone().into());
    demo.research(words.into_iter().chain(program.iter().map(Into::into)))?;
    let report = demo.report()?;
    let told = |key: &str| report[key].as_str().with_context(|| format!("the comparison has no {key}"));
    Ok(format!("{} (simulated on {})", told("answer")?, told("machine")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terms_are_of_the_grammar() {
        for rest in [&["--cache", CACHE, "--", "sqlite3", "--version"][..], &["--example"]] {
            let words = [&["terrace", "compare"], &TERMS[..], rest].concat();
            crate::args::command().try_get_matches_from(words).unwrap();
        }
    }
}
