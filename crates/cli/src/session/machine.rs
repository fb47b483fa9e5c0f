//! What a run needs of the machine: tiers, compressed swap, a tracker that has proven itself, movers.
//!
//! In: a plan. Out: the parts of a manager, and what must be released afterwards. Must not: change anything for a plan that
//! cannot be carried out; checks come before changes.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use terrace_core::policy::Needs;
use terrace_core::units::{Bytes, PAGE_BYTES, TierId, Vpn};
use terrace_linux::doctor::choose_tracker;
use terrace_linux::guard::Guard;
use terrace_linux::movers::{Mover, Movers, PageMove};
use terrace_linux::process::Process;
use terrace_linux::rights::Rights;
use terrace_linux::topology::declared::{SlowTier, zram_is_there};
use terrace_linux::topology::{Tier, TierKind, TierMap, Topology};
use terrace_linux::trackers::Tracker;
use terrace_linux::trackers::accessed_bits;
use terrace_linux::trackers::with_refaults::WithRefaults;
use terrace_linux::zram::{ZramOptions, ZramSwap, belongs_to_a_run};

use super::Plan;
use crate::options::misuse;

/// A machine made ready.
pub(crate) struct Machine {
    pub parts: Parts,
    pub held: Held,
    pub facts: Facts,
    /// Used where the user sets no rate.
    pub default_rate: Option<Bytes>,
    /// What one refault costs, as measured just now.
    pub refault_cost: Option<Duration>,
}

/// What the manager is made of.
pub(crate) struct Parts {
    pub tiers: TierMap,
    pub tracker: Box<dyn Tracker>,
    pub mover: Box<dyn Mover>,
    pub zram: Option<u32>,
}

/// What was set up, in the order it must be undone.
pub(crate) struct Held {
    zram: Option<ZramSwap>,
    guard: Option<Guard>,
}

/// What the report says of the machine.
pub(crate) struct Facts {
    pub tracker: String,
    pub tracker_reasons: Vec<String>,
    pub notes: Vec<String>,
    pub refault_cost: Option<Duration>,
}

/// Page-outs at more than this take a whole core for compression and leave none for the program (measured: 4 to 14 us
/// of CPU a dirty page, docs/performance.md).
const SWAP_RATE: Bytes = Bytes::mib(256);
/// Between nodes the copy is ten times cheaper.
const NODE_RATE: Bytes = Bytes::gib(1);

/// Longest time one call may hold the program's memory map: what a person does not notice.
const STALL_DEADLINE: Duration = Duration::from_millis(20);

impl Machine {
    pub(crate) fn prepare(plan: &Plan, needs: Needs) -> anyhow::Result<Machine> {
        let root = Path::new("/");
        let mut topology = Topology::discover(root)?;
        // What another Terrace set up for its own run goes when that run ends: it is not there for this one.
        topology.swaps.retain(|area| !belongs_to_a_run(&area.device));
        let resolved = topology
            .with_slow(&plan.slow, zram_is_there(root))
            .map_err(|error| misuse("--tier-slow", &slow_text(&plan.slow), error))?;
        let mut topology = resolved.topology;
        // The tracker first: it changes nothing, and without one there is no point in the rest.
        let (tracker, tracker_reasons) =
            choose_tracker(needs, plan.watch.tracker.as_deref()).map_err(|error| with_rights(error.into()))?;
        let movable = resolved.zram_to_set_up.is_some() || topology.tiers.len() > 1;
        if plan.moves && movable && !Rights::of_this_process().holds(MOVING) {
            return Err(with_rights(anyhow::anyhow!("pages of another program cannot be moved without {MOVING}")));
        }

        let mut held = Held { zram: None, guard: None };
        let mut zram = None;
        if let Some(size) = resolved.zram_to_set_up.filter(|_| !plan.moves) {
            // A dry run changes nothing: it plans for the tier that a real one would set up.
            topology.tiers.push(planned_zram(topology.tiers.len(), size));
        } else if let Some(size) = resolved.zram_to_set_up {
            let guard = Guard::start()?;
            let swap = ZramSwap::set_up(&ZramOptions::of_size(size), Some(&guard))?;
            topology.add_swap_device(root, &swap.device())?;
            zram = Some(swap.id());
            held = Held { zram: Some(swap), guard: Some(guard) };
        }
        let tiers = topology.tier_map()?;
        zram = zram.or_else(|| zram_number(&tiers));
        let refault_cost = match tiers.swap_tier() {
            Some(swap) if plan.moves => refault_cost(&tiers, swap)?,
            _ => None,
        };
        let default_rate = match (tiers.swap_tier(), tiers.tiers().len()) {
            (_, 1) => None,
            (Some(_), _) => Some(SWAP_RATE),
            (None, _) => Some(NODE_RATE),
        };
        let mover: Box<dyn Mover> =
            Box::new(if plan.moves { Movers::for_tiers(&tiers, STALL_DEADLINE) } else { Movers::dry_run() });
        // The page-table reader finds returned pages itself, at its next round; the others learn of them from the faults.
        let (tracker, tracker_reasons) = match tiers.swap_tier() {
            Some(_) if tracker.name() != accessed_bits::NAME => hear_refaults(tracker, tracker_reasons),
            _ => (tracker, tracker_reasons),
        };
        let facts =
            Facts { tracker: tracker.name().to_owned(), tracker_reasons, notes: topology.notes.clone(), refault_cost };
        Ok(Machine { parts: Parts { tiers, tracker, mover, zram }, held, facts, default_rate, refault_cost })
    }
}

/// The tracker with refaults heard beside it, or as it was with the reason why not.
fn hear_refaults(tracker: Box<dyn Tracker>, mut reasons: Vec<String>) -> (Box<dyn Tracker>, Vec<String>) {
    let (tracker, heard) = WithRefaults::complete(tracker);
    if let Err(reason) = heard {
        reasons.push(format!("refaults are counted and not located: {reason}"));
    }
    (tracker, reasons)
}

/// process_madvise(2) and move_pages(2) on another process ask for it, even of the same user.
const MOVING: &str = "CAP_SYS_NICE";

/// An error with what this process may not do, where that may be its cause, and what works all the same.
fn with_rights(error: anyhow::Error) -> anyhow::Error {
    let rights = Rights::of_this_process();
    if rights.missing.is_empty() {
        return error;
    }
    let mut text = format!("{error}\nmissing rights (run as root, or give these capabilities):");
    for capability in rights.capabilities.iter().filter(|capability| !capability.held) {
        text += &format!("\n  {}: {}", capability.name, capability.needed_for);
    }
    text += "\nwhat works without them:";
    for line in &rights.still_works {
        text += &format!("\n  {line}");
    }
    anyhow::anyhow!(
        text + "\n  terrace topology, terrace doctor, terrace policies, terrace workload\nnothing was started or changed"
    )
}

impl Held {
    /// Whether compressed swap was set up for this run.
    pub(crate) fn has_zram(&self) -> bool {
        self.zram.is_some()
    }

    /// Undoes what was set up. The guard would do it, too, but here the user is told if it fails.
    pub(crate) fn release(self) -> anyhow::Result<()> {
        let Held { zram, guard } = self;
        if let Some(zram) = zram {
            zram.tear_down().context("the compressed swap could not be taken away; its guard goes on trying")?;
        }
        drop(guard);
        Ok(())
    }
}

fn slow_text(slow: &SlowTier) -> String {
    match slow {
        SlowTier::Auto => "auto".to_owned(),
        SlowTier::None => "none".to_owned(),
        SlowTier::Memory(memory) => memory.to_string(),
    }
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

/// Measures what one refault costs: pages of our own go out and are touched. The median of single touches is taken, since
/// on a shared machine the mean counts other programs' time. `None` if nothing of it left (then the mover will say why).
fn refault_cost(tiers: &TierMap, swap: TierId) -> anyhow::Result<Option<Duration>> {
    const PAGES: usize = 1024;
    let page = PAGE_BYTES as usize;
    let mut memory = vec![0u8; (PAGES + 1) * page];
    // Compressible about 2:1, as ordinary data is: half of each page is noise.
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for chunk in memory.chunks_exact_mut(page) {
        for byte in &mut chunk[..page / 2] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = (state >> 56) as u8;
        }
    }
    let first = (memory.as_ptr() as u64).div_ceil(PAGE_BYTES);
    let skip = (first * PAGE_BYTES - memory.as_ptr() as u64) as usize;
    let moves: Vec<PageMove> = (0..PAGES as u64)
        .map(|offset| PageMove { vpn: Vpn(first + offset), pages: 1, from: TierId::FAST, to: swap })
        .collect();
    let me = Process::open(std::process::id())?;
    let mut results = Vec::new();
    Movers::for_tiers(tiers, STALL_DEADLINE).execute(&me, &moves, tiers, &mut results);
    let mut costs: Vec<Duration> = Vec::new();
    for (number, _) in results.iter().enumerate().filter(|(_, result)| result.done == 1) {
        let began = Instant::now();
        std::hint::black_box(std::hint::black_box(&memory)[skip + number * page]);
        costs.push(began.elapsed());
    }
    costs.sort_unstable();
    Ok((costs.len() >= PAGES / 4).then(|| costs[costs.len() / 2]))
}
