//! A second process next to the simulated one: recorded once, then replayed, with a fixed number of accesses for each of the first's.
//!
//! In: a workload. Out: its accesses in memory, as many at a time as are due beside the first process's. Must not: stop when the recording
//! ends: it begins again, as a service that goes on would; or judge what each got, which `processes` does.

use terrace_core::units::{BLOCK_PAGES, PAGE_BYTES};
use terrace_workloads::{Access, AccessSink, Parameters, Region};

use crate::error::SimError;
use crate::processes::Process;

/// First page of the second process, from the first of the first: 4 GiB further on.
pub(crate) const BOUNDARY: u32 = 1 << 20;
/// Most accesses kept: 64 MiB.
const MOST: usize = 4 << 20;

/// A recorded process.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The workload's name.
    pub name: String,
    size_bytes: u64,
    accesses: Vec<Access>,
    regions: Vec<Region>,
    /// Accesses of the first process for each of this.
    every: usize,
    at: usize,
    owed: usize,
    begun: bool,
}

impl AccessSink for Recorded {
    /// So that it can be played where all is mapped by 2 MiB.
    fn boundary(&self) -> u64 {
        u64::from(BLOCK_PAGES) * PAGE_BYTES
    }
    fn accesses(&mut self, batch: &[Access]) {
        let left = MOST - self.accesses.len();
        self.accesses.extend_from_slice(&batch[..batch.len().min(left)]);
    }
    fn mapped(&mut self, region: &Region) {
        self.regions.push(*region);
    }
    fn wants_more(&self) -> bool {
        self.accesses.len() < MOST
    }
}

impl Recorded {
    /// Runs a workload once and keeps its first 4 Mi accesses. `every`: accesses of the first process for each of these.
    ///
    /// # Errors
    /// When the workload cannot be built, its answer is wrong, or it makes no access.
    pub fn new(name: &str, parameters: &Parameters, every: usize) -> Result<Recorded, SimError> {
        let mut recorded = Recorded {
            name: name.to_owned(),
            size_bytes: parameters.size_bytes,
            accesses: Vec::new(),
            regions: Vec::new(),
            every: every.max(1),
            at: 0,
            owed: 0,
            begun: false,
        };
        terrace_workloads::run_traced(name, parameters, &mut recorded)
            .map_err(|error| SimError::Source(error.to_string()))?;
        if recorded.accesses.is_empty() {
            return Err(SimError::Source(format!("workload {name} makes no access to be played beside another")));
        }
        Ok(recorded)
    }

    /// A process of that name, and this one beside it.
    pub(crate) fn beside(&self, first: &str) -> [Process; 2] {
        [(first, 0), (self.name.as_str(), BOUNDARY)]
            .map(|(name, first_page)| Process { name: name.to_owned(), first_page })
    }

    /// Its size, in bytes of the scaled machine.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its regions, the first time; none later.
    pub(crate) fn begin(&mut self) -> Vec<Region> {
        if std::mem::replace(&mut self.begun, true) { Vec::new() } else { self.regions.clone() }
    }

    /// Its work while the first process makes `accesses` accesses.
    pub(crate) fn go_on(&mut self, accesses: usize) -> Vec<Access> {
        self.owed += accesses;
        let count = self.owed / self.every;
        self.owed %= self.every;
        let from = self.at;
        self.at = (self.at + count) % self.accesses.len();
        self.accesses.iter().copied().cycle().skip(from).take(count).collect()
    }
}
