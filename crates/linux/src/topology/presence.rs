//! Whether the tiers are still there: memory is unplugged, nodes go offline, swap is switched off.
//!
//! In: the tiers as they were found, and /sys and /proc at intervals. Out: what changed. Must not: make new tiers; what was added
//! beyond a tier's first size needs a restart, since nobody knows to which tier its page frames belong.

use std::path::Path;

use terrace_core::units::{Bytes, TierId};

use super::{Tier, TierKind, TierMap, swap};
use crate::pressure::meminfo_bytes;

/// A tier whose size changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeChange {
    /// Which.
    pub tier: TierId,
    /// What it held,
    pub before: Bytes,
    /// and what it holds now; nothing if it is gone.
    pub now: Bytes,
    /// The message for an operator.
    pub text: String,
}

/// What was last seen of each tier.
#[derive(Clone, Debug)]
pub struct Presence {
    tiers: Vec<Seen>,
}

/// What was seen of one tier.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The size that was planned with at the start.
    planned: Bytes,
    /// What the files said then,
    first: Bytes,
    /// and last.
    last: Bytes,
    /// Whether it was reported that it grew beyond its first size: a balloon that breathes would repeat it for ever.
    growth_reported: bool,
}

/// Balloons change all the time: a change below this share of a tier's size is not reported.
const NEWS: f64 = 1.0 / 64.0;

impl Presence {
    /// Of these tiers, below `root`.
    pub fn of(root: &Path, map: &TierMap) -> Presence {
        let seen = |tier: &Tier| {
            let now = size_now(root, tier).unwrap_or(tier.capacity_bytes);
            Seen { planned: tier.capacity_bytes, first: now, last: now, growth_reported: false }
        };
        Presence { tiers: map.tiers().iter().map(seen).collect() }
    }

    /// Looks again; the map takes the new sizes.
    pub fn look(&mut self, root: &Path, map: &mut TierMap) -> Vec<SizeChange> {
        let mut changes = Vec::new();
        for (index, seen) in self.tiers.iter_mut().enumerate() {
            let Seen { planned, first, last, growth_reported } = seen;
            let tier = map.tier(TierId(index as u8)).clone();
            // What cannot be read is unknown, and no reason to act.
            let Some(now) = size_now(root, &tier) else { continue };
            let news = last.get().abs_diff(now.get()) as f64 > NEWS * first.get() as f64;
            let gone_or_back = (now == Bytes::ZERO) != (*last == Bytes::ZERO);
            if !news && !gone_or_back {
                continue;
            }
            // A declared size, or one that /proc/meminfo corrected, shrinks by as much as the files' does.
            let lost = first.saturating_sub(now);
            let size = if now == Bytes::ZERO { Bytes::ZERO } else { planned.saturating_sub(lost) };
            let before = tier.capacity_bytes;
            *last = now;
            let beyond = now > *first;
            if beyond && size == before && std::mem::replace(growth_reported, true) {
                continue;
            }
            map.set_capacity(tier.id, size);
            changes.push(SizeChange { tier: tier.id, before, now: size, text: told(&tier, before, size, beyond) });
        }
        changes
    }
}

fn told(tier: &Tier, before: Bytes, now: Bytes, beyond: bool) -> String {
    let name = &tier.name;
    let of = match &tier.kind {
        TierKind::Nodes { nodes } => {
            let list: Vec<String> = nodes.iter().map(u32::to_string).collect();
            format!("node {}", list.join(", "))
        }
        TierKind::Swap { device, .. } => device.clone(),
    };
    if now == Bytes::ZERO {
        format!(
            "tier {name} ({of}) is gone: it was taken offline or switched off; nothing is moved there until it is back"
        )
    } else if beyond {
        format!("tier {name} ({of}) has grown beyond its first size of {now}: a restart takes the new memory in")
    } else {
        format!("tier {name} ({of}) holds {now} now, {before} before")
    }
}

/// What a tier holds now; `None` if that cannot be found out.
fn size_now(root: &Path, tier: &Tier) -> Option<Bytes> {
    match &tier.kind {
        TierKind::Nodes { nodes } => {
            let directory = root.join("sys/devices/system/node");
            // A kernel without NUMA has no nodes; its memory does not go.
            if !directory.is_dir() {
                return None;
            }
            let size = |node: &u32| {
                let text = std::fs::read_to_string(directory.join(format!("node{node}/meminfo"))).ok()?;
                meminfo_bytes(&text, "MemTotal:")
            };
            // A node that is gone has no directory.
            Some(nodes.iter().filter_map(size).fold(Bytes::ZERO, |sum, bytes| sum + bytes))
        }
        // A tier that is only planned for is on no device.
        TierKind::Swap { device, .. } if !device.starts_with('/') => None,
        TierKind::Swap { device, .. } => {
            let areas = swap::read_swaps(root).ok()?;
            Some(areas.iter().find(|area| area.device == *device).map_or(Bytes::ZERO, |area| area.size_bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Topology;
    use super::super::fixtures::{Machine, NodeSpec};
    use super::*;

    fn machine() -> Machine {
        Machine::new(&[NodeSpec::dram(0), NodeSpec::memory_only(1)])
            .memory_tier(4, "0")
            .memory_tier(22, "1")
            .file("proc/swaps", "Filename Type Size Used Priority\n/dev/zram1 partition 2097148 0 100\n")
    }

    #[test]
    fn a_node_that_goes_offline_holds_nothing_and_all_again_when_it_is_back() {
        let machine = machine();
        let mut map = Topology::discover(machine.root()).unwrap().tier_map().unwrap();
        let mut presence = Presence::of(machine.root(), &map);
        assert_eq!(presence.look(machine.root(), &mut map), []);
        let node = machine.root().join("sys/devices/system/node/node1");
        let away = machine.root().join("away");
        std::fs::rename(&node, &away).unwrap();
        let gone = presence.look(machine.root(), &mut map);
        assert_eq!((gone.len(), gone[0].tier, gone[0].before, gone[0].now), (1, TierId(1), Bytes::gib(1), Bytes::ZERO));
        assert!(gone[0].text.contains("tier node1 (node 1) is gone"), "{}", gone[0].text);
        assert_eq!(map.tier(TierId(1)).capacity_bytes, Bytes::ZERO);
        assert_eq!(presence.look(machine.root(), &mut map), [], "told once");
        std::fs::rename(&away, &node).unwrap();
        let back = presence.look(machine.root(), &mut map);
        assert_eq!((back[0].now, map.tier(TierId(1)).capacity_bytes), (Bytes::gib(1), Bytes::gib(1)));
    }

    #[test]
    fn a_part_that_is_unplugged_is_missed_and_a_balloons_breath_is_not() {
        let machine = machine();
        let mut map = Topology::discover(machine.root()).unwrap().tier_map().unwrap();
        let mut presence = Presence::of(machine.root(), &map);
        let total = |kilobytes: u64| {
            let path = machine.root().join("sys/devices/system/node/node1/meminfo");
            std::fs::write(path, format!("Node 1 MemTotal: {kilobytes} kB\nNode 1 MemFree: 1 kB\n")).unwrap();
        };
        total(1_048_576 - 1024);
        assert_eq!(presence.look(machine.root(), &mut map), []);
        total(1_048_576 / 2);
        let change = presence.look(machine.root(), &mut map).remove(0);
        assert_eq!((change.tier, change.now), (TierId(1), Bytes::mib(512)));
        assert!(change.text.contains("holds 512"), "{}", change.text);
        total(1_048_576 * 2);
        let grown = presence.look(machine.root(), &mut map).remove(0);
        assert_eq!(grown.now, Bytes::gib(1), "frames that nobody knows are not planned with");
        assert!(grown.text.contains("a restart takes the new memory in"), "{}", grown.text);
    }

    #[test]
    fn swap_that_is_switched_off_is_gone() {
        let machine = machine();
        let mut map = Topology::discover(machine.root()).unwrap().tier_map().unwrap();
        let mut presence = Presence::of(machine.root(), &map);
        let machine = machine.file("proc/swaps", "Filename Type Size Used Priority\n");
        let change = presence.look(machine.root(), &mut map).remove(0);
        assert_eq!((change.tier, change.now), (TierId(2), Bytes::ZERO));
        assert!(change.text.contains("/dev/zram1"), "{}", change.text);
    }
}
