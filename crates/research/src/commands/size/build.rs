//! `terrace size build`: a performance database, record by record, through interruptions.
//!
//! In: machine, seed, number of records, a path. Out: a Parquet file, and on the way FILE.partial with what is finished. Must not:
//! leave a database that is not whole under its name, or compute a record twice that is on disk.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_common::say;

use anyhow::Context;
use serde_json::json;
use terrace_sizing::Database;
use terrace_sizing::database::LARGEST_DATABASE;
use terrace_sizing::journal::{self, Found};
use terrace_sizing::sampling::Design;
use terrace_study::sweep::partial;
use terrace_study::unwritable;
use terrace_tuning::curve::SIZES;

use super::store;
use crate::args::SizeBuildArguments;
use crate::options::misuse;
use crate::provenance::{Modelled, Provenance};
use crate::report::units;
use crate::terminal::bar;

/// Records computed before the journal is written: some tens of milliseconds of work on two cores.
const BLOCK: u64 = 64;
/// The journal is forced to the disk so often; a kill loses nothing of what is written, a power cut so much.
const SYNC: Duration = Duration::from_secs(2);

pub(super) fn run(arguments: &SizeBuildArguments) -> anyhow::Result<()> {
    let machine = crate::commands::sim::options::machine(&arguments.machine)?;
    let origin = store::origin(&machine, arguments.seed);
    let design = Design::new(&machine, arguments.seed);
    let total = u64::from(arguments.records);
    let out = arguments.out.clone().unwrap_or_else(|| usual_name(&machine.name));
    let partial = partial(&out);
    let (mut file, mut found) = continued(&partial, &origin)?;
    found.vectors.truncate(total as usize);
    found.seconds.truncate(total as usize * SIZES);
    let resumed = found.vectors.len() as u64;
    if resumed > 0 {
        say!("{}: goes on after {} records\n", partial.display(), units::count(resumed));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(arguments.threads.map_or(0, usize::from)).build()?;
    let bar = bar(total, resumed, "{bar:40} {human_pos}/{human_len} records, {per_sec}, {elapsed} gone, {eta} to go");
    let began = Instant::now();
    let mut synced = began;
    let mut next = resumed;
    let mut appended = Vec::new();
    while next < total {
        // A block for each thread, so that none waits long for the last.
        let end = (next + BLOCK * pool.current_num_threads() as u64).min(total);
        let block = pool.install(|| store::records(&design, next..end))?;
        appended.clear();
        for (number, (vector, times)) in (next..end).zip(&block) {
            journal::append(&mut appended, number as u32, vector, times);
        }
        file.write_all(&appended).with_context(|| format!("{}: the journal cannot be written", partial.display()))?;
        for (vector, times) in block {
            found.vectors.push(vector);
            found.seconds.extend(times);
        }
        if synced.elapsed() > SYNC {
            file.sync_data().with_context(|| partial.display().to_string())?;
            synced = Instant::now();
        }
        bar.inc(end - next);
        next = end;
    }
    bar.finish_and_clear();
    let seconds = began.elapsed().as_secs_f64();
    let database = Database::new(origin, found.vectors, found.seconds)?;
    let bytes = database.to_parquet()?;
    terrace_files::write(&out, &bytes).with_context(|| format!("{}: the database cannot be written", out.display()))?;
    drop(file);
    std::fs::remove_file(&partial).with_context(|| partial.display().to_string())?;
    let computed = total - resumed;
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
            units::count(total),
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

/// Opens the journal, with what is whole of it; it ends there now.
fn continued(path: &Path, origin: &terrace_sizing::database::Origin) -> anyhow::Result<(File, Found)> {
    let refuse = |error: std::io::Error| unwritable("--out", &path.display().to_string(), error);
    let mut file = terrace_files::open_in_place(path).map_err(refuse)?;
    // Two builds of one file would write over each other.
    file.try_lock().map_err(|_| misuse("--out", &path.display().to_string(), "another build is writing it"))?;
    let length = file.metadata().map_err(refuse)?.len();
    let found = if length == 0 {
        Found::default()
    } else {
        // Cut to what was read, a longer one would lose records.
        if length > LARGEST_DATABASE {
            return Err(misuse(
                "--out",
                &path.display().to_string(),
                "the journal is longer than any build's; remove it",
            ));
        }
        let mut bytes = Vec::new();
        (&file).take(LARGEST_DATABASE).read_to_end(&mut bytes).map_err(refuse)?;
        journal::read(&bytes, origin).map_err(|why| {
            misuse("--out", &path.display().to_string(), format!("{why}; remove it, or choose another --out"))
        })?
    };
    file.set_len(found.bytes as u64).map_err(refuse)?;
    file.seek(SeekFrom::End(0)).map_err(refuse)?;
    if found.bytes == 0 {
        file.write_all(&journal::header(origin)).map_err(refuse)?;
    }
    Ok((file, found))
}
