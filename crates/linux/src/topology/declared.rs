//! Declared tiers: what the user says the tiers are, against what the kernel thinks.
//!
//! In: texts such as "fast=node:0 slow=node:1-2" and `--tier-slow auto|zram|zram:2GiB|node:1|swap:/dev/sda2|none`. Out: a
//! [`Topology`] with those tiers, and whether a zram device has to be set up for it. Must not: set it up.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use terrace_core::units::{Bytes, TierId};

use super::grouping::{Grouping, tier_of_nodes};
use super::swap::SwapArea;
use super::{TierKind, Topology, TopologyError, parse_list};

/// What a declared tier is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TierMemory {
    /// `node:0,2-3`: these NUMA nodes.
    Nodes(Vec<u32>),
    /// `zram:2GiB`: compressed swap of this size, to be set up for the run.
    Zram(Bytes),
    /// `swap:/dev/sda2`: a swap area that is active already.
    Swap(String),
}

/// A tier as the user declares it, `NAME=MEMORY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredTier {
    /// Its name in reports.
    pub name: String,
    /// What it is made of.
    pub memory: TierMemory,
}

/// What `--tier-slow` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SlowTier {
    /// Slower nodes if there are any, else active compressed swap, else a zram device for the run.
    #[default]
    Auto,
    /// This memory.
    Memory(TierMemory),
    /// `zram`: a zram device for the run, half as large as fast memory.
    Zram,
    /// None: all nodes are one tier, nothing can move.
    None,
}

/// A topology as it was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The tiers; a zram tier still to be set up is not among them.
    pub topology: Topology,
    /// The size of the zram device to set up; then call [`Topology::add_swap_device`].
    pub zram_to_set_up: Option<Bytes>,
}

const MEMORY_FORMS: &str = "node:1, node:0,2-3, zram:2GiB or swap:/dev/NAME";

impl FromStr for TierMemory {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<TierMemory, TopologyError> {
        let refused = |why: &str| TopologyError::Declaration(format!("{text:?} is no memory: {why}"));
        let (kind, value) = text.split_once(':').ok_or_else(|| refused(&format!("write {MEMORY_FORMS}")))?;
        match kind {
            "node" => match parse_list(value) {
                Some(nodes) if !nodes.is_empty() => Ok(TierMemory::Nodes(nodes)),
                _ => Err(refused("nodes are listed as in node:1 or node:0,2-3")),
            },
            "zram" => match value.parse::<Bytes>() {
                Ok(size) if size >= Bytes::mib(1) => Ok(TierMemory::Zram(size)),
                Ok(_) => Err(refused("a compressed swap needs 1 MiB at least")),
                Err(error) => Err(refused(&error.to_string())),
            },
            "swap" if value.starts_with('/') => Ok(TierMemory::Swap(value.to_owned())),
            _ => Err(refused(&format!("write {MEMORY_FORMS}"))),
        }
    }
}

impl FromStr for SlowTier {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<SlowTier, TopologyError> {
        match text.trim() {
            "auto" => Ok(SlowTier::Auto),
            "none" => Ok(SlowTier::None),
            "zram" => Ok(SlowTier::Zram),
            other if other.contains(':') => other.parse().map(SlowTier::Memory),
            other => Err(TopologyError::Declaration(format!(
                "{other:?} is no slow tier: write auto, none, zram, {MEMORY_FORMS}"
            ))),
        }
    }
}

impl fmt::Display for TierMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TierMemory::Nodes(nodes) => {
                let list: Vec<String> = nodes.iter().map(u32::to_string).collect();
                write!(out, "node:{}", list.join(","))
            }
            TierMemory::Zram(size) => write!(out, "zram:{}", size.get()),
            TierMemory::Swap(device) => write!(out, "swap:{device}"),
        }
    }
}

/// Reads declarations such as "fast=node:0 slow=node:1", fastest first.
///
/// # Errors
/// When a part is not `NAME=MEMORY`, or a name comes twice.
pub fn parse_declared(text: &str) -> Result<Vec<DeclaredTier>, TopologyError> {
    let mut declared: Vec<DeclaredTier> = Vec::new();
    for part in text.split_ascii_whitespace() {
        let (name, memory) = part.split_once('=').ok_or_else(|| {
            TopologyError::Declaration(format!(
                "{part:?} is no tier: write NAME=MEMORY, where MEMORY is {MEMORY_FORMS}"
            ))
        })?;
        if name.is_empty() || declared.iter().any(|tier| tier.name == name) {
            return Err(TopologyError::Declaration(format!("{part:?}: each tier needs a name of its own")));
        }
        declared.push(DeclaredTier { name: name.to_owned(), memory: memory.parse()? });
    }
    Ok(declared)
}

impl Topology {
    /// The topology with these tiers instead of those that were found.
    ///
    /// # Errors
    /// When a node or swap area is not there or is named twice, the first tier is not of nodes, swap is not the last,
    /// or there are too many tiers.
    pub fn with_declared(mut self, declared: &[DeclaredTier]) -> Result<Resolved, TopologyError> {
        let refused = |why: String| Err(TopologyError::Declaration(why));
        if declared.is_empty() || declared.len() > TierId::MAX {
            return refused(format!("{} tiers are declared; it must be 1 to {}", declared.len(), TierId::MAX));
        }
        let mut tiers = Vec::new();
        let mut seen = Vec::new();
        let mut zram_to_set_up = None;
        let mut swap = None;
        for (index, tier) in declared.iter().enumerate() {
            let last = index + 1 == declared.len();
            match &tier.memory {
                TierMemory::Nodes(numbers) => {
                    let mut nodes = Vec::new();
                    for number in numbers {
                        nodes.push(self.node(*number)?);
                        if seen.contains(number) {
                            return refused(format!("node {number} is named twice"));
                        }
                        seen.push(*number);
                    }
                    tiers.push(tier_of_nodes(index, Some(&tier.name), &nodes));
                }
                _ if index == 0 => return refused(format!("the fastest tier, {:?}, must be of nodes", tier.name)),
                _ if !last => return refused(format!("{:?} is swap and must be the last tier", tier.name)),
                TierMemory::Zram(size) => zram_to_set_up = Some(*size),
                TierMemory::Swap(device) => swap = Some(self.usable_swap(device)?),
            }
        }
        for node in self.nodes.iter().filter(|node| node.memory_bytes > Bytes::ZERO && !seen.contains(&node.number)) {
            self.notes.push(format!("node {} is in no declared tier; its pages count as fast memory", node.number));
        }
        self.tiers = tiers;
        self.grouping = Grouping::Declared;
        if let Some(area) = swap {
            self.add_swap_tier(&area);
            if let (Some(tier), Some(declared)) = (self.tiers.last_mut(), declared.last()) {
                tier.name.clone_from(&declared.name);
            }
        }
        Ok(Resolved { topology: self, zram_to_set_up })
    }

    /// The topology that `--tier-slow` asks for, as this machine can serve it.
    ///
    /// # Errors
    /// As [`Topology::with_declared`]; also when the slow nodes are all there are, or `auto` finds neither slow nodes nor
    /// compressed swap nor a zram module. `zram_there` says whether the kernel has one.
    pub fn with_slow(mut self, slow: &SlowTier, zram_there: bool) -> Result<Resolved, TopologyError> {
        let all: Vec<u32> =
            self.nodes.iter().filter(|node| node.memory_bytes > Bytes::ZERO).map(|node| node.number).collect();
        let tier = |name: &str, memory| DeclaredTier { name: name.to_owned(), memory };
        match slow {
            SlowTier::Auto => {
                self.tiers.retain(|tier| matches!(tier.kind, TierKind::Nodes { .. }));
                if self.tiers.len() > 1 {
                    return Ok(Resolved { topology: self, zram_to_set_up: None });
                }
                // Disk swap is not chosen automatically: a refault from it costs milliseconds where zram costs 5 us.
                if let Some(area) = self.swaps.first().cloned() {
                    if area.compressed && area.free_bytes() > Bytes::ZERO {
                        self.add_swap_tier(&area);
                        return Ok(Resolved { topology: self, zram_to_set_up: None });
                    }
                    if !zram_there && area.free_bytes() > Bytes::ZERO {
                        self.add_swap_tier(&area);
                        self.notes.push(format!("{} is taken, as this kernel has no zram: a page that comes back from it may take milliseconds", area.device));
                        return Ok(Resolved { topology: self, zram_to_set_up: None });
                    }
                    self.notes.push(format!(
                        "{} is active swap, but no compressed one with room: name it as swap:{} to use it",
                        area.device, area.device
                    ));
                }
                if !zram_there {
                    return Err(TopologyError::Declaration(
                        "no slow tier: one kind of memory, no compressed swap, and no zram in this kernel; load it with \
                         `modprobe zram`, or use --tier-slow none to observe only"
                            .to_owned(),
                    ));
                }
                let half = self.half_of_fast();
                Ok(Resolved { topology: self, zram_to_set_up: Some(half) })
            }
            SlowTier::Zram => {
                let resolved = self.with_declared(&[tier("fast", TierMemory::Nodes(all))])?;
                let half = resolved.topology.half_of_fast();
                Ok(Resolved { zram_to_set_up: Some(half), ..resolved })
            }
            SlowTier::None => self.with_declared(&[tier("memory", TierMemory::Nodes(all))]),
            SlowTier::Memory(TierMemory::Nodes(numbers)) => {
                for number in numbers {
                    self.node(*number)?;
                }
                let fast: Vec<u32> = all.iter().filter(|number| !numbers.contains(number)).copied().collect();
                if fast.is_empty() {
                    return Err(TopologyError::Declaration(format!(
                        "{} is all the memory there is: a fast tier must remain",
                        TierMemory::Nodes(numbers.clone())
                    )));
                }
                let declared =
                    [tier("fast", TierMemory::Nodes(fast)), tier("slow", TierMemory::Nodes(numbers.clone()))];
                self.with_declared(&declared)
            }
            SlowTier::Memory(memory) => {
                self.with_declared(&[tier("fast", TierMemory::Nodes(all)), tier("slow", memory.clone())])
            }
        }
    }

    /// The size of a zram device of which nobody has said how large it is to be.
    fn half_of_fast(&self) -> Bytes {
        Bytes::of_pages(self.tiers[0].capacity_bytes.pages() / 2)
    }

    /// An active swap area by its device, if page-outs would go to it.
    pub(super) fn usable_swap(&self, device: &str) -> Result<SwapArea, TopologyError> {
        let Some(index) = self.swaps.iter().position(|area| area.device == device) else {
            let present: Vec<&str> = self.swaps.iter().map(|area| area.device.as_str()).collect();
            let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
            return Err(TopologyError::NoSuchSwap { device: device.to_owned(), present });
        };
        let area = self.swaps[index].clone();
        let first = &self.swaps[0];
        if first.priority > area.priority && first.free_bytes() > Bytes::ZERO {
            return Err(TopologyError::Declaration(format!(
                "{device} has priority {}, so page-outs would go to {} with {} first: raise it with `swapoff {device}; \
                 swapon -p {} {device}`",
                area.priority,
                first.device,
                first.priority,
                first.priority + 1
            )));
        }
        Ok(area)
    }
}

/// Whether the kernel can add a zram device: the control files are there.
pub fn zram_is_there(root: &Path) -> bool {
    root.join("sys/class/zram-control/hot_add").exists()
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Machine, NodeSpec};
    use super::*;

    fn one_node() -> Topology {
        Topology::discover(Machine::new(&[NodeSpec::dram(0)]).root()).unwrap()
    }

    fn two_sockets() -> Topology {
        Topology::discover(Machine::new(&[NodeSpec::dram(0), NodeSpec::dram(1)]).root()).unwrap()
    }

    fn slow(text: &str) -> SlowTier {
        text.parse().unwrap()
    }

    #[test]
    fn declared_tiers_override_what_the_kernel_thinks() {
        let declared = parse_declared("quick=node:1 slow=node:0").unwrap();
        let resolved = two_sockets().with_declared(&declared).unwrap();
        let names: Vec<&str> = resolved.topology.tiers.iter().map(|tier| tier.name.as_str()).collect();
        assert_eq!(names, ["quick", "slow"]);
        assert_eq!(resolved.topology.tier_map().unwrap().tier_of_frame(0), TierId(1));
        assert_eq!(resolved.topology.grouping, Grouping::Declared);
        assert_eq!(resolved.zram_to_set_up, None);
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_there_is() {
        let error = one_node().with_slow(&slow("node:7"), true).unwrap_err().to_string();
        assert!(error.contains("node 7") && error.contains("node 0 (1.0 GiB)"), "{error}");
        let error = one_node().with_slow(&slow("node:0"), true).unwrap_err().to_string();
        assert!(error.contains("all the memory there is"), "{error}");
        let error = one_node().with_slow(&slow("swap:/dev/sdz"), true).unwrap_err().to_string();
        assert!(error.contains("/dev/sdz") && error.contains("none"), "{error}");
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for text in ["", "zram:", "zram:0", "zram:two", "node:", "node:x", "node:3-1", "swap:sda", "disk:1", "fast"] {
            assert!(text.parse::<SlowTier>().is_err(), "{text:?} must be refused");
        }
        assert!("zram".parse::<SlowTier>().is_ok(), "sized by itself");
        for text in ["fast", "=node:0", "a=node:0 a=node:1", "a=ram:0"] {
            assert!(parse_declared(text).is_err(), "{text:?} must be refused");
        }
        for text in ["a=node:0 b=node:0", "a=zram:1GiB", "a=node:0 b=zram:1GiB c=node:1"] {
            assert!(two_sockets().with_declared(&parse_declared(text).unwrap()).is_err(), "{text:?} must be refused");
        }
        assert!(two_sockets().with_declared(&[]).is_err());
    }

    #[test]
    fn auto_takes_slow_nodes_then_active_zram_then_its_own() {
        let machine = Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)]);
        let resolved = Topology::discover(machine.root()).unwrap().with_slow(&SlowTier::Auto, true).unwrap();
        assert_eq!((resolved.topology.tiers.len(), resolved.zram_to_set_up), (2, None));

        let swaps = "Filename Type Size Used Priority\n/dev/zram0 partition 1048572 0 100\n";
        let machine = Machine::new(&[NodeSpec::dram(0)]).file("proc/swaps", swaps);
        let resolved = Topology::discover(machine.root()).unwrap().with_slow(&SlowTier::Auto, true).unwrap();
        assert!(matches!(&resolved.topology.tiers[1].kind, TierKind::Swap { compressed: true, .. }));

        let swaps = "Filename Type Size Used Priority\n/dev/sda2 partition 1048572 0 -2\n";
        let machine = Machine::new(&[NodeSpec::dram(0)]).file("proc/swaps", swaps);
        let resolved = Topology::discover(machine.root()).unwrap().with_slow(&SlowTier::Auto, true).unwrap();
        assert_eq!(resolved.zram_to_set_up, Some(Bytes::mib(512)), "disk swap is not taken by itself");
        assert!(resolved.topology.notes.iter().any(|note| note.contains("swap:/dev/sda2")));

        assert!(one_node().with_slow(&SlowTier::Auto, false).unwrap_err().to_string().contains("modprobe zram"));
        assert_eq!(one_node().with_slow(&SlowTier::None, false).unwrap().topology.tiers.len(), 1);
    }

    #[test]
    fn zram_beside_several_nodes_makes_all_of_them_fast() {
        let resolved = two_sockets().with_slow(&slow("zram:2GiB"), true).unwrap();
        assert_eq!(resolved.zram_to_set_up, Some(Bytes::gib(2)));
        assert_eq!(resolved.topology.tiers.len(), 1);
        assert_eq!(resolved.topology.tiers[0].kind, TierKind::Nodes { nodes: vec![0, 1] });
    }

    #[test]
    fn a_swap_that_was_switched_on_later_joins_the_declared_tiers() {
        let machine = Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)]);
        let resolved = Topology::discover(machine.root()).unwrap().with_slow(&slow("zram:1GiB"), true).unwrap();
        let mut topology = resolved.topology;
        let machine = machine.file("proc/swaps", "F T S U P\n/dev/zram3 partition 1048572 0 1\n");
        topology.add_swap_device(machine.root(), Path::new("/dev/zram3")).unwrap();
        assert_eq!(topology.tiers.len(), 2, "both nodes are still one fast tier");
        assert_eq!(topology.tiers[0].kind, TierKind::Nodes { nodes: vec![0, 1] });
        let error = topology.add_swap_device(machine.root(), Path::new("/dev/zram4")).unwrap_err().to_string();
        assert!(error.contains("/dev/zram3"), "{error}");
    }

    #[test]
    fn swap_that_page_outs_would_not_reach_is_refused() {
        let swaps = "F T S U P\n/dev/zram0 partition 1048572 0 100\n/dev/sda2 partition 1048572 0 5\n";
        let machine = Machine::new(&[NodeSpec::dram(0)]).file("proc/swaps", swaps);
        let topology = Topology::discover(machine.root()).unwrap();
        let error = topology.clone().with_slow(&slow("swap:/dev/sda2"), true).unwrap_err().to_string();
        assert!(error.contains("swapon -p 101"), "{error}");
        assert_eq!(topology.with_slow(&slow("swap:/dev/zram0"), true).unwrap().topology.tiers[1].name, "slow");
    }
}
