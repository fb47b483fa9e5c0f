//! A second process beside the one that runs: recorded once, then played along, so many accesses for each of the first's.
//!
//! In: a workload. Out: its accesses in memory, as many at a time as are due beside the first process's; what each process got of fast
//! memory. Must not: stop when the recording ends: it begins anew, as a service that goes on would.
//!
//! The second process is a space of its own to the engine and to the page tables: what a policy keeps for each space, it keeps
//! for each process.

use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, SpaceId, TierId};
use terrace_workloads::{Access, AccessSink, Parameters, Region};

use crate::error::SimError;

/// The space of the first process, or of the only one.
pub(crate) const SPACE: SpaceId = SpaceId(0);
/// The second process's space.
pub(crate) const OTHER_SPACE: SpaceId = SpaceId(1);

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

    /// The first page of this process, as the simulation numbers pages.
    pub fn first_page(&self) -> u32 {
        BOUNDARY
    }

    /// Its size, in bytes of the scaled machine.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Its regions, the first time; none later.
    pub(crate) fn begin(&mut self) -> Vec<Region> {
        if std::mem::replace(&mut self.begun, true) { Vec::new() } else { self.regions.clone() }
    }

    /// What it does while the first process makes so many accesses.
    pub(crate) fn go_on(&mut self, accesses: usize) -> Vec<Access> {
        self.owed += accesses;
        let count = self.owed / self.every;
        self.owed %= self.every;
        let from = self.at;
        self.at = (self.at + count) % self.accesses.len();
        self.accesses.iter().copied().cycle().skip(from).take(count).collect()
    }
}

/// What one of two processes got.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ProcessReport {
    /// Its workload.
    pub workload: String,
    /// Memory it had, the mean over the first process's accesses.
    pub mean_resident_bytes: u64,
    /// Of that, in the fastest tier.
    pub mean_fast_bytes: u64,
    /// Accesses served by each tier.
    pub tier_accesses: Vec<u64>,
    /// Share of its memory accesses that the fastest tier served.
    pub fast_hit_share: f64,
}

/// What each of two processes was served, and had.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    tiers: [[u64; TierId::MAX]; 2],
    /// Accesses of the first over which the means are taken.
    over: u64,
    /// Pages with memory and pages in fast memory, times the accesses they were so.
    sums: [[u64; 2]; 2],
}

impl Served {
    pub(crate) fn new() -> Served {
        Served { tiers: [[0; TierId::MAX]; 2], over: 0, sums: [[0; 2]; 2] }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, page: u32, tier: usize) {
        self.tiers[usize::from(page >= BOUNDARY)][tier] += 1;
    }

    /// Each process has had so many pages, and so many of them in fast memory, for as long as the first made so many accesses.
    pub(crate) fn held(&mut self, accesses: u64, pages: [[u64; 2]; 2]) {
        self.over += accesses;
        for (sum, pages) in self.sums.iter_mut().flatten().zip(pages.into_iter().flatten()) {
            *sum += pages * accesses;
        }
    }

    /// What each of the two got, on a machine of so many tiers.
    pub(crate) fn reports(&self, names: [&str; 2], tiers: usize) -> Vec<ProcessReport> {
        let mean = |sum: u64| Bytes::of_pages(sum.checked_div(self.over).unwrap_or(0)).get();
        let one = |(name, (served, sums)): (&str, (&[u64; TierId::MAX], &[u64; 2]))| {
            let all: u64 = served.iter().sum();
            ProcessReport {
                workload: name.to_owned(),
                mean_resident_bytes: mean(sums[0]),
                mean_fast_bytes: mean(sums[1]),
                tier_accesses: served[..tiers].to_vec(),
                fast_hit_share: if all > 0 { served[0] as f64 / all as f64 } else { 0.0 },
            }
        };
        names.into_iter().zip(self.tiers.iter().zip(&self.sums)).map(one).collect()
    }
}
