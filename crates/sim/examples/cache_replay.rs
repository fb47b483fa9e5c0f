//! Replays an oracleGeneral trace (24-byte records: u32 time, u64 object, u32 size, i64 next) through LRU, CLOCK and FIFO
//! and prints miss ratios and rates, for comparison with other cache simulators on the same file.
//!
//! `cargo run --release -p terrace-sim --example cache_replay -- FILE CAPACITY_IN_OBJECTS...`
//!
//! Object numbers must be dense. Reading and taking the file apart is timed with the replay.
#![allow(clippy::disallowed_methods, reason = "a program has arguments and reads files")]

use std::io::Write;

use terrace_sim::object_cache::{Eviction, ObjectCache};

fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, capacities @ ..] = arguments.as_slice() else {
        return Err("give a trace file and one or more capacities".into());
    };
    let mut out = std::io::stdout().lock();
    let bytes = std::fs::read(file)?;
    let start = cpu_seconds();
    let object = |record: &[u8]| record[4..12].iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let trace: Vec<u32> = bytes.chunks_exact(24).map(|record| object(record) as u32).collect();
    let objects = trace.iter().max().map_or(0, |most| *most as usize + 1);
    let reading = cpu_seconds() - start;
    for capacity in capacities {
        let capacity: usize = capacity.parse()?;
        for eviction in [Eviction::Lru, Eviction::Clock, Eviction::Fifo] {
            let mut seconds = f64::INFINITY;
            let mut ratio = 0.0;
            for _ in 0..3 {
                let mut cache = ObjectCache::new(eviction, capacity, objects);
                let start = cpu_seconds();
                cache.request(&trace);
                seconds = seconds.min(cpu_seconds() - start);
                ratio = cache.replay().miss_ratio();
            }
            let rate = |seconds: f64| trace.len() as f64 / seconds / 1e6;
            let name = format!("{eviction:?}").to_lowercase();
            let (alone, whole) = (rate(seconds), rate(seconds + reading));
            writeln!(
                out,
                "{name:6} {capacity:9} miss ratio {ratio:.4}  {alone:6.1} M/s, {whole:6.1} M/s with reading"
            )?;
        }
    }
    Ok(())
}
