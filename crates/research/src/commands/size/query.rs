//! `terrace size query`: the least fast memory for a configuration.
//!
//! In: a vector, a target, a database. Out: the size, what is predicted for it, the records it rests on, and whether the database
//! covers the vector. Must not: hide that it does not.

use std::fmt::Write;
use std::time::Instant;

use serde_json::json;
use terrace_sizing::vector::NAMES;

use super::store;
use crate::args::SizeQueryArguments;
use crate::provenance::{Modelled, Provenance};
use crate::report::units;

pub(super) fn run(arguments: &SizeQueryArguments) -> anyhow::Result<()> {
    let max_slowdown = super::max_slowdown(&arguments.max_slowdown)?;
    let vector = super::vector(&arguments.vector)?;
    let ready = store::index(&arguments.database)?;
    let index = &ready.index;
    let k = usize::from(arguments.database.k);
    let began = Instant::now();
    let answer = index.query(&vector, k)?;
    let microseconds = began.elapsed().as_secs_f64() * 1e6;
    let share = answer.curve.least_share(max_slowdown);
    let loss = answer.curve.loss(share);
    let fast_bytes = (vector.resident_bytes * share).ceil() as u64;
    let database = index.database();
    if arguments.json {
        let neighbours: Vec<_> = answer
            .neighbours
            .iter()
            .map(|found| {
                json!({ "record": found.record, "distance": found.distance, "vector": database.vectors()[found.record] })
            })
            .collect();
        let mut made = Provenance::here().on(&ready.machine);
        (made.seed, made.threads) = (Some(database.meta().seed), Some(vector.threads as usize));
        return super::super::print_json(&made.stamp(&json!({
            "fast_bytes": fast_bytes, "fast_share": share, "predicted_loss": loss, "max_slowdown": max_slowdown,
            "neighbours": neighbours, "query_microseconds": microseconds, "in_coverage": answer.uncovered.is_none(),
            "uncovered": answer.uncovered, "machine": database.meta().machine, "records": database.len(),
            "read_milliseconds": ready.read.as_secs_f64() * 1e3, "index_milliseconds": ready.indexed.as_secs_f64() * 1e3,
            "curve": answer.curve.losses().as_slice(),
        }))?);
    }
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string does not fail");
    line(format!(
        "{} of fast memory, {} of the resident {}: predicted loss {} (at most {} asked for)",
        units::bytes(fast_bytes),
        units::percent(share),
        units::bytes(vector.resident_bytes as u64),
        percent(loss),
        percent(max_slowdown)
    ));
    line(format!(
        "by {} of {} records for {}, found in {:.1} us; predicted by a model, not measured",
        units::counted(answer.neighbours.len() as u64, "record", "records"),
        units::count(database.len() as u64),
        database.meta().machine,
        microseconds
    ));
    line(format!("  {:>8} {:>9}  {}", "record", "distance", NAMES.map(|name| format!("{name:>9}")).join(" ")));
    for found in &answer.neighbours {
        let figures = database.vectors()[found.record].to_array().map(|value| format!("{:>9}", short(value)));
        line(format!("  {:>8} {:>9.3}  {}", found.record, found.distance, figures.join(" ")));
    }
    let asked = vector.to_array().map(|value| format!("{:>9}", short(value)));
    line(format!("  {:>8} {:>9}  {}", "asked", "", asked.join(" ")));
    if let Some(why) = &answer.uncovered {
        line(format!("warning: the database does not cover this: {why}"));
    }
    super::super::print_text(&out)
}

/// A share with a decimal, as losses need it.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A number in nine places.
fn short(value: f64) -> String {
    if value >= 1e5 { format!("{value:.2e}") } else { format!("{}", (value * 100.0).round() / 100.0) }
}
