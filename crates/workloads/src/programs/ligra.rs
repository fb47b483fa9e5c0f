//! What Ligra's programs share: vertex subsets in their two forms, and when edgeMap takes which.
//!
//! Source: Shun and Blelloch, "Ligra" (PPoPP 2013), sections 3 and 4. A frontier is a list of vertices (sparse) or a byte
//! a vertex (dense). edgeMap lists the frontier and adds its out-degrees up in either form. It pushes along the out-edges
//! of a light frontier and pulls along the in-edges of all vertices for a heavy one. An edge lies in the lists of both its
//! ends, so one set of lists serves both ways, as in Ligra's symmetric graphs.
//!
//! In: a graph and the arrays of a subset. Out: the subset in its other form, its degrees, places for its out-edges. Must
//! not: know what a program does at an edge.

use std::ops::Range;

use crate::graph::{Graph, GraphKind};
use crate::memory::{Array, Memory, Schedule};
use crate::program::{Settings, WorkloadError};

/// edgeMap goes dense when a frontier with its out-edges is more than one part in this of the edges.
const DENSE_PART: usize = 20;
/// No vertex.
pub(super) const NONE: u32 = super::gap_bfs::NONE;
/// The option of Ligra's programs.
pub(super) const GRAPH: (&str, &str) = ("graph", "uniform or kronecker (uniform)");

/// The kind that the option `graph` names; uniform unless it says otherwise.
pub(super) fn kind_of(settings: &Settings<'_>) -> Result<GraphKind, WorkloadError> {
    let word = settings.choice("graph", &["uniform", "kronecker"])?;
    Ok(if word == "kronecker" { GraphKind::Kronecker } else { GraphKind::Uniform })
}

/// The most that a sparse frontier and its out-edges come to.
pub(super) fn sparse_limit(edges: usize) -> usize {
    edges / DENSE_PART
}

/// Writes what `find` finds in `items` to `list`, in order, and says how many. Two passes, as Ligra's pack and filter
/// have: each thread counts, then writes behind the threads before it.
fn keep<M: Memory, F>(memory: &mut M, items: usize, list: &Array<u32>, find: F) -> usize
where
    F: Fn(&mut M::Lane, Range<usize>, &mut Vec<u32>) + Sync,
{
    let mut states: Vec<(usize, Vec<u32>)> = vec![(0, Vec::new()); memory.threads()];
    memory.parallel_with(&mut states, items, 512, Schedule::Blocks, |lane, (count, found), range| {
        find(lane, range, found);
        *count += found.len();
        found.clear();
    });
    let mut total = 0;
    for (count, _) in &mut states {
        let start = total;
        total += *count;
        *count = start;
    }
    memory.parallel_with(&mut states, items, 512, Schedule::Blocks, |lane, (place, found), range| {
        find(lane, range, found);
        for vertex in found.drain(..) {
            list.set(lane, *place, vertex);
            *place += 1;
        }
    });
    total
}

/// Lists a dense subset (Ligra's `toSparse`); its size.
pub(super) fn pack<M: Memory>(memory: &mut M, flags: &Array<u8>, list: &Array<u32>) -> usize {
    keep(memory, flags.len(), list, |lane, range, found| {
        let mut vertex = range.start as u32;
        flags.read_span(lane, range, |flag| {
            if flag != 0 {
                found.push(vertex);
            }
            vertex += 1;
        });
    })
}

/// Lists the vertices among the first `length` targets (the filter that ends a sparse edgeMap); how many they are.
pub(super) fn filter<M: Memory>(memory: &mut M, targets: &Array<u32>, length: usize, list: &Array<u32>) -> usize {
    keep(memory, length, list, |lane, range, found| {
        targets.read_span(lane, range, |target| {
            if target != NONE {
                found.push(target);
            }
        });
    })
}

/// Flags the first `length` vertices of a list, and no others (Ligra's `toDense`).
pub(super) fn spread<M: Memory>(memory: &mut M, list: &Array<u32>, length: usize, flags: &Array<u8>) {
    memory.parallel(flags.len(), 512, Schedule::Blocks, |lane, range| flags.write_span(lane, range, |_| 0));
    memory.parallel(length, 64, Schedule::Blocks, |lane, range| {
        for place in range {
            let vertex = list.get(lane, place) as usize;
            flags.set(lane, vertex, 1);
        }
    });
}

/// Writes down the out-degree of each of the first `length` vertices of a list; the sum of each thread's block of them.
pub(super) fn weigh<M: Memory>(
    memory: &mut M,
    graph: &Graph<u32>,
    list: &Array<u32>,
    length: usize,
    degrees: &Array<u32>,
) -> Vec<u64> {
    let mut sums = vec![0u64; memory.threads()];
    memory.parallel_with(&mut sums, length, 64, Schedule::Blocks, |lane, sum, range| {
        for place in range {
            let vertex = list.get(lane, place) as usize;
            let degree = graph.list(lane, vertex).len();
            degrees.set(lane, place, degree as u32);
            *sum += degree as u64;
        }
    });
    sums
}

/// Turns the degrees that [`weigh`] wrote into the places where each vertex's out-edges begin (Ligra's `plusScan`).
pub(super) fn scan<M: Memory>(memory: &mut M, degrees: &Array<u32>, length: usize, sums: &[u64]) {
    let mut total = 0u64;
    let mut starts: Vec<u64> = Vec::with_capacity(sums.len());
    for sum in sums {
        starts.push(total);
        total += sum;
    }
    // The blocks are those of `weigh`: they follow from the length and the number of threads.
    memory.parallel_with(&mut starts, length, 64, Schedule::Blocks, |lane, start, range| {
        for place in range {
            let degree = degrees.get(lane, place);
            degrees.set(lane, place, *start as u32);
            *start += u64::from(degree);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphShape;
    use crate::traced::{TraceSummary, TracedMemory};

    #[test]
    fn a_subset_survives_its_change_of_form() {
        let mut summary = TraceSummary::new();
        let mut memory = TracedMemory::new(3, &mut summary);
        let list: Array<u32> = memory.allocate("list", 5000);
        let again: Array<u32> = memory.allocate("again", 5000);
        let flags: Array<u8> = memory.allocate("flags", 5000);
        for place in 0..700 {
            list.place(place, (4999 - place * 7) as u32);
        }
        // What an earlier subset left behind goes.
        flags.place(1, 1);
        spread(&mut memory, &list, 700, &flags);
        assert_eq!(pack(&mut memory, &flags, &again), 700);
        assert!((0..700).all(|place| again.peek(place) == list.peek(699 - place)), "packed in order, none lost");
    }

    #[test]
    fn the_filter_keeps_what_was_found_in_order() {
        let mut summary = TraceSummary::new();
        let mut memory = TracedMemory::new(3, &mut summary);
        let targets: Array<u32> = memory.allocate("targets", 2000);
        let list: Array<u32> = memory.allocate("list", 2000);
        for place in 0..2000 {
            targets.place(place, if place % 3 == 0 { place as u32 } else { NONE });
        }
        assert_eq!(filter(&mut memory, &targets, 1000, &list), 334, "no more than the length is looked at");
        assert!((0..334).all(|place| list.peek(place) == 3 * place as u32));
    }

    #[test]
    fn out_edges_get_places_one_behind_another() {
        let shape = GraphShape::new(GraphKind::Uniform, 1000, 8000, 5);
        let mut summary = TraceSummary::new();
        let mut memory = TracedMemory::new(3, &mut summary);
        let graph = Graph::<u32>::build(&mut memory, &shape);
        let list: Array<u32> = memory.allocate("list", 1000);
        let degrees: Array<u32> = memory.allocate("degrees", 1000);
        for place in 0..500 {
            list.place(place, 2 * place as u32);
        }
        let sums = weigh(&mut memory, &graph, &list, 500, &degrees);
        scan(&mut memory, &degrees, 500, &sums);
        let mut total = 0;
        for place in 0..500 {
            assert_eq!(degrees.peek(place) as usize, total);
            total += graph.peek_list(2 * place).count();
        }
        assert_eq!(sums.iter().sum::<u64>() as usize, total);
        assert_eq!(sparse_limit(graph.neighbors.len()), 800, "a twentieth of 8000 edges in both directions");
    }
}
