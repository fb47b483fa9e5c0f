//! Ligra's maximal independent set.
//!
//! Source: Shun and Blelloch, "Ligra" (PPoPP 2013); Blelloch, Fineman, Shun (SPAA 2012): a vertex joins when it comes
//! before all undecided neighbours in a random order; FlexHM (TACO 2022) runs it on 160 million vertices, 62 GB.
//! Allocation: graph (offsets, neighbours), order, states, two lists of undecided vertices. Phases: "build", "run"
//! (rounds over the undecided, each with a barrier between deciding and striking out), "verify". Check: no two members
//! are neighbours, and every other vertex has a member for a neighbour.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::gap_bfs::append;
use super::ligra::{GRAPH, kind_of};
use crate::graph::{Graph, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Permutation, mix};

const UNDECIDED: u32 = 0;
const MEMBER: u32 = 1;
const OUT: u32 = 2;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "ligra-mis",
    description: "maximal independent set, on a uniform or Kronecker graph",
    source: "Ligra, PPoPP 2013; used by FlexHM",
    operation: "runs, each with another order (1)",
    open_ended: false,
    options: &[GRAPH],
    build: |settings| Ok(Box::new(IndependentSet::new(settings)?)),
};

struct IndependentSet {
    shape: GraphShape,
    runs: u64,
    seed: u64,
}

impl IndependentSet {
    fn new(settings: &Settings<'_>) -> Result<IndependentSet, WorkloadError> {
        let kind = kind_of(settings)?;
        Ok(IndependentSet {
            // Offset 8, order 4, state 4, and two lists of 4, the second of which is used in part.
            shape: GraphShape::sized(kind, settings.size(), 8 + 4 + 4 + 4 + 2, 8, settings.seed()),
            runs: settings.operations().unwrap_or(1),
            seed: settings.seed(),
        })
    }
}

struct Arrays {
    order: Array<u32>,
    states: Array<u32>,
    lists: [Array<u32>; 2],
}

impl Arrays {
    fn select<M: Memory>(&self, memory: &mut M, graph: &Graph<u32>, seed: u64) -> u64 {
        let vertices = graph.vertices();
        let scatter = Permutation::new(vertices as u64, seed);
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            self.order.write_span(lane, range.clone(), |vertex| scatter.apply(vertex as u64) as u32);
            self.states.write_span(lane, range.clone(), |_| UNDECIDED);
            self.lists[0].write_span(lane, range, |vertex| vertex as u32);
        });
        let (mut length, mut rounds) = (vertices, 0u64);
        while length > 0 {
            let (now, next) = (&self.lists[rounds as usize % 2], &self.lists[(rounds as usize + 1) % 2]);
            // Who joins is decided on the states as the round began: two neighbours can then never join together.
            memory.parallel(length, 16, Schedule::Cyclic, |lane, range| {
                for place in range {
                    let vertex = now.get(lane, place) as usize;
                    if self.states.get(lane, vertex) != UNDECIDED {
                        continue;
                    }
                    let mine = self.order.get(lane, vertex);
                    let mut first = true;
                    for edge in graph.list(lane, vertex) {
                        let neighbor = graph.neighbors.get(lane, edge) as usize;
                        lane.compute(3);
                        if neighbor != vertex
                            && self.states.get(lane, neighbor) != OUT
                            && self.order.get(lane, neighbor) < mine
                        {
                            first = false;
                            break;
                        }
                    }
                    if first {
                        self.states.set(lane, vertex, MEMBER);
                    }
                }
            });
            let end = AtomicUsize::new(0);
            let mut left: Vec<Vec<u32>> = vec![Vec::new(); memory.threads()];
            memory.parallel_with(&mut left, length, 16, Schedule::Cyclic, |lane, left, range| {
                for place in range {
                    let vertex = now.get(lane, place) as usize;
                    if self.states.get(lane, vertex) == MEMBER {
                        for edge in graph.list(lane, vertex) {
                            let neighbor = graph.neighbors.get(lane, edge) as usize;
                            if neighbor != vertex {
                                self.states.set(lane, neighbor, OUT);
                            }
                        }
                    }
                    // One that is struck out later in this pass stays on the list and is passed over in the next round.
                    if self.states.get(lane, vertex) == UNDECIDED {
                        left.push(vertex as u32);
                    }
                }
                append(lane, next, &end, left);
            });
            length = end.load(Relaxed);
            rounds += 1;
        }
        rounds
    }
}

impl Program for IndependentSet {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u32>::build(memory, &self.shape);
        let vertices = graph.vertices();
        let arrays = Arrays {
            order: memory.allocate("order", vertices),
            states: memory.allocate("states", vertices),
            lists: [memory.allocate("undecided", vertices), memory.allocate("next undecided", vertices)],
        };
        let (mut rounds, mut checksum, mut members) = (0, 0u64, 0u64);
        for run in 0..self.runs {
            memory.phase("run");
            rounds += arrays.select(memory, &graph, self.seed.wrapping_add(run));
            memory.phase("verify");
            members = 0;
            for vertex in 0..vertices {
                let state = arrays.states.peek(vertex);
                let mut near = graph.peek_list(vertex).filter(|&neighbor| neighbor as usize != vertex);
                let touches = near.any(|neighbor| arrays.states.peek(neighbor as usize) == MEMBER);
                let right = (state == MEMBER && !touches) || (state == OUT && touches);
                check(INFO.name, right, || {
                    format!("vertex {vertex} has state {state}, with a member beside it: {touches}")
                })?;
                members += u64::from(state == MEMBER);
                checksum = mix(checksum ^ u64::from(state));
            }
        }
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let figures = vec![("members", members as f64), ("rounds", rounds as f64), ("vertices", vertices as f64)];
        let verified = "the set is independent and maximal; the graph is intact";
        Ok(Answer { operations: self.runs, checksum, verified, figures })
    }
}
