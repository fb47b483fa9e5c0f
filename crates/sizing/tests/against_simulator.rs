//! The micro-benchmark performs what it was asked for, and its model takes as long as the simulator does.
#![allow(clippy::unwrap_used)]

use terrace_machine::preset::Machine;
use terrace_sizing::microbench::FastDivisor;
use terrace_sizing::sampling::Design;
use terrace_sizing::{Benchmark, ConfigVector, model, simulated};

/// Vectors of the design, made small: a 500th of the accesses and moves, memory that fits.
fn small(design: &Design, number: u64) -> ConfigVector {
    let mut vector = design.vector(number);
    let factor = 400_000.0 / (vector.fast_accesses + vector.slow_accesses);
    for count in [&mut vector.fast_accesses, &mut vector.slow_accesses] {
        *count *= factor;
    }
    vector.promotions =
        (vector.promotions * factor).min(4000.0).min(vector.slow_accesses / vector.hot_threshold).floor();
    vector.demotions = (vector.demotions * factor).min(4000.0).floor();
    vector.resident_bytes = (64u64 << 20) as f64 * [1.0, 2.0, 4.0][number as usize % 3];
    vector
}

fn near(what: &str, asked: u64, performed: u64, share: f64, vector: &ConfigVector) {
    let slack = (asked as f64 * share).max(2.0);
    assert!(
        (asked as f64 - performed as f64).abs() <= slack,
        "{what}: asked {asked}, performed {performed}; {vector:?}"
    );
}

#[test]
fn what_was_asked_for_is_performed_and_the_model_takes_as_long() {
    let machine = Machine::preset("optane-6252").unwrap();
    let design = Design::new(&machine, 5);
    let (mut worst, mut sum, mut runs) = (0.0f64, 0.0, 0);
    for number in 0..18 {
        let vector = small(&design, number);
        for share in [0.35, 0.8, 0.97, 1.0] {
            let asked = Benchmark::new(&vector, share, FastDivisor::Threshold).unwrap();
            let performed = simulated::perform(&asked, &machine, number + 1).unwrap();
            near("fast accesses", asked.accesses_in_fast(), performed.fast_accesses, 0.02, &vector);
            near("slow accesses", asked.accesses_in_slow(), performed.slow_accesses, 0.02, &vector);
            near("promotions", asked.promotions, performed.promotions, 0.02, &vector);
            near("demotions", asked.demotions, performed.demotions, 0.02, &vector);
            near("operations", asked.operations, performed.operations, 0.02, &vector);
            let ratio = model::seconds(&asked, &machine) / performed.seconds;
            println!("{number} {share}: model over simulator {ratio:.4}");
            assert!((0.90..=1.10).contains(&ratio), "model over simulator {ratio:.3} at {share} of {vector:?}");
            worst = worst.max((ratio - 1.0).abs());
            sum += (ratio - 1.0).abs();
            runs += 1;
        }
    }
    println!("{runs} runs: mean {:.4}, worst {worst:.4}", sum / f64::from(runs));
    assert!(sum / f64::from(runs) < 0.04);
}
