//! How fast each workload's trace is made: accesses a second of CPU time into a sink that drops them.
//!
//! `cargo run --release -p terrace-workloads --example trace_speed [-- SIZE_IN_MIB [THREADS [NAME...]]]`
//! In: size, threads, names. Out: a line for each workload; asserts nothing about time.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a program, which measures"
)]

use terrace_workloads::{Access, AccessSink, Parameters, run_traced, workloads};

#[derive(Default)]
struct Null {
    accesses: u64,
    phases: Vec<(&'static str, f64, u64)>,
}

impl AccessSink for Null {
    fn accesses(&mut self, batch: &[Access]) {
        self.accesses += batch.len() as u64;
    }
    fn phase(&mut self, name: &'static str) {
        self.phases.push((name, cpu_seconds(), self.accesses));
    }
}

/// CPU time of this thread so far, from the scheduler: other programs on the machine then do not count.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux keeps schedstat");
    let nanos: f64 =
        text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("it starts with nanoseconds");
    nanos / 1e9
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mebibytes: u64 = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(256);
    let threads: usize = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(4);
    println!(
        "{mebibytes} MiB, {threads} logical threads; verification left out; \"after load\" leaves out the first phase, in which the kernel zeroes the pages, too"
    );
    println!("{:<18} {:>12} {:>9} {:>10} {:>9}  note", "workload", "accesses M", "CPU s", "M/s", "after load");
    for info in workloads() {
        if arguments.len() > 2 && !arguments[2..].iter().any(|name| name == info.name) {
            continue;
        }
        let parameters = Parameters { threads, ..Parameters::new(mebibytes << 20) };
        let mut sink = Null::default();
        let outcome = run_traced(info.name, &parameters, &mut sink);
        let end = cpu_seconds();
        // Time outside phases called "verify": those are the checks, which make no accesses.
        let mut work = 0.0;
        for (index, (name, start, _)) in sink.phases.iter().enumerate() {
            let seconds = sink.phases.get(index + 1).map_or(end, |next| next.1) - start;
            if *name != "verify" {
                work += seconds;
            }
        }
        // The first phase's own part, so that the rest can stand alone.
        let (first_seconds, first_accesses) = match sink.phases.get(..2) {
            Some([first, second]) => (second.1 - first.1, second.2),
            _ => (0.0, 0),
        };
        let after = (sink.accesses - first_accesses) as f64 / 1e6 / (work - first_seconds);
        let millions = sink.accesses as f64 / 1e6;
        let note = match outcome {
            Ok(answer) => format!("{} {}; {:?}", answer.operations, info.operation, answer.figures.first()),
            Err(error) => error.to_string(),
        };
        println!("{:<18} {millions:>12.1} {work:>9.2} {:>10.1} {after:>10.1}  {note}", info.name, millions / work);
    }
}
