//! Performance databases on disk, and in memory where none is given.
//!
//! In: paths, machines. Out: an index ready for queries, with where it came from. Must not: take a file for a database that is
//! not whole, or of another machine.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use rayon::prelude::*;
use terrace_machine::preset::Machine;
use terrace_sizing::database::{LARGEST_DATABASE, Origin, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::{ConfigVector, Database, Index, model};
use terrace_tuning::curve::SIZES;

use crate::args::DatabaseArguments;
use crate::options::misuse;

/// Records of a database that is built for one command. A second or two of one core.
const IN_MEMORY: u64 = 20_000;
const IN_MEMORY_SEED: u64 = 1;

/// A database ready for queries.
pub(crate) struct Ready {
    pub index: Index,
    pub machine: Machine,
    /// Time to read and check the file, or to build the records.
    pub read: Duration,
    /// Time to index the records.
    pub indexed: Duration,
}

/// What a database is made of.
pub(crate) fn origin(machine: &Machine, seed: u64) -> Origin {
    Origin {
        machine: machine.name.clone(),
        machine_checksum: machine_checksum(machine),
        seed,
        fast_divisor: FastDivisor::default(),
    }
}

/// A record by the model.
pub(crate) fn record(design: &Design, number: u64) -> anyhow::Result<(ConfigVector, [f32; SIZES])> {
    let vector = design.vector(number);
    let times = model::record(&vector, design.machine(), FastDivisor::default());
    times.map(|times| (vector, times)).with_context(|| format!("record {number} of the design"))
}

/// Opens a database.
///
/// # Errors
/// When it cannot be read, or is no whole database; exit code 2.
pub(crate) fn open(path: &Path) -> anyhow::Result<Database> {
    let refuse = |why: &dyn std::fmt::Display| misuse("--db", &path.display().to_string(), why);
    let bytes = terrace_files::read(path, LARGEST_DATABASE).map_err(|error| refuse(&error))?;
    if bytes.is_empty() {
        return Err(refuse(&"it is empty"));
    }
    Database::from_parquet(bytes.into()).map_err(|error| refuse(&error))
}

/// The index of the database that the arguments name, for the machine they name.
///
/// # Errors
/// When there is no such machine, or the file is no database of it; exit code 2.
pub(crate) fn index(arguments: &DatabaseArguments) -> anyhow::Result<Ready> {
    let machine = crate::commands::sim::options::machine(&arguments.machine)?;
    let began = Instant::now();
    let database = match &arguments.db {
        Some(path) => {
            let database = open(path)?;
            if let Some(why) = database.is_foreign_to(&machine) {
                return Err(misuse("--db", &path.display().to_string(), format!("{why}; see --machine")));
            }
            database
        }
        None => in_memory(&machine)?,
    };
    let read = began.elapsed();
    let began = Instant::now();
    let index = ready(database)?;
    Ok(Ready { index, machine, read, indexed: began.elapsed() })
}

/// A small database of the machine.
pub(crate) fn in_memory(machine: &Machine) -> anyhow::Result<Database> {
    let design = Design::new(machine, IN_MEMORY_SEED);
    let found =
        (0..IN_MEMORY).into_par_iter().map(|number| record(&design, number)).collect::<anyhow::Result<Vec<_>>>()?;
    let (vectors, times): (Vec<_>, Vec<_>) = found.into_iter().unzip();
    Ok(Database::new(origin(machine, IN_MEMORY_SEED), vectors, times.into_flattened())?)
}

/// The index of a database.
pub(crate) fn ready(database: Database) -> anyhow::Result<Index> {
    Index::new(database).map_err(|error| anyhow::anyhow!("the records cannot be indexed: {error}"))
}
