//! A memcached-like store: hash table, chained items, values of one size, zipf gets.
//!
//! Source: FlexHM (TACO 2022), section 7.1: 500,000 items of 100 KB under zipf with 80 % of the references in the top
//! 20 % of the data; what a get does (item lock by hash, bucket, chain, reference count up, value, reference count down)
//! follows memcached's design. Allocation: item locks, buckets, slabs. Phases: "load" (items set one after another, in
//! an order that has nothing to do with their popularity), "run", "verify". Check: each get finds the whole value that
//! was set last; at the end every item is there with its value, and versions add up to the updates.
//!
//! Clients reach the paper's server by a port of 20 Gb/s (section 7.2.2). With `network` each operation of a traced run
//! waits its thread's share of the port: threads times the bytes of the value over the port's rate, so that all together
//! never move more than it does. A traced program has no clock, so the wait is computing that comes on top of waiting for
//! memory; in truth the longer of the two counts. Memory weighs a little more here than behind a real port. A wait holds a
//! core, so there should be no more threads than cores. Native runs do not wait; loading needs no port.

use std::ops::Range;

use crate::ahead::Ahead;
use crate::memory::{Array, LINE_BYTES, Lane, Memory};
use crate::program::{Answer, Program, Settings, WorkloadError, WorkloadInfo, check};
use crate::random::{Permutation, Random, Zipf, mix};
use crate::service::{Budget, serve};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "memcached",
    description: "in-memory key-value store under zipf: 80 % of the references in 20 % of the data",
    source: "FlexHM, TACO 2022, section 7.1; memcached",
    operation: "gets and updates",
    open_ended: true,
    options: &[
        ("value", "bytes of a value, 64 to 1048576 (1024; the paper's are 102400)"),
        ("updates", "share of the operations that set a new value (0)"),
        ("top", "share of the data that gets `mass` of the references (0.2)"),
        ("mass", "share of the references that `top` gets (0.8)"),
        ("network", "bits that the port moves in a cycle of a core, shared by all threads; 0: no network (0)"),
    ],
    build: |settings| Ok(Box::new(Memcached::new(settings)?)),
};

/// Words before the value: next item (1-based), key, reference count, version.
const HEADER_WORDS: usize = 4;
/// Words of a value that pass the port at once. A value's whole wait on one access would be longer than a policy's interval
/// where time is scaled.
const PIECE_WORDS: usize = 512;
const LINE_WORDS: usize = LINE_BYTES as usize / 8;
/// Item locks; memcached has 2^13 of them for more than four threads.
const LOCKS: usize = 1 << 13;
/// Gets that each take a reference; only this many can hold one at once.
const FREE: u64 = 0;
const TAKEN: u64 = 1;

struct Memcached {
    items: usize,
    value_words: usize,
    buckets: usize,
    updates: f64,
    top: f64,
    mass: f64,
    network: f64,
    budget: Budget,
    seed: u64,
}

struct Client {
    random: Random,
    ahead: Ahead,
    updates: u64,
    wrong: u64,
}

struct Store {
    locks: Array<u64>,
    buckets: Array<u64>,
    slabs: Array<u64>,
    item_words: usize,
    /// Cycles that a thread waits for the port for each word of a value.
    port_cycles: f64,
    seed: u64,
}

impl Memcached {
    fn new(settings: &Settings<'_>) -> Result<Memcached, WorkloadError> {
        let value = settings.option("value", 1024u64, "64 to 1048576 bytes", |v| (64..=1 << 20).contains(&v))?;
        let value_words = value.div_ceil(8) as usize;
        // Two thirds of a bucket an item on average: between memcached's growth points.
        let per_item = ((HEADER_WORDS + value_words) * 8) as u64 + 12;
        let items = ((settings.size().saturating_sub(LOCKS as u64 * 8)) / per_item).max(16) as usize;
        let between = |share: f64| share > 0.0 && share < 1.0;
        Ok(Memcached {
            items,
            value_words,
            buckets: items * 3 / 2,
            updates: settings.option("updates", 0.0, "a share of 0 to 1", |s| (0.0..=1.0).contains(&s))?,
            top: settings.option("top", 0.2, "a share between 0 and 1", between)?,
            mass: settings.option("mass", 0.8, "a share between 0 and 1", between)?,
            network: settings.option("network", 0.0, "0 or more bits a cycle", |n: f64| n >= 0.0 && n.is_finite())?,
            budget: Budget::of(settings, (settings.size() / 512).max(1000)),
            seed: settings.seed(),
        })
    }
}

impl Store {
    fn word(&self, key: u64, version: u64, word: usize) -> u64 {
        mix(self.seed ^ key ^ version.rotate_left(40)).wrapping_add(word as u64)
    }

    fn lock<L: Lane>(&self, lane: &mut L, hash: u64) -> usize {
        let lock = hash as usize % LOCKS;
        // Threads of a traced run never stop inside an operation, so there the lock is always free.
        while !self.locks.replace(lane, lock, FREE, TAKEN) {
            std::hint::spin_loop();
        }
        lock
    }

    fn unlock<L: Lane>(&self, lane: &mut L, lock: usize) {
        // The atomic update releases what was written under the lock.
        self.locks.update(lane, lock, |_| FREE);
    }

    fn bucket(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.buckets.len() as u128) >> 64) as usize
    }

    fn insert<L: Lane>(&self, lane: &mut L, item: usize, key: u64) {
        let hash = mix(key);
        let start = item * self.item_words;
        let bucket = self.bucket(hash);
        let next = self.buckets.get(lane, bucket);
        self.slabs.set(lane, start, next);
        self.slabs.set(lane, start + 1, key);
        self.slabs.set(lane, start + 2, 0);
        self.slabs.set(lane, start + 3, 0);
        let value = start + HEADER_WORDS;
        self.slabs.write_span(lane, value..start + self.item_words, |index| self.word(key, 0, index - value));
        self.buckets.set(lane, bucket, item as u64 + 1);
    }

    fn find<L: Lane>(&self, lane: &mut L, hash: u64, key: u64) -> Option<usize> {
        let mut item = self.buckets.get(lane, self.bucket(hash));
        while item != 0 && (item as usize) * self.item_words <= self.slabs.len() {
            let start = (item as usize - 1) * self.item_words;
            if self.slabs.chase(lane, start + 1) == key {
                return Some(start);
            }
            item = self.slabs.get(lane, start);
        }
        None
    }

    /// Asks the host for what an operation on a key will touch first: keys were given to items in order.
    fn expect(&self, key: u64) {
        self.buckets.expect(self.bucket(mix(key)));
        let start = key as usize * self.item_words;
        (0..4).for_each(|line| self.slabs.expect(start + line * 8));
    }

    /// Hands on the words of a value piece by piece, as they pass the port: all at once without a network.
    fn pass<L: Lane>(&self, lane: &mut L, value: Range<usize>, mut piece: impl FnMut(&mut L, Range<usize>)) {
        if self.port_cycles == 0.0 {
            piece(lane, value);
            return;
        }
        let mut start = value.start;
        while start < value.end {
            // A piece ends where a line does: half a line would count as another access.
            let end = ((start + PIECE_WORDS) / LINE_WORDS * LINE_WORDS).min(value.end);
            lane.compute((self.port_cycles * (end - start) as f64).round() as u32);
            piece(lane, start..end);
            start = end;
        }
    }

    /// One get; whether the value was whole and right.
    fn read<L: Lane>(&self, lane: &mut L, key: u64) -> bool {
        let hash = mix(key);
        let lock = self.lock(lane, hash);
        let mut right = false;
        if let Some(start) = self.find(lane, hash, key) {
            self.slabs.add(lane, start + 2, 1);
            let version = self.slabs.get(lane, start + 3);
            let value = start + HEADER_WORDS;
            let mut expected = self.word(key, version, 0);
            right = true;
            self.pass(lane, value..start + self.item_words, |lane, piece| {
                self.slabs.read_span(lane, piece, |word| {
                    right &= word == expected;
                    expected = expected.wrapping_add(1);
                });
            });
            self.slabs.add(lane, start + 2, u64::MAX);
        }
        self.unlock(lane, lock);
        right
    }

    /// One set of a new value; whether the item was there.
    fn update<L: Lane>(&self, lane: &mut L, key: u64) -> bool {
        let hash = mix(key);
        let lock = self.lock(lane, hash);
        let found = self.find(lane, hash, key);
        if let Some(start) = found {
            let version = self.slabs.get(lane, start + 3) + 1;
            self.slabs.set(lane, start + 3, version);
            let value = start + HEADER_WORDS;
            self.pass(lane, value..start + self.item_words, |lane, piece| {
                self.slabs.write_span(lane, piece, |index| self.word(key, version, index - value));
            });
        }
        self.unlock(lane, lock);
        found.is_some()
    }
}

impl Program for Memcached {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("load");
        let item_words = HEADER_WORDS + self.value_words;
        let store = Store {
            locks: memory.allocate("item locks", LOCKS),
            buckets: memory.allocate("buckets", self.buckets),
            slabs: memory.allocate("slabs", self.items * item_words),
            item_words,
            port_cycles: if self.network > 0.0 { memory.threads() as f64 * 64.0 / self.network } else { 0.0 },
            seed: self.seed,
        };
        for item in 0..self.items {
            store.insert(memory.main(), item, item as u64);
        }

        memory.phase("run");
        let zipf = Zipf::with_share(self.items as u64, self.top, self.mass);
        let popularity = Permutation::new(self.items as u64, self.seed);
        let updates = self.updates;
        // An operation's key, and whether it sets.
        let draw = |random: &mut Random| {
            let key = popularity.apply(zipf.draw(random));
            (key, updates > 0.0 && random.unit() < updates)
        };
        let mut clients: Vec<Client> = (0..memory.threads())
            .map(|thread| {
                let random = Random::new(self.seed, thread as u64);
                let ahead = Ahead::of(&random, draw);
                Client { random, ahead, updates: 0, wrong: 0 }
            })
            .collect();
        let grain = (4096 / item_words as u64).clamp(1, 16);
        let operations = serve(memory, self.budget, &mut clients, grain, |lane, client| {
            client.ahead.step(lane, draw, |(key, _)| store.expect(key));
            let (key, sets) = draw(&mut client.random);
            lane.compute(200);
            if sets {
                client.updates += 1;
                client.wrong += u64::from(!store.update(lane, key));
            } else {
                client.wrong += u64::from(!store.read(lane, key));
            }
        });

        memory.phase("verify");
        let wrong: u64 = clients.iter().map(|client| client.wrong).sum();
        check(INFO.name, wrong == 0, || format!("{wrong} of {operations} operations found no item or a wrong value"))?;
        let (mut versions, mut checksum) = (0u64, 0u64);
        for item in 0..self.items {
            let start = item * item_words;
            let (key, references) = (store.slabs.peek(start + 1), store.slabs.peek(start + 2));
            let version = store.slabs.peek(start + 3);
            check(INFO.name, key == item as u64 && references == 0, || {
                format!("item {item} has key {key} and {references} references")
            })?;
            let bad = (0..self.value_words)
                .find(|&word| store.slabs.peek(start + HEADER_WORDS + word) != store.word(key, version, word));
            check(INFO.name, bad.is_none(), || format!("item {item} lost word {}", bad.unwrap_or(0)))?;
            versions += version;
            checksum = checksum.rotate_left(1) ^ store.word(key, version, 0);
        }
        let updates: u64 = clients.iter().map(|client| client.updates).sum();
        check(INFO.name, versions == updates, || format!("versions add up to {versions}, updates to {updates}"))?;
        let Store { locks, buckets, slabs, .. } = store;
        memory.free(slabs);
        memory.free(buckets);
        memory.free(locks);
        Ok(Answer {
            operations,
            checksum,
            verified: "every get, every item's value, and the number of updates",
            figures: vec![
                ("items", self.items as f64),
                ("zipf exponent", zipf.exponent()),
                ("updates", updates as f64),
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::{Parameters, TraceSummary, run_traced};

    /// A thousand operations of two threads on values of 2,045 words.
    fn summary(updates: &str, network: &str) -> TraceSummary {
        let options = [("value", "16360"), ("updates", updates), ("network", network)];
        let options = BTreeMap::from(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
        let parameters = Parameters { threads: 2, operations: Some(1000), options, ..Parameters::new(16 << 20) };
        let mut summary = TraceSummary::new();
        run_traced("memcached", &parameters, &mut summary).unwrap();
        summary
    }

    #[test]
    fn a_port_is_shared_and_adds_no_access() {
        for updates in ["0", "1"] {
            let (without, with) = (summary(updates, "0"), summary(updates, "8"));
            assert_eq!((with.reads, with.writes), (without.reads, without.writes));
            // 64 bits of a word at 8 a cycle, and the other thread's word too.
            assert_eq!(with.compute_cycles - without.compute_cycles, 1000 * 2045 * 16);
        }
    }
}
