//! Fixture machines: trees of /proc and /sys files for the tests of this folder.
//!
//! In: nodes and tiers. Out: a temporary directory that looks like such a machine's root. Must not: be used outside tests.

use std::path::Path;

/// One node of a fixture machine, with 1 GiB of memory.
#[derive(Clone, Copy)]
pub(crate) struct NodeSpec {
    number: u32,
    cpus: bool,
    latency: Option<(u32, u32)>,
}

impl NodeSpec {
    /// A node with CPUs.
    pub(crate) fn dram(number: u32) -> NodeSpec {
        NodeSpec { number, cpus: true, latency: None }
    }

    /// A node without CPUs.
    pub(crate) fn memory_only(number: u32) -> NodeSpec {
        NodeSpec { number, cpus: false, latency: None }
    }

    /// The same with HMAT figures: nanoseconds and MB/s.
    pub(crate) fn latency(self, nanoseconds: u32, mbps: u32) -> NodeSpec {
        NodeSpec { latency: Some((nanoseconds, mbps)), ..self }
    }
}

/// A machine of the given nodes; node k holds the memory blocks 8k to 8k+7 of 128 MiB.
pub(crate) struct Machine {
    root: tempfile::TempDir,
    nodes: u32,
}

impl Machine {
    pub(crate) fn new(nodes: &[NodeSpec]) -> Machine {
        let machine = Machine { root: tempfile::tempdir().unwrap(), nodes: nodes.len() as u32 };
        let total = 1_048_576 * nodes.len().max(1);
        let machine = machine
            .file("proc/meminfo", &format!("MemTotal:       {total} kB\nMemFree:        {} kB\n", total / 2))
            .file("proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n")
            .file("sys/devices/system/memory/block_size_bytes", "8000000\n");
        let mut machine = machine;
        for spec in nodes {
            let node = spec.number;
            let folder = format!("sys/devices/system/node/node{node}");
            let distance: Vec<&str> =
                nodes.iter().map(|other| if other.number == node { "10" } else { "20" }).collect();
            machine = machine
                .file(
                    &format!("{folder}/meminfo"),
                    &format!("Node {node} MemTotal:        1048576 kB\nNode {node} MemFree:  524288 kB\n"),
                )
                .file(&format!("{folder}/cpulist"), &if spec.cpus { format!("{node}\n") } else { "\n".to_owned() })
                .file(&format!("{folder}/distance"), &distance.join(" "));
            for block in 8 * node..8 * node + 8 {
                machine = machine.file(&format!("{folder}/memory{block}/phys_index"), "");
            }
            if let Some((latency, bandwidth)) = spec.latency {
                let initiators = format!("{folder}/access0/initiators");
                for (name, figure) in [("latency", latency), ("bandwidth", bandwidth)] {
                    machine = machine
                        .file(&format!("{initiators}/read_{name}"), &format!("{figure}\n"))
                        .file(&format!("{initiators}/write_{name}"), &format!("{figure}\n"));
                }
            }
        }
        machine
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Machine {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn memory_tier(self, number: u32, nodes: &str) -> Machine {
        self.file(&format!("sys/devices/virtual/memory_tiering/memory_tier{number}/nodelist"), nodes)
    }

    pub(crate) fn distances(mut self, rows: &[&str]) -> Machine {
        for (node, row) in rows.iter().enumerate() {
            self = self.file(&format!("sys/devices/system/node/node{node}/distance"), row);
        }
        self
    }

    pub(crate) fn without_memory_blocks(self) -> Machine {
        std::fs::remove_dir_all(self.root.path().join("sys/devices/system/memory")).unwrap();
        for block in 0..8 * self.nodes {
            let folder = format!("sys/devices/system/node/node{}/memory{block}", block / 8);
            std::fs::remove_dir_all(self.root.path().join(folder)).unwrap();
        }
        self
    }
}
