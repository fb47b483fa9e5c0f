//! GAP breadth-first search, direction-optimising.
//!
//! Source: GAP Benchmark Suite (2015), after Beamer et al., "Direction-optimizing breadth-first search" (SC 2012):
//! alpha 15, beta 18. Allocation: graph (offsets, neighbours), parents, queue, two bitmaps. Phases: "build", "run"
//! (several sources), "verify" after each source. A step goes top-down over a queue, or bottom-up over a bitmap while
//! the frontier's edges are more than a fifteenth of the unexplored. Check: for each source the tree's depths are those
//! of a plain queue BFS, and every parent is a neighbour one level up.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::graph::{Graph, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo};
use crate::random::{Random, mix};

/// Top-down turns bottom-up when the frontier has more than one part in ALPHA of the unexplored edges.
const ALPHA: u64 = 15;
/// Bottom-up turns back when the frontier has less than one part in BETA of the vertices.
const BETA: u64 = 18;
/// A vertex without a parent.
pub(super) const NONE: u32 = u32::MAX;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "gap-bfs",
    description: "direction-optimising breadth-first search, on a Kronecker or uniform graph",
    source: "GAP Benchmark Suite, 2015; used by Tuna, FlexHM, hotness walk",
    operation: "sources (16)",
    open_ended: false,
    options: &[("graph", "kronecker or uniform (kronecker)")],
    build: |settings| Ok(Box::new(Search::new(settings)?)),
};

struct Search {
    shape: GraphShape,
    sources: u64,
    seed: u64,
}

impl Search {
    fn new(settings: &Settings<'_>) -> Result<Search, WorkloadError> {
        let kind = GraphShape::kind_of(settings)?;
        Ok(Search {
            shape: GraphShape::sized(kind, settings.size(), 8 + 4 + 4, 8, settings.seed()),
            sources: settings.operations().unwrap_or(16),
            seed: settings.seed(),
        })
    }
}

struct Arrays<'g> {
    graph: &'g Graph<u32>,
    parents: Array<u32>,
    queue: Array<u32>,
    front: Array<u64>,
    next: Array<u64>,
}

/// Appends a thread's finds to a shared queue, a block at a time as GAP's queue buffers do.
pub(super) fn append<L: Lane>(lane: &mut L, queue: &Array<u32>, end: &AtomicUsize, finds: &mut Vec<u32>) {
    let start = end.fetch_add(finds.len(), Relaxed);
    for (offset, find) in finds.drain(..).enumerate() {
        queue.set(lane, start + offset, find);
    }
}

impl Arrays<'_> {
    /// A top-down step over `queue[from..to]`: the new end of the queue, and the edges of the new frontier.
    fn down<M: Memory>(&self, memory: &mut M, from: usize, to: usize) -> (usize, u64) {
        let end = AtomicUsize::new(to);
        let mut states: Vec<(Vec<u32>, u64)> = vec![(Vec::new(), 0); memory.threads()];
        memory.parallel_with(&mut states, to - from, 16, Schedule::Cyclic, |lane, (finds, scout), range| {
            for place in range {
                let vertex = self.queue.get(lane, from + place);
                for place in self.graph.list(lane, vertex as usize) {
                    let neighbor = self.graph.neighbors.get(lane, place) as usize;
                    if self.parents.get(lane, neighbor) == NONE && self.parents.replace(lane, neighbor, NONE, vertex) {
                        finds.push(neighbor as u32);
                        *scout += self.graph.list(lane, neighbor).len() as u64;
                    }
                }
                lane.compute(4);
            }
            append(lane, &self.queue, &end, finds);
        });
        (end.load(Relaxed), states.iter().map(|(_, scout)| scout).sum())
    }

    /// A bottom-up step from bitmap `front` to bitmap `next`: vertices found.
    fn up<M: Memory>(&self, memory: &mut M, front: &Array<u64>, next: &Array<u64>) -> u64 {
        let words = next.len();
        let mut found = vec![0u64; memory.threads()];
        memory.parallel_with(&mut found, words, 4, Schedule::Cyclic, |lane, found, range| {
            for word in range {
                let mut bits = 0u64;
                for vertex in word * 64..(word * 64 + 64).min(self.graph.vertices()) {
                    if self.parents.get(lane, vertex) != NONE {
                        continue;
                    }
                    for place in self.graph.list(lane, vertex) {
                        let neighbor = self.graph.neighbors.get(lane, place);
                        if front.get(lane, neighbor as usize / 64) >> (neighbor % 64) & 1 == 1 {
                            self.parents.set(lane, vertex, neighbor);
                            bits |= 1 << (vertex % 64);
                            break;
                        }
                    }
                    lane.compute(4);
                }
                next.set(lane, word, bits);
                *found += u64::from(bits.count_ones());
            }
        });
        found.iter().sum()
    }

    fn search<M: Memory>(&self, memory: &mut M, source: usize) {
        let vertices = self.graph.vertices();
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            self.parents.write_span(lane, range, |_| NONE);
        });
        let lane = memory.main();
        self.parents.set(lane, source, source as u32);
        self.queue.set(lane, 0, source as u32);
        let mut unexplored = self.graph.neighbors.len() as u64;
        let mut scout = self.graph.list(lane, source).len() as u64;
        let (mut from, mut to) = (0, 1);
        while from < to {
            if scout <= unexplored / ALPHA {
                unexplored = unexplored.saturating_sub(scout);
                let (end, edges) = self.down(memory, from, to);
                (from, to, scout) = (to, end, edges);
                continue;
            }
            let words = self.front.len();
            memory.parallel(words, 512, Schedule::Blocks, |lane, range| self.front.write_span(lane, range, |_| 0));
            memory.parallel(to - from, 64, Schedule::Blocks, |lane, range| {
                for place in range {
                    let vertex = self.queue.get(lane, from + place);
                    self.front.set_bits(lane, vertex as usize / 64, 1 << (vertex % 64));
                }
            });
            let mut awake = (to - from) as u64;
            let (mut front, mut next) = (&self.front, &self.next);
            loop {
                let before = awake;
                awake = self.up(memory, front, next);
                (front, next) = (next, front);
                if awake < before && awake <= vertices as u64 / BETA || awake == 0 {
                    break;
                }
            }
            // Back to a queue, which starts over: what it held is done.
            let end = AtomicUsize::new(0);
            let mut finds: Vec<Vec<u32>> = vec![Vec::new(); memory.threads()];
            memory.parallel_with(&mut finds, words, 64, Schedule::Cyclic, |lane, finds, range| {
                for word in range {
                    let mut bits = front.get(lane, word);
                    while bits != 0 {
                        finds.push((word * 64) as u32 + bits.trailing_zeros());
                        bits &= bits - 1;
                    }
                }
                append(lane, &self.queue, &end, finds);
            });
            (from, to, scout) = (0, end.load(Relaxed), 1);
        }
    }
}

/// Whether `parents` is a breadth-first tree of `source`: its depths are a plain queue's, and every parent is a neighbour
/// one level up. A digest of the depths.
pub(super) fn check_tree(graph: &Graph<u32>, parents: &Array<u32>, source: usize) -> Result<u64, AuditError> {
    let depths = plain_depths(graph, source);
    for (vertex, &depth) in depths.iter().enumerate() {
        let parent = parents.peek(vertex);
        let right = match depth {
            NONE => parent == NONE,
            0 => parent as usize == source,
            _ => {
                depths.get(parent as usize).is_some_and(|above| *above == depth - 1)
                    && graph.peek_list(vertex).any(|neighbor| neighbor == parent)
            }
        };
        if !right {
            return Err(AuditError(format!(
                "vertex {vertex} at depth {depth} from {source} has {parent} for its parent"
            )));
        }
    }
    Ok(depths.iter().fold(0, |sum, depth| mix(sum ^ u64::from(*depth))))
}

/// Depths from `source` by a plain queue, unseen.
pub(super) fn plain_depths(graph: &Graph<u32>, source: usize) -> Vec<u32> {
    let mut depths = vec![NONE; graph.vertices()];
    depths[source] = 0;
    let mut queue = std::collections::VecDeque::from([source]);
    while let Some(vertex) = queue.pop_front() {
        for neighbor in graph.peek_list(vertex) {
            if depths[neighbor as usize] == NONE {
                depths[neighbor as usize] = depths[vertex] + 1;
                queue.push_back(neighbor as usize);
            }
        }
    }
    depths
}

impl Program for Search {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u32>::build(memory, &self.shape);
        let vertices = graph.vertices();
        let arrays = Arrays {
            graph: &graph,
            parents: memory.allocate("parents", vertices),
            // A queue can be filled to its end only if each vertex enters it once, and each does.
            queue: memory.allocate("queue", vertices),
            front: memory.allocate("bitmap", vertices.div_ceil(64)),
            next: memory.allocate("next bitmap", vertices.div_ceil(64)),
        };
        let mut random = Random::new(self.seed, 1);
        let mut checksum = 0u64;
        for _ in 0..self.sources {
            let source = graph.source(&mut random);
            memory.phase("run");
            arrays.search(memory, source);
            memory.phase("verify");
            let found = check_tree(&graph, &arrays.parents, source).map_err(|error| error.of(INFO.name))?;
            checksum ^= found.rotate_left(source as u32 % 64);
        }
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let figures = vec![("vertices", vertices as f64), ("edges", self.shape.edges as f64)];
        let verified = "each tree's depths and parents; the graph is intact";
        Ok(Answer { operations: self.sources, checksum, verified, figures })
    }
}
