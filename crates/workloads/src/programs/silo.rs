//! Silo under YCSB-C: zipf reads of 100-byte records, as transactions.
//!
//! Source: FlexMem (ATC 2024): Silo with YCSB-C, 300 million lookups a thread, 89.5 GB; MEMTIS: YCSB at scale 400,000;
//! Cooper et al., "YCSB" (SoCC 2010) for zipf 0.99. Allocation: one heap of records and index. Phases: "load" (keys in
//! order until the heap is full), "run" (a transaction reads, or with `writes` also rewrites, a record; between a
//! transaction's steps other threads have their turn, so conflicts are real), "verify". Check: each committed read found
//! a whole version; at the end every record is whole, and versions add up to the writes committed.

use super::silo_engine::{Database, Refused, Transaction};
use crate::memory::{Lane, Memory};
use crate::program::{Answer, AuditError, Program, Settings, WorkloadError, WorkloadInfo, check, wrong};
use crate::random::{Permutation, Random, Zipf, mix};
use crate::service::{Budget, serve_steps};

pub(super) const INFO: WorkloadInfo = WorkloadInfo {
    name: "silo-ycsb-c",
    description: "Silo-like transactions under YCSB-C: single zipf reads",
    source: "Silo, SOSP 2013; YCSB, SoCC 2010; used by FlexMem, MEMTIS, HeMem",
    operation: "transactions",
    open_ended: true,
    options: &[
        ("distribution", "zipf or uniform (zipf)"),
        ("exponent", "of the zipf law, 0 to 3 (0.99)"),
        ("reads", "records a transaction reads, 1 to 100 (1)"),
        ("writes", "share of the transactions that rewrite what they read (0, as YCSB-C; YCSB-A has 0.5)"),
    ],
    build: |settings| Ok(Box::new(Ycsb::new(settings)?)),
};

/// Records at full size: YCSB at scale 400,000, a thousand each. Zipf's law over fewer ranks is flatter: a hundredth of the
/// records takes 75 % of the reads there and 65 % at a thousandth of them. A smaller database's ranks are those of the full
/// one, scaled down, so that caches and fast memory of the same share hold the same.
const FULL_RECORDS: u64 = 400_000_000;
/// Words of a record's value: 100 bytes and the write counter in the first.
const VALUE_WORDS: usize = 14;

struct Ycsb {
    bytes: u64,
    zipf: bool,
    exponent: f64,
    reads: usize,
    writes: f64,
    budget: Budget,
    seed: u64,
}

impl Ycsb {
    fn new(settings: &Settings<'_>) -> Result<Ycsb, WorkloadError> {
        Ok(Ycsb {
            bytes: settings.size(),
            zipf: settings.choice("distribution", &["zipf", "uniform"])? == "zipf",
            exponent: settings.option("exponent", 0.99, "0 to 3", |e| (0.0..=3.0).contains(&e))?,
            reads: settings.option("reads", 1, "1 to 100", |reads| (1..=100).contains(&reads))?,
            writes: settings.option("writes", 0.0, "a share of 0 to 1", |s| (0.0..=1.0).contains(&s))?,
            budget: Budget::of(settings, settings.size() / 128),
            seed: settings.seed(),
        })
    }
}

#[derive(Default)]
struct Client {
    random: Option<Random>,
    transaction: Transaction,
    keys: Vec<u64>,
    at: usize,
    rewrites: bool,
    value: Vec<u64>,
    torn: bool,
    wrong: u64,
    written: u64,
    conflicts: u64,
}

/// What word `word` of a record holds in version `version`.
fn word_of(seed: u64, key: u64, version: u64, word: usize) -> u64 {
    if word == 0 { version } else { mix(seed ^ key ^ version.rotate_left(40)).wrapping_add(word as u64) }
}

impl Program for Ycsb {
    fn run<M: Memory>(&mut self, memory: &mut M) -> Result<Answer, WorkloadError> {
        memory.phase("load");
        let seed = self.seed;
        let room = || wrong(INFO.name, "there is no room for the index");
        let mut database = Database::new(memory, self.bytes).ok_or_else(room)?;
        let mut key = 0;
        while database.load(memory.main(), key, VALUE_WORDS, |word| word_of(seed, key, 0, word)) {
            key += 1;
        }

        memory.phase("run");
        let records = database.records();
        let exponent = if self.zipf { self.exponent } else { 0.0 };
        let ranks = records.max(FULL_RECORDS);
        let zipf = Zipf::new(ranks, exponent);
        let rank_of = |drawn: u64| (u128::from(drawn) * u128::from(records) / u128::from(ranks)) as u64;
        let scatter = Permutation::new(records, seed);
        let (reads, writes, database) = (self.reads, self.writes, &database);
        let mut clients: Vec<Client> = (0..memory.threads())
            .map(|thread| Client { random: Some(Random::new(seed, thread as u64)), ..Client::default() })
            .collect();
        let operations = serve_steps(memory, self.budget, &mut clients, 2, |lane, client| {
            let Some(random) = client.random.as_mut() else { return 1 };
            if client.keys.is_empty() {
                while client.keys.len() < reads {
                    let key = scatter.apply(rank_of(zipf.draw(random)));
                    if !client.keys.contains(&key) || records <= reads as u64 {
                        client.keys.push(key);
                    }
                }
                client.rewrites = random.unit() < writes;
            }
            if client.at == 0 {
                client.transaction.clear();
                client.torn = false;
            }
            lane.compute(40);
            let key = client.keys[client.at];
            match database.read(lane, &mut client.transaction, key, VALUE_WORDS, &mut client.value) {
                Ok(record) => {
                    let version = client.value[0];
                    client.torn |= (1..VALUE_WORDS).any(|word| client.value[word] != word_of(seed, key, version, word));
                    if client.rewrites {
                        for word in 0..VALUE_WORDS {
                            client.transaction.write(record, word, word_of(seed, key, version + 1, word));
                        }
                    }
                    client.at += 1;
                }
                Err(Refused::Conflict) => {
                    client.conflicts += 1;
                    client.at = 0;
                    return 0;
                }
                Err(Refused::Missing) => {
                    client.wrong += 1;
                    client.at = 0;
                    client.keys.clear();
                    return 1;
                }
            }
            if client.at < reads {
                return 0;
            }
            client.at = 0;
            if database.commit(lane, &mut client.transaction).is_err() {
                client.conflicts += 1;
                return 0;
            }
            client.wrong += u64::from(client.torn);
            client.written += if client.rewrites { reads as u64 } else { 0 };
            client.keys.clear();
            1
        });

        memory.phase("verify");
        let bad: u64 = clients.iter().map(|client| client.wrong).sum();
        check(INFO.name, bad == 0, || format!("{bad} committed transactions read a record that was not whole"))?;
        let (mut versions, mut checksum) = (0u64, 0u64);
        let audit = database.audit(|key, peek| {
            let version = peek(0);
            versions = versions.wrapping_add(version);
            checksum = checksum.rotate_left(1) ^ peek(1);
            let whole = (1..VALUE_WORDS).all(|word| peek(word) == word_of(seed, key, version, word));
            if whole { Ok(()) } else { Err(AuditError(format!("the record of key {key} is not whole"))) }
        });
        audit.map_err(|error| error.of(INFO.name))?;
        let written: u64 = clients.iter().map(|client| client.written).sum();
        check(INFO.name, versions == written, || format!("{versions} versions for {written} writes committed"))?;
        let conflicts: u64 = clients.iter().map(|client| client.conflicts).sum();
        let figures =
            vec![("records", records as f64), ("conflicts", conflicts as f64), ("records written", written as f64)];
        Ok(Answer { operations, checksum, verified: "every read, every record, and the number of writes", figures })
    }
}
