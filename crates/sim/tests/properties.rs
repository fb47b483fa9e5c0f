//! Properties: whatever a program does, capacity holds, pages are conserved, and the same run gives the same bytes.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use common::{Eager, Touch, bare};
use proptest::prelude::*;
use terrace_core::policy::{Kernel, Policy};
use terrace_core::units::{SpaceId, TierId, Vpn};
use terrace_sim::{Pages, Report, Simulation};

#[derive(Clone, Debug)]
enum Step {
    Map(u64, u64, bool),
    Unmap(u64, u64),
    Touch(u64, u64, bool),
    Meet,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0u64..6000, 1u64..2000, any::<bool>()).prop_map(|(start, pages, file)| Step::Map(start, pages, file)),
        1 => (0u64..6000, 1u64..2000).prop_map(|(start, pages)| Step::Unmap(start, pages)),
        6 => (0u64..6000, 1u64..3000, any::<bool>()).prop_map(|(start, count, write)| Step::Touch(start, count, write)),
        1 => Just(Step::Meet),
    ];
    prop::collection::vec(step, 1..40)
}

fn policy(kind: u8) -> Box<dyn Policy> {
    let kernel =
        Kernel { promotion_needs_high_watermark: true, demotion: true, demote_scale: 200, ..Kernel::default() };
    match kind {
        0 => Box::new(Eager::by_samples(20)),
        1 => Box::new(Eager::by_faults(kernel, 300)),
        _ => Box::new(Eager::by_faults(Kernel { demoted_pages_marked: true, ..kernel }, 300)),
    }
}

fn run(steps: &[Step], kind: u8, huge: bool, check: bool) -> Report {
    let mut config = bare(8192, 0.3);
    config.pages = if huge { Pages::Huge } else { Pages::Small };
    config.tlb = true;
    config.transient_failures = 0.1;
    let mut simulation = Simulation::new(config, policy(kind)).unwrap();
    for step in steps {
        match *step {
            // Regions of a program do not overlap: what is mapped again was given back before.
            Step::Map(start, pages, file) => {
                simulation.unmap(Vpn(start), pages);
                simulation.map(Vpn(start), pages, file);
            }
            Step::Unmap(start, pages) => simulation.unmap(Vpn(start), pages),
            Step::Touch(start, count, write) => {
                let touches: Vec<Touch> = (0..count)
                    .map(|n| {
                        let page = (start + n * 7) % 8000;
                        if write { Touch::store(page) } else { Touch::load(page) }.by((n % 5) as usize)
                    })
                    .collect();
                simulation.feed(&touches);
            }
            Step::Meet => simulation.meet(),
        }
        if check {
            let memory = simulation.memory();
            let mut recount = [0u64; 2];
            for word in memory.words() {
                if let Some(tier) = word.tier() {
                    recount[tier.index()] += 1;
                }
            }
            for (tier, pages) in recount.iter().enumerate() {
                let tier = TierId(tier as u8);
                assert_eq!(*pages, memory.used(tier));
                assert!(*pages <= memory.capacity(tier), "tier {tier} holds {pages}");
            }
        }
    }
    simulation.meet();
    simulation.settle();
    if check {
        let known = simulation.engine().pages();
        for page in 0..simulation.memory().len() as u32 {
            let believed = known.find(SpaceId(0), Vpn(u64::from(page))).and_then(|id| known[id].tier());
            assert_eq!(simulation.memory().word(page).tier(), believed, "page {page}");
        }
    }
    simulation.finish("random").unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn capacity_holds_and_pages_are_conserved(steps in steps(), kind in 0u8..3, huge in any::<bool>()) {
        let report = run(&steps, kind, huge, true);
        let touched: u64 = steps.iter().map(|step| if let Step::Touch(_, count, _) = step { *count } else { 0 }).sum();
        prop_assert_eq!(report.accesses, touched);
        prop_assert_eq!(report.tier_accesses.iter().sum::<u64>(), touched);
    }

    #[test]
    fn the_same_run_gives_the_same_bytes(steps in steps(), kind in 0u8..3, huge in any::<bool>()) {
        let text = |report: &Report| serde_json::to_string(report).unwrap();
        prop_assert_eq!(text(&run(&steps, kind, huge, false)), text(&run(&steps, kind, huge, false)));
    }
}
