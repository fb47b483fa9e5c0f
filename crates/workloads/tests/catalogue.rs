//! Every workload of the catalogue, small: traced and native, verified, repeatable, of the size asked for, and able to fail.
//!
//! In: the registry. Out: test results. Must not: measure time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_workloads::{
    Access, AccessSink, Answer, Executor, Fault, Parameters, Progress, Sequential, TraceSummary, TracedMemory,
    WorkloadError, build, run_native, run_traced, workloads,
};

const SIZE: u64 = 6 << 20;

/// Real threads, one a task.
struct Threads;

impl Executor for Threads {
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        std::thread::scope(|scope| {
            for number in 0..tasks {
                scope.spawn(move || task(number));
            }
        });
    }
}

/// Small parameters for a test: fewer operations where the default would take long.
fn parameters(name: &str) -> Parameters {
    let operations = match name {
        "graph500" | "gap-bfs" => Some(3),
        "gap-sssp" | "gap-bc" | "ligra-bfs" => Some(2),
        "ligra-pagerank" => Some(5),
        _ => None,
    };
    Parameters { threads: 3, operations, ..Parameters::new(SIZE) }
}

fn traced(name: &str, parameters: &Parameters) -> (Answer, TraceSummary) {
    let mut summary = TraceSummary::new();
    let answer = run_traced(name, parameters, &mut summary).unwrap_or_else(|error| panic!("{error}"));
    (answer, summary)
}

/// A clock that counts its readings: enough for loops that run by the number of operations.
fn native(name: &str, parameters: &Parameters, executor: &dyn Executor) -> Answer {
    let ticks = AtomicU64::new(0);
    let clock = || ticks.fetch_add(1, Ordering::Relaxed);
    run_native(name, parameters, executor, &clock, &|| false, &mut |_: &Progress| {})
        .unwrap_or_else(|error| panic!("{error}"))
}

macro_rules! each_workload {
    ($($test:ident: $name:literal;)*) => {
        $(mod $test {
            #[test]
            fn traced_it_verifies_repeats_and_has_the_size_asked_for() {
                super::check_traced($name);
            }
            #[test]
            fn native_it_verifies_on_threads_and_in_sequence() {
                super::check_native($name);
            }
        })*
        #[test]
        fn every_workload_is_tested() {
            let tested = [$($name),*];
            let names: Vec<&str> = workloads().iter().map(|info| info.name).collect();
            assert_eq!(names, tested);
        }
    };
}

each_workload! {
    npb_ft: "npb-ft";
    npb_lu: "npb-lu";
    npb_sp: "npb-sp";
    graph500: "graph500";
    btree: "btree";
    silo_ycsb_c: "silo-ycsb-c";
    silo_tpcc: "silo-tpcc";
    gap_pr: "gap-pr";
    gap_bfs: "gap-bfs";
    gap_sssp: "gap-sssp";
    gap_bc: "gap-bc";
    ligra_mis: "ligra-mis";
    ligra_bfs: "ligra-bfs";
    ligra_pagerank: "ligra-pagerank";
    xsbench: "xsbench";
    liblinear: "liblinear";
    mcf: "mcf";
    sysbench_memory: "sysbench-memory";
    memcached: "memcached";
    gups: "gups";
    gups_shift: "gups-shift";
    scan_then_random: "scan-then-random";
    hot_cold: "hot-cold";
}

fn check_traced(name: &str) {
    let parameters = parameters(name);
    let (answer, trace) = traced(name, &parameters);
    let (again, same) = traced(name, &parameters);
    assert_eq!(answer, again, "{name}: the same seed gives the same answer");
    assert_eq!(trace.hash, same.hash, "{name}: the same seed gives the same trace");
    let (_, other) = traced(name, &Parameters { seed: 2, ..parameters.clone() });
    // The grids of the NPB solvers are walked the same way whatever their values are.
    if !["npb-ft", "npb-lu", "npb-sp"].contains(&name) {
        assert_ne!(trace.hash, other.hash, "{name}: another seed gives another trace");
    }

    let share = (trace.peak_pages * 4096) as f64 / SIZE as f64;
    assert!((0.9..=1.1).contains(&share), "{name}: touches {share:.3} of the size asked for");
    assert!(answer.operations > 0 && trace.writes > 0 && trace.reads > 0, "{name}: {answer:?}");
    let every_line = SIZE / 64;
    assert!(trace.total() > every_line, "{name}: {} accesses cannot have touched everything", trace.total());
    assert!(trace.phases.len() >= 3, "{name} says its phases: {:?}", trace.phases);
    // Every thread has a part of the work.
    let busiest = trace.by_thread.iter().max().copied().unwrap_or(0);
    assert_eq!(trace.by_thread.len(), 3, "{name}");
    let least = trace.by_thread.iter().min().copied().unwrap_or(0);
    assert!(least * 400 > busiest, "{name}: accesses by thread {:?}", trace.by_thread);
}

fn check_native(name: &str) {
    let parameters = parameters(name);
    let sequential = native(name, &parameters, &Sequential);
    let threads = native(name, &parameters, &Threads);
    if !["liblinear"].contains(&name) {
        assert_eq!(sequential.operations, threads.operations, "{name}");
    }
    let one = Parameters { threads: 1, ..parameters };
    let (traced, _) = traced(name, &one);
    let native = native(name, &one, &Sequential);
    assert_eq!(traced, native, "{name}: traced and native are the same program");
}

#[test]
fn sizes_are_free() {
    // A second, larger size, so that nothing fits by chance.
    for info in workloads() {
        let operations = match info.name {
            "graph500" | "gap-bfs" | "gap-sssp" | "gap-bc" | "ligra-mis" | "ligra-bfs" => Some(1),
            "npb-ft" | "liblinear" => Some(1),
            "npb-lu" | "npb-sp" | "gap-pr" | "ligra-pagerank" => Some(2),
            "mcf" => Some(2000),
            _ => Some(5000),
        };
        let size = 23_000_000;
        let (_, trace) = traced(info.name, &Parameters { operations, ..Parameters::new(size) });
        let share = (trace.peak_pages * 4096) as f64 / size as f64;
        assert!((0.9..=1.1).contains(&share), "{}: touches {share:.3} of the size asked for", info.name);
    }
}

/// Runs a workload with one element of one region damaged at every store; the answer must be refused.
fn refuses(name: &str, region: &'static str, offset: u64, mask: u64) {
    let parameters = Parameters { threads: 2, ..parameters(name) };
    let mut summary = TraceSummary::new();
    let mut memory = TracedMemory::new(2, &mut summary);
    memory.plant(Fault { region, offset, mask });
    let outcome = build(name, &parameters).unwrap_or_else(|error| panic!("{error}")).run_traced(&mut memory);
    drop(memory);
    assert!(summary.mapped.iter().any(|mapped| mapped.name == region), "{name} has no region {region}");
    match outcome {
        Err(WorkloadError::Wrong { workload, .. }) => assert_eq!(workload, name),
        other => panic!("{name}: damage in {region} went unseen: {other:?}"),
    }
}

#[test]
fn lost_data_is_seen_by_every_workload() {
    // Region, byte offset of an element, and bits of it that make a difference. Indices stay in range under their
    // faults; in the heaps, the offsets are those of the first element's contents, behind the index's root.
    let faults: &[(&str, &'static str, u64, u64)] = &[
        ("npb-ft", "field u0", 16_000, 1 << 60),
        ("npb-ft", "field u1", 80_000, 1 << 60),
        ("npb-lu", "u", 200_000, 1 << 62),
        ("npb-lu", "frct", 200_000, 1),
        ("npb-sp", "u", 200_000, 1 << 62),
        ("npb-sp", "forcing", 200_000, 1),
        ("graph500", "edge list", 4096, 1),
        ("graph500", "parents", 8, 1),
        ("btree", "heap", 200, 1 << 40),
        ("silo-ycsb-c", "database", 360, 1 << 3),
        ("silo-tpcc", "database", 328, 1 << 3),
        ("gap-pr", "scores", 40, 1 << 30),
        ("gap-pr", "graph neighbors", 4000, 1),
        ("gap-bfs", "parents", 400, 1),
        ("gap-bfs", "graph neighbors", 4000, 1),
        ("gap-sssp", "distances", 400, 1 << 4),
        ("gap-bc", "successors", 40_000, 0xFF00FF),
        ("gap-bc", "graph neighbors", 4000, 1),
        ("ligra-mis", "states", 400, 4),
        ("ligra-bfs", "parents", 400, 1),
        ("ligra-pagerank", "p_next", 40, 1 << 62),
        ("xsbench", "nuclide grids", 48 * 1000 + 8, 1 << 52),
        ("xsbench", "union energies", 8000, 1 << 60),
        ("liblinear", "nodes", 16_000, 1),
        ("liblinear", "w", 800, 1 << 62),
        ("mcf", "arcs", 48 * 30_000 + 16, 1),
        ("sysbench-memory", "block", 3_000_000, 1),
        ("memcached", "slabs", 2_000_000, 1),
        ("gups", "table", 800, 1 << 9),
        ("gups-shift", "table", 800, 1 << 9),
        ("scan-then-random", "table", 800, 1),
        ("hot-cold", "arena", 4096 * 7 + 80, 1),
    ];
    for (name, region, offset, mask) in faults {
        refuses(name, region, *offset, *mask);
    }
    for info in workloads() {
        assert!(faults.iter().any(|fault| fault.0 == info.name), "{} has no fault to see", info.name);
    }
}

/// Cumulative shares of accesses by page, hottest first, of the accesses after phase "run" began.
struct PageCounts {
    counts: BTreeMap<u64, u64>,
    running: bool,
    region: &'static str,
    range: std::ops::Range<u64>,
}

impl AccessSink for PageCounts {
    fn accesses(&mut self, batch: &[Access]) {
        if self.running {
            for access in batch.iter().filter(|access| self.range.contains(&access.address)) {
                *self.counts.entry(access.page()).or_default() += 1;
            }
        }
    }
    fn mapped(&mut self, region: &terrace_workloads::Region) {
        if region.name == self.region {
            self.range = region.start..region.start + region.bytes;
        }
    }
    fn phase(&mut self, name: &'static str) {
        self.running = name == "run";
    }
}

fn page_counts(name: &str, region: &'static str, parameters: &Parameters) -> (Vec<u64>, u64) {
    let mut counts = PageCounts { counts: BTreeMap::new(), running: false, region, range: 0..0 };
    run_traced(name, parameters, &mut counts).unwrap_or_else(|error| panic!("{error}"));
    let mut counts: Vec<u64> = counts.counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let total = counts.iter().sum();
    (counts, total)
}

#[test]
fn a_fifth_of_memcached_gets_four_fifths_of_the_references() {
    // Values of four pages, so that a page belongs to one item.
    let options = BTreeMap::from([("value".to_owned(), "16352".to_owned())]);
    let parameters = Parameters { options, operations: Some(40_000), ..Parameters::new(16 << 20) };
    let (counts, total) = page_counts("memcached", "slabs", &parameters);
    let pages = (16 << 20) / 4096;
    let top: u64 = counts[..pages / 5].iter().sum();
    let share = top as f64 / total as f64;
    assert!((0.76..0.84).contains(&share), "the top fifth of the pages gets {share:.3}");
}

#[test]
fn a_fifth_of_sysbench_gets_four_fifths_of_the_references() {
    let parameters = Parameters { operations: Some(400_000), ..Parameters::new(16 << 20) };
    let (counts, total) = page_counts("sysbench-memory", "block", &parameters);
    let share = counts[..4096 / 5].iter().sum::<u64>() as f64 / total as f64;
    assert!((0.78..0.82).contains(&share), "the top fifth of the pages gets {share:.3}");
    assert_eq!(total, 400_000, "one access an operation");
}

#[test]
fn the_hot_set_of_gups_gets_its_share_and_moves() {
    let parameters = Parameters { operations: Some(400_000), ..Parameters::new(16 << 20) };
    let (fixed, total) = page_counts("gups", "table", &parameters);
    assert_eq!(total, 800_000, "an update is a read and a write");
    let hot = fixed[..410].iter().sum::<u64>() as f64 / total as f64;
    assert!((0.90..0.93).contains(&hot), "the tenth of the pages that is hot gets {hot:.3}");
    let (moved, total) = page_counts("gups-shift", "table", &parameters);
    let quarter = moved[..410].iter().sum::<u64>() as f64 / total as f64;
    assert!(quarter < 0.35, "with four hot sets the hottest tenth gets {quarter:.3}");
}

#[test]
fn transactions_really_meet() {
    let options = BTreeMap::from([
        ("writes".to_owned(), "0.5".to_owned()),
        ("reads".to_owned(), "4".to_owned()),
        ("exponent".to_owned(), "1.5".to_owned()),
    ]);
    let parameters = Parameters { threads: 8, options, operations: Some(20_000), ..Parameters::new(SIZE) };
    let figure = |answer: &Answer, name: &str| answer.figures.iter().find(|figure| figure.0 == name).unwrap().1;
    let (answer, _) = traced("silo-ycsb-c", &parameters);
    assert!(figure(&answer, "conflicts") > 100.0 && figure(&answer, "records written") > 1000.0, "{answer:?}");
    let parameters = Parameters { threads: 8, operations: Some(20_000), ..Parameters::new(SIZE) };
    let (answer, _) = traced("silo-tpcc", &parameters);
    assert!(figure(&answer, "conflicts") > 100.0 && figure(&answer, "new orders") > 1000.0, "{answer:?}");
    let threads = native("silo-tpcc", &parameters, &Threads);
    assert!(figure(&threads, "commits") > 1000.0);
}

#[test]
fn ft_finds_the_published_checksums_of_class_s() {
    // NPB 3 source documentation, FT class S: 64 x 64 x 64, six iterations.
    const PUBLISHED: [(f64, f64); 6] = [
        (5.546087004964e2, 4.845363331978e2),
        (5.546385409189e2, 4.865304269511e2),
        (5.546148406171e2, 4.883910722336e2),
        (5.545423607415e2, 4.901273169046e2),
        (5.544255039624e2, 4.917475857993e2),
        (5.542683411902e2, 4.932597244941e2),
    ];
    let options = BTreeMap::from([("grid".to_owned(), "64".to_owned())]);
    let parameters = Parameters { seed: 0, options, ..Parameters::new(10 << 20) };
    let answer = native("npb-ft", &parameters, &Sequential);
    let sums: Vec<f64> =
        answer.figures.iter().filter(|figure| figure.0.starts_with("checksum")).map(|figure| figure.1).collect();
    for (number, (real, imaginary)) in PUBLISHED.into_iter().enumerate() {
        let (found_real, found_imaginary) = (sums[2 * number], sums[2 * number + 1]);
        assert!((found_real / real - 1.0).abs() < 1e-11, "iteration {number}: {found_real} for {real}");
        assert!((found_imaginary / imaginary - 1.0).abs() < 1e-11, "iteration {number}");
    }
}

#[test]
fn bad_parameters_are_refused_with_their_names() {
    let good = Parameters::new(SIZE);
    let with = |key: &str, value: &str| Parameters {
        options: BTreeMap::from([(key.to_owned(), value.to_owned())]),
        ..good.clone()
    };
    for (name, parameters, part) in [
        ("no-such", good.clone(), "no-such"),
        ("gups", Parameters { size_bytes: 0, ..good.clone() }, "size"),
        ("gups", Parameters { threads: 0, ..good.clone() }, "threads"),
        ("gups", Parameters { operations: Some(0), ..good.clone() }, "operations"),
        ("gups", with("hot", "NaN"), "hot"),
        ("gups", with("hot", "1.5"), "hot"),
        ("gups", with("hott", "0.5"), "hott"),
        ("npb-lu", Parameters { duration_nanos: Some(5), ..good.clone() }, "duration"),
        ("npb-ft", with("grid", "7"), "grid"),
        ("gap-pr", with("graph", "twitter"), "graph"),
        ("memcached", with("value", "-1"), "value"),
        ("memcached", with("network", "-1"), "network"),
    ] {
        let error = build(name, &parameters).map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{name}: {error}");
    }
    let timed = Parameters { duration_nanos: Some(5), ..good };
    assert!(run_traced("gups", &timed, &mut TraceSummary::new()).unwrap_err().to_string().contains("duration"));
}

#[test]
fn uniform_and_kronecker_are_both_there() {
    for (name, graph) in [
        ("gap-pr", "uniform"),
        ("gap-bfs", "uniform"),
        ("gap-sssp", "uniform"),
        ("gap-bc", "uniform"),
        ("ligra-mis", "kronecker"),
        ("ligra-bfs", "kronecker"),
        ("ligra-pagerank", "kronecker"),
    ] {
        let options = BTreeMap::from([("graph".to_owned(), graph.to_owned())]);
        let parameters = Parameters { options, operations: Some(2), threads: 2, ..Parameters::new(SIZE) };
        let (_, trace) = traced(name, &parameters);
        let share = (trace.peak_pages * 4096) as f64 / SIZE as f64;
        assert!((0.9..=1.1).contains(&share), "{name} on {graph}: {share:.3}");
    }
}

#[test]
fn file_pages_are_marked_and_freed_memory_is_gone() {
    let (_, trace) = traced("liblinear", &parameters("liblinear"));
    let file: Vec<_> = trace.mapped.iter().filter(|region| region.file_backed).collect();
    assert_eq!(file.len(), 1);
    let share = file[0].bytes as f64 / SIZE as f64;
    assert!((0.28..0.45).contains(&share), "21 of 66 GB are the file; here {share:.3}");
    let (_, trace) = traced("gups", &parameters("gups"));
    assert_eq!(trace.live_pages, 0, "the table was freed");
}

#[test]
fn timed_loops_stop_and_report_each_second_and_a_sink_can_end_a_run() {
    // Each reading of this clock is 10 ms later than the one before.
    let ticks = AtomicU64::new(0);
    let clock = || ticks.fetch_add(10_000_000, Ordering::Relaxed);
    let reports = Mutex::new(Vec::new());
    let parameters = Parameters { duration_nanos: Some(5_000_000_000), ..Parameters::new(SIZE) };
    let mut out = |progress: &Progress| reports.lock().unwrap().push(progress.clone());
    let answer = run_native("hot-cold", &parameters, &Sequential, &clock, &|| false, &mut out).unwrap();
    let reports = reports.into_inner().unwrap();
    let timed: Vec<&Progress> = reports.iter().filter(|progress| progress.operations > 0).collect();
    assert!((4..=6).contains(&timed.len()), "{} reports in five seconds", timed.len());
    assert_eq!(timed.iter().map(|progress| progress.operations).sum::<u64>(), answer.operations);
    assert!(timed.iter().all(|progress| progress.phase == "run" && progress.p10_nanos <= progress.p50_nanos));
    assert!(reports.iter().any(|progress| progress.phase == "verify"));

    // Ended early, in the second of its parts: what it did is verified all the same.
    let (until, begun) = (3_000_000_000, ticks.load(Ordering::Relaxed));
    let stop = || ticks.load(Ordering::Relaxed) - begun > until;
    let options = [("shift_seconds".to_owned(), "2".to_owned())].into();
    let parameters = Parameters { duration_nanos: Some(60_000_000_000), options, ..Parameters::new(SIZE) };
    let answer = run_native("hot-cold", &parameters, &Sequential, &clock, &stop, &mut |_: &Progress| {}).unwrap();
    assert!(answer.operations > 0 && answer.figures.contains(&("hot set moves", 1.0)), "{answer:?}");
    assert!((until..2 * until).contains(&(ticks.load(Ordering::Relaxed) - begun)), "{answer:?}");

    struct Stops(u64);
    impl AccessSink for Stops {
        fn accesses(&mut self, batch: &[Access]) {
            self.0 += batch.len() as u64;
        }
        fn wants_more(&self) -> bool {
            self.0 < 200_000
        }
    }
    let mut sink = Stops(0);
    let answer = run_traced("gups", &Parameters::new(SIZE), &mut sink).unwrap();
    assert!(sink.0 < 210_000 && answer.operations < 100_000, "{} accesses", sink.0);
}

#[test]
fn pages_of_hot_cold_compress_about_three_to_one() {
    // A third of a page is random words, none twice; the rest is one word over and over.
    struct Content(Vec<u64>);
    impl AccessSink for Content {
        fn accesses(&mut self, batch: &[Access]) {
            self.0.extend(batch.iter().filter(|access| access.is_write()).map(|access| access.page()));
        }
    }
    let mut sink = Content(Vec::new());
    let parameters = Parameters { operations: Some(1), ..Parameters::new(SIZE) };
    run_traced("hot-cold", &parameters, &mut sink).unwrap();
    let first = sink.0[0];
    assert_eq!(sink.0.iter().filter(|page| **page == first).count(), 64, "a page is written once, line by line");
}
