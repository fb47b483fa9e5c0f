//! The modelled MMU in a run: page tables and hotness counters behind the TLBs, and cores that advance side by side.
//!
//! In: what [`MmuConfig`] asks for, and the accesses the simulation feeds. Out: the time translation and counting take, lines
//! on the tiers, counters for the policy, figures for the report. Must not: decide, or place data.
//!
//! The inner loop is `hot::replay`; `interleave` puts the threads' accesses in the order in which cores that keep within a
//! bounded skew would make them. The operating system's walk that reads tables and counters is the simulation's.

pub(crate) mod interleave;

use terrace_core::units::{BLOCK_PAGES, SpaceId, TierId};
use terrace_machine::cache::Cache;
use terrace_machine::mmu::{CounterSpec, Mmu, MmuSpec, NotOffered, Sync, TablePlacement};
use terrace_machine::preset::{Machine, TierKind};
use terrace_machine::scale::Scale;

use crate::hotness::probe::Probe;
use crate::processes::Served;
use interleave::Interleaver;

/// Pages that Linux unmaps before it flushes translations and moves them: NR_MAX_BATCHED_MIGRATION, which is HPAGE_PMD_NR (mm/migrate.c).
pub(crate) const MOVED_WITH_ONE_FLUSH: u32 = BLOCK_PAGES;

/// How the cores forget the translations of 4 KiB pages that move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Flush {
    /// Page by page, an interrupt each: Linux before 6.3.
    #[default]
    Page,
    /// Once for up to 512 pages of a plan, and each core forgets everything: Linux from 6.3 on (`migrate_pages_batch`, whose one
    /// flush is of all translations on x86).
    Batch,
}

impl std::str::FromStr for Flush {
    type Err = NotOffered;
    fn from_str(text: &str) -> Result<Flush, NotOffered> {
        match text {
            "page" => Ok(Flush::Page),
            "batch" => Ok(Flush::Batch),
            _ => Err(NotOffered { text: text.to_owned(), wanted: "page or batch" }),
        }
    }
}

/// What the MMU of a run is asked to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MmuConfig {
    /// Cores the program's threads run on; thread `t` runs on core `t % cores`.
    pub cores: usize,
    /// The counters, if the MMU has any.
    pub counters: Option<CounterSpec>,
    /// Where page tables and counters lie.
    pub placement: TablePlacement,
    /// Cycles added to every translation that the first-level TLB misses: the paper's simplified cost of synchronisation.
    pub miss_cycles: u32,
    /// How translations of pages that move are forgotten.
    pub flush: Flush,
    /// Nanoseconds of the scaled machine by which a core may run ahead of the slowest that runs.
    pub skew_ns: f64,
}

impl MmuConfig {
    /// Counters as the paper states them, tables in fast memory, a skew of a microsecond.
    pub fn new(cores: usize) -> MmuConfig {
        MmuConfig {
            cores,
            counters: Some(CounterSpec::default()),
            placement: TablePlacement::Fast,
            miss_cycles: 0,
            flush: Flush::Page,
            skew_ns: 1000.0,
        }
    }
}

/// The MMU of a run, with what it needs to know of the machine.
pub(crate) struct MmuRun {
    pub(crate) mmu: Mmu,
    /// For walks and counters where data passes no cache: what they leave there is nobody else's.
    pub(crate) own_cache: Option<Cache>,
    pub(crate) interleaver: Interleaver,
    pub(crate) ns_per_cycle: f64,
    pub(crate) hit_ns: f64,
    pub(crate) parallelism: f64,
    pub(crate) stream_parallelism: f64,
    /// Nanoseconds of a read and of a store that reach a tier, under the load of the latest stretch.
    pub(crate) latency: [[f64; 2]; TierId::MAX],
    idle: [[f64; 2]; TierId::MAX],
    /// Lines that walks and counters read from each tier, and wrote back to it.
    pub(crate) table_lines: [[u64; 2]; TierId::MAX],
    /// First pages of huge pages that may have counters above zero.
    pub(crate) live: std::collections::BTreeSet<u32>,
    pub(crate) sweeps: Sweeps,
    /// Pages of the plan being carried out that moved and whose translations cores still hold.
    pub(crate) unflushed: u32,
    phases: Vec<PhaseMark>,
    /// What watches, where trackers are scored.
    pub(crate) probe: Option<Box<Probe>>,
    /// What was served to whom, where there are several processes.
    pub(crate) served: Option<Box<Served>>,
}

impl MmuRun {
    pub(crate) fn new(
        config: &MmuConfig,
        machine: &Machine,
        scale: Scale,
        cached: bool,
        [parallelism, stream_parallelism]: [f64; 2],
    ) -> MmuRun {
        let processor = &machine.processor;
        let slow = machine.tiers.iter().rposition(|tier| tier.kind == TierKind::Memory).unwrap_or(0);
        let spec = MmuSpec {
            tlb: processor.tlb,
            scale,
            cores: config.cores,
            frequency_hertz: processor.frequency_hertz,
            placement: config.placement,
            slow: TierId(slow as u8),
            miss_cycles: config.miss_cycles,
            counters: config.counters,
        };
        let mut idle = [[0.0; 2]; TierId::MAX];
        for (k, tier) in machine.tiers.iter().enumerate() {
            idle[k] = [tier.read_latency_ns, tier.write_latency_ns];
        }
        let cache = processor.cache;
        // Cores that wait for each other's lines must meet access by access, or one run would wait for a whole other.
        let coherent = config.counters.is_some_and(|counters| counters.sync == Sync::Coherent);
        let run = if coherent { 1 } else { interleave::RUN };
        MmuRun {
            mmu: Mmu::new(spec),
            own_cache: (!cached).then(|| Cache::new(scale.cache(cache.capacity), cache.ways)),
            interleaver: Interleaver::new(config.cores, config.skew_ns, run),
            ns_per_cycle: 1e9 / processor.frequency_hertz,
            hit_ns: cache.hit_ns,
            parallelism,
            stream_parallelism,
            latency: idle,
            idle,
            table_lines: [[0; 2]; TierId::MAX],
            live: std::collections::BTreeSet::new(),
            sweeps: Sweeps::default(),
            unflushed: 0,
            phases: Vec::new(),
            probe: None,
            served: None,
        }
    }

    /// A named part of the program begins: what each core did until here is written down.
    pub(crate) fn begin(&mut self, phase: &str) {
        let mark = PhaseMark { name: phase.to_owned(), cores: self.cores() };
        self.phases.push(mark);
    }

    /// The space's pages begin at page `first`, the virtual page number `base`; both are multiples of 1 GiB.
    pub(crate) fn add_space(&mut self, space: SpaceId, first: u32, base: u64) {
        self.mmu.add_space(space, first, base);
    }

    /// Latencies are idle ones times these factors from now on.
    pub(crate) fn set_load(&mut self, factor: &[f64; TierId::MAX]) {
        for ((now, idle), factor) in self.latency.iter_mut().zip(&self.idle).zip(factor) {
            *now = idle.map(|nanos| nanos * factor);
        }
    }
}

/// What a core did in a run.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct CoreReport {
    /// Accesses it made.
    pub accesses: u64,
    /// Seconds it worked.
    pub busy_seconds: f64,
    /// Seconds it waited for others at barriers.
    pub waited_seconds: f64,
    /// Translations not found in the first level, over accesses.
    pub first_miss_share: f64,
    /// Translations that walked, over accesses.
    pub walk_share: f64,
    /// Entries that its walks read.
    pub walk_entries: u64,
    /// Seconds it waited for walks and second-level hits.
    pub walk_seconds: f64,
    /// Of these, for a walker to be free.
    pub walk_queue_seconds: f64,
    /// Counters it updated.
    pub updates: u64,
    /// Seconds it waited for the synchronisation of counters.
    pub sync_seconds: f64,
}

/// What all rounds came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sweeps {
    pub(crate) rounds: u64,
    pub(crate) entries: u64,
    pub(crate) counter_lines: u64,
    pub(crate) skipped: u64,
}

/// What each core had done when a named part of the program began.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct PhaseMark {
    /// The part.
    pub name: String,
    /// Core by core.
    pub cores: Vec<CoreReport>,
}

/// What the MMU did in a run.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct MmuReport {
    /// Core by core.
    pub cores: Vec<CoreReport>,
    /// The same at the beginning of each part of the program.
    pub phases: Vec<PhaseMark>,
    /// Work imbalance: the most accesses of a core over the mean, less one.
    pub imbalance: f64,
    /// The furthest a core ran ahead of the slowest that ran, in nanoseconds of the scaled machine.
    pub skew_ns: f64,
    /// What is counted, in the words of the command line; `None` without counters.
    pub counted: Option<String>,
    /// Layout and width of the counters.
    pub counters: Option<(terrace_machine::mmu::Layout, terrace_machine::mmu::Width)>,
    /// Bytes of page tables and of counters at the end.
    pub table_and_counter_bytes: [u64; 2],
    /// TLB shootdowns.
    pub shootdowns: u64,
    /// Lines that walks and counters read from each tier and wrote to it.
    pub table_lines: Vec<[u64; 2]>,
    /// Counter updates that took the line from another core, that found it busy, and seconds they waited for it; `None`
    /// unless coherence is modelled.
    pub contention: Option<(u64, u64, f64)>,
    /// Rounds of the operating system's walk, entries it read, counter lines it read, tables it could skip.
    pub sweeps: [u64; 4],
}

impl MmuRun {
    fn cores(&self) -> Vec<CoreReport> {
        let share = |part: u64, whole: u64| if whole > 0 { part as f64 / whole as f64 } else { 0.0 };
        self.mmu
            .totals()
            .zip(self.interleaver.cores())
            .map(|(totals, core)| CoreReport {
                accesses: core.accesses,
                busy_seconds: core.busy_ns / 1e9,
                waited_seconds: core.waited_ns / 1e9,
                first_miss_share: share(totals.second_hits + totals.walks, core.accesses),
                walk_share: share(totals.walks, core.accesses),
                walk_entries: totals.entries,
                walk_seconds: totals.walk_ns / 1e9,
                walk_queue_seconds: totals.queued_ns / 1e9,
                updates: totals.updates,
                sync_seconds: totals.sync_ns / 1e9,
            })
            .collect()
    }

    pub(crate) fn report(&self, tiers: usize) -> MmuReport {
        let cores = self.cores();
        let most = cores.iter().map(|core| core.accesses).max().unwrap_or(0);
        let all: u64 = cores.iter().map(|core| core.accesses).sum();
        let counters = self.mmu.spec().counters;
        let (tables, counter_bytes) = self.mmu.memory_bytes();
        MmuReport {
            imbalance: if all > 0 { most as f64 * cores.len() as f64 / all as f64 - 1.0 } else { 0.0 },
            cores,
            phases: self.phases.clone(),
            skew_ns: self.interleaver.most_skew_ns(),
            counted: counters.map(|spec| spec.when.to_string()),
            counters: counters.map(|spec| (spec.layout, spec.width)),
            table_and_counter_bytes: [tables, counter_bytes],
            shootdowns: self.mmu.shootdowns,
            table_lines: self.table_lines[..tiers].to_vec(),
            contention: self
                .mmu
                .contended()
                .map(|contended| (contended.transfers, contended.waits, contended.wait_ns / 1e9)),
            sweeps: [self.sweeps.rounds, self.sweeps.entries, self.sweeps.counter_lines, self.sweeps.skipped],
        }
    }
}
