//! The micro-benchmark's run time by the load model alone: what makes a database of ten million runs an affair of minutes.
//!
//! In: a benchmark and a machine. Out: seconds. Must not: differ from the simulator but in the ways stated here.
//!
//! The accesses are regular, so that a whole run is one stretch of [`terrace_machine::load`], the same model that the
//! simulator solves every few thousand accesses, with the same latencies, bandwidths and costs. Stated exactly, a run is:
//!
//! - each thread's cycles: operations over threads, one operation a cycle;
//! - each thread's loads: accesses over threads, by tier, independent of each other (they overlap as the machine's memory
//!   parallelism says); every one misses the cache and is no prefetcher's, for strides and array sizes are chosen so;
//! - bytes: a line, or the medium's access unit where that is larger, for each access; a page read and a page written for
//!   each migration;
//! - address translation: nothing for a visit to a page that its thread's first-level TLB holds, a hit of the second level where that one
//!   holds it, a walk elsewhere. A pass goes over all pages of a part, so that a set holds its pages or none of them; which pages fall
//!   into it is the hash's, a Poisson number a set;
//! - promotions are paid by the program, spread over its threads, as a kernel that promotes in the hint fault has it; demotions are
//!   one kernel thread's, which the run cannot end before; each move interrupts every thread once.
//!
//! Where the slow tier is compressed memory, a visit to a slow page is a fault of the tier's read latency that nothing overlaps, and
//! the visit's further accesses are fast; the page that came back leaves again in the background, at the tier's write latency, which
//! the run cannot end before.
//!
//! Left out, against the simulator: waits for pages that are on their way, and that latencies vary within a run. `tests/against_simulator.rs` holds the difference.

use terrace_core::units::PAGE_BYTES;
use terrace_machine::cache::LINE_BYTES;
use terrace_machine::load::{Rates, ThreadWork, Traffic, Wait, solve_among};
use terrace_machine::preset::{Machine, TierKind, TlbLevel};

use crate::microbench::{Benchmark, FastDivisor};
use crate::vector::{ConfigVector, VectorError};
use terrace_tuning::curve::{SIZES, share_at};

/// The slow tier of a micro-benchmark: the slowest that loads and stores reach, or else compressed memory.
pub fn slow_tier(machine: &Machine) -> usize {
    let reached = machine.tiers.iter().rposition(|tier| tier.kind == TierKind::Memory);
    reached.filter(|&tier| tier > 0).unwrap_or(machine.tiers.len() - 1)
}

/// Whether a touch of the slow tier is a fault that brings the page back.
pub fn slow_faults(machine: &Machine) -> bool {
    machine.tiers[slow_tier(machine)].kind == TierKind::Compressed
}

/// Seconds that the benchmark takes on the machine.
pub fn seconds(benchmark: &Benchmark, machine: &Machine) -> f64 {
    if slow_faults(machine) {
        return seconds_with_faults(benchmark, machine);
    }
    let management = &machine.management;
    let (processor, slow) = (&machine.processor, slow_tier(machine));
    let threads = benchmark.threads.clamp(1, processor.cores);
    let each = 1.0 / f64::from(benchmark.threads.max(1));
    let (in_fast, in_slow) = (benchmark.accesses_in_fast(), benchmark.accesses_in_slow());
    let moves = benchmark.promotions + benchmark.demotions;
    let copy_ns = PAGE_BYTES as f64 * 1e9 / management.copy_bandwidth + management.move_small_ns;

    let mut traffic = vec![Traffic::default(); machine.tiers.len()];
    let unit = |tier: usize| machine.tiers[tier].access_unit.get().max(LINE_BYTES) as f64;
    traffic[0].read += in_fast as f64 * unit(0) + (benchmark.demotions * PAGE_BYTES) as f64;
    traffic[0].written += (benchmark.promotions * PAGE_BYTES) as f64;
    traffic[slow].read += in_slow as f64 * unit(slow) + (benchmark.promotions * PAGE_BYTES) as f64;
    traffic[slow].written += (benchmark.demotions * PAGE_BYTES) as f64;

    // Loads of a thread are counted in u32 by the model; a run is solved for as many slices as keep them well below.
    let most = in_fast.max(in_slow) as f64 * each;
    let slices = (most / f64::from(1u32 << 30)).ceil().max(1.0);
    let mut work = ThreadWork {
        cycles: (benchmark.operations as f64 * each / slices) as u64,
        stall_ns: (translation_ns(benchmark, machine) * each
            + benchmark.promotions as f64 * copy_ns * each
            + moves as f64 * management.shootdown_ns)
            / slices,
        ..ThreadWork::default()
    };
    work.misses[0][Wait::Load as usize] = (in_fast as f64 * each / slices) as u32;
    work.misses[slow][Wait::Load as usize] = (in_slow as f64 * each / slices) as u32;
    for tier in &mut traffic {
        tier.read /= slices;
        tier.written /= slices;
    }
    let rates = Rates::of(processor);
    // The threads are alike, so that one stands for all: as many times the work, run side by side on the cores there are.
    let alike = vec![work; benchmark.threads.max(1) as usize];
    let stretch = solve_among(&machine.tiers, &traffic, &alike, &rates, f64::from(threads));
    let demoting = benchmark.demotions as f64 * (copy_ns + management.reclaim_page_ns);
    (stretch.nanos * slices).max(demoting) / 1e9
}

/// The run on a machine whose slow tier is compressed memory.
fn seconds_with_faults(benchmark: &Benchmark, machine: &Machine) -> f64 {
    let (processor, slow) = (&machine.processor, &machine.tiers[slow_tier(machine)]);
    let visits = |accesses: u64, a_visit: u32| accesses as f64 / f64::from(a_visit.max(1));
    let faults = visits(benchmark.slow_accesses, benchmark.slow_accesses_a_visit)
        + visits(benchmark.overflow_accesses, benchmark.fast_accesses_a_visit)
        + benchmark.promotions as f64;
    let loads = benchmark.accesses() as f64 * machine.tiers[0].read_latency_ns / processor.memory_parallelism;
    let computing = benchmark.operations as f64 * 1e9 / processor.frequency_hertz;
    let all = loads + computing + translation_ns(benchmark, machine) + faults * slow.read_latency_ns;
    let side_by_side = f64::from(benchmark.threads.clamp(1, processor.cores));
    let leaving = faults.max(benchmark.demotions as f64) * slow.write_latency_ns;
    (all / side_by_side).max(leaving) / 1e9
}

/// Nanoseconds of address translation of all threads together.
fn translation_ns(benchmark: &Benchmark, machine: &Machine) -> f64 {
    let tlb = &machine.processor.tlb;
    // One pass goes over all pages, so that what evicts a page's translation is the whole of them.
    let pages = benchmark.fast_pages
        + benchmark.slow_pages
        + benchmark.overflow_pages
        + benchmark.promoted_pages
        + benchmark.demoted_pages;
    let part = pages as f64 / f64::from(benchmark.threads.max(1));
    let nanos =
        (1.0 - held(part, tlb.first_small)) * tlb.second_hit_ns + (1.0 - held(part, tlb.second)) * tlb.walk_small_ns;
    let visits = |accesses: u64, a_visit: u32| accesses as f64 / f64::from(a_visit.max(1));
    let all = visits(benchmark.fast_accesses + benchmark.overflow_accesses, benchmark.fast_accesses_a_visit)
        + visits(benchmark.slow_accesses, benchmark.slow_accesses_a_visit)
        + visits(benchmark.promotions + benchmark.demotions, 1)
        + visits(benchmark.spared_accesses, benchmark.fast_accesses_a_visit);
    all * nanos
}

/// Share of `pages`, gone over again and again, whose set of a TLB has no more pages than ways.
fn held(pages: f64, level: TlbLevel) -> f64 {
    let others = pages * f64::from(level.ways) / f64::from(level.entries.max(level.ways));
    let mut term = (-others).exp();
    let mut share = term;
    for other in 1..level.ways {
        term *= others / f64::from(other);
        share += term;
    }
    share.min(1.0)
}

/// A record: seconds at 1 % to 100 % of the resident size.
///
/// # Errors
/// When the vector cannot be that of a program.
pub fn record(vector: &ConfigVector, machine: &Machine, divisor: FastDivisor) -> Result<[f32; SIZES], VectorError> {
    let mut times = [0.0; SIZES];
    for (place, time) in times.iter_mut().enumerate() {
        *time = seconds(&Benchmark::new(vector, share_at(place), divisor)?, machine) as f32;
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_tuning::curve::Curve;

    fn machine() -> Machine {
        Machine::preset("optane-6252").unwrap()
    }

    #[test]
    fn a_run_without_arithmetic_takes_its_latencies() {
        // A thread, which loads no memory so far that it becomes slower; a million loads, all fast, few enough pages for the TLB.
        let vector = ConfigVector::from_array([1e6, 0.0, 0.0, 0.0, 0.0, 4.0 * 4096.0, 2.0, 1.0]);
        let benchmark = Benchmark::new(&vector, 1.0, FastDivisor::Threshold).unwrap();
        let expect = 1e6 / machine().processor.memory_parallelism * 98e-9;
        assert!((seconds(&benchmark, &machine()) / expect - 1.0).abs() < 0.01);
    }

    #[test]
    fn arithmetic_hides_slow_memory_and_migrations_cost() {
        let machine = machine();
        let curve = |values| {
            let vector = ConfigVector::from_array(values);
            Curve::of_times(&record(&vector, &machine, FastDivisor::Threshold).unwrap())
        };
        let bound = curve([4e8, 0.0, 0.0, 0.0, 1.0, 8e9, 2.0, 8.0]);
        let computing = curve([4e8, 0.0, 0.0, 0.0, 500.0, 8e9, 2.0, 8.0]);
        assert!(bound.loss(0.9) > 4.0 * computing.loss(0.9), "{} {}", bound.loss(0.9), computing.loss(0.9));
        let vector = ConfigVector::from_array([4e8, 4e6, 0.0, 0.0, 10.0, 8e9, 2.0, 8.0]);
        let quiet = Benchmark::new(&vector, 0.9, FastDivisor::Threshold).unwrap();
        // 600,000 interruptions of half a microsecond each are 0.3 s of a run of some seconds.
        let moving = Benchmark { promotions: 300_000, demotions: 300_000, ..quiet };
        let ratio = seconds(&moving, &machine) / seconds(&quiet, &machine);
        assert!(ratio > 1.05, "{ratio}");
        for curve in [bound, computing] {
            assert!(curve.losses().windows(2).all(|pair| pair[0] >= pair[1] - 1e-6), "less is never faster");
            assert_eq!(curve.loss(1.0), 0.0);
        }
    }
}
