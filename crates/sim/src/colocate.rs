//! A second process beside the one that runs: recorded once, then played along, so many accesses for each of the first's.
//!
//! In: a source. Out: its accesses in memory, moved behind a boundary, and fed in between the first process's; what each process
//! got of fast memory. Must not: stop when the recording ends: it begins anew, as a service that goes on would.
//!
//! The second process is a space of its own to the engine and to the page tables: what a policy keeps for each space, it keeps
//! for each process.

use terrace_core::units::{BLOCK_PAGES, Bytes, PAGE_BYTES, SpaceId, TierId};
use terrace_workloads::{Access, AccessSink, Parameters, Region};

use crate::SimError;
use crate::run::Source;
use crate::simulation::{SPACE, Simulation};

/// The second process's space.
pub(crate) const OTHER_SPACE: SpaceId = SpaceId(1);

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

    /// The first page of this process, as the simulation numbers pages.
    pub fn first_page(&self) -> u32 {
        BOUNDARY
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
    fn play(&self, into: &mut Simulation) -> Result<(), SimError> {
        into.play_beside(self.other.clone());
        self.first.play(into)
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
    /// First page of the second.
    boundary: u32,
    tiers: [[u64; TierId::MAX]; 2],
    /// Accesses of the first over which the means are taken.
    over: u64,
    /// Pages with memory and pages in fast memory, times the accesses they were so.
    sums: [[u64; 2]; 2],
}

impl Served {
    #[inline(always)]
    pub(crate) fn add(&mut self, page: u32, tier: usize) {
        self.tiers[usize::from(page >= self.boundary)][tier] += 1;
    }
}

impl Simulation {
    /// Plays a recorded process along with whatever is fed. To be asked for before anything is.
    pub(crate) fn play_beside(&mut self, recorded: Recorded) {
        self.second_from = Some(BOUNDARY);
        if let Some(run) = &mut self.hot.mmu {
            let served = Served { boundary: BOUNDARY, tiers: [[0; TierId::MAX]; 2], over: 0, sums: [[0; 2]; 2] };
            run.served = Some(Box::new(served));
        }
        self.beside = Some(Box::new(recorded));
    }

    /// The process that a page belongs to.
    pub(crate) fn space_of(&self, page: u32) -> SpaceId {
        if self.second_from.is_some_and(|boundary| page >= boundary) { OTHER_SPACE } else { SPACE }
    }

    /// What each of two processes got; empty where there is one, or no MMU that sees whose accesses are whose.
    pub(crate) fn processes(&self, workload: &str) -> Vec<ProcessReport> {
        let served = self.hot.mmu.as_ref().and_then(|run| run.served.as_deref());
        let (Some(served), Some(other)) = (served, &self.beside) else { return Vec::new() };
        let mean = |sum: u64| Bytes::of_pages(sum.checked_div(served.over).unwrap_or(0)).get();
        [workload, other.name.as_str()]
            .into_iter()
            .zip(served.tiers.iter().zip(&served.sums))
            .map(|(name, (tiers, sums))| {
                let all: u64 = tiers.iter().sum();
                ProcessReport {
                    workload: name.to_owned(),
                    mean_resident_bytes: mean(sums[0]),
                    mean_fast_bytes: mean(sums[1]),
                    tier_accesses: tiers[..self.tiers.len()].to_vec(),
                    fast_hit_share: if all > 0 { tiers[0] as f64 / all as f64 } else { 0.0 },
                }
            })
            .collect()
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
        if let Some(served) = self.hot.mmu.as_mut().and_then(|run| run.served.as_deref_mut()) {
            let pages = self.engine.pages();
            served.over += accesses as u64;
            for (space, sums) in [SPACE, OTHER_SPACE].into_iter().zip(&mut served.sums) {
                sums[0] += pages.footprint(space) * accesses as u64;
                sums[1] += pages.used(space, TierId::FAST) * accesses as u64;
            }
        }
        self.beside = Some(other);
    }
}
