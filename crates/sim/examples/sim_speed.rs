//! Prints how many accesses a second the simulator replays, on one thread, in thread CPU time. Asserts nothing.
//!
//! `cargo run --release -p terrace-sim --example sim_speed [-- PAGES_IN_MI [ACCESSES_IN_M [POLICY]]]`

#![allow(clippy::disallowed_methods, reason = "a program reads its arguments; the library under it does not")]

use std::io::Write;

use terrace_sim::bench::{BenchPlan, run};

/// Seconds of CPU this thread has used.
fn cpu_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| arguments.get(at).map_or(Ok(default), |text| text.parse::<u64>());
    let plan = BenchPlan {
        pages: number(0, 16)? << 20,
        accesses: number(1, 50)? * 1_000_000,
        policy: arguments.get(2).cloned().unwrap_or_else(|| "memtis".to_owned()),
        repeats: 3,
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} pages, {} accesses, zipf 0.99 scattered", plan.pages, plan.accesses)?;
    let mut written = Ok(());
    run(&plan, &mut cpu_seconds, &mut |bench| {
        let rate = bench.accesses_per_second;
        let misses = bench.miss_ratio.map_or(String::new(), |ratio| format!("  miss ratio {ratio:.4}"));
        let line = format!(
            "{:24} {:14} {:7.1} M/s {:6.2} ns {:6.1} B/page{misses}",
            bench.name,
            bench.policy,
            rate / 1e6,
            1e9 / rate,
            bench.bytes_per_page
        );
        if written.is_ok() {
            written = writeln!(out, "{line}");
        }
    })?;
    Ok(written?)
}
