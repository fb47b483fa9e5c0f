//! Measures each node: how long a load takes, and how many bytes a second come and go.
//!
//! In: a [`Topology`], CPUs near each node. Out: a [`Measurement`] per node, and contradictions with the firmware. Must not: move
//! or touch another program's memory, or be taken for more than it is: one idle or busy minute of one machine.
//!
//! Latency is a chase: one load after the other, each address read from the line before, over a random cycle through memory that
//! is much larger than the last cache (lat_mem_rd of lmbench, McVoy and Staelin, USENIX ATC 1996). Bandwidth is the triad of STREAM
//! (McCalpin 1995): `a[i] = b[i] + s * c[i]` on every CPU near the node, counted as STREAM does at 24 bytes an element.

use std::path::Path;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use terrace_core::random::SplitMix64;
use terrace_core::units::Bytes;

use super::{Node, Topology};
use crate::sys::placement;

/// What was measured of a node.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Measurement {
    /// The node.
    pub node: u32,
    /// The CPUs it was measured from: its own, or those of the nearest node that has some.
    pub cpus: Vec<u32>,
    /// Time of one load, nanoseconds: the best of three chases.
    pub latency_ns: f64,
    /// Bytes that were chased through.
    pub chased_bytes: Bytes,
    /// Whether they lay in huge pages; in small ones each load pays for a walk of the page tables as well.
    pub huge_pages: bool,
    /// Bandwidth of the triad, MB/s (10^6 bytes a second): the best of five.
    pub stream_mbps: f64,
}

/// Why a node was not measured.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct NotMeasured {
    /// The node.
    pub node: u32,
    /// Why.
    pub reason: String,
}

/// All that was measured.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Measured {
    /// The nodes, by number.
    pub nodes: Vec<Measurement>,
    /// Those left out.
    pub left_out: Vec<NotMeasured>,
    /// What firmware or the grouping says that the measurements do not.
    pub contradictions: Vec<String>,
}

const LINE: usize = 64;
const WORDS_A_LINE: usize = LINE / size_of::<u64>();
/// So much more than the last cache, that hits in it are one in eight at most.
const TIMES_THE_CACHE: u64 = 8;
const LEAST: Bytes = Bytes::mib(64);
const MOST: Bytes = Bytes::mib(1024);
/// Of what is free on a node no more than this is taken.
const SHARE_OF_FREE: f64 = 0.25;
const CHASES: usize = 3;
const LOADS: usize = 2_000_000;
const TRIADS: usize = 5;
/// Firmware may be off by this factor before it is called a contradiction: HMAT's figures are often those of an idle machine of the
/// series, rounded.
const TOLERANCE: f64 = 1.5;
/// A slower tier must measure slower by more than what two runs differ by.
const NOISE: f64 = 1.1;

/// Measures every node with memory.
pub fn measure(root: &Path, topology: &Topology) -> Measured {
    let mut measured = Measured::default();
    for node in topology.nodes.iter().filter(|node| node.memory_bytes > Bytes::ZERO) {
        match measure_node(root, topology, node) {
            Ok(measurement) => measured.nodes.push(measurement),
            Err(error) => measured.left_out.push(NotMeasured { node: node.number, reason: error.to_string() }),
        }
    }
    measured.contradictions = contradictions(topology, &measured.nodes);
    measured
}

/// The CPUs nearest to a node: its own, else those of the node at the least distance.
fn near_cpus(topology: &Topology, node: &Node) -> Vec<u32> {
    if !node.cpus.is_empty() {
        return node.cpus.clone();
    }
    let with_cpus = topology.nodes.iter().enumerate().filter(|(_, other)| !other.cpus.is_empty());
    let nearest = with_cpus.min_by_key(|(place, _)| node.distances.get(*place).copied().unwrap_or(u32::MAX));
    nearest.map(|(_, other)| other.cpus.clone()).unwrap_or_default()
}

/// Why a node could not be measured.
#[derive(Debug, thiserror::Error)]
enum MeasureError {
    #[error("no node has CPUs to measure from")]
    NoCpus,
    #[error("{wanted} of free memory are wanted, at most a quarter of what is free, and {free} are free")]
    TooLittle { wanted: Bytes, free: Bytes },
    #[error("the CPUs of this process: {0}")]
    Affinity(rustix::io::Errno),
    #[error("this process may not run on the CPUs near it ({0:?}): see taskset, or the cpuset of its cgroup")]
    NotAllowed(Vec<u32>),
    #[error("the thread cannot be put on its CPUs: {0}")]
    Pin(rustix::io::Errno),
    #[error("its memory cannot be asked for: {0}")]
    Memory(std::io::Error),
    #[error("the thread that measures ended")]
    Ended,
}

fn measure_node(root: &Path, topology: &Topology, node: &Node) -> Result<Measurement, MeasureError> {
    let cpus = near_cpus(topology, node);
    if cpus.is_empty() {
        return Err(MeasureError::NoCpus);
    }
    let cache = last_cache(root, cpus[0]);
    let wanted = Bytes::new((cache.get() * TIMES_THE_CACHE).clamp(LEAST.get(), MOST.get()));
    let free = Bytes::new((node.free_bytes.get() as f64 * SHARE_OF_FREE) as u64);
    if free < wanted {
        return Err(MeasureError::TooLittle { wanted, free: node.free_bytes });
    }
    // A kernel without NUMA has one node and no policies: all memory is its own.
    let bind = topology.nodes.len() > 1;
    let number = node.number;
    // A thread of its own: what it is pinned to and where its memory comes from ends with it.
    let chased = std::thread::scope(|scope| {
        let work = || pinned(&cpus, bind.then_some(number), || chase(wanted));
        scope.spawn(work).join().map_err(|_| MeasureError::Ended)?
    })?;
    let triads: Vec<f64> =
        (0..TRIADS).map(|_| triad(&cpus, bind.then_some(number), wanted)).collect::<Result<_, _>>()?;
    Ok(Measurement {
        node: number,
        latency_ns: chased.0,
        huge_pages: chased.1,
        chased_bytes: wanted,
        stream_mbps: triads.into_iter().fold(0.0, f64::max),
        cpus,
    })
}

/// Runs on these CPUs, with memory from this node.
fn pinned<T>(cpus: &[u32], node: Option<u32>, work: impl FnOnce() -> T) -> Result<T, MeasureError> {
    let mut set = CpuSet::new();
    // Where Terrace may not run, it cannot measure from.
    let allowed = sched_getaffinity(None).map_err(MeasureError::Affinity)?;
    let usable = cpus.iter().filter(|cpu| (**cpu as usize) < CpuSet::MAX_CPU && allowed.is_set(**cpu as usize));
    usable.for_each(|cpu| set.set(*cpu as usize));
    if set.count() == 0 {
        return Err(MeasureError::NotAllowed(cpus.to_vec()));
    }
    sched_setaffinity(None, &set).map_err(MeasureError::Pin)?;
    if let Some(node) = node {
        placement::take_memory_from(node).map_err(MeasureError::Memory)?;
    }
    Ok(work())
}

/// Makes one cycle through all lines: each line's first word holds the next one's place (Sattolo 1986, which gives one cycle
/// where Fisher and Yates would give several).
fn cycle(words: &mut [u64]) {
    let lines = words.len() / WORDS_A_LINE;
    for line in 0..lines {
        words[line * WORDS_A_LINE] = (line * WORDS_A_LINE) as u64;
    }
    let mut random = SplitMix64::new(1);
    for last in (1..lines).rev() {
        let other = random.below(last as u64) as usize;
        words.swap(last * WORDS_A_LINE, other * WORDS_A_LINE);
    }
}

/// Nanoseconds a load, and whether huge pages were had.
fn chase(bytes: Bytes) -> (f64, bool) {
    let mut words = vec![0u64; bytes.get() as usize / size_of::<u64>()];
    placement::ask_for_huge_pages(&mut words);
    cycle(&mut words);
    let huge = placement::huge_bytes_of_this_process().is_some_and(|huge| huge >= bytes.get() / 2);
    let mut at = 0usize;
    let mut best = f64::INFINITY;
    for _ in 0..CHASES {
        let began = Instant::now();
        for _ in 0..LOADS {
            at = words[at] as usize;
        }
        // Used, or there would be nothing to compute.
        at = std::hint::black_box(at);
        best = best.min(began.elapsed().as_secs_f64() * 1e9 / LOADS as f64);
    }
    (best, huge)
}

/// MB/s of a triad on all these CPUs, each with arrays of its own.
fn triad(cpus: &[u32], node: Option<u32>, bytes: Bytes) -> Result<f64, MeasureError> {
    // Three arrays on each CPU, together as much as the chase took, but never so little that a cache holds a CPU's.
    let each = (bytes.get() as usize / cpus.len() / 3).max(1 << 20) / size_of::<f64>();
    let gate = std::sync::Barrier::new(cpus.len());
    let spans: Vec<Result<(Instant, Instant), MeasureError>> = std::thread::scope(|scope| {
        let gate = &gate;
        let threads: Vec<_> = cpus
            .iter()
            .map(|cpu| {
                scope.spawn(move || {
                    let run = pinned(&[*cpu], node, || {
                        let (mut a, b, c) = (vec![0.0f64; each], vec![1.0f64; each], vec![2.0f64; each]);
                        // Touched before the clock starts.
                        a.fill(3.0);
                        placement::ask_for_huge_pages(&mut a);
                        (a, b, c)
                    });
                    // A thread that failed must not keep the others waiting.
                    gate.wait();
                    let (mut a, b, c) = run?;
                    let began = Instant::now();
                    for ((a, b), c) in a.iter_mut().zip(&b).zip(&c) {
                        *a = *b + 3.0 * *c;
                    }
                    std::hint::black_box(&mut a);
                    Ok((began, Instant::now()))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(MeasureError::Ended))).collect()
    });
    let spans = spans.into_iter().collect::<Result<Vec<_>, _>>()?;
    let first = spans.iter().map(|(began, _)| *began).min();
    let last = spans.iter().map(|(_, ended)| *ended).max();
    let seconds = first.zip(last).map_or(f64::INFINITY, |(first, last)| last.duration_since(first).as_secs_f64());
    Ok(24.0 * (each * cpus.len()) as f64 / seconds / 1e6)
}

/// The largest cache of a CPU; 32 MiB where the kernel does not say.
fn last_cache(root: &Path, cpu: u32) -> Bytes {
    let directory = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache"));
    let sizes = std::fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|entry| {
        let text = std::fs::read_to_string(entry.path().join("size")).ok()?;
        Some(text.trim().strip_suffix('K')?.parse::<u64>().ok()? << 10)
    });
    sizes.max().map_or(Bytes::mib(32), Bytes::new)
}

/// What firmware and grouping say that the measurements do not.
fn contradictions(topology: &Topology, measured: &[Measurement]) -> Vec<String> {
    let mut found = Vec::new();
    for one in measured {
        let Some(node) = topology.nodes.iter().find(|node| node.number == one.node) else { continue };
        let off = |claimed: f64, seen: f64| claimed / seen > TOLERANCE || seen / claimed > TOLERANCE;
        if let Some(claimed) = node.read_latency_ns.filter(|claimed| off(f64::from(*claimed), one.latency_ns)) {
            found.push(format!(
                "node {}: firmware says a load takes {claimed} ns, {:.0} ns were measured",
                one.node, one.latency_ns
            ));
        }
        if let Some(claimed) = node.read_bandwidth_mbps.filter(|claimed| off(f64::from(*claimed), one.stream_mbps)) {
            found.push(format!(
                "node {}: firmware says {claimed} MB/s, {:.0} MB/s were measured from {} CPUs",
                one.node,
                one.stream_mbps,
                one.cpus.len()
            ));
        }
    }
    let latency = |node: u32| measured.iter().find(|one| one.node == node).map(|one| one.latency_ns);
    let latencies = |nodes: &[u32]| nodes.iter().filter_map(|node| latency(*node)).collect();
    let node_tiers: Vec<Vec<f64>> = topology.tiers.iter().filter_map(|tier| tier.nodes().map(latencies)).collect();
    for (index, pair) in node_tiers.windows(2).enumerate() {
        let slowest = pair[0].iter().copied().fold(0.0, f64::max);
        let fastest = pair[1].iter().copied().fold(f64::INFINITY, f64::min);
        if slowest > fastest * NOISE {
            let (upper, lower) = (&topology.tiers[index], &topology.tiers[index + 1]);
            found.push(format!(
                "tier {} is taken for the faster one and measures {slowest:.0} ns, tier {} {fastest:.0} ns: declare the tiers \
                 (memory.tiers, or --tiers) the other way round",
                upper.name, lower.name
            ));
        }
    }
    let within = node_tiers.iter().enumerate().filter(|(_, nodes)| nodes.len() > 1);
    for (index, nodes) in within {
        let (least, most) =
            nodes.iter().fold((f64::INFINITY, 0f64), |(low, high), one| (low.min(*one), high.max(*one)));
        if most > least * TOLERANCE {
            found.push(format!(
                "tier {} has nodes of {least:.0} and of {most:.0} ns: declare them as tiers of their own",
                topology.tiers[index].name
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{Machine, NodeSpec};
    use super::*;

    #[test]
    fn the_chase_visits_every_line_before_it_comes_back() {
        let mut words = vec![0u64; 1000 * WORDS_A_LINE];
        cycle(&mut words);
        let (mut at, mut steps) = (0usize, 0);
        loop {
            at = words[at] as usize;
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, 1000);
    }

    fn measurement(node: u32, latency_ns: f64, stream_mbps: f64) -> Measurement {
        let chased_bytes = Bytes::mib(64);
        Measurement { node, cpus: vec![0, 1], latency_ns, chased_bytes, huge_pages: true, stream_mbps }
    }

    #[test]
    fn firmware_that_lies_is_found_out() {
        let nodes = [NodeSpec::dram(0).latency(80, 100_000), NodeSpec::memory_only(1).latency(100, 90_000)];
        let machine = Machine::new(&nodes).memory_tier(4, "0").memory_tier(22, "1");
        let topology = Topology::discover(machine.root()).unwrap();
        let honest = contradictions(&topology, &[measurement(0, 85.0, 95_000.0), measurement(1, 120.0, 70_000.0)]);
        assert_eq!(honest, Vec::<String>::new());
        let lies = contradictions(&topology, &[measurement(0, 85.0, 95_000.0), measurement(1, 350.0, 20_000.0)]);
        assert_eq!(lies.len(), 2, "{lies:?}");
        assert!(lies[0].contains("node 1: firmware says a load takes 100 ns, 350 ns were measured"), "{lies:?}");
        let turned = contradictions(&topology, &[measurement(0, 110.0, 95_000.0), measurement(1, 90.0, 70_000.0)]);
        assert!(turned.iter().any(|line| line.contains("the other way round")), "{turned:?}");
        let sockets = [NodeSpec::dram(0), NodeSpec::dram(1)];
        let one_tier = Topology::discover(Machine::new(&sockets).root()).unwrap();
        let mixed = contradictions(&one_tier, &[measurement(0, 90.0, 9e4), measurement(1, 250.0, 2e4)]);
        assert!(mixed[0].contains("tiers of their own"), "{mixed:?}");
    }

    #[test]
    fn memory_without_cpus_is_measured_from_the_nearest() {
        let nodes = [NodeSpec::dram(0), NodeSpec::dram(1), NodeSpec::memory_only(2)];
        let machine = Machine::new(&nodes).distances(&["10 20 30", "20 10 14", "30 14 10"]);
        let topology = Topology::discover(machine.root()).unwrap();
        assert_eq!(near_cpus(&topology, &topology.nodes[2]), [1]);
        assert_eq!(near_cpus(&topology, &topology.nodes[0]), [0]);
    }

    #[test]
    fn a_thread_that_may_not_run_there_says_so() {
        let why = std::thread::spawn(|| pinned(&[100_000], None, || ())).join().unwrap().unwrap_err();
        assert!(matches!(&why, MeasureError::NotAllowed(cpus) if *cpus == [100_000]), "{why}");
    }

    #[test]
    fn this_machine_is_measured() {
        let topology = Topology::discover(Path::new("/")).unwrap();
        let measured = measure(Path::new("/"), &topology);
        assert_eq!(measured.nodes.len() + measured.left_out.len(), topology.nodes.len());
        for one in &measured.nodes {
            assert!(one.latency_ns > 1.0 && one.stream_mbps > 10.0, "{one:?}");
        }
    }
}
