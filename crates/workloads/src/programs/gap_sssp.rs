//! GAP single-source shortest paths by delta-stepping.
//!
//! Source: GAP Benchmark Suite (2015), after Meyer and Sanders (2003); weights 1 to 255. Allocation: graph (offsets,
//! neighbours with weights, 8 bytes each), distances, frontier. Phases: "build", "run", "verify" for each source. Each
//! thread keeps bins of vertices by distance / delta; the lowest bin of all threads becomes the shared frontier. Check:
//! no edge can shorten any distance, and every distance but the source's is reached over an edge: with positive weights
//! that makes them the shortest.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::gap_bfs::append;
use crate::graph::{Edge, Graph, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo};
use crate::random::{Random, mix};

const FAR: u32 = u32::MAX;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "gap-sssp",
    description: "shortest paths by delta-stepping, on a Kronecker or uniform graph",
    source: "GAP Benchmark Suite, 2015; used by Tuna",
    operation: "sources (4)",
    open_ended: false,
    options: &[("graph", "kronecker or uniform (kronecker)"), ("delta", "width of a bin, 1 to 1000000 (32)")],
    build: |settings| Ok(Box::new(ShortestPaths::new(settings)?)),
};

struct ShortestPaths {
    shape: GraphShape,
    delta: u32,
    sources: u64,
    seed: u64,
}

impl ShortestPaths {
    fn new(settings: &Settings<'_>) -> Result<ShortestPaths, WorkloadError> {
        let kind = GraphShape::kind_of(settings)?;
        Ok(ShortestPaths {
            // Offsets and distances, and the part of the frontier that is used: about as many entries as vertices.
            shape: GraphShape::sized(kind, settings.size(), 8 + 4 + 4, 16, settings.seed()),
            delta: settings.option("delta", 32, "1 to 1000000", |delta| (1..=1_000_000).contains(&delta))?,
            sources: settings.operations().unwrap_or(4),
            seed: settings.seed(),
        })
    }
}

fn search<M: Memory>(
    memory: &mut M,
    graph: &Graph<u64>,
    distances: &Array<u32>,
    frontier: &Array<u32>,
    source: usize,
    delta: u32,
) {
    memory.parallel(graph.vertices(), 512, Schedule::Blocks, |lane, range| {
        distances.write_span(lane, range, |_| FAR);
    });
    let lane = memory.main();
    distances.set(lane, source, 0);
    frontier.set(lane, 0, source as u32);
    let mut length = 1;
    let mut bin = 0usize;
    let mut bins: Vec<Vec<Vec<u32>>> = vec![Vec::new(); memory.threads()];
    loop {
        memory.parallel_with(&mut bins, length, 16, Schedule::Cyclic, |lane, bins, range| {
            for place in range {
                let vertex = frontier.get(lane, place) as usize;
                let here = distances.get(lane, vertex);
                if here < delta.saturating_mul(bin as u32) {
                    continue; // A shorter way was found and the vertex done since it was put here.
                }
                for place in graph.list(lane, vertex) {
                    let edge = graph.neighbors.get(lane, place);
                    let (neighbor, weight) = (edge.target(), (edge >> 32) as u32);
                    let new = here.saturating_add(weight);
                    lane.compute(3);
                    loop {
                        let old = distances.get(lane, neighbor);
                        if new >= old {
                            break;
                        }
                        if distances.replace(lane, neighbor, old, new) {
                            let bin = (new / delta) as usize;
                            if bins.len() <= bin {
                                bins.resize(bin + 1, Vec::new());
                            }
                            bins[bin].push(neighbor as u32);
                            break;
                        }
                    }
                }
            }
        });
        let next = bins.iter().filter_map(|bins| (bin..bins.len()).find(|&at| !bins[at].is_empty())).min();
        let Some(next) = next else { return };
        bin = next;
        let end = AtomicUsize::new(0);
        memory.run(&mut bins, |lane, bins| {
            if let Some(finds) = bins.get_mut(bin) {
                append(lane, frontier, &end, finds);
            }
            false
        });
        length = end.load(Relaxed);
    }
}

fn verify(graph: &Graph<u64>, distances: &Array<u32>, source: usize) -> Result<u64, AuditError> {
    if distances.peek(source) != 0 {
        return Err(AuditError(format!("the source {source} is at distance {} from itself", distances.peek(source))));
    }
    let mut sum = 0u64;
    for vertex in 0..graph.vertices() {
        let here = distances.peek(vertex);
        let mut reached = vertex == source || here == FAR;
        for edge in graph.peek_list(vertex) {
            let there = distances.peek(edge.target());
            let over = there.saturating_add((edge >> 32) as u32);
            if over < here {
                return Err(AuditError(format!(
                    "vertex {vertex} is at {here}, but over {} it is {over}",
                    edge.target()
                )));
            }
            reached |= over == here;
        }
        if !reached {
            return Err(AuditError(format!("vertex {vertex} is at {here}, but no edge leads there from so near")));
        }
        sum = mix(sum ^ u64::from(here));
    }
    Ok(sum)
}

impl Program for ShortestPaths {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u64>::build(memory, &self.shape);
        let distances: Array<u32> = memory.allocate("distances", graph.vertices());
        // As large as all lists, as GAP's; a vertex may be in it once for each time its distance fell.
        let frontier: Array<u32> = memory.allocate("frontier", graph.neighbors.len().max(1));
        let mut random = Random::new(self.seed, 1);
        let mut checksum = 0u64;
        for _ in 0..self.sources {
            let source = graph.source(&mut random);
            memory.phase("run");
            search(memory, &graph, &distances, &frontier, source, self.delta);
            memory.phase("verify");
            let sum = verify(&graph, &distances, source).map_err(|error| error.of(INFO.name))?;
            checksum ^= sum.rotate_left(source as u32 % 64);
        }
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let figures = vec![("vertices", graph.vertices() as f64), ("edges", self.shape.edges as f64)];
        let verified = "no edge shortens a distance and every distance is reached; the graph is intact";
        Ok(Answer { operations: self.sources, checksum, verified, figures })
    }
}
