//! How many accesses a second the simulator replays: the benches behind `terrace sim bench`.
//!
//! In: sizes, a policy's name, and the caller's clock of CPU time. Out: rates. Must not: read a clock of its
//! own, or judge a rate.
//!
//! The trace is zipf 0.99 over all pages, ranks scattered over addresses by a permutation; it is generated before the
//! clock starts except where generation is the point. Pages are touched once before. Repeats go on with the same machine.

use std::collections::BTreeMap;

use terrace_core::prefetch::prefetch;
use terrace_core::units::{Bytes, PageId, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::mmu::tables::FIRST_FRAME;
use terrace_machine::mmu::{CounterSpec, When};
use terrace_machine::preset::Machine;
use terrace_policies::Settings;
use terrace_trace::{Access, Header, Reader, Writer};
use terrace_workloads::random::{Permutation, Random, Zipf};

use crate::config::{FastSize, Pages, SimConfig};
use crate::error::SimError;
use crate::lockstep::Lockstep;
use crate::mmu::MmuConfig;
use crate::object_cache::{Eviction, ObjectCache};
use crate::record::Record;
use crate::simulation::Simulation;

/// How far ahead [`dense_counts`] asks for a page's word.
const AHEAD: usize = 16;
/// Accesses of a batch: what a workload delivers at a time.
const BATCH: usize = 2048;

/// Machines of the bench in lockstep: about as many as a comparison has policies.
const MACHINES: usize = 8;
/// Most pages of that bench: with more, its machines would take more than the 8 GiB that a laptop has.
const MOST_IN_LOCKSTEP: u64 = 1 << 25;

/// What a bench asks of its caller.
pub trait Probe {
    /// CPU seconds this thread has used.
    fn cpu_seconds(&mut self) -> f64;
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchPlan {
    /// Pages of 4 KiB.
    pub pages: u64,
    /// Accesses of each bench.
    pub accesses: u64,
    /// The policy.
    pub policy: String,
    /// Times each bench is run; the fastest counts.
    pub repeats: u32,
    /// Only those whose names begin so; all where it is empty.
    pub only: String,
}

impl BenchPlan {
    fn wants(&self, name: &str) -> bool {
        name.starts_with(self.only.as_str())
    }
}

/// The names of all benches, in the order they run.
pub const NAMES: [&str; 17] = [
    "bound_words",
    "bound_chase",
    "replay_policy",
    "replay_tlb_policy",
    "replay_tlb_cache_policy",
    "lockstep_tlb_cache_policy",
    "mmu_4k",
    "mmu_2m_l1_miss",
    "mmu_2m_random_64",
    "mmu_2m_every",
    "generated_tlb_policy",
    "object_cache_lru",
    "object_cache_clock",
    "object_cache_fifo",
    "metadata_dense",
    "metadata_btree",
    "trace_decode",
];

/// One rate.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Bench {
    /// What was measured.
    pub name: &'static str,
    /// The policy, or the cache's eviction.
    pub policy: String,
    /// Pages or objects.
    pub pages: u64,
    /// Accesses a second of CPU time.
    pub accesses_per_second: f64,
    /// Bytes of metadata a page: of policy and page states, of the cache, or of the structure measured; of a tree its
    /// entries alone.
    pub bytes_per_page: f64,
    /// Its rate over that of `bound_words` in the same call: how near it is to what the host's memory allows. Rows that replay the
    /// trace have it.
    pub share_of_bound: Option<f64>,
    /// Misses over requests, where the bench is one of an object cache.
    pub miss_ratio: Option<f64>,
}

/// Page, line and kind in eight bytes.
#[derive(Clone, Copy)]
struct Packed(u64);

impl Record for Packed {
    #[inline(always)]
    fn page(&self) -> u64 {
        self.0 >> 8
    }
    #[inline(always)]
    fn line(&self) -> u32 {
        (self.0 >> 1) as u32 & 63
    }
    #[inline(always)]
    fn wait(&self) -> Wait {
        if self.0 & 1 != 0 { Wait::Store } else { Wait::Load }
    }
    #[inline(always)]
    fn thread(&self) -> usize {
        0
    }
    #[inline(always)]
    fn cycles(&self) -> u32 {
        0
    }
}

struct Generator {
    zipf: Zipf,
    scatter: Permutation,
    random: Random,
    ranks: Vec<u64>,
}

impl Generator {
    fn new(pages: u64) -> Generator {
        let (zipf, scatter) = (Zipf::new(pages, 0.99), Permutation::new(pages, 7));
        Generator { zipf, scatter, random: Random::new(1, 0), ranks: Vec::new() }
    }

    /// Ranks first and places afterwards: two short loops do better than one long one.
    fn fill(&mut self, pages: &mut [u32]) {
        self.ranks.resize(pages.len(), 0);
        self.zipf.fill(&mut self.random, &mut self.ranks);
        for (page, rank) in pages.iter_mut().zip(&self.ranks) {
            *page = self.scatter.apply(*rank) as u32;
        }
    }
}

/// Runs the benches of the plan, and hands each out as it is done.
///
/// # Errors
/// When the plan is out of range, names no bench, or the policy is not known.
pub fn run(plan: &BenchPlan, probe: &mut dyn Probe, done: &mut dyn FnMut(Bench)) -> Result<(), SimError> {
    if plan.pages == 0 || plan.accesses == 0 || plan.pages > 1 << 30 {
        let (name, value) = ("pages and accesses", format!("{} and {}", plan.pages, plan.accesses));
        return Err(SimError::Parameter { name, value, wanted: "at least 1, and at most 2^30 pages".to_owned() });
    }
    let wanted = |name: &str| plan.wants(name);
    if !NAMES.iter().any(|name| wanted(name)) {
        let wanted = format!("a bench, or the beginning of some: {}", NAMES.join(", "));
        return Err(SimError::Parameter { name: "only", value: plan.only.clone(), wanted });
    }
    let mut trace = vec![0; plan.accesses as usize];
    Generator::new(plan.pages).fill(&mut trace);
    let bound = words(plan, &trace, probe);
    let rate = bound.accesses_per_second;
    // What replays the trace is held against what the host's memory allows.
    let done: &mut dyn FnMut(Bench) = &mut |mut bench: Bench| {
        let replays = ["replay_", "lockstep_", "mmu_", "generated_", "bound_"].iter();
        if replays.into_iter().any(|beginning| bench.name.starts_with(beginning)) {
            bench.share_of_bound = Some(bench.accesses_per_second / rate);
        }
        done(bench);
    };
    if wanted("bound_words") {
        done(bound);
    }
    if wanted("bound_chase") {
        done(chase(plan, &trace, probe));
    }
    for (name, modelled) in
        [("replay_policy", Modelled { tlb: false, ..Modelled::TLB }), ("replay_tlb_policy", Modelled::TLB)]
    {
        if wanted(name) {
            done(replay(plan, name, modelled, &trace, probe)?);
        }
    }
    let mut random = Random::new(5, 1);
    // Every tenth access is a store; lines are drawn uniformly.
    let mut pack = |page: &u32| {
        let store = u64::from(random.below(10) == 0);
        Packed((u64::from(*page) << 8) | (random.below(64) << 1) | store)
    };
    let lines: Vec<Packed> = trace.iter().map(&mut pack).collect();
    if wanted("replay_tlb_cache_policy") {
        done(replay(plan, "replay_tlb_cache_policy", Modelled::CACHE, &lines, probe)?);
    }
    if wanted("lockstep_tlb_cache_policy") && plan.pages <= MOST_IN_LOCKSTEP {
        done(lockstep(plan, &lines, probe)?);
    }
    through_mmu(plan, &lines, probe, done)?;
    drop(lines);
    if wanted("generated_tlb_policy") {
        done(generated(plan, probe)?);
    }
    object_caches(plan, &trace, probe, done);
    if wanted("metadata_dense") {
        done(dense_counts(plan, &trace, probe));
    }
    if wanted("metadata_btree") {
        done(tree_counts(plan, &trace, probe));
    }
    if wanted("trace_decode") {
        done(decode(plan, &trace, probe)?);
    }
    Ok(())
}

/// Replays of the trace through the modelled MMU, by the size of pages and by when its counters count.
fn through_mmu(
    plan: &BenchPlan,
    lines: &[Packed],
    probe: &mut dyn Probe,
    done: &mut dyn FnMut(Bench),
) -> Result<(), SimError> {
    // The modelled MMU tells pages of up to 240 GiB apart; larger plans have no such rows.
    let with_mmu = if plan.pages < u64::from(FIRST_FRAME) { 4 } else { 0 };
    for (name, pages, when) in [
        ("mmu_4k", Pages::Small, When::FirstMiss),
        ("mmu_2m_l1_miss", Pages::Huge, When::FirstMiss),
        ("mmu_2m_random_64", Pages::Huge, When::Random(64)),
        ("mmu_2m_every", Pages::Huge, When::Every),
    ]
    .into_iter()
    .take(with_mmu)
    .filter(|(name, ..)| plan.wants(name))
    {
        let mut mmu = MmuConfig::new(1);
        mmu.counters = Some(CounterSpec { when, ..CounterSpec::default() });
        done(replay(plan, name, Modelled { pages, mmu: Some(mmu), ..Modelled::CACHE }, lines, probe)?);
    }
    Ok(())
}

/// The trace as requests to caches that hold a tenth of its pages.
fn object_caches(plan: &BenchPlan, trace: &[u32], probe: &mut dyn Probe, done: &mut dyn FnMut(Bench)) {
    for (name, eviction, bytes) in [
        ("object_cache_lru", Eviction::Lru, 8.0),
        ("object_cache_clock", Eviction::Clock, 1.0 + 0.4),
        ("object_cache_fifo", Eviction::Fifo, 1.0 + 0.4),
    ] {
        if !plan.wants(name) {
            continue;
        }
        let mut misses = 0.0;
        let seconds = fastest(plan, probe, &mut |probe| {
            let mut cache = ObjectCache::new(eviction, (plan.pages / 10) as usize, plan.pages as usize);
            let start = probe.cpu_seconds();
            cache.request(trace);
            misses = cache.replay().miss_ratio();
            probe.cpu_seconds() - start
        });
        let policy = format!("{eviction:?} of a tenth").to_lowercase();
        let miss_ratio = Some(misses);
        done(Bench { miss_ratio, ..bench(plan, name, &policy, seconds, bytes) });
    }
}

fn bench(plan: &BenchPlan, name: &'static str, policy: &str, seconds: f64, bytes_per_page: f64) -> Bench {
    Bench {
        name,
        policy: policy.to_owned(),
        pages: plan.pages,
        accesses_per_second: plan.accesses as f64 / seconds,
        bytes_per_page,
        share_of_bound: None,
        miss_ratio: None,
    }
}

fn fastest(plan: &BenchPlan, probe: &mut dyn Probe, once: &mut dyn FnMut(&mut dyn Probe) -> f64) -> f64 {
    (0..plan.repeats.max(1)).map(|_| once(probe)).fold(f64::INFINITY, f64::min)
}

/// What stands between an access and memory.
#[derive(Clone, Copy, Debug)]
struct Modelled {
    tlb: bool,
    cache: bool,
    pages: Pages,
    mmu: Option<MmuConfig>,
}

impl Modelled {
    const TLB: Modelled = Modelled { tlb: true, cache: false, pages: Pages::Small, mmu: None };
    const CACHE: Modelled = Modelled { cache: true, ..Modelled::TLB };
}

fn machine(plan: &BenchPlan, modelled: Modelled) -> Result<Simulation, SimError> {
    let mut config = SimConfig::new(Machine::preset("optane-6252")?, Bytes::of_pages(plan.pages), FastSize::Share(0.3));
    (config.tlb, config.cache) = (modelled.tlb, modelled.cache);
    (config.pages, config.mmu) = (modelled.pages, modelled.mmu);
    let policy = terrace_policies::build(&plan.policy, Settings::default())
        .map_err(|error| SimError::Source(error.to_string()))?;
    Simulation::new(config, policy)
}

/// Every page once, in batches.
fn touch_all(pages: u64, feed: &mut dyn FnMut(&[u32])) {
    let mut batch = Vec::with_capacity(BATCH);
    for first in (0..pages as u32).step_by(BATCH) {
        batch.clear();
        batch.extend(first..(first + BATCH as u32).min(pages as u32));
        feed(&batch);
    }
}

fn prepared(plan: &BenchPlan, modelled: Modelled) -> Result<Simulation, SimError> {
    let mut simulation = machine(plan, modelled)?;
    simulation.map(Vpn(0), plan.pages, false);
    touch_all(plan.pages, &mut |batch| simulation.feed(batch));
    Ok(simulation)
}

fn replay<R: Record>(
    plan: &BenchPlan,
    name: &'static str,
    modelled: Modelled,
    trace: &[R],
    probe: &mut dyn Probe,
) -> Result<Bench, SimError> {
    let mut simulation = prepared(plan, modelled)?;
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        for batch in trace.chunks(BATCH) {
            simulation.feed(batch);
        }
        probe.cpu_seconds() - start
    });
    let bytes = simulation.finish(name)?.metadata_bytes_per_page;
    Ok(bench(plan, name, &plan.policy, seconds, bytes))
}

/// As many machines as a comparison has policies, with one cache: accesses of all of them.
fn lockstep(plan: &BenchPlan, trace: &[Packed], probe: &mut dyn Probe) -> Result<Bench, SimError> {
    let name = "lockstep_tlb_cache_policy";
    let machines: Vec<Simulation> =
        (0..MACHINES).map(|_| machine(plan, Modelled::CACHE)).collect::<Result<_, SimError>>()?;
    let mut lockstep = Lockstep::new(machines);
    lockstep.map(Vpn(0), plan.pages, false);
    touch_all(plan.pages, &mut |batch| lockstep.feed(batch));
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        for batch in trace.chunks(BATCH) {
            lockstep.feed(batch);
        }
        probe.cpu_seconds() - start
    });
    let mut bytes = 0.0;
    for simulation in lockstep.into_simulations() {
        bytes = simulation.finish(name)?.metadata_bytes_per_page;
    }
    Ok(bench(plan, name, &plan.policy, seconds / MACHINES as f64, bytes))
}

fn generated(plan: &BenchPlan, probe: &mut dyn Probe) -> Result<Bench, SimError> {
    let name = "generated_tlb_policy";
    let mut generator = Generator::new(plan.pages);
    let mut simulation = prepared(plan, Modelled::TLB)?;
    let mut batch = vec![0u32; BATCH];
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        let mut left = plan.accesses as usize;
        while left > 0 {
            let batch = &mut batch[..left.min(BATCH)];
            generator.fill(batch);
            simulation.feed(batch);
            left -= batch.len();
        }
        probe.cpu_seconds() - start
    });
    let bytes = simulation.finish(name)?.metadata_bytes_per_page;
    Ok(bench(plan, name, &plan.policy, seconds, bytes))
}

/// The bound: no simulator that keeps a state of eight bytes a page does less for an access than to bring the page's word in, asked for
/// ahead, and to change it.
fn words(plan: &BenchPlan, trace: &[u32], probe: &mut dyn Probe) -> Bench {
    let mut words = vec![0u64; plan.pages as usize];
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        for (at, &page) in trace.iter().enumerate() {
            if let Some(&ahead) = trace.get(at + AHEAD) {
                prefetch(&words[ahead as usize]);
            }
            words[page as usize] += 1;
        }
        probe.cpu_seconds() - start
    });
    assert!(words.iter().any(|&word| word > 0), "the words are real");
    bench(plan, "bound_words", "a word a page", seconds, 8.0)
}

/// The same words where each place follows from the word before, so that no two accesses overlap: the host's latency.
fn chase(plan: &BenchPlan, trace: &[u32], probe: &mut dyn Probe) -> Bench {
    // All zero, which the compiler cannot know.
    let words = vec![std::hint::black_box(0u64); plan.pages as usize];
    let mut sum = 0;
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        for &page in trace {
            sum = words[(u64::from(page) + sum) as usize];
        }
        probe.cpu_seconds() - start
    });
    assert_eq!(sum, 0, "every word is zero");
    bench(plan, "bound_chase", "a word a page", seconds, 8.0)
}

/// What counting alone costs with one word a page, asked for ahead.
fn dense_counts(plan: &BenchPlan, trace: &[u32], probe: &mut dyn Probe) -> Bench {
    let mut counts = vec![0u32; plan.pages as usize];
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        for (at, &page) in trace.iter().enumerate() {
            if let Some(&ahead) = trace.get(at + AHEAD) {
                prefetch(&counts[ahead as usize]);
            }
            counts[page as usize] += 1;
        }
        probe.cpu_seconds() - start
    });
    assert!(counts.iter().any(|&count| count > 0), "the counts are real");
    bench(plan, "metadata_dense", "counts in an array", seconds, 4.0)
}

/// The same counts in a tree from page address to count, as TieredMMS keeps them (its text says hash table, its code has
/// `std::map`); Rust's ordered map is a B-tree, which is the faster of the two kinds.
fn tree_counts(plan: &BenchPlan, trace: &[u32], probe: &mut dyn Probe) -> Bench {
    let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        for &page in trace {
            *counts.entry(u64::from(page) << 12).or_default() += 1;
        }
        probe.cpu_seconds() - start
    });
    bench(plan, "metadata_btree", "counts in a tree", seconds, size_of::<(u64, u64)>() as f64)
}

/// Reading a stored trace of these accesses, which lies in memory: check, decompression, decoding. Without lines and times, as the replay
/// of a page trace needs it.
fn decode(plan: &BenchPlan, trace: &[u32], probe: &mut dyn Probe) -> Result<Bench, SimError> {
    let refused = |error: terrace_trace::TraceError| SimError::Source(error.to_string());
    let mut writer = Writer::new(Vec::new(), Header::default()).map_err(refused)?;
    for &page in trace {
        writer.access(Access::read(PageId(page))).map_err(refused)?;
    }
    let stored = writer.finish().map_err(refused)?.0;
    let mut batch = vec![Access::default(); BATCH];
    let mut read = 0;
    let mut failed = None;
    let seconds = fastest(plan, probe, &mut |probe| {
        let start = probe.cpu_seconds();
        read = 0;
        let mut reader = match Reader::new(stored.as_slice()) {
            Ok(reader) => reader,
            Err(error) => {
                failed = Some(error);
                return f64::INFINITY;
            }
        };
        loop {
            match reader.fill(&mut batch) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) => {
                    failed = Some(error);
                    return f64::INFINITY;
                }
            }
        }
        probe.cpu_seconds() - start
    });
    if let Some(error) = failed {
        return Err(refused(error));
    }
    assert_eq!(read, trace.len(), "every access was read");
    let bytes = stored.len() as f64 / plan.pages as f64;
    Ok(bench(plan, "trace_decode", "read a trace", seconds, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stepping(f64);

    impl Probe for Stepping {
        fn cpu_seconds(&mut self) -> f64 {
            self.0 += 0.5;
            self.0
        }
    }

    #[test]
    fn every_bench_reports_a_rate_and_nonsense_is_refused() {
        let mut plan =
            BenchPlan { pages: 4096, accesses: 20_000, policy: "age".to_owned(), repeats: 2, only: String::new() };
        let mut benches = Vec::new();
        let mut probe = Stepping(0.0);
        run(&plan, &mut probe, &mut |bench| benches.push(bench)).unwrap();
        assert_eq!(benches.iter().map(|bench| bench.name).collect::<Vec<_>>(), NAMES);
        for bench in &benches {
            let machines = if bench.name.starts_with("lockstep") { MACHINES as f64 } else { 1.0 };
            assert_eq!(bench.accesses_per_second, 40_000.0 * machines, "{bench:?}");
            assert!(bench.bytes_per_page > 0.0 && bench.pages == 4096, "{bench:?}");
            let replays = !["object", "metadata", "trace"].iter().any(|apart| bench.name.starts_with(apart));
            assert_eq!(bench.share_of_bound.is_some(), replays, "{bench:?}");
        }
        plan.only = "mmu".to_owned();
        let mut some = Vec::new();
        run(&plan, &mut probe, &mut |bench| some.push(bench.name)).unwrap();
        assert_eq!(some, ["mmu_4k", "mmu_2m_l1_miss", "mmu_2m_random_64", "mmu_2m_every"]);
        plan.only = "tlb".to_owned();
        assert!(run(&plan, &mut probe, &mut |_| ()).unwrap_err().to_string().contains("mmu_4k"));
        plan.only = String::new();
        plan.policy = "vax".to_owned();
        assert!(run(&plan, &mut probe, &mut |_| ()).unwrap_err().to_string().contains("vax"));
        plan.pages = 0;
        assert!(run(&plan, &mut probe, &mut |_| ()).unwrap_err().to_string().contains("at least 1"));
    }
}
