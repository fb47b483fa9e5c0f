//! How many accesses a second the simulator replays: the benches behind `terrace sim bench`.
//!
//! In: sizes, a policy's name, and the caller's clock of CPU seconds of this thread. Out: rates. Must not: read a clock of
//! its own, or judge a rate.
//!
//! The trace is zipf 0.99 over all pages, ranks scattered over addresses by a permutation; it is generated before the
//! clock starts except where generation is the point. Pages are touched once before.

use terrace_core::units::{Bytes, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::mmu::{CounterSpec, When};
use terrace_machine::preset::Machine;
use terrace_policies::Settings;
use terrace_workloads::random::{Permutation, Random, Zipf};

use crate::config::{FastSize, Pages, SimConfig, SimError};
use crate::mmu::MmuConfig;
use crate::object_cache::{Eviction, ObjectCache};
use crate::record::Record;
use crate::simulation::Simulation;

/// Accesses of a batch: what a workload delivers at a time.
const BATCH: usize = 2048;

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
}

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
    /// Bytes of metadata a page: of policy and page states, or of the cache.
    pub bytes_per_page: f64,
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
}

impl Generator {
    fn new(pages: u64) -> Generator {
        Generator { zipf: Zipf::new(pages, 0.99), scatter: Permutation::new(pages, 7), random: Random::new(1, 0) }
    }
    #[inline]
    fn page(&mut self) -> u32 {
        self.scatter.apply(self.zipf.draw(&mut self.random)) as u32
    }
}

/// Runs all benches, and hands each out as it is done.
///
/// # Errors
/// When the plan is out of range or the policy is not known.
pub fn run(plan: &BenchPlan, clock: &mut dyn FnMut() -> f64, done: &mut dyn FnMut(Bench)) -> Result<(), SimError> {
    if plan.pages == 0 || plan.accesses == 0 || plan.pages > 1 << 30 {
        let (name, value) = ("pages and accesses", format!("{} and {}", plan.pages, plan.accesses));
        return Err(SimError::Parameter { name, value, wanted: "at least 1, and at most 2^30 pages".to_owned() });
    }
    let mut generator = Generator::new(plan.pages);
    let trace: Vec<u32> = (0..plan.accesses).map(|_| generator.page()).collect();
    let replay = |name, modelled, clock: &mut dyn FnMut() -> f64| replay(plan, name, modelled, &trace, clock);
    done(replay("replay_policy", Modelled { tlb: false, ..Modelled::TLB }, clock)?);
    done(replay("replay_tlb_policy", Modelled::TLB, clock)?);
    let mut random = Random::new(5, 1);
    // Every tenth access is a store; lines are drawn uniformly.
    let mut pack = |page: &u32| {
        let store = u64::from(random.below(10) == 0);
        Packed((u64::from(*page) << 8) | (random.below(64) << 1) | store)
    };
    let lines: Vec<Packed> = trace.iter().map(&mut pack).collect();
    done(self::replay(plan, "replay_tlb_cache_policy", Modelled::CACHE, &lines, clock)?);
    for (name, pages, when) in [
        ("mmu_4k", Pages::Small, When::FirstMiss),
        ("mmu_2m_l1_miss", Pages::Huge, When::FirstMiss),
        ("mmu_2m_random_64", Pages::Huge, When::Random(64)),
        ("mmu_2m_every", Pages::Huge, When::Every),
    ] {
        let mut mmu = MmuConfig::new(1);
        mmu.counters = Some(CounterSpec { when, ..CounterSpec::default() });
        done(self::replay(plan, name, Modelled { pages, mmu: Some(mmu), ..Modelled::CACHE }, &lines, clock)?);
    }
    drop(lines);
    done(generated(plan, clock)?);
    for (name, eviction, bytes) in [
        ("object_cache_lru", Eviction::Lru, 8.0),
        ("object_cache_clock", Eviction::Clock, 1.0 + 0.4),
        ("object_cache_fifo", Eviction::Fifo, 1.0 + 0.4),
    ] {
        let mut best = f64::INFINITY;
        let mut misses = 0.0;
        for _ in 0..plan.repeats.max(1) {
            let mut cache = ObjectCache::new(eviction, (plan.pages / 10) as usize, plan.pages as usize);
            let start = clock();
            cache.request(&trace);
            best = best.min(clock() - start);
            misses = cache.replay().miss_ratio();
        }
        done(Bench {
            name,
            policy: format!("{eviction:?} of a tenth").to_lowercase(),
            pages: plan.pages,
            accesses_per_second: plan.accesses as f64 / best,
            bytes_per_page: bytes,
            miss_ratio: Some(misses),
        });
    }
    Ok(())
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

fn prepared(plan: &BenchPlan, modelled: Modelled) -> Result<Simulation, SimError> {
    let mut config = SimConfig::new(Machine::preset("optane-6252")?, Bytes::of_pages(plan.pages), FastSize::Share(0.3));
    (config.tlb, config.cache) = (modelled.tlb, modelled.cache);
    (config.pages, config.mmu) = (modelled.pages, modelled.mmu);
    let policy = terrace_policies::build(&plan.policy, Settings::default())
        .map_err(|error| SimError::Source(error.to_string()))?;
    let mut simulation = Simulation::new(config, policy)?;
    simulation.map(Vpn(0), plan.pages, false);
    let all: Vec<u32> = (0..plan.pages as u32).collect();
    simulation.feed(&all);
    Ok(simulation)
}

fn finished(plan: &BenchPlan, name: &'static str, simulation: Simulation, rate: f64) -> Result<Bench, SimError> {
    let report = simulation.finish(name)?;
    Ok(Bench {
        name,
        policy: plan.policy.clone(),
        pages: plan.pages,
        accesses_per_second: rate,
        bytes_per_page: report.metadata_bytes_per_page,
        miss_ratio: None,
    })
}

fn replay<R: Record>(
    plan: &BenchPlan,
    name: &'static str,
    modelled: Modelled,
    trace: &[R],
    clock: &mut dyn FnMut() -> f64,
) -> Result<Bench, SimError> {
    let mut best = f64::INFINITY;
    let mut last = None;
    for _ in 0..plan.repeats.max(1) {
        // The one before goes first: two of them would not fit where one does.
        drop(last.take());
        let mut simulation = prepared(plan, modelled)?;
        let start = clock();
        for batch in trace.chunks(BATCH) {
            simulation.feed(batch);
        }
        best = best.min(clock() - start);
        last = Some(simulation);
    }
    let simulation = last.expect("at least one repeat ran");
    finished(plan, name, simulation, plan.accesses as f64 / best)
}

fn generated(plan: &BenchPlan, clock: &mut dyn FnMut() -> f64) -> Result<Bench, SimError> {
    let mut generator = Generator::new(plan.pages);
    let mut simulation = prepared(plan, Modelled::TLB)?;
    let mut batch = vec![0u32; BATCH];
    let batches = plan.accesses.div_ceil(BATCH as u64);
    let start = clock();
    for _ in 0..batches {
        batch.fill_with(|| generator.page());
        simulation.feed(&batch);
    }
    let rate = (batches * BATCH as u64) as f64 / (clock() - start);
    finished(plan, "generated_tlb_policy", simulation, rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_reports_a_rate_and_nonsense_is_refused() {
        let mut plan = BenchPlan { pages: 4096, accesses: 20_000, policy: "age".to_owned(), repeats: 1 };
        let mut seconds = 0.0;
        let mut benches = Vec::new();
        let mut clock = || {
            seconds += 0.5;
            seconds
        };
        run(&plan, &mut clock, &mut |bench| benches.push(bench)).unwrap();
        assert_eq!(benches.len(), 11);
        assert!(benches.iter().filter(|bench| bench.name.starts_with("mmu")).count() == 4);
        assert!(benches.iter().all(|bench| bench.accesses_per_second >= 40_000.0 && bench.bytes_per_page > 0.0));
        plan.policy = "vax".to_owned();
        assert!(run(&plan, &mut clock, &mut |_| ()).unwrap_err().to_string().contains("vax"));
        plan.pages = 0;
        assert!(run(&plan, &mut clock, &mut |_| ()).unwrap_err().to_string().contains("at least 1"));
    }
}
