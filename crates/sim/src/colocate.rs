//! A second process beside the one that runs: recorded once, then played along, so many accesses for each of the first's.
//!
//! In: a source. Out: its accesses in memory, moved behind a boundary, and fed in between the first process's. Must not: stop when the
//! recording ends: it begins anew, as a service that goes on would; or judge what each got, which `processes` does.

use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES};
use terrace_workloads::{Access, AccessSink, Parameters, Region};

use crate::SimError;
use crate::processes::Process;
use crate::run::Source;
use crate::simulation::Simulation;

/// First page of the second process, from the first of the first: 4 GiB further on.
const BOUNDARY: u32 = 1 << 20;
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
}

/// A source with a recorded process beside it.
pub struct Beside {
    /// The first process.
    pub first: Box<dyn Source>,
    /// The second.
    pub other: Recorded,
}

impl Source for Beside {
    fn name(&self) -> String {
        self.first.name()
    }
    /// That of both.
    fn footprint(&self) -> Bytes {
        Bytes::new(self.first.footprint().get() + self.other.size_bytes)
    }
    fn processes(&self) -> Vec<Process> {
        self.other.beside(&self.first.name()).to_vec()
    }
    fn play(&self, into: &mut Simulation) -> Result<(), SimError> {
        into.play_beside(&self.first.name(), self.other.clone());
        self.first.play(into)
    }
}

impl Simulation {
    /// Plays a recorded process along with whatever is fed. To be asked for before anything is.
    pub(crate) fn play_beside(&mut self, first: &str, recorded: Recorded) {
        self.apart(&recorded.beside(first));
        self.beside = Some(Box::new(recorded));
    }

    /// The second process's share of what the first has just done.
    pub(crate) fn feed_beside(&mut self, accesses: usize) {
        let Some(mut other) = self.beside.take() else { return };
        let shift = (u64::from(BOUNDARY) << 12) + (self.base() << 12);
        let moved = |address: u64| address - terrace_workloads::traced::FIRST_ADDRESS + shift;
        if !other.begun {
            other.begun = true;
            for region in other.regions.clone() {
                self.mapped(&Region { start: moved(region.start), ..region });
            }
        }
        other.owed += accesses;
        let count = other.owed / other.every;
        other.owed %= other.every;
        let mut batch = Vec::with_capacity(count);
        for _ in 0..count {
            let mut access = other.accesses[other.at];
            access.address = moved(access.address);
            batch.push(access);
            other.at = (other.at + 1) % other.accesses.len();
        }
        self.feed_alone(&batch);
        self.beside = Some(other);
    }
}
