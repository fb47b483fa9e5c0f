//! An engine after Silo: optimistic concurrency control over records that carry a transaction number.
//!
//! Source: Tu et al., "Speedy transactions in multicore in-memory databases" (SOSP 2013). In: keys, records, and
//! transactions read by read. Out: commits that are serialisable, and aborts. A commit locks its writes in the order of
//! their addresses, checks that nothing it read has changed, then installs. A lock that is taken aborts instead of
//! waiting, so that a thread never waits for one that has no turn. Must not: know any schema.

use std::sync::atomic::{Ordering, fence};

use crate::memory::{Lane, Memory};
use crate::program::AuditError;
use crate::tree::{Heap, Tree};

/// The bit of a record's first word that is its lock; the rest counts its versions.
const LOCK: u64 = 1 << 63;
/// Children of an index node: Masstree's 15 keys.
const ORDER: usize = 16;
/// Bytes an index entry takes when keys come in ascending order: leaves keep 8 of their 15 places.
pub(super) const INDEX_BYTES: u64 = 37;

/// The records and their index, in one heap.
pub(super) struct Database {
    heap: Heap,
    tree: Tree,
}

/// Why a transaction cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It gave way to another, and starts over.
    Conflict,
    /// There is no such key. Nothing is ever deleted, so data was lost.
    Missing,
}

/// What a transaction has read, and what it will write.
#[derive(Clone, Debug, Default)]
pub(super) struct Transaction {
    reads: Vec<(usize, u64)>,
    writes: Vec<(usize, usize, u64)>,
}

impl Transaction {
    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.reads.clear();
        self.writes.clear();
    }

    /// Will set word `word` (from 0) of a record to `value`.
    pub(super) fn write(&mut self, record: usize, word: usize, value: u64) {
        self.writes.push((record, word, value));
    }
}

impl Database {
    /// An empty database with room for `bytes`; `None` if that is not enough for the index's root.
    pub(super) fn new<M: Memory>(memory: &mut M, bytes: u64) -> Option<Database> {
        let mut heap = Heap::new(memory, "database", bytes);
        let tree = Tree::new(memory.main(), &mut heap, ORDER)?;
        Some(Database { heap, tree })
    }

    /// Records.
    pub(super) fn records(&self) -> u64 {
        self.tree.count()
    }

    /// Loads a record of `words` words; whether there was room. Only before transactions run.
    pub(super) fn load<L: Lane>(&mut self, lane: &mut L, key: u64, words: usize, value: impl Fn(usize) -> u64) -> bool {
        if self.heap.free_words() < words + 1 + self.tree.most_words_per_insertion() {
            return false;
        }
        let Some(record) = self.heap.take(words + 1) else { return false };
        self.heap.words.write_span(lane, record..record + words + 1, |index| {
            if index == record { 0 } else { value(index - record - 1) }
        });
        self.tree.insert(lane, &mut self.heap, key, record)
    }

    /// Reads the first `words` words of a key's record into `into`; the record's address.
    pub(super) fn read<L: Lane>(
        &self,
        lane: &mut L,
        transaction: &mut Transaction,
        key: u64,
        words: usize,
        into: &mut Vec<u64>,
    ) -> Result<usize, Refused> {
        into.clear();
        let record = self.tree.find(lane, &self.heap, key).ok_or(Refused::Missing)?;
        if record + words + 1 > self.heap.words.len() {
            return Err(Refused::Missing);
        }
        let version = self.heap.words.chase(lane, record);
        fence(Ordering::Acquire);
        self.heap.words.read_span(lane, record + 1..record + 1 + words, |word| into.push(word));
        fence(Ordering::Acquire);
        if version & LOCK != 0 || self.heap.words.get(lane, record) != version {
            return Err(Refused::Conflict);
        }
        transaction.reads.push((record, version));
        Ok(record)
    }

    /// Commits, or changes nothing.
    pub(super) fn commit<L: Lane>(&self, lane: &mut L, transaction: &mut Transaction) -> Result<(), Refused> {
        transaction.writes.sort_by_key(|&(record, _, _)| record);
        let mut locked: Vec<(usize, u64)> = Vec::new();
        let mut newest = 0;
        let mut holds = true;
        for &(record, _, _) in &transaction.writes {
            if locked.last().is_some_and(|&(last, _)| last == record) {
                continue;
            }
            let version = self.heap.words.get(lane, record);
            if version & LOCK != 0 || !self.heap.words.replace(lane, record, version, version | LOCK) {
                holds = false;
                break;
            }
            newest = newest.max(version);
            locked.push((record, version));
        }
        for &(record, version) in &transaction.reads {
            let now = self.heap.words.get(lane, record);
            let mine = locked.binary_search_by_key(&record, |&(record, _)| record).is_ok();
            holds &= now & !LOCK == version && (mine || now & LOCK == 0);
            newest = newest.max(version);
        }
        if holds {
            for &(record, word, value) in &transaction.writes {
                self.heap.words.set(lane, record + 1 + word, value);
            }
        }
        for &(record, version) in &locked {
            let after = if holds { newest + 1 } else { version };
            // Released by an atomic exchange, which orders the writes before it.
            self.heap.words.replace(lane, record, version | LOCK, after);
        }
        if holds { Ok(()) } else { Err(Refused::Conflict) }
    }

    /// Visits every record unseen, in key order; says what is wrong with index or locks.
    pub(super) fn audit(
        &self,
        mut visit: impl FnMut(u64, &dyn Fn(usize) -> u64) -> Result<(), AuditError>,
    ) -> Result<u64, AuditError> {
        self.tree.audit(&self.heap, |key, record| {
            if record == 0 || record >= self.heap.words.len() || self.heap.words.peek(record) & LOCK != 0 {
                return Err(AuditError(format!("the record of key {key:#x} is lost or still locked")));
            }
            visit(key, &|word| self.heap.words.peek((record + 1 + word).min(self.heap.words.len() - 1)))
        })
    }
}
