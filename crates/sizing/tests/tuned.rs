//! The tuner at the wheel of simulated programs: what it saves, and what that costs against runs with everything fast.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use terrace_core::units::Bytes;
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::run::run_tuned;
use terrace_sim::tuning::{FixedLimit, Tuning};
use terrace_sim::{FastSize, SimConfig, WorkloadSource};
use terrace_sizing::database::{Origin, machine_checksum};
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::sim_driver::SimDriver;
use terrace_sizing::{Database, Index, model};
use terrace_tuning::{Mode, Summary, Tuner, TunerConfig};
use terrace_workloads::Parameters;

const SCALE: u32 = 4096;

fn index() -> Arc<Index> {
    let machine = Machine::preset("optane-6252").unwrap();
    let design = Design::new(&machine, 1);
    let vectors: Vec<_> = (0..3000).map(|number| design.vector(number)).collect();
    let seconds =
        vectors.iter().flat_map(|vector| model::record(vector, &machine, FastDivisor::Threshold).unwrap()).collect();
    let origin = Origin {
        machine: machine.name.clone(),
        machine_checksum: machine_checksum(&machine),
        seed: 1,
        fast_divisor: FastDivisor::Threshold,
    };
    Arc::new(Index::new(Database::new(origin, vectors, seconds).unwrap()).unwrap())
}

/// Run time, and what the tuner says of it if there was one.
fn run(
    workload: &str,
    policy: &str,
    operations: u64,
    tuner: Option<(TunerConfig, Arc<Index>)>,
) -> (f64, Option<Summary>) {
    let machine = Machine::preset("optane-6252").unwrap();
    let footprint = Bytes::mib(4);
    let scale = Scale::new(SCALE).unwrap();
    let mut parameters = Parameters::new(footprint.get());
    (parameters.threads, parameters.operations) = (8, Some(operations));
    let room = Bytes::of_pages((footprint.pages() as f64 * 1.032).ceil() as u64);
    let mut config = SimConfig::new(machine, room, FastSize::Share(1.0));
    config.scale = scale;
    let source = WorkloadSource { name: workload.to_owned(), parameters };
    let policy = terrace_policies::build(policy, Settings::default()).unwrap();
    let shared = tuner.map(|(config, index)| (Arc::new(Mutex::new(Tuner::new(config))), index));
    let tuning: Box<dyn Tuning> = match &shared {
        None => Box::new(FixedLimit::new(u64::MAX)),
        Some((tuner, index)) => Box::new(SimDriver::new(tuner.clone(), index.clone(), scale, footprint.pages())),
    };
    let report = run_tuned(&config, &source, policy, tuning).unwrap();
    (report.seconds, shared.map(|(tuner, _)| tuner.lock().unwrap().summary()))
}

#[test]
fn a_program_with_cold_memory_gives_it_back_within_the_target() {
    let index = index();
    for policy in ["tpp", "flexmem"] {
        let (full, _) = run("hot-cold", policy, 3_000_000, None);
        for mode in [Mode::Paper, Mode::Measured] {
            let tuner = (TunerConfig::new(0.05, mode), index.clone());
            let (tuned, summary) = run("hot-cold", policy, 3_000_000, Some(tuner));
            let (summary, loss) = (summary.unwrap(), tuned / full - 1.0);
            println!("{policy} {mode:?}: loss {loss:.4}, {summary:?}, {:.0} s", full * f64::from(SCALE));
            assert!(loss < 0.06, "{policy} {mode:?}: loss {loss:.3}, {summary:?}");
            if mode == Mode::Measured {
                assert!(summary.saved_share_mean > 0.14, "{policy}: {summary:?}");
            }
        }
    }
}
