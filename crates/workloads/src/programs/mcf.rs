//! MCF-like network simplex: the cheapest flow through a generated network.
//!
//! Source: SPEC CPU 2017 605.mcf_s, after Löbel's MCF; hotness walk (undated) runs it at 4 GB. Structures and pricing are
//! those MCF is known for: arcs of 48 bytes, nodes with parent, child and sibling links, potentials and depths; multiple
//! partial pricing of about 300 arcs at a stride through the whole arc array, with a basket of 50 candidates. The tree
//! is kept strongly feasible, so that it cannot cycle (Cunningham 1976). Nodes are 8 times the square root of the arcs:
//! the network, as MCF's, is dense. Allocation: nodes, arcs. Phases: "generate", "simplex" (pricing on all threads where
//! those are free, pivots on one), "verify". Check: flows keep to bounds and balance at every node, no artificial arc
//! carries any, and reduced costs prove that no cheaper flow exists.

use crate::memory::{Array, Lane, Memory};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo};
use crate::random::{Random, mix};

/// Words of an arc: tail, head, cost, capacity, flow, state.
const ARC_WORDS: usize = 6;
/// Words of a node: potential, parent, parent arc, depth, first child, next and previous sibling, supply.
const NODE_WORDS: usize = 8;
const TAIL: usize = 0;
const HEAD: usize = 1;
const COST: usize = 2;
const CAPACITY: usize = 3;
const FLOW: usize = 4;
const STATE: usize = 5;
const POTENTIAL: usize = 0;
const PARENT: usize = 1;
const PARENT_ARC: usize = 2;
const DEPTH: usize = 3;
const CHILD: usize = 4;
const NEXT: usize = 5;
const PREVIOUS: usize = 6;
const SUPPLY: usize = 7;
/// States of an arc: at its lower bound, at its upper bound, in the tree.
const LOWER: i64 = 0;
const UPPER: i64 = 1;
const BASIC: i64 = 2;
const NOTHING: i64 = -1;
const UNBOUNDED: i64 = i64::MAX / 4;
/// Cost of an artificial arc: more than any path of real ones.
const ARTIFICIAL_COST: i64 = 1 << 40;
/// Arcs priced at a time, and candidates kept, as MCF's K and B.
const PRICED: usize = 300;
const BASKET: usize = 50;

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "mcf",
    description: "minimum-cost flow by network simplex",
    source: "SPEC CPU 2017 605.mcf_s; used by hotness walk",
    operation: "pivots, at most (until optimal)",
    open_ended: false,
    options: &[("nodes", "nodes of the network; 0 is 8 times the square root of the arcs (0)")],
    build: |settings| Ok(Box::new(Flow::new(settings)?)),
};

struct Flow {
    nodes: usize,
    arcs: usize,
    pivots: u64,
    seed: u64,
}

impl Flow {
    fn new(settings: &Settings<'_>) -> Result<Flow, WorkloadError> {
        let all = (settings.size() / (ARC_WORDS as u64 * 8)) as usize;
        let default = (8.0 * (all as f64).sqrt()) as usize;
        let most = all / 8;
        let nodes = settings
            .option("nodes", 0usize, "0, or 16 to an eighth of the arcs", |n| n == 0 || (16..=most).contains(&n))?;
        let nodes = if nodes == 0 { default.clamp(16, most) } else { nodes };
        // Every node has an artificial arc too.
        let bytes = settings.size() as usize - (nodes + 1) * NODE_WORDS * 8;
        let arcs = (bytes / (ARC_WORDS * 8)).saturating_sub(nodes).max(2 * nodes);
        Ok(Flow { nodes, arcs, pivots: settings.operations().unwrap_or(u64::MAX), seed: settings.seed() })
    }
}

struct Network {
    nodes: Array<i64>,
    arcs: Array<i64>,
    node_count: usize,
    arc_count: usize,
}

impl Network {
    #[inline(always)]
    fn arc<L: Lane>(&self, lane: &mut L, arc: usize, word: usize) -> i64 {
        self.arcs.get(lane, arc * ARC_WORDS + word)
    }
    #[inline(always)]
    fn set_arc<L: Lane>(&self, lane: &mut L, arc: usize, word: usize, value: i64) {
        self.arcs.set(lane, arc * ARC_WORDS + word, value);
    }
    #[inline(always)]
    fn node<L: Lane>(&self, lane: &mut L, node: i64, word: usize) -> i64 {
        self.nodes.get(lane, node as usize * NODE_WORDS + word)
    }
    #[inline(always)]
    fn set_node<L: Lane>(&self, lane: &mut L, node: i64, word: usize, value: i64) {
        self.nodes.set(lane, node as usize * NODE_WORDS + word, value);
    }
    fn peek_arc(&self, arc: usize, word: usize) -> i64 {
        self.arcs.peek(arc * ARC_WORDS + word)
    }
    fn peek_node(&self, node: i64, word: usize) -> i64 {
        self.nodes.peek(node as usize * NODE_WORDS + word)
    }

    fn root(&self) -> i64 {
        self.node_count as i64
    }

    /// The network: a ring of unbounded, dear arcs, so that every supply can be met, and random arcs, near ones cheaper.
    fn tail_head_cost_capacity(&self, arc: usize, seed: u64) -> [i64; 4] {
        let nodes = self.node_count as u64;
        if arc < self.node_count {
            return [arc as i64, ((arc + 1) % self.node_count) as i64, 4000, UNBOUNDED];
        }
        let mut random = Random::new(seed, arc as u64);
        let tail = random.below(nodes);
        let head = (tail + 1 + random.below(nodes - 1)) % nodes;
        let around = (head + nodes - tail) % nodes;
        let distance = around.min(nodes - around) * 2000 / nodes;
        [tail as i64, head as i64, (100 + distance + random.below(1000)) as i64, (1 + random.below(50)) as i64]
    }

    fn generate<L: Lane>(&self, lane: &mut L, seed: u64) {
        let root = self.root();
        for node in 0..self.node_count {
            // Supplies in pairs that cancel, so that they add up to zero.
            let pair = mix(seed ^ (node / 2) as u64) % 100;
            let odd_end = node + 1 == self.node_count && self.node_count % 2 == 1;
            let supply = if odd_end {
                0
            } else if node % 2 == 0 {
                pair as i64
            } else {
                -(pair as i64)
            };
            self.set_node(lane, node as i64, SUPPLY, supply);
        }
        for arc in 0..self.arc_count {
            let words = self.tail_head_cost_capacity(arc, seed);
            lane.compute(30);
            self.arcs.write_span(lane, arc * ARC_WORDS..(arc + 1) * ARC_WORDS, |index| {
                words.get(index % ARC_WORDS).copied().unwrap_or(LOWER)
            });
        }
        for (word, value) in [(POTENTIAL, 0), (PARENT, NOTHING), (PARENT_ARC, NOTHING), (DEPTH, 0), (CHILD, NOTHING)] {
            self.set_node(lane, root, word, value);
        }
        for node in 0..self.node_count as i64 {
            let arc = self.arc_count + node as usize;
            let supply = self.node(lane, node, SUPPLY);
            let (tail, head) = if supply >= 0 { (node, root) } else { (root, node) };
            let words = [tail, head, ARTIFICIAL_COST, UNBOUNDED, supply.abs(), BASIC];
            for (word, value) in words.into_iter().enumerate() {
                self.set_arc(lane, arc, word, value);
            }
            self.set_node(lane, node, PARENT_ARC, arc as i64);
            self.set_node(lane, node, DEPTH, 1);
            self.set_node(lane, node, CHILD, NOTHING);
            self.set_node(lane, node, POTENTIAL, if supply >= 0 { ARTIFICIAL_COST } else { -ARTIFICIAL_COST });
            self.attach(lane, node, root);
        }
    }

    fn attach<L: Lane>(&self, lane: &mut L, node: i64, parent: i64) {
        let first = self.node(lane, parent, CHILD);
        self.set_node(lane, node, PARENT, parent);
        self.set_node(lane, node, NEXT, first);
        self.set_node(lane, node, PREVIOUS, NOTHING);
        if first != NOTHING {
            self.set_node(lane, first, PREVIOUS, node);
        }
        self.set_node(lane, parent, CHILD, node);
    }

    fn detach<L: Lane>(&self, lane: &mut L, node: i64) {
        let (next, previous) = (self.node(lane, node, NEXT), self.node(lane, node, PREVIOUS));
        if next != NOTHING {
            self.set_node(lane, next, PREVIOUS, previous);
        }
        if previous != NOTHING {
            self.set_node(lane, previous, NEXT, next);
        } else {
            let parent = self.node(lane, node, PARENT);
            self.set_node(lane, parent, CHILD, next);
        }
    }

    /// How much an arc's reduced cost violates optimality; 0 if it does not.
    #[inline]
    fn violation<L: Lane>(&self, lane: &mut L, arc: usize) -> i64 {
        let state = self.arc(lane, arc, STATE);
        if state == BASIC {
            return 0;
        }
        let (tail, head) = (self.arc(lane, arc, TAIL), self.arc(lane, arc, HEAD));
        let reduced = self.arc(lane, arc, COST) - self.node(lane, tail, POTENTIAL) + self.node(lane, head, POTENTIAL);
        lane.compute(4);
        if state == LOWER { (-reduced).max(0) } else { reduced.max(0) }
    }

    /// Room of the tree arc above `node` for flow towards the root (`up`) or away from it.
    fn room<L: Lane>(&self, lane: &mut L, node: i64, up: bool) -> i64 {
        let arc = self.node(lane, node, PARENT_ARC) as usize;
        let along = (self.arc(lane, arc, TAIL) == node) == up;
        let flow = self.arc(lane, arc, FLOW);
        if along { self.arc(lane, arc, CAPACITY) - flow } else { flow }
    }

    fn push<L: Lane>(&self, lane: &mut L, node: i64, up: bool, amount: i64) {
        let arc = self.node(lane, node, PARENT_ARC) as usize;
        let along = (self.arc(lane, arc, TAIL) == node) == up;
        let flow = self.arc(lane, arc, FLOW);
        self.set_arc(lane, arc, FLOW, if along { flow + amount } else { flow - amount });
    }

    /// One pivot with `arc` entering.
    fn pivot<L: Lane>(&self, lane: &mut L, arc: usize) {
        let state = self.arc(lane, arc, STATE);
        let (tail, head) = (self.arc(lane, arc, TAIL), self.arc(lane, arc, HEAD));
        // Flow goes over the arc from `first` to `second`, and through the tree back.
        let (first, second) = if state == LOWER { (tail, head) } else { (head, tail) };
        let mut amount = self.arc(lane, arc, CAPACITY);
        let (mut a, mut b) = (first, second);
        let mut leaving: Option<(i64, bool)> = None;
        while a != b {
            lane.compute(4);
            if self.node(lane, a, DEPTH) > self.node(lane, b, DEPTH) {
                let room = self.room(lane, a, false);
                if room < amount {
                    (amount, leaving) = (room, Some((a, true)));
                }
                a = self.node(lane, a, PARENT);
            } else {
                // Ties go to the second side: that keeps the tree strongly feasible.
                let room = self.room(lane, b, true);
                let first_side_tie = room == amount && leaving.is_some_and(|(_, on_first)| on_first);
                if room < amount || first_side_tie || room == amount {
                    (amount, leaving) = (room, Some((b, false)));
                }
                b = self.node(lane, b, PARENT);
            }
        }
        let apex = a;
        if amount > 0 {
            let flow = self.arc(lane, arc, FLOW);
            self.set_arc(lane, arc, FLOW, if state == LOWER { flow + amount } else { flow - amount });
            for (start, up) in [(first, false), (second, true)] {
                let mut node = start;
                while node != apex {
                    self.push(lane, node, up, amount);
                    node = self.node(lane, node, PARENT);
                }
            }
        }
        let Some((out, on_first)) = leaving else {
            self.set_arc(lane, arc, STATE, if state == LOWER { UPPER } else { LOWER });
            return;
        };
        let out_arc = self.node(lane, out, PARENT_ARC) as usize;
        let empty = self.arc(lane, out_arc, FLOW) == 0;
        self.set_arc(lane, out_arc, STATE, if empty { LOWER } else { UPPER });
        self.set_arc(lane, arc, STATE, BASIC);
        // The part below the leaving arc hangs from the entering arc's end in it.
        let (top, mut parent) = if on_first { (first, second) } else { (second, first) };
        let (mut node, mut by) = (top, arc as i64);
        loop {
            let (old_parent, old_arc) = (self.node(lane, node, PARENT), self.node(lane, node, PARENT_ARC));
            self.detach(lane, node);
            self.attach(lane, node, parent);
            self.set_node(lane, node, PARENT_ARC, by);
            if node == out {
                break;
            }
            (parent, by, node) = (node, old_arc, old_parent);
        }
        self.refresh(lane, top);
    }

    /// Depths and potentials of a subtree, from its parent down.
    fn refresh<L: Lane>(&self, lane: &mut L, top: i64) {
        let mut node = top;
        loop {
            let parent = self.node(lane, node, PARENT);
            let arc = self.node(lane, node, PARENT_ARC) as usize;
            let (above, cost) = (self.node(lane, parent, POTENTIAL), self.arc(lane, arc, COST));
            let toward_parent = self.arc(lane, arc, TAIL) == node;
            self.set_node(lane, node, POTENTIAL, if toward_parent { above + cost } else { above - cost });
            let depth = self.node(lane, parent, DEPTH) + 1;
            self.set_node(lane, node, DEPTH, depth);
            let child = self.node(lane, node, CHILD);
            if child != NOTHING {
                node = child;
                continue;
            }
            while node != top && self.node(lane, node, NEXT) == NOTHING {
                node = self.node(lane, node, PARENT);
            }
            if node == top {
                return;
            }
            node = self.node(lane, node, NEXT);
        }
    }

    /// Runs the simplex; whether it reached the optimum, and its pivots.
    fn simplex<M: Memory>(&self, memory: &mut M, most: u64) -> (bool, u64) {
        let groups = self.arc_count.div_ceil(PRICED);
        let workers = memory.threads_for_short_regions();
        let mut found: Vec<Vec<(i64, usize)>> = vec![Vec::new(); workers];
        let mut basket: Vec<(i64, usize)> = Vec::new();
        let (mut group, mut pivots) = (0usize, 0u64);
        while pivots < most {
            let lane = memory.main();
            for candidate in &mut basket {
                candidate.0 = self.violation(lane, candidate.1);
            }
            basket.retain(|candidate| candidate.0 > 0);
            let mut scanned = 0;
            while scanned == 0 || (basket.is_empty() && scanned < groups) {
                memory.run(&mut found, |lane, found| {
                    let mut arc = group + lane.thread() * groups;
                    while arc < self.arc_count {
                        let violation = self.violation(lane, arc);
                        if violation > 0 {
                            found.push((violation, arc));
                        }
                        arc += workers * groups;
                    }
                    false
                });
                for found in &mut found {
                    basket.append(found);
                }
                group = (group + 1) % groups;
                scanned += 1;
            }
            if basket.is_empty() {
                return (true, pivots);
            }
            // Largest violation first, then by number, so that the order does not depend on who found it.
            basket.sort_unstable_by_key(|&(violation, arc)| (std::cmp::Reverse(violation), arc));
            basket.dedup_by_key(|candidate| candidate.1);
            basket.truncate(BASKET);
            self.pivot(memory.main(), basket[0].1);
            pivots += 1;
        }
        (false, pivots)
    }

    /// Says what is wrong with the flow, or what it costs.
    fn audit(&self, optimal: bool, seed: u64) -> Result<i128, AuditError> {
        let mut balance: Vec<i64> = (0..=self.node_count as i64)
            .map(|node| if node == self.root() { 0 } else { self.peek_node(node, SUPPLY) })
            .collect();
        let mut cost = 0i128;
        for arc in 0..self.arc_count + self.node_count {
            let [tail, head, price, capacity, flow, state] = std::array::from_fn(|word| self.peek_arc(arc, word));
            if arc < self.arc_count && [tail, head, price, capacity] != self.tail_head_cost_capacity(arc, seed) {
                return Err(AuditError(format!("arc {arc} is not the one generated")));
            }
            let nodes = 0..=self.root();
            if !nodes.contains(&tail) || !nodes.contains(&head) || flow < 0 || flow > capacity {
                return Err(AuditError(format!("arc {arc} from {tail} to {head} carries {flow} of {capacity}")));
            }
            balance[tail as usize] -= flow;
            balance[head as usize] += flow;
            cost += i128::from(price) * i128::from(flow);
            if optimal {
                if arc >= self.arc_count && flow != 0 {
                    return Err(AuditError(format!("artificial arc {arc} carries {flow}")));
                }
                let reduced = price - self.peek_node(tail, POTENTIAL) + self.peek_node(head, POTENTIAL);
                let right = match state {
                    BASIC => reduced == 0,
                    LOWER => flow == 0 && (reduced >= 0 || arc >= self.arc_count),
                    UPPER => flow == capacity && reduced <= 0,
                    _ => false,
                };
                if !right {
                    return Err(AuditError(format!(
                        "arc {arc} in state {state} with flow {flow} has reduced cost {reduced}"
                    )));
                }
            }
        }
        match balance.iter().position(|left| *left != 0) {
            Some(node) => Err(AuditError(format!("{} is left over at node {node}", balance[node]))),
            None => Ok(cost),
        }
    }
}

impl Program for Flow {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("generate");
        let network = Network {
            nodes: memory.allocate("nodes", (self.nodes + 1) * NODE_WORDS),
            arcs: memory.allocate("arcs", (self.arcs + self.nodes) * ARC_WORDS),
            node_count: self.nodes,
            arc_count: self.arcs,
        };
        network.generate(memory.main(), self.seed);
        memory.phase("simplex");
        let (optimal, pivots) = network.simplex(memory, self.pivots);
        memory.phase("verify");
        let cost = network.audit(optimal, self.seed).map_err(|error| error.of(INFO.name))?;
        let verified = if optimal {
            "bounds, balance, and optimality by reduced costs"
        } else {
            "bounds and balance; stopped before the optimum by the number of operations"
        };
        let figures = vec![("nodes", self.nodes as f64), ("arcs", self.arcs as f64), ("cost", cost as f64)];
        Ok(Answer { operations: pivots, checksum: mix(cost as u64), verified, figures })
    }
}
