//! A B+tree in a program's own memory: nodes and what they point to come from one heap, as malloc would mix them.
//!
//! In: keys and the heap addresses of their elements, inserted one by one. Out: lookups by any number of threads. Must
//! not: be changed while others look up; building is serial, as in the index workloads of the papers.
//!
//! A node of order `n` has `1 + (n - 1) + n` words: a header (key count, and whether it is a leaf), the keys, and the
//! children; in a leaf the children are elements, and the last word leads to the next leaf.

use crate::memory::{Array, Lane, Memory};
use crate::program::AuditError;

const LEAF: u64 = 1 << 32;
/// The word offset 0 is never an element or a node, so it can stand for "nothing".
const NOTHING: u64 = 0;

/// A bump allocator over one array of words.
pub struct Heap {
    /// The words.
    pub words: Array<u64>,
    used: usize,
}

impl Heap {
    /// A heap of `bytes` under `name`.
    pub fn new<M: Memory>(memory: &mut M, name: &'static str, bytes: u64) -> Heap {
        // The first line stays unused so that no offset is 0.
        Heap { words: memory.allocate(name, (bytes / 8) as usize), used: 8 }
    }

    /// Room for `words` words, as the offset of the first; `None` when the heap is full.
    pub fn take(&mut self, words: usize) -> Option<usize> {
        let start = self.used;
        if start + words > self.words.len() {
            return None;
        }
        self.used += words;
        Some(start)
    }

    /// Words not taken yet.
    pub fn free_words(&self) -> usize {
        self.words.len() - self.used
    }
}

/// The tree. Its nodes lie in a [`Heap`] passed to every call.
#[derive(Clone, Debug)]
pub struct Tree {
    order: usize,
    root: usize,
    depth: usize,
    count: u64,
}

impl Tree {
    /// An empty tree of nodes with at most `order` children, 3 to 64. `None` when the heap has no room for its root.
    pub fn new<L: Lane>(lane: &mut L, heap: &mut Heap, order: usize) -> Option<Tree> {
        let root = heap.take(2 * order)?;
        heap.words.set(lane, root, LEAF);
        heap.words.set(lane, root + 2 * order - 1, NOTHING);
        Some(Tree { order, root, depth: 1, count: 0 })
    }

    /// Elements in the tree.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Levels.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Words an insertion may need at most for nodes: a split on every level and a new root.
    pub fn most_words_per_insertion(&self) -> usize {
        (self.depth + 1) * 2 * self.order
    }

    /// The element of a key.
    #[inline]
    pub fn find<L: Lane>(&self, lane: &mut L, heap: &Heap, key: u64) -> Option<usize> {
        let leaf = self.descend(lane, heap, key, |_, _| {});
        let header = heap.words.chase(lane, leaf);
        let keys = (header & (LEAF - 1)) as usize;
        for place in 0..keys.min(self.order) {
            if heap.words.get(lane, leaf + 1 + place) == key {
                return Some(heap.words.get(lane, leaf + self.order + place) as usize);
            }
        }
        None
    }

    /// Inserts a key that is not there yet. The caller sees to it that the heap has
    /// [`Tree::most_words_per_insertion`] free words; otherwise nothing changes and the answer is `false`.
    pub fn insert<L: Lane>(&mut self, lane: &mut L, heap: &mut Heap, key: u64, element: usize) -> bool {
        if heap.free_words() < self.most_words_per_insertion() {
            return false;
        }
        let mut path: Vec<(usize, usize)> = Vec::with_capacity(self.depth);
        let leaf = self.descend(lane, heap, key, |node, child| path.push((node, child)));
        let keys = self.keys(lane, heap, leaf);
        let place = (0..keys).find(|&place| heap.words.get(lane, leaf + 1 + place) > key).unwrap_or(keys);
        self.open(lane, heap, leaf, keys, place, place);
        heap.words.set(lane, leaf + 1 + place, key);
        heap.words.set(lane, leaf + self.order + place, element as u64);
        heap.words.set(lane, leaf, LEAF | (keys + 1) as u64);
        self.count += 1;
        let mut full = (keys + 1 == self.order - 1).then(|| self.split_leaf(lane, heap, leaf)).flatten();
        while let Some((separator, right)) = full {
            let Some((parent, child)) = path.pop() else {
                let old = self.root;
                let Some(root) = heap.take(2 * self.order) else { return false };
                heap.words.set(lane, root, 1);
                heap.words.set(lane, root + 1, separator);
                heap.words.set(lane, root + self.order, old as u64);
                heap.words.set(lane, root + self.order + 1, right as u64);
                self.root = root;
                self.depth += 1;
                break;
            };
            let keys = self.keys(lane, heap, parent);
            self.open(lane, heap, parent, keys, child, child + 1);
            heap.words.set(lane, parent + 1 + child, separator);
            heap.words.set(lane, parent + self.order + child + 1, right as u64);
            heap.words.set(lane, parent, (keys + 1) as u64);
            full = (keys + 1 == self.order - 1).then(|| self.split_inner(lane, heap, parent)).flatten();
        }
        true
    }

    /// Walks all leaves unseen and says what is wrong with the tree, or how many elements it has; `visit` is given each
    /// key and element in order.
    pub fn audit(
        &self,
        heap: &Heap,
        mut visit: impl FnMut(u64, usize) -> Result<(), AuditError>,
    ) -> Result<u64, AuditError> {
        let within = |node: usize| node > 0 && node + 2 * self.order <= heap.words.len();
        let mut node = self.root;
        for _ in 1..self.depth {
            node = heap.words.peek(node + self.order) as usize;
            if !within(node) {
                return Err(AuditError(format!("a child lies at word {node}, outside the heap")));
            }
        }
        let (mut count, mut last, mut leaves) = (0u64, None, 0u64);
        while node != NOTHING as usize {
            let header = heap.words.peek(node);
            let keys = (header & (LEAF - 1)) as usize;
            if header & LEAF == 0 || keys >= self.order || leaves > self.count {
                return Err(AuditError(format!("the node at word {node} is no leaf of this tree")));
            }
            for place in 0..keys {
                let key = heap.words.peek(node + 1 + place);
                if last.is_some_and(|last| last >= key) {
                    return Err(AuditError(format!("keys are out of order in the leaf at word {node}")));
                }
                last = Some(key);
                visit(key, heap.words.peek(node + self.order + place) as usize)?;
                count += 1;
            }
            leaves += 1;
            node = heap.words.peek(node + 2 * self.order - 1) as usize;
            if node != NOTHING as usize && !within(node) {
                return Err(AuditError(format!("a leaf leads to word {node}, outside the heap")));
            }
        }
        if count == self.count {
            Ok(count)
        } else {
            Err(AuditError(format!("{count} keys are in the leaves, not {}", self.count)))
        }
    }

    #[inline]
    fn descend<L: Lane>(&self, lane: &mut L, heap: &Heap, key: u64, mut seen: impl FnMut(usize, usize)) -> usize {
        let mut node = self.root;
        for _ in 1..self.depth {
            let keys = self.keys(lane, heap, node);
            let mut child = 0;
            while child < keys && heap.words.get(lane, node + 1 + child) <= key {
                child += 1;
            }
            lane.compute(2 * child as u32 + 4);
            seen(node, child);
            node = heap.words.get(lane, node + self.order + child) as usize;
        }
        node
    }

    #[inline]
    fn keys<L: Lane>(&self, lane: &mut L, heap: &Heap, node: usize) -> usize {
        ((heap.words.chase(lane, node) & (LEAF - 1)) as usize).min(self.order - 1)
    }

    /// Makes room for a key at `place` and a child at `child_place`.
    fn open<L: Lane>(&self, lane: &mut L, heap: &Heap, node: usize, keys: usize, place: usize, child_place: usize) {
        for from in (place..keys).rev() {
            let key = heap.words.get(lane, node + 1 + from);
            heap.words.set(lane, node + 2 + from, key);
        }
        let children = keys + (child_place - place);
        for from in (child_place..children).rev() {
            let child = heap.words.get(lane, node + self.order + from);
            heap.words.set(lane, node + self.order + from + 1, child);
        }
    }

    fn split_leaf<L: Lane>(&mut self, lane: &mut L, heap: &mut Heap, leaf: usize) -> Option<(u64, usize)> {
        let order = self.order;
        let right = heap.take(2 * order)?;
        let (all, keep) = (order - 1, order / 2);
        for place in keep..all {
            let key = heap.words.get(lane, leaf + 1 + place);
            let element = heap.words.get(lane, leaf + order + place);
            heap.words.set(lane, right + 1 + place - keep, key);
            heap.words.set(lane, right + order + place - keep, element);
        }
        let next = heap.words.get(lane, leaf + 2 * order - 1);
        heap.words.set(lane, right + 2 * order - 1, next);
        heap.words.set(lane, leaf + 2 * order - 1, right as u64);
        heap.words.set(lane, right, LEAF | (all - keep) as u64);
        heap.words.set(lane, leaf, LEAF | keep as u64);
        let separator = heap.words.get(lane, right + 1);
        Some((separator, right))
    }

    fn split_inner<L: Lane>(&mut self, lane: &mut L, heap: &mut Heap, node: usize) -> Option<(u64, usize)> {
        let order = self.order;
        let right = heap.take(2 * order)?;
        let (all, keep) = (order - 1, (order - 1) / 2);
        let separator = heap.words.get(lane, node + 1 + keep);
        for place in keep + 1..all {
            let key = heap.words.get(lane, node + 1 + place);
            heap.words.set(lane, right + place - keep, key);
        }
        for child in keep + 1..order {
            let below = heap.words.get(lane, node + order + child);
            heap.words.set(lane, right + order + child - keep - 1, below);
        }
        heap.words.set(lane, right, (all - keep - 1) as u64);
        heap.words.set(lane, node, keep as u64);
        Some((separator, right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::mix;
    use crate::traced::{TraceSummary, TracedMemory};

    #[test]
    fn every_key_is_found_and_no_other_for_every_order() {
        for order in [3, 4, 6, 16, 64] {
            let mut sink = TraceSummary::new();
            let mut memory = TracedMemory::new(1, &mut sink);
            let mut heap = Heap::new(&mut memory, "heap", 4 << 20);
            let lane = memory.main();
            let mut tree = Tree::new(lane, &mut heap, order).unwrap();
            for number in 0..3000u64 {
                assert!(tree.insert(lane, &mut heap, mix(number), number as usize + 1));
            }
            for number in 0..6000u64 {
                let expected = (number < 3000).then_some(number as usize + 1);
                assert_eq!(tree.find(lane, &heap, mix(number)), expected, "order {order}");
            }
            assert_eq!(tree.audit(&heap, |_, _| Ok(())), Ok(3000), "order {order}");
        }
    }
}
