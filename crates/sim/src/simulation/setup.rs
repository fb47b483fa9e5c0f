//! A machine at rest, made of a configuration and a policy.
//!
//! In: a [`SimConfig`], a policy. Out: a [`Simulation`] in which nothing has happened. Must not: leave anything of the configuration
//! unchecked.

use terrace_core::engine::{Engine, EngineConfig};
use terrace_core::policy::{Policy, Setup};
use terrace_core::random::mix;
use terrace_machine::load::Rates;
use terrace_machine::memory::Memory;
use terrace_machine::memory_mode::MemoryMode;
use terrace_machine::sampler::Sampler;

use super::Simulation;
use super::books::Books;
use super::clock::Clock;
use super::cores::Cores;
use super::foresight::Foresight;
use super::kernel::KernelModel;
use super::limit::Limit;
use super::link::EngineLink;
use super::mover::Mover;
use super::pressure;
use super::shadows::Shadows;
use super::spaces::Spaces;
use super::trackers::Trackers;
use crate::config::{Pages, SimConfig};
use crate::error::SimError;
use crate::history::History;
use crate::hot::Hot;
use crate::mmu::MmuConfig;
use crate::prices;

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
        let profile = policy.profile();
        if profile.kernel.lists.is_some() {
            return Err(SimError::Parameter {
                name: "lists",
                value: "kernel".to_owned(),
                wanted: "own: a simulator has no kernel whose lists could be ordered".to_owned(),
            });
        }
        let watched_fault_ns = config.machine.management.hint_fault_ns;
        let mut config = SimConfig { machine: config.acting(), ..config };
        pressure::set_swap(&mut config);
        // All that a policy could live on is modelled: it gets what it likes best.
        let needs = profile.needs();
        if needs.counters && config.mmu.is_none() {
            config.mmu = Some(MmuConfig::new(config.machine.processor.cores as usize));
        }
        policy.configure(Setup {
            granted: Some(needs),
            prices: Some(prices::of(&config.machine, config.pages_a_flush())),
            scale: Some(config.scale.factor()),
            ..Setup::default()
        });
        let mut sample_parts = 1;
        if config.pages == Pages::Folded {
            sample_parts = policy.schedule().cadence.sampling.map_or(1, |periods| Sampler::most_parts(periods.loads));
            policy.configure(Setup { sample_parts: Some(sample_parts), ..Setup::default() });
        }
        let (kernel, hint_faults_wanted) = (policy.profile().kernel, needs.hint_faults);
        let machine = &config.machine;
        let memory_mode =
            kernel.memory_mode.then(|| MemoryMode::new(capacity[0], capacity[1], config.placement, mix(config.seed)));
        if kernel.memory_mode {
            // The operating system sees only the slow memory.
            capacity[0] = 0;
        }
        let limit = Limit::none(capacity[0]);
        let compressed = config.compressed();
        let lists = kernel.demotion || compressed.contains(&true);
        let kernel = KernelModel::new(kernel, &capacity, config.scale, config.pages == Pages::Folded, lists);
        let engine = Engine::new(
            EngineConfig { tiers: capacity.clone(), goal: config.goal, governor: config.governor.clone() },
            policy,
        );
        let rates = Rates {
            parallelism: config.parallelism(),
            stream_parallelism: config.stream_parallelism(),
            ..Rates::of(&machine.processor)
        };
        let mut simulation = Simulation {
            hot: Hot::new(&config, Memory::new(capacity, compressed), memory_mode),
            clock: Clock::new(config.scale, machine.processor.cores, rates),
            link: EngineLink::new(engine),
            trackers: Trackers::new(sample_parts, hint_faults_wanted, watched_fault_ns),
            kernel,
            mover: Mover::default(),
            shadows: Shadows::default(),
            books: Books::new(History::new(config.watch.clone())),
            limit,
            spaces: Spaces::default(),
            cores: Cores::default(),
            foresight: Foresight::default(),
            random: mix(config.seed ^ 0x5eed),
            failure: None,
            config,
        };
        if needs.first_thread {
            simulation.hot.sample_only_first();
        }
        simulation.poll();
        Ok(simulation)
    }
}
