//! The tiers of this machine as tables.
//!
//! In: a [`Topology`]. Out: text. Must not: leave out a note; it tells what was not taken into account.

use terrace_linux::topology::{Grouping, Node, SwapArea, Tier, TierKind, Topology};

use terrace_linux::topology::measure::Measured;

use super::{Screen, listed};

/// The tables `terrace topology` prints.
pub(crate) fn table(topology: &Topology, screen: &Screen) -> String {
    let mut text =
        format!("Tiers, fastest first ({})\n{}\n", because(topology.grouping), tiers(&topology.tiers, screen));
    if topology.tiers.len() == 1 {
        text.push_str(
            "There is no slower tier yet: terrace run sets up compressed swap for the run with --tier-slow zram:SIZE.\n",
        );
    }
    let mut table = screen.table(&["node", "memory", "free", "CPUs", "distances", "peers", "kernel tier"]);
    for node in &topology.nodes {
        let tier = topology.memory_tiers.iter().find(|tier| tier.nodes.contains(&node.number));
        table.add_row(node_row(node, &topology.peers(node.number), tier.map(|tier| tier.number)));
    }
    text.push_str(&format!("\nNUMA nodes\n{table}\n"));
    if !topology.swaps.is_empty() {
        let mut table = screen.table(&["swap", "kind", "size", "used", "priority"]);
        for area in &topology.swaps {
            table.add_row(swap_row(area));
        }
        text.push_str(&format!("\nSwap areas\n{table}\n"));
    }
    text.push_str(&listed("Notes", topology.notes.iter().chain(&topology.background).cloned(), screen.width));
    text
}

/// What was measured, beside what firmware tells.
pub(crate) fn measured(topology: &Topology, measured: &Measured, screen: &Screen) -> String {
    let mut table = screen.table(&["node", "from CPUs", "load", "firmware says", "bandwidth (triad)", "firmware says"]);
    for one in &measured.nodes {
        let node = topology.nodes.iter().find(|node| node.number == one.node);
        let told = |figure: Option<u32>, unit: &str| {
            figure.map_or_else(|| "nothing".to_owned(), |figure| format!("{figure} {unit}"))
        };
        table.add_row([
            one.node.to_string(),
            runs(&one.cpus),
            format!("{:.1} ns", one.latency_ns),
            told(node.and_then(|node| node.read_latency_ns), "ns"),
            format!("{:.0} MB/s", one.stream_mbps),
            told(node.and_then(|node| node.read_bandwidth_mbps), "MB/s"),
        ]);
    }
    let mut text = format!("\nMeasured\n{table}\n");
    let small = measured.nodes.iter().filter(|one| !one.huge_pages).map(|one| {
        format!(
            "node {}: no huge pages were to be had, so each load paid for a walk of the page tables as well",
            one.node
        )
    });
    let left_out = measured.left_out.iter().map(|one| format!("node {} was not measured: {}", one.node, one.reason));
    let only = (measured.nodes.len() == 1 && measured.left_out.is_empty()).then(|| {
        "there is one node, so there is nothing to compare it with; compressed swap is measured by each run itself"
            .to_owned()
    });
    let notes = measured.contradictions.iter().cloned().chain(left_out).chain(small).chain(only);
    text.push_str(&listed("What the measurements say", notes, screen.width));
    text
}

/// The tiers alone; `terrace doctor` shows them too.
pub(super) fn tiers(tiers: &[Tier], screen: &Screen) -> String {
    let mut table = screen.table(&["tier", "name", "made of", "capacity", "latency", "bandwidth"]);
    for tier in tiers {
        table.add_row([
            tier.id.0.to_string(),
            tier.name.clone(),
            made_of(&tier.kind),
            tier.capacity_bytes.to_string(),
            tier.read_latency_ns.map_or_else(|| "unknown".to_owned(), |latency| format!("{latency} ns")),
            tier.read_bandwidth_mbps.map_or_else(|| "unknown".to_owned(), |bandwidth| format!("{bandwidth} MB/s")),
        ]);
    }
    table.to_string()
}

fn because(grouping: Grouping) -> &'static str {
    match grouping {
        Grouping::MemoryTiers => "by the kernel's memory tiers",
        Grouping::Latency => "by the latencies that firmware tells",
        Grouping::CpuLessNodes => "nodes without CPUs are slower",
        Grouping::OneTier => "nothing tells the nodes apart",
        Grouping::Declared => "as declared",
    }
}

fn made_of(kind: &TierKind) -> String {
    match kind {
        TierKind::Nodes { nodes } if nodes.len() == 1 => format!("node {}", nodes[0]),
        TierKind::Nodes { nodes } => format!("nodes {}", runs(nodes)),
        TierKind::Swap { device, compressed: true } => format!("compressed swap on {device}"),
        TierKind::Swap { device, compressed: false } => format!("swap on {device}"),
    }
}

fn node_row(node: &Node, peers: &[u32], kernel_tier: Option<u32>) -> [String; 7] {
    let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
    [
        node.number.to_string(),
        node.memory_bytes.to_string(),
        node.free_bytes.to_string(),
        if node.cpus.is_empty() { "none".to_owned() } else { runs(&node.cpus) },
        distances.join(" "),
        if peers.is_empty() { "none".to_owned() } else { runs(peers) },
        kernel_tier.map_or_else(|| "unknown".to_owned(), |number| number.to_string()),
    ]
}

fn swap_row(area: &SwapArea) -> [String; 5] {
    [
        area.device.clone(),
        if area.compressed { "compressed memory" } else { "disk or file" }.to_owned(),
        area.size_bytes.to_string(),
        area.used_bytes.to_string(),
        area.priority.to_string(),
    ]
}

/// Numbers as the kernel lists them: "0-3,8".
fn runs(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let runs =
        runs.iter().map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    runs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use terrace_core::units::{Bytes, TierId};
    use terrace_linux::topology::MemoryTier;
    use terrace_linux::topology::measure::{Measurement, NotMeasured};

    use super::*;

    fn node(number: u32, cpus: Vec<u32>) -> Node {
        Node {
            number,
            memory_bytes: Bytes::gib(64),
            free_bytes: Bytes::gib(10),
            cpus,
            distances: vec![10, 20],
            read_latency_ns: None,
            write_latency_ns: None,
            read_bandwidth_mbps: None,
            write_bandwidth_mbps: None,
            frames: Vec::new(),
        }
    }

    fn example() -> Topology {
        let tier = |id, name: &str, kind| Tier {
            id: TierId(id),
            name: name.to_owned(),
            kind,
            capacity_bytes: Bytes::gib(64),
            read_latency_ns: (id == 0).then_some(95),
            read_bandwidth_mbps: None,
        };
        Topology {
            tiers: vec![
                tier(0, "dram", TierKind::Nodes { nodes: vec![0] }),
                tier(1, "cxl", TierKind::Nodes { nodes: vec![1] }),
                tier(2, "zram0", TierKind::Swap { device: "/dev/zram0".to_owned(), compressed: true }),
            ],
            grouping: Grouping::CpuLessNodes,
            nodes: vec![node(0, (0..32).collect()), node(1, Vec::new())],
            swaps: vec![SwapArea {
                device: "/dev/zram0".to_owned(),
                compressed: true,
                size_bytes: Bytes::gib(8),
                used_bytes: Bytes::mib(300),
                priority: 100,
            }],
            memory_tiers: vec![MemoryTier { number: 4, nodes: vec![0] }],
            notes: vec!["node 2 has no memory and belongs to no tier".to_owned()],
            background: Vec::new(),
        }
    }

    #[test]
    fn every_fact_is_shown_within_a_hundred_columns() {
        for unicode in [true, false] {
            let text = table(&example(), &Screen { width: 100, unicode });
            for fact in
                ["dram", "95 ns", "cxl", "compressed swap on", "none", "0-31", "300.0 MiB", "node 2 has no memory"]
            {
                assert!(text.contains(fact), "{fact:?} is missing in\n{text}");
            }
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            assert_eq!(text.is_ascii(), !unicode, "{text}");
        }
    }

    #[test]
    fn measurements_stand_beside_what_firmware_tells() {
        let one = |node, latency_ns| Measurement {
            node,
            cpus: (0..32).collect(),
            latency_ns,
            chased_bytes: Bytes::mib(256),
            huge_pages: node == 0,
            stream_mbps: 51_234.5,
        };
        let mut topology = example();
        topology.nodes[0].read_latency_ns = Some(80);
        let measured = Measured {
            nodes: vec![one(0, 83.21), one(1, 210.0)],
            left_out: vec![NotMeasured { node: 2, reason: "it is full".to_owned() }],
            contradictions: vec!["node 1: firmware lies".to_owned()],
        };
        let text = super::measured(&topology, &measured, &Screen { width: 100, unicode: true });
        for fact in [
            "83.2 ns",
            "80 ns",
            "51234 MB/s",
            "nothing",
            "0-31",
            "firmware lies",
            "node 2 was not measured: it is full",
        ] {
            assert!(text.contains(fact), "{fact:?} is missing in\n{text}");
        }
        assert!(text.contains("node 1: no huge pages") && !text.contains("node 0: no huge pages"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn one_tier_says_what_to_do() {
        let mut topology = example();
        topology.tiers.truncate(1);
        assert!(table(&topology, &Screen { width: 100, unicode: true }).contains("--tier-slow"));
    }

    #[test]
    fn numbers_are_listed_in_runs() {
        assert_eq!(runs(&[0, 1, 2, 3, 8, 10, 11]), "0-3,8,10-11");
        assert_eq!(runs(&[]), "");
    }
}
