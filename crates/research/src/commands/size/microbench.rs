//! `terrace size microbench`: one run of the micro-benchmark.
//!
//! In: a vector and a size of fast memory. Out: what was asked for, what was performed, how long it took. Must not: report as performed
//! what was only asked for.

use std::fmt::Write;

use serde_json::json;
use terrace_core::units::parse_share;
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::simulated::Performed;
use terrace_sizing::{Benchmark, model, simulated};

use crate::args::SizeMicrobenchArguments;
use crate::options::misuse;
use crate::provenance::{Modelled, Provenance};
use crate::report::units;

/// More accesses than this take the simulator minutes.
const MOST_ACCESSES: u64 = 2_000_000_000;

pub(super) fn run(arguments: &SizeMicrobenchArguments) -> anyhow::Result<()> {
    let vector = super::vector(&arguments.vector)?;
    let share = parse_share(&arguments.fast).map_err(|error| misuse("--fast", &arguments.fast, error))?;
    let asked = Benchmark::new(&vector, share, FastDivisor::default())
        .map_err(|error| misuse("--fast", &arguments.fast, error))?;
    if arguments.executor == "native" {
        return native(arguments, &asked);
    }
    let machine = crate::commands::sim::options::machine(&arguments.machine)?;
    let predicted = model::seconds(&asked, &machine);
    let performed = match arguments.executor.as_str() {
        "model" => None,
        _ if model::slow_faults(&machine) => {
            let why = "expected model: the simulator's micro-benchmark wants slow memory that loads reach, and this machine has compressed swap";
            return Err(misuse("--executor", &arguments.executor, why));
        }
        _ if asked.accesses() > MOST_ACCESSES => {
            let why = format!(
                "{} accesses are more than the simulator does in minutes; use --executor model, or fewer",
                asked.accesses()
            );
            return Err(misuse("--vector", &arguments.vector, why));
        }
        _ => Some(simulated::perform(&asked, &machine, arguments.seed)?),
    };
    if arguments.json {
        let mut made = Provenance::here().on(&machine);
        (made.seed, made.threads) = (Some(arguments.seed), Some(asked.threads as usize));
        super::super::print_json(&made.stamp(&json!({
            "machine": machine.name, "executor": arguments.executor, "vector": vector, "fast_share": share,
            "asked": asked, "performed": performed, "model_seconds": predicted,
            "seconds": performed.map_or(predicted, |performed| performed.seconds),
        }))?)
    } else {
        super::super::print_text(&text(&asked, performed.as_ref(), predicted, &machine.name))
    }
}

fn native(arguments: &SizeMicrobenchArguments, asked: &Benchmark) -> anyhow::Result<()> {
    let done = super::native::perform(asked, &arguments.tier_slow)?;
    if arguments.json {
        let mut made = Provenance::here().on_this_machine();
        made.threads = Some(asked.threads as usize);
        return super::super::print_json(&made.stamp(&json!({
            "executor": "native", "fast_share": parse_share(&arguments.fast)?, "asked": asked, "performed": done,
            "seconds": done.performed.seconds,
        }))?);
    }
    let mut text =
        format!("micro-benchmark on this machine, slow memory is {}, {} threads\n", done.slow_tier, asked.threads);
    let mut row = |name: &str, asked: u64, performed: u64| {
        text += &format!("  {name:<40}{:>16}{:>16}\n", units::count(asked), units::count(performed));
    };
    let visits = |accesses: u64, a_visit: u32| accesses.div_ceil(u64::from(a_visit.max(1)));
    let slow = match done.slow_faults {
        false => asked.accesses_in_slow(),
        true => {
            visits(asked.slow_accesses, asked.slow_accesses_a_visit)
                + visits(asked.overflow_accesses, asked.fast_accesses_a_visit)
                + asked.promotions
        }
    };
    row("all accesses", asked.accesses(), done.performed.fast_accesses + done.performed.slow_accesses);
    row(
        if done.slow_faults { "visits to slow pages, as faults" } else { "accesses in slow memory" },
        slow,
        done.performed.slow_accesses,
    );
    row("promotions", asked.promotions, done.performed.promotions);
    row("demotions", asked.demotions, done.performed.demotions);
    row("operations", asked.operations, done.performed.operations);
    text += &format!("asked for and performed; run time {}, measured\n", units::seconds(done.performed.seconds));
    if done.slow_faults {
        text +=
            &format!("{} pages that came back by a slow access were put out again\n", units::count(done.put_out_again));
    }
    super::super::print_text(&text)
}

fn text(asked: &Benchmark, performed: Option<&Performed>, predicted: f64, machine: &str) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("writing to a string does not fail");
    line(format!("micro-benchmark on {machine}, {} threads, {}", asked.threads, units::pages(asked.resident_pages)));
    line(format!("  {:<28}{:>16}{:>16}", "", "asked for", if performed.is_some() { "performed" } else { "" }));
    let mut row = |name: &str, asked: u64, performed: Option<u64>| {
        line(format!(
            "  {name:<28}{:>16}{:>16}",
            units::count(asked),
            performed.map_or_else(String::new, units::count)
        ));
    };
    row("accesses in fast memory", asked.accesses_in_fast(), performed.map(|done| done.fast_accesses));
    row("accesses in slow memory", asked.accesses_in_slow(), performed.map(|done| done.slow_accesses));
    row("promotions", asked.promotions, performed.map(|done| done.promotions));
    row("demotions", asked.demotions, performed.map(|done| done.demotions));
    row("operations", asked.operations, performed.map(|done| done.operations));
    if let Some(performed) = performed {
        line(format!(
            "run time {}, simulated; {} by the model of databases",
            units::seconds(performed.seconds),
            units::seconds(predicted)
        ));
    } else {
        line(format!("run time {} by the model of databases", units::seconds(predicted)));
    }
    out
}
