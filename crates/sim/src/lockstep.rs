//! Several machines under one program: each batch of accesses, and each event between batches, goes to all of them in turn.
//!
//! In: simulations at rest, then what a source delivers. Out: the same simulations, each as if it had run alone. Must not:
//! let one machine see or influence another, or change the order of a source's events.
//!
//! A program's accesses do not depend on the machine it runs on: a source delivers them in the program's own order, and
//! what happens earlier on which core is for each machine to decide. So the program runs once however many machines ask.
//! Nor does it depend on the policy which accesses miss a last-level cache that is indexed by address: where the machines
//! have the same cache, one filters for all of them.

use terrace_core::units::Vpn;
use terrace_machine::cache::{Cache, LineUse, Missed, PAGE_LINES};
use terrace_machine::load::Wait;
use terrace_workloads::{Access, AccessSink, Region};

use crate::colocate::Recorded;
use crate::processes::Process;
use crate::record::Record;
use crate::simulation::Simulation;

/// Accesses whose cache sets are asked for at once: what fits the first level of the host's caches.
const PIECE: usize = 256;

/// Simulations that run the same program side by side.
///
/// ```
/// # use terrace_core::units::{Bytes, TierId, Vpn};
/// # use terrace_machine::preset::Machine;
/// # use terrace_sim::{FastSize, SimConfig, Simulation, fixed::Fixed, lockstep::Lockstep};
/// # fn main() -> Result<(), terrace_sim::SimError> {
/// let config = SimConfig::new(Machine::preset("optane-6252")?, Bytes::mib(1), FastSize::Share(0.5));
/// let both = [0, 1].map(|tier| Simulation::new(config.clone(), Box::new(Fixed(TierId(tier)))));
/// let mut lockstep = Lockstep::new(both.into_iter().collect::<Result<_, _>>()?);
/// lockstep.map(Vpn(0), 256, false);
/// lockstep.feed(&[0u32, 1, 2]);
/// assert_eq!(lockstep.into_simulations().len(), 2);
/// # Ok(())
/// # }
/// ```
pub struct Lockstep {
    simulations: Vec<Simulation>,
    shared: Option<SharedCache>,
    /// Whether the first access or region was seen.
    begun: bool,
}

/// The cache of all machines, and the columns of the batch in work.
struct SharedCache {
    cache: Cache,
    uses: Vec<LineUse>,
    missed: Vec<Missed>,
}

impl Lockstep {
    /// Simulations that did not begin yet. All must lay regions on the same [boundary](Lockstep::boundary_of).
    pub fn new(simulations: Vec<Simulation>) -> Lockstep {
        Lockstep { simulations, shared: None, begun: false }
    }

    /// The simulations, in the order in which they were given.
    pub fn into_simulations(self) -> Vec<Simulation> {
        self.simulations
    }

    /// Bytes on whose multiples a simulation wants regions to begin. A program is laid out once, so those of one run agree.
    pub fn boundary_of(simulation: &Simulation) -> u64 {
        AccessSink::boundary(simulation)
    }

    /// Whether any of them goes on; one that failed takes no more part.
    pub fn goes_on(&self) -> bool {
        self.simulations.iter().any(Simulation::goes_on)
    }

    /// Accesses, in order.
    pub fn feed<R: Record>(&mut self, batch: &[R]) {
        self.begin();
        let (Some(shared), Some(first)) = (&mut self.shared, batch.first()) else {
            return self.each(|simulation| simulation.feed(batch));
        };
        self.simulations.iter_mut().for_each(|simulation| simulation.begin_at(Vpn(first.page())));
        shared.filter(batch, self.simulations[0].base());
        for simulation in &mut self.simulations {
            simulation.feed_filtered(batch, &shared.missed);
        }
    }

    /// Announces several processes. Call it before feeding any.
    pub(crate) fn apart(&mut self, processes: &[Process]) {
        self.each(|simulation| simulation.apart(processes));
    }

    /// Plays another process beside the source's, on every machine.
    pub(crate) fn play_beside(&mut self, first: &str, other: &Recorded) {
        self.each(|simulation| simulation.play_beside(first, other.clone()));
    }

    /// A region of `pages` pages from `first` on is allocated.
    pub fn map(&mut self, first: Vpn, pages: u64, file: bool) {
        self.begin();
        self.each(|simulation| simulation.map(first, pages, file));
    }

    /// A region is freed.
    pub fn unmap(&mut self, first: Vpn, pages: u64) {
        self.each(|simulation| simulation.unmap(first, pages));
    }

    /// A region is mapped by huge pages from now on, or no longer.
    pub fn remap(&mut self, first: Vpn, pages: u64, huge: bool) {
        self.each(|simulation| simulation.remap(first, pages, huge));
    }

    /// See [`Simulation::each_stands_for`].
    pub fn each_stands_for(&mut self, accesses: u64) {
        self.each(|simulation| simulation.each_stands_for(accesses));
    }

    fn each(&mut self, what: impl FnMut(&mut Simulation)) {
        self.simulations.iter_mut().for_each(what);
    }

    /// Before the first access: machines of equal caches give theirs up for one.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let [first, others @ ..] = self.simulations.as_slice() else { return };
        let Some(cache) = first.shareable_cache() else { return };
        if others.is_empty() || others.iter().any(|other| other.shareable_cache() != Some(cache)) {
            return;
        }
        let mut caches = self.simulations.iter_mut().filter_map(Simulation::give_up_cache);
        let cache = caches.next();
        caches.for_each(drop);
        self.shared = cache.map(|cache| SharedCache { cache, uses: Vec::new(), missed: Vec::new() });
    }
}

impl SharedCache {
    /// Which accesses of the batch miss, into `missed`.
    fn filter<R: Record>(&mut self, batch: &[R], base: u64) {
        let SharedCache { cache, uses, missed } = self;
        uses.clear();
        uses.extend(batch.iter().map(|access| {
            let line = access.page().wrapping_sub(base).wrapping_mul(PAGE_LINES) + u64::from(access.line());
            LineUse::new(line, access.wait() == Wait::Store)
        }));
        missed.resize(batch.len(), Missed::default());
        let mut count = 0;
        for (piece, uses) in uses.chunks(PIECE).enumerate() {
            uses.iter().for_each(|used| cache.prefetch(used.line()));
            let found = cache.run(uses, &mut missed[count..]);
            missed[count..count + found].iter_mut().for_each(|miss| *miss = miss.later_by(piece * PIECE));
            count += found;
        }
        missed.truncate(count);
    }
}

impl AccessSink for Lockstep {
    fn accesses(&mut self, batch: &[Access]) {
        self.feed(batch);
    }
    fn boundary(&self) -> u64 {
        self.simulations.first().map_or(terrace_core::units::PAGE_BYTES, Lockstep::boundary_of)
    }
    fn mapped(&mut self, region: &Region) {
        self.begin();
        self.each(|simulation| simulation.mapped(region));
    }
    fn unmapped(&mut self, region: &Region) {
        self.each(|simulation| simulation.unmapped(region));
    }
    fn fork(&mut self) {
        self.each(Simulation::fork);
    }
    fn barrier(&mut self) {
        self.each(Simulation::meet);
    }
    fn phase(&mut self, name: &'static str) {
        self.each(|simulation| simulation.begin(name));
    }
    fn wants_more(&self) -> bool {
        self.goes_on()
    }
}
