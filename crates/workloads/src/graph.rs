//! Generated graphs in compressed sparse rows, as the graph workloads use them.
//!
//! In: kind, vertices, edges and seed. Out: an undirected graph (each edge lies in the lists of both its ends), built in
//! the program's memory by two passes over generated edges: degrees, then lists. Must not: keep an edge list, so that a
//! program's footprint is that of one that loads a ready graph; Graph500, whose edge list is part of it, brings its own.
//!
//! Kronecker: initiator 0.57, 0.19, 0.19, 0.05, the vertices renamed at random (Graph500 specification, section 3). One of
//! fewer than 2^26 vertices is as skewed as one of 2^26.
//! Uniform: both ends drawn at random (Erdős and Rényi; GAP's "urand"). Multiple edges and loops stay, so that the
//! number of edges, and with it the footprint, is exact.

use crate::memory::{Array, Lane, Memory, Schedule};
use crate::program::{AuditError, Settings, WorkloadError};
use crate::random::{Permutation, mix};

/// Kind of graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphKind {
    /// Power law.
    Kronecker,
    /// Even.
    Uniform,
}

/// A graph to generate. An edge follows from its number, so no two passes need an edge list between them.
#[derive(Clone, Copy, Debug)]
pub struct GraphShape {
    /// Kind.
    pub kind: GraphKind,
    /// Vertices; a power of two for Kronecker.
    pub vertices: u64,
    /// Undirected edges.
    pub edges: u64,
    /// Seed.
    pub seed: u64,
    names: Permutation,
    fold: Fold,
}

/// Levels of the Kronecker graphs that the papers run: GAP's, Graph500's and MEMTIS's have 2^26 to 2^28 vertices.
const FULL_LEVELS: u32 = 26;

/// Where a vertex of a full-size Kronecker graph is in one of fewer levels: at its rank by expected degree, scaled down.
///
/// A small Kronecker graph is flatter than a large one: the busiest tenth of the vertices has 85 % of the ends of edges at
/// 17 levels and 95 % at 27. A scaled run keeps the caches' and the fast memory's share of the program, so a vertex here
/// stands for vertices of neighbouring ranks there, and the busiest tenth has the same share in both.
#[derive(Clone, Copy, Debug)]
struct Fold {
    levels: u32,
    /// Number of labels of fewer one bits, which are of higher degree.
    before: [u64; FULL_LEVELS as usize + 2],
}

impl Fold {
    fn of(scale: u32) -> Fold {
        let mut before = [0; FULL_LEVELS as usize + 2];
        let mut class = 1u64;
        for ones in 0..=FULL_LEVELS {
            before[ones as usize + 1] = before[ones as usize] + class;
            class = class * u64::from(FULL_LEVELS - ones) / u64::from(ones + 1);
        }
        Fold { levels: scale.max(FULL_LEVELS), before }
    }

    /// The vertex among `2^scale` that stands for `label`. Within a class of equal degree the order is by chance.
    #[inline]
    fn apply(&self, label: u64, scale: u32) -> u64 {
        if self.levels == scale {
            return label;
        }
        let ones = label.count_ones() as usize;
        let class = self.before[ones + 1] - self.before[ones];
        let within = ((u128::from(mix(label)) * u128::from(class)) >> 64) as u64;
        (self.before[ones] + within) >> (self.levels - scale)
    }
}

/// Log2 of the most vertices: they are 32-bit numbers.
const MOST_SCALE: u32 = 31;

impl GraphShape {
    /// A graph with these numbers of vertices (a power of two for Kronecker) and edges.
    pub fn new(kind: GraphKind, vertices: u64, edges: u64, seed: u64) -> GraphShape {
        let names = Permutation::new(vertices, seed ^ 0x5eed);
        GraphShape { kind, vertices, edges, seed, names, fold: Fold::of(vertices.trailing_zeros()) }
    }

    /// The graph whose memory is `bytes`, when a vertex takes `per_vertex` bytes and an edge `per_edge`, with 16 edges a
    /// vertex (Graph500's and GAP's edge factor); a Kronecker graph's vertices are a power of two, and its edges (11 to
    /// 22 a vertex) make the size up.
    pub fn sized(kind: GraphKind, bytes: u64, per_vertex: u64, per_edge: u64, seed: u64) -> GraphShape {
        let even = (bytes / (per_vertex + 16 * per_edge)).max(64);
        let vertices = match kind {
            // Rounded in the logarithm, so that the edge factor strays by a factor of the square root of two at most.
            GraphKind::Kronecker => 1u64 << ((even as f64).log2().round() as u32).min(MOST_SCALE),
            GraphKind::Uniform => even.min(1 << MOST_SCALE),
        };
        let edges = (bytes.saturating_sub(vertices * per_vertex) / per_edge).max(vertices);
        GraphShape::new(kind, vertices, edges, seed)
    }

    /// The kind that the option `graph` names.
    pub(crate) fn kind_of(settings: &Settings<'_>) -> Result<GraphKind, WorkloadError> {
        let word = settings.choice("graph", &["kronecker", "uniform"])?;
        Ok(if word == "uniform" { GraphKind::Uniform } else { GraphKind::Kronecker })
    }

    /// Ends of edge `number`.
    #[inline]
    pub fn edge(&self, number: u64) -> (u64, u64) {
        let mut bits = mix(self.seed ^ mix(number));
        match self.kind {
            GraphKind::Uniform => {
                let draw = |bits: u64| ((u128::from(bits) * u128::from(self.vertices)) >> 64) as u64;
                (draw(bits), draw(mix(bits)))
            }
            GraphKind::Kronecker => {
                let scale = self.vertices.trailing_zeros();
                let (mut from, mut to) = (0u64, 0u64);
                for level in 0..self.fold.levels {
                    if level % 4 == 0 && level > 0 {
                        bits = mix(bits);
                    }
                    // 16 bits a level: 0.57, 0.76 and 0.95 of 65,536.
                    let draw = (bits >> (16 * (level % 4))) & 0xFFFF;
                    let (row, column) = match draw {
                        0..37_356 => (0, 0),
                        37_356..49_808 => (0, 1),
                        49_808..62_260 => (1, 0),
                        _ => (1, 1),
                    };
                    from = (from << 1) | row;
                    to = (to << 1) | column;
                }
                (self.rename(self.fold.apply(from, scale)), self.rename(self.fold.apply(to, scale)))
            }
        }
    }

    /// A one-to-one renaming of `0..2^scale`.
    #[inline]
    fn rename(&self, vertex: u64) -> u64 {
        self.names.apply(vertex)
    }

    /// A weight of 1 to 255 for the edge between two vertices, the same in both directions (GAP's SSSP weights).
    #[inline]
    pub fn weight(&self, a: u64, b: u64) -> u64 {
        1 + mix(self.seed ^ mix(a.min(b)) ^ mix(a.max(b)).rotate_left(17)) % 255
    }
}

/// A graph in memory. `E` is `u32` for neighbours alone, `u64` for a neighbour (low half) with a weight (high half).
pub struct Graph<E: Edge> {
    /// Start of each vertex's list, and the end of the last.
    pub offsets: Array<u64>,
    /// The lists.
    pub neighbors: Array<E>,
}

/// An entry of a list.
pub trait Edge: crate::memory::Scalar + Ord {
    /// The entry for an edge to `to`.
    fn make(shape: &GraphShape, from: u64, to: u64) -> Self;
    /// Whom it leads to.
    fn target(self) -> usize;
}

impl Edge for u32 {
    #[inline]
    fn make(_shape: &GraphShape, _from: u64, to: u64) -> u32 {
        to as u32
    }
    #[inline]
    fn target(self) -> usize {
        self as usize
    }
}

impl Edge for u64 {
    #[inline]
    fn make(shape: &GraphShape, from: u64, to: u64) -> u64 {
        to | (shape.weight(from, to) << 32)
    }
    #[inline]
    fn target(self) -> usize {
        (self & 0xFFFF_FFFF) as usize
    }
}

impl<E: Edge> Graph<E> {
    /// Generates a graph. Allocates offsets, degrees, neighbours; the degrees are freed.
    pub fn build<M: Memory>(memory: &mut M, shape: &GraphShape) -> Graph<E> {
        let vertices = shape.vertices as usize;
        let edges = shape.edges as usize;
        let offsets = memory.allocate::<u64>("graph offsets", vertices + 1);
        let degrees = memory.allocate::<u32>("graph degrees", vertices);
        let neighbors = memory.allocate::<E>("graph neighbors", 2 * edges);
        memory.parallel(edges, 64, Schedule::Blocks, |lane, range| {
            for number in range {
                let (from, to) = shape.edge(number as u64);
                lane.compute(20);
                degrees.add(lane, from as usize, 1);
                degrees.add(lane, to as usize, 1);
            }
        });
        let lane = memory.main();
        let mut sum = 0u64;
        for vertex in 0..vertices {
            offsets.set(lane, vertex, sum);
            sum += u64::from(degrees.get(lane, vertex));
        }
        offsets.set(lane, vertices, sum);
        // The second pass fills each list from its end, taking the degree back to zero.
        memory.parallel(edges, 64, Schedule::Blocks, |lane, range| {
            for number in range {
                let (from, to) = shape.edge(number as u64);
                lane.compute(20);
                for (from, to) in [(from, to), (to, from)] {
                    let left = degrees.add(lane, from as usize, u32::MAX).wrapping_sub(1);
                    let place = offsets.get(lane, from as usize) as usize + left as usize;
                    neighbors.set(lane, place % (2 * edges), E::make(shape, from, to));
                }
            }
        });
        // Lists are sorted: their order then does not depend on threads, and neighbours close in memory are met together.
        memory.parallel(vertices, 16, Schedule::Cyclic, |lane, range| {
            let mut list: Vec<E> = Vec::new();
            for vertex in range {
                let (start, end) = (offsets.get(lane, vertex) as usize, offsets.get(lane, vertex + 1) as usize);
                list.clear();
                for place in start..end.min(neighbors.len()) {
                    list.push(neighbors.get(lane, place));
                }
                list.sort_unstable();
                lane.compute((list.len() * 8) as u32);
                for (offset, entry) in list.iter().enumerate() {
                    neighbors.set(lane, start + offset, *entry);
                }
            }
        });
        memory.free(degrees);
        Graph { offsets, neighbors }
    }

    /// Vertices.
    pub fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// A vertex's part of the neighbours.
    #[inline]
    pub fn list<L: Lane>(&self, lane: &mut L, vertex: usize) -> std::ops::Range<usize> {
        let start = self.offsets.get(lane, vertex) as usize;
        start..self.offsets.get(lane, vertex + 1) as usize
    }

    /// A vertex's neighbours, unseen, for checks.
    pub fn peek_list(&self, vertex: usize) -> impl Iterator<Item = E> + '_ {
        (self.offsets.peek(vertex) as usize..self.offsets.peek(vertex + 1) as usize)
            .map(|place| self.neighbors.peek(place))
    }

    /// Whether the graph in memory is the one that was asked for: every edge counted at both ends, unseen.
    pub fn audit(&self, shape: &GraphShape) -> Result<(), AuditError> {
        let mut sums = vec![0u64; self.vertices()];
        for number in 0..shape.edges {
            let (from, to) = shape.edge(number);
            for (from, to) in [(from, to), (to, from)] {
                sums[from as usize] = sums[from as usize].wrapping_add(mix(E::make(shape, from, to).to_bits()));
            }
        }
        let mut at = 0;
        for (vertex, sum) in sums.iter().enumerate() {
            let (start, end) = (self.offsets.peek(vertex), self.offsets.peek(vertex + 1));
            if start != at || end < start || end > self.neighbors.len() as u64 {
                return Err(AuditError(format!("the list of vertex {vertex} does not follow the one before it")));
            }
            at = end;
            let found = self.peek_list(vertex).fold(0u64, |sum, entry| sum.wrapping_add(mix(entry.to_bits())));
            if found != *sum {
                return Err(AuditError(format!(
                    "the list of vertex {vertex} does not hold the edges generated for it"
                )));
            }
        }
        Ok(())
    }

    /// A vertex with neighbours, drawn with `random`; isolated vertices are no use as sources.
    pub fn source(&self, random: &mut crate::random::Random) -> usize {
        let vertices = self.vertices();
        let drawn = random.below(vertices as u64) as usize;
        (0..vertices)
            .map(|step| (drawn + step) % vertices)
            .find(|&vertex| self.offsets.peek(vertex + 1) > self.offsets.peek(vertex))
            .unwrap_or(drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kronecker_is_skewed_and_renamed_one_to_one() {
        let shape = GraphShape::new(GraphKind::Kronecker, 1 << 12, 1 << 16, 3);
        let mut names: Vec<u64> = (0..shape.vertices).map(|vertex| shape.rename(vertex)).collect();
        names.sort_unstable();
        assert!(names.iter().enumerate().all(|(index, name)| index as u64 == *name), "renaming loses no vertex");
        let mut degrees = vec![0u32; 1 << 12];
        for number in 0..shape.edges {
            let (from, to) = shape.edge(number);
            degrees[from as usize] += 1;
            degrees[to as usize] += 1;
        }
        degrees.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = degrees[..409].iter().sum();
        let share = f64::from(top) / 131_072.0;
        assert!(
            (0.93..0.97).contains(&share),
            "a tenth of the vertices has {share} of the ends of edges, as at 26 levels"
        );
    }

    #[test]
    fn a_scaled_vertex_stands_for_as_many_of_the_full_size_as_any_other() {
        let (fold, scale) = (Fold::of(6), 6);
        assert_eq!(fold.before[FULL_LEVELS as usize + 1], 1 << FULL_LEVELS, "every label is in a class");
        let mut held = vec![0u64; 1 << scale];
        let drawn = 1u64 << 20;
        (0..drawn).for_each(|label| held[fold.apply(mix(label) >> (64 - FULL_LEVELS), scale) as usize] += 1);
        let even = drawn >> scale;
        assert!(held.iter().all(|held| held.abs_diff(even) < even / 20), "{held:?}");
        assert_eq!(Fold::of(FULL_LEVELS + 1).apply(12345, FULL_LEVELS + 1), 12345, "a larger graph is itself");
    }

    #[test]
    fn a_shape_takes_the_bytes_it_was_given() {
        for megabytes in [4u64, 10, 100, 5000] {
            for kind in [GraphKind::Kronecker, GraphKind::Uniform] {
                let shape = GraphShape::sized(kind, megabytes << 20, 20, 8, 1);
                let bytes = (shape.vertices * 20 + shape.edges * 8) as f64;
                assert!((bytes / (megabytes << 20) as f64 - 1.0).abs() < 0.01);
                let factor = shape.edges as f64 / shape.vertices as f64;
                assert!((9.0..25.0).contains(&factor), "{factor}");
            }
        }
    }
}
