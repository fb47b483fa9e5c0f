//! Topology: which tiers of memory this machine has.
//!
//! In: /sys (NUMA nodes, memory tiers, HMAT figures), swap, and what the user declares. Out: a [`Topology`] to show,
//! and of it a [`TierMap`] from fast to slow to work with. Must not: change anything; what is measured, `measure` does.
//!
//! `nodes` reads the NUMA nodes, `swap` the swap areas, `grouping` makes tiers of nodes, `declared` lets the user say
//! otherwise, `presence` sees what goes and comes back, `measure` finds out firmware that lies.

pub mod declared;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod grouping;
pub mod measure;
pub mod nodes;
pub mod presence;
pub mod swap;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;

use terrace_core::units::{Bytes, TierId};

pub use declared::{DeclaredTier, SlowTier, TierMemory, parse_declared};
pub use grouping::Grouping;
pub use nodes::{MemoryTier, Node};
pub use swap::SwapArea;

/// What this machine's memory looks like, and which tiers follow from it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Topology {
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// By what the nodes were grouped into tiers.
    pub grouping: Grouping,
    /// All NUMA nodes, by number.
    pub nodes: Vec<Node>,
    /// Active swap areas, the highest priority first.
    pub swaps: Vec<SwapArea>,
    /// The kernel's own memory tiers, fastest first.
    pub memory_tiers: Vec<MemoryTier>,
    /// What an operator should know: contradictions, and what was left out of account.
    pub notes: Vec<String>,
    /// What is odd about this machine and changes nothing for a run.
    pub background: Vec<String>,
}

/// Why the topology could not be found, or cannot be as it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The kernel's pages are of another size.
    #[error("the pages of this kernel have {kib} KiB; Terrace manages pages of 4 KiB only: boot a kernel with those")]
    PageSize {
        /// The size, in KiB.
        kib: usize,
    },
    /// A file could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file did not hold what it should.
    #[error("{path}: expected {expected}")]
    Content {
        /// The file.
        path: String,
        /// What should stand there.
        expected: &'static str,
    },
    /// A node was named that is not there.
    #[error("there is no memory node {node}: this machine has {present}")]
    NoSuchNode {
        /// The node asked for.
        node: u32,
        /// The nodes with memory.
        present: String,
    },
    /// A swap area was named that is not active.
    #[error("{device} is not an active swap area: this machine has {present}")]
    NoSuchSwap {
        /// The device asked for.
        device: String,
        /// The active areas.
        present: String,
    },
    /// A declaration contradicts itself or the machine.
    #[error("{0}")]
    Declaration(String),
    /// The kernel does not say which page frames a node has.
    #[error(
        "the page frames of node {node} cannot be found in /sys or /proc/zoneinfo, so its pages cannot be told apart"
    )]
    NoFrames {
        /// The node.
        node: u32,
    },
}

/// What an operator should know where zswap is on.
const ZSWAP_IS_ON: &str = "zswap is on: it takes pages before any swap area does, zram included, and compresses them into a pool of its own, which counts \
                           against what is saved; to leave them to zram: echo N > /sys/module/zswap/parameters/enabled";

/// On arm64 kernels come with pages of 16 and 64 KiB, too; figures by page, and places in /proc/PID/pagemap, would all be wrong there.
fn check_page_size(bytes: usize) -> Result<(), TopologyError> {
    if bytes as u64 == terrace_core::units::PAGE_BYTES {
        Ok(())
    } else {
        Err(TopologyError::PageSize { kib: bytes >> 10 })
    }
}

impl Topology {
    /// Finds the tiers of the machine whose /proc and /sys lie below `root`: "/", or a fixture.
    ///
    /// # Errors
    /// When the kernel's pages are not of 4 KiB, or /proc/meminfo or a node's meminfo cannot be read. Everything else that is missing is noted instead.
    pub fn discover(root: &Path) -> Result<Topology, TopologyError> {
        check_page_size(rustix::param::page_size())?;
        let mut notes = Vec::new();
        let mut background = Vec::new();
        let nodes = nodes::read_nodes(root, &mut notes, &mut background)?;
        let memory_tiers = nodes::read_memory_tiers(root);
        let swaps =
            swap::read_swaps(root).map_err(|source| TopologyError::Read { path: "/proc/swaps".to_owned(), source })?;
        let (tiers, grouping) = grouping::group(&nodes, &memory_tiers, &mut notes);
        let mut topology = Topology { tiers, grouping, nodes, swaps, memory_tiers, notes, background };
        // Page-outs go to the area of the highest priority, so that is the one tier that swap makes.
        if let Some(area) = topology.swaps.first().cloned() {
            topology.add_swap_tier(&area);
        }
        if crate::swap_saving::zswap_is_on(root) {
            topology.notes.push(ZSWAP_IS_ON.to_owned());
        }
        Ok(topology)
    }

    /// The tiers with the page frames that belong to them.
    ///
    /// # Errors
    /// When there are several node tiers and the kernel does not say where one's frames are.
    pub fn tier_map(&self) -> Result<TierMap, TopologyError> {
        let node_tiers = self.tiers.iter().filter(|tier| matches!(tier.kind, TierKind::Nodes { .. })).count();
        let mut frames = Vec::new();
        if node_tiers > 1 {
            for tier in &self.tiers {
                let TierKind::Nodes { nodes } = &tier.kind else { continue };
                for number in nodes {
                    let node = self.node(*number)?;
                    if node.frames.is_empty() {
                        return Err(TopologyError::NoFrames { node: *number });
                    }
                    frames.extend(node.frames.iter().map(|run| (run.clone(), tier.id)));
                }
            }
        }
        Ok(TierMap::new(self.tiers.clone(), frames).with_distances(&self.nodes))
    }

    /// The peers of a node: those of each other node tier that are nearest to it. What leaves the node goes to its peer as long as
    /// that has room, and what comes back to memory comes to the peer of where it lay: each socket keeps to its own memory.
    pub fn peers(&self, node: u32) -> Vec<u32> {
        let distances = distances(&self.nodes);
        let mut peers = Vec::new();
        for tier in &self.tiers {
            let TierKind::Nodes { nodes } = &tier.kind else { continue };
            if nodes.contains(&node) {
                continue;
            }
            let far = |other: u32| distances.get(&(node, other)).copied().unwrap_or(u32::MAX);
            let nearest = nodes.iter().map(|other| far(*other)).min();
            peers.extend(nodes.iter().copied().filter(|other| Some(far(*other)) == nearest));
        }
        peers
    }

    /// Puts a swap area below all other tiers, in place of a swap tier that is there.
    pub fn add_swap_tier(&mut self, area: &SwapArea) {
        self.tiers.retain(|tier| !matches!(tier.kind, TierKind::Swap { .. }));
        if self.tiers.len() == TierId::MAX {
            self.notes.push(format!("{} is left out: Terrace knows {} tiers at most", area.device, TierId::MAX));
            return;
        }
        self.tiers.push(Tier {
            id: TierId(self.tiers.len() as u8),
            name: area.device.rsplit('/').next().unwrap_or("swap").to_owned(),
            kind: TierKind::Swap { device: area.device.clone(), compressed: area.compressed },
            capacity_bytes: area.size_bytes,
            read_latency_ns: None,
            read_bandwidth_mbps: None,
        });
    }

    /// Reads the swap areas again and makes a tier of the one that was switched on since, such as Terrace's own zram. The
    /// other tiers stay as they are, declared ones too.
    ///
    /// # Errors
    /// When /proc/swaps cannot be read, the device is not active, or page-outs would go to another area first.
    pub fn add_swap_device(&mut self, root: &Path, device: &Path) -> Result<(), TopologyError> {
        self.swaps =
            swap::read_swaps(root).map_err(|source| TopologyError::Read { path: "/proc/swaps".to_owned(), source })?;
        let area = self.usable_swap(&device.display().to_string())?;
        self.add_swap_tier(&area);
        Ok(())
    }

    /// A node with memory, by its number.
    fn node(&self, number: u32) -> Result<&Node, TopologyError> {
        self.nodes.iter().find(|node| node.number == number && node.memory_bytes > Bytes::ZERO).ok_or_else(|| {
            let present = self.nodes.iter().filter(|node| node.memory_bytes > Bytes::ZERO);
            let present: Vec<String> =
                present.map(|node| format!("node {} ({})", node.number, node.memory_bytes)).collect();
            TopologyError::NoSuchNode { node: number, present: present.join(", ") }
        })
    }
}

/// Distances by both nodes' numbers: each node's row is in the order of the nodes.
fn distances(nodes: &[Node]) -> BTreeMap<(u32, u32), u32> {
    let rows = nodes.iter().flat_map(|node| {
        nodes.iter().zip(&node.distances).map(|(other, distance)| ((node.number, other.number), *distance))
    });
    rows.collect()
}

/// A file below the root, as text; `None` if it is not there or says nothing.
fn text_of(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}

/// Reads a list such as "0-1,4" as the kernel writes it and numactl takes it. `None` if it is none.
pub(crate) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let run: Range<u32> = first.trim().parse().ok()?..last.trim().parse::<u32>().ok()?.checked_add(1)?;
        // A run of thousands of nodes or CPUs is a mistake; the kernel's own limits are 1024 and 8192.
        if run.is_empty() || run.len() > 8192 {
            return None;
        }
        numbers.extend(run);
    }
    Some(numbers)
}

/// What a tier is made of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum TierKind {
    /// Memory of these NUMA nodes.
    Nodes {
        /// Node numbers.
        nodes: Vec<u32>,
    },
    /// Swap in compressed memory (zram) or on another device.
    Swap {
        /// The device, such as /dev/zram1.
        device: String,
        /// Whether it is compressed memory.
        compressed: bool,
    },
}

/// A tier of this machine.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Tier {
    /// Its number; 0 is the fastest.
    pub id: TierId,
    /// Its name in reports.
    pub name: String,
    /// What it is made of.
    #[serde(flatten)]
    pub kind: TierKind,
    /// How much it holds.
    pub capacity_bytes: Bytes,
    /// Read latency in nanoseconds from the nearest CPU, if firmware reports it.
    pub read_latency_ns: Option<u32>,
    /// Read bandwidth in MB/s from the nearest CPU, if firmware reports it.
    pub read_bandwidth_mbps: Option<u32>,
}

impl Tier {
    /// Its NUMA nodes, if it is made of some.
    pub fn nodes(&self) -> Option<&[u32]> {
        if let TierKind::Nodes { nodes } = &self.kind { Some(nodes) } else { None }
    }
}

/// The tiers from fast to slow, and which of them a physical page belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct TierMap {
    tiers: Vec<Tier>,
    /// Runs of page frame numbers by tier, sorted, without overlaps.
    frames: Vec<(Range<u64>, TierId)>,
    swap: Option<TierId>,
    /// Distances between nodes, by both numbers, if the kernel reports them.
    distances: BTreeMap<(u32, u32), u32>,
}

impl TierMap {
    /// A map of these tiers. `frames` says which page frame numbers belong to which node tier; frames in no
    /// run belong to the fastest tier.
    pub fn new(tiers: Vec<Tier>, mut frames: Vec<(Range<u64>, TierId)>) -> TierMap {
        frames.sort_by_key(|(run, _)| run.start);
        let swap = tiers.iter().find(|tier| matches!(tier.kind, TierKind::Swap { .. })).map(|tier| tier.id);
        TierMap { tiers, frames, swap, distances: BTreeMap::new() }
    }

    /// The same, with the distances between these nodes.
    #[must_use]
    pub fn with_distances(mut self, nodes: &[Node]) -> TierMap {
        self.distances = distances(nodes);
        self
    }

    /// Distance between two nodes (ACPI SLIT); the same for all if the kernel does not report it.
    pub fn distance(&self, from: u32, to: u32) -> u32 {
        self.distances.get(&(from, to)).copied().unwrap_or(if from == to { 10 } else { 20 })
    }

    /// The tiers, fastest first.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// One tier. The id must be of this map.
    pub fn tier(&self, id: TierId) -> &Tier {
        &self.tiers[id.index()]
    }

    /// Sets how much a tier holds from now on.
    pub fn set_capacity(&mut self, id: TierId, capacity: Bytes) {
        self.tiers[id.index()].capacity_bytes = capacity;
    }

    /// The tier that a present page's frame lies in.
    pub fn tier_of_frame(&self, frame: u64) -> TierId {
        // One node tier: nothing to look up. This is asked for every present page of every round.
        if self.frames.is_empty() {
            return TierId::FAST;
        }
        let after = self.frames.partition_point(|(run, _)| run.start <= frame);
        match after.checked_sub(1).map(|index| &self.frames[index]) {
            Some((run, tier)) if run.contains(&frame) => *tier,
            _ => TierId::FAST,
        }
    }

    /// The tier that swapped pages lie in, if swap is one of the tiers.
    pub fn swap_tier(&self) -> Option<TierId> {
        self.swap
    }

    /// Whether some present pages are in another tier than the fastest, so that a frame number has information.
    pub fn has_several_node_tiers(&self) -> bool {
        !self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_with_pages_of_4_kib_are_managed() {
        assert!(check_page_size(4096).is_ok());
        let refused = check_page_size(64 << 10).unwrap_err().to_string();
        assert!(
            refused.starts_with("the pages of this kernel have 64 KiB") && refused.contains("4 KiB only"),
            "{refused}"
        );
    }
}
