//! B+tree lookups.
//!
//! Source: the mitosis-workload-btree program that FlexMem (ATC 2024; 315 million pairs, 20 billion lookups, 64 GB) and
//! Tuna use: order 6, an element of a key and 15 words, one allocation each. Allocation: one heap in which elements and
//! nodes lie as they were made. Phases: "load" (a single thread inserts scattered keys until the heap is full), "run"
//! (lookups of keys that are there, all threads; the element is read), "verify". Check: each lookup finds its key's
//! element; a walk of the leaves meets every key once, in order, with its element whole; keys never inserted are absent.

use crate::memory::{Lane, Memory};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo, check, wrong};
use crate::random::{Random, mix};
use crate::service::{Budget, serve};
use crate::tree::{Heap, Tree};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "btree",
    description: "random lookups in a B+tree built by insertion",
    source: "FlexMem, ATC 2024; Tuna; mitosis-workload-btree",
    operation: "lookups",
    open_ended: true,
    options: &[("order", "children of a node, 3 to 256 (6)"), ("element", "words of an element, 2 to 512 (16)")],
    build: |settings| Ok(Box::new(Btree::new(settings)?)),
};

struct Btree {
    bytes: u64,
    order: usize,
    element_words: usize,
    budget: Budget,
    seed: u64,
}

impl Btree {
    fn new(settings: &Settings<'_>) -> Result<Btree, WorkloadError> {
        Ok(Btree {
            bytes: settings.size(),
            order: settings.option("order", 6, "3 to 256", |order| (3..=256).contains(&order))?,
            element_words: settings.option("element", 16, "2 to 512 words", |words| (2..=512).contains(&words))?,
            budget: Budget::of(settings, settings.size() / 128),
            seed: settings.seed(),
        })
    }
}

impl Program for Btree {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("load");
        let (seed, words) = (self.seed, self.element_words);
        // `mix` is one-to-one, so the keys of different numbers differ.
        let key_of = move |number: u64| mix(number.wrapping_add(seed.rotate_left(32)));
        let mut heap = Heap::new(memory, "heap", self.bytes);
        let lane = memory.main();
        let full = || wrong(INFO.name, "the heap has no room for a single element");
        let mut tree = Tree::new(lane, &mut heap, self.order).ok_or_else(full)?;
        while heap.free_words() >= words + tree.most_words_per_insertion() {
            let key = key_of(tree.count());
            let element = heap.take(words).ok_or_else(full)?;
            heap.words.write_span(lane, element..element + words, |index| key.wrapping_add((index - element) as u64));
            tree.insert(lane, &mut heap, key, element);
        }

        memory.phase("run");
        let mut clients: Vec<(Random, u64)> =
            (0..memory.threads()).map(|thread| (Random::new(seed, thread as u64), 0)).collect();
        let (tree, heap) = (&tree, &heap);
        let operations = serve(memory, self.budget, &mut clients, 16, |lane, (random, wrong)| {
            let key = key_of(random.below(tree.count()));
            let mut right = false;
            if let Some(element) = tree.find(lane, heap, key)
                && element + words <= heap.words.len()
            {
                let mut expected = key;
                right = true;
                heap.words.read_span(lane, element..element + words, |word| {
                    right &= word == expected;
                    expected = expected.wrapping_add(1);
                });
            }
            lane.compute(10);
            *wrong += u64::from(!right);
        });

        memory.phase("verify");
        let bad: u64 = clients.iter().map(|(_, wrong)| wrong).sum();
        check(INFO.name, bad == 0, || format!("{bad} of {operations} lookups found no element or a wrong one"))?;
        let mut checksum = 0u64;
        let audit = tree.audit(heap, |key, element| {
            let whole = element + words <= heap.words.len()
                && (0..words).all(|word| heap.words.peek(element + word) == key.wrapping_add(word as u64));
            checksum = checksum.rotate_left(1) ^ key;
            if whole { Ok(()) } else { Err(AuditError(format!("the element of key {key:#x} is damaged"))) }
        });
        audit.map_err(|error| error.of(INFO.name))?;
        let found = tree.count();
        Ok(Answer {
            operations,
            checksum,
            verified: "every lookup, the order of all keys, and every element",
            figures: vec![("pairs", found as f64), ("levels", tree.depth() as f64)],
        })
    }
}
