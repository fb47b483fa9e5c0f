//! `terrace size build`: a performance database, record by record, through interruptions.
//!
//! In: machine, seed, number of records, a path. Out: a Parquet file, and on the way FILE.partial with what is finished. Must not:
//! leave a database that is not whole under its name, or compute a record twice that is on disk.

use std::path::PathBuf;
use std::time::Instant;
use terrace_common::say;

use rayon::prelude::*;
use serde_json::json;
use terrace_sizing::Database;
use terrace_sizing::database::VERSION;
use terrace_sizing::sampling::Design;
use terrace_study::journal::Journal;
use terrace_tuning::curve::SIZES;

use super::store;
use crate::args::SizeBuildArguments;
use crate::provenance::{Modelled, Provenance};
use crate::report::units;
use crate::terminal::bar;

pub(super) fn run(arguments: &SizeBuildArguments) -> anyhow::Result<()> {
    let machine = crate::commands::sim::options::machine(&arguments.machine)?;
    let origin = store::origin(&machine, arguments.seed);
    let design = Design::new(&machine, arguments.seed);
    let total = arguments.records as usize;
    let out = arguments.out.clone().unwrap_or_else(|| usual_name(&machine.name));
    let of = json!({
        "terrace_sizing_journal": VERSION, "machine": origin.machine, "machine_checksum": origin.machine_checksum,
        "seed": origin.seed, "fast_divisor": origin.fast_divisor,
    });
    let foreign = "it is of another build (machine, seed or version), or no journal at all";
    let journal = Journal::open("--out", &out, &of, "build", foreign)?;
    let missing = journal.missing(total);
    let (computed, resumed) = (missing.len() as u64, (total - missing.len()) as u64);
    if resumed > 0 {
        say!("{}: goes on after {} records\n", journal.path().display(), units::count(resumed));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads.map_or(0, usize::from)).build()?;
    let bar =
        bar(total as u64, resumed, "{bar:40} {human_pos}/{human_len} records, {per_sec}, {elapsed} gone, {eta} to go");
    let began = Instant::now();
    pool.install(|| {
        missing.into_par_iter().try_for_each(|number| {
            let (_, times) = store::record(&design, number as u64)?;
            journal.put_cell(number, &times.as_slice())?;
            bar.inc(1);
            anyhow::Ok(())
        })
    })?;
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let vectors = (0..total as u64).map(|number| design.vector(number)).collect();
    let database = Database::new(origin, vectors, journal.cells::<Vec<f32>>(total)?.concat())?;
    let bytes = database.to_parquet()?;
    journal.finish(&out, &bytes, "the database cannot be written")?;
    let rate = if seconds > 0.0 { computed as f64 / seconds } else { 0.0 };
    if arguments.json {
        super::super::print_json(&Provenance::here().on(&machine).stamp(&json!({
            "file": out, "machine": machine.name, "seed": arguments.seed, "records": total, "sizes": SIZES,
            "resumed_records": resumed, "computed_records": computed, "seconds": seconds, "records_per_second": rate,
            "threads": pool.current_num_threads(), "bytes": bytes.len(),
        }))?)
    } else {
        super::super::print_text(&format!(
            "{}: {} records of {SIZES} sizes for {}, {}; {} computed in {} ({} records a second)\n",
            out.display(),
            units::count(total as u64),
            machine.name,
            units::bytes(bytes.len() as u64),
            units::count(computed),
            units::seconds(seconds),
            units::count(rate as u64)
        ))
    }
}

/// Where a database goes of which nobody has said where. A machine's file may name it with characters that no file name should have.
fn usual_name(machine: &str) -> PathBuf {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() || "-_.".contains(letter) { letter } else { '-' };
    PathBuf::from(format!("{}.parquet", machine.chars().map(plain).collect::<String>().trim_start_matches('.')))
}
