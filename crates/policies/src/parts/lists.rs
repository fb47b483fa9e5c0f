//! Doubly linked lists of pages in two dense columns: every operation is O(1), and a page is in one list at most.
//!
//! In: ids (of pages or of blocks) and list numbers. Out: the order of each list. Must not: know what a list means, or
//! count its members; a removal needs no list number, so whole lists can be joined without touching their members.

/// Bytes a list costs for each id: a link each way.
pub const BYTES_PER_ENTRY: usize = 8;

/// Most lists one [`Lists`] can hold.
pub const MOST_LISTS: usize = 1 << 16;

/// A link is 0 for "in no list", an id plus one, or the anchor of a list, counted down from the largest number.
const UNLINKED: u32 = 0;
const FIRST_ANCHOR: u32 = u32::MAX - (MOST_LISTS as u32 - 1);

/// See the module's header.
#[derive(Clone, Debug)]
pub struct Lists {
    /// Towards the front and towards the back, by id.
    before: Vec<u32>,
    after: Vec<u32>,
    /// The same two links of each anchor: the back and the front of its list.
    anchor_before: Vec<u32>,
    anchor_after: Vec<u32>,
}

impl Lists {
    /// `count` empty lists.
    ///
    /// # Panics
    /// When `count` is above [`MOST_LISTS`].
    pub fn new(count: usize) -> Lists {
        assert!(count <= MOST_LISTS, "at most {MOST_LISTS} lists, not {count}");
        let anchors: Vec<u32> = (0..count).map(anchor).collect();
        Lists { before: Vec::new(), after: Vec::new(), anchor_before: anchors.clone(), anchor_after: anchors }
    }

    /// Makes room for the ids 0 to `length - 1`.
    pub fn fit(&mut self, length: usize) {
        if self.before.len() < length {
            self.before.resize(length, UNLINKED);
            self.after.resize(length, UNLINKED);
        }
    }

    /// Adds empty lists, up to `count` of them in all.
    ///
    /// # Panics
    /// When `count` is above [`MOST_LISTS`].
    pub fn add_lists(&mut self, count: usize) {
        assert!(count <= MOST_LISTS, "at most {MOST_LISTS} lists, not {count}");
        let added = self.anchor_before.len()..count.max(self.anchor_before.len());
        self.anchor_before.extend(added.clone().map(anchor));
        self.anchor_after.extend(added.map(anchor));
    }

    /// Bytes this structure occupies.
    pub fn memory_bytes(&self) -> usize {
        (self.before.capacity() + self.after.capacity()) * size_of::<u32>()
    }

    /// Whether an id is in some list.
    pub fn is_linked(&self, id: u32) -> bool {
        self.before.get(id as usize).is_some_and(|&link| link != UNLINKED)
    }

    /// Puts an id that is in no list at the front of one.
    pub fn push_front(&mut self, list: usize, id: u32) {
        let second = self.anchor_after[list];
        self.link(anchor(list), id, second);
    }

    /// Puts an id that is in no list at the back of one.
    pub fn push_back(&mut self, list: usize, id: u32) {
        let last = self.anchor_before[list];
        self.link(last, id, anchor(list));
    }

    /// Takes an id out of the list it is in. Returns whether it was in one.
    pub fn remove(&mut self, id: u32) -> bool {
        if !self.is_linked(id) {
            return false;
        }
        let (before, after) = (self.before[id as usize], self.after[id as usize]);
        self.set_after(before, after);
        self.set_before(after, before);
        self.before[id as usize] = UNLINKED;
        self.after[id as usize] = UNLINKED;
        true
    }

    /// Appends the whole of list `from`, in its order, behind the back of list `to`.
    pub fn splice_back(&mut self, from: usize, to: usize) {
        let (first, last) = (self.anchor_after[from], self.anchor_before[from]);
        if from == to || first == anchor(from) {
            return;
        }
        let old_last = self.anchor_before[to];
        self.set_after(old_last, first);
        self.set_before(first, old_last);
        self.set_after(last, anchor(to));
        self.anchor_before[to] = last;
        self.anchor_before[from] = anchor(from);
        self.anchor_after[from] = anchor(from);
    }

    /// The id at the front.
    pub fn front(&self, list: usize) -> Option<u32> {
        id_of(self.anchor_after[list])
    }

    /// The id at the back.
    pub fn back(&self, list: usize) -> Option<u32> {
        id_of(self.anchor_before[list])
    }

    /// The neighbour of a listed id towards the front.
    pub fn toward_front(&self, id: u32) -> Option<u32> {
        id_of(self.before[id as usize])
    }

    /// The neighbour of a listed id towards the back.
    pub fn toward_back(&self, id: u32) -> Option<u32> {
        id_of(self.after[id as usize])
    }

    /// The ids of a list from its back to its front.
    pub fn back_to_front(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.back(list), |&id| self.toward_front(id))
    }

    fn link(&mut self, before: u32, id: u32, after: u32) {
        debug_assert!(!self.is_linked(id), "{id} is in a list already");
        self.before[id as usize] = before;
        self.after[id as usize] = after;
        self.set_after(before, id + 1);
        self.set_before(after, id + 1);
    }

    fn set_after(&mut self, link: u32, to: u32) {
        if link >= FIRST_ANCHOR {
            self.anchor_after[(link - FIRST_ANCHOR) as usize] = to;
        } else {
            self.after[link as usize - 1] = to;
        }
    }

    fn set_before(&mut self, link: u32, to: u32) {
        if link >= FIRST_ANCHOR {
            self.anchor_before[(link - FIRST_ANCHOR) as usize] = to;
        } else {
            self.before[link as usize - 1] = to;
        }
    }
}

fn anchor(list: usize) -> u32 {
    FIRST_ANCHOR + list as u32
}

fn id_of(link: u32) -> Option<u32> {
    (link < FIRST_ANCHOR).then(|| link - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// The lists behave as deques do, whatever is pushed, removed and joined.
        #[test]
        fn lists_behave_as_deques(steps in proptest::collection::vec((0u8..4, 0u32..40, 0usize..3, 0usize..3), 1..200)) {
            let mut lists = Lists::new(3);
            lists.fit(40);
            let mut model: Vec<VecDeque<u32>> = vec![VecDeque::new(); 3];
            for (kind, id, list, other) in steps {
                match kind {
                    0 | 1 if lists.is_linked(id) => {}
                    0 => { lists.push_front(list, id); model[list].push_front(id); }
                    1 => { lists.push_back(list, id); model[list].push_back(id); }
                    2 => {
                        let was = model.iter().any(|deque| deque.contains(&id));
                        prop_assert_eq!(lists.remove(id), was);
                        model.iter_mut().for_each(|deque| deque.retain(|&other| other != id));
                    }
                    _ => if list != other {
                        lists.splice_back(list, other);
                        let moved = std::mem::take(&mut model[list]);
                        model[other].extend(moved);
                    },
                }
                for (list, deque) in model.iter().enumerate() {
                    prop_assert_eq!(lists.back_to_front(list).collect::<Vec<_>>(), deque.iter().rev().copied().collect::<Vec<_>>());
                    prop_assert_eq!(lists.front(list), deque.front().copied());
                }
            }
        }
    }
}
