//! Runs that came out the same before and after every change that was to leave results alone.
//!
//! In: small runs of many policies, page sizes and machines, and `recorded.txt`: what each came to. Out: whether it still does. A change that
//! is to move results replaces the file by what this test prints, and its commit says which rows moved and by how much.
//! The digest is one of all figures of the report, in order of their values: a key may be renamed, a figure may not change.
#![allow(clippy::unwrap_used)] // These are tests.

use std::io::Cursor;

use terrace_core::units::{Bytes, PageId, Time, Vpn};
use terrace_machine::preset::Machine;
use terrace_machine::scale::Scale;
use terrace_policies::Settings;
use terrace_sim::processes::Placement;
use terrace_sim::run::{run_alone, run_tuned};
use terrace_sim::tuning::FixedLimit;
use terrace_sim::{FastSize, MmuConfig, Pages, Report, SimConfig, SimError, TraceSource, WorkloadSource};
use terrace_trace::{
    Access, AccessSource, Change, Event, Extent, Header, Index, MapPiece, Process, ProcessId, Reader, ThreadId, Writer,
};
use terrace_workloads::Parameters;

const RECORDED: &str = include_str!("recorded.txt");

/// A run of a workload on four threads.
struct Case {
    name: &'static str,
    policy: &'static str,
    workload: &'static str,
    machine: &'static str,
    mebibytes: u64,
    operations: Option<u64>,
    fast: f64,
    scale: u32,
    pages: Pages,
    mmu: bool,
    /// Share of fast memory that a tuner leaves.
    limit: Option<f64>,
}

const CASE: Case = Case {
    name: "",
    policy: "",
    workload: "",
    machine: "optane-6252",
    mebibytes: 8,
    operations: None,
    fast: 0.3,
    scale: 1024,
    pages: Pages::Small,
    mmu: false,
    limit: None,
};

const CASES: &[Case] = &[
    Case { name: "tpp-btree-small", policy: "tpp", workload: "btree", ..CASE },
    Case { name: "tpp-ft-folded", policy: "tpp", workload: "npb-ft", mebibytes: 5, pages: Pages::Folded, ..CASE },
    Case {
        name: "tiering08-hot-cold-folded",
        policy: "tiering08",
        workload: "hot-cold",
        mebibytes: 24,
        pages: Pages::Folded,
        ..CASE
    },
    Case { name: "autonuma-gups-small", policy: "autonuma", workload: "gups", operations: Some(200_000), ..CASE },
    Case {
        name: "flexmem-silo-folded",
        policy: "flexmem",
        workload: "silo-ycsb-c",
        mebibytes: 12,
        pages: Pages::Folded,
        ..CASE
    },
    Case {
        name: "memtis-hot-cold-huge",
        policy: "memtis",
        workload: "hot-cold",
        mebibytes: 32,
        scale: 256,
        pages: Pages::Huge,
        ..CASE
    },
    Case { name: "tieredmms-btree-small", policy: "tieredmms", workload: "btree", scale: 512, ..CASE },
    Case { name: "flexhm-hot-cold-small", policy: "flexhm", workload: "hot-cold", machine: "cxl-170", ..CASE },
    Case {
        name: "age-hot-cold-zram",
        policy: "age",
        workload: "hot-cold",
        machine: "zram-vm",
        fast: 0.6,
        scale: 4096,
        ..CASE
    },
    Case {
        name: "hotness-walk-gups-mmu",
        policy: "hotness-walk",
        workload: "gups",
        mebibytes: 16,
        operations: Some(100_000),
        pages: Pages::Huge,
        mmu: true,
        ..CASE
    },
    Case { name: "memory-mode-gups", policy: "memory-mode", workload: "gups", operations: Some(200_000), ..CASE },
    Case { name: "tpp-hot-cold-tuned", policy: "tpp", workload: "hot-cold", limit: Some(0.7), fast: 1.0, ..CASE },
    Case { name: "flexmem-btree-tuned", policy: "flexmem", workload: "btree", limit: Some(0.5), fast: 1.0, ..CASE },
    Case {
        name: "clairvoyant-hot-cold-folded",
        policy: "clairvoyant",
        workload: "hot-cold",
        pages: Pages::Folded,
        ..CASE
    },
];

fn run(case: &Case) -> Report {
    let size = Bytes::mib(case.mebibytes);
    let machine = Machine::preset(case.machine).unwrap();
    let mut config = SimConfig::new(machine, size, FastSize::Share(case.fast));
    (config.scale, config.pages) = (Scale::new(case.scale).unwrap(), case.pages);
    if case.mmu {
        config.mmu = Some(MmuConfig::new(2));
    }
    let mut parameters = Parameters::new(size.get());
    (parameters.threads, parameters.operations) = (4, case.operations);
    let source = WorkloadSource { name: case.workload.to_owned(), parameters };
    let policy = terrace_policies::build(case.policy, Settings::default()).unwrap();
    match case.limit {
        None => run_alone(&config, &source, policy),
        Some(share) => {
            let limit = (size.pages() as f64 * share) as u64;
            run_tuned(&config, &source, policy, Box::new(FixedLimit::new(limit)))
        }
    }
    .unwrap()
}

/// Two processes of a trace, whose blocks are huge in part: each uses a hot quarter of its memory, the second stores.
fn run_processes() -> Report {
    const BLOCKS: u32 = 8;
    let header = Header { processes: true, ..Header::default() };
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for (number, name) in [(0, "first"), (1, "second")] {
        let process = Process { pid: 70 + u64::from(number), name: name.to_owned() };
        writer.map(&MapPiece::Process(ProcessId(number), process)).unwrap();
    }
    for block in 0..2 * BLOCKS {
        let (process, vpn) = ((block / BLOCKS) as u16, u64::from(block % BLOCKS + 2) << 9);
        let extent = Extent { first: PageId(block << 9), vpn: Vpn(vpn), count: 512, process: ProcessId(process) };
        writer.map(&MapPiece::Extent(extent)).unwrap();
    }
    let block_event = |writer: &mut Writer<Vec<u8>>, change: fn(terrace_trace::Pages) -> Change, block: u32| {
        let pages = terrace_trace::Pages { first: PageId(block << 9), count: 512 };
        writer.event(Event { time: Time::ZERO, change: change(pages) }).unwrap();
    };
    (0..2 * BLOCKS).filter(|block| block % 3 == 0).for_each(|block| block_event(&mut writer, Change::Huge, block));
    let mut state = 7u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let pages = u64::from(BLOCKS) * 512;
    for step in 0..60_000u64 {
        let bound = if step % 4 == 0 { pages } else { pages / 4 };
        let line = below(64) as u8;
        writer.access(Access::read(PageId(below(bound) as u32)).on_line(line)).unwrap();
        let second = PageId((pages + below(bound)) as u32);
        writer.access(Access::write(second).on_line(line).by(ThreadId(1))).unwrap();
        if step == 30_000 {
            block_event(&mut writer, Change::Split, 3);
            block_event(&mut writer, Change::Gone, BLOCKS + 7);
        }
    }
    let trace = writer.finish().unwrap().0;
    let map = Index::read(&mut Cursor::new(&trace[..])).unwrap().1.map(&mut Cursor::new(&trace[..])).unwrap();
    let placement = Some(Placement::of(&map, u64::from(2 * BLOCKS * 512)).unwrap());
    let open = move || {
        let reader = Reader::new(Cursor::new(trace.clone())).map_err(|error| SimError::Source(error.to_string()))?;
        Ok(Box::new(reader) as Box<dyn AccessSource>)
    };
    let footprint = Bytes::of_pages(2 * pages);
    let source = TraceSource { name: "two".to_owned(), footprint, open, placement };
    let mut config = SimConfig::new(Machine::preset("cxl-pond").unwrap(), footprint, FastSize::Share(0.4));
    (config.pages, config.scale) = (Pages::Traced, Scale::new(1024).unwrap());
    config.mmu = Some(MmuConfig::new(2));
    // `inside` is on everywhere else. This run was recorded before there was any looking inside, and holds that off leaves everything as it was.
    let policy = terrace_policies::build("age", Settings::from_pairs([("inside", "off")])).unwrap();
    run_alone(&config, &source, policy).unwrap()
}

/// All figures of a report, as their texts.
fn figures(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Number(number) => found.push(number.to_string()),
        serde_json::Value::Array(items) => items.iter().for_each(|item| figures(item, found)),
        serde_json::Value::Object(items) => items.values().for_each(|item| figures(item, found)),
        _ => {}
    }
}

/// The row of a report: its main figures, and a digest (FNV-1a) of all.
fn row(name: &str, report: &Report) -> String {
    let mut found = Vec::new();
    figures(&serde_json::to_value(report).unwrap(), &mut found);
    found.sort_unstable();
    let bytes = found.iter().flat_map(|text| text.bytes().chain([b'\n']));
    let digest =
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let Report { full_size_seconds, fast_hit_share, promoted_pages, demoted_pages, .. } = report;
    format!("{name} {full_size_seconds:.4} {fast_hit_share:.4} {promoted_pages} {demoted_pages} {digest:016x}")
}

#[test]
fn runs_come_out_as_recorded() {
    let mut rows: Vec<String> = std::thread::scope(|scope| {
        let running: Vec<_> = CASES.iter().map(|case| scope.spawn(|| row(case.name, &run(case)))).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    rows.push(row("age-two-processes-traced", &run_processes()));
    let now =
        format!("# case, seconds at full size, fast hit share, pages promoted, demoted, digest\n{}\n", rows.join("\n"));
    let moved: Vec<_> =
        now.lines().zip(RECORDED.lines().chain(std::iter::repeat(""))).filter(|(a, b)| a != b).collect();
    assert!(
        now == RECORDED,
        "these differ from what is recorded: {moved:#?}\nwhat recorded.txt would hold now:\n{now}"
    );
}
