//! NUMA nodes as the kernel and the firmware describe them.
//!
//! In: /sys/devices/system/node, /sys/devices/virtual/memory_tiering, /proc/zoneinfo. Out: [`Node`]s with their memory,
//! CPUs, distances, HMAT figures and page frames, and the kernel's own [`MemoryTier`]s. Must not: rank them.

use std::ops::Range;
use std::path::Path;

use terrace_core::units::{Bytes, PAGE_BYTES};

use super::{TopologyError, parse_list, text_of};
use crate::pressure::meminfo_bytes;

/// One NUMA node.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Node {
    /// Its number.
    pub number: u32,
    /// Its memory; 0 for a node that has only CPUs.
    pub memory_bytes: Bytes,
    /// Memory that was free when it was read.
    pub free_bytes: Bytes,
    /// Its CPUs; none for memory that hangs on no socket of its own, such as CXL.
    pub cpus: Vec<u32>,
    /// Its distance to each node, by the nodes' order in the kernel; 10 is itself (ACPI SLIT).
    pub distances: Vec<u32>,
    /// Read latency from the nearest CPU in nanoseconds (HMAT, access0).
    pub read_latency_ns: Option<u32>,
    /// Write latency from the nearest CPU in nanoseconds (HMAT).
    pub write_latency_ns: Option<u32>,
    /// Read bandwidth to the nearest CPU in MB/s (HMAT).
    pub read_bandwidth_mbps: Option<u32>,
    /// Write bandwidth to the nearest CPU in MB/s (HMAT).
    pub write_bandwidth_mbps: Option<u32>,
    /// Its page frames as runs, sorted, joined where they touch.
    pub frames: Vec<Range<u64>>,
}

/// One of the kernel's memory tiers (6.1 and later).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct MemoryTier {
    /// N of memory_tierN: smaller is faster. 4 is where DRAM lands.
    pub number: u32,
    /// Its nodes.
    pub nodes: Vec<u32>,
}

/// Reads all nodes below `root`. A kernel without NUMA has none in /sys; its memory is one node then.
pub(super) fn read_nodes(
    root: &Path,
    notes: &mut Vec<String>,
    background: &mut Vec<String>,
) -> Result<Vec<Node>, TopologyError> {
    let meminfo = read(root, "proc/meminfo")?;
    let total = meminfo_bytes(&meminfo, "MemTotal:")
        .ok_or_else(|| TopologyError::Content { path: "/proc/meminfo".to_owned(), expected: "a line MemTotal" })?;
    let free = meminfo_bytes(&meminfo, "MemFree:").unwrap_or_default();
    let directory = root.join("sys/devices/system/node");
    let mut numbers = numbered_entries(&directory, "node");
    numbers.sort_unstable();
    let block_bytes = text_of(&root.join("sys/devices/system/memory/block_size_bytes"))
        .and_then(|text| u64::from_str_radix(&text, 16).ok());
    let zoneinfo = std::fs::read_to_string(root.join("proc/zoneinfo")).unwrap_or_default();
    let mut nodes = Vec::with_capacity(numbers.len());
    for number in numbers {
        nodes.push(read_node(root, number, block_bytes, &zoneinfo)?);
    }
    if nodes.is_empty() {
        notes.push("this kernel shows no NUMA nodes: all memory is taken as one".to_owned());
        nodes.push(Node {
            number: 0,
            memory_bytes: total,
            free_bytes: free,
            cpus: vec![0],
            distances: vec![10],
            read_latency_ns: None,
            write_latency_ns: None,
            read_bandwidth_mbps: None,
            write_bandwidth_mbps: None,
            frames: Vec::new(),
        });
    }
    // Memory that is plugged or ballooned shows in /proc/meminfo and not always in the node's own file.
    let mut with_memory = nodes.iter_mut().filter(|node| node.memory_bytes > Bytes::ZERO);
    if let (Some(only), None) = (with_memory.next(), with_memory.next())
        && total > only.memory_bytes
    {
        background.push(format!(
            "node {} says it has {}, /proc/meminfo says {total}: the latter is used",
            only.number, only.memory_bytes
        ));
        (only.memory_bytes, only.free_bytes) = (total, free);
    }
    Ok(nodes)
}

/// Reads the kernel's memory tiers, fastest first. Kernels before 6.1 show none.
pub(super) fn read_memory_tiers(root: &Path) -> Vec<MemoryTier> {
    let directory = root.join("sys/devices/virtual/memory_tiering");
    let mut tiers: Vec<MemoryTier> = numbered_entries(&directory, "memory_tier")
        .into_iter()
        .filter_map(|number| {
            let nodes = parse_list(&text_of(&directory.join(format!("memory_tier{number}/nodelist")))?)?;
            (!nodes.is_empty()).then_some(MemoryTier { number, nodes })
        })
        .collect();
    tiers.sort_by_key(|tier| tier.number);
    tiers
}

/// Free memory of a node now, from its own meminfo.
pub(crate) fn free_memory(root: &Path, number: u32) -> Option<Bytes> {
    let text = std::fs::read_to_string(root.join(format!("sys/devices/system/node/node{number}/meminfo"))).ok()?;
    meminfo_bytes(&text, "MemFree:")
}

/// What of a node's memory can still be taken: the kernel's estimate MemAvailable (Documentation/filesystems/proc.rst) for one node, without
/// slabs. Of each zone the free memory above its low watermark and above what it keeps back from allocations that could be met
/// by a higher zone (`lowmem_reserve`, "protection"; a program's could), the pages that processors hold ready for their next allocations, and of the file
/// cache what is more than half of it or than those watermarks. Pages that were moved away lie in such a list of the mover's processor at
/// first. `zoneinfo` is what /proc/zoneinfo says.
pub(crate) fn available_memory(root: &Path, number: u32, zoneinfo: &str) -> Option<Bytes> {
    let text = std::fs::read_to_string(root.join(format!("sys/devices/system/node/node{number}/meminfo"))).ok()?;
    let (mut free_above, mut low_of_all, mut held_ready) = (0u64, 0u64, 0u64);
    let (mut free, mut low) = (0u64, 0u64);
    for line in node_lines(zoneinfo, number) {
        let mut words = line.split_ascii_whitespace();
        let value = |word: Option<&str>| word.and_then(|word| word.parse().ok()).unwrap_or(0);
        match (words.next(), words.next()) {
            (Some("pages"), Some("free")) => free = value(words.next()),
            (Some("low"), word) => low = value(word),
            (Some("count:"), word) => held_ready += value(word),
            // The last of the lines about the zone itself that matter, on every kernel; its lists by processor come after.
            (Some("protection:"), _) => {
                let numbers = line.split(['(', ',', ')']).filter_map(|word| word.trim().parse::<u64>().ok());
                free_above += free.saturating_sub(low + numbers.max().unwrap_or(0));
                low_of_all += low;
            }
            _ => {}
        }
    }
    let amount = |name: &str| meminfo_bytes(&text, name).unwrap_or_default().get();
    let files = amount("Active(file):") + amount("Inactive(file):");
    let low_of_all = Bytes::of_pages(low_of_all).get();
    Some(Bytes::of_pages(free_above + held_ready) + Bytes::new(files - low_of_all.min(files / 2)))
}

fn read_node(root: &Path, number: u32, block_bytes: Option<u64>, zoneinfo: &str) -> Result<Node, TopologyError> {
    let folder = format!("sys/devices/system/node/node{number}");
    let meminfo = read(root, &format!("{folder}/meminfo"))?;
    let memory_bytes = meminfo_bytes(&meminfo, "MemTotal:")
        .ok_or_else(|| TopologyError::Content { path: format!("/{folder}/meminfo"), expected: "a line MemTotal" })?;
    let directory = root.join(&folder);
    // access0 describes the nearest CPUs or devices, access1 CPUs only; the former is there whenever HMAT is.
    let figure = |name: &str| {
        let text = text_of(&directory.join(format!("access0/initiators/{name}")))?;
        text.parse::<u32>().ok().filter(|figure| *figure > 0)
    };
    let mut frames = match block_bytes {
        Some(bytes) => numbered_entries(&directory, "memory")
            .into_iter()
            .map(|block| u64::from(block) * (bytes / PAGE_BYTES)..(u64::from(block) + 1) * (bytes / PAGE_BYTES))
            .collect(),
        None => Vec::new(),
    };
    if frames.is_empty() {
        frames = zone_frames(zoneinfo, number);
    }
    Ok(Node {
        number,
        memory_bytes,
        free_bytes: meminfo_bytes(&meminfo, "MemFree:").unwrap_or_default(),
        cpus: text_of(&directory.join("cpulist")).and_then(|text| parse_list(&text)).unwrap_or_default(),
        distances: text_of(&directory.join("distance")).map_or_else(Vec::new, |text| {
            text.split_ascii_whitespace().map_while(|field| field.parse().ok()).collect()
        }),
        read_latency_ns: figure("read_latency"),
        write_latency_ns: figure("write_latency"),
        read_bandwidth_mbps: figure("read_bandwidth"),
        write_bandwidth_mbps: figure("write_bandwidth"),
        frames: join(frames),
    })
}

/// The lines about a node's zones; the line that begins a zone is one of them.
fn node_lines(zoneinfo: &str, number: u32) -> impl Iterator<Item = &str> {
    let mut ours = false;
    zoneinfo.lines().filter(move |line| {
        let mut fields = line.split_ascii_whitespace();
        if let (Some("Node"), Some(second)) = (fields.next(), fields.next()) {
            ours = second.trim_end_matches(',').parse() == Ok(number);
        }
        ours
    })
}

/// The first two words of each of those lines.
fn zone_lines(zoneinfo: &str, number: u32) -> impl Iterator<Item = (&str, &str)> {
    node_lines(zoneinfo, number).filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        Some((fields.next()?, fields.next()?))
    })
}

/// The frames that a node's zones span, from /proc/zoneinfo: used where memory cannot be hot-plugged, so that /sys has
/// no memory blocks. Spans may hold holes, which is harmless: no page lies in a hole.
fn zone_frames(zoneinfo: &str, number: u32) -> Vec<Range<u64>> {
    let mut frames = Vec::new();
    let mut spanned = 0;
    for line in zone_lines(zoneinfo, number) {
        match line {
            ("Node", _) => spanned = 0,
            ("spanned", pages) => spanned = pages.parse().unwrap_or(0),
            ("start_pfn:", start) if spanned > 0 => {
                if let Ok(start) = start.parse::<u64>() {
                    frames.push(start..start + spanned);
                }
            }
            _ => {}
        }
    }
    frames
}

/// Sorts runs and joins those that touch.
fn join(mut runs: Vec<Range<u64>>) -> Vec<Range<u64>> {
    runs.sort_by_key(|run| run.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.start <= last.end => last.end = last.end.max(run.end),
            _ => joined.push(run),
        }
    }
    joined
}

/// N of every entry named `prefix`N.
fn numbered_entries(directory: &Path, prefix: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

fn read(root: &Path, path: &str) -> Result<String, TopologyError> {
    std::fs::read_to_string(root.join(path)).map_err(|source| TopologyError::Read { path: format!("/{path}"), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_other_nodes_and_empty_zones_give_no_frames() {
        let zoneinfo = "\
Node 0, zone      DMA
        spanned  4095
  start_pfn:           1
Node 0, zone   Normal
        spanned  1000
  start_pfn:           4096
Node 1, zone   Normal
        spanned  500
  start_pfn:           5096
Node 1, zone  Movable
        spanned  0
  start_pfn:           0
";
        assert_eq!(join(zone_frames(zoneinfo, 0)), vec![1..5096]);
        assert_eq!(join(zone_frames(zoneinfo, 1)), vec![5096..5596]);
        assert!(zone_frames(zoneinfo, 2).is_empty());
    }

    #[test]
    fn what_can_be_taken_is_free_above_what_zones_keep_back_or_held_ready_or_half_of_the_file_cache() {
        let check = |[dma, normal]: [u64; 2], ready: u64, files_kib: u64, left: Bytes| {
            let root = tempfile::tempdir().unwrap();
            let node = root.path().join("sys/devices/system/node/node0");
            std::fs::create_dir_all(&node).unwrap();
            let meminfo = format!("Node 0 Active(file): 0 kB\nNode 0 Inactive(file): {files_kib} kB\n");
            std::fs::write(node.join("meminfo"), meminfo).unwrap();
            let zone = |name: &str, node: u32, free: u64, low: u64, kept: u64, ready: u64| {
                format!(
                    "Node {node}, zone {name}\n  pages free     {free}\n        boost    0\n        min      1\n        low      {low}\n\
                     \x20       managed  9999\n        protection: (0, {kept}, {kept}, {kept})\n  pagesets\n    cpu: 0\n              count:    {ready}\n              high:     {free}\n"
                )
            };
            let zones = [
                zone("DMA", 0, dma, 20, 80, 0),
                zone("Normal", 0, normal, 156, 0, ready),
                zone("Movable", 0, 0, 80, 0, 0),
                zone("Normal", 1, 5000, 9, 0, 7),
            ];
            let found = available_memory(root.path(), 0, &zones.concat());
            assert_eq!(found, Some(left), "{dma} and {normal} pages free, {files_kib} KiB of files");
        };
        check([100, 100], 0, 0, Bytes::ZERO);
        check([868, 100], 0, 0, Bytes::mib(3));
        check([100, 156 + 768], 0, 0, Bytes::mib(3));
        check([356, 156 + 512], 0, 0, Bytes::mib(3));
        check([0, 0], 256, 0, Bytes::mib(1));
        check([0, 0], 0, 1024, Bytes::kib(512));
        check([0, 0], 0, 10240, Bytes::mib(9));
    }
}
