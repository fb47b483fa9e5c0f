//! GAP PageRank: pull, in floats, until the scores settle.
//!
//! Source: Beamer, Asanović, Patterson, "The GAP Benchmark Suite" (2015): damping 0.85, tolerance 1e-4, at most 20
//! iterations. Allocation: graph (offsets, neighbours), scores, contributions. Phases: "build", "run", "verify". An
//! iteration reads every list in order and the neighbours' contributions at random. Check: GAP's own, a push in doubles
//! from the result must move the scores by less than the tolerance, or than 0.85^iterations bounds where the limit
//! ended the run; and the graph in memory is the one generated.

use crate::graph::{Graph, GraphKind, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::mix;

const DAMPING: f64 = 0.85;
const TOLERANCE: f64 = 1e-4;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "gap-pr",
    description: "PageRank by pulling, on a Kronecker or uniform graph",
    source: "GAP Benchmark Suite, 2015; used by Tuna, FlexHM, hotness walk",
    operation: "iterations, at most (20)",
    open_ended: false,
    options: &[("graph", "kronecker or uniform (kronecker)")],
    build: |settings| Ok(Box::new(PageRank::new(settings)?)),
};

struct PageRank {
    shape: GraphShape,
    iterations: u64,
}

impl PageRank {
    fn new(settings: &Settings<'_>) -> Result<PageRank, WorkloadError> {
        let kind: GraphKind = GraphShape::kind_of(settings)?;
        Ok(PageRank {
            shape: GraphShape::sized(kind, settings.size(), 8 + 8, 8, settings.seed()),
            iterations: settings.operations().unwrap_or(20),
        })
    }
}

impl Program for PageRank {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u32>::build(memory, &self.shape);
        let vertices = graph.vertices();
        memory.phase("run");
        let scores: Array<f32> = memory.allocate("scores", vertices);
        let contributions: Array<f32> = memory.allocate("contributions", vertices);
        let start = 1.0 / vertices as f32;
        let base = ((1.0 - DAMPING) / vertices as f64) as f32;
        memory.parallel(vertices, 64, Schedule::Blocks, |lane, range| {
            range.for_each(|vertex| scores.set(lane, vertex, start));
        });
        let (mut rounds, mut error) = (0u64, f64::INFINITY);
        while rounds < self.iterations && error >= TOLERANCE {
            memory.parallel(vertices, 64, Schedule::Blocks, |lane, range| {
                for vertex in range {
                    let degree = graph.list(lane, vertex).len();
                    let score = scores.get(lane, vertex);
                    contributions.set(lane, vertex, if degree == 0 { 0.0 } else { score / degree as f32 });
                }
            });
            let mut errors = vec![0.0f64; memory.threads()];
            memory.parallel_with(&mut errors, vertices, 16, Schedule::Cyclic, |lane, error, range| {
                for vertex in range {
                    let mut incoming = 0.0f32;
                    for place in graph.list(lane, vertex) {
                        let neighbor = graph.neighbors.get(lane, place) as usize;
                        incoming += contributions.get(lane, neighbor);
                    }
                    let old = scores.get(lane, vertex);
                    let new = base + DAMPING as f32 * incoming;
                    lane.compute(8);
                    scores.set(lane, vertex, new);
                    *error += f64::from((new - old).abs());
                }
            });
            error = errors.iter().sum();
            rounds += 1;
        }

        memory.phase("verify");
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let mut pushed = vec![f64::from(base); vertices];
        for vertex in 0..vertices {
            let degree = graph.peek_list(vertex).count();
            for neighbor in graph.peek_list(vertex) {
                pushed[neighbor as usize] += DAMPING * f64::from(scores.peek(vertex)) / degree as f64;
            }
        }
        let moved: f64 = (0..vertices).map(|vertex| (pushed[vertex] - f64::from(scores.peek(vertex))).abs()).sum();
        // Each iteration shrinks the change by the damping; a change cannot start above 2, the distance of two
        // distributions. Floats add an error of about 1e-7 of the mass for each of up to some thousand neighbours.
        let bound = (2.0 * DAMPING.powi(rounds as i32)).max(TOLERANCE) + 1e-4;
        check(INFO.name, moved <= bound, || {
            format!("another iteration moves the scores by {moved:.3e}, over {bound:.3e}")
        })?;
        let checksum = (0..vertices).fold(0u64, |sum, v| mix(sum ^ u64::from(scores.peek(v).to_bits())));
        memory.free(contributions);
        memory.free(scores);
        let figures = vec![("error", moved), ("vertices", vertices as f64), ("edges", self.shape.edges as f64)];
        Ok(Answer {
            operations: rounds,
            checksum,
            verified: "the scores are a fixed point; the graph is intact",
            figures,
        })
    }
}
