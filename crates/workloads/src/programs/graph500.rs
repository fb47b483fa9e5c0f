//! Graph500: a Kronecker graph, searched from 64 keys, each tree validated by the specification's rules.
//!
//! Source: Graph500 benchmark 1 (search) specification: edge factor 16, initiator 0.57/0.19/0.19/0.05, 64 search keys
//! with at least one edge; FlexMem (120 GB), TieredMMS (67 GB, all anonymous) and MEMTIS run it. 64-bit vertices as in
//! the reference code. Allocation: edge list, offsets, neighbours (both directions), parents, queue, levels. Phases:
//! "generate" (kernel 0), "construct" (kernel 1), then for each key "search" (kernel 2) and "validate". Validation is
//! part of the program and so is seen: levels from the parents, then every edge of the list. Check, for each key: the
//! parents form a tree with the key for its root; every tree edge joins levels one apart and is an edge of the graph;
//! every edge of the list has both ends in the tree, at most one level apart, or neither.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use crate::graph::{GraphKind, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Random, mix};

const NONE: u64 = u64::MAX;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "graph500",
    description: "Kronecker graph, breadth-first search from 64 keys, each tree validated",
    source: "Graph500 specification; used by FlexMem, TieredMMS, MEMTIS",
    operation: "search keys (64)",
    open_ended: false,
    options: &[("validate", "each or last: after which keys the tree is validated (each)")],
    build: |settings| Ok(Box::new(Graph500::new(settings)?)),
};

struct Graph500 {
    shape: GraphShape,
    keys: u64,
    validate_each: bool,
    seed: u64,
}

impl Graph500 {
    fn new(settings: &Settings<'_>) -> Result<Graph500, WorkloadError> {
        Ok(Graph500 {
            // A vertex: offset, parent, queue and level, 8 bytes each, and a cursor that is the level array before it is
            // needed as such. An edge: 16 bytes in the list, 8 in each direction.
            shape: GraphShape::sized(GraphKind::Kronecker, settings.size(), 32, 32, settings.seed()),
            keys: settings.operations().unwrap_or(64),
            validate_each: settings.choice("validate", &["each", "last"])? == "each",
            seed: settings.seed(),
        })
    }
}

struct Arrays {
    edges: Array<u64>,
    offsets: Array<u64>,
    neighbors: Array<u64>,
    parents: Array<u64>,
    queue: Array<u64>,
    levels: Array<u64>,
}

impl Arrays {
    fn construct<M: Memory>(&self, memory: &mut M, vertices: usize, edges: usize) {
        let cursor = &self.levels;
        memory.parallel(edges, 64, Schedule::Blocks, |lane, range| {
            for edge in range {
                for end in [2 * edge, 2 * edge + 1] {
                    let vertex = self.edges.get(lane, end) as usize % vertices;
                    cursor.add(lane, vertex, 1);
                }
            }
        });
        let lane = memory.main();
        let mut sum = 0u64;
        for vertex in 0..vertices {
            self.offsets.set(lane, vertex, sum);
            sum += cursor.get(lane, vertex);
            cursor.set(lane, vertex, self.offsets.peek(vertex));
        }
        self.offsets.set(lane, vertices, sum);
        memory.parallel(edges, 64, Schedule::Blocks, |lane, range| {
            for edge in range {
                let ends = [self.edges.get(lane, 2 * edge), self.edges.get(lane, 2 * edge + 1)];
                for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                    let place = cursor.add(lane, from as usize % vertices, 1) as usize;
                    self.neighbors.set(lane, place % (2 * edges), to % vertices as u64);
                }
            }
        });
    }

    fn search<M: Memory>(&self, memory: &mut M, vertices: usize, key: usize) {
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            self.parents.write_span(lane, range, |_| NONE);
        });
        let lane = memory.main();
        self.parents.set(lane, key, key as u64);
        self.queue.set(lane, 0, key as u64);
        let (mut from, mut to) = (0usize, 1usize);
        while from < to {
            let end = AtomicUsize::new(to);
            let mut finds: Vec<Vec<u64>> = vec![Vec::new(); memory.threads()];
            memory.parallel_with(&mut finds, to - from, 16, Schedule::Cyclic, |lane, finds, range| {
                for place in range {
                    let vertex = self.queue.get(lane, from + place);
                    let start = self.offsets.get(lane, vertex as usize) as usize;
                    let stop = self.offsets.get(lane, vertex as usize + 1) as usize;
                    for place in start..stop {
                        let neighbor = self.neighbors.get(lane, place) as usize;
                        lane.compute(3);
                        if self.parents.get(lane, neighbor) == NONE
                            && self.parents.replace(lane, neighbor, NONE, vertex)
                        {
                            finds.push(neighbor as u64);
                        }
                    }
                }
                let start = end.fetch_add(finds.len(), Relaxed);
                for (offset, find) in finds.drain(..).enumerate() {
                    self.queue.set(lane, start + offset, find);
                }
            });
            (from, to) = (to, end.load(Relaxed));
        }
    }

    /// The specification's validation; says what does not hold.
    fn validate<M: Memory>(&self, memory: &mut M, vertices: usize, key: usize) -> Result<u64, AuditError> {
        if self.parents.peek(key) != key as u64 {
            return Err(AuditError(format!("key {key} is not its own parent")));
        }
        // Levels: each vertex follows its parents until one whose level is known; a chain longer than all vertices is a cycle.
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            self.levels.write_span(lane, range, |_| NONE);
        });
        self.levels.set(memory.main(), key, 0);
        let bad = AtomicUsize::new(usize::MAX);
        memory.parallel(vertices, 16, Schedule::Blocks, |lane, range| {
            let mut chain: Vec<usize> = Vec::new();
            for vertex in range {
                let mut at = vertex;
                chain.clear();
                let level = loop {
                    let known = self.levels.get(lane, at);
                    if known != NONE {
                        break known;
                    }
                    let parent = self.parents.chase(lane, at);
                    if parent == NONE {
                        break NONE;
                    }
                    chain.push(at);
                    at = parent as usize;
                    if at >= vertices || chain.len() > vertices {
                        bad.fetch_min(vertex, Relaxed);
                        break NONE;
                    }
                };
                if level == NONE && !chain.is_empty() {
                    bad.fetch_min(vertex, Relaxed);
                } else {
                    for (above, below) in chain.iter().rev().enumerate() {
                        self.levels.set(lane, *below, level + above as u64 + 1);
                    }
                }
            }
        });
        if bad.load(Relaxed) != usize::MAX {
            return Err(AuditError(format!("the parents of vertex {} do not lead to key {key}", bad.load(Relaxed))));
        }
        // Every edge; and for each vertex, whether some edge joins it to its parent.
        let joined: Vec<AtomicBool> = (0..vertices).map(|_| AtomicBool::new(false)).collect();
        memory.parallel(self.edges.len() / 2, 64, Schedule::Blocks, |lane, range| {
            for edge in range {
                let (a, b) = (self.edges.get(lane, 2 * edge) as usize, self.edges.get(lane, 2 * edge + 1) as usize);
                if a >= vertices || b >= vertices {
                    bad.fetch_min(edge, Relaxed);
                    continue;
                }
                let (above, below) = (self.levels.get(lane, a), self.levels.get(lane, b));
                let apart = above.wrapping_sub(below);
                if (above == NONE) != (below == NONE) || apart.wrapping_add(1) > 2 {
                    bad.fetch_min(edge, Relaxed);
                }
                for (child, parent) in [(a, b), (b, a)] {
                    if self.parents.get(lane, child) == parent as u64 {
                        joined[child].store(true, Relaxed);
                    }
                }
            }
        });
        if bad.load(Relaxed) != usize::MAX {
            return Err(AuditError(format!(
                "edge {} of the list spans more than one level, or leaves the tree",
                bad.load(Relaxed)
            )));
        }
        let mut checksum = 0u64;
        for vertex in 0..vertices {
            let (parent, level) = (self.parents.peek(vertex), self.levels.peek(vertex));
            if parent != NONE && vertex != key {
                let joined = joined[vertex].load(Relaxed);
                if !joined || self.levels.peek(parent as usize) + 1 != level {
                    return Err(AuditError(format!("the tree edge from {parent} to {vertex} is no edge of the graph")));
                }
            }
            checksum = mix(checksum ^ level);
        }
        Ok(checksum)
    }
}

impl Program for Graph500 {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        let (vertices, edges) = (self.shape.vertices as usize, self.shape.edges as usize);
        let shape = self.shape;
        memory.phase("generate");
        let list: Array<u64> = memory.allocate("edge list", 2 * edges);
        memory.parallel(edges, 64, Schedule::Blocks, |lane, range| {
            for edge in range {
                let (from, to) = shape.edge(edge as u64);
                lane.compute(60);
                list.set(lane, 2 * edge, from);
                list.set(lane, 2 * edge + 1, to);
            }
        });
        memory.phase("construct");
        let arrays = Arrays {
            edges: list,
            offsets: memory.allocate("offsets", vertices + 1),
            neighbors: memory.allocate("neighbors", 2 * edges),
            parents: memory.allocate("parents", vertices),
            queue: memory.allocate("queue", vertices),
            levels: memory.allocate("levels", vertices),
        };
        arrays.construct(memory, vertices, edges);
        let mut random = Random::new(self.seed, 2);
        let (mut checksum, mut reached) = (0u64, 0u64);
        for number in 0..self.keys {
            let mut key = random.below(vertices as u64) as usize;
            while arrays.offsets.peek(key) == arrays.offsets.peek(key + 1) {
                key = (key + 1) % vertices;
            }
            memory.phase("search");
            arrays.search(memory, vertices, key);
            if self.validate_each || number + 1 == self.keys {
                memory.phase("validate");
                let sum = arrays.validate(memory, vertices, key).map_err(|error| error.of(INFO.name))?;
                checksum ^= sum.rotate_left(number as u32);
            }
            reached += (0..vertices).filter(|&vertex| arrays.parents.peek(vertex) != NONE).count() as u64;
        }
        memory.phase("verify");
        for edge in 0..edges {
            let (from, to) = shape.edge(edge as u64);
            let found = (arrays.edges.peek(2 * edge), arrays.edges.peek(2 * edge + 1));
            check(INFO.name, found == (from, to), || {
                format!("edge {edge} of the list is {found:?}, not {:?}", (from, to))
            })?;
        }
        let figures = vec![
            ("vertices", vertices as f64),
            ("edges", edges as f64),
            ("reached a key", reached as f64 / self.keys as f64),
        ];
        let verified = "each tree by the specification's rules, and the edge list";
        Ok(Answer { operations: self.keys, checksum, verified, figures })
    }
}
