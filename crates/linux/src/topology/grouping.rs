//! Grouping: which NUMA nodes make one tier, and in what order.
//!
//! In: nodes and the kernel's memory tiers. Out: tiers from fast to slow, by the first of these that distinguishes the nodes:
//! the kernel's memory tiers, HMAT latencies, nodes without CPUs and their distance. Must not: use anything else.
//!
//! Kernels up to 6.6 put every plain RAM node into memory_tier4 whatever HMAT says; that is why one kernel tier for all
//! nodes settles nothing.

use terrace_core::units::{Bytes, TierId};

use super::nodes::{MemoryTier, Node};
use super::{Tier, TierKind};

/// A node whose latency is more than this many times that of the fastest node of a tier begins the next tier. Chosen
/// near the kernel's own step, 128 parts of abstract distance where DRAM has 576 (include/linux/memory-tiers.h).
const LATENCY_STEP: f64 = 1.25;

/// By what nodes were grouped into tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grouping {
    /// The kernel's memory tiers differ.
    MemoryTiers,
    /// Read latencies from firmware (HMAT) differ.
    Latency,
    /// Some nodes have no CPUs; among them, distance counts.
    CpuLessNodes,
    /// Nothing distinguishes the nodes, or there is only one.
    OneTier,
    /// The user said so.
    Declared,
}

/// Makes tiers of the nodes with memory.
pub(super) fn group(nodes: &[Node], memory_tiers: &[MemoryTier], notes: &mut Vec<String>) -> (Vec<Tier>, Grouping) {
    let with_memory: Vec<&Node> = nodes.iter().filter(|node| node.memory_bytes > Bytes::ZERO).collect();
    for node in nodes.iter().filter(|node| node.memory_bytes == Bytes::ZERO) {
        notes.push(format!("node {} has no memory and belongs to no tier", node.number));
    }
    let by_kernel = by_memory_tiers(&with_memory, memory_tiers);
    let by_latency = by_latency(&with_memory);
    let by_distance = by_distance(&with_memory);
    let (mut groups, grouping) = if by_kernel.len() > 1 {
        (by_kernel, Grouping::MemoryTiers)
    } else if by_latency.len() > 1 {
        if !by_kernel.is_empty() {
            notes.push(kernel_disagrees(memory_tiers, "firmware (HMAT) gives them different latencies"));
        }
        (by_latency, Grouping::Latency)
    } else if by_distance.len() > 1 {
        if !by_kernel.is_empty() {
            notes.push(kernel_disagrees(memory_tiers, "some have no CPUs"));
        }
        (by_distance, Grouping::CpuLessNodes)
    } else {
        if with_memory.len() > 1 {
            notes.push(
                "nothing tells the nodes apart (one kernel tier, no HMAT, CPUs on each): they are one tier; declare \
                 tiers to have it otherwise, such as fast=node:0 slow=node:1"
                    .to_owned(),
            );
        }
        (vec![with_memory], Grouping::OneTier)
    };
    if groups.len() > TierId::MAX {
        notes.push(format!(
            "there are {} kinds of memory; the slowest are joined into tier {}",
            groups.len(),
            TierId::MAX - 1
        ));
        let rest: Vec<&Node> = groups.drain(TierId::MAX - 1..).flatten().collect();
        groups.push(rest);
    }
    let tiers = groups.iter().enumerate().map(|(index, group)| tier_of_nodes(index, None, group)).collect();
    (tiers, grouping)
}

/// A tier of these nodes. Its latency is its slowest node's, its bandwidth that of all together.
pub(super) fn tier_of_nodes(index: usize, name: Option<&str>, nodes: &[&Node]) -> Tier {
    let mut numbers: Vec<u32> = nodes.iter().map(|node| node.number).collect();
    numbers.sort_unstable();
    let list: Vec<String> = numbers.iter().map(u32::to_string).collect();
    Tier {
        id: TierId(index as u8),
        name: name.map_or_else(|| format!("node{}", list.join("+")), str::to_owned),
        capacity_bytes: nodes.iter().fold(Bytes::ZERO, |sum, node| sum + node.memory_bytes),
        read_latency_ns: nodes.iter().filter_map(|node| node.read_latency_ns).max(),
        read_bandwidth_mbps: nodes.iter().map(|node| node.read_bandwidth_mbps).sum(),
        kind: TierKind::Nodes { nodes: numbers },
    }
}

fn kernel_disagrees(memory_tiers: &[MemoryTier], why: &str) -> String {
    let number = memory_tiers.first().map_or(0, |tier| tier.number);
    format!(
        "the kernel holds all nodes in memory_tier{number}, so its own demotion moves nothing between them; Terrace tells \
         them apart because {why}"
    )
}

/// Groups by the kernel's tiers; empty if it has none, or leaves out a node with memory.
fn by_memory_tiers<'a>(nodes: &[&'a Node], memory_tiers: &[MemoryTier]) -> Vec<Vec<&'a Node>> {
    let groups: Vec<Vec<&Node>> = memory_tiers
        .iter()
        .map(|tier| nodes.iter().filter(|node| tier.nodes.contains(&node.number)).copied().collect::<Vec<_>>())
        .filter(|group| !group.is_empty())
        .collect();
    let placed: usize = groups.iter().map(Vec::len).sum();
    if placed == nodes.len() { groups } else { Vec::new() }
}

/// Groups by HMAT read latency; empty unless every node has one.
fn by_latency<'a>(nodes: &[&'a Node]) -> Vec<Vec<&'a Node>> {
    let mut sorted = Vec::with_capacity(nodes.len());
    for node in nodes {
        let Some(latency) = node.read_latency_ns else { return Vec::new() };
        sorted.push((latency, *node));
    }
    sorted.sort_by_key(|(latency, node)| (*latency, node.number));
    let mut groups: Vec<(u32, Vec<&Node>)> = Vec::new();
    for (latency, node) in sorted {
        match groups.last_mut() {
            Some((fastest, group)) if f64::from(latency) <= f64::from(*fastest) * LATENCY_STEP => group.push(node),
            _ => groups.push((latency, vec![node])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Groups nodes with CPUs first, then those without by their distance to the nearest node that has some.
fn by_distance<'a>(nodes: &[&'a Node]) -> Vec<Vec<&'a Node>> {
    let (with_cpus, without): (Vec<&Node>, Vec<&Node>) = nodes.iter().partition(|node| !node.cpus.is_empty());
    if with_cpus.is_empty() {
        return Vec::new();
    }
    // Distances are listed by the order of online nodes; those with memory or CPUs are all online.
    let nearest = |node: &Node| {
        with_cpus.iter().filter_map(|near| near.distances.get(position(nodes, node))).min().copied().unwrap_or(u32::MAX)
    };
    let mut slow: Vec<(u32, &Node)> = without.into_iter().map(|node| (nearest(node), node)).collect();
    slow.sort_by_key(|(distance, node)| (*distance, node.number));
    let mut groups = vec![with_cpus.clone()];
    let mut last_distance = None;
    for (distance, node) in slow {
        if last_distance == Some(distance) {
            groups.last_mut().expect("the group of nodes with CPUs is there").push(node);
        } else {
            groups.push(vec![node]);
        }
        last_distance = Some(distance);
    }
    groups
}

fn position(nodes: &[&Node], node: &Node) -> usize {
    nodes.iter().position(|other| other.number == node.number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::fixtures::{Machine, NodeSpec};
    use super::super::{Topology, TopologyError};
    use super::*;

    fn tiers(topology: &Topology) -> Vec<Vec<u32>> {
        topology.tiers.iter().filter_map(|tier| tier.nodes().map(<[u32]>::to_vec)).collect()
    }

    fn discover(root: &Path) -> Topology {
        Topology::discover(root).unwrap()
    }

    #[test]
    fn one_node_is_one_tier_and_needs_no_frames() {
        let machine = Machine::new(&[NodeSpec::dram(0)]).memory_tier(4, "0");
        let topology = discover(machine.root());
        assert_eq!((tiers(&topology), topology.grouping), (vec![vec![0]], Grouping::OneTier));
        assert_eq!(topology.tiers[0].capacity_bytes, Bytes::gib(1));
        assert!(topology.notes.is_empty(), "{:?}", topology.notes);
        assert!(!topology.tier_map().unwrap().has_several_node_tiers());
    }

    #[test]
    fn kernel_tiers_that_differ_come_first() {
        let nodes = [NodeSpec::dram(0).latency(80, 100_000), NodeSpec::dram(1).latency(300, 20_000)];
        let machine = Machine::new(&nodes).memory_tier(84, "1").memory_tier(4, "0");
        let topology = discover(machine.root());
        assert_eq!((tiers(&topology), topology.grouping), (vec![vec![0], vec![1]], Grouping::MemoryTiers));
        assert_eq!(topology.tiers[1].read_latency_ns, Some(300));
        assert_eq!(topology.tiers[1].read_bandwidth_mbps, Some(20_000));
        let map = topology.tier_map().unwrap();
        // The fixture lays node after node, 1 GiB each: 262144 frames.
        assert_eq!(map.tier_of_frame(262_143), TierId(0));
        assert_eq!(map.tier_of_frame(262_144), TierId(1));
    }

    #[test]
    fn latency_decides_where_the_kernel_holds_all_nodes_in_one_tier() {
        let nodes = [NodeSpec::dram(0).latency(80, 100_000), NodeSpec::dram(1).latency(300, 20_000)];
        let machine = Machine::new(&nodes).memory_tier(4, "0-1");
        let topology = discover(machine.root());
        assert_eq!((tiers(&topology), topology.grouping), (vec![vec![0], vec![1]], Grouping::Latency));
        assert!(topology.notes.iter().any(|note| note.contains("memory_tier4")), "{:?}", topology.notes);
    }

    #[test]
    fn a_node_without_cpus_is_slow_where_firmware_says_nothing() {
        let machine = Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)]).memory_tier(4, "0-1");
        let topology = discover(machine.root());
        assert_eq!((tiers(&topology), topology.grouping), (vec![vec![0], vec![1]], Grouping::CpuLessNodes));
    }

    #[test]
    fn two_sockets_with_cxl_make_two_tiers_and_with_optane_three() {
        let cxl = [NodeSpec::dram(0), NodeSpec::dram(1), NodeSpec::memory_only(2)];
        let machine = Machine::new(&cxl).memory_tier(4, "0-1").memory_tier(22, "2");
        assert_eq!(tiers(&discover(machine.root())), vec![vec![0, 1], vec![2]]);
        let three = [
            NodeSpec::dram(0).latency(80, 200_000),
            NodeSpec::memory_only(1).latency(180, 60_000),
            NodeSpec::memory_only(2).latency(350, 20_000),
        ];
        let machine = Machine::new(&three).memory_tier(4, "0").memory_tier(22, "1").memory_tier(84, "2");
        let topology = discover(machine.root());
        assert_eq!(tiers(&topology), vec![vec![0], vec![1], vec![2]]);
        assert_eq!(
            topology.tiers.iter().map(|tier| tier.name.as_str()).collect::<Vec<_>>(),
            ["node0", "node1", "node2"]
        );
    }

    #[test]
    fn close_latencies_are_one_tier_and_far_cpu_less_nodes_are_two() {
        let sockets = [NodeSpec::dram(0).latency(80, 1), NodeSpec::dram(1).latency(95, 1)];
        assert_eq!(tiers(&discover(Machine::new(&sockets).root())), vec![vec![0, 1]]);
        let nodes = [NodeSpec::dram(0), NodeSpec::memory_only(1), NodeSpec::memory_only(2)];
        let machine = Machine::new(&nodes).distances(&["10 20 40", "20 10 40", "40 40 10"]);
        assert_eq!(tiers(&discover(machine.root())), vec![vec![0], vec![1], vec![2]]);
        let machine = Machine::new(&nodes).distances(&["10 20 20", "20 10 30", "20 30 10"]);
        assert_eq!(tiers(&discover(machine.root())), vec![vec![0], vec![1, 2]]);
    }

    #[test]
    fn active_compressed_swap_is_the_lowest_tier() {
        let machine = Machine::new(&[NodeSpec::dram(0)]).file(
            "proc/swaps",
            "Filename Type Size Used Priority\n/dev/zram1 partition 2097148 0 100\n/dev/sda2 partition 8 0 -2\n",
        );
        let topology = discover(machine.root());
        let kind = TierKind::Swap { device: "/dev/zram1".to_owned(), compressed: true };
        assert_eq!(topology.tiers[1].kind, kind);
        assert_eq!(topology.tier_map().unwrap().swap_tier(), Some(TierId(1)));
        assert_eq!(topology.tiers[1].name, "zram1");
    }

    #[test]
    fn a_node_that_knows_less_memory_than_the_machine_is_corrected_and_noted() {
        let machine =
            Machine::new(&[NodeSpec::dram(0)]).file("proc/meminfo", "MemTotal: 4194304 kB\nMemFree: 4000000 kB\n");
        let topology = discover(machine.root());
        assert_eq!(topology.tiers[0].capacity_bytes, Bytes::gib(4));
        assert!(topology.background[0].contains("/proc/meminfo"), "{topology:?}");
    }

    #[test]
    fn frames_that_cannot_be_found_are_an_error_and_not_fast_memory() {
        let machine = Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)]).without_memory_blocks();
        let error = discover(machine.root()).tier_map().unwrap_err();
        assert!(matches!(error, TopologyError::NoFrames { .. }), "{error}");
    }

    #[test]
    fn a_kernel_without_numa_is_one_node() {
        let machine = Machine::new(&[]).file("proc/meminfo", "MemTotal: 1048576 kB\nMemFree: 4 kB\n");
        let topology = discover(machine.root());
        assert_eq!(topology.tiers[0].capacity_bytes, Bytes::gib(1));
        let empty = tempfile::tempdir().unwrap();
        let error = Topology::discover(empty.path()).unwrap_err().to_string();
        assert!(error.contains("/proc/meminfo"), "{error}");
    }

    #[test]
    fn the_machine_at_hand_has_tiers() {
        let topology = discover(Path::new("/"));
        assert!(topology.tiers[0].capacity_bytes > Bytes::ZERO);
        topology.tier_map().unwrap();
        assert!(serde_json::to_string(&topology).unwrap().contains("\"capacity_bytes\""));
    }
}
