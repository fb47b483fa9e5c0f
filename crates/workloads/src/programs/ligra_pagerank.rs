//! Ligra's PageRank: edgeMap over all vertices, in doubles, until the scores settle.
//!
//! Source: Shun and Blelloch, "Ligra" (PPoPP 2013), sections 3 to 5; its published program: damping 0.85, until the sum
//! of the changes is below 1e-7, at most 100 iterations; FlexHM (TACO 2022) runs it on 160 million vertices, 62 GB.
//! Allocation: graph (offsets, neighbours), p_curr, p_next, frontier (list, degrees, bytes). Phases: "build", "run",
//! "verify". The frontier holds every vertex, so each edgeMap is dense. An edge takes the neighbour's flag, score and
//! degree, each at random, and a division. Check: a push in doubles from the result must move the scores by no more than
//! the damping allows after the last change; and the graph in memory is the one generated.

use super::ligra::{GRAPH, kind_of, pack, weigh};
use crate::graph::{Graph, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::mix;

const DAMPING: f64 = 0.85;
/// The scores have settled when all their changes together are less.
const EPSILON: f64 = 1e-7;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "ligra-pagerank",
    description: "PageRank by dense edge maps, on a uniform or Kronecker graph",
    source: "Ligra, PPoPP 2013; used by FlexHM",
    operation: "iterations, at most (100)",
    open_ended: false,
    options: &[GRAPH],
    build: |settings| Ok(Box::new(PageRank::new(settings)?)),
};

struct PageRank {
    shape: GraphShape,
    iterations: u64,
}

impl PageRank {
    fn new(settings: &Settings<'_>) -> Result<PageRank, WorkloadError> {
        let kind = kind_of(settings)?;
        Ok(PageRank {
            // Offset 8, two scores of 8, list 4, degree 4, a byte.
            shape: GraphShape::sized(kind, settings.size(), 8 + 2 * 8 + 4 + 4 + 1, 8, settings.seed()),
            iterations: settings.operations().unwrap_or(100),
        })
    }
}

struct Arrays<'g> {
    graph: &'g Graph<u32>,
    /// p_curr and p_next, which change places at every iteration.
    scores: [Array<f64>; 2],
    list: Array<u32>,
    degrees: Array<u32>,
    flags: Array<u8>,
}

impl Arrays<'_> {
    /// Starts with equal scores, and with every vertex in the frontier.
    fn begin<M: Memory>(&self, memory: &mut M) {
        let vertices = self.graph.vertices();
        let start = 1.0 / vertices as f64;
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            self.scores[0].write_span(lane, range.clone(), |_| start);
            self.scores[1].write_span(lane, range.clone(), |_| 0.0);
            self.flags.write_span(lane, range, |_| 1);
        });
        pack(memory, &self.flags, &self.list);
    }

    /// One iteration from the scores in `now` to those in `next`, which are all zero; the sum of the changes. What `now`
    /// holds then is no score any more: Ligra writes the changes over it.
    fn iterate<M: Memory>(&self, memory: &mut M, now: &Array<f64>, next: &Array<f64>) -> f64 {
        let graph = self.graph;
        let vertices = graph.vertices();
        // edgeMap adds the frontier's degrees up before it chooses its form; with all vertices in it that form is dense.
        weigh(memory, graph, &self.list, vertices, &self.degrees);
        memory.parallel(vertices, 64, Schedule::Cyclic, |lane, range| {
            for vertex in range {
                let mut sum = next.get(lane, vertex);
                for place in graph.list(lane, vertex) {
                    let neighbor = graph.neighbors.get(lane, place) as usize;
                    if self.flags.get(lane, neighbor) != 0 {
                        // Ligra divides at every edge, not once a vertex as GAP's program does.
                        let degree = graph.list(lane, neighbor).len();
                        sum += now.get(lane, neighbor) / degree as f64;
                        lane.compute(6);
                    }
                }
                next.set(lane, vertex, sum);
            }
        });
        let base = (1.0 - DAMPING) / vertices as f64;
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            for vertex in range {
                let sum = next.get(lane, vertex);
                next.set(lane, vertex, DAMPING * sum + base);
            }
        });
        memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| {
            for vertex in range {
                let change = now.get(lane, vertex) - next.get(lane, vertex);
                now.set(lane, vertex, change.abs());
            }
        });
        let mut changes = vec![0.0f64; memory.threads()];
        memory.parallel_with(&mut changes, vertices, 512, Schedule::Blocks, |lane, sum, range| {
            now.read_span(lane, range, |change| *sum += change);
        });
        changes.iter().sum()
    }

    /// How far another iteration from `scores`, a push in doubles, moves them in all.
    fn moved(&self, scores: &Array<f64>) -> f64 {
        let vertices = self.graph.vertices();
        let mut pushed = vec![(1.0 - DAMPING) / vertices as f64; vertices];
        for vertex in 0..vertices {
            let degree = self.graph.peek_list(vertex).count();
            for neighbor in self.graph.peek_list(vertex) {
                pushed[neighbor as usize] += DAMPING * scores.peek(vertex) / degree as f64;
            }
        }
        pushed.iter().enumerate().map(|(vertex, score)| (score - scores.peek(vertex)).abs()).sum()
    }
}

impl Program for PageRank {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u32>::build(memory, &self.shape);
        let vertices = graph.vertices();
        let arrays = Arrays {
            graph: &graph,
            scores: [memory.allocate("p_curr", vertices), memory.allocate("p_next", vertices)],
            list: memory.allocate("frontier", vertices),
            degrees: memory.allocate("frontier degrees", vertices),
            flags: memory.allocate("frontier flags", vertices),
        };
        memory.phase("run");
        arrays.begin(memory);
        let [mut now, mut next] = [&arrays.scores[0], &arrays.scores[1]];
        let (mut rounds, mut change) = (0u64, f64::INFINITY);
        while rounds < self.iterations && change >= EPSILON {
            if rounds > 0 {
                memory.parallel(vertices, 512, Schedule::Blocks, |lane, range| now.write_span(lane, range, |_| 0.0));
                (now, next) = (next, now);
            }
            change = arrays.iterate(memory, now, next);
            rounds += 1;
        }

        memory.phase("verify");
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let moved = arrays.moved(next);
        // Each iteration shrinks the change by the damping at least, and none is above 2, the distance of two distributions.
        // The sums of doubles, in another order, add far less than 1e-9.
        let bound = (DAMPING * change).min(2.0 * DAMPING.powi(rounds as i32)) + 1e-9;
        check(INFO.name, moved <= bound, || {
            format!("another iteration moves the scores by {moved:.3e}, over {bound:.3e}")
        })?;
        let checksum = (0..vertices).fold(0u64, |sum, vertex| mix(sum ^ next.peek(vertex).to_bits()));
        let figures = vec![("error", moved), ("vertices", vertices as f64), ("edges", self.shape.edges as f64)];
        let verified = "the scores are a fixed point; the graph is intact";
        Ok(Answer { operations: rounds, checksum, verified, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphKind;
    use crate::traced::{TraceSummary, TracedMemory};

    fn run(kind: GraphKind, iterations: u64) -> Answer {
        let shape = GraphShape::new(kind, 1 << 11, 1 << 15, 7);
        let mut summary = TraceSummary::new();
        let mut memory = TracedMemory::new(3, &mut summary);
        PageRank { shape, iterations }.run(&mut memory).unwrap()
    }

    #[test]
    fn the_scores_settle_long_before_the_limit() {
        for kind in [GraphKind::Uniform, GraphKind::Kronecker] {
            let answer = run(kind, 100);
            assert!((5..100).contains(&answer.operations), "{kind:?}: {answer:?}");
            let error = answer.figures.iter().find(|figure| figure.0 == "error").unwrap().1;
            assert!(error < EPSILON, "{kind:?}: {error}");
        }
    }

    #[test]
    fn the_limit_ends_a_run_after_an_even_or_odd_number_of_iterations() {
        for iterations in 1..=4 {
            assert_eq!(run(GraphKind::Uniform, iterations).operations, iterations);
        }
    }
}
