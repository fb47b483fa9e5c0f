//! A machine at rest, made of a configuration and a policy.
//!
//! In: a [`SimConfig`], a policy. Out: a [`Simulation`] in which nothing has happened. Must not: leave anything of the configuration
//! unchecked.

use std::collections::BTreeSet;

use terrace_core::engine::{Engine, EngineConfig};
use terrace_core::policy::{Cadence, Policy};
use terrace_core::random::mix;
use terrace_core::units::{TierId, Time};
use terrace_machine::cache::Cache;
use terrace_machine::load::Rates;
use terrace_machine::media::Media;
use terrace_machine::memory::Memory;
use terrace_machine::memory_mode::MemoryMode;
use terrace_machine::reclaim::Reclaim;
use terrace_machine::sampler::Sampler;
use terrace_machine::scanner::HintScanner;
use terrace_machine::tlb::Tlb;

use super::{STRETCH_LEAST, Simulation};
use crate::account::{Costs, Counts};
use crate::config::{Pages, SimConfig};
use crate::copies::Copies;
use crate::error::SimError;
use crate::heat::HeatMap;
use crate::history::History;
use crate::hot::{Hot, Workspace};
use crate::mmu::{MmuConfig, MmuRun};
use crate::prices;
use crate::series::Series;
use crate::tuning::Waited;

impl Simulation {
    /// A machine at rest under `policy`.
    ///
    /// # Errors
    /// When the configuration is out of range.
    pub fn new(config: SimConfig, policy: Box<dyn Policy>) -> Result<Simulation, SimError> {
        let capacity = config.capacities()?;
        Simulation::with_capacity(config, policy, capacity)
    }

    /// As [`Simulation::new`], but every tier has room for twice the footprint: for the bounds.
    pub(crate) fn unlimited(config: SimConfig, policy: Box<dyn Policy>) -> Result<Simulation, SimError> {
        let mut capacity = config.capacities()?;
        let enough = 2 * config.footprint.pages() + (1 << 16);
        capacity.iter_mut().for_each(|pages| *pages = (*pages).max(enough));
        Simulation::with_capacity(config, policy, capacity)
    }

    fn with_capacity(
        config: SimConfig,
        mut policy: Box<dyn Policy>,
        mut capacity: Vec<u64>,
    ) -> Result<Simulation, SimError> {
        if policy.list_plan().is_some() {
            return Err(SimError::Parameter {
                name: "lists",
                value: "kernel".to_owned(),
                wanted: "own: a simulator has no kernel whose lists could be ordered".to_owned(),
            });
        }
        let watched_fault_ns = config.machine.management.hint_fault_ns;
        let mut config = SimConfig { machine: config.acting(), ..config };
        if policy.needs().counters && config.mmu.is_none() {
            config.mmu = Some(MmuConfig::new(config.machine.processor.cores as usize));
        }
        policy.set_prices(&prices::of(&config.machine, config.pages_a_flush()));
        policy.set_scale(config.scale.factor());
        let mut sample_parts = 1;
        if config.pages == Pages::Folded {
            sample_parts = policy.cadence().sampling.map_or(1, |periods| Sampler::most_parts(periods.loads));
            policy.set_folded(sample_parts);
        }
        let (kernel, hint_faults_wanted) = (policy.kernel(), policy.needs().hint_faults);
        let machine = &config.machine;
        let memory_mode =
            kernel.memory_mode.then(|| MemoryMode::new(capacity[0], capacity[1], config.placement, mix(config.seed)));
        if kernel.memory_mode {
            // The operating system sees only the slow memory.
            capacity[0] = 0;
        }
        let fast_capacity = capacity[0];
        let compressed = config.compressed();
        let lists = kernel.demotion || compressed.contains(&true);
        let reclaim = Reclaim::new(&capacity, config.scale, &kernel);
        let engine = Engine::new(
            EngineConfig { tiers: capacity.clone(), goal: config.goal, governor: config.governor.clone() },
            policy,
        );
        let cores = machine.processor.cores as usize;
        let tlb = &machine.processor.tlb;
        let cache = machine.processor.cache;
        let hot = Hot {
            workspace: Workspace::new(),
            memory: Memory::new(capacity, compressed),
            work: Vec::new(),
            countdown: Vec::new(),
            tlbs: if config.tlb { vec![Tlb::new(tlb, config.scale); cores] } else { Vec::new() },
            tlb_spec: *tlb,
            cache: config.cache.then(|| Cache::new(config.scale.cache(cache.capacity), cache.ways)),
            memory_mode,
            media: machine.tiers.iter().map(Media::new).collect(),
            read: [0; TierId::MAX],
            written: [0; TierId::MAX],
            samples: Vec::new(),
            load_period: 0,
            store_period: 0,
            extra_cycles: config.cycles_per_access,
            base: 0,
            record_misses: false,
            missed: Vec::new(),
            second_hits: 0,
            walks: 0,
            mmu: config.mmu.as_ref().map(|mmu| {
                let parallelism = config.memory_parallelism.unwrap_or(machine.processor.memory_parallelism);
                Box::new(MmuRun::new(mmu, machine, config.scale, config.cache, parallelism))
            }),
        };
        let rates = Rates {
            frequency_hertz: machine.processor.frequency_hertz,
            parallelism: config.memory_parallelism.unwrap_or(machine.processor.memory_parallelism),
            cache_hit_ns: cache.hit_ns,
        };
        let mut simulation = Simulation {
            tiers: machine.tiers.clone(),
            rates,
            hot,
            engine,
            kernel,
            reclaim,
            lists,
            now_ns: 0.0,
            based: false,
            weight: 1,
            ids: Vec::new(),
            blocks: Vec::new(),
            stretch_accesses: 0,
            stretch_limit: STRETCH_LEAST,
            region_start_ns: 0.0,
            clocks: Vec::new(),
            seen_at: Vec::new(),
            region_accesses: 0,
            forked: false,
            last_region_threads: 1,
            active: 1,
            span_ns: 0.0,
            pending_stall: 0.0,
            events: Vec::new(),
            born: Vec::new(),
            relocated: Vec::new(),
            sights: Vec::new(),
            cadence: Cadence::default(),
            wake: Time::ZERO,
            sampler: None,
            sample_parts,
            watched_fault_ns,
            hint_scanner: HintScanner::default(),
            next_hint: Time::ZERO,
            marked_at: Vec::new(),
            scan_cursor: 0,
            scan_not_before: Time::ZERO,
            cleared_at: Vec::new(),
            mover_free_ns: 0.0,
            copies: Copies::default(),
            outcomes: None,
            moving: Vec::new(),
            random: mix(config.seed ^ 0x5eed),
            counts: Counts::default(),
            costs: Costs::default(),
            history: History::new(config.watch.clone()),
            series: Series::new(10_000_000),
            heat: HeatMap::new(10_000_000),
            heat_phase: 0,
            phases: Vec::new(),
            failure: None,
            sampler_spent: 0.0,
            watched: Vec::new(),
            rearm: Vec::new(),
            hint_faults_wanted,
            future: None,
            told_accesses: 0,
            progress: None,
            queued: Vec::new(),
            in_run: false,
            traced_huge: BTreeSet::new(),
            beside: None,
            processes: Vec::new(),
            starts: Vec::new(),
            tuning: None,
            waited: Waited::default(),
            fast_capacity,
            fast_limit: fast_capacity,
            config,
        };
        simulation.poll();
        Ok(simulation)
    }
}
