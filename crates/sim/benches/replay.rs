//! How many accesses a second the simulator replays here: rates by the thread's CPU time, under the policy `age`.
//!
//! In: options. Out: one JSON object of rows. Must not: judge a rate.
//!
//! `cargo bench -p terrace-sim --bench replay -- [--pages N,N...] [--accesses N] [--repeats N] [--only NAME]`
//!
//! The trace is zipf 0.99 over all pages, ranks scattered over addresses by a permutation; it is generated before the
//! clock starts except where generation is the point. Pages are touched once before. Repeats go on with the same machine, and the
//! fastest counts.
//!
//! - `bound_words`: one word of eight bytes a page, brought in ahead of time and changed. `share_of_bound` is a row's rate over this one.
//! - `bound_chase`: the same words one after the other, as when each place follows from the word before: the host's latency.
//! - `replay_policy`: a stored trace through page words and policy; `replay_tlb_policy`: with the TLB; `replay_tlb_cache_policy`: with the
//!   last-level cache as well; `lockstep_tlb_cache_policy`: that on eight machines in lockstep, accesses of all of them.
//! - `mmu_4k` and so on: with page tables, walks and the named counters on one core besides.
//! - `generated_tlb_policy`: the accesses drawn on the way.
//! - `trace_decode`: reading a stored trace from memory; its `bytes_per_page` are those of the trace.
#![allow(clippy::disallowed_methods, reason = "a program has arguments")]

use std::error::Error;
use std::io::Write;

use rustix::time::{ClockId, clock_gettime};
use terrace_core::prefetch::prefetch;
use terrace_core::units::{Bytes, PageId, Vpn};
use terrace_machine::load::Wait;
use terrace_machine::mmu::tables::FIRST_FRAME;
use terrace_machine::mmu::{CounterSpec, When};
use terrace_machine::preset::Machine;
use terrace_policies::Settings;
use terrace_trace::{Access, Header, Reader, TraceError, Writer};
use terrace_workloads::random::{Permutation, Random, Zipf};

use terrace_sim::lockstep::Lockstep;
use terrace_sim::record::Record;
use terrace_sim::{FastSize, MmuConfig, Pages, SimConfig, SimError, Simulation};

/// How far ahead [`words`] asks for a page's word.
const AHEAD: usize = 16;
/// Accesses of a batch: what a workload delivers at a time.
const BATCH: usize = 2048;

/// Machines of the bench in lockstep: about as many as a comparison has policies.
const MACHINES: usize = 8;
/// Most pages of that bench: with more, its machines would take more than the 8 GiB that a laptop has.
const MOST_IN_LOCKSTEP: u64 = 1 << 25;

/// The policy that all benches run.
const POLICY: &str = "age";

/// What to measure.
struct Plan {
    /// Pages of 4 KiB.
    pages: u64,
    /// Accesses of each bench.
    accesses: u64,
    /// Times each bench is run.
    repeats: u32,
    /// Only those whose names begin so; all where it is empty.
    only: String,
}

impl Plan {
    fn wants(&self, name: &str) -> bool {
        name.starts_with(self.only.as_str())
    }
}

/// One rate.
#[derive(serde::Serialize)]
struct Bench {
    name: &'static str,
    /// What was run; the policy where there is one.
    policy: &'static str,
    pages: u64,
    /// Accesses a second of CPU time.
    accesses_per_second: f64,
    /// Bytes of metadata a page: of policy and page states, or of the structure measured.
    bytes_per_page: f64,
    /// Its rate over that of `bound_words` in the same call: how near it is to what the host's memory allows. Rows that replay the
    /// trace have it.
    share_of_bound: Option<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut sizes, mut plan) =
        (vec![1 << 20], Plan { pages: 0, accesses: 20_000_000, repeats: 1, only: String::new() });
    // cargo bench adds --bench.
    let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(|| format!("{option}: expected a value"))?;
        match option.as_str() {
            "--pages" => sizes = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--accesses" => plan.accesses = value.parse()?,
            "--repeats" => plan.repeats = value.parse()?,
            "--only" => plan.only = value,
            _ => return Err(format!("{option}: expected --pages, --accesses, --repeats or --only").into()),
        }
    }
    if sizes.iter().any(|&pages| pages == 0 || pages > 1 << 30) || plan.accesses == 0 {
        return Err("expected 1 to 2^30 pages, and at least 1 access".into());
    }
    let mut rows = Vec::new();
    for pages in sizes {
        plan.pages = pages;
        run(&plan, &mut |bench| rows.push(bench))?;
    }
    if rows.is_empty() {
        return Err(format!("--only {}: no bench begins so", plan.only).into());
    }
    writeln!(std::io::stdout(), "{}", serde_json::json!({ "benches": rows }))?;
    Ok(())
}

/// CPU seconds that this thread has used.
fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
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
fn run(plan: &Plan, done: &mut dyn FnMut(Bench)) -> Result<(), SimError> {
    let wanted = |name: &str| plan.wants(name);
    let mut trace = vec![0; plan.accesses as usize];
    Generator::new(plan.pages).fill(&mut trace);
    let bound = words(plan, &trace);
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
        done(chase(plan, &trace));
    }
    for (name, modelled) in
        [("replay_policy", Modelled { tlb: false, ..Modelled::TLB }), ("replay_tlb_policy", Modelled::TLB)]
    {
        if wanted(name) {
            done(replay(plan, name, modelled, &trace)?);
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
        done(replay(plan, "replay_tlb_cache_policy", Modelled::CACHE, &lines)?);
    }
    if wanted("lockstep_tlb_cache_policy") && plan.pages <= MOST_IN_LOCKSTEP {
        done(lockstep(plan, &lines)?);
    }
    through_mmu(plan, &lines, done)?;
    drop(lines);
    if wanted("generated_tlb_policy") {
        done(generated(plan)?);
    }
    if wanted("trace_decode") {
        done(decode(plan, &trace).map_err(|error| SimError::Source(error.to_string()))?);
    }
    Ok(())
}

/// Replays of the trace through the modelled MMU, by the size of pages and by when its counters count.
fn through_mmu(plan: &Plan, lines: &[Packed], done: &mut dyn FnMut(Bench)) -> Result<(), SimError> {
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
        done(replay(plan, name, Modelled { pages, mmu: Some(mmu), ..Modelled::CACHE }, lines)?);
    }
    Ok(())
}

fn bench(plan: &Plan, name: &'static str, policy: &'static str, seconds: f64, bytes_per_page: f64) -> Bench {
    Bench {
        name,
        policy,
        pages: plan.pages,
        accesses_per_second: plan.accesses as f64 / seconds,
        bytes_per_page,
        share_of_bound: None,
    }
}

fn fastest(plan: &Plan, once: &mut dyn FnMut() -> f64) -> f64 {
    (0..plan.repeats.max(1)).map(|_| once()).fold(f64::INFINITY, f64::min)
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

fn machine(plan: &Plan, modelled: Modelled) -> Result<Simulation, SimError> {
    let mut config = SimConfig::new(Machine::preset("optane-6252")?, Bytes::of_pages(plan.pages), FastSize::Share(0.3));
    (config.tlb, config.cache) = (modelled.tlb, modelled.cache);
    (config.pages, config.mmu) = (modelled.pages, modelled.mmu);
    let policy = terrace_policies::build(POLICY, Settings::default()).expect("the policy is registered");
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

fn prepared(plan: &Plan, modelled: Modelled) -> Result<Simulation, SimError> {
    let mut simulation = machine(plan, modelled)?;
    simulation.map(Vpn(0), plan.pages, false);
    touch_all(plan.pages, &mut |batch| simulation.feed(batch));
    Ok(simulation)
}

fn replay<R: Record>(plan: &Plan, name: &'static str, modelled: Modelled, trace: &[R]) -> Result<Bench, SimError> {
    let mut simulation = prepared(plan, modelled)?;
    let seconds = fastest(plan, &mut || {
        let start = cpu_seconds();
        for batch in trace.chunks(BATCH) {
            simulation.feed(batch);
        }
        cpu_seconds() - start
    });
    let bytes = simulation.finish(name)?.metadata_bytes_per_page;
    Ok(bench(plan, name, POLICY, seconds, bytes))
}

/// As many machines as a comparison has policies, with one cache: accesses of all of them.
fn lockstep(plan: &Plan, trace: &[Packed]) -> Result<Bench, SimError> {
    let name = "lockstep_tlb_cache_policy";
    let machines: Vec<Simulation> =
        (0..MACHINES).map(|_| machine(plan, Modelled::CACHE)).collect::<Result<_, SimError>>()?;
    let mut lockstep = Lockstep::new(machines);
    lockstep.map(Vpn(0), plan.pages, false);
    touch_all(plan.pages, &mut |batch| lockstep.feed(batch));
    let seconds = fastest(plan, &mut || {
        let start = cpu_seconds();
        for batch in trace.chunks(BATCH) {
            lockstep.feed(batch);
        }
        cpu_seconds() - start
    });
    let mut bytes = 0.0;
    for simulation in lockstep.into_simulations() {
        bytes = simulation.finish(name)?.metadata_bytes_per_page;
    }
    Ok(bench(plan, name, POLICY, seconds / MACHINES as f64, bytes))
}

fn generated(plan: &Plan) -> Result<Bench, SimError> {
    let name = "generated_tlb_policy";
    let mut generator = Generator::new(plan.pages);
    let mut simulation = prepared(plan, Modelled::TLB)?;
    let mut batch = vec![0u32; BATCH];
    let seconds = fastest(plan, &mut || {
        let start = cpu_seconds();
        let mut left = plan.accesses as usize;
        while left > 0 {
            let batch = &mut batch[..left.min(BATCH)];
            generator.fill(batch);
            simulation.feed(batch);
            left -= batch.len();
        }
        cpu_seconds() - start
    });
    let bytes = simulation.finish(name)?.metadata_bytes_per_page;
    Ok(bench(plan, name, POLICY, seconds, bytes))
}

/// The bound: no simulator that keeps a state of eight bytes a page does less for an access than to bring the page's word in, asked for
/// ahead, and to change it.
fn words(plan: &Plan, trace: &[u32]) -> Bench {
    let mut words = vec![0u64; plan.pages as usize];
    let seconds = fastest(plan, &mut || {
        let start = cpu_seconds();
        for (at, &page) in trace.iter().enumerate() {
            if let Some(&ahead) = trace.get(at + AHEAD) {
                prefetch(&words[ahead as usize]);
            }
            words[page as usize] += 1;
        }
        cpu_seconds() - start
    });
    assert!(words.iter().any(|&word| word > 0), "the words are real");
    bench(plan, "bound_words", "a word a page", seconds, 8.0)
}

/// The same words where each place follows from the word before, so that no two accesses overlap: the host's latency.
fn chase(plan: &Plan, trace: &[u32]) -> Bench {
    // All zero, which the compiler cannot know.
    let words = vec![std::hint::black_box(0u64); plan.pages as usize];
    let mut sum = 0;
    let seconds = fastest(plan, &mut || {
        let start = cpu_seconds();
        for &page in trace {
            sum = words[(u64::from(page) + sum) as usize];
        }
        cpu_seconds() - start
    });
    assert_eq!(sum, 0, "every word is zero");
    bench(plan, "bound_chase", "a word a page", seconds, 8.0)
}

/// Reading a stored trace of these accesses, which lies in memory: check, decompression, decoding. Without lines and times, as the replay
/// of a page trace needs it.
fn decode(plan: &Plan, trace: &[u32]) -> Result<Bench, TraceError> {
    let mut writer = Writer::new(Vec::new(), Header::default())?;
    for &page in trace {
        writer.access(Access::read(PageId(page)))?;
    }
    let stored = writer.finish()?.0;
    let mut batch = vec![Access::default(); BATCH];
    let mut seconds = f64::INFINITY;
    for _ in 0..plan.repeats.max(1) {
        let (start, mut read) = (cpu_seconds(), 0);
        let mut reader = Reader::new(stored.as_slice())?;
        while let count @ 1.. = reader.fill(&mut batch)? {
            read += count;
        }
        seconds = seconds.min(cpu_seconds() - start);
        assert_eq!(read, trace.len(), "every access was read");
    }
    Ok(bench(plan, "trace_decode", "read a trace", seconds, stored.len() as f64 / plan.pages as f64))
}
