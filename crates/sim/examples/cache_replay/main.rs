//! Replays an oracleGeneral trace (24-byte records: u32 time, u64 object, u32 size, i64 next) through LRU, CLOCK and FIFO
//! and prints miss ratios and rates as JSON, for comparison with other cache simulators on the same file:
//! `benchmarks/cache_compare.py` runs it.
//!
//! `cargo run --release -p terrace-sim --example cache_replay -- FILE CAPACITY_IN_OBJECTS...`
//!
//! Object numbers must be dense. Reading and taking the file apart is timed, and added to each replay's time.
#![allow(clippy::disallowed_methods, reason = "a program has arguments and reads files")]

mod object_cache;

use std::io::Write;

use object_cache::{Eviction, ObjectCache, Replay};

const RECORD_BYTES: usize = 24;
/// Objects far more numerous than requests are not dense.
const MOST_OBJECTS_A_REQUEST: usize = 8;

fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, capacities @ ..] = arguments.as_slice() else {
        return Err("give a trace file and one or more capacities".into());
    };
    let bytes = std::fs::read(file)?;
    if bytes.is_empty() || bytes.len() % RECORD_BYTES != 0 {
        return Err(format!("{file}: {} bytes are no whole number of records of 24 bytes", bytes.len()).into());
    }
    let start = cpu_seconds();
    let mut most = 0;
    let mut trace = Vec::with_capacity(bytes.len() / RECORD_BYTES);
    for record in bytes.chunks_exact(RECORD_BYTES) {
        let object = u64::from_le_bytes(record[4..12].try_into()?);
        most = most.max(object);
        trace.push(object as u32);
    }
    let reading = cpu_seconds() - start;
    let objects = most as usize + 1;
    if objects / MOST_OBJECTS_A_REQUEST > trace.len().max(1 << 24) || most >= u64::from(u32::MAX) {
        return Err(format!("{file}: object {most} among {} requests: the numbers are not dense", trace.len()).into());
    }
    let mut rows = Vec::new();
    for capacity in capacities {
        let capacity: usize = capacity.parse()?;
        for eviction in [Eviction::Lru, Eviction::Clock, Eviction::Fifo] {
            let mut seconds = f64::INFINITY;
            let mut replay = Replay::default();
            for _ in 0..3 {
                let mut cache = ObjectCache::new(eviction, capacity, objects);
                let start = cpu_seconds();
                cache.request(&trace);
                seconds = seconds.min(cpu_seconds() - start);
                replay = cache.replay();
            }
            rows.push(serde_json::json!({
                "eviction": eviction,
                "capacity": capacity,
                "requests": replay.requests,
                "misses": replay.misses,
                "miss_ratio": replay.miss_ratio(),
                "seconds": seconds,
                "reading_seconds": reading,
            }));
        }
    }
    writeln!(std::io::stdout(), "{}", serde_json::json!({ "rows": rows }))?;
    Ok(())
}
