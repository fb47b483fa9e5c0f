//! `terrace sim explain`: what happened to one page or range of a run, and by which rule.
//!
//! In: a checked run and addresses. Out: moments in order. Must not: interpret them.

use std::fmt::Write;
use std::ops::Range;

use serde_json::Value;
use terrace_core::units::{PAGE_BYTES, Vpn};
use terrace_sim::run::run_alone;
use terrace_trace::{Access, PageMap};

use super::options::{OneRun, Own, Trace, failed};
use crate::args::SimExplainArguments;
use crate::options::{Misuse, footprint, misuse};

pub(super) fn run(arguments: &SimExplainArguments) -> anyhow::Result<()> {
    let mut run = OneRun::parse(&arguments.run, &Own::new())?;
    let asked = pages_asked(arguments)?;
    // A trace numbers its pages densely; the person asks by address.
    let (watch, shift) = match &arguments.run.trace {
        None => (asked.clone(), 0),
        Some(path) => {
            let first = dense(&Trace::open(path, footprint(&arguments.run.max_footprint)?)?, &asked)?;
            (first..first + (asked.end - asked.start), asked.start as i64 - first as i64)
        }
    };
    run.config.watch = Some(Vpn(watch.start)..Vpn(watch.end));
    let policy = run.policy()?;
    let report = run_alone(&run.config, run.source.as_ref(), policy).map_err(failed)?;
    let mut moments = serde_json::to_value(&report.history.moments)?;
    for moment in moments.as_array_mut().into_iter().flatten() {
        if let Some(page) = moment.get("page").and_then(Value::as_i64) {
            moment["address"] = Value::String(format!("{:#x}", (page + shift) as u64 * PAGE_BYTES));
        }
    }
    if arguments.json {
        return super::super::print_json(&serde_json::json!({
            "workload": report.workload, "policy": report.policy, "machine": report.machine, "seed": report.seed,
            "scale": report.scale, "first_address": format!("{:#x}", asked.start * PAGE_BYTES),
            "pages": asked.end - asked.start, "moments": moments, "dropped": report.history.dropped,
        }));
    }
    let mut text = String::new();
    for (moment, kept) in moments.as_array().into_iter().flatten().zip(&report.history.moments) {
        let address = moment["address"].as_str().unwrap_or_default();
        let what = moment["what"].as_str().unwrap_or_default();
        write!(text, "{:12.6} s  {address}  {what}", kept.time.as_secs_f64())?;
        for (key, value) in moment.as_object().into_iter().flatten() {
            if !matches!(key.as_str(), "time" | "page" | "address" | "what") && !value.is_null() {
                write!(text, "  {key}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))?;
            }
        }
        text.push('\n');
    }
    if report.history.moments.is_empty() {
        text.push_str("Nothing happened to these pages: the program never touched them.\n");
    }
    if report.history.dropped > 0 {
        writeln!(text, "and {} moments more, which were not kept", report.history.dropped)?;
    }
    super::super::print_text(&text)
}

fn pages_asked(arguments: &SimExplainArguments) -> anyhow::Result<Range<u64>> {
    match (&arguments.page, &arguments.range) {
        (Some(text), _) => {
            let page = address("--page", text)? / PAGE_BYTES;
            Ok(page..page + 1)
        }
        (None, Some(text)) => {
            let Some((start, end)) = text.split_once('-') else {
                return Err(misuse("--range", text, "expected START-END, two addresses"));
            };
            let (start, end) = (address("--range", start)?, address("--range", end)?);
            if start >= end {
                return Err(misuse("--range", text, "expected an end above the start"));
            }
            Ok(start / PAGE_BYTES..end.div_ceil(PAGE_BYTES))
        }
        (None, None) => Err(Misuse("--page or --range: expected one of them".to_owned()).into()),
    }
}

fn address(option: &str, text: &str) -> anyhow::Result<u64> {
    let trimmed = text.trim();
    let parsed = match trimmed.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => trimmed.parse(),
    };
    parsed.map_err(|_| misuse(option, text, "expected an address, such as 0x100000001000"))
}

/// The dense number of the first page; the whole range must lie in one piece of the traced program's memory.
fn dense(trace: &Trace, asked: &Range<u64>) -> anyhow::Result<u64> {
    let mut reader = trace.reader()?;
    let mut batch = vec![Access::default(); 4096];
    while reader.fill(&mut batch)? > 0 || reader.take_event().is_some() {}
    let map: &PageMap = reader.map();
    let found =
        map.extents().find(|extent| extent.vpn.0 <= asked.start && asked.end <= extent.vpn.0 + u64::from(extent.count));
    match found {
        Some(extent) => Ok(u64::from(extent.first.0) + (asked.start - extent.vpn.0)),
        None if map.extents().next().is_none() => Ok(asked.start),
        None => Err(Misuse(format!(
            "address {:#x}: the trace has no such page, or the range leaves its piece of memory",
            asked.start * PAGE_BYTES
        ))
        .into()),
    }
}
