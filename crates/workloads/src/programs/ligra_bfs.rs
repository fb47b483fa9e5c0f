//! Ligra's breadth-first search.
//!
//! Source: Shun and Blelloch, "Ligra" (PPoPP 2013), sections 3 to 5.1; FlexHM (TACO 2022) runs it on 160 million vertices,
//! 62 GB. Allocation: graph (offsets, neighbours), parents, frontier (list, degrees, two byte arrays), targets. Phases:
//! "build", "run" (a search) and "verify", once a search. All searches start from one vertex, as Ligra's rounds do: one
//! to warm up and three more. Check: as for GAP's, the tree's depths are those of a plain queue BFS, and every parent is
//! a neighbour one level up.

use super::gap_bfs::check_tree;
use super::ligra::{GRAPH, NONE, filter, kind_of, pack, scan, sparse_limit, spread, weigh};
use crate::graph::{Graph, GraphShape};
use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo};
use crate::random::{Random, mix};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "ligra-bfs",
    description: "breadth-first search that pushes or pulls, on a uniform or Kronecker graph",
    source: "Ligra, PPoPP 2013; used by FlexHM",
    operation: "searches, all from one source (4)",
    open_ended: false,
    options: &[GRAPH],
    build: |settings| Ok(Box::new(Search::new(settings)?)),
};

struct Search {
    shape: GraphShape,
    searches: u64,
    seed: u64,
}

impl Search {
    fn new(settings: &Settings<'_>) -> Result<Search, WorkloadError> {
        let kind = kind_of(settings)?;
        Ok(Search {
            // Offset 8, parent 4, two bytes; and of list, degrees and targets, 14 at most, what a search uses.
            shape: GraphShape::sized(kind, settings.size(), 8 + 4 + 2 + 9, 8, settings.seed()),
            searches: settings.operations().unwrap_or(4),
            seed: settings.seed(),
        })
    }
}

struct Arrays<'g> {
    graph: &'g Graph<u32>,
    parents: Array<u32>,
    /// The frontier as a list.
    list: Array<u32>,
    /// Of the list's vertices: their out-degrees, then the places of their targets.
    degrees: Array<u32>,
    /// For each out-edge of a sparse frontier the vertex it found, or none.
    targets: Array<u32>,
    front: Array<u8>,
    next: Array<u8>,
}

impl Arrays<'_> {
    /// A sparse edgeMap: pushes along the out-edges of the listed vertices. The new list's length.
    fn push<M: Memory>(&self, memory: &mut M, length: usize, sums: &[u64]) -> usize {
        scan(memory, &self.degrees, length, sums);
        memory.parallel(length, 16, Schedule::Cyclic, |lane, range| {
            for place in range {
                let vertex = self.list.get(lane, place);
                let start = self.degrees.get(lane, place) as usize;
                for (offset, edge) in self.graph.list(lane, vertex as usize).enumerate() {
                    let neighbor = self.graph.neighbors.get(lane, edge);
                    lane.compute(3);
                    // Only one of those who meet a vertex in this step may list it: who swaps the parent.
                    let found = self.parents.get(lane, neighbor as usize) == NONE
                        && self.parents.replace(lane, neighbor as usize, NONE, vertex);
                    self.targets.set(lane, start + offset, if found { neighbor } else { NONE });
                }
            }
        });
        filter(memory, &self.targets, sums.iter().sum::<u64>() as usize, &self.list)
    }

    /// A dense edgeMap: every vertex without a parent looks for one in `front` along its in-edges. How many found one.
    fn pull<M: Memory>(&self, memory: &mut M, front: &Array<u8>, next: &Array<u8>) -> usize {
        let mut found = vec![0usize; memory.threads()];
        memory.parallel_with(&mut found, self.graph.vertices(), 64, Schedule::Cyclic, |lane, found, range| {
            next.write_span(lane, range.clone(), |_| 0);
            for vertex in range {
                if self.parents.get(lane, vertex) != NONE {
                    continue;
                }
                for edge in self.graph.list(lane, vertex) {
                    let neighbor = self.graph.neighbors.get(lane, edge);
                    lane.compute(3);
                    if front.get(lane, neighbor as usize) != 0 {
                        self.parents.set(lane, vertex, neighbor);
                        next.set(lane, vertex, 1);
                        *found += 1;
                        break;
                    }
                }
            }
        });
        found.iter().sum()
    }

    /// Searches from `source`; how many steps pushed, and how many pulled.
    fn search<M: Memory>(&self, memory: &mut M, source: usize) -> (u64, u64) {
        memory.parallel(self.graph.vertices(), 512, Schedule::Blocks, |lane, range| {
            self.parents.write_span(lane, range, |_| NONE);
        });
        let lane = memory.main();
        self.parents.set(lane, source, source as u32);
        self.list.set(lane, 0, source as u32);
        let limit = sparse_limit(self.graph.neighbors.len());
        let (mut front, mut next) = (&self.front, &self.next);
        let (mut length, mut dense) = (1, false);
        let (mut pushes, mut pulls) = (0, 0);
        while length > 0 {
            // The list is made for a dense frontier as well: Ligra adds up degrees along it.
            if dense {
                length = pack(memory, front, &self.list);
            }
            let sums = weigh(memory, self.graph, &self.list, length, &self.degrees);
            let edges = sums.iter().sum::<u64>() as usize;
            if length + edges > limit {
                if !dense {
                    spread(memory, &self.list, length, front);
                }
                length = self.pull(memory, front, next);
                (front, next) = (next, front);
                (dense, pulls) = (true, pulls + 1);
            } else {
                length = self.push(memory, length, &sums);
                (dense, pushes) = (false, pushes + 1);
            }
        }
        (pushes, pulls)
    }
}

impl Program for Search {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("build");
        let graph = Graph::<u32>::build(memory, &self.shape);
        let vertices = graph.vertices();
        let arrays = Arrays {
            graph: &graph,
            parents: memory.allocate("parents", vertices),
            list: memory.allocate("frontier", vertices),
            degrees: memory.allocate("frontier degrees", vertices),
            targets: memory.allocate("targets", sparse_limit(graph.neighbors.len())),
            front: memory.allocate("frontier flags", vertices),
            next: memory.allocate("next frontier flags", vertices),
        };
        let source = graph.source(&mut Random::new(self.seed, 1));
        let (mut checksum, mut pushes, mut pulls) = (0u64, 0, 0);
        for _ in 0..self.searches {
            memory.phase("run");
            (pushes, pulls) = arrays.search(memory, source);
            memory.phase("verify");
            let found = check_tree(&graph, &arrays.parents, source).map_err(|error| error.of(INFO.name))?;
            checksum = mix(checksum ^ found);
        }
        graph.audit(&self.shape).map_err(|error| error.of(INFO.name))?;
        let figures = vec![
            ("sparse steps", pushes as f64),
            ("dense steps", pulls as f64),
            ("vertices", vertices as f64),
            ("edges", self.shape.edges as f64),
        ];
        let verified = "each tree's depths and parents; the graph is intact";
        Ok(Answer { operations: self.searches, checksum, verified, figures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphKind;
    use crate::traced::{TraceSummary, TracedMemory};

    #[test]
    fn a_search_pushes_light_frontiers_and_pulls_heavy_ones() {
        for kind in [GraphKind::Uniform, GraphKind::Kronecker] {
            let shape = GraphShape::new(kind, 1 << 13, 1 << 17, 7);
            let mut summary = TraceSummary::new();
            let mut memory = TracedMemory::new(3, &mut summary);
            let mut search = Search { shape, searches: 2, seed: 1 };
            let answer = search.run(&mut memory).unwrap();
            let figure = |name: &str| answer.figures.iter().find(|figure| figure.0 == name).unwrap().1;
            assert!(figure("sparse steps") >= 1.0, "{kind:?}: one vertex is light: {answer:?}");
            assert!((1.0..6.0).contains(&figure("dense steps")), "{kind:?}: most of the graph is heavy: {answer:?}");
        }
    }

    #[test]
    fn a_search_ends_where_its_part_of_the_graph_ends() {
        // So few edges that the graph has many parts.
        let shape = GraphShape::new(GraphKind::Uniform, 4000, 1200, 3);
        let mut summary = TraceSummary::new();
        let mut memory = TracedMemory::new(2, &mut summary);
        let answer = Search { shape, searches: 1, seed: 1 }.run(&mut memory).unwrap();
        assert_eq!(answer.operations, 1);
    }
}
