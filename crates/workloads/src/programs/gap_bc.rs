//! GAP betweenness centrality, by Brandes' algorithm from a few sources.
//!
//! Source: GAP Benchmark Suite (2015): 4 sources, successors in a bitmap over edges (Madduri et al. 2009). Allocation:
//! graph (offsets, neighbours), scores, path counts, depths, deltas, successor bitmap, queue. Phases: "build", "run",
//! "verify". A source takes a breadth-first search that counts paths, then a walk back over its levels. Check: Brandes
//! in doubles with plain queues gives the same scores to one part in 10,000 (scores are floats, as GAP's).

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::gap_bfs::{NONE, append, plain_depths};
use crate::graph::{Graph, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Random, mix};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "gap-bc",
    description: "betweenness centrality by Brandes' algorithm, on a Kronecker or uniform graph",
    source: "GAP Benchmark Suite, 2015",
    operation: "sources (4)",
    open_ended: false,
    options: &[("graph", "kronecker or uniform (kronecker)")],
    build: |settings| Ok(Box::new(Centrality::new(settings)?)),
};

struct Centrality {
    shape: GraphShape,
    sources: u64,
    seed: u64,
}

impl Centrality {
    fn new(settings: &Settings<'_>) -> Result<Centrality, WorkloadError> {
        let kind = GraphShape::kind_of(settings)?;
        Ok(Centrality {
            // A vertex: offset 8, score 4, paths 8, depth 4, delta 4, queue 4. An edge: two entries and two bits.
            shape: GraphShape::sized(kind, settings.size() / 33 * 32, 32, 8, settings.seed()),
            sources: settings.operations().unwrap_or(4),
            seed: settings.seed(),
        })
    }
}

struct Arrays {
    scores: Array<f32>,
    paths: Array<f64>,
    depths: Array<u32>,
    deltas: Array<f32>,
    successors: Array<u64>,
    queue: Array<u32>,
}

impl Arrays {
    fn source<M: Memory>(&self, memory: &mut M, graph: &Graph<u32>, source: usize) {
        let vertices = graph.vertices();
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            self.depths.write_span(lane, range.clone(), |_| NONE);
            self.paths.write_span(lane, range.clone(), |_| 0.0);
            self.deltas.write_span(lane, range, |_| 0.0);
        });
        memory.parallel(self.successors.len(), 512, Schedule::Blocks, |lane, range| {
            self.successors.write_span(lane, range, |_| 0);
        });
        let lane = memory.main();
        self.depths.set(lane, source, 0);
        self.paths.set(lane, source, 1.0);
        self.queue.set(lane, 0, source as u32);
        let top = 0..1usize;
        let mut levels = vec![top];
        while let Some(level) = levels.last().filter(|level| !level.is_empty()).cloned() {
            let depth = levels.len() as u32;
            let end = AtomicUsize::new(level.end);
            let mut finds: Vec<Vec<u32>> = vec![Vec::new(); memory.threads()];
            memory.parallel_with(&mut finds, level.len(), 16, Schedule::Cyclic, |lane, finds, range| {
                for place in range {
                    let vertex = self.queue.get(lane, level.start + place) as usize;
                    let here = self.paths.get(lane, vertex);
                    for edge in graph.list(lane, vertex) {
                        let neighbor = graph.neighbors.get(lane, edge) as usize;
                        let mut there = self.depths.get(lane, neighbor);
                        if there == NONE && self.depths.replace(lane, neighbor, NONE, depth) {
                            finds.push(neighbor as u32);
                            there = depth;
                        } else if there == NONE {
                            there = self.depths.get(lane, neighbor);
                        }
                        if there == depth {
                            self.successors.set_bits(lane, edge / 64, 1 << (edge % 64));
                            self.paths.update(lane, neighbor, |paths| paths + here);
                        }
                        lane.compute(3);
                    }
                }
                append(lane, &self.queue, &end, finds);
            });
            levels.push(level.end..end.load(Relaxed));
        }
        for level in levels.iter().rev() {
            memory.parallel(level.len(), 16, Schedule::Cyclic, |lane, range| {
                for place in range {
                    let vertex = self.queue.get(lane, level.start + place) as usize;
                    let here = self.paths.get(lane, vertex);
                    let mut delta = 0.0f64;
                    for edge in graph.list(lane, vertex) {
                        if self.successors.get(lane, edge / 64) >> (edge % 64) & 1 == 1 {
                            let successor = graph.neighbors.get(lane, edge) as usize;
                            let below = f64::from(self.deltas.get(lane, successor));
                            delta += here / self.paths.get(lane, successor) * (1.0 + below);
                        }
                        lane.compute(3);
                    }
                    self.deltas.set(lane, vertex, delta as f32);
                    if vertex != source {
                        let score = self.scores.get(lane, vertex);
                        self.scores.set(lane, vertex, score + delta as f32);
                    }
                }
            });
        }
    }
}

/// Brandes in doubles, unseen: adds one source's dependencies to `scores`.
fn plain(graph: &Graph<u32>, source: usize, scores: &mut [f64]) {
    let depths = plain_depths(graph, source);
    let mut order: Vec<usize> = (0..depths.len()).filter(|&vertex| depths[vertex] != NONE).collect();
    order.sort_by_key(|&vertex| depths[vertex]);
    let mut paths = vec![0.0f64; depths.len()];
    paths[source] = 1.0;
    for &vertex in &order {
        for neighbor in graph.peek_list(vertex).filter(|&n| depths[n as usize] == depths[vertex] + 1) {
            paths[neighbor as usize] += paths[vertex];
        }
    }
    let mut deltas = vec![0.0f64; depths.len()];
    for &vertex in order.iter().rev() {
        for neighbor in graph.peek_list(vertex).filter(|&n| depths[n as usize] == depths[vertex] + 1) {
            deltas[vertex] += paths[vertex] / paths[neighbor as usize] * (1.0 + deltas[neighbor as usize]);
        }
        if vertex != source {
            scores[vertex] += deltas[vertex];
        }
    }
}

impl Program for Centrality {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u32>::build(memory, &self.shape);
        let vertices = graph.vertices();
        let arrays = Arrays {
            scores: memory.allocate("scores", vertices),
            paths: memory.allocate("path counts", vertices),
            depths: memory.allocate("depths", vertices),
            deltas: memory.allocate("deltas", vertices),
            successors: memory.allocate("successors", graph.neighbors.len().div_ceil(64)),
            queue: memory.allocate("queue", vertices),
        };
        memory.phase("run");
        let mut random = Random::new(self.seed, 1);
        let sources: Vec<usize> = (0..self.sources).map(|_| graph.source(&mut random)).collect();
        for source in &sources {
            arrays.source(memory, &graph, *source);
        }

        memory.phase("verify");
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let mut expected = vec![0.0f64; vertices];
        sources.iter().for_each(|&source| plain(&graph, source, &mut expected));
        let largest = expected.iter().copied().fold(0.0, f64::max);
        let mut checksum = 0u64;
        for (vertex, expected) in expected.iter().enumerate() {
            let found = f64::from(arrays.scores.peek(vertex));
            check(INFO.name, (found - expected).abs() <= 1e-4 * expected.max(1.0), || {
                format!("vertex {vertex} scores {found}, not {expected}")
            })?;
            checksum = mix(checksum ^ arrays.scores.peek(vertex).to_bits() as u64);
        }
        let figures =
            vec![("vertices", vertices as f64), ("edges", self.shape.edges as f64), ("largest score", largest)];
        let verified = "the scores against Brandes in doubles; the graph is intact";
        Ok(Answer { operations: self.sources, checksum, verified, figures })
    }
}
