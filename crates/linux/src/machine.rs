//! A machine made ready for management: its tiers, compressed swap if it is to be set up, and what moves cost on it.
//!
//! In: what is wanted for slow memory. Out: a [`Machine`], and what must be released afterwards. Must not: change anything that
//! cannot be put back; the guard knows of every change before it is made.

use std::path::Path;
use std::time::Duration;

use terrace_core::governor::GovernorConfig;
use terrace_core::plan::Failure;
use terrace_core::policy::Needs;
use terrace_core::units::{Bytes, TierId};

use crate::cgroup_memory::{CgroupMemory, without_swap};
use crate::doctor::{ChooseError, Chosen, choose_any};
use crate::guard::{Guard, GuardError};
use crate::huge_pages::{self, HugePages};
use crate::move_cost::{self, MoveCost};
use crate::movers::move_pages::allowed_nodes;
use crate::movers::{Mover, Movers};
use crate::prices::KindPrice;
use crate::process::ProcessError;
use crate::rights::Rights;
use crate::swap_in::{self, FolioSize, SwapInError};
use crate::topology::declared::{DeclaredTier, Resolved, SlowTier, zram_is_there};
use crate::topology::{Tier, TierKind, TierMap, Topology, TopologyError};
use crate::trackers::pair::with_refaults;
use crate::trackers::{Tracker, accessed_bits, walker};
use crate::trials::{self, Trial, Verdict};
use crate::zram::trial::chosen_for;
use crate::zram::{ZramError, ZramOptions, ZramSwap, belongs_to_a_run, has_pids_of_machine, leftovers};

/// What is wanted of the machine.
#[derive(Clone, Debug)]
pub enum Wanted<'a> {
    /// The tiers as found, and this for slow memory.
    Slow(&'a SlowTier),
    /// These tiers, whatever is found.
    Tiers(&'a [DeclaredTier]),
}

impl Wanted<'_> {
    /// What is found, with what is wanted.
    fn resolved(&self, root: &Path) -> Result<Resolved, MachineError> {
        let mut topology = Topology::discover(root)?;
        // What another Terrace set up for its own run goes when that run ends: it is not there for this one.
        topology.swaps.retain(|area| !belongs_to_a_run(&area.device));
        let resolved = match self {
            Wanted::Slow(slow) => topology.with_slow(slow, zram_is_there(root)),
            Wanted::Tiers(tiers) => topology.with_declared(tiers),
        };
        resolved.map_err(MachineError::Wanted)
    }
}

/// A machine made ready.
pub struct Machine {
    /// Its tiers, fastest first.
    pub tiers: TierMap,
    /// N of the slow tier's /dev/zramN, if it is one.
    pub zram: Option<u32>,
    /// Used where the user sets no rate: bytes a second.
    pub default_rate: Option<Bytes>,
    /// What moves cost, as measured just now.
    pub move_cost: MoveCost,
    /// What was odd about the machine.
    pub notes: Vec<String>,
    /// What is odd about the machine and changes nothing for a run.
    pub background: Vec<String>,
    /// What was set up.
    pub held: Held,
    /// Whether pages move; otherwise what would move is only said.
    pub moves: bool,
    /// Why no page of this process could leave for swap, if none could.
    pub no_page_out: Option<NoPageOut>,
}

/// Why no page goes to swap, though there is some: found by pages of this process, before one of a program is asked to leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPageOut {
    /// A cgroup allows no more swap.
    #[error("no page can leave: the cgroup {path} may have no more swap (memory.swap.max, docker run --memory-swap)")]
    Cgroup {
        /// Its directory.
        path: String,
    },
    /// The swap is full.
    #[error("no page can leave: {device} has no room ({free} of {size} is free); add swap, or free some")]
    Full {
        /// The swap area.
        device: String,
        /// What is left of it.
        free: Bytes,
        /// What it can hold.
        size: Bytes,
    },
    /// The call is refused.
    #[error(
        "no page can leave: process_madvise is refused ({error}){}",
        if *has_right { "; CAP_SYS_NICE is held, so a seccomp filter refuses it" } else { ": it needs CAP_SYS_NICE" }
    )]
    Refused {
        /// What the kernel said.
        error: String,
        /// Whether this process holds the right to it.
        has_right: bool,
    },
    /// The kernel accepted the advice and did nothing.
    #[error("no page can leave: the kernel accepts MADV_PAGEOUT and keeps every page of a trial in memory")]
    Stayed,
}

impl NoPageOut {
    /// Finds the cause: a cgroup, a full swap, a refused call.
    fn found(root: &Path, topology: &Topology, failure: Option<Failure>) -> NoPageOut {
        if let Some(Failure::Errno(errno)) = failure {
            let error = std::io::Error::from_raw_os_error(errno).to_string();
            return NoPageOut::Refused { error, has_right: Rights::of_this_process().holds("CAP_SYS_NICE") };
        }
        if let Some(refusal) = NoPageOut::of_process(root, std::process::id()) {
            return refusal;
        }
        let (free, size) = topology
            .swaps
            .iter()
            .fold((Bytes::ZERO, Bytes::ZERO), |(free, size), area| (free + area.free_bytes(), size + area.size_bytes));
        match topology.swaps.first() {
            Some(area) if failure == Some(Failure::NoRoom) || free.pages() < LEAST_ROOM => {
                NoPageOut::Full { device: area.device.clone(), free, size }
            }
            _ => NoPageOut::Stayed,
        }
    }

    /// Whether a process's cgroup keeps its pages out of swap.
    pub fn of_process(root: &Path, pid: u32) -> Option<NoPageOut> {
        let levels = CgroupMemory::read(root).levels(pid);
        without_swap(&levels).map(|level| NoPageOut::Cgroup { path: level.path.display().to_string() })
    }

    /// Whether it holds for this process alone, and perhaps not for one in another cgroup.
    pub fn is_of_own_cgroup(&self) -> bool {
        matches!(self, NoPageOut::Cgroup { .. })
    }
}

/// Pages of swap below which it counts as full: the kernel hands it out in clusters to each processor.
const LEAST_ROOM: u64 = 256;

/// What was set up, in the order it must be undone.
pub struct Held {
    zram: Option<ZramSwap>,
    guard: Option<Guard>,
    /// The setting for returns, which the guard puts back.
    swap_in: Option<swap_in::Changed>,
}

/// What could move on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CouldMove {
    /// There is one tier, and none is to be set up.
    Nothing,
    /// Slow memory is there.
    ToWhatIsThere,
    /// Compressed swap is to be set up first.
    ToOwnSwap,
}

impl CouldMove {
    /// Whether pages could move at all.
    pub fn anything(self) -> bool {
        self != CouldMove::Nothing
    }

    /// Whether compressed swap is to be set up.
    pub fn sets_up_zram(self) -> bool {
        self == CouldMove::ToOwnSwap
    }
}

/// Why the machine cannot be made ready. Nothing was changed then, or it was put back.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// What is wanted does not fit what is there.
    #[error(transparent)]
    Wanted(TopologyError),
    /// What is there could not be found out.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// Changes could not be guarded.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// Compressed swap could not be set up.
    #[error(transparent)]
    Zram(#[from] ZramError),
    /// Pages could not be made to come back in folios of the wanted size.
    #[error(transparent)]
    SwapIn(#[from] SwapInError),
    /// This very process could not be measured on.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// This very process may not use a tier's nodes, and so cannot move anything there.
    #[error(
        "tier {tier} (nodes {nodes:?}) is out of Terrace's own reach: its cpuset allows nodes {allowed:?} only, and the kernel moves pages to no \
         others; start Terrace in a cgroup whose cpuset.mems has the nodes of all tiers"
    )]
    OutOfReach {
        /// The tier.
        tier: String,
        /// Its nodes.
        nodes: Vec<u32>,
        /// The nodes that Terrace may use.
        allowed: Vec<u32>,
    },
}

/// Page-outs at more than this take a whole core for compression and leave none for the program (measured: 4 to 14 us
/// of CPU a dirty page, docs/performance.md).
const SWAP_RATE: Bytes = Bytes::mib(256);
/// Between nodes the copy is ten times cheaper.
const NODE_RATE: Bytes = Bytes::gib(1);
/// Cooldown of a page moved between nodes: the kernel's own hint scanner does not revisit a page sooner either
/// (numa_balancing's scan_period_min_ms, Documentation/scheduler/sched-debug.rst).
const NODE_REST: Duration = Duration::from_secs(1);

/// Longest time one call may hold the program's memory map: what a person does not notice.
pub(crate) const STALL_DEADLINE: Duration = Duration::from_millis(20);

impl Machine {
    /// Makes the machine ready, with pages coming back from swap in folios of this size, if one is given. Without `moves` nothing is changed: what
    /// would be set up is only planned for. Compressed swap gets the compressor that suits the pages of `program`, if one is given. The
    /// service gives none: its device serves all classes, whose programs come and go.
    ///
    /// # Errors
    /// See [`MachineError`].
    pub fn prepare(
        wanted: &Wanted<'_>,
        swap_in: Option<FolioSize>,
        moves: bool,
        program: Option<u32>,
    ) -> Result<Machine, MachineError> {
        let root = Path::new("/");
        if let Some(size) = swap_in {
            swap_in::check(root, size)?;
        }
        let Resolved { mut topology, zram_to_set_up } = wanted.resolved(root)?;
        let mut held = Held { zram: None, guard: None, swap_in: None };
        if let Some(size) = zram_to_set_up.filter(|_| !moves) {
            // A dry run changes nothing: it plans for the tier that a real one would set up.
            topology.tiers.push(planned_zram(topology.tiers.len(), size));
        } else if let Some(size) = zram_to_set_up {
            let any_will_do = matches!(wanted, Wanted::Slow(SlowTier::Auto));
            held.set_up_zram(root, &mut topology, size, program, any_will_do)?;
        }
        let tiers = topology.tier_map()?;
        if moves {
            within_reach(tiers.tiers(), &allowed_nodes(std::process::id()).map_err(own_status)?)?;
        }
        let zram = held.zram.as_ref().map(ZramSwap::id).or_else(|| zram_number(&tiers));
        // Before what a return costs is measured.
        if let Some(size) = swap_in.filter(|_| moves) {
            topology.notes.extend(held.set_swap_in(root, &tiers, size)?);
        } else if swap_in.is_some() {
            // A dry run sets nothing, and says what is known.
            topology.notes.extend(trials::folios_untried(root, &tiers).complaint().map(str::to_owned));
        }
        if moves && tiers.swap_tier().is_some() {
            let tried = trials::survey(root, &tiers)?;
            topology.notes.extend(tried.iter().filter_map(Trial::complaint).map(str::to_owned));
            topology.notes.extend(huge_pages::are_forbidden(root).then(|| huge_pages::NONE_IS_MADE.to_owned()));
        }
        let (mut move_cost, mut no_page_out) = (MoveCost::default(), None);
        if let Some(swap) = tiers.swap_tier().filter(|_| moves) {
            let trial = move_cost::refault(&tiers, swap, STALL_DEADLINE)?;
            no_page_out = (trial.left == 0).then(|| NoPageOut::found(root, &topology, trial.failure));
            move_cost.refault = trial.cost;
            move_cost.page_out = move_cost::page_out(&tiers, swap, STALL_DEADLINE)?;
            move_cost.page_out_mover = move_cost::page_out_mover(&tiers, swap, STALL_DEADLINE)?;
            move_cost.block_out = move_cost::block_out(&tiers, swap, STALL_DEADLINE)?;
        }
        if moves {
            (move_cost.between_nodes, move_cost.measured_pages) = move_cost::between_nodes(&tiers, STALL_DEADLINE)?;
        }
        let default_rate = match (tiers.swap_tier(), tiers.tiers().len()) {
            (_, 1) => None,
            (Some(_), _) => Some(SWAP_RATE),
            (None, _) => Some(NODE_RATE),
        };
        Ok(Machine {
            tiers,
            zram,
            default_rate,
            move_cost,
            notes: topology.notes,
            background: topology.background,
            held,
            moves,
            no_page_out,
        })
    }

    /// What a page-out takes of a thread that runs meanwhile, measured now: for tuners, who pay for page-outs out of a target. `None` where
    /// that could not be measured, or nothing goes out.
    pub fn page_out_cost(&self) -> Option<move_cost::Interval> {
        let swap = self.tiers.swap_tier().filter(|_| self.moves)?;
        move_cost::page_out(&self.tiers, swap, STALL_DEADLINE).ok().flatten()
    }

    /// How moves should be governed on it, unless somebody says otherwise.
    pub fn governor(&self) -> GovernorConfig {
        let usual = GovernorConfig::default();
        GovernorConfig {
            rate: self.default_rate,
            refault_cost: self.move_cost.refault.unwrap_or(usual.refault_cost),
            // Between nodes a mistake costs slower accesses and a copy, not a fault.
            // Whole blocks leave at a hundredth of what their return costs: their price alone would not keep all of them from leaving at once.
            swap: self.tiers.swap_tier(),
            cooldown: if self.tiers.swap_tier().is_some() { usual.cooldown } else { NODE_REST },
            ..usual
        }
    }

    /// What could move on a machine with this slow memory, without setting anything up.
    ///
    /// # Errors
    /// When what is wanted does not fit what is there.
    pub fn could_move(wanted: &Wanted<'_>) -> Result<CouldMove, MachineError> {
        let resolved = wanted.resolved(Path::new("/"))?;
        Ok(match (resolved.zram_to_set_up, resolved.topology.tiers.len()) {
            (Some(_), _) => CouldMove::ToOwnSwap,
            (None, 1) => CouldMove::Nothing,
            (None, _) => CouldMove::ToWhatIsThere,
        })
    }

    /// A mover for these tiers; where nothing is to move, one that only says what it would do.
    pub fn mover(&self) -> Box<dyn Mover> {
        Box::new(if self.moves { Movers::for_tiers(&self.tiers, STALL_DEADLINE) } else { Movers::dry_run() })
    }

    /// One that moves nothing and splits huge pages, to look inside of them.
    pub fn mover_that_only_splits(&self) -> Box<dyn Mover> {
        Box::new(Movers::that_only_split(STALL_DEADLINE))
    }

    /// Why nothing can be said of the inside of huge pages here, if that is so: tried on memory of this process.
    ///
    /// # Errors
    /// When this process cannot be read.
    pub fn cannot_look_inside() -> Result<Option<String>, MachineError> {
        if HugePages::read(Path::new("/")).enabled.is_none() {
            return Ok(Some(
                "this kernel has no huge pages (CONFIG_TRANSPARENT_HUGEPAGE), so there is no inside to look into"
                    .to_owned(),
            ));
        }
        Ok(trials::split()?.complaint().map(str::to_owned))
    }

    /// A tracker that has proven itself, completed by refaults where it does not find them itself; with which of the needs it serves, and one
    /// line for each tracker on why it was taken, or not.
    ///
    /// # Errors
    /// When none works.
    pub fn tracker(&self, any: &[Needs], requested: Option<&str>) -> Result<Chosen, ChooseError> {
        let (tracker, needs, reasons) = choose_any(any, requested)?;
        let (tracker, reasons) = self.complete(tracker, reasons);
        Ok((tracker, needs, reasons))
    }

    /// The readers of page tables find returned pages themselves, at their next round; the others learn of them from the faults.
    pub fn complete(&self, tracker: Box<dyn Tracker>, mut reasons: Vec<String>) -> (Box<dyn Tracker>, Vec<String>) {
        if self.tiers.swap_tier().is_none() || [walker::NAME, accessed_bits::NAME].contains(&tracker.name()) {
            return (tracker, reasons);
        }
        let (tracker, heard) = with_refaults(tracker);
        if let Err(reason) = heard {
            reasons.push(format!("refaults are counted and not located: {reason}"));
        }
        (tracker, reasons)
    }
}

impl Held {
    /// Sets up compressed swap of this size; where that cannot be and any slow memory will do, takes swap that is there, if slower.
    fn set_up_zram(
        &mut self,
        root: &Path,
        topology: &mut Topology,
        size: Bytes,
        program: Option<u32>,
        any_will_do: bool,
    ) -> Result<(), MachineError> {
        topology.notes.extend(remove_leftovers());
        match set_up(size, program) {
            Ok((swap, guard)) => {
                topology.add_swap_device(root, &swap.device())?;
                topology.notes.extend(stays_with_a_killed_container(&swap));
                (self.zram, self.guard) = (Some(swap), Some(guard));
            }
            Err(refused) => match topology.swaps.first().filter(|area| area.free_bytes() > Bytes::ZERO).cloned() {
                Some(area) if any_will_do => {
                    topology.add_swap_tier(&area);
                    topology
                        .notes
                        .push(format!("{} is taken, as no compressed swap can be set up: {refused}", area.device));
                }
                _ => return Err(refused),
            },
        }
        Ok(())
    }

    /// Prices of page-outs for single pages, folios and whole blocks; none without swap.
    ///
    /// # Errors
    /// When this very process cannot be measured on, or changes cannot be guarded.
    pub fn prices(&mut self, tiers: &TierMap) -> Result<Vec<KindPrice>, MachineError> {
        let Some(swap) = tiers.swap_tier() else { return Ok(Vec::new()) };
        Ok(crate::prices::measure(Path::new("/"), tiers, swap, self.guard()?)?)
    }

    /// The guard of what is changed, started if there is none yet.
    fn guard(&mut self) -> Result<&Guard, GuardError> {
        let guard = match self.guard.take() {
            Some(guard) => guard,
            None => Guard::start()?,
        };
        Ok(self.guard.insert(guard))
    }

    /// Has pages come back in folios of this size until this is released. Returns what is to be said of it.
    fn set_swap_in(&mut self, root: &Path, tiers: &TierMap, size: FolioSize) -> Result<Option<String>, MachineError> {
        let Some(swap) = tiers.swap_tier() else {
            return Ok(Some(format!("swap-in {size}: no swap is a tier here, so the setting stays as it is")));
        };
        self.swap_in = swap_in::set(root, size, self.guard()?)?;
        let Trial { verdict, reason, .. } = trials::folios(root, tiers, swap, size)?;
        let then = match verdict {
            Verdict::Works => return Ok(None),
            Verdict::Unknown => "the setting is on for this run".to_owned(),
            // It would cost memory on the whole machine, in vain.
            Verdict::Fails => match self.swap_in.take().map(swap_in::Changed::put_back) {
                None => "the setting was on before, and stays".to_owned(),
                Some(Ok(())) => "the setting is put back".to_owned(),
                Some(Err(error)) => format!("the setting is not back yet ({error}); the guard goes on trying"),
            },
        };
        Ok(Some(format!("swap-in {size}: {reason}; {then}")))
    }

    /// Whether pages come back from swap in folios, tried with the kernel's setting changed for the time of the trial.
    ///
    /// # Errors
    /// When this very process cannot be measured on, or changes cannot be guarded.
    pub fn try_folios(&mut self, tiers: &TierMap) -> Result<Trial, MachineError> {
        let root = Path::new("/");
        let Some(swap) = tiers.swap_tier() else { return Ok(trials::folios_untried(root, tiers)) };
        Ok(trials::folios_once(root, tiers, swap, self.guard()?)?)
    }

    /// Whether compressed swap was set up for this run.
    pub fn has_zram(&self) -> bool {
        self.zram.is_some()
    }

    /// The guard's pid, if there is one.
    pub fn guard_pid(&self) -> Option<u32> {
        self.guard.as_ref().map(Guard::pid)
    }

    /// Undoes what was set up. The guard would do it, too, but here the user sees a failure.
    ///
    /// # Errors
    /// When the compressed swap would not go; its guard then goes on trying.
    pub fn release(self) -> Result<(), ZramError> {
        let Held { zram, guard, swap_in } = self;
        if let Some(zram) = zram {
            zram.tear_down()?;
        }
        // The guard puts back what it still holds a record of.
        drop((swap_in, guard));
        Ok(())
    }
}

/// Whether this process may use a node of each tier, where pages move between nodes: the kernel allocates what a moved page is copied to on
/// behalf of who moves it.
fn within_reach(tiers: &[Tier], allowed: &[u32]) -> Result<(), MachineError> {
    let of_nodes = || tiers.iter().filter_map(|tier| Some((tier, tier.nodes()?)));
    if of_nodes().count() < 2 {
        return Ok(());
    }
    match of_nodes().find(|(_, nodes)| !nodes.iter().any(|node| allowed.contains(node))) {
        Some((tier, nodes)) => {
            Err(MachineError::OutOfReach { tier: tier.name.clone(), nodes: nodes.to_vec(), allowed: allowed.to_vec() })
        }
        None => Ok(()),
    }
}

fn own_status(source: std::io::Error) -> ProcessError {
    ProcessError::Read { path: "/proc/self/status".to_owned(), source }
}

/// The compressed swap that a run would set up, for a run that only plans.
fn planned_zram(number: usize, size: Bytes) -> Tier {
    Tier {
        id: TierId(number as u8),
        name: "zram".to_owned(),
        kind: TierKind::Swap { device: "none".to_owned(), compressed: true },
        capacity_bytes: size,
        read_latency_ns: None,
        read_bandwidth_mbps: None,
    }
}

/// N of the swap tier's /dev/zramN.
fn zram_number(tiers: &TierMap) -> Option<u32> {
    match &tiers.tier(tiers.swap_tier()?).kind {
        TierKind::Swap { device, .. } => device.strip_prefix("/dev/zram")?.parse().ok(),
        TierKind::Nodes { .. } => None,
    }
}

/// Compressed swap of this size, by the compressor that suits a program, and the guard that undoes it.
fn set_up(size: Bytes, program: Option<u32>) -> Result<(ZramSwap, Guard), MachineError> {
    let guard = Guard::start()?;
    let algorithm = program.and_then(|pid| chosen_for(pid, &guard));
    let swap = ZramSwap::set_up(&ZramOptions { algorithm, ..ZramOptions::of_size(size) }, Some(&guard))?;
    Ok((swap, guard))
}

/// What a container should know: killed whole, it takes the guard along.
fn stays_with_a_killed_container(swap: &ZramSwap) -> Option<String> {
    (!has_pids_of_machine()).then(|| {
        format!(
            "if this container is killed whole, {} stays until a Terrace of the host removes it, or: {}",
            swap.device().display(),
            swap.identity().remedy()
        )
    })
}

/// Removes compressed swap whose Terrace was killed together with its guard: a cgroup that is killed takes both. Returns a line for each.
fn remove_leftovers() -> Vec<String> {
    let removed = leftovers().into_iter().map(|leftover| {
        let (device, owner) = (leftover.zram.device(), leftover.owner);
        match leftover.remove() {
            Ok(()) => {
                format!("removed {}, the compressed swap that a killed Terrace ({owner}) had left", device.display())
            }
            Err(error) => {
                tracing::warn!(%error, "the compressed swap of a killed Terrace ({owner}) is still there");
                format!("{} of a killed Terrace ({owner}) is still there: {error}", device.display())
            }
        }
    });
    removed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::movers::tests::tier;

    #[test]
    fn a_tier_whose_nodes_terrace_may_not_use_is_refused() {
        let nodes = |id: u8, nodes: &[u32]| tier(id, TierKind::Nodes { nodes: nodes.to_vec() });
        let swap = tier(1, TierKind::Swap { device: "/dev/zram1".to_owned(), compressed: true });
        let two = [nodes(0, &[0, 1]), nodes(1, &[2])];
        assert!(within_reach(&two, &[1, 2]).is_ok(), "one node of each will do");
        let text = within_reach(&two, &[0, 1]).unwrap_err().to_string();
        assert!(text.contains("tier1") && text.contains("[2]") && text.contains("cpuset.mems"), "{text}");
        assert!(within_reach(&[nodes(0, &[0, 1]), swap], &[1]).is_ok(), "nothing moves between nodes");
    }
}
