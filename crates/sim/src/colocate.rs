//! A second process beside the one that runs: recorded once, then played along, so many accesses for each of the first's.
//!
//! In: a source. Out: its accesses in memory, moved behind a boundary, and fed in between the first process's. Must not: stop when
//! the recording ends: it begins anew, as a service that goes on would.

use terrace_core::units::Vpn;
use terrace_workloads::{Access, AccessSink, Parameters, Region};

use crate::SimError;
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
    accesses: Vec<Access>,
    regions: Vec<Region>,
    /// Accesses of the first process for each of this.
    every: usize,
    at: usize,
    owed: usize,
    begun: bool,
}

impl AccessSink for Recorded {
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

    /// The first page of this process, as the simulation numbers pages.
    pub fn first_page(&self) -> u32 {
        BOUNDARY
    }
}

impl Simulation {
    /// Plays a recorded process along with whatever is fed from now on.
    pub(crate) fn play_beside(&mut self, recorded: Recorded) {
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
                let pages = region.bytes.max(1).div_ceil(4096);
                self.map(Vpn(moved(region.start) >> 12), pages, region.file_backed);
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
