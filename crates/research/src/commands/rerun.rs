//! `terrace rerun`: repeats the runs behind rows, and says where the figures differ.
//!
//! In: rows of `sim run`, `sim compare` and `reproduce`, as they were printed. Out: exit code 0 where every figure came out the same, 1 with
//! a table where one did not. Must not: write a file, or run anything before every row was understood.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use rayon::prelude::*;
use serde_json::{Number, Value};
use terrace_sim::FastSize;
use terrace_sim::run::run_alone;

use super::sim::options::{OneRun, Own, PolicySettings, failed};
use crate::args::{Arguments, Command, OneRunArguments, ReproduceArguments, RerunArguments, SimCommand};
use crate::options::misuse;
use crate::provenance::{COMMIT, Provenance, SCHEMA_VERSION, VERSION, words};

/// The longest file of rows that is read.
const LONGEST: u64 = 1 << 30;
/// Share by which two numbers may differ that are the same: the last of sixteen digits is lost where a program reads and writes a row.
const DIGITS: f64 = 1e-13;
/// Differences of a row that are shown.
const SHOWN: usize = 20;
/// What says who made a row: not a figure of it.
const ABOUT: [&str; 6] = ["schema_version", "version", "commit", "command", "machine_hash", "trace_hash"];

/// A row that can be repeated.
struct Row {
    /// Its place in the file, from 1.
    number: usize,
    value: Value,
    run: Run,
}

enum Run {
    Simulated { raw: Box<OneRunArguments>, run: Box<OneRun> },
    Reproduced { id: String, raw: Box<ReproduceArguments> },
}

/// One figure that differs: its place, what the row says, what came out now.
struct Difference {
    place: String,
    then: String,
    now: String,
}

pub(super) fn run(arguments: &RerunArguments) -> anyhow::Result<ExitCode> {
    let name = arguments.file.display().to_string();
    let rows: Result<Vec<Row>, anyhow::Error> = values(&read(&arguments.file)?)
        .and_then(|values| match values.is_empty() {
            true => Err("it holds no row".to_owned()),
            false => Ok(values),
        })
        .map_err(|why| misuse("FILE", &name, why))?
        .into_iter()
        .enumerate()
        .map(|(place, value)| {
            let number = place + 1;
            let understood = understood(&value, arguments.any_version);
            let run = understood.map_err(|why| misuse("FILE", &name, format!("row {number}: {why:#}")))?;
            Ok(Row { number, value, run })
        })
        .collect();
    let rows = rows?;
    let again = again(&rows)?;
    let (mut text, mut differing) = (String::new(), 0);
    for (row, now) in rows.iter().zip(&again) {
        let found = differences(&row.value, now);
        if found.is_empty() {
            continue;
        }
        differing += 1;
        if differing == 1 {
            writeln!(text, "{:>5}  {:40} {:>24} {:>24}", "row", "key", "then", "now")?;
        }
        for Difference { place, then, now } in found.iter().take(SHOWN) {
            writeln!(text, "{:>5}  {place:40} {then:>24} {now:>24}", row.number)?;
        }
        if found.len() > SHOWN {
            writeln!(text, "{:>5}  and {} more", row.number, found.len() - SHOWN)?;
        }
        let commit = row.value["commit"].as_str().unwrap_or("unknown");
        if commit != COMMIT {
            writeln!(text, "{:>5}  made by commit {commit}; this is commit {COMMIT}", row.number)?;
        }
    }
    let total = rows.len();
    match differing {
        0 => writeln!(text, "{total} of {total} rows came out the same")?,
        _ => writeln!(text, "{differing} of {total} rows came out differently")?,
    }
    super::print_text(&text)?;
    Ok(ExitCode::from(u8::from(differing > 0)))
}

fn read(path: &Path) -> anyhow::Result<String> {
    let refused = |error: std::io::Error| misuse("FILE", &path.display().to_string(), error);
    if path != Path::new("-") {
        return terrace_files::read_to_string(path, LONGEST).map_err(refused);
    }
    let mut text = String::new();
    std::io::stdin().lock().take(LONGEST).read_to_string(&mut text).map_err(refused)?;
    Ok(text)
}

/// The rows of a text: JSON objects one after the other; of one that holds cells or rows, these.
fn values(text: &str) -> Result<Vec<Value>, String> {
    let mut found = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let mut value = value.map_err(|error| format!("it is no JSON: {error}"))?;
        match ["cells", "rows"].iter().find(|key| value[**key].is_array()) {
            Some(key) => found.extend(value[*key].as_array_mut().into_iter().flat_map(std::mem::take)),
            None if value.is_object() => found.push(value),
            None => return Err(format!("expected JSON objects, found {}", short(&value))),
        }
    }
    Ok(found)
}

/// How a row is repeated.
fn understood(row: &Value, any_version: bool) -> anyhow::Result<Run> {
    let (Some(version), Some(form)) = (row["version"].as_str(), row["schema_version"].as_u64()) else {
        anyhow::bail!("it does not say which version made it (keys version and schema_version)");
    };
    let same_version = version == VERSION && form == u64::from(SCHEMA_VERSION);
    anyhow::ensure!(
        same_version || any_version,
        "it was made by Terrace {version}, form {form}; this is {VERSION}, form {SCHEMA_VERSION}: --any-version repeats it all the same"
    );
    let command = row["command"].as_str().context("it does not say which command made it")?;
    let words = words(command).filter(|words| words.first().is_some_and(|word| word == "terrace"));
    let words = words.with_context(|| format!("its command is no command of terrace: {command}"))?;
    let parsed = Arguments::try_parse_from(&words);
    let parsed = parsed.map_err(|error| {
        anyhow::anyhow!("its command is not understood: {command}: {}", error.to_string().lines().next().unwrap_or(""))
    })?;
    match parsed.command {
        Command::Sim(SimCommand::Run(arguments)) => {
            let mut raw = arguments.run;
            if !same_version {
                // Defaults may have changed since.
                raw.model.settings = given(row, &raw.policy);
            }
            let run = OneRun::parse(&raw, &Own::new())?;
            for (key, now) in [("machine_hash", &run.made.machine_hash), ("trace_hash", &run.made.trace_hash)] {
                let then = row[key].as_str();
                let excused = any_version && key == "machine_hash";
                anyhow::ensure!(
                    excused || then.is_none() || then == now.as_deref(),
                    "{} is not the one it was made with: its {key} was {}, and is {}",
                    if key == "trace_hash" { "the trace" } else { "the machine" },
                    then.unwrap_or("unknown"),
                    now.as_deref().unwrap_or("unknown")
                );
            }
            Ok(Run::Simulated { raw: Box::new(raw), run: Box::new(run) })
        }
        Command::Reproduce(arguments) => {
            let id = row["id"].as_str().context("it has no id: expected a row of `terrace reproduce`")?;
            Ok(Run::Reproduced { id: id.to_owned(), raw: Box::new(arguments) })
        }
        _ => anyhow::bail!("`{command}` cannot be repeated: expected a row of sim run, sim compare or reproduce"),
    }
}

/// The settings of a row, as `--set` takes them.
fn given(row: &Value, policy: &str) -> Vec<String> {
    let settings = row["settings"].as_object().into_iter().flatten();
    let own = settings.filter(|(key, _)| key.strip_prefix(policy).is_some_and(|rest| rest.starts_with('.')));
    own.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect()
}

/// Runs all rows, in their order.
fn again(rows: &[Row]) -> anyhow::Result<Vec<Value>> {
    let reproduced = reproduced(rows)?;
    let one = |row: &Row| match &row.run {
        Run::Simulated { raw, run } => simulated(&row.value, raw, run),
        Run::Reproduced { id, raw } => {
            let found = reproduced.get(&(terms(raw), id.clone())).cloned();
            found.with_context(|| format!("there is no figure {id}"))
        }
    };
    rows.par_iter().map(|row| one(row).with_context(|| format!("row {}", row.number))).collect()
}

/// A simulated run again, with what a comparison adds to it.
fn simulated(row: &Value, raw: &OneRunArguments, run: &OneRun) -> anyhow::Result<Value> {
    let report = super::sim::single::report(run)?;
    let mut value = run.made.stamp(&report)?;
    value["fast"] = raw.fast.clone().into();
    value["fast_share"] = match run.config.fast {
        FastSize::Share(share) => share,
        FastSize::Bytes(bytes) => bytes.get() as f64 / report.footprint_bytes.max(1) as f64,
    }
    .into();
    if !row["gain_over_first_touch"].is_null() {
        let first_touch = PolicySettings::default().build(terrace_policies::first_touch::INFO.name)?;
        let other = run_alone(&run.config, run.source.as_ref(), first_touch).map_err(failed)?;
        value["gain_over_first_touch"] = (other.seconds / report.seconds).into();
    }
    if raw.trace.is_some() {
        // A comparison may call a trace by its path; that it is the same one, its hash says.
        value["workload"] = row["workload"].clone();
    }
    Ok(value)
}

/// What rows of `reproduce` must share to be run together.
fn terms(raw: &ReproduceArguments) -> String {
    let ReproduceArguments {
        ids: _,
        experiments,
        scale,
        quick,
        svg: _,
        seed,
        seeds,
        settings,
        json: _,
        output: _,
        budget: _,
        sample: _,
        store: _,
    } = raw;
    format!("{experiments:?} {scale} {quick} {seed} {seeds} {settings:?}")
}

/// Rows of `reproduce` by terms and id; those with the same terms share their runs.
fn reproduced(rows: &[Row]) -> anyhow::Result<BTreeMap<(String, String), Value>> {
    let mut together: BTreeMap<String, ReproduceArguments> = BTreeMap::new();
    for row in rows {
        if let Run::Reproduced { id, raw } = &row.run {
            let one = || ReproduceArguments { ids: Vec::new(), ..(**raw).clone() };
            together.entry(terms(raw)).or_insert_with(one).ids.push(id.clone());
        }
    }
    let mut found = BTreeMap::new();
    for (terms, raw) in together {
        for row in super::reproduce::rows_again(&raw)? {
            let id = row["id"].as_str().unwrap_or_default().to_owned();
            found.insert((terms.clone(), id), row);
        }
    }
    Ok(found)
}

/// Where a row and its repetition differ. Keys that only one of both has are columns that somebody added or left out.
fn differences(row: &Value, now: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    let own: Vec<String> = match serde_json::to_value(Provenance::of("")) {
        Ok(Value::Object(keys)) => keys.into_iter().map(|(key, _)| key).collect(),
        _ => Vec::new(),
    };
    let mut figures = 0;
    for (key, then) in row.as_object().into_iter().flatten() {
        let Some(now) = now.get(key).filter(|_| !ABOUT.contains(&key.as_str())) else { continue };
        figures += usize::from(!own.contains(key));
        compare(key, then, now, &mut found);
    }
    if figures == 0 {
        let none = |text: &str| text.to_owned();
        found.push(Difference { place: none("(all)"), then: none("no figure"), now: none("nothing to compare") });
    }
    found
}

fn compare(place: &str, then: &Value, now: &Value, found: &mut Vec<Difference>) {
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            let keys: std::collections::BTreeSet<&String> = then.keys().chain(now.keys()).collect();
            for key in keys {
                let of = |object: &serde_json::Map<String, Value>| object.get(key).cloned().unwrap_or_default();
                compare(&format!("{place}.{key}"), &of(then), &of(now), found);
            }
        }
        (Value::Array(then), Value::Array(now)) if then.len() == now.len() => {
            for (number, (then, now)) in then.iter().zip(now).enumerate() {
                compare(&format!("{place}[{number}]"), then, now, found);
            }
        }
        (Value::Number(one), Value::Number(other)) if is_same(one, other) => {}
        _ if then == now => {}
        _ => found.push(Difference { place: place.to_owned(), then: short(then), now: short(now) }),
    }
}

/// Whether two numbers are the same as far as a text that was read and written again keeps them: whole ones all of it, also 1 and 1.0, others
/// to [`DIGITS`].
fn is_same(one: &Number, other: &Number) -> bool {
    if let (Some(one), Some(other)) = (one.as_u64(), other.as_u64()) {
        return one == other;
    }
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => (one - other).abs() <= one.abs().max(other.abs()) * DIGITS,
        _ => one == other,
    }
}

/// A value in few letters.
fn short(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match text.chars().count() {
        0..=24 => text,
        _ => text.chars().take(21).collect::<String>() + "...",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn places(row: &Value, now: &Value) -> Vec<String> {
        differences(row, now).into_iter().map(|difference| difference.place).collect()
    }

    #[test]
    fn differences_are_named_by_their_place() {
        let now = json!({ "seconds": 2.0, "tier_bytes": [[1, 2], [3, 4]], "failures": { "a": 1 }, "version": "x" });
        assert!(places(&json!({ "seconds": 2, "version": "y", "note": "mine" }), &now).is_empty());
        assert!(places(&json!({ "seconds": 2.000_000_000_000_000_4 }), &now).is_empty());
        assert_eq!(places(&json!({ "seconds": 2.000_000_000_01 }), &now), ["seconds"]);
        let whole = |count: u64| json!({ "accesses": count });
        assert_eq!(places(&whole(1 << 60), &whole((1 << 60) + 1)), ["accesses"]);
        let row = json!({ "seconds": 2.5, "tier_bytes": [[1, 2], [3, 5]], "failures": { "b": 1 } });
        assert_eq!(places(&row, &now), ["failures.a", "failures.b", "seconds", "tier_bytes[1][1]"]);
        assert_eq!(places(&json!({ "seed": 1 }), &json!({ "seed": 1, "seconds": 2 })), ["(all)"], "no figure at all");
    }

    #[test]
    fn rows_are_found_in_lines_and_in_documents() {
        let text = "{\"a\":1}\n{\"cells\":[{\"b\":1},{\"b\":2}]}\n\n{ \"rows\": [] }";
        assert_eq!(values(text).unwrap(), [json!({ "a": 1 }), json!({ "b": 1 }), json!({ "b": 2 })]);
        assert!(values("{\"a\":").unwrap_err().contains("no JSON"));
        assert!(values("[1]").unwrap_err().contains("expected JSON objects"));
    }

    #[test]
    fn a_row_says_why_it_cannot_be_repeated() {
        let why = |row: Value, any: bool| understood(&row, any).err().map(|error| format!("{error:#}")).unwrap();
        assert!(why(json!({}), true).contains("which version"));
        let row = |version: &str, command: &str| json!({ "schema_version": 1, "version": version, "command": command });
        assert!(why(row("9.9.9", "terrace doctor"), false).contains("made by Terrace 9.9.9"));
        assert!(why(row("9.9.9", "terrace doctor"), true).contains("cannot be repeated"));
        assert!(why(row(VERSION, "rm -r x"), false).contains("no command of terrace"));
        assert!(why(row(VERSION, "terrace sim run --wrkload x"), false).contains("not understood"));
        let mut moved = row(VERSION, "terrace sim run --workload gups --size 4MiB");
        moved["machine_hash"] = "0".into();
        assert!(why(moved.clone(), false).contains("the machine is not the one"));
        assert!(understood(&moved, true).is_ok());
    }
}
